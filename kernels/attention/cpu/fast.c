/* Attention on the CPU, as shipped: the same codes as on the GPU, in whatever instruction set the machine has.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A block is 128 query rows of a head. For each tile of 64 keys it packs K and V once, then takes the rows by fours:
 *   S = q k   int8: vpdpbusd on q + 128 (the sum of k is taken off afterwards), vpmaddwd, or float, which is exact too
 *   P         ex2, rounded to E4M3 like on the GPU (8B, 4B), or left in float (F16)
 *   O         O * alpha + P V in float (vdpbf16ps, though products of E4M3 codes are exact in it, was a quarter slower)
 * Packed tiles: K [d/4][64 keys][4] bytes, [d/2][64][2] int16 or [d][64] float; V [64 keys][d] float.
 */
#include "kernels/attention/cpu/fast.h"
#include "kernels/target.h"

#if TD_X86
#include <immintrin.h>
#endif

typedef td_fast_job job;

/* 2^x for x <= 16: nearest integer by a magic number, then a polynomial on [-0.5, 0.5] (relative error 2e-7). */
TD_INLINE float exp2_c(float x)
{
    x = td_float(td_select(x < -126.0f, 0xc2fc0000u, td_bits(x))); /* at least -126; NaN stays */
    const float shifted = x + 0x1.8p23f, f = x - (shifted - 0x1.8p23f);
    float y = 0x1.5ec866p-10f;
    y = y * f + 0x1.3cbf6p-7f;
    y = y * f + 0x1.c6afeep-5f;
    y = y * f + 0x1.ebfa4cp-3f;
    y = y * f + 0x1.62e43p-1f;
    y = y * f + 1.0f;
    return td_float(td_bits(y) + (td_bits(shifted) << 23));
}

/* cap * tanh(x / cap), within 3e-7 of cap. */
TD_INLINE float capped_c(float x, float cap)
{
    const float e = exp2_c(-2 * TD_LOG2_E / cap * fabsf(x));
    return copysignf(cap * ((1 - e) / (1 + e)), x);
}

/* Float versions of everything: the portable path, and whatever another path does not do better. */
TD_INLINE void pack_q_float(const job *at)
{
    const size_t n = (size_t)at->rows * at->d_pad;
    const uint16_t *half = (const uint16_t *)at->q;
    const int8_t *code = (const int8_t *)at->q;
    for (size_t i = 0; i < n && at->is_8b; i++)
        at->local->q[i] = code[i];
    for (size_t i = 0; i < n && !at->is_8b; i++)
        at->local->q[i] = td_from_f16(half[i]);
}

TD_INLINE void pack_k_float(const job *at)
{
    const uint32_t d_pad = at->d_pad;
    const int8_t *code = (const int8_t *)at->k + (size_t)at->key * d_pad;
    const uint16_t *half = (const uint16_t *)at->k + (size_t)at->key * d_pad;
    for (uint32_t c = 0; c < d_pad; c++)
        for (uint32_t j = 0; j < TD_TILE_KEYS; j++)
            at->local->k[c * TD_TILE_KEYS + j] =
                at->is_8b ? (float)code[j * d_pad + c] : td_from_f16(half[j * d_pad + c]);
}

TD_INLINE void pack_v_float(const job *at)
{
    const uint32_t d_pad = at->d_pad;
    for (uint32_t c = 0; c < d_pad; c++) {
        const size_t from = (size_t)c * at->p->kv_pad + at->key;
        const uint16_t *half = (const uint16_t *)at->v + from;
        for (uint32_t j = 0; j < TD_TILE_KEYS; j++)
            at->local->v[j * d_pad + c] =
                at->is_8b ? at->local->e4m3[at->v[from + td_v_position(j)]] : td_from_f16(half[j]);
    }
}

TD_INLINE void qk_float(const job *at, uint32_t row)
{
    for (uint32_t i = 0; i < 4; i++) {
        const float *q = at->local->q + (size_t)(row + i) * at->d_pad;
        float *s = at->local->s[i];
        for (uint32_t j = 0; j < TD_TILE_KEYS; j++)
            s[j] = 0;
        for (uint32_t c = 0; c < at->d_pad; c++) {
            const float *k = at->local->k + c * TD_TILE_KEYS;
            for (uint32_t j = 0; j < TD_TILE_KEYS; j++)
                s[j] += q[c] * k[j];
        }
    }
}

/* Keys of the tile that row may see. */
TD_INLINE int32_t visible(const job *at, uint32_t first, uint32_t row)
{
    int64_t limit = (int64_t)at->p->kv_len - at->key;
    if (at->p->causal) {
        const int64_t own = (int64_t)(first + row) + at->p->kv_len - at->p->o.rows + 1 - at->key;
        limit = own < limit ? own : limit;
    }
    return limit < 0 ? 0 : limit > (int64_t)TD_TILE_KEYS ? (int32_t)TD_TILE_KEYS : (int32_t)limit;
}

/* s: dot products in, P out, rounded to E4M3 if that is what V is in. */
TD_INLINE void softmax_row_float(const job *at, uint32_t row, uint32_t slot, int32_t limit)
{
    td_local_fast *local = at->local;
    float *s = local->s[slot], m8[8], l8[8], m = local->m[row];
    const float q_scale = local->q_scale[row];
    for (uint32_t j = 0; j < TD_TILE_KEYS; j++)
        s[j] *= q_scale * local->k_scale[j];
    if (at->delta)
        for (uint32_t j = 0; j < TD_TILE_KEYS; j++)
            s[j] += at->delta[j];
    if (at->own)
        for (uint32_t j = 0; j < TD_TILE_KEYS; j++)
            s[j] += at->own[row];
    for (uint32_t j = 0; j < TD_TILE_KEYS && at->cap > 0; j++)
        s[j] = capped_c(s[j], at->cap);
    if (at->bias)
        for (uint32_t j = 0; j < TD_TILE_KEYS; j++)
            s[j] = at->bias[slot][j] == -INFINITY ? -INFINITY : s[j] + at->bias[slot][j];
    for (uint32_t j = (uint32_t)limit; j < TD_TILE_KEYS; j++)
        s[j] = -INFINITY;
    for (uint32_t lane = 0; lane < 8; lane++) {
        m8[lane] = m;
        l8[lane] = 0;
    }
    for (uint32_t j = 0; j < TD_TILE_KEYS; j += 8)
        for (uint32_t lane = 0; lane < 8; lane++)
            m8[lane] = s[j + lane] > m8[lane] ? s[j + lane] : m8[lane];
    for (uint32_t lane = 0; lane < 8; lane++)
        m = m8[lane] > m ? m8[lane] : m;
    const float base = m == -INFINITY ? 0 : m, offset = base - TD_LOG2_448;
    const float alpha = local->m[row] == -INFINITY ? 0 : exp2_c(local->m[row] - base);
    for (uint32_t j = 0; j < TD_TILE_KEYS; j++)
        s[j] = exp2_c(s[j] - offset);
    for (uint32_t j = (uint32_t)limit; j < TD_TILE_KEYS; j++)
        s[j] = 0;
    if (at->bias)
        for (uint32_t j = 0; j < TD_TILE_KEYS; j++)
            s[j] = at->bias[slot][j] == -INFINITY ? 0 : s[j];
    for (uint32_t j = 0; j < TD_TILE_KEYS; j += 8)
        for (uint32_t lane = 0; lane < 8; lane++)
            l8[lane] += s[j + lane];
    if (at->is_8b)
        for (uint32_t j = 0; j < TD_TILE_KEYS; j++)
            s[j] = td_round_e4m3(s[j]);
    for (uint32_t lane = 0; lane < 8; lane++)
        local->l[row][lane] = local->l[row][lane] * alpha + l8[lane];
    local->m[row] = m;
    local->alpha[slot] = alpha;
}

TD_INLINE void pv_float(const job *at, uint32_t row)
{
    const uint32_t d_pad = at->d_pad;
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t c = 0; c < d_pad; c += 32) {
            float tile[32], *o = at->local->o + (size_t)(row + i) * d_pad + c;
            for (uint32_t x = 0; x < 32; x++)
                tile[x] = 0;
            for (uint32_t j = 0; j < TD_TILE_KEYS; j++) {
                const float p = at->local->s[i][j], *v = at->local->v + j * d_pad + c;
                for (uint32_t x = 0; x < 32; x++)
                    tile[x] += p * v[x];
            }
            for (uint32_t x = 0; x < 32; x++)
                o[x] = o[x] * at->local->alpha[i] + tile[x];
        }
}

static void pack_q_c(const job *at)
{
    pack_q_float(at);
}
static void pack_kv_c(const job *at)
{
    pack_k_float(at);
    pack_v_float(at);
}
static void rows_c(const job *at, uint32_t row, const int32_t *limit)
{
    qk_float(at, row);
    for (uint32_t i = 0; i < 4; i++)
        softmax_row_float(at, row + i, i, limit[i]);
    pv_float(at, row);
}

#if TD_X86

TD_TARGET_AVX2 static void pack_q_avx2(const job *at)
{
    const size_t n = (size_t)at->rows * at->d_pad;
    if (at->is_8b) {
        int16_t *to = (int16_t *)at->local->q;
        for (size_t i = 0; i < n; i += 16)
            _mm256_storeu_si256((__m256i *)(to + i),
                                _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(at->q + i))));
    } else {
        for (size_t i = 0; i < n; i += 8)
            _mm256_storeu_ps(at->local->q + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(at->q + i * 2))));
    }
}

/* 8x8 dwords from rows of a stride in bytes, transposed. */
TD_TARGET_AVX2 TD_INLINE void transpose_8x8(const unsigned char *from, size_t stride_bytes, __m256i *out)
{
    __m256i r[8], t[8];
    for (int i = 0; i < 8; i++)
        r[i] = _mm256_loadu_si256((const __m256i *)(from + (size_t)i * stride_bytes));
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        out[i] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x20);
        out[i + 4] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x31);
    }
}

/* K: the dwords of four int8 codes each, or of two fp16 codes, of 8 keys become columns; then they are widened. */
TD_TARGET_AVX2 static void pack_k_avx2(const job *at)
{
    const uint32_t d_pad = at->d_pad;
    const size_t row_bytes = (size_t)d_pad * (at->is_8b ? 1 : 2);
    const unsigned char *k = at->k + (size_t)at->key * row_bytes;
    const __m256i low_half = _mm256_set1_epi32(0xffff);
    for (uint32_t j = 0; j < TD_TILE_KEYS; j += 8)
        for (uint32_t byte = 0; byte < row_bytes; byte += 32) {
            __m256i x[8];
            transpose_8x8(k + (size_t)j * row_bytes + byte, row_bytes, x);
            for (uint32_t i = 0; i < 8; i++) {
                if (at->is_8b) { /* bytes c0 c1 c2 c3 of a key: the pairs (c0, c1) and (c2, c3) */
                    __m256i *to = (__m256i *)((int16_t *)at->local->k + (size_t)(byte + 4 * i) * TD_TILE_KEYS + 2 * j);
                    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(x[i], 8), 8);
                    const __m256i odd = _mm256_srai_epi16(x[i], 8);
                    const __m256i lo = _mm256_or_si256(_mm256_and_si256(even, low_half), _mm256_slli_epi32(odd, 16));
                    const __m256i hi = _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa);
                    _mm256_storeu_si256(to, lo);
                    _mm256_storeu_si256(to + TD_TILE_KEYS / 8, hi);
                } else {
                    float *to = at->local->k + (size_t)(byte / 2 + 2 * i) * TD_TILE_KEYS + j;
                    const __m256i lo =
                        _mm256_packus_epi32(_mm256_and_si256(x[i], low_half), _mm256_srli_epi32(x[i], 16));
                    const __m256i halves = _mm256_permute4x64_epi64(lo, 0xd8);
                    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm256_castsi256_si128(halves)));
                    _mm256_storeu_ps(to + TD_TILE_KEYS, _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)));
                }
            }
        }
}

/* V: dwords of four E4M3 codes (keys 2q, 2q+1, 8+2q, 9+2q of 16) or two fp16 codes of 8 channels become rows. */
TD_TARGET_AVX2 static void pack_v_avx2(const job *at)
{
    const uint32_t d_pad = at->d_pad;
    const size_t row_bytes = (size_t)at->p->kv_pad * (at->is_8b ? 1 : 2);
    const unsigned char *v = at->v + (size_t)at->key * (at->is_8b ? 1 : 2);
    const __m256 unbias = _mm256_set1_ps(0x1p120f);
    for (uint32_t c = 0; c < d_pad; c += 8)
        for (uint32_t byte = 0; byte < TD_TILE_KEYS * (at->is_8b ? 1u : 2u); byte += 32) {
            __m256i x[8];
            transpose_8x8(v + (size_t)c * row_bytes + byte, row_bytes, x);
            for (uint32_t i = 0; i < 8; i++) {
                if (at->is_8b) {
                    for (uint32_t b = 0; b < 4; b++) {
                        const __m256i code = _mm256_slli_epi32(x[i], (int)(24 - 8 * b));
                        const __m256i magnitude =
                            _mm256_and_si256(_mm256_srli_epi32(code, 4), _mm256_set1_epi32(0x07f00000));
                        const __m256 y = _mm256_mul_ps(_mm256_castsi256_ps(magnitude), unbias);
                        const __m256 sign = _mm256_and_ps(_mm256_castsi256_ps(code), _mm256_set1_ps(-0.0f));
                        const uint32_t key = td_v_key(byte + 4 * i + b);
                        _mm256_storeu_ps(at->local->v + (size_t)key * d_pad + c, _mm256_or_ps(y, sign));
                    }
                } else {
                    float *to = at->local->v + (size_t)(byte / 2 + 2 * i) * d_pad + c;
                    const __m256i low = _mm256_and_si256(x[i], _mm256_set1_epi32(0xffff));
                    const __m256i both =
                        _mm256_permute4x64_epi64(_mm256_packus_epi32(low, _mm256_srli_epi32(x[i], 16)), 0xd8);
                    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm256_castsi256_si128(both)));
                    _mm256_storeu_ps(to + d_pad, _mm256_cvtph_ps(_mm256_extracti128_si256(both, 1)));
                }
            }
        }
}

TD_TARGET_AVX2 static void pack_kv_avx2(const job *at)
{
    pack_k_avx2(at);
    pack_v_avx2(at);
}

TD_TARGET_AVX2 TD_INLINE void qk_avx2(const job *at, uint32_t row)
{
    const uint32_t d_pad = at->d_pad;
    for (uint32_t j = 0; j < TD_TILE_KEYS; j += 16) {
        if (at->is_8b) {
            const int16_t *q = (const int16_t *)at->local->q + (size_t)row * d_pad;
            const int16_t *k = (const int16_t *)at->local->k + 2 * j;
            __m256i sum[4][2];
            for (int i = 0; i < 4; i++)
                sum[i][0] = sum[i][1] = _mm256_setzero_si256();
            for (uint32_t c = 0; c < d_pad; c += 2, k += 2 * TD_TILE_KEYS) {
                const __m256i k0 = _mm256_loadu_si256((const __m256i *)k),
                              k1 = _mm256_loadu_si256((const __m256i *)k + 1);
                for (uint32_t i = 0; i < 4; i++) {
                    int32_t pair;
                    memcpy(&pair, q + i * d_pad + c, sizeof pair);
                    const __m256i x = _mm256_set1_epi32(pair);
                    sum[i][0] = _mm256_add_epi32(sum[i][0], _mm256_madd_epi16(x, k0));
                    sum[i][1] = _mm256_add_epi32(sum[i][1], _mm256_madd_epi16(x, k1));
                }
            }
            for (int i = 0; i < 4; i++) {
                _mm256_storeu_ps(at->local->s[i] + j, _mm256_cvtepi32_ps(sum[i][0]));
                _mm256_storeu_ps(at->local->s[i] + j + 8, _mm256_cvtepi32_ps(sum[i][1]));
            }
        } else {
            const float *q = at->local->q + (size_t)row * d_pad, *k = at->local->k + j;
            __m256 sum[4][2];
            for (int i = 0; i < 4; i++)
                sum[i][0] = sum[i][1] = _mm256_setzero_ps();
            for (uint32_t c = 0; c < d_pad; c++, k += TD_TILE_KEYS) {
                const __m256 k0 = _mm256_loadu_ps(k), k1 = _mm256_loadu_ps(k + 8);
                for (uint32_t i = 0; i < 4; i++) {
                    const __m256 x = _mm256_broadcast_ss(q + i * d_pad + c);
                    sum[i][0] = _mm256_fmadd_ps(x, k0, sum[i][0]);
                    sum[i][1] = _mm256_fmadd_ps(x, k1, sum[i][1]);
                }
            }
            for (int i = 0; i < 4; i++) {
                _mm256_storeu_ps(at->local->s[i] + j, sum[i][0]);
                _mm256_storeu_ps(at->local->s[i] + j + 8, sum[i][1]);
            }
        }
    }
}

TD_TARGET_AVX2 TD_INLINE void pv_avx2(const job *at, uint32_t row)
{
    const uint32_t d_pad = at->d_pad;
    for (uint32_t c = 0; c < d_pad; c += 16) {
        const float *v = at->local->v + c;
        __m256 sum[4][2];
        for (int i = 0; i < 4; i++)
            sum[i][0] = sum[i][1] = _mm256_setzero_ps();
        for (uint32_t j = 0; j < TD_TILE_KEYS; j++, v += d_pad) {
            const __m256 v0 = _mm256_loadu_ps(v), v1 = _mm256_loadu_ps(v + 8);
            for (int i = 0; i < 4; i++) {
                const __m256 x = _mm256_broadcast_ss(at->local->s[i] + j);
                sum[i][0] = _mm256_fmadd_ps(x, v0, sum[i][0]);
                sum[i][1] = _mm256_fmadd_ps(x, v1, sum[i][1]);
            }
        }
        for (uint32_t i = 0; i < 4; i++) {
            float *o = at->local->o + (size_t)(row + i) * d_pad + c;
            const __m256 alpha = _mm256_broadcast_ss(at->local->alpha + i);
            _mm256_storeu_ps(o, _mm256_fmadd_ps(_mm256_loadu_ps(o), alpha, sum[i][0]));
            _mm256_storeu_ps(o + 8, _mm256_fmadd_ps(_mm256_loadu_ps(o + 8), alpha, sum[i][1]));
        }
    }
}

TD_TARGET_AVX2 static void rows_avx2(const job *at, uint32_t row, const int32_t *limit)
{
    qk_avx2(at, row);
    for (uint32_t i = 0; i < 4; i++)
        softmax_row_float(at, row + i, i, limit[i]);
    pv_avx2(at, row);
}

TD_TARGET_AVX512 static void pack_q_avx512(const job *at)
{
    const size_t n = (size_t)at->rows * at->d_pad;
    if (at->is_8b)
        for (size_t i = 0; i < n; i += 32)
            _mm256_storeu_si256(
                (__m256i *)((unsigned char *)at->local->q + i),
                _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(at->q + i)), _mm256_set1_epi8(-128)));
    else
        pack_q_avx2(at);
}

/* K [d/4][64 keys][4] and 128 times the sum of each key's codes. */
TD_TARGET_AVX512 static void pack_k_avx512(const job *at)
{
    const uint32_t d_pad = at->d_pad;
    const unsigned char *k = at->k + (size_t)at->key * d_pad;
    const __m512i offset = _mm512_set1_epi8(-128); /* as unsigned: 128 */
    for (uint32_t j = 0; j < TD_TILE_KEYS; j += 16) {
        __m512i sum = _mm512_setzero_si512();
        for (uint32_t c = 0; c < d_pad; c += 32) {
            __m256i x[8], y[8];
            transpose_8x8(k + (size_t)j * d_pad + c, d_pad, x);
            transpose_8x8(k + (size_t)(j + 8) * d_pad + c, d_pad, y);
            for (uint32_t i = 0; i < 8; i++) {
                const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(x[i]), y[i], 1);
                _mm512_storeu_si512((unsigned char *)at->local->k + (size_t)(c / 4 + i) * TD_TILE_KEYS * 4 + j * 4,
                                    both);
                sum = _mm512_dpbusd_epi32(sum, offset, both);
            }
        }
        _mm512_storeu_si512(at->local->k_sum + j, _mm512_sub_epi32(_mm512_setzero_si512(), sum));
    }
}

TD_TARGET_AVX512 static void pack_kv_avx512(const job *at)
{
    if (at->is_8b)
        pack_k_avx512(at);
    else
        pack_k_avx2(at);
    pack_v_avx2(at);
}

TD_TARGET_AVX512 TD_INLINE __m512 exp2_avx512(__m512 x)
{
    x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x); /* this order lets NaN through */
    const __m512 whole = _mm512_roundscale_ps(x, 8), f = _mm512_sub_ps(x, whole);
    __m512 y = _mm512_fmadd_ps(f, _mm512_set1_ps(0x1.5ec866p-10f), _mm512_set1_ps(0x1.3cbf6p-7f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0x1.c6afeep-5f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0x1.ebfa4cp-3f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0x1.62e43p-1f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, whole);
}

TD_TARGET_AVX512 TD_INLINE __m512 round_e4m3_avx512(__m512 x)
{
    const __m512 power = _mm512_and_ps(x, _mm512_castsi512_ps(_mm512_set1_epi32(0x7f800000)));
    const __m512 magic = _mm512_mul_ps(_mm512_max_ps(power, _mm512_set1_ps(0x1p-6f)), _mm512_set1_ps(0x1.8p20f));
    return _mm512_sub_ps(_mm512_add_ps(x, magic), magic);
}

TD_TARGET_AVX512 TD_INLINE __m512 capped_avx512(__m512 x, float cap)
{
    const __m512 one = _mm512_set1_ps(1), sign = _mm512_set1_ps(-0.0f);
    const __m512 e = exp2_avx512(_mm512_mul_ps(_mm512_set1_ps(-2 * TD_LOG2_E / cap), _mm512_andnot_ps(sign, x)));
    const __m512 part = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
    return _mm512_or_ps(_mm512_mul_ps(_mm512_set1_ps(cap), part), _mm512_and_ps(sign, x));
}

/* One row's 64 dot products in s[0..3] become P. */
TD_TARGET_AVX512 TD_INLINE void softmax_row_avx512(const job *at, uint32_t row, uint32_t slot, int32_t limit, __m512 *s)
{
    td_local_fast *local = at->local;
    const __m512 q_scale = _mm512_set1_ps(local->q_scale[row]), lowest = _mm512_set1_ps(-INFINITY);
    for (int i = 0; i < 4; i++) {
        s[i] = _mm512_mul_ps(s[i], _mm512_mul_ps(q_scale, _mm512_loadu_ps(local->k_scale + 16 * i)));
        if (at->delta)
            s[i] = _mm512_add_ps(s[i], _mm512_loadu_ps(at->delta + 16 * i));
        if (at->own)
            s[i] = _mm512_add_ps(s[i], _mm512_set1_ps(at->own[row]));
        if (at->cap > 0)
            s[i] = capped_avx512(s[i], at->cap);
        if (at->bias) {
            const __m512 bias = _mm512_loadu_ps(at->bias[slot] + 16 * i);
            s[i] = _mm512_mask_mov_ps(_mm512_add_ps(s[i], bias), _mm512_cmp_ps_mask(bias, lowest, _CMP_EQ_OQ), lowest);
        }
    }
    if (limit < (int32_t)TD_TILE_KEYS) {
        const uint64_t seen = ((uint64_t)1 << limit) - 1;
        for (int i = 0; i < 4; i++)
            s[i] = _mm512_mask_mov_ps(lowest, (__mmask16)(seen >> 16 * i), s[i]);
    }
    const __m512 m01 = _mm512_max_ps(s[1], _mm512_max_ps(s[0], lowest));
    const float old = local->m[row], top = _mm512_reduce_max_ps(_mm512_max_ps(s[3], _mm512_max_ps(s[2], m01)));
    const float m = top > old ? top : old, base = m == -INFINITY ? 0 : m;
    const __m512 alpha = exp2_avx512(_mm512_set1_ps(old - base)), offset = _mm512_set1_ps(base - TD_LOG2_448);
    for (int i = 0; i < 4; i++)
        s[i] = exp2_avx512(_mm512_sub_ps(s[i], offset));
    const __m512 sum = _mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3]));
    _mm512_storeu_ps(local->l[row], _mm512_fmadd_ps(_mm512_loadu_ps(local->l[row]), alpha, sum));
    local->m[row] = m;
    local->alpha[slot] = _mm512_cvtss_f32(alpha);
    for (int i = 0; i < 4; i++) {
        if (at->is_8b)
            s[i] = round_e4m3_avx512(s[i]);
        _mm512_storeu_ps(local->s[slot] + 16 * i, s[i]);
    }
}

TD_TARGET_AVX512 TD_INLINE void qk_softmax_avx512(const job *at, uint32_t row, const int32_t *limit)
{
    const uint32_t d_pad = at->d_pad;
    __m512 s[4][4];
    if (at->is_8b) {
        const unsigned char *q = (const unsigned char *)at->local->q + (size_t)row * d_pad;
        const unsigned char *k = (const unsigned char *)at->local->k;
        __m512i sum[4][4];
        for (int x = 0; x < 4; x++)
            for (int i = 0; i < 4; i++)
                sum[i][x] = _mm512_loadu_si512(at->local->k_sum + 16 * x);
        for (uint32_t c = 0; c < d_pad; c += 4, k += 4 * TD_TILE_KEYS) {
            __m512i kx[4];
            for (int x = 0; x < 4; x++)
                kx[x] = _mm512_loadu_si512(k + 64 * x);
            for (uint32_t i = 0; i < 4; i++) {
                int32_t four;
                memcpy(&four, q + i * d_pad + c, sizeof four);
                const __m512i qi = _mm512_set1_epi32(four);
                for (int x = 0; x < 4; x++)
                    sum[i][x] = _mm512_dpbusd_epi32(sum[i][x], qi, kx[x]);
            }
        }
        for (int i = 0; i < 4; i++)
            for (int x = 0; x < 4; x++)
                s[i][x] = _mm512_cvtepi32_ps(sum[i][x]);
    } else {
        const float *q = at->local->q + (size_t)row * d_pad, *k = at->local->k;
        for (int i = 0; i < 4; i++)
            for (int x = 0; x < 4; x++)
                s[i][x] = _mm512_setzero_ps();
        for (uint32_t c = 0; c < d_pad; c++, k += TD_TILE_KEYS) {
            __m512 kx[4];
            for (int x = 0; x < 4; x++)
                kx[x] = _mm512_loadu_ps(k + 16 * x);
            for (uint32_t i = 0; i < 4; i++) {
                const __m512 qi = _mm512_set1_ps(q[i * d_pad + c]);
                for (int x = 0; x < 4; x++)
                    s[i][x] = _mm512_fmadd_ps(qi, kx[x], s[i][x]);
            }
        }
    }
    for (uint32_t i = 0; i < 4; i++)
        softmax_row_avx512(at, row + i, i, limit[i], s[i]);
}

TD_TARGET_AVX512 TD_INLINE void pv_avx512(const job *at, uint32_t row)
{
    const uint32_t d_pad = at->d_pad;
    for (uint32_t c = 0; c < d_pad; c += 32) {
        const float *v = at->local->v + c;
        __m512 sum[4][2];
        for (int i = 0; i < 4; i++)
            sum[i][0] = sum[i][1] = _mm512_setzero_ps();
        for (uint32_t j = 0; j < TD_TILE_KEYS; j++, v += d_pad) {
            const __m512 v0 = _mm512_loadu_ps(v), v1 = _mm512_loadu_ps(v + 16);
            for (int i = 0; i < 4; i++) {
                const __m512 x = _mm512_set1_ps(at->local->s[i][j]);
                sum[i][0] = _mm512_fmadd_ps(x, v0, sum[i][0]);
                sum[i][1] = _mm512_fmadd_ps(x, v1, sum[i][1]);
            }
        }
        for (uint32_t i = 0; i < 4; i++) {
            float *o = at->local->o + (size_t)(row + i) * d_pad + c;
            const __m512 alpha = _mm512_set1_ps(at->local->alpha[i]);
            _mm512_storeu_ps(o, _mm512_fmadd_ps(_mm512_loadu_ps(o), alpha, sum[i][0]));
            _mm512_storeu_ps(o + 16, _mm512_fmadd_ps(_mm512_loadu_ps(o + 16), alpha, sum[i][1]));
        }
    }
}

TD_TARGET_AVX512 static void rows_avx512(const job *at, uint32_t row, const int32_t *limit)
{
    qk_softmax_avx512(at, row, limit);
    pv_avx512(at, row);
}

/* fp16 by the instruction for it, which took a sixth of a small job's time in C; NaN as C has it. Dims are multiples of 8. */
TD_TARGET_AVX2 static void store_avx2(void *to, uint32_t dtype, int64_t at, const float *from, uint32_t n)
{
    uint16_t *half = (uint16_t *)to + at;
    if (dtype != TANDEM_DTYPE_F16) {
        td_from_floats(to, dtype, at, from, n);
        return;
    }
    for (uint32_t c = 0; c < n; c += 8) {
        const __m256 x = _mm256_loadu_ps(from + c);
        if (_mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)))
            td_from_floats(half, dtype, c, from + c, 8);
        else
            _mm_storeu_si128((__m128i *)(half + c),
                             _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
}
#endif

static void store_c(void *to, uint32_t dtype, int64_t at, const float *from, uint32_t n)
{
    td_from_floats(to, dtype, at, from, n);
}

static const td_fast_ops isa_table[TD_ISA_COUNT] = {
    [TD_ISA_C] = {pack_q_c, pack_kv_c, rows_c, store_c},
#if TD_X86
    [TD_ISA_AVX2] = {pack_q_avx2, pack_kv_avx2, rows_avx2, store_avx2},
    [TD_ISA_AVX512] = {pack_q_avx512, pack_kv_avx512, rows_avx512, store_avx2},
#endif
};

const td_fast_ops *td_fast_ops_in_use(void)
{
    return &isa_table[td_cpu_isa_level()];
}

void td_fast_store(const td_fast_rows *of, const td_fast_job *at)
{
    const td_params_attention *p = at->p;
    const uint32_t d_pad = at->d_pad, dim = p->o.dim, bh = of->bh;
    const float *scale = p->v_scale + (size_t)of->bhk * d_pad, *mean = p->v_mean ? p->v_mean + (size_t)of->bhk * d_pad : NULL;
    float sums[TD_FAST_ROWS] = {0};
    for (uint32_t lane = 0; lane < 16; lane++) /* a row's one after the other, so rows beside each other */
        for (uint32_t r = 0; r < of->count; r++)
            sums[r] += at->local->l[r][lane];
    for (uint32_t r = 0; r < of->count; r++) {
        const int64_t b = bh / p->heads, h = bh % p->heads, row = of->first + r, row_of_o = at->first + row;
        const int64_t at_o = b * p->o.stride_batch + h * p->o.stride_head + row_of_o * p->o.stride_row;
        const float off = p->lse_bias && !at->own ? p->lse_bias[(size_t)bh * p->q_pad + (size_t)row] : 0; /* by smoothing K */
        const float sink = at->sink == -INFINITY ? at->sink : at->sink - off * (p->scale * TD_LOG2_E);
        const float m = at->local->m[r], l = td_fast_with_sink(sums[r], m, sink);
        const float share = sink == -INFINITY ? 1 : sums[r] / l; /* of keys, beside the sink */
        float *o = at->local->o + (size_t)r * d_pad;
        for (uint32_t c = 0; c < dim; c++)
            o[c] = sums[r] == 0 ? 0 : o[c] / l * scale[c] + (mean ? mean[c] * share : 0);
        td_fast_ops_in_use()->store(p->o.data, p->o.dtype, at_o, o, dim);
        if (p->lse)
            p->lse[b * p->lse_stride_batch + h * p->lse_stride_head + row_of_o * p->lse_stride_row] =
                td_fast_lse(l, m, sink) + (l == 0 ? 0 : off * p->scale);
    }
}

td_fast_job td_fast_start(const td_params_attention *p, const td_fast_rows *of, bool is_8b, td_local_fast *local)
{
    const uint32_t d_pad = p->d_pad;
    const size_t qk_bytes = is_8b ? 1 : 2, row = (size_t)of->bh * p->q_pad + of->first;
    job at = {.p = p, .local = local, .d_pad = d_pad, .is_8b = is_8b, .sink = -INFINITY};
    at.rows = (of->count + 3) & ~3u; /* the rows behind the last exist in the padded codes */
    at.q = (const unsigned char *)p->q_codes + row * d_pad * qk_bytes;
    at.k = (const unsigned char *)p->k_codes + (size_t)of->bhk * p->kv_pad * d_pad * qk_bytes;
    at.v = (const unsigned char *)p->v_codes + (size_t)of->bhk * d_pad * p->kv_pad * qk_bytes;
    for (uint32_t i = 0; i < 256; i++)
        local->e4m3[i] = td_from_e4m3((uint8_t)i);
    td_fast_ops_in_use()->pack_q(&at);
    memset(local->o, 0, (size_t)at.rows * d_pad * sizeof *local->o);
    memset(local->l, 0, at.rows * sizeof local->l[0]);
    for (uint32_t r = 0; r < at.rows; r++) {
        local->m[r] = -INFINITY;
        local->q_scale[r] = p->q_scale[row + r] * (p->scale * TD_LOG2_E);
    }
    return at;
}

void td_fast_load_tile(const td_fast_rows *of, td_fast_job *at)
{
    const td_params_attention *p = at->p;
    td_local_fast *local = at->local;
    memcpy(local->k_scale, p->k_scale + (size_t)of->bhk * p->kv_pad + at->key, sizeof local->k_scale);
    if (p->delta) {
        const size_t q_block = (size_t)of->bh * (p->q_pad / TD_TILE_ROWS) + of->first / TD_TILE_ROWS;
        for (uint32_t j = 0; j < TD_TILE_KEYS; j++)
            local->delta[j] = p->delta[q_block * p->kv_pad + at->key + j] * (p->scale * TD_LOG2_E);
        at->delta = local->delta;
    }
    td_fast_ops_in_use()->pack_kv(at);
}

static void attention(const td_params_attention *p, const td_block *block, bool is_8b)
{
    const td_fast_ops *ops = td_fast_ops_in_use();
    const uint32_t q_len = p->o.rows, tiles = (q_len + TD_FAST_ROWS - 1) / TD_FAST_ROWS, bh = block->x / tiles;
    td_fast_rows of = {.bh = bh, .first = block->x % tiles * TD_FAST_ROWS};
    of.bhk = bh / p->heads * p->kv_heads + bh % p->heads / (p->heads / p->kv_heads);
    of.count = q_len - of.first < TD_FAST_ROWS ? q_len - of.first : TD_FAST_ROWS;
    job at = td_fast_start(p, &of, is_8b, block->local);
    int64_t keys = p->kv_len;
    if (p->causal && (int64_t)(of.first + of.count) + p->kv_len - q_len < keys)
        keys = (int64_t)(of.first + of.count) + p->kv_len - q_len;
    for (at.key = 0; (int64_t)at.key < keys; at.key += TD_TILE_KEYS) {
        td_fast_load_tile(&of, &at);
        for (uint32_t row = 0; row < at.rows; row += 4) { /* in portable C 128 rows take a millisecond */
            int32_t limit[4], some = 0;
            if (!td_block_goes_on(block))
                return;
            for (uint32_t i = 0; i < 4; i++) {
                limit[i] = visible(&at, of.first, row + i);
                some |= limit[i];
            }
            if (some)
                ops->rows(&at, row, limit);
        }
    }
    td_fast_store(&of, &at);
}

void td_fast_attn_8b(const void *params, const td_block *at)
{
    attention(params, at, true);
}

void td_fast_attn_f16(const void *params, const td_block *at)
{
    attention(params, at, false);
}
