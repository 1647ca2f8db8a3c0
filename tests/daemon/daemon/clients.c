/* tandemd's clients: results, and whoever is wrong, hostile, killed or idle ends alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <limits.h>
#include <poll.h>

#include "interop/os/memory.h"
#include "tests/daemon/daemon/parts.h"
#include "tests/interop/wire_util.h"
#include "tests/limits.h"

static void results_are_those_of_a_session(void **state)
{
    const shape *shapes[] = {&small, &eight};
    client c;
    td_shared_timeline in, out;
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
        td_shared_timeline_raise(&in, value);
        assert_true(await_point(&out, signal));
        r = client_report(&c, first, 0); /* final before the signal */
        assert_int_equal(r.state, TANDEM_JOB_DONE);
        assert_int_equal(r.precision, t.of.precision);
        assert_true(r.begin_ns && r.end_ns >= r.begin_ns);
        check_output(&t);
        assert_int_equal(point_value(&out), signal);
        clear_output(&t);
        td_shared_timeline_raise(&in, value + 1);
        assert_true(await_point(&out, signal + 1));
        assert_int_equal(client_report(&c, second, 0).state, TANDEM_JOB_DONE);
        check_output(&t); /* with a deadline too */
        assert_int_equal(client_object(&c, TD_WIRE_MEM_DESTROY, t.mem), TANDEM_OK);
        task_free(&t);
    }
    assert_int_equal(client_object(&c, TD_WIRE_TIMELINE_DESTROY, waits), TANDEM_OK);
    assert_int_equal(client_object(&c, TD_WIRE_TIMELINE_DESTROY, signals), TANDEM_OK);
    assert_int_equal(client_object(&c, TD_WIRE_TIMELINE_DESTROY, signals), TANDEM_ERROR_ARG);
    td_shared_timeline_close(&in);
    td_shared_timeline_close(&out);
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
    td_shared_timeline out, in;
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
    td_shared_timeline_close(&in);
    td_shared_timeline_close(&out);
    task_free(&t);
}

/* Numbers that the operation does not take end the job alone, too, before the worker hears of it. */
static void wrong_numbers_fail_alone(void **state)
{
    static const struct {
        size_t at;
        uint32_t value;
        const char *says;
    } cases[] = {{offsetof(tandem_attention, kv_heads), 5, "attention.heads is"},
                 {offsetof(tandem_attention, head_dim), 44, "attention.head_dim is 44"},
                 {offsetof(tandem_attention, scale), 0x7fc00000, "attention.scale is nan"},
                 {offsetof(tandem_attention, scale), 0xff800000, "attention.scale is -inf"},
                 {offsetof(tandem_attention, causal), 2, "attention.causal is 2"},
                 {offsetof(tandem_attention, precision), 4, "attention.precision is 4"},
                 {offsetof(tandem_attention, smooth), 16, "attention.smooth is 16"},
                 {offsetof(tandem_attention, smooth), 5, "attention.smooth is 5"},
                 {offsetof(tandem_attention, granularity), 7, "attention.granularity is 7"},
                 {offsetof(tandem_attention, reserved), 1, "attention.reserved is 1"},
                 {offsetof(tandem_attention, q.dtype), TANDEM_DTYPE_I32, "attention.q.dtype is 6"},
                 {offsetof(tandem_attention, o.dtype), TANDEM_DTYPE_U8, "attention.o.dtype is 7"}};
    client c;
    task t;

    (void)state;
    client_open(&c, "numbers");
    task_make(&t, &small, 3);
    task_share(&t, &c);
    clear_output(&t);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tandem_job job = job_of(&t);
        uint64_t ticket;

        job.op.attention.k.stride_head = 0; /* within its mem, whatever kv_heads is */
        job.op.attention.v.stride_head = 0;
        memcpy((char *)&job.op.attention + cases[i].at, &cases[i].value, sizeof cases[i].value);
        ticket = client_job(&c, &job);
        assert_int_equal(client_report(&c, ticket, PATIENCE).state, TANDEM_JOB_FAILED);
        assert_int_equal(client_report(&c, ticket, 0).status, TANDEM_ERROR_ARG);
        client_events(&c, 1000 * MS);
        assert_int_equal(c.event.error.ticket, ticket);
        if (!strstr(c.event.error.text, cases[i].says))
            fail_msg("case %zu: '%s', not '%s'", i, c.event.error.text, cases[i].says);
    }
    assert_true(is_untouched(&t));
    assert_int_equal(run_job(&c, &t).state, TANDEM_JOB_DONE);
    check_output(&t);
    client_close(&c);
    task_free(&t);
}

static void jobs_can_be_given_up(void **state)
{
    td_shared_timeline out, in;
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
    td_shared_timeline_close(&in);
    td_shared_timeline_close(&out);
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
    td_shared_timeline in, out;
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
            td_shared_timeline_raise(&in, value); /* else the daemon waits for a dead one */
        if (value > 4)
            await_point(&out, value - 4);
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
        assert_true(longest_ns < LIMITS_SOON_NS);
        assert_true(status_of(daemon_pid, "VmRSS") < rss + 1024);
        assert_true(status_of(worker, "VmRSS") < worker_rss + 16384);
    }
    assert_int_equal(find_worker(), worker); /* none had to be ended */
    assert_int_equal(c.resets, 0);
    client_close(&c);
    task_free(&t);
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
    m.mem_create.kind = TD_WIRE_MEM_MEMFD;
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
    fd = memfd_create("tandem-test-buffer", 0);
    assert_int_equal(ftruncate(fd, 4096), 0);
    refuse_fd(fd, 4096); /* not sealed */
    close(fd);
    assert_int_equal(td_memfd_make("tandem-test-buffer", 4096, false, &fd, why, sizeof why), TANDEM_OK);
    refuse_fd(fd, 8192); /* shorter than it is said to be */
    close(fd);
    /* a ring that lies, and a counter that falls */
    client_open(&c, "ring liar");
    atomic_store(&c.ring.shared->tail, 1000);
    td_eventcount_notify(&c.ring.shared->to_daemon);
    assert_true(is_closed(c.conn.fd));
    client_close(&c);
    client_open(&c, "backwards");
    {
        td_shared_timeline in;
        task t;
        tandem_job job;

        task_make(&t, &small, 9);
        task_share(&t, &c);
        job = job_of(&t);
        job.wait = (tandem_point){client_timeline(&c, &in, false, 7), 9};
        client_job(&c, &job);
        sleep_ms(20);
        atomic_store(&in.counter->value, 3);
        td_eventcount_notify(&in.counter->raised);
        assert_true(is_closed(c.conn.fd));
        client_close(&c);
        td_shared_timeline_close(&in);
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
    int buffer;

    (void)state;
    client_open(&before, "a neighbour");
    assert_int_equal(td_memfd_make("tandem-test-buffer", 65536, false, &buffer, why, sizeof why), TANDEM_OK);
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
                td_conn_send(&c.conn, &m, &buffer, why, sizeof why);
            }
        }
        client_close(&c);
    }
    close(buffer);
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
    td_shared_timeline in = {0}, out = {0};
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
    td_shared_timeline_close(&in);
    td_shared_timeline_close(&out);
    task_free(&t);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(results_are_those_of_a_session),
    cmocka_unit_test(numbers_are_told),
    cmocka_unit_test(wrong_jobs_fail_alone),
    cmocka_unit_test(wrong_numbers_fail_alone),
    cmocka_unit_test(jobs_can_be_given_up),
    cmocka_unit_test(running_jobs_are_cancelled),
    cmocka_unit_test(killed_clients_leave_nothing),
    cmocka_unit_test(garbage_ends_its_sender_alone),
    cmocka_unit_test(changed_messages_harm_nobody),
    cmocka_unit_test(who_does_not_read_is_ended),
    cmocka_unit_test(a_point_that_never_comes_is_given_up),
    cmocka_unit_test(many_connect),
};
const test_cases daemon_clients_cases = TEST_CASES(cases);
