/* The prologue for sm_90: each warp has 8 KB of a tile in registers and needs no other warp but for sums and maxima.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Grids, arrays and arithmetic: params.h; the CPU twin gets the same bits. It comes behind fused.cu, whose words it uses.
 * A lane loads sixteen times 16 bytes, of the rows whose results need each other:
 *
 *   Q   the two rows of each group at once, so that a maximum of both is a few shuffles
 *   K   rows that are alike modulo 8, at `Lanes` lanes a row: sums and maxima of groups stay in the warp
 *   V   16 keys of the same eight channels: 16 codes of a channel are one store of the lane, transposed without moving
 *
 *   prepare        prepare_head.cu
 *   prepare_q      Q; clears the counters of
 *   prepare_kv     blocks of two kinds, those of heads in turn: `stats` of a head come before its `codes`, with so many
 *                  blocks in between that these find the statistics ready and the rows in L2. The last block of a head's
 *                  stats makes totals of them. Blocks start in the order of their numbers, so that those waited for run.
 *
 * Values that are not finite are rare: a look at the exponents shows whether there is one, and only then is it looked for.
 */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace td {

constexpr int kLoads = 16; /* a lane's */

/* How warps lie over a tile of 128 rows whose rows take `Lanes` lanes of eight channels each: a power of two up to 16. */
template <int Lanes> struct Cover {
    static constexpr int width = Lanes * 8;
    static constexpr int rows = 32 / Lanes;      /* at once, in Q and K */
    static constexpr int warps = 8 / rows;       /* of a tile */
    static constexpr int tiles = 4 / warps;      /* of a block of prepare_kv, whose other half of warps has V's */
    static constexpr int most_tiles = 8 / warps; /* of a block of prepare */
    static constexpr int v_lanes = Lanes < 8 ? Lanes : 8;
    static constexpr int v_width = v_lanes * 8;
    static constexpr int v_keys = 32 / v_lanes * 16;
    static constexpr int v_columns = warps * v_keys / 128; /* warps next to each other */
};

using Rows = uint32_t[kLoads][4];

template <class E> __device__ __forceinline__ float value(const uint32_t (&words)[4], int i)
{
    if constexpr (std::is_same_v<E, __half>)
        return __half2float(__ushort_as_half(uint16_t(words[i / 2] >> (i % 2 * 16))));
    else
        return __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
}

/* Calls f with an element of the type; both take the same loads. */
template <class F> __device__ __forceinline__ void of_type(uint32_t dtype, F f)
{
    if (dtype == TANDEM_DTYPE_BF16)
        f(__nv_bfloat16());
    else
        f(__half());
}

/* What was computed from them is not kept. */
__device__ __forceinline__ void forget_rows(Rows &x)
{
#pragma unroll
    for (int i = 0; i < kLoads; i++)
        forget(x[i]);
}

/* Eight channels of sixteen rows; row(i) is where the i-th begins, or NULL. `wide`: they are 16-byte aligned. */
template <class Row> __device__ __forceinline__ void load_rows(Rows &x, bool wide, Row row)
{
    if (wide) {
#pragma unroll
        for (int i = 0; i < kLoads; i++) {
            const uint16_t *p = row(i);
            const uint4 four = p ? load_once(p) : make_uint4(0, 0, 0, 0);

            x[i][0] = four.x;
            x[i][1] = four.y;
            x[i][2] = four.z;
            x[i][3] = four.w;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < kLoads; i++) {
        const uint16_t *p = row(i);

#pragma unroll
        for (int w = 0; w < 4; w++)
            x[i][w] = p ? load_halves(p + 2 * w) : 0;
    }
}

/* A lane's rows, in registers. */
struct OwnRows {
    static constexpr int unroll = kLoads;
    Rows x;

    struct Words {
        const uint32_t (&w)[4];
    };

    __device__ __forceinline__ Words operator[](int i) const
    {
        return {x[i]};
    }

    __device__ __forceinline__ void set(int i, const uint32_t (&from)[4])
    {
#pragma unroll
        for (int w = 0; w < 4; w++)
            x[i][w] = from[w];
    }

    template <class Row> __device__ __forceinline__ void load(bool wide, Row row)
    {
        load_rows(x, wide, row);
    }

    __device__ __forceinline__ void wait() const {}

    static __device__ __forceinline__ int pair_of(int turn)
    {
        return turn;
    }

    __device__ __forceinline__ uint32_t word(int i, int pair) const
    {
        return x[i][pair];
    }

    __device__ __forceinline__ void forget()
    {
        forget_rows(x);
    }
};

/* Whether what has these magnitudes is finite, all of it. */
template <class E> __device__ __forceinline__ bool is_finite_below(uint32_t most)
{
    const uint32_t top = Words<E>::exponent & 0xffffu;

    return (most & 0xffffu) < top && most >> 16 < top;
}

/* What is not finite becomes 0; bit i of the result: row i had some. */
template <class E, class X> __device__ __forceinline__ uint32_t clean_rows(X &x)
{
    uint32_t bad = 0;

#pragma unroll X::unroll
    for (int i = 0; i < kLoads; i++) {
        const auto from = x[i];
        uint32_t words[4] = {from.w[0], from.w[1], from.w[2], from.w[3]};

        if (clean<E>(words))
            continue;
        x.set(i, words);
        bad |= 1u << i;
    }
    return bad;
}

/* The same, where it is not known whether there is any. */
template <class E, class X> __device__ __forceinline__ uint32_t find_bad_rows(X &x)
{
    uint32_t most = 0;

#pragma unroll X::unroll
    for (int i = 0; i < kLoads; i++) {
        const auto from = x[i];

#pragma unroll
        for (int w = 0; w < 4; w++)
            most = max_magnitude(most, from.w[w]);
    }
    return is_finite_below<E>(most) ? 0 : clean_rows<E>(x);
}

/* Rows of K that a lane has are first + 8 i, its channels those from `channel` on. */
template <int Lanes> struct KeyRows {
    int first, channel;

    __device__ __forceinline__ explicit KeyRows(int warp) /* of the tile */
    {
        const int lane = int(threadIdx.x) % 32;

        first = warp * Cover<Lanes>::rows + lane / Lanes;
        channel = lane % Lanes * 8;
    }
};

/* Keys of V that a lane has are first + i. */
template <int Lanes> struct ValueRows {
    int first, channel;

    __device__ __forceinline__ explicit ValueRows(int warp)
    {
        using C = Cover<Lanes>;
        const int lane = int(threadIdx.x) % 32;

        first = warp / C::v_columns * C::v_keys + lane / C::v_lanes * 16;
        channel = warp % C::v_columns * C::v_width + lane % C::v_lanes * 8;
    }
};

/* What the blocks of a head tell each other. */
template <int Lanes> struct PrepareShared {
    using C = Cover<Lanes>;
    alignas(16) float sums[C::most_tiles][4][C::width];             /* of K's rows in pairs */
    float chunk[C::most_tiles][C::width];                           /* of tiles */
    alignas(16) uint32_t tops[C::most_tiles * C::warps][C::v_width / 2]; /* of V, as halves, by warp */
    float most[C::width];                                           /* of the block */
    alignas(16) float mean[C::width], factor[C::width];
    alignas(16) uint8_t bad[C::most_tiles * TD_TILE_ROWS];
    uint32_t last;
};

/* Tiles of a head as a block has them: its first warps have K's, the others V's. */
template <int Lanes> struct Tiles {
    const td_params_prepare &p;
    uint32_t bhk, first, count; /* tile numbers; `count` is the block's, some may be beyond the head's */
    int tile, warp;             /* this warp's: among the block's, within the tile */
    bool is_k;

    __device__ __forceinline__ Tiles(const td_params_prepare &params, uint32_t head, uint32_t from, uint32_t tiles)
        : p(params), bhk(head), first(from), count(tiles)
    {
        const int w = int(threadIdx.x) / 32, half = int(tiles) * Cover<Lanes>::warps;

        is_k = w < half;
        tile = (is_k ? w : w - half) / Cover<Lanes>::warps;
        warp = w % Cover<Lanes>::warps;
    }

    __device__ __forceinline__ int row0() const /* the warp's tile's first */
    {
        return int(first + uint32_t(tile)) * int(TD_TILE_ROWS);
    }

    __device__ __forceinline__ int rows() const /* that exist, of the warp's tile; may be negative */
    {
        return min(int(p.kv_len) - row0(), int(TD_TILE_ROWS));
    }

    template <class X> __device__ __forceinline__ void load(X &x) const
    {
        const int64_t(&strides)[3] = is_k ? p.k_strides : p.v_strides;
        const uint16_t *head = static_cast<const uint16_t *>(is_k ? p.k : p.v) + bhk / p.kv_heads * strides[0] +
                               bhk % p.kv_heads * strides[1] + row0() * strides[2];
        const bool wide =
            ((uint64_t)head | (uint64_t)(strides[0] | strides[1] | strides[2]) * 2) % 16 == 0;
        const KeyRows<Lanes> k(warp);
        const ValueRows<Lanes> v(warp);
        const int channel = is_k ? k.channel : v.channel, from = is_k ? k.first : v.first, step = is_k ? 8 : 1;
        const int left = channel < int(p.dim) ? rows() - from : 0;
        const uint16_t *lane = head + from * strides[2] + channel;
        const int64_t stride = step * strides[2];

        x.load(wide, [&](int i) { return i * step < left ? lane + i * stride : nullptr; });
    }

    /* Sums and maxima of the block, to shared memory; shared.bad is all zeros. Behind it comes a barrier. */
    template <class X> __device__ __forceinline__ void gather(X &x, PrepareShared<Lanes> &shared) const
    {
        using C = Cover<Lanes>;
        const int lane = int(threadIdx.x) % 32, t = int(threadIdx.x);
        uint8_t *bad = shared.bad + tile * int(TD_TILE_ROWS);

        if (is_k) {
            const KeyRows<Lanes> at(warp);

            of_type(p.k_dtype, [&](auto e) {
                using E = decltype(e);
                float sum[8] = {};

                find_bad_rows<E>(x);
                if (!p.smooth)
                    return;
#pragma unroll X::unroll
                for (int i = 0; i < kLoads; i++) {
                    const auto from = x[i];

#pragma unroll
                    for (int c = 0; c < 8; c++)
                        sum[c] = __fadd_rn(sum[c], value<E>(from.w, c));
                }
#pragma unroll
                for (int c = 0; c < 8; c++)
                    sum[c] = __fadd_rn(sum[c], __shfl_xor_sync(~0u, sum[c], Lanes));
                if (at.first % 2 == 0) {
                    float4 *to = reinterpret_cast<float4 *>(&shared.sums[tile][at.first / 2][at.channel]);

                    to[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
                    to[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
                }
            });
        } else {
            const ValueRows<Lanes> at(warp);

            uint32_t most[4] = {};
            const auto find = [&]() {
#pragma unroll X::unroll
                for (int i = 0; i < kLoads; i++) {
                    const auto from = x[i];

#pragma unroll
                    for (int w = 0; w < 4; w++)
                        most[w] = max_magnitude(most[w], from.w[w]);
                }
            };

            find();
            of_type(p.v_dtype, [&](auto e) {
                using E = decltype(e);

                if (is_finite_below<E>(__vmaxu2(__vmaxu2(most[0], most[1]), __vmaxu2(most[2], most[3]))))
                    return;
                const uint32_t found = clean_rows<E>(x);
                for (int i = 0; i < kLoads; i++)
                    if (found >> i & 1)
                        bad[at.first + i] = 1;
                most[0] = most[1] = most[2] = most[3] = 0;
                find();
            });
#pragma unroll
            for (int offset = C::v_lanes; offset < 32; offset *= 2)
#pragma unroll
                for (int w = 0; w < 4; w++)
                    most[w] = max_magnitude(most[w], __shfl_xor_sync(~0u, most[w], offset));
            if (lane < C::v_lanes)
                *reinterpret_cast<uint4 *>(&shared.tops[tile * C::warps + warp][lane * 4]) =
                    make_uint4(most[0], most[1], most[2], most[3]);
        }
        x.forget();
        __syncthreads();
        for (int c = t; c < C::width * int(count); c += int(blockDim.x)) {
            const float *sum = &shared.sums[c / C::width][0][c % C::width];

            shared.chunk[c / C::width][c % C::width] = __fadd_rn(
                __fadd_rn(__fadd_rn(sum[0], sum[C::width]), sum[2 * C::width]), sum[3 * C::width]);
        }
        if (t < C::width) {
            const uint16_t *tops = reinterpret_cast<const uint16_t *>(shared.tops) + t % C::v_width;
            uint32_t most = 0;

            for (int w = t / C::v_width; w < int(count) * C::warps; w += C::v_columns)
                most = max(most, uint32_t(tops[w * C::v_width]));
            of_type(p.v_dtype, [&](auto e) {
                const uint32_t words[4] = {most, 0, 0, 0};

                shared.most[t] = value<decltype(e)>(words, 0);
            });
        }
    }

    /* Codes and scales; what is in shared memory is the head's. */
    template <class X> __device__ __forceinline__ void put(X &x, const PrepareShared<Lanes> &shared, const float *flag) const
    {
        if (rows() <= 0)
            return;
        if (is_k)
            put_keys(x, shared, flag);
        else
            put_values(x, shared);
    }

    template <class X>
    __device__ __forceinline__ void put_keys(X &x, const PrepareShared<Lanes> &shared, const float *flag) const
    {
        const KeyRows<Lanes> at(warp);
        const int lane = int(threadIdx.x) % 32, left = rows() - at.first;
        const int64_t to = int64_t(bhk) * p.kv_pad + row0() + at.first;
        float mean[8];

#pragma unroll
        for (int c = 0; c < 8; c += 4)
            *reinterpret_cast<float4 *>(mean + c) = *reinterpret_cast<const float4 *>(shared.mean + at.channel + c);
        of_type(p.k_dtype, [&](auto e) {
            using E = decltype(e);
            unsigned most = 0;

#pragma unroll X::unroll
            for (int i = 0; i < kLoads; i++) {
                const auto from = x[i];
                unsigned here = 0;

#pragma unroll
                for (int c = 0; c < 8; c++)
                    here = max(here, magnitude(__fsub_rn(value<E>(from.w, c), mean[c])));
                most = max(most, 8 * i < left ? here : 0u);
            }
#pragma unroll
            for (int offset = Lanes; offset; offset /= 2)
                most = max(most, __shfl_xor_sync(~0u, most, offset));
            x.forget();
            const float amax = __uint_as_float(most), factor = code_factor(amax, 127.0f);
            const float scale = code_scale(amax, 127.0f);
            const uint8_t *bad = shared.bad + tile * int(TD_TILE_ROWS) + at.first;

#pragma unroll
            for (int i = lane % Lanes; i < kLoads; i += Lanes) {
                const float plus = bad[8 * i] ? CUDART_NAN_F : flag ? __ldcg(flag + to + 8 * i) : 0.0f;

                p.k_scale[to + 8 * i] = 8 * i < left ? __fadd_rn(scale, plus) : 0.0f;
            }
            uint8_t *codes = static_cast<uint8_t *>(p.k_codes) + to * p.d_pad + at.channel;
            if (at.channel < int(p.d_pad))
#pragma unroll X::unroll
                for (int i = 0; i < kLoads; i++)
                    *reinterpret_cast<uint2 *>(codes + 8 * i * int(p.d_pad)) =
                        8 * i < left ? codes_of<E, true>(x[i].w, mean, factor) : make_uint2(0, 0);
        });
    }

    template <class E, bool Mean>
    static __device__ __forceinline__ uint2 codes_of(const uint32_t (&x)[4], const float *mean, float factor)
    {
        uint32_t code[8];

#pragma unroll
        for (int c = 0; c < 8; c++) {
            const float v = value<E>(x, c);
            float y = __fmul_rn(Mean ? __fsub_rn(v, mean[c]) : v, factor);

            /* Rounding alone brings what is within amax to 127; a NaN, of sums that overflowed, is not among halves. */
            if constexpr (!std::is_same_v<E, __half>)
                y = fminf(fmaxf(y, -127.0f), 127.0f);
            code[c] = __float_as_uint(__fadd_rn(y, 12582912.0f)); /* 1.5 * 2^23: its last bits are the integer */
        }
        return make_uint2(
            __byte_perm(__byte_perm(code[0], code[1], 0x0040), __byte_perm(code[2], code[3], 0x0040), 0x5410),
            __byte_perm(__byte_perm(code[4], code[5], 0x0040), __byte_perm(code[6], code[7], 0x0040), 0x5410));
    }

    template <class X>
    __device__ __forceinline__ void put_values(const X &x, const PrepareShared<Lanes> &shared) const
    {
        const ValueRows<Lanes> at(warp);

        if (at.channel >= int(p.d_pad))
            return;
        uint8_t *codes = static_cast<uint8_t *>(p.v_codes) + (int64_t(bhk) * p.d_pad + at.channel) * p.kv_pad + row0() +
                         at.first;
        of_type(p.v_dtype, [&](auto e) {
            using E = decltype(e);

#pragma unroll X::unroll / 4
            for (int turn = 0; turn < 4; turn++) {
                const int pair = x.pair_of(turn);
                const float2 factor = *reinterpret_cast<const float2 *>(shared.factor + at.channel + 2 * pair);
                uint32_t words[kLoads][4];

#pragma unroll
                for (int i = 0; i < kLoads; i++)
                    words[i][0] = x.word(i, pair);
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const float f = c ? factor.y : factor.x;
                    const auto two = [&](int i) {
                        return uint32_t(cvt_e4m3x2(__fmul_rn(value<E>(words[i + 1], c), f),
                                                   __fmul_rn(value<E>(words[i], c), f)));
                    };
                    uint4 four;

                    four.x = __byte_perm(two(0), two(8), 0x5410);
                    four.y = __byte_perm(two(2), two(10), 0x5410);
                    four.z = __byte_perm(two(4), two(12), 0x5410);
                    four.w = __byte_perm(two(6), two(14), 0x5410);
                    *reinterpret_cast<uint4 *>(codes + int64_t(2 * pair + c) * p.kv_pad) = four;
                }
            }
        });
    }
};

/* A warp's part of a tile of Q; `tile` counts over all heads. */
template <int Lanes, class X>
__device__ __forceinline__ void prepare_tile_of_q(const td_params_prepare &p, uint32_t tile, int warp, X x)
{
    using C = Cover<Lanes>;
    const uint32_t chunks = (p.q_len + TD_TILE_ROWS - 1) / TD_TILE_ROWS, bh = tile / chunks;
    const int lane = int(threadIdx.x) % 32, channel = lane % Lanes * 8;
    /* Row i of a lane is first + (i & 7) + (i & 8) * rows: lanes next to each other have rows that differ by 8. */
    const int first = warp * 16 * C::rows + lane / Lanes / 2 * 16 + lane / Lanes % 2 * 8;
    const auto row_of = [](int i) { return (i & 7) + (i & 8) * C::rows; };
    const int row0 = int(tile % chunks) * int(TD_TILE_ROWS);
    const int left = min(int(p.q_len) - row0, int(TD_TILE_ROWS)) - first;
    const uint16_t *head = static_cast<const uint16_t *>(p.q) + bh / p.heads * p.q_strides[0] +
                           bh % p.heads * p.q_strides[1] + (row0 + first) * p.q_strides[2];
    const bool wide =
        ((uint64_t)head | (uint64_t)(p.q_strides[0] | p.q_strides[1] | p.q_strides[2]) * 2) % 16 == 0;
    const int64_t to = int64_t(tile) * TD_TILE_ROWS + first;

    x.load(wide, [&](int i) {
        return channel < int(p.dim) && row_of(i) < left ? head + channel + row_of(i) * p.q_strides[2] : nullptr;
    });
    x.wait();
    of_type(p.q_dtype, [&](auto e) {
        using E = decltype(e);
        uint32_t bad = 0, top[kLoads], most = 0;
        const auto find = [&]() {
#pragma unroll
            for (int i = 0; i < kLoads; i++) {
                const auto from = x[i];

                top[i] = max_magnitude(max_magnitude(max_magnitude(max_magnitude(0, from.w[0]), from.w[1]), from.w[2]),
                                       from.w[3]);
            }
        };

        find();
#pragma unroll
        for (int i = 0; i < kLoads; i++)
            most = __vmaxu2(most, top[i]);
        if (!is_finite_below<E>(most)) {
            bad = clean_rows<E>(x);
            find();
        }
        x.forget();
        /* A lane keeps half of what it has with each step, and gives the other half away. */
        int count = kLoads;
#pragma unroll
        for (int offset = Lanes; offset; offset /= 2) {
            const bool upper = lane & offset;

            if (count == 1) {
                top[0] = max_magnitude(top[0], __shfl_xor_sync(~0u, top[0], offset));
                continue;
            }
            count /= 2;
#pragma unroll
            for (int i = 0; i < kLoads / 2; i++)
                if (i < count) {
                    const uint32_t mine = upper ? top[i + count] : top[i], other = upper ? top[i] : top[i + count];

                    top[i] = max_magnitude(mine, __shfl_xor_sync(~0u, other, offset));
                }
        }
        if (__any_sync(~0u, bad != 0))
#pragma unroll
            for (int offset = Lanes / 2; offset; offset /= 2)
                bad |= __shfl_xor_sync(~0u, bad, offset);

        constexpr int held = Lanes < 8 ? 2 : 1; /* groups of a lane; with 16 lanes a row two lanes have the same one */
        float factor[held], scale[held];
#pragma unroll
        for (int h = 0; h < held; h++) {
            const uint32_t words[4] = {top[h], 0, 0, 0};
            const float amax = fmaxf(value<E>(words, 0), value<E>(words, 1));

            factor[h] = code_factor(amax, 127.0f);
            scale[h] = code_scale(amax, 127.0f);
        }
        /* Lane l of the 2 * Lanes that have a group's rows holds group l >> shift, or 2 l and 2 l + 1. */
        constexpr int shift = Lanes == 16 ? 1 : 0;
        const int base = lane & ~(2 * Lanes - 1);
        uint8_t *codes = static_cast<uint8_t *>(p.q_codes) + to * p.d_pad + channel;
#pragma unroll X::unroll
        for (int i = 0; i < kLoads; i++) {
            const int from = base + (held == 2 ? i / 2 : i << shift);
            const float f = __shfl_sync(~0u, factor[held == 2 ? i % 2 : 0], from);
            const float s = __shfl_sync(~0u, scale[held == 2 ? i % 2 : 0], from);
            const bool exists = row_of(i) < left;

            if (i % Lanes == lane % Lanes)
                p.q_scale[to + row_of(i)] = !exists ? 0.0f : bad >> i & 1 ? CUDART_NAN_F : s;
            if (channel < int(p.d_pad))
                *reinterpret_cast<uint2 *>(codes + row_of(i) * int(p.d_pad)) =
                    exists ? Tiles<Lanes>::template codes_of<E, false>(x[i].w, nullptr, f) : make_uint2(0, 0);
        }
    });
}

/* Calls f(i) for 0 .. count - 1, eight loads at a time, and add(x) with each in order. */
template <class F, class Add> __device__ __forceinline__ void in_order(uint32_t count, F f, Add add)
{
#pragma unroll 1
    for (uint32_t from = 0; from < count; from += 8) {
        float x[8];

#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            x[i] = from + i < count ? f(from + i) : 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            add(x[i]);
    }
}

/* prepare_kv's blocks. */

template <int Lanes>
__device__ __forceinline__ void stats_of_head(const td_params_prepare &p, uint32_t bhk, uint32_t block, uint32_t blocks)
{
    using C = Cover<Lanes>;
    __shared__ PrepareShared<Lanes> shared;
    const uint32_t t = threadIdx.x, chunks = p.kv_pad / TD_TILE_ROWS;
    const Tiles<Lanes> mine(p, bhk, block * C::tiles, C::tiles);
    OwnRows x;

    mine.load(x);
    for (uint32_t i = t; i < C::tiles * TD_TILE_ROWS / 4; i += TD_PREPARE_THREADS)
        reinterpret_cast<uint32_t *>(shared.bad)[i] = 0;
    if (__syncthreads_or(int(cancel_word(p.cancel))))
        return;
    mine.gather(x, shared);
    __syncthreads();
    for (uint32_t i = t; i < C::tiles * C::width; i += TD_PREPARE_THREADS) {
        const uint32_t chunk = mine.first + i / C::width, c = i % C::width;

        if (p.smooth && chunk < chunks && c < p.d_pad)
            p.partial[(int64_t(bhk) * chunks + chunk) * p.d_pad + c] = shared.chunk[i / C::width][c];
    }
    if (t < p.d_pad)
        p.amax[(int64_t(bhk) * (blocks + 1) + block) * p.d_pad + t] = shared.most[t];
    for (uint32_t i = t; i < C::tiles * TD_TILE_ROWS; i += TD_PREPARE_THREADS)
        if (mine.first * TD_TILE_ROWS + i < p.kv_pad)
            p.flag[int64_t(bhk) * p.kv_pad + mine.first * TD_TILE_ROWS + i] = shared.bad[i] ? CUDART_NAN_F : 0.0f;
    wait_for_previous(); /* prepare_q has cleared the counters */
    __threadfence();
    __syncthreads();
    if (t == 0)
        shared.last = atomicAdd(&p.counters[2 * bhk], 1) == blocks - 1;
    __syncthreads();
    if (!shared.last)
        return;
    __threadfence();
    if (t < C::width && t < p.d_pad && p.smooth) {
        const float *from = p.partial + int64_t(bhk) * chunks * p.d_pad + t;
        float sum = 0.0f;

        in_order(
            chunks, [&](uint32_t i) { return __ldcg(from + int64_t(i) * p.d_pad); },
            [&](float v) { sum = __fadd_rn(sum, v); });
        p.k_mean[int64_t(bhk) * p.d_pad + t] = __fdiv_rn(sum, float(p.kv_len));
    } else if (t >= C::width && t - C::width < p.d_pad) {
        const uint32_t c = t - C::width;
        float *from = p.amax + int64_t(bhk) * (blocks + 1) * p.d_pad + c, most = 0.0f;

        in_order(
            blocks, [&](uint32_t i) { return __ldcg(from + int64_t(i) * p.d_pad); },
            [&](float v) { most = fmaxf(most, v); });
        from[int64_t(blocks) * p.d_pad] = most;
        p.v_scale[int64_t(bhk) * p.d_pad + c] = code_scale(most, TD_V_TOP);
    }
    __threadfence();
    __syncthreads();
    if (t == 0)
        st_release(&p.counters[2 * bhk + 1], 1);
}

/* Whether a head's totals are there, for all threads; bounded, and not once the job is given up. Has a barrier. */
__device__ __forceinline__ bool wait_for_totals(const td_params_prepare &p, uint32_t bhk)
{
    constexpr uint64_t limit_ns = 1000000000u;
    int has = 1;

    if (threadIdx.x == 0) {
        const uint64_t begin = globaltimer();

        wait_for_previous();
        do {
            has = int(ld_acquire(&p.counters[2 * bhk + 1]));
        } while (!has && !cancel_word(p.cancel) && globaltimer() - begin < limit_ns);
    }
    return __syncthreads_and(has);
}

template <int Lanes>
__device__ __forceinline__ void codes_of_head(const td_params_prepare &p, uint32_t bhk, uint32_t block, uint32_t blocks)
{
    using C = Cover<Lanes>;
    __shared__ PrepareShared<Lanes> shared;
    const uint32_t t = threadIdx.x, c = t % C::width;
    const Tiles<Lanes> mine(p, bhk, block * C::tiles, C::tiles);
    OwnRows x;

    mine.load(x);
    for (uint32_t i = t; i < C::tiles * TD_TILE_ROWS / 4; i += TD_PREPARE_THREADS)
        reinterpret_cast<uint32_t *>(shared.bad)[i] = 0;
    if (!wait_for_totals(p, bhk))
        return;
    if (t < C::width)
        shared.mean[c] = p.smooth && c < p.d_pad ? __ldcg(p.k_mean + int64_t(bhk) * p.d_pad + c) : 0.0f;
    else if (t < 2 * C::width)
        shared.factor[c] =
            c < p.d_pad ? code_factor(__ldcg(p.amax + (int64_t(bhk) * (blocks + 1) + blocks) * p.d_pad + c), TD_V_TOP)
                        : 0.0f;
    uint32_t found = 0;
    of_type(mine.is_k ? p.k_dtype : p.v_dtype, [&](auto e) { found = find_bad_rows<decltype(e)>(x); });
    if (mine.is_k && found) {
        const KeyRows<Lanes> at(mine.warp);

        for (int i = 0; i < kLoads; i++)
            if (found >> i & 1)
                shared.bad[mine.tile * int(TD_TILE_ROWS) + 8 * i + at.first] = 1;
    }
    __syncthreads();
    mine.put(x, shared, p.flag);
}

template <int Lanes> __device__ __forceinline__ void prepare_kv_block(const td_params_prepare &p)
{
    const uint32_t chunks = p.kv_pad / TD_TILE_ROWS, blocks = (chunks + Cover<Lanes>::tiles - 1) / Cover<Lanes>::tiles;
    const uint32_t step = blockIdx.x / (2 * blocks), block = blockIdx.x % (2 * blocks);

    launch_dependents();
    if (block < blocks) {
        if (step < p.kv_planes)
            stats_of_head<Lanes>(p, step, block, blocks);
    } else if (step >= p.lag) {
        codes_of_head<Lanes>(p, step - p.lag, block - blocks, blocks);
    }
}

template <int Lanes> __device__ __forceinline__ void prepare_q_block(const td_params_prepare &p)
{
    const uint32_t unit = blockIdx.x * (TD_PREPARE_THREADS / 32) + threadIdx.x / 32, tile = unit / Cover<Lanes>::warps;
    const uint32_t at = blockIdx.x * TD_PREPARE_THREADS + threadIdx.x;

    launch_dependents();
    for (uint32_t i = at; i < 2 * p.kv_planes; i += gridDim.x * TD_PREPARE_THREADS)
        p.counters[i] = 0;
    if (tile < p.q_tiles && !cancel_word(p.cancel))
        prepare_tile_of_q<Lanes>(p, tile, int(unit % Cover<Lanes>::warps), OwnRows());
}

} // namespace td

#define TD_PREPARE(d, lanes)                                                                                       \
    extern "C" __global__ void __launch_bounds__(TD_PREPARE_THREADS, 2)                                            \
        prepare_q_d##d(const __grid_constant__ td_params_prepare p)                                                \
    {                                                                                                              \
        td::prepare_q_block<lanes>(p);                                                                             \
    }                                                                                                              \
    extern "C" __global__ void __launch_bounds__(TD_PREPARE_THREADS, 2)                                            \
        prepare_kv_d##d(const __grid_constant__ td_params_prepare p)                                               \
    {                                                                                                              \
        td::prepare_kv_block<lanes>(p);                                                                            \
    }
TD_PREPARE(32, 4)
TD_PREPARE(64, 8)
TD_PREPARE(128, 16)

#endif
