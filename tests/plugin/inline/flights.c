/* Flights: what a frame in flight has of its own, and how it goes through a session.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/plugin/inline/rig.h"

world w;

static void on_log(void *user, int level, const char *text)
{
    (void)user;
    if (level == TANDEM_LOG_ERROR)
        snprintf(w.log, sizeof w.log, "%s", text);
}

static void lock_queue(void *user)
{
    assert_ptr_equal(user, &w);
    assert_int_equal(__atomic_fetch_add(&w.locked, 1, __ATOMIC_SEQ_CST), 0);
    __atomic_fetch_add(&w.locks, 1, __ATOMIC_SEQ_CST);
}

static void unlock_queue(void *user)
{
    (void)user;
    assert_int_equal(__atomic_fetch_sub(&w.locked, 1, __ATOMIC_SEQ_CST), 1);
}

static void lock_by_place(void *user, uint32_t family, uint32_t index)
{
    assert_int_equal(family, w.family);
    assert_int_equal(index, 0);
    lock_queue(user);
}

static void unlock_by_place(void *user, uint32_t family, uint32_t index)
{
    (void)family;
    (void)index;
    unlock_queue(user);
}

/* Every other one with the lock that is told which queue. */
tandem_status create_session(vku *on, uint32_t rung, bool queue)
{
    static unsigned sessions;
    const bool by_place = sessions++ % 2;
    tandem_vulkan vulkan = vku_engine(on);
    const tandem_session_desc desc = {.struct_bytes = sizeof desc,
                                      .vulkan = &vulkan,
                                      .log = on_log,
                                      .cpu_threads = 2,
                                      .timing = 1,
                                      .rung = rung,
                                      .frames_in_flight = FRAMES,
                                      .error_text = w.text,
                                      .error_text_bytes = sizeof w.text};
    tandem_status status;

    if (!queue)
        vulkan.queue = VK_NULL_HANDLE;
    vulkan.lock_queue = lock_queue;
    vulkan.unlock_queue = unlock_queue;
    vulkan.user = &w;
    if (by_place) {
        vulkan.lock_queue2 = lock_by_place;
        vulkan.unlock_queue2 = unlock_by_place;
    }
    w.family = on->queue_family;
    w.text[0] = w.log[0] = 0;
    w.s = NULL;
    status = tandem_session_create(&desc, &w.s);
    w.info.struct_bytes = sizeof w.info;
    if (w.s)
        assert_int_equal(tandem_session_info(w.s, &w.info), TANDEM_OK);
    return status;
}

tandem_mem new_mem(uint64_t bytes)
{
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = bytes, .fd = -1};
    tandem_mem mem = 0;

    OK(tandem_mem_create(w.s, &desc, &mem));
    return mem;
}

void enter(void)
{
    const tandem_timeline_desc engines = {.struct_bytes = sizeof engines, .signaller = TANDEM_SIGNALLER_ENGINE},
                               ours = {.struct_bytes = sizeof ours, .signaller = TANDEM_SIGNALLER_SESSION};
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                          .queueFamilyIndex = gpu.queue_family};
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};

    memset(&w, 0, sizeof w);
    if (create_session(&gpu, 0, true) != TANDEM_OK)
        fail_msg("%s", w.text);
    if (w.info.rung != TANDEM_RUNG_INLINE)
        fail_msg("rung %u: %s", w.info.rung, w.info.rung_reason);
    assert_string_equal(w.info.rung_reason, "");
    assert_int_equal(w.info.sm, sm);
    OK(tandem_timeline_create(w.s, &engines, &w.engines));
    OK(tandem_timeline_create(w.s, &ours, &w.ours));
    OK(tandem_timeline_get_vulkan(w.s, w.engines, &w.engines_semaphore));
    OK(tandem_timeline_get_vulkan(w.s, w.ours, &w.our_semaphore));
    for (int i = 0; i < FRAMES; i++) {
        flight *f = &w.flights[i];
        VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                            .commandBufferCount = 3};

        f->mem = new_mem(sizeof(frame_data));
        assert_int_equal(vku_buffer_create(&gpu, sizeof(frame_data), VK_BUFFER_USAGE_TRANSFER_SRC_BIT, &f->in), 0);
        assert_int_equal(vku_buffer_create(&gpu, sizeof(frame_data), VK_BUFFER_USAGE_TRANSFER_DST_BIT, &f->out), 0);
        assert_int_equal(gpu.CreateCommandPool(gpu.device, &pool, NULL, &f->pool), 0);
        info.commandPool = f->pool;
        assert_int_equal(gpu.AllocateCommandBuffers(gpu.device, &info, f->commands), 0);
        assert_int_equal(gpu.CreateFence(gpu.device, &fence, NULL, &f->fence), 0);
    }
}

void leave(void)
{
    gpu.DeviceWaitIdle(gpu.device);
    OK(tandem_session_destroy(&w.s));
    for (int i = 0; i < FRAMES; i++) {
        flight *f = &w.flights[i];

        vku_buffer_destroy(&gpu, &f->in);
        vku_buffer_destroy(&gpu, &f->out);
        if (f->pool)
            gpu.DestroyCommandPool(gpu.device, f->pool, NULL);
        if (f->fence)
            gpu.DestroyFence(gpu.device, f->fence, NULL);
    }
    assert_int_equal(w.locked, 0);
    assert_true(w.locks > 0);
    must(td_vk_address_memory(vk, true, why, sizeof why));
}

tandem_job job_on(tandem_mem mem)
{
    const tandem_view view = {.mem = mem, .dtype = TANDEM_DTYPE_F32, .stride_row = DIM};
    tandem_job job = {.struct_bytes = sizeof job,
                      .operation = TANDEM_OPERATION_ATTENTION,
                      .op.attention = {.q = view, .k = view, .v = view, .o = view, .batch = 1, .heads = 1, .kv_heads = 1,
                                       .q_len = ROWS, .kv_len = ROWS, .head_dim = DIM,
                                       .precision = TANDEM_PRECISION_F16}};

    job.op.attention.k.offset_bytes = offsetof(frame_data, k);
    job.op.attention.v.offset_bytes = offsetof(frame_data, v);
    job.op.attention.o.offset_bytes = offsetof(frame_data, o);
    return job;
}

void fill(flight *f, uint64_t seed)
{
    frame_data *data = f->in.host;
    tandem_job job = job_on(1);
    static double o[ELEMENTS];

    for (size_t i = 0; i < ELEMENTS; i++) {
        data->q[i] = (float)tu_normal(&seed);
        data->k[i] = (float)tu_normal(&seed);
        data->v[i] = (float)tu_normal(&seed);
        data->o[i] = NAN;
    }
    td_ref_attention(&job.op.attention, data->q, data->k, data->v, o, NULL);
    for (size_t i = 0; i < ELEMENTS; i++)
        f->wanted.o[i] = (float)o[i];
    memset(f->out.host, 0xff, sizeof(frame_data));
}

void check_flight(flight *f, uint64_t frame)
{
    const frame_data *data = f->out.host;

    for (size_t i = 0; i < ELEMENTS; i++)
        if (!(fabsf(data->o[i] - f->wanted.o[i]) < 0.02f))
            fail_msg("frame %llu: element %zu is %f, not %f", (unsigned long long)frame, i, (double)data->o[i],
                     (double)f->wanted.o[i]);
}

void begin_commands(VkCommandBuffer commands)
{
    const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};

    assert_int_equal(gpu.BeginCommandBuffer(commands, &info), VK_SUCCESS);
}

void record_copies(flight *f, VkCommandBuffer first, VkCommandBuffer last, bool in)
{
    VkBufferCopy up = {.size = sizeof(frame_data)}, down = up;
    tandem_mem_vulkan mem = {.struct_bytes = sizeof mem};

    (void)last;
    OK(tandem_mem_get_vulkan(w.s, f->mem, &mem));
    if (!mem.buffer) {
        mem.buffer = f->engines;
        up.dstOffset = down.srcOffset = mem.offset;
    }
    if (in) {
        OK(tandem_record_acquire(w.s, first, f->mem, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT));
        gpu.CmdCopyBuffer(first, f->in.buffer, mem.buffer, 1, &up);
        OK(tandem_record_release(w.s, first, f->mem, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT));
    } else {
        OK(tandem_record_acquire(w.s, last, f->mem, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT));
        gpu.CmdCopyBuffer(last, mem.buffer, f->out.buffer, 1, &down);
        OK(tandem_record_release(w.s, last, f->mem, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT));
        vku_full_barrier(&gpu, last);
    }
}

void submit_flight(flight *f, uint32_t first, uint32_t count, vku_point wait, vku_point signal, VkFence fence)
{
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    const VkTimelineSemaphoreSubmitInfo points = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                  .waitSemaphoreValueCount = wait.semaphore ? 1 : 0,
                                                  .pWaitSemaphoreValues = &wait.value,
                                                  .signalSemaphoreValueCount = signal.semaphore ? 1 : 0,
                                                  .pSignalSemaphoreValues = &signal.value};
    const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                               .pNext = &points,
                               .waitSemaphoreCount = wait.semaphore ? 1 : 0,
                               .pWaitSemaphores = &wait.semaphore,
                               .pWaitDstStageMask = &stage,
                               .commandBufferCount = count,
                               .pCommandBuffers = f->commands + first,
                               .signalSemaphoreCount = signal.semaphore ? 1 : 0,
                               .pSignalSemaphores = &signal.semaphore};

    lock_queue(&w);
    assert_int_equal(gpu.QueueSubmit(gpu.queue, 1, &info, fence), VK_SUCCESS);
    unlock_queue(&w);
}

void wait_flight(flight *f)
{
    const VkFence fence = f->fence;

    assert_int_equal(gpu.WaitForFences(gpu.device, 1, &fence, VK_TRUE, LIMIT_NS), VK_SUCCESS);
    gpu.DestroyFence(gpu.device, f->fence, NULL);
    assert_int_equal(gpu.CreateFence(gpu.device, &(VkFenceCreateInfo){.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO},
                                     NULL, &f->fence),
                     VK_SUCCESS);
}

tandem_job_report report_of(tandem_ticket ticket)
{
    tandem_job_report report = {.struct_bytes = sizeof report};

    OK(tandem_poll(w.s, ticket, &report));
    return report;
}

uint64_t frames_here(void)
{
    return F.real ? 300 : 45;
}

void check_done(const flight *f)
{
    const tandem_job_report report = report_of(f->ticket);

    assert_int_equal(report.state, TANDEM_JOB_DONE);
    assert_true(report.submit_ns && report.begin_ns && report.begin_ns <= report.end_ns);
}
