/* What operations' checks have in common. See check.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/check.h"

#include <inttypes.h>

#include "kernels/codes.h"
#include "kernels/params.h"
#include "kernels/tiles.h"

/* What is being checked, for its errors. */
typedef struct check {
    const char *operation, *name;
    const tandem_view *view;
    uint32_t shape[4];
    bool optional;
    char *why;
    size_t why_bytes;
} check;

static const struct {
    const char *name;
    size_t offset;
} axes[3] = {{"batch", offsetof(tandem_view, stride_batch)},
             {"head", offsetof(tandem_view, stride_head)},
             {"row", offsetof(tandem_view, stride_row)}};

static int64_t stride_of(const tandem_view *view, int axis)
{
    int64_t stride;
    memcpy(&stride, (const char *)view + axes[axis].offset, sizeof stride);
    return stride;
}

/* "1 (f16), 2 (bf16) or 3 (f32)" of the dtypes that are allowed. */
static void list_dtypes(uint32_t dtypes, char *text, size_t bytes)
{
    static const char *const names[] = {"", "f16", "bf16", "f32", "int8 codes", "e4m3 codes", "i32", "u8", "i8",
                                        "q8_0", "q4_0", "q4_1", "q4_k", "q6_k", "q5_k"};
    size_t used = 0;
    text[0] = 0;
    for (uint32_t i = 1; i < sizeof names / sizeof *names; i++) {
        if (!(dtypes & TD_DTYPES(i)))
            continue;
        dtypes &= ~TD_DTYPES(i);
        td_text(text + used, bytes - used, "%s%" PRIu32 " (%s)", !used ? "" : dtypes ? ", " : " or ", i, names[i]);
        used = strlen(text);
    }
}

static tandem_status check_dtype(const check *c, uint32_t dtypes)
{
    const uint32_t dtype = c->view->dtype;
    char legal[200];
    if (dtype < 32 && dtypes & TD_DTYPES(dtype))
        return TANDEM_OK;
    list_dtypes(dtypes, legal, sizeof legal);
    return td_fail(c->why, c->why_bytes, TANDEM_ERROR_ARG, "%s.%s.dtype is %" PRIu32 "; it must be %s%s", c->operation,
                   c->name, dtype, legal, c->optional ? ", or 0 where it is not wanted" : "");
}

static tandem_status check_place(const check *c)
{
    const tandem_view *view = c->view;
    const td_dtype of = td_dtype_of(view->dtype);
    uint64_t end;
    if (view->reserved)
        return td_fail(c->why, c->why_bytes, TANDEM_ERROR_ARG, "%s.%s.reserved is %" PRIu32 "; it must be 0", c->operation,
                       c->name, view->reserved);
    if (view->offset_bytes % of.alignment)
        return td_fail(c->why, c->why_bytes, TANDEM_ERROR_ARG,
                       "%s.%s.offset_bytes is %" PRIu64 "; it must be a multiple of %" PRIu32 "%s", c->operation, c->name,
                       view->offset_bytes, of.alignment, of.elements == 1 ? ", the bytes of an element" : "");
    for (int i = 0; i < 3; i++)
        if (stride_of(view, i) < 0)
            return td_fail(c->why, c->why_bytes, TANDEM_ERROR_ARG, "%s.%s.stride_%s is %" PRId64 "; it must not be negative",
                           c->operation, c->name, axes[i].name, stride_of(view, i));
    for (int i = 0; i < 3; i++)
        if (stride_of(view, i) % of.elements)
            return td_fail(c->why, c->why_bytes, TANDEM_ERROR_ARG,
                           "%s.%s.stride_%s is %" PRId64 "; it must be a multiple of %" PRIu32 ", the elements of a block",
                           c->operation, c->name, axes[i].name, stride_of(view, i), of.elements);
    if (c->shape[3] % of.elements)
        return td_fail(c->why, c->why_bytes, TANDEM_ERROR_ARG,
                       "%s.%s has %" PRIu32 " channels; its dtype has blocks of %" PRIu32 " elements, so must be a multiple",
                       c->operation, c->name, c->shape[3], of.elements);
    if (!td_view_end_bytes(view, c->shape, &end))
        return td_fail(c->why, c->why_bytes, TANDEM_ERROR_ARG,
                       "%s.%s.stride_batch, stride_head, stride_row are %" PRId64 ", %" PRId64 ", %" PRId64
                       "; with offset_bytes %" PRIu64 " the last element lies beyond 2^63 bytes (strides count elements)",
                       c->operation, c->name, view->stride_batch, view->stride_head, view->stride_row, view->offset_bytes);
    return TANDEM_OK;
}

/* Strides in rising order: each must clear what the smaller ones span. */
static tandem_status check_overlap(const check *c)
{
    int order[3] = {0, 1, 2};
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2 - i; j++)
            if (stride_of(c->view, order[j]) > stride_of(c->view, order[j + 1])) {
                const int other = order[j];
                order[j] = order[j + 1];
                order[j + 1] = other;
            }
    unsigned __int128 span = c->shape[3];
    for (int i = 0; i < 3; i++) {
        const int axis = order[i];
        const uint64_t stride = (uint64_t)stride_of(c->view, axis);
        if (c->shape[axis] < 2)
            continue;
        if (stride < span)
            return td_fail(c->why, c->why_bytes, TANDEM_ERROR_ARG,
                           "%s.%s.stride_%s is %" PRIu64 "; the output would overlap itself: strides count elements, and "
                           "it must be at least %" PRIu64,
                           c->operation, c->name, axes[axis].name, stride, (uint64_t)span);
        span += (unsigned __int128)(c->shape[axis] - 1) * stride;
    }
    return TANDEM_OK;
}

tandem_status td_check_view(const td_operation_layout *layout, const tandem_operands *op, uint32_t view, uint32_t dtypes,
                            char *why, size_t why_bytes)
{
    check c = {.operation = layout->name,
               .name = layout->views[view].name,
               .view = td_view_in(layout, op, view),
              .optional = layout->views[view].optional,
               .why = why,
               .why_bytes = why_bytes};
    if (!td_view_is_there(layout, op, view))
        return TANDEM_OK;
    layout->shape(op, view, c.shape);
    tandem_status status = check_dtype(&c, dtypes);
    if (status == TANDEM_OK)
        status = check_place(&c);
    if (status == TANDEM_OK && layout->views[view].written && !td_dtype_is_codes(c.view->dtype)) /* those lie in one way */
        status = check_overlap(&c);
    return status;
}

tandem_status td_check_codes(const td_operation_layout *layout, const tandem_operands *op, uint32_t view, char *why,
                             size_t why_bytes)
{
    const tandem_view *it = td_view_in(layout, op, view);
    uint32_t of[4];
    layout->shape(op, view, of);
    /* that 63 bits hold them has been seen */
    const int64_t rows_pad = ((int64_t)of[2] + TD_TILE_ROWS - 1) / TD_TILE_ROWS * TD_TILE_ROWS, d_pad = td_pad_dim(of[3]);
    const int64_t musts[3] = {rows_pad * d_pad * of[1], rows_pad * d_pad,
                              it->dtype == TANDEM_DTYPE_CODES_INT8 ? d_pad : rows_pad};
    if (it->offset_bytes % TD_CODES_ALIGN)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "%s.%s.offset_bytes is %" PRIu64 "; for codes it must be a multiple of %d", layout->name,
                       layout->views[view].name, it->offset_bytes, TD_CODES_ALIGN);
    for (int axis = 2; axis >= 0; axis--)
        if (stride_of(it, axis) != musts[axis])
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                           "%s.%s.stride_%s is %" PRId64 "; for codes of this shape it must be %" PRId64, layout->name,
                           layout->views[view].name, axes[axis].name, stride_of(it, axis), musts[axis]);
    return TANDEM_OK;
}

tandem_status td_check_tiles(const td_operation_layout *layout, const tandem_operands *op, uint32_t view, bool is_gpu, char *why,
                             size_t why_bytes)
{
    const tandem_view *it = td_view_in(layout, op, view);
    uint32_t of[4];
    if (!td_dtype_is_tiles(it->dtype))
        return TANDEM_OK;
    layout->shape(op, view, of);
    if (!is_gpu)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "%s.%s.dtype is %" PRIu32 " (weights in tiles), which GPUs alone read",
                       layout->name, layout->views[view].name, it->dtype);
    if (of[2] % TD_WEIGHT_ROWS)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%s.%s has %" PRIu32 " rows; weights in tiles have a multiple of %d", layout->name,
                       layout->views[view].name, of[2], TD_WEIGHT_ROWS);
    if (it->stride_row != (int64_t)of[3])
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "%s.%s.stride_row is %" PRId64 "; of weights in tiles it must be the channels, %" PRIu32, layout->name,
                       layout->views[view].name, it->stride_row, of[3]);
    return TANDEM_OK;
}

tandem_status td_check_size(const char *operation, const char *name, uint32_t value, char *why, size_t why_bytes)
{
    if (value == 0)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%s.%s is 0; it must be at least 1", operation, name);
    if (value > TD_MOST_DIMENSION)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%s.%s is %" PRIu32 "; it must be at most %d", operation, name, value,
                       TD_MOST_DIMENSION);
    return TANDEM_OK;
}

tandem_status td_check_sizes(const char *operation, const td_size *sizes, size_t count, char *why, size_t why_bytes)
{
    tandem_status status = TANDEM_OK;
    for (size_t i = 0; i < count && status == TANDEM_OK; i++)
        status = td_check_size(operation, sizes[i].name, sizes[i].value, why, why_bytes);
    return status;
}

tandem_status td_check_image(const char *operation, uint32_t batch, uint32_t height, uint32_t width, char *why, size_t why_bytes)
{
    const td_size sizes[] = {{"batch", batch}, {"height", height}, {"width", width}};
    tandem_status status = td_check_sizes(operation, sizes, sizeof sizes / sizeof *sizes, why, why_bytes);
    for (size_t i = 1; i < sizeof sizes / sizeof *sizes && status == TANDEM_OK; i++)
        if (sizes[i].value > TD_MOST_SIDE)
            status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%s.%s is %" PRIu32 "; it must be at most %u", operation, sizes[i].name,
                             sizes[i].value, TD_MOST_SIDE);
    return status;
}
