/* Convolutions of images.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_CONV_H
#define TANDEM_KERNELS_CONV_H

#include "kernels/conv/params.h"
#include "kernels/operation.h"

extern const td_operation td_operation_conv;

/* A thread's scratch: the pixels that a block of 3 x 3 and stride 2 reads, so many channels at a time, and sums. */
#define TD_CONV_CPU_STEP 64u
#define TD_CONV_CPU_LOCAL_BYTES ((33u * 17u * TD_CONV_CPU_STEP + TD_CONV_WIDTH * TD_CONV_HEIGHT * TD_CONV_OUTS) * 4u)
void td_cpu_conv_pack(const void *params, const td_block *at);
void td_cpu_conv(const void *params, const td_block *at);

#endif
