/* Rows that are appended to caches of keys and values: see params.h. A block has a plane.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cache/append.cuh"

extern "C" __global__ void __launch_bounds__(TD_CACHE_APPEND_THREADS)
    cache_append(const __grid_constant__ td_params_cache_append p)
{
    bool stop = threadIdx.x == 0 && !p.verdict && td::is_set(p.cancel);

    td::wait_for_previous();
    td::launch_dependents();
    if (p.verdict && threadIdx.x == 0)
        stop = *p.verdict != TD_VERDICT_COMMITTED;
    if (__syncthreads_or(stop))
        return;
    td::Append<> at(p, blockIdx.x);

    at.clear_tickets();
    at.append();
}
