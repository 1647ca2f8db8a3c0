/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "interop/os/futex.h"

#include <assert.h>
#include <errno.h>
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

bool td_futex_wait_many(const td_futex_seen *words, uint32_t count, uint64_t until_ns)
{
#ifdef SYS_futex_waitv
    struct futex_waitv waiters[128];
    const struct timespec t = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};

    for (uint32_t i = 0; i < count; i++)
        waiters[i] =
            (struct futex_waitv){.val = words[i].seen, .uaddr = (uintptr_t)words[i].word, .flags = FUTEX_32};
    return syscall(SYS_futex_waitv, waiters, count, 0, &t, CLOCK_MONOTONIC) >= 0 || (errno != ENOSYS && errno != EPERM);
#else
    (void)words;
    (void)count;
    (void)until_ns;
    return false;
#endif
}
