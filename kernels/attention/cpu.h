/* Attention on the CPU: the functions behind its kernels, and what they share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_ATTENTION_CPU_H
#define TANDEM_KERNELS_ATTENTION_CPU_H

#include "kernels/attention/params.h"
#include "kernels/cpu/cpu.h"
#include "tandem/types.h"

enum { TD_MAX_DIM = 256, TD_FAST_ROWS = 128, TD_TWIN_ROWS = 64 };

/* Scratch of one thread, by kernel. */
typedef struct td_local_prologue {
    float tile[TD_TILE_ROWS * TD_MAX_DIM]; /* [row][d_pad] */
    uint16_t codes[TD_TILE_ROWS * TD_MAX_DIM];
    float mean[TD_MAX_DIM], channel[TD_MAX_DIM], row_scale[TD_TILE_ROWS];
    uint32_t row_amax[TD_TILE_ROWS], row_bad[TD_TILE_ROWS];
} td_local_prologue;

/* Several are loaded at once, as words. */
typedef struct __attribute__((aligned(4))) td_twin_operand {
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
void td_cpu_prepare_smooth_v(const void *params, const td_block *at);
void td_cpu_prepare_q(const void *params, const td_block *at);
void td_cpu_prepare_kv(const void *params, const td_block *at);
void td_cpu_prepare_kv_smooth_v(const void *params, const td_block *at);
void td_twin_attn_8b_fp8(const void *params, const td_block *at);
void td_twin_attn_8b_wgmma(const void *params, const td_block *at);
void td_twin_attn_8b_f16(const void *params, const td_block *at);
void td_twin_attn_4b_fp8(const void *params, const td_block *at);
void td_twin_attn_4b_f16(const void *params, const td_block *at);
void td_twin_attn_f16(const void *params, const td_block *at);
void td_twin_attn_f16_wgmma(const void *params, const td_block *at);
void td_twin_attn_f16_wgmma_dump(const void *params, const td_block *at); /* tests: td_params_attention_f16_dump */
void td_fast_attn_8b(const void *params, const td_block *at);
void td_fast_attn_f16(const void *params, const td_block *at);
void td_fast_attn_masked(const void *params, const td_block *at);
void td_fast_attn_masked_codes(const void *params, const td_block *at);
void td_cpu_attn_spans(const void *params, const td_block *at);
void td_cpu_attn_unspanned(const void *params, const td_block *at);
void td_cpu_attn_masked_keys(const void *params, const td_block *at);

/* D = A B + C of one element, as the accumulator's tensor core rounds it; a and b are 32 E4M3 codes in MMA order. */
float td_twin_mma_e4m3(uint32_t accumulator, const uint8_t *a, const uint8_t *b, float c);
/* The same of 16 fp16 values, as mma.sync m16n8k16 of sm_90 rounds it. */
float td_twin_mma_f16(const uint16_t *a, const uint16_t *b, float c);
/* Both in two steps, for who multiplies a row by many columns: 32 codes or 16 values taken apart, false if one of them is not
 * finite, in which case D is NaN; and D of those that are. */
bool td_twin_apart_e4m3(uint32_t accumulator, const uint8_t *codes, td_twin_operand *to);
bool td_twin_apart_f16(const uint16_t *values, td_twin_operand *to);
float td_twin_sum_e4m3(uint32_t accumulator, const td_twin_operand *a, const td_twin_operand *b, float c);
float td_twin_sum_f16(const td_twin_operand *a, const td_twin_operand *b, float c);

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

/* One of the two codes of a packed byte: 0 the even channel's, 1 the odd one's. */
TD_INLINE int32_t td_int4(uint8_t byte, uint32_t odd)
{
    return (int8_t)(odd ? byte : byte << 4) >> 4;
}

#endif
