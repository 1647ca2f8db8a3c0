/* Quotas of tandemd's clients, their scratch, and models that they share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interop/os/memory.h"
#include "kernels/model/safetensors.h"
#include "tests/daemon/daemon_shares/rig.h"

static void quotas_hold(void **state)
{
    char why[300];
    client greedy, late, third;
    uint64_t first;
    int fd;

    (void)state;
    start_daemon("clients = 2\nmems = 3\nmem_bytes = 64K\nclient_bytes=96K\n\n  total_bytes = 128K\n");
    assert_int_equal(td_memfd_make("tandem-test-buffer", 65536, false, &fd, why, sizeof why), TANDEM_OK);
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

uint64_t scratch_of(const shape *of)
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
    assert_string_equal(c[0].event.error.text, "it leads out, beneath 2 model directories"); /* the client names the path */
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

static const struct CMUnitTest cases[] = {
    cmocka_unit_test_teardown(quotas_hold, tear_down_daemon),
    cmocka_unit_test_teardown(quotas_count_scratch, tear_down_daemon),
    cmocka_unit_test_teardown(models_are_shared, tear_down_daemon),
    cmocka_unit_test_teardown(idle_models_make_room, tear_down_daemon),
    cmocka_unit_test_teardown(idle_models_make_room_for_jobs, tear_down_daemon),
};
const test_cases daemon_shares_quotas_cases = TEST_CASES(cases);
