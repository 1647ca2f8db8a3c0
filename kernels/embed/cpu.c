/* `embed_rows` on the CPU, the bits of the GPU's: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/blocks.h"
#include "kernels/cpu/cpu.h"
#include "kernels/embed/embed.h"
#include "kernels/embed/params.h"

/* Channels of a row of blocks, which a run begins and ends within. */
static void load_blocks(float *x, const uint8_t *row, uint32_t dtype, uint32_t channel, uint32_t count)
{
    const td_dtype of = td_dtype_of(dtype);
    float block[TD_MAX_BLOCK];
    for (uint32_t done = 0, n; done < count; done += n) {
        const uint32_t at = channel + done, first = at % of.elements;
        n = of.elements - first < count - done ? of.elements - first : count - done;
        td_block_decode(dtype, block, row + at / of.elements * of.bytes);
        memcpy(x + done, block + first, n * sizeof *x);
    }
}

static void load(float *x, const td_embed_table *t, const td_run *run)
{
    const int64_t asked = t->id[td_row_at(&t->id_at, run->batch, run->head, run->row)], last = (int64_t)t->count - 1;
    const uint8_t *row = (const uint8_t *)t->rows + (asked < 0 ? 0 : asked > last ? last : asked) * t->stride;
    if (t->dtype <= TANDEM_DTYPE_F32)
        td_to_floats(x, row, t->dtype, run->channel, run->count);
    else
        load_blocks(x, row, t->dtype, run->channel, run->count);
}

void td_cpu_embed(const void *params, const td_block *at)
{
    const td_params_embed *p = params;
    float y[8 * TD_EIGHTS], more[8 * TD_EIGHTS];
    for (td_run run = {0}; td_next_run(&p->shape, at, &run);) {
        load(y, &p->tables[0], &run);
        for (uint32_t i = 0; i < run.count; i++)
            y[i] *= p->scale;
        for (uint32_t table = 1; table < TD_EMBED_TABLES; table++) {
            if (!p->tables[table].rows)
                continue;
            load(more, &p->tables[table], &run);
            for (uint32_t i = 0; i < run.count; i++)
                y[i] += more[i];
        }
        td_from_floats(p->y, p->y_dtype, td_row_at(&p->y_at, run.batch, run.head, run.row) + run.channel, y, run.count);
    }
}
