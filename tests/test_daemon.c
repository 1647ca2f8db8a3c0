/* tandemd as a process, and clients that speak its wire: results, faults, limits, operation.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/model/safetensors.h"
#include "tests/daemon_client.h"
#include "wire_util.h"

/* Tests. */

static int set_up(void **state)
{
    (void)state;
    start_daemon("# nothing but defaults\n");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    if (daemon_pid > 0 && end_daemon(SIGTERM, PATIENCE) != 0) {
        show_log();
        return 1;
    }
    return 0;
}

static void results_are_those_of_a_session(void **state)
{
    const shape *shapes[] = {&small, &eight};
    client c;
    td_point in, out;
    uint64_t waits, signals;

    (void)state;
    client_open(&c, "a game");
    assert_int_equal(c.welcome.rung, TANDEM_RUNG_CPU);
    assert_int_equal(c.welcome.frames_in_flight, 24);
    waits = client_timeline(&c, &in, false, 5);
    signals = client_timeline(&c, &out, true, 10);
    assert_true(waits && signals);
    for (uint32_t i = 0; i < 2; i++) {
        const uint64_t value = 6 + 2 * i, signal = 11 + 2 * i;
        uint64_t first, second;
        td_wire_report r;
        tandem_job job;
        task t;

        task_make(&t, shapes[i], i);
        task_share(&t, &c);
        clear_output(&t);
        job = job_of(&t);
        job.wait = (tandem_point){waits, value};
        job.signal = (tandem_point){signals, signal};
        first = client_job(&c, &job);
        job.wait.value++;
        job.signal.value++;
        job.deadline_ns = 60000 * MS;
        second = client_job(&c, &job);
        sleep_ms(20);
        assert_true(is_untouched(&t)); /* its point has not come */
        assert_int_equal(client_report(&c, first, 0).state, TANDEM_JOB_PENDING);
        td_point_raise(&in, value);
        assert_true(await_point(&out, signal));
        r = client_report(&c, first, 0); /* final before the signal */
        assert_int_equal(r.state, TANDEM_JOB_DONE);
        assert_int_equal(r.precision, t.of.precision);
        assert_true(r.begin_ns && r.end_ns >= r.begin_ns);
        check_output(&t);
        assert_int_equal(point_value(&out), signal);
        clear_output(&t);
        td_point_raise(&in, value + 1);
        assert_true(await_point(&out, signal + 1));
        assert_int_equal(client_report(&c, second, 0).state, TANDEM_JOB_DONE);
        check_output(&t); /* with a deadline too */
        assert_int_equal(client_object(&c, TD_WIRE_MEM_DESTROY, t.mem), TANDEM_OK);
        task_free(&t);
    }
    assert_int_equal(client_object(&c, TD_WIRE_TIMELINE_DESTROY, waits), TANDEM_OK);
    assert_int_equal(client_object(&c, TD_WIRE_TIMELINE_DESTROY, signals), TANDEM_OK);
    assert_int_equal(client_object(&c, TD_WIRE_TIMELINE_DESTROY, signals), TANDEM_ERROR_ARG);
    td_point_close(&in);
    td_point_close(&out);
    client_close(&c);
}

static void numbers_are_told(void **state)
{
    client c, idle;
    task t;
    td_wire_message m, answer;
    tandem_job job;
    uint32_t seen = 0;

    (void)state;
    client_open(&c, "worker bee");
    client_open(&idle, "idler");
    task_make(&t, &small, 1);
    task_share(&t, &c);
    job = job_of(&t);
    for (int i = 0; i < 3; i++)
        client_report(&c, client_job(&c, &job), PATIENCE);
    assert_int_equal(client_object(&c, TD_WIRE_PING, 0), TANDEM_OK);
    m = td_wire_new(TD_WIRE_INFO, c.rules.next_serial);
    assert_int_equal(client_ask(&c, &m, NULL, &answer, NULL), TANDEM_OK);
    assert_int_equal(answer.header.type, TD_WIRE_INFO_REPLY);
    assert_int_equal(answer.info.backend, TANDEM_BACKEND_CPU);
    assert_int_equal(answer.info.jobs_submitted, 3);
    assert_int_equal(answer.info.jobs_done, 3);
    assert_true(answer.info.device[0] && answer.info.isa[0] && answer.info.cpu_threads);
    m = td_wire_new(TD_WIRE_STATS, c.rules.next_serial);
    assert_int_equal(client_ask(&c, &m, NULL, &answer, NULL), TANDEM_OK);
    assert_int_equal(answer.header.type, TD_WIRE_STATS_REPLY);
    assert_int_equal(answer.stats_reply.total, 2);
    for (uint32_t i = 0; i < answer.stats_reply.count; i++) {
        const td_wire_row *row = &answer.stats_reply.rows[i];
        const bool bee = !strcmp(row->name, "worker bee");

        assert_int_equal(row->pid, getpid());
        assert_int_equal(row->uid, getuid());
        assert_int_equal(row->jobs_done, bee ? 3 : 0);
        assert_true(bee ? row->mem_bytes >= t.bytes && row->mem_bytes <= 4 * t.bytes : !row->mem_bytes); /* and scratch */
        assert_int_equal(row->gpu_ns != 0, bee);
        seen += bee ? 1 : 2;
    }
    assert_int_equal(seen, 3);
    client_close(&c);
    client_close(&idle);
    task_free(&t);
}

/* What turns out only against the daemon's state ends the job alone. */
static void wrong_jobs_fail_alone(void **state)
{
    td_point out, in;
    client c;
    tandem_job job, good;
    uint64_t ticket, signals, waits;
    task t;

    (void)state;
    client_open(&c, "clumsy");
    signals = client_timeline(&c, &out, true, 0);
    waits = client_timeline(&c, &in, false, 0);
    task_make(&t, &small, 2);
    task_share(&t, &c);
    clear_output(&t);
    good = job = job_of(&t);
    job.signal = (tandem_point){signals, 1};
    job.op.attention.o.offset_bytes = t.bytes - 64;
    ticket = client_job(&c, &job);
    assert_true(await_point(&out, 1));
    assert_int_equal(client_report(&c, ticket, 0).state, TANDEM_JOB_FAILED);
    assert_int_equal(client_report(&c, ticket, 0).status, TANDEM_ERROR_ARG);
    client_events(&c, 1000 * MS);
    assert_int_equal(c.event.error.ticket, ticket);
    assert_non_null(strstr(c.event.error.text, "o.offset_bytes"));
    /* a check that only the session makes: the output over an input */
    job = good;
    job.signal = (tandem_point){signals, 2};
    job.op.attention.o.offset_bytes = 0;
    ticket = client_job(&c, &job);
    assert_true(await_point(&out, 2));
    assert_int_equal(client_report(&c, ticket, 0).status, TANDEM_ERROR_ARG);
    client_events(&c, 1000 * MS);
    assert_int_equal(c.event.error.ticket, ticket);
    assert_non_null(strstr(c.event.error.text, "overlaps"));
    /* a value that does not rise, and a timeline of the client's */
    job = good;
    job.signal = (tandem_point){signals, 2};
    assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).status, TANDEM_ERROR_ARG);
    job.signal = (tandem_point){waits, 9};
    assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).status, TANDEM_ERROR_ARG);
    assert_int_equal(point_value(&in), 0);
    /* a mem that is gone */
    job = good;
    assert_int_equal(client_object(&c, TD_WIRE_MEM_DESTROY, t.mem), TANDEM_OK);
    assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).status, TANDEM_ERROR_ARG);
    assert_true(is_untouched(&t));
    task_share(&t, &c);
    job = job_of(&t);
    assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).state, TANDEM_JOB_DONE);
    check_output(&t);
    client_close(&c);
    td_point_close(&in);
    td_point_close(&out);
    task_free(&t);
}

static void jobs_can_be_given_up(void **state)
{
    td_point out, in;
    client c;
    tandem_job job;
    uint64_t tickets[4], signals, waits;
    td_wire_message cancel = td_wire_new(TD_WIRE_CANCEL, 0), m = hello(TD_WIRE_SHARE_HOST, "hesitant");
    task t;

    (void)state;
    m.hello.wait_bound_ns = 600 * MS;
    assert_int_equal(client_connect(&c), TANDEM_OK);
    assert_int_equal(client_hello(&c, &m), TANDEM_OK);
    signals = client_timeline(&c, &out, true, 0);
    waits = client_timeline(&c, &in, false, 0);
    task_make(&t, &small, 3);
    task_share(&t, &c);
    clear_output(&t);
    job = job_of(&t);
    for (uint64_t i = 0; i < 4; i++) {
        job.wait = (tandem_point){waits, 1};
        job.signal = (tandem_point){signals, i + 1};
        job.deadline_ns = i == 2 ? 50 * MS : 0;
        tickets[i] = client_job(&c, &job);
    }
    cancel.cancel.ticket = tickets[1];
    assert_int_equal(client_put(&c, &cancel), TANDEM_OK);
    /* late: its report ends at once, its point comes in its turn */
    assert_int_equal(client_report(&c, tickets[2], PATIENCE).state, TANDEM_JOB_STALE);
    assert_int_equal(point_value(&out), 0);
    /* no wait without a bound */
    assert_true(await_point(&out, 4));
    assert_int_equal(client_report(&c, tickets[0], 0).state, TANDEM_JOB_FAILED);
    assert_int_equal(client_report(&c, tickets[0], 0).status, TANDEM_ERROR_LOST);
    assert_int_equal(client_report(&c, tickets[1], 0).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(client_report(&c, tickets[3], 0).status, TANDEM_ERROR_LOST);
    assert_true(is_untouched(&t));
    /* what is destroyed takes its jobs along */
    job.deadline_ns = 0;
    job.signal.value = 5;
    tickets[0] = client_job(&c, &job);
    assert_int_equal(client_object(&c, TD_WIRE_MEM_DESTROY, t.mem), TANDEM_OK);
    assert_int_equal(client_report(&c, tickets[0], 0).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(point_value(&out), 5);
    client_close(&c);
    td_point_close(&in);
    td_point_close(&out);
    task_free(&t);
}

static void running_jobs_are_cancelled(void **state)
{
    td_wire_message cancel = td_wire_new(TD_WIRE_CANCEL, 0);
    td_wire_report r;
    uint64_t begin;
    tandem_job job;
    client c;
    task t;

    (void)state;
    client_open(&c, "impatient");
    task_make(&t, &large, 4);
    task_share(&t, &c);
    job = job_of(&t);
    cancel.cancel.ticket = client_job(&c, &job);
    begin = td_now_ns();
    do
        r = client_report(&c, cancel.cancel.ticket, 0);
    while (r.state == TANDEM_JOB_PENDING && td_now_ns() - begin < PATIENCE);
    assert_int_equal(r.state, TANDEM_JOB_RUNNING);
    sleep_ms(5);
    assert_int_equal(client_put(&c, &cancel), TANDEM_OK);
    assert_int_equal(client_report(&c, cancel.cancel.ticket, PATIENCE).state, TANDEM_JOB_CANCELLED);
    client_close(&c);
    task_free(&t);
}

/* What a client that is to die does, without end. */
static void be_victim(uint32_t seed)
{
    const shape shapes[] = {small, eight, large};
    td_point in, out;
    tandem_job job;
    client c;
    task t;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    client_open(&c, "victim");
    task_make(&t, &shapes[seed % 3], seed);
    task_share(&t, &c);
    job = job_of(&t);
    job.wait.timeline = client_timeline(&c, &in, false, 0);
    job.signal.timeline = client_timeline(&c, &out, true, 0);
    for (uint64_t value = 1;; value++) {
        job.wait.value = job.signal.value = value;
        client_job(&c, &job);
        if (seed % 4)
            td_point_raise(&in, value); /* else the daemon waits for a dead one */
        if (value > 4)
            await_point(&out, value - 4);
    }
}

/* Until the broker has as few descriptors, and the worker as little shared memory, as before. */
static void await_clean(int fds, long shared_kib)
{
    const uint64_t begin = td_now_ns();
    const pid_t worker = await_worker(0);

    while (count_fds(daemon_pid) > fds || status_of(worker, "RssShmem") > shared_kib) {
        if (td_now_ns() - begin > PATIENCE)
            fail_msg("%d descriptors, %d before; %ld KiB shared, %ld before", count_fds(daemon_pid), fds,
                     status_of(worker, "RssShmem"), shared_kib);
        sleep_ms(5);
    }
}

static void killed_clients_leave_nothing(void **state)
{
    const pid_t worker = await_worker(0);
    uint64_t random = 12345, longest_ns = 0;
    long rss = 0, worker_rss = 0, shared;
    int fds;
    tandem_job job;
    client c;
    task t;

    (void)state;
    client_open(&c, "survivor");
    task_make(&t, &small, 5);
    task_share(&t, &c);
    job = job_of(&t);
    assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).state, TANDEM_JOB_DONE);
    fds = count_fds(daemon_pid);
    shared = status_of(worker, "RssShmem");
    for (uint32_t i = 0; i < 20; i++) {
        pid_t victim = fork();
        uint64_t begin;

        assert_true(victim >= 0);
        if (!victim) {
            be_victim(i);
            _exit(0);
        }
        random = random * 6364136223846793005u + 1442695040888963407u;
        sleep_ms((unsigned)(random >> 33) % 60);
        kill(victim, SIGKILL);
        assert_int_equal(waitpid(victim, NULL, 0), victim);
        begin = td_now_ns();
        await_clean(fds, shared);
        if (td_now_ns() - begin > longest_ns)
            longest_ns = td_now_ns() - begin;
        clear_output(&t);
        assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).state, TANDEM_JOB_DONE);
        if (i == 11) {
            rss = status_of(daemon_pid, "VmRSS");
            worker_rss = status_of(worker, "VmRSS");
        }
    }
    check_output(&t);
    print_message("  unmapped at most %.0f ms after a death\n", (double)longest_ns / 1e6);
    if (!getenv("TANDEM_SANITIZED")) {
        assert_true(longest_ns < 1000 * MS);
        assert_true(status_of(daemon_pid, "VmRSS") < rss + 1024);
        assert_true(status_of(worker, "VmRSS") < worker_rss + 16384);
    }
    assert_int_equal(find_worker(), worker); /* none had to be ended */
    assert_int_equal(c.resets, 0);
    client_close(&c);
    task_free(&t);
}

static void a_killed_worker_is_replaced(void **state)
{
    td_point in, out;
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
    td_point_raise(&in, 1);
    assert_true(await_point(&out, 2));
    assert_int_equal(client_report(&c, held, 0).state, TANDEM_JOB_DONE);
    check_output(&t);
    worker = await_worker(worker);
    assert_int_equal(client_object(&c, TD_WIRE_MEM_DESTROY, slow.mem), TANDEM_OK);
    client_close(&c);
    client_close(&quiet);
    td_point_close(&in);
    td_point_close(&out);
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
    const int fds = count_fds(daemon_pid);
    uint64_t random = 4711, last = 0, lost = 0, done = 0;
    pid_t worker = await_worker(0);
    td_point out;
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
    for (int i = 0; i < 10; i++) {
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
    client_events(&c, 2000 * MS);
    while (c.resets < 10 && client_events(&c, 2000 * MS) == TANDEM_OK)
        ;
    assert_int_equal(c.resets, 10);
    client_close(&c);
    td_point_close(&out);
    task_free(&t);
    free(expected);
    await_clean(fds, LONG_MAX);
}

/* Whether the daemon closes. */
static bool is_closed(int fd)
{
    const uint64_t begin = td_now_ns();
    char bytes[4096];

    while (td_now_ns() - begin < PATIENCE) {
        struct pollfd p = {fd, POLLIN, 0};

        poll(&p, 1, 100);
        if (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) == 0 || errno == ECONNRESET)
            return true;
    }
    return false;
}

/* A MEM_CREATE that must end the connection. */
static void refuse_fd(int fd, uint64_t allocation_bytes)
{
    td_wire_message m = td_wire_new(TD_WIRE_MEM_CREATE, 2);
    char why[300] = "";
    client c;

    client_open(&c, "liar");
    m.mem_create.kind = TD_WIRE_MEM_SLAB;
    m.mem_create.bytes = 4096;
    m.mem_create.allocation_bytes = allocation_bytes;
    assert_int_equal(td_conn_send(&c.conn, &m, &fd, why, sizeof why), TANDEM_OK);
    assert_true(is_closed(c.conn.fd));
    client_close(&c);
}

static void garbage_ends_its_sender_alone(void **state)
{
    uint64_t random = 99;
    int fds, ends[2], fd;
    client c, before;
    char why[300];

    (void)state;
    client_open(&before, "a neighbour");
    fds = count_fds(daemon_pid);
    for (int i = 0; i < 60; i++) {
        unsigned char bytes[2100];
        size_t length;

        assert_int_equal(client_connect(&c), TANDEM_OK);
        for (size_t b = 0; b < sizeof bytes; b++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            bytes[b] = (unsigned char)(random >> 56);
        }
        length = 1 + random % (sizeof bytes - 1);
        if (i % 3) { /* a right beginning */
            td_wire_message m = hello(TD_WIRE_SHARE_HOST, "garbage");

            m.hello.header.bytes = i % 3 == 1 ? 256 : (uint32_t)length;
            memcpy(bytes, &m, i % 3 == 1 ? sizeof m.hello - 1 : sizeof m.header);
            length = i % 3 == 1 ? sizeof m.hello - 1 : length;
        }
        assert_int_equal(send(c.conn.fd, bytes, length, MSG_NOSIGNAL), (ssize_t)length);
        assert_true(is_closed(c.conn.fd));
        client_close(&c);
    }
    /* descriptors that are none of ours */
    assert_int_equal(pipe(ends), 0);
    refuse_fd(ends[0], 4096);
    close(ends[0]);
    close(ends[1]);
    fd = open("/dev/null", O_RDWR);
    refuse_fd(fd, 4096);
    close(fd);
    fd = memfd_create("tandem-test-slab", 0);
    assert_int_equal(ftruncate(fd, 4096), 0);
    refuse_fd(fd, 4096); /* not sealed */
    close(fd);
    assert_int_equal(td_slab_make("tandem-test-slab", 4096, false, &fd, why, sizeof why), TANDEM_OK);
    refuse_fd(fd, 8192); /* shorter than it is said to be */
    close(fd);
    /* a ring that lies, and a counter that falls */
    client_open(&c, "ring liar");
    atomic_store(&c.ring.area->tail, 1000);
    td_bell_ring(&c.ring.area->to_daemon);
    assert_true(is_closed(c.conn.fd));
    client_close(&c);
    client_open(&c, "backwards");
    {
        td_point in;
        task t;
        tandem_job job;

        task_make(&t, &small, 9);
        task_share(&t, &c);
        job = job_of(&t);
        job.wait = (tandem_point){client_timeline(&c, &in, false, 7), 9};
        client_job(&c, &job);
        sleep_ms(20);
        atomic_store(&in.page->value, 3);
        td_bell_ring(&in.page->bell);
        assert_true(is_closed(c.conn.fd));
        client_close(&c);
        td_point_close(&in);
        task_free(&t);
    }
    /* says nothing; says it too late */
    assert_int_equal(client_connect(&c), TANDEM_OK);
    assert_true(is_closed(c.conn.fd));
    client_close(&c);
    await_clean(fds, LONG_MAX);
    assert_int_equal(client_object(&before, TD_WIRE_PING, 0), TANDEM_OK);
    client_close(&before);
    check_serves();
}

/* Right messages with some bytes changed, on the socket and in the ring, from clients that have been let in. */
static void changed_messages_harm_nobody(void **state)
{
    enum { CLIENTS = 150, MESSAGES = 8 };
    const int fds = count_fds(daemon_pid);
    const pid_t worker = await_worker(0);
    uint64_t random = 31337;
    client c, before;
    char why[300];
    int slab;

    (void)state;
    client_open(&before, "a neighbour");
    assert_int_equal(td_slab_make("tandem-test-slab", 65536, false, &slab, why, sizeof why), TANDEM_OK);
    for (int i = 0; i < CLIENTS; i++) {
        uint64_t serial = 2;

        client_open(&c, "fuzz");
        for (int k = 0; k < MESSAGES; k++) {
            td_wire_message m;
            uint32_t type;

            random = random * 6364136223846793005u + 1442695040888963407u;
            type = wire_types[(random >> 33) % WIRE_TYPES];
            m = wire_sample(type);
            if (type < 32)
                m.header.serial = (uint32_t)serial++;
            if (type == TD_WIRE_JOB)
                m.job.ticket = 1;
            for (int changes = (random >> 50) % 3; changes > 0; changes--) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                ((unsigned char *)&m)[16 + (random >> 33) % (m.header.bytes - 15)] ^= 1u << (random >> 60) % 8;
            }
            if (type >= 32 && type < 64) {
                td_ring_put(&c.ring, &m, why, sizeof why);
            } else if (type != TD_WIRE_HELLO || random >> 63) {
                m.header.fds = m.header.fds ? 1 : 0;
                td_conn_send(&c.conn, &m, &slab, why, sizeof why);
            }
        }
        client_close(&c);
    }
    close(slab);
    assert_int_equal(client_object(&before, TD_WIRE_PING, 0), TANDEM_OK);
    client_close(&before);
    await_clean(fds, LONG_MAX);
    assert_int_equal(find_worker(), worker);
    check_serves();
}

static void who_does_not_read_is_ended(void **state)
{
    const int fds = count_fds(daemon_pid);
    td_wire_message m;
    client c;

    (void)state;
    client_open(&c, "deaf");
    assert_int_equal(setsockopt(c.conn.fd, SOL_SOCKET, SO_RCVBUF, &(int){2048}, sizeof(int)), 0);
    m = td_wire_new(TD_WIRE_STATS, 0);
    for (uint32_t i = 0; i < 20000; i++) {
        m.header.serial = 2 + i;
        if (send(c.conn.fd, &m, m.header.bytes, MSG_NOSIGNAL) < 0)
            break;
    }
    await_clean(fds, LONG_MAX);
    client_close(&c);
    check_serves();
}

/* Until nobody is turned away: of those who have closed, some may still wait to be accepted. */
static void await_room(void)
{
    const uint64_t begin = td_now_ns();
    tandem_status status;
    client c;

    do {
        td_wire_message m = hello(TD_WIRE_SHARE_HOST, "who comes behind many");

        assert_int_equal(client_connect(&c), TANDEM_OK);
        status = client_hello(&c, &m);
        client_close(&c);
    } while (status == TANDEM_ERROR_LOST && td_now_ns() - begin < PATIENCE);
    assert_int_equal(status, TANDEM_OK);
}

static void many_connect(void **state)
{
    enum { MANY = 10000, AT_A_TIME = 50 };
    const int fds = count_fds(daemon_pid);
    const long rss = status_of(daemon_pid, "VmRSS");
    static client clients[AT_A_TIME];
    client c;

    (void)state;
    client_open(&c, "a regular");
    for (int i = 0; i < MANY; i += AT_A_TIME) {
        for (int k = 0; k < AT_A_TIME; k++)
            assert_int_equal(client_connect(&clients[k]), TANDEM_OK);
        for (int k = 0; k < AT_A_TIME; k++)
            client_close(&clients[k]);
    }
    assert_int_equal(client_object(&c, TD_WIRE_PING, 0), TANDEM_OK);
    client_close(&c);
    await_room();
    await_clean(fds, LONG_MAX);
    print_message("  %ld KiB more than before\n", status_of(daemon_pid, "VmRSS") - rss);
    if (!getenv("TANDEM_SANITIZED"))
        assert_true(status_of(daemon_pid, "VmRSS") < rss + 2048);
    check_serves();
}

/* A wait point that never comes ends its job, and nothing else. */
static void a_point_that_never_comes_is_given_up(void **state)
{
    td_wire_message m = hello(TD_WIRE_SHARE_HOST, "who never signals");
    td_point in = {0}, out = {0};
    td_wire_report r;
    uint64_t ticket, begin;
    tandem_job job;
    client c;
    task t;

    (void)state;
    m.hello.wait_bound_ns = 200 * MS;
    assert_int_equal(client_connect(&c), TANDEM_OK);
    assert_int_equal(client_hello(&c, &m), TANDEM_OK);
    task_make(&t, &small, 50);
    task_share(&t, &c);
    job = job_of(&t);
    clear_output(&t);
    job.wait = (tandem_point){client_timeline(&c, &in, false, 0), 1};
    job.signal = (tandem_point){client_timeline(&c, &out, true, 0), 1};
    begin = td_now_ns();
    ticket = client_job(&c, &job);
    check_serves();
    r = client_report(&c, ticket, PATIENCE);
    assert_int_equal(r.state, TANDEM_JOB_FAILED);
    assert_int_equal(r.status, TANDEM_ERROR_LOST);
    assert_true(td_now_ns() - begin >= 200 * MS);
    assert_true(await_point(&out, 1));
    assert_true(is_untouched(&t));
    job.wait = (tandem_point){0};
    job.signal.value = 2;
    assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).state, TANDEM_JOB_DONE);
    check_output(&t);
    client_close(&c);
    td_point_close(&in);
    td_point_close(&out);
    task_free(&t);
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
    td_point in = {0};
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
    td_point_raise(&in, 1);
    kill(worker, SIGCONT);
    assert_int_equal(client_report(&c, tickets[0], PATIENCE).state, TANDEM_JOB_DONE);
    r = client_report(&c, tickets[1], PATIENCE);
    assert_int_equal(r.state, TANDEM_JOB_DONE);
    assert_int_equal(client_report(&c, tickets[2], PATIENCE).status, TANDEM_ERROR_LOST); /* but no longer than that */
    assert_true(td_now_ns() - r.end_ns >= BOUND_MS * MS);
    client_close(&c);
    td_point_close(&in);
    task_free(&t);
}

/* With its own configuration each. */

static int set_up_nothing(void **state)
{
    (void)state;
    return 0;
}

static void quotas_hold(void **state)
{
    char why[300];
    client greedy, late, third;
    uint64_t first;
    int fd;

    (void)state;
    start_daemon("clients = 2\nmems = 3\nmem_bytes = 64K\nclient_bytes=96K\n\n  total_bytes = 128K\n");
    assert_int_equal(td_slab_make("tandem-test-slab", 65536, false, &fd, why, sizeof why), TANDEM_OK);
    client_open(&greedy, "greedy");
    client_open(&late, "late");
    assert_int_equal(greedy.welcome.mem_bytes, 65536);
    assert_int_equal(greedy.welcome.quota_bytes, 98304);
    first = client_mem(&greedy, fd, 65536, 65536);
    assert_true(first != 0);
    assert_int_equal(client_mem(&greedy, fd, 65536, 65536), 0);
    assert_int_equal(greedy.event.error.status, TANDEM_ERROR_NOMEM);
    assert_non_null(strstr(greedy.event.error.text, "98304"));
    assert_true(client_mem(&greedy, fd, 32768, 65536) != 0);
    assert_int_equal(client_mem(&late, fd, 65536, 65536), 0);
    assert_int_equal(late.event.error.status, TANDEM_ERROR_NOMEM);
    assert_non_null(strstr(late.event.error.text, "98304 by 'greedy' (process "));
    assert_int_equal(client_object(&greedy, TD_WIRE_MEM_DESTROY, first), TANDEM_OK);
    for (int i = 0; i < 3; i++)
        assert_true(client_mem(&late, fd, 4096, 65536) != 0);
    assert_int_equal(client_mem(&late, fd, 4096, 65536), 0);
    assert_non_null(strstr(late.event.error.text, "all 3 mems"));
    /* full: come back later */
    assert_int_equal(client_connect(&third), TANDEM_OK);
    {
        td_wire_message m = hello(TD_WIRE_SHARE_NONE, "third");

        assert_int_equal(client_hello(&third, &m), TANDEM_ERROR_LOST);
        assert_int_equal(third.byes, 1);
        assert_int_equal(third.event.bye.reason, TD_WIRE_BYE_FULL);
    }
    client_close(&third);
    client_close(&greedy);
    client_close(&late);
    close(fd);
}

/* What a client's jobs need besides its mems. */
static uint64_t scratch_of(const shape *of)
{
    uint64_t bytes;
    client c;
    task t;

    task_make(&t, of, 3);
    client_open(&c, "a measure");
    task_share(&t, &c);
    assert_int_equal(run_job(&c, &t).state, TANDEM_JOB_DONE);
    bytes = row_of(&c, "a measure").mem_bytes - t.bytes;
    client_close(&c);
    task_free(&t);
    return bytes;
}

/* The worker's memory for a client's jobs is the client's, too. */
static void quotas_count_scratch(void **state)
{
    const shape long_one = {1, 1024, 32768, 64, TANDEM_PRECISION_8B, 0}; /* so few rows of one head are not cut */
    const shape one_head = {1, 130, 300, 64, TANDEM_PRECISION_8B, 0};
    uint64_t scratch, long_scratch;
    client first, second;
    task t, long_t;
    char config[200];
    tandem_job job;

    (void)state;
    start_daemon("");
    scratch = scratch_of(&one_head);
    long_scratch = scratch_of(&long_one);
    assert_true(scratch > 0 && long_scratch > scratch);
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
    task_make(&t, &one_head, 4);
    task_make(&long_t, &long_one, 5);

    /* One's own. */
    snprintf(config, sizeof config, "client_bytes = %" PRIu64 "\n", t.bytes + scratch - 1);
    start_daemon(config);
    client_open(&first, "first");
    task_share(&t, &first);
    clear_output(&t);
    assert_int_equal(run_job(&first, &t).status, TANDEM_ERROR_NOMEM);
    assert_int_equal(client_object(&first, TD_WIRE_PING, 0), TANDEM_OK);
    assert_int_equal(first.job_errors, 1);
    assert_true(is_untouched(&t));
    assert_int_equal(row_of(&first, "first").mem_bytes, t.bytes);
    snprintf(config, sizeof config, "backend = cpu\nclient_bytes = %" PRIu64 "\n", t.bytes + scratch);
    write_config(config);
    kill(daemon_pid, SIGHUP);
    await_log("was read again");
    assert_int_equal(run_job(&first, &t).state, TANDEM_JOB_DONE);
    check_output(&t);
    assert_int_equal(row_of(&first, "first").mem_bytes, t.bytes + scratch);
    assert_int_equal(client_mem(&first, t.fd, 4096, t.bytes), 0);
    assert_int_equal(first.event.error.status, TANDEM_ERROR_NOMEM);
    assert_non_null(strstr(first.event.error.text, "scratch of your jobs"));
    client_close(&first);
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);

    /* That of all: what an idle client's jobs left behind makes room, what another's job uses does not. */
    snprintf(config, sizeof config, "total_bytes = %" PRIu64 "\n", t.bytes + long_t.bytes + long_scratch);
    start_daemon(config);
    client_open(&first, "first");
    client_open_as(&second, "second", TANDEM_CLASS_BACKGROUND); /* whose jobs are in another session */
    task_share(&t, &second);
    task_share(&long_t, &first);
    assert_int_equal(run_job(&first, &long_t).state, TANDEM_JOB_DONE);
    assert_int_equal(row_of(&second, "first").mem_bytes, long_t.bytes + long_scratch);
    assert_int_equal(run_job(&second, &t).state, TANDEM_JOB_DONE);
    check_output(&t);
    assert_int_equal(row_of(&second, "first").mem_bytes, long_t.bytes);
    assert_int_equal(row_of(&second, "second").mem_bytes, t.bytes + scratch);
    job = job_of(&long_t);
    client_job(&first, &job);
    while (row_of(&second, "first").mem_bytes == long_t.bytes)
        sleep_ms(1);
    assert_int_equal(run_job(&second, &t).status, TANDEM_ERROR_NOMEM);
    assert_int_equal(client_object(&second, TD_WIRE_PING, 0), TANDEM_OK);
    assert_int_equal(second.job_errors, 1);
    client_report(&first, 2, PATIENCE);
    assert_int_equal(run_job(&second, &t).state, TANDEM_JOB_DONE);
    client_close(&second);
    while (row_of(&first, "second").session) /* and its scratch with it */
        sleep_ms(1);
    assert_int_equal(run_job(&first, &long_t).state, TANDEM_JOB_DONE);
    client_close(&first);
    task_free(&t);
    task_free(&long_t);
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

/* A kernel that finds nothing at its address takes its worker along, and no other client's jobs. */
static void a_fault_in_a_kernel_is_survived(void **state)
{
    client c[2];
    task t[2];
    unsigned lost = 0;

    (void)state;
    setenv("TANDEMD_TEST_FAULT", "6", 1);
    start_daemon("threads = 1\n");
    unsetenv("TANDEMD_TEST_FAULT");
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

/* A model's tensors as K and V, shared by two clients; and what lies outside of the folders stays there. */
static void models_are_shared(void **state)
{
    char path[200], config[400], outside[200], why[300] = "";
    client c[2];
    uint64_t model[2], other;
    td_wire_message m, answer;
    td_safetensors_item item = {.name = "k", .dtype = "F32", .dimensions = 3, .shape = {2, 96, 32}};
    task t;
    pid_t worker;

    (void)state;
    task_make(&t, &small, 21);
    snprintf(path, sizeof path, "%s/models", folder);
    assert_true(!mkdir(path, 0700) || errno == EEXIST);
    snprintf(path, sizeof path, "%s/models/npc.safetensors", folder);
    snprintf(outside, sizeof outside, "%s/secret.safetensors", folder);
    item.data = (char *)t.data + t.q_bytes;
    assert_int_equal(td_safetensors_write(path, &item, 1, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_safetensors_write(outside, &item, 1, why, sizeof why), TANDEM_OK);
    snprintf(path, sizeof path, "%s/models/link", folder);
    unlink(path);
    assert_int_equal(symlink(outside, path), 0);
    snprintf(config, sizeof config, "model_dir = %s/models/\nmodel_dir = %s/no models\n", folder, folder);
    start_daemon(config);
    for (int i = 0; i < 2; i++)
        client_open_as(&c[i], i ? "second" : "first", i ? TANDEM_CLASS_BACKGROUND : TANDEM_CLASS_FRAME);
    assert_int_equal(load_model(&c[0], "npc.safetensors", &model[0]), TANDEM_OK);
    snprintf(path, sizeof path, "%s/models/npc.safetensors", folder);
    assert_int_equal(load_model(&c[1], path, &model[1]), TANDEM_OK);
    assert_int_equal(load_model(&c[0], "link", &other), TANDEM_ERROR_IO);
    assert_non_null(strstr(c[0].event.error.text, "leads out"));
    assert_int_equal(load_model(&c[0], outside, &other), TANDEM_ERROR_IO);
    assert_int_equal(load_model(&c[0], "absent", &other), TANDEM_ERROR_IO);
    assert_int_equal(load_model(&c[0], "/etc/passwd", &other), TANDEM_ERROR_IO);
    worker = await_worker(0);
    for (int round = 0; round < 2; round++) { /* again with a new worker, which has loaded them by itself */
        for (int i = 0; i < 2; i++) {
            tandem_job job;

            m = td_wire_new(TD_WIRE_MODEL_TENSOR, c[i].rules.next_serial);
            m.model_tensor.model = model[i];
            td_wire_text(m.model_tensor.name, sizeof m.model_tensor.name, "k");
            assert_int_equal(client_ask(&c[i], &m, NULL, &answer, NULL), TANDEM_OK);
            assert_int_equal(answer.header.type, TD_WIRE_TENSOR);
            assert_int_equal(answer.tensor.shape[2], 96);
            if (!round)
                task_share(&t, &c[i]);
            else
                t.mem = client_mem(&c[i], t.fd, t.bytes, t.bytes);
            clear_output(&t);
            job = job_of(&t);
            job.op.attention.k = answer.tensor.view;
            job.op.attention.k.stride_batch = 0;
            assert_int_equal(client_report(&c[i], client_job(&c[i], &job), PATIENCE).state, TANDEM_JOB_DONE);
            check_output(&t);
            job.op.attention.o = answer.tensor.view; /* weights are not written */
            job.op.attention.k = job.op.attention.v;
            assert_int_equal(client_report(&c[i], client_job(&c[i], &job), PATIENCE).status, TANDEM_ERROR_ARG);
        }
        if (!round) {
            kill(worker, SIGKILL);
            await_worker(worker);
        }
    }
    m = td_wire_new(TD_WIRE_MODEL_TENSOR, c[0].rules.next_serial);
    m.model_tensor.model = model[0];
    td_wire_text(m.model_tensor.name, sizeof m.model_tensor.name, "absent");
    assert_int_equal(client_ask(&c[0], &m, NULL, &answer, NULL), TANDEM_OK);
    assert_int_equal(answer.error.status, TANDEM_ERROR_ARG);
    assert_int_equal(client_object(&c[0], TD_WIRE_MODEL_DESTROY, model[0]), TANDEM_OK);
    m = td_wire_new(TD_WIRE_STATS, c[0].rules.next_serial);
    assert_int_equal(client_ask(&c[0], &m, NULL, &answer, NULL), TANDEM_OK);
    for (int i = 0; i < 2; i++) { /* two mems each; and one has the model no longer */
        const td_wire_row *row = &answer.stats_reply.rows[i];

        assert_true(row->mem_bytes >= 2 * t.bytes); /* and scratch */
        assert_int_equal(row->model_bytes != 0, !strcmp(row->name, "second"));
    }
    assert_int_equal(client_object(&c[0], TD_WIRE_MODEL_DESTROY, model[0]), TANDEM_ERROR_ARG);
    /* A file that is broken by the time that a new worker reads it: nobody has it any more, and nobody waits for it. */
    assert_int_equal(load_model(&c[0], "npc.safetensors", &model[0]), TANDEM_OK);
    assert_int_equal(truncate(path, 10), 0);
    worker = await_worker(0);
    kill(worker, SIGKILL);
    await_worker(worker);
    m = td_wire_new(TD_WIRE_MODEL_TENSOR, c[0].rules.next_serial);
    m.model_tensor.model = model[0];
    td_wire_text(m.model_tensor.name, sizeof m.model_tensor.name, "k");
    assert_int_equal(client_ask(&c[0], &m, NULL, &answer, NULL), TANDEM_OK);
    assert_non_null(strstr(answer.error.text, "could not load"));
    assert_int_not_equal(load_model(&c[1], path, &other), TANDEM_OK);
    item.data = (char *)t.data + t.q_bytes;
    assert_int_equal(td_safetensors_write(path, &item, 1, why, sizeof why), TANDEM_OK);
    assert_int_equal(load_model(&c[1], path, &other), TANDEM_OK);
    assert_int_equal(row_of(&c[1], "first").model_bytes, 0);
    client_close(&c[0]);
    client_close(&c[1]);
    task_free(&t);
}

static tandem_view tensor_of(client *c, uint64_t model)
{
    td_wire_message m = td_wire_new(TD_WIRE_MODEL_TENSOR, c->rules.next_serial), answer;

    m.model_tensor.model = model;
    td_wire_text(m.model_tensor.name, sizeof m.model_tensor.name, "k");
    assert_int_equal(client_ask(c, &m, NULL, &answer, NULL), TANDEM_OK);
    assert_int_equal(answer.header.type, TD_WIRE_TENSOR);
    return answer.tensor.view;
}

/* There is room for one of two models: which no job reads makes room for the other, and comes back when one does. */
static void idle_models_make_room(void **state)
{
    td_safetensors_item item = {.name = "k", .dtype = "F32", .dimensions = 3, .shape = {2, 96, 32}};
    static const char *const names[3] = {"one.safetensors", "two.safetensors", "large.safetensors"};
    char path[200], config[300], why[300] = "";
    uint64_t models[2], other;
    tandem_view views[2];
    client c;
    task t[2];

    (void)state;
    snprintf(path, sizeof path, "%s/models", folder);
    assert_true(!mkdir(path, 0700) || errno == EEXIST);
    for (int i = 0; i < 3; i++) {
        task large_one;

        task_make(i < 2 ? &t[i] : &large_one, i < 2 ? &small : &large, 60 + (uint32_t)i);
        item.data = i < 2 ? (char *)t[i].data + t[i].q_bytes : (char *)large_one.data;
        item.shape[1] = i < 2 ? 96 : 512;
        snprintf(path, sizeof path, "%s/models/%s", folder, names[i]);
        assert_int_equal(td_safetensors_write(path, &item, 1, why, sizeof why), TANDEM_OK);
        if (i == 2)
            task_free(&large_one);
    }
    snprintf(config, sizeof config, "model_dir = %s/models\nmodel_bytes = 40K\n", folder);
    start_daemon(config);
    client_open_as(&c, "two models", TANDEM_CLASS_BACKGROUND);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(load_model(&c, names[i], &models[i]), TANDEM_OK);
        views[i] = tensor_of(&c, models[i]);
        task_share(&t[i], &c);
    }
    assert_int_equal(load_model(&c, names[2], &other), TANDEM_ERROR_NOMEM);
    assert_non_null(strstr(c.event.error.text, "yourself"));
    for (int round = 0; round < 4; round++) {
        tandem_job job = job_of(&t[round % 2]);

        clear_output(&t[round % 2]);
        job.op.attention.k = views[round % 2];
        job.op.attention.k.stride_batch = 0;
        assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).state, TANDEM_JOB_DONE);
        check_output(&t[round % 2]);
    }
    assert_true(has_logged(log_path, "makes room"));
    client_close(&c);
    task_free(&t[0]);
    task_free(&t[1]);
}

/* Where the machine itself has no memory left, too. */
static void idle_models_make_room_for_jobs(void **state)
{
    const uint64_t rows = 65536, model_rows = 3 * rows;
    td_safetensors_item item = {.name = "k", .dtype = "F32", .dimensions = 3, .shape = {1, model_rows, 64}};
    const shape of = {1, 64, (uint32_t)rows, 64, TANDEM_PRECISION_8B, 0};
    char path[200], config[300], why[300] = "";
    struct rlimit limit = {0};
    uint64_t model;
    tandem_job job;
    pid_t worker;
    client c;
    task t;

    (void)state;
    if (getenv("TANDEM_SANITIZED")) /* which keeps what is freed */
        skip();
    snprintf(path, sizeof path, "%s/models", folder);
    assert_true(!mkdir(path, 0700) || errno == EEXIST);
    snprintf(path, sizeof path, "%s/models/idle.safetensors", folder);
    item.data = calloc(model_rows * 64, 4);
    assert_non_null(item.data);
    assert_int_equal(td_safetensors_write(path, &item, 1, why, sizeof why), TANDEM_OK);
    free((void *)(uintptr_t)item.data);
    snprintf(config, sizeof config, "model_dir = %s/models\n", folder);
    start_daemon(config);
    client_open(&c, "with a model");
    assert_int_equal(load_model(&c, "idle.safetensors", &model), TANDEM_OK);
    task_make(&t, &of, 6);
    task_share(&t, &c);
    job = job_of(&t); /* heads of one row each, that all read the same keys */
    job.op.attention.heads = job.op.attention.kv_heads = 3;
    job.op.attention.q_len = 1;
    job.op.attention.q.stride_head = job.op.attention.o.stride_head = 64;
    job.op.attention.k.stride_head = job.op.attention.v.stride_head = 0;
    worker = await_worker(0);
    limit.rlim_cur = limit.rlim_max = ((uint64_t)status_of(worker, "VmData") + 8192) * 1024;
    assert_int_equal(prlimit(worker, RLIMIT_DATA, &limit, NULL), 0);
    assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).state, TANDEM_JOB_DONE);
    assert_true(has_logged(log_path, "makes room"));
    assert_int_equal(row_of(&c, "with a model").model_bytes, 0);
    /* And with none left. */
    job.op.attention.heads = job.op.attention.kv_heads = 64;
    assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).status, TANDEM_ERROR_NOMEM);
    assert_int_equal(client_object(&c, TD_WIRE_PING, 0), TANDEM_OK);
    assert_int_equal(c.job_errors, 1);
    client_close(&c);
    task_free(&t);
    unlink(path);
}

/* Two that always have work get the same time on the device, however long their jobs are. All of it is put before any
 * begins, by one page for both, so that it does not matter when this process runs. */
static void shares_are_fair(void **state)
{
    enum { JOBS = 60 };
    const shape shapes[2] = {{1, 128, 1024, 64, TANDEM_PRECISION_F16, 0},
                             {1, 512, 1024, 64, TANDEM_PRECISION_F16, 0}}; /* which is not cut, however slow it is */
    td_wire_report r[2][JOBS];
    uint64_t ns[2] = {0, 0};
    char why[300] = "";
    int page = -1;
    td_point in;
    client c[2];
    task t[2];
    double share;

    (void)state;
    start_daemon("share_window_us = 1000\n");
    assert_int_equal(td_point_make(&in, 0, &page, why, sizeof why), TANDEM_OK);
    for (int i = 0; i < 2; i++) {
        tandem_job job;

        client_open(&c[i], i ? "large" : "small");
        task_make(&t[i], &shapes[i], 30);
        task_share(&t[i], &c[i]);
        job = job_of(&t[i]);
        job.wait = (tandem_point){client_page(&c[i], page, false, 0), 1};
        for (int k = 0; k < JOBS; k++)
            client_job(&c[i], &job);
    }
    for (int i = 0; i < 2; i++) /* they have been taken */
        assert_int_equal(client_object(&c[i], TD_WIRE_PING, 0), TANDEM_OK);
    td_point_raise(&in, 1);
    for (int i = 0; i < 2; i++)
        for (uint64_t k = 0; k < JOBS; k++) {
            r[i][k] = client_report(&c[i], k + 1, PATIENCE);
            assert_int_equal(r[i][k].state, TANDEM_JOB_DONE);
        }
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < JOBS; k++)
            if (r[i][k].end_ns <= r[0][JOBS - 1].end_ns)
                ns[i] += r[i][k].end_ns - r[i][k].begin_ns;
    share = (double)ns[0] / (double)(ns[0] + ns[1]);
    print_message("  the one with small jobs had %.0f %% of the time\n", share * 100);
    assert_true(share > 0.4 && share < 0.6);
    for (int i = 0; i < 2; i++) {
        client_close(&c[i]);
        task_free(&t[i]);
    }
    td_point_close(&in);
    td_fd_close(&page);
}

/* A frame's job that takes long does not hold up others' frames: it is cut, to the same bits. All is put before any begins,
 * as above. */
static void let_others_in(const shape *long_one)
{
    enum { JOBS = 10 };
    const shape shapes[2] = {*long_one, {2, 64, 96, 32, TANDEM_PRECISION_F16, 0}};
    td_wire_report slow, quick;
    char why[300] = "";
    int page = -1;
    td_point in;
    client c[2];
    task t[2];

    start_daemon("threads = 1\n");
    assert_int_equal(td_point_make(&in, 0, &page, why, sizeof why), TANDEM_OK);
    for (int i = 0; i < 2; i++) {
        tandem_job job;

        client_open(&c[i], i ? "quick" : "slow");
        task_make(&t[i], &shapes[i], 33);
        task_share(&t[i], &c[i]);
        clear_output(&t[i]);
        job = job_of(&t[i]);
        job.wait = (tandem_point){client_page(&c[i], page, false, 0), 1};
        for (int k = 0; k < (i ? JOBS : 1); k++)
            client_job(&c[i], &job);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(client_object(&c[i], TD_WIRE_PING, 0), TANDEM_OK);
    td_point_raise(&in, 1);
    slow = client_report(&c[0], 1, PATIENCE);
    quick = client_report(&c[1], JOBS, PATIENCE);
    assert_int_equal(slow.state, TANDEM_JOB_DONE);
    assert_int_equal(quick.state, TANDEM_JOB_DONE);
    assert_true(slow.begin_ns < quick.begin_ns && quick.end_ns < slow.end_ns);
    for (int i = 0; i < 2; i++) {
        check_output(&t[i]);
        client_close(&c[i]);
        task_free(&t[i]);
    }
    td_point_close(&in);
    td_fd_close(&page);
}

static void long_jobs_let_others_in(void **state)
{
    (void)state;
    let_others_in(&(shape){8, 2048, 1280, 64, TANDEM_PRECISION_F16, 0});
}

static void a_long_causal_head_lets_others_in(void **state)
{
    (void)state;
    let_others_in(&(shape){1, 7000, 7000, 64, TANDEM_PRECISION_8B, 1});
}

static void few_keys_for_many_rows_let_others_in(void **state)
{
    (void)state;
    let_others_in(&(shape){1, 400000, 64, 32, TANDEM_PRECISION_F16, 0});
}

static void rows_without_keys_let_others_in(void **state)
{
    (void)state;
    let_others_in(&(shape){1, 400000, 64, 32, TANDEM_PRECISION_8B, 1});
}

/* Drafts: what pieces of a job with a deadline write, until all of them have. */

/* Of the background one job at a time is computed: another's is done in between only where the long one is cut. */
static void a_deadline_lets_others_in(void **state)
{
    static const shape shapes[] = {{1, 7000, 7000, 64, TANDEM_PRECISION_8B, 1}, {8, 2048, 1280, 64, TANDEM_PRECISION_F16, 0}};
    enum { TRIES = 100 };
    client c[2];
    task t[2];

    (void)state;
    start_daemon("threads = 1\n");
    for (int i = 0; i < 2; i++)
        client_open_as(&c[i], i ? "quick" : "slow", TANDEM_CLASS_BACKGROUND);
    task_make(&t[1], &small, 99);
    task_share(&t[1], &c[1]);
    for (int i = 0; i < 2; i++) {
        bool between = false;

        task_make(&t[0], &shapes[i], 98);
        task_share(&t[0], &c[0]);
        for (int try = 0; !between; try++) { /* it may come too late, but not always */
            const uint64_t begin = td_now_ns();
            tandem_job job = job_of(&t[0]);
            td_wire_report slow, quick;
            uint64_t ticket;

            assert_true(try < TRIES);
            clear_output(&t[0]);
            job.deadline_ns = 600000 * MS;
            ticket = client_job(&c[0], &job);
            while (client_report(&c[0], ticket, 0).state == TANDEM_JOB_PENDING && td_now_ns() - begin < PATIENCE)
                ;
            quick = run_job(&c[1], &t[1]);
            slow = client_report(&c[0], ticket, PATIENCE);
            assert_int_equal(slow.state, TANDEM_JOB_DONE);
            assert_int_equal(quick.state, TANDEM_JOB_DONE);
            between = slow.begin_ns < quick.begin_ns && quick.end_ns < slow.end_ns;
        }
        check_output(&t[0]);
        task_free(&t[0]);
    }
    client_close(&c[0]);
    client_close(&c[1]);
    task_free(&t[1]);
}

/* The same bits, those of lse too, as where such a job is not cut. */
static void a_draft_becomes_the_output(void **state)
{
    static const shape shapes[] = {{4, 2304, 512, 32, TANDEM_PRECISION_F16, 0}, {2, 3000, 1500, 64, TANDEM_PRECISION_4B, 1},
                                   {6, 200, 3000, 64, TANDEM_PRECISION_AUTO, 0}, {1, 4000, 300, 128, TANDEM_PRECISION_8B, 0}};
    client c[2];
    task t, lse;

    (void)state;
    start_daemon("threads = 2\n");
    for (int i = 0; i < 2; i++)
        client_open_as(&c[i], i ? "cut" : "whole", i ? TANDEM_CLASS_BACKGROUND : TANDEM_CLASS_FRAME);
    for (uint32_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const uint64_t lse_bytes = 4ull * shapes[i].heads * shapes[i].rows;
        void *outputs[2] = {NULL, NULL};

        task_make(&t, &shapes[i], 100 + i);
        task_make(&lse, &shapes[i], 0); /* has room for it, in place of its own output */
        for (int k = 0; k < 2; k++) {
            tandem_job job;
            td_wire_report r;

            task_share(&t, &c[k]);
            task_share(&lse, &c[k]);
            clear_output(&t);
            clear_output(&lse);
            job = job_of(&t);
            job.deadline_ns = 600000 * MS;
            job.op.attention.lse = (tandem_view){.mem = lse.mem,
                                                 .offset_bytes = lse.o_at,
                                                 .dtype = TANDEM_DTYPE_F32,
                                                 .stride_batch = (int64_t)lse_bytes / 4,
                                                 .stride_head = shapes[i].rows,
                                                 .stride_row = 1};
            r = client_report(&c[k], client_job(&c[k], &job), PATIENCE);
            assert_int_equal(r.state, TANDEM_JOB_DONE);
            assert_int_not_equal(r.precision, TANDEM_PRECISION_AUTO);
            outputs[k] = malloc(t.q_bytes + t.q_bytes);
            memcpy(outputs[k], (char *)t.data + t.o_at, t.q_bytes);
            memcpy((char *)outputs[k] + t.q_bytes, (char *)lse.data + lse.o_at, t.q_bytes); /* and what is behind it */
        }
        assert_memory_equal(outputs[0], outputs[1], 2 * t.q_bytes);
        free(outputs[0]);
        free(outputs[1]);
        task_free(&t);
        task_free(&lse);
    }
    client_close(&c[0]);
    client_close(&c[1]);
}

/* A port that is free now. */
static int free_port(void)
{
    struct sockaddr_in web = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int request = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t size = sizeof web;

    assert_int_equal(bind(request, (struct sockaddr *)&web, sizeof web), 0);
    assert_int_equal(getsockname(request, (struct sockaddr *)&web, &size), 0);
    close(request);
    return ntohs(web.sin_port);
}

static uint64_t metric(int port, const char *name)
{
    const struct sockaddr_in web = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    const int request = socket(AF_INET, SOCK_STREAM, 0);
    static char page[60000];
    char line[80];
    const char *found;
    size_t have = 0;
    ssize_t got;

    assert_int_equal(connect(request, (const struct sockaddr *)&web, sizeof web), 0);
    assert_int_equal(send(request, "GET /metrics HTTP/1.0\r\n\r\n", 25, MSG_NOSIGNAL), 25);
    while (have < sizeof page - 1 && (got = recv(request, page + have, sizeof page - 1 - have, 0)) > 0)
        have += (size_t)got;
    close(request);
    page[have] = 0;
    snprintf(line, sizeof line, "\n%s ", name);
    found = strstr(page, line);
    assert_non_null(found);
    return strtoull(found + strlen(line), NULL, 10);
}

/* Shared memory of all clients, and their drafts. */
static void await_mem_bytes(int port, uint64_t wanted)
{
    const uint64_t begin = td_now_ns();

    while (metric(port, "tandemd_mem_bytes") != wanted) {
        assert_true(td_now_ns() - begin < PATIENCE);
        sleep_ms(20);
    }
}

typedef enum half { LATE, CANCELLED, GONE, HALVES } half;

/* False if the job was not seen to run, or was done nevertheless. */
static bool stop_half_way(half how, task *t, int port, uint64_t late_ns)
{
    static const char done[] = "tandemd_jobs_total{state=\"done\"}";
    td_wire_message cancel = td_wire_new(TD_WIRE_CANCEL, 0);
    const uint64_t begin = td_now_ns(), before = metric(port, done);
    uint64_t held, state = TANDEM_JOB_PENDING;
    tandem_job job;
    bool ran;
    client c;

    client_open_as(&c, "half", TANDEM_CLASS_BACKGROUND);
    task_share(t, &c);
    clear_output(t);
    job = job_of(t);
    job.deadline_ns = how == LATE ? late_ns : 600000 * MS;
    cancel.cancel.ticket = client_job(&c, &job);
    while (client_report(&c, cancel.cancel.ticket, 0).state == TANDEM_JOB_PENDING && td_now_ns() - begin < PATIENCE)
        ;
    held = metric(port, "tandemd_mem_bytes");
    ran = client_report(&c, cancel.cancel.ticket, 0).state == TANDEM_JOB_RUNNING;
    if (ran)
        assert_int_equal(held, t->bytes + td_align_up(t->q_bytes, 4096));
    if (how == CANCELLED)
        assert_int_equal(client_put(&c, &cancel), TANDEM_OK);
    if (how != GONE) {
        state = client_report(&c, cancel.cancel.ticket, PATIENCE).state;
        if (state != TANDEM_JOB_DONE)
            assert_true(is_untouched(t));
        await_mem_bytes(port, t->bytes);
    }
    client_close(&c);
    await_mem_bytes(port, 0);
    if (metric(port, done) != before)
        return false;
    assert_true(is_untouched(t));
    assert_int_equal(state, how == LATE        ? TANDEM_JOB_STALE
                            : how == CANCELLED ? TANDEM_JOB_CANCELLED
                                               : TANDEM_JOB_PENDING);
    return ran;
}

/* Late, given up, or of a client that goes: not a byte is written, and the draft is freed. */
static void half_a_draft_is_nothing(void **state)
{
    enum { TRIES = 8 };
    const int port = free_port();
    char config[60];
    task t;

    (void)state;
    snprintf(config, sizeof config, "threads = 2\nmetrics = %d\n", port);
    start_daemon(config);
    task_make(&t, &(shape){8, 4096, 8192, 64, TANDEM_PRECISION_F16, 0}, 110);
    for (half how = LATE; how < HALVES; how++)
        for (int try = 0; !stop_half_way(how, &t, port, 50 * MS << try); try++)
            assert_true(try < TRIES);
    task_free(&t);
}

/* It begins again where its worker dies while another's job is in between. */
static void a_lost_draft_is_written_again(void **state)
{
    const shape cannot_be_cut = {1, 1100, 32768, 64, TANDEM_PRECISION_F16, 0};
    enum { TRIES = 20 };
    bool again = false;
    client c[2];
    task t[2];

    (void)state;
    start_daemon("threads = 1\n");
    for (int i = 0; i < 2; i++) {
        client_open_as(&c[i], i ? "in between" : "cut", TANDEM_CLASS_BACKGROUND);
        task_make(&t[i], i ? &cannot_be_cut : &large, 120);
        task_share(&t[i], &c[i]);
    }
    for (int try = 0; !again; try++) {
        const pid_t worker = await_worker(0);
        uint64_t tickets[2];
        td_wire_report r;

        assert_true(try < TRIES); /* one of the two may be done too early, but not always */
        for (int i = 0; i < 2; i++) {
            const uint64_t begin = td_now_ns();
            tandem_job job = job_of(&t[i]);

            clear_output(&t[i]);
            job.deadline_ns = i ? 0 : 600000 * MS;
            tickets[i] = client_job(&c[i], &job);
            while (client_report(&c[i], tickets[i], 0).state == TANDEM_JOB_PENDING && td_now_ns() - begin < PATIENCE)
                ;
        }
        again = client_report(&c[0], tickets[0], 0).state == TANDEM_JOB_RUNNING;
        kill(worker, SIGKILL);
        again = client_report(&c[1], tickets[1], PATIENCE).status == TANDEM_ERROR_LOST && again;
        r = client_report(&c[0], tickets[0], PATIENCE);
        if (again)
            assert_int_equal(r.state, TANDEM_JOB_DONE); /* of the background one is with the worker: the other one */
        if (r.state == TANDEM_JOB_DONE)
            check_output(&t[0]);
        await_worker(worker);
    }
    for (int i = 0; i < 2; i++) {
        client_close(&c[i]);
        task_free(&t[i]);
    }
}

/* A draft is its client's, and where there is no room for one the job is not cut; an idle one makes room. */
static void drafts_count(void **state)
{
    const shape cut = {2, 3000, 512, 64, TANDEM_PRECISION_8B, 0}, long_one = {1, 1024, 32768, 64, TANDEM_PRECISION_8B, 0};
    uint64_t scratch;
    char config[60];
    client c;
    task t, long_t;

    (void)state;
    start_daemon("");
    scratch = scratch_of(&long_one);
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
    task_make(&t, &cut, 130);
    task_make(&long_t, &long_one, 131);
    snprintf(config, sizeof config, "client_bytes = %" PRIu64 "\n", t.bytes + long_t.bytes + scratch);
    start_daemon(config);
    client_open_as(&c, "all that it may have", TANDEM_CLASS_BACKGROUND);
    task_share(&t, &c);
    task_share(&long_t, &c);
    for (int i = 0; i < 4; i++) {
        const task *each = i % 2 ? &long_t : &t; /* which needs all the scratch that there may be */
        tandem_job job = job_of(each);

        clear_output(&t);
        job.deadline_ns = i % 2 ? 0 : 600000 * MS;
        assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).state, TANDEM_JOB_DONE);
        if (each == &t)
            check_output(&t);
    }
    client_close(&c);
    task_free(&t);
    task_free(&long_t);
}

/* A draft that no job needs now is in nobody's way: the memory beside it has all the room that there is without it. */
static void an_idle_draft_makes_room(void **state)
{
    const shape cut = {2, 12000, 64, 64, TANDEM_PRECISION_8B, 0};
    uint64_t limit, bytes;
    char config[60], why[200] = "";
    tandem_job job;
    client c;
    task t;
    int fd;

    (void)state;
    task_make(&t, &cut, 140);
    limit = 4 * t.bytes;
    snprintf(config, sizeof config, "client_bytes = %" PRIu64 "\n", limit);
    start_daemon(config);
    client_open_as(&c, "drafts", TANDEM_CLASS_BACKGROUND);
    task_share(&t, &c);
    job = job_of(&t);
    job.deadline_ns = 600000 * MS;
    assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).state, TANDEM_JOB_DONE);
    bytes = (limit - t.bytes - t.q_bytes / 2) / 4096 * 4096; /* the draft has q_bytes, pieces' scratch a fraction of that */
    assert_int_equal(td_slab_make("tandem-test-slab", bytes, false, &fd, why, sizeof why), TANDEM_OK);
    assert_true(client_mem(&c, fd, bytes, bytes) != 0);
    td_fd_close(&fd);
    client_close(&c);
    task_free(&t);
}

/* What goes on in the background is cut: the same bits, and frames go in between. */
static void the_background_gives_way(void **state)
{
    static const shape shapes[] = {
        {4, 2304, 512, 32, TANDEM_PRECISION_F16, 0},  {2, 2100, 700, 64, TANDEM_PRECISION_8B, 0},
        {1, 4000, 300, 128, TANDEM_PRECISION_4B, 0},  {6, 200, 1000, 64, TANDEM_PRECISION_AUTO, 0},
        {1, 4000, 4000, 32, TANDEM_PRECISION_8B, 1},  {2, 3000, 1500, 64, TANDEM_PRECISION_4B, 1},
        {1, 2500, 3500, 64, TANDEM_PRECISION_F16, 1}, {8, 2048, 2048, 64, TANDEM_PRECISION_F16, 0}};
    enum { SHAPES = sizeof shapes / sizeof *shapes, TRIES = 30 };
    td_wire_message m = hello(TD_WIRE_SHARE_HOST, "a language model");
    td_wire_report slow, quick;
    client background, frame;
    uint64_t ticket, begin;
    bool between = false;
    tandem_job job;
    task t, f;

    (void)state;
    start_daemon("threads = 2\n");
    m.hello.job_class = TANDEM_CLASS_BACKGROUND;
    assert_int_equal(client_connect(&background), TANDEM_OK);
    assert_int_equal(client_hello(&background, &m), TANDEM_OK);
    client_open(&frame, "a game");
    task_make(&f, &small, 80);
    task_share(&f, &frame);
    for (int i = 0; i < SHAPES || !between; i++) {
        assert_true(i < SHAPES + TRIES); /* on a busy machine it may begin after the frame, but not always */
        task_make(&t, &shapes[i < SHAPES ? i : SHAPES - 1], 81 + (uint32_t)i);
        task_share(&t, &background);
        clear_output(&t);
        clear_output(&f);
        job = job_of(&t);
        ticket = client_job(&background, &job);
        begin = td_now_ns();
        while (client_report(&background, ticket, 0).state == TANDEM_JOB_PENDING && td_now_ns() - begin < PATIENCE)
            ;
        job = job_of(&f);
        quick = client_report(&frame, client_job(&frame, &job), PATIENCE);
        slow = client_report(&background, ticket, PATIENCE);
        assert_int_equal(quick.state, TANDEM_JOB_DONE);
        assert_int_equal(slow.state, TANDEM_JOB_DONE);
        if (i + 1 >= SHAPES) /* the one that takes longest */
            between = slow.begin_ns < quick.begin_ns && quick.end_ns < slow.end_ns;
        check_output(&t);
        check_output(&f);
        task_free(&t);
    }
    /* Given up between two pieces. */
    task_make(&t, &shapes[SHAPES - 1], 90);
    task_share(&t, &background);
    job = job_of(&t);
    ticket = client_job(&background, &job);
    while (client_report(&background, ticket, 0).state == TANDEM_JOB_PENDING && td_now_ns() - begin < PATIENCE)
        ;
    m = td_wire_new(TD_WIRE_CANCEL, 0);
    m.cancel.ticket = ticket;
    assert_int_equal(client_put(&background, &m), TANDEM_OK);
    assert_int_equal(client_report(&background, ticket, PATIENCE).state, TANDEM_JOB_CANCELLED);
    task_free(&t);
    task_free(&f);
    client_close(&background);
    client_close(&frame);
}

/* What cannot be cut stands still instead: one head's 128 rows over many keys, with and without a deadline, around a frame
 * that the worker computes itself and one that takes it both threads. The same bits. */
static void frames_go_in_between_keys(void **state)
{
    const shape long_one = {1, 128, getenv("TANDEM_SANITIZED") ? 4096 : 32768, 64, TANDEM_PRECISION_8B, 0},
                brief = {2, 64, 96, 32, TANDEM_PRECISION_F16, 0}, longer = {4, 256, 256, 64, TANDEM_PRECISION_8B, 0};
    enum { TRIES = 300 };
    uint32_t between[2][2] = {{0}};
    client background, frame;
    task t, f[2];
    void *expected;

    (void)state;
    start_daemon("threads = 2\n");
    client_open_as(&background, "a language model", TANDEM_CLASS_BACKGROUND);
    client_open(&frame, "a game");
    task_make(&t, &long_one, 83);
    task_share(&t, &background);
    for (int i = 0; i < 2; i++) {
        task_make(&f[i], i ? &longer : &brief, 84);
        task_share(&f[i], &frame);
    }
    expected = in_process(&t, TANDEM_BACKEND_CPU);
    for (int try = 0; !between[0][0] || !between[0][1] || !between[1][0] || !between[1][1]; try++) {
        const int which = try % 2, late = try / 2 % 2;
        tandem_job job = job_of(&t);
        td_wire_report slow, quick;
        uint64_t ticket, begin;

        assert_true(try < TRIES); /* it may have begun late, but not always */
        clear_output(&t);
        clear_output(&f[which]);
        job.deadline_ns = late ? 60000 * MS : 0;
        ticket = client_job(&background, &job);
        begin = td_now_ns();
        while (client_report(&background, ticket, 0).state == TANDEM_JOB_PENDING && td_now_ns() - begin < PATIENCE)
            ;
        sleep_ms(1 + (unsigned)try / 4 % 8); /* on a machine that does other things too it begins later */
        job = job_of(&f[which]);
        quick = client_report(&frame, client_job(&frame, &job), PATIENCE);
        slow = client_report(&background, ticket, PATIENCE);
        assert_int_equal(quick.state, TANDEM_JOB_DONE);
        assert_int_equal(slow.state, TANDEM_JOB_DONE);
        between[which][late] += slow.begin_ns < quick.begin_ns && quick.end_ns < slow.end_ns;
        assert_memory_equal((char *)t.data + t.o_at, expected, t.q_bytes);
        check_output(&f[which]);
    }
    free(expected);
    client_close(&background);
    client_close(&frame);
    task_free(&t);
    task_free(&f[0]);
    task_free(&f[1]);
}

/* Of clients that have had as much, the one with the earliest deadline is next. */
static void earlier_deadlines_go_first(void **state)
{
    const uint64_t deadlines[3] = {0, 60000 * MS, 30000 * MS};
    uint64_t tickets[3], begins[3], begin;
    client busy, c[3];
    task large_task, t[3];
    tandem_job job;

    (void)state;
    start_daemon("share_window_us = 1000000\n");
    client_open(&busy, "busy");
    task_make(&large_task, &large, 70);
    task_share(&large_task, &busy);
    job = job_of(&large_task);
    job.deadline_ns = 600000 * MS; /* so that it is not cut */
    for (int i = 0; i < 3; i++) {
        client_open(&c[i], "one of three");
        task_make(&t[i], &small, 71);
        task_share(&t[i], &c[i]);
    }
    client_job(&busy, &job);
    client_job(&busy, &job); /* both places in the worker are taken */
    begin = td_now_ns();
    while (client_report(&busy, busy.last_ticket, 0).state == TANDEM_JOB_PENDING && td_now_ns() - begin < PATIENCE)
        ;
    for (int i = 0; i < 3; i++) {
        job = job_of(&t[i]);
        job.deadline_ns = deadlines[i];
        tickets[i] = client_job(&c[i], &job);
    }
    for (int i = 0; i < 3; i++) {
        const td_wire_report r = client_report(&c[i], tickets[i], PATIENCE);

        assert_int_equal(r.state, TANDEM_JOB_DONE);
        check_output(&t[i]);
        begins[i] = r.begin_ns;
    }
    assert_true(begins[2] < begins[1] && begins[1] < begins[0]);
    for (int i = 0; i < 3; i++) {
        client_close(&c[i]);
        task_free(&t[i]);
    }
    client_close(&busy);
    task_free(&large_task);
}

static void it_stops_within_two_seconds(void **state)
{
    td_point out;
    tandem_job job;
    uint64_t ticket, begin;
    client c;
    task t;
    int status;

    (void)state;
    start_daemon("log = debug\n");
    kill(daemon_pid, SIGHUP);
    await_log("was read again");
    write_config("mems = many\n");
    kill(daemon_pid, SIGHUP);
    await_log("stays as it is");
    await_log("mems is 'many'");
    client_open(&c, "last");
    task_make(&t, &large, 40);
    task_share(&t, &c);
    job = job_of(&t);
    job.signal.timeline = client_timeline(&c, &out, true, 0);
    for (uint64_t i = 1; i <= 4; i++) {
        job.signal.value = i;
        ticket = client_job(&c, &job);
    }
    begin = td_now_ns();
    status = end_daemon(SIGTERM, PATIENCE);
    print_message("  it took %.0f ms\n", (double)(td_now_ns() - begin) / 1e6);
    assert_int_equal(status, 0);
    if (!getenv("TANDEM_SANITIZED"))
        assert_true(td_now_ns() - begin < 2000 * MS);
    assert_int_equal(point_value(&out), 4); /* no point is lost */
    assert_true(client_report(&c, ticket, 0).state > TANDEM_JOB_RUNNING);
    while (client_events(&c, 100 * MS) == TANDEM_OK)
        ;
    assert_int_equal(c.byes, 1);
    assert_int_equal(c.event.bye.reason, TD_WIRE_BYE_STOPPING);
    assert_int_equal(access(socket_path, F_OK), -1);
    client_close(&c);
    td_point_close(&out);
    task_free(&t);
}

static int notify_fd = -1;
static bool await_note(const char *text)
{
    const uint64_t begin = td_now_ns();
    char note[100];

    while (td_now_ns() - begin < PATIENCE) {
        struct pollfd p = {notify_fd, POLLIN, 0};
        const ssize_t got = poll(&p, 1, 100) > 0 ? recv(notify_fd, note, sizeof note - 1, 0) : 0;

        note[got > 0 ? got : 0] = 0;
        if (!strcmp(note, text))
            return true;
    }
    return false;
}

/* As a service manager starts it: with its socket, its ear and its watchdog. */
static void a_service_manager_is_served(void **state)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char path[100];
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), request = -1;
    struct sockaddr_in web = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static char page[60000];
    size_t have = 0;
    ssize_t got;
    client c;
    char config[100];

    (void)state;
    web.sin_port = htons((uint16_t)free_port());
    snprintf(config, sizeof config, "metrics = %d\n", ntohs(web.sin_port));
    write_config(config);
    next_log();
    snprintf(at.sun_path, sizeof at.sun_path, "%s", socket_path);
    unlink(socket_path);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 8), 0);
    snprintf(path, sizeof path, "%s/notify", folder);
    unlink(path);
    notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    assert_int_equal(bind(notify_fd, (struct sockaddr *)&at, sizeof at), 0);
    daemon_pid = fork();
    if (!daemon_pid) {
        char pid[20];

        snprintf(pid, sizeof pid, "%d", (int)getpid());
        setenv("LISTEN_PID", pid, 1);
        setenv("LISTEN_FDS", "1", 1);
        setenv("NOTIFY_SOCKET", path, 1);
        setenv("WATCHDOG_USEC", "400000", 1);
        dup2(fd, 3);
        exec_daemon();
    }
    close(fd);
    assert_true(await_note("READY=1"));
    assert_true(await_note("WATCHDOG=1"));
    assert_true(await_note("WATCHDOG=1"));
    client_open(&c, "quote \" here");
    request = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(request, (struct sockaddr *)&web, sizeof web), 0);
    assert_true(send(request, "GET /metrics HTTP/1.0\r\n\r\n", 25, MSG_NOSIGNAL) > 0);
    while (have < sizeof page - 1 && (got = recv(request, page + have, sizeof page - 1 - have, 0)) > 0)
        have += (size_t)got;
    close(request);
    assert_non_null(strstr(page, "200 OK"));
    assert_non_null(strstr(page, "\ntandemd_clients 1\n"));
    assert_non_null(strstr(page, "\ntandemd_background_slice_ns_max 0\n"));
    assert_non_null(strstr(page, "name=\"quote \\\" here\",class=\"frame\"} 0\n"));
    client_close(&c);
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
    assert_true(await_note("STOPPING=1"));
    assert_int_equal(access(socket_path, F_OK), 0); /* the manager's */
    unlink(socket_path);
    close(notify_fd);
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

/* What cannot be begun is said, in one line. */
static void wrong_starts_are_told(void **state)
{
    static const struct {
        const char *config, *says;
    } wrong[] = {{"cleints = 2\n", "line 1: 'cleints' is no key"},
                 {"\n# x\nclients = 0\n", "line 3: clients is 0, must be 1 to 48"},
                 {"backend = gpu\n", "backend is 'gpu', must be auto, cuda or cpu"},
                 {"mem_bytes = 4T\n", "mem_bytes is '4T', must be a number, behind it K, M, G or nothing"},
                 {"nonsense\n", "has no '='"},
                 {"model_dir = models\n", "must be an absolute path"},
                 {"tuning = tuning.json\n", "tuning is 'tuning.json', must be an absolute path"},
                 {"tuning = /nonexistent/tuning.json\n", "tuning is '/nonexistent/tuning.json': No such file"},
                 {"tuning = /dev/null\n", "tuning is '/dev/null': the table is no JSON"},
                 {"allow_uid = -1\n", "allow_uid is '-1'"}};

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        launch_daemon(wrong[i].config);
        assert_int_equal(end_daemon(0, PATIENCE), 1);
        if (!has_logged(log_path, wrong[i].says)) {
            show_log();
            fail_msg("'%s' is not said", wrong[i].says);
        }
    }
    start_daemon("");
    {
        const pid_t first = daemon_pid;

        daemon_pid = fork();
        if (!daemon_pid)
            exec_daemon();
        assert_int_equal(end_daemon(0, PATIENCE), 1); /* there is one already */
        assert_true(has_logged(log_path, "a daemon listens there"));
        daemon_pid = first;
    }
    {
        struct stat st;

        assert_int_equal(stat(socket_path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
    }
    check_serves();
}

static void reload(const char *text, const char *says)
{
    write_config(text);
    kill(daemon_pid, SIGHUP);
    await_log(says);
}

/* What AUTO is to go by is read once; on a CPU, or another GPU, it is told that it is not used. */
static void a_tuning_is_read_at_the_start(void **state)
{
    static const char text[] =
        "{\"tandem\":\"choice\",\"version\":2,\"device\":\"a GPU\",\"sm\":90,\"multiprocessors\":1,"
        "\"parts\":[{\"head_dim\":64,\"causal\":0}]}";
    char path[120], config[200];
    FILE *file;

    (void)state;
    snprintf(path, sizeof path, "%s/tuning.json", folder);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    snprintf(config, sizeof config, "backend = cpu\ntuning = %s\n", path);
    start_daemon(config);
    await_log("what was given is not used: there are no tables of the CPU's kernels");
    assert_true(has_logged(log_path, path));
    unlink(path);
    reload(config, "the configuration was read again");
    check_serves();
}

/* Files that people do not write, and files that are written while the daemon runs. */
static void configurations_may_be_odd(void **state)
{
    char text[1400];
    struct stat st;

    (void)state;
    memset(text, 'x', sizeof text); /* a comment however long is one line */
    memcpy(text, "# ", 2);
    strcpy(text + 1300, " = 1\nbackend = cpu\n");
    launch_daemon(text);
    await_log("computes on");
    assert_int_equal(stat(socket_path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    reload("backend = cpu\nallow_uid = 65534\n", "was read again"); /* others come from now on */
    assert_int_equal(stat(socket_path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0666);
    reload("backend = cuda\nmetrics = 1\n", "until the next start");
    {
        const pid_t worker = await_worker(0);

        kill(worker, SIGKILL); /* the next one computes on the same */
        await_worker(worker);
        check_serves();
    }
    while (stat(socket_path, &st) || (st.st_mode & 0777) != 0600)
        sleep_ms(1);
    unlink(config_path);
    assert_int_equal(mkfifo(config_path, 0600), 0); /* to read which would take for ever */
    kill(daemon_pid, SIGHUP);
    await_log("is no regular file");
    check_serves();
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
    unlink(config_path);
    {
        FILE *file = fopen(config_path, "w");

        assert_non_null(file);
        assert_true(fwrite("log = info\nclients = 4\0 0\n", 1, 26, file) == 26);
        assert_int_equal(fclose(file), 0);
    }
    next_log();
    daemon_pid = fork();
    if (!daemon_pid)
        exec_daemon();
    assert_int_equal(end_daemon(0, PATIENCE), 1);
    assert_true(has_logged(log_path, "line 2: byte 11 is 0"));
}

/* Without --socket and --config: where the session's folder and the user's configuration are. */
static void exec_plain_daemon(const char *runtime, const char *home)
{
    const int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(log, STDERR_FILENO);
    setenv("XDG_RUNTIME_DIR", runtime, 1);
    setenv("XDG_CONFIG_HOME", home, 1);
    execl(program, "tandemd", (char *)NULL);
    _exit(127);
}

static void start_plain_daemon(const char *runtime, const char *home)
{
    next_log();
    daemon_pid = fork();
    if (!daemon_pid)
        exec_plain_daemon(runtime, home);
}

static void folders_are_looked_at(void **state)
{
    char runtime[100], path[160];
    FILE *file;

    (void)state;
    start_plain_daemon("run/user", "/nowhere");
    assert_int_equal(end_daemon(0, PATIENCE), 1);
    assert_true(has_logged(log_path, "no absolute path"));
    snprintf(runtime, sizeof runtime, "%s/run", folder);
    assert_int_equal(mkdir(runtime, 0700), 0);
    assert_int_equal(chmod(runtime, 0777), 0);
    start_plain_daemon(runtime, "/nowhere");
    assert_int_equal(end_daemon(0, PATIENCE), 1);
    assert_true(has_logged(log_path, "others can write to"));
    assert_int_equal(chmod(runtime, 0700), 0);
    start_plain_daemon(runtime, runtime);
    await_log("computes on");
    snprintf(path, sizeof path, "%s/tandem", runtime); /* made later than the daemon was started */
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/tandem/tandemd.conf", runtime);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs("clients = none\n", file);
    assert_int_equal(fclose(file), 0);
    kill(daemon_pid, SIGHUP);
    await_log("clients is 'none'");
    unlink(path);
    kill(daemon_pid, SIGHUP);
    await_log("was read again");
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
}

/* However many there are, and whatever they are called, every line is one. */
static void metrics_are_whole(void **state)
{
    struct sockaddr_in web = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static char page[300000];
    static client c[48];
    char config[100], name[TD_WIRE_NAME_BYTES] = "";
    uint32_t lines = 0;
    size_t have = 0;
    ssize_t got;
    int request;

    (void)state;
    web.sin_port = htons((uint16_t)free_port());
    snprintf(config, sizeof config, "clients = 48\nmetrics = %d\n", ntohs(web.sin_port));
    start_daemon(config);
    memset(name, '"', sizeof name - 1);
    for (int i = 0; i < 48; i++)
        client_open(&c[i], name);
    request = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(request, (struct sockaddr *)&web, sizeof web), 0);
    assert_int_equal(send(request, "GET /metrics HTTP/1.0\r\n\r\n", 25, MSG_NOSIGNAL), 25);
    while (have < sizeof page - 1 && (got = recv(request, page + have, sizeof page - 1 - have, 0)) > 0)
        have += (size_t)got;
    close(request);
    assert_non_null(strstr(page, "\r\n\r\n"));
    for (char *line = strtok(strstr(page, "\r\n\r\n") + 4, "\n"); line; line = strtok(NULL, "\n")) {
        assert_true(!strncmp(line, "tandemd_", 8) || !strncmp(line, "# ", 2));
        lines += !strncmp(line, "tandemd_client_", 15);
    }
    assert_int_equal(lines % 48, 0);
    assert_true(lines >= 9 * 48);
    for (int i = 0; i < 48; i++)
        client_close(&c[i]);
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

/* Slabs and pages with CUDA behind them, where there is a GPU. */
static void a_gpu_computes(void **state)
{
    client c;
    td_point out;
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
    td_point_close(&out);
    task_free(&t);
}

/* Only its own user, and who is allowed. */
static void others_need_leave(void **state)
{
    enum { NOBODY = 65534 };

    (void)state;
    if (geteuid()) {
        print_message("  only root can be somebody else\n");
        skip();
    }
    assert_int_equal(chmod(folder, 0711), 0);
    for (int allowed = 0; allowed < 2; allowed++) {
        pid_t other;
        int status;

        start_daemon(allowed ? "allow_uid = 65534\n" : "");
        if (!allowed) /* the second line of defence */
            assert_int_equal(chmod(socket_path, 0666), 0);
        other = fork();
        if (!other) {
            td_wire_message m = hello(TD_WIRE_SHARE_HOST, "somebody else");
            client c;

            if (setgid(NOBODY) || setuid(NOBODY) || client_connect(&c) != TANDEM_OK)
                _exit(3);
            status = client_hello(&c, &m) == TANDEM_OK;
            if (!status && (c.event.header.type != TD_WIRE_ERROR || c.event.error.status != TANDEM_ERROR_UNSUPPORTED))
                _exit(4);
            _exit(status);
        }
        assert_int_equal(waitpid(other, &status, 0), other);
        assert_int_equal(status, allowed << 8);
        check_serves();
        assert_int_equal(tear_down(NULL), 0);
    }
    assert_int_equal(chmod(folder, 0700), 0);
}

/* Broker, worker and nursery have given up what they do not need. */
static void processes_are_confined(void **state)
{
    char name[64];

    (void)state;
    start_daemon("");
    for (int i = 0; i < 3; i++) {
        const pid_t worker = await_worker(0);
        const pid_t pid = i == 0 ? daemon_pid : i == 1 ? worker : parent_of(worker, name, sizeof name);

        assert_int_equal(status_of(pid, "NoNewPrivs"), 1);
        if (!getenv("TANDEM_SANITIZED"))
            assert_int_equal(status_of(pid, "Seccomp"), 2);
    }
}

int main(void)
{
    const struct CMUnitTest common[] = {
        cmocka_unit_test(results_are_those_of_a_session),
        cmocka_unit_test(numbers_are_told),
        cmocka_unit_test(wrong_jobs_fail_alone),
        cmocka_unit_test(jobs_can_be_given_up),
        cmocka_unit_test(running_jobs_are_cancelled),
        cmocka_unit_test(killed_clients_leave_nothing),
        cmocka_unit_test(a_killed_worker_is_replaced),
        cmocka_unit_test(a_worker_that_hangs_is_ended),
        cmocka_unit_test(garbage_ends_its_sender_alone),
        cmocka_unit_test(changed_messages_harm_nobody),
        cmocka_unit_test(who_does_not_read_is_ended),
        cmocka_unit_test(a_point_that_never_comes_is_given_up),
        cmocka_unit_test(a_wait_behind_a_long_job_is_no_late_one),
        cmocka_unit_test(many_connect),
    };
    const struct CMUnitTest own[] = {
        /* a daemon whose workers have died before waits longer before it starts the next */
        cmocka_unit_test_setup_teardown(workers_may_die_at_any_time, set_up, tear_down),
        cmocka_unit_test_setup_teardown(quotas_hold, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(quotas_count_scratch, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(a_job_that_hangs_is_lost, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(a_fault_in_a_kernel_is_survived, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(models_are_shared, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(idle_models_make_room, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(idle_models_make_room_for_jobs, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(shares_are_fair, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(long_jobs_let_others_in, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(a_long_causal_head_lets_others_in, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(few_keys_for_many_rows_let_others_in, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(rows_without_keys_let_others_in, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(a_deadline_lets_others_in, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(a_draft_becomes_the_output, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(half_a_draft_is_nothing, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(a_lost_draft_is_written_again, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(drafts_count, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(an_idle_draft_makes_room, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(the_background_gives_way, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(frames_go_in_between_keys, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(earlier_deadlines_go_first, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(it_stops_within_two_seconds, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(a_service_manager_is_served, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(the_first_worker_may_die, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(wrong_starts_are_told, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(a_tuning_is_read_at_the_start, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(configurations_may_be_odd, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(folders_are_looked_at, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(metrics_are_whole, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(a_worker_that_is_silent_is_ended, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(a_gpu_computes, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(others_need_leave, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(processes_are_confined, set_up_nothing, tear_down),
    };
    int failed;

    if (!begin_tests("tandemd"))
        return 1;
    failed = cmocka_run_group_tests_name("one daemon", common, set_up, tear_down);
    failed += cmocka_run_group_tests_name("daemons", own, NULL, NULL);
    return end_tests(failed);
}
