/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/attention/attention.h"
#include "kernels/model/safetensors.h"
#include "tests/plugin/session/rig.h"

const char *const kind_names[KINDS] = {"cpu",         "cuda",     "vulkan", "vulkan-cpu",
                                              "vulkan-half", "timeline", "copy"};

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

unsigned errors_of(rig *r)
{
    unsigned errors;

    pthread_mutex_lock(&r->log.lock);
    errors = r->log.errors;
    pthread_mutex_unlock(&r->log.lock);
    return errors;
}

bool validates = true;

bool rig_prepare(rig *r, rig_kind kind)
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
    if (kind == ON_VULKAN_HALF && expects_gpu())
        r->desc.rung = TANDEM_RUNG_HOST; /* the inline rung needs no exported semaphores */
    if (getenv("TANDEM_TEST_THREADS"))
        r->desc.cpu_threads = (uint32_t)atoi(getenv("TANDEM_TEST_THREADS"));
    if (kind == ON_CPU || kind == ON_CUDA)
        return true;
    if (kind == ON_VULKAN_HALF)
        options.without[0] = "VK_KHR_external_semaphore_fd";
    if (!vku_try(&r->vk, &options))
        return false;
    r->has_vk = true;
    r->vulkan = vku_engine(&r->vk);
    r->desc.vulkan = &r->vulkan;
    return true;
}

void rig_close(rig *r)
{
    if (r->s)
        assert_int_equal(tandem_session_destroy(&r->s), TANDEM_OK);
    if (r->has_vk) {
        vku_close(&r->vk);
        if (r->vk.errors)
            fail_msg("%s: validation: %s", kind_names[r->kind], r->vk.last_text);
    }
}

bool rig_start(rig *r)
{
    char text[300] = "";
    tandem_status status;

    r->desc.error_text = text;
    r->desc.error_text_bytes = sizeof text;
    status = tandem_session_create(&r->desc, &r->s);
    r->desc.error_text = NULL;
    if (status == TANDEM_ERROR_UNSUPPORTED && (r->kind == ON_CUDA || r->kind == ON_TIMELINE) && !expects_gpu()) {
        rig_close(r);
        return false;
    }
    if (status != TANDEM_OK)
        fail_msg("%s: session: %d %s", kind_names[r->kind], status, text);
    r->info.struct_bytes = sizeof r->info;
    assert_int_equal(tandem_session_info(r->s, &r->info), TANDEM_OK);
    return true;
}

bool rig_open(rig *r, rig_kind kind)
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

void each_kind(void (*test)(rig *r))
{
    each_kind_below(KINDS, test);
}

void each_kind_that_shares(void (*test)(rig *r))
{
    each_kind_below(ON_COPY, test);
}

/* Small jobs. */

tandem_mem new_mem(rig *r, uint64_t bytes)
{
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = bytes};
    tandem_mem mem;

    assert_int_equal(tandem_mem_create(r->s, &desc, &mem), TANDEM_OK);
    assert_true(mem != 0);
    return mem;
}

tandem_timeline new_timeline(rig *r, tandem_signaller signaller, uint64_t initial)
{
    const tandem_timeline_desc desc = {.struct_bytes = sizeof desc, .signaller = signaller, .initial_value = initial};
    tandem_timeline timeline;

    assert_int_equal(tandem_timeline_create(r->s, &desc, &timeline), TANDEM_OK);
    assert_true(timeline != 0);
    return timeline;
}

tandem_view view_at(tandem_mem mem, uint64_t at, uint32_t heads, uint32_t rows, uint32_t dim)
{
    return (tandem_view){.mem = mem,
                         .offset_bytes = at * sizeof(float),
                         .dtype = TANDEM_DTYPE_F32,
                         .stride_batch = (int64_t)heads * rows * dim,
                         .stride_head = (int64_t)rows * dim,
                         .stride_row = dim};
}

tandem_job new_job(tandem_mem mem)
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

tandem_job long_job(rig *r, tandem_mem *mem)
{
#ifdef __SANITIZE_ADDRESS__
    enum { N = 2048 }; /* sanitizers make it some twenty times longer */
#else
    enum { N = 8192 };
#endif
    enum { D = 128, H = 4 };
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

double noise(uint64_t *seed)
{
    double sum = 0;

    for (int i = 0; i < 12; i++) {
        *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
        sum += (double)(*seed >> 11) * 0x1p-53;
    }
    return sum - 6;
}

void fill(float *data, uint64_t seed)
{
    seed = seed * 0x9e3779b97f4a7c15ull + 1;
    for (uint32_t i = 0; i < O_AT; i++)
        data[i] = (float)noise(&seed);
    for (uint32_t i = O_AT; i < FLOATS; i++)
        data[i] = -77;
}

void check_output(const tandem_job *job, const float *data, double bound)
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

tandem_job_report report_of(rig *r, tandem_ticket ticket)
{
    tandem_job_report report = {.struct_bytes = sizeof report};

    assert_int_equal(tandem_poll(r->s, ticket, &report), TANDEM_OK);
    return report;
}

tandem_job_report ended(rig *r, tandem_ticket ticket)
{
    tandem_job_report report = {.struct_bytes = sizeof report};

    assert_int_equal(tandem_wait(r->s, ticket, LONG_NS, &report), TANDEM_OK);
    return report;
}

tandem_ticket submit(rig *r, const tandem_job *job)
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

uint64_t value_of(rig *r, tandem_timeline timeline)
{
    uint64_t value;

    assert_int_equal(tandem_timeline_value(r->s, timeline, &value), TANDEM_OK);
    return value;
}

bool gpu_signals(const rig *r)
{
    return r->info.rung == TANDEM_RUNG_TIMELINE;
}

void transfer(rig *r, tandem_mem mem, void *data, uint64_t bytes, bool to_mem)
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

void check_refusal(rig *r, unsigned before, tandem_status expected, const char *text, tandem_status got,
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

char *say(const char *format, ...)
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

void sleep_ns(uint64_t ns)
{
    const struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

    nanosleep(&t, NULL);
}

char model_path[] = "/tmp/tandem-model-XXXXXX";

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

int make_model(void **state)
{
    (void)state;
    if (close(mkstemp(model_path)))
        return 1;
    write_model();
    return 0;
}

int remove_model(void **state)
{
    (void)state;
    return unlink(model_path);
}
