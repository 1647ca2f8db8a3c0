/* What Vulkan says, and what its tools are told: results as statuses, names of objects, labels in command buffers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "interop/vk/table.h"

tandem_status td_vk_result(VkResult result, const char *call, char *why, size_t why_bytes)
{
    static const struct {
        VkResult result;
        const char *name;
    } names[] = {
#define N(r) {r, #r}
        N(VK_NOT_READY),
        N(VK_TIMEOUT),
        N(VK_INCOMPLETE),
        N(VK_ERROR_OUT_OF_HOST_MEMORY),
        N(VK_ERROR_OUT_OF_DEVICE_MEMORY),
        N(VK_ERROR_INITIALIZATION_FAILED),
        N(VK_ERROR_DEVICE_LOST),
        N(VK_ERROR_MEMORY_MAP_FAILED),
        N(VK_ERROR_EXTENSION_NOT_PRESENT),
        N(VK_ERROR_FEATURE_NOT_PRESENT),
        N(VK_ERROR_TOO_MANY_OBJECTS),
        N(VK_ERROR_FORMAT_NOT_SUPPORTED),
        N(VK_ERROR_INVALID_EXTERNAL_HANDLE),
        N(VK_ERROR_OUT_OF_POOL_MEMORY),
        N(VK_ERROR_FRAGMENTATION),
        N(VK_ERROR_INVALID_SHADER_NV),
        N(VK_ERROR_UNKNOWN),
#undef N
    };
    const char *name = "VkResult";
    tandem_status status = TANDEM_ERROR_DEVICE;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].result == result)
            name = names[i].name;
    if (result == VK_ERROR_DEVICE_LOST)
        status = TANDEM_ERROR_LOST;
    else if (result == VK_ERROR_OUT_OF_HOST_MEMORY || result == VK_ERROR_OUT_OF_DEVICE_MEMORY ||
             result == VK_ERROR_TOO_MANY_OBJECTS || result == VK_ERROR_OUT_OF_POOL_MEMORY)
        status = TANDEM_ERROR_NOMEM;
    return td_fail(why, why_bytes, status, "%s: %s (%d)", call, name, (int)result);
}

void td_vk_name(td_vk *vk, VkObjectType type, uint64_t handle, const char *name)
{
    VkDebugUtilsObjectNameInfoEXT info = {.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_OBJECT_NAME_INFO_EXT,
                                          .objectType = type,
                                          .objectHandle = handle,
                                          .pObjectName = name};

    if (vk && vk->caps.debug_utils && handle && name)
        vk->fn.SetDebugUtilsObjectNameEXT(vk->device, &info);
}

void td_vk_label_begin(td_vk *vk, VkCommandBuffer commands, const char *name)
{
    VkDebugUtilsLabelEXT label = {.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_LABEL_EXT, .pLabelName = name ? name : ""};

    if (vk && vk->caps.debug_utils && commands)
        vk->fn.CmdBeginDebugUtilsLabelEXT(commands, &label);
}

void td_vk_label_end(td_vk *vk, VkCommandBuffer commands)
{
    if (vk && vk->caps.debug_utils && commands)
        vk->fn.CmdEndDebugUtilsLabelEXT(commands);
}
