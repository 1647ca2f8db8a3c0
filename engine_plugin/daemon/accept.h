/* Who connects, and who of them is let in.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_ACCEPT_H
#define TANDEM_DAEMON_ACCEPT_H

#include "engine_plugin/daemon/state.h"

/* Lets in who has connected, as long as there is room; b->accept_ns: not before then. */
void td_clients_accept(td_broker *b);

#endif
