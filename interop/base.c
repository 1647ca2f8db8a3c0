/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "interop/base.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const level_names[] = {"error", "warning", "info", "debug"};
enum { LEVELS = sizeof level_names / sizeof *level_names };

/* Cuts a text that fills its room behind a word; a single long one between characters of UTF-8. */
static void end_at_word(char *text, size_t bytes)
{
    static const char dots[] = "...";
    size_t end = bytes - sizeof dots, at = end;

    if (bytes <= sizeof dots)
        return;
    while (at > end / 2 && text[at] != ' ')
        at--;
    if (text[at] != ' ')
        for (at = end; at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80;)
            at--;
    memcpy(text + at, dots, sizeof dots);
}

void td_text_list(char *text, size_t bytes, const char *format, va_list args)
{
    const int wanted = text && bytes ? vsnprintf(text, bytes, format, args) : 0;

    if (wanted >= 0 && (size_t)wanted >= bytes && bytes)
        end_at_word(text, bytes);
}

/* One write a line: lines of several threads and processes do not mix. `user`: the last level that is written. */
static void log_to_stderr(void *user, int level, const char *text)
{
    char line[1300];
    int length;

    if (level > (int)(intptr_t)user)
        return;
    length = snprintf(line, sizeof line, "tandem: %s: %s\n", level_names[level], text);
    if (length > 0 && write(STDERR_FILENO, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1) < 0)
        return; /* there is nobody else to tell */
}

td_log td_log_of_environment(void)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    const char *asked = secure_getenv("TANDEM_LOG");
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

void td_logf(const td_log *log, td_log_level level, const char *format, ...)
{
    char text[1200];
    va_list args;

    if (!log || !log->fn)
        return;
    va_start(args, format);
    td_text_list(text, sizeof text, format, args);
    va_end(args);
    for (char *c = text; *c; c++) /* names come from files and callers: a line stays one line */
        if (iscntrl((unsigned char)*c))
            *c = '?';
    log->fn(log->user, (int)level, text);
}

void td_text(char *text, size_t bytes, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    td_text_list(text, bytes, format, args);
    va_end(args);
}

tandem_status td_fail(char *text, size_t bytes, tandem_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    td_text_list(text, bytes, format, args);
    va_end(args);
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

bool td_fd_standard(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) /* the lowest one is free */
            return false;
    return true;
}

void td_fd_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}
