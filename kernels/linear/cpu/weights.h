/* Rows of weights as floats, on the CPU.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_LINEAR_CPU_WEIGHTS_H
#define TANDEM_KERNELS_LINEAR_CPU_WEIGHTS_H

#include "kernels/cpu/cpu.h"
#include "kernels/linear/params.h"

/* `count` weights of a row that begins at w, from channel `first` on: whole blocks, if it has some. Those of blocks are rounded
 * to x's type, see params.h. The same bits whatever the instruction set. */
void td_linear_load_weights(const td_params_linear *p, const unsigned char *w, uint32_t first, uint32_t count, float *to);

#if TD_X86
/* Products of a row of x with rows of w, where both are at hand for AVX-512: */
TD_INLINE bool td_linear_has_dot(const td_params_linear *p)
{
    return p->dtype == TANDEM_DTYPE_F16 &&
           (p->weights == TD_LINEAR_Q4_0 || p->weights == TD_LINEAR_Q4_1 || p->weights == TD_LINEAR_Q8_0);
}
/* of `count` channels from `first` on, whole blocks, with TD_LINEAR_DOTS rows at once; sums of 16 lanes each: lane i has channels
 * i, i + 16 and so on. */
#define TD_LINEAR_DOTS 4u
void td_linear_dot_avx512(const td_params_linear *p, const unsigned char *const w[TD_LINEAR_DOTS], const float *x, uint32_t first,
                          uint32_t count, float sums[TD_LINEAR_DOTS][16]);
#endif

#endif
