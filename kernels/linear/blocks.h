/* GGUF's blocks of quantised weights on the CPU: sizes, decoding as ggml does it, and a plain quantiser for tests and tools.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_LINEAR_BLOCKS_H
#define TANDEM_KERNELS_LINEAR_BLOCKS_H

#include "kernels/linear/params.h"

#define TD_LINEAR_MAX_BLOCK 256 /* weights */

typedef struct td_linear_block {
    uint32_t elements, bytes;
} td_linear_block;

/* Of Q8_0 to Q6_K; {0, 0} for all else. */
td_linear_block td_linear_block_of(td_linear_weights kind);
/* One block, each operation rounded to float32 in the order of weights.cuh. Nothing is written for kinds without blocks. */
void td_linear_decode(td_linear_weights kind, float *to, const uint8_t *block);
/* To nearest within the block's own range; finite weights, of which scales must fit fp16. */
void td_linear_encode(td_linear_weights kind, uint8_t *block, const float *from);

#endif
