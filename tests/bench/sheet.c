/* Frames of a folder, and pictures of them beside one another. See eval.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/eval.h"

enum { CELL = 192, GAP = 4 };

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

bool bench_list_frames(const char *path, char ***names, size_t *count, char *why, size_t why_bytes)
{
    DIR *folder = opendir(path);
    const struct dirent *entry;
    bool done = true;

    *names = NULL;
    *count = 0;
    if (!folder) {
        snprintf(why, why_bytes, "--frames \"%s\": no such folder", path);
        return false;
    }
    while (done && (entry = readdir(folder))) {
        const char *ending = strrchr(entry->d_name, '.');
        if (!ending || strcmp(ending, ".safetensors") != 0)
            continue;
        char **longer = realloc(*names, (*count + 1) * sizeof *longer);
        *names = longer ? longer : *names;
        done = longer && (longer[*count] = strdup(entry->d_name));
        *count += done;
    }
    closedir(folder);
    if (!done)
        snprintf(why, why_bytes, "out of memory");
    else if (!*count)
        snprintf(why, why_bytes, "--frames \"%s\" has no safetensors", path);
    else
        qsort(*names, *count, sizeof **names, by_name);
    return done && *count;
}

void bench_free_names(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

static double positive(float x)
{
    return isfinite(x) && x > 0 ? (double)x : 0;
}

bool bench_sheet_begin(bench_sheet *sheet, uint32_t columns)
{
    if (!sheet->picture.pixels) {
        if (!tool_picture_new(&sheet->picture, columns * (CELL + GAP),
                              BENCH_SHEET_LINES * (CELL + GAP), 3))
            return false;
        memset(sheet->picture.pixels, 0,
               (size_t)sheet->picture.width * sheet->picture.height * 3 * sizeof(float));
        sheet->columns = columns;
    }
    sheet->line++;
    return true;
}

void bench_sheet_draw(bench_sheet *sheet, uint32_t column, const tool_picture *from, double gain)
{
    tool_picture *to = &sheet->picture;
    const uint32_t wide = from->width < CELL ? from->width : CELL,
                   high = from->height < CELL ? from->height : CELL;
    const uint32_t left = (from->width - wide) / 2, top = (from->height - high) / 2;

    for (uint32_t y = 0; y < high; y++)
        for (uint32_t x = 0; x < 3 * wide; x++) {
            const double value =
                gain * positive(from->pixels[3 * ((size_t)(top + y) * from->width + left) + x]);
            const size_t row = (size_t)(sheet->line - 1) * (CELL + GAP) + y;
            to->pixels[3 * (row * to->width + column * (CELL + GAP)) + x] =
                (float)(value / (1 + value));
        }
}

double bench_sheet_gain(const tool_picture *reference)
{
    const size_t count = 3 * (size_t)reference->width * reference->height;
    double sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += log1p(1e3 * positive(reference->pixels[i]));
    return 0.5 / (1e-3 * expm1(sum / (double)count) + 1e-9);
}

bool bench_sheet_save(bench_sheet *sheet, const char *path, char *why, size_t why_bytes)
{
    sheet->picture.height = sheet->line * (CELL + GAP);
    return tool_picture_write("--sheet", path, &sheet->picture, why, why_bytes);
}
