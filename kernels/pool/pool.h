/* Means of rows.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_POOL_H
#define TANDEM_KERNELS_POOL_H

#include "kernels/operation.h"

extern const td_operation td_operation_pool;

void td_cpu_pool(const void *params, const td_block *at);

#endif
