/* Attention on int8 codes of Q and K and e4m3 codes of V by wgmma at head dim 256:
 * `attn_8b_wgmma_d256`, sm_90a.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * As hopper.cuh has it, but that O alone takes 128 registers of a thread. So R is of half the
 * channels at a time, and added to O after TD_HOPPER_SUM_KEYS(256) = 128 keys, a step. A step's P
 * is kept for both halves; with O 128, R 34, S 32 and P 32 of 240, two warpgroups have room. The
 * channels of ones belong to the second half.
 *
 *   tensor     S = Q K0(i)  |             | S = Q K1(i), Rlow = P0 V |             | Rlow += P1 V, S = Q K0(i+1) | Rhigh = P V
 *   threads    O += Rhigh of i-1 | P0 = ex2 S  |                      | P1 = ex2 S |                 O += Rlow   |
 *
 * Where P1 needs another base than P0 (rare), Rlow is rescaled on the way, and Rhigh between its
 * two products.
 *
 *   k[4]   64 keys each: two parts of 128 bytes a row, of 64 rows, swizzled. Key half h lies in
 *          slot h % 4
 *   v[3]   256 channels and 8 of ones x 128 keys. V of step i lies in slot (i + 1) % 3: step -1 has
 *          one, which is empty
 */
#pragma once

#include "hopper.cuh"

#if TD_HAVE_WGMMA

namespace td {

template <bool Dump> struct HopperTile256 {
    static constexpr int dim = 256, groups = int(TD_HOPPER_GROUPS(256u)), rows = 64 * groups;
    static constexpr int threads = 128 * (groups + 1);
    static constexpr int keys = int(TD_HOPPER_KEYS), half = keys / 2;
    static constexpr bool dump = Dump || kAllDump;
    /* bytes: of a row's part, of a tile's */
    static constexpr int qk_row = 128, part = half * qk_row;
    /* of half of P V, with eight times P's sum */
    static constexpr int columns = dim / 2 + 8;
    static constexpr int k_slots = 4, v_slots = 3;

    struct Shared {
        alignas(1024) uint8_t k[k_slots][2 * part];
        alignas(1024) uint8_t v[v_slots][(dim + 8) * keys];
        alignas(1024) uint8_t q[groups][2 * part];
        alignas(1024) float k_scale[4][keys]; /* of step i in i % 4 */
        float v_scale[dim], v_mean[dim];
        float row_scale[rows];        /* with the softmax's */
        float l[2][128 * groups];     /* each thread's, which it rarely needs */
        float moved[2][128 * groups]; /* what P1's base made of what had P0's */
        uint64_t k_full[k_slots], k_empty[k_slots], v_full[v_slots], v_empty[v_slots];
    };
    static_assert(sizeof(Shared) == TD_HOPPER_256_SHARED_BYTES, "the launch asks for another size");
};

template <class T> struct Consumer256 : Consumer<T> {
    using Consumer<T>::s, Consumer<T>::p, Consumer<T>::r, Consumer<T>::o, Consumer<T>::kPieces;

    __device__ __forceinline__ void issue_qk(uint32_t q, uint32_t k)
    {
        wgmma_fence();
        wgmma_s8<false>(s, descriptor<128>(q), descriptor<128>(k));
#pragma unroll
        for (int step = 1; step < T::dim / 32; step++) {
            const uint32_t at = step / 4 * (T::part / 16) + step % 4 * 2;

            wgmma_s8<true>(s, descriptor<128>(q + at), descriptor<128>(k + at));
        }
        wgmma_commit();
    }

    /* R = P V of 64 of a step's keys and half of the channels, or R += it. */
    template <int Channels, int Half> __device__ __forceinline__ void issue_pv(uint32_t v)
    {
        v += Channels * (T::dim / 2 * T::keys / 16) + Half * (T::half / 16);
#pragma unroll
        for (int step = 0; step < 2; step++)
            wgmma_hold(p[Half][step]);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 2; step++)
            if constexpr (Channels == 0)
                wgmma_e4m3(reinterpret_cast<uint32_t(&)[32]>(r), p[Half][step],
                           descriptor<128>(v + 2 * step), Half + step > 0);
            else
                wgmma_e4m3(r, p[Half][step], descriptor<128>(v + 2 * step), Half + step > 0);
        wgmma_commit();
    }

    /* O += R of half of the channels; with the second half l += P's sum. */
    template <int Channels> __device__ __forceinline__ void flush(float *l)
    {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const float2 pair = this->pair_of_r(i);
            float *to = o + T::dim / 4 * Channels + 2 * i;

            to[0] = __fadd_rn(to[0], pair.x);
            to[1] = __fadd_rn(to[1], pair.y);
        }
        if (Channels == 1)
#pragma unroll
            for (int row = 0; row < 2; row++)
                l[row * T::rows * 2] = __fadd_rn(l[row * T::rows * 2], this->pair_of_r(32 + row).x);
    }

    __device__ __forceinline__ void rescale_r(const float (&by)[2])
    {
        const uint32_t halves[2] = {cvt_f16x2(by[0], by[0]), cvt_f16x2(by[1], by[1])};
#pragma unroll
        for (int i = 0; i < T::columns / 4; i++)
            r[i] = mul_f16x2(r[i], halves[i % 2]);
    }

    /* P of a half again, if its base does not fit, as Consumer::check() has it; move(here) is for
     * bases to move with what has been added up. */
    template <int Half, class Move> __device__ __forceinline__ void check(Move move)
    {
        float here[2];

        if (__builtin_expect(__any_sync(~0u, this->template at_limit<Half>()), 0)) {
            show_base(this->top);
            const bool moves = __any_sync(~0u, this->exceeds(here));

            if (__any_sync(~0u, moves | any_far(this->top))) {
                if (moves)
                    move(here);
                this->template exponentials<Half, 0, kPieces, true>();
                if (any_far(this->top))
                    hide_base(this->top);
            }
        }
    }
};

template <class T>
__device__ __forceinline__ void dump_r(const td_params_attention &p, const Consumer256<T> &c,
                                       int64_t row, int lane, int step, int channels)
{
    if (!p.dump_r)
        return;
    const int64_t each = TD_HOPPER_SUMS(p.kv_pad, 256u);

#pragma unroll
    for (int i = 0; i < 64; i++) {
        const float2 pair = c.pair_of_r(i / 2);

        p.dump_r[((row + fragment_row(lane, i % 4)) * each + step) * T::dim +
                 channels * (T::dim / 2) + fragment_column(lane, i / 4, i % 4)] =
            i % 2 ? pair.y : pair.x;
    }
}

/* Fetches come in the order K0(0) K1(0) V(0) K0(1) ...; each is published once the next is under
 * way. */
template <class T>
__device__ __forceinline__ void produce_256(typename T::Shared &shared,
                                            const td_params_attention &p, const HopperRowTile &at)
{
    const int t = int(threadIdx.x) % 128;
    const uint8_t *k = (const uint8_t *)p.k_codes + at.bhk * p.kv_pad * T::dim;
    const uint8_t *v = (const uint8_t *)p.v_codes + at.bhk * p.kv_pad * T::dim;
    const float *k_scale = p.k_scale + at.bhk * p.kv_pad;
    PipelineState state = {0, 1};
    uint64_t *before = &shared.v_full[0];
    const auto room = [&](const uint64_t &empty, uint32_t parity) {
        if (t < 32) /* four warps that poll would cost issue slots */
            wait_for(empty, parity);
        bar_sync<128>(6);
    };
    const auto publish = [&](uint64_t &full) { /* the fetch before this one */
        cp_async_commit();
        cp_async_wait<1>();
        fence_proxy_async();
        mbarrier_arrive(shared_address(before));
        before = &full;
    };

    cp_async_commit(); /* V of step -1 */
#pragma unroll 1
    for (int step = 0; step < at.steps; step++) {
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            const uint32_t slot = uint32_t(2 * step + half) % T::k_slots;

            room(shared.k_empty[slot], (uint32_t(2 * step + half) / T::k_slots & 1) ^ 1);
            copy_swizzled<T::half, 128, 128>(shared.k[slot], k, T::dim, t);
            copy_swizzled<T::half, 128, 128>(shared.k[slot] + T::part, k + 128, T::dim, t);
            if (half == 0 && t < T::keys / 4)
                cp_async_16(shared_address(shared.k_scale[step % 4] + 4 * t), k_scale + 4 * t);
            publish(shared.k_full[slot]);
            k += T::half * T::dim;
        }
        state.next<T::v_slots>();
        room(shared.v_empty[state.stage], state.parity);
        copy_swizzled<T::dim, T::keys, T::keys>(shared.v[state.stage], v, p.kv_pad, t);
        publish(shared.v_full[state.stage]);
        v += T::keys;
        k_scale += T::keys;
    }
    cp_async_wait<0>();
    fence_proxy_async();
    mbarrier_arrive(shared_address(before));
}

template <class T>
__device__ __forceinline__ void consume_256(typename T::Shared &shared,
                                            const td_params_attention &p, const HopperRowTile &at)
{
    constexpr int pieces = Consumer<T>::kPieces, apart = 128 * T::groups;
    const int thread = int(threadIdx.x) % 128, lane = thread % 32, warp = thread / 32;
    /* the compiler sees that a warp agrees on it */
    const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);
    const int group_row = at.row0 + 64 * group;
    const int past = int(p.kv_len) - int(p.o.rows), end = int(p.kv_len);
    /* that all rows may attend to */
    const int free_keys = p.causal ? min(end, group_row + past + 1) : end;
    const int keys = p.causal ? min(end, min(group_row + 64, int(p.o.rows)) + past) : end;
    const int steps = group_row < int(p.o.rows) ? (max(0, keys) + T::keys - 1) / T::keys : 0;
    const int64_t q_row = at.bh * p.q_pad + min(group_row, int(p.q_pad) - 64),
                  dump_row = q_row + 16 * warp;
    const uint32_t q_tile = tile_word(shared.q[group]), k_tile = tile_word(shared.k),
                   v_tile = tile_word(shared.v);
    Consumer256<T> c;
    const auto sums = [&] { return &shared.l[0][tid_x()]; };

#pragma unroll
    for (int part = 0; part < 2; part++)
        copy_swizzled<64, 128, 128>(shared.q[group] + part * T::part,
                                    (const uint8_t *)p.q_codes + q_row * T::dim + 128 * part,
                                    T::dim, thread);
    const float q_scale = thread < 64 ? p.q_scale[q_row + thread] : 0.0f; /* all loads first */
    for (int channel = int(threadIdx.x); channel < T::dim; channel += apart) {
        shared.v_scale[channel] = p.v_scale[at.bhk * T::dim + channel];
        shared.v_mean[channel] = p.v_mean ? p.v_mean[at.bhk * T::dim + channel] : 0.0f;
    }
    if (thread < 64)
        shared.row_scale[64 * group + thread] = __fmul_rn(q_scale, __fmul_rn(p.scale, TD_LOG2_E));
#pragma unroll
    for (int row = 0; row < 2; row++) {
        c.top[row] = -CUDART_INF_F;
        shared.l[row][threadIdx.x] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < T::dim / 2; i++)
        c.o[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < T::columns / 4; i++)
        c.r[i] = 0;
    float key_scale;
    bool odd = false; /* keys of the step are masked or bad */
    /* The scale of a thread's keys, and whether the step is odd. */
    const auto look = [&](const float *k_scale, int step) {
        const int l = tid_x() & 31;
        const float2 low = *reinterpret_cast<const float2 *>(k_scale + 2 * l);
        const float2 high = *reinterpret_cast<const float2 *>(k_scale + 64 + 2 * l);

        key_scale = low.x;
        return !scales_agree(low, high) || (step + 1) * T::keys > free_keys;
    };
    if (steps > 0)
        /* not from shared memory: known before K is */
        odd = look(p.k_scale + at.bhk * p.kv_pad, 0);
    cp_async_commit();
    cp_async_wait<0>();
    fence_proxy_async();
    bar_sync<128 * T::groups>(1);

    PipelineState v_state = {0, 0};
    const auto k_slot = [&](int h) {
        return k_tile + uint32_t(h) % T::k_slots * (2 * T::part / 16);
    };
    const auto k_wait = [&](int h) {
        wait_for(shared.k_full[uint32_t(h) % T::k_slots], uint32_t(h) / T::k_slots & 1);
    };
    const auto k_done = [&](int h) { warp_arrive(shared.k_empty[uint32_t(h) % T::k_slots]); };
    if (steps > 0) {
        /* Registers are few: what is rarely needed is found anew there. */
        const auto mask = [&](auto half, const float *k_scale, int step) {
            const int t = int(uint32_t(tid_x()) % 128u),
                      first = p.causal ? group_row + t / 32 * 16 + past + 1 : end;

            c.template mask<decltype(half)::value>(k_scale, t & 31, step * T::keys, end, first);
        };
        /* side by side, as there is done, its products wait for one another for want of registers
         */
        const auto set_scale = [&] {
            const uint32_t t = uint32_t(tid_x());
            const float *mine = shared.row_scale + 64 * group + t % 128 / 32 * 16 + t % 32 / 4;

            c.scale[0] = __fmul_rn(mine[0], key_scale);
            c.scale[1] = __fmul_rn(mine[8], key_scale);
        };
        const auto mask_first = [&](const float *k_scale, int step) {
            key_scale = largest_scale<T>(k_scale, tid_x() & 31);
            set_scale();
            mask(Number<0>(), k_scale, step);
        };
        k_wait(0);
        c.issue_qk(q_tile, k_tile);
        wgmma_wait<0>();
        wgmma_hold(c.s);
        if (T::dump)
            dump_s<T, 0>(p, c, dump_row, lane, 0);
        set_scale();
        if (odd)
            mask_first(shared.k_scale[0], 0);
        k_done(0);
        c.template set_base<apart>(sums());

#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            const bool more = step + 1 < steps; /* else the products of K below are not used */
            const float *k_scale = shared.k_scale[step % 4];

            if (T::dump) {
                wgmma_wait<0>();
                wgmma_hold(c.r);
                if (step > 0)
                    dump_r(p, c, dump_row, lane, step - 1, 1);
            }
            c.template exponentials<0, 0, pieces>();
            wgmma_wait<0>(); /* R of the step before */
            c.template check<0>([&](float(&here)[2]) {
                wgmma_hold(c.r);
                c.template flush<1>(sums()); /* the step before this one had the old base */
#pragma unroll
                for (int i = 0; i < T::columns / 4; i++)
                    c.r[i] = 0;
                c.template rebase<apart>(here, sums());
                c.rescale(here);
            });
            if (__builtin_expect(odd, 0))
                c.template correct<0>();
            if (T::dump)
                dump_p<T, 0>(p, c, dump_row, lane, step * T::keys);
            k_wait(2 * step + 1);
            c.issue_qk(q_tile, k_slot(2 * step + 1));
            wgmma_hold(c.r); /* the addition is not moved in front of the products */
            c.template flush<1>(sums());
            warp_arrive(shared.v_empty[v_state.stage]);
            v_state.next<T::v_slots>();
            const uint32_t v = v_tile + v_state.stage * ((T::dim + 8) * T::keys / 16);
            wait_for(shared.v_full[v_state.stage], v_state.parity);
            c.template issue_pv<0, 0>(v);
            wgmma_wait<1>(); /* S of the second half */
            wgmma_hold(c.s);
            if (T::dump)
                dump_s<T, 1>(p, c, dump_row, lane, step * T::keys);
            if (__builtin_expect(odd, 0))
                mask(Number<1>(), k_scale, step);
            k_done(2 * step + 1);

            bool moved = false;
            c.template exponentials<1, 0, pieces>();
            c.template check<1>([&](float(&here)[2]) {
                wgmma_wait<0>();
                wgmma_hold(c.r);
                c.template rebase<apart>(here, sums());
                c.rescale(here);
                moved = true;
                shared.moved[0][tid_x()] = here[0];
                shared.moved[1][tid_x()] = here[1];
            });
            if (__builtin_expect(odd, 0))
                c.template correct<1>();
            if (T::dump)
                dump_p<T, 1>(p, c, dump_row, lane, step * T::keys);
            c.template issue_pv<0, 1>(v);
            if (more)
                k_wait(2 * step + 2);
            c.issue_qk(q_tile, more ? k_slot(2 * step + 2) : q_tile);
            const float *k_scale_next = shared.k_scale[(more ? step + 1 : step) % 4];
            odd = look(k_scale_next, step + 1);
            set_scale();
            wgmma_wait<1>(); /* R of the first half of the channels */
            wgmma_hold(c.r);
            if (T::dump)
                dump_r(p, c, dump_row, lane, step, 0);
            c.template flush<0>(sums());
            c.template issue_pv<1, 0>(v);
            if (__builtin_expect(moved, 0)) {
                const float here[2] = {shared.moved[0][tid_x()], shared.moved[1][tid_x()]};
                wgmma_wait<0>();
                wgmma_hold(c.r);
                c.rescale_r(here);
            }
            c.template issue_pv<1, 1>(v);
            wgmma_wait<1>(); /* S of the next step, and P0 has been read */
            wgmma_hold(c.s);
            if (T::dump && more)
                dump_s<T, 0>(p, c, dump_row, lane, (step + 1) * T::keys);
            if (__builtin_expect(odd && more, 0))
                mask_first(k_scale_next, step + 1);
            if (more)
                k_done(2 * step + 2);
        }
        wgmma_wait<0>();
        wgmma_hold(c.r);
        if (T::dump)
            dump_r(p, c, dump_row, lane, steps - 1, 1);
        c.template flush<1>(sums());
    }
    for (int step = steps; step < at.steps; step++) { /* of the other warpgroup */
#pragma unroll
        for (int half = 0; half < 2; half++) {
            k_wait(2 * step + half);
            k_done(2 * step + half);
        }
        wait_for(shared.v_full[v_state.stage], v_state.parity);
        warp_arrive(shared.v_empty[v_state.stage]);
        v_state.next<T::v_slots>();
    }

    c.l[0] = sums()[0];
    c.l[1] = sums()[apart];
    const uint32_t t = uint32_t(tid_x());
    write_rows<T>(p, at.bh, shared.v_scale, shared.v_mean, group_row + int(t % 128 / 32 * 16),
                  int(t % 32), c);
}

template <class T> __device__ __forceinline__ void attend_hopper_256(const td_params_attention &p)
{
    TD_DYNAMIC_SHARED(1024, hopper_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(hopper_bytes);
    HopperRowTile at = {row_tile<T, int64_t>(p), 0};

    at.steps = (at.keys + T::keys - 1) / T::keys;

    if (threadIdx.x < T::k_slots) {
        mbarrier_init(shared_address(&shared.k_full[threadIdx.x]), 128);
        mbarrier_init(shared_address(&shared.k_empty[threadIdx.x]), 4 * T::groups);
    }
    if (threadIdx.x < T::v_slots) {
        mbarrier_init(shared_address(&shared.v_full[threadIdx.x]), 128);
        mbarrier_init(shared_address(&shared.v_empty[threadIdx.x]), 4 * T::groups);
    }
    constexpr int words = 8 * T::keys / 4; /* the eight rows of ones */
    for (int i = int(threadIdx.x); i < T::v_slots * words; i += T::threads)
        *reinterpret_cast<uint32_t *>(shared.v[i / words] + T::dim * T::keys + i % words * 4) =
            0x38383838u;
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x >= 128 * T::groups) {
        setmaxnreg_dec<24>();
        produce_256<T>(shared, p, at);
    } else {
        setmaxnreg_inc<240>();
        consume_256<T>(shared, p, at);
    }
}

} // namespace td

#define TD_HOPPER_256_ENTRY(name, dump)                                                            \
    extern "C" __global__ void __launch_bounds__(TD_HOPPER_THREADS(TD_HOPPER_GROUPS(256u)), 1)     \
        name##_d256(const __grid_constant__ td_params_attention p)                                 \
    {                                                                                              \
        td::wait_for_previous();                                                                   \
        if (!td::cancelled(p.cancel))                                                              \
            td::attend_hopper_256<td::HopperTile256<dump>>(p);                                     \
    }
#endif
