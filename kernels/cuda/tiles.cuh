/* Reading weights that lie in tiles (kernels/tiles.h says how).
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Four threads share a row of a chunk; thread q of them has 16 bytes of each slab, which are eight weights of every 32: channels 8q to
 * 8q + 7, or where scales are of 16 channels (`apart`) 4q to 4q + 3 and those 16 further, so that one multiplication of 16 channels
 * meets one scale. load() takes what a thread has of row r, group() makes eight weights of the i-th 32 channels of it.
 */
#pragma once

#include "kernels/cuda/blocks.cuh"

namespace td {

/* Eight weights: bytes, less the format's `less`, times a scale, where `apart` one for each four, less the minimum. */
struct TileGroup {
    uint32_t codes[2];
    float scale[2], minimum;
};

template <int Dtype> struct TileRow;

__device__ __forceinline__ uint32_t tile_word(const uint8_t *at)
{
    return __ldg(reinterpret_cast<const uint32_t *>(at));
}
/* 16 bytes that nobody here reads again: where that can be said, what is read again stays in L1. */
__device__ __forceinline__ uint4 tile_words(const uint8_t *at)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    uint32_t x[4];

    load_once_or_zeros(InL2{}, x, reinterpret_cast<const uint16_t *>(at), true);
    return make_uint4(x[0], x[1], x[2], x[3]);
#else
    return __ldg(reinterpret_cast<const uint4 *>(at));
#endif
}

/* Eight bytes of a slab's 16. */
__device__ __forceinline__ void tile_pick(uint32_t (&codes)[2], const uint4 &slab, int second)
{
    codes[0] = second ? slab.z : slab.x;
    codes[1] = second ? slab.w : slab.y;
}

/* The slab of the i-th 32 channels. */
__device__ __forceinline__ uint4 tile_slab(const uint4 (&slabs)[2], int i)
{
    const bool second = i >= 4;

    return make_uint4(second ? slabs[1].x : slabs[0].x, second ? slabs[1].y : slabs[0].y, second ? slabs[1].z : slabs[0].z,
                      second ? slabs[1].w : slabs[0].w);
}

/* Of four groups in the nibbles of a slab's bytes the i-th. */
__device__ __forceinline__ void tile_nibbles(uint32_t (&codes)[2], const uint4 &slab, int i)
{
    tile_pick(codes, slab, i / 2);
#pragma unroll
    for (int k = 0; k < 2; k++)
        codes[k] = codes[k] >> i % 2 * 4 & 0x0f0f0f0fu;
}

template <> struct TileRow<TANDEM_DTYPE_Q8_0_TILES> {
    static constexpr int channels = 64, bytes = 16 * 68, less = 128;
    static constexpr bool has_minimum = false, apart = false;
    uint4 codes;
    uint32_t scales;

    /* Where in a chunk those are. */
    __device__ __forceinline__ static uint32_t slab_at(uint32_t r, int q) { return 64 * r + 16 * q; }
    __device__ __forceinline__ static uint32_t scale_at(uint32_t r) { return 1024 + 4 * r; }
    __device__ __forceinline__ void load(const uint8_t *chunk, uint32_t r, int q)
    {
        codes = tile_words(chunk + slab_at(r, q));
        scales = tile_word(chunk + scale_at(r));
    }
    __device__ __forceinline__ void group(TileGroup &to, int i) const
    {
        tile_pick(to.codes, codes, i);
        to.scale[0] = block_half(scales >> 16 * i);
    }
};

template <> struct TileRow<TANDEM_DTYPE_Q4_0_TILES> {
    static constexpr int channels = 128, bytes = 16 * 72, less = 8;
    static constexpr bool has_minimum = false, apart = false;
    uint4 codes;
    uint2 scales;

    __device__ __forceinline__ void load(const uint8_t *chunk, uint32_t r, int q)
    {
        codes = tile_words(chunk + 64 * r + 16 * q);
        scales = __ldg(reinterpret_cast<const uint2 *>(chunk + 1024 + 8 * r));
    }
    __device__ __forceinline__ void group(TileGroup &to, int i) const
    {
        tile_nibbles(to.codes, codes, i);
        to.scale[0] = block_half((i / 2 ? scales.y : scales.x) >> i % 2 * 16);
    }
};

template <> struct TileRow<TANDEM_DTYPE_Q4_1_TILES> {
    static constexpr int channels = 128, bytes = 16 * 80, less = 0;
    static constexpr bool has_minimum = true, apart = false;
    uint4 codes, scales;

    __device__ __forceinline__ void load(const uint8_t *chunk, uint32_t r, int q)
    {
        codes = tile_words(chunk + 64 * r + 16 * q);
        scales = tile_words(chunk + 1024 + 16 * r);
    }
    __device__ __forceinline__ void group(TileGroup &to, int i) const
    {
        const uint32_t pair = i == 0 ? scales.x : i == 1 ? scales.y : i == 2 ? scales.z : scales.w;

        tile_nibbles(to.codes, codes, i);
        to.scale[0] = block_half(pair);
        to.minimum = -block_half(pair >> 16);
    }
};

/* Q4_K's and Q5_K's scale and minimum of sub-block i, of a block's first 16 bytes: four of each are taken apart at once. */
__device__ __forceinline__ void tile_k_scale(TileGroup &to, const uint4 &head, int i)
{
    const uint32_t scales = i < 4 ? head.y & 0x3f3f3f3fu : (head.w & 0x0f0f0f0fu) | (head.y >> 2 & 0x30303030u);
    const uint32_t minima = i < 4 ? head.z & 0x3f3f3f3fu : (head.w >> 4 & 0x0f0f0f0fu) | (head.z >> 2 & 0x30303030u);

    to.scale[0] = __fmul_rn(block_half(head.x), block_byte(scales, i % 4, 0.0f));
    to.minimum = __fmul_rn(block_half(head.x >> 16), block_byte(minima, i % 4, 0.0f));
}

template <> struct TileRow<TANDEM_DTYPE_Q4_K_TILES> {
    static constexpr int channels = 256, bytes = 16 * 144, less = 0;
    static constexpr bool has_minimum = true, apart = false;
    uint4 codes[2], head;

    __device__ __forceinline__ void load(const uint8_t *chunk, uint32_t r, int q)
    {
        codes[0] = tile_words(chunk + 64 * r + 16 * q);
        codes[1] = tile_words(chunk + 1024 + 64 * r + 16 * q);
        head = tile_words(chunk + 2048 + 16 * r);
    }
    __device__ __forceinline__ void group(TileGroup &to, int i) const
    {
        tile_nibbles(to.codes, tile_slab(codes, i), i % 4);
        tile_k_scale(to, head, i);
    }
};

template <> struct TileRow<TANDEM_DTYPE_Q5_K_TILES> {
    static constexpr int channels = 256, bytes = 16 * 176, less = 0;
    static constexpr bool has_minimum = true, apart = false;
    uint4 codes[2], head;
    uint2 high;

    __device__ __forceinline__ void load(const uint8_t *chunk, uint32_t r, int q)
    {
        codes[0] = tile_words(chunk + 64 * r + 16 * q);
        codes[1] = tile_words(chunk + 1024 + 64 * r + 16 * q);
        high = __ldg(reinterpret_cast<const uint2 *>(chunk + 2048 + 32 * r + 8 * q));
        head = tile_words(chunk + 2560 + 16 * r);
    }
    __device__ __forceinline__ void group(TileGroup &to, int i) const
    {
        tile_nibbles(to.codes, tile_slab(codes, i), i % 4);
        to.codes[0] |= (high.x >> i & 0x01010101u) << 4;
        to.codes[1] |= (high.y >> i & 0x01010101u) << 4;
        tile_k_scale(to, head, i);
    }
};

template <> struct TileRow<TANDEM_DTYPE_Q6_K_TILES> {
    static constexpr int channels = 256, bytes = 16 * 210, less = 32;
    static constexpr bool has_minimum = false, apart = true;
    uint4 codes[2], high, scales;
    uint32_t all;

    __device__ __forceinline__ void load(const uint8_t *chunk, uint32_t r, int q)
    {
        codes[0] = tile_words(chunk + 64 * r + 16 * q);
        codes[1] = tile_words(chunk + 1024 + 64 * r + 16 * q);
        high = tile_words(chunk + 2048 + 64 * r + 16 * q);
        scales = tile_words(chunk + 3072 + 16 * r);
        all = block_u16(chunk + 3328 + 2 * r);
    }
    __device__ __forceinline__ void group(TileGroup &to, int i) const
    {
        const uint32_t word = i / 2 == 0 ? scales.x : i / 2 == 1 ? scales.y : i / 2 == 2 ? scales.z : scales.w;
        const float scale = block_half(all);
        uint32_t bits[2];

        tile_nibbles(to.codes, tile_slab(codes, i), i % 4);
        tile_pick(bits, high, i / 4);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            to.codes[k] |= (bits[k] >> 2 * (i % 4) & 0x03030303u) << 4;
            to.scale[k] = __fmul_rn(scale, float(int8_t(word >> (i % 2 * 16 + 8 * k))));
        }
    }
};

/* Four weights. */
__device__ __forceinline__ void tile_decode4(float *w, uint32_t codes, float less, float scale, float minimum)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        w[k] = __fsub_rn(__fmul_rn(scale, block_byte(codes, k, less)), minimum);
}

/* Eight weights of row r of a chunk, from a channel on that is a multiple of 8. */
template <int Dtype> __device__ __forceinline__ void tile_load8(float (&w)[8], const uint8_t *chunk, uint32_t r, uint32_t channel)
{
    using Row = TileRow<Dtype>;

#pragma unroll
    for (int k = 0; k < 2; k++) {
        const uint32_t within = channel % 32 + 4 * k, half = Row::apart ? within / 16 : within / 4 % 2;
        TileGroup eight = {};
        Row row;

        row.load(chunk, r, int(Row::apart ? within % 16 / 4 : within / 8));
#pragma unroll
        for (int i = 0; i < Row::channels / 32; i++)
            if (int(channel / 32) == i)
                row.group(eight, i);
        tile_decode4(w + 4 * k, half ? eight.codes[1] : eight.codes[0], Row::less,
                     Row::apart && half ? eight.scale[1] : eight.scale[0], eight.minimum);
    }
}

/* The same of a row of a whole table, whose rows have so many bytes. */
template <int Dtype>
__device__ __forceinline__ void tile_load8(float (&w)[8], const uint8_t *table, int64_t row_bytes, uint32_t row, uint32_t channel)
{
    constexpr uint32_t channels = TileRow<Dtype>::channels;

    tile_load8<Dtype>(w, table + row / 16 * 16 * row_bytes + channel / channels * TileRow<Dtype>::bytes, row % 16, channel % channels);
}

} // namespace td
