/* Plain filters, which denoisers are compared with.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_BENCH_FILTERS_H
#define TD_BENCH_FILTERS_H

#include "engine_plugin/tool/picture.h"

/* All make `out`, of color's size; false when memory is short. Albedo, normal and depth may have no pixels. */

/* The mean of (2 radius + 1)^2 pixels, of those that are in the picture and finite. */
bool bench_box(const tool_picture *color, uint32_t radius, tool_picture *out);

/* Radiance divided by albedo, of which 0 to 0.02 is 0.02, but 1 where all three are below it; and multiplied by it again. */
bool bench_demodulate(const tool_picture *color, const tool_picture *albedo, tool_picture *out);
void bench_modulate(tool_picture *light, const tool_picture *albedo);

/* A Gaussian of 13 x 13 pixels, sigma 3, of pixels whose normal and depth are alike: exp(-|n - n'|^2 / 0.125 - |d - d'| / (0.05 d)). */
bool bench_bilateral(const tool_picture *color, const tool_picture *normal, const tool_picture *depth, tool_picture *out);

/* Five such filters of 5 x 5 pixels (1, 4, 6, 4, 1), 1, 2, 4, 8 and 16 apart (Dammertz et al.). */
bool bench_atrous(const tool_picture *color, const tool_picture *normal, const tool_picture *depth, tool_picture *out);

#endif
