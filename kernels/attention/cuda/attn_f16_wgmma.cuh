/* O = softmax(scale * Q K^T) V of fp16 or bf16 tensors by wgmma, as they lie in memory:
 * `attn_f16_wgmma`, sm_90a.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Shapes: Q, K, V, O [batch, head, row, channel] with strides, rows 16-byte aligned, Q, K and V of
 * one type. Warpgroups of 64 rows compute, one more fetches; a block works on some tiles of rows,
 * one after the other. A warpgroup:
 *
 *   fetching   Q K(0) K(1) V(0) K(2) V(1) ...  -> rings of stages for K and V, mbarriers full and empty
 *   tensor     S = Q K(i+1), O += P V(i) |      (the other warpgroups')      | S = Q K(i+2), O += P V(i+1)
 *   threads                              | wait for S, P = ex2 S, wait for O |
 *
 * The warpgroups take turns at handing products to the tensor cores, so that one's exponentials lie
 * beside another's products. V is read as it lies, keys being rows: wgmma transposes B of 16 bits.
 *
 * S, l and O are fp32; P is rounded to the tensors' type. A row's base follows its maximum late:
 * when it is set, the largest P is 2^TD_F16_TOP_LOG2, and it stays until a P would pass
 * 2^TD_F16_LIMIT_LOG2, which is finite in fp16. So P has all its bits down to 2^-22 of the row's
 * largest, and O is rarely rescaled. Where no thread's sum of P passes that limit no P does, so
 * maxima of S are looked for only elsewhere, and P is then computed once more. Where a base is far
 * (params.h) each step does so. A score of -infinity is one of a bad row of Q or K, which P, being
 * 0, does not show: see F16Consumer::trace(). Shared bytes: TD_F16_SHARED_BYTES(d), 193 KB at d128.
 * Registers: 232 of a thread that computes and 40 of one that fetches. Head dim 64 has blocks of
 * its own: attn_f16_wgmma_teams.cuh. H200, batch 4, 32 heads, 4096 x 4096, at its full power: d128
 * 1.83 ms (600 TFLOPS). A bad V (NaN or infinity) makes the rows NaN that attend to it, and no
 * others: where the mask cuts a step, those that fetch look for such keys, clear them and say where
 * the first one is.
 */
#pragma once

#include "f16_dump.cuh"

#if TD_HAVE_WGMMA

namespace td {

template <int Dim, int Keys, int Groups, int Stages, bool Bf16> struct F16Tile {
    static constexpr int dim = Dim, keys = Keys, groups = Groups, stages = Stages;
    static constexpr bool bf16 = Bf16, staged = true;
    static constexpr int rows = 64 * Groups, threads = 128 * (Groups + 1);
    /* a row is cut into parts of 64 channels: 128 bytes */
    static constexpr int parts = (Dim + 63) / 64;
    static constexpr int consumer_registers = 232, producer_registers = 40;
    static_assert(Groups == 2, "those are of a block of three warpgroups");

    struct Shared {
        alignas(1024) uint8_t q[2][Groups][parts][64 * 128]; /* of this tile of rows and the next */
        alignas(1024) uint8_t k[Stages][parts][Keys * 128];
        alignas(1024) uint8_t v[Stages][parts][Keys * 128];
        alignas(1024) uint64_t q_full[2];
        uint64_t q_empty[2], k_full[Stages], k_empty[Stages], v_full[Stages], v_empty[Stages];
        int first_bad[Stages]; /* key of V in the step */
    };
    static_assert(sizeof(Shared) == TD_F16_SHARED(unsigned(Dim), unsigned(Keys), unsigned(Groups),
                                                  unsigned(Stages)),
                  "the launch asks for another size");
};

template <class T>
__device__ __forceinline__ void f16_produce(typename T::Shared &shared,
                                            const td_params_attention_f16 &p, uint32_t begin,
                                            uint32_t end)
{
    using Copy = F16Copy<T::keys, T::dim>;
    using CopyQ = F16Copy<64, T::dim>;
    constexpr uint32_t kProducers = 4; /* barrier */
    PipelineState q_state = {0, 1}, k_state = {0, 1}, v_state = {0, 1};
    uint64_t *before = nullptr; /* says that the copies that were started last are there */
    int cut = -1;               /* where they are V of a step that the mask cuts: its stage */

    /* What was started last is there. */
    const auto arrive = [&] {
        if (cut >= 0) { /* before others see it */
            const int first = Copy::clear_bad(shared.v[cut][0], T::bf16 ? 0x7f80u : 0x7c00u);
            /* for racecheck, which follows an arrival of a warp's one lane for that lane alone */
            bar_sync<128>(kProducers);
            if (threadIdx.x % 128 == 0)
                shared.first_bad[cut] = T::keys;
            bar_sync<128>(kProducers);
            if (first < T::keys)
                atomicMin(&shared.first_bad[cut], first);
        }
        fence_proxy_async();
        mbarrier_arrive(shared_address(before));
    };
    /* While there is no room, what is under way is waited for. */
    const auto wait_for_room = [&](const uint64_t &empty, uint32_t parity) {
        if (__all_sync(~0u, mbarrier_try_wait(shared_address(&empty), parity)))
            return;
        if (before) {
            cp_async_wait<0>();
            arrive();
            before = nullptr;
        }
        wait_for(empty, parity);
    };
    const auto start = [](auto copy, uint32_t to, const uint8_t *from, int64_t stride, int rows,
                          int there) {
        if (there >= rows && stride == T::dim)
            copy.start_dense(to, from);
        else
            copy.start(to, from, 2 * stride, there);
    };
    const auto publish = [&](uint64_t &full, int cuts = -1) {
        cp_async_commit();
        if (before) {
            cp_async_wait<1>();
            arrive();
        }
        before = &full;
        cut = cuts;
    };
#pragma unroll 1
    for (uint32_t work = begin; work < end; work = f16_next(p, work)) {
        const F16RowTile at = f16_row_tile<T>(p, work);
        if (at.steps == 0)
            continue;
        wait_for_room(shared.q_empty[q_state.stage], q_state.parity);
#pragma unroll 1
        for (int group = 0; group < T::groups; group++) {
            const int row0 = at.row0 + 64 * group;

            start(CopyQ(), shared_address(shared.q[q_state.stage][group]),
                  f16_rows(p.q, at.batch, at.head, row0 + CopyQ::first_row()) + CopyQ::first_byte(),
                  p.q.stride_row, 64, int(p.q.rows) - row0);
        }
        publish(shared.q_full[q_state.stage]);
        q_state.template next<2>();

        const uint8_t *k =
            f16_rows(p.k, at.batch, at.kv_head, Copy::first_row()) + Copy::first_byte();
        const uint8_t *v =
            f16_rows(p.v, at.batch, at.kv_head, Copy::first_row()) + Copy::first_byte();
#pragma unroll 1
        for (int step = -1; step < at.steps; step++) { /* K of the next, V of this one */
            if (step + 1 < at.steps) {
                wait_for_room(shared.k_empty[k_state.stage], k_state.parity);
                start(Copy(), shared_address(shared.k[k_state.stage]), k, p.k.stride_row, T::keys,
                      int(p.k.rows) - (step + 1) * T::keys);
                publish(shared.k_full[k_state.stage]);
                k_state.template next<T::stages>();
                k += 2 * T::keys * p.k.stride_row;
            }
            if (step < 0)
                continue;
            wait_for_room(shared.v_empty[v_state.stage], v_state.parity);
            start(Copy(), shared_address(shared.v[v_state.stage]), v, p.v.stride_row, T::keys,
                  int(p.k.rows) - step * T::keys);
            const bool cuts = p.causal && (step + 1) * T::keys > at.free_keys;
            publish(shared.v_full[v_state.stage], cuts ? int(v_state.stage) : -1);
            v_state.template next<T::stages>();
            v += 2 * T::keys * p.v.stride_row;
        }
    }
    if (before) {
        cp_async_wait<0>();
        arrive();
    }
}

/* A consumer that has P of two steps, of the one that the tensor cores multiply and of the next: so
 * S is still there when P is, and P may be computed once more by another base. */
template <class T> struct F16Ahead : F16Consumer<T> {
    using F16Consumer<T>::o;
    typename F16Consumer<T>::Codes codes[2]; /* the first is multiplied */

    /* v's word says how far it is from one part to the next. */
    __device__ __forceinline__ void issue_pv(uint32_t v)
    {
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < T::keys / 16; step++)
            wgmma_pv<T::bf16>(o, codes[0][step], descriptor<128>(v + step * (16 * 8)));
        wgmma_commit();
    }

    __device__ __forceinline__ void hold_codes()
    {
#pragma unroll
        for (int i = 0; i < T::keys / 16; i++)
            wgmma_hold(codes[0][i]);
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < T::dim / 2; i++)
            o[i] = 0.0f;
    }
};

template <class T>
__device__ __forceinline__ void f16_consume(typename T::Shared &shared,
                                            const td_params_attention_f16 &p, uint32_t begin,
                                            uint32_t end)
{
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) % 128 / 32;
    /* the compiler sees that a warp agrees on it */
    const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);
    const int first_row = 64 * group + 16 * warp;
    constexpr uint32_t part_words = T::keys * 128 / 16, stage_words = T::parts * part_words;
    constexpr uint32_t q_words = T::groups * T::parts * 64 * 128 / 16;
    const uint32_t q_tile = tile_word(shared.q[0][group]), k_tile = tile_word(shared.k[0]);
    const uint32_t v_tile = part_words << 16 | shared_address(shared.v[0]) >> 4;
    const uint32_t my_turn = 1 + group, next_turn = 1 + (group + 1) % T::groups;
    const float scale = __fmul_rn(p.scale, TD_LOG2_E);
    PipelineState q_state = {0, 0}, k_state = {0, 0}, v_state = {0, 0};
    float s[T::keys / 2];
    F16Ahead<T> c;

    /* The next tile that has keys; rows without any are done with at once. */
    uint32_t work = begin;
    const auto next_rows = [&] {
        F16Rows<T> rows(p, work, first_row);

        while (rows.at.steps == 0) {
            f16_write_nothing<T>(p, rows.at, rows.row0, lane);
            work = f16_next(p, work);
            if (work >= end)
                break;
            rows = F16Rows<T>(p, work, first_row);
        }
        return rows;
    };
    const auto issue_qk = [&] {
        f16_issue_qk<T>(s, q_tile + q_state.stage * q_words, k_tile + k_state.stage * stage_words);
    };
    const auto done_with_k = [&] {
        warp_arrive(shared.k_empty[k_state.stage]);
        k_state.template next<T::stages>();
    };
    /* Q is not needed any more: O goes through its place. */
    const auto write = [&](const F16Rows<T> &of, uint32_t stage) {
        bar_sync<128>(5 + group);
        f16_write<T>(p, of.at, of.row0, lane,
                     &shared.q[stage][group][0][0] + warp * (T::parts * 16 * 128), c);
        /* each thread, for racecheck: see above */
        mbarrier_arrive(shared_address(&shared.q_empty[stage]));
    };
    const auto prepare = [&](const F16Rows<T> &rows, int step) {
        f16_dump_s<T>(p, s, rows, step * T::keys);
        return c.prepare(s, rows.cut(step), lane, step * T::keys, int(p.k.rows), rows.reach);
    };
    const auto prepare_first = [&](const F16Rows<T> &rows) {
        f16_dump_s<T>(p, s, rows, 0);
        c.prepare_first(s, rows.cut(0), lane, 0, int(p.k.rows), rows.reach);
    };
    const auto wait_for_o = [&] {
        wgmma_wait<0>();
        wgmma_hold(c.o);
    };
    /* Once O += P V is under way: rows that attend to a bad V of a step that the mask cuts. */
    const auto look = [&](const F16Rows<T> &rows, int step) {
        if (__builtin_expect(p.causal && rows.cut(step), 0))
            c.look(shared.first_bad[v_state.stage], lane, step * T::keys, rows.reach);
    };
    const auto done_with_v = [&] {
        wgmma_wait<0>();
        wgmma_hold(c.o);
        warp_arrive(shared.v_empty[v_state.stage]);
        v_state.template next<T::stages>();
    };

    F16Rows<T> rows = next_rows();
    int step = 0;
    const uint32_t zero = block_y();
    /* Were this a plain copy, the compiler would take both for one, and wait for P V before it
     * computes P. */
    const auto next_codes = [&] {
#pragma unroll
        for (int i = 0; i < T::keys / 4; i++)
            c.codes[0][i / 4][i % 4] = c.codes[1][i / 4][i % 4] ^ zero;
        c.hold_codes();
    };
    const auto one_step = [&] {
        wait_for(shared.k_full[k_state.stage], k_state.parity);
        bar_sync<256>(my_turn);
        issue_qk();
        wait_for(shared.v_full[v_state.stage], v_state.parity);
        c.issue_pv(v_tile + v_state.stage * stage_words);
        bar_arrive<256>(next_turn);
        wgmma_wait<1>();
        wgmma_hold(s);
        done_with_k();
        const float seen = prepare(rows, step + 1);
        c.go_on(s, c.codes[1], scale, seen, wait_for_o);
        f16_dump_p<T>(p, c.codes[1], rows, (step + 1) * T::keys);
        look(rows, step);
        done_with_v();
        next_codes();
        step++;
    };
    if (work >= end)
        return;
    if (group == T::groups - 1)
        bar_arrive<256>(next_turn);
    wait_for(shared.q_full[q_state.stage], q_state.parity);
    wait_for(shared.k_full[k_state.stage], k_state.parity);
    issue_qk();
    wgmma_wait<0>();
    wgmma_hold(s);
    done_with_k();
    prepare_first(rows);
    c.begin(s, c.codes[0], scale);
    f16_dump_p<T>(p, c.codes[0], rows, 0);
    c.clear();
    c.hold_codes();
#pragma unroll 1
    while (true) {
        if (step + 1 < rows.at.steps) {
            one_step();
            continue;
        }
        /* The last P V of a tile lies beside the first Q K of the next. */
        const F16Rows<T> old = rows;
        work = f16_next(p, work);
        if (work < end)
            rows = next_rows();
        const uint32_t q_stage = q_state.stage;
        if (work >= end) {
            wait_for(shared.v_full[v_state.stage], v_state.parity);
            c.issue_pv(v_tile + v_state.stage * stage_words);
            look(old, step);
            done_with_v();
            c.finish();
            write(old, q_stage);
            break;
        }
        q_state.template next<2>();
        wait_for(shared.q_full[q_state.stage], q_state.parity);
        wait_for(shared.k_full[k_state.stage], k_state.parity);
        issue_qk();
        wait_for(shared.v_full[v_state.stage], v_state.parity);
        c.issue_pv(v_tile + v_state.stage * stage_words);
        look(old, step);
        done_with_v();
        wgmma_hold(s);
        done_with_k();
        c.finish();
        write(old, q_stage);
        prepare_first(rows);
        c.begin(s, c.codes[0], scale);
        f16_dump_p<T>(p, c.codes[0], rows, 0);
        c.hold_codes();
        c.clear();
        step = 0;
    }
    if (group == 0)
        /* the last turn that was passed: a barrier must not be left half full */
        bar_sync<256>(my_turn);
}

template <class T> __device__ __forceinline__ void attend_f16(const td_params_attention_f16 &p)
{
    TD_DYNAMIC_SHARED(1024, f16_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(f16_bytes);
    const uint32_t begin = blockIdx.x * p.pair, end = p.works;

    if (threadIdx.x < T::stages) {
        mbarrier_init(shared_address(&shared.k_full[threadIdx.x]), 128);
        mbarrier_init(shared_address(&shared.v_full[threadIdx.x]), 128);
        mbarrier_init(shared_address(&shared.k_empty[threadIdx.x]), 4 * T::groups);
        mbarrier_init(shared_address(&shared.v_empty[threadIdx.x]), 4 * T::groups);
    }
    if (threadIdx.x < 2) {
        mbarrier_init(shared_address(&shared.q_full[threadIdx.x]), 128);
        mbarrier_init(shared_address(&shared.q_empty[threadIdx.x]), 128 * T::groups);
    }
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x >= 128 * T::groups) {
        setmaxnreg_dec<T::producer_registers>();
        f16_produce<T>(shared, p, begin, end);
    } else {
        setmaxnreg_inc<T::consumer_registers>();
        f16_consume<T>(shared, p, begin, end);
    }
}

} // namespace td

#define TD_F16_ENTRY(name, dim, keys, groups, stages, bf16)                  \
    extern "C" __global__ void __launch_bounds__(128 * (groups + 1), 1)      \
        name(const __grid_constant__ td::F16Params p)                        \
    {                                                                        \
        td::wait_for_previous();                                             \
        if (!td::cancelled(p.cancel))                                        \
            td::attend_f16<td::F16Tile<dim, keys, groups, stages, bf16>>(p); \
    }
#define TD_F16_ENTRIES(dim)                                                                        \
    TD_F16_ENTRY(attn_f16_wgmma_d##dim, dim, TD_F16_KEYS(dim), TD_F16_GROUPS, TD_F16_STAGES(dim),  \
                 false)                                                                            \
    TD_F16_ENTRY(attn_bf16_wgmma_d##dim, dim, TD_F16_KEYS(dim), TD_F16_GROUPS, TD_F16_STAGES(dim), \
                 true)
#endif
