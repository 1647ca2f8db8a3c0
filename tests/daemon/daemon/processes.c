/* tandemd as a process: how it is started, configured, watched and stopped.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <poll.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "tests/daemon/daemon/parts.h"
#include "tests/limits.h"

static void it_stops_within_two_seconds(void **state)
{
    td_shared_timeline out;
    tandem_job job;
    uint64_t ticket, begin;
    client c;
    task t;
    int status;

    (void)state;
    start_daemon("log = debug\n");
    kill(daemon_pid, SIGHUP);
    await_log("was read again");
    write_config("mems = many\n");
    kill(daemon_pid, SIGHUP);
    await_log("stays as it is");
    await_log("mems is 'many'");
    client_open(&c, "last");
    task_make(&t, &large, 40);
    task_share(&t, &c);
    job = job_of(&t);
    job.signal.timeline = client_timeline(&c, &out, true, 0);
    for (uint64_t i = 1; i <= 4; i++) {
        job.signal.value = i;
        ticket = client_job(&c, &job);
    }
    begin = td_now_ns();
    status = end_daemon(SIGTERM, PATIENCE);
    print_message("  it took %.0f ms\n", (double)(td_now_ns() - begin) / 1e6);
    assert_int_equal(status, 0);
    if (!getenv("TANDEM_SANITIZED"))
        assert_true(td_now_ns() - begin < LIMITS_SOON_NS);
    assert_int_equal(point_value(&out), 4); /* no point is lost */
    assert_true(client_report(&c, ticket, 0).state > TANDEM_JOB_RUNNING);
    while (client_events(&c, 100 * MS) == TANDEM_OK)
        ;
    assert_int_equal(c.byes, 1);
    assert_int_equal(c.event.bye.reason, TD_WIRE_BYE_STOPPING);
    assert_int_equal(access(socket_path, F_OK), -1);
    client_close(&c);
    td_shared_timeline_close(&out);
    task_free(&t);
}

static int notify_fd = -1;
static bool await_note(const char *text)
{
    const uint64_t begin = td_now_ns();
    char note[100];

    while (td_now_ns() - begin < PATIENCE) {
        struct pollfd p = {notify_fd, POLLIN, 0};
        const ssize_t got = poll(&p, 1, 100) > 0 ? recv(notify_fd, note, sizeof note - 1, 0) : 0;

        note[got > 0 ? got : 0] = 0;
        if (!strcmp(note, text))
            return true;
    }
    return false;
}

/* As a service manager starts it: with its socket, its ear and its watchdog. */
static void a_service_manager_is_served(void **state)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char path[100];
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), request = -1;
    struct sockaddr_in web = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static char page[60000];
    size_t have = 0;
    ssize_t got;
    client c;
    char config[100];

    (void)state;
    web.sin_port = htons((uint16_t)free_port());
    snprintf(config, sizeof config, "metrics = %d\n", ntohs(web.sin_port));
    write_config(config);
    next_log();
    snprintf(at.sun_path, sizeof at.sun_path, "%s", socket_path);
    unlink(socket_path);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 8), 0);
    snprintf(path, sizeof path, "%s/notify", folder);
    unlink(path);
    notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    assert_int_equal(bind(notify_fd, (struct sockaddr *)&at, sizeof at), 0);
    daemon_pid = fork();
    if (!daemon_pid) {
        char pid[20];

        snprintf(pid, sizeof pid, "%d", (int)getpid());
        setenv("LISTEN_PID", pid, 1);
        setenv("LISTEN_FDS", "1", 1);
        setenv("NOTIFY_SOCKET", path, 1);
        setenv("WATCHDOG_USEC", "400000", 1);
        dup2(fd, 3);
        exec_daemon();
    }
    close(fd);
    assert_true(await_note("READY=1"));
    assert_true(await_note("WATCHDOG=1"));
    assert_true(await_note("WATCHDOG=1"));
    client_open(&c, "quote \" here");
    request = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(request, (struct sockaddr *)&web, sizeof web), 0);
    assert_true(send(request, "GET /metrics HTTP/1.0\r\n\r\n", 25, MSG_NOSIGNAL) > 0);
    while (have < sizeof page - 1 && (got = recv(request, page + have, sizeof page - 1 - have, 0)) > 0)
        have += (size_t)got;
    close(request);
    assert_non_null(strstr(page, "200 OK"));
    assert_non_null(strstr(page, "\ntandemd_clients 1\n"));
    assert_non_null(strstr(page, "\ntandemd_background_slice_ns_max 0\n"));
    assert_non_null(strstr(page, "name=\"quote \\\" here\",class=\"frame\"} 0\n"));
    client_close(&c);
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
    assert_true(await_note("STOPPING=1"));
    assert_int_equal(access(socket_path, F_OK), 0); /* the manager's */
    unlink(socket_path);
    close(notify_fd);
}

/* What cannot be begun is said, in one line. */
static void wrong_starts_are_told(void **state)
{
    static const struct {
        const char *config, *says;
    } wrong[] = {{"cleints = 2\n", "line 1: 'cleints' is no key"},
                 {"\n# x\nclients = 0\n", "line 3: clients is 0, must be 1 to 48"},
                 {"backend = gpu\n", "backend is 'gpu', must be auto, cuda or cpu"},
                 {"mem_bytes = 4T\n", "mem_bytes is '4T', must be a number, behind it K, M, G or nothing"},
                 {"nonsense\n", "has no '='"},
                 {"model_dir = models\n", "must be an absolute path"},
                 {"tuning = tuning.json\n", "tuning is 'tuning.json', must be an absolute path"},
                 {"tuning = /nonexistent/tuning.json\n", "tuning is '/nonexistent/tuning.json': No such file"},
                 {"tuning = /dev/null\n", "tuning is '/dev/null': the table is no JSON"},
                 {"allow_uid = -1\n", "allow_uid is '-1'"}};

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        launch_daemon(wrong[i].config);
        assert_int_equal(end_daemon(0, PATIENCE), 1);
        if (!has_logged(log_path, wrong[i].says)) {
            show_log();
            fail_msg("'%s' is not said", wrong[i].says);
        }
    }
    start_daemon("");
    {
        const pid_t first = daemon_pid;

        daemon_pid = fork();
        if (!daemon_pid)
            exec_daemon();
        assert_int_equal(end_daemon(0, PATIENCE), 1); /* there is one already */
        assert_true(has_logged(log_path, "a daemon listens there"));
        daemon_pid = first;
    }
    {
        struct stat st;

        assert_int_equal(stat(socket_path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
    }
    check_serves();
}

static void reload(const char *text, const char *says)
{
    write_config(text);
    kill(daemon_pid, SIGHUP);
    await_log(says);
}

/* What AUTO is to go by is read once; on a CPU, or another GPU, it is told that it is not used. */
static void a_tuning_is_read_at_the_start(void **state)
{
    static const char text[] =
        "{\"tandem\":\"choice\",\"version\":2,\"device\":\"a GPU\",\"sm\":90,\"multiprocessors\":1,"
        "\"parts\":[{\"head_dim\":64,\"causal\":0}]}";
    char path[120], config[200];
    FILE *file;

    (void)state;
    snprintf(path, sizeof path, "%s/tuning.json", folder);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    snprintf(config, sizeof config, "backend = cpu\ntuning = %s\n", path);
    start_daemon(config);
    await_log("what was given is not used: there are no tables of the CPU's kernels");
    assert_true(has_logged(log_path, path));
    unlink(path);
    reload(config, "the configuration was read again");
    check_serves();
}

/* Files that people do not write, and files that are written while the daemon runs. */
static void configurations_may_be_odd(void **state)
{
    char text[1400];
    struct stat st;

    (void)state;
    memset(text, 'x', sizeof text); /* a comment however long is one line */
    memcpy(text, "# ", 2);
    strcpy(text + 1300, " = 1\nbackend = cpu\n");
    launch_daemon(text);
    await_log("computes on");
    assert_int_equal(stat(socket_path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    reload("backend = cpu\nallow_uid = 65534\n", "was read again"); /* others come from now on */
    assert_int_equal(stat(socket_path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0666);
    reload("backend = cuda\nmetrics = 1\n", "until the next start");
    {
        const pid_t worker = await_worker(0);

        kill(worker, SIGKILL); /* the next one computes on the same */
        await_worker(worker);
        check_serves();
    }
    while (stat(socket_path, &st) || (st.st_mode & 0777) != 0600)
        sleep_ms(1);
    unlink(config_path);
    assert_int_equal(mkfifo(config_path, 0600), 0); /* to read which would take for ever */
    kill(daemon_pid, SIGHUP);
    await_log("is no regular file");
    check_serves();
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
    unlink(config_path);
    {
        FILE *file = fopen(config_path, "w");

        assert_non_null(file);
        assert_true(fwrite("log = info\nclients = 4\0 0\n", 1, 26, file) == 26);
        assert_int_equal(fclose(file), 0);
    }
    next_log();
    daemon_pid = fork();
    if (!daemon_pid)
        exec_daemon();
    assert_int_equal(end_daemon(0, PATIENCE), 1);
    assert_true(has_logged(log_path, "line 2: byte 11 is 0"));
}

/* Without --socket and --config: where the session's folder and the user's configuration are. */
static void exec_plain_daemon(const char *runtime, const char *home)
{
    const int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(log, STDERR_FILENO);
    setenv("XDG_RUNTIME_DIR", runtime, 1);
    setenv("XDG_CONFIG_HOME", home, 1);
    execl(program, "tandemd", (char *)NULL);
    _exit(127);
}

static void start_plain_daemon(const char *runtime, const char *home)
{
    next_log();
    daemon_pid = fork();
    if (!daemon_pid)
        exec_plain_daemon(runtime, home);
}

static void folders_are_looked_at(void **state)
{
    char runtime[100], path[160];
    FILE *file;

    (void)state;
    start_plain_daemon("run/user", "/nowhere");
    assert_int_equal(end_daemon(0, PATIENCE), 1);
    assert_true(has_logged(log_path, "no absolute path"));
    snprintf(runtime, sizeof runtime, "%s/run", folder);
    assert_int_equal(mkdir(runtime, 0700), 0);
    assert_int_equal(chmod(runtime, 0777), 0);
    start_plain_daemon(runtime, "/nowhere");
    assert_int_equal(end_daemon(0, PATIENCE), 1);
    assert_true(has_logged(log_path, "others can write to"));
    assert_int_equal(chmod(runtime, 0700), 0);
    start_plain_daemon(runtime, runtime);
    await_log("computes on");
    snprintf(path, sizeof path, "%s/tandem", runtime); /* made later than the daemon was started */
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/tandem/tandemd.conf", runtime);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs("clients = none\n", file);
    assert_int_equal(fclose(file), 0);
    kill(daemon_pid, SIGHUP);
    await_log("clients is 'none'");
    unlink(path);
    kill(daemon_pid, SIGHUP);
    await_log("was read again");
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
}

/* However many there are, and whatever they are called, every line is one. */
static void metrics_are_whole(void **state)
{
    struct sockaddr_in web = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static char page[300000];
    static client c[48];
    char config[100], name[TD_WIRE_NAME_BYTES] = "";
    uint32_t lines = 0;
    size_t have = 0;
    ssize_t got;
    int request;

    (void)state;
    web.sin_port = htons((uint16_t)free_port());
    snprintf(config, sizeof config, "clients = 48\nmetrics = %d\n", ntohs(web.sin_port));
    start_daemon(config);
    memset(name, '"', sizeof name - 1);
    for (int i = 0; i < 48; i++)
        client_open(&c[i], name);
    request = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(request, (struct sockaddr *)&web, sizeof web), 0);
    assert_int_equal(send(request, "GET /metrics HTTP/1.0\r\n\r\n", 25, MSG_NOSIGNAL), 25);
    while (have < sizeof page - 1 && (got = recv(request, page + have, sizeof page - 1 - have, 0)) > 0)
        have += (size_t)got;
    close(request);
    assert_non_null(strstr(page, "\r\n\r\n"));
    for (char *line = strtok(strstr(page, "\r\n\r\n") + 4, "\n"); line; line = strtok(NULL, "\n")) {
        assert_true(!strncmp(line, "tandemd_", 8) || !strncmp(line, "# ", 2));
        lines += !strncmp(line, "tandemd_client_", 15);
    }
    assert_int_equal(lines % 48, 0);
    assert_true(lines >= 9 * 48);
    for (int i = 0; i < 48; i++)
        client_close(&c[i]);
}

/* Only its own user, and who is allowed. */
static void others_need_leave(void **state)
{
    enum { NOBODY = 65534 };

    (void)state;
    if (geteuid()) {
        print_message("  only root can be somebody else\n");
        skip();
    }
    assert_int_equal(chmod(folder, 0711), 0);
    for (int allowed = 0; allowed < 2; allowed++) {
        pid_t other;
        int status;

        start_daemon(allowed ? "allow_uid = 65534\n" : "");
        if (!allowed) /* the second line of defence */
            assert_int_equal(chmod(socket_path, 0666), 0);
        other = fork();
        if (!other) {
            td_wire_message m = hello(TD_WIRE_SHARE_HOST, "somebody else");
            client c;

            if (setgid(NOBODY) || setuid(NOBODY) || client_connect(&c) != TANDEM_OK)
                _exit(3);
            status = client_hello(&c, &m) == TANDEM_OK;
            if (!status && (c.event.header.type != TD_WIRE_ERROR || c.event.error.status != TANDEM_ERROR_UNSUPPORTED))
                _exit(4);
            _exit(status);
        }
        assert_int_equal(waitpid(other, &status, 0), other);
        assert_int_equal(status, allowed << 8);
        check_serves();
        assert_int_equal(tear_down_daemon(NULL), 0);
    }
    assert_int_equal(chmod(folder, 0700), 0);
}

/* Broker, worker and launcher have given up what they do not need. */
static void processes_are_confined(void **state)
{
    char name[64];

    (void)state;
    start_daemon("");
    for (int i = 0; i < 3; i++) {
        const pid_t worker = await_worker(0);
        const pid_t pid = i == 0 ? daemon_pid : i == 1 ? worker : parent_of(worker, name, sizeof name);

        assert_int_equal(status_of(pid, "NoNewPrivs"), 1);
        if (!getenv("TANDEM_SANITIZED"))
            assert_int_equal(status_of(pid, "Seccomp"), 2);
    }
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test_teardown(it_stops_within_two_seconds, tear_down_daemon),
    cmocka_unit_test_teardown(a_service_manager_is_served, tear_down_daemon),
    cmocka_unit_test_teardown(wrong_starts_are_told, tear_down_daemon),
    cmocka_unit_test_teardown(a_tuning_is_read_at_the_start, tear_down_daemon),
    cmocka_unit_test_teardown(configurations_may_be_odd, tear_down_daemon),
    cmocka_unit_test_teardown(folders_are_looked_at, tear_down_daemon),
    cmocka_unit_test_teardown(metrics_are_whole, tear_down_daemon),
    cmocka_unit_test_teardown(others_need_leave, tear_down_daemon),
    cmocka_unit_test_teardown(processes_are_confined, tear_down_daemon),
};
const test_cases daemon_processes_cases = TEST_CASES(cases);
