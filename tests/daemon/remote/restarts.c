/* Sessions that are given up, refused or come back: models, a daemon that stands still, and one that is killed at
 * any moment.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "interop/base.h"
#include "tests/daemon/remote/rig.h"

/* Frames with three jobs in flight, and a daemon that is killed at any moment of them: each point comes, and what is said
 * to be done is. TANDEM_KILLS: how many moments. */
typedef struct player {
    pthread_t thread;
    void *want;
    uint64_t bytes;
    _Atomic bool begun, ends, wrong;
    unsigned done, lost, refused;
    uint64_t longest_ns;
} player;

static void *play(void *user)
{
    enum { FLIGHT = 3 };
    player *p = user;
    tandem_ticket tickets[FLIGHT] = {0};
    uint64_t in, bytes, values[FLIGHT] = {0};
    tandem_job jobs[FLIGHT];
    void *hosts[FLIGHT];
    side x;

    open_side(&x, socket_path, NULL, 0);
    for (unsigned i = 0; i < FLIGHT; i++) {
        jobs[i] = job_of(&shapes[0], new_mem(&x, p->bytes, &hosts[i]), &in, &bytes);
        fill(hosts[i], in, bytes, shapes[0].dtype);
    }
    p->begun = true;
    for (unsigned n = 0; !p->wrong && (!p->ends || p->done < 10); n++) {
        const unsigned i = n % FLIGHT;
        const uint64_t begin = td_now_ns();
        tandem_job_report report = {.struct_bytes = sizeof report};
        tandem_status status;

        if (tickets[i]) {
            p->wrong = tandem_point_wait(x.s, (tandem_point){x.ours, values[i]}, PATIENCE) != TANDEM_OK ||
                       tandem_wait(x.s, tickets[i], SOON, &report) != TANDEM_OK ||
                       (report.state != TANDEM_JOB_DONE && report.status != TANDEM_ERROR_LOST) ||
                       (report.state == TANDEM_JOB_DONE && memcmp(hosts[i], p->want, bytes));
            if (td_now_ns() - begin > p->longest_ns)
                p->longest_ns = td_now_ns() - begin;
            p->done += report.state == TANDEM_JOB_DONE;
            p->lost += report.state != TANDEM_JOB_DONE;
            tickets[i] = 0;
        }
        fill((char *)hosts[i] + in, 0, bytes - in, shapes[0].dtype);
        jobs[i].signal = (tandem_point){x.ours, values[i] = ++x.value};
        status = tandem_submit(x.s, &jobs[i], &tickets[i]);
        if (status == TANDEM_ERROR_LOST) {
            p->refused++;
            sleep_ms(1);
        } else if (status != TANDEM_OK) {
            p->wrong = true;
        }
    }
    close_side(&x);
    return NULL;
}

static void test_random_moments(void **state)
{
    const unsigned kills = getenv("TANDEM_KILLS") ? (unsigned)atoi(getenv("TANDEM_KILLS")) : 12;
    const int fds = count_fds_of(getpid());
    uint64_t seed = td_now_ns();
    player p = {0};

    (void)state;
    p.want = expected(&shapes[0], &p.bytes);
    assert_int_equal(pthread_create(&p.thread, NULL, play, &p), 0);
    while (!p.begun)
        sleep_ms(1);
    for (unsigned i = 0; i < kills; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        usleep((unsigned)(seed >> 48)); /* 0 to 65 ms */
        end_daemon(SIGKILL);
        start_daemon("threads = 1\n");
    }
    p.ends = true;
    pthread_join(p.thread, NULL);
    assert_false(p.wrong);
    print_message("%u kills: %u jobs done, %u lost, %u refused, the longest wait %.1f ms\n", kills, p.done, p.lost,
                  p.refused, (double)p.longest_ns / 1e6);
    assert_true(p.lost + p.refused > 0);
    assert_int_equal(count_fds_of(getpid()), fds);
    free(p.want);
}

static void test_given_up(void **state)
{
    unsigned char *host;
    tandem_job_report report;
    tandem_ticket ticket;
    tandem_mem mem;
    tandem_job job;
    uint64_t begin;
    side x;

    (void)state;
    open_side(&x, socket_path, NULL, 0);
    job = long_job(&x, &mem);
    ticket = submit(&x, &job);
    sleep_ms(30);
    begin = td_now_ns();
    assert_int_equal(tandem_cancel(x.s, ticket), TANDEM_OK);
    report = ended(&x, ticket, SOON);
    assert_int_equal(report.state, TANDEM_JOB_CANCELLED);
    assert_int_equal(tandem_point_wait(x.s, (tandem_point){x.ours, x.value}, SOON), TANDEM_OK);
    assert_true(td_now_ns() - begin < SOON);
    /* A deadline that passes: STALE, and nothing is ever written. */
    assert_int_equal(tandem_mem_host(x.s, mem, (void **)&host), TANDEM_OK);
    memset(host + job.op.attention.o.offset_bytes, 0x5a, 4096);
    job.deadline_ns = 40 * MS;
    begin = td_now_ns();
    ticket = submit(&x, &job);
    report = ended(&x, ticket, SOON);
    print_message("%.1f ms behind its deadline\n", (double)(td_now_ns() - begin - 40 * MS) / 1e6);
    if (report.state != TANDEM_JOB_STALE)
        fail_msg("state %d, status %d", (int)report.state, (int)report.status);
    assert_int_equal(tandem_point_wait(x.s, (tandem_point){x.ours, x.value}, SOON), TANDEM_OK);
    assert_true(td_now_ns() - begin >= 40 * MS);
    for (int i = 0; i < 4096; i++)
        assert_int_equal(host[job.op.attention.o.offset_bytes + (uint64_t)i], 0x5a);
    /* The session ends in the midst of one. */
    job.deadline_ns = 0;
    submit(&x, &job);
    sleep_ms(10);
    begin = td_now_ns();
    close_side(&x);
    assert_true(td_now_ns() - begin < SOON);
}

static void write_model(void)
{
    static const char header[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[1,1,40,32],\"data_offsets\":[0,5120]}}      ";
    const uint64_t bytes = sizeof header - 1;
    static float data[1280];
    FILE *file = fopen(model_path, "w");

    fill(data, sizeof data, sizeof data, TANDEM_DTYPE_F32);
    assert_non_null(file);
    assert_int_equal(fwrite(&bytes, 8, 1, file), 1);
    assert_int_equal(fwrite(header, bytes, 1, file), 1);
    assert_int_equal(fwrite(data, sizeof data, 1, file), 1);
    assert_int_equal(fclose(file), 0);
}

/* K and V are a model's; the same here and there, and behind a restart. */
static void test_models(void **state)
{
    char config[200];
    uint64_t in, bytes, shape_of[4];
    void *host[2];
    tandem_model model[2];
    tandem_job job[2];
    tandem_view view;
    side x[2];

    (void)state;
    write_model();
    open_side(&x[0], socket_path, NULL, 0);
    assert_int_equal(tandem_model_load(x[0].s, model_path, &model[0]), TANDEM_ERROR_UNSUPPORTED);
    assert_true(says(&x[0], "model_dir"));
    close_side(&x[0]);
    end_daemon(SIGTERM);
    snprintf(config, sizeof config, "threads = 1\nmodel_dir = %s\n", folder);
    start_daemon(config);
    for (int i = 0; i < 2; i++) {
        open_side(&x[i], i ? socket_path : NULL, NULL, 0);
        job_of(&shapes[0], 1, &in, &bytes);
        job[i] = job_of(&shapes[0], new_mem(&x[i], bytes, &host[i]), &in, &bytes);
        fill(host[i], in, bytes, shapes[0].dtype);
        assert_int_equal(tandem_model_load(x[i].s, model_path, &model[i]), TANDEM_OK);
        assert_int_equal(tandem_model_tensor(x[i].s, model[i], "none", &view, shape_of), TANDEM_ERROR_ARG);
        assert_int_equal(tandem_model_tensor(x[i].s, model[i], "w", &view, shape_of), TANDEM_OK);
        assert_int_equal(shape_of[2], 40);
        assert_int_equal(shape_of[3], 32);
        job[i].op.attention.k = job[i].op.attention.v = view;
        run(&x[i], &job[i]);
    }
    assert_memory_equal(host[0], host[1], bytes);
    end_daemon(SIGKILL);
    start_daemon(config);
    fill(host[1], in, bytes, shapes[0].dtype);
    await_return(&x[1], &job[1]);
    assert_memory_equal(host[0], host[1], bytes);
    assert_int_equal(tandem_model_load(x[1].s, "/nonexistent/model", &model[0]), TANDEM_ERROR_IO);
    assert_true(says(&x[1], "/nonexistent/model"));
    assert_int_equal(tandem_model_destroy(x[1].s, model[1]), TANDEM_OK);
    assert_int_equal(tandem_model_tensor(x[1].s, model[1], "w", &view, shape_of), TANDEM_ERROR_ARG);
    close_side(&x[0]);
    close_side(&x[1]);
}

static void refused(const tandem_session_desc *like, const char *socket, tandem_status status, const char *words)
{
    char text[500] = "";
    tandem_session_desc desc = *like;
    tandem_session *s = (tandem_session *)&desc;

    desc.struct_bytes = sizeof desc;
    desc.socket = socket;
    desc.error_text = text;
    desc.error_text_bytes = sizeof text;
    assert_int_equal(tandem_session_create(&desc, &s), status);
    assert_null(s);
    if (!strstr(text, words))
        fail_msg("'%s' does not say '%s'", text, words);
}

static void test_refusals(void **state)
{
    char path[200], *before = getenv("XDG_RUNTIME_DIR");
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = 3 << 20};
    const int fds = count_fds_of(getpid());
    const tandem_session_desc any = {0};
    tandem_mem mem;
    side x;

    (void)state;
    before = before ? strdup(before) : NULL;
    snprintf(path, sizeof path, "%s/nobody", folder);
    refused(&any, path, TANDEM_ERROR_LOST, path);
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = 0;
    refused(&any, path, TANDEM_ERROR_ARG, "desc.socket");
    unsetenv("XDG_RUNTIME_DIR");
    refused(&any, "", TANDEM_ERROR_UNSUPPORTED, "XDG_RUNTIME_DIR is not set");
    setenv("XDG_RUNTIME_DIR", folder, 1); /* the socket is tandem-0 there */
    open_side(&x, "", NULL, 0);
    close_side(&x);
    if (before)
        setenv("XDG_RUNTIME_DIR", before, 1);
    else
        unsetenv("XDG_RUNTIME_DIR");
    free(before);
    refused(&(tandem_session_desc){.backend = TANDEM_BACKEND_CUDA}, socket_path, TANDEM_ERROR_UNSUPPORTED, "backend");
    refused(&(tandem_session_desc){.rung = TANDEM_RUNG_INLINE}, socket_path, TANDEM_ERROR_UNSUPPORTED,
            "desc.rung is 1");
    assert_int_equal(count_fds_of(getpid()), fds);
    end_daemon(SIGTERM);
    start_daemon("threads = 1\nclient_bytes = 4M\nmem_bytes = 3M\nclients = 1\n");
    open_side(&x, socket_path, NULL, 0);
    refused(&any, socket_path, TANDEM_ERROR_LOST, "no room");
    assert_int_equal(tandem_mem_create(x.s, &desc, &mem), TANDEM_OK);
    assert_int_equal(tandem_mem_create(x.s, &desc, &mem), TANDEM_ERROR_NOMEM);
    assert_true(says(&x, "tandemd"));
    assert_int_equal(tandem_mem_create(x.s, &(tandem_mem_desc){.struct_bytes = sizeof desc, .bytes = 4 << 20}, &mem),
                     TANDEM_ERROR_NOMEM);
    assert_true(says(&x, "at most"));
    close_side(&x);
    end_daemon(SIGTERM);
    start_daemon("threads = 1\n");
}

/* A daemon that stands still is found out, and come back to when it goes on. */
static void test_stopped(void **state)
{
    uint64_t in, bytes;
    void *want = expected(&shapes[0], &bytes), *host;
    tandem_job_report report;
    tandem_ticket ticket;
    tandem_job job;
    int status;
    side x;

    (void)state;
    open_side(&x, socket_path, NULL, 0);
    job = job_of(&shapes[0], new_mem(&x, bytes, &host), &in, &bytes);
    fill(host, in, bytes, shapes[0].dtype);
    assert_int_equal(kill(daemon_pid, SIGSTOP), 0);
    assert_int_equal(waitpid(daemon_pid, &status, WUNTRACED), daemon_pid); /* all its threads */
    assert_true(WIFSTOPPED(status));
    ticket = submit(&x, &job);
    report = ended(&x, ticket, PATIENCE);
    assert_int_equal(report.status, TANDEM_ERROR_LOST);
    assert_int_equal(tandem_point_wait(x.s, (tandem_point){x.ours, x.value}, SOON), TANDEM_OK);
    assert_int_equal(kill(daemon_pid, SIGCONT), 0);
    await_return(&x, &job);
    assert_memory_equal(host, want, bytes);
    close_side(&x);
    free(want);
}

static void test_nothing_leaks(void **state)
{
    int fds = 0;

    (void)state;
    for (int i = 0; i < 12; i++) {
        uint64_t in, bytes;
        void *host;
        tandem_job job;
        side x;

        open_side(&x, socket_path, NULL, 0);
        job_of(&shapes[0], 1, &in, &bytes);
        job = job_of(&shapes[0], new_mem(&x, bytes, &host), &in, &bytes);
        fill(host, in, bytes, shapes[0].dtype);
        run(&x, &job);
        assert_int_equal(tandem_mem_destroy(x.s, job.op.attention.q.mem), TANDEM_OK);
        new_mem(&x, 5000, &host);
        close_side(&x);
        if (i == 1)
            fds = count_fds_of(getpid());
    }
    assert_int_equal(count_fds_of(getpid()), fds);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_given_up),
    cmocka_unit_test(test_models),
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_stopped),
    cmocka_unit_test(test_nothing_leaks),
    cmocka_unit_test(test_random_moments),
};
const test_cases remote_restarts_cases = TEST_CASES(cases);
