/* How far a picture is from its reference. See quality.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/quality.h"

#include <math.h>
#include <stdlib.h>

enum { WINDOW = 11, MOMENTS = 5 };

static double linear_of(float x)
{
    return isfinite(x) && x > 0 ? (double)x : 0;
}

static double shown(float x)
{
    const double linear = linear_of(x);
    return linear / (1 + linear);
}

static void gaussian(double weights[WINDOW])
{
    double sum = 0;

    for (int i = 0; i < WINDOW; i++)
        sum += weights[i] = exp(-(i - WINDOW / 2) * (i - WINDOW / 2) / (2 * 1.5 * 1.5));
    for (int i = 0; i < WINDOW; i++)
        weights[i] /= sum;
}

/* Means of a, b, a^2, b^2 and ab over a window's rows, of the pixel at column x. */
static void column_moments(const tool_picture *a, const tool_picture *b, const double weights[WINDOW], uint32_t x, uint32_t y, uint32_t c,
                           double moments[MOMENTS])
{
    for (int m = 0; m < MOMENTS; m++)
        moments[m] = 0;
    for (uint32_t i = 0; i < WINDOW; i++) {
        const size_t at = ((size_t)(y + i) * a->width + x) * 3 + c;
        const double p = shown(a->pixels[at]), q = shown(b->pixels[at]), of[MOMENTS] = {p, q, p * p, q * q, p * q};
        for (int m = 0; m < MOMENTS; m++)
            moments[m] += weights[i] * of[m];
    }
}

static double similarity(const double m[MOMENTS])
{
    const double c1 = 0.01 * 0.01, c2 = 0.03 * 0.03;
    const double variances = m[2] - m[0] * m[0] + m[3] - m[1] * m[1], covariance = m[4] - m[0] * m[1];

    return (2 * m[0] * m[1] + c1) * (2 * covariance + c2) / ((m[0] * m[0] + m[1] * m[1] + c1) * (variances + c2));
}

static bool ssim_of(const tool_picture *a, const tool_picture *b, double *ssim)
{
    double weights[WINDOW], sum = 0;
    double(*columns)[MOMENTS];

    *ssim = 1;
    if (a->width < WINDOW || a->height < WINDOW)
        return true;
    columns = malloc(a->width * sizeof *columns);
    if (!columns)
        return false;
    gaussian(weights);
    for (uint32_t c = 0; c < 3; c++)
        for (uint32_t y = 0; y + WINDOW <= a->height; y++) {
            for (uint32_t x = 0; x < a->width; x++)
                column_moments(a, b, weights, x, y, c, columns[x]);
            for (uint32_t x = 0; x + WINDOW <= a->width; x++) {
                double moments[MOMENTS] = {0};
                for (uint32_t i = 0; i < WINDOW; i++)
                    for (int m = 0; m < MOMENTS; m++)
                        moments[m] += weights[i] * columns[x + i][m];
                sum += similarity(moments);
            }
        }
    free(columns);
    *ssim = sum / (3.0 * (a->width - WINDOW + 1) * (a->height - WINDOW + 1));
    return true;
}

double tool_psnr_of(const tool_picture *picture, const tool_picture *reference)
{
    const size_t count = (size_t)picture->width * picture->height * 3;
    double squares = 0;

    for (size_t i = 0; i < count; i++) {
        const double tone = shown(picture->pixels[i]) - shown(reference->pixels[i]);
        squares += tone * tone;
    }
    return squares > 0 ? -10 * log10(squares / (double)count) : 200;
}

bool tool_quality_of(const tool_picture *picture, const tool_picture *reference, tool_quality *out)
{
    const size_t count = (size_t)picture->width * picture->height * 3;
    double relative = 0;

    for (size_t i = 0; i < count; i++) {
        const double r = linear_of(reference->pixels[i]), error = linear_of(picture->pixels[i]) - r;
        relative += error * error / (r * r + 0.01);
    }
    out->psnr_db = tool_psnr_of(picture, reference);
    out->rel_mse = relative / (double)count;
    return ssim_of(picture, reference, &out->ssim);
}
