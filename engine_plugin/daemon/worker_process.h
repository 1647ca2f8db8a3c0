/* The worker as a process: its start, its end, a new one for a dead one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_WORKER_PROCESS_H
#define TANDEM_DAEMON_WORKER_PROCESS_H

#include "engine_plugin/daemon/state.h"

void td_worker_spawn(td_broker *b);
/* why: NULL if it was told before. The launcher may have no time for it now, or not have said yet who the worker is. */
void td_worker_kill(td_broker *b, const char *why);
/* Begins anew once it is known how a worker has ended, or nobody says so for too long. False: likewise. */
bool td_worker_bury(td_broker *b);

#endif
