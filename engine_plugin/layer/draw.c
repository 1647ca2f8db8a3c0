/* See draw.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/layer/draw.h"

#include <stdlib.h>
#include <string.h>

static const uint32_t hud_words[] = {
#include "shaders/layer_hud.spv.inc"
};

enum { HUD_BYTES = (TD_LAYER_FONT_WORDS + TD_LAYER_TEXT_WORDS) * 4 };
_Static_assert(TD_LAYER_FONT_WORDS == TD_LAYER_GLYPHS * TD_LAYER_GLYPH_WORDS, "four rows a word");
_Static_assert(TD_LAYER_TEXT_WORDS * 4 >= TD_LAYER_COLUMNS * TD_LAYER_LINES, "four letters a word");

/* --- Memory --- */

static uint32_t memory_type(layer_device *d, uint32_t types, VkMemoryPropertyFlags wanted)
{
    VkPhysicalDeviceMemoryProperties has;

    d->instance->fn.GetPhysicalDeviceMemoryProperties(d->physical, &has);
    for (uint32_t i = 0; i < has.memoryTypeCount; i++)
        if (types & (1u << i) && (has.memoryTypes[i].propertyFlags & wanted) == wanted)
            return i;
    return UINT32_MAX;
}

static bool allocate(layer_device *d, const VkMemoryRequirements *needs,
                     VkMemoryPropertyFlags wanted, VkDeviceMemory *memory)
{
    VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                 .allocationSize = needs->size,
                                 .memoryTypeIndex = memory_type(d, needs->memoryTypeBits, wanted)};

    if (info.memoryTypeIndex == UINT32_MAX && wanted == VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)
        info.memoryTypeIndex = memory_type(d, needs->memoryTypeBits, 0);
    return info.memoryTypeIndex != UINT32_MAX &&
           d->fn.AllocateMemory(d->handle, &info, NULL, memory) == VK_SUCCESS;
}

bool layer_image_make(layer_device *d, VkFormat format, bool exchanged, VkExtent2D extent,
                      layer_image *out)
{
    const VkImageCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO,
        .imageType = VK_IMAGE_TYPE_2D,
        .format = format,
        .extent = {extent.width, extent.height, 1},
        .mipLevels = 1,
        .arrayLayers = 1,
        .samples = VK_SAMPLE_COUNT_1_BIT,
        .tiling = VK_IMAGE_TILING_OPTIMAL,
        .usage = VK_IMAGE_USAGE_TRANSFER_SRC_BIT | VK_IMAGE_USAGE_TRANSFER_DST_BIT |
                 VK_IMAGE_USAGE_SAMPLED_BIT | VK_IMAGE_USAGE_STORAGE_BIT};
    VkImageViewCreateInfo view = {.sType = VK_STRUCTURE_TYPE_IMAGE_VIEW_CREATE_INFO,
                                  .viewType = VK_IMAGE_VIEW_TYPE_2D,
                                  .format = format,
                                  .subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1}};
    VkMemoryRequirements needs;

    memset(out, 0, sizeof *out);
    if (d->fn.CreateImage(d->handle, &info, NULL, &out->image) != VK_SUCCESS)
        return false;
    d->fn.GetImageMemoryRequirements(d->handle, out->image, &needs);
    view.image = out->image;
    if (allocate(d, &needs, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, &out->memory) &&
        d->fn.BindImageMemory(d->handle, out->image, out->memory, 0) == VK_SUCCESS &&
        d->fn.CreateImageView(d->handle, &view, NULL, &out->view) == VK_SUCCESS) {
        if (exchanged) {
            view.components.r = VK_COMPONENT_SWIZZLE_B;
            view.components.b = VK_COMPONENT_SWIZZLE_R;
        }
        if (d->fn.CreateImageView(d->handle, &view, NULL, &out->seen) == VK_SUCCESS)
            return true;
    }
    layer_image_destroy(d, out);
    return false;
}

void layer_image_destroy(layer_device *d, layer_image *it)
{
    d->fn.DestroyImageView(d->handle, it->view, NULL);
    d->fn.DestroyImageView(d->handle, it->seen, NULL);
    d->fn.DestroyImage(d->handle, it->image, NULL);
    d->fn.FreeMemory(d->handle, it->memory, NULL);
    memset(it, 0, sizeof *it);
}

bool layer_buffer_make(layer_device *d, VkDeviceSize bytes, layer_buffer *out)
{
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                     .size = bytes,
                                     .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT};
    VkMemoryRequirements needs;

    memset(out, 0, sizeof *out);
    if (d->fn.CreateBuffer(d->handle, &info, NULL, &out->buffer) != VK_SUCCESS)
        return false;
    d->fn.GetBufferMemoryRequirements(d->handle, out->buffer, &needs);
    if (allocate(d, &needs,
                 VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
                 &out->memory) &&
        d->fn.BindBufferMemory(d->handle, out->buffer, out->memory, 0) == VK_SUCCESS &&
        d->fn.MapMemory(d->handle, out->memory, 0, VK_WHOLE_SIZE, 0, &out->host) == VK_SUCCESS)
        return true;
    layer_buffer_destroy(d, out);
    return false;
}

void layer_buffer_destroy(layer_device *d, layer_buffer *it)
{
    d->fn.DestroyBuffer(d->handle, it->buffer, NULL);
    d->fn.FreeMemory(d->handle, it->memory, NULL); /* which unmaps it */
    memset(it, 0, sizeof *it);
}

/* --- Dispatches --- */

bool layer_compute_make(layer_device *d, const uint32_t *words, size_t bytes,
                        const VkDescriptorType *types, uint32_t binding_count, uint32_t push_bytes,
                        layer_compute *out)
{
    VkDescriptorSetLayoutBinding bindings[LAYER_BINDINGS];
    const VkDescriptorSetLayoutCreateInfo set = {
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
        .flags = VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR,
        .bindingCount = binding_count,
        .pBindings = bindings};
    const VkPushConstantRange push = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT,
                                      .size = push_bytes};
    const VkPipelineLayoutCreateInfo layout = {.sType =
                                                   VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                               .setLayoutCount = 1,
                                               .pSetLayouts = &out->set,
                                               .pushConstantRangeCount = 1,
                                               .pPushConstantRanges = &push};
    const VkShaderModuleCreateInfo module = {
        .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = bytes, .pCode = words};
    VkComputePipelineCreateInfo pipeline = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .pName = "main"}};

    memset(out, 0, sizeof *out);
    if (!d->fn.CmdPushDescriptorSetKHR)
        return false;
    for (uint32_t i = 0; i < binding_count; i++) {
        out->types[i] = types[i];
        bindings[i] = (VkDescriptorSetLayoutBinding){.binding = i,
                                                     .descriptorType = types[i],
                                                     .descriptorCount = 1,
                                                     .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT};
    }
    out->binding_count = binding_count;
    out->push_bytes = push_bytes;
    bool done =
        d->fn.CreateDescriptorSetLayout(d->handle, &set, NULL, &out->set) == VK_SUCCESS &&
        d->fn.CreatePipelineLayout(d->handle, &layout, NULL, &out->layout) == VK_SUCCESS &&
        d->fn.CreateShaderModule(d->handle, &module, NULL, &pipeline.stage.module) == VK_SUCCESS;
    pipeline.layout = out->layout;
    done = done && d->fn.CreateComputePipelines(d->handle, VK_NULL_HANDLE, 1, &pipeline, NULL,
                                                &out->pipeline) == VK_SUCCESS;
    d->fn.DestroyShaderModule(d->handle, pipeline.stage.module, NULL);
    if (!done)
        layer_compute_destroy(d, out);
    return done;
}

void layer_compute_destroy(layer_device *d, layer_compute *it)
{
    d->fn.DestroyPipeline(d->handle, it->pipeline, NULL);
    d->fn.DestroyPipelineLayout(d->handle, it->layout, NULL);
    d->fn.DestroyDescriptorSetLayout(d->handle, it->set, NULL);
    memset(it, 0, sizeof *it);
}

void layer_compute_record(layer_device *d, VkCommandBuffer commands, const layer_compute *it,
                          const layer_binding *bindings, const void *push, uint32_t width,
                          uint32_t height)
{
    VkDescriptorImageInfo images[LAYER_BINDINGS];
    VkDescriptorBufferInfo buffers[LAYER_BINDINGS];
    VkWriteDescriptorSet writes[LAYER_BINDINGS];

    for (uint32_t i = 0; i < it->binding_count; i++) {
        images[i] = (VkDescriptorImageInfo){.imageView = bindings[i].view,
                                            .imageLayout = VK_IMAGE_LAYOUT_GENERAL};
        buffers[i] =
            (VkDescriptorBufferInfo){bindings[i].buffer, bindings[i].offset, bindings[i].bytes};
        writes[i] = (VkWriteDescriptorSet){.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                           .dstBinding = i,
                                           .descriptorCount = 1,
                                           .descriptorType = it->types[i],
                                           .pImageInfo = &images[i],
                                           .pBufferInfo = &buffers[i]};
    }
    d->fn.CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, it->pipeline);
    d->fn.CmdPushDescriptorSetKHR(commands, VK_PIPELINE_BIND_POINT_COMPUTE, it->layout, 0,
                                  it->binding_count, writes);
    d->fn.CmdPushConstants(commands, it->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, it->push_bytes,
                           push);
    d->fn.CmdDispatch(commands, (width + TD_LAYER_GROUP - 1) / TD_LAYER_GROUP,
                      (height + TD_LAYER_GROUP - 1) / TD_LAYER_GROUP, 1);
}

void layer_record_shader_barrier(layer_device *d, VkCommandBuffer commands)
{
    const VkMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                     .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT,
                                     .dstAccessMask =
                                         VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT};

    d->fn.CmdPipelineBarrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                             VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &barrier, 0, NULL, 0,
                             NULL);
}

/* --- Images, from one use to the next --- */

/* The semaphores of a present are waited for, and signalled, at all commands. */
const layer_use layer_use_presented = {VK_IMAGE_LAYOUT_PRESENT_SRC_KHR,
                                       VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, 0};
/* The last use was a shader's, or a copy's, of the frame before; what it left is not kept. */
const layer_use layer_use_nothing = {
    VK_IMAGE_LAYOUT_UNDEFINED,
    VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT, 0};
const layer_use layer_use_source = {VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL,
                                    VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT};
const layer_use layer_use_target = {VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL,
                                    VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT};
const layer_use layer_use_shader = {VK_IMAGE_LAYOUT_GENERAL, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                                    VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT};

void layer_record_use(layer_device *d, VkCommandBuffer commands, VkImage image, layer_use before,
                      layer_use after)
{
    const VkImageMemoryBarrier barrier = {
        .sType = VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER,
        .srcAccessMask = before.access,
        .dstAccessMask = after.access,
        .oldLayout = before.layout,
        .newLayout = after.layout,
        .srcQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
        .dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
        .image = image,
        .subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1}};

    d->fn.CmdPipelineBarrier(commands, before.stages, after.stages, 0, 0, NULL, 0, NULL, 1,
                             &barrier);
}

void layer_record_copy(layer_device *d, VkCommandBuffer commands, VkImage from, VkImage to,
                       VkExtent2D extent)
{
    const VkImageSubresourceLayers layer = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1};
    const VkImageCopy region = {.srcSubresource = layer,
                                .dstSubresource = layer,
                                .extent = {extent.width, extent.height, 1}};

    d->fn.CmdCopyImage(commands, from, VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL, to,
                       VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL, 1, &region);
}

/* --- The HUD --- */

bool layer_hud_make(layer_device *d, uint32_t frames, layer_hud *out)
{
    static const VkDescriptorType types[] = {VK_DESCRIPTOR_TYPE_STORAGE_IMAGE,
                                             VK_DESCRIPTOR_TYPE_STORAGE_BUFFER};
    bool done;

    memset(out, 0, sizeof *out);
    if (!d->hud_shader) {
        d->hud_shader = calloc(1, sizeof *d->hud_shader);
        if (!d->hud_shader || !layer_compute_make(d, hud_words, sizeof hud_words, types, 2,
                                                  sizeof(struct td_layer_hud), d->hud_shader)) {
            layer_hud_end(d);
            return false;
        }
    }
    out->texts = calloc(frames, sizeof *out->texts);
    done = out->texts != NULL;
    for (; done && out->count < frames; out->count++) {
        layer_buffer *text = &out->texts[out->count];
        done = layer_buffer_make(d, HUD_BYTES, text);
        if (!done)
            break;
        uint8_t *to = text->host;
        memset(to, 0, HUD_BYTES);
        for (int i = 0; i < TD_LAYER_GLYPHS; i++)
            memcpy(to + (size_t)i * TD_LAYER_GLYPH_WORDS * 4, layer_font[i], TD_LAYER_GLYPH_ROWS);
    }
    if (!done)
        layer_hud_destroy(d, out);
    return done;
}

void layer_hud_destroy(layer_device *d, layer_hud *it)
{
    for (uint32_t i = 0; i < it->count; i++)
        layer_buffer_destroy(d, &it->texts[i]);
    free(it->texts);
    memset(it, 0, sizeof *it);
}

void layer_hud_end(layer_device *d)
{
    if (d->hud_shader)
        layer_compute_destroy(d, d->hud_shader);
    free(d->hud_shader);
    d->hud_shader = NULL;
}

static uint32_t scale_of(VkExtent2D image)
{
    return image.height < 900 ? 1 : image.height / 700 + 1;
}

VkExtent2D layer_hud_extent(const layer_hud *it, VkExtent2D image)
{
    const uint32_t scale = scale_of(image);
    const uint32_t width = scale * (it->columns * TD_LAYER_GLYPH_WIDTH + 2 * TD_LAYER_MARGIN);
    const uint32_t height = scale * (it->lines * TD_LAYER_GLYPH_ROWS + 2 * TD_LAYER_MARGIN);

    return (VkExtent2D){width < image.width ? width : image.width,
                        height < image.height ? height : image.height};
}

void layer_hud_write(layer_hud *it, uint32_t frame,
                     char lines[TD_LAYER_LINES][TD_LAYER_COLUMNS + 1])
{
    uint8_t *to = (uint8_t *)it->texts[frame].host + TD_LAYER_FONT_WORDS * 4;

    it->columns = it->lines = 0;
    for (uint32_t line = 0; line < TD_LAYER_LINES; line++) {
        const size_t length = strlen(lines[line]);
        if (length)
            it->lines = line + 1;
        if (length > it->columns)
            it->columns = (uint32_t)length;
        for (size_t i = 0; i < TD_LAYER_COLUMNS; i++) {
            const char letter = i < length ? lines[line][i] : ' ';
            *to++ = letter >= ' ' && letter <= '~' ? (uint8_t)(letter - ' ') : '?' - ' ';
        }
    }
}

void layer_hud_record(layer_device *d, VkCommandBuffer commands, const layer_hud *it,
                      uint32_t frame, VkImageView to, VkExtent2D image, float white)
{
    const VkExtent2D extent = layer_hud_extent(it, image);
    const struct td_layer_hud push = {extent.width, extent.height, scale_of(image), white};
    const layer_binding bindings[] = {{.view = to},
                                      {.buffer = it->texts[frame].buffer, .bytes = VK_WHOLE_SIZE}};

    layer_compute_record(d, commands, d->hud_shader, bindings, &push, extent.width, extent.height);
}
