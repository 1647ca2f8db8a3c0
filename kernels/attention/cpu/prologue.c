/* Means, maxima, codes, scales, to the letter of kernels/params.h: ships, and is the CUDA prologue's twin.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Every instruction set gives the same bits: no contraction, no reordered sums. The bodies are plain C, compiled twice.
 */
#include "kernels/attention/cpu.h"

#if TD_X86
#include <immintrin.h>
#endif


static void load_row_c(float *to, const void *from, uint32_t dtype, uint32_t n)
{
    td_to_floats(to, from, dtype, 0, n);
}

static void store_f16_c(uint16_t *to, const float *from, uint32_t n)
{
    for (uint32_t c = 0; c < n; c++)
        to[c] = td_to_f16(from[c]);
}

#if TD_X86
TD_TARGET_AVX2 static void load_row_avx2(float *to, const void *from, uint32_t dtype, uint32_t n)
{
    const uint16_t *half = from;
    if (dtype == TANDEM_DTYPE_F32)
        memcpy(to, from, n * sizeof *to);
    else if (dtype == TANDEM_DTYPE_BF16)
        for (uint32_t c = 0; c < n; c += 8) {
            __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(half + c)));
            _mm256_storeu_si256((__m256i *)(to + c), _mm256_slli_epi32(x, 16));
        }
    else
        for (uint32_t c = 0; c < n; c += 8)
            _mm256_storeu_ps(to + c, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(half + c))));
}

TD_TARGET_AVX2 static void store_f16_avx2(uint16_t *to, const float *from, uint32_t n)
{
    for (uint32_t c = 0; c < n; c += 8)
        _mm_storeu_si128((__m128i *)(to + c),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + c), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#endif

static void load_row(float *to, const void *from, uint32_t dtype, uint32_t n)
{
#if TD_X86
    if (td_cpu_isa_level() >= TD_ISA_AVX2) {
        load_row_avx2(to, from, dtype, n);
        return;
    }
#endif
    load_row_c(to, from, dtype, n);
}

static void store_f16(uint16_t *to, const float *from, uint32_t n)
{
#if TD_X86
    if (td_cpu_isa_level() >= TD_ISA_AVX2) {
        store_f16_avx2(to, from, n);
        return;
    }
#endif
    store_f16_c(to, from, n);
}

static const void *row_address(const td_tensor *x, const td_span *spans, uint32_t bh, uint32_t row)
{
    const int64_t first = spans ? spans[bh / x->heads].first : 0;
    const int64_t i = (int64_t)(bh / x->heads) * x->stride_batch + (int64_t)(bh % x->heads) * x->stride_head +
                      (first + row) * x->stride_row;
    return (const unsigned char *)x->data + i * (x->dtype == TANDEM_DTYPE_F32 ? 4 : 2);
}

/* Rows of a head that exist. */
TD_INLINE uint32_t rows_of(uint32_t rows, uint32_t heads, const td_span *spans, uint32_t bh)
{
    return spans ? (uint32_t)(spans[bh / heads].end - spans[bh / heads].first) : rows;
}

/* Of them those of a chunk; 0: none. */
TD_INLINE uint32_t rows_in(uint32_t rows, uint32_t chunk)
{
    const uint32_t first = chunk * TD_TILE_ROWS, rest = rows > first ? rows - first : 0;
    return rest < TD_TILE_ROWS ? rest : TD_TILE_ROWS;
}

TD_INLINE uint32_t chunks_of(uint32_t rows)
{
    return (rows + TD_TILE_ROWS - 1) / TD_TILE_ROWS;
}

TD_INLINE bool is_finite(float x)
{
    return (td_bits(x) & 0x7f800000) != 0x7f800000;
}

TD_INLINE float finite_or_0(float x)
{
    return td_float((td_bits(x) & 0x7f800000) != 0x7f800000 ? td_bits(x) : 0);
}

/* The chunk's rows as finite floats in tile[][d_pad], zeros behind dim; row_bad[] tells which were not finite. */
TD_INLINE uint32_t load_tile(td_local_prologue *at, const td_tensor *x, const td_span *spans, uint32_t bh, uint32_t chunk,
                             uint32_t d_pad)
{
    const uint32_t first = chunk * TD_TILE_ROWS, rows = rows_in(rows_of(x->rows, x->heads, spans, bh), chunk);
    for (uint32_t r = 0; r < rows; r++) {
        float *row = at->tile + (size_t)r * d_pad;
        load_row(row, row_address(x, spans, bh, first + r), x->dtype, x->dim);
        uint32_t bad = 0;
        for (uint32_t c = 0; c < x->dim; c++)
            bad |= (td_bits(row[c]) & 0x7f800000) == 0x7f800000;
        if (bad)
            for (uint32_t c = 0; c < x->dim; c++)
                row[c] = finite_or_0(row[c]);
        for (uint32_t c = x->dim; c < d_pad; c++)
            row[c] = 0;
        at->row_bad[r] = bad;
    }
    return rows;
}

TD_INLINE void tile_mean(td_local_prologue *at, float *mean, uint32_t rows, uint32_t d_pad)
{
    for (uint32_t c = 0; c < d_pad; c++)
        mean[c] = 0;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < d_pad; c++)
            mean[c] += at->tile[r * d_pad + c];
    for (uint32_t c = 0; c < d_pad; c++)
        mean[c] /= (float)rows;
}

TD_INLINE void mean_partial_body(const void *params, const td_block *at)
{
    const td_params_mean_partial *p = params;
    td_local_prologue *local = at->local;
    const uint32_t bh = at->x / p->chunks, chunk = at->x % p->chunks, dim = p->x.dim;
    const uint32_t first = chunk * TD_TILE_ROWS, rows = rows_in(rows_of(p->x.rows, p->x.heads, p->spans, bh), chunk);
    if (!rows)
        return;
    float *row = local->channel, *sum = local->tile; /* sums of rows that are alike modulo 8 */
    memset(sum, 0, 8 * p->d_pad * sizeof *sum);
    for (uint32_t r = 0; r < rows; r++) {
        float *to = sum + r % 8 * p->d_pad;
        load_row(row, row_address(&p->x, p->spans, bh, first + r), p->x.dtype, dim);
        for (uint32_t c = 0; c < dim; c++)
            to[c] += finite_or_0(row[c]);
    }
    for (uint32_t i = 0; i < 8; i += 2)
        for (uint32_t c = 0; c < p->d_pad; c++) {
            const float pair = sum[i * p->d_pad + c] + sum[(i + 1) * p->d_pad + c];
            sum[c] = i ? sum[c] + pair : pair;
        }
    memcpy(p->partial + (size_t)at->x * p->d_pad, sum, p->d_pad * sizeof *sum);
}

TD_INLINE void mean_final_body(const void *params, const td_block *at)
{
    const td_params_mean_final *p = params;
    const float *partial = p->partial + (size_t)at->x * p->chunks * p->d_pad;
    float *mean = p->mean + (size_t)at->x * p->d_pad;
    const uint32_t rows = rows_of(p->rows, p->heads, p->spans, at->x), chunks = chunks_of(rows);
    float sum[TD_MAX_DIM];
    for (uint32_t c = 0; c < p->d_pad; c++)
        sum[c] = 0;
    for (uint32_t chunk = 0; chunk < chunks; chunk++)
        for (uint32_t c = 0; c < p->d_pad; c++)
            sum[c] += partial[(size_t)chunk * p->d_pad + c];
    for (uint32_t c = 0; c < p->d_pad; c++)
        mean[c] = sum[c] / (float)(rows ? rows : 1);
}

TD_INLINE void amax_partial_body(const void *params, const td_block *at)
{
    const td_params_amax_partial *p = params;
    td_local_prologue *local = at->local;
    const uint32_t bh = at->x / p->chunks, chunk = at->x % p->chunks, d_pad = p->d_pad;
    const uint32_t rows = load_tile(local, &p->x, p->spans, bh, chunk, d_pad);
    if (!rows)
        return;
    float *mean = local->mean;
    if (p->own_mean)
        tile_mean(local, mean, rows, d_pad);
    else if (p->mean)
        memcpy(mean, p->mean + (size_t)bh * d_pad, d_pad * sizeof *mean);
    else
        memset(mean, 0, d_pad * sizeof *mean);

    uint32_t amax[TD_MAX_DIM]; /* the bits of floats >= 0 order like the floats */
    for (uint32_t c = 0; c < d_pad; c++)
        amax[c] = 0;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < d_pad; c++) {
            const int32_t a = (int32_t)(td_bits(local->tile[r * d_pad + c] - mean[c]) & 0x7fffffff);
            amax[c] = (uint32_t)(a > (int32_t)amax[c] ? a : (int32_t)amax[c]);
        }
    for (uint32_t c = p->x.dim; c < d_pad; c++)
        amax[c] = 0;
    memcpy(p->amax + (size_t)at->x * d_pad, amax, d_pad * sizeof *amax);
    if (p->flag) {
        float *flag = p->flag + (size_t)bh * p->rows_pad + chunk * TD_TILE_ROWS;
        for (uint32_t r = 0; r < TD_TILE_ROWS; r++)
            flag[r] = r < rows && local->row_bad[r] ? NAN : 0;
    }
}

/* The least power of two that brings amax to 32768 or below, at least 1. */
static float f16_scale(float amax)
{
    float scale = 1;
    while (amax > 32768 && scale < 0x1p127f) {
        amax *= 0.5f;
        scale *= 2;
    }
    return scale;
}

/* v rounded to the nearest integer, ties to even, for |v| < 2^22; then within +-limit, NaN to -limit. */
TD_INLINE float round_clamp(float v, float limit)
{
    v = (v + 0x1.8p23f) - 0x1.8p23f;
    v = v > -limit ? v : -limit;
    return v < limit ? v : limit;
}

TD_INLINE void quant_qk_body(const void *params, const td_block *at)
{
    const td_params_quant_qk *p = params;
    td_local_prologue *local = at->local;
    const uint32_t bh = at->x / p->chunks, chunk = at->x % p->chunks, d_pad = p->d_pad;
    const uint32_t rows = load_tile(local, &p->x, p->spans, bh, chunk, d_pad);
    if (!rows)
        return;
    const size_t first = (size_t)bh * p->rows_pad + (size_t)chunk * TD_TILE_ROWS;

    if (p->lse_bias) {
        const uint32_t heads_per_kv = p->x.heads / p->lse_heads;
        const uint32_t bhk = bh / p->x.heads * p->lse_heads + bh % p->x.heads / heads_per_kv;
        const float *mean = p->lse_mean + (size_t)bhk * d_pad;
        for (uint32_t r = 0; r < TD_TILE_ROWS; r++) {
            float sum = 0;
            for (uint32_t c = 0; r < rows && c < p->x.dim; c++)
                sum = fmaf(local->tile[r * d_pad + c], mean[c], sum);
            p->lse_bias[first + r] = sum;
        }
    }
    float *mean = local->mean;
    if (p->block_mean) {
        tile_mean(local, mean, rows, d_pad);
        memcpy(p->block_mean + (size_t)at->x * d_pad, mean, d_pad * sizeof *mean);
    } else if (p->mean) {
        memcpy(mean, p->mean + (size_t)bh * d_pad, d_pad * sizeof *mean);
    }
    for (uint32_t r = 0; r < rows; r++) {
        float *row = local->tile + (size_t)r * d_pad;
        if (p->block_mean || p->mean)
            for (uint32_t c = 0; c < p->x.dim; c++)
                row[c] -= mean[c];
        int32_t amax = 0;
        for (uint32_t c = 0; c < d_pad; c++) {
            const int32_t a = (int32_t)(td_bits(row[c]) & 0x7fffffff);
            amax = a > amax ? a : amax;
        }
        local->row_amax[r] = (uint32_t)amax;
    }

    float *scale = p->scale + first;
    if (p->mode == 1) {
        uint16_t *codes = (uint16_t *)p->codes + first * d_pad;
        for (uint32_t r = 0; r < rows; r++) {
            float *row = local->tile + (size_t)r * d_pad;
            const float s = f16_scale(td_float(local->row_amax[r])), inverse = 1 / s;
            if (s != 1)
                for (uint32_t c = 0; c < d_pad; c++)
                    row[c] *= inverse;
            store_f16(codes + (size_t)r * d_pad, row, d_pad);
            local->row_scale[r] = s;
        }
        memset(codes + (size_t)rows * d_pad, 0, (size_t)(TD_TILE_ROWS - rows) * d_pad * sizeof *codes);
    } else {
        int8_t *codes = p->mode == 2 ? (int8_t *)local->codes : (int8_t *)p->codes + first * d_pad;
        uint32_t group_amax[TD_TILE_ROWS] = {0};
        if (p->amax) {
            const float *amax = p->amax + (size_t)bh * p->chunks * d_pad;
            const uint32_t chunks = chunks_of(rows_of(p->x.rows, p->x.heads, p->spans, bh));
            float head = 0;
            for (size_t i = 0; i < (size_t)chunks * d_pad; i++)
                head = amax[i] > head ? amax[i] : head;
            group_amax[0] = td_bits(head);
        } else {
            for (uint32_t r = 0; r < rows; r++) {
                uint32_t *amax = &group_amax[td_row_group(r, p->granularity, p->is_k)];
                *amax = local->row_amax[r] > *amax ? local->row_amax[r] : *amax;
            }
        }
        const float qmax = p->qmax;
        for (uint32_t r = 0; r < rows; r++) {
            const float amax = td_float(group_amax[p->amax ? 0 : td_row_group(r, p->granularity, p->is_k)]) * p->clip;
            const float *row = local->tile + (size_t)r * d_pad;
            int8_t *to = codes + (size_t)r * d_pad;
            if (amax < TD_TINY_AMAX) {
                memset(to, 0, d_pad);
                local->row_scale[r] = 0;
                continue;
            }
            const float inverse = qmax / amax;
            for (uint32_t c = 0; c < d_pad; c++)
                to[c] = (int8_t)(int32_t)round_clamp(row[c] * inverse, qmax);
            for (uint32_t c = p->x.dim; c < d_pad; c++)
                to[c] = 0;
            local->row_scale[r] = amax / qmax;
        }
        memset(codes + (size_t)rows * d_pad, 0, (size_t)(TD_TILE_ROWS - rows) * d_pad);
        const uint32_t row_bytes = TD_PACKED_ROW_BYTES(d_pad);
        uint8_t *packed = (uint8_t *)p->codes + first * row_bytes;
        for (uint32_t r = 0; p->mode == 2 && r < TD_TILE_ROWS; r++, packed += row_bytes) {
            memset(packed, 0, row_bytes);
            for (uint32_t c = 0; c < d_pad; c++)
                packed[c / 2] |= (uint8_t)((codes[(size_t)r * d_pad + c] & 15) << (c % 2 * 4));
        }
    }
    for (uint32_t r = 0; r < TD_TILE_ROWS; r++)
        scale[r] = r >= rows ? 0 : local->row_bad[r] ? NAN : local->row_scale[r];
    if (p->flag)
        for (uint32_t r = 0; r < rows; r++)
            scale[r] += p->flag[first + r];
}

/* Codes [128 keys][d_pad] to [d_pad][stride]; those of one byte permuted within each 16 keys on the way. */
static void transpose_codes8(uint8_t *to, size_t stride, const uint8_t *from, uint32_t d_pad)
{
#if TD_X86 /* SSE2 is always there; four perfect shuffles of 16 rows of 16 bytes transpose them */
    for (uint32_t key = 0; key < TD_TILE_ROWS; key += 16)
        for (uint32_t c = 0; c < d_pad; c += 16) {
            __m128i x[16], y[16];
            for (uint32_t i = 0; i < 16; i++)
                x[i] = _mm_loadu_si128((const __m128i *)(from + (size_t)(key + td_v_key(i)) * d_pad + c));
            for (int round = 0; round < 2; round++) {
                for (int i = 0; i < 8; i++) {
                    y[2 * i] = _mm_unpacklo_epi8(x[i], x[i + 8]);
                    y[2 * i + 1] = _mm_unpackhi_epi8(x[i], x[i + 8]);
                }
                for (int i = 0; i < 8; i++) {
                    x[2 * i] = _mm_unpacklo_epi8(y[i], y[i + 8]);
                    x[2 * i + 1] = _mm_unpackhi_epi8(y[i], y[i + 8]);
                }
            }
            for (uint32_t i = 0; i < 16; i++)
                _mm_storeu_si128((__m128i *)(to + (c + i) * stride + key), x[i]);
        }
#else
    for (uint32_t c = 0; c < d_pad; c++)
        for (uint32_t position = 0; position < TD_TILE_ROWS; position++)
            to[c * stride + position] = from[(size_t)td_v_key(position) * d_pad + c];
#endif
}

static void transpose_codes16(uint16_t *to, size_t stride, const uint16_t *from, uint32_t d_pad)
{
#if TD_X86
    for (uint32_t key = 0; key < TD_TILE_ROWS; key += 8)
        for (uint32_t c = 0; c < d_pad; c += 8) {
            __m128i x[8], y[8];
            for (uint32_t i = 0; i < 8; i++)
                x[i] = _mm_loadu_si128((const __m128i *)(from + (size_t)(key + i) * d_pad + c));
            for (int round = 0; round < 3; round++) {
                for (int i = 0; i < 4; i++) {
                    y[2 * i] = _mm_unpacklo_epi16(x[i], x[i + 4]);
                    y[2 * i + 1] = _mm_unpackhi_epi16(x[i], x[i + 4]);
                }
                for (int i = 0; i < 8; i++)
                    x[i] = y[i];
            }
            for (uint32_t i = 0; i < 8; i++)
                _mm_storeu_si128((__m128i *)(to + (c + i) * stride + key), x[i]);
        }
#else
    for (uint32_t c = 0; c < d_pad; c++)
        for (uint32_t key = 0; key < TD_TILE_ROWS; key++)
            to[c * stride + key] = from[(size_t)key * d_pad + c];
#endif
}

TD_INLINE void quant_v_body(const void *params, const td_block *at)
{
    const td_params_quant_v *p = params;
    td_local_prologue *local = at->local;
    const uint32_t bhk = at->x / p->chunks, chunk = at->x % p->chunks, d_pad = p->d_pad, dim = p->x.dim;
    const uint32_t all = rows_of(p->x.rows, p->x.heads, p->spans, bhk), first = chunk * TD_TILE_ROWS, rows = rows_in(all, chunk);
    if (!rows)
        return;
    const float *amax = p->amax + (size_t)bhk * p->chunks * d_pad;
    float top[TD_MAX_DIM], scale[TD_MAX_DIM], *inverse = local->channel, *mean = local->mean;
    for (uint32_t c = 0; c < d_pad; c++)
        top[c] = 0;
    for (uint32_t i = 0; i < chunks_of(all); i++)
        for (uint32_t c = 0; c < d_pad; c++)
            top[c] = amax[(size_t)i * d_pad + c] > top[c] ? amax[(size_t)i * d_pad + c] : top[c];
    for (uint32_t c = 0; c < d_pad; c++) {
        if (p->mode == 1) {
            scale[c] = f16_scale(top[c]);
            inverse[c] = 1 / scale[c];
        } else {
            scale[c] = top[c] < TD_TINY_AMAX ? 0 : top[c] / TD_V_TOP;
            inverse[c] = top[c] < TD_TINY_AMAX ? 0 : TD_V_TOP / top[c];
        }
        mean[c] = p->mean ? p->mean[(size_t)bhk * d_pad + c] : 0;
    }
    if (chunk == 0)
        memcpy(p->scale + (size_t)bhk * d_pad, scale, d_pad * sizeof *scale);

    uint16_t *codes16 = local->codes;
    uint8_t *codes8 = (uint8_t *)local->codes;
    uint32_t wide[TD_MAX_DIM];
    for (uint32_t r = 0; r < TD_TILE_ROWS; r++) {
        float *row = local->tile + (size_t)r * d_pad;
        if (r >= rows) {
            memset(row, 0, d_pad * sizeof *row);
        } else {
            load_row(row, row_address(&p->x, p->spans, bhk, first + r), p->x.dtype, dim);
            for (uint32_t c = 0; c < dim; c++) {
                const uint32_t y = td_bits((row[c] - mean[c]) * inverse[c]);
                row[c] = td_float(td_select(is_finite(row[c]), y, 0));
            }
            for (uint32_t c = dim; c < d_pad; c++)
                row[c] = 0;
        }
        if (p->mode == 1) {
            store_f16(codes16 + (size_t)r * d_pad, row, d_pad);
            continue;
        }
        for (uint32_t c = 0; c < d_pad; c++) {
            const uint32_t sign = td_bits(row[c]) >> 24 & 0x80;
            const int32_t a = (int32_t)(td_bits(row[c]) & 0x7fffffff), most = 0x43e00000; /* 448 */
            const float rounded = td_round_e4m3(td_float((uint32_t)(a < most ? a : most)));
            const int32_t small = (int32_t)(rounded * 512), bits = (int32_t)td_bits(rounded);
            wide[c] = sign | td_select(bits < 0x3c800000, (uint32_t)small, (uint32_t)(bits >> 20) - 960);
        }
        for (uint32_t c = 0; c < d_pad; c++)
            codes8[(size_t)r * d_pad + c] = (uint8_t)wide[c];
    }
    const size_t at_codes = (size_t)bhk * d_pad * p->kv_pad + first;
    if (p->mode == 1)
        transpose_codes16((uint16_t *)p->codes + at_codes, p->kv_pad, codes16, d_pad);
    else
        transpose_codes8((uint8_t *)p->codes + at_codes, p->kv_pad, codes8, d_pad);
}

TD_INLINE void delta_s_body(const void *params, const td_block *at)
{
    const td_params_delta_s *p = params;
    td_local_prologue *local = at->local;
    const uint32_t groups = (p->q_blocks + p->each - 1) / p->each;
    const uint32_t chunk = at->x % p->chunks, bh = at->x / p->chunks / groups;
    const uint32_t first = at->x / p->chunks % groups * p->each;
    const uint32_t bhk = bh / p->heads * p->k.heads + bh % p->heads / (p->heads / p->k.heads), d_pad = p->d_pad;
    const uint32_t rows = load_tile(local, &p->k, p->spans, bhk, chunk, d_pad);
    if (!rows)
        return;
    float sum[TD_TILE_ROWS], *mean = local->mean;
    memset(mean, 0, d_pad * sizeof *mean);
    if (p->k_mean)
        memcpy(mean, p->k_mean + (size_t)bhk * d_pad, d_pad * sizeof *mean);
    for (uint32_t block = first; block < first + p->each && block < p->q_blocks; block++) {
        const size_t row = (size_t)bh * p->q_blocks + block;
        const float *q = p->q_mean + row * d_pad;
        for (uint32_t r = 0; r < TD_TILE_ROWS; r += 8) { /* eight chains at a time hide the latency of one */
            float chain[8] = {0};
            for (uint32_t c = 0; c < p->k.dim; c++)
                for (uint32_t i = 0; i < 8; i++)
                    chain[i] = fmaf(q[c], local->tile[(r + i) * d_pad + c] - mean[c], chain[i]);
            for (uint32_t i = 0; i < 8; i++)
                sum[r + i] = r + i < rows ? chain[i] : 0;
        }
        memcpy(p->delta + row * p->kv_pad + chunk * TD_TILE_ROWS, sum, sizeof sum);
    }
}

TD_CPU_CLONES(mean_partial)
TD_CPU_CLONES(mean_final)
TD_CPU_CLONES(amax_partial)
TD_CPU_CLONES(quant_qk)
TD_CPU_CLONES(quant_v)
TD_CPU_CLONES(delta_s)

void td_cpu_stats(const void *params, const td_block *at)
{
    const td_params_stats *p = params;
    const bool is_k = p->partial && at->x % 2 == 0;
    const uint32_t each = TD_FUSED_TILES(p->d_pad) * p->sets;
    const uint32_t first = (p->partial ? at->x / 2 : at->x) * each, all = p->planes * p->chunks;
    const td_params_mean_partial mean = {.x = p->k, .partial = p->partial, .chunks = p->chunks, .d_pad = p->d_pad};
    const td_params_amax_partial amax = {.x = p->v,
                                         .amax = p->amax,
                                         .flag = p->flag,
                                         .chunks = p->chunks,
                                         .d_pad = p->d_pad,
                                         .rows_pad = p->chunks * TD_TILE_ROWS};
    td_block one = *at;
    for (one.x = first; one.x < first + each && one.x < all; one.x++)
        if (is_k)
            td_cpu_mean_partial(&mean, &one);
        else
            td_cpu_amax_partial(&amax, &one);
}

/* A head's mean, as mean_final makes it. */
static void head_mean(const td_params_quantise *p, uint32_t bhk, uint32_t chunks, float *mean)
{
    const td_params_mean_final final = {.partial = p->partial + (size_t)bhk * chunks * p->d_pad,
                                        .mean = mean,
                                        .chunks = chunks,
                                        .d_pad = p->d_pad,
                                        .rows = p->kv_len};
    td_cpu_mean_final(&final, &(td_block){0});
}

/* A tile of Q or K: quant_qk on the head alone, which then has number 0. */
static void quantise_tile(const td_params_quantise *p, bool is_k, uint32_t bh, uint32_t chunk, const float *mean,
                          const td_block *at)
{
    const int64_t *strides = is_k ? p->k_strides : p->q_strides;
    const uint32_t heads = is_k ? p->kv_heads : p->heads, rows = is_k ? p->kv_len : p->q_len;
    const uint32_t chunks = (rows + TD_TILE_ROWS - 1) / TD_TILE_ROWS, rows_pad = chunks * TD_TILE_ROWS;
    const size_t row = (size_t)bh * rows_pad;
    const uint32_t row_bytes = p->mode == 2 ? TD_PACKED_ROW_BYTES((uint32_t)p->d_pad) : p->d_pad;
    const int64_t first = bh / heads * strides[0] + bh % heads * strides[1];
    const uint16_t *data = is_k ? p->k : p->q;
    td_params_quant_qk one = {.x = {.data = (void *)(uintptr_t)(data + first),
                                    .stride_row = strides[2],
                                    .dtype = is_k ? p->k_dtype : p->q_dtype,
                                    .heads = 1,
                                    .rows = rows,
                                    .dim = p->dim},
                              .scale = (is_k ? p->k_scale : p->q_scale) + row,
                              .codes = (uint8_t *)(is_k ? p->k_codes : p->q_codes) + row * row_bytes,
                              .chunks = chunks,
                              .d_pad = p->d_pad,
                              .rows_pad = rows_pad,
                              .mode = p->mode,
                              .qmax = p->qmax,
                              .clip = is_k ? p->k_clip : p->q_clip,
                              .granularity = p->granularity,
                              .is_k = is_k,
                              .lse_heads = 1};
    if (is_k) {
        one.mean = p->partial ? mean : NULL;
        one.flag = p->flag + row;
    } else {
        one.block_mean = p->q_mean ? p->q_mean + (size_t)bh * chunks * p->d_pad : NULL;
        one.lse_mean = mean;
        one.lse_bias = p->lse_bias ? p->lse_bias + row : NULL;
    }
    td_cpu_quant_qk(&one, &(td_block){.x = chunk, .local = at->local});
}

void td_cpu_quantise(const void *params, const td_block *at)
{
    const td_params_quantise *p = params;
    const uint32_t blocks = p->kv_planes * p->kv_blocks, each = TD_FUSED_TILES(p->d_pad) * p->sets;
    const uint32_t chunks = (p->kv_len + TD_TILE_ROWS - 1) / TD_TILE_ROWS;
    float mean[TD_MAX_DIM];
    if (at->x >= 2 * blocks) {
        const uint32_t first = (at->x - 2 * blocks) * each, q_chunks = (p->q_len + TD_TILE_ROWS - 1) / TD_TILE_ROWS;
        for (uint32_t tile = first; tile < first + each && tile < p->q_tiles; tile++) {
            const uint32_t bh = tile / q_chunks;
            if (p->lse_bias)
                head_mean(p, bh / p->heads * p->kv_heads + bh % p->heads / (p->heads / p->kv_heads), chunks, mean);
            quantise_tile(p, false, bh, tile % q_chunks, mean, at);
        }
        return;
    }
    const uint32_t block = blocks - 1 - at->x / 2, bhk = block / p->kv_blocks;
    const uint32_t first = block % p->kv_blocks * each;
    const bool is_k = at->x % 2 == 0;
    if (is_k && p->partial) {
        head_mean(p, bhk, chunks, mean);
        if (first == 0)
            memcpy(p->k_mean + (size_t)bhk * p->d_pad, mean, p->d_pad * sizeof *mean);
    }
    const td_params_quant_v v = {.x = {.data = (void *)(uintptr_t)p->v,
                                       .stride_batch = p->v_strides[0],
                                       .stride_head = p->v_strides[1],
                                       .stride_row = p->v_strides[2],
                                       .dtype = p->v_dtype,
                                       .heads = p->kv_heads,
                                       .rows = p->kv_len,
                                       .dim = p->dim},
                                 .amax = p->amax,
                                 .scale = p->v_scale,
                                 .codes = p->v_codes,
                                 .chunks = chunks,
                                 .d_pad = p->d_pad,
                                 .kv_pad = chunks * TD_TILE_ROWS};
    for (uint32_t tile = first; tile < first + each && tile < chunks; tile++)
        if (is_k)
            quantise_tile(p, true, bhk, tile, mean, at);
        else
            td_cpu_quant_v(&v, &(td_block){.x = bhk * chunks + tile, .local = at->local});
}
