/* `attn_masked` on the CPU: lengths of keys, a bias, positions of rows. See params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Tensors are packed as they are, in float; the rest is fast.c's. What is not finite in V counts as 0, and makes its key's scale
 * NaN, so that it reaches the rows that attend to it and no others.
 */
#include "kernels/attention/cpu/fast.h"

typedef struct plane {
    const td_params_attention_masked *p;
    int64_t batch, head, kv_head;
    int64_t keys; /* that count */
    uint32_t first, count; /* rows */
} plane;

static int64_t element_of(const td_tensor *x, int64_t batch, int64_t head, int64_t row)
{
    return batch * x->stride_batch + head * x->stride_head + row * x->stride_row;
}

/* A row; channels from dim on are 0. */
static void load_row(float *to, const td_tensor *x, int64_t at, uint32_t d_pad)
{
    td_to_floats(to, x->data, x->dtype, at, x->dim);
    memset(to + x->dim, 0, (d_pad - x->dim) * sizeof *to);
}

static void pack_q(const plane *of, td_fast_job *at)
{
    for (uint32_t r = 0; r < at->rows; r++) {
        float *row = at->local->q + (size_t)r * at->d_pad;
        if (r < of->count)
            load_row(row, &of->p->q, element_of(&of->p->q, of->batch, of->head, of->first + r), at->d_pad);
        else
            memset(row, 0, at->d_pad * sizeof *row);
        at->local->q_scale[r] = of->p->scale * TD_LOG2_E;
        for (uint32_t c = 0; c < at->d_pad; c++)
            at->local->q_scale[r] += 0 * row[c]; /* NaN where one is not finite */
    }
}

/* A tile; keys that do not count are not read. */
static void pack_kv(const plane *of, td_fast_job *at)
{
    td_local_fast *local = at->local;
    for (uint32_t j = 0; j < TD_TILE_KEYS; j++) {
        const int64_t key = (int64_t)at->key + j;
        const bool there = key < of->keys;
        float row[TD_MAX_DIM] = {0}, *v = local->v + (size_t)j * at->d_pad, scale = 1;
        if (there)
            load_row(row, &of->p->k, element_of(&of->p->k, of->batch, of->kv_head, key), at->d_pad);
        for (uint32_t c = 0; c < at->d_pad; c++) {
            local->k[(size_t)c * TD_TILE_KEYS + j] = row[c];
            scale += 0 * row[c];
            row[c] = 0;
        }
        if (there)
            load_row(row, &of->p->v, element_of(&of->p->v, of->batch, of->kv_head, key), at->d_pad);
        for (uint32_t c = 0; c < at->d_pad; c++) {
            scale += 0 * row[c];
            v[c] = isfinite(row[c]) ? row[c] : 0;
        }
        local->k_scale[j] = scale;
    }
}

/* Four rows', in base 2. Rows and keys that do not exist have none. */
static void load_bias(const plane *of, uint32_t key, uint32_t row, float bias[4][TD_TILE_KEYS])
{
    const td_params_attention_masked *p = of->p;
    const uint32_t count = of->keys - key < TD_TILE_KEYS ? (uint32_t)(of->keys - key) : TD_TILE_KEYS;
    memset(bias, 0, 4 * sizeof *bias);
    for (uint32_t i = 0; i < 4 && row + i < of->count; i++) {
        td_to_floats(bias[i], p->bias, p->bias_dtype, td_row_at(&p->bias_at, of->batch, of->head, of->first + row + i) + key, count);
        for (uint32_t j = 0; j < count; j++)
            bias[i][j] *= TD_LOG2_E;
    }
}

/* Keys, from the first one on, that a row of the block attends to. */
static int64_t reach_of(const plane *of, uint32_t row)
{
    const td_params_attention_masked *p = of->p;
    int64_t reach = of->keys;
    if (p->position && row < of->count)
        reach = (int64_t)p->position[td_row_at(&p->position_at, of->batch, 0, of->first + row)] + 1;
    else if (p->causal)
        reach = (int64_t)of->first + row + p->keys - p->q.rows + 1;
    return reach < of->keys ? reach : of->keys;
}

/* And of a tile's. */
static int32_t limit_of(const plane *of, uint32_t key, uint32_t row)
{
    const int64_t limit = reach_of(of, row) - key;
    return limit < 0 ? 0 : limit > (int64_t)TD_TILE_KEYS ? (int32_t)TD_TILE_KEYS : (int32_t)limit;
}

static void store_rows(const plane *of, const td_fast_ops *ops, const td_fast_job *at)
{
    const td_params_attention_masked *p = of->p;
    for (uint32_t r = 0; r < of->count; r++) {
        float l = 0, *o = at->local->o + (size_t)r * at->d_pad, m = at->local->m[r];
        for (uint32_t lane = 0; lane < 16; lane++)
            l += at->local->l[r][lane];
        for (uint32_t c = 0; c < p->o.dim; c++)
            o[c] = l == 0 ? 0 : o[c] / l;
        ops->store(p->o.data, p->o.dtype, element_of(&p->o, of->batch, of->head, of->first + r), o, p->o.dim);
        if (p->lse)
            p->lse[td_row_at(&p->lse_at, of->batch, of->head, of->first + r)] =
                l == 0 ? -INFINITY : (((m == -INFINITY ? 0 : m) + log2f(l)) - TD_LOG2_448) * TD_LN_2;
    }
}

void td_fast_attn_masked(const void *params, const td_block *block)
{
    const td_params_attention_masked *p = params;
    const td_fast_ops *ops = td_fast_ops_in_use();
    const uint32_t tiles = (p->q.rows + TD_MASKED_ROWS - 1) / TD_MASKED_ROWS, number = block->x / tiles;
    const int64_t batch = number / p->q.heads, asked = p->length ? (int64_t)p->length[batch * p->length_stride] : (int64_t)p->keys;
    plane of = {.p = p, .batch = batch, .head = number % p->q.heads, .first = block->x % tiles * TD_MASKED_ROWS};
    of.kv_head = of.head / (p->q.heads / p->k.heads);
    of.keys = asked < 0 ? 0 : asked > p->keys ? p->keys : asked;
    of.count = p->q.rows - of.first < TD_MASKED_ROWS ? p->q.rows - of.first : TD_MASKED_ROWS;
    float bias[4][TD_TILE_KEYS];
    td_fast_job at = {.local = block->local, .rows = (of.count + 3) & ~3u, .d_pad = (p->q.dim + 31) / 32 * 32};
    if (p->bias)
        at.delta = bias[0], at.delta_stride = TD_TILE_KEYS;
    pack_q(&of, &at);
    memset(at.local->o, 0, (size_t)at.rows * at.d_pad * sizeof *at.local->o);
    memset(at.local->l, 0, at.rows * sizeof at.local->l[0]);
    for (uint32_t r = 0; r < at.rows; r++)
        at.local->m[r] = -INFINITY;
    int64_t end = 0;
    for (uint32_t row = 0; row < of.count; row++)
        end = reach_of(&of, row) > end ? reach_of(&of, row) : end;
    for (at.key = 0; (int64_t)at.key < end; at.key += TD_TILE_KEYS) {
        pack_kv(&of, &at);
        for (uint32_t row = 0; row < at.rows; row += 4) {
            int32_t limit[4], some = 0;
            if (!td_block_goes_on(block))
                return;
            for (uint32_t i = 0; i < 4; i++)
                some |= limit[i] = limit_of(&of, at.key, row + i);
            if (!some)
                continue;
            if (p->bias)
                load_bias(&of, at.key, row, bias);
            ops->rows(&at, row, limit);
        }
    }
    store_rows(&of, ops, &at);
}
