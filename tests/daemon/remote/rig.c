/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interop/base.h"
#include "tests/daemon/remote/rig.h"

char folder[64], socket_path[96], config_path[96], log_path[96], model_path[96], program[4096];
pid_t daemon_pid;

void sleep_ms(unsigned ms) { usleep(ms * 1000); }

/* The daemon. */

void start_daemon(const char *config)
{
    char text[400];

    snprintf(text, sizeof text, "backend = cpu\n%s", config);
    daemon_pid = begin_daemon(program, socket_path, config_path, text, log_path);
}

void end_daemon(int with)
{
    end_daemon_by(&daemon_pid, with);
}

/* Sessions. */

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

bool says(side *x, const char *words)
{
    bool found;

    pthread_mutex_lock(&x->lock);
    found = strstr(x->last, words) != NULL;
    pthread_mutex_unlock(&x->lock);
    return found;
}

tandem_timeline new_timeline(side *x, tandem_signaller signaller)
{
    const tandem_timeline_desc desc = {.struct_bytes = sizeof desc, .signaller = signaller};
    tandem_timeline timeline;

    assert_int_equal(tandem_timeline_create(x->s, &desc, &timeline), TANDEM_OK);
    return timeline;
}

void open_bounded(side *x, const char *socket, const tandem_vulkan *on, uint32_t rung, uint64_t wait_bound_ns)
{
    char text[500] = "";
    const tandem_session_desc desc = {.struct_bytes = sizeof desc,
                                      .backend = TANDEM_BACKEND_CPU,
                                      .vulkan = on,
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

void open_side(side *x, const char *socket, const tandem_vulkan *on, uint32_t rung)
{
    open_bounded(x, socket, on, rung, PATIENCE);
}

void close_side(side *x)
{
    assert_int_equal(tandem_session_destroy(&x->s), TANDEM_OK);
    pthread_mutex_destroy(&x->lock);
}

tandem_mem new_mem(side *x, uint64_t bytes, void **host)
{
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = bytes};
    tandem_mem mem;

    assert_int_equal(tandem_mem_create(x->s, &desc, &mem), TANDEM_OK);
    assert_int_equal(tandem_mem_host(x->s, mem, host), TANDEM_OK);
    return mem;
}

tandem_ticket submit(side *x, tandem_job *job)
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

tandem_job_report ended(side *x, tandem_ticket ticket, uint64_t within_ns)
{
    tandem_job_report report = {.struct_bytes = sizeof report};

    assert_int_equal(tandem_wait(x->s, ticket, within_ns, &report), TANDEM_OK);
    return report;
}

void run(side *x, tandem_job *job)
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

const shape shapes[] = {
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

tandem_job job_of(const shape *s, tandem_mem mem, uint64_t *in, uint64_t *bytes)
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

void fill(void *data, uint64_t in, uint64_t bytes, uint32_t dtype)
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

void *expected(const shape *s, uint64_t *bytes)
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

tandem_job long_job(side *x, tandem_mem *mem)
{
    static const shape big = {TANDEM_DTYPE_F16, 1, 8, 8, 2048, 8192, 128, TANDEM_PRECISION_F16, 0, 0, false};
    uint64_t in, bytes;
    void *host;

    job_of(&big, 1, &in, &bytes);
    *mem = new_mem(x, bytes, &host);
    return job_of(&big, *mem, &in, &bytes);
}

void check_same(side *x)
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

vku vk;
tandem_vulkan vulkan;

bool open_vulkan(const char *without)
{
    vku_options options = {.validation = true, .without = {without}};
    const vku_found found = vku_open(&vk, &options);

    if (found == VKU_NO_VULKAN)
        return false;
    assert_int_equal(found, VKU_OK);
    vulkan = vku_engine(&vk);
    return true;
}

void close_vulkan(void)
{
    vku_close(&vk);
    if (vk.errors)
        fail_msg("validation: %s", vk.last_text);
}
