/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/futex.h"

#include <assert.h>

#include "interop/os/clock.h"
#include "interop/os/windows/handle.h"

static_assert(ATOMIC_INT_LOCK_FREE == 2 && sizeof(_Atomic uint32_t) == 4, "the system compares them");

void td_futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    WaitOnAddress((volatile void *)word, &seen, sizeof seen, INFINITE);
}

void td_futex_wake(_Atomic uint32_t *word, uint32_t count)
{
    if (count == 1)
        WakeByAddressSingle((void *)word);
    else if (count)
        WakeByAddressAll((void *)word); /* those that come too early look again */
}

/* WaitOnAddress() sees what this process changes alone. Where others have the word as well, one thread of each process waits for
 * its event and wakes the process's other ones. Who resets the event looks at the word afterwards: the word was changed before the
 * event was set. Of two processes that wait for one word, one may miss that another reset its event, and sleep to its timeout: words
 * of the wire are waited for by one. Where there is no event it takes looks. */
void td_futex_wait_shared(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    const DWORD ms = (DWORD)(timeout_ns / 1000000 + (timeout_ns % 1000000 != 0)), looks = 2;
    bool local;
    td_waker *waker = td_waker_of((const void *)word, false, &local);

    if (atomic_load(word) != seen)
        return;
    if (!waker || atomic_exchange(&waker->led, true)) { /* who led may be about to leave: not for long */
        WaitOnAddress((volatile void *)word, &seen, sizeof seen, local || ms < looks ? ms : looks);
        return;
    }
    ResetEvent(waker->event);
    if (atomic_load(word) == seen)
        WaitForSingleObject(waker->event, ms);
    atomic_store(&waker->led, false);
    WakeByAddressAll((void *)word); /* one of them leads from here on */
}

void td_futex_wake_shared(_Atomic uint32_t *word)
{
    bool local;
    td_waker *waker = td_waker_of((const void *)word, false, &local);

    if (waker)
        SetEvent(waker->event);
    WakeByAddressAll((void *)word);
}

/* As one that waits for each; where another thread does already, or there is no event for it, or there are too many, it looks. */
bool td_futex_wait_many(const td_futex_seen *words, uint32_t count, uint64_t until_ns)
{
    HANDLE events[MAXIMUM_WAIT_OBJECTS];
    td_waker *led[MAXIMUM_WAIT_OBJECTS];
    _Atomic uint32_t *word[MAXIMUM_WAIT_OBJECTS];
    const uint64_t now = td_now_ns(), ns = until_ns > now ? until_ns - now : 0, ms = ns / 1000000 + (ns % 1000000 != 0);
    bool changed = false, blind = false;
    DWORD used = 0;

    for (uint32_t i = 0; i < count; i++) {
        bool local;
        td_waker *waker = used < MAXIMUM_WAIT_OBJECTS ? td_waker_of((const void *)words[i].word, true, &local) : NULL;

        if (!waker || atomic_exchange(&waker->led, true)) {
            blind = true;
            continue;
        }
        ResetEvent(waker->event);
        word[used] = words[i].word;
        led[used] = waker;
        events[used++] = waker->event;
    }
    for (uint32_t i = 0; i < count; i++)
        changed = changed || atomic_load(words[i].word) != words[i].seen;
    if (!changed && used)
        WaitForMultipleObjects(used, events, FALSE, blind || ms > INT32_MAX ? ms != 0 : (DWORD)ms);
    else if (!changed)
        Sleep(ms != 0);
    for (DWORD i = 0; i < used; i++) {
        atomic_store(&led[i]->led, false);
        WakeByAddressAll((void *)word[i]);
    }
    return true;
}
