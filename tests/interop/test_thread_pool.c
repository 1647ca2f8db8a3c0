/* The thread pool: each turn once, whoever calls, whatever fails; nobody is waited for in vain, and idle threads sleep.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "interop/base.h"
#include "interop/os/clock.h"
#include "interop/os/thread_pool.h"
#include "tests/interop/faults.h"
#include "tests/limits.h"

#define MS ((uint64_t)1000000)
#define PATIENCE LIMITS_PATIENCE_NS
enum { MOST_TURNS = 100003, MOST_WORKERS = 64 };
#define MOST_SPIN_NS 50000 /* that idle threads look for more: what the library promises to the programs that it lives in */
_Static_assert(TD_POOL_SPIN_NS <= MOST_SPIN_NS, "threads spin longer than they may");

/* What a run did. */
typedef struct tally {
    atomic_uchar *turns;
    atomic_bool at_work[MOST_WORKERS];
    atomic_uint wrong, workers_seen;
    uint64_t count;
    uint32_t threads;
} tally;

static void take_turn(void *context, uint64_t index, uint32_t worker)
{
    tally *t = context;

    if (index >= t->count || worker >= t->threads || worker >= t->count || worker >= MOST_WORKERS ||
        atomic_exchange(&t->at_work[worker], true)) {
        t->wrong++;
        return;
    }
    atomic_fetch_add(&t->turns[index], 1);
    atomic_store(&t->at_work[worker], false);
}

static void check_run(td_thread_pool *pool, uint64_t count)
{
    tally t = {.turns = calloc(count + 1, sizeof *t.turns), .count = count, .threads = td_thread_pool_threads(pool)};

    assert_non_null(t.turns);
    td_thread_pool_run(pool, count, take_turn, &t);
    assert_int_equal(t.wrong, 0);
    for (uint64_t i = 0; i < count; i++)
        assert_int_equal(t.turns[i], 1);
    free(t.turns);
}

static void test_each_turn_once(void **state)
{
    static const uint32_t threads[] = {0, 1, 2, 3, 5, 16, 64};
    static const uint64_t counts[] = {0, 1, 2, 3, 4, 7, 64, 1000, MOST_TURNS};

    (void)state;
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        td_thread_pool *pool = td_thread_pool_create(threads[i]);

        assert_non_null(pool);
        assert_int_equal(td_thread_pool_threads(pool), threads[i] ? threads[i] : 1);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            check_run(pool, counts[c]);
        td_thread_pool_destroy(&pool);
        assert_null(pool);
    }
    check_run(NULL, 100);
    td_thread_pool *pool = td_thread_pool_create(UINT32_MAX);
    assert_int_equal(td_thread_pool_threads(pool), TD_POOL_MOST_THREADS);
    td_thread_pool_destroy(&pool);
    td_thread_pool_destroy(&pool);
}

/* A thread computes neighbours, in order, but where it takes half of what another has left. */
typedef struct walk {
    struct {
        _Alignas(64) uint64_t last, jumps;
    } of[4];
} walk;

static void walk_on(void *context, uint64_t index, uint32_t worker)
{
    walk *w = context;
    const uint64_t until = td_now_ns() + 1000 * (1 + index % 7);

    w->of[worker].jumps += index != w->of[worker].last + 1;
    w->of[worker].last = index;
    while (td_now_ns() < until)
        ;
}

static void test_neighbours(void **state)
{
    enum { TURNS = 4096, THREADS = 4 };
    td_thread_pool *pool = td_thread_pool_create(THREADS);
    uint64_t jumps = 0;
    walk w = {0};

    (void)state;
    td_thread_pool_run(pool, TURNS, walk_on, &w);
    for (int i = 0; i < THREADS; i++)
        jumps += w.of[i].jumps;
    assert_in_range(jumps, 1, TURNS / 8);
    td_thread_pool_destroy(&pool);
}

/* All threads at once: each turn waits until all have begun. */
typedef struct meeting {
    atomic_uint begun;
    uint32_t wanted;
    bool is_late;
} meeting;

static void meet(void *context, uint64_t index, uint32_t worker)
{
    meeting *m = context;
    const uint64_t until = td_now_ns() + PATIENCE;

    (void)index, (void)worker;
    atomic_fetch_add(&m->begun, 1);
    while (m->begun < m->wanted && td_now_ns() < until)
        sched_yield();
    if (m->begun < m->wanted)
        m->is_late = true;
}

static bool all_meet(td_thread_pool *pool, uint32_t threads)
{
    meeting m = {.wanted = threads};

    td_thread_pool_run(pool, threads, meet, &m);
    return !m.is_late && m.begun == threads;
}

static void test_threads_at_once(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 9; threads++) {
        td_thread_pool *pool = td_thread_pool_create(threads);

        for (int i = 0; i < 20; i++)
            assert_true(all_meet(pool, threads));
        td_thread_pool_destroy(&pool);
    }
}

/* Some runs: 100,000 that follow at once, and some behind pauses about as long as threads look for more. */
static void add_index(void *context, uint64_t index, uint32_t worker)
{
    (void)worker;
    atomic_fetch_add_explicit((_Atomic uint64_t *)context, index + 1, memory_order_relaxed);
}

static void test_no_wake_up_is_lost(void **state)
{
    enum { RUNS = 100000, PAUSED = 4000 };
    td_thread_pool *pool = td_thread_pool_create(3);
    _Atomic uint64_t sum = 0;

    (void)state;
    for (uint64_t i = 0; i < RUNS; i++)
        td_thread_pool_run(pool, 2 + i % 5, add_index, &sum);
    assert_int_equal(sum, (uint64_t)RUNS / 5 * (3 + 6 + 10 + 15 + 21));
    sum = 0;
    for (uint64_t i = 0; i < PAUSED; i++) {
        const uint64_t until = td_now_ns() + TD_POOL_SPIN_NS / 2 + i * 7919 % TD_POOL_SPIN_NS;

        while (td_now_ns() < until)
            ;
        td_thread_pool_run(pool, 3, add_index, &sum);
        if (i % 16 == 0)
            assert_true(all_meet(pool, 3)); /* all of them wake */
    }
    assert_int_equal(sum, PAUSED * 6);
    td_thread_pool_destroy(&pool);
}

/* Callers at once, and runs within turns. */
static void nest(void *context, uint64_t index, uint32_t worker)
{
    (void)index, (void)worker;
    check_run(context, 5);
}

static atomic_uint nested_sum;

static void count_one(void *context, uint64_t index, uint32_t worker)
{
    (void)context, (void)index, (void)worker;
    nested_sum++;
}

static void nest_deeply(void *context, uint64_t index, uint32_t worker)
{
    (void)index, (void)worker;
    td_thread_pool_run(context, 3, count_one, NULL);
}

static void *call_often(void *pool)
{
    for (int i = 0; i < 2000; i++) {
        _Atomic uint64_t sum = 0;

        td_thread_pool_run(pool, 11, add_index, &sum);
        if (sum != 66)
            return pool;
    }
    return NULL;
}

static void test_callers_at_once(void **state)
{
    enum { CALLERS = 6 };
    td_thread_pool *pool = td_thread_pool_create(3);
    pthread_t callers[CALLERS];

    (void)state;
    for (int i = 0; i < CALLERS; i++)
        assert_int_equal(pthread_create(&callers[i], NULL, call_often, pool), 0);
    for (int i = 0; i < CALLERS; i++) {
        void *failed;

        pthread_join(callers[i], &failed);
        assert_null(failed);
    }
    td_thread_pool_run(pool, 7, nest, pool);
    td_thread_pool_run(pool, 7, nest_deeply, pool);
    assert_int_equal(nested_sum, 21);
    td_thread_pool_destroy(&pool);
}

static void test_parallel_for(void **state)
{
    (void)state;
    for (uint32_t threads = 0; threads < 4; threads++)
        for (uint64_t count = 0; count < 200; count += 33) {
            _Atomic uint64_t sum = 0;

            td_parallel_for(threads, count, add_index, &sum);
            assert_int_equal(sum, count * (count + 1) / 2);
        }
}

static uint64_t cpu_ns(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 * MS +
           (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000;
}

static void test_idle_threads_sleep(void **state)
{
    enum { THREADS = 4, FRAMES = 60 };
    td_thread_pool *pool = td_thread_pool_create(THREADS);

    (void)state;
    for (int i = 0; i < 100; i++)
        assert_true(all_meet(pool, THREADS));
    uint64_t before = cpu_ns();
    usleep(1000000);
    assert_in_range(cpu_ns() - before, 0, 20 * MS); /* 2 % of a core */
    /* A run a frame costs its threads no more than they may look for another. */
    before = cpu_ns();
    for (int i = 0; i < FRAMES; i++) {
        usleep(16000);
        td_thread_pool_run(pool, THREADS, take_turn, &(tally){.turns = (atomic_uchar[THREADS]){0}, .count = THREADS,
                                                              .threads = THREADS});
    }
    assert_in_range(cpu_ns() - before, 0, FRAMES * THREADS * (MOST_SPIN_NS + (uint64_t)100000));
    td_thread_pool_destroy(&pool);
}

/* --- Beside threads of others that never sleep --- */

static void *be_busy(void *ended)
{
    while (!atomic_load_explicit((atomic_bool *)ended, memory_order_relaxed))
        ;
    return NULL;
}

static bool pin(pthread_t thread, int cpu)
{
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return pthread_setaffinity_np(thread, sizeof one, &one) == 0;
}

static void spend(void *context, uint64_t index, uint32_t worker)
{
    (void)index;
    for (volatile int i = 0; i < 50000; i++)
        ;
    atomic_fetch_add((atomic_uint *)context + worker, 1);
}

/* The shortest of some runs; whose turns they were, all together. */
static uint64_t shortest_run_ns(td_thread_pool *pool, atomic_uint turns[2])
{
    enum { RUNS = 200, TURNS = 64 };
    uint64_t least = UINT64_MAX;

    atomic_store(&turns[0], 0), atomic_store(&turns[1], 0);
    for (int i = 0; i < RUNS; i++) {
        const uint64_t begin = td_now_ns();

        td_thread_pool_run(pool, TURNS, spend, turns);
        const uint64_t took = td_now_ns() - begin;
        least = took < least ? took : least;
    }
    assert_int_equal(turns[0] + turns[1], RUNS * TURNS);
    return least;
}

/* Two threads on two cores, one of which others take: the caller does not wait for its half of the turns, but computes most of them,
 * and is ready, once nobody disturbs it, in the time that it takes alone, which is twice the time of both. */
static void test_beside_busy_threads(void **state)
{
    enum { BUSY = 16 };
    atomic_bool ended = false;
    pthread_t busy[BUSY];
    atomic_uint turns[2];
    cpu_set_t all;
    int cpus[2], count = 0;

    (void)state;
    assert_int_equal(pthread_getaffinity_np(pthread_self(), sizeof all, &all), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE && count < 2; cpu++)
        if (CPU_ISSET(cpu, &all))
            cpus[count++] = cpu;
    if (count < 2)
        skip();
    td_thread_pool *pool = td_thread_pool_create(2);
    assert_true(pin(pthread_self(), cpus[1])); /* where the pool's thread stays */
    assert_true(all_meet(pool, 2));
    assert_true(pin(pthread_self(), cpus[0]));
    const uint64_t quiet_ns = shortest_run_ns(pool, turns);
    assert_true(turns[1] > 0);
    for (int i = 0; i < BUSY; i++) {
        assert_int_equal(pthread_create(&busy[i], NULL, be_busy, &ended), 0);
        assert_true(pin(busy[i], cpus[1]));
    }
    const uint64_t busy_ns = shortest_run_ns(pool, turns);
    atomic_store(&ended, true);
    for (int i = 0; i < BUSY; i++)
        pthread_join(busy[i], NULL);
    pthread_setaffinity_np(pthread_self(), sizeof all, &all);
    td_thread_pool_destroy(&pool);
    print_message("%.2f ms, beside busy threads %.2f; %u turns the caller's, %u the other thread's\n", (double)quiet_ns / 1e6,
                  (double)busy_ns / 1e6, turns[0], turns[1]);
    assert_true(turns[0] > 1.2 * turns[1]);
    assert_true(busy_ns < 2.5 * quiet_ns);
}

/* What the other threads are: without signals, named, where the caller is. */
typedef struct looks {
    meeting m;
    atomic_uint helpers, odd;
    cpu_set_t cpus;
} looks;

static void look_at_thread(void *context, uint64_t index, uint32_t worker)
{
    looks *l = context;

    meet(&l->m, index, worker);
    if (worker) {
        char name[16] = "";
        sigset_t blocked;
        cpu_set_t cpus;

        pthread_getname_np(pthread_self(), name, sizeof name);
        pthread_sigmask(SIG_SETMASK, NULL, &blocked);
        pthread_getaffinity_np(pthread_self(), sizeof cpus, &cpus);
        l->helpers++;
        l->odd += strcmp(name, "tandem pool") != 0 || !sigismember(&blocked, SIGTERM) ||
                  !sigismember(&blocked, SIGALRM) || !CPU_EQUAL(&cpus, &l->cpus);
    }
}

static void test_what_threads_inherit(void **state)
{
    td_thread_pool *pool = td_thread_pool_create(3);
    looks l = {.m = {.wanted = 3}};
    cpu_set_t all, one;
    sigset_t blocked;

    (void)state;
    assert_int_equal(pthread_getaffinity_np(pthread_self(), sizeof all, &all), 0);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    l.cpus = one;
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    td_thread_pool_run(pool, 3, look_at_thread, &l);
    pthread_setaffinity_np(pthread_self(), sizeof all, &all);
    assert_false(l.m.is_late);
    assert_int_equal(l.helpers, 2);
    assert_int_equal(l.odd, 0);
    pthread_sigmask(SIG_SETMASK, NULL, &blocked); /* the caller's are as they were */
    assert_false(sigismember(&blocked, SIGTERM));
    td_thread_pool_destroy(&pool);
}

static void test_threads_that_cannot_start(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 4; n++) { /* all but n - 1 */
        td_thread_pool *pool = td_thread_pool_create(5);

        fault_arm(&(fault_plan){.kinds = FAULT_LIBC, .call = "pthread_create", .n = n, .sticky = true});
        for (int i = 0; i < 50; i++)
            check_run(pool, 40);
        assert_in_range(fault_disarm(), 1, n); /* it is not tried with every run */
        assert_int_equal(fault_count_live().threads, (int)n - 1);
        assert_true(all_meet(pool, n)); /* those that there are */
        if (n == 2) {
            usleep(1100000);
            assert_true(all_meet(pool, 5)); /* and now the others */
        }
        td_thread_pool_destroy(&pool);
        assert_int_equal(fault_count_live().threads, 0);
    }
    fault_arm(&(fault_plan){.kinds = FAULT_LIBC, .call = "aligned_alloc", .n = 1});
    assert_null(td_thread_pool_create(2));
    fault_arm(&(fault_plan){.kinds = FAULT_LIBC, .call = "aligned_alloc", .n = 1});
    _Atomic uint64_t sum = 0;
    td_parallel_for(4, 10, add_index, &sum);
    assert_int_equal(sum, 55);
    fault_disarm();
    assert_int_equal(fault_count_live().blocks, 0);
}

/* In a child there is the caller alone, whatever the pool's threads were at. */
static atomic_bool over;

static void *run_until_over(void *pool)
{
    while (!over)
        td_thread_pool_run(pool, 16, count_one, NULL);
    return NULL;
}

static bool child_runs(td_thread_pool *pool)
{
    _Atomic uint64_t sum = 0;
    bool all = true;

    td_thread_pool_run(pool, 10, add_index, &sum);
    td_thread_pool_destroy(&pool);
#ifndef __SANITIZE_THREAD__ /* it starts no threads there */
    pool = td_thread_pool_create(2);
    all = all_meet(pool, 2);
    td_thread_pool_destroy(&pool);
#endif
    return all && sum == 55;
}

static void test_fork(void **state)
{
    td_thread_pool *pool = td_thread_pool_create(3);
    pthread_t runner;

    (void)state;
    assert_true(all_meet(pool, 3));
    assert_int_equal(pthread_create(&runner, NULL, run_until_over, pool), 0);
    for (int i = 0; i < 20; i++) {
        int status = -1;
        const pid_t child = fork();

        if (!child) {
            limits_begin(20);
            _exit(child_runs(pool) ? 0 : 1);
        }
        assert_true(child > 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    over = true;
    pthread_join(runner, NULL);
    assert_true(all_meet(pool, 3)); /* the parent's is as it was */
    td_thread_pool_destroy(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_turn_once),
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_threads_at_once),
        cmocka_unit_test(test_no_wake_up_is_lost),   cmocka_unit_test(test_callers_at_once),
        cmocka_unit_test(test_parallel_for),         cmocka_unit_test(test_idle_threads_sleep),
        cmocka_unit_test(test_what_threads_inherit), cmocka_unit_test(test_threads_that_cannot_start),
        cmocka_unit_test(test_beside_busy_threads), cmocka_unit_test(test_fork),
    };

    return cmocka_run_group_tests_name("thread_pool", tests, NULL, NULL);
}
