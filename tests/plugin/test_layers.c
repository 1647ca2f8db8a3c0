/* Layers of a network in a session, here and in tandemd: planned by a precision plan, sampled, and stepped from one precision to
 * another between runs, while history goes on and scenes are cut.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interop/os/clock.h"
#include "interop/os/cpu.h"
#include "interop/os/thread.h"
#include "kernels/cpu/cpu.h"
#include "kernels/model/graph_file.h"
#include "tandem/tandem.h"
#include "tests/plugin/network_util.h"
#include "tests/plugin/relay.h"

enum { N = 128, WIDTH = 64, ELEMENTS = N * WIDTH, X_BYTES = 3 * ELEMENTS * 2, Y_BYTES = ELEMENTS * 2 };
#define WAIT_NS 20000000000u

/* Frames whose light is gathered by attention, and added to what frames before have left; `keep` is 0 behind a cut. */
#define TENSOR(name, role, dtype, shape) "\"" name "\": {\"role\": \"" role "\", \"dtype\": \"" dtype "\", \"shape\": [" shape "]}"
#define PART(view, offset) "\"" view "\": {\"tensor\": \"x\", \"offset\": " offset ", \"strides\": [24576, 32, 192]}"
#define BINARY(rest, a, b, y) "{\"operation\": \"binary\", \"batch\": 1, \"heads\": 1, \"rows\": 128, \"channels\": 64, " rest " \"views\": {\"a\": \"" a "\", \"b\": " b ", \"y\": \"" y "\"}}"
static const char format[] =
    "{\"version\": 1, \"tensors\": {" TENSOR("x", "input", "F16", "128, 192") "," TENSOR("keep", "uniform", "F32", "1") ","
    TENSOR("o", "temporary", "F16", "128, 64") "," TENSOR("faded", "temporary", "F32", "128, 64") ","
    TENSOR("kept", "state", "F32", "128, 64") "," TENSOR("y", "output", "F16", "128, 64") "," TENSOR("alone", "output", "F16", "128, 64") "},"
    "\"nodes\": [{\"operation\": \"attention\", \"batch\": 1, \"heads\": 2, \"kv_heads\": 2, \"q_len\": 128, \"kv_len\": 128,"
    " \"head_dim\": 32, \"precision\": %u, \"views\": {" PART("q", "0") "," PART("k", "64") "," PART("v", "128") ","
    " \"o\": {\"tensor\": \"o\", \"strides\": [8192, 32, 64]}}},"
    BINARY("\"kind\": 1, \"b_channels\": 1, ", "kept", "{\"tensor\": \"keep\", \"strides\": [0, 0, 0]}", "faded") ","
    BINARY("\"scale\": 0.5, ", "o", "\"faded\"", "kept") "," BINARY("\"scale\": 0.5, ", "o", "\"faded\"", "y") ","
    BINARY("", "o", "\"o\"", "alone") "]}";

static group_daemon daemon_here;
static const char *socket_path; /* NULL: sessions compute by themselves */

typedef struct rig {
    tandem_session *s;
    tandem_model model;
    tandem_instance instance;
    tandem_mem mem;
    uint16_t *x, *y, *alone;
    const char *path; /* of the model */
    char why[600];
} rig;

static void must(rig *r, tandem_status status)
{
    char text[600] = "";

    if (status == TANDEM_OK)
        return;
    tandem_error_text(r->s, text, sizeof text);
    fail_msg("status %d: %s", status, text);
}

static tandem_instance prepared_instance(rig *r, tandem_model model, const tandem_instance_desc *desc)
{
    tandem_instance instance;

    must(r, tandem_model_instance(r->s, model, desc, &instance));
    must(r, tandem_model_prepare(r->s, instance, NULL, 0));
    return instance;
}

static void open_rig(rig *r, uint32_t precision, const tandem_instance_desc *desc)
{
    const tandem_session_desc session = {.struct_bytes = sizeof session, .backend = TANDEM_BACKEND_CPU, .cpu_threads = 1, .timing = 1, .socket = socket_path};
    const tandem_mem_desc mem = {.struct_bytes = sizeof mem, .bytes = X_BYTES + 2 * Y_BYTES};
    static char text[4000];
    void *host;

    *r = (rig){0};
    snprintf(text, sizeof text, format, precision);
    assert_int_equal(tandem_session_create(&session, &r->s), TANDEM_OK);
    must(r, tandem_model_load(r->s, r->path = network_file(text), &r->model));
    must(r, tandem_mem_create(r->s, &mem, &r->mem));
    must(r, tandem_mem_host(r->s, r->mem, &host));
    r->x = host;
    r->y = (uint16_t *)((char *)host + X_BYTES);
    r->alone = r->y + ELEMENTS;
    if (!desc)
        return;
    r->instance = prepared_instance(r, r->model, desc);
}

static void close_rig(rig *r)
{
    assert_int_equal(tandem_session_destroy(&r->s), TANDEM_OK);
    network_file_remove();
}

static tandem_instance_desc plain(void)
{
    return (tandem_instance_desc){.struct_bytes = sizeof(tandem_instance_desc)};
}

/* Frame after frame of a scene is alike; another scene is not. */
static void fill(rig *r, uint32_t scene, uint32_t frame)
{
    uint32_t seed = 77 + scene;

    for (int i = 0; i < 3 * ELEMENTS; i++) {
        const float noise = (float)((seed = seed * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1;
        const int part = i % 192 / 64;

        r->x[i] = td_to_f16(2 * noise + (part == 1 ? (float)(i % 5) : part == 2 ? 1 + (float)scene : 0) + 0.01f * (float)(frame % 3));
    }
}

static tandem_job_report end_of(rig *r, const tandem_job *job)
{
    tandem_job_report report = {.struct_bytes = sizeof report};
    tandem_ticket ticket;

    must(r, tandem_submit(r->s, job, &ticket));
    must(r, tandem_wait(r->s, ticket, WAIT_NS, &report));
    return report;
}

/* How it ends; deadline_ns: 0: there is none. */
static tandem_job_report run_until(rig *r, tandem_instance instance, float keep, uint64_t deadline_ns)
{
    const tandem_view views[] = {{.mem = r->mem, .dtype = TANDEM_DTYPE_F16},
                                 {.mem = r->mem, .offset_bytes = X_BYTES, .dtype = TANDEM_DTYPE_F16},
                                 {.mem = r->mem, .offset_bytes = X_BYTES + Y_BYTES, .dtype = TANDEM_DTYPE_F16}};
    const tandem_job job = {.struct_bytes = sizeof job,
                            .operation = TANDEM_OPERATION_RUN,
                            .deadline_ns = deadline_ns,
                            .op.run = {.instance = instance, .bindings = views, .binding_count = 3, .uniforms = &keep, .uniform_bytes = 4}};

    return end_of(r, &job);
}

static void run_one(rig *r, tandem_instance instance, float keep)
{
    assert_int_equal(run_until(r, instance, keep, 0).state, TANDEM_JOB_DONE);
}

static tandem_layer layer_of(rig *r, tandem_instance instance)
{
    tandem_layer layer = {.struct_bytes = sizeof layer};

    must(r, tandem_model_layer(r->s, instance, NULL, 0, 0, &layer));
    return layer;
}

/* Until what is under way has been looked at: by a thread that others go before. */
static tandem_layer settle(rig *r)
{
    const uint64_t begin = td_now_ns();
    tandem_layer layer;

    while ((layer = layer_of(r, r->instance)).pending) {
        assert_true(td_now_ns() - begin < WAIT_NS);
        usleep(100);
    }
    return layer;
}

/* Runs, and looks at the sample. */
static tandem_layer sample(rig *r, float keep)
{
    run_one(r, r->instance, keep);
    return settle(r);
}

static double distance(const uint16_t *a, const uint16_t *b)
{
    double error = 0, size = 0;

    for (int i = 0; i < ELEMENTS; i++) {
        error += fabs((double)td_from_f16(a[i]) - (double)td_from_f16(b[i]));
        size += fabs((double)td_from_f16(b[i]));
    }
    return error / size;
}

/* --- Plans --- */

static const char plan_text[] = "{\"tandem\": \"precision plan\", \"version\": 1, \"layers\": "
                                "[{\"node\": 0, \"output\": \"o\", \"precision\": \"8b\"}]}";

static void test_plan(void **state)
{
    uint16_t planned[ELEMENTS];
    tandem_instance_desc desc = plain();
    tandem_instance other;
    rig r;

    (void)state;
    desc.plan = plan_text;
    open_rig(&r, TANDEM_PRECISION_F16, &desc);
    fill(&r, 0, 0);
    run_one(&r, r.instance, 0);
    memcpy(planned, r.alone, sizeof planned);
    for (uint32_t p = TANDEM_PRECISION_AUTO; p <= TANDEM_PRECISION_8B; p++) { /* as the graph says: f16 */
        desc = plain();
        desc.precision = p;
        other = prepared_instance(&r, r.model, &desc);
        run_one(&r, other, 0);
        assert_int_equal(!memcmp(planned, r.alone, sizeof planned), p == TANDEM_PRECISION_8B);
    }
    close_rig(&r);
}

static void refuse(rig *r, const tandem_instance_desc *desc, tandem_status status, const char *says)
{
    tandem_instance instance = 1;
    char text[600] = "";

    assert_int_equal(tandem_model_instance(r->s, r->model, desc, &instance), status);
    assert_int_equal(instance, 0);
    tandem_error_text(r->s, text, sizeof text);
    if (!strstr(text, says))
        fail_msg("\"%s\" does not say \"%s\"", text, says);
}

static void test_refusals(void **state)
{
    tandem_instance_desc desc = plain();
    tandem_layer layer = {.struct_bytes = sizeof layer};
    char text[600] = "";
    rig r;

    (void)state;
    open_rig(&r, TANDEM_PRECISION_F16, &desc);
    desc.plan = "[]";
    refuse(&r, &desc, TANDEM_ERROR_PROTOCOL, "desc.plan: the plan: is an array; it must be an object");
    desc.plan = "{\"tandem\": \"precision plan\", \"version\": 1, \"layers\": [{\"node\": 1, \"output\": \"o\", \"precision\": \"8b\"}]}";
    refuse(&r, &desc, TANDEM_ERROR_PROTOCOL, "desc.plan: layers[0].node: is 1, which is of binary and has no precision");
    desc = plain(), desc.min_similarity = 1.5f;
    refuse(&r, &desc, TANDEM_ERROR_ARG, "desc.min_similarity is 1.5; it must be 0 (none) to 1");
    desc.min_similarity = NAN;
    refuse(&r, &desc, TANDEM_ERROR_ARG, "desc.min_similarity is nan");
    desc = plain(), desc.max_us = -1;
    refuse(&r, &desc, TANDEM_ERROR_ARG, "desc.max_us is -1; it must be 0 (none) or more");
    desc = plain(), desc.sample_all = 2;
    refuse(&r, &desc, TANDEM_ERROR_ARG, "desc.sample_all is 2, not 0 or 1");
    desc = plain(), desc.reserved2 = 1;
    refuse(&r, &desc, TANDEM_ERROR_ARG, "desc.reserved2 is 1, not 0");
    assert_int_equal(tandem_model_layer(r.s, r.instance, NULL, 0, 0, &layer), TANDEM_ERROR_ARG);
    tandem_error_text(r.s, text, sizeof text);
    assert_non_null(strstr(text, "index is 0; 0 layers are sampled"));
    close_rig(&r);
}

static void test_no_timing(void **state)
{
    const tandem_session_desc session = {.struct_bytes = sizeof session, .backend = TANDEM_BACKEND_CPU, .cpu_threads = 1, .socket = socket_path};
    tandem_instance_desc desc = plain();
    static char text[4000];
    rig r = {0};

    (void)state;
    snprintf(text, sizeof text, format, 1u);
    assert_int_equal(tandem_session_create(&session, &r.s), TANDEM_OK);
    must(&r, tandem_model_load(r.s, network_file(text), &r.model));
    desc.max_us = 800;
    refuse(&r, &desc, TANDEM_ERROR_ARG, "desc.max_us is 800, but the session was made without tandem_session_desc.timing");
    close_rig(&r);
}

/* --- Samples --- */

/* What they say is what can be computed from whole outputs; nothing is stepped without a target. */
static void test_watched(void **state)
{
    tandem_instance_desc desc = plain();
    tandem_prepared prepared = {.struct_bytes = sizeof prepared};
    static uint16_t own[ELEMENTS];
    tandem_instance exact;
    tandem_layer layer;
    rig r;

    (void)state;
    desc.sample_every = 2;
    desc.sample_rows = N;
    desc.sample_all = 1;
    open_rig(&r, TANDEM_PRECISION_8B, &desc);
    must(&r, tandem_model_prepared(r.s, r.instance, NULL, 0, &prepared));
    assert_int_equal(prepared.layer_count, 1);
    fill(&r, 0, 0);
    for (int i = 0; i < 6; i++) {
        run_one(&r, r.instance, 0);
        settle(&r);
    }
    memcpy(own, r.alone, sizeof own);
    layer = layer_of(&r, r.instance);
    assert_int_equal(layer.samples, 3);
    assert_int_equal(layer.precision, TANDEM_PRECISION_8B);
    assert_int_equal(layer.changes, 0);
    assert_int_equal(layer.heads, 2);
    assert_string_equal(layer.name, "o");
    desc = plain();
    desc.precision = TANDEM_PRECISION_F16;
    exact = prepared_instance(&r, r.model, &desc);
    run_one(&r, exact, 0);
    assert_true(fabs((double)layer.relative_l1 - distance(own, r.alone)) < 2e-4);
    assert_true(layer.cosine > 0.99f && layer.cosine < 1);
    assert_true(fabs((double)layer.similarity[TANDEM_PRECISION_8B] - (double)layer.cosine * (1 - (double)layer.relative_l1)) < 1e-5);
    assert_true(layer.worst_similarity <= layer.similarity[TANDEM_PRECISION_8B]);
    assert_true(layer.similarity[TANDEM_PRECISION_4B] > 0 && layer.similarity[TANDEM_PRECISION_4B] < layer.similarity[TANDEM_PRECISION_8B]);
    assert_true(layer.similarity[TANDEM_PRECISION_F16] == 1 && layer.similarity[0] < 0);
    close_rig(&r);
}

/* A run that is late before it begins leaves no sample, and others do. */
static void test_late(void **state)
{
    tandem_instance_desc desc = plain();
    rig r;

    (void)state;
    desc.deadlines = 1;
    desc.sample_every = 1;
    open_rig(&r, TANDEM_PRECISION_8B, &desc);
    fill(&r, 0, 0);
    assert_int_equal(run_until(&r, r.instance, 0, 1).state, TANDEM_JOB_STALE);
    assert_int_equal(settle(&r).samples, 0);
    assert_int_equal(sample(&r, 0).samples, 1);
    close_rig(&r);
}

/* One run in so many has samples, also where runs are so brief that tandemd computes them at once. */
static void test_brief(void **state)
{
    static const char text[] =
        "{\"version\": 1, \"tensors\": {" TENSOR("x", "input", "F16", "16, 96") "," TENSOR("y", "output", "F16", "16, 32") "},"
        "\"nodes\": [{\"operation\": \"attention\", \"batch\": 1, \"heads\": 1, \"kv_heads\": 1, \"q_len\": 16, \"kv_len\": 16,"
        " \"head_dim\": 32, \"precision\": 2, \"views\": {\"q\": {\"tensor\": \"x\", \"strides\": [1536, 1536, 96]},"
        " \"k\": {\"tensor\": \"x\", \"offset\": 32, \"strides\": [1536, 1536, 96]},"
        " \"v\": {\"tensor\": \"x\", \"offset\": 64, \"strides\": [1536, 1536, 96]}, \"o\": \"y\"}}]}";
    tandem_instance_desc desc = plain();
    tandem_model model;
    rig r;

    (void)state;
    open_rig(&r, TANDEM_PRECISION_F16, NULL);
    network_file_remove();
    must(&r, tandem_model_load(r.s, network_file(text), &model));
    desc.sample_every = 10;
    r.instance = prepared_instance(&r, model, &desc);
    fill(&r, 0, 0);
    const tandem_view views[] = {{.mem = r.mem, .dtype = TANDEM_DTYPE_F16},
                                 {.mem = r.mem, .offset_bytes = X_BYTES, .dtype = TANDEM_DTYPE_F16}};
    const tandem_job job = {.struct_bytes = sizeof job,
                            .operation = TANDEM_OPERATION_RUN,
                            .op.run = {.instance = r.instance, .bindings = views, .binding_count = 2}};
    for (int i = 0; i < 40; i++) {
        assert_int_equal(end_of(&r, &job).state, TANDEM_JOB_DONE);
        settle(&r);
    }
    assert_int_equal(settle(&r).samples, 4);
    close_rig(&r);
}

/* From exact to as cheap as the target lets it, through each precision, while each run is wholly of one, history goes on and
 * scenes are cut: outputs stay as near to the exact ones as the precision is, at cuts and steps as elsewhere. */
static void test_steps_and_cuts(void **state)
{
    tandem_instance_desc desc = plain();
    tandem_instance fixed[4] = {0};
    static uint16_t y[ELEMENTS], alone[ELEMENTS], right[ELEMENTS];
    uint32_t seen = 0, changes = 0;
    tandem_layer layer = {0};
    rig r;

    (void)state;
    desc.min_similarity = 0.5f;
    desc.sample_every = 1;
    open_rig(&r, TANDEM_PRECISION_F16, &desc);
    for (uint32_t p = TANDEM_PRECISION_F16; p <= TANDEM_PRECISION_4B; p++) {
        desc = plain();
        desc.precision = p;
        fixed[p] = prepared_instance(&r, r.model, &desc);
    }
    for (uint32_t frame = 0; frame < 24; frame++) {
        const uint32_t scene = frame / 3;
        const float keep = frame % 3 != 0; /* each third frame is behind a cut */
        uint32_t which = 0;

        fill(&r, scene, frame);
        layer = sample(&r, keep);
        memcpy(y, r.y, sizeof y);
        memcpy(alone, r.alone, sizeof alone);
        for (uint32_t p = TANDEM_PRECISION_F16; p <= TANDEM_PRECISION_4B; p++) {
            run_one(&r, fixed[p], keep);
            if (p == TANDEM_PRECISION_F16)
                memcpy(right, r.y, sizeof right);
            if (!memcmp(alone, r.alone, sizeof alone))
                which = p;
        }
        assert_in_range(which, TANDEM_PRECISION_F16, TANDEM_PRECISION_4B);
        seen |= 1u << which;
        if (!(distance(y, right) < 0.05))
            fail_msg("frame %u, precision %u: %g from the exact one", frame, which, distance(y, right));
        changes = layer.changes;
    }
    assert_int_equal(seen, 1 << TANDEM_PRECISION_F16 | 1 << TANDEM_PRECISION_8B | 1 << TANDEM_PRECISION_4B);
    assert_int_equal(layer.precision, TANDEM_PRECISION_4B);
    assert_int_equal(changes, 2);
    close_rig(&r);
}

/* What is too far from exact is not for long: the first sample makes it more precise. */
static void test_up(void **state)
{
    tandem_instance_desc desc = plain();
    rig r;

    (void)state;
    desc.min_similarity = 0.99999f;
    desc.sample_every = 1;
    open_rig(&r, TANDEM_PRECISION_4B, &desc);
    fill(&r, 0, 0);
    assert_int_equal(sample(&r, 0).precision, TANDEM_PRECISION_8B);
    assert_int_equal(sample(&r, 0).precision, TANDEM_PRECISION_F16);
    for (int i = 0; i < 10; i++)
        assert_int_equal(sample(&r, 0).precision, TANDEM_PRECISION_F16);
    assert_true(layer_of(&r, r.instance).similarity[TANDEM_PRECISION_F16] == 1);
    close_rig(&r);
}

/* A time that cannot be had: as cheap as it gets. */
static void test_time(void **state)
{
    tandem_instance_desc desc = plain();
    tandem_layer layer = {0};
    rig r;

    (void)state;
    desc.max_us = 0.001f;
    desc.sample_every = 2;
    open_rig(&r, TANDEM_PRECISION_F16, &desc);
    fill(&r, 0, 0);
    for (int i = 0; i < 400 && layer.precision != TANDEM_PRECISION_4B; i++) {
        run_one(&r, r.instance, 0);
        layer = settle(&r);
    }
    assert_int_equal(layer.precision, TANDEM_PRECISION_4B);
    close_rig(&r);
}

/* Instances come and go while their samples are looked at. */
static void test_ends(void **state)
{
    tandem_instance_desc desc = plain();
    rig r;

    (void)state;
    desc.min_similarity = 0.99999f;
    desc.sample_every = 1;
    open_rig(&r, TANDEM_PRECISION_4B, &desc);
    fill(&r, 0, 0);
    for (int i = 0; i < 30; i++) {
        run_one(&r, r.instance, 0);
        if (i % 3)
            must(&r, tandem_instance_destroy(r.s, r.instance));
        else
            must(&r, tandem_retire(r.s, r.instance));
        r.instance = prepared_instance(&r, r.model, &desc);
    }
    run_one(&r, r.instance, 0);
    must(&r, tandem_model_destroy(r.s, r.model));
    close_rig(&r);
}

/* Models go while samples of all their instances wait to be looked at, by a thread that is at work for another one's.
 * Returns: how long the slowest of their ends took. */
static uint64_t end_models(int times)
{
    enum { INSTANCES = 8 };
    tandem_instance_desc desc = plain();
    tandem_instance instances[INSTANCES];
    uint64_t slowest_ns = 0;
    tandem_model kept;
    rig r;

    desc.min_similarity = 0.99999f;
    desc.sample_every = 1;
    desc.sample_rows = N;
    desc.sample_all = 1;
    open_rig(&r, TANDEM_PRECISION_4B, &desc);
    fill(&r, 0, 0);
    kept = r.model;
    for (int i = 0; i < times; i++) {
        must(&r, tandem_model_load(r.s, r.path, &r.model));
        for (int k = 0; k < INSTANCES; k++) {
            instances[k] = prepared_instance(&r, r.model, &desc);
        }
        run_one(&r, r.instance, 0);
        for (int k = 0; k < INSTANCES; k++)
            run_one(&r, instances[k], 0);

        const uint64_t since_ns = td_now_ns();
        must(&r, i % 2 ? tandem_retire(r.s, r.model) : tandem_model_destroy(r.s, r.model));
        const uint64_t ns = td_now_ns() - since_ns;
        slowest_ns = ns > slowest_ns ? ns : slowest_ns;
    }
    must(&r, tandem_model_destroy(r.s, kept));
    close_rig(&r);
    return slowest_ns;
}

static void test_model_ends(void **state)
{
    (void)state;
    end_models(30);
}

static void *keep_busy(void *user)
{
    const atomic_bool *ends = user;

    while (!atomic_load(ends))
        td_cpu_pause();
    return NULL;
}

/* The same where other threads of the program never leave the only processor to anybody: a thread that runs only where nobody else
 * would kept such an end for up to 4 s, and it gives up after 2. */
static void test_model_ends_busy(void **state)
{
    static atomic_bool ends; /* still there for those threads if the test fails */
    pthread_t busy[4];
    td_cpus all;

    (void)state;
    atomic_store(&ends, false);
    assert_true(td_thread_cpus(&all));
    td_thread_run_on_one((uint32_t)td_thread_cpu());
    for (int i = 0; i < 4; i++)
        assert_true(td_thread_start(&busy[i], keep_busy, &ends));
    const uint64_t slowest_ns = end_models(6);
    atomic_store(&ends, true);
    for (int i = 0; i < 4; i++)
        pthread_join(busy[i], NULL);
    td_thread_run_on(&all);
    assert_true(slowest_ns < 500000000u);
}

/* --- In tandemd --- */

static int begin_daemon_here(void **state)
{
    const char *file = network_file(network_text);
    char config[300];

    (void)state;
    snprintf(config, sizeof config, "backend = cpu\nmodel_dir = %.*s\n", (int)(strrchr(file, '/') - file), file);
    network_file_remove();
    const int failed = group_daemon_begin(&daemon_here, "layers", config);
    socket_path = daemon_here.socket_path;
    return failed;
}

static int end_daemon_here(void **state)
{
    (void)state;
    return group_daemon_end(&daemon_here);
}

/* Instances with targets go with the worker, as all do; those of the next are stepped again. */
static void test_worker_ends(void **state)
{
    tandem_instance_desc desc = plain();
    tandem_layer layer = {.struct_bytes = sizeof layer};
    tandem_status status = TANDEM_OK;
    rig r;

    (void)state;
    desc.plan = plan_text;
    desc.min_similarity = 0.99999f;
    desc.sample_every = 1;
    open_rig(&r, TANDEM_PRECISION_4B, &desc);
    fill(&r, 0, 0);
    assert_int_equal(sample(&r, 0).precision, TANDEM_PRECISION_F16); /* from the plan's 8b */
    assert_int_equal(kill(logged_worker(daemon_here.log_path), SIGKILL), 0);
    for (const uint64_t until = td_now_ns() + WAIT_NS; status == TANDEM_OK && td_now_ns() < until;)
        status = tandem_model_layer(r.s, r.instance, NULL, 0, 0, &layer);
    assert_int_equal(status, TANDEM_ERROR_LOST);
    must(&r, tandem_instance_destroy(r.s, r.instance));
    for (const uint64_t until = td_now_ns() + WAIT_NS;;) {
        status = tandem_model_instance(r.s, r.model, &desc, &r.instance);
        if (status == TANDEM_OK)
            status = tandem_model_prepare(r.s, r.instance, NULL, 0);
        if (status == TANDEM_OK || td_now_ns() > until)
            break;
        usleep(10000);
    }
    must(&r, status);
    assert_int_equal(sample(&r, 0).precision, TANDEM_PRECISION_F16);
    close_rig(&r);
}

/* A tandemd from before there was INSTANCE_CREATE refuses what needs it, and computes the rest. */
static void test_older_daemon(void **state)
{
    tandem_instance_desc desc = plain();
    char path[108];
    relay old;
    rig r;

    (void)state;
    snprintf(path, sizeof path, "%s.old", daemon_here.socket_path);
    relay_begin(&old, path, daemon_here.socket_path, TD_WIRE_LAYERS, NULL);
    socket_path = path;
    open_rig(&r, TANDEM_PRECISION_F16, &desc);
    fill(&r, 0, 0);
    run_one(&r, r.instance, 0);
    desc.plan = plan_text;
    refuse(&r, &desc, TANDEM_ERROR_UNSUPPORTED, "desc.plan is not NULL: the tandemd that computes for this session is too old");
    desc = plain(), desc.min_similarity = 0.5f;
    refuse(&r, &desc, TANDEM_ERROR_UNSUPPORTED, "desc asks for samples of layers (min_similarity 0.5");
    close_rig(&r);
    relay_end(&old);
    socket_path = daemon_here.socket_path;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan), cmocka_unit_test(test_refusals), cmocka_unit_test(test_no_timing),
        cmocka_unit_test(test_watched), cmocka_unit_test(test_late), cmocka_unit_test(test_brief),
        cmocka_unit_test(test_steps_and_cuts), cmocka_unit_test(test_up),
        cmocka_unit_test(test_time), cmocka_unit_test(test_ends),
        cmocka_unit_test(test_model_ends),
        cmocka_unit_test(test_model_ends_busy),
    };
    const struct CMUnitTest there[] = {cmocka_unit_test(test_worker_ends), cmocka_unit_test(test_older_daemon)};
    int failed = cmocka_run_group_tests_name("here", tests, NULL, NULL);

    failed += cmocka_run_group_tests_name("in tandemd", tests, begin_daemon_here, end_daemon_here);
    return failed + cmocka_run_group_tests_name("of tandemd", there, begin_daemon_here, end_daemon_here);
}
