/* Vulkan without math: one function table per session, memory and timelines that can be shared, the barriers around it.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * All functions come from the engine's vkGetInstanceProcAddr; nothing here links to a loader or keeps global state.
 */
#ifndef TANDEM_VK_H
#define TANDEM_VK_H

#include <vulkan/vulkan_core.h>

#include "interop/os/adapter.h"

typedef struct td_vk_desc {
    PFN_vkGetInstanceProcAddr get_instance_proc_addr;
    VkInstance instance;
    VkPhysicalDevice physical_device;
    VkDevice device;
    uint32_t api_version, queue_family, enabled_extension_count;
    const char *const *enabled_extensions;
    const VkPhysicalDeviceFeatures2 *enabled_features; /* NULL: timelineSemaphore, and no other */
    uint32_t further_family_count;
    const uint32_t *further_families; /* whose queues use buffers, too: these are CONCURRENT then */
} td_vk_desc;
enum { TD_VK_FAMILIES = 16 }; /* most of them together */

/* Why something cannot be used: a literal that goes on from its name, as "is not enabled"; NULL: it can. */
typedef struct td_vk_lacks {
    const char *memory_export;    /* td_opaque_memory_extension, for buffers */
    const char *semaphore_export; /* td_opaque_semaphore_extension, for timelines, where there are timelines */
    const char *memory_host;      /* VK_EXT_external_memory_host */
    const char *dma_buf;          /* VK_EXT_external_memory_dma_buf, with VK_KHR_external_memory_fd */
    const char *push_descriptor;  /* VK_KHR_push_descriptor */
    const char *calibrated;       /* VK_EXT_calibrated_timestamps, of the device's clock and CLOCK_MONOTONIC */
    const char *binary_import;    /* VK_NVX_binary_import */
    const char *timeline_feature; /* timelineSemaphore */
    const char *address_feature;  /* bufferDeviceAddress */
} td_vk_lacks;

/* What the engine's device can do, as it was enabled. */
typedef struct td_vk_caps {
    char name[256];
    uint8_t device_uuid[16], driver_uuid[16];
    td_adapter adapter;
    uint32_t driver_id, driver_version; /* driver_id: VkDriverId, 0 below Vulkan 1.2 */
    bool export_memory;      /* td_opaque_memory_extension, and such buffers are exportable */
    bool export_timeline;    /* td_opaque_semaphore_extension, and such timelines are exportable */
    bool import_host;        /* VK_EXT_external_memory_host */
    bool import_dma_buf;     /* VK_EXT_external_memory_dma_buf, with VK_KHR_external_memory_fd */
    bool timeline;           /* timelineSemaphore: without it td_vk_timeline_*() must not be called */
    bool push_descriptor;    /* VK_KHR_push_descriptor */
    bool read_without_format, write_without_format; /* shaderStorageImageReadWithoutFormat, _WriteWithoutFormat */
    bool calibrated;         /* VK_EXT_calibrated_timestamps */
    bool debug_utils;        /* names and labels */
    bool inline_kernels;     /* VK_NVX_binary_import, bufferDeviceAddress and timelines, on a family that computes */
    bool computes;           /* the queue family */
    uint64_t host_alignment; /* minImportedHostPointerAlignment */
    uint64_t max_storage_range;
    uint32_t max_descriptors; /* of storage buffers, of sampled and of storage images in a shader: the least of them */
    float timestamp_period;
    td_vk_lacks lacks;
} td_vk_caps;

typedef struct td_vk td_vk;

typedef enum td_vk_kind { TD_VK_INSTANCE_EXTENSION = 0, TD_VK_DEVICE_EXTENSION = 1, TD_VK_FEATURE = 2 } td_vk_kind;

/* Something that a driver may offer, and that has to be enabled. */
typedef struct td_vk_item {
    const char *name; /* of a feature its member's, as "timelineSemaphore" */
    td_vk_kind kind;
    VkStructureType feature_struct; /* FEATURE: which struct of the chain, its size, and where the VkBool32 is in it */
    uint32_t feature_offset, feature_struct_bytes;
    const char *extension; /* FEATURE: that has it below Vulkan 1.2, of which it is a part */
} td_vk_item;

/* Whether it is offered: of a physical device's, never where instance or physical_device is NULL. */
bool td_vk_offers(PFN_vkGetInstanceProcAddr gipa, VkInstance instance, VkPhysicalDevice physical_device,
                  const td_vk_item *item);

/* Name, UUID and adapter of a device that nobody has made yet; UNSUPPORTED below Vulkan 1.1. */
tandem_status td_vk_identify(PFN_vkGetInstanceProcAddr gipa, VkInstance instance, VkPhysicalDevice physical_device,
                             td_vk_caps *caps, char *why, size_t why_bytes);

/* Wraps the engine's device. ARG for null handles, UNSUPPORTED naming what is not enabled. */
tandem_status td_vk_open(const td_vk_desc *desc, const td_log *log, td_vk **out, char *why, size_t why_bytes);
void td_vk_close(td_vk **vk);

/* What a device that hangs may still use when its owner goes. */
typedef struct td_vk_left {
    struct td_vk_left *next;
    bool (*end)(struct td_vk_left *left); /* frees it, unless the device may use it even now: false */
} td_vk_left;
/* Keeps it until td_vk_close(), which then calls left->end once. Any thread. */
void td_vk_leave(td_vk *vk, td_vk_left *left);

const td_vk_caps *td_vk_get_caps(const td_vk *vk);

/* Shared memory with a VkBuffer over it. */
typedef struct td_vk_mem {
    VkBuffer buffer;
    uint64_t buffer_offset; /* of the mem in the buffer: not 0 where that is the engine's */
    bool engines_buffer;    /* the VkBuffer is the engine's */
    VkDeviceMemory memory;
    uint64_t allocation_bytes, offset, bytes;
    bool dedicated;
    bool owned; /* the VkDeviceMemory is ours to free */
    bool exported; /* td_vk_mem_export_fd() gave a descriptor of it */
    void *host; /* mapped address, or NULL */
    int memfd;  /* of td_vk_mem_create_host; 0 or less: none */
    uint64_t address; /* of the buffer on the device, once td_vk_address_memory() was called; else 0 */
} td_vk_mem;

/* Whether from now on every buffer over a mem has a device address (UNSUPPORTED unless caps.inline_kernels). Memory of
 * the engine's that is wrapped must then have been allocated with VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT. */
tandem_status td_vk_address_memory(td_vk *vk, bool on, char *why, size_t why_bytes);
/* Device-local memory that nobody else shares. */
tandem_status td_vk_mem_create_device(td_vk *vk, uint64_t bytes, VkBufferUsageFlags usage, td_vk_mem *out, char *why,
                                      size_t why_bytes);
/* Memory that the host has mapped and both sides see without flushing, in the host's memory where there is such. */
tandem_status td_vk_mem_create_mapped(td_vk *vk, uint64_t bytes, VkBufferUsageFlags usage, td_vk_mem *out, char *why,
                                      size_t why_bytes);
/* The same in the device's own memory, for what the host writes and the device reads often; UNSUPPORTED where the host
 * cannot map any. */
tandem_status td_vk_mem_create_near(td_vk *vk, uint64_t bytes, VkBufferUsageFlags usage, td_vk_mem *out, char *why,
                                    size_t why_bytes);

/* Device-local memory, exportable as td_opaque, with the External*CreateInfo on buffer and allocation; dedicated where
 * the driver asks. */
tandem_status td_vk_mem_create_export(td_vk *vk, uint64_t bytes, VkBufferUsageFlags usage, td_vk_mem *out, char *why,
                                      size_t why_bytes);
/* A sealed-size memfd, mapped and imported through VK_EXT_external_memory_host: host and device see the same bytes. */
tandem_status td_vk_mem_create_host(td_vk *vk, uint64_t bytes, VkBufferUsageFlags usage, td_vk_mem *out, char *why,
                                    size_t why_bytes);
/* The caller's host memory, page-aligned in address and size, imported the same way. */
tandem_status td_vk_mem_import_host(td_vk *vk, void *host, uint64_t bytes, VkBufferUsageFlags usage, td_vk_mem *out,
                                    char *why, size_t why_bytes);
/* A dma-buf of allocation_bytes, imported whole, with a buffer over a part of it; `fd` is duplicated. ARG for an fd that is no
 * dma-buf of such a size; UNSUPPORTED unless caps.import_dma_buf, and where the device takes no part of one. */
tandem_status td_vk_mem_import_dma_buf(td_vk *vk, int fd, uint64_t allocation_bytes, uint64_t offset, uint64_t bytes,
                                       VkBufferUsageFlags usage, td_vk_mem *out, char *why, size_t why_bytes);
/* A buffer over memory of the engine's; only the buffer is ours. None over dedicated memory, which takes no other. */
tandem_status td_vk_mem_wrap(td_vk *vk, VkDeviceMemory memory, uint64_t allocation_bytes, uint64_t offset,
                             uint64_t bytes, bool dedicated, td_vk_mem *out, char *why, size_t why_bytes);
/* The engine's own buffer over it, bound to the memory at 0, in which the mem is at `offset`: the one that dedicated memory
 * takes. Whatever is recorded for the mem needs its usage. */
tandem_status td_vk_mem_wrap_buffer(td_vk *vk, VkBuffer buffer, VkDeviceMemory memory, uint64_t allocation_bytes,
                                    uint64_t offset, uint64_t bytes, bool dedicated, td_vk_mem *out, char *why,
                                    size_t why_bytes);
/* A descriptor of this memory, which is what td_opaque says; the caller closes it. */
tandem_status td_vk_mem_export_fd(td_vk *vk, td_vk_mem *mem, int *fd, char *why, size_t why_bytes);
/* What is left to a device that may use it: its memory may be freed by others, whatever was exported of it. */
void td_vk_mem_forget(td_vk *vk, td_vk_mem *mem);
/* Undoes any of these; accepts half-made ones; zeroes *mem. */
void td_vk_mem_free(td_vk *vk, td_vk_mem *mem);

/* Timelines. */
tandem_status td_vk_timeline_create(td_vk *vk, uint64_t initial, bool exportable, VkSemaphore *out, char *why,
                                    size_t why_bytes);
tandem_status td_vk_timeline_export_fd(td_vk *vk, VkSemaphore semaphore, int *fd, char *why, size_t why_bytes);
/* A semaphore of the engine's that was exported is not used here any more: it may be destroyed. */
void td_vk_timeline_forget(td_vk *vk, VkSemaphore semaphore);
void td_vk_timeline_destroy(td_vk *vk, VkSemaphore *semaphore);
/* OK, LOST on VK_ERROR_DEVICE_LOST, DEVICE on any other error. */
tandem_status td_vk_timeline_value(td_vk *vk, VkSemaphore semaphore, uint64_t *value);
/* From the host: ARG unless the value rises. */
tandem_status td_vk_timeline_signal(td_vk *vk, VkSemaphore semaphore, uint64_t value);
/* Sleeps in vkWaitSemaphores: only for values that Vulkan or the host signals. BUSY on timeout. */
tandem_status td_vk_timeline_wait(td_vk *vk, VkSemaphore semaphore, uint64_t value, uint64_t timeout_ns);

/* As far as the device's largest step takes it toward `value`, if that is above the counter. */
tandem_status td_vk_timeline_release(td_vk *vk, VkSemaphore semaphore, uint64_t value);

/* A queue of the engine's, and what stands around each submit to it (or NULL). */
typedef struct td_vk_queue {
    VkQueue queue;
    void (*lock)(void *user);
    void (*unlock)(void *user);
    void *user;
} td_vk_queue;
/* A mark behind all that was submitted to a queue; wait: BUSY while the queue has not come to it. Unmark once it has, or
 * never. */
tandem_status td_vk_queue_mark(td_vk *vk, const td_vk_queue *queue, VkFence *mark, char *why, size_t why_bytes);
tandem_status td_vk_queue_wait(td_vk *vk, VkFence mark, uint64_t timeout_ns, char *why, size_t why_bytes);
void td_vk_queue_unmark(td_vk *vk, VkFence *mark);
/* Commands of the engine's that were never seen to end may use what td_vk_close() would free. */
void td_vk_keep(td_vk *vk);

/* Who uses a mem between release and acquire. */
typedef enum td_vk_peer {
    TD_VK_PEER_HOST = 0,
    TD_VK_PEER_EXTERNAL = 1, /* another API: VK_QUEUE_FAMILY_EXTERNAL */
    /* Kernels in command buffers of this device: COMPUTE_SHADER, in the same queue family. They end with a barrier for
     * reads and writes of that stage, or with a semaphore: acquiring for those records nothing. */
    TD_VK_PEER_COMPUTE = 2
} td_vk_peer;

/* Barriers over a whole mem. The submit with the acquire waits for its point at dst_stage or at ALL_COMMANDS. No stage:
 * nothing before, everything after. No-ops on a mem without a buffer. */
void td_vk_record_release(td_vk *vk, VkCommandBuffer commands, const td_vk_mem *mem, td_vk_peer peer,
                          VkPipelineStageFlags src_stage, VkAccessFlags src_access);
void td_vk_record_acquire(td_vk *vk, VkCommandBuffer commands, const td_vk_mem *mem, td_vk_peer peer,
                          VkPipelineStageFlags dst_stage, VkAccessFlags dst_access);

/* The same where nothing is shared: the bytes of a mem go to the host's staging memory, and come back. */
void td_vk_record_stage_out(td_vk *vk, VkCommandBuffer commands, const td_vk_mem *mem, const td_vk_mem *staging,
                            VkPipelineStageFlags src_stage, VkAccessFlags src_access);
void td_vk_record_stage_in(td_vk *vk, VkCommandBuffer commands, const td_vk_mem *mem, const td_vk_mem *staging,
                           VkPipelineStageFlags dst_stage, VkAccessFlags dst_access);

/* debug_utils, no-ops without it. */
void td_vk_name(td_vk *vk, VkObjectType type, uint64_t handle, const char *name);
void td_vk_label_begin(td_vk *vk, VkCommandBuffer commands, const char *name);
void td_vk_label_end(td_vk *vk, VkCommandBuffer commands);

/* The device's clock now and CLOCK_MONOTONIC now, in ns; UNSUPPORTED without calibrated timestamps. */
tandem_status td_vk_calibrate(td_vk *vk, uint64_t *device_ns, uint64_t *monotonic_ns);

/* The pack and unpack dispatch; fields as in tandem/vulkan.h, already checked. `first_element` is the view's offset in
 * elements. */
typedef struct td_vk_pack {
    uint32_t image_count;
    VkImageView images[4];
    VkImageLayout layout;
    VkFormat format;
    uint32_t width, height, tile_width, tile_height, shift_x, shift_y, halo, channels, view_channels, tiles_x, tiles_y;
    uint32_t dtype; /* F16 or F32 */
    uint64_t first_element;
    int64_t stride_batch, stride_row;
} td_vk_pack;
tandem_status td_vk_record_pack(td_vk *vk, VkCommandBuffer commands, const td_vk_mem *mem, const td_vk_pack *pack,
                                char *why, size_t why_bytes);
tandem_status td_vk_record_unpack(td_vk *vk, VkCommandBuffer commands, const td_vk_mem *mem, const td_vk_pack *pack,
                                  char *why, size_t why_bytes);

/* 1 to TD_VK_MAX_IMAGES images in the formats of G-buffers and swapchains, to tensors and back; fields as in tandem/vulkan.h. */
typedef struct td_vk_image {
    VkImage image;
    VkImageView view;
    VkFormat format;
    VkImageUsageFlags usage;
    VkExtent2D image_extent, extent;
    uint32_t layer;
    VkImageLayout layout_before, layout_after;
    VkPipelineStageFlags src_stage, dst_stage;
    VkAccessFlags src_access, dst_access;
    uint32_t ownership, src_family, dst_family;
    uint32_t recorded_family; /* 1 + that of the queue which gets the commands; 0: td_vk_desc.queue_family */
    uint32_t channels, encoding, transfer;
    float exposure;
    const td_vk_mem *mem;
    uint32_t dtype; /* of the tensor */
    uint64_t offset_bytes;
    int64_t stride_line, stride_texel; /* stride_head and stride_row of its view */
} td_vk_image;
enum { TD_VK_MAX_IMAGES = 8, TD_VK_ACQUIRE = 1, TD_VK_RELEASE = 2 };
tandem_status td_vk_record_pack_images(td_vk *vk, VkCommandBuffer commands, const td_vk_image *images, uint32_t count,
                                       char *why, size_t why_bytes);
tandem_status td_vk_record_unpack_images(td_vk *vk, VkCommandBuffer commands, const td_vk_image *images, uint32_t count,
                                         char *why, size_t why_bytes);

#endif
