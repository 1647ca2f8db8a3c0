/* Sums and products of two tensors, element by element.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_BINARY_H
#define TANDEM_KERNELS_BINARY_H

#include "kernels/operation.h"

extern const td_operation td_operation_binary;

void td_cpu_binary(const void *params, const td_block *at);

#endif
