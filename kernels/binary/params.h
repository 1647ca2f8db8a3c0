/* Parameter block of the kernel `binary_rows`, on every device.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * y = a + scale * b, or a * (scale * b), in float32, each operation rounded to nearest.
 */
#ifndef TANDEM_KERNELS_BINARY_PARAMS_H
#define TANDEM_KERNELS_BINARY_PARAMS_H

#include "kernels/params.h"

typedef struct td_params_binary {
    const uint32_t *cancel;
    const void *a, *b;
    void *y;
    td_strides a_at, b_at, y_at;
    td_shape shape; /* of y */
    float scale;
    uint8_t a_dtype, b_dtype, y_dtype; /* F16, BF16 or F32 */
    uint8_t multiplies;
    uint32_t one_channel; /* of b, for all of y's; else as many */
} td_params_binary;

#endif
