/* The broker's main thread: it listens, to clients, the launcher, the worker, signals.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_BROKER_H
#define TANDEM_DAEMON_BROKER_H

#include "engine_plugin/daemon/state.h"

int td_broker_run(td_broker *b);
/* What that is made of: begin leaves with the lock held, and starts a worker; a turn looks at everything once, sleeps at
 * most `ms`, and returns the exit status, or -1: go on. */
bool td_broker_begin(td_broker *b);
int td_broker_turn(td_broker *b, int ms);
void td_broker_end(td_broker *b);

#endif
