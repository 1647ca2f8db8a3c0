/* A path tracer's frame as light and tokens on the CPU. See params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cpu/cpu.h"
#include "kernels/demodulate/demodulate.h"

enum { TILE = TD_DEMODULATE_TILE, CHANNELS = TD_DEMODULATE_MOST_CHANNELS };

/* Which pixels a block is for. */
typedef struct tile {
    int64_t batch, top, left;
    uint32_t rows, columns;
} tile;

static tile tile_of(const td_params_demodulate *p, uint32_t block)
{
    tile t = {.batch = block / p->columns / p->rows,
              .top = (int64_t)(block / p->columns % p->rows) * TILE,
              .left = (int64_t)(block % p->columns) * TILE};
    t.rows = p->height - t.top < TILE ? (uint32_t)(p->height - t.top) : TILE;
    t.columns = p->width - t.left < TILE ? (uint32_t)(p->width - t.left) : TILE;
    return t;
}

static void load(float *to, const void *from, uint32_t dtype, const td_strides *at, int64_t batch, int64_t y, int64_t x, uint32_t channels,
                 float absent)
{
    if (from)
        td_to_floats(to, from, dtype, td_row_at(at, batch, y, x), channels);
    for (uint32_t c = 0; c < channels; c++)
        to[c] = !from ? absent : isfinite(to[c]) ? to[c] : 0;
}

/* Whether it is there; else it is black. */
static bool load_color(const td_params_demodulate *p, int64_t batch, int64_t y, int64_t x, float color[3])
{
    td_to_floats(color, p->color, p->color_dtype, td_row_at(&p->color_at, batch, y, x), 3);
    const bool there = isfinite(color[0]) && isfinite(color[1]) && isfinite(color[2]);
    for (int c = 0; c < 3; c++)
        color[c] = there && color[c] > 0 ? color[c] : 0;
    return there;
}

static float between(float x, float least, float most)
{
    return x < least ? least : x > most ? most : x;
}

void td_cpu_demodulate_tiles(const void *params, const td_block *at)
{
    const td_params_demodulate *p = params;
    const tile t = tile_of(p, at->x);
    td_demodulate_sums sums = {0};
    float luminance = 0, pixels = 0, color[3], depth;

    for (uint32_t r = 0; r < t.rows; r++)
        for (uint32_t c = 0; c < t.columns; c++) {
            pixels += (float)load_color(p, t.batch, t.top + r, t.left + c, color);
            luminance += 0.2126f * color[0] + 0.7152f * color[1] + 0.0722f * color[2];
            load(&depth, p->depth, p->depth_dtype, &p->depth_at, t.batch, t.top + r, t.left + c, 1, 0);
            if (depth > TD_DEMODULATE_LEAST) {
                sums.depth += logf(depth);
                sums.depths += 1;
            }
        }
    luminance = pixels > 0 ? luminance / pixels : 0;
    if (luminance > TD_DEMODULATE_LEAST) {
        sums.luminance = logf(luminance);
        sums.luminances = 1;
    }
    p->tiles[at->x] = sums;
}

void td_cpu_demodulate_all(const void *params, const td_block *at)
{
    const td_params_demodulate *p = params;
    const uint64_t count = (uint64_t)p->rows * p->columns;
    double sums[4] = {0};

    for (uint64_t i = 0; i < count; i++) {
        const td_demodulate_sums *of = &p->tiles[at->x * count + i];
        sums[0] += (double)of->luminance;
        sums[1] += (double)of->luminances;
        sums[2] += (double)of->depth;
        sums[3] += (double)of->depths;
    }
    p->scales[at->x] = (td_demodulate_scale){.exposure = sums[1] > 0 ? expf((float)(-sums[0] / sums[1])) : 1,
                                             .far = sums[3] > 0 ? expf((float)(sums[2] / sums[3])) : 1};
}

/* A pixel's light, modulation and channels of a token. */
static void compute(const td_params_demodulate *p, int64_t batch, int64_t y, int64_t x, float exposure, float far, float channels[CHANNELS])
{
    float color[3], albedo[3], normal[3], depth;
    float *light = p->light + td_row_at(&p->light_at, batch, y, x), *modulation = p->modulation + td_row_at(&p->modulation_at, batch, y, x);
    const bool there = load_color(p, batch, y, x, color);

    load(albedo, p->albedo, p->albedo_dtype, &p->albedo_at, batch, y, x, 3, 1);
    load(normal, p->normal, p->normal_dtype, &p->normal_at, batch, y, x, 3, 0);
    load(&depth, p->depth, p->depth_dtype, &p->depth_at, batch, y, x, 1, 0);
    const bool emits = !(albedo[0] > 0 || albedo[1] > 0 || albedo[2] > 0);
    for (int c = 0; c < 3; c++) {
        modulation[c] = emits ? 1 : between(albedo[c], TD_DEMODULATE_DARK, 1);
        light[c] = color[c] / modulation[c];
        channels[c] = log1pf(exposure * light[c]);
        channels[3 + c] = between(albedo[c], 0, 1);
        channels[6 + c] = between(normal[c], -1, 1);
    }
    light[3] = there;
    channels[9] = depth > 0 ? depth / (depth + far) : 0;
    channels[10] = there;
    channels[11] = emits;
    if (p->history) {
        const float *history = p->history + td_row_at(&p->history_at, batch, y, x);
        for (int c = 0; c < 4; c++) {
            const float value = isfinite(history[c]) && history[c] > 0 ? history[c] : 0;
            channels[12 + c] = c < 3 ? log1pf(exposure * value) : value / (1 + value);
        }
    }
}

void td_cpu_demodulate(const void *params, const td_block *at)
{
    const td_params_demodulate *p = params;
    const tile t = tile_of(p, at->x);
    const td_demodulate_scale *scale = &p->scales[t.batch];

    for (uint32_t r = 0; r < t.rows && td_block_goes_on(at); r += 2)
        for (uint32_t c = 0; c < t.columns; c += 2) {
            float channels[4][CHANNELS] = {{0}}, token[4 * CHANNELS];
            for (uint32_t i = 0; i < 4; i++)
                if (r + i / 2 < t.rows && c + i % 2 < t.columns)
                    compute(p, t.batch, t.top + r + i / 2, t.left + c + i % 2, scale->exposure, scale->far, channels[i]);
            for (uint32_t i = 0; i < 4; i++)
                memcpy(token + i * p->channels, channels[i], p->channels * sizeof *token);
            td_from_floats(p->tokens, TANDEM_DTYPE_F16, td_row_at(&p->tokens_at, t.batch, (t.top + r) / 2, (t.left + c) / 2), token,
                           4 * p->channels);
        }
}
