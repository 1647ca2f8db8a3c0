/* What clients are told, and the end of their connections.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_REPLIES_H
#define TANDEM_DAEMON_REPLIES_H

#include "engine_plugin/daemon/state.h"

/* Ends a connection: `status` PROTOCOL and others are told as ERROR, OK as BYE with `reason`, LOST not at all. The
 * second thread does the rest, so the client stays where it is in the list. */
void td_client_end(td_broker *b, td_client *c, tandem_status status, td_wire_reason reason, const char *why);
tandem_status td_client_send(td_broker *b, td_client *c, const td_wire_message *m, const int *fd);
/* A request has its answer; the two behind it see to that themselves. */
void td_client_answered(td_client *c, uint32_t serial);
void td_client_error(td_broker *b, td_client *c, uint32_t serial, uint64_t ticket, tandem_status status,
                     const char *text);
void td_client_done(td_broker *b, td_client *c, uint32_t serial, uint64_t id);

#endif
