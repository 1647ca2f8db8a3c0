/* The functions of kernels/cuda/ptx.cuh, emulated.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Of warps and of what is under way: emu.h. Roundings: kernels/attention/cpu/twin.c, which has them from measurements on GPUs.
 */
#pragma once

#include <math_constants.h>

#include "tests/emu/builtins.h"

#ifdef TD_EMU_ANY_ARCH /* see the end */
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TD_HAVE_E4M3 1
#define TD_HAVE_WGMMA 1
#else
#define TD_HAVE_E4M3 (__CUDA_ARCH__ >= 890)
#define TD_HAVE_WGMMA 0
#endif
#define TD_DYNAMIC_SHARED(alignment, name) uint8_t *const name = static_cast<uint8_t *>(emu::dynamic_shared())

namespace td {

constexpr bool kAllDump = true;

static inline uint32_t shared_address(const void *p)
{
    return emu::shared_address(p);
}

static inline bool cancelled(const uint32_t *word)
{
    return word && __syncthreads_or(threadIdx.x == 0 && *static_cast<const volatile uint32_t *>(word));
}

template <class C>
static inline void mma_start(const char *what, C (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                             void (*all)(void *const *))
{
    emu::MmaLane mine = {c, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    emu::collective(what, &mine, all);
}

static inline void mma_s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    mma_start("mma s8", c, a, b0, b1, emu::mma_s8);
}
static inline void mma_s4(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    mma_start("mma s4", c, a, b0, b1, emu::mma_s4);
}
static inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    mma_start("mma f16", c, a, b0, b1, emu::mma_f16);
}
static inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    mma_start("mma bf16", c, a, b0, b1, emu::mma_bf16);
}

#if TD_HAVE_E4M3
static inline void mma_e4m3(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    static constexpr uint32_t accumulator = __CUDA_ARCH__ >= 1000  ? TD_ACCUMULATOR_BLACKWELL_MMA
                                            : __CUDA_ARCH__ >= 900 ? TD_ACCUMULATOR_HOPPER_MMA
                                                                   : TD_ACCUMULATOR_ADA_MMA;
    mma_start("mma e4m3", c, a, b0, b1, emu::mma_e4m3<accumulator>);
}

static inline uint16_t cvt_e4m3x2(float high, float low)
{
    return uint16_t(td_to_e4m3(high) << 8 | td_to_e4m3(low));
}
#endif

static inline uint32_t cvt_f16x2(float high, float low)
{
    return uint32_t(td_to_f16(high)) << 16 | td_to_f16(low);
}

static inline float ex2(float x)
{
    const float d = exp2f(x);
    return d < 0x1p-126f ? 0 : d; /* and NaN stays */
}

static inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t shared)
{
    struct Lane {
        uint32_t *r, at;
    } mine = {r, shared};
    emu::collective("ldmatrix", &mine, [](void *const *lanes) {
        for (int i = 0; i < 4; i++)
            for (int row = 0; row < 8; row++) {
                const Lane *from = static_cast<const Lane *>(lanes[8 * i + row]);
                const uint8_t *bytes = static_cast<const uint8_t *>(emu::shared_pointer(from->at, 16, 16, "ldmatrix"));
                for (int q = 0; q < 4; q++)
                    memcpy(static_cast<Lane *>(lanes[4 * row + q])->r + i, bytes + 4 * q, 4);
            }
    });
}

static inline void ldmatrix_x4_transposed(uint32_t (&r)[4], uint32_t shared)
{
    struct Lane {
        uint32_t *r, at;
    } mine = {r, shared};
    emu::collective("ldmatrix", &mine, [](void *const *lanes) {
        for (int i = 0; i < 4; i++)
            for (int row = 0; row < 8; row++) {
                const Lane *from = static_cast<const Lane *>(lanes[8 * i + row]);
                const uint8_t *bytes = static_cast<const uint8_t *>(emu::shared_pointer(from->at, 16, 16, "ldmatrix"));
                for (int column = 0; column < 8; column++) {
                    uint32_t *to = static_cast<Lane *>(lanes[4 * column + row / 2])->r + i;
                    memcpy(reinterpret_cast<uint8_t *>(to) + row % 2 * 2, bytes + 2 * column, 2);
                }
            }
    });
}

static inline uint32_t transpose_8x8(uint32_t x)
{
    struct Lane {
        uint16_t x[2], got[2];
    } mine = {{uint16_t(x), uint16_t(x >> 16)}, {}};
    emu::collective("movmatrix", &mine, [](void *const *lanes) {
        for (int row = 0; row < 8; row++)
            for (int column = 0; column < 8; column++)
                static_cast<Lane *>(lanes[4 * column + row / 2])->got[row % 2] =
                    static_cast<const Lane *>(lanes[4 * row + column / 2])->x[column % 2];
    });
    return mine.got[0] | uint32_t(mine.got[1]) << 16;
}

static inline void cp_async_16(uint32_t shared, const void *global)
{
    emu::copy_start(shared, global, 16);
}
static inline void cp_async_16_or_zero(uint32_t shared, const void *global, uint32_t bytes)
{
    emu::copy_start(shared, global, bytes);
}
static inline void cp_async_16_some(uint32_t shared, const void *global, int left)
{
    if (left > 0)
        emu::copy_start(shared, global, uint32_t(left < 16 ? left : 16));
}
static inline void cp_async_commit()
{
    emu::copy_commit();
}
template <int Pending> static inline void cp_async_wait()
{
    emu::copy_wait(Pending);
}

template <int N> static inline void forget(uint32_t (&)[N]) {}

static inline uint32_t ld_global(const void *p)
{
    return *static_cast<const uint32_t *>(p);
}
static inline void load_here(uint32_t (&x)[4], const void *p)
{
    memcpy(x, p, sizeof x);
}
static inline void launch_dependents() {}
static inline void wait_for_previous() {}
static inline void prefetch_l2(const void *global)
{
    (void)*static_cast<const volatile char *>(global); /* as it is there */
}
static inline uint32_t ctaid_x()
{
    return blockIdx.x;
}
static inline int tid_x()
{
    return int(threadIdx.x);
}
static inline uint64_t globaltimer()
{
    return emu::nanoseconds();
}
static inline void st_sys_v2_u64(uint64_t *at, uint64_t a, uint64_t b)
{
    if (reinterpret_cast<uintptr_t>(at) % 16)
        emu::fail("st.v2.u64 to %p, which is not 16-byte aligned", static_cast<void *>(at));
    at[0] = a;
    at[1] = b;
}

#if TD_HAVE_WGMMA
static inline void wgmma_fence()
{
    emu::wgmma_fence();
}
static inline void wgmma_commit()
{
    emu::wgmma_commit();
}
template <int Pending> static inline void wgmma_wait()
{
    emu::wgmma_wait(Pending);
}
static inline void fence_proxy_async() {}

static inline void wgmma_m64n8k32_e4m3(float (&c)[4], const uint32_t (&a)[4], uint64_t b)
{
    emu::wgmma_start({emu::Type::e4m3, 8, true, false, 0, b, a, c});
}
template <bool Add, int N> static inline void wgmma_s8(int (&c)[N], uint64_t a_shared, uint64_t b_shared)
{
    emu::wgmma_start({emu::Type::s8, 2 * N, Add, false, a_shared, b_shared, nullptr, c});
}
template <bool Add, int N> static inline void wgmma_s8(int (&c)[N], const uint32_t (&a)[4], uint64_t b_shared)
{
    emu::wgmma_start({emu::Type::s8, 2 * N, Add, false, 0, b_shared, a, c});
}
static inline void wgmma_m64n8k32_e4m3(uint32_t (&c)[2], const uint32_t (&a)[4], uint64_t b)
{
    emu::wgmma_start({emu::Type::e4m3_into_f16, 8, true, false, 0, b, a, c});
}
template <int N>
static inline void wgmma_e4m3(uint32_t (&c)[N], const uint32_t (&a)[4], uint64_t b_shared, bool add = true)
{
    emu::wgmma_start({emu::Type::e4m3_into_f16, 4 * N, add, false, 0, b_shared, a, c});
}
template <bool Add, bool Bf16, int N> static inline void wgmma_qk(float (&c)[N], uint64_t a_shared, uint64_t b_shared)
{
    emu::wgmma_start(
        {Bf16 ? emu::Type::bf16 : emu::Type::f16, 2 * N, Add, false, a_shared, b_shared, nullptr, c});
}
template <bool Add, bool Bf16, int N>
static inline void wgmma_qk(float (&c)[N], const uint32_t (&a)[4], uint64_t b_shared)
{
    emu::wgmma_start({Bf16 ? emu::Type::bf16 : emu::Type::f16, 2 * N, Add, false, 0, b_shared, a, c});
}
template <bool Bf16, int N> static inline void wgmma_pv(float (&c)[N], const uint32_t (&a)[4], uint64_t b_shared)
{
    emu::wgmma_start({Bf16 ? emu::Type::bf16 : emu::Type::f16, 2 * N, true, true, 0, b_shared, a, c});
}
static inline uint32_t mul_f16x2(uint32_t a, uint32_t b)
{
    uint32_t d = 0;
    for (int shift = 0; shift < 32; shift += 16)
        d |= uint32_t(td_to_f16(td_from_f16(uint16_t(a >> shift)) * td_from_f16(uint16_t(b >> shift)))) << shift;
    return d;
}
template <class E, int N> static inline void wgmma_hold(E (&)[N]) {}
template <int Registers> static inline void setmaxnreg_inc() {}
template <int Registers> static inline void setmaxnreg_dec() {}

static inline bool elect_sync()
{
    return __ballot_sync(~0u, true) && threadIdx.x % 32 == 0;
}

static inline void mbarrier_init(uint32_t barrier, uint32_t arrivals)
{
    emu::mbarrier_init(barrier, arrivals);
}
static inline void mbarrier_expect(uint32_t barrier, uint32_t bytes)
{
    emu::mbarrier_expect(barrier, bytes);
}
static inline void fence_mbarrier_init() {}
static inline void mbarrier_arrive(uint32_t barrier)
{
    emu::mbarrier_arrive(barrier);
}
static inline bool mbarrier_try_wait(uint32_t barrier, uint32_t parity)
{
    return emu::mbarrier_test(barrier, parity);
}
static inline void cp_async_arrive(uint32_t barrier)
{
    emu::copy_arrive(barrier);
}
static inline bool mbarrier_test_wait(uint32_t barrier, uint32_t parity)
{
    emu::maybe_yield();
    return emu::mbarrier_look(barrier, parity);
}

static inline void stmatrix_x4(uint32_t shared, const uint32_t (&r)[4])
{
    struct Lane {
        const uint32_t *r;
        uint32_t at;
    } mine = {r, shared};
    emu::collective("stmatrix", &mine, [](void *const *lanes) {
        for (int i = 0; i < 4; i++)
            for (int row = 0; row < 8; row++) {
                const Lane *to = static_cast<const Lane *>(lanes[8 * i + row]);
                uint8_t *bytes = static_cast<uint8_t *>(emu::shared_pointer(to->at, 16, 16, "stmatrix"));
                for (int q = 0; q < 4; q++)
                    memcpy(bytes + 4 * q, static_cast<const Lane *>(lanes[4 * row + q])->r + i, 4);
            }
    });
}

static inline float2 load_now(const float *p)
{
    return *reinterpret_cast<const float2 *>(p);
}
template <int Threads> static inline void bar_sync(uint32_t id)
{
    emu::barrier(id, Threads, true, true);
}
template <int Threads> static inline void bar_arrive(uint32_t id)
{
    emu::barrier(id, Threads, false, true);
}

static inline uint32_t block_y()
{
    return 0;
}

static inline uint32_t cluster_rank()
{
    return emu::cluster_rank();
}
static inline uint32_t cluster_size()
{
    return emu::cluster_size();
}
static inline void cluster_arrive()
{
    emu::cluster_arrive();
}
static inline void cluster_wait()
{
    emu::cluster_wait();
}
template <class T, int N> static inline void st_async(T *mine, uint32_t rank, const T (&x)[N], uint64_t *barrier)
{
    emu::cluster_store(mine, rank, x, sizeof x, barrier);
}
/* Half-words of a and b as `Value` has them: the larger, or the smaller (`sign` -1), or NaN. */
template <class Value> static inline uint32_t extreme_x2(uint32_t a, uint32_t b, float sign, Value value)
{
    uint32_t d = 0;
    for (int i = 0; i < 32; i += 16) {
        const uint16_t x = uint16_t(a >> i), y = uint16_t(b >> i);
        const float u = sign * value(x), v = sign * value(y);
        d |= uint32_t(u != u || v != v ? 0x7fff : u < v || (u == v && signbit(u)) ? y : x) << i;
    }
    return d;
}
static inline uint32_t max_f16x2(uint32_t a, uint32_t b)
{
    return extreme_x2(a, b, 1, [](uint16_t x) { return td_from_f16(x); });
}
static inline uint32_t min_f16x2(uint32_t a, uint32_t b)
{
    return extreme_x2(a, b, -1, [](uint16_t x) { return td_from_f16(x); });
}
static inline uint32_t max_bf16x2(uint32_t a, uint32_t b)
{
    return extreme_x2(a, b, 1, [](uint16_t x) { return td_from_bf16(x); });
}
static inline uint32_t min_bf16x2(uint32_t a, uint32_t b)
{
    return extreme_x2(a, b, -1, [](uint16_t x) { return td_from_bf16(x); });
}
struct InL2 {};
struct LastInL2 {};
struct FirstInL2 {};
template <class Stays, int N> static inline void load_once_or_zeros(Stays, uint32_t (&x)[N], const uint16_t *p, bool exists)
{
    for (int i = 0; i < N; i++)
        x[i] = exists ? reinterpret_cast<const uint32_t *>(p)[i] : 0;
}
template <class Stays, int N> static inline void store_global(Stays, uint32_t *p, const uint32_t (&x)[N])
{
    memcpy(p, x, sizeof x);
}
static inline void st_release(uint32_t *p, uint32_t x)
{
    emu::maybe_yield();
    *static_cast<volatile uint32_t *>(p) = x;
}
static inline uint32_t ld_acquire(const uint32_t *p)
{
    return *static_cast<const volatile uint32_t *>(p);
}
#endif

} // namespace td

#ifdef TD_EMU_ANY_ARCH /* one object for every GPU: what would make it another one is an error */
#pragma GCC poison __CUDA_ARCH__ __CUDA_ARCH_FEAT_SM90_ALL TD_HAVE_E4M3 TD_HAVE_WGMMA
#endif
