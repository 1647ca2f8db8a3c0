/* VK_LAYER_TANDEM_effect: an implicit Vulkan layer that runs an effect of Tandem's on what a
 * program presents.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     chain.c      what the loader asks: which functions are ours; instances and devices as they come
 *     registry.c   those that there are
 *     enable.c     what a device is made with: what the program asks for, and what Tandem can use
 *     present.c    swapchains: each presented image is copied, changed and copied back
 *     effect.c     what changes it: a session, memory, jobs
 *     draw.c       Vulkan's part of that: images, dispatches, the HUD; font.c
 *     control.c    the socket through which `tandem layer` asks and sets; settings.c
 *
 * Whatever goes wrong in here, the program gets what it would have got without the layer. What the
 * layer calls is what is below it in the loader's chain, never the loader: what is above is not to
 * see it. See README.md.
 */
#ifndef TANDEM_LAYER_H
#define TANDEM_LAYER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <vulkan/vulkan_core.h>
#include <vulkan/vk_layer.h>

#include "demo/integrate.h"
#include "interop/os/thread.h"

#define LAYER_NAME "VK_LAYER_TANDEM_effect"

enum { LAYER_WHY_BYTES = 256 };

/* Of an instance; then of a device, which have them all; and those of extensions. */
/* clang-format off */
#define LAYER_INSTANCE_FUNCTIONS(X)                                                                \
    X(DestroyInstance) X(EnumerateDeviceExtensionProperties) X(GetPhysicalDeviceProperties)        \
    X(GetPhysicalDeviceFeatures) X(GetPhysicalDeviceQueueFamilyProperties)                         \
    X(GetPhysicalDeviceMemoryProperties) X(GetPhysicalDeviceFormatProperties)                      \
    X(GetPhysicalDeviceImageFormatProperties)
#define LAYER_INSTANCE_EXTRAS(X) X(GetPhysicalDeviceSurfaceCapabilitiesKHR)
#define LAYER_DEVICE_FUNCTIONS(X)                                                                  \
    X(DestroyDevice) X(GetDeviceQueue) X(QueueSubmit) X(QueueWaitIdle) X(CreateFence)              \
    X(DestroyFence) X(WaitForFences) X(ResetFences) X(CreateSemaphore) X(DestroySemaphore)         \
    X(CreateCommandPool) X(DestroyCommandPool) X(AllocateCommandBuffers) X(BeginCommandBuffer)     \
    X(EndCommandBuffer) X(CreateImage) X(DestroyImage) X(GetImageMemoryRequirements)               \
    X(BindImageMemory) X(AllocateMemory) X(FreeMemory) X(CreateImageView) X(DestroyImageView)      \
    X(CreateBuffer) X(DestroyBuffer) X(GetBufferMemoryRequirements) X(BindBufferMemory)            \
    X(MapMemory) X(CreateQueryPool) X(DestroyQueryPool) X(GetQueryPoolResults)                     \
    X(CreateShaderModule) X(DestroyShaderModule) X(CreateDescriptorSetLayout)                      \
    X(DestroyDescriptorSetLayout) X(CreatePipelineLayout) X(DestroyPipelineLayout)                 \
    X(CreateComputePipelines) X(DestroyPipeline) X(CmdPipelineBarrier) X(CmdCopyImage)             \
    X(CmdBindPipeline) X(CmdDispatch) X(CmdPushConstants) X(CmdFillBuffer)                         \
    X(CmdResetQueryPool) X(CmdWriteTimestamp)
#define LAYER_DEVICE_EXTRAS(X)                                                                     \
    X(GetDeviceQueue2) X(CreateSwapchainKHR) X(DestroySwapchainKHR) X(GetSwapchainImagesKHR)       \
    X(QueuePresentKHR) X(CmdPushDescriptorSetKHR)
/* clang-format on */

#define LAYER_DECLARE(name) PFN_vk##name name;

typedef struct layer_instance_table {
    LAYER_INSTANCE_FUNCTIONS(LAYER_DECLARE)
    LAYER_INSTANCE_EXTRAS(LAYER_DECLARE)
} layer_instance_table;

typedef struct layer_device_table {
    LAYER_DEVICE_FUNCTIONS(LAYER_DECLARE)
    LAYER_DEVICE_EXTRAS(LAYER_DECLARE)
} layer_device_table;

typedef struct layer_instance {
    struct layer_instance *next;
    void *key; /* the loader's, the same for all that belongs to an instance */
    VkInstance handle;
    PFN_vkGetInstanceProcAddr below;
    layer_instance_table fn;
    uint32_t api_version; /* of VkApplicationInfo, as it was made with in the end */
} layer_instance;

typedef struct layer_queue {
    VkQueue handle;
    uint32_t family;
} layer_queue;

typedef struct layer_swapchain layer_swapchain; /* present.c */
typedef struct layer_station layer_station;     /* effect.h */

typedef struct layer_device {
    struct layer_device *next;
    void *key;
    VkDevice handle;
    VkPhysicalDevice physical;
    layer_instance *instance;
    PFN_vkGetDeviceProcAddr below;
    PFN_vkSetDeviceLoaderData set_loader_data;
    layer_device_table fn;
    char unable[LAYER_WHY_BYTES]; /* why nothing is done for it; "": there is no reason */

    /* What it was made with, for the session. */
    char **extensions;
    uint32_t extension_count;
    VkPhysicalDeviceFeatures2 features;
    VkPhysicalDeviceTimelineSemaphoreFeatures timeline;
    VkPhysicalDeviceBufferDeviceAddressFeatures address;

    pthread_mutex_t lock; /* of all below; no call that may wait for the program is made with it */
    layer_queue *queues;
    uint32_t queue_count;
    layer_swapchain *swapchains;
    layer_station *station;
    struct layer_compute *hud_shader; /* made once: draw.h */
    VkSemaphore *spare;               /* semaphores that nothing signals or waits for any more */
    uint32_t spare_count;
} layer_device;

/* What is at the beginning of each handle that can be called with, the same for all that belongs to
 * an instance or a device. */
void *layer_key_of(const void *dispatchable);
/* The instance that an instance or a physical device belongs to, the device that a device or a
 * queue does; NULL for none of ours. Threads: any; who calls keeps it alive, as Vulkan says. */
layer_instance *layer_instance_of(const void *dispatchable);
layer_device *layer_device_of(const void *dispatchable);
void layer_add_instance(layer_instance *it);
void layer_add_device(layer_device *it);
layer_instance *layer_take_instance(VkInstance handle);
void layer_take_device(VkDevice handle);

/* For the session: the functions below the layer. Command buffers that it allocates are made known
 * to the loader. */
PFN_vkVoidFunction VKAPI_CALL layer_below(VkInstance instance, const char *name);

#endif
