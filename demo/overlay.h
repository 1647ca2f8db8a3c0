/* What is drawn over and around the picture. Knows Dear ImGui; takes plain data.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DEMO_OVERLAY_H
#define TANDEM_DEMO_OVERLAY_H

#include "demo/frame.h"
#include "demo/metrics.h"
#include "demo/output.h"
#include "demo/shown.h"
#include "demo/window.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DEMO_HISTORY = 120 };

/* What is left of the line: nothing, the input, the exact result, the frame with many samples, what a box of pixels makes of the
 * input, or Open Image Denoise. */
typedef enum demo_wipe {
    DEMO_WIPE_NONE,
    DEMO_WIPE_NOISY,
    DEMO_WIPE_EXACT,
    DEMO_WIPE_REFERENCE,
    DEMO_WIPE_BOX,
    DEMO_WIPE_OIDN,
    DEMO_WIPE_MAP /* all of it: where the light of a pixel comes from */
} demo_wipe;

/* What the keys change. */
typedef struct demo_view {
    uint32_t effect;    /* demo_effect */
    uint32_t preset;    /* demo_preset */
    uint32_t precision; /* tandem_precision */
    uint32_t smooth;    /* tandem_smooth bits, without NONE and DEFAULT */
    demo_wipe wipe;
    float wipe_at; /* share of the picture's width */
    bool error_map, paused, help, hide_panel;
    bool screenshot, quit; /* asked for; main takes them back */
} demo_view;

typedef struct demo_overlay_data {
    const tandem_info *info;
    uint32_t effect;     /* demo_effect, of the picture */
    bool has_denoiser;   /* so that there is another one */
    bool has_oidn;       /* Open Image Denoise may be compared with, which `quality.oidn` says once it was opened */
    const char *model;   /* the network's file */
    const char *preset;  /* its name; NULL: it is none */
    const char *next_preset; /* which a key leads to; NULL: there is no other */
    uint32_t in_history; /* frames that the network has seen since the last cut */
    demo_quality quality;
    const char *vulkan_device, *scene, *notice; /* notice: NULL, or what matters just now */
    bool warns;                                 /* the notice is of something that went wrong */
    uint32_t width, height, in_flight;
    demo_percentiles frame, stages[DEMO_STAGES];
    double frames_per_second; /* that are shown, which the display may hold back; 0: not known */
    const float (*history)[DEMO_STAGES]; /* ms, oldest first */
    uint32_t history_count;
    uint32_t precision_used;
    const char *why; /* that precision, where it was chosen automatically */
    demo_accuracy accuracy;
    uint64_t frame_index;
    bool denoised, has_exact;
    double noisy_db, box_db, result_db; /* 0: not known */
    uint32_t reference_samples; /* 0: there is no reference yet */
    double light_now, light_before; /* the shares of a map */
    const demo_shown *shown;    /* of a scene with figures; else NULL */
} demo_overlay_data;

typedef struct demo_rect {
    float x, y, width, height;
} demo_rect;

/* What a window begins with, and the headless picture of it shows. */
demo_view demo_first_view(uint32_t precision);

bool demo_overlay_create(demo_engine *e, VkRenderPass pass, uint32_t image_count);
void demo_overlay_destroy(demo_engine *e);
/* Takes an event; true if a panel wants it for itself. */
bool demo_overlay_event(const demo_event *event, demo_view *view, const demo_rect *picture);
/* Lays everything out for a target of width * height pixels; where the picture and the error map belong. */
void demo_overlay_build(const demo_view *view, const demo_overlay_data *data, uint32_t width, uint32_t height,
                        double delta_seconds, demo_rect *picture, demo_rect *error_map);
void demo_overlay_record(VkCommandBuffer commands);
/* Called with every text that demo_overlay_build lays out, and where. NULL: nobody looks. */
typedef void demo_text_watcher(void *user, const char *text, const demo_rect *where);
void demo_overlay_watch(demo_text_watcher *on_text, void *user);

#ifdef __cplusplus
}
#endif
#endif
