/* Variants of quantised attention on one head, and attention in float64 for comparison.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * All codes are kept as floats, which hold them and the sums of their products exactly: INT8 dot products stay below
 * 2^24. The 13-bit accumulator is that of kernels/attention/cpu/twin.c, 16 columns at a time. The bodies are plain C on vectors
 * of 16 floats, compiled for each instruction set with the same bits.
 */
#include "kernels/attention/cpu/variants.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "interop/os/memory.h"
#include "interop/os/thread_pool.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/cpu.h"
#include "kernels/target.h"

enum { BLOCK_ROWS = 128, TILE = 64, MAX_STEP = 256, FRACTION_BITS = 13, NO_EXPONENT = -1000 };

typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(64), aligned(4), may_alias));
typedef double dvec __attribute__((vector_size(64), aligned(8), may_alias));
typedef float half_vec __attribute__((vector_size(32), aligned(4), may_alias));
enum { LANES = 16, DOUBLE_LANES = 8 };

/* A format's largest code, significant bits behind the point, and least exponent. */
typedef struct format {
    float top;
    int fraction_bits, least_exponent;
    bool integer;
} format;

static format qk_format(td_qk_kind kind)
{
    switch (kind) {
    case TD_QK_INT8: return (format){.top = 127, .integer = true};
    case TD_QK_INT4: return (format){.top = 7, .integer = true};
    case TD_QK_E4M3: return (format){448, 3, -6, false};
    default: return (format){65504, 10, -14, false};
    }
}

static format pv_format(td_pv_kind kind)
{
    switch (kind) {
    case TD_PV_INT8: return (format){.top = 127, .integer = true};
    case TD_PV_E5M2: return (format){57344, 2, -14, false};
    case TD_PV_E4M3: return (format){448, 3, -6, false};
    default: return (format){448, 10, -14, false};
    }
}

static float power_of_2(int exponent)
{
    return td_float((uint32_t)(127 + exponent) << 23);
}

/* Adding 1.5 * 2^(23 - bits) times x's power of two leaves that many bits, rounded to nearest even. */
TD_INLINE float round_to(float x, format f)
{
    x = x > f.top ? f.top : x < -f.top ? -f.top : x;
    const uint32_t exponent = td_bits(x) & 0x7f800000, least = (uint32_t)(127 + f.least_exponent) << 23;
    const float magic = td_float(exponent > least ? exponent : least) * (1.5f * power_of_2(23 - f.fraction_bits));
    const float integer = (x + 0x1.8p23f) - 0x1.8p23f, rounded = (x + magic) - magic;
    return f.integer ? integer : rounded;
}

/* The exponent that the tensor core aligns by: that of the code, not below the format's least. */
static int32_t exponent_of(float code, format f)
{
    const int exponent = (int)(td_bits(code) >> 23 & 0xff) - 127;
    return code == 0 ? NO_EXPONENT : exponent < f.least_exponent ? f.least_exponent : exponent;
}

bool td_arithmetic_named(const char *name, td_arithmetic *out)
{
    const td_arithmetic four = {.qk = TD_QK_INT4,
                                .smooth = TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K,
                                .granularity = TANDEM_GRANULARITY_THREAD_ADA,
                                .clip = true,
                                .pv = TD_PV_E4M3,
                                .two_level = true,
                                .flush_keys = 64,
                                .accumulator = TD_ACCUMULATOR_ADA_MMA,
                                .seed = 1};
    *out = four;
    if (strcmp(name, "8b") == 0) {
        out->qk = TD_QK_INT8;
        out->smooth = TANDEM_SMOOTH_K;
    } else if (strcmp(name, "sage1") == 0) {
        out->qk = TD_QK_INT8;
        out->smooth = TANDEM_SMOOTH_K;
        out->granularity = TANDEM_GRANULARITY_BLOCK;
        out->pv = TD_PV_F16;
        out->accumulator = TD_ACCUMULATOR_F32;
    } else if (strcmp(name, "smoothattn") == 0 || strcmp(name, "hadamard") == 0) {
        out->transform = *name == 's' ? TD_TRANSFORM_SMOOTH_ATTN : TD_TRANSFORM_HADAMARD;
        out->smooth = 0;
    } else if (strcmp(name, "fa3fp8") == 0 || strcmp(name, "fa3fp8-tensor") == 0) {
        const bool tensor = name[6];
        out->qk = TD_QK_E4M3;
        out->transform = tensor ? TD_TRANSFORM_NONE : TD_TRANSFORM_HADAMARD;
        out->smooth = 0;
        out->granularity = tensor ? TANDEM_GRANULARITY_TENSOR : TANDEM_GRANULARITY_BLOCK;
        out->v_scale = TD_V_TENSOR;
        out->two_level = false;
        out->accumulator = TD_ACCUMULATOR_WGMMA;
    } else {
        return strcmp(name, "4b") == 0;
    }
    return true;
}

typedef struct work {
    const td_arithmetic *how;
    const td_head *head;
    uint32_t q_pad, kv_pad, dim, step;
    bool qk_unit, pv_unit; /* sums of products go through the 13-bit accumulator */
    float *q, *k, *v;      /* codes: [q_pad][dim], [kv_pad / 64][dim][64], [kv_pad][dim] */
    int32_t *q_exponent, *k_exponent, *v_exponent;
    float *q_scale, *k_scale; /* one a row */
    float *delta;             /* [q_pad / 128][kv_pad] or NULL */
    float *block_scale;       /* [kv_pad / 64] or NULL */
    float channel_scale[TD_MAX_DIM], v_mean[TD_MAX_DIM];
} work;

static void *allocate(size_t elements, size_t size)
{
    void *data = td_aligned_alloc(64, (elements * size + 63) / 64 * 64 + 64);
    if (data)
        memset(data, 0, (elements * size + 63) / 64 * 64 + 64);
    return data;
}

static void release(work *w)
{
    void *const all[] = {w->q,          w->k,       w->v,       w->q_exponent, w->k_exponent,
                         w->v_exponent, w->q_scale, w->k_scale, w->delta,      w->block_scale};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        td_aligned_free(all[i]);
}

/* As params.h has it: sums of chunks of 128 rows, then of the chunks. */
static void mean_of(float *mean, const float *x, uint32_t rows, uint32_t dim)
{
    for (uint32_t c = 0; c < dim; c++) {
        float total = 0;
        for (uint32_t chunk = 0; chunk < rows; chunk += BLOCK_ROWS) {
            float sum = 0;
            for (uint32_t r = chunk; r < rows && r < chunk + BLOCK_ROWS; r++)
                sum += x[(size_t)r * dim + c];
            total += sum;
        }
        mean[c] = total / (float)rows;
    }
}

static void subtract(float *x, const float *mean, uint32_t rows, uint32_t dim)
{
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < dim; c++)
            x[(size_t)r * dim + c] -= mean[c];
}

static float largest(const float *x, size_t count, size_t stride)
{
    float most = 0;
    for (size_t i = 0; i < count; i++)
        most = fabsf(x[i * stride]) > most ? fabsf(x[i * stride]) : most;
    return most;
}

static void smooth_attn(float *q, float *k, const td_head *head)
{
    const uint32_t dim = head->dim;
    for (uint32_t c = 0; c < dim; c++) {
        const float of_q = largest(q + c, head->q_len, dim), of_k = largest(k + c, head->kv_len, dim);
        if (of_q < TD_TINY_AMAX || of_k < TD_TINY_AMAX)
            continue;
        const float factor = sqrtf(of_k / of_q);
        for (uint32_t r = 0; r < head->q_len; r++)
            q[(size_t)r * dim + c] *= factor;
        for (uint32_t r = 0; r < head->kv_len; r++)
            k[(size_t)r * dim + c] /= factor;
    }
}

static void hadamard(float *x, uint32_t rows, uint32_t dim, uint64_t seed)
{
    const uint32_t run = dim & (0u - dim);
    const float norm = 1 / sqrtf((float)run);
    float sign[TD_MAX_DIM];
    for (uint32_t c = 0; c < dim; c++) {
        uint64_t z = (seed += 0x9e3779b97f4a7c15u);
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        sign[c] = z >> 63 ? -norm : norm;
    }
    for (uint32_t r = 0; r < rows; r++) {
        float *row = x + (size_t)r * dim;
        for (uint32_t c = 0; c < dim; c++)
            row[c] *= sign[c];
        for (uint32_t half = 1; half < run; half *= 2)
            for (uint32_t c = 0; c < dim; c++)
                if (!(c & half)) {
                    const float a = row[c], b = row[c + half];
                    row[c] = a + b;
                    row[c + half] = a - b;
                }
    }
}

/* Rounds rows to codes in place; scale[r] is what a code of row r is worth. */
static void quantise_rows(float *x, float *scale, uint32_t rows, uint32_t dim, const td_arithmetic *how, bool is_k)
{
    const td_qk_kind kind = how->qk;
    const uint32_t granularity = how->granularity;
    const format f = qk_format(kind);
    const uint32_t both = TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K;
    const bool clips = kind == TD_QK_INT4 && how->clip && (how->smooth & both) == both;
    const float clip = clips ? td_int4_clip(granularity, dim, is_k) : 1;
    const float whole = granularity == TANDEM_GRANULARITY_TENSOR ? largest(x, (size_t)rows * dim, 1) : 0;
    for (uint32_t first = 0; first < rows; first += BLOCK_ROWS) {
        const uint32_t count = rows - first < BLOCK_ROWS ? rows - first : BLOCK_ROWS;
        float amax[BLOCK_ROWS] = {0};
        for (uint32_t r = 0; r < count; r++) {
            float *group = &amax[td_row_group(r, granularity, is_k)];
            const float own = largest(x + (size_t)(first + r) * dim, dim, 1);
            *group = own > *group ? own : *group;
        }
        for (uint32_t r = 0; r < count; r++) {
            float *row = x + (size_t)(first + r) * dim;
            const float most =
                (granularity == TANDEM_GRANULARITY_TENSOR ? whole : amax[td_row_group(r, granularity, is_k)]) * clip;
            scale[first + r] = 1;
            if (kind == TD_QK_F32)
                continue;
            float inverse = 1;
            if (kind != TD_QK_F16) {
                scale[first + r] = most < TD_TINY_AMAX ? 0 : most / f.top;
                inverse = most < TD_TINY_AMAX ? 0 : f.top / most;
            }
            for (uint32_t c = 0; c < dim; c++)
                row[c] = round_to(row[c] * inverse, f);
        }
    }
}

static void quantise_v(work *w)
{
    const uint32_t dim = w->dim, rows = w->head->kv_len;
    const format f = pv_format(w->how->pv);
    const bool scaled = w->how->pv == TD_PV_E4M3 || w->how->pv == TD_PV_E5M2 || w->how->pv == TD_PV_INT8;
    const float whole = largest(w->v, (size_t)rows * dim, 1);
    float inverse[TD_MAX_DIM];
    for (uint32_t c = 0; c < dim; c++) {
        const float most = w->how->v_scale == TD_V_CHANNEL ? largest(w->v + c, rows, dim) : whole;
        w->channel_scale[c] = 1;
        inverse[c] = 1;
        if (scaled && w->how->v_scale != TD_V_BLOCK) {
            w->channel_scale[c] = most < TD_TINY_AMAX ? 0 : most / f.top;
            inverse[c] = most < TD_TINY_AMAX ? 0 : f.top / most;
        }
    }
    if (w->how->pv == TD_PV_F32)
        return;
    format rounding = f;
    if (!scaled)
        rounding.top = 65504;
    for (uint32_t first = 0; first < rows; first += TILE) {
        const uint32_t count = rows - first < TILE ? rows - first : TILE;
        float block_inverse = 1;
        if (w->block_scale) {
            const float most = largest(w->v + (size_t)first * dim, (size_t)count * dim, 1);
            w->block_scale[first / TILE] = most < TD_TINY_AMAX ? 0 : most / f.top;
            block_inverse = most < TD_TINY_AMAX ? 0 : f.top / most;
        }
        for (uint32_t r = first; r < first + count; r++)
            for (uint32_t c = 0; c < dim; c++) {
                float *x = &w->v[(size_t)r * dim + c];
                *x = round_to(*x * (w->block_scale ? block_inverse : inverse[c]), rounding);
            }
    }
}

static int32_t *exponents(const float *codes, size_t count, format f)
{
    int32_t *to = allocate(count, sizeof *to);
    for (size_t i = 0; to && i < count; i++)
        to[i] = exponent_of(codes[i], f);
    return to;
}

/* Transforms, smooths and quantises: everything before the loop over keys. `k` is left in order of rows. */
static bool prologue(work *w)
{
    const td_arithmetic *how = w->how;
    const td_head *head = w->head;
    const uint32_t dim = w->dim;
    w->q = allocate((size_t)w->q_pad * dim, sizeof(float));
    w->k = allocate((size_t)w->kv_pad * dim, sizeof(float));
    w->v = allocate((size_t)w->kv_pad * dim, sizeof(float));
    w->q_scale = allocate(w->q_pad, sizeof(float));
    w->k_scale = allocate(w->kv_pad, sizeof(float));
    if (how->smooth & TANDEM_SMOOTH_Q)
        w->delta = allocate((size_t)(w->q_pad / BLOCK_ROWS) * w->kv_pad, sizeof(float));
    if (how->v_scale == TD_V_BLOCK)
        w->block_scale = allocate(w->kv_pad / TILE, sizeof(float));
    if (!w->q || !w->k || !w->v || !w->q_scale || !w->k_scale || (!w->delta && how->smooth & TANDEM_SMOOTH_Q) ||
        (!w->block_scale && how->v_scale == TD_V_BLOCK))
        return false;
    memcpy(w->q, head->q, (size_t)head->q_len * dim * sizeof(float));
    memcpy(w->k, head->k, (size_t)head->kv_len * dim * sizeof(float));
    memcpy(w->v, head->v, (size_t)head->kv_len * dim * sizeof(float));
    if (how->transform == TD_TRANSFORM_SMOOTH_ATTN)
        smooth_attn(w->q, w->k, head);
    if (how->transform == TD_TRANSFORM_HADAMARD) {
        hadamard(w->q, head->q_len, dim, how->seed);
        hadamard(w->k, head->kv_len, dim, how->seed);
    }
    float mean[TD_MAX_DIM];
    if (how->smooth & TANDEM_SMOOTH_K) {
        mean_of(mean, w->k, head->kv_len, dim);
        subtract(w->k, mean, head->kv_len, dim);
    }
    if (how->smooth & TANDEM_SMOOTH_V) {
        mean_of(w->v_mean, w->v, head->kv_len, dim);
        subtract(w->v, w->v_mean, head->kv_len, dim);
    }
    for (uint32_t first = 0; w->delta && first < head->q_len; first += BLOCK_ROWS) {
        const uint32_t count = head->q_len - first < BLOCK_ROWS ? head->q_len - first : BLOCK_ROWS;
        mean_of(mean, w->q + (size_t)first * dim, count, dim);
        subtract(w->q + (size_t)first * dim, mean, count, dim);
        for (uint32_t key = 0; key < head->kv_len; key++) {
            float sum = 0;
            for (uint32_t c = 0; c < dim; c++)
                sum = fmaf(mean[c], w->k[(size_t)key * dim + c], sum);
            w->delta[(size_t)(first / BLOCK_ROWS) * w->kv_pad + key] = sum;
        }
    }
    quantise_rows(w->q, w->q_scale, head->q_len, dim, how, false);
    quantise_rows(w->k, w->k_scale, head->kv_len, dim, how, true);
    quantise_v(w);
    return true;
}

static bool pack_k(work *w)
{
    float *packed = allocate((size_t)w->kv_pad * w->dim, sizeof *packed);
    if (!packed)
        return false;
    for (uint32_t key = 0; key < w->kv_pad; key++)
        for (uint32_t c = 0; c < w->dim; c++)
            packed[(size_t)(key / TILE * w->dim + c) * TILE + key % TILE] = w->k[(size_t)key * w->dim + c];
    td_aligned_free(w->k);
    w->k = packed;
    if (w->qk_unit) {
        w->q_exponent = exponents(w->q, (size_t)w->q_pad * w->dim, qk_format(w->how->qk));
        w->k_exponent = exponents(w->k, (size_t)w->kv_pad * w->dim, qk_format(w->how->qk));
    }
    if (w->pv_unit)
        w->v_exponent = exponents(w->v, (size_t)w->kv_pad * w->dim, pv_format(w->how->pv));
    return (!w->qk_unit || (w->q_exponent && w->k_exponent)) && (!w->pv_unit || w->v_exponent);
}

/* s[4][n] += a[4][k] b[k][n] in float, key after key; n is a multiple of 16, rows of a and s lie `a_stride` and
 * `s_stride` apart. */
TD_INLINE void multiply_4(float *s, size_t s_stride, const float *a, size_t a_stride, const float *b, uint32_t k,
                          uint32_t n)
{
    for (uint32_t at = 0; at < n; at += LANES) {
        vec sum[4];
        for (int r = 0; r < 4; r++)
            sum[r] = *(const vec *)(s + (size_t)r * s_stride + at);
        for (uint32_t i = 0; i < k; i++) {
            const vec x = *(const vec *)(b + (size_t)i * n + at);
            for (int r = 0; r < 4; r++)
                sum[r] += a[(size_t)r * a_stride + i] * x;
        }
        for (int r = 0; r < 4; r++)
            *(vec *)(s + (size_t)r * s_stride + at) = sum[r];
    }
}

/* s[n] = a[k] b[k][n] + s[n] as the tensor core has it: `depth` products and the sum so far are aligned to the largest
 * exponent, cut off, added, cut off again. */
TD_INLINE void multiply_unit(float *s, const float *a, const int32_t *a_exponent, const float *b,
                             const int32_t *b_exponent, uint32_t k, uint32_t n, uint32_t depth)
{
    for (uint32_t at = 0; at < n; at += LANES) {
        vec sum = *(const vec *)(s + at);
        for (uint32_t first = 0; first < k; first += depth) {
            const ivec bits = (ivec)sum & 0x7fffffff;
            ivec top = (bits >> 23) - 127;
            top = (top & (top > -100)) | (-100 & (top <= -100));
            for (uint32_t i = first; i < first + depth; i++) {
                const ivec own = *(const ivec *)(b_exponent + (size_t)i * n + at) + a_exponent[i];
                top = (own & (own > top)) | (top & (own <= top));
            }
            const vec up = (vec)((127 + FRACTION_BITS - top) << 23), down = (vec)((127 - FRACTION_BITS + top) << 23);
            ivec total = __builtin_convertvector(sum * up, ivec);
            for (uint32_t i = first; i < first + depth; i++)
                total += __builtin_convertvector(*(const vec *)(b + (size_t)i * n + at) * a[i] * up, ivec);
            const ivec cut = (ivec) __builtin_convertvector(total, vec) & ~((1 << (23 - FRACTION_BITS)) - 1);
            sum = (vec)cut * down;
        }
        *(vec *)(s + at) = sum;
    }
}

typedef struct local {
    float o[BLOCK_ROWS][TD_MAX_DIM], m[BLOCK_ROWS], l[BLOCK_ROWS];
    float s[4][MAX_STEP], p[4][MAX_STEP], r[4][TD_MAX_DIM], alpha[4];
    int32_t p_exponent[4][MAX_STEP];
} local;

/* P of one row and step, in s; what the softmax needs besides. */
TD_INLINE void softmax_row(const work *w, local *at, uint32_t i, uint32_t row, uint32_t in_block, uint32_t first)
{
    const td_head *head = w->head;
    const int64_t past = (int64_t)head->kv_len - (int64_t)head->q_len;
    const float sl2 = head->scale * TD_LOG2_E, q_scale = w->q_scale[row] * sl2;
    const float *delta = w->delta ? w->delta + (size_t)(row / BLOCK_ROWS) * w->kv_pad + first : NULL;
    const format f = pv_format(w->how->pv);
    const bool exact = w->how->pv == TD_PV_F32;
    const float offset = log2f(f.top);
    int64_t count = (int64_t)head->kv_len - first;
    if (head->causal && (int64_t)row + past + 1 - first < count)
        count = (int64_t)row + past + 1 - first;
    count = count < 0 ? 0 : count > w->step ? w->step : count;
    float *s = at->s[i], *p = at->p[i], m = at->m[in_block];
    for (uint32_t j = 0; j < w->step; j++) {
        s[j] *= q_scale * w->k_scale[first + j];
        if (delta)
            s[j] = fmaf(delta[j], sl2, s[j]);
        if (j < count && s[j] > m)
            m = s[j];
    }
    const float base = m == -INFINITY ? 0 : m;
    float sum = 0;
    for (uint32_t j = 0; j < w->step; j++) {
        p[j] = j < count ? exp2f((s[j] - base) + offset) : 0;
        sum += p[j];
    }
    for (uint32_t j = 0; !exact && j < w->step; j++)
        p[j] = round_to(p[j], f);
    for (uint32_t j = 0; w->pv_unit && j < w->step; j++)
        at->p_exponent[i][j] = exponent_of(p[j], f);
    at->alpha[i] = exp2f(at->m[in_block] - base);
    at->m[in_block] = m;
    at->l[in_block] = at->l[in_block] * at->alpha[i] + sum;
}

TD_INLINE void rows_body(const work *w, local *at, uint32_t block, float *o)
{
    const td_head *head = w->head;
    const uint32_t dim = w->dim, first_row = block * BLOCK_ROWS;
    const uint32_t rows = head->q_len - first_row < BLOCK_ROWS ? head->q_len - first_row : BLOCK_ROWS;
    const uint32_t depth = w->how->accumulator == TD_ACCUMULATOR_ADA_MMA ? 16 : 32;
    const uint32_t qk_depth = dim % depth ? 16 : depth; /* head_dim 80 */
    int64_t keys = head->kv_len;
    if (head->causal && (int64_t)(first_row + rows) + head->kv_len - head->q_len < keys)
        keys = (int64_t)(first_row + rows) + head->kv_len - head->q_len;
    memset(at->o, 0, sizeof at->o);
    for (uint32_t r = 0; r < BLOCK_ROWS; r++) {
        at->m[r] = -INFINITY;
        at->l[r] = 0;
    }
    for (uint32_t key = 0; (int64_t)key < keys; key += w->step)
        for (uint32_t r = 0; r < rows; r += 4) {
            const size_t row = first_row + r;
            memset(at->s, 0, sizeof at->s);
            for (uint32_t tile = 0; tile < w->step; tile += TILE) {
                const size_t codes = (size_t)(key + tile) * dim;
                if (!w->qk_unit)
                    multiply_4(at->s[0] + tile, MAX_STEP, w->q + row * dim, dim, w->k + codes, dim, TILE);
                for (uint32_t i = 0; w->qk_unit && i < 4; i++)
                    multiply_unit(at->s[i] + tile, w->q + (row + i) * dim, w->q_exponent + (row + i) * dim,
                                  w->k + codes, w->k_exponent + codes, dim, TILE, qk_depth);
            }
            for (uint32_t i = 0; i < 4; i++)
                softmax_row(w, at, i, (uint32_t)row + i, r + i, key);
            memset(at->r, 0, sizeof at->r);
            for (uint32_t i = 0; i < 4 && !w->how->two_level; i++)
                for (uint32_t c = 0; c < dim; c++)
                    at->r[i][c] = at->o[r + i][c] * at->alpha[i];
            if (!w->pv_unit)
                multiply_4(at->r[0], TD_MAX_DIM, at->p[0], MAX_STEP, w->v + (size_t)key * dim, w->step, dim);
            for (uint32_t i = 0; w->pv_unit && i < 4; i++)
                multiply_unit(at->r[i], at->p[i], at->p_exponent[i], w->v + (size_t)key * dim,
                              w->v_exponent + (size_t)key * dim, w->step, dim, depth);
            for (uint32_t i = 0; i < 4; i++)
                for (uint32_t c = 0; c < dim; c++) {
                    const float x = w->block_scale ? at->r[i][c] * w->block_scale[key / TILE] : at->r[i][c];
                    at->o[r + i][c] = w->how->two_level ? fmaf(at->o[r + i][c], at->alpha[i], x) : x;
                }
        }
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < dim; c++) {
            float x = at->l[r] == 0 ? 0 : at->o[r][c] / at->l[r] * w->channel_scale[c];
            if (w->how->smooth & TANDEM_SMOOTH_V && at->l[r] != 0)
                x += w->v_mean[c];
            o[(size_t)(first_row + r) * dim + c] = x;
        }
}

/* float64: s is [4][kv_pad], k and v as in `work`, both plain floats. */
TD_INLINE void exact_body(const work *w, double *s, uint32_t first_row, double *o)
{
    const td_head *head = w->head;
    const uint32_t dim = w->dim;
    const int64_t past = (int64_t)head->kv_len - (int64_t)head->q_len;
    const double scale = (double)head->scale;
    for (uint32_t key = 0; key < w->kv_pad; key += DOUBLE_LANES) {
        const float *k = w->k + (size_t)(key / TILE) * dim * TILE + key % TILE;
        dvec sum[4] = {{0}, {0}, {0}, {0}};
        for (uint32_t c = 0; c < dim; c++) {
            const dvec x = __builtin_convertvector(*(const half_vec *)(k + (size_t)c * TILE), dvec);
            for (uint32_t i = 0; i < 4; i++)
                sum[i] += (double)w->q[(size_t)(first_row + i) * dim + c] * x;
        }
        for (uint32_t i = 0; i < 4; i++)
            *(dvec *)(s + (size_t)i * w->kv_pad + key) = sum[i];
    }
    uint32_t most_keys = 0;
    for (uint32_t i = 0; i < 4; i++) {
        double *p = s + (size_t)i * w->kv_pad, m = -INFINITY, l = 0;
        int64_t keys = head->kv_len;
        if (head->causal && (int64_t)(first_row + i) + past + 1 < keys)
            keys = (int64_t)(first_row + i) + past + 1;
        keys = keys < 0 ? 0 : keys;
        for (uint32_t j = 0; j < keys; j++)
            m = p[j] * scale > m ? p[j] * scale : m;
        for (uint32_t j = 0; j < keys; j++)
            l += p[j] = exp(p[j] * scale - m);
        for (uint32_t j = 0; j < w->kv_pad; j++)
            p[j] = j < keys ? p[j] / l : 0;
        most_keys = (uint32_t)keys > most_keys ? (uint32_t)keys : most_keys;
    }
    for (uint32_t c = 0; c < dim; c += DOUBLE_LANES) {
        dvec sum[4] = {{0}, {0}, {0}, {0}};
        for (uint32_t j = 0; j < most_keys; j++) {
            const dvec x = __builtin_convertvector(*(const half_vec *)(w->v + (size_t)j * dim + c), dvec);
            for (uint32_t i = 0; i < 4; i++)
                sum[i] += s[(size_t)i * w->kv_pad + j] * x;
        }
        for (uint32_t i = 0; i < 4 && first_row + i < head->q_len; i++)
            memcpy(o + (size_t)(first_row + i) * dim + c, &sum[i], sizeof sum[i]);
    }
}

typedef void (*rows_fn)(const work *, local *, uint32_t, float *);
typedef void (*exact_fn)(const work *, double *, uint32_t, double *);
#define CLONES(suffix, target)                                                                 \
    target static void rows_##suffix(const work *w, local *at, uint32_t block, float *o)       \
    {                                                                                          \
        rows_body(w, at, block, o);                                                            \
    }                                                                                          \
    target static void exact_##suffix(const work *w, double *s, uint32_t first_row, double *o) \
    {                                                                                          \
        exact_body(w, s, first_row, o);                                                        \
    }
CLONES(c, )
#if TD_X86
CLONES(avx2, TD_TARGET_AVX2)
CLONES(avx512, TD_TARGET_AVX512)
static const rows_fn rows_of[TD_ISA_COUNT] = {rows_c, rows_avx2, rows_avx512};
static const exact_fn exact_of[TD_ISA_COUNT] = {exact_c, exact_avx2, exact_avx512};
#else
static const rows_fn rows_of[TD_ISA_COUNT] = {rows_c, rows_c, rows_c};
static const exact_fn exact_of[TD_ISA_COUNT] = {exact_c, exact_c, exact_c};
#endif

static work work_of(const td_arithmetic *how, const td_head *head)
{
    work w = {.how = how, .head = head, .dim = head->dim};
    w.step = how->two_level ? how->flush_keys : TILE;
    w.q_pad = (head->q_len + BLOCK_ROWS - 1) / BLOCK_ROWS * BLOCK_ROWS;
    w.kv_pad = (head->kv_len + MAX_STEP - 1) / MAX_STEP * MAX_STEP;
    const bool unit = how->accumulator == TD_ACCUMULATOR_ADA_MMA || how->accumulator == TD_ACCUMULATOR_WGMMA;
    w.qk_unit = unit && how->qk == TD_QK_E4M3;
    w.pv_unit = unit && (how->pv == TD_PV_E4M3 || how->pv == TD_PV_E5M2);
    return w;
}

static bool possible(const td_arithmetic *how, const td_head *head)
{
    if (!head->dim || head->dim % LANES || head->dim > TD_MAX_DIM || !head->q_len || !head->kv_len)
        return false;
    if (how->two_level && how->flush_keys != 64 && how->flush_keys != 128 && how->flush_keys != 256)
        return false;
    return how->v_scale != TD_V_BLOCK || (how->two_level && how->flush_keys == TILE);
}

/* A loop over blocks of one of the two: each thread has memory of its own, from its first block on. */
typedef struct loop {
    const work *w;
    size_t local_bytes;
    void **locals; /* one a thread */
    atomic_bool failed;
    float *o;
    double *exact;
} loop;

static void *local_of(loop *l, uint32_t worker)
{
    if (!l->locals[worker])
        l->locals[worker] = td_aligned_alloc(64, (l->local_bytes + 63) / 64 * 64);
    if (!l->locals[worker])
        l->failed = true;
    return l->locals[worker];
}

static void compute_rows(void *context, uint64_t block, uint32_t worker)
{
    loop *l = context;
    local *at = local_of(l, worker);
    if (at)
        rows_of[td_cpu_isa_level()](l->w, at, (uint32_t)block, l->o);
}

static void compute_exact(void *context, uint64_t group, uint32_t worker)
{
    loop *l = context;
    double *s = local_of(l, worker);
    if (s)
        exact_of[td_cpu_isa_level()](l->w, s, (uint32_t)group * 4, l->exact);
}

static bool run_loop(loop *l, uint32_t threads, uint64_t count, td_pool_function function)
{
    td_thread_pool *pool = td_thread_pool_create(threads); /* or NULL, which is this thread alone */
    const uint32_t workers = td_thread_pool_threads(pool);
    l->locals = calloc(workers, sizeof *l->locals);
    if (l->locals)
        td_thread_pool_run(pool, count, function, l);
    td_thread_pool_destroy(&pool);
    if (!l->locals)
        return false;
    for (uint32_t i = 0; i < workers; i++)
        td_aligned_free(l->locals[i]);
    free(l->locals);
    return !l->failed;
}

bool td_variant_attention(const td_arithmetic *how, const td_head *head, float *o, uint32_t threads)
{
    if (!possible(how, head))
        return false;
    work w = work_of(how, head);
    loop l = {.w = &w, .local_bytes = sizeof(local), .o = o};
    const bool done = prologue(&w) && pack_k(&w) && run_loop(&l, threads, w.q_pad / BLOCK_ROWS, compute_rows);
    release(&w);
    return done;
}

bool td_exact_attention(const td_head *head, double *o, uint32_t threads)
{
    const td_arithmetic how = {.qk = TD_QK_F32};
    if (!possible(&how, head))
        return false;
    work w = work_of(&how, head);
    loop l = {.w = &w, .local_bytes = (size_t)w.kv_pad * 4 * sizeof(double), .exact = o};
    const bool done = prologue(&w) && pack_k(&w) && run_loop(&l, threads, (head->q_len + 3) / 4, compute_exact);
    release(&w);
    return done;
}

bool td_variant_codes(const td_arithmetic *how, const td_head *head, bool of_k, float *codes)
{
    if (!possible(how, head))
        return false;
    work w = work_of(how, head);
    const bool done = prologue(&w);
    if (done && of_k)
        memcpy(codes, w.k, (size_t)head->kv_len * w.dim * sizeof *codes);
    else if (done)
        memcpy(codes, w.q, (size_t)head->q_len * w.dim * sizeof *codes);
    release(&w);
    return done;
}
