/* Two records that become one. See join.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/join.h"

#include "kernels/cache/cache.h"
#include "kernels/linear/linear.h"
#include "kernels/norm/norm.h"

/* Two records, whose parameters and so on stay in the plan's memory. */
typedef struct pair {
    td_builder *at;
    const td_target *target;
    td_record first, second;
} pair;

/* The pointer at `offset` of a record's parameters; NULL: it has none. */
static const td_reloc *reloc_at(const td_record *record, size_t offset)
{
    for (uint32_t i = 0; i < record->reloc_count; i++)
        if (record->relocs[i].offset == offset)
            return &record->relocs[i];
    return NULL;
}

/* Whether both lead to the same place, or nowhere. */
static bool meets(const td_reloc *a, const td_reloc *b)
{
    if (!a || !b)
        return a == b;
    return a->kind == b->kind && a->base == b->base && a->view == b->view && a->addend == b->addend;
}

static void copy_pointer(const pair *p, td_record *to, size_t offset, const td_reloc *from)
{
    if (from)
        td_build_pointer(p->at, to, offset, from->base, from->view, from->addend);
}

/* All of a record's pointers into parameters that begin at `offset`, but those at `but`. */
static void copy_pointers(const pair *p, td_record *to, size_t offset, const td_record *from, size_t but)
{
    for (uint32_t i = 0; i < from->reloc_count; i++)
        if (from->relocs[i].offset != but && offset + from->relocs[i].offset != 0) /* that is there already */
            copy_pointer(p, to, offset + from->relocs[i].offset, &from->relocs[i]);
}

static bool is_same_range(const td_range *a, const td_range *b)
{
    return a->base == b->base && a->view == b->view && a->begin_bytes == b->begin_bytes && a->end_bytes == b->end_bytes;
}

static void copy_ranges(const pair *p, td_record *to, int access, const td_range *from, uint32_t count, const td_range *but)
{
    for (uint32_t i = 0; i < count; i++)
        if (!but || !is_same_range(&from[i], but))
            td_build_range(p->at, to, access, from[i]);
}

/* The second's launch of another kernel, with other parameters. */
static td_record *launch(const pair *p, const td_kernel *kernel, const void *params, size_t bytes)
{
    td_record *record = td_build_record(p->at, kernel, p->second.grid[0], params, bytes);

    record->block[0] = p->second.block[0];
    record->shared_bytes = p->second.shared_bytes;
    record->flags = p->second.flags;
    return record;
}

/* --- A norm, and few rows of a layer --- */

enum { MOST_SHARED_BYTES = 40960, LONG_ROWS = 2 /* of more than a warp's channels, which a block has one after the other */ };

/* Whether it takes less than a kernel of its own: each block has all rows, so there is to be one round of few blocks. */
static bool pays(const pair *p, const td_params_norm *n, uint32_t rows)
{
    return rows <= (n->lanes > 32 ? LONG_ROWS : TD_LINEAR_NORMED_ROWS) && p->second.grid[0] <= 2 * (uint64_t)td_multiprocessors(p->target) &&
           TD_LINEAR_NORMED_SHARED_BYTES(rows, n->channels) <= MOST_SHARED_BYTES;
}

static bool join_norm(const pair *p)
{
    const td_kernel *kernel = td_linear_normed_kernel(&p->second);

    if (!kernel || !td_norm_is_line_f16(&p->first))
        return false;
    const td_params_norm *n = (const td_params_norm *)(const void *)p->first.params;
    td_params_linear_normed params = {.p = *(const td_params_linear *)(const void *)p->second.params,
                                      .epsilon = n->epsilon, .lanes = n->lanes};
    const td_reloc *y = reloc_at(&p->first, offsetof(td_params_norm, y));
    if (!meets(y, reloc_at(&p->second, offsetof(td_params_linear, x))) || n->channels != params.p.ins || n->total != params.p.rows ||
        n->total != n->rows || n->y_at.stride_row != params.p.x_stride || !n->weight_is_constant || !params.p.w_is_constant ||
        p->first.write_count != 1 || !pays(p, n, params.p.rows))
        return false;
    params.p.x_stride = n->x_at.stride_row;
    p->at->plan->record_count -= 2;
    td_record *record = launch(p, kernel, &params, sizeof params);
    record->shared_bytes = TD_LINEAR_NORMED_SHARED_BYTES(params.p.rows, params.p.ins);
    copy_pointers(p, record, 0, &p->second, offsetof(td_params_linear, x));
    copy_pointer(p, record, offsetof(td_params_linear_normed, p.x), reloc_at(&p->first, offsetof(td_params_norm, x)));
    copy_pointer(p, record, offsetof(td_params_linear_normed, norm_weight), reloc_at(&p->first, offsetof(td_params_norm, weight)));
    copy_ranges(p, record, TD_READ, p->first.reads, p->first.read_count, NULL);
    copy_ranges(p, record, TD_READ, p->second.reads, p->second.read_count, &p->first.writes[0]);
    copy_ranges(p, record, TD_WRITE, p->second.writes, p->second.write_count, NULL);
    return true;
}

/* --- A row that is appended to a cache, and attention on that --- */

static bool join_cache(const pair *p)
{
    const td_kernel *kernel = td_cache_step_kernel(&p->second);

    if (!kernel || !td_cache_is_append(&p->first))
        return false;
    const td_params_cache_step params = {.attend = *(const td_params_cache_attend *)(const void *)p->second.params,
                                         .append = *(const td_params_cache_append *)(const void *)p->first.params};
    const td_params_cache_attend *of = &params.attend;
    const td_params_cache_append *row = &params.append;
#define MEETS(member) \
    meets(reloc_at(&p->first, offsetof(td_params_cache_append, member)), reloc_at(&p->second, offsetof(td_params_cache_attend, member)))
#define SAME(member) (memcmp(&of->member, &row->member, sizeof of->member) == 0)
    if (!MEETS(cache) || !MEETS(table) || !MEETS(position) || !SAME(position_at) || !SAME(cache_at) || !SAME(rows) || !SAME(dim) ||
        !SAME(entries) || !SAME(format) || !SAME(table_stride) || !SAME(slots) || !SAME(pages) || of->kv_heads != row->heads ||
        of->rows != 1 || p->first.grid[0] * of->spans != p->second.grid[0] ||
        reloc_at(&p->first, offsetof(td_params_cache_append, verdict)))
        return false;
#undef MEETS
#undef SAME
    p->at->plan->record_count -= 2;
    td_record *record = launch(p, kernel, &params, sizeof params);
    copy_pointers(p, record, offsetof(td_params_cache_step, attend), &p->second, SIZE_MAX);
    copy_pointers(p, record, offsetof(td_params_cache_step, append), &p->first, SIZE_MAX);
    copy_ranges(p, record, TD_READ, p->first.reads, p->first.read_count, NULL);
    copy_ranges(p, record, TD_READ, p->second.reads, p->second.read_count, NULL);
    copy_ranges(p, record, TD_WRITE, p->first.writes, p->first.write_count, NULL);
    copy_ranges(p, record, TD_WRITE, p->second.writes, p->second.write_count, NULL);
    return true;
}

bool td_join_last(td_builder *at, const td_target *target)
{
    td_plan *plan = at->plan;
    const uint32_t count = plan->record_count;

    if (count < 2 || !at->is_gpu || at->keeps_scratch || target->apart)
        return false;
    const pair p = {at, target, plan->records[count - 2], plan->records[count - 1]};
    return join_norm(&p) || join_cache(&p);
}
