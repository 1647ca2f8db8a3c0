/* `scatter_rows` on the CPU, the bits of the GPU's: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cpu/cpu.h"
#include "kernels/scatter/params.h"
#include "kernels/scatter/scatter.h"

void td_cpu_scatter(const void *params, const td_block *at)
{
    const td_params_scatter *p = params;
    td_block block = *at;
    float x[8 * TD_EIGHTS];
    if (p->verdict && *p->verdict != TD_VERDICT_COMMITTED)
        return;
    if (p->verdict)
        block.goes_on = NULL; /* what is claimed is written */
    for (td_run run = {0}; td_next_run(&p->shape, &block, &run);) {
        const int64_t position =
            p->position[td_row_at(&p->position_at, run.batch, run.head, run.row)];
        if (position < 0 || position >= p->entries)
            continue;
        td_to_floats(x, p->x, p->x_dtype,
                     td_row_at(&p->x_at, run.batch, run.head, run.row) + run.channel, run.count);
        td_from_floats(p->y, p->y_dtype,
                       td_row_at(&p->y_at, run.batch, run.head, position) + run.channel, x,
                       run.count);
    }
}
