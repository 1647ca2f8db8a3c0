/* Pitfalls of barriers, the engine's queue, other processes, priorities, sizes that lie, and of waiting.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_plugin/exec/exec.h"
#include "tests/plugin/daemon_util.h"
#include "tests/plugin/pitfalls/rig.h"

static void record_both(fault_barrier *release, fault_barrier *acquire)
{
    const tandem_mem mem = new_mem(4096);
    VkCommandBuffer commands = vku_begin(&w.vk);
    tandem_mem_vulkan vulkan = {.struct_bytes = sizeof vulkan};

    assert_int_equal(tandem_mem_get_vulkan(w.s, mem, &vulkan), TANDEM_OK);
    forget();
    assert_int_equal(tandem_record_release(w.s, commands, mem, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                                           VK_ACCESS_SHADER_WRITE_BIT),
                     TANDEM_OK);
    assert_int_equal(tandem_record_acquire(w.s, commands, mem, VK_PIPELINE_STAGE_VERTEX_SHADER_BIT,
                                           VK_ACCESS_SHADER_READ_BIT),
                     TANDEM_OK);
    assert_int_equal(count_of("vkCmdPipelineBarrier"), 2);
    *release = event_of("vkCmdPipelineBarrier", 0)->barrier;
    *acquire = event_of("vkCmdPipelineBarrier", 1)->barrier;
    for (int i = 0; i < 2; i++) {
        const VkBufferMemoryBarrier *b = i ? &acquire->buffer : &release->buffer;

        assert_true(b->buffer == vulkan.buffer && b->offset == 0 && b->size == VK_WHOLE_SIZE);
    }
    w.vk.EndCommandBuffer(commands);
    w.vk.FreeCommandBuffers(w.vk.device, w.vk.pool, 1, &commands);
}

static void pitfall_23(void **state)
{
    fault_barrier release, acquire;

    (void)state;
    enter(ON_TIMELINES);
    forget();
    record_both(&release, &acquire);
    assert_int_equal(release.buffer.srcQueueFamilyIndex, w.vk.queue_family);
    assert_int_equal(release.buffer.dstQueueFamilyIndex, VK_QUEUE_FAMILY_EXTERNAL);
    assert_int_equal(acquire.buffer.srcQueueFamilyIndex, VK_QUEUE_FAMILY_EXTERNAL);
    assert_int_equal(acquire.buffer.dstQueueFamilyIndex, w.vk.queue_family);
    forget();
    new_mem(4096);
    assert_int_equal(event_of("vkCreateBuffer", 0)->flags, VK_SHARING_MODE_EXCLUSIVE);
    leave();

    /* The CPU is no other owner: its accesses are the host's. */
    enter(ON_VULKAN_CPU);
    record_both(&release, &acquire);
    assert_int_equal(release.buffer.srcQueueFamilyIndex, VK_QUEUE_FAMILY_IGNORED);
    assert_int_equal(release.buffer.dstQueueFamilyIndex, VK_QUEUE_FAMILY_IGNORED);
    assert_int_equal(acquire.buffer.srcQueueFamilyIndex, VK_QUEUE_FAMILY_IGNORED);
    assert_int_equal(acquire.buffer.dstQueueFamilyIndex, VK_QUEUE_FAMILY_IGNORED);
    leave();
}

static void pitfall_24(void **state)
{
    fault_barrier release, acquire;

    (void)state;
    enter(ON_TIMELINES);
    record_both(&release, &acquire);
    assert_int_equal(release.src_stage, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT);
    assert_int_equal(release.buffer.srcAccessMask, VK_ACCESS_SHADER_WRITE_BIT);
    assert_int_equal(acquire.dst_stage, VK_PIPELINE_STAGE_VERTEX_SHADER_BIT); /* where it is read, and nowhere else */
    assert_int_equal(acquire.buffer.dstAccessMask, VK_ACCESS_SHADER_READ_BIT);
    assert_true(acquire.src_stage & VK_PIPELINE_STAGE_VERTEX_SHADER_BIT); /* chained to the submit's wait */
    leave();

    enter(ON_VULKAN_CPU);
    record_both(&release, &acquire);
    assert_true(release.dst_stage & VK_PIPELINE_STAGE_HOST_BIT);
    assert_true(release.buffer.dstAccessMask & VK_ACCESS_HOST_READ_BIT);
    assert_true(acquire.src_stage & VK_PIPELINE_STAGE_HOST_BIT);
    assert_int_equal(acquire.buffer.srcAccessMask, VK_ACCESS_HOST_WRITE_BIT);
    assert_int_equal(acquire.dst_stage, VK_PIPELINE_STAGE_VERTEX_SHADER_BIT);
    leave();
}

/* The engine's queue is the engine's alone. */
static void pitfall_25(void **state)
{
    static const ground grounds[] = {ON_VULKAN_CPU, ON_TIMELINES};

    (void)state;
    for (int i = 0; i < 2; i++) {
        tandem_timeline engines, ours;

        w.locked = 0;
        enter(grounds[i]);
        engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
        ours = new_timeline(TANDEM_SIGNALLER_SESSION);
        run_frame(new_mem(MEM_BYTES), engines, ours, 1);
        assert_int_equal(w.locked, 0); /* nothing was to be done on it */
        assert_int_equal(count_of("vkQueueSubmit"), 0);
        assert_false(fault_looked_up("vkGetDeviceQueue"));
        assert_false(fault_looked_up("WaitIdle"));
        leave();
    }
}

static void without(ground on, tandem_rung rung, const char *requirement)
{
    w.options = (vku_options){.without = {requirement}};
    if (!prepare(on))
        skip();
    w.desc.rung = rung;
    assert_int_equal(create(), TANDEM_ERROR_UNSUPPORTED);
    if (!strstr(w.text, requirement))
        fail_msg("without %s: %s", requirement, w.text);
    leave();
}

static void pitfall_26(void **state)
{
    static const char *const needed[] = {"VK_KHR_external_memory_fd", "VK_KHR_external_semaphore_fd",
                                         "VK_EXT_external_memory_host", "VK_KHR_push_descriptor", "timelineSemaphore"};
    tandem_requirement list[32] = {{.struct_bytes = sizeof *list}};
    uint32_t count = 32;

    (void)state;
    enter(ON_VULKAN_CPU);
    assert_int_equal(
        tandem_vulkan_requirements(w.vk.gipa, w.vk.instance, w.vk.physical_device, &count, list), TANDEM_OK);
    for (size_t n = 0; n < sizeof needed / sizeof *needed; n++) {
        bool listed = false;

        for (uint32_t i = 0; i < count; i++)
            listed = listed || (!strcmp(list[i].name, needed[n]) && list[i].buys && list[i].buys[0]);
        if (!listed)
            fail_msg("%s is not among the requirements", needed[n]);
    }
    leave();
    /* What was not enabled is named. */
    without(ON_VULKAN_CPU, TANDEM_RUNG_CPU, "VK_EXT_external_memory_host");
    without(ON_TIMELINES, TANDEM_RUNG_HOST, "VK_KHR_external_memory_fd");
    without(ON_TIMELINES, TANDEM_RUNG_TIMELINE, "timelineSemaphore");
}

static unsigned count_cuda_calls(void)
{
    unsigned count = 0;

    pthread_mutex_lock(&seen.lock);
    for (unsigned i = 0; i < seen.count; i++)
        count += !strncmp(seen.list[i].call, "cu", 2);
    pthread_mutex_unlock(&seen.lock);
    return count;
}

static unsigned count_workers(const char *log_path)
{
    FILE *file = fopen(log_path, "r");
    unsigned count = 0;
    char line[1000];

    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        count += strstr(line, "worker (process ") && strstr(line, "computes on");
    fclose(file);
    return count;
}

/* Processes with a CUDA context each have the GPU in turns: of engines that share it by tandemd only the worker has one,
 * the same for all. An engine alone has the primary context, with nothing of what CIG forbids. */
static void pitfall_27(void **state)
{
    static const char *const not_used[] = {"cuCtxCreate", "cuGreenCtx", "cuMemCreate", "cuMemAllocAsync", "cuMemPool"};
    static const char *const files[] = {"socket", "socket.lock", "config", "log"};
    char folder[] = "/tmp/tandem-pitfalls-XXXXXX", program[4096], paths[4][64];
    const char *build = getenv("TANDEM_BUILD");
    tandem_session *sessions[2];
    pid_t daemon;
    int opened;

    (void)state;
    enter(ON_CUDA);
    assert_int_equal(count_of("cuDevicePrimaryCtxRetain"), 1);
    leave();
    for (size_t i = 0; i < sizeof not_used / sizeof *not_used; i++)
        if (fault_looked_up(not_used[i]))
            fail_msg("%s was asked for", not_used[i]);

    assert_non_null(build);
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 4; i++)
        snprintf(paths[i], sizeof paths[i], "%s/%s", folder, files[i]);
    snprintf(program, sizeof program, "%s/tandemd", build);
    assert_true(prepare(ON_CUDA));
    w.desc.backend = w.gpu ? TANDEM_BACKEND_CUDA : TANDEM_BACKEND_AUTO;
    w.desc.socket = paths[0];
    daemon = begin_daemon(program, paths[0], paths[2], w.gpu ? "" : "backend = cpu\n", paths[3]);
    opened = fault_cuda_opened();
    for (int i = 0; i < 2; i++) {
        if (create() != TANDEM_OK)
            fail_msg("no session: %s", w.text);
        run_frame(new_mem(MEM_BYTES), new_timeline(TANDEM_SIGNALLER_ENGINE), new_timeline(TANDEM_SIGNALLER_SESSION), 1);
        sessions[i] = w.s;
    }
    assert_int_equal(fault_cuda_opened(), opened);
    assert_int_equal(count_cuda_calls(), 0);
    assert_int_equal(count_workers(paths[3]), 1);
    for (int i = 0; i < 2; i++)
        assert_int_equal(tandem_session_destroy(&sessions[i]), TANDEM_OK);
    w.s = NULL;
    end_daemon_by(&daemon, SIGTERM);
    leave();
    for (int i = 0; i < 4; i++)
        unlink(paths[i]);
    assert_int_equal(rmdir(folder), 0);
}

/* Priorities are a hint: a session alone asks for none, tandemd's streams do, and do without where the driver has none. */
static void pitfall_28(void **state)
{
    (void)state;
    enter(ON_TIMELINES);
    assert_int_equal(count_of("cuStreamCreateWithPriority"), 0);
    for (int lacks = 0; lacks < 2; lacks++) {
        const fault_plan faults = {
            .kinds = FAULT_CUDA_LOOKUP, .call = "cuStreamCreateWithPriority", .n = 1, .sticky = true};
        const unsigned before = count_of("cuStreamCreateWithPriority");
        td_cu_device *device = NULL;
        td_stream *stream = NULL;
        char why[200] = "";

        if (lacks)
            fault_arm(&faults);
        assert_int_equal(td_cu_device_open(NULL, NULL, &device, why, sizeof why), TANDEM_OK);
        td_cu_device_urgency(device, TD_CU_SOON);
        if (td_stream_create(device, NULL, &stream, why, sizeof why) != TANDEM_OK)
            fail_msg("%s", why);
        if (lacks)
            fault_disarm();
        assert_int_equal(count_of("cuStreamCreateWithPriority") > before, !lacks);
        td_stream_destroy(&stream, 1000000000u);
        td_cu_device_close(&device);
    }
    leave();
}

/* Sizes that lie, and what a mem holds before its first use. */
static void pitfall_31(void **state)
{
    static const ground grounds[] = {ON_HOST, ON_VULKAN_CPU};
    static const struct {
        uint64_t bytes, allocation, offset;
    } lies[] = {{8192, 4096, 0},          {4096, 4096, 1},           {4096, 0, 0},
                {4096, 65536, 65536},     {4096, 65536, UINT64_MAX}, {UINT64_MAX, UINT64_MAX, 0},
                {4096, UINT64_MAX, 4096}, {0, 65536, 0}};
    VkMemoryGetFdInfoKHR info = {.sType = VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR,
                                 .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    tandem_mem_desc desc = {.struct_bytes = sizeof desc, .source = TANDEM_MEM_FD};
    tandem_mem_vulkan vulkan = {.struct_bytes = sizeof vulkan};
    tandem_mem mem;
    int fds;

    (void)state;
    for (int g = 0; g < 2; g++) {
        enter(grounds[g]);
        for (int twice = 0; twice < 2; twice++) {
            void *host;

            mem = new_mem(MEM_BYTES);
            assert_int_equal(tandem_mem_host(w.s, mem, &host), TANDEM_OK);
            for (size_t i = 0; i < MEM_BYTES; i++)
                assert_int_equal(((const char *)host)[i], 0);
            memset(host, 0x5a, MEM_BYTES);
            assert_int_equal(tandem_mem_destroy(w.s, mem), TANDEM_OK);
        }
        leave();
    }

    enter(ON_TIMELINES);
    assert_int_equal(tandem_mem_get_vulkan(w.s, new_mem(65536), &vulkan), TANDEM_OK);
    info.memory = vulkan.memory;
    assert_int_equal(fault_get_memory_fd()(w.vk.device, &info, &desc.fd), VK_SUCCESS);
    fds = vku_open_fds();
    forget();
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        /* The size of the allocation itself can be checked only where its fd has one. */
        if (lies[i].allocation == UINT64_MAX && lies[i].bytes == 4096 && w.gpu)
            continue;
        desc.bytes = lies[i].bytes;
        desc.allocation_bytes = lies[i].allocation;
        desc.offset_bytes = lies[i].offset;
        if (tandem_mem_create(w.s, &desc, &mem) != TANDEM_ERROR_ARG)
            fail_msg("lie %zu is believed", i);
    }
    assert_int_equal(count_of("cuImportExternalMemory"), 0); /* none got as far as a driver */
    assert_int_equal(vku_open_fds(), fds);
    td_fd_close(&desc.fd);
    leave();
}

/* vkWaitSemaphores takes 10 ms to see a value that CUDA signals: the host never sleeps in it. */
static void pitfall_34(void **state)
{
    tandem_timeline engines, ours;

    (void)state;
    enter(ON_TIMELINES);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    run_frame(new_mem(MEM_BYTES), engines, ours, 1);
    assert_int_equal(count_of("vkWaitSemaphores"), 0);
    leave();
}

/* Buffers of a session whose mems several families use are all of theirs: releases and acquires name none, and those of images
 * the one that they are recorded for. */
static void several_families(void **state)
{
    static const ground grounds[] = {ON_TIMELINES, ON_VULKAN_CPU};
    const uint32_t other = 1;
    fault_barrier release, acquire;

    (void)state;
    for (int i = 0; i < 2; i++) {
        const event *made;

        w.two_families = true;
        if (!prepare_fake(grounds[i]))
            skip();
        w.vulkan.further_families = &other;
        w.vulkan.further_family_count = 1;
        assert_int_equal(create(), TANDEM_OK);
        record_both(&release, &acquire);
        assert_int_equal(release.buffer.srcQueueFamilyIndex, VK_QUEUE_FAMILY_IGNORED);
        assert_int_equal(acquire.buffer.dstQueueFamilyIndex, VK_QUEUE_FAMILY_IGNORED);
        assert_int_equal(release.buffer.dstQueueFamilyIndex, i ? VK_QUEUE_FAMILY_IGNORED : VK_QUEUE_FAMILY_EXTERNAL);
        assert_int_equal(acquire.buffer.srcQueueFamilyIndex, i ? VK_QUEUE_FAMILY_IGNORED : VK_QUEUE_FAMILY_EXTERNAL);
        forget();
        new_mem(4096);
        made = event_of("vkCreateBuffer", 0);
        assert_int_equal(made->flags, VK_SHARING_MODE_CONCURRENT);
        assert_int_equal(made->family_count, 2);
        assert_int_equal(made->families[0], w.vk.queue_family);
        assert_int_equal(made->families[1], other);
        leave();
    }
}

static void wrong_family(const uint32_t *families, uint32_t count, const char *text)
{
    w.two_families = true;
    if (!prepare_fake(ON_VULKAN_CPU))
        skip();
    w.vulkan.further_families = families;
    w.vulkan.further_family_count = count;
    assert_int_equal(create(), TANDEM_ERROR_ARG);
    if (!strstr(w.text, text))
        fail_msg("'%s' is not in '%s'", text, w.text);
    leave();
}

static void wrong_families(void **state)
{
    static const uint32_t families[] = {1, 1, 99, 0};

    (void)state;
    wrong_family(NULL, 1, "further_families is NULL, further_family_count is 1");
    wrong_family(families, 16, "further_family_count is 16, more than 15");
    wrong_family(families, 2, "further_families[1] is 1, which was named before");
    wrong_family(families + 2, 1, "further_families[0] is 99, the device has ");
    wrong_family(families + 3, 1, "further_families[0] is 0, which was named before");
}

static void lock_by_place(void *user, uint32_t family, uint32_t index)
{
    assert_ptr_equal(user, &w);
    w.locked++;
    w.locked_family = family;
    w.locked_index = index;
}

static void no_lock(void *user)
{
    (void)user;
    fail_msg("the lock without a place was taken");
}

/* An engine with a lock for each queue is told which. */
static void locks_of_queues(void **state)
{
    tandem_timeline ours;

    (void)state;
    w.locked = 0;
    if (!prepare_fake(ON_VULKAN_CPU))
        skip();
    w.vulkan.lock_queue = w.vulkan.unlock_queue = no_lock;
    w.vulkan.lock_queue2 = lock_by_place;
    w.vulkan.queue_index = 3;
    w.vulkan.user = &w;
    assert_int_equal(create(), TANDEM_ERROR_ARG);
    assert_non_null(strstr(w.text, "desc.vulkan.unlock_queue2 is NULL, but its twin is not"));
    w.vulkan.unlock_queue2 = lock_by_place;
    assert_int_equal(create(), TANDEM_OK);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    assert_int_equal(tandem_timeline_destroy(w.s, ours), TANDEM_OK);
    assert_int_equal(w.locked, 2); /* the queue was asked how far it has come */
    assert_int_equal(w.locked_family, w.vk.queue_family);
    assert_int_equal(w.locked_index, 3);
    leave();
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(several_families),
    cmocka_unit_test(wrong_families),
    cmocka_unit_test(locks_of_queues),
#define X(n) cmocka_unit_test(pitfall_##n),
    PITFALLS_OF_QUEUES(X)
#undef X
};
const test_cases pitfalls_queues_cases = TEST_CASES(cases);
