/* Mems, timelines and sessions are destroyed while jobs need them and others wait.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "interop/base.h"
#include "tests/plugin/session/rig.h"

typedef struct scene {
    tandem_timeline engines, ours;
    tandem_mem mem, other;
    tandem_ticket tickets[3];
} scene;

/* Three jobs that wait for 1: on mem, on the other mem, on mem. */
static scene set_scene(rig *r)
{
    scene it = {.engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0),
                .ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0),
                .mem = new_mem(r, MEM_BYTES),
                .other = new_mem(r, MEM_BYTES)};

    for (uint64_t i = 0; i < 3; i++) {
        tandem_job job = new_job(i == 1 ? it.other : it.mem);

        job.wait = (tandem_point){it.engines, 1};
        job.signal = (tandem_point){it.ours, i + 1};
        it.tickets[i] = submit(r, &job);
    }
    return it;
}

typedef struct late_signal {
    rig *r;
    tandem_timeline timeline;
} late_signal;

static void *signal_late(void *user)
{
    late_signal *l = user;

    sleep_ns(50 * MS);
    tandem_timeline_signal(l->r->s, l->timeline, 1);
    return NULL;
}

static void destroy_mem(rig *r)
{
    scene it = set_scene(r);
    late_signal late = {r, it.engines};
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, signal_late, &late), 0);
    assert_int_equal(tandem_mem_destroy(r->s, it.mem), TANDEM_OK);
    assert_int_equal(tandem_mem_destroy(r->s, it.mem), TANDEM_ERROR_ARG);
    pthread_join(thread, NULL);
    assert_int_equal(tandem_point_wait(r->s, (tandem_point){it.ours, 3}, LONG_NS), TANDEM_OK);
    assert_int_equal(ended(r, it.tickets[0]).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(ended(r, it.tickets[1]).state, TANDEM_JOB_DONE);
    assert_int_equal(ended(r, it.tickets[2]).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(value_of(r, it.ours), 3);
}

static void destroy_engines_timeline(rig *r)
{
    scene it = set_scene(r);

    assert_int_equal(tandem_timeline_destroy(r->s, it.engines), TANDEM_OK);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(ended(r, it.tickets[i]).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(value_of(r, it.ours), 3);
}

static void destroy_sessions_timeline(rig *r)
{
    scene it = set_scene(r);

    assert_int_equal(tandem_timeline_destroy(r->s, it.ours), TANDEM_OK);
    assert_int_equal(tandem_timeline_destroy(r->s, it.ours), TANDEM_ERROR_ARG);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(ended(r, it.tickets[i]).state, TANDEM_JOB_CANCELLED);
}

static void destroy_under_jobs(rig *r)
{
    VkSemaphore semaphore;
    uint64_t begin, value = 0;
    scene it = set_scene(r);

    if (r->has_vk)
        assert_int_equal(tandem_timeline_get_vulkan(r->s, it.ours, &semaphore), TANDEM_OK);
    begin = td_now_ns();
    assert_int_equal(tandem_session_destroy(&r->s), TANDEM_OK);
    assert_true(td_now_ns() - begin < LIMITS_SOON_NS);
    assert_null(r->s);
    assert_int_equal(tandem_session_destroy(&r->s), TANDEM_ERROR_ARG);
    (void)value;
}

/* The engine's own semaphores outlive the session: every point is signalled by its end. */
static void destroy_signals(rig *r)
{
    const VkExportSemaphoreCreateInfo export = {.sType = VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO,
                                                .handleTypes = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT};
    const VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                            .pNext = gpu_signals(r) ? &export : NULL,
                                            .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    const VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
    tandem_timeline_desc desc = {.struct_bytes = sizeof desc, .signaller = TANDEM_SIGNALLER_SESSION};
    const PFN_vkGetSemaphoreCounterValue get =
        (PFN_vkGetSemaphoreCounterValue)r->vk.GetDeviceProcAddr(r->vk.device, "vkGetSemaphoreCounterValue");
    tandem_timeline engines, ours;
    VkSemaphore semaphore;
    tandem_job job;
    uint64_t value;

    engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0);
    assert_int_equal(r->vk.CreateSemaphore(r->vk.device, &info, NULL, &semaphore), VK_SUCCESS);
    desc.vulkan_semaphore = (uint64_t)(uintptr_t)semaphore;
    assert_int_equal(tandem_timeline_create(r->s, &desc, &ours), TANDEM_OK);
    job = new_job(new_mem(r, MEM_BYTES));
    for (uint64_t i = 1; i <= 3; i++) {
        job.wait = (tandem_point){engines, i};
        job.signal = (tandem_point){ours, 2 * i};
        submit(r, &job);
    }
    assert_int_equal(tandem_session_destroy(&r->s), TANDEM_OK);
    assert_int_equal(get(r->vk.device, semaphore, &value), VK_SUCCESS);
    assert_int_equal(value, 6);
    r->vk.DestroySemaphore(r->vk.device, semaphore, NULL);
}

static void destroy_while_running(rig *r)
{
    const tandem_timeline ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    const tandem_mem mem = new_mem(r, 1 << 22);
    tandem_job job = new_job(mem);
    tandem_attention *a = &job.op.attention;
    tandem_ticket ticket;

    /* Long enough to be caught running, some ms; but within the 2 s that a destruction waits, whatever else runs here. */
    a->q = a->k = a->v = view_at(mem, 0, 1, 1024, 128);
    a->o = view_at(mem, 1024 * 128, 1, 1024, 128);
    a->lse.dtype = TANDEM_DTYPE_NONE;
    a->heads = a->kv_heads = 1;
    a->q_len = a->kv_len = 1024;
    a->head_dim = 128;
    job.signal = (tandem_point){ours, 1};
    ticket = submit(r, &job);
    while (report_of(r, ticket).state == TANDEM_JOB_PENDING)
        sleep_ns(MS / 10);
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
    assert_int_equal(report_of(r, ticket).state, TANDEM_JOB_DONE);
    assert_int_equal(tandem_timeline_destroy(r->s, ours), TANDEM_OK);
}

/* A deadline holds while the session is destroyed, too: nothing is written behind it. */
static void destroy_before_a_deadline(rig *r)
{
    enum { N = 8192, D = 128, ELEMENTS = N * D }; /* more than 100 ms on one core */
    const uint64_t bytes = 2ull * ELEMENTS * sizeof(float);
    float *host = aligned_alloc(4096, bytes);
    const tandem_mem_desc desc = {
        .struct_bytes = sizeof desc, .source = TANDEM_MEM_HOST, .host = host, .bytes = bytes};
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
    tandem_attention *a = &job.op.attention;
    tandem_ticket ticket;
    tandem_mem mem;

    assert_non_null(host);
    memset(host, 0, bytes);
    memset(host + ELEMENTS, 0x55, bytes / 2);
    assert_int_equal(tandem_mem_create(r->s, &desc, &mem), TANDEM_OK);
    a->q = a->k = a->v = view_at(mem, 0, 1, N, D);
    a->o = view_at(mem, ELEMENTS, 1, N, D);
    a->batch = a->heads = a->kv_heads = 1;
    a->q_len = a->kv_len = N;
    a->head_dim = D;
    a->precision = TANDEM_PRECISION_F16;
    job.deadline_ns = 10 * MS;
    ticket = submit(r, &job);
    while (report_of(r, ticket).state == TANDEM_JOB_PENDING)
        sleep_ns(MS / 10);
    assert_int_equal(tandem_session_destroy(&r->s), TANDEM_OK);
    for (size_t i = 0; i < ELEMENTS * sizeof(float); i++)
        assert_int_equal(((unsigned char *)(host + ELEMENTS))[i], 0x55);
    free(host);
}

static void test_destroy(void **state)
{
    rig r;

    (void)state;
    each_kind(destroy_mem);
    each_kind(destroy_engines_timeline);
    each_kind(destroy_sessions_timeline);
    each_kind(destroy_under_jobs);
    each_kind(destroy_while_running);
    assert_true(rig_prepare(&r, ON_CPU));
    r.desc.cpu_threads = 1;
    assert_true(rig_start(&r));
    destroy_before_a_deadline(&r);
    rig_close(&r);
    for (rig_kind kind = ON_VULKAN; kind < KINDS; kind++)
        if (rig_open(&r, kind)) {
            destroy_signals(&r);
            rig_close(&r);
        }
}

/* A waiter on a timeline that goes away is told so. */
typedef struct waiter {
    rig *r;
    tandem_point point;
    tandem_status status;
} waiter;

static void *wait_there(void *user)
{
    waiter *w = user;

    w->status = tandem_point_wait(w->r->s, w->point, LONG_NS);
    return NULL;
}

static void destroy_under_waiter(rig *r)
{
    for (uint32_t signaller = 0; signaller < 2; signaller++) {
        waiter w = {.r = r, .point = {new_timeline(r, signaller, 0), 1}};
        pthread_t thread;

        assert_int_equal(pthread_create(&thread, NULL, wait_there, &w), 0);
        sleep_ns(20 * MS);
        assert_int_equal(tandem_timeline_destroy(r->s, w.point.timeline), TANDEM_OK);
        pthread_join(thread, NULL);
        assert_int_equal(w.status, TANDEM_ERROR_ARG);
    }
}

static void test_waiters(void **state)
{
    (void)state;
    each_kind(destroy_under_waiter);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_destroy),
    cmocka_unit_test(test_waiters),
};
const test_cases session_destruction_cases = TEST_CASES(cases);
