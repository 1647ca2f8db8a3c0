/* In which order tiles are walked over, and stages of a ring.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/linear/params.h"

namespace td {

/* Tiles in bands of TD_LINEAR_BAND rows of tiles, column by column. */
struct LinearWalk {
    uint32_t rows, columns, count;

    __device__ __forceinline__ LinearWalk(uint32_t row_tiles, uint32_t column_tiles)
        : rows(row_tiles), columns(column_tiles), count(row_tiles * column_tiles)
    {
    }
    __device__ __forceinline__ void at(uint32_t work, uint32_t &row, uint32_t &column) const
    {
        const uint32_t band = work / (TD_LINEAR_BAND * columns), begin = band * TD_LINEAR_BAND;
        const uint32_t high = min(TD_LINEAR_BAND, rows - begin), in = work - begin * columns;

        column = in / high;
        row = begin + in - column * high;
    }
};

struct LinearStage {
    uint32_t stage, parity;

    template <int Stages, int By = 1> __device__ __forceinline__ void next()
    {
        stage += By;
        if (stage >= Stages) {
            stage -= Stages;
            parity ^= 1;
        }
    }
};

/* Of tiles of T::rows rows and T::columns of w's rows. */
template <class T> __device__ __forceinline__ LinearWalk linear_walk(const td_params_linear &p)
{
    const uint32_t w_rows = p.gate ? 2 * p.outs : p.outs;

    return LinearWalk((p.rows + T::rows - 1) / T::rows, (w_rows + T::columns - 1) / T::columns);
}

} // namespace td
