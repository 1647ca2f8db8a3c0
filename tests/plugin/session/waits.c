/* How long calls wait: as long as they are asked to.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "interop/base.h"
#include "tests/plugin/session/rig.h"

/* The library's clock is this one: it may be behind the machine's, and then catch up in one step. What sleeps until a time
 * on it wakes early meanwhile, never late. Seen from without, as the library may be a file of its own. */
static atomic_llong behind_s;

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *t)
{
    const long status = syscall(SYS_clock_gettime, clock, t);

    if (!status && clock == CLOCK_MONOTONIC)
        t->tv_sec -= atomic_load(&behind_s);
    return (int)status;
}

typedef struct waiter {
    tandem_session *s;
    tandem_ticket ticket; /* or 0: the point */
    tandem_point point;
    uint64_t timeout_ns;
    tandem_status status;
    atomic_bool over;
    pthread_t thread;
} waiter;

static void *wait_for_it(void *user)
{
    waiter *w = user;

    w->status = w->ticket ? tandem_wait(w->s, w->ticket, w->timeout_ns, NULL)
                          : tandem_point_wait(w->s, w->point, w->timeout_ns);
    atomic_store(&w->over, true);
    return NULL;
}

/* Two minutes, and for ever, of a job and of points that nobody signals for as long. */
static void test_as_long_as_asked(void **state)
{
    const uint64_t minutes = 120000 * MS;
    waiter w[5];
    tandem_job job;
    rig r;

    (void)state;
    atomic_store(&behind_s, 130);
    assert_true(rig_prepare(&r, ON_CPU));
    r.desc.wait_bound_ns = 1000000 * MS;
    assert_true(rig_start(&r));
    job = new_job(new_mem(&r, MEM_BYTES));
    job.wait = (tandem_point){new_timeline(&r, TANDEM_SIGNALLER_ENGINE, 0), 1};
    job.signal = (tandem_point){new_timeline(&r, TANDEM_SIGNALLER_SESSION, 0), 1};
    memset(w, 0, sizeof w);
    w[0].ticket = w[3].ticket = submit(&r, &job);
    w[1].point = job.wait;
    w[2].point = w[4].point = job.signal;
    for (int i = 0; i < 5; i++) {
        w[i].s = r.s;
        w[i].timeout_ns = i < 3 ? minutes : UINT64_MAX;
        assert_int_equal(pthread_create(&w[i].thread, NULL, wait_for_it, &w[i]), 0);
    }
    sleep_ns(STUCK_NS);
    atomic_store(&behind_s, 69); /* 61 s later: a minute is over */
    sleep_ns(STUCK_NS);
    for (int i = 0; i < 5; i++)
        assert_false(atomic_load(&w[i].over));
    atomic_store(&behind_s, 0); /* and two are */
    for (int i = 0; i < 3; i++) {
        pthread_join(w[i].thread, NULL);
        assert_int_equal(w[i].status, TANDEM_ERROR_BUSY);
    }
    sleep_ns(STUCK_NS);
    for (int i = 3; i < 5; i++)
        assert_false(atomic_load(&w[i].over));
    assert_int_equal(tandem_timeline_signal(r.s, job.wait.timeline, 1), TANDEM_OK);
    for (int i = 3; i < 5; i++) {
        pthread_join(w[i].thread, NULL);
        assert_int_equal(w[i].status, TANDEM_OK);
    }
    rig_close(&r);
}

/* A timeline that was retired rises no further than its jobs take it: who waits beyond that, for ever, learns of it. */
static void wait_for_retired(rig *r)
{
    waiter w[2];

    memset(w, 0, sizeof w);
    for (int i = 0; i < 2; i++) {
        w[i].s = r->s;
        w[i].point = (tandem_point){new_timeline(r, i ? TANDEM_SIGNALLER_SESSION : TANDEM_SIGNALLER_ENGINE, 0), 1};
        w[i].timeout_ns = UINT64_MAX;
        assert_int_equal(pthread_create(&w[i].thread, NULL, wait_for_it, &w[i]), 0);
    }
    sleep_ns(STUCK_NS);
    for (int i = 0; i < 2; i++) {
        assert_false(atomic_load(&w[i].over));
        assert_int_equal(tandem_retire(r->s, w[i].point.timeline), TANDEM_OK);
        pthread_join(w[i].thread, NULL);
        assert_int_equal(w[i].status, TANDEM_ERROR_ARG);
    }
}

static void test_wait_for_retired(void **state)
{
    (void)state;
    each_kind(wait_for_retired);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_as_long_as_asked),
    cmocka_unit_test(test_wait_for_retired),
};
const test_cases session_waits_cases = TEST_CASES(cases);
