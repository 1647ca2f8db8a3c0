/* How fast a multiprocessor carries out single instructions: what account.py's estimates of kernels are made of.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * For each instruction two kernels. `rate_NAME`: eight chains of it in each warp, launched with 16 warps, four for each of the
 * quarters; `lag_NAME`: one chain, launched with a single warp. Each writes the cycles that its first warp took for ROUNDS times UNROLL
 * instructions. They are written as PTX; account.py asks the disassembler how many of which instruction they became.
 */
#include <stdint.h>

namespace {

constexpr int ROUNDS = 64, UNROLL = 64, LDS_BYTES = 4096;

__device__ __forceinline__ uint32_t shared_begin()
{
    extern __shared__ __align__(1024) uint32_t words[];
    return uint32_t(__cvta_generic_to_shared(words));
}

/* A chain's registers. What a lane loads is where its next load is from, without conflicts of banks: by ldmatrix r[0], a row of 16 bytes
 * for each lane, at the beginning of shared memory; word by word r[3], LDS_BYTES behind. */
struct Chain {
    uint32_t r[4];
    float f[4];

    __device__ void start(uint32_t at, int i)
    {
        const uint32_t lane = threadIdx.x % 32;

#pragma unroll
        for (int j = 0; j < 4; j++) {
            r[j] = at + 16 * lane;
            f[j] = float(threadIdx.x + i + j) * 0.001f;
        }
        r[3] = at + LDS_BYTES + 4 * lane;
    }
    __device__ float end() const
    {
        return __uint_as_float(r[0] ^ r[1] ^ r[2] ^ r[3]) + f[0] + f[1] + f[2] + f[3];
    }
};

#define STEP(name, ...)                                                         \
    struct op_##name {                                                          \
        __device__ __forceinline__ static void step(Chain &c, const void *from) \
        {                                                                       \
            (void)from;                                                         \
            __VA_ARGS__                                                         \
        }                                                                       \
    };

STEP(ffma, asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(c.f[0]) : "f"(c.f[1]));)
STEP(fadd, asm volatile("add.rn.f32 %0, %0, %1;" : "+f"(c.f[0]) : "f"(c.f[1]));)
STEP(fmnmx, asm volatile("max.f32 %0, %0, %1;" : "+f"(c.f[0]) : "f"(c.f[1]));)
STEP(lop3, asm volatile("lop3.b32 %0, %0, %1, %2, 0x6a;" : "+r"(c.r[0]) : "r"(c.r[1]), "r"(c.r[2]));)
STEP(imad, asm volatile("mad.lo.s32 %0, %0, %1, %2;" : "+r"(c.r[0]) : "r"(c.r[1]), "r"(c.r[2]));)
STEP(ex2, asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(c.f[0]));)
STEP(i2f, asm volatile("cvt.rn.f32.s32 %0, %1;" : "=f"(c.f[0]) : "r"(c.r[0])); c.r[0] = __float_as_uint(c.f[0]);)
STEP(f2fp_f16, asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(c.r[0]) : "f"(c.f[0]), "f"(c.f[1]));
     c.f[0] = __uint_as_float(c.r[0]);)
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
STEP(f2fp_e4m3, uint16_t h; asm volatile("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(h) : "f"(c.f[0]), "f"(c.f[1]));
     c.f[0] = __uint_as_float(h);)
#endif
STEP(mma_f16,
     asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%4,%5}, {%0,%1,%2,%3};"
                  : "+f"(c.f[0]), "+f"(c.f[1]), "+f"(c.f[2]), "+f"(c.f[3])
                  : "r"(c.r[0]), "r"(c.r[1]), "r"(c.r[2]), "r"(c.r[3]));)
STEP(mma_s8, int *d = reinterpret_cast<int *>(c.f);
     asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%4,%5}, {%0,%1,%2,%3};"
                  : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                  : "r"(c.r[0]), "r"(c.r[1]), "r"(c.r[2]), "r"(c.r[3]));)
STEP(shfl, asm volatile("shfl.sync.bfly.b32 %0, %0, 1, 0x1f, 0xffffffff;" : "+r"(c.r[0]));)
STEP(lds, asm volatile("ld.shared.b32 %0, [%0];" : "+r"(c.r[3]));)
STEP(ldsm, asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%0];"
                        : "+r"(c.r[0]), "=r"(c.r[1]), "=r"(c.r[2]), "=r"(c.r[3]));)
/* each lane its own 16 bytes of a tile that stays in L2 */
STEP(ldgsts, asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(c.r[0] + threadIdx.x / 32u * 512u), "l"(from) : "memory");)
STEP(bar, asm volatile("bar.sync 0;" ::: "memory");)

/* Cycles that the first warp takes for so many turns, once its instructions are in the cache; what chains end as is kept. */
template <int Chains, class Turn>
__device__ __forceinline__ void time_turns(uint64_t *cycles, float *kept, int turns, Chain (&chain)[Chains], Turn turn)
{
#pragma unroll 1
    for (int warm = 0; warm < 2; warm++) {
        __syncthreads();
        const uint64_t begin = clock64();
#pragma unroll 1
        for (int i = 0; i < turns; i++)
            turn();
        const uint64_t end = clock64();
        if (threadIdx.x == 0 && blockIdx.x == 0)
            cycles[0] = end - begin;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Chains; i++)
        sum += chain[i].end();
    kept[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

template <int Chains> __device__ __forceinline__ void start(Chain (&chain)[Chains], uint32_t at)
{
#pragma unroll
    for (int i = 0; i < Chains; i++)
        chain[i].start(at, i);
}

template <class Op, int Chains>
__device__ __forceinline__ void measure(uint64_t *cycles, float *kept, const uint8_t *from)
{
    extern __shared__ __align__(1024) uint32_t words[];
    Chain chain[Chains];
    const uint32_t at = shared_begin();

    for (uint32_t i = threadIdx.x; i < 2048; i += blockDim.x)
        words[i] = i < LDS_BYTES / 4 ? at + 16 * (i % 32) : at + 4 * i;
    __syncthreads();
    const uint8_t *mine = from + threadIdx.x * 16u;
    start(chain, at);
    time_turns(cycles, kept, ROUNDS, chain, [&] {
#pragma unroll
        for (int i = 0; i < UNROLL; i++)
            Op::step(chain[i % Chains], mine);
    });
}

} // namespace

#define ENTRY(name)                                                                                \
    extern "C" __global__ void rate_##name(uint64_t *cycles, float *kept, const uint8_t *from)    \
    {                                                                                              \
        measure<op_##name, 8>(cycles, kept, from);                                                 \
    }                                                                                              \
    extern "C" __global__ void lag_##name(uint64_t *cycles, float *kept, const uint8_t *from)     \
    {                                                                                              \
        measure<op_##name, 1>(cycles, kept, from);                                                 \
    }
ENTRY(ffma)
ENTRY(fadd)
ENTRY(fmnmx)
ENTRY(lop3)
ENTRY(imad)
ENTRY(ex2)
ENTRY(i2f)
ENTRY(f2fp_f16)
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
ENTRY(f2fp_e4m3)
#endif
ENTRY(mma_f16)
ENTRY(mma_s8)
ENTRY(shfl)
ENTRY(lds)
ENTRY(ldsm)
ENTRY(ldgsts)
ENTRY(bar)

/* What it costs to fetch code: LONG instructions in a row, more than the caches that are closest to a quarter hold; and JUMPS times
 * a branch over SKIPPED instructions behind every STRAIGHT. `apart` is never what the branches ask for. */
constexpr int LONG = 1024, JUMPS = 32, STRAIGHT = 24, SKIPPED = 40, TURNS = 16;

extern "C" __global__ void long_ffma(uint64_t *cycles, float *kept, const uint8_t *)
{
    Chain chain[8];

    start(chain, 0);
    time_turns(cycles, kept, TURNS, chain, [&] {
#pragma unroll
        for (int i = 0; i < LONG; i++)
            op_ffma::step(chain[i % 8], nullptr);
    });
}

extern "C" __global__ void jump_ffma(uint64_t *cycles, float *kept, const uint8_t *from)
{
    const uint32_t apart = *(const uint32_t *)from; /* measure.py's first word: a place far behind JUMPS */
    Chain chain[8];

    start(chain, 0);
    time_turns(cycles, kept, TURNS, chain, [&] {
#pragma unroll
        for (int jump = 0; jump < JUMPS; jump++) {
#pragma unroll
            for (int i = 0; i < STRAIGHT; i++)
                op_ffma::step(chain[i % 8], nullptr);
            if (apart == uint32_t(jump)) {
#pragma unroll
                for (int i = 0; i < SKIPPED; i++)
                    op_fadd::step(chain[i % 8], nullptr);
            }
        }
    });
}

/* Dependent loads through memory that fits into L2 and not into L1: from[i] is the byte where the next one is. */
extern "C" __global__ void lag_global(uint64_t *cycles, float *kept, const uint8_t *from)
{
    uint32_t at = 0;

#pragma unroll 1
    for (int warm = 0; warm < 2; warm++) {
        const uint64_t begin = clock64();
#pragma unroll 1
        for (int i = 0; i < ROUNDS * UNROLL; i++)
            asm volatile("ld.global.cg.b32 %0, [%1];" : "=r"(at) : "l"(from + at) : "memory");
        cycles[0] = clock64() - begin;
    }
    kept[0] = float(at);
}

/* The clock: cycles, and nanoseconds, of about a fifth of a millisecond. */
extern "C" __global__ void clock_now(uint64_t *cycles, float *, const uint8_t *)
{
    uint64_t begin_ns, now_ns;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin_ns));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now_ns));
    while (now_ns == begin_ns);
    begin_ns = now_ns;
    const uint64_t begin = clock64();
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now_ns));
    while (now_ns - begin_ns < 200000);
    cycles[0] = clock64() - begin;
    cycles[1] = now_ns - begin_ns;
}
