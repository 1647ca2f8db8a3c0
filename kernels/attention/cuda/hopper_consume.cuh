/* The warpgroups that compute: a tile of rows, from Q K^T of its first step to O.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "hopper_dump.cuh"
#include "hopper_fetch.cuh"
#include "hopper_schedule.cuh"
#include "hopper_write.cuh"

#if TD_HAVE_WGMMA

namespace td {

/* The tile that consume() has, behind its loop: where long blocks walk it is found anew, as
 * registers are few. */
template <class T>
__device__ __forceinline__ HopperRowTile again(const typename T::Shared &shared,
                                               const td_params_attention &p,
                                               const HopperRowTile &at, uint32_t n)
{
    if constexpr (T::walks)
        return walk_to<T>(p, shared.where[n % 2]);
    else
        return at;
}

/* Scales of a warpgroup's rows, with the softmax's, where only it needs them; and of a channel,
 * with its mean, if nobody fetches them for the block. */
template <class T>
__device__ __forceinline__ void take_scales(typename T::Shared &shared,
                                            const td_params_attention &p,
                                            const HopperLoads &loads, int group, uint32_t n)
{
    const int thread = int(threadIdx.x) % 128, lane = thread % 32, warp = thread / 32;

    if constexpr (T::walks) {
        const int row = 64 * group + 16 * warp + lane % 16;

        if (lane < 16) /* of the warp's rows, which no other warp reads */
            shared.row_scale[place_of_row(row)] =
                __fmul_rn(shared.q_scale[n % 2][row], __fmul_rn(p.scale, TD_LOG2_E));
        __syncwarp();
    } else if (T::splits == 1) {
        if (thread < T::dim) {
            shared.v_scale[group][thread] = loads.v_scale;
            shared.v_mean[group][thread] = loads.v_mean;
        }
        if (thread < 64)
            shared.row_scale[64 * group + place_of_row(thread)] =
                __fmul_rn(loads.q_scale, __fmul_rn(p.scale, TD_LOG2_E));
        cp_async_wait<0>();
        fence_proxy_async();
        bar_sync<128>(1 + group);
    }
}

/* Its share of what all warpgroups with the same rows make of their parts. */
template <class T>
__device__ __forceinline__ void merge_tile(typename T::Shared &shared, const td_params_attention &p,
                                           const HopperRowTile &at, PipelineState &now, uint32_t n,
                                           Consumer<T> &c)
{
    /* the last: all that fetch have seen q_free of the tile before */
    wait_for(shared.full[now.stage], now.parity);
    warp_arrive(shared.q_free);
    if constexpr (T::pairs)
        merge_pair<T>(shared, p, at, n, now.stage, c);
    else
        merge<T>(shared, p, at, n, now.stage, c);
    warp_arrive(shared.empty[now.stage]);
    now.next<T::stages, T::splits>();
}

/* A tile, of which K of the first step is or comes in stage `now`. n: where blocks walk, this
 * block's tile number n. */
template <class T>
__device__ __forceinline__ void consume(typename T::Shared &shared, const td_params_attention &p,
                                        const HopperRowTile &at, PipelineState &now,
                                        const HopperLoads &loads, uint32_t n = 0)
{
    constexpr int pieces = Consumer<T>::kPieces, apart = 128 * T::groups;
    const int thread = int(threadIdx.x) % 128, lane = thread % 32, warp = thread / 32;
    /* the compiler sees that a warp agrees on it */
    const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);
    const int part = group % T::abreast, split = group / T::abreast,
              group_row = at.row0 + 64 * part;
    const int past = int(p.kv_len) - int(p.o.rows), end = int(p.kv_len);
    /* that all rows may attend to */
    const int free_keys = p.causal ? min(end, group_row + past + 1) : end;
    const int keys = p.causal ? min(end, min(group_row + 64, int(p.o.rows)) + past) : end;
    const int steps =
        group_row < int(p.o.rows) ? share<T>((max(0, keys) + T::keys - 1) / T::keys, split) : 0;
    const int free_steps = share<T>(max(0, free_keys) / T::keys, split);
    const int64_t dump_row = at.bh * p.q_pad + min(group_row, int(p.q_pad) - 64) + 16 * warp;
    const uint32_t q_tile = tile_word(shared.q[T::walks ? n % 2 : 0]) +
                            uint32_t((group_row - at.row0) * T::qk_row / 16);
    const uint32_t k_tile = tile_word(shared.stage[0].k), v_tile = tile_word(shared.stage[0].v);
    constexpr uint32_t stage_words = sizeof(typename T::Stage) / 16;
    Consumer<T> c;
    const auto sums = [&] { return &shared.l[0][tid_x()]; };
    const auto key_of = [&](int step) { return (step * T::splits + split) * T::keys; };

#pragma unroll
    for (int row = 0; row < 2; row++) {
        c.top[row] = -CUDART_INF_F;
        shared.l[row][threadIdx.x] = 0.0f;
    }
    float key_scale;
    bool odd = false; /* keys of the step are masked or bad */
    /* The scale of a thread's keys, and whether the step is odd. */
    const auto look = [&](const float *k_scale, int step) {
        const float2 low = *reinterpret_cast<const float2 *>(k_scale + 2 * lane);
        const float2 high = *reinterpret_cast<const float2 *>(k_scale + 64 + 2 * lane);

        key_scale = low.x;
        return !scales_agree(low, high) || step >= free_steps;
    };
#pragma unroll
    for (int i = 0; i < T::dim / 2; i++)
        c.o[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < T::columns / 4; i++)
        c.r[i] = 0;
    if (T::splits == 1 && !T::walks) {
        odd = !scales_agree(loads.low, loads.high) || free_steps <= 0;
        key_scale = loads.low.x;
    }
    take_scales<T>(shared, p, loads, group, n);

    if (steps > 0) {
        PipelineState next = now;
        /* Registers are few: what is rarely needed is found anew there. */
        const auto mask = [&](auto half, const float *k_scale, int step) {
            const int t = int(uint32_t(tid_x()) % 128u),
                      first = p.causal ? group_row + t / 32 * 16 + past + 1 : end;

            c.template mask<decltype(half)::value>(
                k_scale, t & 31, (step * T::splits + split) * T::keys, end, first);
        };
        const auto set_scale = [&] {
            if (T::splits > 1)
                c.set_scale(shared.row_scale + 64 * part, key_scale, __fmul_rn(p.scale, TD_LOG2_E));
            else
                c.set_scale(shared.row_scale, key_scale);
        };
        const auto mask_first = [&](const float *k_scale, int step) {
            key_scale = largest_scale<T>(k_scale, tid_x() & 31);
            set_scale();
            mask(Number<0>(), k_scale, step);
        };

        next.next<T::stages, T::splits>();
        if (!T::walks)
            wait_for(shared.full[now.stage], now.parity);
        const float *first_scale = shared.stage[now.stage].k_scale;
        if (T::splits > 1)
            fence_proxy_async(); /* copies arrive by themselves */
        if (T::splits > 1 || T::walks)
            odd = look(first_scale, 0);
        c.template issue_qk<0>(q_tile, k_tile + now.stage * stage_words);
        wgmma_wait<0>();
        wgmma_hold(c.s);
        if (T::dump)
            dump_s<T, 0>(p, c, dump_row, lane, key_of(0));
        set_scale();
        if (odd)
            mask_first(first_scale, 0);
        c.template set_base<apart>(sums());

#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            /* else the products of K below are of other keys, and not used */
            const bool more = step + 1 < steps;
            const uint32_t k_now = k_tile + now.stage * stage_words,
                           k_next = k_tile + next.stage * stage_words;
            const uint32_t v_next = v_tile + next.stage * stage_words;
            const float *k_scale = shared.stage[now.stage].k_scale,
                        *k_scale_next = shared.stage[next.stage].k_scale;

            const bool fetched =
                mbarrier_try_wait(shared_address(&shared.full[next.stage]), next.parity);
            c.template exponentials<0, 0, pieces / 2>();
            wgmma_wait<0>(); /* R of the step before */
            wgmma_hold(c.r);
            if (r_begins(step)) {
                if (T::dump && step > 0)
                    dump_r<T>(p, c, dump_row, lane, step - 1);
                c.template flush<apart>(sums());
            }
            c.template exponentials<0, pieces / 2, pieces>();
            c.template check<0, apart>(sums());
            if (__builtin_expect(odd, 0))
                c.template correct<0>();
            if (T::dump)
                dump_p<T, 0>(p, c, dump_row, lane, key_of(step));
            if (!fetched)
                wait_for(shared.full[next.stage], next.parity);
            if (T::splits > 1)
                fence_proxy_async();
            c.template issue_qk<1>(q_tile, k_now);
            c.template issue_pv<0>(v_next, !r_begins(step));
            wgmma_wait<1>(); /* S of the second half */
            wgmma_hold(c.s);
            if (T::dump)
                dump_s<T, 1>(p, c, dump_row, lane, key_of(step));
            if (__builtin_expect(odd, 0))
                mask(Number<1>(), k_scale, step);
            warp_arrive(shared.empty[now.stage]);

            c.template exponentials<1, 0, pieces>();
            c.template check<1, apart>(sums());
            if (__builtin_expect(odd, 0))
                c.template correct<1>();
            if (T::dump)
                dump_p<T, 1>(p, c, dump_row, lane, key_of(step));
            c.template issue_qk<0>(q_tile, k_next);
            c.template issue_pv<1>(v_next);
            odd = look(k_scale_next, step + 1);
            set_scale();
            wgmma_wait<1>(); /* S of the next step */
            wgmma_hold(c.s);
            if (T::dump && more)
                dump_s<T, 0>(p, c, dump_row, lane, key_of(step + 1));
            if (__builtin_expect(odd && more, 0))
                mask_first(k_scale_next, step + 1);
            now = next;
            next.next<T::stages, T::splits>();
        }
        wgmma_wait<0>();
        wgmma_hold(c.r);
        if (T::dump)
            dump_r<T>(p, c, dump_row, lane, steps - 1);
        c.template flush<apart>(sums());
    }
    if constexpr (!T::walks) /* the next call's prologue: its blocks take the places of these */
        launch_dependents();
    const HopperRowTile tile = again<T>(shared, p, at, n);
    const int fetches = T::splits > 1 ? share<T>(tile.steps, 0) : tile.steps + 1;
    int fetch = steps;
    const auto release = [&](int end) {
        for (; fetch < end; fetch++) {
            wait_for(shared.full[now.stage], now.parity);
            warp_arrive(shared.empty[now.stage]);
            now.next<T::stages, T::splits>();
        }
    };

    /* of other warpgroups; of those that share, but for the last */
    release(T::walks ? steps + 1 : fetches);
    c.l[0] = sums()[0];
    c.l[1] = sums()[apart];
    if constexpr (T::splits > 1) {
        merge_tile<T>(shared, p, at, now, n, c);
    } else {
        const uint32_t t = uint32_t(tid_x()), of = T::walks ? n % 2 : t / 128;

        write_rows<T>(p, tile.bh, shared.v_scale[of], shared.v_mean[of],
                      tile.row0 + int(t / 32 * 16), int(t % 32), c);
    }
    if constexpr (T::walks) {
        /* behind what takes time: the other warpgroups have their last steps meanwhile */
        release(fetches);
        warp_arrive(shared.tile_free[n % 2]);
    }
}

} // namespace td
#endif
