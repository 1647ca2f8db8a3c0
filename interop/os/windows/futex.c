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

/* WaitOnAddress() sees what this process changes alone: of another's words it takes looks. */
void td_futex_wait_shared(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    const uint64_t ms = timeout_ns / 1000000;

    if (atomic_load(word) == seen)
        WaitOnAddress((volatile void *)word, &seen, sizeof seen, ms < 1 ? 1 : ms < 2 ? (DWORD)ms : 2);
}

void td_futex_wake_shared(_Atomic uint32_t *word)
{
    WakeByAddressAll((void *)word);
}
