/* What AUTO takes: F16, 8B or 4B, by times that were measured on a GPU.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A table has microseconds for batch * heads = 1, 2, 4 ... 128 ("planes") and kv_len = 256, 512 ... 32768, for some
 * head dims, with and without a causal mask: of each precision's kernel with as many queries as keys, and with 16
 * queries ("few"); and of the prologue before it, where it has one. 0: not measured. Other head dims go by the rule.
 *
 * Between those goes an estimate, made of what plans have (td_attention_tiles): tiles of rows, of which as many as
 * there are multiprocessors are computed at once, whose they are, and what one takes by its rows, its keys and the
 * warpgroups that share these; of a prologue its clusters. What was measured is divided by its estimate, and what that quotient is for a shape
 * lies between its four neighbours, on logarithmic axes: by tiles and keys; from few queries to as many as keys by how
 * many there are, as a tile at least; of a prologue by the rows of Q, K and V that it reads. Neighbours whose blocks are
 * of another kind count a tenth; so do few queries, or as many as keys, where theirs all are. The precision with the smallest sum of kernel and prologue is taken, the more exact one
 * where two are equal.
 * `kernels/` knows no files: `tandem tune` measures a table and writes it as JSON (tuning_file.h), who makes plans hands it in.
 */
#ifndef TANDEM_KERNELS_TUNING_H
#define TANDEM_KERNELS_TUNING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tandem/types.h"

enum { TD_TUNING_PLANES = 8, TD_TUNING_LENGTHS = 8, TD_TUNING_PARTS = 12, TD_TUNING_DEVICE = 64, TD_TUNING_FEW = 16 };

/* Microseconds at [planes][length]; 0: not measured. */
typedef float td_tuning_times[TD_TUNING_PLANES][TD_TUNING_LENGTHS];

/* Of one precision. prologue: nothing where it has none; few: only without a causal mask. */
typedef struct td_tuning_cost {
    td_tuning_times kernel, prologue, few;
} td_tuning_cost;

/* In the order in which equals are preferred. */
enum { TD_TUNING_F16, TD_TUNING_8B, TD_TUNING_4B, TD_TUNING_COSTS };

typedef struct td_tuning_part {
    uint32_t head_dim, causal;
    td_tuning_cost costs[TD_TUNING_COSTS];
} td_tuning_part;

typedef struct td_tuning_table {
    uint32_t sm, multiprocessors;
    char device[TD_TUNING_DEVICE];
    uint32_t count;
    td_tuning_part parts[TD_TUNING_PARTS];
} td_tuning_table;

uint32_t td_tuning_planes(uint32_t index);
uint32_t td_tuning_length(uint32_t index);

/* A table's part for a head dim, or NULL. */
const td_tuning_part *td_tuning_part_of(const td_tuning_table *table, uint32_t head_dim, bool causal);

/* Whether a table was measured on such a GPU; if not, why. */
bool td_tuning_fits(const td_tuning_table *table, uint32_t sm, const char *device, char *why, size_t why_bytes);

/* The table that came with this build for that GPU, by the name that CUDA has for it; or NULL. */
const td_tuning_table *td_tuning_shipped(uint32_t sm, const char *device);

/* tandem_precision for `op`, which has passed td_attention_check(); AUTO where the table does not know.
 * The fastest, if nothing else is within TD_TUNING_GAIN of it. Else operations that differ in their length alone (as many
 * queries as keys) change once, from the more exact precision to the other: times go up and down with the waves of blocks.
 * Where a table says that the other one gains more than that, it is taken: that was measured. */
#define TD_TUNING_GAIN 1.03
uint32_t td_tuning_precision(const td_tuning_table *table, const tandem_attention *op);

/* The microseconds that it goes by, end to end; 0: not known. */
void td_tuning_us(const td_tuning_table *table, const tandem_attention *op, double us[TD_TUNING_COSTS]);

/* The same without a table: 8B from 256 keys on, else F16, which needs no scales of few keys. */
enum { TD_TUNING_RULE_KEYS = 256 };
static inline uint32_t td_tuning_rule(const tandem_attention *op)
{
    return op->kv_len >= TD_TUNING_RULE_KEYS ? TANDEM_PRECISION_8B : TANDEM_PRECISION_F16;
}

/* Where F16 needs no prologue, but 8B one that reads all of Q, K and V (sm_90, fp16 or bf16 tensors): what is estimated
 * to be faster on a GPU like the H200 with so many multiprocessors (0: its own). Nobody measured that, so operations that
 * differ in their length alone (as many queries as keys) change exactly once, from F16 to 8B: at the length by which the
 * least is lost over all lengths. That is found by some 130 estimates, in .03 to .25 ms, and remembered by the thread. With
 * other queries than keys it is the faster one, or of two within TD_TUNING_GAIN the one that such a border has there. In
 * microseconds:
 *
 *     kernel    2.3 + what the multiprocessor takes that has most to do. Of its tiles each is begin + steps * step; or,
 *               where its rows see no key, as long as its Q and O take to come and go
 *     prologue  2.4 (3.3 above head dim 64) + bytes / 3.45 MB, up to 1.5 times that where clusters leave multiprocessors
 *               idle; where none holds a head (4096 keys, up to head dim 64 8192): 11.4 + bytes but 40 % of Q's / 3.3 MB
 *
 *     has       who has which tiles is as the kernels have it: blocks that walk have theirs beforehand, forwards and
 *               backwards in turn or by pairs; else the next is whose multiprocessor is free first
 *     begin     of F16 3.25 + 0.66 for 64 rows, 4.2 where teams have tiles of their own; of 8B 2.6 + 0.28 for 64 rows, 0.7 more
 *               where some keys are masked, 81 % of that where blocks walk; where warpgroups share keys 3.1 and 2.1
 *     step      of 128 keys and 64 rows, by head dim up to 64, 80, 96, 128: of F16 0.485, 0.673, 0.634, 0.755 (15 % less where
 *               multiprocessors are idle), of 8B 0.363, 0.463, 0.467, 0.49; where warpgroups share keys, all of whom
 *               take as many steps, 35 to 56 % more of F16 but of two teams, 20 % of 8B
 *     bytes     3 a value of Q, K and V, read as 16 bits and written as 8; of head dims above 64 as of 128
 *
 * and a kernel takes at least the time in which its K and V are read. These numbers are least squares over the table that
 * came with this build: 8 % from F16's times, 7 % from 8B's. With batch 4, 32 heads and as many queries as keys that is
 * 8B from 1063 keys on for head dim 128, 1745 for 64, with a mask 1731 and 3102. With few queries it is F16, unless few
 * heads share long K and V. */
uint32_t td_tuning_rule_direct(const tandem_attention *op, uint32_t multiprocessors);

/* The same in command buffers, whose kernels take longer and whose prologue has two records. */
uint32_t td_tuning_rule_inline(const tandem_attention *op, uint32_t multiprocessors);

#endif
