/* Plans in the making. See builder.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/builder.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernels/params.h"

td_place td_build_take(td_builder *at, bool wanted, unsigned __int128 bytes)
{
    if (!wanted)
        return (td_place){TD_ABSENT, 0};
    const td_place it = {at->scratch_bytes, (uint64_t)bytes};
    const unsigned __int128 end =
        at->scratch_bytes + (bytes + TD_SCRATCH_ALIGN - 1) / TD_SCRATCH_ALIGN * TD_SCRATCH_ALIGN;
    if (end > (unsigned __int128)INT64_MAX)
        at->overflow = true;
    else
        at->scratch_bytes = (uint64_t)end;
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

td_record *td_build_record(td_builder *at, const td_kernel *kernel, uint64_t grid, const void *params,
                           size_t param_bytes)
{
    if (at->plan->record_count == TD_PLAN_RECORDS || param_bytes > TD_PARAM_BYTES) {
        at->crowded = kernel->name;
        at->plan->record_count -= at->plan->record_count == TD_PLAN_RECORDS;
        param_bytes = param_bytes > TD_PARAM_BYTES ? TD_PARAM_BYTES : param_bytes;
    }
    if (grid > TD_MOST_BLOCKS && grid > at->most_blocks)
        at->most_blocks = grid;
    td_record *record = &at->plan->records[at->plan->record_count++];
    memset(record, 0, sizeof *record);
    record->kernel = kernel;
    record->grid[0] = (uint32_t)grid;
    record->grid[1] = record->grid[2] = 1;
    record->block[0] = at->is_gpu ? TD_BLOCK_THREADS : 1;
    record->block[1] = record->block[2] = 1;
    record->param_bytes = (uint32_t)param_bytes;
    memcpy(record->params, params, param_bytes);
    td_build_pointer(at, record, 0, TD_BASE_CONTROL, 0, offsetof(td_control, cancel));
    if (at->cubin)
        note_registers(at, record);
    return record;
}

static void add_reloc(td_builder *at, td_record *record, size_t bytes, td_reloc reloc)
{
    if (record->reloc_count == TD_MAX_RELOCS || reloc.offset + bytes > record->param_bytes)
        at->crowded = record->kernel->name;
    else
        record->relocs[record->reloc_count++] = reloc;
}

void td_build_pointer(td_builder *at, td_record *record, size_t offset, uint32_t base, uint32_t view, uint64_t addend)
{
    add_reloc(at, record, sizeof(uint64_t),
              (td_reloc){.offset = (uint16_t)offset, .kind = TD_RELOC_POINTER, .base = (uint8_t)base, .view = view, .addend = addend});
}

void td_build_map(td_builder *at, td_record *record, size_t offset, uint32_t view)
{
    record->flags |= TD_RECORD_TENSOR_MAPS;
    add_reloc(at, record, sizeof(td_tensor_map),
              (td_reloc){.offset = (uint16_t)offset, .kind = TD_RELOC_TENSOR_MAP, .base = TD_BASE_VIEW, .view = view});
}

void td_build_range(td_builder *at, td_record *record, int access, td_range range)
{
    uint32_t *count = access == TD_READ ? &record->read_count : &record->write_count;

    if (*count == TD_MAX_RANGES)
        at->crowded = record->kernel->name;
    else
        (access == TD_READ ? record->reads : record->writes)[(*count)++] = range;
}

void td_build_scratch(td_builder *at, td_record *record, int access, size_t offset, td_place it)
{
    if (it.offset == TD_ABSENT)
        return;
    td_build_pointer(at, record, offset, TD_BASE_SCRATCH, 0, it.offset);
    td_build_range(at, record, access, (td_range){TD_BASE_SCRATCH, 0, it.offset, it.offset + it.bytes});
}

void td_build_view(td_builder *at, td_record *record, int access, size_t offset, uint32_t view)
{
    if (!at->extent_bytes[view])
        return;
    td_build_pointer(at, record, offset, TD_BASE_VIEW, view, 0);
    td_build_range(at, record, access, (td_range){TD_BASE_VIEW, view, 0, at->extent_bytes[view]});
}

static bool meet(const td_range *a, uint32_t a_count, const td_range *b, uint32_t b_count)
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

        if (meet(a->writes, a->write_count, b->reads, b->read_count) ||
            meet(a->writes, a->write_count, b->writes, b->write_count))
            return TD_BARRIER_DATA;
        if (i >= over && meet(a->reads, a->read_count, b->writes, b->write_count))
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

static size_t reloc_bytes(const td_reloc *reloc)
{
    return reloc->kind == TD_RELOC_TENSOR_MAP ? sizeof(td_tensor_map) : sizeof(uint64_t);
}

static const char *too_large(const td_record *r)
{
    if (!r->param_bytes || r->param_bytes > TD_PARAM_BYTES)
        return "has no parameters, or more than a plan holds";
    if (r->reloc_count > TD_MAX_RELOCS)
        return "has more relocations than a plan holds";
    if (r->read_count > TD_MAX_RANGES || r->write_count > TD_MAX_RANGES)
        return "has more ranges than a plan holds";
    for (uint32_t i = 0; i < r->reloc_count; i++)
        if (r->relocs[i].offset + reloc_bytes(&r->relocs[i]) > TD_PARAM_BYTES ||
            (r->relocs[i].base == TD_BASE_VIEW && r->relocs[i].view >= TD_MAX_VIEWS))
            return "has a relocation that leads nowhere";
    return NULL;
}

tandem_status td_plan_check(const td_plan *plan, char *why, size_t why_bytes)
{
    char reason[160] = "";

    if (plan->record_count > TD_PLAN_RECORDS)
        snprintf(reason, sizeof reason, "the plan has %" PRIu32 " records; it may have %d", plan->record_count,
                 TD_PLAN_RECORDS);
    for (uint32_t i = 0; i < plan->record_count && !reason[0]; i++) {
        const char *what = too_large(&plan->records[i]);

        if (what)
            snprintf(reason, sizeof reason, "the record of the kernel %s %s",
                     plan->records[i].kernel->name, what);
    }
    if (reason[0] && why && why_bytes)
        snprintf(why, why_bytes, "%s", reason);
    return reason[0] ? TANDEM_ERROR_UNSUPPORTED : TANDEM_OK;
}

tandem_status td_build_end(const td_builder *at, char *why, size_t why_bytes)
{
    char reason[160] = "";
    tandem_status status = TANDEM_OK;

    if (at->overflow || at->most_blocks) {
        status = TANDEM_ERROR_ARG;
        snprintf(reason, sizeof reason, at->overflow ? "more than 2^63 bytes of scratch" : "more than %d blocks",
                 TD_MOST_BLOCKS);
    } else if (at->missing) {
        status = TANDEM_ERROR_UNSUPPORTED;
        snprintf(reason, sizeof reason, "there is no kernel %s in the %s of compute capability %" PRIu32 ".%" PRIu32,
                 at->missing, at->cubin->ptx ? "PTX" : "cubin", at->cubin->sm / 10, at->cubin->sm % 10);
    } else if (at->crowded) {
        status = TANDEM_ERROR_UNSUPPORTED;
        snprintf(reason, sizeof reason, "a plan has no room for all that the kernel %s needs", at->crowded);
    }
    at->plan->scratch_bytes = at->scratch_bytes;
    td_plan_barriers(at->plan);
    if (status != TANDEM_OK && why && why_bytes)
        snprintf(why, why_bytes, "%s", reason);
    return status;
}
