/* The denoiser's network once more, on the CPU and without Vulkan: what a frame should have come to.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DEMO_RECHECK_H
#define TANDEM_DEMO_RECHECK_H

#include "demo/frame.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct demo_recheck demo_recheck;

/* NULL after one line on stderr. */
demo_recheck *demo_recheck_open(const demo_pipeline *p);
void demo_recheck_close(demo_recheck *r);
/* Frames in their order, each finished and none left out: its history is kept here, too. */
bool demo_recheck_frame(demo_recheck *r, demo_pipeline *p, demo_slot *slot, demo_accuracy *out);

#ifdef __cplusplus
}
#endif
#endif
