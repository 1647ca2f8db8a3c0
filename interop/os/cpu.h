/* The machine's processors, and on which of them a thread runs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_OS_CPU_H
#define TANDEM_OS_CPU_H

#include <stdbool.h>
#include <stdint.h>

enum { TD_MOST_CPUS = 1024 };

/* Processors by number, one bit each. */
typedef struct td_cpus {
    uint64_t bits[TD_MOST_CPUS / 64];
} td_cpus;

/* How many cores the calling thread may run on, at least 1.
 * Threads: any.
 * Blocks: never. */
uint32_t td_core_count(void);

/* On which processors the calling thread may run.
 * Returns: false, and none, if the system does not say.
 * Threads: any.
 * Blocks: never. */
bool td_thread_cpus(td_cpus *cpus);

/* From here on the calling thread runs on these, or on one alone; nothing changes where the system does not let it.
 * Threads: any.
 * Blocks: until it does. */
void td_thread_run_on(const td_cpus *cpus);
void td_thread_run_on_one(uint32_t cpu);

/* Which processor the calling thread runs on just now; -1 if the system does not say, and for threads that are scheduled
 * otherwise than ordinary ones (real time, batch, idle): beside them others may not get to run.
 * Threads: any.
 * Blocks: never. */
int td_thread_cpu(void);

/* Lets other threads that wait for this processor run first.
 * Threads: any.
 * Blocks: while they do. */
void td_cpu_yield(void);

/* Between two looks at a word that another processor is to change: saves power, and leaves a hyperthread's sibling more.
 * Threads: any.
 * Blocks: never. */
static inline void td_cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
