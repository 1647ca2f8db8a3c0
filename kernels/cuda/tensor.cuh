/* Reading and writing strided tensors of any dtype (td_tensor).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/ptx.cuh"
#include "kernels/params.h"
#include "tandem/types.h"

namespace td {

/* What one thread sees now of the word that cancels, for short kernels: they read it beside their data, and ask before they write. */
__device__ __forceinline__ bool is_set(const uint32_t *word)
{
    return word && *(const volatile uint32_t *)word;
}

__device__ __forceinline__ float to_float(float x)
{
    return x;
}
__device__ __forceinline__ float to_float(__half x)
{
    return __half2float(x);
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

__device__ __forceinline__ bool is_finite(float x)
{
    return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

/* Where a row begins, in elements. */
__device__ __forceinline__ int64_t row_at(const td_strides &at, int64_t batch, int64_t head, int64_t row)
{
    return batch * at.stride_batch + head * at.stride_head + row * at.stride_row;
}

/* Pixels (y[i], x[i]) of an image of F32 or F16, or `absent` where there is none. All loads are under way before one is waited
 * for. */
template <int Count, int Channels, class E>
__device__ __forceinline__ void load_pixels(float (&to)[Count][Channels], const E *from, const td_strides &at, int64_t batch,
                                            const uint32_t (&y)[Count], const uint32_t (&x)[Count])
{
#pragma unroll
    for (int i = 0; i < Count; i++) {
        const E *pixel = from + row_at(at, batch, y[i], x[i]);

        if constexpr (Channels * sizeof(E) == 16)
            if (uint64_t(pixel) % 16 == 0) {
                const float4 four = *reinterpret_cast<const float4 *>(pixel);

                memcpy(to[i], &four, sizeof four);
                continue;
            }
#pragma unroll
        for (int c = 0; c < Channels; c++)
            to[i][c] = to_float(pixel[c]);
    }
}
template <int Count, int Channels>
__device__ __forceinline__ void load_pixels(float (&to)[Count][Channels], const void *from, uint32_t dtype, const td_strides &at,
                                            int64_t batch, const uint32_t (&y)[Count], const uint32_t (&x)[Count], float absent)
{
    if (!from) {
#pragma unroll
        for (int i = 0; i < Count * Channels; i++)
            to[i / Channels][i % Channels] = absent;
    } else if (dtype == TANDEM_DTYPE_F32) {
        load_pixels(to, static_cast<const float *>(from), at, batch, y, x);
    } else {
        load_pixels(to, static_cast<const __half *>(from), at, batch, y, x);
    }
}

/* Eight channels of a row as they lie in memory. */
template <class E> struct Eight {
    uint4 words[sizeof(E) * 8 / 16];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (uint4 &word : words)
            word = make_uint4(0, 0, 0, 0);
    }

    /* Wide: p is 16-byte aligned. */
    template <bool Wide> __device__ __forceinline__ void load(const E *p)
    {
        if constexpr (Wide) {
#pragma unroll
            for (int i = 0; i < int(sizeof(E)) / 2; i++)
                words[i] = __ldg(reinterpret_cast<const uint4 *>(p) + i);
        } else {
            E e[8];

#pragma unroll
            for (int i = 0; i < 8; i++)
                e[i] = p[i];
            memcpy(words, e, sizeof words);
        }
    }

    __device__ __forceinline__ void convert(float (&x)[8]) const
    {
        E e[8];

        memcpy(e, words, sizeof words);
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = to_float(e[i]);
    }
};

template <class E> __device__ __forceinline__ void load8(float (&x)[8], const E *p, bool wide)
{
    Eight<E> eight;

    if (wide)
        eight.template load<true>(p);
    else
        eight.template load<false>(p);
    eight.convert(x);
}

/* A thread's channels, `count` of which exist (8 or more: all). */
struct EightAt {
    int64_t batch, head, row;
    uint32_t channel;
    int count;

    /* False: it has none. */
    __device__ __forceinline__ bool find(const td_shape &shape)
    {
        /* Divisions of 64 bits are hundreds of instructions. */
        return gridDim.x < (1u << 31) / TD_EIGHTS ? find_number(shape, blockIdx.x * TD_EIGHTS + threadIdx.x)
                                                  : find_number(shape, uint64_t(blockIdx.x) * TD_EIGHTS + threadIdx.x);
    }
    template <class Number> __device__ __forceinline__ bool find_number(const td_shape &shape, Number number)
    {
        const uint32_t each = (shape.channels + 7) / 8;
        const Number in_all = number / each, plane = in_all / shape.rows;

        row = int64_t(in_all % shape.rows);
        head = int64_t(plane % shape.heads);
        batch = int64_t(plane / shape.heads);
        channel = uint32_t(number % each) * 8;
        count = int(shape.channels - channel);
        return batch < shape.batch;
    }
};

/* Calls f with a pointer of the dtype's type to element (bh, 0, 0), and whether every eighth channel is 16-byte
 * aligned. */
template <class F> __device__ __forceinline__ void with_dtype(const td_tensor &x, int64_t bh, F f)
{
    const int64_t at = bh / x.heads * x.stride_batch + bh % x.heads * x.stride_head;

    if (x.dtype == TANDEM_DTYPE_F32) {
        const float *p = static_cast<const float *>(x.data) + at;
        f(p, ((uint64_t)p | (uint64_t)x.stride_row * 4) % 16 == 0);
    } else if (x.dtype == TANDEM_DTYPE_BF16) {
        const __nv_bfloat16 *p = static_cast<const __nv_bfloat16 *>(x.data) + at;
        f(p, ((uint64_t)p | (uint64_t)x.stride_row * 2) % 16 == 0);
    } else {
        const __half *p = static_cast<const __half *>(x.data) + at;
        f(p, ((uint64_t)p | (uint64_t)x.stride_row * 2) % 16 == 0);
    }
}

/* Writes channels c and c + 1 of a row, in one store where the address allows it. */
__device__ __forceinline__ void store_pair(const td_tensor &o, int64_t batch, int64_t head, int64_t row, int c,
                                           float x0, float x1)
{
    const int64_t at = batch * o.stride_batch + head * o.stride_head + row * o.stride_row + c;

    if (o.dtype == TANDEM_DTYPE_F32) {
        float *p = static_cast<float *>(o.data) + at;

        p[0] = x0;
        p[1] = x1;
        return;
    }
    uint32_t bits;
    if (o.dtype == TANDEM_DTYPE_BF16) {
        const __nv_bfloat162 pair = __halves2bfloat162(__float2bfloat16_rn(x0), __float2bfloat16_rn(x1));
        memcpy(&bits, &pair, sizeof bits);
    } else {
        const __half2 pair = __halves2half2(__float2half_rn(x0), __float2half_rn(x1));
        memcpy(&bits, &pair, sizeof bits);
    }
    uint16_t *p = static_cast<uint16_t *>(o.data) + at;
    if ((uint64_t)p % 4 == 0) {
        *reinterpret_cast<uint32_t *>(p) = bits;
    } else {
        p[0] = uint16_t(bits);
        p[1] = uint16_t(bits >> 16);
    }
}

/* Two elements of a type as a word. */
__device__ __forceinline__ uint32_t pack2(__half *, float x0, float x1)
{
    const __half2 pair = __floats2half2_rn(x0, x1);
    uint32_t bits;

    memcpy(&bits, &pair, sizeof bits);
    return bits;
}
__device__ __forceinline__ uint32_t pack2(__nv_bfloat16 *, float x0, float x1)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x0, x1);
    uint32_t bits;

    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

/* An element of a dtype, F16, BF16 or F32. */
__device__ __forceinline__ float load_one(const void *p, uint32_t dtype, int64_t at)
{
    return dtype == TANDEM_DTYPE_F32    ? static_cast<const float *>(p)[at]
           : dtype == TANDEM_DTYPE_BF16 ? to_float(static_cast<const __nv_bfloat16 *>(p)[at])
                                        : to_float(static_cast<const __half *>(p)[at]);
}

/* Eight elements of a dtype, F16, BF16 or F32, of which `count` exist (more: all); the others are 0, and are not written. */
template <class E> __device__ __forceinline__ void load_some(float (&x)[8], const E *p, int count)
{
    if (count >= 8 && uint64_t(p) % 16 == 0) {
        load8(x, p, true);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = i < count ? to_float(p[i]) : 0.0f;
}
__device__ __forceinline__ void load_some(float (&x)[8], const void *p, uint32_t dtype, int64_t at, int count)
{
    if (dtype == TANDEM_DTYPE_F32)
        load_some(x, static_cast<const float *>(p) + at, count);
    else if (dtype == TANDEM_DTYPE_BF16)
        load_some(x, static_cast<const __nv_bfloat16 *>(p) + at, count);
    else
        load_some(x, static_cast<const __half *>(p) + at, count);
}

__device__ __forceinline__ uint32_t pack_pair(bool bf16, float low, float high)
{
    uint32_t bits;

    if (bf16) {
        const __nv_bfloat162 pair = __halves2bfloat162(__float2bfloat16_rn(low), __float2bfloat16_rn(high));
        memcpy(&bits, &pair, sizeof bits);
        return bits;
    }
    return cvt_f16x2(high, low);
}

__device__ __forceinline__ void store_some(void *y, uint32_t dtype, int64_t at, int count, const float (&x)[8])
{
    if (dtype == TANDEM_DTYPE_F32) {
        float *p = static_cast<float *>(y) + at;

        if (count >= 8 && uint64_t(p) % 16 == 0) {
            reinterpret_cast<float4 *>(p)[0] = make_float4(x[0], x[1], x[2], x[3]);
            reinterpret_cast<float4 *>(p)[1] = make_float4(x[4], x[5], x[6], x[7]);
            return;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < count)
                p[i] = x[i];
        return;
    }
    uint16_t *p = static_cast<uint16_t *>(y) + at;
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        words[i] = pack_pair(dtype == TANDEM_DTYPE_BF16, x[2 * i], x[2 * i + 1]);
    if (count >= 8 && uint64_t(p) % 16 == 0) {
        *reinterpret_cast<uint4 *>(p) = make_uint4(words[0], words[1], words[2], words[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < count)
            p[i] = uint16_t(words[i / 2] >> 16 * (i % 2));
}

} // namespace td
