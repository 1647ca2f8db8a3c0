/* RMSNorm and LayerNorm.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_NORM_H
#define TANDEM_KERNELS_NORM_H

#include "kernels/norm/params.h"
#include "kernels/operation.h"

extern const td_operation td_operation_norm;

/* Whether a record is one of `norm_line_f16`, or of `norm_short_f16`. */
bool td_norm_is_line_f16(const td_record *record);
bool td_norm_is_short_f16(const td_record *record);

void td_cpu_norm(const void *params, const td_block *at);

#endif
