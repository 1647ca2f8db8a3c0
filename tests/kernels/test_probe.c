/* Probes of the tensor cores on the twin, and packed int4 codes beside int8 ones.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/attention/cpu.h"
#include "kernels/attention/params.h"
#include "kernels/probe.h"
#include "tests/kernels/attention_util.h"

enum { TILES = 64 };

static td_target twin_of(uint32_t sm)
{
    td_target target = td_target_for_sm(sm);
    target.twin = true;
    return target;
}

static unsigned char a[TILES * TD_PROBE_A_BYTES], b[TILES * TD_PROBE_B_BYTES];
static float c[TILES * TD_PROBE_ELEMENTS], d[TILES * TD_PROBE_ELEMENTS];

static void run(uint32_t unit, uint32_t sm, uint32_t tiles)
{
    static td_plan plan;
    const td_target target = twin_of(sm);
    const uint64_t views[TD_PROBE_VIEWS] = {(uintptr_t)a, (uintptr_t)b, (uintptr_t)c, (uintptr_t)d};
    char why[256] = "";
    memset(d, 0xff, sizeof d);
    assert_int_equal(td_plan_probe(unit, tiles, &target, &plan, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_exec_cpu_run(&plan, views, 0, 2, NULL), TANDEM_OK);
}

/* What each unit's model keeps of a lone C, and up to which 2^n it sees one product of 1, and all of them. */
static void test_what_the_units_keep(void **state)
{
    (void)state;
    static const struct {
        uint32_t unit, sm, kept, one, all;
    } cases[] = {{TD_PROBE_WGMMA_E4M3, 90, 13, 13, 13},
                 {TD_PROBE_MMA_E4M3, 89, 13, 13, 13},
                 {TD_PROBE_MMA_E4M3, 90, 23, 23, 28},
                 {TD_PROBE_MMA_E4M3, 120, 23, 23, 25},
                 {TD_PROBE_MMA_F16, 90, 23, 23, 25}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_probe_fill_bits(a, b, c);
        run(cases[i].unit, cases[i].sm, 1);
        for (uint32_t bit = 0; bit < TD_PROBE_MANTISSA_BITS; bit++) {
            assert_true(c[bit] == 1 + ldexpf(1, -(int)bit - 1));
            assert_true(d[bit] == (bit < cases[i].kept ? c[bit] : 1));
        }
        assert_int_equal(td_bits(d[23]), 0x3fffffff >> (23 - cases[i].kept) << (23 - cases[i].kept));
        td_probe_fill_powers(cases[i].unit, a, b, c);
        run(cases[i].unit, cases[i].sm, TD_PROBE_POWERS);
        for (uint32_t n = 0; n < TD_PROBE_POWERS; n++) {
            const float *tile = d + n * TD_PROBE_ELEMENTS, power = ldexpf(1, (int)n);
            assert_int_equal(tile[TD_PROBE_ROW_ONE * 8] != power, n <= cases[i].one);
            assert_int_equal(tile[TD_PROBE_ROW_ALL * 8 + 7] != power, n <= cases[i].all);
            assert_true(tile[15 * 8] == power);
            if (n < 10) {
                assert_true(tile[TD_PROBE_ROW_ONE * 8 + 3] == power + 1);
                assert_true(tile[TD_PROBE_ROW_ALL * 8] == power + (float)td_probe_k(cases[i].unit));
                assert_true(tile[TD_PROBE_ROW_HALVES * 8] == power + 1.5f);
                assert_true(tile[TD_PROBE_ROW_MINUS * 8] == power - 1);
            }
        }
    }
}

/* The plan's twin takes rows of A and columns of B as params.h says; inputs hold no NaN, and units differ on them. */
static void test_random_tiles(void **state)
{
    (void)state;
    static float ada[TILES * TD_PROBE_ELEMENTS];
    for (uint32_t unit = 0; unit < TD_PROBE_UNITS; unit++) {
        const uint32_t k = td_probe_k(unit);
        const td_accumulator accumulator =
            unit == TD_PROBE_WGMMA_E4M3       ? TD_ACCUMULATOR_WGMMA
            : unit == TD_PROBE_WGMMA_E4M3_F16 ? TD_ACCUMULATOR_WGMMA_F16
                                              : TD_ACCUMULATOR_HOPPER_MMA;
        const bool wgmma = unit == TD_PROBE_WGMMA_E4M3 || unit == TD_PROBE_WGMMA_E4M3_F16;
        td_probe_fill_random(unit, TILES, 5, a, b, c);
        run(unit, 90, TILES);
        double error = 0, most = 0;
        for (uint32_t i = 0; i < TILES * TD_PROBE_ELEMENTS; i++) {
            const uint32_t tile = i / TD_PROBE_ELEMENTS, row = i / 8 % 16, column = i % 8;
            const unsigned char *x = a + tile * TD_PROBE_A_BYTES + row * 32;
            const unsigned char *y = b + tile * TD_PROBE_B_BYTES + column * 32;
            double exact = unit == TD_PROBE_WGMMA_E4M3_F16 ? (double)td_from_f16(td_to_f16(c[i])) : (double)c[i];
            double magnitude = fabs(exact);
            for (uint32_t j = 0; j < k; j++) {
                const double product = unit == TD_PROBE_MMA_F16
                                           ? (double)td_from_f16(((const uint16_t *)(const void *)x)[j]) *
                                                 (double)td_from_f16(((const uint16_t *)(const void *)y)[j])
                                           : (double)td_from_e4m3(x[j]) * (double)td_from_e4m3(y[j]);
                assert_true(isfinite(product));
                exact += product;
                magnitude = fmax(magnitude, fabs(product));
            }
            const float want = unit == TD_PROBE_MMA_F16 ? td_twin_mma_f16((const void *)x, (const void *)y, c[i])
                                                        : td_twin_mma_e4m3(accumulator, x, y, c[i]);
            assert_int_equal(td_bits(d[i]), td_bits(want));
            error = fmax(error, fabs((double)d[i] - exact) / fmax(magnitude, 1e-30));
            most = fmax(most, magnitude);
        }
        /* wgmma: 33 terms, each cut at 2^-13 of the largest, and so is their sum. The others: at 2^-25, of the largest
         * or of 16 such, and a float32 sum. */
        assert_true(error < (wgmma ? 66 * 0x1p-13 : 40 * 0x1p-21));
        assert_true(error > 0 && most > 100);
    }
    td_probe_fill_random(TD_PROBE_MMA_E4M3, TILES, 5, a, b, c);
    run(TD_PROBE_MMA_E4M3, 89, TILES);
    memcpy(ada, d, sizeof d);
    run(TD_PROBE_MMA_E4M3, 120, TILES);
    uint32_t differ = 0;
    for (uint32_t i = 0; i < TILES * TD_PROBE_ELEMENTS; i++)
        differ += td_bits(d[i]) != td_bits(ada[i]);
    assert_true(differ > TILES * TD_PROBE_ELEMENTS / 4); /* else random tiles could not tell the models apart */
}

static void test_probe_refusals(void **state)
{
    (void)state;
    static const struct {
        uint32_t unit, tiles, sm;
        tandem_status status;
        const char *says;
    } cases[] = {{TD_PROBE_UNITS, 1, 90, TANDEM_ERROR_ARG, "unit is 4"},
                 {TD_PROBE_MMA_F16, 0, 90, TANDEM_ERROR_ARG, "tiles is 0"},
                 {TD_PROBE_MMA_F16, TD_PROBE_MOST_TILES + 1, 90, TANDEM_ERROR_ARG, "1048577"},
                 {TD_PROBE_WGMMA_E4M3, 1, 89, TANDEM_ERROR_UNSUPPORTED, "sm_89"},
                 {TD_PROBE_WGMMA_E4M3, 1, 120, TANDEM_ERROR_UNSUPPORTED, "sm_120"},
                 {TD_PROBE_WGMMA_E4M3_F16, 1, 120, TANDEM_ERROR_UNSUPPORTED, "sm_120"},
                 {TD_PROBE_MMA_E4M3, 1, 86, TANDEM_ERROR_UNSUPPORTED, "sm_86"}};
    static td_plan plan;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const td_target target = twin_of(cases[i].sm);
        char why[256] = "";
        assert_int_equal(td_plan_probe(cases[i].unit, cases[i].tiles, &target, &plan, why, sizeof why),
                         cases[i].status);
        assert_non_null(strstr(why, cases[i].says));
        assert_int_equal(plan.record_count, 0);
    }
}

/* Packed and unpacked codes of the same case: the same integers, so the same bits everywhere. */
static void test_packed_codes_change_nothing(void **state)
{
    (void)state;
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256};
    for (uint32_t n = 0; n < 24; n++) {
        const tu_shape shape = {.batch = 2,
                                .heads = 2,
                                .kv_heads = 1,
                                .q_len = 20 + 31 * n % 130,
                                .kv_len = 1 + 53 * n % 290,
                                .head_dim = dims[n % 6],
                                .causal = n % 2,
                                .granularity = n % 7,
                                .precision = TANDEM_PRECISION_4B,
                                .lse = 1,
                                .k_bias = 2,
                                .seed = n};
        const uint32_t sm = n / 6 % 2 ? 90 : 80;
        tu_case it[2];
        for (uint32_t packed = 0; packed < 2; packed++) {
            const td_attention_options options = {.int4 = packed, .dump = true};
            td_target target = twin_of(90);
            target.attention = &options;
            tu_case_init(&it[packed], &shape);
            tu_set(&it[packed].q, 0, 1, 5, 3, NAN);
            tu_set(&it[packed].k, 1, 0, 0, 2, INFINITY);
            assert_int_equal(tu_case_run(&it[packed], &target, 2), TANDEM_OK);
            assert_int_equal(it[packed].layout.qk_is_packed, packed);
            const td_record *last = &it[packed].plan.records[it[packed].plan.record_count - 1];
            assert_int_equal(strncmp(last->kernel->name, packed ? "attn_4b_fp8" : "attn_8b_fp8", 11), 0);
        }
        const td_attention_layout *wide = &it[0].layout, *narrow = &it[1].layout;
        const uint32_t d_pad = wide->d_pad, row_bytes = TD_PACKED_ROW_BYTES(d_pad);
        const unsigned char *x = it[0].scratch, *y = it[1].scratch;
        uint32_t extremes = 0;
        for (uint32_t which = 0; which < 2; which++) {
            const uint32_t rows = which ? 2 * wide->kv_pad : 4 * wide->q_pad;
            const int8_t *codes = (const int8_t *)x + (which ? wide->k_codes : wide->q_codes);
            const uint8_t *bytes = y + (which ? narrow->k_codes : narrow->q_codes);
            for (uint32_t r = 0; r < rows; r++)
                for (uint32_t channel = 0; channel < 2 * row_bytes; channel++) {
                    const int code = td_int4(bytes[r * row_bytes + channel / 2], channel % 2);
                    assert_int_equal(code, channel < d_pad ? codes[r * d_pad + channel] : 0);
                    extremes |= code == 7 ? 1 : code == -7 ? 2 : 0;
                }
        }
        assert_int_equal(extremes, 3);
        assert_memory_equal(it[0].o.data, it[1].o.data, it[0].o.bytes);
        assert_memory_equal(it[0].lse.data, it[1].lse.data, it[0].lse.bytes);
        tu_case_free(&it[0]);
        tu_case_free(&it[1]);

        /* sm_80, sm_86 and sm_89 pack by themselves, sm_90 and sm_120 do not; 8b never does */
        const td_attention_options options = {.int4 = true};
        td_target target = twin_of(sm);
        tu_case_init(&it[0], &shape);
        assert_int_equal(tu_case_run(&it[0], &target, 2), TANDEM_OK);
        assert_int_equal(it[0].layout.qk_is_packed, sm < 90);
        it[0].op.precision = TANDEM_PRECISION_8B;
        target.attention = &options;
        assert_int_equal(tu_case_run(&it[0], &target, 2), TANDEM_OK);
        assert_int_equal(it[0].layout.qk_is_packed, 0);
        tu_case_free(&it[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_the_units_keep),
        cmocka_unit_test(test_random_tiles),
        cmocka_unit_test(test_probe_refusals),
        cmocka_unit_test(test_packed_codes_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
