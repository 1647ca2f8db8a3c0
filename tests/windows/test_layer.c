/* VK_LAYER_TANDEM_effect as a DLL, under a loader of our own (layer/loader.h) above Wine's Vulkan: what a window shows with it and
 * without, switched through the pipe by tandem.exe, which is told a model's path, too; with other sizes, and to a clean end.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * As `test_layer.exe --hold` it is a program that presents until it is killed; with --forget it ends after some frames, and gives
 * nothing back; with --fault it does what the validation layer, which lies below Wine's Vulkan, complains of. ctest finds any
 * other complaint in the output.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine_plugin/layer/control.h"
#include "tests/limits.h"
#include "tests/plugin/layer/filter.h"
#include "tests/windows/layer/loader.h"

enum { WIDTH = 160, HEIGHT = 120, MOST_PIXELS = 256 * 192, IMAGES = 16, SIGMA = 8 };
/* A pixel is rounded to a code, and its tokens to halves. */
#define NEAR_CODE 0.55
#define WAIT_NS 20000000000u

#define FUNCTIONS(X)                                                                                                   \
    X(CreateSwapchainKHR) X(DestroySwapchainKHR) X(GetSwapchainImagesKHR) X(AcquireNextImageKHR) X(QueuePresentKHR)    \
    X(QueueSubmit) X(DeviceWaitIdle) X(WaitForFences) X(ResetFences) X(CreateFence) X(DestroyFence) X(CreateSemaphore) \
    X(DestroySemaphore) X(CreateCommandPool) X(DestroyCommandPool) X(BeginCommandBuffer) X(EndCommandBuffer)           \
    X(CmdPipelineBarrier) X(CmdCopyBufferToImage) X(CmdCopyImageToBuffer) X(CreateBuffer) X(DestroyBuffer)             \
    X(GetBufferMemoryRequirements) X(BindBufferMemory) X(AllocateMemory) X(FreeMemory) X(MapMemory)
#define INSTANCE_FUNCTIONS(X)                                                                                       \
    X(CreateWin32SurfaceKHR) X(DestroySurfaceKHR) X(GetPhysicalDeviceSurfaceCapabilitiesKHR)                        \
    X(GetPhysicalDeviceSurfaceSupportKHR) X(GetPhysicalDeviceMemoryProperties)

/* A program with a window. */
static struct {
#define X(name) PFN_vk##name name;
    FUNCTIONS(X)
    INSTANCE_FUNCTIONS(X)
#undef X
    HWND window;
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;
    VkCommandPool pool;
    VkCommandBuffer commands;
    VkFence fence;
    VkSemaphore acquired, drawn;
    VkBuffer buffer; /* what is drawn, then what was shown */
    VkDeviceMemory memory;
    uint8_t *mapped;
    VkSurfaceKHR surface;
    VkSwapchainKHR swapchain;
    VkExtent2D extent;
    VkImage images[IMAGES];
    bool fault;
    bool fresh[IMAGES]; /* presented since something was changed */
    float colors[4 * MOST_PIXELS];
} p;

static const char said_file[] = "test_layer.said", model_folder[] = "test_layer.t\xc3\xa4t";

/* --- Its picture: two flat halves and noise --- */

static void draw_picture(void)
{
    static const uint8_t halves[2][3] = {{90, 100, 110}, {190, 170, 150}}; /* blue, green, red */
    uint32_t random = 12345;

    for (uint32_t i = 0; i < p.extent.width * p.extent.height; i++) {
        const uint8_t *color = halves[i % p.extent.width >= p.extent.width / 2];

        for (uint32_t c = 0; c < 3; c++) {
            random = random * 1664525 + 1013904223;
            p.mapped[4 * i + c] = (uint8_t)(color[c] + (int)(random >> 16) % 13 - 6);
            p.colors[4 * i + 2 - c] = (float)p.mapped[4 * i + c] / 255;
        }
        p.mapped[4 * i + 3] = 255;
        p.colors[4 * i + 3] = 1;
    }
}

static const uint8_t *shown(void)
{
    return p.mapped + 4 * MOST_PIXELS;
}

static bool is_as_drawn(void)
{
    return !memcmp(shown(), p.mapped, (size_t)4 * p.extent.width * p.extent.height);
}

typedef double expectation(const filter_picture *drawn, int x, int y, int channel);

static double filtered(const filter_picture *drawn, int x, int y, int channel)
{
    return 255 * (double)filter_expected(drawn, SIGMA, 1, x, y, channel);
}

/* Of light, as sRGB has it. */
static double squared(const filter_picture *drawn, int x, int y, int channel)
{
    const double code = (double)filter_color(drawn, x, y, channel);
    const double light = code <= 0.04045 ? code / 12.92 : pow((code + 0.055) / 1.055, 2.4), two = light * light;

    return 255 * (two <= 0.0031308 ? 12.92 * two : 1.055 * pow(two, 1 / 2.4) - 0.055);
}

/* The largest difference of what was shown from what is expected, in codes. */
static double off_from(expectation *expected)
{
    const filter_picture drawn = {(int)p.extent.width, (int)p.extent.height, p.colors, p.colors};
    double most = 0;

    for (int y = 0; y < drawn.height; y++)
        for (int x = 0; x < drawn.width; x++)
            for (int c = 0; c < 3; c++)
                most = fmax(most, fabs(expected(&drawn, x, y, c) - shown()[4 * (y * drawn.width + x) + 2 - c]));
    return most;
}

/* --- Vulkan --- */

static void make_window(void)
{
    const WNDCLASSA kind = {.lpfnWndProc = DefWindowProcA, .hInstance = GetModuleHandleA(NULL), .lpszClassName = "test_layer"};

    RegisterClassA(&kind);
    p.window = CreateWindowA("test_layer", "test_layer", WS_POPUP | WS_VISIBLE, 40, 40, WIDTH, HEIGHT, NULL, NULL, kind.hInstance,
                             NULL);
    assert_non_null(p.window);
}

static void pump(void)
{
    MSG message;

    while (PeekMessageA(&message, NULL, 0, 0, PM_REMOVE))
        DispatchMessageA(&message);
}

static void make_instance(uint32_t version)
{
    static const char *const names[] = {VK_KHR_SURFACE_EXTENSION_NAME, VK_KHR_WIN32_SURFACE_EXTENSION_NAME};
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = version};
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                       .pApplicationInfo = &application,
                                       .enabledExtensionCount = 2,
                                       .ppEnabledExtensionNames = names};

    assert_int_equal(loader_create_instance(&info, &p.instance), VK_SUCCESS);
    assert_int_equal(loader_physical_device(&p.physical), VK_SUCCESS);
#define X(name)                                                        \
    p.name = (PFN_vk##name)loader_instance_function("vk" #name);       \
    assert_non_null(p.name);
    INSTANCE_FUNCTIONS(X)
#undef X
}

static VkDevice make_device(uint32_t extensions)
{
    static const char *const names[] = {VK_KHR_SWAPCHAIN_EXTENSION_NAME};
    static const float priority = 1;
    const VkDeviceQueueCreateInfo queue = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1, .pQueuePriorities = &priority};
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue,
                                     .enabledExtensionCount = extensions,
                                     .ppEnabledExtensionNames = names};
    VkDevice device;

    assert_int_equal(loader_create_device(p.physical, &info, &device), VK_SUCCESS);
    return device;
}

static void make_buffer(void)
{
    const VkMemoryPropertyFlags wanted = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                     .size = 8 * MOST_PIXELS,
                                     .usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    VkMemoryAllocateInfo memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
    VkPhysicalDeviceMemoryProperties has;
    VkMemoryRequirements needs;

    assert_int_equal(p.CreateBuffer(p.device, &info, NULL, &p.buffer), VK_SUCCESS);
    p.GetBufferMemoryRequirements(p.device, p.buffer, &needs);
    p.GetPhysicalDeviceMemoryProperties(p.physical, &has);
    memory.allocationSize = needs.size;
    while (!(needs.memoryTypeBits & 1u << memory.memoryTypeIndex) ||
           (has.memoryTypes[memory.memoryTypeIndex].propertyFlags & wanted) != wanted)
        assert_true(++memory.memoryTypeIndex < has.memoryTypeCount);
    assert_int_equal(p.AllocateMemory(p.device, &memory, NULL, &p.memory), VK_SUCCESS);
    assert_int_equal(p.BindBufferMemory(p.device, p.buffer, p.memory, 0), VK_SUCCESS);
    assert_int_equal(p.MapMemory(p.device, p.memory, 0, VK_WHOLE_SIZE, 0, (void **)&p.mapped), VK_SUCCESS);
}

static void make_swapchain(void)
{
    const VkSwapchainKHR old = p.swapchain;
    VkSurfaceCapabilitiesKHR surface;
    uint32_t count = IMAGES;

    assert_int_equal(p.GetPhysicalDeviceSurfaceCapabilitiesKHR(p.physical, p.surface, &surface), VK_SUCCESS);
    p.extent = surface.currentExtent;
    assert_true(p.extent.width * p.extent.height <= MOST_PIXELS);
    /* For what this test copies itself; the layer adds its own. */
    const VkSwapchainCreateInfoKHR info = {.sType = VK_STRUCTURE_TYPE_SWAPCHAIN_CREATE_INFO_KHR,
                                           .surface = p.surface,
                                           .minImageCount = surface.minImageCount > 3 ? surface.minImageCount : 3,
                                           .imageFormat = VK_FORMAT_B8G8R8A8_UNORM,
                                           .imageColorSpace = VK_COLOR_SPACE_SRGB_NONLINEAR_KHR,
                                           .imageExtent = p.extent,
                                           .imageArrayLayers = 1,
                                           .imageUsage = VK_IMAGE_USAGE_TRANSFER_SRC_BIT | VK_IMAGE_USAGE_TRANSFER_DST_BIT,
                                           .preTransform = surface.currentTransform,
                                           .compositeAlpha = VK_COMPOSITE_ALPHA_OPAQUE_BIT_KHR,
                                           .presentMode = VK_PRESENT_MODE_FIFO_KHR,
                                           .oldSwapchain = old};
    assert_int_equal(p.CreateSwapchainKHR(p.device, &info, NULL, &p.swapchain), VK_SUCCESS);
    if (old)
        p.DestroySwapchainKHR(p.device, old, NULL);
    assert_int_equal(p.GetSwapchainImagesKHR(p.device, p.swapchain, &count, p.images), VK_SUCCESS);
    memset(p.fresh, 0, sizeof p.fresh);
    draw_picture();
}

static void begin(uint32_t version)
{
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    const VkSemaphoreCreateInfo semaphore = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO};
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT};
    VkCommandBufferAllocateInfo commands = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandBufferCount = 1};
    VkBool32 presents = VK_FALSE;

    memset(&p, 0, sizeof p);
    make_window();
    make_instance(version);
    const VkWin32SurfaceCreateInfoKHR surface = {
        .sType = VK_STRUCTURE_TYPE_WIN32_SURFACE_CREATE_INFO_KHR, .hinstance = GetModuleHandleA(NULL), .hwnd = p.window};
    assert_int_equal(p.CreateWin32SurfaceKHR(p.instance, &surface, NULL, &p.surface), VK_SUCCESS);
    assert_int_equal(p.GetPhysicalDeviceSurfaceSupportKHR(p.physical, 0, p.surface, &presents), VK_SUCCESS);
    assert_true(presents);
    p.device = make_device(1);
    loader_queue(p.device, 0, &p.queue);
#define X(name)                                                             \
    p.name = (PFN_vk##name)loader_device_function(p.device, "vk" #name);    \
    assert_non_null(p.name);
    FUNCTIONS(X)
#undef X
    assert_int_equal(p.CreateCommandPool(p.device, &pool, NULL, &p.pool), VK_SUCCESS);
    commands.commandPool = p.pool;
    assert_int_equal(loader_commands(p.device, &commands, &p.commands), VK_SUCCESS);
    assert_int_equal(p.CreateFence(p.device, &fence, NULL, &p.fence), VK_SUCCESS);
    assert_int_equal(p.CreateSemaphore(p.device, &semaphore, NULL, &p.acquired), VK_SUCCESS);
    assert_int_equal(p.CreateSemaphore(p.device, &semaphore, NULL, &p.drawn), VK_SUCCESS);
    make_buffer();
    make_swapchain();
}

static void end(void)
{
    assert_int_equal(p.DeviceWaitIdle(p.device), VK_SUCCESS);
    p.DestroySwapchainKHR(p.device, p.swapchain, NULL);
    p.DestroyBuffer(p.device, p.buffer, NULL);
    p.FreeMemory(p.device, p.memory, NULL);
    p.DestroySemaphore(p.device, p.acquired, NULL);
    p.DestroySemaphore(p.device, p.drawn, NULL);
    p.DestroyFence(p.device, p.fence, NULL);
    p.DestroyCommandPool(p.device, p.pool, NULL);
    loader_destroy_device(p.device);
    assert_int_equal(loader_left(), 0); /* of the layer's, too */
    p.DestroySurfaceKHR(p.instance, p.surface, NULL);
    loader_destroy_instance();
    DestroyWindow(p.window);
    assert_true(loader_links_were_taken());
}

static void use(VkImage image, VkImageLayout before, VkImageLayout after)
{
    const VkImageMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER,
                                          .srcAccessMask = VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
                                          .dstAccessMask = VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
                                          .oldLayout = before,
                                          .newLayout = after,
                                          .srcQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
                                          .dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
                                          .image = image,
                                          .subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1}};

    p.CmdPipelineBarrier(p.commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_TRANSFER_BIT, 0, 0, NULL, 0, NULL, 1,
                         &barrier);
}

/* Draws and presents. True: what was shown last in the image is read first. */
static bool frame(void)
{
    const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                           .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_TRANSFER_BIT;
    VkBufferImageCopy region = {.imageSubresource = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1},
                                .imageExtent = {p.extent.width, p.extent.height, 1}};
    const VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                 .waitSemaphoreCount = 1,
                                 .pWaitSemaphores = &p.acquired,
                                 .pWaitDstStageMask = &stage,
                                 .commandBufferCount = 1,
                                 .pCommandBuffers = &p.commands,
                                 .signalSemaphoreCount = 1,
                                 .pSignalSemaphores = &p.drawn};
    uint32_t at;
    const VkPresentInfoKHR present = {.sType = VK_STRUCTURE_TYPE_PRESENT_INFO_KHR,
                                      .waitSemaphoreCount = 1,
                                      .pWaitSemaphores = &p.drawn,
                                      .swapchainCount = 1,
                                      .pSwapchains = &p.swapchain,
                                      .pImageIndices = &at};

    pump();
    assert_int_equal(p.AcquireNextImageKHR(p.device, p.swapchain, WAIT_NS, p.acquired, VK_NULL_HANDLE, &at), VK_SUCCESS);
    const bool reads = p.fresh[at];
    assert_int_equal(p.BeginCommandBuffer(p.commands, &info), VK_SUCCESS);
    if (reads) {
        region.bufferOffset = 4 * MOST_PIXELS;
        use(p.images[at], VK_IMAGE_LAYOUT_PRESENT_SRC_KHR, VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL);
        p.CmdCopyImageToBuffer(p.commands, p.images[at], VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL, p.buffer, 1, &region);
        region.bufferOffset = 0;
    }
    use(p.images[at], VK_IMAGE_LAYOUT_UNDEFINED, VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL);
    p.CmdCopyBufferToImage(p.commands, p.buffer, p.images[at],
                           p.fault ? VK_IMAGE_LAYOUT_PREINITIALIZED : VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL, 1, &region);
    use(p.images[at], VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL, VK_IMAGE_LAYOUT_PRESENT_SRC_KHR);
    assert_int_equal(p.EndCommandBuffer(p.commands), VK_SUCCESS);
    assert_int_equal(p.QueueSubmit(p.queue, 1, &submit, p.fence), VK_SUCCESS);
    assert_int_equal(p.WaitForFences(p.device, 1, &p.fence, VK_TRUE, WAIT_NS), VK_SUCCESS);
    assert_int_equal(p.ResetFences(p.device, 1, &p.fence), VK_SUCCESS);
    assert_int_equal(p.QueuePresentKHR(p.queue, &present), VK_SUCCESS);
    p.fresh[at] = true;
    return reads;
}

/* What is shown of frames that are drawn from now on. */
static void look(void)
{
    memset(p.fresh, 0, sizeof p.fresh);
    while (!frame()) {
    }
}

/* A frame may stay as it is where the effect is late, which takes seconds then, but is never anything else. */
static void look_for(expectation *expected)
{
    enum { TRIES = 20 };
    double off = NEAR_CODE;

    for (int i = 0; i < TRIES && off >= NEAR_CODE; i++) {
        look();
        off = off_from(expected);
        assert_true(off < NEAR_CODE || is_as_drawn());
    }
    assert_true(off < NEAR_CODE);
    assert_false(is_as_drawn());
}

static void look_for_drawn(void)
{
    look();
    assert_true(is_as_drawn());
}

/* --- Other programs --- */

/* A program of this folder, with what it says in a file, or among what this one says. */
static HANDLE start(const char *line, const char *into)
{
    SECURITY_ATTRIBUTES inherited = {sizeof inherited, NULL, TRUE};
    STARTUPINFOW how = {.cb = sizeof how, .dwFlags = STARTF_USESTDHANDLES};
    HANDLE to = GetStdHandle(STD_OUTPUT_HANDLE);
    PROCESS_INFORMATION made;
    wchar_t wide[1000];

    if (into)
        to = CreateFileA(into, GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_WRITE, &inherited, CREATE_ALWAYS, FILE_ATTRIBUTE_NORMAL,
                         NULL);
    assert_true(to != INVALID_HANDLE_VALUE && SetHandleInformation(to, HANDLE_FLAG_INHERIT, HANDLE_FLAG_INHERIT));
    how.hStdOutput = how.hStdError = to;
    assert_true(MultiByteToWideChar(CP_UTF8, 0, line, -1, wide, 1000) > 0);
    assert_true(CreateProcessW(NULL, wide, NULL, NULL, TRUE, 0, NULL, NULL, &how, &made));
    if (into)
        CloseHandle(to);
    CloseHandle(made.hThread);
    return made.hProcess;
}

static DWORD wait_for(HANDLE process)
{
    DWORD code = 0;

    assert_int_equal(WaitForSingleObject(process, LIMITS_PATIENCE_NS / 1000000), WAIT_OBJECT_0);
    assert_true(GetExitCodeProcess(process, &code));
    CloseHandle(process);
    return code;
}

static char said[65536];

/* How a program ends, and what it says. */
static DWORD run(const char *line)
{
    const DWORD code = wait_for(start(line, said_file));
    FILE *file = fopen(said_file, "rb");

    assert_non_null(file);
    said[fread(said, 1, sizeof said - 1, file)] = 0;
    fclose(file);
    return code;
}

static DWORD tool(const char *words)
{
    char line[800];

    snprintf(line, sizeof line, "tandem.exe layer %s", words);
    return run(line);
}

/* Of this program, a line of its status. */
static bool status_has(const char *line)
{
    char words[100];

    snprintf(words, sizeof words, "status --program %lu", GetCurrentProcessId());
    assert_int_equal(tool(words), 0);
    return strstr(said, line) != NULL;
}

static bool is_in_layer(PFN_vkVoidFunction function)
{
    HMODULE module = NULL;

    GetModuleHandleExA(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
                       (const char *)(uintptr_t)function, &module);
    return module && module == GetModuleHandleA(LOADER_DLL);
}

/* --- The tests, in this order --- */

static void test_it_is_not_loaded_unasked(void **state)
{
    static const char *const environments[][2] = {{NULL, NULL}, {"0", NULL}, {"1", "1"}, {"1", "0"}};

    (void)state;
    for (size_t i = 0; i < sizeof environments / sizeof *environments; i++) {
        unsetenv("TANDEM_LAYER");
        unsetenv("DISABLE_TANDEM_LAYER");
        if (environments[i][0])
            setenv("TANDEM_LAYER", environments[i][0], 1);
        if (environments[i][1])
            setenv("DISABLE_TANDEM_LAYER", environments[i][1], 1);
        assert_false(loader_begin());
        assert_null(GetModuleHandleA(LOADER_DLL));
    }
    begin(VK_API_VERSION_1_0);
    assert_ptr_equal(p.QueuePresentKHR, loader_below(p.device, "vkQueuePresentKHR"));
    look_for_drawn();
    end();
    assert_int_equal(tool("status"), 1);
    assert_non_null(strstr(said, "no program runs with the layer"));
    unsetenv("DISABLE_TANDEM_LAYER");
}

static void test_negotiation(void **state)
{
    VkNegotiateLayerInterface asks = {.sType = LAYER_NEGOTIATE_INTERFACE_STRUCT};

    (void)state;
    setenv("TANDEM_LAYER", "1", 1);
    assert_true(loader_begin()); /* with version 2 */
    const PFN_vkNegotiateLoaderLayerInterfaceVersion ask = (PFN_vkNegotiateLoaderLayerInterfaceVersion)(void *)GetProcAddress(
        GetModuleHandleA(LOADER_DLL), "vkNegotiateLoaderLayerInterfaceVersion");
    assert_int_equal(ask(NULL), VK_ERROR_INITIALIZATION_FAILED);
    for (uint32_t version = 0; version < 2; version++) {
        asks.loaderLayerInterfaceVersion = version;
        assert_int_equal(ask(&asks), VK_ERROR_INITIALIZATION_FAILED);
        assert_null(asks.pfnGetInstanceProcAddr);
    }
    asks.loaderLayerInterfaceVersion = 9; /* a newer loader's */
    assert_int_equal(ask(&asks), VK_SUCCESS);
    assert_int_equal(asks.loaderLayerInterfaceVersion, 2);
    asks.sType = LAYER_NEGOTIATE_UNINTIALIZED;
    assert_int_equal(ask(&asks), VK_ERROR_INITIALIZATION_FAILED);
}

/* With a device that presents nothing it has no threads, and nothing keeps it from being unloaded. */
static void test_it_is_unloaded(void **state)
{
    (void)state;
    make_instance(VK_API_VERSION_1_0);
    loader_destroy_device(make_device(0));
    loader_destroy_instance();
    loader_end();
    assert_null(GetModuleHandleA(LOADER_DLL));
    assert_true(loader_begin());
}

/* By vkGetInstanceProcAddr() and by vkGetDeviceProcAddr(): ours what is wrapped, and what is not is what lies below. */
static void test_functions(void **state)
{
    static const char *const wrapped[] = {"vkGetDeviceProcAddr",  "vkDestroyDevice",       "vkGetDeviceQueue",
                                          "vkCreateSwapchainKHR", "vkDestroySwapchainKHR", "vkQueuePresentKHR"};
    static const char *const others[] = {"vkCmdDraw", "vkQueueSubmit", "vkAcquireNextImageKHR"};

    (void)state;
    make_instance(VK_API_VERSION_1_0);
    VkDevice device = make_device(1);
    for (size_t i = 0; i < sizeof wrapped / sizeof *wrapped; i++) {
        assert_true(is_in_layer(loader_device_function(device, wrapped[i])));
        assert_true(is_in_layer(loader_instance_function(wrapped[i])));
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_non_null(loader_device_function(device, others[i]));
        assert_ptr_equal(loader_device_function(device, others[i]), loader_below(device, others[i]));
    }
    assert_null(loader_device_function(device, "vkNoSuchFunction"));
    loader_destroy_device(device);
    /* A device that presents nothing. */
    device = make_device(0);
    assert_null(loader_below(device, "vkCreateSwapchainKHR"));
    assert_null(loader_device_function(device, "vkCreateSwapchainKHR"));
    assert_true(is_in_layer(loader_device_function(device, "vkGetDeviceQueue")));
    loader_destroy_device(device);
    loader_destroy_instance();
    assert_true(loader_links_were_taken());
}

static void test_it_is_switched(void **state)
{
    (void)state;
    begin(VK_API_VERSION_1_0);
    assert_true(is_in_layer((PFN_vkVoidFunction)p.QueuePresentKHR));
    look_for(filtered);
    assert_true(status_has("\non yes\neffect denoise-film\n"));
    assert_true(strstr(said, "\nsize 160x120\n") && strstr(said, "\nwhy -\n"));
    assert_int_equal(tool("toggle"), 0);
    look_for_drawn();
    assert_true(status_has("\non no\n"));
    assert_int_equal(tool("toggle"), 0);
    look_for(filtered);
    /* Its letters are in the upper left corner alone. */
    assert_int_equal(tool("set effect=none hud=on"), 0);
    look();
    assert_false(is_as_drawn());
    const size_t half = (size_t)4 * p.extent.width * p.extent.height / 2;
    assert_memory_equal(shown() + half, p.mapped + half, half);
    assert_int_equal(tool("toggle hud"), 0);
    look_for_drawn();
    assert_int_equal(tool("set amount=1 effect=blur"), 1);
    assert_non_null(strstr(said, "must be none, denoise-film, sharpen or model=FILE"));
    assert_int_equal(tool("set effect=denoise-film"), 0);
    look_for(filtered);
    end();
}

/* On the rung on which memory is shared, and on that on which it is copied. */
static void test_rungs(void **state)
{
    (void)state;
    begin(VK_API_VERSION_1_2);
    for (int i = 0; i < 2; i++) {
        char words[40];

        snprintf(words, sizeof words, "set rung=%s", i ? "cpu" : "copy");
        assert_int_equal(tool(words), 0);
        look_for(filtered);
        assert_true(status_has(i ? "\nrung cpu\n" : "\nrung copy\n"));
    }
    assert_int_equal(tool("set rung=inline"), 0);
    look_for_drawn();
    assert_false(status_has("\nwhy -\n"));
    assert_int_equal(tool("set rung=auto"), 0);
    look_for(filtered);
    end();
}

/* A network that multiplies light with itself, in a folder whose name is no ASCII. */
static void test_a_users_model(void **state)
{
    /* As JSON within JSON, where each ' is a quotation mark with a backslash in front of it. */
    static const char graph[] =
        "{'version':1,'numbers':{'width':4096,'height':4096},'tensors':{"
        "'color':{'role':'input','dtype':'F32','shape':['height','width',3]},"
        "'out':{'role':'output','dtype':'F32','shape':['height','width',3]}},"
        "'nodes':[{'operation':'binary','batch':1,'heads':'height','rows':'width','channels':3,'kind':1,"
        "'views':{'a':'color','b':'color','y':'out'}}]}";
    char header[1000] = "{\"__metadata__\":{\"tandem.graph\":\"", path[100], words[200];
    uint64_t bytes = strlen(header);
    wchar_t wide[100];

    (void)state;
    for (const char *c = graph; *c; c++)
        bytes += (uint64_t)snprintf(header + bytes, sizeof header - bytes, *c == '\'' ? "\\\"" : "%c", *c);
    bytes += (uint64_t)snprintf(header + bytes, sizeof header - bytes, "\"}}");
    MultiByteToWideChar(CP_UTF8, 0, model_folder, -1, wide, 100);
    CreateDirectoryW(wide, NULL);
    snprintf(path, sizeof path, "%s\\m.safetensors", model_folder);
    MultiByteToWideChar(CP_UTF8, 0, path, -1, wide, 100);
    FILE *file = _wfopen(wide, L"wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&bytes, sizeof bytes, 1, file) + fwrite(header, bytes, 1, file), 2);
    assert_int_equal(fclose(file), 0);
    begin(VK_API_VERSION_1_1);
    snprintf(words, sizeof words, "set effect=model=%s", path);
    assert_int_equal(tool(words), 0);
    look_for(squared);
    assert_int_equal(tool("set effect=model=nowhere.safetensors"), 0);
    look_for_drawn();
    assert_true(status_has("nowhere.safetensors"));
    assert_int_equal(tool("set effect=denoise-film"), 0);
    look_for(filtered);
    end();
    DeleteFileW(wide);
    MultiByteToWideChar(CP_UTF8, 0, model_folder, -1, wide, 100);
    RemoveDirectoryW(wide);
}

static void resize(int width, int height)
{
    const uint64_t until = GetTickCount64() + LIMITS_PATIENCE_NS / 1000000;
    VkSurfaceCapabilitiesKHR surface;

    assert_true(SetWindowPos(p.window, NULL, 0, 0, width, height, SWP_NOMOVE | SWP_NOZORDER));
    do {
        pump();
        assert_int_equal(p.GetPhysicalDeviceSurfaceCapabilitiesKHR(p.physical, p.surface, &surface), VK_SUCCESS);
        assert_true(GetTickCount64() < until);
        Sleep(1);
    } while ((int)surface.currentExtent.width != width || (int)surface.currentExtent.height != height);
    assert_int_equal(p.DeviceWaitIdle(p.device), VK_SUCCESS);
    make_swapchain();
}

static void test_resized(void **state)
{
    static const int sizes[][2] = {{200, 90}, {97, 131}, {WIDTH, HEIGHT}};

    (void)state;
    begin(VK_API_VERSION_1_0);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        look_for(filtered);
        resize(sizes[i][0], sizes[i][1]);
    }
    look_for(filtered);
    end();
}

/* Each has a pipe of its own. One that is killed, and one that gives nothing back, leave nothing behind. */
static void test_other_programs(void **state)
{
    const uint64_t until = GetTickCount64() + LIMITS_PATIENCE_NS / 1000000;
    char words[100], line[100];

    (void)state;
    begin(VK_API_VERSION_1_0);
    frame();
    HANDLE other = start("test_layer.exe --hold", NULL);
    const DWORD id = GetProcessId(other);
    snprintf(line, sizeof line, "program %lu", id);
    while (tool("status") || !strstr(said, line)) {
        assert_true(GetTickCount64() < until);
        assert_int_equal(WaitForSingleObject(other, 0), WAIT_TIMEOUT);
    }
    snprintf(words, sizeof words, "toggle --program %lu", id);
    assert_int_equal(tool(words), 0);
    assert_true(status_has("\non yes\n"));
    snprintf(words, sizeof words, "status --program %lu", id);
    assert_int_equal(tool(words), 0);
    assert_non_null(strstr(said, "\non no\n"));
    TerminateProcess(other, 1);
    wait_for(other);
    assert_int_equal(tool(words), 1);
    assert_int_equal(wait_for(start("test_layer.exe --forget", NULL)), 0);
    look_for(filtered);
    end();
}

static void test_validation_is_there(void **state)
{
    (void)state;
    assert_int_equal(run("test_layer.exe --fault"), 0);
    assert_non_null(strstr(said, "VUID-vkCmdCopyBufferToImage-dstImageLayout-00180"));
}

/* Bytes that are none of a channel's, and who says nothing. */
static void test_strangers(void **state)
{
    char name[200], rubbish[5000];
    DWORD bytes;

    (void)state;
    begin(VK_API_VERSION_1_0);
    frame();
    assert_int_equal(layer_control_place(0, name, said, sizeof said), TANDEM_OK);
    for (int i = 0; i < 4; i++) {
        HANDLE pipe = CreateFileA(name, GENERIC_READ | GENERIC_WRITE, 0, NULL, OPEN_EXISTING, 0, NULL);
        assert_true(pipe != INVALID_HANDLE_VALUE);
        memset(rubbish, i & 1 ? 0xff : 'a', sizeof rubbish);
        if (i)
            assert_true(WriteFile(pipe, rubbish, i == 1 ? 3 : sizeof rubbish, &bytes, NULL));
        assert_true(status_has("\non yes\neffect denoise-film\n"));
        CloseHandle(pipe);
    }
    look_for(filtered);
    end();
}

static void test_it_is_given_back(void **state)
{
    (void)state;
    loader_end();
    /* Its threads run in it: it stays. */
    assert_non_null(GetModuleHandleA(LOADER_DLL));
    assert_true(loader_begin());
    begin(VK_API_VERSION_1_0);
    look_for(filtered);
    end();
}

static int play(const char *how)
{
    if (!loader_begin())
        return 3;
    begin(VK_API_VERSION_1_0);
    p.fault = !strcmp(how, "--fault");
    for (int i = 0; i < 8 || !strcmp(how, "--hold"); i++)
        frame();
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_is_not_loaded_unasked), cmocka_unit_test(test_negotiation),
        cmocka_unit_test(test_it_is_unloaded), cmocka_unit_test(test_functions),
        cmocka_unit_test(test_it_is_switched), cmocka_unit_test(test_rungs),
        cmocka_unit_test(test_a_users_model), cmocka_unit_test(test_resized),
        cmocka_unit_test(test_other_programs), cmocka_unit_test(test_validation_is_there),
        cmocka_unit_test(test_strangers), cmocka_unit_test(test_it_is_given_back),
    };

    if (argc > 1)
        return play(argv[1]);
    setenv("TANDEM_LAYER_EFFECT", "denoise-film", 1);
    setenv("TANDEM_LAYER_HUD", "0", 1);
    setenv("TANDEM_LAYER_SIGMA", "8", 1);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove(said_file);
    return failed;
}
