/* What AUTO takes: tables as text, broken ones, the choice at its borders, plans that go by it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine_plugin/client/tuning_file.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/params.h"
#include "kernels/attention/tuning.h"
#include "kernels/target.h"
#include "tests/kernels/gpu_model.h"

static tandem_attention op_of(uint32_t batch, uint32_t heads, uint32_t kv_heads, uint32_t q_len, uint32_t kv_len,
                              uint32_t dim, uint32_t causal)
{
    tandem_attention op = {.batch = batch,
                           .heads = heads,
                           .kv_heads = kv_heads,
                           .q_len = q_len,
                           .kv_len = kv_len,
                           .head_dim = dim,
                           .causal = causal};
    const uint32_t rows[] = {q_len, kv_len, kv_len, q_len}, of[] = {heads, kv_heads, kv_heads, heads};
    tandem_view *views[] = {&op.q, &op.k, &op.v, &op.o};

    for (int i = 0; i < 4; i++) {
        views[i]->dtype = TANDEM_DTYPE_F16;
        views[i]->stride_row = dim;
        views[i]->stride_head = (int64_t)dim * rows[i];
        views[i]->stride_batch = views[i]->stride_head * of[i];
    }
    return op;
}

static uint32_t precision_by(const td_tuning_table *table, uint32_t planes, uint32_t n)
{
    const tandem_attention op = op_of(1, planes, planes, n, n, 128, 0);

    return td_tuning_precision(table, &op);
}

/* f16 costs planes * n^2, 8b half of that and a prologue of `us` a plane and row; one tile after the other, all of one size. */
static td_tuning_table model(double us)
{
    td_tuning_table t = {.sm = 89, .multiprocessors = 1, .device = "a model", .count = 1, .parts = {{.head_dim = 128}}};
    td_tuning_cost *costs = t.parts[0].costs;

    for (uint32_t i = 0; i < TD_TUNING_PLANES; i++)
        for (uint32_t j = 0; j < TD_TUNING_LENGTHS; j++) {
            const double planes = td_tuning_planes(i), n = td_tuning_length(j);

            costs[TD_TUNING_F16].kernel[i][j] = (float)(planes * n * n * 1e-3);
            costs[TD_TUNING_8B].kernel[i][j] = (float)(planes * n * n * 0.5e-3);
            costs[TD_TUNING_8B].prologue[i][j] = (float)(planes * n * us);
        }
    return t;
}

static void test_borders(void **state)
{
    /* equal where n / 2000 is the prologue's us: at n = 2000 for 1 us */
    const td_tuning_table table = model(1);
    td_tuning_table holes = table;

    (void)state;
    assert_int_equal(precision_by(&table, 1, 1), TANDEM_PRECISION_F16);
    assert_int_equal(precision_by(&table, 1, 1024), TANDEM_PRECISION_F16);
    assert_int_equal(precision_by(&table, 1, 1920), TANDEM_PRECISION_F16);
    assert_int_equal(precision_by(&table, 1, 2048), TANDEM_PRECISION_8B);
    assert_int_equal(precision_by(&table, 3, 1920), TANDEM_PRECISION_F16); /* between the planes, between the lengths */
    assert_int_equal(precision_by(&table, 3, 2048), TANDEM_PRECISION_8B);
    assert_int_equal(precision_by(&table, 4000, 1536), TANDEM_PRECISION_F16); /* beyond the planes */
    assert_int_equal(precision_by(&table, 4000, 2048), TANDEM_PRECISION_8B);
    assert_int_equal(precision_by(&table, 128, 1 << 20), TANDEM_PRECISION_8B); /* beyond the lengths */
    const td_tuning_table never = model(1e4);
    assert_int_equal(precision_by(&never, 128, 32768), TANDEM_PRECISION_F16);
    assert_int_equal(precision_by(&never, 128, 1 << 24), TANDEM_PRECISION_F16);
    assert_int_equal(precision_by(&never, 128, 1 << 26), TANDEM_PRECISION_8B);

    /* Few queries: the prologue reads all keys for them. Grouped heads: fewer keys to read. */
    tandem_attention op = op_of(1, 8, 8, 1200, 4096, 128, 0);
    assert_int_equal(td_tuning_precision(&table, &op), TANDEM_PRECISION_F16);
    op = op_of(1, 8, 1, 1200, 4096, 128, 0);
    assert_int_equal(td_tuning_precision(&table, &op), TANDEM_PRECISION_8B);

    /* Few queries as they were measured, not as so much of as many queries as keys. */
    td_tuning_table few = table;
    op = op_of(1, 8, 8, 16, 32768, 128, 0);
    assert_int_equal(td_tuning_precision(&few, &op), TANDEM_PRECISION_F16);
    for (uint32_t i = 0; i < TD_TUNING_PLANES; i++)
        for (uint32_t j = 0; j < TD_TUNING_LENGTHS; j++) {
            few.parts[0].costs[TD_TUNING_F16].few[i][j] = 1e6f;
            few.parts[0].costs[TD_TUNING_8B].few[i][j] = 1;
        }
    assert_int_equal(td_tuning_precision(&few, &op), TANDEM_PRECISION_8B);
    op.q_len = op.kv_len = 1024;
    assert_int_equal(td_tuning_precision(&few, &op), TANDEM_PRECISION_F16);

    /* Other dims are not known, and there is nothing with a mask. */
    op = op_of(1, 8, 8, 4096, 4096, 64, 0);
    assert_int_equal(td_tuning_precision(&table, &op), TANDEM_PRECISION_AUTO);
    op.head_dim = 128;
    op.causal = 1;
    assert_int_equal(td_tuning_precision(&table, &op), TANDEM_PRECISION_AUTO);

    /* What was not measured: in proportion beyond the last number of planes, else another precision or none. */
    td_tuning_cost *costs = holes.parts[0].costs;
    for (uint32_t i = 4; i < TD_TUNING_PLANES; i++)
        for (uint32_t j = 0; j < TD_TUNING_LENGTHS; j++)
            for (int c = TD_TUNING_F16; c <= TD_TUNING_8B; c++)
                costs[c].kernel[i][j] = 0;
    assert_int_equal(precision_by(&holes, 128, 1920), TANDEM_PRECISION_F16);
    assert_int_equal(precision_by(&holes, 128, 2048), TANDEM_PRECISION_8B);
    memset(costs[TD_TUNING_8B].kernel, 0, sizeof costs[TD_TUNING_8B].kernel);
    assert_int_equal(precision_by(&holes, 128, 8192), TANDEM_PRECISION_F16);
    memset(costs[TD_TUNING_F16].kernel, 0, sizeof costs[TD_TUNING_F16].kernel);
    assert_int_equal(precision_by(&holes, 128, 8192), TANDEM_PRECISION_AUTO);

    /* The fastest of three; the more exact one of equals. */
    td_tuning_table three = model(1);
    three.parts[0].costs[TD_TUNING_4B] = three.parts[0].costs[TD_TUNING_8B];
    assert_int_equal(precision_by(&three, 8, 4096), TANDEM_PRECISION_8B);
    three.parts[0].costs[TD_TUNING_4B].kernel[3][4] *= 0.9f;
    assert_int_equal(precision_by(&three, 8, 4096), TANDEM_PRECISION_4B);
    assert_int_equal(precision_by(&three, 8, 8192), TANDEM_PRECISION_8B);
}

/* --- What a choice loses --- */

enum { SHAPES = 4000 };

static double random_part(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

static void measure(const gpu_model *g, td_tuning_table *t)
{
    static const uint32_t dims[] = {64, 80, 96, 128};

    *t = (td_tuning_table){.sm = 90, .multiprocessors = 132, .device = "a model", .count = 8};
    for (uint32_t p = 0; p < t->count; p++)
        for (uint32_t i = 0; i < TD_TUNING_PLANES; i++)
            for (uint32_t j = 0; j < TD_TUNING_LENGTHS; j++) {
                td_tuning_part *part = &t->parts[p];
                const uint32_t planes = td_tuning_planes(i), n = td_tuning_length(j), d = dims[p / 2];
                const tandem_attention all = op_of(1, planes, planes, n, n, d, p % 2);
                const tandem_attention few = op_of(1, planes, planes, TD_TUNING_FEW, n, d, 0);

                part->head_dim = d;
                part->causal = p % 2;
                for (int c = TD_TUNING_F16; c <= TD_TUNING_8B; c++) { /* as `tandem tune` does */
                    if (planes * n <= 1 << 19)
                        part->costs[c].kernel[i][j] = (float)gpu_model_kernel_us(g, &all, c == TD_TUNING_8B);
                    if (planes * n <= 1 << 20 && !part->causal)
                        part->costs[c].few[i][j] = (float)gpu_model_kernel_us(g, &few, c == TD_TUNING_8B);
                }
                if (planes * n <= 1 << 19)
                    part->costs[TD_TUNING_8B].prologue[i][j] = (float)gpu_model_prologue_us(&all);
            }
}

static uint32_t from_to(double low, double high, uint64_t *state)
{
    return (uint32_t)(low * pow((high + 1) / low, random_part(state)));
}

/* Any shape: grouped heads, as many queries as keys, or fewer, or more; not longer than seconds. */
static tandem_attention random_op(uint64_t *state)
{
    static const uint32_t heads[] = {1, 2, 4, 6, 8, 12, 16, 24, 32, 40, 64}, groups[] = {1, 1, 2, 4, 8},
                          dims[] = {64, 80, 96, 128};

    for (;;) {
        const uint32_t batch = 1 + (uint32_t)(8 * random_part(state)), h = heads[(int)(11 * random_part(state))];
        const uint32_t group = groups[(int)(5 * random_part(state))], kv = from_to(64, 32768, state);
        const double how = random_part(state);
        const uint32_t q = how < 0.3 ? kv : from_to(1, how < 0.6 ? 64 : 32768, state);
        const uint32_t d = dims[(int)(4 * random_part(state))], causal = random_part(state) < 0.5;

        if (h % group == 0 && (double)batch * h * q * kv < 2e10)
            return op_of(batch, h, h / group, q, kv, d, causal);
    }
}

/* What choices cost, as parts of the fastest's time. */
typedef struct loss {
    double sum, most;
    int count, over; /* over: those that lose more than 5 % */
} loss;

static void add_loss(loss *l, uint32_t taken, double f16, double by_8b)
{
    const double lost = (taken == TANDEM_PRECISION_F16 ? f16 : by_8b) / fmin(f16, by_8b) - 1;

    assert_int_not_equal(taken, TANDEM_PRECISION_AUTO);
    l->most = fmax(l->most, lost);
    l->sum += lost;
    l->count++;
    l->over += lost > 0.05;
}

static void check_loss(const loss *l, const char *by, double over, double most)
{
    print_message("  %s: mean loss %.2f %%, most %.0f %%, above 5 %%: %.2f %% of %d shapes\n", by, 100 * l->sum / l->count,
                  100 * l->most, 100.0 * l->over / l->count, l->count);
    assert_true(l->over <= over * l->count && l->most <= most);
}

static void test_loss(void **state)
{
    static const struct {
        gpu_model gpu;
        double by_table, by_rule, by_border; /* the part of shapes that may lose more than 5 % */
        double most;                         /* that any may lose */
    } cases[] = {{{.noise = 0}, 0.002, 0.006, 0.06, 0.3},
                 {{.noise = 0.01}, 0.003, 0.01, 0.06, 0.3},
                 {{.smooth = true, .noise = 0.01}, 0.03, 0.04, 0.07, 0.75}};
    static td_tuning_table table;

    (void)state;
    for (int i = 0; i < 3; i++) {
        const gpu_model *gpu = &cases[i].gpu;
        loss by_table = {0}, by_rule = {0}, by_border = {0};
        uint64_t seed = 1;

        measure(gpu, &table);
        for (int n = 0; n < SHAPES; n++) {
            const tandem_attention op = random_op(&seed);
            const double f16 = gpu_model_kernel_us(gpu, &op, false);
            const double by_8b = gpu_model_kernel_us(gpu, &op, true) + gpu_model_prologue_us(&op);

            add_loss(&by_table, td_tuning_precision(&table, &op), f16, by_8b);
            add_loss(op.q_len == op.kv_len ? &by_border : &by_rule, td_tuning_rule_direct(&op, 0), f16, by_8b);
        }
        print_message("%s, noise %.0f %%:\n", gpu->smooth ? "smooth" : "waves", 100 * gpu->noise);
        check_loss(&by_table, "table", cases[i].by_table, cases[i].most);
        check_loss(&by_rule, "rule", cases[i].by_rule, cases[i].most);
        check_loss(&by_border, "rule, as many queries as keys", cases[i].by_border, cases[i].most);
    }
}

/* --- The model, beside what was measured --- */

/* How far apart a time is, as a logarithm. */
typedef struct distance {
    double squares, most;
    uint32_t count;
} distance;

static void add_distance(distance *d, double model_us, double measured_us)
{
    const double apart = log(model_us / measured_us);

    d->squares += apart * apart;
    d->most = fmax(d->most, fabs(apart));
    d->count++;
}

static void check_distance(const distance *d, const char *what, uint32_t least, double mean, double most)
{
    const double root = sqrt(d->squares / d->count);

    print_message("%s: the model is %.1f %% from %u times, at most %.0f %%\n", what, 100 * root, (unsigned)d->count,
                  100 * d->most);
    assert_true(d->count >= least && root <= mean && d->most <= most);
}

static void add_row(distance kernel[2], distance *whole, const tandem_attention *op, json_t *row)
{
    const gpu_model gpu = {0};
    const char *what = json_string_value(json_object_get(row, "what"));
    const bool coded = !strcmp(json_string_value(json_object_get(row, "precision")), "8b");
    const double us = json_number_value(json_object_get(json_object_get(row, "us"), "median"));

    if (!strcmp(what, "kernel"))
        add_distance(&kernel[coded], gpu_model_kernel_us(&gpu, op, coded), us);
    if (!strcmp(what, "end to end") && coded)
        add_distance(whole, gpu_model_kernel_us(&gpu, op, true) + gpu_model_prologue_us(op), us);
}

/* By the run that the model was fitted to, when F16 did not keep NaN and Inf yet. */
static void test_model_as_measured(void **state)
{
    const char *source = getenv("TANDEM_SOURCE");
    const td_tuning_table *table = td_tuning_shipped(90, "NVIDIA H200");
    const gpu_model gpu = {0};
    distance kernel[2] = {0}, whole = {0}, shipped[2] = {0};
    char path[4096];
    size_t i, j;
    json_t *shape, *row;

    (void)state;
    snprintf(path, sizeof path, "%s/tests/kernels/gpu_model_fitted.json", source ? source : "..");
    json_t *file = json_load_file(path, 0, NULL);
    assert_non_null(file);
    json_array_foreach(json_object_get(file, "shapes"), i, shape)
    {
        const uint32_t heads = (uint32_t)json_integer_value(json_object_get(shape, "heads"));
        const uint32_t n = (uint32_t)json_integer_value(json_object_get(shape, "n"));
        const tandem_attention op = op_of((uint32_t)json_integer_value(json_object_get(shape, "batch")), heads, heads, n, n,
                                          (uint32_t)json_integer_value(json_object_get(shape, "d")),
                                          json_is_true(json_object_get(shape, "causal")));

        json_array_foreach(json_object_get(shape, "rows"), j, row) add_row(kernel, &whole, &op, row);
    }
    json_decref(file);
    check_distance(&kernel[0], "F16's kernel", 42, 0.09, 0.25);
    check_distance(&kernel[1], "8B's kernel", 42, 0.09, 0.25);
    check_distance(&whole, "8B end to end", 42, 0.1, 0.25);

    assert_non_null(table);
    for (uint32_t p = 0; p < table->count; p++)
        for (uint32_t at = 0; at < TD_TUNING_PLANES * TD_TUNING_LENGTHS; at++)
            for (int c = TD_TUNING_F16; c <= TD_TUNING_8B; c++) {
                const td_tuning_part *part = &table->parts[p];
                const uint32_t planes = td_tuning_planes(at / TD_TUNING_LENGTHS), n = td_tuning_length(at % TD_TUNING_LENGTHS);
                const float us = part->costs[c].kernel[at / TD_TUNING_LENGTHS][at % TD_TUNING_LENGTHS];
                const tandem_attention op = op_of(1, planes, planes, n, n, part->head_dim, part->causal);

                if (us > 0)
                    add_distance(&shipped[c], gpu_model_kernel_us(&gpu, &op, c == TD_TUNING_8B), (double)us);
            }
    check_distance(&shipped[0], "F16's kernel as shipped", 400, 0.09, 0.5);
    check_distance(&shipped[1], "8B's kernel as shipped", 400, 0.09, 0.5);
}

/* --- GPUs of other sizes --- */

/* Plans that know how many multiprocessors there are end earlier, in sum and by far at best, than those that are made for an
 * H200. One of them may end later: turns that just do not suffice here may have sufficed there. */
static void test_multiprocessors(void **state)
{
    static const uint32_t sizes[] = {58, 78, 114, 132, 144};
    static const double most_later = 1.75;

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const gpu_model knows = {.multiprocessors = sizes[i]}, guesses = {.multiprocessors = sizes[i], .planned_for = 132};
        double sum[2] = {0}, best = 0, worst = 0;
        uint64_t seed = 3;

        for (int n = 0; n < 1000; n++) {
            const tandem_attention op = random_op(&seed);

            for (int coded = 0; coded < 2; coded++) {
                const double us[2] = {gpu_model_kernel_us(&knows, &op, coded), gpu_model_kernel_us(&guesses, &op, coded)};

                sum[0] += us[0];
                sum[1] += us[1];
                best = fmax(best, us[1] / us[0]);
                worst = fmax(worst, us[0] / us[1]);
            }
        }
        print_message("%u multiprocessors: planned for 132 takes %.2f times as long, up to %.2f; at best %.2f\n", sizes[i],
                      sum[1] / sum[0], best, 1 / worst);
        assert_true(sizes[i] == 132 ? best == 1 && worst == 1 : sum[0] < sum[1] && best > 1.3 && worst < most_later);
    }
}

/* Walks that get the same pair of tiles of every head (89 of 89 pairs here, by 89 walks): where many pairs see no key, those with
 * the longest took 2.9 times as long as they must. */
static void test_walks_out_of_step(void **state)
{
    const tandem_attention op = op_of(1, 4, 1, 22740, 4189, 96, 1);
    const gpu_model gpu = {.multiprocessors = 114}, even = {.multiprocessors = 114, .smooth = true};

    (void)state;
    assert_true(gpu_model_kernel_us(&gpu, &op, false) < 1.3 * gpu_model_kernel_us(&even, &op, false));
}

/* --- Lengths --- */

/* What a family takes as it gets longer, by a table: it changes once, but for lengths at which the other one would be more
 * than 3 % slower by what was measured. */
static void check_by_table(const td_tuning_table *table, uint32_t batch, uint32_t heads, uint32_t dim, uint32_t causal)
{
    enum { LONGEST = 20000 };
    const uint32_t step = getenv("TANDEM_SANITIZED") ? 16 : 1; /* every length is the plain build's to judge */
    uint32_t first_8b = UINT32_MAX, last_f16 = 0;

    for (uint32_t n = 1; n <= LONGEST; n += step) {
        const tandem_attention op = op_of(batch, heads, heads, n, n, dim, causal);
        const uint32_t taken = td_tuning_precision(table, &op);
        double us[TD_TUNING_COSTS];

        td_tuning_us(table, &op, us);
        const int other = taken == TANDEM_PRECISION_F16 ? TD_TUNING_8B : TD_TUNING_F16;
        const double gain = us[other] / us[TD_TUNING_F16 + TD_TUNING_8B - other];
        if (gain > 1.03)
            continue;
        if (taken == TANDEM_PRECISION_8B && first_8b == UINT32_MAX)
            first_8b = n;
        if (taken == TANDEM_PRECISION_F16)
            last_f16 = n;
    }
    if (last_f16 > first_8b)
        fail_msg("b%u h%u d%u causal %u: 8B at %u, F16 again at %u, for less than 3 %%", batch, heads, dim, causal, first_8b,
                 last_f16);
}

/* By the rule a family changes once, from F16 to 8B, not below TD_TUNING_RULE_KEYS, nor far beyond what fills a GPU with one head. */
static void check_by_rule(bool inline_one, uint32_t batch, uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t causal,
                          uint32_t multiprocessors)
{
    enum { LONGEST = 32768, FIRST = TD_TUNING_RULE_KEYS, LAST = 20000 };
    uint32_t from = 0;

    for (uint32_t n = 1; n <= LONGEST; n++) {
        const tandem_attention op = op_of(batch, heads, kv_heads, n, n, dim, causal);
        const uint32_t taken = (inline_one ? td_tuning_rule_inline : td_tuning_rule_direct)(&op, multiprocessors);

        if (from && taken != TANDEM_PRECISION_8B)
            fail_msg("b%u h%u/%u d%u causal %u on %u multiprocessors%s: 8B at %u, F16 again at %u", batch, heads, kv_heads, dim,
                     causal, multiprocessors, inline_one ? ", inline" : "", from, n);
        if (!from && taken == TANDEM_PRECISION_8B)
            from = n;
    }
    if (from < FIRST || from > LAST)
        fail_msg("b%u h%u/%u d%u causal %u on %u multiprocessors%s: 8B from %u on", batch, heads, kv_heads, dim, causal,
                 multiprocessors, inline_one ? ", inline" : "", from);
}

static void test_lengths(void **state)
{
    static const struct {
        uint32_t batch, heads;
    } families[] = {{1, 1}, {1, 8}, {1, 24}, {2, 16}, {4, 32}};
    static const uint32_t dims[] = {64, 80, 96, 128};
    const td_tuning_table *table = td_tuning_shipped(90, "NVIDIA H200");

    (void)state;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++)
        for (uint32_t i = 0; i < 8; i++)
            check_by_table(table, families[f].batch, families[f].heads, dims[i / 2], i % 2);
}

static void test_rule_changes_once(void **state)
{
    static const uint32_t dims[] = {64, 80, 96, 128}, sizes[] = {58, 78, 114, 144};

    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t dim = dims[i / 2], causal = i % 2;

        for (uint32_t planes = 1; planes <= 128; planes += 1 + planes / 8)
            for (int inline_one = 0; inline_one < 2; inline_one++)
                check_by_rule(inline_one, 1, planes, planes, dim, causal, 0);
        check_by_rule(false, 4, 32, 32, dim, causal, 0); /* many heads of several batches; that share keys */
        check_by_rule(false, 1, 32, 4, dim, causal, 0);
        for (int size = 0; size < 4; size++)
            check_by_rule(false, 1, 24, 24, dim, causal, sizes[size]);
    }
}

/* What the rule loses in the large shapes of `tandem bench attention`: microseconds end to end of an H200, 2026-11-23. */
static void test_rule_as_measured(void **state)
{
    static const struct {
        uint32_t dim, causal, n;
        double f16, by_8b;
    } measured[] = {
        {64, 0, 1024, 75.104, 89.024}, {64, 0, 4096, 1122.7, 881.28}, {64, 0, 16384, 17264, 12610},
        {64, 1, 1024, 51.808, 76.736}, {64, 1, 4096, 593.38, 554.4}, {64, 1, 16384, 8791.1, 6540.8},
        {80, 0, 4096, 1532.5, 1192}, {80, 1, 4096, 845.44, 759.14}, {96, 0, 4096, 1555.7, 1204.5},
        {96, 1, 4096, 885.44, 776.32}, {128, 0, 1024, 131.17, 137.92}, {128, 0, 4096, 1846.1, 1299.1},
        {128, 0, 16384, 27792, 17175}, {128, 1, 1024, 91.936, 123.3}, {128, 1, 4096, 1032.3, 837.18},
        {128, 1, 16384, 14636, 9426},
    };

    (void)state;
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) {
        const tandem_attention op = op_of(4, 32, 32, measured[i].n, measured[i].n, measured[i].dim, measured[i].causal);
        const double us[] = {measured[i].f16, measured[i].by_8b};
        const bool by_8b = td_tuning_rule_direct(&op, 0) == TANDEM_PRECISION_8B;
        const double lost = us[by_8b] / fmin(us[0], us[1]) - 1;

        print_message("d%-3u n%-5u %-6s f16 %7.1f, 8b %7.1f us: the rule takes %-3s and loses %.1f %%\n", op.head_dim,
                      op.q_len, op.causal ? "causal" : "", us[0], us[1], by_8b ? "8b" : "f16", 100 * lost);
        assert_true(lost <= 0.05);
    }
}

/* --- Text --- */

enum { TEXT = 1 << 16 };

static void times_text(char *text, const char *value)
{
    strcat(text, "[");
    for (int i = 0; i < TD_TUNING_PLANES; i++) {
        strcat(text, i ? ",[" : "[");
        for (int j = 0; j < TD_TUNING_LENGTHS; j++) {
            strcat(text, j ? "," : "");
            strcat(text, i == 7 && j == 7 ? value : "1.5");
        }
        strcat(text, "]");
    }
    strcat(text, "]");
}

/* A good table but for the last time of f16's kernel, and what is before and behind the part. */
static void table_text(char *text, const char *head, const char *value, const char *more)
{
    snprintf(text, TEXT, "{%s\"parts\":[{\"head_dim\":64,\"causal\":0,\"f16\":{\"kernel\":", head);
    times_text(text, value);
    strcat(text, "}");
    strcat(text, more);
    strcat(text, "]}");
}

static const char good_head[] =
    "\"tandem\":\"choice\",\"version\":2,\"device\":\"GPU\",\"sm\":90,\"multiprocessors\":132,";

static void refused(const char *text, const char *because)
{
    td_tuning_table table;
    char why[300] = "";

    memset(&table, 0xff, sizeof table);
    if (td_tuning_parse(text, strlen(text), &table, why, sizeof why) != TANDEM_ERROR_ARG)
        fail_msg("taken, not refused for \"%s\"", because);
    if (!strstr(why, because))
        fail_msg("\"%s\" does not say \"%s\"", why, because);
    assert_int_equal(table.count, 0);
    assert_int_equal(td_tuning_parse(text, strlen(text), &table, NULL, 0), TANDEM_ERROR_ARG);
}

static void refused_table(const char *head, const char *value, const char *more, const char *because)
{
    char *text = malloc(TEXT);

    assert_non_null(text);
    table_text(text, head, value, more);
    refused(text, because);
    free(text);
}

static void test_text(void **state)
{
    char *text = malloc(TEXT), why[300] = "";
    td_tuning_table table;

    (void)state;
    assert_non_null(text);
    table_text(text, good_head, "2.5", ",\"8b\":null,\"4b\":{\"few\":null}}");
    if (td_tuning_parse(text, strlen(text), &table, why, sizeof why) != TANDEM_OK)
        fail_msg("%s", why);
    assert_int_equal(table.sm, 90);
    assert_int_equal(table.multiprocessors, 132);
    assert_string_equal(table.device, "GPU");
    assert_int_equal(table.count, 1);
    assert_int_equal(table.parts[0].head_dim, 64);
    assert_true(table.parts[0].costs[TD_TUNING_F16].kernel[0][0] == 1.5f &&
                table.parts[0].costs[TD_TUNING_F16].kernel[7][7] == 2.5f);
    assert_true(table.parts[0].costs[TD_TUNING_8B].kernel[0][0] == 0);
    assert_true(table.parts[0].costs[TD_TUNING_4B].few[7][7] == 0);
    table_text(text, good_head, "null", "}");
    assert_int_equal(td_tuning_parse(text, strlen(text), &table, why, sizeof why), TANDEM_OK);
    assert_true(table.parts[0].costs[TD_TUNING_F16].kernel[7][7] == 0);

    /* Every shorter text is refused. */
    const size_t bytes = strlen(text);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(td_tuning_parse(text, i, &table, why, sizeof why), TANDEM_ERROR_ARG);

    static const char *const bad_values[] = {"0", "-1", "1e10", "1e-9", "\"7\"", "true", "[]", "{}"};
    for (size_t i = 0; i < sizeof bad_values / sizeof *bad_values; i++)
        refused_table(good_head, bad_values[i], "}", "parts[0].f16.kernel[7][7]");
    refused_table(good_head, "1,2", "}", "parts[0].f16.kernel[7] is no array of 8");
    refused_table(good_head, "1e999", "}", "no JSON");
    refused_table(good_head, "NaN", "}", "no JSON");
    refused_table(good_head, "1", ",\"speed\":1}", "\"speed\"");
    refused_table(good_head, "1", ",\"f16\":null}", "no JSON"); /* twice */
    refused_table(good_head, "1", "},{\"head_dim\":64,\"causal\":0}", "parts[1] is for head_dim 64, causal 0 again");
    refused_table(good_head, "1", "},{\"head_dim\":257,\"causal\":0}", "parts[1].head_dim is 257");
    refused_table(good_head, "1", "},{\"head_dim\":32,\"causal\":2}", "parts[1].causal is 2");
    refused_table(good_head, "1", "},{\"head_dim\":32,\"causal\":1,\"8b\":{\"few\":[]}}",
                  "parts[1].8b.few is no array");
    refused_table(good_head, "1", "},{\"head_dim\":32,\"causal\":1,\"8b\":[]}", "parts[1].8b is no object");
    refused_table(good_head, "1", "},{\"head_dim\":32,\"causal\":1,\"4b\":{\"speed\":1}}",
                  "parts[1].4b has a member \"speed\"");
    refused_table(good_head, "1", "},7", "parts[1] is no object");
    refused_table(good_head, "1", "},{},{},{},{},{},{},{},{},{},{},{},{}", "parts is no array of 1 to 12");
    refused_table("\"tandem\":\"choice\",\"version\":1,\"device\":\"GPU\",\"sm\":90,", "1", "}", "version is 1");
    refused_table("\"tandem\":\"other\",\"version\":1,\"device\":\"GPU\",\"sm\":90,", "1", "}",
                  "no table of `tandem tune`");
    refused_table("\"tandem\":\"choice\",\"version\":2,\"device\":\"GPU\",\"sm\":-1,", "1", "}", "sm is -1");
    refused_table("\"tandem\":\"choice\",\"version\":2,\"device\":\"GPU\",\"sm\":9e1,", "1", "}",
                  "sm is missing or no whole number");
    refused_table("\"tandem\":\"choice\",\"version\":2,\"device\":\"GPU\",\"sm\":90,\"multiprocessors\":0,", "1", "}",
                  "multiprocessors is 0");
    refused_table("\"tandem\":\"choice\",\"version\":2,\"device\":5,\"sm\":90,\"multiprocessors\":1,", "1", "}",
                  "device");
    refused_table(
        "\"tandem\":\"choice\",\"version\":2,\"multiprocessors\":1,\"device\":\""
        "0123456789012345678901234567890123456789012345678901234567"
        "89012345678901\",\"sm\":90,",
        "1", "}", "device");
    refused_table("\"tandem\":\"choice\",\"version\":2,\"device\":\"GPU\",\"sm\":90,\"x\":0,", "1", "}", "\"x\"");
    refused("[]", "no table of `tandem tune`");
    refused("7", "no JSON");
    refused("", "no JSON");
    refused("{}", "no table of `tandem tune`");
    free(text);

    text = malloc(2u << 20);
    assert_non_null(text);
    memset(text, '[', 2u << 20);
    assert_int_equal(td_tuning_parse(text, 2u << 20, &table, why, sizeof why), TANDEM_ERROR_ARG);
    assert_non_null(strstr(why, "2097152 bytes"));
    assert_int_equal(td_tuning_parse(text, 1u << 20, &table, why, sizeof why), TANDEM_ERROR_ARG); /* too deep */
    free(text);
}

/* --- Plans --- */

static uint32_t planned(const tandem_attention *op, const td_target *target)
{
    td_plan plan __attribute__((cleanup(td_plan_free))) = {0};
    char why[200] = "";

    if (td_plan_attention(op, target, &plan, NULL, why, sizeof why) != TANDEM_OK)
        fail_msg("%s", why);
    return plan.precision;
}

/* Of batch 4, 32 heads: from which n on the rule takes 8B. */
static const struct {
    uint32_t dim, causal, from;
} borders[] = {{128, 0, 1063}, {64, 0, 1745}, {128, 1, 1731}, {64, 1, 3102}};

static void test_plans(void **state)
{
    td_tuning_table mine = model(1);
    mine.sm = 90;
    td_target target = td_target_for_stream(90);
    tandem_attention op = op_of(1, 2, 2, 1024, 1024, 128, 0);

    (void)state;
    target.twin = true;
    target.tuning = &mine;
    assert_int_equal(planned(&op, &target), TANDEM_PRECISION_F16);
    tandem_attention longer = op_of(1, 2, 2, 4096, 4096, 128, 0);
    assert_int_equal(planned(&longer, &target), TANDEM_PRECISION_8B);
    op.precision = TANDEM_PRECISION_4B; /* AUTO alone goes by it */
    assert_int_equal(planned(&op, &target), TANDEM_PRECISION_4B);
    op.precision = TANDEM_PRECISION_AUTO;

    /* What the table was not measured for goes by the rule: types, strides, smoothing, granularity, scales, dims. */
    tandem_attention other = op;
    other.q.dtype = other.k.dtype = other.v.dtype = TANDEM_DTYPE_F32;
    assert_int_equal(planned(&other, &target), TANDEM_PRECISION_8B);
    other = op;
    other.k.stride_row += 4;
    assert_int_equal(planned(&other, &target), TANDEM_PRECISION_8B);
    other = op;
    other.smooth = TANDEM_SMOOTH_K;
    assert_int_equal(planned(&other, &target), TANDEM_PRECISION_8B);
    other = op;
    other.granularity = TANDEM_GRANULARITY_TOKEN;
    assert_int_equal(planned(&other, &target), TANDEM_PRECISION_8B);
    other = op;
    other.scale = -1;
    assert_int_equal(planned(&other, &target), TANDEM_PRECISION_8B);
    other = op_of(1, 2, 2, 1024, 1024, 32, 0);
    assert_int_equal(planned(&other, &target), TANDEM_PRECISION_8B);
    /* And other GPUs and other kernels: those of command buffers. */
    td_target small = td_target_for_sm(89);
    small.twin = true;
    small.tuning = &mine;
    assert_int_equal(planned(&op, &small), TANDEM_PRECISION_8B);
    mine.sm = 89;
    assert_int_equal(planned(&op, &small), TANDEM_PRECISION_F16);
    mine.sm = 90;
    const td_target inline_one = {.sm = 90, .twin = true, .tuning = &mine};
    static const struct {
        uint32_t dim, causal, last_f16, first_8b;
    } inline_borders[] = {{128, 0, 1024, 2048}, {128, 1, 2048, 3328}, {64, 0, 1536, 2048}, {64, 1, 2560, 4096}};
    for (int i = 0; i < 4; i++) {
        const tandem_attention below = op_of(4, 32, 32, inline_borders[i].last_f16, inline_borders[i].last_f16,
                                             inline_borders[i].dim, inline_borders[i].causal);
        const tandem_attention from = op_of(4, 32, 32, inline_borders[i].first_8b, inline_borders[i].first_8b,
                                            inline_borders[i].dim, inline_borders[i].causal);

        assert_int_equal(planned(&below, &inline_one), TANDEM_PRECISION_F16);
        assert_int_equal(planned(&from, &inline_one), TANDEM_PRECISION_8B);
        assert_int_equal(td_tuning_rule_inline(&below, 0), TANDEM_PRECISION_F16);
    }

    /* The rule. */
    tandem_attention few = op_of(1, 2, 2, 1024, 255, 64, 0);
    assert_int_equal(td_tuning_rule(&few), TANDEM_PRECISION_F16);
    few.kv_len = 256;
    assert_int_equal(td_tuning_rule(&few), TANDEM_PRECISION_8B);
    /* The rule where F16 needs no prologue. */
    target.tuning = NULL;
    for (int i = 0; i < 4; i++)
        for (uint32_t n = borders[i].from - 1; n <= 20000; n++) {
            const tandem_attention at = op_of(4, 32, 32, n, n, borders[i].dim, borders[i].causal);

            assert_int_equal(td_attention_precision(&at, &target),
                             n < borders[i].from ? TANDEM_PRECISION_F16 : TANDEM_PRECISION_8B);
        }
    const tandem_attention step = op_of(8, 32, 32, 1, 32768, 128, 0), group = op_of(1, 8, 1, 1024, 8192, 128, 0);
    assert_int_equal(planned(&step, &target), TANDEM_PRECISION_F16);
    assert_int_equal(planned(&group, &target), TANDEM_PRECISION_8B);

    /* The same without a plan. */
    assert_int_equal(td_attention_precision(&step, &target), TANDEM_PRECISION_F16);
    assert_int_equal(td_attention_precision(&group, &target), TANDEM_PRECISION_8B);
    other = group;
    other.precision = TANDEM_PRECISION_4B;
    assert_int_equal(td_attention_precision(&other, &target), TANDEM_PRECISION_4B);
}

/* A text without its lines' ends and C's quotes. */
static char *read_words(const char *name)
{
    const char *source = getenv("TANDEM_SOURCE");
    char path[4096], *text = calloc(1, 1 << 17);
    size_t length = 0;

    snprintf(path, sizeof path, "%s/%s", source ? source : "..", name);
    FILE *file = fopen(path, "r");
    assert_true(file && text);
    for (int c; (c = fgetc(file)) != EOF && length < (1 << 17) - 1;) {
        if (c == '\\') /* of "\n" */
            c = fgetc(file) == 'n' ? ' ' : c;
        if (c != '"' && (!isspace(c) || (length && text[length - 1] != ' ')))
            text[length++] = isspace(c) ? ' ' : (char)c;
    }
    fclose(file);
    return text;
}

/* The documents say where the rule changes, to 50 queries and keys. */
static void test_documents(void **state)
{
    static const struct {
        const char *name, *words;
    } documents[] = {
        {"engine_plugin/tool/tune.c", "from about %u queries and keys on for head dim 128, %u for 64, with a causal mask %u and %u"},
        {"engine_plugin/INTEGRATION.md", "at about %u for head dim 128, %u for 64, with a causal mask %u and %u"},
    };
    uint32_t at[4];

    (void)state;
    for (int i = 0; i < 4; i++)
        at[i] = (borders[i].from + 25) / 50 * 50;
    for (size_t i = 0; i < sizeof documents / sizeof *documents; i++) {
        char *text = read_words(documents[i].name), words[200];

        snprintf(words, sizeof words, documents[i].words, at[0], at[1], at[2], at[3]);
        if (!strstr(text, words))
            fail_msg("%s does not say \"%s\"", documents[i].name, words);
        free(text);
    }
}

/* What is reckoned with is what plans have. */
static void test_tiles(void **state)
{
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256}, heads[] = {1, 4, 24}, lengths[] = {1, 100, 700, 1500, 4096};

    (void)state;
    for (int stream = 0; stream < 2; stream++)
        for (int i = 0; i < 6 * 3 * 5 * 5 * 2; i++) {
            const uint32_t d = dims[i % 6], h = heads[i / 6 % 3], q = lengths[i / 18 % 5], kv = lengths[i / 90 % 5];
            td_target target = stream ? td_target_for_stream(90) : td_target_for_sm(90);
            tandem_attention op = op_of(1, h, h, q, kv, d, (uint32_t)i / 450);

            target.twin = true;
            for (op.precision = TANDEM_PRECISION_F16; op.precision <= TANDEM_PRECISION_8B; op.precision++) {
                const td_tiles t = td_attention_tiles(&op, &target, op.precision);
                td_plan plan __attribute__((cleanup(td_plan_free))) = {0};
                char why[200] = "";

                if (td_plan_attention(&op, &target, &plan, NULL, why, sizeof why) != TANDEM_OK)
                    fail_msg("%s", why);
                const td_record *last = &plan.records[plan.record_count - 1];
                if (strstr(last->kernel->entry, "attn_f16_wgmma")) {
                    td_params_attention_f16 p;

                    memcpy(&p, last->params, sizeof p);
                    assert_int_equal(t.rows, p.tile_rows);
                    assert_int_equal(t.tiles, p.works);
                    assert_int_equal(t.pair, p.pair);
                    assert_int_equal(t.shares, p.teams);
                    assert_int_equal(t.walkers, p.walkers);
                    assert_int_equal(t.blocks, p.blocks);
                } else {
                    td_params_attention p;

                    memcpy(&p, last->params, sizeof p);
                    assert_int_equal(t.rows, p.tile_rows);
                    assert_int_equal(t.shares, p.splits);
                    assert_int_equal(t.blocks, strstr(last->kernel->entry, "wgmma") ? p.walkers : 0);
                    if (t.blocks)
                        assert_int_equal(t.chunk_planes, p.chunk_planes);
                    assert_int_equal(t.pair, 1);
                    assert_int_equal(t.tiles, h * ((q + p.tile_rows - 1) / p.tile_rows));
                }
                assert_true(strstr(last->kernel->entry, "wgmma") ? t.groups <= last->block[0] / 128 : t.groups == 1);
            }
        }
}

/* The tables of this build are as good as any that is read. */
static void test_shipped(void **state)
{
    char why[200] = "";

    (void)state;
    assert_null(td_tuning_shipped(0, "CPU"));
    assert_null(td_tuning_shipped(0, ""));
    assert_null(td_tuning_shipped(90, ""));
    assert_null(td_tuning_shipped(90, "a GPU that nobody has"));
    assert_null(td_tuning_shipped(89, "NVIDIA H200"));
    td_tuning_table mine = model(1);
    mine.sm = 90;
    assert_true(td_tuning_fits(&mine, 90, "a model", why, sizeof why));
    assert_false(td_tuning_fits(&mine, 89, "a model", NULL, 0));
    assert_false(td_tuning_fits(&mine, 90, "another", why, sizeof why));
    assert_string_equal(why, "it was measured on 'a model' (compute capability 9.0), this is 'another' (9.0)");

    const td_tuning_table *table = td_tuning_shipped(90, "NVIDIA H200");
    if (!table)
        return;
    assert_int_equal(table->multiprocessors, 132);
    assert_true(table->count >= 4 && table->count <= TD_TUNING_PARTS);
    for (uint32_t p = 0; p < table->count; p++)
        for (uint32_t i = 0; i < TD_TUNING_PLANES; i++)
            for (uint32_t j = 0; j < TD_TUNING_LENGTHS; j++) {
                const td_tuning_part *part = &table->parts[p];
                tandem_attention op = op_of(1, td_tuning_planes(i), td_tuning_planes(i), td_tuning_length(j),
                                            td_tuning_length(j), part->head_dim, part->causal);

                assert_int_not_equal(td_tuning_precision(table, &op), TANDEM_PRECISION_AUTO);
                op.q_len = 1;
                assert_int_not_equal(td_tuning_precision(table, &op), TANDEM_PRECISION_AUTO);
                for (int c = 0; c < TD_TUNING_COSTS; c++)
                    assert_true(part->costs[c].kernel[i][j] >= 0 && part->costs[c].few[i][j] >= 0);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_borders),
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_model_as_measured),
        cmocka_unit_test(test_multiprocessors),
        cmocka_unit_test(test_walks_out_of_step),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_rule_changes_once),
        cmocka_unit_test(test_rule_as_measured),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_shipped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
