/* engine_plugin/examples/vulkan_image.c as it is, on the inline rung. It calls Vulkan by name; what
 * it calls here is what the other cases see: the device, or the fake one. The latter runs a command
 * buffer's launches before all else that is in it, so what the example records into one goes into
 * three here: what is before its job, the job, what is behind it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vulkan/vulkan_core.h>

#include "tests/cases.h"
#include "tests/plugin/fake_nvx.h"

/* Of rig.h, some of whose names are the example's, too. */
extern vku gpu;
extern const test_cases inline_example_cases;

static VkInstance of_example;
static VkDevice device_of_example;

static PFN_vkVoidFunction proc(const char *name)
{
    const PFN_vkGetDeviceProcAddr of_devices = (PFN_vkGetDeviceProcAddr)gpu.gipa(
        of_example, "vkGetDeviceProcAddr");
    const PFN_vkVoidFunction found = device_of_example ? of_devices(device_of_example, name) : NULL;

    return found ? found : gpu.gipa(of_example, name);
}

static VkResult make_instance(const VkInstanceCreateInfo *info,
                              const VkAllocationCallbacks *callbacks, VkInstance *instance)
{
    const VkResult result = ((PFN_vkCreateInstance)gpu.gipa(NULL, "vkCreateInstance"))(
        info, callbacks, instance);

    of_example = *instance;
    return result;
}

static VkResult make_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                            const VkAllocationCallbacks *callbacks, VkDevice *device)
{
    const VkResult result = ((PFN_vkCreateDevice)proc("vkCreateDevice"))(physical, info, callbacks,
                                                                         device);

    device_of_example = *device;
    return result;
}

enum { MOST_COMMANDS = 8, PARTS = 3 };

static VkCommandBuffer parts[MOST_COMMANDS][PARTS]; /* the first of which the example knows */
static uint32_t commands_count, part_at;            /* it records one after the other */

static VkCommandBuffer *parts_of(VkCommandBuffer commands)
{
    uint32_t i = 0;

    while (i < commands_count && parts[i][0] != commands)
        i++;
    assert_true(i < commands_count);
    return parts[i];
}

static VkCommandBuffer part(VkCommandBuffer commands)
{
    return parts_of(commands)[part_at];
}

static VkResult allocate(VkDevice device, const VkCommandBufferAllocateInfo *info,
                         VkCommandBuffer *commands)
{
    VkCommandBufferAllocateInfo all = *info;
    const uint32_t at = commands_count++;

    assert_true(at < MOST_COMMANDS);
    all.commandBufferCount = PARTS;
    const VkResult result = ((PFN_vkAllocateCommandBuffers)proc("vkAllocateCommandBuffers"))(
        device, &all, parts[at]);
    *commands = parts[at][0];
    return result;
}

static VkResult begin(VkCommandBuffer commands, const VkCommandBufferBeginInfo *info)
{
    VkResult result = VK_SUCCESS;

    for (uint32_t i = 0; i < PARTS && !result; i++)
        result = ((PFN_vkBeginCommandBuffer)proc("vkBeginCommandBuffer"))(parts_of(commands)[i],
                                                                          info);
    part_at = 0;
    return result;
}

static VkResult end(VkCommandBuffer commands)
{
    VkResult result = VK_SUCCESS;

    for (uint32_t i = 0; i < PARTS && !result; i++)
        result = ((PFN_vkEndCommandBuffer)proc("vkEndCommandBuffer"))(parts_of(commands)[i]);
    return result;
}

static VkResult submit_parts(VkQueue queue, uint32_t count, const VkSubmitInfo *info, VkFence fence)
{
    VkSubmitInfo all = *info;

    assert_int_equal(count * info->commandBufferCount, 1);
    all.commandBufferCount = PARTS;
    all.pCommandBuffers = parts_of(info->pCommandBuffers[0]);
    return ((PFN_vkQueueSubmit)proc("vkQueueSubmit"))(queue, 1, &all, fence);
}

static tandem_status record(tandem_session *session, const tandem_job *job,
                            VkCommandBuffer commands, tandem_ticket *ticket)
{
    const tandem_status status = tandem_record(session, job, parts_of(commands)[1], ticket);

    part_at = 2;
    return status;
}

#define tandem_record record
#define tandem_record_release(session, commands, ...) \
    tandem_record_release(session, part(commands), __VA_ARGS__)
#define tandem_record_acquire(session, commands, ...) \
    tandem_record_acquire(session, part(commands), __VA_ARGS__)
#define tandem_record_pack_images(session, commands, ...) \
    tandem_record_pack_images(session, part(commands), __VA_ARGS__)
#define tandem_record_unpack_images(session, commands, ...) \
    tandem_record_unpack_images(session, part(commands), __VA_ARGS__)
#define vkGetInstanceProcAddr gpu.gipa
#define vkAllocateCommandBuffers allocate
#define vkBeginCommandBuffer begin
#define vkEndCommandBuffer end
#define vkQueueSubmit submit_parts
#define vkCreateInstance make_instance
#define vkCreateDevice make_device
#define vkAllocateMemory ((PFN_vkAllocateMemory)proc("vkAllocateMemory"))
#define vkBindBufferMemory ((PFN_vkBindBufferMemory)proc("vkBindBufferMemory"))
#define vkBindImageMemory ((PFN_vkBindImageMemory)proc("vkBindImageMemory"))
#define vkCmdClearColorImage(commands, ...) \
    ((PFN_vkCmdClearColorImage)proc("vkCmdClearColorImage"))(part(commands), __VA_ARGS__)
#define vkCmdCopyImageToBuffer(commands, ...) \
    ((PFN_vkCmdCopyImageToBuffer)proc("vkCmdCopyImageToBuffer"))(part(commands), __VA_ARGS__)
#define vkCmdPipelineBarrier(commands, ...) \
    ((PFN_vkCmdPipelineBarrier)proc("vkCmdPipelineBarrier"))(part(commands), __VA_ARGS__)
#define vkCreateBuffer ((PFN_vkCreateBuffer)proc("vkCreateBuffer"))
#define vkCreateCommandPool ((PFN_vkCreateCommandPool)proc("vkCreateCommandPool"))
#define vkCreateFence ((PFN_vkCreateFence)proc("vkCreateFence"))
#define vkCreateImage ((PFN_vkCreateImage)proc("vkCreateImage"))
#define vkCreateImageView ((PFN_vkCreateImageView)proc("vkCreateImageView"))
#define vkDestroyBuffer ((PFN_vkDestroyBuffer)proc("vkDestroyBuffer"))
#define vkDestroyCommandPool ((PFN_vkDestroyCommandPool)proc("vkDestroyCommandPool"))
#define vkDestroyDevice ((PFN_vkDestroyDevice)proc("vkDestroyDevice"))
#define vkDestroyFence ((PFN_vkDestroyFence)proc("vkDestroyFence"))
#define vkDestroyImage ((PFN_vkDestroyImage)proc("vkDestroyImage"))
#define vkDestroyImageView ((PFN_vkDestroyImageView)proc("vkDestroyImageView"))
#define vkDestroyInstance ((PFN_vkDestroyInstance)gpu.gipa(of_example, "vkDestroyInstance"))
#define vkEnumeratePhysicalDevices \
    ((PFN_vkEnumeratePhysicalDevices)proc("vkEnumeratePhysicalDevices"))
#define vkFreeMemory ((PFN_vkFreeMemory)proc("vkFreeMemory"))
#define vkGetBufferMemoryRequirements \
    ((PFN_vkGetBufferMemoryRequirements)proc("vkGetBufferMemoryRequirements"))
#define vkGetDeviceQueue ((PFN_vkGetDeviceQueue)proc("vkGetDeviceQueue"))
#define vkGetImageMemoryRequirements \
    ((PFN_vkGetImageMemoryRequirements)proc("vkGetImageMemoryRequirements"))
#define vkGetPhysicalDeviceMemoryProperties \
    ((PFN_vkGetPhysicalDeviceMemoryProperties)proc("vkGetPhysicalDeviceMemoryProperties"))
#define vkGetPhysicalDeviceQueueFamilyProperties                                                  \
    ((PFN_vkGetPhysicalDeviceQueueFamilyProperties)proc("vkGetPhysicalDeviceQueueFamilyPropertie" \
                                                        "s"))
#define vkMapMemory ((PFN_vkMapMemory)proc("vkMapMemory"))
#define vkResetFences ((PFN_vkResetFences)proc("vkResetFences"))
#define vkWaitForFences ((PFN_vkWaitForFences)proc("vkWaitForFences"))
int example_of_images(int argc, char **argv);
#define main example_of_images
#include "engine_plugin/examples/vulkan_image.c"
#undef main

/* It looks at its results itself. */
static void test_example(void **state)
{
    char *const arguments[] = {(char *)"vulkan_image", (char *)"1"};

    (void)state;
    fake_nvx_state.launches = 0;
    assert_int_equal(example_of_images(2, (char **)arguments), 0);
    assert_true(fake_nvx_state.launches >= FRAMES);
}

static const struct CMUnitTest cases[] = {cmocka_unit_test(test_example)};
const test_cases inline_example_cases = TEST_CASES(cases);
