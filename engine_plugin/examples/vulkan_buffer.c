/* A job between two submits of an engine's: the GPU writes a VkBuffer, the job computes on it, the
 * GPU reads it. The host waits for nothing but the last fence. The code is the same on every rung;
 * tandem_info tells which one it is, and why.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     cc vulkan_buffer.c $(pkg-config --cflags --libs tandem) -lvulkan && ./a.out
 */
#include "vulkan_device.h"

enum { ROWS = 64, CHANNELS = 64, ELEMENTS = ROWS * CHANNELS, BYTES = ELEMENTS * sizeof(float) };

/* What the two share: a mem with a VkBuffer behind it, and a timeline for each direction. */
typedef struct shared {
    tandem_session *session;
    tandem_mem mem;
    tandem_mem_vulkan buffer;
    tandem_timeline from_engine, from_session;
    VkSemaphore engine_semaphore, session_semaphore;
} shared;

static void open_session(shared *s, const engine *e)
{
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc, .vulkan = &e->vulkan);
    const tandem_mem_desc mem = TANDEM_INIT(tandem_mem_desc, .source = TANDEM_MEM_CREATE,
                                            .bytes = 2 * BYTES);
    const tandem_timeline_desc engines = TANDEM_INIT(tandem_timeline_desc,
                                                     .signaller = TANDEM_SIGNALLER_ENGINE);
    const tandem_timeline_desc sessions = TANDEM_INIT(tandem_timeline_desc,
                                                      .signaller = TANDEM_SIGNALLER_SESSION);
    tandem_info info = TANDEM_INIT(tandem_info);

    s->buffer = TANDEM_INIT(tandem_mem_vulkan);
    check(tandem_session_create(&desc, &s->session), "tandem_session_create");
    check(tandem_session_info(s->session, &info), "tandem_session_info");
    printf("%s, rung %u %s\n", info.device, info.rung, info.rung_reason);
    check(tandem_mem_create(s->session, &mem, &s->mem), "tandem_mem_create");
    check(tandem_mem_get_vulkan(s->session, s->mem, &s->buffer), "tandem_mem_get_vulkan");
    check(tandem_timeline_create(s->session, &engines, &s->from_engine), "tandem_timeline_create");
    check(tandem_timeline_create(s->session, &sessions, &s->from_session),
          "tandem_timeline_create");
    check(tandem_timeline_get_vulkan(s->session, s->from_engine, &s->engine_semaphore),
          "tandem_timeline_get_vulkan");
    check(tandem_timeline_get_vulkan(s->session, s->from_session, &s->session_semaphore),
          "tandem_timeline_get_vulkan");
}

/* Submit A writes x, and hands the mem over; the engine's timeline then has the value n. */
static void submit_input(const engine *e, const shared *s, VkCommandBuffer commands, uint64_t n)
{
    static float x[ELEMENTS];

    for (int i = 0; i < ELEMENTS; i++)
        x[i] = i % 2 ? 3.0f : -3.0f;
    begin_commands(commands);
    vkCmdUpdateBuffer(commands, s->buffer.buffer, 0, BYTES, x);
    check(tandem_record_release(s->session, commands, s->mem, VK_PIPELINE_STAGE_TRANSFER_BIT,
                                VK_ACCESS_TRANSFER_WRITE_BIT),
          "tandem_record_release");
    submit_commands(e, commands, (moment){0}, (moment){s->engine_semaphore, n}, VK_NULL_HANDLE);
    check(tandem_timeline_submitted(s->session, s->from_engine, n), "tandem_timeline_submitted");
}

/* The job: the norm of each row of x becomes that of y, in the mem's other half. */
static tandem_ticket submit_job(const shared *s, uint64_t n)
{
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_NORM,
                                 .wait = {s->from_engine, n}, .signal = {s->from_session, n});
    tandem_norm *norm = &job.op.norm;
    tandem_ticket ticket;

    norm->x = norm->y = tandem_view_dense(s->mem, 0, TANDEM_DTYPE_F32, 1, ROWS, CHANNELS);
    norm->y.offset_bytes = BYTES;
    norm->batch = norm->heads = 1;
    norm->rows = ROWS;
    norm->channels = CHANNELS;
    check(tandem_submit(s->session, &job, &ticket), "tandem_submit");
    return ticket;
}

/* Submit B waits for the session's timeline to have n, takes the mem back and reads y. */
static void submit_output(const engine *e, const shared *s, VkCommandBuffer commands, uint64_t n,
                          VkBuffer to, VkFence fence)
{
    const VkBufferCopy y = {.srcOffset = BYTES, .size = BYTES};

    begin_commands(commands);
    check(tandem_record_acquire(s->session, commands, s->mem, VK_PIPELINE_STAGE_TRANSFER_BIT,
                                VK_ACCESS_TRANSFER_READ_BIT),
          "tandem_record_acquire");
    vkCmdCopyBuffer(commands, s->buffer.buffer, to, 1, &y);
    read_by_host(commands);
    submit_commands(e, commands, (moment){s->session_semaphore, n}, (moment){0}, fence);
}

int main(void)
{
    const VkFenceCreateInfo unsignalled = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    static engine e;
    shared s = {0};
    tandem_ticket ticket;
    readback result;
    VkFence fence;
    int right;

    open_engine(&e);
    open_session(&s, &e);
    result = new_readback(&e, BYTES);
    check(vkCreateFence(e.vulkan.device, &unsignalled, NULL, &fence), "vkCreateFence");
    submit_input(&e, &s, new_commands(&e), 1);
    ticket = submit_job(&s, 1);
    submit_output(&e, &s, new_commands(&e), 1, result.buffer,
                  fence); /* only as the job was taken: else nobody signals */
    check(vkWaitForFences(e.vulkan.device, 1, &fence, VK_TRUE, 60000000000u), "vkWaitForFences");
    check(tandem_poll(s.session, ticket, &report), "tandem_poll");
    const float *y = result.host;
    right = report.state == TANDEM_JOB_DONE && y[0] < -0.999f && y[0] > -1.001f && y[1] > 0.999f &&
            y[1] < 1.001f;
    printf("%s, y[0] = %.3f, y[1] = %.3f\n", right ? "done" : "wrong", y[0], y[1]);

    check(tandem_session_destroy(&s.session),
          "tandem_session_destroy"); /* before the device that it is on */
    vkDestroyFence(e.vulkan.device, fence, NULL);
    free_readback(&e, &result);
    close_engine(&e);
    return !right;
}
