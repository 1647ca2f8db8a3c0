/* Images that a G-buffer has, to tensors that a job reads, and what it writes to an image again, on each rung.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "tests/plugin/session/rig.h"

enum { WIDTH = 63, HEIGHT = 5, TEXELS = WIDTH * HEIGHT, CHANNELS = 4, SUM_AT = TEXELS * CHANNELS * 2 };

static tandem_pack_image image_of(const vku_image *image, VkImageUsageFlags usage, tandem_mem mem, uint64_t offset_bytes)
{
    return (tandem_pack_image){.struct_bytes = sizeof(tandem_pack_image),
                               .format = image->format,
                               .image = image->image,
                               .view = image->view,
                               .usage = usage,
                               .image_extent = {WIDTH, HEIGHT},
                               .extent = {WIDTH, HEIGHT},
                               .layout_before = image->layout,
                               .src_stage = VK_PIPELINE_STAGE_TRANSFER_BIT,
                               .src_access = VK_ACCESS_TRANSFER_WRITE_BIT,
                               .channels = CHANNELS,
                               .tensor = tandem_view_dense(mem, offset_bytes, TANDEM_DTYPE_F16, HEIGHT, WIDTH, CHANNELS)};
}

/* y = x + x, which halves hold as they are. */
static void image_frame(rig *r)
{
    const tandem_mem mem = new_mem(r, 2 * SUM_AT);
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_BINARY};
    unsigned char codes[TEXELS][CHANNELS];
    _Float16 sums[TEXELS][CHANNELS];
    tandem_pack_image pack, unpack;
    vku_image from, to;
    VkCommandBuffer commands;

    for (int i = 0; i < TEXELS * CHANNELS; i++)
        codes[i / CHANNELS][i % CHANNELS] = (unsigned char)(i * 7);
    memset(sums, 0, sizeof sums);
    assert_int_equal(vku_image_create(&r->vk, VK_FORMAT_R8G8B8A8_UNORM, WIDTH, HEIGHT, VK_IMAGE_USAGE_SAMPLED_BIT, &from), 0);
    assert_int_equal(vku_image_create(&r->vk, VK_FORMAT_R16G16B16A16_SFLOAT, WIDTH, HEIGHT, VK_IMAGE_USAGE_STORAGE_BIT, &to), 0);
    assert_int_equal(vku_image_upload(&r->vk, &from, codes, VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL), 0);
    assert_int_equal(vku_image_upload(&r->vk, &to, sums, VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL), 0);
    pack = image_of(&from, VK_IMAGE_USAGE_SAMPLED_BIT, mem, 0);
    unpack = image_of(&to, VK_IMAGE_USAGE_STORAGE_BIT, mem, SUM_AT);

    commands = vku_begin(&r->vk);
    assert_int_equal(tandem_record_pack_images(r->s, commands, &pack, 1), TANDEM_OK);
    assert_int_equal(
        tandem_record_release(r->s, commands, mem, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT), TANDEM_OK);
    assert_int_equal(vku_run(&r->vk, commands), VK_SUCCESS);

    job.op.binary = (tandem_binary){.a = pack.tensor, .b = pack.tensor, .y = unpack.tensor, .batch = 1, .heads = HEIGHT,
                                    .rows = WIDTH, .channels = CHANNELS};
    assert_int_equal(ended(r, submit(r, &job)).state, TANDEM_JOB_DONE);

    commands = vku_begin(&r->vk);
    assert_int_equal(
        tandem_record_acquire(r->s, commands, mem, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT), TANDEM_OK);
    assert_int_equal(tandem_record_unpack_images(r->s, commands, &unpack, 1), TANDEM_OK);
    assert_int_equal(vku_run(&r->vk, commands), VK_SUCCESS);
    to.layout = VK_IMAGE_LAYOUT_GENERAL;
    assert_int_equal(vku_image_readback(&r->vk, &to, sums), VK_SUCCESS);

    for (int i = 0; i < TEXELS * CHANNELS; i++) {
        const float want = 2 * (float)(_Float16)((float)codes[i / CHANNELS][i % CHANNELS] / 255.0f);
        const float got = (float)sums[i / CHANNELS][i % CHANNELS];

        if (got != want)
            fail_msg("texel %d, channel %d is %a, not %a", i / CHANNELS, i % CHANNELS, (double)got, (double)want);
    }
    vku_image_destroy(&r->vk, &from);
    vku_image_destroy(&r->vk, &to);
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
}

static void test_image_frames(void **state)
{
    static const rig_kind kinds[] = {ON_VULKAN, ON_VULKAN_CPU, ON_VULKAN_HALF, ON_TIMELINE, ON_COPY};
    bool ran = false;

    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        rig r;

        if (!rig_open(&r, kinds[i]))
            continue;
        image_frame(&r);
        rig_close(&r);
        ran = true;
    }
    if (!ran)
        skip();
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_image_frames),
};
const test_cases session_images_cases = TEST_CASES(cases);
