/* RMSNorm of float32 rows, as language models have them, in registers of a warp or a block: what `norm_line` does, and kernels that
 * begin with it. The numbers are those that kernels/norm/params.h says.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "kernels/cuda/tensor.cuh"
#include "kernels/norm/params.h"

namespace td {

/* Of a thread's eight sums. */
__device__ __forceinline__ float norm_thread_sum(const float (&s)[8])
{
    return __fadd_rn(__fadd_rn(__fadd_rn(s[0], s[4]), __fadd_rn(s[2], s[6])),
                     __fadd_rn(__fadd_rn(s[1], s[5]), __fadd_rn(s[3], s[7])));
}

/* Of what 32 threads have eight sums of each. */
__device__ __forceinline__ float norm_warp_sum(const float (&s)[8])
{
    float all = norm_thread_sum(s);

#pragma unroll
    for (int apart = 16; apart; apart /= 2)
        all = __fadd_rn(all, __shfl_xor_sync(~0u, all, apart));
    return all;
}

/* Of what a block's warps have each a sum of, one behind the other. */
__device__ __forceinline__ float norm_block_sum(float mine, float (&warps)[TD_NORM_THREADS / 32])
{
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = mine;
    __syncthreads();
    float all = warps[0];
#pragma unroll
    for (uint32_t w = 1; w < TD_NORM_THREADS / 32; w++)
        all = __fadd_rn(all, warps[w]);
    return all;
}

/* Eight channels' weights or biases. */
__device__ __forceinline__ void norm_load8(float (&x)[8], const void *from, uint32_t c)
{
    const float4 *at = reinterpret_cast<const float4 *>(static_cast<const float *>(from) + c);
    const float4 low = __ldg(at), high = __ldg(at + 1);

    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

/* What becomes of them: times what the row is multiplied by, and times weights. */
template <class Y> __device__ __forceinline__ void norm_store8(Y *to, const float (&h)[8], float by, const float (&weights)[8])
{
    Y *const as = nullptr;
    float x[8];

#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] = __fmul_rn(__fmul_rn(h[j], by), weights[j]);
    *reinterpret_cast<uint4 *>(to) = make_uint4(pack2(as, x[0], x[1]), pack2(as, x[2], x[3]), pack2(as, x[4], x[5]), pack2(as, x[6], x[7]));
}

/* What a thread has of a row that `lanes` threads share: 32, or all of a block. */
struct NormLine {
    static constexpr int most = int(TD_NORM_LINE / (8 * TD_NORM_THREADS));
    static_assert(TD_NORM_SHORT == most * 8 * 32, "a warp's rows have as many steps as a block's");
    uint32_t lanes, channels, first, step; /* of its channels */
    float h[most][8];

    __device__ __forceinline__ NormLine(uint32_t lanes_of, uint32_t channels_of)
        : lanes(lanes_of), channels(channels_of), first(threadIdx.x % lanes_of * 8), step(8 * lanes_of)
    {
    }
    __device__ __forceinline__ void load(float (&to)[most][8], const float *from, bool there) const
    {
#pragma unroll
        for (int i = 0; i < most; i++)
            if (there && step * i + first < channels)
                norm_load8(to[i], from, step * i + first);
    }
    /* What h is multiplied by. All threads: `warps` is for them, once. */
    __device__ __forceinline__ float scale(float epsilon, bool there, float (&warps)[TD_NORM_THREADS / 32]) const
    {
        float s[8] = {};

#pragma unroll
        for (int i = 0; i < most; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (there && step * i + first < channels)
                    s[j] = __fadd_rn(s[j], __fmul_rn(h[i][j], h[i][j]));
        float all = norm_warp_sum(s);

        if (lanes > 32)
            all = norm_block_sum(all, warps);
        return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(all, float(channels)), epsilon)));
    }
    /* weight(i, w): the eight weights of channels step * i + first. */
    template <class Y, class Weight> __device__ __forceinline__ void store(Y *y, float by, bool there, Weight weight) const
    {
#pragma unroll
        for (int i = 0; i < most; i++)
            if (there && step * i + first < channels) {
                float w[8];

                weight(i, w);
                norm_store8(y + step * i + first, h[i], by, w);
            }
    }
};

} // namespace td
