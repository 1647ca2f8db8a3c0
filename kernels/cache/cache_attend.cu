/* Attention of a few rows on caches of codes, by mma.sync, for every architecture: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A block has a tile of 16 rows and chunks of four pages, a warp a page: so all that a warp needs
 * is on its way at once. Codes of keys become fp16 as k_min + k_scale * code, those of values fp16
 * of their bits, 2^-8 as large, and v_scale comes last.
 *
 * Products do not care which keys and channels of a step are called which, so each thread loads
 * what lies behind one another. Of a page a quad's thread q has pairs of channels q * Dim / 8 and
 * so on of Q and K, and g the keys that key_of() says as columns of S.
 */
#include <math_constants.h>

#include "kernels/cache/append.cuh"
#include "kernels/cache/codes.cuh"

namespace td {

/* OneRow: each sequence has one. */
template <Codes Kind, int Dim, bool OneRow> struct Attend {
    static constexpr int rows = int(TD_CACHE_TILE), page = int(TD_CACHE_PAGE), warps = int(TD_CACHE_CHUNK);
    static constexpr int steps = Dim / 16; /* of Q K^T: four pairs of channels each thread's two */
    static constexpr int blocks = Dim / 64; /* of channels of V */
    static constexpr int pitch = Dim + 4;
    static constexpr int fours = Dim / 32; /* of channels that a thread adds up in the end */
    static constexpr uint32_t format = Kind == Codes::k4 ? TD_CACHE_K4 : Kind == Codes::k8 ? TD_CACHE_K4 - 1 : TD_CACHE_F16;

    /* What each warp has: sums of P V, the largest score of a row, and sums of P. Behind them sums of
     * P V of all chunks so far. */
    struct Shared {
        float o[warps + 1][rows * pitch], m[warps][rows], l[warps][rows];
    };
    static_assert(sizeof(Shared) == TD_CACHE_SHARED_BYTES(unsigned(Dim)), "the launch asks for another size");
    static_assert(warps * 32 == int(TD_BLOCK_THREADS), "a warp a page");

    /* Sums of one row, four neighbouring channels of every 32. */
    struct Sums {
        float4 o[fours];
        float m, l;
    };

    const td_params_cache_attend &p;
    Shared &shared;
    uint32_t batch, kv_head, tile, tiles, span;
    int g, q, warp;
    uint8_t *plane; /* its head and newest page; nullptr: none */
    uint8_t *pool;  /* of pages that all of its head have */
    const int32_t *table; /* nullptr: it has pages of its own */
    int asked;       /* where the only row of a sequence is said to be */
    int position[2]; /* of rows g and g + 8; -1: none */
    int last;        /* of all of the tile */
    struct RowsOfQ {
        uint32_t x[2][2 * steps];
    } kept;

    __device__ __forceinline__ Attend(const td_params_cache_attend &params, Shared &of) : p(params), shared(of)
    {
        const uint32_t of_plane = blockIdx.x / p.spans;

        tiles = OneRow ? 1 : (p.rows * p.group + rows - 1) / rows;
        span = blockIdx.x - of_plane * p.spans;
        const uint32_t number = of_plane / tiles;
        tile = of_plane - number * tiles;
        batch = number / p.kv_heads;
        kv_head = number - batch * p.kv_heads;
        g = int(threadIdx.x % 32 / 4);
        q = int(threadIdx.x % 4);
        warp = int(threadIdx.x / 32);
        table = p.table ? p.table + batch * p.table_stride : nullptr;
        pool = p.cache + row_at(p.cache_at, table ? 0 : batch, kv_head, 0);
    }
    /* What kernels ahead of this one may have written, beside Q: where rows and pages are. */
    __device__ __forceinline__ void look()
    {
        if (OneRow)
            asked = p.position[batch * p.position_at.stride_batch];
        plane = cache_plane(p, pool, table, format, Dim);
        if constexpr (OneRow) {
            last = place_of(asked);
#pragma unroll
            for (int half = 0; half < 2; half++)
                position[half] = token_of(g + 8 * half) ? -1 : last;
        } else {
            position[0] = position_of(g);
            position[1] = position_of(g + 8);
            last = max(position[0], position[1]);
#pragma unroll
            for (int apart = 4; apart < 32; apart *= 2)
                last = max(last, __shfl_xor_sync(~0u, last, apart));
        }
    }

    __device__ __forceinline__ uint32_t token_of(int row) const
    {
        if constexpr (OneRow)
            return uint32_t(row) >= p.group;
        else
            return (tile * rows + row) / p.group;
    }

    __device__ __forceinline__ uint32_t head_of(int row) const
    {
        if constexpr (OneRow)
            return kv_head * p.group + row;
        else
            return kv_head * p.group + (tile * rows + row) % p.group;
    }

    /* Of a position as it is asked for; -1: none. */
    __device__ __forceinline__ int place_of(int position_asked) const
    {
        return position_asked < 0 || !plane ? -1 : min(position_asked, int(p.entries) - 1);
    }

    __device__ __forceinline__ int position_of(int row) const
    {
        const uint32_t token = token_of(row);

        return token < p.rows && plane ? place_of(p.position[batch * p.position_at.stride_batch + token * p.position_at.stride_row]) : -1;
    }

    /* Channels of this thread's of both its rows, as steps take them: kept where there are registers for them. */
    static constexpr bool keeps_q = Kind == Codes::f16 || Dim == 64;
    __device__ __forceinline__ void load_q(RowsOfQ &to) const
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = g + 8 * half;
            const bool there = token_of(row) < p.rows;
            const uint16_t *const from = static_cast<const uint16_t *>(p.q) +
                                         (there ? row_at(p.q_at, batch, head_of(row), token_of(row)) : 0) + q * (Dim / 4);

#pragma unroll
            for (int i = 0; i < steps / 2; i++) {
                const uint4 words = there ? __ldg(reinterpret_cast<const uint4 *>(from) + i) : make_uint4(0, 0, 0, 0);

                to.x[half][4 * i] = words.x, to.x[half][4 * i + 1] = words.y;
                to.x[half][4 * i + 2] = words.z, to.x[half][4 * i + 3] = words.w;
            }
        }
    }

    /* A pair of channels of all the keys that this thread has as columns: of tile t word t. */
    template <Codes Of> struct Keys {
        static constexpr int words = Of == Codes::k8 ? 4 : Of == Codes::k4 ? 2 : 8;
        uint32_t x[words];

        __device__ __forceinline__ void load(const uint8_t *k, int pair, int g)
        {
            const uint8_t *const from = k + (pair * 8 + g) * (words * 4);

            if constexpr (Of == Codes::k4) {
                const uint2 two = __ldg(reinterpret_cast<const uint2 *>(from));

                x[0] = two.x, x[1] = two.y;
            } else {
#pragma unroll
                for (int i = 0; i < words; i += 4) { /* what is fp16 this kernel's caller wrote: not through L1 of before */
                    const uint4 four = __ldcg(reinterpret_cast<const uint4 *>(from) + i / 4);

                    x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
                }
            }
        }

        __device__ __forceinline__ uint32_t tile(int t, __half2 scale, __half2 least) const
        {
            uint32_t with_1024;

            if constexpr (Of == Codes::f16)
                return x[t];
            if constexpr (Of == Codes::k8)
                with_1024 = __byte_perm(x[t / 2], 0x64646464u, t % 2 ? 0x4342 : 0x4140);
            else
                with_1024 = (x[t % 2] >> t / 2 * 4 & 0x000f000fu) | 0x64006400u;
            return bits_of(__hfma2(__hsub2(half2_of(with_1024), __float2half2_rn(1024.0f)), scale, least));
        }
    };

    /* Which key of the page column 2 q + b of tile t is. */
    template <Codes Of> __device__ __forceinline__ int key_of(int t, int b) const
    {
        return Of == Codes::k4 ? t / 2 * 16 + 4 * q + 2 * b + t % 2 : 16 * q + 8 * b + t;
    }

    /* And the pair of keys that goes with step s, half b, of P V. */
    template <Codes Of> __device__ __forceinline__ int pair_of(int s, int b) const
    {
        return Of == Codes::k4 ? 8 * s + 2 * q + b : 8 * q + 4 * b + s;
    }

    /* Dot products of all rows with a page's keys. */
    template <Codes Of> __device__ __forceinline__ void multiply_q_k(float (&s)[8][4], const uint8_t *k, const uint8_t *scales) const
    {
        RowsOfQ late;
        const RowsOfQ &rows_of_q = keeps_q ? kept : static_cast<const RowsOfQ &>(late);

        if (!keeps_q)
            load_q(late);
#pragma unroll
        for (int i = 0; i < 32; i++)
            s[i / 4][i % 4] = 0.0f;
#pragma unroll
        for (int i = 0; i < steps; i++) {
            const int pair = q * (Dim / 8) + 2 * i;
            const uint32_t a[4] = {rows_of_q.x[0][2 * i], rows_of_q.x[1][2 * i], rows_of_q.x[0][2 * i + 1], rows_of_q.x[1][2 * i + 1]};
            Keys<Of> keys[2];
            __half2 least[2], scale[2];

#pragma unroll
            for (int b = 0; b < 2; b++)
                keys[b].load(k, pair + b, g);
            if constexpr (Of != Codes::f16) {
                const uint2 minima = __ldg(reinterpret_cast<const uint2 *>(scales + 4 * pair));
                const uint32_t e5m3 = __ldg(reinterpret_cast<const uint32_t *>(scales + 2 * Dim + 2 * pair));

                least[0] = half2_of(minima.x), least[1] = half2_of(minima.y);
                scale[0] = half2_of(__byte_perm(e5m3, 0, 0x4140) << 7);
                scale[1] = half2_of(__byte_perm(e5m3, 0, 0x4342) << 7);
            }
#pragma unroll
            for (int t = 0; t < 8; t++)
                mma_f16(s[t], a, keys[0].tile(t, scale[0], least[0]), keys[1].tile(t, scale[1], least[1]));
        }
    }

    /* s becomes P; rows of which a key does not count have 0 there. fmaxf drops a NaN, so m never is one. */
    template <Codes Of> __device__ __forceinline__ void soften(float (&s)[8][4], const int (&limit)[2], float (&m)[2], float (&l)[2]) const
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = -CUDART_INF_F, sum = 0.0f;

#pragma unroll
            for (int i = 0; i < 16; i++) {
                float &x = s[i / 2][2 * half + i % 2];

                x = key_of<Of>(i / 2, i % 2) < limit[half] ? __fmul_rn(x, p.scale) : -CUDART_INF_F;
                top = fmaxf(top, x);
            }
            top = quad_max(top);
            const float base = top == -CUDART_INF_F ? 0.0f : top;
#pragma unroll
            for (int i = 0; i < 16; i++) {
                float &x = s[i / 2][2 * half + i % 2];

                x = ex2(__fsub_rn(x, base));
                sum = __fadd_rn(sum, x);
            }
            m[half] = top;
            l[half] = quad_sum(sum);
        }
    }

    /* Eight channels of a pair of keys, as they are in memory; */
    template <Codes Of> struct Values {
        static constexpr int words = Of == Codes::f16 ? 2 : 1;
        uint4 x[words];

        __device__ __forceinline__ void load(const uint8_t *v, int pair, int channel)
        {
#pragma unroll
            for (int i = 0; i < words; i++)
                x[i] = Of == Codes::f16 ? __ldcg(reinterpret_cast<const uint4 *>(v + (pair * Dim + channel) * 4) + i)
                                        : __ldg(reinterpret_cast<const uint4 *>(v + (pair * Dim + channel) * 2));
        }
        /* and as fp16; of keys from `end` on nothing counts. */
        __device__ __forceinline__ void get(uint32_t (&to)[8], int pair, int end) const
        {
            if constexpr (Of == Codes::f16) {
                const uint32_t mask = 2 * pair + 1 < end ? ~0u : 2 * pair < end ? 0xffffu : 0u;

#pragma unroll
                for (int i = 0; i < 2; i++) {
                    to[4 * i] = x[i].x & mask, to[4 * i + 1] = x[i].y & mask;
                    to[4 * i + 2] = x[i].z & mask, to[4 * i + 3] = x[i].w & mask;
                }
            } else {
                const uint32_t in[4] = {x[0].x, x[0].y, x[0].z, x[0].w};

#pragma unroll
                for (int i = 0; i < 8; i++)
                    to[i] = spread_e4m3(__byte_perm(in[i / 2], 0, i % 2 ? 0x3424 : 0x1404));
            }
        }
    };

    /* Those of a page that are read beside its keys, where there are registers for all of them: of step s, half b [2 s + b]. */
    template <Codes Of> struct AheadValues {
        static constexpr bool all = blocks == 1;
        Values<Of> of[all ? 8 : 1];

        __device__ __forceinline__ void load(const Attend &at, const uint8_t *v)
        {
#pragma unroll
            for (int i = 0; i < 8 && all; i++)
                of[i].load(v, at.template pair_of<Of>(i / 2, i % 2), 8 * at.g);
            __syncwarp(); /* or they are read when they are wanted */
        }
    };

    template <Codes Of>
    __device__ __forceinline__ void multiply_p_v(float (&o)[8 * blocks][4], const float (&s)[8][4], const uint8_t *v, const AheadValues<Of> &ahead,
                                                 int end) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t a[4] = {cvt_f16x2(s[2 * i + 1][0], s[2 * i][0]), cvt_f16x2(s[2 * i + 1][2], s[2 * i][2]),
                                   cvt_f16x2(s[2 * i + 1][1], s[2 * i][1]), cvt_f16x2(s[2 * i + 1][3], s[2 * i][3])};

#pragma unroll
            for (int u = 0; u < blocks; u++) {
                uint32_t x[2][8];

#pragma unroll
                for (int b = 0; b < 2; b++) {
                    const int pair = pair_of<Of>(i, b);
                    Values<Of> values = ahead.of[ahead.all ? 2 * i + b : 0];

                    if (!ahead.all)
                        values.load(v, pair, 64 * u + 8 * g);
                    values.get(x[b], pair, end);
                }
#pragma unroll
                for (int t = 0; t < 8; t++)
                    mma_f16(o[8 * u + t], a, x[0][t], x[1][t]);
            }
        }
    }

    /* A page, for rows that attend to its first `limit` keys. */
    template <Codes Of> __device__ __forceinline__ void add_page(const uint8_t *k, const int (&limit)[2], float (&o)[8 * blocks][4], float (&m)[2], float (&l)[2]) const
    {
        const uint8_t *const v = k + (Of == Codes::f16 ? page * Dim * 2 : int(TD_CACHE_K_BYTES(format, Dim)));
        int end = max(limit[0], limit[1]);
        AheadValues<Of> ahead;
        float s[8][4];

        ahead.load(*this, v);
#pragma unroll
        for (int apart = 4; apart < 32 && Of == Codes::f16; apart *= 2)
            end = max(end, __shfl_xor_sync(~0u, end, apart));
        multiply_q_k<Of>(s, k, v + page * Dim);
        soften<Of>(s, limit, m, l);
        multiply_p_v<Of>(o, s, v, ahead, end);
    }

    /* nullptr: there is none, and nobody attends to it. */
    __device__ __forceinline__ const uint8_t *page_of(int number) const
    {
        return cache_page(p, plane, pool, table, uint32_t(number), format, Dim);
    }

    /* This warp's page of a chunk, if it has one, into shared memory: as codes for rows behind it; or, as all rows
     * are to be of one page, which then is this one, as fp16. To pages of fp16 all rows attend. */
    __device__ __forceinline__ void sum(uint32_t chunk) const
    {
        const int number = int(chunk) * warps + warp;
        if (number > last / page)
            return;
        const uint8_t *const k = page_of(number);
        float o[8 * blocks][4], m[2] = {-CUDART_INF_F, -CUDART_INF_F}, l[2] = {0.0f, 0.0f};
        int own[2], behind[2];

#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int mine = position[half] < 0 ? -1 : position[half] / page;

            behind[half] = mine > number && k ? page : 0;
            own[half] = mine == number && (k || Kind != Codes::f16) ? position[half] % page + 1 : 0;
            if (Kind == Codes::f16)
                own[half] = max(own[half], behind[half]), behind[half] = 0;
        }
#pragma unroll
        for (int i = 0; i < 32 * blocks; i++)
            o[i / 4][i % 4] = 0.0f;
        if (Kind != Codes::f16 && __any_sync(~0u, (behind[0] | behind[1]) != 0)) {
            const uint8_t *const scales = k + TD_CACHE_K_BYTES(format, Dim) + (page + 3) * Dim;

            add_page<Kind == Codes::k4 ? Codes::k4 : Codes::k8>(k, behind, o, m, l);
#pragma unroll
            for (int u = 0; u < blocks; u++)
#pragma unroll
                for (int b = 0; b < 2; b++) {
                    float scale[8];

                    load_scales(scale, scales + 64 * u + 16 * q + 8 * b);
#pragma unroll
                    for (int t = 0; t < 8; t++) {
                        const float all = __fmul_rn(scale[t], 256.0f);

                        o[8 * u + t][b] = __fmul_rn(o[8 * u + t][b], all);
                        o[8 * u + t][2 + b] = __fmul_rn(o[8 * u + t][2 + b], all);
                    }
                }
        } else if (__any_sync(~0u, (own[0] | own[1]) != 0)) {
            add_page<Codes::f16>(Kind == Codes::f16 ? k : plane + TD_CACHE_HEAD_BYTES, own, o, m, l);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = g + 8 * half;

            if (q == 0)
                shared.m[warp][row] = m[half], shared.l[warp][row] = l[half];
#pragma unroll
            for (int i = 0; i < 4 * blocks; i++) { /* of a block channels 16 q + 8 b + 4 (i % 2) and the next three */
                const int u = i / 4, b = i / 2 % 2, t = 8 * u + i % 2 * 4;

                *reinterpret_cast<float4 *>(&shared.o[warp][row * pitch + 64 * u + 16 * q + 8 * b + i % 2 * 4]) =
                    make_float4(o[t][2 * half + b], o[t + 1][2 * half + b], o[t + 2][2 * half + b], o[t + 3][2 * half + b]);
            }
        }
    }

    /* Of the first keys: `from` leads to this thread's channels. */
    __device__ __forceinline__ static void begin(Sums &all, const float4 *from, float m, float l)
    {
#pragma unroll
        for (int i = 0; i < fours; i++)
            all.o[i] = from[8 * i];
        all.m = m, all.l = l;
    }

    /* Of other keys, behind those so far. */
    __device__ __forceinline__ static void fold(Sums &all, const float4 *from, float m, float l)
    {
        const float top = fmaxf(all.m, m), base = top == -CUDART_INF_F ? 0.0f : top;
        const float mine = ex2(__fsub_rn(all.m, base)), its = ex2(__fsub_rn(m, base));

#pragma unroll
        for (int i = 0; i < fours; i++) {
            const float4 x = from[8 * i];
            float4 &o = all.o[i];

            o.x = __fmaf_rn(its, x.x, __fmul_rn(mine, o.x)), o.y = __fmaf_rn(its, x.y, __fmul_rn(mine, o.y));
            o.z = __fmaf_rn(its, x.z, __fmul_rn(mine, o.z)), o.w = __fmaf_rn(its, x.w, __fmul_rn(mine, o.w));
        }
        all.l = __fmaf_rn(its, l, __fmul_rn(mine, all.l));
        all.m = top;
    }

    /* Where this thread's channels of its row are in shared memory. */
    __device__ __forceinline__ float4 *channels_of(int w) const
    {
        return reinterpret_cast<float4 *>(&shared.o[w][threadIdx.x / 8 * pitch + threadIdx.x % 8 * 4]);
    }

    /* A chunk's, of all warps that have a page. */
    __device__ __forceinline__ Sums chunk_sums(uint32_t chunk) const
    {
        const int row = int(threadIdx.x / 8), pages = last / page + 1 - int(chunk) * warps;
        Sums all;

        sum(chunk);
        __syncthreads();
        begin(all, channels_of(0), shared.m[0][row], shared.l[0][row]);
#pragma unroll
        for (int w = 1; w < warps; w++)
            if (w < pages)
                fold(all, channels_of(w), shared.m[w][row], shared.l[w][row]);
        return all;
    }

    /* What waits in shared memory while a chunk has the registers; each thread has its own there. */
    __device__ __forceinline__ void keep(const Sums &all) const
    {
#pragma unroll
        for (int i = 0; i < fours; i++)
            channels_of(warps)[8 * i] = all.o[i];
    }

    __device__ __forceinline__ void take_back(Sums &all) const
    {
#pragma unroll
        for (int i = 0; i < fours; i++)
            all.o[i] = channels_of(warps)[8 * i];
    }

    /* Where this thread's part of a chunk's sums is left. */
    __device__ __forceinline__ float *part_of(uint32_t chunk) const
    {
        const uint64_t of_plane = (uint64_t(batch) * p.kv_heads + kv_head) * tiles + tile;

        return p.parts + ((of_plane * p.spans + chunk) * rows + threadIdx.x / 8) * TD_CACHE_PART(Dim);
    }

    __device__ __forceinline__ void leave(const Sums &chunk) const
    {
        float *const to = part_of(span);

#pragma unroll
        for (int i = 0; i < fours; i++)
            reinterpret_cast<float4 *>(to)[threadIdx.x % 8 + 8 * i] = chunk.o[i];
        if (threadIdx.x % 8 == 0)
            to[Dim] = chunk.m, to[Dim + 1] = chunk.l;
    }

    /* Whether all chunks of the tile have been left, this one as the last. */
    __device__ __forceinline__ bool is_last(uint32_t chunks) const
    {
        uint32_t *const ticket = &reinterpret_cast<td_cache_head *>(plane)->tickets[tile];
        bool last_one = false;

        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            last_one = atomicAdd(ticket, 1) == chunks - 1;
            if (last_one)
                *ticket = 0;
        }
        last_one = __syncthreads_or(last_one);
        __threadfence();
        return last_one;
    }

    __device__ __forceinline__ Sums all_parts(uint32_t chunks) const
    {
        Sums all;

#pragma unroll 1
        for (uint32_t chunk = 0; chunk < chunks; chunk++) {
            const float *const from = part_of(chunk);
            const float m = __ldcg(from + Dim), l = __ldcg(from + Dim + 1);
            float4 x[8 * fours];

#pragma unroll
            for (int i = 0; i < fours; i++)
                x[8 * i] = __ldcg(reinterpret_cast<const float4 *>(from) + threadIdx.x % 8 + 8 * i);
            if (chunk)
                fold(all, x, m, l);
            else
                begin(all, x, m, l);
        }
        return all;
    }

    __device__ __forceinline__ void write(const Sums &all) const
    {
        const int row = int(threadIdx.x / 8);
        const float part = all.l == 0.0f ? 0.0f : __fdividef(1.0f, all.l);
        const td_tensor o = {p.o, p.o_at.stride_batch, p.o_at.stride_head, p.o_at.stride_row, p.o_dtype, 0, 0, 0};

        if (token_of(row) >= p.rows)
            return;
#pragma unroll
        for (int i = 0; i < fours; i++) {
            const int c = int(threadIdx.x % 8) * 4 + 32 * i;
            const bool none = all.l == 0.0f;

            store_pair(o, batch, head_of(row), token_of(row), c, none ? 0.0f : __fmul_rn(all.o[i].x, part), none ? 0.0f : __fmul_rn(all.o[i].y, part));
            store_pair(o, batch, head_of(row), token_of(row), c + 2, none ? 0.0f : __fmul_rn(all.o[i].z, part), none ? 0.0f : __fmul_rn(all.o[i].w, part));
        }
    }

    __device__ __forceinline__ uint32_t chunks_of_all() const
    {
        return uint32_t(last / page + 1 + warps - 1) / warps;
    }
    /* Of this block's chunks; where no row has a place there are no keys. */
    __device__ __forceinline__ Sums all_sums(uint32_t chunks) const
    {
        Sums all = {};

        all.m = -CUDART_INF_F;
#pragma unroll 1
        for (uint32_t chunk = span; last >= 0;) {
            Sums one = chunk_sums(chunk);

            if (chunk == span) {
                all = one;
            } else {
                float4 x[8 * fours];

#pragma unroll
                for (int i = 0; i < fours; i++)
                    x[8 * i] = one.o[i];
                take_back(all);
                fold(all, x, one.m, one.l);
            }
            if (p.spans > 1 || ++chunk >= chunks)
                break;
            keep(all);
            __syncthreads(); /* all have read what the next one's sums take the place of */
        }
        return all;
    }
    __device__ __forceinline__ void finish(Sums &all, uint32_t chunks) const
    {
        if (p.spans > 1 && chunks > 1) {
            leave(all);
            if (!is_last(chunks))
                return;
            all = all_parts(chunks);
        }
        write(all);
    }

    /* Those who stop are counted, too: no tickets are left for the next run. */
    __device__ __forceinline__ void give_up(uint32_t chunks) const
    {
        if (p.spans > 1 && chunks > 1)
            is_last(chunks);
    }

    __device__ __forceinline__ void attend(bool stop)
    {
        if (keeps_q)
            load_q(kept);
        look();
        const uint32_t chunks = chunks_of_all();

        if (span && span >= chunks)
            return;
        Sums all = all_sums(chunks);
        if (__syncthreads_or(stop))
            give_up(chunks);
        else
            finish(all, chunks);
    }
    /* The same behind a row, which who has its page appends. */
    __device__ __forceinline__ void step(const td_params_cache_append &row, bool stop)
    {
        using Row = Append<Dim, int(format)>;
        const typename Row::Pair pair = Row::load_row(row, batch, kv_head);

        if (keeps_q)
            load_q(kept);
        look();
        const uint32_t chunks = chunks_of_all();

        if (span && span >= chunks)
            return;
        if (__syncthreads_or(stop)) {
            give_up(chunks);
            return;
        }
        if (p.spans == 1 || span + 1 == chunks) {
            Row(row, batch, kv_head, plane, pool, table).append_row(pair, asked);
            __syncthreads();
        }
        Sums all = all_sums(chunks);
        finish(all, chunks);
    }
};

template <Codes Kind, int Dim> __device__ __forceinline__ void cache_attend(const td_params_cache_attend &p)
{
    TD_DYNAMIC_SHARED(16, bytes);
    using Of = Attend<Kind, Dim, false>;
    Of of(p, *reinterpret_cast<typename Of::Shared *>(bytes));
    const bool stop = threadIdx.x == 0 && is_set(p.cancel);

    wait_for_previous();
    launch_dependents();
    of.attend(stop);
}

template <Codes Kind, int Dim> __device__ __forceinline__ void cache_step(const td_params_cache_step &p)
{
    TD_DYNAMIC_SHARED(16, bytes);
    using Of = Attend<Kind, Dim, true>;
    Of of(p.attend, *reinterpret_cast<typename Of::Shared *>(bytes));
    const bool stop = threadIdx.x == 0 && is_set(p.attend.cancel);

    wait_for_previous();
    launch_dependents();
    of.step(p.append, stop);
}

} // namespace td

#define TD_CACHE_ENTRY(name, kind, dim, bounds)                                                        \
    extern "C" __global__ void __launch_bounds__ bounds                                                \
        cache_attend_##name(const __grid_constant__ td_params_cache_attend p)                          \
    {                                                                                                   \
        td::cache_attend<td::Codes::kind, dim>(p);                                                     \
    }                                                                                                   \
    extern "C" __global__ void __launch_bounds__ bounds                                                \
        cache_step_##name(const __grid_constant__ td_params_cache_step p)                              \
    {                                                                                                   \
        td::cache_step<td::Codes::kind, dim>(p);                                                       \
    }
/* Of 128 channels two at a time: with three some registers are spilt. */
TD_CACHE_ENTRY(k8_d64, k8, 64, (TD_BLOCK_THREADS))
TD_CACHE_ENTRY(k8_d128, k8, 128, (TD_BLOCK_THREADS, 2))
TD_CACHE_ENTRY(k4_d64, k4, 64, (TD_BLOCK_THREADS))
TD_CACHE_ENTRY(k4_d128, k4, 128, (TD_BLOCK_THREADS, 2))
TD_CACHE_ENTRY(f16_d64, f16, 64, (TD_BLOCK_THREADS))
TD_CACHE_ENTRY(f16_d128, f16, 128, (TD_BLOCK_THREADS, 2))
