/* What one client can do to the others and to the machine is bounded, whatever it sends, puts, or is run with.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "interop/os/descriptor.h"
#include "interop/os/memory.h"
#include "tests/plugin/daemon_client.h"

/* Long jobs. */

/* A frame's long job with a deadline is cut, and another client's frame goes in between. Its pieces write a temporary
 * output: the bits are those of the whole, and nothing of them is seen before all are there. */
static void a_frame_with_a_deadline_lets_others_in(void **state)
{
    const shape long_one = {1, 20000, 9000, 64, TANDEM_PRECISION_F16, 0};
    enum { TRIES = 20 };
    bool between = false;
    client c[2];
    task t[2];

    (void)state;
    start_daemon("threads = 1\n");
    for (int i = 0; i < 2; i++) {
        client_open(&c[i], i ? "quick" : "slow");
        task_make(&t[i], i ? &small : &long_one, 98);
        task_share(&t[i], &c[i]);
    }
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
    for (int i = 0; i < 2; i++) {
        client_close(&c[i]);
        task_free(&t[i]);
    }
}

/* Who connects. */

/* Has so many connections, without a word, and again whenever one is closed. */
static void connect_silently(int connections)
{
    td_conn held[64];

    for (int i = 0; i < connections; i++)
        held[i].fd = -1;
    for (;;) {
        struct pollfd p[64];

        for (int i = 0; i < connections; i++) {
            char why[300], last_words[2500];

            if (held[i].fd >= 0 && recv(held[i].fd, last_words, sizeof last_words, MSG_DONTWAIT) != 0 && errno == EAGAIN)
                continue;
            td_conn_close(&held[i]);
            td_conn_connect(&held[i], socket_path, why, sizeof why);
        }
        for (int i = 0; i < connections; i++)
            p[i] = (struct pollfd){held[i].fd, POLLIN, 0};
        poll(p, (nfds_t)connections, 1);
    }
}

/* So many processes do, while newcomers come one by one, each of which is let in. */
static void be_let_in_beside(int processes, int connections)
{
    enum { NEWCOMERS = 60 };
    pid_t silent[40];

    for (int i = 0; i < processes; i++) {
        silent[i] = fork();
        assert_true(silent[i] >= 0);
        if (!silent[i]) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            connect_silently(connections);
        }
    }
    sleep_ms(100);
    for (int i = 0; i < NEWCOMERS; i++) {
        td_wire_message m = hello(TD_WIRE_SHARE_HOST, "a newcomer");
        client c;

        assert_int_equal(client_connect(&c), TANDEM_OK);
        if (client_hello(&c, &m) != TANDEM_OK)
            fail_msg("newcomer %d of %d was kept out by %d x %d", i, NEWCOMERS, processes, connections);
        client_close(&c);
    }
    for (int i = 0; i < processes; i++) {
        kill(silent[i], SIGKILL);
        waitpid(silent[i], NULL, 0);
    }
}

static void silent_connections_keep_nobody_out(void **state)
{
    static const int attackers[][2] = {{1, 40}, {40, 1}, {10, 4}, {3, 30}};

    (void)state;
    start_daemon("");
    for (int i = 0; i < 4; i++)
        be_let_in_beside(attackers[i][0], attackers[i][1]);
}

/* What is put by hand. */

/* A job cannot wait for what it signals itself; it ends at once, and holds nobody behind it up. */
static void a_job_does_not_wait_for_itself(void **state)
{
    static const uint64_t waits[] = {5, 4, 1}; /* of a timeline that the job takes from 0 to 5 */
    client c;
    task t;

    (void)state;
    start_daemon("");
    client_open(&c, "by hand");
    task_make(&t, &small, 50);
    task_share(&t, &c);
    for (int i = 0; i < 3; i++) {
        td_shared_timeline shared;
        tandem_job job = job_of(&t);
        const uint64_t timeline = client_timeline(&c, &shared, true, 0);
        uint64_t tickets[3];
        td_wire_report r;

        job.signal = (tandem_point){timeline, 5};
        job.wait = (tandem_point){timeline, waits[i]};
        tickets[0] = client_job(&c, &job);
        job.signal.value = 6;
        job.wait.value = 5; /* which the one before signals, in whatever way it ends */
        tickets[1] = client_job(&c, &job);
        job.wait = job.signal = (tandem_point){0};
        tickets[2] = client_job(&c, &job);
        r = client_report(&c, tickets[0], PATIENCE);
        assert_int_equal(r.state, TANDEM_JOB_FAILED);
        assert_int_equal(r.status, TANDEM_ERROR_ARG);
        assert_int_equal(client_events(&c, PATIENCE), TANDEM_ERROR_BUSY);
        assert_int_equal(c.event.header.type, TD_WIRE_ERROR);
        assert_int_equal(c.event.error.ticket, tickets[0]);
        assert_non_null(strstr(c.event.error.text, "job.wait.value"));
        assert_non_null(strstr(c.event.error.text, "itself signals"));
        for (int k = 1; k < 3; k++)
            assert_int_equal(client_report(&c, tickets[k], PATIENCE).state, TANDEM_JOB_DONE);
        assert_true(await_point(&shared, 6));
        td_shared_timeline_close(&shared);
    }
    client_close(&c);
    task_free(&t);
}

/* MEM_DESTROY comes after all jobs that were put before it, however many there are. */
static void a_destroy_waits_for_the_ring(void **state)
{
    enum { MORE = 10 };
    td_wire_message m = td_wire_new(TD_WIRE_MEM_DESTROY, 0), answer;
    char why[300] = "";
    tandem_job job;
    td_shared_timeline in;
    client c;
    task t[2];
    int fd;

    (void)state;
    start_daemon("");
    client_open(&c, "many jobs");
    for (int i = 0; i < 2; i++) {
        task_make(&t[i], &small, 60);
        task_share(&t[i], &c);
    }
    job = job_of(&t[0]);
    job.wait = (tandem_point){client_timeline(&c, &in, false, 0), 1};
    for (int i = 0; i < TD_WIRE_SLOTS; i++)
        client_job(&c, &job);
    while (atomic_load(&c.ring.shared->head) != TD_WIRE_SLOTS)
        sleep_ms(1);
    job = job_of(&t[1]);
    for (int i = 0; i < MORE; i++)
        client_job(&c, &job);
    m.header.serial = c.rules.next_serial;
    m.object.id = t[1].mem;
    assert_int_equal(td_conn_send(&c.conn, &m, NULL, why, sizeof why), TANDEM_OK);
    td_wire_took(&c.rules, TD_WIRE_TO_DAEMON, &m);
    sleep_ms(200); /* in which it might be carried out too early */
    td_shared_timeline_raise(&in, 1);
    assert_int_equal(client_take(&c, &answer, &fd, PATIENCE), TANDEM_OK);
    assert_int_equal(answer.header.type, TD_WIRE_DONE);
    assert_int_equal(answer.header.serial, m.header.serial);
    for (uint64_t ticket = TD_WIRE_SLOTS + 1; ticket <= TD_WIRE_SLOTS + MORE; ticket++) {
        const td_wire_report r = client_report(&c, ticket, PATIENCE);

        assert_true(r.state == TANDEM_JOB_DONE || r.state == TANDEM_JOB_CANCELLED);
    }
    client_close(&c);
    td_shared_timeline_close(&in);
    for (int i = 0; i < 2; i++)
        task_free(&t[i]);
}

/* What a mem lies in is held as a whole, and counts so, once. */
static void allocations_count(void **state)
{
    enum { LARGE = 64 << 20, BUFFER = 1 << 20, PAGE = 4096 };
    char why[300] = "";
    uint64_t mems[3];
    int big, buffer;
    client c;

    (void)state;
    start_daemon("client_bytes = 2M\n");
    client_open(&c, "allocator");
    assert_int_equal(td_memfd_make("tandem-test-buffer", LARGE, false, &big, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_memfd_make("tandem-test-buffer", BUFFER, false, &buffer, why, sizeof why), TANDEM_OK);
    assert_int_equal(client_mem(&c, big, PAGE, LARGE), 0);
    assert_int_equal(c.event.error.status, TANDEM_ERROR_NOMEM);
    assert_non_null(strstr(c.event.error.text, "allocation_bytes is 67108864"));
    assert_int_equal(row_of(&c, "allocator").mem_bytes, 0);
    for (int i = 0; i < 3; i++) {
        mems[i] = client_mem(&c, buffer, i < 2 ? PAGE : BUFFER - PAGE, BUFFER);
        assert_true(mems[i] != 0);
        assert_int_equal(row_of(&c, "allocator").mem_bytes, i < 2 ? BUFFER : BUFFER + PAGE);
    }
    assert_int_equal(client_mem(&c, buffer, BUFFER, BUFFER), 0); /* they overlap: more than 2 MiB together */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(client_object(&c, TD_WIRE_MEM_DESTROY, mems[i]), TANDEM_OK);
        assert_int_equal(row_of(&c, "allocator").mem_bytes, i < 2 ? BUFFER : 0);
    }
    client_close(&c);
    td_fd_close(&big);
    td_fd_close(&buffer);
}

/* What it is started with, and what others do to its files. */

static void write_file(const char *path, const char *text, size_t bytes)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(fd >= 0 && write(fd, text, bytes) == (ssize_t)bytes);
    close(fd);
}

static mode_t mode_of(const char *path)
{
    struct stat st;

    assert_int_equal(lstat(path, &st), 0);
    return st.st_mode & 07777;
}

static void reload(const char *text)
{
    write_config(text);
    kill(daemon_pid, SIGHUP);
}

static void await_logs(const char *text, uint32_t times)
{
    const uint64_t begin = td_now_ns();
    static char all[1 << 20];
    uint32_t count = 0;

    while (count < times) {
        const int fd = open(log_path, O_RDONLY | O_CLOEXEC);
        const ssize_t got = read(fd, all, sizeof all - 1);

        assert_true(got >= 0 && td_now_ns() - begin < PATIENCE);
        all[got] = 0;
        close(fd);
        count = 0;
        for (const char *at = all; (at = strstr(at, text)); at++)
            count++;
        sleep_ms(5);
    }
}

static void await_mode(const char *path, mode_t mode)
{
    const uint64_t begin = td_now_ns();

    while (mode_of(path) != mode) {
        assert_true(td_now_ns() - begin < PATIENCE);
        sleep_ms(5);
    }
}

/* Whatever was put where its socket was: it keeps its mode, and is there when the daemon has gone. */
static void only_its_own_socket_is_touched(void **state)
{
    char aside[120], private[120];
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int other;

    (void)state;
    snprintf(aside, sizeof aside, "%s.aside", socket_path);
    snprintf(private, sizeof private, "%s/private", folder);
    start_daemon("");
    assert_int_equal(mode_of(socket_path), 0600);
    reload("backend = cpu\nallow_uid = 12345\n");
    await_mode(socket_path, 0666);
    for (int how = 0; how < 3; how++) { /* a link to a file, a file, another's socket */
        assert_int_equal(rename(socket_path, aside), 0);
        write_file(how == 1 ? socket_path : private, "x", 1);
        other = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        snprintf(to.sun_path, sizeof to.sun_path, "%s", socket_path);
        if (how == 0)
            assert_int_equal(symlink(private, socket_path), 0);
        if (how == 2)
            assert_true(!bind(other, (const struct sockaddr *)&to, sizeof to) && !chmod(socket_path, 0600));
        reload(how % 2 ? "backend = cpu\nallow_uid = 12345\n" : "backend = cpu\n");
        await_logs("is not this daemon's socket any more", (uint32_t)how + 1);
        assert_int_equal(mode_of(how ? socket_path : private), 0600);
        assert_int_equal(mode_of(aside), 0666);
        close(other);
        if (how == 2)
            break;
        unlink(socket_path);
        assert_int_equal(rename(aside, socket_path), 0);
    }
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
    assert_int_equal(mode_of(socket_path), 0600);
    unlink(socket_path);
    unlink(aside);
    unlink(private);
}

static void exec_without(bool standard_fds, rlim_t file_bytes)
{
    const struct rlimit limit = {file_bytes, file_bytes};
    const int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_DFL);
    dup2(log, STDERR_FILENO);
    if (file_bytes)
        setrlimit(RLIMIT_FSIZE, &limit);
    for (int fd = 0; fd < 3 && !standard_fds; fd++)
        close(fd);
    execl(program, "tandemd", "--socket", socket_path, "--config", config_path, (char *)NULL);
    _exit(127);
}

static void launch_without(bool standard_fds, rlim_t file_bytes)
{
    write_config("backend = cpu\nlog = debug\n");
    daemon_pid = fork();
    assert_true(daemon_pid >= 0);
    if (!daemon_pid)
        exec_without(standard_fds, file_bytes);
    await_socket();
}

/* Without standard error no file that it opens gets that number, and the log's lines. */
static void no_line_goes_into_a_file_of_its_own(void **state)
{
    char lock[120];
    struct stat st;

    (void)state;
    next_log();
    snprintf(lock, sizeof lock, "%s.lock", socket_path);
    launch_without(false, 0);
    check_serves();
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
    assert_int_equal(stat(lock, &st), 0);
    assert_int_equal(st.st_size, 0);
}

/* A log that may not grow is no end of it; nor that there can be no memory to share, which is said. */
static void limited_files_do_not_end_it(void **state)
{
    static char full[4 << 20]; /* longer than what a worker shares: its queue has room for runs, 2.3 MiB */

    (void)state;
    next_log();
    memset(full, '\n', sizeof full);
    write_file(log_path, full, sizeof full);
    launch_without(true, sizeof full);
    check_serves();
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);

    next_log();
    launch_without(true, 8192);
    await_log("no worker can be started, once more in 1 s: a memfd of ");
    assert_int_equal(kill(daemon_pid, 0), 0);
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
}

/* Who asks for the metrics. */

static struct sockaddr_in web;

static int ask_web(const char *request)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(connect(fd, (const struct sockaddr *)&web, sizeof web), 0);
    if (request)
        assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
    return fd;
}

/* Up to its end; closes. */
static const char *reply_of(int fd)
{
    static char text[300000];
    const struct timeval most = {30, 0};
    size_t have = 0;
    ssize_t got;

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    while (have < sizeof text - 1 && (got = recv(fd, text + have, sizeof text - 1 - have, 0)) > 0)
        have += (size_t)got;
    close(fd);
    text[have] = 0;
    return text;
}

static void start_with_web(void)
{
    char config[60];

    web = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)free_port())};
    snprintf(config, sizeof config, "metrics = %d\n", ntohs(web.sin_port));
    start_daemon(config);
}

static void only_requests_for_the_metrics_get_them(void **state)
{
    static const struct {
        int status;
        const char *request;
    } cases[] = {
        {200, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n"},
        {200, "GET /metrics?all HTTP/1.0\r\n\r\n"},
        {200, "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n"},
        {404, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"},
        {404, "GET /metricsx HTTP/1.1\r\n\r\n"},
        {405, "POST /metrics HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"},
        {405, "DELETE / HTTP/1.1\r\n\r\n"},
        {400, "hello\r\n"},
        {400, "\x16\x03\x01\x02"},
        {400, "GET /metrics\r\n\r\n"},
        {400, "GET  /metrics HTTP/1.1\r\n\r\n"},
        {400, "GET /metrics HTTP/2.0\r\n\r\n"},
        {400, "GET /met\trics HTTP/1.1\r\n\r\n"},
        {400, "GET /metrics HTTP/1.1\r\nno field\r\n\r\n"},
        {400, "GET /metrics HTTP/1.1\r\n: nameless\r\n\r\n"},
        {400, "GET /metr"}, /* and no more */
    };
    static char endless[8192];

    (void)state;
    start_with_web();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *reply = reply_of(ask_web(cases[i].request)), *body = strstr(reply, "\r\n\r\n");
        int status = 0;

        if (sscanf(reply, "HTTP/1.%*1d %d ", &status) != 1 || status != cases[i].status)
            fail_msg("'%s' is answered by '%.40s', not by %d", cases[i].request, reply, cases[i].status);
        assert_non_null(body);
        assert_int_equal(strstr(body, "\ntandemd_clients ") != NULL, status == 200 && cases[i].request[0] == 'G');
        assert_int_equal(strstr(reply, "Allow: GET, HEAD\r\n") != NULL, status == 405);
    }
    memset(endless, 'x', sizeof endless - 1);
    memcpy(endless, "GET /metrics HTTP/1.1\r\nx: ", 26);
    assert_non_null(strstr(reply_of(ask_web(endless)), " 400 "));
    close(ask_web(NULL));
}

/* Idle ones are closed, without a word, and keep neither others who ask nor clients waiting. */
static void idle_askers_hold_nobody_up(void **state)
{
    enum { MANY = 60 };
    int idle[MANY];
    client c;

    (void)state;
    start_with_web();
    client_open(&c, "a game");
    for (int i = 0; i < MANY; i++)
        idle[i] = ask_web(i % 3 == 0 ? NULL : i % 3 == 1 ? "GET /met" : "GET /metrics HTTP/1.1\r\n\r\n"); /* and reads nothing */
    for (int i = 0; i < MANY; i++) {
        assert_non_null(strstr(reply_of(ask_web("GET /metrics HTTP/1.1\r\n\r\n")), "\ntandemd_clients 1\n"));
        assert_int_equal(client_object(&c, TD_WIRE_PING, 0), TANDEM_OK);
    }
    for (int i = 0; i < MANY; i++) {
        const char *reply = reply_of(idle[i]);

        if (i % 3 == 2)
            assert_non_null(strstr(reply, "\ntandemd_clients 1\n"));
        else
            assert_true(!*reply || strstr(reply, " 400 ")); /* or it made room, without a word */
    }
    client_close(&c);
}

int main(void)
{
    const struct CMUnitTest own[] = {
        cmocka_unit_test_teardown(a_frame_with_a_deadline_lets_others_in, tear_down_daemon),
        cmocka_unit_test_teardown(a_job_does_not_wait_for_itself, tear_down_daemon),
        cmocka_unit_test_teardown(a_destroy_waits_for_the_ring, tear_down_daemon),
        cmocka_unit_test_teardown(allocations_count, tear_down_daemon),
        cmocka_unit_test_teardown(only_its_own_socket_is_touched, tear_down_daemon),
        cmocka_unit_test_teardown(no_line_goes_into_a_file_of_its_own, tear_down_daemon),
        cmocka_unit_test_teardown(limited_files_do_not_end_it, tear_down_daemon),
        cmocka_unit_test_teardown(only_requests_for_the_metrics_get_them, tear_down_daemon),
        cmocka_unit_test_teardown(idle_askers_hold_nobody_up, tear_down_daemon),
        cmocka_unit_test_teardown(silent_connections_keep_nobody_out, tear_down_daemon),
    };

    if (!begin_tests("tandemd"))
        return 1;
    return end_tests(cmocka_run_group_tests(own, NULL, NULL));
}
