/* Tandem on a Vulkan device: what to enable, whose device it is, and what to record around a job.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A frame, on the engine's side:
 *     tandem_record_pack()      image -> token views
 *     tandem_record_release()   hand the mems over
 *     vkQueueSubmit             signals {engine's timeline, n}
 *     tandem_timeline_submitted {engine's timeline, n} is on its way
 *     tandem_submit             waits {engine's timeline, n}, signals {session's timeline, n}
 *     vkQueueSubmit             waits {session's timeline, n}
 *       tandem_record_acquire() take the mems back
 *       tandem_record_unpack()  token view -> image
 *
 * On the inline rung all of it fits into one command buffer, and the GPU changes nothing over:
 *     tandem_record_pack()      image -> token views
 *     tandem_record()           the job itself
 *     tandem_record_unpack()    token view -> image
 *     vkQueueSubmit             as ever
 */
#ifndef TANDEM_VULKAN_H
#define TANDEM_VULKAN_H

#include <vulkan/vulkan_core.h>

#include "tandem/tandem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The engine's device. Every handle stays the engine's and must outlive the session. */
struct tandem_vulkan {
    uint32_t struct_bytes;
    uint32_t api_version; /* VkApplicationInfo.apiVersion; at least 1.1 */
    PFN_vkGetInstanceProcAddr get_instance_proc_addr;
    VkInstance instance;
    VkPhysicalDevice physical_device;
    VkDevice device;
    uint32_t queue_family; /* the family whose queues use the shared mems */
    uint32_t enabled_extension_count;
    const char *const *enabled_extensions; /* of the device, as given to vkCreateDevice */
    /* As given to vkCreateDevice, chain included; NULL: timelineSemaphore, and no other. */
    const VkPhysicalDeviceFeatures2 *enabled_features;
    /* Of the family; else VK_NULL_HANDLE, and no inline rung: that tries itself, and submits, there. On every rung the end
     * of a timeline or of the session asks it, by a submit of a fence alone, whether it is past what uses them. */
    VkQueue queue;
    /* Around each submit of the session's to the queue, from any thread, within other calls: nobody who holds this lock
     * may call the session. NULL, both: nobody else submits to the queue during the session's calls and threads. */
    void (*lock_queue)(void *user); /* from any thread, the session's own included; no tandem call may be made within */
    void (*unlock_queue)(void *user);
    void *user;
    /* In place of those two, where they are set: told which queue, for an engine with a lock for each. Of `queue`, that is
     * queue_family and queue_index, its number there. */
    void (*lock_queue2)(void *user, uint32_t family, uint32_t index);
    void (*unlock_queue2)(void *user, uint32_t family, uint32_t index);
    uint32_t queue_index;
    /* Other families whose queues use the shared mems, as of asynchronous compute or of transfers; at most 15, queue_family not
     * among them. The session's VkBuffers are then CONCURRENT among all, and tandem_record_release() and _acquire() may be
     * recorded for a queue of any; else they are EXCLUSIVE, and for queue_family alone. An
     * engine's own, of tandem_mem_desc.vulkan_buffer, has to be as these are. */
    uint32_t further_family_count;
    const uint32_t *further_families;
};

typedef enum tandem_requirement_kind {
    TANDEM_REQUIREMENT_INSTANCE_EXTENSION = 0,
    TANDEM_REQUIREMENT_DEVICE_EXTENSION = 1,
    TANDEM_REQUIREMENT_FEATURE = 2
} tandem_requirement_kind;

/* One thing to enable. `required`: without it there is no session on this device; else `buys` says what it brings. */
typedef struct tandem_requirement {
    uint32_t struct_bytes; /* the caller sets that of list[0]; a forgotten one is ARG */
    uint32_t kind;         /* tandem_requirement_kind */
    const char *name; /* of the extension, or of the feature's member, as "timelineSemaphore" */
    uint32_t required, available;
    VkStructureType feature_struct; /* FEATURE: which struct of the chain, and where the VkBool32 is in it */
    uint32_t feature_offset;
    const char *buys;
    uint32_t feature_struct_bytes; /* FEATURE: sizeof that struct, for an engine that makes its chain from this list; one
                                      that chains VkPhysicalDeviceVulkan12Features goes by `name`: see INTEGRATION.md */
    uint32_t reserved;             /* 0 */
} tandem_requirement;

/* Asks before vkCreateInstance (instance and physical_device NULL: instance extensions only) and before vkCreateDevice
 * what to enable. Fills at most *count entries and sets *count to how many there are; list may be NULL.
 * Returns: OK; ARG; BUSY if *count was too small. What is wrong says tandem_error_text() without a session.
 * Owner: the caller's array; names are literals.
 * Threads: any.
 * Blocks: never. */
TANDEM_API tandem_status tandem_vulkan_requirements(PFN_vkGetInstanceProcAddr get_instance_proc_addr,
                                                    VkInstance instance, VkPhysicalDevice physical_device,
                                                    uint32_t *count, tandem_requirement *list);

/* Who would compute for a Vulkan device, and on which rungs, if all were enabled that tandem_vulkan_requirements() lists as
 * available and a queue of a family that computes were given: before vkCreateDevice, to choose among devices.
 * Returns: OK; ARG; UNSUPPORTED for a device below Vulkan 1.1. What is wrong says tandem_error_text() without a session.
 * Owner: the caller's struct is filled.
 * Threads: any.
 * Blocks: as tandem_devices(). */
TANDEM_API tandem_status tandem_vulkan_device(PFN_vkGetInstanceProcAddr get_instance_proc_addr, VkInstance instance,
                                              VkPhysicalDevice physical_device, tandem_device *device);

/* A mem as Vulkan sees it. */
typedef struct tandem_mem_vulkan {
    uint32_t struct_bytes; /* set by the caller */
    uint32_t reserved;
    VkBuffer buffer; /* the session's, covers the mem from offset 0; VK_NULL_HANDLE where the engine gave its own, and over
                        its dedicated memory, which takes no other */
    VkDeviceMemory memory;
    VkDeviceSize offset; /* of the mem in memory */
    VkDeviceSize bytes;
} tandem_mem_vulkan;

/* The VkBuffer and memory behind a mem.
 * Returns: OK; ARG; UNSUPPORTED on a session without Vulkan, for FD but dma-bufs (the engine has the VkDeviceMemory), for memory
 *          of CUDA's, for HOST on the copy rung, and for models.
 * Owner: the mem, memory of VULKAN apart, which stays the engine's; the engine must not destroy what is the mem's.
 * Threads: any.
 * Blocks: never. */
TANDEM_API tandem_status tandem_mem_get_vulkan(tandem_session *session, tandem_mem mem, tandem_mem_vulkan *out);

/* The VkSemaphore behind a timeline, for the engine's submits.
 * Returns: OK; ARG; UNSUPPORTED on a session without Vulkan, and on a device without timelineSemaphore: there the engine
 *          calls tandem_timeline_signal() when its fence says so, and waits with tandem_point_wait() or tandem_point_fd()
 *          before it submits what needs the result.
 * Owner: the timeline.
 * Threads: any.
 * Blocks: never. */
TANDEM_API tandem_status tandem_timeline_get_vulkan(tandem_session *session, tandem_timeline timeline,
                                                    VkSemaphore *out);

/* Records the release of a mem to the session, after the engine's last use (src) and before its submit signals the wait
 * point. On the copy rung, and where the CPU computes on memory of VULKAN, the whole mem is copied to the host's memory by this:
 * not within a render pass. Forgotten there, a job sees none of the engine's bytes: one line of log says so, once a mem.
 * Returns: OK; ARG; UNSUPPORTED for a mem without a VkBuffer (its engine records the barrier on its own buffer).
 * Owner: nothing; the command buffer stays the engine's.
 * Threads: as the command buffer's.
 * Blocks: never. */
TANDEM_API tandem_status tandem_record_release(tandem_session *session, VkCommandBuffer commands, tandem_mem mem,
                                               VkPipelineStageFlags src_stage, VkAccessFlags src_access);

/* Records the acquisition of a mem from the session, before the engine's next use (dst), in a submit that waits for the
 * job's signal point. Where a release copies, the whole mem is copied back by this, also what no job wrote: release each mem
 * that you acquire. Forgotten there, what jobs write reaches nobody: that is said once, too. On the inline rung this records nothing for COMPUTE_SHADER with SHADER_READ and SHADER_WRITE: jobs end with
 * that barrier.
 * Returns: OK; ARG; UNSUPPORTED as for release.
 * Owner: nothing.
 * Threads: as the command buffer's.
 * Blocks: never. */
TANDEM_API tandem_status tandem_record_acquire(tandem_session *session, VkCommandBuffer commands, tandem_mem mem,
                                               VkPipelineStageFlags dst_stage, VkAccessFlags dst_access);

/* Records a job into the engine's own command buffer (inline rung only; outside render passes; a queue of the session's
 * family with compute). The job has no points and no deadline: what the engine's submit waits for and signals holds for it
 * too. tandem_poll() tells when it has run, once the commands were submitted; they may be submitted again, or never
 * (tandem_cancel() then gives back what it holds). The buffer may be primary or secondary (without
 * RENDER_PASS_CONTINUE), and begun with any other usage: ONE_TIME_SUBMIT, none to run it again once it is over, or
 * SIMULTANEOUS_USE to have it pending several times on the one queue, where the runs come one after the other. Again, the
 * job reads what its mems hold by then, and its report stays that of the first run. Commands that have run, and do not run
 * once more while 255 further jobs are recorded, must be recorded anew. Reads and writes its mems in COMPUTE_SHADER with
 * SHADER_READ and SHADER_WRITE, and ends with a barrier for such accesses behind it; all others are the caller's, and
 * tandem_record_release() and _acquire() record the right ones. (One too many right behind a job costs 2 us on an H200: it
 * waits for what else the job ends with, its time stamp.)
 * Returns: OK; ARG, also for a job with a point or a deadline; UNSUPPORTED on another rung, or for a plan that does not
 *          fit into a command buffer; NOMEM; BUSY as tandem_submit(), or with 256 jobs recorded that are yet to run or run
 *          again and again; DEVICE or LOST. Nothing is recorded on failure.
 * Owner: the job is copied; its mems must live until the commands have run for the last time.
 * Threads: as the command buffer's; jobs recorded by several threads must be submitted to one queue.
 * Blocks: never. */
TANDEM_API tandem_status tandem_record(tandem_session *session, const tandem_job *job, VkCommandBuffer commands,
                                       tandem_ticket *ticket);

/* Between images and token views. The image is cut into tiles, each a batch of the view: tile (tx, ty) starts at pixel
 * (tx * tile_width - shift_x, ty * tile_height - shift_y) and is batch ty * tiles_x + tx, pixel (x, y) of it row
 * y * (tile_width + 2 * halo) + x of head 0, counted from the halo's corner. Pixels outside the image repeat its edge
 * when packed, and are not written when unpacked. */
typedef struct tandem_pack {
    uint32_t struct_bytes;
    uint32_t image_count;     /* pack: 1 to 4, their channels one after the other; unpack: 1 */
    VkImageView images[4];    /* pack: any float or normalised format, usage SAMPLED; unpack: STORAGE */
    VkImageLayout layout;     /* pack: GENERAL or SHADER_READ_ONLY_OPTIMAL; unpack: GENERAL */
    VkFormat format;          /* unpack: of the image, R16G16B16A16_SFLOAT or R32G32B32A32_SFLOAT */
    uint32_t width, height;   /* of the images */
    uint32_t tile_width, tile_height;
    uint32_t shift_x, shift_y; /* less than the tile */
    uint32_t halo;             /* pixels around each tile that belong to it as well; unpack: 0 */
    uint32_t channels;         /* read or written, 4 at most an image */
    uint32_t view_channels;    /* pack: the view's row is this long; channels beyond are written as 0 */
    tandem_view view;          /* f16 or f32; even strides and offset for f16 */
} tandem_pack;

/* How many tiles: their product is the view's batch.
 * Returns: OK; ARG, with the text in the session's error text.
 * Owner: nothing.
 * Threads: any.
 * Blocks: never. */
TANDEM_API tandem_status tandem_pack_tiles(tandem_session *session, const tandem_pack *pack, uint32_t *tiles_x,
                                           uint32_t *tiles_y);

/* Records images -> token view: one compute dispatch, binds its own pipeline and pushes its own descriptors. Reads and
 * writes in COMPUTE_SHADER; barriers around it are the caller's.
 * Returns: OK; ARG; UNSUPPORTED without VK_KHR_push_descriptor.
 * Owner: nothing; the image views must live until the commands have run.
 * Threads: as the command buffer's.
 * Blocks: the first time, to build the pipeline. */
TANDEM_API tandem_status tandem_record_pack(tandem_session *session, VkCommandBuffer commands, const tandem_pack *pack);

/* Records token view -> image, the other way round; channels beyond `channels` are written as 1.
 * Returns: OK; ARG; UNSUPPORTED without VK_KHR_push_descriptor.
 * Owner: nothing.
 * Threads: as the command buffer's.
 * Blocks: the first time, to build the pipeline. */
TANDEM_API tandem_status tandem_record_unpack(tandem_session *session, VkCommandBuffer commands,
                                              const tandem_pack *unpack);

/* What the first three channels of a tensor are in the image. */
typedef enum tandem_image_encoding {
    TANDEM_IMAGE_PLAIN = 0,  /* themselves */
    TANDEM_IMAGE_NORMAL = 1, /* x, y, z; in a normalised format 0.5 * n + 0.5, as that has nothing below 0 */
    /* x, y of the octahedron |x| + |y| + |z| = 1, with its half of z < 0 folded outwards, in an image's first two components;
     * in a normalised format 0.5 * p + 0.5. Packed to x, y, z of length 1; unpacked from any length but 0, which is +z. */
    TANDEM_IMAGE_OCTAHEDRAL = 2
} tandem_image_encoding;

/* How an image's r, g and b stand for light: packed to linear ones, unpacked from them. */
typedef enum tandem_image_transfer {
    TANDEM_TRANSFER_LINEAR = 0,
    TANDEM_TRANSFER_SRGB = 1, /* IEC 61966-2-1, for a _UNORM view of what is shown as sRGB; a _SRGB view is packed as LINEAR */
    TANDEM_TRANSFER_PQ = 2    /* SMPTE ST 2084, as in an HDR10 swapchain; a linear 1 is 10000 cd/m2 */
} tandem_image_transfer;

/* Of images with VK_SHARING_MODE_EXCLUSIVE that another queue family uses, or another API: bits. */
typedef enum tandem_image_ownership { TANDEM_IMAGE_ACQUIRE = 1, TANDEM_IMAGE_RELEASE = 2 } tandem_image_ownership;

/* One layer of a 2D image, level 0, and a tensor [1, height, width, channels], F16 or F32: texel (x, y) is row x of head y, in
 * any strides, up to 32767 elements from row to row. So several images may share a tensor's rows, each with channels of its
 * own. An F16 tensor may end in the middle of 4 bytes; its mem holds them all. The formats, and what of each is exact, are in
 * INTEGRATION.md.
 *
 * The shader uses the image in layout_before if it can (GENERAL; to read SAMPLED also SHADER_READ_ONLY_OPTIMAL, and of depth
 * formats DEPTH_STENCIL_READ_ONLY_OPTIMAL and DEPTH_READ_ONLY_STENCIL_ATTACHMENT_OPTIMAL), else in layout_after if it can there,
 * else in SHADER_READ_ONLY_OPTIMAL for SAMPLED and GENERAL for STORAGE. A barrier stands before that where this is not
 * layout_before, where there is a src_stage and with ACQUIRE; behind it where this is not layout_after, where there is a
 * dst_stage and with RELEASE. None of these: the caller's own barriers do. */
typedef struct tandem_pack_image {
    uint32_t struct_bytes;
    VkFormat format;  /* of the view */
    VkImage image;    /* for barriers alone, over this layer with all its aspects; VK_NULL_HANDLE where there are none */
    VkImageView view; /* 2D, of level 0 of `layer` alone, its components not swizzled; of a depth format its DEPTH aspect */
    VkImageUsageFlags usage; /* of the view. Pack: SAMPLED, or else STORAGE; unpack: STORAGE */
    uint32_t layer;
    VkExtent2D image_extent; /* of level 0 */
    VkExtent2D extent;       /* of what is packed, or unpacked to, from texel (0, 0) on; at most 65535 each way */
    VkImageLayout layout_before; /* UNDEFINED: what the image holds is not kept; not for pack */
    VkImageLayout layout_after;  /* UNDEFINED: as it was used */
    VkPipelineStageFlags src_stage; /* the last use before, for the barrier; never 0 where there is one */
    VkAccessFlags src_access;
    VkPipelineStageFlags dst_stage; /* the next use, likewise; not counted with RELEASE */
    VkAccessFlags dst_access;
    uint32_t ownership;  /* of tandem_image_ownership, or 0 */
    uint32_t src_family; /* ACQUIRE: the queue family that has released the layer to the session's, by the same change of layout */
    uint32_t dst_family; /* RELEASE: the one that is to acquire it, by the same change of layout */
    uint32_t channels;   /* of the tensor: 1 to the format's, with NORMAL from 3 on, with OCTAHEDRAL 3. Components of the image
                            beyond are not packed, and unpacked as 0, alpha as 1 */
    uint32_t encoding;   /* tandem_image_encoding */
    uint32_t transfer;   /* tandem_image_transfer */
    float exposure;      /* linear r, g and b are multiplied by it, either way; 0 is 1 */
    uint32_t reserved;   /* 0 */
    tandem_view tensor;
    uint32_t recorded_family; /* 1 + the family of the queue that gets the commands, which is in place of the session's then: one
                                 of tandem_vulkan.further_families; 0: queue_family */
    uint32_t reserved2;       /* 0 */
} tandem_pack_image;

/* Records 1 to 8 images -> tensors: one compute dispatch for those that are SAMPLED, one for those that are STORAGE alone, and the
 * barriers on images as said above. Barriers on mems are the caller's: their tensors are read and written in COMPUTE_SHADER,
 * as a half of a word is written by SHADER_READ and SHADER_WRITE. Binds its own pipeline and pushes its own descriptors; the
 * commands may be submitted again. Outside render passes. The tensors must not overlap; that is not checked from one to another.
 * Returns: OK; ARG; UNSUPPORTED without VK_KHR_push_descriptor, for a format that the device cannot use so, and for STORAGE alone
 *          where shaderStorageImageReadWithoutFormat (of VkPhysicalDeviceFeatures) is not enabled; NOMEM or DEVICE from
 *          building the pipeline. Nothing is recorded on failure.
 * Owner: nothing; images, views and mems must live until the commands have run for the last time.
 * Threads: as the command buffer's.
 * Blocks: the first time, to build the pipeline. */
TANDEM_API tandem_status tandem_record_pack_images(tandem_session *session, VkCommandBuffer commands,
                                                   const tandem_pack_image *images, uint32_t count);

/* Records 1 to 8 tensors -> images, the other way round: one compute dispatch. Strides of the tensors may be 0.
 * Returns: as tandem_record_pack_images(); ARG also for _SRGB and depth formats, which no shader stores to (a _UNORM view with
 *          SRGB as its transfer, and R32_SFLOAT, do); UNSUPPORTED where shaderStorageImageWriteWithoutFormat is not enabled.
 * Owner: nothing; images, views and mems must live until the commands have run for the last time.
 * Threads: as the command buffer's.
 * Blocks: the first time, to build the pipeline. */
TANDEM_API tandem_status tandem_record_unpack_images(tandem_session *session, VkCommandBuffer commands,
                                                     const tandem_pack_image *images, uint32_t count);

#ifdef __cplusplus
}
#endif
#endif
