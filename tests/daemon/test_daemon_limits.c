/* tandemd where something is short: a stderr that nobody reads, few descriptors.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "interop/os/descriptor.h"
#include "interop/os/memory.h"
#include "tests/daemon/pipe_util.h"
#include "tests/plugin/daemon_client.h"

static void exec_daemon_on(int stderr_fd)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(stderr_fd, STDERR_FILENO);
    execl(program, "tandemd", "--socket", socket_path, "--config", config_path, (char *)NULL);
    _exit(127);
}

static void come_and_go(int clients)
{
    for (int i = 0; i < clients; i++) {
        client c;

        client_open(&c, "a client whose coming and going is logged");
        assert_int_equal(client_object(&c, TD_WIRE_PING, 0), TANDEM_OK);
        client_close(&c);
    }
}

/* All of its processes say much, and none of them ever waits for who reads it. */
static void a_log_that_nobody_reads_holds_nobody_up(void **state)
{
    static char text[1 << 20];
    int ends[2];
    pid_t worker;
    client c;

    (void)state;
    make_full_pipe(ends);
    write_config("backend = cpu\nlog = debug\n");
    daemon_pid = fork();
    assert_true(daemon_pid >= 0);
    if (!daemon_pid)
        exec_daemon_on(ends[1]);
    close(ends[1]);
    await_socket();
    come_and_go(300);
    check_serves();
    worker = await_worker(0);
    kill(worker, SIGKILL);
    await_worker(worker);
    check_serves();
    client_open(&c, "the last one");
    client_close(&c);
    drain_pipe(ends[0], "'the last one') ends", 30000, text, sizeof text);
    assert_non_null(strstr(text, " log lines were dropped"));
    assert_non_null(strstr(text, "is gone")); /* what is newest is there */
    come_and_go(300); /* and full again */
    assert_int_equal(end_daemon(SIGTERM, 10000 * MS), 0);
    close(ends[0]);
}

static void launch_with_descriptors(unsigned most)
{
    const struct rlimit limit = {most, most};

    write_config("backend = cpu\nlog = debug\n");
    next_log();
    daemon_pid = fork();
    assert_true(daemon_pid >= 0);
    if (!daemon_pid) {
        setrlimit(RLIMIT_NOFILE, &limit);
        exec_daemon();
    }
}

/* As many mems as it gets; returns how many. */
static unsigned take_all(client *c)
{
    char why[300] = "";
    unsigned count = 0;
    int fd;

    assert_int_equal(td_memfd_make("tandem-test-buffer", 4096, false, &fd, why, sizeof why), TANDEM_OK);
    while (client_mem(c, fd, 4096, 4096)) {
        count++;
        assert_true(count < 128);
    }
    td_fd_close(&fd);
    assert_int_equal(c->event.header.type, TD_WIRE_ERROR);
    assert_int_equal(c->event.error.status, TANDEM_ERROR_NOMEM);
    assert_non_null(strstr(c->event.error.text, "RLIMIT_NOFILE of tandemd is 128"));
    return count;
}

/* What a client had is free again a moment after it has gone. */
static void await_mem(client *c)
{
    const uint64_t begin = td_now_ns();
    char why[300] = "";
    int fd;

    assert_int_equal(td_memfd_make("tandem-test-buffer", 4096, false, &fd, why, sizeof why), TANDEM_OK);
    while (!client_mem(c, fd, 4096, 4096)) {
        assert_true(td_now_ns() - begin < PATIENCE);
        sleep_ms(5);
    }
    td_fd_close(&fd);
}

/* Whoever takes all that it can get: others can share, a dead worker is replaced, and the log names who it was. */
static void descriptors_are_kept_for_what_is_needed(void **state)
{
    enum { GREEDY = 5, SILENT = 20 };
    client greedy[GREEDY], modest, silent[SILENT];
    unsigned all = 0;
    pid_t worker;
    task t;

    (void)state;
    launch_with_descriptors(128);
    await_log("computes on");
    client_open(&modest, "modest");
    task_make(&t, &small, 9);
    task_share(&t, &modest);
    for (int i = 0; i < GREEDY; i++) {
        client_open(&greedy[i], "greedy");
        all += take_all(&greedy[i]);
        if (!i) { /* one alone leaves most to others */
            assert_true(all >= 8 && all <= 64);
            worker = await_worker(0);
            assert_int_equal(kill(worker, SIGKILL), 0);
            await_worker(worker);
            assert_int_equal(run_job(&modest, &t).state, TANDEM_JOB_DONE);
            check_serves();
        }
    }
    print_message("  %d clients got %u mems\n", GREEDY, all);
    assert_true(has_logged(log_path, "'greedy') holds "));
    for (int i = 0; i < SILENT; i++)
        assert_int_equal(client_connect(&silent[i]), TANDEM_OK);
    for (int i = 0; i < 3; i++) {
        worker = await_worker(0);
        assert_int_equal(kill(worker, SIGKILL), 0);
        await_worker(worker);
        clear_output(&t);
        assert_int_equal(run_job(&modest, &t).state, TANDEM_JOB_DONE);
        check_output(&t);
    }
    for (int i = 0; i < SILENT; i++)
        client_close(&silent[i]);
    for (int i = 0; i < GREEDY; i++)
        client_close(&greedy[i]);
    await_mem(&modest);
    check_serves();
    client_close(&modest);
    task_free(&t);
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
}

/* Temporary outputs are the worker's own: clients that hold all the descriptors that they may get them, and the broker holds no more. */
static void temporary_outputs_take_no_descriptors(void **state)
{
    const shape cut = {2, 3000, 512, 64, TANDEM_PRECISION_8B, 0};
    enum { GREEDY = 5 };
    uint64_t mems[GREEDY];
    client greedy[GREEDY];
    pid_t worker;
    task t;
    int held;

    (void)state;
    launch_with_descriptors(128);
    await_log("computes on");
    task_make(&t, &cut, 10);
    for (int i = 0; i < GREEDY; i++) {
        client_open_as(&greedy[i], "greedy", TANDEM_CLASS_BACKGROUND);
        task_share(&t, &greedy[i]);
        mems[i] = t.mem;
    }
    for (int i = 0; i < GREEDY; i++)
        take_all(&greedy[i]);
    held = count_fds(daemon_pid);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < GREEDY; i++) {
            tandem_job job;

            clear_output(&t);
            t.mem = mems[i];
            job = job_of(&t);
            job.deadline_ns = 600000 * MS;
            assert_int_equal(client_report(&greedy[i], client_job(&greedy[i], &job), PATIENCE).state, TANDEM_JOB_DONE);
            check_output(&t);
        }
        assert_true(count_fds(daemon_pid) <= held);
        worker = await_worker(0);
        assert_int_equal(kill(worker, SIGKILL), 0);
        await_worker(worker);
    }
    for (int i = 0; i < GREEDY; i++)
        client_close(&greedy[i]);
    task_free(&t);
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
}

/* With the fewest there may be one client is served; with fewer it does not begin, and says why. */
static void too_few_descriptors_are_no_beginning(void **state)
{
    static const unsigned few[] = {12, 16, 43};

    (void)state;
    launch_with_descriptors(44);
    await_log("computes on");
    check_serves();
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
    for (size_t i = 0; i < sizeof few / sizeof *few; i++) {
        launch_with_descriptors(few[i]);
        assert_int_equal(end_daemon(0, PATIENCE), 1);
        assert_true(has_logged(log_path, "; at least 44 are needed"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_log_that_nobody_reads_holds_nobody_up, tear_down_daemon),
        cmocka_unit_test_teardown(descriptors_are_kept_for_what_is_needed, tear_down_daemon),
        cmocka_unit_test_teardown(temporary_outputs_take_no_descriptors, tear_down_daemon),
        cmocka_unit_test_teardown(too_few_descriptors_are_no_beginning, tear_down_daemon),
    };

    if (!begin_tests("tandemd"))
        return 1;
    return end_tests(cmocka_run_group_tests_name("a daemon that is short of something", tests, NULL, NULL));
}
