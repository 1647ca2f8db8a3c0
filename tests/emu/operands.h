/* What wgmma multiplies: where it lies in shared memory, and as numbers. Behind kernels/cpu/cpu.h, which is C.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_EMU_OPERANDS_H
#define TD_TESTS_EMU_OPERANDS_H

#include "tests/emu/emu.h"

namespace emu {

/* Byte `byte` of row `row` of an operand in shared memory; a row is one column of B, or one k of it (`by_k`). */
inline const uint8_t *operand_byte(uint64_t descriptor, unsigned row, unsigned byte, bool by_k, unsigned bytes)
{
    const uint32_t start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
    const uint32_t stride = (descriptor >> 32 & 0x3fff) << 4, mode = descriptor >> 62;
    uint32_t at;
    if (mode == 0) {
        at = start + row / 8 * stride + byte / 16 * leading + row % 8 * 16 + byte % 16;
    } else {
        const uint32_t width = 256u >> mode; /* 1: 128, 2: 64, 3: 32 */
        at = start + row / 8 * stride + row % 8 * width + (by_k ? byte / width * leading + byte % width : byte);
        at ^= (at >> 7 & (width / 16 - 1)) << 4;
    }
    return static_cast<const uint8_t *>(shared_pointer(at, bytes, bytes, "wgmma"));
}

inline float number(Type type, uint16_t bits)
{
    return type == Type::bf16 ? td_from_bf16(bits) : td_from_f16(bits);
}

/* Sixteen of a row or a column, and the sum of their products, four at a time. */
struct Numbers {
    typedef double Four __attribute__((vector_size(32)));
    union {
        double of[16];
        Four fours[4];
    };
    double times(const Numbers &other) const
    {
        Four sums = fours[0] * other.fours[0];
        for (int i = 1; i < 4; i++)
            sums += fours[i] * other.fours[i];
        return sums[0] + sums[1] + (sums[2] + sums[3]);
    }
};

} // namespace emu

#endif
