/* Temporary outputs, which jobs are cut with: what they hold until all is written, whose they are, and what goes in between.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "interop/os/memory.h"
#include "tests/daemon/daemon_shares/rig.h"

enum { FILLS = 64 }; /* mems at most, to fill a quota with */

/* The same bits, those of lse too, as where such a job is not cut. */
static void a_temporary_output_becomes_the_output(void **state)
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

/* Shared memory of all clients, and their temporary outputs. */
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

/* Late, given up, or of a client that goes: not a byte is written, and the temporary output is freed. */
static void half_a_temporary_output_is_nothing(void **state)
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
static void a_lost_temporary_output_is_written_again(void **state)
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

/* A temporary output is its client's, and where there is no room for one the job is not cut, as it is alone; an idle one makes
 * room. */
static void temporary_outputs_count(void **state)
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

/* The report of a client's job with a deadline; *between: another's frame began and ended while it ran. */
static td_wire_report run_around(client *c, task *t, client *other, const task *frame, bool *between)
{
    const uint64_t begin = td_now_ns();
    td_wire_report slow, quick;
    tandem_job job = job_of(t);
    uint64_t ticket;

    clear_output(t);
    job.deadline_ns = 600000 * MS;
    ticket = client_job(c, &job);
    while (client_report(c, ticket, 0).state == TANDEM_JOB_PENDING && td_now_ns() - begin < PATIENCE)
        ;
    quick = run_job(other, frame);
    slow = client_report(c, ticket, PATIENCE);
    assert_int_equal(quick.state, TANDEM_JOB_DONE);
    *between = slow.begin_ns < quick.begin_ns && quick.end_ns < slow.end_ns;
    return slow;
}

/* Mems until the client has all that it may; returns how many. */
static uint32_t take_all(client *c, uint64_t most_bytes, uint64_t mems[FILLS])
{
    uint32_t count = 0;

    for (uint64_t bytes = most_bytes / 4096 * 4096; bytes >= 4096 && count < FILLS;) {
        char why[200] = "";
        int fd;

        assert_int_equal(td_memfd_make("tandem-test-buffer", bytes, false, &fd, why, sizeof why), TANDEM_OK);
        mems[count] = client_mem(c, fd, bytes, bytes);
        if (mems[count])
            count++;
        else
            bytes = bytes / 8192 * 4096;
        td_fd_close(&fd);
    }
    return count;
}

/* A frame's long job with a deadline holds nobody up because its client has all that it may have: what the client's jobs left in
 * the worker makes room for a temporary output, and where that is not enough the job is refused. */
static void no_room_for_a_temporary_output_is_no_excuse(void **state)
{
    const shape long_one = {1, 8000, 2000, 64, TANDEM_PRECISION_F16, 0};
    enum { TRIES = 20 };
    uint64_t scratch, fills[FILLS], bytes;
    uint32_t fill_count;
    bool between = false;
    char config[80];
    client greedy, other;
    tandem_job job;
    task t, f;

    (void)state;
    task_make(&t, &long_one, 150);
    task_make(&f, &small, 151);
    bytes = t.bytes;
    for (int limited = 0; limited < 2; limited++) { /* alone it is not cut, and needs so much */
        snprintf(config, sizeof config, limited ? "threads = 1\nclient_bytes = %" PRIu64 "\n" : "threads = 1\n", bytes);
        start_daemon(config);
        client_open(&greedy, "greedy");
        task_share(&t, &greedy);
        job = job_of(&t);
        job.deadline_ns = 600000 * MS;
        assert_int_equal(client_report(&greedy, client_job(&greedy, &job), PATIENCE).state, TANDEM_JOB_DONE);
        bytes = row_of(&greedy, "greedy").mem_bytes;
        if (limited)
            break;
        client_close(&greedy);
        assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
    }
    scratch = bytes - t.bytes;
    assert_true(scratch > 0);
    client_open(&other, "another");
    task_share(&f, &other);
    for (int try = 0; !between; try++) { /* it may come too late, but not always */
        assert_true(try < TRIES);
        assert_int_equal(run_around(&greedy, &t, &other, &f, &between).state, TANDEM_JOB_DONE);
        check_output(&t);
    }
    fill_count = take_all(&greedy, scratch, fills);
    assert_true(fill_count > 0 && fill_count < FILLS);
    clear_output(&t);
    assert_int_equal(client_report(&greedy, client_job(&greedy, &job), PATIENCE).status, TANDEM_ERROR_NOMEM);
    assert_int_equal(client_events(&greedy, PATIENCE), TANDEM_ERROR_BUSY);
    assert_int_equal(greedy.event.header.type, TD_WIRE_ERROR);
    assert_non_null(strstr(greedy.event.error.text, "temporary output of the job is "));
    assert_true(is_untouched(&t));
    assert_int_equal(run_job(&other, &f).state, TANDEM_JOB_DONE);
    for (uint32_t i = 0; i < fill_count; i++)
        assert_int_equal(client_object(&greedy, TD_WIRE_MEM_DESTROY, fills[i]), TANDEM_OK);
    assert_int_equal(run_around(&greedy, &t, &other, &f, &between).state, TANDEM_JOB_DONE);
    check_output(&t);
    client_close(&greedy);
    client_close(&other);
    task_free(&t);
    task_free(&f);
}

/* A temporary output that no job needs now is in nobody's way: the memory beside it has all the room that there is
 * without it. */
static void an_idle_temporary_output_makes_room(void **state)
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
    client_open_as(&c, "temporary outputs", TANDEM_CLASS_BACKGROUND);
    task_share(&t, &c);
    job = job_of(&t);
    job.deadline_ns = 600000 * MS;
    assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).state, TANDEM_JOB_DONE);
    /* The temporary output has q_bytes, pieces' scratch a fraction of that. */
    bytes = (limit - t.bytes - t.q_bytes / 2) / 4096 * 4096;
    assert_int_equal(td_memfd_make("tandem-test-buffer", bytes, false, &fd, why, sizeof why), TANDEM_OK);
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

static const struct CMUnitTest cases[] = {
    cmocka_unit_test_teardown(a_temporary_output_becomes_the_output, tear_down_daemon),
    cmocka_unit_test_teardown(half_a_temporary_output_is_nothing, tear_down_daemon),
    cmocka_unit_test_teardown(a_lost_temporary_output_is_written_again, tear_down_daemon),
    cmocka_unit_test_teardown(temporary_outputs_count, tear_down_daemon),
    cmocka_unit_test_teardown(no_room_for_a_temporary_output_is_no_excuse, tear_down_daemon),
    cmocka_unit_test_teardown(an_idle_temporary_output_makes_room, tear_down_daemon),
    cmocka_unit_test_teardown(the_background_gives_way, tear_down_daemon),
    cmocka_unit_test_teardown(frames_go_in_between_keys, tear_down_daemon),
    cmocka_unit_test_teardown(earlier_deadlines_go_first, tear_down_daemon),
};
const test_cases daemon_shares_temp_outputs_cases = TEST_CASES(cases);
