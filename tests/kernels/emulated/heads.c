/* Prologues of heads that clusters hold and that they do not, and pieces of heads' rows.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/attention/cpu.h"
#include "tests/kernels/emulated/rig.h"

/* Of every family of kernels: mma.sync of each architecture, wgmma on streams and in command buffers, and that without a
 * prologue. */
static void test_pieces(void **state)
{
    static const struct {
        uint32_t sm, stream, precision, dtype, dim;
    } families[] = {{80, 0, 2, 1, 32}, {80, 0, 3, 3, 64},  {80, 0, 1, 1, 32}, {89, 0, 2, 1, 64},  {89, 0, 3, 1, 32},
                    {90, 0, 2, 3, 32}, {90, 0, 2, 1, 64},  {90, 0, 2, 3, 128}, {90, 0, 3, 1, 32}, {90, 0, 1, 3, 64},
                    {90, 1, 2, 1, 32}, {90, 1, 2, 2, 64},  {90, 1, 2, 1, 128}, {90, 1, 1, 1, 64}, {90, 1, 1, 2, 128},
                    {120, 0, 2, 3, 64}, {120, 0, 1, 1, 32}};
    static const uint32_t sizes[][3] = {{500, 450, 1}, {430, 600, 1}, {900, 300, 1}, {450, 130, 0}};

    (void)state;
    for (uint32_t i = 0; i < sizeof families / sizeof *families; i++)
        for (uint32_t s = 0; s < 4; s++) {
            const uint32_t sm = families[i].sm, type = families[i].dtype;
            const td_attention_options asked = {.rows = s % 2 ? TD_SHORT_ROWS : TD_BEST_ROWS};
            td_target target = families[i].stream ? td_target_for_stream(sm) : td_target_for_sm(sm);

            target.attention = &asked;
            if (quick ? s != i % 3 : (s + i) % 4 == 3)
                continue;
            check_pieces(em_module_of(sm),
                         &(tu_shape){.q_len = sizes[s][0],
                                     .kv_len = sizes[s][1],
                                     .head_dim = families[i].dim,
                                     .causal = sizes[s][2],
                                     .precision = families[i].precision,
                                     .dtype_q = type,
                                     .dtype_k = type,
                                     .dtype_v = type,
                                     .dtype_o = 1 + s % 3,
                                     .lse = 1,
                                     .k_bias = 1,
                                     .v_bias = 1,
                                     .seed = 200 + 4 * i + s},
                         target, (i + s) % 2);
        }
}

static void spoil_ends(tu_case *it)
{
    const tandem_attention *op = &it->op;

    tu_set(&it->q, op->batch - 1, op->heads - 1, op->q_len - 1, op->head_dim - 1, NAN);
    tu_set(&it->k, 0, 0, op->kv_len - 1, 0, -INFINITY);
    tu_set(&it->k, 0, 0, op->kv_len / 3, op->head_dim / 2, NAN);
    tu_set(&it->v, 0, op->kv_heads - 1, op->kv_len / 2, op->head_dim - 1, INFINITY);
}

typedef struct size {
    uint32_t batch, heads, kv_heads, q_len, kv_len;
} size;

/* Of 8b, whose Q and V are of one type, and K of the other. */
static tu_shape shape_of(const size *it, uint32_t dim, uint32_t type)
{
    return (tu_shape){.batch = it->batch,
                      .heads = it->heads,
                      .kv_heads = it->kv_heads,
                      .q_len = it->q_len,
                      .kv_len = it->kv_len,
                      .head_dim = dim,
                      .dtype_q = type,
                      .dtype_k = 3 - type,
                      .dtype_v = type,
                      .precision = TANDEM_PRECISION_8B,
                      .k_bias = 2};
}

/* Prologues of heads that clusters hold, and of such that they do not: as if they were too long, or one that is; of rows that
 * are not aligned. */
static void test_prepare(void **state)
{
    static const size sizes[] = {{1, 2, 1, 1, 1},     {1, 2, 2, 130, 127}, {1, 1, 1, 100, 1000}, {1, 1, 1, 40, 2100},
                                 {35, 8, 8, 2, 130}, {2, 3, 3, 20, 300},  {1, 1, 1, 70, 4100}};
    static const uint32_t dims[] = {32, 64, 80, 128};

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t n = 0; n < 14; n++) {
            const uint32_t s = n / 2, type = 1 + (i + s) % 2;
            const bool no_clusters = n % 2;
            const tu_layout layout = s == 4 && !no_clusters ? TU_GAPS : (tu_layout)((s + i) % 4);

            if ((quick && s != i && s != 4 + i % 2) || (s == 6 && (dims[i] != 128 || no_clusters)))
                continue;
            tu_shape shape = shape_of(&sizes[s], dims[i], type);
            shape.layout = no_clusters && layout == TU_GAPS ? TU_BATCH_LAST : layout;
            shape.smooth = s == 1 ? (uint32_t)TANDEM_SMOOTH_NONE : 0;
            shape.v_bias = 1;
            shape.seed = 130 + 14 * i + n;
            check(em_module_of(90), 90, &shape,
                  (options){.stream = true,
                            .prologue_only = true,
                            .no_clusters = no_clusters,
                            .schedules = s < 3 ? 2 : 1,
                            .spoil = (s + i / 2) % 2 ? spoil_ends : NULL});
        }
}

/* The same where V is smoothed, by its own kernels: keys that are not there are none of its smallest, nor are codes of theirs
 * 0 - mean, nor those of what is not finite. */
static void test_prepare_smooth_v(void **state)
{
    static const size sizes[] = {{1, 1, 1, 1, 1},    {2, 4, 2, 3, 63},     {1, 2, 1, 64, 64},   {1, 2, 2, 65, 65},  {1, 1, 1, 20, 129},
                                 {2, 3, 3, 20, 300}, {1, 1, 1, 100, 1000}, {1, 1, 1, 40, 2100}, {1, 1, 1, 70, 4100}};
    static const uint32_t dims[] = {32, 64, 80, 128};

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t n = 0; n < 18; n++) {
            const uint32_t s = n / 2, type = 1 + (i + s) % 2;
            const bool no_clusters = n % 2;

            if ((quick && s != i && s != 7) || (s == 8 && dims[i] != 128))
                continue;
            tu_shape shape = shape_of(&sizes[s], dims[i], type);
            shape.layout = (s + i) % 3 ? TU_BATCH_LAST : TU_BY_ROW;
            shape.smooth = TANDEM_SMOOTH_V | (s % 3 ? TANDEM_SMOOTH_K : 0);
            shape.v_bias = s % 2 ? 3 : -5;
            shape.seed = 400 + 18 * i + n;
            check(em_module_of(90), 90, &shape,
                  (options){.stream = true,
                            .prologue_only = true,
                            .no_clusters = no_clusters,
                            .schedules = s < 4 ? 2 : 1,
                            .spoil = (s + i / 2) % 2 ? spoil_ends : NULL});
        }
    for (uint32_t i = 0; i < 8; i++) /* whole, with a mask, beside float64 */
        check(em_module_of(90), 90,
              &(tu_shape){.heads = 4,
                          .kv_heads = 2,
                          .q_len = 63 + i % 3,
                          .kv_len = 190 + 37 * i,
                          .head_dim = i % 2 ? 128 : 64,
                          .causal = i / 2 % 2,
                          .dtype_q = 1,
                          .dtype_k = 1,
                          .dtype_v = 1,
                          .lse = 0,
                          .precision = TANDEM_PRECISION_8B,
                          .smooth = TANDEM_SMOOTH_V | TANDEM_SMOOTH_K,
                          .k_bias = 2,
                          .v_bias = 4,
                          .seed = 480 + i},
              (options){.stream = true, .no_clusters = i / 4, .most_l1 = 0.01});
}

/* A head whose statistics never come: its codes are not made, so the kernel must not end as if they were. A job that is given up
 * meanwhile is another matter. */
static void test_totals_that_never_come(void **state)
{
    (void)state;
    for (uint32_t cancelled = 0; cancelled < 2; cancelled++) {
        const tu_shape shape = {.q_len = 20, .kv_len = 1000, .head_dim = 64, .precision = TANDEM_PRECISION_8B,
                                .dtype_q = 1, .dtype_k = 1, .dtype_v = 1, .seed = 77};
        const td_attention_options asked = {.no_clusters = true};
        td_target target = td_target_for_stream(90);
        uint32_t kv_planes = 0, runs = 0;
        uint64_t cancel = 0;
        tu_case it;

        target.twin = true;
        target.attention = &asked;
        tu_case_init(&it, &shape);
        must(tu_case_run(&it, &target, THREADS), "the twin");
        const uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)it.q.data, (uintptr_t)it.k.data, (uintptr_t)it.v.data,
                                               (uintptr_t)it.o.data, 0};
        for (uint32_t i = 0; i < it.plan.record_count; i++) {
            const td_record *record = &it.plan.records[i];
            _Alignas(16) unsigned char params[TD_PARAM_BYTES];
            char why[1600] = "";
            emu_launch launch = {.grid = record->grid[0], .block = record->block[0], .shared_bytes = record->shared_bytes,
                                 .cluster = 1, .together = 2, .params = params, .seed = seed, .why = why,
                                 .why_bytes = sizeof why};

            if (strncmp(record->kernel->entry, "prepare_kv", 10) != 0) {
                em_launch_record(em_module_of(90), record, views, (uintptr_t)it.scratch, seed);
                continue;
            }
            td_exec_bind(record, views, (uintptr_t)it.scratch, 0, params);
            memcpy(params + offsetof(td_params_prepare, kv_planes), &kv_planes, 4); /* blocks of statistics have none to make */
            if (cancelled) {
                const uint64_t word = (uintptr_t)&cancel;
                cancel = 1;
                memcpy(params + offsetof(td_params_prepare, cancel), &word, 8);
            }
            const int result = em_launch(em_module_of(90), record->kernel->entry, &launch);
            if (cancelled ? result != 0 : result == 0 || !strstr(why, "trap"))
                fail_msg("%s, cancelled %u: %d, %s", record->kernel->entry, cancelled, result, why);
            runs++;
            break;
        }
        assert_int_equal(runs, 1);
        tu_case_free(&it);
    }
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_prepare),
    cmocka_unit_test(test_prepare_smooth_v),
    cmocka_unit_test(test_totals_that_never_come),
    cmocka_unit_test(test_pieces),
};
const test_cases kernels_heads_cases = TEST_CASES(cases);
