/* GGUF's blocks of quantised weights on the CPU: decoding as ggml does it, and a plain quantiser for tests
 * and tools. td_dtype_of() says how large they are.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_BLOCKS_H
#define TANDEM_KERNELS_BLOCKS_H

#include "interop/operation.h"

#define TD_MAX_BLOCK 256 /* weights */

/* One block, each operation rounded to float32 in the order of the CUDA kernels. Nothing is written for
 * dtypes without blocks. */
void td_block_decode(uint32_t dtype, float *to, const uint8_t *block);
/* To nearest within the block's own range; finite weights, of which scales must fit fp16. */
void td_block_encode(uint32_t dtype, uint8_t *block, const float *from);

#endif
