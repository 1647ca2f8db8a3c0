/* Parameter block of the kernel `top_rows`, on every device.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A number and its channel are one key: the number's bits such that larger numbers have larger ones, above 32 bits of ~channel. So no
 * two keys of a row are equal, and of equal numbers the first channel has the largest. Key 0 is none, as NaN are.
 * A row's channels come in chunks. Where there are several blocks a row, block b has chunks b, b + blocks, ..., and writes its
 * largest keys, largest first; a second record of the same kernel finds the largest of those.
 */
#ifndef TANDEM_KERNELS_TOP_PARAMS_H
#define TANDEM_KERNELS_TOP_PARAMS_H

#include "kernels/params.h"

#define TD_TOP_MOST 64u /* keys that a row may want, and that a block keeps */
#define TD_TOP_CHUNK 4096u
#define TD_TOP_THREADS 512u
/* Blocks of a row, at most: what they leave is a chunk. */
#define TD_TOP_BLOCKS (TD_TOP_CHUNK / TD_TOP_MOST)

typedef enum td_top_stage {
    TD_TOP_WHOLE = 0, /* of x, by one block: y */
    TD_TOP_PARTS = 1, /* of x: keys */
    TD_TOP_END = 2    /* of keys: y */
} td_top_stage;

typedef struct td_params_top {
    const uint32_t *cancel;
    const void *x;
    void *keys; /* uint64_t [batch * heads * rows][blocks][TD_TOP_MOST] */
    void *y;
    td_strides x_at, y_at;
    uint32_t heads, rows, channels, count;
    uint32_t blocks; /* of a row in the stage PARTS; else 1 */
    uint32_t kept;   /* keys of a row in the stage END */
    uint16_t dtype;  /* F16, BF16 or F32 */
    uint16_t stage;  /* td_top_stage */
    uint32_t reserved;
} td_params_top;
/* Grid x: row of all planes * blocks + block. */

#endif
