/* What goes to the GPU, when, what a frame costs there, and what happens when the GPU fails or hangs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/plugin/pitfalls/rig.h"

/* Nothing waits on the GPU for what the engine has not announced, and nothing overtakes what is held. */
static void held_on_the_host(void **state)
{
    tandem_timeline engines, ours;
    tandem_ticket tickets[4];
    tandem_job job;
    tandem_mem mem;

    (void)state;
    w.one_by_one = true;
    enter(ON_TIMELINES);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    mem = new_mem(MEM_BYTES);
    run_frame(mem, engines, ours, 1);
    forget();
    for (uint64_t i = 0; i < 3; i++) {
        job = new_job(mem, i == 1 ? (tandem_point){0} : (tandem_point){engines, 2 + i}, (tandem_point){ours, 2 + i});
        tickets[i] = submit(&job);
    }
    sleep_ms(5);
    assert_int_equal(count_of("cuLaunchKernel"), 0);
    assert_int_equal(count_of("cuWaitExternalSemaphoresAsync"), 0);
    /* From within the call, as far as it announces. */
    assert_int_equal(tandem_timeline_submitted(w.s, engines, 2), TANDEM_OK);
    assert_int_equal(count_of("cuWaitExternalSemaphoresAsync"), 1);
    assert_int_equal(event_of("cuWaitExternalSemaphoresAsync", 0)->bytes, 2);
    assert_int_equal(count_of("cuSignalExternalSemaphoresAsync"), 2);
    sleep_ms(5);
    assert_int_equal(value_of(ours), 1);
    assert_int_equal(state_of(tickets[0]).state, TANDEM_JOB_PENDING);
    assert_int_equal(tandem_timeline_signal(w.s, engines, 2), TANDEM_OK);
    assert_int_equal(ended(tickets[0]).state, TANDEM_JOB_DONE);
    assert_int_equal(ended(tickets[1]).state, TANDEM_JOB_DONE);
    assert_int_equal(count_of("cuWaitExternalSemaphoresAsync"), 1);
    /* The third is noticed. */
    assert_int_equal(tandem_timeline_signal(w.s, engines, 4), TANDEM_OK);
    assert_int_equal(ended(tickets[2]).state, TANDEM_JOB_DONE);
    assert_int_equal(value_of(ours), 4);
    /* Announced before: at once. */
    forget();
    assert_int_equal(tandem_timeline_submitted(w.s, engines, 100), TANDEM_OK);
    job = new_job(mem, (tandem_point){engines, 100}, (tandem_point){ours, 5});
    tickets[3] = submit(&job);
    assert_int_equal(count_of("cuWaitExternalSemaphoresAsync"), 1);
    assert_int_equal(tandem_timeline_signal(w.s, engines, 100), TANDEM_OK);
    assert_int_equal(ended(tickets[3]).state, TANDEM_JOB_DONE);
    leave();
}

static char log_text[1000];
static atomic_uint log_lines;

static void keep_log(void *user, int level, const char *text)
{
    (void)user;
    if (level == TANDEM_LOG_ERROR) {
        snprintf(log_text, sizeof log_text, "%s", text);
        atomic_fetch_add(&log_lines, 1);
    }
}

/* Lines about jobs come behind their reports, as late as a busy machine likes; one too many would come as soon. */
static void assert_logged(unsigned lines, const char *last)
{
    const uint64_t begin = td_now_ns();

    while (atomic_load(&log_lines) < lines && td_now_ns() - begin < LIMITS_PATIENCE_NS)
        sleep_ms(1);
    sleep_ms(10);
    assert_int_equal(atomic_load(&log_lines), lines);
    assert_non_null(strstr(log_text, last));
}

/* A job that is with the GPU is given up by its words, and the GPU signals for it, once its wait is over. */
static void given_up_on_the_gpu(void **state)
{
    enum { BOUND_MS = 500 };
    tandem_timeline engines, ours;
    tandem_ticket late, cancelled, lost;
    tandem_job job;
    tandem_mem mem;
    uint64_t begin;

    (void)state;
    if (!prepare(ON_TIMELINES))
        skip();
    w.desc.wait_bound_ns = BOUND_MS * MS;
    w.desc.log = keep_log;
    atomic_store(&log_lines, 0);
    assert_int_equal(create(), TANDEM_OK);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    mem = new_mem(MEM_BYTES);
    assert_int_equal(tandem_timeline_submitted(w.s, engines, 3), TANDEM_OK);
    begin = td_now_ns();
    job = new_job(mem, (tandem_point){engines, 1}, (tandem_point){ours, 1});
    job.deadline_ns = 20 * MS;
    late = submit(&job);
    job = new_job(mem, (tandem_point){engines, 2}, (tandem_point){ours, 2});
    cancelled = submit(&job);
    job = new_job(mem, (tandem_point){engines, 3}, (tandem_point){ours, 3});
    lost = submit(&job);
    assert_int_equal(tandem_cancel(w.s, cancelled), TANDEM_OK);
    assert_int_equal(ended(late).state, TANDEM_JOB_STALE);
    assert_in_range(td_now_ns() - begin, 20 * MS, BOUND_MS * MS);
    assert_int_equal(state_of(cancelled).state, TANDEM_JOB_PENDING); /* until its point comes */
    assert_int_equal(ended(lost).state, TANDEM_JOB_FAILED);
    assert_int_equal(ended(lost).status, TANDEM_ERROR_LOST);
    assert_in_range(td_now_ns() - begin, BOUND_MS * MS, LIMITS_SOON_NS);
    sleep_ms(30);
    assert_int_equal(value_of(ours), 0);
    assert_int_equal(value_of(engines), 0); /* nobody forced it */
    assert_logged(3, "announced 3");        /* each wait is told of once */
    assert_non_null(strstr(log_text, "on the GPU as submit 3, 0 of its"));
    for (uint64_t i = 1; i <= 3; i++) {
        assert_int_equal(tandem_timeline_signal(w.s, engines, i), TANDEM_OK);
        assert_int_equal(tandem_point_wait(w.s, (tandem_point){ours, i}, LONG_NS), TANDEM_OK);
    }
    assert_int_equal(ended(cancelled).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(ended(late).state, TANDEM_JOB_STALE);
    /* The session goes while an announced wait is out of bounds: now it is released. */
    assert_int_equal(tandem_timeline_submitted(w.s, engines, 4), TANDEM_OK);
    job = new_job(mem, (tandem_point){engines, 4}, (tandem_point){ours, 4});
    submit(&job);
    begin = td_now_ns();
    assert_int_equal(tandem_session_destroy(&w.s), TANDEM_OK);
    assert_in_range(td_now_ns() - begin, BOUND_MS / 2 * MS, LIMITS_SOON_NS);
    assert_non_null(strstr(log_text, "released by force"));
    leave();
}

static atomic_uint allocated;

static void *count_allocate(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    atomic_fetch_add(&allocated, 1);
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void just_release(void *user, void *pointer)
{
    (void)user;
    free(pointer);
}

/* After as many frames as there are slots: no allocation, no copy, no wait on the host, nothing made or mapped. */
static void frames_cost_nothing(void **state)
{
    static const char *const may[] = {"vkGetSemaphoreCounterValue",
                                      "vkSignalSemaphore", /* the test's own */
                                      "vkGetCalibratedTimestampsEXT",
                                      "cuCtxPushCurrent",
                                      "cuCtxPopCurrent",
                                      "cuLaunchKernel",
                                      "cuLaunchKernelEx",
                                      "cuWaitExternalSemaphoresAsync",
                                      "cuSignalExternalSemaphoresAsync",
                                      "cuEventRecord",
                                      "cuEventQuery",
                                      "cuEventSynchronize", /* the waiter's */
                                      "cuStreamQuery",
                                      "cuStreamWaitEvent",
                                      "cuGraphLaunch",
                                      "cuGraphExecKernelNodeSetParams",
                                      "cuGraphExecExternalSemaphoresSignalNodeSetParams",
                                      "cuGraphExecExternalSemaphoresWaitNodeSetParams"};
    enum { WARM = 6, FRAMES = 30 };
    tandem_timeline engines, ours;
    unsigned before;
    tandem_mem mem;

    (void)state;
    if (!prepare(ON_TIMELINES))
        skip();
    w.desc.allocate = count_allocate;
    w.desc.release = just_release;
    assert_int_equal(create(), TANDEM_OK);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    mem = new_mem(MEM_BYTES);
    for (uint64_t n = 1; n <= WARM + FRAMES; n++) {
        tandem_job job = new_job(mem, (tandem_point){engines, n}, (tandem_point){ours, n});
        tandem_ticket ticket;

        if (n == WARM + 1) {
            forget();
            before = atomic_load(&allocated);
            assert_int_equal(tandem_session_info(w.s, &w.info), TANDEM_OK);
        }
        if (n % 3 == 1) /* one of the three slots: a slot's graph is made again when its plan changes */
            job.deadline_ns = LONG_NS;
        assert_int_equal(tandem_timeline_submitted(w.s, engines, n), TANDEM_OK);
        ticket = submit(&job);
        assert_int_equal(tandem_timeline_signal(w.s, engines, n), TANDEM_OK);
        assert_int_equal(ended(ticket).state, TANDEM_JOB_DONE);
    }
    for (unsigned i = 0; i < seen.count; i++) {
        bool fine = false;

        for (size_t k = 0; k < sizeof may / sizeof *may; k++)
            fine = fine || !strcmp(seen.list[i].call, may[k]);
        if (!fine)
            fail_msg("a frame calls %s", seen.list[i].call);
    }
    assert_true(seen.count > 3 * FRAMES);
    assert_int_equal(atomic_load(&allocated), before);
    {
        tandem_info after = {.struct_bytes = sizeof after};

        assert_int_equal(tandem_session_info(w.s, &after), TANDEM_OK);
        assert_int_equal(after.cuda_copies, w.info.cuda_copies);
        assert_int_equal(after.cuda_allocations, w.info.cuda_allocations);
        assert_int_equal(after.cuda_host_waits, w.info.cuda_host_waits);
        assert_int_equal(after.host_bytes, w.info.host_bytes);
    }
    leave();
}

/* Three jobs that the device is at when it fails, or when the session goes. */

typedef struct doomed {
    tandem_timeline ours;
    tandem_ticket tickets[3];
    int fd; /* of the last one's point */
} doomed;

static void begin_doomed(doomed *d, ground on, bool copies)
{
    const tandem_point none = {0};

    w.one_by_one = true;
    if (!prepare_fake(on))
        skip();
    if (copies)
        w.desc.rung = TANDEM_RUNG_COPY;
    w.desc.log = keep_log;
    atomic_store(&log_lines, 0);
    assert_int_equal(create(), TANDEM_OK);
    d->ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    atomic_store(&fake_cuda_driver.holds, true);
    for (uint64_t i = 0; i < 3; i++) {
        const tandem_job job = new_job(new_mem(MEM_BYTES), none, (tandem_point){d->ours, i + 1});

        d->tickets[i] = submit(&job);
    }
    assert_int_equal(tandem_point_fd(w.s, (tandem_point){d->ours, 3}, &d->fd), TANDEM_OK);
    sleep_ms(5);
    assert_int_equal(value_of(d->ours), 0);
}

static bool is_readable(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};

    return poll(&one, 1, 100) == 1;
}

static void fails_at_work(ground on, bool copies)
{
    const fault_plan failed = {.kinds = FAULT_CUDA, .n = 1, .sticky = true, .cuda = 719};
    const tandem_point none = {0};
    tandem_ticket ticket;
    uint64_t begin;
    tandem_job job;
    doomed d;

    begin_doomed(&d, on, copies);
    const tandem_mem mem = new_mem(MEM_BYTES);
    const tandem_timeline timeline = new_timeline(TANDEM_SIGNALLER_SESSION);
    fault_arm(&failed);
    for (uint64_t i = 0; i < 3; i++) {
        const tandem_job_report report = ended(d.tickets[i]);

        assert_int_equal(report.state, TANDEM_JOB_FAILED);
        assert_int_equal(report.status, TANDEM_ERROR_DEVICE);
        assert_int_equal(tandem_point_wait(w.s, (tandem_point){d.ours, i + 1}, LONG_NS), TANDEM_OK);
    }
    assert_int_equal(value_of(d.ours), 3);
    assert_true(is_readable(d.fd));
    close(d.fd);
    assert_logged(1, "the GPU failed");
    begin = td_now_ns(); /* what no job signals never comes */
    assert_int_equal(tandem_point_wait(w.s, (tandem_point){d.ours, 4}, LONG_NS), TANDEM_ERROR_DEVICE);
    assert_true(td_now_ns() - begin < LONG_NS / 2);
    fault_disarm();
    job = new_job(new_mem(MEM_BYTES), none, none);
    assert_int_equal(tandem_submit(w.s, &job, &ticket), TANDEM_ERROR_DEVICE);
    assert_int_equal(tandem_mem_destroy(w.s, mem), TANDEM_OK); /* they go with the session, when the GPU is idle */
    assert_int_equal(tandem_timeline_destroy(w.s, timeline), TANDEM_OK);
    atomic_store(&fake_cuda_driver.holds, false); /* what it still does hurts nobody */
    sleep_ms(50);
    assert_int_equal(value_of(d.ours), 3);
    leave();
}

static void the_gpu_fails(void **state)
{
    (void)state;
    fails_at_work(ON_CUDA, false);
    fails_at_work(ON_CUDA, true);
    if (!w.gpu) /* semaphores that the fake device may signal */
        fails_at_work(ON_TIMELINES, false);
}

static void hangs_to_the_end(bool copies)
{
    uint64_t begin = td_now_ns();
    doomed d;

    begin_doomed(&d, ON_CUDA, copies);
    assert_int_equal(tandem_session_destroy(&w.s), TANDEM_OK);
    assert_in_range(td_now_ns() - begin, 1900 * MS, LIMITS_SOON_NS);
    assert_true(is_readable(d.fd));
    close(d.fd);
    assert_logged(1, "3 jobs did not end on the GPU within 2 s; what they use is left behind");
    atomic_store(&fake_cuda_driver.holds, false);
    sleep_ms(50);
    leave();
}

static void the_gpu_hangs(void **state)
{
    (void)state;
    hangs_to_the_end(false);
    hangs_to_the_end(true);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(held_on_the_host),
    cmocka_unit_test(given_up_on_the_gpu),
    cmocka_unit_test(frames_cost_nothing),
    cmocka_unit_test(the_gpu_fails),
    cmocka_unit_test(the_gpu_hangs),
};
const test_cases pitfalls_frames_cases = TEST_CASES(cases);
