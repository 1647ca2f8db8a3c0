/* Runs plans on the host, block by block, over the threads of a pool.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * What can wait is not cut into small plans for the sake of what cannot: keys cannot be cut without another rounding of O,
 * and each cut of the rows quantises K and V again. Instead each thread has a yield point between tiles, where it looks at a
 * preemption flag and sleeps with O and the sums of its rows where they are; the other plan has a pool of its own. So
 * nothing is computed twice, and what was preempted has the same bits.
 */
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/exec/exec.h"
#include "interop/os/memory.h"

uint64_t td_exec_address(const td_reloc *reloc, const uint64_t *views, uint64_t scratch, uint64_t control)
{
    const uint64_t base = reloc->base == TD_BASE_VIEW      ? views[reloc->view]
                          : reloc->base == TD_BASE_CONTROL ? control
                                                           : scratch;
    return base ? base + reloc->addend : 0;
}

void td_exec_bind(const td_record *record, const uint64_t *views, uint64_t scratch, uint64_t control, void *out)
{
    unsigned char *params = out;
    memcpy(params, record->params, record->param_bytes);
    for (uint32_t i = 0; i < record->reloc_count; i++) {
        const td_reloc *reloc = &record->relocs[i];
        const uint64_t address = td_exec_address(reloc, views, scratch, control);
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

#define MOST_HELD_NS 10000000u /* at a yield point, */
#define TURN_NS 400000u        /* before it goes on for so long */
#define MOST_PACED_NS 1000000000u /* that it waits for its pace, */
#define LOOK_NS 10000000u         /* and how often it looks whether it was given up */

struct run;

/* A thread of it. */
typedef struct member {
    struct run *of;
    uint32_t records;  /* how far it came: it has had blocks of that many, or of none between */
    uint64_t since_ns; /* it computes without having been held or idle */
    uint64_t turn_until_ns;
    uint64_t held_ns, late_ns;
    unsigned char *local;
} member;

typedef struct run {
    td_control *control;   /* or NULL */
    td_preempt_flag *flag; /* or NULL */
    td_pace *pace;         /* or NULL */
    atomic_bool stopped;
    const td_record *record; /* the one at hand, */
    uint32_t records;        /* of so many so far */
    _Alignas(TD_PARAM_ALIGN) unsigned char params[TD_PARAM_BYTES];
    member *members;
} run;

static bool is_cancelled(const run *r)
{
    return r->control && __atomic_load_n(&r->control->cancel, __ATOMIC_RELAXED);
}

static void yield_until_cleared(member *m)
{
    td_preempt_flag *flag = m->of->flag;
    const uint64_t begin = td_now_ns(), until = begin + MOST_HELD_NS, raised_ns = atomic_load(&flag->raised_ns);
    const uint64_t since = raised_ns > m->since_ns ? raised_ns : m->since_ns;
    uint64_t now = begin;

    if (begin < m->turn_until_ns)
        return;
    if (begin > since && begin - since > m->late_ns)
        m->late_ns = begin - since;
    while (now < until && !is_cancelled(m->of)) {
        const uint32_t seen = atomic_load(&flag->cleared.count);

        if (!atomic_load(&flag->raised))
            break;
        td_eventcount_wait(&flag->cleared, seen, until - now);
        now = td_now_ns();
    }
    if (now >= until)
        m->turn_until_ns = now + TURN_NS;
    m->held_ns += now - begin;
    m->since_ns = now;
}

/* Where its time is over, until it is given more. */
static void keep_pace(member *m)
{
    td_pace *pace = m->of->pace;
    const uint64_t begin = td_now_ns(), bound = begin + MOST_PACED_NS;
    uint64_t now = begin;

    atomic_store_explicit(&pace->seen_ns, now, memory_order_relaxed);
    for (;;) {
        const uint32_t seen = atomic_load(&pace->granted.count);
        uint64_t until = atomic_load(&pace->until_ns);

        if (now < until || !until || is_cancelled(m->of))
            break;
        if (now >= bound && atomic_compare_exchange_strong(&pace->until_ns, &until, 0)) {
            td_eventcount_notify(&pace->granted);
            break;
        }
        td_eventcount_wait(&pace->granted, seen, LOOK_NS);
        now = td_now_ns();
    }
    m->held_ns += now - begin;
    m->since_ns = now;
}

/* Between two tiles. */
static bool goes_on(void *user)
{
    member *m = user;

    if (m->of->flag && atomic_load_explicit(&m->of->flag->raised, memory_order_relaxed))
        yield_until_cleared(m);
    if (m->of->pace && atomic_load_explicit(&m->of->pace->until_ns, memory_order_relaxed))
        keep_pace(m);
    if (is_cancelled(m->of))
        m->of->stopped = true;
    return !m->of->stopped;
}

/* A block of the record at hand, which begins as a thread's first of it does. */
static void run_block(void *context, uint64_t block, uint32_t worker)
{
    run *r = context;
    member *m = &r->members[worker];
    const td_record *record = r->record;
    const uint64_t plane = (uint64_t)record->grid[0] * record->grid[1];
    td_block at = {.x = (uint32_t)(block % record->grid[0]),
                   .y = (uint32_t)(block % plane / record->grid[0]),
                   .z = (uint32_t)(block / plane),
                   .local = m->local,
                   .goes_on = goes_on,
                   .user = m};

    if (r->flag && m->records != r->records)
        m->since_ns = td_now_ns();
    m->records = r->records;
    if (goes_on(m))
        record->kernel->cpu(r->params, &at);
}

/* Each record waits for the one before it. */
static void run_records(run *r, const td_plan *plan, const uint64_t *views, uint64_t scratch, td_thread_pool *pool)
{
    for (uint32_t i = 0; i < plan->record_count; i++) {
        const td_record *record = &plan->records[i];

        r->record = record;
        r->records = i + 1;
        td_exec_bind(record, views, scratch, (uintptr_t)r->control, r->params);
        td_thread_pool_run(pool, (uint64_t)record->grid[0] * record->grid[1] * record->grid[2], run_block, r);
    }
}

/* The most bytes of its own that a block of the plan wants, and the most blocks of a record. */
static tandem_status measure(const td_plan *plan, size_t *local_bytes, uint64_t *most_blocks)
{
    *local_bytes = 64;
    *most_blocks = 1;
    if (td_plan_check(plan, NULL, 0) != TANDEM_OK)
        return TANDEM_ERROR_UNSUPPORTED;
    for (uint32_t i = 0; i < plan->record_count; i++) {
        const td_record *record = &plan->records[i];
        const uint64_t blocks = (uint64_t)record->grid[0] * record->grid[1] * record->grid[2];

        if (!record->kernel->cpu)
            return TANDEM_ERROR_UNSUPPORTED;
        if (record->kernel->cpu_local_bytes > *local_bytes)
            *local_bytes = record->kernel->cpu_local_bytes;
        if (blocks > *most_blocks)
            *most_blocks = blocks;
    }
    *local_bytes = (size_t)td_align_up(*local_bytes, 64);
    return TANDEM_OK;
}

tandem_status td_exec_cpu_run_preemptibly(const td_plan *plan, const uint64_t *views, uint64_t scratch,
                                          td_thread_pool *pool, td_control *control, td_preemptible *yields)
{
    uint32_t threads = td_thread_pool_threads(pool);
    run r = {.control = control, .flag = yields->flag, .pace = yields->pace};
    uint64_t most_blocks;
    size_t local_bytes;
    const tandem_status status = measure(plan, &local_bytes, &most_blocks);

    if (status != TANDEM_OK)
        return status;
    if (threads > most_blocks)
        threads = (uint32_t)most_blocks;
    /* Members' own memory first, as that is aligned to lines. */
    unsigned char *local = td_aligned_alloc(64, local_bytes * threads + (size_t)td_align_up(threads * sizeof(member), 64));
    if (!local)
        return TANDEM_ERROR_NOMEM;
    r.members = (member *)(local + local_bytes * threads);
    for (uint32_t i = 0; i < threads; i++)
        r.members[i] = (member){.of = &r, .local = local + local_bytes * i};
    run_records(&r, plan, views, scratch, pool);
    yields->held_ns = yields->late_ns = 0;
    for (uint32_t i = 0; i < threads; i++) {
        const member *m = &r.members[i];

        yields->held_ns = m->held_ns > yields->held_ns ? m->held_ns : yields->held_ns;
        yields->late_ns = m->late_ns > yields->late_ns ? m->late_ns : yields->late_ns;
    }
    td_aligned_free(local);
    return r.stopped ? TANDEM_ERROR_BUSY : TANDEM_OK;
}

tandem_status td_exec_cpu_run(const td_plan *plan, const uint64_t *views, uint64_t scratch, uint32_t threads,
                              td_control *control)
{
    td_thread_pool *pool = threads > 1 ? td_thread_pool_create(threads) : NULL;
    td_preemptible none = {0};
    const tandem_status status = td_exec_cpu_run_preemptibly(plan, views, scratch, pool, control, &none);

    td_thread_pool_destroy(&pool);
    return status;
}
