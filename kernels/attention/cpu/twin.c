/* The attention kernels of the GPU, simulated to the bit: same codes, same order, same rounding of the tensor cores.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A tensor core forms every product exactly, aligns products and C to the largest exponent among them, cuts each off
 * (towards zero) behind a fixed number of fractional bits, adds them exactly and cuts the sum off to its output format.
 * Exponents are those of the operands added up: a product in [2, 4) is not normalised first.
 *   mma m16n8k16 f16            25 fractional bits, all 16 products and C at once, output e8m23
 *   wgmma e4m3 (sm_90)          13 fractional bits, all 32 at once, output e8m13
 *   the same into fp16          13 fractional bits, all 32 at once; the sum is rounded to fp16, to nearest, ties to even
 *   mma e4m3 of sm_89           as wgmma in two halves of k = 16
 *   mma e4m3 of sm_90           no such unit: the compiler emits two f16 mma (k % 4 < 2, then the rest) and a float add
 *   mma e4m3 of sm_120          25 fractional bits, all 32 at once
 * Proven on an H200 for the first three and the fifth (tests/kernels/mma_h200.inc, tests/kernels/wgmma_f16_h200.inc); the others follow
 * published measurements.
 */
#include "kernels/attention/cpu.h"

#include <assert.h>
#include <stddef.h>

#include "kernels/target.h"

/* A code taken apart: mantissa * 2^(exponent - fraction bits of its format), mantissa with sign. */
typedef td_twin_operand operand;

/* Four products at a time, which any x86-64 can: unsigned, as sums of vectors are checked like those of numbers. */
typedef int32_t ints __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(16), aligned(4), may_alias));
typedef float floats __attribute__((vector_size(16)));
enum { LANES = 4, MOST_PRODUCTS = 32, NO_EXPONENT = -1000 };

static inline ints larger(ints x, ints y)
{
    const ints which = x > y;
    return (x & which) | (y & ~which);
}

/* What is left of c's magnitude behind `fraction_bits` below `top`. */
static int64_t cut_off(int64_t magnitude, int exponent, int top, int fraction_bits)
{
    const int shift = top - exponent + 23 - fraction_bits;
    return shift > 62 ? 0 : shift >= 0 ? magnitude >> shift : magnitude << -shift;
}

/* ldexpf(), which takes as long as half of the sum that it ends. */
static inline float times_power_of_2(float x, int exponent)
{
    const bool is_normal = exponent >= -126 && exponent <= 127;
    return is_normal ? x * td_float((uint32_t)(127 + exponent) << 23) : ldexpf(x, exponent);
}

/* Aligns, truncates and adds c and n products, which have `point` fractional bits. */
static float fused_sum(const operand *a, const operand *b, int n, int point, float c, int fraction_bits,
                       int output_bits)
{
    const uint32_t bits = td_bits(c);
    const int biased = (int)(bits >> 23 & 0xff);
    const int c_exponent = biased ? biased - 127 : -126;
    const int64_t c_magnitude = (int64_t)((bits & 0x7fffff) | (biased ? 0x800000u : 0));
    floats products[MOST_PRODUCTS / LANES]; /* of the mantissas, exactly */
    ints exponents[MOST_PRODUCTS / LANES], most = (ints){0} + NO_EXPONENT;
    int top = NO_EXPONENT;
    int64_t sum = 0;

    if (biased == 0xff)
        return c;
    static_assert(offsetof(operand, exponent) == 2 && sizeof(operand) == 4, "a mantissa in the lower half of a lane");
    for (int i = 0; i < n / LANES; i++) {
        const words x = *(const words *)(a + i * LANES), y = *(const words *)(b + i * LANES);
        const floats p = __builtin_convertvector((ints)(x << 16) >> 16, floats) *
                         __builtin_convertvector((ints)(y << 16) >> 16, floats);
        const ints e = (ints)((words)((ints)x >> 16) + (words)((ints)y >> 16)), exists = p != 0;

        products[i] = p;
        exponents[i] = e;
        most = larger(most, (e & exists) | (((ints){0} + NO_EXPONENT) & ~exists));
    }
    for (int lane = 0; lane < LANES; lane++)
        top = most[lane] > top ? most[lane] : top;
    if (c_magnitude && c_exponent > top)
        top = c_exponent;
    if (top == NO_EXPONENT)
        return 0;

    words cuts = {0}; /* no lane passes 2^30: products are below 2^22, and shifted by at most 5; or below 2^8, by 19 */
    for (int i = 0; i < n / LANES; i++) {
        /* Times a power of two, then cut off towards zero: as good as none where that is below 2^-100. Where there is no
         * product its exponent may be above the top one, and counts for nothing. */
        const words shift = (words)exponents[i] - (words)((ints){0} + top) + (uint32_t)(fraction_bits - point);
        const ints bounded = larger((ints)shift, (ints){0} - 100), none = bounded > 100;
        const words power = ((words)(bounded & ~none) + 127) << 23;

        cuts += (words) __builtin_convertvector(products[i] * (floats)power, ints);
    }
    for (int lane = 0; lane < LANES; lane++)
        sum += (int32_t)cuts[lane];
    if (c_magnitude)
        sum += bits >> 31 ? -cut_off(c_magnitude, c_exponent, top, fraction_bits)
                          : cut_off(c_magnitude, c_exponent, top, fraction_bits);
    if (sum == 0)
        return 0;
    uint64_t magnitude = sum < 0 ? (uint64_t)-sum : (uint64_t)sum;
    const int excess = 64 - __builtin_clzll(magnitude) - (output_bits + 1);
    if (excess > 0)
        magnitude = magnitude >> excess << excess;
    const float result = times_power_of_2((float)magnitude, top - fraction_bits);
    return sum < 0 ? -result : result;
}

/* False for an infinity or a NaN. */
static bool split_f16(uint16_t code, operand *to)
{
    const int biased = code >> 10 & 31, fraction = code & 0x3ff;
    const int magnitude = biased ? fraction | 0x400 : fraction;
    to->exponent = (int16_t)(biased ? biased - 15 : -14);
    to->mantissa = (int16_t)(code & 0x8000 ? -magnitude : magnitude);
    return biased != 31;
}

/* E4M3's codes taken apart, by sign and magnitude, as most of what the emulator does is this. Where the unit works in fp16, subnormals are
 * normalised. */
#define NORMAL(biased) {8, (biased) - 7}, {9, (biased) - 7}, {10, (biased) - 7}, {11, (biased) - 7}, \
                       {12, (biased) - 7}, {13, (biased) - 7}, {14, (biased) - 7}, {15, (biased) - 7}
#define NORMALS NORMAL(1), NORMAL(2), NORMAL(3), NORMAL(4), NORMAL(5), NORMAL(6), NORMAL(7), NORMAL(8), NORMAL(9), NORMAL(10), NORMAL(11), \
                NORMAL(12), NORMAL(13), NORMAL(14), NORMAL(15)
static const operand e4m3_codes[2][128] = {
    {{0, -6}, {1, -6}, {2, -6}, {3, -6}, {4, -6}, {5, -6}, {6, -6}, {7, -6}, NORMALS},
    {{0, -6}, {8, -9}, {8, -8}, {12, -8}, {8, -7}, {10, -7}, {12, -7}, {14, -7}, NORMALS}};

/* False for NaN. */
static inline bool split_e4m3(uint8_t code, uint32_t accumulator, operand *to)
{
    *to = e4m3_codes[accumulator == TD_ACCUMULATOR_HOPPER_MMA][code & 0x7f];
    to->mantissa = (int16_t)(code & 0x80 ? -to->mantissa : to->mantissa);
    return (code & 0x7f) != 0x7f;
}

/* Where of 32 the unit takes position k. */
static inline uint32_t slot_e4m3(uint32_t k, uint32_t accumulator)
{
    if (accumulator == TD_ACCUMULATOR_HOPPER_MMA)
        return (k & ~31u) | (k % 4 / 2 * 16 + k % 32 / 4 * 2 + k % 2);
    return accumulator == TD_ACCUMULATOR_F32 ? td_v_key(k) : k;
}

static float in_f16(float x)
{
    return td_from_f16(td_to_f16(x));
}

float td_twin_sum_e4m3(uint32_t accumulator, const operand *a, const operand *b, float c)
{
    switch (accumulator) {
    case TD_ACCUMULATOR_ADA_MMA: return fused_sum(a + 16, b + 16, 16, 6, fused_sum(a, b, 16, 6, c, 13, 13), 13, 13);
    case TD_ACCUMULATOR_WGMMA: return fused_sum(a, b, 32, 6, c, 13, 13);
    case TD_ACCUMULATOR_WGMMA_F16: return in_f16(fused_sum(a, b, 32, 6, in_f16(c), 13, 23));
    case TD_ACCUMULATOR_HOPPER_MMA:
        return fused_sum(a + 16, b + 16, 16, 6, fused_sum(a, b, 16, 6, 0, 25, 23), 25, 23) + c;
    case TD_ACCUMULATOR_BLACKWELL_MMA: return fused_sum(a, b, 32, 6, c, 25, 23);
    default:
        for (uint32_t k = 0; k < 32; k++)
            c += times_power_of_2((float)(a[k].mantissa * b[k].mantissa), a[k].exponent + b[k].exponent - 6);
        return c;
    }
}

float td_twin_sum_f16(const operand *a, const operand *b, float c)
{
    return fused_sum(a, b, 16, 20, c, 25, 23);
}

bool td_twin_apart_f16(const uint16_t *values, operand *to)
{
    bool finite = true;
    for (int k = 0; k < 16; k++)
        finite = split_f16(values[k], &to[k]) && finite;
    return finite;
}

static inline bool apart_e4m3(uint32_t accumulator, const uint8_t *codes, operand *to)
{
    bool finite = true;
    for (uint32_t k = 0; k < 32; k++)
        finite &= split_e4m3(codes[k], accumulator, &to[slot_e4m3(k, accumulator)]);
    return finite;
}

bool td_twin_apart_e4m3(uint32_t accumulator, const uint8_t *codes, operand *to)
{
    switch (accumulator) { /* each with the slots that the compiler knows */
    case TD_ACCUMULATOR_HOPPER_MMA: return apart_e4m3(TD_ACCUMULATOR_HOPPER_MMA, codes, to);
    case TD_ACCUMULATOR_F32: return apart_e4m3(TD_ACCUMULATOR_F32, codes, to);
    default: return apart_e4m3(accumulator, codes, to);
    }
}

float td_twin_mma_f16(const uint16_t *a, const uint16_t *b, float c)
{
    operand x[16], y[16];
    return td_twin_apart_f16(a, x) && td_twin_apart_f16(b, y) ? td_twin_sum_f16(x, y, c) : NAN; /* the kernels feed no infinities */
}

float td_twin_mma_e4m3(uint32_t accumulator, const uint8_t *a, const uint8_t *b, float c)
{
    operand x[32], y[32];
    return td_twin_apart_e4m3(accumulator, a, x) && td_twin_apart_e4m3(accumulator, b, y) ? td_twin_sum_e4m3(accumulator, x, y, c) : NAN;
}

typedef enum kind { KIND_8B_FP8, KIND_8B_F16, KIND_4B_FP8, KIND_4B_F16, KIND_F16 } kind;

static int32_t dot_s8(const void *a, const void *b, uint32_t n)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += ((const int8_t *)a)[i] * ((const int8_t *)b)[i];
    return sum;
}

static int32_t dot_s4(const void *a, const void *b, uint32_t n)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t x = ((const uint8_t *)a)[i / 2], y = ((const uint8_t *)b)[i / 2];
        sum += td_int4(x, i % 2) * td_int4(y, i % 2);
    }
    return sum;
}

static void attention(const td_params_attention *p, const td_block *at, kind which)
{
    td_local_twin *local = at->local;
    const uint32_t q_len = p->o.rows, dim = p->o.dim, d_pad = p->d_pad;
    const uint32_t tiles = (q_len + TD_TWIN_ROWS - 1) / TD_TWIN_ROWS;
    const uint32_t bh = at->x / tiles, first = at->x % tiles * TD_TWIN_ROWS;
    const uint32_t bhk = bh / p->heads * p->kv_heads + bh % p->heads / (p->heads / p->kv_heads);
    const uint32_t rows = q_len - first < TD_TWIN_ROWS ? q_len - first : TD_TWIN_ROWS;
    const int64_t past = (int64_t)p->kv_len - (int64_t)q_len; /* causal: row i sees keys up to i + past */
    const float sl2 = p->scale * TD_LOG2_E;
    const bool fp8 = which == KIND_8B_FP8 || which == KIND_4B_FP8, packed = which == KIND_4B_FP8 || which == KIND_4B_F16;
    const size_t v_bytes = fp8 ? 1 : 2;
    const size_t qk_row_bytes = which == KIND_F16 ? 2 * d_pad : packed ? TD_PACKED_ROW_BYTES(d_pad) : d_pad;
    const unsigned char *q_codes = (const unsigned char *)p->q_codes + (size_t)bh * p->q_pad * qk_row_bytes;
    const unsigned char *k_codes = (const unsigned char *)p->k_codes + (size_t)bhk * p->kv_pad * qk_row_bytes;
    const unsigned char *v_codes = (const unsigned char *)p->v_codes + (size_t)bhk * p->kv_pad * d_pad * v_bytes;
    const float *q_scale = p->q_scale + (size_t)bh * p->q_pad, *k_scale = p->k_scale + (size_t)bhk * p->kv_pad;
    const float *v_scale = p->v_scale + (size_t)bhk * d_pad;

    for (uint32_t r = 0; r < TD_TWIN_ROWS; r++) {
        local->m[r] = -INFINITY;
        local->l[r] = 0;
        memset(local->o[r], 0, d_pad * sizeof local->o[r][0]);
    }
    int64_t keys = p->kv_len;
    if (p->causal && (int64_t)(first + rows - 1) + past + 1 < keys)
        keys = (int64_t)(first + rows - 1) + past + 1;
    for (uint32_t key = 0; (int64_t)key < keys; key += TD_TILE_KEYS) {
        for (uint32_t c = 0; c < d_pad; c++)
            for (uint32_t j = 0; j < TD_TILE_KEYS; j++) {
                const unsigned char *code = v_codes + ((size_t)c * p->kv_pad + key + j) * v_bytes;
                if (fp8)
                    split_e4m3(*code, p->accumulator, &local->v[c][slot_e4m3(j, p->accumulator)]);
                else
                    split_f16(*(const uint16_t *)code, &local->v[c][j]);
            }
        for (uint32_t i = 0; which == KIND_F16 && i < TD_TILE_KEYS * d_pad; i++)
            split_f16(((const uint16_t *)k_codes)[(size_t)key * d_pad + i], &local->k[i]);
        for (uint32_t r = 0; r < rows; r++) {
            for (uint32_t c = 0; which == KIND_F16 && c < d_pad; c++)
                split_f16(((const uint16_t *)q_codes)[(size_t)(first + r) * d_pad + c], &local->q[c]);
            const size_t row = (size_t)bh * p->q_pad + first + r;
            const size_t dump = row * p->kv_pad + key;
            float s[TD_TILE_KEYS], m = local->m[r];
            for (uint32_t j = 0; j < TD_TILE_KEYS; j++) {
                float dot = 0;
                if (which == KIND_F16) {
                    for (uint32_t c = 0; c < d_pad; c += 16)
                        dot = fused_sum(local->q + c, local->k + j * d_pad + c, 16, 20, dot, 25, 23);
                    if (p->dump_s)
                        p->dump_s[dump + j] = (int32_t)td_bits(dot);
                } else {
                    const unsigned char *a = q_codes + (first + r) * qk_row_bytes;
                    const unsigned char *b = k_codes + (key + j) * qk_row_bytes;
                    const int32_t sum = packed ? dot_s4(a, b, d_pad) : dot_s8(a, b, d_pad);
                    dot = (float)sum;
                    if (p->dump_s)
                        p->dump_s[dump + j] = sum;
                }
                s[j] = dot * ((q_scale[first + r] * sl2) * k_scale[key + j]);
                if (p->delta) {
                    const size_t block = (size_t)bh * (p->q_pad / TD_TILE_ROWS) + first / TD_TILE_ROWS;
                    s[j] = fmaf(p->delta[block * p->kv_pad + key + j], sl2, s[j]);
                }
                if (key + j >= p->kv_len || (p->causal && (int64_t)(key + j) > (int64_t)(first + r) + past))
                    s[j] = -INFINITY;
                m = s[j] > m ? s[j] : m;
            }
            const float base = m == -INFINITY ? 0 : m;
            const float alpha = exp2f(local->m[r] - base);
            float sum = 0;
            operand codes[TD_TILE_KEYS];
            bool finite = true;
            for (uint32_t j = 0; j < TD_TILE_KEYS; j++) {
                const float probability = exp2f((s[j] - base) + TD_LOG2_448);
                const uint8_t code = td_to_e4m3(probability);
                sum += probability;
                if (fp8)
                    finite &= split_e4m3(code, p->accumulator, &codes[slot_e4m3(td_v_position(j), p->accumulator)]);
                else
                    finite &= split_f16(td_to_f16(probability), &codes[j]);
                if (p->dump_p)
                    p->dump_p[dump + j] = code;
            }
            local->m[r] = m;
            local->l[r] = local->l[r] * alpha + sum;
            for (uint32_t c = 0; c < d_pad; c++) {
                float *o = &local->o[r][c];
                if (fp8) {
                    const float half = td_twin_sum_e4m3(p->accumulator, codes, local->v[c], 0);
                    const float tile = finite ? td_twin_sum_e4m3(p->accumulator, codes + 32, local->v[c] + 32, half) : NAN;
                    *o = fmaf(*o, alpha, tile);
                    if (p->dump_r)
                        p->dump_r[(row * (p->kv_pad / TD_TILE_KEYS) + key / TD_TILE_KEYS) * d_pad + c] = tile;
                } else {
                    *o *= alpha;
                    for (uint32_t j = 0; j < TD_TILE_KEYS; j += 16)
                        *o = finite ? fused_sum(codes + j, local->v[c] + j, 16, 20, *o, 25, 23) : NAN;
                }
            }
        }
    }

    for (uint32_t r = 0; r < rows; r++) {
        const int64_t b = bh / p->heads, h = bh % p->heads, row = first + r;
        const int64_t at_o = b * p->o.stride_batch + h * p->o.stride_head + row * p->o.stride_row;
        const float l = local->l[r], base = local->m[r] == -INFINITY ? 0 : local->m[r];
        for (uint32_t c = 0; c < dim; c++) {
            float x = 0;
            if (l != 0) {
                x = local->o[r][c] / l * v_scale[c];
                if (p->v_mean)
                    x += p->v_mean[(size_t)bhk * d_pad + c];
            }
            if (p->o.dtype == TANDEM_DTYPE_F32)
                ((float *)p->o.data)[at_o + c] = x;
            else
                ((uint16_t *)p->o.data)[at_o + c] = p->o.dtype == TANDEM_DTYPE_F16 ? td_to_f16(x) : td_to_bf16(x);
        }
        if (p->lse) {
            float lse = -INFINITY;
            if (l != 0) {
                lse = ((base + log2f(l)) - TD_LOG2_448) * TD_LN_2;
                if (p->lse_bias)
                    lse += p->lse_bias[(size_t)bh * p->q_pad + (size_t)row] * p->scale;
            }
            p->lse[b * p->lse_stride_batch + h * p->lse_stride_head + row * p->lse_stride_row] = lse;
        }
    }
}

/* What a row of attn_8b_wgmma has added up, with another base. */
static void rebase(td_local_twin *local, uint32_t r, float here, uint32_t d_pad)
{
    const float high = here - local->m[r];
    if (!((td_is_far(local->m[r]) ? high : fmaf(fabsf(here), TD_HALF_STEP, high)) > TD_LATE_LIMIT_LOG2))
        return;
    const float next = td_twin_base(here, TD_LATE_LIMIT_LOG2 - TD_HEADROOM_LOG2);
    const float alpha = exp2f(local->m[r] - next);
    const float half = in_f16(alpha);
    local->m[r] = next;
    local->l[r] *= alpha;
    local->r_sum[r] = in_f16(local->r_sum[r] * half);
    for (uint32_t c = 0; c < d_pad; c++) {
        local->o[r][c] *= alpha;
        local->r[r][c] = in_f16(local->r[r][c] * half);
    }
}

/* 64 rows of attn_8b_wgmma, from row `first`, by the keys that a warpgroup has: every splits-th step of them. m is its
 * `top`; the last R is not in O yet. */
static void add_up(const td_params_attention *p, td_local_twin *local, uint32_t bh, uint32_t first, uint32_t rows,
                   int64_t keys, uint32_t split)
{
    const uint32_t d_pad = p->d_pad, bhk = bh / p->heads * p->kv_heads + bh % p->heads / (p->heads / p->kv_heads);
    const int64_t past = (int64_t)p->kv_len - (int64_t)p->o.rows; /* causal: row i sees keys up to i + past */
    const float sl2 = p->scale * TD_LOG2_E;
    const uint8_t *q_codes = (const uint8_t *)p->q_codes + (size_t)bh * p->q_pad * d_pad;
    const uint8_t *k_codes = (const uint8_t *)p->k_codes + (size_t)bhk * p->kv_pad * d_pad;
    const uint8_t *v_codes = (const uint8_t *)p->v_codes + (size_t)bhk * p->kv_pad * d_pad;
    const float *q_scale = p->q_scale + (size_t)bh * p->q_pad, *k_scale = p->k_scale + (size_t)bhk * p->kv_pad;

    for (uint32_t r = 0; r < TD_TWIN_ROWS; r++) {
        local->m[r] = -INFINITY;
        local->l[r] = local->r_sum[r] = 0;
        memset(local->o[r], 0, d_pad * sizeof local->o[r][0]);
        memset(local->r[r], 0, d_pad * sizeof local->r[r][0]);
    }
    uint32_t seen = 0; /* keys of this part so far */
    for (uint32_t key = split * TD_HOPPER_KEYS; (int64_t)key < keys; seen += TD_TILE_KEYS) {
        const bool again = seen % TD_HOPPER_SUM_KEYS(d_pad) == 0; /* R starts from 0 */
        operand ones[TD_TILE_KEYS];
        for (uint32_t j = 0; j < TD_TILE_KEYS; j++) {
            split_e4m3(0x38, TD_ACCUMULATOR_WGMMA_F16, &ones[j]);
            for (uint32_t c = 0; c < d_pad; c++)
                split_e4m3(v_codes[(size_t)c * p->kv_pad + key + j], TD_ACCUMULATOR_WGMMA_F16, &local->v[c][j]);
        }
        for (uint32_t r = 0; r < rows; r++) {
            const size_t row = (size_t)bh * p->q_pad + first + r, dump = row * p->kv_pad + key;
            int32_t s[TD_TILE_KEYS];
            float by[TD_TILE_KEYS], here = -INFINITY;
            bool masked[TD_TILE_KEYS];
            for (uint32_t j = 0; j < TD_TILE_KEYS; j++) {
                s[j] = dot_s8(q_codes + (size_t)(first + r) * d_pad, k_codes + (size_t)(key + j) * d_pad, d_pad);
                by[j] = (q_scale[first + r] * sl2) * k_scale[key + j];
                masked[j] = key + j >= p->kv_len || (p->causal && (int64_t)(key + j) > (int64_t)(first + r) + past);
                const float value = (float)s[j] * by[j];
                if (!masked[j] && value > here)
                    here = value;
                if (p->dump_s)
                    p->dump_s[dump + j] = s[j];
            }
            if (again) { /* O += R of the keys before */
                for (uint32_t c = 0; c < d_pad && seen; c++) {
                    if (p->dump_r)
                        p->dump_r[(row * TD_HOPPER_SUMS(p->kv_pad, d_pad) + key / TD_HOPPER_SUM_KEYS(d_pad) - 1) * d_pad +
                                  c] = local->r[r][c];
                    local->o[r][c] += local->r[r][c];
                    local->r[r][c] = 0;
                }
                local->l[r] += local->r_sum[r];
                local->r_sum[r] = 0;
            }
            rebase(local, r, here, d_pad);
            operand codes[TD_TILE_KEYS];
            bool finite = true;
            for (uint32_t j = 0; j < TD_TILE_KEYS; j++) {
                const float probability = exp2f(td_twin_exponent((float)s[j], by[j], local->m[r]));
                const uint8_t code = masked[j] ? 0 : td_to_e4m3(probability);
                finite &= split_e4m3(code, TD_ACCUMULATOR_WGMMA_F16, &codes[td_v_position(j)]);
                if (p->dump_p)
                    p->dump_p[dump + j] = code;
            }
            for (uint32_t c = 0; c <= d_pad; c++) { /* the last: the channel of ones */
                const operand *v = c < d_pad ? local->v[c] : ones;
                float *sum = c < d_pad ? &local->r[r][c] : &local->r_sum[r];
                for (uint32_t k = 0; k < TD_TILE_KEYS; k += 32)
                    *sum = finite ? td_twin_sum_e4m3(TD_ACCUMULATOR_WGMMA_F16, codes + k, v + k, *sum) : NAN;
            }
        }
        key += TD_TILE_KEYS;
        if (key % TD_HOPPER_KEYS == 0)
            key += (p->splits - 1) * TD_HOPPER_KEYS;
    }
    for (uint32_t r = 0; r < rows && p->dump_r && keys > 0; r++)
        memcpy(p->dump_r + (((size_t)bh * p->q_pad + first + r) * TD_HOPPER_SUMS(p->kv_pad, d_pad) +
                            (size_t)(keys - 1) / TD_HOPPER_SUM_KEYS(d_pad)) *
                               d_pad,
               local->r[r], d_pad * sizeof local->r[r][0]);
}

/* What warpgroups have added up of a row, by the largest of their bases, in their order. */
static void put_together(td_local_twin *local, uint32_t r, uint32_t d_pad, uint32_t splits)
{
    float top = -INFINITY, l = 0;
    for (uint32_t i = 0; i < splits; i++)
        top = fmaxf(top, local->parts[i].m[r]);
    for (uint32_t i = 0; i < splits; i++) {
        const td_twin_part *part = &local->parts[i];
        const float by = part->m[r] == top ? 1 : exp2f(part->m[r] - top);
        l = i ? fmaf(part->l[r], by, l) : part->l[r] * by;
        for (uint32_t c = 0; c < d_pad; c++)
            local->o[r][c] = i ? fmaf(part->o[r][c], by, local->o[r][c]) : part->o[r][c] * by;
    }
    local->m[r] = top;
    local->l[r] = l;
}

/* 64 rows of attn_8b_wgmma, from row `first`. */
static void attention_wgmma(const td_params_attention *p, td_local_twin *local, uint32_t bh, uint32_t first)
{
    const uint32_t q_len = p->o.rows, dim = p->o.dim, d_pad = p->d_pad;
    const uint32_t bhk = bh / p->heads * p->kv_heads + bh % p->heads / (p->heads / p->kv_heads);
    const uint32_t rows = q_len - first < TD_TWIN_ROWS ? q_len - first : TD_TWIN_ROWS;
    const int64_t past = (int64_t)p->kv_len - (int64_t)q_len;
    const float *v_scale = p->v_scale + (size_t)bhk * d_pad;
    int64_t keys = p->kv_len;
    if (p->causal && (int64_t)(first + rows - 1) + past + 1 < keys)
        keys = (int64_t)(first + rows - 1) + past + 1;

    for (uint32_t split = 0; split < p->splits; split++) {
        td_twin_part *part = &local->parts[split];
        add_up(p, local, bh, first, rows, keys, split);
        for (uint32_t r = 0; r < rows; r++) {
            part->m[r] = local->m[r];
            part->l[r] = local->l[r] + local->r_sum[r];
            for (uint32_t c = 0; c < d_pad; c++)
                part->o[r][c] = local->o[r][c] + local->r[r][c];
        }
    }
    for (uint32_t r = 0; r < rows; r++)
        put_together(local, r, d_pad, p->splits);

    for (uint32_t r = 0; r < rows; r++) {
        const int64_t b = bh / p->heads, h = bh % p->heads, row = first + r;
        const int64_t at_o = b * p->o.stride_batch + h * p->o.stride_head + row * p->o.stride_row;
        const float l = local->l[r], part = 1 / l;
        for (uint32_t c = 0; c < dim; c++) {
            float x = 0;
            if (l != 0) {
                x = local->o[r][c] * part * v_scale[c];
                if (p->v_mean)
                    x += p->v_mean[(size_t)bhk * d_pad + c];
            }
            if (p->o.dtype == TANDEM_DTYPE_F32)
                ((float *)p->o.data)[at_o + c] = x;
            else
                ((uint16_t *)p->o.data)[at_o + c] = p->o.dtype == TANDEM_DTYPE_F16 ? td_to_f16(x) : td_to_bf16(x);
        }
        if (p->lse) {
            float lse = -INFINITY;
            if (l != 0) {
                lse = (local->m[r] + log2f(l)) * TD_LN_2;
                if (p->lse_bias)
                    lse += p->lse_bias[(size_t)bh * p->q_pad + (size_t)row] * p->scale;
            }
            p->lse[b * p->lse_stride_batch + h * p->lse_stride_head + row * p->lse_stride_row] = lse;
        }
    }
}

void td_twin_attn_8b_wgmma(const void *params, const td_block *at)
{
    const td_params_attention *p = params;
    const uint32_t rows = p->tile_rows, tiles = (p->o.rows + rows - 1) / rows;
    for (uint64_t tile = at->x; tile < (uint64_t)p->planes * tiles; tile += p->walkers) { /* the GPU has another order */
        const uint32_t first = (uint32_t)(tile % tiles) * rows;
        for (uint32_t row = first; row < first + rows && row < p->o.rows; row += TD_TWIN_ROWS)
            attention_wgmma(p, at->local, (uint32_t)(tile / tiles), row);
        if (!p->walkers)
            break;
    }
}

void td_twin_attn_8b_fp8(const void *params, const td_block *at)
{
    attention(params, at, KIND_8B_FP8);
}

void td_twin_attn_8b_f16(const void *params, const td_block *at)
{
    attention(params, at, KIND_8B_F16);
}

void td_twin_attn_4b_fp8(const void *params, const td_block *at)
{
    attention(params, at, KIND_4B_FP8);
}

void td_twin_attn_4b_f16(const void *params, const td_block *at)
{
    attention(params, at, KIND_4B_F16);
}

void td_twin_attn_f16(const void *params, const td_block *at)
{
    attention(params, at, KIND_F16);
}
