/* What the kernels use of CUDA's header of that name, for the emulator.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "tests/emu/builtins.h"

struct __nv_bfloat16 {
    uint16_t bits;
};
struct __nv_bfloat162 {
    __nv_bfloat16 low, high;
};

static inline float __bfloat162float(__nv_bfloat16 x)
{
    return td_from_bf16(x.bits);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return {td_to_bf16(x)};
}
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 low, __nv_bfloat16 high)
{
    return {low, high};
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high)
{
    return {__float2bfloat16_rn(low), __float2bfloat16_rn(high)};
}
