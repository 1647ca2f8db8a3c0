/* What the kernels use of CUDA's header of that name, for the emulator.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "tests/emu/builtins.h"

struct __half {
    uint16_t bits;
};
struct __half2 {
    __half low, high;
};

static inline float __half2float(__half x)
{
    return td_from_f16(x.bits);
}
static inline __half __float2half_rn(float x)
{
    return {td_to_f16(x)};
}
static inline __half __ushort_as_half(uint16_t x)
{
    return {x};
}
static inline float __low2float(__half2 x)
{
    return __half2float(x.low);
}
static inline float __high2float(__half2 x)
{
    return __half2float(x.high);
}
static inline __half2 __halves2half2(__half low, __half high)
{
    return {low, high};
}
static inline __half2 __floats2half2_rn(float low, float high)
{
    return {__float2half_rn(low), __float2half_rn(high)};
}
static inline __half2 __half2half2(__half x)
{
    return {x, x};
}
static inline __half2 __float2half2_rn(float x)
{
    return __floats2half2_rn(x, x);
}
static inline __half2 __hadd2_rn(__half2 a, __half2 b) /* float has 2 * 11 + 2 bits: rounded twice it is the same */
{
    return __floats2half2_rn(__half2float(a.low) + __half2float(b.low), __half2float(a.high) + __half2float(b.high));
}
static inline __half2 __hsub2(__half2 a, __half2 b) /* products are exact in float, differences of what is needed here, too */
{
    return __floats2half2_rn(__half2float(a.low) - __half2float(b.low), __half2float(a.high) - __half2float(b.high));
}
static inline __half2 __hmul2(__half2 a, __half2 b)
{
    return __floats2half2_rn(__half2float(a.low) * __half2float(b.low), __half2float(a.high) * __half2float(b.high));
}
static inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) /* rounded to float first */
{
    return __floats2half2_rn(fmaf(__half2float(a.low), __half2float(b.low), __half2float(c.low)),
                             fmaf(__half2float(a.high), __half2float(b.high), __half2float(c.high)));
}
static inline float2 __half22float2(__half2 x)
{
    return {__half2float(x.low), __half2float(x.high)};
}
