/* A whole conversation over the wire, and how long whoever waits stays awake.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "tests/interop/wire/rig.h"

/* A whole conversation, as PROTOCOL.md tells it: hello, a mem, a timeline, a job, its point, goodbye. */
static void test_conversation(void **state)
{
    static td_conn client, daemon;
    td_wire_rules mine = td_wire_rules_new(td_operation_of_clients), theirs = td_wire_rules_new(td_operation_of_clients);
    td_wire_message m = wire_sample(TD_WIRE_HELLO), got;
    td_ring jobs, ours;
    td_shared_timeline timeline, signal;
    int fds[TD_WIRE_MAX_FDS], fd;
    uint64_t reached;
    td_wire_identity identity;
    td_wire_report report = {.state = TANDEM_JOB_DONE, .begin_ns = 1, .end_ns = 2};

    (void)state;
    make_pair(&client, &daemon);
    m.header.serial = 1;
    m.hello.share = TD_WIRE_SHARE_HOST;
    td_wire_identify(&m.hello.identity);
    assert_int_equal(td_conn_send(&client, &m, NULL, why, why_bytes), TANDEM_OK);
    td_wire_took(&mine, TD_WIRE_TO_DAEMON, &m);
    assert_int_equal(td_conn_recv(&daemon, &theirs, TD_WIRE_TO_DAEMON, &got, fds, why, why_bytes), TANDEM_OK);
    memset(&identity, 0, sizeof identity);
    td_wire_identify(&identity);
    assert_int_equal(td_wire_match(&identity, &got.hello.identity, got.hello.share, why, why_bytes), TANDEM_OK);

    m = wire_sample(TD_WIRE_WELCOME);
    m.header.serial = got.header.serial;
    m.welcome.share = got.hello.share;
    m.welcome.features = got.hello.features & TD_WIRE_FEATURES;
    m.welcome.identity = identity;
    m.welcome.sizes = td_wire_sizes_with(&got.hello);
    assert_int_equal(td_ring_make(&jobs, &m.welcome.sizes, &fd, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_conn_send(&daemon, &m, &fd, why, why_bytes), TANDEM_OK);
    td_fd_close(&fd);
    td_wire_rules_welcome(&theirs, &m.welcome);
    assert_int_equal(td_conn_recv(&client, &mine, TD_WIRE_TO_CLIENT, &got, fds, why, why_bytes), TANDEM_OK);
    td_wire_rules_welcome(&mine, &got.welcome);
    assert_int_equal(td_ring_open(&ours, &got.welcome.sizes, fds[0], why, why_bytes), TANDEM_OK);
    td_fd_close(&fds[0]);

    m = wire_sample(TD_WIRE_TIMELINE_CREATE);
    m.header.serial = mine.next_serial;
    assert_int_equal(td_shared_timeline_make(&timeline, m.timeline_create.initial_value, &fd, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_conn_send(&client, &m, &fd, why, why_bytes), TANDEM_OK);
    td_fd_close(&fd);
    td_wire_took(&mine, TD_WIRE_TO_DAEMON, &m);
    assert_int_equal(td_conn_recv(&daemon, &theirs, TD_WIRE_TO_DAEMON, &got, fds, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_shared_timeline_open(&signal, fds[0], why, why_bytes), TANDEM_OK);
    td_fd_close(&fds[0]);
    assert_int_equal(signal.highest, got.timeline_create.initial_value);
    m = td_wire_new(TD_WIRE_DONE, got.header.serial);
    m.object.id = td_wire_id(TD_WIRE_KIND_TIMELINE, 1, 1);
    assert_int_equal(td_conn_send(&daemon, &m, NULL, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_conn_recv(&client, &mine, TD_WIRE_TO_CLIENT, &got, fds, why, why_bytes), TANDEM_OK);
    assert_int_equal(got.header.serial, 2);

    m = wire_sample(TD_WIRE_JOB);
    m.job.ticket = mine.next_ticket;
    m.job.job.signal = (tandem_point){got.object.id, 42};
    assert_int_equal(td_ring_put(&ours, &m, why, why_bytes), TANDEM_OK);
    td_wire_took(&mine, TD_WIRE_RING, &m);
    assert_int_equal(td_ring_take(&jobs, &theirs, &got, why, why_bytes), TANDEM_OK);
    assert_int_equal(theirs.next_ticket, mine.next_ticket);
    td_ring_report(&jobs, got.job.ticket, &report);
    td_shared_timeline_raise(&signal, got.job.job.signal.value);
    assert_int_equal(td_shared_timeline_read(&timeline, &reached, why, why_bytes), TANDEM_OK);
    assert_int_equal(reached, 42);
    assert_int_equal(td_ring_read_report(&ours, m.job.ticket, &report, why, why_bytes), TANDEM_OK);
    assert_int_equal(report.state, TANDEM_JOB_DONE);

    m = td_wire_new(TD_WIRE_BYE, 0);
    m.bye.reason = TD_WIRE_BYE_DONE;
    assert_int_equal(td_conn_send(&client, &m, NULL, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_conn_recv(&daemon, &theirs, TD_WIRE_TO_DAEMON, &got, fds, why, why_bytes), TANDEM_OK);
    td_conn_close(&client);
    td_conn_close(&daemon);
    td_shared_timeline_close(&timeline);
    td_shared_timeline_close(&signal);
    close_rings(&jobs, &ours);
}

/* ---- spins ---- */

/* One in vain: not again for a while, and longer each time; those that pay make up for it slowly. */
static void test_spins(void **state)
{
    td_spin_budget budget = {0};
    uint64_t now = 1000000000, longest = 0, spent = 0;

    (void)state;
    assert_true(td_spin_pays(&budget, now));
    td_spin_end(&budget, true, now);
    assert_true(td_spin_pays(&budget, now));
    td_spin_end(&budget, false, now);
    assert_false(td_spin_pays(&budget, now + 20 * TD_SPIN_NS));
    assert_true(td_spin_pays(&budget, now + 50 * TD_SPIN_NS));
    /* Who is always wrong: a second, in the end, for each of them. */
    for (int i = 0; i < 100; i++) {
        const uint64_t from = now;

        while (!td_spin_pays(&budget, now))
            now += 100000;
        longest = now - from > longest ? now - from : longest;
        td_spin_end(&budget, false, now);
        spent += TD_SPIN_NS;
    }
    assert_in_range(longest, 500000000, 2000000000);
    assert_true(spent * 1000 < now - 1000000000);
    /* And back. */
    while (!td_spin_pays(&budget, now))
        now += 100000;
    for (int i = 0; i < 1000; i++)
        td_spin_end(&budget, true, now);
    td_spin_end(&budget, false, now);
    assert_true(td_spin_pays(&budget, now + 50 * TD_SPIN_NS));
    /* To let others run takes no time where there are none, and is told where it does. */
    now = td_now_ns();
    for (int i = 0; i < 100; i++) {
        const uint64_t before = now;
        const bool soon = td_spin_yield(&now);

        assert_true(now > before);
        assert_int_equal(soon, now - before < TD_SPIN_NS);
    }
}

static const struct CMUnitTest cases[] = {
    TEST(test_conversation),
    TEST(test_spins),
};
const test_cases wire_conversation_cases = TEST_CASES(cases);
