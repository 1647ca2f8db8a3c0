/* Parameter block of the kernel `norm_rows`, on every device; of `norm_short_f16` and `norm_short_bf16`: for rows of 32 threads, a
 * multiple of 8 channels, x, residual, y and sum of that type, weight and bias of F32, all 16-byte aligned with their rows; and of
 * `norm_line_f16` and `norm_line_bf16`: RMSNorm alone, of x and a weight of F32 to y of that type, up to TD_NORM_LINE channels, a
 * multiple of 8, aligned likewise, with neither residual nor sum nor rotation.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A row: h = x + residual, rounded to x's type (`sum`); m is the mean of h, or 0 in RMSNorm;
 * y = (h - m) / sqrt(mean of (h - m)^2 + epsilon) * weight + bias; of the first rotated_channels pairs of neighbours a, b become
 * a cos - b sin, a sin + b cos, by a row of the rotation. All in float32, each operation rounded to nearest, in one order
 * everywhere: `lanes` threads have eight neighbouring channels each and 8 * lanes channels at a time, so channel c is added to sum
 * c % (8 * lanes). Then pairs of sums are added: of a thread's eight those 4, 2 and 1 apart, of 32 threads' those 16 to 1 apart; and
 * the sums of 32 threads one behind the other.
 */
#ifndef TANDEM_KERNELS_NORM_PARAMS_H
#define TANDEM_KERNELS_NORM_PARAMS_H

#include <stdint.h>

#include "kernels/params.h"

/* Blocks of so many threads; a row has 32 of them, or all if it has more than so many channels. */
#define TD_NORM_THREADS 256u
#define TD_NORM_SHORT 1024u
#define TD_NORM_LINE 8192u

typedef struct td_params_norm {
    const uint32_t *cancel;
    const void *x, *residual, *weight, *bias; /* the latter three may be NULL */
    void *y, *sum;                     /* sum may be NULL; of x's type */
    td_strides x_at, residual_at, y_at, sum_at;
    uint64_t total; /* rows: batch * heads * rows */
    uint32_t heads, rows, channels;
    float epsilon;
    uint16_t lanes; /* of a row; grid x: total * lanes / TD_NORM_THREADS, rounded up */
    uint8_t dtype, residual_dtype, weight_dtype, bias_dtype, y_dtype; /* F16, BF16 or F32 */
    uint8_t subtracts_mean;
    uint8_t weight_is_constant; /* nobody writes it while kernels ahead of this one run */
    uint8_t reserved[7];
    const float *rotation;   /* [positions][rotation_stride], or NULL: then norm_short may be it; */
    const int32_t *position; /* then of each row */
    td_strides position_at;  /* stride_head 0 */
    int64_t rotation_stride;
    uint32_t positions, rotated_channels; /* the second a multiple of 8 */
} td_params_norm;

#endif
