/* Sessions that compute in a real tandemd: the same bits, and what happens to them when it dies.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "interop/base.h"
#include "tandem/vulkan.h"
#include "tests/daemon_util.h"
#include "tests/vk_util.h"

#define MS 1000000ull
#define PATIENCE (20000 * MS)
#define SOON (2000 * MS) /* for what should take a millisecond */

static char folder[64], socket_path[96], config_path[96], log_path[96], model_path[96], program[4096];
static pid_t daemon_pid;

static void sleep_ms(unsigned ms) { usleep(ms * 1000); }

/* The daemon. */

static void start_daemon(const char *config)
{
    char text[400];

    snprintf(text, sizeof text, "backend = cpu\n%s", config);
    daemon_pid = begin_daemon(program, socket_path, config_path, text, log_path);
}

static void end_daemon(int with)
{
    end_daemon_by(&daemon_pid, with);
}

/* Sessions. */

typedef struct side {
    tandem_session *s;
    tandem_info info;
    tandem_timeline engines, ours;
    uint64_t value; /* that the last job signals */
    _Atomic unsigned errors, warnings;
    pthread_mutex_t lock;
    char last[1000];
} side;

static void hear(void *user, int level, const char *text)
{
    side *x = user;

    if (level == TANDEM_LOG_ERROR) {
        pthread_mutex_lock(&x->lock);
        snprintf(x->last, sizeof x->last, "%s", text);
        pthread_mutex_unlock(&x->lock);
        atomic_fetch_add(&x->errors, 1);
    }
    if (level == TANDEM_LOG_WARN)
        atomic_fetch_add(&x->warnings, 1);
}

/* Whether the last line of an error says so. */
static bool says(side *x, const char *words)
{
    bool found;

    pthread_mutex_lock(&x->lock);
    found = strstr(x->last, words) != NULL;
    pthread_mutex_unlock(&x->lock);
    return found;
}

static tandem_timeline new_timeline(side *x, tandem_signaller signaller)
{
    const tandem_timeline_desc desc = {.struct_bytes = sizeof desc, .signaller = signaller};
    tandem_timeline timeline;

    assert_int_equal(tandem_timeline_create(x->s, &desc, &timeline), TANDEM_OK);
    return timeline;
}

static void open_bounded(side *x, const char *socket, const tandem_vulkan *vulkan, uint32_t rung, uint64_t wait_bound_ns)
{
    char text[500] = "";
    const tandem_session_desc desc = {.struct_bytes = sizeof desc,
                                      .backend = TANDEM_BACKEND_CPU,
                                      .vulkan = vulkan,
                                      .log = hear,
                                      .user = x,
                                      .timing = 1,
                                      .wait_bound_ns = wait_bound_ns,
                                      .frames_in_flight = 4,
                                      .rung = rung,
                                      .error_text = text,
                                      .error_text_bytes = sizeof text,
                                      .socket = socket};

    memset(x, 0, sizeof *x);
    pthread_mutex_init(&x->lock, NULL);
    if (tandem_session_create(&desc, &x->s) != TANDEM_OK)
        fail_msg("session: %s", text);
    x->info.struct_bytes = sizeof x->info;
    assert_int_equal(tandem_session_info(x->s, &x->info), TANDEM_OK);
    x->engines = new_timeline(x, TANDEM_SIGNALLER_ENGINE);
    x->ours = new_timeline(x, TANDEM_SIGNALLER_SESSION);
}

static void open_side(side *x, const char *socket, const tandem_vulkan *vulkan, uint32_t rung)
{
    open_bounded(x, socket, vulkan, rung, PATIENCE);
}

static void close_side(side *x)
{
    assert_int_equal(tandem_session_destroy(&x->s), TANDEM_OK);
    pthread_mutex_destroy(&x->lock);
}

static tandem_mem new_mem(side *x, uint64_t bytes, void **host)
{
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = bytes};
    tandem_mem mem;

    assert_int_equal(tandem_mem_create(x->s, &desc, &mem), TANDEM_OK);
    assert_int_equal(tandem_mem_host(x->s, mem, host), TANDEM_OK);
    return mem;
}

static tandem_ticket submit(side *x, tandem_job *job)
{
    char text[500];
    tandem_ticket ticket;

    job->signal = (tandem_point){x->ours, x->value + 1};
    if (tandem_submit(x->s, job, &ticket) != TANDEM_OK) {
        tandem_error_text(x->s, text, sizeof text);
        fail_msg("submit: %s", text);
    }
    x->value++;
    return ticket;
}

static tandem_job_report ended(side *x, tandem_ticket ticket, uint64_t within_ns)
{
    tandem_job_report report = {.struct_bytes = sizeof report};

    assert_int_equal(tandem_wait(x->s, ticket, within_ns, &report), TANDEM_OK);
    return report;
}

static void run(side *x, tandem_job *job)
{
    char text[500] = "";
    const tandem_job_report report = ended(x, submit(x, job), PATIENCE);

    tandem_error_text(x->s, text, sizeof text);
    if (report.state != TANDEM_JOB_DONE)
        fail_msg("a job ended %u (%d): %s", report.state, report.status, text);
    assert_int_equal(tandem_point_wait(x->s, (tandem_point){x->ours, x->value}, SOON), TANDEM_OK);
    assert_true(report.begin_ns >= report.submit_ns && report.end_ns >= report.begin_ns);
}

/* Jobs. */

typedef struct shape {
    uint32_t dtype, batch, heads, kv_heads, q_len, kv_len, dim, precision, causal;
    uint32_t gap; /* elements behind each row */
    bool lse;
} shape;

static const shape shapes[] = {
    {TANDEM_DTYPE_F32, 1, 2, 1, 48, 40, 32, TANDEM_PRECISION_F16, 0, 0, true},
    {TANDEM_DTYPE_F16, 2, 4, 2, 130, 300, 64, TANDEM_PRECISION_8B, 1, 8, true},
    {TANDEM_DTYPE_BF16, 1, 3, 3, 65, 257, 128, TANDEM_PRECISION_4B, 0, 0, false},
    {TANDEM_DTYPE_F16, 1, 2, 2, 200, 200, 96, TANDEM_PRECISION_AUTO, 1, 4, false},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static uint32_t size_of(uint32_t dtype) { return dtype == TANDEM_DTYPE_F32 ? 4 : 2; }

static tandem_view view_of(tandem_mem mem, uint64_t *at, uint32_t dtype, uint32_t batch, uint32_t heads, uint32_t rows,
                           uint32_t row)
{
    const tandem_view v = {.mem = mem,
                           .offset_bytes = *at,
                           .dtype = dtype,
                           .stride_batch = (int64_t)heads * rows * row,
                           .stride_head = (int64_t)rows * row,
                           .stride_row = row};

    *at += td_align_up((uint64_t)batch * heads * rows * row * size_of(dtype), 64);
    return v;
}

/* A job of which everything lies in one mem; *bytes is what it takes, *in of that what is read. */
static tandem_job job_of(const shape *s, tandem_mem mem, uint64_t *in, uint64_t *bytes)
{
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
    tandem_attention *a = &job.op.attention;
    uint64_t at = 0;

    a->q = view_of(mem, &at, s->dtype, s->batch, s->heads, s->q_len, s->dim + s->gap);
    a->k = view_of(mem, &at, s->dtype, s->batch, s->kv_heads, s->kv_len, s->dim + s->gap);
    a->v = view_of(mem, &at, s->dtype, s->batch, s->kv_heads, s->kv_len, s->dim + s->gap);
    *in = at;
    a->o = view_of(mem, &at, s->dtype, s->batch, s->heads, s->q_len, s->dim + s->gap);
    if (s->lse)
        a->lse = view_of(mem, &at, TANDEM_DTYPE_F32, s->batch, s->heads, s->q_len, 1);
    a->batch = s->batch;
    a->heads = s->heads;
    a->kv_heads = s->kv_heads;
    a->q_len = s->q_len;
    a->kv_len = s->kv_len;
    a->head_dim = s->dim;
    a->precision = s->precision;
    a->causal = s->causal;
    *bytes = at;
    return job;
}

/* Numbers between -2 and 2 in each of the three types, the rest 0x55. */
static void fill(void *data, uint64_t in, uint64_t bytes, uint32_t dtype)
{
    uint64_t seed = 0x9e3779b97f4a7c15ull;

    memset(data, 0x55, bytes);
    for (uint64_t i = 0; i < in / size_of(dtype); i++) {
        const uint32_t sign = (uint32_t)(seed >> 63), fraction = (uint32_t)(seed >> 33 & 0x3ff);

        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        if (dtype == TANDEM_DTYPE_F32) {
            ((uint32_t *)data)[i] = sign << 31 | (126 + (fraction & 1)) << 23 | fraction << 12;
        } else if (dtype == TANDEM_DTYPE_F16) {
            ((uint16_t *)data)[i] = (uint16_t)(sign << 15 | (14 + (fraction & 1)) << 10 | fraction);
        } else {
            ((uint16_t *)data)[i] = (uint16_t)(sign << 15 | (126 + (fraction & 1)) << 7 | (fraction & 0x7f));
        }
    }
}

/* What the same job leaves in its mem when it is computed here. The caller frees it. */
static void *expected(const shape *s, uint64_t *bytes)
{
    uint64_t in;
    void *host, *kept;
    tandem_job job;
    side here;

    open_side(&here, NULL, NULL, 0);
    job_of(s, 1, &in, bytes);
    job = job_of(s, new_mem(&here, *bytes, &host), &in, bytes);
    fill(host, in, *bytes, s->dtype);
    run(&here, &job);
    kept = malloc(*bytes);
    assert_non_null(kept);
    memcpy(kept, host, *bytes);
    assert_true(*((unsigned char *)kept + in) != 0x55 || *((unsigned char *)kept + in + 1) != 0x55);
    close_side(&here);
    return kept;
}

/* A job that takes seconds on one core. */
static tandem_job long_job(side *x, tandem_mem *mem)
{
    static const shape big = {TANDEM_DTYPE_F16, 1, 8, 8, 8192, 8192, 128, TANDEM_PRECISION_F16, 0, 0, false};
    uint64_t in, bytes;
    void *host;

    job_of(&big, 1, &in, &bytes);
    *mem = new_mem(x, bytes, &host);
    return job_of(&big, *mem, &in, &bytes);
}

static void check_same(side *x)
{
    for (uint32_t i = 0; i < SHAPES; i++) {
        uint64_t in, bytes;
        void *want = expected(&shapes[i], &bytes), *host;
        const tandem_mem mem = new_mem(x, bytes, &host);
        tandem_job job = job_of(&shapes[i], mem, &in, &bytes);

        fill(host, in, bytes, shapes[i].dtype);
        run(x, &job);
        assert_memory_equal(host, want, bytes);
        assert_int_equal(tandem_mem_destroy(x->s, mem), TANDEM_OK);
        free(want);
    }
    assert_int_equal(x->errors, 0);
}

/* Vulkan. */

static vku vk;
static tandem_vulkan vulkan;

static bool open_vulkan(const char *without)
{
    vku_options options = {.validation = true, .without = {without}};
    const vku_found found = vku_open(&vk, &options);

    if (found == VKU_NO_VULKAN)
        return false;
    assert_int_equal(found, VKU_OK);
    vulkan = (tandem_vulkan){.struct_bytes = sizeof vulkan,
                             .api_version = vk.api_version,
                             .get_instance_proc_addr = vk.gipa,
                             .instance = vk.instance,
                             .physical_device = vk.physical_device,
                             .device = vk.device,
                             .queue_family = vk.queue_family,
                             .enabled_extension_count = vk.extension_count,
                             .enabled_extensions = vk.extensions,
                             .enabled_features = &vk.features,
                             .queue = vk.queue};
    return true;
}

static void close_vulkan(void)
{
    vku_close(&vk);
    if (vk.errors)
        fail_msg("validation: %s", vk.last_text);
}

/* The tests. */

static void test_same_bits(void **state)
{
    side x;

    (void)state;
    open_side(&x, socket_path, NULL, 0);
    assert_int_equal(x.info.backend, TANDEM_BACKEND_CPU);
    assert_int_equal(x.info.rung, TANDEM_RUNG_CPU);
    assert_non_null(strstr(x.info.rung_reason, "tandemd"));
    check_same(&x);
    close_side(&x);
}

/* A VkDeviceMemory of the engine's, by copies. */
static void check_engines_memory(side *x)
{
    const shape *s = &shapes[1];
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_TRANSFER_BIT;
    const VkBufferUsageFlags usage =
        VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    tandem_mem_desc desc = {.struct_bytes = sizeof desc, .source = TANDEM_MEM_VULKAN};
    VkMemoryRequirements needs;
    VkCommandBuffer commands;
    vku_buffer buffer;
    uint64_t in, bytes;
    tandem_job job;
    tandem_mem mem;
    void *want = expected(s, &bytes);

    assert_int_equal(vku_buffer_create(&vk, bytes, usage, &buffer), VK_SUCCESS);
    vk.GetBufferMemoryRequirements(vk.device, buffer.buffer, &needs);
    desc.bytes = bytes;
    desc.vulkan_memory = (uint64_t)(uintptr_t)buffer.memory;
    desc.allocation_bytes = needs.size;
    assert_int_equal(tandem_mem_create(x->s, &desc, &mem), TANDEM_OK);
    job = job_of(s, mem, &in, &bytes);
    fill(buffer.host, in, bytes, s->dtype);
    commands = vku_begin(&vk);
    assert_int_equal(tandem_record_release(x->s, commands, mem, stage, VK_ACCESS_TRANSFER_WRITE_BIT), TANDEM_OK);
    assert_int_equal(vku_run(&vk, commands), VK_SUCCESS);
    run(x, &job);
    commands = vku_begin(&vk);
    assert_int_equal(tandem_record_acquire(x->s, commands, mem, stage, VK_ACCESS_TRANSFER_READ_BIT), TANDEM_OK);
    vku_full_barrier(&vk, commands);
    assert_int_equal(vku_run(&vk, commands), VK_SUCCESS);
    assert_memory_equal(buffer.host, want, bytes);
    assert_int_equal(tandem_mem_destroy(x->s, mem), TANDEM_OK);
    vku_buffer_destroy(&vk, &buffer);
    free(want);
}

/* The renderer fills a buffer and signals; the daemon computes on the same pages; the renderer waits and copies. */
static void test_vulkan(void **state)
{
    const shape *s = &shapes[1];
    tandem_mem_vulkan buffer = {.struct_bytes = sizeof buffer};
    VkSemaphore engines, ours;
    VkBufferCopy whole;
    VkCommandBuffer up, down;
    vku_buffer from, to;
    uint64_t in, bytes;
    tandem_ticket ticket;
    tandem_job job;
    tandem_mem mem;
    void *want, *host;
    side x;

    (void)state;
    if (!open_vulkan(NULL))
        skip();
    open_side(&x, socket_path, &vulkan, 0);
    check_same(&x);
    want = expected(s, &bytes);
    mem = new_mem(&x, bytes, &host);
    job = job_of(s, mem, &in, &bytes);
    assert_int_equal(tandem_mem_get_vulkan(x.s, mem, &buffer), TANDEM_OK);
    assert_int_equal(tandem_timeline_get_vulkan(x.s, x.engines, &engines), TANDEM_OK);
    assert_int_equal(tandem_timeline_get_vulkan(x.s, x.ours, &ours), TANDEM_OK);
    assert_int_equal(vku_buffer_create(&vk, bytes, VK_BUFFER_USAGE_TRANSFER_SRC_BIT, &from), VK_SUCCESS);
    assert_int_equal(vku_buffer_create(&vk, bytes, VK_BUFFER_USAGE_TRANSFER_DST_BIT, &to), VK_SUCCESS);
    fill(from.host, in, bytes, s->dtype);
    whole = (VkBufferCopy){.size = bytes};
    up = vku_begin(&vk);
    vk.CmdCopyBuffer(up, from.buffer, buffer.buffer, 1, &whole);
    assert_int_equal(tandem_record_release(x.s, up, mem, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT),
                     TANDEM_OK);
    down = vku_begin(&vk);
    assert_int_equal(tandem_record_acquire(x.s, down, mem, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT),
                     TANDEM_OK);
    vk.CmdCopyBuffer(down, buffer.buffer, to.buffer, 1, &whole);
    vku_full_barrier(&vk, down);
    job.wait = (tandem_point){x.engines, 1};
    ticket = submit(&x, &job);
    assert_int_equal(vku_submit(&vk, up, (vku_point){0}, (vku_point){engines, 1}, VK_NULL_HANDLE), VK_SUCCESS);
    assert_int_equal(vku_submit(&vk, down, (vku_point){ours, x.value}, (vku_point){engines, 2}, VK_NULL_HANDLE),
                     VK_SUCCESS);
    assert_int_equal(tandem_point_wait(x.s, (tandem_point){x.engines, 2}, PATIENCE), TANDEM_OK);
    assert_int_equal(ended(&x, ticket, SOON).state, TANDEM_JOB_DONE);
    assert_memory_equal(to.host, want, bytes);
    vk.DeviceWaitIdle(vk.device);
    vku_buffer_destroy(&vk, &from);
    vku_buffer_destroy(&vk, &to);
    free(want);
    close_side(&x);
    close_vulkan();
    /* Without VK_EXT_external_memory_host: the rung `copy`, whose staging memory the daemon has beside. */
    assert_true(open_vulkan("VK_EXT_external_memory_host"));
    open_side(&x, socket_path, &vulkan, 0);
    assert_int_equal(x.info.rung, TANDEM_RUNG_COPY);
    check_same(&x);
    check_engines_memory(&x);
    close_side(&x);
    close_vulkan();
}

/* Threads that wait, poll or do neither, each for jobs of its own in one session; whoever looks, no job is left lying. */
typedef struct waiter {
    side *x;
    unsigned way;
    _Atomic unsigned wrong;
    tandem_timeline engines, ours;
    tandem_job job;
    pthread_t thread;
} waiter;

static void *signal_late(void *user)
{
    waiter *w = user;

    for (uint64_t i = 1; i <= 150; i++) {
        uint64_t value = 0;
        const uint64_t begin = td_now_ns();

        while (value < i - 1 && td_now_ns() - begin < PATIENCE) {
            w->wrong += tandem_timeline_value(w->x->s, w->ours, &value) != TANDEM_OK;
            usleep(20);
        }
        usleep((unsigned)(i * 37 % 400));
        w->wrong += tandem_timeline_signal(w->x->s, w->engines, i) != TANDEM_OK;
    }
    return NULL;
}

static void *wait_in_one_way(void *user)
{
    waiter *w = user;
    tandem_session *s = w->x->s;
    pthread_t signaller;

    if (pthread_create(&signaller, NULL, signal_late, w)) {
        w->wrong++;
        return NULL;
    }
    for (uint64_t i = 1; i <= 150; i++) {
        tandem_job_report report = {.struct_bytes = sizeof report};
        const uint64_t begin = td_now_ns();
        tandem_ticket ticket;

        w->job.wait = (tandem_point){w->engines, i};
        w->job.signal = (tandem_point){w->ours, i};
        w->wrong += tandem_submit(s, &w->job, &ticket) != TANDEM_OK;
        if (i % 3)
            w->wrong += tandem_timeline_submitted(s, w->engines, i) != TANDEM_OK;
        if ((w->way + i / 30) % 2)
            w->wrong += tandem_point_wait(s, w->job.signal, SOON) != TANDEM_OK;
        while (tandem_poll(s, ticket, &report) == TANDEM_OK && report.state <= TANDEM_JOB_RUNNING &&
               td_now_ns() - begin < SOON)
            usleep(100);
        w->wrong += report.state != TANDEM_JOB_DONE;
    }
    pthread_join(signaller, NULL);
    return NULL;
}

static void let_them_wait(side *x)
{
    enum { WAITERS = 3 };
    waiter all[WAITERS];
    uint64_t in, bytes;
    void *host;

    for (unsigned i = 0; i < WAITERS; i++) {
        all[i] = (waiter){.x = x, .way = i};
        all[i].engines = new_timeline(x, TANDEM_SIGNALLER_ENGINE);
        all[i].ours = new_timeline(x, TANDEM_SIGNALLER_SESSION);
        job_of(&shapes[0], 1, &in, &bytes);
        all[i].job = job_of(&shapes[0], new_mem(x, bytes, &host), &in, &bytes);
        fill(host, in, bytes, shapes[0].dtype);
    }
    for (unsigned i = 0; i < WAITERS; i++)
        assert_int_equal(pthread_create(&all[i].thread, NULL, wait_in_one_way, &all[i]), 0);
    for (unsigned i = 0; i < WAITERS; i++) {
        pthread_join(all[i].thread, NULL);
        assert_int_equal(all[i].wrong, 0);
    }
}

static void test_waiters(void **state)
{
    side x;

    (void)state;
    open_side(&x, socket_path, NULL, 0);
    let_them_wait(&x);
    close_side(&x);
    if (!open_vulkan(NULL))
        return;
    open_side(&x, socket_path, &vulkan, 0);
    let_them_wait(&x);
    close_side(&x);
    close_vulkan();
}

static void check_host_mem(side *x, void *memory, uint64_t bytes, const void *want)
{
    const tandem_mem_desc desc = {
        .struct_bytes = sizeof desc, .source = TANDEM_MEM_HOST, .bytes = td_align_up(bytes, 4096), .host = memory};
    uint64_t in, same;
    tandem_job job;
    tandem_mem mem;

    assert_int_equal(tandem_mem_create(x->s, &desc, &mem), TANDEM_OK);
    job = job_of(&shapes[1], mem, &in, &same);
    fill(memory, in, bytes, shapes[1].dtype);
    run(x, &job);
    assert_memory_equal(memory, want, bytes);
    assert_int_equal(tandem_mem_destroy(x->s, mem), TANDEM_OK);
}

static void test_mems(void **state)
{
    uint64_t bytes;
    void *want = expected(&shapes[1], &bytes), *pages;
    const uint64_t whole = td_align_up(bytes, 4096) + 4096;
    tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = 4096, .allocation_bytes = 4096};
    tandem_mem mem;
    side x;

    (void)state;
    pages = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    open_side(&x, socket_path, NULL, 0);
    check_host_mem(&x, pages, bytes, want);
    check_host_mem(&x, (char *)pages + 64, bytes, want);
    desc.source = TANDEM_MEM_FD;
    desc.fd = memfd_create("test", MFD_CLOEXEC);
    assert_int_equal(ftruncate(desc.fd, 4096), 0);
    assert_int_equal(tandem_mem_create(x.s, &desc, &mem), TANDEM_ERROR_UNSUPPORTED);
    close(desc.fd);
    assert_int_equal(x.errors, 1);
    close_side(&x);
    if (open_vulkan(NULL)) {
        open_side(&x, socket_path, &vulkan, 0);
        check_host_mem(&x, pages, bytes, want);
        check_engines_memory(&x);
        desc.source = TANDEM_MEM_VULKAN;
        desc.vulkan_memory = 1;
        desc.dedicated = 1;
        assert_int_equal(tandem_mem_create(x.s, &desc, &mem), TANDEM_ERROR_UNSUPPORTED);
        assert_true(says(&x, "desc.dedicated is 1: on this rung the engine's memory is copied"));
        desc.source = TANDEM_MEM_FD;
        close_side(&x);
        close_vulkan();
    }
    munmap(pages, whole);
    free(want);
}

typedef struct runner {
    pthread_t thread;
    const shape *s;
    void *want;
    uint64_t bytes;
    _Atomic bool wrong;
    unsigned rounds;
} runner;

static void *run_many(void *user)
{
    runner *r = user;
    uint64_t in, bytes;
    void *host;
    tandem_job job;
    side x;

    open_side(&x, socket_path, NULL, 0);
    job = job_of(r->s, new_mem(&x, r->bytes, &host), &in, &bytes);
    for (unsigned i = 0; i < r->rounds && !r->wrong; i++) {
        fill(host, in, bytes, r->s->dtype);
        r->wrong = ended(&x, submit(&x, &job), PATIENCE).state != TANDEM_JOB_DONE || memcmp(host, r->want, bytes) != 0;
    }
    close_side(&x);
    return NULL;
}

static void test_two_clients(void **state)
{
    runner r[2] = {{.s = &shapes[0], .rounds = 150}, {.s = &shapes[1], .rounds = 30}};

    (void)state;
    for (int i = 0; i < 2; i++) {
        r[i].want = expected(r[i].s, &r[i].bytes);
        assert_int_equal(pthread_create(&r[i].thread, NULL, run_many, &r[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(r[i].thread, NULL);
        assert_false(r[i].wrong);
        free(r[i].want);
    }
}

/* Until the session has a daemon again. */
static void await_return(side *x, tandem_job *job)
{
    const uint64_t begin = td_now_ns();
    tandem_ticket ticket;
    tandem_status status;

    job->signal = (tandem_point){x->ours, x->value + 1};
    while ((status = tandem_submit(x->s, job, &ticket)) == TANDEM_ERROR_LOST) {
        assert_true(td_now_ns() - begin < PATIENCE);
        sleep_ms(2);
    }
    assert_int_equal(status, TANDEM_OK);
    x->value++;
    assert_int_equal(ended(x, ticket, PATIENCE).state, TANDEM_JOB_DONE);
}

/* One is being computed, one waits for its turn, one for the engine: killed in the midst of it. */
static void test_killed(void **state)
{
    const int fds = count_fds_of(getpid());
    uint64_t in, bytes, begin;
    void *want = expected(&shapes[0], &bytes), *host;
    side x;

    (void)state;
    open_side(&x, socket_path, NULL, 0);
    for (unsigned round = 0; round < 4; round++) {
        const tandem_mem mem = new_mem(&x, bytes, &host);
        tandem_job job = job_of(&shapes[0], mem, &in, &bytes), busy;
        tandem_ticket tickets[3];
        tandem_mem busy_mem;
        struct pollfd p = {.events = POLLIN};
        tandem_job_report report;
        char text[500] = "";

        fill(host, in, bytes, shapes[0].dtype);
        run(&x, &job);
        assert_memory_equal(host, want, bytes);
        busy = long_job(&x, &busy_mem);
        tickets[0] = submit(&x, &busy);
        tickets[1] = submit(&x, &job);
        job.wait = (tandem_point){x.engines, round + 1};
        tickets[2] = submit(&x, &job);
        job.wait = (tandem_point){0, 0};
        assert_int_equal(tandem_point_fd(x.s, (tandem_point){x.ours, x.value - 2}, &p.fd), TANDEM_OK);
        sleep_ms(30 + 20 * round);
        assert_int_equal(poll(&p, 1, 0), 0);
        end_daemon(SIGKILL);
        begin = td_now_ns();
        assert_int_equal(poll(&p, 1, (int)(SOON / MS)), 1);
        close(p.fd);
        assert_int_equal(tandem_point_wait(x.s, (tandem_point){x.ours, x.value - 1}, SOON), TANDEM_OK);
        assert_true(td_now_ns() - begin < SOON);
        for (int i = 0; i < 2; i++) {
            report = ended(&x, tickets[i], SOON);
            assert_int_equal(report.state, TANDEM_JOB_FAILED);
            assert_int_equal(report.status, TANDEM_ERROR_LOST);
        }
        assert_int_equal(tandem_timeline_signal(x.s, x.engines, round + 1), TANDEM_OK);
        report = ended(&x, tickets[2], SOON);
        assert_int_equal(report.status, TANDEM_ERROR_LOST);
        assert_int_equal(tandem_point_wait(x.s, (tandem_point){x.ours, x.value}, SOON), TANDEM_OK);
        tandem_error_text(x.s, text, sizeof text);
        assert_non_null(strstr(text, "tandemd at '"));
        job.signal = (tandem_point){x.ours, x.value + 1};
        assert_int_equal(tandem_submit(x.s, &job, &tickets[0]), TANDEM_ERROR_LOST);
        assert_int_equal(tandem_mem_destroy(x.s, busy_mem), TANDEM_OK); /* nobody is there to be asked */
        fill(host, in, bytes, shapes[0].dtype);
        start_daemon("threads = 1\n");
        await_return(&x, &job);
        assert_memory_equal(host, want, bytes);
        if (round % 2)
            assert_int_equal(tandem_mem_destroy(x.s, mem), TANDEM_OK);
    }
    close_side(&x);
    free(want);
    assert_int_equal(count_fds_of(getpid()), fds);
}

/* The worker alone dies: the job is lost, the connection is not. A daemon that stops in order comes back too. */
/* Jobs are with the daemon before those in front of them have ended. */
static void test_ahead(void **state)
{
    tandem_job_report first = {.struct_bytes = sizeof first}, second = first;
    uint64_t in, bytes;
    void *want = expected(&shapes[0], &bytes), *host;
    tandem_ticket tickets[3];
    tandem_mem mem, busy_mem;
    tandem_job job, busy;
    side x;

    (void)state;
    open_side(&x, socket_path, NULL, 0);
    mem = new_mem(&x, bytes, &host);
    job = job_of(&shapes[0], mem, &in, &bytes);
    busy = long_job(&x, &busy_mem);
    fill(host, in, bytes, shapes[0].dtype);
    tickets[0] = submit(&x, &busy);
    tickets[1] = submit(&x, &job);
    job.wait = (tandem_point){x.ours, x.value}; /* which is not there yet */
    tickets[2] = submit(&x, &job);
    do
        assert_int_equal(tandem_poll(x.s, tickets[1], &second), TANDEM_OK);
    while (second.state == TANDEM_JOB_PENDING);
    assert_int_equal(tandem_poll(x.s, tickets[0], &first), TANDEM_OK);
    assert_int_equal(first.state, TANDEM_JOB_RUNNING);
    assert_int_equal(second.state, TANDEM_JOB_RUNNING);
    tandem_cancel(x.s, tickets[0]);
    assert_int_equal(ended(&x, tickets[0], PATIENCE).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(ended(&x, tickets[2], PATIENCE).state, TANDEM_JOB_DONE);
    assert_memory_equal(host, want, bytes);
    close_side(&x);
    free(want);
}

static void test_replaced(void **state)
{
    uint64_t in, bytes;
    void *want = expected(&shapes[0], &bytes), *host;
    tandem_mem mem, busy_mem;
    tandem_job_report report;
    tandem_ticket ticket, next;
    tandem_job job, busy;
    unsigned warnings;
    side x;

    (void)state;
    open_side(&x, socket_path, NULL, 0);
    mem = new_mem(&x, bytes, &host);
    job = job_of(&shapes[0], mem, &in, &bytes);
    busy = long_job(&x, &busy_mem);
    fill(host, in, bytes, shapes[0].dtype);
    ticket = submit(&x, &busy);
    next = submit(&x, &job);
    sleep_ms(50);
    warnings = x.warnings;
    assert_int_equal(kill(logged_worker(log_path), SIGKILL), 0);
    report = ended(&x, ticket, PATIENCE);
    assert_int_equal(report.state, TANDEM_JOB_FAILED);
    assert_int_equal(report.status, TANDEM_ERROR_LOST);
    assert_int_equal(tandem_point_wait(x.s, (tandem_point){x.ours, x.value - 1}, SOON), TANDEM_OK);
    assert_int_equal(ended(&x, next, PATIENCE).state, TANDEM_JOB_DONE);
    assert_memory_equal(host, want, bytes);
    assert_int_equal(x.warnings, warnings); /* the connection stayed */
    end_daemon(SIGTERM);
    start_daemon("threads = 1\n");
    fill(host, in, bytes, shapes[0].dtype);
    await_return(&x, &job);
    assert_memory_equal(host, want, bytes);
    close_side(&x);
    free(want);
}

/* Frames with three jobs in flight, and a daemon that is killed at any moment of them: each point comes, and what is said
 * to be done is. TANDEM_KILLS: how many moments. */
typedef struct player {
    pthread_t thread;
    void *want;
    uint64_t bytes;
    _Atomic bool begun, ends, wrong;
    unsigned done, lost, refused;
    uint64_t longest_ns;
} player;

static void *play(void *user)
{
    enum { FLIGHT = 3 };
    player *p = user;
    tandem_ticket tickets[FLIGHT] = {0};
    uint64_t in, bytes, values[FLIGHT] = {0};
    tandem_job jobs[FLIGHT];
    void *hosts[FLIGHT];
    side x;

    open_side(&x, socket_path, NULL, 0);
    for (unsigned i = 0; i < FLIGHT; i++) {
        jobs[i] = job_of(&shapes[0], new_mem(&x, p->bytes, &hosts[i]), &in, &bytes);
        fill(hosts[i], in, bytes, shapes[0].dtype);
    }
    p->begun = true;
    for (unsigned n = 0; !p->wrong && (!p->ends || p->done < 10); n++) {
        const unsigned i = n % FLIGHT;
        const uint64_t begin = td_now_ns();
        tandem_job_report report = {.struct_bytes = sizeof report};
        tandem_status status;

        if (tickets[i]) {
            p->wrong = tandem_point_wait(x.s, (tandem_point){x.ours, values[i]}, PATIENCE) != TANDEM_OK ||
                       tandem_wait(x.s, tickets[i], SOON, &report) != TANDEM_OK ||
                       (report.state != TANDEM_JOB_DONE && report.status != TANDEM_ERROR_LOST) ||
                       (report.state == TANDEM_JOB_DONE && memcmp(hosts[i], p->want, bytes));
            if (td_now_ns() - begin > p->longest_ns)
                p->longest_ns = td_now_ns() - begin;
            p->done += report.state == TANDEM_JOB_DONE;
            p->lost += report.state != TANDEM_JOB_DONE;
            tickets[i] = 0;
        }
        fill((char *)hosts[i] + in, 0, bytes - in, shapes[0].dtype);
        jobs[i].signal = (tandem_point){x.ours, values[i] = ++x.value};
        status = tandem_submit(x.s, &jobs[i], &tickets[i]);
        if (status == TANDEM_ERROR_LOST) {
            p->refused++;
            sleep_ms(1);
        } else if (status != TANDEM_OK) {
            p->wrong = true;
        }
    }
    close_side(&x);
    return NULL;
}

static void test_random_moments(void **state)
{
    const unsigned kills = getenv("TANDEM_KILLS") ? (unsigned)atoi(getenv("TANDEM_KILLS")) : 12;
    const int fds = count_fds_of(getpid());
    uint64_t seed = td_now_ns();
    player p = {0};

    (void)state;
    p.want = expected(&shapes[0], &p.bytes);
    assert_int_equal(pthread_create(&p.thread, NULL, play, &p), 0);
    while (!p.begun)
        sleep_ms(1);
    for (unsigned i = 0; i < kills; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        usleep((unsigned)(seed >> 48)); /* 0 to 65 ms */
        end_daemon(SIGKILL);
        start_daemon("threads = 1\n");
    }
    p.ends = true;
    pthread_join(p.thread, NULL);
    assert_false(p.wrong);
    print_message("%u kills: %u jobs done, %u lost, %u refused, the longest wait %.1f ms\n", kills, p.done, p.lost,
                  p.refused, (double)p.longest_ns / 1e6);
    assert_true(p.lost + p.refused > 0);
    assert_int_equal(count_fds_of(getpid()), fds);
    free(p.want);
}

static void test_given_up(void **state)
{
    unsigned char *host;
    tandem_job_report report;
    tandem_ticket ticket;
    tandem_mem mem;
    tandem_job job;
    uint64_t begin;
    side x;

    (void)state;
    open_side(&x, socket_path, NULL, 0);
    job = long_job(&x, &mem);
    ticket = submit(&x, &job);
    sleep_ms(30);
    begin = td_now_ns();
    assert_int_equal(tandem_cancel(x.s, ticket), TANDEM_OK);
    report = ended(&x, ticket, SOON);
    assert_int_equal(report.state, TANDEM_JOB_CANCELLED);
    assert_int_equal(tandem_point_wait(x.s, (tandem_point){x.ours, x.value}, SOON), TANDEM_OK);
    assert_true(td_now_ns() - begin < SOON);
    /* A deadline that passes: STALE, and nothing is ever written. */
    assert_int_equal(tandem_mem_host(x.s, mem, (void **)&host), TANDEM_OK);
    memset(host + job.op.attention.o.offset_bytes, 0x5a, 4096);
    job.deadline_ns = 40 * MS;
    begin = td_now_ns();
    ticket = submit(&x, &job);
    report = ended(&x, ticket, SOON);
    assert_int_equal(report.state, TANDEM_JOB_STALE);
    assert_int_equal(tandem_point_wait(x.s, (tandem_point){x.ours, x.value}, SOON), TANDEM_OK);
    assert_true(td_now_ns() - begin >= 40 * MS);
    for (int i = 0; i < 4096; i++)
        assert_int_equal(host[job.op.attention.o.offset_bytes + (uint64_t)i], 0x5a);
    /* The session ends in the midst of one. */
    job.deadline_ns = 0;
    submit(&x, &job);
    sleep_ms(10);
    begin = td_now_ns();
    close_side(&x);
    assert_true(td_now_ns() - begin < 6000 * MS);
}

static void write_model(void)
{
    static const char header[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[1,1,40,32],\"data_offsets\":[0,5120]}}      ";
    const uint64_t bytes = sizeof header - 1;
    static float data[1280];
    FILE *file = fopen(model_path, "w");

    fill(data, sizeof data, sizeof data, TANDEM_DTYPE_F32);
    assert_non_null(file);
    assert_int_equal(fwrite(&bytes, 8, 1, file), 1);
    assert_int_equal(fwrite(header, bytes, 1, file), 1);
    assert_int_equal(fwrite(data, sizeof data, 1, file), 1);
    assert_int_equal(fclose(file), 0);
}

/* K and V are a model's; the same here and there, and behind a restart. */
static void test_models(void **state)
{
    char config[200];
    uint64_t in, bytes, shape_of[4];
    void *host[2];
    tandem_model model[2];
    tandem_job job[2];
    tandem_view view;
    side x[2];

    (void)state;
    write_model();
    open_side(&x[0], socket_path, NULL, 0);
    assert_int_equal(tandem_model_load(x[0].s, model_path, &model[0]), TANDEM_ERROR_UNSUPPORTED);
    assert_true(says(&x[0], "model_dir"));
    close_side(&x[0]);
    end_daemon(SIGTERM);
    snprintf(config, sizeof config, "threads = 1\nmodel_dir = %s\n", folder);
    start_daemon(config);
    for (int i = 0; i < 2; i++) {
        open_side(&x[i], i ? socket_path : NULL, NULL, 0);
        job_of(&shapes[0], 1, &in, &bytes);
        job[i] = job_of(&shapes[0], new_mem(&x[i], bytes, &host[i]), &in, &bytes);
        fill(host[i], in, bytes, shapes[0].dtype);
        assert_int_equal(tandem_model_load(x[i].s, model_path, &model[i]), TANDEM_OK);
        assert_int_equal(tandem_model_tensor(x[i].s, model[i], "none", &view, shape_of), TANDEM_ERROR_ARG);
        assert_int_equal(tandem_model_tensor(x[i].s, model[i], "w", &view, shape_of), TANDEM_OK);
        assert_int_equal(shape_of[2], 40);
        assert_int_equal(shape_of[3], 32);
        job[i].op.attention.k = job[i].op.attention.v = view;
        run(&x[i], &job[i]);
    }
    assert_memory_equal(host[0], host[1], bytes);
    end_daemon(SIGKILL);
    start_daemon(config);
    fill(host[1], in, bytes, shapes[0].dtype);
    await_return(&x[1], &job[1]);
    assert_memory_equal(host[0], host[1], bytes);
    assert_int_equal(tandem_model_load(x[1].s, "/nonexistent/model", &model[0]), TANDEM_ERROR_IO);
    assert_true(says(&x[1], "/nonexistent/model"));
    assert_int_equal(tandem_model_destroy(x[1].s, model[1]), TANDEM_OK);
    assert_int_equal(tandem_model_tensor(x[1].s, model[1], "w", &view, shape_of), TANDEM_ERROR_ARG);
    close_side(&x[0]);
    close_side(&x[1]);
}

static void refused(const tandem_session_desc *like, const char *socket, tandem_status status, const char *words)
{
    char text[500] = "";
    tandem_session_desc desc = *like;
    tandem_session *s = (tandem_session *)&desc;

    desc.struct_bytes = sizeof desc;
    desc.socket = socket;
    desc.error_text = text;
    desc.error_text_bytes = sizeof text;
    assert_int_equal(tandem_session_create(&desc, &s), status);
    assert_null(s);
    if (!strstr(text, words))
        fail_msg("'%s' does not say '%s'", text, words);
}

static void test_refusals(void **state)
{
    char path[200], *before = getenv("XDG_RUNTIME_DIR");
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = 3 << 20};
    const int fds = count_fds_of(getpid());
    const tandem_session_desc any = {0};
    tandem_mem mem;
    side x;

    (void)state;
    before = before ? strdup(before) : NULL;
    snprintf(path, sizeof path, "%s/nobody", folder);
    refused(&any, path, TANDEM_ERROR_LOST, path);
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = 0;
    refused(&any, path, TANDEM_ERROR_ARG, "desc.socket");
    unsetenv("XDG_RUNTIME_DIR");
    refused(&any, "", TANDEM_ERROR_UNSUPPORTED, "XDG_RUNTIME_DIR is not set");
    setenv("XDG_RUNTIME_DIR", folder, 1); /* the socket is tandem-0 there */
    open_side(&x, "", NULL, 0);
    close_side(&x);
    if (before)
        setenv("XDG_RUNTIME_DIR", before, 1);
    else
        unsetenv("XDG_RUNTIME_DIR");
    free(before);
    refused(&(tandem_session_desc){.backend = TANDEM_BACKEND_CUDA}, socket_path, TANDEM_ERROR_UNSUPPORTED, "backend");
    refused(&(tandem_session_desc){.rung = TANDEM_RUNG_INLINE}, socket_path, TANDEM_ERROR_UNSUPPORTED,
            "desc.rung is 1");
    assert_int_equal(count_fds_of(getpid()), fds);
    end_daemon(SIGTERM);
    start_daemon("threads = 1\nclient_bytes = 4M\nmem_bytes = 3M\nclients = 1\n");
    open_side(&x, socket_path, NULL, 0);
    refused(&any, socket_path, TANDEM_ERROR_LOST, "no room");
    assert_int_equal(tandem_mem_create(x.s, &desc, &mem), TANDEM_OK);
    assert_int_equal(tandem_mem_create(x.s, &desc, &mem), TANDEM_ERROR_NOMEM);
    assert_true(says(&x, "tandemd"));
    assert_int_equal(tandem_mem_create(x.s, &(tandem_mem_desc){.struct_bytes = sizeof desc, .bytes = 4 << 20}, &mem),
                     TANDEM_ERROR_NOMEM);
    assert_true(says(&x, "at most"));
    close_side(&x);
    end_daemon(SIGTERM);
    start_daemon("threads = 1\n");
}

/* A daemon that stands still is found out, and come back to when it goes on. */
static void test_stopped(void **state)
{
    uint64_t in, bytes;
    void *want = expected(&shapes[0], &bytes), *host;
    tandem_job_report report;
    tandem_ticket ticket;
    tandem_job job;
    int status;
    side x;

    (void)state;
    open_side(&x, socket_path, NULL, 0);
    job = job_of(&shapes[0], new_mem(&x, bytes, &host), &in, &bytes);
    fill(host, in, bytes, shapes[0].dtype);
    assert_int_equal(kill(daemon_pid, SIGSTOP), 0);
    assert_int_equal(waitpid(daemon_pid, &status, WUNTRACED), daemon_pid); /* all its threads */
    assert_true(WIFSTOPPED(status));
    ticket = submit(&x, &job);
    report = ended(&x, ticket, PATIENCE);
    assert_int_equal(report.status, TANDEM_ERROR_LOST);
    assert_int_equal(tandem_point_wait(x.s, (tandem_point){x.ours, x.value}, SOON), TANDEM_OK);
    assert_int_equal(kill(daemon_pid, SIGCONT), 0);
    await_return(&x, &job);
    assert_memory_equal(host, want, bytes);
    close_side(&x);
    free(want);
}

static void test_nothing_leaks(void **state)
{
    int fds = 0;

    (void)state;
    for (int i = 0; i < 12; i++) {
        uint64_t in, bytes;
        void *host;
        tandem_job job;
        side x;

        open_side(&x, socket_path, NULL, 0);
        job_of(&shapes[0], 1, &in, &bytes);
        job = job_of(&shapes[0], new_mem(&x, bytes, &host), &in, &bytes);
        fill(host, in, bytes, shapes[0].dtype);
        run(&x, &job);
        assert_int_equal(tandem_mem_destroy(x.s, job.op.attention.q.mem), TANDEM_OK);
        new_mem(&x, 5000, &host);
        close_side(&x);
        if (i == 1)
            fds = count_fds_of(getpid());
    }
    assert_int_equal(count_fds_of(getpid()), fds);
}

/* As in process: an engine that signals for a frame once the frame before is there has its time from then, however long the
 * daemon took; here its worker is stopped. */
static void test_wait_behind_a_long_job(void **state)
{
    enum { BOUND_MS = 200 };
    uint64_t in, bytes;
    void *want = expected(&shapes[0], &bytes), *host;
    tandem_job_report report = {.struct_bytes = sizeof report};
    tandem_ticket tickets[3];
    char text[500] = "";
    tandem_job job;
    pid_t worker;
    side x;

    (void)state;
    open_bounded(&x, socket_path, NULL, 0, BOUND_MS * MS);
    job = job_of(&shapes[0], new_mem(&x, bytes, &host), &in, &bytes);
    fill(host, in, bytes, shapes[0].dtype);
    worker = logged_worker(log_path);
    stop_process(worker);
    for (uint64_t i = 0; i < 3; i++) {
        job.wait = i ? (tandem_point){x.engines, i} : (tandem_point){0};
        tickets[i] = submit(&x, &job);
    }
    sleep_ms(3 * BOUND_MS);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(tandem_poll(x.s, tickets[i], &report), TANDEM_OK);
        assert_int_equal(report.state, TANDEM_JOB_PENDING);
    }
    assert_int_equal(tandem_timeline_signal(x.s, x.engines, 1), TANDEM_OK);
    assert_int_equal(kill(worker, SIGCONT), 0);
    assert_int_equal(ended(&x, tickets[0], PATIENCE).state, TANDEM_JOB_DONE);
    report = ended(&x, tickets[1], PATIENCE);
    assert_int_equal(report.state, TANDEM_JOB_DONE);
    assert_memory_equal(host, want, bytes);
    assert_int_equal(ended(&x, tickets[2], PATIENCE).status, TANDEM_ERROR_LOST); /* but no longer than that */
    assert_true(td_now_ns() - report.end_ns >= BOUND_MS * MS);
    tandem_error_text(x.s, text, sizeof text);
    assert_non_null(strstr(text, "did not come within 200 ms"));
    close_side(&x);
    free(want);
}

static int set_up(void **state)
{
    const char *build = getenv("TANDEM_BUILD");

    (void)state;
    strcpy(folder, "/tmp/tandem-remote-XXXXXX");
    if (!build || !mkdtemp(folder))
        return 1;
    snprintf(program, sizeof program, "%s/tandemd", build);
    snprintf(socket_path, sizeof socket_path, "%s/tandem-0", folder);
    snprintf(config_path, sizeof config_path, "%s/config", folder);
    snprintf(log_path, sizeof log_path, "%s/log", folder);
    snprintf(model_path, sizeof model_path, "%s/model.safetensors", folder);
    start_daemon("threads = 1\n");
    return 0;
}

static int tear_down(void **state)
{
    static const char *const left[] = {"tandem-0", "tandem-0.lock", "config", "log", "model.safetensors"};
    char path[128];

    (void)state;
    if (daemon_pid)
        end_daemon(SIGTERM);
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, left[i]);
        unlink(path);
    }
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),   cmocka_unit_test(test_vulkan),  cmocka_unit_test(test_mems),
        cmocka_unit_test(test_two_clients), cmocka_unit_test(test_killed),  cmocka_unit_test(test_ahead),
        cmocka_unit_test(test_replaced),    cmocka_unit_test(test_waiters),
        cmocka_unit_test(test_wait_behind_a_long_job),
        cmocka_unit_test(test_given_up),    cmocka_unit_test(test_models),  cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_stopped),     cmocka_unit_test(test_nothing_leaks),
        cmocka_unit_test(test_random_moments),
    };

    if (getenv("TANDEM_TEST_FILTER"))
        cmocka_set_test_filter(getenv("TANDEM_TEST_FILTER"));
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
