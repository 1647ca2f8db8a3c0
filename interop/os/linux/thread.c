/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "interop/os/thread.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

bool td_thread_start(pthread_t *thread, void *(*main)(void *), void *user)
{
    sigset_t all, before;
    bool started;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    started = !pthread_create(thread, NULL, main, user);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

void td_thread_name(const char *name)
{
    prctl(PR_SET_NAME, name, 0ul, 0ul, 0ul);
}

int td_thread_slack(void)
{
    return prctl(PR_GET_TIMERSLACK, 0ul, 0ul, 0ul, 0ul);
}

void td_thread_set_slack(int slack_ns)
{
    prctl(PR_SET_TIMERSLACK, (unsigned long)slack_ns, 0ul, 0ul, 0ul);
}

void td_thread_set_low(void)
{
    setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + 5); /* of Linux's threads each has its own */
}

bool td_cond_make(pthread_cond_t *cond)
{
    pthread_condattr_t monotonic;
    bool made;

    if (pthread_condattr_init(&monotonic))
        return false;
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    made = !pthread_cond_init(cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return made;
}

void td_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns)
{
    const struct timespec t = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};

    if (until_ns > (uint64_t)INT64_MAX)
        pthread_cond_wait(cond, lock);
    else
        pthread_cond_timedwait(cond, lock, &t);
}
