/* Instances that are made, prepared, run and destroyed by several threads at once, while their model
 * goes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdbool.h>

#include "tests/plugin/network/rig.h"

enum { THREADS = 3, ROUNDS = 40, RUNS_EACH = 3 };

typedef struct worker {
    rig *r;
    uint32_t seed;
    unsigned runs, refusals;
    pthread_t thread;
} worker;

/* What a call may say where others destroy what it names. */
static bool went(worker *w, tandem_status status)
{
    w->refusals += status != TANDEM_OK;
    return status == TANDEM_OK;
}

/* Its own outputs, so that runs of different threads share the input alone. */
static void run_some(worker *w, tandem_instance instance, const uint32_t *rows)
{
    const uint64_t bytes = (uint64_t)NETWORK_ROWS * CHANNELS * sizeof(float);
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = 2 * bytes};
    tandem_view views[BINDINGS] = {w->r->views[X]};
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_RUN};
    const int32_t length = 1;
    tandem_mem mem;

    must(w->r, tandem_mem_create(w->r->s, &desc, &mem));
    for (uint32_t i = Y; i < BINDINGS; i++)
        views[i] = (tandem_view){
            .mem = mem, .offset_bytes = (i - Y) * bytes, .dtype = TANDEM_DTYPE_F32};
    job.op.run = (tandem_run){.instance = instance,
                              .bindings = views,
                              .binding_count = BINDINGS,
                              .numbers = rows,
                              .number_count = 1,
                              .uniforms = &length,
                              .uniform_bytes = sizeof length};
    for (int i = 0; i < RUNS_EACH; i++) {
        tandem_job_report report = {.struct_bytes = sizeof report};
        tandem_ticket ticket;
        void *host;

        if (!went(w, tandem_submit(w->r->s, &job, &ticket)))
            break;
        must(w->r, tandem_wait(w->r->s, ticket, 60000000000u, &report));
        if (report.state != TANDEM_JOB_DONE) /* its model was destroyed */
            break;
        must(w->r, tandem_mem_host(w->r->s, mem, &host));
        assert_true(((float *)host)[bytes / sizeof(float)] == (float)(i + 1));
        w->runs++;
    }
    must(w->r, tandem_mem_destroy(w->r->s, mem));
}

static void *work(void *user)
{
    const tandem_instance_desc desc = {.struct_bytes = sizeof desc};
    worker *w = user;

    for (int round = 0; round < ROUNDS; round++) {
        const tandem_model model = __atomic_load_n(&w->r->model, __ATOMIC_RELAXED);
        const uint32_t rows = 1 + (w->seed = w->seed * 1664525u + 1013904223u) % NETWORK_ROWS;
        tandem_instance instance;

        if (!went(w, tandem_model_instance(w->r->s, model, &desc, &instance)))
            continue;
        if (went(w, tandem_model_prepare(w->r->s, instance, &rows, 1)))
            run_some(w, instance, &rows);
        if (round % 3) /* else it goes with its model */
            went(w, tandem_instance_destroy(w->r->s, instance));
    }
    return NULL;
}

static void test_threads(void **state)
{
    worker workers[THREADS];
    unsigned runs = 0;
    rig r;

    (void)state;
    open_rig(&r, NETWORK_ROWS, NULL);
    const char *file = network_file(network_text);
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (worker){.r = &r, .seed = i + 1};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < ROUNDS / 2; i++) {
        tandem_model next, last = r.model;

        must(&r, tandem_model_load(r.s, file, &next));
        __atomic_store_n(&r.model, next, __ATOMIC_RELAXED);
        must(&r, tandem_model_destroy(r.s, last));
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        runs += workers[i].runs;
    }
    assert_true(runs > 0);
    print_message("%u runs\n", runs);
    close_rig(&r);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads)};
const test_cases network_threads_cases = TEST_CASES(tests);
