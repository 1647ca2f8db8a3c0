/* Which request a worker died of.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_BLAME_H
#define TANDEM_DAEMON_BLAME_H

#include "engine_plugin/daemon/state.h"

/* Which requests the worker that is gone was at, of those that may have ended it: their serials. Returns how many. */
enum { TD_MAX_BLAMED = 2 };
uint32_t td_blame_find(td_broker *b, uint32_t serials[TD_MAX_BLAMED]);
/* Answers such a request with what became of it; its client is named, its crash count rises, and no worker gets it again. */
void td_blame(td_broker *b, uint32_t serial);

#endif
