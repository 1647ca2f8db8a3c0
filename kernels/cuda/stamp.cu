/* `stamp`: the time on the GPU and a submit's sequence number, in pinned host memory. One thread. See params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/params.h"
#include "ptx.cuh"

extern "C" __global__ void stamp(const __grid_constant__ td_params_stamp p)
{
    td::st_sys_v2_u64(p.end ? &p.slot->end_ns : &p.slot->begin_ns, td::globaltimer(), p.sequence);
    if (!p.completed)
        return;
    __threadfence_system();
    *(volatile uint64_t *)p.completed = p.sequence;
}
