/* Rows of fp16 to floats and back, by the instructions that are there for it. See cpu.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cpu/cpu.h"

#if TD_X86
#include <immintrin.h>
#endif

static void from_f16_c(float *to, const uint16_t *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        to[i] = td_from_f16(from[i]);
}

static void to_f16_c(uint16_t *to, const float *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        to[i] = td_to_f16(from[i]);
}

#if TD_X86
/* What is left behind the last eight. */
TD_TARGET_AVX2 static __m256i mask_of(uint32_t count)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

TD_TARGET_AVX2 static void from_f16_avx2(float *to, const uint16_t *from, uint32_t n)
{
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
    if (i < n) {
        uint16_t last[8] = {0};

        memcpy(last, from + i, (n - i) * sizeof *last);
        _mm256_maskstore_ps(to + i, mask_of(n - i), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)last)));
    }
}

/* The instruction keeps bits of a NaN; here there is one for each sign. */
TD_TARGET_AVX2 static __m128i to_f16_of_eight(__m256 x)
{
    const __m128i h = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m128i all = _mm_packs_epi32(_mm256_castsi256_si128(nan), _mm256_extracti128_si256(nan, 1));

    return _mm_or_si128(h, _mm_and_si128(all, _mm_set1_epi16(0x7fff)));
}

TD_TARGET_AVX2 static void to_f16_avx2(uint16_t *to, const float *from, uint32_t n)
{
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(to + i), to_f16_of_eight(_mm256_loadu_ps(from + i)));
    if (i < n) {
        uint16_t last[8];

        _mm_storeu_si128((__m128i *)last, to_f16_of_eight(_mm256_maskload_ps(from + i, mask_of(n - i))));
        memcpy(to + i, last, (n - i) * sizeof *last);
    }
}
#endif

void td_floats_from_f16(float *to, const uint16_t *from, uint32_t n)
{
#if TD_X86
    if (td_cpu_isa_level() >= TD_ISA_AVX2) {
        from_f16_avx2(to, from, n);
        return;
    }
#endif
    from_f16_c(to, from, n);
}

void td_floats_to_f16(uint16_t *to, const float *from, uint32_t n)
{
#if TD_X86
    if (td_cpu_isa_level() >= TD_ISA_AVX2) {
        to_f16_avx2(to, from, n);
        return;
    }
#endif
    to_f16_c(to, from, n);
}
