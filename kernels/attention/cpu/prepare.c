/* The prologue of Hopper's `prepare` kernels, by the steps of prologue.c: their twin, to the letter of params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "kernels/attention/cpu.h"

/* Tile `row` / 128 of a head as a tensor of its own; its kernels' arrays begin with it. */
static td_tensor tile_of(const void *x, const int64_t *strides, uint32_t dtype, uint32_t heads, uint32_t bh, uint32_t row,
                         uint32_t len, uint32_t dim)
{
    const int64_t first = bh / heads * strides[0] + bh % heads * strides[1] + row * strides[2];
    return (td_tensor){.data = (uint16_t *)(uintptr_t)x + first,
                       .stride_row = strides[2],
                       .dtype = dtype,
                       .heads = 1,
                       .rows = len - row < TD_TILE_ROWS ? len - row : TD_TILE_ROWS,
                       .dim = dim};
}

static void prepare_tiles_of_q(const td_params_prepare *p, uint32_t first, uint32_t count, const td_block *at)
{
    const uint32_t chunks = (p->q_len + TD_TILE_ROWS - 1) / TD_TILE_ROWS;
    for (uint32_t tile = first; tile < first + count && tile < p->q_tiles; tile++) {
        const size_t row = (size_t)tile * TD_TILE_ROWS;
        const td_params_quant_qk one = {
            .x = tile_of(p->q, p->q_strides, p->q_dtype, p->heads, tile / chunks, tile % chunks * TD_TILE_ROWS, p->q_len,
                         p->dim),
            .scale = p->q_scale + row,
            .codes = (uint8_t *)p->q_codes + row * p->d_pad,
            .chunks = 1,
            .d_pad = p->d_pad,
            .rows_pad = TD_TILE_ROWS,
            .qmax = 127,
            .clip = 1,
            .granularity = TANDEM_GRANULARITY_THREAD_HOPPER};
        td_cpu_quant_qk(&one, &(td_block){.local = at->local});
    }
}

/* Mean of a head's V; to memory, if any, sums of tiles, and the largest and the smallest x of blocks. */
static void find_v_mean(const td_params_prepare_smooth_v *smooth, uint32_t bhk, float *mean, const td_block *at)
{
    const td_params_prepare *p = &smooth->of;
    const uint32_t chunks = p->kv_pad / TD_TILE_ROWS, d_pad = p->d_pad, rows = p->tiles * TD_TILE_ROWS;
    const uint32_t blocks = (p->kv_pad + rows - 1) / rows;
    float x[TD_MAX_DIM];
    memset(mean, 0, d_pad * sizeof *mean);
    for (uint32_t row = 0; row < p->kv_len; row++) {
        td_params_mean_partial part = {.x = tile_of(p->v, p->v_strides, p->v_dtype, p->kv_heads, bhk, row, p->kv_len, p->dim),
                                       .partial = x,
                                       .chunks = 1,
                                       .d_pad = d_pad};
        if (row % TD_TILE_ROWS == 0) {
            td_cpu_mean_partial(&part, &(td_block){.local = at->local});
            for (uint32_t c = 0; c < d_pad; c++)
                mean[c] += x[c];
            if (smooth->v_partial)
                memcpy(smooth->v_partial + ((size_t)bhk * chunks + row / TD_TILE_ROWS) * d_pad, x, d_pad * sizeof *x);
        }
        if (!smooth->v_low)
            continue;
        float *top = p->amax + ((size_t)bhk * (blocks + 1) + row / rows) * d_pad;
        float *low = smooth->v_low + ((size_t)bhk * blocks + row / rows) * d_pad;
        part.x.rows = 1; /* the sum of which is what it has */
        td_cpu_mean_partial(&part, &(td_block){.local = at->local});
        for (uint32_t c = 0; c < d_pad; c++) {
            top[c] = row % rows == 0 || x[c] > top[c] ? x[c] : top[c];
            low[c] = row % rows == 0 || x[c] < low[c] ? x[c] : low[c];
        }
    }
    for (uint32_t c = 0; c < d_pad; c++)
        mean[c] /= (float)p->kv_len;
}

/* All of a head's K and V. Arrays of statistics may be NULL; smooth_v: NULL, or V is smoothed. */
static void prepare_head(const td_params_prepare *p, const td_params_prepare_smooth_v *smooth_v, uint32_t bhk,
                         const td_block *at)
{
    const uint32_t chunks = p->kv_pad / TD_TILE_ROWS, d_pad = p->d_pad, each = p->tiles;
    const uint32_t blocks = (chunks + each - 1) / each;
    float sum[TD_MAX_DIM] = {0}, most[TD_MAX_DIM] = {0}, here[TD_MAX_DIM], flag[TD_TILE_ROWS];
    float *v_mean = smooth_v ? smooth_v->v_mean + (size_t)bhk * d_pad : NULL;
    if (v_mean)
        find_v_mean(smooth_v, bhk, v_mean, at);
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        const uint32_t row = chunk * TD_TILE_ROWS;
        const td_params_mean_partial mean = {
            .x = tile_of(p->k, p->k_strides, p->k_dtype, p->kv_heads, bhk, row, p->kv_len, p->dim),
            .partial = here,
            .chunks = 1,
            .d_pad = d_pad};
        const td_params_amax_partial amax = {
            .x = tile_of(p->v, p->v_strides, p->v_dtype, p->kv_heads, bhk, row, p->kv_len, p->dim),
            .mean = v_mean,
            .amax = here,
            .flag = flag,
            .chunks = 1,
            .d_pad = d_pad,
            .rows_pad = TD_TILE_ROWS};
        if (p->smooth)
            td_cpu_mean_partial(&mean, &(td_block){.local = at->local});
        for (uint32_t c = 0; p->smooth && c < d_pad; c++)
            sum[c] += here[c];
        if (p->smooth && p->partial)
            memcpy(p->partial + ((size_t)bhk * chunks + chunk) * d_pad, here, d_pad * sizeof *here);
        td_cpu_amax_partial(&amax, &(td_block){.local = at->local});
        for (uint32_t c = 0; c < d_pad; c++)
            most[c] = here[c] > most[c] ? here[c] : most[c];
        if (p->amax && !v_mean) {
            float *to = p->amax + ((size_t)bhk * (blocks + 1) + chunk / each) * d_pad;
            for (uint32_t c = 0; c < d_pad; c++)
                to[c] = chunk % each && to[c] > here[c] ? to[c] : here[c];
        }
    }
    if (p->amax)
        memcpy(p->amax + ((size_t)bhk * (blocks + 1) + blocks) * d_pad, most, d_pad * sizeof *most);
    if (p->counters) {
        p->counters[2 * bhk] = blocks;
        p->counters[2 * bhk + 1] = 1;
    }
    for (uint32_t c = 0; c < d_pad; c++)
        sum[c] /= (float)p->kv_len;
    if (p->smooth)
        memcpy(p->k_mean + (size_t)bhk * d_pad, sum, d_pad * sizeof *sum);
    for (uint32_t row = 0; row < p->kv_len; row += TD_TILE_ROWS) {
        const size_t first = (size_t)bhk * p->kv_pad + row;
        const td_tensor v = tile_of(p->v, p->v_strides, p->v_dtype, p->kv_heads, bhk, row, p->kv_len, p->dim);
        const td_params_amax_partial amax = {
            .x = v, .amax = here, .flag = flag, .chunks = 1, .d_pad = d_pad, .rows_pad = TD_TILE_ROWS};
        const td_params_quant_qk one = {
            .x = tile_of(p->k, p->k_strides, p->k_dtype, p->kv_heads, bhk, row, p->kv_len, p->dim),
            .mean = p->smooth ? sum : NULL,
            .flag = flag,
            .scale = p->k_scale + first,
            .codes = (uint8_t *)p->k_codes + first * d_pad,
            .chunks = 1,
            .d_pad = d_pad,
            .rows_pad = TD_TILE_ROWS,
            .qmax = 127,
            .clip = 1,
            .granularity = TANDEM_GRANULARITY_THREAD_HOPPER,
            .is_k = 1};
        const td_params_quant_v values = {.x = v,
                                          .mean = v_mean,
                                          .amax = most,
                                          .scale = p->v_scale + (size_t)bhk * d_pad,
                                          .codes = (uint8_t *)p->v_codes + (size_t)bhk * d_pad * p->kv_pad + row,
                                          .chunks = 1,
                                          .d_pad = d_pad,
                                          .kv_pad = p->kv_pad};
        td_cpu_amax_partial(&amax, &(td_block){.local = at->local}); /* once more for its flags */
        td_cpu_quant_qk(&one, &(td_block){.local = at->local});
        td_cpu_quant_v(&values, &(td_block){.local = at->local});
    }
}

static void prepare(const td_params_prepare *p, const td_params_prepare_smooth_v *smooth_v, const td_block *at)
{
    const uint32_t cluster = (p->kv_pad / TD_TILE_ROWS + p->tiles - 1) / p->tiles, first = p->kv_planes * cluster;
    const uint32_t each = 2 * p->tiles * TD_PREPARE_HEAD_WARPS(p->d_pad) / 8;
    if (at->x >= first)
        prepare_tiles_of_q(p, (at->x - first) * each, each, at);
    else if (at->x % cluster == 0)
        prepare_head(p, smooth_v, at->x / cluster, at);
}

void td_cpu_prepare(const void *params, const td_block *at)
{
    prepare(params, NULL, at);
}

void td_cpu_prepare_smooth_v(const void *params, const td_block *at)
{
    prepare(params, params, at);
}

void td_cpu_prepare_q(const void *params, const td_block *at)
{
    const td_params_prepare *p = params;
    const uint32_t each = TD_PREPARE_THREADS / 256; /* 8 warps a tile */
    prepare_tiles_of_q(p, at->x * each, each, at);
}

static void prepare_kv(const td_params_prepare *p, const td_params_prepare_smooth_v *smooth_v, const td_block *at)
{
    const uint32_t blocks = (p->kv_pad / TD_TILE_ROWS + p->tiles - 1) / p->tiles, step = at->x / (2 * blocks);
    if (step >= p->lag && at->x % (2 * blocks) == blocks)
        prepare_head(p, smooth_v, step - p->lag, at);
}

void td_cpu_prepare_kv(const void *params, const td_block *at)
{
    prepare_kv(params, NULL, at);
}

void td_cpu_prepare_kv_smooth_v(const void *params, const td_block *at)
{
    prepare_kv(params, params, at);
}
