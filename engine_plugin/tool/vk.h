/* A Vulkan engine without pictures, for `tandem bench handover`: writes a payload, has it transformed, checks it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_VK_H
#define TD_TOOL_VK_H

#include "engine_plugin/tool/engine.h"
#include "interop/vk/vk.h"
#include "shaders/bench_shared.h"

#define BENCH_INSTANCE_FUNCTIONS(X)                                                                                    \
    X(GetPhysicalDeviceProperties2) X(GetPhysicalDeviceMemoryProperties) X(EnumerateDeviceExtensionProperties)         \
    X(GetPhysicalDeviceFeatures2) X(GetDeviceProcAddr)
#define BENCH_DEVICE_FUNCTIONS(X)                                                                                      \
    X(DeviceWaitIdle) X(CreateShaderModule) X(DestroyShaderModule)                  \
    X(CreateDescriptorSetLayout) X(DestroyDescriptorSetLayout) X(CreatePipelineLayout) X(DestroyPipelineLayout)        \
    X(CreateComputePipelines) X(DestroyPipeline) X(CreateDescriptorPool) X(DestroyDescriptorPool)                      \
    X(AllocateDescriptorSets) X(UpdateDescriptorSets) X(CreateCommandPool) X(DestroyCommandPool) X(ResetCommandPool)   \
    X(AllocateCommandBuffers) X(BeginCommandBuffer) X(EndCommandBuffer) X(CreateQueryPool)                             \
    X(DestroyQueryPool) X(GetQueryPoolResults) X(CreateFence) X(DestroyFence) X(ResetFences) X(WaitForFences)          \
    X(CreateBuffer) X(DestroyBuffer) X(GetBufferMemoryRequirements) X(AllocateMemory) X(FreeMemory)                    \
    X(BindBufferMemory) X(MapMemory) X(QueueSubmit) X(CmdBindPipeline) X(CmdBindDescriptorSets) X(CmdPushConstants)    \
    X(CmdDispatch) X(CmdPipelineBarrier) X(CmdWriteTimestamp) X(CmdResetQueryPool) X(CmdUpdateBuffer)                  \
    X(CmdCopyBuffer)

typedef struct bench_vk {
    tool_engine engine;
    VkPhysicalDeviceProperties properties;
    VkPhysicalDeviceMemoryProperties memory;
    char driver[VK_MAX_DRIVER_NAME_SIZE + VK_MAX_DRIVER_INFO_SIZE + 4];
    bool shader_clock; /* shaders can read the clock of the timestamps */
    td_vk *vk;         /* for clocks, and for sharing without a session */
    VkDescriptorSetLayout set_layout;
    VkPipelineLayout layout;
    VkPipeline pipelines[TD_BENCH_MODES];
#define FIELD(name) PFN_vk##name name;
    BENCH_INSTANCE_FUNCTIONS(FIELD)
    BENCH_DEVICE_FUNCTIONS(FIELD)
#undef FIELD
} bench_vk;

/* The best device of this machine with everything enabled that Tandem can use. False, and the reason. */
bool bench_vk_open(bench_vk *v, char *why, size_t why_bytes);
void bench_vk_close(bench_vk *v); /* accepts half-made ones */

typedef struct bench_buffer {
    VkBuffer buffer;
    VkDeviceMemory memory;
    uint64_t bytes;
    void *host; /* mapped */
} bench_buffer;
bool bench_buffer_make(bench_vk *v, uint64_t bytes, bool host, bench_buffer *out, char *why, size_t why_bytes);
void bench_buffer_free(bench_vk *v, bench_buffer *b);

/* What the checking shaders leave, in host memory. For a payload without dispatches: its bytes, read back. */
typedef struct bench_result {
    uint32_t errors, first, checked, reserved;
    uint64_t clock; /* when the check began, by the shader's clock */
    uint64_t unused;
    unsigned char bytes[64];
} bench_result;

enum { BENCH_STAMPS = 6 };
enum { BENCH_COMMANDS = 3 };
/* A frame in flight: command buffers (or one, for all), what they are bound to, and what they leave. */
typedef struct bench_slot {
    VkCommandPool pools[BENCH_COMMANDS];
    VkCommandBuffer commands[BENCH_COMMANDS];
    VkQueryPool queries;
    VkFence fence;
    VkDescriptorPool descriptors;
    VkDescriptorSet set;
    bench_buffer result;
    VkBuffer in, out;
    uint32_t stamp_count;
} bench_slot;
bool bench_slot_make(bench_vk *v, VkBuffer in, VkBuffer out, bench_slot *s, char *why, size_t why_bytes);
void bench_slot_free(bench_vk *v, bench_slot *s);

/* Commands 0, first in a frame, and others of a slot. */
bool bench_begin(bench_vk *v, bench_slot *s, uint32_t which);
void bench_stamp(bench_vk *v, bench_slot *s, uint32_t which, bool top);
void bench_dispatch(bench_vk *v, bench_slot *s, uint32_t which, uint32_t mode, const struct td_bench_push *push,
                    uint32_t groups);
void bench_barrier(bench_vk *v, bench_slot *s, uint32_t which, VkPipelineStageFlags from, VkAccessFlags wrote,
                   VkPipelineStageFlags to, VkAccessFlags use);
typedef struct bench_signal {
    VkSemaphore semaphore; /* or null */
    uint64_t value;
} bench_signal;
/* Ends and submits; `fence`: the slot's is signalled. */
bool bench_submit(bench_vk *v, bench_slot *s, uint32_t which, bench_signal wait, bench_signal signal, bool fence);
/* Waits for the slot's fence, then reads its stamps: nanoseconds of the device's clock. */
bool bench_finish(bench_vk *v, bench_slot *s, uint64_t stamps[BENCH_STAMPS]);

#endif
