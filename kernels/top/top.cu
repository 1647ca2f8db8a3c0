/* The largest numbers of rows: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A block has a chunk's numbers in registers, and knows at once of most that they are not among the largest 64: each of eight warps has
 * eight threads whose largest number is at least the warp's eighth, so 64 numbers at least are no less than the least of those eight. What
 * is left, a hundred or so, is counted: a key's place is how many are larger.
 */
#include "kernels/cuda/tensor.cuh"
#include "kernels/top/params.h"

namespace td {

constexpr uint32_t top_warps = TD_TOP_THREADS / 32, top_each = TD_TOP_CHUNK / TD_TOP_THREADS;
static_assert(top_warps * top_warps == TD_TOP_MOST, "so many threads of so many warps");

struct TopShared {
    uint64_t keys[TD_TOP_CHUNK]; /* of this chunk, that may be among the largest */
    uint64_t best[TD_TOP_MOST];  /* the largest so far, in their order */
    uint32_t eighth[top_warps], count;
};

/* A key's upper half. */
__device__ __forceinline__ uint32_t top_bits(float x)
{
    const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f)); /* -0 is 0 */

    return x != x ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float top_number(uint64_t key)
{
    const uint32_t bits = uint32_t(key >> 32);

    return __uint_as_float(!key ? 0x7fc00000u : bits >> 31 ? bits & 0x7fffffffu : ~bits);
}

/* Of the warp's 32 the eighth: sorted, the largest in lane 0. */
__device__ __forceinline__ uint32_t top_eighth(uint32_t x)
{
    const uint32_t lane = threadIdx.x % 32;

#pragma unroll
    for (uint32_t run = 2; run <= 32; run *= 2)
#pragma unroll
        for (uint32_t apart = run / 2; apart; apart /= 2) {
            const uint32_t other = __shfl_xor_sync(~0u, x, int(apart));

            x = ((lane & run) == 0 || run == 32) == ((lane & apart) == 0) ? max(x, other) : min(x, other);
        }
    return __shfl_sync(~0u, x, int(top_warps) - 1);
}

/* A chunk of a row: key i of a thread is that of channel first + i * TD_TOP_THREADS + threadIdx.x. */
struct TopNumbers {
    uint32_t bits[top_each], first;

    template <class E> __device__ __forceinline__ void load(const E *x, uint32_t channels)
    {
#pragma unroll
        for (uint32_t i = 0; i < top_each; i++) {
            const uint32_t channel = first + i * TD_TOP_THREADS + threadIdx.x;

            bits[i] = channel < channels ? top_bits(to_float(x[channel])) : 0;
        }
    }
    __device__ __forceinline__ void load(const td_params_top &p, int64_t row)
    {
        if (p.dtype == TANDEM_DTYPE_F32)
            load(static_cast<const float *>(p.x) + row, p.channels);
        else if (p.dtype == TANDEM_DTYPE_BF16)
            load(static_cast<const __nv_bfloat16 *>(p.x) + row, p.channels);
        else
            load(static_cast<const __half *>(p.x) + row, p.channels);
    }
    __device__ __forceinline__ uint64_t key(uint32_t i) const
    {
        return uint64_t(bits[i]) << 32 | uint32_t(~(first + i * TD_TOP_THREADS + threadIdx.x));
    }
};

/* What blocks have left of a row. Each block's are in order, so here they are dealt out: else one thread had all large ones. */
struct TopKeys {
    uint32_t bits[top_each];
    const uint64_t *from;

    __device__ __forceinline__ static uint32_t place(uint32_t i)
    {
        return (i * TD_TOP_THREADS + threadIdx.x) * 2531u % TD_TOP_CHUNK;
    }
    __device__ __forceinline__ void load(uint32_t kept)
    {
#pragma unroll
        for (uint32_t i = 0; i < top_each; i++)
            bits[i] = place(i) < kept ? uint32_t(from[place(i)] >> 32) : 0;
    }
    __device__ __forceinline__ uint64_t key(uint32_t i) const
    {
        return from[place(i)];
    }
};

/* Keys of this chunk whose numbers are no less than `least`. All threads. */
template <class Keys> __device__ __forceinline__ void top_collect(TopShared &shared, const Keys &keys, uint32_t least)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t mine = 0, before, at;

#pragma unroll
    for (uint32_t i = 0; i < top_each; i++)
        mine += keys.bits[i] && keys.bits[i] >= least;
    before = mine;
#pragma unroll
    for (uint32_t apart = 1; apart < 32; apart *= 2) {
        const uint32_t other = __shfl_sync(~0u, before, int((lane - apart) % 32));

        before += lane >= apart ? other : 0;
    }
    at = lane == 31 && before ? atomicAdd(&shared.count, before) : 0;
    at = __shfl_sync(~0u, at, 31) + before - mine;
    if (mine)
#pragma unroll
        for (uint32_t i = 0; i < top_each; i++)
            if (keys.bits[i] && keys.bits[i] >= least)
                shared.keys[at++] = keys.key(i);
}

/* How many of the largest so far are larger. */
__device__ __forceinline__ uint32_t top_before(const TopShared &shared, uint64_t key)
{
    uint32_t count = 0;

#pragma unroll
    for (uint32_t step = TD_TOP_MOST / 2; step; step /= 2)
        count += shared.best[count + step - 1] > key ? step : 0;
    return count + (shared.best[count] > key);
}

/* The largest of those collected and of those so far: threads from the first on have one each of the former, those before the last one of
 * the latter, as long as there is one. All threads. */
__device__ __forceinline__ void top_merge(TopShared &shared)
{
    constexpr uint32_t each = TD_TOP_THREADS - TD_TOP_MOST;
    const uint32_t count = shared.count;

#pragma unroll 1
    for (uint32_t first = 0; first < count; first += each) {
        const uint32_t some = min(count - first, each), behind = threadIdx.x - each;
        const bool is_old = threadIdx.x >= each;
        const uint64_t key = is_old ? shared.best[behind] : threadIdx.x < some ? shared.keys[first + threadIdx.x] : 0;
        uint32_t place = 0;

        if (key) {
            place = is_old ? behind : top_before(shared, key);
#pragma unroll 8
            for (uint32_t j = 0; j < some; j++)
                place += shared.keys[first + j] > key;
        }
        __syncthreads();
        if (key && place < TD_TOP_MOST)
            shared.best[place] = key;
        __syncthreads();
    }
}

/* All threads. */
template <class Keys> __device__ __forceinline__ void top_take(TopShared &shared, const Keys &keys)
{
    uint32_t most = 0, least = ~0u;

#pragma unroll
    for (uint32_t i = 0; i < top_each; i++)
        most = max(most, keys.bits[i]);
    const uint32_t eighth = top_eighth(most);
    if (threadIdx.x % 32 == 0)
        shared.eighth[threadIdx.x / 32] = eighth;
    if (threadIdx.x == 0)
        shared.count = 0;
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < top_warps; i++)
        least = min(least, shared.eighth[i]);
    top_collect(shared, keys, max(least, uint32_t(shared.best[TD_TOP_MOST - 1] >> 32)));
    __syncthreads();
    top_merge(shared);
}

} // namespace td

extern "C" __global__ void __launch_bounds__(TD_TOP_THREADS) top_rows(const __grid_constant__ td_params_top p)
{
    __shared__ __align__(16) td::TopShared shared;
    const uint32_t row = blockIdx.x / p.blocks, block = blockIdx.x % p.blocks, plane = row / p.rows;

    if (threadIdx.x < TD_TOP_MOST)
        shared.best[threadIdx.x] = 0;
    const bool stop = threadIdx.x == 0 && td::is_set(p.cancel);

    td::wait_for_previous();
    td::launch_dependents();
    if (__syncthreads_or(stop))
        return;
    if (p.stage == TD_TOP_END) {
        td::TopKeys keys = {{}, static_cast<const uint64_t *>(p.keys) + uint64_t(row) * p.kept};

        keys.load(p.kept);
        td::top_take(shared, keys);
    } else {
        const int64_t from = td::row_at(p.x_at, plane / p.heads, plane % p.heads, row % p.rows);

        td::TopNumbers next;

        next.first = block * TD_TOP_CHUNK;
        next.load(p, from);
#pragma unroll 1
        for (uint32_t chunk = block; chunk * TD_TOP_CHUNK < p.channels; chunk += p.blocks) {
            const td::TopNumbers numbers = next;

            next.first += p.blocks * TD_TOP_CHUNK; /* there may be none */
            next.load(p, from);
            td::top_take(shared, numbers);
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
