/* Networks that tandemd runs: what a session that computes by itself makes of them, bit for bit, and what becomes of
 * their state when a run is given up, a worker dies, or a daemon.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_plugin/client/network.h"
#include "interop/base.h"
#include "tests/daemon/remote/rig.h"
#include "tests/plugin/network_util.h"
#include "tests/plugin/relay.h"
#include "tests/plugin/session_must.h"

enum { X = NETWORK_X, Y = NETWORK_Y, SUM = NETWORK_SUM, CHANNELS = NETWORK_CHANNELS, MOST_ROWS = 8192 };

/* A side with a network of these bindings, and an instance that is prepared for so many rows. */
typedef struct net {
    side x;
    tandem_model model;
    tandem_instance instance;
    tandem_mem mem;
    float *in, *y, *sum;
    int32_t uniforms[MOST_ROWS];
    uint64_t uniform_bytes;
    tandem_view views[NETWORK_BINDINGS];
    uint32_t rows;
} net;

static void begin_with_models(const char *text, const char *more)
{
    char config[300];

    assert_int_equal(rename(network_file(text), model_path), 0);
    end_daemon(SIGTERM);
    snprintf(config, sizeof config, "threads = 1\nmodel_dir = %s\n%s", folder, more);
    start_daemon(config);
}

static void end_with_models(void)
{
    end_daemon(SIGTERM);
    start_daemon("threads = 1\n");
}

static void must(net *n, tandem_status status) { session_must(n->x.s, status); }

static tandem_instance new_instance(net *n)
{
    const tandem_instance_desc desc = {.struct_bytes = sizeof desc, .deadlines = 1};
    tandem_instance instance;

    must(n, tandem_model_instance(n->x.s, n->model, &desc, &instance));
    return instance;
}

static void make_bindings(net *n)
{
    const uint64_t bytes = td_align_up((uint64_t)n->rows * CHANNELS * sizeof(float), 64);
    void *host;

    n->mem = new_mem(&n->x, 3 * bytes, &host);
    n->in = host;
    n->y = (float *)((char *)host + bytes);
    n->sum = (float *)((char *)host + 2 * bytes);
    for (uint32_t i = 0; i < NETWORK_BINDINGS; i++)
        n->views[i] = (tandem_view){.mem = n->mem, .offset_bytes = i * bytes, .dtype = TANDEM_DTYPE_F32};
    for (uint32_t i = 0; i < n->rows * CHANNELS; i++)
        n->in[i] = 1;
    n->uniforms[0] = (int32_t)n->rows;
    n->uniform_bytes = sizeof n->uniforms[0];
}

static void open_net(net *n, const char *socket, uint32_t rows)
{
    memset(n, 0, sizeof *n);
    open_side(&n->x, socket, NULL, 0);
    must(n, tandem_model_load(n->x.s, model_path, &n->model));
    n->instance = new_instance(n);
    n->rows = rows;
    must(n, tandem_model_prepare(n->x.s, n->instance, &n->rows, 1));
    make_bindings(n);
}

static tandem_job new_run(net *n)
{
    return (tandem_job){.struct_bytes = sizeof(tandem_job),
                        .operation = TANDEM_OPERATION_RUN,
                        .op.run = {.instance = n->instance,
                                   .bindings = n->views,
                                   .binding_count = NETWORK_BINDINGS,
                                   .numbers = &n->rows,
                                   .number_count = 1,
                                   .uniforms = n->uniforms,
                                   .uniform_bytes = n->uniform_bytes}};
}

static void run_net(net *n)
{
    tandem_job job = new_run(n);

    run(&n->x, &job);
}

static void check_sum(const net *n, float sum)
{
    for (int i = 0; i < CHANNELS; i++)
        assert_true(n->sum[i] == sum);
}

/* --- The same as in this process --- */

static void check_same_descriptions(net *a, net *b)
{
    tandem_network of[2] = {{.struct_bytes = sizeof *of}, {.struct_bytes = sizeof *of}};
    tandem_prepared prepared[2] = {{.struct_bytes = sizeof *prepared}, {.struct_bytes = sizeof *prepared}};
    net *nets[2] = {a, b};

    for (int i = 0; i < 2; i++) {
        must(nets[i], tandem_model_info(nets[i]->x.s, nets[i]->model, &of[i]));
        must(nets[i], tandem_model_prepared(nets[i]->x.s, nets[i]->instance, &nets[i]->rows, 1, &prepared[i]));
    }
    assert_memory_equal(&of[0], &of[1], sizeof *of);
    assert_memory_equal(&prepared[0], &prepared[1], sizeof *prepared);
    assert_true(prepared[0].record_count > 1);
    for (uint32_t binding = 0; binding < of[0].binding_count; binding++) {
        tandem_network_tensor tensor[2] = {{.struct_bytes = sizeof *tensor}, {.struct_bytes = sizeof *tensor}};

        for (int i = 0; i < 2; i++)
            must(nets[i], tandem_model_binding(nets[i]->x.s, nets[i]->model, &nets[i]->rows, 1, binding, &tensor[i]));
        assert_memory_equal(&tensor[0], &tensor[1], sizeof *tensor);
    }
}

static void test_same_networks(void **state)
{
    static net here, there;
    uint64_t seed = 1;

    (void)state;
    begin_with_models(network_text, "");
    open_net(&here, NULL, 23);
    open_net(&there, socket_path, 23);
    check_same_descriptions(&here, &there);
    for (int i = 0; i < 40; i++) {
        for (uint32_t at = 0; at < here.rows * CHANNELS; at++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            here.in[at] = there.in[at] = (float)(int32_t)(seed >> 33) / (1 << 20);
        }
        here.uniforms[0] = there.uniforms[0] = i % 25;
        run_net(&here);
        run_net(&there);
        assert_memory_equal(here.y, there.y, here.rows * CHANNELS * sizeof(float));
        assert_memory_equal(here.sum, there.sum, CHANNELS * sizeof(float));
    }
    assert_int_equal(there.x.errors, 0);
    must(&there, tandem_instance_destroy(there.x.s, there.instance));
    must(&there, tandem_model_destroy(there.x.s, there.model));
    close_side(&here.x);
    close_side(&there.x);
    end_with_models();
}

/* Rows of x that ids say. Ids are uniforms, more than a slot holds, and the last ones say rows that there are not. */
static const char ids_text[] =
    "{\"version\": 1, \"numbers\": {\"rows\": 8192}, \"tensors\": {"
    "\"x\": {\"role\": \"input\", \"dtype\": \"F32\", \"shape\": [64, 8]},"
    "\"ids\": {\"role\": \"uniform\", \"dtype\": \"I32\", \"shape\": [\"rows\"]},"
    "\"y\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [\"rows\", 8]},"
    "\"sum\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [1, 8]}}, \"nodes\": ["
    "{\"operation\": \"embed\", \"batch\": 1, \"rows\": \"rows\", \"channels\": 8, \"entries\": 64,"
    " \"views\": {\"table\": \"x\", \"id\": \"ids\", \"y\": \"y\"}},"
    "{\"operation\": \"pool\", \"batch\": 1, \"heads\": 1, \"rows\": \"rows\", \"channels\": 8,"
    " \"views\": {\"x\": \"y\", \"y\": \"sum\"}}]}";

static void check_ids(net *n, uint32_t rows)
{
    enum { ENTRIES = 64 };
    tandem_job job;

    n->rows = rows;
    must(n, tandem_model_prepare(n->x.s, n->instance, &n->rows, 1));
    n->uniform_bytes = rows * sizeof *n->uniforms;
    for (uint32_t i = 0; i < rows; i++)
        n->uniforms[i] = (int32_t)(i * 7 % ENTRIES);
    n->uniforms[rows - 1] = INT32_MAX;
    n->uniforms[rows / 2] = INT32_MIN;
    memset(n->y, 0xff, rows * CHANNELS * sizeof(float));
    job = new_run(n);
    run(&n->x, &job);
    for (uint32_t i = 0; i < rows; i++) {
        const int32_t id = n->uniforms[i] < 0 ? 0 : n->uniforms[i] >= ENTRIES ? ENTRIES - 1 : n->uniforms[i];

        assert_memory_equal(n->y + (size_t)i * CHANNELS, n->in + (size_t)id * CHANNELS, CHANNELS * sizeof(float));
    }
}

static void test_uniforms(void **state)
{
    static net n;
    static const uint32_t rows[] = {1, 71, 72, 73, 576, 577, 5000, 8136};
    const uint32_t most = 8137; /* 4 bytes each: one more than there may be */
    tandem_job job;

    (void)state;
    begin_with_models(ids_text, "");
    open_net(&n, socket_path, 8136);
    for (uint32_t i = 0; i < 64 * CHANNELS; i++)
        n.in[i] = (float)i;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_ids(&n, rows[i]);
    assert_int_equal(tandem_model_prepare(n.x.s, n.instance, &most, 1), TANDEM_ERROR_UNSUPPORTED);
    assert_true(says(&n.x, "uniforms take 32548 bytes"));
    /* Several at once: more than the ring has slots. */
    job = new_run(&n);
    for (int i = 0; i < 12; i++) {
        tandem_ticket ticket;
        tandem_status status;

        job.signal = (tandem_point){n.x.ours, n.x.value + 1};
        while ((status = tandem_submit(n.x.s, &job, &ticket)) == TANDEM_ERROR_BUSY)
            sleep_ms(1);
        must(&n, status);
        n.x.value++;
    }
    assert_int_equal(tandem_point_wait(n.x.s, (tandem_point){n.x.ours, n.x.value}, PATIENCE), TANDEM_OK);
    close_side(&n.x);
    end_with_models();
}

/* --- What is refused --- */

static void check_refused(net *n, const tandem_job *job, tandem_status expected, const char *words)
{
    char text[500] = "";
    tandem_ticket ticket;

    assert_int_equal(tandem_submit(n->x.s, job, &ticket), expected);
    tandem_error_text(n->x.s, text, sizeof text);
    if (!strstr(text, words))
        fail_msg("'%s' does not say '%s'", text, words);
}

static void check_refused_instance(net *n, const tandem_instance_desc *desc, tandem_status status, const char *words)
{
    tandem_instance instance = 1;

    assert_int_equal(tandem_model_instance(n->x.s, n->model, desc, &instance), status);
    assert_int_equal(instance, 0);
    assert_true(says(&n->x, words));
}

static void test_refused_runs(void **state)
{
    static net n, other;
    const uint32_t none = 0, huge = 65, unprepared = 6;
    tandem_prepared prepared = {.struct_bytes = sizeof prepared};
    tandem_job job;

    (void)state;
    begin_with_models(network_text, "");
    open_net(&n, socket_path, 5);
    open_net(&other, socket_path, 5);
    check_refused_instance(&n, &(tandem_instance_desc){.struct_bytes = sizeof(tandem_instance_desc), .plan = "{}"},
                           TANDEM_ERROR_PROTOCOL, "desc.plan: ");
    check_refused_instance(&n, &(tandem_instance_desc){.struct_bytes = sizeof(tandem_instance_desc), .min_similarity = 1.5f},
                           TANDEM_ERROR_ARG, "desc.min_similarity is 1.5");
    assert_int_equal(tandem_model_prepare(n.x.s, n.instance, &none, 1), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_model_prepare(n.x.s, n.instance, &huge, 1), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_model_prepared(n.x.s, n.instance, &unprepared, 1, &prepared), TANDEM_ERROR_UNSUPPORTED);
    job = new_run(&n);
    job.op.run.instance = other.instance;
    check_refused(&n, &job, TANDEM_ERROR_ARG, "run.instance");
    job = new_run(&n);
    job.op.run.numbers = &unprepared;
    check_refused(&n, &job, TANDEM_ERROR_UNSUPPORTED, "not prepared");
    job = new_run(&n);
    job.op.run.binding_count = 2;
    check_refused(&n, &job, TANDEM_ERROR_ARG, "binding_count");
    job = new_run(&n);
    job.op.run.uniform_bytes = 5;
    check_refused(&n, &job, TANDEM_ERROR_ARG, "uniform_bytes");
    job = new_run(&n);
    n.views[X].offset_bytes = 3 * td_align_up(5 * CHANNELS * 4, 64);
    check_refused(&n, &job, TANDEM_ERROR_ARG, "go beyond");
    close_side(&n.x);
    close_side(&other.x);
    end_with_models();
}

/* Of nine sets of numbers both forget the same one, which runs that never came there do not make newer: what is prepared here is
 * there. */
static void test_same_are_prepared(void **state)
{
    enum { SETS = 8 };
    static net n;
    tandem_job_report report;
    tandem_job job;
    uint32_t sets = 0;

    (void)state;
    begin_with_models(network_text, "");
    open_net(&n, socket_path, SETS + 1);
    for (uint32_t rows = 1; rows < SETS; rows++)
        must(&n, tandem_model_prepare(n.x.s, n.instance, &rows, 1));
    job = new_run(&n);
    job.deadline_ns = 1;
    report = ended(&n.x, submit(&n.x, &job), PATIENCE);
    assert_int_equal(report.state, TANDEM_JOB_STALE);
    for (n.rows = SETS; n.rows; n.rows--) {
        tandem_prepared prepared = {.struct_bytes = sizeof prepared};

        if (n.rows == SETS)
            must(&n, tandem_model_prepare(n.x.s, n.instance, &n.rows, 1));
        if (tandem_model_prepared(n.x.s, n.instance, &n.rows, 1, &prepared) != TANDEM_OK)
            continue;
        n.uniforms[0] = (int32_t)n.rows;
        run_net(&n);
        check_sum(&n, (float)++sets);
    }
    assert_int_equal(sets, SETS);
    close_side(&n.x);
    end_with_models();
}

static atomic_bool lies;

static void prepare_others(td_wire_message *m, int fd)
{
    (void)fd;
    if (m->header.type == TD_WIRE_MODEL_PREPARE && lies)
        m->model_prepare.numbers[0]++;
}

/* A run of what tandemd has not prepared, or no longer, fails; then it can be prepared again. */
static void test_forgotten_there(void **state)
{
    static net n;
    tandem_prepared prepared = {.struct_bytes = sizeof prepared};
    tandem_job_report report;
    char path[108], text[500];
    tandem_job job;
    relay liar;

    (void)state;
    begin_with_models(network_text, "");
    snprintf(path, sizeof path, "%s.lies", socket_path);
    relay_begin(&liar, path, socket_path, 0, prepare_others);
    lies = true;
    open_net(&n, path, 5);
    job = new_run(&n);
    report = ended(&n.x, submit(&n.x, &job), PATIENCE);
    assert_int_equal(report.status, TANDEM_ERROR_UNSUPPORTED);
    tandem_error_text(n.x.s, text, sizeof text); /* which is there with the report; the log's line comes later */
    if (!strstr(text, "not prepared"))
        fail_msg("'%s' does not say 'not prepared'", text);
    assert_int_equal(tandem_model_prepared(n.x.s, n.instance, &n.rows, 1, &prepared), TANDEM_ERROR_UNSUPPORTED);
    lies = false;
    must(&n, tandem_model_prepare(n.x.s, n.instance, &n.rows, 1));
    run_net(&n);
    check_sum(&n, 1);
    close_side(&n.x);
    relay_end(&liar);
    end_with_models();
}

/* An instance is one of its client's 64, and its state is of its client's memory. */
static void test_limits(void **state)
{
    enum { MOST = 64 };
    const tandem_instance_desc desc = {.struct_bytes = sizeof desc};
    tandem_instance instance, last = 0;
    static net n;

    (void)state;
    begin_with_models(network_text, "");
    open_net(&n, socket_path, 5);
    for (int i = 1; i < MOST; i++)
        last = new_instance(&n);
    assert_int_equal(tandem_model_instance(n.x.s, n.model, &desc, &instance), TANDEM_ERROR_NOMEM);
    assert_true(says(&n.x, "all 64 instances are in use"));
    must(&n, tandem_instance_destroy(n.x.s, last));
    new_instance(&n);
    run_net(&n);
    close_side(&n.x);
    end_with_models();
}

static const char large_text[] =
    "{\"version\": 1, \"numbers\": {\"rows\": 64}, \"tensors\": {"
    "\"x\": {\"role\": \"input\", \"dtype\": \"F32\", \"shape\": [\"rows\", 8]},"
    "\"length\": {\"role\": \"uniform\", \"dtype\": \"I32\", \"shape\": [1]},"
    "\"kept\": {\"role\": \"cache\", \"dtype\": \"F32\", \"shape\": [65536, 8]},"
    "\"y\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [\"rows\", 8]},"
    "\"sum\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [1, 8]}}, \"nodes\": ["
    "{\"operation\": \"scatter\", \"batch\": 1, \"heads\": 1, \"rows\": 1, \"channels\": 8,"
    " \"entries\": 65536, \"views\": {\"x\": {\"tensor\": \"x\", \"offset\": 0},"
    " \"position\": \"length\", \"y\": \"kept\"}},"
    "{\"operation\": \"pool\", \"batch\": 1, \"heads\": 1, \"rows\": 65536, \"channels\": 8,"
    " \"views\": {\"x\": \"kept\", \"y\": \"sum\"}},"
    "{\"operation\": \"binary\", \"batch\": 1, \"heads\": 1, \"rows\": \"rows\", \"channels\": 8,"
    " \"views\": {\"a\": \"x\", \"b\": \"x\", \"y\": \"y\"}}]}";

static void test_quota(void **state)
{
    const tandem_instance_desc desc = {.struct_bytes = sizeof desc};
    tandem_instance instance[2];
    static net n;
    uint32_t rows = 1;
    tandem_status status;

    (void)state;
    begin_with_models(large_text, "client_bytes = 5M\n");
    open_net(&n, socket_path, 5); /* 2 MiB, and what is prepared */
    must(&n, tandem_model_instance(n.x.s, n.model, &desc, &instance[0]));
    assert_int_equal(tandem_model_instance(n.x.s, n.model, &desc, &instance[1]), TANDEM_ERROR_NOMEM);
    assert_true(says(&n.x, "state of an instance is 2097152"));
    must(&n, tandem_instance_destroy(n.x.s, instance[0]));
    must(&n, tandem_model_instance(n.x.s, n.model, &desc, &instance[0]));
    run_net(&n);
    do
        status = tandem_model_prepare(n.x.s, rows % 2 ? n.instance : instance[0], &rows, 1);
    while (status == TANDEM_OK && ++rows <= 16); /* eight for each, which fit */
    must(&n, status);
    close_side(&n.x);
    begin_with_models(large_text, "client_bytes = 2049K\n"); /* with room for the state alone */
    memset(&n, 0, sizeof n);
    open_side(&n.x, socket_path, NULL, 0);
    must(&n, tandem_model_load(n.x.s, model_path, &n.model));
    n.instance = new_instance(&n);
    rows = 5;
    assert_int_equal(tandem_model_prepare(n.x.s, n.instance, &rows, 1), TANDEM_ERROR_NOMEM);
    assert_true(says(&n.x, "what is prepared takes"));
    close_side(&n.x);
    end_with_models();
}

/* --- State --- */

static void test_runs_given_up(void **state)
{
    static net n;
    tandem_ticket ticket;
    tandem_job job;

    (void)state;
    begin_with_models(network_text, "");
    open_net(&n, socket_path, 4);
    run_net(&n);
    job = new_run(&n);
    job.wait = (tandem_point){n.x.engines, 1};
    ticket = submit(&n.x, &job);
    assert_int_equal(tandem_cancel(n.x.s, ticket), TANDEM_OK);
    assert_int_equal(ended(&n.x, ticket, PATIENCE).state, TANDEM_JOB_CANCELLED);
    job.deadline_ns = 20 * MS;
    assert_int_equal(ended(&n.x, submit(&n.x, &job), PATIENCE).state, TANDEM_JOB_STALE);
    assert_int_equal(tandem_point_wait(n.x.s, (tandem_point){n.x.ours, n.x.value}, SOON), TANDEM_OK);
    check_sum(&n, 1);
    job = new_run(&n);
    job.deadline_ns = PATIENCE;
    run(&n.x, &job);
    check_sum(&n, 2);
    close_side(&n.x);
    end_with_models();
}

/* One that is at it for a while: attention over many rows, whose mean goes to its state. */
static const char long_text[] =
    "{\"version\": 1, \"numbers\": {\"rows\": 65536}, \"tensors\": {"
    "\"x\": {\"role\": \"input\", \"dtype\": \"F32\", \"shape\": [\"rows\", 32]},"
    "\"length\": {\"role\": \"uniform\", \"dtype\": \"I32\", \"shape\": [1]},"
    "\"o\": {\"role\": \"temporary\", \"dtype\": \"F32\", \"shape\": [\"rows\", 32]},"
    "\"mean\": {\"role\": \"temporary\", \"dtype\": \"F32\", \"shape\": [1, 32]},"
    "\"total\": {\"role\": \"state\", \"dtype\": \"F32\", \"shape\": [1, 32]},"
    "\"y\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [1, 32]},"
    "\"sum\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [1, 32]}}, \"nodes\": ["
    "{\"operation\": \"attention\", \"batch\": 1, \"heads\": 1, \"kv_heads\": 1, \"precision\": 1,"
    " \"q_len\": \"rows\", \"kv_len\": \"rows\", \"head_dim\": 32,"
    " \"views\": {\"q\": \"x\", \"k\": \"x\", \"v\": \"x\", \"o\": \"o\"}},"
    "{\"operation\": \"pool\", \"batch\": 1, \"heads\": 1, \"rows\": \"rows\", \"channels\": 32,"
    " \"views\": {\"x\": \"o\", \"length\": \"length\", \"y\": \"mean\"}},"
    "{\"operation\": \"binary\", \"batch\": 1, \"heads\": 1, \"rows\": 1, \"channels\": 32,"
    " \"views\": {\"a\": \"total\", \"b\": \"mean\", \"y\": \"total\"}},"
    "{\"operation\": \"pool\", \"batch\": 1, \"heads\": 1, \"rows\": 1, \"channels\": 32,"
    " \"views\": {\"x\": \"total\", \"y\": \"y\"}},"
    "{\"operation\": \"pool\", \"batch\": 1, \"heads\": 1, \"rows\": 1, \"channels\": 32,"
    " \"views\": {\"x\": \"total\", \"y\": \"sum\"}}]}";

/* n, which has a session, is of `rows` of 32 channels, all ones: each run adds 1. */
static void make_long(net *n, uint32_t rows)
{
    void *host;

    must(n, tandem_model_load(n->x.s, model_path, &n->model));
    n->instance = new_instance(n);
    n->mem = new_mem(&n->x, 65536 * 128 + 256, &host);
    n->in = host;
    n->y = n->in + 65536 * 32;
    n->sum = n->y + 32;
    for (uint32_t i = 0; i < 65536 * 32; i++)
        n->in[i] = 1;
    n->views[X] = (tandem_view){.mem = n->mem, .dtype = TANDEM_DTYPE_F32};
    n->views[Y] = (tandem_view){.mem = n->mem, .offset_bytes = 65536 * 128, .dtype = TANDEM_DTYPE_F32};
    n->views[SUM] = (tandem_view){.mem = n->mem, .offset_bytes = 65536 * 128 + 128, .dtype = TANDEM_DTYPE_F32};
    n->uniforms[0] = 16;
    n->uniform_bytes = 4;
    n->rows = rows;
    must(n, tandem_model_prepare(n->x.s, n->instance, &n->rows, 1));
}

static void open_long(net *n, const char *socket, uint32_t rows)
{
    memset(n, 0, sizeof *n);
    open_side(&n->x, socket, NULL, 0);
    make_long(n, rows);
}

static void set_rows(net *n, uint32_t rows)
{
    n->rows = rows;
    must(n, tandem_model_prepare(n->x.s, n->instance, &n->rows, 1));
}

static void run_again(net *n, float sum)
{
    tandem_job job = new_run(n);
    tandem_ticket ticket;
    const uint64_t begin = td_now_ns();
    tandem_status status;

    job.signal = (tandem_point){n->x.ours, n->x.value + 1};
    while ((status = tandem_submit(n->x.s, &job, &ticket)) == TANDEM_ERROR_BUSY && td_now_ns() - begin < PATIENCE)
        sleep_ms(1);
    must(n, status);
    n->x.value++;
    assert_int_equal(ended(&n->x, ticket, PATIENCE).state, TANDEM_JOB_DONE);
    check_sum(n, sum);
}

static void check_lost(net *n)
{
    const uint32_t other = 9;
    tandem_job job = new_run(n);

    check_refused(n, &job, TANDEM_ERROR_LOST, "whose state went with tandemd's worker");
    assert_int_equal(tandem_model_prepare(n->x.s, n->instance, &other, 1), TANDEM_ERROR_LOST);
    assert_int_equal(tandem_instance_destroy(n->x.s, n->instance), TANDEM_OK);
}

/* A run of the background's that takes seconds stands still while a frame's job is computed. */
static void test_background_run(void **state)
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc,
                                      .backend = TANDEM_BACKEND_CPU,
                                      .socket = socket_path,
                                      .job_class = TANDEM_CLASS_BACKGROUND};
    uint64_t in, bytes;
    tandem_ticket ticket;
    static net n;
    tandem_job job, frame;
    void *host;
    side x;

    (void)state;
    begin_with_models(long_text, "");
    memset(&n, 0, sizeof n);
    assert_int_equal(tandem_session_create(&desc, &n.x.s), TANDEM_OK);
    n.x.ours = new_timeline(&n.x, TANDEM_SIGNALLER_SESSION);
    make_long(&n, 65536);
    open_side(&x, socket_path, NULL, 0);
    job_of(&shapes[0], 1, &in, &bytes);
    frame = job_of(&shapes[0], new_mem(&x, bytes, &host), &in, &bytes);
    job = new_run(&n);
    ticket = submit(&n.x, &job);
    sleep_ms(50);
    for (int i = 0; i < 20; i++) {
        const uint64_t begin = td_now_ns();

        run(&x, &frame);
        assert_true(td_now_ns() - begin < SOON);
    }
    assert_int_equal(tandem_wait(n.x.s, ticket, 0, NULL), TANDEM_ERROR_BUSY);
    tandem_cancel(n.x.s, ticket); /* BUSY where the worker has not decided so soon */
    assert_int_equal(ended(&n.x, ticket, PATIENCE).state, TANDEM_JOB_CANCELLED);
    set_rows(&n, 16);
    run_again(&n, 1);
    close_side(&x);
    assert_int_equal(tandem_session_destroy(&n.x.s), TANDEM_OK);
    end_with_models();
}

/* In the middle of a run, with others behind it: all end LOST, with their points, and so is every instance, also of who had
 * nothing under way. New ones begin with zeros. */
static void test_worker_killed(void **state)
{
    static net n, idle;
    tandem_ticket tickets[3];
    tandem_job job;
    pid_t worker;

    (void)state;
    begin_with_models(long_text, "");
    open_long(&n, socket_path, 16);
    open_long(&idle, socket_path, 16);
    run_again(&n, 1);
    run_again(&idle, 1);
    run_again(&n, 2);
    set_rows(&n, 65536);
    worker = logged_worker(log_path);
    for (int i = 0; i < 3; i++) {
        job = new_run(&n);
        tickets[i] = submit(&n.x, &job);
    }
    sleep_ms(100);
    assert_int_equal(kill(worker, SIGKILL), 0);
    for (int i = 0; i < 3; i++) {
        const tandem_job_report report = ended(&n.x, tickets[i], PATIENCE);

        assert_int_equal(report.state, TANDEM_JOB_FAILED);
        assert_int_equal(report.status, TANDEM_ERROR_LOST);
    }
    assert_int_equal(tandem_point_wait(n.x.s, (tandem_point){n.x.ours, n.x.value}, SOON), TANDEM_OK);
    check_sum(&n, 2);
    check_lost(&n);
    n.instance = new_instance(&n);
    set_rows(&n, 16);
    run_again(&n, 1);
    check_lost(&idle);
    idle.instance = new_instance(&idle);
    set_rows(&idle, 16);
    run_again(&idle, 1);
    run_again(&n, 2);
    close_side(&n.x);
    close_side(&idle.x);
    end_with_models();
}

static void make_again(net *n)
{
    const tandem_instance_desc desc = {.struct_bytes = sizeof desc, .deadlines = 1};
    const uint64_t begin = td_now_ns();
    tandem_status status;

    while ((status = tandem_model_instance(n->x.s, n->model, &desc, &n->instance)) == TANDEM_ERROR_LOST) {
        assert_true(td_now_ns() - begin < PATIENCE);
        sleep_ms(2);
    }
    must(n, status);
}

static void test_daemon_killed(void **state)
{
    char config[200];
    tandem_ticket ticket;
    static net n;
    tandem_job job;

    (void)state;
    begin_with_models(long_text, "");
    snprintf(config, sizeof config, "threads = 1\nmodel_dir = %s\n", folder);
    for (int round = 0; round < 2; round++) { /* with a run under way, and without */
        open_long(&n, socket_path, 16);
        run_again(&n, 1);
        if (!round) {
            set_rows(&n, 65536);
            job = new_run(&n);
            ticket = submit(&n.x, &job);
            sleep_ms(50);
        }
        end_daemon(SIGKILL);
        if (!round) {
            assert_int_equal(ended(&n.x, ticket, PATIENCE).status, TANDEM_ERROR_LOST);
            assert_int_equal(tandem_point_wait(n.x.s, (tandem_point){n.x.ours, n.x.value}, SOON), TANDEM_OK);
        }
        start_daemon(config);
        sleep_ms(20);
        check_lost(&n);
        make_again(&n);
        set_rows(&n, 16);
        run_again(&n, 1);
        run_again(&n, 2);
        close_side(&n.x);
    }
    end_with_models();
}

/* What a client that is killed had, others may have. */
static void test_client_killed(void **state)
{
    int ready[2];
    char byte;
    static net n;
    pid_t child;

    (void)state;
    begin_with_models(long_text, "total_bytes = 20M\nclient_bytes = 18M\n");
    for (int round = 0; round < 3; round++) {
        assert_int_equal(pipe(ready), 0);
        child = fork();
        assert_true(child >= 0);
        if (!child) {
            tandem_job job;

            open_long(&n, socket_path, 65536);
            job = new_run(&n);
            submit(&n.x, &job);
            submit(&n.x, &job);
            sleep_ms(30);
            (void)!write(ready[1], "r", 1);
            sleep_ms(60000);
            _exit(0);
        }
        close(ready[1]);
        assert_int_equal(read(ready[0], &byte, 1), 1);
        close(ready[0]);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
    }
    for (uint64_t begin = td_now_ns();;) { /* a run that is given up ends, or its worker does */
        tandem_session *s = NULL;

        open_side(&n.x, socket_path, NULL, 0);
        s = n.x.s;
        const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = 14 << 20};
        tandem_mem mem;
        const tandem_status status = tandem_mem_create(s, &desc, &mem);

        close_side(&n.x);
        if (status == TANDEM_OK)
            break;
        assert_true(td_now_ns() - begin < PATIENCE);
        sleep_ms(20);
    }
    open_long(&n, socket_path, 16);
    run_again(&n, 1);
    close_side(&n.x);
    end_with_models();
}

/* Whose job is behind another's run, which takes seconds, and who is killed then, leaves that run alone, and its instance. */
static void test_killed_behind(void **state)
{
    static net n, behind;
    tandem_ticket ticket;
    tandem_job job;
    int ready[2];
    char byte;

    (void)state;
    begin_with_models(long_text, "");
    open_long(&n, socket_path, 16);
    run_again(&n, 1);
    set_rows(&n, 65536);
    const pid_t worker = logged_worker(log_path);
    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        open_long(&behind, socket_path, 16);
        run_again(&behind, 1);
        (void)!write(ready[1], "r", 1);
        sleep_ms(100); /* the other's is at the worker */
        job = new_run(&behind);
        submit(&behind.x, &job);
        sleep_ms(100);
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    job = new_run(&n);
    ticket = submit(&n.x, &job);
    assert_int_equal(waitpid(child, NULL, 0), child);
    sleep_ms(2500); /* it is no condition that the worker is not ended, after a second */
    assert_int_equal(tandem_wait(n.x.s, ticket, 0, NULL), TANDEM_ERROR_BUSY);
    tandem_cancel(n.x.s, ticket);
    assert_int_equal(ended(&n.x, ticket, PATIENCE).state, TANDEM_JOB_CANCELLED);
    set_rows(&n, 16);
    run_again(&n, 2);
    assert_int_equal(logged_worker(log_path), worker);
    close_side(&n.x);
    close(ready[0]);
    close(ready[1]);
    end_with_models();
}

/* Runs while the worker is killed again and again, at random moments: each is DONE or LOST, and so is each instance. */
static void test_random_deaths(void **state)
{
    uint64_t dice = 99;
    static net n;

    (void)state;
    begin_with_models(long_text, "");
    open_long(&n, socket_path, 512);
    for (int death = 0; death < 5; death++) {
        float sum = 0;
        bool lost = false;
        const pid_t worker = logged_worker(log_path);
        uint64_t until;

        dice = dice * 6364136223846793005u + 1442695040888963407u;
        until = td_now_ns() + (dice >> 40) % 30 * MS;
        while (!lost) {
            tandem_job job = new_run(&n);
            tandem_job_report report = {.struct_bytes = sizeof report};
            tandem_ticket ticket;
            tandem_status status;

            if (td_now_ns() > until)
                kill(worker, SIGKILL);
            job.signal = (tandem_point){n.x.ours, n.x.value + 1};
            status = tandem_submit(n.x.s, &job, &ticket);
            lost = status == TANDEM_ERROR_LOST;
            if (lost)
                break;
            must(&n, status);
            n.x.value++;
            assert_int_equal(tandem_wait(n.x.s, ticket, PATIENCE, &report), TANDEM_OK);
            assert_int_equal(tandem_point_wait(n.x.s, (tandem_point){n.x.ours, n.x.value}, SOON), TANDEM_OK);
            lost = report.status == TANDEM_ERROR_LOST;
            if (!lost) {
                assert_int_equal(report.state, TANDEM_JOB_DONE);
                check_sum(&n, sum += 1);
            }
        }
        assert_int_equal(tandem_instance_destroy(n.x.s, n.instance), TANDEM_OK);
        make_again(&n);
        set_rows(&n, 512);
    }
    close_side(&n.x);
    end_with_models();
}

/* --- What an instance keeps, copied --- */

enum { KEPT_ROWS = 400, KEPT = KEPT_ROWS * 1024 /* more than goes with one request; so are */, PIECES = 500 };

/* Adds x to what it keeps, which y is then. */
static const char keeps_text[] =
    "{\"version\": 1, \"numbers\": {\"rows\": 400}, \"tensors\": {"
    "\"x\": {\"role\": \"input\", \"dtype\": \"F32\", \"shape\": [\"rows\", 1024]},"
    "\"first\": {\"role\": \"state\", \"dtype\": \"F32\", \"shape\": [1, 8]},"
    "\"total\": {\"role\": \"state\", \"dtype\": \"F32\", \"shape\": [400, 1024]},"
    "\"y\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [\"rows\", 1024]}}, \"nodes\": ["
    "{\"operation\": \"binary\", \"batch\": 1, \"heads\": 1, \"rows\": 1, \"channels\": 8,"
    " \"views\": {\"a\": \"first\", \"b\": \"first\", \"y\": \"first\"}},"
    "{\"operation\": \"binary\", \"batch\": 1, \"heads\": 1, \"rows\": \"rows\", \"channels\": 1024,"
    " \"views\": {\"a\": \"total\", \"b\": \"x\", \"y\": \"total\"}},"
    "{\"operation\": \"binary\", \"batch\": 1, \"heads\": 1, \"rows\": \"rows\", \"channels\": 1024,"
    " \"views\": {\"a\": \"total\", \"b\": \"x\", \"y\": \"y\"}}]}";

typedef struct keeper {
    side x;
    tandem_model model;
    tandem_instance instance;
    tandem_mem mem;
    float *in, *out;
} keeper;

static tandem_job keepers_run(const keeper *k)
{
    static const uint32_t rows = KEPT_ROWS;
    static tandem_view views[2];

    for (uint64_t i = 0; i < 2; i++)
        views[i] = (tandem_view){.mem = k->mem, .offset_bytes = i * KEPT * sizeof(float), .dtype = TANDEM_DTYPE_F32};
    return (tandem_job){.struct_bytes = sizeof(tandem_job),
                        .operation = TANDEM_OPERATION_RUN,
                        .op.run = {.instance = k->instance,
                                   .bindings = views,
                                   .binding_count = 2,
                                   .numbers = &rows,
                                   .number_count = 1}};
}

static void open_keeper(keeper *k, const char *socket)
{
    const tandem_instance_desc desc = {.struct_bytes = sizeof desc};
    const uint32_t rows = KEPT_ROWS;
    void *host;

    memset(k, 0, sizeof *k);
    open_side(&k->x, socket, NULL, 0);
    session_must(k->x.s, tandem_model_load(k->x.s, model_path, &k->model));
    session_must(k->x.s, tandem_model_instance(k->x.s, k->model, &desc, &k->instance));
    session_must(k->x.s, tandem_model_prepare(k->x.s, k->instance, &rows, 1));
    k->mem = new_mem(&k->x, 2 * KEPT * sizeof(float), &host);
    k->in = host;
    k->out = k->in + KEPT;
    memset(k->in, 0, KEPT * sizeof(float));
}

/* Pieces of some lengths, the last one first; together all of it. */
static void describe_pieces(float *from, td_state_copy copies[PIECES])
{
    const uint64_t rest = (uint64_t)(KEPT - (PIECES - 1) * 8) * sizeof(float); /* of one piece */

    for (uint64_t i = 0; i < PIECES; i++)
        copies[i] = (td_state_copy){.tensor = "total",
                                    .offset = i ? rest + (PIECES - 1 - i) * 8 * sizeof(float) : 0,
                                    .bytes = i ? 8 * sizeof(float) : rest};
    for (int i = 0; i < PIECES; i++)
        copies[i].host = (char *)from + copies[i].offset;
}

static void must_copy(keeper *k, td_state_copy *copies, uint32_t count, bool to_instance)
{
    char why[TD_WHY_BYTES] = "";
    const tandem_status status = td_instance_copy(k->x.s, k->instance, copies, count, to_instance, why);

    if (status != TANDEM_OK)
        fail_msg("%d: %s", status, why);
}

static void must_not_copy(keeper *k, td_state_copy one, tandem_status status, const char *words)
{
    for (int to_instance = 0; to_instance < 2; to_instance++) {
        char why[TD_WHY_BYTES] = "";

        assert_int_equal(td_instance_copy(k->x.s, k->instance, &one, 1, to_instance, why), status);
        if (!strstr(why, words))
            fail_msg("'%s' does not say '%s'", why, words);
    }
}

/* Here and there: what is written runs go on from, and is what is read; not while a run is there, nor once it is gone. */
static void test_states(void **state)
{
    float *kept = malloc(KEPT * sizeof *kept), *read = malloc(KEPT * sizeof *read);
    static td_state_copy copies[PIECES];
    static keeper k;

    (void)state;
    assert_true(kept && read);
    for (int i = 0; i < KEPT; i++)
        kept[i] = (float)(i % 65521);
    begin_with_models(keeps_text, "");
    for (int there = 0; there < 2; there++) {
        open_keeper(&k, there ? socket_path : NULL);
        assert_null(td_instance_no_copies(k.x.s));
        describe_pieces(kept, copies);
        must_copy(&k, copies, PIECES, true);
        tandem_job job = keepers_run(&k);
        run(&k.x, &job);
        assert_memory_equal(k.out, kept, KEPT * sizeof *kept);
        memset(read, 0xff, KEPT * sizeof *read);
        describe_pieces(read, copies);
        must_copy(&k, copies, PIECES, false);
        assert_memory_equal(read, kept, KEPT * sizeof *kept);
        must_copy(&k, copies, 0, false);
        const td_state_copy right = {.tensor = "total", .bytes = 64, .host = read};
        const td_state_copy input = {.tensor = "x", .bytes = 4, .host = read},
                            more = {.tensor = "first", .bytes = 33, .host = read},
                            behind = {.tensor = "first", .offset = UINT64_MAX, .bytes = 1, .host = read};
        must_not_copy(&k, input, TANDEM_ERROR_ARG, "x has no bytes 0 to 4");
        must_not_copy(&k, more, TANDEM_ERROR_ARG, "first has no bytes 0 to 33");
        must_not_copy(&k, behind, TANDEM_ERROR_ARG, "that are kept");
        if (there) {
            const tandem_timeline engines = new_timeline(&k.x, TANDEM_SIGNALLER_ENGINE);

            job = keepers_run(&k);
            job.wait = (tandem_point){engines, 1};
            const tandem_ticket ticket = submit(&k.x, &job);
            assert_int_equal(tandem_timeline_signal(k.x.s, engines, 1), TANDEM_OK);
            assert_int_equal(ended(&k.x, ticket, PATIENCE).state, TANDEM_JOB_DONE);
            must_copy(&k, &(td_state_copy){.tensor = "total", .bytes = 64, .host = read}, 1, false);
            const pid_t worker = logged_worker(log_path);
            assert_int_equal(kill(worker, SIGKILL), 0);
            must_not_copy(&k, right, TANDEM_ERROR_LOST, "went with");
            session_must(k.x.s, tandem_instance_destroy(k.x.s, k.instance));
            must_not_copy(&k, right, TANDEM_ERROR_ARG, "was destroyed");
        }
        close_side(&k.x);
    }
    end_with_models();
    free(kept);
    free(read);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_same_networks),          cmocka_unit_test(test_uniforms),      cmocka_unit_test(test_refused_runs),
    cmocka_unit_test(test_same_are_prepared), cmocka_unit_test(test_forgotten_there),
    cmocka_unit_test(test_limits),        cmocka_unit_test(test_quota),         cmocka_unit_test(test_runs_given_up),
    cmocka_unit_test(test_worker_killed), cmocka_unit_test(test_daemon_killed), cmocka_unit_test(test_client_killed),
    cmocka_unit_test(test_killed_behind),
    cmocka_unit_test(test_random_deaths), cmocka_unit_test(test_background_run),
    cmocka_unit_test(test_states),
};
const test_cases remote_networks_cases = TEST_CASES(cases);
