/* A preemption flag: work that can wait stands still while somebody who cannot keeps it raised.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * In memory that processes may share. One raises and clears it; any number of threads look, between the tiles of a block.
 */
#ifndef TANDEM_PREEMPT_H
#define TANDEM_PREEMPT_H

#include "interop/wire/ring.h"

typedef struct td_preempt_flag { /* zero: clear */
    _Atomic uint32_t raised;
    td_eventcount cleared;
    _Atomic uint64_t raised_ns; /* CLOCK_MONOTONIC: since when */
} td_preempt_flag;

static inline void td_preempt_raise(td_preempt_flag *flag, uint64_t now)
{
    atomic_store(&flag->raised_ns, now);
    atomic_store(&flag->raised, 1);
}

static inline void td_preempt_clear(td_preempt_flag *flag)
{
    atomic_store(&flag->raised, 0);
    td_eventcount_notify(&flag->cleared);
}

#endif
