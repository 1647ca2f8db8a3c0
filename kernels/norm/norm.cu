/* RMSNorm and LayerNorm: see params.h. A row is read two or three times, from memory but once: it is in the cache then.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/tensor.cuh"
#include "kernels/norm/params.h"

namespace td {

struct NormRow {
    const td_params_norm &p;
    int64_t batch, head, row;
    uint32_t lane;

    __device__ __forceinline__ int64_t at(const td_strides &r, uint32_t c) const
    {
        return row_at(r, batch, head, row) + c;
    }

    /* f(h, c, count) for all channels of this thread, eight at a time, of which `count` exist. */
    template <class F> __device__ __forceinline__ void each(F f) const
    {
        for (uint32_t c = lane * 8; c < p.channels; c += 8u * p.lanes) {
            const int count = int(p.channels - c);
            float h[8], more[8];

            load_some(h, p.x, p.dtype, at(p.x_at, c), count);
            if (p.residual)
                load_some(more, p.residual, p.residual_dtype, at(p.residual_at, c), count);
#pragma unroll
            for (int i = 0; i < 8 && p.residual; i++) {
                h[i] = __fadd_rn(h[i], more[i]);
                if (p.dtype == TANDEM_DTYPE_F16)
                    h[i] = __half2float(__float2half_rn(h[i]));
                else if (p.dtype == TANDEM_DTYPE_BF16)
                    h[i] = __bfloat162float(__float2bfloat16_rn(h[i]));
            }
            f(h, c, count);
        }
    }

    /* The mean, over the row, of what each thread has eight sums of. */
    __device__ __forceinline__ float mean(const float (&s)[8], float (&warps)[TD_NORM_THREADS / 32]) const
    {
        float all = __fadd_rn(__fadd_rn(__fadd_rn(s[0], s[4]), __fadd_rn(s[2], s[6])),
                              __fadd_rn(__fadd_rn(s[1], s[5]), __fadd_rn(s[3], s[7])));

#pragma unroll
        for (int apart = 16; apart; apart /= 2)
            all = __fadd_rn(all, __shfl_xor_sync(~0u, all, apart));
        if (p.lanes > 32) {
            __syncthreads();
            if (threadIdx.x % 32 == 0)
                warps[threadIdx.x / 32] = all;
            __syncthreads();
            all = warps[0];
            for (uint32_t w = 1; w < TD_NORM_THREADS / 32; w++)
                all = __fadd_rn(all, warps[w]);
        }
        return __fdiv_rn(all, float(p.channels));
    }
};

} // namespace td

extern "C" __global__ void __launch_bounds__(TD_NORM_THREADS, 2) norm_rows(const __grid_constant__ td_params_norm p)
{
    __shared__ float warps[TD_NORM_THREADS / 32];
    const uint64_t number = uint64_t(blockIdx.x) * (TD_NORM_THREADS / p.lanes) + threadIdx.x / p.lanes;

    if (td::cancelled(p.cancel) || number >= p.total) /* whole warps leave; where all threads share a row there is one */
        return;
    const int64_t plane = int64_t(number / p.rows);
    const td::NormRow row = {p, plane / p.heads, plane % p.heads, int64_t(number % p.rows), threadIdx.x % p.lanes};
    float sums[8] = {}, squares[8] = {}, mean = 0;

    if (p.subtracts_mean) {
        row.each([&](const float(&h)[8], uint32_t, int) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                sums[i] = __fadd_rn(sums[i], h[i]);
        });
        mean = row.mean(sums, warps);
    }
    row.each([&](const float(&h)[8], uint32_t, int count) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float apart = i < count ? __fsub_rn(h[i], mean) : 0;

            squares[i] = __fadd_rn(squares[i], __fmul_rn(apart, apart));
        }
    });
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(row.mean(squares, warps), p.epsilon)));

    row.each([&](const float(&h)[8], uint32_t c, int count) {
        float y[8], weight[8], bias[8];

        if (p.sum)
            td::store_some(p.sum, p.dtype, row.at(p.sum_at, c), count, h);
        if (p.weight)
            td::load_some(weight, p.weight, p.weight_dtype, c, count);
        if (p.bias)
            td::load_some(bias, p.bias, p.bias_dtype, c, count);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            y[i] = __fmul_rn(__fsub_rn(h[i], mean), scale);
            if (p.weight)
                y[i] = __fmul_rn(y[i], weight[i]);
            if (p.bias)
                y[i] = __fadd_rn(y[i], bias[i]);
        }
        td::store_some(p.y, p.y_dtype, row.at(p.y_at, c), count, y);
    });
}
