/* The frame before, as it is seen now, as an operation: tandem_reproject in types.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "kernels/check.h"
#include "kernels/commit.h"
#include "kernels/reproject/reproject.h"

enum { HISTORY, MOTION, VALID, NORMAL, DEPTH, NORMAL_BEFORE, DEPTH_BEFORE, O, VIEWS };
#define AT(member) offsetof(td_params_reproject, member)

static void shape(const tandem_operands *op, uint32_t view, uint32_t shape[4])
{
    static const uint32_t channels[VIEWS] = {4, 2, 1, 3, 1, 3, 1, 4};
    const tandem_reproject *r = &op->reproject;

    shape[0] = r->batch;
    shape[1] = r->height;
    shape[2] = r->width;
    shape[3] = channels[view];
}

static tandem_status check(const tandem_operands *op, char *why, size_t why_bytes)
{
    const td_operation_layout *layout = &td_operation_reproject.layout;
    const tandem_reproject *r = &op->reproject;
    const uint32_t floats = TD_DTYPES(TANDEM_DTYPE_F32);
    tandem_status status = td_check_image("reproject", r->batch, r->height, r->width, why, why_bytes);

    if (status == TANDEM_OK && r->reserved)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "reproject.reserved is %" PRIu32 "; it must be 0", r->reserved);
    if (status == TANDEM_OK && !r->normal.dtype != !r->normal_before.dtype)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "reproject.normal and normal_before must both be there, or neither");
    if (status == TANDEM_OK && !r->depth.dtype != !r->depth_before.dtype)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "reproject.depth and depth_before must both be there, or neither");
    for (uint32_t i = 0; i < VIEWS && status == TANDEM_OK; i++)
        status = td_check_view(layout, op, i, i == HISTORY || i == O ? floats : floats | TD_DTYPES(TANDEM_DTYPE_F16), why, why_bytes);
    return status;
}

static tandem_status plan_reproject(const tandem_operands *op, const td_target *target, td_plan *plan, char *why, size_t why_bytes)
{
    static const td_kernel kernel = {.name = "reproject", .entry = "reproject", .cpu = td_cpu_reproject};
    const td_operation_layout *layout = &td_operation_reproject.layout;
    const tandem_reproject *r = &op->reproject;
    td_builder at;
    const tandem_status status = td_build_operation(&at, plan, target, layout, op, why, why_bytes);

    if (status != TANDEM_OK)
        return status;
    const td_output o = td_build_output(&at, target, layout, op, O);
    const td_params_reproject params = {.history_at = td_strides_of(&r->history),
                                        .motion_at = td_strides_of(&r->motion),
                                        .valid_at = td_strides_of(&r->valid),
                                        .normal_at = td_strides_of(&r->normal),
                                        .depth_at = td_strides_of(&r->depth),
                                        .normal_before_at = td_strides_of(&r->normal_before),
                                        .depth_before_at = td_strides_of(&r->depth_before),
                                        .o_at = o.at,
                                        .height = r->height,
                                        .width = r->width,
                                        .columns = (r->width + TD_REPROJECT_WIDTH - 1) / TD_REPROJECT_WIDTH,
                                        .rows = (r->height + TD_REPROJECT_HEIGHT - 1) / TD_REPROJECT_HEIGHT,
                                        .motion_dtype = (uint8_t)r->motion.dtype,
                                        .valid_dtype = (uint8_t)r->valid.dtype,
                                        .normal_dtype = (uint8_t)r->normal.dtype,
                                        .depth_dtype = (uint8_t)r->depth.dtype,
                                        .normal_before_dtype = (uint8_t)r->normal_before.dtype,
                                        .depth_before_dtype = (uint8_t)r->depth_before.dtype};
    td_record *record = td_build_record(&at, &kernel, (unsigned __int128)r->batch * params.rows * params.columns, &params, sizeof params);
    record->block[0] = at.is_gpu ? TD_REPROJECT_THREADS : 1;
    record->flags = at.overlaps ? TD_RECORD_PDL : 0;
    td_build_view(&at, record, TD_READ, AT(history), HISTORY);
    td_build_view(&at, record, TD_READ, AT(motion), MOTION);
    td_build_view(&at, record, TD_READ, AT(valid), VALID);
    td_build_view(&at, record, TD_READ, AT(normal), NORMAL);
    td_build_view(&at, record, TD_READ, AT(depth), DEPTH);
    td_build_view(&at, record, TD_READ, AT(normal_before), NORMAL_BEFORE);
    td_build_view(&at, record, TD_READ, AT(depth_before), DEPTH_BEFORE);
    td_build_write(&at, record, AT(o), &o);
    td_build_outputs(&at, target, layout, op, &o, 1);
    return td_build_end_sized(&at, "reproject.batch, height, width", (const uint32_t[3]){r->batch, r->height, r->width}, why, why_bytes);
}

static td_cost cost(const tandem_operands *op, uint32_t position)
{
    const double pixels = (double)op->reproject.batch * op->reproject.height * op->reproject.width;

    (void)position;
    return (td_cost){80e-6 * pixels, 200e-6 * pixels};
}

#define VIEW(member, is_written, is_optional) {#member, offsetof(tandem_reproject, member), is_written, is_optional}
#define NUMBER(member) {#member, offsetof(tandem_reproject, member), false}
const td_operation td_operation_reproject = {
    .layout = {.name = "reproject",
               .number = TANDEM_OPERATION_REPROJECT,
               .bytes = sizeof(tandem_reproject),
               .version = 1,
               .view_count = VIEWS,
               .views = {[HISTORY] = VIEW(history, false, false),
                         [MOTION] = VIEW(motion, false, false),
                         [VALID] = VIEW(valid, false, true),
                         [NORMAL] = VIEW(normal, false, true),
                         [DEPTH] = VIEW(depth, false, true),
                         [NORMAL_BEFORE] = VIEW(normal_before, false, true),
                         [DEPTH_BEFORE] = VIEW(depth_before, false, true),
                         [O] = VIEW(o, true, false)},
               .shape = shape},
    .fields = {NUMBER(batch), NUMBER(height), NUMBER(width)},
    .precision_at = TD_NO_PRECISION,
    .labels = {"tandem reproject"},
    .check = check,
    .plan = plan_reproject,
    .cost = cost,
};
