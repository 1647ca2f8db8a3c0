/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/clock.h"

#include "interop/os/windows/handle.h"

#ifndef CREATE_WAITABLE_TIMER_HIGH_RESOLUTION
#define CREATE_WAITABLE_TIMER_HIGH_RESOLUTION 2
#endif

uint64_t td_now_ns(void)
{
    LARGE_INTEGER ticks, a_second;

    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&a_second);
    return (uint64_t)((unsigned __int128)ticks.QuadPart * 1000000000u / (uint64_t)a_second.QuadPart);
}

/* Sleep() wakes up with the system's tick, of up to 16 ms; such a timer does within one. It is to be had from Windows 10 1803
 * on. */
static bool sleep_by_timer(uint64_t ns)
{
    const LARGE_INTEGER after = {.QuadPart = -(int64_t)((ns + 99) / 100)};
    HANDLE timer = CreateWaitableTimerExW(NULL, NULL, CREATE_WAITABLE_TIMER_HIGH_RESOLUTION, TIMER_ALL_ACCESS);
    bool slept;

    if (!timer)
        return false;
    slept = SetWaitableTimer(timer, &after, 0, NULL, NULL, FALSE) && WaitForSingleObject(timer, INFINITE) == WAIT_OBJECT_0;
    CloseHandle(timer);
    return slept;
}

void td_sleep_ns(uint64_t ns)
{
    const uint64_t begin = td_now_ns();
    uint64_t slept = 0;

    while (slept < ns) {
        const uint64_t rest = ns - slept < INT64_MAX ? ns - slept : INT64_MAX, ms = rest / 1000000 + 1;

        if (!sleep_by_timer(rest))
            Sleep(ms < INFINITE ? (DWORD)ms : INFINITE - 1);
        slept = td_now_ns() - begin;
    }
}
