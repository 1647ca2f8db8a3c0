/* Rows that are written to where positions say, as an operation: tandem_scatter in types.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "kernels/check.h"
#include "kernels/commit.h"
#include "kernels/cut.h"
#include "kernels/scatter/params.h"
#include "kernels/scatter/scatter.h"

enum { X, POSITION, Y, VIEWS };
#define AT(member) offsetof(td_params_scatter, member)

static void shape(const tandem_operands *op, uint32_t view, uint32_t shape[4])
{
    const tandem_scatter *s = &op->scatter;
    shape[0] = s->batch;
    shape[1] = view == POSITION ? 1 : s->heads;
    shape[2] = view == Y ? s->entries : s->rows;
    shape[3] = view == POSITION ? 1 : s->channels;
}

static tandem_status check(const tandem_operands *op, char *why, size_t why_bytes)
{
    const tandem_scatter *s = &op->scatter;
    const td_size sizes[] = {{"batch", s->batch},
                             {"heads", s->heads},
                             {"rows", s->rows},
                             {"channels", s->channels},
                             {"entries", s->entries}};
    tandem_status status =
        td_check_sizes("scatter", sizes, sizeof sizes / sizeof *sizes, why, why_bytes);
    for (int i = 0; i < 3 && status == TANDEM_OK; i++)
        if (s->reserved[i])
            status =
                td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                        "scatter.reserved[%d] is %" PRIu32 "; it must be 0", i, s->reserved[i]);
    for (uint32_t i = 0; i < VIEWS && status == TANDEM_OK; i++)
        status = td_check_view(&td_operation_scatter.layout, op, i,
                               i == POSITION ? TD_DTYPES(TANDEM_DTYPE_I32) : TD_DTYPES_FLOAT, why,
                               why_bytes);
    return status;
}

static const td_kernel kernel = {.name = "scatter_rows", .entry = "scatter_rows", .cpu = td_cpu_scatter};

bool td_is_scatter(const td_record *record)
{
    return record->kernel == &kernel;
}

/* Where the plan commits, what it claims is what it writes at once: a draft of all of y would take
 * longer than the rows. */
static tandem_status plan_scatter(const tandem_operands *op, const td_target *target, td_plan *plan,
                                  char *why, size_t why_bytes)
{
    const tandem_scatter *s = &op->scatter;
    td_builder at;
    const tandem_status status = td_build_operation(&at, plan, target, &td_operation_scatter.layout, op, why, why_bytes);

    if (status != TANDEM_OK)
        return status;
    td_params_scatter params = {.x_at = td_strides_of(&s->x),
                                .position_at = td_strides_of(&s->position),
                                .y_at = td_strides_of(&s->y),
                                .shape = {s->batch, s->heads, s->rows, s->channels},
                                .entries = s->entries,
                                .x_dtype = (uint16_t)s->x.dtype,
                                .y_dtype = (uint16_t)s->y.dtype};
    params.position_at.stride_head = 0; /* its one row is for all heads */
    const td_place verdict = td_build_take(&at, target->commit, sizeof(uint32_t));
    if (target->commit)
        td_build_claim(&at, verdict, (td_place){TD_ABSENT, 0});
    td_record *record =
        td_build_record(&at, &kernel, td_eights_grid(&params.shape), &params, sizeof params);
    record->block[0] = TD_EIGHTS;
    record->flags = at.overlaps ? TD_RECORD_PDL : 0;
    td_build_scratch(&at, record, TD_READ, AT(verdict), verdict);
    td_build_view(&at, record, TD_READ, AT(x), X);
    td_build_view(&at, record, TD_READ, AT(position), POSITION);
    td_build_view(&at, record, TD_WRITE, AT(y), Y);
    return td_build_end_sized(&at, "scatter.batch, heads, rows",
                              (const uint32_t[3]){s->batch, s->heads, s->rows}, why, why_bytes);
}

static td_cost cost(const tandem_operands *op, uint32_t position)
{
    const tandem_scatter *s = &op->scatter;
    const double elements = (double)s->batch * s->heads * s->rows * s->channels;
    (void)position;
    return (td_cost){0, 10e-6 * elements};
}

static uint32_t split(const tandem_operands *op, uint32_t count)
{
    const uint32_t sizes[TD_CUT_AXES] = {op->scatter.batch, op->scatter.heads, 1};
    return td_cut(sizes, count);
}

static uint32_t part(const tandem_operands *op, uint32_t count, td_part_at *at,
                     tandem_operands *part)
{
    uint32_t *const sizes[TD_CUT_AXES] = {&part->scatter.batch, &part->scatter.heads, NULL};
    *part = *op;
    td_cut_part(&td_operation_scatter.layout, 1u << X | 1u << POSITION | 1u << Y, sizes, count, at,
                part);
    return 0;
}

#define VIEW(member, writes)                                                                       \
    {                                                                                              \
#member, offsetof(tandem_scatter, member), writes, false                                   \
    }
#define NUMBER(member)                                                                             \
    {                                                                                              \
#member, offsetof(tandem_scatter, member), false                                           \
    }
const td_operation td_operation_scatter = {
    .layout = {.name = "scatter",
               .number = TANDEM_OPERATION_SCATTER,
               .bytes = sizeof(tandem_scatter),
               .version = 1,
               .view_count = VIEWS,
               .views = {[X] = VIEW(x, TD_WRITES_NONE),
                         [POSITION] = VIEW(position, TD_WRITES_NONE),
                         [Y] = VIEW(y, TD_WRITES_SOME)},
               .shape = shape},
    .fields = {NUMBER(batch), NUMBER(heads), NUMBER(rows), NUMBER(channels), NUMBER(entries)},
    .precision_at = TD_NO_PRECISION,
    .labels = {"tandem scatter"},
    .check = check,
    .plan = plan_scatter,
    .cost = cost,
    .split = split,
    .part = part,
};
