/* Waits of the kernels whose K and V go through the ring of kernels/ring.h: bounded, as in a command buffer a kernel that
 * hangs hangs the device.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "kernels/ring.h"
#include "ptx.cuh"

#if TD_HAVE_WGMMA

namespace td {

__device__ __forceinline__ void wait_or_trap(const uint64_t &barrier, uint32_t parity)
{
    const auto now = [] { return uint32_t(globaltimer() >> 32); }; /* in units of 4.3 seconds: one register */
    uint32_t begin = 0;

    for (uint32_t tries = 1; !mbarrier_try_wait(shared_address(&barrier), parity); tries++)
        if (tries % 1024 == 0) {
            begin = begin ? begin : now();
            if (now() - begin > 2)
                __trap();
        }
}

} // namespace td
#endif
