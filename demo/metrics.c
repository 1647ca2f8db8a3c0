/* Numbers about frames: PSNR, box filters, seams, percentiles.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "demo/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float shown(float x)
{
    return x > 0 && isfinite(x) ? x / (1.0f + x) : 0.0f;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double rank(const double *sorted, size_t count, double share)
{
    const size_t at = (size_t)ceil(share * (double)count);
    return sorted[at ? at - 1 : 0];
}

demo_percentiles demo_percentiles_of(double *values, size_t count)
{
    if (!count)
        return (demo_percentiles){0, 0, 0};
    qsort(values, count, sizeof *values, ascending);
    return (demo_percentiles){rank(values, count, 0.50), rank(values, count, 0.95), rank(values, count, 0.99)};
}

static double db_of(double squares, size_t values)
{
    return squares > 0 ? -10.0 * log10(squares / (double)values) : 200.0;
}

double demo_psnr_db(const float *picture, const float *reference, uint32_t width, uint32_t height)
{
    const size_t pixels = (size_t)width * height;
    double squares = 0;
    for (size_t i = 0; i < pixels; i++)
        for (size_t c = 0; c < 3; c++) {
            const double error = (double)(shown(picture[4 * i + c]) - shown(reference[4 * i + c]));
            squares += error * error;
        }
    return db_of(squares, 3 * pixels);
}

/* Sums of all pixels above and to the left, one channel; edges of the picture are repeated `radius` pixels outward. */
static double box_squares(const float *channel, const float *target, uint32_t width, uint32_t height, int radius,
                          int tone_map)
{
    const size_t stride = width + 2 * (size_t)radius + 1, rows = height + 2 * (size_t)radius + 1;
    double *sums = calloc(stride * rows, sizeof *sums);
    double squares = 0;
    if (!sums)
        return INFINITY;
    for (size_t y = 1; y < rows; y++) {
        const long from_y = (long)y - 1 - radius;
        const size_t sy = from_y < 0 ? 0 : from_y >= (long)height ? height - 1 : (size_t)from_y;
        double row = 0;
        for (size_t x = 1; x < stride; x++) {
            const long from_x = (long)x - 1 - radius;
            const size_t sx = from_x < 0 ? 0 : from_x >= (long)width ? width - 1 : (size_t)from_x;
            row += (double)channel[sy * width + sx];
            sums[y * stride + x] = sums[(y - 1) * stride + x] + row;
        }
    }
    const size_t edge = 2 * (size_t)radius + 1;
    for (size_t y = 0; y < height; y++)
        for (size_t x = 0; x < width; x++) {
            const double *low = sums + y * stride + x, *high = low + edge * stride;
            const double mean = (high[edge] - high[0] - low[edge] + low[0]) / (double)(edge * edge);
            const double error = (tone_map ? mean / (1.0 + mean) : mean) - (double)target[y * width + x];
            squares += error * error;
        }
    free(sums);
    return squares;
}

double demo_best_box_db(const float *noisy, const float *reference, uint32_t width, uint32_t height)
{
    const size_t pixels = (size_t)width * height;
    float *plain = malloc(3 * pixels * sizeof *plain);
    double squares[6] = {0};
    if (!plain)
        return NAN;
    float *mapped = plain + pixels, *target = mapped + pixels;
    for (size_t c = 0; c < 3; c++) {
        for (size_t i = 0; i < pixels; i++) {
            mapped[i] = shown(noisy[4 * i + c]);
            plain[i] = isfinite(noisy[4 * i + c]) ? noisy[4 * i + c] : 0.0f; /* black, as shown() has it */
            target[i] = shown(reference[4 * i + c]);
        }
        for (int k = 0; k < 3; k++) {
            squares[k] += box_squares(plain, target, width, height, k + 1, 1);
            squares[3 + k] += box_squares(mapped, target, width, height, k + 1, 0);
        }
    }
    free(plain);
    double best = squares[0];
    for (int k = 1; k < 6; k++)
        best = squares[k] < best ? squares[k] : best;
    return db_of(best, 3 * pixels);
}

void demo_box(const float *noisy, uint32_t width, uint32_t height, float *out)
{
    enum { RADIUS = 2 };
    for (long y = 0; y < (long)height; y++)
        for (long x = 0; x < (long)width; x++) {
            float sum[3] = {0}, count = 0;
            for (long v = y - RADIUS; v <= y + RADIUS; v++)
                for (long u = x - RADIUS; u <= x + RADIUS; u++) {
                    if (u < 0 || v < 0 || u >= (long)width || v >= (long)height)
                        continue;
                    const float *pixel = noisy + 4 * ((size_t)v * width + (size_t)u);
                    for (int c = 0; c < 3; c++)
                        sum[c] += isfinite(pixel[c]) ? pixel[c] : 0.0f;
                    count++;
                }
            for (int c = 0; c < 3; c++)
                out[4 * ((size_t)y * width + (size_t)x) + (size_t)c] = sum[c] / count;
            out[4 * ((size_t)y * width + (size_t)x) + 3] = 1.0f;
        }
}

static double error_at(const float *picture, const float *reference, size_t pixel)
{
    double sum = 0;
    for (size_t c = 0; c < 3; c++)
        sum += (double)(shown(picture[4 * pixel + c]) - shown(reference[4 * pixel + c]));
    return sum / 3.0;
}

static void add_step(demo_seams *seams, double step, int across)
{
    *(across ? &seams->across : &seams->inside) += fabs(step);
    *(across ? &seams->across_count : &seams->inside_count) += 1;
}

void demo_seams_add(demo_seams *seams, const float *picture, const float *reference, uint32_t width, uint32_t height,
                    uint32_t tile, uint32_t shift_x, uint32_t shift_y)
{
    for (size_t y = 0; y < height; y++)
        for (size_t x = 0; x < width; x++) {
            const double here = error_at(picture, reference, y * width + x);
            if (x + 1 < width)
                add_step(seams, error_at(picture, reference, y * width + x + 1) - here, (x + 1 + shift_x) % tile == 0);
            if (y + 1 < height)
                add_step(seams, error_at(picture, reference, (y + 1) * width + x) - here,
                         (y + 1 + shift_y) % tile == 0);
        }
}

double demo_seams_ratio(const demo_seams *s)
{
    if (!s->across_count || !s->inside_count || s->inside <= 0)
        return 1.0;
    return s->across / (double)s->across_count / (s->inside / (double)s->inside_count);
}

void demo_to_bytes(const float *picture, uint32_t width, uint32_t height, uint8_t *rgba)
{
    const size_t pixels = (size_t)width * height;
    for (size_t i = 0; i < pixels; i++) {
        for (size_t c = 0; c < 3; c++)
            rgba[4 * i + c] = (uint8_t)lrintf(255.0f * powf(shown(picture[4 * i + c]), 1.0f / 2.2f));
        rgba[4 * i + 3] = 255;
    }
}
