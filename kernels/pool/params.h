/* Parameter block of the kernel `pool_rows`, on every device.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * y = the mean of the first `length` rows of x; divided by max(sqrt(sum of its squares), epsilon) where it normalises. In float32,
 * each operation rounded to nearest, in one order everywhere: a plane's rows come in chunks of `each`; of a chunk row r is added to
 * sum r % TD_POOL_SUMS, then sums 8, 4, 2 and 1 apart are. Several chunks' sums are rows that a second record of the same kernel
 * adds up so. Squares are added as in norm_rows, by 32 threads.
 * How many rows count is read from memory that clients write: kernels clamp it.
 */
#ifndef TANDEM_KERNELS_POOL_PARAMS_H
#define TANDEM_KERNELS_POOL_PARAMS_H

#include "kernels/params.h"

/* A block has as many warps as sums: each adds up every so manieth row, of a tile of channels at a time, of which threads then have one
 * each. */
#define TD_POOL_SUMS 16u
#define TD_POOL_THREADS (32u * TD_POOL_SUMS)
#define TD_POOL_TILE TD_POOL_THREADS
#define TD_POOL_SQUARES 256u /* channels so far apart are added up one behind the other */
#define TD_POOL_KEPT 3u /* tiles, at most */
/* Chunks are of so many rows, or more where there would be more chunks than that. */
#define TD_POOL_ROWS 512u
#define TD_POOL_CHUNKS 64u

typedef enum td_pool_stage {
    TD_POOL_WHOLE = 0, /* x's only chunk: y is the mean */
    TD_POOL_PARTS = 1, /* y is each chunk's sum */
    TD_POOL_END = 2    /* x is those sums */
} td_pool_stage;

typedef struct td_params_pool {
    const uint32_t *cancel;
    const void *x;
    const int32_t *length; /* how many rows count, or NULL: all */
    void *y;
    td_strides x_at, y_at; /* a chunk is a row of y */
    int64_t length_stride; /* of a batch */
    uint32_t heads, rows, channels; /* of x */
    uint32_t each;
    uint32_t most;         /* rows that may count */
    uint8_t dtype, y_dtype; /* F16, BF16 or F32 */
    uint8_t stage;         /* td_pool_stage */
    uint8_t normalises;
    float epsilon;
} td_params_pool;
/* Grid x: (plane * chunks + chunk) * tiles + tile; where it normalises a block has all tiles. */

#endif
