/* `claim` and `commit` in plans, and the operation `commit`. See commit.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/commit.h"

#include <inttypes.h>

#include "interop/base.h"
#include "kernels/cpu/cpu.h"

enum { FROM, FROM_MORE, TO, TO_MORE, TEMP_OUTPUT_ALIGNMENT = 256 };

static const td_kernel kernel_claim = {.name = "claim", .entry = "claim", .cpu = td_cpu_claim};
static const td_kernel kernel_commit = {.name = "commit", .entry = "commit", .cpu = td_cpu_commit};
static const td_kernel kernel_fetch = {.name = "fetch", .entry = "fetch", .cpu = td_cpu_fetch};

#define AT(type, member) offsetof(td_params_##type, member)
_Static_assert(sizeof(td_params_claim) <= TD_PARAM_BYTES && sizeof(td_params_commit) <= TD_PARAM_BYTES,
               "they fit into a record");
_Static_assert(sizeof(td_commit) <= sizeof(tandem_operands), "an operation's struct is one of tandem_operands");

void td_build_claim(td_builder *at, td_place verdict, td_place after)
{
    const td_params_claim params = {0};
    td_record *record = td_build_record(at, &kernel_claim, 1, &params, sizeof params);
    record->block[0] = 1;
    td_build_pointer(at, record, AT(claim, control), TD_BASE_CONTROL, 0, 0);
    td_build_scratch(at, record, TD_WRITE, AT(claim, verdict), verdict);
    td_build_place(at, record, TD_READ, after); /* no pointer leads there, but nothing is claimed before it is computed */
}

td_record *td_build_commit(td_builder *at, td_place verdict, uint64_t planes, const td_params_commit *params)
{
    const uint64_t chunks = (params->o.rows + TD_TILE_ROWS - 1) / TD_TILE_ROWS;
    td_record *record = td_build_record(at, &kernel_commit, planes * chunks, params, sizeof *params);
    td_build_scratch(at, record, TD_READ, AT(commit, verdict), verdict);
    return record;
}

void td_build_fetch(td_builder *at, uint32_t view, uint64_t bytes, td_place to)
{
    const td_params_fetch params = {.count = (uint32_t)((bytes + 15) / 16)};
    td_record *record = td_build_record(at, &kernel_fetch, (params.count + TD_BLOCK_THREADS - 1) / TD_BLOCK_THREADS, &params, sizeof params);
    td_build_pointer(at, record, AT(fetch, from), TD_BASE_VIEW, view, 0);
    td_build_range(at, record, TD_READ, (td_range){TD_BASE_VIEW, view, 0, bytes});
    td_build_scratch(at, record, TD_WRITE, AT(fetch, to), to);
}

void td_build_extents(td_builder *at, const td_operation_layout *layout, const tandem_operands *op)
{
    for (uint32_t i = 0; i < layout->view_count; i++) {
        uint32_t of[4];
        if (!td_view_is_there(layout, op, i))
            continue;
        layout->shape(op, i, of);
        at->extent_bytes[i] = td_view_extent_bytes(td_view_in(layout, op, i), of[0], of[1], of[2], of[3]);
    }
}

tandem_status td_build_operation(td_builder *at, td_plan *plan, const td_target *target, const td_operation_layout *layout,
                                 const tandem_operands *op, char *why, size_t why_bytes)
{
    uint32_t sm;

    *at = td_build_begin(plan, target);
    if (!td_target_kernels(target, &at->cubin, &sm, why, why_bytes))
        return TANDEM_ERROR_UNSUPPORTED;
    at->overlaps = at->is_gpu && sm >= 90;
    td_build_extents(at, layout, op);
    return TANDEM_OK;
}

td_output td_build_output(td_builder *at, const td_target *target, const td_operation_layout *layout, const tandem_operands *op,
                          uint32_t view)
{
    const tandem_view *to = td_view_in(layout, op, view);
    td_output output = {.view = view};
    uint32_t of[4];
    const bool there = td_view_is_there(layout, op, view);
    layout->shape(op, view, of);
    const tandem_view dense = tandem_view_dense(0, 0, to->dtype, of[1], of[2], of[3]), *written = target->commit ? &dense : to;
    at->extent_bytes[view] = there ? td_view_extent_bytes(to, of[0], of[1], of[2], of[3]) : 0;
    output.place = td_build_take(at, there && target->commit, td_view_extent_bytes(&dense, of[0], of[1], of[2], of[3]));
    output.at = td_strides_of(written);
    return output;
}

void td_build_write(td_builder *at, td_record *record, size_t offset, const td_output *output)
{
    if (output->place.offset == TD_ABSENT)
        td_build_view(at, record, TD_WRITE, offset, output->view);
    else
        td_build_scratch(at, record, TD_WRITE, offset, output->place);
}

/* Whether an output goes with the one before it: a float32 for each of its rows. */
static bool is_of_rows(const td_operation_layout *layout, const tandem_operands *op, const td_output *output)
{
    uint32_t of[4];
    layout->shape(op, output->view, of);
    return of[3] == 1 && td_view_in(layout, op, output->view)->dtype == TANDEM_DTYPE_F32;
}

/* What is copied of a view. Of codes all that tandem_codes_bytes() counts, with scales, as 32 words a row. */
static td_tensor copied(const tandem_view *to, const uint32_t of[4])
{
    if (!td_dtype_is_codes(to->dtype))
        return (td_tensor){.stride_batch = to->stride_batch,
                           .stride_head = to->stride_head,
                           .stride_row = to->stride_row,
                           .dtype = to->dtype,
                           .heads = of[1],
                           .rows = of[2],
                           .dim = of[3]};
    const uint32_t rows = (uint32_t)(tandem_codes_bytes(to->dtype, 1, 1, of[2], of[3], NULL) / 128);
    return (td_tensor){.stride_batch = 32 * (int64_t)rows * of[1],
                       .stride_head = 32 * (int64_t)rows,
                       .stride_row = 32,
                       .dtype = TANDEM_DTYPE_F32,
                       .heads = of[1],
                       .rows = rows,
                       .dim = 32};
}

void td_build_outputs(td_builder *at, const td_target *target, const td_operation_layout *layout, const tandem_operands *op,
                      const td_output *outputs, uint32_t count)
{
    if (!target->commit)
        return;
    const td_place verdict = td_build_take(at, true, sizeof(uint32_t));
    td_build_claim(at, verdict, outputs[0].place);
    for (uint32_t i = 0; i < count; i++) {
        const tandem_view *to = td_view_in(layout, op, outputs[i].view), *rows = NULL;
        uint32_t of[4];
        if (outputs[i].place.offset == TD_ABSENT)
            continue;
        layout->shape(op, outputs[i].view, of);
        const td_output *more = i + 1 < count && is_of_rows(layout, op, &outputs[i + 1]) ? &outputs[++i] : NULL;
        const td_output *first = more ? more - 1 : &outputs[i];
        if (more && td_view_is_there(layout, op, more->view))
            rows = td_view_in(layout, op, more->view);
        const td_params_commit params = {.o = copied(to, of),
                                         .lse_stride_batch = rows ? rows->stride_batch : 0,
                                         .lse_stride_head = rows ? rows->stride_head : 0,
                                         .lse_stride_row = rows ? rows->stride_row : 0};
        td_record *record = td_build_commit(at, verdict, (uint64_t)of[0] * of[1], &params);
        td_build_scratch(at, record, TD_READ, AT(commit, from), first->place);
        if (rows)
            td_build_scratch(at, record, TD_READ, AT(commit, lse_from), more->place);
        td_build_view(at, record, TD_WRITE, AT(commit, o.data), first->view);
        if (rows)
            td_build_view(at, record, TD_WRITE, AT(commit, lse), more->view);
    }
}

/* --- The operation --- */

static td_commit commit_of(const tandem_operands *op)
{
    td_commit commit;
    memcpy(&commit, op, sizeof commit);
    return commit;
}

static void shape(const tandem_operands *op, uint32_t view, uint32_t shape[4])
{
    const td_commit commit = commit_of(op);
    shape[0] = commit.batch;
    shape[1] = commit.heads;
    shape[2] = commit.rows;
    shape[3] = view == FROM || view == TO ? commit.channels : 1;
}

static bool is_dense(const tandem_view *view, const uint32_t shape[4])
{
    return view->stride_row == shape[3] && view->stride_head == (int64_t)shape[3] * shape[2] &&
           view->stride_batch == view->stride_head * shape[1];
}

static tandem_status check(const tandem_operands *op, char *why, size_t why_bytes)
{
    const td_commit commit = commit_of(op);
    for (int i = 0; i < TD_COMMIT_MOST; i++) {
        const tandem_view *from = &commit.from[i], *to = &commit.to[i];
        uint32_t of[4];
        shape(op, (uint32_t)i, of);
        if (i && from->dtype == TANDEM_DTYPE_NONE && to->dtype == TANDEM_DTYPE_NONE)
            continue;
        if (from->dtype != to->dtype || (i && from->dtype != TANDEM_DTYPE_F32) ||
            (td_dtype_bytes(from->dtype) != 2 && td_dtype_bytes(from->dtype) != 4))
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "commit.from[%d].dtype is %" PRIu32 ", commit.to[%d].dtype %" PRIu32,
                           i, from->dtype, i, to->dtype);
        if (!is_dense(from, of))
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "commit.from[%d] is not dense", i);
        if (!of[0] || !of[1] || !of[2] || !of[3])
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "commit has no elements");
    }
    return TANDEM_OK;
}

static tandem_status plan_commit(const tandem_operands *op, const td_target *target, td_plan *plan, char *why,
                                 size_t why_bytes)
{
    const td_commit commit = commit_of(op);
    td_builder at = td_build_begin(plan, target);
    const bool more = commit.to[1].dtype != TANDEM_DTYPE_NONE;
    uint32_t sm;
    if (!td_target_kernels(target, &at.cubin, &sm, why, why_bytes))
        return TANDEM_ERROR_UNSUPPORTED;
    const td_place verdict = td_build_take(&at, true, sizeof(uint32_t));
    td_build_extents(&at, &td_operation_commit.layout, op);
    td_build_claim(&at, verdict, (td_place){TD_ABSENT, 0});
    const td_params_commit params = {.o = {.stride_batch = commit.to[0].stride_batch,
                                           .stride_head = commit.to[0].stride_head,
                                           .stride_row = commit.to[0].stride_row,
                                           .dtype = commit.to[0].dtype,
                                           .heads = commit.heads,
                                           .rows = commit.rows,
                                           .dim = commit.channels},
                                     .lse_stride_batch = commit.to[1].stride_batch,
                                     .lse_stride_head = commit.to[1].stride_head,
                                     .lse_stride_row = commit.to[1].stride_row};
    td_record *record = td_build_commit(&at, verdict, (uint64_t)commit.batch * commit.heads, &params);
    td_build_view(&at, record, TD_READ, AT(commit, from), FROM);
    td_build_view(&at, record, TD_WRITE, AT(commit, o.data), TO);
    if (more) {
        td_build_view(&at, record, TD_READ, AT(commit, lse_from), FROM_MORE);
        td_build_view(&at, record, TD_WRITE, AT(commit, lse), TO_MORE);
    }
    plan->precision = commit.precision;
    return td_build_end(&at, why, why_bytes);
}

static td_cost cost(const tandem_operands *op, uint32_t position)
{
    (void)op, (void)position;
    return (td_cost){0, 0}; /* it is charged to nobody */
}

const td_operation td_operation_commit = {
    .layout = {.name = "commit",
               .number = TD_OPERATION_COMMIT,
               .bytes = sizeof(td_commit),
               .version = 1,
               .view_count = 4,
               .views = {[FROM] = {"from[0]", offsetof(td_commit, from[0]), false, false},
                         [FROM_MORE] = {"from[1]", offsetof(td_commit, from[1]), false, true},
                         [TO] = {"to[0]", offsetof(td_commit, to[0]), true, false},
                         [TO_MORE] = {"to[1]", offsetof(td_commit, to[1]), true, true}},
               .shape = shape},
    .precision_at = offsetof(td_commit, precision),
    .internal = true,
    .claims = true,
    .labels = {"tandem commit", "tandem commit", "tandem commit", "tandem commit"},
    .check = check,
    .plan = plan_commit,
    .cost = cost,
};

/* --- Temporary outputs --- */

uint64_t td_commit_make(const td_operation *operation, uint64_t mem, tandem_operands *op, tandem_operands *out)
{
    const td_operation_layout *layout = &operation->layout;
    td_commit commit = {.precision = td_operation_precision(operation, op)};
    uint64_t end = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < layout->view_count; i++) {
        tandem_view *view = td_view_of(layout, op, i), temporary;
        uint32_t of[4];
        if (!layout->views[i].written || !td_view_is_there(layout, op, i))
            continue;
        layout->shape(op, i, of);
        if (layout->views[i].written == TD_WRITES_SOME || count == TD_COMMIT_MOST || (count && (of[3] != 1 || view->dtype != TANDEM_DTYPE_F32 || of[0] != commit.batch ||
                                                  of[1] != commit.heads || of[2] != commit.rows)))
            return 0;
        temporary = tandem_view_dense(mem, end, view->dtype, of[1], of[2], of[3]);
        end = td_align_up(end + td_view_extent_bytes(&temporary, of[0], of[1], of[2], of[3]), TEMP_OUTPUT_ALIGNMENT);
        if (!count) {
            commit.batch = of[0];
            commit.heads = of[1];
            commit.rows = of[2];
            commit.channels = of[3];
        }
        commit.from[count] = temporary;
        commit.to[count++] = *view;
        *view = temporary;
    }
    memset(out, 0, sizeof *out);
    memcpy(out, &commit, sizeof commit);
    return end;
}
