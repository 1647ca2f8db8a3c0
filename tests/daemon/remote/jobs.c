/* Jobs on their way while the daemon or its worker dies or is replaced, and whoever waits for them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interop/base.h"
#include "tests/daemon/remote/rig.h"

/* Threads that wait, poll or do neither, each for jobs of its own in one session; whoever looks, no job is left lying. */
typedef struct waiter {
    side *x;
    unsigned way;
    _Atomic unsigned wrong;
    tandem_timeline engines, ours;
    tandem_job job;
    pthread_t thread;
} waiter;

/* What went wrong, and how often; two threads do so. */
static void note(waiter *w, uint64_t i, const char *what, tandem_status status)
{
    char text[300] = "";

    if (status == TANDEM_OK)
        return;
    tandem_error_text(w->x->s, text, sizeof text);
    print_error("way %u, job %u: %s: status %d: %s\n", w->way, (unsigned)i, what, (int)status, text);
    atomic_fetch_add(&w->wrong, 1);
}

static void *signal_late(void *user)
{
    waiter *w = user;

    for (uint64_t i = 1; i <= 150; i++) {
        uint64_t value = 0;
        const uint64_t begin = td_now_ns();

        while (value < i - 1 && td_now_ns() - begin < PATIENCE) {
            note(w, i, "its value", tandem_timeline_value(w->x->s, w->ours, &value));
            usleep(20);
        }
        usleep((unsigned)(i * 37 % 400));
        note(w, i, "the engine's signal", tandem_timeline_signal(w->x->s, w->engines, i));
    }
    return NULL;
}

static void *wait_in_one_way(void *user)
{
    waiter *w = user;
    tandem_session *s = w->x->s;
    pthread_t signaller;

    if (pthread_create(&signaller, NULL, signal_late, w)) {
        note(w, 0, "a thread", TANDEM_ERROR_NOMEM);
        return NULL;
    }
    for (uint64_t i = 1; i <= 150; i++) {
        tandem_job_report report = {.struct_bytes = sizeof report};
        const uint64_t begin = td_now_ns();
        tandem_ticket ticket;

        w->job.wait = (tandem_point){w->engines, i};
        w->job.signal = (tandem_point){w->ours, i};
        note(w, i, "submit", tandem_submit(s, &w->job, &ticket));
        if (i % 3)
            note(w, i, "submitted", tandem_timeline_submitted(s, w->engines, i));
        if ((w->way + i / 30) % 2)
            note(w, i, "the wait", tandem_point_wait(s, w->job.signal, SOON));
        while (tandem_poll(s, ticket, &report) == TANDEM_OK && report.state <= TANDEM_JOB_RUNNING &&
               td_now_ns() - begin < SOON)
            usleep(100);
        if (report.state != TANDEM_JOB_DONE)
            print_error("way %u, job %u: state %u\n", w->way, (unsigned)i, (unsigned)report.state);
        note(w, i, "the job", report.state == TANDEM_JOB_DONE ? TANDEM_OK : report.status ? (tandem_status)report.status : TANDEM_ERROR_BUSY);
    }
    pthread_join(signaller, NULL);
    return NULL;
}

static void let_them_wait(side *x)
{
    enum { WAITERS = 3 };
    waiter all[WAITERS];
    uint64_t in, bytes;
    void *host;

    for (unsigned i = 0; i < WAITERS; i++) {
        all[i] = (waiter){.x = x, .way = i};
        all[i].engines = new_timeline(x, TANDEM_SIGNALLER_ENGINE);
        all[i].ours = new_timeline(x, TANDEM_SIGNALLER_SESSION);
        job_of(&shapes[0], 1, &in, &bytes);
        all[i].job = job_of(&shapes[0], new_mem(x, bytes, &host), &in, &bytes);
        fill(host, in, bytes, shapes[0].dtype);
    }
    for (unsigned i = 0; i < WAITERS; i++)
        assert_int_equal(pthread_create(&all[i].thread, NULL, wait_in_one_way, &all[i]), 0);
    for (unsigned i = 0; i < WAITERS; i++) {
        pthread_join(all[i].thread, NULL);
        assert_int_equal(all[i].wrong, 0);
    }
}

static void test_waiters(void **state)
{
    side x;

    (void)state;
    open_side(&x, socket_path, NULL, 0);
    let_them_wait(&x);
    close_side(&x);
    if (!open_vulkan(NULL))
        return;
    open_side(&x, socket_path, &vulkan, 0);
    let_them_wait(&x);
    close_side(&x);
    close_vulkan();
}

void await_return(side *x, tandem_job *job)
{
    const uint64_t begin = td_now_ns();
    tandem_ticket ticket;
    tandem_status status;

    job->signal = (tandem_point){x->ours, x->value + 1};
    while ((status = tandem_submit(x->s, job, &ticket)) == TANDEM_ERROR_LOST) {
        assert_true(td_now_ns() - begin < PATIENCE);
        sleep_ms(2);
    }
    assert_int_equal(status, TANDEM_OK);
    x->value++;
    assert_int_equal(ended(x, ticket, PATIENCE).state, TANDEM_JOB_DONE);
}

/* A job whose deadline passes while it waits for the engine is STALE then, not when its wait is over. */
static void test_late_waits(void **state)
{
    uint64_t in, bytes, begin;
    tandem_job job;
    void *host;
    side x;

    (void)state;
    open_side(&x, socket_path, NULL, 0);
    job_of(&shapes[0], 1, &in, &bytes);
    job = job_of(&shapes[0], new_mem(&x, bytes, &host), &in, &bytes);
    job.wait = (tandem_point){x.engines, 1};
    job.deadline_ns = 5 * MS;
    for (int i = 0; i < 20; i++) {
        begin = td_now_ns();
        assert_int_equal(ended(&x, submit(&x, &job), PATIENCE).state, TANDEM_JOB_STALE);
        assert_true(td_now_ns() - begin < SOON);
    }
    close_side(&x);
}

/* One is being computed, one waits for its turn, one for the engine: killed in the midst of it. */
static void test_killed(void **state)
{
    const int fds = count_fds_of(getpid());
    uint64_t in, bytes, begin;
    void *want = expected(&shapes[0], &bytes), *host;
    side x;

    (void)state;
    open_side(&x, socket_path, NULL, 0);
    for (unsigned round = 0; round < 4; round++) {
        const tandem_mem mem = new_mem(&x, bytes, &host);
        tandem_job job = job_of(&shapes[0], mem, &in, &bytes), busy;
        tandem_ticket tickets[3];
        tandem_mem busy_mem;
        struct pollfd p = {.events = POLLIN};
        tandem_job_report report;
        char text[500] = "";

        fill(host, in, bytes, shapes[0].dtype);
        run(&x, &job);
        assert_memory_equal(host, want, bytes);
        busy = long_job(&x, &busy_mem);
        tickets[0] = submit(&x, &busy);
        tickets[1] = submit(&x, &job);
        job.wait = (tandem_point){x.engines, round + 1};
        tickets[2] = submit(&x, &job);
        job.wait = (tandem_point){0, 0};
        assert_int_equal(tandem_point_fd(x.s, (tandem_point){x.ours, x.value - 2}, &p.fd), TANDEM_OK);
        sleep_ms(30 + 20 * round);
        assert_int_equal(poll(&p, 1, 0), 0);
        end_daemon(SIGKILL);
        begin = td_now_ns();
        assert_int_equal(poll(&p, 1, (int)(SOON / MS)), 1);
        close(p.fd);
        assert_int_equal(tandem_point_wait(x.s, (tandem_point){x.ours, x.value - 1}, SOON), TANDEM_OK);
        assert_true(td_now_ns() - begin < SOON);
        for (int i = 0; i < 2; i++) {
            report = ended(&x, tickets[i], SOON);
            assert_int_equal(report.state, TANDEM_JOB_FAILED);
            assert_int_equal(report.status, TANDEM_ERROR_LOST);
        }
        assert_int_equal(tandem_timeline_signal(x.s, x.engines, round + 1), TANDEM_OK);
        report = ended(&x, tickets[2], SOON);
        assert_int_equal(report.status, TANDEM_ERROR_LOST);
        assert_int_equal(tandem_point_wait(x.s, (tandem_point){x.ours, x.value}, SOON), TANDEM_OK);
        tandem_error_text(x.s, text, sizeof text);
        assert_non_null(strstr(text, "tandemd at '"));
        job.signal = (tandem_point){x.ours, x.value + 1};
        assert_int_equal(tandem_submit(x.s, &job, &tickets[0]), TANDEM_ERROR_LOST);
        assert_int_equal(tandem_mem_destroy(x.s, busy_mem), TANDEM_OK); /* nobody is there to be asked */
        fill(host, in, bytes, shapes[0].dtype);
        start_daemon("threads = 1\n");
        await_return(&x, &job);
        assert_memory_equal(host, want, bytes);
        if (round % 2)
            assert_int_equal(tandem_mem_destroy(x.s, mem), TANDEM_OK);
    }
    close_side(&x);
    free(want);
    assert_int_equal(count_fds_of(getpid()), fds);
}

/* Jobs are with the daemon before those in front of them have ended. */
static void test_ahead(void **state)
{
    tandem_job_report first = {.struct_bytes = sizeof first}, second = first;
    uint64_t in, bytes;
    void *want = expected(&shapes[0], &bytes), *host;
    tandem_ticket tickets[3];
    tandem_mem mem, busy_mem;
    tandem_job job, busy;
    side x;

    (void)state;
    open_side(&x, socket_path, NULL, 0);
    mem = new_mem(&x, bytes, &host);
    job = job_of(&shapes[0], mem, &in, &bytes);
    busy = long_job(&x, &busy_mem);
    fill(host, in, bytes, shapes[0].dtype);
    tickets[0] = submit(&x, &busy);
    tickets[1] = submit(&x, &job);
    job.wait = (tandem_point){x.ours, x.value}; /* which is not there yet */
    tickets[2] = submit(&x, &job);
    do
        assert_int_equal(tandem_poll(x.s, tickets[1], &second), TANDEM_OK);
    while (second.state == TANDEM_JOB_PENDING);
    assert_int_equal(tandem_poll(x.s, tickets[0], &first), TANDEM_OK);
    assert_int_equal(first.state, TANDEM_JOB_RUNNING);
    assert_int_equal(second.state, TANDEM_JOB_RUNNING);
    tandem_cancel(x.s, tickets[0]);
    assert_int_equal(ended(&x, tickets[0], PATIENCE).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(ended(&x, tickets[2], PATIENCE).state, TANDEM_JOB_DONE);
    assert_memory_equal(host, want, bytes);
    close_side(&x);
    free(want);
}

/* The worker alone dies: the job is lost, the connection is not. A daemon that stops in order comes back too. */
static void test_replaced(void **state)
{
    uint64_t in, bytes;
    void *want = expected(&shapes[0], &bytes), *host;
    tandem_mem mem, busy_mem;
    tandem_job_report report;
    tandem_ticket ticket, next;
    tandem_job job, busy;
    unsigned warnings;
    side x;

    (void)state;
    open_side(&x, socket_path, NULL, 0);
    mem = new_mem(&x, bytes, &host);
    job = job_of(&shapes[0], mem, &in, &bytes);
    busy = long_job(&x, &busy_mem);
    fill(host, in, bytes, shapes[0].dtype);
    ticket = submit(&x, &busy);
    next = submit(&x, &job);
    sleep_ms(50);
    warnings = x.warnings;
    assert_int_equal(kill(logged_worker(log_path), SIGKILL), 0);
    report = ended(&x, ticket, PATIENCE);
    assert_int_equal(report.state, TANDEM_JOB_FAILED);
    assert_int_equal(report.status, TANDEM_ERROR_LOST);
    assert_int_equal(tandem_point_wait(x.s, (tandem_point){x.ours, x.value - 1}, SOON), TANDEM_OK);
    assert_int_equal(ended(&x, next, PATIENCE).state, TANDEM_JOB_DONE);
    assert_memory_equal(host, want, bytes);
    assert_int_equal(x.warnings, warnings); /* the connection stayed */
    end_daemon(SIGTERM);
    start_daemon("threads = 1\n");
    fill(host, in, bytes, shapes[0].dtype);
    await_return(&x, &job);
    assert_memory_equal(host, want, bytes);
    close_side(&x);
    free(want);
}

/* A mem and a timeline that are given up while tandemd's job has yet to begin: it is computed all the same, and when it has
 * ended both are gone here and there. A daemon that comes later hears nothing of them. */
static void test_retired(void **state)
{
    uint64_t in, bytes;
    void *want = expected(&shapes[0], &bytes), *host, *gone;
    tandem_mem kept, mem;
    tandem_timeline given_up;
    tandem_ticket ticket;
    tandem_job job, later;
    side x;
    int fds;

    (void)state;
    open_side(&x, socket_path, NULL, 0);
    kept = new_mem(&x, bytes, &host);
    later = job_of(&shapes[0], kept, &in, &bytes);
    fill(host, in, bytes, shapes[0].dtype);
    run(&x, &later);
    fds = vku_open_fds();
    mem = new_mem(&x, bytes, &gone);
    fill(gone, in, bytes, shapes[0].dtype);
    given_up = new_timeline(&x, TANDEM_SIGNALLER_ENGINE);
    job = job_of(&shapes[0], mem, &in, &bytes);
    job.wait = (tandem_point){given_up, 1};
    ticket = submit(&x, &job);
    assert_int_equal(tandem_retire(x.s, mem), TANDEM_OK);
    assert_int_equal(tandem_mem_destroy(x.s, mem), TANDEM_ERROR_ARG);
    sleep_ms(20);
    assert_memory_not_equal(gone, want, bytes); /* it is there, and nothing was computed */
    assert_int_equal(tandem_timeline_signal(x.s, given_up, 1), TANDEM_OK);
    assert_int_equal(tandem_retire(x.s, given_up), TANDEM_OK);
    assert_int_equal(ended(&x, ticket, PATIENCE).state, TANDEM_JOB_DONE);
    for (unsigned ms = 0; ms < PATIENCE / MS && vku_open_fds() > fds; ms++)
        sleep_ms(1);
    assert_int_equal(vku_open_fds(), fds);
    end_daemon(SIGTERM);
    start_daemon("threads = 1\n");
    fill(host, in, bytes, shapes[0].dtype);
    await_return(&x, &later);
    assert_memory_equal(host, want, bytes);
    close_side(&x);
    free(want);
}

/* As in process: an engine that signals for a frame once the frame before is there has its time from then, however long the
 * daemon took; here its worker is stopped. */
static void test_wait_behind_a_long_job(void **state)
{
    enum { BOUND_MS = 200 };
    uint64_t in, bytes;
    void *want = expected(&shapes[0], &bytes), *host;
    tandem_job_report report = {.struct_bytes = sizeof report};
    tandem_ticket tickets[3];
    char text[500] = "";
    tandem_job job;
    pid_t worker;
    side x;

    (void)state;
    open_bounded(&x, socket_path, NULL, 0, BOUND_MS * MS);
    job = job_of(&shapes[0], new_mem(&x, bytes, &host), &in, &bytes);
    fill(host, in, bytes, shapes[0].dtype);
    worker = logged_worker(log_path);
    stop_process(worker);
    for (uint64_t i = 0; i < 3; i++) {
        job.wait = i ? (tandem_point){x.engines, i} : (tandem_point){0};
        tickets[i] = submit(&x, &job);
    }
    sleep_ms(3 * BOUND_MS);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(tandem_poll(x.s, tickets[i], &report), TANDEM_OK);
        assert_int_equal(report.state, TANDEM_JOB_PENDING);
    }
    assert_int_equal(tandem_timeline_signal(x.s, x.engines, 1), TANDEM_OK);
    assert_int_equal(kill(worker, SIGCONT), 0);
    assert_int_equal(ended(&x, tickets[0], PATIENCE).state, TANDEM_JOB_DONE);
    report = ended(&x, tickets[1], PATIENCE);
    assert_int_equal(report.state, TANDEM_JOB_DONE);
    assert_memory_equal(host, want, bytes);
    assert_int_equal(ended(&x, tickets[2], PATIENCE).status, TANDEM_ERROR_LOST); /* but no longer than that */
    assert_true(td_now_ns() - report.end_ns >= BOUND_MS * MS);
    tandem_error_text(x.s, text, sizeof text);
    assert_non_null(strstr(text, "did not come within 200 ms"));
    close_side(&x);
    free(want);
}

/* The daemon waits a minute at most; who asks for more is told so. */
static void test_longest_wait(void **state)
{
    side x;

    (void)state;
    for (uint64_t seconds = 60; seconds <= 61; seconds++) {
        open_bounded(&x, socket_path, NULL, 0, seconds * 1000 * MS);
        assert_int_equal(atomic_load(&x.warnings), seconds - 60);
        close_side(&x);
    }
}

/* While what a job reads is copied to where the daemon sees it, the job is cancelled: if that is what it ends in, it has
 * written nothing, as it has a deadline. */
static void test_cancelled_while_copied(void **state)
{
    enum { ROW = 1 << 19, ROUNDS = 12 }; /* floats from row to row of k, of 40: 84 MB to be copied */
    const uint64_t far_bytes = (uint64_t)ROW * sizeof(float) * shapes[0].kv_len;
    void *far = mmap(NULL, far_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *host;
    tandem_mem_desc desc = {.struct_bytes = sizeof desc, .source = TANDEM_MEM_HOST, .bytes = far_bytes, .host = far};
    uint64_t in, bytes;
    tandem_mem far_mem;
    tandem_job job;
    side x;

    (void)state;
    assert_true(far != MAP_FAILED);
    open_side(&x, socket_path, NULL, 0);
    assert_int_equal(tandem_mem_create(x.s, &desc, &far_mem), TANDEM_OK);
    job_of(&shapes[0], 1, &in, &bytes);
    job = job_of(&shapes[0], new_mem(&x, bytes, &host), &in, &bytes);
    job.op.attention.k = (tandem_view){.mem = far_mem, .dtype = shapes[0].dtype, .stride_row = ROW};
    job.deadline_ns = PATIENCE;
    for (unsigned round = 0; round < ROUNDS; round++) {
        const unsigned char *o = (unsigned char *)host + in;
        tandem_ticket ticket;

        fill(host, in, bytes, shapes[0].dtype);
        ticket = submit(&x, &job);
        usleep(round * 2000);
        tandem_cancel(x.s, ticket);
        if (ended(&x, ticket, PATIENCE).state != TANDEM_JOB_CANCELLED)
            continue;
        sleep_ms(20);
        for (uint64_t i = 0; i < bytes - in; i++)
            assert_int_equal(o[i], 0x55);
    }
    job.deadline_ns = 0;
    run(&x, &job);
    close_side(&x);
    munmap(far, far_bytes);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_late_waits),
    cmocka_unit_test(test_killed),
    cmocka_unit_test(test_ahead),
    cmocka_unit_test(test_replaced),
    cmocka_unit_test(test_retired),
    cmocka_unit_test(test_waiters),
    cmocka_unit_test(test_wait_behind_a_long_job),
    cmocka_unit_test(test_longest_wait),
    cmocka_unit_test(test_cancelled_while_copied),
};
const test_cases remote_jobs_cases = TEST_CASES(cases);
