/* Parameter block of the kernel `gather`, on every device.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_GATHER_PARAMS_H
#define TANDEM_KERNELS_GATHER_PARAMS_H

#include "kernels/params.h"

/* A block has so many queries, and on the GPU what they may meet in shared memory. */
#define TD_GATHER_WIDTH 16u
#define TD_GATHER_HEIGHT 8u
#define TD_GATHER_DIM 16u
#define TD_GATHER_RADIUS 4u
#define TD_GATHER_KEYS ((2u * TD_GATHER_RADIUS + 1u) * (2u * TD_GATHER_RADIUS + 1u) + 9u + 1u) /* of a query, at most */

/* Kernels for some windows of keys of 8 channels, beside `gather`, which is for all: taps, coarse_taps, step, queries of a
 * thread, whether there may be k_before, and whether there is factor. */
#define TD_GATHER_KERNELS(X)               \
    X(gather_3, 3, 0, 1, 2, false, true)   \
    X(gather_5_3, 5, 3, 1, 2, true, false) \
    X(gather_7, 7, 0, 1, 1, false, false)  \
    X(gather_4_down, 4, 0, 2, 1, false, false)

typedef struct td_params_gather {
    const uint32_t *cancel;
    const void *q, *k, *k_coarse, *k_before;                /* F16; k_coarse, k_before: or NULL */
    const float *v, *v_coarse, *v_before, *factor, *bias;   /* factor, bias: or NULL */
    float *o;
    td_strides q_at, k_at, v_at, k_coarse_at, v_coarse_at, k_before_at, v_before_at, factor_at, o_at;
    uint32_t height, width;         /* of k */
    uint32_t out_height, out_width; /* of q */
    uint32_t columns, rows;         /* of blocks */
    uint32_t dim;
    uint32_t taps;                       /* a query has so many keys a side, from step * (i, j) - before on */
    uint32_t coarse_radius, coarse_taps; /* coarse_taps 0: none */
    uint32_t step, channels;
    uint32_t before;
} td_params_gather;
/* Grid x: (batch * rows + row) * columns + column. */

/* Pixels a side of what a block's queries may meet. */
#define TD_GATHER_SPAN(queries, step, taps) (((queries) - 1u) * (step) + (taps))
/* Of it, and of what is half as large: keys of dim halves, values of four floats. */
#define TD_GATHER_COARSE_SPAN(queries, radius) ((queries) / 2u + 2u * (radius))

#endif
