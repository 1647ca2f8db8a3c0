/* Attention of pixels over their neighbours: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A thread has a query. What a block's queries may meet comes into shared memory once; each thread goes over it twice, for the
 * largest score and for the sums, as scores are cheaper than registers.
 */
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tensor.cuh"
#include "kernels/gather/params.h"

namespace td {

/* Images that a block keeps a part of, from (top, left) on. */
template <int Dim> struct GatherPatch {
    uint4 *keys;    /* [height][width][Dim / 8] */
    float4 *values; /* [height][width] */
    int height, width, top, left;

    __device__ __forceinline__ uint8_t *place(uint8_t *memory, int rows, int columns)
    {
        height = rows, width = columns;
        values = reinterpret_cast<float4 *>(memory);
        keys = reinterpret_cast<uint4 *>(values + rows * columns);
        return reinterpret_cast<uint8_t *>(keys + rows * columns * (Dim / 8));
    }

    /* of_height and of_width: the images'. */
    __device__ __forceinline__ void load(const td_params_gather &p, int64_t batch, int of_height, int of_width, const __half *k, const td_strides &k_at,
                                         const float *v, const td_strides &v_at, const float *factor)
    {
        for (int i = int(threadIdx.x); i < height * width; i += int(TD_BLOCK_THREADS)) {
            const int y = top + i / width, x = left + i % width;

            if (y < 0 || x < 0 || y >= of_height || x >= of_width)
                continue;
            float4 value = *reinterpret_cast<const float4 *>(v + row_at(v_at, batch, y, x));

            value.w = value.w > 0 ? value.w : 0.0f;
            if (factor) {
                const float *f = factor + row_at(p.factor_at, batch, y, x);

                value.x *= f[0], value.y *= f[1], value.z *= f[2];
            }
            values[i] = value;
#pragma unroll
            for (int d = 0; d < Dim / 8; d++)
                keys[i * (Dim / 8) + d] = reinterpret_cast<const uint4 *>(k + row_at(k_at, batch, y, x))[d];
        }
    }

    __device__ __forceinline__ float score(const float (&q)[Dim], int at, float bias) const
    {
        float sum = bias;

#pragma unroll
        for (int d = 0; d < Dim / 8; d++) {
            const uint4 eight = keys[at * (Dim / 8) + d];
            __half halves[8];

            memcpy(halves, &eight, sizeof halves);
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum += q[8 * d + i] * to_float(halves[i]);
        }
        return sum;
    }
};

/* Calls f(score, place) for each key of a window of `taps` a side that is there. */
template <int Dim, class F>
__device__ __forceinline__ void gather_window(const GatherPatch<Dim> &patch, const float (&q)[Dim], int y, int x, int taps, int of_height, int of_width,
                                              const float *bias, F f)
{
#pragma unroll 1
    for (int i = 0; i < taps; i++) {
        const int row = y + i;

        if (patch.top + row < 0 || patch.top + row >= of_height)
            continue;
        for (int j = 0; j < taps; j++) {
            const int column = x + j, at = row * patch.width + column;

            if (patch.left + column >= 0 && patch.left + column < of_width)
                f(patch.score(q, at, bias ? bias[i * taps + j] : 0.0f), patch.values[at]);
        }
    }
}

template <int Dim> __device__ __forceinline__ void gather_block(const td_params_gather &p)
{
    TD_DYNAMIC_SHARED(16, gather_bytes);
    const int64_t batch = blockIdx.x / p.columns / p.rows;
    const int row = int(blockIdx.x / p.columns % p.rows * TD_GATHER_HEIGHT), column = int(blockIdx.x % p.columns * TD_GATHER_WIDTH);
    const int height = int(p.height), width = int(p.width), coarse_height = (height + 1) / 2, coarse_width = (width + 1) / 2;
    const int step = int(p.step), taps = int(p.taps), coarse_taps = int(p.coarse_taps), coarse_radius = int(p.coarse_radius);
    GatherPatch<Dim> fine, coarse;
    uint8_t *memory = fine.place(gather_bytes, int(TD_GATHER_SPAN(TD_GATHER_HEIGHT, p.step, p.taps)), int(TD_GATHER_SPAN(TD_GATHER_WIDTH, p.step, p.taps)));

    coarse.place(memory, int(TD_GATHER_COARSE_SPAN(TD_GATHER_HEIGHT, p.coarse_radius)), int(TD_GATHER_COARSE_SPAN(TD_GATHER_WIDTH, p.coarse_radius)));
    fine.top = row * step - int(p.before), fine.left = column * step - int(p.before);
    coarse.top = row / 2 - coarse_radius, coarse.left = column / 2 - coarse_radius;
    fine.load(p, batch, height, width, static_cast<const __half *>(p.k), p.k_at, p.v, p.v_at, p.factor);
    if (coarse_taps)
        coarse.load(p, batch, coarse_height, coarse_width, static_cast<const __half *>(p.k_coarse), p.k_coarse_at, p.v_coarse, p.v_coarse_at, nullptr);
    __syncthreads();

    const int y = int(threadIdx.x / TD_GATHER_WIDTH), x = int(threadIdx.x % TD_GATHER_WIDTH);
    float q[Dim], most = -1e30f, sums[4] = {};

    if (row + y >= int(p.out_height) || column + x >= int(p.out_width))
        return;
#pragma unroll
    for (int d = 0; d < Dim; d += 8) {
        float eight[8];

        load8(eight, static_cast<const __half *>(p.q) + row_at(p.q_at, batch, row + y, column + x) + d, true);
#pragma unroll
        for (int i = 0; i < 8; i++)
            q[d + i] = eight[i];
    }
    /* Beside those of its neighbours: its own pixel's of frames before. */
    float4 before = {0.0f, 0.0f, 0.0f, 0.0f};
    float before_score = 0.0f;
    if (p.k_before) {
        before = *reinterpret_cast<const float4 *>(p.v_before + row_at(p.v_before_at, batch, row + y, column + x));
        before.w = before.w > 0 ? before.w : 0.0f;
        before_score = p.bias ? p.bias[taps * taps + coarse_taps * coarse_taps] : 0.0f;
#pragma unroll
        for (int d = 0; d < Dim; d += 8) {
            float eight[8];

            load8(eight, static_cast<const __half *>(p.k_before) + row_at(p.k_before_at, batch, row + y, column + x) + d, true);
#pragma unroll
            for (int i = 0; i < 8; i++)
                before_score += q[d + i] * eight[i];
        }
    }
    const auto both = [&](auto f) {
        gather_window(fine, q, y * step, x * step, taps, height, width, p.bias, f);
        if (coarse_taps)
            gather_window(coarse, q, y / 2, x / 2, coarse_taps, coarse_height, coarse_width, p.bias ? p.bias + taps * taps : nullptr, f);
        if (before.w > 0)
            f(before_score, before);
    };
    both([&](float score, const float4 &) { most = fmaxf(most, score); });
    both([&](float score, const float4 &value) {
        const float weight = ex2((score - most) * TD_LOG2_E) * value.w;

        sums[0] += weight * value.x;
        sums[1] += weight * value.y;
        sums[2] += weight * value.z;
        sums[3] += weight;
    });
    float *o = p.o + row_at(p.o_at, batch, row + y, column + x);
#pragma unroll
    for (int c = 0; c < 3; c++)
        o[c] = sums[3] > 0 ? sums[c] / sums[3] : 0.0f;
    if (p.channels == 4)
        o[3] = (sums[3] > 0 ? 1.0f : 0.0f) + before.w;
}

} // namespace td

extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS, 6) gather(const __grid_constant__ td_params_gather p)
{
    td::wait_for_previous();
    td::launch_dependents();
    if (td::cancelled(p.cancel))
        return;
    if (p.dim == 8)
        td::gather_block<8>(p);
    else
        td::gather_block<16>(p);
}
