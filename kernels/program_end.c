/* How programs end: what is written when a run does, and which pointers lead where. See program.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "kernels/commit.h"
#include "kernels/program_maker.h"

/* --- What is written when a run ends --- */

static bool is_drafted(const maker *m, uint32_t tensor)
{
    return m->tensors[tensor].view != UINT32_MAX && m->before[tensor].base != m->behind[tensor].base;
}

static td_range range_of(const location *at, uint64_t bytes)
{
    return (td_range){at->base, at->view, at->offset, at->offset + bytes};
}

/* Copies a draft to where it belongs. Elements are bits here. */
static void make_commit(maker *m, td_place verdict, uint32_t i)
{
    const td_program_tensor *t = &m->tensors[i];
    const td_params_commit params = {
        .o = {.stride_batch = (int64_t)t->shape[1] * t->shape[2] * t->shape[3],
              .stride_head = (int64_t)t->shape[2] * t->shape[3],
              .stride_row = t->shape[3],
              .dtype = td_dtype_bytes(t->dtype) == 4 ? TANDEM_DTYPE_F32 : TANDEM_DTYPE_F16,
              .heads = t->shape[1],
              .rows = t->shape[2],
              .dim = t->shape[3]}};
    td_record *record =
        td_build_commit(&m->at, verdict, (uint64_t)t->shape[0] * t->shape[1], &params);
    const location *from = &m->behind[i], *to = &m->before[i];

    td_build_pointer(&m->at, record, offsetof(td_params_commit, from), from->base, from->view,
                     from->offset);
    td_build_range(&m->at, record, TD_READ, range_of(from, t->bytes));
    td_build_pointer(&m->at, record, offsetof(td_params_commit, o.data), to->base, to->view,
                     to->offset);
    td_build_range(&m->at, record, TD_WRITE, range_of(to, t->bytes));
}

/* Nothing is claimed before all drafts are there. */
tandem_status td_program_make_end(maker *m)
{
    const uint32_t count = m->graph->tensor_count;
    uint32_t drafts = 0;

    for (uint32_t i = 0; i < count; i++) {
        const uint32_t bytes = td_dtype_bytes(m->tensors[i].dtype);
        if (is_drafted(m, i) && bytes != 2 && bytes != 4)
            return td_fail(m->why, m->why_bytes, TANDEM_ERROR_UNSUPPORTED,
                           "tensors[\"%s\"]: is written when a run ends, which its elements are "
                           "too %s for: 2 or 4 bytes each",
                           m->tensors[i].name, bytes ? "small" : "odd");
        drafts += is_drafted(m, i);
    }
    m->program->claims = drafts != 0 || m->commit;
    if (!m->program->claims)
        return TANDEM_OK;
    const td_place verdict = td_build_take(&m->at, true, sizeof(uint32_t));
    td_build_claim(&m->at, verdict, (td_place){TD_ABSENT, 0});
    for (uint32_t i = 0; i < count && m->plan->record_count; i++)
        if (is_drafted(m, i))
            td_build_range(&m->at, &m->plan->records[m->plan->record_count - 1], TD_READ,
                           range_of(&m->behind[i], m->tensors[i].bytes));
    for (uint32_t i = 0; i < count; i++)
        if (is_drafted(m, i))
            make_commit(m, verdict, i);
    return TANDEM_OK;
}

/* --- Patches --- */

tandem_status td_program_make_patches(maker *m)
{
    td_program *program = m->program;
    const uint32_t views = TD_PROGRAM_BINDINGS + program->binding_count + (program->sample_count != 0);
    uint32_t *first =
        td_arena_take(&program->memory, (views + 1) * sizeof *first, _Alignof(uint32_t));
    td_patch *patches = NULL;

    if (!first)
        return td_program_no_memory(m);
    for (uint32_t view = 0; view < views; view++) {
        first[view] = program->patch_count;
        for (uint32_t i = 0; i < m->plan->record_count; i++)
            for (uint32_t j = 0; j < m->plan->records[i].reloc_count; j++) {
                const td_reloc *reloc = &m->plan->records[i].relocs[j];
                if (reloc->base != TD_BASE_VIEW || reloc->view != view)
                    continue;
                patches = td_arena_grow(&program->memory, patches, program->patch_count,
                                        sizeof *patches, _Alignof(td_patch));
                if (!patches)
                    return td_program_no_memory(m);
                patches[program->patch_count++] = (td_patch){i, j};
            }
    }
    first[views] = program->patch_count;
    program->first_patch = first;
    program->patches = patches;
    return TANDEM_OK;
}
