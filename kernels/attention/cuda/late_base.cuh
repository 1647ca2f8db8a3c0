/* Bases of rows that follow a row's maximum late: P = 2^(S scale - base), also where a base is far
 * (params.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include <math_constants.h>

#include "kernels/attention/params.h"
#include "kernels/cuda/ptx.cuh"

#if TD_HAVE_WGMMA

namespace td {

/* Whether floats of a base's size are too far apart for P to be made with one rounding; see
 * params.h. */
__device__ __forceinline__ bool is_far(float base)
{
    return fabsf(base) >= TD_FAR_BASE && base != -CUDART_INF_F;
}

/* log2 of P of a score of s times c. */
__device__ __forceinline__ float exponent(float s, float c, float base)
{
    return is_far(base) ? __fsub_rn(__fmul_rn(s, c), base) : __fmaf_rn(s, c, -base);
}

/* The base by which P of a score is 2^below, or 1 where that would be far. */
__device__ __forceinline__ float base_below(float score, float below)
{
    const float next = __fsub_rn(score, below);

    return is_far(score) || is_far(next) ? score : next;
}

/* A base that is far is rare, so nobody asks: where a warp has one, its first lane's is NaN
 * meanwhile, and so is that one's P, of which each step finds that it may have passed its limit.
 * The lane's neighbours have the same rows and know. */
__device__ __forceinline__ bool any_far(const float (&top)[2])
{
    return __any_sync(~0u, is_far(top[0]) | is_far(top[1]));
}
__device__ __forceinline__ void hide_base(float (&top)[2])
{
    if ((tid_x() & 31) == 0)
        top[0] = CUDART_NAN_F;
}
__device__ __forceinline__ void show_base(float (&top)[2])
{
    const int lane = tid_x() & 31;

    top[0] = __shfl_sync(~0u, top[0], lane ? lane : 1);
}

} // namespace td
#endif
