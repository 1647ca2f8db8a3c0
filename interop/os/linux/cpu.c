/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "interop/os/cpu.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

static_assert(sizeof(cpu_set_t) == sizeof(td_cpus), "the kernel's, bit by bit");

uint32_t td_core_count(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set))
        return 1;
    return CPU_COUNT(&set) > 0 ? (uint32_t)CPU_COUNT(&set) : 1;
}

bool td_thread_cpus(td_cpus *cpus)
{
    cpu_set_t set;

    *cpus = (td_cpus){0};
    if (pthread_getaffinity_np(pthread_self(), sizeof set, &set))
        return false;
    memcpy(cpus, &set, sizeof set);
    return CPU_COUNT(&set) > 0;
}

void td_thread_run_on(const td_cpus *cpus)
{
    cpu_set_t set;

    memcpy(&set, cpus, sizeof set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

void td_thread_run_on_one(uint32_t cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

int td_thread_cpu(void)
{
    return sched_getscheduler(0) == SCHED_OTHER ? sched_getcpu() : -1;
}

void td_cpu_yield(void)
{
    sched_yield();
}
