/* Accuracy: of each precision, with what is smoothed, and of lse.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>

#include "tests/kernels/attention_cpu/rig.h"

static double l1_of(const tu_shape *shape, const td_target *target)
{
    tu_case it;
    tu_case_init(&it, shape);
    tu_case_ref(&it);
    assert_int_equal(tu_case_run(&it, target, 2), TANDEM_OK);
    const double l1 = tu_case_l1(&it);
    tu_case_free(&it);
    return l1;
}

static void test_accuracy(void **state)
{
    (void)state;
    const td_target fp8 = twin_of(90), ampere = twin_of(80);
    for (uint32_t d = 0; d < DIMS; d++) {
        tu_shape shape = {
            .q_len = 130, .kv_len = d % 2 ? 256 : 500, .head_dim = dims[d], .precision = TANDEM_PRECISION_8B};
        assert_in(l1_of(&shape, &cpu), .005, .05);
        if (d < 2) {
            assert_in(l1_of(&shape, &ampere), .003, .03);
            assert_in(l1_of(&shape, &fp8), .005, .05);
        }
        shape.precision = TANDEM_PRECISION_F16;
        assert_in(l1_of(&shape, &cpu), 1e-6, 2e-3);
        shape.precision = TANDEM_PRECISION_4B;
        assert_in(l1_of(&shape, &cpu), .06, .3);
    }
}

/* Softmax does not see a vector added to every key; with K smoothed, neither do the codes. */
static void test_smooth_k(void **state)
{
    (void)state;
    tu_shape shape = {.q_len = 64, .kv_len = 256, .head_dim = 64, .precision = TANDEM_PRECISION_8B};
    for (int smooth = 0; smooth < 2; smooth++) {
        tu_case plain, moved;
        shape.smooth = smooth ? TANDEM_SMOOTH_K : TANDEM_SMOOTH_NONE;
        tu_case_init(&plain, &shape);
        tu_case_init(&moved, &shape);
        for (uint32_t r = 0; r < 256; r++)
            for (uint32_t c = 0; c < 64; c++)
                tu_set(&moved.k, 0, 0, r, c, tu_get(&plain.k, 0, 0, r, c) + (c == 5 ? 40 : 4));
        assert_int_equal(tu_case_run(&plain, &cpu, 2), TANDEM_OK);
        assert_int_equal(tu_case_run(&moved, &cpu, 2), TANDEM_OK);
        double *a = tu_values(&moved.o), *b = tu_values(&plain.o);
        const double l1 = tu_relative_l1(a, b, o_count(&plain));
        if (smooth)
            assert_in(l1, 0, .004);
        else
            assert_true(l1 > .05);
        free(a);
        free(b);
        tu_case_free(&plain);
        tu_case_free(&moved);
    }

    /* an outlier channel, as models have them */
    for (uint32_t precision = TANDEM_PRECISION_8B; precision <= TANDEM_PRECISION_4B; precision++) {
        double l1[2];
        for (int smooth = 0; smooth < 2; smooth++) {
            tu_case it;
            tu_case_init(&it, &(tu_shape){.q_len = 128,
                                          .kv_len = 300,
                                          .head_dim = 64,
                                          .precision = precision,
                                          .smooth = smooth ? TANDEM_SMOOTH_K : TANDEM_SMOOTH_NONE});
            for (uint32_t r = 0; r < 300; r++)
                tu_set(&it.k, 0, 0, r, 11, tu_get(&it.k, 0, 0, r, 11) + 30);
            tu_case_ref(&it);
            assert_int_equal(tu_case_run(&it, &cpu, 2), TANDEM_OK);
            l1[smooth] = tu_case_l1(&it);
            tu_case_free(&it);
        }
        assert_in(l1[1], .005, precision == TANDEM_PRECISION_8B ? .05 : .3);
        assert_true(l1[0] > 2 * l1[1]);
    }
}

static void test_smooth_q(void **state)
{
    (void)state;
    double l1[2];
    for (int smooth = 0; smooth < 2; smooth++) {
        tu_case it;
        tu_case_init(&it, &(tu_shape){.q_len = 200,
                                      .kv_len = 300,
                                      .head_dim = 64,
                                      .precision = TANDEM_PRECISION_4B,
                                      .smooth = TANDEM_SMOOTH_K | (smooth ? TANDEM_SMOOTH_Q : 0)});
        for (uint32_t r = 0; r < 200; r++)
            tu_set(&it.q, 0, 0, r, 3, tu_get(&it.q, 0, 0, r, 3) + 12);
        tu_case_ref(&it);
        assert_int_equal(tu_case_run(&it, &cpu, 2), TANDEM_OK);
        l1[smooth] = tu_case_l1(&it);
        tu_case_free(&it);
    }
    assert_in(l1[1], .03, .3);
    assert_true(l1[0] > 1.7 * l1[1]);
}

static void test_smooth_v(void **state)
{
    (void)state;
    const td_target targets[] = {cpu, twin_of(90)};
    const int count = 2;
    tu_shape shape = {.q_len = 64, .kv_len = 300, .head_dim = 64, .precision = TANDEM_PRECISION_8B};
    for (int t = 0; t < count; t++) {
        double error[2];
        for (int smooth = 0; smooth < 2; smooth++) {
            tu_case plain, moved;
            shape.smooth = TANDEM_SMOOTH_K | (smooth ? TANDEM_SMOOTH_V : 0);
            tu_case_init(&plain, &shape);
            tu_case_init(&moved, &shape);
            for (uint32_t r = 0; r < 300; r++)
                for (uint32_t c = 0; c < 64; c++)
                    tu_set(&moved.v, 0, 0, r, c, tu_get(&plain.v, 0, 0, r, c) + 16);
            assert_int_equal(tu_case_run(&plain, &targets[t], 2), TANDEM_OK);
            assert_int_equal(tu_case_run(&moved, &targets[t], 2), TANDEM_OK);
            double *a = tu_values(&moved.o), *b = tu_values(&plain.o);
            for (size_t i = 0; i < o_count(&plain); i++)
                a[i] -= 16;
            error[smooth] = tu_relative_l1(a, b, o_count(&plain));
            free(a);
            free(b);
            tu_case_free(&plain);
            tu_case_free(&moved);
        }
        assert_in(error[1], 0, .003);
        assert_true(error[0] > 10 * error[1]);
    }
}

static void test_lse(void **state)
{
    (void)state;
    const td_target targets[] = {cpu, twin_of(80), twin_of(90)};
    const int count = 3;
    tu_case it;
    tu_case_init(&it, &(tu_shape){.batch = 2,
                                  .heads = 2,
                                  .kv_heads = 1,
                                  .q_len = 65,
                                  .kv_len = 130,
                                  .head_dim = 32,
                                  .lse = 1,
                                  .k_bias = 1.5f,
                                  .layout = TU_GAPS});
    tu_case_ref(&it); /* of no precision, so one for all */
    for (int t = 0; t < count; t++)
        for (uint32_t precision = 1; precision <= 3; precision++)
            for (uint32_t smooth = 2; smooth < 16; smooth += 2) {
                it.op.precision = precision;
                it.op.smooth = smooth;
                assert_int_equal(tu_case_run(&it, &targets[t], 2), TANDEM_OK);
                const double error = tu_case_lse_error(&it);
                assert_in(error, 0, precision == 1 ? 4e-3 : precision == 2 ? .06 : 1.5);
            }
    tu_case_free(&it);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_accuracy),
    cmocka_unit_test(test_smooth_k),
    cmocka_unit_test(test_smooth_q),
    cmocka_unit_test(test_smooth_v),
    cmocka_unit_test(test_lse),
};
const test_cases attention_cpu_accuracy_cases = TEST_CASES(cases);
