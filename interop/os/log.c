/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/log.h"

#include <stdatomic.h>
#include <stdio.h>

#include "interop/os/process.h"

static const char *const level_names[] = {"error", "warning", "info", "debug"};
enum { LEVELS = sizeof level_names / sizeof *level_names };

/* One write a line: lines of several threads and processes do not mix. `user`: the last level that is written. */
static void log_to_stderr(void *user, int level, const char *text)
{
    char line[1300];
    int length;

    if (level > (int)(intptr_t)user)
        return;
    length = snprintf(line, sizeof line, "tandem: %s: %s\n", level_names[level], text);
    if (length > 0)
        td_log_write(line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
}

td_log td_log_of_environment(void)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    const char *asked = td_process_environment("TANDEM_LOG");
    td_log errors = {log_to_stderr, (void *)(intptr_t)TD_LOG_ERROR};

    if (!asked || !asked[0])
        return (td_log){0};
    for (int level = 0; level < LEVELS; level++)
        if (!strcmp(asked, level_names[level]))
            return (td_log){log_to_stderr, (void *)(intptr_t)level};
    if (!atomic_flag_test_and_set(&warned))
        td_logf(&errors, TD_LOG_ERROR, "TANDEM_LOG is '%s'; it must be error, warning, info or debug", asked);
    return (td_log){0};
}
