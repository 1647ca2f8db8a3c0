/* Means of rows: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * What is normalised is added up twice: the second time it is in the cache.
 */
#include "kernels/cuda/tensor.cuh"
#include "kernels/pool/params.h"

namespace td {

struct PoolShared {
    float sums[TD_POOL_SUMS][TD_POOL_TILE];
    float means[TD_POOL_TILE];
};

static_assert(TD_POOL_SUMS == 16, "what is added up in pairs");

/* Those 4, 2 and 1 apart. */
__device__ __forceinline__ float pool_sum(const float (&s)[8])
{
    return __fadd_rn(__fadd_rn(__fadd_rn(s[0], s[4]), __fadd_rn(s[2], s[6])),
                     __fadd_rn(__fadd_rn(s[1], s[5]), __fadd_rn(s[3], s[7])));
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

    /* Of eight channels of this lane's, for all warps alike. */
    __device__ __forceinline__ void mean(float (&m)[8], uint32_t tile, PoolShared &shared) const
    {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, channel = tile * TD_POOL_TILE + lane * 8;
        const int count = int(p.channels - channel);
        float sums[8] = {}, x[8];

#pragma unroll 4
        for (uint32_t row = first + warp; row < end; row += TD_POOL_SUMS) {
            load_some(x, p.x, p.dtype, row_at(p.x_at, batch, head, row) + channel, count);
#pragma unroll
            for (int i = 0; i < 8; i++)
                sums[i] = __fadd_rn(sums[i], x[i]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            shared.sums[warp][lane * 8 + i] = sums[i];
        __syncthreads();
        if (threadIdx.x < TD_POOL_TILE) {
            float pairs[8];

#pragma unroll
            for (int i = 0; i < 8; i++)
                pairs[i] = __fadd_rn(shared.sums[i][threadIdx.x], shared.sums[8 + i][threadIdx.x]);
            shared.means[threadIdx.x] = __fdiv_rn(pool_sum(pairs), divisor);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 8; i++)
            m[i] = shared.means[lane * 8 + i];
    }
};

/* The length of a vector that 32 lanes have eight sums of squares each of. */
__device__ __forceinline__ float pool_length(const float (&squares)[8])
{
    float all = pool_sum(squares);

#pragma unroll
    for (int apart = 16; apart; apart /= 2)
        all = __fadd_rn(all, __shfl_xor_sync(~0u, all, apart));
    return __fsqrt_rn(all);
}

} // namespace td

extern "C" __global__ void __launch_bounds__(TD_POOL_THREADS, 2) pool_rows(const __grid_constant__ td_params_pool p)
{
    __shared__ td::PoolShared shared;
    const uint32_t tiles = (p.channels + TD_POOL_TILE - 1) / TD_POOL_TILE, blocks = p.normalises ? 1 : tiles;
    const uint32_t chunks = (p.rows + p.each - 1) / p.each, chunk = blockIdx.x / blocks % chunks;
    const uint32_t first_tile = blockIdx.x % blocks, end_tile = p.normalises ? tiles : first_tile + 1;

    if (td::cancelled(p.cancel))
        return;
    const td::PoolChunk at(p, blockIdx.x / blocks / chunks, chunk);
    float m[8], squares[8] = {}, divisor = 1;

    for (uint32_t tile = 0; tile < tiles && p.normalises; tile++) {
        at.mean(m, tile, shared);
#pragma unroll
        for (int i = 0; i < 8; i++)
            squares[i] = __fadd_rn(squares[i], __fmul_rn(m[i], m[i]));
    }
    if (p.normalises) {
        const float length = td::pool_length(squares);

        divisor = length < p.epsilon ? p.epsilon : length; /* a NaN stays one */
    }
    for (uint32_t tile = first_tile; tile < end_tile; tile++) {
        const uint32_t channel = tile * TD_POOL_TILE + threadIdx.x * 8;

        at.mean(m, tile, shared);
#pragma unroll
        for (int i = 0; i < 8; i++)
            m[i] = __fdiv_rn(m[i], divisor);
        if (threadIdx.x < 32)
            td::store_some(p.y, p.y_dtype, td::row_at(p.y_at, at.batch, at.head, chunk) + channel, int(p.channels - channel), m);
    }
}
