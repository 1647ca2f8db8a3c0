/* SPDX-License-Identifier: Apache-2.0 */
#include "engine_plugin/daemon/follower.h"

#include "engine_plugin/daemon/limits.h"
#include "interop/os/clock.h"

#define LATE_NS 10000000u /* who runs so late where another does, runs anywhere for a while; twice as long each time */
#define LEAST_FREE_NS TD_SECOND
#define MOST_FREE_NS (60 * TD_SECOND)

td_follower td_follower_begin(void)
{
    td_follower f = {.cpu = -1};

    f.can = td_thread_cpus(&f.all);
    return f;
}

void td_follower_move(td_follower *f, int cpu, uint64_t notified_ns)
{
    const uint64_t now = td_now_ns();

    if (f->cpu >= 0 && notified_ns != f->notified_ns && now > notified_ns + LATE_NS) {
        f->free_ns = !f->free_ns ? LEAST_FREE_NS : f->free_ns < MOST_FREE_NS ? 2 * f->free_ns : f->free_ns;
        f->free_until_ns = now + f->free_ns;
    }
    if (now < f->free_until_ns)
        cpu = -1;
    if (cpu == f->cpu || !f->can)
        return;
    if (cpu >= 0)
        td_thread_run_on_one((uint32_t)cpu);
    else
        td_thread_run_on(&f->all);
    f->cpu = cpu;
}
