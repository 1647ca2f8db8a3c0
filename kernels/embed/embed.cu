/* Sums of rows of tables: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/tiles.cuh"
#include "kernels/embed/params.h"

namespace td {

/* Eight channels of a row of a table in tiles. */
__device__ __forceinline__ void embed_load_tiles(float (&x)[8], const td_embed_table &t, uint32_t row, uint32_t channel)
{
    const uint8_t *rows = static_cast<const uint8_t *>(t.rows);

    switch (t.dtype) {
    case TANDEM_DTYPE_Q8_0_TILES: tile_load8<TANDEM_DTYPE_Q8_0_TILES>(x, rows, t.stride, row, channel); break;
    case TANDEM_DTYPE_Q4_0_TILES: tile_load8<TANDEM_DTYPE_Q4_0_TILES>(x, rows, t.stride, row, channel); break;
    case TANDEM_DTYPE_Q4_1_TILES: tile_load8<TANDEM_DTYPE_Q4_1_TILES>(x, rows, t.stride, row, channel); break;
    case TANDEM_DTYPE_Q4_K_TILES: tile_load8<TANDEM_DTYPE_Q4_K_TILES>(x, rows, t.stride, row, channel); break;
    case TANDEM_DTYPE_Q5_K_TILES: tile_load8<TANDEM_DTYPE_Q5_K_TILES>(x, rows, t.stride, row, channel); break;
    default: tile_load8<TANDEM_DTYPE_Q6_K_TILES>(x, rows, t.stride, row, channel); break;
    }
}

/* A thread's channels of the row that its id says. */
__device__ __forceinline__ void embed_load(float (&x)[8], const td_embed_table &t, const EightAt &at)
{
    const int32_t asked = t.id[row_at(t.id_at, at.batch, at.head, at.row)], id = min(max(asked, 0), int32_t(t.count - 1));
    const uint8_t *row = static_cast<const uint8_t *>(t.rows) + id * t.stride;

    if (t.dtype <= TANDEM_DTYPE_F32)
        load_some(x, row, t.dtype, at.channel, at.count);
    else if (t.dtype >= TANDEM_DTYPE_Q8_0_TILES)
        embed_load_tiles(x, t, uint32_t(id), at.channel);
    else
        load_block8(x, row, t.dtype, at.channel);
}

} // namespace td

extern "C" __global__ void __launch_bounds__(TD_EIGHTS) embed_rows(const __grid_constant__ td_params_embed p)
{
    td::EightAt at;
    float y[8], more[8];

    const bool there = at.find(p.shape);

    td::wait_for_previous();
    td::launch_dependents();
    if (!there)
        return;
    const bool stop = td::is_set(p.cancel);

    td::embed_load(y, p.tables[0], at);
#pragma unroll
    for (int i = 0; i < 8; i++)
        y[i] = __fmul_rn(p.scale, y[i]);
#pragma unroll
    for (int table = 1; table < TD_EMBED_TABLES; table++) {
        if (!p.tables[table].rows)
            continue;
        td::embed_load(more, p.tables[table], at);
#pragma unroll
        for (int i = 0; i < 8; i++)
            y[i] = __fadd_rn(y[i], more[i]);
    }
    if (stop)
        return;
    td::store_some(p.y, p.y_dtype, td::row_at(p.y_at, at.batch, at.head, at.row) + at.channel, at.count, y);
}
