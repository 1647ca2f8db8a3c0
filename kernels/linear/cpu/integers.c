/* Products of whole numbers on CPUs. See integers.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/linear/cpu/integers.h"

bool td_cpu_linear_in_integers(const td_params_linear *p)
{
    return td_cpu_isa_level() >= TD_ISA_AVX2 && p->dtype != TANDEM_DTYPE_F32 &&
           (p->weights == TD_LINEAR_Q4_0 || p->weights == TD_LINEAR_Q4_1 || p->weights == TD_LINEAR_Q8_0);
}

#if TD_X86
#include <immintrin.h>

enum { BLOCK = TD_INTS_BLOCK, GROUP = 2 * TD_INTS_BLOCK, TOGETHER = TD_INTS_TOGETHER };

#define AVX512 TD_TARGET_AVX512 static inline __attribute__((always_inline))

/* --- A row of x --- */

AVX512 void load_block(const void *x, uint32_t dtype, int64_t at, __m512 halves[2])
{
    const __m256i *half = (const __m256i *)(const void *)((const uint16_t *)x + at);

    for (uint32_t i = 0; i < 2; i++)
        halves[i] = dtype == TANDEM_DTYPE_F16
                        ? _mm512_cvtph_ps(_mm256_loadu_si256(half + i))
                        : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(half + i)), 16));
}

AVX512 void take_block(td_ints *to, uint32_t block, const __m512 x[2])
{
    const float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(x[0]), _mm512_abs_ps(x[1])));
    const __m512 zero = _mm512_add_ps(_mm512_sub_ps(x[0], x[0]), _mm512_sub_ps(x[1], x[1]));
    const bool finite = !_mm512_cmp_ps_mask(zero, zero, _CMP_UNORD_Q);
    const __mmask16 some = finite ? 0xffff : 0; /* codes of NaN would be no 16 bits */
    const __m512 factor = _mm512_set1_ps(td_ints_factor(most));
    const __m512i codes[2] = {_mm512_maskz_cvtps_epi32(some, _mm512_mul_ps(x[0], factor)),
                              _mm512_maskz_cvtps_epi32(some, _mm512_mul_ps(x[1], factor))};
    const float scale = finite ? most * (1.0f / 32767) : NAN;
    int16_t *at = to->codes + td_ints_place(block);

    _mm256_storeu_si256((__m256i *)at, _mm512_cvtsepi32_epi16(codes[0]));
    _mm256_storeu_si256((__m256i *)(at + BLOCK), _mm512_cvtsepi32_epi16(codes[1]));
    to->each[block] = scale;
    to->offsets[block] = scale * (float)_mm512_reduce_add_epi32(_mm512_add_epi32(codes[0], codes[1]));
}

/* Two blocks' numbers, eight times each. */
AVX512 __m512 spread(const float *each, uint32_t group)
{
    const __m256 first = _mm256_set1_ps(each[2 * group]), second = _mm256_set1_ps(each[2 * group + 1]);

    return _mm512_insertf32x8(_mm512_castps256_ps512(first), second, 1);
}

/* What is common to x and w. */
AVX512 void spread_scales(td_ints *to, uint32_t groups)
{
    for (uint32_t group = 0; group < groups; group++)
        _mm512_store_ps(to->scales[group], spread(to->each, group));
}

TD_TARGET_AVX512 static void of_x_avx512(td_ints *to, const void *x, uint32_t dtype, int64_t at, uint32_t count)
{
    td_ints_clear(to, count);
    for (uint32_t block = 0; block < count / BLOCK; block++) {
        __m512 halves[2];

        load_block(x, dtype, at + block * BLOCK, halves);
        take_block(to, block, halves);
    }
    spread_scales(to, td_ints_groups(count));
}

/* --- Weights --- */

enum { SCALES = 16 /* that are made of fp16 at once */ };

AVX512 int head_of(const unsigned char *block)
{
    int head;

    memcpy(&head, block, sizeof head);
    return head;
}

/* The first four bytes of four blocks, of which some may not be there: 0. A gather is slower. */
AVX512 __m128i load_heads(const unsigned char *w, uint32_t bytes, uint32_t blocks)
{
    if (blocks >= 4)
        return _mm_setr_epi32(head_of(w), head_of(w + bytes), head_of(w + 2 * bytes), head_of(w + 3 * bytes));
    return _mm_setr_epi32(head_of(w), blocks > 1 ? head_of(w + bytes) : 0, blocks > 2 ? head_of(w + 2 * bytes) : 0, 0);
}

/* Scales of so many blocks, from `first` on; *offsets of those that have some. */
AVX512 __m512 load_scales(uint32_t weights, const unsigned char *w, uint32_t first, uint32_t blocks, __m512 *offsets)
{
    const uint32_t bytes = td_ints_block_bytes(weights);
    __m512i words = _mm512_setzero_si512();

#define FOUR(i)                                                                                                     \
    if (first + 4 * (i) < blocks)                                                                                   \
    words = _mm512_inserti32x4(                                                                                     \
        words, load_heads(w + (first + 4 * (i)) * bytes, bytes, blocks - first - 4 * (i)), i)
    FOUR(0);
    FOUR(1);
    FOUR(2);
    FOUR(3);
#undef FOUR
    *offsets = weights == TD_LINEAR_Q4_1 ? _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(words, 16)))
                                         : _mm512_setzero_ps();
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
}

/* Codes of two blocks: lower halves, upper halves. */
typedef struct codes {
    __m512i low, high;
} codes;

AVX512 codes load_codes(uint32_t weights, const unsigned char *first, const unsigned char *second)
{
    const uint32_t at = weights == TD_LINEAR_Q4_1 ? 4 : 2;
    const __m256i a = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(first + at))),
                                              _mm_loadu_si128((const __m128i *)(second + at)), 1);

    if (weights == TD_LINEAR_Q8_0) {
        const __m256i b = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(first + at + 16))),
                                                  _mm_loadu_si128((const __m128i *)(second + at + 16)), 1);
        return (codes){_mm512_cvtepi8_epi16(a), _mm512_cvtepi8_epi16(b)};
    }
    const __m512i both = _mm512_cvtepu8_epi16(a), eight = _mm512_set1_epi16(8);
    const codes four = {_mm512_and_si512(both, _mm512_set1_epi16(15)), _mm512_srli_epi16(both, 4)};
    if (weights == TD_LINEAR_Q4_1)
        return four;
    return (codes){_mm512_sub_epi16(four.low, eight), _mm512_sub_epi16(four.high, eight)};
}

/* Where there is no second block, what stands for it counts for nothing: x has zeros there, and its scale is 0. */
AVX512 const unsigned char *second_of(const unsigned char *w, uint32_t bytes, uint32_t group, uint32_t blocks)
{
    return w + (2 * group + 1 < blocks ? 2 * group + 1 : 2 * group) * bytes;
}

AVX512 void take_weights(td_ints *to, uint32_t weights, const unsigned char *w, uint32_t count)
{
    const uint32_t bytes = td_ints_block_bytes(weights), blocks = count / BLOCK;

    for (uint32_t block = 0; block < TD_INTS_BLOCKS; block += SCALES) {
        __m512 offsets;

        _mm512_storeu_ps(to->each + block, load_scales(weights, w, block, blocks, &offsets));
        _mm512_storeu_ps(to->offsets + block, offsets);
    }
    for (uint32_t group = 0; group < td_ints_groups(count); group++) {
        const codes of = load_codes(weights, w + 2 * group * bytes, second_of(w, bytes, group, blocks));

        _mm512_store_si512(to->codes + group * GROUP, of.low);
        _mm512_store_si512(to->codes + group * GROUP + BLOCK, of.high);
    }
    spread_scales(to, td_ints_groups(count));
}

TD_TARGET_AVX512 static void of_w_avx512(td_ints *to, uint32_t weights, const unsigned char *w, uint32_t count)
{
    if (weights == TD_LINEAR_Q4_0)
        take_weights(to, TD_LINEAR_Q4_0, w, count);
    else if (weights == TD_LINEAR_Q4_1)
        take_weights(to, TD_LINEAR_Q4_1, w, count);
    else
        take_weights(to, TD_LINEAR_Q8_0, w, count);
}

/* --- Products --- */

/* A group's: what its products of codes, which fit a float's 24 bits, add to 16 lanes. */
AVX512 __m512 add_group(__m512 sum, const int16_t *x, codes w, __m512 scales)
{
    const __m512i low = _mm512_dpwssd_epi32(_mm512_setzero_si512(), _mm512_load_si512(x), w.low);

    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_dpwssd_epi32(low, _mm512_load_si512(x + BLOCK), w.high)), scales, sum);
}

TD_TARGET_AVX512 static void multiply_avx512(const td_ints *x, uint32_t rows, const td_ints *w, uint32_t columns,
                                             uint32_t count, float *sums, uint32_t stride)
{
    for (uint32_t r = 0; r < rows; r += TOGETHER)
        for (uint32_t c = 0; c < columns; c += TOGETHER) {
            __m512 sum[TOGETHER][TOGETHER];

            for (uint32_t i = 0; i < TOGETHER; i++)
                for (uint32_t j = 0; j < TOGETHER; j++)
                    sum[i][j] = _mm512_setzero_ps();
            for (uint32_t g = 0; g < td_ints_groups(count); g++)
                for (uint32_t j = 0; j < TOGETHER; j++) {
                    const int16_t *at = w[c + j].codes + g * GROUP;
                    const codes of = {_mm512_load_si512(at), _mm512_load_si512(at + BLOCK)};
                    const __m512 scales = _mm512_load_ps(w[c + j].scales[g]);

                    for (uint32_t i = 0; i < TOGETHER; i++)
                        sum[i][j] = add_group(sum[i][j], x[r + i].codes + g * GROUP, of,
                                              _mm512_mul_ps(scales, _mm512_load_ps(x[r + i].scales[g])));
                }
            for (uint32_t i = 0; i < TOGETHER; i++)
                for (uint32_t j = 0; j < TOGETHER; j++) {
                    for (uint32_t b = 0; b < count / BLOCK; b += SCALES)
                        sum[i][j] = _mm512_fmadd_ps(_mm512_loadu_ps(w[c + j].offsets + b),
                                                    _mm512_loadu_ps(x[r + i].offsets + b), sum[i][j]);
                    sums[(r + i) * stride + c + j] += _mm512_reduce_add_ps(sum[i][j]);
                }
        }
}

AVX512 void multiply_row(const td_ints *x, uint32_t weights, const unsigned char *const w[TOGETHER], uint32_t count,
                         float sums[TOGETHER])
{
    const uint32_t bytes = td_ints_block_bytes(weights), blocks = count / BLOCK;
    float scales[TOGETHER][TD_INTS_BLOCKS];
    __m512 sum[TOGETHER], offsets[TOGETHER][TD_INTS_BLOCKS / SCALES];

    for (uint32_t j = 0; j < TOGETHER; j++) {
        sum[j] = _mm512_setzero_ps();
        for (uint32_t b = 0; b < blocks; b += SCALES)
            _mm512_storeu_ps(scales[j] + b, _mm512_mul_ps(load_scales(weights, w[j], b, blocks, &offsets[j][b / SCALES]),
                                                          _mm512_loadu_ps(x->each + b)));
    }
    for (uint32_t g = 0; g < td_ints_groups(count); g++)
        for (uint32_t j = 0; j < TOGETHER; j++)
            sum[j] = add_group(sum[j], x->codes + g * GROUP,
                               load_codes(weights, w[j] + 2 * g * bytes, second_of(w[j], bytes, g, blocks)),
                               spread(scales[j], g));
    for (uint32_t j = 0; j < TOGETHER; j++) {
        for (uint32_t b = 0; b < blocks; b += SCALES)
            sum[j] = _mm512_fmadd_ps(offsets[j][b / SCALES], _mm512_loadu_ps(x->offsets + b), sum[j]);
        sums[j] += _mm512_reduce_add_ps(sum[j]);
    }
}

TD_TARGET_AVX512 static void multiply_row_avx512(const td_ints *x, uint32_t weights, const unsigned char *const w[TOGETHER],
                                                 uint32_t count, float sums[TOGETHER])
{
    if (weights == TD_LINEAR_Q4_0)
        multiply_row(x, TD_LINEAR_Q4_0, w, count, sums);
    else if (weights == TD_LINEAR_Q4_1)
        multiply_row(x, TD_LINEAR_Q4_1, w, count, sums);
    else
        multiply_row(x, TD_LINEAR_Q8_0, w, count, sums);
}

/* --- Of the instruction set in use --- */

static bool is_avx512(void)
{
    return td_cpu_isa_level() >= TD_ISA_AVX512;
}

void td_ints_of_x(td_ints *to, const void *x, uint32_t dtype, int64_t at, uint32_t count)
{
    (is_avx512() ? of_x_avx512 : td_ints_of_x_avx2)(to, x, dtype, at, count);
}

void td_ints_of_w(td_ints *to, uint32_t weights, const unsigned char *w, uint32_t count)
{
    (is_avx512() ? of_w_avx512 : td_ints_of_w_avx2)(to, weights, w, count);
}

void td_ints_multiply(const td_ints *x, uint32_t rows, const td_ints *w, uint32_t columns, uint32_t count, float *sums,
                      uint32_t stride)
{
    (is_avx512() ? multiply_avx512 : td_ints_multiply_avx2)(x, rows, w, columns, count, sums, stride);
}

void td_ints_multiply_row(const td_ints *x, uint32_t weights, const unsigned char *const w[TOGETHER], uint32_t count,
                          float sums[TOGETHER])
{
    (is_avx512() ? multiply_row_avx512 : td_ints_multiply_row_avx2)(x, weights, w, count, sums);
}
#endif
