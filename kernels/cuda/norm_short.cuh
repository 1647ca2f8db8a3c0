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

/* `Rows` rows of fp16 at once, of up to `Most` channels: code that is met once takes longer than what it does, so a warp has little of
 * it for all of them. 32 / Rows of its threads have a row, and each does what Rows of norm_short's do, so that sums are added up in
 * the same order. */
template <int Rows, int Most> struct NormRows {
    static constexpr int lanes = 32 / Rows, chunks = Most / 8 / lanes;
    static_assert(Most % (8 * lanes) == 0, "a thread has whole eights");

    float h[chunks][8];

    /* Which of the rows is this thread's, and from which channel on it has the k-th eight of it. */
    __device__ __forceinline__ static uint32_t row()
    {
        return threadIdx.x % 32 / lanes;
    }
    __device__ __forceinline__ static uint32_t channel(int k)
    {
        return 8 * (threadIdx.x % lanes + lanes * k);
    }
    /* What a row of x begins with: with a residual, of which `more` is the row, and as it goes to `sum`, if that is there. */
    __device__ __forceinline__ void load(const __half *x, const __half *more, __half *sum, uint32_t channels)
    {
        uint4 words[chunks], others[chunks];

#pragma unroll
        for (int k = 0; k < chunks; k++) {
            words[k] = others[k] = make_uint4(0, 0, 0, 0);
            if (channel(k) < channels) {
                words[k] = *reinterpret_cast<const uint4 *>(x + channel(k));
                if (more)
                    others[k] = *reinterpret_cast<const uint4 *>(more + channel(k));
            }
        }
#pragma unroll
        for (int k = 0; k < chunks; k++) {
            if (more) /* float32's sum of two halves is rounded to the same half */
                words[k] = make_uint4(add(words[k].x, others[k].x), add(words[k].y, others[k].y), add(words[k].z, others[k].z),
                                      add(words[k].w, others[k].w));
            if (sum && channel(k) < channels)
                *reinterpret_cast<uint4 *>(sum + channel(k)) = words[k];
            halves(h[k][0], h[k][1], words[k].x);
            halves(h[k][2], h[k][3], words[k].y);
            halves(h[k][4], h[k][5], words[k].z);
            halves(h[k][6], h[k][7], words[k].w);
        }
    }
    /* Then h less its mean, which is what it becomes; what that is multiplied by. */
    __device__ __forceinline__ float center(const td_params_norm &p)
    {
        const float mean = p.subtracts_mean ? mean_of([&](int k, int j) { return h[k][j]; }, p.channels) : 0.0f;

#pragma unroll
        for (int k = 0; k < chunks; k++) {
            const float less = channel(k) < p.channels ? mean : 0.0f; /* beyond it h is 0, and stays it */

#pragma unroll
            for (int j = 0; j < 8; j++)
                h[k][j] = __fsub_rn(h[k][j], less);
        }
        const float square = mean_of([&](int k, int j) { return __fmul_rn(h[k][j], h[k][j]); }, p.channels);

        return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(square, p.epsilon)));
    }
    /* What becomes of the k-th eight; weights and biases are all channels': 1 and -0, which change nothing, where there are none. */
    __device__ __forceinline__ uint4 normed(int k, float scale, const float *weight, const float *bias) const
    {
        __half *const as = nullptr;
        float x[8];

#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = __fmul_rn(h[k][j], scale);
        each(x, weight + channel(k), [](float a, float b) { return __fmul_rn(a, b); });
        each(x, bias + channel(k), [](float a, float b) { return __fadd_rn(a, b); });
        return make_uint4(pack2(as, x[0], x[1]), pack2(as, x[2], x[3]), pack2(as, x[4], x[5]), pack2(as, x[6], x[7]));
    }

private:
    __device__ __forceinline__ static uint32_t add(uint32_t a, uint32_t b)
    {
        __half2 x, y;

        memcpy(&x, &a, sizeof x);
        memcpy(&y, &b, sizeof y);
        x = __hadd2_rn(x, y);
        memcpy(&a, &x, sizeof a);
        return a;
    }
    __device__ __forceinline__ static void halves(float &low, float &high, uint32_t word)
    {
        __half2 both;

        memcpy(&both, &word, sizeof both);
        low = __low2float(both), high = __high2float(both);
    }
    template <class F> __device__ __forceinline__ static void each(float (&x)[8], const float *by, F f)
    {
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
            const float4 four = *reinterpret_cast<const float4 *>(by + j);

            x[j] = f(x[j], four.x), x[j + 1] = f(x[j + 1], four.y), x[j + 2] = f(x[j + 2], four.z), x[j + 3] = f(x[j + 3], four.w);
        }
    }
    template <class F> __device__ __forceinline__ static float mean_of(F f, uint32_t channels)
    {
        float all[Rows];

#pragma unroll
        for (int i = 0; i < Rows; i++) { /* as one of norm_short's threads */
            float s[8] = {};

#pragma unroll
            for (int k = i; k < chunks; k += Rows)
#pragma unroll
                for (int j = 0; j < 8; j++)
                    s[j] = __fadd_rn(s[j], f(k, j));
            all[i] = norm_thread_sum(s);
        }
#pragma unroll
        for (int apart = Rows / 2; apart; apart /= 2)
#pragma unroll
            for (int i = 0; i < apart; i++)
                all[i] = __fadd_rn(all[i], all[i + apart]);
#pragma unroll
        for (int apart = lanes / 2; apart; apart /= 2)
            all[0] = __fadd_rn(all[0], __shfl_xor_sync(~0u, all[0], apart));
        return __fdiv_rn(all[0], float(channels));
    }
};

} // namespace td
