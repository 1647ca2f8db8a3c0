/* Every arithmetic of the SageAttention2 paper and of its baselines, on one head of floats: for tables of accuracy.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The product's own modes are plans (kernels/target.h); what the paper compares them with runs here only. Codes, scales,
 * means and the softmax are those of kernels/params.h wherever a variant has the same ones.
 */
#ifndef TD_VARIANTS_H
#define TD_VARIANTS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum td_qk_kind { TD_QK_F32, TD_QK_F16, TD_QK_INT8, TD_QK_INT4, TD_QK_E4M3 } td_qk_kind;

/* Applied to Q and K before they are smoothed and quantised; the exact product stays the same.
 *   SMOOTH_ATTN  Q * l, K / l with l = sqrt(max |K| / max |Q|) of each channel (SmoothQuant with alpha = 0.5)
 *   HADAMARD     both times a random sign a channel, then a normalised Hadamard matrix; where head_dim is no power of
 *                two, one for each run of channels of the largest power of two that divides it */
typedef enum td_transform { TD_TRANSFORM_NONE, TD_TRANSFORM_SMOOTH_ATTN, TD_TRANSFORM_HADAMARD } td_transform;

/* P in [0, 1] is multiplied by the largest code (448, 57344, 127; 448 for F16) and rounded; V by that / amax. F32
 * leaves both as they are. */
typedef enum td_pv_kind { TD_PV_F32, TD_PV_F16, TD_PV_E4M3, TD_PV_E5M2, TD_PV_INT8 } td_pv_kind;

/* What shares a scale of V: a channel of the head, 64 keys with all channels (needs two_level), the whole head. */
typedef enum td_v_scale { TD_V_CHANNEL, TD_V_BLOCK, TD_V_TENSOR } td_v_scale;

typedef struct td_arithmetic {
    td_qk_kind qk;
    td_transform transform;
    uint32_t smooth;      /* TANDEM_SMOOTH_Q, _K, _V, or 0 for none */
    uint32_t granularity; /* tandem_granularity, not DEFAULT; of INT8, INT4 and E4M3 */
    bool clip;            /* INT4 scales as the product has them, td_int4_clip(); false: max / 7, as in the paper */
    td_pv_kind pv;
    td_v_scale v_scale;
    bool two_level; /* R = P V of flush_keys keys in the unit, O = O * alpha + R in float; else O stays in the unit */
    uint32_t flush_keys;  /* 64, 128 or 256: also the keys of one step of the online softmax; 64 without two_level */
    uint32_t accumulator; /* td_accumulator of products of 8-bit floats; the units of 25 bits count as F32 */
    uint64_t seed;        /* of the Hadamard's signs */
} td_arithmetic;

/* Named modes: 8b, 4b (as the product has them, on the accumulator of sm_89), and the baselines sage1 (SageAttention:
 * INT8 per block, smooth K, FP16 P V), smoothattn, hadamard (each before 4b without smoothing), fa3fp8
 * (FlashAttention-3's FP8: E4M3 per block after a Hadamard, one scale for V, no second level, on the accumulator of
 * sm_90) and fa3fp8-tensor (one scale each for Q, K and V, no Hadamard). False if there is no such name. */
bool td_arithmetic_named(const char *name, td_arithmetic *out);

typedef struct td_head {
    const float *q, *k, *v;      /* dense: [q_len][dim], [kv_len][dim], finite */
    uint32_t q_len, kv_len, dim; /* dim: a multiple of 16, at most 256 */
    uint32_t causal;
    float scale; /* of the softmax, as in params.h */
} td_head;

/* o[q_len][dim] = attention with that arithmetic, by up to `threads` threads; the result does not depend on how many.
 * False when memory is short or the arithmetic is impossible. */
bool td_variant_attention(const td_arithmetic *how, const td_head *head, float *o, uint32_t threads);

/* The same in float64, straight from the formula but fast enough for tables. */
bool td_exact_attention(const td_head *head, double *o, uint32_t threads);

/* Codes of Q or K, [rows][dim], as the variant multiplies them: for histograms. */
bool td_variant_codes(const td_arithmetic *how, const td_head *head, bool of_k, float *codes);

#endif
