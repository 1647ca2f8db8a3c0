/* RMSNorm and LayerNorm of a short row of fp16 or bf16, which a warp has in registers: what `norm_short` does, and kernels that begin
 * with it. The numbers are those that kernels/norm/params.h says, where it also says what of td_params_norm is `norm_short`'s.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "kernels/cuda/norm_line.cuh"

namespace td {

/* From which channel on this thread has eight, in the i-th 256. */
__device__ __forceinline__ uint32_t norm_short_channel(int i)
{
    return 256 * i + threadIdx.x % 32 * 8;
}

/* What is subtracted from a row, and what it is multiplied by then. */
struct NormScale {
    float mean, scale;
};

/* This thread's weights and biases, the same of each row. */
template <int most> struct NormShortWeights {
    float weight[most][8], bias[most][8];

    __device__ __forceinline__ void load(const td_params_norm &p)
    {
#pragma unroll
        for (int i = 0; i < most; i++) {
            const uint32_t c = norm_short_channel(i);

            if (c < p.channels && p.weight)
                norm_load8(weight[i], p.weight, c);
            if (c < p.channels && p.bias)
                norm_load8(bias[i], p.bias, c);
        }
    }
};

/* Eight channels of a row in every 256, up to `most` times, as far as there are any: 16 bytes each, zeros elsewhere. */
template <class E, int most> struct NormShort {
    uint4 words[most];

    __device__ __forceinline__ void load(const void *row, uint32_t channels)
    {
#pragma unroll
        for (int i = 0; i < most; i++) {
            const uint32_t c = norm_short_channel(i);

            words[i] = make_uint4(0, 0, 0, 0);
            if (c < channels)
                words[i] = *reinterpret_cast<const uint4 *>(static_cast<const E *>(row) + c);
        }
    }
    __device__ __forceinline__ void get(float (&x)[8], int i) const
    {
        E e[8];

        memcpy(e, &words[i], sizeof e);
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = to_float(e[j]);
    }
    /* Of x and `more`, rounded. */
    __device__ __forceinline__ void add(const NormShort &more, uint32_t channels)
    {
#pragma unroll
        for (int i = 0; i < most; i++)
            if (256 * i < channels) {
                float x[8], y[8];

                get(x, i);
                more.get(y, i);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    x[j] = __fadd_rn(x[j], y[j]);
                set(words[i], x);
            }
    }
    __device__ __forceinline__ static void set(uint4 &to, const float (&x)[8])
    {
        E *const as = nullptr;

        to = make_uint4(pack2(as, x[0], x[1]), pack2(as, x[2], x[3]), pack2(as, x[4], x[5]), pack2(as, x[6], x[7]));
    }
    /* The mean of x, or of its squared distances from `from`. */
    template <bool Squares> __device__ __forceinline__ float mean(uint32_t channels, float from) const
    {
        float s[8] = {};

#pragma unroll
        for (int i = 0; i < most; i++)
            if (256 * i < channels) {
                const bool there = norm_short_channel(i) < channels;
                float x[8];

                get(x, i);
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    if (Squares)
                        x[j] = there ? __fmul_rn(__fsub_rn(x[j], from), __fsub_rn(x[j], from)) : 0.0f;
                    s[j] = __fadd_rn(s[j], x[j]);
                }
            }
        return __fdiv_rn(norm_warp_sum(s), float(channels));
    }
    __device__ __forceinline__ NormScale scale(const td_params_norm &p) const
    {
        const float center = p.subtracts_mean ? mean<false>(p.channels, 0) : 0.0f;

        return {center, __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean<true>(p.channels, center), p.epsilon)))};
    }
    /* What becomes of the i-th eight. */
    __device__ __forceinline__ uint4 normed(const td_params_norm &p, int i, const NormScale &by, const NormShortWeights<most> &weights) const
    {
        float x[8];
        uint4 y;

        get(x, i);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            x[j] = __fmul_rn(__fsub_rn(x[j], by.mean), by.scale);
            if (p.weight)
                x[j] = __fmul_rn(x[j], weights.weight[i][j]);
            if (p.bias)
                x[j] = __fadd_rn(x[j], weights.bias[i][j]);
        }
        set(y, x);
        return y;
    }
};

} // namespace td
