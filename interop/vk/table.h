/* What the files of interop/vk share: the function table and the object behind td_vk.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Private to interop/vk and to the executors.
 */
#ifndef TANDEM_VK_TABLE_H
#define TANDEM_VK_TABLE_H

#include <assert.h>

#include "interop/os/opaque.h"
#include "interop/os/thread.h"
#include "interop/vk/vk.h"

/* Called through the instance. */
#define TD_VK_INSTANCE_FUNCTIONS(X)                                                                                    \
    X(EnumerateDeviceExtensionProperties)                                                                              \
    X(GetPhysicalDeviceQueueFamilyProperties)                                                                          \
    X(GetPhysicalDeviceMemoryProperties)                                                                               \
    X(GetPhysicalDeviceFormatProperties)                                                                               \
    X(GetPhysicalDeviceProperties)                                                                                     \
    X(GetPhysicalDeviceProperties2)                                                                                    \
    X(GetPhysicalDeviceExternalBufferProperties)                                                                       \
    X(GetPhysicalDeviceExternalSemaphoreProperties)                                                                    \
    X(GetDeviceProcAddr)

/* Every device has them. */
#define TD_VK_DEVICE_FUNCTIONS(X)                                                                                      \
    X(CreateBuffer)                                                                                                    \
    X(DestroyBuffer)                                                                                                   \
    X(GetBufferMemoryRequirements2)                                                                                    \
    X(AllocateMemory)                                                                                                  \
    X(FreeMemory)                                                                                                      \
    X(BindBufferMemory)                                                                                                \
    X(MapMemory)                                                                                                       \
    X(UnmapMemory)                                                                                                     \
    X(CreateSemaphore)                                                                                                 \
    X(DestroySemaphore)                                                                                                \
    X(CreateShaderModule)                                                                                              \
    X(DestroyShaderModule)                                                                                             \
    X(CreateDescriptorSetLayout)                                                                                       \
    X(DestroyDescriptorSetLayout)                                                                                      \
    X(CreatePipelineLayout)                                                                                            \
    X(DestroyPipelineLayout)                                                                                           \
    X(CreateComputePipelines)                                                                                          \
    X(DestroyPipeline)                                                                                                 \
    X(CmdPipelineBarrier)                                                                                              \
    X(CmdBindPipeline)                                                                                                 \
    X(CmdPushConstants)                                                                                                \
    X(CmdDispatch)                                                                                                     \
    X(CmdCopyBuffer)                                                                                                   \
    X(CreateCommandPool)                                                                                               \
    X(DestroyCommandPool)                                                                                              \
    X(ResetCommandPool)                                                                                                \
    X(AllocateCommandBuffers)                                                                                          \
    X(BeginCommandBuffer)                                                                                              \
    X(EndCommandBuffer)                                                                                                \
    X(CreateFence)                                                                                                     \
    X(DestroyFence)                                                                                                    \
    X(WaitForFences)                                                                                                   \
    X(QueueSubmit)

/* Core in 1.2, below it by the KHR name; NULL without the feature. */
#define TD_VK_TIMELINE_FUNCTIONS(X)                                                                                    \
    X(GetSemaphoreCounterValue)                                                                                        \
    X(WaitSemaphores)                                                                                                  \
    X(SignalSemaphore)

/* Present only where the capability of that name is. */
#define TD_VK_OPTIONAL_FUNCTIONS(X)                                                                                    \
    X(GetMemoryFdPropertiesKHR)                                                                                        \
    X(GetMemoryHostPointerPropertiesEXT)                                                                               \
    X(CmdPushDescriptorSetKHR)                                                                                         \
    X(GetCalibratedTimestampsEXT)                                                                                      \
    X(GetBufferDeviceAddress)                                                                                          \
    X(CreateCuModuleNVX)                                                                                               \
    X(CreateCuFunctionNVX)                                                                                             \
    X(DestroyCuModuleNVX)                                                                                              \
    X(DestroyCuFunctionNVX)                                                                                            \
    X(CmdCuLaunchKernelNVX)                                                                                            \
    X(SetDebugUtilsObjectNameEXT)                                                                                      \
    X(CmdBeginDebugUtilsLabelEXT)                                                                                      \
    X(CmdEndDebugUtilsLabelEXT)

/* What vkGetMemoryFdKHR, vkGetMemoryWin32HandleKHR and those of semaphores take: their structs have the same members. */
typedef struct td_vk_handle_info {
    VkStructureType sType;
    const void *pNext;
    uint64_t object; /* VkDeviceMemory, VkSemaphore */
    uint32_t type;   /* VkExternalMemoryHandleTypeFlagBits, VkExternalSemaphore.. */
} td_vk_handle_info;
static_assert(sizeof(td_vk_handle_info) == sizeof(VkMemoryGetFdInfoKHR), "and VkMemoryGetWin32HandleInfoKHR");
static_assert(sizeof(td_vk_handle_info) == sizeof(VkSemaphoreGetFdInfoKHR), "and VkSemaphoreGetWin32HandleInfoKHR");
typedef VkResult(VKAPI_PTR *td_vk_get_handle)(VkDevice device, const td_vk_handle_info *info, td_opaque_handle *handle);

typedef struct td_vk_table {
    td_vk_get_handle get_memory_handle, get_semaphore_handle; /* those of td_opaque, or NULL */
#define X(name) PFN_vk##name name;
    TD_VK_INSTANCE_FUNCTIONS(X)
    TD_VK_DEVICE_FUNCTIONS(X)
    TD_VK_TIMELINE_FUNCTIONS(X)
    TD_VK_OPTIONAL_FUNCTIONS(X)
#undef X
} td_vk_table;

typedef enum td_vk_program {
    TD_VK_PACK = 0,
    TD_VK_UNPACK_F16,
    TD_VK_UNPACK_F32,
    TD_VK_PACK_IMAGES,
    TD_VK_PACK_IMAGES_STORAGE,
    TD_VK_UNPACK_IMAGES,
    TD_VK_PROGRAM_COUNT
} td_vk_program;

typedef struct td_vk_pipeline {
    VkDescriptorSetLayout set_layout;
    VkPipelineLayout layout;
    VkPipeline pipeline;
} td_vk_pipeline;

struct td_vk {
    td_vk_table fn;
    td_log log;
    td_vk_caps caps;
    VkInstance instance;
    VkPhysicalDevice physical_device;
    VkDevice device;
    uint32_t queue_family;
    uint32_t families[TD_VK_FAMILIES], family_count; /* that one, and further ones */
    bool addressed; /* td_vk_address_memory() */
    VkPhysicalDeviceMemoryProperties memory;
    uint64_t max_allocation_bytes;
    uint64_t max_timeline_difference;
    uint64_t storage_alignment; /* minStorageBufferOffsetAlignment */
    uint32_t max_groups[2];     /* maxComputeWorkGroupCount */
    uint64_t timestamp_mask;    /* of timestampValidBits */
    pthread_mutex_t lock; /* of the two below */
    td_vk_left *left;
    bool in_use; /* td_vk_keep() */
    td_vk_pipeline pipelines[TD_VK_PROGRAM_COUNT];
};

/* report.c: the status for a failed call, and the text "vkCall: VK_RESULT". */
tandem_status td_vk_result(VkResult result, const char *call, char *why, size_t why_bytes);

/* export.c: a descriptor of an object, by the function of td_opaque that gives them; the caller closes it. *counted: whether the
 * caller is one of its users already; it is then, if anything was kept. Any thread. */
tandem_status td_vk_export(td_vk *vk, const td_vk_handle_info *info, bool *counted, int *fd, char *why, size_t why_bytes);
/* One user less, or none; before the object can be destroyed. td_vk_exports_free() does it for all objects. */
void td_vk_export_end(td_vk *vk, int32_t kind, uint64_t object, bool all_users);
void td_vk_exports_free(td_vk *vk);

/* Makes it the first time; td_vk_close() frees it. Any thread. */
tandem_status td_vk_pipeline_get(td_vk *vk, td_vk_program program, td_vk_pipeline *out, char *why, size_t why_bytes);
void td_vk_pipelines_free(td_vk *vk);

#endif
