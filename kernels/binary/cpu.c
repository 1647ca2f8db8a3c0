/* `binary_rows` on the CPU, the bits of the GPU's: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/binary/binary.h"
#include "kernels/binary/params.h"
#include "kernels/cpu/cpu.h"

static int64_t place(const td_strides *at, const td_run *run)
{
    return td_row_at(at, run->batch, run->head, run->row);
}

void td_cpu_binary(const void *params, const td_block *at)
{
    const td_params_binary *p = params;
    float a[8 * TD_EIGHTS], b[8 * TD_EIGHTS];
    for (td_run run = {0}; td_next_run(&p->shape, at, &run);) {
        td_to_floats(a, p->a, p->a_dtype, place(&p->a_at, &run) + run.channel, run.count);
        if (p->one_channel)
            td_to_floats(b, p->b, p->b_dtype, place(&p->b_at, &run), 1);
        else
            td_to_floats(b, p->b, p->b_dtype, place(&p->b_at, &run) + run.channel, run.count);
        for (uint32_t i = 1; p->one_channel && i < run.count; i++)
            b[i] = b[0];
        for (uint32_t i = 0; i < run.count; i++)
            a[i] = p->multiplies ? a[i] * (p->scale * b[i]) : a[i] + p->scale * b[i];
        td_from_floats(p->y, p->y_dtype, place(&p->y_at, &run) + run.channel, a, run.count);
    }
}
