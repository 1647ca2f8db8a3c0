/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/event.h"

#include "interop/os/windows/handle.h"

#ifndef CREATE_WAITABLE_TIMER_HIGH_RESOLUTION
#define CREATE_WAITABLE_TIMER_HIGH_RESOLUTION 2
#endif

tandem_status td_event_make(bool set, int *event, char *why, size_t why_bytes)
{
    *event = td_fd_of(CreateEventW(NULL, TRUE, set, NULL));
    return *event >= 0 ? TANDEM_OK
                       : td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "CreateEvent: %s", td_windows_error(GetLastError()).text);
}

tandem_status td_alarm_make(int *alarm, char *why, size_t why_bytes)
{
    const DWORD manual = CREATE_WAITABLE_TIMER_MANUAL_RESET;

    *alarm = td_fd_of(CreateWaitableTimerExW(NULL, NULL, manual | CREATE_WAITABLE_TIMER_HIGH_RESOLUTION, TIMER_ALL_ACCESS));
    if (*alarm < 0) /* before Windows 10 1803, they all go by the system's tick */
        *alarm = td_fd_of(CreateWaitableTimerExW(NULL, NULL, manual, TIMER_ALL_ACCESS));
    return *alarm >= 0 ? TANDEM_OK
                       : td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "CreateWaitableTimer: %s",
                                 td_windows_error(GetLastError()).text);
}

void td_event_set(int event)
{
    SetEvent(td_handle_of(event));
}

void td_event_clear(int event)
{
    ResetEvent(td_handle_of(event));
}

void td_alarm_set(int alarm, uint64_t after_ns)
{
    const LARGE_INTEGER after = {.QuadPart = -(int64_t)(after_ns / 100 + (after_ns % 100 != 0))};

    SetWaitableTimer(td_handle_of(alarm), &after, 0, NULL, NULL, FALSE);
}

void td_event_await(int event, uint32_t timeout_ms)
{
    WaitForSingleObject(td_handle_of(event), timeout_ms);
}
