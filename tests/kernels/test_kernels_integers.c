/* Codes of x, by which the CPU multiplies weights in blocks of 32 as whole numbers: of whatever x is, numbers that add up.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "kernels/linear/cpu/integers.h"

#if TD_X86
enum { BLOCK = TD_INTS_BLOCK, COUNT = 2 * BLOCK };

static uint16_t bf16_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static int code_of(const td_ints *x, uint32_t block, uint32_t i)
{
    return x->codes[td_ints_place(block) + (i < BLOCK / 2 ? i : BLOCK / 2 + i)];
}

typedef void of_x(td_ints *to, const void *x, uint32_t dtype, int64_t at, uint32_t count);

/* The first block is regular, the second has `odd` among numbers of `size`. */
static void check(of_x *codes_of, float odd, float size)
{
    uint16_t x[COUNT];
    td_ints to;
    int sum = 0;

    for (uint32_t i = 0; i < COUNT; i++)
        x[i] = bf16_of((i < BLOCK ? 1 : size) * (float)((int)i % 5 - 2));
    x[BLOCK + 7] = bf16_of(odd);
    codes_of(&to, x, TANDEM_DTYPE_BF16, 0, COUNT);
    for (uint32_t i = 0; i < BLOCK; i++)
        assert_true(fabsf((float)code_of(&to, 0, i) * to.each[0] - (float)((int)i % 5 - 2)) <= 2.0f / 32767);
    for (uint32_t i = 0; i < BLOCK; i++) {
        const int code = code_of(&to, 1, i);

        assert_in_range(code + 32767, 0, 2 * 32767);
        sum += code;
    }
    if (!isfinite(odd)) {
        assert_true(isnan(to.each[1]) && isnan(to.offsets[1]));
        return;
    }
    assert_true(to.offsets[1] == to.each[1] * (float)sum);
    for (uint32_t i = 0; i < BLOCK; i++) {
        const float value = i == 7 ? odd : size * (float)((int)(BLOCK + i) % 5 - 2), most = fmaxf(2 * size, fabsf(odd));

        assert_true(fabsf((float)code_of(&to, 1, i) * to.each[1] - value) <= most / 128 + 1e-34f); /* bf16, too, rounds */
    }
}

static void test_codes(void **state)
{
    static const float odds[] = {0, 3, -3, NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-38f, 1e-40f, -1e-30f};
    static const float sizes[] = {0, 1, 1e-39f, 1e-35f, 1e-30f, 1e38f};

    (void)state;
    for (uint32_t i = 0; i < sizeof odds / sizeof *odds; i++)
        for (uint32_t j = 0; j < sizeof sizes / sizeof *sizes && td_cpu_isa_level() >= TD_ISA_AVX2; j++) {
            check(td_ints_of_x_avx2, odds[i], sizes[j]);
            check(td_ints_of_x, odds[i], sizes[j]);
        }
}
#else
static void test_codes(void **state)
{
    (void)state; /* there are none */
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_codes)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
