/* tandem_record(): refused, acquired, submitted later, again or never, in every frame, and in secondary command
 * buffers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "tests/plugin/inline/rig.h"

static void refuses(tandem_job job, VkCommandBuffer commands, tandem_status wanted, const char *text)
{
    tandem_ticket ticket = 1;

    F.launches = F.barriers = 0;
    assert_int_equal(tandem_record(w.s, &job, commands, &ticket), wanted);
    assert_int_equal(ticket | F.launches | F.barriers, 0);
    if (!strstr(w.log, text))
        fail_msg("'%s' does not say '%s'", w.log, text);
}

static void test_record_refuses(void **state)
{
    tandem_job good, bad;
    tandem_ticket ticket = 1;
    VkCommandBuffer commands;

    (void)state;
    enter();
    commands = w.flights[0].commands[0];
    good = job_on(w.flights[0].mem);
    begin_commands(commands);
    bad = good;
    bad.wait = (tandem_point){w.engines, 1};
    refuses(bad, commands, TANDEM_ERROR_ARG, "job.wait");
    bad = good;
    bad.signal = (tandem_point){w.ours, 1};
    refuses(bad, commands, TANDEM_ERROR_ARG, "job.signal");
    bad = good;
    bad.deadline_ns = 1000000;
    refuses(bad, commands, TANDEM_ERROR_ARG, "job.deadline_ns is 1000000");
    refuses(good, NULL, TANDEM_ERROR_ARG, "commands is NULL");
    bad = good;
    bad.struct_bytes = 12;
    refuses(bad, commands, TANDEM_ERROR_ARG, "job.struct_bytes is 12");
    bad = good;
    bad.op.attention.q.mem = 12345;
    refuses(bad, commands, TANDEM_ERROR_ARG, "q.mem");
    /* right in itself, but too large for a command buffer */
    bad = job_on(new_mem(4 * ROWS * 256 * 4));
    bad.op.attention.head_dim = 256;
    bad.op.attention.q.stride_row = bad.op.attention.k.stride_row = bad.op.attention.v.stride_row =
        bad.op.attention.o.stride_row = 256;
    bad.op.attention.o.offset_bytes = 3 * ROWS * 256 * 4;
    refuses(bad, commands, TANDEM_ERROR_UNSUPPORTED, "attn_f16_d256");
    assert_int_equal(tandem_submit(w.s, &bad, &ticket), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(w.log, "attn_f16_d256"));
    assert_int_equal(tandem_record(NULL, &good, commands, &ticket), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_record(w.s, NULL, commands, &ticket), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_record(w.s, &good, commands, NULL), TANDEM_ERROR_ARG);
    /* and none of it took a slot */
    for (int i = 0; i < FRAMES; i++)
        OK(tandem_record(w.s, &good, commands, &ticket));
    assert_int_equal(gpu.EndCommandBuffer(commands), VK_SUCCESS);
    leave();
}

/* A job ends with the barrier for compute work; another would wait for its end stamp. */
static void test_acquire(void **state)
{
    const VkPipelineStageFlags compute = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
    const VkAccessFlags both = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT;
    const struct {
        VkPipelineStageFlags stage;
        VkAccessFlags access;
        unsigned barriers;
    } all[] = {{compute, VK_ACCESS_SHADER_READ_BIT, 0},
               {compute, both, 0},
               {compute, both | VK_ACCESS_UNIFORM_READ_BIT, 1},
               {compute | VK_PIPELINE_STAGE_FRAGMENT_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT, 1},
               {VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT, 1},
               {VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_ACCESS_MEMORY_READ_BIT, 1}};
    VkCommandBuffer commands;
    flight *f;

    (void)state;
    enter();
    f = &w.flights[0];
    commands = f->commands[0];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const tandem_job job = job_on(f->mem);

        begin_commands(commands);
        OK(tandem_record(w.s, &job, commands, &f->ticket));
        F.barriers = 0;
        OK(tandem_record_acquire(w.s, commands, f->mem, all[i].stage, all[i].access));
        assert_int_equal(F.barriers, all[i].barriers);
        OK(tandem_record_release(w.s, commands, f->mem, compute, both));
        assert_int_equal(F.barriers, all[i].barriers + 1);
        assert_int_equal(gpu.EndCommandBuffer(commands), VK_SUCCESS);
        OK(tandem_cancel(w.s, f->ticket));
    }
    leave();
}

/* Commands that are submitted later, again, or never. */
static void test_recorded_jobs(void **state)
{
    tandem_ticket tickets[FRAMES], more;
    VkCommandBuffer commands;
    tandem_job job;
    flight *f;

    (void)state;
    enter();
    f = &w.flights[0];
    job = job_on(f->mem);
    commands = f->commands[0];
    for (int round = 0; round < 2; round++) {
        begin_commands(commands);
        for (int i = 0; i < FRAMES; i++)
            OK(tandem_record(w.s, &job, commands, &tickets[i]));
        assert_int_equal(tandem_record(w.s, &job, commands, &more), TANDEM_ERROR_BUSY);
        assert_int_equal(tandem_wait(w.s, tickets[0], 1000000, NULL), TANDEM_ERROR_BUSY);
        assert_int_equal(gpu.EndCommandBuffer(commands), VK_SUCCESS);
        for (int i = 0; i < FRAMES; i++) {
            assert_int_equal(report_of(tickets[i]).state, TANDEM_JOB_PENDING);
            if (round == 0)
                OK(tandem_cancel(w.s, tickets[i]));
        }
        if (round == 1) /* with what they use */
            OK(tandem_mem_destroy(w.s, f->mem));
        for (int i = 0; i < FRAMES; i++)
            assert_int_equal(report_of(tickets[i]).state, TANDEM_JOB_CANCELLED);
    }
    /* given up, and submitted after all: nothing is written */
    f->mem = new_mem(sizeof(frame_data));
    job = job_on(f->mem);
    for (int cancelled = 1; cancelled >= 0; cancelled--) {
        fill(f, 99 + (uint64_t)cancelled);
        for (int i = 0; i < 3; i++)
            begin_commands(f->commands[i]);
        record_copies(f, f->commands[0], NULL, true);
        OK(tandem_record(w.s, &job, f->commands[1], &f->ticket));
        record_copies(f, NULL, f->commands[2], false);
        for (int i = 0; i < 3; i++)
            assert_int_equal(gpu.EndCommandBuffer(f->commands[i]), VK_SUCCESS);
        if (cancelled) {
            OK(tandem_cancel(w.s, f->ticket));
            assert_int_equal(tandem_cancel(w.s, f->ticket), TANDEM_ERROR_BUSY);
        }
        submit_flight(f, 0, 3, (vku_point){0}, (vku_point){0}, f->fence);
        wait_flight(f);
        assert_int_equal(report_of(f->ticket).state, cancelled ? TANDEM_JOB_CANCELLED : TANDEM_JOB_DONE);
        if (cancelled)
            for (size_t i = 0; i < ELEMENTS; i++)
                assert_true(isnan(((frame_data *)f->out.host)->o[i]));
        else
            check_flight(f, 1);
    }
    /* once more, with new data, after other jobs that needed more scratch */
    job.op.attention.smooth = TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K | TANDEM_SMOOTH_V;
    job.op.attention.precision = TANDEM_PRECISION_8B;
    for (int i = 1; i < 3; i++) {
        flight *other = &w.flights[i];
        tandem_job larger = job_on(new_mem(4 * 4096 * DIM * 4));
        const uint32_t rows = 2048u * (uint32_t)i;

        larger.op.attention.q_len = larger.op.attention.kv_len = rows;
        larger.op.attention.k.offset_bytes = rows * DIM * 4;
        larger.op.attention.v.offset_bytes = 2 * rows * DIM * 4;
        larger.op.attention.o.offset_bytes = 3 * rows * DIM * 4;
        for (int j = 0; j < FRAMES; j++) {
            begin_commands(other->commands[0]);
            OK(tandem_record(w.s, &larger, other->commands[0], &more));
            assert_int_equal(gpu.EndCommandBuffer(other->commands[0]), VK_SUCCESS);
            OK(tandem_cancel(w.s, more));
        }
    }
    fill(f, 1234);
    submit_flight(f, 0, 3, (vku_point){0}, (vku_point){0}, f->fence);
    wait_flight(f);
    check_flight(f, 2);
    assert_int_equal(report_of(f->ticket).state, TANDEM_JOB_DONE);
    leave();
}

/* Commands that run again in every frame, and others that are recorded anew: however many of them, each knows its own end. */
static void test_recorded_for_good(void **state)
{
    enum { MANY = 2 * TD_INLINE_RECORDED + 10 };
    flight *always, *once;
    tandem_job job;

    (void)state;
    enter();
    always = &w.flights[0];
    once = &w.flights[1];
    job = job_on(always->mem);
    begin_commands(always->commands[0]);
    OK(tandem_record(w.s, &job, always->commands[0], &always->ticket));
    assert_int_equal(gpu.EndCommandBuffer(always->commands[0]), VK_SUCCESS);
    job = job_on(once->mem);
    for (uint32_t i = 0; i < MANY; i++) {
        begin_commands(once->commands[0]);
        OK(tandem_record(w.s, &job, once->commands[0], &once->ticket));
        assert_int_equal(gpu.EndCommandBuffer(once->commands[0]), VK_SUCCESS);
        if (i % 3 == 2) { /* what is cancelled is no other's */
            OK(tandem_cancel(w.s, once->ticket));
            assert_int_equal(report_of(once->ticket).state, TANDEM_JOB_CANCELLED);
        }
        submit_flight(once, 0, 1, (vku_point){0}, (vku_point){0}, VK_NULL_HANDLE);
        submit_flight(always, 0, 1, (vku_point){0}, (vku_point){0}, always->fence);
        wait_flight(always);
        if (i % 3 != 2)
            check_done(once);
        if (!i)
            check_done(always);
    }
    leave();
}

static VkCommandBuffer secondary(flight *f, const tandem_job *job, VkCommandBufferUsageFlags usage)
{
    const VkCommandBufferInheritanceInfo alone = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_INHERITANCE_INFO};
    const VkCommandBufferBeginInfo begin = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, .flags = usage, .pInheritanceInfo = &alone};
    const VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                              .commandPool = f->pool,
                                              .level = VK_COMMAND_BUFFER_LEVEL_SECONDARY,
                                              .commandBufferCount = 1};
    VkCommandBuffer commands;

    assert_int_equal(gpu.AllocateCommandBuffers(gpu.device, &info, &commands), VK_SUCCESS);
    assert_int_equal(gpu.BeginCommandBuffer(commands, &begin), VK_SUCCESS);
    OK(tandem_record(w.s, job, commands, &f->ticket));
    assert_int_equal(gpu.EndCommandBuffer(commands), VK_SUCCESS);
    return commands;
}

/* A job in a secondary command buffer: once; again and again with new data; pending twice at a time. */
static void test_secondary(void **state)
{
    const VkCommandBufferUsageFlags usages[] = {VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT, 0,
                                                VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT};
    PFN_vkCmdExecuteCommands execute;
    uint64_t frame = 0;
    flight *f;

    (void)state;
    enter();
    execute = (PFN_vkCmdExecuteCommands)gpu.GetDeviceProcAddr(gpu.device, "vkCmdExecuteCommands");
    f = &w.flights[0];
    for (int u = 0; u < 3; u++) {
        const tandem_job job = job_on(f->mem);
        const VkCommandBuffer commands = secondary(f, &job, usages[u]);
        flight *second = &w.flights[1]; /* its primary */

        begin_commands(f->commands[0]);
        record_copies(f, f->commands[0], NULL, true);
        begin_commands(f->commands[2]);
        record_copies(f, NULL, f->commands[2], false);
        begin_commands(f->commands[1]);
        execute(f->commands[1], 1, &commands);
        for (int i = 0; i < 3; i++)
            assert_int_equal(gpu.EndCommandBuffer(f->commands[i]), VK_SUCCESS);
        assert_int_equal(report_of(f->ticket).state, TANDEM_JOB_PENDING);
        for (int run = 0; run < (u ? 5 : 1); run++) {
            fill(f, 700 + ++frame);
            submit_flight(f, 0, 3, (vku_point){0}, (vku_point){0}, f->fence);
            wait_flight(f);
            check_flight(f, frame);
            check_done(f);
        }
        if (u < 2)
            continue;
        begin_commands(second->commands[1]);
        execute(second->commands[1], 1, &commands);
        assert_int_equal(gpu.EndCommandBuffer(second->commands[1]), VK_SUCCESS);
        fill(f, 700 + ++frame);
        submit_flight(f, 0, 2, (vku_point){0}, (vku_point){0}, VK_NULL_HANDLE);
        submit_flight(second, 1, 1, (vku_point){0}, (vku_point){0}, second->fence);
        submit_flight(f, 2, 1, (vku_point){0}, (vku_point){0}, f->fence);
        wait_flight(second);
        wait_flight(f);
        check_flight(f, frame);
    }
    leave();
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_record_refuses),
    cmocka_unit_test(test_acquire),
    cmocka_unit_test(test_recorded_jobs),
    cmocka_unit_test(test_recorded_for_good),
    cmocka_unit_test(test_secondary),
};
const test_cases inline_recorded_cases = TEST_CASES(cases);
