/* The products of a warp: emu.h. Their rounding is kernels/attention/cpu/twin.c's.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Not in ptx.h, as kernels are compiled with few optimisations, and these are what they take their time for.
 */
#include <math.h>

#define _Alignas alignas
extern "C" {
#include "kernels/attention/cpu.h"
#include "kernels/target.h"
}
#include "tests/emu/operands.h" /* which asks for what is above */

namespace emu {

namespace {

/* A and B as rows and columns of 32 bytes. */
struct MmaTile {
    alignas(16) uint8_t a[16][32], b[8][32];

    explicit MmaTile(void *const *lanes)
    {
        for (int lane = 0; lane < 32; lane++) {
            const MmaLane &from = *static_cast<const MmaLane *>(lanes[lane]);
            const int g = lane / 4, byte = lane % 4 * 4;
            memcpy(&a[g][byte], &from.a[0], 4);
            memcpy(&a[g + 8][byte], &from.a[1], 4);
            memcpy(&a[g][16 + byte], &from.a[2], 4);
            memcpy(&a[g + 8][16 + byte], &from.a[3], 4);
            memcpy(&b[g][byte], &from.b[0], 4);
            memcpy(&b[g][16 + byte], &from.b[1], 4);
        }
    }
};

/* take(bytes, part) makes of a row or a column, once, what dot(row, column, c) multiplies to an element. */
template <class C, class Part, class Take, class Dot> void mma_tile(void *const *lanes, Take take, Dot dot)
{
    const MmaTile tile(lanes);
    Part rows[16], columns[8];

    for (int i = 0; i < 16; i++)
        take(tile.a[i], rows[i]);
    for (int i = 0; i < 8; i++)
        take(tile.b[i], columns[i]);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) {
            C *c = static_cast<C *>(static_cast<const MmaLane *>(lanes[lane])->c) + i;
            *c = dot(rows[lane / 4 + i / 2 * 8], columns[lane % 4 * 2 + i % 2], *c);
        }
}

/* A row's or column's elements as the sums take them. */
template <class T, int N> struct MmaPart {
    T x[N];
    bool finite;
};

/* Codes as half-words, of which vectors multiply and add two at a time. */
template <int N> struct Codes {
    int16_t x[N];

    int32_t times(const Codes &other, int32_t sum) const
    {
        for (int k = 0; k < N; k++)
            sum += x[k] * other.x[k];
        return sum;
    }
};

} // namespace

void mma_s8(void *const *lanes)
{
    using Part = Codes<32>;
    const auto take = [](const uint8_t *codes, Part &part) {
        for (int k = 0; k < 32; k++)
            part.x[k] = int8_t(codes[k]);
    };
    mma_tile<int, Part>(lanes, take, [](const Part &x, const Part &y, int sum) { return x.times(y, sum); });
}

void mma_s4(void *const *lanes)
{
    using Part = Codes<64>;
    const auto take = [](const uint8_t *codes, Part &part) {
        for (int k = 0; k < 64; k++)
            part.x[k] = int8_t(td_int4(codes[k / 2], k % 2));
    };
    mma_tile<int, Part>(lanes, take, [](const Part &x, const Part &y, int sum) { return x.times(y, sum); });
}

void mma_f16(void *const *lanes)
{
    using Part = MmaPart<td_twin_operand, 16>;
    const auto take = [](const uint8_t *bytes, Part &part) {
        uint16_t values[16];
        memcpy(values, bytes, sizeof values);
        part.finite = td_twin_apart_f16(values, part.x);
    };
    mma_tile<float, Part>(lanes, take, [](const Part &x, const Part &y, float sum) {
        return x.finite && y.finite ? td_twin_sum_f16(x.x, y.x, sum) : NAN;
    });
}

void mma_bf16(void *const *lanes)
{
    const auto take = [](const uint8_t *bytes, Numbers &part) {
        uint16_t values[16];
        memcpy(values, bytes, sizeof values);
        for (int i = 0; i < 16; i++)
            part.of[i] = double(td_from_bf16(values[i]));
    };
    mma_tile<float, Numbers>(lanes, take, [](const Numbers &x, const Numbers &y, float sum) {
        return float(double(sum) + x.times(y));
    });
}

template <uint32_t Accumulator> void mma_e4m3(void *const *lanes)
{
    using Part = MmaPart<td_twin_operand, 32>;
    const auto take = [](const uint8_t *codes, Part &part) { part.finite = td_twin_apart_e4m3(Accumulator, codes, part.x); };
    mma_tile<float, Part>(lanes, take, [](const Part &x, const Part &y, float sum) {
        return x.finite && y.finite ? td_twin_sum_e4m3(Accumulator, x.x, y.x, sum) : NAN;
    });
}
template void mma_e4m3<TD_ACCUMULATOR_ADA_MMA>(void *const *lanes);
template void mma_e4m3<TD_ACCUMULATOR_HOPPER_MMA>(void *const *lanes);
template void mma_e4m3<TD_ACCUMULATOR_BLACKWELL_MMA>(void *const *lanes);

} // namespace emu
