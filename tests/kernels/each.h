/* What --each of test_cuda, test_linear_gpu, test_operations and test_llama_gpu has in common: cases that launch each kernel of a GPU, for
 * compute-sanitizer, under which kernels take a hundred times as long. So a case runs only if it launches what none before it has.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_EACH_H
#define TD_TESTS_EACH_H

#include "kernels/target.h"

enum { TE_MOST_KERNELS = 512 };

/* The program that has a kernel's cases. */
typedef enum te_program { TE_CUDA, TE_LINEAR, TE_OPERATIONS, TE_LLAMA } te_program;
te_program te_program_of(const char *entry);

typedef struct te_cases {
    uint32_t lane, lanes; /* every so manieth runs; lanes 0: none, they are planned alone */
    const char *name;     /* of those alone that launch a kernel whose name begins so */
    const td_cubin *cubin;
    uint32_t number, ran; /* of what is to run somewhere; here */
    bool launched[2][TE_MOST_KERNELS]; /* by a case, of this lane or another: in its plain variant, in the other one */
} te_cases;

/* From the command line: --each [LANE/LANES | NAME], or --cases, by which none runs. False, and why on stderr: it is wrong. */
bool te_arguments(te_cases *it, int argc, char **argv);

/* From the beginning, with the kernels for `sm`; fails the test if this build has none. */
void te_begin(te_cases *it, uint32_t sm);
/* Whether the plan, in this variant of it, is to run here. */
bool te_is_mine(te_cases *it, const td_plan *plan, bool other_variant);
/* Prints how many ran; fails the test if the plain variant of no case launches a kernel of this program's. */
void te_end(const te_cases *it, te_program program);

/* All that --cases does, without a GPU: whether the cases, planned for streams, launch every kernel of each architecture of this
 * build (those that the driver compiles are the same). Returns the exit status: 77 where there are none. */
int te_check_cases(te_cases *it, te_program program, void (*cases)(td_target target));

#endif
