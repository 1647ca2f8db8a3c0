/* See limits.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include "tests/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static struct rlimit before;

static void must(int result, const char *what)
{
    if (result == 0)
        return;
    perror(what);
    abort();
}

static uint64_t ns_of(clockid_t clock)
{
    struct timespec t;

    must(clock_gettime(clock, &t), "clock_gettime");
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Never beyond what the whole program may have. */
void limits_begin(uint32_t seconds)
{
    struct rlimit now;

    must(getrlimit(RLIMIT_CPU, &before), "getrlimit");
    now = before;
    now.rlim_cur = ns_of(CLOCK_PROCESS_CPUTIME_ID) / 1000000000u + seconds + 1;
    if (now.rlim_cur < before.rlim_cur)
        must(setrlimit(RLIMIT_CPU, &now), "setrlimit");
    alarm(seconds * LIMITS_WALL);
}

void limits_end(void)
{
    alarm(0);
    must(setrlimit(RLIMIT_CPU, &before), "setrlimit");
}

/* Memory that has to come from a disk is nobody's fault. */
limits_spent limits_spent_so_far(void)
{
    struct rusage usage;

    must(getrusage(RUSAGE_THREAD, &usage), "getrusage");
    return (limits_spent){ns_of(CLOCK_THREAD_CPUTIME_ID),
                          (uint64_t)usage.ru_nvcsw - (usage.ru_nvcsw > usage.ru_majflt ? (uint64_t)usage.ru_majflt : (uint64_t)usage.ru_nvcsw)};
}
