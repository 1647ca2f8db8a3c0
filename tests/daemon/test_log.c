/* tandemd's log on a stderr that nobody reads: no caller waits, and what was dropped is counted and said.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_plugin/daemon/limits.h"
#include "engine_plugin/daemon/log.h"
#include "interop/os/clock.h"
#include "interop/os/descriptor.h"
#include "tests/daemon/pipe_util.h"
#include "tests/limits.h"

enum { PATIENCE_MS = 30000, SAID = 20000 };

static int real_stderr, ends[2] = {-1, -1};
static char text[1 << 20];

static int set_up(void **state)
{
    (void)state;
    real_stderr = td_fd_dup(STDERR_FILENO);
    assert_true(real_stderr >= 0);
    make_full_pipe(ends);
    assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
    text[0] = 0;
    limits_begin(60); /* who waits for a reader waits for ever */
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    limits_end();
    dup2(real_stderr, STDERR_FILENO);
    td_fd_close(&real_stderr);
    td_fd_close(&ends[0]);
    td_fd_close(&ends[1]);
    return 0;
}

/* All lines are there or counted, in their order. */
static void check_lines(const char *begin, uint64_t said)
{
    uint64_t seen = 0, dropped = 0, last = 0, number;
    char *line = strtok(text, "\n");

    for (; line; line = strtok(NULL, "\n")) {
        if (sscanf(line, "tandemd: warning: %" SCNu64 " log lines were dropped", &number) == 1) {
            dropped += number;
            continue;
        }
        assert_int_equal(strncmp(line, begin, strlen(begin)), 0);
        number = strtoull(line + strlen(begin), NULL, 10);
        assert_true(number > last);
        last = number;
        seen++;
    }
    assert_int_equal(last, said); /* the newest is kept */
    assert_int_equal(seen + dropped, said);
    assert_true(dropped > 0 && seen >= 100);
}

static void lines_wait_for_the_thread(void **state)
{
    (void)state;
    td_say(TD_LOG_WARN, "the parent's");
    td_log_forget();
    td_say(TD_LOG_WARN, "first");
    td_say(TD_LOG_DEBUG, "beneath the level");
    drain_pipe(ends[0], NULL, 50, text, sizeof text);
    assert_string_equal(text, "");
    td_log_end();
    drain_pipe(ends[0], "first\n", PATIENCE_MS, text, sizeof text);
    assert_string_equal(text, "tandemd: warning: first\n");
}

static void nobody_waits_for_a_reader(void **state)
{
    uint64_t begin;

    (void)state;
    assert_true(td_log_begin());
    for (int i = 1; i <= SAID; i++)
        td_say(TD_LOG_INFO, "line %d", i);
    begin = td_now_ns();
    td_log_end();
    assert_true(td_now_ns() - begin < 10 * TD_SECOND);
    drain_pipe(ends[0], "line 20000\n", PATIENCE_MS, text, sizeof text);
    check_lines("tandemd: line ", SAID);
}

/* A pipe without a reader takes nothing; what comes later in its place does. */
static void a_reader_that_is_gone_is_no_end(void **state)
{
    (void)state;
    assert_true(td_log_begin());
    td_fd_close(&ends[0]);
    for (int i = 0; i < 3; i++)
        td_say(TD_LOG_INFO, "nobody hears this");
    td_log_end();
    td_fd_close(&ends[1]);
    make_full_pipe(ends);
    assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
    td_say(TD_LOG_INFO, "but this");
    drain_pipe(ends[0], "but this\n", PATIENCE_MS, text, sizeof text);
    assert_string_equal(text, "tandemd: warning: 3 log lines were dropped: nobody read them in time\n"
                              "tandemd: but this\n");
}

/* The longest line is cut, and ends as all do. */
static void long_lines_are_cut(void **state)
{
    static char longest[4000];

    (void)state;
    assert_true(td_log_begin());
    memset(longest, 'x', sizeof longest - 1);
    td_say(TD_LOG_INFO, "%s", longest);
    td_say(TD_LOG_INFO, "next");
    drain_pipe(ends[0], "next\n", PATIENCE_MS, text, sizeof text);
    assert_non_null(strstr(text, "xx\ntandemd: next\n"));
    assert_true(strlen(text) >= TD_TEXT_BYTES + 200 && strlen(text) < sizeof longest);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lines_wait_for_the_thread, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nobody_waits_for_a_reader, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_reader_that_is_gone_is_no_end, set_up, tear_down),
        cmocka_unit_test_setup_teardown(long_lines_are_cut, set_up, tear_down),
    };

    unsetenv("JOURNAL_STREAM");
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
