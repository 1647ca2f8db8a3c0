/* Kernels beside the oracle: lengths, shapes, masks, pieces of a whole, and NaN that stays where it belongs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/attention/params.h"
#include "kernels/cpu/cpu.h"
#include "tests/kernels/attention_cpu/rig.h"

/* For any length; what is usual for long rows is tested further down. */
static double most_l1(uint32_t precision)
{
    return precision == TANDEM_PRECISION_F16 ? 2e-3 : precision == TANDEM_PRECISION_8B ? 0.06 : 0.35;
}

static void run_and_compare(tu_case *it, const td_target *target)
{
    assert_int_equal(tu_case_run(it, target, 2), TANDEM_OK);
    const double l1 = tu_case_l1(it);
    if (!(l1 <= most_l1(it->plan.precision))) {
        print_error("sm %u, precision %u, %ux%u, head_dim %u, causal %u: relative L1 %g\n", target->sm,
                    it->plan.precision, it->op.q_len, it->op.kv_len, it->op.head_dim, it->op.causal, l1);
        fail();
    }
}

static void test_lengths(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 63, 64, 65, 127, 128, 129, 200};
    const td_target fp8 = twin_of(90), ampere = twin_of(80), wgmma = wgmma_twin();
    for (uint32_t i = 0; i < 64; i++)
        for (uint32_t precision = 1; precision <= 3; precision++) {
            tu_case it;
            tu_case_init(&it, &(tu_shape){.q_len = lengths[i / 8],
                                          .kv_len = lengths[i % 8],
                                          .head_dim = 64,
                                          .seed = i,
                                          .precision = precision,
                                          .causal = i / 8 <= i % 8 && precision != 3 ? i % 2 : 0});
            tu_case_ref(&it);
            run_and_compare(&it, &cpu);
            if (precision == TANDEM_PRECISION_8B)
                run_and_compare(&it, &wgmma);
            if (i / 8 == (i + precision) % 8) {
                run_and_compare(&it, &ampere);
                run_and_compare(&it, &fp8);
            }
            tu_case_free(&it);
        }
}

/* Another order of the same steps: R in fp16 over 256 keys (128 at head dim 256), bases that follow late, P's sum of its codes. */
static void test_wgmma(void **state)
{
    static const uint32_t head_dims[] = {32, 80, 96, 128, 256};
    td_target wgmma = wgmma_twin();

    (void)state;
    for (uint32_t i = 0; i < 5; i++) {
        tu_case it;

        tu_case_init(&it, &(tu_shape){.batch = i < 3 ? 2 : 1,
                                      .heads = 2,
                                      .kv_heads = 1,
                                      .q_len = 130,
                                      .kv_len = 650,
                                      .head_dim = head_dims[i],
                                      .precision = TANDEM_PRECISION_8B,
                                      .causal = i % 2,
                                      .v_bias = i < 2 ? 8.5f : 0,
                                      .lse = 1,
                                      .seed = 900 + i});
        tu_case_ref(&it);
        for (uint32_t splits = 0; splits < (head_dims[i] > 128 ? 1 : 2); splits++) { /* so few rows share the keys if they may */
            wgmma.attention = &(td_attention_options){.rows = splits ? TD_BEST_ROWS : TD_SHORT_ROWS};
            run_and_compare(&it, &wgmma);
            assert_string_equal(it.plan.records[it.plan.record_count - 1].kernel->name,
                                head_dims[i] > 128 ? "attn_8b_wgmma"
                                : splits           ? "attn_8b_wgmma_split"
                                                   : "attn_8b_wgmma_short");
            if (i < 2) /* the sum of P and P V round alike, so an offset of V stays what it is */
                assert_in(tu_case_l1(&it), 0, 3.3e-3); /* the authors' figure */
            assert_in(tu_case_lse_error(&it), 0, 2e-2);
        }
        tu_case_free(&it);
    }
}

/* All P of a second R just below the limit, as the keys of the first one have an S that is 4 less, as log2: neither what
 * is added up with V nor the sum of P itself may pass fp16 then. */
static void test_wgmma_of_the_largest_sums(void **state)
{
    static const float steps[] = {3.94f, 3.97f, 3.999f};
    const td_attention_options options = {.rows = TD_SHORT_ROWS};
    td_target targets[] = {wgmma_twin(), twin_of(90)};

    (void)state;
    targets[0].attention = &options;
    for (uint32_t i = 0; i < 6; i++) {
        tu_case it;
        tu_case_init(&it, &(tu_shape){.q_len = 20,
                                      .kv_len = 2 * TD_HOPPER_R_KEYS + 6,
                                      .head_dim = 64,
                                      .precision = TANDEM_PRECISION_8B,
                                      .smooth = TANDEM_SMOOTH_NONE,
                                      .scale = TD_LN_2 / 64,
                                      .lse = 1,
                                      .seed = 950 + i});
        for (uint32_t c = 0; c < 64; c++) {
            for (uint32_t r = 0; r < 20; r++)
                tu_set(&it.q, 0, 0, r, c, 1);
            for (uint32_t r = 0; r < it.op.kv_len; r++)
                tu_set(&it.k, 0, 0, r, c, r < TD_HOPPER_R_KEYS ? 0 : (double)steps[i % 3]);
        }
        tu_case_ref(&it);
        run_and_compare(&it, &targets[i / 3]);
        assert_non_null(strstr(it.plan.records[it.plan.record_count - 1].kernel->name, "attn_8b_wgmma"));
        assert_in(tu_case_l1(&it), 0, 0.1);
        assert_in(tu_case_lse_error(&it), 0, 0.05);
        tu_case_free(&it);
    }
}

static void test_shapes(void **state)
{
    (void)state;
    static const uint32_t types[] = {TANDEM_DTYPE_F16, TANDEM_DTYPE_BF16, TANDEM_DTYPE_F32};
    const td_target fp8 = twin_of(90), ampere = twin_of(80);
    for (uint32_t d = 0; d < DIMS; d++)
        for (uint32_t layout = 0; layout < 4; layout++) {
            const uint32_t n = 4 * d + layout;
            tu_case it;
            tu_case_init(&it, &(tu_shape){.batch = dims[d] > 96 ? 1 : 2,
                                          .heads = 4,
                                          .kv_heads = 1u << (layout + 2 * d) % 3,
                                          .q_len = 67,
                                          .kv_len = 140,
                                          .head_dim = dims[d],
                                          .causal = (layout + d / 2) % 2,
                                          .layout = (tu_layout)layout,
                                          .dtype_q = types[n % 3],
                                          .dtype_k = types[n / 3 % 3],
                                          .dtype_v = types[n / 2 % 3],
                                          .dtype_o = types[n % 2 * 2], /* bf16: see test_bf16_output */
                                          .lse = (layout + d) % 2,
                                          .seed = n});
            tu_case_ref(&it); /* of no precision, so one for both */
            for (uint32_t precision = 1; precision <= 2; precision++) {
                it.op.precision = precision;
                run_and_compare(&it, &cpu);
                if (it.lse.data)
                    assert_in(tu_case_lse_error(&it), 0, precision == 1 ? 2e-3 : 0.05);
                if (layout == d % 4) {
                    run_and_compare(&it, &ampere);
                    run_and_compare(&it, &fp8);
                }
            }
            tu_case_free(&it);
        }
}

/* Outputs in bf16 are as good as bf16 can be. */
static void test_bf16_output(void **state)
{
    (void)state;
    tu_case it;
    tu_case_init(&it, &(tu_shape){.q_len = 70,
                                  .kv_len = 300,
                                  .head_dim = 80,
                                  .precision = TANDEM_PRECISION_F16,
                                  .dtype_o = TANDEM_DTYPE_BF16,
                                  .layout = TU_GAPS});
    tu_case_ref(&it);
    assert_int_equal(tu_case_run(&it, &cpu, 1), TANDEM_OK);
    assert_in(tu_case_l1(&it), 2e-4, 3e-3);
    tu_case_free(&it);
}

static void test_causal(void **state)
{
    (void)state;
    static const uint32_t lengths[][2] = {{200, 70}, {70, 200}, {130, 129}, {129, 130}, {3, 300}, {300, 3}, {64, 64}};
    const td_target targets[] = {cpu, twin_of(80), twin_of(90)};
    const int count = 3;
    for (int i = 0; i < 7; i++) {
        const uint32_t q_len = lengths[i][0], kv_len = lengths[i][1], empty = q_len > kv_len ? q_len - kv_len : 0;
        tu_case it;
        tu_case_init(&it, &(tu_shape){.heads = 2,
                                      .q_len = q_len,
                                      .kv_len = kv_len,
                                      .head_dim = 32,
                                      .causal = 1,
                                      .lse = 1,
                                      .seed = (uint64_t)i});
        tu_case_ref(&it); /* of no precision, so one for all */
        for (int t = 0; t < count; t++)
            for (uint32_t precision = 1; precision <= 3; precision++) {
                it.op.precision = precision;
                it.op.smooth = t ? 0 : TANDEM_SMOOTH_V | TANDEM_SMOOTH_K;
                assert_int_equal(tu_case_run(&it, &targets[t], 2), TANDEM_OK);
                for (uint32_t h = 0; h < 2; h++)
                    for (uint32_t r = 0; r < empty; r++) {
                        assert_true(tu_get(&it.lse, 0, h, r, 0) == -INFINITY);
                        for (uint32_t c = 0; c < 32; c++)
                            assert_true(tu_get(&it.o, 0, h, r, c) == 0);
                    }
                assert_in(tu_case_l1(&it), 0, precision == 3 ? 0.5 : precision == 2 ? 0.08 : 2e-3);
                assert_in(tu_case_lse_error(&it), 0, precision == 3 ? 1.0 : precision == 2 ? 0.08 : 2e-3);
            }
        tu_case_free(&it);
    }
}

/* Runs a case as pieces of `cut` of its heads' rows. */
static void run_pieces(tu_case *it, const td_target *target, uint32_t cut)
{
    static td_plan plan;
    char why[256] = "";

    tu_poison(&it->o);
    if (it->lse.data)
        tu_poison(&it->lse);
    for (uint32_t row = 0; row < it->op.q_len; row += cut) {
        const uint32_t rows = it->op.q_len - row < cut ? it->op.q_len - row : cut;
        uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)it->q.data, (uintptr_t)it->k.data, (uintptr_t)it->v.data,
                                         (uintptr_t)it->o.data, (uintptr_t)it->lse.data};
        td_target of_piece = *target;
        tandem_attention op;

        tu_case_piece(it, row, rows, &op, &of_piece, views);
        assert_int_equal(td_plan_attention(&op, &of_piece, &plan, NULL, why, sizeof why), TANDEM_OK);
        void *scratch = aligned_alloc(256, plan.scratch_bytes + 256);
        assert_non_null(scratch);
        memset(scratch, TU_POISON, plan.scratch_bytes);
        assert_int_equal(td_exec_cpu_run(&plan, views, (uintptr_t)scratch, 2, NULL), TANDEM_OK);
        free(scratch);
    }
}

/* Pieces of heads' rows, as tandemd cuts them: the whole's bits, of every family of kernels, rows without keys and keys
 * that are bad included. */
static void test_pieces_are_the_whole(void **state)
{
    static const uint32_t sizes[][3] = {{440, 210, 1}, {400, 450, 1}, {700, 140, 1}, {430, 130, 0}, {390, 390, 1}};
    td_target targets[] = {cpu, twin_of(80), twin_of(89), twin_of(90), twin_of(120), wgmma_twin(), twin_of(90)};
    const td_attention_options options = {.int4 = true};
    const int count = sizeof targets / sizeof *targets;

    (void)state;
    targets[6].attention = &options;
    for (int t = 0; t < count; t++)
        for (uint32_t n = 0; n < 6; n++) {
            const uint32_t *size = sizes[(n + (uint32_t)t) % 5], precision = 1 + n % 3;
            const uint32_t type = t == 5 && precision == 1 ? 1 + n / 3 % 2 : 1 + (n + (uint32_t)t) % 3; /* 5: direct */
            tu_case it;

            tu_case_init(&it, &(tu_shape){.heads = 1 + n / 5,
                                          .kv_heads = 1,
                                          .q_len = size[0],
                                          .kv_len = size[1],
                                          .head_dim = n % 2 || t == 6 ? 32 : n == 4 || (n == 0 && t == 5) ? 128 : 64,
                                          .causal = size[2],
                                          .precision = precision,
                                          .smooth = t < 5 && n > 3 ? 2u << n % 3 | TANDEM_SMOOTH_V : 0,
                                          .dtype_q = type,
                                          .dtype_k = type,
                                          .dtype_v = type,
                                          .dtype_o = 1 + n % 3,
                                          .lse = n / 2 % 2,
                                          .k_bias = 1,
                                          .v_bias = 1,
                                          .seed = n + 1});
            if (n % 3) { /* the rest of the keys' step is masked in one piece, and not in the next */
                tu_set(&it.k, 0, 0, size[1] - 90, 7, INFINITY);
                tu_set(&it.v, 0, 0, size[1] - 70, 31, NAN);
            }
            assert_int_equal(tu_case_run(&it, &targets[t], 2), TANDEM_OK);
            unsigned char *o = malloc(it.o.bytes), *lse = malloc(it.lse.bytes + 1);
            assert_true(o && lse);
            memcpy(o, it.o.data, it.o.bytes);
            if (it.lse.data)
                memcpy(lse, it.lse.data, it.lse.bytes);
            run_pieces(&it, &targets[t], 384);
            assert_memory_equal(o, it.o.data, it.o.bytes);
            if (it.lse.data)
                assert_memory_equal(lse, it.lse.data, it.lse.bytes);
            free(o);
            free(lse);
            tu_case_free(&it);
        }
}

/* In which order a piece adds up is what its whole does. */
static void test_pieces_share_keys_as_the_whole(void **state)
{
    static const struct {
        uint32_t heads, dim;
        const char *whole, *alone;
    } cases[] = {{32, 64, "attn_8b_wgmma", "attn_8b_wgmma_split"},
                 {32, 128, "attn_8b_wgmma", "attn_8b_wgmma_split"},
                 {4, 64, "attn_8b_wgmma_split", "attn_8b_wgmma_split"}};

    (void)state;
    for (int i = 0; i < 3; i++) {
        const tu_shape shape = {.heads = 1, .q_len = 8, .kv_len = 2048, .head_dim = cases[i].dim,
                                .precision = TANDEM_PRECISION_8B, .dtype_q = 1, .dtype_k = 1, .dtype_v = 1};
        td_target target = wgmma_twin();
        tandem_operands operands;
        tandem_attention *const whole = &operands.attention;
        static td_plan plan;
        char why[256] = "";
        tu_case it;

        tu_case_init(&it, &shape);
        *whole = it.op;
        whole->batch = 4;
        whole->heads = whole->kv_heads = cases[i].heads;
        whole->q_len = 2048 / (cases[i].heads == 4 ? 4 : 1);
        for (int of = 0; of < 3; of++) { /* the whole, its piece, a job like the piece */
            target.whole = of == 1 ? &operands : NULL;
            assert_int_equal(td_plan_attention(of ? &it.op : whole, &target, &plan, NULL, why, sizeof why), TANDEM_OK);
            assert_string_equal(plan.records[plan.record_count - 1].kernel->name,
                                of < 2 ? cases[i].whole : cases[i].alone);
        }
        tu_case_free(&it);
    }
}

/* Which rows are NaN is as the contract says, and the others are as if nothing had happened. */
static void check_poisoned(uint32_t precision, uint32_t smooth, const td_target *target, int which, double value,
                           bool causal)
{
    enum { N = 150, AT = 70 };
    tu_case it;
    tu_case_init(&it, &(tu_shape){.heads = 2,
                                  .q_len = N,
                                  .kv_len = N,
                                  .head_dim = 64,
                                  .causal = causal,
                                  .precision = precision,
                                  .smooth = smooth,
                                  .lse = 1});
    tu_tensor *tensors[] = {&it.q, &it.k, &it.v};
    tu_set(tensors[which], 0, 1, AT, 9, value);
    tu_case_ref(&it);
    assert_int_equal(tu_case_run(&it, target, 2), TANDEM_OK);
    double difference = 0, size = 0;
    for (uint32_t h = 0; h < 2; h++)
        for (uint32_t r = 0; r < N; r++) {
            const bool poisoned = h == 1 && (which == 0 ? r == AT : !causal || r >= AT);
            const double *ref = it.ref_o + (size_t)(h * N + r) * 64;
            assert_int_equal(isnan(tu_get(&it.lse, 0, h, r, 0)) != 0, poisoned);
            for (uint32_t c = 0; c < 64; c++) {
                const double o = tu_get(&it.o, 0, h, r, c);
                assert_int_equal(isnan(o) != 0, poisoned);
                if (!poisoned) {
                    difference += fabs(o - ref[c]);
                    size += fabs(ref[c]);
                }
            }
        }
    assert_in(difference / size, 0, most_l1(precision));
    tu_case_free(&it);
}

static void test_nan_stays_where_it_belongs(void **state)
{
    (void)state;
    const td_target targets[] = {cpu, twin_of(80), twin_of(90)};
    const int count = 3;
    for (int which = 0; which < 3; which++)
        for (uint32_t precision = 1; precision <= 3; precision++)
            for (int t = 0; t < count; t++) {
                check_poisoned(precision, 0, &targets[t], which, t == 1 ? -INFINITY : (double)NAN, true);
                if (t == 0) {
                    check_poisoned(precision, TANDEM_SMOOTH_V | TANDEM_SMOOTH_Q, &cpu, which, INFINITY, false);
                    check_poisoned(precision, TANDEM_SMOOTH_NONE, &cpu, which, (double)NAN, true);
                }
            }
    for (int isa = 0; isa < ISAS; isa++)
        if (td_cpu_isa_force(isas[isa]))
            for (int which = 0; which < 3; which++) {
                check_poisoned(TANDEM_PRECISION_8B, 0, &cpu, which, (double)NAN, true);
                check_poisoned(TANDEM_PRECISION_F16, 0, &cpu, which, INFINITY, true);
            }
    td_cpu_isa_force(NULL);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_lengths),
    cmocka_unit_test(test_wgmma),
    cmocka_unit_test(test_wgmma_of_the_largest_sums),
    cmocka_unit_test(test_shapes),
    cmocka_unit_test(test_bf16_output),
    cmocka_unit_test(test_causal),
    cmocka_unit_test(test_pieces_are_the_whole),
    cmocka_unit_test(test_pieces_share_keys_as_the_whole),
    cmocka_unit_test(test_nan_stays_where_it_belongs),
};
const test_cases attention_cpu_oracle_cases = TEST_CASES(cases);
