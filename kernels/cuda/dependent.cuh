/* Programmatic dependent launch: a kernel of a record with TD_RECORD_PDL may start while the one before it still runs.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   before    launch_dependents(): by all blocks, early; the next kernel starts once the last block has said so or ended
 *   after     wait_for_previous(): before the first read or write of what the kernel before reads or writes, and before
 *             any return, so that the end of this kernel means the end of that one
 * Where the record has no such flag, and on GPUs that know nothing of it, both do nothing.
 */
#pragma once

namespace td {

__device__ __forceinline__ void launch_dependents()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

__device__ __forceinline__ void wait_for_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

} // namespace td
