/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugin/daemon_client.h"

#include "interop/os/memory.h"

char folder[64], socket_path[96], config_path[96], log_path[96], program[4096];
pid_t daemon_pid;

void sleep_ms(unsigned ms) { usleep(ms * 1000); }

/* The daemon. */

void write_config(const char *text)
{
    FILE *file = fopen(config_path, "w");

    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

void show_log(void)
{
    FILE *file = fopen(log_path, "r");
    char line[1000];

    while (file && fgets(line, sizeof line, file))
        print_message("  %s", line);
    if (file)
        fclose(file);
}

void next_log(void)
{
    static int number;

    snprintf(log_path, sizeof log_path, "%s/log.%d", folder, ++number);
}

void exec_daemon(void)
{
    const int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(log, STDERR_FILENO);
    execl(program, "tandemd", "--socket", socket_path, "--config", config_path, (char *)NULL);
    _exit(127);
}

void await_log(const char *text)
{
    const uint64_t begin = td_now_ns();

    while (!has_logged(log_path, text)) {
        if (td_now_ns() - begin > PATIENCE) {
            show_log();
            fail_msg("'%s' was not logged", text);
        }
        sleep_ms(5);
    }
}

void await_socket(void)
{
    const uint64_t begin = td_now_ns();

    while (access(socket_path, F_OK)) {
        assert_true(td_now_ns() - begin < PATIENCE);
        sleep_ms(5);
    }
}

void launch_daemon(const char *config)
{
    write_config(config);
    next_log();
    daemon_pid = fork();
    assert_true(daemon_pid >= 0);
    if (!daemon_pid)
        exec_daemon();
}

void start_daemon(const char *config)
{
    char text[1000];

    snprintf(text, sizeof text, "backend = cpu\n%s", config);
    launch_daemon(text);
    await_log("computes on");
}

int end_daemon(int signal_number, uint64_t within_ns)
{
    const uint64_t begin = td_now_ns();
    int status = 0;

    if (signal_number)
        kill(daemon_pid, signal_number);
    while (waitpid(daemon_pid, &status, WNOHANG) == 0) {
        if (td_now_ns() - begin > within_ns) {
            kill(daemon_pid, SIGKILL);
            waitpid(daemon_pid, &status, 0);
            daemon_pid = 0;
            return -1;
        }
        sleep_ms(2);
    }
    daemon_pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

pid_t parent_of(pid_t pid, char *name, size_t name_bytes)
{
    char path[64], text[400];
    const char *end;
    pid_t parent = -1;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    file = fopen(path, "re");
    if (!file)
        return -1;
    if (fgets(text, sizeof text, file) && (end = strrchr(text, ')'))) {
        const char *begin = strchr(text, '(') + 1;
        char state;

        snprintf(name, name_bytes, "%.*s", (int)(end - begin), begin);
        if (sscanf(end + 1, " %c %d", &state, &parent) != 2 || state == 'Z')
            parent = -1;
    }
    fclose(file);
    return parent;
}

pid_t find_worker(void)
{
    DIR *dir = opendir("/proc");
    struct dirent *e;
    pid_t found = 0;

    while (dir && (e = readdir(dir))) {
        const pid_t pid = (pid_t)atoi(e->d_name);
        char name[64], above[64];

        if (pid > 0 && parent_of(pid, name, sizeof name) > 0 && !strcmp(name, "tandemd-worker") &&
            parent_of(parent_of(pid, name, sizeof name), above, sizeof above) == daemon_pid)
            found = pid;
    }
    if (dir)
        closedir(dir);
    return found;
}

pid_t await_worker(pid_t other_than)
{
    const uint64_t begin = td_now_ns();
    pid_t pid;

    while (!(pid = find_worker()) || pid == other_than) {
        assert_true(td_now_ns() - begin < PATIENCE);
        sleep_ms(2);
    }
    return pid;
}

int count_fds(pid_t pid)
{
    char path[64];
    struct dirent *e;
    int count = 0;
    DIR *dir;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    dir = opendir(path);
    if (!dir && errno == EACCES && geteuid())
        return -1;
    assert_non_null(dir);
    while ((e = readdir(dir)))
        count += e->d_name[0] != '.';
    closedir(dir);
    return count;
}

long status_of(pid_t pid, const char *what)
{
    char path[64], line[200];
    long value = 0;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    file = fopen(path, "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, what, strlen(what)) && line[strlen(what)] == ':')
            value = atol(line + strlen(what) + 1);
    fclose(file);
    return value;
}

int free_port(void)
{
    struct sockaddr_in web = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int request = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t size = sizeof web;

    assert_int_equal(bind(request, (struct sockaddr *)&web, sizeof web), 0);
    assert_int_equal(getsockname(request, (struct sockaddr *)&web, &size), 0);
    close(request);
    return ntohs(web.sin_port);
}

void await_clean(int fds, long shared_kib)
{
    const uint64_t begin = td_now_ns();
    const pid_t worker = await_worker(0);

    while (count_fds(daemon_pid) > fds || status_of(worker, "RssShmem") > shared_kib) {
        if (td_now_ns() - begin > PATIENCE)
            fail_msg("%d descriptors, %d before; %ld KiB shared, %ld before", count_fds(daemon_pid), fds,
                     status_of(worker, "RssShmem"), shared_kib);
        sleep_ms(5);
    }
}

int set_up_daemon(void **state)
{
    (void)state;
    start_daemon("# nothing but defaults\n");
    return 0;
}

int tear_down_daemon(void **state)
{
    (void)state;
    if (daemon_pid > 0 && end_daemon(SIGTERM, PATIENCE) != 0) {
        show_log();
        return 1;
    }
    return 0;
}

/* A client. */

tandem_status client_connect(client *c)
{
    const uint64_t begin = td_now_ns();
    char why[300] = "";
    tandem_status status;

    memset(c, 0, sizeof *c);
    c->rules = td_wire_rules_new(td_operation_of_clients);
    do {
        status = td_conn_connect(&c->conn, socket_path, why, sizeof why);
        if (status == TANDEM_ERROR_BUSY)
            sleep_ms(1);
    } while (status == TANDEM_ERROR_BUSY && td_now_ns() - begin < PATIENCE);
    return status;
}

tandem_status client_take(client *c, td_wire_message *m, int *fd, uint64_t timeout_ns)
{
    char why[300] = "";
    tandem_status status = td_conn_wait(&c->conn, timeout_ns, why, sizeof why);

    *fd = -1;
    if (status != TANDEM_OK)
        return status;
    status = td_conn_recv(&c->conn, &c->rules, TD_WIRE_TO_CLIENT, m, fd, why, sizeof why);
    if (status == TANDEM_ERROR_PROTOCOL)
        fail_msg("the daemon lies: %s", why);
    return status;
}

void note_event(client *c, const td_wire_message *m)
{
    c->event = *m;
    c->resets += m->header.type == TD_WIRE_RESET;
    c->byes += m->header.type == TD_WIRE_BYE;
    c->job_errors += m->header.type == TD_WIRE_ERROR && m->error.ticket;
}

tandem_status client_events(client *c, uint64_t timeout_ns)
{
    td_wire_message m;
    int fd;
    tandem_status status;

    while ((status = client_take(c, &m, &fd, timeout_ns)) == TANDEM_OK) {
        note_event(c, &m);
        timeout_ns = 0;
    }
    return status;
}

tandem_status client_ask(client *c, td_wire_message *m, const int *fd, td_wire_message *answer, int *answer_fd)
{
    char why[300] = "";
    tandem_status status = td_conn_send(&c->conn, m, fd, why, sizeof why);
    int ignored;

    if (status != TANDEM_OK) {
        client_events(c, 0); /* its last words */
        return status;
    }
    td_wire_took(&c->rules, TD_WIRE_TO_DAEMON, m);
    for (;;) {
        status = client_take(c, answer, answer_fd ? answer_fd : &ignored, PATIENCE);
        if (status != TANDEM_OK)
            return status;
        if (answer->header.serial == m->header.serial)
            return TANDEM_OK;
        note_event(c, answer);
        if (answer->header.type == TD_WIRE_ERROR && !answer->error.ticket)
            return TANDEM_ERROR_LOST;
    }
}

td_wire_message hello(uint32_t share, const char *name)
{
    td_wire_message m = td_wire_new(TD_WIRE_HELLO, 1);

    m.hello.features = TD_WIRE_FEATURES;
    td_wire_identify(&m.hello.identity);
    m.hello.share = share;
    m.hello.timing = 1;
    m.hello.frames_in_flight = 24;
    m.hello.wait_bound_ns = 10000 * MS;
    td_wire_text(m.hello.name, sizeof m.hello.name, name);
    return m;
}

tandem_status client_hello(client *c, td_wire_message *m)
{
    td_wire_message answer;
    char why[300] = "";
    tandem_status status;
    int fd = -1;

    status = client_ask(c, m, NULL, &answer, &fd);
    if (status != TANDEM_OK || answer.header.type != TD_WIRE_WELCOME) {
        if (c->event.header.type == TD_WIRE_ERROR)
            print_message("  no WELCOME: %s\n", c->event.error.text);
        return TANDEM_ERROR_LOST;
    }
    c->welcome = answer.welcome;
    td_wire_rules_welcome(&c->rules, &answer.welcome);
    status = td_ring_open(&c->ring, &c->welcome.sizes, fd, why, sizeof why);
    td_fd_close(&fd);
    return status;
}

void client_open_as(client *c, const char *name, tandem_class job_class)
{
    td_wire_message m = hello(TD_WIRE_SHARE_HOST, name);

    m.hello.job_class = job_class;
    assert_int_equal(client_connect(c), TANDEM_OK);
    assert_int_equal(client_hello(c, &m), TANDEM_OK);
}

void client_open(client *c, const char *name)
{
    client_open_as(c, name, TANDEM_CLASS_FRAME);
}

void client_close(client *c)
{
    td_ring_close(&c->ring);
    td_conn_close(&c->conn);
}

uint64_t client_create(client *c, td_wire_message *m, int fd)
{
    td_wire_message answer;

    m->header.serial = c->rules.next_serial;
    if (client_ask(c, m, fd >= 0 ? &fd : NULL, &answer, NULL) != TANDEM_OK)
        return 0;
    if (answer.header.type == TD_WIRE_DONE)
        return answer.object.id;
    c->event = answer;
    return 0;
}

tandem_status client_object(client *c, td_wire_type type, uint64_t id)
{
    td_wire_message m = td_wire_new(type, c->rules.next_serial), answer;

    if (type != TD_WIRE_PING)
        m.object.id = id;
    if (client_ask(c, &m, NULL, &answer, NULL) != TANDEM_OK)
        return TANDEM_ERROR_LOST;
    c->event = answer;
    return answer.header.type == TD_WIRE_ERROR ? answer.error.status : TANDEM_OK;
}

uint64_t client_mem(client *c, int fd, uint64_t bytes, uint64_t allocation_bytes)
{
    td_wire_message m = td_wire_new(TD_WIRE_MEM_CREATE, 0);

    m.mem_create.kind = TD_WIRE_MEM_MEMFD;
    m.mem_create.bytes = bytes;
    m.mem_create.allocation_bytes = allocation_bytes;
    return client_create(c, &m, fd);
}

uint64_t client_share_timeline(client *c, int fd, bool by_daemon, uint64_t value)
{
    td_wire_message m = td_wire_new(TD_WIRE_TIMELINE_CREATE, 0);

    m.timeline_create.kind = TD_WIRE_TIMELINE_FUTEX;
    m.timeline_create.signaller = by_daemon;
    m.timeline_create.initial_value = value;
    return client_create(c, &m, fd);
}

uint64_t client_timeline(client *c, td_shared_timeline *timeline, bool by_daemon, uint64_t value)
{
    char why[300] = "";
    uint64_t id;
    int fd = -1;

    assert_int_equal(td_shared_timeline_make(timeline, value, &fd, why, sizeof why), TANDEM_OK);
    id = client_share_timeline(c, fd, by_daemon, value);
    td_fd_close(&fd);
    return id;
}

tandem_status client_put(client *c, td_wire_message *m)
{
    char why[300] = "";
    const tandem_status status = td_ring_put(&c->ring, m, why, sizeof why);

    if (status == TANDEM_OK)
        td_wire_took(&c->rules, TD_WIRE_RING, m);
    return status;
}

uint64_t client_job(client *c, const tandem_job *job)
{
    td_wire_message m = td_wire_new(TD_WIRE_JOB, 0);

    m.job.ticket = c->rules.next_ticket;
    m.job.submit_ns = td_now_ns();
    m.job.job = *job;
    assert_int_equal(client_put(c, &m), TANDEM_OK);
    c->last_ticket = m.job.ticket;
    return m.job.ticket;
}

td_wire_report client_report(client *c, uint64_t ticket, uint64_t timeout_ns)
{
    const uint64_t begin = td_now_ns();
    td_wire_report r = {0};
    char why[300] = "";

    for (;;) {
        const uint32_t seen = td_ring_seen(&c->ring);

        assert_int_equal(td_ring_read_report(&c->ring, ticket, &r, why, sizeof why), TANDEM_OK);
        if (r.state > TANDEM_JOB_RUNNING || td_now_ns() - begin > timeout_ns)
            return r;
        td_ring_sleep(&c->ring, seen, 50 * MS);
    }
}

uint64_t point_value(td_shared_timeline *timeline)
{
    return atomic_load(&timeline->counter->value);
}

bool await_point(td_shared_timeline *timeline, uint64_t value)
{
    const uint64_t begin = td_now_ns();
    char why[300] = "";

    for (;;) {
        const uint32_t seen = atomic_load(&timeline->counter->raised.count);
        uint64_t now;

        if (td_shared_timeline_read(timeline, &now, why, sizeof why) != TANDEM_OK)
            return false;
        if (now >= value || td_now_ns() - begin > PATIENCE)
            return now >= value;
        td_eventcount_wait(&timeline->counter->raised, seen, UINT64_MAX);
    }
}

/* Work: q, k, v and o in one buffer, and what a session in this process makes of it. */

const shape small = {2, 64, 96, 32, TANDEM_PRECISION_F16, 0};
const shape eight = {2, 130, 300, 64, TANDEM_PRECISION_8B, 0};
const shape large = {8, 2048, 2048, 64, TANDEM_PRECISION_F16, 0}; /* takes a while */

void task_make(task *t, const shape *of, uint32_t seed)
{
    char why[300] = "";
    uint64_t s = seed * 2654435761u + 12345;

    t->of = *of;
    t->q_bytes = 4ull * of->heads * of->rows * of->dim;
    t->k_bytes = 4ull * of->heads * of->keys * of->dim;
    t->o_at = t->q_bytes + 2 * t->k_bytes;
    t->bytes = td_align_up(t->o_at + t->q_bytes, 4096);
    assert_int_equal(td_memfd_make("tandem-test-buffer", t->bytes, false, &t->fd, why, sizeof why), TANDEM_OK);
    t->data = mmap(NULL, t->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, t->fd, 0);
    assert_true(t->data != MAP_FAILED);
    for (uint64_t i = 0; i < t->o_at / 4; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        t->data[i] = (float)(int32_t)(s >> 32) / 1e9f;
    }
}

void task_free(task *t)
{
    munmap(t->data, t->bytes);
    td_fd_close(&t->fd);
}

void task_share(task *t, client *c)
{
    t->mem = client_mem(c, t->fd, t->bytes, t->bytes);
    assert_true(t->mem != 0);
}

tandem_job job_of(const task *t)
{
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
    tandem_view q = {.mem = t->mem, .dtype = TANDEM_DTYPE_F32, .stride_row = t->of.dim}, k = q, v, o;

    q.stride_head = (int64_t)t->of.rows * t->of.dim;
    q.stride_batch = q.stride_head * t->of.heads;
    o = q;
    o.offset_bytes = t->o_at;
    k.stride_head = (int64_t)t->of.keys * t->of.dim;
    k.stride_batch = k.stride_head * t->of.heads;
    k.offset_bytes = t->q_bytes;
    v = k;
    v.offset_bytes += t->k_bytes;
    job.op.attention = (tandem_attention){.q = q, .k = k, .v = v, .o = o, .batch = 1, .heads = t->of.heads,
                                          .kv_heads = t->of.heads, .q_len = t->of.rows, .kv_len = t->of.keys,
                                          .head_dim = t->of.dim, .precision = t->of.precision,
                                          .causal = t->of.causal};
    return job;
}

void clear_output(task *t)
{
    memset((char *)t->data + t->o_at, 0xa5, t->q_bytes);
}

bool is_untouched(const task *t)
{
    const unsigned char *o = (const unsigned char *)t->data + t->o_at;

    for (uint64_t i = 0; i < t->q_bytes; i++)
        if (o[i] != 0xa5)
            return false;
    return true;
}

void *in_process(const task *t, uint32_t backend)
{
    tandem_session *session;
    tandem_mem mem;
    tandem_ticket ticket;
    tandem_job_report report = {.struct_bytes = sizeof report};
    void *host, *output = malloc(t->q_bytes);
    tandem_job job = job_of(t);

    assert_int_equal(tandem_session_create(&(tandem_session_desc){.struct_bytes = sizeof(tandem_session_desc),
                                                                  .backend = backend},
                                           &session),
                     TANDEM_OK);
    assert_int_equal(tandem_mem_create(session,
                                       &(tandem_mem_desc){.struct_bytes = sizeof(tandem_mem_desc), .bytes = t->bytes},
                                       &mem),
                     TANDEM_OK);
    assert_int_equal(tandem_mem_host(session, mem, &host), TANDEM_OK);
    memcpy(host, t->data, t->o_at);
    job.op.attention.q.mem = job.op.attention.k.mem = job.op.attention.v.mem = job.op.attention.o.mem = mem;
    assert_int_equal(tandem_submit(session, &job, &ticket), TANDEM_OK);
    assert_int_equal(tandem_wait(session, ticket, PATIENCE, &report), TANDEM_OK);
    assert_int_equal(report.state, TANDEM_JOB_DONE);
    memcpy(output, (char *)host + t->o_at, t->q_bytes);
    tandem_session_destroy(&session);
    return output;
}

void check_output(const task *t)
{
    void *expected = in_process(t, TANDEM_BACKEND_CPU);

    assert_memory_equal((char *)t->data + t->o_at, expected, t->q_bytes);
    free(expected);
}

void check_serves(void)
{
    client c;
    task t;

    task_make(&t, &small, 77);
    client_open(&c, "a check");
    task_share(&t, &c);
    clear_output(&t);
    {
        const tandem_job job = job_of(&t);

        assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).state, TANDEM_JOB_DONE);
    }
    check_output(&t);
    client_close(&c);
    task_free(&t);
}

tandem_status load_model(client *c, const char *path, uint64_t *model)
{
    td_wire_message m = td_wire_new(TD_WIRE_MODEL_LOAD, c->rules.next_serial), answer;

    td_wire_text(m.model_load.path, sizeof m.model_load.path, path);
    assert_int_equal(client_ask(c, &m, NULL, &answer, NULL), TANDEM_OK);
    c->event = answer;
    *model = answer.header.type == TD_WIRE_DONE ? answer.object.id : 0;
    return answer.header.type == TD_WIRE_ERROR ? answer.error.status : TANDEM_OK;
}

td_wire_row row_of(client *c, const char *name)
{
    td_wire_message m = td_wire_new(TD_WIRE_STATS, c->rules.next_serial), answer;

    assert_int_equal(client_ask(c, &m, NULL, &answer, NULL), TANDEM_OK);
    for (uint32_t i = 0; i < answer.stats_reply.count; i++)
        if (!strcmp(answer.stats_reply.rows[i].name, name))
            return answer.stats_reply.rows[i];
    return (td_wire_row){0};
}

td_wire_report run_job(client *c, const task *t)
{
    const tandem_job job = job_of(t);

    return client_report(c, client_job(c, &job), PATIENCE);
}

/* A program's. */

bool use_program(const char *daemon)
{
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 20);

    while (length > 0 && program[length - 1] != '/')
        length--;
    strcpy(program + (length > 0 ? length : 0), daemon);
    if (!access(program, X_OK))
        return true;
    fprintf(stderr, "%s is not there\n", program);
    return false;
}

bool begin_tests(const char *daemon)
{
    snprintf(folder, sizeof folder, "/tmp/tandem-daemon-XXXXXX");
    if (!mkdtemp(folder))
        return false;
    snprintf(socket_path, sizeof socket_path, "%s/socket", folder);
    snprintf(config_path, sizeof config_path, "%s/tandemd.conf", folder);
    if (!use_program(daemon))
        return false;
    signal(SIGPIPE, SIG_IGN);
    if (getenv("TANDEM_TEST_FILTER"))
        cmocka_set_test_filter(getenv("TANDEM_TEST_FILTER"));
    return true;
}

int end_tests(int failed)
{
    char command[100];

    if (failed) {
        print_message("what the daemons said is in %s\n", folder);
        return failed;
    }
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) != 0;
}
