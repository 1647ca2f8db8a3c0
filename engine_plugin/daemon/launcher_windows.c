/* The launcher: on Windows a thread of the broker's, as that is not confined.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "engine_plugin/daemon/launcher.h"
#include "engine_plugin/daemon/limits.h"
#include "engine_plugin/daemon/log.h"
#include "engine_plugin/daemon/pass.h"
#include "interop/os/channel.h"
#include "interop/os/descriptor.h"
#include "interop/os/file.h"
#include "interop/os/poll.h"
#include "interop/os/thread.h"

enum { PATH_UNITS = 2048, KILLED = 137, SIGNAL_KILL = 9, SIGNAL_FAULT = 11 };

typedef struct launcher {
    int broker;
    int worker; /* the last one, as a descriptor, until it has ended; or -1 */
    int32_t worker_pid;
    HANDLE job; /* its processes end with this one, however that does */
    td_config config;
} launcher;
static launcher the;

static HANDLE handle_of(int fd)
{
    return (HANDLE)(intptr_t)fd;
}

static HANDLE make_job(void)
{
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION limits = {.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE};
    HANDLE job = CreateJobObjectW(NULL, NULL);

    if (job)
        SetInformationJobObject(job, JobObjectExtendedLimitInformation, &limits, sizeof limits);
    return job;
}

/* This program again, which inherits these handles and no other. */
static bool start(launcher *n, const HANDLE *handles, DWORD count, wchar_t *line, PROCESS_INFORMATION *made)
{
    STARTUPINFOEXW how = {.StartupInfo.cb = sizeof how,
                          .StartupInfo.dwFlags = STARTF_USESTDHANDLES,
                          .StartupInfo.hStdError = GetStdHandle(STD_ERROR_HANDLE)};
    wchar_t program[PATH_UNITS];
    SIZE_T bytes = 0;
    bool started = false;
    const DWORD units = GetModuleFileNameW(NULL, program, PATH_UNITS);

    InitializeProcThreadAttributeList(NULL, 1, 0, &bytes);
    how.lpAttributeList = malloc(bytes);
    if (units && units < PATH_UNITS && how.lpAttributeList &&
        InitializeProcThreadAttributeList(how.lpAttributeList, 1, 0, &bytes)) {
        started = UpdateProcThreadAttribute(how.lpAttributeList, 0, PROC_THREAD_ATTRIBUTE_HANDLE_LIST,
                                            (void *)(uintptr_t)handles, count * sizeof *handles, NULL, NULL) &&
                  CreateProcessW(program, line, NULL, NULL, TRUE, EXTENDED_STARTUPINFO_PRESENT | CREATE_NO_WINDOW, NULL, NULL,
                                 &how.StartupInfo, made);
        DeleteProcThreadAttributeList(how.lpAttributeList);
    }
    free(how.lpAttributeList);
    if (started && n->job)
        AssignProcessToJobObject(n->job, made->hProcess);
    return started;
}

static void spawn(launcher *n, td_launcher_message *m, const int fds[2])
{
    HANDLE handles[3] = {handle_of(fds[0]), handle_of(fds[1]), GetStdHandle(STD_ERROR_HANDLE)};
    PROCESS_INFORMATION made;
    DWORD flags, count = 2;
    wchar_t line[120];

    m->kind = TD_LAUNCHER_SPAWNED;
    m->pid = 0;
    m->status = TANDEM_ERROR_NOMEM;
    for (int i = 0; i < 3; i++)
        if (handles[i] && GetHandleInformation(handles[i], &flags) &&
            SetHandleInformation(handles[i], HANDLE_FLAG_INHERIT, HANDLE_FLAG_INHERIT))
            count = i == 2 ? 3 : count;
    swprintf(line, sizeof line / sizeof *line, L"tandemd-worker --worker %u %u %d %d", n->config.backend, n->config.threads,
             fds[0], fds[1]);
    if (fds[0] >= 0 && fds[1] >= 0 && start(n, handles, count, line, &made)) {
        CloseHandle(made.hThread);
        td_fd_close(&n->worker);
        n->worker = (int)(intptr_t)made.hProcess;
        n->worker_pid = m->pid = (int32_t)made.dwProcessId;
        m->status = TANDEM_OK;
    } else {
        snprintf(m->text, sizeof m->text, "CreateProcess: error %lu", GetLastError());
    }
    td_pass(n->broker, m, sizeof *m, NULL, 0);
}

static void look_at_worker(launcher *n)
{
    td_launcher_message m = {.kind = TD_LAUNCHER_ENDED, .pid = n->worker_pid};
    DWORD code = 0;

    GetExitCodeProcess(handle_of(n->worker), &code);
    m.status = code == KILLED ? SIGNAL_KILL : code >= 0xC0000000 ? SIGNAL_FAULT : 0; /* as other systems number them */
    td_fd_close(&n->worker);
    td_pass(n->broker, &m, sizeof m, NULL, 0);
}

static bool whole_path(HANDLE of, wchar_t *path)
{
    const DWORD units = GetFinalPathNameByHandleW(of, path, PATH_UNITS, FILE_NAME_NORMALIZED);

    return units && units < PATH_UNITS;
}

/* Whether a file that is open lies beneath a folder, whatever links led there. */
static bool is_beneath(int file, const char *dir)
{
    static wchar_t folder_path[PATH_UNITS], file_path[PATH_UNITS];
    wchar_t wide[PATH_UNITS];
    HANDLE folder;
    size_t length;
    bool is;

    if (!MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, dir, -1, wide, PATH_UNITS))
        return false;
    folder = CreateFileW(wide, 0, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL, OPEN_EXISTING,
                         FILE_FLAG_BACKUP_SEMANTICS, NULL);
    if (folder == INVALID_HANDLE_VALUE)
        return false;
    is = whole_path(folder, folder_path) && whole_path(handle_of(file), file_path);
    CloseHandle(folder);
    length = is ? wcslen(folder_path) : 0;
    while (length && folder_path[length - 1] == L'\\')
        length--;
    return is && !_wcsnicmp(folder_path, file_path, length) && file_path[length] == L'\\';
}

/* Beneath the first model directory that has it. */
static int open_beneath(const launcher *n, const char *path, char *why, size_t why_bytes)
{
    const bool absolute = td_file_is_from_root(path);
    char wrong[TD_TEXT_BYTES] = "it is not there";
    uint64_t bytes;
    int fd;

    for (uint32_t i = 0; i < n->config.model_dir_count; i++) {
        char whole[sizeof *n->config.model_dirs + TD_WIRE_PATH_BYTES + 1];

        if (absolute && _strnicmp(path, n->config.model_dirs[i], strlen(n->config.model_dirs[i])))
            continue; /* a client may know where they are; nothing else is even looked at */
        snprintf(whole, sizeof whole, "%s%s%s", absolute ? "" : n->config.model_dirs[i], absolute ? "" : "\\", path);
        if (td_file_open(whole, &fd, &bytes, wrong, sizeof wrong) != TANDEM_OK)
            continue;
        if (is_beneath(fd, n->config.model_dirs[i]))
            return fd;
        snprintf(wrong, sizeof wrong, "it leads out");
        td_fd_close(&fd);
    }
    td_fail(why, why_bytes, TANDEM_ERROR_IO, "%.150s, beneath %u model director%s", wrong,
            n->config.model_dir_count, n->config.model_dir_count == 1 ? "y" : "ies");
    return -1;
}

static void answer(launcher *n, td_launcher_message *m, const int fds[2])
{
    char why[TD_TEXT_BYTES] = "";
    int fd;

    m->text[sizeof m->text - 1] = 0;
    switch ((td_launcher_message_kind)m->kind) {
    case TD_LAUNCHER_SPAWN:
        spawn(n, m, fds);
        break;
    case TD_LAUNCHER_KILL:
        if (n->worker >= 0 && m->pid == n->worker_pid)
            TerminateProcess(handle_of(n->worker), KILLED);
        break;
    case TD_LAUNCHER_OPEN:
        fd = open_beneath(n, m->text, why, sizeof why);
        td_launcher_pass_opened(n->broker, m, fd, why);
        break;
    default: /* nobody asks for the configuration to be read again */
        break;
    }
}

static void *launcher_main(void *user)
{
    static td_launcher_message m;
    launcher *n = user;

    td_thread_name("tandemd-launch");
    for (;;) {
        td_polled p[2] = {{n->broker, TD_POLL_READS, 0}, {n->worker, TD_POLL_READS, 0}};
        int fds[2];
        tandem_status status;

        if (!td_poll(p, 2, 1000))
            break;
        if (p[1].found)
            look_at_worker(n);
        if (!p[0].found)
            continue;
        status = td_fetch(n->broker, &m, sizeof m, fds);
        if (status == TANDEM_OK)
            answer(n, &m, fds);
        td_fd_close(&fds[0]);
        td_fd_close(&fds[1]);
        if (status == TANDEM_ERROR_LOST)
            break;
    }
    if (n->worker >= 0)
        TerminateProcess(handle_of(n->worker), KILLED);
    td_fd_close(&n->worker);
    td_fd_close(&n->broker);
    return NULL;
}

/* The mode is the pipe's from the start. */
int td_socket_mode(const char *path, uint64_t device, uint64_t inode, const td_config *config)
{
    (void)path;
    (void)device;
    (void)inode;
    (void)config;
    return 0;
}

int td_launcher_start(const td_config *config, const char *config_path, bool config_given, const char *socket_path)
{
    char why[TD_TEXT_BYTES];
    pthread_t thread;
    int ends[2];

    (void)config_path;
    (void)config_given;
    (void)socket_path;
    the = (launcher){.broker = -1, .worker = -1, .config = *config, .job = make_job()};
    if (td_channel_pair(ends, why, sizeof why) != TANDEM_OK)
        return -1;
    if (td_channel_adopt(ends[1], &the.broker, why, sizeof why) != TANDEM_OK ||
        !td_thread_start(&thread, launcher_main, &the)) {
        td_fd_close(&the.broker);
        td_fd_close(&ends[0]);
    } else {
        pthread_detach(thread);
    }
    td_fd_close(&ends[1]);
    return ends[0];
}
