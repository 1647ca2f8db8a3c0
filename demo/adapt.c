/* Which precision the next frames have where it is left to the demo.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "demo/adapt.h"

#include <math.h>
#include <stdio.h>

void demo_adapt_init(demo_adapt *a, double limit)
{
    *a = (demo_adapt){.limit = limit};
}

static bool step_to(demo_adapt *a, bool up)
{
    a->up = up;
    a->error_at_step = a->error;
    a->above = a->below = 0;
    a->steps++;
    return true;
}

bool demo_adapt_probe(demo_adapt *a, double error)
{
    /* One result that is no number must not stay in the mean for ever. */
    const double sample = isfinite(error) ? error : fmax(1.0, 4 * a->limit);
    a->probes++;
    a->error += (sample - a->error) / (double)(a->probes < DEMO_ADAPT_WINDOW ? a->probes : DEMO_ADAPT_WINDOW);
    /* A mean of fewer probes is no mean. */
    if (a->probes < DEMO_ADAPT_WINDOW)
        return false;
    a->above = a->error > a->limit ? a->above + 1 : 0;
    a->below = a->error < a->limit / 2 ? a->below + 1 : 0;
    if (!a->up && a->above >= DEMO_ADAPT_UP)
        return step_to(a, true);
    return a->up && a->below >= DEMO_ADAPT_DOWN && step_to(a, false);
}

bool demo_adapt_frame(demo_adapt *a, const demo_frame_result *frame)
{
    if (frame->tried && frame->trial.elements)
        return demo_adapt_probe(a, demo_accuracy_rel_l1(&frame->trial));
    return frame->probed && frame->precision == TANDEM_PRECISION_8B && frame->accuracy.elements &&
           demo_adapt_probe(a, demo_accuracy_rel_l1(&frame->accuracy));
}

uint32_t demo_adapt_precision(const demo_adapt *a)
{
    return a->up ? TANDEM_PRECISION_F16 : TANDEM_PRECISION_AUTO;
}

void demo_adapt_text(const demo_adapt *a, char *text, size_t bytes)
{
    const double limit = 100 * a->limit, at = 100 * a->error_at_step;
    if (a->up)
        snprintf(text, bytes, "stepped up: error %.3g %% above %.3g %%", at, limit);
    else if (a->steps)
        snprintf(text, bytes, "stepped down: error %.3g %% below %.3g %%", at, limit / 2);
    else if (a->probes)
        snprintf(text, bytes, "8-bit: error near %.2f %%, limit %.3g %%", 100 * a->error, limit);
    else
        snprintf(text, bytes, "8-bit up to an error of %.3g %%", limit);
}
