/* Events and alarms: descriptors that become readable, once somebody says so or at a time, and stay so until they are cleared.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * An engine may wait for them with all else that it waits for: poll(), epoll or io_uring here, a wait for many objects
 * elsewhere. (Linux: eventfd and timerfd.)
 */
#ifndef TANDEM_OS_EVENT_H
#define TANDEM_OS_EVENT_H

#include <stdbool.h>
#include <stdint.h>

/* Makes an event, readable from the start if `set`; an alarm, which is not.
 * Returns: -1 and errno if none is left.
 * Owner: the caller, until td_fd_close().
 * Threads: any.
 * Blocks: never. */
int td_event_make(bool set);
int td_alarm_make(void);

/* The event is readable from here on; is not any more.
 * Threads: any.
 * Blocks: never. */
void td_event_set(int event);
void td_event_clear(int event);

/* The alarm is readable from after_ns on, which is at least 1. On the processor of the calling thread: who sleeps for it is
 * likely to be woken there.
 * Threads: any.
 * Blocks: never. */
void td_alarm_set(int alarm, uint64_t after_ns);

/* Sleeps until an event or alarm is readable.
 * Threads: any.
 * Blocks: until then, at most so long. */
void td_event_await(int event, uint32_t timeout_ms);

#endif
