/* Parameter blocks of kernels that do what records of two families do (join.h). Families do not know each other.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_JOIN_PARAMS_H
#define TANDEM_KERNELS_JOIN_PARAMS_H

#include "kernels/linear/params.h"
#include "kernels/norm/params.h"

/* Entries linear_f16_few_normed_*: `linear_few` without scale, gate or rotation, whose x is what a `norm_short_f16` makes, of up to so many
 * channels, a multiple of 32, and of rows that are one plane. That norm's y, and `sum`, are written as well; neither they nor y are read, and what the norm
 * reads is not written. */
#define TD_LINEAR_FEW_NORMED_INS 384
#define TD_LINEAR_FEW_NORMED_THREADS 512u /* of a block, for the norm: the first half of them multiplies */
#define TD_LINEAR_FEW_NORMED_PITCH(ins) ((ins) + 8u) /* of its rows in shared memory: eight of them meet all banks */
typedef struct td_params_linear_few_normed {
    td_params_linear p; /* its x is not used */
    td_params_norm n;
} td_params_linear_few_normed;

#endif
