/* Sessions for commands that are no engine: see session.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/session.h"

#include <pthread.h>
#include <stdlib.h>

#include "engine_plugin/setup/setup.h"
#include "interop/base.h"
#include "tandem/vulkan.h"

struct tool_engine {
    td_library *library;
    PFN_vkGetInstanceProcAddr get;
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;
    uint32_t family;
    pthread_mutex_t lock; /* of the queue */
    integration_enabled enabled;
};

static void lock_queue(void *user)
{
    pthread_mutex_lock(&((tool_engine *)user)->lock);
}

static void unlock_queue(void *user)
{
    pthread_mutex_unlock(&((tool_engine *)user)->lock);
}

static void close_engine(tool_engine *e)
{
    if (e->device) {
        const PFN_vkGetDeviceProcAddr get =
            (PFN_vkGetDeviceProcAddr)e->get(e->instance, "vkGetDeviceProcAddr");

        ((PFN_vkDestroyDevice)get(e->device, "vkDestroyDevice"))(e->device, NULL);
    }
    if (e->get)
        setup_instance_destroy(e->get, e->instance, VK_NULL_HANDLE);
    td_library_close(&e->library);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

static tandem_status open_device(tool_engine *e, char *why, size_t why_bytes)
{
    const setup_need need = {.api_version = VK_API_VERSION_1_2};
    VkDebugUtilsMessengerEXT nobody;
    char lacks[200];
    VkResult result;

    if (!setup_loader(&e->library, &e->get, why, why_bytes))
        return TANDEM_ERROR_UNSUPPORTED;
    const setup_instance_desc desc = {.get = e->get, .application = "tandem", .api_version = VK_API_VERSION_1_2};
    if (setup_instance(&desc, &e->instance, &nobody, why, why_bytes) != VK_SUCCESS ||
        !setup_pick(e->get, e->instance, &need, &e->physical, &e->family, why, why_bytes))
        return TANDEM_ERROR_UNSUPPORTED;
    if (!integrate_enable(&e->enabled, e->get, e->instance, e->physical, lacks, sizeof lacks))
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "the Vulkan device: %s", lacks);
    result = setup_device(e->get, e->instance, e->physical, e->family, &e->enabled, &e->device, &e->queue);
    return result == VK_SUCCESS ? TANDEM_OK
                                : td_fail(why, why_bytes, TANDEM_ERROR_DEVICE, "vkCreateDevice: VkResult %d", (int)result);
}

static tandem_status open_engine(const tandem_session_desc *desc, tool_engine **engine)
{
    tool_engine *e = calloc(1, sizeof *e);
    tandem_status status;

    if (!e)
        return td_fail(desc->error_text, desc->error_text_bytes, TANDEM_ERROR_NOMEM, "no memory for a Vulkan device");
    pthread_mutex_init(&e->lock, NULL);
    status = open_device(e, desc->error_text, desc->error_text_bytes);
    if (status == TANDEM_OK)
        *engine = e;
    else
        close_engine(e);
    return status;
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
    vulkan = TANDEM_INIT(tandem_vulkan, .api_version = VK_API_VERSION_1_2, .get_instance_proc_addr = (*engine)->get,
                         .instance = (*engine)->instance, .physical_device = (*engine)->physical, .device = (*engine)->device,
                         .queue_family = (*engine)->family, .queue = (*engine)->queue,
                         .enabled_extension_count = (*engine)->enabled.extension_count,
                         .enabled_extensions = (*engine)->enabled.extensions, .enabled_features = &(*engine)->enabled.features,
                         .lock_queue = lock_queue, .unlock_queue = unlock_queue, .user = *engine);
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
        close_engine(*engine);
    *engine = NULL;
}
