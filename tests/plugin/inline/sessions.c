/* Sessions: memory from elsewhere, what keeps them from the rung, and devices that are lost.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/limits.h"
#include "tests/plugin/inline/rig.h"

/* Memory from elsewhere, and weights. */
static void test_memory(void **state)
{
    static const char header[] = "{\"k\":{\"dtype\":\"F32\",\"shape\":[1,1,64,32],\"data_offsets\":[0,8192]}}";
    const VkMemoryAllocateFlagsInfo address = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                               .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    const VkExportMemoryAllocateInfo export = {.sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO,
                                               .pNext = &address,
                                               .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    const VkExternalMemoryBufferCreateInfo shared = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                                                     .handleTypes = export.handleTypes};
    VkMemoryDedicatedAllocateInfo dedicated = {.sType = VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO};
    VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                 .pNext = td_vk_get_caps(vk)->export_memory ? (const void *)&export : &address,
                                 .allocationSize = 1 << 20};
    tandem_mem_desc desc = {.struct_bytes = sizeof desc, .fd = -1};
    char path[] = "/tmp/tandem-inline-XXXXXX";
    const uint64_t header_bytes = sizeof header - 1;
    const VkBufferCreateInfo buffer_info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                            .pNext = td_vk_get_caps(vk)->export_memory ? &shared : NULL,
                                            .size = 65536 + sizeof(frame_data),
                                            .usage = STORAGE | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT};
    VkDeviceMemory memory = VK_NULL_HANDLE, whole = VK_NULL_HANDLE;
    VkMemoryRequirements needs;
    VkBuffer buffer;
    tandem_model model = 0;
    tandem_mem engines, alone, host, mems[3];
    uint64_t shape[4];
    tandem_view k;
    frame_data *data;
    void *pages = NULL;
    FILE *file;

    (void)state;
    enter();
    for (uint32_t i = 0; i < gpu.memory.memoryTypeCount && !memory; i++) {
        info.memoryTypeIndex = i;
        if (gpu.memory.memoryTypes[i].propertyFlags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)
            assert_int_equal(gpu.AllocateMemory(gpu.device, &info, NULL, &memory), VK_SUCCESS);
    }
    desc.source = TANDEM_MEM_VULKAN;
    desc.vulkan_memory = (uint64_t)(uintptr_t)memory;
    desc.allocation_bytes = info.allocationSize;
    desc.offset_bytes = 65536;
    desc.bytes = sizeof(frame_data);
    desc.dedicated = 1;
    assert_int_equal(tandem_mem_create(w.s, &desc, &engines), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(w.log, "found by a VkBuffer's address"));
    desc.dedicated = 0;
    OK(tandem_mem_create(w.s, &desc, &engines));
    /* Dedicated to a buffer of the engine's, which the session uses then. */
    assert_int_equal(gpu.CreateBuffer(gpu.device, &buffer_info, NULL, &buffer), VK_SUCCESS);
    gpu.GetBufferMemoryRequirements(gpu.device, buffer, &needs);
    dedicated.buffer = buffer;
    dedicated.pNext = info.pNext;
    info.pNext = &dedicated;
    info.allocationSize = desc.allocation_bytes = needs.size;
    assert_int_equal(gpu.AllocateMemory(gpu.device, &info, NULL, &whole), VK_SUCCESS);
    assert_int_equal(gpu.BindBufferMemory(gpu.device, buffer, whole, 0), VK_SUCCESS);
    desc.vulkan_memory = (uint64_t)(uintptr_t)whole;
    desc.vulkan_buffer = (uint64_t)(uintptr_t)buffer;
    desc.dedicated = 1;
    OK(tandem_mem_create(w.s, &desc, &alone));
    assert_int_equal(posix_memalign(&pages, 65536, 65536), 0);
    data = pages;
    OK(tandem_mem_create(w.s,
                         &(tandem_mem_desc){.struct_bytes = sizeof desc, .source = TANDEM_MEM_HOST, .host = pages,
                                            .bytes = 65536, .fd = -1},
                         &host));
    mems[0] = w.flights[0].mem;
    mems[1] = engines;
    mems[2] = alone;
    for (int i = 0; i < 3; i++) {
        flight *f = &w.flights[0];
        const tandem_job job = job_on(mems[i]);

        f->mem = mems[i];
        f->engines = buffer;
        fill(f, 5 + (uint64_t)i);
        for (int j = 0; j < 3; j++)
            begin_commands(f->commands[j]);
        record_copies(f, f->commands[0], NULL, true);
        OK(tandem_record(w.s, &job, f->commands[1], &f->ticket));
        record_copies(f, NULL, f->commands[2], false);
        for (int j = 0; j < 3; j++)
            assert_int_equal(gpu.EndCommandBuffer(f->commands[j]), VK_SUCCESS);
        submit_flight(f, 0, 3, (vku_point){0}, (vku_point){0}, f->fence);
        wait_flight(f);
        check_flight(f, (uint64_t)i);
    }
    /* K and V are a model's, Q and O in the host's memory */
    fill(&w.flights[0], 42);
    memcpy(data, w.flights[0].in.host, sizeof *data);
    memcpy(data->v, data->k, sizeof data->v);
    file = fdopen(mkstemp(path), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&header_bytes, 8, 1, file), 1);
    assert_int_equal(fwrite(header, header_bytes, 1, file), 1);
    assert_int_equal(fwrite(data->k, sizeof data->k, 1, file), 1);
    assert_int_equal(fclose(file), 0);
    OK(tandem_model_load(w.s, path, &model));
    remove(path);
    OK(tandem_model_tensor(w.s, model, "k", &k, shape));
    {
        tandem_job job = job_on(host);
        static double o[ELEMENTS];

        td_ref_attention(&job.op.attention, data->q, data->k, data->v, o, NULL);
        job.op.attention.k = job.op.attention.v = k;
        OK(tandem_submit(w.s, &job, &w.flights[0].ticket));
        OK(tandem_wait(w.s, w.flights[0].ticket, LIMIT_NS, NULL));
        check_done(&w.flights[0]);
        for (size_t i = 0; i < ELEMENTS; i++)
            assert_true(fabs((double)data->o[i] - o[i]) < 0.02);
    }
    OK(tandem_model_destroy(w.s, model));
    OK(tandem_mem_destroy(w.s, engines));
    OK(tandem_mem_destroy(w.s, alone));
    OK(tandem_mem_destroy(w.s, host));
    w.flights[0].mem = mems[0];
    leave();
    free(pages);
    gpu.FreeMemory(gpu.device, memory, NULL);
    gpu.DestroyBuffer(gpu.device, buffer, NULL);
    gpu.FreeMemory(gpu.device, whole, NULL);
}

/* What keeps a session from the rung, and what it says about it. */
static void demoted(vku *on, bool queue, const char *reason)
{
    memset(&w, 0, sizeof w);
    assert_int_equal(create_session(on, TANDEM_RUNG_INLINE, queue), TANDEM_ERROR_UNSUPPORTED);
    if (!strstr(w.text, reason))
        fail_msg("'%s' does not say '%s'", w.text, reason);
    if (!F.real)
        return; /* there is no rung below with CUDA */
    assert_int_equal(create_session(on, 0, queue), TANDEM_OK);
    assert_int_equal(w.info.rung, TANDEM_RUNG_TIMELINE);
    if (!strstr(w.info.rung_reason, reason) || !strstr(w.info.rung_reason, "inline"))
        fail_msg("'%s' does not say '%s'", w.info.rung_reason, reason);
    OK(tandem_session_destroy(&w.s));
}

static void test_demotion(void **state)
{
    const vku_options options = {.wrap = fake_nvx_wrap, .without = {"VK_NVX_binary_import"}},
                      no_address = {.wrap = fake_nvx_wrap, .without = {"bufferDeviceAddress"}};
    static vku other;
    tandem_ticket ticket;
    tandem_job job;

    (void)state;
    demoted(&gpu, false, "no queue");
    F.skip_launch = 7;
    memset(&w, 0, sizeof w);
    assert_int_equal(create_session(&gpu, TANDEM_RUNG_INLINE, true), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(w.text, "wrong data"));
    F.skip_launch = 0;
    /* on any other rung nothing can be recorded */
    assert_int_equal(create_session(&gpu, F.real ? TANDEM_RUNG_TIMELINE : TANDEM_RUNG_CPU, true), TANDEM_OK);
    job = job_on(1);
    assert_int_equal(tandem_record(w.s, &job, (VkCommandBuffer)(uintptr_t)&w, &ticket), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(w.log, "not on the inline rung"));
    OK(tandem_session_destroy(&w.s));
    assert_int_equal(vku_open(&other, &options), VKU_OK);
    demoted(&other, true, "VK_NVX_binary_import is not enabled");
    vku_close(&other);
    assert_int_equal(vku_open(&other, &no_address), VKU_OK);
    demoted(&other, true, "bufferDeviceAddress");
    vku_close(&other);
}

/* The engine waits for a point whose job was refused. (A job behind that wait would need a GPU: the fake one runs kernels
 * as they are submitted.) */
static void test_refused_point(void **state)
{
    tandem_ticket ticket;
    tandem_job job;
    uint64_t begin;

    (void)state;
    enter();
    job = job_on(w.flights[0].mem);
    job.signal = (tandem_point){w.ours, 1};
    job.op.attention.head_dim = 33;
    assert_int_equal(tandem_submit(w.s, &job, &ticket), TANDEM_ERROR_ARG);
    assert_int_equal(vku_submit(&gpu, VK_NULL_HANDLE, (vku_point){w.our_semaphore, 1}, (vku_point){0}, w.flights[0].fence),
                     VK_SUCCESS);
    begin = td_now_ns();
    limits_begin(60);
    OK(tandem_session_destroy(&w.s));
    limits_end();
    assert_true(td_now_ns() - begin < 6000000000u);
    assert_int_equal(gpu.WaitForFences(gpu.device, 1, &w.flights[0].fence, VK_TRUE, 6000000000u), VK_SUCCESS);
    OK(create_session(&gpu, 0, true)); /* for leave() to destroy */
    leave();
}

/* The device is gone: everything ends, and says so. */
static void test_lost(void **state)
{
    tandem_ticket recorded, ticket;
    tandem_job job;

    (void)state;
    enter();
    job = job_on(w.flights[0].mem);
    begin_commands(w.flights[0].commands[0]);
    OK(tandem_record(w.s, &job, w.flights[0].commands[0], &recorded));
    assert_int_equal(gpu.EndCommandBuffer(w.flights[0].commands[0]), VK_SUCCESS);
    F.fail_call = "vkQueueSubmit";
    F.fail_at = 1;
    F.failure = VK_ERROR_DEVICE_LOST;
    assert_int_equal(tandem_submit(w.s, &job, &ticket), TANDEM_ERROR_LOST);
    F.fail_call = NULL;
    assert_int_equal(tandem_submit(w.s, &job, &ticket), TANDEM_ERROR_LOST);
    assert_int_equal(tandem_record(w.s, &job, w.flights[0].commands[0], &ticket), TANDEM_ERROR_LOST);
    assert_int_equal(report_of(recorded).state, TANDEM_JOB_FAILED);
    leave();
}

/* An engine that only records learns of it, too. */
static void test_lost_while_recorded(void **state)
{
    tandem_job_report report = {.struct_bytes = sizeof report};
    tandem_ticket recorded, ticket;
    tandem_job job;

    (void)state;
    enter();
    job = job_on(w.flights[0].mem);
    begin_commands(w.flights[0].commands[0]);
    OK(tandem_record(w.s, &job, w.flights[0].commands[0], &recorded));
    assert_int_equal(gpu.EndCommandBuffer(w.flights[0].commands[0]), VK_SUCCESS);
    assert_int_equal(tandem_wait(w.s, recorded, 250000000, &report), TANDEM_ERROR_BUSY); /* the device is well */
    F.fail_call = "vkGetSemaphoreCounterValue";
    F.fail_at = 1;
    F.failure = VK_ERROR_DEVICE_LOST;
    OK(tandem_wait(w.s, recorded, LIMIT_NS, &report));
    assert_int_equal(report.state, TANDEM_JOB_FAILED);
    assert_int_equal(report.status, TANDEM_ERROR_LOST);
    F.fail_call = NULL;
    assert_int_equal(tandem_record(w.s, &job, w.flights[0].commands[0], &ticket), TANDEM_ERROR_LOST);
    leave();
}

/* Few keys and many tiles: into how many blocks those go depends on how many multiprocessors have them. */
static void test_multiprocessors(void **state)
{
    enum { HEADS = 64, Q = 2048, KEYS = 64, D = 64, Q_BYTES = HEADS * Q * D * 2, K_BYTES = HEADS * KEYS * D * 2 };
    static const struct {
        uint32_t multiprocessors, blocks; /* of 704 tiles: two each where turns are no more by that */
    } cases[] = {{58, 704}, {78, 352}, {114, 704}, {132, 352}, {144, 704}};
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
    tandem_attention *op = &job.op.attention;

    (void)state;
    if (F.real)
        return; /* it has as many as it has */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tandem_ticket ticket;

        F.multiprocessors = cases[i].multiprocessors;
        enter();
        const tandem_mem mem = new_mem(2 * Q_BYTES + 2 * K_BYTES);
        *op = (tandem_attention){.batch = 1, .heads = HEADS, .kv_heads = HEADS, .q_len = Q, .kv_len = KEYS, .head_dim = D,
                                 .precision = TANDEM_PRECISION_F16};
        op->q = tandem_view_dense(mem, 0, TANDEM_DTYPE_F16, HEADS, Q, D);
        op->o = tandem_view_dense(mem, Q_BYTES, TANDEM_DTYPE_F16, HEADS, Q, D);
        op->k = tandem_view_dense(mem, 2 * Q_BYTES, TANDEM_DTYPE_F16, HEADS, KEYS, D);
        op->v = tandem_view_dense(mem, 2 * Q_BYTES + K_BYTES, TANDEM_DTYPE_F16, HEADS, KEYS, D);
        begin_commands(w.flights[0].commands[0]);
        OK(tandem_record(w.s, &job, w.flights[0].commands[0], &ticket));
        assert_int_equal(gpu.EndCommandBuffer(w.flights[0].commands[0]), VK_SUCCESS);
        assert_int_equal(F.attention_blocks, cases[i].blocks);
        leave();
    }
    F.multiprocessors = 0;
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_memory),
    cmocka_unit_test(test_multiprocessors),
    cmocka_unit_test(test_demotion),
    cmocka_unit_test(test_refused_point),
    cmocka_unit_test(test_lost),
    cmocka_unit_test(test_lost_while_recorded),
};
const test_cases inline_sessions_cases = TEST_CASES(cases);
