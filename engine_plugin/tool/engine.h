/* A Vulkan device for commands that are no engine.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The loader is opened at run time, as everywhere in the tool.
 */
#ifndef TD_TOOL_ENGINE_H
#define TD_TOOL_ENGINE_H

#include <pthread.h>

#include "engine_plugin/setup/setup.h"
#include "tandem/vulkan.h"

typedef struct tool_engine {
    td_library *library; /* NULL: it was never begun */
    PFN_vkGetInstanceProcAddr get;
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;
    uint32_t family;
    pthread_mutex_t queue_lock; /* a session on the inline rung submits to this queue, too */
    integration_enabled enabled; /* with the device */
} tool_engine;

/* Of a zeroed one: the best device of this machine that there is need of, with everything to be enabled that Tandem can use; the
 * caller may add to that. Then the device itself. False, and the reason: the caller closes it in any case. */
bool tool_engine_begin(tool_engine *e, const char *application, const setup_need *need, char *why, size_t why_bytes);
bool tool_engine_make(tool_engine *e, char *why, size_t why_bytes);
void tool_engine_close(tool_engine *e); /* accepts half-made ones */
/* What a session is told of it, which must not outlive it. */
tandem_vulkan tool_engine_vulkan(tool_engine *e);

#endif
