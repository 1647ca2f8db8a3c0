/* The benches' lanes beside a session that is full for a moment, as one through a daemon is whose word comes late.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "demo/tool_bench_lanes.h"

static bench_vk vk;
static lane one;
static payload made;
static char shape[160];
static tandem_ticket given[64], waited;
static unsigned tries, full_from, full_to; /* tries of tandem_submit() that find the session full */

tandem_status __real_tandem_submit(tandem_session *session, const tandem_job *job, tandem_ticket *ticket);
tandem_status __wrap_tandem_submit(tandem_session *session, const tandem_job *job, tandem_ticket *ticket);
tandem_status __real_tandem_wait(tandem_session *session, tandem_ticket ticket, uint64_t timeout_ns,
                                 tandem_job_report *report);
tandem_status __wrap_tandem_wait(tandem_session *session, tandem_ticket ticket, uint64_t timeout_ns,
                                 tandem_job_report *report);

tandem_status __wrap_tandem_submit(tandem_session *session, const tandem_job *job, tandem_ticket *ticket)
{
    tandem_status status;

    *ticket = 0;
    if (++tries >= full_from && tries < full_to)
        return TANDEM_ERROR_BUSY;
    status = __real_tandem_submit(session, job, ticket);
    memmove(given + 1, given, sizeof given - sizeof *given);
    given[0] = *ticket;
    return status;
}

tandem_status __wrap_tandem_wait(tandem_session *session, tandem_ticket ticket, uint64_t timeout_ns,
                                 tandem_job_report *report)
{
    waited = ticket;
    return __real_tandem_wait(session, ticket, timeout_ns, report);
}

static int open_lane(void **state)
{
    char why[300] = "";

    (void)state;
    vk = (bench_vk){0};
    one = (lane){.name = "one", .kind = LANE_SUBMITTED, .job_first = true, .rung = TANDEM_RUNG_CPU};
    if (!bench_vk_open(&vk, why, sizeof why)) {
        print_message("no Vulkan: %s\n", why);
        return 1;
    }
    lane_open(&one, &vk);
    payload_make(&made, shape, "64 B", PAYLOAD_EMPTY, 64, 1, 1, 1, 1, TANDEM_PRECISION_F16, 1);
    if (!one.why[0])
        lane_prepare(&one, &vk, &made);
    if (one.why[0])
        print_message("%s\n", one.why);
    return one.why[0] != 0;
}

static int close_lane(void **state)
{
    (void)state;
    lane_close(&one, &vk);
    bench_vk_close(&vk);
    return 0;
}

static void is_full(unsigned first, unsigned count)
{
    tries = 0;
    full_from = first;
    full_to = first + count;
}

/* It waits for the job that the slot had before, not for the last one: three are in flight. */
static void full_for_a_moment(void **state)
{
    (void)state;
    is_full(0, 0);
    assert_true(lane_pipelined(&one, &vk, 2 * LANE_SLOTS));
    for (unsigned at = 1; at <= LANE_SLOTS; at++) {
        const tandem_ticket expected = given[LANE_SLOTS - at];

        is_full(at, 1);
        waited = 0;
        if (!lane_pipelined(&one, &vk, LANE_SLOTS))
            fail_msg("try %u: %s", at, one.why);
        assert_int_equal(tries, LANE_SLOTS + 1);
        assert_int_equal(waited, expected);
    }
    assert_int_equal(one.wrong, 0);
}

static void full_for_good(void **state)
{
    (void)state;
    is_full(0, 0);
    assert_true(lane_pipelined(&one, &vk, LANE_SLOTS));
    is_full(2, 1000);
    assert_false(lane_pipelined(&one, &vk, LANE_SLOTS));
    assert_int_equal(tries, 3);
    assert_non_null(strstr(one.why, "tandem_submit"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(full_for_a_moment, open_lane, close_lane),
        cmocka_unit_test_setup_teardown(full_for_good, open_lane, close_lane),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
