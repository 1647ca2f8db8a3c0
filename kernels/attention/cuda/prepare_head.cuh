/* The prologue for sm_90 where clusters of blocks hold the heads: `prepare`, one launch.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Grids, arrays and arithmetic: params.h; the CPU twin gets the same bits. It uses fused_set.cuh's
 * words. At such sizes what counts is the time of one block: many warps hide each other's waits, so
 * a lane has only 64 or 128 bytes of one tensor, in registers; and instructions are few, since a
 * multiprocessor fetches them anew. A lane's rows are those whose results need each other:
 *
 *   Q   16 rows a warp, half of its lanes with rows i and half with rows i + 8: a group's maximum is
 *       one reduction
 *   K   rows that are alike modulo 8: sums and extremes of channels stay in the lane. The largest
 *       |x - mean| is that of the largest x or of the smallest, so no second look at the rows tells
 *       the scale
 *   V   16 keys of the same channels: 16 codes of a channel are one store of the lane, transposed
 *       without moving
 *
 *   V that is smoothed is at first looked at as K is, since it needs sums and extremes of channels, and
 *   as above while the blocks tell each other.
 *
 *   loads | sums and extremes, or maxima | barrier | each warp adds up what the block has, and stores
 *   it to some of the cluster's blocks | that of all blocks has come | mean, factors | barrier | codes
 *
 * Values that are not finite are rare: extremes show whether there is one, and only then is it
 * looked for.
 */
#pragma once

#include "prepare_smooth_v.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace td {

/* Asks for what the block reads to be in L2. */
template <int D, int W, bool SmoothV>
__device__ __forceinline__ void ask_for_all(const td_params_prepare &p)
{
    const uint32_t block = blockIdx.x, size = cluster_size(), warps = blockDim.x / 32,
                   t = threadIdx.x;

    if (block < p.kv_planes * size) {
        Slice<D, W, SmoothV>::ask(p, block / size, block % size);
        return;
    }
    const uint32_t unit = (block - p.kv_planes * size) * warps + t / 32,
                   chunks = (p.q_len + TD_TILE_ROWS - 1) / TD_TILE_ROWS;
    const uint32_t tile = unit / 8, row = tile % chunks * TD_TILE_ROWS + unit % 8 * 16 + t % 16,
                   column = t % 32 / 16 * 64;

    if (tile < p.q_tiles && row < p.q_len && column < p.dim)
        prefetch_l2(static_cast<const uint16_t *>(p.q) +
                    head_offset(tile / chunks, p.heads, p.q_strides) + row * p.q_strides[2] +
                    column);
}

/* Behind a barrier: a tile's sums to all blocks of the cluster; each warp serves some of them. */
template <int D, int W, int Pairs>
__device__ __forceinline__ void tell_sums(const float (&sums)[8][D], float (&chunk)[D],
                                          uint32_t size, uint64_t *told)
{
    using L = Lay<D, W>;
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32 % L::warps;
    float sum[L::each];

    sum_of_tile<D, W, Pairs>(sums, sum);
#pragma unroll 1
    for (uint32_t to = uint32_t(warp); to < size; to += uint32_t(L::warps))
        st_async(&chunk[lane * L::each], to, sum, told);
}

/* Behind a barrier: the block's sums of tiles and maxima, to all blocks of the cluster; each warp
 * serves some of them. */
template <int D, int W, bool SmoothV>
__device__ __forceinline__ void tell_cluster(const td_params_prepare &p,
                                             HeadShared<D, W, SmoothV> &shared, uint32_t rank,
                                             uint32_t size, bool is_k, int tile)
{
    using L = Lay<D, W>;
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32 % L::warps;
    const uint32_t chunk = rank * p.tiles + uint32_t(tile);
    auto *sums = &shared.sums[tile];
    auto *chunks = &shared.chunks[chunk];
    bool as_k = is_k;

    if constexpr (SmoothV)
        if (!is_k) {
            sums = &shared.v_sums[tile];
            chunks = &shared.v_chunks[chunk];
            as_k = true;
        }
    if (as_k) {
        if (is_k && !p.smooth)
            return;
        tell_sums<D, W, SmoothV ? 1 : 4>(*sums, *chunks, size, &shared.told); /* else it spills */
    }
    if (is_k)
        return;
    if constexpr (SmoothV) {
        constexpr int words = L::each > 1 ? L::each / 2 : 1;
        uint32_t top[words], low[words];

        if (D == 32 && lane >= 16)
            return;
        of_type(p.v_dtype, [&](auto e) {
            ends_of_block<decltype(e)>(p, shared, rank, lane * words, top, low);
        });
#pragma unroll 1
        for (uint32_t to = uint32_t(tile * L::warps + warp); to < size;
             to += p.tiles * uint32_t(L::warps)) {
            st_async(&shared.most[rank][lane * words], to, top, &shared.told);
            st_async(&shared.least[rank][lane * words], to, low, &shared.told);
        }
    } else {
        constexpr int words = L::each > 1 ? L::each / 2 : 1;
        uint32_t most[words] = {}, here[words];

        if (D == 32 && lane >= 16)
            return;
        for (uint32_t i = 0; i < 4 * p.tiles; i++) {
            load_words(here, &shared.tops[i][lane * words]);
#pragma unroll
            for (int w = 0; w < words; w++)
                most[w] = __vmaxu2(most[w], here[w]);
        }
#pragma unroll 1
        for (uint32_t to = uint32_t(tile * L::warps + warp); to < size;
             to += p.tiles * uint32_t(L::warps))
            st_async(&shared.most[rank][lane * words], to, most, &shared.told);
    }
}

/* A channel's mean by the sums of all tiles. */
template <int D>
__device__ __forceinline__ float mean_of_chunks(const float (*sums)[D], uint32_t chunks,
                                                uint32_t rows, uint32_t c)
{
    float sum = 0.0f;

    for (uint32_t from = 0; from < chunks; from += 16)
#pragma unroll
        for (uint32_t i = 0; i < 16; i++)
            sum = __fadd_rn(sum, from + i < chunks ? sums[from + i][c] : 0.0f);
    return __fdiv_rn(sum, float(rows));
}

/* Once all blocks have told: V's mean of a channel; the largest |x - mean|. */
template <int D, int W>
__device__ __forceinline__ float find_mean_of_v(const td_params_prepare &p,
                                                HeadShared<D, W, true> &shared, uint32_t bhk,
                                                bool writes, uint32_t size, uint32_t c)
{
    const float mean =
        mean_of_chunks(shared.v_chunks, p.kv_pad / TD_TILE_ROWS, p.kv_len, c);
    float top = -CUDART_INF_F, low = CUDART_INF_F;

    of_type(p.v_dtype, [&](auto e) {
        using E = decltype(e);

#pragma unroll 4
        for (uint32_t i = 0; i < size; i++) {
            const uint32_t tops = reinterpret_cast<const uint16_t *>(shared.most[i])[c],
                           lows = reinterpret_cast<const uint16_t *>(shared.least[i])[c];

            top = fmaxf(top, half_of<E>(tops, 0));
            low = fminf(low, half_of<E>(lows, 0));
        }
    });
    if (writes && c < p.d_pad)
        smooth_v_of(p).v_mean[int64_t(bhk) * p.d_pad + c] = mean;
    shared.v_mean[c] = mean;
    return most_of_ends(top, low, mean);
}

/* Once all blocks have told: mean and factors of the head. */
template <int D, int W, bool SmoothV>
__device__ __forceinline__ void find_totals(const td_params_prepare &p,
                                            HeadShared<D, W, SmoothV> &shared, uint32_t bhk,
                                            bool writes, uint32_t size)
{
    const uint32_t t = threadIdx.x;

    if (t < uint32_t(D)) {
        float mean = 0.0f;

        if (p.smooth) {
            mean = mean_of_chunks(shared.chunks, p.kv_pad / TD_TILE_ROWS, p.kv_len, t);
            if (writes && t < p.d_pad)
                p.k_mean[int64_t(bhk) * p.d_pad + t] = mean;
        }
        shared.mean[t] = mean;
    } else if (t < 2 * D) {
        const uint32_t c = t - D;
        float most;

        if constexpr (SmoothV) {
            most = find_mean_of_v(p, shared, bhk, writes, size, c);
        } else {
            uint32_t top = 0;

#pragma unroll
            for (uint32_t i = 0; i < 16; i++)
                top = max(top, i < size ? uint32_t(reinterpret_cast<const uint16_t *>(
                                              shared.most[i])[c])
                                        : 0);
            of_type(p.v_dtype, [&](auto e) { most = half_of<decltype(e)>(top, 0); });
        }
        shared.factor[c] = code_factor(most, TD_V_TOP);
        if (writes && c < p.d_pad)
            p.v_scale[int64_t(bhk) * p.d_pad + c] = code_scale(most, TD_V_TOP);
    }
}

template <int D, int W, bool SmoothV>
__device__ __forceinline__ void prepare_block(const td_params_prepare &p,
                                              HeadShared<D, W, SmoothV> &shared)
{
    const uint32_t size = cluster_size(), bhk = blockIdx.x / size, t = threadIdx.x,
                   warps = blockDim.x / 32;
    const bool gone = cancel_word(p.cancel) != 0;

    launch_dependents();
    if (p.asks) /* what the kernel ahead may still write is not read */
        ask_for_all<D, W, SmoothV>(p);
    wait_for_previous(); /* another call's attention, which may still read codes */
    if (bhk >= p.kv_planes) {
        const uint32_t unit = (blockIdx.x - p.kv_planes * size) * warps + t / 32;

        if (unit < 8 * p.q_tiles)
            prepare_rows_of_q<D>(p, unit, gone);
        return;
    }
    const uint32_t rank = cluster_rank(), told = shared_address(&shared.told);
    Slice<D, W, SmoothV> slice(p, bhk, rank, InL2(), true);
    int row = int(rank * p.tiles + uint32_t(slice.tile)) * int(TD_TILE_ROWS) + slice.first;

    if (t == 0) {
        mbarrier_init(told, 1);
        fence_mbarrier_init();
        uint32_t bytes = (p.smooth ? p.tiles * uint32_t(sizeof shared.chunks[0]) : 0) +
                         uint32_t(sizeof shared.most[0]);
        if constexpr (SmoothV)
            bytes += p.tiles * uint32_t(sizeof shared.v_chunks[0]) +
                     uint32_t(sizeof shared.least[0]);
        mbarrier_expect(told, size * bytes);
    }
    cluster_arrive();
    slice.gather(p, shared, true);
    forget_piece(slice.piece);
    __syncthreads();
    cluster_wait(); /* their barriers are there */
    tell_cluster(p, shared, rank, size, slice.is_k, slice.tile);
    if constexpr (SmoothV)
        if (!slice.is_k) { /* the second look, while others tell */
            row -= slice.first;
            slice = Slice<D, W, SmoothV>(p, bhk, rank, InL2(), false);
            slice.gather(p, shared, false);
            row += slice.first;
        }
    while (!mbarrier_try_wait(told, 0))
        ;
    find_totals(p, shared, bhk, rank == 0, size);
    __syncthreads();
    if (!slice.exists() || gone)
        return;
    slice.put(p, shared, bhk, row, InL2());
}

} // namespace td

#define TD_PREPARE_HEAD(d, words)                                               \
    extern "C" __global__ void __launch_bounds__(TD_PREPARE_MOST_THREADS, 1)    \
        prepare_d##d(const __grid_constant__ td_params_prepare p)               \
    {                                                                           \
        __shared__ td::HeadShared<d, words, false> shared;                      \
                                                                                \
        td::prepare_block(p, shared);                                           \
    }                                                                           \
    extern "C" __global__ void __launch_bounds__(TD_PREPARE_MOST_THREADS, 1)    \
        prepare_smooth_v_d##d(const __grid_constant__ td_params_prepare_smooth_v p) \
    {                                                                           \
        TD_DYNAMIC_SHARED(16, bytes);                                           \
        td::prepare_block(p.of, td::smooth_shared<d, words>(bytes));            \
    }
TD_PREPARE_HEAD(32, 1)
TD_PREPARE_HEAD(64, 2)
TD_PREPARE_HEAD(128, 2)

#endif
