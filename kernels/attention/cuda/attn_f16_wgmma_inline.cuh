/* attn_f16_wgmma where a block has 47 KB of shared memory: `attn_f16_wgmma_inline`, sm_90a.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Tiles of rows and arithmetic are those of attn_f16_wgmma, but for the keys of a step,
 * TD_F16_INLINE_KEYS(d), so that bases may differ and with them the last bits. Q lies in registers.
 * K and V go through a ring of slots of a step's keys each, into which one warpgroup fetches
 * (kernels/ring_single.h). All steps of all tiles of rows of a block are one row of tiles of keys
 * to the ring: while a warpgroup adds up the last P V of its rows, it has the first Q K of the
 * next. A warpgroup (t: tile of keys):
 *
 *   tensor     S = Q K(t+1), O += P V(t) |      (the other warpgroups')      | S = Q K(t+2), O += P V(t+1)
 *   threads                              | wait for S, P = ex2 S, wait for O |
 *
 * Barriers. A slot's `full` has one arrival a phase of each thread that fetches, which the copies
 * that it has started make when they are there: nobody waits for copies. Its `empty` has one of
 * each warp that computes; all of them go through all fetches of the block in their order. About
 * round n of a slot:
 *
 *   each thread that fetches   waits for phase n - 1 of empty, then starts copies, which arrive at
 *                              full: all end phase n
 *   each warp that computes    waits for phase n of full, then at its fence, lets wgmma read, waits
 *                              for wgmma, then arrives at empty, once
 *
 * - Nobody writes what is still read: phase n - 1 of empty ends with the last arrival behind the
 *   reads of round n - 1.
 * - A wait is for the phase in progress or the one right before it, so that a parity says which. Of
 *   empty: phase n cannot end before its warps arrive, behind their wait for full of round n, for
 *   which this very thread has yet to write; and it has waited for phase n - 2 itself. Of full: a
 *   warp has waited for phase n - 1 itself; phase n + 1 cannot end before round n + 1 is written,
 *   behind phase n of empty, behind this very warp's arrival.
 * - Nobody waits for ever: copies come whether or not their thread waits for room. A warp that
 *   computes waits for V(t) with K(t+1) in hand and nothing else, so with two slots or more
 *   somebody can always go on. A turn at the products (where turns pay) waits for a warpgroup that
 *   has its tiles of keys, or waits for nothing but these.
 * - Where the mask cuts a step, those that fetch wait for their own copies of V, clear what is not
 *   finite, say where the first such key is, and arrive at full themselves. `first_bad` of a slot
 *   is that key minus the number of cut steps before this one times the keys of a step: so the
 *   latest is the least, and nobody has to clear it.
 * - Behind the last fetches nobody arrives at empty, as nobody waits there.
 * Every wait at these ends after some ten seconds: then the kernel traps, which loses the device
 * instead of hanging it.
 *
 * Three warpgroups get more out of each slot, two waste less of small shapes. What those that fetch
 * have to do for a fetch limits all of it (NOTES.md). Shared bytes: TD_F16_INLINE_SHARED_BYTES(d).
 * Registers: 152 of a thread that computes and 56 of one that fetches, at d80 and d96 144 and 80;
 * of the short blocks 216 and 72, at d80 208 and 88.
 */
#pragma once

#include "f16_dump.cuh"
#include "kernels/ring_single.h"
#include "kernels/cuda/ring.cuh"

#if TD_HAVE_WGMMA

namespace td {

template <int Dim, int Keys, int Groups, int Slots, bool Bf16> struct F16InlineTile {
    static constexpr int dim = Dim, keys = Keys, groups = Groups;
    static constexpr uint32_t slots = Slots;
    static constexpr bool bf16 = Bf16, staged = false;
    static constexpr int rows = 64 * Groups, threads = 128 * (Groups + 1);
    /* A row is cut into parts of so many bytes that nothing is left over. */
    static constexpr int part = Dim % 64 == 0   ? 128
                                : Dim % 32 == 0 ? 64
                                                : 32,
                         parts = 2 * Dim / part;
    static constexpr int consumer_registers = Groups == 2 ? (Dim == 80 ? 208 : 216)
                                              : Dim % 64  ? 144
                                                          : 152;
    static constexpr int producer_registers =
        Groups == 2 ? 504 - 2 * consumer_registers : 512 - 3 * consumer_registers;
    static constexpr bool turns = Dim < 128 || Groups == 3; /* at the products */

    struct Shared {
        alignas(1024) uint8_t slot[Slots][parts][Keys * part];
        uint64_t full[Slots], empty[Slots];
        int first_bad[Slots];
    };
    static_assert(sizeof(Shared) ==
                      TD_F16_INLINE_SHARED(unsigned(Dim), unsigned(Keys), unsigned(Slots)),
                  "the launch asks for another size");
    static_assert(sizeof(Shared) <= 47 * 1024, "more than a block has in a command buffer");
};

/* Copies of Rows rows of Dim channels into swizzled parts of Part bytes, by 128 threads: neighbours
 * have neighbouring pieces of 16 bytes. After `period` rounds a thread's pieces lie multiples of
 * eight rows further, where the swizzle is the same. */
template <int Rows, int Dim, int Part> struct F16RingCopy {
    static constexpr int pieces = Dim / 8, total = Rows * pieces, rounds = (total + 127) / 128;
    static constexpr int period = pieces / (pieces & -pieces), period_rows = 128 * period / pieces;
    static constexpr int own = rounds < period ? rounds : period;
    static_assert(pieces % 2 == 0 && period_rows % 8 == 0, "the swizzle is the same");

    uint32_t place[own];
    int row[own];
    int64_t k[own], v[own]; /* from a tile's first byte */
    int64_t k_period, v_period;

    __device__ __forceinline__ F16RingCopy(int64_t k_bytes, int64_t v_bytes)
        : k_period(period_rows * k_bytes), v_period(period_rows * v_bytes)
    {
#pragma unroll
        for (int i = 0; i < own; i++) {
            const int piece = int(threadIdx.x) % 128 + 128 * i, at = piece % pieces;

            row[i] = piece / pieces;
            place[i] = uint32_t(at / (Part / 16) * Rows * Part + row[i] * Part +
                                (at ^ row[i] * Part / 128) % (Part / 16) * 16);
            k[i] = row[i] * k_bytes + at * 16;
            v[i] = row[i] * v_bytes + at * 16;
        }
    }

    __device__ __forceinline__ static bool has(int round)
    {
        return 128 * (round + 1) <= total || int(threadIdx.x) % 128 < total - 128 * round;
    }
    template <bool V>
    __device__ __forceinline__ const uint8_t *from(const uint8_t *x, int round) const
    {
        return x + (V ? v : k)[round % period] + round / period * (V ? v_period : k_period);
    }
    __device__ __forceinline__ uint32_t to(int round) const
    {
        return place[round % period] + uint32_t(round / period * period_rows * Part);
    }

    template <bool V> __device__ __forceinline__ void start(uint32_t slot, const uint8_t *x) const
    {
#pragma unroll
        for (int i = 0; i < rounds; i++)
            if (has(i))
                cp_async_16(slot + to(i), from<V>(x, i));
    }
    /* Of the rows `there` exist; the others become zeros. */
    template <bool V>
    __device__ __forceinline__ void start(uint32_t slot, const uint8_t *x, int there) const
    {
#pragma unroll
        for (int i = 0; i < rounds; i++)
            if (has(i))
                cp_async_16_or_zero(slot + to(i), from<V>(x, i),
                                    row[i % period] + i / period * period_rows < there ? 16 : 0);
    }

    /* Clears the pieces that this thread copied where they hold a NaN or an infinity; the first
     * such row, or Rows. */
    __device__ __forceinline__ int clear_bad(uint8_t *shared, uint32_t exponent) const
    {
        int first = Rows;

#pragma unroll
        for (int i = 0; i < rounds; i++) {
            if (!has(i))
                break;
            uint32_t *words = reinterpret_cast<uint32_t *>(shared + to(i));
            bool bad = false;

#pragma unroll
            for (int j = 0; j < 4; j++)
                bad |= (words[j] & exponent) == exponent ||
                       (words[j] & exponent << 16) == exponent << 16;
            if (bad) {
                *reinterpret_cast<uint4 *>(words) = make_uint4(0, 0, 0, 0);
                first = min(first, row[i % period] + i / period * period_rows);
            }
        }
        return first;
    }
};

/* The fetching warpgroup: K(0), K(1) V(0), K(2) V(1), ... After the first, fetches are pairs, of
 * which 2 * slots are two rounds of the ring: pairs of whole tiles are written out for each place
 * in these, so that addresses and parities are numbers in the instructions. */
template <class T>
__device__ __forceinline__ void f16_fetch(typename T::Shared &shared,
                                          const td_params_attention_f16 &p, uint32_t begin,
                                          uint32_t end)
{
    using Copy = F16RingCopy<T::keys, T::dim, T::part>;
    constexpr uint32_t slots = T::slots, slot_bytes = sizeof shared.slot[0];
    const Copy copy(2 * p.k.stride_row, 2 * p.v.stride_row);
    const int64_t k_tile = 2 * T::keys * p.k.stride_row, v_tile = 2 * T::keys * p.v.stride_row;
    const uint32_t first_slot = shared_address(shared.slot[0]),
                   first_full = shared_address(&shared.full[0]);
    td_ring_place place = {0, 0};
    uint32_t pair = 0;          /* the next one */
    const uint8_t *v = nullptr; /* of the tile before */
    int v_there = 0, cuts = 0;
    bool cut = false;

    const auto wait_for_room = [&] {
        wait_or_trap(shared.empty[place.slot], td_ring_empty_parity(place));
    };
    const auto slot = [&] { return first_slot + place.slot * slot_bytes; };
    const auto arrive = [&] {
        cp_async_arrive(first_full + 8 * place.slot);
        place = td_ring_next(place, slots);
    };
    const auto fetch_v = [&] {
        wait_for_room();
        copy.template start<true>(slot(), v, v_there);
        if (__builtin_expect(cut, 0)) {
            cp_async_commit();
            cp_async_wait<0>();
            const int first =
                copy.clear_bad(shared.slot[place.slot][0], T::bf16 ? 0x7f80u : 0x7c00u);
            if (first < T::keys)
                atomicMin(&shared.first_bad[place.slot], first - T::keys * cuts);
            cuts++;
            mbarrier_arrive(first_full + 8 * place.slot);
            place = td_ring_next(place, slots);
        } else {
            arrive();
        }
        pair = pair + 1 < slots ? pair + 1 : 0;
    };
    const auto fetch_whole = [&](uint32_t fetch, auto of_v, const uint8_t *&x) {
        const td_ring_place at = {fetch % slots, fetch / slots % 2};

        if (!mbarrier_try_wait(shared_address(&shared.empty[0]) + 8 * at.slot,
                               td_ring_empty_parity(at)))
            wait_or_trap(shared.empty[at.slot], td_ring_empty_parity(at));
        copy.template start<decltype(of_v)::value>(first_slot + at.slot * slot_bytes, x);
        cp_async_arrive(first_full + 8 * at.slot);
        x += decltype(of_v)::value ? v_tile : k_tile;
    };
    /* So many pairs of whole tiles, K and V of the tile before, of which the mask cuts nothing. */
    const auto fetch_pairs = [&](const uint8_t *&k, int count) {
        static_assert(slots <= 5, "as many pairs as are written out");
#define TD_PAIR(number)                                                \
    case number:                                                       \
        if constexpr (number < slots) {                                \
            fetch_whole(2 * number + 1, std::false_type{}, k);         \
            fetch_whole(2 * number + 2, std::true_type{}, v);          \
            if (--count == 0) {                                        \
                pair = (number + 1) % slots;                           \
                break;                                                 \
            }                                                          \
        }
        switch (pair) {
            while (true) {
                TD_PAIR(0)
                TD_PAIR(1)
                TD_PAIR(2)
                TD_PAIR(3)
                TD_PAIR(4)
            }
        }
#undef TD_PAIR
        const uint32_t next = 2 * pair + 1;
        place.slot = next >= slots ? next - slots : next;
        place.odd = next >= slots;
    };
#pragma unroll 1
    for (uint32_t work = begin; work < end; work = f16_next(p, work)) {
        const F16RowTile at = f16_row_tile<T>(p, work);
        const int whole =
            min(at.steps, p.causal ? min(int(p.k.rows), at.free_keys + T::keys) / T::keys
                                   : int(p.k.rows) / T::keys);
        const uint8_t *k = f16_rows(p.k, at.batch, at.kv_head, 0);
        int step = 0;

#pragma unroll 1
        while (step < at.steps) {
            if (step > 0 && step < whole) {
                fetch_pairs(k, whole - step);
                step = whole;
            } else {
                wait_for_room();
                copy.template start<false>(slot(), k, int(p.k.rows) - step * T::keys);
                arrive();
                k += k_tile;
                if (v)
                    fetch_v();
                v = step ? v + v_tile : f16_rows(p.v, at.batch, at.kv_head, 0);
                step++;
            }
            v_there = int(p.k.rows) - (step - 1) * T::keys;
            cut = p.causal && step * T::keys > at.free_keys;
        }
    }
    if (v)
        fetch_v();
    cp_async_commit(); /* no thread leaves before its copies are there */
    cp_async_wait<0>();
}

/* A consumer's registers. */
template <class T> struct F16InlineConsumer : F16Consumer<T> {
    uint32_t q[T::dim / 16][4];
    float s[T::keys / 2];

    /* Of a warp's rows; of those that do not exist, the last one that does. */
    __device__ __forceinline__ void load_q(const td_params_attention_f16 &p, const F16Rows<T> &rows,
                                           int lane)
    {
        const int last = int(p.q.rows) - 1;
        const uint8_t *low =
            f16_rows(p.q, rows.at.batch, rows.at.head, min(rows.row0 + lane / 4, last)) +
            4 * (lane % 4);
        const uint8_t *high =
            f16_rows(p.q, rows.at.batch, rows.at.head, min(rows.row0 + lane / 4 + 8, last)) +
            4 * (lane % 4);

#pragma unroll
        for (int step = 0; step < T::dim / 16; step++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                q[step][i] = ld_global((i % 2 ? high : low) + 32 * step + i / 2 * 16);
    }

    __device__ __forceinline__ void issue_qk(uint32_t k)
    {
        wgmma_fence();
        wgmma_qk<false, T::bf16>(s, q[0], descriptor<T::part>(k));
#pragma unroll
        for (int step = 1; step < T::dim / 16; step++)
            wgmma_qk<true, T::bf16>(
                s, q[step],
                descriptor<T::part>(k + 32 * step / T::part * (T::keys * T::part / 16) +
                                    32 * step % T::part / 16));
        wgmma_commit();
    }

    /* v's word says how far it is from one part to the next. */
    __device__ __forceinline__ void issue_pv(uint32_t v)
    {
#pragma unroll
        for (int step = 0; step < T::keys / 16; step++)
            wgmma_hold(this->p[step]);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < T::keys / 16; step++)
            wgmma_pv<T::bf16>(this->o, this->p[step], descriptor<T::part>(v + step * T::part));
        wgmma_commit();
    }
};

template <class T>
__device__ __forceinline__ void f16_consume_ring(typename T::Shared &shared,
                                                 const td_params_attention_f16 &p, uint32_t begin,
                                                 uint32_t end)
{
    /* the compiler sees that a warp agrees on it */
    const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);
    const int first_row = 64 * group + int(threadIdx.x) % 128 / 32 * 16;
    constexpr uint32_t part_words = T::keys * T::part / 16, slot_words = T::parts * part_words;
    const uint32_t k_tile = tile_word(shared.slot[0]);
    const uint32_t v_tile = part_words << 16 | shared_address(shared.slot[0]) >> 4;
    const float scale = __fmul_rn(p.scale, TD_LOG2_E);
    td_ring_place next = {0, 0};
    td_single_pair now;
    int cuts = 0; /* steps of all rows so far that the mask cuts */
    F16InlineConsumer<T> c;

    const auto lane_now = [] { return tid_x() % 32; };
    /* The next tile of rows that has keys; rows without any are done with at once. */
    uint32_t work = begin;
    const auto next_rows = [&] {
        F16Rows<T> rows(p, work, first_row);

        while (rows.at.steps == 0) {
            f16_write_nothing<T>(p, rows.at, rows.row0, lane_now());
            work = f16_next(p, work);
            if (work >= end)
                break;
            rows = F16Rows<T>(p, work, first_row);
        }
        return rows;
    };
    const auto is_there = [&](const td_ring_place &place) {
        return mbarrier_test_wait(shared_address(&shared.full[place.slot]),
                                  td_ring_full_parity(place));
    };
    /* K of the next tile, if there is one, and V of this one. */
    const auto take = [&](bool more) {
        now = td_single_take(&next, more, T::slots);
        if (!(is_there(now.k) & is_there(now.v))) {
            wait_or_trap(shared.full[now.k.slot], td_ring_full_parity(now.k));
            wait_or_trap(shared.full[now.v.slot], td_ring_full_parity(now.v));
        }
        fence_proxy_async();
    };
    const auto prepare_first = [&](const F16Rows<T> &rows) {
        f16_dump_s<T>(p, c.s, rows, 0);
        c.prepare_first(c.s, T::keys > min(int(p.k.rows), rows.reach), lane_now(), 0, int(p.k.rows),
                        rows.reach);
    };
    const auto prepare = [&](const F16Rows<T> &rows, int step) {
        f16_dump_s<T>(p, c.s, rows, step * T::keys);
        return c.prepare(c.s, (step + 1) * T::keys > min(int(p.k.rows), rows.reach), lane_now(),
                         step * T::keys, int(p.k.rows), rows.reach);
    };
    /* Once O += P V is under way: rows that attend to a bad V of a step that the mask cuts. */
    const auto look = [&](const F16Rows<T> &rows, int step) {
        if (__builtin_expect(p.causal && rows.cut(step), 0)) {
            const int bad = shared.first_bad[now.v.slot] + T::keys * cuts++;
#pragma unroll
            for (int row = 0; row < 2; row++)
                if (bad < T::keys &&
                    step * T::keys + bad < rows.reach + fragment_row(lane_now(), 2 * row))
                    c.l[row] = CUDART_NAN_F;
        }
    };
    const auto issue_qk = [&] { c.issue_qk(k_tile + now.k.slot * slot_words); };
    const auto issue_pv = [&] { c.issue_pv(v_tile + now.v.slot * slot_words); };
    const auto done_with_v = [&] {
        wgmma_wait<0>();
        wgmma_hold(c.o);
        warp_arrive(shared.empty[now.v.slot]);
    };

    F16Rows<T> rows = next_rows();
    if (work >= end)
        return;
    c.load_q(p, rows, lane_now());
    float alpha[2];
    int step = 0;
    const uint32_t my_turn = 1 + group, next_turn = 1 + (group + 1) % T::groups;
    if (T::turns && group == T::groups - 1)
        bar_arrive<256>(next_turn);
    c.start();
    wait_or_trap(shared.full[0], td_ring_full_parity(next));
    fence_proxy_async();
    c.issue_qk(k_tile);
    next = td_ring_next(next, T::slots);
    wgmma_wait<0>();
    wgmma_hold(c.s);
    warp_arrive(shared.empty[0]);
    prepare_first(rows);
    c.softmax(c.s, scale, alpha, 0.0f);
    c.convert(c.s);
    f16_dump_p<T>(p, c.p, rows, 0);
#pragma unroll 1
    while (true) {
        if (step + 1 < rows.at.steps) {
            take(true);
            if (T::turns)
                bar_sync<256>(my_turn);
            issue_qk();
            issue_pv();
            if (T::turns)
                bar_arrive<256>(next_turn);
            wgmma_wait<1>();
            wgmma_hold(c.s);
            warp_arrive(shared.empty[now.k.slot]);
            const bool moves = c.softmax(c.s, scale, alpha, prepare(rows, step + 1));
            look(rows, step);
            done_with_v();
            if (moves)
                c.rescale(alpha);
            c.convert(c.s);
            step++;
            f16_dump_p<T>(p, c.p, rows, step * T::keys);
            continue;
        }
        /* The last P V of these rows lies beside the first Q K of the next. */
        const F16Rows<T> old = rows;
        work = f16_next(p, work);
        if (work < end)
            rows = next_rows();
        if (work >= end) {
            take(false);
            issue_pv();
            look(old, step);
            done_with_v();
            c.finish();
            f16_write<T>(p, old.at, old.row0, lane_now(), nullptr, c);
            break;
        }
        c.load_q(p, rows, lane_now());
        take(true);
        issue_qk();
        issue_pv();
        look(old, step);
        wgmma_wait<0>();
        wgmma_hold(c.s);
        warp_arrive(shared.empty[now.k.slot]); /* in the order of their fetches */
        done_with_v();
        c.finish();
        f16_write<T>(p, old.at, old.row0, lane_now(), nullptr, c);
        c.start();
        prepare_first(rows);
        c.softmax(c.s, scale, alpha, 0.0f);
        c.convert(c.s);
        f16_dump_p<T>(p, c.p, rows, 0);
        step = 0;
    }
    if (T::turns && group == 0)
        /* the last turn that was passed: a barrier must not be left half full */
        bar_sync<256>(my_turn);
}

template <class T> __device__ __forceinline__ void attend_f16_ring(const td_params_attention_f16 &p)
{
    TD_DYNAMIC_SHARED(1024, f16_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(f16_bytes);
    const uint32_t begin = blockIdx.x * p.pair, end = p.works;

    if (threadIdx.x < T::slots) {
        mbarrier_init(shared_address(&shared.full[threadIdx.x]), 128);
        mbarrier_init(shared_address(&shared.empty[threadIdx.x]), 4 * T::groups);
        shared.first_bad[threadIdx.x] = T::keys; /* none */
    }
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x >= 128 * T::groups) {
        setmaxnreg_dec<T::producer_registers>();
        f16_fetch<T>(shared, p, begin, end);
    } else {
        setmaxnreg_inc<T::consumer_registers>();
        f16_consume_ring<T>(shared, p, begin, end);
    }
}

} // namespace td

#define TD_F16_INLINE_ENTRY(name, dim, keys, groups, slots, bf16)                      \
    extern "C" __global__ void __launch_bounds__(128 * (groups + 1), 1)                \
        name(const __grid_constant__ td::F16Params p)                                  \
    {                                                                                  \
        if (!td::cancelled(p.cancel))                                                  \
            td::attend_f16_ring<td::F16InlineTile<dim, keys, groups, slots, bf16>>(p); \
    }
#define TD_F16_INLINE_ENTRIES(suffix, d, groups)                                                                        \
    TD_F16_INLINE_ENTRY(attn_f16_wgmma_inline##suffix##_d##d, d, TD_F16_INLINE_KEYS(d), groups, TD_F16_INLINE_SLOTS(d), \
                        false)                                                                                          \
    TD_F16_INLINE_ENTRY(attn_bf16_wgmma_inline##suffix##_d##d, d, TD_F16_INLINE_KEYS(d), groups,                        \
                        TD_F16_INLINE_SLOTS(d), true)
#endif
