/* Sessions for commands that are no engine: where a rung needs a Vulkan device, one is made for it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_SESSION_H
#define TD_TOOL_SESSION_H

#include "tandem/tandem.h"

typedef struct tool_engine tool_engine;

/* What help says of where and how a language model is computed: the commands that have one make a session. */
/* clang-format off */
#define TOOL_LANGUAGE_HELP \
    "  --attention auto|f16|8b|4b\n" \
    "                   the precision of attention; default: auto, which is f16\n" \
    "  --kv f16|k8v8|k4v8|f32\n" \
    "                   how keys and values are kept: as fp16, keys as INT8 and values as FP8, or keys\n" \
    "                   as INT4; f32: as float32, and a CPU computes all in it; default: f16\n" \
    "  --rung auto|inline|timeline|host|copy|cpu\n" \
    "                   the way of computing; default: auto, the best that there is\n" \
    "  --socket PATH    compute in the tandemd that listens there, which opens the model itself: beneath a\n" \
    "                   model_dir of its own\n"
/* clang-format on */

/* As tandem_session_create() does it, which it calls. *engine is what the session stands on: NULL where nothing need be made, as on
 * the rungs host, cpu and auto, and for a daemon's session. */
tandem_status tool_session_create(const tandem_session_desc *desc, tandem_session **session, tool_engine **engine);
/* Accepts what was not made. */
void tool_session_destroy(tandem_session **session, tool_engine **engine);

#endif
