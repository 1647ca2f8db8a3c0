/* What the demo leaves behind: pictures, the report, the trace.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DEMO_OUTPUT_H
#define TANDEM_DEMO_OUTPUT_H

#include "demo/frame.h"
#include "demo/metrics.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each writes one file; false after one line on stderr. */
bool demo_png_write(const char *path, const uint8_t *rgba, uint32_t width, uint32_t height);

/* Timings of all frames, for percentiles. */
typedef struct demo_timings {
    double *frame_ms, *stage_ms[DEMO_STAGES];
    uint32_t *rungs;
    size_t count, capacity;
} demo_timings;
bool demo_timings_add(demo_timings *t, const demo_frame_result *frame);
void demo_timings_free(demo_timings *t);

/* A stay on one rung, with --ladder. */
typedef struct demo_stay {
    uint32_t rung, first, frames, not_filtered;
    double worst_rel_l1; /* of its frames */
    double frame_ms, to_ms, back_ms, attention_ms; /* p50 */
    char device[128];
} demo_stay;
enum { DEMO_STAYS = 64 };

/* PSNR over the frames that were judged, in dB. 0: not known. */
typedef struct demo_quality {
    double filter_db, single_db;    /* the filter's; the network's on single frames */
    double preset_db[DEMO_PRESETS]; /* each preset's on single frames */
    double oidn_db, oidn_ms;     /* Open Image Denoise, and how long it takes a frame */
    const char *oidn;            /* its version and device; NULL: it is not there */
} demo_quality;

typedef struct demo_report {
    const tandem_info *info;
    const demo_timings *timings;
    uint32_t effect;   /* demo_effect */
    const char *model; /* file, or NULL: there is none */
    const char *preset; /* its name; NULL: it is none */
    const demo_network *networks; /* DEMO_PRESETS, those that there are */
    uint32_t frames, width, height, precision;
    demo_accuracy accuracy;
    double noisy_db, box_db, result_db, seams_ratio;
    demo_quality quality;
    const demo_stay *stays;
    uint32_t stay_count;
    const struct demo_tavern *tavern; /* or NULL */
    const struct demo_mixture_sum *attention; /* of the pixel at attention_at, or NULL */
    const uint32_t *attention_at;
} demo_report;
bool demo_report_write(const char *path, const demo_report *report);

const char *demo_precision_name(uint32_t precision); /* of a frame; 0: no job was done for it */
/* Why no rung is faster, for somebody who knows neither rungs nor drivers; empty for the fastest. */
void demo_why_not_faster(const tandem_info *info, char *text, size_t text_bytes);

/* Chrome's trace format: both APIs on CLOCK_MONOTONIC. NULL if the file cannot be written. */
typedef struct demo_trace demo_trace;
demo_trace *demo_trace_open(const char *path, const tandem_info *info, const char *vulkan_device);
void demo_trace_frame(demo_trace *trace, const demo_frame_result *frame);
bool demo_trace_close(demo_trace *trace);

#ifdef __cplusplus
}
#endif
#endif
