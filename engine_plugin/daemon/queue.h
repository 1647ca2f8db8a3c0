/* The broker's second thread: what it sleeps on, its turns. With the lock held but its main.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_QUEUE_H
#define TANDEM_DAEMON_QUEUE_H

#include "engine_plugin/daemon/state.h"

void *td_queue_main(void *broker);
/* One turn of it, without the sleep: true if it did something; *next_ns: when there is something to do at the latest. */
bool td_queue_turn(td_broker *b, uint64_t *next_ns);

#endif
