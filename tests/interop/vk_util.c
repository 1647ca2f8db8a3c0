/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/interop/vk_util.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/client.h"
#include "tests/cases.h"

/* Where processors are busy a thread of Debian's layer (1.3.239) may not hear of a wait's end within ten seconds, which it
 * reports as "most likely a validation bug". */
static bool is_stall(const char *text)
{
    return strstr(text, "UNASSIGNED-VkSemaphore-state-timeout") != NULL;
}

/* Nor does it see what an exported timeline has come to: it takes each later signal by the host for one that overtakes those
 * before. */
static bool is_false_alarm(const vku *v, const char *text)
{
    return v->exports_timelines && strstr(text, "VUID-VkSemaphoreSignalInfo-value-03259");
}

static VKAPI_ATTR VkBool32 VKAPI_CALL on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                                 VkDebugUtilsMessageTypeFlagsEXT types,
                                                 const VkDebugUtilsMessengerCallbackDataEXT *data, void *user)
{
    vku *v = user;
    const bool alarm = is_false_alarm(v, data->pMessage);

    (void)types;
    if (is_stall(data->pMessage))
        return VK_FALSE;
    pthread_mutex_lock(&v->lock);
    v->false_alarms += alarm;
    if (!alarm && severity & VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT) {
        v->errors++;
        snprintf(v->last_text, sizeof v->last_text, "%s", data->pMessage);
    }
    if (!alarm && !v->quiet)
        fprintf(stderr, "validation: %s\n", data->pMessage);
    pthread_mutex_unlock(&v->lock);
    return VK_FALSE;
}

static bool layer_installed(vku *v, const char *name)
{
    PFN_vkEnumerateInstanceLayerProperties enumerate =
        (PFN_vkEnumerateInstanceLayerProperties)v->gipa(NULL, "vkEnumerateInstanceLayerProperties");
    VkLayerProperties layers[64];
    uint32_t count = 64;

    if (!enumerate || enumerate(&count, layers) < 0)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(layers[i].layerName, name) == 0)
            return true;
    return false;
}

static vku_found create_instance(vku *v, const vku_options *options)
{
    char why[200];
    v->validated = options && options->validation && layer_installed(v, "VK_LAYER_KHRONOS_validation");
    const setup_instance_desc desc = {.get = v->gipa,
                                      .application = "tandem tests",
                                      .api_version = v->api_version,
                                      .on_message = v->validated ? on_message : NULL,
                                      .user = v};
    const VkResult result = setup_instance(&desc, &v->instance, &v->messenger, why, sizeof why);

    if (result != VK_SUCCESS) {
        fprintf(stderr, "vk_util: %s\n", why);
        return result == VK_ERROR_INCOMPATIBLE_DRIVER ? VKU_NO_VULKAN : VKU_FAILED;
    }
#define X(name) v->name = (PFN_vk##name)v->gipa(v->instance, "vk" #name);
    VKU_INSTANCE_FUNCTIONS(X)
#undef X
    return VKU_OK;
}

static vku_found pick_device(vku *v)
{
    const setup_need need = {.api_version = v->api_version};
    VkPhysicalDeviceProperties properties;
    char why[200];

    if (!setup_pick(v->gipa, v->instance, &need, &v->physical_device, &v->queue_family, why, sizeof why)) {
        fprintf(stderr, "vk_util: %s\n", why);
        return VKU_NO_VULKAN;
    }
    v->GetPhysicalDeviceProperties(v->physical_device, &properties);
    snprintf(v->name, sizeof v->name, "%s", properties.deviceName);
    v->GetPhysicalDeviceMemoryProperties(v->physical_device, &v->memory);
    return VKU_OK;
}

static void disable_extension(vku *v, const char *name)
{
    integration_enabled *it = &v->enabled;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < it->extension_count; i++)
        if (strcmp(it->extensions[i], name) != 0)
            it->extensions[kept++] = it->extensions[i];
    it->extension_count = kept;
}

static void disable_feature(vku *v, const tandem_requirement *feature)
{
    const VkBool32 off = VK_FALSE;
    VkBaseOutStructure *s = v->enabled.features.pNext;

    while (s && s->sType != feature->feature_struct)
        s = s->pNext;
    if (s)
        memcpy((char *)s + feature->feature_offset, &off, sizeof off);
}

/* Leaves disabled what the test says, and the extensions that are part of the API's version. */
static bool leave_out(vku *v, const vku_options *options)
{
    tandem_requirement list[32] = {TANDEM_INIT(tandem_requirement)};
    uint32_t count = 32;

    if (tandem_vulkan_requirements(v->gipa, v->instance, v->physical_device, &count, list) != TANDEM_OK)
        return false;
    if (v->api_version >= VK_API_VERSION_1_2) {
        disable_extension(v, VK_KHR_TIMELINE_SEMAPHORE_EXTENSION_NAME);
        disable_extension(v, VK_KHR_BUFFER_DEVICE_ADDRESS_EXTENSION_NAME);
    }
    for (size_t i = 0; options && i < sizeof options->without / sizeof *options->without && options->without[i]; i++) {
        disable_extension(v, options->without[i]);
        if (!strcmp(options->without[i], VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME))
            disable_extension(v, VK_EXT_EXTERNAL_MEMORY_DMA_BUF_EXTENSION_NAME); /* which builds on it */
        for (uint32_t k = 0; k < count; k++)
            if (list[k].kind == TANDEM_REQUIREMENT_FEATURE && !strcmp(list[k].name, options->without[i]))
                disable_feature(v, &list[k]);
    }
    return true;
}

/* What packing needs of the features that every engine fills; see the list of requirements in INTEGRATION.md. */
static void enable_storage_without_format(vku *v)
{
    VkPhysicalDeviceFeatures offered;

    v->GetPhysicalDeviceFeatures(v->physical_device, &offered);
    v->enabled.features.features.shaderStorageImageReadWithoutFormat = offered.shaderStorageImageReadWithoutFormat;
    v->enabled.features.features.shaderStorageImageWriteWithoutFormat = offered.shaderStorageImageWriteWithoutFormat;
}

static vku_found create_device(vku *v, const vku_options *options)
{
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .queueFamilyIndex = v->queue_family};
    char why[200] = "";
    VkResult result;

    if (!integrate_enable(&v->enabled, v->gipa, v->instance, v->physical_device, why, sizeof why) || !leave_out(v, options)) {
        fprintf(stderr, "vk_util: what to enable: %s\n", why);
        return VKU_FAILED;
    }
    enable_storage_without_format(v);
    v->exports_timelines = integrate_is_enabled(&v->enabled, VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME);
    result = setup_device(v->gipa, v->instance, v->physical_device, v->queue_family, &v->enabled, &v->device, &v->queue);
    if (result != VK_SUCCESS) {
        fprintf(stderr, "vk_util: vkCreateDevice: %d\n", (int)result);
        return VKU_FAILED;
    }
#define X(name)                                                                                                        \
    v->name = (PFN_vk##name)v->GetDeviceProcAddr(v->device, "vk" #name);                                               \
    if (!v->name)                                                                                                      \
        return VKU_FAILED;
    VKU_DEVICE_FUNCTIONS(X)
#undef X
    result = v->CreateCommandPool(v->device, &pool, NULL, &v->pool);
    return result == VK_SUCCESS ? VKU_OK : VKU_FAILED;
}

vku_found vku_open(vku *v, const vku_options *options)
{
    vku_found found = VKU_NO_VULKAN;
    char why[200];

    memset(v, 0, sizeof *v);
    pthread_mutex_init(&v->lock, NULL);
    v->api_version = options && options->api_version ? options->api_version : VK_API_VERSION_1_2;
    if (setup_loader(&v->library, &v->gipa, why, sizeof why)) {
        if (options && options->wrap)
            v->gipa = options->wrap(v->gipa);
        found = create_instance(v, options);
    }
    if (found == VKU_OK)
        found = pick_device(v);
    if (found == VKU_OK)
        found = create_device(v, options);
    if (found != VKU_OK)
        vku_close(v);
    return found;
}

bool vku_try(vku *v, const vku_options *options)
{
    const vku_found found = vku_open(v, options);

    if (found == VKU_NO_VULKAN && expects_gpu())
        fail_msg("no Vulkan, but a GPU is expected");
    if (found == VKU_FAILED)
        fail_msg("Vulkan is there and does not work");
    return found == VKU_OK;
}

void vku_close(vku *v)
{
    if (v->device) {
        v->DeviceWaitIdle(v->device);
        if (v->pool)
            v->DestroyCommandPool(v->device, v->pool, NULL);
        v->DestroyDevice(v->device, NULL);
    }
    setup_instance_destroy(v->gipa, v->instance, v->messenger);
    td_library_close(&v->library);
    v->pool = VK_NULL_HANDLE;
    v->device = VK_NULL_HANDLE;
    v->messenger = VK_NULL_HANDLE;
    v->instance = VK_NULL_HANDLE;
}

tandem_vulkan vku_engine(const vku *v)
{
    return TANDEM_INIT(tandem_vulkan,
                       .api_version = v->api_version,
                       .get_instance_proc_addr = v->gipa,
                       .instance = v->instance,
                       .physical_device = v->physical_device,
                       .device = v->device,
                       .queue_family = v->queue_family,
                       .enabled_extension_count = v->enabled.extension_count,
                       .enabled_extensions = v->enabled.extensions,
                       .enabled_features = &v->enabled.features,
                       .queue = v->queue);
}

td_vk_desc vku_desc(const vku *v)
{
    const tandem_vulkan engine = vku_engine(v);

    return td_device_vulkan(&engine);
}

VkCommandBuffer vku_begin(vku *v)
{
    VkCommandBufferAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = v->pool, .commandBufferCount = 1};
    VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    VkCommandBuffer commands = VK_NULL_HANDLE;

    if (v->AllocateCommandBuffers(v->device, &info, &commands) != VK_SUCCESS)
        return VK_NULL_HANDLE;
    if (v->BeginCommandBuffer(commands, &begin) != VK_SUCCESS) {
        v->FreeCommandBuffers(v->device, v->pool, 1, &commands);
        return VK_NULL_HANDLE;
    }
    return commands;
}

VkResult vku_submit(vku *v, VkCommandBuffer commands, vku_point wait, vku_point signal, VkFence fence)
{
    VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    VkTimelineSemaphoreSubmitInfo values = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                            .waitSemaphoreValueCount = wait.semaphore ? 1 : 0,
                                            .pWaitSemaphoreValues = &wait.value,
                                            .signalSemaphoreValueCount = signal.semaphore ? 1 : 0,
                                            .pSignalSemaphoreValues = &signal.value};
    VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                         .pNext = &values,
                         .waitSemaphoreCount = wait.semaphore ? 1 : 0,
                         .pWaitSemaphores = &wait.semaphore,
                         .pWaitDstStageMask = &stage,
                         .commandBufferCount = commands ? 1 : 0,
                         .pCommandBuffers = &commands,
                         .signalSemaphoreCount = signal.semaphore ? 1 : 0,
                         .pSignalSemaphores = &signal.semaphore};
    VkResult result = commands ? v->EndCommandBuffer(commands) : VK_SUCCESS;

    return result == VK_SUCCESS ? v->QueueSubmit(v->queue, 1, &info, fence) : result;
}

VkResult vku_run(vku *v, VkCommandBuffer commands)
{
    VkFenceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    VkFence fence = VK_NULL_HANDLE;
    VkResult result = v->CreateFence(v->device, &info, NULL, &fence);

    if (result == VK_SUCCESS)
        result = vku_submit(v, commands, (vku_point){0}, (vku_point){0}, fence);
    if (result == VK_SUCCESS)
        result = v->WaitForFences(v->device, 1, &fence, VK_TRUE, VKU_TIMEOUT_NS);
    /* What has not finished must not be freed. */
    if (result != VK_TIMEOUT) {
        v->DestroyFence(v->device, fence, NULL);
        v->FreeCommandBuffers(v->device, v->pool, 1, &commands);
    }
    return result;
}

void vku_full_barrier(vku *v, VkCommandBuffer commands)
{
    VkPipelineStageFlags stages = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT;
    VkMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                               .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_HOST_WRITE_BIT,
                               .dstAccessMask =
                                   VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_HOST_READ_BIT};

    v->CmdPipelineBarrier(commands, stages, stages, 0, 1, &barrier, 0, NULL, 0, NULL);
}

static VkResult allocate(vku *v, VkMemoryRequirements needs, VkMemoryPropertyFlags want, VkDeviceMemory *memory)
{
    VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = needs.size};

    for (uint32_t i = 0; i < v->memory.memoryTypeCount; i++)
        if ((needs.memoryTypeBits >> i & 1) && (v->memory.memoryTypes[i].propertyFlags & want) == want) {
            info.memoryTypeIndex = i;
            return v->AllocateMemory(v->device, &info, NULL, memory);
        }
    return VK_ERROR_FEATURE_NOT_PRESENT;
}

VkResult vku_buffer_create(vku *v, VkDeviceSize bytes, VkBufferUsageFlags usage, vku_buffer *out)
{
    VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = bytes, .usage = usage};
    VkMemoryRequirements needs;
    VkResult result;

    *out = (vku_buffer){.bytes = bytes};
    result = v->CreateBuffer(v->device, &info, NULL, &out->buffer);
    if (result != VK_SUCCESS)
        return result;
    v->GetBufferMemoryRequirements(v->device, out->buffer, &needs);
    result =
        allocate(v, needs, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT, &out->memory);
    if (result == VK_SUCCESS)
        result = v->BindBufferMemory(v->device, out->buffer, out->memory, 0);
    if (result == VK_SUCCESS)
        result = v->MapMemory(v->device, out->memory, 0, VK_WHOLE_SIZE, 0, &out->host);
    if (result != VK_SUCCESS)
        vku_buffer_destroy(v, out);
    return result;
}

void vku_buffer_destroy(vku *v, vku_buffer *buffer)
{
    if (buffer->buffer)
        v->DestroyBuffer(v->device, buffer->buffer, NULL);
    if (buffer->memory)
        v->FreeMemory(v->device, buffer->memory, NULL);
    *buffer = (vku_buffer){0};
}

static VkImageAspectFlags aspects_of(VkFormat format)
{
    switch (format) {
    case VK_FORMAT_D32_SFLOAT:
    case VK_FORMAT_X8_D24_UNORM_PACK32:
        return VK_IMAGE_ASPECT_DEPTH_BIT;
    case VK_FORMAT_D32_SFLOAT_S8_UINT:
    case VK_FORMAT_D24_UNORM_S8_UINT:
        return VK_IMAGE_ASPECT_DEPTH_BIT | VK_IMAGE_ASPECT_STENCIL_BIT;
    default:
        return VK_IMAGE_ASPECT_COLOR_BIT;
    }
}

/* What a view is of, and copies are. */
static VkImageAspectFlags aspect_of(VkFormat format)
{
    return aspects_of(format) & ~(VkImageAspectFlags)VK_IMAGE_ASPECT_STENCIL_BIT;
}

static uint32_t texel_bytes_of(VkFormat format)
{
    switch (format) {
    case VK_FORMAT_R32G32B32A32_SFLOAT:
        return 16;
    case VK_FORMAT_R16G16B16A16_SFLOAT:
        return 8;
    case VK_FORMAT_R16_SFLOAT:
        return 2;
    default:
        return 4;
    }
}

VkResult vku_image_create(vku *v, VkFormat format, uint32_t width, uint32_t height, VkImageUsageFlags usage,
                          vku_image *out)
{
    return vku_image_create_layer(v, format, width, height, 1, 0, usage, out);
}

VkResult vku_image_create_layer(vku *v, VkFormat format, uint32_t width, uint32_t height, uint32_t layers, uint32_t layer,
                                VkImageUsageFlags usage, vku_image *out)
{
    VkImageCreateInfo info = {.sType = VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO,
                              .imageType = VK_IMAGE_TYPE_2D,
                              .format = format,
                              .extent = {width, height, 1},
                              .mipLevels = 1,
                              .arrayLayers = layers,
                              .samples = VK_SAMPLE_COUNT_1_BIT,
                              .tiling = VK_IMAGE_TILING_OPTIMAL,
                              .usage = usage | VK_IMAGE_USAGE_TRANSFER_SRC_BIT | VK_IMAGE_USAGE_TRANSFER_DST_BIT};
    VkImageViewCreateInfo view = {.sType = VK_STRUCTURE_TYPE_IMAGE_VIEW_CREATE_INFO,
                                  .viewType = VK_IMAGE_VIEW_TYPE_2D,
                                  .format = format,
                                  .subresourceRange = {aspect_of(format), 0, 1, layer, 1}};
    VkMemoryRequirements needs;
    VkResult result;

    *out = (vku_image){.format = format, .width = width, .height = height, .texel_bytes = texel_bytes_of(format),
                       .layer = layer};
    result = v->CreateImage(v->device, &info, NULL, &out->image);
    if (result != VK_SUCCESS)
        return result;
    v->GetImageMemoryRequirements(v->device, out->image, &needs);
    result = allocate(v, needs, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, &out->memory);
    if (result == VK_SUCCESS)
        result = v->BindImageMemory(v->device, out->image, out->memory, 0);
    view.image = out->image;
    if (result == VK_SUCCESS)
        result = v->CreateImageView(v->device, &view, NULL, &out->view);
    if (result != VK_SUCCESS)
        vku_image_destroy(v, out);
    return result;
}

void vku_image_destroy(vku *v, vku_image *image)
{
    if (image->view)
        v->DestroyImageView(v->device, image->view, NULL);
    if (image->image)
        v->DestroyImage(v->device, image->image, NULL);
    if (image->memory)
        v->FreeMemory(v->device, image->memory, NULL);
    *image = (vku_image){0};
}

void vku_image_barrier(vku *v, VkCommandBuffer commands, vku_image *image, VkImageLayout layout)
{
    VkImageMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER,
                                    .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT,
                                    .dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT,
                                    .oldLayout = image->layout,
                                    .newLayout = layout,
                                    .srcQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
                                    .dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
                                    .image = image->image,
                                    .subresourceRange = {aspects_of(image->format), 0, 1, image->layer, 1}};

    v->CmdPipelineBarrier(commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, 0, 0, NULL,
                          0, NULL, 1, &barrier);
    image->layout = layout;
}

static VkBufferImageCopy whole_image(const vku_image *image)
{
    return (VkBufferImageCopy){.imageSubresource = {aspect_of(image->format), 0, image->layer, 1},
                               .imageExtent = {image->width, image->height, 1}};
}

VkResult vku_image_upload(vku *v, vku_image *image, const void *texels, VkImageLayout layout)
{
    VkDeviceSize bytes = (VkDeviceSize)image->width * image->height * image->texel_bytes;
    VkBufferImageCopy copy = whole_image(image);
    VkCommandBuffer commands;
    vku_buffer staging;
    VkResult result = vku_buffer_create(v, bytes, VK_BUFFER_USAGE_TRANSFER_SRC_BIT, &staging);

    if (result != VK_SUCCESS)
        return result;
    memcpy(staging.host, texels, bytes);
    commands = vku_begin(v);
    if (!commands) {
        vku_buffer_destroy(v, &staging);
        return VK_ERROR_OUT_OF_HOST_MEMORY;
    }
    vku_image_barrier(v, commands, image, VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL);
    v->CmdCopyBufferToImage(commands, staging.buffer, image->image, image->layout, 1, &copy);
    vku_image_barrier(v, commands, image, layout);
    result = vku_run(v, commands);
    if (result != VK_TIMEOUT)
        vku_buffer_destroy(v, &staging);
    return result;
}

VkResult vku_image_readback(vku *v, vku_image *image, void *texels)
{
    VkDeviceSize bytes = (VkDeviceSize)image->width * image->height * image->texel_bytes;
    VkBufferImageCopy copy = whole_image(image);
    VkImageLayout before = image->layout;
    VkCommandBuffer commands;
    vku_buffer staging;
    VkResult result = vku_buffer_create(v, bytes, VK_BUFFER_USAGE_TRANSFER_DST_BIT, &staging);

    if (result != VK_SUCCESS)
        return result;
    commands = vku_begin(v);
    if (!commands) {
        vku_buffer_destroy(v, &staging);
        return VK_ERROR_OUT_OF_HOST_MEMORY;
    }
    vku_image_barrier(v, commands, image, VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL);
    v->CmdCopyImageToBuffer(commands, image->image, image->layout, staging.buffer, 1, &copy);
    vku_image_barrier(v, commands, image, before);
    vku_full_barrier(v, commands);
    result = vku_run(v, commands);
    if (result == VK_SUCCESS)
        memcpy(texels, staging.host, bytes);
    if (result != VK_TIMEOUT)
        vku_buffer_destroy(v, &staging);
    return result;
}

int vku_open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    if (!dir)
        return -1;
    while (readdir(dir))
        count++;
    closedir(dir);
    return count - 3; /* ".", ".." and the directory itself */
}
