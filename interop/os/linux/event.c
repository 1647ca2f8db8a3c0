/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "interop/os/event.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>

tandem_status td_event_make(bool set, int *event, char *why, size_t why_bytes)
{
    *event = eventfd(set, EFD_CLOEXEC | EFD_NONBLOCK);
    return *event >= 0 ? TANDEM_OK : td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "eventfd: %s", strerror(errno));
}

tandem_status td_alarm_make(int *alarm, char *why, size_t why_bytes)
{
    *alarm = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    return *alarm >= 0 ? TANDEM_OK : td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "timerfd_create: %s", strerror(errno));
}

void td_event_set(int event)
{
    eventfd_write(event, 1);
}

void td_event_clear(int event)
{
    eventfd_t count;

    eventfd_read(event, &count);
}

void td_alarm_set(int alarm, uint64_t after_ns)
{
    const struct itimerspec at = {.it_value = {(time_t)(after_ns / 1000000000u), (long)(after_ns % 1000000000u)}};

    timerfd_settime(alarm, 0, &at, NULL);
}

void td_event_await(int event, uint32_t timeout_ms)
{
    struct pollfd readable = {.fd = event, .events = POLLIN};

    poll(&readable, 1, (int)timeout_ms);
}
