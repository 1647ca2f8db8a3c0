/* `top_rows` on the CPU: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/top/params.h"
#include "kernels/top/top.h"

enum { AT_ONCE = 256 }; /* numbers; TD_TOP_CHUNK is a multiple */

static uint64_t key_of(float x, uint32_t channel)
{
    const float number = x + 0.0f; /* -0 is 0 */
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    if (isnan(x))
        return 0;
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~channel;
}

static float number_of(uint64_t key)
{
    uint32_t bits = (uint32_t)(key >> 32);
    float x;
    bits = bits & 0x80000000u ? bits & 0x7fffffffu : ~bits;
    memcpy(&x, &bits, sizeof x);
    return key ? x : NAN;
}

/* Takes the place that it has among the largest so far. */
static void insert(uint64_t best[TD_TOP_MOST], uint64_t key)
{
    uint32_t at = TD_TOP_MOST - 1;
    for (; at && key > best[at - 1]; at--)
        best[at] = best[at - 1];
    best[at] = key;
}

static void take_numbers(const td_params_top *p, uint32_t row, uint32_t block, const td_block *at, uint64_t best[TD_TOP_MOST])
{
    const int64_t plane = row / p->rows, from = td_row_at(&p->x_at, plane / p->heads, plane % p->heads, row % p->rows);
    float x[AT_ONCE];
    for (uint64_t chunk = (uint64_t)block * TD_TOP_CHUNK; chunk < p->channels; chunk += (uint64_t)p->blocks * TD_TOP_CHUNK) {
        const uint32_t left = p->channels - (uint32_t)chunk, end = (uint32_t)chunk + (left < TD_TOP_CHUNK ? left : TD_TOP_CHUNK);
        if (!td_block_goes_on(at))
            return;
        for (uint32_t c = (uint32_t)chunk; c < end; c += AT_ONCE) {
            const uint32_t count = end - c < AT_ONCE ? end - c : AT_ONCE;
            const float least = number_of(best[TD_TOP_MOST - 1]);
            td_to_floats(x, p->x, p->dtype, from + c, count);
            for (uint32_t i = 0; i < count; i++) {
                const uint64_t key = x[i] <= least ? 0 : key_of(x[i], c + i);
                if (key > best[TD_TOP_MOST - 1])
                    insert(best, key);
            }
        }
    }
}

void td_cpu_top(const void *params, const td_block *at)
{
    const td_params_top *p = params;
    const uint32_t row = at->x / p->blocks, block = at->x % p->blocks;
    const int64_t plane = row / p->rows;
    uint64_t best[TD_TOP_MOST] = {0}, *keys = p->keys;
    float y[2 * TD_TOP_MOST];
    if (p->stage == TD_TOP_END)
        for (uint32_t i = 0; i < p->kept; i++) {
            const uint64_t key = keys[(size_t)row * p->kept + i];
            if (key > best[TD_TOP_MOST - 1])
                insert(best, key);
        }
    else
        take_numbers(p, row, block, at, best);
    if (!td_block_goes_on(at))
        return;
    if (p->stage == TD_TOP_PARTS) {
        memcpy(keys + (size_t)at->x * TD_TOP_MOST, best, sizeof best);
        return;
    }
    for (uint32_t i = 0; i < p->count; i++) {
        y[i] = number_of(best[i]);
        y[p->count + i] = best[i] ? (float)(uint32_t)~best[i] : -1;
    }
    td_from_floats(p->y, TANDEM_DTYPE_F32, td_row_at(&p->y_at, plane / p->heads, plane % p->heads, row % p->rows), y, 2 * p->count);
}
