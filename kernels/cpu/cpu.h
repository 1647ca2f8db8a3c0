/* What the CPU kernels share: the choice of instruction set, number formats, and the functions that belong to no family.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_CPU_H
#define TD_CPU_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/params.h"
#include "kernels/plan.h"

#if defined(__x86_64__) && !defined(TD_NO_SIMD)
#define TD_X86 1
#define TD_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define TD_TARGET_AVX512 \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#else
#define TD_X86 0
#endif
#define TD_INLINE static inline __attribute__((always_inline))

typedef enum td_isa { TD_ISA_C, TD_ISA_AVX2, TD_ISA_AVX512, TD_ISA_COUNT } td_isa;

/* The instruction set in use: the best of the machine unless td_cpu_isa_force() chose another. */
td_isa td_cpu_isa_level(void);
const char *td_cpu_isa(void);
/* For tests and benches; NULL: the best again. False, and nothing changes, for a name that this machine lacks. */
bool td_cpu_isa_force(const char *name);

/* td_cpu_NAME(): NAME_body(), which is TD_INLINE, compiled in C and for AVX2. */
#if TD_X86
#define TD_CPU_CLONES(name)                                                        \
    static void name##_c(const void *params, const td_block *at)                   \
    {                                                                              \
        name##_body(params, at);                                                   \
    }                                                                              \
    TD_TARGET_AVX2 static void name##_avx2(const void *params, const td_block *at) \
    {                                                                              \
        name##_body(params, at);                                                   \
    }                                                                              \
    void td_cpu_##name(const void *params, const td_block *at)                     \
    {                                                                              \
        (td_cpu_isa_level() >= TD_ISA_AVX2 ? name##_avx2 : name##_c)(params, at);  \
    }
#else
#define TD_CPU_CLONES(name)                                    \
    void td_cpu_##name(const void *params, const td_block *at) \
    {                                                          \
        name##_body(params, at);                               \
    }
#endif

/* See td_block: to be asked every 100 us or so. */
TD_INLINE bool td_block_goes_on(const td_block *at)
{
    return !at->goes_on || at->goes_on(at->user);
}

void td_cpu_claim(const void *params, const td_block *at);
void td_cpu_commit(const void *params, const td_block *at);
void td_cpu_fetch(const void *params, const td_block *at);

TD_INLINE uint32_t td_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

TD_INLINE float td_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* a where the condition holds, else b: as arithmetic, which compilers turn into vectors where a branch stops them. */
TD_INLINE uint32_t td_select(bool condition, uint32_t a, uint32_t b)
{
    const uint32_t mask = 0u - (uint32_t)condition;
    return (a & mask) | (b & ~mask);
}

TD_INLINE float td_from_f16(uint16_t h)
{
    const uint32_t u = h, finite = td_bits(td_float((u & 0x7fff) << 13) * 0x1p112f);
    const uint32_t beyond = 0x7f800000u | (u & 0x3ff) << 13 | td_select((u & 0x3ff) != 0, 0x00400000u, 0); /* a quiet NaN */
    const uint32_t magnitude = td_select((u & 0x7c00) == 0x7c00, beyond, finite);
    return td_float(magnitude | (u & 0x8000) << 16);
}

TD_INLINE uint16_t td_to_f16(float x)
{
    const uint32_t sign = td_bits(x) >> 16 & 0x8000, a = td_bits(x) & 0x7fffffff;
    const uint32_t normal = (a + 0xfff + (a >> 13 & 1) - 0x38000000) >> 13;
    const uint32_t subnormal = td_bits(td_float(a) + 0.5f) - 0x3f000000; /* adding 0.5 leaves 2^-24 as the last place */
    const uint32_t finite = td_select(a < 0x38800000, subnormal, normal);
    return (uint16_t)(sign | td_select(a > 0x7f800000, 0x7fff, td_select(a >= 0x47800000, 0x7c00, finite)));
}

TD_INLINE float td_from_bf16(uint16_t h)
{
    return td_float((uint32_t)h << 16);
}

TD_INLINE uint16_t td_to_bf16(float x)
{
    uint32_t u = td_bits(x);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Where a row begins, in elements. */
TD_INLINE int64_t td_row_at(const td_strides *at, int64_t batch, int64_t head, int64_t row)
{
    return batch * at->stride_batch + head * at->stride_head + row * at->stride_row;
}

/* Neighbouring channels of one row that a block of TD_EIGHTS eights has; {0} before the first ones. False: it has no more. */
typedef struct td_run {
    int64_t batch, head, row;
    uint32_t channel, count;
    uint32_t done; /* eights of the block */
} td_run;
TD_INLINE bool td_next_run(const td_shape *shape, const td_block *at, td_run *run)
{
    const uint32_t each = (shape->channels + 7) / 8;
    const uint64_t number = (uint64_t)at->x * TD_EIGHTS + run->done, row = number / each, plane = row / shape->rows;
    const uint32_t first = (uint32_t)(number % each), left = TD_EIGHTS - run->done;
    if (run->done == TD_EIGHTS || plane / shape->heads >= shape->batch || !td_block_goes_on(at))
        return false;
    const uint32_t eights = each - first < left ? each - first : left, channels = shape->channels - 8 * first;
    *run = (td_run){.batch = (int64_t)(plane / shape->heads),
                    .head = (int64_t)(plane % shape->heads),
                    .row = (int64_t)(row % shape->rows),
                    .channel = 8 * first,
                    .count = channels < 8 * eights ? channels : 8 * eights,
                    .done = run->done + eights};
    return true;
}

/* td_from_f16() and td_to_f16() of `n` elements, the same bits by each instruction set. */
void td_floats_from_f16(float *to, const uint16_t *from, uint32_t n);
void td_floats_to_f16(uint16_t *to, const float *from, uint32_t n);

/* `n` elements of F16, BF16 or F32, from element `at` on, as floats; and floats as such, rounded to nearest. */
TD_INLINE void td_to_floats(float *to, const void *from, uint32_t dtype, int64_t at, uint32_t n)
{
    const uint16_t *half = (const uint16_t *)from + at;
    if (dtype == TANDEM_DTYPE_F32)
        memcpy(to, (const float *)from + at, n * sizeof *to);
    else if (dtype == TANDEM_DTYPE_BF16)
        for (uint32_t i = 0; i < n; i++)
            to[i] = td_from_bf16(half[i]);
    else
        td_floats_from_f16(to, half, n);
}

TD_INLINE void td_from_floats(void *to, uint32_t dtype, int64_t at, const float *from, uint32_t n)
{
    uint16_t *half = (uint16_t *)to + at;
    if (dtype == TANDEM_DTYPE_F32)
        memcpy((float *)to + at, from, n * sizeof *from);
    else if (dtype == TANDEM_DTYPE_BF16)
        for (uint32_t i = 0; i < n; i++)
            half[i] = td_to_bf16(from[i]);
    else
        td_floats_to_f16(half, from, n);
}

/* x rounded to the grid of E4M3, for |x| <= 448: adding 1.5 * 2^20 times x's power of two leaves 4 significant bits. */
TD_INLINE float td_round_e4m3(float x)
{
    const int32_t power = (int32_t)(td_bits(x) & 0x7f800000), least = 0x3c800000; /* 2^-6: below lie the subnormals */
    const float magic = td_float((uint32_t)(power > least ? power : least)) * 0x1.8p20f;
    return (x + magic) - magic;
}

/* Saturating; NaN becomes 0x7f. */
TD_INLINE uint8_t td_to_e4m3(float x)
{
    uint32_t sign = td_bits(x) >> 24 & 0x80;
    float a = td_float(td_bits(x) & 0x7fffffff);
    float r = td_round_e4m3(a > 448 ? 448 : a);
    if (!(r == r))
        return 0x7f;
    uint32_t code = r < 0x1p-6f ? (uint32_t)(int32_t)(r * 512) : (td_bits(r) >> 20) - 960;
    return (uint8_t)(sign | code);
}

TD_INLINE float td_from_e4m3(uint8_t code)
{
    uint32_t magnitude = code & 0x7fu;
    float a = td_float(magnitude << 20) * 0x1p120f;
    if (magnitude == 0x7f)
        a = NAN;
    return code & 0x80 ? -a : a;
}

#endif
