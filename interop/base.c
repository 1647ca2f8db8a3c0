/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/base.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

void td_logf(const td_log *log, td_log_level level, const char *format, ...)
{
    char text[512];
    va_list args;

    if (!log || !log->fn)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *c = text; *c; c++) /* names come from files and callers: a line stays one line */
        if (iscntrl((unsigned char)*c))
            *c = '?';
    log->fn(log->user, (int)level, text);
}

tandem_status td_fail(char *text, size_t bytes, tandem_status status, const char *format, ...)
{
    va_list args;

    if (text && bytes) {
        va_start(args, format);
        vsnprintf(text, bytes, format, args);
        va_end(args);
    }
    return status;
}

uint64_t td_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int td_fd_dup(int fd)
{
    return fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

void td_fd_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}
