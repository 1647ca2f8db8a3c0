/* `claim` and `commit` on the CPU: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cpu/cpu.h"
#include "tandem/types.h"

void td_cpu_claim(const void *params, const td_block *at)
{
    const td_params_claim *p = params;
    uint32_t verdict = TD_VERDICT_COMMITTED;
    (void)at;
    if (p->control) {
        __atomic_store_n(&p->control->claimed, 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&p->control->stale, __ATOMIC_SEQ_CST))
            verdict = TD_VERDICT_GIVEN_UP;
    }
    *p->verdict = verdict;
    if (p->control)
        __atomic_store_n(&p->control->verdict, verdict, __ATOMIC_SEQ_CST);
}

void td_cpu_fetch(const void *params, const td_block *at)
{
    const td_params_fetch *p = params;
    const size_t first = (size_t)at->x * TD_BLOCK_THREADS, left = p->count - first; /* of 16 bytes */

    memcpy((char *)p->to + 16 * first, (const char *)p->from + 16 * first, 16 * (left < TD_BLOCK_THREADS ? left : TD_BLOCK_THREADS));
}

void td_cpu_commit(const void *params, const td_block *at)
{
    const td_params_commit *p = params;
    const uint32_t chunks = (p->o.rows + TD_TILE_ROWS - 1) / TD_TILE_ROWS;
    const uint64_t plane = at->x / chunks;
    const int64_t batch = (int64_t)(plane / p->o.heads), head = (int64_t)(plane % p->o.heads);
    const size_t element = p->o.dtype == TANDEM_DTYPE_F32 ? 4 : 2, row_bytes = p->o.dim * element;
    const uint32_t first = at->x % chunks * TD_TILE_ROWS;
    const uint32_t end = p->o.rows - first < TD_TILE_ROWS ? p->o.rows : first + TD_TILE_ROWS;
    if (*p->verdict != TD_VERDICT_COMMITTED)
        return;
    for (uint32_t r = first; r < end; r++) {
        const int64_t to = batch * p->o.stride_batch + head * p->o.stride_head + r * p->o.stride_row;
        const uint64_t from = plane * p->o.rows + r;
        memcpy((char *)p->o.data + to * (int64_t)element, (const char *)p->from + from * row_bytes, row_bytes);
        if (p->lse)
            p->lse[batch * p->lse_stride_batch + head * p->lse_stride_head + r * p->lse_stride_row] =
                p->lse_from[from];
    }
}
