/* Small programs that break a rule of the API, each beside one that keeps it: for `tandem conform`.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * usage: conform_cases RULE bad|good
 */
#include <stdbool.h>
#include <unistd.h>

#include "engine_plugin/examples/vulkan_device.h"

enum { ROWS = 256, CHANNELS = 64, BYTES = ROWS * CHANNELS * sizeof(float) };

typedef struct world {
    bool bad;
    tandem_session *session;
    tandem_mem mem;
    tandem_timeline from_engine, from_session;
    /* With Vulkan. */
    engine engine;
    VkSemaphore engine_semaphore, session_semaphore;
    tandem_mem_vulkan buffer;
    VkFence fence;
    readback result;
} world;

static const uint64_t PATIENCE = 10000000000u;

static void open_world(world *w, const tandem_vulkan *vulkan)
{
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc, .vulkan = vulkan);
    const tandem_mem_desc mem = TANDEM_INIT(tandem_mem_desc, .bytes = 2 * BYTES);
    const tandem_timeline_desc engines = TANDEM_INIT(tandem_timeline_desc, .signaller = TANDEM_SIGNALLER_ENGINE);
    const tandem_timeline_desc sessions = TANDEM_INIT(tandem_timeline_desc, .signaller = TANDEM_SIGNALLER_SESSION);

    check(tandem_session_create(&desc, &w->session), "session");
    check(tandem_mem_create(w->session, &mem, &w->mem), "mem");
    check(tandem_timeline_create(w->session, &engines, &w->from_engine), "timeline");
    check(tandem_timeline_create(w->session, &sessions, &w->from_session), "timeline");
}

static void open_vulkan(world *w)
{
    const VkFenceCreateInfo unsignalled = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};

    open_engine(&w->engine);
    open_world(w, &w->engine.vulkan);
    w->buffer = TANDEM_INIT(tandem_mem_vulkan);
    check(tandem_mem_get_vulkan(w->session, w->mem, &w->buffer), "buffer");
    check(tandem_timeline_get_vulkan(w->session, w->from_engine, &w->engine_semaphore), "semaphore");
    check(tandem_timeline_get_vulkan(w->session, w->from_session, &w->session_semaphore), "semaphore");
    check(vkCreateFence(w->engine.vulkan.device, &unsignalled, NULL, &w->fence), "fence");
    w->result = new_readback(&w->engine, BYTES);
}

static void close_vulkan(world *w)
{
    check(vkWaitForFences(w->engine.vulkan.device, 1, &w->fence, VK_TRUE, PATIENCE), "vkWaitForFences");
    check(tandem_session_destroy(&w->session), "tandem_session_destroy");
    vkDestroyFence(w->engine.vulkan.device, w->fence, NULL);
    free_readback(&w->engine, &w->result);
    close_engine(&w->engine);
}

/* From the mem's first half to its other one. */
static tandem_ticket submit_job(world *w, tandem_point wait, tandem_point signal, uint64_t deadline_ns)
{
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_NORM, .wait = wait, .signal = signal,
                                 .deadline_ns = deadline_ns);
    tandem_norm *norm = &job.op.norm;
    tandem_ticket ticket;

    norm->x = norm->y = tandem_view_dense(w->mem, 0, TANDEM_DTYPE_F32, 1, ROWS, CHANNELS);
    norm->y.offset_bytes = BYTES;
    norm->batch = norm->heads = 1;
    norm->rows = ROWS;
    norm->channels = CHANNELS;
    check(tandem_submit(w->session, &job, &ticket), "tandem_submit");
    return ticket;
}

static void first_submit(world *w, bool releases, VkPipelineStageFlags stage)
{
    const VkCommandBuffer commands = new_commands(&w->engine);

    begin_commands(commands);
    vkCmdFillBuffer(commands, w->buffer.buffer, 0, BYTES, 0x3f800000);
    if (releases)
        check(tandem_record_release(w->session, commands, w->mem, stage, VK_ACCESS_TRANSFER_WRITE_BIT), "release");
    submit_commands(&w->engine, commands, (moment){0}, (moment){w->engine_semaphore, 1}, VK_NULL_HANDLE);
    check(tandem_timeline_submitted(w->session, w->from_engine, 1), "submitted");
}

static void second_submit(world *w, uint64_t waits_for, VkPipelineStageFlags at)
{
    const VkCommandBuffer commands = new_commands(&w->engine);
    const VkBufferCopy y = {.srcOffset = BYTES, .size = BYTES};
    const VkTimelineSemaphoreSubmitInfo values = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                  .waitSemaphoreValueCount = 1,
                                                  .pWaitSemaphoreValues = &waits_for};
    const VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                 .pNext = &values,
                                 .waitSemaphoreCount = waits_for ? 1 : 0,
                                 .pWaitSemaphores = &w->session_semaphore,
                                 .pWaitDstStageMask = &at,
                                 .commandBufferCount = 1,
                                 .pCommandBuffers = &commands};

    begin_commands(commands);
    check(tandem_record_acquire(w->session, commands, w->mem, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT), "acquire");
    vkCmdCopyBuffer(commands, w->buffer.buffer, w->result.buffer, 1, &y);
    read_by_host(commands);
    check(vkEndCommandBuffer(commands), "vkEndCommandBuffer");
    check(vkQueueSubmit(w->engine.vulkan.queue, 1, &submit, w->fence), "vkQueueSubmit");
}

/* --- Without Vulkan --- */

static void fd_leak(world *w)
{
    int fd;

    open_world(w, NULL);
    check(tandem_point_fd(w->session, (tandem_point){w->from_engine, 1}, &fd), "tandem_point_fd");
    if (!w->bad)
        close(fd);
}

static void double_close(world *w)
{
    int fd;

    open_world(w, NULL);
    check(tandem_point_fd(w->session, (tandem_point){w->from_engine, 1}, &fd), "tandem_point_fd");
    close(fd);
    if (w->bad)
        close(fd);
}

static void unbounded_wait(world *w)
{
    open_world(w, NULL);
    check(tandem_wait(w->session, submit_job(w, (tandem_point){0}, (tandem_point){0}, 0), w->bad ? UINT64_MAX : PATIENCE, NULL),
          "tandem_wait");
}

static void stale(world *w)
{
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    tandem_ticket ticket;
    void *host;

    open_world(w, NULL);
    check(tandem_mem_host(w->session, w->mem, &host), "tandem_mem_host");
    ticket = submit_job(w, (tandem_point){w->from_engine, 1}, (tandem_point){0}, 1000000); /* it waits for longer than that */
    check(tandem_wait(w->session, ticket, PATIENCE, &report), "tandem_wait");
    check(report.state != TANDEM_JOB_STALE, "being late");
    if (w->bad)
        printf("%f\n", ((volatile float *)host)[2 * ROWS * CHANNELS - ROWS * CHANNELS / 2]);
    printf("%f\n", ((volatile float *)host)[ROWS]); /* the input is the program's */
}

/* --- With Vulkan --- */

static void ownership(world *w)
{
    open_vulkan(w);
    first_submit(w, !w->bad, VK_PIPELINE_STAGE_TRANSFER_BIT);
    submit_job(w, (tandem_point){w->from_engine, 1}, (tandem_point){w->from_session, 1}, 0);
    second_submit(w, 1, VK_PIPELINE_STAGE_TRANSFER_BIT);
    close_vulkan(w);
}

/* A second frame of the same commands: that they are submitted again counts, not that they were recorded once. */
static void ownership_again(world *w)
{
    const VkCommandBuffer commands[2] = {new_commands((open_vulkan(w), &w->engine)), new_commands(&w->engine)};
    const VkDevice device = w->engine.vulkan.device;

    for (int i = 0; i < 2; i++) {
        const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
        check(vkBeginCommandBuffer(commands[i], &info), "vkBeginCommandBuffer");
        if (i)
            check(tandem_record_acquire(w->session, commands[i], w->mem, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT),
                  "acquire");
        else
            check(tandem_record_release(w->session, commands[i], w->mem, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT),
                  "release");
        check(vkEndCommandBuffer(commands[i]), "vkEndCommandBuffer");
    }
    for (uint64_t n = 1; n <= 2; n++) {
        const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
        const VkTimelineSemaphoreSubmitInfo values[2] = {
            {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO, .signalSemaphoreValueCount = 1, .pSignalSemaphoreValues = &n},
            {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO, .waitSemaphoreValueCount = 1, .pWaitSemaphoreValues = &n}};
        const VkSubmitInfo first = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                    .pNext = &values[0],
                                    .commandBufferCount = w->bad && n == 2 ? 0 : 1, /* the second release is forgotten */
                                    .pCommandBuffers = &commands[0],
                                    .signalSemaphoreCount = 1,
                                    .pSignalSemaphores = &w->engine_semaphore};
        const VkSubmitInfo second = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                     .pNext = &values[1],
                                     .waitSemaphoreCount = 1,
                                     .pWaitSemaphores = &w->session_semaphore,
                                     .pWaitDstStageMask = &stage,
                                     .commandBufferCount = 1,
                                     .pCommandBuffers = &commands[1]};
        /* The job comes first: what it waits for is yet to be submitted. */
        submit_job(w, (tandem_point){w->from_engine, n}, (tandem_point){w->from_session, n}, 0);
        check(vkQueueSubmit(w->engine.vulkan.queue, 1, &first, VK_NULL_HANDLE), "vkQueueSubmit");
        check(tandem_timeline_submitted(w->session, w->from_engine, n), "submitted");
        check(vkQueueSubmit(w->engine.vulkan.queue, 1, &second, w->fence), "vkQueueSubmit");
        if (n == 1) {
            check(vkWaitForFences(device, 1, &w->fence, VK_TRUE, PATIENCE), "vkWaitForFences");
            check(vkResetFences(device, 1, &w->fence), "vkResetFences");
        }
    }
    close_vulkan(w);
}

static void wrong_stage(world *w)
{
    open_vulkan(w);
    first_submit(w, true, w->bad ? VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT : VK_PIPELINE_STAGE_TRANSFER_BIT);
    submit_job(w, (tandem_point){w->from_engine, 1}, (tandem_point){w->from_session, 1}, 0);
    second_submit(w, 1, VK_PIPELINE_STAGE_TRANSFER_BIT);
    close_vulkan(w);
}

static void wrong_wait(world *w)
{
    open_vulkan(w);
    first_submit(w, true, VK_PIPELINE_STAGE_TRANSFER_BIT);
    submit_job(w, (tandem_point){w->from_engine, 1}, (tandem_point){w->from_session, 1}, 0);
    second_submit(w, 1, w->bad ? VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT : VK_PIPELINE_STAGE_ALL_COMMANDS_BIT);
    close_vulkan(w);
}

static void reuse(world *w)
{
    open_vulkan(w);
    first_submit(w, true, VK_PIPELINE_STAGE_TRANSFER_BIT);
    submit_job(w, (tandem_point){w->from_engine, 1}, (tandem_point){w->from_session, 1}, 0);
    second_submit(w, w->bad ? 0 : 1, VK_PIPELINE_STAGE_TRANSFER_BIT);
    close_vulkan(w);
}

/* The host has waited for the point, so the submit need not. */
static void reuse_seen(world *w)
{
    open_vulkan(w);
    first_submit(w, true, VK_PIPELINE_STAGE_TRANSFER_BIT);
    submit_job(w, (tandem_point){w->from_engine, 1}, (tandem_point){w->from_session, 1}, 0);
    if (!w->bad)
        check(tandem_point_wait(w->session, (tandem_point){w->from_session, 1}, PATIENCE), "tandem_point_wait");
    second_submit(w, 0, VK_PIPELINE_STAGE_TRANSFER_BIT);
    close_vulkan(w);
}

static void lost_point(world *w)
{
    open_vulkan(w);
    first_submit(w, true, VK_PIPELINE_STAGE_TRANSFER_BIT);
    submit_job(w, (tandem_point){w->from_engine, 1}, (tandem_point){w->from_session, 1}, 0);
    second_submit(w, w->bad ? 2 : 1, VK_PIPELINE_STAGE_TRANSFER_BIT);
    if (w->bad) /* the session ends, and signals what no job did */
        check(tandem_session_destroy(&w->session), "tandem_session_destroy");
    else
        close_vulkan(w);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(world *w);
    } cases[] = {
        {"fd-leak", fd_leak},           {"double-close", double_close}, {"unbounded-wait", unbounded_wait},
        {"stale", stale},               {"ownership", ownership},       {"ownership-again", ownership_again},
        {"wrong-stage", wrong_stage},   {"wrong-stage-wait", wrong_wait}, {"reuse", reuse},
        {"reuse-seen", reuse_seen},     {"lost-point", lost_point},
    };
    static world w;

    if (argc != 3)
        return 2;
    w.bad = !strcmp(argv[2], "bad");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(cases[i].name, argv[1])) {
            cases[i].run(&w);
            if (w.session)
                check(tandem_session_destroy(&w.session), "tandem_session_destroy");
            return 0;
        }
    return 2;
}
