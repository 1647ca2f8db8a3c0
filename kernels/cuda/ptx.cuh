/* PTX, one instruction a function. Nothing else in these kernels is assembly.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Fragments of mma.m16n8 (g = lane / 4, q = lane % 4; "bytes" are those of one row of A or one column of B):
 *
 *   A  16 rows x 32 bytes    a0: row g, bytes 4q..         a1: row g + 8, bytes 4q..
 *                            a2: row g, bytes 16 + 4q..    a3: row g + 8, bytes 16 + 4q..
 *   B  8 columns x 32 bytes  b0: column g, bytes 4q..      b1: column g, bytes 16 + 4q..
 *   C  16 rows x 8 columns   c0, c1: row g, columns 2q and 2q + 1    c2, c3: row g + 8, likewise
 *
 * That holds for int4 (k = 64), int8 and e4m3 (k = 32) and fp16 (k = 16) alike, so loads do not care about the type.
 */
#pragma once

#include <stdint.h>

#ifdef TD_PTX_HEADER /* built for a host (tests/emu): the same functions, emulated */
#include TD_PTX_HEADER
#else

/* The shared memory that the launch asks for, in bytes from an aligned address. */
#define TD_DYNAMIC_SHARED(alignment, name) extern __shared__ __align__(alignment) uint8_t name[]

namespace td {

constexpr bool kAllDump = false; /* whether all of wgmma's kernels have dumps, as they do on the emulator */

/* Whether the host has given the job up; the same answer for all threads of the block, which all must ask. */
__device__ __forceinline__ bool cancelled(const uint32_t *word)
{
    return word && __syncthreads_or(threadIdx.x == 0 && *(const volatile uint32_t *)word);
}

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return uint32_t(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void mma_s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Int4, the lower channel in the lower half of a byte: native on sm_80 to sm_89, else made of many instructions. */
__device__ __forceinline__ void mma_s4(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#if __CUDA_ARCH__ >= 890
#define TD_HAVE_E4M3 1

__device__ __forceinline__ void mma_e4m3(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two floats to e4m3, saturating to 448, NaN to 0x7f; `low` in the low byte. */
__device__ __forceinline__ uint16_t cvt_e4m3x2(float high, float low)
{
    uint16_t d;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(high), "f"(low));
    return d;
}
#else
#define TD_HAVE_E4M3 0
#endif

__device__ __forceinline__ uint32_t cvt_f16x2(float high, float low)
{
    uint32_t d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

__device__ __forceinline__ float ex2(float x)
{
    float d;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
    return d;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TD_HAVE_WGMMA 1

/* A: 64 rows x 32 codes, 16 rows a warp in mma's fragment; B: 8 columns x 32 codes in shared memory. */
__device__ __forceinline__ void wgmma_m64n8k32_e4m3(uint32_t (&c)[2], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e4m3 {%0,%1}, {%2,%3,%4,%5}, %6, 1, 1, 1;"
                 : "+r"(c[0]), "+r"(c[1])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
                 : "memory");
}

__device__ __forceinline__ void wgmma_m64n8k32_e4m3(float (&c)[4], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1;"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
                 : "memory");
}

__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}

template <int Pending> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(Pending) : "memory");
}

/* What threads wrote to shared memory becomes visible to wgmma. */
__device__ __forceinline__ void fence_proxy_async()
{
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

/* Operand lists: TD_D_n names registers %0 to %n-1, TD_X_n(c, x) are n elements of x with the constraint c. */
#define TD_D_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define TD_D_32 TD_D_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TD_D_48 TD_D_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define TD_D_64 TD_D_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define TD_D_10 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9"
#define TD_D_18 TD_D_16 ",%16,%17"
#define TD_D_26 TD_D_18 ",%18,%19,%20,%21,%22,%23,%24,%25"
#define TD_D_34 TD_D_32 ",%32,%33"
#define TD_X_AT(c, x, i) c((x)[i]), c((x)[i + 1]), c((x)[i + 2]), c((x)[i + 3])
#define TD_X_16_AT(c, x, i) TD_X_AT(c, x, i), TD_X_AT(c, x, i + 4), TD_X_AT(c, x, i + 8), TD_X_AT(c, x, i + 12)
#define TD_X_16(c, x) TD_X_16_AT(c, x, 0)
#define TD_X_32(c, x) TD_X_16(c, x), TD_X_16_AT(c, x, 16)
#define TD_X_2_AT(c, x, i) c((x)[i]), c((x)[i + 1])
#define TD_X_10(c, x) TD_X_AT(c, x, 0), TD_X_AT(c, x, 4), TD_X_2_AT(c, x, 8)
#define TD_X_18(c, x) TD_X_16(c, x), TD_X_2_AT(c, x, 16)
#define TD_X_26(c, x) TD_X_18(c, x), TD_X_AT(c, x, 18), TD_X_AT(c, x, 22)
#define TD_X_34(c, x) TD_X_32(c, x), TD_X_2_AT(c, x, 32)
#define TD_X_48(c, x) TD_X_32(c, x), TD_X_16_AT(c, x, 32)
#define TD_X_64(c, x) TD_X_48(c, x), TD_X_16_AT(c, x, 48)

/* C = A B^T [+ C] of 64 x 64, k = 32: int8, A and B in shared memory (descriptors). */
template <bool Add>
__device__ __forceinline__ void wgmma_s8(int (&c)[32], uint64_t a_shared, uint64_t b_shared)
{
    if constexpr (Add)
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {" TD_D_32 "}, %32, %33, 1;"
                     : TD_X_32("+r", c)
                     : "l"(a_shared), "l"(b_shared)
                     : "memory");
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {" TD_D_32 "}, %32, %33, 0;"
                     : TD_X_32("=r", c)
                     : "l"(a_shared), "l"(b_shared)
                     : "memory");
}

/* The same with A in registers: a warp's 16 rows as mma's fragment. */
template <bool Add>
__device__ __forceinline__ void wgmma_s8(int (&c)[32], const uint32_t (&a)[4], uint64_t b_shared)
{
    if constexpr (Add)
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {" TD_D_32 "}, {%32,%33,%34,%35}, %36, 1;"
                     : TD_X_32("+r", c)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_shared)
                     : "memory");
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {" TD_D_32 "}, {%32,%33,%34,%35}, %36, 0;"
                     : TD_X_32("=r", c)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_shared)
                     : "memory");
}

/* C = A B^T [+ C, if `add`] of e4m3 with C in fp16, two columns a register. A in registers: a warp's 16 rows as mma's
 * fragment, at operands a0 to a3; n is four times as many as there are registers. */
#define TD_WGMMA_E4M3(n, count, a0, a1, a2, a3, b, add_)                                                              \
    __device__ __forceinline__ void wgmma_e4m3(uint32_t (&c)[count], const uint32_t (&a)[4], uint64_t b_shared,       \
                                               bool add = true)                                                       \
    {                                                                                                                 \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #add_ ", 0; "                                                 \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k32.f16.e4m3.e4m3 {" TD_D_##count "}, {%" #a0            \
                     ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #b ", p, 1, 1; }"                                              \
                     : TD_X_##count("+r", c)                                                                          \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_shared), "r"(uint32_t(add))                  \
                     : "memory");                                                                                     \
    }
TD_WGMMA_E4M3(40, 10, 10, 11, 12, 13, 14, 15)
TD_WGMMA_E4M3(72, 18, 18, 19, 20, 21, 22, 23)
TD_WGMMA_E4M3(104, 26, 26, 27, 28, 29, 30, 31)
TD_WGMMA_E4M3(128, 32, 32, 33, 34, 35, 36, 37)
TD_WGMMA_E4M3(136, 34, 34, 35, 36, 37, 38, 39)

#define TD_D_24 TD_D_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define TD_X_24(c, x) TD_X_16(c, x), TD_X_AT(c, x, 16), TD_X_AT(c, x, 20)
#define TD_D_40 TD_D_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define TD_D_80 TD_D_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define TD_D_88 TD_D_80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define TD_X_40(c, x) TD_X_32(c, x), TD_X_AT(c, x, 32), TD_X_AT(c, x, 36)
#define TD_X_80(c, x) TD_X_64(c, x), TD_X_16_AT(c, x, 64)
#define TD_X_88(c, x) TD_X_80(c, x), TD_X_AT(c, x, 80), TD_X_AT(c, x, 84)

/* C = A B^T [+ C] of 64 x n, k = 16, fp16 or bf16: A and B in shared memory, a row being its k. */
#define TD_WGMMA_QK_ONE(n, count, type, a, b, add, out)                                                               \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" TD_D_##count "}, %" #a ", %" #b \
                 ", " add ", 1, 1, 0, 0;"                                                                             \
                 : TD_X_##count(out, c)                                                                               \
                 : "l"(a_shared), "l"(b_shared)                                                                       \
                 : "memory")
#define TD_WGMMA_QK(n, count, a, b)                                                                  \
    template <bool Add, bool Bf16>                                                                   \
    __device__ __forceinline__ void wgmma_qk(float (&c)[count], uint64_t a_shared, uint64_t b_shared) \
    {                                                                                                \
        if constexpr (Add && Bf16)                                                                   \
            TD_WGMMA_QK_ONE(n, count, "bf16", a, b, "1", "+f");                                      \
        else if constexpr (Add)                                                                      \
            TD_WGMMA_QK_ONE(n, count, "f16", a, b, "1", "+f");                                       \
        else if constexpr (Bf16)                                                                     \
            TD_WGMMA_QK_ONE(n, count, "bf16", a, b, "0", "=f");                                      \
        else                                                                                         \
            TD_WGMMA_QK_ONE(n, count, "f16", a, b, "0", "=f");                                       \
    }
TD_WGMMA_QK(64, 32, 32, 33)
TD_WGMMA_QK(128, 64, 64, 65)
TD_WGMMA_QK(96, 48, 48, 49)
TD_WGMMA_QK(160, 80, 80, 81)
TD_WGMMA_QK(176, 88, 88, 89)

/* The same with A in registers, a warp's 16 rows as mma's fragment, at operands a0 to a3. */
#define TD_WGMMA_QK_A_ONE(n, count, type, a0, a1, a2, a3, b, add, out)                                                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" TD_D_##count "}, {%" #a0 ",%" #a1 \
                 ",%" #a2 ",%" #a3 "}, %" #b ", " add ", 1, 1, 0;"                                                     \
                 : TD_X_##count(out, c)                                                                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_shared)                                           \
                 : "memory")
#define TD_WGMMA_QK_A(n, count, a0, a1, a2, a3, b)                                                                  \
    template <bool Add, bool Bf16>                                                                                  \
    __device__ __forceinline__ void wgmma_qk(float (&c)[count], const uint32_t (&a)[4], uint64_t b_shared)          \
    {                                                                                                               \
        if constexpr (Add && Bf16)                                                                                  \
            TD_WGMMA_QK_A_ONE(n, count, "bf16", a0, a1, a2, a3, b, "1", "+f");                                      \
        else if constexpr (Add)                                                                                     \
            TD_WGMMA_QK_A_ONE(n, count, "f16", a0, a1, a2, a3, b, "1", "+f");                                       \
        else if constexpr (Bf16)                                                                                    \
            TD_WGMMA_QK_A_ONE(n, count, "bf16", a0, a1, a2, a3, b, "0", "=f");                                      \
        else                                                                                                        \
            TD_WGMMA_QK_A_ONE(n, count, "f16", a0, a1, a2, a3, b, "0", "=f");                                       \
    }
TD_WGMMA_QK_A(32, 16, 16, 17, 18, 19, 20)
TD_WGMMA_QK_A(48, 24, 24, 25, 26, 27, 28)
TD_WGMMA_QK_A(64, 32, 32, 33, 34, 35, 36)

/* C += A B of 64 x n, k = 16: A in registers, a warp's 16 rows as mma's fragment; B in shared memory, a row being its n. */
#define TD_WGMMA_PV_ONE(n, count, type, a0, a1, a2, a3, b)                                                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" TD_D_##count "}, {%" #a0 ",%" #a1 \
                 ",%" #a2 ",%" #a3 "}, %" #b ", 1, 1, 1, 1;"                                                          \
                 : TD_X_##count("+f", c)                                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_shared)                                          \
                 : "memory")
#define TD_WGMMA_PV(n, count, a0, a1, a2, a3, b)                                                                  \
    template <bool Bf16>                                                                                          \
    __device__ __forceinline__ void wgmma_pv(float (&c)[count], const uint32_t (&a)[4], uint64_t b_shared)        \
    {                                                                                                             \
        if constexpr (Bf16)                                                                                       \
            TD_WGMMA_PV_ONE(n, count, "bf16", a0, a1, a2, a3, b);                                                 \
        else                                                                                                      \
            TD_WGMMA_PV_ONE(n, count, "f16", a0, a1, a2, a3, b);                                                  \
    }
TD_WGMMA_PV(64, 32, 32, 33, 34, 35, 36)
TD_WGMMA_PV(80, 40, 40, 41, 42, 43, 44)
TD_WGMMA_PV(96, 48, 48, 49, 50, 51, 52)
TD_WGMMA_PV(128, 64, 64, 65, 66, 67, 68)

__device__ __forceinline__ uint32_t mul_f16x2(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm volatile("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

/* Registers that wgmma writes: nothing that reads them is moved above this. */
template <class E, int N> __device__ __forceinline__ void wgmma_hold(E (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        if constexpr (sizeof(E) == 4 && E(0.5) != E(0))
            asm volatile("" : "+f"(x[i]) : : "memory");
        else
            asm volatile("" : "+r"(x[i]) : : "memory");
}

template <int Registers> __device__ __forceinline__ void setmaxnreg_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(Registers));
}

template <int Registers> __device__ __forceinline__ void setmaxnreg_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(Registers));
}

/* True in one lane of the warp. */
__device__ __forceinline__ bool elect_sync()
{
    uint32_t mine;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(mine));
    return mine;
}

/* mbarriers: `barrier` is an address in shared memory. */
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" : : "r"(barrier), "r"(arrivals) : "memory");
}

/* One arrival, of a phase that ends once this many bytes have come as well. */
__device__ __forceinline__ void mbarrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" : : "r"(barrier), "r"(bytes) : "memory");
}

/* Other blocks of the cluster see mbarriers as initialised, behind the next barrier of the cluster. */
__device__ __forceinline__ void fence_mbarrier_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" : : "r"(barrier) : "memory");
}

__device__ __forceinline__ bool mbarrier_try_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}

/* Counts as one of the arrivals of a phase once all cp.async of this thread so far are there. */
__device__ __forceinline__ void cp_async_arrive(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" : : "r"(barrier) : "memory");
}

/* The same without sleep. */
__device__ __forceinline__ bool mbarrier_test_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}

/* Four 8 x 16 byte matrices; lane l gives the address of row l % 8 of matrix l / 8. */
__device__ __forceinline__ void stmatrix_x4(uint32_t shared, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
                 :
                 : "r"(shared), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* Two floats of global memory, read here and not where the compiler would want them. */
__device__ __forceinline__ float2 load_now(const float *p)
{
    float2 d;
    asm volatile("ld.global.v2.f32 {%0,%1}, [%2];" : "=f"(d.x), "=f"(d.y) : "l"(p));
    return d;
}

/* A barrier of some warps of the block. */
template <int Threads> __device__ __forceinline__ void bar_sync(uint32_t id)
{
    asm volatile("bar.sync %0, %1;" : : "r"(id), "n"(Threads) : "memory");
}

template <int Threads> __device__ __forceinline__ void bar_arrive(uint32_t id)
{
    asm volatile("bar.arrive %0, %1;" : : "r"(id), "n"(Threads) : "memory");
}
/* 0, as grids have one dimension, which the compiler does not know. */
__device__ __forceinline__ uint32_t block_y()
{
    uint32_t y;
    asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(y));
    return y;
}
/* Clusters of blocks: this one's number in it, how many there are, a barrier of all their threads. */
__device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ uint32_t cluster_size()
{
    uint32_t size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}

/* Orders nothing but what is fenced. */
__device__ __forceinline__ void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory");
}

__device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
}

/* Words to where block `rank` of the cluster has what this one has at `mine`; its mbarrier at `barrier` hears of their bytes
 * once they are there. */
template <int N>
__device__ __forceinline__ void st_async(uint32_t *mine, uint32_t rank, const uint32_t (&x)[N], uint64_t *barrier)
{
    uint32_t to, told;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(mine)), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(told) : "r"(shared_address(barrier)), "r"(rank));
    static_assert(N == 1 || N == 2 || N == 4, "so many words");
    if constexpr (N == 1)
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
                     :
                     : "r"(to), "r"(x[0]), "r"(told)
                     : "memory");
    else if constexpr (N == 2)
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {%1,%2}, [%3];"
                     :
                     : "r"(to), "r"(x[0]), "r"(x[1]), "r"(told)
                     : "memory");
    else
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1,%2,%3,%4}, [%5];"
                     :
                     : "r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(told)
                     : "memory");
}

template <int N> __device__ __forceinline__ void st_async(float *mine, uint32_t rank, const float (&x)[N], uint64_t *barrier)
{
    uint32_t words[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        words[i] = __float_as_uint(x[i]);
    st_async(reinterpret_cast<uint32_t *>(mine), rank, words, barrier);
}

/* The larger, or the smaller, of each two; NaN (0x7fff) where one of them is. */
#define TD_EXTREME_X2(name, instruction)                                          \
    __device__ __forceinline__ uint32_t name(uint32_t a, uint32_t b)              \
    {                                                                             \
        uint32_t d;                                                               \
        asm(instruction " %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));               \
        return d;                                                                 \
    }
TD_EXTREME_X2(max_f16x2, "max.NaN.f16x2")
TD_EXTREME_X2(min_f16x2, "min.NaN.f16x2")
TD_EXTREME_X2(max_bf16x2, "max.NaN.bf16x2")
TD_EXTREME_X2(min_bf16x2, "min.NaN.bf16x2")

/* Whether L2 gives up what a load brings as it does by itself, behind other lines, or before them. */
struct InL2 {};
struct LastInL2 {};
struct FirstInL2 {};
__device__ __forceinline__ uint64_t l2_policy(LastInL2)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ uint64_t l2_policy(FirstInL2)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* Words of global memory that this multiprocessor does not read again, or zeros. */
template <int N> __device__ __forceinline__ void load_once_or_zeros(InL2, uint32_t (&x)[N], const uint16_t *p, bool exists)
{
    static_assert(N == 1 || N == 2 || N == 4, "so many words");
    if constexpr (N == 1)
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; "
                     "@p ld.global.nc.L1::no_allocate.u32 %0, [%1]; }"
                     : "=&r"(x[0])
                     : "l"(p), "r"(uint32_t(exists)));
    else if constexpr (N == 2)
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0; "
                     "@p ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2]; }"
                     : "=&r"(x[0]), "=&r"(x[1])
                     : "l"(p), "r"(uint32_t(exists)));
    else
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0; "
                     "@p ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4]; }"
                     : "=&r"(x[0]), "=&r"(x[1]), "=&r"(x[2]), "=&r"(x[3])
                     : "l"(p), "r"(uint32_t(exists)));
}
template <class Stays, int N>
__device__ __forceinline__ void load_once_or_zeros(Stays stays, uint32_t (&x)[N], const uint16_t *p, bool exists)
{
    static_assert(N == 1 || N == 2, "so many words");
    if constexpr (N == 1)
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; "
                     "@p ld.global.nc.L1::no_allocate.L2::cache_hint.u32 %0, [%1], %3; }"
                     : "=&r"(x[0])
                     : "l"(p), "r"(uint32_t(exists)), "l"(l2_policy(stays)));
    else
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0; "
                     "@p ld.global.nc.L1::no_allocate.L2::cache_hint.v2.u32 {%0,%1}, [%2], %4; }"
                     : "=&r"(x[0]), "=&r"(x[1])
                     : "l"(p), "r"(uint32_t(exists)), "l"(l2_policy(stays)));
}

/* Words to global memory. */
template <class Stays, int N> __device__ __forceinline__ void store_global(Stays stays, uint32_t *p, const uint32_t (&x)[N])
{
    static_assert(N == 1 || N == 4, "so many words");
    if constexpr (N == 1)
        asm volatile("st.global.L2::cache_hint.u32 [%0], %1, %2;" : : "l"(p), "r"(x[0]), "l"(l2_policy(stays)) : "memory");
    else
        asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1,%2,%3,%4}, %5;"
                     :
                     : "l"(p), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(l2_policy(stays))
                     : "memory");
}

/* A word of global memory between blocks: what was written before the store is seen behind a load that finds it. */
__device__ __forceinline__ void st_release(uint32_t *p, uint32_t x)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;" : : "l"(p), "r"(x) : "memory");
}

__device__ __forceinline__ uint32_t ld_acquire(const uint32_t *p)
{
    uint32_t d;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(d) : "l"(p) : "memory");
    return d;
}
#else
#define TD_HAVE_WGMMA 0
#endif

/* Four 8 x 16 byte matrices; lane l gives the address of row l % 8 of matrix l / 8. */
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
}

/* Each of the four matrices transposed. */
__device__ __forceinline__ void ldmatrix_x4_transposed(uint32_t (&r)[4], uint32_t shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
}

/* Of an 8 x 8 matrix of 16 bits, of which lane l has two neighbours of row l / 4: the transposed one's. */
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t x)
{
    uint32_t d;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(x));
    return d;
}

__device__ __forceinline__ void cp_async_16(uint32_t shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(shared), "l"(global) : "memory");
}
/* So many bytes, 0 to 16, and zeros for the others. */
__device__ __forceinline__ void cp_async_16_or_zero(uint32_t shared, const void *global, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(shared), "l"(global), "r"(bytes) : "memory");
}
/* 16 bytes, of which the first `left` are there, the others zeros; nothing if that is none. */
__device__ __forceinline__ void cp_async_16_some(uint32_t shared, const void *global, int left)
{
    asm volatile("{.reg .pred some; setp.gt.s32 some, %2, 0; @some cp.async.cg.shared.global [%0], [%1], 16, %3;}"
                 : : "r"(shared), "l"(global), "r"(left), "r"(min(left, 16)) : "memory");
}
__device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" : : : "memory");
}
template <int Pending> __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" : : "n"(Pending) : "memory");
}

/* What was computed from these words is not kept: they could be others now. */
template <int N> __device__ __forceinline__ void forget(uint32_t (&words)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(words[i]));
}

/* A load that the compiler leaves where it stands, where registers are too few to keep the value. */
__device__ __forceinline__ uint32_t ld_global(const void *p)
{
    uint32_t d;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(d) : "l"(p));
    return d;
}

/* Four words, likewise. */
__device__ __forceinline__ void load_here(uint32_t (&x)[4], const void *p)
{
    asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "l"(p));
}

/* Programmatic dependent launch: a kernel of a record with TD_RECORD_PDL may start while the one before it still runs.
 *   before    launch_dependents(): by all blocks, early; the next kernel starts once the last block has said so or ended
 *   after     wait_for_previous(): before the first read or write of what the kernel before reads or writes, and before
 *             any return, so that the end of this kernel means the end of that one
 * Where the record has no such flag, and on GPUs that know nothing of it, both do nothing. */
__device__ __forceinline__ void launch_dependents()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

__device__ __forceinline__ void wait_for_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

/* Of the 128 bytes around it. */
__device__ __forceinline__ void prefetch_l2(const void *global)
{
    asm volatile("prefetch.global.L2 [%0];" : : "l"(global));
}

/* threadIdx.x, read anew: what is computed from it is not kept in registers from one step to the next. */
__device__ __forceinline__ int tid_x()
{
    int t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}

/* blockIdx.x, likewise. */
__device__ __forceinline__ uint32_t ctaid_x()
{
    uint32_t x;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
    return x;
}

__device__ __forceinline__ uint64_t globaltimer()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t) : : "memory");
    return t;
}

/* Two words in one write, whoever looks: 16-byte aligned. */
__device__ __forceinline__ void st_sys_v2_u64(uint64_t *at, uint64_t a, uint64_t b)
{
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" : : "l"(at), "l"(a), "l"(b) : "memory");
}

} // namespace td
#endif
