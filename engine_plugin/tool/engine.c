/* A Vulkan device for commands that are no engine. See engine.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/engine.h"

#include "interop/base.h"

static void lock_queue(void *user)
{
    pthread_mutex_lock(&((tool_engine *)user)->queue_lock);
}

static void unlock_queue(void *user)
{
    pthread_mutex_unlock(&((tool_engine *)user)->queue_lock);
}

tandem_vulkan tool_engine_vulkan(tool_engine *e)
{
    return TANDEM_INIT(tandem_vulkan,
                       .api_version = VK_API_VERSION_1_2,
                       .get_instance_proc_addr = e->get,
                       .instance = e->instance,
                       .physical_device = e->physical,
                       .device = e->device,
                       .queue_family = e->family,
                       .enabled_extension_count = e->enabled.extension_count,
                       .enabled_extensions = e->enabled.extensions,
                       .enabled_features = &e->enabled.features,
                       .queue = e->queue,
                       .lock_queue = lock_queue,
                       .unlock_queue = unlock_queue,
                       .user = e);
}

bool tool_engine_begin(tool_engine *e, const char *application, const setup_need *need, char *why, size_t why_bytes)
{
    VkDebugUtilsMessengerEXT nobody;
    VkPhysicalDeviceProperties properties;
    char lacks[200];

    pthread_mutex_init(&e->queue_lock, NULL);
    if (!setup_loader(&e->library, &e->get, why, why_bytes))
        return false;
    const setup_instance_desc desc = {.get = e->get, .application = application, .api_version = VK_API_VERSION_1_2};
    if (setup_instance(&desc, &e->instance, &nobody, why, why_bytes) != VK_SUCCESS ||
        !setup_pick(e->get, e->instance, need, &e->physical, &e->family, why, why_bytes))
        return false;
    if (integrate_enable(&e->enabled, e->get, e->instance, e->physical, lacks, sizeof lacks))
        return true;
    ((PFN_vkGetPhysicalDeviceProperties)e->get(e->instance, "vkGetPhysicalDeviceProperties"))(e->physical, &properties);
    td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "%s: %s", properties.deviceName, lacks);
    return false;
}

bool tool_engine_make(tool_engine *e, char *why, size_t why_bytes)
{
    const VkResult result = setup_device(e->get, e->instance, e->physical, e->family, &e->enabled, &e->device, &e->queue);

    if (result != VK_SUCCESS)
        td_fail(why, why_bytes, TANDEM_ERROR_DEVICE, "vkCreateDevice: VkResult %d", (int)result);
    return result == VK_SUCCESS;
}

void tool_engine_close(tool_engine *e)
{
    if (e->device) {
        const PFN_vkGetDeviceProcAddr get = (PFN_vkGetDeviceProcAddr)e->get(e->instance, "vkGetDeviceProcAddr");

        ((PFN_vkDestroyDevice)get(e->device, "vkDestroyDevice"))(e->device, NULL);
    }
    setup_instance_destroy(e->get, e->instance, VK_NULL_HANDLE);
    td_library_close(&e->library);
    pthread_mutex_destroy(&e->queue_lock);
}
