/* Frames that were rendered smaller than they are shown: where their pixels lie.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_UPSCALE_H
#define TD_TOOL_UPSCALE_H

#include "engine_plugin/tool/picture.h"

/* Of so many rows or columns that were rendered, the i-th is this one of the output's, which are as many or more: the one that its
 * middle falls on. No two are the same. */
uint32_t tool_upscale_at(uint32_t i, uint32_t rendered, uint32_t output);
/* How many rows or columns to render for so many: two for each `halves`, which is 2 for all, 3 for 1.5x, 4 for 2x, rounded up. */
uint32_t tool_upscale_count(uint32_t output, uint32_t halves);
/* Whether that is a size to render at for that output: not larger, nor smaller by more than 2, and the same share of both axes but
 * for rounding up or down. */
bool tool_upscale_fits(const tool_picture *rendered, const tool_picture *output);

/* All make `out`; false when memory is short. */

/* A picture of the output's size: its other pixels are NaN. */
bool tool_upscale_place(const tool_picture *rendered, uint32_t width, uint32_t height, tool_picture *out);
/* A whole picture's pixels that one of this size has. */
bool tool_upscale_take(const tool_picture *whole, uint32_t width, uint32_t height, tool_picture *out);
/* Catmull and Rom's cubics through the pixels where they lie, without a network; below 0 and not finite are 0, of both pictures. */
bool tool_upscale_bicubic(const tool_picture *rendered, uint32_t width, uint32_t height, tool_picture *out);

#endif
