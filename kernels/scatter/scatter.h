/* Rows that are written to where positions say.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_SCATTER_H
#define TANDEM_KERNELS_SCATTER_H

#include "kernels/operation.h"

extern const td_operation td_operation_scatter;

void td_cpu_scatter(const void *params, const td_block *at);

#endif
