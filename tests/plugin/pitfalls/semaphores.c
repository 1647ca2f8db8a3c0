/* Pitfalls of semaphores, streams and graphs: values, bounds, and the order of waits and kernels.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "tests/plugin/pitfalls/rig.h"

static void pitfall_14(void **state)
{
    (void)state;
    enter(ON_TIMELINES);
    forget();
    new_timeline(TANDEM_SIGNALLER_ENGINE);
    new_timeline(TANDEM_SIGNALLER_SESSION);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(event_of("cuImportExternalSemaphore", i)->type, 9); /* TIMELINE_SEMAPHORE_FD; 1 is binary */
        assert_int_equal(event_of("vkCreateSemaphore", i)->type, VK_SEMAPHORE_TYPE_TIMELINE);
    }
    leave();
}

static void pitfall_15(void **state)
{
    (void)state;
    enter(ON_TIMELINES);
    forget();
    assert_int_equal(tandem_session_destroy(&w.s), TANDEM_OK);
    assert_int_equal(create(), TANDEM_OK);
    assert_int_equal(event_of("vkGetPhysicalDeviceExternalSemaphoreProperties", 0)->type, VK_SEMAPHORE_TYPE_TIMELINE);
    assert_int_equal(event_of("vkGetPhysicalDeviceExternalSemaphoreProperties", 0)->handles, OPAQUE_SEMAPHORE);
    assert_int_equal(tandem_session_destroy(&w.s), TANDEM_OK);
    /* The extension is there, timelines cannot be exported: one rung lower, and no semaphore is made for export. */
    fault_disguise_as(FAULT_NO_TIMELINES);
    assert_int_equal(create(), TANDEM_OK);
    assert_int_equal(w.info.rung, TANDEM_RUNG_HOST);
    assert_non_null(strstr(w.info.rung_reason, "timeline"));
    forget();
    new_timeline(TANDEM_SIGNALLER_SESSION);
    assert_int_equal(event_of("vkCreateSemaphore", 0)->handles, 0);
    assert_int_equal(count_of("vkGetSemaphoreFdKHR"), 0);
    leave();
}

static void rising(ground on)
{
    tandem_timeline engines, ours;
    tandem_ticket ticket;
    tandem_job job;
    tandem_mem mem;

    enter(on);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    mem = new_mem(MEM_BYTES);
    run_frame(mem, engines, ours, 5);
    /* Each direction has one producer, whose values rise. */
    for (uint64_t value = 4; value <= 5; value++) {
        job = new_job(mem, (tandem_point){0}, (tandem_point){ours, value});
        assert_int_equal(tandem_submit(w.s, &job, &ticket), TANDEM_ERROR_ARG);
        assert_int_equal(tandem_timeline_signal(w.s, engines, value), TANDEM_ERROR_ARG);
    }
    job = new_job(mem, (tandem_point){0}, (tandem_point){engines, 6});
    assert_int_equal(tandem_submit(w.s, &job, &ticket), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_timeline_signal(w.s, ours, 6), TANDEM_ERROR_ARG);
    /* Steps that every device grants. */
    job = new_job(mem, (tandem_point){0}, (tandem_point){ours, 5 + 0x80000000ull});
    assert_int_equal(tandem_submit(w.s, &job, &ticket), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_timeline_signal(w.s, engines, 5 + 0x80000000ull), TANDEM_ERROR_ARG);
    /* A promise counts from tandem_submit() on, not from its signal. */
    job = new_job(mem, (tandem_point){engines, 6}, (tandem_point){ours, 6});
    ticket = submit(&job);
    assert_int_equal(tandem_submit(w.s, &job, &ticket), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_timeline_signal(w.s, engines, 6), TANDEM_OK);
    run_frame(mem, engines, ours, 7);
    leave();
}

static void pitfall_16(void **state)
{
    (void)state;
    rising(ON_HOST);
    rising(ON_VULKAN_CPU);
    rising(ON_TIMELINES);
}

static void older_value(ground on)
{
    tandem_timeline engines, ours;
    tandem_ticket tickets[2];
    tandem_job job;
    tandem_mem mem;

    enter(on);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    mem = new_mem(MEM_BYTES);
    forget();
    for (uint64_t i = 0; i < 2; i++) {
        job = new_job(mem, (tandem_point){engines, 1 + i}, (tandem_point){ours, 1 + i});
        tickets[i] = submit(&job);
    }
    assert_int_equal(tandem_timeline_signal(w.s, engines, 1), TANDEM_OK);
    assert_int_equal(tandem_point_wait(w.s, (tandem_point){ours, 1}, LONG_NS), TANDEM_OK);
    assert_int_equal(ended(tickets[0]).state, TANDEM_JOB_DONE);
    sleep_ms(20);
    assert_int_equal(state_of(tickets[1]).state, TANDEM_JOB_PENDING);
    assert_int_equal(tandem_timeline_signal(w.s, engines, 9), TANDEM_OK);
    assert_int_equal(ended(tickets[1]).state, TANDEM_JOB_DONE);
    if (on == ON_TIMELINES)
        for (unsigned i = 0; i < 2; i++)
            assert_int_equal(event_of("cuWaitExternalSemaphoresAsync", i)->bytes, 1 + i);
    leave();
}

static void pitfall_17(void **state)
{
    (void)state;
    older_value(ON_HOST);
    older_value(ON_VULKAN_CPU);
    w.one_by_one = true;
    older_value(ON_TIMELINES);
}

static void bounded(ground on)
{
    tandem_timeline engines, ours;
    tandem_job_report report;
    tandem_job job;
    tandem_mem mem;
    uint64_t begin;

    if (!prepare(on))
        skip();
    w.desc.wait_bound_ns = 50 * MS;
    assert_int_equal(create(), TANDEM_OK);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    mem = new_mem(MEM_BYTES);
    job = new_job(mem, (tandem_point){engines, 1}, (tandem_point){ours, 1});
    begin = td_now_ns();
    report = ended(submit(&job));
    assert_int_equal(report.state, TANDEM_JOB_FAILED);
    assert_int_equal(report.status, TANDEM_ERROR_LOST);
    assert_int_equal(tandem_point_wait(w.s, job.signal, LONG_NS), TANDEM_OK); /* signalled, whatever becomes of it */
    assert_in_range(td_now_ns() - begin, 50 * MS, LIMITS_SOON_NS);
    /* The stream is free again. */
    job = new_job(mem, (tandem_point){0}, (tandem_point){ours, 2});
    assert_int_equal(ended(submit(&job)).state, TANDEM_JOB_DONE);
    assert_int_equal(tandem_session_destroy(&w.s), TANDEM_OK);

    /* A session goes while a job waits for what never comes. */
    w.desc.wait_bound_ns = 0;
    assert_int_equal(create(), TANDEM_OK);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    job = new_job(new_mem(MEM_BYTES), (tandem_point){engines, 1}, (tandem_point){0});
    submit(&job);
    begin = td_now_ns();
    assert_int_equal(tandem_session_destroy(&w.s), TANDEM_OK);
    assert_true(td_now_ns() - begin < LIMITS_SOON_NS);
    leave();
}

static void pitfall_18(void **state)
{
    (void)state;
    bounded(ON_HOST);
    bounded(ON_VULKAN_CPU);
    bounded(ON_TIMELINES);
}

/* One stream for wait, kernels and signal; that one and those for copies do not synchronise with the NULL stream. */
static void pitfall_19(void **state)
{
    static const char *const calls[] = {"cuWaitExternalSemaphoresAsync", "cuLaunchKernel",
                                        "cuSignalExternalSemaphoresAsync"};
    tandem_timeline engines, ours;
    uint64_t stream;

    (void)state;
    w.one_by_one = true;
    enter(ON_TIMELINES);
    assert_int_equal(count_of("cuStreamCreate"), 4);
    for (unsigned n = 0; n < 4; n++)
        assert_int_equal(event_of("cuStreamCreate", n)->handle, TD_CU_STREAM_NON_BLOCKING);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    forget();
    run_frame(new_mem(MEM_BYTES), engines, ours, 1);
    assert_order(calls, 3);
    stream = event_of(calls[0], 0)->handle;
    assert_true(stream > 2); /* 1 and 2 are the legacy and the per-thread stream */
    for (int i = 0; i < 3; i++)
        for (unsigned n = 0; n < count_of(calls[i]); n++)
            assert_int_equal(event_of(calls[i], n)->handle, stream);
    assert_true(count_of("cuLaunchKernel") >= 3); /* two stamps and what is between them */
    assert_true(event_of(calls[2], 0) > event_of("cuLaunchKernel", count_of("cuLaunchKernel") - 1));
    leave();

    /* As a graph: one launch on such a stream, and nothing beside it. */
    enter(ON_TIMELINES);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    forget();
    run_frame(new_mem(MEM_BYTES), engines, ours, 1);
    assert_int_equal(count_of("cuGraphLaunch"), 1);
    assert_true(event_of("cuGraphLaunch", 0)->handle > 2);
    for (int i = 0; i < 3; i++)
        assert_int_equal(count_of(calls[i]), 0);
    leave();
}

/* The kernels of one frame that goes call by call; a graph must hold as many. */
static unsigned kernels_of_a_frame(void)
{
    unsigned count;

    w.one_by_one = true;
    enter(ON_TIMELINES);
    forget();
    run_frame(new_mem(MEM_BYTES), new_timeline(TANDEM_SIGNALLER_ENGINE), new_timeline(TANDEM_SIGNALLER_SESSION), 1);
    count = count_of("cuLaunchKernel") + count_of("cuLaunchKernelEx");
    leave();
    return count;
}

/* A graph keeps the values it was made with: each frame names its own, or it would begin at an earlier frame's point and
 * signal that one again. And all of a frame's kernels are in it. */
static void pitfall_20(void **state)
{
    enum { SLOTS = 3, FRAMES = 4 * SLOTS };
    const unsigned kernels = kernels_of_a_frame();
    tandem_timeline engines, ours;
    tandem_mem mem;

    (void)state;
    enter(ON_TIMELINES);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    mem = new_mem(MEM_BYTES);
    forget();
    for (uint64_t n = 1; n <= FRAMES; n++) {
        const tandem_job job = new_job(mem, (tandem_point){engines, n}, (tandem_point){ours, n});
        tandem_ticket ticket;

        assert_int_equal(tandem_timeline_submitted(w.s, engines, n), TANDEM_OK);
        ticket = submit(&job);
        for (uint64_t begin = td_now_ns(); count_of("cuGraphLaunch") < n; sleep_ms(1))
            assert_true(td_now_ns() - begin < 10000 * MS);
        sleep_ms(5);
        assert_int_equal(value_of(ours), n - 1); /* it waits for this frame's point, though the last one's has come */
        assert_int_equal(tandem_timeline_signal(w.s, engines, n), TANDEM_OK);
        assert_int_equal(tandem_point_wait(w.s, job.signal, 10000 * MS), TANDEM_OK);
        assert_int_equal(ended(ticket).state, TANDEM_JOB_DONE);
        assert_int_equal(value_of(ours), n);
    }
    assert_int_equal(count_of("cuGraphInstantiateWithFlags"), SLOTS); /* the others were replayed */
    assert_int_equal(count_of("cuGraphAddKernelNode"), SLOTS * kernels);
    assert_int_equal(count_of("cuGraphLaunch"), FRAMES);
    assert_int_equal(count_of("cuLaunchKernel") + count_of("cuLaunchKernelEx"), 0);
    leave();
}

static void pitfall_22(void **state)
{
    (void)state;
    enter(ON_TIMELINES);
    forget();
    new_timeline(TANDEM_SIGNALLER_SESSION);
    new_mem(4096);
    assert_int_equal(event_of("vkCreateSemaphore", 0)->handles, OPAQUE_SEMAPHORE);
    assert_int_equal(event_of("vkGetSemaphoreFdKHR", 0)->handles, OPAQUE_SEMAPHORE);
    assert_int_equal(event_of("vkGetMemoryFdKHR", 0)->handles, OPAQUE_MEMORY);
    assert_false(fault_looked_up("ImportSemaphore"));
    assert_false(fault_looked_up("ImportFence"));
    assert_false(fault_looked_up("Drm"));
    leave();
}

static const struct CMUnitTest cases[] = {
#define X(n) cmocka_unit_test(pitfall_##n),
    PITFALLS_OF_SEMAPHORES(X)
#undef X
};
const test_cases pitfalls_semaphores_cases = TEST_CASES(cases);
