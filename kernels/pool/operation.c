/* Means of rows as an operation: tandem_pool in types.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>

#include "kernels/check.h"
#include "kernels/commit.h"
#include "kernels/cut.h"
#include "kernels/pool/params.h"
#include "kernels/pool/pool.h"

enum { X, LENGTH, Y, VIEWS };
#define AT(member) offsetof(td_params_pool, member)

static void shape(const tandem_operands *op, uint32_t view, uint32_t shape[4])
{
    const tandem_pool *p = &op->pool;
    shape[0] = p->batch;
    shape[1] = view == LENGTH ? 1 : p->heads;
    shape[2] = view == X ? p->rows : 1;
    shape[3] = view == LENGTH ? 1 : p->channels;
}

static tandem_status check(const tandem_operands *op, char *why, size_t why_bytes)
{
    const td_operation_layout *layout = &td_operation_pool.layout;
    const tandem_pool *p = &op->pool;
    const td_size sizes[] = {{"batch", p->batch}, {"heads", p->heads}, {"rows", p->rows}, {"channels", p->channels}};
    tandem_status status = td_check_sizes("pool", sizes, sizeof sizes / sizeof *sizes, why, why_bytes);
    if (status == TANDEM_OK && p->normalise > 1)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "pool.normalise is %" PRIu32 "; it must be 0 or 1", p->normalise);
    if (status == TANDEM_OK && !(p->epsilon >= 0 && isfinite(p->epsilon)))
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "pool.epsilon is %f; it must be finite and not negative",
                         (double)p->epsilon);
    if (status == TANDEM_OK && (p->reserved[0] || p->reserved[1]))
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "pool.reserved is %" PRIu32 ", %" PRIu32 "; both must be 0",
                         p->reserved[0], p->reserved[1]);
    for (uint32_t i = 0; i < VIEWS && status == TANDEM_OK; i++)
        status = td_check_view(layout, op, i, i == LENGTH ? TD_DTYPES(TANDEM_DTYPE_I32) : TD_DTYPES_FLOAT, why, why_bytes);
    return status;
}

/* A record, of what its parameters say. */
static td_record *build(td_builder *at, const tandem_pool *p, const td_params_pool *params)
{
    static const td_kernel kernel = {.name = "pool_rows", .entry = "pool_rows", .cpu = td_cpu_pool};
    const uint32_t chunks = (params->rows + params->each - 1) / params->each;
    const uint32_t tiles = params->normalises ? 1 : (p->channels + TD_POOL_TILE - 1) / TD_POOL_TILE;
    const unsigned __int128 grid = (unsigned __int128)p->batch * p->heads * chunks * tiles;
    td_record *record = td_build_record(at, &kernel, grid, params, sizeof *params);
    record->block[0] = TD_POOL_THREADS;
    record->flags = at->overlaps ? TD_RECORD_PDL : 0;
    td_build_view(at, record, TD_READ, AT(length), LENGTH);
    return record;
}

static tandem_status plan_pool(const tandem_operands *op, const td_target *target, td_plan *plan, char *why, size_t why_bytes)
{
    const td_operation_layout *layout = &td_operation_pool.layout;
    const tandem_pool *p = &op->pool;
    td_builder at;
    const tandem_status status = td_build_operation(&at, plan, target, layout, op, why, why_bytes);

    if (status != TANDEM_OK)
        return status;
    const td_output y = td_build_output(&at, target, layout, op, Y);
    const uint32_t least = (p->rows + TD_POOL_CHUNKS - 1) / TD_POOL_CHUNKS, each = least > TD_POOL_ROWS ? least : TD_POOL_ROWS;
    const uint32_t chunks = (p->rows + each - 1) / each;
    const td_place sums = td_build_take(&at, chunks > 1, (unsigned __int128)p->batch * p->heads * chunks * p->channels * sizeof(float));
    const tandem_view parts = tandem_view_dense(0, 0, TANDEM_DTYPE_F32, p->heads, chunks, p->channels);
    td_params_pool params = {.x_at = td_strides_of(&p->x),
                             .y_at = y.at,
                             .length_stride = p->length.stride_batch,
                             .heads = p->heads,
                             .rows = p->rows,
                             .channels = p->channels,
                             .each = each,
                             .most = p->rows,
                             .dtype = (uint8_t)p->x.dtype,
                             .y_dtype = (uint8_t)p->y.dtype,
                             .stage = TD_POOL_WHOLE,
                             .normalises = p->normalise != 0,
                             .epsilon = p->epsilon > 0 ? p->epsilon : 1e-12f};
    if (chunks > 1) {
        td_params_pool first = params;
        first.y_at = params.x_at = td_strides_of(&parts);
        first.y_dtype = params.dtype = TANDEM_DTYPE_F32;
        first.stage = TD_POOL_PARTS, params.stage = TD_POOL_END;
        first.normalises = false;
        params.rows = params.each = chunks;
        td_record *record = build(&at, p, &first);
        td_build_view(&at, record, TD_READ, AT(x), X);
        td_build_scratch(&at, record, TD_WRITE, AT(y), sums);
    }
    td_record *record = build(&at, p, &params);
    if (chunks > 1)
        td_build_scratch(&at, record, TD_READ, AT(x), sums);
    else
        td_build_view(&at, record, TD_READ, AT(x), X);
    td_build_write(&at, record, AT(y), &y);
    td_build_outputs(&at, target, layout, op, &y, 1);
    return td_build_end_sized(&at, "pool.batch, heads, rows", (const uint32_t[3]){p->batch, p->heads, p->rows}, why, why_bytes);
}

static td_cost cost(const tandem_operands *op, uint32_t position)
{
    const double elements = (double)op->pool.batch * op->pool.heads * op->pool.rows * op->pool.channels;
    (void)position;
    return (td_cost){1e-6 * elements, (op->pool.normalise ? 20e-6 : 10e-6) * elements};
}

static uint32_t split(const tandem_operands *op, uint32_t count)
{
    const uint32_t sizes[TD_CUT_AXES] = {op->pool.batch, op->pool.heads, 1};
    return td_cut(sizes, count);
}

static uint32_t part(const tandem_operands *op, uint32_t count, td_part_at *at, tandem_operands *part)
{
    uint32_t *const sizes[TD_CUT_AXES] = {&part->pool.batch, &part->pool.heads, NULL};
    *part = *op;
    td_cut_part(&td_operation_pool.layout, 1u << X | 1u << LENGTH | 1u << Y, sizes, count, at, part);
    return 0;
}

#define VIEW(member, is_written, is_optional) {#member, offsetof(tandem_pool, member), is_written, is_optional}
#define NUMBER(member) {#member, offsetof(tandem_pool, member), false}
#define FLOAT(member) {#member, offsetof(tandem_pool, member), true}
const td_operation td_operation_pool = {
    .layout = {.name = "pool",
               .number = TANDEM_OPERATION_POOL,
               .bytes = sizeof(tandem_pool),
               .version = 1,
               .view_count = VIEWS,
               .views = {[X] = VIEW(x, false, false), [LENGTH] = VIEW(length, false, true), [Y] = VIEW(y, true, false)},
               .shape = shape},
    .fields = {NUMBER(batch), NUMBER(heads), NUMBER(rows), NUMBER(channels), NUMBER(normalise),
               FLOAT(epsilon)},
    .precision_at = TD_NO_PRECISION,
    .labels = {"tandem pool"},
    .check = check,
    .plan = plan_pool,
    .cost = cost,
    .split = split,
    .part = part,
};
