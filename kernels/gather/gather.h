/* Attention of pixels over their neighbours.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_GATHER_H
#define TANDEM_KERNELS_GATHER_H

#include "kernels/gather/params.h"
#include "kernels/operation.h"

extern const td_operation td_operation_gather;

/* A thread's scratch: planes of what a block's queries may meet. A row has even pixels, then odd ones where the step is 2. */
#define TD_GATHER_CPU_ROWS 40u
#define TD_GATHER_CPU_HALF 32u
#define TD_GATHER_CPU_PLANE (TD_GATHER_CPU_ROWS * 2u * TD_GATHER_CPU_HALF)
#define TD_GATHER_CPU_PLANES (2u * (TD_GATHER_DIM + 5u))
#define TD_GATHER_CPU_LOCAL_BYTES (TD_GATHER_CPU_PLANES * TD_GATHER_CPU_PLANE * 4u)
void td_cpu_gather(const void *params, const td_block *at);

#endif
