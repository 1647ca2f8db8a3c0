/* Sessions through the public API: on host memory, on Vulkan (lavapipe or a GPU), on CUDA where it is.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * TANDEM_EXPECT_GPU=1: a machine with a GPU; then the `timeline` rung must be there. --bench prints how soon the host
 * learns of what the device did, instead.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "interop/base.h"
#include "kernels/attention/attention.h"
#include "kernels/model/safetensors.h"
#include "kernels/target.h"
#include "tandem/plugin.h"
#include "tests/vk_util.h"

#define MS 1000000ull
#define LONG_NS (180000 * MS) /* under sanitizers, on a machine that does other things too */
#define STUCK_NS (20 * MS) /* how long a job is watched that must not move */
#define DEFAULT_BOUND_NS (20000 * MS)

/* What a session may stand on. */
typedef enum rig_kind {
    ON_CPU,          /* host memory, CPU */
    ON_CUDA,         /* pinned host memory, CUDA */
    ON_VULKAN,       /* whatever is best there */
    ON_VULKAN_CPU,   /* the CPU in memory shared with Vulkan */
    ON_VULKAN_HALF,  /* Vulkan without exported semaphores */
    ON_TIMELINE,     /* the rung `timeline` and no other */
    ON_COPY,         /* the rung `copy` and no other */
    KINDS
} rig_kind;
static const char *const kind_names[KINDS] = {"cpu",         "cuda",     "vulkan", "vulkan-cpu",
                                              "vulkan-half", "timeline", "copy"};

typedef struct logbook {
    pthread_mutex_t lock;
    unsigned errors, details;
    char last[1024], last_warning[1024], last_detail[1024]; /* lines of level ERROR, WARN and DEBUG */
} logbook;

typedef struct rig {
    rig_kind kind;
    vku vk;
    bool has_vk;
    tandem_vulkan vulkan;
    tandem_session_desc desc;
    tandem_session *s;
    tandem_info info;
    logbook log;
} rig;

static void on_log(void *user, int level, const char *text)
{
    rig *r = user;

    pthread_mutex_lock(&r->log.lock);
    r->log.errors += level == TANDEM_LOG_ERROR;
    r->log.details += level == TANDEM_LOG_DEBUG;
    if (level == TANDEM_LOG_ERROR)
        snprintf(r->log.last, sizeof r->log.last, "%s", text);
    if (level == TANDEM_LOG_WARN)
        snprintf(r->log.last_warning, sizeof r->log.last_warning, "%s", text);
    if (level == TANDEM_LOG_DEBUG)
        snprintf(r->log.last_detail, sizeof r->log.last_detail, "%s", text);
    pthread_mutex_unlock(&r->log.lock);
}

static unsigned errors_of(rig *r)
{
    unsigned errors;

    pthread_mutex_lock(&r->log.lock);
    errors = r->log.errors;
    pthread_mutex_unlock(&r->log.lock);
    return errors;
}

static bool expect_gpu(void)
{
    const char *text = getenv("TANDEM_EXPECT_GPU");

    return text && !strcmp(text, "1");
}

static void describe_vulkan(rig *r)
{
    r->vulkan = (tandem_vulkan){
        .struct_bytes = sizeof r->vulkan,
        .api_version = r->vk.api_version,
        .get_instance_proc_addr = r->vk.gipa,
        .instance = r->vk.instance,
        .physical_device = r->vk.physical_device,
        .device = r->vk.device,
        .queue_family = r->vk.queue_family,
        .enabled_extension_count = r->vk.extension_count,
        .enabled_extensions = r->vk.extensions,
        .enabled_features = &r->vk.features,
        .queue = r->vk.queue,
    };
}

static bool validates = true;

/* Everything but the session. False where this machine has not what it takes. */
static bool rig_prepare(rig *r, rig_kind kind)
{
    vku_options options = {.validation = validates};

    memset(r, 0, sizeof *r);
    pthread_mutex_init(&r->log.lock, NULL);
    r->kind = kind;
    r->desc = (tandem_session_desc){
        .struct_bytes = sizeof r->desc,
        .backend = kind == ON_CPU || kind == ON_VULKAN_CPU ? TANDEM_BACKEND_CPU
                   : kind == ON_CUDA                      ? TANDEM_BACKEND_CUDA
                                                          : TANDEM_BACKEND_AUTO,
        .log = on_log,
        .user = r,
        .timing = 1,
        .wait_bound_ns = DEFAULT_BOUND_NS,
    };
    if (kind == ON_TIMELINE)
        r->desc.rung = TANDEM_RUNG_TIMELINE;
    if (kind == ON_COPY)
        r->desc.rung = TANDEM_RUNG_COPY;
    if (kind == ON_VULKAN_HALF && expect_gpu())
        r->desc.rung = TANDEM_RUNG_HOST; /* the inline rung needs no exported semaphores */
    if (getenv("TANDEM_TEST_THREADS"))
        r->desc.cpu_threads = (uint32_t)atoi(getenv("TANDEM_TEST_THREADS"));
    if (kind == ON_CPU || kind == ON_CUDA)
        return true;
    if (kind == ON_VULKAN_HALF)
        options.without[0] = "VK_KHR_external_semaphore_fd";
    switch (vku_open(&r->vk, &options)) {
    case VKU_OK: break;
    case VKU_NO_VULKAN:
        if (expect_gpu())
            fail_msg("no Vulkan, but a GPU is expected");
        return false;
    default: fail_msg("Vulkan is there and does not work");
    }
    r->has_vk = true;
    describe_vulkan(r);
    r->desc.vulkan = &r->vulkan;
    return true;
}

static void rig_close(rig *r)
{
    if (r->s)
        assert_int_equal(tandem_session_destroy(&r->s), TANDEM_OK);
    if (r->has_vk) {
        vku_close(&r->vk);
        if (r->vk.errors)
            fail_msg("%s: validation: %s", kind_names[r->kind], r->vk.last_text);
    }
}

static bool rig_start(rig *r)
{
    char text[300] = "";
    tandem_status status;

    r->desc.error_text = text;
    r->desc.error_text_bytes = sizeof text;
    status = tandem_session_create(&r->desc, &r->s);
    r->desc.error_text = NULL;
    if (status == TANDEM_ERROR_UNSUPPORTED && (r->kind == ON_CUDA || r->kind == ON_TIMELINE) && !expect_gpu()) {
        rig_close(r);
        return false;
    }
    if (status != TANDEM_OK)
        fail_msg("%s: session: %d %s", kind_names[r->kind], status, text);
    r->info.struct_bytes = sizeof r->info;
    assert_int_equal(tandem_session_info(r->s, &r->info), TANDEM_OK);
    return true;
}

static bool rig_open(rig *r, rig_kind kind)
{
    return rig_prepare(r, kind) && rig_start(r);
}

static void each_kind_below(rig_kind end, void (*test)(rig *r))
{
    unsigned run = 0;

    for (rig_kind kind = 0; kind < end; kind++) {
        rig r;

        if (!rig_open(&r, kind))
            continue;
        test(&r);
        rig_close(&r);
        run++;
    }
    assert_true(run > 0);
}

static void each_kind(void (*test)(rig *r))
{
    each_kind_below(KINDS, test);
}

/* Memory is the engine's and the session's own, both. */
static void each_kind_that_shares(void (*test)(rig *r))
{
    each_kind_below(ON_COPY, test);
}

/* Small jobs. */

enum {
    HEADS = 2,
    KV_HEADS = 1,
    ROWS = 48,
    KEYS = 40,
    DIM = 32,
    Q_SIZE = HEADS * ROWS * DIM,
    K_SIZE = KV_HEADS * KEYS * DIM
};
enum {
    K_AT = Q_SIZE,
    V_AT = K_AT + K_SIZE,
    O_AT = V_AT + K_SIZE,
    LSE_AT = O_AT + Q_SIZE,
    FLOATS = LSE_AT + HEADS * ROWS
};
#define MEM_BYTES 36864u
_Static_assert(FLOATS * sizeof(float) <= MEM_BYTES, "the mem holds the job");

static tandem_mem new_mem(rig *r, uint64_t bytes)
{
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = bytes};
    tandem_mem mem;

    assert_int_equal(tandem_mem_create(r->s, &desc, &mem), TANDEM_OK);
    assert_true(mem != 0);
    return mem;
}

static tandem_timeline new_timeline(rig *r, tandem_signaller signaller, uint64_t initial)
{
    const tandem_timeline_desc desc = {.struct_bytes = sizeof desc, .signaller = signaller, .initial_value = initial};
    tandem_timeline timeline;

    assert_int_equal(tandem_timeline_create(r->s, &desc, &timeline), TANDEM_OK);
    assert_true(timeline != 0);
    return timeline;
}

static tandem_view view_at(tandem_mem mem, uint64_t at, uint32_t heads, uint32_t rows, uint32_t dim)
{
    return (tandem_view){.mem = mem,
                         .offset_bytes = at * sizeof(float),
                         .dtype = TANDEM_DTYPE_F32,
                         .stride_batch = (int64_t)heads * rows * dim,
                         .stride_head = (int64_t)rows * dim,
                         .stride_row = dim};
}

static tandem_job new_job(tandem_mem mem)
{
    return (tandem_job){
        .struct_bytes = sizeof(tandem_job),
        .operation = TANDEM_OPERATION_ATTENTION,
        .op.attention = {.q = view_at(mem, 0, HEADS, ROWS, DIM),
                         .k = view_at(mem, K_AT, KV_HEADS, KEYS, DIM),
                         .v = view_at(mem, V_AT, KV_HEADS, KEYS, DIM),
                         .o = view_at(mem, O_AT, HEADS, ROWS, DIM),
                         .lse = view_at(mem, LSE_AT, HEADS, ROWS, 1),
                         .batch = 1,
                         .heads = HEADS,
                         .kv_heads = KV_HEADS,
                         .q_len = ROWS,
                         .kv_len = KEYS,
                         .head_dim = DIM,
                         .precision = TANDEM_PRECISION_F16},
    };
}

/* A job that takes seconds on one core; its mem is not filled. */
static tandem_job long_job(rig *r, tandem_mem *mem)
{
    enum { N = 8192, D = 128, H = 4 };
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = 2ull * H * N * D * sizeof(float)};
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
    tandem_attention *a = &job.op.attention;

    assert_int_equal(tandem_mem_create(r->s, &desc, mem), TANDEM_OK);
    a->q = a->k = a->v = view_at(*mem, 0, H, N, D);
    a->o = view_at(*mem, (uint64_t)H * N * D, H, N, D);
    a->batch = 1;
    a->heads = a->kv_heads = H;
    a->q_len = a->kv_len = N;
    a->head_dim = D;
    a->precision = TANDEM_PRECISION_F16;
    return job;
}

static double noise(uint64_t *seed)
{
    double sum = 0;

    for (int i = 0; i < 12; i++) {
        *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
        sum += (double)(*seed >> 11) * 0x1p-53;
    }
    return sum - 6;
}

static void fill(float *data, uint64_t seed)
{
    seed = seed * 0x9e3779b97f4a7c15ull + 1;
    for (uint32_t i = 0; i < O_AT; i++)
        data[i] = (float)noise(&seed);
    for (uint32_t i = O_AT; i < FLOATS; i++)
        data[i] = -77;
}

/* Relative L1 of O, and the largest error of lse, against the oracle. */
static void check_output(const tandem_job *job, const float *data, double bound)
{
    double o[Q_SIZE], lse[HEADS * ROWS], wrong = 0, all = 0;

    td_ref_attention(&job->op.attention, data, data + K_AT, data + V_AT, o, lse);
    for (uint32_t i = 0; i < Q_SIZE; i++) {
        wrong += fabs((double)data[O_AT + i] - o[i]);
        all += fabs(o[i]);
    }
    if (!(wrong / all <= bound))
        fail_msg("relative L1 is %g, more than %g", wrong / all, bound);
    for (uint32_t i = 0; i < HEADS * ROWS && job->op.attention.lse.dtype; i++)
        if ((double)data[LSE_AT + i] != lse[i] && !(fabs((double)data[LSE_AT + i] - lse[i]) <= bound * 10))
            fail_msg("lse %u is %g, not %g", i, (double)data[LSE_AT + i], lse[i]);
}

static tandem_job_report report_of(rig *r, tandem_ticket ticket)
{
    tandem_job_report report = {.struct_bytes = sizeof report};

    assert_int_equal(tandem_poll(r->s, ticket, &report), TANDEM_OK);
    return report;
}

static tandem_job_report ended(rig *r, tandem_ticket ticket)
{
    tandem_job_report report = {.struct_bytes = sizeof report};

    assert_int_equal(tandem_wait(r->s, ticket, LONG_NS, &report), TANDEM_OK);
    return report;
}

static tandem_ticket submit(rig *r, const tandem_job *job)
{
    char text[400];
    tandem_ticket ticket;
    tandem_status status = tandem_submit(r->s, job, &ticket);

    if (status != TANDEM_OK) {
        tandem_error_text(r->s, text, sizeof text);
        fail_msg("%s: submit: %d %s", kind_names[r->kind], status, text);
    }
    assert_true(ticket != 0);
    return ticket;
}

static uint64_t value_of(rig *r, tandem_timeline timeline)
{
    uint64_t value;

    assert_int_equal(tandem_timeline_value(r->s, timeline, &value), TANDEM_OK);
    return value;
}

static bool gpu_signals(const rig *r)
{
    return r->info.rung == TANDEM_RUNG_TIMELINE;
}

/* Bytes into and out of a mem: through its host address, or by a copy on the engine's queue. */
static void transfer(rig *r, tandem_mem mem, void *data, uint64_t bytes, bool to_mem)
{
    tandem_mem_vulkan vulkan = {.struct_bytes = sizeof vulkan};
    VkBufferCopy whole = {.size = bytes};
    VkCommandBuffer commands;
    vku_buffer staging;
    void *host;

    if (!r->has_vk || r->info.backend == TANDEM_BACKEND_CPU) {
        assert_int_equal(tandem_mem_host(r->s, mem, &host), TANDEM_OK);
        memcpy(to_mem ? host : data, to_mem ? data : host, bytes);
        return;
    }
    assert_int_equal(tandem_mem_get_vulkan(r->s, mem, &vulkan), TANDEM_OK);
    assert_int_equal(
        vku_buffer_create(&r->vk, bytes, VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT, &staging),
        VK_SUCCESS);
    if (to_mem)
        memcpy(staging.host, data, bytes);
    commands = vku_begin(&r->vk);
    if (to_mem) {
        r->vk.CmdCopyBuffer(commands, staging.buffer, vulkan.buffer, 1, &whole);
        assert_int_equal(
            tandem_record_release(r->s, commands, mem, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT),
            TANDEM_OK);
    } else {
        assert_int_equal(
            tandem_record_acquire(r->s, commands, mem, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT),
            TANDEM_OK);
        r->vk.CmdCopyBuffer(commands, vulkan.buffer, staging.buffer, 1, &whole);
        vku_full_barrier(&r->vk, commands);
    }
    assert_int_equal(vku_run(&r->vk, commands), VK_SUCCESS);
    if (!to_mem)
        memcpy(data, staging.host, bytes);
    vku_buffer_destroy(&r->vk, &staging);
}

/* The library itself. */

static void test_table(void **state)
{
    const tandem_api *api = tandem_get_api(TANDEM_VERSION);

    (void)state;
    assert_non_null(api);
    assert_int_equal(api->struct_bytes, sizeof *api);
    assert_int_equal(api->version, tandem_version());
#define SAME(name) assert_true((void *)(uintptr_t)api->name == (void *)(uintptr_t)tandem_##name)
    assert_true((void *)(uintptr_t)api->version_number == (void *)(uintptr_t)tandem_version);
    SAME(status_text);
    SAME(session_create);
    SAME(session_destroy);
    SAME(session_info);
    SAME(error_text);
    SAME(mem_create);
    SAME(mem_destroy);
    SAME(mem_host);
    SAME(timeline_create);
    SAME(timeline_destroy);
    SAME(timeline_value);
    SAME(timeline_signal);
    SAME(point_wait);
    SAME(submit);
    SAME(poll);
    SAME(wait);
    SAME(cancel);
    SAME(model_load);
    SAME(model_tensor);
    SAME(model_destroy);
    SAME(vulkan_requirements);
    SAME(mem_get_vulkan);
    SAME(timeline_get_vulkan);
    SAME(record_release);
    SAME(record_acquire);
    SAME(pack_tiles);
    SAME(record_pack);
    SAME(record_unpack);
    SAME(timeline_submitted);
    SAME(point_fd);
    SAME(record);
#undef SAME
    /* Every member is covered above: the table has struct_bytes, version and 32 functions. */
    assert_int_equal(sizeof *api, 8 + 32 * sizeof(void (*)(void)));
    assert_null(tandem_get_api(TANDEM_VERSION + (1u << 22)));
    assert_null(tandem_get_api(TANDEM_VERSION + (1u << 12)));
    assert_non_null(tandem_get_api(TANDEM_VERSION + 1));
    for (int status = TANDEM_ERROR_BUSY; status <= TANDEM_OK; status++)
        assert_string_not_equal(tandem_status_text(status), "unknown status");
    assert_string_equal(tandem_status_text((tandem_status)-99), "unknown status");
    assert_string_equal(tandem_status_text((tandem_status)1), "unknown status");
}

static void test_ladder(void **state)
{
    rig r;

    (void)state;
    assert_true(rig_open(&r, ON_CPU));
    assert_int_equal(r.info.backend, TANDEM_BACKEND_CPU);
    assert_int_equal(r.info.rung, TANDEM_RUNG_CPU);
    assert_non_null(strstr(r.info.rung_reason, "asked for"));
    assert_true(r.info.isa[0] && r.info.device[0] && r.info.cpu_threads > 0 && r.info.host_bytes > 0);
    assert_int_equal(r.info.sm, 0);
    rig_close(&r);

    assert_true(rig_prepare(&r, ON_CPU));
    r.desc.backend = TANDEM_BACKEND_AUTO;
    r.desc.cpu_threads = 1;
    assert_true(rig_start(&r));
    assert_int_equal(r.info.cpu_threads, 1);
    assert_int_equal(r.info.rung, expect_gpu() ? TANDEM_RUNG_HOST : r.info.sm ? TANDEM_RUNG_HOST : TANDEM_RUNG_CPU);
    assert_true(r.info.rung_reason[0]);
    rig_close(&r);

    if (rig_open(&r, ON_VULKAN)) {
        assert_true(r.info.rung <= TANDEM_RUNG_TIMELINE || (r.info.rung == TANDEM_RUNG_CPU && !expect_gpu()));
        assert_true(r.info.rung == TANDEM_RUNG_INLINE || r.info.rung_reason[0]);
        if (r.info.rung == TANDEM_RUNG_TIMELINE)
            assert_non_null(strstr(r.info.rung_reason, "inline"));
        rig_close(&r);
    }
    if (rig_open(&r, ON_VULKAN_HALF)) {
        assert_true(r.info.rung == TANDEM_RUNG_HOST || r.info.rung == TANDEM_RUNG_CPU);
        assert_true(!expect_gpu() || r.info.rung == TANDEM_RUNG_HOST);
        if (r.info.rung == TANDEM_RUNG_HOST && !r.desc.rung)
            assert_non_null(strstr(r.info.rung_reason, "VK_KHR_external_semaphore_fd"));
        rig_close(&r);
    }
    if (rig_open(&r, ON_VULKAN_CPU)) {
        assert_int_equal(r.info.rung, TANDEM_RUNG_CPU);
        rig_close(&r);
    }
    /* The CPU computes in host memory that Vulkan sees, or in what was copied. */
    if (rig_prepare(&r, ON_VULKAN_CPU)) {
        tandem_info info = {.struct_bytes = sizeof info};
        char text[300] = "";
        const char *kept[16];
        uint32_t count = 0;

        for (uint32_t i = 0; i < r.vulkan.enabled_extension_count; i++)
            if (strcmp(r.vulkan.enabled_extensions[i], "VK_EXT_external_memory_host"))
                kept[count++] = r.vulkan.enabled_extensions[i];
        r.vulkan.enabled_extensions = kept;
        r.vulkan.enabled_extension_count = count;
        r.desc.error_text = text;
        r.desc.error_text_bytes = sizeof text;
        assert_int_equal(tandem_session_create(&r.desc, &r.s), TANDEM_OK);
        assert_int_equal(tandem_session_info(r.s, &info), TANDEM_OK);
        assert_int_equal(info.rung, TANDEM_RUNG_COPY);
        assert_non_null(strstr(info.rung_reason, "VK_EXT_external_memory_host"));
        assert_int_equal(tandem_session_destroy(&r.s), TANDEM_OK);
        r.desc.rung = TANDEM_RUNG_CPU;
        assert_int_equal(tandem_session_create(&r.desc, &r.s), TANDEM_ERROR_UNSUPPORTED);
        assert_null(r.s);
        assert_non_null(strstr(text, "VK_EXT_external_memory_host"));
        assert_int_equal(r.log.errors, 1);
        rig_close(&r);
    }
}

/* A table of another device is told, and not used; the text need not live. */
static void test_tuning(void **state)
{
    static const rig_kind kinds[] = {ON_CPU, ON_CUDA, ON_VULKAN_CPU, ON_TIMELINE};
    rig r;

    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int given = 0; given < 2; given++) {
            char *text = NULL;

            if (!rig_prepare(&r, kinds[i]))
                continue;
            if (given) {
                text = strdup("{\"tandem\":\"choice\",\"version\":2,\"device\":\"a GPU that nobody has\",\"sm\":10,"
                              "\"multiprocessors\":1,\"parts\":[{\"head_dim\":64,\"causal\":0}]}");
                r.desc.tuning = text;
                r.desc.tuning_bytes = strlen(text);
            }
            const bool made = rig_start(&r);

            free(text);
            if (!made)
                continue;
            assert_int_not_equal(r.info.tuning, TANDEM_TUNING_GIVEN);
            assert_int_equal(r.info.reserved, 0);
            if (given && !strstr(r.log.last_warning, "the tuning that was given is not used: "))
                fail_msg("%s: the last warning is '%s'", kind_names[r.kind], r.log.last_warning);
            if (given && !strstr(r.info.tuning_reason, "what was given is not used: "))
                fail_msg("%s: tuning_reason is '%s'", kind_names[r.kind], r.info.tuning_reason);
            if (r.info.backend == TANDEM_BACKEND_CPU) {
                assert_int_equal(r.info.tuning, TANDEM_TUNING_RULE);
                assert_non_null(strstr(r.info.tuning_reason, "there are no tables of the CPU's kernels"));
            } else if (given) {
                assert_non_null(strstr(r.info.tuning_reason, "'a GPU that nobody has' (compute capability 1.0)"));
            }
            rig_close(&r);
        }
}

/* Refusals. */

static void check_refusal(rig *r, unsigned before, tandem_status expected, const char *text, tandem_status got,
                          int line)
{
    char kept[1024] = "";

    if (r->s)
        assert_int_equal(tandem_error_text(r->s, kept, sizeof kept), TANDEM_OK);
    else
        snprintf(kept, sizeof kept, "%s", r->log.last);
    if (got != expected)
        fail_msg("%s, line %d: status %d, not %d: %s", kind_names[r->kind], line, got, expected, kept);
    if (!strstr(kept, text))
        fail_msg("%s, line %d: '%s' does not say '%s'", kind_names[r->kind], line, kept, text);
    if (expected != TANDEM_ERROR_BUSY && (errors_of(r) != before + 1 || strcmp(r->log.last, kept)))
        fail_msg("%s, line %d: %u log lines, the last '%s'", kind_names[r->kind], line, errors_of(r) - before,
                 r->log.last);
    if (expected == TANDEM_ERROR_BUSY && (errors_of(r) != before || strcmp(r->log.last_detail, kept)))
        fail_msg("%s, line %d: BUSY was logged as '%s' and '%s'", kind_names[r->kind], line, r->log.last,
                 r->log.last_detail);
}

#define REFUSED(r, expected, text, ...)                                         \
    do {                                                                        \
        const unsigned before_ = errors_of(r);                                  \
        tandem_status got = TANDEM_OK;                                          \
        __VA_ARGS__;                                                            \
        check_refusal(r, before_, TANDEM_ERROR_##expected, text, got, __LINE__); \
    } while (0)

static char *say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static char *say(const char *format, ...)
{
    static char text[8][200];
    static unsigned at;
    va_list args;

    at = (at + 1) % 8;
    va_start(args, format);
    vsnprintf(text[at], sizeof text[at], format, args);
    va_end(args);
    return text[at];
}

static void *some_allocate(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    return aligned_alloc(alignment, td_align_up(bytes, alignment));
}

static void some_release(void *user, void *pointer)
{
    (void)user;
    free(pointer);
}

static void test_create_refuses(void **state)
{
    char text[300];
    rig r;

    (void)state;
    assert_true(rig_prepare(&r, ON_CPU));
#define CREATE(expected, words, ...)                                                                  \
    do {                                                                                              \
        tandem_session_desc d = r.desc;                                                               \
        tandem_session *s = (tandem_session *)&r;                                                     \
        text[0] = 0;                                                                                  \
        d.error_text = text;                                                                          \
        d.error_text_bytes = sizeof text;                                                             \
        REFUSED(&r, expected, words, __VA_ARGS__; got = tandem_session_create(&d, &s));               \
        assert_null(s);                                                                               \
        assert_non_null(strstr(text, words));                                                         \
    } while (0)
    CREATE(ARG, "desc.backend is 3", d.backend = 3);
    CREATE(ARG, "desc.release is NULL", d.allocate = some_allocate);
    CREATE(ARG, "desc.allocate is NULL", d.release = some_release);
    CREATE(ARG, "desc.frames_in_flight is 49", d.frames_in_flight = 49);
    CREATE(ARG, "desc.job_class is 2", d.job_class = 2);
    CREATE(ARG, "desc.reserved is 1", d.reserved = 1);
    CREATE(ARG, "desc.tuning is NULL, but desc.tuning_bytes is 7", d.tuning_bytes = 7);
    CREATE(ARG, "desc.tuning: the table is no JSON: line 1", d.tuning = "");
    CREATE(ARG, "desc.tuning: the table is no JSON: line 1", d.tuning = "{}"; d.tuning_bytes = 1);
    CREATE(ARG, "desc.tuning: this is no table of `tandem tune`", d.tuning = "{}"; d.tuning_bytes = 2);
    CREATE(ARG, "desc.tuning: the table has 4294967297 bytes", d.tuning = "{}"; d.tuning_bytes = 0x100000001);
    CREATE(ARG, "desc.struct_bytes is 0", d.struct_bytes = 0);
    CREATE(ARG, say("desc.struct_bytes is %zu", sizeof d + 8), d.struct_bytes = sizeof d + 8);
    REFUSED(&r, ARG, "out is NULL", got = tandem_session_create(&r.desc, NULL));
    CREATE(ARG, "desc.timing is 2", d.timing = 2);
    CREATE(ARG, "desc.rung is 9", d.rung = 9);
    if (!expect_gpu() && !r.info.sm) {
        tandem_session_desc asked = r.desc;
        tandem_session *made;

        asked.backend = TANDEM_BACKEND_CUDA;
        asked.log = NULL;
        if (tandem_session_create(&asked, &made) == TANDEM_OK)
            tandem_session_destroy(&made);
        else
            CREATE(UNSUPPORTED, "CUDA", d.backend = TANDEM_BACKEND_CUDA);
    }
    {
        tandem_session_desc d = r.desc;
        tandem_session *s = (tandem_session *)&r;

        /* Sizes that nobody knows: of a shorter struct nothing is read that is not there. */
        for (uint32_t bytes = 4; bytes < sizeof d; bytes++) {
            const bool has_log = bytes >= offsetof(tandem_session_desc, user) + sizeof d.user;
            const unsigned before = errors_of(&r);
            tandem_session_desc *part = malloc(bytes);

            d.struct_bytes = bytes;
            memcpy(part, &d, bytes);
            assert_int_equal(tandem_session_create(part, &s), TANDEM_ERROR_ARG);
            assert_null(s);
            assert_int_equal(errors_of(&r), before + has_log);
            free(part);
        }
        d.struct_bytes = 0x5a5a5a5a; /* nothing at all can be believed */
        d.log = (void (*)(void *, int, const char *))(uintptr_t)0x5a5a5a5a;
        d.error_text = (char *)(uintptr_t)0x5a5a5a5a;
        assert_int_equal(tandem_session_create(&d, &s), TANDEM_ERROR_ARG);
        assert_int_equal(tandem_session_create(NULL, &s), TANDEM_ERROR_ARG);
        assert_int_equal(tandem_session_destroy(NULL), TANDEM_ERROR_ARG);
        assert_int_equal(tandem_session_destroy(&s), TANDEM_ERROR_ARG);
    }
    rig_close(&r);

    if (!rig_prepare(&r, ON_VULKAN))
        return;
#define BAD_VULKAN(expected, words, ...) \
    CREATE(expected, words, tandem_vulkan v = r.vulkan; d.vulkan = &v; __VA_ARGS__)
    BAD_VULKAN(ARG, "desc.vulkan.struct_bytes is 4", v.struct_bytes = 4);
    BAD_VULKAN(ARG, "desc.vulkan.get_instance_proc_addr is NULL", v.get_instance_proc_addr = NULL);
    BAD_VULKAN(ARG, "desc.vulkan.instance is NULL", v.instance = NULL);
    BAD_VULKAN(ARG, "desc.vulkan.physical_device is NULL", v.physical_device = NULL);
    BAD_VULKAN(ARG, "desc.vulkan.device is NULL", v.device = NULL);
    BAD_VULKAN(ARG, "desc.vulkan.enabled_extensions is NULL", v.enabled_extensions = NULL);
    BAD_VULKAN(ARG, "desc.vulkan.unlock_queue is NULL", v.lock_queue = (void (*)(void *))free);
    BAD_VULKAN(UNSUPPORTED, "api_version", v.api_version = VK_API_VERSION_1_0);
    {
        VkPhysicalDeviceFeatures2 none = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};

        BAD_VULKAN(UNSUPPORTED, "desc.rung is 2 (timeline)", v.enabled_features = &none;
                   d.rung = TANDEM_RUNG_TIMELINE);
    }
    rig_close(&r);
}

static void refuse_mems(rig *r)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    void *pages = aligned_alloc(page, 4 * page);
    const tandem_timeline timeline = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0);
    tandem_mem mem, gone = new_mem(r, 4096);
    tandem_mem_vulkan vulkan = {.struct_bytes = sizeof vulkan};
    void *host;
    const int before = vku_open_fds();
    int pipes[2], dead, directory, devnull, memfd;

#define MEM(expected, words, ...)                                                                            \
    do {                                                                                                     \
        tandem_mem_desc d = {.struct_bytes = sizeof d, .bytes = 4096, .allocation_bytes = 65536, .fd = pipes[0]}; \
        mem = 77;                                                                                            \
        REFUSED(r, expected, words, __VA_ARGS__; got = tandem_mem_create(r->s, &d, &mem));                   \
        assert_int_equal(mem, 0);                                                                            \
    } while (0)
    assert_int_equal(pipe(pipes), 0);
    directory = open("/tmp", O_RDONLY | O_DIRECTORY);
    devnull = open("/dev/null", O_RDWR);
    memfd = memfd_create("test", MFD_CLOEXEC);
    assert_int_equal(ftruncate(memfd, 65536), 0);
    dead = dup(pipes[0]);
    close(dead);
    MEM(ARG, "desc.struct_bytes is 3", d.struct_bytes = 3);
    MEM(ARG, "desc.source is 4", d.source = 4);
    MEM(ARG, "desc.bytes is 0", d.bytes = 0);
    MEM(ARG, say("desc.bytes is %" PRIu64, UINT64_MAX), d.bytes = UINT64_MAX);
    MEM(ARG, "desc.reserved is 1", d.reserved = 1);
    MEM(ARG, "desc.host is NULL", d.source = TANDEM_MEM_HOST);
    MEM(ARG, "desc.host is 0x1000, and not all", d.source = TANDEM_MEM_HOST; d.host = (void *)(uintptr_t)0x1000);
    MEM(ARG, say("desc.host is %p, and not all of the desc.bytes %" PRIu64, (void *)pages, (uint64_t)1 << 46),
        d.source = TANDEM_MEM_HOST; d.host = pages; d.bytes = 1ull << 46);
    MEM(ARG, say("desc.bytes is %" PRId64, INT64_MAX), d.source = TANDEM_MEM_HOST; d.host = (void *)UINTPTR_MAX;
        d.bytes = INT64_MAX);
    MEM(ARG, "desc.allocation_bytes is 0", d.source = TANDEM_MEM_FD; d.allocation_bytes = 0);
    MEM(ARG, "desc.dedicated is 2", d.source = TANDEM_MEM_FD; d.dedicated = 2);
    MEM(ARG, "desc.offset_bytes is 65536", d.source = TANDEM_MEM_FD; d.offset_bytes = 65536);
    MEM(ARG, "desc.offset_bytes is 61441", d.source = TANDEM_MEM_VULKAN; d.offset_bytes = 61441);
    MEM(ARG, say("desc.offset_bytes is %" PRIu64, UINT64_MAX), d.source = TANDEM_MEM_FD; d.offset_bytes = UINT64_MAX);
    MEM(ARG, say("desc.fd is %d", dead), d.source = TANDEM_MEM_FD; d.fd = dead);
    MEM(ARG, "desc.fd is -1", d.source = TANDEM_MEM_FD; d.fd = -1);
    MEM(ARG, say("desc.fd is %d, a pipe", pipes[0]), d.source = TANDEM_MEM_FD);
    MEM(ARG, say("desc.fd is %d, a directory", directory), d.source = TANDEM_MEM_FD; d.fd = directory);
    MEM(ARG, say("desc.allocation_bytes is 65537, but desc.fd %d has 65536 bytes", memfd), d.source = TANDEM_MEM_FD;
        d.fd = memfd; d.allocation_bytes = 65537);
    MEM(UNSUPPORTED, "desc.vulkan_usage is 0x20200", d.vulkan_usage = 0x20200);
    MEM(NOMEM, "", d.bytes = 1ull << 50); /* more than any machine has; refused before a sanitizer's malloc objects */
    MEM(ARG, "desc.vulkan_memory is 0", d.source = TANDEM_MEM_VULKAN);
    if (!r->has_vk)
        MEM(UNSUPPORTED, "desc.source is VULKAN (3)", d.source = TANDEM_MEM_VULKAN; d.vulkan_memory = 16);
    else if (r->info.backend == TANDEM_BACKEND_CPU)
        MEM(UNSUPPORTED, "desc.dedicated is 1", d.source = TANDEM_MEM_VULKAN; d.vulkan_memory = 16; d.dedicated = 1);
    if (!r->has_vk || r->info.backend == TANDEM_BACKEND_CPU) {
        MEM(UNSUPPORTED, "desc.source is FD (2)", d.source = TANDEM_MEM_FD; d.fd = memfd);
    } else if (r->info.rung == TANDEM_RUNG_INLINE) {
        MEM(UNSUPPORTED, "desc.source is FD (2)", d.source = TANDEM_MEM_FD; d.fd = devnull);
    } else {
        MEM(ARG, say("desc.fd is %d", devnull), d.source = TANDEM_MEM_FD; d.fd = devnull);
    }
    if (r->has_vk || r->info.backend == TANDEM_BACKEND_CUDA) {
        MEM(ARG, say("desc.host is %p", (void *)((char *)pages + 16)), d.source = TANDEM_MEM_HOST;
            d.host = (char *)pages + 16);
        MEM(ARG, "desc.bytes is 4095", d.source = TANDEM_MEM_HOST; d.host = pages; d.bytes = 4095);
    }
    assert_int_equal(fcntl(pipes[0], F_GETFD) >= 0, 1); /* stays the caller's */
    assert_int_equal(lseek(memfd, 0, SEEK_CUR), 0);
    close(pipes[0]);
    close(pipes[1]);
    close(directory);
    close(devnull);
    close(memfd);
    REFUSED(r, ARG, "desc is NULL", got = tandem_mem_create(r->s, NULL, &mem));
    REFUSED(r, ARG, "mem is NULL", tandem_mem_desc d = {.struct_bytes = sizeof d};
            got = tandem_mem_create(r->s, &d, NULL));

    REFUSED(r, ARG, "mem is 0x0", got = tandem_mem_destroy(r->s, 0));
    REFUSED(r, ARG, "mem is 0x4d2", got = tandem_mem_destroy(r->s, 1234));
    REFUSED(r, ARG, say("mem is 0x%" PRIx64 ", which is a timeline, not a mem", timeline),
            got = tandem_mem_destroy(r->s, timeline));
    REFUSED(r, ARG, say("mem is 0x%" PRIx64, (uint64_t)(gone ^ 1ull << 50)),
            got = tandem_mem_destroy(r->s, gone ^ 1ull << 50));
    REFUSED(r, ARG, say("mem is 0x%" PRIx64, gone + 9), got = tandem_mem_destroy(r->s, gone + 9));
    REFUSED(r, ARG, "host is NULL", got = tandem_mem_host(r->s, gone, NULL));
    assert_int_equal(tandem_mem_destroy(r->s, gone), TANDEM_OK);
    REFUSED(r, ARG, say("mem is 0x%" PRIx64 ", which was destroyed", gone), got = tandem_mem_destroy(r->s, gone));
    mem = new_mem(r, 4096); /* takes the slot; the old id stays dead */
    assert_true(mem != gone);
    REFUSED(r, ARG, say("mem is 0x%" PRIx64 ", which was destroyed", gone), got = tandem_mem_host(r->s, gone, &host));
    REFUSED(r, ARG, say("mem is 0x%" PRIx64 ", which was destroyed", gone),
            got = tandem_mem_get_vulkan(r->s, gone, &vulkan));
    REFUSED(r, ARG, "out is NULL", got = tandem_mem_get_vulkan(r->s, mem, NULL));
    REFUSED(r, ARG, "out.struct_bytes is 8",
            got = tandem_mem_get_vulkan(r->s, mem, &(tandem_mem_vulkan){.struct_bytes = 8}));
    if (!r->has_vk)
        REFUSED(r, UNSUPPORTED, say("mem is 0x%" PRIx64, mem), got = tandem_mem_get_vulkan(r->s, mem, &vulkan));
    if (tandem_mem_host(r->s, mem, &host) != TANDEM_OK)
        REFUSED(r, UNSUPPORTED, say("mem is 0x%" PRIx64, mem), got = tandem_mem_host(r->s, mem, &host));
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
    assert_int_equal(tandem_timeline_destroy(r->s, timeline), TANDEM_OK);
    assert_true(vku_open_fds() <= before);
    free(pages);
}

static void refuse_timelines(rig *r)
{
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 5),
                          ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    const tandem_mem mem = new_mem(r, 4096);
    tandem_timeline made, gone = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0);
    VkSemaphore semaphore;
    uint64_t value;

#define TIMELINE(expected, words, ...)                                                                   \
    do {                                                                                                 \
        tandem_timeline_desc d = {.struct_bytes = sizeof d};                                             \
        made = 77;                                                                                       \
        REFUSED(r, expected, words, __VA_ARGS__; got = tandem_timeline_create(r->s, &d, &made));         \
        assert_int_equal(made, 0);                                                                       \
    } while (0)
    TIMELINE(ARG, "desc.struct_bytes is 31", d.struct_bytes = 31);
    TIMELINE(ARG, "desc.signaller is 2", d.signaller = 2);
    if (!r->has_vk)
        TIMELINE(UNSUPPORTED, "desc.vulkan_semaphore is 0x1234", d.vulkan_semaphore = 0x1234);
    REFUSED(r, ARG, "desc is NULL", got = tandem_timeline_create(r->s, NULL, &made));
    REFUSED(r, ARG, "timeline is NULL", tandem_timeline_desc d = {.struct_bytes = sizeof d};
            got = tandem_timeline_create(r->s, &d, NULL));
    assert_int_equal(tandem_timeline_destroy(r->s, gone), TANDEM_OK);
    REFUSED(r, ARG, say("timeline is 0x%" PRIx64 ", which was destroyed", gone),
            got = tandem_timeline_destroy(r->s, gone));
    REFUSED(r, ARG, say("timeline is 0x%" PRIx64 ", which was destroyed", gone),
            got = tandem_timeline_value(r->s, gone, &value));
    REFUSED(r, ARG, say("timeline is 0x%" PRIx64 ", which is a mem, not a timeline", mem),
            got = tandem_timeline_value(r->s, mem, &value));
    REFUSED(r, ARG, "value is NULL", got = tandem_timeline_value(r->s, engines, NULL));
    REFUSED(r, ARG, "value is 5", got = tandem_timeline_signal(r->s, engines, 5));
    REFUSED(r, ARG, "value is 0", got = tandem_timeline_signal(r->s, engines, 0));
    REFUSED(r, ARG, say("value is %" PRIu64, UINT64_MAX), got = tandem_timeline_signal(r->s, engines, UINT64_MAX));
    REFUSED(r, ARG, say("timeline is 0x%" PRIx64 ", which only the session signals", ours),
            got = tandem_timeline_signal(r->s, ours, 1));
    REFUSED(r, ARG, "timeline is 0x0", got = tandem_timeline_signal(r->s, 0, 1));
    assert_int_equal(tandem_timeline_signal(r->s, engines, 6), TANDEM_OK);
    assert_int_equal(value_of(r, engines), 6);
    REFUSED(r, ARG, "point.timeline is 0x0", got = tandem_point_wait(r->s, (tandem_point){0, 3}, 0));
    REFUSED(r, BUSY, "point.value is 7", got = tandem_point_wait(r->s, (tandem_point){engines, 7}, 0));
    REFUSED(r, BUSY, "point.value is 1", got = tandem_point_wait(r->s, (tandem_point){ours, 1}, 2 * MS));
    assert_int_equal(tandem_point_wait(r->s, (tandem_point){engines, 6}, 0), TANDEM_OK);
    assert_int_equal(tandem_point_wait(r->s, (tandem_point){0, 0}, 0), TANDEM_OK);
    if (r->has_vk) {
        assert_int_equal(tandem_timeline_get_vulkan(r->s, ours, &semaphore), TANDEM_OK);
        assert_true(semaphore != VK_NULL_HANDLE);
        REFUSED(r, ARG, "out is NULL", got = tandem_timeline_get_vulkan(r->s, ours, NULL));
    } else {
        REFUSED(r, UNSUPPORTED, say("timeline is 0x%" PRIx64, ours),
                got = tandem_timeline_get_vulkan(r->s, ours, &semaphore));
    }
    assert_int_equal(tandem_timeline_destroy(r->s, engines), TANDEM_OK);
    assert_int_equal(tandem_timeline_destroy(r->s, ours), TANDEM_OK);
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
}

static void refuse_jobs(rig *r)
{
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0),
                          ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 4);
    const tandem_mem mem = new_mem(r, MEM_BYTES), gone = new_mem(r, MEM_BYTES);
    tandem_job_report report = {.struct_bytes = sizeof report};
    tandem_ticket ticket;

    assert_int_equal(tandem_mem_destroy(r->s, gone), TANDEM_OK);
#define JOB(expected, words, ...)                                                                 \
    do {                                                                                          \
        tandem_job j = new_job(mem);                                                              \
        tandem_attention *a = &j.op.attention;                                                    \
        (void)a;                                                                                  \
        ticket = 77;                                                                              \
        REFUSED(r, expected, words, __VA_ARGS__; got = tandem_submit(r->s, &j, &ticket));         \
        assert_int_equal(ticket, 0);                                                              \
    } while (0)
    JOB(ARG, "job.struct_bytes is 16", j.struct_bytes = 16);
    JOB(ARG, "job.operation is 0", j.operation = 0);
    JOB(ARG, "job.operation is 99", j.operation = 99);
    JOB(ARG, "job.wait.timeline is 0x0", j.wait.value = 1);
    JOB(ARG, say("job.wait.timeline is 0x%" PRIx64 ", which is a mem", mem), j.wait = (tandem_point){mem, 1});
    JOB(ARG, "job.wait.value is 2147483648", j.wait = (tandem_point){engines, 1ull << 31});
    JOB(ARG, "job.wait.value is 5", j.wait = (tandem_point){ours, 5});
    JOB(ARG, "job.signal.timeline is 0x0", j.signal.value = 1);
    JOB(ARG, say("job.signal.timeline is 0x%" PRIx64 ", which the engine signals", engines),
        j.signal = (tandem_point){engines, 1});
    JOB(ARG, "job.signal.value is 4", j.signal = (tandem_point){ours, 4});
    JOB(ARG, "job.signal.value is 0", j.signal = (tandem_point){ours, 0});
    JOB(ARG, say("job.signal.value is %" PRIu64, UINT64_MAX), j.signal = (tandem_point){ours, UINT64_MAX});
    JOB(ARG, "batch is 0", a->batch = 0);
    JOB(ARG, "heads is 0", a->heads = 0);
    JOB(ARG, "kv_heads is 0", a->kv_heads = 0);
    JOB(ARG, "q_len is 0", a->q_len = 0);
    JOB(ARG, "kv_len is 0", a->kv_len = 0);
    JOB(ARG, "head_dim is 33", a->head_dim = 33);
    JOB(ARG, "head_dim is 0", a->head_dim = 0);
    JOB(ARG, "heads is 3", a->heads = 3; a->kv_heads = 2);
    JOB(ARG, "causal is 2", a->causal = 2);
    JOB(ARG, "precision is 4", a->precision = 4);
    JOB(ARG, "smooth is 16", a->smooth = 16);
    JOB(ARG, "smooth is 5", a->smooth = TANDEM_SMOOTH_NONE | TANDEM_SMOOTH_K);
    JOB(ARG, "granularity is 7", a->granularity = 7);
    JOB(ARG, "reserved is 1", a->reserved = 1);
    JOB(ARG, "scale is nan", a->scale = NAN);
    JOB(ARG, "scale is inf", a->scale = INFINITY);
    JOB(ARG, "q.mem is 0x0", a->q.mem = 0);
    JOB(ARG, say("k.mem is 0x%" PRIx64 ", which was destroyed", gone), a->k.mem = gone);
    JOB(ARG, say("v.mem is 0x%" PRIx64 ", which is a timeline", ours), a->v.mem = ours);
    JOB(ARG, "o.mem is 0x0", a->o.mem = 0);
    JOB(ARG, "lse.mem is 0x3", a->lse.mem = 3);
    JOB(ARG, "q.dtype is 0", a->q.dtype = 0);
    JOB(ARG, "k.dtype is 6", a->k.dtype = 6);
    JOB(ARG, "o.dtype is 99", a->o.dtype = 99);
    JOB(ARG, "lse.dtype is 1", a->lse.dtype = TANDEM_DTYPE_F16);
    JOB(ARG, "v.reserved is 2", a->v.reserved = 2);
    JOB(ARG, "q.offset_bytes is 2;", a->q.offset_bytes = 2);
    JOB(ARG, say("q.offset_bytes is %u,", MEM_BYTES), a->q.offset_bytes = MEM_BYTES);
    JOB(ARG, say("v.offset_bytes is %u,", MEM_BYTES - (unsigned)sizeof(float)),
        a->v.offset_bytes = MEM_BYTES - sizeof(float));
    JOB(ARG, say("k.stride_batch, stride_head, stride_row are %d", KV_HEADS * KEYS * DIM),
        a->k.offset_bytes = UINT64_MAX - 3);
    JOB(ARG, "q.stride_row is -1", a->q.stride_row = -1);
    JOB(ARG, "stride_batch, stride_head, stride_row are", a->q.stride_head = INT64_MAX);
    JOB(ARG, "k.offset_bytes is 12288,", a->k.stride_row = 1 << 20);
    JOB(ARG, "o.stride_row is 0", a->o.stride_row = 0);
    JOB(ARG, "o.stride_head is 31", a->o.stride_head = 31);
    JOB(ARG, "o.offset_bytes is 0: it overlaps q at 0", a->o.offset_bytes = 0);
    JOB(ARG, "o.offset_bytes is 128: it overlaps q at 0", a->o.offset_bytes = 128);
    JOB(ARG, say("lse.offset_bytes is %zu: it overlaps o", O_AT * sizeof(float)),
        a->lse.offset_bytes = O_AT * sizeof(float));
    JOB(ARG, "lse.offset_bytes is 12288: it overlaps k at 12288", a->lse.offset_bytes = K_AT * sizeof(float));
    REFUSED(r, ARG, "job is NULL", got = tandem_submit(r->s, NULL, &ticket));
    REFUSED(r, ARG, "ticket is NULL", tandem_job j = new_job(mem); got = tandem_submit(r->s, &j, NULL));

    REFUSED(r, ARG, "ticket is 0x0", got = tandem_poll(r->s, 0, &report));
    REFUSED(r, ARG, say("ticket is 0x%" PRIx64, mem), got = tandem_poll(r->s, mem, &report));
    REFUSED(r, ARG, "ticket is 0x0", got = tandem_wait(r->s, 0, 0, NULL));
    REFUSED(r, ARG, "ticket is 0x1", got = tandem_cancel(r->s, 1));
    {
        const tandem_job job = new_job(mem);
        tandem_job_report bad = {.struct_bytes = 8};

        ticket = submit(r, &job);
        REFUSED(r, ARG, "report is NULL", got = tandem_poll(r->s, ticket, NULL));
        REFUSED(r, ARG, "report.struct_bytes is 8", got = tandem_poll(r->s, ticket, &bad));
        REFUSED(r, ARG, "report.struct_bytes is 8", got = tandem_wait(r->s, ticket, 0, &bad));
        REFUSED(r, ARG, say("ticket is 0x%" PRIx64, ticket + 1), got = tandem_poll(r->s, ticket + 1, &report));
        assert_int_equal(ended(r, ticket).state, TANDEM_JOB_DONE);
        REFUSED(r, BUSY, say("ticket is 0x%" PRIx64, ticket), got = tandem_cancel(r->s, ticket));
    }
    /* No refused job took its point. */
    {
        tandem_job job = new_job(mem);

        job.signal = (tandem_point){ours, 5};
        assert_int_equal(ended(r, submit(r, &job)).state, TANDEM_JOB_DONE);
        assert_int_equal(value_of(r, ours), 5);
    }
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
    assert_int_equal(tandem_timeline_destroy(r->s, engines), TANDEM_OK);
    assert_int_equal(tandem_timeline_destroy(r->s, ours), TANDEM_OK);
}

static void refuse_rest(rig *r)
{
    const tandem_mem mem = new_mem(r, 4096);
    tandem_info info = {.struct_bytes = 12};
    tandem_model model;
    tandem_view view;
    uint64_t shape[4];
    uint32_t x, y;
    char text[8];

    REFUSED(r, ARG, "info is NULL", got = tandem_session_info(r->s, NULL));
    REFUSED(r, ARG, "info.struct_bytes is 12", got = tandem_session_info(r->s, &info));
    REFUSED(r, ARG, "text is NULL", got = tandem_error_text(r->s, NULL, 8));
    REFUSED(r, ARG, "bytes is 0", got = tandem_error_text(r->s, text, 0));
    REFUSED(r, ARG, "path is NULL", got = tandem_model_load(r->s, NULL, &model));
    REFUSED(r, ARG, "model is NULL", got = tandem_model_load(r->s, "/x", NULL));
    REFUSED(r, IO, "path is '/nonexistent/model'", got = tandem_model_load(r->s, "/nonexistent/model", &model));
    REFUSED(r, IO, "path is '/tmp'", got = tandem_model_load(r->s, "/tmp", &model));
    REFUSED(r, PROTOCOL, "path is '/proc/self/comm'", got = tandem_model_load(r->s, "/proc/self/comm", &model));
    REFUSED(r, ARG, "model is 0x0", got = tandem_model_destroy(r->s, 0));
    REFUSED(r, ARG, say("model is 0x%" PRIx64 ", which is a mem", mem), got = tandem_model_destroy(r->s, mem));
    REFUSED(r, ARG, "model is 0x0", got = tandem_model_tensor(r->s, 0, "a", &view, shape));
    REFUSED(r, ARG, "name is NULL", got = tandem_model_tensor(r->s, 0, NULL, &view, shape));
    REFUSED(r, ARG, "view is NULL", got = tandem_model_tensor(r->s, 0, "a", NULL, shape));
    REFUSED(r, ARG, "shape is NULL", got = tandem_model_tensor(r->s, 0, "a", &view, NULL));
#define TILES(expected, words, ...)                                                                                  \
    do {                                                                                                             \
        tandem_pack p = {.struct_bytes = sizeof p, .width = 20, .height = 9, .tile_width = 8, .tile_height = 4};     \
        REFUSED(r, expected, words, __VA_ARGS__; got = tandem_pack_tiles(r->s, &p, &x, &y));                         \
    } while (0)
    TILES(ARG, "pack.struct_bytes is 0", p.struct_bytes = 0);
    TILES(ARG, "pack.width is 0", p.width = 0);
    TILES(ARG, "pack.height is 4294967295", p.height = UINT32_MAX);
    TILES(ARG, "pack.tile_width is 0", p.tile_width = 0);
    TILES(ARG, "pack.tile_height is 0", p.tile_height = 0);
    TILES(ARG, "pack.shift_x is 8", p.shift_x = 8);
    TILES(ARG, "pack.shift_y is 5", p.shift_y = 5);
    TILES(ARG, "pack.tile_width is 1", p.width = p.height = 1 << 20; p.tile_width = p.tile_height = 1);
    REFUSED(r, ARG, "pack is NULL", got = tandem_pack_tiles(r->s, NULL, &x, &y));
    {
        tandem_pack p = {
            .struct_bytes = sizeof p, .width = 20, .height = 9, .tile_width = 8, .tile_height = 4, .shift_x = 5};

        REFUSED(r, ARG, "tiles_y is NULL", got = tandem_pack_tiles(r->s, &p, &x, NULL));
        assert_int_equal(tandem_pack_tiles(r->s, &p, &x, &y), TANDEM_OK);
        assert_int_equal(x, 4);
        assert_int_equal(y, 3);
    }
    if (r->has_vk) {
        VkCommandBuffer commands = vku_begin(&r->vk);
        const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;

        REFUSED(r, ARG, "commands is NULL", got = tandem_record_release(r->s, NULL, mem, stage, 0));
        REFUSED(r, ARG, "src_stage is 0", got = tandem_record_release(r->s, commands, mem, 0, 0));
        REFUSED(r, ARG, "dst_stage is 0", got = tandem_record_acquire(r->s, commands, mem, 0, 0));
        REFUSED(r, ARG, "mem is 0x5", got = tandem_record_acquire(r->s, commands, 5, stage, 0));
        REFUSED(r, ARG, "pack is NULL", got = tandem_record_pack(r->s, commands, NULL));
#define PACK(function, expected, words, ...)                                                                           \
    do {                                                                                                               \
        tandem_pack p = {.struct_bytes = sizeof p,                                                                     \
                         .image_count = 1,                                                                             \
                         .images = {(VkImageView)(uintptr_t)1},                                                        \
                         .layout = VK_IMAGE_LAYOUT_GENERAL,                                                            \
                         .format = VK_FORMAT_R32G32B32A32_SFLOAT,                                                      \
                         .width = 4,                                                                                   \
                         .height = 4,                                                                                  \
                         .tile_width = 4,                                                                              \
                         .tile_height = 4,                                                                             \
                         .channels = 4,                                                                                \
                         .view_channels = 4,                                                                           \
                         .view = {.mem = mem, .dtype = TANDEM_DTYPE_F32, .stride_batch = 64, .stride_row = 4}};        \
        REFUSED(r, expected, words, __VA_ARGS__; got = tandem_record_##function(r->s, commands, &p));                  \
    } while (0)
        PACK(pack, ARG, "pack.view.dtype is 2", p.view.dtype = TANDEM_DTYPE_BF16);
        PACK(pack, ARG, "pack.view.reserved is 1", p.view.reserved = 1);
        PACK(pack, ARG, "pack.view.offset_bytes is 3", p.view.offset_bytes = 3);
        PACK(pack, ARG, "pack.view.mem is 0x0", p.view.mem = 0);
        PACK(pack, ARG, "image_count is 5", p.image_count = 5);
        PACK(pack, ARG, "channels is 5", p.channels = 5);
        PACK(pack, ARG, "view_channels is 3", p.view_channels = 3);
        PACK(pack, ARG, "4096", p.view.offset_bytes = 4096);
        PACK(pack, ARG, "stride_row", p.view.stride_row = 3);
        PACK(unpack, ARG, "halo is 1", p.halo = 1);
        PACK(unpack, ARG, "format is 37", p.format = VK_FORMAT_R8G8B8A8_UNORM);
        PACK(unpack, ARG, "layout is 5", p.layout = VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL);
        assert_int_equal(vku_run(&r->vk, commands), VK_SUCCESS);
    } else {
        tandem_pack p = {.struct_bytes = sizeof p};

        REFUSED(r, UNSUPPORTED, "commands is 0x10",
                got = tandem_record_release(r->s, (VkCommandBuffer)(uintptr_t)16, mem, 1, 0));
        REFUSED(r, UNSUPPORTED, "commands is 0x10", got = tandem_record_pack(r->s, (VkCommandBuffer)(uintptr_t)16, &p));
    }
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
}

static void refuse_everything(rig *r)
{
    refuse_mems(r);
    refuse_timelines(r);
    refuse_jobs(r);
    refuse_rest(r);
}

static void test_refusals(void **state)
{
    tandem_job job = {0};
    char text[200];
    tandem_mem id;
    uint64_t value;
    void *host;

    (void)state;
    each_kind_that_shares(refuse_everything);
    /* No session at all. */
    assert_int_equal(tandem_session_info(NULL, &(tandem_info){.struct_bytes = sizeof(tandem_info)}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_error_text(NULL, text, sizeof text), TANDEM_OK);
    assert_string_equal(text, "tandem_session_info: session is NULL");
    assert_int_equal(tandem_error_text(NULL, text, 0), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_error_text(NULL, NULL, 4), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_mem_create(NULL, &(tandem_mem_desc){0}, &id), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_mem_destroy(NULL, 1), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_mem_host(NULL, 1, &host), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_mem_get_vulkan(NULL, 1, &(tandem_mem_vulkan){0}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_timeline_create(NULL, &(tandem_timeline_desc){0}, &id), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_timeline_destroy(NULL, 1), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_timeline_value(NULL, 1, &value), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_timeline_signal(NULL, 1, 1), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_timeline_get_vulkan(NULL, 1, &(VkSemaphore){0}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_point_wait(NULL, (tandem_point){0, 0}, 0), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_submit(NULL, &job, &id), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_poll(NULL, 1, &(tandem_job_report){0}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_wait(NULL, 1, 0, NULL), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_cancel(NULL, 1), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_model_load(NULL, "x", &id), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_model_tensor(NULL, 1, "x", &(tandem_view){0}, (uint64_t[4]){0}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_model_destroy(NULL, 1), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_record_release(NULL, NULL, 1, 1, 0), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_record_acquire(NULL, NULL, 1, 1, 0), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_record_pack(NULL, NULL, &(tandem_pack){0}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_record_unpack(NULL, NULL, &(tandem_pack){0}), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_pack_tiles(NULL, &(tandem_pack){0}, &(uint32_t){0}, &(uint32_t){0}), TANDEM_ERROR_ARG);
}

/* Results. */

static void compute(rig *r)
{
    static const struct {
        uint32_t precision, causal, smooth;
        double bound;
    } cases[] = {
        {TANDEM_PRECISION_F16, 0, 0, 2e-3}, {TANDEM_PRECISION_F16, 1, 0, 2e-3},
        {TANDEM_PRECISION_AUTO, 0, 0, 2e-3}, {TANDEM_PRECISION_8B, 0, 0, 0.08},
        {TANDEM_PRECISION_8B, 1, TANDEM_SMOOTH_K | TANDEM_SMOOTH_V, 0.08},
    };
    const tandem_mem mem = new_mem(r, MEM_BYTES);
    const tandem_timeline ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 10);
    float *data = calloc(1, MEM_BYTES);
    bool released = false;

    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tandem_job job = new_job(mem);
        tandem_job_report report;
        tandem_ticket ticket;

        job.op.attention.precision = cases[i].precision;
        job.op.attention.causal = cases[i].causal;
        job.op.attention.smooth = cases[i].smooth;
        job.signal = (tandem_point){ours, 11 + i};
        fill(data, i);
        transfer(r, mem, data, MEM_BYTES, true);
        released = true;
        ticket = submit(r, &job);
        assert_int_equal(tandem_point_wait(r->s, job.signal, LONG_NS), TANDEM_OK);
        report = ended(r, ticket);
        assert_int_equal(report.state, TANDEM_JOB_DONE);
        assert_int_equal(report.status, TANDEM_OK);
        assert_int_equal(report.precision, cases[i].precision ? cases[i].precision : TANDEM_PRECISION_F16);
        assert_true(report.submit_ns && report.begin_ns && report.end_ns > report.begin_ns);
        assert_true(report.begin_ns + 5 * MS > report.submit_ns && report.end_ns < td_now_ns() + 5 * MS);
        assert_int_equal(value_of(r, ours), 11 + i);
        transfer(r, mem, data, MEM_BYTES, false);
        check_output(&job, data, cases[i].bound);
    }
    assert_true(released);
    assert_int_equal(tandem_session_info(r->s, &r->info), TANDEM_OK);
    assert_int_equal(r->info.jobs_submitted, sizeof cases / sizeof *cases);
    assert_int_equal(r->info.jobs_done, sizeof cases / sizeof *cases);
    free(data);
}

static void test_compute(void **state)
{
    (void)state;
    each_kind(compute);
}

/* Memory of the caller's, page-aligned; strided views that interleave inputs and output; no lse. */
static void caller_memory(rig *r)
{
    enum { PITCH = 4 * DIM, N = 64 };
    const uint64_t bytes = 65536;
    float *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .source = TANDEM_MEM_HOST, .bytes = bytes, .host = host};
    const tandem_view view = {.dtype = TANDEM_DTYPE_F32, .stride_row = PITCH};
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
    tandem_attention *a = &job.op.attention;
    double ref[N * DIM];
    tandem_mem mem;
    void *address;
    uint64_t seed = 3;

    assert_true(host != MAP_FAILED);
    assert_int_equal(tandem_mem_create(r->s, &desc, &mem), TANDEM_OK);
    assert_int_equal(tandem_mem_host(r->s, mem, &address), TANDEM_OK);
    assert_ptr_equal(address, host);
    for (uint32_t i = 0; i < N * PITCH; i++)
        host[i] = (float)noise(&seed);
    *a = (tandem_attention){.q = view,
                            .k = view,
                            .v = view,
                            .o = view,
                            .batch = 1,
                            .heads = 1,
                            .kv_heads = 1,
                            .q_len = N,
                            .kv_len = N,
                            .head_dim = DIM,
                            .precision = TANDEM_PRECISION_F16};
    a->q.mem = a->k.mem = a->v.mem = a->o.mem = mem;
    a->k.offset_bytes = DIM * sizeof(float);
    a->v.offset_bytes = 2 * DIM * sizeof(float);
    a->o.offset_bytes = 3 * DIM * sizeof(float);
    td_ref_attention(a, host, host + DIM, host + 2 * DIM, ref, NULL);
    assert_int_equal(ended(r, submit(r, &job)).state, TANDEM_JOB_DONE);
    for (uint32_t row = 0; row < N; row++)
        for (uint32_t c = 0; c < DIM; c++)
            assert_true(fabs((double)host[row * PITCH + 3 * DIM + c] - ref[row * DIM + c]) < 5e-3);
    {
        const float before = host[5];

        /* One channel further, and O would run into the next row's Q. */
        REFUSED(r, ARG, "o.offset_bytes is 388: it overlaps q at 0", a->o.offset_bytes += sizeof(float);
                tandem_ticket ticket; got = tandem_submit(r->s, &job, &ticket));
        assert_true(host[5] == before);
        a->o.offset_bytes -= sizeof(float);
    }
    {
        /* The second half once more, as a mem of its own: O there, K in the whole at the same bytes. CUDA registers
         * memory once only. */
        const uint64_t half = bytes / 2;
        const tandem_mem_desc again = {
            .struct_bytes = sizeof again, .source = TANDEM_MEM_HOST, .bytes = half, .host = (char *)host + half};
        tandem_mem other;
        tandem_ticket ticket;

        if (r->info.backend == TANDEM_BACKEND_CPU) {
            assert_int_equal(tandem_mem_create(r->s, &again, &other), TANDEM_OK);
            a->o.mem = other;
            a->o.offset_bytes = 0;
            a->q_len = 8;
            a->k.offset_bytes = half;
            a->kv_len = 8;
            REFUSED(r, ARG, "o.offset_bytes is 0: it overlaps k at 32768", got = tandem_submit(r->s, &job, &ticket));
            a->k.offset_bytes = 0;
            assert_int_equal(ended(r, submit(r, &job)).state, TANDEM_JOB_DONE);
            assert_int_equal(tandem_mem_destroy(r->s, other), TANDEM_OK);
        }
    }
    if (r->has_vk) {
        tandem_mem_vulkan vulkan = {.struct_bytes = sizeof vulkan};

        assert_int_equal(tandem_mem_get_vulkan(r->s, mem, &vulkan), TANDEM_OK);
        assert_true(vulkan.buffer && vulkan.memory && vulkan.offset == 0 && vulkan.bytes == bytes);
    }
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
    host[0] = 1; /* still the caller's */
    munmap(host, bytes);
}

static void test_caller_memory(void **state)
{
    (void)state;
    each_kind_that_shares(caller_memory);
}

/* Memory of the engine's: a part of an allocation that it made for export, as an fd or as a VkDeviceMemory. */
static void engines_memory(rig *r, tandem_mem_source source)
{
    enum { ALLOCATION = 1 << 20, OFFSET = 1 << 16 };
    const VkExternalMemoryBufferCreateInfo external = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                                                       .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    const VkBufferCreateInfo buffer_info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .pNext = &external,
        .size = ALLOCATION,
        .usage =
            VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
    };
    const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                             .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    const VkExportMemoryAllocateInfo export = {.sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO,
                                               .pNext = r->info.rung == TANDEM_RUNG_INLINE ? &flags : NULL,
                                               .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    const PFN_vkGetMemoryFdKHR get_fd =
        (PFN_vkGetMemoryFdKHR)r->vk.GetDeviceProcAddr(r->vk.device, "vkGetMemoryFdKHR");
    const VkPipelineStageFlags transfer_stage = VK_PIPELINE_STAGE_TRANSFER_BIT,
                               none = VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT;
    VkMemoryAllocateInfo memory_info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &export};
    VkMemoryGetFdInfoKHR fd_info = {.sType = VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR,
                                    .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    VkBufferMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_BUFFER_MEMORY_BARRIER, .size = VK_WHOLE_SIZE};
    tandem_mem_desc desc = {
        .struct_bytes = sizeof desc, .source = source, .bytes = MEM_BYTES, .offset_bytes = OFFSET, .fd = -1};
    const VkBufferCopy up = {.dstOffset = OFFSET, .size = MEM_BYTES}, down = {.srcOffset = OFFSET, .size = MEM_BYTES};
    VkMemoryRequirements needs;
    tandem_mem_vulkan vulkan = {.struct_bytes = sizeof vulkan};
    VkDeviceMemory memory;
    VkBuffer buffer;
    VkCommandBuffer commands;
    vku_buffer staging;
    tandem_mem mem;
    tandem_job job;
    int fds;

    assert_non_null(get_fd);
    assert_int_equal(r->vk.CreateBuffer(r->vk.device, &buffer_info, NULL, &buffer), VK_SUCCESS);
    r->vk.GetBufferMemoryRequirements(r->vk.device, buffer, &needs);
    memory_info.allocationSize = desc.allocation_bytes = needs.size;
    for (uint32_t i = r->vk.memory.memoryTypeCount; i-- > 0;)
        if ((needs.memoryTypeBits >> i & 1) &&
            (r->vk.memory.memoryTypes[i].propertyFlags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT))
            memory_info.memoryTypeIndex = i;
    assert_int_equal(r->vk.AllocateMemory(r->vk.device, &memory_info, NULL, &memory), VK_SUCCESS);
    assert_int_equal(r->vk.BindBufferMemory(r->vk.device, buffer, memory, 0), VK_SUCCESS);
    fds = vku_open_fds();
    if (source == TANDEM_MEM_FD) {
        fd_info.memory = memory;
        assert_int_equal(get_fd(r->vk.device, &fd_info, &desc.fd), VK_SUCCESS);
    } else {
        desc.vulkan_memory = (uint64_t)(uintptr_t)memory;
    }
    assert_int_equal(tandem_mem_create(r->s, &desc, &mem), TANDEM_OK);
    if (source == TANDEM_MEM_FD) {
        assert_true(fcntl(desc.fd, F_GETFD) >= 0);
        close(desc.fd);
        REFUSED(r, UNSUPPORTED, say("mem is 0x%" PRIx64, mem), got = tandem_mem_get_vulkan(r->s, mem, &vulkan));
    } else {
        assert_int_equal(tandem_mem_get_vulkan(r->s, mem, &vulkan), TANDEM_OK);
        assert_true(vulkan.buffer && vulkan.memory == memory && vulkan.offset == OFFSET && vulkan.bytes == MEM_BYTES);
    }
    assert_int_equal(vku_buffer_create(&r->vk, MEM_BYTES, buffer_info.usage, &staging), VK_SUCCESS);
    fill(staging.host, 8);
    if (source == TANDEM_MEM_VULKAN) { /* the session's buffer on the same bytes */
        float data[FLOATS];

        memcpy(data, staging.host, sizeof data);
        transfer(r, mem, data, sizeof data, true);
        job = new_job(mem);
        assert_int_equal(ended(r, submit(r, &job)).state, TANDEM_JOB_DONE);
        transfer(r, mem, data, sizeof data, false);
        check_output(&job, data, 2e-3);
    }
    commands = vku_begin(&r->vk);
    if (source == TANDEM_MEM_FD)
        REFUSED(r, UNSUPPORTED, say("mem is 0x%" PRIx64, mem),
                got = tandem_record_release(r->s, commands, mem, transfer_stage, VK_ACCESS_TRANSFER_WRITE_BIT));
    r->vk.CmdCopyBuffer(commands, staging.buffer, buffer, 1, &up);
    barrier.buffer = buffer;
    barrier.srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT;
    barrier.srcQueueFamilyIndex = r->vk.queue_family;
    barrier.dstQueueFamilyIndex = VK_QUEUE_FAMILY_EXTERNAL;
    r->vk.CmdPipelineBarrier(commands, transfer_stage, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, 0, 0, NULL, 1, &barrier, 0,
                             NULL);
    assert_int_equal(vku_run(&r->vk, commands), VK_SUCCESS);
    job = new_job(mem);
    assert_int_equal(ended(r, submit(r, &job)).state, TANDEM_JOB_DONE);
    commands = vku_begin(&r->vk);
    barrier.srcAccessMask = 0;
    barrier.dstAccessMask = VK_ACCESS_TRANSFER_READ_BIT;
    barrier.srcQueueFamilyIndex = VK_QUEUE_FAMILY_EXTERNAL;
    barrier.dstQueueFamilyIndex = r->vk.queue_family;
    r->vk.CmdPipelineBarrier(commands, none, transfer_stage, 0, 0, NULL, 1, &barrier, 0, NULL);
    r->vk.CmdCopyBuffer(commands, buffer, staging.buffer, 1, &down);
    vku_full_barrier(&r->vk, commands);
    assert_int_equal(vku_run(&r->vk, commands), VK_SUCCESS);
    check_output(&job, staging.host, 2e-3);
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
    vku_buffer_destroy(&r->vk, &staging);
    assert_int_equal(vku_open_fds(), fds);
    r->vk.DestroyBuffer(r->vk.device, buffer, NULL);
    r->vk.FreeMemory(r->vk.device, memory, NULL); /* stayed the engine's */
}

static void test_engines_memory(void **state)
{
    bool ran = false;

    (void)state;
    for (rig_kind kind = ON_VULKAN; kind < KINDS; kind++) {
        rig r;

        if (!rig_open(&r, kind))
            continue;
        if (r.info.backend == TANDEM_BACKEND_CUDA && r.info.rung != TANDEM_RUNG_COPY) {
            if (r.info.rung != TANDEM_RUNG_INLINE)
                engines_memory(&r, TANDEM_MEM_FD);
            engines_memory(&r, TANDEM_MEM_VULKAN);
            ran = true;
        }
        rig_close(&r);
    }
    if (!ran)
        skip(); /* only CUDA sees the engine's device memory */
}

/* Frames through Vulkan: the engine uploads, the session computes, the engine reads back; nobody waits in between. */
static void frames(rig *r, uint32_t in_flight)
{
    enum { FRAMES = 24, WARM = 8 };
    struct {
        vku_buffer staging;
        tandem_mem mem;
        tandem_mem_vulkan vulkan;
        VkCommandBuffer up, down;
        tandem_job job;
        tandem_ticket ticket;
    } f[3];
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0),
                          ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0),
                          done = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0);
    VkSemaphore engines_vk, ours_vk, done_vk;
    VkCommandBuffer used[2 * FRAMES];
    uint32_t used_count = 0;
    const VkBufferCopy whole = {.size = MEM_BYTES};
    tandem_info warm = {.struct_bytes = sizeof warm}, after = {.struct_bytes = sizeof after};

    assert_int_equal(tandem_timeline_get_vulkan(r->s, engines, &engines_vk), TANDEM_OK);
    assert_int_equal(tandem_timeline_get_vulkan(r->s, ours, &ours_vk), TANDEM_OK);
    assert_int_equal(tandem_timeline_get_vulkan(r->s, done, &done_vk), TANDEM_OK);
    for (uint32_t i = 0; i < in_flight; i++) {
        f[i].mem = new_mem(r, MEM_BYTES);
        f[i].vulkan.struct_bytes = sizeof f[i].vulkan;
        f[i].job = new_job(f[i].mem);
        assert_int_equal(tandem_mem_get_vulkan(r->s, f[i].mem, &f[i].vulkan), TANDEM_OK);
        assert_true(f[i].vulkan.buffer && f[i].vulkan.memory && f[i].vulkan.bytes == MEM_BYTES);
        assert_int_equal(vku_buffer_create(&r->vk, MEM_BYTES,
                                           VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
                                           &f[i].staging),
                         VK_SUCCESS);
    }
    for (uint64_t n = 1; n <= FRAMES + in_flight - 1; n++) {
        if (n <= FRAMES) {
            const uint32_t i = (uint32_t)(n % in_flight);

            if (n == WARM + 1)
                assert_int_equal(tandem_session_info(r->s, &warm), TANDEM_OK);
            fill(f[i].staging.host, n);
            f[i].up = vku_begin(&r->vk);
            r->vk.CmdCopyBuffer(f[i].up, f[i].staging.buffer, f[i].vulkan.buffer, 1, &whole);
            assert_int_equal(tandem_record_release(r->s, f[i].up, f[i].mem, VK_PIPELINE_STAGE_TRANSFER_BIT,
                                                   VK_ACCESS_TRANSFER_WRITE_BIT),
                             TANDEM_OK);
            assert_int_equal(vku_submit(&r->vk, f[i].up, (vku_point){0}, (vku_point){engines_vk, n}, VK_NULL_HANDLE),
                             VK_SUCCESS);
            if (n % 3) /* else it is noticed */
                assert_int_equal(tandem_timeline_submitted(r->s, engines, n), TANDEM_OK);
            f[i].job.wait = (tandem_point){engines, n};
            f[i].job.signal = (tandem_point){ours, n};
            f[i].ticket = submit(r, &f[i].job);
        }
        if (n >= in_flight) {
            const uint64_t old = n - in_flight + 1;
            const uint32_t i = (uint32_t)(old % in_flight);

            f[i].down = vku_begin(&r->vk);
            assert_int_equal(tandem_record_acquire(r->s, f[i].down, f[i].mem, VK_PIPELINE_STAGE_TRANSFER_BIT,
                                                   VK_ACCESS_TRANSFER_READ_BIT),
                             TANDEM_OK);
            r->vk.CmdCopyBuffer(f[i].down, f[i].vulkan.buffer, f[i].staging.buffer, 1, &whole);
            vku_full_barrier(&r->vk, f[i].down);
            assert_int_equal(
                vku_submit(&r->vk, f[i].down, (vku_point){ours_vk, old}, (vku_point){done_vk, old}, VK_NULL_HANDLE),
                VK_SUCCESS);
            assert_int_equal(tandem_point_wait(r->s, (tandem_point){done, old}, LONG_NS), TANDEM_OK);
            check_output(&f[i].job, f[i].staging.host, 2e-3);
            assert_int_equal(ended(r, f[i].ticket).state, TANDEM_JOB_DONE);
            used[used_count++] = f[i].up;
            used[used_count++] = f[i].down;
        }
    }
    /* The validation layer does not learn from an exported timeline that commands are done. */
    assert_int_equal(r->vk.DeviceWaitIdle(r->vk.device), VK_SUCCESS);
    r->vk.FreeCommandBuffers(r->vk.device, r->vk.pool, used_count, used);
    assert_int_equal(tandem_session_info(r->s, &after), TANDEM_OK);
    if (gpu_signals(r)) {
        assert_int_equal(after.cuda_copies, warm.cuda_copies);
        assert_int_equal(after.cuda_allocations, warm.cuda_allocations);
        assert_int_equal(after.cuda_host_waits, warm.cuda_host_waits);
        assert_true(after.cuda_launches >= warm.cuda_launches + FRAMES - WARM); /* a graph each */
    }
    assert_int_equal(after.host_bytes, warm.host_bytes);
    assert_int_equal(after.device_bytes, warm.device_bytes);
    for (uint32_t i = 0; i < in_flight; i++) {
        assert_int_equal(tandem_mem_destroy(r->s, f[i].mem), TANDEM_OK);
        vku_buffer_destroy(&r->vk, &f[i].staging);
    }
    assert_int_equal(tandem_timeline_destroy(r->s, done), TANDEM_OK);
    assert_int_equal(tandem_timeline_destroy(r->s, ours), TANDEM_OK);
    assert_int_equal(tandem_timeline_destroy(r->s, engines), TANDEM_OK);
}

static void test_frames(void **state)
{
    bool ran = false;

    (void)state;
    for (rig_kind kind = ON_VULKAN; kind < KINDS; kind++)
        for (uint32_t in_flight = 2; in_flight <= 3; in_flight++) {
            rig r;

            if (!rig_prepare(&r, kind))
                continue;
            r.desc.frames_in_flight = in_flight;
            if (!rig_start(&r))
                continue;
            frames(&r, in_flight);
            rig_close(&r);
            ran = true;
        }
    if (!ran)
        skip();
}

/* An image goes through pack, a job and unpack; the engine's own semaphores do the hand-over. */
static void pack_frame(rig *r)
{
    enum { SIDE = 16, TILE = 8, TILES = 4, ROWS_ = TILE * TILE, VIEW = TILES * ROWS_ * DIM };
    const VkExportSemaphoreCreateInfo export = {.sType = VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO,
                                                .handleTypes = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT};
    const VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                            .pNext = gpu_signals(r) ? &export : NULL,
                                            .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE,
                                            .initialValue = 7};
    const VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
    tandem_timeline_desc desc = {.struct_bytes = sizeof desc};
    tandem_timeline timelines[2];
    VkSemaphore semaphores[2], seen;
    vku_image from, to;
    float pixels[SIDE * SIDE * 4], result[SIDE * SIDE * 4];
    float *packed = calloc(TILES * ROWS_, DIM * sizeof *packed);
    double *ref = calloc(TILES * ROWS_, DIM * sizeof *ref);
    const tandem_mem mem = new_mem(r, 2 * VIEW * sizeof(float));
    tandem_pack pack;
    tandem_job job;
    tandem_view view;
    VkCommandBuffer commands[2];
    uint64_t seed = 5;
    uint32_t tiles_x, tiles_y;

    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(r->vk.CreateSemaphore(r->vk.device, &info, NULL, &semaphores[i]), VK_SUCCESS);
        desc.signaller = i;
        desc.vulkan_semaphore = (uint64_t)(uintptr_t)semaphores[i];
        assert_int_equal(tandem_timeline_create(r->s, &desc, &timelines[i]), TANDEM_OK);
        assert_int_equal(tandem_timeline_get_vulkan(r->s, timelines[i], &seen), TANDEM_OK);
        assert_true(seen == semaphores[i]);
        assert_int_equal(value_of(r, timelines[i]), 7);
    }
    for (uint32_t i = 0; i < SIDE * SIDE * 4; i++)
        pixels[i] = (float)noise(&seed);
    assert_int_equal(
        vku_image_create(&r->vk, VK_FORMAT_R32G32B32A32_SFLOAT, SIDE, SIDE, VK_IMAGE_USAGE_SAMPLED_BIT, &from),
        VK_SUCCESS);
    assert_int_equal(
        vku_image_create(&r->vk, VK_FORMAT_R32G32B32A32_SFLOAT, SIDE, SIDE, VK_IMAGE_USAGE_STORAGE_BIT, &to),
        VK_SUCCESS);
    assert_int_equal(vku_image_upload(&r->vk, &from, pixels, VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL), VK_SUCCESS);
    assert_int_equal(vku_image_upload(&r->vk, &to, pixels, VK_IMAGE_LAYOUT_GENERAL), VK_SUCCESS);

    view = (tandem_view){.mem = mem,
                         .dtype = TANDEM_DTYPE_F32,
                         .stride_batch = ROWS_ * DIM,
                         .stride_head = ROWS_ * DIM,
                         .stride_row = DIM};
    pack = (tandem_pack){.struct_bytes = sizeof pack,
                         .image_count = 1,
                         .images = {from.view},
                         .layout = VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL,
                         .width = SIDE,
                         .height = SIDE,
                         .tile_width = TILE,
                         .tile_height = TILE,
                         .channels = 4,
                         .view_channels = DIM,
                         .view = view};
    assert_int_equal(tandem_pack_tiles(r->s, &pack, &tiles_x, &tiles_y), TANDEM_OK);
    assert_int_equal(tiles_x * tiles_y, TILES);
    commands[0] = vku_begin(&r->vk);
    assert_int_equal(tandem_record_pack(r->s, commands[0], &pack), TANDEM_OK);
    assert_int_equal(
        tandem_record_release(r->s, commands[0], mem, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT),
        TANDEM_OK);
    assert_int_equal(vku_submit(&r->vk, commands[0], (vku_point){0}, (vku_point){semaphores[0], 8}, VK_NULL_HANDLE),
                     VK_SUCCESS);

    job = (tandem_job){.struct_bytes = sizeof job,
                       .operation = TANDEM_OPERATION_ATTENTION,
                       .wait = {timelines[0], 8},
                       .signal = {timelines[1], 8}};
    job.op.attention = (tandem_attention){.q = view,
                                          .k = view,
                                          .v = view,
                                          .o = view,
                                          .batch = TILES,
                                          .heads = 1,
                                          .kv_heads = 1,
                                          .q_len = ROWS_,
                                          .kv_len = ROWS_,
                                          .head_dim = DIM,
                                          .precision = TANDEM_PRECISION_F16};
    job.op.attention.o.offset_bytes = VIEW * sizeof(float);
    submit(r, &job);

    pack.images[0] = to.view;
    pack.layout = VK_IMAGE_LAYOUT_GENERAL;
    pack.format = to.format;
    pack.channels = 3;
    pack.view = job.op.attention.o;
    commands[1] = vku_begin(&r->vk);
    assert_int_equal(
        tandem_record_acquire(r->s, commands[1], mem, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT),
        TANDEM_OK);
    assert_int_equal(tandem_record_unpack(r->s, commands[1], &pack), TANDEM_OK);
    assert_int_equal(
        vku_submit(&r->vk, commands[1], (vku_point){semaphores[1], 8}, (vku_point){semaphores[0], 9}, VK_NULL_HANDLE),
        VK_SUCCESS);
    assert_int_equal(tandem_point_wait(r->s, (tandem_point){timelines[0], 9}, LONG_NS), TANDEM_OK);
    assert_int_equal(vku_image_readback(&r->vk, &to, result), VK_SUCCESS);

    for (uint32_t t = 0; t < TILES; t++)
        for (uint32_t p = 0; p < ROWS_; p++)
            for (uint32_t c = 0; c < 4; c++)
                packed[(t * ROWS_ + p) * DIM + c] =
                    pixels[((t / 2 * TILE + p / TILE) * SIDE + t % 2 * TILE + p % TILE) * 4 + c];
    td_ref_attention(&job.op.attention, packed, packed, packed, ref, NULL);
    for (uint32_t t = 0; t < TILES; t++)
        for (uint32_t p = 0; p < ROWS_; p++)
            for (uint32_t c = 0; c < 4; c++) {
                const float got = result[((t / 2 * TILE + p / TILE) * SIDE + t % 2 * TILE + p % TILE) * 4 + c];
                const double want = c < 3 ? ref[(t * ROWS_ + p) * DIM + c] : 1;

                if (!(fabs((double)got - want) < 5e-3))
                    fail_msg("tile %u, pixel %u, channel %u is %g, not %g (%g before)", t, p, c, (double)got, want,
                             (double)pixels[((t / 2 * TILE + p / TILE) * SIDE + t % 2 * TILE + p % TILE) * 4 + c]);
            }
    r->vk.FreeCommandBuffers(r->vk.device, r->vk.pool, 2, commands);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(tandem_timeline_destroy(r->s, timelines[i]), TANDEM_OK);
        r->vk.DestroySemaphore(r->vk.device, semaphores[i], NULL); /* stayed the engine's */
    }
    vku_image_destroy(&r->vk, &from);
    vku_image_destroy(&r->vk, &to);
    free(packed);
    free(ref);
}

static void test_pack_frame(void **state)
{
    rig r;

    (void)state;
    if (!rig_open(&r, ON_VULKAN))
        skip();
    pack_frame(&r);
    rig_close(&r);
}

/* The life of a job. */

static void sleep_ns(uint64_t ns)
{
    const struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

    nanosleep(&t, NULL);
}

static void cancel_pending(rig *r)
{
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0),
                          ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    const tandem_mem mem = new_mem(r, MEM_BYTES);
    tandem_job job = new_job(mem);
    tandem_ticket tickets[3];
    float *data = calloc(1, MEM_BYTES);

    fill(data, 1);
    transfer(r, mem, data, MEM_BYTES, true);
    for (uint64_t i = 0; i < 3; i++) {
        job.wait = (tandem_point){engines, i + 1};
        job.signal = (tandem_point){ours, i + 1};
        tickets[i] = submit(r, &job);
    }
    sleep_ns(STUCK_NS);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(report_of(r, tickets[i]).state, TANDEM_JOB_PENDING);
    assert_int_equal(value_of(r, ours), 0);
    /* The one in the middle: its value comes in its turn. */
    assert_int_equal(tandem_cancel(r->s, tickets[1]), TANDEM_OK);
    assert_int_equal(tandem_cancel(r->s, tickets[1]), TANDEM_OK);
    sleep_ns(STUCK_NS);
    assert_int_equal(value_of(r, ours), 0);
    assert_int_equal(tandem_cancel(r->s, tickets[0]), TANDEM_OK);
    assert_int_equal(tandem_point_wait(r->s, (tandem_point){ours, 2}, LONG_NS), TANDEM_OK);
    assert_int_equal(ended(r, tickets[0]).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(ended(r, tickets[1]).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(ended(r, tickets[1]).status, TANDEM_OK);
    assert_int_equal(report_of(r, tickets[2]).state, TANDEM_JOB_PENDING);
    assert_int_equal(value_of(r, ours), 2);
    memset(data, 0, MEM_BYTES);
    transfer(r, mem, data, MEM_BYTES, false);
    assert_true(data[O_AT] == -77); /* nothing was computed */
    assert_int_equal(tandem_timeline_signal(r->s, engines, 3), TANDEM_OK);
    assert_int_equal(ended(r, tickets[2]).state, TANDEM_JOB_DONE);
    assert_int_equal(value_of(r, ours), 3);
    assert_int_equal(tandem_cancel(r->s, tickets[2]), TANDEM_ERROR_BUSY);
    assert_int_equal(tandem_cancel(r->s, tickets[0]), TANDEM_ERROR_BUSY);
    assert_int_equal(tandem_session_info(r->s, &r->info), TANDEM_OK);
    assert_int_equal(r->info.jobs_cancelled, 2);
    assert_int_equal(r->info.jobs_done, 1);
    assert_int_equal(r->log.errors, 0);
    free(data);
}

/* Another timeline's jobs need not wait for a cancelled one's turn. */
static void cancel_elsewhere(rig *r)
{
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0),
                          a = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0),
                          b = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    const tandem_mem mem = new_mem(r, MEM_BYTES);
    tandem_job job = new_job(mem);
    tandem_ticket first, second;

    job.wait = (tandem_point){engines, 1};
    job.signal = (tandem_point){a, 1};
    first = submit(r, &job);
    job.signal = (tandem_point){b, 9};
    second = submit(r, &job);
    assert_int_equal(tandem_cancel(r->s, second), TANDEM_OK);
    assert_int_equal(report_of(r, second).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(value_of(r, b), 9);
    assert_int_equal(value_of(r, a), 0);
    assert_int_equal(report_of(r, first).state, TANDEM_JOB_PENDING);
    assert_int_equal(tandem_timeline_signal(r->s, engines, 1), TANDEM_OK);
    assert_int_equal(ended(r, first).state, TANDEM_JOB_DONE);
}

static void cancel_running(rig *r)
{
    const tandem_timeline ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    tandem_mem mem;
    tandem_job job = long_job(r, &mem);
    tandem_ticket ticket;
    uint64_t begin;

    if (r->info.backend != TANDEM_BACKEND_CPU)
        return;
    job.signal = (tandem_point){ours, 1};
    ticket = submit(r, &job);
    for (begin = td_now_ns(); report_of(r, ticket).state == TANDEM_JOB_PENDING && td_now_ns() - begin < LONG_NS;)
        sleep_ns(MS);
    assert_int_equal(report_of(r, ticket).state, TANDEM_JOB_RUNNING);
    begin = td_now_ns();
    assert_int_equal(tandem_cancel(r->s, ticket), TANDEM_OK);
    assert_int_equal(ended(r, ticket).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(value_of(r, ours), 1);
    assert_true(td_now_ns() - begin < 2000 * MS);
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
}

static void test_cancel(void **state)
{
    (void)state;
    each_kind(cancel_pending);
    each_kind(cancel_elsewhere);
    each_kind(cancel_running);
}

static void deadlines(rig *r)
{
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0),
                          ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    const tandem_mem mem = new_mem(r, MEM_BYTES);
    tandem_mem big;
    tandem_job job = new_job(mem), slow = long_job(r, &big);
    tandem_job_report report;
    tandem_ticket ticket, behind;
    float *data = calloc(1, MEM_BYTES);
    uint64_t begin;

    fill(data, 1);
    transfer(r, mem, data, MEM_BYTES, true);
    /* In time. */
    job.signal = (tandem_point){ours, 1};
    job.deadline_ns = LONG_NS;
    assert_int_equal(ended(r, submit(r, &job)).state, TANDEM_JOB_DONE);
    transfer(r, mem, data, MEM_BYTES, false);
    check_output(&job, data, 2e-3);

    /* The wait point comes too late. */
    fill(data, 2);
    transfer(r, mem, data, MEM_BYTES, true);
    job.wait = (tandem_point){engines, 1};
    job.signal = (tandem_point){ours, 2};
    job.deadline_ns = 30 * MS;
    begin = td_now_ns();
    ticket = submit(r, &job);
    job.signal = (tandem_point){ours, 3};
    behind = submit(r, &job);
    assert_int_equal(ended(r, ticket).state, TANDEM_JOB_STALE);
    assert_true(td_now_ns() - begin >= 30 * MS);
    assert_int_equal(ended(r, behind).state, TANDEM_JOB_STALE);
    assert_int_equal(tandem_point_wait(r->s, (tandem_point){ours, 3}, LONG_NS), TANDEM_OK); /* without the engine */
    transfer(r, mem, data, MEM_BYTES, false);
    assert_true(data[O_AT] == -77);
    assert_int_equal(tandem_timeline_signal(r->s, engines, 1), TANDEM_OK);
    assert_int_equal(tandem_point_wait(r->s, (tandem_point){ours, 3}, LONG_NS), TANDEM_OK);
    assert_int_equal(report_of(r, ticket).state, TANDEM_JOB_STALE);
    assert_int_equal(tandem_cancel(r->s, ticket), TANDEM_ERROR_BUSY);

    /* It runs too long: what has not begun of it is left out. */
    slow.signal = (tandem_point){ours, 4};
    slow.deadline_ns = r->info.backend == TANDEM_BACKEND_CPU ? 40 * MS : 1;
    begin = td_now_ns();
    ticket = submit(r, &slow);
    report = ended(r, ticket);
    assert_int_equal(report.state, TANDEM_JOB_STALE);
    assert_int_equal(report.status, TANDEM_OK);
    assert_int_equal(tandem_point_wait(r->s, slow.signal, LONG_NS), TANDEM_OK);
    assert_true(td_now_ns() - begin < 3000 * MS);
    assert_int_equal(tandem_session_info(r->s, &r->info), TANDEM_OK);
    assert_int_equal(r->info.jobs_stale, 3);
    assert_int_equal(r->info.jobs_done, 1);
    assert_int_equal(r->log.errors, 0);
    free(data);
}

static void test_deadlines(void **state)
{
    (void)state;
    each_kind(deadlines);
}

/* Held jobs, and points as descriptors. */

/* An engine says what it has submitted before, after or never: jobs go on, and in their order. */
static void announced(rig *r)
{
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0),
                          ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    tandem_job job = new_job(new_mem(r, MEM_BYTES));
    tandem_ticket tickets[3];

    REFUSED(r, ARG, say("timeline is 0x%" PRIx64 ", which only the session signals", ours),
            got = tandem_timeline_submitted(r->s, ours, 1));
    REFUSED(r, ARG, "timeline is 0x0", got = tandem_timeline_submitted(r->s, 0, 1));
    assert_int_equal(tandem_timeline_submitted(NULL, engines, 1), TANDEM_ERROR_ARG);
    for (uint64_t round = 0; round < 12; round += 3) {
        if (round == 3)
            assert_int_equal(tandem_timeline_submitted(r->s, engines, round + 3), TANDEM_OK);
        for (uint64_t i = 0; i < 3; i++) {
            job.wait = (tandem_point){engines, round + 1 + i};
            job.signal = (tandem_point){ours, round + 1 + i};
            tickets[i] = submit(r, &job);
        }
        if (round == 6) {
            assert_int_equal(tandem_timeline_submitted(r->s, engines, round + 2), TANDEM_OK);
            assert_int_equal(tandem_timeline_submitted(r->s, engines, round), TANDEM_OK); /* changes nothing */
        }
        sleep_ns(2 * MS);
        assert_int_equal(value_of(r, ours), round);
        for (uint64_t i = 0; i < 3; i++) {
            assert_int_equal(report_of(r, tickets[i]).state, TANDEM_JOB_PENDING);
            assert_int_equal(tandem_timeline_signal(r->s, engines, round + 1 + i), TANDEM_OK);
            assert_int_equal(ended(r, tickets[i]).state, TANDEM_JOB_DONE);
            assert_int_equal(value_of(r, ours), round + 1 + i);
        }
    }
    /* With the device or held: it can be given up, and its point comes in its turn. */
    assert_int_equal(tandem_timeline_submitted(r->s, engines, 13), TANDEM_OK);
    for (uint64_t i = 0; i < 3; i++) {
        job.wait = (tandem_point){engines, 13 + i};
        job.signal = (tandem_point){ours, 13 + i};
        tickets[i] = submit(r, &job);
    }
    assert_int_equal(tandem_cancel(r->s, tickets[1]), TANDEM_OK);
    assert_int_equal(tandem_cancel(r->s, tickets[0]), TANDEM_OK);
    sleep_ns(2 * MS);
    assert_true(value_of(r, ours) <= 14);
    assert_int_equal(report_of(r, tickets[2]).state, TANDEM_JOB_PENDING);
    assert_int_equal(tandem_timeline_signal(r->s, engines, 13), TANDEM_OK);
    assert_int_equal(ended(r, tickets[0]).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(ended(r, tickets[1]).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(tandem_point_wait(r->s, (tandem_point){ours, 14}, LONG_NS), TANDEM_OK);
    assert_int_equal(value_of(r, ours), 14);
    assert_int_equal(tandem_timeline_signal(r->s, engines, 15), TANDEM_OK);
    assert_int_equal(ended(r, tickets[2]).state, TANDEM_JOB_DONE);
    assert_int_equal(r->log.errors, 2); /* the two refusals */
}

/* Several jobs at a time on the same few mems, each on what others read and write, some of them into the gaps of others:
 * all is as if they had come one by one. */

enum { SHARED_MEMS = 3, SHARED_AREAS = 5, SHARED_JOBS = 60, SHARED_FLOATS = SHARED_AREAS * Q_SIZE };

static tandem_job shared_job(const tandem_mem mems[SHARED_MEMS], uint64_t *seed)
{
    uint32_t areas[4];
    tandem_job job = new_job(mems[0]);
    tandem_attention *a = &job.op.attention;
    tandem_view *const views[4] = {&a->o, &a->q, &a->k, &a->v};

    for (uint32_t i = 0; i < 4; i++) {
        bool taken;

        do { /* O takes two areas where it is strided */
            *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
            areas[i] = (uint32_t)(*seed >> 40) % (SHARED_MEMS * SHARED_AREAS);
            taken = i ? areas[i] == areas[0] || areas[i] == areas[0] + 1 : areas[i] % SHARED_AREAS == SHARED_AREAS - 1;
        } while (taken);
        views[i]->mem = mems[areas[i] / SHARED_AREAS];
        views[i]->offset_bytes = (uint64_t)(areas[i] % SHARED_AREAS) * Q_SIZE * sizeof(float);
    }
    a->lse = (tandem_view){0};
    if (*seed >> 33 & 1) { /* every other row of both areas */
        a->o.stride_row *= 2;
        a->o.stride_head *= 2;
        a->o.stride_batch *= 2;
    }
    job.deadline_ns = *seed >> 34 & 3 ? 0 : LONG_NS;
    return job;
}

static void run_shared(rig *r, const tandem_mem mems[SHARED_MEMS], uint64_t seed, uint32_t at_once, float *result)
{
    float *data = malloc(SHARED_FLOATS * sizeof *data);
    uint64_t noises = seed;
    tandem_ticket tickets[SHARED_JOBS];

    for (uint32_t m = 0; m < SHARED_MEMS; m++) {
        for (uint32_t i = 0; i < SHARED_FLOATS; i++)
            data[i] = (float)noise(&noises);
        transfer(r, mems[m], data, SHARED_FLOATS * sizeof *data, true);
    }
    for (uint32_t i = 0; i < SHARED_JOBS; i++) {
        const tandem_job job = shared_job(mems, &seed);

        if (i >= at_once)
            assert_int_equal(ended(r, tickets[i - at_once]).state, TANDEM_JOB_DONE);
        tickets[i] = submit(r, &job);
    }
    for (uint32_t i = SHARED_JOBS - at_once; i < SHARED_JOBS; i++)
        assert_int_equal(ended(r, tickets[i]).state, TANDEM_JOB_DONE);
    for (uint32_t m = 0; m < SHARED_MEMS; m++)
        transfer(r, mems[m], result + m * SHARED_FLOATS, SHARED_FLOATS * sizeof *data, false);
    free(data);
}

static void in_each_others_way(rig *r)
{
    const size_t bytes = SHARED_MEMS * SHARED_FLOATS * sizeof(float);
    float *alone = malloc(bytes), *together = malloc(bytes);
    tandem_mem mems[SHARED_MEMS];

    for (uint32_t m = 0; m < SHARED_MEMS; m++)
        mems[m] = new_mem(r, SHARED_FLOATS * sizeof(float));
    for (uint64_t seed = 1; seed <= 3; seed++) {
        run_shared(r, mems, seed, 1, alone);
        run_shared(r, mems, seed, 3, together);
        for (uint32_t i = 0; i < SHARED_MEMS * SHARED_FLOATS; i++)
            if (!(alone[i] == together[i]))
                fail_msg("%s, seed %u: float %u of mem %u is %g, not %g", kind_names[r->kind], (unsigned)seed,
                         i % SHARED_FLOATS, i / SHARED_FLOATS, (double)together[i], (double)alone[i]);
    }
    free(alone);
    free(together);
}

static void test_shared_mems(void **state)
{
    rig r;

    (void)state;
    each_kind(in_each_others_way);
    if (!rig_prepare(&r, ON_CUDA)) /* copies without Vulkan */
        return;
    r.desc.rung = TANDEM_RUNG_COPY;
    if (!rig_start(&r))
        return;
    in_each_others_way(&r);
    rig_close(&r);
}

static void test_announced(void **state)
{
    (void)state;
    each_kind(announced);
}

static bool is_readable(int fd, uint64_t within_ns)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, (int)(within_ns / MS)) == 1;
}

static int point_fd(rig *r, tandem_timeline timeline, uint64_t value)
{
    int fd = -7;

    assert_int_equal(tandem_point_fd(r->s, (tandem_point){timeline, value}, &fd), TANDEM_OK);
    assert_true(fd >= 0 && (fcntl(fd, F_GETFD) & FD_CLOEXEC));
    return fd;
}

static void point_fds(rig *r)
{
    enum { MOST = 1024 }; /* main() sees to it that there are so many descriptors */
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 5),
                          ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0),
                          gone = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0);
    tandem_job job = new_job(new_mem(r, MEM_BYTES));
    static int fds[MOST];
    int before, fd;

    REFUSED(r, ARG, "fd is NULL", got = tandem_point_fd(r->s, (tandem_point){ours, 1}, NULL));
    REFUSED(r, ARG, "point.timeline is 0x0", got = tandem_point_fd(r->s, (tandem_point){0, 1}, &fd));
    assert_int_equal(fd, -1);
    assert_int_equal(tandem_point_fd(NULL, (tandem_point){ours, 1}, &fd), TANDEM_ERROR_ARG);
    fds[0] = point_fd(r, 0, 0);
    fds[1] = point_fd(r, engines, 5);
    fds[2] = point_fd(r, ours, 0);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(is_readable(fds[i], 0));
        close(fds[i]);
    }
    /* What the engine signals, from the host or on its queue. */
    fds[0] = point_fd(r, engines, 6);
    fds[1] = point_fd(r, engines, 7);
    assert_false(is_readable(fds[0], 3 * MS));
    assert_int_equal(tandem_timeline_signal(r->s, engines, 6), TANDEM_OK);
    assert_true(is_readable(fds[0], LONG_NS));
    assert_false(is_readable(fds[1], 0));
    if (r->has_vk) {
        VkSemaphore semaphore;
        VkCommandBuffer nothing = vku_begin(&r->vk);

        assert_int_equal(tandem_timeline_get_vulkan(r->s, engines, &semaphore), TANDEM_OK);
        assert_int_equal(vku_submit(&r->vk, nothing, (vku_point){0}, (vku_point){semaphore, 7}, VK_NULL_HANDLE),
                         VK_SUCCESS);
        assert_true(is_readable(fds[1], LONG_NS));
        assert_int_equal(r->vk.DeviceWaitIdle(r->vk.device), VK_SUCCESS);
        r->vk.FreeCommandBuffers(r->vk.device, r->vk.pool, 1, &nothing);
    } else {
        assert_int_equal(tandem_timeline_signal(r->s, engines, 7), TANDEM_OK);
        assert_true(is_readable(fds[1], LONG_NS));
    }
    close(fds[0]);
    close(fds[1]);
    assert_true(value_of(r, engines) == 7); /* behind the closing of ours */
    before = vku_open_fds();
    /* A job's, one of them given back by the caller before it comes. */
    for (uint64_t n = 1; n <= 20; n++) {
        job.wait = (tandem_point){engines, 7 + n};
        job.signal = (tandem_point){ours, n};
        submit(r, &job);
        fds[0] = point_fd(r, ours, n);
        fds[1] = point_fd(r, ours, n);
        close(fds[1]);
        assert_false(is_readable(fds[0], 0));
        if (n % 2)
            assert_int_equal(tandem_timeline_submitted(r->s, engines, 7 + n), TANDEM_OK);
        assert_int_equal(tandem_timeline_signal(r->s, engines, 7 + n), TANDEM_OK);
        assert_true(is_readable(fds[0], LONG_NS));
        assert_true(value_of(r, ours) >= n);
        close(fds[0]);
    }
    assert_int_equal(vku_open_fds(), before);
    /* No more than 1024 at a time; the end of a timeline, or of all, is told. */
    for (uint32_t i = 0; i < MOST; i++)
        fds[i] = point_fd(r, i % 2 ? ours : gone, 1000 + i);
    REFUSED(r, NOMEM, "1024 descriptors", got = tandem_point_fd(r->s, (tandem_point){ours, 1000}, &fd));
    close(point_fd(r, ours, 20)); /* reached: it need not wait */
    assert_int_equal(tandem_timeline_destroy(r->s, gone), TANDEM_OK);
    for (uint32_t i = 0; i < MOST; i++)
        assert_int_equal(is_readable(fds[i], 0), i % 2 == 0);
    assert_int_equal(tandem_session_destroy(&r->s), TANDEM_OK);
    for (uint32_t i = 0; i < MOST; i++) {
        assert_true(is_readable(fds[i], 0));
        close(fds[i]);
    }
}

static void test_point_fds(void **state)
{
    (void)state;
    each_kind(point_fds);
}

/* Jobs with deadlines around the time that they take: what is STALE has not been written, and will not be; what is DONE
 * is whole. */
static void never_late(rig *r)
{
    const bool seen_by_host = r->info.backend == TANDEM_BACKEND_CPU || r->kind == ON_CUDA;
    const uint32_t rounds = !seen_by_host ? 40 : getenv("TANDEM_SANITIZED") ? 400 : 2000;
    const tandem_timeline ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    const tandem_mem mem = new_mem(r, MEM_BYTES);
    tandem_job job = new_job(mem);
    float *data = calloc(1, MEM_BYTES), *whole = calloc(1, MEM_BYTES), *poison = calloc(1, MEM_BYTES);
    uint64_t seed = 11, took = 0, begin;
    uint32_t done = 0, stale = 0;
    tandem_job_report report;

    fill(poison, 5);
    transfer(r, mem, poison, MEM_BYTES, true);
    for (uint32_t i = 0; i < 5; i++) {
        transfer(r, mem, poison, MEM_BYTES, true); /* behind it a GPU changes over, as in the rounds below */
        begin = td_now_ns();
        job.deadline_ns = LONG_NS;
        assert_int_equal(ended(r, submit(r, &job)).state, TANDEM_JOB_DONE);
        took = !i || td_now_ns() - begin < took ? td_now_ns() - begin : took;
    }
    transfer(r, mem, whole, MEM_BYTES, false);
    check_output(&job, whole, 2e-3);
    for (uint32_t i = 0; i < rounds; i++) {
        const bool all_stale = i % 16 == 0;

        noise(&seed);
        transfer(r, mem, poison, MEM_BYTES, true);
        job.deadline_ns = all_stale ? 1 : 1 + (seed >> 33) % (2 * took);
        job.signal = (tandem_point){ours, 1 + i};
        report = ended(r, submit(r, &job));
        assert_true(report.state == TANDEM_JOB_DONE || report.state == TANDEM_JOB_STALE);
        assert_int_equal(report.status, TANDEM_OK);
        if (report.state == TANDEM_JOB_DONE && seen_by_host) {
            transfer(r, mem, data, MEM_BYTES, false);
            assert_memory_equal(data, whole, FLOATS * sizeof(float));
        }
        assert_int_equal(tandem_point_wait(r->s, job.signal, LONG_NS), TANDEM_OK);
        transfer(r, mem, data, MEM_BYTES, false);
        assert_memory_equal(data, report.state == TANDEM_JOB_DONE ? whole : poison, FLOATS * sizeof(float));
        done += report.state == TANDEM_JOB_DONE;
        stale += report.state == TANDEM_JOB_STALE;
    }
    assert_true(done && stale);
    free(data);
    free(whole);
    free(poison);
}

/* A long job is STALE at its deadline, not at its end. */
static void stale_in_time(rig *r)
{
    const tandem_timeline ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    tandem_mem big;
    tandem_job job = long_job(r, &big);
    uint64_t best = UINT64_MAX, whole = td_now_ns();

    job.signal = (tandem_point){ours, 1};
    assert_int_equal(ended(r, submit(r, &job)).state, TANDEM_JOB_DONE);
    whole = td_now_ns() - whole;
    for (uint64_t i = 2; i <= 6; i++) {
        tandem_job_report report = {.struct_bytes = sizeof report};
        uint64_t begin = td_now_ns(), late;
        tandem_ticket ticket;

        job.deadline_ns = r->info.backend == TANDEM_BACKEND_CPU ? 5 * MS : MS / 10; /* a GPU takes some 400 us */
        job.signal = (tandem_point){ours, i};
        ticket = submit(r, &job);
        assert_int_equal(tandem_wait(r->s, ticket, LONG_NS, &report), TANDEM_OK);
        late = td_now_ns() - begin - job.deadline_ns;
        best = late < best ? late : best;
        assert_int_equal(report.state, TANDEM_JOB_STALE);
        assert_int_equal(tandem_point_wait(r->s, job.signal, LONG_NS), TANDEM_OK);
    }
    /* A CPU's blocks look between tiles, of which the job has tens of thousands: a hundredth of it is hundreds of them, and
     * busy cores make both longer. A GPU's job is hardly longer than a wake-up. */
    if (r->info.backend == TANDEM_BACKEND_CPU ? best > whole / 100 : job.deadline_ns + best >= whole)
        fail_msg("%s: STALE comes %g ms after the deadline at best, of a job of %g ms", kind_names[r->kind],
                 (double)best / 1e6, (double)whole / 1e6);
}

static void test_never_late(void **state)
{
    (void)state;
    each_kind(never_late);
    each_kind(stale_in_time);
}

/* The engine never signals. */
static void test_lost_wait(void **state)
{
    (void)state;
    for (rig_kind kind = 0; kind < KINDS; kind++) {
        tandem_timeline engines, ours;
        tandem_ticket tickets[3];
        tandem_job_report report;
        tandem_job job;
        uint64_t begin;
        rig r;

        if (!rig_prepare(&r, kind))
            continue;
        r.desc.wait_bound_ns = 60 * MS;
        if (!rig_start(&r))
            continue;
        engines = new_timeline(&r, TANDEM_SIGNALLER_ENGINE, 0);
        ours = new_timeline(&r, TANDEM_SIGNALLER_SESSION, 0);
        job = new_job(new_mem(&r, MEM_BYTES));
        begin = td_now_ns();
        for (uint64_t i = 0; i < 2; i++) {
            job.wait = (tandem_point){engines, i + 1};
            job.signal = (tandem_point){ours, i + 1};
            tickets[i] = submit(&r, &job);
        }
        job.wait = (tandem_point){0, 0};
        job.signal = (tandem_point){ours, 3};
        tickets[2] = submit(&r, &job);
        assert_int_equal(tandem_point_wait(r.s, (tandem_point){ours, 3}, LONG_NS), TANDEM_OK);
        assert_true(td_now_ns() - begin >= 60 * MS);
        assert_true(td_now_ns() - begin < 2000 * MS);
        for (uint32_t i = 0; i < 2; i++) {
            report = ended(&r, tickets[i]);
            assert_int_equal(report.state, TANDEM_JOB_FAILED);
            assert_int_equal(report.status, TANDEM_ERROR_LOST);
        }
        assert_int_equal(ended(&r, tickets[2]).state, TANDEM_JOB_DONE); /* the session goes on */
        assert_int_equal(errors_of(&r), 2);
        assert_non_null(strstr(r.log.last, say("{0x%" PRIx64 ", 2}", engines)));
        rig_close(&r);
    }
}

/* An engine that signals for a frame once the frame before is there has its time from then, however long that took. */
static void test_wait_behind_a_long_job(void **state)
{
    enum { BOUND = 200 }; /* less than the job takes on one core */

    (void)state;
    for (rig_kind kind = 0; kind < KINDS; kind++) {
        tandem_timeline engines, ours;
        tandem_ticket first, second;
        tandem_job job;
        tandem_mem mem;
        rig r;

        if (!rig_prepare(&r, kind))
            continue;
        r.desc.wait_bound_ns = BOUND * MS;
        r.desc.cpu_threads = 1;
        if (!rig_start(&r))
            continue;
        engines = new_timeline(&r, TANDEM_SIGNALLER_ENGINE, 0);
        ours = new_timeline(&r, TANDEM_SIGNALLER_SESSION, 0);
        job = long_job(&r, &mem);
        job.op.attention.heads = job.op.attention.kv_heads = 1;
        job.signal = (tandem_point){ours, 1};
        first = submit(&r, &job);
        job = new_job(new_mem(&r, MEM_BYTES));
        job.wait = (tandem_point){engines, 1};
        job.signal = (tandem_point){ours, 2};
        second = submit(&r, &job);
        assert_int_equal(tandem_point_wait(r.s, (tandem_point){ours, 1}, LONG_NS), TANDEM_OK);
        sleep_ns(BOUND * MS / 20);
        assert_int_equal(tandem_timeline_signal(r.s, engines, 1), TANDEM_OK);
        assert_int_equal(ended(&r, first).state, TANDEM_JOB_DONE);
        assert_int_equal(ended(&r, second).state, TANDEM_JOB_DONE);
        rig_close(&r);
    }
}

static void test_busy(void **state)
{
    (void)state;
    for (rig_kind kind = 0; kind < KINDS; kind++)
        for (uint32_t in_flight = 0; in_flight <= 4; in_flight += 4) {
            const uint32_t most = in_flight ? in_flight : 3;
            tandem_timeline engines;
            tandem_ticket tickets[4];
            tandem_job job;
            rig r;

            if (!rig_prepare(&r, kind))
                continue;
            r.desc.frames_in_flight = in_flight;
            if (!rig_start(&r))
                continue;
            engines = new_timeline(&r, TANDEM_SIGNALLER_ENGINE, 0);
            job = new_job(new_mem(&r, MEM_BYTES));
            job.wait = (tandem_point){engines, 1};
            for (uint32_t i = 0; i < most; i++)
                tickets[i] = submit(&r, &job);
            for (uint32_t i = 0; i < 3; i++) {
                tandem_ticket ticket;

                REFUSED(&r, BUSY, say("%u jobs are under way", most), got = tandem_submit(r.s, &job, &ticket));
            }
            REFUSED(&r, BUSY, say("ticket is 0x%" PRIx64, tickets[0]), got = tandem_wait(r.s, tickets[0], MS, NULL));
            assert_int_equal(tandem_cancel(r.s, tickets[most - 1]), TANDEM_OK);
            tickets[most - 1] = submit(&r, &job); /* there is room again */
            assert_int_equal(tandem_timeline_signal(r.s, engines, 1), TANDEM_OK);
            for (uint32_t i = 0; i < most; i++)
                assert_int_equal(ended(&r, tickets[i]).state, TANDEM_JOB_DONE);
            submit(&r, &job);
            rig_close(&r);
        }
}

/* 300 jobs: old reports go, the last 256 stay; a job without points is right. */
static void reports(rig *r)
{
    enum { JOBS = 300 };
    tandem_job job = new_job(new_mem(r, MEM_BYTES));
    tandem_ticket tickets[JOBS];
    tandem_job_report report = {.struct_bytes = sizeof report};

    job.op.attention.q_len = job.op.attention.kv_len = 4;
    for (uint32_t i = 0; i < JOBS; i++) {
        tickets[i] = submit(r, &job);
        assert_int_equal(tandem_wait(r->s, tickets[i], LONG_NS, i % 2 ? &report : NULL), TANDEM_OK);
    }
    for (uint32_t i = 0; i < JOBS; i++)
        if (i < JOBS - 256)
            REFUSED(r, ARG, say("ticket is 0x%" PRIx64 ", older", tickets[i]),
                    got = tandem_poll(r->s, tickets[i], &report));
        else
            assert_int_equal(report_of(r, tickets[i]).state, TANDEM_JOB_DONE);
}

static void test_reports(void **state)
{
    (void)state;
    each_kind(reports);
}

/* Destruction. */

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
    assert_true(td_now_ns() - begin < 2500 * MS);
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

/* Memory. */

typedef struct ledger {
    atomic_int live;
    atomic_int left; /* allocations until one fails; negative: none does */
    atomic_int calls;
} ledger;

static void *count_allocate(void *user, size_t bytes, size_t alignment)
{
    ledger *l = &((struct { rig r; ledger l; } *)user)->l;
    int left = atomic_load(&l->left);

    assert_true(alignment && !(alignment & (alignment - 1)));
    atomic_fetch_add(&l->calls, 1);
    if (left == 0)
        return NULL;
    if (left > 0)
        atomic_store(&l->left, left - 1);
    atomic_fetch_add(&l->live, 1);
    return aligned_alloc(alignment, td_align_up(bytes, alignment));
}

static void count_release(void *user, void *pointer)
{
    ledger *l = &((struct { rig r; ledger l; } *)user)->l;

    assert_non_null(pointer);
    atomic_fetch_sub(&l->live, 1);
    free(pointer);
}

static char model_path[] = "/tmp/tandem-model-XXXXXX";

static void write_model(void)
{
    static float k[K_SIZE], v[K_SIZE];
    static const int64_t ids[3] = {1, 2, 3};
    const td_safetensors_item items[] = {
        {"k", "F32", 3, {KV_HEADS, KEYS, DIM}, k},
        {"ids", "I64", 1, {3}, ids},
        {"v", "F32", 4, {1, KV_HEADS, KEYS, DIM}, v},
        {"five", "F16", 5, {1, 1, 1, 1, 2}, v},
        {"scalar", "BF16", 0, {0}, v},
    };
    char why[200] = "";
    uint64_t seed = 99;

    for (uint32_t i = 0; i < K_SIZE; i++) {
        k[i] = (float)noise(&seed);
        v[i] = (float)noise(&seed);
    }
    if (td_safetensors_write(model_path, items, sizeof items / sizeof *items, why, sizeof why) != TANDEM_OK)
        fail_msg("%s", why);
}

/* Everything that allocates; the first failure ends it. */
static tandem_status use_all(rig *r)
{
    const tandem_mem_desc mem_desc = {.struct_bytes = sizeof mem_desc, .bytes = MEM_BYTES};
    tandem_timeline_desc timeline_desc = {.struct_bytes = sizeof timeline_desc};
    tandem_timeline timeline;
    tandem_model model;
    tandem_mem mem;
    tandem_ticket ticket;
    tandem_job job;
    tandem_status status = tandem_session_create(&r->desc, &r->s);

    for (uint32_t i = 0; i < 20 && status == TANDEM_OK; i++)
        status = tandem_mem_create(r->s, &mem_desc, &mem);
    if (status == TANDEM_OK)
        status = tandem_timeline_create(r->s, &timeline_desc, &timeline);
    if (status == TANDEM_OK)
        status = tandem_model_load(r->s, model_path, &model);
    if (status == TANDEM_OK) {
        job = new_job(mem);
        status = tandem_submit(r->s, &job, &ticket);
    }
    if (status == TANDEM_OK)
        status = tandem_wait(r->s, ticket, LONG_NS, NULL);
    if (status == TANDEM_OK)
        status = tandem_model_destroy(r->s, model);
    return status;
}

static void test_allocator(void **state)
{
    (void)state;
    for (rig_kind kind = 0; kind < KINDS; kind++) {
        struct {
            rig r;
            ledger l;
        } it;
        int calls;

        if (kind == ON_CUDA || kind == ON_VULKAN_HALF || kind == ON_TIMELINE || !rig_prepare(&it.r, kind))
            continue;
        memset(&it.l, 0, sizeof it.l);
        it.r.desc.allocate = count_allocate;
        it.r.desc.release = count_release;
        atomic_store(&it.l.left, -1);
        assert_int_equal(use_all(&it.r), TANDEM_OK);
        calls = atomic_load(&it.l.calls);
        assert_true(calls > 25 && atomic_load(&it.l.live) > 20);
        assert_int_equal(tandem_session_destroy(&it.r.s), TANDEM_OK);
        assert_int_equal(atomic_load(&it.l.live), 0);
        /* Each allocation fails once: NOMEM, a reason, no leak. */
        for (int n = 0; n < calls; n += gpu_signals(&it.r) ? 5 : 1) {
            const unsigned before = errors_of(&it.r);

            atomic_store(&it.l.left, n);
            assert_int_equal(use_all(&it.r), TANDEM_ERROR_NOMEM);
            assert_int_equal(errors_of(&it.r), before + 1);
            assert_non_null(strstr(it.r.log.last, "memory"));
            if (it.r.s)
                assert_int_equal(tandem_session_destroy(&it.r.s), TANDEM_OK);
            assert_int_equal(atomic_load(&it.l.live), 0);
        }
        rig_close(&it.r);
    }
}

static void test_accounting(void **state)
{
    tandem_info info = {.struct_bytes = sizeof info};
    rig r;

    (void)state;
    for (rig_kind kind = 0; kind < ON_COPY; kind++) {
        tandem_mem mem;
        uint64_t before;

        if (!rig_open(&r, kind))
            continue;
        assert_int_equal(tandem_mem_destroy(r.s, new_mem(&r, 4096)), TANDEM_OK);
        assert_int_equal(tandem_session_info(r.s, &info), TANDEM_OK);
        before = info.host_bytes + info.device_bytes;
        mem = new_mem(&r, 1 << 20);
        assert_int_equal(tandem_session_info(r.s, &info), TANDEM_OK);
        assert_in_range(info.host_bytes + info.device_bytes - before, 1 << 20, (1 << 20) + (1 << 18));
        assert_int_equal(tandem_mem_destroy(r.s, mem), TANDEM_OK);
        assert_int_equal(tandem_session_info(r.s, &info), TANDEM_OK);
        assert_int_equal(info.host_bytes + info.device_bytes, before);
        rig_close(&r);
    }
}

static void cycle(rig *r)
{
    const tandem_mem mem = new_mem(r, MEM_BYTES);
    tandem_job job = new_job(mem);

    job.wait = (tandem_point){new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0), 1};
    job.signal = (tandem_point){new_timeline(r, TANDEM_SIGNALLER_SESSION, 0), 1};
    submit(r, &job);
    assert_int_equal(tandem_timeline_signal(r->s, job.wait.timeline, 1), TANDEM_OK);
    assert_int_equal(tandem_point_wait(r->s, job.signal, LONG_NS), TANDEM_OK);
    if (mem & 1)
        assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
}

static void test_fds(void **state)
{
    (void)state;
    for (rig_kind kind = 0; kind < KINDS; kind++) {
        uint32_t cycles = kind == ON_CPU ? 60 : 20; /* ON_VULKAN_*: the device stays */
        int before;
        rig r;

        if (!rig_prepare(&r, kind))
            continue;
        if (!rig_start(&r))
            continue;
        if (kind == ON_VULKAN)
            cycles = r.info.backend == TANDEM_BACKEND_CPU ? 60 : 12;
        else if (r.info.backend == TANDEM_BACKEND_CUDA)
            cycles = 4;
        cycle(&r);
        assert_int_equal(tandem_session_destroy(&r.s), TANDEM_OK);
        before = vku_open_fds();
        for (uint32_t i = 0; i < cycles; i++) {
            assert_int_equal(tandem_session_create(&r.desc, &r.s), TANDEM_OK);
            cycle(&r);
            assert_int_equal(tandem_session_destroy(&r.s), TANDEM_OK);
        }
        assert_int_equal(vku_open_fds(), before);
        rig_close(&r);
    }
}

/* Models. */

static void models(rig *r)
{
    const tandem_mem mem = new_mem(r, MEM_BYTES);
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0);
    tandem_job job = new_job(mem);
    tandem_model model, again;
    tandem_view k, v, view;
    tandem_ticket ticket;
    uint64_t shape[4];
    float *data = calloc(1, MEM_BYTES);
    td_safetensors file;
    char why[200];

    assert_int_equal(tandem_model_load(r->s, model_path, &model), TANDEM_OK);
    assert_int_equal(tandem_model_tensor(r->s, model, "k", &k, shape), TANDEM_OK);
    assert_true(shape[0] == 1 && shape[1] == KV_HEADS && shape[2] == KEYS && shape[3] == DIM);
    assert_true(k.stride_row == DIM && k.stride_head == KEYS * DIM && k.stride_batch == KV_HEADS * KEYS * DIM);
    assert_int_equal(k.dtype, TANDEM_DTYPE_F32);
    assert_int_equal(tandem_model_tensor(r->s, model, "v", &v, shape), TANDEM_OK);
    assert_int_equal(tandem_model_tensor(r->s, model, "scalar", &view, shape), TANDEM_OK);
    assert_true(shape[0] == 1 && shape[3] == 1 && view.dtype == TANDEM_DTYPE_BF16);
    REFUSED(r, ARG, "name is 'w'", got = tandem_model_tensor(r->s, model, "w", &view, shape));
    REFUSED(r, UNSUPPORTED, "name is 'ids', which no job can read: I64",
            got = tandem_model_tensor(r->s, model, "ids", &view, shape));
    REFUSED(r, UNSUPPORTED, "name is 'five'", got = tandem_model_tensor(r->s, model, "five", &view, shape));
    assert_true(view.mem == 0 && shape[0] == 0);
    REFUSED(r, ARG, say("mem is 0x%" PRIx64 ", which belongs to a model", k.mem),
            got = tandem_mem_destroy(r->s, k.mem));

    fill(data, 4);
    transfer(r, mem, data, MEM_BYTES, true);
    job.op.attention.k = k;
    job.op.attention.v = v;
    assert_int_equal(ended(r, submit(r, &job)).state, TANDEM_JOB_DONE);
    transfer(r, mem, data, MEM_BYTES, false);
    assert_int_equal(td_safetensors_open(model_path, &file, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_safetensors_read(&file, td_safetensors_find(&file, "k"), data + K_AT, why, sizeof why),
                     TANDEM_OK);
    assert_int_equal(td_safetensors_read(&file, td_safetensors_find(&file, "v"), data + V_AT, why, sizeof why),
                     TANDEM_OK);
    td_safetensors_close(&file);
    check_output(&job, data, 2e-3);
    {
        tandem_job bad = job;

        bad.op.attention.o = bad.op.attention.k;
        bad.op.attention.o.stride_head = bad.op.attention.o.stride_batch = ROWS * DIM;
        REFUSED(r, ARG, say("o.mem is 0x%" PRIx64 ", which belongs to a model", k.mem),
                got = tandem_submit(r->s, &bad, &ticket));
    }
    /* Destroyed under a job that waits. */
    job.wait = (tandem_point){engines, 1};
    ticket = submit(r, &job);
    assert_int_equal(tandem_model_destroy(r->s, model), TANDEM_OK);
    assert_int_equal(ended(r, ticket).state, TANDEM_JOB_CANCELLED);
    REFUSED(r, ARG, say("model is 0x%" PRIx64 ", which was destroyed", model), got = tandem_model_destroy(r->s, model));
    REFUSED(r, ARG, say("model is 0x%" PRIx64 ", which was destroyed", model),
            got = tandem_model_tensor(r->s, model, "k", &view, shape));
    REFUSED(r, ARG, say("k.mem is 0x%" PRIx64 ", which was destroyed", k.mem),
            got = tandem_submit(r->s, &job, &ticket));
    assert_int_equal(tandem_model_load(r->s, model_path, &again), TANDEM_OK); /* left for the session */
    free(data);
}

/* A file without a tensor, and one whose name is no line of its own. */
static void odd_models(rig *r)
{
    static const char empty[] = "\2\0\0\0\0\0\0\0{}";
    char path[] = "/tmp/tandem-empty-XXXXXX";
    tandem_info before = {.struct_bytes = sizeof before}, after = before;
    const int fd = mkstemp(path);
    tandem_model model;

    assert_int_equal(write(fd, empty, sizeof empty - 1), sizeof empty - 1);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(tandem_model_load(r->s, path, &model), TANDEM_OK);
        assert_int_equal(tandem_model_destroy(r->s, model), TANDEM_OK);
        assert_int_equal(tandem_session_info(r->s, i ? &after : &before), TANDEM_OK);
    }
    assert_int_equal(after.host_bytes, before.host_bytes);
    assert_int_equal(after.device_bytes, before.device_bytes);
    close(fd);
    unlink(path);

    assert_int_equal(tandem_model_load(r->s, "/two\nlines\x1b[31m", &model), TANDEM_ERROR_IO);
    assert_non_null(strstr(r->log.last, "'/two?lines?[31m'"));
}

static void test_models(void **state)
{
    (void)state;
    each_kind(models);
    each_kind(odd_models);
}

/* Threads. */

static void *own_session(void *user)
{
    const uint64_t seed = (uint64_t)(uintptr_t)user;
    float *data = calloc(1, MEM_BYTES);
    rig r;

    for (uint32_t round = 0; round < 3; round++) {
        tandem_mem mem;
        tandem_job job;

        assert_true(rig_prepare(&r, ON_CPU));
        r.desc.cpu_threads = 1;
        assert_true(rig_start(&r));
        mem = new_mem(&r, MEM_BYTES);
        job = new_job(mem);
        for (uint32_t i = 0; i < 10; i++) {
            fill(data, seed * 1000 + i);
            transfer(&r, mem, data, MEM_BYTES, true);
            assert_int_equal(ended(&r, submit(&r, &job)).state, TANDEM_JOB_DONE);
            transfer(&r, mem, data, MEM_BYTES, false);
            check_output(&job, data, 2e-3);
        }
        rig_close(&r);
    }
    free(data);
    return NULL;
}

static void test_many_sessions(void **state)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];

    (void)state;
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, own_session, (void *)i), 0);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* No session takes an id of another for its own. */
static void test_foreign_ids(void **state)
{
    enum { SESSIONS = 200 };
    const tandem_mem_desc mem_desc = {.struct_bytes = sizeof mem_desc, .bytes = 64};
    static tandem_session *sessions[SESSIONS];
    tandem_mem mems[SESSIONS];
    void *host;
    rig r;

    (void)state;
    assert_true(rig_prepare(&r, ON_CPU));
    for (uint32_t i = 0; i < SESSIONS; i++) {
        assert_int_equal(tandem_session_create(&r.desc, &sessions[i]), TANDEM_OK);
        assert_int_equal(tandem_mem_create(sessions[i], &mem_desc, &mems[i]), TANDEM_OK);
    }
    for (uint32_t i = 0; i < SESSIONS; i++)
        for (uint32_t k = 0; k < SESSIONS; k++)
            assert_int_equal(tandem_mem_host(sessions[i], mems[k], &host), i == k ? TANDEM_OK : TANDEM_ERROR_ARG);
    for (uint32_t i = 0; i < SESSIONS; i++)
        assert_int_equal(tandem_session_destroy(&sessions[i]), TANDEM_OK);
    rig_close(&r);
}

/* Several threads on one session: submit, cancel, poll, create, destroy, read the info. */
typedef struct crowd {
    rig *r;
    tandem_timeline engines;
    atomic_uint_fast64_t next;
    atomic_bool stop;
    atomic_uint ended, refused;
} crowd;

/* Whether a report was there, or the others have come so far meanwhile that it is no longer kept. */
static void expect_report(crowd *c, uint64_t n, tandem_status status)
{
    if (atomic_load(&c->next) - n < 200)
        assert_int_equal(status, TANDEM_OK);
    else
        assert_true(status == TANDEM_OK || status == TANDEM_ERROR_ARG);
}

static void *crowd_member(void *user)
{
    crowd *c = user;
    tandem_info info = {.struct_bytes = sizeof info};

    while (!atomic_load(&c->stop)) {
        const tandem_mem mem = new_mem(c->r, MEM_BYTES);
        const tandem_timeline ours = new_timeline(c->r, TANDEM_SIGNALLER_SESSION, 0);
        tandem_job_report report = {.struct_bytes = sizeof report};
        tandem_job job = new_job(mem);
        tandem_ticket ticket;
        uint64_t n = atomic_fetch_add(&c->next, 1);

        job.op.attention.q_len = job.op.attention.kv_len = 8;
        job.wait = (tandem_point){c->engines, n / 4};
        job.signal = (tandem_point){ours, 1};
        job.deadline_ns = n % 5 ? 0 : n % 2 ? MS : MS / 20;
        if (n % 11 == 0)
            assert_int_equal(tandem_timeline_submitted(c->r->s, c->engines, n / 4), TANDEM_OK);
        if (tandem_submit(c->r->s, &job, &ticket) == TANDEM_OK) {
            if (n % 3 == 0)
                tandem_cancel(c->r->s, ticket);
            if (n % 2)
                expect_report(c, n, tandem_poll(c->r->s, ticket, &report));
            assert_int_equal(tandem_session_info(c->r->s, &info), TANDEM_OK);
            if (n % 7 == 0)
                assert_int_equal(tandem_mem_destroy(c->r->s, mem), TANDEM_OK);
            if (n % 13 == 0) {
                struct pollfd fd = {.events = POLLIN};

                assert_int_equal(tandem_point_fd(c->r->s, job.signal, &fd.fd), TANDEM_OK);
                assert_int_equal(poll(&fd, 1, LONG_NS / MS), 1);
                close(fd.fd);
            }
            assert_int_equal(tandem_point_wait(c->r->s, job.signal, LONG_NS), TANDEM_OK);
            report.state = TANDEM_JOB_DONE;
            expect_report(c, n, tandem_wait(c->r->s, ticket, LONG_NS, &report));
            assert_true(report.state >= TANDEM_JOB_DONE && report.state <= TANDEM_JOB_CANCELLED);
            atomic_fetch_add(&c->ended, 1);
            if (n % 7)
                assert_int_equal(tandem_mem_destroy(c->r->s, mem), TANDEM_OK);
        } else {
            atomic_fetch_add(&c->refused, 1);
            assert_int_equal(tandem_mem_destroy(c->r->s, mem), TANDEM_OK);
        }
        assert_int_equal(tandem_timeline_destroy(c->r->s, ours), TANDEM_OK);
    }
    return NULL;
}

static void crowded(rig *r)
{
    enum { THREADS = 4 };
    crowd c = {.r = r, .engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0)};
    const uint64_t until = td_now_ns() + 600 * MS;
    pthread_t threads[THREADS];

    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, crowd_member, &c), 0);
    for (uint64_t signalled = 0; td_now_ns() < until; sleep_ns(MS / 5)) {
        const uint64_t value = atomic_load(&c.next);

        if (value > signalled)
            assert_int_equal(tandem_timeline_signal(r->s, c.engines, signalled = value), TANDEM_OK);
    }
    atomic_store(&c.stop, true);
    assert_int_equal(tandem_timeline_signal(r->s, c.engines, 1u << 30), TANDEM_OK);
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(tandem_session_info(r->s, &r->info), TANDEM_OK);
    assert_int_equal(r->info.jobs_submitted, atomic_load(&c.ended));
    assert_int_equal(r->info.jobs_submitted, r->info.jobs_done + r->info.jobs_stale + r->info.jobs_cancelled);
    assert_int_equal(r->info.jobs_failed, 0);
    assert_true(r->info.jobs_done > 5);
}

static void test_crowd(void **state)
{
    (void)state;
    each_kind(crowded);
}

/* A device that is lost: the engine's functions answer so from some moment on. */
static struct {
    PFN_vkGetInstanceProcAddr gipa;
    PFN_vkGetDeviceProcAddr gdpa;
    PFN_vkGetSemaphoreCounterValue value;
    PFN_vkWaitSemaphores wait;
    PFN_vkSignalSemaphore signal;
    atomic_bool lost;
} faulty;

static VKAPI_ATTR VkResult VKAPI_CALL faulty_value(VkDevice device, VkSemaphore semaphore, uint64_t *value)
{
    return atomic_load(&faulty.lost) ? VK_ERROR_DEVICE_LOST : faulty.value(device, semaphore, value);
}

static VKAPI_ATTR VkResult VKAPI_CALL faulty_wait(VkDevice device, const VkSemaphoreWaitInfo *info, uint64_t timeout)
{
    return atomic_load(&faulty.lost) ? VK_ERROR_DEVICE_LOST : faulty.wait(device, info, timeout);
}

static VKAPI_ATTR VkResult VKAPI_CALL faulty_signal(VkDevice device, const VkSemaphoreSignalInfo *info)
{
    return atomic_load(&faulty.lost) ? VK_ERROR_DEVICE_LOST : faulty.signal(device, info);
}

static PFN_vkVoidFunction faulty_replace(const char *name, PFN_vkVoidFunction function)
{
    if (function && !strncmp(name, "vkGetSemaphoreCounterValue", 26)) {
        faulty.value = (PFN_vkGetSemaphoreCounterValue)function;
        return (PFN_vkVoidFunction)faulty_value;
    }
    if (function && !strncmp(name, "vkWaitSemaphores", 16)) {
        faulty.wait = (PFN_vkWaitSemaphores)function;
        return (PFN_vkVoidFunction)faulty_wait;
    }
    if (function && !strncmp(name, "vkSignalSemaphore", 17)) {
        faulty.signal = (PFN_vkSignalSemaphore)function;
        return (PFN_vkVoidFunction)faulty_signal;
    }
    return function;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL faulty_gdpa(VkDevice device, const char *name)
{
    return faulty_replace(name, faulty.gdpa(device, name));
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL faulty_gipa(VkInstance instance, const char *name)
{
    PFN_vkVoidFunction function = faulty.gipa(instance, name);

    if (function && !strcmp(name, "vkGetDeviceProcAddr")) {
        faulty.gdpa = (PFN_vkGetDeviceProcAddr)function;
        return (PFN_vkVoidFunction)faulty_gdpa;
    }
    return faulty_replace(name, function);
}

static void test_device_lost(void **state)
{
    tandem_timeline engines, ours;
    tandem_job_report report;
    tandem_ticket ticket;
    tandem_job job;
    uint64_t begin, value;
    unsigned errors;
    rig r;

    (void)state;
    if (!rig_prepare(&r, ON_VULKAN_CPU))
        skip();
    faulty.gipa = r.vulkan.get_instance_proc_addr;
    r.vulkan.get_instance_proc_addr = faulty_gipa;
    atomic_store(&faulty.lost, false);
    assert_true(rig_start(&r));
    engines = new_timeline(&r, TANDEM_SIGNALLER_ENGINE, 0);
    ours = new_timeline(&r, TANDEM_SIGNALLER_SESSION, 0);
    job = new_job(new_mem(&r, MEM_BYTES));
    job.wait = (tandem_point){engines, 1};
    job.signal = (tandem_point){ours, 1};
    ticket = submit(&r, &job);
    job.signal.value = 2;
    submit(&r, &job);
    sleep_ns(STUCK_NS);
    assert_int_equal(report_of(&r, ticket).state, TANDEM_JOB_PENDING);
    atomic_store(&faulty.lost, true);
    report = ended(&r, ticket);
    assert_int_equal(report.state, TANDEM_JOB_FAILED);
    assert_int_equal(report.status, TANDEM_ERROR_LOST);
    sleep_ns(STUCK_NS);
    errors = errors_of(&r);
    assert_int_equal(errors, 1); /* once, not once a job */
    job.wait = job.signal = (tandem_point){0, 0};
    REFUSED(&r, LOST, "lost", got = tandem_submit(r.s, &job, &ticket));
    REFUSED(&r, LOST, "timeline is 0x", got = tandem_timeline_value(r.s, ours, &value));
    REFUSED(&r, LOST, "lost", got = tandem_point_wait(r.s, (tandem_point){ours, 1}, LONG_NS));
    begin = td_now_ns();
    assert_int_equal(tandem_session_destroy(&r.s), TANDEM_OK);
    assert_true(td_now_ns() - begin < 2000 * MS);
    atomic_store(&faulty.lost, false);
    rig_close(&r);
}

static void test_requirements(void **state)
{
    tandem_requirement list[64] = {{.struct_bytes = sizeof *list}};
    uint32_t count = 64, instance_count = 64, small;
    bool timeline = false, memory = false, semaphore = false;
    rig r;

    (void)state;
    if (!rig_prepare(&r, ON_VULKAN))
        skip();
    assert_int_equal(tandem_vulkan_requirements(r.vk.gipa, NULL, NULL, &instance_count, list), TANDEM_OK);
    for (uint32_t i = 0; i < instance_count; i++)
        assert_int_equal(list[i].kind, TANDEM_REQUIREMENT_INSTANCE_EXTENSION);
    assert_int_equal(tandem_vulkan_requirements(r.vk.gipa, r.vk.instance, r.vk.physical_device, &count, list),
                     TANDEM_OK);
    assert_true(count > 3 && count < 64);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(list[i].name && list[i].name[0]);
        assert_true(list[i].kind <= TANDEM_REQUIREMENT_FEATURE && list[i].required <= 1 && list[i].available <= 1);
        assert_true(list[i].required || (list[i].buys && list[i].buys[0]));
        if (list[i].kind == TANDEM_REQUIREMENT_FEATURE)
            assert_true(list[i].feature_struct != 0 && list[i].feature_offset >= sizeof(VkBaseOutStructure));
        else
            assert_true(!strncmp(list[i].name, "VK_", 3));
        timeline = timeline || (!strcmp(list[i].name, "timelineSemaphore") && !list[i].required);
        memory = memory || (!strcmp(list[i].name, "VK_KHR_external_memory_fd") && !list[i].required);
        semaphore = semaphore || (!strcmp(list[i].name, "VK_KHR_external_semaphore_fd") && !list[i].required);
    }
    assert_true(timeline && memory && semaphore);
    small = 0;
    assert_int_equal(tandem_vulkan_requirements(r.vk.gipa, r.vk.instance, r.vk.physical_device, &small, NULL),
                     TANDEM_OK);
    assert_int_equal(small, count);
    memset(list, 0, sizeof list);
    small = 2;
    assert_int_equal(tandem_vulkan_requirements(r.vk.gipa, r.vk.instance, r.vk.physical_device, &small, list),
                     TANDEM_ERROR_ARG); /* struct_bytes */
    list[0].struct_bytes = sizeof *list;
    assert_int_equal(tandem_vulkan_requirements(r.vk.gipa, r.vk.instance, r.vk.physical_device, &small, list),
                     TANDEM_ERROR_BUSY);
    assert_int_equal(small, count);
    assert_true(list[1].name && !list[2].name);
    assert_int_equal(tandem_vulkan_requirements(NULL, NULL, NULL, &small, list), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_vulkan_requirements(r.vk.gipa, NULL, NULL, NULL, list), TANDEM_ERROR_ARG);
    rig_close(&r);
}

static int make_model(void **state)
{
    (void)state;
    if (close(mkstemp(model_path)))
        return 1;
    write_model();
    return 0;
}

static int remove_model(void **state)
{
    (void)state;
    return unlink(model_path);
}

/* --bench: how soon the host learns of what the GPU did, and what that costs. */

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double cpu_seconds(int who)
{
    struct rusage usage;

    getrusage(who, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

typedef enum lesson { BY_WAIT, BY_POINT, BY_FD, BY_AWAKE, BY_UNANNOUNCED, BY_DEADLINE, LESSONS } lesson;

static void bench_lesson(rig *r, lesson how)
{
    static const char *const names[LESSONS] = {"tandem_wait", "tandem_point_wait", "tandem_point_fd and poll",
                                               "tandem_point_fd, a caller that stays awake",
                                               "an unannounced value until the job begins",
                                               "a deadline until STALE"};
    enum { N = 480, WARM = 40 };
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0),
                          ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    tandem_mem big = 0;
    tandem_job job = how == BY_DEADLINE ? long_job(r, &big) : new_job(new_mem(r, MEM_BYTES));
    PFN_vkSignalSemaphore signal = NULL;
    VkSemaphore semaphore = VK_NULL_HANDLE;
    double us[N], cpu = 0, own = 0, begin_s = 0;
    uint64_t next = td_now_ns();
    uint32_t count = 0;

    if (r->has_vk) {
        assert_int_equal(tandem_timeline_get_vulkan(r->s, engines, &semaphore), TANDEM_OK);
        signal = (PFN_vkSignalSemaphore)r->vk.GetDeviceProcAddr(r->vk.device, "vkSignalSemaphore");
    }
    if (how == BY_UNANNOUNCED && !signal)
        return;
    for (uint64_t n = 1; n <= N + WARM; n++) {
        struct pollfd fd = {.fd = -1, .events = POLLIN};
        tandem_job_report report = {.struct_bytes = sizeof report};
        uint64_t now, from = 0;
        tandem_ticket ticket;

        if (n == WARM + 1) {
            cpu = cpu_seconds(RUSAGE_SELF);
            own = cpu_seconds(RUSAGE_THREAD);
            begin_s = (double)td_now_ns() * 1e-9;
        }
        now = td_now_ns();
        next = next + 1000000000u / 240 > now ? next + 1000000000u / 240 : now;
        sleep_ns(next - now);
        job.signal = (tandem_point){ours, n};
        if (how == BY_UNANNOUNCED)
            job.wait = (tandem_point){engines, n};
        job.deadline_ns = how == BY_DEADLINE ? 300000 : 0;
        from = td_now_ns() + job.deadline_ns;
        ticket = submit(r, &job);
        if (how == BY_UNANNOUNCED) {
            const VkSemaphoreSignalInfo info = {
                .sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = semaphore, .value = n};

            sleep_ns(1500000);
            from = td_now_ns();
            assert_int_equal(signal(r->vk.device, &info), VK_SUCCESS);
        }
        if (how == BY_FD || how == BY_AWAKE) {
            assert_int_equal(tandem_point_fd(r->s, job.signal, &fd.fd), TANDEM_OK);
            while (how == BY_AWAKE && !poll(&fd, 1, 0))
                ;
            assert_int_equal(poll(&fd, 1, 2000), 1);
        } else if (how == BY_POINT) {
            assert_int_equal(tandem_point_wait(r->s, job.signal, LONG_NS), TANDEM_OK);
        } else {
            assert_int_equal(tandem_wait(r->s, ticket, LONG_NS, NULL), TANDEM_OK);
        }
        now = td_now_ns();
        if (fd.fd >= 0)
            close(fd.fd);
        assert_int_equal(tandem_wait(r->s, ticket, LONG_NS, &report), TANDEM_OK);
        if (how == BY_UNANNOUNCED)
            now = report.begin_ns;
        else if (how != BY_DEADLINE)
            from = report.end_ns;
        if (n > WARM)
            us[count++] = (double)(int64_t)(now - from) * 1e-3;
        assert_int_equal(tandem_point_wait(r->s, job.signal, LONG_NS), TANDEM_OK);
    }
    cpu = cpu_seconds(RUSAGE_SELF) - cpu;
    own = cpu_seconds(RUSAGE_THREAD) - own;
    begin_s = (double)td_now_ns() * 1e-9 - begin_s;
    qsort(us, count, sizeof *us, by_size);
    printf("%-10s rung %u, %-42s p50 %7.1f us, p99 %7.1f us; helpers %.1f %%, caller %.1f %% of a core\n",
           kind_names[r->kind], r->info.rung, names[how], us[count / 2], us[count * 99 / 100],
           (cpu - own) / begin_s * 100, own / begin_s * 100);
}

static void bench_each(rig *r)
{
    for (lesson how = 0; how < LESSONS; how++)
        bench_lesson(r, how);
}

/* Jobs on memory of the host's own, by copies, on so many bytes of Q and as many of O: time a job, one at a time and
 * several at once. */
static void bench_copies(uint64_t bytes)
{
    enum { D = 32, N = 4096, KEYS_ = 32, SLOTS = 3, ROUNDS = 7, JOBS = 30 };
    const uint32_t heads = (uint32_t)(bytes / (N * D * 2));
    const uint64_t k_at = bytes, v_at = k_at + KEYS_ * D * 2, o_at = v_at + KEYS_ * D * 2;
    tandem_mem mems[SLOTS];
    tandem_job jobs[SLOTS];
    double us[2][ROUNDS];
    rig r;

    if (!rig_prepare(&r, ON_CUDA))
        return;
    r.desc.rung = TANDEM_RUNG_COPY;
    if (!rig_start(&r))
        return;
    for (int i = 0; i < SLOTS; i++) {
        const tandem_view half = {.dtype = TANDEM_DTYPE_F16, .stride_row = D};
        tandem_attention *a = &jobs[i].op.attention;
        uint16_t *host;

        mems[i] = new_mem(&r, o_at + bytes);
        assert_int_equal(tandem_mem_host(r.s, mems[i], (void **)&host), TANDEM_OK);
        for (uint64_t n = 0; n < o_at / 2; n++)
            host[n] = (uint16_t)(0x3000 + n * 2654435761u % 2048);
        jobs[i] = (tandem_job){.struct_bytes = sizeof jobs[i], .operation = TANDEM_OPERATION_ATTENTION};
        a->q = a->k = a->v = a->o = half;
        a->q.mem = a->k.mem = a->v.mem = a->o.mem = mems[i];
        a->k.offset_bytes = k_at;
        a->v.offset_bytes = v_at;
        a->o.offset_bytes = o_at;
        a->q.stride_head = a->o.stride_head = N * D;
        a->q.stride_batch = a->o.stride_batch = (int64_t)heads * N * D;
        a->k.stride_head = a->v.stride_head = a->k.stride_batch = a->v.stride_batch = KEYS_ * D;
        a->batch = a->kv_heads = 1;
        a->heads = heads;
        a->q_len = N;
        a->kv_len = KEYS_;
        a->head_dim = D;
        a->precision = TANDEM_PRECISION_F16;
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int way = 0; way < 2; way++) {
            const int at_once = way ? SLOTS : 1;
            tandem_ticket tickets[JOBS];
            const uint64_t begin = td_now_ns();

            for (int i = 0; i < JOBS; i++) {
                if (i >= at_once)
                    assert_int_equal(tandem_wait(r.s, tickets[i - at_once], LONG_NS, NULL), TANDEM_OK);
                tickets[i] = submit(&r, &jobs[i % SLOTS]);
            }
            for (int i = JOBS - at_once; i < JOBS; i++)
                assert_int_equal(ended(&r, tickets[i]).state, TANDEM_JOB_DONE);
            us[way][round] = (double)(td_now_ns() - begin) / JOBS * 1e-3;
        }
    for (int way = 0; way < 2; way++)
        qsort(us[way], ROUNDS, sizeof **us, by_size);
    printf("copies of %3u MiB each way: %7.1f us a job one at a time, %7.1f us with %d at once\n",
           (unsigned)(bytes >> 20), us[0][ROUNDS / 2], us[1][ROUNDS / 2], SLOTS);
    rig_close(&r);
}

static int bench(const char *only)
{
    validates = false;
    if (!only || !strcmp(only, "copies"))
        for (uint64_t mib = 1; mib <= 64; mib *= 8)
            bench_copies(mib << 20);
    for (rig_kind kind = ON_CUDA; kind < KINDS; kind++) {
        rig r;

        if (kind == ON_VULKAN_CPU || (only && strcmp(only, kind_names[kind])) || !rig_prepare(&r, kind))
            continue;
        if (!rig_start(&r))
            continue;
        bench_each(&r);
        rig_close(&r);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct rlimit files;

    if (argc > 1 && !strcmp(argv[1], "--bench"))
        return bench(argc > 2 ? argv[2] : NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_ladder),
        cmocka_unit_test(test_tuning),
        cmocka_unit_test(test_create_refuses),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_compute),
        cmocka_unit_test(test_caller_memory),
        cmocka_unit_test(test_engines_memory),
        cmocka_unit_test(test_frames),
        cmocka_unit_test(test_pack_frame),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_announced),
        cmocka_unit_test(test_shared_mems),
        cmocka_unit_test(test_point_fds),
        cmocka_unit_test(test_never_late),
        cmocka_unit_test(test_lost_wait),
        cmocka_unit_test(test_wait_behind_a_long_job),
        cmocka_unit_test(test_busy),
        cmocka_unit_test(test_reports),
        cmocka_unit_test(test_destroy),
        cmocka_unit_test(test_waiters),
        cmocka_unit_test(test_allocator),
        cmocka_unit_test(test_accounting),
        cmocka_unit_test(test_fds),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_many_sessions),
        cmocka_unit_test(test_foreign_ids),
        cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_device_lost),
        cmocka_unit_test(test_requirements),
    };

    if (!getrlimit(RLIMIT_NOFILE, &files) && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (getenv("TANDEM_TEST_FILTER"))
        cmocka_set_test_filter(getenv("TANDEM_TEST_FILTER"));
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
