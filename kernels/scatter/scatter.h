/* Rows that are written to where positions say.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_SCATTER_H
#define TANDEM_KERNELS_SCATTER_H

#include "kernels/operation.h"

extern const td_operation td_operation_scatter;

/* Whether a record scatters, by td_params_scatter. */
bool td_is_scatter(const td_record *record);

void td_cpu_scatter(const void *params, const td_block *at);

#endif
