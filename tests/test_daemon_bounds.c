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

int main(void)
{
    const struct CMUnitTest own[] = {
        cmocka_unit_test_setup_teardown(a_frame_with_a_deadline_lets_others_in, set_up_nothing, tear_down),
        cmocka_unit_test_setup_teardown(silent_connections_keep_nobody_out, set_up_nothing, tear_down),
    };

    if (!begin_tests("tandemd"))
        return 1;
    return end_tests(cmocka_run_group_tests(own, NULL, NULL));
}
