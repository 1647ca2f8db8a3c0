/* A layer below the one that is tested, which refuses what that adds: GRUDGE is instance, device,
 * swapchain, first or second (of its submits), image, memory or pipeline. What layer_game asks for
 * by itself it lets pass.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include <vulkan/vulkan_core.h>
#include <vulkan/vk_layer.h>

static PFN_vkGetInstanceProcAddr below;
static PFN_vkGetDeviceProcAddr below_device;
static VkInstance the_instance;
static VkDevice the_device;

static int bears(const char *grudge)
{
    const char *has = getenv("GRUDGE");
    return has && !strcmp(has, grudge);
}

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo *info,
                                                      const VkAllocationCallbacks *allocator,
                                                      VkInstance *instance)
{
    VkLayerInstanceCreateInfo *link = (void *)info->pNext;

    while (!(link->sType == VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO &&
             link->function == VK_LAYER_LINK_INFO))
        link = (void *)link->pNext;
    below = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    if (bears("instance") && info->pApplicationInfo &&
        info->pApplicationInfo->apiVersion > VK_API_VERSION_1_1)
        return VK_ERROR_INCOMPATIBLE_DRIVER;
    const VkResult result =
        ((PFN_vkCreateInstance)below(NULL, "vkCreateInstance"))(info, allocator, instance);
    the_instance = *instance;
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical,
                                                    const VkDeviceCreateInfo *info,
                                                    const VkAllocationCallbacks *allocator,
                                                    VkDevice *device)
{
    VkLayerDeviceCreateInfo *link = (void *)info->pNext;

    while (!(link->sType == VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO &&
             link->function == VK_LAYER_LINK_INFO))
        link = (void *)link->pNext;
    below_device = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    const PFN_vkCreateDevice create =
        (PFN_vkCreateDevice)link->u.pLayerInfo->pfnNextGetInstanceProcAddr(the_instance,
                                                                           "vkCreateDevice");
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    for (uint32_t i = 0; i < info->enabledExtensionCount; i++)
        if (bears("device") &&
            strncmp(info->ppEnabledExtensionNames[i], "VK_KHR_swapchain", 16) != 0)
            return VK_ERROR_EXTENSION_NOT_PRESENT;
    const VkResult result = create(physical, info, allocator, device);
    the_device = *device;
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_swapchain(VkDevice device,
                                                       const VkSwapchainCreateInfoKHR *info,
                                                       const VkAllocationCallbacks *allocator,
                                                       VkSwapchainKHR *swapchain)
{
    if (bears("swapchain") && info->imageUsage & VK_IMAGE_USAGE_TRANSFER_SRC_BIT)
        return VK_ERROR_INITIALIZATION_FAILED;
    return ((PFN_vkCreateSwapchainKHR)below_device(device, "vkCreateSwapchainKHR"))(
        device, info, allocator, swapchain);
}

/* The program's submits have a fence, and wait; the layer's first has no fence, its second no wait.
 */
static VKAPI_ATTR VkResult VKAPI_CALL queue_submit(VkQueue queue, uint32_t count,
                                                   const VkSubmitInfo *info, VkFence fence)
{
    if (bears("first") && count && !fence)
        return VK_ERROR_OUT_OF_HOST_MEMORY;
    if (bears("second") && count && fence && !info->waitSemaphoreCount &&
        info->signalSemaphoreCount)
        return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return ((PFN_vkQueueSubmit)below_device(the_device, "vkQueueSubmit"))(queue, count, info,
                                                                          fence);
}

static VKAPI_ATTR VkResult VKAPI_CALL create_image(VkDevice device, const VkImageCreateInfo *info,
                                                   const VkAllocationCallbacks *allocator,
                                                   VkImage *image)
{
    if (bears("image"))
        return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return ((PFN_vkCreateImage)below_device(device, "vkCreateImage"))(device, info, allocator,
                                                                      image);
}

static VKAPI_ATTR VkResult VKAPI_CALL allocate_memory(VkDevice device,
                                                      const VkMemoryAllocateInfo *info,
                                                      const VkAllocationCallbacks *allocator,
                                                      VkDeviceMemory *memory)
{
    if (bears("memory") && info->allocationSize > 200000)
        return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return ((PFN_vkAllocateMemory)below_device(device, "vkAllocateMemory"))(device, info, allocator,
                                                                            memory);
}

static VKAPI_ATTR VkResult VKAPI_CALL create_pipelines(VkDevice device, VkPipelineCache cache,
                                                       uint32_t count,
                                                       const VkComputePipelineCreateInfo *infos,
                                                       const VkAllocationCallbacks *allocator,
                                                       VkPipeline *pipelines)
{
    if (bears("pipeline")) {
        memset(pipelines, 0, count * sizeof *pipelines);
        return VK_ERROR_OUT_OF_HOST_MEMORY;
    }
    return ((PFN_vkCreateComputePipelines)below_device(device, "vkCreateComputePipelines"))(
        device, cache, count, infos, allocator, pipelines);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get_device(VkDevice device, const char *name)
{
    if (!strcmp(name, "vkGetDeviceProcAddr"))
        return (PFN_vkVoidFunction)get_device;
    if (!strcmp(name, "vkCreateSwapchainKHR"))
        return (PFN_vkVoidFunction)create_swapchain;
    if (!strcmp(name, "vkQueueSubmit"))
        return (PFN_vkVoidFunction)queue_submit;
    if (!strcmp(name, "vkCreateImage"))
        return (PFN_vkVoidFunction)create_image;
    if (!strcmp(name, "vkAllocateMemory"))
        return (PFN_vkVoidFunction)allocate_memory;
    if (!strcmp(name, "vkCreateComputePipelines"))
        return (PFN_vkVoidFunction)create_pipelines;
    return below_device(device, name);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get_instance(VkInstance instance, const char *name)
{
    if (!strcmp(name, "vkGetInstanceProcAddr"))
        return (PFN_vkVoidFunction)get_instance;
    if (!strcmp(name, "vkCreateInstance"))
        return (PFN_vkVoidFunction)create_instance;
    if (!strcmp(name, "vkCreateDevice"))
        return (PFN_vkVoidFunction)create_device;
    return below && instance ? below(instance, name) : NULL;
}

VK_LAYER_EXPORT VKAPI_ATTR VkResult VKAPI_CALL
vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface *asked)
{
    asked->loaderLayerInterfaceVersion = 2;
    asked->pfnGetInstanceProcAddr = get_instance;
    asked->pfnGetDeviceProcAddr = get_device;
    asked->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
