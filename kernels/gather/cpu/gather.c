/* Attention of pixels over their neighbours on the CPU. See params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A row of sixteen queries is computed at a time, a lane each. What they may meet lies in planes, one a channel, so that a tap of
 * all sixteen is one load: pixels of even and of odd columns apart where the step is 2, those of half the resolution twice.
 */
#include "kernels/gather/gather.h"

#include "kernels/cpu/cpu.h"

enum { LANES = TD_GATHER_WIDTH, HALF = TD_GATHER_CPU_HALF, STRIDE = 2 * HALF, PLANE = TD_GATHER_CPU_PLANE };
enum { MOST_TAPS = (2 * TD_GATHER_RADIUS + 1) * (2 * TD_GATHER_RADIUS + 1) + 9 };
#define ABSENT (-1e30f) /* added to a logit, it leaves nothing of it */

/* Keys, values and, 0 or ABSENT, what is there. */
typedef struct planes {
    float *k[TD_GATHER_DIM], *v[4], *there;
} planes;

typedef struct tile {
    planes fine, coarse;
} tile;

static planes make_planes(float **memory, uint32_t dim)
{
    planes of;

    for (uint32_t d = 0; d < dim; d++, *memory += PLANE)
        of.k[d] = *memory;
    for (int c = 0; c < 4; c++, *memory += PLANE)
        of.v[c] = *memory;
    of.there = *memory;
    *memory += PLANE;
    return of;
}

/* A pixel to its place; `factor` or NULL. */
TD_INLINE void put(const planes *to, uint32_t at, uint32_t dim, const uint16_t *k, const float *v, const float *factor)
{
    for (uint32_t d = 0; d < dim; d++)
        to->k[d][at] = td_from_f16(k[d]);
    for (int c = 0; c < 3; c++)
        to->v[c][at] = factor ? v[c] * factor[c] : v[c];
    to->v[3][at] = v[3] > 0 ? v[3] : 0;
    to->there[at] = 0;
}

TD_INLINE void put_none(const planes *to, uint32_t at, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d++)
        to->k[d][at] = 0;
    for (int c = 0; c < 4; c++)
        to->v[c][at] = 0;
    to->there[at] = ABSENT;
}

TD_INLINE void load_fine(const td_params_gather *p, const planes *to, int64_t batch, int64_t row, int64_t column)
{
    const uint32_t height = TD_GATHER_SPAN(TD_GATHER_HEIGHT, p->step, p->taps), width = TD_GATHER_SPAN(TD_GATHER_WIDTH, p->step, p->taps);

    for (uint32_t r = 0; r < height; r++)
        for (uint32_t c = 0; c < width; c++) {
            const int64_t y = row * p->step - p->before + r, x = column * p->step - p->before + c;
            const uint32_t at = r * STRIDE + (p->step == 2 ? c % 2 * HALF + c / 2 : c);
            if (y < 0 || x < 0 || y >= p->height || x >= p->width)
                put_none(to, at, p->dim);
            else
                put(to, at, p->dim, (const uint16_t *)p->k + td_row_at(&p->k_at, batch, y, x), p->v + td_row_at(&p->v_at, batch, y, x),
                    p->factor ? p->factor + td_row_at(&p->factor_at, batch, y, x) : NULL);
        }
}

/* Each of its pixels at two columns: those of the pixels that it covers. */
TD_INLINE void load_coarse(const td_params_gather *p, const planes *to, int64_t batch, int64_t row, int64_t column)
{
    const int64_t last_y = (p->height - 1) / 2, last_x = (p->width - 1) / 2;

    for (uint32_t r = 0; r < TD_GATHER_COARSE_SPAN(TD_GATHER_HEIGHT, p->coarse_radius); r++)
        for (uint32_t c = 0; c < 2 * TD_GATHER_COARSE_SPAN(TD_GATHER_WIDTH, p->coarse_radius); c++) {
            const int64_t y = row / 2 - p->coarse_radius + r, x = column / 2 - p->coarse_radius + c / 2;
            if (y < 0 || x < 0 || y > last_y || x > last_x)
                put_none(to, r * STRIDE + c, p->dim);
            else
                put(to, r * STRIDE + c, p->dim, (const uint16_t *)p->k_coarse + td_row_at(&p->k_coarse_at, batch, y, x),
                    p->v_coarse + td_row_at(&p->v_coarse_at, batch, y, x), NULL);
        }
}

/* Where the keys of tap (y, x) of a row of queries begin. */
TD_INLINE uint32_t fine_at(const td_params_gather *p, uint32_t row, uint32_t y, uint32_t x)
{
    return (row * p->step + y) * STRIDE + (p->step == 2 ? x % 2 * HALF + x / 2 : x);
}

TD_INLINE uint32_t coarse_at(uint32_t row, uint32_t y, uint32_t x)
{
    return (row / 2 + y) * STRIDE + 2 * x;
}

TD_INLINE void score(float *logits, const planes *of, uint32_t at, uint32_t dim, float bias, float q[][LANES])
{
    for (int i = 0; i < LANES; i++)
        logits[i] = bias + of->there[at + i];
    for (uint32_t d = 0; d < dim; d++)
        for (int i = 0; i < LANES; i++)
            logits[i] += q[d][i] * of->k[d][at + i];
}

/* e^x for x of at most 0, within 2e-7; below -87 nothing. */
TD_INLINE float exp_of(float x)
{
    const float t = td_float(td_select(x > -126.0f * TD_LN_2, td_bits(x), td_bits(-126.0f * TD_LN_2))) * TD_LOG2_E;
    const float n = (t + 0x1.8p23f) - 0x1.8p23f, f = (t - n) * TD_LN_2;
    const float e = 1 + f * (1 + f * (0.5f + f * (0.16666667f + f * (0.041666668f + f * (0.008333334f + f * 0.0013888889f)))));
    return td_float(td_bits(e) + ((uint32_t)(int32_t)n << 23));
}

TD_INLINE void add(float sums[4][LANES], const planes *of, uint32_t at, const float *logits, const float *most)
{
    for (int i = 0; i < LANES; i++) {
        const float weight = exp_of(logits[i] - most[i]) * of->v[3][at + i];
        sums[0][i] += weight * of->v[0][at + i];
        sums[1][i] += weight * of->v[1][at + i];
        sums[2][i] += weight * of->v[2][at + i];
        sums[3][i] += weight;
    }
}

TD_INLINE void compute_row(const td_params_gather *p, const tile *t, int64_t batch, int64_t first_row, uint32_t row, int64_t column, uint32_t count)
{
    float q[TD_GATHER_DIM][LANES] = {0}, logits[MOST_TAPS][LANES], most[LANES], sums[4][LANES] = {0};
    const uint32_t fine = p->taps * p->taps, all = fine + p->coarse_taps * p->coarse_taps;

    for (uint32_t i = 0; i < count; i++)
        for (uint32_t d = 0; d < p->dim; d++)
            q[d][i] = td_from_f16(((const uint16_t *)p->q)[td_row_at(&p->q_at, batch, first_row + row, column + i) + d]);
    for (int i = 0; i < LANES; i++)
        most[i] = 2 * ABSENT;
    for (uint32_t tap = 0; tap < all; tap++) {
        const bool is_fine = tap < fine;
        const uint32_t at = is_fine ? fine_at(p, row, tap / p->taps, tap % p->taps)
                                    : coarse_at(row, (tap - fine) / p->coarse_taps, (tap - fine) % p->coarse_taps);
        score(logits[tap], is_fine ? &t->fine : &t->coarse, at, p->dim, p->bias ? p->bias[tap] : 0, q);
        for (int i = 0; i < LANES; i++)
            most[i] = logits[tap][i] > most[i] ? logits[tap][i] : most[i];
    }
    for (uint32_t tap = 0; tap < fine; tap++)
        add(sums, &t->fine, fine_at(p, row, tap / p->taps, tap % p->taps), logits[tap], most);
    for (uint32_t tap = fine; tap < all; tap++)
        add(sums, &t->coarse, coarse_at(row, (tap - fine) / p->coarse_taps, (tap - fine) % p->coarse_taps), logits[tap], most);
    for (uint32_t i = 0; i < count; i++) {
        float *o = p->o + td_row_at(&p->o_at, batch, first_row + row, column + i);
        for (uint32_t c = 0; c < 3; c++)
            o[c] = sums[3][i] > 0 ? sums[c][i] / sums[3][i] : 0;
        if (p->channels == 4)
            o[3] = sums[3][i] > 0;
    }
}

TD_INLINE void gather_body(const void *params, const td_block *at)
{
    const td_params_gather *p = params;
    const int64_t batch = at->x / p->columns / p->rows;
    const int64_t row = (int64_t)(at->x / p->columns % p->rows) * TD_GATHER_HEIGHT, column = (int64_t)(at->x % p->columns) * TD_GATHER_WIDTH;
    const int64_t rows = p->out_height - row < TD_GATHER_HEIGHT ? p->out_height - row : TD_GATHER_HEIGHT;
    const int64_t count = p->out_width - column < TD_GATHER_WIDTH ? p->out_width - column : TD_GATHER_WIDTH;
    float *memory = at->local;
    tile t;

    t.fine = make_planes(&memory, p->dim);
    load_fine(p, &t.fine, batch, row, column);
    if (p->coarse_taps) {
        t.coarse = make_planes(&memory, p->dim);
        load_coarse(p, &t.coarse, batch, row, column);
    }
    for (uint32_t r = 0; r < rows && td_block_goes_on(at); r++)
        compute_row(p, &t, batch, row, r, column, (uint32_t)count);
}

static void gather_c(const void *params, const td_block *at)
{
    gather_body(params, at);
}

/* The kernels' files round each product by itself, for twins of the GPU; this is none. */
#define FUSED __attribute__((optimize("fp-contract=fast")))

#if TD_X86
TD_TARGET_AVX2 FUSED static void gather_avx2(const void *params, const td_block *at)
{
    gather_body(params, at);
}

TD_TARGET_AVX512 FUSED static void gather_avx512(const void *params, const td_block *at)
{
    gather_body(params, at);
}

void td_cpu_gather(const void *params, const td_block *at)
{
    static const td_cpu_fn levels[TD_ISA_COUNT] = {gather_c, gather_avx2, gather_avx512};
    levels[td_cpu_isa_level()](params, at);
}
#else
void td_cpu_gather(const void *params, const td_block *at)
{
    gather_c(params, at);
}
#endif
