/* RMSNorm and LayerNorm of some short rows of fp16, in registers of a warp, for kernels that begin with it. The numbers are those that
 * kernels/norm/params.h says, which also says what of td_params_norm is `norm_short`'s.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "kernels/cuda/norm_line.cuh"

namespace td {

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
    /* What becomes of the k-th eight; weights and biases are 1 and -0, which change nothing, where there are none. */
    __device__ __forceinline__ uint4 normed(int k, float scale, const float (&weight)[8], const float (&bias)[8]) const
    {
        __half *const as = nullptr;
        float x[8];

#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = __fadd_rn(__fmul_rn(__fmul_rn(h[k][j], scale), weight[j]), bias[j]);
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
