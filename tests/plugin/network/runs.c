/* What runs compute, and what becomes of state: by runs that end, that are given up, of several
 * instances; and that a run takes no memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interop/base.h"
#include "interop/os/clock.h"
#include "tests/plugin/network/rig.h"

static tandem_timeline new_timeline(rig *r, tandem_signaller signaller)
{
    const tandem_timeline_desc desc = {.struct_bytes = sizeof desc, .signaller = signaller};
    tandem_timeline timeline;

    must(r, tandem_timeline_create(r->s, &desc, &timeline));
    return timeline;
}

static void check_sum(const rig *r, float sum)
{
    for (int i = 0; i < CHANNELS; i++)
        assert_true(r->sum[i] == sum);
}

static void test_runs(void **state)
{
    rig r;

    (void)state;
    open_rig(&r, 5, NULL);
    const tandem_job job = new_run(&r);
    for (int i = 1; i <= 10; i++) {
        memset(r.y, 0xff, 5 * CHANNELS * sizeof *r.y);
        run(&r, &job);
        check_sum(&r, (float)i);
        for (int j = 0; j < 5 * CHANNELS; j++)
            assert_true(r.y[j] == 1);
    }
    for (int i = 3 * CHANNELS; i < 5 * CHANNELS; i++)
        r.x[i] = 100; /* rows beyond the length */
    r.length = 3;
    run(&r, &job);
    check_sum(&r, 11);
    r.length = 4;
    run(&r, &job);
    check_sum(&r, 11 + (3 + 100) / 4.0f);
    close_rig(&r);
}

/* Each run in flight has the uniforms that it was submitted with. */
static void test_uniforms(void **state)
{
    rig r;
    tandem_ticket tickets[3];

    (void)state;
    open_rig(&r, 3, NULL);
    tandem_job job = new_run(&r);
    const tandem_timeline go = new_timeline(&r, TANDEM_SIGNALLER_ENGINE);
    for (int i = 0; i < CHANNELS; i++)
        r.x[CHANNELS + i] = 4, r.x[2 * CHANNELS + i] = 10;
    job.wait = (tandem_point){go, 1};
    for (int i = 0; i < 3; i++) { /* means of 1, 2 and 3 rows: 1, 2.5, 5 */
        int32_t length = i + 1;
        uint32_t rows = 3;

        job.op.run.uniforms = &length;
        job.op.run.numbers = &rows;
        tickets[i] = submit(&r, &job);
        length = rows = 0x7f;
    }
    must(&r, tandem_timeline_signal(r.s, go, 1));
    for (int i = 0; i < 3; i++)
        assert_int_equal(ended(&r, tickets[i]).state, TANDEM_JOB_DONE);
    check_sum(&r, 1 + 2.5f + 5);
    close_rig(&r);
}

/* --- State --- */

/* A run that is cancelled before it begins, or whose wait is lost, leaves state as it was. */
static void test_cancel(void **state)
{
    rig r;

    (void)state;
    open_rig(&r, 4, NULL);
    tandem_job job = new_run(&r);
    run(&r, &job);
    job.wait = (tandem_point){new_timeline(&r, TANDEM_SIGNALLER_ENGINE), 1};
    job.signal = (tandem_point){new_timeline(&r, TANDEM_SIGNALLER_SESSION), 1};
    const tandem_ticket ticket = submit(&r, &job);
    must(&r, tandem_cancel(r.s, ticket));
    assert_int_equal(ended(&r, ticket).state, TANDEM_JOB_CANCELLED);
    must(&r, tandem_point_wait(r.s, job.signal, 10000000000u));
    check_sum(&r, 1);
    job = new_run(&r);
    run(&r, &job);
    check_sum(&r, 2);
    close_rig(&r);
}

static void test_deadline(void **state)
{
    const tandem_instance_desc desc = {.struct_bytes = sizeof desc, .deadlines = 1};
    rig r;

    (void)state;
    open_rig(&r, 4, &desc);
    tandem_job job = new_run(&r);
    job.deadline_ns = 60000000000u;
    run(&r, &job);
    check_sum(&r, 1);
    job.wait = (tandem_point){new_timeline(&r, TANDEM_SIGNALLER_ENGINE), 1};
    job.deadline_ns = 1000000;
    assert_int_equal(ended(&r, submit(&r, &job)).state, TANDEM_JOB_STALE);
    check_sum(&r, 1);
    job = new_run(&r);
    run(&r, &job);
    check_sum(&r, 2);
    close_rig(&r);
}

/* The first row of x is kept at row `length` of four, whose mean is sum. */
static const char cache_text[] =
    "{\"version\": 1, \"numbers\": {\"rows\": 64}, \"tensors\": {"
    "\"x\": {\"role\": \"input\", \"dtype\": \"F32\", \"shape\": [\"rows\", 8]},"
    "\"length\": {\"role\": \"uniform\", \"dtype\": \"I32\", \"shape\": [1]},"
    "\"kept\": {\"role\": \"cache\", \"dtype\": \"F32\", \"shape\": [4, 8]},"
    "\"y\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [\"rows\", 8]},"
    "\"sum\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [1, 8]}}, \"nodes\": ["
    "{\"operation\": \"scatter\", \"batch\": 1, \"heads\": 1, \"rows\": 1, \"channels\": 8,"
    " \"entries\": 4, \"views\": {\"x\": {\"tensor\": \"x\", \"offset\": 0},"
    " \"position\": \"length\", \"y\": \"kept\"}},"
    "{\"operation\": \"pool\", \"batch\": 1, \"heads\": 1, \"rows\": 4, \"channels\": 8,"
    " \"views\": {\"x\": \"kept\", \"y\": \"sum\"}},"
    "{\"operation\": \"binary\", \"batch\": 1, \"heads\": 1, \"rows\": \"rows\", \"channels\": 8,"
    " \"views\": {\"a\": \"x\", \"b\": \"x\", \"y\": \"y\"}}]}";

/* Caches are an instance's: zeros at first, and what runs have written there. */
static void test_cache(void **state)
{
    static const struct {
        int32_t row;
        float x, sum;
    } runs[] = {{1, 1, 1}, {3, 2, 3}, {1, 5, 7}, {4, 9, 7}, {-1, 9, 7}, {INT32_MAX, 9, 7}};
    tandem_network network = {.struct_bytes = sizeof network};
    rig r;

    (void)state;
    open_rig_of(&r, cache_text, 2, NULL);
    must(&r, tandem_model_info(r.s, r.model, &network));
    assert_in_range(network.state_bytes, 4 * CHANNELS * sizeof(float), 256);
    for (int other = 0; other < 2; other++) {
        for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
            const tandem_job job = new_run(&r);

            r.length = runs[i].row;
            for (int j = 0; j < CHANNELS; j++)
                r.x[j] = runs[i].x;
            run(&r, &job);
            check_sum(&r, runs[i].sum / 4);
        }
        r.instance = new_instance(&r, NULL);
        must(&r, tandem_model_prepare(r.s, r.instance, &r.rows, 1));
    }
    close_rig(&r);
}

/* A network that is at it for a while: attention over many rows, whose mean goes to its state. */
static const char long_text[] =
    "{\"version\": 1, \"numbers\": {\"rows\": 65536}, \"tensors\": {"
    "\"x\": {\"role\": \"input\", \"dtype\": \"F32\", \"shape\": [\"rows\", 32]},"
    "\"o\": {\"role\": \"temporary\", \"dtype\": \"F32\", \"shape\": [\"rows\", 32]},"
    "\"mean\": {\"role\": \"temporary\", \"dtype\": \"F32\", \"shape\": [1, 32]},"
    "\"total\": {\"role\": \"state\", \"dtype\": \"F32\", \"shape\": [1, 32]},"
    "\"sum\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [1, 32]}}, \"nodes\": ["
    "{\"operation\": \"attention\", \"batch\": 1, \"heads\": 1, \"kv_heads\": 1, \"precision\": 1,"
    " \"q_len\": \"rows\", \"kv_len\": \"rows\", \"head_dim\": 32,"
    " \"views\": {\"q\": \"x\", \"k\": \"x\", \"v\": \"x\", \"o\": \"o\"}},"
    "{\"operation\": \"pool\", \"batch\": 1, \"heads\": 1, \"rows\": \"rows\", \"channels\": 32,"
    " \"views\": {\"x\": \"o\", \"y\": \"mean\"}},"
    "{\"operation\": \"binary\", \"batch\": 1, \"heads\": 1, \"rows\": 1, \"channels\": 32,"
    " \"views\": {\"a\": \"total\", \"b\": \"mean\", \"y\": \"total\"}},"
    "{\"operation\": \"pool\", \"batch\": 1, \"heads\": 1, \"rows\": 1, \"channels\": 32,"
    " \"views\": {\"x\": \"total\", \"y\": \"sum\"}}]}";

enum { LONG_DIM = 32, SHORT = 16, MIDDLE = 8192, LONG = 65536 };

/* A run of it for `*rows`, with x of ones. */
static tandem_job open_long(rig *r, const uint32_t *rows)
{
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = (LONG + 1) * LONG_DIM * 4};
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_RUN};
    void *host;

    open_session(r);
    must(r, tandem_model_load(r->s, network_file(long_text), &r->model));
    r->instance = new_instance(r, NULL);
    must(r, tandem_model_prepare(r->s, r->instance, rows, 1));
    must(r, tandem_mem_create(r->s, &desc, &r->mem));
    must(r, tandem_mem_host(r->s, r->mem, &host));
    r->x = host;
    r->sum = r->x + LONG * LONG_DIM;
    for (int i = 0; i < LONG * LONG_DIM; i++)
        r->x[i] = 1;
    for (int i = 0; i < 2; i++)
        r->views[i] = (tandem_view){.mem = r->mem,
                                    .dtype = TANDEM_DTYPE_F32,
                                    .offset_bytes = i ? LONG * LONG_DIM * 4 : 0};
    job.op.run = (tandem_run){.instance = r->instance,
                              .bindings = r->views,
                              .binding_count = 2,
                              .numbers = rows,
                              .number_count = 1};
    return job;
}

static tandem_ticket begin(rig *r, const tandem_job *job)
{
    tandem_job_report report = {.struct_bytes = sizeof report};
    const tandem_ticket ticket = submit(r, job);

    do
        must(r, tandem_poll(r->s, ticket, &report));
    while (report.state == TANDEM_JOB_PENDING);
    return ticket;
}

/* A run that is given up in its middle: what it computed so far goes nowhere. */
static void test_cancel_in_the_middle(void **state)
{
    static const uint32_t rows[2] = {SHORT, LONG};
    rig r;

    (void)state;
    tandem_job job = open_long(&r, &rows[0]);
    must(&r, tandem_model_prepare(r.s, r.instance, &rows[1], 1));
    run(&r, &job);
    assert_true(r.sum[0] == 1);
    job.op.run.numbers = &rows[1];
    const tandem_ticket ticket = begin(&r, &job);
    must(&r, tandem_cancel(r.s, ticket));
    assert_int_equal(ended(&r, ticket).state, TANDEM_JOB_CANCELLED);
    job.op.run.numbers = &rows[0];
    run(&r, &job);
    assert_true(r.sum[0] == 2);
    close_rig(&r);
}

/* What is prepared while a run computes takes nothing away from it: its scratch stays. */
static void test_prepare_beside(void **state)
{
    static const uint32_t rows[2] = {MIDDLE, LONG};
    rig r;

    (void)state;
    const tandem_job job = open_long(&r, &rows[0]);
    const tandem_ticket ticket = begin(&r, &job);
    must(&r, tandem_model_prepare(r.s, r.instance, &rows[1], 1));
    assert_int_equal(ended(&r, ticket).state, TANDEM_JOB_DONE);
    for (int i = 0; i < LONG_DIM; i++)
        assert_true(r.sum[i] > 0.99f && r.sum[i] < 1.01f);
    close_rig(&r);
}

/* --- Instances --- */

static void test_instances(void **state)
{
    rig r;

    (void)state;
    open_rig(&r, 4, NULL);
    tandem_job jobs[2] = {new_run(&r), new_run(&r)};
    jobs[1].op.run.instance = new_instance(&r, NULL);
    must(&r, tandem_model_prepare(r.s, jobs[1].op.run.instance, &r.rows, 1));
    for (int i = 1; i <= 5; i++) {
        run(&r, &jobs[0]);
        check_sum(&r, (float)i);
        run(&r, &jobs[1]);
        run(&r, &jobs[1]);
        check_sum(&r, 2 * (float)i);
    }
    must(&r, tandem_instance_destroy(r.s, jobs[1].op.run.instance));
    run(&r, &jobs[0]);
    check_sum(&r, 6);
    close_rig(&r);
}

/* Runs that have not begun are cancelled and signalled; then nobody finds it. */
static void destroy(bool the_model)
{
    rig r;

    open_rig(&r, 4, NULL);
    tandem_job job = new_run(&r);
    job.wait = (tandem_point){new_timeline(&r, TANDEM_SIGNALLER_ENGINE), 1};
    job.signal = (tandem_point){new_timeline(&r, TANDEM_SIGNALLER_SESSION), 1};
    const tandem_ticket ticket = submit(&r, &job);
    must(&r, the_model ? tandem_model_destroy(r.s, r.model)
                       : tandem_instance_destroy(r.s, r.instance));
    assert_int_equal(ended(&r, ticket).state, TANDEM_JOB_CANCELLED);
    must(&r, tandem_point_wait(r.s, job.signal, 10000000000u));
    job.wait = job.signal = (tandem_point){0};
    tandem_ticket none;
    REFUSED(&r, ARG, "which was destroyed", tandem_submit(r.s, &job, &none));
    REFUSED(&r, ARG, "which was destroyed", tandem_instance_destroy(r.s, r.instance));
    close_rig(&r);
}

static void test_destruction(void **state)
{
    (void)state;
    destroy(false);
    destroy(true);
}

/* --- Numbers --- */

/* Eight sets are kept; the ninth takes the place of the one that was used longest ago. */
static void test_prepared(void **state)
{
    tandem_prepared prepared = {.struct_bytes = sizeof prepared};
    rig r;

    (void)state;
    open_rig(&r, 20, NULL);
    tandem_job job = new_run(&r);
    for (uint32_t rows = 1; rows <= 7; rows++)
        must(&r, tandem_model_prepare(r.s, r.instance, &rows, 1));
    r.length = 1;
    for (r.rows = 2; r.rows <= 7; r.rows++)
        run(&r, &job);
    r.rows = 20;
    run(&r, &job);
    r.rows = 9; /* in place of 1, which no run used */
    must(&r, tandem_model_prepare(r.s, r.instance, &r.rows, 1));
    run(&r, &job);
    check_sum(&r, 8);
    r.rows = 1;
    tandem_ticket ticket;
    REFUSED(&r, UNSUPPORTED, "rows 1, which are not prepared: call tandem_model_prepare() first",
            tandem_submit(r.s, &job, &ticket));
    REFUSED(&r, UNSUPPORTED, "rows 1, which are not prepared",
            tandem_model_prepared(r.s, r.instance, &r.rows, 1, &prepared));
    r.rows = 2;
    must(&r, tandem_model_prepared(r.s, r.instance, &r.rows, 1, &prepared));
    assert_true(prepared.record_count >= 6 && prepared.chain <= prepared.record_count);
    assert_true(prepared.scratch_bytes > 0 && prepared.uniform_bytes == 4);
    close_rig(&r);
}

/* --- Many --- */

/* Frame after frame, three in flight: nothing is allocated, whatever numbers and instance. */
static void test_many(void **state)
{
    const int count = getenv("TANDEM_SANITIZED") ? 10000 : 100000;
    tandem_ticket tickets[3] = {0};
    rig r;

    (void)state;
    open_rig(&r, 2, NULL);
    tandem_job job = new_run(&r);
    const tandem_instance instances[2] = {r.instance, new_instance(&r, NULL)};
    for (int i = 0; i < 2; i++)
        for (uint32_t rows = 1; rows <= 2; rows++)
            must(&r, tandem_model_prepare(r.s, instances[i], &rows, 1));
    r.length = 1;
    const int calls = atomic_load(&r.calls), live = atomic_load(&r.live);
    const uint64_t begin = td_now_ns();
    for (int i = 0; i < count; i++) {
        r.rows = 1 + (uint32_t)i / 8 % 2;
        job.op.run.instance = instances[i % 2];
        if (i >= 3)
            must(&r, tandem_wait(r.s, tickets[i % 3], 60000000000u, NULL));
        tickets[i % 3] = submit(&r, &job);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(ended(&r, tickets[i]).state, TANDEM_JOB_DONE);
    print_message("%d runs, %.1f us each\n", count,
                  (double)(td_now_ns() - begin) / 1e3 / (double)count);
    assert_int_equal(atomic_load(&r.calls), calls);
    assert_int_equal(atomic_load(&r.live), live);
    check_sum(&r, (float)(count / 2));
    close_rig(&r);
}

/* --- Memory that is short --- */

/* From the file to a run; the first failure ends it. */
static tandem_status use_all(rig *r, const char *file)
{
    const tandem_instance_desc desc = {.struct_bytes = sizeof desc};
    tandem_network_tensor tensor = {.struct_bytes = sizeof tensor};
    tandem_ticket ticket;
    tandem_status status = tandem_model_load(r->s, file, &r->model);

    if (status == TANDEM_OK)
        status = tandem_model_binding(r->s, r->model, NULL, 0, 0, &tensor);
    if (status == TANDEM_OK)
        status = tandem_model_instance(r->s, r->model, &desc, &r->instance);
    if (status == TANDEM_OK)
        status = tandem_model_prepare(r->s, r->instance, &r->rows, 1);
    const tandem_job job = new_run(r);
    if (status == TANDEM_OK)
        status = tandem_supported(r->s, &job, NULL, NULL, 0);
    if (status == TANDEM_OK)
        status = tandem_submit(r->s, &job, &ticket);
    if (status == TANDEM_OK)
        must(r, tandem_wait(r->s, ticket, 60000000000u, NULL));
    return status;
}

/* Each allocation of the session's fails once: NOMEM, and nothing is left behind. */
static void test_no_memory(void **state)
{
    const char *file;
    int calls;
    rig r;

    (void)state;
    open_rig(&r, 4, NULL);
    file = network_file(network_text);
    calls = atomic_load(&r.calls);
    assert_int_equal(use_all(&r, file), TANDEM_OK);
    calls = atomic_load(&r.calls) - calls;
    assert_true(calls > 10);
    for (int n = 0; n < calls; n++) {
        const tandem_model before = r.model;
        const int live = atomic_load(&r.live);

        atomic_store(&r.left, n);
        const tandem_status status = use_all(&r, file);
        atomic_store(&r.left, -1);
        if (status != TANDEM_OK) {
            assert_int_equal(status, TANDEM_ERROR_NOMEM);
            assert_non_null(strstr(r.last, "memory"));
        }
        if (r.model && r.model != before)
            must(&r, tandem_model_destroy(r.s, r.model));
        assert_int_equal(atomic_load(&r.live), live);
    }
    close_rig(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_runs),      cmocka_unit_test(test_uniforms),
    cmocka_unit_test(test_cancel),    cmocka_unit_test(test_deadline),
    cmocka_unit_test(test_cancel_in_the_middle), cmocka_unit_test(test_prepare_beside),
    cmocka_unit_test(test_cache),     cmocka_unit_test(test_instances),
    cmocka_unit_test(test_destruction),
    cmocka_unit_test(test_prepared),  cmocka_unit_test(test_many),
    cmocka_unit_test(test_no_memory),
};
const test_cases network_runs_cases = TEST_CASES(tests);
