/* The engine's part of frames: commands that are recorded once for each slot and submitted each frame, around a
 * job.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "tests/plugin/rungs/rig.h"

static VkSemaphore semaphore_of(rig *r, tandem_timeline timeline)
{
    VkSemaphore semaphore = VK_NULL_HANDLE;

    if (r->semaphores)
        assert_int_equal(tandem_timeline_get_vulkan(r->s, timeline, &semaphore), TANDEM_OK);
    return semaphore;
}

/* Commands that were recorded, once more. */
static void queue(rig *r, VkCommandBuffer commands, vku_point wait, vku_point signal, VkFence fence)
{
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_TRANSFER_BIT;
    const VkTimelineSemaphoreSubmitInfo values = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                  .waitSemaphoreValueCount = wait.semaphore ? 1 : 0,
                                                  .pWaitSemaphoreValues = &wait.value,
                                                  .signalSemaphoreValueCount = signal.semaphore ? 1 : 0,
                                                  .pSignalSemaphoreValues = &signal.value};
    const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                               .pNext = r->semaphores ? &values : NULL,
                               .waitSemaphoreCount = wait.semaphore ? 1 : 0,
                               .pWaitSemaphores = &wait.semaphore,
                               .pWaitDstStageMask = &stage,
                               .commandBufferCount = 1,
                               .pCommandBuffers = &commands,
                               .signalSemaphoreCount = signal.semaphore ? 1 : 0,
                               .pSignalSemaphores = &signal.semaphore};

    assert_int_equal(r->vk.QueueSubmit(r->vk.queue, 1, &info, fence), VK_SUCCESS);
}

static VkFence new_fence(rig *r)
{
    const VkFenceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    VkFence fence;

    assert_int_equal(r->vk.CreateFence(r->vk.device, &info, NULL, &fence), VK_SUCCESS);
    return fence;
}

static void pass_fence(rig *r, VkFence *fence)
{
    assert_int_equal(r->vk.WaitForFences(r->vk.device, 1, fence, VK_TRUE, VKU_TIMEOUT_NS), VK_SUCCESS);
    r->vk.DestroyFence(r->vk.device, *fence, NULL);
    *fence = VK_NULL_HANDLE;
}

/* To be submitted again and again; the layer's old version does not learn from exported timelines that they are done. */
static VkCommandBuffer begin_commands(rig *r)
{
    const VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                              .commandPool = r->vk.pool,
                                              .commandBufferCount = 1};
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT};
    VkCommandBuffer commands;

    assert_int_equal(r->vk.AllocateCommandBuffers(r->vk.device, &info, &commands), VK_SUCCESS);
    assert_int_equal(r->vk.BeginCommandBuffer(commands, &begin), VK_SUCCESS);
    return commands;
}

void make_slot(rig *r, slot *f, const tandem_attention *views, const uint64_t bytes[2])
{
    const VkPipelineStageFlags transfer = VK_PIPELINE_STAGE_TRANSFER_BIT;
    tandem_view *list[5];

    memset(f, 0, sizeof *f);
    f->job = (tandem_job){.struct_bytes = sizeof f->job, .operation = TANDEM_OPERATION_ATTENTION};
    f->job.op.attention = *views;
    for (int m = 0; m < 2 && bytes[m]; m++) {
        f->mems[m] = new_mem(r, bytes[m]);
        f->vulkan[m].struct_bytes = sizeof f->vulkan[m];
        assert_int_equal(tandem_mem_get_vulkan(r->s, f->mems[m], &f->vulkan[m]), TANDEM_OK);
        assert_int_equal(f->vulkan[m].bytes, bytes[m]);
        assert_int_equal(vku_buffer_create(&r->vk, bytes[m], VK_BUFFER_USAGE_TRANSFER_SRC_BIT, &f->up[m]), VK_SUCCESS);
        assert_int_equal(vku_buffer_create(&r->vk, bytes[m], VK_BUFFER_USAGE_TRANSFER_DST_BIT, &f->down[m]),
                         VK_SUCCESS);
    }
    views_of(&f->job.op.attention, list);
    for (int i = 0; i < 5; i++)
        if (list[i]->mem)
            list[i]->mem = f->mems[list[i]->mem - 1];
    f->up_commands = begin_commands(r);
    for (int m = 0; m < 2 && bytes[m]; m++) {
        const VkBufferCopy all = {.size = bytes[m]};

        r->vk.CmdCopyBuffer(f->up_commands, f->up[m].buffer, f->vulkan[m].buffer, 1, &all);
        assert_int_equal(
            tandem_record_release(r->s, f->up_commands, f->mems[m], transfer, VK_ACCESS_TRANSFER_WRITE_BIT), TANDEM_OK);
    }
    assert_int_equal(r->vk.EndCommandBuffer(f->up_commands), VK_SUCCESS);
    f->down_commands = begin_commands(r);
    for (int m = 0; m < 2 && bytes[m]; m++) {
        const VkBufferCopy all = {.size = bytes[m]};

        assert_int_equal(
            tandem_record_acquire(r->s, f->down_commands, f->mems[m], transfer, VK_ACCESS_TRANSFER_READ_BIT),
            TANDEM_OK);
        r->vk.CmdCopyBuffer(f->down_commands, f->vulkan[m].buffer, f->down[m].buffer, 1, &all);
    }
    vku_full_barrier(&r->vk, f->down_commands);
    assert_int_equal(r->vk.EndCommandBuffer(f->down_commands), VK_SUCCESS);
}

void free_slot(rig *r, slot *f)
{
    VkCommandBuffer commands[2] = {f->up_commands, f->down_commands};

    for (int m = 0; m < 2; m++)
        if (f->mems[m]) {
            assert_int_equal(tandem_mem_destroy(r->s, f->mems[m]), TANDEM_OK);
            vku_buffer_destroy(&r->vk, &f->up[m]);
            vku_buffer_destroy(&r->vk, &f->down[m]);
        }
    r->vk.FreeCommandBuffers(r->vk.device, r->vk.pool, 2, commands);
}

void frame_up(rig *r, slot *f, tandem_timeline engines, uint64_t n)
{
    const vku_point none = {0}, signal = {semaphore_of(r, engines), n};

    f->value = n;
    f->up_fence = r->semaphores ? VK_NULL_HANDLE : new_fence(r);
    queue(r, f->up_commands, none, signal, f->up_fence);
    if (r->semaphores)
        assert_int_equal(tandem_timeline_submitted(r->s, engines, n), TANDEM_OK);
}

void frame_handed_over(rig *r, slot *f, tandem_timeline engines)
{
    if (r->semaphores)
        return;
    pass_fence(r, &f->up_fence);
    assert_int_equal(tandem_timeline_signal(r->s, engines, f->value), TANDEM_OK);
}

void frame_down(rig *r, slot *f, tandem_timeline ours)
{
    const vku_point none = {0}, wait = {semaphore_of(r, ours), f->value};
    struct pollfd reached = {.events = POLLIN};

    if (!r->semaphores && f->value % 2) {
        assert_int_equal(tandem_point_wait(r->s, (tandem_point){ours, f->value}, LONG_NS), TANDEM_OK);
    } else if (!r->semaphores) {
        assert_int_equal(tandem_point_fd(r->s, (tandem_point){ours, f->value}, &reached.fd), TANDEM_OK);
        assert_int_equal(poll(&reached, 1, (int)(LONG_NS / 1000000)), 1);
        close(reached.fd);
    }
    if (r->semaphores) {
        const vku_point back = {semaphore_of(r, r->back), ++r->back_value};

        queue(r, f->down_commands, wait, back, VK_NULL_HANDLE);
        assert_int_equal(tandem_point_wait(r->s, (tandem_point){r->back, back.value}, LONG_NS), TANDEM_OK);
    } else {
        f->down_fence = new_fence(r);
        queue(r, f->down_commands, none, none, f->down_fence);
        pass_fence(r, &f->down_fence);
    }
}

void begin_points(rig *r, tandem_timeline *engines, tandem_timeline *ours)
{
    *engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE);
    *ours = new_timeline(r, TANDEM_SIGNALLER_SESSION);
    r->back = new_timeline(r, TANDEM_SIGNALLER_ENGINE);
    r->back_value = 0;
}

void end_points(rig *r, tandem_timeline engines, tandem_timeline ours)
{
    assert_int_equal(tandem_timeline_destroy(r->s, ours), TANDEM_OK);
    assert_int_equal(tandem_timeline_destroy(r->s, engines), TANDEM_OK);
    assert_int_equal(tandem_timeline_destroy(r->s, r->back), TANDEM_OK);
}
