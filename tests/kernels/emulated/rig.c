/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/attention/cpu.h"
#include "kernels/commit.h"
#include "tests/kernels/emulated/rig.h"

uint64_t seed = 1;
bool quick;
em_module broken;

void must(tandem_status status, const char *why)
{
    if (status)
        fail_msg("status %d: %s", (int)status, why);
}

/* --- Cases of attention --- */

/* S and P of kernels whose plans have no dumps, in memory of the test's: on the emulator they write them all the same. */
typedef struct inside {
    td_record *record; /* of attention, or NULL: another kernel */
    bool direct;       /* on tensors as they lie in memory: S in fp32, P in their type */
    unsigned char *s[2], *p[2]; /* the twin's, the kernel's */
    td_kernel dumping;          /* where it is direct: the kernel, with the twin that dumps, and its parameters */
    td_params_attention_f16_dump params;
} inside;

static void dump_to(inside *it, int whose)
{
    const uint64_t s = (uintptr_t)it->s[whose], p = (uintptr_t)it->p[whose];
    const size_t s_at = it->direct ? offsetof(td_params_attention_f16_dump, dump.s) : offsetof(td_params_attention, dump_s);
    const size_t p_at = it->direct ? offsetof(td_params_attention_f16_dump, dump.p) : offsetof(td_params_attention, dump_p);

    memcpy(it->record->params + s_at, &s, 8);
    memcpy(it->record->params + p_at, &p, 8);
}

/* Its kernel and parameters become those that dump. */
static void make_dumping(inside *in, const td_attention_layout *layout)
{
    td_record *record = in->record;

    in->dumping = *record->kernel;
    in->dumping.cpu = td_twin_attn_f16_wgmma_dump;
    in->params = (td_params_attention_f16_dump){.dump = {.q_pad = layout->q_pad, .kv_pad = layout->kv_pad}};
    assert_int_equal(record->param_bytes, sizeof in->params.of);
    memcpy(&in->params.of, record->params, sizeof in->params.of);
    record->kernel = &in->dumping;
    record->params = (unsigned char *)&in->params;
    record->param_bytes = sizeof in->params;
}

/* Runs the twin once more, with dumps. */
static void look_inside(tu_case *it, inside *in)
{
    td_record *record = &it->plan.records[it->plan.record_count - 1];
    const size_t elements = (size_t)it->op.batch * it->op.heads * it->layout.q_pad * it->layout.kv_pad;
    const uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)it->q.data, (uintptr_t)it->k.data, (uintptr_t)it->v.data,
                                           (uintptr_t)it->o.data, (uintptr_t)it->lse.data};

    in->direct = record->kernel->cpu == td_twin_attn_f16_wgmma;
    if (!in->direct && strncmp(record->kernel->name, "attn_8b_wgmma", 13) != 0)
        return;
    in->record = record;
    for (int i = 0; i < 2; i++) {
        in->s[i] = calloc(elements, 4);
        in->p[i] = calloc(elements, 2);
        assert_true(in->s[i] && in->p[i]);
    }
    if (in->direct)
        make_dumping(in, &it->layout);
    dump_to(in, 0);
    must(td_exec_cpu_run(&it->plan, views, (uintptr_t)it->scratch, THREADS, NULL), "the twin with dumps");
    dump_to(in, 1);
}

static double norm_of(const tu_tensor *x, uint32_t b, uint32_t h, uint32_t r)
{
    double sum = 0;

    for (uint32_t c = 0; c < x->dim; c++)
        sum += tu_get(x, b, h, r, c) * tu_get(x, b, h, r, c);
    return sqrt(sum);
}

/* By how many steps of a format with so many bits two P may differ whose scores are off by up to `off`, as log2, and so are
 * bases: by what that is of them, and by a step as roundings turn. */
static double most_steps(double off, bool bf16)
{
    return 1 + 2 * off * (bf16 ? 0x1p8 : 0x1p11);
}

/* What S of the kernels on tensors as they lie in memory is off by, of |q| |k|: the twin adds up products in float64, the
 * kernel 16 of them and what was before in one go, each cut off behind 25 bits of the largest, and the sum behind 23. That is
 * 17 * 2^-25 + 2^-23 of the largest sum for each 16 channels, which is below 2^-20. */
static double scores_off(const tandem_attention *op)
{
    return op->head_dim / 16.0 * 0x1p-20;
}

/* S of a row's keys. False: some of it is not finite, as Q or K are not, so that P is anything and O is NaN. */
static bool compare_scores(const tu_case *it, const float *twin, const float *kernel, uint32_t bh, uint32_t r, uint32_t keys,
                           double q_norm, const double *k_norms)
{
    bool finite = true;

    for (uint32_t j = 0; j < keys; j++) {
        const double size = q_norm * k_norms[j], twins = (double)twin[j], kernels = (double)kernel[j];

        finite &= isfinite(size) != 0;
        if (isfinite(size) ? !(fabs(twins - kernels) <= scores_off(&it->op) * size) : isfinite(kernels))
            fail_msg("S of head %u, row %u, key %u is %.9g, the twin's %.9g", bh, r, j, kernels, twins);
    }
    return finite;
}

/* S and P. Exponents of up to 2^5 are off by 2^-19, so P by 1.3e-6 of it, which turns a rounding to fp16, whose steps are
 * 2^-11 to 2^-10 of P, in 2 of 1000. Where scores are so far apart that they are off by more than 1, P is any of 0 and 1. */
static void compare_direct(const tu_case *it, const inside *in)
{
    const tandem_attention *op = &it->op;
    const float *s[2] = {(const float *)in->s[0], (const float *)in->s[1]};
    const uint16_t *p[2] = {(const uint16_t *)in->p[0], (const uint16_t *)in->p[1]};
    const bool bf16 = op->q.dtype == TANDEM_DTYPE_BF16;
    const int least = bf16 ? 0x80 : 1; /* the GPU's 2^x knows nothing below 2^-126 */
    const double off = scores_off(op) * (double)in->params.of.scale / (double)TD_LN_2;
    double *k_norms = malloc(op->kv_len * sizeof *k_norms);
    uint64_t codes = 0, different = 0, some = 0;

    assert_non_null(k_norms);
    for (uint32_t bh = 0; bh < op->batch * op->heads; bh++) {
        const uint32_t b = bh / op->heads, h = bh % op->heads;

        for (uint32_t j = 0; j < op->kv_len; j++)
            k_norms[j] = norm_of(&it->k, b, h / (op->heads / op->kv_heads), j);
        for (uint32_t r = 0; r < op->q_len; r++) {
            const int64_t reach = op->causal ? (int64_t)r + op->kv_len - op->q_len + 1 : op->kv_len;
            const uint32_t keys = reach > 0 ? (uint32_t)reach : 0;
            const size_t row = ((size_t)bh * it->layout.q_pad + r) * it->layout.kv_pad;
            const double q_norm = norm_of(&it->q, b, h, r);

            if (!compare_scores(it, s[0] + row, s[1] + row, bh, r, keys, q_norm, k_norms))
                continue;
            for (uint32_t j = 0; j < keys; j++) {
                const int twin = p[0][row + j] < least ? 0 : p[0][row + j], kernel = p[1][row + j] < least ? 0 : p[1][row + j];
                const double steps = most_steps(off * q_norm * k_norms[j], bf16);

                some += twin != 0;
                if (steps >= most_steps(1, bf16))
                    continue;
                codes += steps < 2;
                different += steps < 2 && twin != kernel;
                if (abs(twin - kernel) > steps)
                    fail_msg("P of head %u, row %u, key %u is %04x, the twin's %04x", bh, r, j, kernel, twin);
            }
        }
    }
    free(k_norms);
    if (different > 2 + codes / 500)
        fail_msg("%llu of %llu P differ", (unsigned long long)different, (unsigned long long)codes);
    if (codes && !some)
        fail_msg("no P was written");
}

static void compare_inside(const tu_case *it, inside *in)
{
    if (!in->record)
        return;
    if (in->direct)
        compare_direct(it, in);
    else
        tu_compare_codes(it, in->s[1], in->s[0], in->p[1], in->p[0]);
    for (int i = 0; i < 2; i++) {
        free(in->s[i]);
        free(in->p[i]);
    }
}

void check(em_module *on, uint32_t sm, const tu_shape *shape, options with)
{
    const td_attention_options asked = {.rows = with.split ? with.split : shape->seed % 2 ? TD_MOST_ROWS : TD_SHORT_ROWS,
                                        .dump = with.dump,
                                        .no_clusters = with.no_clusters};
    td_target target = with.stream ? td_target_for_stream(sm) : td_target_for_sm(sm);
    tu_tensor o, lse;
    tu_case it;

    target.twin = true;
    target.commit = with.commit;
    target.attention = &asked;
    if (with.split)
        target.multiprocessors = 1 + shape->seed % 5;
    if (sm == 80 && on->sm != 80) /* the twin's fp16 units are all alike */
        target.accumulator = td_target_for_sm(on->sm).accumulator;
    tu_case_init(&it, shape);
    if (with.spoil)
        with.spoil(&it);
    must(tu_case_run(&it, &target, THREADS), "the twin");
    inside in = {0};
    if (!with.dump && !with.commit && !with.prologue_only)
        look_inside(&it, &in);
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

void spoil_values(tu_case *it)
{
    tu_set(&it->q, 0, 0, 3, 5, NAN);
    tu_set(&it->q, 0, 1, 64, 0, -INFINITY);
    tu_set(&it->k, 0, 0, 100, 7, INFINITY);
    tu_set(&it->v, 0, 1, 129, 31, NAN);
}

void fill_to_the_limit(tu_case *it)
{
    const tandem_attention *op = &it->op;

    for (uint32_t c = 0; c < op->head_dim; c++) {
        for (uint32_t r = 0; r < op->q_len; r++)
            tu_set(&it->q, 0, 0, r, c, 1 - 0.001 * (r % 7));
        for (uint32_t r = 0; r < op->kv_len; r++)
            tu_set(&it->k, 0, 0, r, c, r < TD_HOPPER_R_KEYS ? 0 : 3.999);
    }
}

void move_bases(tu_case *it)
{
    const tandem_attention *op = &it->op;

    for (uint32_t c = 0; c < op->head_dim; c++) {
        for (uint32_t r = 0; r < op->q_len; r++)
            tu_set(&it->q, 0, 0, r, c, 1 - 0.1 * (r % 7));
        for (uint32_t r = 0; r < op->kv_len; r++)
            tu_set(&it->k, 0, 0, r, c, (r + 64) / 128 * 5.5 + r / 128 * (r % 3));
    }
}

void sum_to_the_limit(tu_case *it)
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

/* A temporary output's bytes become the output. */
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

void check_pieces(em_module *on, const tu_shape *shape, td_target target, bool spoilt)
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
