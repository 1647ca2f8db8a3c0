/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/poll.h"

#include "interop/os/channel.h"
#include "interop/os/windows/handle.h"

/* Whether any has been found. */
static bool look(td_polled *list, uint32_t count)
{
    bool some = false;

    for (uint32_t i = 0; i < count; i++) {
        td_polled *p = &list[i];
        HANDLE reads = td_handle_of(p->fd), writes = td_channel_writes(p->fd);

        p->found = 0;
        if (!reads)
            continue;
        if (WaitForSingleObject(reads, 0) == WAIT_OBJECT_0) {
            p->found |= p->wants & TD_POLL_READS;
            if (writes && !td_channel_is_open(p->fd))
                p->found |= TD_POLL_GONE;
        }
        if (writes && p->wants & TD_POLL_WRITES && WaitForSingleObject(writes, 0) == WAIT_OBJECT_0)
            p->found |= TD_POLL_WRITES;
        some = some || p->found;
    }
    return some;
}

/* False: there were more than the system can wait for. */
static bool collect(const td_polled *list, uint32_t count, HANDLE *handles, DWORD *used)
{
    *used = 0;
    for (uint32_t i = 0; i < count; i++) {
        HANDLE writes = td_channel_writes(list[i].fd);

        if (*used + 2 > MAXIMUM_WAIT_OBJECTS)
            return false;
        if (td_handle_of(list[i].fd) && list[i].wants & TD_POLL_READS)
            handles[(*used)++] = td_handle_of(list[i].fd);
        if (writes && list[i].wants & TD_POLL_WRITES)
            handles[(*used)++] = writes;
    }
    return true;
}

bool td_poll(td_polled *list, uint32_t count, int timeout_ms)
{
    const ULONGLONG until = GetTickCount64() + (ULONGLONG)(timeout_ms < 0 ? INT32_MAX : timeout_ms);
    HANDLE handles[MAXIMUM_WAIT_OBJECTS];
    DWORD used;
    const bool all = collect(list, count, handles, &used);

    for (;;) {
        const ULONGLONG now = GetTickCount64();
        DWORD ms = until > now ? (DWORD)(until - now) : 0;

        if (look(list, count) || !ms)
            return true;
        ms = all || ms < 1 ? ms : 1;
        if (!used)
            Sleep(ms);
        else if (WaitForMultipleObjects(used, handles, FALSE, ms) == WAIT_FAILED)
            return false;
    }
}
