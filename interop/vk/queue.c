/* How far a queue of the engine's has come, whoever submitted to it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "interop/vk/table.h"

tandem_status td_vk_queue_mark(td_vk *vk, const td_vk_queue *queue, VkFence *mark, char *why, size_t why_bytes)
{
    const VkFenceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    VkResult result = vk->fn.CreateFence(vk->device, &info, NULL, mark);

    if (result != VK_SUCCESS) {
        *mark = VK_NULL_HANDLE;
        return td_vk_result(result, "vkCreateFence", why, why_bytes);
    }
    if (queue->lock)
        queue->lock(queue->user);
    result = vk->fn.QueueSubmit(queue->queue, 0, NULL, *mark);
    if (queue->unlock)
        queue->unlock(queue->user);
    if (result == VK_SUCCESS)
        return TANDEM_OK;
    vk->fn.DestroyFence(vk->device, *mark, NULL);
    *mark = VK_NULL_HANDLE;
    return td_vk_result(result, "vkQueueSubmit", why, why_bytes);
}

tandem_status td_vk_queue_wait(td_vk *vk, VkFence mark, uint64_t timeout_ns, char *why, size_t why_bytes)
{
    const VkResult result = vk->fn.WaitForFences(vk->device, 1, &mark, VK_TRUE, timeout_ns);

    if (result == VK_SUCCESS)
        return TANDEM_OK;
    return result == VK_TIMEOUT ? TANDEM_ERROR_BUSY : td_vk_result(result, "vkWaitForFences", why, why_bytes);
}

void td_vk_queue_unmark(td_vk *vk, VkFence *mark)
{
    if (*mark)
        vk->fn.DestroyFence(vk->device, *mark, NULL);
    *mark = VK_NULL_HANDLE;
}
