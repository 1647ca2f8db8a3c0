/* The frame before, as it is seen now, on the CPU. See params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cpu/cpu.h"
#include "kernels/reproject/reproject.h"

/* What is not finite is 0. */
static void load(float *to, const void *from, uint32_t dtype, const td_strides *at, int64_t batch, int64_t y, int64_t x, uint32_t channels)
{
    td_to_floats(to, from, dtype, td_row_at(at, batch, y, x), channels);
    for (uint32_t c = 0; c < channels; c++)
        to[c] = isfinite(to[c]) ? to[c] : 0;
}

/* A pixel's surface. */
typedef struct surface {
    float normal[3], depth;
} surface;

static surface load_surface(const td_params_reproject *p, bool before, int64_t batch, int64_t y, int64_t x)
{
    surface s = {0};

    if (p->normal && before)
        load(s.normal, p->normal_before, p->normal_before_dtype, &p->normal_before_at, batch, y, x, 3);
    else if (p->normal)
        load(s.normal, p->normal, p->normal_dtype, &p->normal_at, batch, y, x, 3);
    if (p->depth && before)
        load(&s.depth, p->depth_before, p->depth_before_dtype, &p->depth_before_at, batch, y, x, 1);
    else if (p->depth)
        load(&s.depth, p->depth, p->depth_dtype, &p->depth_at, batch, y, x, 1);
    s.depth = s.depth > 0 ? s.depth : 0;
    return s;
}

static float dot(const float a[3], const float b[3])
{
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

static bool is_same(const surface *now, const surface *then)
{
    return dot(now->normal, then->normal) >= TD_REPROJECT_NORMAL * sqrtf(dot(now->normal, now->normal) * dot(then->normal, then->normal)) &&
           fabsf(now->depth - then->depth) <= TD_REPROJECT_DEPTH * now->depth;
}

static void compute(const td_params_reproject *p, int64_t batch, int64_t y, int64_t x, float out[4])
{
    float motion[2], valid = 1, sums[4] = {0};

    memset(out, 0, 4 * sizeof *out);
    td_to_floats(motion, p->motion, p->motion_dtype, td_row_at(&p->motion_at, batch, y, x), 2);
    if (p->valid)
        td_to_floats(&valid, p->valid, p->valid_dtype, td_row_at(&p->valid_at, batch, y, x), 1);
    if (!(valid > 0 && fabsf(motion[0]) < TD_REPROJECT_FARTHEST && fabsf(motion[1]) < TD_REPROJECT_FARTHEST))
        return;
    const surface now = load_surface(p, false, batch, y, x);
    const float top = floorf((float)y + motion[1]), left = floorf((float)x + motion[0]);
    const float down = (float)y + motion[1] - top, right = (float)x + motion[0] - left;
    for (int tap = 0; tap < 4; tap++) {
        const int64_t row = (int64_t)top + tap / 2, column = (int64_t)left + tap % 2;
        const float share = (tap / 2 ? down : 1 - down) * (tap % 2 ? right : 1 - right);
        if (row < 0 || column < 0 || row >= p->height || column >= p->width)
            continue;
        const surface then = load_surface(p, true, batch, row, column);
        const float *history = p->history + td_row_at(&p->history_at, batch, row, column);
        if (!(history[3] > 0) || !isfinite(history[0] + history[1] + history[2] + history[3]) || !is_same(&now, &then))
            continue;
        for (int c = 0; c < 3; c++)
            sums[c] += history[c] * (share * history[3]);
        sums[3] += share * history[3];
    }
    if (!(sums[3] > 0))
        return;
    for (int c = 0; c < 3; c++)
        out[c] = sums[c] / sums[3];
    out[3] = sums[3] < TD_REPROJECT_MOST ? sums[3] : TD_REPROJECT_MOST;
}

void td_cpu_reproject(const void *params, const td_block *at)
{
    const td_params_reproject *p = params;
    const int64_t batch = at->x / p->columns / p->rows;
    const int64_t top = (int64_t)(at->x / p->columns % p->rows) * TD_REPROJECT_HEIGHT, left = (int64_t)(at->x % p->columns) * TD_REPROJECT_WIDTH;

    for (int64_t y = top; y < top + TD_REPROJECT_HEIGHT && y < p->height && td_block_goes_on(at); y++)
        for (int64_t x = left; x < left + TD_REPROJECT_WIDTH && x < p->width; x++) {
            float out[4];
            compute(p, batch, y, x, out);
            memcpy(p->o + td_row_at(&p->o_at, batch, y, x), out, sizeof out);
        }
}
