/* Sessions and timelines that are destroyed while the engine's queue waits for a point that no job signals: the commonest
 * mistake of a first integration is to submit the work behind a job that tandem_submit() has refused.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interop/base.h"
#include "tandem/vulkan.h"
#include "tests/cases.h"
#include "tests/interop/vk_util.h"
#include "tests/limits.h"
#include "tests/plugin/daemon_util.h"

#define MS 1000000ull
#define BOUND_NS (6000 * MS) /* 2 s that are documented, on a machine that does other things */
enum { ROWS = 32, DIM = 32, VIEW_BYTES = ROWS * DIM * 4 };

static group_daemon served;

/* What the session stands on, and what it is told of the engine's device. */
typedef struct ground {
    const char *name;
    uint32_t rung, backend; /* backend 0: the CPU's */
    bool remote, without_queue, without_lock, engines_semaphore, validation;
} ground;

static const ground grounds[] = {
    {.name = "cpu", .validation = true},
    {.name = "cpu, no queue given", .without_queue = true},
    {.name = "cpu, no lock given", .without_lock = true},
    {.name = "cpu, the engine's own semaphore", .engines_semaphore = true},
    {.name = "copy", .rung = TANDEM_RUNG_COPY, .validation = true},
    {.name = "tandemd", .remote = true},
    {.name = "tandemd, no queue given", .remote = true, .without_queue = true},
    {.name = "tandemd, copy", .remote = true, .rung = TANDEM_RUNG_COPY},
};
/* Where there is a GPU, which computes: whose own signals and waits these are differs from rung to rung. */
static const ground gpu_grounds[] = {
    {.name = "inline", .rung = TANDEM_RUNG_INLINE, .backend = TANDEM_BACKEND_CUDA},
    {.name = "timeline", .rung = TANDEM_RUNG_TIMELINE, .backend = TANDEM_BACKEND_CUDA},
    {.name = "timeline, no queue given", .rung = TANDEM_RUNG_TIMELINE, .backend = TANDEM_BACKEND_CUDA, .without_queue = true},
    {.name = "host", .rung = TANDEM_RUNG_HOST, .backend = TANDEM_BACKEND_CUDA},
    {.name = "copy", .rung = TANDEM_RUNG_COPY, .backend = TANDEM_BACKEND_CUDA},
};

/* What a test goes through. */
typedef struct ground_list {
    const ground *grounds;
    int count;
} ground_list;
static ground_list on_cpu = {grounds, sizeof grounds / sizeof *grounds},
                   on_gpu = {gpu_grounds, sizeof gpu_grounds / sizeof *gpu_grounds};

typedef struct rig {
    const ground *on;
    vku vk;
    tandem_vulkan vulkan;
    tandem_session *s;
    tandem_mem mem;
    tandem_mem_vulkan buffer;
    tandem_timeline engines, ours;
    VkSemaphore engines_semaphore, ours_semaphore, own;
    tandem_job job;
    vku_buffer down;
    VkFence fence;
    pthread_mutex_t lock, queue_lock;
    char lines[8000];
} rig;

static void hear(void *user, int level, const char *text)
{
    rig *r = user;
    size_t used;

    if (level > TANDEM_LOG_WARN)
        return;
    pthread_mutex_lock(&r->lock);
    used = strlen(r->lines);
    snprintf(r->lines + used, sizeof r->lines - used, "%s\n", text);
    pthread_mutex_unlock(&r->lock);
}

static void lock_queue(void *user) { pthread_mutex_lock(&((rig *)user)->queue_lock); }
static void unlock_queue(void *user) { pthread_mutex_unlock(&((rig *)user)->queue_lock); }

static void says(rig *r, const char *words)
{
    if (!strstr(r->lines, words))
        fail_msg("%s: nobody says '%s': %s", r->on->name, words, r->lines);
}

static tandem_timeline new_timeline(rig *r, tandem_signaller signaller, VkSemaphore *semaphore)
{
    tandem_timeline_desc desc = {.struct_bytes = sizeof desc, .signaller = signaller};
    tandem_timeline timeline;

    if (r->on->engines_semaphore && signaller == TANDEM_SIGNALLER_SESSION) {
        const VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                                .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
        const VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};

        assert_int_equal(r->vk.CreateSemaphore(r->vk.device, &info, NULL, &r->own), VK_SUCCESS);
        desc.vulkan_semaphore = (uint64_t)(uintptr_t)r->own;
    }
    assert_int_equal(tandem_timeline_create(r->s, &desc, &timeline), TANDEM_OK);
    assert_int_equal(tandem_timeline_get_vulkan(r->s, timeline, semaphore), TANDEM_OK);
    return timeline;
}

static void open_rig(rig *r, const ground *on)
{
    const vku_options options = {.validation = on->validation};
    const tandem_mem_desc mem = {.struct_bytes = sizeof mem, .bytes = 4 * VIEW_BYTES};
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    tandem_attention *op = &r->job.op.attention;
    void *host;
    char text[600] = "";
    tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = on->backend ? on->backend : TANDEM_BACKEND_CPU,
                                .cpu_threads = 1, .rung = on->rung, .vulkan = &r->vulkan, .log = hear, .user = r,
                                .error_text = text, .error_text_bytes = sizeof text,
                                .socket = on->remote ? served.socket_path : NULL};

    memset(r, 0, sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
    pthread_mutex_init(&r->queue_lock, NULL);
    r->on = on;
    if (!vku_try(&r->vk, &options))
        skip();
    r->vulkan = vku_engine(&r->vk);
    r->vulkan.user = r;
    if (on->without_queue)
        r->vulkan.queue = VK_NULL_HANDLE;
    if (!on->without_lock) {
        r->vulkan.lock_queue = lock_queue;
        r->vulkan.unlock_queue = unlock_queue;
    }
    if (tandem_session_create(&desc, &r->s) != TANDEM_OK)
        fail_msg("%s: session: %s", on->name, text);
    assert_int_equal(tandem_mem_create(r->s, &mem, &r->mem), TANDEM_OK);
    if (tandem_mem_host(r->s, r->mem, &host) == TANDEM_OK) /* who fills it: it needs no release */
        memset(host, 0, 4 * VIEW_BYTES);
    else
        assert_int_equal(on->backend, TANDEM_BACKEND_CUDA); /* whatever is in it: nobody looks at the result */
    r->lines[0] = 0; /* it was said that only the GPU sees it */
    r->buffer.struct_bytes = sizeof r->buffer;
    assert_int_equal(tandem_mem_get_vulkan(r->s, r->mem, &r->buffer), TANDEM_OK);
    r->engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, &r->engines_semaphore);
    r->ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, &r->ours_semaphore);
    r->job = (tandem_job){.struct_bytes = sizeof r->job, .operation = TANDEM_OPERATION_ATTENTION};
    *op = (tandem_attention){.batch = 1, .heads = 1, .kv_heads = 1, .q_len = ROWS, .kv_len = ROWS, .head_dim = DIM};
    op->q = tandem_view_dense(r->mem, 0, TANDEM_DTYPE_F32, 1, ROWS, DIM);
    op->k = tandem_view_dense(r->mem, VIEW_BYTES, TANDEM_DTYPE_F32, 1, ROWS, DIM);
    op->v = tandem_view_dense(r->mem, 2 * VIEW_BYTES, TANDEM_DTYPE_F32, 1, ROWS, DIM);
    op->o = tandem_view_dense(r->mem, 3 * VIEW_BYTES, TANDEM_DTYPE_F32, 1, ROWS, DIM);
    assert_int_equal(vku_buffer_create(&r->vk, VIEW_BYTES, VK_BUFFER_USAGE_TRANSFER_DST_BIT, &r->down), VK_SUCCESS);
    assert_int_equal(r->vk.CreateFence(r->vk.device, &fence, NULL, &r->fence), VK_SUCCESS);
}

/* The queue has come past all that it was given. */
static void expect_idle(rig *r)
{
    const VkResult result = r->vk.WaitForFences(r->vk.device, 1, &r->fence, VK_TRUE, BOUND_NS);

    if (result != VK_SUCCESS)
        fail_msg("%s: the queue's fence: VkResult %d: %s", r->on->name, result, r->lines);
}

static void close_rig(rig *r)
{
    const tandem_status status = r->s ? tandem_session_destroy(&r->s) : TANDEM_OK;

    if (status != TANDEM_OK)
        fail_msg("%s: the session ends with %s: %s", r->on->name, tandem_status_text(status), r->lines);
    r->vk.DestroyFence(r->vk.device, r->fence, NULL);
    vku_buffer_destroy(&r->vk, &r->down);
    if (r->own)
        r->vk.DestroySemaphore(r->vk.device, r->own, NULL);
    vku_close(&r->vk);
    if (r->vk.errors)
        fail_msg("%s: validation: %s", r->on->name, r->vk.last_text);
}

/* What would bring a job's result back, as a frame's second submit does: it waits for a point of the session's. */
static void submit_behind(rig *r, VkSemaphore semaphore, uint64_t value)
{
    const VkBufferCopy copy = {.srcOffset = r->job.op.attention.o.offset_bytes, .size = VIEW_BYTES};
    VkCommandBuffer commands = vku_begin(&r->vk);

    assert_int_equal(tandem_record_acquire(r->s, commands, r->mem, VK_PIPELINE_STAGE_TRANSFER_BIT,
                                           VK_ACCESS_TRANSFER_READ_BIT),
                     TANDEM_OK);
    r->vk.CmdCopyBuffer(commands, r->buffer.buffer, r->down.buffer, 1, &copy);
    assert_int_equal(vku_submit(&r->vk, commands, (vku_point){semaphore, value}, (vku_point){0}, r->fence), VK_SUCCESS);
}

static void refuse(rig *r, uint64_t value)
{
    tandem_ticket ticket;

    r->job.signal = (tandem_point){r->ours, value};
    r->job.op.attention.head_dim = 33;
    assert_int_equal(tandem_submit(r->s, &r->job, &ticket), TANDEM_ERROR_ARG);
    r->job.op.attention.head_dim = DIM;
}

static void run(rig *r, uint64_t value)
{
    tandem_ticket ticket;
    tandem_job_report report = {.struct_bytes = sizeof report};

    r->job.signal = (tandem_point){r->ours, value};
    assert_int_equal(tandem_submit(r->s, &r->job, &ticket), TANDEM_OK);
    assert_int_equal(tandem_wait(r->s, ticket, 20000 * MS, &report), TANDEM_OK);
    assert_int_equal(report.state, TANDEM_JOB_DONE);
}

static void destroy_session(rig *r)
{
    const uint64_t begin = td_now_ns();

    limits_begin(60);
    assert_int_equal(tandem_session_destroy(&r->s), TANDEM_OK);
    assert_true(td_now_ns() - begin < BOUND_NS);
    limits_end();
}

static void destroy_timeline(rig *r, tandem_timeline timeline)
{
    const uint64_t begin = td_now_ns();

    limits_begin(60);
    assert_int_equal(tandem_timeline_destroy(r->s, timeline), TANDEM_OK);
    assert_true(td_now_ns() - begin < BOUND_NS);
    limits_end();
}

static void name_point(char text[80], tandem_timeline timeline, uint64_t value)
{
    snprintf(text, 80, "{0x%" PRIx64 ", %" PRIu64 "}", timeline, value);
}

static void test_refused(void **state)
{
    const ground_list *on = *state;
    char point[80];
    rig r;

    for (int g = 0; g < on->count; g++)
        for (int first = 0; first < 4; first++) {
            open_rig(&r, &on->grounds[g]);
            run(&r, 1);
            refuse(&r, 2);
            submit_behind(&r, r.ours_semaphore, 2);
            if (first == 3) { /* the next frame's first submit, behind that, will signal the timeline that goes first */
                assert_int_equal(vku_submit(&r.vk, VK_NULL_HANDLE, (vku_point){0}, (vku_point){r.engines_semaphore, 2},
                                            VK_NULL_HANDLE),
                                 VK_SUCCESS);
                destroy_timeline(&r, r.engines);
                usleep(150000);
            }
            name_point(point, r.ours, 2);
            if (first == 2) /* what waits will write there, once it goes on */
                assert_int_equal(tandem_mem_destroy(r.s, r.mem), TANDEM_OK);
            if (first)
                destroy_timeline(&r, r.ours);
            else
                destroy_session(&r);
            says(&r, point);
            says(&r, "that no job signals");
            expect_idle(&r);
            close_rig(&r);
        }
}

/* A job that was never submitted, and one that was refused for its value. */
static void test_never_asked(void **state)
{
    const ground_list *on = *state;
    static const uint64_t values[] = {5, 1ull << 30};
    char point[80];
    rig r;

    for (int g = 0; g < on->count; g++)
        for (int i = 0; i < 4; i++) {
            if (on->grounds[g].engines_semaphore)
                continue; /* it stays the engine's, who can signal it */
            open_rig(&r, &on->grounds[g]);
            run(&r, 1);
            submit_behind(&r, r.ours_semaphore, values[i % 2]);
            name_point(point, r.ours, 1);
            if (i / 2)
                destroy_timeline(&r, r.ours);
            else
                destroy_session(&r);
            expect_idle(&r);
            if (!on->grounds[g].without_queue && !on->grounds[g].without_lock)
                says(&r, point);
            close_rig(&r);
        }
}

static void test_far_value(void **state)
{
    rig r;

    (void)state;
    open_rig(&r, &grounds[0]);
    refuse(&r, 1ull << 40);
    submit_behind(&r, r.ours_semaphore, 1ull << 40);
    destroy_session(&r);
    expect_idle(&r);
    close_rig(&r);
}

/* How long it takes to destroy what nobody waits for; nothing is said. */
static uint64_t destroy_quietly_ns(const ground *on)
{
    rig r;

    open_rig(&r, on);
    run(&r, 1);
    submit_behind(&r, r.ours_semaphore, 1);
    expect_idle(&r);
    const uint64_t begin = td_now_ns();
    destroy_timeline(&r, r.ours);
    destroy_session(&r);
    const uint64_t took = td_now_ns() - begin;
    if (r.lines[0])
        fail_msg("%s: %s", r.on->name, r.lines);
    close_rig(&r);
    return took;
}

/* Nor does it take long: once of several times at least nobody else has the cores meanwhile. */
static void test_quiet(void **state)
{
    enum { TRIES = 5 };
    const ground_list *on = *state;

    for (int g = 0; g < on->count; g++) {
        uint64_t least = UINT64_MAX;

        for (int i = 0; i < TRIES && least > 1000 * MS; i++) {
            const uint64_t took = destroy_quietly_ns(&on->grounds[g]);

            least = took < least ? took : least;
        }
        if (least > 1000 * MS)
            fail_msg("%s: %" PRIu64 " ms", on->grounds[g].name, least / MS);
    }
}

/* The engine waits for a point of its own that it never signals: that is not ours to signal, but the calls return. */
static void wait_for_engines_own(void **state)
{
    PFN_vkSignalSemaphore signal;
    rig r;

    (void)state;
    for (int timeline = 0; timeline < 2; timeline++) {
        open_rig(&r, &(ground){.name = "the engine's point"});
        run(&r, 1);
        submit_behind(&r, r.engines_semaphore, 1);
        if (timeline)
            destroy_timeline(&r, r.engines);
        destroy_session(&r);
        says(&r, "is left behind");
        signal = (PFN_vkSignalSemaphore)r.vk.GetDeviceProcAddr(r.vk.device, "vkSignalSemaphore");
        assert_int_equal(signal(r.vk.device, &(VkSemaphoreSignalInfo){.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO,
                                                                      .semaphore = r.engines_semaphore, .value = 1}),
                         VK_SUCCESS);
        expect_idle(&r);
        close_rig(&r);
    }
}

/* In a process of its own, with which ends what is left behind; a program of its own, as a failed or skipped case of a forked
 * child would go on with the parent's list and end the parent's daemon. */
enum { NO_VULKAN = 77 };
#define ENGINES_OWN "--engines-own"

static int main_of_engines_own(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(wait_for_engines_own)};
    const vku_options options = {0};
    vku vk;

    switch (vku_open(&vk, &options)) {
    case VKU_OK: break;
    case VKU_NO_VULKAN: return NO_VULKAN;
    default: return 1;
    }
    vku_close(&vk);
    cmocka_set_test_filter(NULL);
    _exit(cmocka_run_group_tests(tests, NULL, NULL)); /* what is left behind is left on purpose: nobody looks for leaks */
}

static void test_engines_own(void **state)
{
    const pid_t child = fork();
    int status;

    (void)state;
    assert_true(child >= 0);
    if (!child) {
        const int null = open("/dev/null", O_WRONLY); /* who counts cases does not count that one twice; errors are on stderr */

        dup2(null, STDOUT_FILENO);
        execl("/proc/self/exe", "test_destroy_waits", ENGINES_OWN, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_VULKAN)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Timelines that end while the queue is behind are kept until it is not, and then go. */
static void test_many_timelines(void **state)
{
    tandem_timeline timeline;
    VkSemaphore semaphore;
    rig r;

    (void)state;
    open_rig(&r, &grounds[0]);
    for (uint64_t i = 0; i < 4; i++) {
        timeline = r.ours;
        refuse(&r, 1);
        submit_behind(&r, r.ours_semaphore, 1);
        r.ours = new_timeline(&r, TANDEM_SIGNALLER_SESSION, &semaphore);
        r.ours_semaphore = semaphore;
        destroy_timeline(&r, timeline);
        expect_idle(&r);
        r.vk.DestroyFence(r.vk.device, r.fence, NULL);
        assert_int_equal(r.vk.CreateFence(r.vk.device,
                                          &(VkFenceCreateInfo){.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO}, NULL,
                                          &r.fence),
                         VK_SUCCESS);
        run(&r, 1);
    }
    destroy_session(&r);
    close_rig(&r);
}

/* Points without semaphores: who waits on the host. */
typedef struct waiter {
    tandem_session *s;
    tandem_point point;
    tandem_status status;
} waiter;

static void *wait_for(void *user)
{
    waiter *w = user;

    w->status = tandem_point_wait(w->s, w->point, 60000 * MS);
    return NULL;
}

static void test_counters(void **state)
{
    const tandem_timeline_desc ours = {.struct_bytes = sizeof ours, .signaller = TANDEM_SIGNALLER_SESSION};

    (void)state;
    for (int remote = 0; remote < 2; remote++) {
        const tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CPU,
                                          .socket = remote ? served.socket_path : NULL};
        const uint64_t begin = td_now_ns();
        tandem_timeline timeline;
        tandem_ticket ticket;
        pthread_t thread;
        waiter w = {0};

        limits_begin(60);
        assert_int_equal(tandem_session_create(&desc, &w.s), TANDEM_OK);
        assert_int_equal(tandem_timeline_create(w.s, &ours, &timeline), TANDEM_OK);
        w.point = (tandem_point){timeline, 3};
        assert_int_equal(tandem_submit(w.s, &(tandem_job){.struct_bytes = sizeof(tandem_job), .operation = 1,
                                                          .signal = w.point},
                                       &ticket),
                         TANDEM_ERROR_ARG);
        assert_int_equal(pthread_create(&thread, NULL, wait_for, &w), 0);
        usleep(50000);
        assert_int_equal(tandem_timeline_destroy(w.s, timeline), TANDEM_OK);
        pthread_join(thread, NULL);
        assert_true(w.status == TANDEM_OK || w.status == TANDEM_ERROR_ARG);
        assert_int_equal(tandem_session_destroy(&w.s), TANDEM_OK);
        assert_true(td_now_ns() - begin < BOUND_NS);
        limits_end();
    }
}

static int set_up(void **state)
{
    (void)state; /* each test has its own */
    return group_daemon_begin(&served, "waits", "backend = cpu\nthreads = 1\n");
}

static int tear_down(void **state)
{
    (void)state;
    return group_daemon_end(&served);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engines_own),
        cmocka_unit_test_prestate(test_refused, &on_cpu),
        cmocka_unit_test_prestate(test_never_asked, &on_cpu),
        cmocka_unit_test(test_far_value),
        cmocka_unit_test_prestate(test_quiet, &on_cpu),
        cmocka_unit_test(test_many_timelines),
        cmocka_unit_test(test_counters),
    };
    const struct CMUnitTest gpu_tests[] = {
        cmocka_unit_test_prestate(test_refused, &on_gpu),
        cmocka_unit_test_prestate(test_never_asked, &on_gpu),
        cmocka_unit_test_prestate(test_quiet, &on_gpu),
    };
    int failures;

    if (argc == 2 && !strcmp(argv[1], ENGINES_OWN))
        return main_of_engines_own();
    if (getenv("TANDEM_TEST_FILTER"))
        cmocka_set_test_filter(getenv("TANDEM_TEST_FILTER"));
    failures = cmocka_run_group_tests(tests, set_up, tear_down);
    if (expects_gpu())
        failures += cmocka_run_group_tests_name("on a GPU", gpu_tests, NULL, NULL);
    return failures != 0;
}
