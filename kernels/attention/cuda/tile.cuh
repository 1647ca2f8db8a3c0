/* Tiles of the attention kernels: their shape, what a block has of them, their place in shared
 * memory, their way in and out of it.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A stage holds 64 keys. Rows carry 16 bytes of padding, so that the eight 16-byte rows of an
 * ldmatrix fall into eight different bank groups:
 *
 *   k        64 keys     x (q_row_bytes + 16)        row = key,      codes of its channels
 *   k_scale  64 floats, delta 64 floats
 *   v        Dim channels x (64 * PvBytes + 16)      row = channel,  codes of the 64 keys (e4m3: permuted within 16)
 */
#pragma once

#include "kernels/attention/params.h"
#include "kernels/cuda/fragment.cuh"

namespace td {

template <int Dim, int QkBits, int PvBytes> struct Tile {
    static constexpr int dim = Dim, qk_bits = QkBits, pv_bytes = PvBytes;
    static constexpr int rows = 64, keys = int(TD_TILE_KEYS), threads = int(TD_BLOCK_THREADS);
    static constexpr int q_row_bytes =
        QkBits == 4 ? int(TD_PACKED_ROW_BYTES(unsigned(Dim))) : Dim * QkBits / 8;
    static constexpr int k_row_bytes = q_row_bytes + 16;
    static constexpr int v_row_bytes = keys * PvBytes + 16;
    static constexpr int steps = q_row_bytes / 32; /* mma steps over the channels */
    static constexpr int stages =
        int(TD_ATTENTION_STAGES(unsigned(q_row_bytes), unsigned(PvBytes), unsigned(Dim)));
    static constexpr bool q_in_registers = steps <= 8; /* 4 registers a step */

    struct Stage {
        alignas(16) uint8_t k[keys * k_row_bytes];
        alignas(16) float k_scale[keys];
        alignas(16) float delta[keys];
        alignas(16) uint8_t v[Dim * v_row_bytes];
    };
    struct Shared {
        Stage stage[stages];
    };
    static_assert(sizeof(Shared) == TD_ATTENTION_SHARED_BYTES(unsigned(q_row_bytes),
                                                              unsigned(PvBytes), unsigned(Dim)),
                  "the launch asks for another size");
};

/* What one block works on. Index: 32 bits where registers are few. */
template <class Index> struct RowTileOf {
    Index bh, bhk;
    int row0;      /* of the block */
    int keys;      /* that its last row may attend to */
    int free_keys; /* that all its rows may attend to */
    int reach;     /* causal: row r may attend to keys below r + reach */
};
using RowTile = RowTileOf<uint32_t>;

/* Tile `tile` of head `bh`; `heads` of each of the batch. */
template <class T, class Index>
__device__ __forceinline__ RowTileOf<Index> row_tile_of(const td_params_attention &p, uint32_t bh,
                                                        int tile, uint32_t heads)
{
    const int q_len = int(p.o.rows), kv_len = int(p.kv_len);
    RowTileOf<Index> at;

    at.bh = at.bhk = bh;
    if (heads != p.kv_heads) /* divided with 32 bits: with 64 it takes hundreds of cycles */
        at.bhk = bh / heads * p.kv_heads + bh % heads / (heads / p.kv_heads);
    at.row0 = tile * T::rows;
    at.reach = kv_len - q_len + 1;
    at.keys = at.free_keys = kv_len;
    if (p.causal) {
        at.keys = max(0, min(kv_len, min(at.row0 + T::rows, q_len) - 1 + at.reach));
        at.free_keys = max(0, min(kv_len, at.row0 + at.reach));
    }
    return at;
}

template <class T, class Index = uint32_t>
__device__ __forceinline__ RowTileOf<Index> row_tile(const td_params_attention &p,
                                                     uint32_t block = blockIdx.x)
{
    const uint32_t tiles = (p.o.rows + T::rows - 1) / T::rows;
    int tile = int(block % tiles);

    if (p.causal) /* the longest rows first: the tail of the grid is then made of short ones */
        tile = int(tiles) - 1 - tile;
    return row_tile_of<T, Index>(p, block / tiles, tile, p.heads);
}

/* Starts copying Rows rows of Bytes bytes into rows of Pitch bytes of shared memory. As many
 * neighbouring threads share a row as its pieces of 16 bytes allow, and a thread keeps its place
 * within the row: one address a thread, the rest are offsets. */
template <int Rows, int Bytes, int Pitch>
__device__ __forceinline__ void copy_rows(void *shared, const uint8_t *global, int64_t stride)
{
    const int t = tid_x();
    constexpr int pieces = Bytes / 16, abreast = pieces & -pieces; /* its largest power of two */
    constexpr int at_once = int(TD_BLOCK_THREADS) / abreast;
    static_assert(abreast <= int(TD_BLOCK_THREADS) && Rows % at_once == 0,
                  "every thread copies as much");
    const int row = t / abreast, byte = t % abreast * 16;
    const uint32_t to = shared_address(shared) + uint32_t(row * Pitch + byte);
    const uint8_t *from = global + row * stride + byte;

#pragma unroll
    for (int r = 0; r < Rows; r += at_once)
#pragma unroll
        for (int piece = 0; piece < pieces; piece += abreast)
            cp_async_16(to + uint32_t(r * Pitch + piece * 16), from + r * stride + piece * 16);
}

/* The A fragment of Q: 16 rows from `rows`, 32 bytes from byte 32 * step. */
template <class T>
__device__ __forceinline__ void load_q(uint32_t (&a)[4], const uint8_t *rows, int lane, int step)
{
    const uint8_t *at = rows + int64_t(lane / 4) * T::q_row_bytes + 32 * step + 4 * (lane % 4);

    a[0] = ld_global(at);
    a[1] = ld_global(at + 8 * T::q_row_bytes);
    a[2] = ld_global(at + 16);
    a[3] = ld_global(at + 8 * T::q_row_bytes + 16);
}

/* The B fragments of keys 8j..8j+7 (b[0], b[1]) and 8j+8..8j+15 (b[2], b[3]), 32 bytes from byte 32
 * * step. */
template <class T>
__device__ __forceinline__ void load_k(uint32_t (&b)[4], uint32_t k, int lane, int j, int step)
{
    const int key = 8 * j + 8 * (lane / 16) + lane % 8, byte = 32 * step + 16 * (lane / 8 % 2);

    ldmatrix_x4(b, k + uint32_t(key * T::k_row_bytes + byte));
}

/* The B fragments of channels 8j..8j+7: 64 bytes of keys from byte 64 * half, two mma steps. */
template <class T>
__device__ __forceinline__ void load_v(uint32_t (&b)[4], uint32_t v, int lane, int j, int half)
{
    ldmatrix_x4(b, v + uint32_t((8 * j + lane % 8) * T::v_row_bytes + 64 * half + 16 * (lane / 8)));
}

} // namespace td
