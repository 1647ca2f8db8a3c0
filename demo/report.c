/* The report of a headless run, and the timings that it is made from.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "demo/mixture.h"
#include "demo/output.h"
#include "demo/tavern.h"

bool demo_timings_add(demo_timings *t, const demo_frame_result *frame)
{
    if (t->count == t->capacity) {
        const size_t capacity = t->capacity ? 2 * t->capacity : 256;
        double **arrays[DEMO_STAGES + 1] = {&t->frame_ms};
        for (int i = 0; i < DEMO_STAGES; i++)
            arrays[i + 1] = &t->stage_ms[i];
        for (int i = 0; i <= DEMO_STAGES; i++) {
            double *bigger = realloc(*arrays[i], capacity * sizeof *bigger);
            if (!bigger)
                return demo_fail("out of memory");
            *arrays[i] = bigger;
        }
        uint32_t *rungs = realloc(t->rungs, capacity * sizeof *rungs);
        if (!rungs)
            return demo_fail("out of memory");
        t->rungs = rungs;
        t->capacity = capacity;
    }
    t->rungs[t->count] = frame->rung;
    t->frame_ms[t->count] = frame->frame_ms;
    for (int i = 0; i < DEMO_STAGES; i++)
        t->stage_ms[i][t->count] = frame->stage_ms[i];
    t->count++;
    return true;
}

void demo_timings_free(demo_timings *t)
{
    free(t->frame_ms);
    free(t->rungs);
    for (int i = 0; i < DEMO_STAGES; i++)
        free(t->stage_ms[i]);
    memset(t, 0, sizeof *t);
}

const char *demo_precision_name(uint32_t precision)
{
    return precision ? demo_precisions[precision] : "none";
}

void demo_why_not_faster(const tandem_info *info, char *text, size_t text_bytes)
{
    static const char none[] = "no CUDA here: ";
    const char *reason = info->rung_reason;
    text[0] = 0;
    if (strstr(reason, "no CUDA driver"))
        snprintf(text, text_bytes, "Faster ways need an NVIDIA GPU and its driver.");
    else if (!strncmp(reason, none, sizeof none - 1))
        snprintf(text, text_bytes, "Faster ways need CUDA: %s", reason + sizeof none - 1);
    else if (reason[0])
        snprintf(text, text_bytes, "No faster way: %s", reason);
}

/* A number as JSON has it: no NaN, no infinity. */
static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *percentiles(const double *values, size_t count)
{
    double *copy = malloc((count + 1) * sizeof *copy);
    if (!copy)
        return NULL;
    if (count)
        memcpy(copy, values, count * sizeof *copy);
    const demo_percentiles p = demo_percentiles_of(copy, count);
    free(copy);
    return json_pack("{s:o, s:o, s:o}", "p50_ms", number(p.p50), "p95_ms", number(p.p95), "p99_ms", number(p.p99));
}

static json_t *stays(const demo_report *r)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < r->stay_count; i++) {
        const demo_stay *s = &r->stays[i];
        const demo_timings *t = r->timings;
        json_t *all = json_object();
        json_object_set_new(all, "frame", percentiles(t->frame_ms + s->first, s->frames));
        for (int j = 0; j < DEMO_STAGES; j++)
            json_object_set_new(all, demo_stage_names[j], percentiles(t->stage_ms[j] + s->first, s->frames));
        json_array_append_new(list, json_pack("{s:s, s:s, s:i, s:i, s:i, s:o, s:o}", "rung", demo_rungs[s->rung],
                                              "device", s->device, "first", (int)s->first, "frames", (int)s->frames,
                                              "not_filtered", (int)s->not_filtered, "worst_rel_l1",
                                              number(s->worst_rel_l1), "ms", all));
    }
    return list;
}

/* What each way comes to, on the same frames. */
static json_t *quality(const demo_report *r)
{
    const demo_quality *q = &r->quality;
    const bool network = r->effect == DEMO_EFFECT_DENOISE;
    const double none = (double)NAN;
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:s?, s:o, s:o}", "input_db", number(r->noisy_db), "box_db", number(r->box_db), "filter_db",
                     number(q->filter_db), "denoise_db", number(network ? r->result_db : none), "denoise_single_db",
                     number(r->model ? q->single_db : none), "oidn", q->oidn, "oidn_db", number(q->oidn ? q->oidn_db : none),
                     "oidn_ms", number(q->oidn ? q->oidn_ms : none));
}

/* What each preset takes of the device's memory, and comes to on single frames. */
static json_t *presets(const demo_report *r)
{
    json_t *all = json_object();
    for (int i = 0; r->preset && i < DEMO_PRESETS; i++)
        if (r->networks[i].instance)
            json_object_set_new(all, demo_presets[i],
                                json_pack("{s:s, s:I, s:I, s:o}", "file", demo_preset_files[i], "weight_bytes",
                                          (json_int_t)r->networks[i].weight_bytes, "scratch_bytes",
                                          (json_int_t)r->networks[i].scratch_bytes, "denoise_single_db",
                                          number(r->quality.preset_db[i])));
    return all;
}

static json_t *three(const double x[3])
{
    return json_pack("[o, o, o]", number(x[0]), number(x[1]), number(x[2]));
}

static json_t *attention(const demo_report *r)
{
    const struct demo_mixture_sum *s = r->attention;
    return json_pack("{s:[i, i], s:o, s:o, s:o, s:o, s:o}", "pixel", (int)r->attention_at[0], (int)r->attention_at[1], "this_frame",
                     number(s->now), "frames_before", number(s->before), "farthest_pixels", number(s->farthest), "mixed", three(s->mixed),
                     "network", three(s->network));
}

static json_t *told(const demo_tavern *t)
{
    static const char *const ends[] = {"open", "ended", "stopped", "full", "cancelled", "failed"};
    json_t *list = json_array();
    for (uint32_t i = 0; i < t->told_count; i++) {
        const demo_reply *r = &t->told[i].reply;
        char said[DEMO_SAID_BYTES];
        demo_reply_said(r, said, sizeof said);
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:s, s:i, s:i, s:i, s:o, s:o}", "who",
                            demo_cards[t->told[i].who].name, "asked", r->asked, "said", said, "action",
                            demo_acts[r->act], "item", r->item, "coins", (int)r->price, "end", ends[r->end], "frame",
                            (int)t->told[i].frame, "tokens", (int)r->tokens, "read_tokens", (int)r->read,
                            "first_token_ms", number(r->first_ms), "ms", number(r->whole_ms)));
    }
    return list;
}

static json_t *samples(const demo_samples *s)
{
    const uint32_t count = s->count < DEMO_TAVERN_FRAMES ? s->count : DEMO_TAVERN_FRAMES;
    json_t *all = percentiles(s->values, count);
    json_object_set_new(all, "frames", json_integer(s->count));
    return all;
}

/* Whether frames hold: with talk no more than without, and what characters may take, and 5 % for what cannot be told apart. */
static json_t *tavern(const demo_tavern *t)
{
    const demo_talk *talk = &t->talk;
    const demo_percentiles quiet = demo_samples_percentiles(&t->quiet), talking = demo_samples_percentiles(&t->talking),
                           spent = demo_samples_percentiles(&t->spent);
    const double most = 1.05 * quiet.p99 + 1e-3 * talk->options.budget_us;
    if (!talk->language)
        return json_pack("{s:n, s:s, s:[]}", "model", "note", t->note, "told");
    json_t *bytes = json_pack("{s:I, s:I, s:I}", "f16", (json_int_t)talk->cache_bytes[0], "k8v8",
                              (json_int_t)talk->cache_bytes[1], "k4v8", (json_int_t)talk->cache_bytes[2]);
    return json_pack(
        "{s:s, s:s, s:s, s:o, s:I, s:o, s:o, s:b, s:{s:o, s:o, s:o, s:b}, s:i, s:i, s:i, s:o, s:o}", "model",
        talk->options.path, "device", talk->device, "form", talk->info.form, "tokens_per_s",
        number(t->talk_s > 0 ? (double)t->tokens / t->talk_s : 0), "tokens", (json_int_t)t->tokens, "budget_us",
        talk->budgeted ? json_integer(talk->options.budget_us) : json_null(), "spent_us",
        json_pack("{s:o, s:o, s:o}", "p50", number(spent.p50), "p95", number(spent.p95), "p99", number(spent.p99)),
        "budget_holds", spent.p99 <= 1.1 * talk->options.budget_us, "frames", "quiet", samples(&t->quiet), "talking",
        samples(&t->talking), "most_p99_ms", number(most), "flat", talking.p99 <= most, "slots",
        (int)talk->info.slots, "pages", (int)talk->info.pages, "pages_held", (int)talk->info.pages_held, "cache_bytes",
        bytes, "told", told(t));
}

bool demo_report_write(const char *path, const demo_report *r)
{
    json_t *stages = json_object();
    for (int i = 0; i < DEMO_STAGES; i++)
        json_object_set_new(stages, demo_stage_names[i], percentiles(r->timings->stage_ms[i], r->timings->count));
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:s, s:o, s:o, s:{s:o, s:o, s:o}, s:{s:o, s:o, s:o}, s:{s:o}}",
        "backend", demo_backends[r->info->backend], "rung", demo_rungs[r->info->rung], "rung_reason",
        r->info->rung_reason, "device", r->info->device, "frames", (int)r->frames, "width", (int)r->width, "height",
        (int)r->height, "precision", demo_precision_name(r->precision), "frame",
        percentiles(r->timings->frame_ms, r->timings->count), "stages", stages, "accuracy", "cos",
        number(demo_accuracy_cos(&r->accuracy)), "rel_l1", number(demo_accuracy_rel_l1(&r->accuracy)), "rmse",
        number(demo_accuracy_rmse(&r->accuracy)), "psnr", "noisy_db", number(r->noisy_db), "box_db", number(r->box_db),
        "result_db", number(r->result_db), "seams", "ratio", number(r->seams_ratio));
    json_object_set_new(root, "effect", json_string(demo_effects[r->effect]));
    json_object_set_new(root, "model", r->model ? json_string(r->model) : json_null());
    json_object_set_new(root, "preset", r->preset ? json_string(r->preset) : json_null());
    json_object_set_new(root, "quality", quality(r));
    json_object_set_new(root, "presets", presets(r));
    if (r->effect == DEMO_EFFECT_DENOISE) /* is of attention */
        json_object_del(root, "accuracy");
    if (r->stay_count)
        json_object_set_new(root, "ladder", stays(r));
    if (r->attention)
        json_object_set_new(root, "attention", attention(r));
    if (r->tavern)
        json_object_set_new(root, "tavern", tavern(r->tavern));
    const bool ok = root && !json_dump_file(root, path, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(root);
    return ok || demo_fail("cannot write %s", path);
}
