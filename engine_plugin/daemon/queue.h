/* The queue, as the files of it share it. What the rest of the broker sees of it is in daemon.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   queue.c           the thread: what it sleeps on, and what it does in a turn
 *   queue_schedule.c  whose turn it is, slices, the worker's queue and what comes back from it
 *   queue_jobs.c      a job's begin and end: from its client's ring, to its report and its point
 *
 * Each calls those below it in this list and none above it. All with the lock held.
 */
#ifndef TANDEM_DAEMON_QUEUE_H
#define TANDEM_DAEMON_QUEUE_H

#include "engine_plugin/daemon/daemon.h"

/* queue_jobs.c. Takes what a client has put into its ring, and hears a call ahead of it. True if there was something. */
bool td_queue_take_news(td_broker *b, td_client *c, uint64_t now);
/* What a client reads of a job. `slot`, or NULL: where its times are. */
void td_queue_report(td_broker *b, td_work *work, uint32_t state, tandem_status status, const td_slot *slot);
/* Something happens to a job: what is to be done for it (td_life_step) is. It may be over then, and its place free. `slot`:
 * what the worker says of it, or NULL. */
void td_queue_step(td_broker *b, td_work *work, td_life_event event, const td_slot *slot);
/* Gives up a job that fails. The text goes to its client as an event. */
void td_queue_fail(td_broker *b, td_work *work, tandem_status status, const char *why);

/* queue_schedule.c. A client's first job that the worker does not have wholly, if all before it are over or there. */
td_work *td_queue_head(const td_client *c);
/* How many clients there are that may have jobs. */
uint32_t td_queue_sharing(const td_broker *b);
/* Ends those of a client's jobs whose deadline or bound has passed: true if there was one. *next_ns: no later than the
 * next of these. */
bool td_queue_end_late(td_broker *b, td_client *c, uint64_t now, uint64_t *next_ns);
/* Gives the worker one more piece of a job; false: there is none for it now. *again: somebody waits for the share of
 * another, who may not want it, or a job behind one that was refused. */
bool td_queue_dispatch(td_broker *b, uint64_t now, bool *again);
/* Takes what the worker is through with. True if there was something. */
bool td_queue_take_results(td_broker *b);

#endif
