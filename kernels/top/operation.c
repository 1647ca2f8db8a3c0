/* The largest numbers of rows as an operation: tandem_top in types.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "kernels/check.h"
#include "kernels/commit.h"
#include "kernels/cut.h"
#include "kernels/top/params.h"
#include "kernels/top/top.h"

enum { X, Y, VIEWS };
enum { MOST_CHANNELS = 1 << 24 /* which float32 counts */ };
#define AT(member) offsetof(td_params_top, member)

static void shape(const tandem_operands *op, uint32_t view, uint32_t shape[4])
{
    const tandem_top *t = &op->top;
    shape[0] = t->batch;
    shape[1] = t->heads;
    shape[2] = t->rows;
    shape[3] = view == X ? t->channels : 2 * t->count;
}

static tandem_status check(const tandem_operands *op, char *why, size_t why_bytes)
{
    const tandem_top *t = &op->top;
    const td_size sizes[] = {{"batch", t->batch}, {"heads", t->heads}, {"rows", t->rows}, {"channels", t->channels}};
    tandem_status status = td_check_sizes("top", sizes, sizeof sizes / sizeof *sizes, why, why_bytes);
    if (status == TANDEM_OK && t->channels > MOST_CHANNELS)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "top.channels is %" PRIu32 "; it must be 1 to %d", t->channels,
                         MOST_CHANNELS);
    if (status == TANDEM_OK && !(t->count >= 1 && t->count <= TD_TOP_MOST))
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "top.count is %" PRIu32 "; it must be 1 to %u", t->count, TD_TOP_MOST);
    for (int i = 0; i < 3 && status == TANDEM_OK; i++)
        if (t->reserved[i])
            status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "top.reserved[%d] is %" PRIu32 "; it must be 0", i, t->reserved[i]);
    for (uint32_t i = 0; i < VIEWS && status == TANDEM_OK; i++)
        status = td_check_view(&td_operation_top.layout, op, i, i == Y ? TD_DTYPES(TANDEM_DTYPE_F32) : TD_DTYPES_FLOAT, why, why_bytes);
    return status;
}

/* Of a row: such that multiprocessors have two each, where there are so many chunks, and no block waits for another's end. */
static uint32_t blocks_of(uint32_t channels, unsigned __int128 rows, const td_target *target)
{
    const uint32_t chunks = (channels + TD_TOP_CHUNK - 1) / TD_TOP_CHUNK, most = chunks < TD_TOP_BLOCKS ? chunks : TD_TOP_BLOCKS;
    const uint32_t at_once = 2 * (target->multiprocessors ? target->multiprocessors : TD_TOP_BLOCKS);
    const uint32_t wanted = rows < at_once ? at_once / (uint32_t)rows : 1;

    return wanted < most ? wanted : most;
}

static td_record *build(td_builder *at, unsigned __int128 rows, const td_params_top *params)
{
    static const td_kernel kernel = {.name = "top_rows", .entry = "top_rows", .cpu = td_cpu_top};
    td_record *record = td_build_record(at, &kernel, rows * params->blocks, params, sizeof *params);
    record->block[0] = TD_TOP_THREADS;
    record->flags = at->overlaps ? TD_RECORD_PDL : 0;
    return record;
}

static tandem_status plan_top(const tandem_operands *op, const td_target *target, td_plan *plan, char *why, size_t why_bytes)
{
    const td_operation_layout *layout = &td_operation_top.layout;
    const tandem_top *t = &op->top;
    td_builder at;
    const tandem_status status = td_build_operation(&at, plan, target, layout, op, why, why_bytes);

    if (status != TANDEM_OK)
        return status;
    const td_output y = td_build_output(&at, target, layout, op, Y);
    const unsigned __int128 rows = (unsigned __int128)t->batch * t->heads * t->rows;
    const uint32_t blocks = blocks_of(t->channels, rows, target);
    const td_place keys = td_build_take(&at, blocks > 1, rows * blocks * TD_TOP_MOST * sizeof(uint64_t));
    td_params_top params = {.x_at = td_strides_of(&t->x),
                            .y_at = y.at,
                            .heads = t->heads,
                            .rows = t->rows,
                            .channels = t->channels,
                            .count = t->count,
                            .blocks = 1,
                            .kept = blocks * TD_TOP_MOST,
                            .dtype = (uint16_t)t->x.dtype,
                            .stage = blocks > 1 ? TD_TOP_END : TD_TOP_WHOLE};
    if (blocks > 1) {
        td_params_top first = params;
        first.blocks = blocks;
        first.stage = TD_TOP_PARTS;
        td_record *record = build(&at, rows, &first);
        td_build_view(&at, record, TD_READ, AT(x), X);
        td_build_scratch(&at, record, TD_WRITE, AT(keys), keys);
    }
    td_record *record = build(&at, rows, &params);
    if (blocks > 1)
        td_build_scratch(&at, record, TD_READ, AT(keys), keys);
    else
        td_build_view(&at, record, TD_READ, AT(x), X);
    td_build_write(&at, record, AT(y), &y);
    td_build_outputs(&at, target, layout, op, &y, 1);
    return td_build_end_sized(&at, "top.batch, heads, rows", (const uint32_t[3]){t->batch, t->heads, t->rows}, why, why_bytes);
}

static td_cost cost(const tandem_operands *op, uint32_t position)
{
    const double elements = (double)op->top.batch * op->top.heads * op->top.rows * op->top.channels;
    (void)position;
    return (td_cost){0, 10e-6 * elements};
}

static uint32_t split(const tandem_operands *op, uint32_t count)
{
    const uint32_t sizes[TD_CUT_AXES] = {op->top.batch, op->top.heads, op->top.rows};
    return td_cut(sizes, count);
}

static uint32_t part(const tandem_operands *op, uint32_t count, td_part_at *at, tandem_operands *part)
{
    uint32_t *const sizes[TD_CUT_AXES] = {&part->top.batch, &part->top.heads, &part->top.rows};
    *part = *op;
    td_cut_part(&td_operation_top.layout, 1u << X | 1u << Y, sizes, count, at, part);
    return 0;
}

#define VIEW(member, is_written) {#member, offsetof(tandem_top, member), is_written, false}
#define NUMBER(member) {#member, offsetof(tandem_top, member), false}
const td_operation td_operation_top = {
    .layout = {.name = "top",
               .number = TANDEM_OPERATION_TOP,
               .bytes = sizeof(tandem_top),
               .version = 1,
               .view_count = VIEWS,
               .views = {[X] = VIEW(x, false), [Y] = VIEW(y, true)},
               .shape = shape},
    .fields = {NUMBER(batch), NUMBER(heads), NUMBER(rows), NUMBER(channels), NUMBER(count)},
    .precision_at = TD_NO_PRECISION,
    .labels = {"tandem top"},
    .check = check,
    .plan = plan_top,
    .cost = cost,
    .split = split,
    .part = part,
};
