/* What clients of tandemd share: quotas, models, time on the device, and the drafts that jobs are cut with.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/model/safetensors.h"
#include "tests/daemon_client.h"

static void quotas_hold(void **state)
{
    char why[300];
    client greedy, late, third;
    uint64_t first;
    int fd;

    (void)state;
    start_daemon("clients = 2\nmems = 3\nmem_bytes = 64K\nclient_bytes=96K\n\n  total_bytes = 128K\n");
    assert_int_equal(td_slab_make("tandem-test-slab", 65536, false, &fd, why, sizeof why), TANDEM_OK);
    client_open(&greedy, "greedy");
    client_open(&late, "late");
    assert_int_equal(greedy.welcome.mem_bytes, 65536);
    assert_int_equal(greedy.welcome.quota_bytes, 98304);
    first = client_mem(&greedy, fd, 65536, 65536);
    assert_true(first != 0);
    assert_int_equal(client_mem(&greedy, fd, 65536, 65536), 0);
    assert_int_equal(greedy.event.error.status, TANDEM_ERROR_NOMEM);
    assert_non_null(strstr(greedy.event.error.text, "98304"));
    assert_true(client_mem(&greedy, fd, 32768, 65536) != 0);
    assert_int_equal(client_mem(&late, fd, 65536, 65536), 0);
    assert_int_equal(late.event.error.status, TANDEM_ERROR_NOMEM);
    assert_non_null(strstr(late.event.error.text, "98304 by 'greedy' (process "));
    assert_int_equal(client_object(&greedy, TD_WIRE_MEM_DESTROY, first), TANDEM_OK);
    for (int i = 0; i < 3; i++)
        assert_true(client_mem(&late, fd, 4096, 65536) != 0);
    assert_int_equal(client_mem(&late, fd, 4096, 65536), 0);
    assert_non_null(strstr(late.event.error.text, "all 3 mems"));
    /* full: come back later */
    assert_int_equal(client_connect(&third), TANDEM_OK);
    {
        td_wire_message m = hello(TD_WIRE_SHARE_NONE, "third");

        assert_int_equal(client_hello(&third, &m), TANDEM_ERROR_LOST);
        assert_int_equal(third.byes, 1);
        assert_int_equal(third.event.bye.reason, TD_WIRE_BYE_FULL);
    }
    client_close(&third);
    client_close(&greedy);
    client_close(&late);
    close(fd);
}

/* What a client's jobs need besides its mems. */
static uint64_t scratch_of(const shape *of)
{
    uint64_t bytes;
    client c;
    task t;

    task_make(&t, of, 3);
    client_open(&c, "a measure");
    task_share(&t, &c);
    assert_int_equal(run_job(&c, &t).state, TANDEM_JOB_DONE);
    bytes = row_of(&c, "a measure").mem_bytes - t.bytes;
    client_close(&c);
    task_free(&t);
    return bytes;
}

/* The worker's memory for a client's jobs is the client's, too. */
static void quotas_count_scratch(void **state)
{
    const shape long_one = {1, 1024, 32768, 64, TANDEM_PRECISION_8B, 0}; /* so few rows of one head are not cut */
    const shape one_head = {1, 130, 300, 64, TANDEM_PRECISION_8B, 0};
    uint64_t scratch, long_scratch;
    client first, second;
    task t, long_t;
    char config[200];
    tandem_job job;

    (void)state;
    start_daemon("");
    scratch = scratch_of(&one_head);
    long_scratch = scratch_of(&long_one);
    assert_true(scratch > 0 && long_scratch > scratch);
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
    task_make(&t, &one_head, 4);
    task_make(&long_t, &long_one, 5);

    /* One's own. */
    snprintf(config, sizeof config, "client_bytes = %" PRIu64 "\n", t.bytes + scratch - 1);
    start_daemon(config);
    client_open(&first, "first");
    task_share(&t, &first);
    clear_output(&t);
    assert_int_equal(run_job(&first, &t).status, TANDEM_ERROR_NOMEM);
    assert_int_equal(client_object(&first, TD_WIRE_PING, 0), TANDEM_OK);
    assert_int_equal(first.job_errors, 1);
    assert_true(is_untouched(&t));
    assert_int_equal(row_of(&first, "first").mem_bytes, t.bytes);
    snprintf(config, sizeof config, "backend = cpu\nclient_bytes = %" PRIu64 "\n", t.bytes + scratch);
    write_config(config);
    kill(daemon_pid, SIGHUP);
    await_log("was read again");
    assert_int_equal(run_job(&first, &t).state, TANDEM_JOB_DONE);
    check_output(&t);
    assert_int_equal(row_of(&first, "first").mem_bytes, t.bytes + scratch);
    assert_int_equal(client_mem(&first, t.fd, 4096, t.bytes), 0);
    assert_int_equal(first.event.error.status, TANDEM_ERROR_NOMEM);
    assert_non_null(strstr(first.event.error.text, "scratch of your jobs"));
    client_close(&first);
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);

    /* That of all: what an idle client's jobs left behind makes room, what another's job uses does not. */
    snprintf(config, sizeof config, "total_bytes = %" PRIu64 "\n", t.bytes + long_t.bytes + long_scratch);
    start_daemon(config);
    client_open(&first, "first");
    client_open_as(&second, "second", TANDEM_CLASS_BACKGROUND); /* whose jobs are in another session */
    task_share(&t, &second);
    task_share(&long_t, &first);
    assert_int_equal(run_job(&first, &long_t).state, TANDEM_JOB_DONE);
    assert_int_equal(row_of(&second, "first").mem_bytes, long_t.bytes + long_scratch);
    assert_int_equal(run_job(&second, &t).state, TANDEM_JOB_DONE);
    check_output(&t);
    assert_int_equal(row_of(&second, "first").mem_bytes, long_t.bytes);
    assert_int_equal(row_of(&second, "second").mem_bytes, t.bytes + scratch);
    job = job_of(&long_t);
    client_job(&first, &job);
    while (row_of(&second, "first").mem_bytes == long_t.bytes)
        sleep_ms(1);
    assert_int_equal(run_job(&second, &t).status, TANDEM_ERROR_NOMEM);
    assert_int_equal(client_object(&second, TD_WIRE_PING, 0), TANDEM_OK);
    assert_int_equal(second.job_errors, 1);
    client_report(&first, 2, PATIENCE);
    assert_int_equal(run_job(&second, &t).state, TANDEM_JOB_DONE);
    client_close(&second);
    while (row_of(&first, "second").session) /* and its scratch with it */
        sleep_ms(1);
    assert_int_equal(run_job(&first, &long_t).state, TANDEM_JOB_DONE);
    client_close(&first);
    task_free(&t);
    task_free(&long_t);
}

/* A model's tensors as K and V, shared by two clients; and what lies outside of the folders stays there. */
static void models_are_shared(void **state)
{
    char path[200], config[400], outside[200], why[300] = "";
    client c[2];
    uint64_t model[2], other;
    td_wire_message m, answer;
    td_safetensors_item item = {.name = "k", .dtype = "F32", .dimensions = 3, .shape = {2, 96, 32}};
    task t;
    pid_t worker;

    (void)state;
    task_make(&t, &small, 21);
    snprintf(path, sizeof path, "%s/models", folder);
    assert_true(!mkdir(path, 0700) || errno == EEXIST);
    snprintf(path, sizeof path, "%s/models/npc.safetensors", folder);
    snprintf(outside, sizeof outside, "%s/secret.safetensors", folder);
    item.data = (char *)t.data + t.q_bytes;
    assert_int_equal(td_safetensors_write(path, &item, 1, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_safetensors_write(outside, &item, 1, why, sizeof why), TANDEM_OK);
    snprintf(path, sizeof path, "%s/models/link", folder);
    unlink(path);
    assert_int_equal(symlink(outside, path), 0);
    snprintf(config, sizeof config, "model_dir = %s/models/\nmodel_dir = %s/no models\n", folder, folder);
    start_daemon(config);
    for (int i = 0; i < 2; i++)
        client_open_as(&c[i], i ? "second" : "first", i ? TANDEM_CLASS_BACKGROUND : TANDEM_CLASS_FRAME);
    assert_int_equal(load_model(&c[0], "npc.safetensors", &model[0]), TANDEM_OK);
    snprintf(path, sizeof path, "%s/models/npc.safetensors", folder);
    assert_int_equal(load_model(&c[1], path, &model[1]), TANDEM_OK);
    assert_int_equal(load_model(&c[0], "link", &other), TANDEM_ERROR_IO);
    assert_non_null(strstr(c[0].event.error.text, "leads out"));
    assert_int_equal(load_model(&c[0], outside, &other), TANDEM_ERROR_IO);
    assert_int_equal(load_model(&c[0], "absent", &other), TANDEM_ERROR_IO);
    assert_int_equal(load_model(&c[0], "/etc/passwd", &other), TANDEM_ERROR_IO);
    worker = await_worker(0);
    for (int round = 0; round < 2; round++) { /* again with a new worker, which has loaded them by itself */
        for (int i = 0; i < 2; i++) {
            tandem_job job;

            m = td_wire_new(TD_WIRE_MODEL_TENSOR, c[i].rules.next_serial);
            m.model_tensor.model = model[i];
            td_wire_text(m.model_tensor.name, sizeof m.model_tensor.name, "k");
            assert_int_equal(client_ask(&c[i], &m, NULL, &answer, NULL), TANDEM_OK);
            assert_int_equal(answer.header.type, TD_WIRE_TENSOR);
            assert_int_equal(answer.tensor.shape[2], 96);
            if (!round)
                task_share(&t, &c[i]);
            else
                t.mem = client_mem(&c[i], t.fd, t.bytes, t.bytes);
            clear_output(&t);
            job = job_of(&t);
            job.op.attention.k = answer.tensor.view;
            job.op.attention.k.stride_batch = 0;
            assert_int_equal(client_report(&c[i], client_job(&c[i], &job), PATIENCE).state, TANDEM_JOB_DONE);
            check_output(&t);
            job.op.attention.o = answer.tensor.view; /* weights are not written */
            job.op.attention.k = job.op.attention.v;
            assert_int_equal(client_report(&c[i], client_job(&c[i], &job), PATIENCE).status, TANDEM_ERROR_ARG);
        }
        if (!round) {
            kill(worker, SIGKILL);
            await_worker(worker);
        }
    }
    m = td_wire_new(TD_WIRE_MODEL_TENSOR, c[0].rules.next_serial);
    m.model_tensor.model = model[0];
    td_wire_text(m.model_tensor.name, sizeof m.model_tensor.name, "absent");
    assert_int_equal(client_ask(&c[0], &m, NULL, &answer, NULL), TANDEM_OK);
    assert_int_equal(answer.error.status, TANDEM_ERROR_ARG);
    assert_int_equal(client_object(&c[0], TD_WIRE_MODEL_DESTROY, model[0]), TANDEM_OK);
    m = td_wire_new(TD_WIRE_STATS, c[0].rules.next_serial);
    assert_int_equal(client_ask(&c[0], &m, NULL, &answer, NULL), TANDEM_OK);
    for (int i = 0; i < 2; i++) { /* two mems each; and one has the model no longer */
        const td_wire_row *row = &answer.stats_reply.rows[i];

        assert_true(row->mem_bytes >= 2 * t.bytes); /* and scratch */
        assert_int_equal(row->model_bytes != 0, !strcmp(row->name, "second"));
    }
    assert_int_equal(client_object(&c[0], TD_WIRE_MODEL_DESTROY, model[0]), TANDEM_ERROR_ARG);
    /* A file that is broken by the time that a new worker reads it: nobody has it any more, and nobody waits for it. */
    assert_int_equal(load_model(&c[0], "npc.safetensors", &model[0]), TANDEM_OK);
    assert_int_equal(truncate(path, 10), 0);
    worker = await_worker(0);
    kill(worker, SIGKILL);
    await_worker(worker);
    m = td_wire_new(TD_WIRE_MODEL_TENSOR, c[0].rules.next_serial);
    m.model_tensor.model = model[0];
    td_wire_text(m.model_tensor.name, sizeof m.model_tensor.name, "k");
    assert_int_equal(client_ask(&c[0], &m, NULL, &answer, NULL), TANDEM_OK);
    assert_non_null(strstr(answer.error.text, "could not load"));
    assert_int_not_equal(load_model(&c[1], path, &other), TANDEM_OK);
    item.data = (char *)t.data + t.q_bytes;
    assert_int_equal(td_safetensors_write(path, &item, 1, why, sizeof why), TANDEM_OK);
    assert_int_equal(load_model(&c[1], path, &other), TANDEM_OK);
    assert_int_equal(row_of(&c[1], "first").model_bytes, 0);
    client_close(&c[0]);
    client_close(&c[1]);
    task_free(&t);
}

static tandem_view tensor_of(client *c, uint64_t model)
{
    td_wire_message m = td_wire_new(TD_WIRE_MODEL_TENSOR, c->rules.next_serial), answer;

    m.model_tensor.model = model;
    td_wire_text(m.model_tensor.name, sizeof m.model_tensor.name, "k");
    assert_int_equal(client_ask(c, &m, NULL, &answer, NULL), TANDEM_OK);
    assert_int_equal(answer.header.type, TD_WIRE_TENSOR);
    return answer.tensor.view;
}

/* There is room for one of two models: which no job reads makes room for the other, and comes back when one does. */
static void idle_models_make_room(void **state)
{
    td_safetensors_item item = {.name = "k", .dtype = "F32", .dimensions = 3, .shape = {2, 96, 32}};
    static const char *const names[3] = {"one.safetensors", "two.safetensors", "large.safetensors"};
    char path[200], config[300], why[300] = "";
    uint64_t models[2], other;
    tandem_view views[2];
    client c;
    task t[2];

    (void)state;
    snprintf(path, sizeof path, "%s/models", folder);
    assert_true(!mkdir(path, 0700) || errno == EEXIST);
    for (int i = 0; i < 3; i++) {
        task large_one;

        task_make(i < 2 ? &t[i] : &large_one, i < 2 ? &small : &large, 60 + (uint32_t)i);
        item.data = i < 2 ? (char *)t[i].data + t[i].q_bytes : (char *)large_one.data;
        item.shape[1] = i < 2 ? 96 : 512;
        snprintf(path, sizeof path, "%s/models/%s", folder, names[i]);
        assert_int_equal(td_safetensors_write(path, &item, 1, why, sizeof why), TANDEM_OK);
        if (i == 2)
            task_free(&large_one);
    }
    snprintf(config, sizeof config, "model_dir = %s/models\nmodel_bytes = 40K\n", folder);
    start_daemon(config);
    client_open_as(&c, "two models", TANDEM_CLASS_BACKGROUND);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(load_model(&c, names[i], &models[i]), TANDEM_OK);
        views[i] = tensor_of(&c, models[i]);
        task_share(&t[i], &c);
    }
    assert_int_equal(load_model(&c, names[2], &other), TANDEM_ERROR_NOMEM);
    assert_non_null(strstr(c.event.error.text, "yourself"));
    for (int round = 0; round < 4; round++) {
        tandem_job job = job_of(&t[round % 2]);

        clear_output(&t[round % 2]);
        job.op.attention.k = views[round % 2];
        job.op.attention.k.stride_batch = 0;
        assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).state, TANDEM_JOB_DONE);
        check_output(&t[round % 2]);
    }
    assert_true(has_logged(log_path, "makes room"));
    client_close(&c);
    task_free(&t[0]);
    task_free(&t[1]);
}

/* Where the machine itself has no memory left, too. */
static void idle_models_make_room_for_jobs(void **state)
{
    const uint64_t rows = 65536, model_rows = 3 * rows;
    td_safetensors_item item = {.name = "k", .dtype = "F32", .dimensions = 3, .shape = {1, model_rows, 64}};
    const shape of = {1, 64, (uint32_t)rows, 64, TANDEM_PRECISION_8B, 0};
    char path[200], config[300], why[300] = "";
    struct rlimit limit = {0};
    uint64_t model;
    tandem_job job;
    pid_t worker;
    client c;
    task t;

    (void)state;
    if (getenv("TANDEM_SANITIZED")) /* which keeps what is freed */
        skip();
    snprintf(path, sizeof path, "%s/models", folder);
    assert_true(!mkdir(path, 0700) || errno == EEXIST);
    snprintf(path, sizeof path, "%s/models/idle.safetensors", folder);
    item.data = calloc(model_rows * 64, 4);
    assert_non_null(item.data);
    assert_int_equal(td_safetensors_write(path, &item, 1, why, sizeof why), TANDEM_OK);
    free((void *)(uintptr_t)item.data);
    snprintf(config, sizeof config, "model_dir = %s/models\n", folder);
    start_daemon(config);
    client_open(&c, "with a model");
    assert_int_equal(load_model(&c, "idle.safetensors", &model), TANDEM_OK);
    task_make(&t, &of, 6);
    task_share(&t, &c);
    job = job_of(&t); /* heads of one row each, that all read the same keys */
    job.op.attention.heads = job.op.attention.kv_heads = 3;
    job.op.attention.q_len = 1;
    job.op.attention.q.stride_head = job.op.attention.o.stride_head = 64;
    job.op.attention.k.stride_head = job.op.attention.v.stride_head = 0;
    worker = await_worker(0);
    limit.rlim_cur = limit.rlim_max = ((uint64_t)status_of(worker, "VmData") + 8192) * 1024;
    assert_int_equal(prlimit(worker, RLIMIT_DATA, &limit, NULL), 0);
    assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).state, TANDEM_JOB_DONE);
    assert_true(has_logged(log_path, "makes room"));
    assert_int_equal(row_of(&c, "with a model").model_bytes, 0);
    /* And with none left. */
    job.op.attention.heads = job.op.attention.kv_heads = 64;
    assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).status, TANDEM_ERROR_NOMEM);
    assert_int_equal(client_object(&c, TD_WIRE_PING, 0), TANDEM_OK);
    assert_int_equal(c.job_errors, 1);
    client_close(&c);
    task_free(&t);
    unlink(path);
}

enum { FAIR_JOBS = 60 };

/* How long a client's jobs took that had ended by then, and the longest of both clients'. */
static uint64_t sum_up(const td_wire_report r[FAIR_JOBS], uint64_t until_ns, uint64_t *longest)
{
    uint64_t sum = 0;

    for (int k = 0; k < FAIR_JOBS; k++) {
        const uint64_t ns = r[k].end_ns - r[k].begin_ns;

        if (r[k].end_ns > until_ns)
            continue;
        sum += ns;
        *longest = ns > *longest ? ns : *longest;
    }
    return sum;
}

/* Two that always have work get the same time on the device, however long their jobs are: who has had more than
 * share_window_us more gets no further job. Up to two had been given out by then, as the daemon knows what a job takes
 * once it has ended. All of it is put before any begins, by one page for both, so that it does not matter when this process
 * runs; nor how long a busy machine makes a job. */
static void shares_are_fair(void **state)
{
    const shape shapes[2] = {{1, 128, 1024, 64, TANDEM_PRECISION_F16, 0},
                             {1, 512, 1024, 64, TANDEM_PRECISION_F16, 0}}; /* which is not cut, however slow it is */
    td_wire_report r[2][FAIR_JOBS];
    char why[300] = "";
    int page = -1;
    td_point in;
    client c[2];
    task t[2];

    (void)state;
    start_daemon("share_window_us = 1000\n");
    assert_int_equal(td_point_make(&in, 0, &page, why, sizeof why), TANDEM_OK);
    for (int i = 0; i < 2; i++) {
        tandem_job job;

        client_open(&c[i], i ? "large" : "small");
        task_make(&t[i], &shapes[i], 30);
        task_share(&t[i], &c[i]);
        job = job_of(&t[i]);
        job.wait = (tandem_point){client_page(&c[i], page, false, 0), 1};
        for (int k = 0; k < FAIR_JOBS; k++)
            client_job(&c[i], &job);
    }
    for (int i = 0; i < 2; i++) /* they have been taken */
        assert_int_equal(client_object(&c[i], TD_WIRE_PING, 0), TANDEM_OK);
    td_point_raise(&in, 1);
    for (int i = 0; i < 2; i++)
        for (uint64_t k = 0; k < FAIR_JOBS; k++) {
            r[i][k] = client_report(&c[i], k + 1, PATIENCE);
            assert_int_equal(r[i][k].state, TANDEM_JOB_DONE);
        }
    for (int k = 0; k < FAIR_JOBS && r[0][k].end_ns <= r[1][FAIR_JOBS - 1].end_ns; k++) { /* while both have work */
        uint64_t longest = 0;
        const uint64_t small_ns = sum_up(r[0], r[0][k].end_ns, &longest), large_ns = sum_up(r[1], r[0][k].end_ns, &longest);
        const uint64_t apart = small_ns > large_ns ? small_ns - large_ns : large_ns - small_ns;

        if (apart > MS + 2 * longest)
            fail_msg("after %d small jobs: %" PRIu64 " ns of small jobs, %" PRIu64 " of large ones, the longest %" PRIu64,
                     k + 1, small_ns, large_ns, longest);
    }
    for (int i = 0; i < 2; i++) {
        client_close(&c[i]);
        task_free(&t[i]);
    }
    td_point_close(&in);
    td_fd_close(&page);
}

/* A frame's job that takes long does not hold up others' frames: it is cut, to the same bits. All is put before any begins,
 * as above. */
static void let_others_in(const shape *long_one)
{
    enum { JOBS = 10 };
    const shape shapes[2] = {*long_one, {2, 64, 96, 32, TANDEM_PRECISION_F16, 0}};
    td_wire_report slow, quick;
    char why[300] = "";
    int page = -1;
    td_point in;
    client c[2];
    task t[2];

    start_daemon("threads = 1\n");
    assert_int_equal(td_point_make(&in, 0, &page, why, sizeof why), TANDEM_OK);
    for (int i = 0; i < 2; i++) {
        tandem_job job;

        client_open(&c[i], i ? "quick" : "slow");
        task_make(&t[i], &shapes[i], 33);
        task_share(&t[i], &c[i]);
        clear_output(&t[i]);
        job = job_of(&t[i]);
        job.wait = (tandem_point){client_page(&c[i], page, false, 0), 1};
        for (int k = 0; k < (i ? JOBS : 1); k++)
            client_job(&c[i], &job);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(client_object(&c[i], TD_WIRE_PING, 0), TANDEM_OK);
    td_point_raise(&in, 1);
    slow = client_report(&c[0], 1, PATIENCE);
    quick = client_report(&c[1], JOBS, PATIENCE);
    assert_int_equal(slow.state, TANDEM_JOB_DONE);
    assert_int_equal(quick.state, TANDEM_JOB_DONE);
    assert_true(slow.begin_ns < quick.begin_ns && quick.end_ns < slow.end_ns);
    for (int i = 0; i < 2; i++) {
        check_output(&t[i]);
        client_close(&c[i]);
        task_free(&t[i]);
    }
    td_point_close(&in);
    td_fd_close(&page);
}

static void long_jobs_let_others_in(void **state)
{
    (void)state;
    let_others_in(&(shape){8, 2048, 1280, 64, TANDEM_PRECISION_F16, 0});
}

static void a_long_causal_head_lets_others_in(void **state)
{
    (void)state;
    let_others_in(&(shape){1, 7000, 7000, 64, TANDEM_PRECISION_8B, 1});
}

static void few_keys_for_many_rows_let_others_in(void **state)
{
    (void)state;
    let_others_in(&(shape){1, 400000, 64, 32, TANDEM_PRECISION_F16, 0});
}

static void rows_without_keys_let_others_in(void **state)
{
    (void)state;
    let_others_in(&(shape){1, 400000, 64, 32, TANDEM_PRECISION_8B, 1});
}

/* Drafts: what pieces of a job with a deadline write, until all of them have. */

/* Of the background one job at a time is computed: another's is done in between only where the long one is cut. */
static void a_deadline_lets_others_in(void **state)
{
    static const shape shapes[] = {{1, 7000, 7000, 64, TANDEM_PRECISION_8B, 1}, {8, 2048, 1280, 64, TANDEM_PRECISION_F16, 0}};
    enum { TRIES = 100 };
    client c[2];
    task t[2];

    (void)state;
    start_daemon("threads = 1\n");
    for (int i = 0; i < 2; i++)
        client_open_as(&c[i], i ? "quick" : "slow", TANDEM_CLASS_BACKGROUND);
    task_make(&t[1], &small, 99);
    task_share(&t[1], &c[1]);
    for (int i = 0; i < 2; i++) {
        bool between = false;

        task_make(&t[0], &shapes[i], 98);
        task_share(&t[0], &c[0]);
        for (int try = 0; !between; try++) { /* it may come too late, but not always */
            const uint64_t begin = td_now_ns();
            tandem_job job = job_of(&t[0]);
            td_wire_report slow, quick;
            uint64_t ticket;

            assert_true(try < TRIES);
            clear_output(&t[0]);
            job.deadline_ns = 600000 * MS;
            ticket = client_job(&c[0], &job);
            while (client_report(&c[0], ticket, 0).state == TANDEM_JOB_PENDING && td_now_ns() - begin < PATIENCE)
                ;
            quick = run_job(&c[1], &t[1]);
            slow = client_report(&c[0], ticket, PATIENCE);
            assert_int_equal(slow.state, TANDEM_JOB_DONE);
            assert_int_equal(quick.state, TANDEM_JOB_DONE);
            between = slow.begin_ns < quick.begin_ns && quick.end_ns < slow.end_ns;
        }
        check_output(&t[0]);
        task_free(&t[0]);
    }
    client_close(&c[0]);
    client_close(&c[1]);
    task_free(&t[1]);
}

/* The same bits, those of lse too, as where such a job is not cut. */
static void a_draft_becomes_the_output(void **state)
{
    static const shape shapes[] = {{4, 2304, 512, 32, TANDEM_PRECISION_F16, 0}, {2, 3000, 1500, 64, TANDEM_PRECISION_4B, 1},
                                   {6, 200, 3000, 64, TANDEM_PRECISION_AUTO, 0}, {1, 4000, 300, 128, TANDEM_PRECISION_8B, 0}};
    client c[2];
    task t, lse;

    (void)state;
    start_daemon("threads = 2\n");
    for (int i = 0; i < 2; i++)
        client_open_as(&c[i], i ? "cut" : "whole", i ? TANDEM_CLASS_BACKGROUND : TANDEM_CLASS_FRAME);
    for (uint32_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const uint64_t lse_bytes = 4ull * shapes[i].heads * shapes[i].rows;
        void *outputs[2] = {NULL, NULL};

        task_make(&t, &shapes[i], 100 + i);
        task_make(&lse, &shapes[i], 0); /* has room for it, in place of its own output */
        for (int k = 0; k < 2; k++) {
            tandem_job job;
            td_wire_report r;

            task_share(&t, &c[k]);
            task_share(&lse, &c[k]);
            clear_output(&t);
            clear_output(&lse);
            job = job_of(&t);
            job.deadline_ns = 600000 * MS;
            job.op.attention.lse = (tandem_view){.mem = lse.mem,
                                                 .offset_bytes = lse.o_at,
                                                 .dtype = TANDEM_DTYPE_F32,
                                                 .stride_batch = (int64_t)lse_bytes / 4,
                                                 .stride_head = shapes[i].rows,
                                                 .stride_row = 1};
            r = client_report(&c[k], client_job(&c[k], &job), PATIENCE);
            assert_int_equal(r.state, TANDEM_JOB_DONE);
            assert_int_not_equal(r.precision, TANDEM_PRECISION_AUTO);
            outputs[k] = malloc(t.q_bytes + t.q_bytes);
            memcpy(outputs[k], (char *)t.data + t.o_at, t.q_bytes);
            memcpy((char *)outputs[k] + t.q_bytes, (char *)lse.data + lse.o_at, t.q_bytes); /* and what is behind it */
        }
        assert_memory_equal(outputs[0], outputs[1], 2 * t.q_bytes);
        free(outputs[0]);
        free(outputs[1]);
        task_free(&t);
        task_free(&lse);
    }
    client_close(&c[0]);
    client_close(&c[1]);
}

static uint64_t metric(int port, const char *name)
{
    const struct sockaddr_in web = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    const int request = socket(AF_INET, SOCK_STREAM, 0);
    static char page[60000];
    char line[80];
    const char *found;
    size_t have = 0;
    ssize_t got;

    assert_int_equal(connect(request, (const struct sockaddr *)&web, sizeof web), 0);
    assert_int_equal(send(request, "GET /metrics HTTP/1.0\r\n\r\n", 25, MSG_NOSIGNAL), 25);
    while (have < sizeof page - 1 && (got = recv(request, page + have, sizeof page - 1 - have, 0)) > 0)
        have += (size_t)got;
    close(request);
    page[have] = 0;
    snprintf(line, sizeof line, "\n%s ", name);
    found = strstr(page, line);
    assert_non_null(found);
    return strtoull(found + strlen(line), NULL, 10);
}

/* Shared memory of all clients, and their drafts. */
static void await_mem_bytes(int port, uint64_t wanted)
{
    const uint64_t begin = td_now_ns();

    while (metric(port, "tandemd_mem_bytes") != wanted) {
        assert_true(td_now_ns() - begin < PATIENCE);
        sleep_ms(20);
    }
}

typedef enum half { LATE, CANCELLED, GONE, HALVES } half;

/* False if the job was not seen to run, or was done nevertheless. */
static bool stop_half_way(half how, task *t, int port, uint64_t late_ns)
{
    static const char done[] = "tandemd_jobs_total{state=\"done\"}";
    td_wire_message cancel = td_wire_new(TD_WIRE_CANCEL, 0);
    const uint64_t begin = td_now_ns(), before = metric(port, done);
    uint64_t held, state = TANDEM_JOB_PENDING;
    tandem_job job;
    bool ran;
    client c;

    client_open_as(&c, "half", TANDEM_CLASS_BACKGROUND);
    task_share(t, &c);
    clear_output(t);
    job = job_of(t);
    job.deadline_ns = how == LATE ? late_ns : 600000 * MS;
    cancel.cancel.ticket = client_job(&c, &job);
    while (client_report(&c, cancel.cancel.ticket, 0).state == TANDEM_JOB_PENDING && td_now_ns() - begin < PATIENCE)
        ;
    held = metric(port, "tandemd_mem_bytes");
    ran = client_report(&c, cancel.cancel.ticket, 0).state == TANDEM_JOB_RUNNING;
    if (ran)
        assert_int_equal(held, t->bytes + td_align_up(t->q_bytes, 4096));
    if (how == CANCELLED)
        assert_int_equal(client_put(&c, &cancel), TANDEM_OK);
    if (how != GONE) {
        state = client_report(&c, cancel.cancel.ticket, PATIENCE).state;
        if (state != TANDEM_JOB_DONE)
            assert_true(is_untouched(t));
        await_mem_bytes(port, t->bytes);
    }
    client_close(&c);
    await_mem_bytes(port, 0);
    if (metric(port, done) != before)
        return false;
    assert_true(is_untouched(t));
    assert_int_equal(state, how == LATE        ? TANDEM_JOB_STALE
                            : how == CANCELLED ? TANDEM_JOB_CANCELLED
                                               : TANDEM_JOB_PENDING);
    return ran;
}

/* Late, given up, or of a client that goes: not a byte is written, and the draft is freed. */
static void half_a_draft_is_nothing(void **state)
{
    enum { TRIES = 8 };
    const int port = free_port();
    char config[60];
    task t;

    (void)state;
    snprintf(config, sizeof config, "threads = 2\nmetrics = %d\n", port);
    start_daemon(config);
    task_make(&t, &(shape){8, 4096, 8192, 64, TANDEM_PRECISION_F16, 0}, 110);
    for (half how = LATE; how < HALVES; how++)
        for (int try = 0; !stop_half_way(how, &t, port, 50 * MS << try); try++)
            assert_true(try < TRIES);
    task_free(&t);
}

/* It begins again where its worker dies while another's job is in between. */
static void a_lost_draft_is_written_again(void **state)
{
    const shape cannot_be_cut = {1, 1100, 32768, 64, TANDEM_PRECISION_F16, 0};
    enum { TRIES = 20 };
    bool again = false;
    client c[2];
    task t[2];

    (void)state;
    start_daemon("threads = 1\n");
    for (int i = 0; i < 2; i++) {
        client_open_as(&c[i], i ? "in between" : "cut", TANDEM_CLASS_BACKGROUND);
        task_make(&t[i], i ? &cannot_be_cut : &large, 120);
        task_share(&t[i], &c[i]);
    }
    for (int try = 0; !again; try++) {
        const pid_t worker = await_worker(0);
        uint64_t tickets[2];
        td_wire_report r;

        assert_true(try < TRIES); /* one of the two may be done too early, but not always */
        for (int i = 0; i < 2; i++) {
            const uint64_t begin = td_now_ns();
            tandem_job job = job_of(&t[i]);

            clear_output(&t[i]);
            job.deadline_ns = i ? 0 : 600000 * MS;
            tickets[i] = client_job(&c[i], &job);
            while (client_report(&c[i], tickets[i], 0).state == TANDEM_JOB_PENDING && td_now_ns() - begin < PATIENCE)
                ;
        }
        again = client_report(&c[0], tickets[0], 0).state == TANDEM_JOB_RUNNING;
        kill(worker, SIGKILL);
        again = client_report(&c[1], tickets[1], PATIENCE).status == TANDEM_ERROR_LOST && again;
        r = client_report(&c[0], tickets[0], PATIENCE);
        if (again)
            assert_int_equal(r.state, TANDEM_JOB_DONE); /* of the background one is with the worker: the other one */
        if (r.state == TANDEM_JOB_DONE)
            check_output(&t[0]);
        await_worker(worker);
    }
    for (int i = 0; i < 2; i++) {
        client_close(&c[i]);
        task_free(&t[i]);
    }
}

/* A draft is its client's, and where there is no room for one the job is not cut; an idle one makes room. */
static void drafts_count(void **state)
{
    const shape cut = {2, 3000, 512, 64, TANDEM_PRECISION_8B, 0}, long_one = {1, 1024, 32768, 64, TANDEM_PRECISION_8B, 0};
    uint64_t scratch;
    char config[60];
    client c;
    task t, long_t;

    (void)state;
    start_daemon("");
    scratch = scratch_of(&long_one);
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
    task_make(&t, &cut, 130);
    task_make(&long_t, &long_one, 131);
    snprintf(config, sizeof config, "client_bytes = %" PRIu64 "\n", t.bytes + long_t.bytes + scratch);
    start_daemon(config);
    client_open_as(&c, "all that it may have", TANDEM_CLASS_BACKGROUND);
    task_share(&t, &c);
    task_share(&long_t, &c);
    for (int i = 0; i < 4; i++) {
        const task *each = i % 2 ? &long_t : &t; /* which needs all the scratch that there may be */
        tandem_job job = job_of(each);

        clear_output(&t);
        job.deadline_ns = i % 2 ? 0 : 600000 * MS;
        assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).state, TANDEM_JOB_DONE);
        if (each == &t)
            check_output(&t);
    }
    client_close(&c);
    task_free(&t);
    task_free(&long_t);
}

/* A draft that no job needs now is in nobody's way: the memory beside it has all the room that there is without it. */
static void an_idle_draft_makes_room(void **state)
{
    const shape cut = {2, 12000, 64, 64, TANDEM_PRECISION_8B, 0};
    uint64_t limit, bytes;
    char config[60], why[200] = "";
    tandem_job job;
    client c;
    task t;
    int fd;

    (void)state;
    task_make(&t, &cut, 140);
    limit = 4 * t.bytes;
    snprintf(config, sizeof config, "client_bytes = %" PRIu64 "\n", limit);
    start_daemon(config);
    client_open_as(&c, "drafts", TANDEM_CLASS_BACKGROUND);
    task_share(&t, &c);
    job = job_of(&t);
    job.deadline_ns = 600000 * MS;
    assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).state, TANDEM_JOB_DONE);
    bytes = (limit - t.bytes - t.q_bytes / 2) / 4096 * 4096; /* the draft has q_bytes, pieces' scratch a fraction of that */
    assert_int_equal(td_slab_make("tandem-test-slab", bytes, false, &fd, why, sizeof why), TANDEM_OK);
    assert_true(client_mem(&c, fd, bytes, bytes) != 0);
    td_fd_close(&fd);
    client_close(&c);
    task_free(&t);
}

/* What goes on in the background is cut: the same bits, and frames go in between. */
static void the_background_gives_way(void **state)
{
    static const shape shapes[] = {
        {4, 2304, 512, 32, TANDEM_PRECISION_F16, 0},  {2, 2100, 700, 64, TANDEM_PRECISION_8B, 0},
        {1, 4000, 300, 128, TANDEM_PRECISION_4B, 0},  {6, 200, 1000, 64, TANDEM_PRECISION_AUTO, 0},
        {1, 4000, 4000, 32, TANDEM_PRECISION_8B, 1},  {2, 3000, 1500, 64, TANDEM_PRECISION_4B, 1},
        {1, 2500, 3500, 64, TANDEM_PRECISION_F16, 1}, {8, 2048, 2048, 64, TANDEM_PRECISION_F16, 0}};
    enum { SHAPES = sizeof shapes / sizeof *shapes, TRIES = 30 };
    td_wire_message m = hello(TD_WIRE_SHARE_HOST, "a language model");
    td_wire_report slow, quick;
    client background, frame;
    uint64_t ticket, begin;
    bool between = false;
    tandem_job job;
    task t, f;

    (void)state;
    start_daemon("threads = 2\n");
    m.hello.job_class = TANDEM_CLASS_BACKGROUND;
    assert_int_equal(client_connect(&background), TANDEM_OK);
    assert_int_equal(client_hello(&background, &m), TANDEM_OK);
    client_open(&frame, "a game");
    task_make(&f, &small, 80);
    task_share(&f, &frame);
    for (int i = 0; i < SHAPES || !between; i++) {
        assert_true(i < SHAPES + TRIES); /* on a busy machine it may begin after the frame, but not always */
        task_make(&t, &shapes[i < SHAPES ? i : SHAPES - 1], 81 + (uint32_t)i);
        task_share(&t, &background);
        clear_output(&t);
        clear_output(&f);
        job = job_of(&t);
        ticket = client_job(&background, &job);
        begin = td_now_ns();
        while (client_report(&background, ticket, 0).state == TANDEM_JOB_PENDING && td_now_ns() - begin < PATIENCE)
            ;
        job = job_of(&f);
        quick = client_report(&frame, client_job(&frame, &job), PATIENCE);
        slow = client_report(&background, ticket, PATIENCE);
        assert_int_equal(quick.state, TANDEM_JOB_DONE);
        assert_int_equal(slow.state, TANDEM_JOB_DONE);
        if (i + 1 >= SHAPES) /* the one that takes longest */
            between = slow.begin_ns < quick.begin_ns && quick.end_ns < slow.end_ns;
        check_output(&t);
        check_output(&f);
        task_free(&t);
    }
    /* Given up between two pieces. */
    task_make(&t, &shapes[SHAPES - 1], 90);
    task_share(&t, &background);
    job = job_of(&t);
    ticket = client_job(&background, &job);
    while (client_report(&background, ticket, 0).state == TANDEM_JOB_PENDING && td_now_ns() - begin < PATIENCE)
        ;
    m = td_wire_new(TD_WIRE_CANCEL, 0);
    m.cancel.ticket = ticket;
    assert_int_equal(client_put(&background, &m), TANDEM_OK);
    assert_int_equal(client_report(&background, ticket, PATIENCE).state, TANDEM_JOB_CANCELLED);
    task_free(&t);
    task_free(&f);
    client_close(&background);
    client_close(&frame);
}

/* What cannot be cut stands still instead: one head's 128 rows over many keys, with and without a deadline, around a frame
 * that the worker computes itself and one that takes it both threads. The same bits. */
static void frames_go_in_between_keys(void **state)
{
    const shape long_one = {1, 128, getenv("TANDEM_SANITIZED") ? 4096 : 32768, 64, TANDEM_PRECISION_8B, 0},
                brief = {2, 64, 96, 32, TANDEM_PRECISION_F16, 0}, longer = {4, 256, 256, 64, TANDEM_PRECISION_8B, 0};
    enum { TRIES = 300 };
    uint32_t between[2][2] = {{0}};
    client background, frame;
    task t, f[2];
    void *expected;

    (void)state;
    start_daemon("threads = 2\n");
    client_open_as(&background, "a language model", TANDEM_CLASS_BACKGROUND);
    client_open(&frame, "a game");
    task_make(&t, &long_one, 83);
    task_share(&t, &background);
    for (int i = 0; i < 2; i++) {
        task_make(&f[i], i ? &longer : &brief, 84);
        task_share(&f[i], &frame);
    }
    expected = in_process(&t, TANDEM_BACKEND_CPU);
    for (int try = 0; !between[0][0] || !between[0][1] || !between[1][0] || !between[1][1]; try++) {
        const int which = try % 2, late = try / 2 % 2;
        tandem_job job = job_of(&t);
        td_wire_report slow, quick;
        uint64_t ticket, begin;

        assert_true(try < TRIES); /* it may have begun late, but not always */
        clear_output(&t);
        clear_output(&f[which]);
        job.deadline_ns = late ? 60000 * MS : 0;
        ticket = client_job(&background, &job);
        begin = td_now_ns();
        while (client_report(&background, ticket, 0).state == TANDEM_JOB_PENDING && td_now_ns() - begin < PATIENCE)
            ;
        sleep_ms(1 + (unsigned)try / 4 % 8); /* on a machine that does other things too it begins later */
        job = job_of(&f[which]);
        quick = client_report(&frame, client_job(&frame, &job), PATIENCE);
        slow = client_report(&background, ticket, PATIENCE);
        assert_int_equal(quick.state, TANDEM_JOB_DONE);
        assert_int_equal(slow.state, TANDEM_JOB_DONE);
        between[which][late] += slow.begin_ns < quick.begin_ns && quick.end_ns < slow.end_ns;
        assert_memory_equal((char *)t.data + t.o_at, expected, t.q_bytes);
        check_output(&f[which]);
    }
    free(expected);
    client_close(&background);
    client_close(&frame);
    task_free(&t);
    task_free(&f[0]);
    task_free(&f[1]);
}

/* Of clients that have had as much, the one with the earliest deadline is next. */
static void earlier_deadlines_go_first(void **state)
{
    const uint64_t deadlines[3] = {0, 60000 * MS, 30000 * MS};
    uint64_t tickets[3], begins[3], begin;
    client busy, c[3];
    task large_task, t[3];
    tandem_job job;

    (void)state;
    start_daemon("share_window_us = 1000000\n");
    client_open(&busy, "busy");
    task_make(&large_task, &large, 70);
    task_share(&large_task, &busy);
    job = job_of(&large_task);
    job.deadline_ns = 600000 * MS; /* so that it is not cut */
    for (int i = 0; i < 3; i++) {
        client_open(&c[i], "one of three");
        task_make(&t[i], &small, 71);
        task_share(&t[i], &c[i]);
    }
    client_job(&busy, &job);
    client_job(&busy, &job); /* both places in the worker are taken */
    begin = td_now_ns();
    while (client_report(&busy, busy.last_ticket, 0).state == TANDEM_JOB_PENDING && td_now_ns() - begin < PATIENCE)
        ;
    for (int i = 0; i < 3; i++) {
        job = job_of(&t[i]);
        job.deadline_ns = deadlines[i];
        tickets[i] = client_job(&c[i], &job);
    }
    for (int i = 0; i < 3; i++) {
        const td_wire_report r = client_report(&c[i], tickets[i], PATIENCE);

        assert_int_equal(r.state, TANDEM_JOB_DONE);
        check_output(&t[i]);
        begins[i] = r.begin_ns;
    }
    assert_true(begins[2] < begins[1] && begins[1] < begins[0]);
    for (int i = 0; i < 3; i++) {
        client_close(&c[i]);
        task_free(&t[i]);
    }
    client_close(&busy);
    task_free(&large_task);
}

int main(void)
{
    const struct CMUnitTest own[] = {
        cmocka_unit_test_teardown(quotas_hold, tear_down_daemon),
        cmocka_unit_test_teardown(quotas_count_scratch, tear_down_daemon),
        cmocka_unit_test_teardown(models_are_shared, tear_down_daemon),
        cmocka_unit_test_teardown(idle_models_make_room, tear_down_daemon),
        cmocka_unit_test_teardown(idle_models_make_room_for_jobs, tear_down_daemon),
        cmocka_unit_test_teardown(shares_are_fair, tear_down_daemon),
        cmocka_unit_test_teardown(long_jobs_let_others_in, tear_down_daemon),
        cmocka_unit_test_teardown(a_long_causal_head_lets_others_in, tear_down_daemon),
        cmocka_unit_test_teardown(few_keys_for_many_rows_let_others_in, tear_down_daemon),
        cmocka_unit_test_teardown(rows_without_keys_let_others_in, tear_down_daemon),
        cmocka_unit_test_teardown(a_deadline_lets_others_in, tear_down_daemon),
        cmocka_unit_test_teardown(a_draft_becomes_the_output, tear_down_daemon),
        cmocka_unit_test_teardown(half_a_draft_is_nothing, tear_down_daemon),
        cmocka_unit_test_teardown(a_lost_draft_is_written_again, tear_down_daemon),
        cmocka_unit_test_teardown(drafts_count, tear_down_daemon),
        cmocka_unit_test_teardown(an_idle_draft_makes_room, tear_down_daemon),
        cmocka_unit_test_teardown(the_background_gives_way, tear_down_daemon),
        cmocka_unit_test_teardown(frames_go_in_between_keys, tear_down_daemon),
        cmocka_unit_test_teardown(earlier_deadlines_go_first, tear_down_daemon),
    };

    if (!begin_tests("tandemd"))
        return 1;
    return end_tests(cmocka_run_group_tests(own, NULL, NULL));
}
