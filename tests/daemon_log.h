/* What tandemd has said, from the file that its stderr goes to.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_DAEMON_LOG_H
#define TANDEM_TESTS_DAEMON_LOG_H

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include <cmocka.h>

static inline bool has_logged(const char *log_path, const char *text)
{
    static char all[1 << 20];
    const int fd = open(log_path, O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd < 0 ? 0 : read(fd, all, sizeof all - 1);

    all[got > 0 ? got : 0] = 0;
    if (fd >= 0)
        close(fd);
    return strstr(all, text) != NULL;
}

/* The process of the worker that the log names last. */
static inline pid_t logged_worker(const char *log_path)
{
    FILE *file = fopen(log_path, "r");
    char line[1000];
    int pid = 0;

    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        const char *at = strstr(line, "worker (process ");

        if (at && strstr(line, "computes on"))
            sscanf(at, "worker (process %d", &pid);
    }
    fclose(file);
    assert_true(pid > 0);
    return (pid_t)pid;
}

#endif
