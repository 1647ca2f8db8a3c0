/* Many sessions, and one session of many threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interop/base.h"
#include "tests/plugin/session/rig.h"

static void *own_session(void *user)
{
    const uint64_t seed = (uint64_t)(uintptr_t)user;
    float *data = calloc(1, MEM_BYTES);
    rig r;

    for (uint32_t round = 0; round < 3; round++) {
        tandem_mem mem;
        tandem_job job;

        assert_true(rig_prepare(&r, ON_CPU));
        r.desc.cpu_threads = 1;
        assert_true(rig_start(&r));
        mem = new_mem(&r, MEM_BYTES);
        job = new_job(mem);
        for (uint32_t i = 0; i < 10; i++) {
            fill(data, seed * 1000 + i);
            transfer(&r, mem, data, MEM_BYTES, true);
            assert_int_equal(ended(&r, submit(&r, &job)).state, TANDEM_JOB_DONE);
            transfer(&r, mem, data, MEM_BYTES, false);
            check_output(&job, data, 2e-3);
        }
        rig_close(&r);
    }
    free(data);
    return NULL;
}

static void test_many_sessions(void **state)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];

    (void)state;
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, own_session, (void *)i), 0);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* No session takes an id of another for its own. */
static void test_foreign_ids(void **state)
{
    enum { SESSIONS = 200 };
    const tandem_mem_desc mem_desc = {.struct_bytes = sizeof mem_desc, .bytes = 64};
    static tandem_session *sessions[SESSIONS];
    tandem_mem mems[SESSIONS];
    void *host;
    rig r;

    (void)state;
    assert_true(rig_prepare(&r, ON_CPU));
    for (uint32_t i = 0; i < SESSIONS; i++) {
        assert_int_equal(tandem_session_create(&r.desc, &sessions[i]), TANDEM_OK);
        assert_int_equal(tandem_mem_create(sessions[i], &mem_desc, &mems[i]), TANDEM_OK);
    }
    for (uint32_t i = 0; i < SESSIONS; i++)
        for (uint32_t k = 0; k < SESSIONS; k++)
            assert_int_equal(tandem_mem_host(sessions[i], mems[k], &host), i == k ? TANDEM_OK : TANDEM_ERROR_ARG);
    for (uint32_t i = 0; i < SESSIONS; i++)
        assert_int_equal(tandem_session_destroy(&sessions[i]), TANDEM_OK);
    rig_close(&r);
}

/* Several threads on one session: submit, cancel, poll, create, destroy, read the info. */
typedef struct crowd {
    rig *r;
    tandem_timeline engines;
    atomic_uint_fast64_t next;
    atomic_bool stop;
    atomic_uint ended, refused;
} crowd;

/* Whether a report was there, or the others have come so far meanwhile that it is no longer kept. */
static void expect_report(crowd *c, uint64_t n, tandem_status status)
{
    if (atomic_load(&c->next) - n < 200)
        assert_int_equal(status, TANDEM_OK);
    else
        assert_true(status == TANDEM_OK || status == TANDEM_ERROR_ARG);
}

static void *crowd_member(void *user)
{
    crowd *c = user;
    tandem_info info = {.struct_bytes = sizeof info};

    while (!atomic_load(&c->stop)) {
        const tandem_mem mem = new_mem(c->r, MEM_BYTES);
        const tandem_timeline ours = new_timeline(c->r, TANDEM_SIGNALLER_SESSION, 0);
        tandem_job_report report = {.struct_bytes = sizeof report};
        tandem_job job = new_job(mem);
        tandem_ticket ticket;
        uint64_t n = atomic_fetch_add(&c->next, 1);

        job.op.attention.q_len = job.op.attention.kv_len = 8;
        job.wait = (tandem_point){c->engines, n / 4};
        job.signal = (tandem_point){ours, 1};
        job.deadline_ns = n % 5 ? 0 : n % 2 ? MS : MS / 20;
        if (n % 11 == 0)
            assert_int_equal(tandem_timeline_submitted(c->r->s, c->engines, n / 4), TANDEM_OK);
        if (tandem_submit(c->r->s, &job, &ticket) == TANDEM_OK) {
            if (n % 3 == 0)
                tandem_cancel(c->r->s, ticket);
            if (n % 2)
                expect_report(c, n, tandem_poll(c->r->s, ticket, &report));
            assert_int_equal(tandem_session_info(c->r->s, &info), TANDEM_OK);
            if (n % 7 == 0)
                assert_int_equal(tandem_mem_destroy(c->r->s, mem), TANDEM_OK);
            if (n % 13 == 0) {
                struct pollfd fd = {.events = POLLIN};

                assert_int_equal(tandem_point_fd(c->r->s, job.signal, &fd.fd), TANDEM_OK);
                assert_int_equal(poll(&fd, 1, LONG_NS / MS), 1);
                close(fd.fd);
            }
            assert_int_equal(tandem_point_wait(c->r->s, job.signal, LONG_NS), TANDEM_OK);
            report.state = TANDEM_JOB_DONE;
            expect_report(c, n, tandem_wait(c->r->s, ticket, LONG_NS, &report));
            assert_true(report.state >= TANDEM_JOB_DONE && report.state <= TANDEM_JOB_CANCELLED);
            atomic_fetch_add(&c->ended, 1);
            if (n % 7)
                assert_int_equal(tandem_mem_destroy(c->r->s, mem), TANDEM_OK);
        } else {
            atomic_fetch_add(&c->refused, 1);
            assert_int_equal(tandem_mem_destroy(c->r->s, mem), TANDEM_OK);
        }
        assert_int_equal(tandem_timeline_destroy(c->r->s, ours), TANDEM_OK);
    }
    return NULL;
}

static void crowded(rig *r)
{
    enum { THREADS = 4 };
    crowd c = {.r = r, .engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0)};
    const uint64_t until = td_now_ns() + 600 * MS;
    pthread_t threads[THREADS];

    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, crowd_member, &c), 0);
    for (uint64_t signalled = 0; td_now_ns() < until; sleep_ns(MS / 5)) {
        const uint64_t value = atomic_load(&c.next);

        if (value > signalled)
            assert_int_equal(tandem_timeline_signal(r->s, c.engines, signalled = value), TANDEM_OK);
    }
    atomic_store(&c.stop, true);
    assert_int_equal(tandem_timeline_signal(r->s, c.engines, 1u << 30), TANDEM_OK);
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(tandem_session_info(r->s, &r->info), TANDEM_OK);
    assert_int_equal(r->info.jobs_submitted, atomic_load(&c.ended));
    assert_int_equal(r->info.jobs_submitted, r->info.jobs_done + r->info.jobs_stale + r->info.jobs_cancelled);
    assert_int_equal(r->info.jobs_failed, 0);
    assert_true(r->info.jobs_done > 5);
}

static void test_crowd(void **state)
{
    (void)state;
    each_kind(crowded);
}

/* Each thread has the text of its own last failure, whatever others do with the same session meanwhile. */
typedef struct failing {
    rig *r;
    tandem_mem mem;
    pthread_barrier_t *barrier;
} failing;

static void *fail_on(void *user)
{
    const failing *f = user;
    char text[300], expected[300];
    void *host;

    assert_int_equal(tandem_error_text(NULL, text, sizeof text), TANDEM_OK);
    assert_string_equal(text, "");
    snprintf(expected, sizeof expected, "tandem_mem_host: mem is 0x%llx, which is not one of this session",
             (unsigned long long)f->mem);
    for (uint32_t i = 0; i < 200; i++) {
        assert_int_equal(tandem_mem_host(f->r->s, f->mem, &host), TANDEM_ERROR_ARG);
        pthread_barrier_wait(f->barrier); /* all have failed */
        assert_int_equal(tandem_error_text(NULL, text, sizeof text), TANDEM_OK);
        assert_string_equal(text, expected);
        pthread_barrier_wait(f->barrier);
    }
    return NULL;
}

static void test_texts_of_threads(void **state)
{
    enum { THREADS = 4 };
    char text[300], sessions[300];
    pthread_barrier_t barrier;
    pthread_t threads[THREADS];
    failing f[THREADS];
    rig r;

    (void)state;
    assert_true(rig_open(&r, ON_CPU));
    pthread_barrier_init(&barrier, NULL, THREADS);
    assert_int_equal(tandem_mem_destroy(r.s, 7), TANDEM_ERROR_ARG);
    for (uint32_t i = 0; i < THREADS; i++) {
        f[i] = (failing){&r, 1 + i, &barrier};
        assert_int_equal(pthread_create(&threads[i], NULL, fail_on, &f[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(tandem_error_text(NULL, text, sizeof text), TANDEM_OK);
    assert_string_equal(text, "tandem_mem_destroy: mem is 0x7, which is not one of this session");
    assert_int_equal(tandem_error_text(r.s, sessions, sizeof sessions), TANDEM_OK);
    assert_memory_equal(sessions, "tandem_mem_host: ", 17); /* the last of all */
    pthread_barrier_destroy(&barrier);
    rig_close(&r);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_many_sessions),
    cmocka_unit_test(test_foreign_ids),
    cmocka_unit_test(test_crowd),
    cmocka_unit_test(test_texts_of_threads),
};
const test_cases session_threads_cases = TEST_CASES(cases);
