/* Samples of layers: some rows of attention computed again, behind the node that has computed them all. See program.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * They are operations like any other, so every device that computes the graph computes them.
 */
#include "kernels/program_maker.h"

enum { Q = 0, O = 3 }; /* of attention's views */

/* One in how many is taken, so that it is at most `most`. */
static uint32_t step_of(uint32_t count, uint32_t most)
{
    return (uint32_t)(((uint64_t)count + most - 1) / most);
}

/* `op` becomes attention of some of its rows, whose operands lie at `places`. */
static void take_rows(uint32_t most, tandem_operands *op, node_places *places)
{
    const td_operation_layout *layout = &td_operation_find(TANDEM_OPERATION_ATTENTION)->layout;
    const tandem_attention whole = op->attention;
    const uint32_t batches = step_of(whole.batch, most), batch = (whole.batch - 1) / batches + 1;
    const uint32_t each = most / batch ? most / batch : 1, rows = whole.causal ? 1 : step_of(whole.q_len, each);
    const uint32_t q_len = !whole.causal ? (whole.q_len - 1) / rows + 1 : whole.q_len < each ? whole.q_len : each;
    const uint64_t first = whole.causal ? whole.q_len - q_len : 0;

    for (uint32_t i = 0; i < layout->view_count; i++) {
        tandem_view *view = td_view_of(layout, op, i);
        const td_dtype dtype = td_dtype_of(view->dtype);
        uint32_t shape[4];

        if (view->dtype == TANDEM_DTYPE_NONE)
            continue;
        layout->shape(op, i, shape);
        view->stride_batch *= batches;
        if (shape[2] != whole.q_len || i == Q + 1 || i == Q + 2) /* it has no rows of queries */
            continue;
        const uint64_t bytes = first * (uint64_t)view->stride_row * dtype.bytes;
        view->offset_bytes += bytes;
        places->views[i].offset += bytes;
        view->stride_row *= rows;
    }
    op->attention.batch = batch;
    op->attention.q_len = q_len;
    op->attention.lse = (tandem_view){0};
}

/* Plans it into m->part; false: it cannot be. */
static bool can_plan(maker *m, uint32_t operation, const tandem_operands *op)
{
    const td_operation *of = td_operation_find(operation);

    return of->check(op, NULL, 0) == TANDEM_OK && of->plan(op, &m->target, &m->part, NULL, 0) == TANDEM_OK;
}

/* Of one of a layer's samples. */
static uint64_t bytes_of(const td_program_sample *s)
{
    return td_align_up((uint64_t)s->batch * s->heads * s->rows * s->channels * sizeof(float), TD_PROGRAM_ALIGN);
}

static tandem_view dense(const td_program_sample *s, uint32_t dtype)
{
    return tandem_view_dense(0, 0, dtype, s->heads, s->rows, s->channels);
}

/* What was planned writes sample `which`. */
static tandem_status append(maker *m, td_program_sample *s, uint32_t which, const node_places *from, uint32_t view)
{
    node_places places = *from;

    s->offset[which] = m->program->sample_bytes + which * bytes_of(s);
    places.views[view] = (location){TD_BASE_VIEW, TD_PROGRAM_BINDINGS + m->program->binding_count, s->offset[which]};
    return td_program_append(m, s->node, &places);
}

/* Rows as the node has written them: added to themselves. */
static tandem_status add_own(maker *m, td_program_sample *s, const tandem_operands *rows, const node_places *places)
{
    const node_places both = {.views = {places->views[O], places->views[O]}};
    tandem_operands op = {.binary = {.a = rows->attention.o,
                                     .b = rows->attention.o,
                                     .y = dense(s, TANDEM_DTYPE_F32),
                                     .batch = s->batch,
                                     .heads = s->heads,
                                     .rows = s->rows,
                                     .channels = s->channels}};

    return can_plan(m, TANDEM_OPERATION_BINARY, &op) ? append(m, s, TD_SAMPLE_OWN, &both, 2) : TANDEM_OK;
}

static tandem_status add_exact(maker *m, td_program_sample *s, const tandem_operands *rows, const node_places *places)
{
    tandem_operands op = *rows;

    op.attention.o = dense(s, s->dtype);
    op.attention.precision = TANDEM_PRECISION_F16;
    op.attention.smooth = TANDEM_SMOOTH_DEFAULT;
    op.attention.granularity = TANDEM_GRANULARITY_DEFAULT;
    return can_plan(m, TANDEM_OPERATION_ATTENTION, &op) ? append(m, s, TD_SAMPLE_EXACT, places, O) : TANDEM_OK;
}

/* Which precisions there are, and rows in those that are cheaper. */
static tandem_status add_others(maker *m, td_program_sample *s, const tandem_operands *rows, const node_places *places)
{
    tandem_operands op = *rows;
    tandem_status status = TANDEM_OK;
    bool wanted = true;

    op.attention.o = dense(s, s->dtype);
    for (uint32_t p = TANDEM_PRECISION_F16; p <= TANDEM_PRECISION_4B && status == TANDEM_OK; p++) {
        op.attention.precision = p;
        if (!can_plan(m, TANDEM_OPERATION_ATTENTION, &op))
            continue;
        s->can |= 1u << p;
        if (p == TD_SAMPLE_EXACT || !(m->target.sample_all || (wanted && p > s->precision)))
            continue;
        status = append(m, s, p, places, O);
        wanted = false;
    }
    return status;
}

tandem_status td_program_add_sample(maker *m, uint32_t node, const tandem_operands *op, const node_places *places)
{
    const uint32_t constant = m->target.constant_views;
    td_program_sample s = {.node = node,
                           .precision = m->nodes[node].precision,
                           .dtype = op->attention.o.dtype,
                           .heads = op->attention.heads,
                           .channels = op->attention.head_dim,
                           .offset = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}};
    tandem_operands rows = *op;
    node_places at = *places;

    if (m->graph->nodes[node].operation->layout.number != TANDEM_OPERATION_ATTENTION ||
        td_dtype_is_codes(op->attention.q.dtype) || m->program->binding_count == TD_GRAPH_BINDINGS)
        return TANDEM_OK;
    take_rows(m->target.sample_rows, &rows, &at);
    s.batch = rows.attention.batch;
    s.rows = rows.attention.q_len;
    tandem_status status = add_exact(m, &s, &rows, &at);
    if (status == TANDEM_OK && s.offset[TD_SAMPLE_EXACT] == UINT64_MAX)
        return TANDEM_OK;
    if (status == TANDEM_OK)
        status = add_others(m, &s, &rows, &at);
    m->target.constant_views = 0;
    if (status == TANDEM_OK)
        status = add_own(m, &s, &rows, &at);
    m->target.constant_views = constant;
    if (status != TANDEM_OK)
        return status;
    td_program_sample *samples = td_arena_grow(&m->program->memory, m->samples, m->program->sample_count, sizeof *samples,
                                               _Alignof(td_program_sample));
    if (!samples)
        return td_program_no_memory(m);
    m->samples = samples;
    samples[m->program->sample_count++] = s;
    m->program->sample_bytes += TD_SAMPLES * bytes_of(&s); /* whatever precisions it has: so others' lie where they lay */
    return TANDEM_OK;
}
