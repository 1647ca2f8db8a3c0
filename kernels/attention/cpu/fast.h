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
    const float *delta;             /* added to scores, in base 2; or NULL */
    uint32_t delta_stride;          /* each of four rows has its own, and attends to no key where that is -inf; 0: all have one */
    bool is_8b;
    float cap;                      /* above 0: scores s, in base 2, become cap * tanh(s / cap), before delta is added */
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

#endif
