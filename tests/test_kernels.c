/* The CUDA kernels on an emulator (tests/emu) against the CPU twin, as test_cuda compares them on a GPU.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * test_kernels [--seed N] [--quick]; the seed decides in which order threads run, and when what they started happens.
 */
#include <dlfcn.h>
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
#include "kernels/commit.h"
#include "kernels/probe.h"
#include "tests/attention_compare.h"
#include "tests/emu_modules.h"

enum { THREADS = 2 };

static uint64_t seed = 1;
static bool quick;
static em_module broken;

static void must(tandem_status status, const char *why)
{
    if (status)
        fail_msg("status %d: %s", (int)status, why);
}

/* --- Cases of attention --- */

typedef struct options {
    bool stream, dump, commit, prologue_only, no_clusters;
    double most_l1; /* of O against float64, where not 0 */
    td_rows split;
    uint32_t schedules;
    void (*spoil)(tu_case *);
} options;

/* S and codes of P of kernels whose plans have no dumps, in memory of the test's: on the emulator they write them all the same. */
typedef struct inside {
    td_record *record; /* of attention, or NULL: another kernel */
    unsigned char *s[2], *p[2]; /* the twin's, the kernel's */
} inside;

static void dump_to(const inside *it, int whose)
{
    const uint64_t s = (uintptr_t)it->s[whose], p = (uintptr_t)it->p[whose];

    memcpy(it->record->params + offsetof(td_params_attention, dump_s), &s, 8);
    memcpy(it->record->params + offsetof(td_params_attention, dump_p), &p, 8);
}

/* Runs the twin once more, with dumps. */
static inside look_inside(tu_case *it)
{
    td_record *record = &it->plan.records[it->plan.record_count - 1];
    const size_t elements = (size_t)it->op.batch * it->op.heads * it->layout.q_pad * it->layout.kv_pad;
    const uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)it->q.data, (uintptr_t)it->k.data, (uintptr_t)it->v.data,
                                           (uintptr_t)it->o.data, (uintptr_t)it->lse.data};
    inside in = {.record = record};

    if (strncmp(record->kernel->name, "attn_8b_wgmma", 13) != 0)
        return (inside){0};
    for (int i = 0; i < 2; i++) {
        in.s[i] = calloc(elements, 4);
        in.p[i] = calloc(elements, 1);
        assert_true(in.s[i] && in.p[i]);
    }
    dump_to(&in, 0);
    must(td_exec_cpu_run(&it->plan, views, (uintptr_t)it->scratch, THREADS, NULL), "the twin with dumps");
    dump_to(&in, 1);
    return in;
}

static void compare_inside(const tu_case *it, inside *in)
{
    if (!in->record)
        return;
    tu_compare_codes(it, in->s[1], in->s[0], in->p[1], in->p[0]);
    for (int i = 0; i < 2; i++) {
        free(in->s[i]);
        free(in->p[i]);
    }
}

/* The plan for `sm`, run by the kernels of `on`. */
static void check(em_module *on, uint32_t sm, const tu_shape *shape, options with)
{
    td_target target = with.stream ? td_target_for_stream(sm) : td_target_for_sm(sm);
    tu_tensor o, lse;
    tu_case it;

    target.twin = true;
    target.dump = with.dump;
    target.commit = with.commit;
    target.no_clusters = with.no_clusters;
    if (with.split)
        target.multiprocessors = 1 + shape->seed % 5;
    target.rows = with.split ? with.split : shape->seed % 2 ? TD_MOST_ROWS : TD_SHORT_ROWS;
    if (sm == 80 && on->sm != 80) /* the twin's fp16 units are all alike */
        target.accumulator = td_target_for_sm(on->sm).accumulator;
    tu_case_init(&it, shape);
    if (with.spoil)
        with.spoil(&it);
    must(tu_case_run(&it, &target, THREADS), "the twin");
    inside in = with.dump || with.commit || with.prologue_only ? (inside){0} : look_inside(&it);
    o = tu_tensor_like(&it.o);
    lse = tu_tensor_like(&it.lse);
    const size_t scratch_bytes = it.plan.scratch_bytes + TU_GUARD_BYTES;
    unsigned char *scratch = aligned_alloc(256, td_align_up(scratch_bytes, 256));
    assert_non_null(scratch);
    const uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)it.q.data, (uintptr_t)it.k.data, (uintptr_t)it.v.data,
                                           (uintptr_t)o.data, (uintptr_t)lse.data};
    for (uint32_t schedule = 0; schedule < (with.schedules ? with.schedules : 1); schedule++) {
        print_message("    sm_%u: b%u h%u/%u q%u kv%u d%u causal %u precision %u dtypes %u%u:", on->sm, shape->batch,
                      shape->heads, shape->kv_heads, shape->q_len, shape->kv_len, shape->head_dim, shape->causal,
                      shape->precision, shape->dtype_q, shape->dtype_o);
        memset(scratch, TU_POISON, scratch_bytes);
        tu_poison(&o);
        if (lse.data)
            tu_poison(&lse);
        for (uint32_t i = 0; i < it.plan.record_count; i++) {
            const td_record *record = &it.plan.records[i];
            if (with.prologue_only && strncmp(record->kernel->name, "attn", 4) == 0)
                continue;
            print_message(" %s", record->kernel->entry);
            em_launch_record(on, record, views, (uintptr_t)scratch, seed * 1000 + schedule);
        }
        print_message("\n");
        for (size_t i = 0; i < TU_GUARD_BYTES; i++)
            assert_int_equal(scratch[it.plan.scratch_bytes + i], TU_POISON);
        if (!with.commit)
            tu_compare_prologue(&it, scratch);
        if (with.prologue_only)
            continue;
        tu_compare_dumps(&it, scratch, target.accumulator);
        tu_compare_outputs(&it, &o, &lse);
    }
    compare_inside(&it, &in);
    if (with.most_l1 > 0) {
        tu_case_ref(&it);
        if (!(tu_case_l1(&it) < with.most_l1))
            fail_msg("O is %g from float64's, %g is the most", tu_case_l1(&it), with.most_l1);
    }
    free(scratch);
    tu_tensor_free(&o);
    tu_tensor_free(&lse);
    tu_case_free(&it);
}

static void spoil_values(tu_case *it)
{
    tu_set(&it->q, 0, 0, 3, 5, NAN);
    tu_set(&it->q, 0, 1, 64, 0, -INFINITY);
    tu_set(&it->k, 0, 0, 100, 7, INFINITY);
    tu_set(&it->v, 0, 1, 129, 31, NAN);
}

/* Where all P of the second R are at their limit, or just below. */
static void fill_to_the_limit(tu_case *it)
{
    const tandem_attention *op = &it->op;

    for (uint32_t c = 0; c < op->head_dim; c++) {
        for (uint32_t r = 0; r < op->q_len; r++)
            tu_set(&it->q, 0, 0, r, c, 1 - 0.001 * (r % 7));
        for (uint32_t r = 0; r < op->kv_len; r++)
            tu_set(&it->k, 0, 0, r, c, r < TD_HOPPER_R_KEYS ? 0 : 3.999);
    }
}

/* Where bases move in the second half of a step of TD_HOPPER_KEYS keys, in some rows in the first one as well. */
static void move_bases(tu_case *it)
{
    const tandem_attention *op = &it->op;

    for (uint32_t c = 0; c < op->head_dim; c++) {
        for (uint32_t r = 0; r < op->q_len; r++)
            tu_set(&it->q, 0, 0, r, c, 1 - 0.1 * (r % 7));
        for (uint32_t r = 0; r < op->kv_len; r++)
            tu_set(&it->k, 0, 0, r, c, (r + 64) / 128 * 5.5 + r / 128 * (r % 3));
    }
}

/* From key 200 on, P of a base of zeros is 2^14.5 to 2^14.9 in some rows, so that sums of P are beyond P's limit, and
 * 2^15.2 in others. */
static void sum_to_the_limit(tu_case *it)
{
    static const double at[] = {6.5, 6.7, 6.9, 7.2};
    const tandem_attention *op = &it->op;
    const double to_log2 = sqrt(op->head_dim) / log(2); /* of S, by q and k */

    for (uint32_t c = 0; c < op->head_dim; c++) {
        for (uint32_t r = 0; r < op->q_len; r++)
            tu_set(&it->q, 0, 0, r, c, at[r % 4] / to_log2);
        for (uint32_t r = 0; r < op->kv_len; r++)
            tu_set(&it->k, 0, 0, r, c, r < 200 ? 0 : 1);
    }
}

/* A draft's bytes become the output. */
static void check_commit(em_module *on, const tu_case *it, const td_target *target)
{
    unsigned char *o = malloc(it->o.bytes), *lse = malloc(it->lse.bytes);
    const uint64_t views[TD_MAX_VIEWS] = {(uintptr_t)it->o.data, (uintptr_t)it->lse.data, (uintptr_t)o, (uintptr_t)lse};
    uint32_t verdict[64] = {0};
    tandem_operands op = {.attention = it->op}, commit;
    char why[256] = "";
    TU_PLAN(plan);

    assert_true(o && lse);
    assert_true(td_commit_make(&td_operation_attention, 1, &op, &commit) >= it->o.bytes + it->lse.bytes);
    must(td_operation_commit.plan(&commit, target, &plan, why, sizeof why), why);
    assert_true(plan.scratch_bytes <= sizeof verdict);
    for (uint32_t i = 0; i < plan.record_count; i++)
        em_launch_record(on, &plan.records[i], views, (uintptr_t)verdict, seed * 1000 + i);
    assert_memory_equal(o, it->o.data, it->o.bytes);
    assert_memory_equal(lse, it->lse.data, it->lse.bytes);
    free(o);
    free(lse);
}

/* A case whole, then as pieces of its heads' rows: the same bits. */
static void check_pieces(em_module *on, const tu_shape *shape, td_target target, bool spoilt)
{
    enum { CUT = 384 };
    unsigned char *whole[2] = {NULL, NULL};
    char why[256] = "";
    tu_case it;

    target.twin = true;
    tu_case_init(&it, shape);
    if (spoilt) {
        tu_set(&it.k, 0, 0, shape->kv_len - 90, 7, INFINITY);
        tu_set(&it.v, 0, 0, shape->kv_len - 70, 31, NAN);
    }
    print_message("    sm_%u: pieces of q%u kv%u d%u causal %u precision %u:", on->sm, shape->q_len, shape->kv_len,
                  shape->head_dim, shape->causal, shape->precision);
    for (uint32_t cut = shape->q_len;; cut = CUT) {
        tu_poison(&it.o);
        tu_poison(&it.lse);
        for (uint32_t row = 0; row < shape->q_len; row += cut) {
            const uint32_t rows = shape->q_len - row < cut ? shape->q_len - row : cut;
            uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)it.q.data, (uintptr_t)it.k.data, (uintptr_t)it.v.data,
                                             (uintptr_t)it.o.data, (uintptr_t)it.lse.data};
            td_target of_piece = target;
            tandem_attention op;

            tu_case_piece(&it, row, rows, &op, &of_piece, views);
            if (cut != CUT)
                of_piece.position = 0;
            must(td_plan_attention(&op, &of_piece, &it.plan, NULL, why, sizeof why), why);
            void *scratch = aligned_alloc(256, it.plan.scratch_bytes + 256);
            assert_non_null(scratch);
            memset(scratch, TU_POISON, it.plan.scratch_bytes);
            for (uint32_t i = 0; i < it.plan.record_count; i++)
                em_launch_record(on, &it.plan.records[i], views, (uintptr_t)scratch, seed * 1000 + row);
            free(scratch);
        }
        if (cut == CUT)
            break;
        print_message(" %s\n", it.plan.records[it.plan.record_count - 1].kernel->entry);
        for (int i = 0; i < 2; i++) {
            const tu_tensor *from = i ? &it.lse : &it.o;

            whole[i] = malloc(from->bytes);
            assert_non_null(whole[i]);
            memcpy(whole[i], from->data, from->bytes);
        }
    }
    assert_memory_equal(whole[0], it.o.data, it.o.bytes);
    assert_memory_equal(whole[1], it.lse.data, it.lse.bytes);
    check_commit(on, &it, &target);
    free(whole[0]);
    free(whole[1]);
    tu_case_free(&it);
}

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
            td_target target = families[i].stream ? td_target_for_stream(sm) : td_target_for_sm(sm);

            target.rows = s % 2 ? TD_SHORT_ROWS : TD_BEST_ROWS;
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

/* Every precision and head dim on the kernels of mma.sync, whatever they are on this GPU. */
static void check_mma(uint32_t sm)
{
    static const uint32_t dims[] = {32, 64, 80, 128, 256}, precisions[] = {TANDEM_PRECISION_8B, TANDEM_PRECISION_4B,
                                                                          TANDEM_PRECISION_F16};
    static const struct {
        uint32_t heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{1, 1, 64, 64, 0}, {2, 1, 1, 65, 1}, {1, 1, 63, 130, 1}, {2, 2, 65, 63, 0}, {1, 1, 65, 1, 1}};
    static const uint32_t lengths[] = {1, 63, 64, 65, 130};
    em_module *on = em_module_of(sm);

    for (uint32_t p = 0; p < 3; p++)
        for (uint32_t i = 0; i < 5; i++) {
            const uint32_t size = (i + p) % 5;
            tu_shape shape = {.heads = sizes[size].heads,
                              .kv_heads = sizes[size].kv_heads,
                              .q_len = sizes[size].q_len,
                              .kv_len = sizes[size].kv_len,
                              .head_dim = dims[i],
                              .causal = sizes[size].causal,
                              .precision = precisions[p],
                              .lse = i % 2,
                              .k_bias = 1,
                              .v_bias = 1,
                              .seed = 10 * p + i};

            check(on, sm, &shape, (options){.dump = true, .schedules = !quick && i == 1 ? 3 : 1});
            if (p == 2 || (quick && i % 2))
                continue;
            /* of sixteen bits, with another prologue from sm_89 on */
            shape.dtype_q = shape.dtype_k = shape.dtype_v = 1 + (i + p) % 2;
            shape.dtype_o = 1 + i % 3;
            shape.layout = (tu_layout)(i % 4);
            check(on, sm, &shape, (options){.dump = true});
        }
    for (uint32_t q = 0; q < 4; q++)
        for (uint32_t k = 0; k < 5; k++)
            if (!quick || k == q)
                check(on, sm,
                      &(tu_shape){.heads = 2,
                                  .kv_heads = 1 + (q + k) % 2,
                                  .q_len = lengths[q],
                                  .kv_len = lengths[k],
                                  .head_dim = k % 2 ? 64 : 32,
                                  .causal = (q * 5 + k) / 3 % 2,
                                  .precision = precisions[(q * 5 + k) % 3],
                                  .dtype_q = q % 3,
                                  .dtype_k = q % 3,
                                  .dtype_v = q % 3,
                                  .lse = k % 2,
                                  .seed = 20 + 5 * q + k},
                      (options){.dump = true, .schedules = k == 3 ? 2 : 1});
    /* fp16 codes of V, which later GPUs have kernels for, too */
    for (uint32_t i = 0; sm > 80 && i < 5; i++)
        check(on, 80, &(tu_shape){.q_len = 33, .kv_len = 70, .head_dim = dims[i], .precision = TANDEM_PRECISION_8B, .seed = 40 + i},
              (options){.dump = true});
    check(on, sm,
          &(tu_shape){.batch = 1 + !quick,
                      .heads = 2,
                      .kv_heads = 1,
                      .q_len = 150,
                      .kv_len = 140,
                      .head_dim = 32,
                      .causal = 1,
                      .lse = 1,
                      .layout = TU_GAPS,
                      .dtype_o = TANDEM_DTYPE_BF16,
                      .precision = TANDEM_PRECISION_8B,
                      .seed = 50},
          (options){.commit = true});
    for (uint32_t type = quick ? 1 : 0; type < 2; type++)
        check(on, sm,
              &(tu_shape){.heads = 2,
                          .q_len = 70,
                          .kv_len = 200,
                          .head_dim = 32,
                          .dtype_q = type,
                          .dtype_k = type,
                          .dtype_v = type,
                          .precision = TANDEM_PRECISION_8B,
                          .seed = 51},
              (options){.dump = true, .spoil = spoil_values});
    if (!quick)
        for (uint32_t g = TANDEM_GRANULARITY_THREAD_ADA; g <= TANDEM_GRANULARITY_TENSOR; g++)
            check(on, sm,
                  &(tu_shape){.q_len = 70,
                              .kv_len = 140,
                              .head_dim = 64,
                              .granularity = g,
                              .smooth = g % 2 ? 14 : TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K,
                              .lse = 1,
                              .dtype_q = g % 3,
                              .dtype_k = g % 3,
                              .dtype_v = g % 3,
                              .precision = g % 2 ? TANDEM_PRECISION_8B : TANDEM_PRECISION_4B,
                              .k_bias = 3,
                              .v_bias = 5,
                              .seed = 60 + g},
                  (options){.prologue_only = true});
}

static void test_sm80(void **state)
{
    (void)state;
    check_mma(80);
}

static void test_sm89(void **state)
{
    (void)state;
    check_mma(89);
}

static void test_sm90(void **state)
{
    (void)state;
    check_mma(90);
}

static void test_sm120(void **state)
{
    (void)state;
    check_mma(120);
}

/* The 8b kernels of wgmma, and the prologue that goes with them. */
static void test_wgmma(void **state)
{
    static const uint32_t dims[] = {32, 64, 80, 128};
    static const struct {
        uint32_t heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{2, 1, 65, 129, 0}, {1, 1, 130, 257, 1}, {1, 1, 1, 1, 0}, {2, 2, 200, 70, 1}, {1, 1, 64, 128, 0}};
    static const uint32_t lengths[] = {1, 63, 64, 65};

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t s = 0; s < 6; s++) {
            if (quick ? s != i : s == i)
                continue;
            const tu_shape shape = {.heads = sizes[s].heads,
                                    .kv_heads = sizes[s].kv_heads,
                                    .q_len = sizes[s].q_len,
                                    .kv_len = sizes[s].kv_len,
                                    .head_dim = dims[i],
                                    .causal = sizes[s].causal,
                                    .precision = TANDEM_PRECISION_8B,
                                    .dtype_q = 1 + s % 2,
                                    .dtype_k = 1 + s % 2,
                                    .dtype_v = 1 + s % 2,
                                    .dtype_o = 1 + (s + i) % 3,
                                    .layout = (tu_layout)(s % 4),
                                    .lse = (s + i) % 4 == 0,
                                    .k_bias = 1,
                                    .v_bias = 1,
                                    .seed = 70 + 5 * i + s};

            check(em_module_of(90), 90, &shape, (options){.stream = true, .dump = true});
            if (s < 2 || quick)
                check(em_module_of(90), 90, &shape, (options){.stream = true, .schedules = quick ? 1 : 2});
        }
    /* so many keys that the stages are used again, twice or more */
    for (uint32_t i = 0; i < 4; i++)
        if (!quick || i % 2 == 0)
            check(em_module_of(90), 90,
                  &(tu_shape){.q_len = 2,
                              .kv_len = dims[i] <= 64 ? 1700 : 1000,
                              .head_dim = dims[i],
                              .precision = TANDEM_PRECISION_8B,
                              .dtype_q = 1,
                              .dtype_k = 1,
                              .dtype_v = 1,
                              .seed = 40 + i},
                  (options){.stream = true, .dump = i % 2, .schedules = quick ? 1 : 3});
    for (uint32_t q = 0; q < 4 && !quick; q++)
        for (uint32_t k = 0; k < 4; k++)
            check(em_module_of(90), 90,
                  &(tu_shape){.heads = 1 + (q + k) % 2,
                              .q_len = lengths[q],
                              .kv_len = lengths[k] + (k > 0) * 64,
                              .head_dim = dims[(q + k) % 4],
                              .causal = (q * 4 + k) / 3 % 2,
                              .precision = TANDEM_PRECISION_8B,
                              .dtype_q = 1 + q % 2,
                              .dtype_k = 1 + q % 2,
                              .dtype_v = 1 + q % 2,
                              .seed = 20 + 4 * q + k},
                  (options){.stream = true, .dump = k % 2, .schedules = 2});
    check(em_module_of(90), 90,
          &(tu_shape){.heads = 2,
                      .q_len = 70,
                      .kv_len = 200,
                      .head_dim = 64,
                      .dtype_q = 1,
                      .dtype_k = 1,
                      .dtype_v = 1,
                      .precision = TANDEM_PRECISION_8B,
                      .seed = 95},
          (options){.stream = true, .dump = true, .spoil = spoil_values});
    for (uint32_t i = 0; i < 12; i++) /* by both kernels of streams, and by that of command buffers */
        check(em_module_of(90), 90,
              &(tu_shape){.q_len = 20,
                          .kv_len = 2 * TD_HOPPER_R_KEYS + 6,
                          .head_dim = dims[i / 3],
                          .precision = TANDEM_PRECISION_8B,
                          .smooth = TANDEM_SMOOTH_NONE,
                          .scale = TD_LN_2 / (float)dims[i / 3],
                          .dtype_q = 1,
                          .dtype_k = 1,
                          .dtype_v = 1,
                          .lse = 1,
                          .seed = 96 + i % 3},
              (options){.stream = i % 3 < 2, .spoil = fill_to_the_limit});
}

/* Signs, so that row r's key is 7 r modulo the keys, and all others are far from it. */
static float far_apart;
static void set_far_apart(tu_case *it)
{
    const uint32_t keys = it->op.kv_len, rows = it->op.q_len;

    for (uint32_t key = 0; key < keys; key++)
        for (uint32_t c = 0; c < it->op.head_dim; c++) {
            uint64_t state = key * 1000 + c;
            const float x = tu_random(&state) % 2 ? far_apart : -far_apart;

            tu_set(&it->k, 0, 0, key, c, (double)x);
            for (uint32_t row = 0; row < rows; row++)
                if (7 * row % keys == key)
                    tu_set(&it->q, 0, 0, row, c, (double)x);
        }
}

/* Scores beyond what floats resolve: up to 2^33. */
static void test_far_apart(void **state)
{
    static const struct {
        uint32_t head_dim;
        bool stream;
        td_rows split;
    } kinds[] = {{32, true, 0}, {128, true, 0}, {64, false, 0}, {96, false, 0}, {64, true, TD_SPLIT_ROWS}, {256, true, 0}};
    static const float sizes[] = {100, 700, 1500, 3000, 4000, 6000, 11000, 30000};

    (void)state;
    for (uint32_t i = 0; i < 6; i++)
        for (uint32_t s = 0; s < 8; s++) {
            if (quick && (i + s) % 4)
                continue;
            far_apart = sizes[s];
            check(em_module_of(90), 90,
                  &(tu_shape){.q_len = 70,
                              .kv_len = 300,
                              .head_dim = kinds[i].head_dim,
                              .precision = TANDEM_PRECISION_8B,
                              .smooth = s % 2 ? TANDEM_SMOOTH_NONE : 0,
                              .dtype_q = 1,
                              .dtype_k = 1,
                              .dtype_v = 1,
                              .dtype_o = 3,
                              .lse = 1,
                              .seed = 400 + s},
                  (options){.stream = kinds[i].stream, .split = kinds[i].split, .spoil = set_far_apart, .most_l1 = 0.05});
        }
    for (uint32_t s = 0; s < 8; s++) {
        far_apart = sizes[s];
        check(em_module_of(90), 90,
              &(tu_shape){.q_len = 70,
                          .kv_len = 300,
                          .head_dim = 64,
                          .precision = TANDEM_PRECISION_F16,
                          .dtype_q = 1,
                          .dtype_k = 1,
                          .dtype_v = 1,
                          .dtype_o = 3,
                          .lse = 1,
                          .seed = 410 + s},
              (options){.stream = s % 2, .spoil = set_far_apart, .most_l1 = 0.001});
    }
}

/* The 8b kernel of head dim 256 by wgmma: both warpgroups, each of their rows, slots used several times. */
static void test_wgmma_256(void **state)
{
    static const struct {
        uint32_t heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{2, 1, 65, 129, 0}, {1, 1, 130, 257, 1}, {1, 1, 1, 1, 0},    {2, 2, 200, 70, 1},
                 {1, 1, 64, 128, 0}, {4, 2, 3, 65, 0},    {1, 1, 2, 1300, 0}, {1, 1, 129, 700, 1}};

    (void)state;
    for (uint32_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const tu_shape shape = {.heads = sizes[s].heads,
                                .kv_heads = sizes[s].kv_heads,
                                .q_len = sizes[s].q_len,
                                .kv_len = sizes[s].kv_len,
                                .head_dim = 256,
                                .causal = sizes[s].causal,
                                .precision = TANDEM_PRECISION_8B,
                                .dtype_q = 1 + s % 2,
                                .dtype_k = 1 + s % 2,
                                .dtype_v = 1 + s % 2,
                                .dtype_o = 1 + s % 3,
                                .layout = (tu_layout)(s % 4),
                                .lse = s % 4 == 0,
                                .k_bias = 1,
                                .v_bias = 1,
                                .seed = 300 + s};

        if (quick && s != 1 && s != 3)
            continue;
        check(em_module_of(90), 90, &shape, (options){.stream = true, .dump = true});
        check(em_module_of(90), 90, &shape, (options){.stream = true, .schedules = quick ? 1 : 2});
    }
    for (uint32_t i = 0; i < 2; i++)
        check(em_module_of(90), 90,
              &(tu_shape){.heads = 2,
                          .q_len = 70,
                          .kv_len = 200,
                          .head_dim = 256,
                          .dtype_q = 1,
                          .dtype_k = 1,
                          .dtype_v = 1,
                          .precision = TANDEM_PRECISION_8B,
                          .seed = 310},
              (options){.stream = true, .dump = i, .spoil = spoil_values});
    for (uint32_t i = 0; i < 4; i++)
        check(em_module_of(90), 90,
              &(tu_shape){.q_len = 20,
                          .kv_len = 2 * TD_HOPPER_R_KEYS + 6,
                          .head_dim = 256,
                          .precision = TANDEM_PRECISION_8B,
                          .smooth = TANDEM_SMOOTH_NONE,
                          .scale = TD_LN_2 / 256,
                          .dtype_q = 1,
                          .dtype_k = 1,
                          .dtype_v = 1,
                          .lse = 1,
                          .seed = 311},
              (options){.stream = true, .dump = i / 2, .spoil = i % 2 ? move_bases : fill_to_the_limit});
}

/* The 8b kernel whose blocks walk, by one to five of them: tiles without keys and of a few, rings that go on from one tile to
 * the next, heads by chunks, tiles that end in the middle of a warpgroup's rows or before some of them. */
static void test_wgmma_walk(void **state)
{
    static const uint32_t dims[] = {32, 64, 80, 128};
    static const struct {
        uint32_t heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{2, 1, 300, 129, 0}, {3, 3, 400, 300, 1}, {6, 2, 1, 1, 0}, {2, 2, 600, 70, 1},
                 {2, 1, 260, 1100, 1}, {5, 1, 200, 260, 1}};

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t s = 0; s < 6; s++)
            if (!quick || (s + i) % 3 == 1)
                check(em_module_of(90), 90,
                      &(tu_shape){.heads = sizes[s].heads,
                                  .kv_heads = sizes[s].kv_heads,
                                  .q_len = sizes[s].q_len,
                                  .kv_len = sizes[s].kv_len,
                                  .head_dim = dims[i],
                                  .causal = sizes[s].causal,
                                  .precision = TANDEM_PRECISION_8B,
                                  .smooth = s % 2 ? TANDEM_SMOOTH_V : 0,
                                  .dtype_q = 1 + s % 2,
                                  .dtype_k = 1 + s % 2,
                                  .dtype_v = 1 + s % 2,
                                  .dtype_o = (s + i) % 3,
                                  .layout = (tu_layout)(s % 4),
                                  .lse = (s + i) % 2,
                                  .k_bias = 1,
                                  .v_bias = 1,
                                  .seed = 330 + 6 * i + s},
                      (options){.stream = true, .split = TD_MOST_ROWS, .schedules = quick ? 1 : 2});
    for (uint32_t i = 0; i < 4; i++)
        check(em_module_of(90), 90,
              &(tu_shape){.heads = 2,
                          .q_len = 270,
                          .kv_len = 600,
                          .head_dim = dims[i],
                          .dtype_q = 1,
                          .dtype_k = 1,
                          .dtype_v = 1,
                          .lse = 1,
                          .precision = TANDEM_PRECISION_8B,
                          .seed = 355 + 5 * i},
              (options){.stream = true, .split = TD_MOST_ROWS, .spoil = i % 2 ? spoil_values : move_bases});
}

/* The 8b kernel whose warpgroups share the keys: fewer steps than warpgroups, as many, a few times as many; rows without keys,
 * parts without keys. */
static void check_split(bool stream)
{
    static const uint32_t dims[] = {32, 64, 80, 128, 64}; /* the last by pairs */
    static const struct {
        uint32_t heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{2, 1, 65, 129, 0}, {1, 1, 130, 900, 1}, {1, 1, 1, 1, 0},     {2, 2, 200, 70, 1},
                 {1, 1, 64, 2200, 0}, {1, 1, 63, 640, 0}, {1, 1, 300, 260, 1}, {1, 1, 10, 1500, 1}};

    for (uint32_t i = 0; i < 5; i++)
        for (uint32_t s = 0; s < 8; s++)
            if (!quick || s % 4 == i || i == 4)
                check(em_module_of(90), 90,
                      &(tu_shape){.heads = sizes[s].heads,
                                  .kv_heads = sizes[s].kv_heads,
                                  .q_len = sizes[s].q_len,
                                  .kv_len = sizes[s].kv_len,
                                  .head_dim = dims[i],
                                  .causal = sizes[s].causal,
                                  .precision = TANDEM_PRECISION_8B,
                                  .dtype_q = 1 + s % 2,
                                  .dtype_k = 1 + s % 2,
                                  .dtype_v = 1 + s % 2,
                                  .dtype_o = (s + i) % 3,
                                  .layout = (tu_layout)(s % 4),
                                  .lse = (s + i) % 2,
                                  .k_bias = 1,
                                  .v_bias = 1,
                                  .seed = 250 + 8 * i + s},
                      (options){.stream = stream, .split = i < 4 ? TD_SPLIT_ROWS : TD_PAIR_ROWS, .schedules = quick ? 1 : 2});
    for (uint32_t i = 0; i < 6; i++)
        check(em_module_of(90), 90,
              &(tu_shape){.heads = 2,
                          .q_len = 70,
                          .kv_len = 200 + 200 * (i % 4),
                          .head_dim = i < 4 ? dims[i] : 64,
                          .dtype_q = 1,
                          .dtype_k = 1,
                          .dtype_v = 1,
                          .lse = 1,
                          .precision = TANDEM_PRECISION_8B,
                          .seed = 290 + i},
              (options){.stream = stream,
                        .split = i < 4 ? TD_SPLIT_ROWS : TD_PAIR_ROWS,
                        .spoil = i % 2 ? spoil_values : fill_to_the_limit});
}

static void test_wgmma_split(void **state)
{
    (void)state;
    check_split(true);
}

static void test_inline_split(void **state)
{
    (void)state;
    check_split(false);
}

/* The 8b kernels of command buffers by wgmma: rings of 2, 3 and 4 slots, rounded several times. */
static void test_inline_wgmma(void **state)
{
    static const uint32_t dims[] = {32, 64, 80, 128}, lengths[] = {1, 63, 64, 65};
    static const struct {
        uint32_t heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{2, 1, 65, 129, 0}, {1, 1, 130, 1000, 1}, {1, 1, 1, 1, 0}, {2, 2, 200, 70, 1}, {1, 1, 64, 700, 0}};

    (void)state;
    for (uint32_t i = 0; i < 8; i++) /* every entry */
        check(em_module_of(90), 90,
              &(tu_shape){.q_len = 65,
                          .kv_len = 70,
                          .head_dim = 32 + 32 * (i % 4),
                          .precision = TANDEM_PRECISION_8B,
                          .seed = 600 + i},
              (options){.split = i < 4 ? TD_SHORT_ROWS : TD_MOST_ROWS, .schedules = 1});
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t s = 0; s < 5; s++)
            if (!quick || s == i)
                check(em_module_of(90), 90,
                      &(tu_shape){.heads = sizes[s].heads,
                                  .kv_heads = sizes[s].kv_heads,
                                  .q_len = sizes[s].q_len,
                                  .kv_len = sizes[s].kv_len,
                                  .head_dim = dims[i],
                                  .causal = sizes[s].causal,
                                  .precision = TANDEM_PRECISION_8B,
                                  .dtype_q = 1,
                                  .dtype_k = 1,
                                  .dtype_v = 1,
                                  .dtype_o = (s + i) % 3,
                                  .lse = (s + i) % 2,
                                  .k_bias = 1,
                                  .v_bias = 1,
                                  .seed = 150 + 5 * i + s},
                      (options){.schedules = quick ? 1 : 3});
    for (uint32_t q = 0; q < 4 && !quick; q++)
        for (uint32_t k = 0; k < 4; k++)
            check(em_module_of(90), 90,
                  &(tu_shape){.heads = 1 + (q + k) % 2,
                              .q_len = lengths[q],
                              .kv_len = lengths[k] + (k > 0) * 64,
                              .head_dim = dims[(q + k) % 4],
                              .causal = (q * 4 + k) / 3 % 2,
                              .precision = TANDEM_PRECISION_8B,
                              .lse = 1,
                              .seed = 170 + 4 * q + k},
                  (options){.schedules = 2});
    check(em_module_of(90), 90,
          &(tu_shape){.heads = 2,
                      .q_len = 70,
                      .kv_len = 200,
                      .head_dim = 64,
                      .precision = TANDEM_PRECISION_8B,
                      .lse = 1,
                      .seed = 190},
          (options){.spoil = spoil_values});
}

/* F16 by wgmma, on tensors as they lie in memory. */
static void test_direct(void **state)
{
    static const uint32_t dims[] = {64, 80, 96, 128};
    static const struct {
        uint32_t heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{1, 1, 65, 129, 0}, {1, 1, 130, 300, 1}, {2, 1, 1, 64, 0}, {1, 1, 200, 70, 1}};
    static const uint32_t lengths[] = {1, 63, 64, 65};

    (void)state;
    for (uint32_t type = TANDEM_DTYPE_F16; type <= TANDEM_DTYPE_BF16; type++)
        for (uint32_t i = 0; i < 4; i++)
            for (uint32_t s = 0; s < 4; s++) {
                if (quick ? s != i : (s + type) % 2)
                    continue;
                check(em_module_of(90), 90,
                      &(tu_shape){.heads = sizes[s].heads,
                                  .kv_heads = sizes[s].kv_heads,
                                  .q_len = sizes[s].q_len,
                                  .kv_len = sizes[s].kv_len,
                                  .head_dim = dims[i],
                                  .causal = sizes[s].causal,
                                  .precision = TANDEM_PRECISION_F16,
                                  .dtype_q = type,
                                  .dtype_k = type,
                                  .dtype_v = type,
                                  .dtype_o = 1 + (s + i) % 3,
                                  .layout = s % 2 ? TU_BY_ROW : TU_DENSE,
                                  .lse = s != 1,
                                  .v_bias = 1,
                                  .seed = 100 + 5 * i + s},
                      (options){.stream = true});
            }
    /* so many keys that the stages are used again, twice or more */
    for (uint32_t i = 0; i < 4; i++)
        if (!quick || i % 2 == 0)
            check(em_module_of(90), 90,
                  &(tu_shape){.q_len = 2,
                              .kv_len = 1000,
                              .head_dim = dims[i],
                              .precision = TANDEM_PRECISION_F16,
                              .dtype_q = 1,
                              .dtype_k = 1,
                              .dtype_v = 1,
                              .seed = 40 + i},
                  (options){.stream = true, .dump = false, .schedules = quick ? 1 : 3});
    for (uint32_t q = 0; q < 4 && !quick; q++)
        for (uint32_t k = 0; k < 4; k++)
            check(em_module_of(90), 90,
                  &(tu_shape){.heads = 1 + (q + k) % 2,
                              .q_len = lengths[q],
                              .kv_len = lengths[k] + (k > 0) * 64,
                              .head_dim = dims[(q + k) % 4],
                              .causal = (q * 4 + k) / 3 % 2,
                              .precision = TANDEM_PRECISION_F16,
                              .dtype_q = 1 + q % 2,
                              .dtype_k = 1 + q % 2,
                              .dtype_v = 1 + q % 2,
                              .lse = 1,
                              .seed = 50 + 4 * q + k},
                  (options){.stream = true, .schedules = 2});
    /* a bad V in a step that the mask cuts, scores of a wide range, more tiles than blocks take at a time */
    check(em_module_of(90), 90,
          &(tu_shape){.heads = 2,
                      .q_len = 150,
                      .kv_len = 170,
                      .head_dim = 64,
                      .causal = 1,
                      .precision = TANDEM_PRECISION_F16,
                      .dtype_q = 1,
                      .dtype_k = 1,
                      .dtype_v = 1,
                      .lse = 1,
                      .seed = 90},
          (options){.stream = true, .spoil = spoil_values});
    check(em_module_of(90), 90,
          &(tu_shape){.q_len = 40,
                      .kv_len = 400,
                      .head_dim = 64,
                      .scale = 1.5f,
                      .precision = TANDEM_PRECISION_F16,
                      .dtype_q = 2,
                      .dtype_k = 2,
                      .dtype_v = 2,
                      .lse = 1,
                      .seed = 91},
          (options){.stream = true});
    /* bases that move at every step, that stay though sums are large */
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t s = 0; s < 2; s++)
            check(em_module_of(90), 90,
                  &(tu_shape){.q_len = 130 + 64 * s,
                              .kv_len = 500 + s,
                              .head_dim = dims[i],
                              .causal = (i + s) % 2,
                              .precision = TANDEM_PRECISION_F16,
                              .dtype_q = 1 + (i + s) / 2 % 2,
                              .dtype_k = 1 + (i + s) / 2 % 2,
                              .dtype_v = 1 + (i + s) / 2 % 2,
                              .lse = 1,
                              .seed = 93 + 2 * i + s},
                  (options){.stream = true, .split = TD_MOST_ROWS, .spoil = s ? sum_to_the_limit : move_bases});
    for (uint32_t causal = 0; causal < 2 && !quick; causal++)
        check(em_module_of(90), 90,
              &(tu_shape){.batch = 23,
                          .heads = 13,
                          .q_len = 4,
                          .kv_len = causal ? 20 : 140,
                          .head_dim = 64,
                          .causal = causal,
                          .precision = TANDEM_PRECISION_F16,
                          .dtype_q = 1,
                          .dtype_k = 1,
                          .dtype_v = 1,
                          .seed = 92},
              (options){.stream = true});
}

/* Head dim 64 again: blocks of two teams that have tiles of their own: none, one, several, pairs; warpgroups that stop before their team's last
 * step, rows without keys, rings that go round. Blocks are as many as `seed` says, of one to five multiprocessors. */
static void test_direct_teams(void **state)
{
    static const struct {
        uint32_t batch, heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{1, 1, 1, 65, 129, 0},  {2, 2, 1, 130, 300, 1}, {1, 1, 1, 1, 1, 0},    {1, 2, 2, 300, 70, 1},
                 {1, 1, 1, 2, 1200, 0},  {2, 4, 2, 256, 256, 1}, {3, 5, 5, 20, 100, 0}, {1, 3, 1, 520, 520, 1},
                 {1, 1, 1, 10, 1500, 1}, {1, 6, 6, 129, 64, 1},  {1, 2, 1, 400, 200, 0}, {2, 3, 3, 64, 65, 1}};

    (void)state;
    for (uint32_t s = 0; s < 12; s++)
        for (uint32_t type = TANDEM_DTYPE_F16; type <= TANDEM_DTYPE_BF16; type++) {
            if (quick && (s + type) % 3)
                continue;
            check(em_module_of(90), 90,
                  &(tu_shape){.batch = sizes[s].batch,
                              .heads = sizes[s].heads,
                              .kv_heads = sizes[s].kv_heads,
                              .q_len = sizes[s].q_len,
                              .kv_len = sizes[s].kv_len,
                              .head_dim = 64,
                              .causal = sizes[s].causal,
                              .precision = TANDEM_PRECISION_F16,
                              .dtype_q = type,
                              .dtype_k = type,
                              .dtype_v = type,
                              .dtype_o = 1 + s % 3,
                              .layout = s % 3 == 2 ? TU_BATCH_LAST : (tu_layout)(s % 3),
                              .lse = s % 2,
                              .v_bias = 1,
                              .seed = 830 + 3 * s + type},
                  (options){.stream = true, .split = TD_MOST_ROWS, .schedules = quick ? 1 : 3});
        }
    /* bad values, of V in steps that the mask cuts, too; scores of a wide range, bases that move, that stay */
    for (uint32_t i = 0; i < 8; i++)
        check(em_module_of(90), 90,
              &(tu_shape){.heads = 2,
                          .q_len = 150 + 64 * (i % 2),
                          .kv_len = 170 + 300 * (i / 4),
                          .head_dim = 64,
                          .causal = i % 3 != 2,
                          .scale = i == 1 ? 1.5f : 0,
                          .precision = TANDEM_PRECISION_F16,
                          .dtype_q = 1 + i / 2 % 2,
                          .dtype_k = 1 + i / 2 % 2,
                          .dtype_v = 1 + i / 2 % 2,
                          .lse = 1,
                          .seed = 870 + i},
              (options){.stream = true,
                        .split = TD_MOST_ROWS,
                        .spoil = i < 4 ? i == 1 ? NULL : spoil_values : i % 2 ? sum_to_the_limit : move_bases});
}

/* The same by warpgroups that share the keys, four of 64 rows or (at head dim 64) two pairs of 128: fewer steps than teams,
 * as many, so many that rings go round; rows without keys, parts without keys. */
static void test_direct_split(void **state)
{
    static const uint32_t dims[] = {64, 80, 96, 128}, lengths[] = {1, 63, 64, 65};
    static const struct {
        uint32_t heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{2, 1, 65, 129, 0}, {1, 1, 130, 900, 1}, {1, 1, 1, 1, 0},     {2, 2, 200, 70, 1},
                 {1, 1, 64, 2200, 0}, {1, 1, 63, 640, 0}, {1, 1, 300, 260, 1}, {1, 1, 10, 1500, 1}};

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t s = 0; s < 8; s++)
            for (uint32_t members = 1; members <= (i ? 1 : 2); members++) {
                const uint32_t type = 1 + (s + i / 2 + members) % 2;
                if (quick && s % 4 != (i + members) % 4)
                    continue;
                check(em_module_of(90), 90,
                      &(tu_shape){.heads = sizes[s].heads,
                                  .kv_heads = sizes[s].kv_heads,
                                  .q_len = sizes[s].q_len,
                                  .kv_len = sizes[s].kv_len,
                                  .head_dim = dims[i],
                                  .causal = sizes[s].causal,
                                  .precision = TANDEM_PRECISION_F16,
                                  .dtype_q = type,
                                  .dtype_k = type,
                                  .dtype_v = type,
                                  .dtype_o = 1 + (s + i) % 3,
                                  .layout = s % 3 == 2 ? TU_BATCH_LAST : (tu_layout)(s % 3),
                                  .lse = (s + i) % 2,
                                  .v_bias = 1,
                                  .seed = 700 + 16 * i + 2 * s + members},
                      (options){.stream = true,
                                .split = members == 1 ? TD_SPLIT_ROWS : TD_PAIR_ROWS,
                                .schedules = quick ? 1 : 2});
            }
    for (uint32_t q = 0; q < 4 && !quick; q++)
        for (uint32_t k = 0; k < 4; k++)
            check(em_module_of(90), 90,
                  &(tu_shape){.heads = 1 + (q + k) % 2,
                              .q_len = lengths[q],
                              .kv_len = lengths[k] + k % 3 * 128,
                              .head_dim = k % 2 ? dims[(q + k / 2) % 4] : 64,
                              .causal = (q * 4 + k) / 3 % 2,
                              .precision = TANDEM_PRECISION_F16,
                              .dtype_q = 1 + q % 2,
                              .dtype_k = 1 + q % 2,
                              .dtype_v = 1 + q % 2,
                              .lse = 1,
                              .seed = 770 + 4 * q + k},
                  (options){.stream = true, .split = k % 2 ? TD_SPLIT_ROWS : TD_PAIR_ROWS, .schedules = 2});
    /* bad values, of V in steps that the mask cuts, too; scores of a wide range */
    for (uint32_t i = 0; i < 8; i++)
        check(em_module_of(90), 90,
              &(tu_shape){.heads = 2,
                          .q_len = 150,
                          .kv_len = 170,
                          .head_dim = i < 4 ? dims[i] : 64,
                          .causal = 1,
                          .scale = i % 4 == 1 ? 1.5f : 0,
                          .precision = TANDEM_PRECISION_F16,
                          .dtype_q = 1 + i / 2 % 2,
                          .dtype_k = 1 + i / 2 % 2,
                          .dtype_v = 1 + i / 2 % 2,
                          .lse = 1,
                          .seed = 790 + i},
              (options){.stream = true,
                        .split = i < 4 ? TD_SPLIT_ROWS : TD_PAIR_ROWS,
                        .spoil = i % 4 == 1 ? NULL : spoil_values});
    /* every entry */
    for (uint32_t i = 0; i < 10; i++)
        check(em_module_of(90), 90,
              &(tu_shape){.q_len = 65,
                          .kv_len = 70,
                          .head_dim = i < 8 ? dims[i % 4] : 64,
                          .precision = TANDEM_PRECISION_F16,
                          .dtype_q = i < 8 ? 1 + i / 4 : i - 7,
                          .dtype_k = i < 8 ? 1 + i / 4 : i - 7,
                          .dtype_v = i < 8 ? 1 + i / 4 : i - 7,
                          .seed = 810 + i},
              (options){.stream = true, .split = i < 8 ? TD_SPLIT_ROWS : TD_PAIR_ROWS, .schedules = 1});
}

/* The same in command buffers: rings of 4 or 5 slots of 32, 48 or 64 keys, rounded several times, and across tiles of rows;
 * blocks of two sizes, as seeds are even or odd. */
static void test_direct_inline(void **state)
{
    static const uint32_t dims[] = {64, 80, 96, 128}, lengths[] = {1, 31, 32, 33, 48, 63, 64, 65};
    static const struct {
        uint32_t heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{2, 1, 65, 129, 0}, {1, 1, 330, 500, 1}, {1, 1, 1, 1, 0}, {2, 2, 200, 70, 1}, {1, 1, 64, 700, 0}};

    (void)state;
    for (uint32_t type = TANDEM_DTYPE_F16; type <= TANDEM_DTYPE_BF16; type++)
        for (uint32_t i = 0; i < 4; i++)
            for (uint32_t s = 0; s < 5; s++) {
                if (quick ? s != i || (s + type) % 2 : (s + type) % 2)
                    continue;
                check(em_module_of(90), 90,
                      &(tu_shape){.heads = sizes[s].heads,
                                  .kv_heads = sizes[s].kv_heads,
                                  .q_len = sizes[s].q_len,
                                  .kv_len = sizes[s].kv_len,
                                  .head_dim = dims[i],
                                  .causal = sizes[s].causal,
                                  .precision = TANDEM_PRECISION_F16,
                                  .dtype_q = type,
                                  .dtype_k = type,
                                  .dtype_v = type,
                                  .dtype_o = 1 + (s + i) % 3,
                                  .layout = s % 2 ? TU_BY_ROW : TU_DENSE,
                                  .lse = s != 1,
                                  .v_bias = 1,
                                  .seed = 300 + 5 * i + s},
                      (options){.schedules = quick ? 1 : 3});
            }
    for (uint32_t q = 0; q < 8 && !quick; q++)
        for (uint32_t k = 0; k < 8; k++)
            check(em_module_of(90), 90,
                  &(tu_shape){.heads = 1 + (q + k) % 2,
                              .q_len = lengths[q],
                              .kv_len = lengths[k] + (k % 2) * 64,
                              .head_dim = dims[(q + k) % 4],
                              .causal = (q * 8 + k) / 3 % 2,
                              .precision = TANDEM_PRECISION_F16,
                              .dtype_q = 1 + q % 2,
                              .dtype_k = 1 + q % 2,
                              .dtype_v = 1 + q % 2,
                              .lse = 1,
                              .seed = 340 + 8 * q + k},
                  (options){.schedules = 2});
    /* a bad V in steps that the mask cuts, scores of a wide range, blocks with several tiles of rows */
    for (uint32_t i = 0; i < 4; i++)
        if (!quick || i == 3)
            check(em_module_of(90), 90,
                  &(tu_shape){.heads = 2,
                              .q_len = 150,
                              .kv_len = 170,
                              .head_dim = dims[i],
                              .causal = 1,
                              .precision = TANDEM_PRECISION_F16,
                              .dtype_q = 1,
                              .dtype_k = 1,
                              .dtype_v = 1,
                              .lse = 1,
                              .seed = 390 + i},
                  (options){.spoil = spoil_values, .schedules = quick ? 1 : 3});
    check(em_module_of(90), 90,
          &(tu_shape){.q_len = 40,
                      .kv_len = 400,
                      .head_dim = 64,
                      .scale = 1.5f,
                      .precision = TANDEM_PRECISION_F16,
                      .dtype_q = 2,
                      .dtype_k = 2,
                      .dtype_v = 2,
                      .lse = 1,
                      .seed = 395},
          (options){0});
    /* every entry: long and short blocks of both types */
    for (uint32_t i = 0; i < 16; i++)
        check(em_module_of(90), 90,
              &(tu_shape){.q_len = 65,
                          .kv_len = 70,
                          .head_dim = dims[i % 4],
                          .precision = TANDEM_PRECISION_F16,
                          .dtype_q = 1 + i / 4 % 2,
                          .dtype_k = 1 + i / 4 % 2,
                          .dtype_v = 1 + i / 4 % 2,
                          .seed = 400 + i},
              (options){.split = i < 8 ? TD_SHORT_ROWS : TD_MOST_ROWS, .schedules = 1});
    for (uint32_t causal = 0; causal < 2 && !quick; causal++)
        check(em_module_of(90), 90,
              &(tu_shape){.batch = 23,
                          .heads = 13,
                          .q_len = 4,
                          .kv_len = causal ? 20 : 140,
                          .head_dim = causal ? 128 : 64,
                          .causal = causal,
                          .precision = TANDEM_PRECISION_F16,
                          .dtype_q = 1,
                          .dtype_k = 1,
                          .dtype_v = 1,
                          .seed = 397},
              (options){.schedules = 2});
}

static void spoil_ends(tu_case *it)
{
    const tandem_attention *op = &it->op;

    tu_set(&it->q, op->batch - 1, op->heads - 1, op->q_len - 1, op->head_dim - 1, NAN);
    tu_set(&it->k, 0, 0, op->kv_len - 1, 0, -INFINITY);
    tu_set(&it->k, 0, 0, op->kv_len / 3, op->head_dim / 2, NAN);
    tu_set(&it->v, 0, op->kv_heads - 1, op->kv_len / 2, op->head_dim - 1, INFINITY);
}

/* Prologues of heads that clusters hold, and of such that they do not: as if they were too long, or one that is; of rows that
 * are not aligned. */
static void test_prepare(void **state)
{
    static const struct {
        uint32_t batch, heads, kv_heads, q_len, kv_len;
    } sizes[] = {{1, 2, 1, 1, 1}, {1, 2, 2, 130, 127}, {1, 1, 1, 100, 1000}, {1, 1, 1, 40, 2100}, {35, 8, 8, 2, 130},
                 {2, 3, 3, 20, 300}, {1, 1, 1, 70, 4100}};
    static const uint32_t dims[] = {32, 64, 80, 128};

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t n = 0; n < 14; n++) {
            const uint32_t s = n / 2, type = 1 + (i + s) % 2;
            const bool no_clusters = n % 2;
            const tu_layout layout = s == 4 && !no_clusters ? TU_GAPS : (tu_layout)((s + i) % 4);

            if ((quick && s != i && s != 4 + i % 2) || (s == 6 && (dims[i] != 128 || no_clusters)))
                continue;
            check(em_module_of(90), 90,
                  &(tu_shape){.batch = sizes[s].batch,
                              .heads = sizes[s].heads,
                              .kv_heads = sizes[s].kv_heads,
                              .q_len = sizes[s].q_len,
                              .kv_len = sizes[s].kv_len,
                              .head_dim = dims[i],
                              .dtype_q = type,
                              .dtype_k = 3 - type,
                              .dtype_v = type,
                              .layout = no_clusters && layout == TU_GAPS ? TU_BATCH_LAST : layout,
                              .precision = TANDEM_PRECISION_8B,
                              .smooth = s == 1 ? (uint32_t)TANDEM_SMOOTH_NONE : 0,
                              .k_bias = 2,
                              .v_bias = 1,
                              .seed = 130 + 14 * i + n},
                  (options){.stream = true,
                            .prologue_only = true,
                            .no_clusters = no_clusters,
                            .schedules = s < 3 ? 2 : 1,
                            .spoil = (s + i / 2) % 2 ? spoil_ends : NULL});
        }
}

/* A head whose statistics never come: its codes are not made, so the kernel must not end as if they were. A job that is given up
 * meanwhile is another matter. */
static void test_totals_that_never_come(void **state)
{
    (void)state;
    for (uint32_t cancelled = 0; cancelled < 2; cancelled++) {
        const tu_shape shape = {.q_len = 20, .kv_len = 1000, .head_dim = 64, .precision = TANDEM_PRECISION_8B,
                                .dtype_q = 1, .dtype_k = 1, .dtype_v = 1, .seed = 77};
        td_target target = td_target_for_stream(90);
        uint32_t kv_planes = 0, runs = 0;
        uint64_t cancel = 0;
        tu_case it;

        target.twin = target.no_clusters = true;
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

/* --- Single instructions, and what no plan holds --- */

static void test_probes(void **state)
{
    static td_plan plan;
    const uint32_t tiles = quick ? 16 : 64;
    void *arrays[TD_PROBE_VIEWS];
    char why[256] = "";

    (void)state;
    for (int i = 0; i < TD_PROBE_VIEWS; i++) {
        arrays[i] = aligned_alloc(256, tiles * TD_PROBE_A_BYTES + TU_GUARD_BYTES); /* the largest */
        assert_non_null(arrays[i]);
    }
    float *got = malloc(tiles * TD_PROBE_ELEMENTS * sizeof *got);
    assert_non_null(got);
    for (size_t m = 0; m < EM_MODULES; m++)
        for (uint32_t unit = 0; unit < TD_PROBE_UNITS; unit++) {
            td_target target = td_target_for_sm(em_modules[m].sm);
            uint64_t views[TD_PROBE_VIEWS];

            target.twin = true;
            if (td_plan_probe(unit, tiles, &target, &plan, why, sizeof why))
                continue;
            td_probe_fill_random(unit, tiles, 17 + unit, arrays[0], arrays[1], arrays[2]);
            for (int i = 0; i < TD_PROBE_VIEWS; i++)
                views[i] = (uintptr_t)arrays[i];
            must(td_exec_cpu_run(&plan, views, 0, THREADS, NULL), "the twin");
            views[TD_PROBE_D] = (uintptr_t)got;
            em_launch_record(&em_modules[m], &plan.records[0], views, 0, seed);
            assert_memory_equal(got, arrays[TD_PROBE_D], tiles * TD_PROBE_ELEMENTS * sizeof *got);
        }
    for (int i = 0; i < TD_PROBE_VIEWS; i++)
        free(arrays[i]);
    free(got);
}

static void test_stamp(void **state)
{
    (void)state;
    for (size_t m = 0; m < EM_MODULES; m++) {
        _Alignas(16) td_stamp slot = {0};
        uint64_t completed = 0, params[TD_PARAM_BYTES / 8] = {0};
        char why[200] = "";
        emu_launch it = {.grid = 1, .block = 1, .params = params, .seed = seed, .why = why, .why_bytes = sizeof why};

        for (uint32_t end = 0; end < 2; end++) {
            const td_params_stamp stamp = {
                .slot = &slot, .completed = end ? &completed : NULL, .sequence = 7 + end, .end = end};
            memcpy(params, &stamp, sizeof stamp);
            if (em_launch(&em_modules[m], "stamp", &it))
                fail_msg("stamp: %s", why);
        }
        assert_int_equal(slot.begun, 7);
        assert_int_equal(slot.sequence, 8);
        assert_int_equal(completed, 8);
        assert_true(slot.begin_ns && slot.end_ns > slot.begin_ns);
    }
}

/* After all others: no kernel was left out. */
static void test_every_entry_was_run(void **state)
{
    uint32_t cubin_count = 0, missing = 0;
    const td_cubin *cubins = td_cubins(&cubin_count);

    (void)state;
    for (size_t m = 0; m < EM_MODULES; m++) {
        for (size_t i = 0; i < em_modules[m].entry_count; i++)
            if (!em_modules[m].was_run[i] && !em_is_tested_apart(em_modules[m].entries[i])) {
                print_message("    %s of sm_%u was not run\n", em_modules[m].entries[i], em_modules[m].sm);
                missing++;
            }
        print_message("    sm_%u: %zu entries\n", em_modules[m].sm, em_modules[m].entry_count);
        for (uint32_t c = 0; c < cubin_count; c++)
            for (uint32_t i = 0; !cubins[c].ptx && cubins[c].sm == em_modules[m].sm && i < cubins[c].image_count; i++)
                for (uint32_t e = 0; e < cubins[c].images[i].entry_count; e++)
                    if (!em_is_tested_apart(cubins[c].images[i].entries[e].entry) &&
                        !dlsym(em_modules[m].library, cubins[c].images[i].entries[e].entry))
                        fail_msg("the emulator has no %s of sm_%u", cubins[c].images[i].entries[e].entry,
                                 em_modules[m].sm);
    }
    assert_int_equal(missing, 0);
}

/* --- Kernels with mistakes: tests/emu/broken.cpp --- */

typedef struct mistaken {
    const char *kernel;
    uint32_t grid, block, shared_bytes, cluster, words;
} mistaken;

/* Runs it under many seeds: how many failed, how many gave other words than `want`. */
static void run_mistaken(const mistaken *it, uint32_t mistake, uint32_t *want, uint32_t *failed, uint32_t *differs, char *why,
                         size_t why_bytes)
{
    enum { SEEDS = 24 };
    static uint32_t in[1024], out[1024];

    for (uint32_t i = 0; i < 1024; i++)
        in[i] = 0x9e3779b9u * (i + 1);
    *failed = *differs = 0;
    for (uint32_t s = 0; s < SEEDS; s++) {
        uint64_t params[TD_PARAM_BYTES / 8] = {(uintptr_t)in, (uintptr_t)out, mistake};
        char text[1600] = "";
        emu_launch run = {.grid = it->grid,
                          .block = it->block,
                          .shared_bytes = it->shared_bytes,
                          .cluster = it->cluster,
                          .params = params,
                          .seed = seed * 1000 + s,
                          .why = text,
                          .why_bytes = sizeof text};

        memset(out, TU_POISON, sizeof out);
        if (em_launch(&broken, it->kernel, &run)) {
            (*failed)++;
            snprintf(why, why_bytes, "%s", text);
        } else if (mistake == 0 && s == 0) {
            memcpy(want, out, sizeof out);
        } else {
            *differs += memcmp(want, out, it->words * 4) != 0;
        }
    }
}

static void test_mistakes_are_seen(void **state)
{
    static const struct {
        mistaken it;
        const char *why[5]; /* by mistake from 1 on: what the run says, or "" where it gives other words at times */
    } kernels[] = {
        {{"ring", 1, 64, 0, 1, 64}, {"deadlock"}},
        {{"fetch", 1, 128, 2048, 1, 128}, {"", "", "of shared memory", "deadlock", "deadlock"}},
        {{"product", 1, 128, 0, 1, 512}, {"", "wgmma.fence", "", ""}},
        {{"neighbours", 8, 64, 0, 4, 512}, {"", "has not initialised", "has ended", "that waits for"}},
    };

    (void)state;
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        static uint32_t want[1024];
        uint32_t failed, differs;
        char why[1600] = "";

        run_mistaken(&kernels[k].it, 0, want, &failed, &differs, why, sizeof why);
        if (failed || differs)
            fail_msg("%s without a mistake: %u failed, %u differ: %s", kernels[k].it.kernel, failed, differs, why);
        for (uint32_t m = 0; m < 5 && kernels[k].why[m]; m++) {
            run_mistaken(&kernels[k].it, m + 1, want, &failed, &differs, why, sizeof why);
            print_message("    %s, mistake %u: %u failed, %u differ; %s\n", kernels[k].it.kernel, m + 1, failed, differs,
                          failed ? why : "");
            if (*kernels[k].why[m]) {
                assert_true(failed > 0);
                assert_non_null(strstr(why, kernels[k].why[m]));
            } else {
                assert_true(differs > 0);
            }
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mistakes_are_seen),
        cmocka_unit_test(test_probes),
        cmocka_unit_test(test_stamp),
        cmocka_unit_test(test_sm80),
        cmocka_unit_test(test_sm89),
        cmocka_unit_test(test_sm90),
        cmocka_unit_test(test_sm120),
        cmocka_unit_test(test_wgmma),
        cmocka_unit_test(test_wgmma_256),
        cmocka_unit_test(test_wgmma_walk),
        cmocka_unit_test(test_far_apart),
        cmocka_unit_test(test_wgmma_split),
        cmocka_unit_test(test_inline_split),
        cmocka_unit_test(test_inline_wgmma),
        cmocka_unit_test(test_direct),
        cmocka_unit_test(test_direct_teams),
        cmocka_unit_test(test_direct_split),
        cmocka_unit_test(test_direct_inline),
        cmocka_unit_test(test_prepare),
        cmocka_unit_test(test_totals_that_never_come),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_every_entry_was_run),
    };

    if (getenv("TANDEM_TEST_FILTER"))
        cmocka_set_test_filter(getenv("TANDEM_TEST_FILTER"));
    quick = getenv("TANDEM_SANITIZED") != NULL;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--quick") == 0) {
            quick = true;
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            seed = strtoull(argv[++i], NULL, 0);
        } else {
            fprintf(stderr, "usage: test_kernels [--seed N] [--quick]\n");
            return 2;
        }
    if (!em_open_all(TD_EMU_FOLDER) || !em_open(&broken, TD_EMU_FOLDER, "libemu_broken.so"))
        return 1;
    if (getenv("TANDEM_TEST_FILTER"))
        cmocka_set_test_filter(getenv("TANDEM_TEST_FILTER"));
    printf("seed %llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
