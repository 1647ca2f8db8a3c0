/* Sums of rows of tables as an operation: tandem_embed in types.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>

#include "kernels/check.h"
#include "kernels/commit.h"
#include "kernels/cut.h"
#include "kernels/embed/embed.h"
#include "kernels/embed/params.h"

/* A table's ids have its number, behind all tables. */
enum { TABLE, POSITION_TABLE, TYPE_TABLE, ID, POSITION, TYPE, Y, VIEWS };
#define AT(member) offsetof(td_params_embed, member)

static uint32_t count_of(const tandem_embed *e, uint32_t table)
{
    return table == TABLE ? e->entries : table == POSITION_TABLE ? e->positions : e->types;
}

static void shape(const tandem_operands *op, uint32_t view, uint32_t shape[4])
{
    const tandem_embed *e = &op->embed;
    shape[0] = view < ID ? 1 : e->batch;
    shape[1] = 1;
    shape[2] = view < ID ? count_of(e, view) : e->rows;
    shape[3] = view < ID || view == Y ? e->channels : 1;
}

/* Of a second and third table all, or nothing. */
static tandem_status check_table(const tandem_operands *op, uint32_t table, char *why, size_t why_bytes)
{
    static const char *const names[TD_EMBED_TABLES] = {"entries", "positions", "types"};
    const td_operation_layout *layout = &td_operation_embed.layout;
    const bool there = td_view_is_there(layout, op, table);
    const uint32_t count = count_of(&op->embed, table), dtype = td_view_in(layout, op, ID + table)->dtype;
    if (there)
        return td_check_size("embed", names[table], count, why, why_bytes);
    if (count)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "embed.%s is %" PRIu32 "; without %s it must be 0", names[table], count,
                       layout->views[table].name);
    if (dtype != TANDEM_DTYPE_NONE)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "embed.%s.dtype is %" PRIu32 "; without %s it must be 0",
                       layout->views[ID + table].name, dtype, layout->views[table].name);
    return TANDEM_OK;
}

/* Ids of a table that is there must be, too: so they are checked as if they were not optional. */
static tandem_status check_ids(const tandem_operands *op, uint32_t table, char *why, size_t why_bytes)
{
    const td_operation_layout *layout = &td_operation_embed.layout;
    if (td_view_is_there(layout, op, table) && !td_view_is_there(layout, op, ID + table))
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "embed.%s.dtype is 0; with %s it must be 6 (i32)", layout->views[ID + table].name,
                       layout->views[table].name);
    return td_check_view(layout, op, ID + table, TD_DTYPES(TANDEM_DTYPE_I32), why, why_bytes);
}

static tandem_status check(const tandem_operands *op, char *why, size_t why_bytes)
{
    const td_operation_layout *layout = &td_operation_embed.layout;
    const tandem_embed *e = &op->embed;
    const td_size sizes[] = {{"batch", e->batch}, {"rows", e->rows}, {"channels", e->channels}};
    tandem_status status = td_check_sizes("embed", sizes, sizeof sizes / sizeof *sizes, why, why_bytes);
    if (status == TANDEM_OK && !isfinite(e->scale))
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "embed.scale is %f; it must be finite", (double)e->scale);
    if (status == TANDEM_OK && e->reserved)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "embed.reserved is %" PRIu32 "; it must be 0", e->reserved);
    for (uint32_t i = 0; i < TD_EMBED_TABLES && status == TANDEM_OK; i++) {
        status = check_table(op, i, why, why_bytes);
        if (status == TANDEM_OK)
            status = td_check_view(layout, op, i, TD_DTYPES_FLOAT | TD_DTYPES_BLOCKS | TD_DTYPES_TILES, why, why_bytes);
        if (status == TANDEM_OK && td_view_is_there(layout, op, i))
            status = td_check_tiles(layout, op, i, true, why, why_bytes);
        if (status == TANDEM_OK)
            status = check_ids(op, i, why, why_bytes);
    }
    return status == TANDEM_OK ? td_check_view(layout, op, Y, TD_DTYPES_FLOAT, why, why_bytes) : status;
}

static tandem_status plan_embed(const tandem_operands *op, const td_target *target, td_plan *plan, char *why, size_t why_bytes)
{
    static const td_kernel kernel = {.name = "embed_rows", .entry = "embed_rows", .cpu = td_cpu_embed};
    const td_operation_layout *layout = &td_operation_embed.layout;
    const tandem_embed *e = &op->embed;
    td_builder at;
    tandem_status status = td_build_operation(&at, plan, target, layout, op, why, why_bytes);

    for (uint32_t i = 0; i < TD_EMBED_TABLES && status == TANDEM_OK; i++)
        if (td_view_is_there(layout, op, i))
            status = td_check_tiles(layout, op, i, at.is_gpu, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    const td_output y = td_build_output(&at, target, layout, op, Y);
    td_params_embed params = {.y_at = y.at,
                              .shape = {e->batch, 1, e->rows, e->channels},
                              .y_dtype = e->y.dtype,
                              .scale = e->scale != 0 ? e->scale : 1};
    for (uint32_t i = 0; i < TD_EMBED_TABLES; i++) {
        const tandem_view *table = td_view_in(layout, op, i);
        if (td_view_is_there(layout, op, i))
            params.tables[i] = (td_embed_table){.id_at = td_strides_of(td_view_in(layout, op, ID + i)),
                                                .stride = td_row_bytes(table),
                                                .count = count_of(e, i),
                                                .dtype = table->dtype};
    }
    td_record *record = td_build_record(&at, &kernel, td_eights_grid(&params.shape), &params, sizeof params);
    record->block[0] = TD_EIGHTS;
    record->flags = at.overlaps ? TD_RECORD_PDL : 0;
    for (uint32_t i = 0; i < TD_EMBED_TABLES; i++) {
        td_build_view(&at, record, TD_READ, AT(tables[i].rows), i);
        td_build_view(&at, record, TD_READ, AT(tables[i].id), ID + i);
    }
    td_build_write(&at, record, AT(y), &y);
    td_build_outputs(&at, target, layout, op, &y, 1);
    return td_build_end_sized(&at, "embed.batch, rows, channels", (const uint32_t[3]){e->batch, e->rows, e->channels}, why, why_bytes);
}

static td_cost cost(const tandem_operands *op, uint32_t position)
{
    const double elements = (double)op->embed.batch * op->embed.rows * op->embed.channels;
    (void)position;
    return (td_cost){3e-6 * elements, 20e-6 * elements};
}

static uint32_t split(const tandem_operands *op, uint32_t count)
{
    const uint32_t sizes[TD_CUT_AXES] = {op->embed.batch, 1, op->embed.rows};
    return td_cut(sizes, count);
}

static uint32_t part(const tandem_operands *op, uint32_t count, td_part_at *at, tandem_operands *part)
{
    uint32_t *const sizes[TD_CUT_AXES] = {&part->embed.batch, NULL, &part->embed.rows};
    *part = *op;
    td_cut_part(&td_operation_embed.layout, 1u << ID | 1u << POSITION | 1u << TYPE | 1u << Y, sizes, count, at, part);
    return 0;
}

#define VIEW(member, is_written, is_optional) {#member, offsetof(tandem_embed, member), is_written, is_optional}
#define NUMBER(member) {#member, offsetof(tandem_embed, member), false}
#define FLOAT(member) {#member, offsetof(tandem_embed, member), true}
const td_operation td_operation_embed = {
    .layout = {.name = "embed",
               .number = TANDEM_OPERATION_EMBED,
               .bytes = sizeof(tandem_embed),
               .version = 1,
               .view_count = VIEWS,
               .views = {[TABLE] = VIEW(table, false, false),
                         [POSITION_TABLE] = VIEW(position_table, false, true),
                         [TYPE_TABLE] = VIEW(type_table, false, true),
                         [ID] = VIEW(id, false, false),
                         [POSITION] = VIEW(position, false, true),
                         [TYPE] = VIEW(type, false, true),
                         [Y] = VIEW(y, true, false)},
               .shape = shape},
    .fields = {NUMBER(batch), NUMBER(rows), NUMBER(channels), NUMBER(entries), NUMBER(positions),
               NUMBER(types), FLOAT(scale)},
    .precision_at = TD_NO_PRECISION,
    .labels = {"tandem embed"},
    .check = check,
    .plan = plan_embed,
    .cost = cost,
    .split = split,
    .part = part,
};
