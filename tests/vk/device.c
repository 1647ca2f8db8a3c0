/* Devices: what they must have, how they are opened, what they can do, and what is left behind by one that hangs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>

#include "tests/vk/rig.h"

static void test_requirements(void **state)
{
    td_vk_requirement before[8], list[16], one[1];
    uint32_t count, all;
    bool feature = false;

    (void)state;
    assert_int_equal(td_vk_requirements(NULL, NULL, NULL, 8, before), 0);
    assert_int_equal(td_vk_requirements(gpu.gipa, NULL, NULL, 8, NULL), 0);
    count = td_vk_requirements(gpu.gipa, NULL, NULL, 8, before);
    assert_in_range(count, 1, 8);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(before[i].kind, 0);
    /* Without a physical device there is no more to say, and no crash. */
    assert_int_equal(td_vk_requirements(gpu.gipa, gpu.instance, NULL, 8, before), count);
    all = td_vk_requirements(gpu.gipa, gpu.instance, gpu.physical_device, 0, NULL);
    assert_true(all > count && all <= 16);
    memset(one, 0, sizeof one);
    assert_int_equal(td_vk_requirements(gpu.gipa, gpu.instance, gpu.physical_device, 1, one), all);
    assert_string_equal(one[0].name, before[0].name);
    assert_int_equal(td_vk_requirements(gpu.gipa, gpu.instance, gpu.physical_device, 16, list), all);
    for (uint32_t i = 0; i < all; i++) {
        assert_non_null(list[i].name);
        assert_true(list[i].buys && strlen(list[i].buys) > 10);
        assert_true(list[i].kind <= 2);
        for (uint32_t j = 0; j < i; j++)
            assert_string_not_equal(list[i].name, list[j].name);
        if (list[i].kind == 2) {
            if (strcmp(list[i].name, "bufferDeviceAddress") == 0) {
                assert_false(list[i].required);
                assert_int_equal(list[i].feature_struct,
                                 VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES);
                assert_int_equal(list[i].feature_offset,
                                 offsetof(VkPhysicalDeviceBufferDeviceAddressFeatures, bufferDeviceAddress));
                continue;
            }
            feature = true;
            assert_string_equal(list[i].name, "timelineSemaphore");
            assert_true(!list[i].required && list[i].available);
            assert_int_equal(list[i].feature_struct, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES);
            assert_int_equal(list[i].feature_offset,
                             offsetof(VkPhysicalDeviceTimelineSemaphoreFeatures, timelineSemaphore));
        }
    }
    assert_true(feature);
}

/* Opening */

static void test_open_refuses(void **state)
{
    const char *holes[] = {"VK_KHR_external_memory_fd", NULL};
    td_vk_desc good = vku_desc(&gpu), bad;
    td_vk *out = (td_vk *)&good;

    (void)state;
    assert_fails(td_vk_open(NULL, NULL, &out, why, sizeof why), TANDEM_ERROR_ARG, "desc");
    assert_null(out);
    assert_fails(td_vk_open(&good, NULL, NULL, why, sizeof why), TANDEM_ERROR_ARG, "out");
    assert_int_equal(td_vk_open(NULL, NULL, &out, NULL, 0), TANDEM_ERROR_ARG);
#define REFUSES(change, status, word)                                                                                  \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        change;                                                                                                        \
        assert_fails(td_vk_open(&bad, NULL, &out, why, sizeof why), status, word);                                     \
        assert_null(out);                                                                                              \
    } while (0)
    REFUSES(bad.get_instance_proc_addr = NULL, TANDEM_ERROR_ARG, "get_instance_proc_addr");
    REFUSES(bad.instance = VK_NULL_HANDLE, TANDEM_ERROR_ARG, "instance");
    REFUSES(bad.physical_device = VK_NULL_HANDLE, TANDEM_ERROR_ARG, "physical_device");
    REFUSES(bad.device = VK_NULL_HANDLE, TANDEM_ERROR_ARG, "device");
    REFUSES(bad.queue_family = 77, TANDEM_ERROR_ARG, "77");
    REFUSES(bad.enabled_extensions = NULL, TANDEM_ERROR_ARG, "enabled_extensions");
    REFUSES((bad.enabled_extensions = holes, bad.enabled_extension_count = 2), TANDEM_ERROR_ARG,
            "enabled_extensions[1]");
    REFUSES(bad.enabled_features = (const VkPhysicalDeviceFeatures2 *)&gpu.timeline, TANDEM_ERROR_ARG, "sType");
    REFUSES(bad.api_version = 0, TANDEM_ERROR_UNSUPPORTED, "api_version");
    REFUSES(bad.api_version = VK_API_VERSION_1_0, TANDEM_ERROR_UNSUPPORTED, "1.0");
    fault.fails = NULL;
    fault.hidden = "vkCmdDispatch";
    REFUSES(bad.get_instance_proc_addr = fault_instance, TANDEM_ERROR_UNSUPPORTED, "vkCmdDispatch");
    fault.hidden = "vkWaitSemaphores";
    REFUSES(bad.get_instance_proc_addr = fault_instance, TANDEM_ERROR_UNSUPPORTED, "vkWaitSemaphores");
    fault.hidden = "vkGetPhysicalDeviceProperties2";
    REFUSES(bad.get_instance_proc_addr = fault_instance, TANDEM_ERROR_UNSUPPORTED, "vkGetPhysicalDeviceProperties2");
    fault.hidden = NULL;
}

static void test_open_says_what_is_missing(void **state)
{
    VkPhysicalDeviceVulkan12Features features12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                                                   .timelineSemaphore = VK_TRUE};
    VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &features12};
    td_vk_desc desc = vku_desc(&gpu);
    td_vk *out = NULL;
    td_vk_mem mem;
    VkSemaphore semaphore;
    uint64_t a, b;

    (void)state;
    desc.enabled_extension_count = 0;
    desc.enabled_extensions = NULL;
    desc.enabled_features = &features; /* as another engine would have said it */
    assert_ok(td_vk_open(&desc, NULL, &out, why, sizeof why));
    assert_false(td_vk_get_caps(out)->export_memory);
    assert_false(td_vk_get_caps(out)->export_timeline);
    assert_false(td_vk_get_caps(out)->import_host);
    assert_false(td_vk_get_caps(out)->push_descriptor);
    assert_false(td_vk_get_caps(out)->calibrated);
    assert_non_null(strstr(td_vk_get_caps(out)->missing, "VK_KHR_external_memory_fd"));
    assert_non_null(strstr(td_vk_get_caps(out)->missing, "VK_KHR_external_semaphore_fd"));
    assert_fails(td_vk_mem_create_export(out, 4096, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                 "VK_KHR_external_memory_fd");
    assert_fails(td_vk_mem_create_host(out, 4096, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                 "VK_EXT_external_memory_host");
    assert_fails(td_vk_timeline_create(out, 0, true, &semaphore, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                 "VK_KHR_external_semaphore_fd");
    assert_int_equal(td_vk_calibrate(out, &a, &b), TANDEM_ERROR_UNSUPPORTED);
    td_vk_close(&out);
    assert_null(out);

    desc.enabled_features = NULL;
    assert_ok(td_vk_open(&desc, NULL, &out, why, sizeof why));
    td_vk_close(&out);

    /* An extension that was enabled and whose function is not there is as good as not enabled. */
    desc = vku_desc(&gpu);
    desc.get_instance_proc_addr = fault_instance;
    fault.hidden = "vkGetMemoryFdKHR";
    assert_ok(td_vk_open(&desc, NULL, &out, why, sizeof why));
    assert_false(td_vk_get_caps(out)->export_memory);
    td_vk_close(&out);
    fault.hidden = NULL;
}

/* Without the feature, or the extension that it takes below 1.2, there are no timelines, and all the rest. */
static void test_open_without_timelines(void **state)
{
    const VkPhysicalDeviceFeatures2 off = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
    td_vk_desc desc;
    VkSemaphore semaphore;
    td_vk *out;

    (void)state;
    for (int i = 0; i < 2; i++) {
        desc = vku_desc(&gpu);
        if (i)
            desc.api_version = VK_API_VERSION_1_1;
        else
            desc.enabled_features = &off;
        assert_ok(td_vk_open(&desc, NULL, &out, why, sizeof why));
        assert_false(td_vk_get_caps(out)->timeline || td_vk_get_caps(out)->export_timeline);
        assert_true(td_vk_get_caps(out)->export_memory == caps->export_memory);
        assert_non_null(strstr(td_vk_get_caps(out)->missing, "timelineSemaphore"));
        assert_fails(td_vk_timeline_create(out, 0, false, &semaphore, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                     "timelineSemaphore");
        td_vk_close(&out);
    }
}

static void keep_line(void *user, int level, const char *text)
{
    (void)level;
    snprintf(user, 512, "%s", text);
}

static void test_log(void **state)
{
    td_vk_desc desc = vku_desc(&gpu);
    char line[512] = "";
    td_log log = {keep_line, line};
    td_vk *out;

    (void)state;
    assert_ok(td_vk_open(&desc, &log, &out, why, sizeof why));
    assert_non_null(strstr(line, caps->name));
    assert_non_null(strstr(line, caps->missing));
    td_vk_close(&out);
}

static unsigned ends;

static bool over(td_vk_left *left)
{
    (void)left;
    ends++;
    return true;
}

static bool hangs(td_vk_left *left)
{
    (void)left;
    ends++;
    return false;
}

static void test_left_behind(void **state)
{
    td_vk_desc desc = vku_desc(&gpu);
    td_vk_left first = {.end = over}, second = {.end = hangs}, third = {.end = over};
    char line[512] = "";
    td_log log = {keep_line, line};
    td_vk *out;

    (void)state;
    assert_ok(td_vk_open(&desc, &log, &out, why, sizeof why));
    td_vk_leave(out, &first);
    td_vk_leave(out, &second);
    td_vk_leave(out, &third);
    ends = 0;
    line[0] = 0;
    td_vk_close(&out);
    assert_int_equal(ends, 3);
    assert_non_null(strstr(line, "never freed"));
}

static void test_caps(void **state)
{
    (void)state;
    print_message("%s: memory fd %d, timeline fd %d, host import %d, push descriptors %d, calibrated %d, labels %d; "
                  "missing: %s\n",
                  caps->name, caps->export_memory, caps->export_timeline, caps->import_host, caps->push_descriptor,
                  caps->calibrated, caps->debug_utils, caps->missing);
    assert_string_equal(caps->name, gpu.name);
    assert_int_equal(caps->export_memory && caps->export_timeline, caps->missing[0] == 0);
    assert_true(caps->max_storage_range >= 1 << 27);
    assert_true(caps->timestamp_period > 0);
    if (caps->import_host)
        assert_true(caps->host_alignment >= 4096 && (caps->host_alignment & (caps->host_alignment - 1)) == 0);
    if (gpu.validated)
        assert_true(caps->debug_utils);
    if (asked("TANDEM_EXPECT_GPU")) {
        assert_true(caps->export_memory);
        assert_true(caps->export_timeline);
        assert_true(caps->import_host);
        assert_true(caps->push_descriptor);
    }
}

static void test_vulkan_1_1(void **state)
{
    vku_options options = {.validation = true, .api_version = VK_API_VERSION_1_1};
    td_vk_pack pack = {.image_count = 1,
                       .layout = VK_IMAGE_LAYOUT_GENERAL,
                       .width = 2,
                       .height = 2,
                       .tile_width = 2,
                       .tile_height = 2,
                       .channels = 4,
                       .view_channels = 4,
                       .tiles_x = 1,
                       .tiles_y = 1,
                       .dtype = TANDEM_DTYPE_F32,
                       .stride_row = 4};
    const float texels[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    VkSemaphore semaphore;
    VkCommandBuffer commands;
    vku_image image;
    uint64_t value;
    td_vk_mem mem;
    td_vk_desc desc;
    td_vk *old;
    vku v;

    (void)state;
    assert_int_equal(vku_open(&v, &options), VKU_OK);
    desc = vku_desc(&v);
    assert_ok(td_vk_open(&desc, NULL, &old, why, sizeof why));
    assert_ok(td_vk_timeline_create(old, 3, false, &semaphore, why, sizeof why));
    assert_ok(td_vk_timeline_signal(old, semaphore, 4));
    assert_ok(td_vk_timeline_wait(old, semaphore, 4, 0));
    assert_ok(td_vk_timeline_value(old, semaphore, &value));
    assert_int_equal(value, 4);
    td_vk_timeline_destroy(old, &semaphore);
    assert_vk(vku_image_create(&v, VK_FORMAT_R32G32B32A32_SFLOAT, 2, 2, VK_IMAGE_USAGE_SAMPLED_BIT, &image));
    assert_vk(vku_image_upload(&v, &image, texels, VK_IMAGE_LAYOUT_GENERAL));
    assert_ok(td_vk_mem_create_host(old, sizeof texels, STORAGE, &mem, why, sizeof why));
    pack.images[0] = image.view;
    commands = vku_begin(&v);
    assert_ok(td_vk_record_pack(old, commands, &mem, &pack, why, sizeof why));
    td_vk_record_release(old, commands, &mem, false, SHADER, VK_ACCESS_SHADER_WRITE_BIT);
    assert_vk(vku_run(&v, commands));
    assert_memory_equal(mem.host, texels, sizeof texels);
    td_vk_mem_free(old, &mem);
    vku_image_destroy(&v, &image);
    td_vk_close(&old);
    vku_close(&v);
    assert_int_equal(v.errors, 0);
}

static const struct CMUnitTest cases[] = {
    TEST(test_requirements),
    TEST(test_open_refuses),
    TEST(test_open_says_what_is_missing),
    TEST(test_open_without_timelines),
    TEST(test_caps),
    TEST(test_log),
    TEST(test_left_behind),
    TEST(test_vulkan_1_1),
};
const test_cases vk_device_cases = TEST_CASES(cases);
