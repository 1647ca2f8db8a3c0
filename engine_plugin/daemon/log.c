/* The log: lines on stderr, which may be a pipe that nobody reads, or a terminal that was stopped. To write there may block,
 * and no flag keeps it from that alone: O_NONBLOCK belongs to what is open, which other programs have, too. So lines go into a
 * ring and a thread writes them, for which nobody waits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_plugin/daemon/limits.h"
#include "engine_plugin/daemon/log.h"
#include "interop/os/clock.h"
#include "interop/os/poll.h"
#include "interop/os/thread.h"

#define END_NS 200000000u /* what the last lines get at a process's end */
enum { LINES = 256, LINE_BYTES = TD_TEXT_BYTES + 240, POLL_MS = 100 };

typedef struct line {
    uint32_t bytes;
    char text[LINE_BYTES];
} line;

static struct {
    pthread_mutex_t lock; /* never held while something is written */
    pthread_cond_t more;
    pthread_barrier_t begun; /* a thread's start takes system calls that the broker gives up */
    bool has_thread, writing;
    line ring[LINES];
    uint32_t first, count;
    uint64_t dropped; /* and not said yet */
} the = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

uint32_t td_say_level = TD_LOG_INFO;

static uint32_t end_line(line *l, int length)
{
    if (length < 0 || length > LINE_BYTES - 2)
        length = LINE_BYTES - 2;
    l->text[length] = '\n';
    return l->bytes = (uint32_t)length + 1;
}

static int begin_line(line *l, td_log_level level)
{
    static const char *const words[] = {"error: ", "warning: ", "", ""};
    static const int priorities[] = {3, 4, 6, 7};

    if (getenv("JOURNAL_STREAM"))
        return snprintf(l->text, LINE_BYTES, "<%d>", priorities[level]);
    return snprintf(l->text, LINE_BYTES, "tandemd: %s", words[level]);
}

void td_say(td_log_level level, const char *format, ...)
{
    va_list list;
    line made;
    int at;

    if ((uint32_t)level > td_say_level)
        return;
    at = begin_line(&made, level);
    va_start(list, format);
    end_line(&made, at + vsnprintf(made.text + at, sizeof made.text - (size_t)at, format, list));
    va_end(list);
    pthread_mutex_lock(&the.lock);
    if (the.count == LINES) { /* what is newest says most of how things are */
        the.first = (the.first + 1) % LINES;
        the.count--;
        the.dropped++;
    }
    the.ring[(the.first + the.count++) % LINES] = made;
    pthread_cond_signal(&the.more);
    pthread_mutex_unlock(&the.lock);
}

/* Waits as long as it takes. False: nobody will ever read it. */
static bool write_line(const line *l)
{
    uint32_t at = 0;

    while (at < l->bytes) {
        const ssize_t wrote = write(STDERR_FILENO, l->text + at, l->bytes - at);
        td_polled p = {STDERR_FILENO, TD_POLL_WRITES, 0};

        if (wrote >= 0)
            at += (uint32_t)wrote;
        else if (errno == EAGAIN) /* another program has made it so */
            td_poll(&p, 1, POLL_MS);
        else if (errno != EINTR)
            return false;
    }
    return true;
}

static void say_dropped(void)
{
    const uint64_t count = the.dropped;
    bool said;
    line made;
    int at;

    if (!count)
        return;
    pthread_mutex_unlock(&the.lock);
    at = begin_line(&made, TD_LOG_WARN);
    end_line(&made, at + snprintf(made.text + at, sizeof made.text - (size_t)at,
                                  "%" PRIu64 " log lines were dropped: nobody read them in time", count));
    said = write_line(&made);
    pthread_mutex_lock(&the.lock);
    the.dropped -= said ? count : 0;
}

/* The oldest line; those that were dropped came before it. */
static void write_first(void)
{
    line l;
    bool wrote;

    the.writing = true;
    say_dropped();
    l = the.ring[the.first];
    the.first = (the.first + 1) % LINES;
    the.count--;
    pthread_mutex_unlock(&the.lock);
    wrote = write_line(&l);
    pthread_mutex_lock(&the.lock);
    the.dropped += !wrote;
    the.writing = false;
}

static void *write_main(void *user)
{
    (void)user;
    pthread_barrier_wait(&the.begun);
    pthread_mutex_lock(&the.lock);
    for (;;) {
        while (!the.count)
            pthread_cond_wait(&the.more, &the.lock);
        write_first();
    }
    return NULL;
}

bool td_log_begin(void)
{
    pthread_t thread;

    if (the.has_thread)
        return true;
    if (pthread_barrier_init(&the.begun, NULL, 2))
        return false;
    the.has_thread = td_thread_start(&thread, write_main, NULL);
    if (!the.has_thread)
        return false;
    pthread_detach(thread);
    pthread_barrier_wait(&the.begun);
    return true;
}

void td_log_forget(void)
{
    the.first = the.count = 0;
    the.dropped = 0;
}

static bool is_written(void)
{
    bool is;

    pthread_mutex_lock(&the.lock);
    is = !the.count && !the.writing;
    pthread_mutex_unlock(&the.lock);
    return is;
}

void td_log_end(void)
{
    const uint64_t until = td_now_ns() + END_NS;

    if (is_written() || !td_log_begin())
        return;
    while (!is_written() && td_now_ns() < until)
        td_sleep_ns(1000000);
}
