/* What every operation's check looks at in its views.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_CHECK_H
#define TANDEM_KERNELS_CHECK_H

#include "interop/operation.h"

/* Dtypes that a view may have, or'ed. */
#define TD_DTYPES(dtype) (1u << (dtype))
#define TD_DTYPES_FLOAT (TD_DTYPES(TANDEM_DTYPE_F16) | TD_DTYPES(TANDEM_DTYPE_BF16) | TD_DTYPES(TANDEM_DTYPE_F32))
#define TD_DTYPES_BLOCKS                                                                           \
    (TD_DTYPES(TANDEM_DTYPE_Q8_0) | TD_DTYPES(TANDEM_DTYPE_Q4_0) | TD_DTYPES(TANDEM_DTYPE_Q4_1) |  \
     TD_DTYPES(TANDEM_DTYPE_Q4_K) | TD_DTYPES(TANDEM_DTYPE_Q6_K) | TD_DTYPES(TANDEM_DTYPE_Q5_K))
#define TD_DTYPES_TILES                                                                            \
    (TD_DTYPES(TANDEM_DTYPE_Q8_0_TILES) | TD_DTYPES(TANDEM_DTYPE_Q4_0_TILES) |                       \
     TD_DTYPES(TANDEM_DTYPE_Q4_1_TILES) | TD_DTYPES(TANDEM_DTYPE_Q4_K_TILES) |                       \
     TD_DTYPES(TANDEM_DTYPE_Q6_K_TILES) | TD_DTYPES(TANDEM_DTYPE_Q5_K_TILES))
#define TD_DTYPES_CODES (TD_DTYPES(TANDEM_DTYPE_CODES_INT8) | TD_DTYPES(TANDEM_DTYPE_CODES_E4M3))

/* Everything about a view but its mem: a dtype among `dtypes`, words that must be 0, offset and strides; that it ends within 2^63
 * bytes; and of one that is written that it does not overlap itself. ARG, with `why` naming the member and its value. A view that
 * is optional and not there passes. The operation's sizes were checked before. */
tandem_status td_check_view(const td_operation_layout *layout, const tandem_operands *op, uint32_t view, uint32_t dtypes,
                            char *why, size_t why_bytes);

/* Of weights in tiles, besides: whole tiles, one behind the other; and on a CPU, which takes none, UNSUPPORTED. */
tandem_status td_check_tiles(const td_operation_layout *layout, const tandem_operands *op, uint32_t view, bool is_gpu, char *why,
                             size_t why_bytes);

/* Whether a view, of elements of two bytes or more, may be read 16 bytes at a time. */
static inline bool td_is_wide(const tandem_view *view)
{
    return view->offset_bytes % 16 == 0 && view->stride_batch % 8 == 0 && view->stride_head % 8 == 0 &&
           view->stride_row % 8 == 0;
}

/* How a view of codes lies, which td_check_view() has passed, as tandem_codes_bytes() says it: ARG. */
tandem_status td_check_codes(const td_operation_layout *layout, const tandem_operands *op, uint32_t view, char *why,
                             size_t why_bytes);

/* A size is 1 to TD_MOST_DIMENSION: ARG, naming `operation.name`. */
tandem_status td_check_size(const char *operation, const char *name, uint32_t value, char *why, size_t why_bytes);

/* The same of several; the first that is wrong. */
typedef struct td_size {
    const char *name;
    uint32_t value;
} td_size;
tandem_status td_check_sizes(const char *operation, const td_size *sizes, size_t count, char *why, size_t why_bytes);

/* The same of images: their sides are at most TD_MOST_SIDE, so places in them and beside them are whole numbers of 32 bits. */
#define TD_MOST_SIDE 65536u
tandem_status td_check_image(const char *operation, uint32_t batch, uint32_t height, uint32_t width, char *why, size_t why_bytes);

#endif
