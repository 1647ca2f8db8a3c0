/* Reading GGUF's blocks of quantised weights (kernels/blocks.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "kernels/cuda/tensor.cuh"

namespace td {

__device__ __forceinline__ float block_half(uint32_t bits)
{
    return __half2float(__ushort_as_half(uint16_t(bits)));
}

/* Byte i of x as a float, less `less`. */
__device__ __forceinline__ float block_byte(uint32_t x, int i, float less)
{
    return __uint_as_float(__byte_perm(x, 0x4b000000u, 0x7440u + uint32_t(i))) - (8388608.0f + less);
}

/* Words that are aligned to two bytes. */
__device__ __forceinline__ uint32_t block_u16(const uint8_t *p)
{
    return __ldg(reinterpret_cast<const uint16_t *>(p));
}
__device__ __forceinline__ uint32_t block_u32(const uint8_t *p)
{
    return block_u16(p) | block_u16(p + 2) << 16;
}

/* Q4_K's and Q5_K's six bits of scale and minimum of sub-block j. */
__device__ __forceinline__ void block_q4_k_pair(const uint8_t *s, uint32_t j, uint32_t &scale, uint32_t &minimum)
{
    scale = j < 4 ? s[j] & 63u : (s[j + 4] & 15u) | s[j - 4] >> 6 << 4;
    minimum = j < 4 ? s[j + 4] & 63u : uint32_t(s[j + 4] >> 4) | s[j] >> 6 << 4;
}

/* Eight weights of a row of blocks, from a channel on that is a multiple of 8, as td_block_decode() has them. */
__device__ __forceinline__ void load_block8(float (&w)[8], const uint8_t *row, uint32_t dtype, uint32_t channel)
{
    uint32_t codes[2];
    float less = 0, scale, minimum = 0;

    if (dtype == TANDEM_DTYPE_Q4_K || dtype == TANDEM_DTYPE_Q5_K) {
        const bool five = dtype == TANDEM_DTYPE_Q5_K;
        const uint8_t *block = row + int64_t(channel / 256) * (five ? 176 : 144), *nibbles = block + (five ? 48 : 16);
        const uint32_t i = channel % 256;
        uint32_t scale_code, minimum_code;

        block_q4_k_pair(block + 4, i / 32, scale_code, minimum_code);
        scale = __fmul_rn(block_half(block_u16(block)), float(scale_code));
        minimum = __fmul_rn(block_half(block_u16(block + 2)), float(minimum_code));
#pragma unroll
        for (int k = 0; k < 2; k++)
            codes[k] = (block_u32(nibbles + i / 64 * 32 + i % 32 + 4 * k) >> i / 32 % 2 * 4 & 0x0f0f0f0fu) |
                       (five ? (block_u32(block + 16 + i % 32 + 4 * k) >> i / 32 & 0x01010101u) << 4 : 0);
    } else if (dtype == TANDEM_DTYPE_Q6_K) {
        const uint8_t *block = row + int64_t(channel / 256) * 210;
        const uint32_t i = channel % 256, half = i / 128, part = i % 128 / 32, l = i % 32;

        less = 32;
        scale = __fmul_rn(block_half(block_u16(block + 208)), float(int8_t(block[192 + i / 16])));
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t low = block_u32(block + half * 64 + part % 2 * 32 + l + 4 * k) >> part / 2 * 4;
            const uint32_t high = block_u32(block + 128 + half * 32 + l + 4 * k) >> part * 2;

            codes[k] = (low & 0x0f0f0f0fu) | (high & 0x03030303u) << 4;
        }
    } else if (dtype == TANDEM_DTYPE_Q8_0) {
        const uint8_t *block = row + int64_t(channel / 32) * 34;

        less = 128;
        scale = block_half(block_u16(block));
#pragma unroll
        for (int k = 0; k < 2; k++)
            codes[k] = block_u32(block + 2 + channel % 32 + 4 * k) ^ 0x80808080u;
    } else { /* Q4_0 and Q4_1 */
        const bool shifted = dtype == TANDEM_DTYPE_Q4_1;
        const uint8_t *block = row + int64_t(channel / 32) * (shifted ? 20 : 18), *nibbles = block + (shifted ? 4 : 2);

        less = shifted ? 0 : 8;
        scale = block_half(block_u16(block));
        minimum = shifted ? -block_half(block_u16(block + 2)) : 0;
#pragma unroll
        for (int k = 0; k < 2; k++)
            codes[k] = block_u32(nibbles + channel % 16 + 4 * k) >> channel % 32 / 16 * 4 & 0x0f0f0f0fu;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        w[i] = __fsub_rn(__fmul_rn(scale, block_byte(codes[i / 4], i % 4, less)), minimum);
}

} // namespace td
