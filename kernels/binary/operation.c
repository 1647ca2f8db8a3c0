/* Sums and products of two tensors as an operation: tandem_binary in types.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>

#include "kernels/binary/binary.h"
#include "kernels/binary/params.h"
#include "kernels/check.h"
#include "kernels/commit.h"
#include "kernels/cut.h"

enum { A, B, Y, VIEWS };
#define AT(member) offsetof(td_params_binary, member)

static void shape(const tandem_operands *op, uint32_t view, uint32_t shape[4])
{
    const tandem_binary *b = &op->binary;
    shape[0] = b->batch;
    shape[1] = b->heads;
    shape[2] = b->rows;
    shape[3] = view == B && b->b_channels ? b->b_channels : b->channels;
}

static tandem_status check(const tandem_operands *op, char *why, size_t why_bytes)
{
    const tandem_binary *b = &op->binary;
    const td_size sizes[] = {{"batch", b->batch}, {"heads", b->heads}, {"rows", b->rows}, {"channels", b->channels}};
    tandem_status status = td_check_sizes("binary", sizes, sizeof sizes / sizeof *sizes, why, why_bytes);
    if (status == TANDEM_OK && b->b_channels > 1 && b->b_channels != b->channels)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                         "binary.b_channels is %" PRIu32 "; it must be 0, 1, or channels, which is %" PRIu32, b->b_channels, b->channels);
    if (status == TANDEM_OK && b->kind > TANDEM_BINARY_MULTIPLY)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "binary.kind is %" PRIu32 "; it must be 0 (add) or 1 (multiply)", b->kind);
    if (status == TANDEM_OK && !isfinite(b->scale))
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "binary.scale is %f; it must be finite", (double)b->scale);
    if (status == TANDEM_OK && b->reserved)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "binary.reserved is %" PRIu32 "; it must be 0", b->reserved);
    for (uint32_t i = 0; i < VIEWS && status == TANDEM_OK; i++)
        status = td_check_view(&td_operation_binary.layout, op, i, TD_DTYPES_FLOAT, why, why_bytes);
    return status;
}

static tandem_status plan_binary(const tandem_operands *op, const td_target *target, td_plan *plan, char *why, size_t why_bytes)
{
    static const td_kernel kernel = {.name = "binary_rows", .entry = "binary_rows", .cpu = td_cpu_binary};
    const td_operation_layout *layout = &td_operation_binary.layout;
    const tandem_binary *b = &op->binary;
    td_builder at;
    const tandem_status status = td_build_operation(&at, plan, target, layout, op, why, why_bytes);

    if (status != TANDEM_OK)
        return status;
    const td_output y = td_build_output(&at, target, layout, op, Y);
    const td_params_binary params = {.a_at = td_strides_of(&b->a),
                                     .b_at = td_strides_of(&b->b),
                                     .y_at = y.at,
                                     .shape = {b->batch, b->heads, b->rows, b->channels},
                                     .scale = b->scale != 0 ? b->scale : 1,
                                     .a_dtype = (uint8_t)b->a.dtype,
                                     .b_dtype = (uint8_t)b->b.dtype,
                                     .y_dtype = (uint8_t)b->y.dtype,
                                     .multiplies = b->kind == TANDEM_BINARY_MULTIPLY,
                                     .one_channel = b->b_channels == 1};
    td_record *record = td_build_record(&at, &kernel, td_eights_grid(&params.shape), &params, sizeof params);
    record->block[0] = TD_EIGHTS;
    td_build_view(&at, record, TD_READ, AT(a), A);
    td_build_view(&at, record, TD_READ, AT(b), B);
    td_build_write(&at, record, AT(y), &y);
    td_build_outputs(&at, target, layout, op, &y, 1);
    return td_build_end_sized(&at, "binary.batch, heads, rows", (const uint32_t[3]){b->batch, b->heads, b->rows}, why, why_bytes);
}

static td_cost cost(const tandem_operands *op, uint32_t position)
{
    const double elements = (double)op->binary.batch * op->binary.heads * op->binary.rows * op->binary.channels;
    (void)position;
    return (td_cost){2e-6 * elements, 15e-6 * elements};
}

static uint32_t split(const tandem_operands *op, uint32_t count)
{
    const uint32_t sizes[TD_CUT_AXES] = {op->binary.batch, op->binary.heads, op->binary.rows};
    return td_cut(sizes, count);
}

static uint32_t part(const tandem_operands *op, uint32_t count, td_part_at *at, tandem_operands *part)
{
    uint32_t *const sizes[TD_CUT_AXES] = {&part->binary.batch, &part->binary.heads, &part->binary.rows};
    *part = *op;
    td_cut_part(&td_operation_binary.layout, 1u << A | 1u << B | 1u << Y, sizes, count, at, part);
    return 0;
}

#define VIEW(member, is_written) {#member, offsetof(tandem_binary, member), is_written, false}
#define NUMBER(member) {#member, offsetof(tandem_binary, member), false}
#define FLOAT(member) {#member, offsetof(tandem_binary, member), true}
const td_operation td_operation_binary = {
    .layout = {.name = "binary",
               .number = TANDEM_OPERATION_BINARY,
               .bytes = sizeof(tandem_binary),
               .version = 1,
               .view_count = VIEWS,
               .views = {[A] = VIEW(a, false), [B] = VIEW(b, false), [Y] = VIEW(y, true)},
               .shape = shape},
    .fields = {NUMBER(batch), NUMBER(heads), NUMBER(rows), NUMBER(channels), NUMBER(b_channels),
               NUMBER(kind), FLOAT(scale)},
    .precision_at = TD_NO_PRECISION,
    .labels = {"tandem binary"},
    .check = check,
    .plan = plan_binary,
    .cost = cost,
    .split = split,
    .part = part,
};
