/* Rows that are written to where positions say: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/tensor.cuh"
#include "kernels/scatter/params.h"

extern "C" __global__ void __launch_bounds__(TD_EIGHTS)
    scatter_rows(const __grid_constant__ td_params_scatter p)
{
    td::EightAt at;
    float x[8];
    const bool there = at.find(p.shape);

    td::wait_for_previous();
    td::launch_dependents();
    if (!there)
        return;
    const bool stop = p.verdict ? *p.verdict != TD_VERDICT_COMMITTED : td::is_set(p.cancel);
    const int32_t position = p.position[td::row_at(p.position_at, at.batch, at.head, at.row)];

    td::load_some(x, p.x, p.x_dtype, td::row_at(p.x_at, at.batch, at.head, at.row) + at.channel,
                  at.count);
    if (stop || position < 0 || uint32_t(position) >= p.entries)
        return;
    td::store_some(p.y, p.y_dtype,
                   td::row_at(p.y_at, at.batch, at.head, position) + at.channel, at.count, x);
}
