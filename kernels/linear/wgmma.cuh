/* Products of 64 rows by wgmma for `linear`, and TMA.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "kernels/cuda/ring.cuh"

#if TD_HAVE_WGMMA

namespace td {

#ifdef TD_PTX_HEADER
template <bool Bf16, int N> static inline void wgmma_linear(float (&c)[N], uint64_t a_shared, uint64_t b_shared, bool add)
{
    if (add)
        wgmma_qk<true, Bf16>(c, a_shared, b_shared);
    else
        wgmma_qk<false, Bf16>(c, a_shared, b_shared);
}
template <bool Bf16, int N>
static inline void wgmma_linear(float (&c)[N], const uint32_t (&a)[4], uint64_t b_shared, bool add)
{
    if (add)
        wgmma_qk<true, Bf16>(c, a, b_shared);
    else
        wgmma_qk<false, Bf16>(c, a, b_shared);
}
#else
#define TD_D_96 TD_D_80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define TD_D_112 TD_D_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define TD_D_128 TD_D_112 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define TD_X_96(c, x) TD_X_80(c, x), TD_X_16_AT(c, x, 80)
#define TD_X_112(c, x) TD_X_96(c, x), TD_X_16_AT(c, x, 96)
#define TD_X_128(c, x) TD_X_112(c, x), TD_X_16_AT(c, x, 112)

/* C = A B^T [+ C, if `add`] of 64 x n, k = 16: A and B in shared memory, a row being its k. Operands a, b, add_ stand behind the
 * `count` registers of C. */
#define TD_WGMMA_LINEAR_ONE(n, count, type, a, b, add_)                                                  \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #add_ ", 0; "                                        \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" TD_D_##count "}, %" #a \
                 ", %" #b ", p, 1, 1, 0, 0; }"                                                           \
                 : TD_X_##count("+f", c)                                                                 \
                 : "l"(a_shared), "l"(b_shared), "r"(uint32_t(add))                                      \
                 : "memory")
#define TD_WGMMA_LINEAR(n, count, a, b, add_)                                                                   \
    template <bool Bf16>                                                                                        \
    __device__ __forceinline__ void wgmma_linear(float (&c)[count], uint64_t a_shared, uint64_t b_shared,       \
                                                 bool add)                                                      \
    {                                                                                                           \
        if constexpr (Bf16)                                                                                     \
            TD_WGMMA_LINEAR_ONE(n, count, "bf16", a, b, add_);                                                  \
        else                                                                                                    \
            TD_WGMMA_LINEAR_ONE(n, count, "f16", a, b, add_);                                                   \
    }
TD_WGMMA_LINEAR(32, 16, 16, 17, 18)
TD_WGMMA_LINEAR(64, 32, 32, 33, 34)
TD_WGMMA_LINEAR(128, 64, 64, 65, 66)
TD_WGMMA_LINEAR(256, 128, 128, 129, 130)

/* The same with A in registers, a warp's 16 rows as mma's fragment, at operands a0 to a3. */
#define TD_WGMMA_LINEAR_A_ONE(n, count, type, a0, a1, a2, a3, b, add_)                                             \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #add_ ", 0; "                                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" TD_D_##count "}, {%" #a0     \
                 ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #b ", p, 1, 1, 0; }"                                            \
                 : TD_X_##count("+f", c)                                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_shared), "r"(uint32_t(add))                   \
                 : "memory")
#define TD_WGMMA_LINEAR_A(n, count, a0, a1, a2, a3, b, add_)                                                       \
    template <bool Bf16>                                                                                           \
    __device__ __forceinline__ void wgmma_linear(float (&c)[count], const uint32_t (&a)[4], uint64_t b_shared,     \
                                                 bool add)                                                         \
    {                                                                                                              \
        if constexpr (Bf16)                                                                                        \
            TD_WGMMA_LINEAR_A_ONE(n, count, "bf16", a0, a1, a2, a3, b, add_);                                      \
        else                                                                                                       \
            TD_WGMMA_LINEAR_A_ONE(n, count, "f16", a0, a1, a2, a3, b, add_);                                       \
    }
TD_WGMMA_LINEAR_A(64, 32, 32, 33, 34, 35, 36, 37)
TD_WGMMA_LINEAR_A(128, 64, 64, 65, 66, 67, 68, 69)
TD_WGMMA_LINEAR_A(256, 128, 128, 129, 130, 131, 132, 133)
#endif

/* Where a tile of rows of `Row` bytes lies, swizzled over as many, as wgmma wants to know it: its address must be aligned to 8
 * rows. */
template <int Row> __device__ __forceinline__ uint64_t linear_descriptor(uint32_t address)
{
    constexpr uint32_t swizzle = Row == 128 ? 1 : Row == 64 ? 2 : 3;

    return uint64_t(swizzle << 30 | 8 * Row >> 4) << 32 | 1u << 16 | address >> 4;
}

#ifndef TD_PTX_HEADER /* the emulator has no tensor maps */
/* A box of a matrix to shared memory; its bytes are counted at the barrier. */
__device__ __forceinline__ void tma_load(uint32_t to, const void *map, uint32_t barrier, int32_t x, int32_t y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];"
                 :
                 : "r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y)
                 : "memory");
}
__device__ __forceinline__ void tma_prefetch_map(const void *map)
{
    asm volatile("prefetch.tensormap [%0];" : : "l"(map) : "memory");
}
#endif

} // namespace td
#endif
