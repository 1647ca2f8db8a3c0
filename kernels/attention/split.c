/* How attention is cut into parts that together are the same bits, and what it costs.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * An attention is many: each batch and head by itself, and of a head each block of BLOCK_ROWS rows of Q. All that is made of K
 * and V depends on them alone, and all that is made of Q on its block; so a part with views of its own, which knows where its
 * rows lie under a causal mask, computes the same bits. The price is that K and V are quantised again for each part of a
 * head's rows.
 */
#include <math.h>

#include "kernels/attention/attention.h"

/* A block is a whole number of any kernel's tiles of rows, which have 64, 128 or 192. */
enum { BLOCK_ROWS = 384, LEAST_ROWS = 3 * BLOCK_ROWS };
/* What a row takes by itself, to be read and written, in keys that it might attend to: a row without any takes 45 of
 * them on a CPU, one with a single key, whose tile is computed all the same, up to 145. */
enum { ROW_KEYS = 128 };

/* Of a head: how often one of its rows attends to a key. */
static double pairs_of(const tandem_attention *op, uint32_t last_keys)
{
    const double keys = last_keys == TD_NO_KEYS ? 0 : last_keys ? last_keys : op->kv_len;
    const double rows = op->q_len < keys ? op->q_len : keys;
    return op->causal ? rows * keys - rows * (rows - 1) / 2 : (double)op->q_len * op->kv_len;
}

/* And what its rows take beside that, in the same unit. */
static double work_of(const tandem_attention *op, uint32_t last_keys)
{
    return pairs_of(op, last_keys) + (double)ROW_KEYS * op->q_len;
}

td_cost td_attention_cost(const tandem_attention *op, uint32_t last_keys)
{
    const double rows = (double)op->batch * op->q_len; /* and of those that lie one behind the other there are as many as that */
    const double each = 4e-6 * op->batch * op->heads * op->head_dim * (op->q_total && op->q_total < rows ? op->q_total / rows : 1);
    return (td_cost){each * pairs_of(op, last_keys), each * work_of(op, last_keys)};
}

/* Parts of several batches, of one batch's heads (whole groups, or part of one), of one head's rows. Each is cut only where
 * parts of what is before it are still too long. */
typedef struct cut {
    uint32_t batches, parts_of_batches;
    uint32_t heads, parts_of_heads;
    bool whole_groups; /* else `heads` of one group, whose last part may have fewer */
    double work;       /* of a part of a head's rows, at most where that is LEAST_ROWS or more; INFINITY: all rows */
} cut;

static uint32_t divided_up(uint32_t n, uint32_t by)
{
    return n / by + (n % by != 0);
}

/* Where a part of a head's rows ends that begins at `row`. Of a causal head's rows those behind attend to more keys, and the
 * first ones, where there are more rows than keys, to none. */
static uint32_t end_of(const tandem_attention *op, double work, uint32_t row)
{
    const int64_t keys = (int64_t)op->kv_len - op->q_len + row + 1; /* of that row */
    const double idle = op->causal && keys < 1 ? (double)(1 - keys) : 0;
    const double before = (keys > 1 ? (double)keys : 1) - 0.5 + ROW_KEYS, left = work - ROW_KEYS * idle;
    double rows = work / (op->causal ? ROW_KEYS : op->kv_len + (double)ROW_KEYS), end;
    if (op->causal && left > 0)
        rows = idle + sqrt(before * before + 2 * left) - before;
    if (rows < LEAST_ROWS)
        rows = LEAST_ROWS;
    end = floor((row + rows) / BLOCK_ROWS) * BLOCK_ROWS;
    return end < op->q_len ? (uint32_t)end : op->q_len;
}

/* Whether which keys are made codes of depends on all rows. */
static bool counts_by_rows(const tandem_attention *op)
{
    return op->position.dtype != TANDEM_DTYPE_NONE && op->precision > TANDEM_PRECISION_F16;
}

static cut cut_for(const tandem_attention *op, uint32_t count)
{
    const uint32_t group = op->heads / op->kv_heads;
    const uint64_t planes = (uint64_t)op->batch * op->heads;
    cut c = {.batches = 1, .heads = op->heads, .parts_of_heads = 1, .whole_groups = true, .work = INFINITY};
    if (td_attention_has_starts(op)) /* which say of all batches together where each begins: heads alone are parts */
        c.batches = op->batch;
    else if (count <= op->batch)
        c.batches = op->batch / count;
    c.parts_of_batches = divided_up(op->batch, c.batches);
    const uint32_t per_batch = divided_up(count, td_attention_has_starts(op) ? 1 : op->batch);
    if (per_batch <= 1)
        return c;
    if (per_batch <= op->kv_heads) {
        const uint32_t groups = op->kv_heads / per_batch;
        c.heads = groups * group;
        c.parts_of_heads = divided_up(op->kv_heads, groups);
        return c;
    }
    c.whole_groups = false;
    c.heads = group / divided_up(per_batch, op->kv_heads);
    if (!c.heads)
        c.heads = 1;
    c.parts_of_heads = op->kv_heads * divided_up(group, c.heads);
    if (count > planes && op->granularity != TANDEM_GRANULARITY_TENSOR && !counts_by_rows(op) &&
        !td_attention_has_starts(op))
        c.work = work_of(op, 0) * (double)planes / count;
    return c;
}

uint32_t td_attention_split(const tandem_attention *op, uint32_t count)
{
    if (count <= 1 || td_dtype_is_codes(op->k.dtype)) /* all scales lie behind all codes: a part is no tensor of codes */
        return 1;
    const cut c = cut_for(op, count);
    uint32_t parts_of_rows = 1;
    for (uint32_t end = end_of(op, c.work, 0); end < op->q_len; end = end_of(op, c.work, end))
        parts_of_rows++;
    return parts_of_rows * c.parts_of_heads * c.parts_of_batches;
}

static void move(tandem_view *view, uint64_t batch, uint64_t head, uint64_t row)
{
    const uint64_t elements = batch * (uint64_t)view->stride_batch + head * (uint64_t)view->stride_head +
                              row * (uint64_t)view->stride_row;
    view->offset_bytes += elements * td_dtype_bytes(view->dtype);
}

uint32_t td_attention_part(const tandem_attention *op, uint32_t count, td_part_at *at, tandem_attention *out)
{
    const cut c = cut_for(op, count);
    const uint32_t group = op->heads / op->kv_heads, per_group = divided_up(group, c.heads);
    const uint32_t part = at->plane % c.parts_of_heads, batch = at->plane / c.parts_of_heads * c.batches;
    const uint32_t head = c.whole_groups ? part * c.heads : part / per_group * group + part % per_group * c.heads;
    const uint32_t heads = c.whole_groups ? op->heads - head : group - part % per_group * c.heads;
    const uint32_t row = at->row, end = end_of(op, c.work, row);
    const int64_t last_keys = (int64_t)op->kv_len - op->q_len + end;
    const bool rows_are_cut = row || end < op->q_len;

    *out = *op;
    out->batch = op->batch - batch < c.batches ? op->batch - batch : c.batches;
    out->heads = heads < c.heads ? heads : c.heads;
    out->kv_heads = c.whole_groups ? out->heads / group : 1;
    out->q_len = end - row;
    move(&out->q, batch, head, row);
    move(&out->o, batch, head, row);
    if (out->lse.dtype != TANDEM_DTYPE_NONE)
        move(&out->lse, batch, head, row);
    move(&out->length, batch, 0, 0);
    move(&out->bias, batch, head, row);
    move(&out->position, batch, 0, row);
    move(&out->sink, 0, head, 0);
    move(&out->k, batch, head / group, 0);
    move(&out->v, batch, head / group, 0);
    at->row = end < op->q_len ? end : 0;
    at->plane += !at->row;
    if (!op->causal || !rows_are_cut)
        return 0;
    if (last_keys > 0)
        return (uint32_t)last_keys;
    out->kv_len = 1; /* there has to be one, but none is looked at: no more are quantised for nothing */
    return TD_NO_KEYS;
}
