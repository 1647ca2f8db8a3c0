/* tandemd.exe: what it computes has the bits of this process; clients and workers that are killed in the middle take nothing of
 * others' with them; a daemon that goes is told of, and one that comes back is found.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * As `test_daemon.exe --client PIPE` it is a client that submits until it is killed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <windows.h>

#include <tlhelp32.h>

#include "interop/os/file.h"
#include "tandem/tandem.h"
#include "tests/plugin/network_util.h"

enum { HEADS = 4, ROWS = 300, DIM = 64, VALUES = HEADS * ROWS * DIM, BYTES = VALUES * 2, BLOCK = (BYTES + 4095) / 4096 * 4096,
       NET_BYTES = NETWORK_ROWS * NETWORK_CHANNELS * sizeof(float) };
#define SECOND 1000000000ull

#define TOP "test_daemon.top"
#define CONFIG "test_daemon.conf"
#define MODEL "test_daemon.safetensors"

static char why[600];
static char pipe_name[100];

#define assert_ok(call) assert_ok_text(call, #call)
static void assert_ok_text(tandem_status status, const char *what)
{
    if (status != TANDEM_OK) {
        tandem_error_text(NULL, why, sizeof why);
        fail_msg("%s is %d: %s", what, status, why);
    }
}

/* Another program of this folder, or this one, with a console of its own, by which it can be asked to end. */
static HANDLE start(const char *program, const char *arguments)
{
    PROCESS_INFORMATION made;
    STARTUPINFOA how = {.cb = sizeof how};
    char path[1000], line[1300];
    char *name;

    GetModuleFileNameA(NULL, path, sizeof path);
    name = strrchr(path, '\\');
    assert_non_null(name);
    snprintf(name + 1, sizeof path - (size_t)(name + 1 - path), "%s", program);
    snprintf(line, sizeof line, "\"%s\" %s", path, arguments);
    assert_true(CreateProcessA(NULL, line, NULL, NULL, FALSE, CREATE_NEW_CONSOLE, NULL, NULL, &how, &made));
    CloseHandle(made.hThread);
    return made.hProcess;
}

static HANDLE start_daemon(void)
{
    char arguments[200];

    snprintf(arguments, sizeof arguments, "--socket %s --config " CONFIG, pipe_name);
    return start("tandemd.exe", arguments);
}

static void end(HANDLE *process)
{
    TerminateProcess(*process, 1);
    assert_int_equal(WaitForSingleObject(*process, 20000), WAIT_OBJECT_0);
    CloseHandle(*process);
    *process = NULL;
}

/* The process that another has started last; 0: none. */
static DWORD child_of(HANDLE parent)
{
    HANDLE all = CreateToolhelp32Snapshot(TH32CS_SNAPPROCESS, 0);
    PROCESSENTRY32 entry = {.dwSize = sizeof entry};
    DWORD found = 0;

    for (BOOL more = Process32First(all, &entry); more; more = Process32Next(all, &entry))
        if (entry.th32ParentProcessID == GetProcessId(parent))
            found = entry.th32ProcessID;
    CloseHandle(all);
    return found;
}

/* A session with what a job needs. */
typedef struct work {
    tandem_session *session;
    tandem_mem mem;
    tandem_timeline timeline;
    uint64_t value;
    unsigned char *host;
} work;

static tandem_status begin(work *w, const char *socket)
{
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc, .socket = socket, .backend = TANDEM_BACKEND_CPU,
                                                 .error_text = why, .error_text_bytes = sizeof why);
    const uint64_t until = GetTickCount64() + 30000;
    tandem_status status;
    void *host;

    *w = (work){0};
    do {
        status = tandem_session_create(&desc, &w->session);
        if (status != TANDEM_OK)
            Sleep(20);
    } while (socket && (status == TANDEM_ERROR_LOST || status == TANDEM_ERROR_BUSY) && GetTickCount64() < until);
    if (status != TANDEM_OK)
        return status;
    status = tandem_mem_create(w->session, &TANDEM_INIT(tandem_mem_desc, .bytes = 4 * BLOCK), &w->mem);
    if (status == TANDEM_OK)
        status = tandem_mem_host(w->session, w->mem, &host);
    if (status == TANDEM_OK)
        status = tandem_timeline_create(w->session, &TANDEM_INIT(tandem_timeline_desc, .signaller = TANDEM_SIGNALLER_SESSION),
                                        &w->timeline);
    w->host = status == TANDEM_OK ? host : NULL;
    for (int i = 0; w->host && i < 3; i++)
        for (int j = 0; j < VALUES; j++) /* halves between -1 and 1 */
            ((uint16_t *)(w->host + i * BLOCK))[j] = (uint16_t)((j * 7919 + i * 104729) % 0x3c00 | (j * 31 + i) % 2 << 15);
    return status;
}

static tandem_status submit(work *w, uint32_t precision, tandem_ticket *ticket)
{
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_ATTENTION, .signal = {w->timeline, ++w->value});
    tandem_attention *a = &job.op.attention;

    a->q = a->k = a->v = a->o = tandem_view_dense(w->mem, 0, TANDEM_DTYPE_F16, HEADS, ROWS, DIM);
    a->k.offset_bytes = BLOCK, a->v.offset_bytes = 2 * BLOCK, a->o.offset_bytes = 3 * BLOCK;
    a->batch = 1;
    a->heads = a->kv_heads = HEADS;
    a->q_len = a->kv_len = ROWS;
    a->head_dim = DIM;
    a->precision = precision;
    return tandem_submit(w->session, &job, ticket);
}

/* Submits a job and waits for it, once more as long as it is LOST with a worker or a daemon. */
static void compute(work *w, uint32_t precision)
{
    const uint64_t until = GetTickCount64() + 30000;
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    tandem_ticket ticket;
    tandem_status status;

    memset(w->host + 3 * BLOCK, 0xff, BYTES);
    do {
        report.status = status = submit(w, precision, &ticket);
        if (status == TANDEM_OK)
            assert_ok(tandem_wait(w->session, ticket, 20 * SECOND, &report));
        else
            Sleep(20);
    } while ((status == TANDEM_OK ? report.status : status) == TANDEM_ERROR_LOST && GetTickCount64() < until);
    assert_ok(status);
    assert_int_equal(report.state, TANDEM_JOB_DONE);
}

static void assert_same(const work *a, const work *b)
{
    assert_memory_equal(a->host + 3 * BLOCK, b->host + 3 * BLOCK, BYTES);
}

static HANDLE daemon_process;
static work here, there;

static void test_same_bits(void **state)
{
    static const uint32_t precisions[] = {TANDEM_PRECISION_F16, TANDEM_PRECISION_8B, TANDEM_PRECISION_4B};
    tandem_info info = TANDEM_INIT(tandem_info);
    HANDLE second;

    (void)state;
    daemon_process = start_daemon();
    assert_ok(begin(&here, NULL));
    assert_ok(begin(&there, pipe_name));
    assert_ok(tandem_session_info(there.session, &info));
    assert_int_equal(info.backend, TANDEM_BACKEND_CPU);
    for (size_t i = 0; i < sizeof precisions / sizeof *precisions; i++) {
        compute(&here, precisions[i]);
        compute(&there, precisions[i]);
        assert_same(&here, &there);
    }
    /* Where one listens another does not. */
    second = start_daemon();
    assert_int_equal(WaitForSingleObject(second, 20000), WAIT_OBJECT_0);
    CloseHandle(second);
    assert_int_equal(WaitForSingleObject(daemon_process, 0), WAIT_TIMEOUT);
}

/* What is computed can be waited for with all else that a program waits for. */
static void test_point(void **state)
{
    tandem_ticket ticket;
    int fd;

    (void)state;
    assert_ok(submit(&there, TANDEM_PRECISION_F16, &ticket));
    assert_ok(tandem_point_fd(there.session, (tandem_point){there.timeline, there.value}, &fd));
    assert_int_equal(WaitForSingleObject((HANDLE)(intptr_t)fd, 20000), WAIT_OBJECT_0);
    CloseHandle((HANDLE)(intptr_t)fd);
    assert_ok(tandem_wait(there.session, ticket, 20 * SECOND, NULL));
}

/* A network of a file that the daemon finds beneath its model directory, this folder; what leads out of it is refused. */
typedef struct net {
    tandem_session *session;
    tandem_model model;
    tandem_instance instance;
    tandem_mem mem;
    float *host;
} net;

static void open_net(net *n, tandem_session *session)
{
    uint32_t rows = NETWORK_ROWS;
    void *host;

    *n = (net){.session = session};
    assert_ok(tandem_model_load(session, MODEL, &n->model));
    assert_ok(tandem_model_instance(session, n->model, &TANDEM_INIT(tandem_instance_desc), &n->instance));
    assert_ok(tandem_model_prepare(session, n->instance, &rows, 1));
    assert_ok(tandem_mem_create(session, &TANDEM_INIT(tandem_mem_desc, .bytes = NETWORK_BINDINGS * NET_BYTES), &n->mem));
    assert_ok(tandem_mem_host(session, n->mem, &host));
    n->host = host;
    for (int i = 0; i < NETWORK_ROWS * NETWORK_CHANNELS; i++)
        n->host[i] = (float)(i * 7919 % 1000) / 500 - 1;
}

static void run_net(net *n)
{
    const uint32_t rows = NETWORK_ROWS;
    const int32_t length = NETWORK_ROWS - 3;
    tandem_view views[NETWORK_BINDINGS];
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_RUN);
    tandem_ticket ticket;

    for (uint32_t i = 0; i < NETWORK_BINDINGS; i++)
        views[i] = (tandem_view){.mem = n->mem, .offset_bytes = i * NET_BYTES, .dtype = TANDEM_DTYPE_F32};
    job.op.run = (tandem_run){.instance = n->instance, .bindings = views, .binding_count = NETWORK_BINDINGS, .numbers = &rows,
                              .number_count = 1, .uniforms = &length, .uniform_bytes = sizeof length};
    assert_ok(tandem_submit(n->session, &job, &ticket));
    assert_ok(tandem_wait(n->session, ticket, 20 * SECOND, &report));
    assert_int_equal(report.state, TANDEM_JOB_DONE);
}

static void test_same_network(void **state)
{
    net a, b;
    tandem_model model;

    (void)state;
    open_net(&a, here.session);
    open_net(&b, there.session);
    for (int i = 0; i < 3; i++) {
        run_net(&a);
        run_net(&b);
        assert_memory_equal(a.host, b.host, NETWORK_BINDINGS * NET_BYTES);
    }
    assert_int_equal(tandem_model_load(there.session, "..\\CMakeLists.txt", &model), TANDEM_ERROR_IO);
    tandem_error_text(NULL, why, sizeof why);
    assert_non_null(strstr(why, "it is not there, beneath 1 model directory"));
    assert_int_equal(tandem_model_load(there.session, "C:\\windows\\win.ini", &model), TANDEM_ERROR_IO);
}

/* Who computes there is said to `tandem top`. */
static void test_top(void **state)
{
    SECURITY_ATTRIBUTES inherit = {.nLength = sizeof inherit, .bInheritHandle = TRUE};
    HANDLE out = CreateFileA(TOP, GENERIC_WRITE, FILE_SHARE_READ, &inherit, CREATE_ALWAYS, 0, NULL);
    char path[1000], arguments[200], said[4096];
    STARTUPINFOA how = {.cb = sizeof how, .dwFlags = STARTF_USESTDHANDLES, .hStdOutput = out, .hStdError = out};
    PROCESS_INFORMATION made;
    DWORD code;
    FILE *file;

    (void)state;
    assert_ptr_not_equal(out, INVALID_HANDLE_VALUE);
    GetModuleFileNameA(NULL, path, sizeof path);
    *strrchr(path, '\\') = 0;
    strncat(path, "\\tandem.exe", sizeof path - strlen(path) - 1);
    snprintf(arguments, sizeof arguments, "tandem top --once --json --interval 0.2 --socket %s", pipe_name);
    assert_true(CreateProcessA(path, arguments, NULL, NULL, TRUE, 0, NULL, NULL, &how, &made));
    assert_int_equal(WaitForSingleObject(made.hProcess, 20000), WAIT_OBJECT_0);
    assert_true(GetExitCodeProcess(made.hProcess, &code));
    CloseHandle(made.hThread);
    CloseHandle(made.hProcess);
    CloseHandle(out);
    file = fopen(TOP, "rb");
    assert_non_null(file);
    said[fread(said, 1, sizeof said - 1, file)] = 0;
    fclose(file);
    td_file_remove(TOP);
    assert_int_equal(code, 0);
    if (!strstr(said, "test_daemon.exe"))
        fail_msg("%s", said);
}

static int be_client(const char *socket)
{
    tandem_ticket ticket;
    work w;

    if (begin(&w, socket) != TANDEM_OK)
        return 1;
    for (;;)
        if (submit(&w, TANDEM_PRECISION_F16, &ticket) == TANDEM_ERROR_BUSY)
            Sleep(0);
}

/* Others' jobs go on, and there is room again. */
static void test_killed_clients(void **state)
{
    char arguments[200];

    (void)state;
    snprintf(arguments, sizeof arguments, "--client %s", pipe_name);
    for (int i = 0; i < 3; i++) {
        HANDLE client = start("test_daemon.exe", arguments);

        Sleep(1000 + 200 * (DWORD)i); /* it is in the middle of its jobs */
        assert_int_equal(WaitForSingleObject(client, 0), WAIT_TIMEOUT);
        compute(&there, TANDEM_PRECISION_8B);
        end(&client);
        compute(&there, TANDEM_PRECISION_8B);
        compute(&here, TANDEM_PRECISION_8B);
        assert_same(&here, &there);
    }
    assert_int_equal(WaitForSingleObject(daemon_process, 0), WAIT_TIMEOUT);
}

static void test_killed_worker(void **state)
{
    const DWORD before = child_of(daemon_process);
    HANDLE worker = OpenProcess(PROCESS_TERMINATE | SYNCHRONIZE, FALSE, before);

    (void)state;
    assert_true(before && worker);
    end(&worker);
    memset(there.host, 0, 16); /* the next worker sees what is in the memory now */
    memset(here.host, 0, 16);
    compute(&there, TANDEM_PRECISION_F16);
    compute(&here, TANDEM_PRECISION_F16);
    assert_same(&here, &there);
    assert_true(child_of(daemon_process) && child_of(daemon_process) != before);
    assert_int_equal(WaitForSingleObject(daemon_process, 0), WAIT_TIMEOUT);
}

static void test_killed_daemon(void **state)
{
    const DWORD worker = child_of(daemon_process);
    HANDLE process = OpenProcess(SYNCHRONIZE, FALSE, worker);
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    tandem_ticket ticket;
    const uint64_t until = GetTickCount64() + 20000;
    tandem_status status;

    (void)state;
    assert_non_null(process);
    end(&daemon_process);
    assert_int_equal(WaitForSingleObject(process, 20000), WAIT_OBJECT_0); /* its worker goes with it */
    CloseHandle(process);
    do {
        status = submit(&there, TANDEM_PRECISION_F16, &ticket);
        if (status == TANDEM_OK) {
            assert_ok(tandem_wait(there.session, ticket, 20 * SECOND, &report));
            assert_int_equal(report.status, TANDEM_ERROR_LOST);
        }
    } while (status != TANDEM_ERROR_LOST && GetTickCount64() < until);
    assert_int_equal(status, TANDEM_ERROR_LOST);
    daemon_process = start_daemon();
    compute(&there, TANDEM_PRECISION_8B);
    compute(&here, TANDEM_PRECISION_8B);
    assert_same(&here, &there);
}

/* Ctrl-C's like: it ends as it should, and who is with it is told. */
static void test_asked_to_end(void **state)
{
    tandem_ticket ticket;
    tandem_status status;
    DWORD code;

    (void)state;
    FreeConsole();
    if (!AttachConsole(GetProcessId(daemon_process)) || !SetConsoleCtrlHandler(NULL, TRUE) ||
        !GenerateConsoleCtrlEvent(CTRL_C_EVENT, 0))
        fail_msg("the daemon's console: error %lu", GetLastError());
    assert_int_equal(WaitForSingleObject(daemon_process, 20000), WAIT_OBJECT_0);
    assert_true(GetExitCodeProcess(daemon_process, &code));
    assert_int_equal(code, 0);
    CloseHandle(daemon_process);
    daemon_process = NULL;
    do
        status = submit(&there, TANDEM_PRECISION_F16, &ticket);
    while (status == TANDEM_OK || status == TANDEM_ERROR_BUSY);
    assert_int_equal(status, TANDEM_ERROR_LOST);
    assert_ok(tandem_session_destroy(&there.session));
    assert_ok(tandem_session_destroy(&here.session));
}

static int set_up(void **state)
{
    char *model, *folder;
    FILE *file = fopen(CONFIG, "wb");

    (void)state;
    td_file_remove(MODEL);
    if (!file || !MoveFileA(network_file(network_text), MODEL))
        return -1;
    model = td_file_whole_path(MODEL);
    folder = model ? strrchr(model, '\\') : NULL;
    if (folder)
        *folder = 0;
    fprintf(file, "threads = 2\nmodel_dir = %s\n", model ? model : "");
    free(model);
    return fclose(file);
}

static int tear_down(void **state)
{
    (void)state;
    td_file_remove(MODEL);
    td_file_remove(CONFIG);
    if (daemon_process)
        TerminateProcess(daemon_process, 1);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),      cmocka_unit_test(test_point),
        cmocka_unit_test(test_same_network),  cmocka_unit_test(test_top),
        cmocka_unit_test(test_killed_clients),
        cmocka_unit_test(test_killed_worker), cmocka_unit_test(test_killed_daemon),
        cmocka_unit_test(test_asked_to_end),
    };

    if (argc == 3 && !strcmp(argv[1], "--client"))
        return be_client(argv[2]);
    snprintf(pipe_name, sizeof pipe_name, "\\\\.\\pipe\\tandemd-test-%lu", GetCurrentProcessId());
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
