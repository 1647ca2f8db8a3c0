/* What the CPU kernels share: the choice of instruction set, number formats, and the functions behind the records.
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
#include "tandem/types.h"

#if defined(__x86_64__) && !defined(TD_NO_SIMD)
#define TD_X86 1
#define TD_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define TD_TARGET_AVX512 \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#else
#define TD_X86 0
#endif
#define TD_INLINE static inline __attribute__((always_inline))

enum { TD_MAX_DIM = 256, TD_FAST_ROWS = 128, TD_TWIN_ROWS = 64 };

typedef enum td_isa { TD_ISA_C, TD_ISA_AVX2, TD_ISA_AVX512, TD_ISA_COUNT } td_isa;

/* The instruction set in use: the best of the machine unless td_cpu_isa_force() chose another. */
td_isa td_cpu_isa_level(void);
const char *td_cpu_isa(void);
/* For tests and benches; NULL: the best again. False, and nothing changes, for a name that this machine lacks. */
bool td_cpu_isa_force(const char *name);

/* See td_block: to be asked every 100 us or so. */
TD_INLINE bool td_block_goes_on(const td_block *at)
{
    return !at->goes_on || at->goes_on(at->user);
}

/* Scratch of one thread, by kernel. */
typedef struct td_local_prologue {
    float tile[TD_TILE_ROWS * TD_MAX_DIM]; /* [row][d_pad] */
    uint16_t codes[TD_TILE_ROWS * TD_MAX_DIM];
    float mean[TD_MAX_DIM], channel[TD_MAX_DIM], row_scale[TD_TILE_ROWS];
    uint32_t row_amax[TD_TILE_ROWS], row_bad[TD_TILE_ROWS];
} td_local_prologue;

typedef struct td_twin_operand {
    int16_t mantissa, exponent;
} td_twin_operand;

/* What a warpgroup of attn_8b_wgmma has added up. */
typedef struct td_twin_part {
    float o[TD_TWIN_ROWS][TD_MAX_DIM], m[TD_TWIN_ROWS], l[TD_TWIN_ROWS];
} td_twin_part;

typedef struct td_local_twin {
    float o[TD_TWIN_ROWS][TD_MAX_DIM];
    float r[TD_TWIN_ROWS][TD_MAX_DIM];
    float m[TD_TWIN_ROWS], l[TD_TWIN_ROWS], r_sum[TD_TWIN_ROWS];
    td_twin_part parts[TD_MAX_SPLITS];
    td_twin_operand q[TD_MAX_DIM], k[TD_TILE_KEYS * TD_MAX_DIM], v[TD_MAX_DIM][TD_TILE_KEYS];
} td_local_twin;

typedef struct td_local_fast {
    float o[TD_FAST_ROWS * TD_MAX_DIM];
    float l[TD_FAST_ROWS][16];
    float m[TD_FAST_ROWS];
    float q_scale[TD_FAST_ROWS];
    float k_scale[TD_TILE_KEYS], delta[TD_TILE_KEYS];
    float s[4][TD_TILE_KEYS];
    float alpha[4];
    int32_t k_sum[TD_TILE_KEYS];
    float q[TD_FAST_ROWS * TD_MAX_DIM]; /* codes, widened as the instruction set likes them */
    float k[TD_TILE_KEYS * TD_MAX_DIM];
    float v[TD_TILE_KEYS * TD_MAX_DIM];
    float e4m3[256];
} td_local_fast;

void td_cpu_mean_partial(const void *params, const td_block *at);
void td_cpu_mean_final(const void *params, const td_block *at);
void td_cpu_amax_partial(const void *params, const td_block *at);
void td_cpu_quant_qk(const void *params, const td_block *at);
void td_cpu_quant_v(const void *params, const td_block *at);
void td_cpu_delta_s(const void *params, const td_block *at);
void td_cpu_stats(const void *params, const td_block *at);
void td_cpu_quantise(const void *params, const td_block *at);
void td_cpu_prepare(const void *params, const td_block *at);
void td_cpu_prepare_q(const void *params, const td_block *at);
void td_cpu_prepare_kv(const void *params, const td_block *at);
void td_cpu_claim(const void *params, const td_block *at);
void td_cpu_commit(const void *params, const td_block *at);
void td_twin_attn_8b_fp8(const void *params, const td_block *at);
void td_twin_attn_8b_wgmma(const void *params, const td_block *at);
void td_twin_attn_8b_f16(const void *params, const td_block *at);
void td_twin_attn_4b_fp8(const void *params, const td_block *at);
void td_twin_attn_4b_f16(const void *params, const td_block *at);
void td_twin_attn_f16(const void *params, const td_block *at);
void td_twin_attn_f16_wgmma(const void *params, const td_block *at);
void td_fast_attn_8b(const void *params, const td_block *at);
void td_fast_attn_f16(const void *params, const td_block *at);

/* D = A B + C of one element, as the accumulator's tensor core rounds it; a and b are 32 E4M3 codes in MMA order. */
float td_twin_mma_e4m3(uint32_t accumulator, const uint8_t *a, const uint8_t *b, float c);
/* The same of 16 fp16 values, as mma.sync m16n8k16 of sm_90 rounds it. */
float td_twin_mma_f16(const uint16_t *a, const uint16_t *b, float c);

/* As attn_8b_wgmma and attn_f16_wgmma have it: log2 of P of a score of s times c, and the base by which P is 2^below. */
TD_INLINE bool td_is_far(float base)
{
    return fabsf(base) >= TD_FAR_BASE && base != -INFINITY;
}

TD_INLINE float td_twin_exponent(float s, float c, float base)
{
    if (!td_is_far(base))
        return fmaf(s, c, -base);
    const float score = s * c;
    return score - base;
}

TD_INLINE float td_twin_base(float score, float below)
{
    const float next = score - below;
    return td_is_far(score) || td_is_far(next) ? score : next;
}

/* The place within its 16 keys where quant_v stores a key, and back. */
TD_INLINE uint32_t td_v_position(uint32_t key)
{
    return (key & ~15u) | ((key & 6u) << 1) | ((key & 8u) >> 2) | (key & 1u);
}

TD_INLINE uint32_t td_v_key(uint32_t position)
{
    return (position & ~15u) | ((position & 12u) >> 1) | ((position & 2u) << 2) | (position & 1u);
}

/* One of the two codes of a packed byte: 0 the even channel's, 1 the odd one's. */
TD_INLINE int32_t td_int4(uint8_t byte, uint32_t odd)
{
    return (int8_t)(odd ? byte : byte << 4) >> 4;
}

/* Which of a chunk's groups a row of 0..127 belongs to, for granularities of at least one row and at most 128. */
TD_INLINE uint32_t td_row_group(uint32_t row, uint32_t granularity, uint32_t is_k)
{
    switch (granularity) {
    case TANDEM_GRANULARITY_THREAD_ADA: return is_k ? row / 64 * 4 + row % 8 / 2 : row / 32 * 8 + row % 8;
    case TANDEM_GRANULARITY_THREAD_HOPPER: return is_k ? row % 8 / 2 : row / 16 * 8 + row % 8;
    case TANDEM_GRANULARITY_TOKEN: return row;
    case TANDEM_GRANULARITY_WARP: return is_k ? row / 64 : row / 32;
    case TANDEM_GRANULARITY_BLOCK: return is_k ? row / 64 : 0;
    default: return 0;
    }
}

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

TD_INLINE float td_from_f16(uint16_t h)
{
    uint32_t magnitude = td_bits(td_float((uint32_t)(h & 0x7fff) << 13) * 0x1p112f);
    if ((h & 0x7c00) == 0x7c00)
        magnitude = 0x7f800000u | (uint32_t)(h & 0x3ff) << 13;
    return td_float(magnitude | (uint32_t)(h & 0x8000) << 16);
}

TD_INLINE uint16_t td_to_f16(float x)
{
    uint32_t sign = td_bits(x) >> 16 & 0x8000, a = td_bits(x) & 0x7fffffff;
    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7fff);
    if (a >= 0x47800000)
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) /* adding 0.5 leaves 2^-24 as the last place */
        return (uint16_t)(sign | (td_bits(td_float(a) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | ((a + 0xfff + (a >> 13 & 1) - 0x38000000) >> 13));
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

/* a where the condition holds, else b: as arithmetic, which compilers turn into vectors where a branch stops them. */
TD_INLINE uint32_t td_select(bool condition, uint32_t a, uint32_t b)
{
    const uint32_t mask = 0u - (uint32_t)condition;
    return (a & mask) | (b & ~mask);
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
