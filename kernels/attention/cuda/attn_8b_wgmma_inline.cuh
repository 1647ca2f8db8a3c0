/* Attention on int8 codes of Q and K and e4m3 codes of V by wgmma where a block has 47 KB of shared
 * memory: `attn_8b_wgmma_inline`, `attn_8b_wgmma_inline_short`, `attn_8b_wgmma_inline_split`,
 * `attn_8b_wgmma_inline_pair`, sm_90a.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The arithmetic is that of attn_8b_wgmma (hopper.cuh), and so is every bit of O and lse. A block
 * has three or four warpgroups that compute, of 64 rows each; where there are few blocks, shorter
 * ones of two. K and V go through a ring of slots of 64 keys each, into which four more warps fetch
 * (kernels/ring.h). Q lies in registers, at d64 and d128 the half of it for which they have no room
 * in shared memory. A warpgroup has S of one tile of keys and P of two (t: tile):
 *
 *   tensor     S = Q K(t), R += P V(t-1) --|           | S = Q K(t+1), R += P V(t) --
 *   threads                                | P = ex2 S |                            | P = ex2 S ...
 *
 * R adds up four tiles, so only every fourth time there is an O += R. `early`: R is waited for
 * together with S, so that the slot is free before the exponentials; then P of one tile is enough,
 * which is eight registers fewer (`one_p`).
 *
 * Where tiles are few, a block has 64 rows, and its warpgroups share the keys
 * (attn_8b_wgmma_inline_split): each has every so manieth step of 128 keys, a ring of one slot and
 * a team that fetches for it. The parts of O are put together as those of attn_8b_wgmma_split are,
 * by way of the slots, half of the channels at a time: with as many warpgroups the same bits. Where
 * there are somewhat more tiles, two warpgroups of four have the same 64 rows, and two the next 64
 * (attn_8b_wgmma_inline_pair): the two that have the same steps have a ring of two slots. Bits are
 * attn_8b_wgmma_pair's.
 *
 * Barriers. A slot's `full` has one arrival a phase of each thread of the team that fetches, once
 * it has waited for its copies and told wgmma of them. Its `empty` has one of each warp that
 * computes, four for each warpgroup of the ring that has rows (the others leave at once). Each of
 * those warps goes through all fetches of the ring in their order, also where its rows see none of
 * the keys any more: those it waits for and gives back. About round n of a slot:
 *
 *   each thread of the team    waits for phase n - 1 of empty, copies, waits for that, arrives at full
 *   each warp that computes    waits for phase n of full, lets wgmma read, waits for it, arrives at empty
 *
 * - Nobody writes what is still read: phase n - 1 of empty ends with the last arrival behind the
 *   reads of round n - 1.
 * - A wait is for the phase in progress or the one right before it, so that a parity says which. Of
 *   full: a warp has waited for phase n - 1 itself; phase n + 1 cannot end before round n + 1 is
 *   written, behind phase n of empty, behind this very warp's arrival. Of empty: phase n cannot end
 *   before its warps arrive, behind their wait for full of round n, for which this very thread has
 *   yet to write. Phase n - 2 has ended: where a team comes to fetch f, it has had room for the one
 *   before, f - teams; so the consumers are done with f - teams - slots, and with f - 2 slots
 *   before it, as there are not more teams than slots.
 * - Nobody waits for ever: who fetches waits for nothing but room and copies. A warp that computes
 *   waits for a fetch with none in hand that it has not given back.
 * - Behind the last fetches nobody waits for empty.
 * Every wait ends after some ten seconds: then the kernel traps, which loses the device instead of
 * hanging it.
 *
 * Scales of keys come with K of every second tile, into one of two places in turn, where warpgroups
 * share keys into one a ring: a step's are read (`look`) before its first fetch is given back, and
 * overwritten by a fetch four (two) later, for which that has to have happened, as there are at
 * most four slots (two).
 *
 * Blocks of a head begin together and go through its keys alike: what L2 does not have they would
 * all wait for, step by step. So each asks at its start for a part of it.
 *
 * Threads: TD_HOPPER_THREADS(groups). Registers of a thread that computes: 232, 160 or 112 with 2,
 * 3 or 4 warpgroups. Shared bytes: TD_HOPPER_INLINE_SHARED_BYTES(d, groups, splits), at most 47968
 * of 48128.
 *
 * inline_tile    shared memory, what a block works on  inline_fetch   the warps that fetch
 * inline_consume a warpgroup that computes             inline_write   O where warpgroups share keys
 */
#pragma once

#include "inline_consume.cuh"
#include "inline_fetch.cuh"

#if TD_HAVE_WGMMA

namespace td {

template <class T> __device__ __forceinline__ void attend_ring(const td_params_attention &p)
{
    /* attn_8b_wgmma's: one more array would move that of other kernels in their shared memory. */
    TD_DYNAMIC_SHARED(1024, hopper_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(hopper_bytes);
    const int thread = int(threadIdx.x);
    const bool given_up = p.cancel && thread == 0 && *(const volatile uint32_t *)p.cancel;
    ring::RowTile at = {ring::row_tile_of_block<T>(p), 0, 0};

    at.active = T::shares ? int(p.o.rows > uint32_t(at.row0)) * T::groups
                          : (min(T::rows, int(p.o.rows) - at.row0) + 63) / 64;
    at.tiles = (at.keys + T::tile - 1) / T::tile;

    /* Barriers, the eight rows of ones of each slot; whether the work is given up. */
    const auto start = [&] {
        if (thread == 0) { /* what is asked for again at the end, where registers are few */
            shared.bh = at.bh;
            shared.bhk = at.bhk;
            shared.row0 = uint32_t(at.row0);
            shared.tiles = uint32_t(at.tiles);
        }
        if (thread == 0) /* a loop, not a predicate: with that, racecheck sees other threads' copies
                            hit by it */
#pragma unroll 1
            for (uint32_t slot = 0; slot < T::all_slots; slot++) {
                mbarrier_init(shared_address(&shared.full[slot]), 32 * T::team_warps);
                mbarrier_init(shared_address(&shared.empty[slot]),
                              4 * (T::shares ? T::abreast : at.active));
            }
        constexpr int words = 8 * T::tile / 4;
        for (int i = thread; i < int(T::all_slots) * words; i += T::threads)
            *reinterpret_cast<uint32_t *>(shared.v[i / words] + T::dim * T::tile + i % words * 4) =
                0x38383838u;
        fence_proxy_async();
        return __syncthreads_or(given_up);
    };
    constexpr int computes = T::groups == 2 ? 232 : T::groups == 3 ? 160 : 112;
    constexpr int fetches = T::groups == 2 ? 40 : 32;
    if (thread >= 128 * T::groups) {
        ring::Fetcher<T> fetcher(shared, p, at);
        fetcher.begin();
        if (start()) {
            cp_async_wait<0>();
            return;
        }
        setmaxnreg_dec<fetches>();
        fetcher.warm_l2(at.row0);
        fetcher.go_on();
    } else {
        ring::Consumer<T> c;
        ring::begin<T>(shared, p, at, c);
        if (start())
            return;
        setmaxnreg_inc<computes>();
        if (thread < 128 * at.active)
            ring::consume<T>(shared, p, at, c);
    }
}

} // namespace td

#define TD_INLINE_ENTRY(name, dim, groups)                                     \
    extern "C" __global__ void __launch_bounds__(TD_HOPPER_THREADS(groups), 1) \
        name##_d##dim(const __grid_constant__ td_params_attention p)           \
    {                                                                          \
        td::attend_ring<td::ring::Tile<dim, int(groups)>>(p);                  \
    }
#define TD_INLINE_SPLIT_ENTRY(dim)                                                                 \
    extern "C" __global__ void __launch_bounds__(TD_HOPPER_THREADS(TD_HOPPER_INLINE_SPLITS(dim)), 1) \
        attn_8b_wgmma_inline_split_d##dim(const __grid_constant__ td_params_attention p)           \
    {                                                                                              \
        constexpr int splits = int(TD_HOPPER_INLINE_SPLITS(dim));                                  \
        td::attend_ring<td::ring::Tile<dim, splits, splits>>(p);                                   \
    }
#endif
