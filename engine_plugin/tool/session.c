/* Sessions for commands that are no engine: see session.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/session.h"

#include <stdlib.h>

#include "engine_plugin/tool/engine.h"
#include "interop/base.h"

static void close_engine(tool_engine **engine)
{
    tool_engine_close(*engine);
    free(*engine);
    *engine = NULL;
}

static tandem_status open_engine(const tandem_session_desc *desc, tool_engine **engine)
{
    const setup_need need = {.api_version = VK_API_VERSION_1_2};

    *engine = calloc(1, sizeof **engine);
    if (!*engine)
        return td_fail(desc->error_text, desc->error_text_bytes, TANDEM_ERROR_NOMEM, "no memory for a Vulkan device");
    if (tool_engine_begin(*engine, "tandem", &need, desc->error_text, desc->error_text_bytes) &&
        tool_engine_make(*engine, desc->error_text, desc->error_text_bytes))
        return TANDEM_OK;
    close_engine(engine);
    return TANDEM_ERROR_UNSUPPORTED;
}

tandem_status tool_session_create(const tandem_session_desc *desc, tandem_session **session, tool_engine **engine)
{
    const bool needs_one = desc->rung == TANDEM_RUNG_INLINE || desc->rung == TANDEM_RUNG_TIMELINE || desc->rung == TANDEM_RUNG_COPY;
    tandem_session_desc with = *desc;
    tandem_vulkan vulkan;
    tandem_status status;

    *session = NULL;
    *engine = NULL;
    if (!needs_one || desc->socket || desc->vulkan)
        return tandem_session_create(desc, session);
    status = open_engine(desc, engine);
    if (status != TANDEM_OK)
        return status;
    vulkan = tool_engine_vulkan(*engine);
    with.vulkan = &vulkan;
    status = tandem_session_create(&with, session);
    if (status != TANDEM_OK)
        tool_session_destroy(session, engine);
    return status;
}

void tool_session_destroy(tandem_session **session, tool_engine **engine)
{
    if (*session)
        tandem_session_destroy(session);
    if (*engine)
        close_engine(engine);
}
