/* Views in bytes, and operations as all floors see them: which views one has, of which shape, read or written.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Who moves, binds, checks or sends what an operation names goes by its layout; what it computes is the kernels' to know
 * (kernels/operation.h).
 */
#ifndef TANDEM_OPERATION_H
#define TANDEM_OPERATION_H

#include "interop/base.h"

enum {
    TD_MAX_VIEWS = 16,             /* of an operation */
    TD_MOST_DIMENSION = 1 << 30,   /* elements along one axis of a view */
};

/* How elements of a dtype lie in memory: so many together in so many bytes. One of which an element is no whole number of
 * bytes has whole blocks of them in a row: strides, offsets of rows and channels are multiples of a block. */
typedef struct td_dtype {
    uint32_t elements, bytes;
    uint32_t alignment; /* of a view's offset_bytes */
    uint32_t base_alignment; /* of its address, where that is more */
} td_dtype;
td_dtype td_dtype_of(uint32_t dtype); /* zeros for NONE and for what is no tandem_dtype */

/* Bytes of one element; 0 where a block has several, or there is no such dtype. */
uint32_t td_dtype_bytes(uint32_t dtype);

static inline bool td_dtype_is_codes(uint32_t dtype)
{
    return dtype == TANDEM_DTYPE_CODES_INT8 || dtype == TANDEM_DTYPE_CODES_E4M3;
}

/* Bytes from a view's offset to the end of its last element; the shape is [batch, heads, rows, channels]. 0 where one of them
 * is 0 or the dtype is none. UINT64_MAX when the sum overflows, a stride is negative, or not a multiple of a block. */
uint64_t td_view_extent_bytes(const tandem_view *view, uint32_t batch, uint32_t heads, uint32_t rows, uint32_t channels);
/* And from its mem's begin, at most 2^63 - 1: else false. */
bool td_view_end_bytes(const tandem_view *view, const uint32_t shape[4], uint64_t *end_bytes);

/* What an operation writes of a view. */
typedef enum td_writes {
    TD_WRITES_NONE = 0, /* it is read */
    TD_WRITES_ALL = 1,
    TD_WRITES_SOME = 2 /* rows: the others stay as they are */
} td_writes;

/* A view of an operation. */
typedef struct td_view_layout {
    const char *name;
    uint32_t offset;  /* of the tandem_view in the operation's struct */
    uint32_t written; /* td_writes */
    bool optional;    /* not there where its dtype is NONE */
} td_view_layout;

typedef struct td_operation_layout {
    const char *name;
    uint32_t number;  /* tandem_operation */
    uint32_t bytes;   /* of its struct, which begins with the first byte of tandem_operands */
    uint32_t version; /* of that struct: 1, and one more each time that it grew */
    const uint32_t *older; /* its bytes in versions 1 to version - 1 */
    uint32_t view_count;
    td_view_layout views[TD_MAX_VIEWS];
    /* [batch, heads, rows, channels] of a view. Nothing about the operation was checked before. */
    void (*shape)(const tandem_operands *op, uint32_t view, uint32_t shape[4]);
} td_operation_layout;

static inline tandem_view *td_view_of(const td_operation_layout *layout, tandem_operands *op, uint32_t view)
{
    return (tandem_view *)(void *)((char *)op + layout->views[view].offset);
}

static inline const tandem_view *td_view_in(const td_operation_layout *layout, const tandem_operands *op, uint32_t view)
{
    return (const tandem_view *)(const void *)((const char *)op + layout->views[view].offset);
}

/* How much of its struct those know who know this version of it, which may be newer than ours. */
static inline uint32_t td_operation_bytes(const td_operation_layout *layout, uint32_t version)
{
    return !version ? 0 : version < layout->version ? layout->older[version - 1] : layout->bytes;
}

/* Whether an operation has the view. */
static inline bool td_view_is_there(const td_operation_layout *layout, const tandem_operands *op, uint32_t view)
{
    return view < layout->view_count &&
           !(layout->views[view].optional && td_view_in(layout, op, view)->dtype == TANDEM_DTYPE_NONE);
}

#endif
