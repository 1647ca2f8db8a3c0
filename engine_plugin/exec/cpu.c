/* Runs plans on the host, block by block, over OpenMP threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/exec/exec.h"

void td_exec_bind(const td_record *record, const uint64_t *views, uint64_t scratch, uint64_t control, void *out)
{
    unsigned char *params = out;
    memcpy(params, record->params, TD_PARAM_BYTES);
    for (uint32_t i = 0; i < record->reloc_count; i++) {
        const td_reloc *reloc = &record->relocs[i];
        const uint64_t base = reloc->base == TD_BASE_VIEW      ? views[reloc->view]
                              : reloc->base == TD_BASE_CONTROL ? control
                                                               : scratch;
        const uint64_t address = base ? base + reloc->addend : 0;
        if (reloc->kind == TD_RELOC_POINTER)
            memcpy(params + reloc->offset, &address, sizeof address);
    }
}

void td_exec_bind_cancel(const td_record *record, uint64_t word, void *params)
{
    for (uint32_t i = 0; i < record->reloc_count; i++)
        if (record->relocs[i].base == TD_BASE_CONTROL && record->relocs[i].offset == 0)
            memcpy(params, &word, sizeof word);
}

static void *pass(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

/* How many threads a team may have. libgomp ends the process where it cannot start one: so before a team grows, as many
 * are started here to see whether they can be. It keeps the last team of each thread that had one. */
static uint32_t possible_threads(uint32_t wanted)
{
    enum { MOST_TRIED = 1024 };
    static _Thread_local uint32_t team = 1;
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t tried[MOST_TRIED];
    uint32_t made = 0;

    pthread_mutex_lock(&gate);
    while (team + made < wanted && made < MOST_TRIED && !pthread_create(&tried[made], NULL, pass, &gate))
        made++;
    pthread_mutex_unlock(&gate);
    for (uint32_t i = 0; i < made; i++)
        pthread_join(tried[i], NULL);
    pthread_mutex_destroy(&gate);
    team = team + made < wanted ? team + made : wanted;
    return team;
}

tandem_status td_exec_cpu_run(const td_plan *plan, const uint64_t *views, uint64_t scratch, uint32_t threads,
                              td_control *control)
{
    size_t local_bytes = 64;
    uint64_t most_blocks = 1;
    for (uint32_t i = 0; i < plan->record_count; i++) {
        const td_record *record = &plan->records[i];
        const uint64_t blocks = (uint64_t)record->grid[0] * record->grid[1] * record->grid[2];
        if (!record->kernel->cpu)
            return TANDEM_ERROR_UNSUPPORTED;
        if (record->kernel->cpu_local_bytes > local_bytes)
            local_bytes = record->kernel->cpu_local_bytes;
        if (blocks > most_blocks)
            most_blocks = blocks;
    }
    if (threads < 1)
        threads = 1;
    if (threads > most_blocks)
        threads = (uint32_t)most_blocks;
    threads = possible_threads(threads);
    local_bytes = (local_bytes + 63) & ~(size_t)63;
    unsigned char *local = aligned_alloc(64, local_bytes * threads);
    if (!local)
        return TANDEM_ERROR_NOMEM;

    atomic_bool stopped = false;
    atomic_uint next_thread = 0;
    /* One team for the whole plan; the barrier behind each loop separates the records. */
#pragma omp parallel num_threads(threads)
    {
        td_block at = {.local = local + local_bytes * atomic_fetch_add(&next_thread, 1u)};
        _Alignas(16) unsigned char params[TD_PARAM_BYTES];
        for (uint32_t i = 0; i < plan->record_count; i++) {
            const td_record *record = &plan->records[i];
            const uint64_t plane = (uint64_t)record->grid[0] * record->grid[1];
            const uint64_t blocks = plane * record->grid[2];
            td_exec_bind(record, views, scratch, (uintptr_t)control, params);
#pragma omp for schedule(dynamic, 1)
            for (uint64_t block = 0; block < blocks; block++) {
                if (stopped || (control && __atomic_load_n(&control->cancel, __ATOMIC_RELAXED))) {
                    stopped = true;
                    continue;
                }
                at.x = (uint32_t)(block % record->grid[0]);
                at.y = (uint32_t)(block % plane / record->grid[0]);
                at.z = (uint32_t)(block / plane);
                record->kernel->cpu(params, &at);
            }
        }
    }
    free(local);
    return stopped ? TANDEM_ERROR_BUSY : TANDEM_OK;
}
