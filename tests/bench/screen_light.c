/* Indirect light as games approximate it. See screen_light.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/bench/screen_light.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265f
enum { SAMPLES = 64, STEPS = 24 };
static const float occlusion_reach = 0.25f, bounce_reach = 2, thickness = 0.1f; /* in mean depths */

/* What turns a place, from the eye, into a pixel: rays are linear in it. */
typedef struct view {
    float inverse[3][3]; /* of the columns across, down, first */
    float mean_depth;
} view;

void bench_light_free(bench_light *light)
{
    tool_picture_free(&light->base);
    tool_picture_free(&light->weight);
}

static void cross(const float a[3], const float b[3], float out[3])
{
    for (int i = 0; i < 3; i++)
        out[i] = a[(i + 1) % 3] * b[(i + 2) % 3] - a[(i + 2) % 3] * b[(i + 1) % 3];
}

static float dot(const float a[3], const float b[3])
{
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

static bool is_surface(const bench_lit *lit, size_t at)
{
    return lit->depth->pixels[at] > 0 && isfinite(lit->depth->pixels[at]);
}

static bool scatters(const bench_lit *lit, size_t at)
{
    const float *albedo = lit->albedo->pixels + 3 * at;

    return fmaxf(fmaxf(albedo[0], albedo[1]), albedo[2]) >= 0.02f;
}

static view view_of(const bench_lit *lit)
{
    const uint32_t width = lit->depth->width, height = lit->depth->height;
    const float *rays = lit->ray->pixels, *first = rays,
                *last_across = rays + 3 * ((size_t)width - 1),
                *last_down = rays + 3 * (size_t)width * (height - 1);
    float columns[3][3], sum = 0, count = 0;
    view v = {0};

    for (int i = 0; i < 3; i++) {
        columns[0][i] = width > 1 ? (last_across[i] - first[i]) / (float)(width - 1) : 0;
        columns[1][i] = height > 1 ? (last_down[i] - first[i]) / (float)(height - 1) : 0;
        columns[2][i] = first[i];
    }
    for (int i = 0; i < 3; i++)
        cross(columns[(i + 1) % 3], columns[(i + 2) % 3], v.inverse[i]);
    const float determinant = dot(columns[0], v.inverse[0]);
    for (int i = 0; i < 9; i++)
        v.inverse[i / 3][i % 3] /= determinant;
    for (size_t i = 0; i < (size_t)width * height; i++)
        if (is_surface(lit, i)) {
            sum += logf(lit->depth->pixels[i]);
            count++;
        }
    v.mean_depth = count > 0 ? expf(sum / count) : 1;
    return v;
}

/* The pixel that a place is in, and its depth; false where it is outside of the picture. */
static bool find(const view *v, const bench_lit *lit, const float place[3], size_t *pixel,
                 float *depth)
{
    const float z = dot(v->inverse[2], place), x = dot(v->inverse[0], place) / z + 0.5f,
                y = dot(v->inverse[1], place) / z + 0.5f;

    if (!(z > 0 && x >= 0 && y >= 0 && x < (float)lit->depth->width &&
          y < (float)lit->depth->height))
        return false;
    *pixel = (size_t)y * lit->depth->width + (size_t)x;
    *depth = z;
    return true;
}

static float hash01(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return (float)(x >> 8) / 16777216;
}

/* The i-th of SAMPLES directions, by a cosine, turned about the normal by so much. */
static void direction_of(uint32_t i, float turn, const float normal[3], float out[3])
{
    const float square = ((float)i + 0.5f) / SAMPLES, r = sqrtf(square), z = sqrtf(1 - square),
                phi = 2 * PI * (0.61803399f * (float)i + turn);
    const float helper[3] = {fabsf(normal[0]) < 0.5f, fabsf(normal[0]) >= 0.5f, 0};
    float a[3], b[3];

    cross(helper, normal, a);
    const float length = sqrtf(dot(a, a)) + 1e-12f;
    for (int c = 0; c < 3; c++)
        a[c] /= length;
    cross(normal, a, b);
    for (int c = 0; c < 3; c++)
        out[c] = r * cosf(phi) * a[c] + r * sinf(phi) * b[c] + z * normal[c];
}

/* Whether a place is behind what is seen in its pixel, by less than so much; and which pixel that
 * is. */
static bool is_hidden(const view *v, const bench_lit *lit, const float place[3], float most,
                      size_t *pixel)
{
    float depth;

    if (!find(v, lit, place, pixel, &depth) || !is_surface(lit, *pixel))
        return false;
    const float behind = depth - lit->depth->pixels[*pixel];
    return behind > 0.004f * depth && behind < most;
}

static void along(const float from[3], const float direction[3], float length, float out[3])
{
    for (int c = 0; c < 3; c++)
        out[c] = from[c] + length * direction[c];
}

/* Of a pixel's rays: the light that they meet, and the share of them that meet nothing. */
static void gather(const view *v, const bench_lit *lit, bench_screen kind, size_t at,
                   float light[3], float *open)
{
    const float *ray = lit->ray->pixels + 3 * at,
                scale = kind == BENCH_OCCLUSION ? occlusion_reach : bounce_reach;
    const float reach = scale * v->mean_depth, turn = hash01((uint32_t)at);
    const float size =
        sqrtf(dot(lit->normal->pixels + 3 * at, lit->normal->pixels + 3 * at)) + 1e-12f;
    float normal[3], from[3], way[3], place[3];
    uint32_t met = 0;
    size_t pixel;

    for (int c = 0; c < 3; c++)
        normal[c] = lit->normal->pixels[3 * at + (size_t)c] / size;
    along((const float[3]){0, 0, 0}, ray, lit->depth->pixels[at], from);
    along(from, normal, 0.01f * lit->depth->pixels[at], from);
    memset(light, 0, 3 * sizeof *light);
    for (uint32_t i = 0; i < SAMPLES; i++) {
        direction_of(i, turn, normal, way);
        if (kind == BENCH_OCCLUSION) {
            along(from, way, reach * hash01((uint32_t)at * SAMPLES + i + 1), place);
            met += is_hidden(v, lit, place, reach, &pixel);
            continue;
        }
        for (int step = 1; step <= STEPS; step++) {
            const float part = ((float)step - hash01((uint32_t)at * SAMPLES + i + 1)) / STEPS;
            along(from, way, reach * part * part, place);
            if (!is_hidden(v, lit, place, thickness * v->mean_depth, &pixel))
                continue;
            if (!scatters(lit, pixel)) /* a lamp, whose light is in direct light already */
                break;
            for (int c = 0; c < 3; c++)
                light[c] += lit->direct->pixels[3 * pixel + (size_t)c] / SAMPLES;
            met++;
            break;
        }
    }
    *open = 1 - (float)met / SAMPLES;
}

bool bench_screen_light(const bench_lit *lit, bench_screen kind, bench_light *out)
{
    const uint32_t width = lit->direct->width, height = lit->direct->height;
    const view v = view_of(lit);

    if (!tool_picture_new(&out->base, width, height, 3) ||
        !tool_picture_new(&out->weight, width, height, 3))
        return false;
    for (size_t i = 0; i < (size_t)width * height; i++) {
        float light[3] = {0}, open = kind != BENCH_NO_LIGHT;
        if (kind >= BENCH_OCCLUSION && is_surface(lit, i))
            gather(&v, lit, kind, i, light, &open);
        for (size_t c = 3 * i; c < 3 * i + 3; c++) {
            out->base.pixels[c] = lit->albedo->pixels[c] * light[c - 3 * i];
            out->weight.pixels[c] = lit->albedo->pixels[c] * open;
        }
    }
    return true;
}

void bench_mean_light(const bench_lit *lit, float mean[3])
{
    double sums[3] = {0}, count = 0;

    for (size_t i = 0; i < (size_t)lit->direct->width * lit->direct->height; i++) {
        const float *albedo = lit->albedo->pixels + 3 * i, *direct = lit->direct->pixels + 3 * i;
        if (!(fminf(fminf(albedo[0], albedo[1]), albedo[2]) >= 0.02f) ||
            !isfinite(direct[0] + direct[1] + direct[2]))
            continue;
        for (int c = 0; c < 3; c++)
            sums[c] += (double)(direct[c] / albedo[c]);
        count++;
    }
    for (int c = 0; c < 3; c++)
        mean[c] = count > 0 ? (float)(sums[c] / count) : 0;
}

bool bench_light_sum(const bench_lit *lit, const bench_light *light, const float ambient[3],
                     tool_picture *out)
{
    if (!tool_picture_new(out, lit->direct->width, lit->direct->height, 3))
        return false;
    for (size_t i = 0; i < 3 * (size_t)out->width * out->height; i++)
        out->pixels[i] = lit->direct->pixels[i] + light->base.pixels[i] +
                         ambient[i % 3] * light->weight.pixels[i];
    return true;
}

static double shown(float x)
{
    return isfinite(x) && x > 0 ? (double)x / (1 + (double)x) : 0;
}

static double error_of(const bench_lit *lit, const bench_light *light,
                       const tool_picture *reference, size_t channel, float ambient)
{
    double sum = 0;

    for (size_t i = channel; i < 3 * (size_t)reference->width * reference->height; i += 3) {
        const double off = shown(lit->direct->pixels[i] + light->base.pixels[i] +
                                 ambient * light->weight.pixels[i]) -
                           shown(reference->pixels[i]);
        sum += off * off;
    }
    return sum;
}

void bench_best_ambient(const bench_lit *lit, const bench_light *light,
                        const tool_picture *reference, float ambient[3])
{
    for (size_t c = 0; c < 3; c++) {
        double least = error_of(lit, light, reference, c, 0);
        float best = -30;
        bool is_none = true;

        /* Powers of 2 from -20 to 16, then those about the best one, four times as near. */
        for (int level = 0; level < 3; level++) {
            const float step = 1 / (float)(1 << 2 * level), first = level ? best - 4 * step : -20;
            for (int i = 0; i < (level ? 9 : 37); i++) {
                const float power = first + (float)i * step;
                const double error = error_of(lit, light, reference, c, exp2f(power));
                if (error < least) {
                    least = error;
                    best = power;
                    is_none = false;
                }
            }
        }
        ambient[c] = is_none ? 0 : exp2f(best);
    }
}
