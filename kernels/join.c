/* Two records that become one. See join.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/join.h"

#include "kernels/cache/cache.h"
#include "kernels/join_params.h"
#include "kernels/linear/linear.h"
#include "kernels/norm/norm.h"
#include "kernels/program.h"
#include "kernels/scatter/params.h"
#include "kernels/scatter/scatter.h"

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

static bool is_within(const td_range *a, const td_range *b)
{
    return a->base == b->base && a->view == b->view && a->begin_bytes >= b->begin_bytes && a->end_bytes <= b->end_bytes;
}

static void copy_ranges(const pair *p, td_record *to, int access, const td_range *from, uint32_t count, const td_range *but)
{
    for (uint32_t i = 0; i < count; i++)
        if (!but || !is_within(&from[i], but))
            td_build_range(p->at, to, access, from[i]);
}

/* What either reads and writes, but what the second reads within `but`. */
static void copy_ranges_of_both(const pair *p, td_record *to, const td_range *but)
{
    copy_ranges(p, to, TD_READ, p->first.reads, p->first.read_count, NULL);
    copy_ranges(p, to, TD_READ, p->second.reads, p->second.read_count, but);
    copy_ranges(p, to, TD_WRITE, p->first.writes, p->first.write_count, NULL);
    copy_ranges(p, to, TD_WRITE, p->second.writes, p->second.write_count, NULL);
}

/* A record's launch, instead of both, of another kernel with other parameters. */
static td_record *launch(const pair *p, const td_record *as, const td_kernel *kernel, const void *params, size_t bytes)
{
    p->at->plan->record_count -= 2;
    td_record *record = td_build_record(p->at, kernel, as->grid[0], params, bytes);

    record->block[0] = as->block[0];
    record->shared_bytes = as->shared_bytes;
    record->flags = as->flags;
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
    td_record *record = launch(p, &p->second, kernel, &params, sizeof params);
    record->shared_bytes = TD_LINEAR_NORMED_SHARED_BYTES(params.p.rows, params.p.ins);
    copy_pointers(p, record, 0, &p->second, offsetof(td_params_linear, x));
    copy_pointer(p, record, offsetof(td_params_linear_normed, p.x), reloc_at(&p->first, offsetof(td_params_norm, x)));
    copy_pointer(p, record, offsetof(td_params_linear_normed, norm_weight), reloc_at(&p->first, offsetof(td_params_norm, weight)));
    copy_ranges(p, record, TD_READ, p->first.reads, p->first.read_count, NULL);
    copy_ranges(p, record, TD_READ, p->second.reads, p->second.read_count, &p->first.writes[0]);
    copy_ranges(p, record, TD_WRITE, p->second.writes, p->second.write_count, NULL);
    return true;
}

/* --- A norm, and some rows of a layer --- */

/* Whether the second reads what the first writes by its x alone. */
static bool reads_by_x_alone(const pair *p)
{
    for (uint32_t i = 0; i < p->second.reloc_count; i++) {
        const td_reloc *it = &p->second.relocs[i];
        const td_range there = {it->base, it->view, it->addend, it->addend + 1};
        if (it->offset != offsetof(td_params_linear, x) && it->offset != offsetof(td_params_linear, y) &&
            td_ranges_meet(&there, 1, p->first.writes, p->first.write_count))
            return false;
    }
    return true;
}

/* Whether its sums are finished with no more than a bias, an activation and a residual, as LinearMore has it. */
static bool finishes_plainly(const td_record *record)
{
    return !((const td_params_linear *)(const void *)record->params)->gate && !reloc_at(record, offsetof(td_params_linear, scale)) &&
           !reloc_at(record, offsetof(td_params_linear, rotation));
}

/* A block has the norm of its own rows, whatever others have: so none may write what another reads, and it pays where blocks are all at
 * work at once, and in command buffers: a record of its own costs twice as much there as on one of Hopper's streams, which have tensor
 * maps. What the norm makes is written all the same, for those behind. */
static bool join_norm_of_rows(const pair *p)
{
    const td_kernel *kernel = td_linear_few_normed_kernel(&p->second);

    if (!kernel || p->target->tensor_maps || !td_norm_is_short_f16(&p->first) || !finishes_plainly(&p->second))
        return false;
    const td_params_linear_few_normed params = {.p = *(const td_params_linear *)(const void *)p->second.params,
                                                .n = *(const td_params_norm *)(const void *)p->first.params};
    const td_params_norm *n = &params.n;
    if (!meets(reloc_at(&p->first, offsetof(td_params_norm, y)), reloc_at(&p->second, offsetof(td_params_linear, x))) ||
        n->channels != params.p.ins || n->channels > TD_LINEAR_FEW_NORMED_INS || n->channels % 32 || n->total != params.p.rows || n->total != n->rows ||
        n->y_at.stride_row != params.p.x_stride || p->second.grid[0] > td_multiprocessors(p->target) || !reads_by_x_alone(p) ||
        td_ranges_meet(p->first.writes, p->first.write_count, p->first.reads, p->first.read_count) ||
        td_ranges_meet(p->second.writes, p->second.write_count, p->first.reads, p->first.read_count))
        return false;
    td_record *record = launch(p, &p->second, kernel, &params, sizeof params);
    record->block[0] = TD_LINEAR_FEW_NORMED_THREADS;
    copy_pointers(p, record, offsetof(td_params_linear_few_normed, p), &p->second, offsetof(td_params_linear, x));
    copy_pointers(p, record, offsetof(td_params_linear_few_normed, n), &p->first, SIZE_MAX);
    copy_ranges_of_both(p, record, &p->first.writes[0]);
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
    td_record *record = launch(p, &p->second, kernel, &params, sizeof params);
    copy_pointers(p, record, offsetof(td_params_cache_step, attend), &p->second, SIZE_MAX);
    copy_pointers(p, record, offsetof(td_params_cache_step, append), &p->first, SIZE_MAX);
    copy_ranges_of_both(p, record, NULL);
    return true;
}

/* --- Few rows of a layer, and where some of their columns are scattered to --- */

/* How many columns into y the second's x begins; -1: it is not within y, heads side by side. */
static int64_t first_column(const pair *p, const td_params_linear *l, const td_params_scatter *s)
{
    const td_reloc *y = reloc_at(&p->first, offsetof(td_params_linear, y)), *x = reloc_at(&p->second, offsetof(td_params_scatter, x));

    if (!y || !x || x->base != y->base || x->view != y->view || x->addend < y->addend || s->x_at.stride_row != l->y_stride ||
        s->x_at.stride_head != s->shape.channels || (s->shape.batch > 1 && s->x_at.stride_batch != s->shape.rows * l->y_stride))
        return -1;
    const uint64_t column = (x->addend - y->addend) / 2;
    return column + s->shape.heads * (uint64_t)s->shape.channels <= l->outs ? (int64_t)column : -1;
}

static bool is_two_bytes(uint32_t dtype)
{
    return dtype == TANDEM_DTYPE_F16 || dtype == TANDEM_DTYPE_BF16;
}

/* Where bindings begin nobody knows yet. */
static bool leads_to_quads(const td_reloc *to, const td_strides *at)
{
    return to && (to->base != TD_BASE_VIEW || to->view < TD_PROGRAM_BINDINGS) && to->addend % 8 == 0 && at->stride_batch % 4 == 0 &&
           at->stride_head % 4 == 0 && at->stride_row % 4 == 0;
}

static bool join_scatter(const pair *p)
{
    if (!td_is_scatter(&p->second) || !td_linear_can_scatter(&p->first))
        return false;
    const td_params_scatter *s = (const td_params_scatter *)(const void *)p->second.params;
    td_params_linear_normed params; /* or what it begins with alone */
    td_params_linear *const l = &params.p;
    memcpy(&params, p->first.params, p->first.param_bytes);
    const int64_t column = first_column(p, l, s);
    if (column < 0 || column % 4 || s->shape.channels % 4 || (uint64_t)s->shape.batch * s->shape.rows != l->rows ||
        !is_two_bytes(s->x_dtype) || s->x_dtype != l->y_dtype || s->y_dtype != s->x_dtype ||
        !leads_to_quads(reloc_at(&p->second, offsetof(td_params_scatter, y)), &s->y_at) ||
        reloc_at(&p->second, offsetof(td_params_scatter, verdict)) || p->first.write_count != 1)
        return false;
    l->scatter = (td_linear_scatter){.at = s->y_at,
                                     .position_at = s->position_at,
                                     .first = (uint32_t)column,
                                     .columns = s->shape.heads * s->shape.channels,
                                     .dim = s->shape.channels,
                                     .rows = s->shape.rows,
                                     .entries = s->entries};
    td_record *record = launch(p, &p->first, p->first.kernel, &params, p->first.param_bytes);
    copy_pointers(p, record, 0, &p->first, SIZE_MAX);
    copy_pointer(p, record, offsetof(td_params_linear, scatter.to), reloc_at(&p->second, offsetof(td_params_scatter, y)));
    copy_pointer(p, record, offsetof(td_params_linear, scatter.position), reloc_at(&p->second, offsetof(td_params_scatter, position)));
    copy_ranges_of_both(p, record, &p->first.writes[0]);
    return true;
}

bool td_join_last(td_builder *at, const td_target *target, bool for_second)
{
    td_plan *plan = at->plan;
    const uint32_t count = plan->record_count;

    if (count < 2 || !at->is_gpu || at->keeps_scratch || target->apart)
        return false;
    const pair p = {at, target, plan->records[count - 2], plan->records[count - 1]};
    return join_scatter(&p) || join_norm_of_rows(&p) || (for_second && (join_norm(&p) || join_cache(&p)));
}
