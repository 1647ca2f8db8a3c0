/* Threads that look while submits come and go, several at once: each sees numbers rise, and of each the same times.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_POLLER_H
#define TANDEM_TESTS_POLLER_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine_plugin/exec/exec.h"

/* What is wrong is counted; the thread ends when `over` is set, and something was seen. */
typedef struct poller {
    pthread_t thread;
    td_stream *stream;
    atomic_bool *over;
    unsigned wrong, seen;
} poller;

static void *poll_stream(void *user)
{
    poller *it = user;
    td_stream *watched = it->stream;
    uint64_t last = 0, last_end = 0; /* on the device's clock */

    while (!atomic_load(it->over) || !it->seen) {
        const uint64_t completed = td_stream_completed(watched);
        const int64_t offset = td_stream_clock_offset_ns(watched);
        uint64_t begin = 0, end = 0, again[2] = {0};
        bool right;

        it->wrong += completed < last || !td_stream_begun(watched, completed);
        if (completed == last)
            continue;
        right = td_stream_times(watched, completed, &begin, &end) && last_end <= begin + (uint64_t)offset && begin <= end &&
                td_stream_times(watched, completed, &again[0], &again[1]) && again[0] == begin && again[1] == end;
        if (td_stream_completed(watched) - completed > 200) /* this thread slept: the times may be gone */
            continue;
        if (td_stream_clock_offset_ns(watched) != offset) /* all times moved meanwhile */
            continue;
        it->wrong += !right;
        last = completed;
        last_end = end + (uint64_t)offset;
        it->seen++;
    }
    return NULL;
}

#endif
