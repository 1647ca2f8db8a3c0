/* What the worker says.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_ANSWERS_H
#define TANDEM_DAEMON_ANSWERS_H

#include "engine_plugin/daemon/state.h"

/* False: there will never be a worker. */
bool td_worker_read(td_broker *b);
/* What an answer does; *t may be anything but its number. fd: what came with it, or -1. */
void td_worker_request_answer(td_broker *b, td_worker_request *request, const td_worker_message *t, int fd);

#endif
