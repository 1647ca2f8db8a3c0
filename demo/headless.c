/* A run without a window: pictures, the report, and what the numbers in it were made from.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Quality is measured on a few frames, spread evenly and ending with the last, each against a reference of its own
 * camera; what the other effect makes of them is, too. The filter's accuracy is measured on every row of the last frame, which
 * is also what --dump writes.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "demo/adapt.h"
#include "demo/mixture.h"
#include "demo/recheck.h"
#include "demo/run.h"
#include "demo/tavern.h"
#include "interop/base.h"
#include "kernels/model/safetensors.h"
#include "shaders/filter_shared.h"

enum { DEFAULT_FRAMES = 60, TAVERN_FRAMES = 120, JUDGED_FRAMES = 3, PROBE_EVERY = 4, OVERLAY_WIDTH = 1280, OVERLAY_HEIGHT = 720,
       LARGE_PIXELS = 1 << 16 };
static const double FRAMES_A_SECOND = 30.0; /* of the camera's path */
static const double MOST_OFF = 0.01;        /* of the network on any rung from itself on the CPU: relative L1 */

static const double TAVERN_STEP = 1.0 / 15;  /* seconds of the tavern's a frame */

typedef struct judged {
    demo_cast cast;
    uint32_t index, shift_x, shift_y;
    bool denoised;
    float *noisy, *result, *albedo, *normal; /* the last two for who is compared with */
    float *surfaces;                         /* albedo, normal and depth, for who saves it */
} judged;

typedef struct headless {
    demo_engine *engine;
    demo_pipeline *pipeline;
    const demo_options *options;
    uint32_t frames, width, height;
    size_t picture_floats;
    demo_cast cast;
    demo_tavern *tavern; /* or NULL */
    bool talked[DEMO_SLOTS]; /* when that frame began */
    demo_timings timings;
    demo_trace *trace;
    judged judged[JUDGED_FRAMES];
    uint32_t judged_count, judged_done;
    demo_accuracy sampled;
    demo_adapt adapt;
    demo_frame_result last;
    float history[DEMO_HISTORY][DEMO_STAGES];
    uint32_t history_count, not_denoised;
    double wall_seconds;
    demo_report report;
    demo_stay stays[DEMO_STAYS];
    uint32_t stay_count;
    demo_recheck *recheck;
    demo_oidn *oidn; /* or NULL */
    demo_mixture_sum attention; /* of the pixel that was asked about */
} headless;

bool demo_make_folder(const char *path)
{
    char part[4096];
    const size_t length = strlen(path);
    if (length >= sizeof part)
        return demo_fail("--out: the path is longer than %zu bytes", sizeof part - 1);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != 0)
            continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (mkdir(part, 0777) && errno != EEXIST)
            return demo_fail("cannot make the folder %s: %s", part, strerror(errno));
    }
    struct stat info;
    if (stat(path, &info) || !S_ISDIR(info.st_mode))
        return demo_fail("--out %s: is no folder", path);
    return true;
}

static bool out_path(const headless *h, const char *name, char *path, size_t bytes)
{
    const int length = snprintf(path, bytes, "%s/%s", h->options->out, name);
    return (length > 0 && (size_t)length < bytes) || demo_fail("--out: the path is too long");
}

static bool write_picture(const headless *h, const char *name, const float *picture)
{
    char path[4200];
    uint8_t *rgba = malloc(4 * (size_t)h->width * h->height);
    bool ok = rgba && out_path(h, name, path, sizeof path);
    if (ok) {
        demo_to_bytes(picture, h->width, h->height, rgba);
        ok = demo_png_write(path, rgba, h->width, h->height);
    }
    free(rgba);
    return ok;
}

static demo_frame_request request_of(const headless *h, uint32_t index, bool exact)
{
    const bool automatic = h->options->precision == TANDEM_PRECISION_AUTO, probe = index % PROBE_EVERY == 0;
    return (demo_frame_request){.index = index,
                                .seconds = index / FRAMES_A_SECOND,
                                .cast = h->tavern ? h->tavern->cast : h->cast,
                                .effect = h->options->effect,
                                .preset = h->options->frame.preset,
                                .cut = index == 0,
                                .jitter = h->options->effect == DEMO_EFFECT_DENOISE,
                                .precision = automatic ? demo_adapt_precision(&h->adapt) : h->options->precision,
                                .smooth = TANDEM_SMOOTH_DEFAULT,
                                .exact = exact,
                                .probe = probe,
                                .trial = automatic && h->adapt.up && probe && !exact};
}

static bool keep_judged(headless *h, demo_slot *slot, const demo_frame_result *frame)
{
    if (h->judged_done == h->judged_count || h->judged[h->judged_done].index != frame->index)
        return true;
    judged *j = &h->judged[h->judged_done++];
    j->shift_x = frame->shift_x;
    j->shift_y = frame->shift_y;
    j->denoised = frame->denoised;
    j->cast = slot->request.cast;
    j->noisy = malloc(h->picture_floats * sizeof(float));
    j->result = malloc(h->picture_floats * sizeof(float));
    if (!j->noisy || !j->result)
        return demo_fail("out of memory");
    if (h->oidn) {
        j->albedo = malloc(h->picture_floats * sizeof(float));
        j->normal = malloc(h->picture_floats * sizeof(float));
        if (!j->albedo || !j->normal)
            return demo_fail("out of memory");
        if (!demo_image_read(h->engine, &slot->albedo, j->albedo) || !demo_image_read(h->engine, &slot->normal, j->normal))
            return false;
    }
    if (h->options->save_frames) {
        const size_t pixels = (size_t)h->width * h->height;
        j->surfaces = malloc(7 * pixels * sizeof(float));
        if (!j->surfaces)
            return demo_fail("out of memory");
        if (!demo_surfaces_read(h->pipeline, slot, j->surfaces, j->surfaces + 3 * pixels, j->surfaces + 6 * pixels))
            return false;
    }
    return demo_image_read(h->engine, &slot->radiance, j->noisy) && demo_image_read(h->engine, &slot->result,
                                                                                    j->result);
}

/* How far the frame is from what it should be: of the filter all rows against float64, or one in 16 of a large frame; of the
 * network all of the picture against the same on the CPU. */
static bool check_frame(headless *h, demo_slot *slot, const demo_frame_result *frame, double *error)
{
    demo_tokens tokens = {0};
    demo_accuracy accuracy = {0};
    bool ok;
    if (frame->effect == DEMO_EFFECT_DENOISE) {
        if (!h->recheck)
            h->recheck = demo_recheck_open(h->pipeline);
        ok = h->recheck && demo_recheck_frame(h->recheck, h->pipeline, slot, &accuracy);
    } else {
        const uint32_t step = (uint64_t)h->width * h->height > LARGE_PIXELS ? 16 : 1;
        ok = demo_tokens_read(h->pipeline, slot, &tokens);
        if (ok)
            demo_probe_some(tokens.q, tokens.k, tokens.v, tokens.o, tokens.batch, tokens.q_len, tokens.kv_len,
                            tokens.head_dim, tokens.scale, (uint32_t)frame->index % step, step,
                            h->options->frame.inject_error, h->options->frame.threads, &accuracy);
        demo_tokens_free(&tokens);
    }
    *error = demo_accuracy_rel_l1(&accuracy);
    return ok;
}

/* With --ladder: every frame is in its place, and right. */
static bool keep_stay(headless *h, demo_slot *slot, const demo_frame_result *frame)
{
    demo_stay *s = h->stay_count ? &h->stays[h->stay_count - 1] : NULL;
    const bool network = frame->effect == DEMO_EFFECT_DENOISE;
    const double most = network ? MOST_OFF : h->options->max_error;
    double error;
    if (frame->index + 1 != h->timings.count)
        return demo_fail("--ladder: frame %u came as number %zu", (unsigned)frame->index, h->timings.count - 1);
    if (!s || s->rung != frame->rung) {
        if (h->stay_count == DEMO_STAYS)
            return demo_fail("--ladder: more than %d steps", DEMO_STAYS);
        s = &h->stays[h->stay_count++];
        *s = (demo_stay){.rung = frame->rung, .first = (uint32_t)frame->index};
        snprintf(s->device, sizeof s->device, "%s", slot->station->tandem.info.device);
    }
    s->frames++;
    if (!frame->denoised) {
        s->not_filtered++;
        return true;
    }
    if (!check_frame(h, slot, frame, &error))
        return false;
    s->worst_rel_l1 = error > s->worst_rel_l1 || error != error ? error : s->worst_rel_l1;
    return error <= most || demo_fail("--ladder: frame %u on the rung %s: relative L1 error %.4g, more than %s%.4g",
                                      (unsigned)frame->index, demo_rungs[frame->rung], error,
                                      network ? "" : "--max-error ", most);
}

static bool complete(headless *h, demo_slot *slot)
{
    demo_frame_result frame;
    if (!demo_frame_complete(h->pipeline, slot, &frame) || !demo_timings_add(&h->timings, &frame))
        return false;
    if (h->options->ladder && !keep_stay(h, slot, &frame))
        return false;
    if (h->trace)
        demo_trace_frame(h->trace, &frame);
    if (h->tavern) {
        demo_tavern_took(h->tavern, frame.frame_ms, h->talked[slot->index]);
        demo_tavern_poll(h->tavern);
    }
    if (h->history_count == DEMO_HISTORY)
        memmove(h->history[0], h->history[1], sizeof h->history - sizeof h->history[0]);
    else
        h->history_count++;
    for (int i = 0; i < DEMO_STAGES; i++)
        h->history[h->history_count - 1][i] = (float)frame.stage_ms[i];
    if (frame.probed)
        demo_accuracy_merge(&h->sampled, &frame.accuracy);
    if (h->options->precision == TANDEM_PRECISION_AUTO && h->options->frame.inject_error == 0)
        demo_adapt_frame(&h->adapt, &frame);
    h->not_denoised += !frame.denoised;
    h->last = frame;
    bool ok = keep_judged(h, slot, &frame);
    if (ok && frame.index == 0) {
        float *picture = malloc(h->picture_floats * sizeof(float));
        ok = picture && demo_image_read(h->engine, &slot->result, picture) && write_picture(h, "first.png", picture);
        free(picture);
    }
    return ok;
}

static bool consume_up_to(headless *h, uint32_t frames, uint32_t *consumed)
{
    for (; *consumed < frames && *consumed < h->frames; ++*consumed) {
        demo_slot *slot = &h->pipeline->slots[*consumed % DEMO_SLOTS];
        if (!slot->consumed && !demo_frame_consume(h->pipeline, slot, NULL))
            return false;
        if (h->tavern)
            demo_tavern_poll(h->tavern);
    }
    return true;
}

/* First nobody talks, so that there are such frames, too. */
static void live(headless *h, uint32_t index)
{
    if (!h->tavern)
        return;
    if (index >= h->frames / 4)
        demo_tavern_script(h->tavern);
    h->talked[index % DEMO_SLOTS] = demo_tavern_talking(h->tavern);
    demo_tavern_step(h->tavern, TAVERN_STEP);
}

static bool begin(headless *h, uint32_t index, uint32_t *consumed)
{
    demo_pipeline *p = h->pipeline;
    demo_slot *slot = &p->slots[index % DEMO_SLOTS];
    char text[300];
    live(h, index);
    const demo_frame_request request = request_of(h, index, false);
    if (h->options->ladder && index && index % h->options->ladder == 0) {
        const demo_switch outcome = demo_pipeline_step_down(p, false, text, sizeof text);
        if (outcome != DEMO_SWITCHED)
            return demo_fail("--ladder: %s", outcome == DEMO_SWITCH_LATER ? "the step before is not over" : text);
    }
    if (!demo_frame_begin(p, slot, &request))
        return false;
    /* A frame that is one submit is not to wait for the next one; what was begun before it goes first. */
    return !demo_frame_at_once(slot) ||
           (consume_up_to(h, index, consumed) && demo_frame_consume(p, slot, NULL));
}

/* Will complete() read the picture of this frame back? */
static bool is_read_back(const headless *h, uint32_t index)
{
    return index == 0 || (h->judged_done < h->judged_count && h->judged[h->judged_done].index == index);
}

static bool render_frames(headless *h)
{
    demo_pipeline *p = h->pipeline;
    demo_frame_result warm;
    demo_frame_request request = request_of(h, 0, false);
    /* Drivers compile shaders when they first run: one frame that nobody counts. */
    if (!demo_frame_begin(p, &p->slots[0], &request) || !demo_frame_consume(p, &p->slots[0], NULL) ||
        !demo_frame_complete(p, &p->slots[0], &warm))
        return false;
    const uint64_t start = td_now_ns();
    const uint32_t behind = p->in_flight - 1;
    uint32_t consumed = 0;
    for (uint32_t i = 0; i < h->frames + 2 * behind; i++) {
        if (i >= 2 * behind && behind) {
            /* The next frame is wholly submitted first, lest it wait for a picture to be read back. */
            if ((h->options->ladder || is_read_back(h, i - 2 * behind)) && !consume_up_to(h, i, &consumed))
                return false;
            if (!complete(h, &p->slots[i % DEMO_SLOTS]))
                return false;
        }
        if (i < h->frames && !begin(h, i, &consumed))
            return false;
        if (i >= behind && !consume_up_to(h, i - behind + 1, &consumed))
            return false;
        if (!behind && !complete(h, &p->slots[i % DEMO_SLOTS]))
            return false;
    }
    h->wall_seconds = 1e-9 * (double)(td_now_ns() - start);
    return true;
}

static double median(const double *values, const demo_stay *s)
{
    double *copy = malloc((s->frames + 1) * sizeof *copy);
    if (!copy)
        return 0;
    memcpy(copy, values + s->first, s->frames * sizeof *copy);
    const double p50 = demo_percentiles_of(copy, s->frames).p50;
    free(copy);
    return p50;
}

/* While the timings are still in the order of the frames. */
static void sum_up_stays(headless *h)
{
    for (uint32_t i = 0; i < h->stay_count; i++) {
        demo_stay *s = &h->stays[i];
        s->frame_ms = median(h->timings.frame_ms, s);
        s->to_ms = median(h->timings.stage_ms[DEMO_TO], s);
        s->back_ms = median(h->timings.stage_ms[DEMO_BACK], s);
        s->attention_ms = median(h->timings.stage_ms[DEMO_ATTENTION], s);
    }
}

static bool write_dump(const headless *h, const demo_tokens *t)
{
    char why[256] = "", scale[32];
    snprintf(scale, sizeof scale, "%.9g", (double)t->scale);
    const td_safetensors_text texts[] = {{"scale", scale}, {"precision", demo_precision_name(h->report.precision)}};
    const td_safetensors_item items[] = {{"q", "F16", 4, {t->batch, 1, t->q_len, t->head_dim}, t->q},
                                         {"k", "F16", 4, {t->batch, 1, t->kv_len, t->head_dim}, t->k},
                                         {"v", "F16", 4, {t->batch, 1, t->kv_len, t->head_dim}, t->v},
                                         {"o", "F16", 4, {t->batch, 1, t->q_len, t->head_dim}, t->o}};
    tandem_status status = td_safetensors_write_texts(h->options->dump, texts, 2, items, 4, why, sizeof why);
    return status == TANDEM_OK || demo_fail("cannot write %s: %s", h->options->dump,
                                            why[0] ? why : tandem_status_text(status));
}

static demo_slot *last_slot(const headless *h)
{
    return &h->pipeline->slots[(h->frames - 1) % DEMO_SLOTS];
}

/* What is not the run's own: the last frame stays in its slot, to be shown. */
static demo_slot *spare_slot(const headless *h)
{
    return &h->pipeline->slots[h->frames % DEMO_SLOTS];
}

static bool measure_accuracy(headless *h)
{
    demo_tokens tokens = {0};
    demo_slot *slot = last_slot(h);
    h->report.precision = h->last.precision;
    if (!h->last.denoised)
        return !h->options->dump || demo_fail("--dump: the last frame was not filtered, there is nothing to write");
    if (h->last.effect == DEMO_EFFECT_DENOISE)
        return true;
    bool ok = demo_tokens_read(h->pipeline, slot, &tokens);
    if (ok)
        demo_probe_all(tokens.q, tokens.k, tokens.v, tokens.o, tokens.batch, tokens.q_len, tokens.kv_len,
                       tokens.head_dim,
                       tokens.scale, h->options->frame.inject_error, h->options->frame.threads, &h->report.accuracy);
    ok = ok && (!h->options->dump || write_dump(h, &tokens));
    demo_tokens_free(&tokens);
    return ok;
}

/* The last frame's weights of a pixel, before another frame takes its memory. */
static bool write_attention(headless *h)
{
    const uint32_t *at = h->options->attention;
    const size_t pixels = (size_t)h->width * h->height;
    if (!h->options->attention_given)
        return true;
    if (h->last.effect != DEMO_EFFECT_DENOISE || !h->last.denoised)
        return demo_fail("--attention-at: the last frame is not the trained network's");
    float *picture = malloc(h->picture_floats * sizeof(float)), *maps = malloc(2 * pixels * sizeof(float));
    demo_mixture *m = picture && maps ? demo_mixture_open(h->pipeline, h->last.preset) : NULL;
    bool ok = m && demo_mixture_frame(m, h->pipeline, last_slot(h)) && demo_image_read(h->engine, &last_slot(h)->result, picture) &&
              demo_mixture_at(m, at[0], at[1], maps, maps + pixels, &h->attention);
    if (ok) {
        h->report.attention = &h->attention;
        h->report.attention_at = at;
        demo_mixture_paint(picture, maps, maps + pixels, h->width, h->height, at[0], at[1], picture);
        ok = write_picture(h, "attention.png", picture);
    }
    demo_mixture_close(m);
    free(picture);
    free(maps);
    return ok;
}

/* The frame once more, without frames before it: how near to the reference an effect comes. NaN if it did not come to a
 * picture. */
static bool judge_again(headless *h, const judged *j, uint32_t effect, uint32_t preset, const float *reference, double *db)
{
    demo_slot *slot = spare_slot(h);
    demo_frame_request request = request_of(h, j->index, false);
    demo_frame_result frame;
    float *picture = malloc(h->picture_floats * sizeof(float));
    request.effect = effect;
    request.preset = preset;
    request.cast = j->cast;
    request.cut = true;
    request.precision = TANDEM_PRECISION_AUTO;
    request.probe = request.trial = false;
    bool ok = picture && demo_frame_begin(h->pipeline, slot, &request) && demo_frame_consume(h->pipeline, slot, NULL) &&
              demo_frame_complete(h->pipeline, slot, &frame) && demo_image_read(h->engine, &slot->result, picture);
    if (ok)
        *db = frame.denoised ? demo_psnr_db(picture, reference, h->width, h->height) : (double)NAN;
    free(picture);
    return ok;
}

static bool judge_others(headless *h, const judged *j, const float *reference)
{
    demo_quality *q = &h->report.quality;
    double db = 0;
    const uint32_t preset = h->options->frame.preset;
    const bool denoises = h->options->effect == DEMO_EFFECT_DENOISE;
    bool ok = !denoises || judge_again(h, j, DEMO_EFFECT_FILTER, preset, reference, &db);
    q->filter_db += denoises ? db / h->judged_done : 0;
    for (uint32_t i = 0; ok && i < DEMO_PRESETS; i++) {
        if (!h->pipeline->station->denoiser.networks[i].instance)
            continue;
        ok = judge_again(h, j, DEMO_EFFECT_DENOISE, i, reference, &db);
        q->preset_db[i] += db / h->judged_done;
    }
    q->single_db = q->preset_db[preset];
    return ok;
}

/* The same pictures by Open Image Denoise. */
static bool judge_oidn(headless *h, const judged *j, bool last, const float *reference)
{
    demo_quality *q = &h->report.quality;
    char why[300];
    double ms;
    float *picture = h->oidn ? malloc(h->picture_floats * sizeof(float)) : NULL;
    if (!h->oidn)
        return true;
    bool ok = picture != NULL;
    if (ok && !demo_oidn_run(h->oidn, j->noisy, j->albedo, j->normal, picture, &ms, why, sizeof why))
        ok = demo_fail("%s", why);
    if (ok) {
        q->oidn_db += demo_psnr_db(picture, reference, h->width, h->height) / h->judged_done;
        q->oidn_ms += ms / h->judged_done;
        ok = !last || write_picture(h, "oidn.png", picture);
    }
    free(picture);
    return ok;
}

static void rgb_of(const float *rgba, size_t pixels, float *rgb)
{
    for (size_t i = 0; i < pixels; i++)
        memcpy(rgb + 3 * i, rgba + 4 * i, 3 * sizeof *rgb);
}

/* The frame with its reference, for other denoisers. */
static bool save_frame(const headless *h, const judged *j, const float *reference)
{
    char name[64], path[4200], why[256] = "";
    const size_t pixels = (size_t)h->width * h->height;
    float *color = malloc(2 * 3 * pixels * sizeof *color), *should = color ? color + 3 * pixels : NULL;
    const td_safetensors_item items[] = {{"color", "F32", 3, {h->height, h->width, 3}, color},
                                         {"albedo", "F32", 3, {h->height, h->width, 3}, j->surfaces},
                                         {"normal", "F32", 3, {h->height, h->width, 3}, j->surfaces + 3 * pixels},
                                         {"depth", "F32", 3, {h->height, h->width, 1}, j->surfaces + 6 * pixels},
                                         {"reference", "F32", 3, {h->height, h->width, 3}, should}};
    if (!color)
        return demo_fail("out of memory");
    rgb_of(j->noisy, pixels, color);
    rgb_of(reference, pixels, should);
    snprintf(name, sizeof name, "%s-%06u.00.safetensors", demo_scene_name(h->options->frame.scene), j->index);
    bool ok = out_path(h, name, path, sizeof path);
    if (ok && td_safetensors_write(path, items, sizeof items / sizeof *items, why, sizeof why) != TANDEM_OK)
        ok = demo_fail("cannot write %s: %s", path, why);
    free(color);
    return ok;
}

static bool judge(headless *h)
{
    demo_seams seams = {0};
    float *reference = malloc(h->picture_floats * sizeof(float));
    bool ok = reference != NULL;
    for (uint32_t i = 0; ok && i < h->judged_done; i++) {
        const judged *j = &h->judged[i];
        demo_frame_request at = request_of(h, j->index, false);
        at.cast = j->cast;
        ok = demo_render_reference(h->pipeline, spare_slot(h), &at, h->options->samples, DEMO_REFERENCE_STREAM + j->index,
                                   reference);
        if (!ok)
            break;
        h->report.noisy_db += demo_psnr_db(j->noisy, reference, h->width, h->height) / h->judged_done;
        h->report.box_db += demo_best_box_db(j->noisy, reference, h->width, h->height) / h->judged_done;
        h->report.result_db += demo_psnr_db(j->result, reference, h->width, h->height) / h->judged_done;
        demo_seams_add(&seams, j->result, reference, h->width, h->height, TD_FILTER_TILE, j->shift_x, j->shift_y);
        ok = (!h->options->save_frames || save_frame(h, j, reference)) && judge_others(h, j, reference) &&
             judge_oidn(h, j, i + 1 == h->judged_done, reference);
        if (ok && i + 1 == h->judged_done)
            ok = write_picture(h, "last.png", j->result) && write_picture(h, "reference.png", reference);
    }
    if (h->options->effect == DEMO_EFFECT_FILTER)
        h->report.quality.filter_db = h->report.result_db;
    h->report.seams_ratio = demo_seams_ratio(&seams);
    free(reference);
    return ok;
}

/* What a window would show at the end of this run, drawn into an image. */
static bool write_overlay(headless *h)
{
    char path[4200], why[96];
    demo_pipeline *p = h->pipeline;
    const uint32_t preset = p->options.preset, next = demo_denoiser_preset_after(&p->station->denoiser, preset);
    demo_screen screen;
    demo_view view = demo_first_view(h->options->precision);
    demo_overlay_data data = {.info = &p->info,
                              .vulkan_device = h->engine->properties.deviceName,
                              .scene = demo_scene_name(h->options->frame.scene),
                              .effect = h->options->effect,
                              .has_denoiser = p->has_denoiser,
                              .model = h->report.model,
                              .preset = h->report.preset,
                              .next_preset = next == preset ? NULL : demo_presets[next],
                              .in_history = h->frames,
                              .notice = p->trouble[0] ? p->trouble : NULL,
                              .warns = true,
                              .width = h->width,
                              .height = h->height,
                              .in_flight = p->in_flight,
                              .history = (const float (*)[DEMO_STAGES])h->history,
                              .history_count = h->history_count,
                              .precision_used = h->last.precision,
                              .accuracy = h->report.accuracy,
                              .frame_index = h->last.index,
                              .denoised = h->last.denoised,
                              .quality = h->report.quality,
                              .noisy_db = h->report.noisy_db,
                              .box_db = h->report.box_db,
                              .reference_samples = h->options->samples,
                              .result_db = h->last.denoised ? h->report.result_db : 0};
    demo_adapt_text(&h->adapt, why, sizeof why);
    data.why = why;
    demo_shown shown;
    if (h->tavern) {
        demo_tavern_show(h->tavern, (float)h->width / (float)h->height, &shown);
        data.shown = &shown;
        view.wipe = DEMO_WIPE_NONE;
    }
    /* Of the last rung alone. */
    const size_t first = h->stay_count ? h->stays[h->stay_count - 1].first : 0, count = h->timings.count - first;
    data.frame = demo_percentiles_of(h->timings.frame_ms + first, count);
    for (int i = 0; i < DEMO_STAGES; i++)
        data.stages[i] = demo_percentiles_of(h->timings.stage_ms[i] + first, count);
    bool ok = demo_screen_create(&screen, h->engine, VK_NULL_HANDLE, 0, OVERLAY_WIDTH, OVERLAY_HEIGHT) &&
              demo_overlay_create(h->engine, screen.pass, 1);
    if (ok) {
        screen.view = &view;
        screen.data = &data;
        screen.delta_seconds = 1.0 / 60.0;
        const demo_present present = {.record = demo_screen_record, .user = &screen};
        ok = demo_frame_redraw(p, last_slot(h), &present) && out_path(h, "overlay.png", path, sizeof path) &&
             demo_screen_save(&screen, path);
    }
    demo_overlay_destroy(h->engine);
    demo_screen_destroy(&screen);
    return ok;
}

static void print_talk(const demo_tavern *t)
{
    const demo_percentiles quiet = demo_samples_percentiles(&t->quiet), talking = demo_samples_percentiles(&t->talking),
                           spent = demo_samples_percentiles(&t->spent);
    if (t->note[0])
        printf("%s\n", t->note);
    for (uint32_t i = 0; i < t->told_count; i++) {
        const demo_reply *r = &t->told[i].reply;
        char said[DEMO_SAID_BYTES];
        demo_reply_said(r, said, sizeof said);
        const char *name = demo_cards[t->told[i].who].name;
        printf("  to %s: %s\n  %s: %s", name, r->asked, name, said);
        printf(r->act ? r->item[0] ? " [%s %s]\n" : " [%s]\n" : "\n", demo_acts[r->act], r->item);
    }
    if (t->talk.language)
        printf("talk: %.1f tokens/s; a frame: p99 %.0f us of %u us; time of a frame p99 %.2f ms without talk (%u), %.2f ms with (%u)\n",
               t->talk_s > 0 ? (double)t->tokens / t->talk_s : 0, spent.p99, t->talk.options.budget_us, quiet.p99, t->quiet.count,
               talking.p99, t->talking.count);
}

static void print_summary(const headless *h)
{
    double *ms = h->timings.frame_ms;
    const demo_report *r = &h->report;
    const demo_percentiles frame = demo_percentiles_of(ms, h->timings.count);
    const bool network = h->options->effect == DEMO_EFFECT_DENOISE;
    printf("%u frames of %ux%u, %s on %s, rung %s\n", h->frames, h->width, h->height,
           network ? "the trained denoiser" : demo_precision_name(r->precision), r->info->device, demo_rungs[r->info->rung]);
    char why_not[400];
    demo_why_not_faster(r->info, why_not, sizeof why_not);
    if (why_not[0])
        printf("%s\n", why_not);
    if (!network && h->options->precision == TANDEM_PRECISION_AUTO) {
        char why[96];
        demo_adapt_text(&h->adapt, why, sizeof why);
        printf("precision: %s\n", why);
    }
    printf("time of a frame: p50 %.2f ms, p95 %.2f ms, p99 %.2f ms; all %u took %.1f s, with checks and pictures\n",
           frame.p50, frame.p95, frame.p99, h->frames, h->wall_seconds);
    if (!network)
        printf("accuracy of the last frame: cos %.6f, relative L1 %.5f, RMSE %.6f; relative L1 of rows sampled before "
               "%.5f\n",
               demo_accuracy_cos(&r->accuracy), demo_accuracy_rel_l1(&r->accuracy), demo_accuracy_rmse(&r->accuracy),
               demo_accuracy_rel_l1(&h->sampled));
    printf("PSNR over %u frames: input %.2f dB, best box filter %.2f dB, ", h->judged_done, r->noisy_db, r->box_db);
    if (network)
        printf("attention without training %.2f dB, trained denoiser %.2f dB (%.2f of single frames)", r->quality.filter_db,
               r->result_db, r->quality.single_db);
    else
        printf("attention %.2f dB", r->result_db);
    if (r->quality.oidn)
        printf(", Open Image Denoise %.2f dB (%.1f ms; %s)", r->quality.oidn_db, r->quality.oidn_ms, r->quality.oidn);
    printf("; seams %.3f\n", r->seams_ratio);
    for (int i = 0; network && r->preset && i < DEMO_PRESETS; i++)
        if (r->networks[i].instance)
            printf("%s %-8s %.2f dB of single frames, %.1f MB of weights, %.1f MB of scratch memory\n",
                   demo_presets[i] == r->preset ? "preset in use:   " : "preset beside it:", demo_presets[i],
                   r->quality.preset_db[i], 1e-6 * (double)r->networks[i].weight_bytes, 1e-6 * (double)r->networks[i].scratch_bytes);
    for (uint32_t i = 0; i < h->stay_count; i++) {
        const demo_stay *s = &h->stays[i];
        printf("%-8s frames %u to %u: frame %.3f ms, hand-over %.1f + %.1f us, job %.3f ms, "
               "worst relative L1 %.5f\n",
               demo_rungs[s->rung], (unsigned)s->first, (unsigned)(s->first + s->frames - 1), s->frame_ms,
               1e3 * s->to_ms, 1e3 * s->back_ms, s->attention_ms, s->worst_rel_l1);
    }
    if (h->tavern)
        print_talk(h->tavern);
    printf("files in %s\n", h->options->out);
}

int demo_run_headless(demo_engine *e, demo_pipeline *p, const demo_options *o, demo_oidn *oidn)
{
    char path[4200];
    headless *h = calloc(1, sizeof *h);
    bool ok = h != NULL;
    if (!h) {
        demo_fail("out of memory");
        demo_oidn_close(oidn);
        return 1;
    }
    h->engine = e;
    h->pipeline = p;
    h->options = o;
    h->oidn = oidn;
    h->report.quality.oidn = oidn ? demo_oidn_name(oidn) : NULL;
    demo_adapt_init(&h->adapt, o->max_error);
    demo_scene_cast(&h->cast);
    const bool tavern = demo_scene_has_cast(o->frame.scene);
    h->frames = o->frames ? o->frames : tavern ? TAVERN_FRAMES : DEFAULT_FRAMES;
    h->tavern = tavern ? demo_tavern_open(&o->talk) : NULL;
    h->width = p->options.width;
    h->height = p->options.height;
    h->picture_floats = (size_t)4 * h->width * h->height;
    h->judged_count = h->frames < JUDGED_FRAMES ? h->frames : JUDGED_FRAMES;
    for (uint32_t i = 0; i < h->judged_count; i++)
        h->judged[i].index = (uint32_t)((uint64_t)(i + 1) * h->frames / h->judged_count) - 1;
    ok = demo_make_folder(o->out) && (!tavern || h->tavern);
    if (ok && o->trace) {
        h->trace = demo_trace_open(o->trace, &p->info, e->properties.deviceName);
        ok = h->trace != NULL;
    }
    ok = ok && render_frames(h);
    sum_up_stays(h);
    h->report.info = &p->info;
    h->report.effect = o->effect;
    h->report.model = p->has_denoiser ? p->options.models[p->options.preset] : NULL;
    h->report.preset = p->has_denoiser && !p->options.model_asked ? demo_presets[p->options.preset] : NULL;
    h->report.networks = p->station->denoiser.networks;
    h->report.timings = &h->timings;
    h->report.frames = h->frames;
    h->report.width = h->width;
    h->report.height = h->height;
    h->report.stays = h->stays;
    h->report.stay_count = h->stay_count;
    h->report.tavern = h->tavern;
    if (h->tavern)
        demo_tavern_finish(h->tavern);
    ok = ok && write_attention(h) && measure_accuracy(h) && judge(h) && out_path(h, "report.json", path, sizeof path) &&
         demo_report_write(path, &h->report) && write_overlay(h);
    ok = demo_trace_close(h->trace) && ok;
    if (ok)
        print_summary(h);
    if (ok && h->not_denoised)
        ok = demo_fail("%u of %u frames were not filtered: %s", h->not_denoised, h->frames, p->trouble);
    for (uint32_t i = 0; i < h->judged_done; i++) {
        free(h->judged[i].noisy);
        free(h->judged[i].result);
        free(h->judged[i].albedo);
        free(h->judged[i].normal);
        free(h->judged[i].surfaces);
    }
    demo_timings_free(&h->timings);
    demo_recheck_close(h->recheck);
    demo_oidn_close(h->oidn);
    demo_tavern_close(h->tavern);
    free(h);
    return ok ? 0 : 1;
}
