/* Weights as they lie in memory, made into those that tensor cores multiply (params.h says which bits).
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A step is 32 weights of a row for each of `groups` groups, which four threads share: each has eight of every 32. Thread q has
 * channels 8q to 8q + 7 of a group; where blocks have two in a byte that are 16 apart (`apart`), 4q to 4q + 3 and those 16 further.
 * load() reads a thread's words, get() makes a group of them.
 */
#pragma once

#include "kernels/cuda/blocks.cuh"
#include "kernels/linear/epilogue.cuh"

namespace td {

/* Bytes i and i + 1 of x, less `less`, as exact fp16. */
__device__ __forceinline__ __half2 linear_byte_pair(uint32_t x, int i, float less)
{
    const uint32_t bits = __byte_perm(x, 0x64646464u, 0x4140u + uint32_t(i) * 0x0101u);
    __half2 h;

    memcpy(&h, &bits, sizeof h);
    return __hsub2(h, __float2half2_rn(1024.0f + less));
}

/* Four bytes of x, less `less`, times `scale` (an fp16 number): exact products, rounded once. */
template <bool Bf16>
__device__ __forceinline__ void linear_scaled(uint32_t (&w)[2], uint32_t x, float less, uint32_t scale)
{
    if constexpr (Bf16) {
        const float s = block_half(scale);

        w[0] = pack_pair(true, s * block_byte(x, 0, less), s * block_byte(x, 1, less));
        w[1] = pack_pair(true, s * block_byte(x, 2, less), s * block_byte(x, 3, less));
    } else {
        const __half2 s = __half2half2(__ushort_as_half(uint16_t(scale)));
        const __half2 low = __hmul2(linear_byte_pair(x, 0, less), s), high = __hmul2(linear_byte_pair(x, 2, less), s);

        memcpy(&w[0], &low, 4);
        memcpy(&w[1], &high, 4);
    }
}

/* Four bytes of x, less `less`, times `scale`, less `minimum`. Scales have at most 18 bits and bytes six, so products are exact
 * and one instruction rounds like two. */
template <bool Bf16>
__device__ __forceinline__ void linear_shifted(uint32_t (&w)[2], uint32_t x, float less, float scale, float minimum)
{
    float y[4];

#pragma unroll
    for (int i = 0; i < 4; i++)
        y[i] = __fmaf_rn(scale, block_byte(x, i, less), -minimum);
    w[0] = pack_pair(Bf16, y[0], y[1]);
    w[1] = pack_pair(Bf16, y[2], y[3]);
}

template <bool Bf16>
__device__ __forceinline__ void linear_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if constexpr (Bf16)
        mma_bf16(c, a, b0, b1);
    else
        mma_f16(c, a, b0, b1);
}

/* Four bytes of x, less `less`, exactly. */
template <bool Bf16> __device__ __forceinline__ void linear_whole(uint32_t (&w)[2], uint32_t x, float less)
{
    const __half2 pairs[2] = {linear_byte_pair(x, 0, less), linear_byte_pair(x, 2, less)};

    memcpy(w, pairs, sizeof w);
    if constexpr (Bf16)
#pragma unroll
        for (int i = 0; i < 2; i++)
            w[i] = pack_pair(true, __low2float(pairs[i]), __high2float(pairs[i]));
}

/* How words of weights are read, aligned to two bytes: from w itself, or from what was copied of it to shared memory. */
struct LinearGlobal {
    __device__ __forceinline__ static uint32_t u16(const uint8_t *p) { return block_u16(p); }
};
struct LinearShared {
    __device__ __forceinline__ static uint32_t u16(const uint8_t *p) { return *reinterpret_cast<const uint16_t *>(p); }
    __device__ __forceinline__ static uint32_t u32(const uint8_t *p) { return u16(p) | u16(p + 2) << 16; }
};

template <int Weights> struct LinearWeights;

/* These need no decoding. */
template <> struct LinearWeights<TD_LINEAR_DENSE> {
    static constexpr int groups = 1, words = 4;
};

template <> struct LinearWeights<TD_LINEAR_INT8> {
    static constexpr int groups = 1, words = 2;
    static constexpr bool apart = false;

    __device__ __forceinline__ static void load(uint32_t (&raw)[words], const uint8_t *row, uint32_t step, int q, bool there)
    {
        const uint2 *at = reinterpret_cast<const uint2 *>(row + step * 32 + q * 8);
        uint2 x = make_uint2(0, 0);

        if (there)
            x = __ldg(at);
        raw[0] = x.x, raw[1] = x.y;
    }
    template <bool Bf16> __device__ __forceinline__ static void get(uint32_t (&w)[4], const uint32_t (&raw)[words], int)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t pair[2];

            linear_scaled<Bf16>(pair, raw[i] ^ 0x80808080u, 128.0f, 0x3c00u);
            w[2 * i] = pair[0], w[2 * i + 1] = pair[1];
        }
    }
};

template <> struct LinearWeights<TD_LINEAR_Q8_0> {
    static constexpr int groups = 1, words = 3;
    static constexpr bool apart = false;

    __device__ __forceinline__ static void load(uint32_t (&raw)[words], const uint8_t *row, uint32_t step, int q, bool there)
    {
        const uint8_t *block = row + step * 34;

        raw[0] = there ? block_u16(block) : 0;
        raw[1] = there ? block_u32(block + 2 + 8 * q) : 0;
        raw[2] = there ? block_u32(block + 6 + 8 * q) : 0;
    }
    template <bool Bf16> __device__ __forceinline__ static void get(uint32_t (&w)[4], const uint32_t (&raw)[words], int)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t pair[2];

            linear_scaled<Bf16>(pair, raw[1 + i] ^ 0x80808080u, 128.0f, raw[0]);
            w[2 * i] = pair[0], w[2 * i + 1] = pair[1];
        }
    }
};

template <> struct LinearWeights<TD_LINEAR_Q4_0> {
    static constexpr int groups = 1, words = 2;
    static constexpr bool apart = true;

    __device__ __forceinline__ static void load(uint32_t (&raw)[words], const uint8_t *row, uint32_t step, int q, bool there)
    {
        const uint8_t *block = row + step * 18;

        raw[0] = there ? block_u16(block) : 0;
        raw[1] = there ? block_u32(block + 2 + 4 * q) : 0;
    }
    template <bool Bf16> __device__ __forceinline__ static void get(uint32_t (&w)[4], const uint32_t (&raw)[words], int)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t pair[2];

            linear_scaled<Bf16>(pair, raw[1] >> 4 * i & 0x0f0f0f0fu, 8.0f, raw[0]);
            w[2 * i] = pair[0], w[2 * i + 1] = pair[1];
        }
    }
};

template <> struct LinearWeights<TD_LINEAR_Q4_1> {
    static constexpr int groups = 1, words = 2;
    static constexpr bool apart = true;

    __device__ __forceinline__ static void load(uint32_t (&raw)[words], const uint8_t *row, uint32_t step, int q, bool there)
    {
        const uint8_t *block = row + step * 20;

        raw[0] = there ? block_u32(block) : 0;
        raw[1] = there ? block_u32(block + 4 + 4 * q) : 0;
    }
    template <bool Bf16> __device__ __forceinline__ static void get(uint32_t (&w)[4], const uint32_t (&raw)[words], int)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t pair[2];

            linear_shifted<Bf16>(pair, raw[1] >> 4 * i & 0x0f0f0f0fu, 0.0f, block_half(raw[0]), -block_half(raw[0] >> 16));
            w[2 * i] = pair[0], w[2 * i + 1] = pair[1];
        }
    }
};

/* Of Q4_K and Q5_K: six bits each of scale and minimum, for two sub-blocks: scales in bytes 0 and 1, minima in 2 and 3. */
template <class Read> __device__ __forceinline__ uint32_t linear_k_scales(const uint8_t *scales, uint32_t pair)
{
    const uint32_t at = 2 * (pair % 2);
    const uint32_t low = Read::u16(scales + at), mid = Read::u16(scales + 4 + at), high = Read::u16(scales + 8 + at);

    return pair < 2 ? (low & 0x3f3fu) | (mid & 0x3f3fu) << 16
                    : (high & 0x0f0fu) | (low & 0xc0c0u) >> 2 | ((high & 0xf0f0u) >> 4 | (mid & 0xc0c0u) >> 2) << 16;
}

template <> struct LinearWeights<TD_LINEAR_Q4_K> {
    static constexpr int groups = 2, words = 5;
    static constexpr bool apart = false;

    __device__ __forceinline__ static void load(uint32_t (&raw)[words], const uint8_t *row, uint32_t step, int q, bool there)
    {
        const uint8_t *block = row + step / 4 * 144;
        const uint32_t pair = step % 4; /* of sub-blocks */

#pragma unroll
        for (int i = 0; i < words; i++)
            raw[i] = 0;
        if (!there)
            return;
        raw[0] = block_u32(block);
        raw[1] = linear_k_scales<LinearGlobal>(block + 4, pair);
        raw[2] = block_u32(block + 16 + 32 * pair + 8 * q);
        raw[3] = block_u32(block + 20 + 32 * pair + 8 * q);
        raw[4] = 0;
    }
    template <bool Bf16> __device__ __forceinline__ static void get(uint32_t (&w)[4], const uint32_t (&raw)[words], int group)
    {
        const float scale = __fmul_rn(block_half(raw[0]), block_byte(raw[1], group, 0.0f));
        const float minimum = __fmul_rn(block_half(raw[0] >> 16), block_byte(raw[1], 2 + group, 0.0f));

#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t pair[2];

            linear_shifted<Bf16>(pair, raw[2 + i] >> 4 * group & 0x0f0f0f0fu, 0.0f, scale, minimum);
            w[2 * i] = pair[0], w[2 * i + 1] = pair[1];
        }
    }
};

template <> struct LinearWeights<TD_LINEAR_Q5_K> {
    static constexpr int groups = 2, words = 6;
    static constexpr bool apart = false;

    __device__ __forceinline__ static void load(uint32_t (&raw)[words], const uint8_t *row, uint32_t step, int q, bool there)
    {
        const uint8_t *block = row + step / 4 * 176;
        const uint32_t pair = step % 4; /* of sub-blocks */

#pragma unroll
        for (int i = 0; i < words; i++)
            raw[i] = 0;
        if (!there)
            return;
        raw[0] = block_u32(block);
        raw[1] = linear_k_scales<LinearGlobal>(block + 4, pair);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            raw[2 + i] = block_u32(block + 48 + 32 * pair + 8 * q + 4 * i);
            raw[4 + i] = block_u32(block + 16 + 8 * q + 4 * i) >> 2 * pair; /* a bit for each sub-block */
        }
    }
    template <bool Bf16> __device__ __forceinline__ static void get(uint32_t (&w)[4], const uint32_t (&raw)[words], int group)
    {
        const float scale = __fmul_rn(block_half(raw[0]), block_byte(raw[1], group, 0.0f));
        const float minimum = __fmul_rn(block_half(raw[0] >> 16), block_byte(raw[1], 2 + group, 0.0f));

#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t low = raw[2 + i] >> 4 * group & 0x0f0f0f0fu, high = (raw[4 + i] >> group & 0x01010101u) << 4;
            uint32_t pair[2];

            linear_shifted<Bf16>(pair, low | high, 0.0f, scale, minimum);
            w[2 * i] = pair[0], w[2 * i + 1] = pair[1];
        }
    }
};

template <> struct LinearWeights<TD_LINEAR_Q6_K> {
    static constexpr int groups = 4, words = 8;
    static constexpr bool apart = false;

    __device__ __forceinline__ static void load(uint32_t (&raw)[words], const uint8_t *row, uint32_t step, int q, bool there)
    {
        const uint8_t *block = row + step / 2 * 210;
        const uint32_t half = step % 2;

#pragma unroll
        for (int i = 0; i < words; i++)
            raw[i] = 0;
        if (!there)
            return;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            raw[i] = block_u32(block + 64 * half + 8 * q + 4 * i);
            raw[2 + i] = block_u32(block + 64 * half + 32 + 8 * q + 4 * i);
            raw[4 + i] = block_u32(block + 128 + 32 * half + 8 * q + 4 * i);
        }
        const uint8_t *scales = block + 192 + 8 * half + q / 2; /* this thread's: of 16 channels each, every second */
        raw[6] = __ldg(scales) | __ldg(scales + 2) << 8 | __ldg(scales + 4) << 16 | __ldg(scales + 6) << 24;
        raw[7] = block_u16(block + 208);
    }
    template <bool Bf16> __device__ __forceinline__ static void get(uint32_t (&w)[4], const uint32_t (&raw)[words], int group)
    {
        const float scale = __fmul_rn(block_half(raw[7]), block_byte(raw[6] ^ 0x80808080u, group, 128.0f));

#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t low = (group % 2 ? raw[2 + i] : raw[i]) >> group / 2 * 4 & 0x0f0f0f0fu;
            const uint32_t high = raw[4 + i] >> 2 * group << 4 & 0x30303030u;
            uint32_t pair[2];

            linear_shifted<Bf16>(pair, low | high, 32.0f, scale, 0.0f);
            w[2 * i] = pair[0], w[2 * i + 1] = pair[1];
        }
    }
};

} // namespace td
