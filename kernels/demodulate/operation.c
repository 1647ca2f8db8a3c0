/* A path tracer's frame as light and tokens, as an operation: tandem_demodulate in types.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "kernels/check.h"
#include "kernels/commit.h"
#include "kernels/demodulate/demodulate.h"

enum { COLOR, ALBEDO, NORMAL, DEPTH, LIGHT, MODULATION, TOKENS, HISTORY, VIEWS };
#define AT(member) offsetof(td_params_demodulate, member)

/* Of a pixel, in tokens. */
static uint32_t channels_of(const tandem_demodulate *d)
{
    return d->history.dtype == TANDEM_DTYPE_NONE ? TD_DEMODULATE_CHANNELS : TD_DEMODULATE_MOST_CHANNELS;
}

static void shape(const tandem_operands *op, uint32_t view, uint32_t shape[4])
{
    const tandem_demodulate *d = &op->demodulate;

    shape[0] = d->batch;
    shape[1] = view == TOKENS ? d->height / 2 + d->height % 2 : d->height;
    shape[2] = view == TOKENS ? d->width / 2 + d->width % 2 : d->width;
    shape[3] = view == TOKENS ? 4 * channels_of(d) : view == LIGHT || view == HISTORY ? 4 : view == DEPTH ? 1 : 3;
}

static tandem_status check(const tandem_operands *op, char *why, size_t why_bytes)
{
    const td_operation_layout *layout = &td_operation_demodulate.layout;
    const tandem_demodulate *d = &op->demodulate;
    const uint32_t inputs = TD_DTYPES(TANDEM_DTYPE_F16) | TD_DTYPES(TANDEM_DTYPE_F32);
    tandem_status status = td_check_image("demodulate", d->batch, d->height, d->width, why, why_bytes);

    if (status == TANDEM_OK && d->reserved)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "demodulate.reserved is %" PRIu32 "; it must be 0", d->reserved);
    for (uint32_t i = 0; i < VIEWS && status == TANDEM_OK; i++)
        status = td_check_view(layout, op, i, i < LIGHT ? inputs : TD_DTYPES(i == TOKENS ? TANDEM_DTYPE_F16 : TANDEM_DTYPE_F32), why, why_bytes);
    return status;
}

static tandem_status plan_demodulate(const tandem_operands *op, const td_target *target, td_plan *plan, char *why, size_t why_bytes)
{
    static const td_kernel tiles = {.name = "demodulate_tiles", .entry = "demodulate_tiles", .cpu = td_cpu_demodulate_tiles};
    static const td_kernel all = {.name = "demodulate_all", .entry = "demodulate_all", .cpu = td_cpu_demodulate_all};
    static const td_kernel kernel = {.name = "demodulate", .entry = "demodulate", .cpu = td_cpu_demodulate};
    const td_operation_layout *layout = &td_operation_demodulate.layout;
    const tandem_demodulate *d = &op->demodulate;
    td_builder at;
    const tandem_status status = td_build_operation(&at, plan, target, layout, op, why, why_bytes);

    if (status != TANDEM_OK)
        return status;
    const td_output outputs[] = {td_build_output(&at, target, layout, op, LIGHT), td_build_output(&at, target, layout, op, MODULATION),
                                 td_build_output(&at, target, layout, op, TOKENS)};
    const td_params_demodulate params = {.color_at = td_strides_of(&d->color),
                                         .albedo_at = td_strides_of(&d->albedo),
                                         .normal_at = td_strides_of(&d->normal),
                                         .depth_at = td_strides_of(&d->depth),
                                         .history_at = td_strides_of(&d->history),
                                         .light_at = outputs[0].at,
                                         .modulation_at = outputs[1].at,
                                         .tokens_at = outputs[2].at,
                                         .height = d->height,
                                         .width = d->width,
                                         .columns = (d->width + TD_DEMODULATE_TILE - 1) / TD_DEMODULATE_TILE,
                                         .rows = (d->height + TD_DEMODULATE_TILE - 1) / TD_DEMODULATE_TILE,
                                         .color_dtype = (uint8_t)d->color.dtype,
                                         .albedo_dtype = (uint8_t)d->albedo.dtype,
                                         .normal_dtype = (uint8_t)d->normal.dtype,
                                         .depth_dtype = (uint8_t)d->depth.dtype,
                                         .channels = channels_of(d)};
    const unsigned __int128 grid = (unsigned __int128)d->batch * params.rows * params.columns;
    const td_place of_tiles = td_build_take(&at, true, grid * sizeof(td_demodulate_sums));
    const td_place scales = td_build_take(&at, true, (unsigned __int128)d->batch * sizeof(td_demodulate_scale));

    td_record *record = td_build_record(&at, &tiles, grid, &params, sizeof params);
    record->block[0] = at.is_gpu ? TD_DEMODULATE_TILE_THREADS : 1;
    record->flags = at.overlaps ? TD_RECORD_PDL : 0;
    td_build_view(&at, record, TD_READ, AT(color), COLOR);
    td_build_view(&at, record, TD_READ, AT(depth), DEPTH);
    td_build_scratch(&at, record, TD_WRITE, AT(tiles), of_tiles);

    record = td_build_record(&at, &all, d->batch, &params, sizeof params);
    record->block[0] = at.is_gpu ? TD_DEMODULATE_THREADS : 1;
    record->flags = at.overlaps ? TD_RECORD_PDL : 0;
    td_build_scratch(&at, record, TD_READ, AT(tiles), of_tiles);
    td_build_scratch(&at, record, TD_WRITE, AT(scales), scales);

    record = td_build_record(&at, &kernel, grid, &params, sizeof params);
    record->block[0] = at.is_gpu ? TD_DEMODULATE_THREADS : 1;
    record->flags = at.overlaps ? TD_RECORD_PDL : 0;
    td_build_view(&at, record, TD_READ, AT(color), COLOR);
    td_build_view(&at, record, TD_READ, AT(albedo), ALBEDO);
    td_build_view(&at, record, TD_READ, AT(normal), NORMAL);
    td_build_view(&at, record, TD_READ, AT(depth), DEPTH);
    td_build_view(&at, record, TD_READ, AT(history), HISTORY);
    td_build_scratch(&at, record, TD_READ, AT(scales), scales);
    td_build_write(&at, record, AT(light), &outputs[0]);
    td_build_write(&at, record, AT(modulation), &outputs[1]);
    td_build_write(&at, record, AT(tokens), &outputs[2]);
    td_build_outputs(&at, target, layout, op, outputs, 3);
    return td_build_end_sized(&at, "demodulate.batch, height, width", (const uint32_t[3]){d->batch, d->height, d->width}, why, why_bytes);
}

static td_cost cost(const tandem_operands *op, uint32_t position)
{
    const double pixels = (double)op->demodulate.batch * op->demodulate.height * op->demodulate.width;

    (void)position;
    return (td_cost){40e-6 * pixels, 300e-6 * pixels};
}

#define VIEW(member, is_written, is_optional) {#member, offsetof(tandem_demodulate, member), is_written, is_optional}
#define NUMBER(member) {#member, offsetof(tandem_demodulate, member), false}
const td_operation td_operation_demodulate = {
    .layout = {.name = "demodulate",
               .number = TANDEM_OPERATION_DEMODULATE,
               .bytes = sizeof(tandem_demodulate),
               .version = 2,
               .older = (const uint32_t[]){offsetof(tandem_demodulate, history)},
               .view_count = VIEWS,
               .views = {[COLOR] = VIEW(color, false, false),
                         [ALBEDO] = VIEW(albedo, false, true),
                         [NORMAL] = VIEW(normal, false, true),
                         [DEPTH] = VIEW(depth, false, true),
                         [LIGHT] = VIEW(light, true, false),
                         [MODULATION] = VIEW(modulation, true, false),
                         [TOKENS] = VIEW(tokens, true, false),
                         [HISTORY] = VIEW(history, false, true)},
               .shape = shape},
    .fields = {NUMBER(batch), NUMBER(height), NUMBER(width)},
    .precision_at = TD_NO_PRECISION,
    .labels = {"tandem demodulate"},
    .check = check,
    .plan = plan_demodulate,
    .cost = cost,
};
