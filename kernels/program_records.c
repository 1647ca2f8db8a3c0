/* Records of programs: those of a node's plan, which lead to where the program has what they name. See program.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "kernels/program_maker.h"

tandem_status td_program_no_memory(const maker *m)
{
    return td_fail(m->why, m->why_bytes, TANDEM_ERROR_NOMEM,
                   "no memory for a program of %" PRIu32 " nodes", m->graph->node_count);
}

static location place_of(const node_places *places, uint32_t base, uint32_t view)
{
    return base == TD_BASE_VIEW      ? places->views[view]
           : base == TD_BASE_SCRATCH ? places->scratch
                                     : (location){.base = base};
}

static void move_range(const node_places *places, td_range *range)
{
    const location to = place_of(places, range->base, range->view);
    *range =
        (td_range){to.base, to.view, range->begin_bytes + to.offset, range->end_bytes + to.offset};
}

static void move_record(const node_places *places, td_record *record)
{
    for (uint32_t i = 0; i < record->reloc_count; i++) {
        td_reloc *reloc = &record->relocs[i];
        const location to = place_of(places, reloc->base, reloc->view);
        reloc->base = (uint8_t)to.base;
        reloc->view = to.view;
        reloc->addend += to.offset;
    }
    for (uint32_t i = 0; i < record->read_count; i++)
        move_range(places, &record->reads[i]);
    for (uint32_t i = 0; i < record->write_count; i++)
        move_range(places, &record->writes[i]);
}

tandem_status td_program_append(maker *m, uint32_t node, const node_places *places)
{
    const uint64_t scratch_bytes = m->part.scratch_bytes;
    node_places at = *places;

    if (m->part.record_count > TD_PROGRAM_RECORDS - m->plan->record_count)
        return td_fail(m->why, m->why_bytes, TANDEM_ERROR_UNSUPPORTED,
                       "nodes[%" PRIu32 "]: is beyond %d records", node, TD_PROGRAM_RECORDS);
    at.scratch = (location){.base = TD_BASE_SCRATCH,
                            .offset = td_build_take(&m->at, scratch_bytes != 0, scratch_bytes).offset};
    for (uint32_t i = 0; i < m->part.record_count; i++) {
        td_record *record = td_plan_append(m->plan, &m->part.records[i]);
        if (!record)
            return td_program_no_memory(m);
        move_record(&at, record);
    }
    return TANDEM_OK;
}
