/* A pipe that nobody reads, in place of a process's stderr.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_PIPE_UTIL_H
#define TANDEM_TESTS_PIPE_UTIL_H

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Of one page, which is full. */
static inline void make_full_pipe(int ends[2])
{
    static const char junk[512] = {0};

    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_true(fcntl(ends[1], F_SETPIPE_SZ, 4096) >= 4096);
    assert_int_equal(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
    while (write(ends[1], junk, sizeof junk) > 0)
        ;
    while (write(ends[1], junk, 1) > 0)
        ;
    assert_int_equal(fcntl(ends[1], F_SETFL, 0), 0);
}

/* Adds what comes from a pipe to `text`, until `last` (NULL: none) is in it, or nothing has come for so long. */
static inline void drain_pipe(int fd, const char *last, int quiet_ms, char *text, size_t text_bytes)
{
    struct pollfd p = {fd, POLLIN, 0};
    size_t at = strlen(text);
    char part[4096];

    while (!(last && strstr(text, last)) && poll(&p, 1, quiet_ms) > 0) {
        const ssize_t got = read(fd, part, sizeof part);

        if (got <= 0)
            break;
        for (ssize_t i = 0; i < got; i++)
            if (part[i]) { /* what filled it */
                assert_true(at + 1 < text_bytes);
                text[at++] = part[i];
            }
        text[at] = 0;
    }
}

#endif
