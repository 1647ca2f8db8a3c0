/* What AUTO takes: F16, 8B or 4B, by times that were measured on a GPU.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A table has microseconds for batch * heads = 1, 2, 4 ... 128 ("planes") and kv_len = 256, 512 ... 32768, for some
 * head dims, with and without a causal mask: of each precision's kernel with as many queries as keys, and with 16
 * queries ("few"); and of the prologue before it, where it has one. 0: not measured. Other head dims go by the rule.
 *
 * Between those a shape's time is that of its tiles: `multiprocessors` of them are computed at once, so it is a whole
 * number of waves, and a wave takes as long as it has keys. What lies smoothly between its neighbours, on logarithmic
 * axes, is a wave's time a key: by tiles and keys, and from few queries to as many as keys by how many there are, as a
 * tile at least. A prologue's time lies between its neighbours' by the rows of Q, K and V that it reads, and there are 4
 * microseconds more with one. The precision with the smallest
 * sum is taken, the more exact one where two are equal.
 * `kernels/` knows no files: `tandem tune` measures a table and writes it as JSON, who makes plans hands it in.
 */
#ifndef TANDEM_KERNELS_CHOICE_H
#define TANDEM_KERNELS_CHOICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tandem/types.h"

enum { TD_CHOICE_PLANES = 8, TD_CHOICE_LENGTHS = 8, TD_CHOICE_PARTS = 12, TD_CHOICE_DEVICE = 64, TD_CHOICE_FEW = 16 };
enum { TD_CHOICE_MOST_TEXT = 1 << 20 };

/* Microseconds at [planes][length]; 0: not measured. */
typedef float td_choice_times[TD_CHOICE_PLANES][TD_CHOICE_LENGTHS];

/* Of one precision. prologue: nothing where it has none; few: only without a causal mask. */
typedef struct td_choice_cost {
    td_choice_times kernel, prologue, few;
} td_choice_cost;

/* In the order in which equals are preferred. */
enum { TD_CHOICE_F16, TD_CHOICE_8B, TD_CHOICE_4B, TD_CHOICE_COSTS };

typedef struct td_choice_part {
    uint32_t head_dim, causal;
    td_choice_cost costs[TD_CHOICE_COSTS];
} td_choice_part;

typedef struct td_choice_table {
    uint32_t sm, multiprocessors;
    char device[TD_CHOICE_DEVICE];
    uint32_t count;
    td_choice_part parts[TD_CHOICE_PARTS];
} td_choice_table;

uint32_t td_choice_planes(uint32_t index);
uint32_t td_choice_length(uint32_t index);

/* Reads the JSON of a table. ARG, and what is wrong with which value in `why`; nothing in it is trusted. */
tandem_status td_choice_parse(const char *text, size_t bytes, td_choice_table *out, char *why, size_t why_bytes);

/* Whether a table was measured on such a GPU; if not, why. */
bool td_choice_fits(const td_choice_table *table, uint32_t sm, const char *device, char *why, size_t why_bytes);

/* The table that came with this build for that GPU, by the name that CUDA has for it; or NULL. */
const td_choice_table *td_choice_shipped(uint32_t sm, const char *device);

/* tandem_precision for `op`, which has passed td_attention_check(); AUTO where the table does not know. */
uint32_t td_choice_precision(const td_choice_table *table, const tandem_attention *op);

/* The same without a table: 8B from 256 keys on, else F16, which needs no scales of few keys. */
enum { TD_CHOICE_RULE_KEYS = 256 };
static inline uint32_t td_choice_rule(const tandem_attention *op)
{
    return op->kv_len >= TD_CHOICE_RULE_KEYS ? TANDEM_PRECISION_8B : TANDEM_PRECISION_F16;
}

/* Where F16 needs no prologue, but 8B one that reads all of Q, K and V (sm_90, fp16 or bf16 tensors): what is estimated
 * to be faster, in microseconds:
 *
 *     F16 = waves * (1.8 + f * keys / 128)
 *     8B  = waves * (3.5 + e * keys / 128) + 11 + bytes / 2.4 MB
 *
 *     head dim  up to 64    80    96   128     waves: of 132 tiles of 128 rows, 192 up to head dim 64; whole ones; with
 *     f             1.47  1.17  1.36  1.74            a mask as above, of F16 whole pairs from 264 tiles on; of 8B those
 *                                                     of tiles of 64 rows more, which take 1.28 times as long (1.25 up
 *                                                     to head dim 64), where that is less
 *     e             1.04  0.86  0.86  1.04     keys:  that a query sees on average
 *                                              bytes: 3 a value of Q, K and V, read as 16 bits and written as 8
 *
 * From an H200's kernels and prologues; NOTES.md compares it with what was measured, shape by shape. With 128 heads and
 * as many queries as keys that is 8B from about 1400 keys on for head dim 128, 2100 for 64, with a mask 2800 and 3800;
 * with few queries F16, unless few heads share long K and V. */
uint32_t td_choice_rule_direct(const tandem_attention *op);

/* The same in command buffers, whose kernels take longer (NOTES.md has the rates) and whose prologue has two records. */
uint32_t td_choice_rule_inline(const tandem_attention *op);

#endif
