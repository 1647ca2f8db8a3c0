/* What the files that plan attention share: precision.c (what is computed), shape.c (by blocks of which shape), prologue.c
 * and direct.c (records of the families), plan.c (the order of it all).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_ATTENTION_PLAN_H
#define TANDEM_KERNELS_ATTENTION_PLAN_H

#include <stddef.h>

#include "kernels/check.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/params.h"
#include "kernels/builder.h"
#include "kernels/commit.h"

/* How many td_pad_dim() has. */
enum { TD_D_PADS = 5 };
static inline uint32_t td_index_of_dim(uint32_t d_pad)
{
    return d_pad <= 128 ? d_pad / 32 - 1 : TD_D_PADS - 1;
}

/* What the target asks of attention, or nothing. */
static inline td_attention_options td_options_of(const td_target *target)
{
    return target->attention ? *target->attention : (td_attention_options){.rows = TD_BEST_ROWS};
}

/* --- shape.c --- */

/* What a block of attn_8b_wgmma is made of: its warpgroups, and how many of them have the same rows. */
typedef struct td_hopper_block {
    uint32_t groups, splits;
} td_hopper_block;
uint32_t td_hopper_shared_bytes(uint32_t d_pad, uint32_t groups, uint32_t splits);
td_hopper_block td_hopper_block_of(const tandem_attention *op, const td_target *target, uint32_t d_pad);
td_hopper_block td_hopper_inline_block_of(const tandem_attention *op, const td_target *target, uint32_t d_pad);
/* Whether blocks of most warpgroups walk from tile to tile; of how many heads they take the tiles at a time. */
bool td_hopper_walks(const tandem_attention *op, const td_target *target, uint32_t d_pad, td_hopper_block block,
                     uint64_t tiles);
uint32_t td_hopper_walk_chunk(const tandem_attention *op, uint32_t d_pad);

/* Without a prologue, on tensors of fp16, of bf16: on a stream, there by blocks whose warpgroups share the keys of 64 rows or
 * of 128, and in the shared memory that every executor has, by blocks of three warpgroups or of two. */
typedef enum td_direct_kind { DIRECT, DIRECT_SPLIT, DIRECT_SPLIT2, DIRECT_INLINE, DIRECT_SHORT, DIRECT_KINDS } td_direct_kind;
typedef struct td_direct_block {
    td_direct_kind kind;
    uint32_t rows, teams, keys; /* of a tile; of warpgroups that share its keys, else 1; of a step */
    uint32_t walkers;           /* teams that have tiles of their own, else 1 */
    uint32_t threads, shared_bytes;
} td_direct_block;
td_direct_block td_direct_block_of(const tandem_attention *op, const td_target *target);
/* Whether there is a kernel that has tensors with so many channels as they lie in memory. */
static inline bool td_direct_has_dim(uint32_t head_dim)
{
    return head_dim == 64 || head_dim == 80 || head_dim == 96 || head_dim == 128;
}
/* Whether a block of the target has room for attn_f16_wgmma's. */
bool td_direct_is_roomy(const td_target *target, uint32_t head_dim);

/* Who has which tiles of a direct kernel. */
typedef struct td_direct_walk {
    uint64_t works, grid; /* tiles of all heads; blocks */
    uint32_t pair;
} td_direct_walk;
td_direct_walk td_direct_walk_of(const tandem_attention *op, const td_target *target, const td_direct_block *block,
                                 uint32_t keys);

/* How many blocks of `tiles` tiles make a cluster that has all of a head's K and V; 0: none does. */
uint32_t td_prepare_cluster(uint32_t chunks, uint32_t d_pad, uint32_t *tiles);

/* --- A plan in the making --- */

/* One of Q, K, V as the prologue sees it. */
typedef struct td_operand {
    uint32_t view, rows_pad, chunks, d_pad;
    uint64_t planes; /* batch * its heads */
    td_tensor tensor;
    td_place partial, mean, amax, low, flag, codes, scale, spans; /* spans: of rows, by batch; absent: all count */
} td_operand;

typedef struct td_planning {
    const tandem_attention *op;
    const td_target *target;
    td_builder at;
    /* What is computed, nothing of it left to us any more. */
    uint32_t sm; /* of the kernels */
    uint32_t precision, granularity, smooth, d_pad, qk_row_bytes;
    float scale, qmax, q_clip, k_clip;
    bool coded; /* K and V are codes already, and Q may be */
    bool qk_f16, v_f16, packed, smooth_q, smooth_k, smooth_v, tensor_scale, wants_lse, wants_bias;
    uint32_t seen_keys; /* by the last row */
    /* Where it is. */
    td_operand q, k, v;
    td_place q_mean, delta, lse_bias, dump_s, dump_p, dump_r;
    td_output out[2]; /* o and lse */
} td_planning;

#define AT(type, member) offsetof(td_params_##type, member)

/* How the attention kernel writes o and lse. */
typedef struct td_written {
    td_tensor o;
    int64_t lse_stride_batch, lse_stride_head, lse_stride_row;
} td_written;
/* tensors.c */
td_tensor td_tensor_of(const tandem_view *view, uint32_t heads, uint32_t rows, uint32_t dim);
td_written td_place_output(td_planning *p);

/* prologue.c: makes codes and scales of Q, K and V, and where Q is smoothed delta-S. True: by `prepare`, so that what comes
 * behind it may start early. */
bool td_add_prologue(td_planning *p);

/* direct.c: the kernel that takes Q, K and V of these types as they lie in memory, or NULL. Its
 * record; returned are the keys of a step. */
const td_kernel *td_direct_kernel(const tandem_attention *op, const td_target *target, const td_cubin *cubin, uint32_t sm,
                                  uint32_t smooth, float scale);
uint32_t td_add_direct(td_planning *p, const td_kernel *kernel);

/* masked.c: the record of attention with lengths of keys, a bias, or positions of rows. UNSUPPORTED with the reason where there is no kernel. */
tandem_status td_add_masked(td_planning *p, char *why, size_t why_bytes);
/* Where batches have starts: before all, spans of rows and keys; behind all, what is no row's of the output. */
void td_add_spans(td_planning *p);
void td_add_unspanned(td_planning *p);
/* The same on codes: before the prologue, how many keys count; behind it, attention, of which `attention` has what it has without a
 * mask. */
void td_add_masked_keys(td_planning *p);
td_record *td_add_masked_codes(td_planning *p, const td_written *to, const td_params_attention *attention);

#endif
