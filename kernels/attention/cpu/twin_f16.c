/* The twin of attn_f16_wgmma: its roundings of P and its bases, with sums in float64 where the GPU has fp32 ones.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "kernels/attention/cpu.h"

enum { MOST_KEYS = 256 };

static int64_t row_of(const td_tensor *x, int64_t b, int64_t h, int64_t row)
{
    return b * x->stride_batch + h * x->stride_head + row * x->stride_row;
}

static void load_row(float *to, const td_tensor *x, int64_t b, int64_t h, int64_t row)
{
    td_to_floats(to, x->data, x->dtype, row_of(x, b, h, row), x->dim);
}

/* What has been added up of a row. */
typedef struct sums {
    double o[TD_MAX_DIM], l;
    float top;
} sums;

/* One of p->teams: every so manieth step of the first `keys` keys. */
static void add_up(const td_params_attention_f16 *p, const td_dump_f16 *dump, int64_t b, int64_t h, int64_t row, int64_t keys,
                   uint32_t team, sums *to)
{
    const int64_t dumped = dump ? ((b * p->q.heads + h) * dump->q_pad + row) * dump->kv_pad : 0;
    const int64_t hk = h / (p->q.heads / p->k.heads);
    const uint32_t dim = p->q.dim;
    const float c = p->scale * TD_LOG2_E;
    float q[TD_MAX_DIM], other[TD_MAX_DIM]; /* a row of K or V */

    load_row(q, &p->q, b, h, row);
    *to = (sums){.top = -INFINITY};
    for (int64_t first = (int64_t)team * p->step_keys; first < keys; first += (int64_t)p->teams * p->step_keys) {
        const int64_t count = keys - first < p->step_keys ? keys - first : p->step_keys;
        float s[MOST_KEYS], here = -INFINITY;
        for (int64_t j = 0; j < count; j++) {
            double dot = 0;
            load_row(other, &p->k, b, hk, first + j);
            for (uint32_t i = 0; i < dim; i++)
                dot += (double)q[i] * (double)other[i];
            if (dump)
                dump->s[dumped + first + j] = (float)dot;
            s[j] = (float)dot == -INFINITY ? NAN : (float)dot; /* something in Q or K is not finite */
            here = s[j] > here ? s[j] : here;
        }
        if (td_twin_exponent(here, c, to->top) > TD_F16_LIMIT_LOG2) {
            const float next = td_twin_base(here * c, TD_F16_TOP_LOG2), alpha = exp2f(to->top - next);
            to->top = next;
            to->l *= (double)alpha;
            for (uint32_t i = 0; i < dim; i++)
                to->o[i] *= (double)alpha;
        }
        const float base = to->top == -INFINITY ? 0 : to->top;
        for (int64_t j = 0; j < count; j++) {
            const float exact = exp2f(td_twin_exponent(s[j], c, base));
            const bool bf16 = p->q.dtype == TANDEM_DTYPE_BF16;
            const uint16_t bits = bf16 ? td_to_bf16(exact) : td_to_f16(exact);
            const double code = (double)(bf16 ? td_from_bf16(bits) : td_from_f16(bits));
            if (dump)
                dump->p[dumped + first + j] = bits;
            load_row(other, &p->v, b, hk, first + j);
            to->l += (double)exact;
            for (uint32_t i = 0; i < dim; i++)
                to->o[i] += code * (double)other[i];
            for (uint32_t i = 0; i < dim; i++)
                to->l += 0 * (double)other[i]; /* NaN where a bad V is attended to */
        }
    }
    for (uint32_t i = 0; i < dim; i++)
        to->l += 0 * to->o[i];
}

/* One row of O; it attends to the first `keys` keys. */
static void attend(const td_params_attention_f16 *p, const td_dump_f16 *dump, int64_t b, int64_t h, int64_t row, int64_t keys)
{
    const uint32_t dim = p->q.dim;
    double o[TD_MAX_DIM] = {0}, l = 0;
    sums parts[TD_MAX_SPLITS];
    float top = -INFINITY;

    for (uint32_t team = 0; team < p->teams; team++) {
        add_up(p, dump, b, h, row, keys, team, &parts[team]);
        top = parts[team].top > top ? parts[team].top : top;
    }
    for (uint32_t team = 0; team < p->teams; team++) {
        const double by = parts[team].top == top ? 1 : (double)exp2f(parts[team].top - top);
        l += parts[team].l * by;
        for (uint32_t i = 0; i < dim; i++)
            o[i] += parts[team].o[i] * by;
    }

    const float sum = (float)l, part = 1 / sum;
    const int64_t to = row_of(&p->o, b, h, row);
    for (uint32_t i = 0; i < dim; i++) {
        const float x = sum == 0 ? 0 : (float)o[i] * part;
        if (p->o.dtype == TANDEM_DTYPE_F32)
            ((float *)p->o.data)[to + i] = x;
        else
            ((uint16_t *)p->o.data)[to + i] = p->o.dtype == TANDEM_DTYPE_F16 ? td_to_f16(x) : td_to_bf16(x);
    }
    if (p->lse)
        p->lse[b * p->lse_stride_batch + h * p->lse_stride_head + row * p->lse_stride_row] =
            sum == 0 ? -INFINITY : (top + log2f(sum)) * TD_LN_2;
}

/* The tiles of rows that block x of p->blocks has. */
static void walk(const td_params_attention_f16 *p, const td_dump_f16 *dump, uint64_t block)
{
    const uint32_t tiles = (p->q.rows + p->tile_rows - 1) / p->tile_rows;
    for (uint64_t work = block * p->pair; work < p->works;
         work += p->pair == 1 ? p->blocks : work % 2 ? 2 * (uint64_t)p->blocks - 1 : 1) {
        const uint32_t x = (uint32_t)(work % tiles), bh = (uint32_t)(work / tiles);
        const uint32_t tile = !p->causal ? x : p->pair == 1 ? tiles - 1 - x : x % 2 ? x / 2 : tiles - 1 - x / 2;
        for (uint32_t r = tile * p->tile_rows; r < (tile + 1) * p->tile_rows && r < p->q.rows; r++) {
            const int64_t reach = p->causal ? (int64_t)r + p->k.rows - p->q.rows + 1 : (int64_t)p->k.rows;
            attend(p, dump, bh / p->q.heads, bh % p->q.heads, r, reach < p->k.rows ? reach : p->k.rows);
        }
    }
}

static void walk_all(const td_params_attention_f16 *p, const td_dump_f16 *dump, uint32_t x)
{
    for (uint32_t walker = 0; walker < p->walkers; walker++)
        walk(p, dump, x + (uint64_t)walker * (p->blocks / p->walkers));
}

void td_twin_attn_f16_wgmma(const void *params, const td_block *at)
{
    walk_all(params, NULL, at->x);
}

void td_twin_attn_f16_wgmma_dump(const void *params, const td_block *at)
{
    const td_params_attention_f16_dump *p = params;
    walk_all(&p->of, &p->dump, at->x);
}
