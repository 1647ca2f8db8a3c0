/* What is recorded around images - barriers, owners, dispatches - and what is refused.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdlib.h>

#include "shaders/images_shared.h"
#include "tests/interop/vk/images_rig.h"

/* A device whose barriers and dispatches are looked at. With a further family, which the real one has not: its barriers stay here. */
static struct {
    bool two_families;
    PFN_vkGetPhysicalDeviceQueueFamilyProperties families;
    PFN_vkGetDeviceProcAddr get;
    PFN_vkCmdPipelineBarrier barrier;
    PFN_vkCmdDispatch dispatch;
    uint32_t dispatches, groups[3];
    uint32_t before, after; /* barriers on images */
    VkImageMemoryBarrier first[2];
    VkPipelineStageFlags src[2], dst[2];
} seen;

static VKAPI_ATTR void VKAPI_CALL see_barrier(VkCommandBuffer commands, VkPipelineStageFlags src, VkPipelineStageFlags dst,
                                              VkDependencyFlags flags, uint32_t memories, const VkMemoryBarrier *memory,
                                              uint32_t buffers, const VkBufferMemoryBarrier *buffer, uint32_t images,
                                              const VkImageMemoryBarrier *image)
{
    const int behind = seen.dispatches > 0;

    if (images) {
        *(behind ? &seen.after : &seen.before) += images;
        seen.first[behind] = image[0];
        seen.src[behind] = src;
        seen.dst[behind] = dst;
    }
    if (!seen.two_families)
        seen.barrier(commands, src, dst, flags, memories, memory, buffers, buffer, images, image);
}

static VKAPI_ATTR void VKAPI_CALL see_dispatch(VkCommandBuffer commands, uint32_t x, uint32_t y, uint32_t z)
{
    seen.dispatches++;
    seen.groups[0] = x;
    seen.groups[1] = y;
    seen.groups[2] = z;
    seen.dispatch(commands, x, y, z);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL see_device(VkDevice device, const char *name)
{
    PFN_vkVoidFunction real = seen.get(device, name);

    if (strcmp(name, "vkCmdPipelineBarrier") == 0) {
        seen.barrier = (PFN_vkCmdPipelineBarrier)real;
        return (PFN_vkVoidFunction)see_barrier;
    }
    if (strcmp(name, "vkCmdDispatch") == 0) {
        seen.dispatch = (PFN_vkCmdDispatch)real;
        return (PFN_vkVoidFunction)see_dispatch;
    }
    return real;
}

static VKAPI_ATTR void VKAPI_CALL one_more_family(VkPhysicalDevice device, uint32_t *count, VkQueueFamilyProperties *list)
{
    seen.families(device, count, list);
    list[*count] = list[0];
    ++*count;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL see_instance(VkInstance instance, const char *name)
{
    if (seen.two_families && strcmp(name, "vkGetPhysicalDeviceQueueFamilyProperties") == 0) {
        seen.families = (PFN_vkGetPhysicalDeviceQueueFamilyProperties)gpu.gipa(instance, name);
        return (PFN_vkVoidFunction)one_more_family;
    }
    if (strcmp(name, "vkGetDeviceProcAddr") != 0)
        return gpu.gipa(instance, name);
    seen.get = (PFN_vkGetDeviceProcAddr)gpu.gipa(instance, name);
    return (PFN_vkVoidFunction)see_device;
}

static td_vk *open_seen(void)
{
    td_vk_desc desc = vku_desc(&gpu);
    const uint32_t further = gpu.queue_family ? 0 : 1;
    td_vk *out = NULL;

    desc.further_family_count = seen.two_families;
    desc.further_families = &further;

    desc.get_instance_proc_addr = see_instance;
    assert_ok(td_vk_open(&desc, NULL, &out, why, sizeof why));
    return out;
}

static void forget(void)
{
    seen.dispatches = seen.before = seen.after = 0;
}

enum { WIDTH = 70, HEIGHT = 7, USAGES = VK_IMAGE_USAGE_SAMPLED_BIT | VK_IMAGE_USAGE_STORAGE_BIT };

static td_vk_image good(const vku_image *image, const td_vk_mem *mem)
{
    return (td_vk_image){.image = image->image,
                         .view = image->view,
                         .format = image->format,
                         .usage = USAGES,
                         .image_extent = {WIDTH, HEIGHT},
                         .extent = {WIDTH, HEIGHT},
                         .layout_before = VK_IMAGE_LAYOUT_GENERAL,
                         .channels = 1,
                         .mem = mem,
                         .dtype = TANDEM_DTYPE_F32,
                         .stride_line = WIDTH,
                         .stride_texel = 1};
}

/* Records and throws away. */
static tandem_status record_alone(td_vk *on, const td_vk_image *images, uint32_t count, bool unpack)
{
    VkCommandBuffer commands = vku_begin(&gpu);
    tandem_status status;

    forget();
    status = (unpack ? td_vk_record_unpack_images : td_vk_record_pack_images)(on, commands, images, count, why, sizeof why);
    assert_vk(gpu.EndCommandBuffer(commands));
    gpu.FreeCommandBuffers(gpu.device, gpu.pool, 1, &commands);
    return status;
}

static void test_images_one_dispatch(void **state)
{
    td_vk_image images[MAX_CASES];
    vku_image made[MAX_CASES];
    td_vk_mem mem;
    td_vk *on;

    (void)state;
    if (!can_pack())
        skip();
    on = open_seen();
    assert_ok(td_vk_mem_create_host(on, 4096, STORAGE, &mem, why, sizeof why));
    for (int i = 0; i < MAX_CASES; i++) {
        assert_vk(vku_image_create(&gpu, VK_FORMAT_R32_SFLOAT, WIDTH, HEIGHT, USAGES, &made[i]));
        images[i] = good(&made[i], &mem);
        images[i].layout_before = VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL;
        images[i].layout_after = VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL;
        images[i].src_stage = images[i].dst_stage = VK_PIPELINE_STAGE_TRANSFER_BIT;
        images[i].extent.height = i == 5 ? HEIGHT : 1;
    }
    for (int unpack = 0; unpack < 2; unpack++) {
        assert_ok(record_alone(on, images, MAX_CASES, unpack));
        assert_int_equal(seen.dispatches, 1);
        assert_int_equal(seen.groups[0], (WIDTH + TD_IMAGES_GROUP_WIDTH - 1) / TD_IMAGES_GROUP_WIDTH);
        assert_int_equal(seen.groups[1], (HEIGHT + TD_IMAGES_GROUP_HEIGHT - 1) / TD_IMAGES_GROUP_HEIGHT);
        assert_int_equal(seen.groups[2], MAX_CASES);
        assert_true(seen.before == MAX_CASES && seen.after == MAX_CASES);
    }
    for (int i = 0; i < MAX_CASES; i++)
        vku_image_destroy(&gpu, &made[i]);
    td_vk_mem_free(on, &mem);
    td_vk_close(&on);
}

static void test_images_barriers(void **state)
{
    enum {
        NONE = VK_IMAGE_LAYOUT_UNDEFINED,
        GENERAL = VK_IMAGE_LAYOUT_GENERAL,
        READ_ONLY = VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL,
        COPIED = VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL,
        DEPTH = VK_IMAGE_LAYOUT_DEPTH_STENCIL_READ_ONLY_OPTIMAL,
        BEFORE = 1,
        AFTER = 2
    };
    static const struct {
        bool unpack;
        VkFormat format;
        uint32_t before, after, stages, ownership; /* as given */
        uint32_t recorded, in_use;                 /* as expected */
    } list[] = {
        {false, VK_FORMAT_R32_SFLOAT, GENERAL, NONE, 0, 0, 0, GENERAL},
        {false, VK_FORMAT_R32_SFLOAT, READ_ONLY, READ_ONLY, 0, 0, 0, READ_ONLY},
        {false, VK_FORMAT_R32_SFLOAT, READ_ONLY, NONE, BEFORE, 0, BEFORE, READ_ONLY},
        {false, VK_FORMAT_R32_SFLOAT, COPIED, NONE, BEFORE, 0, BEFORE, READ_ONLY},
        {false, VK_FORMAT_R32_SFLOAT, COPIED, GENERAL, BEFORE, 0, BEFORE, GENERAL},
        {false, VK_FORMAT_R32_SFLOAT, COPIED, COPIED, BEFORE | AFTER, 0, BEFORE | AFTER, READ_ONLY},
        {false, VK_FORMAT_R32_SFLOAT, GENERAL, READ_ONLY, AFTER, 0, AFTER, GENERAL},
        {false, VK_FORMAT_D32_SFLOAT, DEPTH, NONE, 0, 0, 0, DEPTH},
        {false, VK_FORMAT_R32_SFLOAT, READ_ONLY, NONE, BEFORE, TD_VK_ACQUIRE, BEFORE, READ_ONLY},
        {false, VK_FORMAT_R32_SFLOAT, READ_ONLY, NONE, 0, TD_VK_RELEASE, AFTER, READ_ONLY},
        {false, VK_FORMAT_R32_SFLOAT, COPIED, GENERAL, BEFORE, TD_VK_ACQUIRE | TD_VK_RELEASE, BEFORE | AFTER, GENERAL},
        {true, VK_FORMAT_R32_SFLOAT, GENERAL, NONE, 0, 0, 0, GENERAL},
        {true, VK_FORMAT_R32_SFLOAT, NONE, READ_ONLY, BEFORE | AFTER, 0, BEFORE | AFTER, GENERAL},
        {true, VK_FORMAT_R32_SFLOAT, READ_ONLY, NONE, BEFORE, 0, BEFORE, GENERAL},
        {true, VK_FORMAT_R32_SFLOAT, GENERAL, NONE, AFTER, TD_VK_RELEASE, AFTER, GENERAL},
    };
    td_vk_mem mem;
    td_vk *on;

    (void)state;
    if (!can_pack())
        skip();
    on = open_seen();
    assert_ok(td_vk_mem_create_host(on, 4096, STORAGE, &mem, why, sizeof why));
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const bool depth = list[i].format == VK_FORMAT_D32_SFLOAT;
        const bool acquires = list[i].ownership & TD_VK_ACQUIRE, releases = list[i].ownership & TD_VK_RELEASE;
        const VkImageMemoryBarrier *before = &seen.first[0], *after = &seen.first[1];
        vku_image made;
        td_vk_image image;

        assert_vk(vku_image_create(&gpu, list[i].format, WIDTH, HEIGHT,
                                   depth ? VK_IMAGE_USAGE_SAMPLED_BIT | VK_IMAGE_USAGE_DEPTH_STENCIL_ATTACHMENT_BIT : USAGES,
                                   &made));
        image = good(&made, &mem);
        image.layout_before = (VkImageLayout)list[i].before;
        image.layout_after = (VkImageLayout)list[i].after;
        image.ownership = list[i].ownership;
        image.src_family = image.dst_family = VK_QUEUE_FAMILY_EXTERNAL;
        if (list[i].stages & BEFORE) {
            image.src_stage = VK_PIPELINE_STAGE_TRANSFER_BIT;
            image.src_access = VK_ACCESS_TRANSFER_WRITE_BIT;
        }
        if (list[i].stages & AFTER) {
            image.dst_stage = VK_PIPELINE_STAGE_TRANSFER_BIT;
            image.dst_access = VK_ACCESS_TRANSFER_READ_BIT;
        }
        assert_ok(record_alone(on, &image, 1, list[i].unpack));
        assert_int_equal(seen.before, list[i].recorded & BEFORE ? 1 : 0);
        assert_int_equal(seen.after, list[i].recorded & AFTER ? 1 : 0);
        if (seen.before) {
            assert_true(before->oldLayout == list[i].before && before->newLayout == list[i].in_use);
            assert_true(seen.src[0] == VK_PIPELINE_STAGE_TRANSFER_BIT && seen.dst[0] == SHADER);
            assert_int_equal(before->srcAccessMask, acquires ? 0 : VK_ACCESS_TRANSFER_WRITE_BIT);
            assert_int_equal(before->dstAccessMask, list[i].unpack ? VK_ACCESS_SHADER_WRITE_BIT : VK_ACCESS_SHADER_READ_BIT);
            assert_int_equal(before->srcQueueFamilyIndex, acquires ? VK_QUEUE_FAMILY_EXTERNAL : VK_QUEUE_FAMILY_IGNORED);
            assert_int_equal(before->dstQueueFamilyIndex, acquires ? gpu.queue_family : VK_QUEUE_FAMILY_IGNORED);
        }
        if (seen.after) {
            assert_true(after->oldLayout == list[i].in_use &&
                        after->newLayout == (list[i].after == NONE ? list[i].in_use : list[i].after));
            assert_int_equal(seen.src[1], SHADER);
            assert_int_equal(seen.dst[1], releases ? VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT : VK_PIPELINE_STAGE_TRANSFER_BIT);
            assert_int_equal(after->srcAccessMask, list[i].unpack ? VK_ACCESS_SHADER_WRITE_BIT : 0);
            assert_int_equal(after->dstAccessMask, releases ? 0 : VK_ACCESS_TRANSFER_READ_BIT);
            assert_int_equal(after->srcQueueFamilyIndex, releases ? gpu.queue_family : VK_QUEUE_FAMILY_IGNORED);
            assert_int_equal(after->dstQueueFamilyIndex, releases ? VK_QUEUE_FAMILY_EXTERNAL : VK_QUEUE_FAMILY_IGNORED);
        }
        vku_image_destroy(&gpu, &made);
    }
    td_vk_mem_free(on, &mem);
    td_vk_close(&on);
}

/* Commands for a queue of another family: it owns the image between the two barriers. */
static void test_images_of_a_further_family(void **state)
{
    const uint32_t further = gpu.queue_family ? 0 : 1;
    vku_image made;
    td_vk_image image;
    td_vk_mem mem;
    td_vk *on;

    (void)state;
    if (!can_pack())
        skip();
    seen.two_families = true;
    on = open_seen();
    assert_ok(td_vk_mem_create_host(vk, 4096, STORAGE, &mem, why, sizeof why));
    assert_vk(vku_image_create(&gpu, VK_FORMAT_R32_SFLOAT, WIDTH, HEIGHT, USAGES, &made));
    image = good(&made, &mem);
    image.ownership = TD_VK_ACQUIRE | TD_VK_RELEASE;
    image.src_family = image.dst_family = gpu.queue_family;
    image.src_stage = VK_PIPELINE_STAGE_TRANSFER_BIT;
    image.recorded_family = 1 + further;
    for (int unpack = 0; unpack < 2; unpack++) {
        assert_ok(record_alone(on, &image, 1, unpack));
        assert_true(seen.before == 1 && seen.after == 1);
        assert_int_equal(seen.first[0].srcQueueFamilyIndex, gpu.queue_family);
        assert_int_equal(seen.first[0].dstQueueFamilyIndex, further);
        assert_int_equal(seen.first[1].srcQueueFamilyIndex, further);
        assert_int_equal(seen.first[1].dstQueueFamilyIndex, gpu.queue_family);
    }
    image.src_family = further;
    assert_int_equal(record_alone(on, &image, 1, false), TANDEM_ERROR_ARG);
    assert_non_null(strstr(why, "images[0].src_family is "));
    vku_image_destroy(&gpu, &made);
    td_vk_mem_free(vk, &mem);
    td_vk_close(&on);
    seen.two_families = false;
}

static void test_images_refuse(void **state)
{
    const VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
    const td_vk_mem none = {0};
    td_vk_desc desc = vku_desc(&gpu);
    td_vk_image images[2], *p = &images[1];
    VkCommandBuffer commands;
    vku_image made[2];
    td_vk_mem mem;
    td_vk *bare;

    (void)state;
    if (!can_pack())
        skip();
    assert_ok(td_vk_mem_create_host(vk, 4096, STORAGE, &mem, why, sizeof why));
    for (int i = 0; i < 2; i++)
        assert_vk(vku_image_create(&gpu, VK_FORMAT_R32_SFLOAT, WIDTH, HEIGHT, USAGES, &made[i]));
    commands = vku_begin(&gpu);
#define REFUSED(function, status, word, ...)                                                                           \
    do {                                                                                                               \
        images[0] = good(&made[0], &mem);                                                                              \
        images[1] = good(&made[1], &mem);                                                                              \
        __VA_ARGS__;                                                                                                   \
        assert_fails(td_vk_record_##function##_images(vk, commands, images, 2, why, sizeof why), status, word);        \
    } while (0)
#define PACK(word, ...) REFUSED(pack, TANDEM_ERROR_ARG, word, __VA_ARGS__)
#define UNPACK(word, ...) REFUSED(unpack, TANDEM_ERROR_ARG, word, __VA_ARGS__)
#define BOTH(word, ...)                                                                                                \
    PACK(word, __VA_ARGS__);                                                                                           \
    UNPACK(word, __VA_ARGS__)
    BOTH("images[1].view is VK_NULL_HANDLE", p->view = VK_NULL_HANDLE);
    BOTH("images[1].format is 0", p->format = VK_FORMAT_UNDEFINED);
    BOTH("images[1].format is 106", p->format = VK_FORMAT_R32G32B32_SFLOAT);
    PACK("images[1].usage is 0x10, without SAMPLED or STORAGE", p->usage = VK_IMAGE_USAGE_COLOR_ATTACHMENT_BIT);
    UNPACK("images[1].usage is 0x4, without STORAGE", p->usage = VK_IMAGE_USAGE_SAMPLED_BIT);
    UNPACK("images[1].format is B8G8R8A8_SRGB", p->format = VK_FORMAT_B8G8R8A8_SRGB);
    UNPACK("images[1].format is D32_SFLOAT", p->format = VK_FORMAT_D32_SFLOAT);
    BOTH("images[1].image is images[0]'s, and so is its layer 0", p->image = images[0].image);
    BOTH("images[1].extent.width is 0, not in 1 to 70", p->extent.width = 0);
    BOTH("images[1].extent.width is 71, not in 1 to 70", p->extent.width = WIDTH + 1);
    BOTH("images[1].extent.height is 0, not in 1 to 7", p->extent.height = 0);
    BOTH("images[1].extent.height is 8, not in 1 to 7", p->extent.height = HEIGHT + 1);
    BOTH("images[1].extent.height is 65536, not in 1 to 65535", p->image_extent.height = p->extent.height = 65536);
    BOTH("images[1].channels is 0, not in 1 to 1, as format is R32_SFLOAT", p->channels = 0);
    BOTH("images[1].channels is 2, not in 1 to 1", p->channels = 2);
    BOTH("images[1].channels is 5, not in 1 to 4", p->channels = 5, p->format = VK_FORMAT_R8G8B8A8_UNORM);
    BOTH("images[1].encoding is 3", p->encoding = 3);
    BOTH("images[1].encoding is 1, a normal's, and format R32_SFLOAT", p->encoding = NORMAL);
    BOTH("images[1].encoding is 2, a normal's", p->encoding = OCTAHEDRAL);
    BOTH("images[1].channels is 2, not in 3 to 3", p->encoding = OCTAHEDRAL, p->channels = 2, p->format = VK_FORMAT_R16G16_SFLOAT);
    BOTH("images[1].channels is 2, not in 3 to 4", p->encoding = NORMAL, p->channels = 2, p->format = VK_FORMAT_R8G8B8A8_UNORM);
    BOTH("images[1].transfer is 3", p->transfer = 3);
    BOTH("images[1].transfer is 1, and it is a normal", p->encoding = NORMAL, p->transfer = SRGB, p->channels = 3,
         p->format = VK_FORMAT_R8G8B8A8_UNORM);
    PACK("images[1].transfer is 1, and format is R8G8B8A8_SRGB", p->transfer = SRGB, p->format = VK_FORMAT_R8G8B8A8_SRGB);
    PACK("images[1].transfer is 2, and format is D32_SFLOAT", p->transfer = PQ, p->format = VK_FORMAT_D32_SFLOAT);
    PACK("images[1].exposure is 2, and it is a depth", p->exposure = 2, p->format = VK_FORMAT_D32_SFLOAT);
    BOTH("images[1].exposure is 2, and it is a normal", p->exposure = 2, p->encoding = OCTAHEDRAL, p->channels = 3,
         p->format = VK_FORMAT_R16G16_SFLOAT);
    BOTH("images[1].exposure is -1", p->exposure = -1);
    BOTH("images[1].exposure is nan", p->exposure = NAN);
    BOTH("images[1].exposure is inf", p->exposure = INFINITY);
    PACK("images[1].layout_before is UNDEFINED", p->layout_before = VK_IMAGE_LAYOUT_UNDEFINED);
    BOTH("images[1].layout_after is PREINITIALIZED", p->layout_after = VK_IMAGE_LAYOUT_PREINITIALIZED);
    BOTH("images[1].layout_before is 3", p->layout_before = VK_IMAGE_LAYOUT_DEPTH_STENCIL_ATTACHMENT_OPTIMAL);
    BOTH("images[1].layout_after is 4", p->layout_after = VK_IMAGE_LAYOUT_DEPTH_STENCIL_READ_ONLY_OPTIMAL);
    PACK("images[1].layout_after is 2", p->format = VK_FORMAT_D32_SFLOAT,
         p->layout_after = VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL);
    BOTH("images[1].src_stage is 0, but its layout changes from 7 to ", p->layout_before = VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL);
    BOTH("images[1].dst_stage is 0, but its layout changes from 1 to 7", p->layout_after = VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL);
    BOTH("images[1].image is VK_NULL_HANDLE", p->image = VK_NULL_HANDLE, p->src_stage = SHADER);
    BOTH("images[1].image is VK_NULL_HANDLE", p->image = VK_NULL_HANDLE, p->layout_after = VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL);
    BOTH("images[1].ownership is 0x4", p->ownership = 4);
    BOTH("images[1].src_family is 4294967295", p->ownership = TD_VK_ACQUIRE, p->src_family = VK_QUEUE_FAMILY_IGNORED);
    BOTH("images[1].src_family is ", p->ownership = TD_VK_ACQUIRE, p->src_family = gpu.queue_family);
    BOTH("images[1].dst_family is ", p->ownership = TD_VK_RELEASE, p->dst_family = gpu.queue_family);
    BOTH("images[1].recorded_family is 9, for family 8, which is not among those of", p->recorded_family = 9);
    BOTH("images[1].src_stage is 0, but it is acquired from family 4294967294", p->ownership = TD_VK_ACQUIRE,
         p->src_family = VK_QUEUE_FAMILY_EXTERNAL);
    BOTH("images[1].tensor.dtype is 0", p->dtype = TANDEM_DTYPE_NONE);
    BOTH("images[1].tensor.offset_bytes is 2, not a multiple of 4", p->offset_bytes = 2);
    BOTH("images[1].tensor.offset_bytes is 1, not a multiple of 2", p->offset_bytes = 1, p->dtype = TANDEM_DTYPE_F16);
    BOTH("images[1].tensor.offset_bytes is 4096, its mem ends at 4096", p->offset_bytes = 4096);
    BOTH("images[1].tensor.offset_bytes is 18446744073709551612", p->offset_bytes = UINT64_MAX - 3);
    BOTH("images[1].tensor ends at byte 4100, its mem at 4096", p->offset_bytes = 4100 - WIDTH * HEIGHT * 4);
    BOTH("images[1].tensor ends at byte 24664", p->stride_line = 4 * 254);
    BOTH("images[1].tensor.stride_row is -1", p->stride_texel = -1);
    BOTH("images[1].tensor.stride_row is 32768, not in 0 to 32767", p->stride_texel = 32768);
    BOTH("images[1].tensor.stride_head is -70", p->stride_line = -WIDTH);
    BOTH("images[1].tensor.stride_head is 4294967296", p->stride_line = 1ll << 32);
    PACK("images[1].tensor.stride_row is 0, less than its 1 channels", p->stride_texel = 0);
    PACK("images[1].tensor.stride_head is 69, and lines of 70 elements overlap", p->stride_line = WIDTH - 1);
    REFUSED(pack, TANDEM_ERROR_UNSUPPORTED, "images[1].tensor.mem has no VkBuffer", p->mem = &none);
    {
        /* Longer than one binding may be. */
        td_vk_mem longest = mem;

        longest.bytes = UINT64_MAX / 4;
        REFUSED(unpack, TANDEM_ERROR_UNSUPPORTED, "maxStorageBufferRange", p->mem = &longest,
                p->stride_line = (int64_t)caps->max_storage_range / 8 + 64);
    }
    images[1] = good(&made[1], &mem);
    desc.enabled_features = &features;
    assert_ok(td_vk_open(&desc, NULL, &bare, why, sizeof why));
    assert_fails(td_vk_record_unpack_images(bare, commands, images, 2, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                 "shaderStorageImageWriteWithoutFormat");
    td_vk_close(&bare);
    desc.enabled_extension_count = 0;
    assert_ok(td_vk_open(&desc, NULL, &bare, why, sizeof why));
    assert_fails(td_vk_record_pack_images(bare, commands, images, 2, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                 "VK_KHR_push_descriptor");
    td_vk_close(&bare);
    desc = vku_desc(&gpu);
    assert_ok(td_vk_open(&desc, NULL, &bare, why, sizeof why));
    ((td_vk_caps *)td_vk_get_caps(bare))->max_descriptors = 7;
    assert_fails(td_vk_record_pack_images(bare, commands, images, 2, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                 "takes 7 storage buffers or images in a shader, not 8");
    td_vk_close(&bare);
    /* And those that they all differ from are accepted. */
    for (int i = 0; i < 2; i++) {
        vku_image_barrier(&gpu, commands, &made[i], VK_IMAGE_LAYOUT_GENERAL);
        images[i] = good(&made[i], &mem);
        images[i].offset_bytes = (uint64_t)i * WIDTH * HEIGHT * 4;
    }
    assert_ok(td_vk_record_pack_images(vk, commands, images, 2, why, sizeof why));
    vku_full_barrier(&gpu, commands);
    assert_ok(td_vk_record_unpack_images(vk, commands, images, 2, why, sizeof why));
    assert_vk(vku_run(&gpu, commands));
    td_vk_mem_free(vk, &mem);
    for (int i = 0; i < 2; i++)
        vku_image_destroy(&gpu, &made[i]);
}

/* Handed to somebody outside by one submit, and taken back by the next. */
static void test_images_change_owner(void **state)
{
    float texels[WIDTH * HEIGHT];
    td_vk_image image;
    vku_image made;
    td_vk_mem mem;

    (void)state;
    if (!can_pack())
        skip();
    for (int i = 0; i < WIDTH * HEIGHT; i++)
        texels[i] = (float)i;
    assert_ok(td_vk_mem_create_host(vk, 2 * sizeof texels, STORAGE, &mem, why, sizeof why));
    assert_vk(vku_image_create(&gpu, VK_FORMAT_R32_SFLOAT, WIDTH, HEIGHT, USAGES, &made));
    assert_vk(vku_image_upload(&gpu, &made, texels, VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL));
    image = good(&made, &mem);
    image.layout_before = made.layout;
    image.src_family = image.dst_family = VK_QUEUE_FAMILY_EXTERNAL;
    for (int acquires = 0; acquires < 2; acquires++) {
        VkCommandBuffer commands = vku_begin(&gpu);

        image.ownership = acquires ? TD_VK_ACQUIRE : TD_VK_RELEASE;
        image.src_stage = acquires ? SHADER : 0;
        image.offset_bytes = acquires ? sizeof texels : 0;
        assert_ok(td_vk_record_pack_images(vk, commands, &image, 1, why, sizeof why));
        td_vk_record_release(vk, commands, &mem, TD_VK_PEER_HOST, SHADER, VK_ACCESS_SHADER_WRITE_BIT);
        assert_vk(vku_run(&gpu, commands));
        assert_memory_equal((char *)mem.host + image.offset_bytes, texels, sizeof texels);
    }
    td_vk_mem_free(vk, &mem);
    vku_image_destroy(&gpu, &made);
}

/* Nothing is recorded where a pipeline cannot be made. */
static void test_images_without_pipeline(void **state)
{
    td_vk_image image;
    vku_image made;
    td_vk_mem mem;
    td_vk *on;

    (void)state;
    if (!can_pack())
        skip();
    on = open_faulty("vkCreateComputePipelines", VK_ERROR_OUT_OF_DEVICE_MEMORY);
    assert_ok(td_vk_mem_create_host(on, 4096, STORAGE, &mem, why, sizeof why));
    assert_vk(vku_image_create(&gpu, VK_FORMAT_R32_SFLOAT, WIDTH, HEIGHT, USAGES, &made));
    image = good(&made, &mem);
    for (int unpack = 0; unpack < 2; unpack++)
        assert_int_equal(record_alone(on, &image, 1, unpack), TANDEM_ERROR_NOMEM);
    assert_non_null(strstr(why, "vkCreateComputePipelines"));
    vku_image_destroy(&gpu, &made);
    td_vk_mem_free(on, &mem);
    td_vk_close(&on);
    fault.fails = NULL;
}

static const struct CMUnitTest cases[] = {
    TEST(test_images_one_dispatch),
    TEST(test_images_barriers),
    TEST(test_images_change_owner),
    TEST(test_images_of_a_further_family),
    TEST(test_images_refuse),
    TEST(test_images_without_pipeline),
};
const test_cases vk_images_rules_cases = TEST_CASES(cases);
