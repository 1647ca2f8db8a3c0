/* A Vulkan device for tests: headless, opened at run time, watched by the validation layer.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TEST_VK_UTIL_H
#define TANDEM_TEST_VK_UTIL_H

#include <pthread.h>

#include "engine_plugin/setup/setup.h"
#include "interop/os/clock.h"
#include "interop/os/descriptor.h"
#include "interop/vk/vk.h"

#define VKU_TIMEOUT_NS 20000000000ull

#define VKU_INSTANCE_FUNCTIONS(X)                                                                                      \
    X(GetPhysicalDeviceFeatures)                                                                                       \
    X(GetPhysicalDeviceProperties)                                                                                     \
    X(GetPhysicalDeviceFormatProperties)                                                                               \
    X(GetPhysicalDeviceMemoryProperties)                                                                               \
    X(CreateDevice)                                                                                                    \
    X(GetDeviceProcAddr)

#define VKU_DEVICE_FUNCTIONS(X)                                                                                        \
    X(DestroyDevice)                                                                                                   \
    X(DeviceWaitIdle)                                                                                                  \
    X(QueueSubmit)                                                                                                     \
    X(CreateCommandPool)                                                                                               \
    X(DestroyCommandPool)                                                                                              \
    X(AllocateCommandBuffers)                                                                                          \
    X(FreeCommandBuffers)                                                                                              \
    X(BeginCommandBuffer)                                                                                              \
    X(EndCommandBuffer)                                                                                                \
    X(CreateFence)                                                                                                     \
    X(DestroyFence)                                                                                                    \
    X(WaitForFences)                                                                                                   \
    X(CreateBuffer)                                                                                                    \
    X(DestroyBuffer)                                                                                                   \
    X(GetBufferMemoryRequirements)                                                                                     \
    X(BindBufferMemory)                                                                                                \
    X(CreateImage)                                                                                                     \
    X(DestroyImage)                                                                                                    \
    X(GetImageMemoryRequirements)                                                                                      \
    X(BindImageMemory)                                                                                                 \
    X(CreateImageView)                                                                                                 \
    X(DestroyImageView)                                                                                                \
    X(AllocateMemory)                                                                                                  \
    X(FreeMemory)                                                                                                      \
    X(MapMemory)                                                                                                       \
    X(UnmapMemory)                                                                                                     \
    X(CreateSemaphore)                                                                                                 \
    X(DestroySemaphore)                                                                                                \
    X(CmdPipelineBarrier)                                                                                              \
    X(CmdCopyBuffer)                                                                                                   \
    X(CmdFillBuffer)                                                                                                   \
    X(CmdCopyBufferToImage)                                                                                            \
    X(CmdCopyImageToBuffer)

typedef struct vku_options {
    bool validation;        /* with synchronisation validation, where the layer is installed */
    uint32_t api_version;   /* 0: 1.2 */
    const char *without[8]; /* requirements that are left disabled */
    PFN_vkGetInstanceProcAddr (*wrap)(PFN_vkGetInstanceProcAddr gipa); /* NULL, or what stands before all functions */
} vku_options;

typedef struct vku {
    td_library *library;
    PFN_vkGetInstanceProcAddr gipa;
    VkInstance instance;
    VkPhysicalDevice physical_device;
    VkDevice device;
    VkQueue queue;
    uint32_t queue_family, api_version;
    char name[256];
    integration_enabled enabled; /* its chain points into it: a vku stays where it is */
    VkPhysicalDeviceMemoryProperties memory;
    VkCommandPool pool;

    bool validated; /* the layer is there */
    bool exports_timelines;
    bool quiet;     /* errors are expected: count them, print nothing */
    VkDebugUtilsMessengerEXT messenger;
    pthread_mutex_t lock;
    unsigned false_alarms; /* of the layer's about exported timelines: no errors */
    unsigned errors;       /* this and the next outlive vku_close() */
    char last_text[4096];

#define X(name) PFN_vk##name name;
    VKU_INSTANCE_FUNCTIONS(X)
    VKU_DEVICE_FUNCTIONS(X)
#undef X
} vku;

typedef enum vku_found { VKU_OK = 0, VKU_NO_VULKAN = 77, VKU_FAILED = 1 } vku_found;

/* NO_VULKAN: no loader or no device on this machine; FAILED, with a line on stderr, is a fault. options may be NULL. */
vku_found vku_open(vku *v, const vku_options *options);
/* Of a case of cmocka's, which fails where that does; false: there is no Vulkan, nor is a GPU expected. */
bool vku_try(vku *v, const vku_options *options);
void vku_close(vku *v);

/* For td_vk_open(), and for a session; they point into *v. */
td_vk_desc vku_desc(const vku *v);
tandem_vulkan vku_engine(const vku *v);

typedef struct vku_point {
    VkSemaphore semaphore; /* VK_NULL_HANDLE: none */
    uint64_t value;
} vku_point;

VkCommandBuffer vku_begin(vku *v);
/* Ends and submits; the wait is at ALL_COMMANDS. commands may be VK_NULL_HANDLE. */
VkResult vku_submit(vku *v, VkCommandBuffer commands, vku_point wait, vku_point signal, VkFence fence);
/* Ends, submits, waits at most VKU_TIMEOUT_NS, frees the command buffer. */
VkResult vku_run(vku *v, VkCommandBuffer commands);

/* Everything before, against everything after. */
void vku_full_barrier(vku *v, VkCommandBuffer commands);

/* A host-visible, coherent buffer, mapped. */
typedef struct vku_buffer {
    VkBuffer buffer;
    VkDeviceMemory memory;
    void *host;
    VkDeviceSize bytes;
} vku_buffer;
VkResult vku_buffer_create(vku *v, VkDeviceSize bytes, VkBufferUsageFlags usage, vku_buffer *out);
void vku_buffer_destroy(vku *v, vku_buffer *buffer);

/* A 2D image of one level, optimally tiled; of an array, one layer of it. */
typedef struct vku_image {
    VkImage image;
    VkImageView view; /* of the layer; of a depth format its depth */
    VkDeviceMemory memory;
    VkFormat format;
    VkImageLayout layout;
    uint32_t width, height, texel_bytes, layer;
} vku_image;
VkResult vku_image_create(vku *v, VkFormat format, uint32_t width, uint32_t height, VkImageUsageFlags usage,
                          vku_image *out);
VkResult vku_image_create_layer(vku *v, VkFormat format, uint32_t width, uint32_t height, uint32_t layers, uint32_t layer,
                                VkImageUsageFlags usage, vku_image *out);
void vku_image_destroy(vku *v, vku_image *image);
/* Tightly packed texels; the image is in `layout` afterwards. */
VkResult vku_image_upload(vku *v, vku_image *image, const void *texels, VkImageLayout layout);
VkResult vku_image_readback(vku *v, vku_image *image, void *texels);
void vku_image_barrier(vku *v, VkCommandBuffer commands, vku_image *image, VkImageLayout layout);

/* Of this process. */
int vku_open_fds(void);

#endif
