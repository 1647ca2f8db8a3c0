/* `stats`: sums of the columns of K, maxima of V. See fused.cuh.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "fused_set.cuh"

namespace td {

/* Sums of columns of a set of K, or maxima and flags of one of V. */
template <class E, class Ready>
__device__ __forceinline__ bool stats_of_set(const td_params_stats &p, const Part &part, const E *x,
                                             uint32_t first, uint32_t end, const Turn &turn,
                                             FusedShared &shared, uint8_t *stage, Ready ready)
{
    const ThreadLayout layout(part.dim, p.d_pad);
    const int t = int(threadIdx.x), per_tile = int(TD_TILE_ROWS) / layout.at_once;
    Vector<E> kept[kVectors];

    if (!bring_set(kept, part, x, first, end, p.d_pad, turn, layout, shared,
                   stage + TD_FUSED_SHARED_BYTES, ready))
        return false;
    clean_set(kept, [&](int i) { shared.bad[i * layout.at_once + layout.row] = 1; });
    if (part.is_k) {
        sum_rows<8>(stage, layout, kept, [&](int tile, int c, const float(&sum)[8]) {
            if (first + uint32_t(tile) < end && c < int(p.d_pad))
                p.partial[int64_t(first + uint32_t(tile)) * p.d_pad + c] = sum_of_eight(sum);
        });
        return true;
    }
    Vector<E> most;
#pragma unroll
    for (int w = 0; w < Vector<E>::count; w++)
        most.words[w] = 0;
#pragma unroll
    for (int i = 0; i < kVectors; i++) {
#pragma unroll
        for (int w = 0; w < Vector<E>::count; w++)
            most.words[w] = max_magnitude(most.words[w], kept[i].words[w]);
        if ((i + 1) % per_tile)
            continue;
#pragma unroll 1
        for (int offset = 16; offset >= layout.lanes; offset /= 2)
#pragma unroll
            for (int w = 0; w < Vector<E>::count; w++)
                most.words[w] =
                    max_magnitude(most.words[w], __shfl_xor_sync(~0u, most.words[w], offset));
        if (t % 32 < layout.lanes && layout.reads)
#pragma unroll
            for (int c = 0; c < 8; c++)
                atomicMax(&shared.top[i / per_tile * int(p.d_pad) + layout.channel + c],
                          __float_as_uint(most.at(c)));
#pragma unroll
        for (int w = 0; w < Vector<E>::count; w++)
            most.words[w] = 0;
    }
    __syncthreads();
    const int tiles = int(min(end - first, TD_FUSED_TILES(p.d_pad)));
    for (int i = t; i < tiles * int(p.d_pad); i += int(TD_FUSED_THREADS))
        p.amax[int64_t(first) * p.d_pad + i] = __uint_as_float(shared.top[i]);
    for (int i = t; i < tiles * int(TD_TILE_ROWS); i += int(TD_FUSED_THREADS))
        p.flag[int64_t(first) * TD_TILE_ROWS + i] = shared.bad[i] ? CUDART_NAN_F : 0.0f;
    return true;
}

} // namespace td

/* Plans of GPUs with FP8 tensor cores have it. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
extern "C" __global__ void __launch_bounds__(TD_FUSED_THREADS, 2)
    stats(const __grid_constant__ td_params_stats p)
{
    TD_DYNAMIC_SHARED(16, stage);
    td::FusedShared &shared = *reinterpret_cast<td::FusedShared *>(stage + TD_FUSED_STAGE_BYTES);
    const uint32_t gone = td::cancel_word(p.cancel),
                   block = p.partial ? blockIdx.x / 2 : blockIdx.x;
    const uint32_t each = TD_FUSED_TILES(p.d_pad), tile0 = block * p.sets * each;
    const uint32_t to = min(tile0 + p.sets * each, p.planes * p.chunks);
    const bool is_k = p.partial && blockIdx.x % 2 == 0;
    const td_tensor &x = is_k ? p.k : p.v;
    td::Part part;

    td::launch_dependents();
    part.strides[0] = x.stride_batch;
    part.strides[1] = x.stride_head;
    part.strides[2] = x.stride_row;
    part.heads = x.heads;
    part.len = x.rows;
    part.dim = x.dim;
    part.chunks = p.chunks;
    part.is_k = is_k;
    td::as_dtype(x.data, x.dtype, [&](auto data) {
        td::Turn turn = {true, false, p.ahead && td::is_wide(data, part.strides), 0};

        for (uint32_t tile = tile0; tile < to; tile += each) {
            turn.has_next = tile + each < to;
            if (!td::stats_of_set(p, part, data, tile, to, turn, shared, stage,
                                  [&]() { return !__syncthreads_or(int(gone)); }))
                return;
            turn.first = false;
            turn.which ^= 1;
            __syncthreads();
        }
    });
}
#endif
