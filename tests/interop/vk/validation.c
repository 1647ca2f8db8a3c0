/* What silence of the validation layer means: each kind of fault is reported where it is made on purpose.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/interop/vk/rig.h"

typedef struct faults {
    vku v;
    td_vk *vk;
    td_vk_mem mem;
    vku_image image;
    td_vk_pack pack;
} faults;

static faults wrong;

static bool faults_open(void)
{
    vku_options options = {.validation = true};
    td_vk_desc desc;

    if (!gpu.validated || !can_pack())
        return false;
    assert_int_equal(vku_open(&wrong.v, &options), VKU_OK);
    assert_true(wrong.v.validated);
    wrong.v.quiet = true;
    desc = vku_desc(&wrong.v);
    assert_ok(td_vk_open(&desc, NULL, &wrong.vk, why, sizeof why));
    assert_ok(td_vk_mem_create_host(wrong.vk, 4096, STORAGE, &wrong.mem, why, sizeof why));
    assert_vk(
        vku_image_create(&wrong.v, VK_FORMAT_R32G32B32A32_SFLOAT, 4, 4, VK_IMAGE_USAGE_SAMPLED_BIT, &wrong.image));
    wrong.pack = (td_vk_pack){.image_count = 1,
                              .images = {wrong.image.view},
                              .layout = VK_IMAGE_LAYOUT_GENERAL,
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
    assert_int_equal(wrong.v.errors, 0);
    return true;
}

/* Closes cleanly, except for what was reported; returns how many errors closing added. */
static unsigned faults_close(void)
{
    unsigned before = wrong.v.errors;

    td_vk_mem_free(wrong.vk, &wrong.mem);
    vku_image_destroy(&wrong.v, &wrong.image);
    td_vk_close(&wrong.vk);
    vku_close(&wrong.v);
    return wrong.v.errors - before;
}

static void test_catches_invalid_usage(void **state)
{
    VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = 64};
    VkBuffer buffer = VK_NULL_HANDLE;

    (void)state;
    if (!faults_open())
        skip();
    if (wrong.v.CreateBuffer(wrong.v.device, &info, NULL, &buffer) == VK_SUCCESS)
        wrong.v.DestroyBuffer(wrong.v.device, buffer, NULL);
    assert_int_equal(wrong.v.errors, 1);
    assert_non_null(strstr(wrong.v.last_text, "VUID-VkBufferCreateInfo-usage-requiredbitmask"));
    assert_int_equal(faults_close(), 0);
}

static void test_catches_missing_barrier(void **state)
{
    (void)state;
    if (!faults_open())
        skip();
    for (int missing = 0; missing < 2; missing++) {
        VkCommandBuffer commands = vku_begin(&wrong.v);

        vku_image_barrier(&wrong.v, commands, &wrong.image, VK_IMAGE_LAYOUT_GENERAL);
        assert_ok(td_vk_record_pack(wrong.vk, commands, &wrong.mem, &wrong.pack, why, sizeof why));
        if (!missing)
            vku_full_barrier(&wrong.v, commands);
        /* Two dispatches would not do: the layer takes it that shaders write different parts of what is bound. */
        wrong.v.CmdFillBuffer(commands, wrong.mem.buffer, 0, VK_WHOLE_SIZE, 0);
        assert_vk(vku_run(&wrong.v, commands));
        assert_int_equal(wrong.v.errors > 0, missing);
    }
    assert_non_null(strstr(wrong.v.last_text, "SYNC-HAZARD-WRITE-AFTER-WRITE"));
    assert_int_equal(faults_close(), 0);
}

/* The barriers of release and acquire are themselves what keeps the layer silent. */
static void test_catches_missing_release(void **state)
{
    VkBufferCopy copy = {.size = 256, .dstOffset = 1024};

    (void)state;
    if (!faults_open())
        skip();
    for (int missing = 0; missing < 2; missing++) {
        VkCommandBuffer commands = vku_begin(&wrong.v);

        vku_image_barrier(&wrong.v, commands, &wrong.image, VK_IMAGE_LAYOUT_GENERAL);
        assert_ok(td_vk_record_pack(wrong.vk, commands, &wrong.mem, &wrong.pack, why, sizeof why));
        if (!missing) {
            td_vk_record_release(wrong.vk, commands, &wrong.mem, false, SHADER, VK_ACCESS_SHADER_WRITE_BIT);
            td_vk_record_acquire(wrong.vk, commands, &wrong.mem, false, VK_PIPELINE_STAGE_TRANSFER_BIT,
                                 VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT);
        }
        wrong.v.CmdCopyBuffer(commands, wrong.mem.buffer, wrong.mem.buffer, 1, &copy);
        assert_vk(vku_run(&wrong.v, commands));
        assert_int_equal(wrong.v.errors > 0, missing);
    }
    assert_non_null(strstr(wrong.v.last_text, "SYNC-HAZARD-READ-AFTER-WRITE"));
    assert_int_equal(faults_close(), 0);
}

static void test_catches_wrong_layout(void **state)
{
    VkCommandBuffer commands;

    (void)state;
    if (!faults_open())
        skip();
    commands = vku_begin(&wrong.v);
    vku_image_barrier(&wrong.v, commands, &wrong.image, VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL);
    assert_ok(td_vk_record_pack(wrong.vk, commands, &wrong.mem, &wrong.pack, why, sizeof why));
    assert_vk(vku_run(&wrong.v, commands));
    assert_true(wrong.v.errors > 0);
    assert_non_null(strstr(wrong.v.last_text, "ayout"));
    assert_int_equal(faults_close(), 0);
}

/* Of LeakSanitizer, where the program is built with it: this leak is made on purpose. */
void __lsan_disable(void) __attribute__((weak));
void __lsan_enable(void) __attribute__((weak));

static void test_catches_leak(void **state)
{
    VkSemaphore semaphore;

    (void)state;
    if (!faults_open())
        skip();
    if (__lsan_disable)
        __lsan_disable();
    assert_ok(td_vk_timeline_create(wrong.vk, 0, false, &semaphore, why, sizeof why));
    if (__lsan_enable)
        __lsan_enable();
    assert_int_equal(wrong.v.errors, 0);
    assert_int_equal(faults_close(), 1);
    assert_non_null(strstr(wrong.v.last_text, "VkSemaphore"));
}

static const struct CMUnitTest cases[] = {
    TEST(test_catches_invalid_usage),
    TEST(test_catches_missing_barrier),
    TEST(test_catches_missing_release),
    TEST(test_catches_wrong_layout),
    TEST(test_catches_leak),
};
const test_cases vk_validation_cases = TEST_CASES(cases);
