/* What the tests of attention on the CPU share: targets, head dims and instruction sets, and a case beside the
 * oracle.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_ATTENTION_CPU_RIG_H
#define TANDEM_TESTS_ATTENTION_CPU_RIG_H

#include "tests/cases.h"
#include "tests/kernels/attention_util.h"

enum { DIMS = 12, ISAS = 3 };

extern const uint32_t dims[DIMS];
extern const char *const isas[ISAS];

#define assert_in(value, low, high)                                                                      \
    do {                                                                                                 \
        const double in_value = (value);                                                                 \
        if (!(in_value >= (low) && in_value <= (high))) {                                                \
            print_error("%s is %g, not in %g .. %g\n", #value, in_value, (double)(low), (double)(high)); \
            fail();                                                                                      \
        }                                                                                                \
    } while (0)

extern const td_target cpu;
/* A GPU's twin, whatever cubins this build has. */
td_target twin_of(uint32_t sm);
/* Of the kernels that only a stream gets. */
td_target wgmma_twin(void);
size_t o_count(const tu_case *it);

/* Makes q, k and v of an `op` codes. */
#define CODED                                                                                            \
    op.q = (tandem_view){.dtype = 4, .stride_row = 64, .stride_head = 8192, .stride_batch = 6 * 8192};    \
    op.k = (tandem_view){.dtype = 4, .stride_row = 64, .stride_head = 24576, .stride_batch = 3 * 24576};  \
    op.v = op.k;                                                                                         \
    op.v.dtype = 5, op.v.stride_row = 384, op.lse.dtype = 0

tandem_attention good_op(void);

/* bench.c's. */

/* The demo's frame, best of some runs: wall time with two threads, CPU time of all records, and of each. */
int bench(void);

/* Each file's, in the order in which they run. */
extern const test_cases attention_cpu_formats_cases, attention_cpu_plans_cases,
    attention_cpu_codes_cases, attention_cpu_oracle_cases, attention_cpu_accuracy_cases,
    attention_cpu_executor_cases, attention_cpu_commit_cases;

#endif
