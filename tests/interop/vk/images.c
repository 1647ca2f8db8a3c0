/* Images in the formats of G-buffers and swapchains to tensors and back: every number of every format, sizes, layers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "tests/interop/vk/images_rig.h"

#define FORMAT(name) (&texel_formats[name])

static const uint32_t dtypes[2] = {TANDEM_DTYPE_F32, TANDEM_DTYPE_F16};

static uint32_t from_float(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Packing */

static uint32_t each_code(const image_case *c, uint32_t n, uint32_t component)
{
    (void)c;
    return n + 85 * component;
}

/* The least, the largest, and some of those between. */
static uint32_t some_codes(const image_case *c, uint32_t n, uint32_t component)
{
    (void)c;
    (void)component;
    return n < 8192 ? n : n < 16384 ? 0xffffff - (n - 8192) : noise_bits();
}

static image_case each_value_of(const texel_format *format)
{
    image_case c = {.format = format, .width = 256, .height = 1, .channels = format->channels, .bits = each_code};

    if (format->numbers == UNORM10)
        c.width = 1024;
    if (format->numbers == FLOAT11)
        c.width = 2048;
    if (format->numbers == FLOAT16 || format->numbers == FLOAT32 || format->numbers == DEPTH24)
        c.height = 256;
    if (format->numbers == FLOAT32)
        c.bits = NULL;
    if (format->numbers == DEPTH24)
        c.bits = some_codes;
    return c;
}

static void test_pack_each_value(void **state)
{
    (void)state;
    if (!can_pack())
        skip();
    for (uint32_t f = 0; f < TEXEL_FORMATS; f++)
        for (uint32_t d = 0; d < 2; d++) {
            image_case c = each_value_of(FORMAT(f));

            /* A GPU has at least one of the two formats with 24 bits of depth. */
            if (!device_takes(c.format, VK_FORMAT_FEATURE_SAMPLED_IMAGE_BIT) && c.format->numbers == DEPTH24)
                continue;
            c.dtype = dtypes[d];
            check_pack(&c, 1);
        }
}

/* Lines and texels with gaps between them, which f16 may begin and end within a word. */
static void each_shape(const texel_format *format, void (*check)(const image_case *cases, uint32_t count),
                       uint32_t (*bits)(const image_case *c, uint32_t n, uint32_t component))
{
    static const uint32_t shapes[][7] = {
        /* width, height, the image is larger by, first, gap behind a texel, behind a line */
        {1, 1, 0, 0, 0, 0, 0}, {1, 1, 2, 3, 1, 1, 1},  {63, 65, 0, 0, 0, 0, 0}, {63, 65, 0, 0, 3, 0, 1},
        {65, 63, 7, 2, 8, 1, 0}, {64, 3, 0, 0, 5, 3, 5}, {1, 65, 1, 0, 1, 0, 0}, {129, 1, 0, 1, 130, 17, 0},
    };

    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (uint32_t channels = 1; channels <= format->channels; channels++)
            for (uint32_t d = 0; d < 2; d++) {
                const image_case c = {.format = format,
                                      .width = shapes[s][0],
                                      .height = shapes[s][1],
                                      .more_width = shapes[s][2],
                                      .more_height = shapes[s][3],
                                      .first = shapes[s][4],
                                      .pad_texel = shapes[s][5],
                                      .pad_line = shapes[s][6],
                                      .channels = channels,
                                      .dtype = dtypes[d],
                                      .bits = bits};

                check(&c, 1);
            }
}

static void test_pack_shapes(void **state)
{
    (void)state;
    if (!can_pack())
        skip();
    each_shape(FORMAT(BGRA8), check_pack, NULL);
    each_shape(FORMAT(RGBA16F), check_pack, NULL);
}

/* Everything that a G-buffer has, by one call; the images come from and go to different layouts. */
static void test_pack_eight(void **state)
{
    const image_case cases[MAX_CASES] = {
        {.format = FORMAT(0), .width = 63, .height = 65, .channels = 3, .dtype = TANDEM_DTYPE_F16},
        {.format = FORMAT(RGB10A2), .width = 1, .height = 1, .channels = 4, .dtype = TANDEM_DTYPE_F32,
         .layout_after = VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL},
        {.format = FORMAT(RGBA16F), .width = 200, .height = 3, .channels = 4, .dtype = TANDEM_DTYPE_F16, .first = 8,
         .layout_after = VK_IMAGE_LAYOUT_GENERAL},
        {.format = FORMAT(R11G11B10F), .width = 3, .height = 200, .channels = 3, .dtype = TANDEM_DTYPE_F32, .pad_texel = 5},
        {.format = FORMAT(RG16F), .width = 64, .height = 64, .channels = 1, .dtype = TANDEM_DTYPE_F16, .pad_line = 1,
         .layout_after = VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL},
        {.format = FORMAT(R32F), .width = 65, .height = 5, .channels = 1, .dtype = TANDEM_DTYPE_F32,
         .layout_after = VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL},
        {.format = FORMAT(D32F), .width = 65, .height = 63, .channels = 1, .dtype = TANDEM_DTYPE_F32, .more_width = 3,
         .layout_after = VK_IMAGE_LAYOUT_DEPTH_STENCIL_READ_ONLY_OPTIMAL},
        {.format = FORMAT(D32F + 1), .width = 7, .height = 63, .channels = 1, .dtype = TANDEM_DTYPE_F16, .first = 3,
         .layout_after = VK_IMAGE_LAYOUT_DEPTH_STENCIL_ATTACHMENT_OPTIMAL},
    };

    (void)state;
    if (!can_pack())
        skip();
    for (uint32_t count = 2; count <= MAX_CASES; count += 3)
        check_pack(cases, count);
}

static void test_pack_storage(void **state)
{
    (void)state;
    if (!can_pack())
        skip();
    for (uint32_t f = 0; f < TEXEL_FORMATS; f++) {
        image_case c = each_value_of(FORMAT(f)), both[2];
        td_vk_image image = {.format = c.format->format, .usage = VK_IMAGE_USAGE_STORAGE_BIT};
        VkCommandBuffer commands;

        if (!device_takes(c.format, VK_FORMAT_FEATURE_STORAGE_IMAGE_BIT))
            continue;
        if (caps->read_without_format) {
            c.dtype = TANDEM_DTYPE_F32;
            both[0] = both[1] = c;
            both[1].storage = true;
            check_pack(both, 2);
            continue;
        }
        commands = vku_begin(&gpu);
        image.view = (VkImageView)(uintptr_t)1;
        image.mem = &(td_vk_mem){.buffer = (VkBuffer)(uintptr_t)1};
        assert_fails(td_vk_record_pack_images(vk, commands, &image, 1, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                     "shaderStorageImageReadWithoutFormat");
        assert_vk(vku_run(&gpu, commands));
    }
}

/* Two layers of one image, and a third that is left alone. */
static void test_pack_layers(void **state)
{
    enum { WIDTH = 9, HEIGHT = 5, TEXELS = WIDTH * HEIGHT };
    VkImageViewCreateInfo first = {.sType = VK_STRUCTURE_TYPE_IMAGE_VIEW_CREATE_INFO,
                                   .viewType = VK_IMAGE_VIEW_TYPE_2D,
                                   .format = VK_FORMAT_R32_SFLOAT,
                                   .subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1}};
    float texels[2][TEXELS];
    td_vk_image images[2];
    VkCommandBuffer commands;
    vku_image image, other;
    td_vk_mem mem;

    (void)state;
    if (!can_pack())
        skip();
    assert_vk(vku_image_create_layer(&gpu, VK_FORMAT_R32_SFLOAT, WIDTH, HEIGHT, 3, 2, VK_IMAGE_USAGE_SAMPLED_BIT, &image));
    first.image = image.image;
    other = image;
    other.layer = 0;
    assert_vk(gpu.CreateImageView(gpu.device, &first, NULL, &other.view));
    assert_ok(td_vk_mem_create_host(vk, sizeof texels, STORAGE, &mem, why, sizeof why));
    for (int i = 0; i < 2 * TEXELS; i++)
        texels[i / TEXELS][i % TEXELS] = (float)i;
    assert_vk(vku_image_upload(&gpu, &other, texels[0], VK_IMAGE_LAYOUT_GENERAL));
    assert_vk(vku_image_upload(&gpu, &image, texels[1], VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL));
    for (int i = 0; i < 2; i++)
        images[i] = (td_vk_image){.image = image.image,
                                  .view = i ? image.view : other.view,
                                  .format = image.format,
                                  .usage = VK_IMAGE_USAGE_SAMPLED_BIT,
                                  .image_extent = {WIDTH, HEIGHT},
                                  .extent = {WIDTH, HEIGHT},
                                  .layer = i ? 2 : 0,
                                  .layout_before = i ? image.layout : other.layout,
                                  .layout_after = VK_IMAGE_LAYOUT_GENERAL,
                                  .src_stage = VK_PIPELINE_STAGE_TRANSFER_BIT,
                                  .src_access = VK_ACCESS_TRANSFER_WRITE_BIT,
                                  .channels = 1,
                                  .mem = &mem,
                                  .dtype = TANDEM_DTYPE_F32,
                                  .offset_bytes = (uint64_t)i * sizeof texels[0],
                                  .stride_line = WIDTH,
                                  .stride_texel = 1};
    commands = vku_begin(&gpu);
    assert_ok(td_vk_record_pack_images(vk, commands, images, 2, why, sizeof why));
    td_vk_record_release(vk, commands, &mem, TD_VK_PEER_HOST, SHADER, VK_ACCESS_SHADER_WRITE_BIT);
    assert_vk(vku_run(&gpu, commands));
    assert_memory_equal(mem.host, texels, sizeof texels);
    td_vk_mem_free(vk, &mem);
    gpu.DestroyImageView(gpu.device, other.view, NULL);
    vku_image_destroy(&gpu, &image);
}

/* Three images side by side in the rows of one tensor of odd length: they write halves of the same words. The commands run twice. */
static void test_pack_into_one_tensor(void **state)
{
    enum { WIDTH = 67, HEIGHT = 33, IMAGES = 3, CHANNELS = 5 };
    static const uint32_t channels[IMAGES] = {1, 3, 1}, at[IMAGES] = {0, 1, 4};
    static _Float16 texels[IMAGES][WIDTH * HEIGHT][4];
    const VkFenceCreateInfo fence_info = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    td_vk_image images[IMAGES];
    vku_image made[IMAGES];
    VkCommandBuffer commands;
    VkFence fences[2];
    td_vk_mem mem;

    (void)state;
    if (!can_pack())
        skip();
    assert_ok(td_vk_mem_create_host(vk, td_align_up(WIDTH * HEIGHT * CHANNELS * 2, 4), STORAGE, &mem, why, sizeof why));
    for (int i = 0; i < IMAGES; i++) {
        for (int n = 0; n < 4 * WIDTH * HEIGHT; n++)
            texels[i][n / 4][n % 4] = (_Float16)(float)(noise_bits() % 2048);
        assert_vk(vku_image_create(&gpu, VK_FORMAT_R16G16B16A16_SFLOAT, WIDTH, HEIGHT, VK_IMAGE_USAGE_SAMPLED_BIT, &made[i]));
        assert_vk(vku_image_upload(&gpu, &made[i], texels[i], VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL));
        images[i] = (td_vk_image){.view = made[i].view, /* and no image, as its layout is right and nothing is waited for */
                                  .format = made[i].format,
                                  .usage = VK_IMAGE_USAGE_SAMPLED_BIT | VK_IMAGE_USAGE_STORAGE_BIT,
                                  .image_extent = {WIDTH, HEIGHT},
                                  .extent = {WIDTH, HEIGHT},
                                  .layout_before = made[i].layout,
                                  .channels = channels[i],
                                  .mem = &mem,
                                  .dtype = TANDEM_DTYPE_F16,
                                  .offset_bytes = at[i] * 2,
                                  .stride_line = WIDTH * CHANNELS,
                                  .stride_texel = CHANNELS};
    }
    assert_vk(gpu.CreateFence(gpu.device, &fence_info, NULL, &fences[0]));
    assert_vk(gpu.CreateFence(gpu.device, &fence_info, NULL, &fences[1]));
    commands = vku_begin(&gpu);
    assert_ok(td_vk_record_pack_images(vk, commands, images, IMAGES, why, sizeof why));
    td_vk_record_release(vk, commands, &mem, TD_VK_PEER_HOST, SHADER, VK_ACCESS_SHADER_WRITE_BIT);
    assert_vk(gpu.EndCommandBuffer(commands));
    for (int again = 0; again < 2; again++) {
        const VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &commands};

        memset(mem.host, again ? 0 : 0xff, mem.bytes);
        assert_vk(gpu.QueueSubmit(gpu.queue, 1, &submit, fences[again]));
        assert_vk(gpu.WaitForFences(gpu.device, 1, &fences[again], VK_TRUE, VKU_TIMEOUT_NS));
        for (int n = 0; n < WIDTH * HEIGHT; n++)
            for (int i = 0; i < IMAGES; i++)
                assert_memory_equal((_Float16 *)mem.host + n * CHANNELS + at[i], texels[i][n], channels[i] * sizeof(_Float16));
        gpu.DestroyFence(gpu.device, fences[again], NULL);
    }
    gpu.FreeCommandBuffers(gpu.device, gpu.pool, 1, &commands);
    td_vk_mem_free(vk, &mem);
    for (int i = 0; i < IMAGES; i++)
        vku_image_destroy(&gpu, &made[i]);
}

/* Unpacking */

/* Numbers around those where it is decided which one of a format's is stored. */
static uint32_t near_edges(const image_case *c, uint32_t n, uint32_t component)
{
    static const float special[] = {0, -0.0f, 1, -1, 0.5f, 2, INFINITY, -INFINITY, NAN, 65504, 65519.99f, 65520, 65024, 65025,
                                    64512, 64513, 0x1p-14f, 0x1.fcp-15f, 0x1p-20f, 0x1p-21f, 0x1.000002p-21f, 0x1p-24f, 0x1p-25f,
                                    0x1p-140f};
    const uint32_t r = noise_bits();
    const float most = c->format->numbers == UNORM8 ? 255 : component == 3 ? 3 : 1023;
    const uint32_t dropped = c->format->numbers == FLOAT16 ? 13 : component == 2 ? 18 : 17;

    if (c->dtype == TANDEM_DTYPE_F16)
        return n + 85 * component;
    if (r % 8 == 0)
        return from_float(special[(r >> 3) % (sizeof special / sizeof *special)]);
    if (r % 8 == 1)
        return noise_bits();
    if (is_normalised(c->format) || r % 8 == 2)
        return from_float(((float)(r % 1100) - 19.5f) / most) + (r >> 11) % 3 - 1;
    /* Halfway between two numbers of the format, from 2^-30 on. */
    return (r & 0x80000000) | (97 + (r >> 3) % 48) << 23 | (noise_bits() & 0x7fffff) >> dropped << dropped | 1u << (dropped - 1);
}

/* To a format that the device does not store to, it is refused. */
static void unpack_alone(const image_case *c)
{
    const td_vk_mem mem = {.buffer = (VkBuffer)(uintptr_t)1};
    const td_vk_image image = {.view = (VkImageView)(uintptr_t)1, .format = c->format->format,
                               .usage = VK_IMAGE_USAGE_STORAGE_BIT, .mem = &mem};
    VkCommandBuffer commands;

    if (device_takes(c->format, VK_FORMAT_FEATURE_STORAGE_IMAGE_BIT)) {
        check_unpack(c, 1);
        return;
    }
    commands = vku_begin(&gpu);
    assert_fails(td_vk_record_unpack_images(vk, commands, &image, 1, why, sizeof why), TANDEM_ERROR_UNSUPPORTED, c->format->name);
    assert_vk(vku_run(&gpu, commands));
}

static void test_unpack_each_value(void **state)
{
    (void)state;
    if (!can_pack())
        skip();
    for (uint32_t f = 0; f < D32F; f++)
        for (uint32_t d = 0; d < 2; d++) {
            const image_case c = {.format = FORMAT(f), .width = 256, .height = 256, .channels = FORMAT(f)->channels,
                                  .dtype = dtypes[d], .bits = near_edges};

            if (c.format->numbers != SRGB8)
                unpack_alone(&c);
        }
}

static void test_unpack_shapes(void **state)
{
    (void)state;
    if (!can_pack())
        skip();
    each_shape(FORMAT(0), check_unpack, near_edges);
    each_shape(FORMAT(RG16F), check_unpack, near_edges);
}

static void test_unpack_eight(void **state)
{
    static const uint32_t formats[MAX_CASES] = {0, BGRA8, RGB10A2, R16F, RG16F, RGBA16F, R11G11B10F, RGBA32F};
    image_case cases[MAX_CASES];

    (void)state;
    if (!can_pack())
        skip();
    for (uint32_t i = 0; i < MAX_CASES; i++) {
        const texel_format *format = FORMAT(formats[i]);

        if (!device_takes(format, VK_FORMAT_FEATURE_STORAGE_IMAGE_BIT))
            format = FORMAT(R32F);
        cases[i] = (image_case){.format = format, .width = 1 + 30 * i, .height = 65 - 7 * i, .channels = format->channels,
                                .dtype = dtypes[i % 2], .first = i, .bits = near_edges,
                                .layout_after = i % 3 ? VK_IMAGE_LAYOUT_UNDEFINED : VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL};
    }
    check_unpack(cases, MAX_CASES);
}

/* Meanings */

/* Halves from 0 to 1. */
static uint32_t unit_halves(const image_case *c, uint32_t n, uint32_t component)
{
    (void)c;
    return (n * 7 + component * 1000) % 0x3c01;
}

/* Halves from -1 to 1. */
static uint32_t signed_halves(const image_case *c, uint32_t n, uint32_t component)
{
    (void)n;
    return unit_halves(c, noise_bits() >> 8, component) | (noise_bits() & 0x8000);
}

static uint32_t unit_floats(const image_case *c, uint32_t n, uint32_t component)
{
    if (c->dtype == TANDEM_DTYPE_F16)
        return unit_halves(c, n, component);
    return from_float((float)(noise_bits() >> 8) / 16777215.0f * (noise_bits() % 4 ? 1.0f : 0.01f));
}

static uint32_t directions(const image_case *c, uint32_t n, uint32_t component)
{
    if (n == 0)
        return 0;
    if (c->dtype == TANDEM_DTYPE_F16)
        return signed_halves(c, n, component);
    return unit_floats(c, n, component) | (noise_bits() & 0x80000000);
}

static void test_transfers_and_exposure(void **state)
{
    static const struct {
        uint32_t format, transfer;
        float exposure;
    } list[] = {
        {0, SRGB, 0}, {BGRA8, SRGB, 0.37f}, {RGB10A2, SRGB, 3}, {RGB10A2, PQ, 0}, {RGB10A2, PQ, 125}, {RGBA16F, SRGB, 0.01f},
        {RGBA16F, LINEAR, 0.3f}, {RGBA16F, PQ, 0.5f}, {R11G11B10F, LINEAR, 1e-3f}, {RGBA32F, LINEAR, 1e4f}, {0, LINEAR, 0.7f},
    };

    (void)state;
    if (!can_pack())
        skip();
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (uint32_t d = 0; d < 2; d++) {
            image_case c = each_value_of(FORMAT(list[i].format));

            c.dtype = dtypes[d];
            c.transfer = list[i].transfer;
            c.exposure = list[i].exposure;
            if (c.format->numbers == FLOAT16 && c.transfer)
                c.bits = unit_halves;
            check_pack(&c, 1);
            c.bits = c.transfer ? unit_floats : near_edges;
            if (c.transfer && c.exposure > 1)
                c.exposure = 1 / c.exposure;
            c.width = c.height = 128;
            unpack_alone(&c);
        }
}

static void test_normals(void **state)
{
    static const struct {
        uint32_t format, encoding;
    } list[] = {{0, NORMAL}, {RGB10A2, NORMAL}, {RGBA16F, NORMAL}, {0, OCTAHEDRAL}, {RGB10A2, OCTAHEDRAL}, {RG16F, OCTAHEDRAL},
                {RGBA16F, OCTAHEDRAL}};

    (void)state;
    if (!can_pack())
        skip();
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (uint32_t d = 0; d < 2; d++) {
            image_case c = {.format = FORMAT(list[i].format), .width = 128, .height = 129, .encoding = list[i].encoding,
                            .dtype = dtypes[d], .channels = 3};

            c.bits = c.format->numbers == FLOAT16 ? signed_halves : NULL;
            check_pack(&c, 1);
            c.bits = directions;
            unpack_alone(&c);
        }
}

static const struct CMUnitTest cases[] = {
    TEST(test_pack_each_value),
    TEST(test_pack_shapes),
    TEST(test_pack_eight),
    TEST(test_pack_storage),
    TEST(test_pack_layers),
    TEST(test_pack_into_one_tensor),
    TEST(test_unpack_each_value),
    TEST(test_unpack_shapes),
    TEST(test_unpack_eight),
    TEST(test_transfers_and_exposure),
    TEST(test_normals),
};
const test_cases vk_images_cases = TEST_CASES(cases);
