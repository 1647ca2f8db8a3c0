/* Attention on int8 codes of Q and K and e4m3 codes of V up to Dim 64: three warpgroups. Device code of attn_8b_wgmma.cu.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * As hopper.cuh has it, with its tiles, barriers and arithmetic, but a step's halves (0, 1) follow one another in one set
 * of registers for S, and the warpgroups go on as they come (i: step):
 *
 *   tensor     S = Q K0(i) |                     | S = Q K1(i), R = P0 V0(i) |            | S = Q K0(i+1) ...
 *   threads                | O += R, P0 = ex2 S  |                           | P1 = ex2 S |
 *
 * A third warpgroup hides what two take turns for where R and O leave room for it. Registers of a thread at Dim 64: O 32,
 * R 36, S 32, P 16 of 160.
 */
#pragma once

#include "hopper.cuh"

#if TD_HAVE_WGMMA

namespace td {
namespace narrow {

template <class T>
__device__ __forceinline__ void consume(typename T::Shared &shared, const td_params_attention &p, const HopperPlace &at)
{
    constexpr int pieces = Consumer<T>::kPieces;
    const int thread = int(threadIdx.x) % 128, lane = thread % 32, warp = thread / 32;
    const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0); /* the compiler sees that a warp agrees on it */
    const int group_row = at.row0 + 64 * group, row0 = group_row + 16 * warp;
    const int past = int(p.kv_len) - int(p.o.rows), end = int(p.kv_len);
    const int reach = p.causal ? row0 + past + 1 : end;
    const int free_keys = p.causal ? min(end, group_row + past + 1) : end; /* that all rows may attend to */
    const int keys = p.causal ? min(end, min(group_row + 64, int(p.o.rows)) + past) : end;
    const int steps = group_row < int(p.o.rows) ? (max(0, keys) + T::keys - 1) / T::keys : 0;
    const int64_t q_row = at.bh * p.q_pad + min(group_row, int(p.q_pad) - 64), dump_row = q_row + 16 * warp;
    const uint32_t q_tile = tile_word(shared.q) + uint32_t(group * 64 * T::qk_row / 16);
    const uint32_t k_tile = tile_word(shared.stage[0].k), v_tile = tile_word(shared.stage[0].v);
    constexpr uint32_t stage_words = sizeof(typename T::Stage) / 16;
    Consumer<T> c;

    copy_swizzled<64, T::dim, T::qk_row>(shared.q + group * 64 * T::qk_row,
                                         (const uint8_t *)p.q_codes + q_row * T::dim, T::dim, thread);
    const bool has_channel = thread < T::dim; /* all loads first: they are on their way together */
    const float v_scale = has_channel ? p.v_scale[at.bhk * T::dim + thread] : 0.0f;
    const float v_mean = has_channel && p.v_mean ? p.v_mean[at.bhk * T::dim + thread] : 0.0f;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        c.row_scale[row] = p.q_scale[q_row + 16 * warp + fragment_row(lane, 2 * row)];
        c.top[row] = -CUDART_INF_F;
        c.l[row] = 0.0f;
    }
    /* The scales of a step's keys, from global memory: so they are there before the tile's barrier is. */
    const float *scales = p.k_scale + at.bhk * p.kv_pad + 2 * lane;
    float2 low = {}, high = {};
    const auto read_scales = [&](int step) {
        if (step < steps) {
            low = load_now(scales + step * T::keys);
            high = load_now(scales + step * T::keys + 64);
        }
    };
    float key_scale;
    bool odd; /* keys of the step are masked or bad */
    /* The scale of a thread's keys, and whether the step is odd. */
    const auto look = [&](int step) {
        key_scale = low.x;
        return !scales_agree(low, high) || (step + 1) * T::keys > free_keys;
    };
    read_scales(0);
    if (has_channel) {
        shared.v_scale[group][thread] = v_scale;
        shared.v_mean[group][thread] = v_mean;
    }
#pragma unroll
    for (int row = 0; row < 2; row++)
        c.row_scale[row] = __fmul_rn(c.row_scale[row], __fmul_rn(p.scale, TD_LOG2_E));
#pragma unroll
    for (int i = 0; i < T::dim / 2; i++)
        c.o[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < T::columns / 2; i++)
        c.r[i] = 0.0f;
    odd = look(0);
    cp_async_commit();
    cp_async_wait<0>();
    fence_proxy_async();
    bar_sync<128>(1 + group);

    RingPlace now = {0, 0};
    if (steps > 0) {
        RingPlace next = {0, 0};
        const auto mask_first = [&](const float *k_scale, int step) {
            key_scale = largest_scale<T>(k_scale, lane);
            c.template mask<0>(k_scale, lane, step * T::keys, end, reach);
        };

        next.next<T::stages>();
        wait_for(shared.full[0], 0);
        c.template issue_qk<0>(q_tile, k_tile);
        wgmma_wait<0>();
        wgmma_hold(c.s[0]);
        if (T::dump)
            dump_s<T, 0>(p, c, dump_row, lane, 0);
        if (odd)
            mask_first(shared.stage[0].k_scale, 0);
        c.set_scale(key_scale);
        c.template set_base<Added::o>();

#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            const bool more = step + 1 < steps; /* else the products of K below are of other keys, and not used */
            const uint32_t k_now = k_tile + now.stage * stage_words, k_next = k_tile + next.stage * stage_words;
            const uint32_t v_next = v_tile + next.stage * stage_words;
            const float *k_scale = shared.stage[now.stage].k_scale, *k_scale_next = shared.stage[next.stage].k_scale;

            const bool fetched = mbarrier_try_wait(shared_address(&shared.full[next.stage]), next.parity);
            c.template exponentials<0, 0, pieces / 2>();
            wgmma_wait<0>(); /* R of the step before */
            wgmma_hold(c.r);
            if (T::dump && step > 0)
                dump_r<T>(p, c, dump_row, lane, step - 1);
            c.flush();
            c.template exponentials<0, pieces / 2, pieces>();
            c.template check<0, Added::o>();
            if (__builtin_expect(odd, 0))
                c.template correct<0>();
            if (T::dump)
                dump_p<T, 0>(p, c, dump_row, lane, step * T::keys);
            if (!fetched)
                wait_for(shared.full[next.stage], next.parity);
            c.template issue_qk<1>(q_tile, k_now);
            c.template issue_pv<0>(v_next);
            wgmma_wait<1>(); /* S of the second half */
            wgmma_hold(c.s[0]);
            if (T::dump)
                dump_s<T, 1>(p, c, dump_row, lane, step * T::keys);
            if (__builtin_expect(odd, 0))
                c.template mask<1>(k_scale, lane, step * T::keys, end, reach);
            warp_arrive(shared.empty[now.stage]);

            read_scales(step + 1);
            c.template exponentials<1, 0, pieces>();
            c.template check<1, Added::o_and_r>();
            if (__builtin_expect(odd, 0))
                c.template correct<1>();
            if (T::dump)
                dump_p<T, 1>(p, c, dump_row, lane, step * T::keys);
            c.template issue_qk<0>(q_tile, k_next);
            c.template issue_pv<1>(v_next);
            odd = look(step + 1);
            wgmma_wait<1>(); /* S of the next step */
            wgmma_hold(c.s[0]);
            if (T::dump && more)
                dump_s<T, 0>(p, c, dump_row, lane, (step + 1) * T::keys);
            if (__builtin_expect(odd && more, 0))
                mask_first(k_scale_next, step + 1);
            c.set_scale(key_scale);
            now = next;
            next.next<T::stages>();
        }
        wgmma_wait<0>();
        wgmma_hold(c.r);
        if (T::dump)
            dump_r<T>(p, c, dump_row, lane, steps - 1);
        c.flush();
    }
    for (int fetch = steps; fetch <= at.steps; fetch++) { /* fetches of the other warpgroups */
        wait_for(shared.full[now.stage], now.parity);
        warp_arrive(shared.empty[now.stage]);
        now.next<T::stages>();
    }

    write_rows<T>(p, at.bh, shared.v_scale[group], shared.v_mean[group], row0, lane, c);
}

} // namespace narrow
} // namespace td
#endif
