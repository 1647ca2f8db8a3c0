/* What the CPU's attention is made of: rows by fours against a tile of 64 keys, as each instruction set does it (fast.c).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_ATTENTION_CPU_FAST_H
#define TANDEM_KERNELS_ATTENTION_CPU_FAST_H

#include "kernels/attention/cpu.h"

/* What one block works on. */
typedef struct td_fast_job {
    const td_params_attention *p;   /* NULL where its caller packs Q, K and V, as float */
    td_local_fast *local;
    const unsigned char *q, *k, *v; /* codes of this head */
    uint32_t rows, d_pad, key;      /* key: first of the current tile */
    const float *delta;             /* of keys, added to scores, in base 2; or NULL */
    const float *own;               /* of rows, likewise; or NULL */
    float cap;                      /* above 0: scores s, in base 2, then become cap * tanh(s / cap) */
    const float (*bias)[TD_TILE_KEYS]; /* of each of four rows, added in the end; -inf: it does not attend to that key; or NULL */
    bool is_8b;
    uint32_t first; /* row of o and of lse, of their batch, that is row 0 */
    float sink;     /* of the head, in base 2, as scores before `own`; -INFINITY: none */
} td_fast_job;

/* What an instruction set does for a tile; `row` counts within the block, four rows at a time, of which each attends to the first
 * `limit` keys. */
typedef struct td_fast_ops {
    void (*pack_q)(const td_fast_job *at);
    void (*pack_kv)(const td_fast_job *at);
    void (*rows)(const td_fast_job *at, uint32_t row, const int32_t *limit);
    void (*store)(void *to, uint32_t dtype, int64_t at, const float *from, uint32_t n); /* td_from_floats() */
} td_fast_ops;

/* Of the instruction set in use. */
const td_fast_ops *td_fast_ops_in_use(void);

/* A block on codes: `count` rows of a head from row `first` on, with nothing added up yet; the tile of keys from at->key on; what
 * has been added up, as o and lse. */
typedef struct td_fast_rows {
    uint32_t bh, bhk, first, count;
} td_fast_rows;
td_fast_job td_fast_start(const td_params_attention *p, const td_fast_rows *of, bool is_8b, td_local_fast *local);
void td_fast_load_tile(const td_fast_rows *of, td_fast_job *at);
/* With a row's sink its sum, of which P is 2^(score - base + TD_LOG2_448), and its lse: -INFINITY where the sum is 0. */
TD_INLINE float td_fast_with_sink(float l, float m, float sink)
{
    return sink == -INFINITY ? l : l + exp2f((sink - (m == -INFINITY ? 0 : m)) + TD_LOG2_448);
}

TD_INLINE float td_fast_lse(float l, float m, float sink)
{
    if (l == INFINITY) /* beside such a sink nothing counts */
        return sink * TD_LN_2;
    return l == 0 ? -INFINITY : (((m == -INFINITY ? 0 : m) + log2f(l)) - TD_LOG2_448) * TD_LN_2;
}
void td_fast_store(const td_fast_rows *of, const td_fast_job *at);

#endif
