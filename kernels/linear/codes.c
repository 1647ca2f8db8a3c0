/* Codes of Q, K and V as what a linear layer writes: checks and records.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "kernels/check.h"
#include "kernels/codes.h"
#include "kernels/linear/codes.h"

#define AT(member) offsetof(td_params_linear_codes, member)

/* All of what codes take, or nothing. */
tandem_status td_linear_check_codes(const tandem_linear *l, char *why, size_t why_bytes)
{
    const bool there = td_linear_has_codes(l);
    const struct {
        const char *name;
        uint32_t value;
        bool needed; /* else optional, with codes */
    } fields[] = {{"q.dtype", l->q.dtype, true}, {"k.dtype", l->k.dtype, true}, {"v.dtype", l->v.dtype, true},
                  {"batch", l->batch, true}, {"heads", l->heads, true}, {"kv_heads", l->kv_heads, true},
                  {"statistics.dtype", l->statistics.dtype, false},
                  {"next_statistics.dtype", l->next_statistics.dtype, false}, {"granularity", l->granularity, false}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (there && fields[i].needed && !fields[i].value)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "linear.%s is 0; with codes it must not be 0", fields[i].name);
        if (!there && fields[i].value)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "linear.%s is %" PRIu32 "; without codes it must be 0",
                           fields[i].name, fields[i].value);
    }
    if (!there && l->y.dtype == TANDEM_DTYPE_NONE)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "linear.y.dtype is 0; without codes it must be 1 (f16), 2 (bf16) or 3 (f32)");
    if (!there)
        return TANDEM_OK;
    const uint32_t dim = l->head_dim;
    if (dim != 32 && dim != 64 && dim != 80 && dim != 96 && dim != 128 && dim != 256)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "linear.head_dim is %" PRIu32 "; with codes it must be 32, 64, 80, 96, 128 or 256", dim);
    if (l->heads % l->kv_heads)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "linear.heads is %" PRIu32 "; it must be a multiple of kv_heads, which is %" PRIu32, l->heads, l->kv_heads);
    if (l->outs % dim || l->outs / dim != (uint64_t)l->heads + 2 * (uint64_t)l->kv_heads)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "linear.outs is %" PRIu32 "; with codes it must be (heads + 2 * kv_heads) * head_dim, which is %" PRIu64,
                       l->outs, ((uint64_t)l->heads + 2 * (uint64_t)l->kv_heads) * dim);
    if (l->rows % l->batch)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "linear.batch is %" PRIu32 "; rows is %" PRIu32 ", which must be a multiple",
                       l->batch, l->rows);
    if (l->granularity >= TANDEM_GRANULARITY_TENSOR)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "linear.granularity is %" PRIu32
                       "; it must be 0 (default), 1 (thread, Ada's), 2 (thread, Hopper's), 3 (token), 4 (warp) or 5 (block)",
                       l->granularity);
    return TANDEM_OK;
}

tandem_status td_linear_check_places(const tandem_operands *op, char *why, size_t why_bytes)
{
    tandem_status status = TANDEM_OK;
    for (uint32_t view = TD_LINEAR_Q; view <= TD_LINEAR_V && status == TANDEM_OK; view++)
        status = td_check_codes(&td_operation_linear.layout, op, view, why, why_bytes);
    return status;
}

/* --- Records --- */

static td_record *build(td_builder *at, const td_kernel *kernel, uint64_t blocks, const td_params_linear_codes *p, const td_output *y)
{
    td_record *record = td_build_record(at, kernel, blocks, p, sizeof *p);
    record->block[0] = 8 * TD_LINEAR_CODES_LANES(p->d_pad);
    record->flags = at->overlaps ? TD_RECORD_PDL : 0;
    if (y && y->place.offset == TD_ABSENT)
        td_build_view(at, record, TD_READ, AT(y.data), y->view);
    else if (y)
        td_build_scratch(at, record, TD_READ, AT(y.data), y->place);
    return record;
}

/* Means and maxima of this call, in `to` or, where nobody wants them, in scratch; returns where they are. */
static td_output build_statistics(td_builder *at, const tandem_linear *l, const td_params_linear_codes *p, const td_output *y,
                                  td_output to)
{
    static const td_kernel partial = {.name = "linear_codes_partial", .entry = "linear_codes_partial",
                                      .cpu = td_cpu_linear_codes_partial};
    static const td_kernel whole = {.name = "linear_codes_statistics", .entry = "linear_codes_statistics",
                                    .cpu = td_cpu_linear_codes_statistics};
    const uint64_t planes = (uint64_t)l->batch * l->kv_heads;
    const td_place sums = td_build_take(at, true, (unsigned __int128)planes * p->chunks * 2 * l->head_dim * sizeof(float));
    td_params_linear_codes params = *p;
    if (l->next_statistics.dtype == TANDEM_DTYPE_NONE) {
        const tandem_view dense = tandem_view_dense(0, 0, TANDEM_DTYPE_F32, l->kv_heads, 2, l->head_dim);
        to.place = td_build_take(at, true, td_view_extent_bytes(&dense, l->batch, l->kv_heads, 2, l->head_dim));
        to.at = td_strides_of(&dense);
    }
    params.statistics_at = to.at;
    td_record *record = build(at, &partial, planes * p->chunks, &params, y);
    td_build_scratch(at, record, TD_WRITE, AT(partial), sums);
    record = build(at, &whole, planes, &params, NULL);
    td_build_scratch(at, record, TD_READ, AT(partial), sums);
    td_build_write(at, record, AT(statistics), &to);
    return to;
}

uint32_t td_linear_build_codes(td_builder *at, const td_target *target, uint32_t sm, const tandem_operands *op, const td_output *y,
                               td_output outputs[TD_LINEAR_CODES_OUTPUTS])
{
    static const td_kernel kernel = {.name = "linear_codes", .entry = "linear_codes", .cpu = td_cpu_linear_codes,
                                     .cpu_local_bytes = TD_LINEAR_CODES_CPU_LOCAL_BYTES};
    static const size_t pointers[TD_LINEAR_CODES_OUTPUTS - 1] = {AT(q), AT(k), AT(v)};
    const td_operation_layout *layout = &td_operation_linear.layout;
    const tandem_linear *l = &op->linear;
    const uint32_t len = l->rows / l->batch, all = l->heads + 2 * l->kv_heads;
    const bool own = l->statistics.dtype == TANDEM_DTYPE_NONE, wanted = l->next_statistics.dtype != TANDEM_DTYPE_NONE;
    td_params_linear_codes params = {
        .y = {.stride_batch = y->at.stride_row * len, .stride_head = l->head_dim, .stride_row = y->at.stride_row,
              .dtype = l->y.dtype, .heads = all, .rows = len, .dim = l->head_dim},
        .statistics_at = td_strides_of(&l->statistics),
        .batch = l->batch,
        .heads = l->heads,
        .kv_heads = l->kv_heads,
        .chunks = (len - 1) / TD_TILE_ROWS + 1,
        .d_pad = td_pad_dim(l->head_dim),
        .granularity = l->granularity ? l->granularity
                       : sm == 90     ? TANDEM_GRANULARITY_THREAD_HOPPER
                                      : TANDEM_GRANULARITY_THREAD_ADA};
    td_output statistics = {.view = TD_LINEAR_STATISTICS, .place.offset = TD_ABSENT};
    for (uint32_t i = 0; i < TD_LINEAR_CODES_OUTPUTS; i++)
        outputs[i] = td_build_output(at, target, layout, op, TD_LINEAR_Q + i);
    if (own || wanted) {
        const td_output next = build_statistics(at, l, &params, y, outputs[TD_LINEAR_CODES_OUTPUTS - 1]);
        if (own) {
            statistics = next;
            params.statistics_at = next.at;
        }
    }
    td_record *record = build(at, &kernel, (uint64_t)l->batch * (l->heads + l->kv_heads) * params.chunks, &params, y);
    if (statistics.place.offset == TD_ABSENT)
        td_build_view(at, record, TD_READ, AT(statistics), statistics.view);
    else
        td_build_scratch(at, record, TD_READ, AT(statistics), statistics.place);
    for (uint32_t i = 0; i < TD_LINEAR_CODES_OUTPUTS - 1; i++)
        td_build_write(at, record, pointers[i], &outputs[i]);
    return TD_LINEAR_CODES_OUTPUTS;
}
