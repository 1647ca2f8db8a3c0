/* Rows that are appended to caches, as an operation: tandem_cache_append in types.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "kernels/cache/cache.h"
#include "kernels/cache/params.h"
#include "kernels/check.h"
#include "kernels/commit.h"
#include "kernels/cut.h"

enum { K, V, POSITION, CACHE, TABLE, VIEWS };
#define AT(member) offsetof(td_params_cache_append, member)

static td_cache_sizes sizes_of(const tandem_operands *op)
{
    const tandem_cache_append *a = &op->cache_append;

    return (td_cache_sizes){a->batch,   a->kv_heads, a->rows,  a->head_dim,
                            a->entries, a->format,   a->slots, a->pages,
                            a->table.dtype != TANDEM_DTYPE_NONE};
}

static void shape(const tandem_operands *op, uint32_t view, uint32_t shape[4])
{
    const tandem_cache_append *a = &op->cache_append;
    const td_cache_sizes sizes = sizes_of(op);

    shape[0] = view == CACHE && a->slots ? 1 : a->batch; /* in graphs the table is not there yet */
    shape[1] = view == POSITION || view == TABLE ? 1 : a->kv_heads;
    shape[2] = view == CACHE || view == TABLE ? 1 : a->rows;
    shape[3] = view == POSITION ? 1
               : view == CACHE  ? td_cache_channels(&sizes)
               : view == TABLE  ? td_cache_table_channels(&sizes)
                                : a->head_dim;
}

static tandem_status check(const tandem_operands *op, char *why, size_t why_bytes)
{
    const td_operation_layout *layout = &td_operation_cache_append.layout;
    const tandem_cache_append *a = &op->cache_append;
    const td_cache_sizes sizes = sizes_of(op);
    tandem_status status = td_cache_check(layout, op, &sizes, CACHE, TABLE, why, why_bytes);

    if (status == TANDEM_OK && (a->reserved[0] || a->reserved[1]))
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                         "cache_append.reserved is %" PRIu32 ", %" PRIu32 "; both must be 0",
                         a->reserved[0], a->reserved[1]);
    for (uint32_t i = 0; i < CACHE && status == TANDEM_OK; i++)
        status = td_check_view(layout, op, i,
                               i == POSITION ? TD_DTYPES(TANDEM_DTYPE_I32) : TD_DTYPES_FLOAT, why,
                               why_bytes);
    return status;
}

static const td_kernel kernel = {.name = "cache_append", .entry = "cache_append", .cpu = td_cpu_cache_append};

bool td_cache_is_append(const td_record *record)
{
    return record->kernel == &kernel;
}

/* As for scatter, what is claimed where the plan commits is what it writes at once. */
static tandem_status plan_append(const tandem_operands *op, const td_target *target, td_plan *plan,
                                 char *why, size_t why_bytes)
{
    const tandem_cache_append *a = &op->cache_append;
    td_builder at;
    const tandem_status status = td_build_operation(&at, plan, target, &td_operation_cache_append.layout, op, why, why_bytes);

    if (status != TANDEM_OK)
        return status;
    const td_params_cache_append params = {.k_at = td_strides_of(&a->k),
                                           .v_at = td_strides_of(&a->v),
                                           .position_at = td_strides_of(&a->position),
                                           .cache_at = td_strides_of(&a->cache),
                                           .heads = a->kv_heads,
                                           .rows = a->rows,
                                           .dim = a->head_dim,
                                           .entries = a->entries,
                                           .k_dtype = (uint16_t)a->k.dtype,
                                           .v_dtype = (uint16_t)a->v.dtype,
                                           .format = a->format,
                                           .table_stride = a->table.stride_batch,
                                           .slots = a->slots,
                                           .pages = a->pages};
    const td_place verdict = td_build_take(&at, target->commit, sizeof(uint32_t));
    if (target->commit)
        td_build_claim(&at, verdict, (td_place){TD_ABSENT, 0});
    td_record *record = td_build_record(&at, &kernel, (uint64_t)a->batch * a->kv_heads, &params,
                                        sizeof params);
    record->block[0] = at.is_gpu ? TD_CACHE_APPEND_THREADS : 1;
    record->flags = at.overlaps ? TD_RECORD_PDL : 0;
    td_build_scratch(&at, record, TD_READ, AT(verdict), verdict);
    td_build_view(&at, record, TD_READ, AT(k), K);
    td_build_view(&at, record, TD_READ, AT(v), V);
    td_build_view(&at, record, TD_READ, AT(position), POSITION);
    td_build_view(&at, record, TD_READ, AT(table), TABLE);
    td_build_view(&at, record, TD_WRITE, AT(cache), CACHE);
    td_build_range(&at, record, TD_READ,
                   (td_range){TD_BASE_VIEW, CACHE, 0, at.extent_bytes[CACHE]});
    return td_build_end_sized(&at, "cache_append.batch, kv_heads, rows",
                              (const uint32_t[3]){a->batch, a->kv_heads, a->rows}, why, why_bytes);
}

static td_cost cost(const tandem_operands *op, uint32_t position)
{
    const tandem_cache_append *a = &op->cache_append;
    const double rows = (double)a->batch * a->kv_heads * (a->rows + TD_CACHE_PAGE);

    (void)position;
    return (td_cost){0, 20e-6 * rows * a->head_dim};
}

static uint32_t split(const tandem_operands *op, uint32_t count)
{
    const uint32_t sizes[TD_CUT_AXES] = {op->cache_append.batch, op->cache_append.kv_heads, 1};

    return td_cut(sizes, count);
}

static uint32_t part(const tandem_operands *op, uint32_t count, td_part_at *at,
                     tandem_operands *part)
{
    uint32_t *const sizes[TD_CUT_AXES] = {&part->cache_append.batch, &part->cache_append.kv_heads,
                                          NULL};

    *part = *op;
    td_cut_part(&td_operation_cache_append.layout, 1u << K | 1u << V | 1u << POSITION | 1u << CACHE | 1u << TABLE,
                sizes, count, at, part);
    return 0;
}

#define VIEW(member, writes)                                                                       \
    {                                                                                              \
#member, offsetof(tandem_cache_append, member), writes, false                              \
    }
#define NUMBER(member)                                                                             \
    {                                                                                              \
#member, offsetof(tandem_cache_append, member), false                                      \
    }
const td_operation td_operation_cache_append = {
    .layout = {.name = "cache_append",
               .number = TANDEM_OPERATION_CACHE_APPEND,
               .bytes = sizeof(tandem_cache_append),
               .version = 2,
               .older = (const uint32_t[]){offsetof(tandem_cache_append, table)},
               .view_count = VIEWS,
               .views = {[K] = VIEW(k, TD_WRITES_NONE),
                         [V] = VIEW(v, TD_WRITES_NONE),
                         [POSITION] = VIEW(position, TD_WRITES_NONE),
                         [CACHE] = VIEW(cache, TD_WRITES_SOME),
                         [TABLE] = {"table", offsetof(tandem_cache_append, table), TD_WRITES_NONE, true}},
               .shape = shape},
    .fields = {NUMBER(batch), NUMBER(kv_heads), NUMBER(rows), NUMBER(head_dim), NUMBER(entries),
               NUMBER(format), NUMBER(slots), NUMBER(pages)},
    .precision_at = TD_NO_PRECISION,
    .labels = {"tandem cache append"},
    .check = check,
    .plan = plan_append,
    .cost = cost,
    .split = split,
    .part = part,
};
