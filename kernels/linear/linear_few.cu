/* y = finish(x w^T) of fp16 or bf16 where larger tiles would leave multiprocessors idle: `linear_few`, by mma.sync, for every
 * architecture.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * What counts is how long one tile takes. So tiles are small, the warps of a block share the channels, and rows go from memory
 * straight into registers, several steps ahead; products do not care which channels of a step are called which. A step is 32
 * channels, of which a thread has eight neighbours of each of its rows: warp i of K takes steps i, i + K ... At the end the warps'
 * sums are added up in shared memory, in the order of warps. Code that a block meets once takes longer than what it does: so there
 * is little of it.
 * Entries `normed` begin with the norm that makes x, each block of its own rows, into shared memory: that takes less than a kernel of
 * its own takes to begin and to end. Meanwhile weights are on their way. For that alone a block has twice as many warps: each has half of
 * the code, then.
 */
#include "kernels/cuda/norm_rows.cuh"
#include "kernels/join_params.h"
#include "kernels/linear/weights.cuh"

namespace td {

/* A warp has 16 * Tiles rows of x and 8 * Octets of w's; of a block's warps Shares share the channels, and Columns lie side by
 * side. Ahead: steps that are under way. Normed: x is in shared memory. */
template <int Tiles, int Octets, int Shares, int Columns, int Ahead, bool Bf16, bool Normed = false> struct LinearFew {
    static constexpr int rows = 16 * Tiles, columns = 8 * Octets * Columns, threads = 32 * Shares * Columns;
    static constexpr int stride = columns + 8; /* floats: what a warp writes at once falls into all banks */
    using Sums = float[Shares][rows * stride];
    static_assert(sizeof(Sums) <= 47 * 1024, "more than a block has in a command buffer");

    const td_params_linear &p;
    uint32_t row0, column_tile;
    int g, q, share, column0; /* this thread's rows are g and + 8 ..., channels 8 q to 8 q + 7; columns begin at column0 */
    const uint8_t *x[Normed ? 1 : 2 * Tiles], *w[Octets]; /* rows in shared memory lie one behind the other */
    uint32_t steps; /* whole ones */

    /* Rows that do not exist are the last one. `rows_of_x`: where x has been put, row0's first. */
    __device__ __forceinline__ explicit LinearFew(const td_params_linear &params, const __half *rows_of_x = nullptr) : p(params)
    {
        const uint32_t row_tiles = (p.rows + rows - 1) / rows, w_rows = p.gate ? 2 * p.outs : p.outs;
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

        column_tile = blockIdx.x / row_tiles;
        row0 = (blockIdx.x - column_tile * row_tiles) * rows;
        g = int(lane / 4);
        q = int(lane % 4);
        share = int(warp / Columns);
        column0 = int(warp % Columns) * (8 * Octets);
        steps = p.ins / 32;
        const uint32_t begin = 64 * share + 16 * q;
        const uint8_t *const w0 = static_cast<const uint8_t *>(p.w) + begin;
        if constexpr (Normed)
            x[0] = reinterpret_cast<const uint8_t *>(rows_of_x + g * TD_LINEAR_FEW_NORMED_PITCH(p.ins)) + begin;
#pragma unroll
        for (int i = 0; i < 2 * Tiles && !Normed; i++)
            x[i] = static_cast<const uint8_t *>(p.x) + begin +
                   uint64_t(min(row0 + 8 * i + g, p.rows - 1)) * uint32_t(2 * p.x_stride);
#pragma unroll
        for (int i = 0; i < Octets; i++) {
            const uint32_t in = column0 + 8 * i + g; /* of the tile's rows of w: with a gate by halves half of them are b's */
            const uint32_t at = p.gate == TANDEM_GATE_HALVES
                                    ? column_tile * (columns / 2) + in % (columns / 2) + (in < columns / 2 ? 0 : p.outs)
                                    : column_tile * columns + in;

            w[i] = w0 + uint64_t(min(at, w_rows - 1)) * uint32_t(p.w_stride);
        }
    }

    struct Step {
        alignas(16) uint32_t x[2 * Tiles][4];
        uint32_t w[Octets][4];
    };

    /* The warp's step `ahead` from here on: of x, if it is in shared memory, once it is multiplied. */
    __device__ __forceinline__ void load(Step &to, int ahead) const
    {
#pragma unroll
        for (int i = 0; i < Octets; i++)
            load_here(to.w[i], w[i] + ahead * (64 * Shares));
#pragma unroll
        for (int i = 0; i < 2 * Tiles && !Normed; i++)
            load_here(to.x[i], x[i] + ahead * (64 * Shares));
    }
    __device__ __forceinline__ void load_normed(Step &to, int ahead) const
    {
#pragma unroll
        for (int i = 0; i < 2 * Tiles; i++)
            *reinterpret_cast<uint4 *>(to.x[i]) =
                *reinterpret_cast<const uint4 *>(x[0] + i * (16 * TD_LINEAR_FEW_NORMED_PITCH(p.ins)) + ahead * (64 * Shares));
    }

    __device__ __forceinline__ void advance(int by)
    {
#pragma unroll
        for (int i = 0; i < Octets; i++)
            w[i] += by * (64 * Shares);
#pragma unroll
        for (int i = 0; i < 2 * Tiles; i++)
            x[i] += by * (64 * Shares);
    }

    __device__ __forceinline__ static void multiply(float (&c)[Tiles][Octets][4], const Step &step)
    {
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int t = 0; t < Tiles; t++) {
                const uint32_t(&low)[4] = step.x[2 * t], (&high)[4] = step.x[2 * t + 1];
                const uint32_t a[4] = {low[2 * half], high[2 * half], low[2 * half + 1], high[2 * half + 1]};

#pragma unroll
                for (int i = 0; i < Octets; i++)
                    linear_mma<Bf16>(c[t][i], a, step.w[i][2 * half], step.w[i][2 * half + 1]);
            }
    }

    /* Channels behind the last whole step, which one warp has. */
    __device__ __forceinline__ void multiply_rest(float (&c)[Tiles][Octets][4]) const
    {
        Step step = {};

        if (32 * steps + 8 * q < p.ins)
            load(step, 0);
        multiply(c, step);
    }

    /* This warp's steps, and the first of them on their way. */
    __device__ __forceinline__ int start(Step (&step)[Ahead]) const
    {
        const int mine = int((steps + Shares - 1 - share) / Shares);

#pragma unroll
        for (int i = 0; i < Ahead; i++)
            if (i < mine)
                load(step[i], i);
        return mine;
    }

    __device__ __forceinline__ static void clear(float (&c)[Tiles][Octets][4])
    {
#pragma unroll
        for (int i = 0; i < 4 * Tiles * Octets; i++)
            c[i / 4 / Octets][i / 4 % Octets][i % 4] = 0.0f;
    }
    /* This warp's sums. */
    __device__ __forceinline__ void sum(float (&c)[Tiles][Octets][4], Step (&step)[Ahead], int mine)
    {
        int left = mine;

        clear(c);
#pragma unroll 1
        for (; left > 0; left -= Ahead) {
#pragma unroll
            for (int i = 0; i < Ahead; i++)
                if (i < left) {
                    multiply(c, step[i]);
                    if (i + Ahead < left)
                        load(step[i], i + Ahead);
                }
            advance(Ahead);
        }
        if (p.ins % 32 && int(steps % Shares) == share) {
            advance(left); /* so far beyond it has come */
            multiply_rest(c);
        }
    }
    /* The same of rows in shared memory: all steps are whole, and under way. */
    __device__ __forceinline__ void sum_normed(float (&c)[Tiles][Octets][4], Step (&step)[Ahead], int mine) const
    {
        clear(c);
#pragma unroll
        for (int i = 0; i < Ahead; i++)
            if (i < mine) {
                load_normed(step[i], i);
                multiply(c, step[i]);
            }
    }

    __device__ __forceinline__ void put(float (&to)[rows * stride], const float (&c)[Tiles][Octets][4]) const
    {
#pragma unroll
        for (int i = 0; i < 2 * Tiles * Octets; i++)
            *reinterpret_cast<float2 *>(&to[(i / 2 / Octets * 16 + i % 2 * 8 + g) * stride + column0 + i / 2 % Octets * 8 + 2 * q]) =
                make_float2(c[i / 2 / Octets][i / 2 % Octets][i % 2 * 2], c[i / 2 / Octets][i / 2 % Octets][i % 2 * 2 + 1]);
    }

    /* Eight sums of all warps. */
    __device__ __forceinline__ static void add_up(float (&x)[8], const Sums &sums, int at)
    {
        linear_get8(x, &sums[0][at]);
#pragma unroll 1
        for (int other = 1; other < Shares; other++) {
            float more[8];

            linear_get8(more, &sums[other][at]);
#pragma unroll
            for (int i = 0; i < 8; i++)
                x[i] += more[i];
        }
    }

    /* With a scale, a gate or a rotation. */
    __device__ __forceinline__ void finish(const Sums &sums) const
    {
        const int across = p.gate ? columns / 16 : columns / 8; /* octets of y's columns */

#pragma unroll 1
        for (int i = int(threadIdx.x); i < rows * across; i += threads) {
            const int row = i / across, octet = i - row * across, at = row * stride;
            float a[8], b[8];

            if (p.gate == TANDEM_GATE_PAIRS) {
                float even[8], odd[8];

                add_up(even, sums, at + 16 * octet);
                add_up(odd, sums, at + 16 * octet + 8);
                linear_unzip(a, b, even, odd);
            } else {
                add_up(a, sums, at + 8 * octet);
                if (p.gate)
                    add_up(b, sums, at + columns / 2 + 8 * octet);
            }
            linear_finish(p, row0 + row, (column_tile * across + octet) * 8, a, b);
        }
    }

    /* What a thread finishes: eight of a tile's sums, or none, and ahead of them what they are finished with; else whatever is its turn. */
    struct Mine {
        static constexpr uint32_t across = columns / 8;
        static_assert(rows * across <= threads, "a thread has eight of a tile's sums, or none");
        const uint32_t in = threadIdx.x / across, octet = threadIdx.x % across;
        const uint32_t row, column;
        const bool plain;
        LinearMore more;

        __device__ __forceinline__ explicit Mine(const LinearFew &few)
            : row(few.row0 + in), column(few.column_tile * columns + 8 * octet), plain(Normed || LinearMore::suffices(few.p))
        {
        }
        __device__ __forceinline__ void load(const td_params_linear &params)
        {
            if (plain && in < rows)
                more.load(params, row, column);
        }
        __device__ __forceinline__ void finish(const LinearFew &few, const Sums &sums) const
        {
            if (!plain) {
                few.finish(sums);
            } else if (in < rows) {
                float all[8];

                add_up(all, sums, in * stride + 8 * octet);
                more.finish(few.p, row, column, all);
            }
        }
    };
};

template <int Tiles, int Octets, int Shares, int Columns, int Ahead, bool Bf16>
__device__ __forceinline__ void linear_few(const td_params_linear &p)
{
    using Few = LinearFew<Tiles, Octets, Shares, Columns, Ahead, Bf16>;
    __shared__ __align__(16) typename Few::Sums sums;
    typename Few::Step step[Ahead];
    float c[Tiles][Octets][4];
    Few few(p);
    typename Few::Mine mine(few);
    const bool stop = threadIdx.x == 0 && is_set(p.cancel);

    wait_for_previous();
    launch_dependents();
    const int steps = few.start(step);
    mine.load(p);
    few.sum(c, step, steps);
    few.put(sums[few.share], c);
    if (!__syncthreads_or(stop))
        mine.finish(few, sums);
}

/* What a norm's channels are multiplied by, and what is added. */
struct LinearFewGains {
    alignas(16) float weight[TD_LINEAR_FEW_NORMED_INS], bias[TD_LINEAR_FEW_NORMED_INS];

    /* Half of a block has the weights, the other half biases. */
    __device__ __forceinline__ void fetch(const td_params_norm &n)
    {
        constexpr uint32_t half = TD_LINEAR_FEW_NORMED_THREADS / 2;
        static_assert(TD_LINEAR_FEW_NORMED_INS <= 4 * half, "a thread has four channels, or none");
        const uint32_t c = 4 * (threadIdx.x % half);
        const bool is_bias = threadIdx.x >= half;
        const float *const from = static_cast<const float *>(is_bias ? n.bias : n.weight);
        const float none = is_bias ? -0.0f : 1.0f; /* changes nothing */
        float *const to = is_bias ? bias : weight;

        if (c < n.channels && from)
            cp_async_16(shared_address(to) + 4 * c, from + c);
        else if (c < n.channels)
            *reinterpret_cast<float4 *>(to + c) = make_float4(none, none, none, none);
        cp_async_commit();
    }
};

/* Rows of x by a norm, which each block makes of its own rows, a warp two of them, if there are so many; and y of the norm, which one
 * column of blocks writes. */
template <int Rows> __device__ __forceinline__ void linear_few_norm(__half *x, LinearFewGains &gains, const td_params_norm &n, uint32_t row0, bool writes)
{
    constexpr int at_once = 2;
    using Norm = NormRows<at_once, TD_LINEAR_FEW_NORMED_INS>;
    static_assert(Rows <= at_once * int(TD_LINEAR_FEW_NORMED_THREADS / 32), "a warp has its rows once");
    const uint32_t in = threadIdx.x / 32 * at_once + Norm::row(), asked = row0 + in, row = min(asked, n.rows - 1);
    const auto row_of = [&](const void *tensor, const td_strides &at) {
        return tensor ? static_cast<const __half *>(tensor) + int64_t(row) * at.stride_row : nullptr;
    };
    const bool is_there = in < uint32_t(Rows), mine = writes && is_there && asked < n.rows;
    __half *const y = mine ? const_cast<__half *>(row_of(n.y, n.y_at)) : nullptr;
    Norm h;

    gains.fetch(n);
    h.load(row_of(n.x, n.x_at), row_of(n.residual, n.residual_at), mine ? const_cast<__half *>(row_of(n.sum, n.sum_at)) : nullptr, n.channels);
    const float scale = h.center(n);

    cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int k = 0; k < Norm::chunks; k++)
        if (is_there && Norm::channel(k) < n.channels) {
            float weight[8], bias[8];

            linear_get8(weight, gains.weight + Norm::channel(k));
            linear_get8(bias, gains.bias + Norm::channel(k));
            const uint4 words = h.normed(k, scale, weight, bias);

            *reinterpret_cast<uint4 *>(x + in * TD_LINEAR_FEW_NORMED_PITCH(n.channels) + Norm::channel(k)) = words;
            if (y)
                *reinterpret_cast<uint4 *>(y + Norm::channel(k)) = words;
        }
}

template <int Tiles, int Octets, int Shares, int Columns>
__device__ __forceinline__ void linear_few_normed(const td_params_linear_few_normed &all)
{
    constexpr int Ahead = (TD_LINEAR_FEW_NORMED_INS / 32 + Shares - 1) / Shares; /* all that a warp has */
    using Few = LinearFew<Tiles, Octets, Shares, Columns, Ahead, false, true>;
    constexpr uint32_t rows_bytes = 2 * Few::rows * TD_LINEAR_FEW_NORMED_PITCH(TD_LINEAR_FEW_NORMED_INS);
    static_assert(2 * Few::threads == TD_LINEAR_FEW_NORMED_THREADS, "half of a block multiplies");
    __shared__ __align__(16) uint8_t bytes[sizeof(typename Few::Sums) > rows_bytes ? sizeof(typename Few::Sums) : rows_bytes];
    __shared__ LinearFewGains gains;
    static_assert(sizeof bytes + sizeof gains <= 47 * 1024, "more than a block has in a command buffer");
    typename Few::Sums &sums = *reinterpret_cast<typename Few::Sums *>(bytes); /* where x was before */
    __half *const x = reinterpret_cast<__half *>(bytes);
    const td_params_linear &p = all.p;
    typename Few::Step step[Ahead];
    float c[Tiles][Octets][4];
    Few few(p, x);
    typename Few::Mine mine(few);
    const bool multiplies = threadIdx.x < uint32_t(Few::threads);
    int steps = 0;

    if (p.w_is_constant && multiplies)
        steps = few.start(step);
    wait_for_previous();
    launch_dependents();
    const bool stop = is_set(p.cancel);

    if (!p.w_is_constant && multiplies)
        steps = few.start(step);
    linear_few_norm<Few::rows>(x, gains, all.n, few.row0, few.column_tile == 0 && !stop);
    mine.load(p);
    __syncthreads();
    if (multiplies)
        few.sum_normed(c, step, steps);
    __syncthreads();
    if (multiplies)
        few.put(sums[few.share], c);
    if (!__syncthreads_or(stop) && multiplies)
        mine.finish(few, sums);
}

} // namespace td

#define TD_LINEAR_FEW_ENTRY(entry, bf16, tiles, octets, shares, side, ahead)                                   \
    extern "C" __global__ void __launch_bounds__(32 * (shares) * (side), 1) entry(const __grid_constant__ td_params_linear p) \
    {                                                                                                           \
        td::linear_few<tiles, octets, shares, side, ahead, bf16>(p);                                            \
    }
#define TD_LINEAR_FEW(name, tiles, octets, shares, side, ahead)                                  \
    TD_LINEAR_FEW_ENTRY(linear_f16_few_##name, false, tiles, octets, shares, side, ahead)        \
    TD_LINEAR_FEW_ENTRY(linear_bf16_few_##name, true, tiles, octets, shares, side, ahead)        \
    extern "C" __global__ void __launch_bounds__(TD_LINEAR_FEW_NORMED_THREADS, 1)                 \
        linear_f16_few_normed_##name(const __grid_constant__ td_params_linear_few_normed p)       \
    {                                                                                            \
        td::linear_few_normed<tiles, octets, shares, side>(p);                                    \
    }
TD_LINEAR_FEW(16x32, 1, 4, 8, 1, 3)
TD_LINEAR_FEW(32x32, 2, 4, 8, 1, 3)
TD_LINEAR_FEW(32x64, 2, 4, 4, 2, 3)
