/* Pictures in files: PFM, PNG where libpng is there, EXR where OpenEXR is.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_PICTURE_H
#define TD_TOOL_PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TOOL_PICTURE_MOST = 16384 }; /* pixels a side */

/* Linear, rows from the top, channels together. */
typedef struct tool_picture {
    uint32_t width, height, channels;
    float *pixels;
} tool_picture;

/* Uninitialised; false when memory is short. */
bool tool_picture_new(tool_picture *picture, uint32_t width, uint32_t height, uint32_t channels);
void tool_picture_free(tool_picture *picture);

/* By the ending of its name; with 3 channels or 1. False, and the reason, which names the option and the file. */
bool tool_picture_read(const char *option, const char *path, uint32_t channels, tool_picture *out, char *why, size_t why_bytes);
/* Whether a name ends as a picture's that this build can write: else what it can. */
bool tool_picture_can_write(const char *option, const char *path, char *why, size_t why_bytes);
/* Of 3 channels; PNG shows 0 to 1, in sRGB. Under a temporary name beside `path`, then renamed. */
bool tool_picture_write(const char *option, const char *path, const tool_picture *picture, char *why, size_t why_bytes);

/* One format each, of which a build may lack the last two; the reason alone. */
bool tool_pfm_read(const char *path, uint32_t channels, tool_picture *out, char *why, size_t why_bytes);
bool tool_pfm_write(const char *path, const tool_picture *picture, char *why, size_t why_bytes);
bool tool_png_read(const char *path, uint32_t channels, tool_picture *out, char *why, size_t why_bytes);
bool tool_png_write(const char *path, const tool_picture *picture, char *why, size_t why_bytes);
bool tool_exr_read(const char *path, uint32_t channels, tool_picture *out, char *why, size_t why_bytes);
bool tool_exr_write(const char *path, const tool_picture *picture, char *why, size_t why_bytes);

#endif
