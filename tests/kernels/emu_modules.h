/* The CUDA kernels as tests/emu has them, one module an architecture.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_EMU_MODULES_H
#define TD_TESTS_EMU_MODULES_H

#include <stdbool.h>

#include "kernels/plan.h"
#include "tests/emu/launch.h"

enum { EM_MOST_ENTRIES = 384, EM_MODULES = 4 };

/* The kernels of an architecture, built for this machine. */
typedef struct em_module {
    uint32_t sm;
    void *library;
    emu_run_fn *run;
    const char *entries[EM_MOST_ENTRIES];
    bool was_run[EM_MOST_ENTRIES];
    size_t entry_count;
} em_module;
extern em_module em_modules[EM_MODULES];

/* False, and why on stderr, where a module is missing. */
bool em_open(em_module *it, const char *folder, const char *name);
bool em_open_all(const char *folder);
/* Fails the test if there is none. */
em_module *em_module_of(uint32_t sm);

/* Fails the test, and names it, if a kernel whose name begins so was not run. */
void em_family_was_run(const char *family);

/* Whether to try fewer shapes: with sanitizers each takes some times as long. Every kernel, tail and epilogue stays among them, which is
 * where memory may be missed; what values come out, the tree without them says for all. */
bool em_quick(void);

/* 0, or -1 and why. */
int em_launch(em_module *on, const char *entry, emu_launch *it);
/* A record of a plan; fails the test if the run does. */
void em_launch_record(em_module *on, const td_record *record, const uint64_t *views, uint64_t scratch, uint64_t seed);
/* The same, cancelled when block `from` is about to begin. */
void em_launch_cancelled(em_module *on, const td_record *record, const uint64_t *views, uint64_t scratch, uint64_t seed,
                         uint32_t from);

#endif
