/* The frame before, as it is seen now.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_REPROJECT_H
#define TANDEM_KERNELS_REPROJECT_H

#include "kernels/operation.h"
#include "kernels/reproject/params.h"

extern const td_operation td_operation_reproject;

void td_cpu_reproject(const void *params, const td_block *at);

#endif
