/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/cpu.h"

#include "interop/os/windows/handle.h"

/* Processors come in groups of at most 64, and a thread is in one. */
enum { GROUPS = TD_MOST_CPUS / 64 };

static bool affinity(GROUP_AFFINITY *of)
{
    return GetThreadGroupAffinity(GetCurrentThread(), of) && of->Mask && of->Group < GROUPS;
}

uint32_t td_core_count(void)
{
    GROUP_AFFINITY of;

    return affinity(&of) ? (uint32_t)__builtin_popcountll(of.Mask) : 1;
}

bool td_thread_cpus(td_cpus *cpus)
{
    GROUP_AFFINITY of;

    *cpus = (td_cpus){0};
    if (!affinity(&of))
        return false;
    cpus->bits[of.Group] = of.Mask;
    return true;
}

void td_thread_run_on(const td_cpus *cpus)
{
    for (WORD group = 0; group < GROUPS; group++) {
        const GROUP_AFFINITY to = {.Mask = (KAFFINITY)cpus->bits[group], .Group = group};

        if (to.Mask && SetThreadGroupAffinity(GetCurrentThread(), &to, NULL))
            return;
    }
}

void td_thread_run_on_one(uint32_t cpu)
{
    td_cpus one = {0};

    if (cpu >= TD_MOST_CPUS)
        return;
    one.bits[cpu / 64] = 1ull << cpu % 64;
    td_thread_run_on(&one);
}

int td_thread_cpu(void)
{
    PROCESSOR_NUMBER now;

    if (GetThreadPriority(GetCurrentThread()) != THREAD_PRIORITY_NORMAL)
        return -1;
    GetCurrentProcessorNumberEx(&now);
    return now.Group * 64 + now.Number;
}

void td_cpu_yield(void)
{
    SwitchToThread();
}
