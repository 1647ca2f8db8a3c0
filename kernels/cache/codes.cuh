/* Codes of caches as numbers that tensor cores take: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include <string.h>

#include "kernels/cache/append.cuh"

namespace td {

enum class Codes { k8, k4, f16 };

/* Two codes of E4M3, in bytes 1 and 3 of a word, as fp16 that is 2^-8 times as large. */
__device__ __forceinline__ uint32_t spread_e4m3(uint32_t x)
{
    return (x & 0x80008000u) | (x >> 1 & 0x3f803f80u);
}

__device__ __forceinline__ __half2 half2_of(uint32_t bits)
{
    __half2 x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

__device__ __forceinline__ uint32_t bits_of(__half2 x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Eight neighbours of E5M3 as floats. */
__device__ __forceinline__ void load_scales(float (&to)[8], const uint8_t *from)
{
    const uint2 words = __ldg(reinterpret_cast<const uint2 *>(from));

#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t byte = (i < 4 ? words.x : words.y) >> i % 4 * 8 & 255;

        to[i] = scale_of(uint8_t(byte));
    }
}

} // namespace td
