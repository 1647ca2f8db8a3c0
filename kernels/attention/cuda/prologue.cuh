/* Everything before the attention kernel: means, maxima, codes and scales of Q, K and V, and
 * delta-S.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Formulas and array shapes: params.h. A block handles 128 rows of one head (mean_final: one head).
 * A team of 4, 8, 16 or 32 lanes reads a row, eight channels a lane in one 16-byte load where the
 * tensor is aligned; 128 rows take 128 / (rows at a time) passes. Codes need a row's (or a group's)
 * maximum first: the rows are read again for them, from L1.
 *
 *   quant_qk   own mean (smooth Q) | rows: maximum -> group maximum | scales | rows again: codes
 *   quant_v    maxima of all chunks -> scales | 32 channels at a time: rows -> codes, transposed in shared -> out
 *
 * All sums are made in the order that params.h names, so the CPU twin gets the same bits.
 */
#pragma once

#include <math_constants.h>

#include <type_traits>

#include "kernels/attention/params.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tensor.cuh"

namespace td {

constexpr int kThreads = int(TD_BLOCK_THREADS);
constexpr int kRows = int(TD_TILE_ROWS);
constexpr int kMaxDim = 256;
/* loads in flight a thread; divides the number of passes of any width */
constexpr int kPassesAtOnce = 4;
/* Passes whose rows are summed together: 4 KB, for in a command buffer an SM has 48 KB for all its
 * blocks. */
constexpr int kStagePasses = 1;
constexpr int kStageFloats = kThreads * 8 * kStagePasses;
static_assert(kPassesAtOnce % kStagePasses == 0, "what is loaded at once is staged in whole parts");
constexpr unsigned kWarp = ~0u;

/* How the 128 threads walk over rows of d_pad channels. */
struct Walk {
    /* lanes a row, rows a pass, this thread's row within a pass, its first channel */
    int team, at_once, row, channel;
    bool reads, writes;              /* its channels are within dim, within d_pad */

    __device__ __forceinline__ Walk(uint32_t dim, uint32_t d_pad)
    {
        team = d_pad <= 32 ? 4 : d_pad <= 64 ? 8 : d_pad <= 128 ? 16 : 32;
        at_once = kThreads / team;
        row = int(threadIdx.x) / team;
        channel = int(threadIdx.x) % team * 8;
        reads = channel < int(dim);
        writes = channel < int(d_pad);
    }

    /* The eight channels of rows r, r + at_once, ... of x; zeros where there is none. One branch
     * for all the loads, so that they are in flight together. */
    template <class E>
    __device__ __forceinline__ void load(Eight<E> (&v)[kPassesAtOnce], const E *x, int64_t stride,
                                         bool wide, int r, int rows) const
    {
        if (wide)
            load_all<true>(v, x, stride, r, rows);
        else
            load_all<false>(v, x, stride, r, rows);
    }

    template <bool Wide, class E>
    __device__ __forceinline__ void load_all(Eight<E> (&v)[kPassesAtOnce], const E *x,
                                             int64_t stride, int r, int rows) const
    {
#pragma unroll
        for (int pass = 0; pass < kPassesAtOnce; pass++)
            if (reads && r + pass * at_once < rows)
                v[pass].template load<Wide>(x + (r + pass * at_once) * stride + channel);
            else
                v[pass].clear();
    }
};

/* Rows of a head that exist. */
__device__ __forceinline__ td_span span_of(uint32_t rows, uint32_t heads, const td_span *spans, uint32_t bh)
{
    return spans ? spans[bh / heads] : td_span{0, int32_t(rows)};
}

__device__ __forceinline__ uint32_t chunks_of(uint32_t rows)
{
    return (rows + uint32_t(kRows) - 1) / uint32_t(kRows);
}

/* A block's share of the grid: chunk of 128 rows of a head. */
struct Chunk {
    int64_t bh, first, from; /* its first row, in codes and in the tensor */
    int index, rows; /* rows that exist, at most 128; 0 or below: none */

    __device__ __forceinline__ Chunk(uint32_t block, uint32_t chunks, td_span span)
    {
        bh = block / chunks;
        index = int(block % chunks);
        first = int64_t(index) * kRows;
        from = span.first + first;
        rows = int(min(int64_t(kRows), span.end - from));
    }
};

/* v becomes finite; whether all of it was. */
__device__ __forceinline__ bool make_finite(float (&v)[8])
{
    bool good = true;

#pragma unroll
    for (int i = 0; i < 8; i++)
        if (!is_finite(v[i])) {
            v[i] = 0.0f;
            good = false;
        }
    return good;
}

/* Calls f(r, v, good) for each of the chunk's 128 rows r that this thread has a part of: v its
 * eight channels, made finite, zeros where there are none; whether they were finite. All lanes of a
 * warp come along. */
template <class E, class F>
__device__ __forceinline__ void for_rows(const E *x, int64_t stride, bool wide, const Walk &walk,
                                         int rows, F f)
{
#pragma unroll 1
    for (int r0 = walk.row; r0 < kRows; r0 += walk.at_once * kPassesAtOnce) {
        Eight<E> eights[kPassesAtOnce];

        walk.load(eights, x, stride, wide, r0, rows);
#pragma unroll
        for (int pass = 0; pass < kPassesAtOnce; pass++) {
            float v[8];

            eights[pass].convert(v);
            const bool good = make_finite(v);
            f(r0 + pass * walk.at_once, v, good);
        }
    }
}

/* A chunk's sum of those of its rows that are alike modulo 8. */
__device__ __forceinline__ float sum_of_eight(const float (&sum)[8])
{
    return __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(sum[0], sum[1]), __fadd_rn(sum[2], sum[3])),
                               __fadd_rn(sum[4], sum[5])),
                     __fadd_rn(sum[6], sum[7]));
}

/* Sums of finite(x) over the chunk's rows, row after row or in `Sums` that take turns; a thread's
 * columns are threadIdx.x and threadIdx.x + 128. */
template <int Sums, class E>
__device__ __forceinline__ void column_sums(float (&sum)[2][Sums], float *stage, const E *x,
                                            int64_t stride, bool wide, const Walk &walk, int rows,
                                            int d_pad)
{
    const int at_once = walk.at_once * kPassesAtOnce, staged = walk.at_once * kStagePasses;

#pragma unroll
    for (int i = 0; i < Sums; i++)
        sum[0][i] = sum[1][i] = 0.0f;
    for (int r0 = 0; r0 < rows; r0 += at_once) {
        Eight<E> eights[kPassesAtOnce];

        walk.load(eights, x, stride, wide, r0 + walk.row, rows);
#pragma unroll
        for (int first = 0; first < kPassesAtOnce; first += kStagePasses) {
            __syncthreads(); /* the last round's sums are made */
#pragma unroll
            for (int pass = 0; pass < kStagePasses; pass++) {
                float v[8];

                eights[first + pass].convert(v);
                make_finite(v);
                if (walk.writes) {
                    float4 *to = reinterpret_cast<float4 *>(
                        stage + (pass * walk.at_once + walk.row) * d_pad + walk.channel);

                    to[0] = make_float4(v[0], v[1], v[2], v[3]);
                    to[1] = make_float4(v[4], v[5], v[6], v[7]);
                }
            }
            __syncthreads();
            const int n = min(staged, rows - r0 - first * walk.at_once);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int c = int(threadIdx.x) + half * kThreads;

                if constexpr (Sums == 1) {
                    if (c < d_pad)
#pragma unroll 8
                        for (int r = 0; r < n; r++)
                            sum[half][0] = __fadd_rn(sum[half][0], stage[r * d_pad + c]);
                } else if (c < d_pad) {
                    /* A stage begins with a row that is a multiple of 8, or has but four. */
                    const bool later = first * walk.at_once % 8 != 0;

                    for (int r = 0; r < n; r += 8)
#pragma unroll
                        for (int i = 0; i < 8; i++) {
                            if (r + i >= n)
                                continue;
                            const float x = stage[(r + i) * d_pad + c];

                            if (i < 4 && later)
                                sum[half][i + 4] = __fadd_rn(sum[half][i + 4], x);
                            else
                                sum[half][i] = __fadd_rn(sum[half][i], x);
                        }
                }
            }
        }
    }
}

/* What is subtracted from every row, in shared memory: the given mean, the chunk's own one, or
 * zeros. */
template <class E>
__device__ __forceinline__ void prepare_mean(float *mean, float *stage, const float *given,
                                             bool own, const E *x, int64_t stride, bool wide,
                                             const Walk &walk, const Chunk &chunk, int d_pad)
{
    float sum[2][1];

    if (own)
        column_sums(sum, stage, x, stride, wide, walk, chunk.rows, d_pad);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int c = int(threadIdx.x) + half * kThreads;

        if (c < d_pad)
            mean[c] = own     ? __fdiv_rn(sum[half][0], float(chunk.rows))
                      : given ? given[chunk.bh * d_pad + c]
                              : 0.0f;
    }
    __syncthreads();
}

/* Maxima of magnitudes are made of their bits: floats that are not negative order like them, and a
 * NaN is above all. */
__device__ __forceinline__ unsigned magnitude(float x)
{
    return __float_as_uint(x) & 0x7fffffffu;
}

/* The largest of a team's values, in all its lanes. */
__device__ __forceinline__ unsigned team_max(unsigned x, int team)
{
    for (int offset = team / 2; offset; offset /= 2)
        x = max(x, __shfl_xor_sync(kWarp, x, offset));
    return x;
}

/* Whether `good` holds in every lane of a team. */
__device__ __forceinline__ bool team_all(bool good, int team)
{
    const unsigned bad = __ballot_sync(kWarp, !good), lane = threadIdx.x % 32;
    const unsigned mine =
        team == 32 ? kWarp : ((1u << team) - 1) << (lane / unsigned(team) * unsigned(team));

    return !(bad & mine);
}

__device__ __forceinline__ float code_factor(float amax, float qmax)
{
    return amax < TD_TINY_AMAX ? 0.0f : __fdiv_rn(qmax, amax);
}
__device__ __forceinline__ float code_scale(float amax, float qmax)
{
    return amax < TD_TINY_AMAX ? 0.0f : __fdiv_rn(amax, qmax);
}

__device__ __forceinline__ int code_of(float x, float mean, float factor, float qmax)
{
    return int(fminf(fmaxf(rintf(__fmul_rn(__fsub_rn(x, mean), factor)), -qmax), qmax));
}

/* The scale of fp16 codes: the least power of two that brings amax to 32768 or below, at least 1.
 */
__device__ __forceinline__ float half_scale(float amax)
{
    const uint32_t bits = __float_as_uint(amax);
    const int ceiling = int(bits >> 23) - 127 + ((bits & 0x7fffffu) != 0);

    if (!(amax > 32768.0f))
        return 1.0f;
    return __uint_as_float(uint32_t(127 + (is_finite(amax) ? ceiling - 15 : 127)) << 23);
}

/* Which rows of a chunk share a scale; see types.h. */
__device__ __forceinline__ int group_of(int r, uint32_t granularity, bool is_k)
{
    switch (granularity) {
    case TANDEM_GRANULARITY_THREAD_ADA:
        return is_k ? r / 64 * 4 + r % 8 / 2 : r / 32 * 8 + r % 8;
    case TANDEM_GRANULARITY_THREAD_HOPPER:
        return is_k ? r % 8 / 2 : r / 16 * 8 + r % 8;
    case TANDEM_GRANULARITY_TOKEN:
        return r;
    case TANDEM_GRANULARITY_WARP:
        return is_k ? r / 64 : r / 32;
    case TANDEM_GRANULARITY_BLOCK:
        return is_k ? r / 64 : 0;
    default:
        return 0; /* TENSOR */
    }
}

/* Where quant_v puts key k of its 16: position 4q + r holds key 8 (r >> 1) + 2q + (r & 1). */
__device__ __forceinline__ int permuted(int k)
{
    return k % 8 / 2 * 4 + k / 8 * 2 + k % 2;
}

} // namespace td

/* Six blocks: left to itself ptxas takes 64 registers here, in amax_partial and in quant_qk, and
 * spills. */
extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS, 6)
    mean_partial(const __grid_constant__ td_params_mean_partial p)
{
    if (td::cancelled(p.cancel))
        return;
    __shared__ __align__(16) float stage[td::kStageFloats];
    const td::Chunk chunk(blockIdx.x, p.chunks, td::span_of(p.x.rows, p.x.heads, p.spans, blockIdx.x / p.chunks));
    const td::Walk walk(p.x.dim, p.d_pad);
    if (chunk.rows <= 0)
        return;
    float *to = p.partial + int64_t(blockIdx.x) * p.d_pad;

    td::with_dtype(p.x, chunk.bh, [&](auto x, bool wide) {
        float sum[2][8];

        td::column_sums(sum, stage, x + chunk.from * p.x.stride_row, p.x.stride_row, wide, walk,
                        chunk.rows, int(p.d_pad));
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (threadIdx.x + half * TD_BLOCK_THREADS < p.d_pad)
                to[threadIdx.x + half * TD_BLOCK_THREADS] = td::sum_of_eight(sum[half]);
    });
}

extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS)
    mean_final(const __grid_constant__ td_params_mean_final p)
{
    if (td::cancelled(p.cancel))
        return;
    const float *from = p.partial + int64_t(blockIdx.x) * p.chunks * p.d_pad;
    const td_span span = td::span_of(p.rows, p.heads, p.spans, blockIdx.x);
    const uint32_t rows = uint32_t(span.end - span.first);
    const uint32_t chunks = td::chunks_of(rows);

    for (uint32_t c = threadIdx.x; c < p.d_pad; c += TD_BLOCK_THREADS) {
        float sum = 0.0f;

#pragma unroll 8
        for (uint32_t i = 0; i < chunks; i++)
            sum = __fadd_rn(sum, from[int64_t(i) * p.d_pad + c]);
        p.mean[int64_t(blockIdx.x) * p.d_pad + c] = __fdiv_rn(sum, float(max(rows, 1u)));
    }
}

extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS, 6)
    amax_partial(const __grid_constant__ td_params_amax_partial p)
{
    if (td::cancelled(p.cancel))
        return;
    __shared__ __align__(16) float stage[td::kStageFloats];
    __shared__ float mean[td::kMaxDim];
    __shared__ unsigned top[td::kMaxDim]; /* as bits */
    const td::Chunk chunk(blockIdx.x, p.chunks, td::span_of(p.x.rows, p.x.heads, p.spans, blockIdx.x / p.chunks));
    const td::Walk walk(p.x.dim, p.d_pad);

    if (chunk.rows <= 0)
        return;

    for (uint32_t c = threadIdx.x; c < p.d_pad; c += TD_BLOCK_THREADS)
        top[c] = 0;
    td::with_dtype(p.x, chunk.bh, [&](auto x, bool wide) {
        const int64_t stride = p.x.stride_row;
        unsigned most[8] = {};

        x += chunk.from * stride;
        td::prepare_mean(mean, stage, p.mean, p.own_mean != 0, x, stride, wide, walk, chunk,
                         int(p.d_pad));
        td::for_rows(x, stride, wide, walk, chunk.rows, [&](int r, const float(&v)[8], bool mine) {
            const bool good = td::team_all(mine, walk.team);

            if (walk.reads && r < chunk.rows)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    most[i] = max(most[i], td::magnitude(__fsub_rn(v[i], mean[walk.channel + i])));
            if (p.flag && walk.channel == 0)
                p.flag[chunk.bh * p.rows_pad + chunk.first + r] = good ? 0.0f : CUDART_NAN_F;
        });
        if (walk.reads)
#pragma unroll
            for (int i = 0; i < 8; i++)
                atomicMax(&top[walk.channel + i], most[i]);
    });
    __syncthreads();
    for (uint32_t c = threadIdx.x; c < p.d_pad; c += TD_BLOCK_THREADS)
        p.amax[int64_t(blockIdx.x) * p.d_pad + c] = __uint_as_float(top[c]);
}

extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS, 6)
    quant_qk(const __grid_constant__ td_params_quant_qk p)
{
    if (td::cancelled(p.cancel))
        return;
    __shared__ __align__(16) float stage[td::kStageFloats];
    __shared__ float mean[td::kMaxDim];
    __shared__ unsigned top[td::kRows]; /* maxima of the groups, as bits */
    __shared__ float factor[td::kRows]; /* that turns a row into codes */
    __shared__ bool bad[td::kRows];
    const td_span span = td::span_of(p.x.rows, p.x.heads, p.spans, blockIdx.x / p.chunks);
    const uint32_t all = uint32_t(span.end - span.first);
    const td::Chunk chunk(blockIdx.x, p.chunks, span);
    const td::Walk walk(p.x.dim, p.d_pad);
    const int t = int(threadIdx.x);
    const uint32_t granularity = p.mode == 1 ? uint32_t(TANDEM_GRANULARITY_TOKEN) : p.granularity;
    const bool is_k = p.is_k != 0, whole_head = p.amax && p.mode != 1;
    const int64_t row0 = chunk.bh * p.rows_pad + chunk.first;

    if (chunk.rows <= 0)
        return;
    top[t] = 0;
    if (whole_head) {
        const float *amax = p.amax + chunk.bh * p.chunks * p.d_pad;
        float most = 0.0f;

        for (int64_t i = t; i < int64_t(td::chunks_of(all)) * p.d_pad; i += td::kThreads)
            most = fmaxf(most, amax[i]);
        const unsigned most_bits = td::team_max(__float_as_uint(most), 32);
        __syncthreads();
        if (t % 32 == 0)
            atomicMax(&top[0], most_bits);
    }
    td::with_dtype(p.x, chunk.bh, [&](auto x, bool wide) {
        const int64_t stride = p.x.stride_row;

        x += chunk.from * stride;
        td::prepare_mean(mean, stage, p.mean, p.block_mean != nullptr, x, stride, wide, walk, chunk,
                         int(p.d_pad));
        if (p.block_mean)
            for (uint32_t c = threadIdx.x; c < p.d_pad; c += TD_BLOCK_THREADS)
                p.block_mean[int64_t(blockIdx.x) * p.d_pad + c] = mean[c];

        td::for_rows(x, stride, wide, walk, chunk.rows, [&](int r, const float(&v)[8], bool mine) {
            const bool good = td::team_all(mine, walk.team);
            unsigned most = 0;

            if (walk.reads && r < chunk.rows)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    most = max(most, td::magnitude(__fsub_rn(v[i], mean[walk.channel + i])));
            most = td::team_max(most, walk.team);
            if (walk.channel == 0) {
                bad[r] = !good;
                if (!whole_head)
                    atomicMax(&top[td::group_of(r, granularity, is_k)], most);
            }
        });
        __syncthreads();
        const float amax =
            __fmul_rn(__uint_as_float(top[td::group_of(t, granularity, is_k)]), p.clip);
        float scale = p.mode != 1 ? td::code_scale(amax, p.qmax) : td::half_scale(amax);

        factor[t] = p.mode != 1 ? td::code_factor(amax, p.qmax) : __frcp_rn(scale);
        if (bad[t])
            scale = CUDART_NAN_F;
        if (p.flag)
            scale = __fadd_rn(scale, p.flag[row0 + t]);
        p.scale[row0 + t] = t < chunk.rows ? scale : 0.0f;
        __syncthreads();

        td::for_rows(x, stride, wide, walk, chunk.rows, [&](int r, const float(&v)[8], bool) {
            const bool exists = walk.reads && r < chunk.rows;

            if (p.mode == 2) {
                const int row_bytes = int(TD_PACKED_ROW_BYTES(p.d_pad));
                uint8_t *to = (uint8_t *)p.codes + (row0 + r) * row_bytes;
                uint32_t word = 0;

                if (exists)
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        word |=
                            uint32_t(td::code_of(v[i], mean[walk.channel + i], factor[r], p.qmax) &
                                     15)
                            << (4 * i);
                /* the second: padding */
                for (int c = walk.channel; c < 2 * row_bytes; c += 8 * walk.team) {
                    *reinterpret_cast<uint32_t *>(to + c / 2) = word;
                    word = 0;
                }
                return;
            }
            if (!walk.writes)
                return;
            if (p.mode == 0) {
                uint32_t word[2] = {0, 0};

                if (exists)
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        word[i / 4] |=
                            uint32_t(td::code_of(v[i], mean[walk.channel + i], factor[r], p.qmax) &
                                     255)
                            << (8 * (i % 4));
                *reinterpret_cast<uint2 *>((uint8_t *)p.codes + (row0 + r) * p.d_pad +
                                           walk.channel) = make_uint2(word[0], word[1]);
            } else {
                uint32_t word[4] = {0, 0, 0, 0};

                if (exists)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const float y0 =
                            __fmul_rn(__fsub_rn(v[2 * i], mean[walk.channel + 2 * i]), factor[r]);
                        const float y1 = __fmul_rn(
                            __fsub_rn(v[2 * i + 1], mean[walk.channel + 2 * i + 1]), factor[r]);

                        word[i] = td::cvt_f16x2(y1, y0);
                    }
                *reinterpret_cast<uint4 *>((uint16_t *)p.codes + (row0 + r) * p.d_pad +
                                           walk.channel) =
                    make_uint4(word[0], word[1], word[2], word[3]);
            }
        });

        if (p.lse_bias) { /* a thread a row: the channels in order */
            const int64_t head = chunk.bh % p.x.heads, kv_head = head / (p.x.heads / p.lse_heads);
            const float *k_mean =
                p.lse_mean + (chunk.bh / p.x.heads * p.lse_heads + kv_head) * p.d_pad;
            float bias = 0.0f;

            if (t < chunk.rows)
                for (uint32_t c = 0; c < p.x.dim; c += 8) {
                    float v[8];

                    td::load8(v, x + t * stride + c, wide);
                    td::make_finite(v);
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        bias = __fmaf_rn(v[i], k_mean[c + uint32_t(i)], bias);
                }
            p.lse_bias[row0 + t] = bias;
        }
    });
}

extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS)
    quant_v(const __grid_constant__ td_params_quant_v p)
{
    if (td::cancelled(p.cancel))
        return;
    /* channels at a time; bytes a channel, fp16 and padding */
    constexpr int slice = 32, pitch = 2 * td::kRows + 16;
    __shared__ __align__(16) uint8_t turned[slice * pitch];
    __shared__ float factor[td::kMaxDim], mean[td::kMaxDim];
    const td_span span = td::span_of(p.x.rows, p.x.heads, p.spans, blockIdx.x / p.chunks);
    const uint32_t all = uint32_t(span.end - span.first);
    const td::Chunk chunk(blockIdx.x, p.chunks, span);
    const td::Walk walk(slice, slice);
    const int t = int(threadIdx.x), bytes = p.mode == 0 ? 1 : 2;

    if (chunk.rows <= 0)
        return;

    for (uint32_t c = threadIdx.x; c < p.d_pad; c += TD_BLOCK_THREADS) {
        const float *from = p.amax + chunk.bh * p.chunks * p.d_pad + c;
        float amax = 0.0f, scale;

#pragma unroll 8
        for (uint32_t i = 0; i < td::chunks_of(all); i++)
            amax = fmaxf(amax, from[int64_t(i) * p.d_pad]);
        if (p.mode == 0) {
            scale = td::code_scale(amax, TD_V_TOP);
            factor[c] = td::code_factor(amax, TD_V_TOP);
        } else {
            scale = td::half_scale(amax);
            factor[c] = __frcp_rn(td::half_scale(amax));
        }
        mean[c] = p.mean ? p.mean[chunk.bh * p.d_pad + c] : 0.0f;
        if (chunk.index == 0)
            p.scale[chunk.bh * p.d_pad + c] = scale;
    }
    td::with_dtype(p.x, chunk.bh, [&](auto x, bool wide) {
        x += chunk.from * p.x.stride_row;
        for (int c0 = 0; c0 < int(p.d_pad); c0 += slice) {
            const int c = c0 + walk.channel;
            td::Eight<std::remove_const_t<std::remove_pointer_t<decltype(x)>>>
                eights[td::kPassesAtOnce];

            walk.load(eights, x + c0, p.x.stride_row, wide, walk.row,
                      c < int(p.x.dim) ? chunk.rows : 0);
            __syncthreads(); /* factors are there; the last slice is written */
#pragma unroll
            for (int pass = 0; pass < td::kPassesAtOnce; pass++) {
                const int r = pass * walk.at_once + walk.row;
                const bool exists = r < chunk.rows && c < int(p.x.dim);
                float v[8];
                const int at = p.mode == 0 ? r / 16 * 16 + td::permuted(r % 16) : r;

                eights[pass].convert(v);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const bool good = exists && td::is_finite(v[i]);
                    const float y = __fmul_rn(__fsub_rn(v[i], mean[c + i]), factor[c + i]);
                    uint8_t *to = turned + (walk.channel + i) * pitch + at * bytes;

                    if (p.mode == 1)
                        *reinterpret_cast<uint16_t *>(to) =
                            good ? uint16_t(td::cvt_f16x2(0.0f, y)) : uint16_t(0);
#if TD_HAVE_E4M3
                    else
                        *to = good ? uint8_t(td::cvt_e4m3x2(0.0f, y)) : uint8_t(0);
#endif
                }
            }
            __syncthreads();
            const int chunks = td::kRows * bytes / 16; /* 16-byte pieces a channel */
            for (int i = t; i < slice * chunks; i += td::kThreads) {
                const int channel = i / chunks, piece = i % chunks;
                const int64_t at =
                    ((chunk.bh * p.d_pad + c0 + channel) * p.kv_pad + chunk.first) * bytes +
                    piece * 16;

                *reinterpret_cast<uint4 *>((uint8_t *)p.codes + at) =
                    *reinterpret_cast<const uint4 *>(turned + channel * pitch + piece * 16);
            }
        }
    });
}

extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS, 4) /* else some registers are spilt on sm_80, with 6 on sm_120 */
    delta_s(const __grid_constant__ td_params_delta_s p)
{
    if (td::cancelled(p.cancel))
        return;
    constexpr int most = int(TD_DELTA_BLOCKS), slice = 64; /* query blocks; channels at a time */
    __shared__ __align__(16) float q_mean[slice][most];
    __shared__ float k_mean[slice];
    const uint32_t groups = (p.q_blocks + p.each - 1) / p.each;
    /* chunk.bh counts (bh, group of query blocks) pairs */
    const td::Chunk chunk(blockIdx.x, p.chunks,
                          td::span_of(p.k.rows, p.heads, p.spans, blockIdx.x / p.chunks / groups));
    const int64_t bh = chunk.bh / groups, batch = bh / p.heads, head = bh % p.heads;
    const int64_t bhk = batch * p.k.heads + head / (p.heads / p.k.heads);
    const uint32_t first = uint32_t(chunk.bh % groups) * p.each,
                   blocks = min(p.each, p.q_blocks - first);
    const int t = int(threadIdx.x);
    float dot[most] = {};

    if (chunk.rows <= 0)
        return;

    td::with_dtype(p.k, bhk, [&](auto k, bool wide) {
        for (uint32_t c0 = 0; c0 < p.k.dim; c0 += slice) {
            const uint32_t channels = min(p.k.dim - c0, uint32_t(slice));

            __syncthreads();
            for (uint32_t i = threadIdx.x; i < most * channels; i += TD_BLOCK_THREADS) {
                const uint32_t block = i / channels, c = i % channels;

                q_mean[c][block] =
                    block < blocks ? p.q_mean[(bh * p.q_blocks + first + block) * p.d_pad + c0 + c]
                                   : 0.0f;
            }
            for (uint32_t c = threadIdx.x; c < channels; c += TD_BLOCK_THREADS)
                k_mean[c] = p.k_mean ? p.k_mean[bhk * p.d_pad + c0 + c] : 0.0f;
            __syncthreads();
            if (t < chunk.rows)
                for (uint32_t c = 0; c < channels; c += 8) {
                    float v[8];

                    td::load8(v, k + (chunk.from + t) * p.k.stride_row + c0 + c, wide);
                    td::make_finite(v);
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        const float y = __fsub_rn(v[i], k_mean[c + uint32_t(i)]);

#pragma unroll
                        for (int block = 0; block < most; block++)
                            dot[block] = __fmaf_rn(q_mean[c + uint32_t(i)][block], y, dot[block]);
                    }
                }
        }
    });
#pragma unroll
    for (int block = 0; block < most; block++)
        if (uint32_t(block) < blocks)
            p.delta[(bh * p.q_blocks + first + uint32_t(block)) * p.kv_pad + chunk.first + t] =
                dot[block];
}
