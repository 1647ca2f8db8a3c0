/* Jobs to the worker, and what comes back from it. With the lock held.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_QUEUE_DISPATCH_H
#define TANDEM_DAEMON_QUEUE_DISPATCH_H

#include "engine_plugin/daemon/state.h"

/* A client's first job that the worker does not have wholly, if all before it are over or there. */
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
/* The worker has no memory for a client's temporary output. */
void td_queue_without_temp_output(td_broker *b, td_client *c);
/* The worker is gone; of a job's fault, as far as is known: that has failed. */
void td_queue_lost(td_broker *b, bool by_job);

#endif
