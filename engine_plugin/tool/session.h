/* Sessions for commands that are no engine: where a rung needs a Vulkan device, one is made for it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_SESSION_H
#define TD_TOOL_SESSION_H

#include "tandem/tandem.h"

typedef struct tool_engine tool_engine;

/* As tandem_session_create() does it, which it calls. *engine is what the session stands on: NULL where nothing need be made, as on
 * the rungs host, cpu and auto, and for a daemon's session. */
tandem_status tool_session_create(const tandem_session_desc *desc, tandem_session **session, tool_engine **engine);
/* Accepts what was not made. */
void tool_session_destroy(tandem_session **session, tool_engine **engine);

#endif
