/* CUDA C++ as a host's compiler sees it: the qualifiers, variables and functions that the kernels use, and no others.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define _Alignas alignas
extern "C" {
#include "kernels/attention/cpu.h"
#include "kernels/target.h"
}
#include "tests/emu/emu.h"

#define __global__ __attribute__((visibility("default"))) /* tests/kernels/test_kernels.c finds them by name */
#define __device__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static thread_local /* emu.cpp gives each block its own copy of the module's */

using emu::blockDim, emu::blockIdx, emu::gridDim, emu::threadIdx;

struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline uint2 make_uint2(uint32_t x, uint32_t y)
{
    return {x, y};
}
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return {x, y, z, w};
}
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

template <class T> static inline T min(T a, T b)
{
    return b < a ? b : a;
}
template <class T> static inline T max(T a, T b)
{
    return a < b ? b : a;
}

/* Built with -ffp-contract=off: what is written as two operations is rounded twice. */
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __fdividef(float a, float b) /* that one may be 2 units off */
{
    return a / b;
}
#define __log2f log2f /* that one may be 2^-22 off; math.h has the name, too */
static inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
static inline float __frcp_rn(float a)
{
    return 1 / a;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline float __int2float_rn(int x)
{
    return float(x);
}
static inline float __int2float_rz(int x)
{
    const float near = float(x);
    return fabs(double(near)) > fabs(double(x)) ? nextafterf(near, 0) : near;
}
static inline uint32_t __float_as_uint(float x)
{
    return td_bits(x);
}
static inline float __uint_as_float(uint32_t x)
{
    return td_float(x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}
static inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selectors)
{
    const uint64_t bytes = uint64_t(high) << 32 | low;
    uint32_t d = 0;
    for (int i = 0; i < 4; i++)
        d |= uint32_t(bytes >> (selectors >> 4 * i & 7) * 8 & 255) << 8 * i;
    return d;
}
static inline uint32_t __vmaxu2(uint32_t a, uint32_t b)
{
    return max(a & 0xffffu, b & 0xffffu) | max(a >> 16, b >> 16) << 16;
}
template <class T> static inline T __ldg(const T *p)
{
    if (uintptr_t(p) % sizeof(T))
        emu::fail("a load of %u bytes from %p, which is no multiple of that", unsigned(sizeof(T)), static_cast<const void *>(p));
    return *p;
}
template <class T> static inline T __ldcg(const T *p)
{
    return *p;
}

/* Of the warp and of the block. All masks of the kernels are whole warps. */
template <class T> static inline T __shfl_sync(unsigned, T x, int from)
{
    return emu::shuffle(x, from % 32, "shfl");
}
template <class T> static inline T __shfl_xor_sync(unsigned, T x, int mask)
{
    return emu::shuffle(x, int(threadIdx.x % 32) ^ mask, "shfl.xor");
}
static inline unsigned __reduce_max_sync(unsigned mask, unsigned x)
{
    for (int step = 16; step; step /= 2)
        x = max(x, __shfl_xor_sync(mask, x, step));
    return x;
}
static inline unsigned __reduce_or_sync(unsigned mask, unsigned x)
{
    for (int step = 16; step; step /= 2)
        x |= __shfl_xor_sync(mask, x, step);
    return x;
}
static inline unsigned __ballot_sync(unsigned, bool x)
{
    return emu::vote(x);
}
static inline bool __any_sync(unsigned, bool x)
{
    return emu::vote(x) != 0;
}
static inline bool __all_sync(unsigned, bool x)
{
    return emu::vote(x) == ~0u;
}
static inline void __syncwarp()
{
    emu::vote(true);
}
static inline void __syncthreads()
{
    emu::barrier(0, 0, true, true);
}
static inline int __syncthreads_or(int x)
{
    return emu::barrier(0, 0, true, x != 0).any;
}
static inline int __syncthreads_and(int x)
{
    return emu::barrier(0, 0, true, x != 0).all;
}
[[noreturn]] static inline void __trap()
{
    emu::fail("trap");
}
static inline void __threadfence()
{
    emu::maybe_yield();
}
static inline void __threadfence_system()
{
    emu::maybe_yield();
}
template <class T> static inline T emu_atomic(T *p, T next)
{
    const T old = *p;
    *p = next;
    emu::maybe_yield();
    return old;
}
static inline unsigned atomicAdd(unsigned *p, unsigned x)
{
    return emu_atomic(p, *p + x);
}
static inline unsigned atomicMax(unsigned *p, unsigned x)
{
    return emu_atomic(p, max(*p, x));
}
static inline int atomicMin(int *p, int x)
{
    return emu_atomic(p, min(*p, x));
}
