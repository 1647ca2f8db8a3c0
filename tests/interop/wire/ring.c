/* Shared memory: rings, points and reports, between threads and processes, with peers that scribble and die.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/interop/wire/rig.h"
#include "tests/limits.h"

static td_wire_message numbered_job(uint64_t ticket)
{
    td_wire_message m = wire_sample(TD_WIRE_JOB);
    uint64_t sum = ticket * 0x9e3779b97f4a7c15;

    m.job.ticket = ticket;
    m.job.submit_ns = sum;
    m.job.job.deadline_ns = ~sum;
    m.job.job.wait.value = sum >> 7;
    m.job.job.op.attention.lse.offset_bytes = (sum >> 40) * 4;
    return m;
}

static void test_ring(void **state)
{
    static const uint32_t starts[] = {0, 1, 0xffffffff, 0xffffffe0};
    td_ring daemon, client;
    td_wire_message m;

    (void)state;
    for (int s = 0; s < 4; s++) {
        td_wire_rules rules = wire_rules(TD_WIRE_JOB);
        uint32_t count;

        open_rings(&daemon, &client);
        daemon.own = client.own = starts[s];
        atomic_store(&daemon.shared->head, starts[s]);
        atomic_store(&daemon.shared->tail, starts[s]);
        rules.next_ticket = 1;
        assert_int_equal(td_ring_take(&daemon, &rules, &m, why, why_bytes), TANDEM_ERROR_BUSY);
        for (uint64_t ticket = 1, taken = 0; taken < 500;) {
            for (uint64_t n = 0; n < 1 + ticket % 97; n++) {
                const td_wire_message job = numbered_job(ticket);
                const tandem_status status = td_ring_put(&client, &job, why, why_bytes);

                assert_int_equal(status, ticket - taken <= TD_WIRE_SLOTS ? TANDEM_OK : TANDEM_ERROR_BUSY);
                ticket += status == TANDEM_OK;
                for (uint32_t room = 0; room <= TD_WIRE_SLOTS + 1; room++) /* of all, less those that were not taken */
                    assert_int_equal(td_ring_room(&client, room, why, why_bytes),
                                     ticket - 1 - taken + room <= TD_WIRE_SLOTS ? TANDEM_OK : TANDEM_ERROR_BUSY);
            }
            assert_int_equal(td_ring_count(&daemon, &count, why, why_bytes), TANDEM_OK);
            assert_int_equal(count, ticket - 1 - taken);
            for (uint64_t n = taken % 53 + 1; n && taken + 1 < ticket; n--) {
                const td_wire_message job = numbered_job(++taken);

                assert_int_equal(td_ring_take(&daemon, &rules, &m, why, why_bytes), TANDEM_OK);
                assert_memory_equal(&m, &job, sizeof job.job);
            }
        }
        m = wire_sample(TD_WIRE_STATS_REPLY);
        assert_int_equal(td_ring_put(&client, &m, why, why_bytes), TANDEM_ERROR_ARG);
        atomic_store(&daemon.shared->head, client.own + 1); /* which cannot be */
        assert_int_equal(td_ring_room(&client, 1, why, why_bytes), TANDEM_ERROR_PROTOCOL);
        close_rings(&daemon, &client);
    }
}

/* Slots as short as the first peers' of version 1: what fits goes through, and nothing is written beside its slot. */
static void test_small_slots(void **state)
{
    td_wire_rules rules = wire_rules(TD_WIRE_JOB);
    td_wire_message m, job = numbered_job(WIRE_TICKET);
    td_ring daemon, client;

    (void)state;
    open_rings_of(&daemon, &client, td_wire_sizes_first());
    assert_int_equal(client.sizes.ring_bytes, 45056);
    assert_int_equal(td_ring_put(&client, &job, why, why_bytes), TANDEM_ERROR_ARG);
    assert_non_null(strstr(why, "1104 bytes does not fit into a slot of 512"));
    for (uint64_t ticket = WIRE_TICKET; ticket < WIRE_TICKET + 3 * TD_WIRE_SLOTS; ticket++) {
        const td_wire_report done = {.state = TANDEM_JOB_DONE, .begin_ns = ticket, .end_ns = 2 * ticket};
        td_wire_report r;

        job = numbered_job(ticket);
        assert_int_equal(td_wire_cut(&job, client.sizes.job_bytes, why, why_bytes), TANDEM_OK);
        assert_int_equal(td_ring_put(&client, &job, why, why_bytes), TANDEM_OK);
        assert_int_equal(td_ring_take(&daemon, &rules, &m, why, why_bytes), TANDEM_OK);
        assert_memory_equal(&m, &job, sizeof m); /* what is not sent is 0, as it was */
        td_ring_report(&daemon, ticket, &done);
        assert_int_equal(td_ring_read_report(&client, ticket, &r, why, why_bytes), TANDEM_OK);
        assert_true(r.state == TANDEM_JOB_DONE && r.begin_ns == ticket && r.end_ns == 2 * ticket);
    }
    for (uint32_t n = 0; n < TD_WIRE_SLOTS; n++)
        for (uint32_t i = TD_WIRE_FIRST_JOB_BYTES / 8; i < TD_WIRE_FIRST_SLOT_BYTES / 8; i++)
            assert_int_equal(td_ring_slot(&daemon, n)[i], 0);
    close_rings(&daemon, &client);
}

/* Indices, and slots, as a hostile peer would leave them. */
static void test_hostile_ring(void **state)
{
    static const uint32_t distances[] = {65, 66, 0x7fffffff, 0x80000000, 0xffffff00, 0xffffffff};
    td_wire_message m = numbered_job(WIRE_TICKET);
    td_ring daemon, client;
    uint32_t count;

    (void)state;
    open_rings(&daemon, &client);
    for (size_t i = 0; i < sizeof distances / sizeof *distances; i++) {
        td_wire_rules rules = wire_rules(TD_WIRE_JOB);

        atomic_store(&client.shared->tail, daemon.own + distances[i]);
        assert_int_equal(td_ring_take(&daemon, &rules, &m, why, why_bytes), TANDEM_ERROR_PROTOCOL);
        assert_non_null(strstr(why, "ring.tail is"));
        assert_int_equal(td_ring_count(&daemon, &count, why, why_bytes), TANDEM_ERROR_PROTOCOL);
        assert_int_equal(count, 0);
        m = numbered_job(WIRE_TICKET);
        atomic_store(&daemon.shared->head, client.own - distances[i]);
        assert_int_equal(td_ring_put(&client, &m, why, why_bytes), TANDEM_ERROR_PROTOCOL);
        assert_non_null(strstr(why, "ring.head is"));
        atomic_store(&daemon.shared->head, daemon.own);
        atomic_store(&client.shared->tail, client.own);
    }
    /* Slots that were never written, requests in the ring, a job twice: PROTOCOL, and the ring goes on behind them. */
    {
        const td_wire_message ping = wire_sample(TD_WIRE_PING);
        td_wire_rules rules = wire_rules(TD_WIRE_JOB);

        atomic_store(&client.shared->tail, ++client.own);
        assert_int_equal(td_ring_take(&daemon, &rules, &m, why, why_bytes), TANDEM_ERROR_PROTOCOL);
        assert_int_equal(td_ring_put(&client, &ping, why, why_bytes), TANDEM_OK);
        assert_int_equal(td_ring_take(&daemon, &rules, &m, why, why_bytes), TANDEM_ERROR_PROTOCOL);
        assert_non_null(strstr(why, "in the ring"));
        for (int i = 0; i < 2; i++) {
            m = numbered_job(WIRE_TICKET);
            assert_int_equal(td_ring_put(&client, &m, why, why_bytes), TANDEM_OK);
        }
        assert_int_equal(td_ring_take(&daemon, &rules, &m, why, why_bytes), TANDEM_OK);
        assert_int_equal(rules.next_ticket, WIRE_TICKET + 1);
        assert_int_equal(td_ring_take(&daemon, &rules, &m, why, why_bytes), TANDEM_ERROR_PROTOCOL);
        assert_int_equal(td_ring_take(&daemon, &rules, &m, why, why_bytes), TANDEM_ERROR_BUSY);
    }
    close_rings(&daemon, &client);
}

typedef struct scribbler {
    td_ring ring;
    atomic_bool stop;
} scribbler;

static void *scribble(void *user)
{
    scribbler *s = user;
    const td_wire_message right = numbered_job(WIRE_TICKET);
    uint64_t dice = 1;

    while (!atomic_load(&s->stop)) {
        for (uint32_t slot = 0; slot < TD_WIRE_SLOTS; slot++)
            for (uint32_t i = 0; i < sizeof right.job / 8; i++) {
                uint64_t word;

                memcpy(&word, (const char *)&right + 8 * i, 8);
                dice = dice * 6364136223846793005u + 1442695040888963407u;
                if (dice >> 58 == 0) /* wrong for a moment, so that it changes between a check and a use */
                    atomic_store_explicit(&td_ring_slot(&s->ring, slot)[i], dice, memory_order_relaxed);
                atomic_store_explicit(&td_ring_slot(&s->ring, slot)[i], word, memory_order_relaxed);
            }
        atomic_fetch_add(&s->ring.shared->tail, 1);
    }
    return NULL;
}

/* Whatever changes while it is read: what was taken for right is right, and stays it. */
static void test_changing_slots(void **state)
{
    td_ring daemon, client;
    td_wire_rules rules = wire_rules(TD_WIRE_JOB);
    td_wire_message m;
    pthread_t thread;
    scribbler s;
    int right = 0, wrong = 0;

    (void)state;
    open_rings(&daemon, &client);
    s.ring = client;
    atomic_init(&s.stop, false);
    assert_int_equal(pthread_create(&thread, NULL, scribble, &s), 0);
    for (const uint64_t begin = td_now_ns(); td_now_ns() - begin < 300000000 || right < 100;) {
        const td_wire_rules fresh = wire_rules(TD_WIRE_JOB);
        tandem_status status;

        assert_true(td_now_ns() - begin < 30000000000);
        rules = fresh;
        daemon.own = atomic_load(&daemon.shared->tail) - 1;
        status = td_ring_take(&daemon, &rules, &m, why, why_bytes);
        assert_true(status == TANDEM_OK || status == TANDEM_ERROR_PROTOCOL);
        if (status == TANDEM_OK) {
            assert_int_equal(check(&fresh, TD_WIRE_RING, &m, TD_WIRE_SLOT_BYTES, 0), TANDEM_OK);
            assert_null(wire_promise(&fresh, TD_WIRE_RING, &m, TD_WIRE_SLOT_BYTES));
        }
        right += status == TANDEM_OK;
        wrong += status != TANDEM_OK;
    }
    atomic_store(&s.stop, true);
    pthread_join(thread, NULL);
    print_message("%d right, %d wrong\n", right, wrong);
    close_rings(&daemon, &client);
}

/* Puts jobs 1, 2, 3 ... until told otherwise, or `count`. */
static void produce(td_ring *client, uint64_t count)
{
    for (uint64_t ticket = 1; ticket <= count; ticket++) {
        const td_wire_message job = numbered_job(ticket);
        tandem_status status;

        while ((status = td_ring_put(client, &job, NULL, 0)) == TANDEM_ERROR_BUSY)
            sched_yield();
        if (status != TANDEM_OK)
            _exit(1);
    }
}

/* Forks a producer. The socket tells when it is gone. */
static pid_t start_producer(td_ring *daemon, int *socket, uint64_t count)
{
    td_ring client;
    int fds[2];
    pid_t pid;

    open_rings(daemon, &client);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(fds[0]);
        produce(&client, count);
        _exit(0);
    }
    close(fds[1]);
    td_ring_close(&client);
    *socket = fds[0];
    return pid;
}

/* Whoever is at the other end lives, or has done something since `seen` was read; else a slice has passed at most. */
static bool wait_alive(td_eventcount *event, uint32_t seen, int socket)
{
    td_eventcount_wait(event, seen, UINT64_MAX);
    return td_channel_is_open(socket) || atomic_load(&event->count) != seen;
}

/* Takes all until the producer is gone; returns how many there were. */
static uint64_t consume(td_ring *daemon, int socket)
{
    td_wire_rules rules = wire_rules(TD_WIRE_JOB);
    uint64_t taken = 0;
    td_wire_message m;

    rules.next_ticket = 1;
    for (;;) {
        const uint32_t seen = atomic_load(&daemon->shared->to_daemon.count);
        const tandem_status status = td_ring_take(daemon, &rules, &m, why, why_bytes);

        if (status == TANDEM_ERROR_BUSY) {
            if (!wait_alive(&daemon->shared->to_daemon, seen, socket))
                return taken;
            continue;
        }
        assert_int_equal(status, TANDEM_OK);
        {
            const td_wire_message job = numbered_job(++taken);

            if (memcmp(&m, &job, sizeof job.job)) /* assert_memory_equal() is slow */
                assert_memory_equal(&m, &job, sizeof job.job);
        }
    }
}

static void test_two_processes(void **state)
{
    uint64_t begin;
    td_ring daemon;
    int socket, status;
    pid_t pid;

    (void)state;
    begin = td_now_ns();
    pid = start_producer(&daemon, &socket, MESSAGES);
    assert_int_equal(consume(&daemon, socket), MESSAGES);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    print_message("%d jobs through the ring: %.2f us each\n", MESSAGES,
                  (double)(td_now_ns() - begin) / 1e3 / (double)MESSAGES);
    close(socket);
    td_ring_close(&daemon);
}

/* A producer that is killed at any moment leaves whole jobs, or none. */
static void test_killed_producer(void **state)
{
    uint64_t total = 0;

    (void)state;
    for (int i = 0; i < KILLS; i++) {
        td_ring daemon;
        int socket, status;
        const pid_t pid = start_producer(&daemon, &socket, UINT64_MAX);

        for (int n = 0; n < 5 && i % 2; n++) /* half of them fill the ring, half are read from meanwhile */
            td_eventcount_wait(&daemon.shared->to_daemon, 0, 1000000);
        if (i % 2) {
            const pid_t killer = fork();

            if (killer == 0) {
                usleep((unsigned)(i * 977 % 5000));
                kill(pid, SIGKILL);
                _exit(0);
            }
            total += consume(&daemon, socket);
            assert_int_equal(waitpid(killer, &status, 0), killer);
        } else {
            usleep((unsigned)(i * 977 % 5000));
            assert_int_equal(kill(pid, SIGKILL), 0);
            total += consume(&daemon, socket);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        close(socket);
        td_ring_close(&daemon);
    }
    assert_true(total > 0);
}

/* A frame makes no system call unless somebody sleeps; then one. */
static void test_system_calls(void **state)
{
    td_wire_rules rules = wire_rules(TD_WIRE_JOB);
    td_ring daemon, client;
    td_shared_timeline timeline;
    td_wire_message m;
    int fd, calls;

    (void)state;
    open_rings(&daemon, &client);
    assert_int_equal(td_shared_timeline_make(&timeline, 0, &fd, why, why_bytes), TANDEM_OK);
    close(fd);
    rules.next_ticket = 1;
    calls = futex_calls;
    for (uint64_t i = 1; i <= 1000; i++) {
        const td_wire_message job = numbered_job(i);
        td_wire_report report = {.state = TANDEM_JOB_DONE};
        uint64_t value;

        assert_int_equal(td_ring_put(&client, &job, why, why_bytes), TANDEM_OK);
        assert_int_equal(td_ring_take(&daemon, &rules, &m, why, why_bytes), TANDEM_OK);
        td_ring_report(&daemon, i, &report);
        assert_int_equal(td_ring_read_report(&client, i, &report, why, why_bytes), TANDEM_OK);
        td_shared_timeline_raise(&timeline, i);
        assert_int_equal(td_shared_timeline_read(&timeline, &value, why, why_bytes), TANDEM_OK);
        assert_int_equal(value, i);
    }
    assert_int_equal(futex_calls, calls);
    atomic_fetch_add(&client.shared->to_daemon.waiters, 1);
    m = numbered_job(1001);
    assert_int_equal(td_ring_put(&client, &m, why, why_bytes), TANDEM_OK);
    assert_int_equal(futex_calls, calls + 1);
    td_shared_timeline_close(&timeline);
    close_rings(&daemon, &client);
}

/* Waits end when they should: at their bound, although they are woken for nothing and words lie. */
static void test_bounds(void **state)
{
    td_ring daemon, client;
    td_wire_sizes sizes = td_wire_sizes_here();
    td_shared_timeline mine, theirs;
    uint64_t begin, value;
    int fd;

    (void)state;
    open_rings(&daemon, &client);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(atomic_load(&client.shared->to_daemon.waiters), i < 2 ? 0 : UINT32_MAX);
        if (i == 1)
            atomic_store(&client.shared->to_daemon.waiters, UINT32_MAX); /* from one that died, or lies */
        if (i == 2)
            atomic_store(&client.shared->to_daemon.count, UINT32_MAX);
        if (i == 3)
            td_eventcount_notify(&client.shared->to_daemon);
        begin = td_now_ns();
        td_eventcount_wait(&daemon.shared->to_daemon, atomic_load(&daemon.shared->to_daemon.count), 30000000);
        assert_in_range(td_now_ns() - begin, 30000000, LIMITS_SOON_NS);
    }
    begin = td_now_ns();
    td_ring_sleep(&client, td_ring_seen(&client), UINT64_MAX); /* a slice at most */
    assert_in_range(td_now_ns() - begin, 50000000, LIMITS_SOON_NS);
    value = UINT64_MAX; /* not at all where something has changed since it looked: the best of ten, on a busy machine */
    for (int i = 0; i < 10; i++) {
        begin = td_now_ns();
        td_ring_sleep(&client, td_ring_seen(&client) + 1, UINT64_MAX);
        value = td_now_ns() - begin < value ? td_now_ns() - begin : value;
    }
    assert_true(value < 50000000);
    close_rings(&daemon, &client);

    assert_int_equal(td_shared_timeline_make(&mine, 5, &fd, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_shared_timeline_open(&theirs, fd, why, why_bytes), TANDEM_OK);
    close(fd);
    assert_int_equal(theirs.highest, 5);
    td_shared_timeline_raise(&mine, 4); /* does not rise: left out */
    assert_int_equal(td_shared_timeline_read(&theirs, &value, why, why_bytes), TANDEM_OK);
    assert_int_equal(value, 5);
    td_shared_timeline_raise(&mine, UINT64_MAX);
    assert_int_equal(td_shared_timeline_read(&theirs, &value, why, why_bytes), TANDEM_OK);
    assert_true(value == UINT64_MAX);
    atomic_store(&mine.counter->value, 7); /* a counter that falls is a lie */
    assert_int_equal(td_shared_timeline_read(&theirs, &value, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_true(value == UINT64_MAX && strstr(why, "fell"));
    td_shared_timeline_close(&mine);
    td_shared_timeline_close(&theirs);

    /* Neither is mapped from what is no memfd of its size. */
    fd = memfd_create("bare", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(posix_fallocate(fd, 0, TD_WIRE_RING_BYTES), 0);
    assert_int_equal(td_ring_open(&client, &sizes, fd, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_null(client.shared);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    assert_int_equal(td_shared_timeline_open(&theirs, fd, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_null(theirs.counter);
    assert_int_equal(td_ring_open(&client, &sizes, fd, why, why_bytes), TANDEM_OK);
    td_ring_close(&client);
    sizes = td_wire_sizes_first();
    assert_int_equal(td_ring_open(&client, &sizes, fd, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    close(fd);
}

/* False: whoever raises it is gone, and the value has not come. */
static bool await_value(td_shared_timeline *timeline, uint64_t value, int socket)
{
    for (bool alive = true;;) {
        const uint32_t seen = atomic_load(&timeline->counter->raised.count);
        uint64_t now;

        if (td_shared_timeline_read(timeline, &now, why, why_bytes) != TANDEM_OK)
            return false;
        if (now >= value || !alive)
            return now >= value;
        alive = wait_alive(&timeline->counter->raised, seen, socket);
    }
}

/* Across processes: each value wakes who waits for it; what was signalled in the last moment is seen; a death too. */
static void test_points_of_two_processes(void **state)
{
    enum { ROUNDS = 2000 };
    td_shared_timeline ping, pong;
    int fds[2], sockets[2], status;
    uint64_t begin;
    pid_t pid;

    (void)state;
    assert_int_equal(td_shared_timeline_make(&ping, 0, &fds[0], why, why_bytes), TANDEM_OK);
    assert_int_equal(td_shared_timeline_make(&pong, 0, &fds[1], why, why_bytes), TANDEM_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    begin = td_now_ns();
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        td_shared_timeline in, out;

        close(sockets[0]);
        if (td_shared_timeline_open(&in, fds[0], NULL, 0) || td_shared_timeline_open(&out, fds[1], NULL, 0))
            _exit(1);
        for (uint64_t i = 1; i <= ROUNDS; i++) {
            if (!await_value(&in, i, sockets[1]))
                _exit(2);
            td_shared_timeline_raise(&out, i);
        }
        td_shared_timeline_raise(&out, ROUNDS + 1);
        _exit(0);
    }
    close(sockets[1]);
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        td_shared_timeline_raise(&ping, i);
        assert_true(await_value(&pong, i, sockets[0]));
    }
    print_message("a point there and back: %.1f us\n", (double)(td_now_ns() - begin) / 1e3 / ROUNDS);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_true(await_value(&pong, ROUNDS + 1, sockets[0]));
    begin = td_now_ns();
    assert_false(await_value(&pong, ROUNDS + 2, sockets[0]));
    assert_true(td_now_ns() - begin < LIMITS_SOON_NS);
    close(sockets[0]);
    close(fds[0]);
    close(fds[1]);
    td_shared_timeline_close(&ping);
    td_shared_timeline_close(&pong);
}

static void test_reports(void **state)
{
    td_wire_report r = {.state = TANDEM_JOB_FAILED,
                        .status = TANDEM_ERROR_LOST,
                        .precision = TANDEM_PRECISION_8B,
                        .begin_ns = 7,
                        .end_ns = UINT64_MAX};
    td_ring daemon, client;
    const uint64_t far = (1ull << 32) + 3; /* tickets have 64 bits, the word 32 */
    uint32_t seen;

    (void)state;
    open_rings(&daemon, &client);
    seen = td_ring_seen(&client);
    for (uint64_t t = 1; t < 600; t += 37) { /* nothing written yet */
        td_wire_report got = {.state = 99};

        assert_int_equal(td_ring_read_report(&client, t, &got, why, why_bytes), TANDEM_OK);
        assert_true(got.state == TANDEM_JOB_PENDING && got.ticket == t && !got.begin_ns);
    }
    td_ring_report(&daemon, 300, &(td_wire_report){.state = TANDEM_JOB_RUNNING, .begin_ns = 5});
    assert_int_equal(td_ring_seen(&client), seen); /* nobody waits for that */
    td_ring_report(&daemon, 300, &r);
    assert_int_equal(td_ring_seen(&client), seen + 1);
    assert_int_equal(td_ring_read_report(&client, 300, &r, why, why_bytes), TANDEM_OK);
    assert_true(r.ticket == 300 && r.state == TANDEM_JOB_FAILED && r.status == TANDEM_ERROR_LOST);
    assert_true(r.precision == TANDEM_PRECISION_8B && r.begin_ns == 7 && r.end_ns == UINT64_MAX);
    assert_int_equal(td_ring_read_report(&client, 300 - 256, &r, why, why_bytes), TANDEM_ERROR_ARG);
    assert_int_equal(td_ring_read_report(&client, 300 + 256, &r, why, why_bytes), TANDEM_OK);
    assert_true(r.ticket == 556 && r.state == TANDEM_JOB_PENDING && r.status == TANDEM_OK);
    td_ring_report(&daemon, far, &(td_wire_report){.state = TANDEM_JOB_DONE});
    assert_int_equal(td_ring_read_report(&client, far, &r, why, why_bytes), TANDEM_OK);
    assert_int_equal(r.state, TANDEM_JOB_DONE);
    atomic_store(&td_ring_report_of(&daemon, 9)->word, 9ull << 32 | 6);
    assert_int_equal(td_ring_read_report(&client, 9, &r, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    close_rings(&daemon, &client);
}

typedef struct reporter {
    td_ring daemon;
    atomic_uint_fast64_t last;
    atomic_bool stop;
} reporter;

static void *keep_reporting(void *user)
{
    reporter *w = user;

    for (uint64_t t = 1; !atomic_load(&w->stop); t++) {
        if (t % 3)
            td_ring_report(&w->daemon, t, &(td_wire_report){.state = TANDEM_JOB_PENDING});
        td_ring_report(&w->daemon, t, &(td_wire_report){.state = TANDEM_JOB_DONE, .begin_ns = 3 * t, .end_ns = 5 * t});
        atomic_store(&w->last, t);
    }
    return NULL;
}

/* A report is never half one job's and half another's, however fast they come. */
static void test_reports_are_whole(void **state)
{
    static reporter w;
    td_ring client;
    pthread_t thread;
    uint32_t done = 0, old = 0, turn = 0;

    (void)state;
    open_rings(&w.daemon, &client);
    assert_int_equal(pthread_create(&thread, NULL, keep_reporting, &w), 0);
    while (atomic_load(&w.last) < 300)
        sched_yield();
    for (const uint64_t begin = td_now_ns(); td_now_ns() - begin < 300000000 || !done;) {
        /* The last, the one that is being written, the oldest that are kept. */
        const uint64_t t = atomic_load(&w.last) + (uint64_t[]){0, 1, (uint64_t)-255, (uint64_t)-254}[turn++ % 4];
        td_wire_report r;
        const tandem_status status = td_ring_read_report(&client, t, &r, why, why_bytes);

        assert_true(status == TANDEM_OK || status == TANDEM_ERROR_ARG || status == TANDEM_ERROR_BUSY);
        old += status != TANDEM_OK;
        if (status != TANDEM_OK)
            continue;
        assert_int_equal(r.ticket, (uint32_t)t);
        if (r.state == TANDEM_JOB_DONE)
            assert_true(r.begin_ns == 3 * t && r.end_ns == 5 * t);
        else
            assert_true(r.begin_ns == 0 && r.end_ns == 0);
        done++;
        assert_true(td_now_ns() - begin < 30000000000);
    }
    atomic_store(&w.stop, true);
    pthread_join(thread, NULL);
    print_message("%u whole, %u too old\n", done, old);
    close_rings(&w.daemon, &client);
}

static const struct CMUnitTest cases[] = {
    TEST(test_ring),
    TEST(test_small_slots),
    TEST(test_hostile_ring),
    TEST(test_changing_slots),
    TEST(test_two_processes),
    TEST(test_killed_producer),
    TEST(test_system_calls),
    TEST(test_bounds),
    TEST(test_points_of_two_processes),
    TEST(test_reports),
    TEST(test_reports_are_whole),
};
const test_cases wire_ring_cases = TEST_CASES(cases);
