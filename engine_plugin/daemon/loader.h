/* The worker's loads of models: a thread that reads all of them, a MiB of each in turn, while others are answered.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_LOADER_H
#define TANDEM_DAEMON_LOADER_H

#include "engine_plugin/client/client.h"
#include "engine_plugin/daemon/worker_message.h"

typedef struct td_loader td_loader;

/* Called by the thread when a request is through, with its answer: a MODEL's with the model, which is 0 if there is none, or an
 * END's. */
typedef void (*td_loaded)(void *user, td_worker_message *message, tandem_model model);

/* Starts the thread; NULL if it cannot be started. What it loads is `session`'s; *at, where that is not NULL, is the serial of
 * the request that it is at, or 0. */
td_loader *td_loader_start(tandem_session *session, _Atomic uint32_t *at, td_loaded loaded, void *user);
/* Has a file read, whose descriptor is the loader's from now on; or, -1, a model destroyed, which takes a while too: its memory
 * is much. False: there is no host memory for that. */
bool td_loader_add(td_loader *loader, const td_worker_message *message, int fd, tandem_model model);
/* An END of a model that is being loaded: both are answered once nothing of it is left. False: no such load is under way. */
bool td_loader_end(td_loader *loader, const td_worker_message *end);

#endif
