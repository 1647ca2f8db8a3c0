/* Attention on int8 codes of Q and K and e4m3 codes of V by wgmma where a block has 47 KB of shared memory:
 * `attn_8b_wgmma_inline`, sm_90a.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The arithmetic is that of attn_8b_wgmma (hopper.cuh), and so is every bit of O and lse. A block has three warpgroups
 * that compute, above d64 two, as Q lies in registers. K and V go through a ring of slots of 64 keys each, into which one
 * warpgroup fetches (kernels/ring.h). A warpgroup has S of one tile of keys and P of two (t: tile):
 *
 *   tensor     S = Q K(t), R += P V(t-1) --|           | S = Q K(t+1), R += P V(t) --
 *   threads                                | P = ex2 S |                            | P = ex2 S ...
 *
 * R adds up four tiles, so only every fourth time there is an O += R.
 *
 * Barriers. A slot's `full` has one arrival a phase of each thread that fetches, which the copies that it has started make
 * when they are there: nobody waits for copies. Its `empty` has one of each warp that computes, four for each warpgroup that
 * has rows (the others leave at once). Each of those warps goes through all fetches of the block in their order, also where
 * its rows see none of the keys any more. About round n of a slot:
 *
 *   each thread that fetches   waits for phase n - 1 of empty, then starts copies, which arrive at full: all end phase n
 *   each warp that computes    waits for phase n of full, then at its fence, lets wgmma read, waits for wgmma, then arrives at
 *                              empty, once
 *
 * - Nobody writes what is still read: phase n - 1 of empty ends with the last arrival behind the reads of round n - 1.
 * - A wait is for the phase in progress or the one right before it, so that a parity says which. Of empty: phase n cannot
 *   end before its warps arrive, behind their wait for full of round n, for which this very thread has yet to write; and
 *   it has waited for phase n - 2 itself. Of full: a warp has waited for phase n - 1 itself; phase n + 1 cannot end
 *   before round n + 1 is written, behind phase n of empty, behind this very warp's arrival.
 * - Nobody waits for ever: copies come whether or not their thread waits for room. A warp that computes waits for V(t) with
 *   K(t+1) in hand and nothing else, so with two slots or more somebody can always go on.
 * - Behind the last fetches nobody arrives at empty, as nobody waits there.
 * Every wait ends after ten seconds: then the kernel traps, which loses the device instead of hanging it. Behind the block's
 * first barrier there is no other but setmaxnreg, which waits for the registers that the fetching warpgroup gives back
 * before all else.
 *
 * Threads: TD_HOPPER_THREADS(TD_HOPPER_INLINE_GROUPS(d)). Registers of a thread that computes: 232, or 160 up to d64.
 * Shared bytes: TD_HOPPER_INLINE_SHARED_BYTES(d), at most 47696 of 48128.
 */
#include "hopper.cuh"
#include "kernels/ring.h"

#if TD_HAVE_WGMMA

namespace td {
namespace ring {

constexpr uint64_t kLimitNs = 10000000000u;

template <int Dim> struct Tile {
    static constexpr unsigned d = Dim;
    static constexpr int dim = Dim, groups = int(TD_HOPPER_INLINE_GROUPS(d)), rows = 64 * groups;
    static constexpr int threads = 128 * (groups + 1);
    static constexpr int keys = int(TD_HOPPER_KEYS), tile = int(TD_TILE_KEYS); /* of a step; of a slot */
    static constexpr uint32_t slots = TD_HOPPER_INLINE_SLOTS(d);
    static constexpr int qk_row = int(TD_HOPPER_ROW_BYTES(d)); /* bytes of a row of K */
    static constexpr int columns = Dim + 8;                    /* of P V: the channels, and eight times P's sum */
    /* V ends where K does, and there the ones are: they are written once. */
    static constexpr int ones = tile * qk_row, v = ones - Dim * tile;

    struct Shared {
        uint8_t slot[slots][TD_HOPPER_INLINE_SLOT_BYTES(d)];
        float row_scale[rows], v_scale[Dim], v_mean[Dim]; /* a row's with the softmax's */
        uint64_t full[slots], empty[slots];
    };
    static_assert(sizeof(Shared) == TD_HOPPER_INLINE_SHARED_BYTES(d), "the launch asks for another size");
    static_assert(sizeof(Shared) <= 47 * 1024, "more than a block has in a command buffer");
    static_assert(ones + 8 * tile <= int(TD_HOPPER_INLINE_SLOT_BYTES(d)) && v >= 0, "V does not fit into a slot");
    static_assert(TD_HOPPER_INLINE_SLOT_BYTES(d) % (8 * qk_row) == 0 &&
                      TD_HOPPER_INLINE_SLOT_BYTES(d) % (8 * tile) == 0 && v % (8 * tile) == 0,
                  "swizzled rows begin elsewhere");
};

/* A block's share of the work. */
struct Place : PlaceOf<int64_t> {
    int active; /* warpgroups that have rows */
    int tiles;
};

__device__ __forceinline__ bool is_there(const uint64_t &barrier, uint32_t parity)
{
    return mbarrier_test_wait(shared_address(&barrier), parity);
}

__device__ __forceinline__ void wait_or_trap(const uint64_t &barrier, uint32_t parity)
{
    uint64_t begin = 0;

    for (uint32_t tries = 1; !mbarrier_try_wait(shared_address(&barrier), parity); tries++)
        if (tries % 1024 == 0) {
            const uint64_t now = globaltimer();

            begin = begin ? begin : now;
            if (now - begin > kLimitNs)
                __trap();
        }
}

/* The fetching warpgroup. Each thread has its part of every fetch, at addresses that differ from fetch to fetch by the same
 * for all of its copies; nobody waits for copies, as they arrive at full themselves. */
template <class T>
__device__ __forceinline__ void produce(typename T::Shared &shared, const td_params_attention &p, const Place &at)
{
    constexpr int k_pieces = T::dim / 16, k_abreast = k_pieces & -k_pieces, k_rows = 128 / k_abreast; /* at once */
    constexpr int v_rows = 128 / (T::tile / 16);
    constexpr int kinds = k_rows < 8 ? 8 / k_rows : 1; /* of rows, by where the swizzle puts their pieces */
    static_assert(T::tile % k_rows == 0 && T::dim % v_rows == 0, "every thread copies as much");
    const int t = int(threadIdx.x) % 128;
    const int k_row = t / k_abreast, k_byte = t % k_abreast * 16;
    const int v_row = t / (T::tile / 16), v_byte = t % (T::tile / 16) * 16;
    const uint8_t *k = (const uint8_t *)p.k_codes + (at.bhk * p.kv_pad + k_row) * T::dim + k_byte;
    const uint8_t *v = (const uint8_t *)p.v_codes + (at.bhk * T::dim + v_row) * p.kv_pad + v_byte;
    const int64_t v_further = int64_t(v_rows) * p.kv_pad;
    const uint32_t tiles = uint32_t(at.tiles), first = shared_address(shared.slot[0]);
    const uint32_t v_to = first + T::v + swizzled<T::tile>(uint32_t(v_row * T::tile + v_byte));
    uint32_t k_to[kinds][k_pieces / k_abreast];
    td_ring_place place = {0, 0};

#pragma unroll
    for (int i = 0; i < kinds; i++)
#pragma unroll
        for (int j = 0; j < k_pieces / k_abreast; j++)
            k_to[i][j] =
                first + swizzled<T::qk_row>(uint32_t((k_row + i * k_rows) * T::qk_row + k_byte + 16 * k_abreast * j));

    const auto fetch = [&](bool is_v) {
        const uint32_t slot = place.slot * uint32_t(sizeof shared.slot[0]);

        wait_or_trap(shared.empty[place.slot], td_ring_empty_parity(place));
        if (is_v) {
            const uint8_t *from = v;

#pragma unroll
            for (int r = 0; r < T::dim / v_rows; r++, from += v_further)
                cp_async_16(v_to + slot + uint32_t(r * v_rows * T::tile), from);
            v += T::tile;
        } else {
#pragma unroll
            for (int r = 0; r < T::tile / k_rows; r++)
#pragma unroll
                for (int j = 0; j < k_pieces / k_abreast; j++)
                    cp_async_16(k_to[r % kinds][j] + slot + uint32_t(r / kinds * kinds * k_rows * T::qk_row),
                                k + r * k_rows * T::dim + 16 * k_abreast * j);
            k += T::tile * T::dim;
        }
        cp_async_arrive(shared_address(&shared.full[place.slot]));
        place = td_ring_next(place, T::slots);
    };
#pragma unroll 1
    for (uint32_t n = 0; n < td_ring_fetches(tiles); n++)
        fetch(td_ring_is_v(n, tiles));
    cp_async_commit(); /* no thread leaves before its copies are there */
    cp_async_wait<0>();
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
    template <int Tile> __device__ __forceinline__ void issue_pv(uint32_t v, bool add = true)
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
    const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0); /* the compiler sees that a warp agrees on it */
    const int group_row = at.row0 + 64 * group, end = int(p.kv_len);
    const int free_keys = p.causal ? min(end, group_row + at.reach) : end; /* that all rows may attend to */
    const uint32_t k_tile = tile_word(shared.slot[0]), v_tile = tile_word(shared.slot[0] + T::v);
    constexpr uint32_t slot_words = sizeof shared.slot[0] / 16;
    Consumer<T> c;

    /* Registers are few: what follows from a thread's number is found anew where it is needed. */
    const auto lane_now = [] { return tid_x() % 32; };
    const auto row_now = [&] { return group_row + tid_x() % 128 / 32 * 16; }; /* the warp's first */

    c.load_q((const uint8_t *)p.q_codes + (at.bh * p.q_pad + row_now()) * T::dim, lane_now());
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
        const float *k_scale = p.k_scale + at.bhk * p.kv_pad;
        float2 low = {}, high = {}; /* scales of the next step's keys, a step being two tiles */
        float key_scale;
        td_ring_place next = {0, 0};
        uint32_t v_slot = 0; /* of the tile before */

        const auto read_scales = [&](int step) {
            if (2 * step < at.tiles) {
                const float *scales = k_scale + step * T::keys + 2 * lane_now();

                low = load_now(scales);
                high = load_now(scales + 64);
            }
        };
        /* The scale of a thread's keys, and whether any of the warp's are masked, or bad: only those have another. */
        const auto look = [&](int step) {
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
        const auto are_there = [&](const td_ring_pair &of) {
            return is_there(shared.full[of.k.slot], td_ring_full_parity(of.k)) &
                   is_there(shared.full[of.v.slot], td_ring_full_parity(of.v));
        };
        const auto wait_both = [&](const td_ring_pair &of) {
            wait_or_trap(shared.full[of.k.slot], td_ring_full_parity(of.k));
            wait_or_trap(shared.full[of.v.slot], td_ring_full_parity(of.v));
        };

        read_scales(0);
        bool odd = look(0); /* keys of the step are masked or bad */
        wait_or_trap(shared.full[0], td_ring_full_parity(next));
        fence_proxy_async();
        c.issue_qk(k_tile);
        next = td_ring_next(next, T::slots);
        wgmma_wait<0>();
        wgmma_hold(c.s);
        warp_arrive(shared.empty[0]);
        set_scale();
        if (odd)
            mask_first(0);
        c.set_base(c.l);

#pragma unroll 1
        for (int step = 0;; step++) {
            /* Without a next tile, S is of what lies where V does, and not used. */
            bool more = 2 * step + 1 < at.tiles;
            td_ring_pair now = td_ring_take(&next, more, T::slots);
            bool there = are_there(now);

            c.template exponentials<0, 0, pieces / 2>();
            wgmma_wait<0>(); /* R of the step before */
            wgmma_hold(c.r);
            if (step > 0)
                warp_arrive(shared.empty[v_slot]);
            if (r_begins(step))
                c.flush(c.l);
            c.template exponentials<0, pieces / 2, pieces>();
            c.template check<0>(c.l);
            if (__builtin_expect(odd, 0))
                c.template correct<0>();
            if (!there)
                wait_both(now);
            fence_proxy_async();
            c.issue_qk(k_tile + now.k.slot * slot_words);
            c.template issue_pv<0>(v_tile + now.v.slot * slot_words, !r_begins(step));
            wgmma_wait<1>(); /* S of the second tile */
            wgmma_hold(c.s);
            if (!more)
                break;
            warp_arrive(shared.empty[now.k.slot]);
            v_slot = now.v.slot;
            if (__builtin_expect(odd, 0))
                mask(Number<1>(), step);

            more = 2 * step + 2 < at.tiles;
            now = td_ring_take(&next, more, T::slots);
            there = are_there(now);
            read_scales(step + 1);
            c.template exponentials<1, 0, pieces / 2>();
            wgmma_wait<0>(); /* R of the first tile */
            warp_arrive(shared.empty[v_slot]);
            c.template exponentials<1, pieces / 2, pieces>();
            c.template check<1>(c.l);
            if (__builtin_expect(odd, 0))
                c.template correct<1>();
            if (!there)
                wait_both(now);
            fence_proxy_async();
            c.issue_qk(k_tile + now.k.slot * slot_words);
            c.template issue_pv<1>(v_tile + now.v.slot * slot_words);
            odd = look(step + 1);
            set_scale();
            wgmma_wait<1>(); /* S of the next step */
            wgmma_hold(c.s);
            if (!more)
                break;
            warp_arrive(shared.empty[now.k.slot]);
            v_slot = now.v.slot;
            if (__builtin_expect(odd, 0))
                mask_first(step + 1);
        }
        wgmma_wait<0>();
        wgmma_hold(c.r);
        c.flush(c.l);
    }

    const int lane = lane_now(), row0 = row_now();
    write_rows<T>(p, at.bh, shared.v_scale, shared.v_mean, row0, lane, c);
}

} // namespace ring

template <class T> __device__ __forceinline__ void attend_ring(const td_params_attention &p)
{
    /* attn_8b_wgmma's: one more array would move that of other kernels in their shared memory. */
    TD_DYNAMIC_SHARED(1024, hopper_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(hopper_bytes);
    const int thread = int(threadIdx.x);
    ring::Place at = {place<T, int64_t>(p), 0, 0};

    at.active = (min(T::rows, int(p.o.rows) - at.row0) + 63) / 64;
    at.tiles = (at.keys + T::tile - 1) / T::tile;

    if (thread < int(T::slots)) {
        mbarrier_init(shared_address(&shared.full[thread]), 128);
        mbarrier_init(shared_address(&shared.empty[thread]), 4 * at.active);
    }
    if (thread < 64 * at.active) /* rows are padded to 128 in memory */
        shared.row_scale[thread] =
            __fmul_rn(p.q_scale[at.bh * p.q_pad + at.row0 + thread], __fmul_rn(p.scale, TD_LOG2_E));
    if (thread < T::dim) {
        shared.v_scale[thread] = p.v_scale[at.bhk * T::dim + thread];
        shared.v_mean[thread] = p.v_mean ? p.v_mean[at.bhk * T::dim + thread] : 0.0f;
    }
    constexpr int words = 8 * T::tile / 4; /* the eight rows of ones */
    for (int i = thread; i < int(T::slots) * words; i += T::threads)
        *reinterpret_cast<uint32_t *>(shared.slot[i / words] + T::ones + i % words * 4) = 0x38383838u;
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

#define TD_INLINE_ENTRY(dim)                                                                 \
    extern "C" __global__ void __launch_bounds__(TD_HOPPER_THREADS(TD_HOPPER_INLINE_GROUPS(unsigned(dim))), 1) \
        attn_8b_wgmma_inline_d##dim(const __grid_constant__ td_params_attention p)           \
    {                                                                                        \
        if (!td::cancelled(p.cancel))                                                        \
            td::attend_ring<td::ring::Tile<dim>>(p);                                        \
    }
TD_INLINE_ENTRY(32)
TD_INLINE_ENTRY(64)
TD_INLINE_ENTRY(96)
TD_INLINE_ENTRY(128)
#endif
