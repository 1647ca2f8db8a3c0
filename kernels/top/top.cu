/* The largest numbers of rows: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A block has a chunk's keys in registers, and knows at once of most that they are not among the largest 64: each of eight warps has
 * eight threads whose largest key is at least the warp's eighth, so 64 keys at least are no less than the least of those eight. What is
 * left, some hundreds, is counted: a key's place is how many are larger.
 */
#include "kernels/cuda/tensor.cuh"
#include "kernels/top/params.h"

namespace td {

constexpr uint32_t top_warps = TD_TOP_THREADS / 32, top_each = TD_TOP_CHUNK / TD_TOP_THREADS;
static_assert(top_warps * top_warps == TD_TOP_MOST, "so many threads of so many warps");

struct TopShared {
    uint64_t keys[TD_TOP_CHUNK + TD_TOP_MOST]; /* that may be among the largest: those of chunks before, then this one's */
    uint64_t best[TD_TOP_MOST];
    uint64_t eighth[top_warps];
    uint32_t count;
};

__device__ __forceinline__ uint64_t top_key(float x, uint32_t channel)
{
    const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f)); /* -0 is 0 */

    return x != x ? 0 : uint64_t(bits >> 31 ? ~bits : bits | 0x80000000u) << 32 | uint32_t(~channel);
}

__device__ __forceinline__ float top_number(uint64_t key)
{
    const uint32_t bits = uint32_t(key >> 32);

    return __uint_as_float(!key ? 0x7fc00000u : bits >> 31 ? bits & 0x7fffffffu : ~bits);
}

/* Of the warp's 32 keys the eighth. */
__device__ __forceinline__ uint64_t top_eighth(uint64_t key)
{
    const int lane = int(threadIdx.x % 32);
    int larger = 0;

#pragma unroll
    for (int i = 0; i < 32; i++) {
        const uint64_t other = __shfl_sync(~0u, key, i);

        larger += other > key || (other == key && i < lane);
    }
    return __shfl_sync(~0u, key, __ffs(__ballot_sync(~0u, larger == int(top_warps) - 1)) - 1);
}

/* Keys of this chunk that are no less than `least` go behind those that are there. All threads. */
__device__ __forceinline__ void top_collect(TopShared &shared, const uint64_t (&keys)[top_each], uint64_t least)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t mine = 0, before, at;

#pragma unroll
    for (uint32_t i = 0; i < top_each; i++)
        mine += keys[i] && keys[i] >= least;
    before = mine;
#pragma unroll
    for (uint32_t apart = 1; apart < 32; apart *= 2) {
        const uint32_t other = __shfl_sync(~0u, before, int((lane - apart) % 32));

        before += lane >= apart ? other : 0;
    }
    at = lane == 31 ? atomicAdd(&shared.count, before) : 0;
    at = __shfl_sync(~0u, at, 31) + before - mine;
#pragma unroll
    for (uint32_t i = 0; i < top_each; i++)
        if (keys[i] && keys[i] >= least)
            shared.keys[at++] = keys[i];
}

/* shared.best: the largest of those collected, and of those there before. All threads; which then know. */
__device__ __forceinline__ void top_take(TopShared &shared, const uint64_t (&keys)[top_each])
{
    uint64_t most = 0, least;

#pragma unroll
    for (uint32_t i = 0; i < top_each; i++)
        most = keys[i] > most ? keys[i] : most;
    const uint64_t eighth = top_eighth(most);
    if (threadIdx.x % 32 == 0)
        shared.eighth[threadIdx.x / 32] = eighth;
    if (threadIdx.x < TD_TOP_MOST)
        shared.keys[threadIdx.x] = shared.best[threadIdx.x];
    if (threadIdx.x == 0)
        shared.count = TD_TOP_MOST;
    __syncthreads();
    least = shared.eighth[0];
#pragma unroll
    for (uint32_t i = 1; i < top_warps; i++)
        least = shared.eighth[i] < least ? shared.eighth[i] : least;
    least = shared.best[TD_TOP_MOST - 1] > least ? shared.best[TD_TOP_MOST - 1] : least;
    top_collect(shared, keys, least);
    __syncthreads();
    const uint32_t count = shared.count;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < count; i += TD_TOP_THREADS) {
        const uint64_t key = shared.keys[i];
        uint32_t larger = 0;

#pragma unroll 4
        for (uint32_t j = 0; j < count; j++)
            larger += shared.keys[j] > key;
        if (key && larger < TD_TOP_MOST)
            shared.best[larger] = key;
    }
    __syncthreads();
}

/* Keys of a chunk, from channel `first` on. */
template <class E> __device__ __forceinline__ void top_load(uint64_t (&keys)[top_each], const E *x, uint32_t first, uint32_t channels)
{
#pragma unroll
    for (uint32_t i = 0; i < top_each; i++) {
        const uint32_t channel = first + i * TD_TOP_THREADS + threadIdx.x;

        keys[i] = channel < channels ? top_key(to_float(x[channel]), channel) : 0;
    }
}

__device__ __forceinline__ void top_load(uint64_t (&keys)[top_each], const td_params_top &p, int64_t row, uint32_t first)
{
    if (p.dtype == TANDEM_DTYPE_F32)
        top_load(keys, static_cast<const float *>(p.x) + row, first, p.channels);
    else if (p.dtype == TANDEM_DTYPE_BF16)
        top_load(keys, static_cast<const __nv_bfloat16 *>(p.x) + row, first, p.channels);
    else
        top_load(keys, static_cast<const __half *>(p.x) + row, first, p.channels);
}

} // namespace td

extern "C" __global__ void __launch_bounds__(TD_TOP_THREADS) top_rows(const __grid_constant__ td_params_top p)
{
    __shared__ __align__(16) td::TopShared shared;
    const uint32_t row = blockIdx.x / p.blocks, block = blockIdx.x % p.blocks, plane = row / p.rows;
    uint64_t keys[td::top_each];

    if (threadIdx.x < TD_TOP_MOST)
        shared.best[threadIdx.x] = 0;
    td::wait_for_previous();
    td::launch_dependents();
    if (td::cancelled(p.cancel))
        return;
    if (p.stage == TD_TOP_END) {
        const uint64_t *const from = static_cast<const uint64_t *>(p.keys) + uint64_t(row) * p.kept;

#pragma unroll
        for (uint32_t i = 0; i < td::top_each; i++) {
            const uint32_t at = i * TD_TOP_THREADS + threadIdx.x;

            keys[i] = at < p.kept ? from[at] : 0;
        }
        td::top_take(shared, keys);
    } else {
        const int64_t from = td::row_at(p.x_at, plane / p.heads, plane % p.heads, row % p.rows);

#pragma unroll 1
        for (uint32_t chunk = block; chunk * TD_TOP_CHUNK < p.channels; chunk += p.blocks) {
            td::top_load(keys, p, from, chunk * TD_TOP_CHUNK);
            td::top_take(shared, keys);
        }
    }
    if (p.stage == TD_TOP_PARTS) {
        if (threadIdx.x < TD_TOP_MOST)
            static_cast<uint64_t *>(p.keys)[uint64_t(blockIdx.x) * TD_TOP_MOST + threadIdx.x] = shared.best[threadIdx.x];
        return;
    }
    float *const y = static_cast<float *>(p.y) + td::row_at(p.y_at, plane / p.heads, plane % p.heads, row % p.rows);
    if (threadIdx.x < p.count) {
        const uint64_t key = shared.best[threadIdx.x];

        y[threadIdx.x] = td::top_number(key);
        y[p.count + threadIdx.x] = key ? float(uint32_t(~key)) : -1.0f;
    }
}
