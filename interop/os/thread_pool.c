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
#include "interop/os/memory.h"
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

/* The turns of a run that a worker has yet to take: from `first` on, up to `end`. Neighbours in memory are computed by one
 * thread, in order, as processors fetch ahead; who has none left takes half of another's, from its end. */
typedef struct part {
    _Alignas(64) _Atomic uint64_t left; /* first << 32 | end */
} part;

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
    uint64_t base; /* the index of turn 0 */
    uint32_t seats;
    part *parts; /* by worker */
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

static uint64_t pack_part(uint64_t first, uint64_t end)
{
    return first << 32 | end;
}

static uint32_t first_of(uint64_t left)
{
    return (uint32_t)(left >> 32);
}

static uint32_t end_of(uint64_t left)
{
    return (uint32_t)left;
}

static bool take_own(part *own, uint32_t *turn)
{
    uint64_t left = atomic_load_explicit(&own->left, memory_order_relaxed);

    while (first_of(left) < end_of(left))
        if (atomic_compare_exchange_weak_explicit(&own->left, &left, pack_part(first_of(left) + 1u, end_of(left)),
                                                  memory_order_relaxed, memory_order_relaxed)) {
            *turn = first_of(left);
            return true;
        }
    return false;
}

/* Turns never come back to who had them: a word that is still the same was not changed meanwhile. */
static bool take_others(td_thread_pool *pool, uint32_t worker, uint32_t *turn)
{
    const uint32_t workers = pool->seats + 1;

    for (uint32_t i = 1; i < workers; i++) {
        part *other = &pool->parts[(worker + i) % workers];
        uint64_t left = atomic_load_explicit(&other->left, memory_order_relaxed);

        while (first_of(left) < end_of(left)) {
            const uint32_t middle = first_of(left) + (end_of(left) - first_of(left)) / 2;

            if (!atomic_compare_exchange_weak_explicit(&other->left, &left, pack_part(first_of(left), middle),
                                                       memory_order_relaxed, memory_order_relaxed))
                continue;
            atomic_store_explicit(&pool->parts[worker].left, pack_part(middle + 1u, end_of(left)), memory_order_relaxed);
            *turn = middle;
            return true;
        }
    }
    return false;
}

static void compute(td_thread_pool *pool, uint32_t worker)
{
    uint32_t turn;

    while (take_own(&pool->parts[worker], &turn) || take_others(pool, worker, &turn))
        pool->function(pool->context, pool->base + turn, worker);
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

static void open_run(td_thread_pool *pool, uint32_t count)
{
    const uint64_t workers = pool->seats + 1;

    for (uint64_t i = 0; i < workers; i++)
        atomic_store_explicit(&pool->parts[i].left, pack_part(count * i / workers, count * (i + 1) / workers),
                              memory_order_relaxed);
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

static void run_together(td_thread_pool *pool, uint64_t base, uint32_t count, td_pool_function function, void *context)
{
    pool->function = function;
    pool->context = context;
    pool->base = base;
    pool->seats = (count < pool->threads ? count : pool->threads) - 1;
    start_helpers(pool, pool->seats);
    open_run(pool, count);
    compute(pool, 0);
    close_run(pool);
}

void td_thread_pool_run(td_thread_pool *pool, uint64_t count, td_pool_function function, void *context)
{
    if (!pool || pool->threads < 2 || count < 2 || pool->process != td_process_id() || atomic_exchange(&pool->busy, true)) {
        run_alone(count, function, context);
        return;
    }
    for (uint64_t base = 0; base < count; base += UINT32_MAX)
        run_together(pool, base, (uint32_t)(count - base < UINT32_MAX ? count - base : UINT32_MAX), function, context);
    atomic_store(&pool->busy, false);
}

/* Pools. */

td_thread_pool *td_thread_pool_create(uint32_t threads)
{
    const uint32_t most = threads < TD_POOL_MOST_THREADS ? threads : TD_POOL_MOST_THREADS, count = most ? most : 1;
    const size_t parts_at = (size_t)td_align_up(sizeof(td_thread_pool) + (count - 1) * sizeof(pthread_t), _Alignof(part));
    td_thread_pool *pool = td_aligned_alloc(64, parts_at + count * sizeof(part));

    if (!pool)
        return NULL;
    *pool = (td_thread_pool){.threads = count, .process = td_process_id(), .parts = (part *)((char *)pool + parts_at)};
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
    td_aligned_free(p);
}

void td_parallel_for(uint32_t threads, uint64_t count, td_pool_function function, void *context)
{
    td_thread_pool *pool = threads > 1 && count > 1 ? td_thread_pool_create(threads) : NULL;

    td_thread_pool_run(pool, count, function, context);
    td_thread_pool_destroy(&pool);
}
