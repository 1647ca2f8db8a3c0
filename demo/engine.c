/* The engine that Tandem is plugged into: instance, device, images, buffers, pipelines.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "demo/engine.h"
#include "engine_plugin/setup/setup.h"
#include "interop/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENCE_STEPS = 60 };

bool demo_fail(const char *format, ...)
{
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(stderr, "tandem-demo: %s\n", text);
    return false;
}

static const char *result_text(VkResult result)
{
    switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY: return "out of host memory";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY: return "out of device memory";
    case VK_ERROR_INITIALIZATION_FAILED: return "initialisation failed";
    case VK_ERROR_DEVICE_LOST: return "device lost";
    case VK_ERROR_LAYER_NOT_PRESENT: return "layer not present";
    case VK_ERROR_EXTENSION_NOT_PRESENT: return "extension not present";
    case VK_ERROR_FEATURE_NOT_PRESENT: return "feature not present";
    case VK_ERROR_INCOMPATIBLE_DRIVER: return "incompatible driver";
    case VK_ERROR_SURFACE_LOST_KHR: return "surface lost";
    case VK_TIMEOUT: return "timed out";
    default: return "error";
    }
}

bool demo_vk(demo_engine *e, VkResult result, const char *what)
{
    if (result == VK_SUCCESS || result == VK_SUBOPTIMAL_KHR)
        return true;
    e->lost = e->lost || result == VK_ERROR_DEVICE_LOST;
    return demo_fail("%s: %s (VkResult %d)", what, result_text(result), (int)result);
}

bool demo_engine_on_cpu(const demo_engine *e)
{
    return e->properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
}

demo_patience demo_patience_begin(bool on_cpu)
{
    return (demo_patience){on_cpu, PATIENCE_STEPS, clock()};
}

bool demo_patience_lasts(demo_patience *p, clock_t used)
{
    const bool computes = p->on_cpu && used - p->used >= CLOCKS_PER_SEC / 1000;
    p->used = used;
    p->steps = computes ? PATIENCE_STEPS : p->steps ? p->steps - 1 : 0;
    return p->steps;
}

bool demo_wait(demo_engine *e, VkFence fence, const char *what)
{
    demo_patience patience = demo_patience_begin(demo_engine_on_cpu(e));
    VkResult result;
    do
        result = vkWaitForFences(e->device, 1, &fence, VK_TRUE, DEMO_PATIENCE_STEP_NS);
    while (result == VK_TIMEOUT && demo_patience_lasts(&patience, clock()));
    return demo_vk(e, result, what);
}

static VKAPI_ATTR VkBool32 VKAPI_CALL on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                                 VkDebugUtilsMessageTypeFlagsEXT types,
                                                 const VkDebugUtilsMessengerCallbackDataEXT *data, void *user)
{
    demo_engine *e = user;
    (void)types;
    if (severity >= VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT) {
        e->validation_messages++;
        demo_fail("validation: %s", data->pMessage);
    }
    return VK_FALSE;
}

bool demo_engine_instance(demo_engine *e, const char *const *window_extensions, uint32_t count, bool validate)
{
    const setup_instance_desc desc = {.get = vkGetInstanceProcAddr,
                                      .application = "tandem-demo",
                                      .api_version = VK_API_VERSION_1_2,
                                      .extensions = window_extensions,
                                      .extension_count = count,
                                      .on_message = validate ? on_message : NULL,
                                      .user = e};
    char why[200];
    return setup_instance(&desc, &e->instance, &e->messenger, why, sizeof why) == VK_SUCCESS ||
           demo_fail("cannot make a Vulkan instance: %s", why);
}

static bool pick_physical(demo_engine *e, VkSurfaceKHR surface)
{
    const setup_need need = {.api_version = VK_API_VERSION_1_2, .draws = true, .stamps = true, .surface = surface, .skip = e->skip};
    char why[200];
    if (!setup_pick(vkGetInstanceProcAddr, e->instance, &need, &e->physical, &e->family, why, sizeof why))
        return demo_fail("%s", why);
    vkGetPhysicalDeviceProperties(e->physical, &e->properties);
    vkGetPhysicalDeviceMemoryProperties(e->physical, &e->memory);
    return true;
}

/* The GPU's clock can be read together with CLOCK_MONOTONIC. */
static bool clocks_meet(demo_engine *e)
{
    PFN_vkGetPhysicalDeviceCalibrateableTimeDomainsEXT list = (PFN_vkGetPhysicalDeviceCalibrateableTimeDomainsEXT)
        vkGetInstanceProcAddr(e->instance, "vkGetPhysicalDeviceCalibrateableTimeDomainsEXT");
    VkTimeDomainEXT domains[16];
    uint32_t count = 16, found = 0;
    if (!list || list(e->physical, &count, domains) < 0)
        return false;
    for (uint32_t i = 0; i < count; i++)
        found |= domains[i] == VK_TIME_DOMAIN_DEVICE_EXT            ? 1u
                 : domains[i] == VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT ? 2u
                                                                    : 0u;
    return found == 3;
}

static bool gather_requirements(demo_engine *e, bool presents)
{
    static const char *const own[] = {VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME,
                                      VK_EXT_CALIBRATED_TIMESTAMPS_EXTENSION_NAME,
                                      VK_KHR_SWAPCHAIN_EXTENSION_NAME};
    integration_enabled *enabled = &e->enabled;
    char why[200];
    if (!integrate_enable(enabled, vkGetInstanceProcAddr, e->instance, e->physical, why, sizeof why))
        return demo_fail("%s: %s", e->properties.deviceName, why);
    VkExtensionProperties *available = NULL;
    uint32_t available_count = 0;
    vkEnumerateDeviceExtensionProperties(e->physical, NULL, &available_count, NULL);
    available = calloc(available_count + 1, sizeof *available);
    if (!available)
        return demo_fail("out of memory");
    vkEnumerateDeviceExtensionProperties(e->physical, NULL, &available_count, available);
    for (uint32_t i = 0; i < available_count; i++)
        for (size_t j = 0; j < sizeof own / sizeof *own; j++)
            if ((j != 2 || presents) && !strcmp(available[i].extensionName, own[j]))
                integrate_enable_extension(enabled, own[j]);
    free(available);
    e->calibrated = integrate_is_enabled(enabled, own[1]) && clocks_meet(e);
    if (presents && !integrate_is_enabled(enabled, own[2]))
        return demo_fail("%s lacks %s", e->properties.deviceName, own[2]);
    if (!integrate_is_enabled(enabled, own[0]))
        return demo_fail("%s lacks %s, which the demo needs", e->properties.deviceName, own[0]);
    return true;
}

bool demo_engine_device(demo_engine *e, VkSurfaceKHR surface)
{
    if (!pick_physical(e, surface) || !gather_requirements(e, surface != VK_NULL_HANDLE))
        return false;
    if (!demo_vk(e,
                 setup_device(vkGetInstanceProcAddr, e->instance, e->physical, e->family, &e->enabled, &e->device, &e->queue),
                 "making the Vulkan device"))
        return false;
    pthread_mutex_init(&e->queue_lock, NULL);
    e->push_descriptors =
        (PFN_vkCmdPushDescriptorSetKHR)vkGetDeviceProcAddr(e->device, "vkCmdPushDescriptorSetKHR");
    e->get_calibrated =
        (PFN_vkGetCalibratedTimestampsEXT)vkGetDeviceProcAddr(e->device, "vkGetCalibratedTimestampsEXT");
    /* NULL where that extension of the instance is not there, or not enabled. */
    e->label_begin =
        (PFN_vkCmdBeginDebugUtilsLabelEXT)vkGetInstanceProcAddr(e->instance, "vkCmdBeginDebugUtilsLabelEXT");
    e->label_end = (PFN_vkCmdEndDebugUtilsLabelEXT)vkGetInstanceProcAddr(e->instance, "vkCmdEndDebugUtilsLabelEXT");
    e->set_name = (PFN_vkSetDebugUtilsObjectNameEXT)vkGetInstanceProcAddr(e->instance, "vkSetDebugUtilsObjectNameEXT");
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                          .queueFamilyIndex = e->family};
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    VkSamplerCreateInfo sampler = {.sType = VK_STRUCTURE_TYPE_SAMPLER_CREATE_INFO,
                                   .addressModeU = VK_SAMPLER_ADDRESS_MODE_CLAMP_TO_EDGE,
                                   .addressModeV = VK_SAMPLER_ADDRESS_MODE_CLAMP_TO_EDGE,
                                   .addressModeW = VK_SAMPLER_ADDRESS_MODE_CLAMP_TO_EDGE};
    if (!demo_vk(e, vkCreateCommandPool(e->device, &pool, NULL, &e->once_pool), "making a command pool") ||
        !demo_vk(e, vkCreateFence(e->device, &fence, NULL, &e->once_fence), "making a fence") ||
        !demo_vk(e, vkCreateSampler(e->device, &sampler, NULL, &e->nearest), "making a sampler"))
        return false;
    sampler.magFilter = sampler.minFilter = VK_FILTER_LINEAR;
    const VkCommandBufferAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                  .commandPool = e->once_pool,
                                                  .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                  .commandBufferCount = 1};
    return demo_vk(e, vkCreateSampler(e->device, &sampler, NULL, &e->linear), "making a sampler") &&
           demo_vk(e, vkAllocateCommandBuffers(e->device, &allocate, &e->once), "making a command buffer");
}

uint32_t demo_engine_destroy(demo_engine *e)
{
    if (e->device) {
        vkDestroySampler(e->device, e->nearest, NULL);
        vkDestroySampler(e->device, e->linear, NULL);
        vkDestroyFence(e->device, e->once_fence, NULL);
        vkDestroyCommandPool(e->device, e->once_pool, NULL);
        vkDestroyDevice(e->device, NULL);
    }
    setup_instance_destroy(vkGetInstanceProcAddr, e->instance, e->messenger);
    const uint32_t complaints = e->validation_messages;
    memset(e, 0, sizeof *e);
    return complaints;
}

static bool allocate_memory(demo_engine *e, const VkMemoryRequirements *needs, VkMemoryPropertyFlags wanted,
                            VkMemoryPropertyFlags liked, VkDeviceMemory *out)
{
    uint32_t found = UINT32_MAX;
    for (int pass = 0; pass < 2 && found == UINT32_MAX; pass++)
        for (uint32_t i = 0; i < e->memory.memoryTypeCount && found == UINT32_MAX; i++) {
            const VkMemoryPropertyFlags flags = pass ? wanted : wanted | liked;
            if ((needs->memoryTypeBits >> i & 1) && (e->memory.memoryTypes[i].propertyFlags & flags) == flags)
                found = i;
        }
    if (found == UINT32_MAX)
        return demo_fail("no memory type fits %llu bytes", (unsigned long long)needs->size);
    const VkMemoryAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                           .allocationSize = needs->size,
                                           .memoryTypeIndex = found};
    return demo_vk(e, vkAllocateMemory(e->device, &allocate, NULL, out), "allocating memory");
}

void demo_name(demo_engine *e, VkObjectType type, uint64_t handle, const char *name)
{
    const VkDebugUtilsObjectNameInfoEXT info = {.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_OBJECT_NAME_INFO_EXT,
                                                .objectType = type,
                                                .objectHandle = handle,
                                                .pObjectName = name};
    if (e->set_name && name)
        e->set_name(e->device, &info);
}

bool demo_image_create(demo_engine *e, VkFormat format, uint32_t width, uint32_t height, VkImageUsageFlags usage,
                       const char *name, demo_image *out)
{
    out->format = format;
    out->width = width;
    out->height = height;
    const VkImageCreateInfo create = {.sType = VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO,
                                      .imageType = VK_IMAGE_TYPE_2D,
                                      .format = format,
                                      .extent = {width, height, 1},
                                      .mipLevels = 1,
                                      .arrayLayers = 1,
                                      .samples = VK_SAMPLE_COUNT_1_BIT,
                                      .tiling = VK_IMAGE_TILING_OPTIMAL,
                                      .usage = usage};
    if (!demo_vk(e, vkCreateImage(e->device, &create, NULL, &out->image), "making an image"))
        return false;
    VkMemoryRequirements needs;
    vkGetImageMemoryRequirements(e->device, out->image, &needs);
    if (!allocate_memory(e, &needs, 0, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, &out->memory) ||
        !demo_vk(e, vkBindImageMemory(e->device, out->image, out->memory, 0), "binding an image"))
        return false;
    const VkImageViewCreateInfo view = {.sType = VK_STRUCTURE_TYPE_IMAGE_VIEW_CREATE_INFO,
                                        .image = out->image,
                                        .viewType = VK_IMAGE_VIEW_TYPE_2D,
                                        .format = format,
                                        .subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1}};
    demo_name(e, VK_OBJECT_TYPE_IMAGE, (uint64_t)out->image, name);
    return demo_vk(e, vkCreateImageView(e->device, &view, NULL, &out->view), "making an image view");
}

void demo_image_destroy(demo_engine *e, demo_image *image)
{
    vkDestroyImageView(e->device, image->view, NULL);
    vkDestroyImage(e->device, image->image, NULL);
    vkFreeMemory(e->device, image->memory, NULL);
    memset(image, 0, sizeof *image);
}

static bool create_buffer(demo_engine *e, uint64_t bytes, VkBufferUsageFlags usage, VkMemoryPropertyFlags wanted,
                          VkMemoryPropertyFlags preferred, const char *name, demo_buffer *out)
{
    const VkBufferCreateInfo create = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = bytes, .usage = usage};
    out->bytes = bytes;
    if (!demo_vk(e, vkCreateBuffer(e->device, &create, NULL, &out->buffer), "making a buffer"))
        return false;
    VkMemoryRequirements needs;
    vkGetBufferMemoryRequirements(e->device, out->buffer, &needs);
    demo_name(e, VK_OBJECT_TYPE_BUFFER, (uint64_t)out->buffer, name);
    return allocate_memory(e, &needs, wanted, preferred, &out->memory) &&
           demo_vk(e, vkBindBufferMemory(e->device, out->buffer, out->memory, 0), "binding a buffer");
}

bool demo_buffer_create(demo_engine *e, uint64_t bytes, VkBufferUsageFlags usage, bool readback, const char *name,
                        demo_buffer *out)
{
    const VkMemoryPropertyFlags wanted = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    return create_buffer(e, bytes, usage, wanted, readback ? VK_MEMORY_PROPERTY_HOST_CACHED_BIT : 0, name, out) &&
           demo_vk(e, vkMapMemory(e->device, out->memory, 0, VK_WHOLE_SIZE, 0, &out->host), "mapping a buffer");
}

bool demo_buffer_create_near(demo_engine *e, uint64_t bytes, VkBufferUsageFlags usage, const char *name, demo_buffer *out)
{
    return create_buffer(e, bytes, usage, 0, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, name, out);
}

void demo_buffer_destroy(demo_engine *e, demo_buffer *buffer)
{
    vkDestroyBuffer(e->device, buffer->buffer, NULL);
    vkFreeMemory(e->device, buffer->memory, NULL);
    memset(buffer, 0, sizeof *buffer);
}

bool demo_shader_create(demo_engine *e, const uint32_t *words, size_t bytes, VkShaderModule *out)
{
    const VkShaderModuleCreateInfo create = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                             .codeSize = bytes,
                                             .pCode = words};
    return demo_vk(e, vkCreateShaderModule(e->device, &create, NULL, out), "making a shader module");
}

bool demo_compute_create(demo_engine *e, const uint32_t *words, size_t bytes, const VkDescriptorType *types,
                         uint32_t count,
                         uint32_t push_bytes, const uint32_t *constants, uint32_t constant_count, const char *name,
                         demo_compute *out)
{
    VkSpecializationMapEntry entries[DEMO_MAX_CONSTANTS];
    VkDescriptorSetLayoutBinding bindings[DEMO_MAX_BINDINGS];
    VkShaderModule module = VK_NULL_HANDLE;
    out->bindings = count;
    out->push_bytes = push_bytes;
    for (uint32_t i = 0; i < constant_count; i++)
        entries[i] = (VkSpecializationMapEntry){i, i * (uint32_t)sizeof(uint32_t), sizeof(uint32_t)};
    for (uint32_t i = 0; i < count; i++) {
        out->types[i] = types[i];
        bindings[i] = (VkDescriptorSetLayoutBinding){.binding = i,
                                                     .descriptorType = types[i],
                                                     .descriptorCount = 1,
                                                     .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT};
    }
    const VkDescriptorSetLayoutCreateInfo set = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                                 .flags = VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR,
                                                 .bindingCount = count,
                                                 .pBindings = bindings};
    if (!demo_vk(e, vkCreateDescriptorSetLayout(e->device, &set, NULL, &out->set), "making a descriptor set layout"))
        return false;
    const VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = push_bytes};
    const VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                               .setLayoutCount = 1,
                                               .pSetLayouts = &out->set,
                                               .pushConstantRangeCount = push_bytes ? 1 : 0,
                                               .pPushConstantRanges = &range};
    if (!demo_vk(e, vkCreatePipelineLayout(e->device, &layout, NULL, &out->layout), "making a pipeline layout") ||
        !demo_shader_create(e, words, bytes, &module))
        return false;
    const VkSpecializationInfo special = {constant_count, entries, constant_count * sizeof(uint32_t), constants};
    const VkPipelineShaderStageCreateInfo stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                                   .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                                                   .module = module,
                                                   .pName = "main",
                                                   .pSpecializationInfo = &special};
    const VkComputePipelineCreateInfo pipeline = {.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
                                                  .stage = stage,
                                                  .layout = out->layout};
    VkResult result = vkCreateComputePipelines(e->device, VK_NULL_HANDLE, 1, &pipeline, NULL, &out->pipeline);
    vkDestroyShaderModule(e->device, module, NULL);
    demo_name(e, VK_OBJECT_TYPE_PIPELINE, (uint64_t)out->pipeline, name);
    return demo_vk(e, result, name);
}

void demo_compute_destroy(demo_engine *e, demo_compute *compute)
{
    vkDestroyPipeline(e->device, compute->pipeline, NULL);
    vkDestroyPipelineLayout(e->device, compute->layout, NULL);
    vkDestroyDescriptorSetLayout(e->device, compute->set, NULL);
    memset(compute, 0, sizeof *compute);
}

void demo_compute_record(demo_engine *e, VkCommandBuffer commands, const demo_compute *compute,
                         const demo_binding *bindings,
                         const void *push, uint32_t width, uint32_t height)
{
    VkDescriptorImageInfo images[DEMO_MAX_BINDINGS];
    VkDescriptorBufferInfo buffers[DEMO_MAX_BINDINGS];
    VkWriteDescriptorSet writes[DEMO_MAX_BINDINGS];
    for (uint32_t i = 0; i < compute->bindings; i++) {
        writes[i] = (VkWriteDescriptorSet){.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                           .dstBinding = i,
                                           .descriptorCount = 1,
                                           .descriptorType = compute->types[i]};
        if (bindings[i].buffer) {
            buffers[i] = (VkDescriptorBufferInfo){bindings[i].buffer->buffer, bindings[i].offset,
                                                  bindings[i].bytes ? bindings[i].bytes : VK_WHOLE_SIZE};
            writes[i].pBufferInfo = &buffers[i];
        } else {
            images[i] = (VkDescriptorImageInfo){bindings[i].sampler, bindings[i].image->view, VK_IMAGE_LAYOUT_GENERAL};
            writes[i].pImageInfo = &images[i];
        }
    }
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, compute->pipeline);
    e->push_descriptors(commands, VK_PIPELINE_BIND_POINT_COMPUTE, compute->layout, 0, compute->bindings, writes);
    if (compute->push_bytes)
        vkCmdPushConstants(commands, compute->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, compute->push_bytes, push);
    vkCmdDispatch(commands, (width + 7) / 8, (height + 7) / 8, 1);
}

void demo_queue_lock(demo_engine *e)
{
    pthread_mutex_lock(&e->queue_lock);
}

void demo_queue_unlock(demo_engine *e)
{
    pthread_mutex_unlock(&e->queue_lock);
}

bool demo_once_begin(demo_engine *e)
{
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    return demo_vk(e, vkBeginCommandBuffer(e->once, &begin), "beginning a command buffer");
}

bool demo_once_end(demo_engine *e)
{
    const VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                 .commandBufferCount = 1,
                                 .pCommandBuffers = &e->once};
    if (!demo_vk(e, vkEndCommandBuffer(e->once), "ending a command buffer") ||
        !demo_vk(e, vkResetFences(e->device, 1, &e->once_fence), "resetting a fence"))
        return false;
    demo_queue_lock(e);
    const VkResult result = vkQueueSubmit(e->queue, 1, &submit, e->once_fence);
    demo_queue_unlock(e);
    return demo_vk(e, result, "submitting") &&
           demo_wait(e, e->once_fence, "waiting for the GPU");
}

void demo_memory_barrier(VkCommandBuffer commands, VkPipelineStageFlags from, VkAccessFlags wrote,
                         VkPipelineStageFlags to,
                         VkAccessFlags use)
{
    const VkMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = wrote,
                                     .dstAccessMask = use};
    vkCmdPipelineBarrier(commands, from, to, 0, 1, &barrier, 0, NULL, 0, NULL);
}

bool demo_image_to_general(demo_engine *e, const demo_image *const *images, uint32_t count)
{
    if (!demo_once_begin(e))
        return false;
    const VkClearColorValue black = {.float32 = {0, 0, 0, 0}};
    const VkImageSubresourceRange all = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1};
    for (uint32_t i = 0; i < count; i++) {
        const VkImageMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER,
                                              .dstAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                                              .oldLayout = VK_IMAGE_LAYOUT_UNDEFINED,
                                              .newLayout = VK_IMAGE_LAYOUT_GENERAL,
                                              .srcQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
                                              .dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
                                              .image = images[i]->image,
                                              .subresourceRange = all};
        vkCmdPipelineBarrier(e->once, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, VK_PIPELINE_STAGE_TRANSFER_BIT, 0, 0, NULL, 0,
                             NULL,
                             1, &barrier);
        vkCmdClearColorImage(e->once, images[i]->image, VK_IMAGE_LAYOUT_GENERAL, &black, 1, &all);
    }
    demo_memory_barrier(e->once, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                        VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT);
    return demo_once_end(e);
}

static bool read_image(demo_engine *e, const demo_image *image, uint64_t pixel_bytes, demo_buffer *out)
{
    const VkBufferImageCopy copy = {.imageSubresource = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1},
                                    .imageExtent = {image->width, image->height, 1}};
    if (!demo_buffer_create(e, pixel_bytes * image->width * image->height, VK_BUFFER_USAGE_TRANSFER_DST_BIT, true,
                            "read back", out) ||
        !demo_once_begin(e))
        return false;
    demo_memory_barrier(e->once, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_ACCESS_MEMORY_WRITE_BIT,
                        VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT);
    vkCmdCopyImageToBuffer(e->once, image->image, VK_IMAGE_LAYOUT_GENERAL, out->buffer, 1, &copy);
    demo_memory_barrier(e->once, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                        VK_PIPELINE_STAGE_HOST_BIT,
                        VK_ACCESS_HOST_READ_BIT);
    return demo_once_end(e);
}

bool demo_image_read(demo_engine *e, const demo_image *image, float *rgba)
{
    const bool half = image->format == VK_FORMAT_R16G16B16A16_SFLOAT;
    const size_t values = (size_t)4 * image->width * image->height;
    demo_buffer staging = {0};
    bool ok = read_image(e, image, half ? 8 : 16, &staging);
    if (ok && half)
        for (size_t i = 0; i < values; i++)
            rgba[i] = demo_half_to_float(((const uint16_t *)staging.host)[i]);
    else if (ok)
        memcpy(rgba, staging.host, values * sizeof *rgba);
    demo_buffer_destroy(e, &staging);
    return ok;
}

bool demo_image_write(demo_engine *e, const demo_image *image, const float *rgba)
{
    const VkBufferImageCopy copy = {.imageSubresource = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1},
                                    .imageExtent = {image->width, image->height, 1}};
    const uint64_t bytes = (uint64_t)16 * image->width * image->height;
    demo_buffer staging = {0};
    bool ok = demo_buffer_create(e, bytes, VK_BUFFER_USAGE_TRANSFER_SRC_BIT, false, "written from the host", &staging);
    if (ok)
        memcpy(staging.host, rgba, bytes);
    ok = ok && demo_once_begin(e);
    if (ok) {
        vkCmdCopyBufferToImage(e->once, staging.buffer, image->image, VK_IMAGE_LAYOUT_GENERAL, 1, &copy);
        demo_memory_barrier(e->once, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                            VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_ACCESS_MEMORY_READ_BIT);
        ok = demo_once_end(e);
    }
    demo_buffer_destroy(e, &staging);
    return ok;
}

bool demo_image_read_bytes(demo_engine *e, const demo_image *image, uint8_t *rgba)
{
    demo_buffer staging = {0};
    bool ok = read_image(e, image, 4, &staging);
    if (ok)
        memcpy(rgba, staging.host, (size_t)4 * image->width * image->height);
    demo_buffer_destroy(e, &staging);
    return ok;
}

void demo_label(demo_engine *e, VkCommandBuffer commands, const char *name)
{
    const VkDebugUtilsLabelEXT label = {.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_LABEL_EXT, .pLabelName = name};
    if (name && e->label_begin)
        e->label_begin(commands, &label);
    else if (!name && e->label_end)
        e->label_end(commands);
}

bool demo_clock_pair(demo_engine *e, uint64_t *ticks, uint64_t *host_ns)
{
    const VkCalibratedTimestampInfoEXT infos[2] = {
        {.sType = VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT, .timeDomain = VK_TIME_DOMAIN_DEVICE_EXT},
        {.sType = VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT, .timeDomain = VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT}};
    uint64_t best = UINT64_MAX;
    if (!e->calibrated || !e->get_calibrated)
        return false;
    /* The host may be interrupted between the two readings: the tightest of a few tries is kept. */
    for (int i = 0; i < 3; i++) {
        uint64_t pair[2], deviation = 0;
        const uint64_t before = td_now_ns();
        if (e->get_calibrated(e->device, 2, infos, pair, &deviation) != VK_SUCCESS)
            return false;
        const uint64_t width = td_now_ns() - before;
        if (width < best) {
            best = width;
            *ticks = pair[0];
            *host_ns = pair[1];
        }
    }
    return true;
}

float demo_half_to_float(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half >> 15) << 31, exponent = half >> 10 & 31u, mantissa = half & 1023u;
    float value;
    uint32_t bits;
    if (exponent == 0) {
        value = (float)mantissa * 0x1p-24f;
        return sign ? -value : value;
    }
    bits = sign | (exponent == 31 ? 255u << 23 : (exponent + 112) << 23) | mantissa << 13;
    memcpy(&value, &bits, sizeof value);
    return value;
}
