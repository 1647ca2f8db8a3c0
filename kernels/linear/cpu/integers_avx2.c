/* Products of whole numbers on CPUs with AVX2: the bits of AVX-512. See integers.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Of 16 lanes the first eight are the even blocks', the others the odd ones'.
 */
#include "kernels/linear/cpu/integers.h"

#if TD_X86
#include <immintrin.h>

enum { BLOCK = TD_INTS_BLOCK, TOGETHER = 2, LANES = 8 };

#define AVX2 TD_TARGET_AVX2 static inline __attribute__((always_inline))

/* --- A row of x --- */

AVX2 __m256 load_eight(const uint16_t *half, uint32_t dtype)
{
    const __m128i eight = _mm_loadu_si128((const __m128i *)(const void *)half);

    return dtype == TANDEM_DTYPE_F16 ? _mm256_cvtph_ps(eight)
                                     : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16));
}

/* Two vectors of whole numbers as 16-bit ones, in their order. */
AVX2 __m256i narrow(__m256i a, __m256i b)
{
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
}

AVX2 void take_block(td_ints *to, uint32_t block, const uint16_t *x, uint32_t dtype)
{
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    int16_t *at = to->codes + td_ints_place(block);
    __m256i codes[4], bad = _mm256_setzero_si256();
    __m256 eights[4], most = _mm256_setzero_ps();
    float maxima[LANES], largest = 0;
    int32_t sums[LANES], sum = 0;

    for (uint32_t i = 0; i < 4; i++) {
        const __m256i magnitude =
            _mm256_and_si256(_mm256_castps_si256(eights[i] = load_eight(x + LANES * i, dtype)), _mm256_set1_epi32(0x7fffffff));

        most = _mm256_max_ps(most, _mm256_castsi256_ps(magnitude));
        bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(_mm256_and_si256(magnitude, exponent), exponent));
    }
    _mm256_storeu_ps(maxima, most);
    for (uint32_t i = 0; i < LANES; i++)
        largest = maxima[i] > largest ? maxima[i] : largest;
    const bool finite = _mm256_testz_si256(bad, bad);
    const __m256i some = _mm256_set1_epi32(finite ? -1 : 0); /* codes of NaN would be no 16 bits */
    const __m256 factor = _mm256_set1_ps(td_ints_factor(largest));
    for (uint32_t i = 0; i < 4; i++)
        codes[i] = _mm256_and_si256(_mm256_cvtps_epi32(_mm256_mul_ps(eights[i], factor)), some);
    _mm256_storeu_si256((__m256i *)at, narrow(codes[0], codes[1]));
    _mm256_storeu_si256((__m256i *)(at + BLOCK), narrow(codes[2], codes[3]));
    _mm256_storeu_si256((__m256i *)sums,
                        _mm256_add_epi32(_mm256_add_epi32(codes[0], codes[1]), _mm256_add_epi32(codes[2], codes[3])));
    for (uint32_t i = 0; i < LANES; i++)
        sum += sums[i];
    to->each[block] = finite ? largest * (1.0f / 32767) : NAN;
    to->offsets[block] = to->each[block] * (float)sum;
}

/* What is common to x and w. */
AVX2 void spread_scales(td_ints *to, uint32_t count)
{
    for (uint32_t block = 0; block < td_ints_groups(count) * 2; block++)
        _mm256_storeu_ps(to->scales[block / 2] + block % 2 * LANES, _mm256_set1_ps(to->each[block]));
}

TD_TARGET_AVX2 void td_ints_of_x_avx2(td_ints *to, const void *x, uint32_t dtype, int64_t at, uint32_t count)
{
    td_ints_clear(to, count);
    for (uint32_t block = 0; block < count / BLOCK; block++)
        take_block(to, block, (const uint16_t *)x + at + block * BLOCK, dtype);
    spread_scales(to, count);
}

/* --- Weights --- */

AVX2 float half_at(const unsigned char *at)
{
    uint16_t half;

    memcpy(&half, at, sizeof half);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
}

AVX2 void load_codes(uint32_t weights, const unsigned char *block, __m256i codes[2])
{
    const unsigned char *at = block + (weights == TD_LINEAR_Q4_1 ? 4 : 2);
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)at);

    if (weights == TD_LINEAR_Q8_0) {
        codes[0] = _mm256_cvtepi8_epi16(bytes);
        codes[1] = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(at + 16)));
        return;
    }
    const __m256i both = _mm256_cvtepu8_epi16(bytes), eight = _mm256_set1_epi16(weights == TD_LINEAR_Q4_0 ? 8 : 0);
    codes[0] = _mm256_sub_epi16(_mm256_and_si256(both, _mm256_set1_epi16(15)), eight);
    codes[1] = _mm256_sub_epi16(_mm256_srli_epi16(both, 4), eight);
}

TD_TARGET_AVX2 void td_ints_of_w_avx2(td_ints *to, uint32_t weights, const unsigned char *w, uint32_t count)
{
    td_ints_clear(to, count);
    for (uint32_t block = 0; block < count / BLOCK; block++, w += td_ints_block_bytes(weights)) {
        int16_t *at = to->codes + td_ints_place(block);
        __m256i codes[2];

        load_codes(weights, w, codes);
        _mm256_storeu_si256((__m256i *)at, codes[0]);
        _mm256_storeu_si256((__m256i *)(at + BLOCK), codes[1]);
        to->each[block] = half_at(w);
        to->offsets[block] = weights == TD_LINEAR_Q4_1 ? half_at(w + 2) : 0;
    }
    spread_scales(to, count);
}

/* --- Products --- */

typedef struct lanes {
    __m256 even, odd;
} lanes;

AVX2 __m256 add_block(__m256 sum, const int16_t *x, const __m256i w[2], __m256 scales)
{
    const __m256i low = _mm256_madd_epi16(_mm256_loadu_si256((const __m256i *)x), w[0]),
                  high = _mm256_madd_epi16(_mm256_loadu_si256((const __m256i *)(x + BLOCK)), w[1]);

    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_add_epi32(low, high)), scales, sum);
}

/* And what weights have for an offset; then all lanes, in the order of _mm512_reduce_add_ps(). */
AVX2 float finish(lanes of, const float *w, const float *x, uint32_t count)
{
    for (uint32_t b = 0; b < count / BLOCK; b += 2 * LANES) {
        of.even = _mm256_fmadd_ps(_mm256_loadu_ps(w + b), _mm256_loadu_ps(x + b), of.even);
        of.odd = _mm256_fmadd_ps(_mm256_loadu_ps(w + b + LANES), _mm256_loadu_ps(x + b + LANES), of.odd);
    }
    const __m256 eight = _mm256_add_ps(of.even, of.odd);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

AVX2 __m256 add_group(__m256 sum, const td_ints *x, const td_ints *w, uint32_t block)
{
    const int16_t *at = w->codes + td_ints_place(block);
    const __m256i codes[2] = {_mm256_loadu_si256((const __m256i *)at), _mm256_loadu_si256((const __m256i *)(at + BLOCK))};
    const uint32_t lane = block % 2 * LANES;

    return add_block(sum, x->codes + td_ints_place(block), codes,
                     _mm256_mul_ps(_mm256_loadu_ps(w->scales[block / 2] + lane), _mm256_loadu_ps(x->scales[block / 2] + lane)));
}

TD_TARGET_AVX2 void td_ints_multiply_avx2(const td_ints *x, uint32_t rows, const td_ints *w, uint32_t columns, uint32_t count,
                                          float *sums, uint32_t stride)
{
    for (uint32_t r = 0; r < rows; r += TOGETHER)
        for (uint32_t c = 0; c < columns; c += TOGETHER) {
            lanes sum[TOGETHER][TOGETHER] = {0};

            for (uint32_t g = 0; g < td_ints_groups(count); g++)
                for (uint32_t i = 0; i < TOGETHER; i++)
                    for (uint32_t j = 0; j < TOGETHER; j++) {
                        sum[i][j].even = add_group(sum[i][j].even, &x[r + i], &w[c + j], 2 * g);
                        sum[i][j].odd = add_group(sum[i][j].odd, &x[r + i], &w[c + j], 2 * g + 1);
                    }
            for (uint32_t i = 0; i < TOGETHER; i++)
                for (uint32_t j = 0; j < TOGETHER; j++)
                    sums[(r + i) * stride + c + j] += finish(sum[i][j], w[c + j].offsets, x[r + i].offsets, count);
        }
}

AVX2 float multiply_row(const td_ints *x, uint32_t weights, const unsigned char *w, uint32_t count)
{
    const uint32_t bytes = td_ints_block_bytes(weights), blocks = count / BLOCK;
    float offsets[TD_INTS_BLOCKS] = {0};
    lanes sum = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256i codes[2];

    for (uint32_t b = 0; b < blocks; b++, w += bytes) {
        const __m256 scales = _mm256_set1_ps(half_at(w) * x->each[b]);
        const int16_t *at = x->codes + td_ints_place(b);

        load_codes(weights, w, codes);
        offsets[b] = weights == TD_LINEAR_Q4_1 ? half_at(w + 2) : 0;
        if (b % 2)
            sum.odd = add_block(sum.odd, at, codes, scales);
        else
            sum.even = add_block(sum.even, at, codes, scales);
    }
    return finish(sum, offsets, x->offsets, count);
}

TD_TARGET_AVX2 void td_ints_multiply_row_avx2(const td_ints *x, uint32_t weights,
                                              const unsigned char *const w[TD_INTS_TOGETHER], uint32_t count,
                                              float sums[TD_INTS_TOGETHER])
{
    for (uint32_t j = 0; j < TD_INTS_TOGETHER; j++)
        sums[j] += weights == TD_LINEAR_Q4_0   ? multiply_row(x, TD_LINEAR_Q4_0, w[j], count)
                   : weights == TD_LINEAR_Q4_1 ? multiply_row(x, TD_LINEAR_Q4_1, w[j], count)
                                               : multiply_row(x, TD_LINEAR_Q8_0, w[j], count);
}
#endif
