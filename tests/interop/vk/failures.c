/* Drivers whose calls fail: each failure is told by name, and nothing leaks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>

#include "tests/interop/vk/rig.h"

static void test_failing_calls(void **state)
{
    static const struct {
        VkResult result;
        tandem_status status;
        const char *text;
    } results[] = {
        {VK_ERROR_OUT_OF_DEVICE_MEMORY, TANDEM_ERROR_NOMEM, "VK_ERROR_OUT_OF_DEVICE_MEMORY"},
        {VK_ERROR_OUT_OF_HOST_MEMORY, TANDEM_ERROR_NOMEM, "VK_ERROR_OUT_OF_HOST_MEMORY"},
        {VK_ERROR_DEVICE_LOST, TANDEM_ERROR_LOST, "VK_ERROR_DEVICE_LOST"},
        {VK_ERROR_UNKNOWN, TANDEM_ERROR_DEVICE, "VK_ERROR_UNKNOWN"},
        {(VkResult)-987654, TANDEM_ERROR_DEVICE, "-987654"},
    };
    static const char *const of_host[] = {"vkCreateBuffer", "vkAllocateMemory", "vkBindBufferMemory",
                                          "vkGetMemoryHostPointerPropertiesEXT"};
    static const char *const of_export[] = {"vkCreateBuffer", "vkAllocateMemory", "vkBindBufferMemory"};
    static const char *const of_pack[] = {"vkCreateDescriptorSetLayout", "vkCreatePipelineLayout",
                                          "vkCreateShaderModule", "vkCreateComputePipelines"};
    td_vk_pack pack = {.image_count = 1,
                       .layout = VK_IMAGE_LAYOUT_GENERAL,
                       .format = VK_FORMAT_R32G32B32A32_SFLOAT,
                       .width = 4,
                       .height = 4,
                       .tile_width = 4,
                       .tile_height = 4,
                       .channels = 4,
                       .view_channels = 4,
                       .tiles_x = 1,
                       .tiles_y = 1,
                       .dtype = TANDEM_DTYPE_F32,
                       .stride_row = 4};
    int fds = vku_open_fds(), fd;
    VkCommandBuffer commands;
    VkSemaphore semaphore;
    td_vk_mem mem, out;
    vku_image image;
    uint64_t a, b;
    td_vk *faulty;

    (void)state;
    for (size_t r = 0; r < sizeof results / sizeof *results; r++) {
        tandem_status status = results[r].status;
        const char *text = results[r].text;

        for (size_t i = 0; caps->import_host && i < sizeof of_host / sizeof *of_host; i++) {
            faulty = open_faulty(of_host[i], results[r].result);
            assert_fails(td_vk_mem_create_host(faulty, 4096, STORAGE, &out, why, sizeof why), status, text);
            assert_non_null(strstr(why, of_host[i]));
            td_vk_close(&faulty);
        }
        for (size_t i = 0; caps->export_memory && i < sizeof of_export / sizeof *of_export; i++) {
            faulty = open_faulty(of_export[i], results[r].result);
            assert_fails(td_vk_mem_create_export(faulty, 4096, STORAGE, &out, why, sizeof why), status, text);
            assert_non_null(strstr(why, of_export[i]));
            td_vk_close(&faulty);
        }
        if (caps->export_memory) {
            assert_ok(td_vk_mem_create_export(vk, 65536, STORAGE, &mem, why, sizeof why));
            faulty = open_faulty("vkGetMemoryFdKHR", results[r].result);
            assert_fails(td_vk_mem_export_fd(faulty, &mem, &fd, why, sizeof why), status, "vkGetMemoryFdKHR");
            assert_int_equal(fd, -1);
            td_vk_close(&faulty);
            faulty = open_faulty("vkBindBufferMemory", results[r].result);
            if (!mem.dedicated)
                assert_fails(
                    td_vk_mem_wrap(faulty, mem.memory, mem.allocation_bytes, 0, 65536, false, &out, why, sizeof why),
                    status, text);
            td_vk_close(&faulty);
            td_vk_mem_free(vk, &mem);
        }
        if (can_pack()) {
            assert_vk(vku_image_create(&gpu, pack.format, 4, 4, VK_IMAGE_USAGE_SAMPLED_BIT | VK_IMAGE_USAGE_STORAGE_BIT,
                                       &image));
            pack.images[0] = image.view;
            assert_ok(td_vk_mem_create_host(vk, 4096, STORAGE, &mem, why, sizeof why));
            commands = vku_begin(&gpu);
            for (size_t i = 0; i < sizeof of_pack / sizeof *of_pack; i++) {
                faulty = open_faulty(of_pack[i], results[r].result);
                /* Twice: what was half built the first time must not be in the way. */
                for (int twice = 0; twice < 2; twice++) {
                    assert_fails(td_vk_record_pack(faulty, commands, &mem, &pack, why, sizeof why), status, of_pack[i]);
                    assert_fails(td_vk_record_unpack(faulty, commands, &mem, &pack, why, sizeof why), status, text);
                }
                td_vk_close(&faulty);
            }
            assert_vk(vku_run(&gpu, commands));
            td_vk_mem_free(vk, &mem);
            vku_image_destroy(&gpu, &image);
        }
        faulty = open_faulty("vkCreateSemaphore", results[r].result);
        assert_fails(td_vk_timeline_create(faulty, 0, false, &semaphore, why, sizeof why), status, text);
        assert_true(semaphore == VK_NULL_HANDLE);
        td_vk_close(&faulty);
        assert_ok(td_vk_timeline_create(vk, 0, false, &semaphore, why, sizeof why));
        faulty = open_faulty("vkWaitSemaphores", results[r].result);
        assert_int_equal(td_vk_timeline_wait(faulty, semaphore, 1, 0), status);
        td_vk_close(&faulty);
        faulty = open_faulty("vkSignalSemaphore", results[r].result);
        assert_int_equal(td_vk_timeline_signal(faulty, semaphore, 1), status);
        td_vk_close(&faulty);
        faulty = open_faulty("vkGetSemaphoreCounterValue", results[r].result);
        assert_int_equal(td_vk_timeline_value(faulty, semaphore, &a), status);
        assert_int_equal(td_vk_timeline_signal(faulty, semaphore, 1), status);
        td_vk_close(&faulty);
        td_vk_timeline_destroy(vk, &semaphore);
        if (caps->calibrated) {
            faulty = open_faulty("vkGetCalibratedTimestampsEXT", results[r].result);
            assert_int_equal(td_vk_calibrate(faulty, &a, &b), status);
            td_vk_close(&faulty);
        }
    }
    fault.fails = NULL;
    assert_int_equal(vku_open_fds(), fds);
}

/* How many mappings of ours this process has. */
static int open_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1024];
    int count = 0;

    assert_non_null(maps);
    while (fgets(line, sizeof line, maps))
        count += strstr(line, "memfd:tandem") != NULL;
    fclose(maps);
    return count;
}

static void test_nothing_leaks(void **state)
{
    td_vk_desc desc = vku_desc(&gpu);
    int fds = 0;

    (void)state;
    for (int cycle = 0; cycle < 60; cycle++) {
        VkSemaphore semaphore, exported = VK_NULL_HANDLE;
        td_vk_mem host = {0}, shared = {0};
        td_vk *own;
        int fd = -1;

        if (cycle == 1) /* the first cycle may open what stays */
            fds = vku_open_fds();
        assert_ok(td_vk_open(&desc, NULL, &own, why, sizeof why));
        assert_ok(td_vk_timeline_create(own, 0, false, &semaphore, why, sizeof why));
        if (caps->import_host) {
            assert_ok(td_vk_mem_create_host(own, 1 << 16, STORAGE, &host, why, sizeof why));
            assert_int_equal(open_mappings(), 1);
        }
        if (caps->export_memory) {
            assert_ok(td_vk_mem_create_export(own, 1 << 16, STORAGE, &shared, why, sizeof why));
            assert_ok(td_vk_mem_export_fd(own, &shared, &fd, why, sizeof why));
            td_fd_close(&fd);
        }
        if (caps->export_timeline) {
            assert_ok(td_vk_timeline_create(own, 0, true, &exported, why, sizeof why));
            assert_ok(td_vk_timeline_export_fd(own, exported, &fd, why, sizeof why));
            td_fd_close(&fd);
        }
        td_vk_timeline_destroy(own, &exported);
        td_vk_timeline_destroy(own, &semaphore);
        td_vk_mem_free(own, &shared);
        td_vk_mem_free(own, &host);
        td_vk_close(&own);
    }
    assert_int_equal(open_mappings(), 0);
    assert_int_equal(vku_open_fds(), fds);
}

static void test_null(void **state)
{
    td_vk *none = NULL;
    td_vk_mem mem = {0};

    (void)state;
    td_vk_close(NULL);
    td_vk_close(&none);
    assert_null(td_vk_get_caps(NULL));
    td_vk_name(NULL, VK_OBJECT_TYPE_BUFFER, 1, "x");
    td_vk_name(vk, VK_OBJECT_TYPE_BUFFER, 0, "x");
    td_vk_label_begin(NULL, NULL, "x");
    td_vk_label_begin(vk, NULL, NULL);
    td_vk_label_end(NULL, NULL);
    td_vk_record_release(NULL, NULL, NULL, true, 0, 0);
    td_vk_record_release(vk, NULL, &mem, true, 0, 0);
    td_vk_record_acquire(NULL, NULL, NULL, false, 0, 0);
    td_vk_record_acquire(vk, NULL, &mem, false, 0, 0);
}

static const struct CMUnitTest cases[] = {
    TEST(test_failing_calls),
    TEST(test_nothing_leaks),
    TEST(test_null),
};
const test_cases vk_failures_cases = TEST_CASES(cases);
