/* Frames that were rendered smaller than they are shown. See upscale.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/upscale.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint32_t tool_upscale_at(uint32_t i, uint32_t rendered, uint32_t output)
{
    return (uint32_t)((2 * (uint64_t)i + 1) * output / (2 * (uint64_t)rendered));
}

uint32_t tool_upscale_count(uint32_t output, uint32_t halves)
{
    return (2 * output + halves - 1) / halves;
}

bool tool_upscale_fits(const tool_picture *rendered, const tool_picture *output)
{
    const int64_t h = output->height, w = output->width, rows = rendered->height, columns = rendered->width;

    /* What rounds to rows is a share between h / (rows + 1) and h / (rows - 1), likewise columns: whether there is one for both. */
    return rows <= h && columns <= w && 2 * rows >= h && 2 * columns >= w && h * (columns - 1) < w * (rows + 1) &&
           w * (rows - 1) < h * (columns + 1);
}

static float *pixel_of(const tool_picture *picture, uint32_t y, uint32_t x)
{
    return picture->pixels + ((size_t)y * picture->width + x) * picture->channels;
}

bool tool_upscale_place(const tool_picture *rendered, uint32_t width, uint32_t height, tool_picture *out)
{
    if (!tool_picture_new(out, width, height, rendered->channels))
        return false;
    for (size_t i = 0; i < (size_t)width * height * out->channels; i++)
        out->pixels[i] = NAN;
    for (uint32_t y = 0; y < rendered->height; y++)
        for (uint32_t x = 0; x < rendered->width; x++)
            memcpy(pixel_of(out, tool_upscale_at(y, rendered->height, height), tool_upscale_at(x, rendered->width, width)),
                   pixel_of(rendered, y, x), out->channels * sizeof(float));
    return true;
}

bool tool_upscale_take(const tool_picture *whole, uint32_t width, uint32_t height, tool_picture *out)
{
    if (!tool_picture_new(out, width, height, whole->channels))
        return false;
    for (uint32_t y = 0; y < height; y++)
        for (uint32_t x = 0; x < width; x++)
            memcpy(pixel_of(out, y, x),
                   pixel_of(whole, tool_upscale_at(y, height, whole->height), tool_upscale_at(x, width, whole->width)),
                   out->channels * sizeof(float));
    return true;
}

/* Which four rows or columns an output's is of, and how much. */
typedef struct taps {
    uint32_t at[4];
    float weights[4];
} taps;

static void make_taps(taps *to, uint32_t rendered, uint32_t output)
{
    for (uint32_t x = 0, i = 0; x < output; x++) {
        while (i + 1 < rendered && tool_upscale_at(i + 1, rendered, output) <= x)
            i++;
        const uint32_t from = tool_upscale_at(i, rendered, output), to_next = tool_upscale_at(i + 1, rendered, output) - from;
        const float t = x > from && i + 1 < rendered ? (float)(x - from) / (float)to_next : 0; /* beyond the ends: theirs */
        for (uint32_t tap = 0; tap < 4; tap++)
            to[x].at[tap] = i + tap < 1 ? 0 : i + tap - 1 < rendered ? i + tap - 1 : rendered - 1;
        to[x].weights[0] = ((-0.5f * t + 1) * t - 0.5f) * t;
        to[x].weights[1] = (1.5f * t - 2.5f) * t * t + 1;
        to[x].weights[2] = ((-1.5f * t + 2) * t + 0.5f) * t;
        to[x].weights[3] = (0.5f * t - 0.5f) * t * t;
    }
}

static float positive(float x)
{
    return isfinite(x) && x > 0 ? x : 0;
}

bool tool_upscale_bicubic(const tool_picture *rendered, uint32_t width, uint32_t height, tool_picture *out)
{
    taps *rows = malloc(height * sizeof *rows), *columns = malloc(width * sizeof *columns);
    const bool done = rows && columns && tool_picture_new(out, width, height, rendered->channels);

    if (done) {
        make_taps(rows, rendered->height, height);
        make_taps(columns, rendered->width, width);
    }
    for (uint32_t y = 0; y < height && done; y++)
        for (uint32_t x = 0; x < width; x++)
            for (uint32_t c = 0; c < out->channels; c++) {
                float sum = 0;
                for (uint32_t i = 0; i < 16; i++)
                    sum += rows[y].weights[i / 4] * columns[x].weights[i % 4] *
                           positive(pixel_of(rendered, rows[y].at[i / 4], columns[x].at[i % 4])[c]);
                pixel_of(out, y, x)[c] = positive(sum);
            }
    free(rows);
    free(columns);
    return done;
}
