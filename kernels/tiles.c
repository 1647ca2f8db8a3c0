/* Weights in tiles: see tiles.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/tiles.h"

#include <string.h>

enum { SLAB = 1024, PER_ROW = 64, QUARTERS = 4 };

uint32_t td_tiles_of(uint32_t dtype, uint64_t rows, uint64_t channels)
{
    const uint32_t tiles = dtype - TANDEM_DTYPE_Q8_0 + TANDEM_DTYPE_Q8_0_TILES;

    if (!td_dtype_is_tiles(tiles) || rows % TD_WEIGHT_ROWS || channels % td_dtype_of(tiles).elements)
        return TANDEM_DTYPE_NONE;
    return tiles;
}

static void pack_q8_0(const uint8_t *row, uint32_t r, uint8_t *chunk)
{
    for (uint32_t b = 0; b < 2; b++, row += 34) {
        memcpy(chunk + SLAB + 4 * r + 2 * b, row, 2);
        for (uint32_t q = 0; q < QUARTERS; q++) {
            uint64_t eight;

            memcpy(&eight, row + 2 + 8 * q, sizeof eight);
            eight ^= UINT64_C(0x8080808080808080);
            memcpy(chunk + PER_ROW * r + 16 * q + 8 * b, &eight, sizeof eight);
        }
    }
}

/* Blocks of 32 of which bytes have weights 16 apart. */
static void pack_nibbles(const uint8_t *row, uint32_t r, uint32_t block_bytes, uint8_t *chunk)
{
    const uint32_t head = block_bytes - 16;

    for (uint32_t i = 0; i < 4; i++)
        memcpy(chunk + SLAB + (4 * r + i) * head, row + i * block_bytes, head);
    for (uint32_t b = 0; b < 2; b++, row += 2 * block_bytes)
        for (uint32_t c = 0; c < 32; c++) {
            const uint8_t *low = row + head + c % 16, *high = low + block_bytes;

            chunk[PER_ROW * r + c / 8 * 16 + 8 * b + c % 8] =
                (uint8_t)((*low >> c / 16 * 4 & 15) | (*high >> c / 16 * 4 & 15) << 4);
        }
}

/* Of Q4_K and Q5_K: bytes have weights of neighbouring sub-blocks already. */
static void pack_pairs(const uint8_t *codes, uint32_t r, uint8_t *chunk)
{
    for (uint32_t pair = 0; pair < 4; pair++)
        for (uint32_t q = 0; q < QUARTERS; q++)
            memcpy(chunk + pair / 2 * SLAB + PER_ROW * r + 16 * q + pair % 2 * 8, codes + 32 * pair + 8 * q, 8);
}

static void pack_q4_k(const uint8_t *row, uint32_t r, uint8_t *chunk)
{
    pack_pairs(row + 16, r, chunk);
    memcpy(chunk + 2 * SLAB + 16 * r, row, 16);
}

static void pack_q5_k(const uint8_t *row, uint32_t r, uint8_t *chunk)
{
    pack_pairs(row + 48, r, chunk);
    memcpy(chunk + 2 * SLAB + 32 * r, row + 16, 32);
    memcpy(chunk + 2 * SLAB + 32 * TD_WEIGHT_ROWS + 16 * r, row, 16);
}

static void pack_q6_k(const uint8_t *row, uint32_t r, uint8_t *chunk)
{
    uint8_t *const high = chunk + 2 * SLAB;

    for (uint32_t half = 0; half < 2; half++)
        for (uint32_t c = 0; c < 32; c++) {
            const uint32_t at = PER_ROW * r + c % 16 / 4 * 16 + c / 16 * 4 + c % 4; /* of a slab */
            const uint8_t *low = row + 64 * half + c;

            /* parts 0 and 1 are in low nibbles, 2 and 3 in those above; here each is beside the next */
            chunk[half * SLAB + at] = (uint8_t)((low[0] & 15) | (low[32] & 15) << 4);
            chunk[half * SLAB + at + 8] = (uint8_t)(low[0] >> 4 | (low[32] & 0xf0));
            high[at + 8 * half] = row[128 + 32 * half + c];
        }
    memcpy(high + PER_ROW * TD_WEIGHT_ROWS + 16 * r, row + 192, 16);
    memcpy(high + (PER_ROW + 16) * TD_WEIGHT_ROWS + 2 * r, row + 208, 2);
}

void td_tiles_pack(uint32_t tiles, const uint8_t *const rows[TD_WEIGHT_ROWS], uint8_t *chunk)
{
    for (uint32_t r = 0; r < TD_WEIGHT_ROWS; r++)
        switch (tiles) {
        case TANDEM_DTYPE_Q8_0_TILES: pack_q8_0(rows[r], r, chunk); break;
        case TANDEM_DTYPE_Q4_0_TILES: pack_nibbles(rows[r], r, 18, chunk); break;
        case TANDEM_DTYPE_Q4_1_TILES: pack_nibbles(rows[r], r, 20, chunk); break;
        case TANDEM_DTYPE_Q4_K_TILES: pack_q4_k(rows[r], r, chunk); break;
        case TANDEM_DTYPE_Q5_K_TILES: pack_q5_k(rows[r], r, chunk); break;
        case TANDEM_DTYPE_Q6_K_TILES: pack_q6_k(rows[r], r, chunk); break;
        default: break;
        }
}

void td_tiles_pack_matrix(uint32_t tiles, const uint8_t *blocks, uint64_t rows, uint64_t channels, uint8_t *to)
{
    const td_dtype of = td_dtype_of(tiles);
    const uint64_t chunks = channels / of.elements, row_bytes = chunks * of.bytes;

    for (uint64_t first = 0; first < rows; first += TD_WEIGHT_ROWS)
        for (uint64_t chunk = 0; chunk < chunks; chunk++, to += (uint64_t)TD_WEIGHT_ROWS * of.bytes) {
            const uint8_t *from[TD_WEIGHT_ROWS];

            for (uint64_t r = 0; r < TD_WEIGHT_ROWS; r++)
                from[r] = blocks + (first + r) * row_bytes + chunk * of.bytes;
            td_tiles_pack(tiles, from, to);
        }
}
