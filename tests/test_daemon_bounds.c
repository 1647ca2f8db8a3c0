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

int main(void)
{
    const struct CMUnitTest own[] = {
        cmocka_unit_test_setup_teardown(a_frame_with_a_deadline_lets_others_in, set_up_nothing, tear_down),
    };

    if (!begin_tests("tandemd"))
        return 1;
    return end_tests(cmocka_run_group_tests(own, NULL, NULL));
}
