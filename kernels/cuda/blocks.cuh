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

} // namespace td
