/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/futex.h"

#include <assert.h>

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
    td_waker *waker = td_waker_of((const void *)word, &local);

    if (atomic_load(word) != seen)
        return;
    if (!waker || atomic_exchange(&waker->led, true)) {
        WaitOnAddress((volatile void *)word, &seen, sizeof seen, waker || local || ms < looks ? ms : looks);
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
    td_waker *waker = td_waker_of((const void *)word, &local);

    if (waker)
        SetEvent(waker->event);
    WakeByAddressAll((void *)word);
}
