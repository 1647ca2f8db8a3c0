/* Codes of Q, K and V, of what a linear layer has just written: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A block has eight rows of a chunk at a time, a team of 4, 8, 16 or 32 lanes each, eight channels a lane. Codes need the
 * largest magnitude of their row's group first, so rows are read twice, the second time from L1. V's codes are turned in
 * shared memory, 32 channels at a time.
 */
#include <math_constants.h>

#include <type_traits>

#include "kernels/codes.h"
#include "kernels/cuda/tensor.cuh"
#include "kernels/linear/params.h"

#if TD_HAVE_E4M3
namespace td {

constexpr int kCodesRows = int(TD_TILE_ROWS), kCodesThreads = 256, kCodesDim = 256; /* the latter two at most */
constexpr int kCodesAhead = 4; /* rows that a thread loads at once */

/* Where a thread is: its row of a team's, and its channels. */
struct CodesLane {
    int lanes, row, channel;

    __device__ __forceinline__ explicit CodesLane(int lanes)
        : lanes(lanes), row(int(threadIdx.x) / lanes), channel(int(threadIdx.x) % lanes * 8)
    {
    }
};

/* A chunk of a head, of which so many rows exist. */
struct CodesChunk {
    int64_t batch;
    int first, rows;

    __device__ __forceinline__ CodesChunk(const td_params_linear_codes &p, uint32_t batch, uint32_t index)
        : batch(batch), first(int(index) * kCodesRows), rows(min(kCodesRows, int(p.y.rows) - first))
    {
    }
};

/* Calls f(r, v, good) for each row r of the chunk that a thread has, at_once apart: v its eight channels from channel
 * c on, zeros where there are none and where they are not finite, which `good` tells. All lanes of a warp come along. */
template <class F>
__device__ __forceinline__ void codes_rows(const td_params_linear_codes &p, const CodesChunk &chunk, uint32_t head,
                                           const CodesLane &at, int at_once, int c, F f)
{
    with_dtype(p.y, chunk.batch * p.y.heads + head, [&](auto y, bool wide) {
        const bool reads = c < int(p.y.dim);

        y += chunk.first * p.y.stride_row + c;
#pragma unroll 1
        for (int r0 = at.row; r0 < kCodesRows; r0 += at_once * kCodesAhead) {
            Eight<std::remove_const_t<std::remove_pointer_t<decltype(y)>>> eights[kCodesAhead];

#pragma unroll
            for (int i = 0; i < kCodesAhead; i++) {
                const int r = r0 + i * at_once;

                if (!reads || r >= chunk.rows)
                    eights[i].clear();
                else if (wide)
                    eights[i].template load<true>(y + r * p.y.stride_row);
                else
                    eights[i].template load<false>(y + r * p.y.stride_row);
            }
#pragma unroll
            for (int i = 0; i < kCodesAhead; i++) {
                float v[8];
                bool good = true;

                if (r0 + i * at_once >= kCodesRows)
                    break;
                eights[i].convert(v);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    if (!is_finite(v[j])) {
                        v[j] = 0.0f;
                        good = false;
                    }
                f(r0 + i * at_once, v, good);
            }
        }
    });
}

struct CodesShared {
    union {
        float sums[8][kCodesDim];
        /* 32 channels of V; 16 bytes more a channel, so that not all begin in one bank */
        alignas(16) uint8_t turned[32 * (kCodesRows + 16)];
    };
    unsigned top[kCodesRows]; /* of groups, as bits, */
    float factor[kCodesDim];  /* of rows or channels: what makes codes of them */
    bool bad[kCodesRows];
};

__device__ __forceinline__ float codes_scale(float amax, float top)
{
    return amax < TD_TINY_AMAX ? 0.0f : __fdiv_rn(amax, top);
}
__device__ __forceinline__ float codes_factor(float amax, float top)
{
    return amax < TD_TINY_AMAX ? 0.0f : __fdiv_rn(top, amax);
}
__device__ __forceinline__ float clamped(float x, float top)
{
    return fminf(fmaxf(x, -top), top);
}

/* A chunk of Q or K; `mean` is NULL, or subtracted. What is bad in shared.bad has a scale of NaN in any case. */
__device__ __forceinline__ void codes_of_rows(const td_params_linear_codes &p, const CodesChunk &chunk, uint32_t head,
                                              const float *mean, bool is_k, CodesShared &shared, uint8_t *codes,
                                              float *scales)
{
    const CodesLane at(int(blockDim.x) / 8);
    float means[8];

#pragma unroll
    for (int i = 0; i < 8; i++)
        means[i] = mean && at.channel < int(p.y.dim) ? mean[at.channel + i] : 0.0f;
    for (int r = int(threadIdx.x); r < kCodesRows; r += int(blockDim.x))
        shared.top[r] = 0;
    __syncthreads();
    codes_rows(p, chunk, head, at, 8, at.channel, [&](int r, const float(&v)[8], bool good) {
        unsigned most = 0;

        if (r < chunk.rows && at.channel < int(p.y.dim))
#pragma unroll
            for (int i = 0; i < 8; i++)
                most = max(most, __float_as_uint(__fsub_rn(v[i], means[i])) & 0x7fffffffu);
        for (int apart = at.lanes / 2; apart; apart /= 2)
            most = max(most, __shfl_xor_sync(~0u, most, apart));
        if (at.channel == 0)
            atomicMax(&shared.top[td_row_group(uint32_t(r), p.granularity, is_k)], most);
        if (!good)
            shared.bad[r] = true;
    });
    __syncthreads();
    for (int r = int(threadIdx.x); r < kCodesRows; r += int(blockDim.x)) {
        const float amax = __uint_as_float(shared.top[td_row_group(uint32_t(r), p.granularity, is_k)]);

        shared.factor[r] = codes_factor(amax, TD_Q_TOP);
        scales[r] = r >= chunk.rows ? 0.0f : shared.bad[r] ? CUDART_NAN_F : codes_scale(amax, TD_Q_TOP);
    }
    __syncthreads();
    codes_rows(p, chunk, head, at, 8, at.channel, [&](int r, const float(&v)[8], bool) {
        const bool exists = r < chunk.rows && at.channel < int(p.y.dim);
        uint32_t words[2] = {0, 0};

        if (exists)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float y = __fmul_rn(__fsub_rn(v[i], means[i]), shared.factor[r]);

                words[i / 4] |= uint32_t(int(clamped(rintf(y), TD_Q_TOP)) & 255) << (8 * (i % 4));
            }
        if (at.channel < int(p.d_pad))
            *reinterpret_cast<uint2 *>(codes + int64_t(r) * p.d_pad + at.channel) = make_uint2(words[0], words[1]);
    });
}

/* A chunk of V; which rows are bad is in shared.bad. `codes` and `scales` are the head's. */
__device__ __forceinline__ void codes_of_v(const td_params_linear_codes &p, const CodesChunk &chunk, uint32_t head,
                                           const float *most, CodesShared &shared, uint8_t *codes, float *scales)
{
    constexpr int slice = 32, pitch = kCodesRows + 16, pieces = kCodesRows / 16;
    const CodesLane at(slice / 8);
    const int at_once = int(blockDim.x) / (slice / 8), dim = int(p.y.dim);
    const int64_t rows_pad = int64_t(p.chunks) * kCodesRows;

    for (int c = int(threadIdx.x); c < int(p.d_pad); c += int(blockDim.x)) {
        shared.factor[c] = c < dim ? codes_factor(most[c], TD_V_TOP) : 0.0f;
        if (chunk.first == 0)
            scales[c] = c < dim ? codes_scale(most[c], TD_V_TOP) : 0.0f;
    }
    for (int first = 0; first < int(p.d_pad); first += slice) {
        const int c = first + at.channel;

        __syncthreads(); /* factors are there; the slice before is written */
        codes_rows(p, chunk, head, at, at_once, c, [&](int r, const float(&v)[8], bool good) {
            const int position = int(td_v_position(uint32_t(r)));

            if (!good)
                shared.bad[r] = true;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float y = __fmul_rn(v[i], shared.factor[c + i]);

                shared.turned[(at.channel + i) * pitch + position] =
                    r < chunk.rows && c < dim ? uint8_t(cvt_e4m3x2(0.0f, clamped(y, TD_V_TOP))) : uint8_t(0);
            }
        });
        __syncthreads();
        for (int i = int(threadIdx.x); i < slice * pieces; i += int(blockDim.x)) {
            const int channel = i / pieces, piece = i % pieces * 16;

            *reinterpret_cast<uint4 *>(codes + (first + channel) * rows_pad + chunk.first + piece) =
                *reinterpret_cast<const uint4 *>(shared.turned + channel * pitch + piece);
        }
    }
}

} // namespace td

extern "C" __global__ void __launch_bounds__(td::kCodesThreads)
    linear_codes_partial(const __grid_constant__ td_params_linear_codes p)
{
    td::wait_for_previous();
    if (td::cancelled(p.cancel))
        return;
    __shared__ td::CodesShared shared;
    const uint32_t plane = blockIdx.x / p.chunks, head = p.heads + plane % p.kv_heads;
    const td::CodesChunk chunk(p, plane / p.kv_heads, blockIdx.x % p.chunks);
    const td::CodesLane at(int(blockDim.x) / 8);
    const int c = int(threadIdx.x), dim = int(p.y.dim);
    float *to = p.partial + int64_t(blockIdx.x) * 2 * dim;
    float sum[8] = {}, most[8] = {};
    const auto put = [&](const float(&x)[8]) {
        if (at.channel < dim)
#pragma unroll
            for (int i = 0; i < 8; i++)
                shared.sums[at.row][at.channel + i] = x[i];
        __syncthreads();
    };

    td::codes_rows(p, chunk, head, at, 8, at.channel, [&](int r, const float(&v)[8], bool) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum[i] = r < chunk.rows ? __fadd_rn(sum[i], v[i]) : sum[i];
    });
    td::codes_rows(p, chunk, head + p.kv_heads, at, 8, at.channel, [&](int, const float(&v)[8], bool) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            most[i] = fmaxf(most[i], fabsf(v[i]));
    });
    put(sum);
    if (c < dim) {
        const float(&s)[8][td::kCodesDim] = shared.sums;

        to[c] = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(s[0][c], s[1][c]), __fadd_rn(s[2][c], s[3][c])),
                                    __fadd_rn(s[4][c], s[5][c])),
                          __fadd_rn(s[6][c], s[7][c]));
    }
    __syncthreads();
    put(most);
    if (c < dim) {
        float top = 0.0f;

#pragma unroll
        for (int i = 0; i < 8; i++)
            top = fmaxf(top, shared.sums[i][c]);
        to[dim + c] = top;
    }
}

extern "C" __global__ void __launch_bounds__(td::kCodesThreads)
    linear_codes_statistics(const __grid_constant__ td_params_linear_codes p)
{
    td::wait_for_previous();
    if (td::cancelled(p.cancel))
        return;
    const uint32_t c = threadIdx.x, dim = p.y.dim;
    const float *from = p.partial + int64_t(blockIdx.x) * p.chunks * 2 * dim + c;
    float *to = p.statistics + blockIdx.x / p.kv_heads * p.statistics_at.stride_batch +
                blockIdx.x % p.kv_heads * p.statistics_at.stride_head + c;
    float sum = 0.0f, top = 0.0f;

    if (c >= dim)
        return;
#pragma unroll 8
    for (uint32_t i = 0; i < p.chunks; i++) {
        sum = __fadd_rn(sum, from[int64_t(i) * 2 * dim]);
        top = fmaxf(top, from[int64_t(i) * 2 * dim + dim]);
    }
    to[0] = __fdiv_rn(sum, float(p.y.rows));
    to[p.statistics_at.stride_row] = top;
}

extern "C" __global__ void __launch_bounds__(td::kCodesThreads)
    linear_codes(const __grid_constant__ td_params_linear_codes p)
{
    td::wait_for_previous();
    if (td::cancelled(p.cancel))
        return;
    __shared__ td::CodesShared shared;
    const uint32_t all = p.heads + p.kv_heads, plane = blockIdx.x / p.chunks, head = plane % all;
    const td::CodesChunk chunk(p, plane / all, blockIdx.x % p.chunks);
    const bool is_k = head >= p.heads;
    const uint32_t heads = is_k ? p.kv_heads : p.heads, own = is_k ? head - p.heads : head;
    const int64_t number = chunk.batch * heads + own, planes = int64_t(p.batch) * heads;
    const int64_t rows_pad = int64_t(p.chunks) * td::kCodesRows, codes = rows_pad * p.d_pad;
    uint8_t *to = is_k ? p.k : p.q;
    const float *mean = nullptr;

    for (int r = int(threadIdx.x); r < td::kCodesRows; r += int(blockDim.x))
        shared.bad[r] = false;
    __syncthreads();
    if (is_k) {
        mean = p.statistics + chunk.batch * p.statistics_at.stride_batch + own * p.statistics_at.stride_head;
        td::codes_of_v(p, chunk, head + p.kv_heads, mean + p.statistics_at.stride_row, shared, p.v + number * codes,
                       reinterpret_cast<float *>(p.v + planes * codes) + number * p.d_pad);
        __syncthreads();
    }
    td::codes_of_rows(p, chunk, head, mean, is_k, shared, to + number * codes + int64_t(chunk.first) * p.d_pad,
                      reinterpret_cast<float *>(to + planes * codes) + number * rows_pad + chunk.first);
}
#endif
