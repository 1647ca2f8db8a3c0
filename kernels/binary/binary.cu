/* Sums and products of two tensors: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/binary/params.h"
#include "kernels/cuda/tensor.cuh"

extern "C" __global__ void __launch_bounds__(TD_EIGHTS) binary_rows(const __grid_constant__ td_params_binary p)
{
    td::EightAt at;
    float a[8], b[8];

    if (td::cancelled(p.cancel) || !at.find(p.shape))
        return;
    const int64_t b_row = td::row_at(p.b_at, at.batch, at.head, at.row);

    td::load_some(a, p.a, p.a_dtype, td::row_at(p.a_at, at.batch, at.head, at.row) + at.channel, at.count);
    if (p.one_channel)
        td::load_some(b, p.b, p.b_dtype, b_row, 1);
    else
        td::load_some(b, p.b, p.b_dtype, b_row + at.channel, at.count);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float x = __fmul_rn(p.scale, p.one_channel ? b[0] : b[i]);

        a[i] = p.multiplies ? __fmul_rn(a[i], x) : __fadd_rn(a[i], x);
    }
    td::store_some(p.y, p.y_dtype, td::row_at(p.y_at, at.batch, at.head, at.row) + at.channel, at.count, a);
}
