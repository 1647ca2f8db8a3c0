/* Parameter block of the kernel `embed_rows`, on every device.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A row of y is the sum of one row of each table, the first of which is multiplied by `scale`: one after the other, in float32, each
 * operation rounded to nearest. Ids come from memory that clients write: kernels clamp them.
 */
#ifndef TANDEM_KERNELS_EMBED_PARAMS_H
#define TANDEM_KERNELS_EMBED_PARAMS_H

#include "kernels/params.h"

enum { TD_EMBED_TABLES = 3 };

typedef struct td_embed_table {
    const void *rows;   /* or NULL */
    const int32_t *id;  /* which one: */
    td_strides id_at;
    int64_t stride;     /* of rows, in bytes */
    uint32_t count;
    uint32_t dtype;     /* tandem_dtype: F16, BF16, F32, or one with blocks, on a GPU in tiles, too */
} td_embed_table;

typedef struct td_params_embed {
    const uint32_t *cancel;
    td_embed_table tables[TD_EMBED_TABLES];
    void *y;
    td_strides y_at;
    td_shape shape; /* of y */
    uint32_t y_dtype;
    float scale;
} td_params_embed;

#endif
