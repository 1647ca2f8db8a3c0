/* Attention on int8 codes of Q and K and e4m3 codes of V by wgmma where a block has 47 KB of shared memory:
 * `attn_8b_wgmma_inline`, `attn_8b_wgmma_inline_short`, `attn_8b_wgmma_inline_split`, sm_90a.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The arithmetic is that of attn_8b_wgmma (hopper.cuh), and so is every bit of O and lse. A block has three or four
 * warpgroups that compute, of 64 rows each; where there are few blocks, shorter ones of two. K and V go through a ring of slots
 * of 64 keys each, into which four more warps fetch (kernels/ring.h). Q lies in registers, at d64 and d128 the half of it for
 * which they have no room in shared memory. A warpgroup has S of one tile of keys and P of two (t: tile):
 *
 *   tensor     S = Q K(t), R += P V(t-1) --|           | S = Q K(t+1), R += P V(t) --
 *   threads                                | P = ex2 S |                            | P = ex2 S ...
 *
 * R adds up four tiles, so only every fourth time there is an O += R. `early`: R is waited for together with S, so that the
 * slot is free before the exponentials; then P of one tile is enough, which is eight registers fewer (`one_p`).
 *
 * Where tiles are few, a block has 64 rows, and its warpgroups share the keys (attn_8b_wgmma_inline_split): each has every
 * so manieth step of 128 keys, a ring of one slot and a team that fetches for it. The parts of O are put together as those
 * of attn_8b_wgmma_split are, by way of the slots, half of the channels at a time: with as many warpgroups the same bits.
 *
 * Barriers. A slot's `full` has one arrival a phase of each thread of the team that fetches, once it has waited for its copies
 * and told wgmma of them. Its `empty` has one of each warp that computes, four for each warpgroup of the ring that has rows (the
 * others leave at once). Each of those warps goes through all fetches of the ring in their order, also where its rows see none
 * of the keys any more: those it waits for and gives back. About round n of a slot:
 *
 *   each thread of the team    waits for phase n - 1 of empty, copies, waits for the copies, then arrives at full
 *   each warp that computes    waits for phase n of full, lets wgmma read, waits for wgmma, then arrives at empty
 *
 * - Nobody writes what is still read: phase n - 1 of empty ends with the last arrival behind the reads of round n - 1.
 * - A wait is for the phase in progress or the one right before it, so that a parity says which. Of full: a warp has waited
 *   for phase n - 1 itself; phase n + 1 cannot end before round n + 1 is written, behind phase n of empty, behind this very
 *   warp's arrival. Of empty: phase n cannot end before its warps arrive, behind their wait for full of round n, for which
 *   this very thread has yet to write. Phase n - 2 has ended: where a team comes to fetch f, it has had room for the one before,
 *   f - teams; so the consumers are done with f - teams - slots, and with f - 2 slots before it, as there are not more teams
 *   than slots.
 * - Nobody waits for ever: who fetches waits for nothing but room and copies. A warp that computes waits for a fetch with
 *   none in hand that it has not given back.
 * - Behind the last fetches nobody waits for empty.
 * Every wait ends after some ten seconds: then the kernel traps, which loses the device instead of hanging it.
 *
 * Scales of keys come with K of every second tile, into one of two places in turn, of a ring of one slot into one: a step's are
 * read (`look`) before its first fetch is given back, and overwritten by a fetch four (two) later, for which that has to have
 * happened, as there are at most four slots (one).
 *
 * Threads: TD_HOPPER_THREADS(groups). Registers of a thread that computes: 232, 160 or 112 with 2, 3 or 4 warpgroups.
 * Shared bytes: TD_HOPPER_INLINE_SHARED_BYTES(d, groups, splits), at most 47968 of 48128.
 */
#include "hopper.cuh"
#include "ring.cuh"

#if TD_HAVE_WGMMA

namespace td {
namespace ring {

/* Splits: 1, or as many as Groups: the warpgroups have the same 64 rows then, and each every Splits-th step of keys and a
 * ring of one slot. */
template <int Dim, int Groups, int Splits = 1> struct Tile {
    static constexpr unsigned d = Dim;
    static constexpr int dim = Dim, groups = Groups, splits = Splits, rows = 64 * Groups / Splits;
    static constexpr int threads = 128 * (Groups + 1);
    static constexpr int keys = int(TD_HOPPER_KEYS), tile = int(TD_TILE_KEYS); /* of a step; of a slot */
    static constexpr bool shares = Splits > 1;
    static constexpr uint32_t rings = Splits, slots = TD_HOPPER_INLINE_SLOTS(d, unsigned(Splits)); /* of a ring */
    static constexpr uint32_t all_slots = rings * slots, teams = TD_HOPPER_INLINE_TEAMS(d, unsigned(Splits));
    static constexpr int team_warps = 4 / int(teams);
    static constexpr uint32_t tiles_ahead = slots == 2 ? 4 : 0; /* brought into L2, where so few are under way */
    static constexpr int qk_row = int(TD_HOPPER_ROW_BYTES(d)); /* bytes of a row of K */
    static constexpr int columns = Dim + 8;                    /* of P V: the channels, and eight times P's sum */
    static constexpr int q_steps = int(TD_HOPPER_INLINE_Q_STEPS(d, unsigned(Groups))); /* in shared memory */
    static constexpr bool v_last = TD_HOPPER_INLINE_V_LAST(d, unsigned(Groups));
    static constexpr bool one_p = Groups == 4 || (Dim == 128 && Groups == 3), early = one_p || shares; /* see above */

    struct Shared {
        uint8_t k[all_slots][tile * qk_row];
        uint8_t v[all_slots][columns * tile];
        uint8_t q[q_steps ? rows * 32 * q_steps : 16]; /* the first channels */
        float v_scale[v_last ? 4 : Dim], v_mean[v_last ? 4 : Dim];
        float k_scale[shares ? Splits : 2][keys]; /* by step; of rings, behind whose last step sums and bases of rows */
        int free_keys[4];                         /* that all rows of a warpgroup may attend to */
        uint32_t bh, bhk, row0, padding;
        float row_scale[64 * groups];             /* with the softmax's */
        uint64_t full[all_slots], empty[all_slots];
    };
    static_assert(sizeof(Shared) == TD_HOPPER_INLINE_SHARED_BYTES(d, unsigned(Groups), unsigned(Splits)),
                  "the launch asks for another size");
    static_assert(sizeof(Shared) <= 47 * 1024, "more than a block has in a command buffer");
    static_assert(teams <= all_slots && slots <= 4, "see above");
    static_assert(sizeof(Shared::k) % (8 * tile) == 0 && columns % 8 == 0, "swizzled rows begin elsewhere");
    static_assert(!shares || Splits * 64 * Dim / 2 * 4 <= sizeof(Shared::k) + sizeof(Shared::v), "no room for half of O");
};

/* A block's share of the work. */
struct Place : PlaceOf<uint32_t> {
    int active; /* warpgroups that have rows */
    int tiles;
};

/* Where rows differ in what they see, the tiles of some heads whose K and V L2 has together, the longest first: else the last
 * blocks are as long as the first. */
template <class T> __device__ __forceinline__ PlaceOf<uint32_t> place_of_block(const td_params_attention &p)
{
    if (!p.causal)
        return place<T>(p);
    const uint32_t tiles = (p.o.rows + T::rows - 1) / T::rows, most = (24u << 20) / (2 * T::dim) / p.kv_pad;
    const uint32_t each = max(1u, min(most, p.planes)), round = blockIdx.x / (each * tiles);
    const uint32_t here = min(each, p.planes - round * each), number = blockIdx.x - round * each * tiles;

    return place_of<T, uint32_t>(p, round * each + number % here, int(tiles - 1 - number / here), p.heads);
}

__device__ __forceinline__ bool is_there(const uint64_t &barrier, uint32_t parity)
{
    return mbarrier_test_wait(shared_address(&barrier), parity);
}

/* Of `tiles` tiles, how many are ring number `ring`'s. */
template <class T> __device__ __forceinline__ int tiles_of(int tiles, int ring)
{
    if (!T::shares)
        return tiles;
    const int steps = (tiles + 1) / 2, mine = (steps - ring + T::splits - 1) / T::splits;
    return 2 * mine - int(tiles % 2 && (steps - 1) % T::splits == ring);
}

/* A warp of a team, which has every so many fetches, or a ring's. A thread's copies go to and come from addresses that differ
 * from fetch to fetch by the same. */
template <class T> struct Fetcher {
    static constexpr int threads = 32 * T::team_warps;
    static constexpr int k_pieces = T::dim / 16, k_abreast = k_pieces & -k_pieces, k_rows = threads / k_abreast; /* at once */
    static constexpr int v_rows = threads / (T::tile / 16);
    static constexpr int kinds = k_rows < 8 ? 8 / k_rows : 1; /* of rows, by where the swizzle puts their pieces */
    static_assert(T::tile % k_rows == 0 && T::dim % v_rows == 0 && v_rows % 8 == 0, "every thread copies as much");

    typename T::Shared &shared;
    const td_params_attention &p;
    uint32_t team, tiles, first, each; /* fetches: the first, from one to the next */
    int t;
    int64_t plane;
    const uint8_t *k_plane, *v_plane, *k, *v;
    const float *k_scale;
    int64_t v_further;
    uint32_t k_to, v_to;
    uint32_t k_at[kinds][k_pieces / k_abreast];

    __device__ __forceinline__ Fetcher(typename T::Shared &s, const td_params_attention &params, const Place &at)
        : shared(s), p(params)
    {
        team = __shfl_sync(~0u, threadIdx.x % 128 / threads, 0); /* the compiler sees that a warp agrees on it */
        t = int(threadIdx.x) % threads;
        const int k_row = t / k_abreast, k_byte = t % k_abreast * 16;
        const int v_row = t / (T::tile / 16), v_byte = t % (T::tile / 16) * 16;
        const int64_t key = T::shares ? team * T::keys : team * T::tile;

        plane = at.bhk;
        tiles = uint32_t(tiles_of<T>(at.tiles, int(team)));
        first = T::shares ? 0 : team;
        each = T::shares ? 1 : T::teams;
        k_plane = (const uint8_t *)p.k_codes + plane * p.kv_pad * T::dim;
        v_plane = (const uint8_t *)p.v_codes + plane * p.kv_pad * T::dim;
        k = k_plane + (key + k_row) * T::dim + k_byte;
        v = v_plane + v_row * int64_t(p.kv_pad) + key + v_byte - (T::shares ? 0 : T::tile);
        k_scale = p.k_scale + plane * p.kv_pad + key + 4 * t;
        v_further = int64_t(v_rows) * p.kv_pad;
        const uint32_t ring = T::shares ? team : 0;
        k_to = shared_address(shared.k[ring]);
        v_to = shared_address(shared.v[ring]) + swizzled<T::tile>(uint32_t(v_row * T::tile + v_byte));
#pragma unroll
        for (int i = 0; i < kinds; i++)
#pragma unroll
            for (int j = 0; j < k_pieces / k_abreast; j++)
                k_at[i][j] =
                    k_to + swizzled<T::qk_row>(uint32_t((k_row + i * k_rows) * T::qk_row + k_byte + 16 * k_abreast * j));
    }

    __device__ __forceinline__ bool has(uint32_t n) const
    {
        return team < T::teams && n < td_ring_fetches(tiles);
    }

    __device__ __forceinline__ void copy_k(uint32_t n)
    {
        const uint32_t k_slot = T::slots == 1 ? 0 : td_ring_of(n, T::slots).slot * uint32_t(sizeof shared.k[0]);

        if (td_ring_has_k(n, tiles)) {
#pragma unroll
            for (int r = 0; r < T::tile / k_rows; r++)
#pragma unroll
                for (int j = 0; j < k_pieces / k_abreast; j++)
                    cp_async_16(k_at[r % kinds][j] + k_slot + uint32_t(r / kinds * kinds * k_rows * T::qk_row),
                                k + r * k_rows * T::dim + 16 * k_abreast * j);
            if (n % 2 == 0 && t < T::keys / 4) {
                const uint32_t to = shared_address(shared.k_scale[T::shares ? team : n / 2 % 2] + 4 * t);

                cp_async_16(to, k_scale);
            }
        }
        const int further = !T::shares ? int(T::teams) * T::tile : n % 2 ? (2 * T::splits - 1) * T::tile : T::tile;
        k += further * T::dim;
        k_scale += further;
    }

    __device__ __forceinline__ void copy_v(uint32_t n)
    {
        const uint32_t v_slot = T::slots == 1 ? 0 : td_ring_of(n, T::slots).slot * uint32_t(sizeof shared.v[0]);

        if (td_ring_has_v(n)) {
            const uint8_t *from = v;

#pragma unroll
            for (int r = 0; r < T::dim / v_rows; r++, from += v_further)
                cp_async_16(v_to + v_slot + uint32_t(r * v_rows * T::tile), from);
        }
        v += !T::shares ? int(T::teams) * T::tile
             : n == 0   ? 0
             : n % 2    ? T::tile
                        : (2 * T::splits - 1) * T::tile;
    }

    /* The first fetch, for which there is room. */
    __device__ __forceinline__ void begin()
    {
        if (has(first)) {
            copy_k(first);
            copy_v(first);
            cp_async_commit();
        }
    }

    __device__ __forceinline__ void go_on()
    {
#pragma unroll 1
        for (uint32_t n = first; has(n); n += each) {
            const td_ring_place place = td_ring_of(n, T::slots);
            const uint32_t slot = T::shares ? team : place.slot;

            if (n != first) {
                wait_or_trap(shared.empty[slot], td_ring_empty_parity(place));
                bar_sync<threads>(8 + team); /* for racecheck, which follows an arrival of a warp's one lane for that lane alone */
                copy_k(n);
                copy_v(n);
                cp_async_commit();
            }
            if (n == 0 && team == 0 && !T::v_last) /* nobody needs them before the last fetch is there */
                for (int c = t; c < T::dim; c += threads) {
                    shared.v_scale[c] = p.v_scale[plane * T::dim + c];
                    shared.v_mean[c] = p.v_mean ? p.v_mean[plane * T::dim + c] : 0.0f;
                }
            if (T::tiles_ahead > 0 && n + T::tiles_ahead < tiles) {
                const int64_t ahead = (n + T::tiles_ahead) * T::tile;

                for (int at_byte = 128 * t; at_byte < T::tile * T::dim; at_byte += 128 * threads)
                    prefetch_l2(k_plane + ahead * T::dim + at_byte);
                for (int c = t; c < T::dim && ahead % 128 == 0; c += threads)
                    prefetch_l2(v_plane + c * int64_t(p.kv_pad) + ahead);
            }
            cp_async_wait<0>();
            fence_proxy_async();
            mbarrier_arrive(shared_address(&shared.full[slot]));
        }
    }
};

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
            const float key_scale = __uint_as_float(ld_global(mine + Half * 64 + fragment_column(0, i / 4, i % 4)));

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
                wgmma_s8<true>(s, descriptor<32 * T::q_steps>(q_word + 2 * step), descriptor<T::qk_row>(k + 2 * step));
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

/* --- Parts of O of warpgroups that share keys --- */

/* Where a row's channels lie that a warpgroup leaves for the others: half of them at a time, where K and V were. */
template <class T> __device__ __forceinline__ float *left_half(typename T::Shared &shared, int group, int row, int channel)
{
    constexpr int half = T::dim / 2, mask = half % 64 == 0 ? 7 : half % 32 == 0 ? 3 : 1;

    return reinterpret_cast<float *>(shared.k[0]) + (group * 64 + row) * half + (channel ^ (row & mask) * 8);
}

/* As in hopper.cuh. */
template <class T>
__device__ __forceinline__ void weigh(typename T::Shared &shared, const td_params_attention &p, const PlaceOf<uint32_t> &at,
                                      int row)
{
    float top = -CUDART_INF_F, l = 0;

#pragma unroll
    for (int i = 0; i < T::splits; i++)
        top = fmaxf(top, shared.k_scale[i][64 + row]);
#pragma unroll
    for (int i = 0; i < T::splits; i++) {
        const float base = shared.k_scale[i][64 + row], sum = shared.k_scale[i][row];
        const float by = base == top ? 1.0f : ex2(__fsub_rn(base, top));

        l = i ? __fmaf_rn(sum, by, l) : __fmul_rn(sum, by);
        shared.k_scale[i][64 + row] = by;
    }
    shared.k_scale[0][row] = l != 0.0f ? __frcp_rn(l) : 0.0f;
    write_lse(p, at.bh, at.row0 + row, 0, top, l);
}

/* Half of the channels of O of the tile's rows. */
template <class T, class E>
__device__ __forceinline__ void put_half(typename T::Shared &shared, const td_params_attention &p,
                                         const PlaceOf<uint32_t> &at, int first)
{
    constexpr int fours = T::dim / 8, abreast = 128 * T::splits / fours; /* rows */
    const int t = tid_x(), channel = t % fours * 4, rows = min(64, int(p.o.rows) - at.row0);
    E *to = static_cast<E *>(p.o.data) + at.bh / p.heads * p.o.stride_batch + at.bh % p.heads * p.o.stride_head +
            (at.row0 + t / fours) * p.o.stride_row;
    const float4 scale = *reinterpret_cast<const float4 *>(shared.v_scale + first + channel);
    const float4 mean = *reinterpret_cast<const float4 *>(shared.v_mean + first + channel);

    static_assert(128 * T::splits % fours == 0, "a thread's channels stay");
#pragma unroll 1
    for (int row = t / fours; row < rows; row += abreast) {
        float x[4];

#pragma unroll
        for (int i = 0; i < T::splits; i++) {
            const float4 o = *reinterpret_cast<const float4 *>(left_half<T>(shared, i, row, channel));
            const float by = shared.k_scale[i][64 + row];

            x[0] = i ? __fmaf_rn(o.x, by, x[0]) : __fmul_rn(o.x, by);
            x[1] = i ? __fmaf_rn(o.y, by, x[1]) : __fmul_rn(o.y, by);
            x[2] = i ? __fmaf_rn(o.z, by, x[2]) : __fmul_rn(o.z, by);
            x[3] = i ? __fmaf_rn(o.w, by, x[3]) : __fmul_rn(o.w, by);
        }
        const float part = shared.k_scale[0][row];
        const bool some = part != 0.0f;
        const float y[4] = {some ? __fadd_rn(__fmul_rn(__fmul_rn(x[0], part), scale.x), mean.x) : 0.0f,
                            some ? __fadd_rn(__fmul_rn(__fmul_rn(x[1], part), scale.y), mean.y) : 0.0f,
                            some ? __fadd_rn(__fmul_rn(__fmul_rn(x[2], part), scale.z), mean.z) : 0.0f,
                            some ? __fadd_rn(__fmul_rn(__fmul_rn(x[3], part), scale.w), mean.w) : 0.0f};
        write_four(to, first + channel, int(p.o.dim), y);
        to += abreast * p.o.stride_row;
    }
}

/* Leaves this warpgroup's part, and writes some of what all parts make. */
template <class T>
__device__ __forceinline__ void merge(typename T::Shared &shared, const td_params_attention &p, const Sums<T> &c)
{
    PlaceOf<uint32_t> at;
    const int t = tid_x(), group = t / 128, lane = t % 32;

    at.bh = shared.bh;
    at.row0 = int(shared.row0);

    bar_sync<128>(uint32_t(1 + group)); /* all of its warps have read scales of keys */
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (lane % 4 == 0) {
            const int row = t % 128 / 32 * 16 + fragment_row(lane, 2 * half);

            shared.k_scale[group][row] = c.l[half];
            shared.k_scale[group][64 + row] = c.top[half];
        }
    bar_sync<128 * T::splits>(7); /* and K and V */
    if (t < 64)
        weigh<T>(shared, p, at, t);
#pragma unroll
    for (int first = 0; first < T::dim; first += T::dim / 2) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = t % 128 / 32 * 16 + fragment_row(lane, 2 * half);

#pragma unroll
            for (int j = 0; j < T::dim / 16; j++) {
                const int i = 4 * (first / 8 + j) + 2 * half;

                *reinterpret_cast<float2 *>(left_half<T>(shared, group, row, fragment_column(lane, j, 0))) =
                    float2{c.o[i], c.o[i + 1]};
            }
        }
        bar_sync<128 * T::splits>(7);
        if (p.o.dtype == TANDEM_DTYPE_F32)
            put_half<T, float>(shared, p, at, first);
        else if (p.o.dtype == TANDEM_DTYPE_F16)
            put_half<T, __half>(shared, p, at, first);
        else
            put_half<T, __nv_bfloat16>(shared, p, at, first);
        if (first == 0)
            bar_sync<128 * T::splits>(7);
    }
}

/* What a warpgroup has of Q and its scales; behind it comes a barrier of the block. */
template <class T>
__device__ __forceinline__ void begin(typename T::Shared &shared, const td_params_attention &p, const Place &at,
                                      Consumer<T> &c)
{
    const int thread = int(threadIdx.x) % 128, group = int(threadIdx.x) / 128;
    const int64_t q_row = int64_t(at.bh) * p.q_pad + at.row0 + (T::shares ? 0 : 64 * group); /* padded to 128 in memory */

    if (group >= at.active)
        return;
    if constexpr (T::q_steps > 0) {
        copy_swizzled<64, 32 * T::q_steps, 32 * T::q_steps>(shared.q + group * 64 * 32 * T::q_steps,
                                                            (const uint8_t *)p.q_codes + q_row * T::dim, T::dim, thread);
        cp_async_commit();
    }
    const float q_scale = thread < 64 ? p.q_scale[q_row + thread] : 0.0f;
    if (thread == 0)
        shared.free_keys[group] =
            p.causal ? min(int(p.kv_len), at.row0 + (T::shares ? 0 : 64 * group) + at.reach) : int(p.kv_len);
    c.load_q((const uint8_t *)p.q_codes + (q_row + thread / 32 * 16) * T::dim, thread % 32);
    if (thread < 64)
        shared.row_scale[64 * group + thread] = __fmul_rn(q_scale, __fmul_rn(p.scale, TD_LOG2_E));
    if constexpr (T::q_steps > 0)
        cp_async_wait<0>();
}

template <class T>
__device__ __forceinline__ void consume(typename T::Shared &shared, const td_params_attention &p, const Place &at,
                                        Consumer<T> &c)
{
    constexpr int pieces = Consumer<T>::kPieces;
    const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0); /* the compiler sees that a warp agrees on it */
    const int split = T::shares ? group : 0;
    const int group_row = at.row0 + (T::shares ? 0 : 64 * group), end = int(p.kv_len);
    const uint32_t q_tile = tile_word(shared.q) + uint32_t(group * 64 * 32 * T::q_steps / 16);
    const uint32_t k_tile = tile_word(shared.k[split]), v_tile = tile_word(shared.v[split]);
    uint64_t *const full = shared.full + split, *const empty = shared.empty + split;
    constexpr uint32_t k_words = sizeof shared.k[0] / 16, v_words = sizeof shared.v[0] / 16;
    const int own_keys = p.causal ? max(0, min(end, min(group_row + 64, int(p.o.rows)) - 1 + at.reach)) : end;
    const int all = tiles_of<T>(at.tiles, split), tiles = T::shares ? all : int(uint32_t(own_keys + T::tile - 1) / T::tile);
    td_ring_place now = {0, 0}; /* the last fetch that was waited for */

    /* Registers are few: what follows from a thread's number is found anew where it is needed. */
    const auto lane_now = [] { return tid_x() % 32; };

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

        const auto first_key = [&](int step) { return (step * T::splits + split) * T::keys; };
        /* The scale of a thread's keys, and whether any of the warp's are masked, or bad: only those have another. */
        const auto look = [&](int step) {
            const float *scales = shared.k_scale[T::shares ? split : step % 2] + 2 * lane_now();
            const float2 low = *reinterpret_cast<const float2 *>(scales);
            const float2 high = *reinterpret_cast<const float2 *>(scales + 64);

            key_scale = low.x;
            return !__all_sync(~0u, low.x == low.y && low.x == high.x && low.x == high.y &&
                                        first_key(step) + T::keys <= shared.free_keys[tid_x() / 128]);
        };
        /* What follows is rare: the scales, as they lie in global memory, and whether any of the warp's is NaN. */
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
                p.causal ? int(shared.row0 + p.kv_len - p.o.rows) + 1 + (T::shares ? 0 : tid_x() / 128 * 64) : int(p.kv_len));
        };
        const auto set_scale = [&] {
            const int t = tid_x();
            const float *mine = shared.row_scale + t / 32 * 16 + t % 32 / 4;

            c.scale[0] = __fmul_rn(mine[0], key_scale);
            c.scale[1] = __fmul_rn(mine[8], key_scale);
        };
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
        if (odd)
            mask_first(0);
        c.set_base(c.l);

        /* From S of a tile to P V of it and S of the next one, both of the next fetch. Without a next tile, S is of what
         * lies there, and not used. */
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
            if (__builtin_expect(odd, 0))
                mask(Number<1>(), step);
            attend(Number<1>(), step);
            odd = look(step + 1);
            set_scale();
            const bool more = 2 * step + 2 < tiles;
            await(more);
            if (!more)
                break;
            if (__builtin_expect(odd, 0))
                mask_first(step + 1);
        }
        wgmma_wait<0>();
        wgmma_hold(c.r);
        if (!T::shares && tiles < all)
            warp_arrive(empty[now.slot]);
        c.flush(c.l);
    }
    if (!T::shares && tiles < all) /* what other warpgroups have yet to see */
        for (int fetch = tiles ? tiles + 1 : 0; fetch <= all; fetch++) {
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

template <class T> __device__ __forceinline__ void attend_ring(const td_params_attention &p)
{
    /* attn_8b_wgmma's: one more array would move that of other kernels in their shared memory. */
    TD_DYNAMIC_SHARED(1024, hopper_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(hopper_bytes);
    const int thread = int(threadIdx.x);
    const bool given_up = p.cancel && thread == 0 && *(const volatile uint32_t *)p.cancel;
    ring::Place at = {ring::place_of_block<T>(p), 0, 0};

    at.active = T::shares ? int(p.o.rows > uint32_t(at.row0)) * T::groups : (min(T::rows, int(p.o.rows) - at.row0) + 63) / 64;
    at.tiles = (at.keys + T::tile - 1) / T::tile;

    /* Barriers, the eight rows of ones of each slot; whether the work is given up. */
    const auto start = [&] {
        if (thread == 0) { /* what is asked for again at the end, where registers are few */
            shared.bh = at.bh;
            shared.bhk = at.bhk;
            shared.row0 = uint32_t(at.row0);
        }
        if (thread == 0) /* a loop, not a predicate: with that, racecheck sees other threads' copies hit by it */
#pragma unroll 1
            for (uint32_t slot = 0; slot < T::all_slots; slot++) {
                mbarrier_init(shared_address(&shared.full[slot]), 32 * T::team_warps);
                mbarrier_init(shared_address(&shared.empty[slot]), T::shares ? 4 : 4 * at.active);
            }
        constexpr int words = 8 * T::tile / 4;
        for (int i = thread; i < int(T::all_slots) * words; i += T::threads)
            *reinterpret_cast<uint32_t *>(shared.v[i / words] + T::dim * T::tile + i % words * 4) = 0x38383838u;
        fence_proxy_async();
        return __syncthreads_or(given_up);
    };
    constexpr int computes = T::groups == 2 ? 232 : T::groups == 3 ? 160 : 112;
    constexpr int fetches = T::groups == 2 ? 40 : 32;
    if (thread >= 128 * T::groups) {
        ring::Fetcher<T> fetcher(shared, p, at);
        fetcher.begin();
        if (start()) {
            cp_async_wait<0>();
            return;
        }
        setmaxnreg_dec<fetches>();
        fetcher.go_on();
    } else {
        ring::Consumer<T> c;
        ring::begin<T>(shared, p, at, c);
        if (start())
            return;
        setmaxnreg_inc<computes>();
        if (thread < 128 * at.active)
            ring::consume<T>(shared, p, at, c);
    }
}

} // namespace td

#ifndef DIM
#define TD_INLINE_ENTRY(name, dim, groups)                                                                    \
    extern "C" __global__ void __launch_bounds__(TD_HOPPER_THREADS(groups), 1)                                \
        name##_d##dim(const __grid_constant__ td_params_attention p)                                          \
    {                                                                                                         \
        td::attend_ring<td::ring::Tile<dim, int(groups)>>(p);                                                 \
    }
#define TD_INLINE_SPLIT_ENTRY(dim)                                                                             \
    extern "C" __global__ void __launch_bounds__(TD_HOPPER_THREADS(TD_HOPPER_INLINE_SPLITS(dim)), 1)           \
        attn_8b_wgmma_inline_split_d##dim(const __grid_constant__ td_params_attention p)                       \
    {                                                                                                          \
        constexpr int splits = int(TD_HOPPER_INLINE_SPLITS(dim));                                              \
        td::attend_ring<td::ring::Tile<dim, splits, splits>>(p);                                               \
    }
TD_INLINE_SPLIT_ENTRY(32)
TD_INLINE_SPLIT_ENTRY(64)
TD_INLINE_SPLIT_ENTRY(96)
TD_INLINE_SPLIT_ENTRY(128)
TD_INLINE_ENTRY(attn_8b_wgmma_inline, 32, TD_HOPPER_INLINE_GROUPS(32u))
TD_INLINE_ENTRY(attn_8b_wgmma_inline, 64, TD_HOPPER_INLINE_GROUPS(64u))
TD_INLINE_ENTRY(attn_8b_wgmma_inline, 96, TD_HOPPER_INLINE_GROUPS(96u))
TD_INLINE_ENTRY(attn_8b_wgmma_inline, 128, TD_HOPPER_INLINE_GROUPS(128u))
TD_INLINE_ENTRY(attn_8b_wgmma_inline_short, 32, TD_HOPPER_INLINE_FEW)
TD_INLINE_ENTRY(attn_8b_wgmma_inline_short, 64, TD_HOPPER_INLINE_FEW)
TD_INLINE_ENTRY(attn_8b_wgmma_inline_short, 96, TD_HOPPER_INLINE_FEW)
TD_INLINE_ENTRY(attn_8b_wgmma_inline_short, 128, TD_HOPPER_INLINE_FEW)
#endif
#endif
