/* The C texts of INTEGRATION.md, word for word, at work on a device under the validation layer.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * test_example.sh checks that each of them is here as it is there.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "interop/base.h"
#include "tandem/vulkan.h"
#include "tests/vk_util.h"

static void enable(VkPhysicalDeviceVulkan12Features *engine, const tandem_requirement *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (list[i].kind != TANDEM_REQUIREMENT_FEATURE || !list[i].available)
            continue;
        if (!strcmp(list[i].name, "timelineSemaphore"))
            engine->timelineSemaphore = VK_TRUE;
        else if (!strcmp(list[i].name, "bufferDeviceAddress"))
            engine->bufferDeviceAddress = VK_TRUE;
    }
}

/* A second device of this instance, with this chain of features. */
static VkDevice new_device(vku *vk, const VkPhysicalDeviceFeatures2 *features)
{
    const float priority = 1;
    const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                           .queueFamilyIndex = vk->queue_family,
                                           .queueCount = 1,
                                           .pQueuePriorities = &priority};
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = features,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue,
                                     .enabledExtensionCount = vk->extension_count,
                                     .ppEnabledExtensionNames = vk->extensions};
    VkDevice device;

    assert_int_equal(vk->CreateDevice(vk->physical_device, &info, NULL, &device), VK_SUCCESS);
    return device;
}

static tandem_vulkan describe(const vku *vk, VkDevice device, const VkPhysicalDeviceFeatures2 *features)
{
    return (tandem_vulkan){.struct_bytes = sizeof(tandem_vulkan),
                           .api_version = vk->api_version,
                           .get_instance_proc_addr = vk->gipa,
                           .instance = vk->instance,
                           .physical_device = vk->physical_device,
                           .device = device,
                           .queue_family = vk->queue_family,
                           .enabled_extension_count = vk->extension_count,
                           .enabled_extensions = vk->extensions,
                           .enabled_features = features};
}

static void open_vulkan(vku *vk)
{
    const vku_options options = {.validation = true};

    switch (vku_open(vk, &options)) {
    case VKU_OK: return;
    case VKU_NO_VULKAN: skip(); break;
    default: fail_msg("Vulkan is there and does not work");
    }
}

static void close_vulkan(vku *vk)
{
    vku_close(vk);
    if (vk->errors)
        fail_msg("validation: %s", vk->last_text);
}

/* A session whose points are semaphores: the features were enabled, and it knows. */
static void expect_semaphores(const tandem_vulkan *vulkan)
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CPU, .vulkan = vulkan};
    const tandem_timeline_desc timeline_desc = {.struct_bytes = sizeof timeline_desc};
    tandem_timeline timeline;
    tandem_session *s;
    VkSemaphore semaphore;

    assert_int_equal(tandem_session_create(&desc, &s), TANDEM_OK);
    assert_int_equal(tandem_timeline_create(s, &timeline_desc, &timeline), TANDEM_OK);
    assert_int_equal(tandem_timeline_get_vulkan(s, timeline, &semaphore), TANDEM_OK);
    assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
}

static uint32_t ask(const vku *vk, tandem_requirement list[32])
{
    uint32_t count = 32;

    list[0].struct_bytes = sizeof *list;
    assert_int_equal(tandem_vulkan_requirements(vk->gipa, vk->instance, vk->physical_device, &count, list), TANDEM_OK);
    return count;
}

static void test_features_by_name(void **state)
{
    VkPhysicalDeviceVulkan12Features engine = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    const VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &engine};
    tandem_requirement list[32];
    tandem_vulkan vulkan;
    VkDevice device;
    vku vk;

    (void)state;
    open_vulkan(&vk);
    enable(&engine, list, ask(&vk, list));
    assert_int_equal(engine.timelineSemaphore, VK_TRUE);
    device = new_device(&vk, &features);
    vulkan = describe(&vk, device, &features);
    expect_semaphores(&vulkan);
    vk.DestroyDevice(device, NULL);
    close_vulkan(&vk);
}

/* The chain from the list alone, with no struct known by its name. */
static void test_features_by_size(void **state)
{
    VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
    _Alignas(8) char room[8][64] = {{0}};
    tandem_requirement list[32];
    uint32_t count, used = 0;
    tandem_vulkan vulkan;
    VkDevice device;
    vku vk;

    (void)state;
    open_vulkan(&vk);
    count = ask(&vk, list);
    for (uint32_t i = 0; i < count; i++) {
        const VkBaseOutStructure head = {list[i].feature_struct, features.pNext};
        const VkBool32 on = VK_TRUE;

        if (list[i].kind != TANDEM_REQUIREMENT_FEATURE || !list[i].available)
            continue;
        assert_true(used < 8 && list[i].feature_struct_bytes <= sizeof room[0]);
        memcpy(room[used], &head, sizeof head);
        memcpy(room[used] + list[i].feature_offset, &on, sizeof on);
        features.pNext = room[used++];
    }
    assert_true(used > 0);
    device = new_device(&vk, &features);
    vulkan = describe(&vk, device, &features);
    expect_semaphores(&vulkan);
    vk.DestroyDevice(device, NULL);
    close_vulkan(&vk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_features_by_name),
        cmocka_unit_test(test_features_by_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
