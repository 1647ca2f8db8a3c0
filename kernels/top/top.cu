/* The largest numbers of rows: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A block has some chunks' numbers in registers, and knows at once of most that they are not among the largest 64: each of 16 warps has
 * four threads whose largest is at least the warp's fourth, so 64 at least are no less than the least of those fourths. What is left, a
 * hundred or so, is counted: a key's place is how many are larger. There is one copy of that, as what runs once waits for its
 * instructions.
 */
#include <math_constants.h>

#include "kernels/cuda/tensor.cuh"
#include "kernels/top/params.h"

namespace td {

/* Chunks that a block has in registers, as far as there are any. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr uint32_t top_at_once = 5;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr uint32_t top_at_once = 2;
#else
constexpr uint32_t top_at_once = 3;
#endif
constexpr uint32_t top_warps = TD_TOP_THREADS / 32, top_of_warp = TD_TOP_MOST / top_warps, top_each = TD_TOP_CHUNK / TD_TOP_THREADS;

struct TopShared {
    uint64_t keys[TD_TOP_CHUNK]; /* that may be among the largest */
    uint64_t best[TD_TOP_MOST];  /* the largest so far, in their order */
    float least[top_warps];
    uint32_t count;
};

/* A key's upper half; of NaN 0. */
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

/* Of the warp's 32 the fourth: sorted, the largest in lane 0. */
__device__ __forceinline__ float top_fourth(float x)
{
    const uint32_t lane = threadIdx.x % 32;

#pragma unroll
    for (uint32_t run = 2; run <= 32; run *= 2)
#pragma unroll
        for (uint32_t apart = run / 2; apart; apart /= 2) {
            const float other = __shfl_xor_sync(~0u, x, int(apart));

            x = ((lane & run) == 0 || run == 32) == ((lane & apart) == 0) ? fmaxf(x, other) : fminf(x, other);
        }
    return __shfl_sync(~0u, x, int(top_of_warp) - 1);
}

/* How many of the largest so far are larger. */
__device__ __forceinline__ uint32_t top_before(const TopShared &shared, uint64_t key)
{
    uint32_t count = 0;

    if (!shared.best[0])
        return 0;
#pragma unroll
    for (uint32_t step = TD_TOP_MOST / 2; step; step /= 2)
        count += shared.best[count + step - 1] > key ? step : 0;
    return count + (shared.best[count] > key);
}

/* The largest of those collected and of those so far: threads from the first on have one each of the former, those behind them one of the
 * latter; two threads share one where there are enough of them. All threads. */
__device__ __forceinline__ void top_merge(TopShared &shared, uint32_t count)
{
    constexpr uint32_t most = TD_TOP_THREADS - TD_TOP_MOST;

#pragma unroll 1
    for (uint32_t first = 0; first < count; first += most) {
        const uint32_t some = min(count - first, most), share = some + TD_TOP_MOST <= TD_TOP_THREADS / 2 ? 2 : 1;
        const uint32_t index = threadIdx.x / share, part = threadIdx.x % share, behind = index - some;
        const bool is_old = index >= some;
        const uint64_t key = !is_old ? shared.keys[first + index] : behind < TD_TOP_MOST ? shared.best[behind] : 0;
        uint32_t place = 0;

        if (key) {
            if (part == 0)
                place = is_old ? behind : top_before(shared, key);
#pragma unroll 8
            for (uint32_t j = part; j < some; j += share)
                place += shared.keys[first + j] > key;
        }
        if (share == 2)
            place += __shfl_xor_sync(~0u, place, 1);
        __syncthreads();
        if (key && place < TD_TOP_MOST)
            shared.best[place] = key;
        __syncthreads();
    }
}

/* Where a thread that has some keys is to put them. Whole warps. */
__device__ __forceinline__ uint32_t top_places(TopShared &shared, uint32_t mine)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t before = mine;

    if (!__any_sync(~0u, mine != 0))
        return 0;
#pragma unroll
    for (uint32_t apart = 1; apart < 32; apart *= 2) {
        const uint32_t other = __shfl_sync(~0u, before, int((lane - apart) % 32));

        before += lane >= apart ? other : 0;
    }
    const uint32_t all = lane == 31 ? atomicAdd(&shared.count, before) : 0;

    return __shfl_sync(~0u, all, 31) + before - mine;
}

/* A row, or what blocks have left of one: keys, each block's in their order. */
struct TopRow {
    const td_params_top &p;
    const uint64_t *keys; /* or nullptr: */
    int64_t x;            /* where it begins */
    uint32_t count;

    /* This thread's numbers of the chunks from `first` on, `apart` from one another, all under way at once; NaN where there is none. */
    template <class E>
    __device__ __forceinline__ void load(float (&x)[top_at_once][top_each], const E *from, uint32_t first, uint32_t apart) const
    {
#pragma unroll
        for (int u = 0; u < int(top_at_once); u++) {
            if (first + u * apart >= count)
                break;
            const int left = int(count) - int(first + u * apart + threadIdx.x);
            const E *const at = from + (first + u * apart + threadIdx.x);

#pragma unroll
            for (int i = 0; i < int(top_each); i++)
                x[u][i] = i * int(TD_TOP_THREADS) < left ? to_float(at[i * int(TD_TOP_THREADS)]) : CUDART_NAN_F;
        }
    }
    /* Of keys there is one chunk. */
    __device__ __forceinline__ void load(float (&x)[top_at_once][top_each], const uint64_t *from) const
    {
#pragma unroll
        for (int i = 0; i < int(top_each); i++) {
            const uint32_t at = i * TD_TOP_THREADS + threadIdx.x;

            x[0][i] = at < count ? top_number(from[at]) : CUDART_NAN_F;
        }
    }
    __device__ __forceinline__ uint64_t key_of(uint32_t at, float x) const
    {
        return keys ? keys[at] : uint64_t(top_bits(x)) << 32 | uint32_t(~at);
    }
    /* A number for each thread, of those that are likely to be large: of blocks' keys the first ones, dealt out. */
    __device__ __forceinline__ float likely(const float (&x)[top_at_once][top_each], uint32_t chunks) const
    {
        float most = -CUDART_INF_F;

        if (keys) {
            const uint32_t dealt = threadIdx.x * 179u % TD_TOP_THREADS, blocks = count / TD_TOP_MOST, place = dealt / blocks;

            return place < TD_TOP_MOST ? fmaxf(most, top_number(keys[dealt % blocks * TD_TOP_MOST + place])) : most;
        }
#pragma unroll
        for (uint32_t u = 0; u < top_at_once; u++) {
            if (u >= chunks)
                break;
#pragma unroll
            for (uint32_t i = 0; i < top_each; i++)
                most = fmaxf(most, x[u][i]);
        }
        return most;
    }

    /* Into what is the best so far, chunks from `first` on: all at once, or where too many are large, as where all are the same, one by
     * one. All threads. */
    __device__ __forceinline__ void take(TopShared &shared, uint32_t first, uint32_t apart) const
    {
        float numbers[top_at_once][top_each];
        const uint32_t chunks = min((count - first + apart - 1) / apart, top_at_once);
        uint32_t from = 0, some = chunks;

        if (keys)
            load(numbers, keys);
        else if (p.dtype == TANDEM_DTYPE_F32)
            load(numbers, static_cast<const float *>(p.x) + x, first, apart);
        else if (p.dtype == TANDEM_DTYPE_BF16)
            load(numbers, static_cast<const __nv_bfloat16 *>(p.x) + x, first, apart);
        else
            load(numbers, static_cast<const __half *>(p.x) + x, first, apart);
        const float fourth = top_fourth(likely(numbers, chunks));

        if (threadIdx.x % 32 == 0)
            shared.least[threadIdx.x / 32] = fourth;
#pragma unroll 1
        while (from < chunks) {
            if (threadIdx.x == 0)
                shared.count = 0;
            __syncthreads();
            const uint64_t last = shared.best[TD_TOP_MOST - 1];
            float least = CUDART_INF_F;
            uint32_t mine = 0;

#pragma unroll
            for (uint32_t i = 0; i < top_warps; i++)
                least = fminf(least, shared.least[i]);
            least = last ? fmaxf(least, top_number(last)) : least;
#pragma unroll
            for (uint32_t u = 0; u < top_at_once; u++)
                if (u - from < some)
#pragma unroll
                    for (uint32_t i = 0; i < top_each; i++)
                        mine += numbers[u][i] >= least;
            uint32_t at = top_places(shared, mine);

            __syncthreads();
            const uint32_t all = shared.count;

            if (all <= TD_TOP_CHUNK && mine)
#pragma unroll
                for (uint32_t u = 0; u < top_at_once; u++)
                    if (u - from < some)
#pragma unroll
                        for (uint32_t i = 0; i < top_each; i++)
                            if (numbers[u][i] >= least)
                                shared.keys[at++] = key_of(first + u * apart + i * TD_TOP_THREADS + threadIdx.x, numbers[u][i]);
            __syncthreads();
            if (all > TD_TOP_CHUNK) {
                some = 1;
                continue;
            }
            top_merge(shared, all);
            from += some;
        }
    }
};

} // namespace td

extern "C" __global__ void __launch_bounds__(TD_TOP_THREADS, 2) top_rows(const __grid_constant__ td_params_top p)
{
    __shared__ __align__(16) td::TopShared shared;
    const uint32_t row = blockIdx.x / p.blocks, plane = row / p.rows, apart = p.blocks * TD_TOP_CHUNK;
    const bool ends = p.stage == TD_TOP_END, stop = threadIdx.x == 0 && td::is_set(p.cancel);
    const td::TopRow of = {p, ends ? static_cast<const uint64_t *>(p.keys) + uint64_t(row) * p.kept : nullptr,
                           td::row_at(p.x_at, plane / p.heads, plane % p.heads, row % p.rows), ends ? p.kept : p.channels};

    if (threadIdx.x < TD_TOP_MOST)
        shared.best[threadIdx.x] = 0;
    td::wait_for_previous();
    td::launch_dependents();
    if (__syncthreads_or(stop))
        return;
#pragma unroll 1
    for (uint32_t first = blockIdx.x % p.blocks * TD_TOP_CHUNK; first < of.count; first += apart * td::top_at_once)
        of.take(shared, first, apart);
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
