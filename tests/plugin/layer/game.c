/* A program that presents, and knows nothing of layers: test_layer.py runs it with and without one.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * usage: layer_game [--frames N] [--size W H] [--windows N] [--srgb] [--mutable] [--vulkan MINOR]
 *                   [--features] [--resize] [--thread] [--forget] [--fault] [--hold] [--blind]
 *                   [--noise N] [--expect SIGMA AMOUNT]
 *
 * Its picture is two flat halves with an edge and noise, the same in each frame. In the end it
 * acquires an image once more, which holds what was presented last there, and prints what became of
 * the picture, as JSON: the largest and the mean difference from what it drew, in codes, the noise
 * in the left half, before and after, and the largest difference from what the filter is said to
 * make of it, computed here from its definition.
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

enum { WINDOWS = 2, IMAGES = 8 };

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
    int frames, width, height, windows, vulkan_minor, noise;
    bool srgb, mutable_format, features, resize, thread, forget, fault, hold, blind, expect;
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
    uint8_t *mapped, *picture;
    window w[WINDOWS];
} g = {.frames = 6, .width = 160, .height = 120, .windows = 1, .noise = 6, .vulkan_minor = 1};

#define CHECK(what)                                                  \
    do {                                                             \
        const int result_ = (int)(what);                             \
        if (result_) {                                               \
            fprintf(stderr, "layer_game: %s: %d\n", #what, result_); \
            exit(3);                                                 \
        }                                                            \
    } while (0)

/* --- The picture, and what the filter is said to make of it --- */

static void draw_picture(void)
{
    static const uint8_t colors[2][3] = {{90, 100, 110}, {190, 170, 150}}; /* blue, green, red */
    uint32_t random = 12345;

    for (int y = 0; y < g.height; y++)
        for (int x = 0; x < g.width; x++)
            for (int c = 0; c < 4; c++) {
                random = random * 1664525 + 1013904223;
                const int noise = g.noise ? (int)(random >> 16) % (2 * g.noise + 1) - g.noise : 0;
                g.picture[4 * (y * g.width + x) + c] =
                    c == 3 ? 255 : (uint8_t)(colors[x >= g.width / 2][c] + noise);
            }
}

static int clamped(int x, int most)
{
    return x < 0 ? 0 : x > most ? most : x;
}

/* Channel 0: red. */
static float code_at(int x, int y, int channel)
{
    return g.picture[4 * (clamped(y, g.height - 1) * g.width + clamped(x, g.width - 1)) + 2 -
                     channel] /
           255.0f;
}

static float luminance_at(int x, int y)
{
    return 0.25f * code_at(x, y, 0) + 0.5f * code_at(x, y, 1) + 0.25f * code_at(x, y, 2);
}

/* Half the squared distance of two pixels' features. */
static float distance_of(int ax, int ay, int bx, int by)
{
    const float gain = 255 / (3 * g.sigma), chroma = 0.5f * gain;
    const float red = chroma * (code_at(ax, ay, 0) - code_at(ax, ay, 1) - code_at(bx, by, 0) +
                                code_at(bx, by, 1));
    const float blue = chroma * (code_at(ax, ay, 2) - code_at(ax, ay, 1) - code_at(bx, by, 2) +
                                 code_at(bx, by, 1));
    float sum = red * red + blue * blue;

    for (int i = 0; i < 9; i++) {
        const float d = gain * (luminance_at(ax + i % 3 - 1, ay + i / 3 - 1) -
                                luminance_at(bx + i % 3 - 1, by + i / 3 - 1));
        sum += d * d;
    }
    return sum / 2;
}

static float expected_at(int x, int y, int channel)
{
    float sum = 0, weights = 0;

    for (int v = y - 3; v <= y + 3; v++)
        for (int u = x - 3; u <= x + 3; u++)
            if (u >= 0 && v >= 0 && u < g.width && v < g.height) {
                const float weight = expf(-distance_of(x, y, u, v));
                sum += weight * code_at(u, v, channel);
                weights += weight;
            }
    const float before = code_at(x, y, channel),
                after = before + g.amount * (sum / weights - before);
    return 255 * (after < 0 ? 0 : after > 1 ? 1 : after);
}

static double noise_of(const uint8_t *picture)
{
    double sum = 0, squares = 0;
    int count = 0;

    for (int y = g.height / 2; y < g.height - 8; y++)
        for (int x = 8; x < g.width / 2 - 8; x++, count++) {
            const double code = picture[4 * (y * g.width + x) + 1];
            sum += code;
            squares += code * code;
        }
    return sqrt(squares / count - sum / count * sum / count);
}

static void print_report(double ms)
{
    double largest = 0, mean = 0, off = 0;
    const uint8_t *middle = g.mapped + 4 * (g.height / 2 * g.width + g.width / 4);

    for (int y = 0; y < g.height; y++)
        for (int x = 0; x < g.width; x++)
            for (int c = 0; c < 3; c++) {
                const uint8_t *after = g.mapped + 4 * (y * g.width + x);
                const double d = fabs(after[2 - c] - 255.0 * (double)code_at(x, y, c));
                mean += d / (3.0 * g.width * g.height);
                largest = d > largest ? d : largest;
                const double error =
                    g.expect ? fabs(after[2 - c] - (double)expected_at(x, y, c)) : 0;
                off = error > off ? error : off;
            }
    printf("{\"largest\": %.1f, \"mean\": %.3f, \"noise_before\": %.3f, \"noise\": %.3f, \"off\": "
           "%.3f, \"frame_ms\": %.3f, "
           "\"middle\": [%d, %d, %d], \"alpha\": %d}\n",
           largest, mean, noise_of(g.picture), noise_of(g.mapped), off, ms, middle[2], middle[1],
           middle[0], middle[3]);
    fflush(stdout);
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
                                     .size = (VkDeviceSize)(4 * g.width * g.height),
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
    memcpy(g.mapped, g.picture, (size_t)(4 * g.width * g.height));
}

static void make_swapchain(window *w)
{
    static const VkFormat formats[] = {VK_FORMAT_B8G8R8A8_UNORM, VK_FORMAT_B8G8R8A8_SRGB};
    static const VkImageFormatListCreateInfo list = {
        .sType = VK_STRUCTURE_TYPE_IMAGE_FORMAT_LIST_CREATE_INFO,
        .viewFormatCount = 2,
        .pViewFormats = formats};
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
        .imageFormat = formats[g.srgb],
        .imageColorSpace = VK_COLOR_SPACE_SRGB_NONLINEAR_KHR,
        .imageExtent = w->extent,
        .imageArrayLayers = 1,
        .imageUsage =
            VK_IMAGE_USAGE_TRANSFER_DST_BIT | (g.blind ? 0 : VK_IMAGE_USAGE_TRANSFER_SRC_BIT),
        .preTransform = surface.currentTransform,
        .compositeAlpha = VK_COMPOSITE_ALPHA_OPAQUE_BIT_KHR,
        .presentMode = VK_PRESENT_MODE_FIFO_KHR,
        .oldSwapchain = old};
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
    g.picture = malloc((size_t)(4 * g.width * g.height));
    draw_picture();
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
    return 0;
}
