/* Attention of a few rows on caches, as an operation: tandem_cache_attention in types.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>

#include "kernels/cache/cache.h"
#include "kernels/cache/params.h"
#include "kernels/check.h"
#include "kernels/commit.h"
#include "kernels/cut.h"

enum { Q, POSITION, CACHE, O, TABLE, VIEWS };
#define AT(member) offsetof(td_params_cache_attend, member)

static td_cache_sizes sizes_of(const tandem_operands *op)
{
    const tandem_cache_attention *a = &op->cache_attention;

    return (td_cache_sizes){a->batch,   a->kv_heads, a->rows,  a->head_dim,
                            a->entries, a->format,   a->slots, a->pages,
                            a->table.dtype != TANDEM_DTYPE_NONE};
}

static void shape(const tandem_operands *op, uint32_t view, uint32_t shape[4])
{
    const tandem_cache_attention *a = &op->cache_attention;
    const td_cache_sizes sizes = sizes_of(op);

    shape[0] = view == CACHE && a->slots ? 1 : a->batch; /* in graphs the table is not there yet */
    shape[1] = view == POSITION || view == TABLE ? 1 : view == CACHE ? a->kv_heads : a->heads;
    shape[2] = view == CACHE || view == TABLE ? 1 : a->rows;
    shape[3] = view == POSITION ? 1
               : view == CACHE  ? td_cache_channels(&sizes)
               : view == TABLE  ? td_cache_table_channels(&sizes)
                                : a->head_dim;
}

static tandem_status check_heads(const tandem_cache_attention *a, char *why, size_t why_bytes)
{
    if (a->heads < 1 || a->heads % a->kv_heads || a->heads / a->kv_heads > TD_CACHE_GROUP)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "cache_attention.heads is %" PRIu32
                       "; it must be a multiple of kv_heads, which is %" PRIu32
                       ", and at most %u times as many",
                       a->heads, a->kv_heads, TD_CACHE_GROUP);
    if (!isfinite(a->scale))
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "cache_attention.scale is %f; it must be finite", (double)a->scale);
    return TANDEM_OK;
}

static tandem_status check(const tandem_operands *op, char *why, size_t why_bytes)
{
    static const uint32_t dtypes[VIEWS] = {[Q] = TD_DTYPES(TANDEM_DTYPE_F16),
                                           [POSITION] = TD_DTYPES(TANDEM_DTYPE_I32),
                                           [CACHE] = TD_DTYPES(TANDEM_DTYPE_U8),
                                           [O] = TD_DTYPES_FLOAT,
                                            [TABLE] = TD_DTYPES(TANDEM_DTYPE_I32)};
    const td_operation_layout *layout = &td_operation_cache_attention.layout;
    const td_cache_sizes sizes = sizes_of(op);
    tandem_status status = td_cache_check(layout, op, &sizes, CACHE, TABLE, why, why_bytes);

    if (status == TANDEM_OK)
        status = check_heads(&op->cache_attention, why, why_bytes);
    for (uint32_t i = 0; i < VIEWS && status == TANDEM_OK; i++)
        status = td_check_view(layout, op, i, dtypes[i], why, why_bytes);
    if (status == TANDEM_OK && !td_is_wide(&op->cache_attention.q))
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                         "cache_attention.q has offset_bytes %" PRIu64
                         ", and strides of %" PRId64 ", %" PRId64 ", %" PRId64
                         "; the first must be a multiple of 16, the others of 8",
                         op->cache_attention.q.offset_bytes, op->cache_attention.q.stride_batch,
                         op->cache_attention.q.stride_head, op->cache_attention.q.stride_row);
    return status;
}

enum { CPU_TILES = 32, MOST_PARTS_BYTES = 64 << 20 };

/* Whether each chunk of a tile has a block of its own. Where tiles alone keep a device busy, or
 * what chunks leave would be much, one block has all of a tile's; either way has the same bits. */
static bool is_cut(const td_target *target, uint64_t tiles, uint64_t parts_bytes)
{
    return tiles < (target->sm ? 2ull * td_multiprocessors(target) : CPU_TILES) &&
           parts_bytes <= MOST_PARTS_BYTES;
}

#define KERNEL(k, d)                                                                               \
    {                                                                                              \
        .name = "cache_attend_" #k, .entry = "cache_attend_" #k "_d" #d,                           \
        .cpu = td_cpu_cache_attend, .cpu_local_bytes = sizeof(td_cache_local)                       \
    }
#define STEP(k, d) {.name = "cache_step_" #k, .entry = "cache_step_" #k "_d" #d}
enum { FORMATS = 3, DIMS = 2 };
static const td_kernel kernels[FORMATS][DIMS] = {
    [TANDEM_CACHE_F16] = {KERNEL(f16, 64), KERNEL(f16, 128)},
    [TANDEM_CACHE_K8V8] = {KERNEL(k8, 64), KERNEL(k8, 128)},
    [TANDEM_CACHE_K4V8] = {KERNEL(k4, 64), KERNEL(k4, 128)}};
static const td_kernel steps[FORMATS][DIMS] = {[TANDEM_CACHE_F16] = {STEP(f16, 64), STEP(f16, 128)},
                                               [TANDEM_CACHE_K8V8] = {STEP(k8, 64), STEP(k8, 128)},
                                               [TANDEM_CACHE_K4V8] = {STEP(k4, 64), STEP(k4, 128)}};

const td_kernel *td_cache_step_kernel(const td_record *record)
{
    for (int i = 0; i < FORMATS * DIMS; i++)
        if (record->kernel == &kernels[i / DIMS][i % DIMS])
            return &steps[i / DIMS][i % DIMS];
    return NULL;
}

static tandem_status plan_attention(const tandem_operands *op, const td_target *target,
                                    td_plan *plan, char *why, size_t why_bytes)
{
    const td_operation_layout *layout = &td_operation_cache_attention.layout;
    const tandem_cache_attention *a = &op->cache_attention;
    const uint32_t group = a->heads / a->kv_heads,
                   tiles = (a->rows * group + TD_CACHE_TILE - 1) / TD_CACHE_TILE;
    const uint32_t chunk_keys = TD_CACHE_CHUNK * TD_CACHE_PAGE,
                   chunks = (a->entries + chunk_keys - 1) / chunk_keys;
    const uint64_t grid = (uint64_t)a->batch * a->kv_heads * tiles;
    const uint64_t parts_bytes = grid * chunks * TD_CACHE_TILE * TD_CACHE_PART(a->head_dim) * sizeof(float);
    const bool parts = chunks > 1 && is_cut(target, grid, parts_bytes);
    td_builder at;
    const tandem_status status = td_build_operation(&at, plan, target, layout, op, why, why_bytes);

    if (status != TANDEM_OK)
        return status;
    const td_output o = td_build_output(&at, target, layout, op, O);
    const td_params_cache_attend params = {
        .q_at = td_strides_of(&a->q),
        .position_at = td_strides_of(&a->position),
        .cache_at = td_strides_of(&a->cache),
        .o_at = o.at,
        .kv_heads = a->kv_heads,
        .group = group,
        .rows = a->rows,
        .dim = a->head_dim,
        .entries = a->entries,
        .spans = parts ? chunks : 1,
        .o_dtype = a->o.dtype,
        .format = a->format,
        .table_stride = a->table.stride_batch,
        .slots = a->slots,
        .pages = a->pages,
        .scale = (a->scale != 0 ? a->scale : 1 / sqrtf((float)a->head_dim)) * TD_LOG2_E};
    const td_place place = td_build_take(&at, parts, parts_bytes);
    td_record *record =
        td_build_record(&at, &kernels[a->format][a->head_dim == 128], grid * params.spans, &params, sizeof params);
    record->block[0] = at.is_gpu ? TD_BLOCK_THREADS : 1;
    record->shared_bytes = at.is_gpu ? TD_CACHE_SHARED_BYTES(a->head_dim) : 0;
    record->flags = at.overlaps ? TD_RECORD_PDL : 0;
    td_build_view(&at, record, TD_READ, AT(q), Q);
    td_build_view(&at, record, TD_READ, AT(position), POSITION);
    td_build_view(&at, record, TD_READ, AT(table), TABLE);
    td_build_view(&at, record, TD_WRITE, AT(cache), CACHE);
    td_build_range(&at, record, TD_READ,
                   (td_range){TD_BASE_VIEW, CACHE, 0, at.extent_bytes[CACHE]});
    td_build_scratch(&at, record, TD_WRITE, AT(parts), place);
    td_build_write(&at, record, AT(o), &o);
    td_build_outputs(&at, target, layout, op, &o, 1);
    return td_build_end_sized(&at, "cache_attention.batch, heads, rows",
                              (const uint32_t[3]){a->batch, a->heads, a->rows}, why, why_bytes);
}

static td_cost cost(const tandem_operands *op, uint32_t position)
{
    const tandem_cache_attention *a = &op->cache_attention;
    const double products = (double)a->batch * a->heads * a->rows * a->entries * a->head_dim;

    (void)position;
    return (td_cost){4e-6 * products, 6e-6 * products};
}

/* Heads of queries stay with theirs of keys. */
static uint32_t split(const tandem_operands *op, uint32_t count)
{
    const uint32_t sizes[TD_CUT_AXES] = {op->cache_attention.batch, 1, 1};

    return td_cut(sizes, count);
}

static uint32_t part(const tandem_operands *op, uint32_t count, td_part_at *at,
                     tandem_operands *part)
{
    uint32_t *const sizes[TD_CUT_AXES] = {&part->cache_attention.batch, NULL, NULL};

    *part = *op;
    td_cut_part(&td_operation_cache_attention.layout,
                1u << Q | 1u << POSITION | 1u << CACHE | 1u << O | 1u << TABLE,
                sizes, count, at, part);
    return 0;
}

#define VIEW(member, writes)                                                                       \
    {                                                                                              \
#member, offsetof(tandem_cache_attention, member), writes, false                           \
    }
#define NUMBER(member)                                                                             \
    {                                                                                              \
#member, offsetof(tandem_cache_attention, member), false                                   \
    }
const td_operation td_operation_cache_attention = {
    .layout = {.name = "cache_attention",
               .number = TANDEM_OPERATION_CACHE_ATTENTION,
               .bytes = sizeof(tandem_cache_attention),
               .version = 2,
               .older = (const uint32_t[]){offsetof(tandem_cache_attention, table)},
               .view_count = VIEWS,
               .views = {[Q] = VIEW(q, TD_WRITES_NONE),
                         [POSITION] = VIEW(position, TD_WRITES_NONE),
                         [CACHE] = VIEW(cache, TD_WRITES_SOME),
                         [O] = VIEW(o, TD_WRITES_ALL),
                         [TABLE] = {"table", offsetof(tandem_cache_attention, table), TD_WRITES_NONE, true}},
               .shape = shape},
    .fields = {NUMBER(batch), NUMBER(heads), NUMBER(kv_heads), NUMBER(rows), NUMBER(head_dim),
               NUMBER(entries), NUMBER(format), NUMBER(slots), NUMBER(pages),
               {"scale", offsetof(tandem_cache_attention, scale), true}},
    .precision_at = TD_NO_PRECISION,
    .labels = {"tandem cache attention"},
    .check = check,
    .plan = plan_attention,
    .cost = cost,
    .split = split,
    .part = part,
};
