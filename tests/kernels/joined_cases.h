/* A norm and the layer that reads what it makes, as a program: cases for the emulated GPUs and for a real one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_JOINED_CASES_H
#define TD_TESTS_JOINED_CASES_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/program.h"

enum { JC_CASES = 10, JC_MOST_VIEWS = TD_PROGRAM_BINDINGS + 8 };

typedef struct jc_case {
    const char *kernel;              /* of the one record that both become; NULL: they stay two */
    const td_program *joined, *apart; /* of the same graph: as programs are, and with a record for each node */
    void *views[JC_MOST_VIEWS]; /* in the host's memory, or NULL */
    uint64_t view_bytes[JC_MOST_VIEWS];
    uint32_t view_count;
} jc_case;

/* One of JC_CASES, for a GPU of as many multiprocessors as the kernel that it names is chosen for. */
jc_case jc_open(uint32_t n, td_target target);
void jc_close(jc_case *it);

/* Runs a program on copies of views and writes them back. */
typedef void jc_run(void *user, const td_program *program, void *const *views, const uint64_t *bytes, uint32_t count);

/* Fails the test unless both leave the same bits in all views, and have written all of those that they write. Runs what has a kernel. */
void jc_check(jc_case *it, jc_run *run, void *user);

#endif
