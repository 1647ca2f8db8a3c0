/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/thread_pool.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "interop/base.h"
#include "interop/os/clock.h"
#include "interop/os/cpu.h"
#include "interop/os/futex.h"
#include "interop/os/process.h"
#include "interop/os/thread.h"

/* `state` of a run: who has joined it. Helpers take a seat while it is open, and the caller returns once it is closed and
 * nobody is inside: who comes late finds it closed, and is not waited for. */
#define OPEN 0x80000000u          /* helpers may join */
#define CALLER_SLEEPS 0x40000000u /* the last helper to leave wakes it */
#define SEAT 0x8000u              /* 15 bits: seats that are left */
#define SEATS (SEAT * 0x7fffu)
#define INSIDE 0x7fffu            /* helpers that compute */

static_assert(TD_POOL_MOST_THREADS <= INSIDE, "a seat for each");

#define RETRY_NS 1000000000u /* a thread that could not be started is tried again so much later */

struct td_thread_pool {
    uint32_t threads; /* the caller's included */
    int32_t process;  /* that made it */
    atomic_bool busy;
    /* Of who has set `busy`. */
    uint32_t started;
    uint64_t retry_ns;
    /* Of the run: constant while somebody may be inside. */
    td_pool_function function;
    void *context;
    uint64_t count;
    uint32_t seats;
    _Alignas(64) _Atomic uint64_t next; /* index */
    _Alignas(64) atomic_uint state;
    _Alignas(64) atomic_uint runs; /* how many there were: what idle threads look at */
    atomic_uint sleepers;
    atomic_bool stopping;
    pthread_t helpers[];
};

/* Between two looks at a word. False: it was looked at for long enough. */
typedef struct spin {
    uint64_t until_ns; /* 0: it begins */
    uint32_t looks;
} spin;

static bool spin_on(spin *s)
{
    enum { LOOKS = 16 }; /* between two at the clock */

    if (!s->until_ns)
        s->until_ns = td_now_ns() + TD_POOL_SPIN_NS;
    td_cpu_pause();
    return ++s->looks % LOOKS || td_now_ns() < s->until_ns;
}

static void compute(td_thread_pool *pool, uint32_t worker)
{
    uint64_t index;

    while ((index = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed)) < pool->count)
        pool->function(pool->context, index, worker);
}

/* The helpers. */

static bool join_run(td_thread_pool *pool, uint32_t *worker)
{
    uint32_t state = atomic_load(&pool->state);

    while (state & OPEN && state & SEATS)
        if (atomic_compare_exchange_weak(&pool->state, &state, state - SEAT + 1)) {
            *worker = pool->seats - (state & SEATS) / SEAT + 1;
            return true;
        }
    return false;
}

static void leave_run(td_thread_pool *pool)
{
    const uint32_t state = atomic_fetch_sub(&pool->state, 1) - 1;

    if (state & CALLER_SLEEPS && !(state & INSIDE))
        td_futex_wake(&pool->state, 1);
}

/* Until there was another run than those that are known. */
static void wait_for_run(td_thread_pool *pool, uint32_t known)
{
    spin s = {0};

    while (atomic_load(&pool->runs) == known && spin_on(&s))
        ;
    while (atomic_load(&pool->runs) == known) {
        atomic_fetch_add(&pool->sleepers, 1);
        td_futex_wait(&pool->runs, known); /* not if there was one meanwhile */
        atomic_fetch_sub(&pool->sleepers, 1);
    }
}

static void *help(void *user)
{
    td_thread_pool *pool = user;
    uint32_t known = 0, worker;

    td_thread_name("tandem pool");
    for (;;) {
        wait_for_run(pool, known);
        known = atomic_load(&pool->runs); /* before that, or the last one of all could be taken for known */
        if (atomic_load(&pool->stopping))
            return NULL;
        if (!join_run(pool, &worker))
            continue;
        known = atomic_load(&pool->runs); /* it may be a later one, which stays while this thread is inside */
        compute(pool, worker);
        leave_run(pool);
    }
}

/* The caller. */

static void start_helpers(td_thread_pool *pool, uint32_t wanted)
{
    if (pool->started >= wanted || td_now_ns() < pool->retry_ns)
        return;
    while (pool->started < wanted && td_thread_start(&pool->helpers[pool->started], help, pool))
        pool->started++;
    if (pool->started < wanted)
        pool->retry_ns = td_now_ns() + RETRY_NS;
}

static void open_run(td_thread_pool *pool)
{
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_store(&pool->state, OPEN | pool->seats * SEAT);
    atomic_fetch_add(&pool->runs, 1); /* behind that: who sees it finds the run open */
    if (atomic_load(&pool->sleepers))
        td_futex_wake(&pool->runs, pool->seats);
}

/* Nobody joins any more; waits for those inside. */
static void close_run(td_thread_pool *pool)
{
    uint32_t state = atomic_fetch_and(&pool->state, ~OPEN) & ~OPEN;
    spin s = {0};

    while (state & INSIDE && spin_on(&s))
        state = atomic_load(&pool->state);
    while (state & INSIDE) {
        if (state & CALLER_SLEEPS)
            td_futex_wait(&pool->state, state);
        else
            atomic_compare_exchange_strong(&pool->state, &state, state | CALLER_SLEEPS);
        state = atomic_load(&pool->state);
    }
}

static void run_alone(uint64_t count, td_pool_function function, void *context)
{
    for (uint64_t index = 0; index < count; index++)
        function(context, index, 0);
}

void td_thread_pool_run(td_thread_pool *pool, uint64_t count, td_pool_function function, void *context)
{
    uint32_t seats;

    if (!pool || pool->threads < 2 || count < 2 || pool->process != td_process_id() || atomic_exchange(&pool->busy, true)) {
        run_alone(count, function, context);
        return;
    }
    seats = (count < pool->threads ? (uint32_t)count : pool->threads) - 1;
    start_helpers(pool, seats);
    pool->function = function;
    pool->context = context;
    pool->count = count;
    pool->seats = seats;
    open_run(pool);
    compute(pool, 0);
    close_run(pool);
    atomic_store(&pool->busy, false);
}

/* Pools. */

td_thread_pool *td_thread_pool_create(uint32_t threads)
{
    const uint32_t most = threads < TD_POOL_MOST_THREADS ? threads : TD_POOL_MOST_THREADS, count = most ? most : 1;
    const size_t bytes = sizeof(td_thread_pool) + (count - 1) * sizeof(pthread_t);
    td_thread_pool *pool = aligned_alloc(64, (size_t)td_align_up(bytes, 64));

    if (!pool)
        return NULL;
    *pool = (td_thread_pool){.threads = count, .process = td_process_id()};
    return pool;
}

uint32_t td_thread_pool_threads(const td_thread_pool *pool)
{
    return pool ? pool->threads : 1;
}

void td_thread_pool_destroy(td_thread_pool **pool)
{
    td_thread_pool *p = *pool;

    *pool = NULL;
    if (!p)
        return;
    if (p->process == td_process_id()) {
        atomic_store(&p->stopping, true);
        atomic_fetch_add(&p->runs, 1);
        td_futex_wake(&p->runs, UINT32_MAX);
        for (uint32_t i = 0; i < p->started; i++)
            pthread_join(p->helpers[i], NULL);
    }
    free(p);
}

void td_parallel_for(uint32_t threads, uint64_t count, td_pool_function function, void *context)
{
    td_thread_pool *pool = threads > 1 && count > 1 ? td_thread_pool_create(threads) : NULL;

    td_thread_pool_run(pool, count, function, context);
    td_thread_pool_destroy(&pool);
}
