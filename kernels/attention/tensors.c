/* Attention: its tensors as kernels see them, and where its output lies.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/attention/plan.h"

td_tensor td_tensor_of(const tandem_view *view, uint32_t heads, uint32_t rows, uint32_t dim)
{
    return (td_tensor){.stride_batch = view->stride_batch,
                       .stride_head = view->stride_head,
                       .stride_row = view->stride_row,
                       .dtype = view->dtype,
                       .heads = heads,
                       .rows = rows,
                       .dim = dim};
}

td_written td_place_output(td_planning *p)
{
    const tandem_attention *op = p->op;
    const td_operation_layout *layout = &td_operation_attention.layout;
    for (uint32_t i = 0; i < 2; i++)
        p->out[i] = td_build_output(&p->at, p->target, layout, td_operands_of(op), i ? TD_VIEW_LSE : TD_VIEW_O);
    td_written to = {.o = td_tensor_of(&op->o, op->heads, op->q_len, op->head_dim),
                     .lse_stride_batch = p->out[1].at.stride_batch,
                     .lse_stride_head = p->out[1].at.stride_head,
                     .lse_stride_row = p->out[1].at.stride_row};
    to.o.stride_batch = p->out[0].at.stride_batch;
    to.o.stride_head = p->out[0].at.stride_head;
    to.o.stride_row = p->out[0].at.stride_row;
    if (op->q_start.dtype != TANDEM_DTYPE_NONE) /* spans say where a batch begins */
        to.o.stride_batch = to.lse_stride_batch = 0;
    return to;
}
