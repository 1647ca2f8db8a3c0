/* Pictures in memory, and as PFM. See picture.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/picture.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interop/base.h"

bool tool_picture_new(tool_picture *picture, uint32_t width, uint32_t height, uint32_t channels)
{
    *picture = (tool_picture){width, height, channels, NULL};
    picture->pixels = malloc((size_t)width * height * channels * sizeof(float));
    return picture->pixels != NULL;
}

void tool_picture_free(tool_picture *picture)
{
    free(picture->pixels);
    *picture = (tool_picture){0};
}

static bool wrong(char *why, size_t why_bytes, const char *text)
{
    td_text(why, why_bytes, "%s", text);
    return false;
}

/* Numbers as the other order of bytes has them. */
static void swap_bytes(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        u = __builtin_bswap32(u);
        memcpy(&x[i], &u, sizeof u);
    }
}

/* Rows come from the bottom; a scale below 0 says little-endian. */
static bool pfm_rows(FILE *file, const char *kind, uint32_t channels, tool_picture *out, char *why, size_t why_bytes)
{
    const uint32_t there = kind[1] == 'F' ? 3 : 1;
    uint32_t width = 0, height = 0;
    float scale = 0;

    if ((strcmp(kind, "PF") && strcmp(kind, "Pf")) ||
        fscanf(file, "%" SCNu32 " %" SCNu32 " %f", &width, &height, &scale) != 3 || fgetc(file) == EOF || scale == 0)
        return wrong(why, why_bytes, "is no PFM file");
    if (there < channels)
        return wrong(why, why_bytes, "has one channel, not three");
    if (!width || !height || width > TOOL_PICTURE_MOST || height > TOOL_PICTURE_MOST)
        return wrong(why, why_bytes, "has no width and height from 1 to 16384");
    float *row = malloc((size_t)width * there * sizeof *row);
    bool done = row && tool_picture_new(out, width, height, channels);
    if (!done)
        wrong(why, why_bytes, "out of memory");
    for (uint32_t y = 0; y < height && done; y++) {
        done = fread(row, sizeof *row * there, width, file) == width;
        if (scale > 0)
            swap_bytes(row, (size_t)width * there);
        for (uint32_t x = 0; x < width && done; x++)
            for (uint32_t c = 0; c < channels; c++)
                out->pixels[((size_t)(height - 1 - y) * width + x) * channels + c] = row[(size_t)x * there + c];
        if (!done)
            wrong(why, why_bytes, "ends before its last row");
    }
    free(row);
    return done;
}

bool tool_pfm_read(const char *path, uint32_t channels, tool_picture *out, char *why, size_t why_bytes)
{
    FILE *file = fopen(path, "rb");
    char kind[3] = "";

    if (!file)
        return wrong(why, why_bytes, strerror(errno));
    const bool done = fscanf(file, "%2s", kind) == 1 ? pfm_rows(file, kind, channels, out, why, why_bytes)
                                                     : wrong(why, why_bytes, "is no PFM file");
    fclose(file);
    return done;
}

bool tool_pfm_write(const char *path, const tool_picture *picture, char *why, size_t why_bytes)
{
    FILE *file = fopen(path, "wb");
    const size_t row = (size_t)picture->width * 3;

    if (!file)
        return wrong(why, why_bytes, strerror(errno));
    fprintf(file, "PF\n%" PRIu32 " %" PRIu32 "\n-1.0\n", picture->width, picture->height);
    for (uint32_t y = picture->height; y-- > 0;)
        fwrite(picture->pixels + y * row, sizeof(float), row, file);
    const bool written = !ferror(file);
    return fclose(file) == 0 && written ? true : wrong(why, why_bytes, strerror(errno));
}
