/* Sessions in a child after fork(): each call is refused at once, and the parent's session does not notice.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "interop/base.h"
#include "tandem/plugin.h"
#include "tests/interop/vk_util.h"
#include "tests/limits.h"
#include "tests/plugin/daemon_util.h"

#define MS 1000000ull
#define PATIENCE LIMITS_PATIENCE_NS
#define CALL_NS (200 * MS) /* of CPU time, what a call in the child may take */
enum { ROWS = 512, DIM = 32, VIEW_BYTES = ROWS * DIM * 4 };

static group_daemon served;

/* By the linker's --wrap: a kernel before 4.14, which cannot wipe a page in a child. */
int __real_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice);
static bool is_old_kernel;
static unsigned refused;

int __wrap_madvise(void *at, size_t bytes, int advice)
{
    if (!is_old_kernel || advice != MADV_WIPEONFORK)
        return __real_madvise(at, bytes, advice);
    refused++;
    errno = EINVAL;
    return -1;
}

typedef struct rig {
    tandem_session *s;
    tandem_mem mem;
    tandem_timeline engines, ours;
    tandem_job job;
    uint64_t value;
    _Atomic unsigned errors;
    _Atomic pid_t busy; /* the thread that keeps the session's lock taken, once it does; else 0 */
    _Atomic bool ends;
} rig;

static void hear(void *user, int level, const char *text)
{
    rig *r = user;

    (void)text;
    if (level == TANDEM_LOG_ERROR)
        atomic_fetch_add(&r->errors, 1);
}

static tandem_timeline new_timeline(rig *r, tandem_signaller signaller)
{
    const tandem_timeline_desc desc = {.struct_bytes = sizeof desc, .signaller = signaller};
    tandem_timeline timeline;

    assert_int_equal(tandem_timeline_create(r->s, &desc, &timeline), TANDEM_OK);
    return timeline;
}

static void open_rig(rig *r, const char *socket, const tandem_vulkan *vulkan)
{
    const tandem_mem_desc mem = {.struct_bytes = sizeof mem, .bytes = 4 * VIEW_BYTES};
    tandem_attention *op = &r->job.op.attention;
    char text[500] = "";
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CPU, .vulkan = vulkan,
                                      .log = hear, .user = r, .cpu_threads = 2, .wait_bound_ns = PATIENCE,
                                      .error_text = text, .error_text_bytes = sizeof text, .socket = socket};
    void *host;

    memset(r, 0, sizeof *r);
    if (tandem_session_create(&desc, &r->s) != TANDEM_OK)
        fail_msg("session: %s", text);
    assert_int_equal(tandem_mem_create(r->s, &mem, &r->mem), TANDEM_OK);
    assert_int_equal(tandem_mem_host(r->s, r->mem, &host), TANDEM_OK);
    memset(host, 0, 4 * VIEW_BYTES);
    r->engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE);
    r->ours = new_timeline(r, TANDEM_SIGNALLER_SESSION);
    r->job = (tandem_job){.struct_bytes = sizeof r->job, .operation = TANDEM_OPERATION_ATTENTION};
    *op = (tandem_attention){.batch = 1, .heads = 1, .kv_heads = 1, .q_len = ROWS, .kv_len = ROWS, .head_dim = DIM};
    op->q = op->k = op->v = op->o =
        (tandem_view){.mem = r->mem, .dtype = TANDEM_DTYPE_F32, .stride_row = DIM};
    op->k.offset_bytes = VIEW_BYTES;
    op->v.offset_bytes = 2 * VIEW_BYTES;
    op->o.offset_bytes = 3 * VIEW_BYTES;
}

static tandem_ticket submit(rig *r)
{
    char text[500];
    tandem_ticket ticket;

    r->value++;
    r->job.wait = (tandem_point){r->engines, r->value};
    r->job.signal = (tandem_point){r->ours, r->value};
    if (tandem_submit(r->s, &r->job, &ticket) != TANDEM_OK) {
        tandem_error_text(r->s, text, sizeof text);
        fail_msg("submit: %s", text);
    }
    return ticket;
}

static void expect_done(rig *r, tandem_ticket ticket)
{
    tandem_job_report report = {.struct_bytes = sizeof report};
    char text[500];

    assert_int_equal(tandem_wait(r->s, ticket, PATIENCE, &report), TANDEM_OK);
    tandem_error_text(r->s, text, sizeof text);
    if (report.state != TANDEM_JOB_DONE)
        fail_msg("a job of the parent's ended %u (%d): %s", report.state, report.status, text);
    assert_int_equal(tandem_point_wait(r->s, (tandem_point){r->ours, r->value}, PATIENCE), TANDEM_OK);
}

/* Every function of the table that takes a session; destroy_session comes last. */
#define COMMANDS ((VkCommandBuffer)(uintptr_t)16)
static tandem_status destroy_session(rig *r) { return tandem_session_destroy(&r->s); }
static tandem_status info(rig *r)
{
    return tandem_session_info(r->s, &(tandem_info){.struct_bytes = sizeof(tandem_info)});
}
static tandem_status error_text(rig *r) { return tandem_error_text(r->s, (char[64]){0}, 64); }
static tandem_status mem_create(rig *r)
{
    return tandem_mem_create(r->s, &(tandem_mem_desc){.struct_bytes = sizeof(tandem_mem_desc), .bytes = 4096},
                             &(tandem_mem){0});
}
static tandem_status mem_destroy(rig *r) { return tandem_mem_destroy(r->s, r->mem); }
static tandem_status mem_host(rig *r) { return tandem_mem_host(r->s, r->mem, &(void *){NULL}); }
static tandem_status timeline_create(rig *r)
{
    return tandem_timeline_create(r->s, &(tandem_timeline_desc){.struct_bytes = sizeof(tandem_timeline_desc)},
                                  &(tandem_timeline){0});
}
static tandem_status timeline_destroy(rig *r) { return tandem_timeline_destroy(r->s, r->ours); }
static tandem_status timeline_value(rig *r) { return tandem_timeline_value(r->s, r->ours, &(uint64_t){0}); }
static tandem_status timeline_signal(rig *r) { return tandem_timeline_signal(r->s, r->engines, 1u << 20); }
static tandem_status timeline_submitted(rig *r) { return tandem_timeline_submitted(r->s, r->engines, 1u << 20); }
static tandem_status point_fd(rig *r) { return tandem_point_fd(r->s, (tandem_point){0}, &(int){0}); }
static tandem_status point_wait(rig *r) { return tandem_point_wait(r->s, (tandem_point){r->ours, 1u << 20}, PATIENCE); }
static tandem_status submit_job(rig *r) { return tandem_submit(r->s, &r->job, &(tandem_ticket){0}); }
static tandem_status poll_job(rig *r)
{
    return tandem_poll(r->s, 1, &(tandem_job_report){.struct_bytes = sizeof(tandem_job_report)});
}
static tandem_status wait_job(rig *r) { return tandem_wait(r->s, 1, PATIENCE, NULL); }
static tandem_status cancel_job(rig *r) { return tandem_cancel(r->s, 1); }
static tandem_status model_load(rig *r) { return tandem_model_load(r->s, "/nowhere", &(tandem_model){0}); }
static tandem_status model_create(rig *r)
{
    return tandem_model_create(
        r->s, &(tandem_model_desc){.struct_bytes = sizeof(tandem_model_desc), .path = "/nowhere"}, &(tandem_model){0});
}
static tandem_status model_tensor(rig *r)
{
    return tandem_model_tensor(r->s, 1, "x", &(tandem_view){0}, (uint64_t[4]){0});
}
static tandem_status model_destroy(rig *r) { return tandem_model_destroy(r->s, 1); }
static tandem_status model_info(rig *r)
{
    return tandem_model_info(r->s, 1, &(tandem_network){.struct_bytes = sizeof(tandem_network)});
}
static tandem_status model_number(rig *r) { return tandem_model_number(r->s, 1, 0, &(tandem_network_number){0}); }
static tandem_status model_binding(rig *r) { return tandem_model_binding(r->s, 1, NULL, 0, 0, &(tandem_network_tensor){0}); }
static tandem_status model_uniform(rig *r) { return tandem_model_uniform(r->s, 1, NULL, 0, 0, &(tandem_network_tensor){0}); }
static tandem_status model_instance(rig *r)
{
    return tandem_model_instance(r->s, 1, &(tandem_instance_desc){.struct_bytes = sizeof(tandem_instance_desc)},
                                 &(tandem_instance){0});
}
static tandem_status instance_destroy(rig *r) { return tandem_instance_destroy(r->s, 1); }
static tandem_status model_prepare(rig *r) { return tandem_model_prepare(r->s, 1, NULL, 0); }
static tandem_status model_prepared(rig *r) { return tandem_model_prepared(r->s, 1, NULL, 0, &(tandem_prepared){0}); }
static tandem_status model_layer(rig *r) { return tandem_model_layer(r->s, 1, NULL, 0, 0, &(tandem_layer){0}); }
static tandem_status supported(rig *r) { return tandem_supported(r->s, &r->job, NULL, NULL, 0); }
static tandem_status retire(rig *r) { return tandem_retire(r->s, r->mem); }
static tandem_status mem_get_vulkan(rig *r)
{
    return tandem_mem_get_vulkan(r->s, r->mem, &(tandem_mem_vulkan){.struct_bytes = sizeof(tandem_mem_vulkan)});
}
static tandem_status timeline_get_vulkan(rig *r)
{
    return tandem_timeline_get_vulkan(r->s, r->ours, &(VkSemaphore){VK_NULL_HANDLE});
}
static tandem_status record_release(rig *r) { return tandem_record_release(r->s, COMMANDS, r->mem, 1, 0); }
static tandem_status record_acquire(rig *r) { return tandem_record_acquire(r->s, COMMANDS, r->mem, 1, 0); }
static tandem_status pack_tiles(rig *r)
{
    return tandem_pack_tiles(r->s, &(tandem_pack){.struct_bytes = sizeof(tandem_pack)}, &(uint32_t){0}, &(uint32_t){0});
}
static tandem_status record_pack(rig *r) { return tandem_record_pack(r->s, COMMANDS, &(tandem_pack){0}); }
static tandem_status record_unpack(rig *r) { return tandem_record_unpack(r->s, COMMANDS, &(tandem_pack){0}); }
static tandem_status record_pack_images(rig *r)
{
    return tandem_record_pack_images(r->s, COMMANDS, &(tandem_pack_image){0}, 1);
}
static tandem_status record_unpack_images(rig *r)
{
    return tandem_record_unpack_images(r->s, COMMANDS, &(tandem_pack_image){0}, 1);
}
static tandem_status record_job(rig *r) { return tandem_record(r->s, &r->job, COMMANDS, &(tandem_ticket){0}); }

static tandem_status language_create(rig *r)
{
    return tandem_language_create(r->s, &(tandem_language_desc){.struct_bytes = sizeof(tandem_language_desc), .path = "/nowhere"},
                                  &(tandem_language *){NULL});
}

static const struct {
    const char *name;
    tandem_status (*call)(rig *r);
} calls[] = {
    {"info", info}, {"error_text", error_text}, {"mem_create", mem_create}, {"mem_destroy", mem_destroy},
    {"mem_host", mem_host}, {"timeline_create", timeline_create}, {"timeline_destroy", timeline_destroy},
    {"timeline_value", timeline_value}, {"timeline_signal", timeline_signal},
    {"timeline_submitted", timeline_submitted}, {"point_fd", point_fd}, {"point_wait", point_wait},
    {"submit", submit_job}, {"poll", poll_job}, {"wait", wait_job}, {"cancel", cancel_job},
    {"model_load", model_load}, {"model_create", model_create}, {"model_tensor", model_tensor},
    {"model_destroy", model_destroy},
    {"model_info", model_info}, {"model_number", model_number}, {"model_binding", model_binding},
    {"model_uniform", model_uniform}, {"model_instance", model_instance}, {"instance_destroy", instance_destroy},
    {"model_prepare", model_prepare}, {"model_prepared", model_prepared}, {"model_layer", model_layer}, {"supported", supported}, {"retire", retire},
    {"mem_get_vulkan", mem_get_vulkan}, {"timeline_get_vulkan", timeline_get_vulkan},
    {"record_release", record_release}, {"record_acquire", record_acquire}, {"pack_tiles", pack_tiles},
    {"record_pack", record_pack}, {"record_unpack", record_unpack}, {"record", record_job},
    {"record_pack_images", record_pack_images}, {"record_unpack_images", record_unpack_images},
    {"language_create", language_create}, {"destroy", destroy_session},
};
enum { CALLS = sizeof calls / sizeof *calls };
/* All but version_number, status_text, session_create, devices, vulkan_device and vulkan_requirements, which take none, and the 21
 * that take a language, a character or an embedder: test_npc.c and test_embedder.c have those. */
_Static_assert(CALLS + 6 + 21 == (sizeof(tandem_api) - offsetof(tandem_api, version_number)) / sizeof(void (*)(void)),
               "a function of the table is missing here");

/* A child may have sessions of its own, and compute on as many threads as its parent. */
static int compute_alone(rig *own)
{
    tandem_job_report report = {.struct_bytes = sizeof report};
    tandem_ticket ticket;

    open_rig(own, NULL, NULL);
    ticket = submit(own);
    if (tandem_timeline_signal(own->s, own->engines, own->value) != TANDEM_OK ||
        tandem_wait(own->s, ticket, PATIENCE, &report) != TANDEM_OK || report.state != TANDEM_JOB_DONE) {
        print_error("a job of the child's own ended %u\n", report.state);
        return 5;
    }
    return tandem_session_destroy(&own->s) == TANDEM_OK ? 0 : 6;
}

/* 0, or the number of the call that went wrong and how: exit statuses of a child, which reports nothing else. */
static int be_the_child(rig *r, uint32_t only)
{
    tandem_session *const before = r->s;
    const unsigned errors = atomic_load(&r->errors);
    rig own;

    limits_begin(20); /* a call that hangs */
    for (uint32_t i = 0; i < CALLS; i++) {
        const limits_spent before_call = limits_spent_so_far();
        char text[300] = "", of_session[300] = "";

        if (only < CALLS && i != only)
            continue;
        if (calls[i].call(r) != TANDEM_ERROR_ARG) {
            print_error("%s was not refused\n", calls[i].name);
            return 1;
        }
        const limits_spent spent = limits_spent_so_far();
        if (spent.cpu_ns - before_call.cpu_ns > CALL_NS || spent.sleeps != before_call.sleeps) {
            print_error("%s took %llu ns and slept %llu times\n", calls[i].name,
                        (unsigned long long)(spent.cpu_ns - before_call.cpu_ns), (unsigned long long)(spent.sleeps - before_call.sleeps));
            return 2;
        }
        tandem_error_text(NULL, text, sizeof text);
        tandem_error_text(r->s, of_session, sizeof of_session);
        if (!strstr(text, calls[i].name) || !strstr(text, "made in another process") ||
            !strstr(of_session, "made in another process")) {
            print_error("%s says '%s' and '%s'\n", calls[i].name, text, of_session);
            return 3;
        }
    }
    if (r->s != before || atomic_load(&r->errors) != errors)
        return 4;
    return compute_alone(&own);
}

#ifdef __SANITIZE_ADDRESS__
/* Whether a thread of this process sleeps, or has ended. */
static bool is_asleep(const char *thread)
{
    char path[300], text[400] = "";
    const char *end;
    FILE *file;

    snprintf(path, sizeof path, "/proc/self/task/%s/stat", thread);
    file = fopen(path, "re");
    if (!file)
        return true;
    if (!fgets(text, sizeof text, file))
        text[0] = 0;
    fclose(file);
    end = strrchr(text, ')');
    return !end || end[2] == 'S';
}

/* GCC's sanitizer (12) does not take its allocator's locks around fork(): a child waits for good at its first malloc() if
 * another thread was within one then. So all threads sleep but this one and `busy`, which allocates nothing. Without the
 * sanitizer nobody waits: C libraries take theirs. */
static void await_sleepers(pid_t busy)
{
    const uint64_t begin = td_now_ns();
    bool asleep;

    do {
        DIR *dir = opendir("/proc/self/task");
        const struct dirent *e;

        assert_non_null(dir);
        assert_true(td_now_ns() - begin < PATIENCE);
        asleep = true;
        while ((e = readdir(dir)))
            asleep = asleep && (e->d_name[0] == '.' || atoi(e->d_name) == gettid() || atoi(e->d_name) == busy ||
                                is_asleep(e->d_name));
        closedir(dir);
    } while (!asleep);
}
#else
static void await_sleepers(pid_t busy) { (void)busy; }
#endif

static void fork_child(rig *r, uint32_t only)
{
    int status;
    pid_t child;

    await_sleepers(atomic_load(&r->busy));
    child = fork();
    assert_true(child >= 0);
    if (!child)
        _exit(be_the_child(r, only));
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status))
        fail_msg("the child was ended by signal %d", WTERMSIG(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void *be_busy(void *user)
{
    rig *r = user;
    uint64_t value;

    while (!atomic_load(&r->ends)) {
        tandem_timeline_value(r->s, r->ours, &value); /* the lock is taken most of the time */
        atomic_store(&r->busy, gettid());
    }
    return NULL;
}

/* Forks between jobs, with one under way, and while another thread holds the session's lock. */
static void check_rig(rig *r)
{
    pthread_t busy;
    tandem_ticket ticket;

    assert_int_equal(tandem_timeline_signal(r->s, r->engines, 1), TANDEM_OK);
    expect_done(r, submit(r));
    fork_child(r, CALLS);
    ticket = submit(r);
    fork_child(r, CALLS);
    assert_int_equal(tandem_timeline_signal(r->s, r->engines, r->value), TANDEM_OK);
    expect_done(r, ticket);
    assert_int_equal(pthread_create(&busy, NULL, be_busy, r), 0);
    while (!atomic_load(&r->busy))
        usleep(100);
    for (uint32_t i = 0; i < CALLS; i++)
        fork_child(r, i);
    atomic_store(&r->ends, true);
    pthread_join(busy, NULL);
    for (int i = 0; i < 3; i++) {
        ticket = submit(r);
        assert_int_equal(tandem_timeline_signal(r->s, r->engines, r->value), TANDEM_OK);
        expect_done(r, ticket);
    }
    assert_int_equal(atomic_load(&r->errors), 0);
    assert_int_equal(tandem_session_destroy(&r->s), TANDEM_OK);
}

static void test_local(void **state)
{
    rig r;

    (void)state;
    open_rig(&r, NULL, NULL);
    check_rig(&r);
}

static void test_remote(void **state)
{
    rig r;

    (void)state;
    open_rig(&r, served.socket_path, NULL);
    check_rig(&r);
}

static void on_vulkan(const char *socket)
{
    tandem_vulkan vulkan;
    vku vk;
    rig r;

    if (vku_open(&vk, NULL) != VKU_OK)
        skip();
    vulkan = vku_engine(&vk);
    open_rig(&r, socket, &vulkan);
    check_rig(&r);
    vku_close(&vk);
}

static void test_vulkan(void **state)
{
    (void)state;
    on_vulkan(NULL);
}

static void test_remote_vulkan(void **state)
{
    (void)state;
    on_vulkan(served.socket_path);
}

/* Where pages cannot be wiped processes are told apart by their numbers. */
static void test_old_kernel(void **state)
{
    (void)state;
    is_old_kernel = true;
    for (int remote = 0; remote < 2; remote++) {
        rig r;

        open_rig(&r, remote ? served.socket_path : NULL, NULL);
        assert_int_equal(refused, remote + 1);
        check_rig(&r);
    }
    is_old_kernel = false;
}

/* A session of a child's own is refused in turn to its child, and to nobody else. */
static void test_grandchild(void **state)
{
    pid_t child;
    int status;
    rig r;

    (void)state;
    child = fork();
    assert_true(child >= 0);
    if (!child) {
        limits_begin(60);
        open_rig(&r, NULL, NULL);
        check_rig(&r);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int set_up(void **state)
{
    *state = &served;
    return group_daemon_begin(&served, "fork", "backend = cpu\nthreads = 1\n");
}

static int tear_down(void **state)
{
    return group_daemon_end(*state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grandchild), /* before this process has computed anything */
        cmocka_unit_test(test_local),  cmocka_unit_test(test_remote),
        cmocka_unit_test(test_vulkan), cmocka_unit_test(test_remote_vulkan), cmocka_unit_test(test_old_kernel),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
