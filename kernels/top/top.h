/* The largest numbers of rows.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_TOP_H
#define TANDEM_KERNELS_TOP_H

#include "kernels/operation.h"

extern const td_operation td_operation_top;

void td_cpu_top(const void *params, const td_block *at);

#endif
