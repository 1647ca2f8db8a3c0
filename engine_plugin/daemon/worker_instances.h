/* What the worker is asked of instances that it has.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_WORKER_INSTANCES_H
#define TANDEM_DAEMON_WORKER_INSTANCES_H

#include "engine_plugin/client/client.h"
#include "engine_plugin/daemon/worker_message.h"

/* The text of what failed, without the name of the call. */
void td_worker_keep_text(tandem_session *session, char *text, size_t bytes);
/* The answer to PREPARE, LAYER and STATE is in *t, with its status. host: where the ranges of STATE lie, one behind the other. */
void td_worker_prepare(tandem_session *session, tandem_instance instance, td_worker_message *t);
void td_worker_layer(tandem_session *session, tandem_instance instance, td_worker_message *t);
void td_worker_state(tandem_session *session, tandem_instance instance, void *host, td_worker_message *t);

#endif
