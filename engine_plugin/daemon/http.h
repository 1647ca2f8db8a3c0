/* Gives the metrics to whoever asks for them over HTTP.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_HTTP_H
#define TANDEM_DAEMON_HTTP_H

#include "engine_plugin/daemon/state.h"
#include "interop/os/poll.h"

/* What td_poll() is to look for, and what is to be done then. */
int td_web_listen_to(const td_broker *b, td_polled p[TD_WEB_PEERS]);
void td_web_turn(td_broker *b, const td_polled p[TD_WEB_PEERS]);
void td_web_accept(td_broker *b);
bool td_web_has_peers(const td_broker *b);
void td_web_end(td_broker *b);

#endif
