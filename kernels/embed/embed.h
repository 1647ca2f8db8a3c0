/* Sums of rows of tables.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_EMBED_H
#define TANDEM_KERNELS_EMBED_H

#include "kernels/operation.h"

extern const td_operation td_operation_embed;

void td_cpu_embed(const void *params, const td_block *at);

#endif
