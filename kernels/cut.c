/* Parts of operations. See cut.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cut.h"

/* The axis that there is most of is cut: *each of it a part. */
static uint32_t axis_of(const uint32_t sizes[TD_CUT_AXES], uint32_t count, uint32_t *each)
{
    uint32_t axis = 0;
    for (uint32_t i = 1; i < TD_CUT_AXES; i++)
        axis = sizes[i] > sizes[axis] ? i : axis;
    *each = sizes[axis] / count + (sizes[axis] % count != 0);
    return axis;
}

uint32_t td_cut(const uint32_t sizes[TD_CUT_AXES], uint32_t count)
{
    uint32_t each;
    const uint32_t axis = axis_of(sizes, count, &each);
    return sizes[axis] / each + (sizes[axis] % each != 0);
}

void td_cut_part(const td_operation_layout *layout, uint32_t views, uint32_t *const sizes[TD_CUT_AXES], uint32_t count,
                 td_part_at *at, tandem_operands *part)
{
    uint32_t whole[TD_CUT_AXES], each;
    for (uint32_t i = 0; i < TD_CUT_AXES; i++)
        whole[i] = sizes[i] ? *sizes[i] : 1;
    const uint32_t axis = axis_of(whole, count, &each), left = whole[axis] - at->row;
    for (uint32_t i = 0; i < layout->view_count; i++) {
        tandem_view *view = td_view_of(layout, part, i);
        const int64_t strides[TD_CUT_AXES] = {view->stride_batch, view->stride_head, view->stride_row};
        uint32_t of[4];
        layout->shape(part, i, of);
        if (views & 1u << i && td_view_is_there(layout, part, i) && of[axis] > 1)
            view->offset_bytes += (uint64_t)at->row * (uint64_t)strides[axis] * td_dtype_bytes(view->dtype);
    }
    if (sizes[axis])
        *sizes[axis] = left < each ? left : each;
    at->row += each;
}
