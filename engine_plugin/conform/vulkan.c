/* Vulkan as the program calls it: what it submits, and how it waits.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Functions are found by the loader's own, which go to whatever device they are given.
 */
#include <dlfcn.h>
#include <string.h>

#include "engine_plugin/conform/conform.h"

#define REAL(name) ((PFN_##name)real(#name))

/* Of the library that the program has opened, or that it is linked to. */
static PFN_vkVoidFunction real(const char *name)
{
    static void *loader;
    PFN_vkVoidFunction found;
    void *symbol = conform_next(name);

    if (!symbol && !loader)
        loader = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!symbol && loader)
        symbol = conform_next(name);
    memcpy(&found, &symbol, sizeof found);
    return found;
}

static uint64_t value_at(const uint64_t *values, uint32_t count, uint32_t i)
{
    return values && i < count ? values[i] : 0;
}

static const VkTimelineSemaphoreSubmitInfo *values_of(const VkSubmitInfo *submit)
{
    const VkBaseInStructure *it = submit->pNext;

    while (it && it->sType != VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO)
        it = it->pNext;
    return (const void *)it;
}

VKAPI_ATTR VkResult VKAPI_CALL vkQueueSubmit(VkQueue queue, uint32_t count, const VkSubmitInfo *submits, VkFence fence)
{
    if (!conform_within())
        for (uint32_t i = 0; i < count; i++) {
            const VkSubmitInfo *s = &submits[i];
            const VkTimelineSemaphoreSubmitInfo *v = values_of(s);

            for (uint32_t w = 0; w < s->waitSemaphoreCount; w++)
                rules_waits(queue, s->pWaitSemaphores[w], v ? value_at(v->pWaitSemaphoreValues, v->waitSemaphoreValueCount, w) : 0,
                            s->pWaitDstStageMask[w]);
            for (uint32_t c = 0; c < s->commandBufferCount; c++)
                rules_runs(queue, s->pCommandBuffers[c]);
            for (uint32_t g = 0; g < s->signalSemaphoreCount; g++)
                rules_signals(s->pSignalSemaphores[g],
                              v ? value_at(v->pSignalSemaphoreValues, v->signalSemaphoreValueCount, g) : 0);
            rules_batch_ends(queue);
        }
    return REAL(vkQueueSubmit)(queue, count, submits, fence);
}

static void submit2(VkQueue queue, uint32_t count, const VkSubmitInfo2 *submits)
{
    if (conform_within())
        return;
    for (uint32_t i = 0; i < count; i++) {
        const VkSubmitInfo2 *s = &submits[i];

        for (uint32_t w = 0; w < s->waitSemaphoreInfoCount; w++) /* stages beyond those of 1.0 are none that are told here */
            rules_waits(queue, s->pWaitSemaphoreInfos[w].semaphore, s->pWaitSemaphoreInfos[w].value,
                        s->pWaitSemaphoreInfos[w].stageMask >> 32 ? (VkPipelineStageFlags)VK_PIPELINE_STAGE_ALL_COMMANDS_BIT
                                                                  : (VkPipelineStageFlags)s->pWaitSemaphoreInfos[w].stageMask);
        for (uint32_t c = 0; c < s->commandBufferInfoCount; c++)
            rules_runs(queue, s->pCommandBufferInfos[c].commandBuffer);
        for (uint32_t g = 0; g < s->signalSemaphoreInfoCount; g++)
            rules_signals(s->pSignalSemaphoreInfos[g].semaphore, s->pSignalSemaphoreInfos[g].value);
        rules_batch_ends(queue);
    }
}

VKAPI_ATTR VkResult VKAPI_CALL vkQueueSubmit2(VkQueue queue, uint32_t count, const VkSubmitInfo2 *submits, VkFence fence)
{
    submit2(queue, count, submits);
    return REAL(vkQueueSubmit2)(queue, count, submits, fence);
}

VKAPI_ATTR VkResult VKAPI_CALL vkBeginCommandBuffer(VkCommandBuffer commands, const VkCommandBufferBeginInfo *info)
{
    if (!conform_within())
        rules_begun(commands);
    return REAL(vkBeginCommandBuffer)(commands, info);
}

VKAPI_ATTR VkResult VKAPI_CALL vkWaitSemaphores(VkDevice device, const VkSemaphoreWaitInfo *info, uint64_t timeout)
{
    if (!conform_within())
        for (uint32_t i = 0; i < info->semaphoreCount; i++)
            if (timeout == UINT64_MAX && rules_is_sessions(info->pSemaphores[i]))
                conform_say(CONFORM_UNBOUNDED_WAIT,
                            "vkWaitSemaphores() on a semaphore of the session's, without a bound: tandem_point_wait() waits for it, as "
                            "long as it is told");
    return REAL(vkWaitSemaphores)(device, info, timeout);
}

/* Those above, by their names and by the names that they had as extensions. */
static const struct wrapper {
    const char *name, *of;
} wrappers[] = {
    {"vkQueueSubmit", "vkQueueSubmit"},
    {"vkQueueSubmit2", "vkQueueSubmit2"},
    {"vkQueueSubmit2KHR", "vkQueueSubmit2"},
    {"vkBeginCommandBuffer", "vkBeginCommandBuffer"},
    {"vkWaitSemaphores", "vkWaitSemaphores"},
    {"vkWaitSemaphoresKHR", "vkWaitSemaphores"},
    {"vkGetInstanceProcAddr", "vkGetInstanceProcAddr"},
    {"vkGetDeviceProcAddr", "vkGetDeviceProcAddr"},
};

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetDeviceProcAddr(VkDevice device, const char *name);

void *conform_vulkan_wrapper(const char *name)
{
    static const struct {
        const char *name;
        PFN_vkVoidFunction function;
    } functions[] = {
        {"vkQueueSubmit", (PFN_vkVoidFunction)vkQueueSubmit},
        {"vkQueueSubmit2", (PFN_vkVoidFunction)vkQueueSubmit2},
        {"vkBeginCommandBuffer", (PFN_vkVoidFunction)vkBeginCommandBuffer},
        {"vkWaitSemaphores", (PFN_vkVoidFunction)vkWaitSemaphores},
        {"vkGetInstanceProcAddr", (PFN_vkVoidFunction)vkGetInstanceProcAddr},
        {"vkGetDeviceProcAddr", (PFN_vkVoidFunction)vkGetDeviceProcAddr},
    };
    void *found = NULL;

    for (size_t w = 0; w < sizeof wrappers / sizeof *wrappers; w++)
        for (size_t f = 0; f < sizeof functions / sizeof *functions; f++)
            if (!strcmp(wrappers[w].name, name) && !strcmp(wrappers[w].of, functions[f].name))
                memcpy(&found, &functions[f].function, sizeof found);
    return found;
}

static PFN_vkVoidFunction wrapped(const char *name, PFN_vkVoidFunction found)
{
    void *wrapper = found ? conform_vulkan_wrapper(name) : NULL;

    if (wrapper)
        memcpy(&found, &wrapper, sizeof found);
    return found;
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance instance, const char *name)
{
    const PFN_vkGetInstanceProcAddr get = REAL(vkGetInstanceProcAddr);

    return get ? wrapped(name, get(instance, name)) : NULL;
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetDeviceProcAddr(VkDevice device, const char *name)
{
    return wrapped(name, REAL(vkGetDeviceProcAddr)(device, name));
}

PFN_vkGetInstanceProcAddr conform_real_gipa(PFN_vkGetInstanceProcAddr given)
{
    return given == vkGetInstanceProcAddr ? REAL(vkGetInstanceProcAddr) : given;
}
