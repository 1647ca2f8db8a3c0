/* What a block of attn_8b_wgmma_inline has in shared memory, and what it works on.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "hopper_tile.cuh"
#include "kernels/cuda/ring.cuh"

#if TD_HAVE_WGMMA

namespace td {
namespace ring {

/* Splits: 1, or so many warpgroups have the same 64 rows, and each every Splits-th step of keys;
 * those with the same steps have a ring. Warpgroup i has rows of part i % abreast and steps from i
 * / abreast on. */
template <int Dim, int Groups, int Splits = 1> struct Tile {
    static constexpr unsigned d = Dim;
    static constexpr int dim = Dim, groups = Groups, splits = Splits, abreast = Groups / Splits,
                         rows = 64 * abreast;
    static constexpr int threads = 128 * (Groups + 1);
    /* of a step; of a slot */
    static constexpr int keys = int(TD_HOPPER_KEYS), tile = int(TD_TILE_KEYS);
    static constexpr bool shares = Splits > 1, dump = kAllDump;
    /* of one */
    static constexpr uint32_t rings = Splits,
                              slots = TD_HOPPER_INLINE_SLOTS(d, unsigned(Groups), unsigned(Splits));
    static constexpr uint32_t all_slots = rings * slots, teams = all_slots; /* a team a slot */
    static constexpr int team_warps = 4 / int(teams);
    /* brought into L2, where so few are under way */
    static constexpr uint32_t tiles_ahead = !shares && slots == 2 ? 4 : 0;
    static constexpr int qk_row = int(TD_HOPPER_ROW_BYTES(d)); /* bytes of a row of K */
    /* of P V: the channels, and eight times P's sum */
    static constexpr int columns = Dim + 8;
    /* in shared memory */
    static constexpr int q_steps = int(TD_HOPPER_INLINE_Q_STEPS(d, unsigned(Groups)));
    static constexpr bool v_last = TD_HOPPER_INLINE_V_LAST(d, unsigned(Groups));
    /* see above */
    static constexpr bool one_p = Groups == 4 || (Dim == 128 && Groups == 3),
                          early = one_p || shares;

    /* Of a warpgroup. */
    static __device__ __forceinline__ int part(int group)
    {
        return Splits == 1 ? group : group % abreast;
    }
    static __device__ __forceinline__ int split(int group)
    {
        return Splits == 1 ? 0 : group / abreast;
    }

    struct Shared {
        uint8_t k[all_slots][tile * qk_row];
        uint8_t v[all_slots][columns * tile];
        uint8_t q[q_steps ? rows * 32 * q_steps : 16]; /* the first channels */
        float v_scale[v_last ? 4 : Dim], v_mean[v_last ? 4 : Dim];
        /* by step; of rings, then sums and bases of a warpgroup's rows */
        float k_scale[shares ? Groups : 2][keys];
        int free_keys[4];                         /* that all rows of a warpgroup may attend to */
        uint32_t bh, bhk, row0, tiles;
        float row_scale[64 * groups];             /* with the softmax's */
        uint64_t full[all_slots], empty[all_slots];
    };
    static_assert(sizeof(Shared) ==
                      TD_HOPPER_INLINE_SHARED_BYTES(d, unsigned(Groups), unsigned(Splits)),
                  "the launch asks for another size");
    static_assert(sizeof(Shared) <= 47 * 1024, "more than a block has in a command buffer");
    static_assert(slots <= (shares ? 2 : 4), "see above");
    static_assert(Splits == 1 || Groups == Splits || (Splits == 2 && Groups == 4),
                  "all warpgroups have the same rows, or two");
    static_assert(sizeof(Shared::k) % (8 * tile) == 0 && columns % 8 == 0,
                  "swizzled rows begin elsewhere");
    static_assert(!shares || Groups * 64 * Dim / 2 * 4 <= sizeof(Shared::k) + sizeof(Shared::v),
                  "no room for half of O");
};

/* A block's share of the work. */
struct RowTile : RowTileOf<uint32_t> {
    int active; /* warpgroups that have rows */
    int tiles;
};

/* Where rows differ in what they see, the tiles of some heads whose K and V L2 has together, the
 * longest first: else the last blocks are as long as the first. */
template <class T>
__device__ __forceinline__ RowTileOf<uint32_t> row_tile_of_block(const td_params_attention &p)
{
    if (!p.causal)
        return row_tile<T>(p);
    const uint32_t tiles = (p.o.rows + T::rows - 1) / T::rows,
                   most = (24u << 20) / (2 * T::dim) / p.kv_pad;
    const uint32_t each = max(1u, min(most, p.planes)), round = blockIdx.x / (each * tiles);
    const uint32_t here = min(each, p.planes - round * each),
                   number = blockIdx.x - round * each * tiles;

    return row_tile_of<T, uint32_t>(p, round * each + number % here, int(tiles - 1 - number / here),
                                    p.heads);
}

__device__ __forceinline__ bool is_there(const uint64_t &barrier, uint32_t parity)
{
    return mbarrier_test_wait(shared_address(&barrier), parity);
}

/* Of `tiles` tiles, how many are ring number `ring`'s. */
template <class T> __device__ __forceinline__ int tiles_of(int tiles, int ring)
{
    if (!T::shares)
        return tiles;
    const int steps = (tiles + 1) / 2, mine = (steps - ring + T::splits - 1) / T::splits;
    return 2 * mine - int(tiles % 2 && (steps - 1) % T::splits == ring);
}

} // namespace ring
} // namespace td
#endif
