/* Parameter block of the kernel `reproject`, on every device.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_REPROJECT_PARAMS_H
#define TANDEM_KERNELS_REPROJECT_PARAMS_H

#include "kernels/params.h"

#define TD_REPROJECT_WIDTH 32u /* pixels of a block, on the GPU a thread each */
#define TD_REPROJECT_HEIGHT 8u
#define TD_REPROJECT_THREADS (TD_REPROJECT_WIDTH * TD_REPROJECT_HEIGHT)
#define TD_REPROJECT_MOST 32.0f     /* that a pixel may weigh */
#define TD_REPROJECT_FARTHEST 1e6f  /* pixels that one may have moved */
#define TD_REPROJECT_DEPTH 0.1f     /* of a pixel's depth, that another's may differ by */
#define TD_REPROJECT_NORMAL 0.5f    /* the least cosine between normals */

typedef struct td_params_reproject {
    const uint32_t *cancel;
    const float *history;
    const void *motion, *valid, *normal, *depth, *normal_before, *depth_before; /* those not there: NULL */
    float *o;
    td_strides history_at, motion_at, valid_at, normal_at, depth_at, normal_before_at, depth_before_at, o_at;
    uint32_t height, width, columns, rows; /* columns, rows: blocks */
    uint8_t motion_dtype, valid_dtype, normal_dtype, depth_dtype, normal_before_dtype, depth_before_dtype; /* F16 or F32 */
    uint16_t reserved;
} td_params_reproject;
/* Grid x: (batch * rows + row) * columns + column. */

#endif
