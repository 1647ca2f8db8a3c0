/* `tandem bench attention`: how long attention takes (engine_plugin/tool/attention_times.h), beside cuDNN's in the same
 * process.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/tool/attention_times.h"
#include "interop/cu/driver.h"
#include "tandem/tandem.h"
#include "tests/bench/against.h"
#include "tests/bench/bench.h"
#include "tests/bench/cudnn.h"

enum { MOST_SHAPES = 96 };
_Static_assert(6 * MOST_SHAPES <= BENCH_TARGETS, "expect() has up to six targets a shape");

typedef struct bench {
    times times;
    const char *json, *auto_by; /* auto_by: the rule or a table */
    bool quick, strict, smooth_v;
    bench_cudnn *cudnn;
    char no_cudnn[256];
    bench_targets targets;
    json_t *before; /* --against */
    double slower_percent;
} bench;

static const char *const kind_names[] = {"kernel", "inline", "end to end", "cudnn"};
static const char *const protocol_names[TIMES_PROTOCOLS] = {"sustained", "one call at a time"};

static bool has_number(const char *list, uint32_t number)
{
    char word[16];
    snprintf(word, sizeof word, "%u", (unsigned)number);
    return tool_has(list, word);
}

static const char *shape_name(const times_shape *s, char text[64])
{
    snprintf(text, 64, "b%u h%-2u d%-3u n%-5u%s", (unsigned)s->batch, (unsigned)s->heads, (unsigned)s->dim,
             (unsigned)s->n, s->causal ? " causal" : "");
    return text;
}

static double tflops(const times_shape *s, double us)
{
    return 4.0 * s->batch * s->heads * s->n * s->n * s->dim / us * 1e-6 * (s->causal ? 0.5 : 1);
}

static const times_row *find_row(const times_row *rows, uint32_t count, times_kind kind, uint32_t precision)
{
    for (uint32_t i = 0; i < count; i++)
        if (rows[i].kind == kind && (kind == TIMES_PEER || rows[i].precision == precision) &&
            rows[i].us[TIMES_SUSTAINED].count)
            return &rows[i];
    return NULL;
}

/* AUTO's own time to the best of ours, end to end; NAN where there are not both. */
static double auto_to_best(const times_row *rows, uint32_t count, times_protocol p)
{
    double best = NAN;
    for (uint32_t i = 0; i < count; i++)
        if (rows[i].kind == TIMES_END_TO_END && rows[i].precision != TANDEM_PRECISION_AUTO)
            best = fmin(best, times_median(&rows[i], p));
    return times_median(find_row(rows, count, TIMES_END_TO_END, TANDEM_PRECISION_AUTO), p) / best;
}

/* What the kernels are to reach, as a ratio to cuDNN's fp16; large shapes, 8b, kernel alone. */
static double target_ratio(const times_shape *s)
{
    if (s->n == 16384)
        return s->dim == 128 ? (s->causal ? 1.86 : 1.78) : (s->causal ? 1.38 : 1.58);
    if (s->n == 4096)
        return s->dim == 128 ? (s->causal ? 1.46 : 1.60) : (s->causal ? 1.27 : 1.36);
    return 0;
}

static void expect(bench *b, const times_shape *s, const times_row *rows, uint32_t count)
{
    char name[64];
    const times_row *cudnn = find_row(rows, count, TIMES_PEER, 0), *kernel = find_row(rows, count, TIMES_KERNEL, TANDEM_PRECISION_8B);
    const times_row *whole = find_row(rows, count, TIMES_END_TO_END, TANDEM_PRECISION_8B);
    const times_row *f16 = find_row(rows, count, TIMES_KERNEL, TANDEM_PRECISION_F16);
    shape_name(s, name);
    if (b->times.cpu)
        return;
    if (b->times.inline_too) {
        const times_row *rung = find_row(rows, count, TIMES_INLINE, TANDEM_PRECISION_8B);
        bench_expect(&b->targets, times_median(kernel, TIMES_SUSTAINED) / times_median(rung, TIMES_SUSTAINED), true, 0.85,
                     "%s 8b inline, of the kernel's rate", name);
    }
    if (s->dim % 64) /* measured for that alone */
        return;
    if (!s->small && target_ratio(s) > 0)
        bench_expect(&b->targets, times_median(cudnn, TIMES_SUSTAINED) / times_median(kernel, TIMES_SUSTAINED), true,
                     target_ratio(s), "%s 8b kernel, times cuDNN fp16", name);
    if (!s->small && s->dim == 128 && (s->n == 16384 || s->n == 4096))
        bench_expect(&b->targets, times_median(kernel, TIMES_SUSTAINED) / times_median(whole, TIMES_SUSTAINED), true,
                     s->n == 16384 ? 0.93 : 0.80, "%s 8b end to end, of the kernel's rate", name);
    if (!s->small && (s->n == 16384 || s->n == 4096))
        bench_expect(&b->targets, times_median(cudnn, TIMES_SUSTAINED) / times_median(f16, TIMES_SUSTAINED), true, 0.95,
                     "%s f16 kernel, times cuDNN fp16", name);
    const times_row *automatic = find_row(rows, count, TIMES_END_TO_END, TANDEM_PRECISION_AUTO);
    /* At one clock: in sustained turns the same plan differs by what its neighbours left it of the power. */
    bench_expect(&b->targets, auto_to_best(rows, count, TIMES_ONE_CALL), false, 1.05, "%s auto end to end, to the best of ours", name);
    if (!s->small)
        bench_expect(&b->targets,
                     times_median(automatic, TIMES_SUSTAINED) / times_median(cudnn, TIMES_SUSTAINED), false, 1.05,
                     "%s auto end to end, to cuDNN fp16", name);
    else
        bench_expect(&b->targets,
                     times_median(automatic, TIMES_SUSTAINED) / times_median(cudnn, TIMES_SUSTAINED), false, 1,
                     "%s auto end to end, to cuDNN fp16", name);
    if (s->small && s->n >= 2048)
        bench_expect(&b->targets, times_median(cudnn, TIMES_SUSTAINED) / times_median(whole, TIMES_SUSTAINED), true, 1,
                     "%s 8b end to end, times cuDNN fp16", name);
}

/* "1815 MHz", or "1800-1965 MHz" where contenders had different clocks. */
static void print_clock(const times_row *rows, uint32_t count, times_protocol p)
{
    uint32_t least = UINT32_MAX, most = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t mhz = (uint32_t)rows[i].power[p].sm_mhz;
        least = mhz && mhz < least ? mhz : least;
        most = mhz > most ? mhz : most;
    }
    if (most && least == most)
        printf(", %u MHz", (unsigned)most);
    else if (most)
        printf(", %u-%u MHz", (unsigned)least, (unsigned)most);
}

static void print_protocol(const times_shape *s, const times_row *rows, uint32_t count, times_protocol p)
{
    const double cudnn_us = times_median(find_row(rows, count, TIMES_PEER, 0), p);
    printf("  %s", protocol_names[p]);
    print_clock(rows, count, p);
    for (uint32_t i = 0; i < count; i++) {
        const times_row *it = &rows[i];
        const double us = times_median(it, p);
        const bool end_to_end = it->kind == TIMES_END_TO_END;
        printf(" | %s%s%s ", it->kind == TIMES_PEER ? "" : tool_precisions[it->precision], it->kind == TIMES_PEER ? "" : " ",
               end_to_end ? "e2e" : kind_names[it->kind]);
        if (!it->us[p].count)
            printf("-");
        else if (s->small)
            printf("%.1f us", us);
        else
            printf("%.*f TF", tflops(s, us) < 10 ? 3 : 0, tflops(s, us));
        if (it->us[p].count && it->kind != TIMES_PEER && isfinite(cudnn_us))
            printf(" (%.2fx)", cudnn_us / us);
        if (p == TIMES_SUSTAINED && isfinite(times_joules(it)))
            printf(" %.3g J", times_joules(it));
        if (it->us[p].count && it->precision == TANDEM_PRECISION_AUTO && end_to_end)
            printf(" = %s, %.2f of the best's time", tool_precisions[it->used], auto_to_best(rows, count, p));
    }
    printf("\n");
}

static void print_shape(const times_shape *s, const times_row *rows, uint32_t count)
{
    char name[64];
    printf("%s\n", shape_name(s, name));
    for (int p = 0; p < TIMES_PROTOCOLS; p++)
        print_protocol(s, rows, count, (times_protocol)p);
    for (uint32_t i = 0; i < count; i++)
        if (rows[i].why[0])
            printf("    %s %s: %s\n", rows[i].kind == TIMES_PEER ? "" : tool_precisions[rows[i].precision],
                   kind_names[rows[i].kind], rows[i].why);
    fflush(stdout);
}

/* What a row took by one protocol: times, rates and the clock that it had. */
static json_t *protocol_json(const times_shape *s, const times_row *it, const times_row *cudnn, times_protocol p)
{
    const double us = times_median(it, p);
    return json_pack("{s:o, s:o, s:o, s:i, s:f}", "us", bench_json(&it->us[p]), "tflops", bench_number(tflops(s, us)),
                     "times_cudnn", bench_number(times_median(cudnn, p) / us), "sm_mhz", (int)it->power[p].sm_mhz, "watts",
                     it->power[p].milliwatts * 1e-3);
}

/* Its `us` and what belongs to that are TIMES_SUSTAINED's, as in reports from before there were two protocols. */
static json_t *row_json(const times_shape *s, const times_row *it, const times_row *cudnn)
{
    const bool is_cudnn = it->kind == TIMES_PEER;
    json_t *out = json_pack("{s:s, s:s, s:s}", "what", kind_names[it->kind], "precision",
                            is_cudnn ? "f16" : tool_precisions[it->precision], "used",
                            tool_precisions[is_cudnn ? (uint32_t)TANDEM_PRECISION_F16 : it->used]);
    json_t *sustained = protocol_json(s, it, cudnn, TIMES_SUSTAINED);
    json_object_update(out, sustained);
    json_decref(sustained);
    json_object_set_new(out, "one_call", protocol_json(s, it, cudnn, TIMES_ONE_CALL));
    json_object_set_new(out, "joules", bench_number(times_joules(it)));
    json_object_set_new(out, "calls", json_integer(it->copies));
    json_object_set_new(out, "relative_l1", it->us[TIMES_SUSTAINED].count ? bench_number(it->error) : json_null());
    json_object_set_new(out, "not_measured", it->why[0] ? json_string(it->why) : json_null());
    return out;
}

static json_t *shape_json(const times_shape *s, const times_row *rows, uint32_t count, uint32_t sets)
{
    json_t *list = json_array();
    const times_row *cudnn = find_row(rows, count, TIMES_PEER, 0);
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(list, row_json(s, &rows[i], cudnn));
    return json_pack("{s:i, s:i, s:i, s:i, s:b, s:b, s:i, s:o, s:o, s:o}", "batch", (int)s->batch, "heads",
                     (int)s->heads, "n", (int)s->n, "d", (int)s->dim, "causal", (int)s->causal, "small", (int)s->small,
                     "sets", (int)sets, "auto_to_best", bench_number(auto_to_best(rows, count, TIMES_SUSTAINED)),
                     "auto_to_best_one_call", bench_number(auto_to_best(rows, count, TIMES_ONE_CALL)), "rows", list);
}

static uint32_t list_shapes(times_shape *out, const char *only, const char *ns, const char *dims, const char *causal,
                            bool quick, bool cpu)
{
    static const uint32_t lengths[] = {256, 512, 1024, 2048, 4096, 8192, 16384, 32768}, d[] = {64, 80, 96, 128},
                          heads[] = {4, 8, 16};
    uint32_t count = 0;
    for (int small = 0; small < 2; small++)
        for (size_t i = 0; i < sizeof d / sizeof *d; i++)
            for (int c = 0; c < 2; c++)
                for (size_t h = 0; h < (small ? 3u : 1u); h++)
                    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
                        const uint32_t n = lengths[l];
                        const bool in_table = d[i] % 64 ? !small && n == 4096
                                              : small   ? !c && n <= 4096 && (heads[h] < 16 || n >= 1024)
                                                        : n >= 1024 && n != 2048;
                        const bool in_quick = small ? h == 1 && n == 1024 : n == 4096;
                        if (!in_table || (quick && !ns && !in_quick) || !has_number(ns, n) ||
                            !has_number(dims, d[i]) || !tool_has(causal, c ? "yes" : "no") ||
                            !tool_has(only, small ? "small" : "large") || count == MOST_SHAPES)
                            continue;
                        /* Batch 4 and 32 heads would keep a CPU busy for minutes. */
                        out[count++] = (times_shape){.batch = small || cpu ? 1 : 4,
                                               .heads = small ? heads[h] : cpu ? 2 : 32,
                                               .n = n,
                                               .kv_heads = small ? heads[h] : cpu ? 2 : 32,
                                               .queries = n,
                                               .dim = d[i],
                                               .causal = c,
                                               .small = small};
                    }
    return count;
}

/* False, after a line that says it, if a length or width that was asked for is in no shape of the table. */
static bool all_taken(const times_shape *shapes, uint32_t count, const char *ns, const char *dims)
{
    const char *const lists[] = {ns, dims}, *const names[] = {"--n", "--dim"};
    for (int l = 0; l < 2; l++)
        for (const char *at = lists[l]; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
            bool taken = false;
            for (uint32_t i = 0; i < count && !taken; i++)
                taken = strtoul(at, NULL, 10) == (l ? shapes[i].dim : shapes[i].n);
            if (!taken)
                return tool_usage("bench attention", "%s %.*s: no shape of the table has it with the other options",
                                  names[l], (int)strcspn(at, ","), at), false;
        }
    if (!count)
        tool_usage("bench attention", "no shape of the table has --only, --causal and --quick together");
    return count != 0;
}

/* The shapes that have been measured. missed: of the targets, once all are known; NULL while some shapes are left, as who ends
 * the bench early keeps those that it has. */
static json_t *make_report(const bench *b, json_t *list, const uint32_t *missed)
{
    const times *t = &b->times;
    char driver[128];
    snprintf(driver, sizeof driver, "%s", bench_nvml_driver(t->nvml));
    json_t *report = bench_report("attention", t->cpu ? "CPU" : td_cu_device_info(t->device)->name, driver);
    json_object_set_new(report, "executor", json_string(t->executor));
    json_object_set_new(report, "auto_by", json_string(b->auto_by));
    json_object_set_new(report, "smooth_v", json_boolean(b->smooth_v));
    json_object_set_new(report, "cudnn",
                        b->cudnn ? json_integer(bench_cudnn_version(b->cudnn)) : json_string(b->no_cudnn));
    json_object_set_new(report, "rounds", json_integer(t->rounds));
    json_object_set_new(report, "run_ms", json_real(1e-3 * t->run_us));
    json_object_set_new(report, "l2_bytes", json_integer((json_int_t)t->l2_bytes));
    json_object_set(report, "shapes", list);
    if (missed) {
        json_object_set_new(report, "targets", bench_targets_json(&b->targets));
        json_object_set_new(report, "missed", json_integer(*missed));
    }
    return report;
}

static bool run_cudnn(void *cudnn, double *us, char *why, size_t why_bytes)
{
    return bench_cudnn_run(cudnn, us, why, why_bytes);
}

/* What is not small has the sets in turn by one call each, so as many calls as sets. */
static void make_cudnn_row(bench *b, const times_shape *s, times_row *it, uint32_t sets)
{
    const bench_cudnn_shape like = {s->batch, s->heads, s->n, s->n, s->dim, s->causal, (float)(1 / sqrt(s->dim))};
    bench_cudnn_tensors tensors[TIMES_SETS];
    *it = (times_row){.kind = TIMES_PEER, .used = TANDEM_PRECISION_F16, .peer = run_cudnn, .user = b->cudnn,
                      .copies = s->small ? TIMES_COPIES : sets};
    for (uint32_t i = 0; i < sets; i++)
        tensors[i] = (bench_cudnn_tensors){times_tensor(&b->times, s, i, 0), times_tensor(&b->times, s, i, 1),
                                           times_tensor(&b->times, s, i, 2), times_tensor(&b->times, s, i, 3)};
    if (bench_cudnn_prepare(b->cudnn, &like, it->why, sizeof it->why))
        bench_cudnn_record(b->cudnn, tensors, sets, it->copies, it->why, sizeof it->why);
}

static int run_all(bench *b, const times_shape *shapes, uint32_t count, const char *precisions)
{
    times *t = &b->times;
    char why[400] = "";
    json_t *list = json_array();
    uint32_t failed = 0, measured = 0;
    for (uint32_t i = 0; i < count; i++) {
        times_row rows[TIMES_ROWS] = {{0}};
        uint32_t sets = 0;
        why[0] = 0;
        uint32_t row_count = 0;
        if (t->cpu || td_cu_enter(t->device, why, sizeof why) == TANDEM_OK) {
            row_count = times_make_rows(t, &shapes[i], precisions, rows, &sets, why, sizeof why);
            if (b->cudnn && !why[0])
                make_cudnn_row(b, &shapes[i], &rows[row_count++], sets);
            if (row_count)
                times_measure(t, &shapes[i], rows, row_count, sets, why, sizeof why);
            if (!t->cpu)
                td_cu_leave(t->device);
        }
        if (why[0]) {
            char name[64];
            printf("%s | %s\n", shape_name(&shapes[i], name), why);
            failed++;
        }
        if (row_count && !why[0]) {
            print_shape(&shapes[i], rows, row_count);
            expect(b, &shapes[i], rows, row_count);
            json_array_append_new(list, shape_json(&shapes[i], rows, row_count, sets));
            if (b->json && bench_save(make_report(b, list, NULL), b->json) != TOOL_OK)
                failed++;
        }
        for (uint32_t r = 0; r < row_count; r++) {
            failed += rows[r].why[0] != 0;
            measured += rows[r].us[TIMES_SUSTAINED].count != 0;
        }
        times_free_rows(rows, row_count);
    }
    const uint32_t missed = bench_print_targets(&b->targets);
    json_t *report = make_report(b, list, &missed);
    bench_against against = {0};
    const bool compared = !b->before || bench_against_compare(report, b->before, b->slower_percent, &against, why, sizeof why);
    const int saved = bench_save(report, b->json);
    json_decref(list);
    if (failed)
        return tool_fail("bench attention", "%u measurements failed", (unsigned)failed);
    if (!compared)
        return tool_fail("bench attention", "--against: %s", why);
    const int status = saved ? saved : bench_status("bench attention", measured, missed, b->strict);
    if (status != TOOL_OK || !b->strict || !against.slower)
        return status;
    return tool_fail("bench attention", "--strict: %u median%s slower than before", (unsigned)against.slower,
                     against.slower == 1 ? " is" : "s are");
}

int bench_attention(int argc, char **argv)
{
    static const char *const backends[] = {"cuda", "cpu", NULL}, *const onlys[] = {"large", "small", NULL},
                      *const causals[] = {"yes", "no", "both", NULL},
                      *const modes[] = {"8b", "f16", "4b", "auto", "none", NULL},
                      *const lengths[] = {"256", "512", "1024", "2048", "4096", "8192", "16384", "32768", NULL},
                      *const widths[] = {"64", "80", "96", "128", NULL};
    const char *backend = "cuda", *only = NULL, *ns = NULL, *dims = NULL, *causal = "both", *precisions = "8b,f16,auto";
    const char *rounds = NULL, *run_ms = NULL, *tuning = NULL, *against = NULL, *slower = NULL;
    bool smooth_v = false, no_cudnn = false;
    bench b = {0};
    const tool_option options[] = {{"--json", &b.json, NULL},        {"--backend", &backend, NULL},
                                   {"--only", &only, NULL},          {"--n", &ns, NULL},
                                   {"--dim", &dims, NULL},           {"--causal", &causal, NULL},
                                   {"--precision", &precisions, NULL}, {"--rounds", &rounds, NULL},
                                   {"--run-ms", &run_ms, NULL},      {"--no-cudnn", NULL, &no_cudnn},
                                   {"--tuning", &tuning, NULL},      {"--strict", NULL, &b.strict},
                                   {"--against", &against, NULL},    {"--slower", &slower, NULL},
                                   {"--quick", NULL, &b.quick},      {"--smooth-v", NULL, &smooth_v}};
    const int parsed = tool_parse("bench attention", argc, argv, options, sizeof options / sizeof *options);
    if (parsed != TOOL_OK)
        return parsed;
    uint64_t number = b.quick ? 3 : 5, run = b.quick ? 20 : 250;
    if (tool_word(backend, backends) < 0)
        return tool_usage("bench attention", "--backend \"%s\": must be cuda or cpu", backend);
    if (only && tool_word(only, onlys) < 0)
        return tool_usage("bench attention", "--only \"%s\": must be large or small", only);
    if (tool_word(causal, causals) < 0)
        return tool_usage("bench attention", "--causal \"%s\": must be yes, no or both", causal);
    if (tool_words("bench attention", "--precision", precisions, modes) != TOOL_OK ||
        (ns && tool_words("bench attention", "--n", ns, lengths) != TOOL_OK) ||
        (dims && tool_words("bench attention", "--dim", dims, widths) != TOOL_OK))
        return TOOL_USAGE;
    const bool cpu = !strcmp(backend, "cpu"), none = tool_has(precisions, "none");
    if (none && strcmp(precisions, "none"))
        return tool_usage("bench attention", "--precision \"%s\": none goes with no other", precisions);
    if (none && (cpu || no_cudnn))
        return tool_usage("bench attention", "--precision none leaves cuDNN alone, and %s leaves that out",
                          cpu ? "--backend cpu" : "--no-cudnn");
    if (cpu && no_cudnn)
        return tool_usage("bench attention", "--no-cudnn does not go with --backend cpu: cuDNN needs a GPU");
    if (smooth_v && (none || tool_has(precisions, "f16") || tool_has(precisions, "auto")))
        return tool_usage("bench attention", "--smooth-v is of 8b and 4b, and --precision is %s", precisions);
    if (tuning && !tool_has(precisions, "auto"))
        return tool_usage("bench attention", "--tuning is what auto goes by, and --precision %s is without it", precisions);
    if (rounds && !tool_number(rounds, 1, 1000, &number))
        return tool_usage("bench attention", "--rounds \"%s\": must be a number from 1 to 1000", rounds);
    if (run_ms && !tool_number(run_ms, 0, 60000, &run))
        return tool_usage("bench attention", "--run-ms \"%s\": must be a number from 0 to 60000", run_ms);
    uint64_t percent = 2;
    if (slower && !against)
        return tool_usage("bench attention", "--slower says what --against calls slower, and there is none");
    if (slower && !tool_number(slower, 0, 1000, &percent))
        return tool_usage("bench attention", "--slower \"%s\": must be a number of percent from 0 to 1000", slower);
    b.slower_percent = (double)percent;
    b.times = (times){.cpu = cpu, .rounds = (uint32_t)number, .run_us = 1e3 * (double)run};
    times_shape shapes[MOST_SHAPES];
    const uint32_t count =
        list_shapes(shapes, only, ns, dims, strcmp(causal, "both") ? causal : NULL, b.quick, cpu);
    if (!all_taken(shapes, count, ns, dims))
        return TOOL_USAGE;
    for (uint32_t i = 0; i < count; i++)
        shapes[i].smooth_v = smooth_v;
    b.smooth_v = smooth_v;
    char why[400] = "";
    if (b.json && !tool_can_write("--json", b.json, why, sizeof why))
        return tool_fail("bench attention", "%s", why);

    if (against && !(b.before = bench_against_read(against, why, sizeof why)))
        return tool_fail("bench attention", "%s", why);

    static td_tuning_table table;
    if (tuning && !tool_tuning(tuning, &table, why, sizeof why)) {
        json_decref(b.before);
        return tool_fail("bench attention", "%s", why);
    }

    times *t = &b.times;
    int result;
    if (!times_open(t, why, sizeof why)) {
        result = tool_fail("bench attention", "%s", why);
    } else {
        if (no_cudnn)
            snprintf(b.no_cudnn, sizeof b.no_cudnn, "--no-cudnn");
        else if (!cpu)
            b.cudnn = bench_cudnn_open(t->device, b.no_cudnn, sizeof b.no_cudnn);
        t->inline_too = t->target.sm == 90;
        const char *device = t->cpu ? "CPU" : td_cu_device_info(t->device)->name;
        const bool fits = !tuning || td_tuning_fits(&table, t->target.sm, device, why, sizeof why);
        if (tuning && fits)
            t->target.tuning = &table;
        b.auto_by = !t->target.tuning ? "rule" : tuning ? "given" : "shipped";
        printf("%s, driver %s, %s, cuDNN %s%.0u, auto by the %s\n", device,
               bench_nvml_driver(t->nvml)[0] ? bench_nvml_driver(t->nvml) : "-", t->executor,
               b.cudnn ? "" : b.no_cudnn[0] ? b.no_cudnn : "-", (unsigned)bench_cudnn_version(b.cudnn),
               !t->target.tuning ? "rule" : tuning ? "table given" : "table shipped");
        result = fits ? run_all(&b, shapes, count, precisions)
                      : tool_fail("bench attention", "--tuning \"%s\": %s", tuning, why);
    }
    bench_cudnn_close(b.cudnn);
    times_close(t);
    json_decref(b.before);
    return result;
}
