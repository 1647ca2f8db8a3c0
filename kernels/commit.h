/* `commit`: what parts of an operation have written to a temporary output becomes its output, wholly or not at all.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A job with a deadline is written wholly or not at all. Where a daemon cuts it, its parts write a temporary output; when
 * all have ended one job of this operation claims the output (td_control in params.h) and copies the temporary output
 * there. A plan that commits by itself (td_target.commit) ends in the same records.
 */
#ifndef TANDEM_KERNELS_COMMIT_H
#define TANDEM_KERNELS_COMMIT_H

#include "kernels/builder.h"
#include "kernels/operation.h"
#include "kernels/params.h"

enum { TD_OPERATION_COMMIT = 0x100, TD_COMMIT_MOST = 2 };

/* The views of `commit`: `from` is dense, `to` has the same dtype and shape. Of the first 16 or 32 bits an element. The second,
 * which is not there where its dtype is NONE, is float32, one channel, and else of the first one's shape. */
typedef struct td_commit {
    tandem_view from[TD_COMMIT_MOST], to[TD_COMMIT_MOST];
    uint32_t batch, heads, rows, channels;
    uint32_t precision; /* of the plans that have written the temporary output */
    uint32_t reserved;  /* 0 */
} td_commit;

extern const td_operation td_operation_commit;

/* Where an operation's output lies in a temporary output: `op` becomes the one that writes there, its mem `mem` from its
 * first byte on, and *commit the one that takes it to where op wanted it. Returns the temporary output's bytes; 0: an
 * operation of that kind cannot be committed so. */
uint64_t td_commit_make(const td_operation *operation, uint64_t mem, tandem_operands *op, tandem_operands *commit);

static inline td_strides td_strides_of(const tandem_view *view)
{
    return (td_strides){view->stride_batch, view->stride_head, view->stride_row};
}

/* Bytes from one row of a view to the next. A view of one row may have any stride, which nobody goes by: it may wrap. */
static inline int64_t td_row_bytes(const tandem_view *view)
{
    const td_dtype of = td_dtype_of(view->dtype);
    return (int64_t)((uint64_t)view->stride_row / of.elements * of.bytes);
}

/* How far an operation's views reach: for td_build_view(). */
void td_build_extents(td_builder *at, const td_operation_layout *layout, const tandem_operands *op);

/* Begins a plan of an operation, with the kernels that the target has, whose views touch what its description says. UNSUPPORTED:
 * the target has no kernels. */
tandem_status td_build_operation(td_builder *at, td_plan *plan, const td_target *target, const td_operation_layout *layout,
                                 const tandem_operands *op, char *why, size_t why_bytes);

/* A view that a plan writes: the view itself or, where the plan commits, dense scratch that becomes the view at its end. */
typedef struct td_output {
    uint32_t view;
    td_place place; /* TD_ABSENT: the view */
    td_strides at; /* of what is written */
} td_output;
td_output td_build_output(td_builder *at, const td_target *target, const td_operation_layout *layout, const tandem_operands *op,
                          uint32_t view);
/* The pointer of the record that writes it. */
void td_build_write(td_builder *at, td_record *record, size_t offset, const td_output *output);
/* A plan's end, where it commits: outputs of 16 or 32 bits an element, the first of which is there. Else nothing. */
void td_build_outputs(td_builder *at, const td_target *target, const td_operation_layout *layout, const tandem_operands *op,
                      const td_output *outputs, uint32_t count);

/* The last two records of a plan that commits: `claim`, for which `after` (TD_ABSENT: nothing) must be written, and `commit`,
 * which the verdict is for. Pointers of the latter to what it copies are the caller's to set. */
void td_build_claim(td_builder *at, td_place verdict, td_place after);
td_record *td_build_commit(td_builder *at, td_place verdict, uint64_t planes, const td_params_commit *params);

/* A record that copies the first `bytes` of a view, whose begin is 16-byte aligned and behind which the rest of 16 may be read, to scratch. */
void td_build_fetch(td_builder *at, uint32_t view, uint64_t bytes, td_place to);

#endif
