/* O = softmax(scale * Q K^T) V as attn_f16_wgmma has it, at head dim 64, by two teams a block:
 * `attn_f16_wgmma`, and where tiles are few `attn_f16_wgmma_split2`; sm_90a.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A team is two warpgroups of 64 rows each, half a warpgroup that fetches for them, and rings of
 * its own. Of attn_f16_wgmma each has tiles of its own, so that where one begins a tile, writes one
 * or waits for Q, the other's products go on: of 1024 keys with a mask those are half of a tile's
 * cycles. Of attn_f16_wgmma_split2 both have the same tile, and team i of two every second step,
 * from step i on; in the end both leave O, sums and bases in shared memory, and all that compute
 * write the tile: O = sum of O_i 2^(top_i - top), in the teams' order, so every run has the same
 * bits. A warpgroup:
 *
 *   tensor   S = Q K(i+1), O += P V(i) |                         | S = Q K(i+2), O += P V(i+1)
 *   threads                            | wait for both, P = ex2 S |
 *
 * What lies beside its exponentials are the other three's products, without turns: a thread has S,
 * O and one P. A step is 64 keys, so that a warpgroup may stop behind those that its own rows see.
 * Shared bytes: TD_F16_TEAMS_SHARED_BYTES. Registers: 112 of a thread that computes, 32 of one that
 * fetches. H200, 4096 x 4096, batch 4, 32 heads, at its full power: 1.06 ms (517 TFLOPS), with a
 * mask 0.57 ms.
 */
#pragma once

#include "f16_fetch.cuh"
#include "f16_together.cuh"

#if TD_HAVE_WGMMA

namespace td {

/* Shares: teams that have the same rows. */
template <int Shares, bool Bf16> struct F16TeamTile {
    static constexpr int dim = 64, keys = int(TD_F16_KEYS(64u)), groups = int(TD_F16_GROUPS);
    static constexpr int stages = int(TD_F16_STAGES(64u)), teams = 2, shares = Shares;
    static constexpr bool bf16 = Bf16, staged = true;
    /* that compute */
    static constexpr int rows = 64 * groups, parts = 1, threads = 128 * groups * teams;
    /* for a team */
    static constexpr int fetching = 128 / teams;
    /* floats of a row of O that is left: 8 rows meet all banks */
    static constexpr int pitch = dim + 8;

    /* Of a team's O, a row: in its rings. */
    template <class S> __device__ __forceinline__ static auto *left(S &shared, int team, int row)
    {
        using F = std::conditional_t<std::is_const_v<S>, const float, float>;

        return reinterpret_cast<F *>(shared.rings[team].k[0][0]) + row * pitch;
    }
    static_assert(rows * pitch * 4 <= 2 * stages * keys * 128, "a team's rings have room for O");
};

template <class T> struct F16Teams {
    F16Rings<T> rings[T::teams];
    alignas(1024) float l[T::teams][T::rows];
    float top[T::teams][T::rows];
};

/* A consumer and its place in its team's rings. */
template <class T> struct F16Member : F16Consumer<T> {
    using F16Consumer<T>::o, F16Consumer<T>::p;
    static constexpr uint32_t stages = T::stages, stage_words = T::keys * 128 / 16,
                              q_words = T::groups * 64 * 128 / 16;
    float s[T::keys / 2];
    uint32_t tiles = 0, k_used = 0, v_used = 0;

    __device__ __forceinline__ void issue_qk(const F16Rings<T> &shared, uint32_t q_tile,
                                             uint32_t k_tile)
    {
        const uint32_t stage = f16_stage<stages>(k_used);

        wait_for(shared.k_full[stage], f16_parity<stages>(k_used));
        f16_issue_qk<T>(s, q_tile + f16_stage<2>(tiles) * q_words, k_tile + stage * stage_words);
    }

    __device__ __forceinline__ void issue_pv(const F16Rings<T> &shared, uint32_t v_tile)
    {
        const uint32_t stage = f16_stage<stages>(v_used);

        wait_for(shared.v_full[stage], f16_parity<stages>(v_used));
        F16Consumer<T>::issue_pv(v_tile + stage * stage_words);
    }

    __device__ __forceinline__ void wait()
    {
        wgmma_wait<0>();
        wgmma_hold(s);
        wgmma_hold(o);
    }

    __device__ __forceinline__ void done_with_k(F16Rings<T> &shared)
    {
        warp_arrive(shared.k_empty[f16_stage<stages>(k_used++)]);
    }

    __device__ __forceinline__ void done_with_v(F16Rings<T> &shared)
    {
        warp_arrive(shared.v_empty[f16_stage<stages>(v_used++)]);
    }
};

/* What a warpgroup of a team does. `place`: of all of the block that compute. */
template <class T> struct F16TeamPlace {
    int place, group, team, lane, warp;

    __device__ __forceinline__ F16TeamPlace()
        : place(__shfl_sync(~0u, int(threadIdx.x) / 128,
                            0)), /* the compiler sees that a warp agrees on it */
          group(place % T::groups), team(place / T::groups), lane(int(threadIdx.x) % 32),
          warp(int(threadIdx.x) % 128 / 32)
    {
    }
    __device__ __forceinline__ int first_row() const
    {
        return 64 * group + 16 * warp;
    }
};

/* Tiles of the team's own, from `begin` on. */
template <class T>
__device__ __forceinline__ void f16_tiles(F16Rings<T> &shared, const td_params_attention_f16 &p,
                                          uint32_t begin)
{
    const F16TeamPlace<T> me;
    const uint32_t q_tile = tile_word(shared.q[0][me.group]), k_tile = tile_word(shared.k[0]);
    const uint32_t v_tile = F16Member<T>::stage_words << 16 | shared_address(shared.v[0]) >> 4;
    const float scale = __fmul_rn(p.scale, TD_LOG2_E);
    F16Member<T> c;

    /* The next tile that has keys; rows without any are done with at once. */
    uint32_t work = begin;
    const auto next_rows = [&] {
        F16Rows<T> rows(p, work, me.first_row());

        while (rows.at.steps == 0) {
            f16_write_nothing<T>(p, rows.at, rows.row0, me.lane);
            work = f16_team_next(p, work);
            if (work >= p.works)
                break;
            rows = F16Rows<T>(p, work, me.first_row());
        }
        return rows;
    };
    /* Of the tile's steps, those that the warpgroup's own rows see some of. */
    const auto steps_of = [&](const F16Rows<T> &rows) {
        const int keys = rows.at.row0 + 64 * (me.group + 1) + int(p.k.rows) - int(p.q.rows);

        return p.causal ? max(1, min(rows.at.steps, (keys + T::keys - 1) / T::keys))
                        : rows.at.steps;
    };
    const auto prepare = [&](const F16Rows<T> &rows, int step) {
        f16_dump_s<T>(p, c.s, rows, step * T::keys);
        return c.prepare(c.s, rows.cut(step), me.lane, step * T::keys, int(p.k.rows), rows.reach);
    };
    const auto prepare_first = [&](const F16Rows<T> &rows) {
        f16_dump_s<T>(p, c.s, rows, 0);
        c.prepare_first(c.s, rows.cut(0), me.lane, 0, int(p.k.rows), rows.reach);
    };
    /* Once O += P V is under way: rows that attend to a bad V of a step that the mask cuts. */
    const auto look = [&](const F16Rows<T> &rows, int step) {
        if (__builtin_expect(p.causal && rows.cut(step), 0))
            c.look(shared.first_bad[f16_stage<T::stages>(c.v_used)], me.lane, step * T::keys,
                   rows.reach);
    };
    if (work >= p.works)
        return;
    F16Rows<T> rows = next_rows();
    if (work >= p.works)
        return;
    int step = 0, steps = steps_of(rows);
    wait_for(shared.q_full[0], 0);
    c.issue_qk(shared, q_tile, k_tile);
    c.wait();
    c.done_with_k(shared);
    c.start();
    prepare_first(rows);
    c.begin(c.s, c.p, scale);
    f16_dump_p<T>(p, c.p, rows, 0);
#pragma unroll 1
    while (true) {
        if (step + 1 < steps) {
            c.issue_qk(shared, q_tile, k_tile);
            c.issue_pv(shared, v_tile);
            look(rows, step);
            c.wait();
            c.done_with_k(shared);
            c.done_with_v(shared);
            step++;
            const float seen = prepare(rows, step);
            c.go_on(c.s, c.p, scale, seen, [] {});
            f16_dump_p<T>(p, c.p, rows, step * T::keys);
            continue;
        }
        /* The last P V of a tile lies beside the first Q K of the next. */
        const uint32_t old_work = work, q_stage = f16_stage<2>(c.tiles);
        const int unseen = rows.at.steps - steps;
        work = f16_team_next(p, work);
        if (work < p.works)
            rows = next_rows();
        const bool more = work < p.works;
        for (int i = 0; i < unseen; i++) { /* an arrival counts for the phase in progress */
            wait_for(shared.k_full[f16_stage<T::stages>(c.k_used)],
                     f16_parity<T::stages>(c.k_used));
            c.done_with_k(shared);
        }
        const F16Rows<T> old(p, old_work, me.first_row()); /* registers are few */
        if (more) {
            c.tiles++;
            wait_for(shared.q_full[f16_stage<2>(c.tiles)], f16_parity<2>(c.tiles));
            c.issue_qk(shared, q_tile, k_tile);
            c.issue_pv(shared, v_tile);
            look(old, step);
            c.wait();
            c.done_with_k(shared);
        } else {
            c.issue_pv(shared, v_tile);
            look(old, step);
            c.wait();
        }
        c.done_with_v(shared);
        for (int i = 0; i < unseen; i++) {
            wait_for(shared.v_full[f16_stage<T::stages>(c.v_used)],
                     f16_parity<T::stages>(c.v_used));
            c.done_with_v(shared);
        }
        c.finish();
        bar_sync<128>(1 + me.place); /* Q is not needed any more: O goes through its place */
        f16_write<T>(p, old.at, old.row0, me.lane,
                     &shared.q[q_stage][me.group][0][0] + me.warp * (T::parts * 16 * 128), c);
        /* each thread, for racecheck: see f16_fetch() */
        mbarrier_arrive(shared_address(&shared.q_empty[q_stage]));
        if (!more)
            break;
        c.start();
        prepare_first(rows);
        c.begin(c.s, c.p, scale);
        f16_dump_p<T>(p, c.p, rows, 0);
        step = 0;
        steps = steps_of(rows);
    }
}

/* The team's steps of the block's tile, and what all have of it put together. */
template <class T>
__device__ __forceinline__ void f16_shared_tile(F16Teams<T> &all, const td_params_attention_f16 &p)
{
    const F16TeamPlace<T> me;
    F16Rings<T> &shared = all.rings[me.team];
    const uint32_t q_tile = tile_word(shared.q[0][me.group]), k_tile = tile_word(shared.k[0]);
    const uint32_t v_tile = F16Member<T>::stage_words << 16 | shared_address(shared.v[0]) >> 4;
    const float scale = __fmul_rn(p.scale, TD_LOG2_E);
    const uint32_t work = f16_split_work<T>(p, blockIdx.x);
    const F16Rows<T> rows(p, work, me.first_row());
    const int steps = (rows.at.steps - me.team + T::shares - 1) / T::shares;
    F16Member<T> c;

    const auto whole_step = [&](int step) { return step * T::shares + me.team; };
    const auto dump_s = [&](int step) {
        f16_dump_s<T>(p, c.s, rows, whole_step(step) * T::keys);
    };
    const auto dump_p = [&](int step) {
        f16_dump_p<T>(p, c.p, rows, whole_step(step) * T::keys);
    };
    const auto prepare = [&](int step) {
        dump_s(step);
        return c.prepare(c.s, rows.cut(whole_step(step)), me.lane, whole_step(step) * T::keys,
                         int(p.k.rows), rows.reach);
    };
    const auto look = [&](int step) {
        if (__builtin_expect(p.causal && rows.cut(whole_step(step)), 0))
            c.look(shared.first_bad[f16_stage<T::stages>(c.v_used)], me.lane,
                   whole_step(step) * T::keys, rows.reach);
    };
    c.start();
    if (steps > 0) {
        wait_for(shared.q_full[0], 0);
        c.issue_qk(shared, q_tile, k_tile);
        c.wait();
        c.done_with_k(shared);
        dump_s(0);
        c.prepare_first(c.s, rows.cut(whole_step(0)), me.lane, whole_step(0) * T::keys,
                        int(p.k.rows), rows.reach);
        c.begin(c.s, c.p, scale);
        dump_p(0);
        int step = 0;
#pragma unroll 1
        while (step + 1 < steps) {
            c.issue_qk(shared, q_tile, k_tile);
            c.issue_pv(shared, v_tile);
            look(step);
            c.wait();
            c.done_with_k(shared);
            c.done_with_v(shared);
            step++;
            const float seen = prepare(step);
            c.go_on(c.s, c.p, scale, seen, [] {});
            dump_p(step);
        }
        c.issue_pv(shared, v_tile);
        look(step);
        c.wait();
    }
    c.finish();
    bar_sync<128 * T::groups>(1 + me.team); /* all have read V */
    f16_leave<T>(all, me.team, me.first_row(), me.lane, c);
    bar_sync<T::threads>(1 + T::teams);
    const F16RowTile to = f16_row_tile<T>(p, work); /* registers are few */
    if (p.o.dtype == TANDEM_DTYPE_F32)
        f16_put_together<T, float>(all, p, to);
    else if (p.o.dtype == TANDEM_DTYPE_F16)
        f16_put_together<T, __half>(all, p, to);
    else
        f16_put_together<T, __nv_bfloat16>(all, p, to);
}

template <class T>
__device__ __forceinline__ void attend_f16_teams(const td_params_attention_f16 &p)
{
    static_assert(sizeof(F16Teams<T>) == TD_F16_TEAMS_SHARED_BYTES,
                  "the launch asks for another size");
    constexpr uint32_t kFetching = 1 + T::teams * T::groups; /* barriers */
    TD_DYNAMIC_SHARED(1024, f16_teams_bytes);
    F16Teams<T> &shared = *reinterpret_cast<F16Teams<T> *>(f16_teams_bytes);
    const bool given_up =
        p.cancel && threadIdx.x == 0 && *static_cast<const volatile uint32_t *>(p.cancel);
    const bool fetches = threadIdx.x >= T::threads;
    const int team = __shfl_sync(~0u,
                                 fetches ? int(threadIdx.x - T::threads) / T::fetching
                                         : int(threadIdx.x) / (128 * T::groups),
                                 0);
    const uint32_t begin = (uint32_t(team) * gridDim.x + blockIdx.x) * p.pair;

#pragma unroll
    for (int i = 0; i < T::teams; i++)
        shared.rings[i].begin();
    fence_proxy_async();
    if (fetches) {
        setmaxnreg_dec<32>();
        if constexpr (T::shares == 1) {
            f16_fetch<T>(shared.rings[team], p, begin, p.works, 0, kFetching + team);
        } else {
            const uint32_t work = f16_split_work<T>(p, blockIdx.x);
            f16_fetch<T>(shared.rings[team], p, work, work + 1, team, kFetching + team);
        }
    } else if (!__syncthreads_or(given_up)) {
        setmaxnreg_inc<112>();
        if constexpr (T::shares == 1)
            f16_tiles<T>(shared.rings[team], p, begin);
        else
            f16_shared_tile<T>(shared, p);
    }
}

} // namespace td

#define TD_F16_TEAMS_ENTRY(name, shares, bf16)                            \
    extern "C" __global__ void __launch_bounds__(TD_F16_TEAMS_THREADS, 1) \
        name(const __grid_constant__ td::F16Params p)                     \
    {                                                                     \
        td::wait_for_previous();                                          \
        td::attend_f16_teams<td::F16TeamTile<shares, bf16>>(p);           \
    }
#endif
