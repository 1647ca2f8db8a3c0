/* Waiting for many descriptors at once.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_OS_POLL_H
#define TANDEM_OS_POLL_H

#include <stdbool.h>
#include <stdint.h>

/* What is looked for, and found: there is something to take (or somebody, or it has happened); it can be written to. What any bit
 * of GONE says is found without being looked for, as others are that have no name here. */
enum { TD_POLL_READS = 1, TD_POLL_WRITES = 4, TD_POLL_GONE = 24 };

typedef struct td_polled {
    int fd; /* a channel, a listener's, an event, an alarm, a process; -1: none */
    short wants, found;
} td_polled;

/* Sleeps until something is found. (Windows waits for 64 descriptors; of more it looks at all each millisecond.)
 * Returns: false if the system cannot wait: nothing is found then.
 * Threads: any.
 * Blocks: at most so long. */
bool td_poll(td_polled *list, uint32_t count, int timeout_ms);

#endif
