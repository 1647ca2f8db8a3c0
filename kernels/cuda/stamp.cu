/* `stamp`: the time on the GPU and a submit's sequence number, in pinned host memory. One thread. See params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/params.h"
#include "ptx.cuh"

extern "C" __global__ void stamp(const __grid_constant__ td_params_stamp p)
{
    volatile td_stamp *slot = p.slot;

    if (!p.completed) {
        slot->sequence = 0;
        __threadfence_system();
        slot->begin_ns = td::globaltimer();
        __threadfence_system();
        slot->begun = p.sequence;
        return;
    }
    slot->end_ns = td::globaltimer();
    __threadfence_system();
    slot->sequence = p.sequence;
    __threadfence_system();
    *(volatile uint64_t *)p.completed = p.sequence;
}
