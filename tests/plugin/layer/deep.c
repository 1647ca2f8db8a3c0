/* A layer below the one that is tested, with swapchains of 10 and 16 bits a channel, which no
 * window here has: their images are ordinary ones, that are shown nowhere. They are acquired in
 * turn, and free again once what a present waits for is there.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * One instance, one device, one queue, by one thread.
 */
#include <stdlib.h>
#include <string.h>

#include <vulkan/vk_layer.h>
#include <vulkan/vulkan_core.h>

enum { IMAGES = 3 };

typedef struct deep_swapchain {
    VkImage images[IMAGES];
    VkDeviceMemory memory[IMAGES];
    uint32_t next;
} deep_swapchain;

static const VkSurfaceFormatKHR formats[] = {
    {VK_FORMAT_A2B10G10R10_UNORM_PACK32, VK_COLOR_SPACE_SRGB_NONLINEAR_KHR},
    {VK_FORMAT_A2R10G10B10_UNORM_PACK32, VK_COLOR_SPACE_SRGB_NONLINEAR_KHR},
    {VK_FORMAT_R16G16B16A16_SFLOAT, VK_COLOR_SPACE_SRGB_NONLINEAR_KHR},
    {VK_FORMAT_R16G16B16A16_SFLOAT, VK_COLOR_SPACE_EXTENDED_SRGB_LINEAR_EXT},
};
enum { FORMATS = sizeof formats / sizeof *formats };

static PFN_vkGetInstanceProcAddr below;
static PFN_vkGetDeviceProcAddr below_device;
static VkInstance the_instance;
static VkDevice the_device;
static VkPhysicalDevice the_physical;
static VkQueue the_queue;

#define CALL(name) ((PFN_vk##name)below_device(the_device, "vk" #name))

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
    const VkResult result = create(physical, info, allocator, device);
    if (result == VK_SUCCESS) {
        the_device = *device;
        the_physical = physical;
        CALL(GetDeviceQueue)(*device, info->pQueueCreateInfos->queueFamilyIndex, 0, &the_queue);
    }
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL get_formats(VkPhysicalDevice physical, VkSurfaceKHR surface,
                                                  uint32_t *count, VkSurfaceFormatKHR *list)
{
    (void)physical, (void)surface;
    const uint32_t room = *count < FORMATS ? *count : FORMATS;

    *count = list ? room : FORMATS;
    if (list)
        memcpy(list, formats, room * sizeof *list);
    return list && room < FORMATS ? VK_INCOMPLETE : VK_SUCCESS;
}

static int make_image(const VkSwapchainCreateInfoKHR *of, VkImage *image, VkDeviceMemory *memory)
{
    const VkImageCreateInfo info = {.sType = VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO,
                                    .imageType = VK_IMAGE_TYPE_2D,
                                    .format = of->imageFormat,
                                    .extent = {of->imageExtent.width, of->imageExtent.height, 1},
                                    .mipLevels = 1,
                                    .arrayLayers = 1,
                                    .samples = VK_SAMPLE_COUNT_1_BIT,
                                    .usage = of->imageUsage};
    VkPhysicalDeviceMemoryProperties has;
    VkMemoryRequirements needs;
    VkMemoryAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};

    if (CALL(CreateImage)(the_device, &info, NULL, image) != VK_SUCCESS)
        return 0;
    CALL(GetImageMemoryRequirements)(the_device, *image, &needs);
    ((PFN_vkGetPhysicalDeviceMemoryProperties)below(
        the_instance, "vkGetPhysicalDeviceMemoryProperties"))(the_physical, &has);
    allocate.allocationSize = needs.size;
    while (allocate.memoryTypeIndex < has.memoryTypeCount &&
           !(needs.memoryTypeBits & 1u << allocate.memoryTypeIndex))
        allocate.memoryTypeIndex++;
    return CALL(AllocateMemory)(the_device, &allocate, NULL, memory) == VK_SUCCESS &&
           CALL(BindImageMemory)(the_device, *image, *memory, 0) == VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL destroy_swapchain(VkDevice device, VkSwapchainKHR handle,
                                                    const VkAllocationCallbacks *allocator)
{
    deep_swapchain *it = (void *)(uintptr_t)handle;

    (void)allocator;
    for (int i = 0; it && i < IMAGES; i++) {
        CALL(DestroyImage)(device, it->images[i], NULL);
        CALL(FreeMemory)(device, it->memory[i], NULL);
    }
    free(it);
}

static VKAPI_ATTR VkResult VKAPI_CALL create_swapchain(VkDevice device,
                                                       const VkSwapchainCreateInfoKHR *info,
                                                       const VkAllocationCallbacks *allocator,
                                                       VkSwapchainKHR *swapchain)
{
    deep_swapchain *it = calloc(1, sizeof *it);

    for (int i = 0; i < IMAGES; i++)
        if (!it || !make_image(info, &it->images[i], &it->memory[i])) {
            destroy_swapchain(device, (VkSwapchainKHR)(uintptr_t)it, allocator);
            return VK_ERROR_OUT_OF_DEVICE_MEMORY;
        }
    *swapchain = (VkSwapchainKHR)(uintptr_t)it;
    return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL get_images(VkDevice device, VkSwapchainKHR handle,
                                                 uint32_t *count, VkImage *images)
{
    const deep_swapchain *it = (void *)(uintptr_t)handle;
    const uint32_t room = *count < IMAGES ? *count : IMAGES;

    (void)device;
    *count = images ? room : IMAGES;
    if (images)
        memcpy(images, it->images, room * sizeof *images);
    return images && room < IMAGES ? VK_INCOMPLETE : VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL acquire(VkDevice device, VkSwapchainKHR handle,
                                              uint64_t timeout_ns, VkSemaphore semaphore,
                                              VkFence fence, uint32_t *index)
{
    deep_swapchain *it = (void *)(uintptr_t)handle;
    const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                               .signalSemaphoreCount = semaphore != VK_NULL_HANDLE,
                               .pSignalSemaphores = &semaphore};

    (void)device, (void)timeout_ns;
    *index = it->next;
    it->next = (it->next + 1) % IMAGES;
    return CALL(QueueSubmit)(the_queue, 1, &info, fence);
}

static VKAPI_ATTR VkResult VKAPI_CALL present(VkQueue queue, const VkPresentInfoKHR *info)
{
    enum { MOST = 8 };
    VkPipelineStageFlags stages[MOST];
    const VkSubmitInfo waits = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                .waitSemaphoreCount = info->waitSemaphoreCount,
                                .pWaitSemaphores = info->pWaitSemaphores,
                                .pWaitDstStageMask = stages};

    if (info->waitSemaphoreCount > MOST)
        return VK_ERROR_OUT_OF_HOST_MEMORY;
    for (int i = 0; i < MOST; i++)
        stages[i] = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    return CALL(QueueSubmit)(queue, 1, &waits, VK_NULL_HANDLE);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get_device(VkDevice device, const char *name)
{
    static const struct {
        const char *name;
        PFN_vkVoidFunction function;
    } own[] = {
        {"vkGetDeviceProcAddr", (PFN_vkVoidFunction)get_device},
        {"vkCreateSwapchainKHR", (PFN_vkVoidFunction)create_swapchain},
        {"vkDestroySwapchainKHR", (PFN_vkVoidFunction)destroy_swapchain},
        {"vkGetSwapchainImagesKHR", (PFN_vkVoidFunction)get_images},
        {"vkAcquireNextImageKHR", (PFN_vkVoidFunction)acquire},
        {"vkQueuePresentKHR", (PFN_vkVoidFunction)present},
    };

    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(name, own[i].name))
            return own[i].function;
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
    if (!strcmp(name, "vkGetPhysicalDeviceSurfaceFormatsKHR"))
        return (PFN_vkVoidFunction)get_formats;
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
