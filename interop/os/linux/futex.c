/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "interop/os/futex.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static_assert(ATOMIC_INT_LOCK_FREE == 2 && sizeof(_Atomic uint32_t) == 4, "the kernel compares them");

void td_futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

void td_futex_wake(_Atomic uint32_t *word, uint32_t count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count < INT_MAX ? count : INT_MAX, NULL, NULL, 0);
}

void td_futex_wait_shared(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    const struct timespec t = {0, (long)timeout_ns};

    syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

void td_futex_wake_shared(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
