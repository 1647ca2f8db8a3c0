/* The log: lines on stderr, which nobody waits for.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_LOG_H
#define TANDEM_DAEMON_LOG_H

#include "interop/base.h"

/* A line for stderr, with its priority for journald if that reads it. Never blocks: a thread writes what is kept, and
 * of more than that the oldest is dropped, which is said once there is room again. */
void td_say(td_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
extern uint32_t td_say_level;
/* Starts that thread, once; until then lines are kept. False: it cannot be started. */
bool td_log_begin(void);
/* In a process that was forked before that: what is kept is the other's. */
void td_log_forget(void);
/* At a process's end: lets the last lines be written, for 200 ms at most. */
void td_log_end(void);

#endif
