/* Images to views and back: pack, unpack, and the pipelines for them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/interop/vk/rig.h"

typedef struct shape {
    uint32_t width, height, tile_width, tile_height, shift_x, shift_y, halo;
    uint32_t images, channels, view_channels, dtype;
    uint32_t first, pad_row, pad_batch; /* in elements */
    bool interleaved;                   /* the batches of a row lie side by side */
    VkFormat format;
} shape;

static const shape packs[] = {
    {1, 1, 1, 1, 0, 0, 0, 1, 1, 1, TANDEM_DTYPE_F32, 0, 0, 0, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {1, 1, 4, 4, 3, 2, 1, 1, 3, 3, TANDEM_DTYPE_F16, 2, 1, 0, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {17, 9, 8, 4, 0, 0, 0, 1, 4, 4, TANDEM_DTYPE_F32, 0, 0, 0, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {17, 9, 8, 4, 5, 3, 2, 2, 7, 9, TANDEM_DTYPE_F16, 6, 1, 4, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {31, 23, 7, 5, 6, 4, 3, 3, 11, 32, TANDEM_DTYPE_F16, 1000, 0, 0, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {31, 23, 7, 5, 1, 0, 1, 4, 16, 16, TANDEM_DTYPE_F32, 3, 5, 7, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {64, 36, 16, 12, 8, 6, 0, 4, 13, 15, TANDEM_DTYPE_F16, 0, 3, 2, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {20, 12, 8, 8, 0, 4, 0, 2, 8, 8, TANDEM_DTYPE_F32, 64, 2, 0, true, VK_FORMAT_R32G32B32A32_SFLOAT},
    {20, 12, 8, 8, 2, 4, 5, 1, 2, 5, TANDEM_DTYPE_F16, 4, 1, 0, true, VK_FORMAT_R32G32B32A32_SFLOAT},
    {33, 5, 64, 64, 0, 0, 0, 1, 1, 2, TANDEM_DTYPE_F32, 0, 0, 0, false, VK_FORMAT_R32_SFLOAT},
    {19, 21, 8, 8, 7, 7, 1, 1, 4, 6, TANDEM_DTYPE_F16, 0, 0, 0, false, VK_FORMAT_R16G16B16A16_SFLOAT},
};

static uint32_t random_state = 1;

static uint32_t random_bits(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

/* Ordinary numbers, and those where rounding to half precision goes wrong first. */
static float sample(void)
{
    static const float special[] = {0.0f,
                                    -0.0f,
                                    1.0f,
                                    65504.0f,
                                    65519.99f,
                                    65520.0f,
                                    -65520.0f,
                                    1e30f,
                                    INFINITY,
                                    -INFINITY,
                                    NAN,
                                    0x1p-14f,
                                    0x1.ffcp-15f,
                                    0x1.ffep-15f,
                                    0x1.fffp-15f,
                                    0x1p-24f,
                                    0x1p-25f,
                                    0x1.000002p-25f,
                                    0x1.8p-24f,
                                    0x1.8p-25f,
                                    -0x1p-26f,
                                    1.0f + 0x1p-11f,
                                    1.0f + 0x1.8p-10f,
                                    1.0f + 0x1.8p-11f,
                                    0x1.002p0f,
                                    2047.5f,
                                    2048.5f,
                                    2049.0f,
                                    -2051.0f};
    uint32_t r = random_bits();

    if (r % 8 == 0)
        return special[random_bits() % (sizeof special / sizeof *special)];
    if (r % 8 == 1)
        return ldexpf((float)(random_bits() & 0xffffff) / 16777216.0f - 0.5f, (int)(random_bits() % 20) - 26);
    return ((float)(random_bits() & 0xffffff) / 16777216.0f - 0.5f) * 8.0f;
}

static float as_half(float x)
{
    return (float)(_Float16)x;
}

static uint32_t float_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static bool same_float(float a, float b)
{
    return (isnan(a) && isnan(b)) || float_bits(a) == float_bits(b);
}

static td_vk_pack pack_of(const shape *s, bool unpack)
{
    uint32_t even = s->dtype == TANDEM_DTYPE_F16 ? 1 : 0;
    uint32_t width = unpack ? s->channels : s->view_channels;
    td_vk_pack p = {.image_count = s->images,
                    .layout = VK_IMAGE_LAYOUT_GENERAL,
                    .format = s->format,
                    .width = s->width,
                    .height = s->height,
                    .tile_width = s->tile_width,
                    .tile_height = s->tile_height,
                    .shift_x = s->shift_x,
                    .shift_y = s->shift_y,
                    .halo = s->halo,
                    .channels = s->channels,
                    .view_channels = s->view_channels,
                    .dtype = s->dtype,
                    .first_element = s->first};
    uint32_t rows = (s->tile_width + 2 * s->halo) * (s->tile_height + 2 * s->halo), batches;

    p.tiles_x = (s->width + s->shift_x + s->tile_width - 1) / s->tile_width;
    p.tiles_y = (s->height + s->shift_y + s->tile_height - 1) / s->tile_height;
    batches = p.tiles_x * p.tiles_y;
    if (s->interleaved) {
        p.stride_batch = (int64_t)((width + s->pad_row + even) & ~even);
        p.stride_row = p.stride_batch * (int64_t)batches;
    } else {
        p.stride_row = (int64_t)((width + s->pad_row + even) & ~even);
        p.stride_batch = (int64_t)((rows * (uint64_t)p.stride_row + s->pad_batch + even) & ~(uint64_t)even);
    }
    return p;
}

static uint64_t view_elements(const td_vk_pack *p, uint32_t width)
{
    uint64_t rows = (p->tile_width + 2ull * p->halo) * (p->tile_height + 2ull * p->halo);
    uint64_t batches = (uint64_t)p->tiles_x * p->tiles_y;

    return p->first_element + (batches - 1) * (uint64_t)p->stride_batch + (rows - 1) * (uint64_t)p->stride_row + width;
}

static vku_image make_image(const shape *s, float *texels, VkImageUsageFlags usage, VkImageLayout layout)
{
    size_t values = (size_t)s->width * s->height * 4;
    _Float16 *halves;
    vku_image image;

    assert_vk(vku_image_create(&gpu, s->format, s->width, s->height, usage, &image));
    if (s->format == VK_FORMAT_R16G16B16A16_SFLOAT) {
        halves = malloc(values * sizeof *halves);
        assert_non_null(halves);
        for (size_t i = 0; i < values; i++) {
            halves[i] = (_Float16)texels[i];
            texels[i] = (float)halves[i];
        }
        assert_vk(vku_image_upload(&gpu, &image, halves, layout));
        free(halves);
    } else if (s->format == VK_FORMAT_R32_SFLOAT) {
        float *packed = malloc(values);

        assert_non_null(packed);
        for (size_t i = 0; i < values / 4; i++) {
            packed[i] = texels[4 * i];
            texels[4 * i + 1] = texels[4 * i + 2] = 0;
            texels[4 * i + 3] = 1;
        }
        assert_vk(vku_image_upload(&gpu, &image, packed, layout));
        free(packed);
    } else {
        assert_vk(vku_image_upload(&gpu, &image, texels, layout));
    }
    return image;
}

static int32_t clamp_to(int32_t x, uint32_t size)
{
    return x < 0 ? 0 : x >= (int32_t)size ? (int32_t)size - 1 : x;
}

static void check_packed(const shape *s, const td_vk_pack *p, float *const texels[4], const void *bytes, size_t size,
                         unsigned char fill)
{
    uint32_t row_width = s->tile_width + 2 * s->halo, rows = row_width * (s->tile_height + 2 * s->halo);
    unsigned char *touched = calloc(size, 1);
    size_t element = s->dtype == TANDEM_DTYPE_F16 ? 2 : 4;

    assert_non_null(touched);
    for (uint32_t b = 0; b < p->tiles_x * p->tiles_y; b++)
        for (uint32_t r = 0; r < rows; r++) {
            int32_t x = (int32_t)(b % p->tiles_x * s->tile_width + r % row_width) - (int32_t)(s->shift_x + s->halo);
            int32_t y = (int32_t)(b / p->tiles_x * s->tile_height + r / row_width) - (int32_t)(s->shift_y + s->halo);
            size_t pixel = (size_t)clamp_to(y, s->height) * s->width + (size_t)clamp_to(x, s->width);

            for (uint32_t c = 0; c < s->view_channels; c++) {
                float want = c < s->channels ? texels[c / 4][4 * pixel + c % 4] : 0, got;
                size_t at = s->first + b * (size_t)p->stride_batch + r * (size_t)p->stride_row + c;

                if (element == 2) {
                    _Float16 half;

                    memcpy(&half, (const char *)bytes + 2 * at, 2);
                    got = (float)half;
                    want = as_half(want);
                } else {
                    memcpy(&got, (const char *)bytes + 4 * at, 4);
                }
                if (!same_float(want, got))
                    fail_msg("batch %u row %u channel %u: %a, not %a", b, r, c, (double)got, (double)want);
                memset(touched + at * element, 1, element);
            }
        }
    /* What lies between the rows belongs to somebody else. */
    for (size_t i = 0; i < size; i++)
        if (!touched[i] && ((const unsigned char *)bytes)[i] != fill)
            fail_msg("byte %zu was overwritten", i);
    free(touched);
}

static void run_pack(const shape *s, bool device_memory, uint64_t offset)
{
    VkImageLayout layout = s->width % 2 ? VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL : VK_IMAGE_LAYOUT_GENERAL;
    td_vk_pack pack = pack_of(s, false);
    uint64_t size = view_elements(&pack, s->view_channels) * (s->dtype == TANDEM_DTYPE_F16 ? 2 : 4);
    float *texels[4] = {NULL, NULL, NULL, NULL};
    VkCommandBuffer commands;
    vku_image images[4];
    vku_buffer staging;
    VkBufferCopy copy;
    td_vk_mem outer, mem;

    size = td_align_up(size, 4) + 64;
    for (uint32_t i = 0; i < s->images; i++) {
        texels[i] = malloc((size_t)s->width * s->height * 4 * sizeof(float));
        assert_non_null(texels[i]);
        for (size_t j = 0; j < (size_t)s->width * s->height * 4; j++)
            texels[i][j] = sample();
        images[i] = make_image(s, texels[i], VK_IMAGE_USAGE_SAMPLED_BIT, layout);
        pack.images[i] = images[i].view;
    }
    pack.layout = layout;
    if (device_memory)
        assert_ok(td_vk_mem_create_export(vk, size, STORAGE, &outer, why, sizeof why));
    else
        assert_ok(td_vk_mem_create_host(vk, offset + size, STORAGE, &outer, why, sizeof why));
    mem = offset ? mem_within(&outer, offset) : outer;
    assert_vk(vku_buffer_create(&gpu, size, VK_BUFFER_USAGE_TRANSFER_DST_BIT, &staging));
    copy = (VkBufferCopy){.size = size};
    commands = vku_begin(&gpu);
    gpu.CmdFillBuffer(commands, mem.buffer, 0, VK_WHOLE_SIZE, 0xabababab);
    vku_full_barrier(&gpu, commands);
    assert_ok(td_vk_record_pack(vk, commands, &mem, &pack, why, sizeof why));
    if (device_memory) {
        vku_full_barrier(&gpu, commands);
        gpu.CmdCopyBuffer(commands, mem.buffer, staging.buffer, 1, &copy);
        vku_full_barrier(&gpu, commands);
    } else {
        td_vk_record_release(vk, commands, &mem, false, SHADER, VK_ACCESS_SHADER_WRITE_BIT);
    }
    assert_vk(vku_run(&gpu, commands));
    check_packed(s, &pack, texels, device_memory ? staging.host : mem.host, size, 0xab);
    for (uint64_t i = 0; i < offset; i++)
        assert_int_equal(((unsigned char *)outer.host)[i], 0xab);
    vku_buffer_destroy(&gpu, &staging);
    td_vk_mem_free(vk, &outer);
    for (uint32_t i = 0; i < s->images; i++) {
        vku_image_destroy(&gpu, &images[i]);
        free(texels[i]);
    }
}

bool can_pack(void)
{
    return caps->push_descriptor && caps->import_host;
}

static void test_pack(void **state)
{
    (void)state;
    if (!can_pack())
        skip();
    for (size_t i = 0; i < sizeof packs / sizeof *packs; i++)
        for (uint64_t offset = 0; offset <= 4160; offset += 4160) /* in a buffer of the engine's */
            run_pack(&packs[i], false, offset);
}

static void test_pack_into_exported_memory(void **state)
{
    (void)state;
    if (!can_pack() || !caps->export_memory)
        skip();
    run_pack(&packs[3], true, 0);
    run_pack(&packs[5], true, 0);
}

static void test_pack_normalised(void **state)
{
    unsigned char texels[16 * 16 * 4];
    td_vk_pack pack = {.image_count = 1,
                       .layout = VK_IMAGE_LAYOUT_GENERAL,
                       .width = 16,
                       .height = 16,
                       .tile_width = 16,
                       .tile_height = 16,
                       .channels = 4,
                       .view_channels = 4,
                       .tiles_x = 1,
                       .tiles_y = 1,
                       .dtype = TANDEM_DTYPE_F32,
                       .stride_row = 4};
    VkCommandBuffer commands;
    vku_image image;
    td_vk_mem mem;

    (void)state;
    if (!can_pack())
        skip();
    for (size_t i = 0; i < sizeof texels; i++)
        texels[i] = (unsigned char)(i & 255);
    assert_vk(vku_image_create(&gpu, VK_FORMAT_R8G8B8A8_UNORM, 16, 16, VK_IMAGE_USAGE_SAMPLED_BIT, &image));
    assert_vk(vku_image_upload(&gpu, &image, texels, VK_IMAGE_LAYOUT_GENERAL));
    assert_ok(td_vk_mem_create_host(vk, sizeof texels * 4, STORAGE, &mem, why, sizeof why));
    pack.images[0] = image.view;
    commands = vku_begin(&gpu);
    assert_ok(td_vk_record_pack(vk, commands, &mem, &pack, why, sizeof why));
    td_vk_record_release(vk, commands, &mem, false, SHADER, VK_ACCESS_SHADER_WRITE_BIT);
    assert_vk(vku_run(&gpu, commands));
    for (size_t i = 0; i < sizeof texels; i++)
        assert_true(fabsf(((float *)mem.host)[i] - (float)texels[i] / 255.0f) < 1e-6f);
    td_vk_mem_free(vk, &mem);
    vku_image_destroy(&gpu, &image);
}

/* More tiles than one dimension of a grid may have groups. */
static void test_pack_many_tiles(void **state)
{
    const uint32_t width = 3840, height = 2160, tile = 8, columns = width / tile, pixels = width * height;
    td_vk_pack pack = {.image_count = 1,
                       .layout = VK_IMAGE_LAYOUT_GENERAL,
                       .width = width,
                       .height = height,
                       .tile_width = tile,
                       .tile_height = tile,
                       .channels = 1,
                       .view_channels = 1,
                       .tiles_x = columns,
                       .tiles_y = height / tile,
                       .dtype = TANDEM_DTYPE_F32,
                       .stride_batch = 64,
                       .stride_row = 1};
    float *texels = malloc(pixels * sizeof *texels);
    VkCommandBuffer commands;
    vku_image image;
    td_vk_mem mem;

    (void)state;
    if (!can_pack()) {
        free(texels);
        skip();
    }
    assert_non_null(texels);
    for (uint32_t i = 0; i < pixels; i++)
        texels[i] = (float)i;
    assert_vk(vku_image_create(&gpu, VK_FORMAT_R32_SFLOAT, width, height, VK_IMAGE_USAGE_SAMPLED_BIT, &image));
    assert_vk(vku_image_upload(&gpu, &image, texels, VK_IMAGE_LAYOUT_GENERAL));
    assert_ok(td_vk_mem_create_host(vk, pixels * 4ull, STORAGE, &mem, why, sizeof why));
    pack.images[0] = image.view;
    commands = vku_begin(&gpu);
    assert_ok(td_vk_record_pack(vk, commands, &mem, &pack, why, sizeof why));
    td_vk_record_release(vk, commands, &mem, false, SHADER, VK_ACCESS_SHADER_WRITE_BIT);
    assert_vk(vku_run(&gpu, commands));
    for (uint32_t i = 0; i < pixels; i++) {
        uint32_t batch = i / 64, row = i % 64;
        uint32_t want = (batch / columns * tile + row / tile) * width + batch % columns * tile + row % tile;

        if (((float *)mem.host)[i] != (float)want)
            fail_msg("element %u: %f, not %u", i, (double)((float *)mem.host)[i], want);
    }
    td_vk_mem_free(vk, &mem);
    vku_image_destroy(&gpu, &image);
    free(texels);
}

static const shape unpacks[] = {
    {1, 1, 1, 1, 0, 0, 0, 1, 1, 1, TANDEM_DTYPE_F32, 0, 0, 0, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {17, 9, 8, 4, 5, 3, 0, 1, 3, 3, TANDEM_DTYPE_F16, 2, 1, 2, false, VK_FORMAT_R16G16B16A16_SFLOAT},
    {17, 9, 8, 4, 5, 3, 0, 1, 3, 3, TANDEM_DTYPE_F16, 6, 0, 0, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {31, 23, 7, 5, 6, 4, 0, 1, 4, 4, TANDEM_DTYPE_F32, 1001, 3, 1, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {31, 23, 7, 5, 1, 0, 0, 1, 2, 2, TANDEM_DTYPE_F32, 3, 5, 7, false, VK_FORMAT_R16G16B16A16_SFLOAT},
    {20, 12, 8, 8, 2, 4, 0, 1, 4, 4, TANDEM_DTYPE_F16, 4, 2, 0, true, VK_FORMAT_R16G16B16A16_SFLOAT},
};

static void test_unpack(void **state)
{
    (void)state;
    if (!can_pack())
        skip();
    for (size_t n = 0; n < 2 * sizeof unpacks / sizeof *unpacks; n++) {
        const shape *s = &unpacks[n / 2];
        td_vk_pack unpack = pack_of(s, true);
        size_t size_of = s->dtype == TANDEM_DTYPE_F16 ? 2 : 4, elements, pixels = (size_t)s->width * s->height;
        float *texels = malloc(pixels * 16), *source;
        VkCommandBuffer commands;
        vku_image image;
        td_vk_mem mem;

        /* The second time, every tile reads the same tokens. */
        if (n % 2)
            unpack.stride_batch = 0;
        elements = view_elements(&unpack, s->channels);
        source = malloc(elements * sizeof *source);
        assert_true(texels && source);
        for (size_t i = 0; i < 4 * pixels; i++)
            texels[i] = -7;
        image = make_image(s, texels, VK_IMAGE_USAGE_STORAGE_BIT, VK_IMAGE_LAYOUT_GENERAL);
        assert_ok(td_vk_mem_create_host(vk, td_align_up(elements * size_of, 4), STORAGE, &mem, why, sizeof why));
        for (size_t i = 0; i < elements; i++) {
            source[i] = sample();
            if (size_of == 2) {
                ((_Float16 *)mem.host)[i] = (_Float16)source[i];
                source[i] = as_half(source[i]);
            } else {
                ((float *)mem.host)[i] = source[i];
            }
        }
        unpack.images[0] = image.view;
        commands = vku_begin(&gpu);
        td_vk_record_acquire(vk, commands, &mem, false, SHADER, VK_ACCESS_SHADER_READ_BIT);
        assert_ok(td_vk_record_unpack(vk, commands, &mem, &unpack, why, sizeof why));
        assert_vk(vku_run(&gpu, commands));
        assert_vk(vku_image_readback(&gpu, &image, texels));
        for (size_t i = 0; i < 4 * pixels; i++) {
            uint32_t c = (uint32_t)(i % 4), x = (uint32_t)(i / 4 % s->width), y = (uint32_t)(i / 4 / s->width);
            uint32_t tile_x = (x + s->shift_x) / s->tile_width, tile_y = (y + s->shift_y) / s->tile_height;
            uint32_t row = (y + s->shift_y) % s->tile_height * s->tile_width + (x + s->shift_x) % s->tile_width;
            size_t at = s->first + (tile_y * unpack.tiles_x + tile_x) * (size_t)unpack.stride_batch +
                        row * (size_t)unpack.stride_row + c;
            float want = c < s->channels ? source[at] : 1, got;

            if (s->format == VK_FORMAT_R16G16B16A16_SFLOAT) {
                got = (float)((_Float16 *)texels)[i];
                want = as_half(want);
            } else {
                got = texels[i];
            }
            if (!same_float(want, got))
                fail_msg("shape %zu pixel %u %u channel %u: %a, not %a", n, x, y, c, (double)got, (double)want);
        }
        td_vk_mem_free(vk, &mem);
        vku_image_destroy(&gpu, &image);
        free(texels);
        free(source);
    }
}

/* Views longer than maxStorageBufferRange are bound piece by piece. */
static void test_pack_in_small_ranges(void **state)
{
    td_vk_caps *lowered = (td_vk_caps *)td_vk_get_caps(vk);
    uint64_t range = lowered->max_storage_range;

    if (!can_pack())
        skip();
    lowered->max_storage_range = 33 << 10; /* a little more than the largest tile */
    test_pack(state);
    test_unpack(state);
    test_pack_many_tiles(state);
    lowered->max_storage_range = range;
}

static void test_pack_refuses(void **state)
{
    td_vk_pack good = {.image_count = 1,
                       .layout = VK_IMAGE_LAYOUT_GENERAL,
                       .format = VK_FORMAT_R32G32B32A32_SFLOAT,
                       .width = 16,
                       .height = 16,
                       .tile_width = 8,
                       .tile_height = 8,
                       .channels = 4,
                       .view_channels = 4,
                       .tiles_x = 2,
                       .tiles_y = 2,
                       .dtype = TANDEM_DTYPE_F16,
                       .stride_batch = 256,
                       .stride_row = 4};
    td_vk_mem mem, none = {0};
    VkCommandBuffer commands;
    td_vk_pack bad;
    vku_image image;
    td_vk *bare;
    td_vk_desc desc = vku_desc(&gpu);

    (void)state;
    if (!can_pack())
        skip();
    assert_vk(
        vku_image_create(&gpu, good.format, 16, 16, VK_IMAGE_USAGE_SAMPLED_BIT | VK_IMAGE_USAGE_STORAGE_BIT, &image));
    good.images[0] = image.view;
    assert_ok(td_vk_mem_create_host(vk, 16 * 16 * 4 * 2, STORAGE, &mem, why, sizeof why));
    commands = vku_begin(&gpu);
#define REFUSED(function, change, status, word)                                                                        \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        change;                                                                                                        \
        assert_fails(function(vk, commands, &mem, &bad, why, sizeof why), status, word);                               \
    } while (0)
#define BOTH_REFUSE(change, word)                                                                                      \
    REFUSED(td_vk_record_pack, change, TANDEM_ERROR_ARG, word);                                                        \
    REFUSED(td_vk_record_unpack, change, TANDEM_ERROR_ARG, word)
    BOTH_REFUSE(bad.image_count = 0, "image_count is 0");
    BOTH_REFUSE(bad.image_count = 5, "image_count is 5");
    BOTH_REFUSE(bad.images[0] = VK_NULL_HANDLE, "images[0]");
    BOTH_REFUSE(bad.layout = VK_IMAGE_LAYOUT_UNDEFINED, "layout");
    BOTH_REFUSE(bad.width = 0, "width is 0");
    BOTH_REFUSE(bad.height = UINT32_MAX, "height is 4294967295");
    BOTH_REFUSE(bad.tile_width = 0, "tile_width");
    BOTH_REFUSE(bad.tile_height = 1u << 31, "tile_height");
    BOTH_REFUSE(bad.shift_x = 8, "shift_x is 8");
    BOTH_REFUSE(bad.shift_y = UINT32_MAX, "shift_y");
    BOTH_REFUSE(bad.halo = UINT32_MAX, "halo");
    BOTH_REFUSE(bad.channels = 0, "channels is 0");
    BOTH_REFUSE(bad.channels = 5, "channels is 5");
    BOTH_REFUSE(bad.tiles_x = 0, "tiles_x");
    BOTH_REFUSE(bad.tiles_y = UINT32_MAX, "tiles_y");
    BOTH_REFUSE((bad.tile_width = 1u << 20, bad.tiles_x = 1u << 20), "too many");
    BOTH_REFUSE(bad.dtype = TANDEM_DTYPE_NONE, "dtype");
    BOTH_REFUSE(bad.dtype = TANDEM_DTYPE_BF16, "dtype");
    BOTH_REFUSE(bad.stride_row = -4, "stride_row is -4");
    BOTH_REFUSE(bad.stride_batch = INT64_MIN, "stride_batch");
    BOTH_REFUSE(bad.stride_row = 5, "must be even");
    BOTH_REFUSE(bad.stride_batch = 257, "must be even");
    BOTH_REFUSE(bad.first_element = 1, "must be even");
    BOTH_REFUSE(bad.first_element = 2, "the mem at 2048");
    BOTH_REFUSE(bad.first_element = UINT64_MAX - 1, "overflow");
    BOTH_REFUSE(bad.stride_batch = INT64_MAX - 1, "overflow");
    BOTH_REFUSE(bad.dtype = TANDEM_DTYPE_F32, "byte 4096");
    REFUSED(td_vk_record_pack, bad.view_channels = 3, TANDEM_ERROR_ARG, "view_channels is 3");
    REFUSED(td_vk_record_pack, bad.view_channels = UINT32_MAX, TANDEM_ERROR_ARG, "view");
    REFUSED(td_vk_record_pack, bad.image_count = 2, TANDEM_ERROR_ARG, "images[1]");
    REFUSED(td_vk_record_pack, bad.stride_row = 2, TANDEM_ERROR_ARG, "overlap");
    REFUSED(td_vk_record_pack, bad.stride_batch = 128, TANDEM_ERROR_ARG, "overlap");
    REFUSED(td_vk_record_pack, bad.stride_batch = 0, TANDEM_ERROR_ARG, "overlap");
    REFUSED(td_vk_record_unpack, bad.layout = VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL, TANDEM_ERROR_ARG, "layout");
    REFUSED(td_vk_record_unpack, bad.format = VK_FORMAT_R8G8B8A8_UNORM, TANDEM_ERROR_ARG, "format");
    REFUSED(td_vk_record_unpack, bad.halo = 1, TANDEM_ERROR_ARG, "halo");
    assert_fails(td_vk_record_pack(NULL, commands, &mem, &good, why, sizeof why), TANDEM_ERROR_ARG, "vk");
    assert_fails(td_vk_record_pack(vk, NULL, &mem, &good, why, sizeof why), TANDEM_ERROR_ARG, "commands");
    assert_fails(td_vk_record_pack(vk, commands, NULL, &good, why, sizeof why), TANDEM_ERROR_ARG, "mem");
    assert_fails(td_vk_record_pack(vk, commands, &mem, NULL, why, sizeof why), TANDEM_ERROR_ARG, "pack");
    assert_fails(td_vk_record_unpack(vk, commands, &none, &good, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                 "VkBuffer");
    {
        /* A tile longer than one binding may be. */
        td_vk_mem long_mem = mem;
        char number[32];

        long_mem.bytes = UINT64_MAX / 4;
        snprintf(number, sizeof number, "%llu", (unsigned long long)caps->max_storage_range);
        bad = good;
        bad.stride_row = (int64_t)caps->max_storage_range + 2 - (int64_t)caps->max_storage_range % 2;
        bad.stride_batch = bad.stride_row * 64;
        assert_fails(td_vk_record_pack(vk, commands, &long_mem, &bad, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                     number);
    }
    desc.enabled_extension_count = 0;
    assert_ok(td_vk_open(&desc, NULL, &bare, why, sizeof why));
    assert_fails(td_vk_record_pack(bare, commands, &mem, &good, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                 "VK_KHR_push_descriptor");
    td_vk_close(&bare);
    /* And the one that they all differ from is accepted. */
    vku_image_barrier(&gpu, commands, &image, VK_IMAGE_LAYOUT_GENERAL);
    assert_ok(td_vk_record_pack(vk, commands, &mem, &good, why, sizeof why));
    assert_vk(vku_run(&gpu, commands));
    td_vk_mem_free(vk, &mem);
    vku_image_destroy(&gpu, &image);
}

/* Two threads ask for pipelines that nobody has built yet. */
static struct {
    td_vk *vk;
    vku_image image;
    td_vk_mem mem;
    int failed[2];
} race;

static void *race_thread(void *which)
{
    int index = *(int *)which;
    td_vk_pack pack = {.image_count = 1,
                       .images = {race.image.view},
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
    VkCommandPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                    .queueFamilyIndex = gpu.queue_family};
    VkCommandBufferAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                            .commandBufferCount = 1};
    VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    VkCommandBuffer commands;

    race.failed[index] = 1;
    if (gpu.CreateCommandPool(gpu.device, &info, NULL, &allocate.commandPool) != VK_SUCCESS)
        return NULL;
    if (gpu.AllocateCommandBuffers(gpu.device, &allocate, &commands) == VK_SUCCESS &&
        gpu.BeginCommandBuffer(commands, &begin) == VK_SUCCESS &&
        td_vk_record_pack(race.vk, commands, &race.mem, &pack, NULL, 0) == TANDEM_OK) {
        vku_full_barrier(&gpu, commands);
        race.failed[index] = td_vk_record_unpack(race.vk, commands, &race.mem, &pack, NULL, 0) != TANDEM_OK;
    }
    gpu.DestroyCommandPool(gpu.device, allocate.commandPool, NULL);
    return NULL;
}

static void test_pipelines_from_two_threads(void **state)
{
    td_vk_desc desc = vku_desc(&gpu);
    int indices[2] = {0, 1};
    pthread_t threads[2];

    (void)state;
    if (!can_pack())
        skip();
    assert_ok(td_vk_open(&desc, NULL, &race.vk, why, sizeof why));
    assert_vk(vku_image_create(&gpu, VK_FORMAT_R32G32B32A32_SFLOAT, 4, 4,
                               VK_IMAGE_USAGE_SAMPLED_BIT | VK_IMAGE_USAGE_STORAGE_BIT, &race.image));
    assert_ok(td_vk_mem_create_host(race.vk, 4096, STORAGE, &race.mem, why, sizeof why));
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, race_thread, &indices[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(race.failed[0] + race.failed[1], 0);
    td_vk_mem_free(race.vk, &race.mem);
    vku_image_destroy(&gpu, &race.image);
    td_vk_close(&race.vk);
}

static const struct CMUnitTest cases[] = {
    TEST(test_pack),
    TEST(test_pack_into_exported_memory),
    TEST(test_pack_normalised),
    TEST(test_pack_many_tiles),
    TEST(test_unpack),
    TEST(test_pack_in_small_ranges),
    TEST(test_pack_refuses),
    TEST(test_pipelines_from_two_threads),
};
const test_cases vk_pack_cases = TEST_CASES(cases);
