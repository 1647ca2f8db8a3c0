/* The warpgroups of attn_8b_wgmma_inline that compute: a tile of rows, from Q K^T of its first tile
 * of keys to O.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "hopper_dump.cuh"
#include "inline_write.cuh"

#if TD_HAVE_WGMMA

namespace td {
namespace ring {

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
            const float key_scale =
                __uint_as_float(ld_global(mine + Half * 64 + fragment_column(0, i / 4, i % 4)));

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
                wgmma_s8<true>(s, descriptor<32 * T::q_steps>(q_word + 2 * step),
                               descriptor<T::qk_row>(k + 2 * step));
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

/* What a warpgroup has of Q and its scales; behind it comes a barrier of the block. */
template <class T>
__device__ __forceinline__ void begin(typename T::Shared &shared, const td_params_attention &p,
                                      const RowTile &at, Consumer<T> &c)
{
    const int thread = int(threadIdx.x) % 128, group = int(threadIdx.x) / 128;
    const int part = T::part(group);
    /* padded to 128 in memory */
    const int64_t q_row = int64_t(at.bh) * p.q_pad + at.row0 + 64 * part;

    if (group >= at.active)
        return;
    if constexpr (T::q_steps > 0) {
        if (group == part) /* for all that have these rows: behind the barrier */
            copy_swizzled<64, 32 * T::q_steps, 32 * T::q_steps>(
                shared.q + part * 64 * 32 * T::q_steps, (const uint8_t *)p.q_codes + q_row * T::dim,
                T::dim, thread);
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
__device__ __forceinline__ void consume(typename T::Shared &shared, const td_params_attention &p,
                                        const RowTile &at, Consumer<T> &c)
{
    constexpr int pieces = Consumer<T>::kPieces;
    /* the compiler sees that a warp agrees on it */
    const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);
    const int part = T::part(group), split = T::split(group), ring = split * int(T::slots);
    const int group_row = at.row0 + 64 * part, end = int(p.kv_len);
    const uint32_t q_tile = tile_word(shared.q) + uint32_t(part * 64 * 32 * T::q_steps / 16);
    const uint32_t k_tile = tile_word(shared.k[ring]), v_tile = tile_word(shared.v[ring]);
    uint64_t *const full = shared.full + ring, *const empty = shared.empty + ring;
    constexpr uint32_t k_words = sizeof shared.k[0] / 16, v_words = sizeof shared.v[0] / 16;
    const int own_keys =
        p.causal ? max(0, min(end, min(group_row + 64, int(p.o.rows)) - 1 + at.reach)) : end;
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
        /* The scale of a thread's keys, and whether any of the warp's are masked, or bad: only
         * those have another. */
        const auto look = [&](int step) {
            const float *scales =
                shared.k_scale[T::shares ? split_now() * T::abreast : step % 2] + 2 * lane_now();
            const float2 low = *reinterpret_cast<const float2 *>(scales);
            const float2 high = *reinterpret_cast<const float2 *>(scales + 64);

            key_scale = low.x;
            return !__all_sync(~0u,
                               low.x == low.y && low.x == high.x && low.x == high.y &&
                                   first_key(step) + T::keys <= shared.free_keys[tid_x() / 128]);
        };
        /* What follows is rare: the scales, as they lie in global memory, and whether any of the
         * warp's is NaN. */
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
                p.causal ? int(shared.row0 + p.kv_len - p.o.rows) + 1 + 64 * T::part(tid_x() / 128)
                         : int(p.kv_len));
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

        /* From S of a tile to P V of it and S of the next one, both of the next fetch. Without a
         * next tile, S is of what lies there, and not used. */
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
                dump_p<T, kept>(p, c, dump_row, lane_now(),
                                first_key(step) + (number - kept) * T::tile);
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
} // namespace td
#endif
