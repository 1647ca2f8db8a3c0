/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/thread.h"

#include "interop/os/clock.h"
#include "interop/os/windows/handle.h"

/* A program may give the library back while its threads run: its code stays, as it does elsewhere. */
static void stay_loaded(void)
{
    HMODULE here;

    GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS,
                       (const wchar_t *)(uintptr_t)stay_loaded, &here);
}

bool td_thread_start(pthread_t *thread, void *(*main)(void *), void *user)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, stay_loaded);
    return !pthread_create(thread, NULL, main, user);
}

/* The system has the function from Windows 10 1607 on, and MinGW does not know of it. */
void td_thread_name(const char *name)
{
    typedef HRESULT WINAPI describe_function(HANDLE thread, const wchar_t *text);
    describe_function *describe =
        (describe_function *)(uintptr_t)GetProcAddress(GetModuleHandleW(L"kernel32.dll"), "SetThreadDescription");
    wchar_t wide[16];

    if (describe && MultiByteToWideChar(CP_UTF8, 0, name, -1, wide, sizeof wide / sizeof *wide))
        describe(GetCurrentThread(), wide);
}

int td_thread_slack(void)
{
    return 0;
}

void td_thread_set_slack(int slack_ns)
{
    (void)slack_ns;
}

bool td_cond_make(pthread_cond_t *cond)
{
    return !pthread_cond_init(cond, NULL);
}

/* By how long, not until when: the clock that winpthreads goes by otherwise jumps as users set it. In whole milliseconds, as it
 * would not sleep for a part of one. */
void td_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns)
{
    const uint64_t now = td_now_ns(), ns = until_ns > now ? until_ns - now : 0, ms = ns / 1000000 + (ns % 1000000 != 0);
    const struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000 * 1000000)};

    if (until_ns > (uint64_t)INT64_MAX)
        pthread_cond_wait(cond, lock);
    else
        pthread_cond_timedwait_relative_np(cond, lock, &t);
}

void td_thread_set_low(void)
{
    SetThreadPriority(GetCurrentThread(), THREAD_PRIORITY_BELOW_NORMAL);
}
