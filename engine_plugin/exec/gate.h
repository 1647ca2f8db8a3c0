/* A gate: where work that can wait stands still while somebody who cannot keeps it closed.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * In memory that processes may share. One closes and opens it; any number of threads look, between the tiles of a block.
 */
#ifndef TANDEM_GATE_H
#define TANDEM_GATE_H

#include "interop/wire/ring.h"

typedef struct td_gate { /* zero: open */
    _Atomic uint32_t closed;
    td_eventcount opened;
    _Atomic uint64_t closed_ns; /* CLOCK_MONOTONIC: since when */
} td_gate;

static inline void td_gate_close(td_gate *gate, uint64_t now)
{
    atomic_store(&gate->closed_ns, now);
    atomic_store(&gate->closed, 1);
}

static inline void td_gate_open(td_gate *gate)
{
    atomic_store(&gate->closed, 0);
    td_eventcount_notify(&gate->opened);
}

#endif
