/* Rows of weights as floats, on the CPU. See weights.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A block of four-bit codes has 16 weights at most, whatever its 32 codes: with AVX-512 these are made and rounded once, and then
 * picked by code.
 */
#include "kernels/linear/cpu/weights.h"

#include "kernels/blocks.h"
#include "kernels/linear/linear.h"

#if TD_X86
#include <immintrin.h>
#endif

enum { BLOCK = 32, PIECE = 256 };

/* To x's type and back. */
TD_INLINE void round_weights(uint32_t dtype, float *w, uint32_t count)
{
    uint16_t rounded[PIECE];

    td_from_floats(rounded, dtype, 0, w, count);
    td_to_floats(w, rounded, dtype, 0, count);
}

/* A piece at a time: it is rounded while it is in the cache. */
static void load_blocks(const td_params_linear *p, const unsigned char *w, uint32_t first, uint32_t count, float *to)
{
    const uint32_t dtype = td_linear_weight_dtype(p->weights, p->dtype);
    const td_dtype of = td_dtype_of(dtype);

    for (uint32_t done = 0, n; done < count; done += n) {
        n = count - done < PIECE ? count - done : PIECE;
        for (uint32_t i = 0; i < n; i += of.elements)
            td_block_decode(dtype, to + done + i, w + (first + done + i) / of.elements * of.bytes);
        round_weights(p->dtype, to + done, n);
    }
}

TD_INLINE void load_plain(const td_params_linear *p, const unsigned char *w, uint32_t first, uint32_t count, float *to)
{
    if (p->weights == TD_LINEAR_DENSE)
        td_to_floats(to, w, p->dtype, first, count);
    else
        for (uint32_t i = 0; i < count; i++)
            to[i] = (float)(int8_t)w[first + i];
}

static void load_c(const td_params_linear *p, const unsigned char *w, uint32_t first, uint32_t count, float *to)
{
    if (p->weights == TD_LINEAR_DENSE || p->weights == TD_LINEAR_INT8)
        load_plain(p, w, first, count, to);
    else
        load_blocks(p, w, first, count, to);
}

#if TD_X86
TD_TARGET_AVX2 static void load_plain_avx2(const td_params_linear *p, const unsigned char *w, uint32_t first, uint32_t count,
                                           float *to)
{
    load_plain(p, w, first, count, to);
}

/* A number of fp16 in all lanes. */
#define AVX512 TD_TARGET_AVX512 static inline __attribute__((always_inline))
AVX512 __m512 half_avx512(const unsigned char *at)
{
    uint16_t half;

    memcpy(&half, at, sizeof half);
    return _mm512_cvtph_ps(_mm256_set1_epi16((short)half));
}

AVX512 __m512 round_avx512(__m512 x)
{
    return _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

/* 32 weights of a block in two halves. */
typedef struct halves {
    __m512 low, high;
} halves;

AVX512 halves pick_avx512(__m512 weights, const unsigned char *codes)
{
    const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)codes)); /* only four bits count */

    return (halves){_mm512_permutexvar_ps(both, weights), _mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), weights)};
}

AVX512 halves block_avx512(uint32_t weights, const unsigned char *block)
{
    const __m512 scale = half_avx512(block);
    const __m512 codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);

    if (weights == TD_LINEAR_Q4_1)
        return pick_avx512(round_avx512(_mm512_add_ps(_mm512_mul_ps(scale, codes), half_avx512(block + 2))), block + 4);
    if (weights == TD_LINEAR_Q4_0)
        return pick_avx512(round_avx512(_mm512_mul_ps(scale, _mm512_sub_ps(codes, _mm512_set1_ps(8)))), block + 2);
    const __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(block + 2))),
                  high = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(block + 18)));
    return (halves){round_avx512(_mm512_mul_ps(scale, _mm512_cvtepi32_ps(low))),
                    round_avx512(_mm512_mul_ps(scale, _mm512_cvtepi32_ps(high)))};
}

AVX512 uint32_t block_bytes(uint32_t weights)
{
    return weights == TD_LINEAR_Q4_0 ? 18 : weights == TD_LINEAR_Q4_1 ? 20 : 34;
}

AVX512 void load_small_blocks_avx512(uint32_t weights, const unsigned char *w, uint32_t first, uint32_t count, float *to)
{
    const uint32_t bytes = block_bytes(weights);

    for (uint32_t i = 0; i < count; i += BLOCK) {
        const halves of = block_avx512(weights, w + (first + i) / BLOCK * bytes);

        _mm512_storeu_ps(to + i, of.low);
        _mm512_storeu_ps(to + i + 16, of.high);
    }
}

TD_TARGET_AVX512 static void load_avx512(const td_params_linear *p, const unsigned char *w, uint32_t first, uint32_t count,
                                         float *to)
{
    if (p->weights == TD_LINEAR_Q4_0)
        load_small_blocks_avx512(TD_LINEAR_Q4_0, w, first, count, to);
    else if (p->weights == TD_LINEAR_Q4_1)
        load_small_blocks_avx512(TD_LINEAR_Q4_1, w, first, count, to);
    else
        load_small_blocks_avx512(TD_LINEAR_Q8_0, w, first, count, to);
}

AVX512 void dot_avx512(uint32_t weights, const unsigned char *const w[TD_LINEAR_DOTS], const float *x, uint32_t first,
                       uint32_t count, float sums[TD_LINEAR_DOTS][16])
{
    const uint32_t bytes = block_bytes(weights), begin = first / BLOCK * bytes;
    __m512 sum[TD_LINEAR_DOTS];

    for (uint32_t j = 0; j < TD_LINEAR_DOTS; j++)
        sum[j] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < count / BLOCK; i++) {
        const __m512 low = _mm512_loadu_ps(x + BLOCK * i), high = _mm512_loadu_ps(x + BLOCK * i + 16);

        for (uint32_t j = 0; j < TD_LINEAR_DOTS; j++) {
            const halves of = block_avx512(weights, w[j] + begin + i * bytes);

            sum[j] = _mm512_fmadd_ps(high, of.high, _mm512_fmadd_ps(low, of.low, sum[j]));
        }
    }
    for (uint32_t j = 0; j < TD_LINEAR_DOTS; j++)
        _mm512_storeu_ps(sums[j], sum[j]);
}

TD_TARGET_AVX512 void td_linear_dot_avx512(const td_params_linear *p, const unsigned char *const w[TD_LINEAR_DOTS],
                                           const float *x, uint32_t first, uint32_t count, float sums[TD_LINEAR_DOTS][16])
{
    if (p->weights == TD_LINEAR_Q4_0)
        dot_avx512(TD_LINEAR_Q4_0, w, x, first, count, sums);
    else if (p->weights == TD_LINEAR_Q4_1)
        dot_avx512(TD_LINEAR_Q4_1, w, x, first, count, sums);
    else
        dot_avx512(TD_LINEAR_Q8_0, w, x, first, count, sums);
}
#endif

void td_linear_load_weights(const td_params_linear *p, const unsigned char *w, uint32_t first, uint32_t count, float *to)
{
#if TD_X86
    const td_isa isa = td_cpu_isa_level();

    if (isa >= TD_ISA_AVX512 && td_linear_has_dot(p))
        load_avx512(p, w, first, count, to);
    else if (isa >= TD_ISA_AVX2 && (p->weights == TD_LINEAR_DENSE || p->weights == TD_LINEAR_INT8))
        load_plain_avx2(p, w, first, count, to);
    else
#endif
        load_c(p, w, first, count, to);
}
