/* How long what a test waits for may take, on a busy machine as on a quiet one: so many seconds of the process's CPU time, in which
 * nothing that is well comes near the limit, and by the clock LIMITS_WALL times as many, for what sleeps for ever. Either ends the
 * process, by SIGXCPU or SIGALRM. tests/limits.py and tests/limited.sh do so for programs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_LIMITS_H
#define TD_TESTS_LIMITS_H

#include <stdint.h>

enum { LIMITS_WALL = 8 };

/* How long to wait for one answer of others, which on a quiet machine comes within a fraction of it. */
#define LIMITS_PATIENCE_NS (LIMITS_WALL * UINT64_C(30000000000))

/* For what should take a millisecond, and waits for nothing that takes longer than this. */
#define LIMITS_SOON_NS (LIMITS_WALL * UINT64_C(1000000000))

/* From now on, until limits_end(). */
void limits_begin(uint32_t seconds);
void limits_end(void);

/* What the calling thread has spent, and how often it slept: for calls that may not take long, and may not wait for anybody, however
 * long others have the cores. */
typedef struct limits_spent {
    uint64_t cpu_ns, sleeps;
} limits_spent;
limits_spent limits_spent_so_far(void);

#endif
