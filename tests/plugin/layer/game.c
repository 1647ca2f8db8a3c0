/* A program that presents, and knows nothing of layers: test_layer.py runs it with and without one.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * usage: layer_game [--frames N] [--size W H] [--windows N] [--srgb] [--mutable] [--vulkan MINOR]
 *                   [--features] [--resize] [--thread] [--forget] [--fault] [--hold] [--blind]
 *                   [--noise N] [--expect SIGMA AMOUNT] [--bright N] [--nan]
 *                   [--format bgra8|a2b10|a2r10|half|light]
 *
 * Its picture is two flat halves with an edge and noise, the same in each frame; in floating point
 * it may be brighter than white, and have a pixel that is no number. "light" is that, and linear.
 * In the end it acquires an image once more, which holds what was presented last there, and prints
 * what became of the picture, as JSON: the largest and the mean difference from what it drew, in
 * codes of 8 bits (beyond white in parts of what was drawn), how many numbers are none, the noise in
 * the left half, before and after, and the largest difference from what the filter is said to make
 * of it, computed here from its definition.
 */
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <SDL2/SDL.h>
#include <SDL2/SDL_vulkan.h>
#include <vulkan/vulkan.h>

#include "tests/plugin/layer/filter.h"

enum { WINDOWS = 2, IMAGES = 8 };

/* What swapchains are made of. */
typedef enum format_kind { BGRA8, A2B10, A2R10, HALF } format_kind;
static const struct {
    const char *name;
    format_kind kind;
    VkFormat format;
    VkColorSpaceKHR space;
    uint32_t bytes;
} formats[] = {
    {"bgra8", BGRA8, VK_FORMAT_B8G8R8A8_UNORM, VK_COLOR_SPACE_SRGB_NONLINEAR_KHR, 4},
    {"a2b10", A2B10, VK_FORMAT_A2B10G10R10_UNORM_PACK32, VK_COLOR_SPACE_SRGB_NONLINEAR_KHR, 4},
    {"a2r10", A2R10, VK_FORMAT_A2R10G10B10_UNORM_PACK32, VK_COLOR_SPACE_SRGB_NONLINEAR_KHR, 4},
    {"half", HALF, VK_FORMAT_R16G16B16A16_SFLOAT, VK_COLOR_SPACE_SRGB_NONLINEAR_KHR, 8},
    {"light", HALF, VK_FORMAT_R16G16B16A16_SFLOAT, VK_COLOR_SPACE_EXTENDED_SRGB_LINEAR_EXT, 8},
};

typedef struct window {
    SDL_Window *window;
    VkSurfaceKHR surface;
    VkSwapchainKHR swapchain;
    VkExtent2D extent;
    uint32_t image_count;
    VkImage images[IMAGES];
    VkSemaphore acquired;
    uint32_t index;
} window;

static struct game {
    int frames, width, height, windows, vulkan_minor, noise, bright, format;
    bool nan, srgb, mutable_format, features, resize, thread, forget, fault, hold, blind, expect;
    float sigma, amount;
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;
    VkCommandPool pool;
    VkCommandBuffer commands;
    VkSemaphore drawn;
    VkFence fence;
    VkBuffer buffer;
    VkDeviceMemory memory;
    uint8_t *mapped, *drawn_bytes;
    float *picture; /* of those: red, green, blue and alpha, 1 is white */
    float *codes;
    window w[WINDOWS];
} g = {.frames = 6,
       .width = 160,
       .height = 120,
       .windows = 1,
       .noise = 6,
       .bright = 1,
       .vulkan_minor = 1};

#define CHECK(what)                                                  \
    do {                                                             \
        const int result_ = (int)(what);                             \
        if (result_) {                                               \
            fprintf(stderr, "layer_game: %s: %d\n", #what, result_); \
            exit(3);                                                 \
        }                                                            \
    } while (0)

/* --- The picture, and what the filter is said to make of it --- */

static bool is_light(void)
{
    return formats[g.format].space == VK_COLOR_SPACE_EXTENDED_SRGB_LINEAR_EXT;
}

static size_t picture_bytes(void)
{
    return (size_t)formats[g.format].bytes * (size_t)(g.width * g.height);
}

static uint32_t rounded(float x, uint32_t most)
{
    return (uint32_t)((x < 0 ? 0 : x > 1 ? 1 : x) * (float)most + 0.5f);
}

static void write_pixel(uint8_t *to, const float c[4])
{
    const format_kind kind = formats[g.format].kind;
    const int first = kind == BGRA8 || kind == A2R10 ? 2 : 0; /* which is in the lowest bits */
    const int bits = kind == BGRA8 ? 8 : 10;
    uint32_t word = 0;

    if (kind == HALF) {
        const _Float16 halves[4] = {(_Float16)c[0], (_Float16)c[1], (_Float16)c[2], (_Float16)c[3]};
        memcpy(to, halves, sizeof halves);
        return;
    }
    for (int i = 0; i < 3; i++)
        word |= rounded(c[abs(first - i)], (1u << bits) - 1) << i * bits;
    word |= kind == BGRA8 ? rounded(c[3], 255) << 24 : rounded(c[3], 3) << 30;
    memcpy(to, &word, sizeof word);
}

static void read_pixel(const uint8_t *from, float c[4])
{
    const format_kind kind = formats[g.format].kind;
    const int first = kind == BGRA8 || kind == A2R10 ? 2 : 0;
    const uint32_t most = kind == BGRA8 ? 255 : 1023;
    _Float16 halves[4];
    uint32_t word;

    memcpy(&word, from, sizeof word);
    for (int i = 0; i < 3; i++)
        c[abs(first - i)] = (float)(word >> i * (kind == BGRA8 ? 8 : 10) & most) / (float)most;
    c[3] = kind == BGRA8 ? (float)(word >> 24) / 255 : (float)(word >> 30) / 3;
    if (kind != HALF)
        return;
    memcpy(halves, from, sizeof halves);
    for (int i = 0; i < 4; i++)
        c[i] = (float)halves[i];
}

static float *pixel_at(float *picture, int x, int y)
{
    return picture + 4 * (y * g.width + x);
}

static void read_picture(const uint8_t *bytes, float *to)
{
    for (int i = 0; i < g.width * g.height; i++)
        read_pixel(bytes + (size_t)i * formats[g.format].bytes, to + 4 * i);
}

static void draw_picture(void)
{
    static const int colors[2][3] = {{110, 100, 90}, {150, 170, 190}}; /* red, green, blue */
    const int grain = is_light() ? g.bright : 1; /* as visible in bright light as in less */
    uint32_t random = 12345;

    for (int y = 0; y < g.height; y++)
        for (int x = 0; x < g.width; x++) {
            float c[4] = {0, 0, 0, 1};
            for (int i = 2; i >= 0; i--) {
                random = random * 1664525 + 1013904223;
                const int noise = g.noise ? (int)(random >> 16) % (2 * g.noise + 1) - g.noise : 0;
                c[i] = (float)(g.bright * colors[x >= g.width / 2][i] + grain * noise) / 255;
            }
            random = random * 1664525 + 1013904223;
            if (g.nan && x == g.width / 4 && y == g.height / 4)
                c[1] = NAN;
            write_pixel(g.drawn_bytes + (size_t)(y * g.width + x) * formats[g.format].bytes, c);
        }
    read_picture(g.drawn_bytes, g.picture);
}

static filter_picture drawn_picture(void)
{
    return (filter_picture){g.width, g.height, g.picture, g.codes};
}

/* As it is compared: light by what sRGB makes of it, and what is beyond 8 as 8. */
static void make_codes(void)
{
    const filter_picture drawn = drawn_picture();

    for (int y = 0; y < g.height; y++)
        for (int x = 0; x < g.width; x++)
            for (int i = 0; i < 3; i++) {
                const float c = filter_color(&drawn, x, y, i);
                float *code = pixel_at(g.codes, x, y) + i;
                *code = c;
                if (is_light())
                    *code = c <= 0.0031308f ? 12.92f * c : 1.055f * powf(c, 1 / 2.4f) - 0.055f;
                *code = fminf(*code, 8);
            }
}

static float expected_at(const filter_picture *drawn, int x, int y, int channel)
{
    const float after = filter_expected(drawn, g.sigma, g.amount, x, y, channel);

    return formats[g.format].kind == HALF ? after : after < 0 ? 0 : after > 1 ? 1 : after;
}

static double noise_of(float *picture)
{
    double sum = 0, squares = 0;
    int count = 0;

    for (int y = g.height / 2; y < g.height - 8; y++)
        for (int x = 8; x < g.width / 2 - 8; x++, count++) {
            const double code = 255 * (double)pixel_at(picture, x, y)[1];
            sum += code;
            squares += code * code;
        }
    return sqrt(fmax(0, squares / count - sum / count * sum / count));
}

static double apart(float a, float b)
{
    const double size = fabs((double)b);

    return 255 * fabs((double)a - (double)b) / (size > 1 ? size : 1);
}

static void print_report(double ms)
{
    const filter_picture drawn = drawn_picture();
    double largest = 0, mean = 0, off = 0;
    int strange = 0;
    float *after = malloc(4 * sizeof *after * (size_t)(g.width * g.height));

    CHECK(!after);
    read_picture(g.mapped, after);
    for (int y = 0; y < g.height; y++)
        for (int x = 0; x < g.width; x++)
            for (int c = 0; c < 3; c++) {
                const float made = pixel_at(after, x, y)[c];
                if (!isfinite(made)) {
                    strange++;
                    continue;
                }
                const double d = apart(made, filter_color(&drawn, x, y, c));
                mean += d / (3.0 * g.width * g.height);
                largest = d > largest ? d : largest;
                const double error = g.expect ? apart(made, expected_at(&drawn, x, y, c)) : 0;
                off = error > off ? error : off;
            }
    const float *middle = pixel_at(after, g.width / 4, g.height / 2);
    printf("{\"largest\": %.1f, \"mean\": %.3f, \"noise_before\": %.3f, \"noise\": %.3f, \"off\": "
           "%.3f, \"strange\": %d, \"frame_ms\": %.3f, "
           "\"middle\": [%.3f, %.3f, %.3f], \"alpha\": %.0f}\n",
           largest, mean, noise_of(g.picture), noise_of(after), off, strange, ms,
           255 * (double)middle[0], 255 * (double)middle[1], 255 * (double)middle[2],
           255 * (double)middle[3]);
    fflush(stdout);
    free(after);
}

/* --- Vulkan --- */

static void make_instance(void)
{
    const VkApplicationInfo application = {
        .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
        .apiVersion = VK_MAKE_API_VERSION(0, 1, (uint32_t)g.vulkan_minor, 0)};
    VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                 .pApplicationInfo = &application};
    const char *names[16];
    unsigned count = 16;
    uint32_t devices = 1;

    CHECK(!SDL_Vulkan_GetInstanceExtensions(g.w[0].window, &count, names));
    info.enabledExtensionCount = count;
    info.ppEnabledExtensionNames = names;
    CHECK(vkCreateInstance(&info, NULL, &g.instance));
    const VkResult result = vkEnumeratePhysicalDevices(g.instance, &devices, &g.physical);
    CHECK(result < 0 || !devices);
}

static void make_device(void)
{
    static const char *const names[] = {"VK_KHR_swapchain", "VK_KHR_swapchain_mutable_format"};
    static const float priority = 1;
    /* In memory that nobody can write to, as a program may have it; and a chain, as one of
     * Vulkan 1.2 may. */
    static const VkPhysicalDeviceVulkan12Features of_12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES, .hostQueryReset = VK_TRUE};
    static const VkPhysicalDeviceFeatures2 all = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = (void *)&of_12};
    const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                           .queueCount = 1,
                                           .pQueuePriorities = &priority};
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = g.features ? &all : NULL,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue,
                                     .enabledExtensionCount = g.mutable_format ? 2 : 1,
                                     .ppEnabledExtensionNames = names};
    const VkSemaphoreCreateInfo semaphore = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO};
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT};
    VkCommandBufferAllocateInfo commands = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                            .commandBufferCount = 1};

    CHECK(vkCreateDevice(g.physical, &info, NULL, &g.device));
    vkGetDeviceQueue(g.device, 0, 0, &g.queue);
    CHECK(vkCreateCommandPool(g.device, &pool, NULL, &g.pool));
    commands.commandPool = g.pool;
    CHECK(vkAllocateCommandBuffers(g.device, &commands, &g.commands));
    CHECK(vkCreateSemaphore(g.device, &semaphore, NULL, &g.drawn));
    CHECK(vkCreateFence(g.device, &fence, NULL, &g.fence));
    for (int i = 0; i < g.windows; i++)
        CHECK(vkCreateSemaphore(g.device, &semaphore, NULL, &g.w[i].acquired));
}

static void make_buffer(void)
{
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                     .size = picture_bytes(),
                                     .usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                              VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    VkPhysicalDeviceMemoryProperties has;
    VkMemoryRequirements needs;
    VkMemoryAllocateInfo memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
    const VkMemoryPropertyFlags wanted =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;

    CHECK(vkCreateBuffer(g.device, &info, NULL, &g.buffer));
    vkGetBufferMemoryRequirements(g.device, g.buffer, &needs);
    vkGetPhysicalDeviceMemoryProperties(g.physical, &has);
    memory.allocationSize = needs.size;
    while (!(needs.memoryTypeBits & 1u << memory.memoryTypeIndex) ||
           (has.memoryTypes[memory.memoryTypeIndex].propertyFlags & wanted) != wanted)
        CHECK(++memory.memoryTypeIndex >= has.memoryTypeCount);
    CHECK(vkAllocateMemory(g.device, &memory, NULL, &g.memory));
    CHECK(vkBindBufferMemory(g.device, g.buffer, g.memory, 0));
    CHECK(vkMapMemory(g.device, g.memory, 0, VK_WHOLE_SIZE, 0, (void **)&g.mapped));
    memcpy(g.mapped, g.drawn_bytes, picture_bytes());
}

/* Presents in no format that the window has not. */
static bool has_format(const window *w, VkFormat format, VkColorSpaceKHR space)
{
    VkSurfaceFormatKHR list[32];
    uint32_t count = 32;

    CHECK(vkGetPhysicalDeviceSurfaceFormatsKHR(g.physical, w->surface, &count, list) < 0);
    for (uint32_t i = 0; i < count; i++)
        if (list[i].format == format && list[i].colorSpace == space)
            return true;
    return false;
}

static void make_swapchain(window *w)
{
    static const VkFormat views[] = {VK_FORMAT_B8G8R8A8_UNORM, VK_FORMAT_B8G8R8A8_SRGB};
    const VkFormat format = g.srgb ? views[1] : formats[g.format].format;
    static const VkImageFormatListCreateInfo list = {
        .sType = VK_STRUCTURE_TYPE_IMAGE_FORMAT_LIST_CREATE_INFO,
        .viewFormatCount = 2,
        .pViewFormats = views};
    const VkSwapchainKHR old = w->swapchain;
    VkSurfaceCapabilitiesKHR surface;
    VkBool32 supported = VK_FALSE;

    CHECK(vkGetPhysicalDeviceSurfaceCapabilitiesKHR(g.physical, w->surface, &surface));
    CHECK(vkGetPhysicalDeviceSurfaceSupportKHR(g.physical, 0, w->surface, &supported) ||
          !supported);
    w->extent = surface.currentExtent;
    const VkSwapchainCreateInfoKHR info = {
        .sType = VK_STRUCTURE_TYPE_SWAPCHAIN_CREATE_INFO_KHR,
        .pNext = g.mutable_format ? &list : NULL,
        .flags = g.mutable_format ? VK_SWAPCHAIN_CREATE_MUTABLE_FORMAT_BIT_KHR : 0,
        .surface = w->surface,
        .minImageCount = surface.minImageCount > 3 ? surface.minImageCount : 3,
        .imageFormat = format,
        .imageColorSpace = formats[g.format].space,
        .imageExtent = w->extent,
        .imageArrayLayers = 1,
        .imageUsage =
            VK_IMAGE_USAGE_TRANSFER_DST_BIT | (g.blind ? 0 : VK_IMAGE_USAGE_TRANSFER_SRC_BIT),
        .preTransform = surface.currentTransform,
        .compositeAlpha = VK_COMPOSITE_ALPHA_OPAQUE_BIT_KHR,
        .presentMode = VK_PRESENT_MODE_FIFO_KHR,
        .oldSwapchain = old};
    CHECK(!has_format(w, format, info.imageColorSpace));
    CHECK(vkCreateSwapchainKHR(g.device, &info, NULL, &w->swapchain));
    if (old)
        vkDestroySwapchainKHR(g.device, old, NULL);
    w->image_count = IMAGES;
    CHECK(vkGetSwapchainImagesKHR(g.device, w->swapchain, &w->image_count, w->images));
}

static void use(VkImage image, VkImageLayout before, VkAccessFlags before_access,
                VkImageLayout after, VkAccessFlags after_access)
{
    const VkImageMemoryBarrier barrier = {
        .sType = VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER,
        .srcAccessMask = before_access,
        .dstAccessMask = after_access,
        .oldLayout = before,
        .newLayout = after,
        .srcQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
        .dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
        .image = image,
        .subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1}};

    vkCmdPipelineBarrier(g.commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_TRANSFER_BIT,
                         0, 0, NULL, 0, NULL, 1, &barrier);
}

static void submit(uint32_t waits, bool signals)
{
    const VkPipelineStageFlags stages[WINDOWS] = {VK_PIPELINE_STAGE_TRANSFER_BIT,
                                                  VK_PIPELINE_STAGE_TRANSFER_BIT};
    VkSemaphore acquired[WINDOWS];
    const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                               .waitSemaphoreCount = waits,
                               .pWaitSemaphores = acquired,
                               .pWaitDstStageMask = stages,
                               .commandBufferCount = 1,
                               .pCommandBuffers = &g.commands,
                               .signalSemaphoreCount = signals,
                               .pSignalSemaphores = &g.drawn};

    for (uint32_t i = 0; i < waits; i++)
        acquired[i] = g.w[i].acquired;
    CHECK(vkEndCommandBuffer(g.commands));
    CHECK(vkQueueSubmit(g.queue, 1, &info, g.fence));
    CHECK(vkWaitForFences(g.device, 1, &g.fence, VK_TRUE, 10000000000u));
    CHECK(vkResetFences(g.device, 1, &g.fence));
}

static VkBufferImageCopy region_of(const window *w)
{
    const uint32_t width = (uint32_t)g.width, height = (uint32_t)g.height;

    return (VkBufferImageCopy){
        .bufferRowLength = width,
        .imageSubresource = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1},
        .imageExtent = {w->extent.width < width ? w->extent.width : width,
                        w->extent.height < height ? w->extent.height : height, 1}};
}

static void begin(void)
{
    const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                           .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};

    CHECK(vkBeginCommandBuffer(g.commands, &info));
}

static bool is_fine(VkResult result)
{
    return result == VK_SUCCESS || result == VK_SUBOPTIMAL_KHR;
}

static bool present_frame(void)
{
    VkSwapchainKHR swapchains[WINDOWS];
    uint32_t indices[WINDOWS];
    const VkPresentInfoKHR info = {.sType = VK_STRUCTURE_TYPE_PRESENT_INFO_KHR,
                                   .waitSemaphoreCount = 1,
                                   .pWaitSemaphores = &g.drawn,
                                   .swapchainCount = (uint32_t)g.windows,
                                   .pSwapchains = swapchains,
                                   .pImageIndices = indices};

    begin();
    for (int i = 0; i < g.windows; i++) {
        window *w = &g.w[i];
        const VkBufferImageCopy region = region_of(w);
        if (!is_fine(vkAcquireNextImageKHR(g.device, w->swapchain, 10000000000u, w->acquired,
                                           VK_NULL_HANDLE, &w->index)))
            return false;
        use(w->images[w->index], VK_IMAGE_LAYOUT_UNDEFINED, 0, VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL,
            VK_ACCESS_TRANSFER_WRITE_BIT);
        vkCmdCopyBufferToImage(g.commands, g.buffer, w->images[w->index],
                               g.fault ? VK_IMAGE_LAYOUT_PREINITIALIZED
                                       : VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL,
                               1, &region);
        use(w->images[w->index], VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL, VK_ACCESS_TRANSFER_WRITE_BIT,
            VK_IMAGE_LAYOUT_PRESENT_SRC_KHR, 0);
        swapchains[i] = w->swapchain;
        indices[i] = w->index;
    }
    submit((uint32_t)g.windows, true);
    return is_fine(vkQueuePresentKHR(g.queue, &info));
}

/* What was presented last in an image that is free again. */
static void read_back(window *w)
{
    const VkBufferImageCopy region = region_of(w);

    CHECK(!is_fine(vkAcquireNextImageKHR(g.device, w->swapchain, 10000000000u, w->acquired,
                                         VK_NULL_HANDLE, &w->index)));
    begin();
    use(w->images[w->index], VK_IMAGE_LAYOUT_PRESENT_SRC_KHR, 0,
        VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL, VK_ACCESS_TRANSFER_READ_BIT);
    vkCmdCopyImageToBuffer(g.commands, w->images[w->index], VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL,
                           g.buffer, 1, &region);
    use(w->images[w->index], VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL, VK_ACCESS_TRANSFER_READ_BIT,
        VK_IMAGE_LAYOUT_PRESENT_SRC_KHR, 0);
    submit(w == &g.w[0], false);
}

/* The window has another size by now: a new swapchain, while the old one is there. */
static void resize(int frame)
{
    for (int i = 0; i < g.windows; i++) {
        SDL_SetWindowSize(g.w[i].window, g.width + 16 * (frame % 3), g.height + 8 * (frame % 2));
        SDL_PumpEvents();
        CHECK(vkDeviceWaitIdle(g.device));
        make_swapchain(&g.w[i]);
    }
}

static void *play(void *unused)
{
    uint64_t begun = 0;
    double ms = 0;

    (void)unused;
    for (int frame = 0; frame < g.frames || g.hold; frame++) {
        SDL_Event event;
        while (!g.thread && SDL_PollEvent(&event)) {
        }
        if (frame == 2)
            begun = SDL_GetPerformanceCounter();
        if (!present_frame())
            resize(0);
        if (g.resize && frame + IMAGES < g.frames)
            resize(frame);
    }
    if (g.frames > 2)
        ms = 1e3 * (double)(SDL_GetPerformanceCounter() - begun) /
             (double)SDL_GetPerformanceFrequency() / (g.frames - 2);
    CHECK(vkDeviceWaitIdle(g.device));
    for (int i = 0; i < g.windows; i++) {
        if (!g.blind)
            read_back(&g.w[i]);
        print_report(ms);
    }
    return NULL;
}

static void read_arguments(int argc, char **argv)
{
    const struct {
        const char *name;
        bool *given;
        int *number, *second;
    } options[] = {{"--frames", NULL, &g.frames, NULL},
                   {"--size", NULL, &g.width, &g.height},
                   {"--windows", NULL, &g.windows, NULL},
                   {"--vulkan", NULL, &g.vulkan_minor, NULL},
                   {"--noise", NULL, &g.noise, NULL},
                   {"--bright", NULL, &g.bright, NULL},
                   {"--nan", &g.nan, NULL, NULL},
                   {"--srgb", &g.srgb, NULL, NULL},
                   {"--mutable", &g.mutable_format, NULL, NULL},
                   {"--features", &g.features, NULL, NULL},
                   {"--resize", &g.resize, NULL, NULL},
                   {"--thread", &g.thread, NULL, NULL},
                   {"--forget", &g.forget, NULL, NULL},
                   {"--fault", &g.fault, NULL, NULL},
                   {"--hold", &g.hold, NULL, NULL},
                   {"--blind", &g.blind, NULL, NULL}};

    for (int i = 1; i < argc; i++) {
        bool known = false;
        for (size_t j = 0; j < sizeof options / sizeof *options && !known; j++) {
            known = !strcmp(argv[i], options[j].name);
            if (known && options[j].given)
                *options[j].given = true;
            if (known && options[j].number && i + 1 < argc)
                *options[j].number = atoi(argv[++i]);
            if (known && options[j].second && i + 1 < argc)
                *options[j].second = atoi(argv[++i]);
        }
        if (!known && !strcmp(argv[i], "--expect") && i + 2 < argc) {
            known = g.expect = true;
            g.sigma = (float)atof(argv[++i]);
            g.amount = (float)atof(argv[++i]);
        }
        if (!known && !strcmp(argv[i], "--format") && i + 1 < argc) {
            i++;
            for (size_t j = 0; j < sizeof formats / sizeof *formats; j++)
                if (!strcmp(argv[i], formats[j].name)) {
                    g.format = (int)j;
                    known = true;
                }
        }
        if (!known || g.windows > WINDOWS) {
            fprintf(stderr, "layer_game: unknown: %s\n", argv[i]);
            exit(2);
        }
    }
}

int main(int argc, char **argv)
{
    pthread_t thread;

    read_arguments(argc, argv);
    g.picture = malloc(4 * sizeof *g.picture * (size_t)(g.width * g.height));
    g.codes = malloc(4 * sizeof *g.codes * (size_t)(g.width * g.height));
    g.drawn_bytes = malloc(picture_bytes());
    CHECK(!g.picture || !g.codes || !g.drawn_bytes);
    draw_picture();
    make_codes();
    CHECK(SDL_Init(SDL_INIT_VIDEO));
    for (int i = 0; i < g.windows; i++)
        CHECK(!(g.w[i].window = SDL_CreateWindow("game", 50 + 200 * i, 50, g.width, g.height,
                                                 SDL_WINDOW_VULKAN | SDL_WINDOW_RESIZABLE)));
    make_instance();
    for (int i = 0; i < g.windows; i++)
        CHECK(!SDL_Vulkan_CreateSurface(g.w[i].window, g.instance, &g.w[i].surface));
    make_device();
    make_buffer();
    for (int i = 0; i < g.windows; i++)
        make_swapchain(&g.w[i]);
    if (g.thread)
        CHECK(pthread_create(&thread, NULL, play, NULL) || pthread_join(thread, NULL));
    else
        play(NULL);
    if (g.forget)
        return 0;
    CHECK(vkDeviceWaitIdle(g.device));
    for (int i = 0; i < g.windows; i++) {
        vkDestroySemaphore(g.device, g.w[i].acquired, NULL);
        vkDestroySwapchainKHR(g.device, g.w[i].swapchain, NULL);
        vkDestroySurfaceKHR(g.instance, g.w[i].surface, NULL);
    }
    vkDestroyBuffer(g.device, g.buffer, NULL);
    vkFreeMemory(g.device, g.memory, NULL);
    vkDestroySemaphore(g.device, g.drawn, NULL);
    vkDestroyFence(g.device, g.fence, NULL);
    vkDestroyCommandPool(g.device, g.pool, NULL);
    vkDestroyDevice(g.device, NULL);
    vkDestroyInstance(g.instance, NULL);
    SDL_Quit();
    free(g.picture);
    free(g.codes);
    free(g.drawn_bytes);
    return 0;
}
