/* A set of tiles that a block of `stats` or `quantise` has in registers, and its way there.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include <math_constants.h>

#include <type_traits>

#include "prologue.cuh"

namespace td {

/* The word that says that the job is given up; to be asked for early and looked at late. */
__device__ __forceinline__ uint32_t cancel_word(const uint32_t *word)
{
    return word ? *(const volatile uint32_t *)word : 0;
}

/* Of each value in a word of memory: whether it is finite, how large. */
template <class E> struct Words;
template <> struct Words<__half> {
    static constexpr uint32_t exponent = 0x7c007c00u, one = 0x04000400u, top = 0x80008000u;
};
template <> struct Words<__nv_bfloat16> {
    static constexpr uint32_t exponent = 0x7f807f80u, one = 0x00800080u, top = 0x80008000u;
};

/* The top bit of every value that is not finite. */
template <class E> __device__ __forceinline__ uint32_t not_finite(uint32_t word)
{
    return ((word & Words<E>::exponent) + Words<E>::one) & Words<E>::top;
}

/* Those become 0. Whether there was none. */
template <class E, int N> __device__ __forceinline__ bool clean(uint32_t (&words)[N])
{
    uint32_t found = 0;

#pragma unroll
    for (int i = 0; i < N; i++)
        found |= (words[i] & Words<E>::exponent) + Words<E>::one;
    if (!(found & Words<E>::top))
        return true;
#pragma unroll
    for (int i = 0; i < N; i++)
        words[i] &= ~((not_finite<E>(words[i]) >> 15) * 0xffffu);
    return false;
}

__device__ __forceinline__ uint32_t max_magnitude(uint32_t most, uint32_t word)
{
    return __vmaxu2(most, word & 0x7fff7fffu);
}

/* Eight channels of a row, as they lie in memory. */
template <class E> struct Vector {
    static constexpr int count = 4;
    uint32_t words[count];

    template <bool Wide> __device__ __forceinline__ void load(const E *p, bool exists)
    {
        if (!exists) {
#pragma unroll
            for (int i = 0; i < count; i++)
                words[i] = 0;
        } else if constexpr (Wide) {
            const uint4 four = __ldg(reinterpret_cast<const uint4 *>(p));

            words[0] = four.x;
            words[1] = four.y;
            words[2] = four.z;
            words[3] = four.w;
        } else {
            E e[8];

#pragma unroll
            for (int i = 0; i < 8; i++)
                e[i] = p[i];
            memcpy(words, e, sizeof words);
        }
    }

    __device__ __forceinline__ float at(int i) const /* i is known when this is compiled */
    {
        if constexpr (std::is_same_v<E, __half>)
            return __half2float(__ushort_as_half(uint16_t(words[i / 2] >> (i % 2 * 16))));
        else
            return __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
    }
};

/* Lanes that share a row: eight channels each. */
__device__ __forceinline__ int lanes_of(uint32_t d_pad)
{
    return d_pad <= 32 ? 4 : d_pad <= 64 ? 8 : d_pad <= 128 ? 16 : 32;
}

/* Calls f with a pointer of the dtype's type, which is not float32. */
template <class F> __device__ __forceinline__ void as_dtype(const void *x, uint32_t dtype, F f)
{
    if (dtype == TANDEM_DTYPE_BF16)
        f(static_cast<const __nv_bfloat16 *>(x));
    else
        f(static_cast<const __half *>(x));
}

/* Whether every eighth channel of every row is 16-byte aligned. */
template <class E> __device__ __forceinline__ bool is_wide(const E *x, const int64_t (&strides)[3])
{
    return ((uint64_t)x | (uint64_t)(strides[0] | strides[1] | strides[2]) * sizeof(E)) % 16 == 0;
}

constexpr int kVectors = 4; /* a thread's, of a set */
constexpr int kMostRows = 512; /* of a set */

struct FusedShared {
    alignas(16) float mean[256]; /* [channel], or of each tile */
    unsigned top[kMostRows]; /* maxima as bits: of the groups of each tile; of V's channels */
    float factor[kMostRows]; /* that turns a row, or a channel of V, into codes */
    alignas(16) uint8_t bad[kMostRows];
    struct {
        int64_t base[4]; /* of the set's tiles, in elements */
        int rows[4];     /* that exist */
    } tiles[2];          /* of this set and of the next */
};

static_assert(kMostRows == int(TD_FUSED_THREADS), "a thread a row");
static_assert(sizeof(FusedShared) <= TD_FUSED_SHARED_BYTES - TD_FUSED_STAGE_BYTES,
              "the launch asks for another size");

/* How a block's threads lie over a set. */
struct ThreadLayout {
    /* at_once: rows that the threads cover with a vector each; row: among them */
    int lanes, at_once, row, channel;
    bool reads, writes;

    __device__ __forceinline__ ThreadLayout(uint32_t dim, uint32_t d_pad)
    {
        lanes = lanes_of(d_pad);
        at_once = int(TD_FUSED_THREADS) / lanes;
        row = int(threadIdx.x) / lanes;
        channel = int(threadIdx.x) % lanes * 8;
        reads = channel < int(dim);
        writes = channel < int(d_pad);
    }
};

/* Brings chunks from .. of an array [chunk][d_pad], as many as the stage holds, and returns how
 * many those are. All threads call it; it begins and ends with a barrier. */
__device__ __forceinline__ uint32_t bring(uint8_t *stage, const float *array, uint32_t from,
                                          uint32_t chunks, uint32_t d_pad)
{
    const uint32_t count = min(chunks - from, TD_FUSED_STAGE_BYTES / (d_pad * 4));
    const float *source = array + int64_t(from) * d_pad;

    __syncthreads();
#pragma unroll 1
    for (uint32_t i = threadIdx.x * 4; i < count * d_pad; i += TD_FUSED_THREADS * 4)
        cp_async_16(shared_address(stage) + i * 4, source + i);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    return count;
}

/* A head's sums of chunks, added in order, / rows: in shared memory, and in `to` if not NULL. Ends
 * with a barrier. */
__device__ __forceinline__ void head_mean(float *mean, uint8_t *stage, const float *partial,
                                          uint32_t bhk, uint32_t chunks, uint32_t d_pad,
                                          uint32_t rows, float *to)
{
    const float *values = reinterpret_cast<const float *>(stage);
    const uint32_t c = threadIdx.x;
    float sum = 0.0f;

    for (uint32_t from = 0, count; from < chunks; from += count) {
        count = bring(stage, partial + int64_t(bhk) * chunks * d_pad, from, chunks, d_pad);
        if (c < d_pad)
#pragma unroll 8
            for (uint32_t i = 0; i < count; i++)
                sum = __fadd_rn(sum, values[i * d_pad + c]);
    }
    if (c < d_pad) {
        sum = __fdiv_rn(sum, float(rows));
        mean[c] = sum;
        if (to)
            to[int64_t(bhk) * d_pad + c] = sum;
    }
    __syncthreads();
}

/* Q or K as a block sees it. */
struct Part {
    int64_t strides[3];
    uint32_t heads, len, chunks, dim;
    float *scale, *block_mean;
    const float *flag;
    void *codes;
    float clip;
    bool is_k;
};

/* Where a set's tiles are, for all threads, in shared.tiles[which]; tiles first .. of all heads,
 * those below `end`. */
__device__ __forceinline__ void find_tiles(FusedShared &shared, int which, const Part &part,
                                           uint32_t first, uint32_t end, uint32_t d_pad)
{
    const uint32_t t = threadIdx.x, tile = first + t, bh = tile / part.chunks,
                   row = tile % part.chunks * TD_TILE_ROWS;

    if (t >= TD_FUSED_TILES(d_pad))
        return;
    shared.tiles[which].base[t] = bh / part.heads * part.strides[0] +
                                  bh % part.heads * part.strides[1] + row * part.strides[2];
    shared.tiles[which].rows[t] = tile < end ? int(min(TD_TILE_ROWS, part.len - row)) : 0;
}

/* Calls f(i, where, exists) for a thread's vectors of a set. */
template <class E, class F>
__device__ __forceinline__ void find_set(const FusedShared &shared, int which, const E *x,
                                         const int64_t (&strides)[3], const ThreadLayout &layout,
                                         F f)
{
    const int per_tile = int(TD_TILE_ROWS) / layout.at_once;
    const E *from = nullptr;
    int left = 0;

#pragma unroll
    for (int i = 0; i < kVectors; i++) {
        if (i & (per_tile - 1)) {
            from += layout.at_once * strides[2];
            left -= layout.at_once;
        } else {
            from = x + shared.tiles[which].base[i / per_tile] + layout.row * strides[2] +
                   layout.channel;
            left = shared.tiles[which].rows[i / per_tile] - layout.row;
        }
        f(i, from, layout.reads && left > 0);
    }
}

/* 16 bytes, or zeros, on their way to shared memory: of the next set while this one is worked on.
 * Each thread has places of its own there, so that it waits for nobody. */
__device__ __forceinline__ void load_ahead(uint8_t *ahead, int i, const void *from, bool exists)
{
    const uint32_t to = shared_address(ahead) + (uint32_t(i) * TD_FUSED_THREADS + threadIdx.x) * 16;

    cp_async_16_or_zero(to, from, exists ? 16 : 0);
}

template <class E>
__device__ __forceinline__ void take_ahead(Vector<E> (&to)[kVectors], const uint8_t *ahead)
{
    cp_async_wait<0>();
#pragma unroll
    for (int i = 0; i < kVectors; i++) {
        const uint4 four =
            reinterpret_cast<const uint4 *>(ahead)[uint32_t(i) * TD_FUSED_THREADS + threadIdx.x];

        to[i].words[0] = four.x;
        to[i].words[1] = four.y;
        to[i].words[2] = four.z;
        to[i].words[3] = four.w;
    }
}

/* Which set of a block's it is, and whether the next is fetched meanwhile. */
struct Turn {
    bool first, has_next, ahead;
    int which; /* of shared.tiles */
};

/* Brings a set: afterwards it is in registers, or under way to them, and the next one on its way to
 * shared memory. The block's shared.top and .bad are zeros. It has a barrier, but for `ready`,
 * which is called in the first turn only. */
template <class E, class Ready>
__device__ __forceinline__ bool bring_set(Vector<E> (&kept)[kVectors], const Part &part, const E *x,
                                          uint32_t first, uint32_t end, uint32_t d_pad,
                                          const Turn &turn, const ThreadLayout &layout,
                                          FusedShared &shared, uint8_t *ahead, Ready ready)
{
    shared.top[threadIdx.x] = 0;
    shared.bad[threadIdx.x] = 0;
    if (turn.first || !turn.ahead)
        find_tiles(shared, turn.which, part, first, end, d_pad);
    if (turn.ahead && turn.has_next)
        find_tiles(shared, turn.which ^ 1, part, first + TD_FUSED_TILES(d_pad), end, d_pad);
    __syncthreads();
    if (is_wide(x, part.strides))
        find_set(shared, turn.which, x, part.strides, layout, [&](int i, const E *from, bool has) {
            if (turn.first || !turn.ahead)
                kept[i].template load<true>(from, has);
        });
    else
        find_set(shared, turn.which, x, part.strides, layout, [&](int i, const E *from, bool has) {
            kept[i].template load<false>(from, has);
        });
    if (turn.first && !ready())
        return false;
    if (!turn.first && turn.ahead)
        take_ahead(kept, ahead);
    if (turn.ahead && turn.has_next) {
        find_set(shared, turn.which ^ 1, x, part.strides, layout,
                 [&](int i, const E *from, bool has) { load_ahead(ahead, i, from, has); });
        cp_async_commit();
    }
    return true;
}

/* What is not finite becomes 0; calls found(i) for the vectors where there was some. */
template <class E, class F>
__device__ __forceinline__ void clean_set(Vector<E> (&kept)[kVectors], F found)
{
    uint32_t all = 0;

#pragma unroll
    for (int i = 0; i < kVectors; i++)
#pragma unroll
        for (int w = 0; w < Vector<E>::count; w++)
            all |= (kept[i].words[w] & Words<E>::exponent) + Words<E>::one;
    if (all & Words<E>::top)
#pragma unroll
        for (int i = 0; i < kVectors; i++)
            if (!clean<E>(kept[i].words))
                found(i);
}

/* Sums of each tile's rows, one after the other or in `Sums` that take turns; calls done(tile,
 * channel, sums), a thread a channel. */
template <int Sums, class E, class Done>
__device__ __forceinline__ void sum_rows(uint8_t *stage, const ThreadLayout &layout,
                                         const Vector<E> (&kept)[kVectors], Done done)
{
    constexpr int vectors = kVectors / 2; /* fit into the stage */
    const int columns = layout.lanes * 8, rows = vectors * layout.at_once; /* of half a set */
    const int segment = min(rows, int(TD_TILE_ROWS)), c = int(threadIdx.x) % columns,
              s = int(threadIdx.x) / columns;
    E *values = reinterpret_cast<E *>(stage);
    float sum[Sums] = {};

#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (half)
            __syncthreads();
#pragma unroll
        for (int i = 0; i < vectors; i++) {
            const uint32_t(&x)[4] = kept[half * vectors + i].words;

            *reinterpret_cast<uint4 *>(values + (i * layout.at_once + layout.row) * columns +
                                       layout.channel) = make_uint4(x[0], x[1], x[2], x[3]);
        }
        __syncthreads();
        if (s * segment < rows) {
            const E *from = values + s * segment * columns + c;

#pragma unroll 1
            for (int r = 0; r < segment; r += 16, from += 16 * columns) {
                E v[16];

#pragma unroll
                for (int i = 0; i < 16; i++)
                    v[i] = from[i * columns];
#pragma unroll
                for (int i = 0; i < 16; i++)
                    sum[i % Sums] = __fadd_rn(sum[i % Sums], to_float(v[i]));
            }
            if ((half + 1) * rows % int(TD_TILE_ROWS) == 0) {
                done(half * rows / int(TD_TILE_ROWS) + s, c, sum);
#pragma unroll
                for (float &x : sum)
                    x = 0.0f;
            }
        }
    }
}

} // namespace td
