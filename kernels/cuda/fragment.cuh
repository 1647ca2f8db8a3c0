/* Fragments of the tensor cores' C, whose rows four threads share, a quad.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "kernels/params.h"
#include "ptx.cuh"

namespace td {

/* Where in a C fragment: element i of n-tile j. */
__device__ __forceinline__ int fragment_row(int lane, int i)
{
    return lane / 4 + 8 * (i / 2);
}
__device__ __forceinline__ int fragment_column(int lane, int j, int i)
{
    return 8 * j + 2 * (lane % 4) + i % 2;
}

/* Of the four threads that share rows of a C fragment. */
__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_sum(float x)
{
    x = __fadd_rn(x, __shfl_xor_sync(~0u, x, 1));
    return __fadd_rn(x, __shfl_xor_sync(~0u, x, 2));
}

/* x[i] of a quad's thread q becomes what x[q] of thread i was. */
__device__ __forceinline__ void transpose_quad(uint32_t (&x)[4], int q)
{
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!(i & bit)) {
                const uint32_t got = __shfl_xor_sync(~0u, q & bit ? x[i] : x[i + bit], bit);

                x[i] = q & bit ? got : x[i];
                x[i + bit] = q & bit ? x[i + bit] : got;
            }
}

/* cap * tanh(x / cap) of a score in base 2. */
__device__ __forceinline__ float capped(float x, float cap)
{
    const float e = ex2(__fmul_rn(__fdiv_rn(-2.0f * TD_LOG2_E, cap), fabsf(x)));

    return copysignf(__fmul_rn(cap, __fdiv_rn(__fsub_rn(1.0f, e), __fadd_rn(1.0f, e))), x);
}

} // namespace td
