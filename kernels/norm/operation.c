/* RMSNorm and LayerNorm as an operation: tandem_norm in types.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>

#include "kernels/check.h"
#include "kernels/commit.h"
#include "kernels/cut.h"
#include "kernels/norm/norm.h"

enum { X, RESIDUAL, WEIGHT, BIAS, Y, SUM, ROTATION, POSITION, VIEWS };
#define AT(member) offsetof(td_params_norm, member)

static void shape(const tandem_operands *op, uint32_t view, uint32_t shape[4])
{
    const bool of_channels = view == WEIGHT || view == BIAS;
    shape[0] = of_channels ? 1 : op->norm.batch;
    shape[1] = of_channels ? 1 : op->norm.heads;
    shape[2] = of_channels ? 1 : op->norm.rows;
    shape[3] = op->norm.channels;
    if (view == ROTATION)
        shape[0] = shape[1] = 1, shape[2] = op->norm.positions, shape[3] = op->norm.rotated_channels;
    else if (view == POSITION)
        shape[1] = shape[3] = 1;
}

/* All of what a rotation takes, or nothing. */
static tandem_status check_rotation(const tandem_norm *n, char *why, size_t why_bytes)
{
    const bool there = n->rotation.dtype != TANDEM_DTYPE_NONE;
    const struct {
        const char *name;
        uint32_t value;
    } all[] = {{"position.dtype", n->position.dtype}, {"positions", n->positions}, {"rotated_channels", n->rotated_channels}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (there != (all[i].value != 0))
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "norm.%s is %" PRIu32 "; with%s a rotation it must %sbe 0", all[i].name,
                           all[i].value, there ? "" : "out", there ? "not " : "");
    if (!there)
        return TANDEM_OK;
    if (n->rotated_channels % 8 || n->rotated_channels > n->channels)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "norm.rotated_channels is %" PRIu32 "; it must be a multiple of 8, at most channels, which is %" PRIu32,
                       n->rotated_channels, n->channels);
    return td_check_size("norm", "positions", n->positions, why, why_bytes);
}

static uint32_t dtypes_of(const tandem_norm *n, uint32_t view)
{
    return view == SUM        ? TD_DTYPES(n->x.dtype)
           : view == ROTATION ? TD_DTYPES(TANDEM_DTYPE_F32)
           : view == POSITION ? TD_DTYPES(TANDEM_DTYPE_I32)
                              : TD_DTYPES_FLOAT;
}

static tandem_status check(const tandem_operands *op, char *why, size_t why_bytes)
{
    const tandem_norm *n = &op->norm;
    const td_size sizes[] = {{"batch", n->batch}, {"heads", n->heads}, {"rows", n->rows}, {"channels", n->channels}};
    tandem_status status = td_check_sizes("norm", sizes, sizeof sizes / sizeof *sizes, why, why_bytes);
    if (status == TANDEM_OK && n->kind > TANDEM_NORM_LAYER)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "norm.kind is %" PRIu32 "; it must be 0 (RMSNorm) or 1 (LayerNorm)",
                         n->kind);
    if (status == TANDEM_OK && !(n->epsilon >= 0 && isfinite(n->epsilon)))
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "norm.epsilon is %f; it must be finite and not negative",
                         (double)n->epsilon);
    if (status == TANDEM_OK && (n->reserved[0] || n->reserved[1]))
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "norm.reserved is %" PRIu32 ", %" PRIu32 "; both must be 0",
                         n->reserved[0], n->reserved[1]);
    if (status == TANDEM_OK)
        status = check_rotation(n, why, why_bytes);
    for (uint32_t i = 0; i < VIEWS && status == TANDEM_OK; i++) /* x comes first, so its dtype is one */
        status = td_check_view(&td_operation_norm.layout, op, i, dtypes_of(n, i), why, why_bytes);
    return status;
}

/* Whether a view, if it is there, is of a type and may be read 16 bytes at a time. */
static bool is_wide(const tandem_view *view, uint32_t dtype)
{
    return view->dtype == TANDEM_DTYPE_NONE || (view->dtype == dtype && td_is_wide(view));
}

/* The usual cases have kernels of their own: that of a short row, and that of a model whose sums are float32. */
static const td_kernel norm_rows = {.name = "norm_rows", .entry = "norm_rows", .cpu = td_cpu_norm};
static const td_kernel norm_shorts[] = {{.name = "norm_short", .entry = "norm_short_f16", .cpu = td_cpu_norm},
                                        {.name = "norm_short", .entry = "norm_short_bf16", .cpu = td_cpu_norm}};
static const td_kernel norm_lines[] = {{.name = "norm_line", .entry = "norm_line_f16", .cpu = td_cpu_norm},
                                       {.name = "norm_line", .entry = "norm_line_bf16", .cpu = td_cpu_norm}};

bool td_norm_is_line_f16(const td_record *record)
{
    return record->kernel == &norm_lines[0];
}

bool td_norm_is_short_f16(const td_record *record)
{
    return record->kernel == &norm_shorts[0];
}

static const td_kernel *kernel_of(const tandem_norm *n)
{
    const uint32_t type = n->x.dtype;
    if (n->rotation.dtype != TANDEM_DTYPE_NONE || n->channels % 8 || !is_wide(&n->weight, TANDEM_DTYPE_F32) || !is_wide(&n->y, n->y.dtype))
        return &norm_rows;
    if (type == TANDEM_DTYPE_F32) {
        const bool is_line = n->kind == TANDEM_NORM_RMS && n->channels <= TD_NORM_LINE && is_wide(&n->x, type) && n->y.dtype != type &&
                             n->weight.dtype != TANDEM_DTYPE_NONE && n->bias.dtype == TANDEM_DTYPE_NONE &&
                             n->residual.dtype == TANDEM_DTYPE_NONE && n->sum.dtype == TANDEM_DTYPE_NONE;
        return is_line ? &norm_lines[n->y.dtype == TANDEM_DTYPE_BF16] : &norm_rows;
    }
    const bool is_short = n->channels <= TD_NORM_SHORT && is_wide(&n->x, type) && is_wide(&n->residual, type) && n->y.dtype == type &&
                          is_wide(&n->sum, type) && is_wide(&n->bias, TANDEM_DTYPE_F32);
    return is_short ? &norm_shorts[type == TANDEM_DTYPE_BF16] : &norm_rows;
}

static tandem_status plan_norm(const tandem_operands *op, const td_target *target, td_plan *plan, char *why, size_t why_bytes)
{
    const td_operation_layout *layout = &td_operation_norm.layout;
    const tandem_norm *n = &op->norm;
    td_builder at;
    const tandem_status status = td_build_operation(&at, plan, target, layout, op, why, why_bytes);

    if (status != TANDEM_OK)
        return status;
    const td_output outputs[] = {td_build_output(&at, target, layout, op, Y), td_build_output(&at, target, layout, op, SUM)};
    const td_output *y = &outputs[0], *sum = &outputs[1];
    const uint32_t lanes = n->channels > TD_NORM_SHORT ? TD_NORM_THREADS : 32;
    const unsigned __int128 total = (unsigned __int128)n->batch * n->heads * n->rows; /* too many are too many blocks */
    td_params_norm params = {.x_at = td_strides_of(&n->x),
                                   .residual_at = td_strides_of(&n->residual),
                                   .y_at = y->at,
                                   .sum_at = sum->at,
                                   .total = total > INT64_MAX ? INT64_MAX : (uint64_t)total,
                                   .heads = n->heads,
                                   .rows = n->rows,
                                   .channels = n->channels,
                                   .epsilon = n->epsilon > 0 ? n->epsilon : 1e-5f,
                                   .lanes = (uint16_t)lanes,
                                   .dtype = (uint8_t)n->x.dtype,
                                   .residual_dtype = (uint8_t)n->residual.dtype,
                                   .weight_dtype = (uint8_t)n->weight.dtype,
                                   .bias_dtype = (uint8_t)n->bias.dtype,
                                   .y_dtype = (uint8_t)n->y.dtype,
                                   .subtracts_mean = n->kind == TANDEM_NORM_LAYER,
                                   .weight_is_constant = target->constant_views >> WEIGHT & 1,
                                   .position_at = td_strides_of(&n->position),
                                   .rotation_stride = n->rotation.stride_row,
                                   .positions = n->positions,
                                   .rotated_channels = n->rotated_channels};
    params.position_at.stride_head = 0; /* its one row is for all heads */
    const uint64_t rows = TD_NORM_THREADS / lanes;
    td_record *record = td_build_record(&at, kernel_of(n), params.total / rows + (params.total % rows != 0), &params, sizeof params);
    record->block[0] = TD_NORM_THREADS;
    record->flags = at.overlaps ? TD_RECORD_PDL : 0;
    td_build_view(&at, record, TD_READ, AT(x), X);
    td_build_view(&at, record, TD_READ, AT(residual), RESIDUAL);
    td_build_view(&at, record, TD_READ, AT(weight), WEIGHT);
    td_build_view(&at, record, TD_READ, AT(bias), BIAS);
    td_build_view(&at, record, TD_READ, AT(rotation), ROTATION);
    td_build_view(&at, record, TD_READ, AT(position), POSITION);
    td_build_write(&at, record, AT(y), y);
    td_build_write(&at, record, AT(sum), sum);
    td_build_outputs(&at, target, layout, op, outputs, 2);
    return td_build_end_sized(&at, "norm.batch, heads, rows", (const uint32_t[3]){n->batch, n->heads, n->rows}, why, why_bytes);
}

static td_cost cost(const tandem_operands *op, uint32_t position)
{
    const double elements = (double)op->norm.batch * op->norm.heads * op->norm.rows * op->norm.channels;
    (void)position;
    return (td_cost){8e-6 * elements, 30e-6 * elements};
}

static uint32_t split(const tandem_operands *op, uint32_t count)
{
    const uint32_t sizes[TD_CUT_AXES] = {op->norm.batch, op->norm.heads, op->norm.rows};
    return td_cut(sizes, count);
}

static uint32_t part(const tandem_operands *op, uint32_t count, td_part_at *at, tandem_operands *part)
{
    uint32_t *const sizes[TD_CUT_AXES] = {&part->norm.batch, &part->norm.heads, &part->norm.rows};
    *part = *op;
    td_cut_part(&td_operation_norm.layout, 1u << X | 1u << RESIDUAL | 1u << Y | 1u << SUM | 1u << POSITION, sizes, count, at, part);
    return 0;
}

#define VIEW(member, is_written, is_optional) {#member, offsetof(tandem_norm, member), is_written, is_optional}
#define NUMBER(member) {#member, offsetof(tandem_norm, member), false}
#define FLOAT(member) {#member, offsetof(tandem_norm, member), true}
const td_operation td_operation_norm = {
    .layout = {.name = "norm",
               .number = TANDEM_OPERATION_NORM,
               .bytes = sizeof(tandem_norm),
               .version = 2,
               .older = (const uint32_t[]){offsetof(tandem_norm, rotation)},
               .view_count = VIEWS,
               .views = {[X] = VIEW(x, false, false),
                         [RESIDUAL] = VIEW(residual, false, true),
                         [WEIGHT] = VIEW(weight, false, true),
                         [BIAS] = VIEW(bias, false, true),
                         [Y] = VIEW(y, true, false),
                         [SUM] = VIEW(sum, true, true),
                         [ROTATION] = VIEW(rotation, false, true),
                         [POSITION] = VIEW(position, false, true)},
               .shape = shape},
    .fields = {NUMBER(batch), NUMBER(heads), NUMBER(rows), NUMBER(channels), NUMBER(kind),
               FLOAT(epsilon), NUMBER(positions), NUMBER(rotated_channels)},
    .precision_at = TD_NO_PRECISION,
    .labels = {"tandem norm"},
    .check = check,
    .plan = plan_norm,
    .cost = cost,
    .split = split,
    .part = part,
};
