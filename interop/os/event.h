/* Events and alarms: descriptors that become readable, once somebody says so or at a time, and stay so until they are cleared.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * An engine may wait for them with all else that it waits for: poll(), epoll or io_uring here, a wait for many objects
 * elsewhere. (Linux: eventfd and timerfd.)
 */
#ifndef TANDEM_OS_EVENT_H
#define TANDEM_OS_EVENT_H

#include "interop/base.h"

/* Makes an event, readable from the start if `set`; an alarm, which is not.
 * Returns: NOMEM if none is left; the descriptor is -1 then.
 * Owner: the caller, until td_fd_close().
 * Threads: any.
 * Blocks: never. */
tandem_status td_event_make(bool set, int *event, char *why, size_t why_bytes);
tandem_status td_alarm_make(int *alarm, char *why, size_t why_bytes);

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
