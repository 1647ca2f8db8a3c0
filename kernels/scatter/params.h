/* Parameter block of the kernel `scatter_rows`, on every device.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Row `position` of y becomes a row of x, rounded to nearest where y's type is another. Positions
 * come from memory that clients write: a row of x whose position is none of y's goes nowhere.
 */
#ifndef TANDEM_KERNELS_SCATTER_PARAMS_H
#define TANDEM_KERNELS_SCATTER_PARAMS_H

#include "kernels/params.h"

typedef struct td_params_scatter {
    const uint32_t *cancel;
    const uint32_t *verdict; /* of `claim`: as for `commit`, which this is then; or NULL */
    const void *x;
    const int32_t *position;
    void *y;
    td_strides x_at, position_at, y_at;
    td_shape shape;   /* of x */
    uint32_t entries; /* rows of y */
    uint16_t x_dtype, y_dtype; /* F16, BF16 or F32 */
} td_params_scatter;

#endif
