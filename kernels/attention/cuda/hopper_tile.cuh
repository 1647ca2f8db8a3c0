/* What a block of attn_8b_wgmma has in shared memory, and what it works on.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "tile.cuh"
#include "kernels/cuda/wgmma.cuh"

#if TD_HAVE_WGMMA

namespace td {

/* Where a block that walks is: a head and a tile of its rows, -1 behind the last one. */
struct WalkTile {
    uint32_t bh;
    int tile;
};

template <bool First, class A, class B> struct Either {
    using type = A;
};
template <class A, class B> struct Either<false, A, B> {
    using type = B;
};

/* Splits: 1, or so many warpgroups have the same 64 rows, and each every Splits-th step of keys.
 * Walks: blocks whose warpgroups share no keys walk from tile to tile, and have what they need of a
 * tile but K and V twice. */
template <int Dim, int Groups, bool Dump, int Splits = 1, bool Walks = false> struct HopperTile {
    static constexpr unsigned d = Dim;
    static constexpr int dim = Dim, groups = Groups, splits = Splits, abreast = Groups / Splits,
                         rows = 64 * abreast;
    static constexpr int threads = 128 * (Groups + 1), buffers = Walks ? 2 : 1;
    static constexpr int stages =
        int(Walks ? TD_HOPPER_WALK_STAGES(d) : TD_HOPPER_STAGES(d, unsigned(Splits)));
    static constexpr int keys = int(TD_HOPPER_KEYS);
    static constexpr bool dump = Dump || kAllDump, walks = Walks;
    static constexpr int qk_row = int(TD_HOPPER_ROW_BYTES(d)); /* bytes of a row of Q or K */
    static constexpr int columns = Dim + 8; /* of P V: the channels, and eight times P's sum */

    struct Stage {
        alignas(1024) uint8_t k[keys * qk_row];
        alignas(1024) uint8_t v[columns * keys];
        alignas(1024) float k_scale[keys];
    };
    struct Common {
        Stage stage[stages];
        alignas(1024) uint8_t q[buffers][rows * qk_row];
        /* of every second tile, or of each warpgroup */
        float v_scale[Splits > 1 || Walks ? 2 : groups][Dim];
        float v_mean[Splits > 1 || Walks ? 2 : groups][Dim];
        alignas(1024) uint64_t full[stages];
        uint64_t empty[stages];
        /* with the softmax's, a thread's two side by side; of rows that are shared: as q_scale has
         * them */
        float row_scale[rows];
        /* each thread's, which it rarely needs; then sums and bases of each warpgroup's rows */
        float l[2][128 * groups];
        /* where warpgroups have the same rows: the stage that has one's part of O */
        uint32_t left[groups];
        uint64_t q_free;          /* there, too: nobody reads Q and row_scale any more */
    };
    struct Walking : Common {
        alignas(16) float q_scale[2][rows];
        uint64_t tile_free[2]; /* nobody reads Q, scales, means and `where` of the tile any more */
        WalkTile where[2];
    };
    using Shared = typename Either<Walks, Walking, Common>::type;
    static constexpr bool pairs = Splits == 2 && abreast == 2;
    static_assert(Splits == 1 || Splits == Groups || (pairs && Dim == 64),
                  "all warpgroups have the same rows, or two");
    static_assert(Splits == 1 || (stages % Splits == 0 && stages >= 2 * Splits),
                  "a stage is of one share of the keys");
    static_assert(Splits == 1 || 64 * Dim * 4 <= Dim * keys + keys * qk_row,
                  "a stage has room for O beside its ones");
    static_assert(sizeof(Shared) <= 227 * 1024, "more than a block gets");
    static_assert(Dim <= 128, "a thread of a warpgroup looks after a channel at most");
    static_assert(!Walks || (Splits == 1 && Groups == TD_HOPPER_GROUPS(d) && !Dump),
                  "as many warpgroups as there are");
    static_assert(sizeof(Shared) ==
                      (Walks ? TD_HOPPER_WALK_SHARED_BYTES(d)
                             : TD_HOPPER_SHARED_BYTES(d, unsigned(Groups), unsigned(Splits))),
                  "the launch asks for another size");
};

struct HopperRowTile : RowTileOf<int64_t> {
    int steps; /* of T::keys keys */
};

/* Where the scale of a row is: next to that of the other one that a thread has, of its warp's 16.
 */
__device__ __forceinline__ int place_of_row(int row)
{
    return (row & ~15) | (row & 7) << 1 | (row >> 3 & 1);
}

} // namespace td
#endif
