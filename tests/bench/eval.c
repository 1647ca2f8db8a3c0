/* `tandem eval`, and of it `denoise`: denoisers beside one another on frames with references, and what they look like.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A clip is the files NAME.CC.safetensors: frames of a path where each has a reference, else copies of one frame, of which the first
 * counts. Of a path frames from the fourth on count, or the last where it is shorter.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/tool/denoiser.h"
#include "engine_plugin/tool/quality.h"
#include "engine_plugin/tool/upscale.h"
#include "tests/bench/bench.h"
#include "tests/bench/eval.h"
#include "tests/bench/filters.h"
#include "tests/bench/oidn.h"

enum { MODELS = BENCH_EVAL_MODELS, ROWS = 16 + 10 * MODELS, FIRST_COUNTED = 3, WHOLE = 2 /* halves */ };
typedef enum row_kind { INPUT, BOX, BILATERAL, ATROUS, OIDN, OIDN_PREFILTERED, OIDN_LIGHT, NETWORK, NETWORK_WITH_HISTORY } row_kind;

typedef struct row {
    char name[72];
    row_kind kind;
    uint32_t parameter; /* radius, quality, or of a network how many of the output's pixels two are rendered for, across and down */
    bool is_small;      /* it denoises what was rendered at that size, which bicubic interpolation upscales */
    tool_denoiser *net;
    tool_picture now, then;
    tool_quality sums; /* over the frames that count */
    double flicker, ms;
    uint32_t frames, steps;
} row;

typedef struct eval {
    const char *frames, *models, *oidn_path, *json, *sheet, *rung, *socket;
    uint32_t rung_value;
    bool no_oidn, is_gi, upscale;
    const char *edges;
    tool_edges edges_value;
    char **names; /* of files, sorted */
    size_t name_count;
    bench_oidn *oidn;
    char no_oidn_why[300];
    row rows[ROWS];
    uint32_t row_count, clips;
    tool_denoiser frame;            /* what is read: no network of its own */
    tool_picture reference, before; /* this frame's, and the one's before */
    bench_sheet drawn;              /* a clip a line, a row a column, and the reference */
    char why[700];
} eval;

static bool fails(eval *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fails(eval *e, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(e->why, sizeof e->why, format, args);
    va_end(args);
    return false;
}

/* --- Files --- */

/* Of NAME.CC.safetensors: the bytes of NAME; of NAME.safetensors likewise. */
static size_t clip_bytes(const char *name)
{
    size_t bytes = strlen(name) - strlen(".safetensors");

    for (size_t at = bytes; at > 0; at--)
        if (name[at - 1] == '.')
            return at - 1;
    return bytes;
}

/* A frame, and its reference; *has_one says whether there is one. */
static bool read_frame(eval *e, const char *name, bool *has_one)
{
    td_safetensors file = {.fd = -1};
    char path[4096], why[300] = "";

    snprintf(path, sizeof path, "%s/%s", e->frames, name);
    tool_picture_free(&e->reference);
    if (!tool_denoiser_frame(&e->frame, path))
        return fails(e, "%s", e->frame.why);
    if (td_safetensors_open(path, &file, why, sizeof why) != TANDEM_OK)
        return fails(e, "\"%s\": %s", path, why);
    const td_safetensor *tensor = td_safetensors_find(&file, "reference");
    bool done = !tensor || tool_denoiser_tensor(&e->frame, path, &file, tensor, 3, &e->reference) || fails(e, "%s", e->frame.why);
    td_safetensors_close(&file);
    *has_one = tensor != NULL;
    for (int i = 0; i < TOOL_READ && done; i++) {
        const tool_picture *color = &e->frame.frame[TOOL_COLOR], *other = i ? &e->frame.frame[i] : &e->reference;
        if (other->pixels && (other->width != color->width || other->height != color->height))
            done = fails(e, "\"%s\": its tensors differ in size", path);
    }
    return done;
}

/* --- Rows --- */

static row *add_row(eval *e, const char *name, row_kind kind, uint32_t parameter)
{
    if (e->row_count == ROWS)
        return NULL;
    row *r = &e->rows[e->row_count++];
    snprintf(r->name, sizeof r->name, "%s", name);
    r->kind = kind;
    r->parameter = parameter;
    return r;
}

/* A network on each frame alone, or on what it kept of the one before; on all of a frame, or on less, which is upscaled. */
static bool add_network(eval *e, const char *path, bool history, uint32_t halves, bool is_small)
{
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    char name[72];

    snprintf(name, sizeof name, "%.40s%s%s%s", file, history ? " + history" : "",
             halves == WHOLE ? "" : halves == 3 ? ", 1.5x" : ", 2x", is_small ? " bicubic" : "");
    row *r = add_row(e, name, history ? NETWORK_WITH_HISTORY : NETWORK, halves);
    if (!r)
        return fails(e, "--model: more than %d", MODELS);
    r->is_small = is_small;
    r->net = calloc(1, sizeof *r->net);
    if (!r->net)
        return fails(e, "out of memory");
    r->net->output = "out";
    r->net->edges = e->edges_value;
    if (!tool_denoiser_open(r->net, path, e->rung_value, e->socket, NULL))
        return fails(e, "%s", r->net->why);
    return history || !tool_denoiser_has_history(r->net) || add_network(e, path, true, halves, is_small);
}

static bool add_networks(eval *e)
{
    char path[4096];
    uint32_t count = 0;

    for (const char *at = e->models; at && *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',')) {
        snprintf(path, sizeof path, "%.*s", (int)strcspn(at, ","), at);
        if (count++ == MODELS)
            return fails(e, "--model: more than %d", MODELS);
        if (!add_network(e, path, false, WHOLE, false))
            return false;
        for (uint32_t halves = 4; halves > WHOLE && e->upscale; halves--)
            if (!add_network(e, path, false, halves, false) || !add_network(e, path, false, halves, true))
                return false;
    }
    return true;
}

static bool add_rows(eval *e)
{
    add_row(e, "input", INPUT, 0);
    add_row(e, "box 3x3", BOX, 1);
    add_row(e, "box 5x5", BOX, 2);
    add_row(e, "box 7x7", BOX, 3);
    add_row(e, "joint bilateral", BILATERAL, 0);
    add_row(e, "a-trous", ATROUS, 0);
    if (e->no_oidn)
        snprintf(e->no_oidn_why, sizeof e->no_oidn_why, "--no-oidn");
    else
        e->oidn = bench_oidn_open(e->oidn_path, false, e->no_oidn_why, sizeof e->no_oidn_why);
    if (e->oidn_path && !e->oidn)
        return fails(e, "--oidn \"%s\": %s", e->oidn_path, e->no_oidn_why);
    if (e->oidn) {
        add_row(e, "OIDN fast", OIDN, BENCH_OIDN_FAST);
        add_row(e, "OIDN high", OIDN, BENCH_OIDN_HIGH);
        add_row(e, "OIDN prefiltered", OIDN_PREFILTERED, BENCH_OIDN_HIGH);
        add_row(e, "OIDN fast on light", OIDN_LIGHT, BENCH_OIDN_FAST);
        add_row(e, "OIDN high on light", OIDN_LIGHT, BENCH_OIDN_HIGH);
    }
    return add_networks(e);
}

static bool copy(const tool_picture *from, tool_picture *to)
{
    if (!from->pixels)
        return true;
    if (!tool_picture_new(to, from->width, from->height, from->channels))
        return false;
    memcpy(to->pixels, from->pixels, (size_t)from->width * from->height * from->channels * sizeof *to->pixels);
    return true;
}

/* A frame's part as a row sees it: of one that is upscaled what was rendered, at its place in the output, or as a picture. */
static bool render(const row *r, int input, const tool_picture *from, tool_picture *to)
{
    const uint32_t width = tool_upscale_count(from->width, r->parameter), height = tool_upscale_count(from->height, r->parameter);
    tool_picture small = {0};

    if (!from->pixels || r->parameter == WHOLE || (!r->is_small && input != TOOL_COLOR))
        return copy(from, to);
    bool done = tool_upscale_take(from, width, height, &small);
    if (done && !r->is_small) {
        done = tool_upscale_place(&small, from->width, from->height, to);
        tool_picture_free(&small);
        return done;
    }
    for (size_t i = 0; i < (size_t)width * height && done && input == TOOL_MOTION; i++) { /* in its own pixels */
        small.pixels[2 * i] *= (float)width / (float)from->width;
        small.pixels[2 * i + 1] *= (float)height / (float)from->height;
    }
    *to = small;
    return done;
}

/* By a network, which keeps what it found for the next frame, or knows of none. */
static bool run_network(eval *e, row *r, double *ms)
{
    for (int i = 0; i < TOOL_READ; i++) {
        tool_picture_free(&r->net->frame[i]);
        if (!render(r, i, &e->frame.frame[i], &r->net->frame[i]))
            return fails(e, "out of memory");
    }
    if (!tool_denoiser_run(r->net))
        return fails(e, "%s: %s", r->name, r->net->why);
    *ms = r->net->ms;
    if (r->is_small) {
        if (!tool_upscale_bicubic(&r->net->results[TOOL_OUT], e->reference.width, e->reference.height, &r->now))
            return fails(e, "out of memory");
    } else {
        r->now = r->net->results[TOOL_OUT];
        r->net->results[TOOL_OUT] = (tool_picture){0};
    }
    if (r->kind == NETWORK_WITH_HISTORY)
        tool_denoiser_remember(r->net);
    return true;
}

static bool run_oidn(eval *e, row *r, double *ms)
{
    const tool_picture *f = e->frame.frame;
    tool_picture light = {0};
    const bool on_light = r->kind == OIDN_LIGHT;
    bool done = !on_light || bench_demodulate(&f[TOOL_COLOR], &f[TOOL_ALBEDO], &light) || fails(e, "out of memory");

    if (done && !bench_oidn_run(e->oidn, on_light ? &light : &f[TOOL_COLOR], &f[TOOL_ALBEDO], &f[TOOL_NORMAL], (bench_oidn_quality)r->parameter,
                                r->kind == OIDN_PREFILTERED, &r->now, ms, e->no_oidn_why, sizeof e->no_oidn_why))
        done = fails(e, "%s: %s", r->name, e->no_oidn_why);
    if (done && on_light)
        bench_modulate(&r->now, &f[TOOL_ALBEDO]);
    tool_picture_free(&light);
    return done;
}

static bool run_filter(eval *e, row *r)
{
    const tool_picture *f = e->frame.frame;
    tool_picture light = {0};
    bool done;

    if (r->kind == INPUT)
        return copy(&f[TOOL_COLOR], &r->now);
    if (r->kind == BOX)
        return bench_box(&f[TOOL_COLOR], r->parameter, &r->now);
    done = bench_demodulate(&f[TOOL_COLOR], &f[TOOL_ALBEDO], &light) &&
           (r->kind == BILATERAL ? bench_bilateral : bench_atrous)(&light, &f[TOOL_NORMAL], &f[TOOL_DEPTH], &r->now);
    if (done)
        bench_modulate(&r->now, &f[TOOL_ALBEDO]);
    tool_picture_free(&light);
    return done;
}

/* --- What it is worth --- */

static double shown(float x)
{
    return isfinite(x) && x > 0 ? (double)x / (1 + (double)x) : 0;
}

/* How the result changes along the motion, less how its reference does: the root of the mean square over pixels that were seen before. */
static bool flicker_of(const eval *e, const row *r, double *flicker)
{
    const tool_picture *motion = &e->frame.frame[TOOL_MOTION], *valid = &e->frame.frame[TOOL_VALID], *now = &r->now;
    const float width = (float)now->width, height = (float)now->height;
    double sum = 0;
    size_t count = 0;

    for (size_t i = 0, pixels = (size_t)now->width * now->height; i < pixels; i++) {
        const float x = (float)(i % now->width) + 0.5f + (motion->pixels ? motion->pixels[2 * i] : 0);
        const float y = (float)(i / now->width) + 0.5f + (motion->pixels ? motion->pixels[2 * i + 1] : 0);
        if (!(x >= 0 && y >= 0 && x < width && y < height) || (valid->pixels && !(valid->pixels[i] > 0)))
            continue;
        const size_t other = (size_t)y * now->width + (size_t)x;
        for (int c = 0; c < 3; c++) {
            const double change = shown(now->pixels[3 * i + (size_t)c]) - shown(r->then.pixels[3 * other + (size_t)c]);
            const double wanted = shown(e->reference.pixels[3 * i + (size_t)c]) - shown(e->before.pixels[3 * other + (size_t)c]);
            sum += (change - wanted) * (change - wanted);
        }
        count += 3;
    }
    *flicker = count ? sqrt(sum / (double)count) : 0;
    return count > 0;
}

static bool run_row(eval *e, row *r, bool counts)
{
    tool_quality q;
    double ms = 0, flicker;
    bool done;

    tool_picture_free(&r->then);
    r->then = r->now;
    r->now = (tool_picture){0};
    if (r->kind == NETWORK || r->kind == NETWORK_WITH_HISTORY)
        done = run_network(e, r, &ms);
    else if (r->kind == OIDN || r->kind == OIDN_PREFILTERED || r->kind == OIDN_LIGHT)
        done = run_oidn(e, r, &ms);
    else
        done = run_filter(e, r) || fails(e, "out of memory");
    if (!done || !counts)
        return done;
    if (!tool_quality_of(&r->now, &e->reference, &q))
        return fails(e, "out of memory");
    r->sums.psnr_db += q.psnr_db;
    r->sums.ssim += q.ssim;
    r->sums.rel_mse += q.rel_mse;
    r->ms += ms;
    r->frames++;
    if (r->then.pixels && e->before.pixels && flicker_of(e, r, &flicker)) {
        r->flicker += flicker;
        r->steps++;
    }
    return true;
}

/* --- The sheet --- */

static bool draw_line(eval *e)
{
    if (!e->sheet || e->drawn.line == BENCH_SHEET_LINES)
        return true;
    if (!bench_sheet_begin(&e->drawn, e->row_count + 1))
        return fails(e, "out of memory");
    const double gain = bench_sheet_gain(&e->reference);
    for (uint32_t i = 0; i < e->row_count; i++)
        bench_sheet_draw(&e->drawn, i, &e->rows[i].now, gain);
    bench_sheet_draw(&e->drawn, e->row_count, &e->reference, gain);
    return true;
}

static bool save_sheet(eval *e)
{
    if (!e->sheet || !e->drawn.line)
        return true;
    if (!bench_sheet_save(&e->drawn, e->sheet, e->why, sizeof e->why))
        return false;
    printf("%s: a line for each of %" PRIu32 " clips, its columns the rows above, and last the reference\n", e->sheet, e->drawn.line);
    return true;
}

/* --- Clips --- */

static void start_clip(eval *e)
{
    tool_picture_free(&e->before);
    for (uint32_t i = 0; i < e->row_count; i++) {
        tool_picture_free(&e->rows[i].now);
        tool_picture_free(&e->rows[i].then);
        if (e->rows[i].net)
            tool_denoiser_forget(e->rows[i].net);
    }
}

/* Whether the files from `first` to `end` have references all; or the first one. */
static bool references_of(eval *e, size_t first, size_t end, bool *first_has, bool *all_have)
{
    *first_has = false;
    *all_have = true;
    for (size_t i = first; i < end && *all_have; i++) {
        if (!read_frame(e, e->names[i], all_have))
            return false;
        *first_has = *first_has || (i == first && *all_have);
    }
    return true;
}

static bool run_clip(eval *e, size_t first, size_t end)
{
    bool first_has, all_have, has;

    if (!references_of(e, first, end, &first_has, &all_have))
        return false;
    if (!first_has)
        return true;
    start_clip(e);
    end = all_have ? end : first + 1;
    for (size_t i = first; i < end; i++) {
        const bool counts = i - first >= FIRST_COUNTED || i + 1 == end;
        if (!read_frame(e, e->names[i], &has))
            return false;
        for (uint32_t r = 0; r < e->row_count; r++)
            if (!run_row(e, &e->rows[r], counts))
                return false;
        if (i + 1 == end && !draw_line(e))
            return false;
        tool_picture_free(&e->before);
        e->before = e->reference;
        e->reference = (tool_picture){0};
    }
    e->clips++;
    return true;
}

static bool run_clips(eval *e)
{
    for (size_t first = 0, end; first < e->name_count; first = end) {
        const size_t bytes = clip_bytes(e->names[first]);
        for (end = first + 1; end < e->name_count; end++)
            if (clip_bytes(e->names[end]) != bytes || strncmp(e->names[first], e->names[end], bytes) != 0)
                break;
        if (!run_clip(e, first, end))
            return false;
    }
    return e->clips || fails(e, "--frames \"%s\": no frame has a \"reference\"", e->frames);
}

/* --- The report --- */

static void print(const eval *e)
{
    int wide = 36;

    for (uint32_t i = 0; i < e->row_count; i++)
        wide = (int)strlen(e->rows[i].name) > wide ? (int)strlen(e->rows[i].name) : wide;
    printf("%" PRIu32 " clips, %" PRIu32 " frames%s%s\n", e->clips, e->rows[0].frames, e->oidn ? "" : "; no Open Image Denoise: ",
           e->oidn ? "" : e->no_oidn_why);
    printf("%-*s %8s %7s %9s %8s %9s\n", wide, "", "PSNR dB", "SSIM", "relMSE", "flicker", "ms");
    for (uint32_t i = 0; i < e->row_count; i++) {
        const row *r = &e->rows[i];
        const double n = r->frames;
        char flicker[32] = "-", ms[32] = "-";
        if (r->steps)
            snprintf(flicker, sizeof flicker, "%.2f", 1e3 * r->flicker / r->steps);
        if (r->ms > 0)
            snprintf(ms, sizeof ms, "%.2f", r->ms / n);
        printf("%-*s %8.2f %7.4f %9.4g %8s %9s\n", wide, r->name, r->sums.psnr_db / n, r->sums.ssim / n, r->sums.rel_mse / n, flicker,
               ms);
    }
}

static int report(const eval *e)
{
    json_t *json = bench_report("denoise", "", ""), *rows = json_array();

    for (uint32_t i = 0; i < e->row_count; i++) {
        const row *r = &e->rows[i];
        const double n = r->frames;
        json_array_append_new(rows, json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:i}", "name", r->name, "psnr_db", bench_number(r->sums.psnr_db / n),
                                              "ssim", bench_number(r->sums.ssim / n), "rel_mse", bench_number(r->sums.rel_mse / n), "flicker",
                                              r->steps ? bench_number(1e3 * r->flicker / r->steps) : json_null(), "ms",
                                              r->ms > 0 ? bench_number(r->ms / n) : json_null(), "frames", (int)r->frames));
    }
    json_object_update_new(json, json_pack("{s:i, s:o, s:s?}", "clips", (int)e->clips, "rows", rows, "no_oidn",
                                           e->oidn ? NULL : e->no_oidn_why));
    return bench_save(json, e->json);
}

static int read_arguments(int argc, char **argv, eval *e)
{
    const tool_option options[] = {{"--frames", &e->frames, NULL},     {"--model", &e->models, NULL},
                                   {"--oidn", &e->oidn_path, NULL},    {"--no-oidn", NULL, &e->no_oidn},
                                   {"--upscale", NULL, &e->upscale},   {"--rung", &e->rung, NULL},
                                   {"--socket", &e->socket, NULL},     {"--json", &e->json, NULL},
                                   {"--sheet", &e->sheet, NULL},       {"--edges", &e->edges, NULL}};

    e->rung = "auto";
    e->is_gi = argc > 0 && !strcmp(argv[0], "gi");
    if (argc < 1 || (strcmp(argv[0], "denoise") != 0 && !e->is_gi))
        return tool_usage("eval", "%s%s%s: must be denoise or gi", argc < 1 ? "nothing to judge given" : "unknown \"", argc < 1 ? "" : argv[0],
                          argc < 1 ? "" : "\"");
    if (tool_parse("eval", argc - 1, argv + 1, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    if (!e->frames)
        return tool_usage("eval", "--frames is missing; `tandem help eval` explains it");
    if (e->is_gi && (e->no_oidn || e->oidn_path))
        return tool_usage("eval", "%s is not for gi: Open Image Denoise makes no light", e->no_oidn ? "--no-oidn" : "--oidn");
    if ((e->upscale || e->edges) && (e->is_gi || !e->models))
        return tool_usage("eval", "%s is for denoise with --model", e->upscale ? "--upscale" : "--edges");
    if (e->no_oidn && e->oidn_path)
        return tool_usage("eval", "--oidn and --no-oidn exclude one another");
    return tool_edges_of("eval", e->edges, &e->edges_value) && tool_rung("eval", e->rung, &e->rung_value) ? TOOL_OK : TOOL_USAGE;
}

static void close_eval(eval *e)
{
    start_clip(e);
    for (uint32_t i = 0; i < e->row_count; i++)
        if (e->rows[i].net) {
            tool_denoiser_close(e->rows[i].net);
            free(e->rows[i].net);
        }
    tool_denoiser_close(&e->frame);
    tool_picture_free(&e->reference);
    tool_picture_free(&e->drawn.picture);
    bench_oidn_close(&e->oidn);
    bench_free_names(e->names, e->name_count);
}

int bench_eval(int argc, char **argv)
{
    eval *e = calloc(1, sizeof *e);

    if (!e)
        return tool_fail("eval", "out of memory");
    int status = read_arguments(argc, argv, e);
    if (status == TOOL_OK && e->json && !tool_can_write("--json", e->json, e->why, sizeof e->why))
        status = tool_fail("eval", "%s", e->why);
    if (status == TOOL_OK && e->sheet && !tool_picture_can_write("--sheet", e->sheet, e->why, sizeof e->why))
        status = tool_fail("eval", "%s", e->why);
    if (status == TOOL_OK && e->is_gi) {
        status = bench_eval_gi(&(bench_eval_arguments){e->frames, e->models, e->json, e->sheet, e->socket, e->rung_value});
        free(e);
        return status;
    }
    if (status == TOOL_OK && !(bench_list_frames(e->frames, &e->names, &e->name_count, e->why, sizeof e->why) && add_rows(e) && run_clips(e)))
        status = tool_fail("eval", "%s", e->why[0] ? e->why : "failed");
    if (status == TOOL_OK) {
        print(e);
        status = save_sheet(e) ? report(e) : tool_fail("eval", "%s", e->why);
    }
    close_eval(e);
    free(e);
    return status;
}
