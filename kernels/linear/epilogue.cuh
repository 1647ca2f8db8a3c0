/* What sums become on their way out: scale, bias, activation, gate, residual, cast (params.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A warp's sums go through its part of shared memory, 16 rows at a time, so that a thread has eight neighbours of a row: its
 * loads and stores are of 16 bytes, whatever instruction the sums come from.
 */
#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tensor.cuh"
#include "kernels/linear/params.h"

namespace td {

/* x * sigmoid(z) */
__device__ __forceinline__ float linear_swish(float x, float z)
{
    return __fdividef(x, 1.0f + ex2(-TD_LOG2_E * z));
}

template <int N> __device__ __forceinline__ void linear_activate(uint32_t activation, float (&x)[N])
{
    if (activation == TD_LINEAR_SILU) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = linear_swish(x[i], x[i]);
    } else if (activation == TD_LINEAR_GELU_TANH) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = linear_swish(x[i], x[i] * (1.5957691216057308f + 0.0713548162726009f * x[i] * x[i]));
    } else if (activation == TD_LINEAR_GELU) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.7071067811865476f));
    }
}

/* Scale and bias of the rows of w from `first` on, each `step` further. */
__device__ __forceinline__ void linear_affine(const td_params_linear &p, float (&x)[8], uint32_t first, uint32_t step,
                                              int count)
{
    float y[8];

    if (p.scale) {
        if (step == 1)
            load_some(y, p.scale + first, count);
        else
#pragma unroll
            for (int i = 0; i < 8; i++)
                y[i] = i < count ? p.scale[first + step * i] : 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] *= y[i];
    }
    if (p.bias) {
        if (step == 1) {
            load_some(y, p.bias, p.bias_dtype, first, count);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++)
                y[i] = i >= count ? 0.0f
                       : p.bias_dtype == TANDEM_DTYPE_F32
                           ? static_cast<const float *>(p.bias)[first + step * i]
                       : p.bias_dtype == TANDEM_DTYPE_BF16
                           ? to_float(static_cast<const __nv_bfloat16 *>(p.bias)[first + step * i])
                           : to_float(static_cast<const __half *>(p.bias)[first + step * i]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] += y[i];
    }
}

/* Columns `column` to `column` + 7 of a row of y, from sums a and, with a gate, b. */
__device__ __forceinline__ void linear_finish(const td_params_linear &p, uint32_t row, uint32_t column, float (&a)[8],
                                              float (&b)[8])
{
    if (row >= p.rows || column >= p.outs)
        return;
    const int count = int(min(p.outs - column, 8u));

    if (p.gate == TD_LINEAR_PAIRS) {
        linear_affine(p, a, 2 * column, 2, count);
        linear_affine(p, b, 2 * column + 1, 2, count);
    } else {
        linear_affine(p, a, column, 1, count);
        if (p.gate)
            linear_affine(p, b, p.outs + column, 1, count);
    }
    linear_activate(p.activation, a);
    if (p.gate)
#pragma unroll
        for (int i = 0; i < 8; i++)
            a[i] *= b[i];
    if (p.residual) {
        load_some(b, p.residual, p.residual_dtype, int64_t(row) * p.residual_stride + column, count);
#pragma unroll
        for (int i = 0; i < 8; i++)
            a[i] += b[i];
    }
    store_some(p.y, p.y_dtype, int64_t(row) * p.y_stride + column, count, a);
}

/* Of 16 neighbours x and y, those at even places and those at odd ones. */
__device__ __forceinline__ void linear_unzip(float (&even)[8], float (&odd)[8], const float (&x)[8], const float (&y)[8])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        even[i] = x[2 * i], even[i + 4] = y[2 * i];
        odd[i] = x[2 * i + 1], odd[i + 4] = y[2 * i + 1];
    }
}

/* Sums of 16 rows and N columns, as mma has them: columns 8j + 2 (lane % 4) and the next at c[4j], c[4j + 1], eight rows further
 * at c[4j + 2], c[4j + 3]. They go through `Part` columns of shared memory at a time. `tile`: number of the tile of
 * columns. With a gate by halves the first N / 2 columns are a's, the others b's. */
template <int N, int Part> struct LinearOut {
    static constexpr int stride = Part == 32 ? 40 : 20; /* floats; 20: a few bank conflicts for less memory */
    static constexpr int floats = 16 * stride, parts = N / Part, octets = Part / 8;

    /* Which eight columns lie at octet j of a part. */
    template <bool Halves> __device__ __forceinline__ static constexpr int source(int part, int j)
    {
        return !Halves          ? part * octets + j
               : j < octets / 2 ? part * (octets / 2) + j
                                : N / 16 + part * (octets / 2) + j - octets / 2;
    }
    template <bool Halves> __device__ __forceinline__ static void put(float *shared, const float (&c)[N / 2], int part)
    {
        float *at = shared + threadIdx.x % 32 / 4 * stride + threadIdx.x % 4 * 2;

#pragma unroll
        for (int i = 0; i < parts; i++)
            if (i == part)
#pragma unroll
                for (int j = 0; j < octets; j++) {
                    const int from = 4 * source<Halves>(i, j);

                    *reinterpret_cast<float2 *>(at + 8 * j) = make_float2(c[from], c[from + 1]);
                    *reinterpret_cast<float2 *>(at + 8 * j + 8 * stride) = make_float2(c[from + 2], c[from + 3]);
                }
    }
    __device__ __forceinline__ static void get(float (&x)[8], const float *at)
    {
        const float4 low = reinterpret_cast<const float4 *>(at)[0], high = reinterpret_cast<const float4 *>(at)[1];

        x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
        x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    }

    __device__ __forceinline__ static void write(const td_params_linear &p, float *shared, const float (&c)[N / 2],
                                                 uint32_t row0, uint32_t tile)
    {
        const int lane = int(threadIdx.x % 32);
        const int across = p.gate ? octets / 2 : octets; /* octets of y's columns in a part */

#pragma unroll 1
        for (int part = 0; part < parts; part++) {
            if (p.gate == TD_LINEAR_HALVES)
                put<true>(shared, c, part);
            else
                put<false>(shared, c, part);
            __syncwarp();
#pragma unroll 1
            for (int i = lane; i < 16 * across; i += 32) {
                const int row = i / across, octet = i % across;
                const float *at = shared + row * stride;
                const uint32_t column = ((tile * parts + part) * across + octet) * 8;
                float a[8], b[8];

                if (p.gate == TD_LINEAR_PAIRS) {
                    float x[8], y[8];

                    get(x, at + 16 * octet);
                    get(y, at + 16 * octet + 8);
                    linear_unzip(a, b, x, y);
                } else {
                    get(a, at + 8 * octet);
                    get(b, at + 8 * (p.gate ? octet + octets / 2 : octet));
                }
                linear_finish(p, row0 + row, column, a, b);
            }
            __syncwarp();
        }
    }
};

} // namespace td
