/* Weights in tiles: GGUF's blocks in another order, in as many bytes.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Sixteen rows of a matrix are a tile, tiles lie one behind the other, and a tile is chunks of 64, 128 or 256 channels of its rows, one
 * behind the other. A chunk has slabs of 1024 bytes of codes, then what else a row's blocks have. In a slab row r has the 64 bytes from
 * 64 r on, of which 16 q + 8 b to 16 q + 8 b + 7 are eight weights of the b-th 32 (of codes of four bits, of the 2b-th 32 in low nibbles
 * and the next in high ones): channels 8 q to 8 q + 7. Q6_K, whose scales are of 16 channels, has 4 q to 4 q + 3 and those 16 further.
 * Whatever a warp of four threads a row reads is a run of whole lines, and each thread's part lies on 16 bytes.
 *
 *   dtype   channels  slabs  behind them, of each row in turn
 *   Q8_0          64      1  2 scales; codes are more by 128
 *   Q4_0         128      1  4 scales
 *   Q4_1         128      1  4 times scale and minimum
 *   Q4_K         256      2  the first 16 bytes of its block
 *   Q5_K         256      2  32 bytes of fifth bits, as in its block; of each row in turn those first 16 bytes
 *   Q6_K         256      2  64 bytes of two bits, as in its block but in slabs' order; 16 scales; one of all
 */
#ifndef TANDEM_KERNELS_TILES_H
#define TANDEM_KERNELS_TILES_H

#include <stdbool.h>

#include "interop/operation.h"

enum { TD_WEIGHT_ROWS = 16, TD_MOST_CHUNK_BYTES = 16 * 210 };

static inline bool td_dtype_is_tiles(uint32_t dtype)
{
    return dtype >= TANDEM_DTYPE_Q8_0_TILES && dtype <= TANDEM_DTYPE_Q5_K_TILES;
}

/* A dtype's in tiles; NONE where it has none, or a matrix of such rows and channels cannot be in tiles. */
uint32_t td_tiles_of(uint32_t dtype, uint64_t rows, uint64_t channels);
/* A chunk, in tiles, of what rows[] have from their blocks there on. */
void td_tiles_pack(uint32_t tiles, const uint8_t *const rows[TD_WEIGHT_ROWS], uint8_t *chunk);
/* A whole matrix, whose rows of blocks lie one behind the other; td_tiles_of() knows such rows and channels. */
void td_tiles_pack_matrix(uint32_t tiles, const uint8_t *blocks, uint64_t rows, uint64_t channels, uint8_t *to);

#endif
