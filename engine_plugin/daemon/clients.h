/* Clients: what each asks for.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_CLIENTS_H
#define TANDEM_DAEMON_CLIENTS_H

#include "engine_plugin/daemon/launcher.h"
#include "engine_plugin/daemon/state.h"

void td_client_read(td_broker *b, td_client *c);
/* The launcher has opened a file, or has not; *fd may be taken. */
void td_client_opened(td_broker *b, const td_launcher_message *m, int *fd);
/* The worker has said what it is: for those who waited for it. */
void td_clients_identified(td_broker *b);
void td_client_free(td_broker *b, td_client *c);

#endif
