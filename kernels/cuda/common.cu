/* What stands around every plan.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * stamp    the time on the GPU and a submit's sequence number, in pinned host memory: one thread
 * claim    who has won, the device or a host that has given the job up: one thread, two words across PCIe, some 2 us
 * commit   the output to where it belongs: reads and writes O once, at the memory's speed
 * fetch    what the host wrote, once for all kernels of a program
 * See params.h.
 */
#include "kernels/cuda/ptx.cuh"
#include "kernels/params.h"
#include "tandem/types.h"

extern "C" __global__ void stamp(const __grid_constant__ td_params_stamp p)
{
    td::st_sys_v2_u64(p.end ? &p.slot->end_ns : &p.slot->begin_ns, td::globaltimer(), p.sequence);
    if (!p.completed)
        return;
    __threadfence_system();
    *(volatile uint64_t *)p.completed = p.sequence;
}

extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS) fetch(const __grid_constant__ td_params_fetch p)
{
    const uint32_t i = blockIdx.x * TD_BLOCK_THREADS + threadIdx.x;

    td::wait_for_previous();
    td::launch_dependents();
    if (i < p.count)
        static_cast<uint4 *>(p.to)[i] = static_cast<const uint4 *>(p.from)[i];
}

extern "C" __global__ void claim(const __grid_constant__ td_params_claim p)
{
    volatile td_control *control = p.control;
    uint32_t verdict = TD_VERDICT_COMMITTED;

    if (control) {
        control->claimed = 1;
        __threadfence_system();
        if (control->stale)
            verdict = TD_VERDICT_GIVEN_UP;
    }
    *p.verdict = verdict;
    if (control)
        control->verdict = verdict;
}

namespace td {

/* Rows of `each` words from one dense block to strided ones, all threads of the block together. */
template <class Word>
__device__ __forceinline__ void copy_rows(const Word *from, Word *to, int64_t stride, uint32_t rows, uint32_t each)
{
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < rows * each; i += TD_BLOCK_THREADS)
        to[int64_t(i / each) * stride + i % each] = from[i];
}

} // namespace td

extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS) commit(const __grid_constant__ td_params_commit p)
{
    if (*p.verdict != TD_VERDICT_COMMITTED)
        return;
    const uint32_t chunks = (p.o.rows + TD_TILE_ROWS - 1) / TD_TILE_ROWS;
    const uint32_t plane = blockIdx.x / chunks, first = blockIdx.x % chunks * TD_TILE_ROWS;
    const uint32_t rows = min(p.o.rows - first, TD_TILE_ROWS);
    const int64_t batch = plane / p.o.heads, head = plane % p.o.heads;
    const uint32_t element = p.o.dtype == TANDEM_DTYPE_F32 ? 4 : 2, row_bytes = p.o.dim * element;
    const int64_t stride = p.o.stride_row * element;
    char *to = static_cast<char *>(p.o.data) +
               (batch * p.o.stride_batch + head * p.o.stride_head + first * p.o.stride_row) * element;
    const char *from = static_cast<const char *>(p.from) + (int64_t(plane) * p.o.rows + first) * row_bytes;

    if ((reinterpret_cast<uintptr_t>(to) | uint64_t(stride) | row_bytes) % 16 == 0)
        td::copy_rows(reinterpret_cast<const uint4 *>(from), reinterpret_cast<uint4 *>(to), stride / 16, rows,
                      row_bytes / 16);
    else if (element == 4)
        td::copy_rows(reinterpret_cast<const uint32_t *>(from), reinterpret_cast<uint32_t *>(to), stride / 4, rows,
                      row_bytes / 4);
    else
        td::copy_rows(reinterpret_cast<const uint16_t *>(from), reinterpret_cast<uint16_t *>(to), stride / 2, rows,
                      row_bytes / 2);
    if (p.lse && threadIdx.x < rows) {
        const int64_t r = first + threadIdx.x;
        p.lse[batch * p.lse_stride_batch + head * p.lse_stride_head + r * p.lse_stride_row] =
            p.lse_from[int64_t(plane) * p.o.rows + r];
    }
}
