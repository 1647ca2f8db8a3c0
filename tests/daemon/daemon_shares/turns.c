/* Time on the device: each client's share of it, and long jobs that let others in.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tests/daemon/daemon_shares/rig.h"

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
 * once it has ended. All of it is put before any begins, by one shared timeline for both, so that it does not matter when this process
 * runs; nor how long a busy machine makes a job. */
static void shares_are_fair(void **state)
{
    const shape shapes[2] = {{1, 128, 1024, 64, TANDEM_PRECISION_F16, 0},
                             {1, 512, 1024, 64, TANDEM_PRECISION_F16, 0}}; /* which is not cut, however slow it is */
    td_wire_report r[2][FAIR_JOBS];
    char why[300] = "";
    int fd = -1;
    td_shared_timeline in;
    client c[2];
    task t[2];

    (void)state;
    start_daemon("share_window_us = 1000\n");
    assert_int_equal(td_shared_timeline_make(&in, 0, &fd, why, sizeof why), TANDEM_OK);
    for (int i = 0; i < 2; i++) {
        tandem_job job;

        client_open(&c[i], i ? "large" : "small");
        task_make(&t[i], &shapes[i], 30);
        task_share(&t[i], &c[i]);
        job = job_of(&t[i]);
        job.wait = (tandem_point){client_share_timeline(&c[i], fd, false, 0), 1};
        for (int k = 0; k < FAIR_JOBS; k++)
            client_job(&c[i], &job);
    }
    for (int i = 0; i < 2; i++) /* they have been taken */
        assert_int_equal(client_object(&c[i], TD_WIRE_PING, 0), TANDEM_OK);
    td_shared_timeline_raise(&in, 1);
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
    td_shared_timeline_close(&in);
    td_fd_close(&fd);
}

/* What the slow client computes on a task's buffer, whose output it overwrites; NULL: attention, as the task has it. */
typedef void (*operation_fn)(const task *t, tandem_job *job);

static tandem_job slow_job(const task *t, operation_fn make)
{
    tandem_job job = {.struct_bytes = sizeof job};

    if (!make)
        return job_of(t);
    make(t, &job);
    return job;
}

/* What the job writes where its client is alone, and a frame's: it is not cut then. The caller frees it. */
static void *whole_output(task *t, operation_fn make)
{
    void *output = malloc(t->q_bytes);
    tandem_job job;
    client c;

    assert_non_null(output);
    client_open(&c, "alone");
    task_share(t, &c);
    clear_output(t);
    job = slow_job(t, make);
    assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).state, TANDEM_JOB_DONE);
    memcpy(output, (char *)t->data + t->o_at, t->q_bytes);
    client_close(&c);
    return output;
}

/* A job that takes long does not hold up others': it is cut, to the same bits. All is put before any begins, as above. On a busy
 * machine all of the other's jobs may come before it, or after it, as both have the same share, but not always. */
static void let_others_in(const shape *long_one, operation_fn make, tandem_class job_class)
{
    enum { JOBS = 10, TRIES = 30 };
    const shape shapes[2] = {*long_one, {2, 64, 96, 32, TANDEM_PRECISION_F16, 0}};
    tandem_point go[2];
    char why[300] = "";
    int fd = -1;
    td_shared_timeline in;
    void *expected;
    client c[2];
    task t[2];
    bool between = false;

    start_daemon("threads = 1\n");
    assert_int_equal(td_shared_timeline_make(&in, 0, &fd, why, sizeof why), TANDEM_OK);
    for (int i = 0; i < 2; i++)
        task_make(&t[i], &shapes[i], 33);
    expected = whole_output(&t[0], make);
    for (int i = 0; i < 2; i++) {
        client_open_as(&c[i], i ? "quick" : "slow", job_class);
        task_share(&t[i], &c[i]);
        go[i].timeline = client_share_timeline(&c[i], fd, false, 0);
    }
    for (uint64_t try = 1; !between; try++) {
        uint64_t first[2];
        td_wire_report slow;

        assert_true(try <= TRIES);
        clear_output(&t[0]);
        for (int i = 0; i < 2; i++) {
            tandem_job job = i ? job_of(&t[i]) : slow_job(&t[i], make);

            job.wait = (tandem_point){go[i].timeline, try};
            first[i] = client_job(&c[i], &job);
            for (int k = 1; k < (i ? JOBS : 1); k++)
                client_job(&c[i], &job);
        }
        for (int i = 0; i < 2; i++)
            assert_int_equal(client_object(&c[i], TD_WIRE_PING, 0), TANDEM_OK);
        td_shared_timeline_raise(&in, try);
        slow = client_report(&c[0], first[0], PATIENCE);
        assert_int_equal(slow.state, TANDEM_JOB_DONE);
        for (uint64_t k = 0; k < JOBS; k++) {
            const td_wire_report quick = client_report(&c[1], first[1] + k, PATIENCE);

            assert_int_equal(quick.state, TANDEM_JOB_DONE);
            between = between || (slow.begin_ns < quick.begin_ns && quick.end_ns < slow.end_ns);
        }
        assert_memory_equal((char *)t[0].data + t[0].o_at, expected, t[0].q_bytes);
    }
    check_output(&t[1]);
    for (int i = 0; i < 2; i++) {
        client_close(&c[i]);
        task_free(&t[i]);
    }
    free(expected);
    td_shared_timeline_close(&in);
    td_fd_close(&fd);
}

/* Frames' jobs are cut on a CPU from 100 ms on: these take more than twice that on one core of a fast one, and under sanitizers
 * a third of them does. */
#ifdef __SANITIZE_ADDRESS__
enum { LONGER = 1 };
#else
enum { LONGER = 3 };
#endif

static void long_jobs_let_others_in(void **state)
{
    (void)state;
    let_others_in(&(shape){8, LONGER * 2048, 1280, 64, TANDEM_PRECISION_F16, 0}, NULL, TANDEM_CLASS_FRAME);
}

static void a_long_causal_head_lets_others_in(void **state)
{
    (void)state;
    let_others_in(&(shape){1, LONGER * 5500, LONGER * 5500, 64, TANDEM_PRECISION_8B, 1}, NULL, TANDEM_CLASS_FRAME);
}

static void few_keys_for_many_rows_let_others_in(void **state)
{
    (void)state;
    let_others_in(&(shape){1, LONGER * 400000, 64, 32, TANDEM_PRECISION_F16, 0}, NULL, TANDEM_CLASS_FRAME);
}

static void rows_without_keys_let_others_in(void **state)
{
    (void)state;
    let_others_in(&(shape){1, LONGER * 400000, 64, 32, TANDEM_PRECISION_8B, 1}, NULL, TANDEM_CLASS_FRAME);
}

/* The other operations, on ROWS rows of CHANNELS channels where the task has Q, to where it has O; weights are where it has K. */
enum { ROWS = 8192, CHANNELS = 256, POOLED = 4 };

static tandem_view rows_at(const task *t, uint64_t offset_bytes, uint32_t dtype, uint32_t rows, uint32_t channels)
{
    return tandem_view_dense(t->mem, offset_bytes, dtype, 1, rows, channels);
}

static void norm(const task *t, tandem_job *job)
{
    job->operation = TANDEM_OPERATION_NORM;
    job->op.norm = (tandem_norm){.batch = 1, .heads = 1, .rows = ROWS, .channels = CHANNELS};
    job->op.norm.x = rows_at(t, 0, TANDEM_DTYPE_F32, ROWS, CHANNELS);
    job->op.norm.weight = rows_at(t, t->q_bytes, TANDEM_DTYPE_F32, 1, CHANNELS);
    job->op.norm.y = rows_at(t, t->o_at, TANDEM_DTYPE_F32, ROWS, CHANNELS);
}

static void binary(const task *t, tandem_job *job)
{
    job->operation = TANDEM_OPERATION_BINARY;
    job->op.binary = (tandem_binary){.batch = 1, .heads = 1, .rows = ROWS, .channels = CHANNELS, .b_channels = CHANNELS, .scale = 2,
                                     .kind = TANDEM_BINARY_MULTIPLY};
    job->op.binary.a = rows_at(t, 0, TANDEM_DTYPE_F32, ROWS, CHANNELS);
    job->op.binary.b = rows_at(t, t->q_bytes, TANDEM_DTYPE_F32, 1, CHANNELS);
    job->op.binary.b.stride_row = 0;
    job->op.binary.y = rows_at(t, t->o_at, TANDEM_DTYPE_F32, ROWS, CHANNELS);
}

/* Whole numbers of any size: what is in no table is 0. */
static void embed(const task *t, tandem_job *job)
{
    job->operation = TANDEM_OPERATION_EMBED;
    job->op.embed = (tandem_embed){.batch = 1, .rows = ROWS, .channels = CHANNELS, .entries = 16};
    job->op.embed.table = rows_at(t, t->q_bytes, TANDEM_DTYPE_F32, 16, CHANNELS);
    job->op.embed.id = rows_at(t, 0, TANDEM_DTYPE_I32, ROWS, 1);
    job->op.embed.y = rows_at(t, t->o_at, TANDEM_DTYPE_F32, ROWS, CHANNELS);
}

static void pool(const task *t, tandem_job *job)
{
    job->operation = TANDEM_OPERATION_POOL;
    job->op.pool = (tandem_pool){.batch = ROWS / POOLED, .heads = 1, .rows = POOLED, .channels = CHANNELS, .normalise = 1};
    job->op.pool.x = rows_at(t, 0, TANDEM_DTYPE_F32, POOLED, CHANNELS);
    job->op.pool.y = rows_at(t, t->o_at, TANDEM_DTYPE_F32, 1, CHANNELS);
}

static void linear(const task *t, tandem_job *job)
{
    job->operation = TANDEM_OPERATION_LINEAR;
    job->op.linear = (tandem_linear){.rows = ROWS, .ins = CHANNELS, .outs = 64};
    job->op.linear.x = rows_at(t, 0, TANDEM_DTYPE_BF16, ROWS, CHANNELS);
    job->op.linear.w = rows_at(t, t->q_bytes, TANDEM_DTYPE_BF16, 64, CHANNELS);
    job->op.linear.y = rows_at(t, t->o_at, TANDEM_DTYPE_F32, ROWS, 64);
}

static void every_operation_lets_others_in(void **state)
{
    static const operation_fn operations[] = {norm, binary, embed, pool, linear};

    (void)state;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        let_others_in(&(shape){1, ROWS, 64, CHANNELS, TANDEM_PRECISION_F16, 0}, operations[i], TANDEM_CLASS_BACKGROUND);
        assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
    }
}

/* Temporary outputs: what pieces of a job with a deadline write, until all of them have. */

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

static const struct CMUnitTest cases[] = {
    cmocka_unit_test_teardown(shares_are_fair, tear_down_daemon),
    cmocka_unit_test_teardown(long_jobs_let_others_in, tear_down_daemon),
    cmocka_unit_test_teardown(a_long_causal_head_lets_others_in, tear_down_daemon),
    cmocka_unit_test_teardown(few_keys_for_many_rows_let_others_in, tear_down_daemon),
    cmocka_unit_test_teardown(rows_without_keys_let_others_in, tear_down_daemon),
    cmocka_unit_test_teardown(every_operation_lets_others_in, tear_down_daemon),
    cmocka_unit_test_teardown(a_deadline_lets_others_in, tear_down_daemon),
};
const test_cases daemon_shares_turns_cases = TEST_CASES(cases);
