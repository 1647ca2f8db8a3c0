/* Plans of attention in command buffers, beside those of a CUDA stream or of the CPU's twin.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "tests/plugin/inline/rig.h"

static const uint32_t dims[] = {32, 64, 80, 96, 128, 256};
static const char *const precisions[] = {"auto", "f16", "8b", "4b"};

static void test_attention(void **state)
{
    (void)state;
    for (uint32_t precision = TANDEM_PRECISION_F16; precision <= TANDEM_PRECISION_4B; precision++)
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
            const tu_shape shape = {.heads = 4,
                                    .kv_heads = 2,
                                    .q_len = 150,
                                    .kv_len = 200,
                                    .head_dim = dims[d],
                                    .precision = precision,
                                    .causal = d % 2,
                                    .lse = d % 3 == 0,
                                    .dtype_q = TANDEM_DTYPE_F16,
                                    .dtype_k = TANDEM_DTYPE_F16,
                                    .dtype_v = TANDEM_DTYPE_F16,
                                    .dtype_o = d % 2 ? TANDEM_DTYPE_F16 : TANDEM_DTYPE_F32,
                                    .layout = TU_BY_ROW,
                                    .seed = precision * 10 + d};
            char name[32];

            snprintf(name, sizeof name, "%s d%u", precisions[precision], dims[d]);
            if (precision == TANDEM_PRECISION_F16 && dims[d] == 256) {
                const td_target target = td_target_for_sm(sm);
                tu_case it;

                tu_case_init(&it, &shape);
                must(td_plan_attention(&it.op, &target, &it.plan, NULL, why, sizeof why));
                F.launches = 0;
                assert_int_equal(td_inline_check(stream, &it.plan, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
                assert_non_null(strstr(why, "attn_f16_d256"));
                assert_non_null(strstr(why, "48128"));
                assert_int_equal(F.launches, 0);
                tu_case_free(&it);
                continue;
            }
            check_case(&shape, name);
        }
}

static void test_many_plans_in_a_row(void **state)
{
    const tu_shape big = {.batch = 3, .heads = 2, .q_len = 300, .kv_len = 500, .head_dim = 64, .seed = 5,
                          .smooth = TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K | TANDEM_SMOOTH_V, .precision = TANDEM_PRECISION_8B};

    (void)state;
    for (int i = 0; i < 5; i++)
        check_case(&big, "8b, all smoothed");
}

/* attn_8b_wgmma_inline: the bits of the plan for a stream, with attn_8b_wgmma; where warpgroups share keys, as many do so
 * nowhere else: those of the same plan in a stream. */
static void check_wgmma(const tu_shape *shape)
{
    static const td_rows ways[] = {TD_SHORT_ROWS, TD_MOST_ROWS, TD_SPLIT_ROWS};
    const td_rows rows = ways[shape->seed % 3];
    const td_attention_options options = {.rows = rows};
    td_target target = td_target_for_sm(sm), free_target = td_target_for_stream(sm);
    td_stream_submit submit;
    tu_case it;
    vk_case on;

    print_message("    h%u/%u q%u kv%u d%u causal %u\n", shape->heads, shape->kv_heads, shape->q_len, shape->kv_len,
                  shape->head_dim, shape->causal);
    target.attention = free_target.attention = &options;
    if (rows == TD_SPLIT_ROWS)
        free_target = target;
    tu_case_init(&it, shape);
    must(td_plan_attention(&it.op, &target, &it.plan, NULL, why, sizeof why));
    assert_string_equal(it.plan.records[it.plan.record_count - 1].kernel->name, "attn_8b_wgmma_inline");
    vk_case_make(&on, &it);
    submit = submit_of(&on, &it.plan);
    run(&submit);
    if (F.real) {
        must(td_plan_attention(&it.op, &free_target, &it.plan, NULL, why, sizeof why));
        expected(&it, &it.o, &it.lse);
    } else {
        free_target.twin = true;
        assert_int_equal(tu_case_run(&it, &free_target, 2), TANDEM_OK);
    }
    assert_string_equal(it.plan.records[it.plan.record_count - 1].kernel->name,
                        rows == TD_MOST_ROWS    ? "attn_8b_wgmma"
                        : rows == TD_SHORT_ROWS ? "attn_8b_wgmma_short"
                                                : "attn_8b_wgmma_inline");
    same("O", &on, TD_VIEW_O, &it.o);
    if (it.lse.data)
        same("lse", &on, TD_VIEW_LSE, &it.lse);
    vk_case_free(&on);
    tu_case_free(&it);
}

static void test_wgmma(void **state)
{
    static const uint32_t wgmma_dims[] = {32, 64, 80, 96, 128}, lengths[] = {1, 63, 64, 65, 128, 129, 192, 193, 400};
    uint64_t seed = 1;

    (void)state;
    if (sm != 90)
        skip();
    for (size_t q = 0; q < 9; q++)
        for (size_t k = 0; k < 9; k++, seed++) {
            if (!F.real && (q + 2 * k) % 7) /* the twin takes its time */
                continue;
            check_wgmma(&(tu_shape){.heads = 4,
                                    .kv_heads = 2,
                                    .q_len = lengths[q],
                                    .kv_len = lengths[k],
                                    .head_dim = wgmma_dims[seed % 5],
                                    .precision = TANDEM_PRECISION_8B,
                                    .smooth = seed % 3 ? 0 : TANDEM_SMOOTH_K | TANDEM_SMOOTH_V,
                                    .causal = seed % 2,
                                    .lse = seed % 4 < 2,
                                    .dtype_o = 1 + seed % 3,
                                    .v_bias = 1,
                                    .seed = seed});
        }
    for (size_t d = 0; d < 5 && F.real; d++) { /* more blocks than multiprocessors; long rings; bases that move */
        check_wgmma(&(tu_shape){.batch = 20, .heads = 20, .q_len = 300, .kv_len = 200, .head_dim = wgmma_dims[d],
                                .precision = TANDEM_PRECISION_8B, .causal = d % 2, .seed = 200 + d});
        check_wgmma(&(tu_shape){.heads = 3, .q_len = 500, .kv_len = 5000, .head_dim = wgmma_dims[d],
                                .precision = TANDEM_PRECISION_8B, .scale = 1.5f, .lse = 1, .seed = 210 + d});
    }
}

/* F16 of tensors of 16 bits: attn_f16_wgmma_inline, without a prologue; of others attn_f16. */
static void test_direct(void **state)
{
    static const uint32_t direct_dims[] = {64, 80, 96, 128}, lengths[] = {1, 63, 64, 65, 128, 129, 192, 193, 400};
    uint64_t seed = 300;

    (void)state;
    if (sm != 90)
        skip();
    for (size_t q = 0; q < 9; q++)
        for (size_t k = 0; k < 9; k++, seed++) {
            const uint32_t type = 1 + seed % 2;

            if (!F.real && (q + 2 * k) % 7) /* the twin takes its time */
                continue;
            check_direct(&(tu_shape){.heads = 4,
                                     .kv_heads = 2,
                                     .q_len = lengths[q],
                                     .kv_len = lengths[k],
                                     .head_dim = direct_dims[seed / 2 % 4],
                                     .precision = TANDEM_PRECISION_F16,
                                     .causal = seed % 3 == 0,
                                     .lse = seed % 4 < 2,
                                     .dtype_q = type,
                                     .dtype_k = type,
                                     .dtype_v = type,
                                     .dtype_o = 1 + seed % 3,
                                     .v_bias = 1,
                                     .seed = seed},
                         type == TANDEM_DTYPE_F16 ? "attn_f16_wgmma_inline" : "attn_bf16_wgmma_inline");
        }
    check_direct(&(tu_shape){.q_len = 70, .kv_len = 70, .head_dim = 64, .precision = TANDEM_PRECISION_F16, .dtype_q = 1,
                             .dtype_k = 2, .dtype_v = 1, .seed = seed}, "attn_f16");
    for (size_t d = 0; d < 4 && F.real; d++) { /* blocks with several tiles of rows; long rings; bases that move */
        check_direct(&(tu_shape){.batch = 20, .heads = 20, .q_len = 300, .kv_len = 200, .head_dim = direct_dims[d],
                                 .precision = TANDEM_PRECISION_F16, .causal = d % 2, .dtype_q = 1, .dtype_k = 1,
                                 .dtype_v = 1, .seed = 400 + d}, "attn_f16_wgmma_inline");
        check_direct(&(tu_shape){.heads = 3, .q_len = 500, .kv_len = 5000, .head_dim = direct_dims[d],
                                 .precision = TANDEM_PRECISION_F16, .scale = 1.5f, .lse = 1, .dtype_q = 1, .dtype_k = 1,
                                 .dtype_v = 1, .seed = 410 + d}, "attn_f16_wgmma_inline");
    }
}

/* Within a command buffer nothing but barriers says what comes before what. */
static void test_order(void **state)
{
    (void)state;
    if (F.real)
        return;
    F.backwards = true;
    for (uint32_t precision = TANDEM_PRECISION_F16; precision <= TANDEM_PRECISION_4B; precision++) {
        const tu_shape shape = {.q_len = 130, .kv_len = 130, .head_dim = 64, .precision = precision, .lse = 1,
                                .granularity = precision == TANDEM_PRECISION_8B ? TANDEM_GRANULARITY_TENSOR : 0,
                                .smooth = precision == TANDEM_PRECISION_F16
                                              ? 0
                                              : TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K | TANDEM_SMOOTH_V};
        check_case(&shape, "backwards");
    }
    F.backwards = false;
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_attention),
    cmocka_unit_test(test_wgmma),
    cmocka_unit_test(test_direct),
    cmocka_unit_test(test_many_plans_in_a_row),
    cmocka_unit_test(test_order),
};
const test_cases inline_plans_cases = TEST_CASES(cases);
