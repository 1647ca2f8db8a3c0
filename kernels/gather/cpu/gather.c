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
enum { SPAN = 2 * LANES + 2 * TD_GATHER_RADIUS }; /* pixels of a row that sixteen queries may meet */
enum { MOST_TAPS = (2 * TD_GATHER_RADIUS + 1) * (2 * TD_GATHER_RADIUS + 1) + 9 + 1 };
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t whole __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
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

/* A row of pixels as they lie in memory, one after the other. */
typedef struct row_of_pixels {
    float k[SPAN][TD_GATHER_DIM], v[SPAN][4];
    uint32_t first, end; /* those that are in the image; others are zeros */
} row_of_pixels;

TD_INLINE void read_row(row_of_pixels *row, const void *k, const td_strides *k_at, const float *v, const td_strides *v_at, int64_t batch, int64_t y,
                        int64_t left, uint32_t count, int64_t height, int64_t width, const uint32_t dim)
{
    const bool none = y < 0 || y >= height;

    row->first = none ? count : left < 0 ? (uint32_t)-left : 0;
    row->end = none ? count : width - left < count ? (uint32_t)(width - left) : count;
    memset(row->k, 0, count * sizeof *row->k);
    memset(row->v, 0, count * sizeof *row->v);
    for (uint32_t c = row->first; c < row->end; c++) {
        const uint16_t *halves = (const uint16_t *)k + td_row_at(k_at, batch, y, left + c);
        const float *values = v + td_row_at(v_at, batch, y, left + c);
        for (uint32_t d = 0; d < dim; d++)
            row->k[c][d] = td_from_f16(halves[d]);
        memcpy(row->v[c], values, 3 * sizeof *values);
        row->v[c][3] = values[3] > 0 ? values[3] : 0;
    }
}

/* To planes, side by side: every `each`th pixel from `first` on. */
TD_INLINE void spread_row(const planes *to, uint32_t place, const row_of_pixels *row, uint32_t first, uint32_t each, uint32_t count, const uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d++)
        for (uint32_t i = 0; i < count; i++)
            to->k[d][place + i] = row->k[first + i * each][d];
    for (uint32_t c = 0; c < 4; c++)
        for (uint32_t i = 0; i < count; i++)
            to->v[c][place + i] = row->v[first + i * each][c];
    for (uint32_t i = 0; i < count; i++)
        to->there[place + i] = first + i * each >= row->first && first + i * each < row->end ? 0 : ABSENT;
}

TD_INLINE void load_fine(const td_params_gather *p, const planes *to, int64_t batch, int64_t row, int64_t column, const uint32_t dim)
{
    const uint32_t height = TD_GATHER_SPAN(TD_GATHER_HEIGHT, p->step, p->taps), width = TD_GATHER_SPAN(TD_GATHER_WIDTH, p->step, p->taps);
    const int64_t left = column * p->step - p->before;
    row_of_pixels pixels;

    for (uint32_t r = 0; r < height; r++) {
        const int64_t y = row * p->step - p->before + r;
        read_row(&pixels, p->k, &p->k_at, p->v, &p->v_at, batch, y, left, width, p->height, p->width, dim);
        for (uint32_t c = pixels.first; c < pixels.end && p->factor; c++)
            for (int i = 0; i < 3; i++)
                pixels.v[c][i] *= p->factor[td_row_at(&p->factor_at, batch, y, left + c) + i];
        if (p->step == 2)
            for (uint32_t odd = 0; odd < 2; odd++)
                spread_row(to, r * STRIDE + odd * HALF, &pixels, odd, 2, (width - odd + 1) / 2, dim);
        else
            spread_row(to, r * STRIDE, &pixels, 0, 1, width, dim);
    }
}

/* Each of its pixels at two columns: those of the pixels that it covers. */
TD_INLINE void load_coarse(const td_params_gather *p, const planes *to, int64_t batch, int64_t row, int64_t column, const uint32_t dim)
{
    const uint32_t height = TD_GATHER_COARSE_SPAN(TD_GATHER_HEIGHT, p->coarse_radius), width = TD_GATHER_COARSE_SPAN(TD_GATHER_WIDTH, p->coarse_radius);
    row_of_pixels pixels, twice;

    for (uint32_t r = 0; r < height; r++) {
        read_row(&pixels, p->k_coarse, &p->k_coarse_at, p->v_coarse, &p->v_coarse_at, batch, row / 2 - p->coarse_radius + r,
                 column / 2 - p->coarse_radius, width, (p->height + 1) / 2, (p->width + 1) / 2, dim);
        twice.first = 2 * pixels.first, twice.end = 2 * pixels.end;
        for (uint32_t c = 0; c < 2 * width; c++) {
            memcpy(twice.k[c], pixels.k[c / 2], dim * sizeof(float));
            memcpy(twice.v[c], pixels.v[c / 2], sizeof *twice.v);
        }
        spread_row(to, r * STRIDE, &twice, 0, 1, 2 * width, dim);
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

/* Vectors go by address: none is passed as such where a caller may lack the registers. */
#define LANES_AT(at) (*(const vec *)(at))

TD_INLINE void take_larger(vec *a, const vec *b)
{
    const whole which = *a > *b;
    *a = (vec)(((whole)*a & which) | ((whole)*b & ~which));
}

TD_INLINE void score(vec *sum, const planes *of, uint32_t at, const uint32_t dim, float bias, const vec *q)
{
    *sum = LANES_AT(of->there + at) + bias;
    for (uint32_t d = 0; d < dim; d++)
        *sum += q[d] * LANES_AT(of->k[d] + at);
}

/* x becomes e^x, for x of at most 0, within 2e-7; below -87 next to nothing. */
TD_INLINE void make_exp(vec *x)
{
    const vec least = (vec){0} - 126.0f * TD_LN_2;

    take_larger(x, &least);
    const vec t = *x * TD_LOG2_E, n = (t + 0x1.8p23f) - 0x1.8p23f, f = (t - n) * TD_LN_2;
    const vec e = 1 + f * (1 + f * (0.5f + f * (0.16666667f + f * (0.041666668f + f * (0.008333334f + f * 0.0013888889f)))));
    *x = (vec)((whole)e + (__builtin_convertvector(n, whole) << 23));
}

TD_INLINE void add(vec sums[4], const planes *of, uint32_t at, const vec *logits, const vec *most)
{
    vec weight = *logits - *most;

    make_exp(&weight);
    weight *= LANES_AT(of->v[3] + at);
    for (int c = 0; c < 3; c++)
        sums[c] += weight * LANES_AT(of->v[c] + at);
    sums[3] += weight;
}

/* Of a row of queries their own pixels' of frames before: keys, values and what is there, as planes of a row each. */
TD_INLINE planes planes_of_rows(float rows[TD_GATHER_DIM + 5][LANES])
{
    planes of = {.there = rows[TD_GATHER_DIM + 4]};

    for (uint32_t d = 0; d < TD_GATHER_DIM; d++)
        of.k[d] = rows[d];
    for (int c = 0; c < 4; c++)
        of.v[c] = rows[TD_GATHER_DIM + c];
    return of;
}

TD_INLINE void load_before(const td_params_gather *p, float rows[TD_GATHER_DIM + 5][LANES], int64_t batch, int64_t row, int64_t column, uint32_t count,
                           const uint32_t dim)
{
    memset(rows, 0, (TD_GATHER_DIM + 5) * sizeof *rows);
    for (uint32_t i = 0; i < LANES; i++)
        rows[TD_GATHER_DIM + 4][i] = ABSENT;
    for (uint32_t i = 0; i < count; i++) {
        const uint16_t *halves = (const uint16_t *)p->k_before + td_row_at(&p->k_before_at, batch, row, column + i);
        const float *values = p->v_before + td_row_at(&p->v_before_at, batch, row, column + i);
        for (uint32_t d = 0; d < dim; d++)
            rows[d][i] = td_from_f16(halves[d]);
        for (int c = 0; c < 3; c++)
            rows[TD_GATHER_DIM + c][i] = values[c];
        rows[TD_GATHER_DIM + 3][i] = values[3] > 0 ? values[3] : 0;
        rows[TD_GATHER_DIM + 4][i] = values[3] > 0 ? 0 : ABSENT;
    }
}

TD_INLINE void compute_row(const td_params_gather *p, const tile *t, int64_t batch, int64_t first_row, uint32_t row, int64_t column, uint32_t count,
                           const uint32_t dim)
{
    float together[LANES][TD_GATHER_DIM] = {0}, out[4][LANES];
    vec q[TD_GATHER_DIM], logits[MOST_TAPS], sums[4] = {{0}}, most = sums[0] + 2 * ABSENT;
    float before[TD_GATHER_DIM + 5][LANES];
    const planes own = planes_of_rows(before);
    const uint32_t fine = p->taps * p->taps, all = fine + p->coarse_taps * p->coarse_taps;

    for (uint32_t i = 0; i < count; i++) {
        const uint16_t *halves = (const uint16_t *)p->q + td_row_at(&p->q_at, batch, first_row + row, column + i);
        for (uint32_t d = 0; d < dim; d++)
            together[i][d] = td_from_f16(halves[d]);
    }
    for (uint32_t d = 0; d < dim; d++)
        for (int i = 0; i < LANES; i++)
            q[d][i] = together[i][d];
    for (uint32_t tap = 0; tap < all; tap++) {
        const bool is_fine = tap < fine;
        const uint32_t at = is_fine ? fine_at(p, row, tap / p->taps, tap % p->taps)
                                    : coarse_at(row, (tap - fine) / p->coarse_taps, (tap - fine) % p->coarse_taps);
        score(&logits[tap], is_fine ? &t->fine : &t->coarse, at, dim, p->bias ? p->bias[tap] : 0, q);
        take_larger(&most, &logits[tap]);
    }
    if (p->k_before) {
        load_before(p, before, batch, first_row + row, column, count, dim);
        score(&logits[all], &own, 0, dim, p->bias ? p->bias[all] : 0, q);
        take_larger(&most, &logits[all]);
        add(sums, &own, 0, &logits[all], &most); /* the largest is known now */
    }
    for (uint32_t tap = 0; tap < fine; tap++)
        add(sums, &t->fine, fine_at(p, row, tap / p->taps, tap % p->taps), &logits[tap], &most);
    for (uint32_t tap = fine; tap < all; tap++)
        add(sums, &t->coarse, coarse_at(row, (tap - fine) / p->coarse_taps, (tap - fine) % p->coarse_taps), &logits[tap], &most);
    memcpy(out, sums, sizeof out);
    for (uint32_t i = 0; i < count; i++) {
        float *o = p->o + td_row_at(&p->o_at, batch, first_row + row, column + i);
        for (uint32_t c = 0; c < 3; c++)
            o[c] = out[3][i] > 0 ? out[c][i] / out[3][i] : 0;
        if (p->channels == 4)
            o[3] = (out[3][i] > 0) + (p->k_before ? own.v[3][i] : 0);
    }
}

TD_INLINE void gather_of(const void *params, const td_block *at, const uint32_t dim)
{
    const td_params_gather *p = params;
    const int64_t batch = at->x / p->columns / p->rows;
    const int64_t row = (int64_t)(at->x / p->columns % p->rows) * TD_GATHER_HEIGHT, column = (int64_t)(at->x % p->columns) * TD_GATHER_WIDTH;
    const int64_t rows = p->out_height - row < TD_GATHER_HEIGHT ? p->out_height - row : TD_GATHER_HEIGHT;
    const int64_t count = p->out_width - column < TD_GATHER_WIDTH ? p->out_width - column : TD_GATHER_WIDTH;
    float *memory = at->local;
    tile t;

    t.fine = make_planes(&memory, dim);
    load_fine(p, &t.fine, batch, row, column, dim);
    if (p->coarse_taps) {
        t.coarse = make_planes(&memory, dim);
        load_coarse(p, &t.coarse, batch, row, column, dim);
    }
    for (uint32_t r = 0; r < rows && td_block_goes_on(at); r++)
        compute_row(p, &t, batch, row, r, column, (uint32_t)count, dim);
}

TD_INLINE void gather_body(const void *params, const td_block *at)
{
    if (((const td_params_gather *)params)->dim == 8)
        gather_of(params, at, 8);
    else
        gather_of(params, at, TD_GATHER_DIM);
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
