/* `tandem accuracy`: the paper's tables of accuracy, on tensors with outliers or on those of a file.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A row is a mode of the product, run as a session runs it, or a variant of it (kernels/cpu/variants.h). Every row of a
 * table sees the same heads; its metrics are taken head by head, against float64, then averaged, and the worst is kept.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "demo/tool_accuracy.h"

/* What the tables are measured on. */
#define CHANNELS_AND_TOKENS                                                                             \
    .q_offset = 0.5, .k_offset = 2.9, .spread = 0.5, .q_outlier = 6.5, .k_outlier = 4.5, .outliers = 4, \
    .token_spread = 0.35
static const tool_family family_video = {
    .name = "channel offsets and outliers in Q and K, token norms spread, a sink, V with offsets N(0,1)",
    CHANNELS_AND_TOKENS,
    .sink = 8,
    .v_normal = 1};
static const tool_family family_long = {
    .name = "the same, longer, V with offsets 3 N(0,1)", CHANNELS_AND_TOKENS, .sink = 8, .v_normal = 3};
static const tool_family family_biased = {.name = "the same, longer, V with an offset of 8 to 9 in every channel",
                                          CHANNELS_AND_TOKENS,
                                          .sink = 8,
                                          .v_offset = 8};
static const tool_family family_flat = {.name = "Q and K of N(0,1), V with an offset of 8 to 9 in every channel",
                                        .v_offset = 8};
static const tool_family family_normal = {.name = "N(0,1)"};
static const tool_family family_outlier = {.name =
                                               "N(0,1), offsets of 8 in six channels of Q and K, of 10 N(0,1) in V's",
                                           .q_outlier = 8,
                                           .k_outlier = 8,
                                           .outliers = 6,
                                           .v_normal = 10};

enum { MAX_ROWS = 10, MAX_CHECKS = 10, MAX_SAMPLE_SETS = 8 };

typedef struct row {
    const char *name;
    bool product; /* a mode of the library: precision and smooth; else `how` */
    uint32_t precision, smooth;
    td_arithmetic how;
    tool_metrics paper, paper_worst; /* all 0: the paper has no such row; NAN: not that number */
    double bound;                    /* of the average relative L1; 0: none */
    tool_metrics average, worst;
} row;

/* The average relative L1 of row `worse` is at least `factor` times that of row `better`; the worst head's at least 0.9
 * times, since the two rows may have different worst heads. */
typedef struct check {
    int worse, better;
    double factor;
    bool held;
} check;

typedef struct table {
    const char *key, *also, *title;
    const char *theirs; /* whose numbers stand beside ours; NULL: the paper's */
    const tool_family *family;
    uint32_t q_len, kv_len, layers, heads;
    uint32_t row_count, check_count;
    row rows[MAX_ROWS];
    check checks[MAX_CHECKS];
} table;

typedef struct accuracy {
    const char *in, *json, *backend, *only, *figures;
    bool quick, causal;
    uint32_t threads;
    char why[512];
    struct {
        const tool_family *family;
        uint32_t q_len, kv_len;
        tool_samples samples;
    } sets[MAX_SAMPLE_SETS];
    uint32_t set_count;
    tool_samples file;
    tool_cuda *cuda;
} accuracy;

static td_arithmetic named(const char *name)
{
    td_arithmetic how;
    td_arithmetic_named(name, &how);
    return how;
}

static row *add_row(table *t, const char *name, td_arithmetic how)
{
    row *r = &t->rows[t->row_count++];
    *r = (row){.name = name, .how = how};
    return r;
}

static row *add_mode(table *t, const char *name, uint32_t precision, uint32_t smooth)
{
    row *r = &t->rows[t->row_count++];
    *r = (row){.name = name, .product = true, .precision = precision, .smooth = smooth};
    return r;
}

static void paper(row *r, double cosine, double l1, double rmse)
{
    r->paper = (tool_metrics){cosine, l1, rmse};
}

static void expect(table *t, int worse, int better, double factor)
{
    t->checks[t->check_count++] = (check){.worse = worse, .better = better, .factor = factor};
}

static void make_smoothing(table *t)
{
    static const struct {
        const char *name, *mode;
        uint32_t smooth;
        tool_metrics average, worst;
    } rows[] = {{"None", "4b", 0, {.8004, .3906, .2223}, {.0483, .9979, .7784}},
                {"HadmdAttn", "hadamard", 0, {.7977, .3782, .2180}, {.0485, .9978, .7785}},
                {"SmoothAttn", "smoothattn", 0, {.9021, .3383, .1952}, {.6449, .9262, .7204}},
                {"Smooth K", "4b", TANDEM_SMOOTH_K, {.9807, .1493, .0743}, {.9086, .3565, .1464}},
                {"Smooth Q", "4b", TANDEM_SMOOTH_Q, {.9830, .1250, .0712}, {.9310, .2989, .2195}},
                {"Smooth Q+K", "4b", TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K, {.9946, .0648, .0334}, {.9671, .1956, .0779}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        td_arithmetic how = named(rows[i].mode);
        how.smooth = rows[i].smooth;
        row *r = add_row(t, rows[i].name, how);
        r->paper = rows[i].average;
        r->paper_worst = rows[i].worst;
    }
    expect(t, 0, 1, 0.9); /* as good as equal, in the paper too */
    expect(t, 0, 2, 1.1);
    expect(t, 1, 2, 1);
    expect(t, 2, 3, 1);
    expect(t, 3, 4, 1);
    expect(t, 4, 5, 1.3);
}

static void make_exact_pv(table *t)
{
    td_arithmetic how = named("4b");
    how.pv = TD_PV_F32;
    how.smooth = 0;
    paper(add_row(t, "INT4, not smoothed", how), NAN, NAN, NAN);
    how.smooth = TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K;
    paper(add_row(t, "INT4, smooth Q+K", how), NAN, NAN, NAN);
    expect(t, 0, 1, 1.8);
}

static void make_granularity(table *t)
{
    static const struct {
        const char *name;
        uint32_t granularity;
        tool_metrics average, worst;
    } rows[] = {{"Per token", TANDEM_GRANULARITY_TOKEN, {.9945, .0649, .0335}, {.9676, .1916, .0775}},
                {"Per thread", TANDEM_GRANULARITY_THREAD_ADA, {.9945, .0622, .0313}, {.9672, .1932, .0776}},
                {"Per thread, wgmma", TANDEM_GRANULARITY_THREAD_HOPPER, {0, 0, 0}, {0, 0, 0}},
                {"Per warp", TANDEM_GRANULARITY_WARP, {.9945, .0648, .0334}, {.9671, .1956, .0779}},
                {"Per block", TANDEM_GRANULARITY_BLOCK, {.9803, .1492, .0744}, {.9068, .3615, .1490}},
                {"Per tensor", TANDEM_GRANULARITY_TENSOR, {.9715, .1800, .0865}, {.8585, .4687, .2261}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        td_arithmetic how = named("4b");
        how.granularity = rows[i].granularity;
        row *r = add_row(t, rows[i].name, how);
        r->paper = rows[i].average;
        r->paper_worst = rows[i].worst;
    }
    expect(t, 1, 0, 1);
    expect(t, 1, 2, 0.98);
    expect(t, 3, 1, 1.02);
    expect(t, 4, 3, 1.02);
    expect(t, 5, 4, 1.02);
    expect(t, 5, 1, 1.3);
}

static void make_pv(table *t)
{
    static const struct {
        const char *name;
        td_pv_kind kind;
        tool_metrics average, worst;
    } rows[] = {{"INT8", TD_PV_INT8, {.7705, .5618, .5044}, {.1952, .9579, 1.4483}},
                {"E5M2", TD_PV_E5M2, {.9920, .0905, .0903}, {.9494, .2327, .2361}},
                {"E4M3", TD_PV_E4M3, {.9944, .0683, .0347}, {.9670, .1956, .0779}},
                {"FP16", TD_PV_F16, {.9945, .0649, .0335}, {.9676, .1916, .0775}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        td_arithmetic how = named("4b");
        how.pv = rows[i].kind;
        how.accumulator = TD_ACCUMULATOR_F32;
        row *r = add_row(t, rows[i].name, how);
        r->paper = rows[i].average;
        r->paper_worst = rows[i].worst;
    }
    expect(t, 0, 1, 1.1);
    expect(t, 1, 2, 1.02);
    expect(t, 2, 3, 1.01);
}

static void make_smooth_v(table *t)
{
    td_arithmetic how = named("4b");
    how.two_level = false;
    paper(add_row(t, "one level", how), .9825, .1980, .2387);
    how.smooth |= TANDEM_SMOOTH_V;
    paper(add_row(t, "one level, smooth V", how), .9975, .0406, .0773);
    how.two_level = true;
    how.smooth &= ~(uint32_t)TANDEM_SMOOTH_V;
    add_row(t, "two levels", how);
    how.smooth |= TANDEM_SMOOTH_V;
    add_row(t, "two levels, smooth V", how);
    expect(t, 0, 1, 2);
    expect(t, 2, 3, 1.05);
    expect(t, 0, 2, 2);
}

static void make_ablation(table *t)
{
    td_arithmetic how = named("4b");
    how.smooth = TANDEM_SMOOTH_K;
    how.granularity = TANDEM_GRANULARITY_BLOCK;
    how.two_level = false;
    paper(add_row(t, "INT4 + FP8", how), .8004, .3906, NAN);
    how.granularity = TANDEM_GRANULARITY_THREAD_ADA;
    paper(add_row(t, "+ per thread", how), .9249, .3127, NAN);
    how.two_level = true;
    paper(add_row(t, "+ two levels", how), .9498, .2731, NAN);
    how.smooth |= TANDEM_SMOOTH_Q;
    paper(add_row(t, "+ smooth Q", how), .9946, .0648, NAN);
    expect(t, 0, 1, 1.02);
    expect(t, 1, 2, 1.1);
    expect(t, 2, 3, 1.2);
}

static void make_two_level(table *t)
{
    td_arithmetic how = named("8b");
    how.two_level = false;
    paper(add_row(t, "one level", how), .9939, .17843, NAN);
    how.two_level = true;
    paper(add_row(t, "two levels, 64 keys", how), .9997, .02133, NAN);
    how.flush_keys = 128;
    add_row(t, "two levels, 128 keys", how);
    how.flush_keys = 256;
    add_row(t, "two levels, 256 keys", how);
    how.flush_keys = 64;
    how.accumulator = TD_ACCUMULATOR_F32;
    add_row(t, "float accumulator", how);
    expect(t, 0, 1, 4);
    expect(t, 0, 3, 4);
    expect(t, 2, 1, 1);
    expect(t, 3, 2, 1);
    expect(t, 1, 4, 1);
}

static void make_v_scale(table *t)
{
    td_arithmetic how = named("4b");
    paper(add_row(t, "Per channel", how), .9946, .0648, NAN);
    how.v_scale = TD_V_BLOCK;
    paper(add_row(t, "Per block", how), .9930, .0651, NAN);
    how.v_scale = TD_V_TENSOR;
    paper(add_row(t, "Per tensor", how), .9922, .06777, NAN);
    expect(t, 1, 0, 1.02);
    expect(t, 2, 0, 1.02);
    expect(t, 2, 1, 0.9); /* as good as equal */
}

static void make_variants(table *t)
{
    paper(add_row(t, "SageAttention1", named("sage1")), .99995, .00733, NAN);
    paper(add_mode(t, "8b", TANDEM_PRECISION_8B, 0), .99982, .01573, NAN);
    paper(add_mode(t, "4b", TANDEM_PRECISION_4B, 0), .99460, .06480, NAN);
    paper(add_mode(t, "4b without smooth Q", TANDEM_PRECISION_4B, TANDEM_SMOOTH_K), .94980, .27305, NAN);
    add_mode(t, "f16", TANDEM_PRECISION_F16, 0);
    add_row(t, "FA3-like FP8", named("fa3fp8"));
    add_row(t, "FA3-like, per tensor", named("fa3fp8-tensor"));
    expect(t, 1, 0, 1);
    expect(t, 2, 1, 1.5);
    expect(t, 3, 2, 1.2);
    expect(t, 0, 4, 2);
    expect(t, 5, 1, 1.2);
    expect(t, 6, 1, 1.2);
}

static void make_settings(table *t, bool outliers)
{
    row *r = add_mode(t, "8b", TANDEM_PRECISION_8B, 0);
    paper(r, NAN, outliers ? .0033 : .0383, NAN);
    r->bound = outliers ? .0033 : .0383;
    add_mode(t, "8b, smooth V", TANDEM_PRECISION_8B, TANDEM_SMOOTH_K | TANDEM_SMOOTH_V);
    add_mode(t, "4b", TANDEM_PRECISION_4B, 0)->bound = outliers ? .012 : 0;
    add_mode(t, "4b, not smoothed", TANDEM_PRECISION_4B, TANDEM_SMOOTH_NONE);
    add_mode(t, "f16", TANDEM_PRECISION_F16, 0);
    add_row(t, "SageAttention1", named("sage1"));
    paper(add_row(t, "FA3-like, per tensor", named("fa3fp8-tensor")), NAN, outliers ? .0546 : .0530, NAN);
    if (outliers) {
        expect(t, 3, 2, 1.5);
        expect(t, 0, 1, 1.2);
        expect(t, 6, 0, 4);
    }
    expect(t, 2, 0, outliers ? 1.1 : 1.5);
    expect(t, 0, 4, 3);
    expect(t, 6, 0, 1);
}

enum { TABLES = 11 };
static void make_tables(table *t, bool quick)
{
    const uint32_t q = quick ? 256 : 1024, kv = quick ? 1024 : 4096, layers = 4, heads = 2;
    static const char *const theirs = "their kernels, on an H200";
    const table tables[TABLES] = {
        {.key = "4", .also = "17", .title = "Smoothing: INT4 Q K per thread, E4M3 P V", .family = &family_video},
        {.key = "5",
         .title = "INT4 Q K, P V exact (the paper: Lambada 81.5% -> 72.6%, smoothed 80.8%)",
         .family = &family_video},
        {.key = "6", .also = "15", .title = "Granularity of Q and K: INT4, smooth Q+K", .family = &family_video},
        {.key = "7",
         .also = "16",
         .title = "Types of P and V: INT4 Q K smoothed, 32-bit accumulator",
         .family = &family_video},
        {.key = "10", .title = "Smooth V: 4b on the 13-bit accumulator", .family = &family_biased},
        {.key = "ablation", .title = "Rebuttal: one technique after the other, K smoothed", .family = &family_long},
        {.key = "two-level", .title = "Rebuttal: two levels of accumulation, 8b", .family = &family_flat},
        {.key = "v-scale", .title = "Rebuttal: what shares a scale of V, 4b", .family = &family_outlier},
        {.key = "variants", .title = "Rebuttal: SageAttention1, 8b, 4b; baselines", .family = &family_video},
        {.key = "normal", .title = "Batch 1, 8 heads, 4096 x 4096, d 128", .theirs = theirs, .family = &family_normal},
        {.key = "outliers", .title = "The same with outliers", .theirs = theirs, .family = &family_outlier}};
    for (int i = 0; i < TABLES; i++) {
        t[i] = tables[i];
        t[i].q_len = q;
        t[i].kv_len = kv;
        t[i].layers = layers;
        t[i].heads = heads;
        if (t[i].family == &family_biased || t[i].family == &family_long ||
            t[i].family == &family_flat) { /* what one level loses shows in long sums */
            t[i].kv_len = 8192;
            t[i].q_len = quick ? 128 : 512;
            t[i].layers = quick ? 1 : 2;
        }
        if (t[i].family == &family_normal || t[i].family == &family_outlier) {
            t[i].kv_len = 4096;
            t[i].q_len = quick ? 256 : 4096;
            t[i].layers = 1;
            t[i].heads = 8;
        }
    }
    make_smoothing(&t[0]);
    make_exact_pv(&t[1]);
    make_granularity(&t[2]);
    make_pv(&t[3]);
    make_smooth_v(&t[4]);
    make_ablation(&t[5]);
    make_two_level(&t[6]);
    make_v_scale(&t[7]);
    make_variants(&t[8]);
    make_settings(&t[9], false);
    make_settings(&t[10], true);
}

/* The heads of a table: made once for all tables that use the same. */
static tool_samples *samples_of(accuracy *a, const table *t)
{
    if (a->in)
        return &a->file;
    uint32_t i = 0;
    while (i < a->set_count && (a->sets[i].family != t->family || a->sets[i].kv_len != t->kv_len))
        i++;
    if (i < a->set_count)
        return &a->sets[i].samples;
    if (i == MAX_SAMPLE_SETS)
        return NULL;
    a->set_count++;
    a->sets[i].family = t->family;
    a->sets[i].kv_len = t->kv_len;
    if (!tool_samples_make(&a->sets[i].samples, t->family, t->layers, t->heads, t->q_len, t->kv_len, 128, 1, a->why,
                           sizeof a->why) ||
        !tool_samples_exact(&a->sets[i].samples, a->threads, a->why, sizeof a->why))
        return NULL;
    return &a->sets[i].samples;
}

static bool run_row(accuracy *a, row *r, const tool_samples *samples)
{
    r->average = r->worst = (tool_metrics){0};
    r->worst.cosine = INFINITY;
    for (uint32_t i = 0; i < samples->count; i++) {
        const tool_sample *s = &samples->items[i];
        const size_t n = (size_t)s->head.q_len * s->head.dim;
        float *o = malloc(n * sizeof *o);
        bool done = o != NULL;
        if (done && r->product)
            done = tool_run_mode(&s->head, r->precision, r->smooth, a->cuda, o, a->threads, a->why, sizeof a->why);
        else if (done)
            done = td_variant_attention(&r->how, &s->head, o, a->threads);
        if (!done) {
            free(o);
            return false;
        }
        const tool_metrics m = tool_measure(o, s->exact, n);
        free(o);
        r->average.cosine += m.cosine / samples->count;
        r->average.l1 += m.l1 / samples->count;
        r->average.rmse += m.rmse / samples->count;
        r->worst.cosine = fmin(r->worst.cosine, m.cosine);
        r->worst.l1 = fmax(r->worst.l1, m.l1);
        r->worst.rmse = fmax(r->worst.rmse, m.rmse);
    }
    return true;
}

static void print_metrics(tool_metrics m, bool there)
{
    const double values[] = {m.cosine * 100, m.l1, m.rmse};
    static const char *const formats[] = {" %8.3f%%", " %7.4f", " %7.4f"};
    static const int widths[] = {10, 8, 8};
    for (int i = 0; i < 3; i++)
        if (there && !isnan(values[i]))
            printf(formats[i], values[i]);
        else
            printf("%*s", widths[i], there ? "-" : "");
}

static bool has(tool_metrics m)
{
    return m.cosine != 0 || m.l1 != 0;
}

static void print_table(const accuracy *a, const table *t, const tool_samples *samples)
{
    bool any_paper = false, any_worst = false;
    for (uint32_t i = 0; i < t->row_count; i++) {
        any_paper = any_paper || (has(t->rows[i].paper) && !(isnan(t->rows[i].paper.l1)));
        any_worst = any_worst || has(t->rows[i].paper_worst);
    }
    printf("Table %s%s%s. %s\n", t->key, t->also ? " (average), " : "", t->also ? t->also : "", t->title);
    const td_head *h = &samples->items[0].head;
    printf("  on %s: %u heads, %u x %u, d %u%s\n", a->in ? a->in : t->family->name, samples->count, h->q_len, h->kv_len,
           h->dim, h->causal ? ", causal" : "");
    printf("  %-22s| %-25s | %-25s", "", "ours, average", "ours, worst");
    if (any_paper)
        printf(" | %-26s", t->theirs ? t->theirs : "the paper's, average");
    printf("%s\n", any_worst ? "| the paper's, worst" : "");
    printf("  %-22s|   CosSim      L1    RMSE |   CosSim      L1    RMSE%s%s\n", "",
           any_paper ? "  |   CosSim      L1    RMSE" : "", any_worst ? " |   CosSim      L1    RMSE" : "");
    for (uint32_t i = 0; i < t->row_count; i++) {
        const row *r = &t->rows[i];
        printf("  %-22s|", r->name);
        print_metrics(r->average, true);
        printf(" |");
        print_metrics(r->worst, true);
        if (any_paper && has(r->paper)) {
            printf("  |");
            print_metrics(r->paper, true);
        }
        if (any_worst && has(r->paper_worst)) {
            printf(" |");
            print_metrics(r->paper_worst, true);
        }
        if (r->bound > 0 && !a->in && !a->quick)
            printf("  at most %g: %s", r->bound, r->average.l1 <= r->bound ? "yes" : "NO");
        printf("\n");
    }
    for (uint32_t i = 0; i < t->check_count; i++)
        if (!t->checks[i].held)
            printf("  order NOT held: \"%s\" is not at least %.2f times as far off as \"%s\"\n",
                   t->rows[t->checks[i].worse].name, t->checks[i].factor, t->rows[t->checks[i].better].name);
    printf("\n");
    fflush(stdout);
}

static void judge(table *t)
{
    for (uint32_t i = 0; i < t->check_count; i++) {
        check *c = &t->checks[i];
        const row *worse = &t->rows[c->worse], *better = &t->rows[c->better];
        c->held = worse->average.l1 >= c->factor * better->average.l1 && worse->worst.l1 >= 0.9 * better->worst.l1;
    }
}

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *json_metrics(tool_metrics m)
{
    return json_pack("{s:o, s:o, s:o}", "cosine", number(m.cosine), "relative_l1", number(m.l1), "rmse",
                     number(m.rmse));
}

static json_t *json_table(const accuracy *a, const table *t, const tool_samples *samples)
{
    const td_head *h = &samples->items[0].head;
    json_t *rows = json_array(), *checks = json_array();
    bool all = true;
    for (uint32_t i = 0; i < t->row_count; i++) {
        const row *r = &t->rows[i];
        json_t *one = json_pack("{s:s, s:s, s:o, s:o}", "name", r->name, "run_as", r->product ? "mode" : "variant",
                                "average", json_metrics(r->average), "worst", json_metrics(r->worst));
        if (has(r->paper))
            json_object_set_new(one, t->theirs ? "theirs" : "paper", json_metrics(r->paper));
        if (has(r->paper_worst))
            json_object_set_new(one, "paper_worst", json_metrics(r->paper_worst));
        if (r->bound > 0 && !a->in && !a->quick)
            json_object_set_new(one, "bound", json_real(r->bound));
        json_array_append_new(rows, one);
    }
    for (uint32_t i = 0; i < t->check_count; i++) {
        const check *c = &t->checks[i];
        all = all && c->held;
        json_array_append_new(checks, json_pack("{s:s, s:s, s:f, s:b}", "worse", t->rows[c->worse].name, "better",
                                                t->rows[c->better].name, "factor", c->factor, "held", c->held));
    }
    json_t *it =
        json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:b, s:o, s:o}", "table", t->key, "title", t->title, "tensors",
                  a->in ? a->in : t->family->name, "heads", (int)samples->count, "q_len", (int)h->q_len, "kv_len",
                  (int)h->kv_len, "head_dim", (int)h->dim, "order_holds", all, "order", checks, "rows", rows);
    if (t->also)
        json_object_set_new(it, "also", json_string(t->also));
    return it;
}

static int run(accuracy *a)
{
    static table tables[TABLES];
    make_tables(tables, a->quick);
    json_t *json = json_array();
    bool any = false;
    printf("Ours beside the paper's. The tensors differ (the paper's are CogVideoX's own), so compare the order, not "
           "the digits.\n\n");
    for (int i = 0; i < TABLES; i++) {
        table *t = &tables[i];
        if (a->only && strcmp(a->only, t->key) != 0 && (!t->also || strcmp(a->only, t->also) != 0))
            continue;
        any = true;
        tool_samples *samples = samples_of(a, t);
        if (!samples) {
            json_decref(json);
            return tool_fail("accuracy", "%s", a->why);
        }
        for (uint32_t r = 0; r < t->row_count; r++)
            if (!run_row(a, &t->rows[r], samples)) {
                json_decref(json);
                return tool_fail("accuracy", "%s: %s", t->rows[r].name, a->why[0] ? a->why : "out of memory");
            }
        judge(t);
        print_table(a, t, samples);
        json_array_append_new(json, json_table(a, t, samples));
    }
    if (!any) {
        json_decref(json);
        return tool_usage("accuracy",
                          "--table \"%s\" is none of 4, 5, 6, 7, 10, 15, 16, 17, ablation, two-level, "
                          "v-scale, variants, normal, outliers",
                          a->only);
    }
    json_t *root =
        json_pack("{s:s, s:s, s:o}", "tandem", "accuracy", "backend", a->cuda ? "cuda" : "cpu", "tables", json);
    const bool written = !a->json || json_dump_file(root, a->json, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) == 0;
    json_decref(root);
    return written ? TOOL_OK : tool_fail("accuracy", "--json \"%s\" could not be written", a->json);
}

int tool_accuracy(int argc, char **argv)
{
    accuracy a = {.threads = tool_cores()};
    const tool_option options[] = {{"--in", &a.in, NULL},           {"--json", &a.json, NULL},
                                   {"--backend", &a.backend, NULL}, {"--table", &a.only, NULL},
                                   {"--figures", &a.figures, NULL}, {"--quick", NULL, &a.quick},
                                   {"--causal", NULL, &a.causal}};
    if (tool_parse("accuracy", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    const int backend = a.backend ? tool_word(a.backend, (const char *const[]){"cpu", "cuda", NULL}) : 0;
    if (backend < 0)
        return tool_usage("accuracy", "--backend \"%s\" is none of cpu, cuda", a.backend);
    if (a.causal && !a.in)
        return tool_usage("accuracy", "--causal needs --in");
    int status = TOOL_OK;
    if (backend == 1 && !(a.cuda = tool_cuda_open(a.why, sizeof a.why)))
        status = tool_fail("accuracy", "%s", a.why);
    if (!status && a.in &&
        (!tool_samples_read(&a.file, a.in, 0, a.causal, a.why, sizeof a.why) ||
         !tool_samples_exact(&a.file, a.threads, a.why, sizeof a.why)))
        status = tool_fail("accuracy", "%s", a.why);
    if (!status)
        status = a.figures ? tool_figures(a.figures, a.in ? &a.file : NULL) : run(&a);
    for (uint32_t i = 0; i < a.set_count; i++)
        tool_samples_free(&a.sets[i].samples);
    tool_samples_free(&a.file);
    tool_cuda_close(a.cuda);
    return status;
}
