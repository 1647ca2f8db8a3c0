/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugin/network/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interop/base.h"

/* --- Sessions --- */

static void on_log(void *user, int level, const char *text)
{
    rig *r = user;

    pthread_mutex_lock(&r->lock);
    if (level == TANDEM_LOG_ERROR) {
        r->errors++;
        snprintf(r->last, sizeof r->last, "%s", text);
    }
    pthread_mutex_unlock(&r->lock);
}

unsigned errors_of(rig *r)
{
    pthread_mutex_lock(&r->lock);
    const unsigned errors = r->errors;
    pthread_mutex_unlock(&r->lock);
    return errors;
}

static void *allocate(void *user, size_t bytes, size_t alignment)
{
    rig *r = user;
    const int left = atomic_load(&r->left);

    if (!left)
        return NULL;
    if (left > 0)
        atomic_store(&r->left, left - 1);
    atomic_fetch_add(&r->live, 1);
    atomic_fetch_add(&r->calls, 1);
    return aligned_alloc(alignment, td_align_up(bytes, alignment));
}

static void release(void *user, void *pointer)
{
    atomic_fetch_sub(&((rig *)user)->live, 1);
    free(pointer);
}

void open_session(rig *r)
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc,
                                      .backend = TANDEM_BACKEND_CPU,
                                      .cpu_threads = 1,
                                      .log = on_log,
                                      .allocate = allocate,
                                      .release = release,
                                      .user = r};

    memset(r, 0, sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
    atomic_store(&r->left, -1);
    assert_int_equal(tandem_session_create(&desc, &r->s), TANDEM_OK);
}

void must(rig *r, tandem_status status)
{
    char text[500] = "";

    if (status == TANDEM_OK)
        return;
    tandem_error_text(r->s, text, sizeof text);
    fail_msg("status %d: %s", status, text);
}

/* x, y and sum begin at multiples of 16 bytes. */
static void make_bindings(rig *r, uint32_t rows)
{
    const uint64_t bytes = (uint64_t)rows * CHANNELS * sizeof(float);
    const uint64_t offsets[BINDINGS] = {[X] = 0, [Y] = bytes, [SUM] = 2 * bytes};
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = 3 * bytes};
    void *host;

    must(r, tandem_mem_create(r->s, &desc, &r->mem));
    must(r, tandem_mem_host(r->s, r->mem, &host));
    r->x = host;
    r->y = (float *)((char *)host + offsets[Y]);
    r->sum = (float *)((char *)host + offsets[SUM]);
    for (int i = 0; i < BINDINGS; i++)
        r->views[i] = (tandem_view){
            .mem = r->mem, .offset_bytes = offsets[i], .dtype = TANDEM_DTYPE_F32};
    for (uint32_t i = 0; i < rows * CHANNELS; i++)
        r->x[i] = 1;
    r->rows = rows;
    r->length = (int32_t)rows;
}

tandem_instance new_instance(rig *r, const tandem_instance_desc *desc)
{
    const tandem_instance_desc plain = {.struct_bytes = sizeof plain};
    tandem_instance instance;

    must(r, tandem_model_instance(r->s, r->model, desc ? desc : &plain, &instance));
    assert_true(instance != 0);
    return instance;
}

void open_rig(rig *r, uint32_t rows, const tandem_instance_desc *desc)
{
    open_rig_of(r, network_text, rows, desc);
}

void open_rig_of(rig *r, const char *text, uint32_t rows, const tandem_instance_desc *desc)
{
    open_session(r);
    must(r, tandem_model_load(r->s, network_file(text), &r->model));
    r->instance = new_instance(r, desc);
    must(r, tandem_model_prepare(r->s, r->instance, &rows, 1));
    make_bindings(r, rows);
}

void close_rig(rig *r)
{
    assert_int_equal(tandem_session_destroy(&r->s), TANDEM_OK);
    assert_int_equal(atomic_load(&r->live), 0);
    pthread_mutex_destroy(&r->lock);
    network_file_remove();
}

/* --- Runs --- */

tandem_job new_run(rig *r)
{
    return (tandem_job){.struct_bytes = sizeof(tandem_job),
                        .operation = TANDEM_OPERATION_RUN,
                        .op.run = {.instance = r->instance,
                                   .bindings = r->views,
                                   .binding_count = BINDINGS,
                                   .numbers = &r->rows,
                                   .number_count = 1,
                                   .uniforms = &r->length,
                                   .uniform_bytes = sizeof r->length}};
}

tandem_ticket submit(rig *r, const tandem_job *job)
{
    tandem_ticket ticket;

    must(r, tandem_submit(r->s, job, &ticket));
    return ticket;
}

tandem_job_report ended(rig *r, tandem_ticket ticket)
{
    tandem_job_report report = {.struct_bytes = sizeof report};

    must(r, tandem_wait(r->s, ticket, 60000000000u, &report));
    return report;
}

void run(rig *r, const tandem_job *job)
{
    const tandem_job_report report = ended(r, submit(r, job));

    assert_int_equal(report.state, TANDEM_JOB_DONE);
    assert_int_equal(report.status, TANDEM_OK);
}

/* --- Refusals --- */

void check_refusal(rig *r, unsigned before, tandem_status expected, const char *text,
                   tandem_status got, int line)
{
    char kept[1024] = "";

    assert_int_equal(tandem_error_text(r->s, kept, sizeof kept), TANDEM_OK);
    if (got != expected)
        fail_msg("line %d: status %d, not %d: %s", line, got, expected, kept);
    if (!strstr(kept, text))
        fail_msg("line %d: '%s' does not say '%s'", line, kept, text);
    if (expected != TANDEM_ERROR_BUSY && (errors_of(r) != before + 1 || strcmp(r->last, kept) != 0))
        fail_msg("line %d: %u log lines, the last '%s'", line, errors_of(r) - before, r->last);
}

char *say(const char *format, ...)
{
    static char text[4][300];
    static unsigned at;
    va_list args;

    at = (at + 1) % 4;
    va_start(args, format);
    vsnprintf(text[at], sizeof text[at], format, args);
    va_end(args);
    return text[at];
}
