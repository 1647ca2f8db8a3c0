/* What sums become on their way out: scale, bias, activation, gate, rotation, residual, cast (params.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A thread has eight neighbours of a row of y: its loads and stores are of 16 bytes, whatever instruction the sums come from.
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
    if (activation == TANDEM_ACTIVATION_SILU) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = linear_swish(x[i], x[i]);
    } else if (activation == TANDEM_ACTIVATION_GELU_TANH) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = linear_swish(x[i], x[i] * (1.5957691216057308f + 0.0713548162726009f * x[i] * x[i]));
    } else if (activation == TANDEM_ACTIVATION_GELU) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.7071067811865476f));
    } else if (activation == TANDEM_ACTIVATION_TANH) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = tanhf(x[i]);
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

/* Cosines and sines of a row's columns; false: they are not turned. */
__device__ __forceinline__ bool linear_load_turn(const td_params_linear &p, uint32_t row, uint32_t column, float (&turn)[8])
{
    const uint32_t channel = column % p.head_dim;

    if (column >= p.rotated_columns || channel >= p.rotated_channels)
        return false;
    const int at = min(max(p.position[row], 0), int(p.positions - 1));

    load_some(turn, p.rotation + at * p.rotation_stride + channel, 8);
    return true;
}

/* Turns pairs of columns. */
__device__ __forceinline__ void linear_turn(float (&a)[8], const float (&turn)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        const float x = a[i], y = a[i + 1];

        a[i] = x * turn[i] - y * turn[i + 1];
        a[i + 1] = x * turn[i + 1] + y * turn[i];
    }
}

/* Columns from `column` on: scale, bias, activation and gate of sums a and, with a gate, b. */
__device__ __forceinline__ void linear_gated(const td_params_linear &p, uint32_t column, int count, float (&a)[8], float (&b)[8])
{
    if (p.gate == TANDEM_GATE_PAIRS) {
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
}

/* Columns `column` to `column` + 7 of a row of y, from sums a and, with a gate, b, which is overwritten: what else it takes is read when
 * it is wanted. */
__device__ __forceinline__ void linear_finish(const td_params_linear &p, uint32_t row, uint32_t column, float (&a)[8],
                                              float (&b)[8])
{
    if (row >= p.rows || column >= p.outs)
        return;
    const int count = int(min(p.outs - column, 8u));

    linear_gated(p, column, count, a, b);
    if (p.rotation && linear_load_turn(p, row, column, b))
        linear_turn(a, b);
    if (p.residual) {
        load_some(b, p.residual, p.residual_dtype, int64_t(row) * p.residual_stride + column, count);
#pragma unroll
        for (int i = 0; i < 8; i++)
            a[i] += b[i];
    }
    store_some(p.y, p.y_dtype, int64_t(row) * p.y_stride + column, count, a);
}
/* What eight sums are finished with where there is neither a scale nor a gate nor a rotation: read ahead of them. */
struct LinearMore {
    float bias[8], residual[8];

    __device__ __forceinline__ static bool suffices(const td_params_linear &p)
    {
        return !p.scale && !p.gate && !p.rotation;
    }
    __device__ __forceinline__ void load(const td_params_linear &p, uint32_t row, uint32_t column)
    {
        if (row >= p.rows || column >= p.outs)
            return;
        const int count = int(min(p.outs - column, 8u));

        if (p.bias)
            load_some(bias, p.bias, p.bias_dtype, column, count);
        if (p.residual)
            load_some(residual, p.residual, p.residual_dtype, int64_t(row) * p.residual_stride + column, count);
    }
    __device__ __forceinline__ void finish(const td_params_linear &p, uint32_t row, uint32_t column, float (&sums)[8]) const
    {
        if (row >= p.rows || column >= p.outs)
            return;
#pragma unroll
        for (int i = 0; i < 8 && p.bias; i++)
            sums[i] += bias[i];
        linear_activate(p.activation, sums);
#pragma unroll
        for (int i = 0; i < 8 && p.residual; i++)
            sums[i] += residual[i];
        store_some(p.y, p.y_dtype, int64_t(row) * p.y_stride + column, int(min(p.outs - column, 8u)), sums);
    }
};

/* Of 16 neighbours x and y, those at even places and those at odd ones. */
__device__ __forceinline__ void linear_unzip(float (&even)[8], float (&odd)[8], const float (&x)[8], const float (&y)[8])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        even[i] = x[2 * i], even[i + 4] = y[2 * i];
        odd[i] = x[2 * i + 1], odd[i + 4] = y[2 * i + 1];
    }
}

__device__ __forceinline__ void linear_get8(float (&x)[8], const float *at)
{
    const float4 low = reinterpret_cast<const float4 *>(at)[0], high = reinterpret_cast<const float4 *>(at)[1];

    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

/* Of lanes 4 i + t, t in 0..3: lane t gets the pairs e[t] of all four, one behind the other. */
__device__ __forceinline__ void linear_transpose(float (&x)[8], const float2 (&e)[4])
{
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    float2 half[2][2]; /* pairs of lanes 0 and 1, or 2 and 3, for lanes `odd` and 2 + `odd` */

#pragma unroll
    for (int j = 0; j < 2; j++) {
        const float2 kept = odd ? e[2 * j + 1] : e[2 * j], sent = odd ? e[2 * j] : e[2 * j + 1];
        const float2 come = make_float2(__shfl_xor_sync(~0u, sent.x, 1), __shfl_xor_sync(~0u, sent.y, 1));

        half[j][0] = odd ? come : kept;
        half[j][1] = odd ? kept : come;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float2 kept = high ? half[1][i] : half[0][i], sent = high ? half[0][i] : half[1][i];
        const float2 come = make_float2(__shfl_xor_sync(~0u, sent.x, 2), __shfl_xor_sync(~0u, sent.y, 2));
        const float2 low = high ? come : kept, above = high ? kept : come;

        x[2 * i] = low.x, x[2 * i + 1] = low.y;
        x[4 + 2 * i] = above.x, x[5 + 2 * i] = above.y;
    }
}

/* Sums of 16 rows and N of w's rows, as mma has them: columns 8j + 2 (lane % 4) and the next at c[4j], c[4j + 1], eight rows further
 * at c[4j + 2], c[4j + 3]. With a gate by halves the first N / 2 columns are a's, the others b's.
 * Four lanes have two rows, and exchange sums so that each has eight neighbours in y, of two times eight: no shared memory. */
template <int N> struct LinearOut {
    template <int Gate> static constexpr int steps = Gate == TANDEM_GATE_NONE ? N / 16 : N / 32; /* of 16 of y's columns */

    /* Four lanes' pairs of two octets of w's rows. */
    __device__ __forceinline__ static void pick(float2 (&e)[4], const float (&c)[N / 2], int low, int high)
    {
        e[0] = make_float2(c[4 * low], c[4 * low + 1]), e[1] = make_float2(c[4 * high], c[4 * high + 1]);
        e[2] = make_float2(c[4 * low + 2], c[4 * low + 3]), e[3] = make_float2(c[4 * high + 2], c[4 * high + 3]);
    }

    /* What is only cast, wholly within y, and aligned. Some steps at a time: with all at once the compiler spills. */
    template <class E> __device__ __forceinline__ static void cast(E *y, const float (&c)[N / 2])
    {
        constexpr int all = steps<TANDEM_GATE_NONE>, together = all > 4 ? 4 : all;

#pragma unroll 1
        for (int first = 0; first < all; first += together)
#pragma unroll
            for (int step = 0; step < all; step++)
                if (step / together * together == first)
                    store(y + 16 * step, c, step);
    }
    template <class E> __device__ __forceinline__ static void store(E *y, const float (&c)[N / 2], int step)
    {
        float2 e[4];
        float x[8];

        pick(e, c, 2 * step, 2 * step + 1);
        linear_transpose(x, e);
        if constexpr (sizeof(E) == 4) {
            reinterpret_cast<float4 *>(y)[0] = make_float4(x[0], x[1], x[2], x[3]);
            reinterpret_cast<float4 *>(y)[1] = make_float4(x[4], x[5], x[6], x[7]);
        } else {
            *reinterpret_cast<uint4 *>(y) =
                make_uint4(pack2(y, x[0], x[1]), pack2(y, x[2], x[3]), pack2(y, x[4], x[5]), pack2(y, x[6], x[7]));
        }
    }
    /* Registers have no numbers: each step has code of its own for what it picks, and nothing else, as code that does not fit into
     * the instruction cache takes longer than all that it does. */
    template <int Gate>
    __device__ __forceinline__ static void finish(const td_params_linear &p, const float (&c)[N / 2], uint32_t row,
                                                  uint32_t column)
    {
#pragma unroll 1
        for (int step = 0; step < steps<Gate>; step++) {
            float2 e[4], f[4];
            float a[8], b[8];

#pragma unroll
            for (int i = 0; i < steps<Gate>; i++)
                if (i == step) {
                    if constexpr (Gate == TANDEM_GATE_PAIRS) {
                        pick(e, c, 4 * i, 4 * i + 2);
                        pick(f, c, 4 * i + 1, 4 * i + 3);
                    } else {
                        pick(e, c, 2 * i, 2 * i + 1);
                        if constexpr (Gate == TANDEM_GATE_HALVES)
                            pick(f, c, N / 16 + 2 * i, N / 16 + 2 * i + 1);
                    }
                }
            linear_transpose(a, e);
            if constexpr (Gate != TANDEM_GATE_NONE)
                linear_transpose(b, f);
            if constexpr (Gate == TANDEM_GATE_PAIRS) {
                float x[8], y[8];

#pragma unroll
                for (int i = 0; i < 8; i++)
                    x[i] = a[i], y[i] = b[i];
                linear_unzip(a, b, x, y);
            }
            linear_finish(p, row, column + 16 * step, a, b);
        }
    }

    /* `tile`: number of the tile of columns. All lanes. */
    __device__ __forceinline__ static void write(const td_params_linear &p, const float (&c)[N / 2], uint32_t row0, uint32_t tile)
    {
        const uint32_t lane = threadIdx.x % 32, row = row0 + lane / 4 + (lane & 2) * 4;
        const uint32_t column = tile * (p.gate ? N / 2 : N) + (lane & 1) * 8;

        if (p.gate == TANDEM_GATE_HALVES) {
            finish<TANDEM_GATE_HALVES>(p, c, row, column);
        } else if (p.gate == TANDEM_GATE_PAIRS) {
            finish<TANDEM_GATE_PAIRS>(p, c, row, column);
        } else if (p.scale || p.bias || p.activation || p.rotation || p.residual || row0 + 16 > p.rows || (tile + 1) * N > p.outs ||
                   ((uint64_t)p.y | p.y_stride * 2) % 16) {
            finish<TANDEM_GATE_NONE>(p, c, row, column);
        } else {
            const int64_t at = row * p.y_stride + column;

            if (p.y_dtype == TANDEM_DTYPE_F32)
                cast(static_cast<float *>(p.y) + at, c);
            else if (p.y_dtype == TANDEM_DTYPE_BF16)
                cast(static_cast<__nv_bfloat16 *>(p.y) + at, c);
            else
                cast(static_cast<__half *>(p.y) + at, c);
        }
    }
};

} // namespace td
