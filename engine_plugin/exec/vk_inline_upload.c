/* Executor `vk_inline`: copies of the host's bytes to the device, for weights. See vk_inline.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/exec/vk_inline.h"

enum { STAGING_BYTES = 8 << 20 };
static const uint64_t upload_limit_ns = 10000000000u;

typedef struct upload {
    td_vk *vk;
    td_vk_left left; /* where the device hangs */
    td_vk_mem staging;
    VkCommandPool pool;
    VkCommandBuffer commands;
    VkSemaphore done;
    uint64_t value; /* of `done`, behind the last copy */
} upload;

static void free_upload(upload *u)
{
    if (u->pool)
        u->vk->fn.DestroyCommandPool(u->vk->device, u->pool, NULL);
    td_vk_timeline_destroy(u->vk, &u->done);
    td_vk_mem_free(u->vk, &u->staging);
    free(u);
}

static bool end_left_upload(td_vk_left *left)
{
    upload *u = (upload *)((char *)left - offsetof(upload, left));
    const tandem_status status = td_vk_timeline_wait(u->vk, u->done, u->value, 0);

    if (status != TANDEM_OK && status != TANDEM_ERROR_LOST)
        return false;
    free_upload(u);
    return true;
}

/* One command buffer with the copies of what is in staging; waited for. */
static tandem_status run_upload(td_inline_stream *s, upload *u, const td_vk_mem *to, const VkBufferCopy *copy, char *why,
                                size_t why_bytes)
{
    const uint64_t value = ++u->value;
    const VkMemoryBarrier written = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                     .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                                     .dstAccessMask = VK_ACCESS_SHADER_READ_BIT};
    const VkCommandBufferBeginInfo once = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                           .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    const VkTimelineSemaphoreSubmitInfo points = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                  .signalSemaphoreValueCount = 1,
                                                  .pSignalSemaphoreValues = &value};
    const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                               .pNext = &points,
                               .commandBufferCount = 1,
                               .pCommandBuffers = &u->commands,
                               .signalSemaphoreCount = 1,
                               .pSignalSemaphores = &u->done};
    tandem_status status;
    VkResult result;

    result = s->fn->ResetCommandPool(s->vk->device, u->pool, 0);
    if (result == VK_SUCCESS)
        result = s->fn->BeginCommandBuffer(u->commands, &once);
    if (result == VK_SUCCESS) {
        s->fn->CmdCopyBuffer(u->commands, u->staging.buffer, to->buffer, 1, copy);
        s->fn->CmdPipelineBarrier(u->commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0,
                                  1, &written, 0, NULL, 0, NULL);
        result = s->fn->EndCommandBuffer(u->commands);
    }
    if (result != VK_SUCCESS)
        return td_inline_fail(s, result, "recording a copy", why, why_bytes);
    status = td_inline_submit(s, &info, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    status = td_vk_timeline_wait(s->vk, u->done, value, upload_limit_ns);
    if (status == TANDEM_OK || status == TANDEM_ERROR_LOST)
        return status;
    return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "a copy to the device did not end within %u ms",
                   (unsigned)(upload_limit_ns / 1000000));
}

tandem_status td_inline_upload(td_stream *stream, const td_vk_mem *to, uint64_t offset, const void *from,
                               uint64_t bytes, char *why, size_t why_bytes)
{
    td_inline_stream *s = (td_inline_stream *)stream;
    const uint64_t chunk = bytes < STAGING_BYTES ? bytes : STAGING_BYTES;
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .queueFamilyIndex = s->vk->queue_family};
    VkCommandBufferAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                            .commandBufferCount = 1};
    VkResult result;
    tandem_status status;
    upload *u;

    if (!bytes)
        return TANDEM_OK;
    u = calloc(1, sizeof *u);
    if (!u)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no host memory for a copy");
    u->vk = s->vk;
    status = td_vk_mem_create_mapped(s->vk, chunk, VK_BUFFER_USAGE_TRANSFER_SRC_BIT, &u->staging, why, why_bytes);
    if (status == TANDEM_OK)
        status = td_vk_timeline_create(s->vk, 0, false, &u->done, why, why_bytes);
    if (status == TANDEM_OK) {
        result = s->fn->CreateCommandPool(s->vk->device, &pool, NULL, &u->pool);
        if (result != VK_SUCCESS)
            u->pool = VK_NULL_HANDLE;
        allocate.commandPool = u->pool;
        if (result == VK_SUCCESS)
            result = s->fn->AllocateCommandBuffers(s->vk->device, &allocate, &u->commands);
        if (result != VK_SUCCESS)
            status = td_inline_fail(s, result, "making commands for a copy", why, why_bytes);
    }
    for (uint64_t at = 0; at < bytes && status == TANDEM_OK; at += chunk) {
        const VkBufferCopy copy = {.dstOffset = offset + at, .size = bytes - at < chunk ? bytes - at : chunk};

        memcpy(u->staging.host, (const char *)from + at, (size_t)copy.size);
        status = run_upload(s, u, to, &copy, why, why_bytes);
    }
    if (status == TANDEM_ERROR_BUSY) { /* the device may still use all of it */
        u->left.end = end_left_upload;
        td_vk_leave(s->vk, &u->left);
        return TANDEM_ERROR_DEVICE;
    }
    free_upload(u);
    return status;
}
