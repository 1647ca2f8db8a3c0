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
#include <unistd.h>

#include "tests/daemon_client.h"
#include "tests/pipe_util.h"

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

static void await_socket(void)
{
    const uint64_t begin = td_now_ns();

    while (access(socket_path, F_OK)) {
        assert_true(td_now_ns() - begin < PATIENCE);
        sleep_ms(5);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_log_that_nobody_reads_holds_nobody_up),
    };

    if (!begin_tests("tandemd"))
        return 1;
    return end_tests(cmocka_run_group_tests_name("a daemon that is short of something", tests, NULL, NULL));
}
