/* The C texts of INTEGRATION.md, word for word, at work on a device under the validation layer.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * test_example.sh checks that each of them is here as it is there.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "interop/base.h"
#include "interop/os/clock.h"
#include "tandem/vulkan.h"
#include "tests/interop/vk_util.h"
#include "tests/plugin/network_util.h"

static void enable(VkPhysicalDeviceVulkan12Features *engine, const tandem_requirement *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (list[i].kind != TANDEM_REQUIREMENT_FEATURE || !list[i].available)
            continue;
        if (!strcmp(list[i].name, "timelineSemaphore"))
            engine->timelineSemaphore = VK_TRUE;
        else if (!strcmp(list[i].name, "bufferDeviceAddress"))
            engine->bufferDeviceAddress = VK_TRUE;
    }
}

/* The document calls Vulkan by name, and tests open it at run time. */
static PFN_vkWaitForFences opened_wait;

VKAPI_ATTR VkResult VKAPI_CALL vkWaitForFences(VkDevice device, uint32_t count, const VkFence *fences, VkBool32 all,
                                               uint64_t timeout)
{
    return opened_wait(device, count, fences, all, timeout);
}

static VkResult wait_for_b(tandem_session *session, tandem_point waited_for, VkDevice device, VkFence fence)
{
    if (tandem_point_wait(session, waited_for, 1000000000) != TANDEM_OK)
        return VK_TIMEOUT;
    return vkWaitForFences(device, 1, &fence, VK_TRUE, 1000000000);
}

static VkBool32 is_false_alarm(const VkDebugUtilsMessengerCallbackDataEXT *message)
{
    const char *name = message->pMessageIdName ? message->pMessageIdName : "";

    return !strcmp(name, "UNASSIGNED-VkSemaphore-state-timeout") || !strcmp(name, "UNASSIGNED-VkFence-state-timeout") ||
           !strcmp(name, "VUID-VkSemaphoreSignalInfo-value-03259");
}

typedef struct attachment {
    VkImage image;
    VkImageView view;
    VkFormat format;
    VkExtent2D extent;
} attachment;

static tandem_pack_image packed(const attachment *a, uint32_t encoding, tandem_view tensor)
{
    const tandem_pack_image p = TANDEM_INIT(tandem_pack_image,
                                            .format = a->format,
                                            .image = a->image,
                                            .view = a->view,
                                            .usage = VK_IMAGE_USAGE_SAMPLED_BIT,
                                            .image_extent = a->extent,
                                            .extent = a->extent,
                                            .layout_before = VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL,
                                            .layout_after = VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL,
                                            .src_stage = VK_PIPELINE_STAGE_COLOR_ATTACHMENT_OUTPUT_BIT,
                                            .src_access = VK_ACCESS_COLOR_ATTACHMENT_WRITE_BIT,
                                            .dst_stage = VK_PIPELINE_STAGE_COLOR_ATTACHMENT_OUTPUT_BIT,
                                            .dst_access = VK_ACCESS_COLOR_ATTACHMENT_WRITE_BIT,
                                            .channels = 3,
                                            .encoding = encoding,
                                            .tensor = tensor);

    return p;
}

static tandem_status pack_g_buffer(tandem_session *session, VkCommandBuffer commands, const attachment *albedo,
                                   const attachment *normal, tandem_mem mem)
{
    tandem_view tensor = tandem_view_dense(mem, 0, TANDEM_DTYPE_F16, albedo->extent.height, albedo->extent.width, 6);
    tandem_pack_image images[2];

    images[0] = packed(albedo, TANDEM_IMAGE_PLAIN, tensor);
    tensor.offset_bytes = 3 * 2;
    images[1] = packed(normal, TANDEM_IMAGE_OCTAHEDRAL, tensor);
    return tandem_record_pack_images(session, commands, images, 2);
}

/* A second device of this instance, with this chain of features. */
static VkDevice new_device(vku *vk, const VkPhysicalDeviceFeatures2 *features)
{
    const float priority = 1;
    const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                           .queueFamilyIndex = vk->queue_family,
                                           .queueCount = 1,
                                           .pQueuePriorities = &priority};
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = features,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue,
                                     .enabledExtensionCount = vk->enabled.extension_count,
                                     .ppEnabledExtensionNames = vk->enabled.extensions};
    VkDevice device;

    assert_int_equal(vk->CreateDevice(vk->physical_device, &info, NULL, &device), VK_SUCCESS);
    return device;
}

static tandem_vulkan describe(const vku *vk, VkDevice device, const VkPhysicalDeviceFeatures2 *features)
{
    tandem_vulkan vulkan = vku_engine(vk);

    vulkan.device = device;
    vulkan.enabled_features = features;
    vulkan.queue = VK_NULL_HANDLE;
    return vulkan;
}

static void open_vulkan(vku *vk)
{
    const vku_options options = {.validation = true};

    if (!vku_try(vk, &options))
        skip();
}

static void close_vulkan(vku *vk)
{
    vku_close(vk);
    if (vk->errors)
        fail_msg("validation: %s", vk->last_text);
}

/* A session whose points are semaphores: the features were enabled, and it knows. */
static void expect_semaphores(const tandem_vulkan *vulkan)
{
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc,
                                                 .backend = TANDEM_BACKEND_CPU, .vulkan = vulkan);
    const tandem_timeline_desc timeline_desc = TANDEM_INIT(tandem_timeline_desc);
    tandem_timeline timeline;
    tandem_session *s;
    VkSemaphore semaphore;

    assert_int_equal(tandem_session_create(&desc, &s), TANDEM_OK);
    assert_int_equal(tandem_timeline_create(s, &timeline_desc, &timeline), TANDEM_OK);
    assert_int_equal(tandem_timeline_get_vulkan(s, timeline, &semaphore), TANDEM_OK);
    assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
}

static uint32_t ask(const vku *vk, tandem_requirement list[32])
{
    uint32_t count = 32;

    list[0] = TANDEM_INIT(tandem_requirement);
    assert_int_equal(tandem_vulkan_requirements(vk->gipa, vk->instance, vk->physical_device, &count, list), TANDEM_OK);
    return count;
}

static void test_features_by_name(void **state)
{
    VkPhysicalDeviceVulkan12Features engine = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    const VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &engine};
    tandem_requirement list[32];
    tandem_vulkan vulkan;
    VkDevice device;
    vku vk;

    (void)state;
    open_vulkan(&vk);
    enable(&engine, list, ask(&vk, list));
    assert_int_equal(engine.timelineSemaphore, VK_TRUE);
    device = new_device(&vk, &features);
    vulkan = describe(&vk, device, &features);
    expect_semaphores(&vulkan);
    vk.DestroyDevice(device, NULL);
    close_vulkan(&vk);
}

/* The chain from the list alone, with no struct known by its name. */
static void test_features_by_size(void **state)
{
    VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
    _Alignas(8) char room[8][64] = {{0}};
    tandem_requirement list[32];
    uint32_t count, used = 0;
    tandem_vulkan vulkan;
    VkDevice device;
    vku vk;

    (void)state;
    open_vulkan(&vk);
    count = ask(&vk, list);
    for (uint32_t i = 0; i < count; i++) {
        const VkBaseOutStructure head = {list[i].feature_struct, features.pNext};
        const VkBool32 on = VK_TRUE;

        if (list[i].kind != TANDEM_REQUIREMENT_FEATURE || !list[i].available)
            continue;
        assert_true(used < 8 && list[i].feature_struct_bytes <= sizeof room[0]);
        memcpy(room[used], &head, sizeof head);
        memcpy(room[used] + list[i].feature_offset, &on, sizeof on);
        features.pNext = room[used++];
    }
    assert_true(used > 0);
    device = new_device(&vk, &features);
    vulkan = describe(&vk, device, &features);
    expect_semaphores(&vulkan);
    vk.DestroyDevice(device, NULL);
    close_vulkan(&vk);
}

/* A messenger with the filter, beside that of vk_util, which counts all. */
typedef struct heard {
    _Atomic unsigned messages, left_out;
} heard;

static VKAPI_ATTR VkBool32 VKAPI_CALL on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                                 VkDebugUtilsMessageTypeFlagsEXT types,
                                                 const VkDebugUtilsMessengerCallbackDataEXT *data, void *user)
{
    heard *h = user;

    (void)severity;
    (void)types;
    if (is_false_alarm(data)) {
        h->left_out++;
    } else {
        h->messages++;
        fprintf(stderr, "%s: %s\n", data->pMessageIdName ? data->pMessageIdName : "", data->pMessage);
    }
    return VK_FALSE;
}

static VkDebugUtilsMessengerEXT listen(vku *vk, heard *h)
{
    const VkDebugUtilsMessengerCreateInfoEXT info = {
        .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
        .messageSeverity =
            VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT,
        .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
        .pfnUserCallback = on_message,
        .pUserData = h};
    const PFN_vkCreateDebugUtilsMessengerEXT create =
        (PFN_vkCreateDebugUtilsMessengerEXT)vk->gipa(vk->instance, "vkCreateDebugUtilsMessengerEXT");
    VkDebugUtilsMessengerEXT messenger;

    assert_non_null(create);
    assert_int_equal(create(vk->instance, &info, NULL, &messenger), VK_SUCCESS);
    return messenger;
}

static void listen_no_more(vku *vk, VkDebugUtilsMessengerEXT messenger)
{
    ((PFN_vkDestroyDebugUtilsMessengerEXT)vk->gipa(vk->instance, "vkDestroyDebugUtilsMessengerEXT"))(vk->instance,
                                                                                                       messenger, NULL);
}

typedef struct frames_rig {
    vku vk;
    heard h;
    VkDebugUtilsMessengerEXT messenger;
    tandem_vulkan vulkan;
    tandem_session *s;
    tandem_mem mem;
    tandem_timeline engines, ours;
    VkSemaphore engines_semaphore, ours_semaphore;
} frames_rig;

enum { ROWS = 64, DIM = 32, VIEW_BYTES = ROWS * DIM * 4, FRAMES = 60 };

static tandem_timeline new_timeline(frames_rig *r, tandem_signaller signaller, VkSemaphore *semaphore)
{
    const tandem_timeline_desc desc = TANDEM_INIT(tandem_timeline_desc, .signaller = signaller);
    tandem_timeline timeline;

    assert_int_equal(tandem_timeline_create(r->s, &desc, &timeline), TANDEM_OK);
    assert_int_equal(tandem_timeline_get_vulkan(r->s, timeline, semaphore), TANDEM_OK);
    return timeline;
}

static void open_frames(frames_rig *r)
{
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc,
                                                 .backend = TANDEM_BACKEND_CPU, .vulkan = &r->vulkan);
    const tandem_mem_desc mem = TANDEM_INIT(tandem_mem_desc, .bytes = 4 * VIEW_BYTES);

    memset(r, 0, sizeof *r);
    open_vulkan(&r->vk);
    if (!r->vk.validated) {
        vku_close(&r->vk);
        skip();
    }
    opened_wait = r->vk.WaitForFences;
    r->messenger = listen(&r->vk, &r->h);
    r->vulkan = describe(&r->vk, r->vk.device, &r->vk.enabled.features);
    assert_int_equal(tandem_session_create(&desc, &r->s), TANDEM_OK);
    assert_int_equal(tandem_mem_create(r->s, &mem, &r->mem), TANDEM_OK);
    r->engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, &r->engines_semaphore);
    r->ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, &r->ours_semaphore);
}

static void close_frames(frames_rig *r)
{
    assert_int_equal(tandem_session_destroy(&r->s), TANDEM_OK);
    listen_no_more(&r->vk, r->messenger);
    close_vulkan(&r->vk);
    assert_int_equal(r->h.messages, 0);
}

static void frame(frames_rig *r, uint64_t n)
{
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_TRANSFER_BIT;
    const VkFenceCreateInfo fence_info = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    tandem_job job = TANDEM_INIT(tandem_job,
                                 .operation = TANDEM_OPERATION_ATTENTION, .wait = {r->engines, n},
                                 .signal = {r->ours, n});
    tandem_attention *op = &job.op.attention;
    VkCommandBuffer a = vku_begin(&r->vk), b;
    tandem_ticket ticket;
    VkFence fence;

    *op = (tandem_attention){.batch = 1, .heads = 1, .kv_heads = 1, .q_len = ROWS, .kv_len = ROWS, .head_dim = DIM};
    op->q = tandem_view_dense(r->mem, 0, TANDEM_DTYPE_F32, 1, ROWS, DIM);
    op->k = tandem_view_dense(r->mem, VIEW_BYTES, TANDEM_DTYPE_F32, 1, ROWS, DIM);
    op->v = tandem_view_dense(r->mem, 2 * VIEW_BYTES, TANDEM_DTYPE_F32, 1, ROWS, DIM);
    op->o = tandem_view_dense(r->mem, 3 * VIEW_BYTES, TANDEM_DTYPE_F32, 1, ROWS, DIM);
    assert_int_equal(r->vk.CreateFence(r->vk.device, &fence_info, NULL, &fence), VK_SUCCESS);
    assert_int_equal(tandem_record_release(r->s, a, r->mem, stage, VK_ACCESS_TRANSFER_WRITE_BIT), TANDEM_OK);
    assert_int_equal(vku_submit(&r->vk, a, (vku_point){0}, (vku_point){r->engines_semaphore, n}, VK_NULL_HANDLE),
                     VK_SUCCESS);
    assert_int_equal(tandem_timeline_submitted(r->s, r->engines, n), TANDEM_OK);
    assert_int_equal(tandem_submit(r->s, &job, &ticket), TANDEM_OK);
    b = vku_begin(&r->vk);
    assert_int_equal(tandem_record_acquire(r->s, b, r->mem, stage, VK_ACCESS_TRANSFER_READ_BIT), TANDEM_OK);
    assert_int_equal(vku_submit(&r->vk, b, (vku_point){r->ours_semaphore, n}, (vku_point){0}, fence), VK_SUCCESS);
    assert_int_equal(wait_for_b(r->s, job.signal, r->vk.device, fence), VK_SUCCESS);
    r->vk.DestroyFence(r->vk.device, fence, NULL);
    r->vk.FreeCommandBuffers(r->vk.device, r->vk.pool, 1, &a);
    r->vk.FreeCommandBuffers(r->vk.device, r->vk.pool, 1, &b);
}

/* The layer's stall is 10 s and its message: neither comes. */
static void test_fence_behind_point(void **state)
{
    frames_rig r;

    (void)state;
    open_frames(&r);
    for (uint64_t n = 1; n <= FRAMES; n++) {
        const uint64_t begin = td_now_ns();

        frame(&r, n);
        assert_true(td_now_ns() - begin < 9000000000u);
    }
    assert_int_equal(r.h.left_out, 0);
    close_frames(&r);
}

/* A timeline that a queue and the host signal in turns, rightly, and whose counter nobody asks for in between: all that the
 * layer says of it is left out. */
static void test_false_alarm(void **state)
{
    PFN_vkSignalSemaphore signal;
    frames_rig r;

    (void)state;
    open_frames(&r);
    r.vk.quiet = true;
    signal = (PFN_vkSignalSemaphore)r.vk.GetDeviceProcAddr(r.vk.device, "vkSignalSemaphore");
    for (uint64_t n = 1; n <= 8; n += 2) {
        assert_int_equal(vku_submit(&r.vk, VK_NULL_HANDLE, (vku_point){0}, (vku_point){r.engines_semaphore, n},
                                    VK_NULL_HANDLE),
                         VK_SUCCESS);
        usleep(20000); /* for a queue without work */
        assert_int_equal(signal(r.vk.device, &(VkSemaphoreSignalInfo){.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO,
                                                                      .semaphore = r.engines_semaphore,
                                                                      .value = n + 1}),
                         VK_SUCCESS);
    }
    assert_int_equal(r.vk.DeviceWaitIdle(r.vk.device), VK_SUCCESS);
    assert_int_equal(r.vk.errors + r.vk.false_alarms, r.h.left_out);
    r.vk.errors = 0;
    close_frames(&r);
}

enum { G_WIDTH = 5, G_HEIGHT = 3, G_TEXELS = G_WIDTH * G_HEIGHT };

static attachment new_attachment(vku *vk, VkFormat format, const void *texels, vku_image *image)
{
    const VkImageUsageFlags usage = VK_IMAGE_USAGE_SAMPLED_BIT | VK_IMAGE_USAGE_COLOR_ATTACHMENT_BIT;

    assert_int_equal(vku_image_create(vk, format, G_WIDTH, G_HEIGHT, usage, image), VK_SUCCESS);
    assert_int_equal(vku_image_upload(vk, image, texels, VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL), VK_SUCCESS);
    return (attachment){image->image, image->view, format, {G_WIDTH, G_HEIGHT}};
}

/* White, and all normals along x. */
static void test_g_buffer(void **state)
{
    const tandem_mem_desc mem_desc = TANDEM_INIT(tandem_mem_desc, .bytes = G_TEXELS * 6 * 2);
    unsigned char white[G_TEXELS][4];
    _Float16 along_x[G_TEXELS][2], *tensor;
    attachment albedo, normal;
    tandem_vulkan vulkan;
    tandem_session_desc desc = TANDEM_INIT(tandem_session_desc, .backend = TANDEM_BACKEND_CPU, .vulkan = &vulkan);
    tandem_session *s;
    tandem_mem mem;
    vku_image images[2];
    VkCommandBuffer commands;
    void *host;
    vku vk;

    (void)state;
    open_vulkan(&vk);
    vulkan = describe(&vk, vk.device, &vk.enabled.features);
    assert_int_equal(tandem_session_create(&desc, &s), TANDEM_OK);
    assert_int_equal(tandem_mem_create(s, &mem_desc, &mem), TANDEM_OK);
    memset(white, 255, sizeof white);
    for (int i = 0; i < G_TEXELS; i++) {
        along_x[i][0] = 1;
        along_x[i][1] = 0;
    }
    albedo = new_attachment(&vk, VK_FORMAT_R8G8B8A8_UNORM, white, &images[0]);
    normal = new_attachment(&vk, VK_FORMAT_R16G16_SFLOAT, along_x, &images[1]);
    commands = vku_begin(&vk);
    assert_int_equal(pack_g_buffer(s, commands, &albedo, &normal, mem), TANDEM_OK);
    assert_int_equal(
        tandem_record_release(s, commands, mem, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT), TANDEM_OK);
    assert_int_equal(vku_run(&vk, commands), VK_SUCCESS);
    assert_int_equal(tandem_mem_host(s, mem, &host), TANDEM_OK);
    tensor = host;
    for (int i = 0; i < G_TEXELS; i++)
        for (int c = 0; c < 6; c++)
            assert_true(tensor[6 * i + c] == (c < 4 ? 1 : 0));
    for (int i = 0; i < 2; i++)
        vku_image_destroy(&vk, &images[i]);
    assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
    close_vulkan(&vk);
}

/* Once: the file, an instance of it, and what its runs need for so many rows. */
static tandem_status open_network(tandem_session *session, const char *path, uint32_t rows, tandem_model *model,
                                  tandem_instance *instance)
{
    const tandem_instance_desc desc = TANDEM_INIT(tandem_instance_desc);
    tandem_status status = tandem_model_load(session, path, model);

    if (status == TANDEM_OK)
        status = tandem_model_instance(session, *model, &desc, instance);
    return status == TANDEM_OK ? tandem_model_prepare(session, *instance, &rows, 1) : status;
}

/* Each frame: its input and two outputs, and a uniform. */
static tandem_status run_network(tandem_session *session, tandem_instance instance, const tandem_view bindings[3],
                                 uint32_t rows, int32_t length, tandem_point wait, tandem_point signal,
                                 tandem_ticket *ticket)
{
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_RUN, .wait = wait, .signal = signal);

    job.op.run = (tandem_run){.instance = instance,
                              .bindings = bindings,
                              .binding_count = 3,
                              .numbers = &rows,
                              .number_count = 1,
                              .uniforms = &length,
                              .uniform_bytes = sizeof length};
    return tandem_submit(session, &job, ticket);
}

static void test_network(void **state)
{
    enum { NET_ROWS = 2, FLOATS = NET_ROWS * NETWORK_CHANNELS };
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc, .backend = TANDEM_BACKEND_CPU);
    const tandem_mem_desc mem_desc = TANDEM_INIT(tandem_mem_desc, .bytes = 3 * FLOATS * sizeof(float));
    tandem_view views[NETWORK_BINDINGS];
    tandem_session *s;
    tandem_model model;
    tandem_instance instance;
    tandem_ticket ticket;
    tandem_mem mem;
    void *host;

    (void)state;
    assert_int_equal(tandem_session_create(&desc, &s), TANDEM_OK);
    assert_int_equal(open_network(s, network_file(network_text), NET_ROWS, &model, &instance), TANDEM_OK);
    assert_int_equal(tandem_mem_create(s, &mem_desc, &mem), TANDEM_OK);
    assert_int_equal(tandem_mem_host(s, mem, &host), TANDEM_OK);
    for (int i = 0; i < FLOATS; i++)
        ((float *)host)[i] = 1;
    for (uint32_t i = 0; i < NETWORK_BINDINGS; i++)
        views[i] = (tandem_view){
            .mem = mem, .offset_bytes = i * FLOATS * sizeof(float), .dtype = TANDEM_DTYPE_F32};
    for (int i = 1; i <= 3; i++) {
        assert_int_equal(
            run_network(s, instance, views, NET_ROWS, 1, (tandem_point){0}, (tandem_point){0}, &ticket), TANDEM_OK);
        assert_int_equal(tandem_wait(s, ticket, 10000000000u, NULL), TANDEM_OK);
        assert_true(((float *)host)[2 * FLOATS] == (float)i);
    }
    assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
    network_file_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_features_by_name),
        cmocka_unit_test(test_features_by_size),
        cmocka_unit_test(test_g_buffer),
        cmocka_unit_test(test_fence_behind_point),
        cmocka_unit_test(test_false_alarm),
        cmocka_unit_test(test_network),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
