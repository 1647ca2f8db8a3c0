/* Plain filters. See filters.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/bench/filters.h"

#include <math.h>
#include <string.h>

enum { MOST_TAPS = 13 };

/* A filter: weights of each axis, so many pixels apart, about the middle; guides where edges count. */
typedef struct kernel {
    float weights[MOST_TAPS];
    int32_t radius, apart;
    const tool_picture *normal, *depth;
} kernel;

static bool is_finite(const float *x)
{
    return isfinite(x[0]) && isfinite(x[1]) && isfinite(x[2]);
}

/* How much alike two pixels' surfaces are. */
static float alike(const kernel *k, size_t a, size_t b)
{
    float apart = 0;

    if (k->normal && k->normal->pixels)
        for (int c = 0; c < 3; c++) {
            const float d = k->normal->pixels[3 * a + c] - k->normal->pixels[3 * b + c];
            apart += d * d / 0.125f;
        }
    if (k->depth && k->depth->pixels)
        apart += fabsf(k->depth->pixels[a] - k->depth->pixels[b]) / (0.05f * fabsf(k->depth->pixels[a]) + 1e-6f);
    return apart < 40 ? expf(-apart) : 0; /* NaN is not alike */
}

static void compute(const tool_picture *from, const kernel *k, int32_t y, int32_t x, float *to)
{
    const int32_t width = (int32_t)from->width, height = (int32_t)from->height;
    const size_t at = (size_t)y * from->width + (size_t)x;
    float sums[4] = {0};

    for (int32_t i = -k->radius; i <= k->radius; i++)
        for (int32_t j = -k->radius; j <= k->radius; j++) {
            const int32_t row = y + i * k->apart, column = x + j * k->apart;
            if (row < 0 || column < 0 || row >= height || column >= width)
                continue;
            const size_t other = (size_t)row * from->width + (size_t)column;
            const float *pixel = from->pixels + 3 * other;
            if (!is_finite(pixel))
                continue;
            const float weight = k->weights[i + k->radius] * k->weights[j + k->radius] * alike(k, at, other);
            for (int c = 0; c < 3; c++)
                sums[c] += weight * pixel[c];
            sums[3] += weight;
        }
    for (int c = 0; c < 3; c++)
        to[c] = sums[3] > 0 ? sums[c] / sums[3] : 0;
}

static bool apply(const tool_picture *from, const kernel *k, tool_picture *out)
{
    if (!tool_picture_new(out, from->width, from->height, 3))
        return false;
    for (uint32_t y = 0; y < from->height; y++)
        for (uint32_t x = 0; x < from->width; x++)
            compute(from, k, (int32_t)y, (int32_t)x, out->pixels + 3 * ((size_t)y * from->width + x));
    return true;
}

bool bench_box(const tool_picture *color, uint32_t radius, tool_picture *out)
{
    kernel k = {.radius = (int32_t)radius, .apart = 1};

    for (int i = 0; i < MOST_TAPS; i++)
        k.weights[i] = 1;
    return apply(color, &k, out);
}

static float divisor_of(const tool_picture *albedo, size_t pixel, int c)
{
    const float *a = albedo->pixels + 3 * pixel;

    if (a[0] < 0.02f && a[1] < 0.02f && a[2] < 0.02f)
        return 1;
    return a[c] > 0.02f ? a[c] : 0.02f;
}

bool bench_demodulate(const tool_picture *color, const tool_picture *albedo, tool_picture *out)
{
    const size_t pixels = (size_t)color->width * color->height;

    if (!tool_picture_new(out, color->width, color->height, 3))
        return false;
    for (size_t i = 0; i < 3 * pixels; i++)
        out->pixels[i] = albedo->pixels ? color->pixels[i] / divisor_of(albedo, i / 3, (int)(i % 3)) : color->pixels[i];
    return true;
}

void bench_modulate(tool_picture *light, const tool_picture *albedo)
{
    const size_t count = 3 * (size_t)light->width * light->height;

    for (size_t i = 0; i < count && albedo->pixels; i++)
        light->pixels[i] *= divisor_of(albedo, i / 3, (int)(i % 3));
}

bool bench_bilateral(const tool_picture *color, const tool_picture *normal, const tool_picture *depth, tool_picture *out)
{
    kernel k = {.radius = 6, .apart = 1, .normal = normal, .depth = depth};

    for (int i = 0; i < MOST_TAPS; i++)
        k.weights[i] = expf(-(float)((i - 6) * (i - 6)) / 18);
    return apply(color, &k, out);
}

bool bench_atrous(const tool_picture *color, const tool_picture *normal, const tool_picture *depth, tool_picture *out)
{
    kernel k = {.weights = {1, 4, 6, 4, 1}, .radius = 2, .normal = normal, .depth = depth};
    tool_picture from = {0};
    bool done = true;

    for (k.apart = 1; k.apart <= 16 && done; k.apart *= 2) {
        done = apply(from.pixels ? &from : color, &k, out);
        tool_picture_free(&from);
        if (done && k.apart < 16) {
            from = *out;
            memset(out, 0, sizeof *out);
        }
    }
    tool_picture_free(&from);
    return done;
}
