/* The online softmax of one warp's tile of S, 16 rows and 8 keys for each of Tiles, in base 2. See params.h for the order of the
 * operations.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A thread owns rows g and g + 8 of its warp's 16 (half 0 and 1 of its fragments); the four threads
 * of a quad share them. m is the same in all four, l is each thread's own sum until finish().
 */
#pragma once

#include <math_constants.h>

#include "tile.cuh"

namespace td {

struct Softmax {
    float m[2], l[2];

    __device__ __forceinline__ void start()
    {
        m[0] = m[1] = -CUDART_INF_F;
        l[0] = l[1] = 0.0f;
    }

    /* s becomes P; alpha is what O has to be multiplied by. fmaxf drops a NaN, so that m never is
     * one. */
    template <int Tiles> __device__ __forceinline__ void step(float (&s)[Tiles][4], float (&alpha)[2])
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float old = m[half];
            float top = old, sum = 0.0f;

#pragma unroll
            for (int j = 0; j < Tiles; j++)
                top = fmaxf(top, fmaxf(s[j][2 * half], s[j][2 * half + 1]));
            top = quad_max(top);
            const float base = top == -CUDART_INF_F ? 0.0f : top;
            alpha[half] = ex2(__fsub_rn(old, base));
#pragma unroll
            for (int j = 0; j < Tiles; j++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    s[j][i] = ex2(__fadd_rn(__fsub_rn(s[j][i], base), TD_LOG2_448));
                    sum = __fadd_rn(sum, s[j][i]);
                }
            m[half] = top;
            l[half] = __fmaf_rn(l[half], alpha[half], sum);
        }
    }

    __device__ __forceinline__ void finish()
    {
#pragma unroll
        for (int half = 0; half < 2; half++)
            l[half] = quad_sum(l[half]);
    }

    /* Behind finish(): what is in the sum, of the score in base 2, without a value. */
    __device__ __forceinline__ void add_sink(int half, float score)
    {
        const float base = m[half] == -CUDART_INF_F ? 0.0f : m[half];

        l[half] = __fadd_rn(l[half], ex2(__fadd_rn(__fsub_rn(score, base), TD_LOG2_448)));
    }

    /* With a sink that was added, or -inf. Beside one that makes the sum infinite nothing counts. */
    __device__ __forceinline__ float lse(int half, float sink) const
    {
        return l[half] == CUDART_INF_F ? __fmul_rn(sink, TD_LN_2) : lse(half);
    }

    /* Natural log of the sum of exp; -inf for a row without keys. */
    __device__ __forceinline__ float lse(int half) const
    {
        const float base = m[half] == -CUDART_INF_F ? 0.0f : m[half];

        if (l[half] == 0.0f)
            return -CUDART_INF_F;
        return __fmul_rn(__fsub_rn(__fadd_rn(base, log2f(l[half])), TD_LOG2_448), TD_LN_2);
    }
};

} // namespace td
