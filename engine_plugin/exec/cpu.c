/* Runs plans on the host, block by block, over OpenMP threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * What can wait is not cut into small plans for the sake of what cannot: keys cannot be cut without another rounding of O,
 * and each cut of the rows quantises K and V again. Instead each thread looks at a gate between tiles, and sleeps there
 * with O and the sums of its rows where they are; the other plan has a team of threads of its own. So nothing is computed
 * twice, and what was suspended has the same bits.
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

#define MOST_HELD_NS 10000000u /* at a closed gate, */
#define TURN_NS 400000u        /* before it goes on for so long */

typedef struct run {
    td_control *control; /* or NULL */
    td_gate *gate;       /* or NULL */
    atomic_bool stopped;
} run;

/* A thread of it. */
typedef struct member {
    run *of;
    uint64_t since_ns; /* it computes without having been held or idle */
    uint64_t turn_until_ns;
    uint64_t held_ns, late_ns;
} member;

static bool is_cancelled(const run *r)
{
    return r->control && __atomic_load_n(&r->control->cancel, __ATOMIC_RELAXED);
}

static void stand_at_gate(member *m)
{
    td_gate *gate = m->of->gate;
    const uint64_t begin = td_now_ns(), until = begin + MOST_HELD_NS, closed_ns = atomic_load(&gate->closed_ns);
    const uint64_t since = closed_ns > m->since_ns ? closed_ns : m->since_ns;
    uint64_t now = begin;

    if (begin < m->turn_until_ns)
        return;
    if (begin > since && begin - since > m->late_ns)
        m->late_ns = begin - since;
    while (now < until && !is_cancelled(m->of)) {
        const uint32_t seen = atomic_load(&gate->opened.count);

        if (!atomic_load(&gate->closed))
            break;
        td_bell_wait(&gate->opened, seen, until - now);
        now = td_now_ns();
    }
    if (now >= until)
        m->turn_until_ns = now + TURN_NS;
    m->held_ns += now - begin;
    m->since_ns = now;
}

/* Between two tiles. */
static bool goes_on(void *user)
{
    member *m = user;

    if (m->of->gate && atomic_load_explicit(&m->of->gate->closed, memory_order_relaxed))
        stand_at_gate(m);
    if (is_cancelled(m->of))
        m->of->stopped = true;
    return !m->of->stopped;
}

static void raise_to(_Atomic uint64_t *most, uint64_t value)
{
    uint64_t was = atomic_load(most);

    while (was < value && !atomic_compare_exchange_weak(most, &was, value))
        ;
}

tandem_status td_exec_cpu_run(const td_plan *plan, const uint64_t *views, uint64_t scratch, uint32_t threads,
                              td_control *control)
{
    td_patience none = {0};

    return td_exec_cpu_run_patiently(plan, views, scratch, threads, control, &none);
}

tandem_status td_exec_cpu_run_patiently(const td_plan *plan, const uint64_t *views, uint64_t scratch, uint32_t threads,
                                        td_control *control, td_patience *patience)
{
    size_t local_bytes = 64;
    uint64_t most_blocks = 1;
    if (td_plan_check(plan, NULL, 0) != TANDEM_OK)
        return TANDEM_ERROR_UNSUPPORTED;
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

    run r = {.control = control, .gate = patience->gate};
    _Atomic uint64_t held_ns = 0, late_ns = 0;
    atomic_uint next_thread = 0;
    /* One team for the whole plan; the barrier behind each loop separates the records. */
#pragma omp parallel num_threads(threads)
    {
        member m = {.of = &r};
        td_block at = {
            .local = local + local_bytes * atomic_fetch_add(&next_thread, 1u), .goes_on = goes_on, .user = &m};
        _Alignas(16) unsigned char params[TD_PARAM_BYTES];
        for (uint32_t i = 0; i < plan->record_count; i++) {
            const td_record *record = &plan->records[i];
            const uint64_t plane = (uint64_t)record->grid[0] * record->grid[1];
            const uint64_t blocks = plane * record->grid[2];
            td_exec_bind(record, views, scratch, (uintptr_t)control, params);
            m.since_ns = r.gate ? td_now_ns() : 0;
#pragma omp for schedule(dynamic, 1)
            for (uint64_t block = 0; block < blocks; block++) {
                if (!goes_on(&m))
                    continue;
                at.x = (uint32_t)(block % record->grid[0]);
                at.y = (uint32_t)(block % plane / record->grid[0]);
                at.z = (uint32_t)(block / plane);
                record->kernel->cpu(params, &at);
            }
        }
        raise_to(&held_ns, m.held_ns);
        raise_to(&late_ns, m.late_ns);
    }
    free(local);
    patience->held_ns = held_ns;
    patience->late_ns = late_ns;
    return r.stopped ? TANDEM_ERROR_BUSY : TANDEM_OK;
}
