/* tandemd on a GPU whose kernels hang, or read where nothing is: what becomes of the job, of its client, and of others.
 * The GPU is none: the driver is tests/interop/fake_cuda.h's, which computes nothing, in tests/daemon/tandemd_faulty.c. With a real one
 * the same is in tests/daemon/test_daemon_gpu.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_plugin/client/network.h"
#include "tests/limits.h"
#include "tests/plugin/daemon_util.h"
#include "tests/plugin/network_util.h"

#define MS 1000000ull
#define PATIENCE LIMITS_PATIENCE_NS
#define JOB_MS "4000" /* a worker that was not run for so long is ended, too */

static char folder[64], socket_path[96], config_path[96], log_path[96], fault_path[96], program[4096];
static pid_t daemon_pid;

static void sleep_ms(unsigned ms) { usleep(ms * 1000); }

static int set_up(void **state)
{
    char config[200];

    (void)state;
    unlink(fault_path);
    snprintf(config, sizeof config, "backend = cuda\nlog = debug\njob_ms = " JOB_MS "\nmodel_dir = %s\n", folder);
    daemon_pid = begin_daemon(program, socket_path, config_path, config, log_path);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    end_daemon_by(&daemon_pid, SIGTERM);
    return 0;
}

static void await_fds(pid_t pid, int most)
{
    const uint64_t begin = td_now_ns();

    while (count_fds_of(pid) > most) {
        if (td_now_ns() - begin > PATIENCE)
            fail_msg("process %d has %d descriptors, not %d", (int)pid, count_fds_of(pid), most);
        sleep_ms(5);
    }
}

/* Engines, without a GPU of their own. */

typedef struct engine {
    tandem_session *s;
    tandem_timeline ours;
    tandem_mem mem;
    uint64_t value; /* that the last job signals */
} engine;

static void engine_open(engine *e)
{
    const tandem_timeline_desc ours = {.struct_bytes = sizeof ours, .signaller = TANDEM_SIGNALLER_SESSION};
    const tandem_mem_desc mem = {.struct_bytes = sizeof mem, .bytes = 1 << 16};
    char text[500] = "";
    const tandem_session_desc desc = {.struct_bytes = sizeof desc,
                                      .backend = TANDEM_BACKEND_CUDA,
                                      .error_text = text,
                                      .error_text_bytes = sizeof text,
                                      .socket = socket_path};

    *e = (engine){0};
    if (tandem_session_create(&desc, &e->s) != TANDEM_OK)
        fail_msg("session: %s", text);
    assert_int_equal(tandem_timeline_create(e->s, &ours, &e->ours), TANDEM_OK);
    assert_int_equal(tandem_mem_create(e->s, &mem, &e->mem), TANDEM_OK);
}

/* As soon as there is a worker. */
static tandem_ticket engine_submit(engine *e)
{
    const uint64_t begin = td_now_ns();
    const tandem_view view = {.mem = e->mem, .dtype = TANDEM_DTYPE_F32, .stride_row = 32};
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
    char text[500] = "";
    tandem_ticket ticket;

    job.op.attention = (tandem_attention){.q = view, .k = view, .v = view, .o = view, .batch = 1, .heads = 1,
                                          .kv_heads = 1, .q_len = 64, .kv_len = 64, .head_dim = 32,
                                          .precision = TANDEM_PRECISION_F16}; /* the one shape that the fake knows */
    job.op.attention.o.offset_bytes = 1 << 15;
    job.signal = (tandem_point){e->ours, e->value + 1};
    while (tandem_submit(e->s, &job, &ticket) != TANDEM_OK) {
        tandem_error_text(e->s, text, sizeof text);
        if (td_now_ns() - begin > PATIENCE)
            fail_msg("submit: %s", text);
        sleep_ms(2);
    }
    e->value++;
    return ticket;
}

/* How the job has ended; its point has come in any case. */
static tandem_job_report engine_end(engine *e, tandem_ticket ticket, uint64_t value)
{
    tandem_job_report report = {.struct_bytes = sizeof report};

    assert_int_equal(tandem_wait(e->s, ticket, PATIENCE, &report), TANDEM_OK);
    assert_int_equal(tandem_point_wait(e->s, (tandem_point){e->ours, value}, PATIENCE), TANDEM_OK);
    return report;
}

static tandem_job_report engine_frame(engine *e)
{
    const tandem_ticket ticket = engine_submit(e);

    return engine_end(e, ticket, e->value);
}

static void check_frames(engine *e)
{
    char text[500] = "", command[120];

    for (int i = 0; i < 20; i++) {
        const tandem_job_report report = engine_frame(e);

        if (report.state == TANDEM_JOB_DONE)
            continue;
        tandem_error_text(e->s, text, sizeof text);
        snprintf(command, sizeof command, "cat '%s' >&2", log_path);
        fail_msg("frame %d has ended in state %u (%d): %s; %s", i, report.state, report.status, text,
                 system(command) ? "" : "what the daemon said is above");
    }
}

/* One engine's job meets it; another draws on. */
static void one_fails(const char *how, const char *says)
{
    tandem_job_report report = {.struct_bytes = sizeof report};
    unsigned lost = 0, done = 0;
    engine guilty, other;
    tandem_ticket ticket;
    char text[500] = "";
    uint64_t begin;
    int own, broker, worker;
    pid_t first;

    engine_open(&guilty);
    engine_open(&other);
    check_frames(&guilty);
    check_frames(&other);
    first = logged_worker(log_path);
    own = count_fds_of(getpid());
    broker = count_fds_of(daemon_pid);
    worker = count_fds_of(first);
    arm_fault(fault_path, log_path, how);
    ticket = engine_submit(&guilty);
    begin = td_now_ns();
    do /* the worker has it, and nothing of the other one's before */
        assert_int_equal(tandem_poll(guilty.s, ticket, &report), TANDEM_OK);
    while (report.state == TANDEM_JOB_PENDING && td_now_ns() - begin < PATIENCE);
    while (tandem_wait(guilty.s, ticket, 0, &report) == TANDEM_ERROR_BUSY) {
        const tandem_job_report frame = engine_frame(&other);

        assert_true(td_now_ns() - begin < PATIENCE);
        done += frame.state == TANDEM_JOB_DONE;
        lost += frame.state == TANDEM_JOB_FAILED && frame.status == TANDEM_ERROR_LOST;
        assert_int_equal(frame.state, frame.status == TANDEM_OK ? TANDEM_JOB_DONE : TANDEM_JOB_FAILED);
    }
    print_message("  meanwhile the other one had %u frames, and lost %u\n", done, lost);
    report = engine_end(&guilty, ticket, guilty.value);
    assert_int_equal(report.state, TANDEM_JOB_FAILED);
    assert_int_equal(report.status, TANDEM_ERROR_LOST);
    tandem_error_text(guilty.s, text, sizeof text);
    print_message("  the job's text, if it came within 20 ms: %s\n", text);
    assert_true(lost <= 1);
    for (int i = 0; i < 3 && engine_frame(&other).state != TANDEM_JOB_DONE; i++)
        ; /* what the old worker had may yet be lost */
    check_frames(&other);
    check_frames(&guilty);
    assert_true(has_logged(log_path, says));
    assert_true(logged_worker(log_path) != first);
    await_fds(getpid(), own);
    await_fds(daemon_pid, broker);
    await_fds(logged_worker(log_path), worker);
    assert_int_equal(tandem_session_destroy(&guilty.s), TANDEM_OK);
    assert_int_equal(tandem_session_destroy(&other.s), TANDEM_OK);
}

/* Others' jobs end all the while, so that the worker seems to be well. */
static void a_kernel_that_never_ends(void **state)
{
    (void)state;
    one_fails("hang", "does not end within " JOB_MS " ms");
}

static void a_kernel_with_a_wild_pointer(void **state)
{
    (void)state;
    one_fails("fault", "CUDA_ERROR_ILLEGAL_ADDRESS");
}

/* Who does so again and again is let in no more. */
static void three_in_a_row(void **state)
{
    engine guilty, other;
    pid_t worker;

    (void)state;
    engine_open(&guilty);
    engine_open(&other);
    check_frames(&guilty);
    check_frames(&other);
    for (int i = 0; i < 3; i++) {
        worker = logged_worker(log_path);
        arm_fault(fault_path, log_path, "fault");
        assert_int_equal(engine_frame(&guilty).status, TANDEM_ERROR_LOST);
        check_frames(&other);
        assert_true(logged_worker(log_path) != worker);
    }
    assert_true(has_logged(log_path, "ended three workers"));
    worker = logged_worker(log_path);
    check_frames(&other);
    assert_int_equal(logged_worker(log_path), worker);
    assert_int_equal(tandem_session_destroy(&guilty.s), TANDEM_OK);
    assert_int_equal(tandem_session_destroy(&other.s), TANDEM_OK);
}

/* What an instance keeps is in the GPU's memory, and is copied there and back; each has its own. */
static void states_are_copied(void **state)
{
    const tandem_instance_desc desc = {.struct_bytes = sizeof desc};
    float kept[2][NETWORK_CHANNELS] = {{0}}, read[NETWORK_CHANNELS];
    tandem_instance instances[2];
    char path[100], why[TD_WHY_BYTES] = "";
    tandem_model model;
    engine e;

    (void)state;
    snprintf(path, sizeof path, "%s/network.safetensors", folder);
    assert_int_equal(rename(network_file(network_text), path), 0);
    engine_open(&e);
    assert_int_equal(tandem_model_load(e.s, path, &model), TANDEM_OK);
    for (int i = 0; i < 2; i++) {
        td_state_copy all = {.tensor = "total", .bytes = sizeof *kept, .host = read};

        assert_int_equal(tandem_model_instance(e.s, model, &desc, &instances[i]), TANDEM_OK);
        memset(read, 0xff, sizeof read);
        assert_int_equal(td_instance_copy(e.s, instances[i], &all, 1, false, why), TANDEM_OK);
        assert_memory_equal(read, kept[i], sizeof read); /* zeros */
        for (int c = 0; c < NETWORK_CHANNELS; c++)
            kept[i][c] = (float)(10 * i + c + 1);
        all.host = kept[i];
        assert_int_equal(td_instance_copy(e.s, instances[i], &all, 1, true, why), TANDEM_OK);
    }
    for (int i = 0; i < 2; i++) {
        td_state_copy halves[2] = {{.tensor = "total", .offset = 16, .bytes = 16, .host = read + 4},
                                   {.tensor = "total", .bytes = 16, .host = read}};

        memset(read, 0xff, sizeof read);
        assert_int_equal(td_instance_copy(e.s, instances[i], halves, 2, false, why), TANDEM_OK);
        assert_memory_equal(read, kept[i], sizeof read);
    }
    check_frames(&e);
    assert_int_equal(tandem_session_destroy(&e.s), TANDEM_OK);
    unlink(path);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_kernel_that_never_ends, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_kernel_with_a_wild_pointer, set_up, tear_down),
        cmocka_unit_test_setup_teardown(three_in_a_row, set_up, tear_down),
        cmocka_unit_test_setup_teardown(states_are_copied, set_up, tear_down),
    };
    const char *build = getenv("TANDEM_BUILD");
    int failed;

    snprintf(program, sizeof program, "%s/tandemd_faulty", build ? build : ".");
    strcpy(folder, "/tmp/tandem-fault-XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    snprintf(socket_path, sizeof socket_path, "%s/tandem-0", folder);
    snprintf(config_path, sizeof config_path, "%s/conf", folder);
    snprintf(log_path, sizeof log_path, "%s/log", folder);
    snprintf(fault_path, sizeof fault_path, "%s/fault", folder);
    setenv("TANDEM_TEST_FAULT", fault_path, 1);
    setenv("TANDEM_TEST_FAKE_CUDA", "1", 1);
    if (getenv("TANDEM_TEST_FILTER"))
        cmocka_set_test_filter(getenv("TANDEM_TEST_FILTER"));
    failed = cmocka_run_group_tests_name("a daemon whose kernels fail", tests, NULL, NULL);
    if (failed) {
        printf("the last daemon's log is %s\n", log_path);
    } else {
        char command[100];

        snprintf(command, sizeof command, "rm -rf '%s'", folder);
        failed = system(command) != 0;
    }
    return failed;
}
