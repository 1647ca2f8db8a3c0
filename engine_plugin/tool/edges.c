/* See edges.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Of a plane the reciprocal of the depth is linear across the image. So of three neighbours on it, seen through the middle of their
 * pixels, the second is the mean of the others; seen through any points of their pixels it is off by about what neighbours differ by. Where
 * they differ by less than four thousandths halves do not tell.
 */
#include "engine_plugin/tool/edges.h"

#include <math.h>

enum { LEAST_PIXELS = 200 };
static const double least_slope = 4e-3, most_slope = 0.1; /* of a reciprocal's difference from pixel to pixel, of itself */
static const double off = 0.05, rounding = 5e-4;          /* of that difference, and of the reciprocal, as halves round it */
static const double same = 0.99;                          /* cosine, at least, of normals of one surface */
static const double most_are = 0.75;                      /* through the middle nine in ten are linear and more, else one in ten */

static bool is_one_surface(const tool_picture *normal, size_t a, size_t b)
{
    const float *x = normal->pixels + 3 * a, *y = normal->pixels + 3 * b;
    double product = 0, of_x = 0, of_y = 0;

    for (int i = 0; i < 3; i++) {
        product += (double)x[i] * (double)y[i];
        of_x += (double)x[i] * (double)x[i];
        of_y += (double)y[i] * (double)y[i];
    }
    return product > same * sqrt(of_x * of_y); /* not of NaNs, or of the sky's zeros */
}

bool tool_edges_are_hard(const tool_picture *depth, const tool_picture *normal)
{
    const bool has_normals = normal->pixels && normal->width == depth->width && normal->height == depth->height && normal->channels == 3;
    const size_t steps[2] = {1, depth->width};
    uint64_t seen = 0, linear = 0;

    if (!depth->pixels || depth->channels != 1)
        return false;
    for (int axis = 0; axis < 2; axis++)
        for (uint32_t y = axis ? 1 : 0; y + (axis ? 1 : 0) < depth->height; y++)
            for (uint32_t x = axis ? 0 : 1; x + (axis ? 0 : 1) < depth->width; x++) {
                const size_t at = (size_t)y * depth->width + x, before = at - steps[axis], behind = at + steps[axis];
                const double a = 1 / (double)depth->pixels[before], b = 1 / (double)depth->pixels[at], c = 1 / (double)depth->pixels[behind];
                const double slope = fabs(c - a) / 2;

                if (!(a > 0 && b > 0 && c > 0 && slope > least_slope * b && slope < most_slope * b) || /* nor where there is none */
                    (has_normals && !(is_one_surface(normal, before, at) && is_one_surface(normal, at, behind))))
                    continue;
                seen++;
                linear += fabs(a - 2 * b + c) < off * slope + rounding * b;
            }
    return seen >= LEAST_PIXELS && (double)linear > most_are * (double)seen;
}
