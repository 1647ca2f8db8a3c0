/* Where a frame is shown: a window's swapchain, or an image that looks the same.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "demo/screen.h"

#include <stdlib.h>
#include <string.h>

#include "demo/output.h"

static const uint32_t screen_words[] = {
#include "shaders/screen.spv.inc"
};
static const uint32_t view_words[] = {
#include "shaders/view.spv.inc"
};

typedef struct view_push {
    float wipe, line, error_gain;
} view_push;

static const float ERROR_GAIN = 20.0f; /* the error map's white is an error of 1 / 20 of full brightness */
static const uint64_t ACQUIRE_NS = 1000000000ull;

static bool pick_format(demo_screen *s)
{
    VkSurfaceFormatKHR formats[64];
    uint32_t count = 64;
    VkResult result = vkGetPhysicalDeviceSurfaceFormatsKHR(s->engine->physical, s->surface, &count, formats);
    if (result != VK_SUCCESS && result != VK_INCOMPLETE)
        return demo_vk(s->engine, result, "asking for the surface's formats");
    for (uint32_t i = 0; i < count; i++)
        if (formats[i].format == VK_FORMAT_B8G8R8A8_UNORM || formats[i].format == VK_FORMAT_R8G8B8A8_UNORM) {
            s->format = formats[i].format;
            return true;
        }
    return demo_fail("the window offers no 8-bit format");
}

static bool create_pass(demo_screen *s)
{
    const VkImageLayout final_layout = s->surface ? VK_IMAGE_LAYOUT_PRESENT_SRC_KHR : VK_IMAGE_LAYOUT_GENERAL;
    const VkAttachmentDescription color = {.format = s->format,
                                           .samples = VK_SAMPLE_COUNT_1_BIT,
                                           .loadOp = VK_ATTACHMENT_LOAD_OP_CLEAR,
                                           .storeOp = VK_ATTACHMENT_STORE_OP_STORE,
                                           .stencilLoadOp = VK_ATTACHMENT_LOAD_OP_DONT_CARE,
                                           .stencilStoreOp = VK_ATTACHMENT_STORE_OP_DONT_CARE,
                                           .finalLayout = final_layout};
    const VkAttachmentReference reference = {0, VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL};
    const VkSubpassDescription subpass = {.pipelineBindPoint = VK_PIPELINE_BIND_POINT_GRAPHICS,
                                          .colorAttachmentCount = 1,
                                          .pColorAttachments = &reference};
    const VkSubpassDependency dependencies[2] = {
        {.srcSubpass = VK_SUBPASS_EXTERNAL,
         .dstSubpass = 0,
         .srcStageMask = VK_PIPELINE_STAGE_COLOR_ATTACHMENT_OUTPUT_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
         .dstStageMask = VK_PIPELINE_STAGE_COLOR_ATTACHMENT_OUTPUT_BIT,
         .dstAccessMask = VK_ACCESS_COLOR_ATTACHMENT_WRITE_BIT},
        {.srcSubpass = 0,
         .dstSubpass = VK_SUBPASS_EXTERNAL,
         .srcStageMask = VK_PIPELINE_STAGE_COLOR_ATTACHMENT_OUTPUT_BIT,
         .dstStageMask = VK_PIPELINE_STAGE_TRANSFER_BIT,
         .srcAccessMask = VK_ACCESS_COLOR_ATTACHMENT_WRITE_BIT,
         .dstAccessMask = VK_ACCESS_TRANSFER_READ_BIT}};
    const VkRenderPassCreateInfo pass = {.sType = VK_STRUCTURE_TYPE_RENDER_PASS_CREATE_INFO,
                                         .attachmentCount = 1,
                                         .pAttachments = &color,
                                         .subpassCount = 1,
                                         .pSubpasses = &subpass,
                                         .dependencyCount = 2,
                                         .pDependencies = dependencies};
    return demo_vk(s->engine, vkCreateRenderPass(s->engine->device, &pass, NULL, &s->pass), "making a render pass");
}

static bool create_pipeline(demo_screen *s)
{
    demo_engine *e = s->engine;
    VkDescriptorSetLayoutBinding bindings[3];
    VkShaderModule vertex = VK_NULL_HANDLE, fragment = VK_NULL_HANDLE;
    for (uint32_t i = 0; i < 3; i++)
        bindings[i] = (VkDescriptorSetLayoutBinding){.binding = i,
                                                     .descriptorType = VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER,
                                                     .descriptorCount = 1,
                                                     .stageFlags = VK_SHADER_STAGE_FRAGMENT_BIT};
    const VkDescriptorSetLayoutCreateInfo set = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                                 .flags = VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR,
                                                 .bindingCount = 3,
                                                 .pBindings = bindings};
    const VkPushConstantRange range = {VK_SHADER_STAGE_FRAGMENT_BIT, 0, sizeof(view_push)};
    VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                         .setLayoutCount = 1,
                                         .pSetLayouts = &s->set,
                                         .pushConstantRangeCount = 1,
                                         .pPushConstantRanges = &range};
    if (!demo_vk(e, vkCreateDescriptorSetLayout(e->device, &set, NULL, &s->set), "making a descriptor set layout") ||
        !demo_vk(e, vkCreatePipelineLayout(e->device, &layout, NULL, &s->layout), "making a pipeline layout") ||
        !demo_shader_create(e, screen_words, sizeof screen_words, &vertex))
        return false;
    if (!demo_shader_create(e, view_words, sizeof view_words, &fragment)) {
        vkDestroyShaderModule(e->device, vertex, NULL);
        return false;
    }
    const VkPipelineShaderStageCreateInfo stages[2] = {{.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                                        .stage = VK_SHADER_STAGE_VERTEX_BIT,
                                                        .module = vertex,
                                                        .pName = "main"},
                                                       {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                                        .stage = VK_SHADER_STAGE_FRAGMENT_BIT,
                                                        .module = fragment,
                                                        .pName = "main"}};
    const VkPipelineVertexInputStateCreateInfo input = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_VERTEX_INPUT_STATE_CREATE_INFO};
    const VkPipelineInputAssemblyStateCreateInfo assembly = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_INPUT_ASSEMBLY_STATE_CREATE_INFO,
        .topology = VK_PRIMITIVE_TOPOLOGY_TRIANGLE_LIST};
    const VkPipelineViewportStateCreateInfo viewport = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_VIEWPORT_STATE_CREATE_INFO, .viewportCount = 1, .scissorCount = 1};
    const VkPipelineRasterizationStateCreateInfo raster = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_RASTERIZATION_STATE_CREATE_INFO, .lineWidth = 1.0f};
    const VkPipelineMultisampleStateCreateInfo samples = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_MULTISAMPLE_STATE_CREATE_INFO,
        .rasterizationSamples = VK_SAMPLE_COUNT_1_BIT};
    const VkPipelineColorBlendAttachmentState attachment = {.colorWriteMask = 15};
    const VkPipelineColorBlendStateCreateInfo blend = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_COLOR_BLEND_STATE_CREATE_INFO,
        .attachmentCount = 1, .pAttachments = &attachment};
    const VkDynamicState dynamic_states[2] = {VK_DYNAMIC_STATE_VIEWPORT, VK_DYNAMIC_STATE_SCISSOR};
    const VkPipelineDynamicStateCreateInfo dynamic = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_DYNAMIC_STATE_CREATE_INFO,
        .dynamicStateCount = 2, .pDynamicStates = dynamic_states};
    const VkGraphicsPipelineCreateInfo pipeline = {.sType = VK_STRUCTURE_TYPE_GRAPHICS_PIPELINE_CREATE_INFO,
                                                   .stageCount = 2,
                                                   .pStages = stages,
                                                   .pVertexInputState = &input,
                                                   .pInputAssemblyState = &assembly,
                                                   .pViewportState = &viewport,
                                                   .pRasterizationState = &raster,
                                                   .pMultisampleState = &samples,
                                                   .pColorBlendState = &blend,
                                                   .pDynamicState = &dynamic,
                                                   .layout = s->layout,
                                                   .renderPass = s->pass};
    VkResult result = vkCreateGraphicsPipelines(e->device, VK_NULL_HANDLE, 1, &pipeline, NULL, &s->pipeline);
    vkDestroyShaderModule(e->device, vertex, NULL);
    vkDestroyShaderModule(e->device, fragment, NULL);
    return demo_vk(e, result, "making the view's pipeline");
}

static bool create_framebuffer(demo_screen *s, VkImageView view, VkFramebuffer *out)
{
    const VkFramebufferCreateInfo create = {.sType = VK_STRUCTURE_TYPE_FRAMEBUFFER_CREATE_INFO,
                                            .renderPass = s->pass,
                                            .attachmentCount = 1,
                                            .pAttachments = &view,
                                            .width = s->width,
                                            .height = s->height,
                                            .layers = 1};
    return demo_vk(s->engine, vkCreateFramebuffer(s->engine->device, &create, NULL, out), "making a framebuffer");
}

static void destroy_images(demo_screen *s)
{
    VkDevice device = s->engine->device;
    for (uint32_t i = 0; i < DEMO_SCREEN_IMAGES; i++) {
        vkDestroyFramebuffer(device, s->framebuffers[i], NULL);
        vkDestroyImageView(device, s->views[i], NULL);
        vkDestroySemaphore(device, s->finished[i], NULL);
        s->framebuffers[i] = VK_NULL_HANDLE;
        s->views[i] = VK_NULL_HANDLE;
        s->finished[i] = VK_NULL_HANDLE;
    }
    s->image_count = 0;
}

bool demo_screen_create(demo_screen *s, demo_engine *e, VkSurfaceKHR surface, VkFormat format, uint32_t width,
                        uint32_t height)
{
    memset(s, 0, sizeof *s);
    s->engine = e;
    s->surface = surface;
    s->width = width;
    s->height = height;
    s->format = format ? format : VK_FORMAT_R8G8B8A8_UNORM;
    if ((surface && !pick_format(s)) || !create_pass(s) || !create_pipeline(s))
        return false;
    if (surface)
        return demo_screen_resize(s, width, height);
    if (!demo_image_create(e, s->format, width, height,
                           VK_IMAGE_USAGE_COLOR_ATTACHMENT_BIT | VK_IMAGE_USAGE_TRANSFER_SRC_BIT,
                           "offscreen", &s->offscreen) ||
        !create_framebuffer(s, s->offscreen.view, &s->framebuffers[0]))
        return false;
    s->image_count = 1;
    return true;
}

void demo_screen_destroy(demo_screen *s)
{
    if (!s->engine || !s->engine->device)
        return;
    VkDevice device = s->engine->device;
    vkDeviceWaitIdle(device);
    destroy_images(s);
    for (int i = 0; i < DEMO_SLOTS; i++)
        vkDestroySemaphore(device, s->acquired[i], NULL);
    if (s->swapchain)
        vkDestroySwapchainKHR(device, s->swapchain, NULL);
    demo_image_destroy(s->engine, &s->offscreen);
    vkDestroyPipeline(device, s->pipeline, NULL);
    vkDestroyPipelineLayout(device, s->layout, NULL);
    vkDestroyDescriptorSetLayout(device, s->set, NULL);
    vkDestroyRenderPass(device, s->pass, NULL);
    memset(s, 0, sizeof *s);
}

bool demo_screen_resize(demo_screen *s, uint32_t width, uint32_t height)
{
    demo_engine *e = s->engine;
    VkSurfaceCapabilitiesKHR caps;
    const VkSemaphoreCreateInfo semaphore = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO};
    if (!demo_vk(e, vkDeviceWaitIdle(e->device), "waiting for the GPU") ||
        !demo_vk(e, vkGetPhysicalDeviceSurfaceCapabilitiesKHR(e->physical, s->surface, &caps),
                 "asking about the surface"))
        return false;
    destroy_images(s);
    /* An acquire that was never presented leaves its semaphore signalled: new ones for a new swapchain. */
    for (int i = 0; i < DEMO_SLOTS; i++) {
        vkDestroySemaphore(e->device, s->acquired[i], NULL);
        s->acquired[i] = VK_NULL_HANDLE;
        if (!demo_vk(e, vkCreateSemaphore(e->device, &semaphore, NULL, &s->acquired[i]), "making a semaphore"))
            return false;
    }
    if (caps.currentExtent.width != UINT32_MAX) {
        width = caps.currentExtent.width;
        height = caps.currentExtent.height;
    }
    s->stale = false;
    s->width = width;
    s->height = height;
    if (!width || !height)
        return true;
    uint32_t wanted = caps.minImageCount + 1;
    if (caps.maxImageCount && wanted > caps.maxImageCount)
        wanted = caps.maxImageCount;
    const VkCompositeAlphaFlagBitsKHR alpha = caps.supportedCompositeAlpha & VK_COMPOSITE_ALPHA_OPAQUE_BIT_KHR
                                                  ? VK_COMPOSITE_ALPHA_OPAQUE_BIT_KHR
                                                  : VK_COMPOSITE_ALPHA_INHERIT_BIT_KHR;
    VkSwapchainKHR old = s->swapchain;
    const VkSwapchainCreateInfoKHR create = {.sType = VK_STRUCTURE_TYPE_SWAPCHAIN_CREATE_INFO_KHR,
                                             .surface = s->surface,
                                             .minImageCount = wanted,
                                             .imageFormat = s->format,
                                             .imageColorSpace = VK_COLOR_SPACE_SRGB_NONLINEAR_KHR,
                                             .imageExtent = {width, height},
                                             .imageArrayLayers = 1,
                                             .imageUsage = VK_IMAGE_USAGE_COLOR_ATTACHMENT_BIT,
                                             .preTransform = caps.currentTransform,
                                             .compositeAlpha = alpha,
                                             .presentMode = VK_PRESENT_MODE_FIFO_KHR,
                                             .clipped = VK_TRUE,
                                             .oldSwapchain = old};
    s->swapchain = VK_NULL_HANDLE;
    VkResult result = vkCreateSwapchainKHR(e->device, &create, NULL, &s->swapchain);
    if (old)
        vkDestroySwapchainKHR(e->device, old, NULL);
    uint32_t count = DEMO_SCREEN_IMAGES;
    if (!demo_vk(e, result, "making a swapchain") ||
        !demo_vk(e, vkGetSwapchainImagesKHR(e->device, s->swapchain, &count, s->images),
                 "getting the swapchain's images"))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const VkImageViewCreateInfo view = {.sType = VK_STRUCTURE_TYPE_IMAGE_VIEW_CREATE_INFO,
                                            .image = s->images[i],
                                            .viewType = VK_IMAGE_VIEW_TYPE_2D,
                                            .format = s->format,
                                            .subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1}};
        if (!demo_vk(e, vkCreateImageView(e->device, &view, NULL, &s->views[i]), "making an image view") ||
            !demo_vk(e, vkCreateSemaphore(e->device, &semaphore, NULL, &s->finished[i]), "making a semaphore") ||
            !create_framebuffer(s, s->views[i], &s->framebuffers[i]))
            return false;
    }
    s->image_count = count;
    return true;
}

bool demo_screen_acquire(demo_screen *s, uint32_t slot)
{
    VkResult result =
        vkAcquireNextImageKHR(s->engine->device, s->swapchain, ACQUIRE_NS, s->acquired[slot], VK_NULL_HANDLE,
                              &s->current);
    s->stale = s->stale || result == VK_ERROR_OUT_OF_DATE_KHR || result == VK_SUBOPTIMAL_KHR || result == VK_TIMEOUT ||
               result == VK_NOT_READY;
    if (result == VK_SUCCESS || result == VK_SUBOPTIMAL_KHR)
        return true;
    return s->stale ? false : demo_vk(s->engine, result, "acquiring an image");
}

bool demo_screen_present(demo_screen *s)
{
    const VkPresentInfoKHR present = {.sType = VK_STRUCTURE_TYPE_PRESENT_INFO_KHR,
                                      .waitSemaphoreCount = 1,
                                      .pWaitSemaphores = &s->finished[s->current],
                                      .swapchainCount = 1,
                                      .pSwapchains = &s->swapchain,
                                      .pImageIndices = &s->current};
    demo_queue_lock(s->engine);
    VkResult result = vkQueuePresentKHR(s->engine->queue, &present);
    demo_queue_unlock(s->engine);
    s->stale = s->stale || result == VK_ERROR_OUT_OF_DATE_KHR || result == VK_SUBOPTIMAL_KHR;
    return result == VK_SUCCESS || s->stale || demo_vk(s->engine, result, "presenting");
}

static void draw(demo_screen *s, VkCommandBuffer commands, const demo_slot *slot, const demo_rect *rect,
                 const view_push *push)
{
    demo_engine *e = s->engine;
    const demo_view *view = s->view;
    const demo_image *left = view->wipe == DEMO_WIPE_EXACT                       ? &slot->result_exact
                             : view->wipe == DEMO_WIPE_REFERENCE && s->data->reference_samples ? s->reference
                             : view->wipe >= DEMO_WIPE_BOX && s->other && s->other->view       ? s->other
                                                                                 : &slot->radiance;
    const VkDescriptorImageInfo images[3] = {
        {left == &slot->result_exact || (left == s->other && view->wipe != DEMO_WIPE_MAP) ? e->linear : e->nearest, left->view, VK_IMAGE_LAYOUT_GENERAL},
        {e->linear, slot->result.view, VK_IMAGE_LAYOUT_GENERAL},
        {e->nearest, slot->result.view, VK_IMAGE_LAYOUT_GENERAL}};
    const VkWriteDescriptorSet write = {.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                        .descriptorType = VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER,
                                        .descriptorCount = 1};
    VkWriteDescriptorSet writes[3] = {write, write, write};
    for (uint32_t i = 0; i < 3; i++) {
        writes[i].dstBinding = i;
        writes[i].pImageInfo = &images[i];
    }
    if (rect->width < 1.0f || rect->height < 1.0f)
        return;
    const VkViewport viewport = {rect->x, rect->y, rect->width, rect->height, 0.0f, 1.0f};
    const VkRect2D scissor = {{(int32_t)rect->x, (int32_t)rect->y}, {(uint32_t)rect->width, (uint32_t)rect->height}};
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_GRAPHICS, s->pipeline);
    vkCmdSetViewport(commands, 0, 1, &viewport);
    vkCmdSetScissor(commands, 0, 1, &scissor);
    e->push_descriptors(commands, VK_PIPELINE_BIND_POINT_GRAPHICS, s->layout, 0, 3, writes);
    vkCmdPushConstants(commands, s->layout, VK_SHADER_STAGE_FRAGMENT_BIT, 0, sizeof *push, push);
    vkCmdDraw(commands, 3, 1, 0, 0);
}

void demo_screen_record(void *screen, VkCommandBuffer commands, demo_slot *slot)
{
    demo_screen *s = screen;
    const VkClearValue clear = {.color = {.float32 = {0.055f, 0.063f, 0.075f, 1.0f}}};
    const VkRenderPassBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_RENDER_PASS_BEGIN_INFO,
                                         .renderPass = s->pass,
                                         .framebuffer = s->framebuffers[s->current],
                                         .renderArea = {{0, 0}, {s->width, s->height}},
                                         .clearValueCount = 1,
                                         .pClearValues = &clear};
    demo_overlay_build(s->view, s->data, s->width, s->height, s->delta_seconds, &s->picture, &s->error_map);
    const bool map = s->view->wipe == DEMO_WIPE_MAP, wipes = s->view->wipe != DEMO_WIPE_NONE && !map;
    const view_push picture = {map ? 2.0f : wipes ? s->view->wipe_at : -1.0f, wipes ? 1.0f / (s->picture.width + 1.0f) : 0.0f, 0.0f};
    const view_push errors = {0.0f, 0.0f, ERROR_GAIN};
    vkCmdBeginRenderPass(commands, &begin, VK_SUBPASS_CONTENTS_INLINE);
    draw(s, commands, slot, &s->picture, &picture);
    if (slot->outcome.exact)
        draw(s, commands, slot, &s->error_map, &errors);
    demo_overlay_record(commands);
    vkCmdEndRenderPass(commands);
}

bool demo_screen_save(demo_screen *s, const char *path)
{
    const size_t pixels = (size_t)s->width * s->height;
    uint8_t *rgba = malloc(4 * pixels);
    bool ok = rgba && demo_image_read_bytes(s->engine, &s->offscreen, rgba);
    for (size_t i = 0; ok && i < pixels; i++) {
        if (s->format == VK_FORMAT_B8G8R8A8_UNORM) {
            const uint8_t blue = rgba[4 * i];
            rgba[4 * i] = rgba[4 * i + 2];
            rgba[4 * i + 2] = blue;
        }
        rgba[4 * i + 3] = 255;
    }
    ok = ok && demo_png_write(path, rgba, s->width, s->height);
    free(rgba);
    return ok;
}
