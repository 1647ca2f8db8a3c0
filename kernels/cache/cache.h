/* Caches of keys and values in pages of INT8 or INT4 and FP8 codes: rows that are appended to them,
 * and attention of a few rows on them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_CACHE_H
#define TANDEM_KERNELS_CACHE_H

#include "kernels/cache/params.h"
#include "kernels/operation.h"

extern const td_operation td_operation_cache_append, td_operation_cache_attention;

/* Whether a record appends; and the kernel that does what one of attention does behind that (td_params_cache_step), NULL: it is none. */
bool td_cache_is_append(const td_record *record);
const td_kernel *td_cache_step_kernel(const td_record *record);

/* How a cache lies; what is wrong names `operation`.member. */
typedef struct td_cache_sizes {
    uint32_t batch, kv_heads, rows, head_dim, entries, format, slots, pages;
    bool has_table;
} td_cache_sizes;
tandem_status td_cache_check(const td_operation_layout *layout, const tandem_operands *op,
                             const td_cache_sizes *sizes, uint32_t cache_view, uint32_t table_view,
                             char *why, size_t why_bytes);

/* Channels of the view: the bytes of a plane; UINT32_MAX, which no check passes, where it is none. */
uint32_t td_cache_channels(const td_cache_sizes *sizes);
/* Channels of a table: a slot, and pages. */
uint32_t td_cache_table_channels(const td_cache_sizes *sizes);

/* Rows of a tile: sums of P V, the largest score, sums of P. */
typedef struct td_cache_sums {
    float o[TD_CACHE_TILE][TD_CACHE_MOST_DIM], m[TD_CACHE_TILE], l[TD_CACHE_TILE];
} td_cache_sums;

/* What a block on the CPU works with: a page as floats, a tile's rows. */
typedef struct td_cache_local {
    _Alignas(64) float k[TD_CACHE_MOST_DIM][TD_CACHE_PAGE], v[TD_CACHE_PAGE][TD_CACHE_MOST_DIM];
    float v_scale[TD_CACHE_MOST_DIM];
    float q[TD_CACHE_TILE][TD_CACHE_MOST_DIM];
    td_cache_sums all, chunk;
} td_cache_local;

/* What a number of a table is: which slot or page; NULL: none. */
static inline unsigned char *td_cache_slot_of(unsigned char *plane, const int32_t *row,
                                              uint32_t slots, uint32_t format, uint32_t dim)
{
    const uint32_t slot = (uint32_t)row[0]; /* read once, as is all that others may write to meanwhile */

    return slot < slots ? plane + (uint64_t)slot * TD_CACHE_SLOT_BYTES(format, dim) : NULL;
}

static inline unsigned char *td_cache_page_of(unsigned char *plane, const int32_t *row,
                                              uint32_t number, uint32_t slots, uint32_t pages,
                                              uint32_t format, uint32_t dim)
{
    const uint32_t page = (uint32_t)row[1 + number];

    return page < pages ? plane + TD_CACHE_POOLED(slots, page, format, dim) : NULL;
}

void td_cpu_cache_append(const void *params, const td_block *at);
void td_cpu_cache_attend(const void *params, const td_block *at);

#endif
