/* `tandem bench effect`: what a denoiser costs a frame, on each rung, beside Open Image Denoise on the same device; or gi.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Frames are random, which costs as much as any: none of it depends on what the numbers are. Two take turns, and what one leaves
 * the next finds, as it is with a camera that moves.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/ladder.h"
#include "engine_plugin/tool/denoiser.h"
#include "interop/base.h"
#include "interop/os/clock.h"
#include "tests/bench/bench.h"
#include "tests/bench/oidn.h"

enum { SIZES = 16, RUNGS = 5, BINDINGS = TOOL_INPUTS + TOOL_OUTPUTS, FIRST = 20, SETS = 2, WIDE = 256 };
#define LIMIT_NS 60000000000u

typedef struct size_row {
    uint32_t width, height;
    bench_series gpu, whole; /* ms of a frame: by the device's clock, and from the call to its end */
    bench_series oidn[2];    /* fast, high */
} size_row;

typedef struct rung_rows {
    uint32_t rung;
    char device[128], why[700]; /* why: there is no such rung here */
    uint64_t memory_bytes[SIZES]; /* that the session holds: weights, what lies between layers, and frames */
    size_row rows[SIZES];
} rung_rows;

typedef struct bench {
    const char *model, *sizes, *rungs, *precision, *oidn_path, *json;
    uint32_t precision_value;
    uint64_t frames;
    bool quick, strict, no_oidn, is_gi;
    uint32_t size_count, width[SIZES], height[SIZES];
    uint32_t rung_count;
    rung_rows by_rung[RUNGS];
    char no_oidn_why[300];
    bench_targets targets;
} bench;

/* A network on a session, and its tensors for one size: two sets, one for each of two frames that follow one another. */
typedef struct place {
    tool_denoiser d;
    tandem_info info;
    tandem_network_tensor tensors[BINDINGS];
    uint64_t offsets[BINDINGS], set_bytes;
    int partner[BINDINGS]; /* of an input that is what the frame before left: which of the bindings that is; else -1 */
    tandem_mem mem;
    char *why;
    size_t why_bytes;
} place;

static bool fails(place *p, const char *what)
{
    char text[500] = "";

    tandem_error_text(p->d.s, text, sizeof text);
    snprintf(p->why, p->why_bytes, "%s%s%s", what, text[0] ? ": " : "", text);
    return false;
}

/* --- Bindings --- */

static int find_binding(const place *p, const char *name)
{
    for (uint32_t i = 0; i < p->d.info.binding_count; i++)
        if (!strcmp(p->tensors[i].name, name))
            return (int)i;
    return -1;
}

static bool find_bindings(place *p)
{
    if (p->d.info.binding_count > BINDINGS)
        return fails(p, "--model: it has more tensors than a denoiser");
    p->set_bytes = 0;
    for (uint32_t i = 0; i < p->d.info.binding_count; i++) {
        p->tensors[i] = TANDEM_INIT(tandem_network_tensor);
        if (tandem_model_binding(p->d.s, p->d.model, p->d.numbers, p->d.info.number_count, i, &p->tensors[i]) != TANDEM_OK)
            return fails(p, "--model");
        if (p->tensors[i].dtype != TANDEM_DTYPE_F32)
            return fails(p, "--model: a denoiser's tensors are F32");
        p->offsets[i] = p->set_bytes;
        p->set_bytes += td_align_up(p->tensors[i].bytes, WIDE * sizeof(float));
    }
    for (uint32_t i = 0; i < p->d.info.binding_count; i++) {
        const char *name = p->tensors[i].name, *ending = strstr(name, "_before");
        char now[sizeof p->tensors[i].name] = "";

        if (ending)
            snprintf(now, sizeof now, "%.*s", (int)(ending - name), name);
        p->partner[i] = ending ? find_binding(p, now) : -1;
    }
    return true;
}

static float value_of(const char *name, uint64_t *state)
{
    const float normal = (float)bench_normal(state);

    if (!strcmp(name, "color") || !strcmp(name, "direct"))
        return expf(normal);
    if (!strcmp(name, "albedo"))
        return 0.5f + 0.4f * tanhf(normal);
    if (!strncmp(name, "depth", strlen("depth")))
        return 5 + 0.1f * normal;
    if (!strcmp(name, "motion"))
        return 4 * normal;
    return !strcmp(name, "valid") ? 1 : 0.6f * normal;
}

/* Of what the host wrote, to memory that may be the device's alone. */
static bool copy_to_device(place *p, const td_host_mem *from, uint64_t bytes)
{
    const uint32_t rows = (uint32_t)(bytes / sizeof(float) / WIDE);
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_BINARY);
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    tandem_ticket ticket;

    /* As many as there are, times 1, which is behind them. */
    job.op.binary = (tandem_binary){.batch = 1, .heads = 1, .rows = rows, .channels = WIDE, .b_channels = 1, .kind = TANDEM_BINARY_MULTIPLY};
    job.op.binary.a = tandem_view_dense(from->mem, 0, TANDEM_DTYPE_F32, 1, rows, WIDE);
    job.op.binary.b = tandem_view_dense(from->mem, bytes, TANDEM_DTYPE_F32, 1, 1, 1);
    job.op.binary.b.stride_row = 0;
    job.op.binary.y = tandem_view_dense(p->mem, 0, TANDEM_DTYPE_F32, 1, rows, WIDE);
    return (tandem_submit(p->d.s, &job, &ticket) == TANDEM_OK && tandem_wait(p->d.s, ticket, LIMIT_NS, &report) == TANDEM_OK &&
            report.state == TANDEM_JOB_DONE) ||
           fails(p, "frames cannot be copied to the device");
}

static bool fill(place *p)
{
    const uint64_t bytes = SETS * p->set_bytes;
    td_host_mem staging = {0};
    uint64_t state = 7;
    bool done;

    if (tandem_mem_create(p->d.s, &TANDEM_INIT(tandem_mem_desc, .bytes = bytes), &p->mem) != TANDEM_OK ||
        td_host_mem_make(p->d.s, bytes + WIDE * sizeof(float), &staging) != TANDEM_OK)
        return fails(p, "memory for frames");
    memset(staging.host, 0, (size_t)bytes);
    *(float *)(void *)((char *)staging.host + bytes) = 1;
    for (int set = 0; set < SETS; set++)
        for (uint32_t i = 0; i < p->d.info.binding_count; i++) {
            float *to = (float *)(void *)((char *)staging.host + (uint64_t)set * p->set_bytes + p->offsets[i]);
            const uint64_t count = p->tensors[i].bytes / sizeof *to, some = count < 65536 ? count : 65536;

            for (uint64_t at = 0; at < some; at++)
                to[at] = value_of(p->tensors[i].name, &state);
            for (uint64_t at = some; at < count; at++)
                to[at] = to[at - some];
        }
    done = copy_to_device(p, &staging, bytes);
    td_host_mem_free(p->d.s, &staging);
    return done;
}

/* --- Frames --- */

static bool run_frame(place *p, uint64_t n, double *gpu_ms, double *whole_ms)
{
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_RUN);
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    tandem_view views[BINDINGS];
    tandem_ticket ticket;

    for (uint32_t i = 0; i < p->d.info.binding_count; i++) {
        const bool then = p->partner[i] >= 0;
        views[i] = (tandem_view){.mem = p->mem, .dtype = TANDEM_DTYPE_F32,
                                 .offset_bytes = (n + then) % SETS * p->set_bytes + p->offsets[then ? (uint32_t)p->partner[i] : i]};
    }
    job.op.run = (tandem_run){.instance = p->d.instance, .bindings = views, .binding_count = p->d.info.binding_count,
                              .numbers = p->d.numbers, .number_count = p->d.info.number_count};
    const uint64_t begin = td_now_ns();
    if (tandem_submit(p->d.s, &job, &ticket) != TANDEM_OK || tandem_wait(p->d.s, ticket, LIMIT_NS, &report) != TANDEM_OK ||
        report.state != TANDEM_JOB_DONE)
        return fails(p, "a frame failed");
    *whole_ms = 1e-6 * (double)(td_now_ns() - begin);
    *gpu_ms = 1e-6 * (double)(report.end_ns - report.begin_ns);
    return true;
}

static bool run_size(place *p, uint64_t frames, size_row *row, uint64_t *memory_bytes)
{
    double gpu = 0, whole = 0;
    bool done;

    done = tool_denoiser_prepare(&p->d, row->height, row->width) || fails(p, "tandem_model_prepare");
    done = done && find_bindings(p) && fill(p);
    for (uint64_t n = 0; n < FIRST + frames && done; n++) {
        done = run_frame(p, n, &gpu, &whole);
        if (done && n >= FIRST) {
            bench_add(&row->gpu, gpu);
            bench_add(&row->whole, whole);
        }
    }
    if (done && tandem_session_info(p->d.s, &p->info) == TANDEM_OK)
        *memory_bytes = p->info.device_bytes + p->info.host_bytes;
    if (p->mem)
        tandem_mem_destroy(p->d.s, p->mem);
    p->mem = 0;
    return done;
}

/* Beside: on the GPU for rungs of one, else on the CPU. */
static void run_oidn(bench *b, rung_rows *of)
{
    bench_oidn *oidn = bench_oidn_open(b->oidn_path, of->rung != TANDEM_RUNG_CPU, b->no_oidn_why, sizeof b->no_oidn_why);
    static const bench_oidn_quality qualities[2] = {BENCH_OIDN_FAST, BENCH_OIDN_HIGH};

    for (uint32_t i = 0; i < b->size_count && oidn; i++)
        for (int q = 0; q < 2; q++)
            if (!b->no_oidn_why[0])
                bench_oidn_time(oidn, b->width[i], b->height[i], qualities[q], b->frames < 100 ? (uint32_t)b->frames : 100, &of->rows[i].oidn[q],
                                b->no_oidn_why, sizeof b->no_oidn_why);
    if (oidn)
        bench_oidn_close(&oidn);
}

static void run_rung(bench *b, rung_rows *of)
{
    place *p = calloc(1, sizeof *p);
    bool done;

    if (!p) {
        snprintf(of->why, sizeof of->why, "out of memory");
        return;
    }
    p->why = of->why;
    p->why_bytes = sizeof of->why;
    p->d.precision = b->precision_value;
    done = tool_denoiser_open(&p->d, b->model, of->rung, NULL, NULL);
    if (!done)
        snprintf(of->why, sizeof of->why, "%s", p->d.why);
    p->info = TANDEM_INIT(tandem_info);
    done = done && (tandem_session_info(p->d.s, &p->info) == TANDEM_OK || fails(p, "tandem_session_info"));
    snprintf(of->device, sizeof of->device, "%s", p->info.device);
    for (uint32_t i = 0; i < b->size_count && done; i++) {
        of->rows[i].width = b->width[i];
        of->rows[i].height = b->height[i];
        done = run_size(p, b->frames, &of->rows[i], &of->memory_bytes[i]);
        b->is_gi = done && find_binding(p, "direct") >= 0;
    }
    tool_denoiser_close(&p->d);
    free(p);
    if (b->is_gi)
        snprintf(b->no_oidn_why, sizeof b->no_oidn_why, "it makes no light");
    else if (done && !b->no_oidn)
        run_oidn(b, of);
}

/* --- The report --- */

/* Open Image Denoise 2.5's "fast" on an H200, whole, ms: what its successor must not cost more than. */
static const struct {
    uint32_t width, height;
    double ms;
} published[] = {{960, 540, 0.67}, {1280, 720, 1.06}, {1920, 1080, 2.16}, {2560, 1440, 3.67}};
static const double most_gi_ms = 2; /* of 1280x720 there */

static void expect(bench *b, const rung_rows *of, const size_row *row)
{
    const char *name = td_rung_name(of->rung);
    const double p50 = bench_median(&row->gpu), fast = bench_median(&row->oidn[0]);

    if (row->oidn[0].count && (of->rung == TANDEM_RUNG_INLINE || of->rung == TANDEM_RUNG_CPU))
        bench_expect(&b->targets, p50 / fast, false, 1, "%s, %" PRIu32 "x%" PRIu32 ": of Open Image Denoise's time, fast", name, row->width,
                     row->height);
    if (of->rung != TANDEM_RUNG_INLINE)
        return;
    bench_expect(&b->targets, bench_at(&row->gpu, 0.99) / p50, false, 1.1, "%s, %" PRIu32 "x%" PRIu32 ": p99 of p50", name, row->width,
                 row->height);
    const bool is_h200 = strstr(of->device, "H200") != NULL;
    if (is_h200 && b->is_gi && row->width == 1280 && row->height == 720)
        bench_expect(&b->targets, p50, false, most_gi_ms, "%s, 1280x720: ms of the GPU", name);
    for (size_t i = 0; i < sizeof published / sizeof *published && is_h200 && !b->is_gi; i++)
        if (published[i].width == row->width && published[i].height == row->height)
            bench_expect(&b->targets, p50, false, published[i].ms, "%s, %" PRIu32 "x%" PRIu32 ": ms of the GPU", name, row->width, row->height);
}

static void print_number(const bench_series *s, double p)
{
    if (s->count)
        printf(" %9.3f", bench_at(s, p));
    else
        printf(" %9s", "-");
}

static void print(bench *b)
{
    printf("%s: ms a frame, %" PRIu64 " frames%s%s\n", b->model, b->frames, b->precision_value ? ", attention " : "",
           b->precision_value ? b->precision : "");
    printf("%-22s %9s %9s %9s %9s %9s %9s\n", "", "GPU p50", "p99", "call p50", "OIDN fast", "high", "MiB");
    for (uint32_t r = 0; r < b->rung_count; r++) {
        const rung_rows *of = &b->by_rung[r];

        if (of->why[0])
            printf("%s: not measured: %s\n", td_rung_name(of->rung), of->why);
        else
            printf("%s: %s\n", td_rung_name(of->rung), of->device);
        for (uint32_t i = 0; i < b->size_count && of->rows[i].gpu.count; i++) {
            const size_row *row = &of->rows[i];
            char size[32];

            snprintf(size, sizeof size, "%" PRIu32 "x%" PRIu32, row->width, row->height);
            printf("  %-20s", size);
            print_number(&row->gpu, 0.5);
            print_number(&row->gpu, 0.99);
            print_number(&row->whole, 0.5);
            print_number(&row->oidn[0], 0.5);
            print_number(&row->oidn[1], 0.5);
            printf(" %9.0f\n", (double)of->memory_bytes[i] / 1048576);
            expect(b, of, row);
        }
    }
    if (b->no_oidn_why[0])
        printf("Open Image Denoise: not measured: %s\n", b->no_oidn_why);
}

static int report(bench *b, uint32_t missed)
{
    const char *device = "none";

    for (uint32_t r = b->rung_count; r-- > 0;)
        device = b->by_rung[r].device[0] ? b->by_rung[r].device : device;
    json_t *json = bench_report("effect", device, ""), *rungs = json_array();

    for (uint32_t r = 0; r < b->rung_count; r++) {
        const rung_rows *of = &b->by_rung[r];
        json_t *rows = json_array();

        for (uint32_t i = 0; i < b->size_count && of->rows[i].gpu.count; i++) {
            const size_row *row = &of->rows[i];
            json_array_append_new(rows, json_pack("{s:i, s:i, s:o, s:o, s:o, s:o, s:I}", "width", (int)row->width, "height", (int)row->height,
                                                  "gpu_ms", bench_json(&row->gpu), "call_ms", bench_json(&row->whole), "oidn_fast_ms",
                                                  bench_json(&row->oidn[0]), "oidn_high_ms", bench_json(&row->oidn[1]), "memory_bytes",
                                                  (json_int_t)of->memory_bytes[i]));
        }
        json_array_append_new(rungs, json_pack("{s:s, s:s, s:s?, s:o}", "rung", td_rung_name(of->rung), "device", of->device, "why",
                                               of->why[0] ? of->why : NULL, "rows", rows));
    }
    json_object_update_new(json, json_pack("{s:s, s:s, s:I, s:o, s:s?, s:o, s:i}", "precision", b->precision, "model", strrchr(b->model, '/') ? strrchr(b->model, '/') + 1 : b->model,
                                           "frames", (json_int_t)b->frames, "rungs", rungs, "no_oidn", b->no_oidn_why[0] ? b->no_oidn_why : NULL,
                                           "targets", bench_targets_json(&b->targets), "missed", (int)missed));
    return bench_save(json, b->json);
}

/* --- The bench --- */

static bool read_sizes(bench *b)
{
    for (const char *at = b->sizes; *at; at += *at == ',') {
        unsigned width = 0, height = 0;
        int length = 0;

        if (sscanf(at, "%5ux%5u%n", &width, &height, &length) != 2 || (at[length] && at[length] != ',') || width < 16 || height < 16 ||
            width > 8192 || height > 8192 || b->size_count == SIZES)
            return tool_usage("bench effect", "--sizes \"%s\" must be at most %d of 16x16 to 8192x8192, as 960x540,1920x1080", b->sizes,
                              SIZES) == TOOL_OK;
        b->width[b->size_count] = width;
        b->height[b->size_count++] = height;
        at += length;
    }
    return b->size_count || tool_usage("bench effect", "--sizes names none") == TOOL_OK;
}

static bool read_rungs(bench *b)
{
    for (const char *at = b->rungs; *at; at += *at == ',') {
        const size_t length = strcspn(at, ",");
        char name[16];

        snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), at);
        if (b->rung_count == RUNGS)
            return tool_usage("bench effect", "--rungs \"%s\" names more than %d", b->rungs, RUNGS) == TOOL_OK;
        if (!tool_rung("bench effect", name, &b->by_rung[b->rung_count].rung))
            return false;
        if (!b->by_rung[b->rung_count++].rung)
            return tool_usage("bench effect", "--rungs: auto is no rung of its own") == TOOL_OK;
        at += length;
    }
    return b->rung_count || tool_usage("bench effect", "--rungs names none") == TOOL_OK;
}

static int read_arguments(int argc, char **argv, bench *b)
{
    const char *frames = NULL;
    const tool_option options[] = {{"--model", &b->model, NULL},   {"--sizes", &b->sizes, NULL},      {"--rungs", &b->rungs, NULL},
                                   {"--precision", &b->precision, NULL},
                                   {"--frames", &frames, NULL},    {"--oidn", &b->oidn_path, NULL},   {"--no-oidn", NULL, &b->no_oidn},
                                   {"--json", &b->json, NULL},     {"--quick", NULL, &b->quick},      {"--strict", NULL, &b->strict}};

    b->sizes = "960x540,1280x720,1920x1080,2560x1440";
    b->rungs = "inline,timeline,host";
    b->precision = "auto";
    if (tool_parse("bench effect", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    b->frames = b->quick ? 30 : 600;
    if (frames && !tool_number(frames, 1, 1000000, &b->frames))
        return tool_usage("bench effect", "--frames \"%s\" must be a number from 1 to 1000000", frames);
    if (!tool_precision("bench effect", "--precision", b->precision, &b->precision_value))
        return TOOL_USAGE;
    if (!b->model)
        return tool_usage("bench effect", "--model is missing: a denoiser's file; demo/assets has one");
    if (b->no_oidn && b->oidn_path)
        return tool_usage("bench effect", "--oidn and --no-oidn exclude one another");
    if (b->no_oidn)
        snprintf(b->no_oidn_why, sizeof b->no_oidn_why, "--no-oidn");
    return read_sizes(b) && read_rungs(b) ? TOOL_OK : TOOL_USAGE;
}

int bench_effect(int argc, char **argv)
{
    bench *b = calloc(1, sizeof *b);
    uint64_t measured = 0;
    char why[300] = "";

    if (!b)
        return tool_fail("bench effect", "out of memory");
    int status = read_arguments(argc, argv, b);
    if (status == TOOL_OK && b->json && !tool_can_write("--json", b->json, why, sizeof why))
        status = tool_fail("bench effect", "%s", why);
    if (status == TOOL_OK) {
        for (uint32_t r = 0; r < b->rung_count; r++)
            run_rung(b, &b->by_rung[r]);
        print(b);
        for (uint32_t r = 0; r < b->rung_count; r++)
            measured += b->by_rung[r].rows[0].gpu.count;
        const uint32_t missed = bench_print_targets(&b->targets);
        status = report(b, missed);
        status = status ? status : bench_status("bench effect", measured, missed, b->strict);
    }
    for (uint32_t r = 0; r < b->rung_count; r++)
        for (uint32_t i = 0; i < SIZES; i++) {
            size_row *row = &b->by_rung[r].rows[i];
            bench_free(&row->gpu);
            bench_free(&row->whole);
            bench_free(&row->oidn[0]);
            bench_free(&row->oidn[1]);
        }
    free(b);
    return status;
}
