/* Plans in the making. See builder.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/builder.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernels/params.h"

/* A place and when it is used: from the first record of it to the last, as how many barriers for data are before each. */
typedef struct td_lifetime {
    uint64_t begin, bytes; /* while the plan is built */
    uint64_t offset;       /* in the end */
    uint32_t first, last;  /* UINT32_MAX: no record has it */
} td_lifetime;

td_builder td_build_begin(td_plan *plan, const td_target *target)
{
    td_plan_reset(plan);
    return (td_builder){.plan = plan, .is_gpu = target->sm != 0};
}

static void note_place(td_builder *at, td_place it)
{
    td_lifetime *places =
        td_arena_grow(&at->plan->memory, at->places, at->place_count, sizeof *places, _Alignof(td_lifetime));
    if (!places) {
        at->no_memory = true;
        return;
    }
    at->places = places;
    at->places[at->place_count++] = (td_lifetime){.begin = it.offset, .bytes = it.bytes};
}

td_place td_build_take(td_builder *at, bool wanted, unsigned __int128 bytes)
{
    if (!wanted)
        return (td_place){TD_ABSENT, 0};
    const td_place it = {at->scratch_bytes, (uint64_t)bytes};
    const unsigned __int128 end =
        at->scratch_bytes + (bytes + TD_SCRATCH_ALIGN - 1) / TD_SCRATCH_ALIGN * TD_SCRATCH_ALIGN;
    if (end > (unsigned __int128)INT64_MAX) {
        at->overflow = true;
        return it;
    }
    at->scratch_bytes = (uint64_t)end;
    if (bytes)
        note_place(at, it);
    return it;
}

static void note_registers(td_builder *at, td_record *record)
{
    const td_cubin_entry *entry = td_cubin_find(at->cubin, record->kernel->entry);
    if (!entry) {
        at->missing = record->kernel->entry;
        return;
    }
    record->registers = entry->registers;
    record->local_bytes = entry->local_bytes;
}

td_record *td_build_record(td_builder *at, const td_kernel *kernel, unsigned __int128 grid, const void *params,
                           size_t param_bytes)
{
    td_record *record = NULL;
    if (param_bytes > TD_PARAM_BYTES)
        at->crowded = kernel->name;
    else
        record = td_plan_add_record(at->plan, param_bytes);
    if (!record) {
        at->no_memory = at->no_memory || !at->crowded;
        at->spare = (td_record){.kernel = kernel};
        return &at->spare;
    }
    if (grid > TD_MOST_BLOCKS && grid > at->most_blocks)
        at->most_blocks = grid > UINT64_MAX ? UINT64_MAX : (uint64_t)grid;
    record->kernel = kernel;
    record->grid[0] = (uint32_t)grid;
    record->grid[1] = record->grid[2] = 1;
    record->block[0] = at->is_gpu ? TD_BLOCK_THREADS : 1;
    record->block[1] = record->block[2] = 1;
    memcpy(record->params, params, param_bytes);
    td_build_pointer(at, record, 0, TD_BASE_CONTROL, 0, offsetof(td_control, cancel));
    if (at->cubin)
        note_registers(at, record);
    return record;
}

static void add_reloc(td_builder *at, td_record *record, size_t bytes, td_reloc reloc)
{
    if (record == &at->spare)
        return;
    if (reloc.offset + bytes > record->param_bytes)
        at->crowded = record->kernel->name;
    else if (!td_plan_add_reloc(at->plan, record, reloc))
        at->no_memory = true;
}

void td_build_pointer(td_builder *at, td_record *record, size_t offset, uint32_t base, uint32_t view, uint64_t addend)
{
    add_reloc(at, record, sizeof(uint64_t),
              (td_reloc){.offset = (uint16_t)offset, .kind = TD_RELOC_POINTER, .base = (uint8_t)base, .view = view, .addend = addend});
}

static void add_map(td_builder *at, td_record *record, size_t offset, uint32_t base, uint32_t view, uint64_t addend)
{
    record->flags |= TD_RECORD_TENSOR_MAPS;
    add_reloc(at, record, sizeof(td_tensor_map),
              (td_reloc){.offset = (uint16_t)offset, .kind = TD_RELOC_TENSOR_MAP, .base = (uint8_t)base, .view = view, .addend = addend});
}

void td_build_map(td_builder *at, td_record *record, size_t offset, uint32_t view)
{
    add_map(at, record, offset, TD_BASE_VIEW, view, 0);
}

void td_build_scratch_map(td_builder *at, td_record *record, size_t offset, td_place it)
{
    add_map(at, record, offset, TD_BASE_SCRATCH, 0, it.offset);
}

void td_build_range(td_builder *at, td_record *record, int access, td_range range)
{
    if (record != &at->spare && !(access == TD_READ ? td_plan_add_read : td_plan_add_write)(at->plan, record, range))
        at->no_memory = true;
}

void td_build_place(td_builder *at, td_record *record, int access, td_place it)
{
    if (it.offset != TD_ABSENT)
        td_build_range(at, record, access, (td_range){TD_BASE_SCRATCH, 0, it.offset, it.offset + it.bytes});
}

void td_build_scratch(td_builder *at, td_record *record, int access, size_t offset, td_place it)
{
    if (it.offset == TD_ABSENT)
        return;
    td_build_pointer(at, record, offset, TD_BASE_SCRATCH, 0, it.offset);
    td_build_place(at, record, access, it);
}

void td_build_view(td_builder *at, td_record *record, int access, size_t offset, uint32_t view)
{
    if (!at->extent_bytes[view])
        return;
    td_build_pointer(at, record, offset, TD_BASE_VIEW, view, 0);
    td_build_range(at, record, access, (td_range){TD_BASE_VIEW, view, 0, at->extent_bytes[view]});
}

bool td_ranges_meet(const td_range *a, uint32_t a_count, const td_range *b, uint32_t b_count)
{
    for (uint32_t i = 0; i < a_count; i++)
        for (uint32_t j = 0; j < b_count; j++)
            if (a[i].base == b[j].base && (a[i].base != TD_BASE_VIEW || a[i].view == b[j].view) &&
                a[i].begin_bytes < b[j].end_bytes && b[j].begin_bytes < a[i].end_bytes)
                return true;
    return false;
}

/* Of records before `over` it is known that they are over, of those before `seen` that their data is there as well. */
static td_barrier barrier_of(const td_plan *plan, uint32_t seen, uint32_t over, uint32_t at)
{
    const td_record *b = &plan->records[at];
    td_barrier found = TD_BARRIER_NONE;

    for (uint32_t i = seen; i < at; i++) {
        const td_record *a = &plan->records[i];

        if (td_ranges_meet(a->writes, a->write_count, b->reads, b->read_count) ||
            td_ranges_meet(a->writes, a->write_count, b->writes, b->write_count))
            return TD_BARRIER_DATA;
        if (i >= over && td_ranges_meet(a->reads, a->read_count, b->writes, b->write_count))
            found = TD_BARRIER_ORDER;
    }
    return found;
}

void td_plan_barriers(td_plan *plan)
{
    uint32_t seen = 0, over = 0;

    for (uint32_t i = 0; i < plan->record_count; i++) {
        const td_barrier found = barrier_of(plan, seen, over, i);

        plan->records[i].barrier = found;
        if (found != TD_BARRIER_NONE)
            over = i;
        if (found == TD_BARRIER_DATA)
            seen = i;
    }
}

/* --- Scratch --- */

/* The place that has the byte at `offset`; they are in order. */
static td_lifetime *place_at(const td_builder *at, uint64_t offset)
{
    uint32_t from = 0, to = at->place_count;
    while (to - from > 1) {
        const uint32_t middle = from + (to - from) / 2;
        if (at->places[middle].begin <= offset)
            from = middle;
        else
            to = middle;
    }
    return &at->places[from];
}

static void note_uses(const td_builder *at, const td_range *ranges, uint32_t count, uint32_t first, uint32_t last)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ranges[i].base != TD_BASE_SCRATCH)
            continue;
        td_lifetime *it = place_at(at, ranges[i].begin_bytes);
        if (it->first == UINT32_MAX)
            it->first = first;
        it->last = last;
    }
}

/* When each place is used. A record that may start before the one ahead of it is over, as that may, too, can have begun with
 * the last one that waited for all. */
static void note_lifetimes(const td_builder *at)
{
    for (uint32_t i = 0; i < at->place_count; i++)
        at->places[i].first = UINT32_MAX;
    for (uint32_t i = 0, when = 0, began = 0; i < at->plan->record_count; i++) {
        const td_record *r = &at->plan->records[i];
        when += r->barrier == TD_BARRIER_DATA;
        if (!(r->flags & TD_RECORD_PDL))
            began = when;
        const uint32_t first = r->kernel->writes_early ? began : when;
        note_uses(at, r->reads, r->read_count, first, when);
        note_uses(at, r->writes, r->write_count, first, when);
    }
}

/* Whether two places may have the same bytes: one is last used before a barrier for data, the other first behind it. */
static bool may_share(const td_lifetime *a, const td_lifetime *b)
{
    return a->last < b->first || b->last < a->first;
}

/* The lowest bytes that nobody has who uses them at the same time; places before `count` have theirs. */
static uint64_t free_offset(const td_builder *at, uint32_t count)
{
    const td_lifetime *it = &at->places[count];
    uint64_t offset = 0;
    bool moved_up;
    do { /* against all of them again where it has moved up */
        moved_up = false;
        for (uint32_t i = 0; i < count; i++) {
            const td_lifetime *other = &at->places[i];
            if (other->first == UINT32_MAX || other->offset >= offset + it->bytes || offset >= other->offset + other->bytes ||
                may_share(it, other))
                continue;
            offset = td_align_up(other->offset + other->bytes, TD_SCRATCH_ALIGN);
            moved_up = true;
        }
    } while (moved_up);
    return offset;
}

static uint64_t moved(const td_builder *at, uint64_t offset)
{
    const td_lifetime *it = place_at(at, offset);
    return offset - it->begin + it->offset;
}

/* Gives every place its bytes, after the barriers are known: none of them is added by this. */
static void share_scratch(td_builder *at)
{
    td_plan *plan = at->plan;
    uint64_t bytes = 0;
    note_lifetimes(at);
    for (uint32_t i = 0; i < at->place_count; i++) {
        td_lifetime *it = &at->places[i];
        if (it->first == UINT32_MAX)
            continue;
        it->offset = free_offset(at, i);
        if (it->offset + it->bytes > bytes)
            bytes = it->offset + it->bytes;
    }
    for (uint32_t i = 0; i < plan->record_count; i++) {
        td_record *r = &plan->records[i];
        for (uint32_t j = 0; j < r->reloc_count; j++)
            if (r->relocs[j].base == TD_BASE_SCRATCH)
                r->relocs[j].addend = moved(at, r->relocs[j].addend);
        for (uint32_t j = 0; j < r->read_count + r->write_count; j++) {
            td_range *range = j < r->read_count ? &r->reads[j] : &r->writes[j - r->read_count];
            if (range->base != TD_BASE_SCRATCH)
                continue;
            const uint64_t length = range->end_bytes - range->begin_bytes;
            range->begin_bytes = moved(at, range->begin_bytes);
            range->end_bytes = range->begin_bytes + length;
        }
    }
    at->scratch_bytes = td_align_up(bytes, TD_SCRATCH_ALIGN);
}

/* --- The end --- */

static size_t reloc_bytes(const td_reloc *reloc)
{
    return reloc->kind == TD_RELOC_TENSOR_MAP ? sizeof(td_tensor_map) : sizeof(uint64_t);
}

static const char *too_large(const td_record *r, uint32_t views)
{
    if (!r->param_bytes || r->param_bytes > TD_PARAM_BYTES)
        return "has no parameters, or more than a GPU takes";
    for (uint32_t i = 0; i < r->reloc_count; i++)
        if (r->relocs[i].offset + reloc_bytes(&r->relocs[i]) > r->param_bytes ||
            (r->relocs[i].base == TD_BASE_VIEW && r->relocs[i].view >= views))
            return "has a relocation that leads nowhere";
    return NULL;
}

tandem_status td_plan_check(const td_plan *plan, char *why, size_t why_bytes)
{
    const uint32_t views = plan->view_count ? plan->view_count : TD_MAX_VIEWS;
    char reason[160] = "";

    for (uint32_t i = 0; i < plan->record_count && !reason[0]; i++) {
        const char *what = too_large(&plan->records[i], views);

        if (what)
            snprintf(reason, sizeof reason, "the record of the kernel %s %s",
                     plan->records[i].kernel->name, what);
    }
    if (reason[0] && why && why_bytes)
        snprintf(why, why_bytes, "%s", reason);
    return reason[0] ? TANDEM_ERROR_UNSUPPORTED : TANDEM_OK;
}

tandem_status td_build_end(td_builder *at, char *why, size_t why_bytes)
{
    char reason[160] = "";
    tandem_status status = TANDEM_OK;

    if (at->no_memory) {
        status = TANDEM_ERROR_NOMEM;
        snprintf(reason, sizeof reason, "no memory for a plan of %" PRIu32 " records", at->plan->record_count);
    } else if (at->overflow || at->most_blocks) {
        status = TANDEM_ERROR_ARG;
        snprintf(reason, sizeof reason, at->overflow ? "more than 2^63 bytes of scratch" : "more than %d blocks",
                 TD_MOST_BLOCKS);
    } else if (at->missing) {
        status = TANDEM_ERROR_UNSUPPORTED;
        snprintf(reason, sizeof reason, "there is no kernel %s in the %s of compute capability %" PRIu32 ".%" PRIu32,
                 at->missing, at->cubin->ptx ? "PTX" : "cubin", at->cubin->sm / 10, at->cubin->sm % 10);
    } else if (at->crowded) {
        status = TANDEM_ERROR_UNSUPPORTED;
        snprintf(reason, sizeof reason, "the kernel %s has more than %d bytes of parameters, or a pointer outside them", at->crowded, TD_PARAM_BYTES);
    }
    td_plan_barriers(at->plan);
    if (status == TANDEM_OK && !at->keeps_scratch && at->place_count > 1)
        share_scratch(at);
    at->plan->scratch_bytes = at->scratch_bytes;
    if (status != TANDEM_OK && why && why_bytes)
        snprintf(why, why_bytes, "%s", reason);
    return status;
}

tandem_status td_build_end_sized(td_builder *at, const char *names, const uint32_t sizes[3], char *why, size_t why_bytes)
{
    char reason[200];
    const tandem_status status = td_build_end(at, reason, sizeof reason);

    return status == TANDEM_OK ? status
                               : td_fail(why, why_bytes, status, "%s are %" PRIu32 ", %" PRIu32 ", %" PRIu32 ": %s", names,
                                         sizes[0], sizes[1], sizes[2], reason);
}
