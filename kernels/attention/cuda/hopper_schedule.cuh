/* Which tiles a block has, one after the other, and which of a tile's steps a warpgroup has.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "hopper_tile.cuh"

#if TD_HAVE_WGMMA

namespace td {

/* The tile number n of this block: of all tiles every gridDim.x-th, forwards and backwards in turn,
 * as with a mask the longest come first. steps: -1 behind the last one. */
template <class T>
__device__ __forceinline__ HopperRowTile split_row_tile(const td_params_attention &p, uint32_t n)
{
    uint32_t words[3] = {(p.o.rows + T::rows - 1) / T::rows, p.planes, p.heads};
    /* else all that divides by them is kept in registers from one tile to the next */
    forget(words);
    const uint32_t tiles = words[0], planes = words[1], heads = words[2];
    const uint32_t number = n * gridDim.x + (n % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    HopperRowTile at = {};

    at.steps = -1;
    if (number < planes * tiles) {
        const uint32_t by = p.causal ? planes : tiles, whole = number / by, rest = number % by;
        const uint32_t bh = p.causal ? rest : whole, tile = p.causal ? tiles - 1 - whole : rest;

        at = {row_tile_of<T, int64_t>(p, bh, int(tile), heads), 0};
        at.steps = (at.keys + T::keys - 1) / T::keys;
    }
    return at;
}

/* Of the first steps of a tile, how many are warpgroup number `split`'s. */
template <class T> __device__ __forceinline__ int share(int steps, int split)
{
    return (steps - split + T::splits - 1) / T::splits;
}

/* The tile number n of this block. Without a mask of all tiles every gridDim.x-th. With one, heads
 * come by as many as have chunk_planes, of each such chunk the longest tiles of all its heads
 * first, or last in every second one, so that tiles of like length meet where chunks do; and blocks
 * take them forwards and backwards in turn. */
template <class T>
__device__ __forceinline__ WalkTile walk_tile(const td_params_attention &p, uint32_t n)
{
    uint32_t words[3] = {(p.o.rows + T::rows - 1) / T::rows, p.planes, p.chunk_planes};
    /* else all that divides by them is kept in registers from one tile to the next */
    forget(words);
    const uint32_t tiles = words[0], planes = words[1], each = words[2];
    const uint32_t number =
        n * gridDim.x + (p.causal && n % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);

    if (number >= planes * tiles)
        return {0, -1};
    if (!p.causal)
        return {number / tiles, int(number % tiles)};
    const uint32_t chunk = number / (each * tiles), first = chunk * each,
                   rest = number - first * tiles;
    const uint32_t here = min(each, planes - first), whole = rest / here,
                   chunks = (planes + each - 1) / each;

    return {first + rest % here, int((chunks - chunk) % 2 ? tiles - 1 - whole : whole)};
}

template <class T>
__device__ __forceinline__ HopperRowTile walk_to(const td_params_attention &p, WalkTile where)
{
    uint32_t heads[1] = {p.heads};
    forget(heads);
    HopperRowTile at = {row_tile_of<T, int64_t>(p, where.bh, where.tile, heads[0]), 0};

    at.steps = (at.keys + T::keys - 1) / T::keys;
    return at;
}

} // namespace td
#endif
