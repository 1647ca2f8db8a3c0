/* Frames of sessions: recorded among the engine's own commands, submitted, held, given up, from images and back.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "tests/plugin/inline/rig.h"

/* tandem_record() among the engine's own commands: of three buffers in one submit, or all in one buffer, which the fake
 * cannot run in their order. */
static void record_frames(bool one_buffer)
{
    enum { WARM = 12 };

    enter();
    for (uint64_t frame = 0; frame < frames_here() + FRAMES; frame++) {
        flight *f = &w.flights[frame % FRAMES];
        const tandem_job job = job_on(f->mem);

        if (frame >= FRAMES) {
            wait_flight(f);
            check_flight(f, frame - FRAMES);
            check_done(f);
        }
        if (frame >= frames_here())
            continue;
        if (frame == WARM)
            F.allocations = F.copies = F.host_waits = F.submits = 0;
        fill(f, frame + 1);
        begin_commands(f->commands[0]);
        if (!one_buffer)
            for (int i = 1; i < 3; i++)
                begin_commands(f->commands[i]);
        record_copies(f, f->commands[0], NULL, true);
        OK(tandem_record(w.s, &job, f->commands[one_buffer ? 0 : 1], &f->ticket));
        record_copies(f, NULL, f->commands[one_buffer ? 0 : 2], false);
        for (int i = 0; i < (one_buffer ? 1 : 3); i++)
            assert_int_equal(gpu.EndCommandBuffer(f->commands[i]), VK_SUCCESS);
        assert_int_equal(report_of(f->ticket).state, TANDEM_JOB_PENDING);
        submit_flight(f, 0, one_buffer ? 1 : 3, (vku_point){0}, (vku_point){0}, f->fence);
    }
    /* of the session: its copies are the test's, two a frame */
    assert_int_equal(F.allocations, 0);
    assert_int_equal(F.host_waits, 0);
    assert_int_equal(F.copies, 2 * (frames_here() - WARM));
    assert_int_equal(F.submits, frames_here() - WARM);
    OK(tandem_session_info(w.s, &w.info));
    assert_int_equal(w.info.jobs_done, frames_here());
    leave();
}

/* On sm_90 a session's 8b is attn_8b_wgmma_inline's, of its self-test and of a job, where that has the shape. */
static void test_kernels_of_8b(void **state)
{
    static const struct {
        uint32_t smooth, granularity;
        const char *kernel;
    } cases[] = {{TANDEM_SMOOTH_DEFAULT, TANDEM_GRANULARITY_DEFAULT, "attn_8b_wgmma_inline"},
                 {TANDEM_SMOOTH_NONE, TANDEM_GRANULARITY_TENSOR, "attn_8b_wgmma_inline"},
                 {TANDEM_SMOOTH_Q, TANDEM_GRANULARITY_DEFAULT, "attn_8b_fp8"},
                 {TANDEM_SMOOTH_DEFAULT, TANDEM_GRANULARITY_THREAD_ADA, "attn_8b_fp8"}};

    (void)state;
    if (sm != 90)
        skip();
    F.attention = "";
    enter();
    assert_string_equal(F.attention, "attn_8b_wgmma_inline"); /* of the self-test */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tandem_job job = job_on(w.flights[0].mem);
        tandem_ticket ticket;

        job.op.attention.precision = TANDEM_PRECISION_8B;
        job.op.attention.smooth = cases[i].smooth;
        job.op.attention.granularity = cases[i].granularity;
        F.attention = "";
        OK(tandem_submit(w.s, &job, &ticket));
        OK(tandem_wait(w.s, ticket, LIMIT_NS, NULL));
        assert_string_equal(F.attention, cases[i].kernel);
    }
    leave();
}

static void test_record_frames(void **state)
{
    (void)state;
    record_frames(false);
    if (F.real)
        record_frames(true);
}

/* tandem_submit() between two submits of the engine's: one more. */
static void submit_frames(uint64_t deadline_ns)
{
    enum { WARM = 12 };
    const uint64_t counted = frames_here() - WARM;

    enter();
    for (uint64_t frame = 0; frame < frames_here() + FRAMES; frame++) {
        flight *f = &w.flights[frame % FRAMES];
        tandem_job job = job_on(f->mem);
        tandem_status status;

        if (frame >= FRAMES) {
            wait_flight(f);
            check_flight(f, frame - FRAMES);
            OK(tandem_wait(w.s, f->ticket, LIMIT_NS, NULL));
            check_done(f);
        }
        if (frame >= frames_here())
            continue;
        if (frame == WARM) {
            F.allocations = F.copies = F.begins = F.submits = F.batches = F.waits = F.signals = 0;
            w.locks = 0;
        }
        fill(f, frame + 1);
        begin_commands(f->commands[0]);
        record_copies(f, f->commands[0], NULL, true);
        assert_int_equal(gpu.EndCommandBuffer(f->commands[0]), VK_SUCCESS);
        submit_flight(f, 0, 1, (vku_point){0}, (vku_point){w.engines_semaphore, frame + 1}, VK_NULL_HANDLE);
        job.deadline_ns = deadline_ns;
        OK(tandem_timeline_submitted(w.s, w.engines, frame + 1));
        job.wait = (tandem_point){w.engines, frame + 1};
        job.signal = (tandem_point){w.ours, frame + 1};
        while ((status = tandem_submit(w.s, &job, &f->ticket)) == TANDEM_ERROR_BUSY)
            ;
        OK(status);
        begin_commands(f->commands[2]);
        record_copies(f, NULL, f->commands[2], false);
        assert_int_equal(gpu.EndCommandBuffer(f->commands[2]), VK_SUCCESS);
        submit_flight(f, 2, 1, (vku_point){w.our_semaphore, frame + 1}, (vku_point){0}, f->fence);
    }
    assert_int_equal(F.allocations, 0);
    assert_int_equal(F.copies, 2 * counted);
    assert_int_equal(F.begins, 2 * counted); /* the engine's */
    assert_int_equal(F.submits, 3 * counted);
    assert_int_equal(F.batches, 3 * counted);
    assert_int_equal(F.waits, 2 * counted);   /* of the job, and the engine's for it */
    assert_int_equal(F.signals, 3 * counted); /* the engine's; the job's point, and the stream's own count */
    assert_int_equal(w.locks, 3 * counted);
    OK(tandem_session_info(w.s, &w.info));
    assert_int_equal(w.info.jobs_done, frames_here());
    leave();
}

static void test_submit_frames(void **state)
{
    (void)state;
    submit_frames(0);
    submit_frames(LIMIT_NS);
}

/* A job whose value is not announced is held on the host, which looks for the value, but not all the time. */
static void test_held(void **state)
{
    enum { JOBS = 12, ANNOUNCES = 6, HELD_MS = 30 };
    const struct timespec held = {.tv_nsec = HELD_MS * 1000000};

    (void)state;
    enter();
    for (uint64_t value = 1; value <= JOBS; value++) {
        flight *f = &w.flights[0];
        const uint64_t begin = td_now_ns();
        tandem_job job = job_on(f->mem);
        unsigned submits, reads;

        F.counter_reads = 0;
        job.wait = (tandem_point){w.engines, value};
        job.signal = (tandem_point){w.ours, value};
        submits = F.submits;
        OK(tandem_submit(w.s, &job, &f->ticket));
        nanosleep(&held, NULL);
        reads = __atomic_load_n(&F.counter_reads, __ATOMIC_RELAXED);
        assert_int_equal(F.submits, submits);
        assert_int_equal(report_of(f->ticket).state, TANDEM_JOB_PENDING);
        /* of 50 us each there are 40 around the time of the job before, some 30 at the begin */
        assert_in_range(reads, 1, (td_now_ns() - begin) / 400000 + 100);
        if (value > ANNOUNCES + 1) /* those before were announced */
            assert_in_range(reads, 1, (td_now_ns() - begin) / 400000 + 10);
        must(td_vk_timeline_signal(vk, w.engines_semaphore, value));
        if (value > ANNOUNCES) { /* nobody has to wake up for that */
            OK(tandem_timeline_submitted(w.s, w.engines, value));
            assert_int_equal(F.submits, submits + 1);
        }
        OK(tandem_wait(w.s, f->ticket, LIMIT_NS, NULL));
        assert_int_equal(report_of(f->ticket).state, TANDEM_JOB_DONE);
    }
    leave();
}

/* A job that the GPU has and that is given up: its blocks return at once, its output stays what it was, its point comes;
 * and the slot's next job is as any other. */
static void test_given_up(void **state)
{
    enum { TIMES = 2 * FRAMES };
    uint64_t value = 0;

    (void)state;
    if (F.real)
        return;
    enter();
    for (int late = 0; late < 2; late++)
        for (int i = 0; i < TIMES; i++) {
            flight *f = &w.flights[i % FRAMES];
            const bool given_up = i < FRAMES;
            tandem_job job = job_on(f->mem);
            const uint64_t begin = td_now_ns();

            value++;
            fill(f, value);
            begin_commands(f->commands[0]);
            record_copies(f, f->commands[0], NULL, true);
            assert_int_equal(gpu.EndCommandBuffer(f->commands[0]), VK_SUCCESS);
            submit_flight(f, 0, 1, (vku_point){0}, (vku_point){w.engines_semaphore, value}, VK_NULL_HANDLE);
            OK(tandem_timeline_submitted(w.s, w.engines, value));
            job.wait = (tandem_point){w.engines, value};
            job.signal = (tandem_point){w.ours, value};
            job.deadline_ns = !late ? 0 : given_up ? 1000000 : LIMIT_NS;
            F.swallow_submits = true;
            OK(tandem_submit(w.s, &job, &f->ticket));
            F.swallow_submits = false;
            if (given_up && !late)
                OK(tandem_cancel(w.s, f->ticket));
            while (given_up && late && report_of(f->ticket).state == TANDEM_JOB_PENDING)
                assert_true(td_now_ns() - begin < LIMIT_NS);
            F.blocks = 0;
            fake_nvx_run_swallowed();
            OK(tandem_point_wait(w.s, (tandem_point){w.ours, value}, LIMIT_NS));
            OK(tandem_wait(w.s, f->ticket, LIMIT_NS, NULL));
            assert_int_equal(report_of(f->ticket).state, !given_up ? TANDEM_JOB_DONE
                                                         : late    ? TANDEM_JOB_STALE
                                                                   : TANDEM_JOB_CANCELLED);
            assert_true((F.blocks == 0) == given_up);
            begin_commands(f->commands[2]);
            record_copies(f, NULL, f->commands[2], false);
            assert_int_equal(gpu.EndCommandBuffer(f->commands[2]), VK_SUCCESS);
            submit_flight(f, 2, 1, (vku_point){w.our_semaphore, value}, (vku_point){0}, f->fence);
            wait_flight(f);
            if (!given_up)
                check_flight(f, value);
            for (size_t e = 0; e < ELEMENTS && given_up; e++)
                assert_true(isnan(((const frame_data *)f->out.host)->o[e]));
        }
    leave();
}

/* Image -> tokens -> attention -> tokens -> image. */
static void test_pack_and_unpack(void **state)
{
    enum { SIZE = 16, TILE = 8, TILES = 4, TOKENS = TILE * TILE };
    static float texels[SIZE][SIZE][4], tokens[TILES][TOKENS][DIM], got[SIZE][SIZE][4];
    static double o[TILES][TOKENS][DIM];
    const tandem_view view = {.dtype = TANDEM_DTYPE_F32, .stride_row = DIM, .stride_batch = TOKENS * DIM};
    tandem_attention op = {.q = view, .k = view, .v = view, .o = view, .batch = TILES, .heads = 1, .kv_heads = 1,
                           .q_len = TOKENS, .kv_len = TOKENS, .head_dim = DIM, .precision = TANDEM_PRECISION_F16};
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
    tandem_pack pack = {.struct_bytes = sizeof pack, .image_count = 1, .layout = VK_IMAGE_LAYOUT_GENERAL,
                        .format = VK_FORMAT_R32G32B32A32_SFLOAT, .width = SIZE, .height = SIZE, .tile_width = TILE,
                        .tile_height = TILE, .channels = 4, .view_channels = DIM},
                unpack;
    const VkPipelineStageFlags compute = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
    vku_image from, to;
    tandem_mem mem;
    uint64_t seed = 77;
    flight *f;

    (void)state;
    enter();
    f = &w.flights[0];
    for (int y = 0; y < SIZE; y++)
        for (int x = 0; x < SIZE; x++)
            for (int c = 0; c < 4; c++) {
                texels[y][x][c] = (float)tu_normal(&seed);
                tokens[y / TILE * 2 + x / TILE][y % TILE * TILE + x % TILE][c] = texels[y][x][c];
            }
    td_ref_attention(&op, tokens, tokens, tokens, &o[0][0][0], NULL);
    assert_int_equal(vku_image_create(&gpu, pack.format, SIZE, SIZE, VK_IMAGE_USAGE_SAMPLED_BIT, &from), VK_SUCCESS);
    assert_int_equal(vku_image_create(&gpu, pack.format, SIZE, SIZE, VK_IMAGE_USAGE_STORAGE_BIT, &to), VK_SUCCESS);
    assert_int_equal(vku_image_upload(&gpu, &from, texels, VK_IMAGE_LAYOUT_GENERAL), VK_SUCCESS);
    assert_int_equal(vku_image_upload(&gpu, &to, texels, VK_IMAGE_LAYOUT_GENERAL), VK_SUCCESS);
    mem = new_mem(2 * sizeof tokens);
    op.q.mem = op.k.mem = op.v.mem = op.o.mem = mem;
    op.o.offset_bytes = sizeof tokens;
    job.op.attention = op;
    unpack = pack;
    pack.images[0] = from.view;
    pack.view = op.q;
    unpack.images[0] = to.view;
    unpack.view = op.o;
    for (int one_buffer = 0; one_buffer <= F.real; one_buffer++) {
        VkCommandBuffer commands[3];

        for (int i = 0; i < 3; i++) {
            commands[i] = f->commands[one_buffer ? 0 : i];
            if (!i || !one_buffer)
                begin_commands(commands[i]);
        }
        OK(tandem_record_acquire(w.s, commands[0], mem, compute, VK_ACCESS_SHADER_WRITE_BIT));
        OK(tandem_record_pack(w.s, commands[0], &pack));
        OK(tandem_record_release(w.s, commands[0], mem, compute, VK_ACCESS_SHADER_WRITE_BIT));
        OK(tandem_record(w.s, &job, commands[1], &f->ticket));
        OK(tandem_record_acquire(w.s, commands[2], mem, compute, VK_ACCESS_SHADER_READ_BIT));
        OK(tandem_record_unpack(w.s, commands[2], &unpack));
        for (int i = 0; i < (one_buffer ? 1 : 3); i++)
            assert_int_equal(gpu.EndCommandBuffer(commands[i]), VK_SUCCESS);
        submit_flight(f, 0, one_buffer ? 1 : 3, (vku_point){0}, (vku_point){0}, f->fence);
        wait_flight(f);
        check_done(f);
        memset(got, 0xff, sizeof got);
        assert_int_equal(vku_image_readback(&gpu, &to, got), VK_SUCCESS);
        for (int y = 0; y < SIZE; y++)
            for (int x = 0; x < SIZE; x++)
                for (int c = 0; c < 4; c++)
                    assert_true(fabs((double)got[y][x][c] -
                                     o[y / TILE * 2 + x / TILE][y % TILE * TILE + x % TILE][c]) < 0.02);
        assert_int_equal(vku_image_upload(&gpu, &to, texels, VK_IMAGE_LAYOUT_GENERAL), VK_SUCCESS);
    }
    vku_image_destroy(&gpu, &from);
    vku_image_destroy(&gpu, &to);
    leave();
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_kernels_of_8b),
    cmocka_unit_test(test_record_frames),
    cmocka_unit_test(test_submit_frames),
    cmocka_unit_test(test_held),
    cmocka_unit_test(test_given_up),
    cmocka_unit_test(test_pack_and_unpack),
};
const test_cases inline_frames_cases = TEST_CASES(cases);
