/* A run in a window.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "demo/adapt.h"
#include "demo/mixture.h"
#include "demo/run.h"
#include "demo/tavern.h"
#include "interop/base.h"

enum { PROBE_EVERY = 4, PROBES_KEPT = 32, MOST_REFERENCE_SAMPLES = 4096, FIRST_FRAMES = 4 };
static const double MOST_SECONDS_A_FRAME = 0.1, IDLE_SECONDS = 0.05;

typedef struct interactive {
    demo_engine *engine;
    demo_pipeline *pipeline;
    const demo_options *options;
    const demo_display *display;
    demo_screen screen;
    demo_view view;
    demo_overlay_data data;
    float history[DEMO_HISTORY][DEMO_STAGES];
    double frame_ms[DEMO_HISTORY], intervals[DEMO_HISTORY];
    uint32_t history_count;
    demo_accuracy probes[PROBES_KEPT];
    uint32_t probe_count;
    demo_adapt adapt;
    char why[96];
    uint64_t next;       /* frame */
    demo_slot *shown;    /* the last one that was completed */
    double path_seconds, last_completed;
    uint32_t screenshots;
    char notice[512];
    double notice_until;
    bool notice_warns;
    demo_oidn *oidn;      /* NULL until somebody wants to see it */
    demo_oidn_opening *opening; /* which is being opened, or NULL */
    bool wants_oidn;      /* once it is */
    demo_image other;     /* what a box or Open Image Denoise made of a frame */
    uint64_t other_frame; /* that one, and by which of them; DEMO_WIPE_NONE: of none */
    demo_wipe other_by;
    demo_mixture *mixture; /* NULL until somebody asks where light comes from */
    uint32_t mixture_preset;
    uint64_t mixture_frame; /* 1 + the frame that it has; 0: none */
    uint32_t asked[2];      /* the pixel */
    bool asks;
    bool step_down;  /* asked for */
    bool next_scene; /* asked for */
    demo_slot *referred;      /* whose view p->reference has; NULL: none's */
    uint32_t reference_step;  /* samples at once */
    uint32_t measured;        /* samples that the quality was last measured against */
    uint32_t rung, preset; /* of the frames that were learnt from */
    demo_tavern *tavern; /* or NULL */
    demo_cast cast;      /* of scenes without one */
    demo_shown shown_people;
    bool talked[DEMO_SLOTS];  /* when that frame began */
    float mouse_x, mouse_y;
} interactive;

static double now_seconds(void)
{
    return 1e-9 * (double)td_now_ns();
}

static void rest(double seconds)
{
    if (seconds <= 0)
        return;
    const struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&pause, NULL);
}

/* What was measured with other settings says nothing about these. */
static void forget_accuracy(interactive *w)
{
    w->probe_count = 0;
    memset(&w->data.accuracy, 0, sizeof w->data.accuracy);
}

static void start_again(interactive *w)
{
    forget_accuracy(w);
    demo_adapt_init(&w->adapt, w->options->max_error);
    demo_adapt_text(&w->adapt, w->why, sizeof w->why);
}

static void say(interactive *w, double seconds, const char *text)
{
    snprintf(w->notice, sizeof w->notice, "%s", text);
    w->notice_warns = false;
    w->notice_until = now_seconds() + seconds;
}

static bool is_filters(int32_t key)
{
    return key && key < 128 && strchr("123kqvbe", key) != NULL;
}

/* What is left of the line where nobody asked for something else. */
static demo_wipe first_wipe(const interactive *w)
{
    return w->tavern ? DEMO_WIPE_NONE : DEMO_WIPE_NOISY;
}

/* Whoever rests goes on, without what is there for a picture that rests. */
static void go_on(interactive *w)
{
    demo_view *v = &w->view;
    v->paused = false;
    v->wipe = v->wipe == DEMO_WIPE_REFERENCE || v->wipe == DEMO_WIPE_MAP ? first_wipe(w) : v->wipe;
}

static void change_effect(interactive *w)
{
    demo_view *v = &w->view;
    if (!w->data.has_denoiser) {
        say(w, 4.0, "there is no trained network: its file was not found, or could not be used");
        return;
    }
    v->effect = v->effect == DEMO_EFFECT_FILTER ? DEMO_EFFECT_DENOISE : DEMO_EFFECT_FILTER;
    v->error_map = false;
    v->wipe = first_wipe(w);
    v->paused = false;
    say(w, 2.5, v->effect == DEMO_EFFECT_FILTER ? "now: a filter by attention, which nobody trained" : "now: the trained network");
    start_again(w);
}

/* Frames that begin from now on are the next preset's, which goes on from what this one has left. */
static void change_preset(interactive *w)
{
    demo_view *v = &w->view;
    const uint32_t next = demo_denoiser_preset_after(&w->pipeline->station->denoiser, v->preset);
    char text[80];
    if (v->effect != DEMO_EFFECT_DENOISE) {
        say(w, 3.0, "this key is the network's, which N shows");
        return;
    }
    if (next == v->preset) {
        say(w, 4.0, w->options->frame.model_asked ? "there are no presets of your own network" : "there is no other preset here");
        return;
    }
    v->preset = next;
    go_on(w);
    snprintf(text, sizeof text, "now: the network's preset %s", demo_presets[next]);
    say(w, 2.5, text);
}

/* Many samples take their time, in which the camera rests. */
static void compare_with_reference(interactive *w)
{
    demo_view *v = &w->view;
    v->paused = v->wipe != DEMO_WIPE_REFERENCE;
    v->wipe = v->paused ? DEMO_WIPE_REFERENCE : first_wipe(w);
}

/* Frames go on meanwhile, without it. */
static void open_oidn(interactive *w)
{
    char why[100] = "";
    w->wants_oidn = !w->opening || !w->wants_oidn;
    if (!w->opening)
        w->opening = demo_oidn_begin(w->options->oidn, w->pipeline->info.backend == TANDEM_BACKEND_CUDA, w->options->frame.threads,
                                     w->data.width, w->data.height, why, sizeof why);
    if (!w->opening)
        say(w, 6.0, why);
    else if (w->wants_oidn)
        say(w, 60.0, "opening Open Image Denoise; O again: not to be shown");
    else
        say(w, 2.5, "Open Image Denoise will not be shown");
}

/* Its side of the wipe, for who still wants it. */
static void take_oidn(interactive *w)
{
    char why[400];
    if (!w->opening || !demo_oidn_ended(&w->opening, &w->oidn, why, sizeof why))
        return;
    w->data.quality.oidn = w->oidn ? demo_oidn_name(w->oidn) : NULL;
    if (!w->oidn) {
        say(w, 6.0, w->data.has_oidn ? why : DEMO_NO_OIDN);
        w->notice_warns = w->data.has_oidn;
    } else if (w->wants_oidn) {
        w->view.wipe = DEMO_WIPE_OIDN;
        say(w, 2.5, "now on the left: Open Image Denoise");
    }
}

/* What somebody else makes of each frame, on the left of the line. */
static void compare_with_other(interactive *w, demo_wipe by)
{
    if (by == DEMO_WIPE_OIDN && !w->oidn)
        open_oidn(w);
    else
        w->view.wipe = w->view.wipe == by ? first_wipe(w) : by;
}

static void leave_map(interactive *w)
{
    w->view.wipe = first_wipe(w);
    w->view.paused = false;
}

static void on_key(interactive *w, int32_t key, bool again)
{
    demo_view *v = &w->view;
    if (key == DEMO_KEY_LEFT || key == DEMO_KEY_RIGHT) {
        v->wipe_at += key == DEMO_KEY_LEFT ? -0.02f : 0.02f;
        v->wipe_at = v->wipe_at < 0 ? 0 : v->wipe_at > 1 ? 1 : v->wipe_at;
    }
    if (again)
        return;
    if (v->effect == DEMO_EFFECT_DENOISE && is_filters(key)) {
        say(w, 3.0, "this key is the filter's, which N shows");
        return;
    }
    switch (key) {
    case '1': v->precision = TANDEM_PRECISION_AUTO; break;
    case '2': v->precision = TANDEM_PRECISION_F16; break;
    case '3': v->precision = TANDEM_PRECISION_8B; break;
    case 'k': v->smooth ^= TANDEM_SMOOTH_K; break;
    case 'q': v->smooth ^= TANDEM_SMOOTH_Q; break;
    case 'v': v->smooth ^= TANDEM_SMOOTH_V; break;
    case 'a': v->wipe = v->wipe == DEMO_WIPE_NOISY ? DEMO_WIPE_NONE : DEMO_WIPE_NOISY; break;
    case 'b': v->wipe = v->wipe == DEMO_WIPE_EXACT ? DEMO_WIPE_NONE : DEMO_WIPE_EXACT; break;
    case 'n': change_effect(w); break;
    case 'm': change_preset(w); break;
    case 'o': compare_with_other(w, DEMO_WIPE_OIDN); break;
    case 'x': compare_with_other(w, DEMO_WIPE_BOX); break;
    case 'r': compare_with_reference(w); break;
    case 'e': v->error_map = !v->error_map; break;
    case 'l': w->step_down = true; break;
    case 's': w->next_scene = true; break;
    case ' ':
        v->paused = !v->paused;
        v->wipe = v->wipe == DEMO_WIPE_REFERENCE || v->wipe == DEMO_WIPE_MAP ? first_wipe(w) : v->wipe;
        break;
    case 'p':
    case DEMO_KEY_F12: v->screenshot = true; break;
    case 'h':
    case DEMO_KEY_F1: v->help = !v->help; break;
    case DEMO_KEY_TAB: v->hide_panel = !v->hide_panel; break;
    case DEMO_KEY_ESCAPE:
        if (v->help)
            v->help = false;
        else if (v->wipe == DEMO_WIPE_MAP)
            leave_map(w);
        else
            v->quit = true;
        break;
    default: break;
    }
    if (key == '1' || key == '2' || key == '3' || key == 'k' || key == 'q' || key == 'v')
        start_again(w);
}

/* A click on a pixel whose light is asked about: the right button's, or, of a map, any. */
static bool map_event(interactive *w, const demo_event *event)
{
    const demo_rect *p = &w->screen.picture;
    if (event->type == DEMO_EVENT_MOUSE_MOVE) {
        w->mouse_x = event->x;
        w->mouse_y = event->y;
    }
    if (event->type != DEMO_EVENT_MOUSE_BUTTON || !event->down || p->width < 1 || p->height < 1 ||
        !(event->button == 1 || (event->button == 0 && w->view.wipe == DEMO_WIPE_MAP)))
        return false;
    const float x = (w->mouse_x - p->x) / p->width, y = (w->mouse_y - p->y) / p->height;
    if (x < 0 || y < 0 || x >= 1 || y >= 1)
        return false;
    w->asked[0] = (uint32_t)(x * (float)w->data.width);
    w->asked[1] = (uint32_t)(y * (float)w->data.height);
    w->asks = true;
    return true;
}

static float aspect_of(const interactive *w)
{
    return (float)w->data.width / (float)w->data.height;
}

/* Whether the tavern has a use for it: whoever is talked to hears all keys but a few. */
static bool tavern_event(interactive *w, const demo_event *event)
{
    const demo_rect *p = &w->screen.picture;
    if (!w->tavern)
        return false;
    switch (event->type) {
    case DEMO_EVENT_KEY:
        return !(w->view.help && event->key == DEMO_KEY_ESCAPE) && demo_tavern_key(w->tavern, event->key, event->down);
    case DEMO_EVENT_TEXT: demo_tavern_text(w->tavern, event->text); return true;
    case DEMO_EVENT_MOUSE_BUTTON:
        return event->down && !event->button && p->width > 0 && p->height > 0 && !w->view.paused &&
               demo_tavern_click(w->tavern, 2 * (w->mouse_x - p->x) / p->width - 1,
                                 1 - 2 * (w->mouse_y - p->y) / p->height, aspect_of(w));
    default: return false;
    }
}

static void poll_events(interactive *w)
{
    demo_event event;
    while (w->display->table->poll(w->display->window, &event)) {
        if (event.type == DEMO_EVENT_QUIT)
            w->view.quit = true;
        else if (map_event(w, &event) || tavern_event(w, &event))
            continue;
        else if (event.type == DEMO_EVENT_KEY && event.down)
            on_key(w, event.key, event.again);
        else
            demo_overlay_event(&event, &w->view, &w->screen.picture);
    }
}

static void push_row(void *rows, uint32_t count, size_t bytes)
{
    memmove(rows, (char *)rows + bytes, (count - 1) * bytes);
}

static void learn(interactive *w, const demo_frame_result *frame, demo_slot *slot)
{
    double sorted[DEMO_HISTORY];
    const double now = now_seconds();
    const demo_denoiser *denoiser = &slot->station->denoiser;
    const uint32_t next = demo_denoiser_preset_after(denoiser, frame->preset);
    /* The figures are those of one rung, and of one effect. */
    if (frame->rung != w->rung || frame->effect != w->data.effect || frame->preset != w->preset)
        w->history_count = 0;
    w->preset = frame->preset;
    w->data.model = w->pipeline->options.models[frame->preset];
    w->data.preset = w->options->frame.model_asked ? NULL : demo_presets[frame->preset];
    w->data.next_preset = next == frame->preset ? NULL : demo_presets[next];
    w->data.effect = frame->effect;
    w->data.in_history = frame->effect != DEMO_EFFECT_DENOISE || !frame->denoised ? 0 : frame->cut ? 1 : w->data.in_history + 1;
    w->referred = NULL;
    w->data.result_db = 0;
    w->rung = frame->rung;
    if (w->history_count == DEMO_HISTORY) {
        push_row(w->history, DEMO_HISTORY, sizeof w->history[0]);
        push_row(w->frame_ms, DEMO_HISTORY, sizeof w->frame_ms[0]);
        push_row(w->intervals, DEMO_HISTORY, sizeof w->intervals[0]);
        w->history_count--;
    }
    const uint32_t at = w->history_count++;
    w->frame_ms[at] = frame->frame_ms;
    w->intervals[at] = w->last_completed > 0 ? now - w->last_completed : 0;
    w->last_completed = now;
    for (int i = 0; i < DEMO_STAGES; i++)
        w->history[at][i] = (float)frame->stage_ms[i];
    if (frame->precision && frame->precision != w->data.precision_used)
        forget_accuracy(w);
    if (w->view.precision == TANDEM_PRECISION_AUTO && w->options->frame.inject_error == 0) {
        demo_adapt_frame(&w->adapt, frame);
        demo_adapt_text(&w->adapt, w->why, sizeof w->why);
    }
    if (frame->probed) {
        if (w->probe_count == PROBES_KEPT) {
            push_row(w->probes, PROBES_KEPT, sizeof w->probes[0]);
            w->probe_count--;
        }
        w->probes[w->probe_count++] = frame->accuracy;
        memset(&w->data.accuracy, 0, sizeof w->data.accuracy);
        for (uint32_t i = 0; i < w->probe_count; i++)
            demo_accuracy_merge(&w->data.accuracy, &w->probes[i]);
    }
    memcpy(sorted, w->frame_ms, w->history_count * sizeof *sorted);
    w->data.frame = demo_percentiles_of(sorted, w->history_count);
    for (int i = 0; i < DEMO_STAGES; i++) {
        for (uint32_t j = 0; j < w->history_count; j++)
            sorted[j] = (double)w->history[j][i];
        w->data.stages[i] = demo_percentiles_of(sorted, w->history_count);
    }
    double seconds = 0;
    const uint32_t recent = w->history_count < 30 ? w->history_count : 30;
    for (uint32_t j = w->history_count - recent; j < w->history_count; j++)
        seconds += w->intervals[j];
    w->data.frames_per_second = seconds > 0 ? recent / seconds : 0;
    w->data.history = (const float (*)[DEMO_STAGES])w->history;
    w->data.history_count = w->history_count;
    w->data.precision_used = frame->precision ? frame->precision : w->data.precision_used;
    w->data.denoised = frame->denoised;
    w->data.has_exact = frame->exact;
    w->data.frame_index = frame->index;
    w->shown = slot;
}

static bool complete(interactive *w, demo_slot *slot, demo_trace *trace)
{
    demo_frame_result frame;
    if (!demo_frame_complete(w->pipeline, slot, &frame))
        return false;
    learn(w, &frame, slot);
    if (w->tavern) {
        if (frame.index >= FIRST_FRAMES) /* in which drivers compile shaders */
            demo_tavern_took(w->tavern, frame.frame_ms, w->talked[slot->index]);
        demo_tavern_poll(w->tavern);
    }
    if (trace)
        demo_trace_frame(trace, &frame);
    return true;
}

static void set_notice(interactive *w)
{
    const bool fresh = now_seconds() < w->notice_until;
    w->data.warns = w->pipeline->trouble[0] || w->notice_warns;
    w->data.notice = w->pipeline->trouble[0] ? w->pipeline->trouble : fresh ? w->notice : NULL;
}

/* Shows a slot: its own frame if that is still to be consumed, else the same frame again. */
static bool show(interactive *w, demo_slot *slot, bool again)
{
    const uint32_t index = (uint32_t)(slot - w->pipeline->slots);
    set_notice(w);
    if (w->tavern)
        demo_tavern_show(w->tavern, aspect_of(w), &w->shown_people);
    if (!w->screen.image_count || !demo_screen_acquire(&w->screen, index)) {
        if (w->screen.image_count && !w->screen.stale)
            return false;
        return again || demo_frame_consume(w->pipeline, slot, NULL);
    }
    const demo_present present = {.record = demo_screen_record,
                                  .user = &w->screen,
                                  .wait = w->screen.acquired[index],
                                  .signal = w->screen.finished[w->screen.current]};
    const bool ok = again ? demo_frame_redraw(w->pipeline, slot, &present) : demo_frame_consume(w->pipeline, slot,
                                                                                                &present);
    return ok && demo_screen_present(&w->screen);
}

/* Consumes and completes all that is under way. */
static bool drain(interactive *w, demo_trace *trace)
{
    for (uint64_t i = w->next >= DEMO_SLOTS ? w->next - DEMO_SLOTS : 0; i < w->next; i++) {
        demo_slot *slot = &w->pipeline->slots[i % DEMO_SLOTS];
        if (!slot->begun)
            continue;
        if (!slot->consumed && !demo_frame_consume(w->pipeline, slot, NULL))
            return false;
        if (!complete(w, slot, trace))
            return false;
    }
    return true;
}

static bool take_screenshot(interactive *w)
{
    char path[PATH_MAX + 32], whole[PATH_MAX];
    demo_screen copy;
    snprintf(path, sizeof path, "%.4000s/screenshot-%03u.png", w->options->out, ++w->screenshots);
    bool ok = demo_make_folder(w->options->out) &&
              demo_screen_create(&copy, w->engine, VK_NULL_HANDLE, w->screen.format, w->screen.width, w->screen.height);
    if (ok) {
        copy.view = &w->view;
        copy.data = &w->data;
        copy.reference = &w->pipeline->reference;
        copy.other = &w->other;
        copy.delta_seconds = 1.0 / 60.0;
        const demo_present present = {.record = demo_screen_record, .user = &copy};
        ok = demo_frame_redraw(w->pipeline, w->shown, &present) && demo_screen_save(&copy, path);
        demo_screen_destroy(&copy);
    }
    const char *where = realpath(path, whole) ? whole : path;
    snprintf(w->notice, sizeof w->notice, ok ? "saved %.480s" : "could not save %.480s", where);
    printf("tandem-demo: %s\n", w->notice);
    fflush(stdout);
    w->notice_warns = !ok;
    w->notice_until = now_seconds() + 6.0;
    return !w->engine->lost;
}

/* The next frame is the first one on the next rung; those under way end on theirs. */
static void step_down(interactive *w)
{
    const demo_switch outcome = demo_pipeline_step_down(w->pipeline, true, w->notice, sizeof w->notice);
    if (outcome == DEMO_SWITCH_LATER)
        return;
    w->step_down = false;
    w->notice_warns = outcome != DEMO_SWITCHED;
    w->notice_until = now_seconds() + (outcome == DEMO_SWITCHED ? 1.5 : 4.0);
}

/* The tavern is for who stays there: it has to be asked for from the start. */
static bool change_scene(interactive *w)
{
    int scene = w->pipeline->options.scene;
    w->next_scene = false;
    if (w->tavern)
        return true;
    do
        scene = demo_scene_name(scene + 1) ? scene + 1 : 0;
    while (demo_scene_has_cast(scene));
    if (!demo_pipeline_scene(w->pipeline, scene))
        return false;
    w->data.scene = demo_scene_name(scene);
    w->shown = w->referred = NULL;
    w->other_by = DEMO_WIPE_NONE;
    w->mixture_frame = 0;
    w->history_count = 0;
    w->data.quality = (demo_quality){.oidn = w->data.quality.oidn};
    w->data.reference_samples = 0;
    go_on(w);
    w->path_seconds = 0;
    start_again(w);
    say(w, 2.5, w->data.scene);
    return true;
}

static bool create_other(interactive *w)
{
    const demo_image *image = &w->other;
    return image->image || (demo_image_create(w->engine, VK_FORMAT_R32G32B32A32_SFLOAT, w->data.width, w->data.height,
                                              VK_IMAGE_USAGE_SAMPLED_BIT | VK_IMAGE_USAGE_TRANSFER_DST_BIT, "another's", &w->other) &&
                            demo_image_to_general(w->engine, &image, 1));
}

/* A frame that has ended, as a box or Open Image Denoise would have it: in w->other, and in `copy`, unless that is NULL. */
static bool make_other(interactive *w, demo_slot *slot, demo_wipe by, float *copy)
{
    const size_t floats = (size_t)4 * w->data.width * w->data.height;
    char why[300];
    float *all = malloc(4 * floats * sizeof *all), *color = all, *albedo = all + floats, *normal = all + 2 * floats, *out = all + 3 * floats;
    bool ok = all && create_other(w) && demo_image_read(w->engine, &slot->radiance, color);
    if (ok && by == DEMO_WIPE_BOX) {
        demo_box(color, w->data.width, w->data.height, out);
    } else if (ok) {
        ok = demo_image_read(w->engine, &slot->albedo, albedo) && demo_image_read(w->engine, &slot->normal, normal);
        if (ok && !demo_oidn_run(w->oidn, color, albedo, normal, out, &w->data.quality.oidn_ms, why, sizeof why)) {
            /* All else goes on; who asks for the side again has it opened anew. */
            demo_fail("%s", why);
            demo_oidn_close(w->oidn);
            w->oidn = NULL;
            w->data.quality.oidn = NULL;
            w->view.wipe = first_wipe(w);
            say(w, 6.0, why);
            w->notice_warns = true;
            free(all);
            return true;
        }
    }
    if (ok && copy)
        memcpy(copy, out, floats * sizeof *out);
    ok = ok && demo_image_write(w->engine, &w->other, out);
    w->other_frame = slot->request.index;
    w->other_by = ok ? by : DEMO_WIPE_NONE;
    free(all);
    return ok || w->engine->lost || demo_fail("out of memory");
}

/* Where the light of the pixel comes from that was asked about, in a picture that rests. */
static bool answer_map(interactive *w)
{
    const size_t pixels = (size_t)w->data.width * w->data.height;
    w->asks = false;
    if (w->data.effect != DEMO_EFFECT_DENOISE || !w->data.denoised) {
        say(w, 4.0, "this is of the trained network, which N shows");
        return true;
    }
    if (w->mixture && w->mixture_preset != w->preset) {
        demo_mixture_close(w->mixture);
        w->mixture = NULL;
    }
    w->mixture = w->mixture ? w->mixture : demo_mixture_open(w->pipeline, w->preset);
    w->mixture_preset = w->preset;
    float *picture = malloc(4 * pixels * sizeof *picture), *maps = malloc(2 * pixels * sizeof *maps);
    demo_mixture_sum sum;
    bool ok = w->mixture && picture && maps &&
              (w->mixture_frame == w->shown->request.index + 1 || demo_mixture_frame(w->mixture, w->pipeline, w->shown));
    w->mixture_frame = ok ? w->shown->request.index + 1 : 0;
    ok = ok && demo_mixture_at(w->mixture, w->asked[0], w->asked[1], maps, maps + pixels, &sum);
    const bool known = ok;
    ok = ok && create_other(w) && demo_image_read(w->engine, &w->shown->result, picture);
    if (ok) {
        demo_mixture_paint(picture, maps, maps + pixels, w->data.width, w->data.height, w->asked[0], w->asked[1], picture);
        ok = demo_image_write(w->engine, &w->other, picture);
        w->data.light_now = sum.now;
        w->data.light_before = sum.before;
        w->other_by = DEMO_WIPE_MAP;
        w->view.wipe = DEMO_WIPE_MAP;
        w->view.paused = true;
    } else if (!known) { /* said so already; frames go on */
        say(w, 4.0, "this network's attention cannot be followed");
        w->notice_warns = true;
    }
    free(picture);
    free(maps);
    return ok || !known;
}

static bool shows_other(const interactive *w)
{
    return w->view.wipe == DEMO_WIPE_BOX || w->view.wipe == DEMO_WIPE_OIDN;
}

/* Before a frame that rests is shown again. */
static bool refresh_other(interactive *w)
{
    return !shows_other(w) || (w->other_by == w->view.wipe && w->other_frame == w->shown->request.index) ||
           make_other(w, w->shown, w->view.wipe, NULL);
}

/* How near the picture is to its reference, as far as that is known. */
static bool measure_quality(interactive *w)
{
    const uint32_t width = w->data.width, height = w->data.height;
    const size_t floats = (size_t)4 * width * height;
    float *pictures = malloc(2 * floats * sizeof *pictures), *reference = pictures ? pictures + floats : NULL;
    bool ok = pictures && demo_image_read(w->engine, &w->pipeline->reference, reference) &&
              demo_image_read(w->engine, &w->shown->radiance, pictures);
    if (ok) {
        w->data.noisy_db = demo_psnr_db(pictures, reference, width, height);
        ok = demo_image_read(w->engine, &w->shown->result, pictures);
    }
    if (ok)
        w->data.result_db = w->data.denoised ? demo_psnr_db(pictures, reference, width, height) : 0;
    if (ok && w->oidn && make_other(w, w->shown, DEMO_WIPE_OIDN, pictures) && w->oidn)
        w->data.quality.oidn_db = demo_psnr_db(pictures, reference, width, height);
    free(pictures);
    return ok;
}

/* A few samples more for the frame that rests; a picture's quality is measured whenever there are half as many again. */
static bool refine_reference(interactive *w)
{
    const bool first = w->referred != w->shown;
    if (w->view.wipe != DEMO_WIPE_REFERENCE || (!first && w->pipeline->reference_samples >= MOST_REFERENCE_SAMPLES))
        return true;
    const double from = now_seconds();
    w->reference_step = first ? 1 : w->reference_step;
    if (!demo_reference_add(w->pipeline, w->shown, w->reference_step, first))
        return false;
    w->reference_step = now_seconds() - from < 0.03 && w->reference_step < 64 ? 2 * w->reference_step : w->reference_step;
    w->referred = w->shown;
    w->measured = first ? 0 : w->measured;
    w->data.reference_samples = w->pipeline->reference_samples;
    if (w->data.reference_samples < w->measured + w->measured / 2)
        return true;
    w->measured = w->data.reference_samples;
    return measure_quality(w);
}

static bool step(interactive *w, demo_trace *trace, double delta)
{
    demo_pipeline *p = w->pipeline;
    demo_slot *slot = &p->slots[w->next % DEMO_SLOTS];
    const bool automatic = w->view.precision == TANDEM_PRECISION_AUTO, probe = w->next % PROBE_EVERY == 0;
    const bool exact = w->view.error_map || w->view.wipe == DEMO_WIPE_EXACT;
    if (slot->begun && !complete(w, slot, trace))
        return false;
    if (w->step_down)
        step_down(w);
    if (w->tavern) {
        w->talked[slot->index] = demo_tavern_talking(w->tavern);
        demo_tavern_step(w->tavern, delta < MOST_SECONDS_A_FRAME ? delta : MOST_SECONDS_A_FRAME);
    }
    const demo_frame_request request = {.index = w->next,
                                        .seconds = w->path_seconds,
                                        .cast = w->tavern ? w->tavern->cast : w->cast,
                                        .effect = w->view.effect,
                                        .preset = w->view.preset,
                                        .jitter = w->view.effect == DEMO_EFFECT_DENOISE,
                                        .precision = automatic ? demo_adapt_precision(&w->adapt) : w->view.precision,
                                        .smooth = w->view.smooth ? w->view.smooth : TANDEM_SMOOTH_NONE,
                                        .exact = exact,
                                        .probe = probe,
                                        .trial = automatic && w->adapt.up && probe && !exact};
    w->path_seconds += delta < MOST_SECONDS_A_FRAME ? delta : MOST_SECONDS_A_FRAME;
    if (!demo_frame_begin(p, slot, &request))
        return false;
    if (w->tavern)
        demo_tavern_poll(w->tavern);
    w->next++;
    if (shows_other(w)) /* it needs the whole frame, which is shown once both are there */
        return drain(w, trace) && make_other(w, slot, w->view.wipe, NULL) && show(w, slot, true);
    if (p->in_flight == 1)
        return show(w, slot, false) && complete(w, slot, trace);
    demo_slot *before = &p->slots[w->next % DEMO_SLOTS];
    if (before->begun && !before->consumed && !show(w, before, false))
        return false;
    return !demo_frame_at_once(slot) || show(w, slot, false);
}

static void set_title(interactive *w)
{
    char title[160];
    const bool f16 = w->data.precision_used == TANDEM_PRECISION_F16;
    const bool network = w->data.effect == DEMO_EFFECT_DENOISE;
    const char *precision = !w->data.denoised ? "not filtered" : network ? "trained denoiser" : f16 ? "16-bit" : "8-bit";
    const char *preset = w->data.denoised && network && w->data.preset ? w->data.preset : "";
    snprintf(title, sizeof title, "Tandem: %s, %s%s%s, %.1f frames shown a second", w->data.scene, precision, *preset ? " " : "",
             preset, w->data.frames_per_second);
    w->display->table->title(w->display->window, title);
}

static bool loop(interactive *w, demo_trace *trace)
{
    const demo_window_table *table = w->display->table;
    const uint32_t hz = table->refresh_hz(w->display->window);
    const double pace = 1.0 / (hz < 30 ? 60.0 : hz);
    double last = now_seconds(), due = last, titled = last;
    while (!w->view.quit && (!w->options->frames || w->next < w->options->frames)) {
        uint32_t width, height;
        poll_events(w);
        take_oidn(w);
        table->size(w->display->window, &width, &height);
        const double now = now_seconds(), delta = now - last;
        last = now;
        w->screen.delta_seconds = delta;
        if (!width || !height) {
            if (!drain(w, trace))
                return false;
            rest(IDLE_SECONDS);
            continue;
        }
        if (w->screen.stale || width != w->screen.width || height != w->screen.height || !w->screen.image_count) {
            if (!drain(w, trace) || !demo_screen_resize(&w->screen, width, height))
                return false;
            if (!w->screen.image_count)
                rest(IDLE_SECONDS);
        }
        bool ok = true;
        if (w->asks && w->shown) {
            ok = drain(w, trace) && answer_map(w);
        } else if (w->next_scene) {
            ok = drain(w, trace) && change_scene(w);
        } else if (w->view.screenshot && w->shown) {
            w->view.screenshot = false;
            ok = drain(w, trace) && take_screenshot(w);
        } else if (w->view.paused && w->shown) {
            ok = drain(w, trace) && refine_reference(w) && refresh_other(w) && show(w, w->shown, true);
        } else {
            ok = step(w, trace, delta);
        }
        if (!ok)
            return false;
        if (now > titled + 1.0) {
            set_title(w);
            titled = now;
        }
        /* FIFO does not hold back every driver. */
        due = due + pace > now ? due + pace : now;
        rest(due - now_seconds());
    }
    return drain(w, trace);
}

int demo_run_window(demo_engine *e, demo_pipeline *p, const demo_options *o, const demo_display *display)
{
    static interactive w;
    demo_trace *trace = NULL;
    uint32_t width, height;
    w = (interactive){.engine = e,
                      .pipeline = p,
                      .options = o,
                      .display = display,
                      .view = demo_first_view(o->precision),
                      .data = {.info = &p->info,
                               .vulkan_device = e->properties.deviceName,
                               .scene = demo_scene_name(o->frame.scene),
                               .effect = o->effect,
                               .has_denoiser = p->has_denoiser,
                               .has_oidn = demo_oidn_is_there(o->oidn),
                               .model = p->options.models[p->options.preset],
                               .width = p->options.width,
                               .height = p->options.height,
                               .in_flight = p->in_flight}};
    w.data.why = w.why;
    w.view.effect = o->effect;
    w.view.preset = o->frame.preset;
    start_again(&w);
    demo_scene_cast(&w.cast);
    if (demo_scene_has_cast(o->frame.scene)) {
        w.data.shown = &w.shown_people;
        w.tavern = demo_tavern_open(&o->talk);
        if (!w.tavern)
            return 1;
        w.view.wipe = first_wipe(&w);
    }
    display->table->size(display->window, &width, &height);
    bool ok = demo_screen_create(&w.screen, e, display->surface, 0, width, height) &&
              demo_overlay_create(e, w.screen.pass, DEMO_SCREEN_IMAGES);
    if (ok && o->trace) {
        trace = demo_trace_open(o->trace, &p->info, e->properties.deviceName);
        ok = trace != NULL;
    }
    if (ok) {
        w.screen.view = &w.view;
        w.screen.data = &w.data;
        w.screen.reference = &p->reference;
        w.screen.other = &w.other;
        ok = loop(&w, trace);
    }
    ok = demo_trace_close(trace) && ok;
    demo_overlay_destroy(e);
    demo_screen_destroy(&w.screen);
    demo_image_destroy(e, &w.other);
    demo_oidn_begin_close(w.opening);
    demo_oidn_close(w.oidn);
    demo_mixture_close(w.mixture);
    demo_tavern_close(w.tavern);
    return ok ? 0 : 1;
}
