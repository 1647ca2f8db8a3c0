/* What AUTO takes: F16, 8B or 4B, by times that were measured on a GPU.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A table has microseconds for batch * heads = 1, 2, 4 ... 128 ("planes") and kv_len = 256, 512 ... 32768, for some
 * head dims, with and without a causal mask: of each precision's kernel with as many queries as keys, and with 16
 * queries ("few"); and of the prologue before it, where it has one. 0: not measured. Other head dims go by the rule.
 *
 * Between those goes an estimate, made of what plans have (td_attention_tiles): tiles of rows, of which as many as
 * there are multiprocessors are computed at once, and what one takes by its rows, its keys and the warpgroups that share
 * these; of a prologue its clusters. What was measured is divided by its estimate, and what that quotient is for a shape
 * lies between its four neighbours, on logarithmic axes: by tiles and keys; from few queries to as many as keys by how
 * many there are, as a tile at least; of a prologue by the rows of Q, K and V that it reads. Neighbours whose blocks are
 * of another kind count a tenth. The precision with the smallest sum of kernel and prologue is taken, the more exact one
 * where two are equal.
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
 * to be faster on a GPU like the H200 with so many multiprocessors (0: its own), in microseconds:
 *
 *     kernel    2.5 + waves * (rest + rows / 64 * (row + step * keys / 128))
 *     prologue  2 + head dim / 60 + bytes / 3 MB, up to 1.5 times that where clusters leave multiprocessors idle;
 *               where none holds a head (4096 keys, up to head dim 64 8192): 11 + bytes of K and V / 2.4 MB
 *
 *     rest, row 2.6 and 0.6 of F16, 2.6 and 0 where teams have tiles of their own; 3 and 1 of 8B, 1.6 where some of a
 *               step's keys are masked
 *     step      by head dim up to 64, 80, 96, 128: of F16 0.5, 0.71, 0.75, 0.88 (14 % less where multiprocessors are
 *               idle), of 8B 0.362, 0.445, 0.455, 0.505; where warpgroups share keys 30 % more of F16 but of two
 *               teams, 8 % of 8B, in smaller blocks 7 to 17 % more
 *     waves     of tiles of `rows` rows on the multiprocessors: whole ones; with a mask as they get them in order. Where
 *               8B's blocks walk from tile to tile 57 % of rest and row are left, and with a mask all get as much
 *     keys      that a query sees on average
 *     bytes     3 a value of Q, K and V, read as 16 bits and written as 8
 *
 * and a kernel takes at least the time in which its K and V are read. NOTES.md says how far that is from what was
 * measured. With 128 heads and as many queries as keys that is 8B from 1000 to 1400 keys on for head dim 80 to 128, 2300
 * for 64, with a mask 1800 to 2600 and 3100 to 5200; with few queries F16, unless few heads share long K and V. */
uint32_t td_choice_rule_direct(const tandem_attention *op, uint32_t multiprocessors);

/* The same in command buffers, whose kernels take longer and whose prologue has two records. */
uint32_t td_choice_rule_inline(const tandem_attention *op, uint32_t multiprocessors);

#endif
