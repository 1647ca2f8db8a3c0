/* RMSNorm and LayerNorm.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_NORM_H
#define TANDEM_KERNELS_NORM_H

#include "kernels/operation.h"

extern const td_operation td_operation_norm;

void td_cpu_norm(const void *params, const td_block *at);

#endif
