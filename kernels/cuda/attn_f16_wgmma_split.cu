/* O = softmax(scale * Q K^T) V as attn_f16_wgmma has it, for few tiles of rows: `attn_f16_wgmma_split`, sm_90a.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A block has one tile of 64 rows and four warpgroups, each of which takes every fourth step of 64 keys with a softmax of
 * its own; `attn_f16_wgmma_split2`, at head dim 64, has 128 rows, of which two pairs of warpgroups take every second step of
 * 128 keys. Those with the same keys are a team. There are no warps that only fetch: a team's threads fetch V of a step and
 * K of the next into the team's ring of slots once Q K^T is under way, and meet at its barrier before P V:
 *
 *   fetching   Q K(0)       | V(0) K(1)                        |            | V(1) K(2) ...
 *   tensor                  | S = Q K(0)                       | O += P V(0)| S = Q K(1)
 *   threads    wait for K(0)|            P = ex2 S, wait, meet |            |            P = ex2 S, wait, meet
 *
 * So nothing is under way at a fence.proxy.async, which would wait for it. While one team waits for its products, others are
 * in the exponential. In the end each warpgroup leaves its O, sums and bases in shared memory, and all threads write the
 * tile: O = sum of O_i 2^(top_i - top), in the teams' order, so every run has the same bits. Otherwise all is as in
 * attn_f16_wgmma; keys are added up in another order, so bits differ. With a mask the longest tiles of all heads come first.
 * Loads come first, as a small launch is little more than its latencies.
 * Shared bytes: TD_F16_SPLIT_SHARED_BYTES(d, members). Registers: 128.
 * H200: batch 1, 4 heads, 1024 x 1024: d64 9.2 us, d128 13.5 us in a graph. More: kernels/NOTES.md.
 */
#include "f16.cuh"

#if TD_HAVE_WGMMA

namespace td {

template <int Dim, int Members, bool Bf16> struct F16SplitTile {
    static constexpr int dim = Dim, members = Members, keys = int(TD_F16_SPLIT_KEYS(unsigned(Members)));
    static constexpr int teams = int(TD_F16_SPLIT_TEAMS(unsigned(Members)));
    static constexpr int slots = int(TD_F16_SPLIT_SLOTS(unsigned(Dim)));
    static constexpr bool bf16 = Bf16;
    static constexpr int rows = 64 * Members, threads = int(TD_F16_SPLIT_THREADS);
    static constexpr int parts = int(TD_F16_PARTS(unsigned(Dim))); /* a row is cut into parts of 64 channels: 128 bytes */
    static constexpr int pitch = Dim + 8; /* floats of a row of O that is left: 8 rows meet all banks */

    struct Shared {
        alignas(1024) uint8_t q[Members][parts][64 * 128];
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
    static_assert(128 * Members * teams == threads, "all have work");
    static_assert(rows <= keys && teams >= 2, "the mask cuts at most two steps, which are not one team's");
    static_assert(sizeof(Shared) == TD_F16_SPLIT_SHARED_BYTES(unsigned(Dim), unsigned(Members)),
                  "the launch asks for another size");
};

/* Eight neighbours in a row of O. */
template <class E> __device__ __forceinline__ void f16_write_eight(E *to, const float (&x)[8])
{
    if constexpr (sizeof(E) == 4) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            to[i] = x[i];
    } else {
        uint32_t bits[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            bits[i] = pack2(to, x[2 * i], x[2 * i + 1]);
        if (reinterpret_cast<uint64_t>(to) % 16 == 0) {
            *reinterpret_cast<uint4 *>(to) = make_uint4(bits[0], bits[1], bits[2], bits[3]);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++)
                reinterpret_cast<uint16_t *>(to)[i] = uint16_t(bits[i / 2] >> (16 * (i % 2)));
        }
    }
}

/* O and lse of the tile, from what the teams have left. */
template <class T, class E>
__device__ __forceinline__ void f16_put_together(const typename T::Shared &shared, const td_params_attention_f16 &p,
                                                 const F16Place &at)
{
    constexpr int eights = T::dim / 8;
    const int rows = min(T::rows, int(p.o.rows) - at.row0);
    E *to = static_cast<E *>(p.o.data) + at.batch * p.o.stride_batch + at.head * p.o.stride_head +
            at.row0 * p.o.stride_row;

#pragma unroll 1
    for (int i = tid_x(); i < rows * eights; i += T::threads) {
        const int row = i / eights, channel = i % eights * 8;
        float x[8], top = -CUDART_INF_F, l = 0;

#pragma unroll
        for (int team = 0; team < T::teams; team++)
            top = fmaxf(top, shared.top[team][row]);
#pragma unroll
        for (int team = 0; team < T::teams; team++) {
            const float *left = T::left(shared, team, row) + channel;
            const float4 low = *reinterpret_cast<const float4 *>(left), high = *reinterpret_cast<const float4 *>(left + 4);
            const float o[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            const float base = shared.top[team][row], by = base == top ? 1.0f : ex2(__fsub_rn(base, top));

            l = __fmaf_rn(shared.l[team][row], by, l);
#pragma unroll
            for (int j = 0; j < 8; j++)
                x[j] = team ? __fmaf_rn(o[j], by, x[j]) : __fmul_rn(o[j], by);
        }
        const float part = l != 0.0f ? __frcp_rn(l) : 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = __fmul_rn(x[j], part);
        f16_write_eight(to + row * p.o.stride_row + channel, x);
        if (p.lse && channel == 0)
            p.lse[at.batch * p.lse_stride_batch + at.head * p.lse_stride_head + (at.row0 + row) * p.lse_stride_row] =
                l != 0.0f ? __fmul_rn(__fadd_rn(top, log2f(l)), TD_LN_2) : -CUDART_INF_F;
    }
}

/* The tile of block x, as f16_place() counts: with a mask the longest ones of all heads come first. */
template <class T> __device__ __forceinline__ uint32_t f16_split_work(const td_params_attention_f16 &p, uint32_t x)
{
    const uint32_t tiles = (p.q.rows + T::rows - 1) / T::rows, planes = p.causal ? p.works / tiles : 1;

    return p.causal ? x % planes * tiles + x / planes : x;
}

template <class T> __device__ __forceinline__ void attend_f16_split(const td_params_attention_f16 &p)
{
    using Copy = F16Copy<T::keys, T::dim>;
    using CopyQ = F16Copy<64 / T::teams, T::dim, 64>;
    constexpr uint32_t kTeams = 1 /* barriers */, kExponent = T::bf16 ? 0x7f80u : 0x7c00u;
    TD_DYNAMIC_SHARED(1024, f16_split_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(f16_split_bytes);
    const bool given_up = p.cancel && threadIdx.x == 0 && *static_cast<const volatile uint32_t *>(p.cancel);
    const int group = __shfl_sync(~0u, int(threadIdx.x / 128), 0); /* the compiler sees that a warp agrees on it */
    const int team = group / T::members, member = group % T::members;
    const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x % 128 / 32);
    const F16Rows<T> rows(p, f16_split_work<T>(p, blockIdx.x), 64 * member + 16 * warp);
    const F16Place &at = rows.at;
    const int kv_len = int(p.k.rows), steps = (at.steps - team + T::teams - 1) / T::teams; /* of this team */

    /* K or V of this team's next step into the next slot; of two members one fetches K, the other V. */
    enum { K, V, SOURCES = 2 / T::members };
    const uint8_t *from[SOURCES];
    int there[SOURCES], slot = 0;
#pragma unroll
    for (int i = 0; i < SOURCES; i++) {
        from[i] = f16_rows((T::members == 1 ? i : member) == K ? p.k : p.v, at.batch, at.kv_head,
                           team * T::keys + Copy::first_row()) + Copy::first_byte();
        there[i] = min(kv_len, at.steps * T::keys) - team * T::keys;
    }
    const auto next = [](int of) { return of + 1 == T::slots ? 0 : of + 1; };
    const auto fetch = [&](int what) {
        const int i = T::members == 1 ? what : 0;

        if (T::members == 1 || member == what) {
            const int64_t stride_bytes = 2 * (what == K ? p.k : p.v).stride_row;

            if (there[i] > 0)
                Copy::start(shared_address(shared.tile[team][slot]), from[i], stride_bytes, there[i]);
            from[i] += T::teams * T::keys * stride_bytes;
            there[i] -= T::teams * T::keys;
        }
        cp_async_commit();
        slot = next(slot);
    };
    const int q_row = at.row0 + 64 * member + 64 / T::teams * team; /* all have a part of Q */
    CopyQ::start(shared_address(shared.q[member]) + uint32_t(64 / T::teams * team * 128),
                 f16_rows(p.q, at.batch, at.head, q_row + CopyQ::first_row()) + CopyQ::first_byte(),
                 2 * p.q.stride_row, int(p.q.rows) - q_row);
    fetch(K);

    constexpr uint32_t part_words = T::keys * 128 / 16, slot_words = T::parts * part_words;
    const uint32_t q_tile = tile_word(shared.q[member]), k_tile = tile_word(shared.tile[team]);
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
            bar_sync<128 * T::members>(kTeams + uint32_t(team));
        fetch(K);
        now = next(now);
        wgmma_wait<0>();
        wgmma_hold(s);
        if (__builtin_expect(cut, 0))
            c.mask(s, lane, step * T::keys, kv_len, rows.reach);
        if (c.softmax(s, scale, alpha))
            c.rescale(alpha);
        c.convert(s);
        cp_async_wait<0>();
        if (__builtin_expect(heals, 0)) {
            const int first = T::members == 1 || member == V ? Copy::clear_bad(shared.tile[team][now][0], kExponent) : T::keys;

            if (first < T::keys)
                atomicMin(&shared.first_bad[team], first);
        }
        fence_proxy_async();
        bar_sync<128 * T::members>(kTeams + uint32_t(team)); /* V is there, and K of the next step */
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
            bar_sync<128 * T::members>(kTeams + uint32_t(team));
        bar_sync<128 * T::members>(kTeams + uint32_t(team));
    }
    c.finish();
    bar_sync<128 * T::members>(kTeams + uint32_t(team)); /* all have read V */
    const int row = 64 * member + 16 * warp + lane / 4, which = lane % 4; /* a lane has one of a quad's numbers */
    (which % 2 ? shared.top : shared.l)[team][row + which / 2 * 8] =
        which == 0 ? c.l[0] : which == 1 ? c.top[0] : which == 2 ? c.l[1] : c.top[1];
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int j = 0; j < T::dim / 8; j++)
            *reinterpret_cast<float2 *>(T::left(shared, team, row + 8 * half) + fragment_column(lane, j, 0)) =
                float2{c.o[4 * j + 2 * half], c.o[4 * j + 2 * half + 1]};
    bar_sync<T::threads>(kTeams + T::teams);
    const F16Place to = T::members == 1 ? at : f16_place<T>(p, f16_split_work<T>(p, ctaid_x())); /* registers are few */
    if (p.o.dtype == TANDEM_DTYPE_F32)
        f16_put_together<T, float>(shared, p, to);
    else if (p.o.dtype == TANDEM_DTYPE_F16)
        f16_put_together<T, __half>(shared, p, to);
    else
        f16_put_together<T, __nv_bfloat16>(shared, p, to);
}

} // namespace td

#define TD_F16_SPLIT_ENTRY(name, dim, members, bf16)                                  \
    extern "C" __global__ void __launch_bounds__(TD_F16_SPLIT_THREADS, 1)             \
        name(const __grid_constant__ td_params_attention_f16 p)                       \
    {                                                                                 \
        td::wait_for_previous();                                                      \
        td::attend_f16_split<td::F16SplitTile<dim, members, bf16>>(p);                \
    }
#define TD_F16_SPLIT_ENTRIES(dim)                                  \
    TD_F16_SPLIT_ENTRY(attn_f16_wgmma_split_d##dim, dim, 1, false) \
    TD_F16_SPLIT_ENTRY(attn_bf16_wgmma_split_d##dim, dim, 1, true)
TD_F16_SPLIT_ENTRIES(64)
TD_F16_SPLIT_ENTRIES(80)
TD_F16_SPLIT_ENTRIES(96)
TD_F16_SPLIT_ENTRIES(128)
TD_F16_SPLIT_ENTRY(attn_f16_wgmma_split2_d64, 64, 2, false)
TD_F16_SPLIT_ENTRY(attn_bf16_wgmma_split2_d64, 64, 2, true)
#endif
