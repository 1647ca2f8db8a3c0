/* What is drawn over the picture of a scene with figures: plain data.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DEMO_SHOWN_H
#define TANDEM_DEMO_SHOWN_H

#include "demo/metrics.h"
#include "demo/scene.h"

typedef struct demo_shown_figure {
    const char *name, *trade;
    float x, y;   /* above its head: -1 to 1 over the picture, upwards */
    bool visible; /* not behind the visitor, nor outside the picture */
    bool with;    /* the visitor talks to it */
    bool thinks;  /* it was asked, and has not said anything yet */
    bool talks;
    const char *said, *did; /* NULL or empty: nothing */
    bool refuses;           /* what it did was to refuse */
} demo_shown_figure;

typedef struct demo_shown {
    demo_shown_figure figures[DEMO_FIGURES];
    const char *with; /* a name, and what was typed so far; NULL: nobody */
    const char *input, *asked;
    const char *near_; /* whom one could talk to from here; NULL: nobody */
    const char *note;  /* what has to be known; NULL: nothing */
    bool warns;
    /* Figures of the characters' model. model NULL: there is none. */
    const char *model, *device, *cache;
    double tokens_per_s, first_ms; /* of late; 0: not known */
    uint32_t budget_us, talking;   /* budget 0: there is none */
    double spent_us;               /* p99; 0: not known */
    uint32_t slots, pages, pages_held;
    double all_mib[3]; /* as f16, k8v8, k4v8; 0: not known */
    demo_percentiles quiet_ms, talking_ms;
    uint32_t quiet_frames, talking_frames;
} demo_shown;

#endif
