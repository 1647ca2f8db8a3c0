/* A path tracer's frame as light, and as a network's tokens.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_DEMODULATE_H
#define TANDEM_KERNELS_DEMODULATE_H

#include "kernels/demodulate/params.h"
#include "kernels/operation.h"

extern const td_operation td_operation_demodulate;

void td_cpu_demodulate_tiles(const void *params, const td_block *at);
void td_cpu_demodulate_all(const void *params, const td_block *at);
void td_cpu_demodulate(const void *params, const td_block *at);

#endif
