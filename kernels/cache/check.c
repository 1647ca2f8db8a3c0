/* What both operations on caches check alike. See cache.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "kernels/cache/cache.h"
#include "kernels/cache/params.h"
#include "kernels/check.h"

enum { ALIGNMENT = 16 };

static tandem_status check_numbers(const char *name, const td_cache_sizes *s, char *why,
                                   size_t why_bytes)
{
    const td_size sizes[] = {{"batch", s->batch},
                             {"kv_heads", s->kv_heads},
                             {"rows", s->rows},
                             {"entries", s->entries}};
    const tandem_status status =
        td_check_sizes(name, sizes, sizeof sizes / sizeof *sizes, why, why_bytes);

    if (status != TANDEM_OK)
        return status;
    if (s->rows > TD_CACHE_ROWS)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "%s.rows is %" PRIu32 "; it must be at most %u", name, s->rows,
                       TD_CACHE_ROWS);
    if (s->format > TANDEM_CACHE_K4V8 || (s->format == TANDEM_CACHE_F16 && !s->has_table))
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "%s.format is %" PRIu32 "; it must be 1 (k8v8) or 2 (k4v8), or with a table "
                       "0 (f16)",
                       name, s->format);
    if (s->head_dim != 64 && s->head_dim != 128)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "%s.head_dim is %" PRIu32 "; it must be 64 or 128", name, s->head_dim);
    return TANDEM_OK;
}

/* A pool has no more slots and pages than its plane has bytes for. */
static tandem_status check_pool(const char *name, const td_cache_sizes *s, char *why,
                                size_t why_bytes)
{
    const td_size sizes[] = {{"slots", s->slots}, {"pages", s->pages}};

    if (!s->has_table)
        return !s->slots && !s->pages
                   ? TANDEM_OK
                   : td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                             "%s.slots, pages are %" PRIu32 ", %" PRIu32
                             "; without a table both must be 0",
                             name, s->slots, s->pages);
    const tandem_status status = td_check_sizes(name, sizes, 2, why, why_bytes);
    if (status == TANDEM_OK && td_cache_channels(s) > TD_MOST_DIMENSION)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "%s.slots, pages are %" PRIu32 ", %" PRIu32
                       "; a pool has at most %d bytes for each head",
                       name, s->slots, s->pages, TD_MOST_DIMENSION);
    return status;
}

/* Kernels read 16 bytes at a time. Strides of one plane are nobody's. */
static tandem_status check_alignment(const char *name, const tandem_view *cache, char *why,
                                     size_t why_bytes)
{
    const struct {
        const char *name;
        uint64_t bytes;
    } places[] = {{"offset_bytes", cache->offset_bytes},
                  {"stride_batch", (uint64_t)cache->stride_batch},
                  {"stride_head", (uint64_t)cache->stride_head}};

    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (places[i].bytes % ALIGNMENT)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                           "%s.cache.%s is %" PRIu64 "; it must be a multiple of %d", name,
                           places[i].name, places[i].bytes, ALIGNMENT);
    return TANDEM_OK;
}

tandem_status td_cache_check(const td_operation_layout *layout, const tandem_operands *op,
                             const td_cache_sizes *sizes, uint32_t cache_view, uint32_t table_view,
                             char *why, size_t why_bytes)
{
    tandem_status status = check_numbers(layout->name, sizes, why, why_bytes);

    if (status == TANDEM_OK)
        status = check_pool(layout->name, sizes, why, why_bytes);
    if (status == TANDEM_OK)
        status = td_check_view(layout, op, table_view, TD_DTYPES(TANDEM_DTYPE_I32), why, why_bytes);
    if (status == TANDEM_OK)
        status = td_check_view(layout, op, cache_view, TD_DTYPES(TANDEM_DTYPE_U8), why, why_bytes);
    return status == TANDEM_OK ? check_alignment(layout->name, td_view_in(layout, op, cache_view),
                                                 why, why_bytes)
                               : status;
}

uint32_t td_cache_channels(const td_cache_sizes *s)
{
    const uint64_t bytes =
        s->slots ? tandem_cache_pool_bytes(s->format, s->slots, s->pages, s->head_dim)
                  : tandem_cache_bytes(s->format, s->entries, s->head_dim);

    return bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)bytes;
}

uint32_t td_cache_table_channels(const td_cache_sizes *s)
{
    return 1 + s->entries / TD_CACHE_PAGE + (s->entries % TD_CACHE_PAGE != 0);
}
