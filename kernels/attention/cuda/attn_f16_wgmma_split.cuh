/* O = softmax(scale * Q K^T) V as attn_f16_wgmma has it, for few tiles of rows:
 * `attn_f16_wgmma_split`, sm_90a.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A block has one tile of 64 rows and four warpgroups, each of which takes every fourth step of 64
 * keys with a softmax of its own. There are no warps that only fetch: a warpgroup's threads fetch V
 * of a step and K of the next into its ring of slots once Q K^T is under way, and meet at its
 * barrier before P V:
 *
 *   fetching   Q K(0)       | V(0) K(1)                        |            | V(1) K(2) ...
 *   tensor                  | S = Q K(0)                       | O += P V(0)| S = Q K(1)
 *   threads    wait for K(0)|            P = ex2 S, wait, meet |            |            P = ex2 S, wait, meet
 *
 * So nothing is under way at a fence.proxy.async, which would wait for it. While one waits for its
 * products, others are in the exponential. In the end each warpgroup leaves its O, sums and bases
 * in shared memory, and all threads write the tile: O = sum of O_i 2^(top_i - top), in the
 * warpgroups' order, so every run has the same bits. Otherwise all is as in attn_f16_wgmma; keys
 * are added up in another order, so bits differ. With a mask the longest tiles of all heads come
 * first. Loads come first, as a small launch is little more than its latencies. Shared bytes:
 * TD_F16_SPLIT_SHARED_BYTES(d). Registers: 128. H200: batch 1, 4 heads, 1024 x 1024: d64 9.2 us,
 * d128 13.5 us in a graph. More: kernels/attention/NOTES.md.
 */
#pragma once

#include "f16_together.cuh"

#if TD_HAVE_WGMMA

namespace td {

template <int Dim, bool Bf16> struct F16SplitTile {
    static constexpr int dim = Dim, keys = int(TD_F16_SPLIT_KEYS);
    static constexpr int teams = int(TD_F16_SPLIT_TEAMS); /* of a warpgroup */
    static constexpr int slots = int(TD_F16_SPLIT_SLOTS(unsigned(Dim)));
    static constexpr bool bf16 = Bf16;
    static constexpr int rows = 64, threads = int(TD_F16_SPLIT_THREADS);
    /* a row is cut into parts of 64 channels: 128 bytes */
    static constexpr int parts = int(TD_F16_PARTS(unsigned(Dim)));
    /* floats of a row of O that is left: 8 rows meet all banks */
    static constexpr int pitch = Dim + 8;

    struct Shared {
        alignas(1024) uint8_t q[parts][64 * 128];
        alignas(1024) uint8_t tile[teams][slots][parts][keys * 128]; /* in the end: O */
        alignas(1024) float l[teams][rows];
        float top[teams][rows];
        int first_bad[teams]; /* key of V in the one step of a team that the mask cuts */
    };
    /* Of a team's O, a row: in its ring. */
    template <class S> __device__ __forceinline__ static auto *left(S &shared, int team, int row)
    {
        using F = std::conditional_t<std::is_const_v<S>, const float, float>;

        return reinterpret_cast<F *>(shared.tile[team]) + row * pitch;
    }
    static_assert(rows * pitch * 4 <= slots * parts * keys * 128, "a ring has room for O");
    static_assert(128 * teams == threads, "all have work");
    static_assert(rows <= keys && teams >= 2,
                  "the mask cuts at most two steps, which are not one team's");
    static_assert(sizeof(Shared) == TD_F16_SPLIT_SHARED_BYTES(unsigned(Dim)),
                  "the launch asks for another size");
};

template <class T>
__device__ __forceinline__ void attend_f16_split(const td_params_attention_f16 &p)
{
    using Copy = F16Copy<T::keys, T::dim>;
    using CopyQ = F16Copy<64 / T::teams, T::dim, 64>;
    constexpr uint32_t kTeams = 1 /* barriers */, kExponent = T::bf16 ? 0x7f80u : 0x7c00u;
    TD_DYNAMIC_SHARED(1024, f16_split_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(f16_split_bytes);
    const bool given_up =
        p.cancel && threadIdx.x == 0 && *static_cast<const volatile uint32_t *>(p.cancel);
    /* the compiler sees that a warp agrees on it */
    const int team = __shfl_sync(~0u, int(threadIdx.x / 128), 0);
    const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x % 128 / 32);
    const F16Rows<T> rows(p, f16_split_work<T>(p, blockIdx.x), 16 * warp);
    const F16RowTile &at = rows.at;
    /* of this team */
    const int kv_len = int(p.k.rows), steps = (at.steps - team + T::teams - 1) / T::teams;

    /* K or V of this team's next step into the next slot. */
    enum { K, V, SOURCES };
    const uint8_t *from[SOURCES];
    int there[SOURCES], slot = 0;
#pragma unroll
    for (int i = 0; i < SOURCES; i++) {
        from[i] = f16_rows(i == K ? p.k : p.v, at.batch, at.kv_head,
                           team * T::keys + Copy::first_row()) + Copy::first_byte();
        there[i] = min(kv_len, at.steps * T::keys) - team * T::keys;
    }
    const auto next = [](int of) { return of + 1 == T::slots ? 0 : of + 1; };
    const auto fetch = [&](int what) {
        const int64_t stride_bytes = 2 * (what == K ? p.k : p.v).stride_row;

        if (there[what] > 0)
            Copy::start(shared_address(shared.tile[team][slot]), from[what], stride_bytes,
                        there[what]);
        from[what] += T::teams * T::keys * stride_bytes;
        there[what] -= T::teams * T::keys;
        cp_async_commit();
        slot = next(slot);
    };
    const int q_row = at.row0 + 64 / T::teams * team; /* all have a part of Q */
    CopyQ::start(shared_address(shared.q) + uint32_t(64 / T::teams * team * 128),
                 f16_rows(p.q, at.batch, at.head, q_row + CopyQ::first_row()) + CopyQ::first_byte(),
                 2 * p.q.stride_row, int(p.q.rows) - q_row);
    fetch(K);

    constexpr uint32_t part_words = T::keys * 128 / 16, slot_words = T::parts * part_words;
    const uint32_t q_tile = tile_word(shared.q), k_tile = tile_word(shared.tile[team]);
    const uint32_t v_tile = part_words << 16 | shared_address(shared.tile[team]) >> 4;
    const float scale = __fmul_rn(p.scale, TD_LOG2_E);
    F16Consumer<T> c;
    float s[T::keys / 2], alpha[2];
    int now = 0; /* slot */

    if (threadIdx.x < T::teams)
        shared.first_bad[threadIdx.x] = T::keys;
    c.start();
    cp_async_wait<0>();
    fence_proxy_async();
    if (__syncthreads_or(given_up))
        return;
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        const int step = i * T::teams + team;
        const bool cut = rows.cut(step), heals = p.causal && cut;

        f16_issue_qk<T>(s, q_tile, k_tile + uint32_t(now) * slot_words);
        fetch(V);
        if (T::slots == 3 && i > 0) /* into the slot of V of the step before */
            bar_sync<128>(kTeams + uint32_t(team));
        fetch(K);
        now = next(now);
        wgmma_wait<0>();
        wgmma_hold(s);
        f16_dump_s<T>(p, s, rows, step * T::keys);
        const float seen = c.prepare(s, cut, lane, step * T::keys, kv_len, rows.reach);
        if (c.softmax(s, scale, alpha, seen))
            c.rescale(alpha);
        c.convert(s);
        f16_dump_p<T>(p, c.p, rows, step * T::keys);
        cp_async_wait<0>();
        if (__builtin_expect(heals, 0)) {
            const int first = Copy::clear_bad(shared.tile[team][now][0], kExponent);

            if (first < T::keys)
                atomicMin(&shared.first_bad[team], first);
        }
        fence_proxy_async();
        bar_sync<128>(kTeams + uint32_t(team)); /* V is there, and K of the next step */
        c.issue_pv(v_tile + uint32_t(now) * slot_words);
        now = next(now);
        if (__builtin_expect(heals, 0))
            c.look(shared.first_bad[team], lane, step * T::keys, rows.reach);
        wgmma_wait<0>();
        wgmma_hold(c.o);
    }

    /* racecheck wants as many barriers of all teams. */
    if (steps < (at.steps + T::teams - 1) / T::teams) {
        if (T::slots == 3 && steps > 0)
            bar_sync<128>(kTeams + uint32_t(team));
        bar_sync<128>(kTeams + uint32_t(team));
    }
    c.finish();
    bar_sync<128>(kTeams + uint32_t(team)); /* all have read V */
    f16_leave<T>(shared, team, 16 * warp, lane, c);
    bar_sync<T::threads>(kTeams + T::teams);
    if (p.o.dtype == TANDEM_DTYPE_F32)
        f16_put_together<T, float>(shared, p, at);
    else if (p.o.dtype == TANDEM_DTYPE_F16)
        f16_put_together<T, __half>(shared, p, at);
    else
        f16_put_together<T, __nv_bfloat16>(shared, p, at);
}

} // namespace td

#define TD_F16_SPLIT_ENTRY(name, dim, bf16)                               \
    extern "C" __global__ void __launch_bounds__(TD_F16_SPLIT_THREADS, 1) \
        name(const __grid_constant__ td::F16Params p)                     \
    {                                                                     \
        td::wait_for_previous();                                          \
        td::attend_f16_split<td::F16SplitTile<dim, bf16>>(p);             \
    }
#define TD_F16_SPLIT_ENTRIES(dim)                               \
    TD_F16_SPLIT_ENTRY(attn_f16_wgmma_split_d##dim, dim, false) \
    TD_F16_SPLIT_ENTRY(attn_bf16_wgmma_split_d##dim, dim, true)
#endif
