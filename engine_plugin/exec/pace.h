/* A pace: work is computed until some time, and stands still from then on until it is given more.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * One grants, any number of threads look, between the tiles of a block.
 */
#ifndef TANDEM_PACE_H
#define TANDEM_PACE_H

#include "interop/wire/ring.h"

typedef struct td_pace { /* zero: at any time */
    _Atomic uint64_t until_ns; /* td_now_ns(); 0: at any time */
    _Atomic uint64_t seen_ns;  /* when something was computed last, while there was such a time */
    td_eventcount granted;
} td_pace;

static inline void td_pace_grant(td_pace *pace, uint64_t until_ns)
{
    atomic_store(&pace->until_ns, until_ns);
    td_eventcount_notify(&pace->granted);
}

#endif
