/* Devices: what they must have, how they are opened, what they can do, and what is left behind by one that hangs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>

#include "tests/interop/vk/rig.h"

/* What a driver offers, by name; asked of no device it is never there. */
static void test_offers(void **state)
{
    const td_vk_item debug = {.name = VK_EXT_DEBUG_UTILS_EXTENSION_NAME, .kind = TD_VK_INSTANCE_EXTENSION},
                     memory = {.name = VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME, .kind = TD_VK_DEVICE_EXTENSION},
                     none = {.name = "VK_KHR_no_such_thing", .kind = TD_VK_DEVICE_EXTENSION};
    td_vk_item timeline = {.name = "timelineSemaphore",
                           .kind = TD_VK_FEATURE,
                           .feature_struct = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES,
                           .feature_offset = offsetof(VkPhysicalDeviceTimelineSemaphoreFeatures, timelineSemaphore),
                           .feature_struct_bytes = sizeof(VkPhysicalDeviceTimelineSemaphoreFeatures),
                           .extension = VK_KHR_TIMELINE_SEMAPHORE_EXTENSION_NAME};

    (void)state;
    assert_true(td_vk_offers(gpu.gipa, gpu.instance, gpu.physical_device, &timeline));
    assert_false(td_vk_offers(gpu.gipa, gpu.instance, gpu.physical_device, &none));
    assert_true(td_vk_offers(gpu.gipa, gpu.instance, gpu.physical_device, &memory) == caps->export_memory);
    assert_true(td_vk_offers(gpu.gipa, NULL, NULL, &debug) == caps->debug_utils);
    assert_false(td_vk_offers(gpu.gipa, NULL, NULL, &memory));
    assert_false(td_vk_offers(gpu.gipa, gpu.instance, NULL, &timeline));
    timeline.feature_struct_bytes = 1 << 20; /* a struct that nobody has */
    assert_false(td_vk_offers(gpu.gipa, gpu.instance, gpu.physical_device, &timeline));
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
    REFUSES(bad.enabled_features = (const VkPhysicalDeviceFeatures2 *)gpu.enabled.features.pNext, TANDEM_ERROR_ARG, "sType");
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
    assert_string_equal(td_vk_get_caps(out)->lacks.memory_export,
                        caps->lacks.memory_export ? caps->lacks.memory_export : "is not enabled");
    assert_non_null(strstr(td_vk_get_caps(out)->lacks.semaphore_export, "is not "));
    assert_string_equal(td_vk_get_caps(out)->lacks.address_feature, "is not enabled");
    assert_null(td_vk_get_caps(out)->lacks.timeline_feature);
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
    assert_true(caps->lacks.memory_export || strstr(td_vk_get_caps(out)->lacks.memory_export, "lacks functions"));
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
        assert_string_equal(td_vk_get_caps(out)->lacks.timeline_feature, "is not enabled");
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
    assert_non_null(strstr(line, "exported"));
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
    print_message("%s: memory fd %d, timeline fd %d, host import %d, push descriptors %d, calibrated %d, labels %d\n",
                  caps->name, caps->export_memory, caps->export_timeline, caps->import_host, caps->push_descriptor,
                  caps->calibrated, caps->debug_utils);
    assert_string_equal(caps->name, gpu.name);
    assert_true(caps->export_memory == !caps->lacks.memory_export && caps->export_timeline == !caps->lacks.semaphore_export);
    assert_true(caps->max_storage_range >= 1 << 27);
    assert_true(caps->timestamp_period > 0);
    if (caps->import_host)
        assert_true(caps->host_alignment >= 4096 && (caps->host_alignment & (caps->host_alignment - 1)) == 0);
    if (gpu.validated)
        assert_true(caps->debug_utils);
    if (expects_gpu()) {
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
    TEST(test_offers),
    TEST(test_open_refuses),
    TEST(test_open_says_what_is_missing),
    TEST(test_open_without_timelines),
    TEST(test_caps),
    TEST(test_log),
    TEST(test_left_behind),
    TEST(test_vulkan_1_1),
};
const test_cases vk_device_cases = TEST_CASES(cases);
