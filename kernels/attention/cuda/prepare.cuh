/* The prologue for sm_90 where heads are longer than a cluster of blocks: `prepare_q` and
 * `prepare_kv`.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Grids, arrays and arithmetic: params.h; the CPU twin gets the same bits. It uses
 * prepare_slice.cuh's words: a block has tiles of K and V in registers as there.
 *
 *   prepare_q      Q; clears the counters of
 *   prepare_kv     blocks of two kinds, those of heads in turn: `stats` of a head come before its
 *                  `codes`, with so many blocks in between that these find the statistics ready and
 *                  the rows in L2, which is told to keep them and then to give them up. The last
 *                  block of a head's stats makes totals of them. Blocks start in the order of their
 *                  numbers, so that those waited for run.
 */
#pragma once

#include "prepare_smooth_v.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace td {

/* Calls f(i) for 0 .. count - 1, sixteen loads at a time, and add(x) with each in order. */
template <class F, class Add> __device__ __forceinline__ void in_order(uint32_t count, F f, Add add)
{
#pragma unroll 1
    for (uint32_t from = 0; from < count; from += 16) {
        float x[16];

#pragma unroll
        for (uint32_t i = 0; i < 16; i++)
            x[i] = from + i < count ? f(from + i) : 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < 16; i++)
            add(x[i]);
    }
}

/* Behind a barrier: sums of the block's tiles of V, its largest and its smallest x, to memory. */
template <int D, int W>
__device__ __forceinline__ void tell_values(const td_params_prepare &p,
                                            const HeadShared<D, W, true> &shared, uint32_t bhk,
                                            uint32_t block, uint32_t blocks, int tile)
{
    using L = Lay<D, W>;
    const uint32_t chunks = p.kv_pad / TD_TILE_ROWS, chunk = block * p.tiles + uint32_t(tile),
                   t = threadIdx.x - p.tiles * L::warps * 32;
    const int channel = int(t) % 32 * L::each;

    if (t / 32 % L::warps == 0 && chunk < chunks && channel < int(p.d_pad)) {
        float sum[L::each];

        sum_of_tile<D, W>(shared.v_sums[tile], sum);
        store_words(smooth_v_of(p).v_partial + (int64_t(bhk) * chunks + chunk) * p.d_pad + channel,
                    sum);
    }
    for (uint32_t c = 2 * t; c < p.d_pad; c += 2 * p.tiles * L::warps * 32)
        of_type(p.v_dtype, [&](auto e) {
            using E = decltype(e);
            uint32_t top[1], low[1];

            ends_of_block<E>(p, shared, block, int(c / 2), top, low);
            const float tops[2] = {half_of<E>(top[0], 0), half_of<E>(top[0], 1)},
                        lows[2] = {half_of<E>(low[0], 0), half_of<E>(low[0], 1)};

            store_words(p.amax + (int64_t(bhk) * (blocks + 1) + block) * p.d_pad + c, tops);
            store_words(smooth_v_of(p).v_low + (int64_t(bhk) * blocks + block) * p.d_pad + c, lows);
        });
}

/* Behind a barrier: sums of the block's tiles and its maxima, to memory. */
template <int D, int W, bool SmoothV>
__device__ __forceinline__ void tell_head(const td_params_prepare &p,
                                          const HeadShared<D, W, SmoothV> &shared, uint32_t bhk,
                                          uint32_t block, uint32_t blocks,
                                          const Slice<D, W, SmoothV> &slice)
{
    using L = Lay<D, W>;
    const uint32_t chunks = p.kv_pad / TD_TILE_ROWS, chunk = block * p.tiles + uint32_t(slice.tile),
                   t = threadIdx.x;
    const int channel = int(t) % 32 * L::each;

    if (slice.is_k) {
        float sum[L::each];

        if (!p.smooth || t / 32 % L::warps || chunk >= chunks || channel >= int(p.d_pad))
            return;
        sum_of_tile<D, W>(shared.sums[slice.tile], sum);
        store_words(p.partial + (int64_t(bhk) * chunks + chunk) * p.d_pad + channel, sum);
        return;
    }
    if constexpr (SmoothV)
        tell_values(p, shared, bhk, block, blocks, slice.tile);
    else
        for (uint32_t c = t - p.tiles * L::warps * 32; c < p.d_pad; c += p.tiles * L::warps * 32) {
            uint32_t most = 0;

            for (uint32_t i = 0; i < 4 * p.tiles; i++)
                most = max(most, uint32_t(reinterpret_cast<const uint16_t *>(shared.tops[i])[c]));
            of_type(p.v_dtype, [&](auto e) {
                p.amax[(int64_t(bhk) * (blocks + 1) + block) * p.d_pad + c] =
                    half_of<decltype(e)>(most, 0);
            });
        }
}

/* A channel's mean by the sums of all tiles, to memory. */
__device__ __forceinline__ float find_mean(const td_params_prepare &p, const float *partial,
                                           float *mean, uint32_t bhk, uint32_t c)
{
    const uint32_t chunks = p.kv_pad / TD_TILE_ROWS;
    const float *from = partial + int64_t(bhk) * chunks * p.d_pad + c;
    float sum = 0.0f;

    in_order(
        chunks, [&](uint32_t b) { return __ldcg(from + int64_t(b) * p.d_pad); },
        [&](float v) { sum = __fadd_rn(sum, v); });
    return mean[int64_t(bhk) * p.d_pad + c] = __fdiv_rn(sum, float(p.kv_len));
}

/* A channel's largest |x - mean| of V, by what its blocks have. */
__device__ __forceinline__ float find_most_of_v(const td_params_prepare &p, uint32_t bhk,
                                                uint32_t blocks, uint32_t c, float mean)
{
    const float *tops = p.amax + int64_t(bhk) * (blocks + 1) * p.d_pad + c,
                *lows = smooth_v_of(p).v_low + int64_t(bhk) * blocks * p.d_pad + c;
    float top = -CUDART_INF_F, low = CUDART_INF_F;

#pragma unroll 8
    for (uint32_t b = 0; b < blocks; b++) {
        top = fmaxf(top, __ldcg(tops + int64_t(b) * p.d_pad));
        low = fminf(low, __ldcg(lows + int64_t(b) * p.d_pad));
    }
    return most_of_ends(top, low, mean);
}

/* By the block that finds itself the last of a head's: totals, and that they are there. */
template <bool SmoothV>
__device__ __forceinline__ void find_totals_of_head(const td_params_prepare &p, uint32_t bhk,
                                                    uint32_t blocks)
{
    for (uint32_t i = threadIdx.x; i < 2 * p.d_pad; i += blockDim.x) {
        const uint32_t c = i % p.d_pad;

        if (i >= p.d_pad) {
            float *from = p.amax + int64_t(bhk) * (blocks + 1) * p.d_pad + c, most = 0.0f;

            if constexpr (SmoothV)
                most = find_most_of_v(
                    p, bhk, blocks, c,
                    find_mean(p, smooth_v_of(p).v_partial, smooth_v_of(p).v_mean, bhk, c));
            else
                in_order(
                    blocks, [&](uint32_t b) { return __ldcg(from + int64_t(b) * p.d_pad); },
                    [&](float v) { most = fmaxf(most, v); });
            from[int64_t(blocks) * p.d_pad] = most;
            p.v_scale[int64_t(bhk) * p.d_pad + c] = code_scale(most, TD_V_TOP);
        } else if (p.smooth) {
            find_mean(p, p.partial, p.k_mean, bhk, c);
        }
    }
}

template <int D, int W, bool SmoothV>
__device__ __forceinline__ void stats_of_head(const td_params_prepare &p,
                                              HeadShared<D, W, SmoothV> &shared, uint32_t bhk,
                                              uint32_t block, uint32_t blocks)
{
    Slice<D, W, SmoothV> slice(p, bhk, block, LastInL2(), true);

    if (__syncthreads_or(int(cancel_word(p.cancel))))
        return;
    slice.gather(p, shared, true);
    __syncthreads();
    tell_head(p, shared, bhk, block, blocks, slice);
    wait_for_previous(); /* prepare_q has cleared the counters */
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        shared.last = atomicAdd(&p.counters[2 * bhk], 1) == blocks - 1;
    __syncthreads();
    if (!shared.last)
        return;
    __threadfence();
    find_totals_of_head<SmoothV>(p, bhk, blocks);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        st_release(&p.counters[2 * bhk + 1], 1);
}

/* Waits for a head's totals; false once the job is given up, for all threads. Has a barrier. The
 * wait is bounded: then the kernel traps, as ring.cuh's do, which loses the device. Without these
 * codes attention would be of what lies there, and the job done. */
__device__ __forceinline__ bool wait_for_totals(const td_params_prepare &p, uint32_t bhk)
{
    constexpr uint64_t limit_ns = 10000000000u;
    int has = 1;

    if (threadIdx.x == 0) {
        const uint64_t begin = globaltimer();

        wait_for_previous();
        while (!(has = int(ld_acquire(&p.counters[2 * bhk + 1]))) && !cancel_word(p.cancel))
            if (globaltimer() - begin > limit_ns)
                __trap();
    }
    return __syncthreads_and(has);
}

template <int D, int W, bool SmoothV>
__device__ __forceinline__ void codes_of_head(const td_params_prepare &p,
                                              HeadShared<D, W, SmoothV> &shared, uint32_t bhk,
                                              uint32_t block, uint32_t blocks)
{
    Slice<D, W, SmoothV> slice(p, bhk, block, FirstInL2(), false);
    const int row = int(block * p.tiles + uint32_t(slice.tile)) * int(TD_TILE_ROWS) + slice.first;

    slice.gather(p, shared, false);
    forget_piece(slice.piece);
    if (!wait_for_totals(p, bhk))
        return;
    for (uint32_t i = threadIdx.x; i < 2 * uint32_t(D); i += blockDim.x) {
        const uint32_t c = i % D;
        const bool some = c < p.d_pad;

        if (i < uint32_t(D))
            shared.mean[c] =
                some && p.smooth ? __ldcg(p.k_mean + int64_t(bhk) * p.d_pad + c) : 0.0f;
        else
            shared.factor[c] =
                some ? code_factor(
                           __ldcg(p.amax + (int64_t(bhk) * (blocks + 1) + blocks) * p.d_pad + c),
                           TD_V_TOP)
                     : 0.0f;
        if constexpr (SmoothV)
            if (i < uint32_t(D))
                shared.v_mean[c] =
                    some ? __ldcg(smooth_v_of(p).v_mean + int64_t(bhk) * p.d_pad + c) : 0.0f;
    }
    __syncthreads();
    if (!slice.exists())
        return;
    slice.put(p, shared, bhk, row, FirstInL2());
}

template <int D, int W, bool SmoothV>
__device__ __forceinline__ void prepare_kv_block(const td_params_prepare &p,
                                                 HeadShared<D, W, SmoothV> &shared)
{
    const uint32_t chunks = p.kv_pad / TD_TILE_ROWS, blocks = (chunks + p.tiles - 1) / p.tiles;
    const uint32_t step = blockIdx.x / (2 * blocks), block = blockIdx.x % (2 * blocks);

    launch_dependents();
    if (block < blocks) {
        if (step < p.kv_planes)
            stats_of_head(p, shared, step, block, blocks);
    } else if (step >= p.lag) {
        codes_of_head(p, shared, step - p.lag, block - blocks, blocks);
    }
}

template <int D> __device__ __forceinline__ void prepare_q_block(const td_params_prepare &p)
{
    const uint32_t at = blockIdx.x * blockDim.x + threadIdx.x, unit = at / 32;

    launch_dependents();
    for (uint32_t i = at; i < 2 * p.kv_planes; i += gridDim.x * blockDim.x)
        p.counters[i] = 0;
    if (unit < 8 * p.q_tiles)
        prepare_rows_of_q<D>(p, unit, cancel_word(p.cancel));
}

} // namespace td

#define TD_PREPARE(d, words)                                                                    \
    extern "C" __global__ void __launch_bounds__(TD_PREPARE_THREADS, 1024 / TD_PREPARE_THREADS) \
        prepare_q_d##d(const __grid_constant__ td_params_prepare p)                             \
    {                                                                                           \
        td::prepare_q_block<d>(p);                                                              \
    }                                                                                           \
    extern "C" __global__ void __launch_bounds__(TD_PREPARE_THREADS, 1024 / TD_PREPARE_THREADS) \
        prepare_kv_d##d(const __grid_constant__ td_params_prepare p)                            \
    {                                                                                           \
        __shared__ td::HeadShared<d, words, false> shared;                                      \
                                                                                                \
        td::prepare_kv_block(p, shared);                                                        \
    }                                                                                           \
    extern "C" __global__ void __launch_bounds__(TD_PREPARE_THREADS, 1024 / TD_PREPARE_THREADS) \
        prepare_kv_smooth_v_d##d(const __grid_constant__ td_params_prepare_smooth_v p)          \
    {                                                                                           \
        TD_DYNAMIC_SHARED(16, bytes);                                                           \
        td::prepare_kv_block(p.of, td::smooth_shared<d, words>(bytes));                         \
    }
TD_PREPARE(32, 1)
TD_PREPARE(64, 2)
TD_PREPARE(128, 2)

#endif
