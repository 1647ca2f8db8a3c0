/* Number formats, the order of V, and what tensor cores add up.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "kernels/attention/cpu.h"
#include "tests/kernels/attention_cpu/rig.h"

static void test_formats(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (uint32_t i = 0; i < 65536; i++) {
        const float x = td_from_f16((uint16_t)i), y = td_from_bf16((uint16_t)i);
        if (x == x)
            assert_int_equal(td_to_f16(x), i);
        if (y == y)
            assert_int_equal(td_to_bf16(y), i);
    }
    assert_true(isnan(td_from_f16(0x7e01)) && isnan(td_from_e4m3(0x7f)) && isnan(td_from_e4m3(0xff)));
    assert_int_equal(td_to_e4m3(NAN), 0x7f);
    assert_int_equal(td_to_e4m3(1e9f), 0x7e);
    assert_int_equal(td_to_e4m3(-INFINITY), 0xfe);
    assert_true(td_from_e4m3(0x7e) == 448 && td_from_e4m3(1) == 0x1p-9f && td_from_e4m3(8) == 0x1p-6f);
    for (uint32_t i = 0; i < 127; i++) {
        const float a = td_from_e4m3((uint8_t)i), b = i < 126 ? td_from_e4m3((uint8_t)(i + 1)) : 480,
                    middle = (a + b) / 2;
        assert_true(b > a);
        assert_int_equal(td_to_e4m3(a), i);
        assert_int_equal(td_to_e4m3(-a), i | 0x80);
        assert_int_equal(td_to_e4m3(nextafterf(middle, 0)), i);
        if (i < 126) {
            assert_int_equal(td_to_e4m3(nextafterf(middle, INFINITY)), i + 1);
            assert_int_equal(td_to_e4m3(middle), i % 2 ? i + 1 : i);
        }
    }
    for (int i = 0; i < 20000; i++) { /* between two neighbours the nearer is taken, of equally near ones the even */
        const float x = (float)(tu_normal(&seed) * exp2((double)(tu_random(&seed) % 30) - 20));
        const uint16_t h = td_to_f16(x), up = (uint16_t)(h + 1), down = (uint16_t)(h - 1);
        const double e = fabs((double)td_from_f16(h) - (double)x);
        assert_true(e <= fabs((double)td_from_f16(up) - (double)x));
        if (h & 0x7fff)
            assert_true(e <= fabs((double)td_from_f16(down) - (double)x));
    }
    assert_int_equal(td_to_f16(65519.9f), 0x7bff);
    assert_int_equal(td_to_f16(65520.0f), 0x7c00);
    assert_int_equal(td_to_f16(0x1p-25f), 0);
    assert_int_equal(td_to_f16(0x1.8p-24f), 2);
}

/* Rows of them, by each instruction set: the bits of one at a time, and nothing is written behind the last. */
static void test_rows_of_f16(void **state)
{
    static const char *const sets[] = {"c", "avx2", "avx512-vnni"};
    static const uint32_t counts[] = {0, 1, 7, 8, 9, 15, 16, 63, 64, 65, 576};
    uint64_t seed = 2;

    (void)state;
    for (size_t n = 0; n < sizeof sets / sizeof *sets; n++) {
        if (!td_cpu_isa_force(sets[n]))
            continue;
        for (uint32_t at = 0; at < 65536; at += 64) {
            uint16_t halves[64];
            float floats[64];

            for (uint32_t i = 0; i < 64; i++)
                halves[i] = (uint16_t)(at + i);
            td_floats_from_f16(floats, halves, 64);
            for (uint32_t i = 0; i < 64; i++)
                assert_int_equal(td_bits(floats[i]), td_bits(td_from_f16(halves[i])));
        }
        for (int turn = 0; turn < 2000; turn++) {
            const uint32_t count = counts[turn % (sizeof counts / sizeof *counts)];
            float floats[577], back[577];
            uint16_t halves[577];

            for (uint32_t i = 0; i < 577; i++) /* of all exponents: subnormal, infinite and NaN, too */
                floats[i] = td_float((uint32_t)tu_random(&seed) >> (tu_random(&seed) % 2 ? 0 : 2) ^ (turn % 3 ? 0 : 0x38000000));
            memset(halves, 0xa5, sizeof halves);
            memset(back, 0xa5, sizeof back);
            td_floats_to_f16(halves, floats, count);
            td_floats_from_f16(back, halves, count);
            for (uint32_t i = 0; i < count; i++) {
                assert_int_equal(halves[i], td_to_f16(floats[i]));
                assert_int_equal(td_bits(back[i]), td_bits(td_from_f16(halves[i])));
            }
            assert_int_equal(halves[count], 0xa5a5);
            assert_int_equal(td_bits(back[count]), 0xa5a5a5a5);
        }
    }
    td_cpu_isa_force(NULL);
}

static void test_v_permutation(void **state)
{
    (void)state;
    uint32_t seen[4] = {0};
    for (uint32_t key = 0; key < 128; key++) {
        const uint32_t position = td_v_position(key);
        assert_int_equal(td_v_key(position), key);
        assert_int_equal(position / 16, key / 16);
        seen[position / 32] |= 1u << position % 32;
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(seen[i], 0xffffffff);
    /* position 4q + r holds key 8 * (r >> 1) + 2q + (r & 1) */
    for (uint32_t q = 0; q < 4; q++)
        for (uint32_t r = 0; r < 4; r++)
            assert_int_equal(td_v_key(4 * q + r), 8 * (r >> 1) + 2 * q + (r & 1));
}

/* ---- tensor cores ---- */

static void test_tensor_cores_of_an_h200(void **state)
{
    (void)state;
    static const struct {
        uint32_t a[8], b[8], a16[8], b16[8], c, mma_e4m3, mma_f16, wgmma;
    } cases[] = {
#include "tests/kernels/mma_h200.inc"
    };
    assert_int_equal(sizeof cases / sizeof *cases, 64);
    int differ = 0;
    for (int i = 0; i < 64; i++) {
        const uint8_t *a = (const uint8_t *)cases[i].a, *b = (const uint8_t *)cases[i].b;
        const uint16_t *a16 = (const uint16_t *)cases[i].a16, *b16 = (const uint16_t *)cases[i].b16;
        const float c = td_float(cases[i].c);
        assert_int_equal(td_bits(td_twin_mma_e4m3(TD_ACCUMULATOR_HOPPER_MMA, a, b, c)), cases[i].mma_e4m3);
        assert_int_equal(td_bits(td_twin_mma_f16(a16, b16, c)), cases[i].mma_f16);
        assert_int_equal(td_bits(td_twin_mma_e4m3(TD_ACCUMULATOR_WGMMA, a, b, c)), cases[i].wgmma);
        differ += cases[i].wgmma != cases[i].mma_e4m3;
    }
    assert_true(differ > 32); /* else the cases could not tell the units apart */
    static const struct {
        uint32_t a[8], b[8];
        uint16_t c, d;
    } halves[] = {
#include "tests/kernels/wgmma_f16_h200.inc"
    };
    differ = 0;
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
        const uint8_t *a = (const uint8_t *)halves[i].a, *b = (const uint8_t *)halves[i].b;
        const float c = td_from_f16(halves[i].c), other = td_twin_mma_e4m3(TD_ACCUMULATOR_WGMMA, a, b, c);
        assert_int_equal(td_bits(td_twin_mma_e4m3(TD_ACCUMULATOR_WGMMA_F16, a, b, c)), td_bits(td_from_f16(halves[i].d)));
        differ += td_bits(other) != td_bits(td_from_f16(halves[i].d));
    }
    assert_true(differ > 16);
}

/* 8.5 sigma of bias on V: one accumulator over all keys loses much, one for each 64 keys little. */
static void test_two_levels_beat_one(void **state)
{
    (void)state;
    static const uint32_t units[] = {TD_ACCUMULATOR_WGMMA, TD_ACCUMULATOR_ADA_MMA, TD_ACCUMULATOR_BLACKWELL_MMA,
                                     TD_ACCUMULATOR_HOPPER_MMA, TD_ACCUMULATOR_F32};
    enum { KEYS = 16384 };
    static uint8_t p[KEYS], v[KEYS];
    uint64_t seed = 5;
    double exact = 0;
    for (int i = 0; i < KEYS; i++) {
        p[i] = td_to_e4m3((float)(448 * exp(-fabs(tu_normal(&seed)))));
        v[i] = td_to_e4m3((float)(tu_normal(&seed) + 8.5) * 20);
        exact += (double)td_from_e4m3(p[i]) * (double)td_from_e4m3(v[i]);
    }
    for (int unit = 0; unit < 5; unit++) {
        float one = 0, two = 0;
        for (int i = 0; i < KEYS; i += 64) {
            float tile = 0;
            for (int k = i; k < i + 64; k += 32) {
                one = td_twin_mma_e4m3(units[unit], p + k, v + k, one);
                tile = td_twin_mma_e4m3(units[unit], p + k, v + k, tile);
            }
            two += tile;
        }
        const double error_one = fabs((double)one / exact - 1), error_two = fabs((double)two / exact - 1);
        if (unit < 2) {
            assert_in(error_two, 1e-5, 3e-3);
            assert_true(error_one > 20 * error_two);
        } else {
            assert_true(error_one < 1e-3 && error_two < 1e-4);
        }
    }
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_formats),
    cmocka_unit_test(test_rows_of_f16),
    cmocka_unit_test(test_v_permutation),
    cmocka_unit_test(test_tensor_cores_of_an_h200),
    cmocka_unit_test(test_two_levels_beat_one),
};
const test_cases attention_cpu_formats_cases = TEST_CASES(cases);
