/* A thread that runs where another does.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_FOLLOWER_H
#define TANDEM_DAEMON_FOLLOWER_H

#include "interop/os/cpu.h"

typedef struct td_follower {
    td_cpus all;
    bool can;             /* the system says what they are */
    int cpu;              /* -1: anywhere */
    uint64_t notified_ns; /* when that one notified last, before it slept */
    uint64_t free_until_ns, free_ns;
} td_follower;

/* Of this thread, which may run wherever it may now. */
td_follower td_follower_begin(void);
/* The other has run on `cpu` when it notified us last, at that time, and sleeps now: no other processor has to be woken. Not
 * where that made us late: others are busy there. cpu: -1: nobody knows. */
void td_follower_move(td_follower *f, int cpu, uint64_t notified_ns);

#endif
