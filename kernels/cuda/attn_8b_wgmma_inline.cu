/* Attention on int8 codes of Q and K and e4m3 codes of V by wgmma where a block has 47 KB of shared memory:
 * `attn_8b_wgmma_inline` and `attn_8b_wgmma_inline_short`, sm_90a.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The arithmetic is that of attn_8b_wgmma (hopper.cuh), and so is every bit of O and lse. A block has three warpgroups
 * that compute, at d128 two, as Q lies in registers; where there are few blocks, shorter ones of two. K and V go through a
 * ring of slots of 64 keys each, into which four more warps fetch (kernels/ring.h). A warpgroup has S of one tile of keys
 * and P of two (t: tile):
 *
 *   tensor     S = Q K(t), R += P V(t-1) --|           | S = Q K(t+1), R += P V(t) --
 *   threads                                | P = ex2 S |                            | P = ex2 S ...
 *
 * R adds up four tiles, so only every fourth time there is an O += R.
 *
 * Barriers. A slot's `full` has one arrival a phase of each thread of the team that fetches, once it has waited for its copies
 * and told wgmma of them. Its `empty` has one of each warp that computes, four for each warpgroup that has rows (the others
 * leave at once). Each of those warps goes through all fetches of the block in their order, also where its rows see none
 * of the keys any more. About round n of a slot:
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
 * - Behind the last fetches nobody arrives at empty, as nobody waits there.
 * Every wait ends after some ten seconds: then the kernel traps, which loses the device instead of hanging it.
 *
 * Scales of keys come with K of every second tile, into one of two places in turn: a step's are read (`look`) before its first
 * fetch is given back, and overwritten by a fetch four later, for which that has to have happened, as there are at most four
 * slots.
 *
 * Threads: TD_HOPPER_THREADS(groups). Registers of a thread that computes: 232 or 160 with 2 or 3 warpgroups.
 * Shared bytes: TD_HOPPER_INLINE_SHARED_BYTES(d, groups), at most 47152 of 48128.
 */
#include "hopper.cuh"
#include "ring.cuh"

#if TD_HAVE_WGMMA

namespace td {
namespace ring {

template <int Dim, int Groups> struct Tile {
    static constexpr unsigned d = Dim;
    static constexpr int dim = Dim, groups = Groups, rows = 64 * Groups;
    static constexpr int threads = 128 * (Groups + 1);
    static constexpr int keys = int(TD_HOPPER_KEYS), tile = int(TD_TILE_KEYS); /* of a step; of a slot */
    static constexpr uint32_t slots = TD_HOPPER_INLINE_SLOTS(d), teams = TD_HOPPER_INLINE_TEAMS(d);
    static constexpr int team_warps = 4 / int(teams);
    static constexpr uint32_t tiles_ahead = slots == 2 ? 4 : 0; /* brought into L2, where so few are under way */
    static constexpr int qk_row = int(TD_HOPPER_ROW_BYTES(d)); /* bytes of a row of K */
    static constexpr int columns = Dim + 8;                    /* of P V: the channels, and eight times P's sum */

    struct Shared {
        uint8_t k[slots][tile * qk_row];
        uint8_t v[slots][columns * tile];
        float v_scale[Dim], v_mean[Dim];
        float k_scale[2][keys]; /* by step */
        float row_scale[rows];  /* with the softmax's */
        uint64_t full[slots], empty[slots];
    };
    static_assert(sizeof(Shared) == TD_HOPPER_INLINE_SHARED_BYTES(d, unsigned(Groups)), "the launch asks for another size");
    static_assert(sizeof(Shared) <= 47 * 1024, "more than a block has in a command buffer");
    static_assert(teams <= slots && slots <= 4, "see above");
    static_assert(sizeof(Shared::k) % (8 * tile) == 0 && columns % 8 == 0, "swizzled rows begin elsewhere");
};

/* A block's share of the work. */
struct Place : PlaceOf<uint32_t> {
    int active; /* warpgroups that have rows */
    int tiles;
};

__device__ __forceinline__ bool is_there(const uint64_t &barrier, uint32_t parity)
{
    return mbarrier_test_wait(shared_address(&barrier), parity);
}

/* A warp of a team, which has every so many fetches. A thread's copies go to and come from addresses that differ from
 * fetch to fetch by the same. */
template <class T>
__device__ __forceinline__ void produce(typename T::Shared &shared, const td_params_attention &p, const Place &at)
{
    constexpr int threads = 32 * T::team_warps;
    constexpr int k_pieces = T::dim / 16, k_abreast = k_pieces & -k_pieces, k_rows = threads / k_abreast; /* at once */
    constexpr int v_rows = threads / (T::tile / 16);
    constexpr int kinds = k_rows < 8 ? 8 / k_rows : 1; /* of rows, by where the swizzle puts their pieces */
    static_assert(T::tile % k_rows == 0 && T::dim % v_rows == 0 && v_rows % 8 == 0, "every thread copies as much");
    const uint32_t team = __shfl_sync(~0u, threadIdx.x % 128 / threads, 0); /* the compiler sees that a warp agrees on it */
    const int t = int(threadIdx.x) % threads;
    const int k_row = t / k_abreast, k_byte = t % k_abreast * 16;
    const int v_row = t / (T::tile / 16), v_byte = t % (T::tile / 16) * 16;
    const int64_t plane = at.bhk, key = team * T::tile;
    const uint8_t *k_plane = (const uint8_t *)p.k_codes + plane * p.kv_pad * T::dim;
    const uint8_t *v_plane = (const uint8_t *)p.v_codes + plane * p.kv_pad * T::dim;
    const uint8_t *k = k_plane + (key + k_row) * T::dim + k_byte;
    const uint8_t *v = v_plane + v_row * int64_t(p.kv_pad) + key - T::tile + v_byte;
    const float *k_scale = p.k_scale + plane * p.kv_pad + key + 4 * t;
    const int64_t v_further = int64_t(v_rows) * p.kv_pad;
    const uint32_t tiles = uint32_t(at.tiles);
    const uint32_t k_to = shared_address(shared.k[0]);
    const uint32_t v_to = shared_address(shared.v[0]) + swizzled<T::tile>(uint32_t(v_row * T::tile + v_byte));
    uint32_t k_at[kinds][k_pieces / k_abreast];

    if (team >= T::teams)
        return;
#pragma unroll
    for (int i = 0; i < kinds; i++)
#pragma unroll
        for (int j = 0; j < k_pieces / k_abreast; j++)
            k_at[i][j] =
                k_to + swizzled<T::qk_row>(uint32_t((k_row + i * k_rows) * T::qk_row + k_byte + 16 * k_abreast * j));

#pragma unroll 1
    for (uint32_t n = team; n < td_ring_fetches(tiles); n += T::teams) {
        const td_ring_place place = td_ring_of(n, T::slots);
        const uint32_t k_slot = place.slot * uint32_t(sizeof shared.k[0]);
        const uint32_t v_slot = place.slot * uint32_t(sizeof shared.v[0]);

        wait_or_trap(shared.empty[place.slot], td_ring_empty_parity(place));
        if (td_ring_has_k(n, tiles)) {
#pragma unroll
            for (int r = 0; r < T::tile / k_rows; r++)
#pragma unroll
                for (int j = 0; j < k_pieces / k_abreast; j++)
                    cp_async_16(k_at[r % kinds][j] + k_slot + uint32_t(r / kinds * kinds * k_rows * T::qk_row),
                                k + r * k_rows * T::dim + 16 * k_abreast * j);
            if (n % 2 == 0 && t < T::keys / 4)
                cp_async_16(shared_address(shared.k_scale[n / 2 % 2] + 4 * t), k_scale);
        }
        if (td_ring_has_v(n)) {
            const uint8_t *from = v;

#pragma unroll
            for (int r = 0; r < T::dim / v_rows; r++, from += v_further)
                cp_async_16(v_to + v_slot + uint32_t(r * v_rows * T::tile), from);
        }
        cp_async_commit();
        if (n == 0) /* nobody needs them before the last fetch is there */
            for (int c = t; c < T::dim; c += threads) {
                shared.v_scale[c] = p.v_scale[plane * T::dim + c];
                shared.v_mean[c] = p.v_mean ? p.v_mean[plane * T::dim + c] : 0.0f;
            }
        if (T::tiles_ahead > 0 && n + T::tiles_ahead < tiles) {
            const int64_t first = (n + T::tiles_ahead) * T::tile;

            for (int at_byte = 128 * t; at_byte < T::tile * T::dim; at_byte += 128 * threads)
                prefetch_l2(k_plane + first * T::dim + at_byte);
            for (int c = t; c < T::dim && first % 128 == 0; c += threads)
                prefetch_l2(v_plane + c * int64_t(p.kv_pad) + first);
        }
        k += T::teams * T::tile * T::dim;
        k_scale += T::teams * T::tile;
        v += T::teams * T::tile;
        cp_async_wait<0>();
        fence_proxy_async();
        mbarrier_arrive(shared_address(&shared.full[place.slot]));
    }
}

/* A consumer's registers. */
template <class T> struct Consumer : td::Consumer<T> {
    uint32_t q[T::dim / 32][4];
    using td::Consumer<T>::s, td::Consumer<T>::p, td::Consumer<T>::r;

    __device__ __forceinline__ void load_q(const uint8_t *rows, int lane)
    {
        const uint8_t *from = rows + lane / 4 * T::dim + 4 * (lane % 4);

#pragma unroll
        for (int step = 0; step < T::dim / 32; step++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                q[step][i] = ld_global(from + 32 * step + i % 2 * 8 * T::dim + i / 2 * 16);
    }

    /* S of a tile of keys; k is a tile_word(). */
    __device__ __forceinline__ void issue_qk(uint32_t k)
    {
        wgmma_fence();
        wgmma_s8<false>(s, q[0], descriptor<T::qk_row>(k));
#pragma unroll
        for (int step = 1; step < T::dim / 32; step++)
            wgmma_s8<true>(s, q[step], descriptor<T::qk_row>(k + 2 * step));
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

template <class T>
__device__ __forceinline__ void consume(typename T::Shared &shared, const td_params_attention &p, const Place &at)
{
    constexpr int pieces = Consumer<T>::kPieces;
    const int thread = int(threadIdx.x) % 128;
    const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0); /* the compiler sees that a warp agrees on it */
    const int group_row = at.row0 + 64 * group, end = int(p.kv_len);
    const int free_keys = p.causal ? min(end, group_row + at.reach) : end; /* that all rows may attend to */
    const int64_t q_row = int64_t(at.bh) * p.q_pad + group_row;            /* rows are padded to 128 in memory */
    const uint32_t k_tile = tile_word(shared.k[0]), v_tile = tile_word(shared.v[0]);
    constexpr uint32_t k_words = sizeof shared.k[0] / 16, v_words = sizeof shared.v[0] / 16;
    Consumer<T> c;

    /* Registers are few: what follows from a thread's number is found anew where it is needed. */
    const auto lane_now = [] { return tid_x() % 32; };
    const auto row_now = [&] { return group_row + tid_x() % 128 / 32 * 16; }; /* the warp's first */

    const float q_scale = thread < 64 ? p.q_scale[q_row + thread] : 0.0f;
    c.load_q((const uint8_t *)p.q_codes + (q_row + thread / 32 * 16) * T::dim, thread % 32);
    if (thread < 64)
        shared.row_scale[64 * group + thread] = __fmul_rn(q_scale, __fmul_rn(p.scale, TD_LOG2_E));
    bar_sync<128>(1 + group);
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

    if (at.tiles > 0) {
        const float *k_scale = p.k_scale + int64_t(at.bhk) * p.kv_pad;
        td_ring_place now = {0, 0}; /* the last fetch that was waited for */
        float key_scale;

        /* The scale of a thread's keys, and whether any of the warp's are masked, or bad: only those have another. */
        const auto look = [&](int step) {
            const float *scales = shared.k_scale[step % 2] + 2 * lane_now();
            const float2 low = *reinterpret_cast<const float2 *>(scales);
            const float2 high = *reinterpret_cast<const float2 *>(scales + 64);

            key_scale = low.x;
            return !scales_agree(low, high) || (step + 1) * T::keys > free_keys;
        };
        const auto mask = [&](auto tile, int step) {
            const int lane = lane_now(), reach = p.causal ? row_now() + at.reach : end;
            const float *scales = k_scale + step * T::keys;

            c.template mask<decltype(tile)::value>(scales, lane, step * T::keys, end, reach);
        };
        const auto set_scale = [&] { c.set_scale(shared.row_scale + 64 * group, key_scale); };
        const auto mask_first = [&](int step) {
            const float *scales = k_scale + step * T::keys;

            key_scale = largest_scale<T>(scales, lane_now());
            set_scale();
            mask(Number<0>(), step);
        };

        wait_or_trap(shared.full[0], td_ring_full_parity(now));
        c.issue_qk(k_tile);
        bool odd = look(0); /* keys of the step are masked or bad */
        set_scale();
        wgmma_wait<0>();
        wgmma_hold(c.s);
        warp_arrive(shared.empty[0]);
        if (odd)
            mask_first(0);
        c.set_base(c.l);

        /* From S of a tile to P V of it and S of the next one, both of the next fetch. Without a next tile, S is of what
         * lies there, and not used. */
        const auto attend = [&](auto tile, int step) {
            constexpr int number = decltype(tile)::value;
            const bool begins = number == 0 && r_begins(step);

            if (T::slots == 2)
                now.slot = number; /* what the compiler cannot know */
            const td_ring_place next = td_ring_next(now, T::slots);
            const bool there = is_there(shared.full[next.slot], td_ring_full_parity(next));

            c.template exponentials<number, 0, pieces / 2>();
            wgmma_wait<0>(); /* R of the tile before */
            wgmma_hold(c.r);
            if (number == 1 || step > 0)
                warp_arrive(shared.empty[now.slot]);
            if (begins)
                c.flush(c.l);
            c.template exponentials<number, pieces / 2, pieces>();
            c.template check<number>(c.l);
            if (__builtin_expect(odd, 0))
                c.template correct<number>();
            if (!there)
                wait_or_trap(shared.full[next.slot], td_ring_full_parity(next));
            c.issue_qk(k_tile + next.slot * k_words);
            c.template issue_pv<number>(v_tile + next.slot * v_words, !begins);
            now = next;
        };

#pragma unroll 1
        for (int step = 0;; step++) {
            attend(Number<0>(), step);
            wgmma_wait<1>(); /* S of the second tile */
            wgmma_hold(c.s);
            if (2 * step + 1 >= at.tiles)
                break;
            if (__builtin_expect(odd, 0))
                mask(Number<1>(), step);
            attend(Number<1>(), step);
            odd = look(step + 1);
            set_scale();
            wgmma_wait<1>(); /* S of the next step */
            wgmma_hold(c.s);
            if (2 * step + 2 >= at.tiles)
                break;
            if (__builtin_expect(odd, 0))
                mask_first(step + 1);
        }
        wgmma_wait<0>();
        wgmma_hold(c.r);
        c.flush(c.l);
    }

    const PlaceOf<uint32_t> here = place<T>(p, ctaid_x()); /* found anew, as well */
    const int t = tid_x();
    write_rows<T>(p, here.bh, shared.v_scale, shared.v_mean, here.row0 + t / 32 * 16, t % 32, c);
}

} // namespace ring

template <class T> __device__ __forceinline__ void attend_ring(const td_params_attention &p)
{
    /* attn_8b_wgmma's: one more array would move that of other kernels in their shared memory. */
    TD_DYNAMIC_SHARED(1024, hopper_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(hopper_bytes);
    const int thread = int(threadIdx.x);
    ring::Place at = {place<T>(p), 0, 0};

    at.active = (min(T::rows, int(p.o.rows) - at.row0) + 63) / 64;
    at.tiles = (at.keys + T::tile - 1) / T::tile;

    if (thread < int(T::slots)) {
        mbarrier_init(shared_address(&shared.full[thread]), 32 * T::team_warps);
        mbarrier_init(shared_address(&shared.empty[thread]), 4 * at.active);
    }
    constexpr int words = 8 * T::tile / 4; /* the eight rows of ones */
    for (int i = thread; i < int(T::slots) * words; i += T::threads)
        *reinterpret_cast<uint32_t *>(shared.v[i / words] + T::dim * T::tile + i % words * 4) = 0x38383838u;
    fence_proxy_async();
    __syncthreads();
    if (thread >= 128 * T::groups) {
        setmaxnreg_dec<T::groups == 2 ? 40 : 32>();
        ring::produce<T>(shared, p, at);
    } else {
        setmaxnreg_inc<T::groups == 2 ? 232 : 160>();
        if (thread < 128 * at.active)
            ring::consume<T>(shared, p, at);
    }
}

} // namespace td

#ifndef DIM
#define TD_INLINE_ENTRY(name, dim, groups)                                                                    \
    extern "C" __global__ void __launch_bounds__(TD_HOPPER_THREADS(groups), 1)                                \
        name##_d##dim(const __grid_constant__ td_params_attention p)                                          \
    {                                                                                                         \
        if (!td::cancelled(p.cancel))                                                                         \
            td::attend_ring<td::ring::Tile<dim, int(groups)>>(p);                                             \
    }
TD_INLINE_ENTRY(attn_8b_wgmma_inline, 32, TD_HOPPER_INLINE_GROUPS(32u))
TD_INLINE_ENTRY(attn_8b_wgmma_inline, 64, TD_HOPPER_INLINE_GROUPS(64u))
TD_INLINE_ENTRY(attn_8b_wgmma_inline, 96, TD_HOPPER_INLINE_GROUPS(96u))
TD_INLINE_ENTRY(attn_8b_wgmma_inline, 128, TD_HOPPER_INLINE_GROUPS(128u))
TD_INLINE_ENTRY(attn_8b_wgmma_inline_short, 32, TD_HOPPER_INLINE_GROUPS(32u) - 1)
TD_INLINE_ENTRY(attn_8b_wgmma_inline_short, 64, TD_HOPPER_INLINE_GROUPS(64u) - 1)
TD_INLINE_ENTRY(attn_8b_wgmma_inline_short, 96, TD_HOPPER_INLINE_GROUPS(96u) - 1)
#endif
#endif
