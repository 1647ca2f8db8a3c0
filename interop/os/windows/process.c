/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/process.h"

#include <pthread.h>
#include <stdlib.h>

#include "interop/os/descriptor.h"
#include "interop/os/windows/handle.h"

int32_t td_process_id(void)
{
    return (int32_t)GetCurrentProcessId();
}

static char process_name[256];

static void find_name(void)
{
    wchar_t path[1024];
    const DWORD units = GetModuleFileNameW(NULL, path, sizeof path / sizeof *path);
    const wchar_t *name = units && units < sizeof path / sizeof *path ? wcsrchr(path, L'\\') : NULL;

    if (!name || !WideCharToMultiByte(CP_UTF8, 0, name + 1, -1, process_name, sizeof process_name, NULL, NULL))
        process_name[0] = 0;
}

const char *td_process_name(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, find_name);
    return process_name;
}

/* There is no root. */
uint32_t td_process_user(void)
{
    td_windows_user user;

    return td_windows_user_of(GetCurrentProcess(), &user) ? td_windows_user_number(&user) : UINT32_MAX;
}

static HANDLE asked;

/* In a thread of the system's, which ends the process once this has returned from what it cannot refuse. */
static BOOL WINAPI on_asked(DWORD what)
{
    SetEvent(asked);
    if (what == CTRL_CLOSE_EVENT || what == CTRL_LOGOFF_EVENT || what == CTRL_SHUTDOWN_EVENT)
        Sleep(INFINITE);
    return TRUE;
}

/* The event is this process's as long as it lives: what is given away is a duplicate. */
int td_asked_make(void)
{
    if (!asked)
        asked = CreateEventW(NULL, TRUE, FALSE, NULL);
    if (!asked || !SetConsoleCtrlHandler(on_asked, TRUE))
        return -1;
    return td_fd_dup(td_fd_of(asked));
}

td_asked td_asked_next(int fd)
{
    if (WaitForSingleObject(td_handle_of(fd), 0) != WAIT_OBJECT_0)
        return TD_ASKED_NOTHING;
    ResetEvent(td_handle_of(fd));
    return TD_ASKED_END;
}

const char *td_process_environment(const char *name)
{
    return getenv(name); /* no program has more rights than who has started it */
}

/* There is no fork(). */
bool td_process_mark_make(td_process_mark *mark)
{
    static const volatile uint32_t here = 1;

    *mark = (td_process_mark){.page = &here, .wiped = true, .maker = td_process_id()};
    return true;
}

void td_process_mark_free(td_process_mark *mark)
{
    *mark = (td_process_mark){0};
}
