/* Attention on int8 codes of Q and K and e4m3 codes of V by wgmma where a block has 47 KB of shared memory:
 * `attn_8b_wgmma_inline`, `attn_8b_wgmma_inline_short`, `attn_8b_wgmma_inline_split`, `attn_8b_wgmma_inline_pair`, sm_90a.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The arithmetic is that of attn_8b_wgmma (hopper.cuh), and so is every bit of O and lse. A block has three or four
 * warpgroups that compute, of 64 rows each; where there are few blocks, shorter ones of two. K and V go through a ring of slots
 * of 64 keys each, into which four more warps fetch (kernels/ring.h). Q lies in registers, at d64 and d128 the half of it for
 * which they have no room in shared memory. A warpgroup has S of one tile of keys and P of two (t: tile):
 *
 *   tensor     S = Q K(t), R += P V(t-1) --|           | S = Q K(t+1), R += P V(t) --
 *   threads                                | P = ex2 S |                            | P = ex2 S ...
 *
 * R adds up four tiles, so only every fourth time there is an O += R. `early`: R is waited for together with S, so that the
 * slot is free before the exponentials; then P of one tile is enough, which is eight registers fewer (`one_p`).
 *
 * Where tiles are few, a block has 64 rows, and its warpgroups share the keys (attn_8b_wgmma_inline_split): each has every
 * so manieth step of 128 keys, a ring of one slot and a team that fetches for it. The parts of O are put together as those
 * of attn_8b_wgmma_split are, by way of the slots, half of the channels at a time: with as many warpgroups the same bits.
 * Where there are somewhat more tiles, two warpgroups of four have the same 64 rows, and two the next 64
 * (attn_8b_wgmma_inline_pair): the two that have the same steps have a ring of two slots. Bits are attn_8b_wgmma_pair's.
 *
 * Barriers. A slot's `full` has one arrival a phase of each thread of the team that fetches, once it has waited for its copies
 * and told wgmma of them. Its `empty` has one of each warp that computes, four for each warpgroup of the ring that has rows (the
 * others leave at once). Each of those warps goes through all fetches of the ring in their order, also where its rows see none
 * of the keys any more: those it waits for and gives back. About round n of a slot:
 *
 *   each thread of the team    waits for phase n - 1 of empty, copies, waits for the copies, then arrives at full
 *   each warp that computes    waits for phase n of full, lets wgmma read, waits for wgmma, then arrives at empty
 *
 * - Nobody writes what is still read: phase n - 1 of empty ends with the last arrival behind the reads of round n - 1.
 * - A wait is for the phase in progress or the one right before it, so that a parity says which. Of full: a warp has waited
 *   for phase n - 1 itself; phase n + 1 cannot end before round n + 1 is written, behind phase n of empty, behind this very
 *   warp's arrival. Of empty: phase n cannot end before its warps arrive, behind their wait for full of round n, for which
 *   this very thread has yet to write. Phase n - 2 has ended: where a team comes to fetch f, it has had room for the one before,
 *   f - teams; so the consumers are done with f - teams - slots, and with f - 2 slots before it, as there are not more teams
 *   than slots.
 * - Nobody waits for ever: who fetches waits for nothing but room and copies. A warp that computes waits for a fetch with
 *   none in hand that it has not given back.
 * - Behind the last fetches nobody waits for empty.
 * Every wait ends after some ten seconds: then the kernel traps, which loses the device instead of hanging it.
 *
 * Scales of keys come with K of every second tile, into one of two places in turn, where warpgroups share keys into one a ring:
 * a step's are read (`look`) before its first fetch is given back, and overwritten by a fetch four (two) later, for which that
 * has to have happened, as there are at most four slots (two).
 *
 * Blocks of a head begin together and go through its keys alike: what L2 does not have they would all wait for, step by step.
 * So each asks at its start for a part of it.
 *
 * Threads: TD_HOPPER_THREADS(groups). Registers of a thread that computes: 232, 160 or 112 with 2, 3 or 4 warpgroups.
 * Shared bytes: TD_HOPPER_INLINE_SHARED_BYTES(d, groups, splits), at most 47968 of 48128.
 */
#pragma once

#include "hopper.cuh"
#include "kernels/cuda/ring.cuh"

#if TD_HAVE_WGMMA

namespace td {
namespace ring {

/* Splits: 1, or so many warpgroups have the same 64 rows, and each every Splits-th step of keys; those with the same steps
 * have a ring. Warpgroup i has rows of part i % abreast and steps from i / abreast on. */
template <int Dim, int Groups, int Splits = 1> struct Tile {
    static constexpr unsigned d = Dim;
    static constexpr int dim = Dim, groups = Groups, splits = Splits, abreast = Groups / Splits, rows = 64 * abreast;
    static constexpr int threads = 128 * (Groups + 1);
    static constexpr int keys = int(TD_HOPPER_KEYS), tile = int(TD_TILE_KEYS); /* of a step; of a slot */
    static constexpr bool shares = Splits > 1, dump = kAllDump;
    static constexpr uint32_t rings = Splits, slots = TD_HOPPER_INLINE_SLOTS(d, unsigned(Groups), unsigned(Splits)); /* of one */
    static constexpr uint32_t all_slots = rings * slots, teams = all_slots; /* a team a slot */
    static constexpr int team_warps = 4 / int(teams);
    static constexpr uint32_t tiles_ahead = !shares && slots == 2 ? 4 : 0; /* brought into L2, where so few are under way */
    static constexpr int qk_row = int(TD_HOPPER_ROW_BYTES(d)); /* bytes of a row of K */
    static constexpr int columns = Dim + 8;                    /* of P V: the channels, and eight times P's sum */
    static constexpr int q_steps = int(TD_HOPPER_INLINE_Q_STEPS(d, unsigned(Groups))); /* in shared memory */
    static constexpr bool v_last = TD_HOPPER_INLINE_V_LAST(d, unsigned(Groups));
    static constexpr bool one_p = Groups == 4 || (Dim == 128 && Groups == 3), early = one_p || shares; /* see above */

    /* Of a warpgroup. */
    static __device__ __forceinline__ int part(int group) { return Splits == 1 ? group : group % abreast; }
    static __device__ __forceinline__ int split(int group) { return Splits == 1 ? 0 : group / abreast; }

    struct Shared {
        uint8_t k[all_slots][tile * qk_row];
        uint8_t v[all_slots][columns * tile];
        uint8_t q[q_steps ? rows * 32 * q_steps : 16]; /* the first channels */
        float v_scale[v_last ? 4 : Dim], v_mean[v_last ? 4 : Dim];
        float k_scale[shares ? Groups : 2][keys]; /* by step; of rings, then sums and bases of a warpgroup's rows */
        int free_keys[4];                         /* that all rows of a warpgroup may attend to */
        uint32_t bh, bhk, row0, tiles;
        float row_scale[64 * groups];             /* with the softmax's */
        uint64_t full[all_slots], empty[all_slots];
    };
    static_assert(sizeof(Shared) == TD_HOPPER_INLINE_SHARED_BYTES(d, unsigned(Groups), unsigned(Splits)),
                  "the launch asks for another size");
    static_assert(sizeof(Shared) <= 47 * 1024, "more than a block has in a command buffer");
    static_assert(slots <= (shares ? 2 : 4), "see above");
    static_assert(Splits == 1 || Groups == Splits || (Splits == 2 && Groups == 4), "all warpgroups have the same rows, or two");
    static_assert(sizeof(Shared::k) % (8 * tile) == 0 && columns % 8 == 0, "swizzled rows begin elsewhere");
    static_assert(!shares || Groups * 64 * Dim / 2 * 4 <= sizeof(Shared::k) + sizeof(Shared::v), "no room for half of O");
};

/* A block's share of the work. */
struct Place : PlaceOf<uint32_t> {
    int active; /* warpgroups that have rows */
    int tiles;
};

/* Where rows differ in what they see, the tiles of some heads whose K and V L2 has together, the longest first: else the last
 * blocks are as long as the first. */
template <class T> __device__ __forceinline__ PlaceOf<uint32_t> place_of_block(const td_params_attention &p)
{
    if (!p.causal)
        return place<T>(p);
    const uint32_t tiles = (p.o.rows + T::rows - 1) / T::rows, most = (24u << 20) / (2 * T::dim) / p.kv_pad;
    const uint32_t each = max(1u, min(most, p.planes)), round = blockIdx.x / (each * tiles);
    const uint32_t here = min(each, p.planes - round * each), number = blockIdx.x - round * each * tiles;

    return place_of<T, uint32_t>(p, round * each + number % here, int(tiles - 1 - number / here), p.heads);
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

/* A warp of a team, which has every so many fetches, or a ring's. A thread's copies go to and come from addresses that differ
 * from fetch to fetch by the same. */
template <class T> struct Fetcher {
    static constexpr int threads = 32 * T::team_warps;
    static constexpr int k_pieces = T::dim / 16, k_abreast = k_pieces & -k_pieces, k_rows = threads / k_abreast; /* at once */
    static constexpr int v_rows = threads / (T::tile / 16);
    static constexpr int kinds = k_rows < 8 ? 8 / k_rows : 1; /* of rows, by where the swizzle puts their pieces */
    static_assert(T::tile % k_rows == 0 && T::dim % v_rows == 0 && v_rows % 8 == 0, "every thread copies as much");

    typename T::Shared &shared;
    const td_params_attention &p;
    static constexpr uint32_t each = T::slots; /* from one of its fetches of a ring to the next */

    uint32_t team, ring, first, tiles; /* of the ring; its first fetch */
    int t;
    int64_t plane;
    const uint8_t *k_plane, *v_plane, *k, *v;
    const float *k_scale;
    int64_t v_further;
    uint32_t k_to, v_to;
    uint32_t k_at[kinds][k_pieces / k_abreast];

    __device__ __forceinline__ Fetcher(typename T::Shared &s, const td_params_attention &params, const Place &at)
        : shared(s), p(params)
    {
        team = __shfl_sync(~0u, threadIdx.x % 128 / threads, 0); /* the compiler sees that a warp agrees on it */
        t = int(threadIdx.x) % threads;
        const int k_row = t / k_abreast, k_byte = t % k_abreast * 16;
        const int v_row = t / (T::tile / 16), v_byte = t % (T::tile / 16) * 16;
        ring = team / each;
        first = team % each;
        const int64_t key = ring * T::keys + first * T::tile;

        plane = at.bhk;
        tiles = uint32_t(tiles_of<T>(at.tiles, int(ring)));
        k_plane = (const uint8_t *)p.k_codes + plane * p.kv_pad * T::dim;
        v_plane = (const uint8_t *)p.v_codes + plane * p.kv_pad * T::dim;
        k = k_plane + (key + k_row) * T::dim + k_byte;
        v = v_plane + v_row * int64_t(p.kv_pad) + key + v_byte + before(first);
        k_scale = p.k_scale + plane * p.kv_pad + key + 4 * t;
        v_further = int64_t(v_rows) * p.kv_pad;
        k_to = shared_address(shared.k[ring * T::slots]);
        v_to = shared_address(shared.v[ring * T::slots]) + swizzled<T::tile>(uint32_t(v_row * T::tile + v_byte));
#pragma unroll
        for (int i = 0; i < kinds; i++)
#pragma unroll
            for (int j = 0; j < k_pieces / k_abreast; j++)
                k_at[i][j] =
                    k_to + swizzled<T::qk_row>(uint32_t((k_row + i * k_rows) * T::qk_row + k_byte + 16 * k_abreast * j));
    }

    /* From the keys of a ring's tile number n on to those of the tile of this team's next fetch. */
    static __device__ __forceinline__ int further(uint32_t n)
    {
        return T::slots == 1 ? (n % 2 ? (2 * T::splits - 1) * T::tile : T::tile)
               : T::shares   ? T::splits * T::keys
                             : int(T::slots) * T::tile;
    }

    /* And from its keys to those of the tile before it; of the first to those that the first V of a ring of one slot has. */
    static __device__ __forceinline__ int before(uint32_t n)
    {
        return T::slots == 1 && n == 0 ? 0 : n % 2 || !T::shares ? -T::tile : (1 - 2 * T::splits) * T::tile;
    }

    __device__ __forceinline__ bool has(uint32_t n) const
    {
        return team < T::teams && n < td_ring_fetches(tiles);
    }

    __device__ __forceinline__ void copy_k(uint32_t n)
    {
        const uint32_t k_slot = T::slots == 1 ? 0 : td_ring_of(n, T::slots).slot * uint32_t(sizeof shared.k[0]);

        if (td_ring_has_k(n, tiles)) {
#pragma unroll
            for (int r = 0; r < T::tile / k_rows; r++)
#pragma unroll
                for (int j = 0; j < k_pieces / k_abreast; j++)
                    cp_async_16(k_at[r % kinds][j] + k_slot + uint32_t(r / kinds * kinds * k_rows * T::qk_row),
                                k + r * k_rows * T::dim + 16 * k_abreast * j);
            if (n % 2 == 0 && t < T::keys / 4) {
                const uint32_t to = shared_address(shared.k_scale[T::shares ? ring * T::abreast : n / 2 % 2] + 4 * t);

                cp_async_16(to, k_scale);
            }
        }
        k += further(n) * T::dim;
        k_scale += further(n);
    }

    __device__ __forceinline__ void copy_v(uint32_t n)
    {
        const uint32_t v_slot = T::slots == 1 ? 0 : td_ring_of(n, T::slots).slot * uint32_t(sizeof shared.v[0]);

        if (td_ring_has_v(n)) {
            const uint8_t *from = v;

#pragma unroll
            for (int r = 0; r < T::dim / v_rows; r++, from += v_further)
                cp_async_16(v_to + v_slot + uint32_t(r * v_rows * T::tile), from);
        }
        v += T::slots > 1 ? further(n) : -before(n);
    }

    /* V's scales and means; a mean that there is not is 0. */
    __device__ __forceinline__ void copy_v_scales()
    {
        for (int c = 4 * t; c < T::dim; c += 4 * threads) {
            const int64_t channel = plane * T::dim + c;

            cp_async_16(shared_address(shared.v_scale + c), p.v_scale + channel);
            cp_async_16_or_zero(shared_address(shared.v_mean + c), p.v_mean ? p.v_mean + channel : p.v_scale,
                                p.v_mean ? 16 : 0);
        }
    }

    /* The first fetch, for which there is room. */
    __device__ __forceinline__ void begin()
    {
        if (has(first)) {
            copy_k(first);
            copy_v(first);
            if (team == 0 && !T::v_last)
                copy_v_scales();
            cp_async_commit();
        }
    }

    /* Blocks of a head each bring a part of its scales of keys into L2, for which all of them would wait at the same time; where
     * a ring has one slot, of its K and V, too. */
    __device__ __forceinline__ void warm_l2(int row0)
    {
        const uint32_t tiles_of_rows = (p.o.rows + T::rows - 1) / T::rows, number = uint32_t(row0) / T::rows;
        const auto part = [&](const void *plane_of, uint32_t bytes) {
            const uint32_t each = (bytes / 128 + tiles_of_rows - 1) / tiles_of_rows * 128, begin = number * each;
            const uint32_t end = min(bytes, begin + min(each, 1u << 16));
            const uint8_t *const from = static_cast<const uint8_t *>(plane_of);
#pragma unroll 1
            for (uint32_t at = begin + threadIdx.x % 128 * 128; at < end; at += 128 * 128)
                prefetch_l2(from + at);
        };

        part(p.k_scale + plane * p.kv_pad, 4 * p.kv_pad);
        if (T::slots == 1) {
            part(k_plane, p.kv_pad * T::dim);
            part(v_plane, p.kv_pad * T::dim);
        }
    }

    __device__ __forceinline__ void go_on()
    {
#pragma unroll 1
        for (uint32_t n = first; has(n); n += each) {
            const td_ring_place place = td_ring_of(n, T::slots);
            const uint32_t slot = ring * T::slots + place.slot;

            if (n != first) {
                wait_or_trap(shared.empty[slot], td_ring_empty_parity(place));
                bar_sync<threads>(8 + team); /* for racecheck, which follows an arrival of a warp's one lane for that lane alone */
                copy_k(n);
                copy_v(n);
                cp_async_commit();
            }
            if (T::tiles_ahead > 0 && n + T::tiles_ahead < tiles) {
                const int64_t ahead = (n + T::tiles_ahead) * T::tile;

                for (int at_byte = 128 * t; at_byte < T::tile * T::dim; at_byte += 128 * threads)
                    prefetch_l2(k_plane + ahead * T::dim + at_byte);
                for (int c = t; c < T::dim && ahead % 128 == 0; c += threads)
                    prefetch_l2(v_plane + c * int64_t(p.kv_pad) + ahead);
            }
            cp_async_wait<0>();
            fence_proxy_async();
            mbarrier_arrive(shared_address(&shared.full[slot]));
        }
    }
};

/* A consumer's registers. */
template <class T> struct Consumer : td::Consumer<T> {
    static constexpr int q_steps = T::dim / 32 - T::q_steps; /* in registers: the last */
    uint32_t q[q_steps ? q_steps : 1][4];
    using td::Consumer<T>::s, td::Consumer<T>::p, td::Consumer<T>::r;

    /* Marks what bad keys poison; scales of a step's keys in global memory. */
    template <int Half> __device__ __forceinline__ void mark_bad(const float *k_scale)
    {
        const float *mine = k_scale + tid_x() % 4 * 2;

#pragma unroll
        for (int i = 0; i < 32; i++) {
            const float key_scale = __uint_as_float(ld_global(mine + Half * 64 + fragment_column(0, i / 4, i % 4)));

            if (key_scale != key_scale)
                s[i] = td::Consumer<T>::kBad;
        }
    }

    /* And what the mask hides. */
    template <int Half> __device__ __forceinline__ void mask(int first_key, int end, int reach)
    {
        const int t = tid_x(), row = t % 128 / 32 * 16 + t % 32 / 4, key = first_key + t % 4 * 2;
        const int last[2] = {min(end, reach + row) - key, min(end, reach + row + 8) - key};
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (Half * 64 + fragment_column(0, i / 4, i % 4) >= last[i % 4 / 2])
                s[i] = td::Consumer<T>::kMasked;
    }

    __device__ __forceinline__ void load_q(const uint8_t *rows, int lane)
    {
        const uint8_t *from = rows + lane / 4 * T::dim + 4 * (lane % 4) + 32 * T::q_steps;

#pragma unroll
        for (int step = 0; step < q_steps; step++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                q[step][i] = ld_global(from + 32 * step + i % 2 * 8 * T::dim + i / 2 * 16);
    }

    /* S of a tile of keys; q and k are tile_word()s. */
    __device__ __forceinline__ void issue_qk(uint32_t q_word, uint32_t k)
    {
        wgmma_fence();
        if constexpr (T::q_steps > 0) {
            wgmma_s8<false>(s, descriptor<32 * T::q_steps>(q_word), descriptor<T::qk_row>(k));
#pragma unroll
            for (int step = 1; step < T::q_steps; step++)
                wgmma_s8<true>(s, descriptor<32 * T::q_steps>(q_word + 2 * step), descriptor<T::qk_row>(k + 2 * step));
        } else {
            wgmma_s8<false>(s, q[0], descriptor<T::qk_row>(k));
        }
#pragma unroll
        for (int step = T::q_steps ? T::q_steps : 1; step < T::dim / 32; step++)
            wgmma_s8<true>(s, q[step - T::q_steps], descriptor<T::qk_row>(k + 2 * step));
        wgmma_commit();
    }

    /* R += P V of a tile, the first or the second of a step, or R = P V. */
    template <int Tile> __device__ __forceinline__ void issue_pv(uint32_t v, bool add)
    {
        wgmma_hold(p[Tile][0]);
        wgmma_hold(p[Tile][1]);
        wgmma_fence();
        wgmma_e4m3(r, p[Tile][0], descriptor<T::tile>(v), add);
        wgmma_e4m3(r, p[Tile][1], descriptor<T::tile>(v + 2));
        wgmma_commit();
    }
};

/* --- Parts of O of warpgroups that share keys --- */

/* Where a row's channels lie that a warpgroup leaves for the others: half of them at a time, where K and V were. */
template <class T> __device__ __forceinline__ float *left_half(typename T::Shared &shared, int group, int row, int channel)
{
    constexpr int half = T::dim / 2, mask = half % 64 == 0 ? 7 : half % 32 == 0 ? 3 : 1;

    return reinterpret_cast<float *>(shared.k[0]) + (group * 64 + row) * half + (channel ^ (row & mask) * 8);
}

/* As in hopper.cuh, of a row of the block: sums and bases of its warpgroups lie behind one another. */
template <class T>
__device__ __forceinline__ void weigh(typename T::Shared &shared, const td_params_attention &p, const PlaceOf<uint32_t> &at,
                                      int row)
{
    float(*const sums)[T::keys] = shared.k_scale + row / 64;
    const int r = row % 64;
    float top = -CUDART_INF_F, l = 0;

#pragma unroll
    for (int i = 0; i < T::splits; i++)
        top = fmaxf(top, sums[i * T::abreast][64 + r]);
#pragma unroll
    for (int i = 0; i < T::splits; i++) {
        const float base = sums[i * T::abreast][64 + r], sum = sums[i * T::abreast][r];
        const float by = base == top ? 1.0f : ex2(__fsub_rn(base, top));

        l = i ? __fmaf_rn(sum, by, l) : __fmul_rn(sum, by);
        sums[i * T::abreast][64 + r] = by;
    }
    sums[0][r] = l != 0.0f ? __frcp_rn(l) : 0.0f;
    write_lse(p, at.bh, at.row0 + row, 1, top, l);
}

/* Half of the channels of O of the tile's rows. */
template <class T, class E>
__device__ __forceinline__ void put_half(typename T::Shared &shared, const td_params_attention &p, int64_t begin, int rows,
                                         int first)
{
    constexpr int fours = T::dim / 8, at_once = 128 * T::groups / fours; /* rows */
    const int t = tid_x(), channel = t % fours * 4;
    E *to = static_cast<E *>(p.o.data) + begin + t / fours * p.o.stride_row;
    const float4 scale = *reinterpret_cast<const float4 *>(shared.v_scale + first + channel);
    const float4 mean = *reinterpret_cast<const float4 *>(shared.v_mean + first + channel);

    static_assert(128 * T::groups % fours == 0, "a thread's channels stay");
#pragma unroll 2
    for (int row = t / fours; row < rows; row += at_once) {
        const int part = row / 64, r = row % 64;
        float x[4];

#pragma unroll
        for (int i = 0; i < T::splits; i++) {
            const float4 o = *reinterpret_cast<const float4 *>(left_half<T>(shared, i * T::abreast + part, r, channel));
            const float by = shared.k_scale[i * T::abreast + part][64 + r];

            x[0] = i ? __fmaf_rn(o.x, by, x[0]) : __fmul_rn(o.x, by);
            x[1] = i ? __fmaf_rn(o.y, by, x[1]) : __fmul_rn(o.y, by);
            x[2] = i ? __fmaf_rn(o.z, by, x[2]) : __fmul_rn(o.z, by);
            x[3] = i ? __fmaf_rn(o.w, by, x[3]) : __fmul_rn(o.w, by);
        }
        const float whole = shared.k_scale[part][r];
        const bool some = whole != 0.0f;
        const float y[4] = {some ? __fadd_rn(__fmul_rn(__fmul_rn(x[0], whole), scale.x), mean.x) : 0.0f,
                            some ? __fadd_rn(__fmul_rn(__fmul_rn(x[1], whole), scale.y), mean.y) : 0.0f,
                            some ? __fadd_rn(__fmul_rn(__fmul_rn(x[2], whole), scale.z), mean.z) : 0.0f,
                            some ? __fadd_rn(__fmul_rn(__fmul_rn(x[3], whole), scale.w), mean.w) : 0.0f};
        write_four(to, first + channel, int(p.o.dim), y);
        to += at_once * p.o.stride_row;
    }
}

/* Leaves this warpgroup's part, and writes some of what all parts make. */
template <class T>
__device__ __forceinline__ void merge(typename T::Shared &shared, const td_params_attention &p, const Sums<T> &c)
{
    PlaceOf<uint32_t> at;
    const int t = tid_x(), group = t / 128, lane = t % 32;

    at.bh = shared.bh;
    at.row0 = int(shared.row0);
    const int64_t begin = at.bh / p.heads * p.o.stride_batch + at.bh % p.heads * p.o.stride_head +
                          at.row0 * p.o.stride_row;
    const int rows = min(T::rows, int(p.o.rows) - at.row0);

    bar_sync<128 * T::abreast>(uint32_t(1 + T::split(group))); /* nobody reads scales of these keys any more */
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (lane % 4 == 1) { /* see hide_base() */
            const int row = t % 128 / 32 * 16 + fragment_row(lane, 2 * half);

            shared.k_scale[group][row] = c.l[half];
            shared.k_scale[group][64 + row] = c.top[half];
        }
    bar_sync<128 * T::groups>(7); /* nor K and V */
    if (t < T::rows)
        weigh<T>(shared, p, at, t);
#pragma unroll
    for (int first = 0; first < T::dim; first += T::dim / 2) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = t % 128 / 32 * 16 + fragment_row(lane, 2 * half);

#pragma unroll
            for (int j = 0; j < T::dim / 16; j++) {
                const int i = 4 * (first / 8 + j) + 2 * half;

                *reinterpret_cast<float2 *>(left_half<T>(shared, group, row, fragment_column(lane, j, 0))) =
                    float2{c.o[i], c.o[i + 1]};
            }
        }
        bar_sync<128 * T::groups>(7);
        if (p.o.dtype == TANDEM_DTYPE_F32)
            put_half<T, float>(shared, p, begin, rows, first);
        else if (p.o.dtype == TANDEM_DTYPE_F16)
            put_half<T, __half>(shared, p, begin, rows, first);
        else
            put_half<T, __nv_bfloat16>(shared, p, begin, rows, first);
        if (first == 0)
            bar_sync<128 * T::groups>(7);
    }
}

/* What a warpgroup has of Q and its scales; behind it comes a barrier of the block. */
template <class T>
__device__ __forceinline__ void begin(typename T::Shared &shared, const td_params_attention &p, const Place &at,
                                      Consumer<T> &c)
{
    const int thread = int(threadIdx.x) % 128, group = int(threadIdx.x) / 128;
    const int part = T::part(group);
    const int64_t q_row = int64_t(at.bh) * p.q_pad + at.row0 + 64 * part; /* padded to 128 in memory */

    if (group >= at.active)
        return;
    if constexpr (T::q_steps > 0) {
        if (group == part) /* for all that have these rows: behind the barrier */
            copy_swizzled<64, 32 * T::q_steps, 32 * T::q_steps>(shared.q + part * 64 * 32 * T::q_steps,
                                                                (const uint8_t *)p.q_codes + q_row * T::dim, T::dim, thread);
        cp_async_commit();
    }
    const float q_scale = thread < 64 ? p.q_scale[q_row + thread] : 0.0f;
    if (thread == 0)
        shared.free_keys[group] =
            p.causal ? min(int(p.kv_len), at.row0 + 64 * part + at.reach) : int(p.kv_len);
    c.load_q((const uint8_t *)p.q_codes + (q_row + thread / 32 * 16) * T::dim, thread % 32);
    if (thread < 64)
        shared.row_scale[64 * group + thread] = __fmul_rn(q_scale, __fmul_rn(p.scale, TD_LOG2_E));
    if constexpr (T::q_steps > 0)
        cp_async_wait<0>();
}

template <class T>
__device__ __forceinline__ void consume(typename T::Shared &shared, const td_params_attention &p, const Place &at,
                                        Consumer<T> &c)
{
    constexpr int pieces = Consumer<T>::kPieces;
    const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0); /* the compiler sees that a warp agrees on it */
    const int part = T::part(group), split = T::split(group), ring = split * int(T::slots);
    const int group_row = at.row0 + 64 * part, end = int(p.kv_len);
    const uint32_t q_tile = tile_word(shared.q) + uint32_t(part * 64 * 32 * T::q_steps / 16);
    const uint32_t k_tile = tile_word(shared.k[ring]), v_tile = tile_word(shared.v[ring]);
    uint64_t *const full = shared.full + ring, *const empty = shared.empty + ring;
    constexpr uint32_t k_words = sizeof shared.k[0] / 16, v_words = sizeof shared.v[0] / 16;
    const int own_keys = p.causal ? max(0, min(end, min(group_row + 64, int(p.o.rows)) - 1 + at.reach)) : end;
    const int tiles = tiles_of<T>(int(uint32_t(own_keys + T::tile - 1) / T::tile), split);
    td_ring_place now = {0, 0}; /* the last fetch that was waited for */

    /* Registers are few: what follows from a thread's number is found anew where it is needed. */
    const auto lane_now = [] { return tid_x() % 32; };
    const auto split_now = [&] { return T::abreast > 1 ? T::split(tid_x() / 128) : split; };
    const auto all = [&] { return tiles_of<T>(int(shared.tiles), split_now()); };

#pragma unroll
    for (int row = 0; row < 2; row++) {
        c.top[row] = -CUDART_INF_F;
        c.l[row] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < T::dim / 2; i++)
        c.o[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < T::columns / 4; i++)
        c.r[i] = 0;

    if (tiles > 0) {
        float key_scale;

        const auto first_key = [&](int step) { return (step * T::splits + split_now()) * T::keys; };
        /* The scale of a thread's keys, and whether any of the warp's are masked, or bad: only those have another. */
        const auto look = [&](int step) {
            const float *scales = shared.k_scale[T::shares ? split_now() * T::abreast : step % 2] + 2 * lane_now();
            const float2 low = *reinterpret_cast<const float2 *>(scales);
            const float2 high = *reinterpret_cast<const float2 *>(scales + 64);

            key_scale = low.x;
            return !__all_sync(~0u, low.x == low.y && low.x == high.x && low.x == high.y &&
                                        first_key(step) + T::keys <= shared.free_keys[tid_x() / 128]);
        };
        /* What follows is rare: the scales, as they lie in global memory, and whether any of the warp's is NaN. */
        const auto scales_of = [&](int step) {
            return p.k_scale + int64_t(shared.bhk) * p.kv_pad + first_key(step);
        };
        const auto is_bad = [&](int step) {
            const float *scales = scales_of(step) + 2 * lane_now();

            return !scales_agree(load_now(scales), load_now(scales + 64));
        };
        const auto mask = [&](auto tile, int step) {
            if (is_bad(step))
                c.template mark_bad<decltype(tile)::value>(scales_of(step));
            c.template mask<decltype(tile)::value>(
                first_key(step), int(p.kv_len),
                p.causal ? int(shared.row0 + p.kv_len - p.o.rows) + 1 + 64 * T::part(tid_x() / 128) : int(p.kv_len));
        };
        const auto set_scale = [&] {
            const int t = tid_x();
            const float *mine = shared.row_scale + t / 32 * 16 + t % 32 / 4;

            c.scale[0] = __fmul_rn(mine[0], key_scale);
            c.scale[1] = __fmul_rn(mine[8], key_scale);
        };
        const int64_t dump_row = int64_t(at.bh) * p.q_pad + group_row + tid_x() % 128 / 32 * 16;
        const auto mask_first = [&](int step) {
            if (is_bad(step)) {
                key_scale = largest_scale<T>(scales_of(step), lane_now());
                set_scale();
            }
            mask(Number<0>(), step);
        };

        wait_or_trap(full[0], td_ring_full_parity(now));
        c.issue_qk(q_tile, k_tile);
        bool odd = look(0); /* keys of the step are masked or bad */
        set_scale();
        wgmma_wait<0>();
        wgmma_hold(c.s);
        warp_arrive(empty[0]);
        if (T::dump)
            dump_s<T, 0>(p, c, dump_row, lane_now(), first_key(0));
        if (odd)
            mask_first(0);
        c.set_base(c.l);

        /* From S of a tile to P V of it and S of the next one, both of the next fetch. Without a next tile, S is of what
         * lies there, and not used. */
        const auto attend = [&](auto tile, int step) {
            constexpr int number = decltype(tile)::value, kept = T::one_p ? 0 : number;
            const bool begins = number == 0 && r_begins(step);

            if (T::slots <= 2)
                now.slot = T::slots == 2 ? number : 0; /* what the compiler cannot know */
            const td_ring_place next = td_ring_next(now, T::slots);
            const bool there = is_there(full[next.slot], td_ring_full_parity(next));

            if (!T::early) {
                c.template exponentials<kept, 0, pieces / 2>();
                wgmma_wait<0>(); /* R of the tile before */
                wgmma_hold(c.r);
                if (number == 1 || step > 0)
                    warp_arrive(empty[now.slot]);
                if (begins)
                    c.flush(c.l);
                c.template exponentials<kept, pieces / 2, pieces>();
            } else {
                if (begins)
                    c.flush(c.l);
                c.template exponentials<kept, 0, pieces>();
            }
            c.template check<kept>(c.l);
            if (__builtin_expect(odd, 0))
                c.template correct<kept>();
            if (T::dump)
                dump_p<T, kept>(p, c, dump_row, lane_now(), first_key(step) + (number - kept) * T::tile);
            if (!there)
                wait_or_trap(full[next.slot], td_ring_full_parity(next));
            c.issue_qk(q_tile, k_tile + next.slot * k_words);
            c.template issue_pv<kept>(v_tile + next.slot * v_words, !begins);
            now = next;
        };
        /* Waits for S, and where `early` for R. */
        const auto await = [&](bool more) {
            wgmma_wait<T::early ? 0 : 1>();
            wgmma_hold(c.s);
            if (T::early) {
                wgmma_hold(c.r);
                if (more)
                    warp_arrive(empty[now.slot]);
            }
        };

#pragma unroll 1
        for (int step = 0;; step++) {
            attend(Number<0>(), step);
            const bool second = 2 * step + 1 < tiles;
            await(second);
            if (!second)
                break;
            if (T::dump)
                dump_s<T, 1>(p, c, dump_row, lane_now(), first_key(step));
            if (__builtin_expect(odd, 0))
                mask(Number<1>(), step);
            attend(Number<1>(), step);
            odd = look(step + 1);
            set_scale();
            const bool more = 2 * step + 2 < tiles;
            await(more);
            if (!more)
                break;
            if (T::dump)
                dump_s<T, 0>(p, c, dump_row, lane_now(), first_key(step + 1));
            if (__builtin_expect(odd, 0))
                mask_first(step + 1);
        }
        wgmma_wait<0>();
        wgmma_hold(c.r);
        if (T::abreast > 1 && tiles < all())
            warp_arrive(empty[now.slot]);
        c.flush(c.l);
    }
    if (T::abreast > 1 && tiles < all()) /* what other warpgroups have yet to see */
        for (int fetch = tiles ? tiles + 1 : 0; fetch <= all(); fetch++) {
            now = td_ring_of(uint32_t(fetch), T::slots);
            wait_or_trap(full[now.slot], td_ring_full_parity(now));
            warp_arrive(empty[now.slot]);
        }

    if constexpr (T::shares) {
        merge<T>(shared, p, c);
    } else {
        const int t = tid_x();
        const float *v_scale = shared.v_scale, *v_mean = shared.v_mean;

        if constexpr (T::v_last) { /* where Q was */
            float *scales = reinterpret_cast<float *>(shared.q + t / 128 * 64 * 32 * T::q_steps);

            static_assert(64 * 32 * T::q_steps >= 8 * T::dim, "no room");
            const int64_t channel = int64_t(shared.bhk) * T::dim + t % 128;
            const float scale = p.v_scale[channel], mean = p.v_mean ? p.v_mean[channel] : 0.0f;
            bar_sync<128>(uint32_t(1 + t / 128));
            scales[t % 128] = scale;
            scales[128 + t % 128] = mean;
            bar_sync<128>(uint32_t(1 + t / 128));
            v_scale = scales;
            v_mean = scales + 128;
        }
        write_rows<T>(p, shared.bh, v_scale, v_mean, int(shared.row0) + t / 32 * 16, t % 32, c);
    }
}

} // namespace ring

template <class T> __device__ __forceinline__ void attend_ring(const td_params_attention &p)
{
    /* attn_8b_wgmma's: one more array would move that of other kernels in their shared memory. */
    TD_DYNAMIC_SHARED(1024, hopper_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(hopper_bytes);
    const int thread = int(threadIdx.x);
    const bool given_up = p.cancel && thread == 0 && *(const volatile uint32_t *)p.cancel;
    ring::Place at = {ring::place_of_block<T>(p), 0, 0};

    at.active = T::shares ? int(p.o.rows > uint32_t(at.row0)) * T::groups : (min(T::rows, int(p.o.rows) - at.row0) + 63) / 64;
    at.tiles = (at.keys + T::tile - 1) / T::tile;

    /* Barriers, the eight rows of ones of each slot; whether the work is given up. */
    const auto start = [&] {
        if (thread == 0) { /* what is asked for again at the end, where registers are few */
            shared.bh = at.bh;
            shared.bhk = at.bhk;
            shared.row0 = uint32_t(at.row0);
            shared.tiles = uint32_t(at.tiles);
        }
        if (thread == 0) /* a loop, not a predicate: with that, racecheck sees other threads' copies hit by it */
#pragma unroll 1
            for (uint32_t slot = 0; slot < T::all_slots; slot++) {
                mbarrier_init(shared_address(&shared.full[slot]), 32 * T::team_warps);
                mbarrier_init(shared_address(&shared.empty[slot]), 4 * (T::shares ? T::abreast : at.active));
            }
        constexpr int words = 8 * T::tile / 4;
        for (int i = thread; i < int(T::all_slots) * words; i += T::threads)
            *reinterpret_cast<uint32_t *>(shared.v[i / words] + T::dim * T::tile + i % words * 4) = 0x38383838u;
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

#define TD_INLINE_ENTRY(name, dim, groups)                                                                    \
    extern "C" __global__ void __launch_bounds__(TD_HOPPER_THREADS(groups), 1)                                \
        name##_d##dim(const __grid_constant__ td_params_attention p)                                          \
    {                                                                                                         \
        td::attend_ring<td::ring::Tile<dim, int(groups)>>(p);                                                 \
    }
#define TD_INLINE_SPLIT_ENTRY(dim)                                                                             \
    extern "C" __global__ void __launch_bounds__(TD_HOPPER_THREADS(TD_HOPPER_INLINE_SPLITS(dim)), 1)           \
        attn_8b_wgmma_inline_split_d##dim(const __grid_constant__ td_params_attention p)                       \
    {                                                                                                          \
        constexpr int splits = int(TD_HOPPER_INLINE_SPLITS(dim));                                              \
        td::attend_ring<td::ring::Tile<dim, splits, splits>>(p);                                               \
    }
#endif
