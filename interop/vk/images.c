/* Between images in the formats of G-buffers and swapchains and tensors [height, width, channels].
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Descriptors are pushed, so that they live in the commands themselves: nothing is allocated for a frame, and commands may be
 * submitted as often as their owner likes.
 */
#include <inttypes.h>
#include <math.h>

#include "interop/vk/table.h"
#include "shaders/images_shared.h"

_Static_assert(TD_VK_MAX_IMAGES == TD_IMAGES, "as the shaders have it");

enum { MAX_EXTENT = 65535, MAX_STRIDE_TEXEL = (1 << TD_IMAGE_STRIDE_BITS) - 1 };

#define CHECK(condition, status, ...)                                            \
    do {                                                                         \
        if (!(condition))                                                        \
            return td_fail(why, why_bytes, TANDEM_ERROR_##status, __VA_ARGS__);  \
    } while (0)

typedef struct image_format {
    VkFormat format;
    const char *name;
    uint32_t channels, numbers;
    VkImageAspectFlags aspects;
} image_format;

static const image_format formats[] = {
#define FORMAT(name, channels, numbers, aspects) {VK_FORMAT_##name, #name, channels, TD_IMAGE_##numbers, aspects}
#define COLOR VK_IMAGE_ASPECT_COLOR_BIT
#define DEPTH VK_IMAGE_ASPECT_DEPTH_BIT
#define STENCIL VK_IMAGE_ASPECT_STENCIL_BIT
    FORMAT(R8G8B8A8_UNORM, 4, UNORM8, COLOR),
    FORMAT(B8G8R8A8_UNORM, 4, UNORM8, COLOR),
    FORMAT(R8G8B8A8_SRGB, 4, SRGB8, COLOR),
    FORMAT(B8G8R8A8_SRGB, 4, SRGB8, COLOR),
    FORMAT(A2B10G10R10_UNORM_PACK32, 4, UNORM10, COLOR),
    FORMAT(A2R10G10B10_UNORM_PACK32, 4, UNORM10, COLOR),
    FORMAT(R16_SFLOAT, 1, F16, COLOR),
    FORMAT(R16G16_SFLOAT, 2, F16, COLOR),
    FORMAT(R16G16B16A16_SFLOAT, 4, F16, COLOR),
    FORMAT(B10G11R11_UFLOAT_PACK32, 3, F11, COLOR),
    FORMAT(R32_SFLOAT, 1, F32, COLOR),
    FORMAT(R32G32B32A32_SFLOAT, 4, F32, COLOR),
    FORMAT(D32_SFLOAT, 1, F32, DEPTH),
    FORMAT(D32_SFLOAT_S8_UINT, 1, F32, DEPTH | STENCIL),
    FORMAT(X8_D24_UNORM_PACK32, 1, F32, DEPTH),
    FORMAT(D24_UNORM_S8_UINT, 1, F32, DEPTH | STENCIL),
#undef FORMAT
#undef COLOR
#undef DEPTH
#undef STENCIL
};

static bool is_srgb(const image_format *format)
{
    return format->numbers == TD_IMAGE_SRGB8;
}

static bool is_depth(const image_format *format)
{
    return format->aspects & VK_IMAGE_ASPECT_DEPTH_BIT;
}

static const image_format *find_format(VkFormat format)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].format == format)
            return &formats[i];
    return NULL;
}

/* What is found out about an image while it is checked. */
typedef struct checked_image {
    const image_format *format;
    bool sampled; /* else storage */
    VkImageLayout layout; /* while the shader uses it */
    bool barrier_before, barrier_after;
    VkDescriptorBufferInfo buffer;
    uint32_t first_element; /* in the buffer's range */
} checked_image;

static tandem_status check_format(td_vk *vk, const td_vk_image *p, uint32_t i, bool unpack, checked_image *out, char *why,
                                  size_t why_bytes)
{
    VkFormatProperties properties;
    VkFormatFeatureFlags needs;

    out->format = find_format(p->format);
    CHECK(out->format, ARG, "images[%u].format is %d, which is none of those for images", i, (int)p->format);
    CHECK(!unpack || !is_srgb(out->format), ARG,
          "images[%u].format is %s, which shaders do not store to: give a _UNORM view, and SRGB as its transfer", i,
          out->format->name);
    CHECK(!unpack || !is_depth(out->format), ARG, "images[%u].format is %s, which shaders do not store to: unpack to R32_SFLOAT",
          i, out->format->name);
    out->sampled = !unpack && p->usage & VK_IMAGE_USAGE_SAMPLED_BIT;
    CHECK(out->sampled || p->usage & VK_IMAGE_USAGE_STORAGE_BIT, ARG, "images[%u].usage is 0x%x, without %sSTORAGE", i,
          (unsigned)p->usage, unpack ? "" : "SAMPLED or ");
    CHECK(!unpack || vk->caps.write_without_format, UNSUPPORTED, "shaderStorageImageWriteWithoutFormat is not enabled");
    CHECK(unpack || out->sampled || vk->caps.read_without_format, UNSUPPORTED,
          "images[%u].usage is 0x%x, without SAMPLED, and shaderStorageImageReadWithoutFormat is not enabled", i,
          (unsigned)p->usage);
    needs = out->sampled ? VK_FORMAT_FEATURE_SAMPLED_IMAGE_BIT : VK_FORMAT_FEATURE_STORAGE_IMAGE_BIT;
    vk->fn.GetPhysicalDeviceFormatProperties(vk->physical_device, p->format, &properties);
    CHECK(properties.optimalTilingFeatures & needs, UNSUPPORTED, "images[%u].format is %s, which is no %s format of %s", i,
          out->format->name, out->sampled ? "sampled" : "storage", vk->caps.name);
    return TANDEM_OK;
}

static tandem_status check_extent(uint32_t extent, uint32_t whole, const char *name, uint32_t i, char *why, size_t why_bytes)
{
    const uint32_t most = whole < MAX_EXTENT ? whole : MAX_EXTENT;

    CHECK(extent && extent <= most, ARG, "images[%u].extent.%s is %u, not in 1 to %u", i, name, extent, most);
    return TANDEM_OK;
}

static tandem_status check_numbers(const td_vk_image *p, uint32_t i, const image_format *format, char *why, size_t why_bytes)
{
    const bool octahedral = p->encoding == TD_IMAGE_OCTAHEDRAL;
    const uint32_t least = p->encoding ? 3 : 1, most = octahedral ? 3 : format->channels;
    tandem_status status;

    CHECK(p->encoding <= TD_IMAGE_OCTAHEDRAL, ARG, "images[%u].encoding is %u, which is none", i, p->encoding);
    CHECK(p->transfer <= TD_IMAGE_PQ, ARG, "images[%u].transfer is %u, which is none", i, p->transfer);
    CHECK(isfinite(p->exposure) && p->exposure >= 0, ARG, "images[%u].exposure is %g, neither above 0 nor 0 for 1", i,
          (double)p->exposure);
    CHECK(!p->encoding || (format->channels >= (octahedral ? 2 : 3) && !is_srgb(format)), ARG,
          "images[%u].encoding is %u, a normal's, and format %s", i, p->encoding, format->name);
    CHECK(p->channels >= least && p->channels <= most, ARG, "images[%u].channels is %u, not in %u to %u, as format is %s", i,
          p->channels, least, most, format->name);
    CHECK(!p->transfer || (!p->encoding && !is_depth(format) && !is_srgb(format)), ARG,
          "images[%u].transfer is %u, and %s%s, which has none", i, p->transfer,
          p->encoding ? "it is a normal" : "format is ", p->encoding ? "" : format->name);
    CHECK((p->exposure == 0 || p->exposure == 1) || (!p->encoding && !is_depth(format)), ARG,
          "images[%u].exposure is %g, and it is a %s", i, (double)p->exposure, p->encoding ? "normal" : "depth");
    status = check_extent(p->extent.width, p->image_extent.width, "width", i, why, why_bytes);
    if (status == TANDEM_OK)
        status = check_extent(p->extent.height, p->image_extent.height, "height", i, why, why_bytes);
    return status;
}

/* Whether the shader can use it there. */
static bool is_usable(VkImageLayout layout, const checked_image *c)
{
    switch (layout) {
    case VK_IMAGE_LAYOUT_GENERAL:
        return true;
    case VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL:
        return c->sampled;
    case VK_IMAGE_LAYOUT_DEPTH_STENCIL_READ_ONLY_OPTIMAL:
    case VK_IMAGE_LAYOUT_DEPTH_READ_ONLY_STENCIL_ATTACHMENT_OPTIMAL:
        return c->sampled && is_depth(c->format);
    default:
        return false;
    }
}

/* One transition fewer where the image comes in, or goes on to, a layout that the shader can use. */
static VkImageLayout layout_in_use(const td_vk_image *p, const checked_image *c)
{
    if (is_usable(p->layout_before, c))
        return p->layout_before;
    if (is_usable(p->layout_after, c))
        return p->layout_after;
    return c->sampled ? VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL : VK_IMAGE_LAYOUT_GENERAL;
}

static bool is_of_depth(VkImageLayout layout)
{
    return layout == VK_IMAGE_LAYOUT_DEPTH_STENCIL_ATTACHMENT_OPTIMAL ||
           layout == VK_IMAGE_LAYOUT_DEPTH_STENCIL_READ_ONLY_OPTIMAL ||
           layout == VK_IMAGE_LAYOUT_DEPTH_READ_ONLY_STENCIL_ATTACHMENT_OPTIMAL ||
           layout == VK_IMAGE_LAYOUT_DEPTH_ATTACHMENT_STENCIL_READ_ONLY_OPTIMAL;
}

static tandem_status check_layout(VkImageLayout layout, const char *name, uint32_t i, const image_format *format, char *why,
                                  size_t why_bytes)
{
    const bool wrong = is_depth(format) ? layout == VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL : is_of_depth(layout);

    CHECK(!wrong, ARG, "images[%u].%s is %d, which is none of an image of %s", i, name, (int)layout, format->name);
    return TANDEM_OK;
}

/* Of the queue that gets the commands. */
static uint32_t family_of(const td_vk *vk, const td_vk_image *p)
{
    return p->recorded_family ? p->recorded_family - 1 : vk->queue_family;
}

static bool is_a_family(const td_vk *vk, uint32_t family)
{
    bool is = false;

    for (uint32_t i = 0; i < vk->family_count; i++)
        is = is || vk->families[i] == family;
    return is;
}

static tandem_status check_layouts(td_vk *vk, const td_vk_image *p, uint32_t i, bool unpack, checked_image *out, char *why,
                                   size_t why_bytes)
{
    const bool acquires = p->ownership & TD_VK_ACQUIRE, releases = p->ownership & TD_VK_RELEASE;
    tandem_status status = check_layout(p->layout_before, "layout_before", i, out->format, why, why_bytes);

    if (status == TANDEM_OK)
        status = check_layout(p->layout_after, "layout_after", i, out->format, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    CHECK(unpack || p->layout_before != VK_IMAGE_LAYOUT_UNDEFINED, ARG,
          "images[%u].layout_before is UNDEFINED, in which an image has no contents", i);
    CHECK(p->layout_after != VK_IMAGE_LAYOUT_PREINITIALIZED, ARG,
          "images[%u].layout_after is PREINITIALIZED, into which nothing changes", i);
    CHECK(!(p->ownership & ~(uint32_t)(TD_VK_ACQUIRE | TD_VK_RELEASE)), ARG, "images[%u].ownership is 0x%x, not of %d and %d", i,
          p->ownership, TD_VK_ACQUIRE, TD_VK_RELEASE);
    CHECK(is_a_family(vk, family_of(vk, p)), ARG,
          "images[%u].recorded_family is %u, for family %u, which is not among those of tandem_vulkan", i, p->recorded_family,
          family_of(vk, p));
    CHECK(!acquires || (p->src_family != family_of(vk, p) && p->src_family != VK_QUEUE_FAMILY_IGNORED), ARG,
          "images[%u].src_family is %u: there is nothing to acquire from there, the session's is %u", i, p->src_family,
          family_of(vk, p));
    CHECK(!releases || (p->dst_family != family_of(vk, p) && p->dst_family != VK_QUEUE_FAMILY_IGNORED), ARG,
          "images[%u].dst_family is %u: there is nothing to release to, the session's is %u", i, p->dst_family,
          family_of(vk, p));
    out->layout = layout_in_use(p, out);
    out->barrier_before = p->layout_before != out->layout || p->src_stage || acquires;
    out->barrier_after = (p->layout_after && p->layout_after != out->layout) || p->dst_stage || releases;
    CHECK(p->image || !(out->barrier_before || out->barrier_after), ARG,
          "images[%u].image is VK_NULL_HANDLE, but a barrier is to be recorded from layout %d by way of %d to %d", i,
          (int)p->layout_before, (int)out->layout, (int)p->layout_after);
    CHECK(!acquires || p->src_stage, ARG, "images[%u].src_stage is 0, but it is acquired from family %u", i, p->src_family);
    CHECK(!out->barrier_before || p->src_stage, ARG, "images[%u].src_stage is 0, but its layout changes from %d to %d", i,
          (int)p->layout_before, (int)out->layout);
    CHECK(!out->barrier_after || releases || p->dst_stage, ARG,
          "images[%u].dst_stage is 0, but its layout changes from %d to %d", i, (int)out->layout, (int)p->layout_after);
    return TANDEM_OK;
}

/* Where the tensor lies: bounds, and a binding that begins at an aligned byte and ends with a whole word. */
static tandem_status check_tensor(td_vk *vk, const td_vk_image *p, uint32_t i, bool unpack, checked_image *out, char *why,
                                  size_t why_bytes)
{
    const uint64_t size = p->dtype == TANDEM_DTYPE_F16 ? 2 : 4, columns = p->extent.width - 1, lines = p->extent.height - 1;
    const uint64_t stride_texel = columns ? (uint64_t)p->stride_texel : 0, stride_line = lines ? (uint64_t)p->stride_line : 0;
    uint64_t line_span, span, begin, end;

    CHECK(p->dtype == TANDEM_DTYPE_F16 || p->dtype == TANDEM_DTYPE_F32, ARG,
          "images[%u].tensor.dtype is %u, neither F16 nor F32", i, p->dtype);
    CHECK(p->offset_bytes % size == 0, ARG, "images[%u].tensor.offset_bytes is %" PRIu64 ", not a multiple of %" PRIu64, i,
          p->offset_bytes, size);
    CHECK(stride_texel <= MAX_STRIDE_TEXEL, ARG, "images[%u].tensor.stride_row is %" PRId64 ", not in 0 to %d", i,
          p->stride_texel, MAX_STRIDE_TEXEL);
    CHECK(stride_line <= UINT32_MAX, ARG, "images[%u].tensor.stride_head is %" PRId64 ", not in 0 to %u", i, p->stride_line,
          UINT32_MAX);
    CHECK(p->offset_bytes < p->mem->bytes, ARG, "images[%u].tensor.offset_bytes is %" PRIu64 ", its mem ends at %" PRIu64, i,
          p->offset_bytes, p->mem->bytes);
    line_span = columns * stride_texel + p->channels;
    span = lines * stride_line + line_span;
    end = td_align_up(p->offset_bytes + span * size, 4);
    CHECK(end <= p->mem->bytes, ARG,
          "images[%u].tensor ends at byte %" PRIu64 ", its mem at %" PRIu64 ": strides count elements, not bytes", i, end,
          p->mem->bytes);
    /* Texels that are written must not overlap: lines one after the other, or interleaved. */
    CHECK(unpack || !columns || stride_texel >= p->channels, ARG,
          "images[%u].tensor.stride_row is %" PRId64 ", less than its %u channels", i, p->stride_texel, p->channels);
    CHECK(unpack || !lines || stride_line >= line_span ||
              (stride_line >= p->channels && stride_texel >= lines * stride_line + p->channels),
          ARG, "images[%u].tensor.stride_head is %" PRId64 ", and lines of %" PRIu64 " elements overlap", i, p->stride_line,
          line_span);
    out->buffer.buffer = p->mem->buffer;
    begin = p->mem->buffer_offset + p->offset_bytes;
    out->buffer.offset = begin & ~((vk->storage_alignment > 16 ? vk->storage_alignment : 16) - 1); /* by four words */
    out->buffer.range = p->mem->buffer_offset + end - out->buffer.offset;
    out->first_element = (uint32_t)((begin - out->buffer.offset) / size);
    CHECK(out->buffer.range <= vk->caps.max_storage_range, UNSUPPORTED,
          "images[%u].tensor spans %" PRIu64 " bytes, maxStorageBufferRange is %" PRIu64, i, (uint64_t)out->buffer.range,
          vk->caps.max_storage_range);
    return TANDEM_OK;
}

static tandem_status check_image(td_vk *vk, const td_vk_image *images, uint32_t i, bool unpack, checked_image *out, char *why,
                                 size_t why_bytes)
{
    const td_vk_image *p = &images[i];
    tandem_status status;

    CHECK(p->view, ARG, "images[%u].view is VK_NULL_HANDLE", i);
    CHECK(p->mem && p->mem->buffer, UNSUPPORTED, "images[%u].tensor.mem has no VkBuffer", i);
    for (uint32_t j = 0; j < i; j++)
        CHECK(!p->image || p->image != images[j].image || p->layer != images[j].layer, ARG,
              "images[%u].image is images[%u]'s, and so is its layer %u", i, j, p->layer);
    status = check_format(vk, p, i, unpack, out, why, why_bytes);
    if (status == TANDEM_OK)
        status = check_numbers(p, i, out->format, why, why_bytes);
    if (status == TANDEM_OK)
        status = check_layouts(vk, p, i, unpack, out, why, why_bytes);
    if (status == TANDEM_OK)
        status = check_tensor(vk, p, i, unpack, out, why, why_bytes);
    return status;
}

static VkImageMemoryBarrier barrier_on(const td_vk_image *p, const image_format *format)
{
    return (VkImageMemoryBarrier){.sType = VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER,
                                  .srcQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
                                  .dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
                                  .image = p->image,
                                  .subresourceRange = {format->aspects, 0, 1, p->layer, 1}};
}

static void record_before(td_vk *vk, VkCommandBuffer commands, const td_vk_image *images, const checked_image *checked,
                          uint32_t count, bool unpack)
{
    VkImageMemoryBarrier barriers[TD_IMAGES];
    VkPipelineStageFlags src_stages = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < count; i++) {
        const td_vk_image *p = &images[i];
        VkImageMemoryBarrier *b = &barriers[n];

        if (!checked[i].barrier_before)
            continue;
        *b = barrier_on(p, checked[i].format);
        b->oldLayout = p->layout_before;
        b->newLayout = checked[i].layout;
        b->srcAccessMask = p->src_access;
        b->dstAccessMask = unpack ? VK_ACCESS_SHADER_WRITE_BIT : VK_ACCESS_SHADER_READ_BIT;
        if (p->ownership & TD_VK_ACQUIRE) {
            b->srcAccessMask = 0; /* the release made it available */
            b->srcQueueFamilyIndex = p->src_family;
            b->dstQueueFamilyIndex = family_of(vk, p);
        }
        src_stages |= p->src_stage;
        n++;
    }
    if (n)
        vk->fn.CmdPipelineBarrier(commands, src_stages, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 0, NULL, 0, NULL, n, barriers);
}

static void record_after(td_vk *vk, VkCommandBuffer commands, const td_vk_image *images, const checked_image *checked,
                         uint32_t count, bool unpack)
{
    VkImageMemoryBarrier barriers[TD_IMAGES];
    VkPipelineStageFlags dst_stages = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < count; i++) {
        const td_vk_image *p = &images[i];
        const bool releases = p->ownership & TD_VK_RELEASE;
        VkImageMemoryBarrier *b = &barriers[n];

        if (!checked[i].barrier_after)
            continue;
        *b = barrier_on(p, checked[i].format);
        b->oldLayout = checked[i].layout;
        b->newLayout = p->layout_after ? p->layout_after : checked[i].layout;
        b->srcAccessMask = unpack ? VK_ACCESS_SHADER_WRITE_BIT : 0;
        b->dstAccessMask = p->dst_access;
        if (releases) {
            b->dstAccessMask = 0; /* the acquisition makes it visible */
            b->srcQueueFamilyIndex = family_of(vk, p);
            b->dstQueueFamilyIndex = p->dst_family;
        }
        dst_stages |= releases ? VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT : p->dst_stage;
        n++;
    }
    if (n)
        vk->fn.CmdPipelineBarrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, dst_stages, 0, 0, NULL, 0, NULL, n, barriers);
}

static struct td_image_push push_of(const td_vk_image *p, const checked_image *c)
{
    const uint32_t transfer = is_srgb(c->format) ? TD_IMAGE_SRGB : p->transfer;

    return (struct td_image_push){
        .stride_line = p->extent.height > 1 ? (uint32_t)p->stride_line : 0,
        .exposure = p->exposure == 0 ? 1 : p->exposure,
        .size = (p->extent.width - 1) | (p->extent.height - 1) << 16,
        .bits = c->first_element | (p->dtype == TANDEM_DTYPE_F16 ? 1u : 0) << TD_IMAGE_HALF_AT |
                (p->channels - 1) << TD_IMAGE_CHANNELS_AT | c->format->numbers << TD_IMAGE_NUMBERS_AT |
                p->encoding << TD_IMAGE_ENCODING_AT | transfer << TD_IMAGE_TRANSFER_AT |
                (p->extent.width > 1 ? (uint32_t)p->stride_texel : 0) << TD_IMAGE_STRIDE_AT,
    };
}

/* One dispatch for those of the images that are used in the one way. */
static void record_dispatch(td_vk *vk, VkCommandBuffer commands, const td_vk_pipeline *pipeline, bool sampled,
                            const td_vk_image *images, const checked_image *checked, uint32_t count)
{
    struct td_image_push push[TD_IMAGES] = {{0}};
    VkDescriptorBufferInfo buffers[TD_IMAGES];
    VkDescriptorImageInfo views[TD_IMAGES];
    const VkWriteDescriptorSet writes[2] = {
        {.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
         .dstBinding = 0,
         .descriptorCount = TD_IMAGES,
         .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
         .pBufferInfo = buffers},
        {.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
         .dstBinding = 1,
         .descriptorCount = TD_IMAGES,
         .descriptorType = sampled ? VK_DESCRIPTOR_TYPE_SAMPLED_IMAGE : VK_DESCRIPTOR_TYPE_STORAGE_IMAGE,
         .pImageInfo = views}};
    uint32_t n = 0, width = 0, height = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (checked[i].sampled != sampled)
            continue;
        push[n] = push_of(&images[i], &checked[i]);
        buffers[n] = checked[i].buffer;
        views[n] = (VkDescriptorImageInfo){.imageView = images[i].view, .imageLayout = checked[i].layout};
        width = images[i].extent.width > width ? images[i].extent.width : width;
        height = images[i].extent.height > height ? images[i].extent.height : height;
        n++;
    }
    for (uint32_t i = n; i < TD_IMAGES; i++) { /* the shader names them all */
        buffers[i] = buffers[0];
        views[i] = views[0];
    }
    vk->fn.CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->pipeline);
    vk->fn.CmdPushDescriptorSetKHR(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->layout, 0, 2, writes);
    vk->fn.CmdPushConstants(commands, pipeline->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof push, push);
    vk->fn.CmdDispatch(commands, (width + TD_IMAGES_GROUP_WIDTH - 1) / TD_IMAGES_GROUP_WIDTH,
                       (height + TD_IMAGES_GROUP_HEIGHT - 1) / TD_IMAGES_GROUP_HEIGHT, n);
}

static tandem_status record(td_vk *vk, VkCommandBuffer commands, const td_vk_image *images, uint32_t count, bool unpack,
                            char *why, size_t why_bytes)
{
    checked_image checked[TD_IMAGES] = {{0}};
    td_vk_pipeline sampling = {0}, storing = {0};
    tandem_status status = TANDEM_OK;

    CHECK(vk->caps.push_descriptor, UNSUPPORTED, "%s is not enabled", VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME);
    CHECK(vk->caps.max_descriptors >= TD_IMAGES, UNSUPPORTED, "%s takes %u storage buffers or images in a shader, not %d",
          vk->caps.name, vk->caps.max_descriptors, TD_IMAGES);
    for (uint32_t i = 0; i < count && status == TANDEM_OK; i++)
        status = check_image(vk, images, i, unpack, &checked[i], why, why_bytes);
    /* Both at first: nothing is recorded on failure. */
    for (uint32_t i = 0; i < count && status == TANDEM_OK; i++) {
        td_vk_pipeline *pipeline = checked[i].sampled ? &sampling : &storing;
        const td_vk_program program = checked[i].sampled ? TD_VK_PACK_IMAGES
                                      : unpack           ? TD_VK_UNPACK_IMAGES
                                                         : TD_VK_PACK_IMAGES_STORAGE;

        if (!pipeline->pipeline)
            status = td_vk_pipeline_get(vk, program, pipeline, why, why_bytes);
    }
    if (status != TANDEM_OK)
        return status;
    td_vk_label_begin(vk, commands, unpack ? "tandem unpack images" : "tandem pack images");
    record_before(vk, commands, images, checked, count, unpack);
    if (sampling.pipeline)
        record_dispatch(vk, commands, &sampling, true, images, checked, count);
    if (storing.pipeline)
        record_dispatch(vk, commands, &storing, false, images, checked, count);
    record_after(vk, commands, images, checked, count, unpack);
    td_vk_label_end(vk, commands);
    return TANDEM_OK;
}

tandem_status td_vk_record_pack_images(td_vk *vk, VkCommandBuffer commands, const td_vk_image *images, uint32_t count,
                                       char *why, size_t why_bytes)
{
    return record(vk, commands, images, count, false, why, why_bytes);
}

tandem_status td_vk_record_unpack_images(td_vk *vk, VkCommandBuffer commands, const td_vk_image *images, uint32_t count,
                                         char *why, size_t why_bytes)
{
    return record(vk, commands, images, count, true, why, why_bytes);
}
