/* Where a pixel's light comes from: what the denoiser's attention makes of one frame, by its own weights.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * All that the network's gathers do is to mix: what is shown of a pixel is a mean of light that was measured, in this frame or
 * before. Its weights are in no output of the network. So they are worked out from queries and keys, by a second copy of the
 * graph in a session of its own, on the CPU, in which those are outputs: frames cost nothing more until somebody asks.
 */
#ifndef TANDEM_DEMO_MIXTURE_H
#define TANDEM_DEMO_MIXTURE_H

#include "demo/frame.h"

typedef struct demo_mixture demo_mixture;

/* All weights of one pixel together are 1. */
typedef struct demo_mixture_sum {
    double now, before;          /* this frame's share, and that of the frames before */
    double farthest;             /* pixels, to what counts at least a thousandth as much as what counts most */
    double mixed[3], network[3]; /* the pixel's radiance: by those weights from what was measured, and as the network has it */
} demo_mixture_sum;

/* Of frames of that preset. NULL after one line on stderr, if its file's graph is none that can be followed. */
demo_mixture *demo_mixture_open(const demo_pipeline *p, uint32_t preset);
void demo_mixture_close(demo_mixture *m);
/* The network once more on what a finished frame read: the last that began, and the denoiser's. */
bool demo_mixture_frame(demo_mixture *m, demo_pipeline *p, demo_slot *slot);
/* Weights of a pixel, width * height each; `before` is of the frames before, at the places where they are seen now. */
bool demo_mixture_at(demo_mixture *m, uint32_t x, uint32_t y, float *now, float *before, demo_mixture_sum *sum);

/* The picture in grey, with the weights over it by powers of ten: this frame's in orange, those before in blue; a mark around the
 * pixel, and what is around it once more, larger, at the side. All as radiance, width * height * 4; `picture` may be `out`. */
void demo_mixture_paint(const float *picture, const float *now, const float *before, uint32_t width, uint32_t height, uint32_t x,
                        uint32_t y, float *out);

#endif
