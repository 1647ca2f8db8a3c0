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

namespace td {

/* Whether the host has given the job up; the same answer for all threads of the block, which all must ask. */
__device__ __forceinline__ bool cancelled(const uint32_t *word)
{
    return word && __syncthreads_or(threadIdx.x == 0 && *(const volatile uint32_t *)word);
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

__device__ __forceinline__ void cp_async_16(uint32_t shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(shared), "l"(global) : "memory");
}

__device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" : : : "memory");
}

template <int Pending> __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" : : "n"(Pending) : "memory");
}

/* A load that the compiler leaves where it stands, where registers are too few to keep the value. */
__device__ __forceinline__ uint32_t ld_global(const void *p)
{
    uint32_t d;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(d) : "l"(p));
    return d;
}

/* threadIdx.x, read anew: what is computed from it is not kept in registers from one step to the next. */
__device__ __forceinline__ int tid_x()
{
    int t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
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
