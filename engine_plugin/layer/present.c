/* See present.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A presented image is copied to an image of ours, of the same bits without sRGB, which shaders can
 * read and write; what becomes of it is copied back. Two submits, as a rule:
 *     A   waits for what the present would; picture -> ours; picture -> tensors; signals the
 * session the job B   tensors -> ours; the HUD; ours -> picture; signals what the present waits for
 * instead On the rung `inline`, and for the HUD alone, all of it is one. A leaves the swapchain's
 * image as it was, so whatever fails behind it, what is presented is the program's own picture.
 */
#include "engine_plugin/layer/present.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/layer/draw.h"
#include "engine_plugin/layer/effect.h"
#include "engine_plugin/layer/settings.h"
#include "interop/base.h"
#include "interop/os/clock.h"

enum { FRAMES = 3 };
/* How long a frame of three before may take, before it is given up that this one is changed; and
 * all of them at the end. */
static const uint64_t FRAME_NS = 2000000000, END_NS = 2000000000;

typedef struct frame {
    VkCommandBuffer a, b;
    VkFence fence;
    VkQueryPool stamps; /* where the queue has a clock */
    bool pending;       /* the fence will be signalled */
    bool stamped;
    bool asks_job; /* the job's outcome is not known yet */
    uint64_t begin_ns;
} frame;

struct layer_swapchain {
    layer_swapchain *next;
    VkSwapchainKHR handle;
    VkFormat format, own_format;
    VkColorSpaceKHR space;
    VkExtent2D extent;
    const char *unable; /* why it is left alone, a literal; NULL: it is not */

    bool made; /* all of these */
    bool cannot_make;
    VkImage *images;
    VkSemaphore *ready; /* of each image */
    uint32_t image_count;
    VkCommandPool pool;
    frame frames[FRAMES];
    uint32_t next_frame;
    layer_image own;
    layer_hud hud;

    bool has_work;
    layer_work work;
    uint32_t generation; /* of the settings that it was made by, or could not be */
    char why[LAYER_WHY_BYTES];

    uint64_t presented_ns;
    layer_status status;
};

/* --- Swapchains --- */

/* The same bits as numbers that shaders can store; UNDEFINED: left alone. */
static VkFormat own_format_of(VkFormat format)
{
    switch ((int)format) {
    case VK_FORMAT_B8G8R8A8_UNORM:
    case VK_FORMAT_B8G8R8A8_SRGB:
        return VK_FORMAT_B8G8R8A8_UNORM;
    case VK_FORMAT_R8G8B8A8_UNORM:
    case VK_FORMAT_R8G8B8A8_SRGB:
    case VK_FORMAT_A8B8G8R8_UNORM_PACK32:
    case VK_FORMAT_A8B8G8R8_SRGB_PACK32:
        return VK_FORMAT_R8G8B8A8_UNORM;
    case VK_FORMAT_A2B10G10R10_UNORM_PACK32:
    case VK_FORMAT_A2R10G10B10_UNORM_PACK32: /* which few devices store: is_exchanged() */
        return VK_FORMAT_A2B10G10R10_UNORM_PACK32;
    case VK_FORMAT_R16G16B16A16_SFLOAT:
        return format;
    default:
        return VK_FORMAT_UNDEFINED;
    }
}

/* Whether what is red in one is blue in the other. */
static bool is_exchanged(VkFormat format)
{
    return format == VK_FORMAT_A2R10G10B10_UNORM_PACK32;
}

static const VkImageUsageFlags COPIED =
    VK_IMAGE_USAGE_TRANSFER_SRC_BIT | VK_IMAGE_USAGE_TRANSFER_DST_BIT;

static const char *lack_of(layer_device *d, const VkSwapchainCreateInfoKHR *info)
{
    const VkFormatFeatureFlags needed =
        VK_FORMAT_FEATURE_SAMPLED_IMAGE_BIT | VK_FORMAT_FEATURE_STORAGE_IMAGE_BIT |
        VK_FORMAT_FEATURE_TRANSFER_SRC_BIT | VK_FORMAT_FEATURE_TRANSFER_DST_BIT;
    const VkFormat own = own_format_of(info->imageFormat);
    /* What Vulkan makes the images of such a swapchain with. */
    const VkImageCreateFlags flags =
        info->flags & VK_SWAPCHAIN_CREATE_MUTABLE_FORMAT_BIT_KHR
            ? VK_IMAGE_CREATE_MUTABLE_FORMAT_BIT | VK_IMAGE_CREATE_EXTENDED_USAGE_BIT
            : 0;
    const layer_instance_table *fn = &d->instance->fn;
    VkSurfaceCapabilitiesKHR surface;
    VkFormatProperties properties;
    VkImageFormatProperties image;

    if (d->unable[0])
        return d->unable;
    if (own == VK_FORMAT_UNDEFINED)
        return "the swapchain's format is none that the layer knows";
    fn->GetPhysicalDeviceFormatProperties(d->physical, own, &properties);
    if ((properties.optimalTilingFeatures & needed) != needed)
        return "the device's shaders cannot store the swapchain's format";
    if (!d->features.features.shaderStorageImageWriteWithoutFormat)
        return "the device lacks shaderStorageImageWriteWithoutFormat";
    if (!d->fn.CmdPushDescriptorSetKHR)
        return "the device lacks VK_KHR_push_descriptor";
    if (info->imageArrayLayers != 1 || info->flags & VK_SWAPCHAIN_CREATE_PROTECTED_BIT_KHR)
        return "the swapchain has several layers, or is protected";
    if (info->presentMode == VK_PRESENT_MODE_SHARED_DEMAND_REFRESH_KHR ||
        info->presentMode == VK_PRESENT_MODE_SHARED_CONTINUOUS_REFRESH_KHR)
        return "the program draws to the image while it is shown";
    if (info->compositeAlpha &
        (VK_COMPOSITE_ALPHA_PRE_MULTIPLIED_BIT_KHR | VK_COMPOSITE_ALPHA_POST_MULTIPLIED_BIT_KHR))
        return "the window is transparent";
    if (!fn->GetPhysicalDeviceSurfaceCapabilitiesKHR ||
        fn->GetPhysicalDeviceSurfaceCapabilitiesKHR(d->physical, info->surface, &surface) !=
            VK_SUCCESS ||
        (surface.supportedUsageFlags & COPIED) != COPIED)
        return "the window's images cannot be copied";
    if (fn->GetPhysicalDeviceImageFormatProperties(
            d->physical, info->imageFormat, VK_IMAGE_TYPE_2D, VK_IMAGE_TILING_OPTIMAL,
            info->imageUsage | COPIED, flags, &image) != VK_SUCCESS)
        return "images of the swapchain's format cannot be copied";
    return NULL;
}

VkResult layer_swapchain_create(layer_device *d, const VkSwapchainCreateInfoKHR *info,
                                const VkAllocationCallbacks *allocator, VkSwapchainKHR *swapchain)
{
    layer_swapchain *sc = calloc(1, sizeof *sc);
    const char *unable = sc ? lack_of(d, info) : "there is no memory";
    VkSwapchainCreateInfoKHR more = *info;
    VkResult result = VK_ERROR_INITIALIZATION_FAILED;

    more.imageUsage |= COPIED;
    if (!unable)
        result = d->fn.CreateSwapchainKHR(d->handle, &more, allocator, swapchain);
    if (result != VK_SUCCESS) {
        if (!unable &&
            (result == VK_ERROR_SURFACE_LOST_KHR || result == VK_ERROR_NATIVE_WINDOW_IN_USE_KHR ||
             result == VK_ERROR_DEVICE_LOST)) {
            free(sc); /* a second try would be no better */
            return result;
        }
        unable = unable ? unable : "the swapchain cannot be made with images that can be copied";
        result = d->fn.CreateSwapchainKHR(d->handle, info, allocator, swapchain);
    }
    if (result != VK_SUCCESS || !sc) {
        free(sc);
        return result;
    }
    sc->handle = *swapchain;
    sc->format = info->imageFormat;
    sc->own_format = own_format_of(info->imageFormat);
    sc->space = info->imageColorSpace;
    sc->extent = info->imageExtent;
    sc->unable = unable;
    pthread_mutex_lock(&d->lock);
    sc->next = d->swapchains;
    d->swapchains = sc;
    pthread_mutex_unlock(&d->lock);
    return VK_SUCCESS;
}

static layer_swapchain *find_locked(layer_device *d, VkSwapchainKHR handle)
{
    layer_swapchain *sc = d->swapchains;

    while (sc && sc->handle != handle)
        sc = sc->next;
    return sc;
}

/* --- What a swapchain has of ours --- */

/* A semaphore goes from an old swapchain to a new one: when its last wait is over, only a present
 * after it can tell. */
static VkSemaphore take_semaphore_locked(layer_device *d)
{
    const VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO};
    VkSemaphore semaphore = VK_NULL_HANDLE;

    if (d->spare_count) {
        semaphore = d->spare[0];
        memmove(d->spare, d->spare + 1, --d->spare_count * sizeof *d->spare);
    } else if (d->fn.CreateSemaphore(d->handle, &info, NULL, &semaphore) != VK_SUCCESS)
        semaphore = VK_NULL_HANDLE;
    return semaphore;
}

static void give_semaphore_locked(layer_device *d, VkSemaphore semaphore)
{
    VkSemaphore *more = semaphore ? realloc(d->spare, (d->spare_count + 1) * sizeof *more) : NULL;

    if (!more)
        return; /* it is left behind: it may be waited for yet */
    d->spare = more;
    d->spare[d->spare_count++] = semaphore;
}

static bool make_frame(layer_device *d, layer_swapchain *sc, frame *f, bool has_clock)
{
    const VkCommandBufferAllocateInfo allocate = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .commandPool = sc->pool,
        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
        .commandBufferCount = 2};
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    const VkQueryPoolCreateInfo stamps = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                          .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                          .queryCount = 2};
    VkCommandBuffer commands[2];

    if (d->fn.AllocateCommandBuffers(d->handle, &allocate, commands) != VK_SUCCESS ||
        d->fn.CreateFence(d->handle, &fence, NULL, &f->fence) != VK_SUCCESS ||
        (has_clock && d->fn.CreateQueryPool(d->handle, &stamps, NULL, &f->stamps) != VK_SUCCESS))
        return false;
    f->a = commands[0];
    f->b = commands[1];
    return d->set_loader_data(d->handle, f->a) == VK_SUCCESS &&
           d->set_loader_data(d->handle, f->b) == VK_SUCCESS;
}

static bool take_images(layer_device *d, layer_swapchain *sc)
{
    uint32_t count = 0;

    if (d->fn.GetSwapchainImagesKHR(d->handle, sc->handle, &count, NULL) != VK_SUCCESS || !count)
        return false;
    sc->images = calloc(count, sizeof *sc->images);
    sc->ready = calloc(count, sizeof *sc->ready);
    if (!sc->images || !sc->ready ||
        d->fn.GetSwapchainImagesKHR(d->handle, sc->handle, &count, sc->images) != VK_SUCCESS)
        return false;
    for (; sc->image_count < count; sc->image_count++) {
        sc->ready[sc->image_count] = take_semaphore_locked(d);
        if (!sc->ready[sc->image_count])
            return false;
    }
    return true;
}

/* Nothing of it is used any more, or the device is lost. False: it may still be. */
static bool wait_for_frames(layer_device *d, layer_swapchain *sc, uint64_t timeout_ns)
{
    const uint64_t until = td_now_ns() + timeout_ns;
    bool over = true;

    for (int i = 0; i < FRAMES; i++) {
        frame *f = &sc->frames[i];
        const uint64_t now = td_now_ns();
        if (f->pending && d->fn.WaitForFences(d->handle, 1, &f->fence, VK_TRUE,
                                              now < until ? until - now : 0) == VK_TIMEOUT)
            over = false;
        else
            f->pending = false;
    }
    return over;
}

static void drop_work(layer_device *d, layer_swapchain *sc)
{
    if (sc->has_work)
        layer_work_close(d, &sc->work);
    sc->has_work = false;
    for (int i = 0; i < FRAMES; i++)
        sc->frames[i].asks_job = false;
}

/* What the GPU may still use is left behind. */
static void unmake(layer_device *d, layer_swapchain *sc)
{
    if (wait_for_frames(d, sc, END_NS)) {
        drop_work(d, sc);
        layer_hud_destroy(d, &sc->hud);
        layer_image_destroy(d, &sc->own);
        for (int i = 0; i < FRAMES; i++) {
            d->fn.DestroyFence(d->handle, sc->frames[i].fence, NULL);
            d->fn.DestroyQueryPool(d->handle, sc->frames[i].stamps, NULL);
        }
        d->fn.DestroyCommandPool(d->handle, sc->pool, NULL);
    }
    for (uint32_t i = 0; i < sc->image_count; i++)
        give_semaphore_locked(d, sc->ready[i]);
    free(sc->ready);
    free(sc->images);
    sc->ready = NULL;
    sc->images = NULL;
    sc->image_count = 0;
    sc->pool = VK_NULL_HANDLE;
    memset(sc->frames, 0, sizeof sc->frames);
    sc->made = false;
}

static bool make(layer_device *d, layer_swapchain *sc, uint32_t family, bool has_clock)
{
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                          .queueFamilyIndex = family};

    sc->made = d->fn.CreateCommandPool(d->handle, &pool, NULL, &sc->pool) == VK_SUCCESS &&
               take_images(d, sc) &&
               layer_image_make(d, sc->own_format, is_exchanged(sc->format), sc->extent,
                                &sc->own) &&
               layer_hud_make(d, FRAMES, &sc->hud);
    for (int i = 0; i < FRAMES && sc->made; i++)
        sc->made = make_frame(d, sc, &sc->frames[i], has_clock);
    if (!sc->made) {
        unmake(d, sc);
        sc->cannot_make = true;
        td_text(sc->why, sizeof sc->why, "there is no memory for the swapchain's copies");
    }
    return sc->made;
}

void layer_swapchain_destroy(layer_device *d, VkSwapchainKHR handle,
                             const VkAllocationCallbacks *allocator)
{
    layer_swapchain *sc = NULL;

    pthread_mutex_lock(&d->lock);
    for (layer_swapchain **link = &d->swapchains; *link && handle; link = &(*link)->next)
        if ((*link)->handle == handle) {
            sc = *link;
            *link = sc->next;
            break;
        }
    if (sc)
        unmake(d, sc);
    pthread_mutex_unlock(&d->lock);
    free(sc);
    d->fn.DestroySwapchainKHR(d->handle, handle, allocator);
}

void layer_present_end(layer_device *d)
{
    pthread_mutex_lock(&d->lock);
    while (d->swapchains) {
        layer_swapchain *sc = d->swapchains;
        d->swapchains = sc->next;
        unmake(d, sc);
        free(sc);
    }
    layer_station_close(d);
    layer_hud_end(d);
    for (uint32_t i = 0; i < d->spare_count; i++)
        d->fn.DestroySemaphore(d->handle, d->spare[i], NULL);
    d->spare_count = 0;
    pthread_mutex_unlock(&d->lock);
}

/* --- The queue that presents --- */

typedef struct presenting {
    VkQueue queue;
    uint32_t family;
    VkQueueFamilyProperties properties;
} presenting;

/* False: it is none that computes, or not known. */
static bool look_at_queue(layer_device *d, VkQueue queue, presenting *out)
{
    VkQueueFamilyProperties *list;
    uint32_t count = 0;
    bool found = false;

    out->queue = queue;
    for (uint32_t i = 0; i < d->queue_count && !found; i++) {
        found = d->queues[i].handle == queue;
        out->family = d->queues[i].family;
    }
    if (!found)
        return false;
    d->instance->fn.GetPhysicalDeviceQueueFamilyProperties(d->physical, &count, NULL);
    list = calloc(count ? count : 1, sizeof *list);
    if (!list)
        return false;
    d->instance->fn.GetPhysicalDeviceQueueFamilyProperties(d->physical, &count, list);
    found = out->family < count && list[out->family].queueFlags & VK_QUEUE_COMPUTE_BIT;
    if (found)
        out->properties = list[out->family];
    free(list);
    return found;
}

/* Ends the session, and what all swapchains have of it. False: the GPU may still use that. */
static bool close_station(layer_device *d)
{
    for (layer_swapchain *sc = d->swapchains; sc; sc = sc->next) {
        if (!wait_for_frames(d, sc, FRAME_NS))
            return false;
        drop_work(d, sc);
        sc->generation = 0;
    }
    layer_station_close(d);
    return true;
}

/* Makes what the settings ask for, once; has_work says whether there is something to run. */
static void follow_settings(layer_device *d, layer_swapchain *sc, const presenting *p,
                            const layer_settings *s)
{
    if (sc->generation == s->generation)
        return;
    if (!wait_for_frames(d, sc, FRAME_NS))
        return;
    if (d->station && d->station->asked_rung != s->rung && !close_station(d))
        return;
    drop_work(d, sc);
    sc->generation = s->generation;
    sc->why[0] = 0;
    if (s->effect == LAYER_EFFECT_NONE)
        return;
    if (!d->station &&
        !layer_station_open(d, p->queue, p->family, s->rung, sc->why, sizeof sc->why))
        return;
    if (d->station->family != p->family)
        td_text(sc->why, sizeof sc->why, "the program presents with queues of two families");
    else
        sc->has_work =
            layer_work_open(d, s, sc->extent, sc->own_format, is_exchanged(sc->format), sc->space,
                            &sc->work, sc->why, sizeof sc->why);
}

/* The effect stays off until the settings change: with a session that is lost, for all. */
static void give_up(layer_device *d, layer_swapchain *sc, tandem_status status, const char *what)
{
    const uint32_t generation = sc->generation;
    char text[160] = "";

    tandem_error_text(d->station->tandem.session, text, sizeof text);
    td_text(sc->why, sizeof sc->why, "%s: %s", what, text[0] ? text : tandem_status_text(status));
    if (!wait_for_frames(d, sc, FRAME_NS))
        return;
    drop_work(d, sc);
    if (status == TANDEM_ERROR_LOST || status == TANDEM_ERROR_DEVICE)
        close_station(d);
    sc->generation = generation;
}

/* --- What it costs --- */

static double smoothed(double before, double now)
{
    return before > 0 ? before + 0.1 * (now - before) : now;
}

static void read_cost(layer_device *d, layer_swapchain *sc, frame *f, double period_ns)
{
    uint64_t stamps[2];

    if (f->stamped &&
        d->fn.GetQueryPoolResults(d->handle, f->stamps, 0, 2, sizeof stamps, stamps, sizeof *stamps,
                                  VK_QUERY_RESULT_64_BIT) == VK_SUCCESS &&
        stamps[1] > stamps[0])
        sc->status.cost_ms =
            smoothed(sc->status.cost_ms, (double)(stamps[1] - stamps[0]) * period_ns * 1e-6);
    f->stamped = false;
}

static double period_of(layer_device *d)
{
    VkPhysicalDeviceProperties properties;

    d->instance->fn.GetPhysicalDeviceProperties(d->physical, &properties);
    return (double)properties.limits.timestampPeriod;
}

static void write_hud(layer_device *d, layer_swapchain *sc, const layer_settings *s, bool works)
{
    char lines[TD_LAYER_LINES][TD_LAYER_COLUMNS + 1];
    const layer_status *r = &sc->status;
    const char *rung = layer_station_rung(d->station);

    snprintf(lines[0], sizeof lines[0], "Tandem %s%s  rung %s", layer_effect_name(s->effect),
             works ? "" : " (off)", rung ? rung : "none");
    snprintf(lines[1], sizeof lines[1], "frame %.1f ms  %.0f/s  cost %.2f ms", r->frame_ms,
             r->frame_ms > 0 ? 1e3 / r->frame_ms : 0.0, r->cost_ms);
    td_text(lines[2], sizeof lines[2], "%s", sc->why);
    layer_hud_write(&sc->hud, sc->next_frame, lines);
}

/* --- A frame --- */

typedef struct points {
    const VkSemaphore *waits;
    uint32_t wait_count;
    VkSemaphore signal;
    integration_point wait_at, signal_at; /* of timelines, or nothing */
} points;

static bool submit(layer_device *d, VkQueue queue, VkCommandBuffer commands, const points *at,
                   VkFence fence)
{
    enum { MOST = 16 };
    VkSemaphore waits[MOST + 1], signals[2];
    VkPipelineStageFlags stages[MOST + 1];
    uint64_t wait_values[MOST + 1] = {0}, signal_values[2] = {0};
    VkTimelineSemaphoreSubmitInfo values = {.sType =
                                                VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                            .pWaitSemaphoreValues = wait_values,
                                            .pSignalSemaphoreValues = signal_values};
    VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                         .pWaitSemaphores = waits,
                         .pWaitDstStageMask = stages,
                         .commandBufferCount = commands ? 1 : 0,
                         .pCommandBuffers = &commands,
                         .pSignalSemaphores = signals};

    if (at->wait_count > MOST)
        return false;
    for (uint32_t i = 0; i < at->wait_count; i++)
        waits[info.waitSemaphoreCount++] = at->waits[i];
    if (at->wait_at.semaphore) {
        wait_values[info.waitSemaphoreCount] = at->wait_at.value;
        waits[info.waitSemaphoreCount++] = at->wait_at.semaphore;
    }
    for (uint32_t i = 0; i < info.waitSemaphoreCount; i++)
        stages[i] = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    if (at->signal)
        signals[info.signalSemaphoreCount++] = at->signal;
    if (at->signal_at.semaphore) {
        signal_values[info.signalSemaphoreCount] = at->signal_at.value;
        signals[info.signalSemaphoreCount++] = at->signal_at.semaphore;
    }
    if (at->wait_at.semaphore || at->signal_at.semaphore) {
        values.waitSemaphoreValueCount = info.waitSemaphoreCount;
        values.signalSemaphoreValueCount = info.signalSemaphoreCount;
        info.pNext = &values;
    }
    return d->fn.QueueSubmit(queue, 1, &info, fence) == VK_SUCCESS;
}

static bool begin(layer_device *d, VkCommandBuffer commands)
{
    const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                           .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};

    return d->fn.BeginCommandBuffer(commands, &info) == VK_SUCCESS;
}

static void stamp(layer_device *d, const frame *f, VkCommandBuffer commands, uint32_t query)
{
    if (!f->stamps)
        return;
    if (query == 0)
        d->fn.CmdResetQueryPool(commands, f->stamps, 0, 2);
    d->fn.CmdWriteTimestamp(
        commands, query ? VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT : VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT,
        f->stamps, query);
}

/* The picture, or the part of it that is drawn to, into our image. */
static void record_in(layer_device *d, layer_swapchain *sc, VkCommandBuffer commands, VkImage image,
                      VkExtent2D extent)
{
    layer_record_use(d, commands, image, layer_use_presented, layer_use_source);
    layer_record_use(d, commands, sc->own.image, layer_use_nothing, layer_use_target);
    layer_record_copy(d, commands, image, sc->own.image, extent);
    layer_record_use(d, commands, image, layer_use_source, layer_use_presented);
    layer_record_use(d, commands, sc->own.image, layer_use_target, layer_use_shader);
}

static void record_out(layer_device *d, layer_swapchain *sc, VkCommandBuffer commands,
                       VkImage image, VkExtent2D extent)
{
    layer_record_use(d, commands, sc->own.image, layer_use_shader, layer_use_source);
    layer_record_use(d, commands, image, layer_use_presented, layer_use_target);
    layer_record_copy(d, commands, sc->own.image, image, extent);
    layer_record_use(d, commands, image, layer_use_target, layer_use_presented);
}

static void record_hud(layer_device *d, layer_swapchain *sc, VkCommandBuffer commands)
{
    /* As light: a linear 1 is white, but of PQ, where it is 10000 cd/m2, and paper is 203. */
    const float white = sc->space == VK_COLOR_SPACE_HDR10_ST2084_EXT ? 0.58f : 1.0f;

    layer_record_shader_barrier(d, commands);
    layer_hud_record(d, commands, &sc->hud, sc->next_frame, sc->own.view, sc->extent, white);
}

typedef struct job {
    layer_swapchain *sc;
    frame *f;
    VkImage image;
    VkSemaphore ready;
    const presenting *p;
    const VkSemaphore *waits;
    uint32_t wait_count;
    bool hud, works;
} job;

/* All in one submit: the HUD alone, or a session whose jobs are recorded. */
static bool run_at_once(layer_device *d, job *j, const VkExtent2D *extent)
{
    layer_swapchain *sc = j->sc;
    const points at = {.waits = j->waits, .wait_count = j->wait_count, .signal = j->ready};
    tandem_status status = TANDEM_OK;
    bool recorded = false;

    if (!begin(d, j->f->a))
        return false;
    stamp(d, j->f, j->f->a, 0);
    record_in(d, sc, j->f->a, j->image, *extent);
    if (j->works) {
        status = layer_work_before(d, &sc->work, j->f->a, &sc->own);
        if (status == TANDEM_OK)
            status = layer_work_job(d, &sc->work, j->f->a);
        recorded = status == TANDEM_OK;
        if (recorded)
            status = layer_work_after(d, &sc->work, j->f->a, &sc->own);
    }
    if (status == TANDEM_OK && j->hud)
        record_hud(d, sc, j->f->a);
    if (status == TANDEM_OK)
        record_out(d, sc, j->f->a, j->image, *extent);
    stamp(d, j->f, j->f->a, 1);
    if (d->fn.EndCommandBuffer(j->f->a) == VK_SUCCESS && status == TANDEM_OK &&
        d->fn.ResetFences(d->handle, 1, &j->f->fence) == VK_SUCCESS &&
        submit(d, j->p->queue, j->f->a, &at, j->f->fence)) {
        j->f->pending = true;
        j->f->stamped = j->f->stamps != VK_NULL_HANDLE;
        j->f->asks_job = j->works;
        return true;
    }
    if (recorded)
        tandem_cancel(d->station->tandem.session, sc->work.ticket);
    if (status != TANDEM_OK && status != TANDEM_ERROR_BUSY) /* which is this frame's alone */
        give_up(d, sc, status, "recording");
    return false;
}

static bool submit_before(layer_device *d, job *j)
{
    layer_swapchain *sc = j->sc;
    integration *tandem = &d->station->tandem;
    points at = {.waits = j->waits, .wait_count = j->wait_count};

    if (!begin(d, j->f->a))
        return false;
    stamp(d, j->f, j->f->a, 0);
    record_in(d, sc, j->f->a, j->image, sc->extent);
    const tandem_status status = layer_work_before(d, &sc->work, j->f->a, &sc->own);
    if (d->fn.EndCommandBuffer(j->f->a) != VK_SUCCESS || status != TANDEM_OK) {
        if (status != TANDEM_OK)
            give_up(d, sc, status, "recording");
        return false;
    }
    at.signal_at = integrate_given(tandem);
    return submit(d, j->p->queue, j->f->a, &at, VK_NULL_HANDLE);
}

/* B, or where there is nothing to show, what makes the present wait for A. False: nothing signals
 * it. */
static bool submit_after(layer_device *d, job *j, bool done)
{
    layer_swapchain *sc = j->sc;
    points at = {.signal = j->ready};

    if (done && layer_station_meets(d->station))
        at.wait_at = integrate_done(&d->station->tandem, &sc->work.slot);
    if (done) {
        done =
            begin(d, j->f->b) && layer_work_after(d, &sc->work, j->f->b, &sc->own) == TANDEM_OK;
        if (done && j->hud)
            record_hud(d, sc, j->f->b);
        if (done)
            record_out(d, sc, j->f->b, j->image, sc->extent);
        if (done)
            stamp(d, j->f, j->f->b, 1);
        done = d->fn.EndCommandBuffer(j->f->b) == VK_SUCCESS && done;
    }
    if (d->fn.ResetFences(d->handle, 1, &j->f->fence) != VK_SUCCESS ||
        !submit(d, j->p->queue, done ? j->f->b : VK_NULL_HANDLE, &at, j->f->fence))
        return false;
    j->f->pending = true;
    j->f->stamped = done && j->f->stamps;
    j->f->asks_job = done && layer_station_meets(d->station);
    if (done)
        sc->status.changed++;
    return true;
}

/* Whether the present is to wait for `ready`; else for what the program said, or if *waited is set
 * for nothing more. */
static bool run_in_two(layer_device *d, job *j, bool *waited)
{
    layer_swapchain *sc = j->sc;
    integration *tandem = &d->station->tandem;

    if (!submit_before(d, j))
        return false;
    *waited = true;
    tandem_status status = integrate_submitted(tandem);
    if (status == TANDEM_OK)
        status = layer_work_job(d, &sc->work, j->f->a);
    const bool is_late = status == TANDEM_ERROR_BUSY; /* this frame's affair alone */
    if (status == TANDEM_OK && !layer_station_meets(d->station))
        status = layer_work_wait(d, &sc->work);
    const bool follows = submit_after(d, j, status == TANDEM_OK);
    if (status != TANDEM_OK && !is_late)
        give_up(d, sc, status, status == TANDEM_ERROR_BUSY ? "it takes too long" : "the effect");
    return follows;
}

/* Changes an image. True: the present waits for `*ready`. Else what the program waits for holds,
 * unless *waited: then that has been waited for, and nothing is outstanding. */
static bool change(layer_device *d, layer_swapchain *sc, const presenting *p, uint32_t image,
                   const layer_settings *s, const VkSemaphore *waits, uint32_t wait_count,
                   VkSemaphore *ready, bool *waited)
{
    if (!sc->made &&
        (sc->cannot_make || !make(d, sc, p->family, p->properties.timestampValidBits > 0)))
        return false;
    if (image >= sc->image_count)
        return false;
    if (s->on)
        follow_settings(d, sc, p, s);
    frame *f = &sc->frames[sc->next_frame];
    if (f->pending && d->fn.WaitForFences(d->handle, 1, &f->fence, VK_TRUE, FRAME_NS) != VK_SUCCESS)
        return false;
    f->pending = false;
    read_cost(d, sc, f, period_of(d));
    if (f->asks_job && sc->has_work) {
        const tandem_status outcome = layer_work_outcome(d, &sc->work);
        f->asks_job = false;
        if (outcome != TANDEM_OK)
            give_up(d, sc, outcome, "the effect");
    }
    job j = {.sc = sc,
             .f = f,
             .image = sc->images[image],
             .ready = sc->ready[image],
             .p = p,
             .waits = waits,
             .wait_count = wait_count,
             .hud = s->hud,
             .works = s->on && sc->has_work && sc->generation == s->generation};
    if (!j.works && !j.hud)
        return false;
    if (j.hud)
        write_hud(d, sc, s, j.works);
    *ready = j.ready;
    bool follows;
    if (j.works && !layer_station_records(d->station))
        follows = run_in_two(d, &j, waited);
    else {
        const VkExtent2D extent = j.works ? sc->extent : layer_hud_extent(&sc->hud, sc->extent);
        follows = run_at_once(d, &j, &extent);
        if (follows && j.works)
            sc->status.changed++;
        *waited = follows;
    }
    if (*waited && !follows)
        d->fn.QueueWaitIdle(
            p->queue); /* A has run; the semaphores are spent, and nothing is left to wait for */
    sc->next_frame = (sc->next_frame + 1) % FRAMES;
    return follows;
}

static void count_frame(layer_device *d, layer_swapchain *sc, const layer_settings *s)
{
    const uint64_t now = td_now_ns();

    if (sc->presented_ns)
        sc->status.frame_ms =
            smoothed(sc->status.frame_ms, (double)(now - sc->presented_ns) * 1e-6);
    sc->presented_ns = now;
    sc->status.presented++;
    sc->status.width = sc->extent.width;
    sc->status.height = sc->extent.height;
    sc->status.rung = layer_station_rung(d->station);
    td_text(sc->status.why, sizeof sc->status.why, "%s",
            sc->unable ? sc->unable
            : s->on    ? sc->why
                       : "");
    layer_status_set(&sc->status);
}

VkResult layer_present(layer_device *d, VkQueue queue, const VkPresentInfoKHR *info)
{
    enum { MOST = 16 };
    VkSemaphore ready[MOST];
    uint32_t ready_count = 0;
    VkPresentInfoKHR changed = *info;
    layer_settings s;
    presenting p = {0};
    bool looked = false, known = false;

    layer_settings_get(&s);
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < info->swapchainCount && i < MOST; i++) {
        layer_swapchain *sc = find_locked(d, info->pSwapchains[i]);
        bool waited = false;
        if (!sc)
            continue;
        if (!sc->unable && ((s.on && s.effect != LAYER_EFFECT_NONE) || s.hud)) {
            known = looked ? known : look_at_queue(d, queue, &p);
            looked = true;
            if (!known)
                sc->unable = "the program presents with a queue that does not compute";
            else if (change(d, sc, &p, info->pImageIndices[i], &s, changed.pWaitSemaphores,
                            changed.waitSemaphoreCount, &ready[ready_count], &waited))
                ready_count++;
            /* Once one has waited, the others' commands come behind it. */
            if (waited)
                changed.waitSemaphoreCount = 0;
        }
        count_frame(d, sc, &s);
    }
    pthread_mutex_unlock(&d->lock);
    if (ready_count) { /* behind which all that was waited for lies */
        changed.waitSemaphoreCount = ready_count;
        changed.pWaitSemaphores = ready;
    }
    return d->fn.QueuePresentKHR(queue, &changed);
}
