/* Timestamps around the kernels of a recorded job.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A recorded job begins and ends with a launch of the same kernel, which notes when that was. The stamps lie within these
 * two: behind the first, and in front of the barrier that the second one follows. So a barrier waits here until it is known
 * what it is in front of.
 */
#include "engine_plugin/tool/record_stamps.h"

#include <string.h>

static struct {
    PFN_vkGetInstanceProcAddr get;
    PFN_vkGetDeviceProcAddr get_of_device;
    PFN_vkCmdCuLaunchKernelNVX launch;
    PFN_vkCmdPipelineBarrier barrier;
    PFN_vkCmdWriteTimestamp stamp;
} next;

static _Thread_local struct {
    VkQueryPool queries; /* VK_NULL_HANDLE: nobody wants stamps */
    uint32_t first;
    uint32_t written;
    VkCuFunctionNVX noting; /* what was launched first */
    bool waits;             /* a barrier, which is this one */
    VkPipelineStageFlags from, to;
    uint32_t memory_count;
    VkMemoryBarrier memory;
} job;

static void let_barrier_go(VkCommandBuffer commands)
{
    if (job.waits)
        next.barrier(commands, job.from, job.to, 0, job.memory_count, &job.memory, 0, NULL, 0, NULL);
    job.waits = false;
}

static VKAPI_ATTR void VKAPI_CALL barrier(VkCommandBuffer commands, VkPipelineStageFlags from, VkPipelineStageFlags to,
                                          VkDependencyFlags flags, uint32_t memory_count, const VkMemoryBarrier *memory,
                                          uint32_t buffer_count, const VkBufferMemoryBarrier *buffers,
                                          uint32_t image_count, const VkImageMemoryBarrier *images)
{
    const bool is_simple = !flags && memory_count <= 1 && !buffer_count && !image_count;

    let_barrier_go(commands);
    if (!is_simple || job.written != 1) {
        next.barrier(commands, from, to, flags, memory_count, memory, buffer_count, buffers, image_count, images);
        return;
    }
    job.waits = true;
    job.from = from;
    job.to = to;
    job.memory_count = memory_count;
    if (memory_count)
        job.memory = *memory;
}

static VKAPI_ATTR void VKAPI_CALL launch(VkCommandBuffer commands, const VkCuLaunchInfoNVX *info)
{
    const bool is_last = job.written == 1 && info->function == job.noting;

    if (is_last)
        next.stamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, job.queries, job.first + job.written++);
    let_barrier_go(commands);
    next.launch(commands, info);
    if (job.queries && !job.written) {
        job.noting = info->function;
        next.stamp(commands, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, job.queries, job.first + job.written++);
    }
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get_of_device(VkDevice device, const char *name)
{
    const PFN_vkVoidFunction found = next.get_of_device(device, name);

    if (found && !strcmp(name, "vkCmdCuLaunchKernelNVX")) {
        next.launch = (PFN_vkCmdCuLaunchKernelNVX)found;
        next.stamp = (PFN_vkCmdWriteTimestamp)next.get_of_device(device, "vkCmdWriteTimestamp");
        return (PFN_vkVoidFunction)launch;
    }
    if (found && !strcmp(name, "vkCmdPipelineBarrier")) {
        next.barrier = (PFN_vkCmdPipelineBarrier)found;
        return (PFN_vkVoidFunction)barrier;
    }
    return found;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get(VkInstance instance, const char *name)
{
    const PFN_vkVoidFunction found = next.get(instance, name);

    if (strcmp(name, "vkGetDeviceProcAddr"))
        return found;
    next.get_of_device = (PFN_vkGetDeviceProcAddr)found;
    return (PFN_vkVoidFunction)get_of_device;
}

PFN_vkGetInstanceProcAddr record_stamps_wrap(PFN_vkGetInstanceProcAddr wrapped)
{
    next.get = wrapped;
    return get;
}

void record_stamps_begin(VkQueryPool queries, uint32_t first)
{
    memset(&job, 0, sizeof job);
    job.queries = queries;
    job.first = first;
}

bool record_stamps_end(void)
{
    const bool has_both = job.written == 2;

    memset(&job, 0, sizeof job);
    return has_both;
}
