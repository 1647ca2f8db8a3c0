/* What one client can do to the others and to the machine is bounded, whatever it sends, puts, or is run with.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <sys/socket.h>

#include "tests/daemon_client.h"

static int set_up_nothing(void **state)
{
    (void)state;
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

/* Long jobs. */

/* A frame's long job with a deadline is cut, and another client's frame goes in between. Its pieces write a draft: the
 * bits are those of the whole, and nothing of them is seen before all are there. */
static void a_frame_with_a_deadline_lets_others_in(void **state)
{
    const shape long_one = {1, 20000, 9000, 64, TANDEM_PRECISION_F16, 0};
    enum { TRIES = 20 };
    bool between = false;
    client c[2];
    task t[2];

    (void)state;
    start_daemon("threads = 1\n");
    for (int i = 0; i < 2; i++) {
        client_open(&c[i], i ? "quick" : "slow");
        task_make(&t[i], i ? &small : &long_one, 98);
        task_share(&t[i], &c[i]);
    }
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
    for (int i = 0; i < 2; i++) {
        client_close(&c[i]);
        task_free(&t[i]);
    }
}

/* Who connects. */

/* Has so many connections, without a word, and again whenever one is closed. */
static void connect_silently(int connections)
{
    td_conn held[64];

    for (int i = 0; i < connections; i++)
        held[i].fd = -1;
    for (;;) {
        struct pollfd p[64];

        for (int i = 0; i < connections; i++) {
            char why[300], last_words[2500];

            if (held[i].fd >= 0 && recv(held[i].fd, last_words, sizeof last_words, MSG_DONTWAIT) != 0 && errno == EAGAIN)
                continue;
            td_conn_close(&held[i]);
            td_conn_connect(&held[i], socket_path, why, sizeof why);
        }
        for (int i = 0; i < connections; i++)
            p[i] = (struct pollfd){held[i].fd, POLLIN, 0};
        poll(p, (nfds_t)connections, 1);
    }
}

/* So many processes do, while newcomers come one by one, each of which is let in. */
static void be_let_in_beside(int processes, int connections)
{
    enum { NEWCOMERS = 60 };
    pid_t silent[40];

    for (int i = 0; i < processes; i++) {
        silent[i] = fork();
        assert_true(silent[i] >= 0);
        if (!silent[i]) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            connect_silently(connections);
        }
    }
    sleep_ms(100);
    for (int i = 0; i < NEWCOMERS; i++) {
        td_wire_message m = hello(TD_WIRE_SHARE_HOST, "a newcomer");
        client c;

        assert_int_equal(client_connect(&c), TANDEM_OK);
        if (client_hello(&c, &m) != TANDEM_OK)
            fail_msg("newcomer %d of %d was kept out by %d x %d", i, NEWCOMERS, processes, connections);
        client_close(&c);
    }
    for (int i = 0; i < processes; i++) {
        kill(silent[i], SIGKILL);
        waitpid(silent[i], NULL, 0);
    }
}

static void silent_connections_keep_nobody_out(void **state)
{
    static const int attackers[][2] = {{1, 40}, {40, 1}, {10, 4}, {3, 30}};

    (void)state;
    start_daemon("");
    for (int i = 0; i < 4; i++)
        be_let_in_beside(attackers[i][0], attackers[i][1]);
}

/* What is put by hand. */

/* A job cannot wait for what it signals itself; it ends at once, and holds nobody behind it up. */
static void a_job_does_not_wait_for_itself(void **state)
{
    static const uint64_t waits[] = {5, 4, 1}; /* of a timeline that the job takes from 0 to 5 */
    client c;
    task t;

    (void)state;
    start_daemon("");
    client_open(&c, "by hand");
    task_make(&t, &small, 50);
    task_share(&t, &c);
    for (int i = 0; i < 3; i++) {
        td_point point;
        tandem_job job = job_of(&t);
        const uint64_t timeline = client_timeline(&c, &point, true, 0);
        uint64_t tickets[3];
        td_wire_report r;

        job.signal = (tandem_point){timeline, 5};
        job.wait = (tandem_point){timeline, waits[i]};
        tickets[0] = client_job(&c, &job);
        job.signal.value = 6;
        job.wait.value = 5; /* which the one before signals, in whatever way it ends */
        tickets[1] = client_job(&c, &job);
        job.wait = job.signal = (tandem_point){0};
        tickets[2] = client_job(&c, &job);
        r = client_report(&c, tickets[0], PATIENCE);
        assert_int_equal(r.state, TANDEM_JOB_FAILED);
        assert_int_equal(r.status, TANDEM_ERROR_ARG);
        assert_int_equal(client_events(&c, PATIENCE), TANDEM_ERROR_BUSY);
        assert_int_equal(c.event.header.type, TD_WIRE_ERROR);
        assert_int_equal(c.event.error.ticket, tickets[0]);
        assert_non_null(strstr(c.event.error.text, "job.wait.value"));
        assert_non_null(strstr(c.event.error.text, "itself signals"));
        for (int k = 1; k < 3; k++)
            assert_int_equal(client_report(&c, tickets[k], PATIENCE).state, TANDEM_JOB_DONE);
        assert_true(await_point(&point, 6));
        td_point_close(&point);
    }
    client_close(&c);
    task_free(&t);
}

/* MEM_DESTROY comes after all jobs that were put before it, however many there are. */
static void a_destroy_waits_for_the_ring(void **state)
{
    enum { MORE = 10 };
    td_wire_message m = td_wire_new(TD_WIRE_MEM_DESTROY, 0), answer;
    char why[300] = "";
    tandem_job job;
    td_point in;
    client c;
    task t[2];
    int fd;

    (void)state;
    start_daemon("");
    client_open(&c, "many jobs");
    for (int i = 0; i < 2; i++) {
        task_make(&t[i], &small, 60);
        task_share(&t[i], &c);
    }
    job = job_of(&t[0]);
    job.wait = (tandem_point){client_timeline(&c, &in, false, 0), 1};
    for (int i = 0; i < TD_WIRE_SLOTS; i++)
        client_job(&c, &job);
    while (atomic_load(&c.ring.area->head) != TD_WIRE_SLOTS)
        sleep_ms(1);
    job = job_of(&t[1]);
    for (int i = 0; i < MORE; i++)
        client_job(&c, &job);
    m.header.serial = c.rules.next_serial;
    m.object.id = t[1].mem;
    assert_int_equal(td_conn_send(&c.conn, &m, NULL, why, sizeof why), TANDEM_OK);
    td_wire_took(&c.rules, TD_WIRE_TO_DAEMON, &m);
    sleep_ms(200); /* in which it might be carried out too early */
    td_point_raise(&in, 1);
    assert_int_equal(client_take(&c, &answer, &fd, PATIENCE), TANDEM_OK);
    assert_int_equal(answer.header.type, TD_WIRE_DONE);
    assert_int_equal(answer.header.serial, m.header.serial);
    for (uint64_t ticket = TD_WIRE_SLOTS + 1; ticket <= TD_WIRE_SLOTS + MORE; ticket++) {
        const td_wire_report r = client_report(&c, ticket, PATIENCE);

        assert_true(r.state == TANDEM_JOB_DONE || r.state == TANDEM_JOB_CANCELLED);
    }
    client_close(&c);
    td_point_close(&in);
    for (int i = 0; i < 2; i++)
        task_free(&t[i]);
}

/* What a mem lies in is held as a whole, and counts so, once. */
static void allocations_count(void **state)
{
    enum { LARGE = 64 << 20, SLAB = 1 << 20, PAGE = 4096 };
    char why[300] = "";
    uint64_t mems[3];
    int big, slab;
    client c;

    (void)state;
    start_daemon("client_bytes = 2M\n");
    client_open(&c, "allocator");
    assert_int_equal(td_slab_make("tandem-test-slab", LARGE, false, &big, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_slab_make("tandem-test-slab", SLAB, false, &slab, why, sizeof why), TANDEM_OK);
    assert_int_equal(client_mem(&c, big, PAGE, LARGE), 0);
    assert_int_equal(c.event.error.status, TANDEM_ERROR_NOMEM);
    assert_non_null(strstr(c.event.error.text, "allocation_bytes is 67108864"));
    assert_int_equal(row_of(&c, "allocator").mem_bytes, 0);
    for (int i = 0; i < 3; i++) {
        mems[i] = client_mem(&c, slab, i < 2 ? PAGE : SLAB - PAGE, SLAB);
        assert_true(mems[i] != 0);
        assert_int_equal(row_of(&c, "allocator").mem_bytes, i < 2 ? SLAB : SLAB + PAGE);
    }
    assert_int_equal(client_mem(&c, slab, SLAB, SLAB), 0); /* they overlap: more than 2 MiB together */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(client_object(&c, TD_WIRE_MEM_DESTROY, mems[i]), TANDEM_OK);
        assert_int_equal(row_of(&c, "allocator").mem_bytes, i < 2 ? SLAB : 0);
    }
    client_close(&c);
    td_fd_close(&big);
    td_fd_close(&slab);
}

int main(void)
{
    const struct CMUnitTest own[] = {
        cmocka_unit_test_setup_teardown(a_frame_with_a_deadline_lets_others_in, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(a_job_does_not_wait_for_itself, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(a_destroy_waits_for_the_ring, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(allocations_count, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(silent_connections_keep_nobody_out, set_up_nothing, tear_down),
    };

    if (!begin_tests("tandemd"))
        return 1;
    return end_tests(cmocka_run_group_tests(own, NULL, NULL));
}
