/* How far a picture is from its reference.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_QUALITY_H
#define TD_TOOL_QUALITY_H

#include "engine_plugin/tool/picture.h"

/* Of two pictures of one size and 3 channels. What is not finite or below 0 counts as 0. x / (1 + x) stands for how a picture is
 * shown; SSIM is the mean over pixels and channels of Wang's, by a Gaussian of 11 x 11 pixels and sigma 1.5 that stays within the
 * picture, 1 where that has no place; relMSE is the mean of (x - r)^2 / (r^2 + 0.01). */
typedef struct tool_quality {
    double psnr_db, ssim, rel_mse; /* psnr_db: 200 where the two are the same */
} tool_quality;
/* Of those psnr_db alone. */
double tool_psnr_of(const tool_picture *picture, const tool_picture *reference);
bool tool_quality_of(const tool_picture *picture, const tool_picture *reference, tool_quality *out);

#endif
