/* Which precision the next frames have where it is left to the demo: 8b as long as it is exact enough.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * What decides is always the error of 8b, on sampled rows (never an injected one): of the picture itself, or of a second job while f16 makes
 * the picture. Up is near, down is far: the error has to fall below half the limit, and to stay there for longer.
 */
#ifndef TANDEM_DEMO_ADAPT_H
#define TANDEM_DEMO_ADAPT_H

#include "demo/frame.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DEMO_ADAPT_WINDOW = 4, DEMO_ADAPT_UP = 2, DEMO_ADAPT_DOWN = 8 };

typedef struct demo_adapt {
    double limit;          /* relative L1 */
    double error;          /* of 8b, smoothed over about DEMO_ADAPT_WINDOW probes */
    double error_at_step;  /* what the last step was taken for */
    uint64_t probes, steps;
    uint32_t above, below; /* probes in a row */
    bool up;               /* f16 is in use */
} demo_adapt;

void demo_adapt_init(demo_adapt *a, double limit);
/* One probe of 8b. True if the precision changes with the next frame. */
bool demo_adapt_probe(demo_adapt *a, double error);
/* The same, from a frame: nothing happens unless 8b was measured in it. */
bool demo_adapt_frame(demo_adapt *a, const demo_frame_result *frame);
/* tandem_precision to ask for. */
uint32_t demo_adapt_precision(const demo_adapt *a);
/* Why it is so, in a few words. */
void demo_adapt_text(const demo_adapt *a, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
