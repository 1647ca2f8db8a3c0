/* The memory of plans. See plan.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * It comes in blocks that stay where they are, each twice as large as the one before it: most plans have one. Arrays in it
 * grow by moving to a place twice as large; what they leave behind is less than what they have.
 */
#include "kernels/plan.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_BYTES = 4096, FIRST_ELEMENTS = 4, BLOCK_ALIGN = 64 };

typedef struct td_plan_block {
    struct td_plan_block *next; /* older, smaller */
    size_t bytes, used;         /* with this header */
} td_plan_block;

static size_t aligned(size_t bytes, size_t alignment)
{
    return (bytes + alignment - 1) / alignment * alignment;
}

static td_plan_block *add_block(td_plan *plan, size_t least)
{
    size_t bytes = plan->blocks ? 2 * plan->blocks->bytes : FIRST_BYTES;
    td_plan_block *block;

    while (bytes < least + sizeof *block + BLOCK_ALIGN)
        bytes *= 2;
    block = aligned_alloc(BLOCK_ALIGN, bytes);
    if (!block)
        return NULL;
    *block = (td_plan_block){.next = plan->blocks, .bytes = bytes, .used = sizeof *block};
    return plan->blocks = block;
}

void *td_plan_memory(td_plan *plan, size_t bytes, size_t alignment)
{
    td_plan_block *block = plan->blocks;

    if (!block || aligned(block->used, alignment) + bytes > block->bytes)
        block = bytes < SIZE_MAX / 4 ? add_block(plan, bytes) : NULL;
    if (!block)
        return NULL;
    const size_t at = aligned(block->used, alignment);
    block->used = at + bytes;
    return (unsigned char *)block + at;
}

static void free_blocks(td_plan_block *block)
{
    while (block) {
        td_plan_block *next = block->next;

        free(block);
        block = next;
    }
}

void td_plan_reset(td_plan *plan)
{
    if (plan->blocks) {
        free_blocks(plan->blocks->next);
        plan->blocks->next = NULL;
        plan->blocks->used = sizeof *plan->blocks;
    }
    plan->scratch_bytes = 0;
    plan->record_count = 0;
    plan->precision = 0;
    plan->records = NULL;
}

void td_plan_free(td_plan *plan)
{
    free_blocks(plan->blocks);
    plan->blocks = NULL;
    td_plan_reset(plan);
}

/* Room for one more behind `count` elements: full at powers of two, since nothing else says how many there is room for. */
static void *grown(td_plan *plan, void *array, uint32_t count, size_t element_bytes, size_t alignment)
{
    const bool full = !count || (count >= FIRST_ELEMENTS && (count & (count - 1)) == 0);
    void *to;

    if (!full)
        return array;
    to = td_plan_memory(plan, (count ? 2 * (size_t)count : FIRST_ELEMENTS) * element_bytes, alignment);
    if (to && count)
        memcpy(to, array, count * element_bytes);
    return to;
}

td_record *td_plan_add_record(td_plan *plan, size_t param_bytes)
{
    td_record *records = grown(plan, plan->records, plan->record_count, sizeof *records, _Alignof(td_record)), *record;
    unsigned char *params;

    if (!records)
        return NULL;
    plan->records = records;
    params = td_plan_memory(plan, param_bytes, TD_PARAM_ALIGN);
    if (!params)
        return NULL;
    memset(params, 0, param_bytes);
    record = &records[plan->record_count++];
    memset(record, 0, sizeof *record);
    record->param_bytes = (uint32_t)param_bytes;
    record->params = params;
    return record;
}

td_reloc *td_plan_add_reloc(td_plan *plan, td_record *record, td_reloc reloc)
{
    td_reloc *relocs = grown(plan, record->relocs, record->reloc_count, sizeof reloc, _Alignof(td_reloc));

    if (!relocs)
        return NULL;
    record->relocs = relocs;
    relocs[record->reloc_count] = reloc;
    return &relocs[record->reloc_count++];
}

static td_range *add_range(td_plan *plan, td_range **ranges, uint32_t *count, td_range range)
{
    td_range *to = grown(plan, *ranges, *count, sizeof range, _Alignof(td_range));

    if (!to)
        return NULL;
    *ranges = to;
    to[*count] = range;
    return &to[(*count)++];
}

td_range *td_plan_add_read(td_plan *plan, td_record *record, td_range range)
{
    return add_range(plan, &record->reads, &record->read_count, range);
}

td_range *td_plan_add_write(td_plan *plan, td_record *record, td_range range)
{
    return add_range(plan, &record->writes, &record->write_count, range);
}

td_record *td_plan_append_launch(td_plan *to, const td_record *record)
{
    td_record launch = *record, *copy = td_plan_add_record(to, record->param_bytes);

    if (!copy)
        return NULL;
    launch.params = memcpy(copy->params, record->params, record->param_bytes);
    launch.reloc_count = launch.read_count = launch.write_count = 0;
    launch.relocs = NULL;
    launch.reads = launch.writes = NULL;
    *copy = launch;
    return copy;
}

td_record *td_plan_append(td_plan *to, const td_record *record)
{
    td_record *copy = td_plan_append_launch(to, record);
    bool good = copy != NULL;

    if (!good)
        return NULL;
    for (uint32_t i = 0; i < record->reloc_count && good; i++)
        good = td_plan_add_reloc(to, copy, record->relocs[i]);
    for (uint32_t i = 0; i < record->read_count && good; i++)
        good = td_plan_add_read(to, copy, record->reads[i]);
    for (uint32_t i = 0; i < record->write_count && good; i++)
        good = td_plan_add_write(to, copy, record->writes[i]);
    if (good)
        return copy;
    to->record_count--;
    return NULL;
}

bool td_plan_copy(td_plan *to, const td_plan *from)
{
    td_plan_reset(to);
    for (uint32_t i = 0; i < from->record_count; i++)
        if (!td_plan_append(to, &from->records[i])) {
            td_plan_reset(to);
            return false;
        }
    to->scratch_bytes = from->scratch_bytes;
    to->precision = from->precision;
    return true;
}

td_plan *td_plan_create(void)
{
    td_plan *plan = calloc(1, sizeof *plan);

    if (plan)
        plan->users = 1;
    return plan;
}

const td_plan *td_plan_use(const td_plan *plan)
{
    __atomic_fetch_add((uint32_t *)(uintptr_t)&plan->users, 1, __ATOMIC_RELAXED);
    return plan;
}

void td_plan_drop(const td_plan **plan)
{
    td_plan *it = (td_plan *)(uintptr_t)*plan;

    *plan = NULL;
    if (!it || __atomic_sub_fetch(&it->users, 1, __ATOMIC_ACQ_REL))
        return;
    td_plan_free(it);
    free(it);
}
