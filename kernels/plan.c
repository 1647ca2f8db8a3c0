/* The memory of plans. See plan.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/plan.h"

#include <stdlib.h>
#include <string.h>

void td_plan_reset(td_plan *plan)
{
    td_arena_reset(&plan->memory);
    plan->scratch_bytes = 0;
    plan->record_count = 0;
    plan->precision = 0;
    plan->view_count = 0;
    plan->records = NULL;
}

void td_plan_free(td_plan *plan)
{
    td_arena_free(&plan->memory);
    td_plan_reset(plan);
}

td_record *td_plan_add_record(td_plan *plan, size_t param_bytes)
{
    td_record *records =
        td_arena_grow(&plan->memory, plan->records, plan->record_count, sizeof *records, _Alignof(td_record));
    unsigned char *params;
    td_record *record;

    if (!records)
        return NULL;
    plan->records = records;
    params = td_arena_take(&plan->memory, param_bytes, TD_PARAM_ALIGN);
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
    td_reloc *relocs = td_arena_grow(&plan->memory, record->relocs, record->reloc_count, sizeof reloc, _Alignof(td_reloc));

    if (!relocs)
        return NULL;
    record->relocs = relocs;
    relocs[record->reloc_count] = reloc;
    return &relocs[record->reloc_count++];
}

static td_range *add_range(td_plan *plan, td_range **ranges, uint32_t *count, td_range range)
{
    td_range *to = td_arena_grow(&plan->memory, *ranges, *count, sizeof range, _Alignof(td_range));

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
    to->view_count = from->view_count;
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
