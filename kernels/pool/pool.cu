/* Means of rows: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * What is normalised is kept until its length is known; what is too long for that is added up twice. Lanes have eight channels of each
 * half of a tile, whose rows are under way side by side: most vectors are one tile, which takes one latency of memory.
 */
#include "kernels/cuda/tensor.cuh"
#include "kernels/pool/params.h"

namespace td {

struct PoolShared {
    float sums[TD_POOL_SUMS][TD_POOL_TILE]; /* channel 8 l + i of a half at i / 4 * 128 + 4 l + i % 4: no two of a float4 meet a bank */
    float means[TD_POOL_KEPT][TD_POOL_TILE]; /* of so many tiles; the first one's place is every tile's, where there are more */
    float squares[32], length;
};

constexpr uint32_t pool_half = TD_POOL_TILE / 2;
static_assert(TD_POOL_SUMS == 16 && TD_POOL_TILE == TD_POOL_THREADS, "what is added up in pairs, by a thread a channel");
static_assert(pool_half == 8 * 32 && pool_half == TD_POOL_SQUARES, "eight channels a lane, and the halves' squares one behind the other");

/* Of sixteen sums: pairs 8 apart, then 4, 2 and 1. */
__device__ __forceinline__ float pool_sum(const float (&sums)[TD_POOL_SUMS][TD_POOL_TILE], uint32_t at)
{
    float s[8];

#pragma unroll
    for (int i = 0; i < 8; i++)
        s[i] = __fadd_rn(sums[i][at], sums[8 + i][at]);
    return __fadd_rn(__fadd_rn(__fadd_rn(s[0], s[4]), __fadd_rn(s[2], s[6])),
                     __fadd_rn(__fadd_rn(s[1], s[5]), __fadd_rn(s[3], s[7])));
}

__device__ __forceinline__ void pool_store(void *y, uint32_t dtype, int64_t at, float x)
{
    if (dtype == TANDEM_DTYPE_F32)
        static_cast<float *>(y)[at] = x;
    else if (dtype == TANDEM_DTYPE_BF16)
        static_cast<__nv_bfloat16 *>(y)[at] = __float2bfloat16_rn(x);
    else
        static_cast<__half *>(y)[at] = __float2half_rn(x);
}

/* A chunk of a plane. */
struct PoolChunk {
    const td_params_pool &p;
    int64_t batch, head;
    uint32_t first, end; /* rows that count */
    float divisor;

    __device__ __forceinline__ PoolChunk(const td_params_pool &params, uint32_t plane, uint32_t chunk)
        : p(params), batch(plane / params.heads), head(plane % params.heads)
    {
        const int32_t asked = p.length ? p.length[batch * p.length_stride] : int32_t(p.most);
        const uint32_t length = uint32_t(min(max(asked, 0), int32_t(p.most)));
        const uint32_t rows = p.stage == TD_POOL_END ? p.rows : length;

        first = chunk * p.each;
        end = min(rows, min(p.rows - first, p.each) + first);
        divisor = p.stage == TD_POOL_PARTS ? 1.0f : float(max(length, 1u));
    }

    /* Eight channels of each half, of so many rows, TD_POOL_SUMS apart: some are under way at a time, where they can be read at once. */
    template <class E>
    __device__ __forceinline__ void add_rows(float (&sums)[2][8], const E *at, uint32_t rows, const int (&count)[2]) const
    {
        constexpr uint32_t together = 32 / sizeof(E) / 2;
        const int64_t stride = TD_POOL_SUMS * p.x_at.stride_row;
        const bool aligned = (uint64_t(at) | uint64_t(stride) * sizeof(E)) % 16 == 0;
        uint32_t done = 0;

        if (aligned && count[0] >= 8 && (count[1] >= 8 || count[1] <= 0))
#pragma unroll 1
            for (; done < rows; done += together, at += together * stride) {
                Eight<E> eights[2][together];

#pragma unroll
                for (uint32_t i = 0; i < 2 * together; i++) {
                    eights[i / together][i % together].clear();
                    if (done + i % together < rows && (i < together || count[1] > 0))
                        eights[i / together][i % together].template load<true>(at + i % together * stride + i / together * pool_half);
                }
#pragma unroll
                for (uint32_t i = 0; i < 2 * together; i++)
                    add(sums[i / together], eights[i / together][i % together]);
            }
#pragma unroll 1
        for (; done < rows; done++, at += stride)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float x[8] = {};

                if (count[h] > 0)
                    load_some(x, at + h * pool_half, count[h]);
                add(sums[h], x);
            }
    }
    template <class E> __device__ __forceinline__ static void add(float (&sums)[8], const Eight<E> &eight)
    {
        float x[8];

        eight.convert(x);
        add(sums, x);
    }
    __device__ __forceinline__ static void add(float (&sums)[8], const float (&x)[8])
    {
#pragma unroll
        for (int j = 0; j < 8; j++)
            sums[j] = __fadd_rn(sums[j], x[j]);
    }

    /* Of this thread's channel of a tile, 0 where there is none. All threads. */
    __device__ __forceinline__ float mean(uint32_t tile, PoolShared &shared) const
    {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, channel = tile * TD_POOL_TILE + lane * 8;
        const int count[2] = {int(p.channels - channel), int(p.channels - channel) - int(pool_half)};
        float sums[2][8] = {};

        if (first + warp < end && count[0] > 0) {
            const int64_t at = row_at(p.x_at, batch, head, first + warp) + channel;
            const uint32_t rows = (end - first - warp + TD_POOL_SUMS - 1) / TD_POOL_SUMS;

            if (p.dtype == TANDEM_DTYPE_F32)
                add_rows(sums, static_cast<const float *>(p.x) + at, rows, count);
            else if (p.dtype == TANDEM_DTYPE_BF16)
                add_rows(sums, static_cast<const __nv_bfloat16 *>(p.x) + at, rows, count);
            else
                add_rows(sums, static_cast<const __half *>(p.x) + at, rows, count);
        }
        __syncthreads(); /* nobody reads the last tile's any more */
        float4 *const to = reinterpret_cast<float4 *>(shared.sums[warp]);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            to[64 * h + lane] = make_float4(sums[h][0], sums[h][1], sums[h][2], sums[h][3]);
            to[64 * h + 32 + lane] = make_float4(sums[h][4], sums[h][5], sums[h][6], sums[h][7]);
        }
        __syncthreads();
        const uint32_t within = threadIdx.x % pool_half;
        const uint32_t at = threadIdx.x / pool_half * pool_half + within % 8 / 4 * 128 + within / 8 * 4 + within % 4;

        return __fdiv_rn(pool_sum(shared.sums, at), divisor);
    }
};

/* The length of a vector of which the first TD_POOL_SQUARES threads have sums of squares: of eight neighbours those 4, 2 and 1 apart
 * are added, then of 32 eights those 16 to 1 apart. All threads. */
__device__ __forceinline__ float pool_length(float squares, PoolShared &shared)
{
#pragma unroll
    for (int apart = 4; apart; apart /= 2)
        squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, apart));
    if (threadIdx.x < TD_POOL_SQUARES && threadIdx.x % 8 == 0)
        shared.squares[threadIdx.x / 8] = squares;
    __syncthreads();
    if (threadIdx.x < 32) {
        float all = shared.squares[threadIdx.x];

#pragma unroll
        for (int apart = 16; apart; apart /= 2)
            all = __fadd_rn(all, __shfl_xor_sync(~0u, all, apart));
        if (threadIdx.x == 0)
            shared.length = __fsqrt_rn(all);
    }
    __syncthreads();
    return shared.length;
}

} // namespace td

extern "C" __global__ void __launch_bounds__(TD_POOL_THREADS, 1) pool_rows(const __grid_constant__ td_params_pool p)
{
    __shared__ __align__(16) td::PoolShared shared;
    const uint32_t tiles = (p.channels + TD_POOL_TILE - 1) / TD_POOL_TILE, blocks = p.normalises ? 1 : tiles;
    const uint32_t chunks = (p.rows + p.each - 1) / p.each, chunk = blockIdx.x / blocks % chunks;
    const uint32_t first_tile = blockIdx.x % blocks, end_tile = p.normalises ? tiles : first_tile + 1;

    td::wait_for_previous();
    td::launch_dependents();
    if (td::cancelled(p.cancel))
        return;
    const td::PoolChunk at(p, blockIdx.x / blocks / chunks, chunk);
    const bool keeps = p.normalises && tiles <= TD_POOL_KEPT;
    float squares = 0, divisor = 1;

    /* First the length, where it normalises, then what is written: one copy of the code that adds up. */
#pragma unroll 1
    for (bool writes = !p.normalises;; writes = true) {
#pragma unroll 1
        for (uint32_t tile = first_tile; tile < end_tile; tile++) {
            const uint32_t channel = tile * TD_POOL_TILE + threadIdx.x;
            float(&means)[TD_POOL_TILE] = shared.means[keeps ? tile : 0];
            const float mean = writes && keeps ? means[threadIdx.x] : at.mean(tile, shared);

            if (!writes) {
                means[threadIdx.x] = mean;
                __syncthreads();
                if (threadIdx.x < TD_POOL_SQUARES) {
                    const float other = means[TD_POOL_SQUARES + threadIdx.x];

                    squares = __fadd_rn(__fadd_rn(squares, __fmul_rn(mean, mean)), __fmul_rn(other, other));
                }
            } else if (channel < p.channels) {
                td::pool_store(p.y, p.y_dtype, td::row_at(p.y_at, at.batch, at.head, chunk) + channel,
                               p.normalises ? __fdiv_rn(mean, divisor) : mean);
            }
        }
        if (writes)
            break;
        const float length = td::pool_length(squares, shared);

        divisor = length < p.epsilon ? p.epsilon : length; /* a NaN stays one */
    }
}
