/* A job's begin and end: from its client's ring, to its report and its point. With the lock held.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_QUEUE_JOBS_H
#define TANDEM_DAEMON_QUEUE_JOBS_H

#include "engine_plugin/daemon/state.h"

/* Takes what a client has put into its ring, and hears a call ahead of it. True if there was something. */
bool td_queue_take_news(td_broker *b, td_client *c, uint64_t now);
/* What a client reads of a job. `slot`, or NULL: where its times are. */
void td_queue_report(td_broker *b, td_work *work, uint32_t state, tandem_status status, const td_slot *slot);
/* Something happens to a job: what is to be done for it (td_life_step) is. It may be over then, and its place free. `slot`:
 * what the worker says of it, or NULL. */
void td_queue_step(td_broker *b, td_work *work, td_life_event event, const td_slot *slot);
/* Those of a client's jobs that need an object, and that the worker does not have, fail. */
void td_queue_fail_users(td_broker *b, td_client *c, const td_shared *shared, tandem_status status, const char *why);
/* Gives up a job that fails. The text goes to its client as an event. */
void td_queue_fail(td_broker *b, td_work *work, tandem_status status, const char *why);
/* Takes what the client's ring holds now. False: it has as many jobs as can be, so some of that is left. */
bool td_queue_take(td_broker *b, td_client *c);
/* Has a work end so, now or in its turn. */
void td_queue_give_up(td_broker *b, td_work *work, uint32_t state, tandem_status status);
/* Signals and ends those of a client's that were given up and whose turn it is. */
void td_queue_retire_given_up(td_broker *b, td_client *c);

#endif
