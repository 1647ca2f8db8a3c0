/* tandemd's workers: dying, hanging, silent ones; every job ends, and every point comes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/plugin/daemon_client.h"

static void a_killed_worker_is_replaced(void **state)
{
    td_shared_timeline in, out;
    client c, quiet;
    pid_t worker = await_worker(0);
    tandem_job job, slow_job;
    uint64_t held, running, begin;
    task t, slow;

    (void)state;
    client_open(&c, "unlucky");
    client_open(&quiet, "quiet");
    task_make(&t, &eight, 6);
    task_make(&slow, &large, 7);
    task_share(&t, &c);
    task_share(&slow, &c);
    clear_output(&t);
    job = job_of(&t);
    job.wait = (tandem_point){client_timeline(&c, &in, false, 0), 1};
    job.signal = (tandem_point){client_timeline(&c, &out, true, 0), 2};
    slow_job = job_of(&slow);
    slow_job.signal = (tandem_point){job.signal.timeline, 1};
    running = client_job(&c, &slow_job);
    held = client_job(&c, &job);
    begin = td_now_ns();
    while (client_report(&c, running, 0).state == TANDEM_JOB_PENDING && td_now_ns() - begin < PATIENCE)
        ;
    assert_int_equal(client_report(&c, running, 0).state, TANDEM_JOB_RUNNING);
    kill(worker, SIGKILL);
    assert_true(await_point(&out, 1));
    assert_int_equal(client_report(&c, running, 0).state, TANDEM_JOB_FAILED);
    assert_int_equal(client_report(&c, running, 0).status, TANDEM_ERROR_LOST);
    client_events(&c, 2000 * MS);
    assert_int_equal(c.resets, 1);
    assert_int_equal(c.event.reset.epoch, c.welcome.epoch + 1);
    assert_int_equal(c.event.reset.last_ticket, running);
    client_events(&quiet, 2000 * MS);
    assert_int_equal(quiet.resets, 1);
    /* ids stay, and what waited goes on */
    assert_int_equal(client_report(&c, held, 0).state, TANDEM_JOB_PENDING);
    td_shared_timeline_raise(&in, 1);
    assert_true(await_point(&out, 2));
    assert_int_equal(client_report(&c, held, 0).state, TANDEM_JOB_DONE);
    check_output(&t);
    worker = await_worker(worker);
    assert_int_equal(client_object(&c, TD_WIRE_MEM_DESTROY, slow.mem), TANDEM_OK);
    client_close(&c);
    client_close(&quiet);
    td_shared_timeline_close(&in);
    td_shared_timeline_close(&out);
    task_free(&t);
    task_free(&slow);
    check_serves();
}

/* A worker that keeps what was a dead client's is ended; and so is a client whose jobs end three workers. */
static void a_worker_that_hangs_is_ended(void **state)
{
    pid_t worker = await_worker(0);
    td_wire_message info, answer;
    tandem_job job;
    client c;
    task t;

    (void)state;
    client_open(&c, "about to go");
    task_make(&t, &small, 8);
    task_share(&t, &c);
    job = job_of(&t);
    kill(worker, SIGSTOP);
    sleep_ms(10);
    client_job(&c, &job);
    sleep_ms(20);
    client_close(&c);
    worker = await_worker(worker);
    check_serves();
    client_open(&c, "poison");
    task_share(&t, &c);
    for (int i = 0; i < 3; i++) {
        const uint64_t begin = td_now_ns();

        info = td_wire_new(TD_WIRE_INFO, c.rules.next_serial);
        assert_int_equal(client_ask(&c, &info, NULL, &answer, NULL), TANDEM_OK); /* it has begun */
        kill(worker, SIGSTOP);
        sleep_ms(10);
        client_job(&c, &job);
        while (client_report(&c, c.last_ticket, 0).state == TANDEM_JOB_PENDING && td_now_ns() - begin < PATIENCE)
            ;
        kill(worker, SIGKILL);
        worker = await_worker(worker);
        assert_int_equal(client_report(&c, c.last_ticket, PATIENCE).status, TANDEM_ERROR_LOST);
        if (i == 2)
            continue;
        while (client_events(&c, 1000 * MS) == TANDEM_OK)
            ;
        assert_int_equal(c.resets, i + 1);
    }
    while (client_events(&c, 1000 * MS) == TANDEM_ERROR_BUSY)
        ;
    assert_int_equal(c.event.header.type, TD_WIRE_ERROR);
    assert_int_equal(c.event.error.status, TANDEM_ERROR_DEVICE);
    client_close(&c);
    task_free(&t);
    check_serves();
}

/* Whenever a worker dies: every point comes, every job ends, and what is DONE is right. */
static void workers_may_die_at_any_time(void **state)
{
    enum { DEATHS = 7 }; /* of which the last brings the delay before the next worker to its longest */
    const int fds = count_fds(daemon_pid);
    uint64_t random = 4711, last = 0, lost = 0, done = 0;
    pid_t worker = await_worker(0);
    td_shared_timeline out;
    tandem_job job;
    void *expected;
    client c;
    task t;

    (void)state;
    client_open(&c, "steadfast");
    task_make(&t, &eight, 60);
    task_share(&t, &c);
    expected = in_process(&t, TANDEM_BACKEND_CPU);
    job = job_of(&t);
    job.signal.timeline = client_timeline(&c, &out, true, 0);
    for (int i = 0; i < DEATHS; i++) {
        const uint64_t until = td_now_ns() + 20 * MS + (random >> 33) % (30 * MS);
        const uint64_t begin = td_now_ns();
        bool one = false;

        random = random * 6364136223846793005u + 1442695040888963407u;
        while (td_now_ns() < until || !one) { /* at least one right result with each worker */
            td_wire_report r;

            assert_true(td_now_ns() - begin < PATIENCE);
            clear_output(&t);
            job.signal.value = ++last;
            client_job(&c, &job);
            assert_true(await_point(&out, last));
            r = client_report(&c, c.last_ticket, 0);
            done += r.state == TANDEM_JOB_DONE;
            one = one || r.state == TANDEM_JOB_DONE;
            if (r.state == TANDEM_JOB_DONE)
                assert_memory_equal((char *)t.data + t.o_at, expected, t.q_bytes);
            else
                assert_int_equal(r.status, TANDEM_ERROR_LOST);
        }
        job.signal.value = ++last;
        client_job(&c, &job);
        usleep((useconds_t)(random >> 33) % 300);
        kill(worker, SIGKILL);
        assert_true(await_point(&out, last));
        {
            const td_wire_report r = client_report(&c, c.last_ticket, 0);

            assert_true(r.state == TANDEM_JOB_DONE || (r.state == TANDEM_JOB_FAILED && r.status == TANDEM_ERROR_LOST));
            lost += r.state == TANDEM_JOB_FAILED;
        }
        worker = await_worker(worker);
        client_events(&c, 0);
    }
    print_message("  %" PRIu64 " jobs done, %" PRIu64 " lost\n", done, lost);
    for (const uint64_t begin = td_now_ns(); c.resets < DEATHS && td_now_ns() - begin < PATIENCE;)
        client_events(&c, 1000 * MS);
    assert_int_equal(c.resets, DEATHS);
    client_close(&c);
    td_shared_timeline_close(&out);
    task_free(&t);
    free(expected);
    await_clean(fds, LONG_MAX);
}

/* What follows from a job before it has its time from that one's end: a worker that takes long over the first is stopped
 * for three times the bound. */
static void a_wait_behind_a_long_job_is_no_late_one(void **state)
{
    enum { BOUND_MS = 200 };
    td_wire_message m = hello(TD_WIRE_SHARE_HOST, "who waits for its frames");
    const pid_t worker = await_worker(0);
    uint64_t tickets[3], waits;
    td_wire_report r;
    td_shared_timeline in = {0};
    tandem_job job;
    client c;
    task t;

    (void)state;
    m.hello.wait_bound_ns = BOUND_MS * MS;
    m.hello.timing = 1;
    assert_int_equal(client_connect(&c), TANDEM_OK);
    assert_int_equal(client_hello(&c, &m), TANDEM_OK);
    waits = client_timeline(&c, &in, false, 0);
    task_make(&t, &small, 51);
    task_share(&t, &c);
    job = job_of(&t);
    stop_process(worker);
    for (uint64_t i = 0; i < 3; i++) {
        job.wait = i ? (tandem_point){waits, i} : (tandem_point){0};
        tickets[i] = client_job(&c, &job);
    }
    sleep_ms(3 * BOUND_MS);
    for (int i = 1; i < 3; i++)
        assert_int_equal(client_report(&c, tickets[i], 0).state, TANDEM_JOB_PENDING);
    td_shared_timeline_raise(&in, 1);
    kill(worker, SIGCONT);
    assert_int_equal(client_report(&c, tickets[0], PATIENCE).state, TANDEM_JOB_DONE);
    r = client_report(&c, tickets[1], PATIENCE);
    assert_int_equal(r.state, TANDEM_JOB_DONE);
    assert_int_equal(client_report(&c, tickets[2], PATIENCE).status, TANDEM_ERROR_LOST); /* but no longer than that */
    assert_true(td_now_ns() - r.end_ns >= BOUND_MS * MS);
    client_close(&c);
    td_shared_timeline_close(&in);
    task_free(&t);
}

/* Who goes while it is answered, with a job under way, takes no worker along. */
static void who_goes_in_an_answer_ends_no_worker(void **state)
{
    enum { TRIES = 200 };
    pid_t worker;
    char why[300];
    task t, other;

    (void)state;
    start_daemon("threads = 1\n");
    worker = await_worker(0);
    task_make(&t, &large, 51);
    task_make(&other, &small, 52);
    for (unsigned i = 0; i < TRIES; i++) {
        td_wire_message m = td_wire_new(TD_WIRE_MEM_DESTROY, 0);
        tandem_job job;
        client c;

        client_open(&c, "goes");
        task_share(&t, &c);
        task_share(&other, &c);
        job = job_of(&t);
        client_job(&c, &job);
        sleep_ms(1);
        m.header.serial = c.rules.next_serial;
        m.object.id = other.mem;
        assert_int_equal(td_conn_send(&c.conn, &m, NULL, why, sizeof why), TANDEM_OK);
        usleep(i % 50 * 4); /* somewhere there it is being answered */
        client_close(&c);
    }
    check_serves();
    assert_int_equal(await_worker(0), worker);
    task_free(&other);
    task_free(&t);
}

/* A job that hangs takes its worker along, and nothing else. */
static void a_job_that_hangs_is_lost(void **state)
{
    tandem_job job;
    uint64_t ticket;
    pid_t worker;
    client c;
    task t;

    (void)state;
    start_daemon("job_ms = 300\n");
    client_open(&c, "hangs");
    task_make(&t, &small, 50);
    task_share(&t, &c);
    job = job_of(&t);
    worker = await_worker(0);
    kill(worker, SIGSTOP);
    sleep_ms(10);
    ticket = client_job(&c, &job);
    assert_int_equal(client_report(&c, ticket, PATIENCE).status, TANDEM_ERROR_LOST);
    client_events(&c, 2000 * MS);
    assert_int_equal(c.resets, 1);
    assert_non_null(strstr(c.event.reset.text, "does not end within 300 ms"));
    assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).state, TANDEM_JOB_DONE);
    check_output(&t);
    client_close(&c);
    task_free(&t);
}

/* A kernel that finds nothing at its addresses takes its worker along, and no other client's jobs: the sixth of each worker
 * of tests/daemon/tandemd_faulty.c. */
static void a_fault_in_a_kernel_is_survived(void **state)
{
    char fault_path[96];
    unsigned lost = 0;
    client c[2];
    FILE *file;
    task t[2];

    (void)state;
    snprintf(fault_path, sizeof fault_path, "%s/fault", folder);
    file = fopen(fault_path, "w");
    assert_non_null(file);
    assert_true(fputs("wild 6\n", file) >= 0);
    assert_int_equal(fclose(file), 0);
    setenv("TANDEM_TEST_FAULT", fault_path, 1);
    assert_true(use_program("tandemd_faulty"));
    start_daemon("threads = 1\n");
    assert_true(use_program("tandemd"));
    unsetenv("TANDEM_TEST_FAULT");
    for (int i = 0; i < 2; i++) {
        client_open(&c[i], "one of two");
        task_make(&t[i], &small, 40 + (uint32_t)i);
        task_share(&t[i], &c[i]);
    }
    for (int k = 0; k < 15; k++) {
        uint64_t tickets[2];
        unsigned failed = 0;

        for (int i = 0; i < 2; i++) {
            const tandem_job job = job_of(&t[i]);

            clear_output(&t[i]);
            tickets[i] = client_job(&c[i], &job);
        }
        for (int i = 0; i < 2; i++) {
            const td_wire_report r = client_report(&c[i], tickets[i], PATIENCE);

            if (r.state == TANDEM_JOB_DONE)
                check_output(&t[i]);
            else
                assert_int_equal(r.status, TANDEM_ERROR_LOST);
            failed += r.state != TANDEM_JOB_DONE;
        }
        assert_true(failed <= 1);
        lost += failed;
    }
    assert_true(lost >= 3);
    for (int i = 0; i < 2; i++) {
        client_close(&c[i]);
        task_free(&t[i]);
    }
}

/* Somebody ends the first worker, perhaps before it has said a word: there is another one. */
static void the_first_worker_may_die(void **state)
{
    client c;

    (void)state;
    for (int i = 0; i < 5; i++) {
        launch_daemon("backend = cpu\n");
        kill(await_worker(0), SIGKILL);
        await_log("is gone");
        await_log("computes on");
        client_open(&c, "first");
        assert_int_equal(client_object(&c, TD_WIRE_PING, 0), TANDEM_OK);
        client_close(&c);
        assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
    }
}

/* A worker that has no job and does not answer. */
static void a_worker_that_is_silent_is_ended(void **state)
{
    pid_t worker;
    client c;
    task t;

    (void)state;
    start_daemon("job_ms = 100\n");
    client_open(&c, "patient");
    worker = await_worker(0);
    task_make(&t, &small, 9);
    kill(worker, SIGSTOP);
    task_share(&t, &c); /* by the next one */
    assert_true(has_logged(log_path, "does not answer"));
    assert_int_equal(run_job(&c, &t).state, TANDEM_JOB_DONE);
    check_output(&t);
    client_close(&c);
    task_free(&t);
}

/* Shared buffers and timelines with CUDA behind them, where there is a GPU. */
static void a_gpu_computes(void **state)
{
    client c;
    td_shared_timeline out;
    tandem_job job;
    pid_t worker;
    task t;

    (void)state;
    launch_daemon("backend = cuda\n");
    while (!is_logged(log_path, "computes on") && !is_logged(log_path, "cannot begin"))
        sleep_ms(10);
    if (has_logged(log_path, "cannot begin")) {
        assert_int_equal(end_daemon(0, PATIENCE), 1);
        print_message("  no GPU here\n");
        skip();
    }
    client_open(&c, "on a GPU");
    assert_int_equal(c.welcome.rung, TANDEM_RUNG_HOST);
    task_make(&t, &eight, 80);
    task_share(&t, &c);
    job = job_of(&t);
    job.signal.timeline = client_timeline(&c, &out, true, 0);
    worker = await_worker(0);
    for (uint64_t i = 1; i <= 2; i++) { /* with the first worker, and with another */
        void *expected = in_process(&t, TANDEM_BACKEND_CUDA);

        clear_output(&t);
        job.signal.value = i;
        client_job(&c, &job);
        assert_true(await_point(&out, i));
        assert_int_equal(client_report(&c, c.last_ticket, 0).state, TANDEM_JOB_DONE);
        assert_memory_equal((char *)t.data + t.o_at, expected, t.q_bytes);
        free(expected);
        if (i == 1) {
            kill(worker, SIGKILL);
            await_worker(worker);
        }
    }
    client_close(&c);
    td_shared_timeline_close(&out);
    task_free(&t);
}

int main(void)
{
    const struct CMUnitTest common[] = {
        cmocka_unit_test(a_killed_worker_is_replaced),
        cmocka_unit_test(a_worker_that_hangs_is_ended),
        cmocka_unit_test(a_wait_behind_a_long_job_is_no_late_one),
    };
    const struct CMUnitTest own[] = {
        /* a daemon whose workers have died before waits longer before it starts the next */
        cmocka_unit_test_setup_teardown(workers_may_die_at_any_time, set_up_daemon, tear_down_daemon),
        cmocka_unit_test_teardown(who_goes_in_an_answer_ends_no_worker, tear_down_daemon),
        cmocka_unit_test_teardown(a_job_that_hangs_is_lost, tear_down_daemon),
        cmocka_unit_test_teardown(a_fault_in_a_kernel_is_survived, tear_down_daemon),
        cmocka_unit_test_teardown(the_first_worker_may_die, tear_down_daemon),
        cmocka_unit_test_teardown(a_worker_that_is_silent_is_ended, tear_down_daemon),
        cmocka_unit_test_teardown(a_gpu_computes, tear_down_daemon),
    };
    int failed;

    if (!begin_tests("tandemd"))
        return 1;
    failed = cmocka_run_group_tests_name("one daemon", common, set_up_daemon, tear_down_daemon);
    failed += cmocka_run_group_tests_name("daemons", own, NULL, NULL);
    return end_tests(failed);
}
