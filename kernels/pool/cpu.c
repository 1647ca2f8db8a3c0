/* `pool_rows` on the CPU, the bits of the GPU's: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cpu/cpu.h"
#include "kernels/pool/params.h"
#include "kernels/pool/pool.h"

enum { ROWS_AT_ONCE = 256 }; /* between two questions whether anybody wants them */

typedef struct chunk {
    const td_params_pool *p;
    int64_t batch, head;
    uint32_t first, end; /* rows that count */
    float divisor;
} chunk;

static chunk chunk_of(const td_params_pool *p, uint32_t plane, uint32_t number)
{
    chunk at = {.p = p, .batch = plane / p->heads, .head = plane % p->heads, .first = number * p->each};
    const int64_t asked = p->length ? (int64_t)p->length[at.batch * p->length_stride] : (int64_t)p->most;
    const uint32_t length = asked < 0 ? 0 : asked > p->most ? p->most : (uint32_t)asked;
    const uint32_t rows = p->stage == TD_POOL_END ? p->rows : length;
    const uint32_t end = p->rows - at.first < p->each ? p->rows : at.first + p->each;
    at.end = rows < end ? rows : end;
    at.divisor = p->stage == TD_POOL_PARTS ? 1 : (float)(length ? length : 1);
    return at;
}

/* Of a tile's channels; returns how many, or 0: nobody wants them any more. */
static uint32_t mean_of(const chunk *of, uint32_t tile, const td_block *block, float *mean)
{
    const td_params_pool *p = of->p;
    const uint32_t channel = tile * TD_POOL_TILE, left = p->channels - channel, count = left < TD_POOL_TILE ? left : TD_POOL_TILE;
    float sums[TD_POOL_SUMS][TD_POOL_TILE] = {0}, x[TD_POOL_TILE];
    for (uint32_t row = of->first; row < of->end; row++) {
        float *sum = sums[(row - of->first) % TD_POOL_SUMS];
        if ((row - of->first) % ROWS_AT_ONCE == 0 && !td_block_goes_on(block))
            return 0;
        td_to_floats(x, p->x, p->dtype, td_row_at(&p->x_at, of->batch, of->head, row) + channel, count);
        for (uint32_t i = 0; i < count; i++)
            sum[i] += x[i];
    }
    for (uint32_t apart = TD_POOL_SUMS / 2; apart; apart /= 2)
        for (uint32_t i = 0; i < apart; i++)
            for (uint32_t c = 0; c < count; c++)
                sums[i][c] += sums[i + apart][c];
    for (uint32_t i = 0; i < count; i++)
        mean[i] = sums[0][i] / of->divisor;
    return count;
}

/* The length of a vector of which 32 threads have eight sums of squares each. */
static float length_of(float *sums)
{
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t apart = 4; apart; apart /= 2)
            for (uint32_t i = 0; i < apart; i++)
                sums[8 * lane + i] += sums[8 * lane + i + apart];
    for (uint32_t apart = 16; apart; apart /= 2)
        for (uint32_t lane = 0; lane < apart; lane++)
            sums[8 * lane] += sums[8 * (lane + apart)];
    return sqrtf(sums[0]);
}

void td_cpu_pool(const void *params, const td_block *at)
{
    const td_params_pool *p = params;
    const uint32_t tiles = (p->channels + TD_POOL_TILE - 1) / TD_POOL_TILE, blocks = p->normalises ? 1 : tiles;
    const uint32_t chunks = (p->rows + p->each - 1) / p->each, number = at->x / blocks % chunks;
    const uint32_t first = at->x % blocks, end = p->normalises ? tiles : first + 1;
    const chunk of = chunk_of(p, at->x / blocks / chunks, number);
    float mean[TD_POOL_TILE], squares[TD_POOL_SQUARES] = {0}, divisor = 1;
    for (uint32_t tile = 0, count; tile < tiles && p->normalises; tile++) {
        count = mean_of(&of, tile, at, mean);
        if (!count)
            return;
        for (uint32_t i = 0; i < count; i++)
            squares[i % TD_POOL_SQUARES] += mean[i] * mean[i];
    }
    if (p->normalises) {
        const float length = length_of(squares);
        divisor = length < p->epsilon ? p->epsilon : length;
    }
    for (uint32_t tile = first, count; tile < end; tile++) {
        count = mean_of(&of, tile, at, mean);
        if (!count)
            return;
        for (uint32_t i = 0; i < count; i++)
            mean[i] /= divisor;
        td_from_floats(p->y, p->y_dtype, td_row_at(&p->y_at, of.batch, of.head, number) + (int64_t)tile * TD_POOL_TILE, mean, count);
    }
}
