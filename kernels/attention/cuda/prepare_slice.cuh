/* What the two prologues of sm_90 share: the part of a tile of Q, K or V that a lane has, in
 * registers. See prepare_head.cuh.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "fused_set.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace td {

/* Calls f with an element of the type; both take the same loads. */
template <class F> __device__ __forceinline__ void of_type(uint32_t dtype, F f)
{
    if (dtype == TANDEM_DTYPE_BF16)
        f(__nv_bfloat16());
    else
        f(__half());
}

/* Whether what has these magnitudes is finite, all of it. */
template <class E> __device__ __forceinline__ bool is_finite_below(uint32_t most)
{
    const uint32_t top = Words<E>::exponent & 0xffffu;

    return (most & 0xffffu) < top && most >> 16 < top;
}

/* How warps lie over a tile of 128 rows of K and V; a lane has `W` words of 16 rows. */
template <int D, int W> struct Lay {
    static constexpr int lanes = D / (2 * W);  /* of a row of K */
    static constexpr int rows = 32 / lanes;    /* of K, at once */
    static constexpr int warps = 8 / rows;     /* of a tile of K, and of V */
    static constexpr int v_width = 32 * W;     /* channels of V of a warp, 32 keys */
    static constexpr int v_columns = D / v_width;
    static constexpr int most_tiles = int(TD_PREPARE_MOST_THREADS) / 64 / warps; /* of a block */
    static constexpr int each = D / 32;        /* channels of a lane where a warp has all of them */
    static_assert(rows <= 2 && warps == 4 * v_columns, "both halves of a block have as many warps");
};

/* What one instruction loads or stores. */
template <class T, int N> struct alignas(sizeof(T) * N) Several {
    T x[N];
};

/* Element c % 2 of two, as a float. */
template <class E> __device__ __forceinline__ float half_of(uint32_t word, int c)
{
    if constexpr (std::is_same_v<E, __half>)
        return __half2float(__ushort_as_half(uint16_t(word >> (c % 2 * 16))));
    else
        return __uint_as_float(c % 2 ? word & 0xffff0000u : word << 16);
}

/* The larger and the smaller of each two, or NaN. */
template <class E> __device__ __forceinline__ uint32_t max_x2(uint32_t a, uint32_t b)
{
    return std::is_same_v<E, __half> ? max_f16x2(a, b) : max_bf16x2(a, b);
}

template <class E> __device__ __forceinline__ uint32_t min_x2(uint32_t a, uint32_t b)
{
    return std::is_same_v<E, __half> ? min_f16x2(a, b) : min_bf16x2(a, b);
}

template <class T, int N> __device__ __forceinline__ void load_words(T (&to)[N], const T *from)
{
    const Several<T, N> all = *reinterpret_cast<const Several<T, N> *>(from);

#pragma unroll
    for (int i = 0; i < N; i++)
        to[i] = all.x[i];
}

template <class T, int N> __device__ __forceinline__ void store_words(T *to, const T (&from)[N])
{
    Several<T, N> all;

#pragma unroll
    for (int i = 0; i < N; i++)
        all.x[i] = from[i];
    *reinterpret_cast<Several<T, N> *>(to) = all;
}

template <int N>
__device__ __forceinline__ void store_global(InL2, uint32_t *to, const uint32_t (&from)[N])
{
    store_words(to, from);
}

/* Codes of 2 W channels of a row, or zeros. */
template <class E, int W, bool Mean, class Stays>
__device__ __forceinline__ void store_codes(Stays stays, uint8_t *to, const uint32_t (&x)[W],
                                            const float *mean, float factor, uint32_t mask = ~0u,
                                            bool stores = true)
{
    uint32_t code[2 * W];

#pragma unroll
    for (int c = 0; c < 2 * W; c++) {
        const float v = half_of<E>(x[c / 2], c);
        float y = __fmul_rn(Mean ? __fsub_rn(v, mean[c]) : v, factor);

        /* Rounding alone brings what is within amax to 127; a NaN, of sums that overflowed, is not
         * among halves. */
        if constexpr (!std::is_same_v<E, __half>)
            y = fminf(fmaxf(y, -127.0f), 127.0f);
        code[c] = __float_as_uint(
            __fadd_rn(y, 12582912.0f)); /* 1.5 * 2^23: its last bits are the integer */
    }
    if constexpr (W == 1) {
        const uint32_t word = __byte_perm(code[0], code[1], 0x0040) & mask;

        if (stores)
            *reinterpret_cast<uint16_t *>(to) = uint16_t(word);
    } else {
        uint32_t words[W / 2];

#pragma unroll
        for (int i = 0; i < W / 2; i++)
            words[i] = __byte_perm(__byte_perm(code[4 * i], code[4 * i + 1], 0x0040),
                                   __byte_perm(code[4 * i + 2], code[4 * i + 3], 0x0040), 0x5410) &
                       mask;
        forget(words);
        if (stores)
            store_global(stays, reinterpret_cast<uint32_t *>(to), words);
    }
}

/* Where a head begins, in elements. */
__device__ __forceinline__ int64_t head_offset(uint32_t bh, uint32_t heads,
                                               const int64_t (&strides)[3])
{
    int64_t batch = 0;

    if (bh >= heads) { /* the first needs no division */
        batch = bh / heads * strides[0];
        bh %= heads;
    }
    return batch + bh * strides[1];
}

/* Of the 16 lanes that this one belongs to; of x, 16 bits. */
__device__ __forceinline__ uint32_t or_of_half(uint32_t x)
{
    const uint32_t other = threadIdx.x & 16 ? 16 : 0, all = __reduce_or_sync(~0u, x << other);

    return all >> other & 0xffffu;
}

/* Words of several rows. */
template <int N, int W> struct Piece {
    uint32_t x[N][W];

    /* The i-th begins at from + i * stride, if it exists. */
    template <class Stays, class Exists>
    __device__ __forceinline__ void load(Stays stays, const uint16_t *from, int64_t stride,
                                         Exists exists)
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            load_once_or_zeros(stays, x[i], from + i * stride, exists(i));
    }

    /* What is not finite becomes 0; bit i of the result: row i had some. */
    template <class E> __device__ __forceinline__ uint32_t clean()
    {
        uint32_t bad = 0;

#pragma unroll
        for (int i = 0; i < N; i++)
            bad |= uint32_t(!td::clean<E>(x[i])) << i;
        return bad;
    }

    template <class E> __device__ __forceinline__ float at(int i, int c) const
    {
        return half_of<E>(x[i][c / 2], c % 2);
    }
};

/* Calls f(i, words of row i), `Each` rows in a turn of the loop, so that its code is that of so
 * many. */
template <int Each, int N, int W, class F>
__device__ __forceinline__ void for_rows(Piece<N, W> piece, F f)
{
#pragma unroll 1
    for (int from = 0; from < N; from += Each) {
#pragma unroll
        for (int i = 0; i < Each; i++)
            f(from + i, piece.x[i]);
#pragma unroll
        for (int i = Each; i < N; i++)
#pragma unroll
            for (int w = 0; w < W; w++)
                piece.x[i - Each][w] = piece.x[i][w];
    }
}

/* What was computed from them is not kept. */
template <int N, int W> __device__ __forceinline__ void forget_piece(Piece<N, W> &piece)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        forget(piece.x[i]);
}

/* What they tell each other of V besides, where it is smoothed. */
template <int D, int W, bool SmoothV> struct ValuesShared {};
template <int D, int W> struct ValuesShared<D, W, true> {
    using L = Lay<D, W>;
    /* as of K */
    alignas(16) float v_sums[L::most_tiles][8][D];
    alignas(16) uint32_t v_ends[L::most_tiles][8][2][D / 2];
    /* of all blocks: sums of V's tiles; the smallest of their keys, the largest being in `most` */
    alignas(16) float v_chunks[16 * L::most_tiles][D];
    alignas(16) uint32_t least[16][D / 2];
    alignas(16) float v_mean[D];
};

/* What warps tell each other. */
template <int D, int W, bool SmoothV> struct HeadShared : ValuesShared<D, W, SmoothV> {
    using L = Lay<D, W>;
    /* of K's rows that are alike modulo 8 */
    alignas(16) float sums[L::most_tiles][8][D];
    /* the largest and the smallest of these */
    alignas(16) uint32_t ends[L::most_tiles][8][2][D / 2];
    alignas(16) uint32_t tops[L::most_tiles * 4][D / 2];           /* of V: magnitudes of 32 keys */
    /* of all blocks: sums of K's tiles */
    alignas(16) float chunks[16 * L::most_tiles][D];
    /* of all blocks: V's largest magnitudes */
    alignas(16) uint32_t most[16][D / 2];
    alignas(16) float mean[D], factor[D];
    uint64_t told;                                  /* mbarrier: chunks and most are there */
    /* of prepare_kv: whether it is the block that makes totals */
    uint32_t last;
    /* rows that are not finite: bits of 16 that are alike, */
    uint32_t bad_k[L::most_tiles][8];
    uint32_t bad_v[L::most_tiles][4][L::v_columns]; /* of 32 next to each other */
};

/* Where V is smoothed that is more than a kernel may have of its own: the launch brings it. */
template <int D, int W>
__device__ __forceinline__ HeadShared<D, W, true> &smooth_shared(uint8_t *bytes)
{
    static_assert(sizeof(HeadShared<D, W, true>) <= TD_PREPARE_SMOOTH_V_BYTES(D),
                  "the launch asks for another size");
    return *reinterpret_cast<HeadShared<D, W, true> *>(bytes);
}

/* Where V is smoothed, the parameters that these are the first of. */
__device__ __forceinline__ const td_params_prepare_smooth_v &smooth_v_of(const td_params_prepare &p)
{
    return reinterpret_cast<const td_params_prepare_smooth_v &>(p);
}

/* Of a word of V's codes, which has keys 0, 1, 8 and 9: a mask of those below n. */
__device__ __forceinline__ uint32_t bytes_below(int n)
{
    return (n > 0 ? 0xffu : 0u) | (n > 1 ? 0xff00u : 0u) | (n > 8 ? 0xff0000u : 0u) |
           (n > 9 ? 0xff000000u : 0u);
}

/* What a lane has of a tile of K, or of V. With SmoothV it has V twice: at the first look as K, so
 * that sums and extremes of channels are a lane's there, too. */
template <int D, int W, bool SmoothV> struct Slice {
    using L = Lay<D, W>;
    using Shared = HeadShared<D, W, SmoothV>;
    Piece<16, W> piece;
    int tile, first, channel; /* of the block; rows are first + 8 i of K, first + i of V */
    int left;                 /* i-th row exists: 8 i, or i, is less */
    bool is_k;

    /* Sets what it is of; the result: the number of the warp in the tile. */
    __device__ __forceinline__ int place(const td_params_prepare &p)
    {
        const int half = int(p.tiles) * L::warps, at = int(threadIdx.x) / 32;

        is_k = at < half;
        tile = (is_k ? at : at - half) / L::warps;
        return at % L::warps;
    }

    __device__ __forceinline__ Slice() {}
    template <class Stays>
    __device__ __forceinline__ Slice(const td_params_prepare &p, uint32_t bhk, uint32_t rank,
                                     Stays stays, bool first_look)
    {
        const int lane = int(threadIdx.x) % 32, warp = place(p);
        const bool as_k = is_k || (SmoothV && first_look);

        first = as_k ? warp * L::rows + lane / L::lanes : warp / L::v_columns * 32 + lane / 16 * 16;
        channel =
            as_k ? lane % L::lanes * 2 * W : warp % L::v_columns * L::v_width + lane % 16 * 2 * W;
        const int row = int(rank * p.tiles + uint32_t(tile)) * int(TD_TILE_ROWS) + first,
                  step = as_k ? 8 : 1;
        const int64_t(&strides)[3] = is_k ? p.k_strides : p.v_strides;
        const uint16_t *x = static_cast<const uint16_t *>(is_k ? p.k : p.v);
        const uint16_t *from =
            x + head_offset(bhk, p.kv_heads, strides) + row * strides[2] + channel;
        const int64_t stride = step * strides[2];

        left = min(int(p.kv_len) - row, int(TD_TILE_ROWS) - first);
        const int reads = channel < int(p.dim) ? left : 0;

        piece.load(stays, from, stride, [&](int i) { return i * step < reads; });
    }

    /* Asks for what it has to be in L2: a lane for 128 bytes. */
    static __device__ __forceinline__ void ask(const td_params_prepare &p, uint32_t bhk,
                                               uint32_t rank)
    {
        Slice it;
        const int lane = int(threadIdx.x) % 32, warp = it.place(p);
        const int row0 = int(rank * p.tiles + uint32_t(it.tile)) * int(TD_TILE_ROWS);
        const int row = row0 + (!it.is_k         ? warp / L::v_columns * 32 + lane
                                : L::rows == 2 ? warp * 2 + lane / 16 + lane % 16 * 8
                                               : warp + lane % 16 * 8);
        const int column = !it.is_k       ? warp % L::v_columns * L::v_width
                           : L::rows == 2 ? 0
                                          : lane / 16 * 64;
        const int64_t(&strides)[3] = it.is_k ? p.k_strides : p.v_strides;
        const uint16_t *x = static_cast<const uint16_t *>(it.is_k ? p.k : p.v);

        if (row < int(p.kv_len) && column < int(p.dim))
            prefetch_l2(x + head_offset(bhk, p.kv_heads, strides) + row * strides[2] + column);
    }

    __device__ __forceinline__ bool exists() const /* any row of the tile */
    {
        return left + first > 0;
    }

    /* What the block's other warps and totals need of it, to shared memory. */
    __device__ __forceinline__ void gather(const td_params_prepare &p, Shared &shared,
                                           bool first_look)
    {
        auto *ends = shared.ends[tile];
        auto *sums = shared.sums[tile];
        bool as_k = is_k, smooth = p.smooth;

        if constexpr (SmoothV)
            if (first_look && !is_k) {
                ends = shared.v_ends[tile];
                sums = shared.v_sums[tile];
                as_k = smooth = true;
            }
        if (as_k)
            of_type(is_k ? p.k_dtype : p.v_dtype, [&](auto e) {
                gather_keys<decltype(e)>(shared, ends[first], sums[first], first_look && smooth);
            });
        else
            of_type(p.v_dtype, [&](auto e) { gather_values<decltype(e)>(shared); });
    }

    /* Codes and scales, by the head's mean and factors; row: the lane's first. */
    template <class Stays>
    __device__ __forceinline__ void put(const td_params_prepare &p, const Shared &shared,
                                        uint32_t bhk, int row, Stays stays) const
    {
        if (is_k)
            of_type(p.k_dtype, [&](auto e) {
                put_keys<decltype(e)>(p, shared, int64_t(bhk) * p.kv_pad + row, stays);
            });
        else
            of_type(p.v_dtype,
                    [&](auto e) { put_values<decltype(e)>(p, shared, bhk, row, stays); });
    }

    template <class E>
    __device__ __forceinline__ void find_ends(uint32_t (&top)[W], uint32_t (&low)[W]) const
    {
#pragma unroll
        for (int w = 0; w < W; w++)
            top[w] = low[w] = piece.x[0][w];
#pragma unroll
        for (int i = 1; i < 16; i++)
            if (8 * i < left)
#pragma unroll
                for (int w = 0; w < W; w++) {
                    top[w] = max_x2<E>(top[w], piece.x[i][w]);
                    low[w] = min_x2<E>(low[w], piece.x[i][w]);
                }
    }

    template <class E>
    __device__ __forceinline__ void gather_keys(Shared &shared, uint32_t (&ends)[2][D / 2],
                                                float (&sums)[D], bool smooth)
    {
        uint32_t top[W], low[W], found = 0;

#pragma unroll 1
        for (;;) {
            uint32_t most = 0;

            find_ends<E>(top, low);
#pragma unroll
            for (int w = 0; w < W; w++)
                most = max_magnitude(max_magnitude(most, top[w]), low[w]);
            if (is_finite_below<E>(most) || found)
                break;
            found = piece.template clean<E>();
        }
        found = L::rows == 1 ? __reduce_or_sync(~0u, found) : or_of_half(found);
        if (is_k && threadIdx.x % uint32_t(L::lanes) == 0)
            shared.bad_k[tile][first] = found;
        store_words(&ends[0][channel / 2], top);
        store_words(&ends[1][channel / 2], low);
        if (!smooth)
            return;
        float sum[2 * W] = {};
#pragma unroll
        for (int i = 0; i < 16; i++)
#pragma unroll
            for (int c = 0; c < 2 * W; c++)
                sum[c] = __fadd_rn(sum[c], piece.template at<E>(i, c));
        store_words(&sums[channel], sum);
    }

    template <class E, class Stays>
    __device__ __forceinline__ void put_keys(const td_params_prepare &p, const Shared &shared,
                                             int64_t to, /* of the lane's first row */
                                             Stays stays) const
    {
        const int lane = int(threadIdx.x) % 32, even = first & ~1,
                  odd = even + int(left + first > even + 1);
        uint32_t top[2][W], low[2][W], most = 0;
        float mean[2 * W];

        load_words(top[0], &shared.ends[tile][even][0][channel / 2]);
        load_words(top[1], &shared.ends[tile][odd][0][channel / 2]);
        load_words(low[0], &shared.ends[tile][even][1][channel / 2]);
        load_words(low[1], &shared.ends[tile][odd][1][channel / 2]);
        load_words(mean, shared.mean + channel);
#pragma unroll
        for (int w = 0; w < W; w++) {
            top[0][w] = max_x2<E>(top[0][w], top[1][w]);
            low[0][w] = min_x2<E>(low[0][w], low[1][w]);
#pragma unroll
            for (int c = 0; c < 2; c++) {
                most = max(most, magnitude(__fsub_rn(half_of<E>(top[0][w], c), mean[2 * w + c])));
                most = max(most, magnitude(__fsub_rn(half_of<E>(low[0][w], c), mean[2 * w + c])));
            }
        }
        const float amax = __uint_as_float(__reduce_max_sync(~0u, most)),
                    factor = code_factor(amax, 127.0f);

        if (L::rows == 2 || lane < 16) {
            const int row = 8 * (lane % 16), key = first + row;
            uint32_t bad = shared.bad_k[tile][first] >> lane % 16;

#pragma unroll
            for (int c = 0; c < L::v_columns; c++)
                bad |= shared.bad_v[tile][key / 32][c] >> key % 32;
            p.k_scale[to + row] = row >= left ? 0.0f
                                  : bad & 1   ? CUDART_NAN_F
                                              : code_scale(amax, 127.0f);
        }
        if (channel >= int(p.d_pad))
            return;
        uint8_t *codes = static_cast<uint8_t *>(p.k_codes) + to * p.d_pad + channel;
        for_rows<8>(piece, [&](int i, const uint32_t(&x)[W]) {
            store_codes<E, W, true>(stays, codes, x, mean, factor, 8 * i < left ? ~0u : 0u);
            codes += 8 * p.d_pad;
        });
    }

    __device__ __forceinline__ void find_most(uint32_t (&most)[W]) const
    {
#pragma unroll
        for (int w = 0; w < W; w++)
            most[w] = 0;
#pragma unroll
        for (int i = 0; i < 16; i++)
#pragma unroll
            for (int w = 0; w < W; w++)
                most[w] = max_magnitude(most[w], piece.x[i][w]);
    }

    template <class E> __device__ __forceinline__ void gather_values(Shared &shared)
    {
        uint32_t most[W], found = 0;

#pragma unroll 1
        for (;;) {
            uint32_t top = 0;

            find_most(most);
#pragma unroll
            for (int w = 0; w < W; w++)
                top = __vmaxu2(top, most[w]);
            if (is_finite_below<E>(top) || found)
                break;
            found = piece.template clean<E>();
        }
        found = __reduce_or_sync(~0u, found << first % 32);
        if (threadIdx.x % 32 == 0)
            shared.bad_v[tile][first / 32][channel / L::v_width] = found;
#pragma unroll
        for (int w = 0; w < W; w++)
            most[w] = __vmaxu2(most[w], __shfl_xor_sync(~0u, most[w], 16));
        if (threadIdx.x % 32 < 16)
            store_words(&shared.tops[tile * 4 + first / 32][channel / 2], most);
    }

    template <class E, class Stays>
    __device__ __forceinline__ void put_values(const td_params_prepare &p, const Shared &shared,
                                               int64_t plane, int row, Stays stays) const
    {
        float factor[2 * W];
        [[maybe_unused]] float mean[2];

        if (channel >= int(p.d_pad))
            return;
        if constexpr (!SmoothV)
            load_words(factor, shared.factor + channel);
        uint8_t *codes =
            static_cast<uint8_t *>(p.v_codes) + (plane * p.d_pad + channel) * p.kv_pad + row;
        Piece<16, W> x = piece;
#pragma unroll 1
        for (int w = 0; w < W; w++) {
            if constexpr (SmoothV) { /* those of all channels would take registers too many */
                load_words(mean, shared.v_mean + channel + 2 * w);
                factor[0] = shared.factor[channel + 2 * w];
                factor[1] = shared.factor[channel + 2 * w + 1];
            }
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const auto scaled = [&](int i) {
                    const float v = half_of<E>(x.x[i][0], c);

                    if constexpr (SmoothV)
                        return __fmul_rn(__fsub_rn(v, mean[c]), factor[c]);
                    else
                        return __fmul_rn(v, factor[c]);
                };
                const auto two = [&](int i) {
                    return uint32_t(cvt_e4m3x2(scaled(i + 1), scaled(i)));
                };

                uint32_t four[4] = {
                    __byte_perm(two(0), two(8), 0x5410), __byte_perm(two(2), two(10), 0x5410),
                    __byte_perm(two(4), two(12), 0x5410), __byte_perm(two(6), two(14), 0x5410)};

                if constexpr (SmoothV)
                    if (left < 16) /* what is not there is 0, not 0 - mean */
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            four[i] &= bytes_below(left - 2 * i);
                store_global(stays, reinterpret_cast<uint32_t *>(codes), four);
                codes += p.kv_pad;
            }
#pragma unroll
            for (int i = 0; i < 16; i++)
#pragma unroll
                for (int v = 1; v < W; v++)
                    x.x[i][v - 1] = x.x[i][v];
#pragma unroll
            for (int c = 2; c < 2 * W; c++)
                if constexpr (!SmoothV)
                    factor[c - 2] = factor[c];
        }
        if constexpr (SmoothV)
            if (const uint32_t bad = shared.bad_v[tile][first / 32][channel / L::v_width] >>
                                     first % 32 & 0xffffu)
                clear_bad<E>(p, plane, row, bad);
    }

    /* Codes of what is not finite, of which the piece knows no more, become 0; bits of rows that
     * have some. */
    template <class E>
    __device__ __forceinline__ void clear_bad(const td_params_prepare &p, int64_t plane, int row,
                                              uint32_t bad) const
    {
        const uint16_t *x = static_cast<const uint16_t *>(p.v) +
                            head_offset(uint32_t(plane), p.kv_heads, p.v_strides) + channel;

#pragma unroll 1
        for (int i = 0; i < 16; i++)
#pragma unroll 1
            for (int c = 0; (bad >> i & 1) && c < 2 * W && channel + c < int(p.dim); c++)
                if (not_finite<E>(x[(row + i) * p.v_strides[2] + c]))
                    static_cast<uint8_t *>(p.v_codes)[(plane * p.d_pad + channel + c) * p.kv_pad +
                                                      row + permuted(i)] = 0;
    }
};

/* 16 rows of Q; `unit` counts them over all tiles. */
template <int D>
__device__ __forceinline__ void prepare_rows_of_q(const td_params_prepare &p, uint32_t unit,
                                                  bool gone)
{
    constexpr int W = D / 32;
    const uint32_t chunks = (p.q_len + TD_TILE_ROWS - 1) / TD_TILE_ROWS, tile = unit / 8,
                   bh = tile / chunks;
    const int lane = int(threadIdx.x) % 32, channel = lane % 16 * 2 * W;
    const int row0 = int(tile % chunks * TD_TILE_ROWS + unit % 8 * 16), first = lane / 16 * 8;
    const int left = int(p.q_len) - row0 - first;
    const uint16_t *from = static_cast<const uint16_t *>(p.q) +
                           head_offset(bh, p.heads, p.q_strides) + (row0 + first) * p.q_strides[2] +
                           channel;
    const int64_t stride = p.q_strides[2], to = int64_t(unit) * 16 + first;
    const int reads = channel < int(p.dim) ? left : 0;

    of_type(p.q_dtype, [&](auto e) {
        using E = decltype(e);
        Piece<8, W> piece;
        uint32_t mine = 0, bad = 0; /* lane i of 8 has group i */

        piece.load(InL2(), from, stride, [&](int i) { return i < reads; });
#pragma unroll 1
        for (bool cleaned = false;; cleaned = true) {
            uint32_t most = 0;

#pragma unroll
            for (int i = 0; i < 8; i++) {
                uint32_t here = 0;

#pragma unroll
                for (int w = 0; w < W; w++)
                    here = max_magnitude(here, piece.x[i][w]);
                here = __reduce_max_sync(~0u, max(here & 0xffffu, here >> 16));
                most = max(most, here);
                mine = lane % 8 == i ? here : mine;
            }
            if (is_finite_below<E>(most) || cleaned)
                break;
            bad = __reduce_or_sync(~0u, piece.template clean<E>() << first) >> first;
        }
        if (gone)
            return;
        const float amax = half_of<E>(mine, 0), factor = code_factor(amax, 127.0f);
        const int i = lane % 8;

        if (!(lane & 8))
            p.q_scale[to + i] = i >= left      ? 0.0f
                                : bad >> i & 1 ? CUDART_NAN_F
                                               : code_scale(amax, 127.0f);
        uint8_t *codes = static_cast<uint8_t *>(p.q_codes) + to * p.d_pad + channel;
        for_rows<4>(piece, [&](int i, const uint32_t(&x)[W]) {
            store_codes<E, W, false>(InL2(), codes, x, nullptr, __shfl_sync(~0u, factor, i), ~0u,
                                     channel < int(p.d_pad));
            codes += p.d_pad;
        });
    });
}

/* Behind a barrier: sums of the tile's rows, of the lane's channels; `Pairs` of rows are loaded at
 * once. */
template <int D, int W, int Pairs = 4>
__device__ __forceinline__ void sum_of_tile(const float (&sums)[8][D],
                                            float (&sum)[Lay<D, W>::each])
{
    using L = Lay<D, W>;
    const int lane = int(threadIdx.x) % 32;
    float more[2][L::each];

#pragma unroll Pairs
    for (int r = 0; r < 8; r += 2) {
        load_words(more[0], &sums[r][lane * L::each]);
        load_words(more[1], &sums[r + 1][lane * L::each]);
#pragma unroll
        for (int c = 0; c < L::each; c++) {
            more[0][c] = __fadd_rn(more[0][c], more[1][c]);
            sum[c] = r ? __fadd_rn(sum[c], more[0][c]) : more[0][c];
        }
    }
}

} // namespace td
#endif
