/* `tandem eval gi`: indirect light beside what games have instead of it, on frames with references.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * What games have takes a number that somebody chose. Frames are gone through twice: first for the
 * number that is best for all of them together, then for what comes of it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/tool/denoiser.h"
#include "engine_plugin/tool/quality.h"
#include "tests/bench/bench.h"
#include "tests/bench/eval.h"
#include "tests/bench/screen_light.h"

enum {
    SCREENS = BENCH_BOUNCE + 1,
    PRECISIONS = 3,
    ROWS = 2 * SCREENS - 1 + PRECISIONS * BENCH_EVAL_MODELS,
    STRENGTHS = 41
};

typedef struct row {
    char name[64];
    bench_screen screen;
    bool is_best;       /* the frame's own ambient light */
    tool_denoiser *net; /* else NULL */
    tool_picture now;   /* direct and indirect light */
    tool_quality sums;
    double ms;
} row;

typedef struct eval {
    const bench_eval_arguments *a;
    char **names;
    size_t name_count;
    row rows[ROWS];
    uint32_t row_count, frames;
    double strengths[SCREENS][STRENGTHS]; /* sums of PSNR with each: of mean light */
    uint32_t chosen[SCREENS];
    tool_denoiser frame; /* what is read: no network of its own */
    tool_picture reference;
    bench_lit lit;
    bench_sheet drawn;
    char why[700];
} eval;

static bool fails(eval *e, const char *name, const char *why)
{
    snprintf(e->why, sizeof e->why, "%s%s%s", name, name[0] ? ": " : "", why);
    return false;
}

/* 1/16 to 16 */
static float strength_of(uint32_t i)
{
    static const float root[5] = {1, 1.1486984f, 1.3195079f, 1.5157166f, 1.7411011f};

    return root[i % 5] * (float)(1u << i / 5) / 16;
}

static bool read_frame(eval *e, const char *name)
{
    const tool_picture *f = e->frame.frame, *indirect = &e->frame.reference;
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", e->a->frames, name);
    tool_picture_free(&e->reference);
    if (!tool_denoiser_gi_frame(&e->frame, path))
        return fails(e, "", e->frame.why);
    if (!indirect->pixels)
        return fails(e, name, "has no tensor \"indirect\"");
    e->lit =
        (bench_lit){&f[TOOL_COLOR], &f[TOOL_ALBEDO], &f[TOOL_NORMAL], &f[TOOL_DEPTH], &f[TOOL_RAY]};
    if (!tool_picture_new(&e->reference, indirect->width, indirect->height, 3))
        return fails(e, name, "out of memory");
    for (size_t i = 0; i < 3 * (size_t)indirect->width * indirect->height; i++)
        e->reference.pixels[i] = f[TOOL_COLOR].pixels[i] + indirect->pixels[i];
    return true;
}

/* --- Rows --- */

static bool add_network(eval *e, const char *path, uint32_t precision)
{
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    row *r = &e->rows[e->row_count];

    r->net = calloc(1, sizeof *r->net);
    if (!r->net)
        return fails(e, "", "out of memory");
    e->row_count++;
    snprintf(r->name, sizeof r->name, "%.40s %s", file, tool_precisions[precision]);
    r->net->precision = precision;
    r->net->output = "indirect";
    return tool_denoiser_open(r->net, path, e->a->rung, e->a->socket, NULL) || fails(e, "", r->net->why);
}

static bool add_rows(eval *e)
{
    static const char *const names[SCREENS] = {"direct light alone", "constant ambient",
                                               "ambient, SSAO", "screen-space bounce"};
    char path[4096];
    uint32_t count = 0;

    for (int is_best = 0; is_best < 2; is_best++)
        for (uint32_t i = (uint32_t)is_best; i < SCREENS; i++) {
            row *r = &e->rows[e->row_count++];
            snprintf(r->name, sizeof r->name, "%s%s", names[i], is_best ? ", best" : "");
            r->screen = (bench_screen)i;
            r->is_best = is_best;
        }
    for (const char *at = e->a->models; at && *at;
         at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',')) {
        snprintf(path, sizeof path, "%.*s", (int)strcspn(at, ","), at);
        if (count++ == BENCH_EVAL_MODELS)
            return fails(e, "--model", "more than 8");
        for (uint32_t precision = TANDEM_PRECISION_F16; precision <= TANDEM_PRECISION_4B;
             precision++)
            if (!add_network(e, path, precision))
                return false;
    }
    return true;
}

/* --- The best number --- */

static bool psnr_with(eval *e, const bench_light *light, const float mean[3], float strength,
                      double *psnr_db)
{
    const float ambient[3] = {strength * mean[0], strength * mean[1], strength * mean[2]};
    tool_picture sum = {0};
    const bool done = bench_light_sum(&e->lit, light, ambient, &sum);

    if (done)
        *psnr_db = tool_psnr_of(&sum, &e->reference);
    tool_picture_free(&sum);
    return done;
}

static bool choose_strengths(eval *e)
{
    float mean[3];
    double psnr_db = 0;

    for (size_t n = 0; n < e->name_count; n++) {
        if (!read_frame(e, e->names[n]))
            return false;
        bench_mean_light(&e->lit, mean);
        for (uint32_t i = 0; i < SCREENS; i++) {
            bench_light light = {0};
            bool done = bench_screen_light(&e->lit, (bench_screen)i, &light);
            for (uint32_t s = 0; s < STRENGTHS && done; s++) {
                done = psnr_with(e, &light, mean, strength_of(s), &psnr_db);
                e->strengths[i][s] += psnr_db;
            }
            bench_light_free(&light);
            if (!done)
                return fails(e, "", "out of memory");
        }
    }
    for (uint32_t i = 0; i < SCREENS; i++)
        for (uint32_t s = 1; s < STRENGTHS; s++)
            if (e->strengths[i][s] > e->strengths[i][e->chosen[i]])
                e->chosen[i] = s;
    return true;
}

/* --- What it is worth --- */

static bool run_network(eval *e, row *r)
{
    /* A run reads them, and makes none of them its own. */
    memcpy(r->net->frame, e->frame.frame, sizeof r->net->frame);
    const bool done = tool_denoiser_run(r->net);
    memset(r->net->frame, 0, sizeof r->net->frame);
    if (!done)
        return fails(e, r->name, r->net->why);
    r->ms += r->net->ms;
    r->now = r->net->results[TOOL_OUT];
    r->net->results[TOOL_OUT] = (tool_picture){0};
    for (size_t i = 0; i < 3 * (size_t)r->now.width * r->now.height; i++)
        r->now.pixels[i] += e->lit.direct->pixels[i];
    return true;
}

static bool run_screen(eval *e, row *r)
{
    bench_light light = {0};
    float ambient[3];
    bool done = bench_screen_light(&e->lit, r->screen, &light);

    if (done && r->is_best)
        bench_best_ambient(&e->lit, &light, &e->reference, ambient);
    if (done && !r->is_best) {
        bench_mean_light(&e->lit, ambient);
        for (int c = 0; c < 3; c++)
            ambient[c] *= strength_of(e->chosen[r->screen]);
    }
    done = (done && bench_light_sum(&e->lit, &light, ambient, &r->now)) ||
           fails(e, "", "out of memory");
    bench_light_free(&light);
    return done;
}

static bool run_frame(eval *e, const char *name)
{
    tool_quality q;

    if (!read_frame(e, name))
        return false;
    for (uint32_t i = 0; i < e->row_count; i++) {
        row *r = &e->rows[i];
        tool_picture_free(&r->now);
        if (!(r->net ? run_network(e, r) : run_screen(e, r)))
            return false;
        if (!tool_quality_of(&r->now, &e->reference, &q))
            return fails(e, "", "out of memory");
        r->sums.psnr_db += q.psnr_db;
        r->sums.ssim += q.ssim;
        r->sums.rel_mse += q.rel_mse;
    }
    e->frames++;
    if (!e->a->sheet || e->drawn.line == BENCH_SHEET_LINES)
        return true;
    if (!bench_sheet_begin(&e->drawn, e->row_count + 1))
        return fails(e, "", "out of memory");
    const double gain = bench_sheet_gain(&e->reference);
    for (uint32_t i = 0; i < e->row_count; i++)
        bench_sheet_draw(&e->drawn, i, &e->rows[i].now, gain);
    bench_sheet_draw(&e->drawn, e->row_count, &e->reference, gain);
    return true;
}

static bool run_frames(eval *e)
{
    for (size_t i = 0; i < e->name_count; i++)
        if (!run_frame(e, e->names[i]))
            return false;
    return true;
}

/* --- The report --- */

static void print(const eval *e)
{
    printf("%" PRIu32 " frames\n%-44s %8s %7s %9s %9s\n", e->frames, "", "PSNR dB", "SSIM",
           "relMSE", "ms");
    for (uint32_t i = 0; i < e->row_count; i++) {
        const row *r = &e->rows[i];
        char ms[32] = "-";
        if (r->net)
            snprintf(ms, sizeof ms, "%.2f", r->ms / e->frames);
        printf("%-44s %8.2f %7.4f %9.4g %9s\n", r->name, r->sums.psnr_db / e->frames,
               r->sums.ssim / e->frames, r->sums.rel_mse / e->frames, ms);
    }
    printf("ambient light, of the mean of direct light on surfaces: %.3g, with SSAO %.3g, with the "
           "bounce %.3g\n",
           (double)strength_of(e->chosen[BENCH_AMBIENT]),
           (double)strength_of(e->chosen[BENCH_OCCLUSION]),
           (double)strength_of(e->chosen[BENCH_BOUNCE]));
}

static int report(const eval *e)
{
    json_t *json = bench_report("gi", "", ""), *rows = json_array();

    for (uint32_t i = 0; i < e->row_count; i++) {
        const row *r = &e->rows[i];
        const double n = e->frames;
        const bool has_strength = !r->net && !r->is_best && r->screen != BENCH_NO_LIGHT;
        json_array_append_new(
            rows,
            json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "name", r->name, "psnr_db",
                      bench_number(r->sums.psnr_db / n), "ssim", bench_number(r->sums.ssim / n),
                      "rel_mse", bench_number(r->sums.rel_mse / n), "ms",
                      r->net ? bench_number(r->ms / n) : json_null(), "ambient",
                      has_strength ? bench_number((double)strength_of(e->chosen[r->screen]))
                                   : json_null()));
    }
    json_object_update_new(json, json_pack("{s:i, s:o}", "frames", (int)e->frames, "rows", rows));
    return bench_save(json, e->a->json);
}

static void close_eval(eval *e)
{
    for (uint32_t i = 0; i < e->row_count; i++) {
        tool_picture_free(&e->rows[i].now);
        if (e->rows[i].net)
            tool_denoiser_close(e->rows[i].net);
        free(e->rows[i].net);
    }
    tool_denoiser_close(&e->frame);
    tool_picture_free(&e->reference);
    tool_picture_free(&e->drawn.picture);
    bench_free_names(e->names, e->name_count);
}

int bench_eval_gi(const bench_eval_arguments *arguments)
{
    eval *e = calloc(1, sizeof *e);
    int status = TOOL_OK;

    if (!e)
        return tool_fail("eval", "out of memory");
    e->a = arguments;
    if (!(bench_list_frames(e->a->frames, &e->names, &e->name_count, e->why, sizeof e->why) &&
          add_rows(e) && choose_strengths(e) && run_frames(e)))
        status = tool_fail("eval", "%s", e->why);
    if (status == TOOL_OK) {
        print(e);
        if (e->a->sheet && !bench_sheet_save(&e->drawn, e->a->sheet, e->why, sizeof e->why))
            status = tool_fail("eval", "%s", e->why);
        else if (e->a->sheet)
            printf("%s: a line for each of %" PRIu32
                   " frames, its columns the rows above, and last the reference\n",
                   e->a->sheet, e->drawn.line);
    }
    status = status == TOOL_OK ? report(e) : status;
    close_eval(e);
    free(e);
    return status;
}
