/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_plugin/conform/conform.h"

static const char *const names[CONFORM_RULES] = {
    [CONFORM_FD_LEAK] = "fd-leak",         [CONFORM_DOUBLE_CLOSE] = "double-close", [CONFORM_OWNERSHIP] = "ownership",
    [CONFORM_UNBOUNDED_WAIT] = "unbounded-wait", [CONFORM_WRONG_STAGE] = "wrong-stage", [CONFORM_REUSE] = "reuse",
    [CONFORM_STALE] = "stale",             [CONFORM_LOST_POINT] = "lost-point",
};

static void put(int fd, const char *line, size_t bytes)
{
    while (bytes) {
        const ssize_t written = write(fd, line, bytes);
        if (written <= 0)
            return;
        line += written;
        bytes -= (size_t)written;
    }
}

/* Each line is one write, so those of several threads and processes do not mix. */
void conform_say(conform_rule rule, const char *format, ...)
{
    const char *path = getenv("TANDEM_CONFORM_REPORT");
    char line[600];
    va_list args;
    size_t used = (size_t)snprintf(line, sizeof line, "tandem conform: %s: ", names[rule]);

    va_start(args, format);
    vsnprintf(line + used, sizeof line - used - 1, format, args);
    va_end(args);
    used = strlen(line);
    line[used++] = '\n';
    put(2, line, used);
    if (!path)
        return;
    const int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0)
        return;
    put(fd, line, used);
    close(fd);
}
