/* Rows that are appended to a plane of a cache of keys and values, by a block; pages that are sealed: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * It puts rows into the newest page, and where that is full makes codes of it: four threads have two channels of the keys, or one or two
 * a channel of the values.
 */
#pragma once

#include <string.h>

#include "kernels/cache/params.h"
#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/tensor.cuh"

namespace td {

constexpr uint32_t append_threads = TD_CACHE_APPEND_THREADS, append_page = TD_CACHE_PAGE;
static_assert(append_page == 64, "two rows a lane");

__device__ __forceinline__ float half_to_float(uint32_t bits)
{
    return __half2float(__ushort_as_half((unsigned short)bits));
}

__device__ __forceinline__ uint16_t float_to_half(float x)
{
    return uint16_t(cvt_f16x2(0.0f, x));
}

/* Two neighbours, as they are in memory; and as fp16. */
__device__ __forceinline__ uint2 load_two(const void *x, uint32_t dtype, int64_t at)
{
    if (dtype == TANDEM_DTYPE_F32)
        return make_uint2(static_cast<const uint32_t *>(x)[at], static_cast<const uint32_t *>(x)[at + 1]);
    return make_uint2(static_cast<const uint16_t *>(x)[at], static_cast<const uint16_t *>(x)[at + 1]);
}

__device__ __forceinline__ uint32_t halves_of(uint2 two, uint32_t dtype)
{
    if (dtype == TANDEM_DTYPE_F16)
        return cvt_f16x2(half_to_float(two.y), half_to_float(two.x));
    const int bits = dtype == TANDEM_DTYPE_BF16 ? 16 : 0; /* as float32 has them */
    return cvt_f16x2(__uint_as_float(two.y << bits), __uint_as_float(two.x << bits));
}

/* E5M3 upwards, of what is not negative; NaN where it is not finite. */
__device__ __forceinline__ uint8_t scale_up(float x)
{
    const uint32_t half = float_to_half(x), up = half + (half_to_float(half) < x);

    return uint8_t(up >= 0x7c00 ? TD_CACHE_NAN : (up + 0x7f) >> 7);
}

__device__ __forceinline__ float scale_of(uint8_t e5m3)
{
    return half_to_float(uint32_t(e5m3) << 7);
}

__device__ __forceinline__ float inverse_of(uint8_t e5m3)
{
    return e5m3 ? __fdiv_rn(1.0f, scale_of(e5m3)) : 0.0f;
}

__device__ __forceinline__ uint32_t code_of(float x, float most)
{
    const float near = __fsub_rn(__fadd_rn(x, 0x1.8p23f), 0x1.8p23f);

    return uint32_t(int(near > most ? most : near > 0.0f ? near : 0.0f));
}

/* Saturating, as kernels/cpu/cpu.h has it: adding 1.5 * 2^20 times x's power of two leaves 4 bits. */
__device__ __forceinline__ uint32_t e4m3_of(float x)
{
    const float all = __uint_as_float(__float_as_uint(x) & 0x7fffffffu), a = all > 448.0f ? 448.0f : all;
    const uint32_t power = max(__float_as_uint(a) & 0x7f800000u, 0x3c800000u);
    const float magic = __fmul_rn(__uint_as_float(power), 0x1.8p20f);
    const float r = __fsub_rn(__fadd_rn(a, magic), magic);
    const uint32_t code = r < 0x1p-6f ? uint32_t(int(__fmul_rn(r, 512.0f))) : (__float_as_uint(r) >> 20) - 960;

    return r == r ? (__float_as_uint(x) >> 24 & 0x80) | code : 0x7f;
}

__device__ __forceinline__ float from_e4m3(uint32_t code)
{
    /* as fp16 it is 2^8 times too small */
    return __fmul_rn(half_to_float((code & 0x80) << 8 | (code & 0x7f) << 7), 256.0f);
}

/* Where a sequence's head and newest page are, whose pages are in a pool where it has a table; nullptr: it has none. */
template <class Params>
__device__ __forceinline__ uint8_t *cache_plane(const Params &p, uint8_t *pool, const int32_t *table, uint32_t format, uint32_t dim)
{
    if (!table)
        return pool;
    const uint32_t slot = uint32_t(table[0]); /* read once, as is all that others may write to meanwhile */
    return slot < p.slots ? pool + uint64_t(slot) * TD_CACHE_SLOT_BYTES(format, dim) : nullptr;
}

/* One of its pages; nullptr: it has none there. */
template <class Params>
__device__ __forceinline__ uint8_t *cache_page(const Params &p, uint8_t *plane, uint8_t *pool, const int32_t *table, uint32_t number,
                                               uint32_t format, uint32_t dim)
{
    if (!table)
        return plane + TD_CACHE_SEALED(number, format, dim);
    const uint32_t at = uint32_t(table[1 + number]);
    return at < p.pages ? pool + TD_CACHE_POOLED(p.slots, at, format, dim) : nullptr;
}

/* Dim, Format: p's, where they are known; else 0 and -1. */
template <int Dim = 0, int Format = -1> struct Append {
    const td_params_cache_append &p;
    uint32_t batch, head;
    td_cache_head *plane; /* nullptr: none */
    uint8_t *pool;        /* the planes of its head, and pages of all */
    const int32_t *table;
    uint16_t *newest_k, *newest_v;
    uint8_t *page; /* of the first row; nullptr: it has none */
    bool has_codes; /* that page, or will have */
    uint32_t row, count, position; /* of the call: the first row, how many, and where that one goes */

    __device__ __forceinline__ uint32_t dim() const { return Dim ? uint32_t(Dim) : p.dim; }
    __device__ __forceinline__ uint32_t format() const { return Format >= 0 ? uint32_t(Format) : p.format; }

    __device__ __forceinline__ Append(const td_params_cache_append &params, uint32_t of_plane) : p(params)
    {
        batch = of_plane / p.heads;
        head = of_plane - batch * p.heads;
        pool = p.cache + row_at(p.cache_at, p.table ? 0 : batch, head, 0);
        table = p.table ? p.table + batch * p.table_stride : nullptr;
        begin(cache_plane(p, pool, table, format(), dim()));
    }
    /* What somebody has found. */
    __device__ __forceinline__ Append(const td_params_cache_append &params, uint32_t of_batch, uint32_t of_head, uint8_t *its_plane,
                                      uint8_t *its_pool, const int32_t *its_table)
        : p(params), batch(of_batch), head(of_head), pool(its_pool), table(its_table)
    {
        begin(its_plane);
    }
    __device__ __forceinline__ void begin(uint8_t *bytes)
    {
        plane = reinterpret_cast<td_cache_head *>(bytes);
        newest_k = reinterpret_cast<uint16_t *>(bytes + TD_CACHE_HEAD_BYTES);
        newest_v = newest_k + append_page * dim();
    }

    __device__ __forceinline__ int position_of(uint32_t of) const
    {
        return of < p.rows ? p.position[batch * p.position_at.stride_batch + of * p.position_at.stride_row] : -1;
    }

    /* A bit for each row: lanes have two of them. */
    __device__ __forceinline__ static uint64_t vote(bool low, bool high)
    {
        const uint64_t lows = __ballot_sync(~0u, low), highs = __ballot_sync(~0u, high);

        return lows | highs << 32;
    }

    /* Rows that follow one another within a page, from the first on that has a place. */
    __device__ __forceinline__ void find_rows()
    {
        const uint32_t lane = threadIdx.x % 32;
        const int low = position_of(lane), high = position_of(lane + 32);
        const uint64_t here = vote(low >= 0 && uint32_t(low) < p.entries, high >= 0 && uint32_t(high) < p.entries);

        count = 0;
        if (!here)
            return;
        row = uint32_t(__ffsll((long long)here)) - 1;
        position = uint32_t(__shfl_sync(~0u, row < 32 ? low : high, int(row % 32))); /* what was looked at, whatever it is now */
        const uint32_t page_left = append_page - position % append_page, left = p.entries - position;
        const int first = int(position) - int(row);
        const uint64_t strays = ~vote(low == first + int(lane), high == first + int(lane) + 32) >> row;

        count = strays ? uint32_t(__ffsll((long long)strays)) - 1 : append_page - row;
        count = min(count, min(page_left, left));
    }

    /* Two channels of a row, as they are in memory. */
    struct Pair {
        uint2 k, v;
    };
    __device__ __forceinline__ static Pair load(const td_params_cache_append &p, uint32_t batch, uint32_t head, uint32_t row, uint32_t pair)
    {
        return {load_two(p.k, p.k_dtype, row_at(p.k_at, batch, head, row) + 2 * pair),
                load_two(p.v, p.v_dtype, row_at(p.v_at, batch, head, row) + 2 * pair)};
    }
    /* A call's only row: of each thread a pair, if there are so many. */
    __device__ __forceinline__ static Pair load_row(const td_params_cache_append &p, uint32_t batch, uint32_t head)
    {
        static_assert(Dim && Dim / 2 <= int(append_threads), "a thread has no more than a pair");
        return threadIdx.x < Dim / 2 ? load(p, batch, head, 0, threadIdx.x) : Pair{};
    }
    __device__ __forceinline__ void put(const Pair &x, uint32_t pair, uint32_t key) const
    {
        const uint32_t v = halves_of(x.v, p.v_dtype);
        uint16_t *const to = newest_v + (key / 2 * dim() + 2 * pair) * 2 + key % 2;

        *reinterpret_cast<uint32_t *>(newest_k + (pair * append_page + key) * 2) = halves_of(x.k, p.k_dtype);
        to[0] = uint16_t(v), to[2] = uint16_t(v >> 16);
    }
    __device__ __forceinline__ void put_rows() const
    {
        const uint32_t pairs = dim() / 2;

        for (uint32_t i = threadIdx.x; i < count * pairs; i += append_threads) {
            const uint32_t of = i / pairs, pair = i - of * pairs;

            put(load(p, batch, head, row + of, pair), pair, position % append_page + of);
        }
    }

    struct Sealed {
        uint8_t *k, *v;
        uint16_t *k_min;
        uint8_t *k_scale, *v_scale;
    };

    __device__ __forceinline__ Sealed sealed() const
    {
        uint8_t *const k = page;
        uint8_t *const v = k + TD_CACHE_K_BYTES(format(), dim()), *const k_min = v + append_page * dim();

        return {k, v, reinterpret_cast<uint16_t *>(k_min), k_min + 2 * dim(), k_min + 3 * dim()};
    }

    /* Two channels, of which a quad's thread has keys 16 j + 4 q and the three behind that. */
    __device__ __forceinline__ void seal_keys(const Sealed &to, uint32_t pair) const
    {
        const uint32_t q = threadIdx.x % 4;
        const bool is_k4 = format() == TD_CACHE_K4;
        const float most = TD_CACHE_K_MOST(format());
        uint32_t x[4][4], word[4] = {0, 0, 0, 0};
        float least[2], scale[2];

#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const uint4 keys = *reinterpret_cast<const uint4 *>(newest_k + (pair * append_page + 16 * j + 4 * q) * 2);

            x[j][0] = keys.x, x[j][1] = keys.y, x[j][2] = keys.z, x[j][3] = keys.w;
        }
#pragma unroll
        for (uint32_t c = 0; c < 2; c++) {
            float low = half_to_float(x[0][0] >> 16 * c & 0xffff), high = low;
            bool bad = false;

#pragma unroll
            for (uint32_t i = 0; i < 16; i++) {
                const uint32_t bits = x[i / 4][i % 4] >> 16 * c & 0xffff;
                const float mine = half_to_float(bits);

                low = mine < low ? mine : low;
                high = mine > high ? mine : high;
                bad = bad || (bits & 0x7c00) == 0x7c00;
            }
#pragma unroll
            for (int apart = 1; apart < 4; apart *= 2) {
                const float other_low = __shfl_xor_sync(~0u, low, apart), other_high = __shfl_xor_sync(~0u, high, apart);

                low = other_low < low ? other_low : low;
                high = other_high > high ? other_high : high;
            }
            const uint32_t quads = __ballot_sync(~0u, bad);
            const uint8_t e5m3 = quads >> (threadIdx.x % 32 & ~3u) & 15 ? uint8_t(TD_CACHE_NAN)
                                                                         : scale_up(__fdiv_rn(__fsub_rn(high, low), most));
            least[c] = low, scale[c] = inverse_of(e5m3);
            if (q == 0)
                to.k_min[2 * pair + c] = float_to_half(low), to.k_scale[2 * pair + c] = e5m3;
        }
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            uint32_t both[4];

#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                const float a = __fsub_rn(half_to_float(x[j][i] & 0xffff), least[0]);
                const float b = __fsub_rn(half_to_float(x[j][i] >> 16), least[1]);

                both[i] = code_of(__fmul_rn(a, scale[0]), most) | code_of(__fmul_rn(b, scale[1]), most) << (is_k4 ? 16 : 8);
                word[i] |= both[i] << 4 * j;
            }
            if (!is_k4)
                *reinterpret_cast<uint2 *>(to.k + (pair * append_page + 16 * j + 4 * q) * 2) =
                    make_uint2(both[0] | both[1] << 16, both[2] | both[3] << 16);
        }
        if (is_k4)
            *reinterpret_cast<uint4 *>(to.k + pair * append_page + 16 * q) = make_uint4(word[0], word[1], word[2], word[3]);
    }

    /* A channel, whose keys one thread has, or two that are neighbours. */
    __device__ __forceinline__ void seal_values(const Sealed &to) const
    {
        const uint32_t threads = append_threads / dim(), c = threadIdx.x / threads;
        const uint32_t pairs = append_page / 2 / threads, first = threadIdx.x % threads * pairs;
        const uint32_t *const from = reinterpret_cast<const uint32_t *>(newest_v) + first * dim() + c;
        uint32_t most = 0; /* without signs fp16 is in the order of its bits */

        for (uint32_t i = 0; i < pairs; i++) {
            const uint32_t word = from[i * dim()] & 0x7fff7fffu;

            most = max(most, max(word & 0xffff, word >> 16));
        }
        if (threads == 2)
            most = max(most, __shfl_xor_sync(~0u, most, 1));
        const uint8_t e5m3 = most >= 0x7c00 ? uint8_t(TD_CACHE_NAN)
                                            : scale_up(__fdiv_rn(half_to_float(most), TD_CACHE_V_MOST));
        const float inverse = inverse_of(e5m3);

        if (first == 0)
            to.v_scale[c] = e5m3;
        for (uint32_t i = 0; i < pairs; i++) {
            const uint32_t word = from[i * dim()];
            const uint32_t low = e4m3_of(__fmul_rn(half_to_float(word & 0xffff), inverse));
            const uint32_t high = e4m3_of(__fmul_rn(half_to_float(word >> 16), inverse));

            reinterpret_cast<uint16_t *>(to.v)[(first + i) * dim() + c] = uint16_t(low | high << 8);
        }
    }

    __device__ __forceinline__ void seal() const
    {
        const Sealed to = sealed();

        for (uint32_t pair = threadIdx.x / 4; pair < dim() / 2; pair += append_threads / 4)
            seal_keys(to, pair);
        seal_values(to);
    }

    /* Of the page of the first row, what is before that, as fp16 again. */
    __device__ __forceinline__ void unseal() const
    {
        const Sealed from = sealed();
        const uint32_t before = position % append_page;

        for (uint32_t i = threadIdx.x; i < before * dim(); i += append_threads) {
            const uint32_t j = i / dim(), c = i - j * dim();
            const uint32_t k_at = (c / 2 * append_page + j) * 2 + c % 2, v_at = (j / 2 * dim() + c) * 2 + j % 2;
            const uint32_t words = c / 2 * 16 + j % 16, nibble = c % 2 * 16 + j / 16 * 4;
            const uint32_t code = format() == TD_CACHE_K4 ? reinterpret_cast<const uint32_t *>(from.k)[words] >> nibble & 15
                                                          : from.k[k_at];
            const float k = __fmul_rn(float(int(code)), scale_of(from.k_scale[c]));

            newest_k[k_at] = float_to_half(__fadd_rn(half_to_float(from.k_min[c]), k));
            newest_v[v_at] = float_to_half(__fmul_rn(from_e4m3(from.v[v_at]), scale_of(from.v_scale[c])));
        }
    }

    /* What blocks of a run that was cancelled may have left. */
    __device__ __forceinline__ void clear_tickets() const
    {
        for (uint32_t i = threadIdx.x; i < TD_CACHE_TICKETS && plane; i += append_threads)
            plane->tickets[i] = 0;
    }

    /* Makes the first row's page the newest; whether it can be written. All threads. */
    __device__ __forceinline__ bool turn_to_page()
    {
        const int number = int(position / append_page);

        page = cache_page(p, reinterpret_cast<uint8_t *>(plane), pool, table, uint32_t(number), format(), dim());
        if (format() == TD_CACHE_F16) {
            has_codes = false;
            newest_k = reinterpret_cast<uint16_t *>(page);
            newest_v = newest_k + append_page * dim();
            if (page && threadIdx.x == 0)
                plane->holds = number + 1;
            return page != nullptr;
        }
        const bool is_there = plane->holds == number + 1;

        has_codes = page && number < int((p.entries - 1) / append_page);
        __syncthreads(); /* all have read what it holds */
        if (threadIdx.x == 0)
            plane->holds = number + 1;
        if (position % append_page && !is_there && has_codes)
            unseal();
        return true;
    }

    __device__ __forceinline__ void seal_full() const
    {
        if (position % append_page + count != append_page || !has_codes)
            return;
        __syncthreads();
        seal();
    }

    __device__ __forceinline__ void append()
    {
        if (!plane)
            return;
        find_rows();
        if (!count || !turn_to_page())
            return;
        put_rows();
        seal_full();
    }
    /* A call's only row, which goes there. */
    __device__ __forceinline__ void append_row(const Pair &x, int to)
    {
        if (!plane || uint32_t(to) >= p.entries)
            return;
        row = 0, count = 1, position = uint32_t(to);
        if (!turn_to_page())
            return;
        if (threadIdx.x < dim() / 2)
            put(x, threadIdx.x, position % append_page);
        seal_full();
    }
};

} // namespace td
