/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugin/layer/filter.h"

#include <math.h>

static int clamped(int x, int most)
{
    return x < 0 ? 0 : x > most ? most : x;
}

static float at(const filter_picture *p, const float *values, int x, int y, int channel)
{
    return values[4 * (clamped(y, p->height - 1) * p->width + clamped(x, p->width - 1)) + channel];
}

float filter_color(const filter_picture *p, int x, int y, int channel)
{
    const float c = at(p, p->colors, x, y, channel);

    return isfinite(c) ? c : 0;
}

static float luminance_at(const filter_picture *p, int x, int y)
{
    return 0.25f * at(p, p->codes, x, y, 0) + 0.5f * at(p, p->codes, x, y, 1) + 0.25f * at(p, p->codes, x, y, 2);
}

/* Half the squared distance of two pixels' features. */
static float distance_of(const filter_picture *p, float sigma, int ax, int ay, int bx, int by)
{
    const float gain = 255 / (3 * sigma), chroma = 0.5f * gain;
    const float red = chroma * (at(p, p->codes, ax, ay, 0) - at(p, p->codes, ax, ay, 1) - at(p, p->codes, bx, by, 0) +
                                at(p, p->codes, bx, by, 1));
    const float blue = chroma * (at(p, p->codes, ax, ay, 2) - at(p, p->codes, ax, ay, 1) - at(p, p->codes, bx, by, 2) +
                                 at(p, p->codes, bx, by, 1));
    float sum = red * red + blue * blue;

    for (int i = 0; i < 9; i++) {
        const float d = gain * (luminance_at(p, ax + i % 3 - 1, ay + i / 3 - 1) -
                                luminance_at(p, bx + i % 3 - 1, by + i / 3 - 1));
        sum += d * d;
    }
    return sum / 2;
}

float filter_expected(const filter_picture *p, float sigma, float amount, int x, int y, int channel)
{
    const float before = filter_color(p, x, y, channel);
    float sum = 0, weights = 0;

    for (int v = y - 3; v <= y + 3; v++)
        for (int u = x - 3; u <= x + 3; u++)
            if (u >= 0 && v >= 0 && u < p->width && v < p->height) {
                const float weight = expf(-distance_of(p, sigma, x, y, u, v));
                sum += weight * filter_color(p, u, v, channel);
                weights += weight;
            }
    return before + amount * (sum / weights - before);
}
