/* What the tests of attention's CUDA kernels on the emulator share: a case run by a kernel and by its twin, and
 * values that are hard on both.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_KERNELS_RIG_H
#define TANDEM_TESTS_KERNELS_RIG_H

#include "tests/cases.h"
#include "tests/kernels/attention_compare.h"
#include "tests/kernels/emu_modules.h"

enum { THREADS = 2 };

extern uint64_t seed;
extern bool quick;
extern em_module broken;
void must(tandem_status status, const char *why);

typedef struct options {
    bool stream, dump, commit, prologue_only, no_clusters;
    double most_l1; /* of O against float64, where not 0 */
    td_rows split;
    uint32_t schedules;
    void (*spoil)(tu_case *);
} options;

/* The plan for `sm`, run by the kernels of `on`. */
void check(em_module *on, uint32_t sm, const tu_shape *shape, options with);
void spoil_values(tu_case *it);
/* Where all P of the second R are at their limit, or just below. */
void fill_to_the_limit(tu_case *it);
/* Where bases move in the second half of a step of TD_HOPPER_KEYS keys, in some rows in the first one as well. */
void move_bases(tu_case *it);
/* From key 200 on, P of a base of zeros is 2^14.5 to 2^14.9 in some rows, so that sums of P are beyond P's limit, and
 * 2^15.2 in others. */
void sum_to_the_limit(tu_case *it);
/* A case whole, then as pieces of its heads' rows: the same bits. */
void check_pieces(em_module *on, const tu_shape *shape, td_target target, bool spoilt);

/* Each file's, in the order in which they run. */
extern const test_cases kernels_instructions_cases, kernels_codes_cases, kernels_direct_cases,
    kernels_heads_cases;

#endif
