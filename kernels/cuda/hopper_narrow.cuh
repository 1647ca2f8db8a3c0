/* Attention on int8 codes of Q and K and e4m3 codes of V up to Dim 64: three warpgroups. Device code of attn_8b_wgmma.cu.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * As hopper.cuh has it, with its tiles, barriers and arithmetic, but a step's two tiles of 64 keys (0, 1) follow one another
 * in one set of registers, and the warpgroups go on as they come (i: step):
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

/* A consumer's registers. */
template <class T> struct Consumer : Sums<T> {
    static constexpr int kTile = int(TD_TILE_KEYS), kPieces = kTile / 16;
    static constexpr int kMasked = INT32_MIN, kBad = INT32_MIN + 1; /* stand for S: a key out of reach, a bad one */

    int s[kTile / 2];
    uint32_t p[T::keys / 32][4]; /* of a step */
    using Sums<T>::r, Sums<T>::o, Sums<T>::l, Sums<T>::top, Sums<T>::scale;

    /* S of a tile of keys; q and k are tile_word()s. */
    __device__ __forceinline__ void issue_qk(uint32_t q, uint32_t k)
    {
        wgmma_fence();
        wgmma_s8<false>(s, descriptor<T::qk_row>(q), descriptor<T::qk_row>(k));
#pragma unroll
        for (int step = 1; step < T::dim / 32; step++)
            wgmma_s8<true>(s, descriptor<T::qk_row>(q + 2 * step), descriptor<T::qk_row>(k + 2 * step));
        wgmma_commit();
    }

    /* R = P V of a step's first tile, R += P V of others. */
    template <int Tile> __device__ __forceinline__ void issue_pv(uint32_t v)
    {
        constexpr int begin = Tile * kTile / 32, end = begin + kTile / 32;

#pragma unroll
        for (int step = begin; step < end; step++)
            wgmma_hold(p[step]);
        wgmma_fence();
        wgmma_e4m3<Tile != 0>(r, p[begin], descriptor<T::keys>(v + 2 * begin));
#pragma unroll
        for (int step = begin + 1; step < end; step++)
            wgmma_e4m3<true>(r, p[step], descriptor<T::keys>(v + 2 * step));
        wgmma_commit();
    }

    /* Replaces what the mask hides and what bad keys poison. */
    template <int Tile>
    __device__ __forceinline__ void mask(const float *k_scale, int lane, int first_key, int end, int reach)
    {
#pragma unroll
        for (int i = 0; i < kTile / 2; i++) {
            const int column = Tile * kTile + fragment_column(lane, i / 4, i % 4);
            const float key_scale = k_scale[column];

            if (key_scale != key_scale)
                s[i] = kBad;
            if (first_key + column >= min(end, reach + fragment_row(lane, i % 4)))
                s[i] = kMasked;
        }
    }

    /* Whether a P of the tile would pass 448 in this thread; `here` are its maxima. */
    __device__ __forceinline__ bool exceeds(float (&here)[2]) const
    {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            int part[2] = {kMasked, kMasked};

#pragma unroll
            for (int i = 0; i < kTile / 4; i++)
                part[i / 2 % 2] = max(part[i / 2 % 2], s[i / 2 * 4 + 2 * row + i % 2]);
            const int most = max(part[0], part[1]);
            here[row] = most > kBad ? __fmul_rn(float(most), scale[row]) : -CUDART_INF_F;
        }
        return here[0] > __fadd_rn(top[0], TD_LOG2_448) || here[1] > __fadd_rn(top[1], TD_LOG2_448);
    }

    /* Whether a code of P is 448 or NaN, as it is wherever P would pass 448: a sign of `exceeds` that costs a third of
     * it. No code has its top bit set, so there is no carry from one to the next. */
    template <int Tile> __device__ __forceinline__ bool saturated() const
    {
        uint32_t all = 0;

#pragma unroll
        for (int i = Tile * kTile / 32; i < (Tile + 1) * kTile / 32; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                all |= p[i][j] + 0x02020202u;
        return all & 0x80808080u;
    }

    /* Gives rows another base, and all that has been added up so far with it. Anew: R holds nothing that O has not. */
    template <bool Anew> __device__ __forceinline__ void rebase(float (&here)[2])
    {
        float alpha[2];

#pragma unroll
        for (int row = 0; row < 2; row++) {
            here[row] = fmaxf(here[row], __shfl_xor_sync(~0u, here[row], 1));
            here[row] = fmaxf(here[row], __shfl_xor_sync(~0u, here[row], 2));
            const float next =
                here[row] > __fadd_rn(top[row], TD_LOG2_448) ? __fsub_rn(here[row], kBaseLog2) : top[row];
            alpha[row] = next == top[row] ? 1.0f : ex2(__fsub_rn(top[row], next));
            top[row] = next;
            l[row] = __fmul_rn(l[row], alpha[row]);
        }
#pragma unroll
        for (int i = 0; i < T::dim / 2; i++)
            o[i] = __fmul_rn(o[i], alpha[i % 4 / 2]);
        if (Anew)
            return;
        wgmma_wait<0>();
        wgmma_hold(r);
#pragma unroll
        for (int i = 0; i < T::columns / 2; i++)
            r[i] = __fmul_rn(r[i], alpha[i % 4 / 2]);
    }

    /* P of pieces Begin to End - 1 of a tile, 16 keys each. `Again` converts S, which is exact, by another instruction:
     * else the compiler keeps the floats of the first try for the second, where it lacks the registers. */
    template <int Tile, int Begin, int End, bool Again = false> __device__ __forceinline__ void exponentials()
    {
#pragma unroll
        for (int piece = Begin; piece < End; piece++) {
            float e[8];

#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int value = s[8 * piece + i];

                e[i] = ex2(__fmaf_rn(Again ? __int2float_rz(value) : __int2float_rn(value), scale[i % 4 / 2],
                                     -top[i % 4 / 2]));
            }
#pragma unroll
            for (int row = 0; row < 2; row++)
                p[Tile * kTile / 32 + piece / 2][2 * (piece % 2) + row] =
                    uint32_t(cvt_e4m3x2(e[2 * row + 1], e[2 * row])) |
                    uint32_t(cvt_e4m3x2(e[2 * row + 5], e[2 * row + 4])) << 16;
        }
    }

    /* Codes of what was masked: 0, or NaN for a bad key. */
    template <int Tile> __device__ __forceinline__ void correct()
    {
#pragma unroll
        for (int i = 0; i < kTile / 2; i++) {
            const int byte = 16 * (i / 4 % 2) + 8 * (i % 2);
            uint32_t &word = p[Tile * kTile / 32 + i / 16][2 * (i / 8 % 2) + i % 4 / 2];

            if (s[i] <= kBad)
                word = (word & ~(255u << byte)) | (s[i] == kBad ? 127u << byte : 0u);
        }
    }

    /* P again, if the base does not fit. */
    template <int Tile, bool Anew> __device__ __forceinline__ void check()
    {
        float here[2];

        if (__builtin_expect(__any_sync(~0u, saturated<Tile>()), 0) && __any_sync(~0u, exceeds(here))) {
            rebase<Anew>(here);
            exponentials<Tile, 0, kPieces, true>();
        }
    }
};

/* For tests: S and codes of P of a tile, R of a step. `row` is the warp's in [bh][q_pad]. */
template <class T, int Tile>
__device__ __forceinline__ void dump_s(const td_params_attention &p, const Consumer<T> &c, int64_t row, int lane,
                                       int key)
{
#pragma unroll
    for (int i = 0; i < int(TD_TILE_KEYS) / 2; i++)
        p.dump_s[(row + fragment_row(lane, i % 4)) * p.kv_pad + key + Tile * int(TD_TILE_KEYS) +
                 fragment_column(lane, i / 4, i % 4)] = c.s[i];
}
template <class T, int Tile>
__device__ __forceinline__ void dump_p(const td_params_attention &p, const Consumer<T> &c, int64_t row, int lane,
                                       int key)
{
#pragma unroll
    for (int i = 0; i < int(TD_TILE_KEYS) / 2; i++)
        p.dump_p[(row + fragment_row(lane, i % 4)) * p.kv_pad + key + Tile * int(TD_TILE_KEYS) +
                 fragment_column(lane, i / 4, i % 4)] =
            uint8_t(c.p[Tile * int(TD_TILE_KEYS) / 32 + i / 16][2 * (i / 8 % 2) + i % 4 / 2] >>
                    (16 * (i / 4 % 2) + 8 * (i % 2)));
}

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
    /* The scale of a thread's keys, and whether all of the warp's have the same, as they do unless one is bad. */
    const auto look = [&](int step) {
        const bool same = low.x == low.y && low.x == high.x && low.x == high.y;

        key_scale = low.x;
        return !__all_sync(~0u, same) || (step + 1) * T::keys > free_keys;
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
        float here[2];

        const auto mask_first = [&](const float *k_scale, int step) {
            key_scale = -CUDART_INF_F;
            for (int key = 2 * (lane % 4); key < T::keys; key += 8)
                key_scale = fmaxf(key_scale, fmaxf(k_scale[key], k_scale[key + 1]));
            c.template mask<0>(k_scale, lane, step * T::keys, end, reach);
        };

        next.next<T::stages>();
        wait_for(shared.full[0], 0);
        c.issue_qk(q_tile, k_tile);
        wgmma_wait<0>();
        wgmma_hold(c.s);
        if (T::dump)
            dump_s<T, 0>(p, c, dump_row, lane, 0);
        if (odd)
            mask_first(shared.stage[0].k_scale, 0);
        c.set_scale(key_scale);
        c.exceeds(here);
        c.template rebase<true>(here);

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
            c.template check<0, true>();
            if (__builtin_expect(odd, 0))
                c.template correct<0>();
            if (T::dump)
                dump_p<T, 0>(p, c, dump_row, lane, step * T::keys);
            if (!fetched)
                wait_for(shared.full[next.stage], next.parity);
            c.issue_qk(q_tile, k_now + 64 * T::qk_row / 16);
            c.template issue_pv<0>(v_next);
            wgmma_wait<1>(); /* S of the second tile */
            wgmma_hold(c.s);
            if (T::dump)
                dump_s<T, 1>(p, c, dump_row, lane, step * T::keys);
            if (__builtin_expect(odd, 0))
                c.template mask<1>(k_scale, lane, step * T::keys, end, reach);
            warp_arrive(shared.empty[now.stage]);

            read_scales(step + 1);
            c.template exponentials<1, 0, pieces>();
            c.template check<1, false>();
            if (__builtin_expect(odd, 0))
                c.template correct<1>();
            if (T::dump)
                dump_p<T, 1>(p, c, dump_row, lane, step * T::keys);
            c.issue_qk(q_tile, k_next);
            c.template issue_pv<1>(v_next);
            odd = look(step + 1);
            wgmma_wait<1>(); /* S of the next step */
            wgmma_hold(c.s);
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

#pragma unroll
    for (int row = 0; row < 2; row++)
        write_lse(p, at.bh, row0 + fragment_row(lane, 2 * row), lane, c.top[row], c.l[row]);
    if (p.o.dtype == TANDEM_DTYPE_F32)
        write_o<T, float>(p, at.bh, shared.v_scale[group], shared.v_mean[group], row0, lane, c);
    else if (p.o.dtype == TANDEM_DTYPE_F16)
        write_o<T, __half>(p, at.bh, shared.v_scale[group], shared.v_mean[group], row0, lane, c);
    else
        write_o<T, __nv_bfloat16>(p, at.bh, shared.v_scale[group], shared.v_mean[group], row0, lane, c);
}

} // namespace narrow
} // namespace td
#endif
