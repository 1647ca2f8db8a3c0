/* Cases of operations whose bits are the same everywhere: on the CPU, on the emulated GPUs, by plans that commit, in parts.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_KERNELS_UTIL_H
#define TD_TESTS_KERNELS_UTIL_H

#include "kernels/operation.h"
#include "tests/kernels/attention_util.h"
#include "tests/kernels/emu_modules.h"

typedef struct ku_case {
    const td_operation *operation;
    tandem_operands op;
    tu_tensor tensors[TD_MAX_VIEWS]; /* data NULL: not there */
    uint64_t views[TD_MAX_VIEWS];    /* where they are */
} ku_case;

/* x as an element of a dtype, F16, BF16 or F32, has it. */
double ku_rounded(double x, uint32_t dtype);

/* Gives the case a view. */
void ku_put(ku_case *it, uint32_t view, tu_tensor tensor);
/* One of the shape that the operation says, of normal random numbers; an odd `n` lays it out by rows. */
void ku_random(ku_case *it, uint32_t view, uint32_t dtype, uint32_t n, uint32_t seed);
void ku_free(ku_case *it);

/* Poisons what is written, and runs it on an emulated GPU, or on the CPU where `on` is NULL; whole, or in about `parts` parts. */
void ku_run_on(ku_case *it, em_module *on, td_target target, uint32_t parts);

/* The same, whole, with each view at another address, which elements can have; `n` says which. */
void ku_run_elsewhere(ku_case *it, em_module *on, td_target target, uint32_t n);

/* Runs it everywhere, and with views elsewhere: what is written is poisoned before and the same bits each time, `check` looks at it, and nothing else is
 * written. Every `n`th is another one by a plan that commits, and cut into other parts. */
void ku_run(ku_case *it, uint32_t n, void (*check)(const ku_case *it));

/* Fails the test unless the operation is refused with ARG and `text` is in the reason. */
void ku_refuses(const td_operation *operation, const tandem_operands *op, const char *text);

#endif
