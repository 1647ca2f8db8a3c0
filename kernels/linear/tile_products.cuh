/* Products of weights in tiles (kernels/tiles.h) with few rows of x, by mma.sync: which of them a warp has, and in what order they are added
 * up. `linear_tiles` and `linear_ring` have them from here, so their bits are the same.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "kernels/cuda/tiles.cuh"
#include "kernels/linear/few_rows.cuh"
#include "kernels/linear/weights.cuh"

namespace td {

/* Of a tile's chunks those that this warp has, one behind the other. */
template <class Row> struct LinearTilePart {
    const td_params_linear &p;
    const int share_log2;
    const uint32_t begin, count;

    __device__ __forceinline__ explicit LinearTilePart(const td_params_linear &params)
        : p(params), share_log2(linear_log2(p.tile_warps)), begin(first_of(0)), count(first_of(1) - begin)
    {
    }
    __device__ __forceinline__ uint32_t first_of(uint32_t next) const
    {
        return ((threadIdx.x / 32 & (p.tile_warps - 1)) + next) * (p.ins / Row::channels) >> share_log2;
    }
    /* This thread's row of w in the i-th eight of the warp's, of which `tiles` lie side by side in block `block`. With a gate by halves the
     * first eight rows of a tile are of the first half of w. What does not exist is the last row: what comes of it is not written. */
    __device__ __forceinline__ uint32_t row(uint32_t block, int tiles, int i) const
    {
        const uint32_t g = threadIdx.x % 32 / 4, across = TD_LINEAR_TILES_WARPS >> share_log2;
        const uint32_t index = (block * tiles + i / 2) * across + (threadIdx.x / 32 >> share_log2);
        const uint32_t asked = p.gate == TANDEM_GATE_HALVES ? index * 8 + g + i % 2 * p.outs : index * 16 + i % 2 * 8 + g;

        return min(asked, (p.gate ? 2 * p.outs : p.outs) - 1);
    }
    /* The first chunk of the tile that a row is in. */
    __device__ __forceinline__ const uint8_t *chunk_of(uint32_t row) const
    {
        return static_cast<const uint8_t *>(p.w) + int64_t(row / 16) * (16 * p.w_stride) + begin * uint32_t(Row::bytes);
    }
};

/* The i-th 32 channels of 16 rows as mma takes them: a[0] the first four of each eight weights, a[1] the others. */
template <class Row, bool Bf16>
__device__ __forceinline__ void linear_tile_operands(uint32_t (&a)[2][4], TileGroup (&of)[2], const Row (&rows)[2], int i)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        rows[h].group(of[h], i);
#pragma unroll
        for (int w = 0; w < 2; w++) {
            uint32_t four[2];

            linear_whole<Bf16>(four, of[h].codes[w], float(Row::less));
            a[w][h] = four[0], a[w][2 + h] = four[1];
        }
    }
}

/* Adds their products with eight rows of x, scaled. */
template <class Row, bool Bf16>
__device__ __forceinline__ void linear_tile_add(float (&c)[4], const TileGroup (&of)[2], const uint32_t (&a)[2][4], const uint4 &x)
{
    const uint32_t ones = Bf16 ? 0x3f803f80u : 0x3c003c00u, one[4] = {ones, ones, ones, ones};
    float sums[2][4] = {}, all[4] = {};

    linear_mma<Bf16>(sums[0], a[0], x.x, x.y);
    linear_mma<Bf16>(sums[Row::apart], a[1], x.z, x.w);
    if constexpr (Row::has_minimum) {
        linear_mma<Bf16>(all, one, x.x, x.y);
        linear_mma<Bf16>(all, one, x.z, x.w);
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        c[e] = __fmaf_rn(of[e / 2].scale[0], sums[0][e], c[e]);
        if constexpr (Row::apart)
            c[e] = __fmaf_rn(of[e / 2].scale[1], sums[1][e], c[e]);
        if constexpr (Row::has_minimum)
            c[e] = __fmaf_rn(-of[e / 2].minimum, all[e], c[e]);
    }
}

} // namespace td
