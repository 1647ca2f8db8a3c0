/* Attention as plans. Knows no handles; never launches, allocates, synchronises or logs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_ATTENTION_H
#define TANDEM_KERNELS_ATTENTION_H

#include "kernels/operation.h"

extern const td_operation td_operation_attention;

/* An attention as operands, of which no more than itself may be looked at. */
static inline const tandem_operands *td_operands_of(const tandem_attention *op)
{
    return (const tandem_operands *)(const void *)op;
}

/* Its views, in this order. */
enum { TD_VIEW_Q, TD_VIEW_K, TD_VIEW_V, TD_VIEW_O, TD_VIEW_LSE, TD_VIEW_LENGTH, TD_VIEW_BIAS, TD_VIEW_POSITION,
       TD_VIEW_Q_START, TD_VIEW_K_START, TD_VIEW_SINK, TD_VIEW_COUNT };

/* Whether rows of Q, keys of K and V lie one sequence behind the other. */
static inline bool td_attention_has_starts(const tandem_attention *op)
{
    return op->q_start.dtype != TANDEM_DTYPE_NONE || op->k_start.dtype != TANDEM_DTYPE_NONE;
}

/* Whether keys have lengths, scores a bias or a cap, rows positions or windows, batches starts, or heads a sink. */
static inline bool td_attention_is_masked(const tandem_attention *op)
{
    return op->length.dtype != TANDEM_DTYPE_NONE || op->bias.dtype != TANDEM_DTYPE_NONE || op->position.dtype != TANDEM_DTYPE_NONE ||
           op->softcap > 0 || op->window || td_attention_has_starts(op) || op->sink.dtype != TANDEM_DTYPE_NONE;
}

/* Where the intermediates of an attention plan lie in its scratch, for tests and for `tandem attend --codes`.
 * Offsets are UINT64_MAX where a plan has no such array. Shapes in LAYOUTS.md. */
typedef struct td_attention_layout {
    uint32_t q_pad, kv_pad, d_pad; /* rows padded to 128, head_dim padded to 32 */
    uint32_t v_is_f16;             /* V codes are fp16, not E4M3 */
    uint32_t qk_is_f16;            /* Q and K codes are fp16, not int8 */
    uint32_t step_keys;            /* keys that R adds up before it goes to O: 64, or TD_HOPPER_SUM_KEYS */
    uint32_t qk_is_packed;         /* they are int4, two a byte: a row has TD_PACKED_ROW_BYTES */
    uint64_t q_codes, q_scale, q_mean, k_codes, k_scale, k_mean, v_codes, v_scale, v_mean, delta_s;
    uint64_t dump_s, dump_p, dump_r;
} td_attention_layout;

/* Blocks of attn_8b_wgmma: those that pay off, those of more rows, those of fewer, whose bits are the same; those of 64
 * rows whose warpgroups share the keys, so add up in another order; at head dim 64 those of 128 rows that pairs of them do. */
typedef enum td_rows {
    TD_BEST_ROWS = 0,
    TD_MOST_ROWS = 1,
    TD_SHORT_ROWS = 2,
    TD_SPLIT_ROWS = 3,
    TD_PAIR_ROWS = 4
} td_rows;

/* What tests ask of attention's plans beside what the target is: td_target.attention. */
typedef struct td_attention_options {
    td_rows rows;
    bool dump;        /* the kernel also writes S, P codes and R tiles to scratch */
    bool int4;        /* 4B: packed codes and mma s4 even where that is not native */
    bool no_clusters; /* no cluster of blocks holds a head's K and V, as if all were too long */
} td_attention_options;

/* Makes the plan of `op` for `target`. `op` must have passed td_attention_check().
 * `layout` may be NULL. UNSUPPORTED with the reason in `why` when there is no kernel. */
tandem_status td_plan_attention(const tandem_attention *op, const td_target *target, td_plan *plan,
                                td_attention_layout *layout, char *why, size_t why_bytes);

/* td_target.position of a part of a causal head's rows: how many keys its last row attends to, one fewer each row before it;
 * TD_NO_KEYS: even the last row attends to none. K and V are quantised over kv_len all the same: so the bits are the whole
 * head's. */
#define TD_NO_KEYS UINT32_MAX

/* split.c: see td_operation. last_keys: td_target.position. */
td_cost td_attention_cost(const tandem_attention *op, uint32_t last_keys);
uint32_t td_attention_split(const tandem_attention *op, uint32_t count);
uint32_t td_attention_part(const tandem_attention *op, uint32_t count, td_part_at *at, tandem_attention *part);

/* What a plan of `op`, which has passed the check, would have as its precision: what AUTO stands for on that target. */
uint32_t td_attention_precision(const tandem_attention *op, const td_target *target);

/* The tiles that the attention kernel of a plan has; q, k and v fp16 or bf16, granularity, smoothing and scale left to us. */
typedef struct td_tiles {
    uint32_t rows;   /* of a tile */
    uint32_t groups; /* warpgroups of a block */
    uint32_t shares; /* those of them that have the same rows, and a part of the keys each; 1: rows of their own */
    uint32_t walkers; /* teams of so many warpgroups that a block has, each with tiles of its own; else 1 */
    uint32_t pair;   /* a block takes so many at once: with a mask a long one and a short one; else 1 */
    uint32_t walks;  /* 8B: whether blocks walk over tiles that are dealt out evenly, and begin the next while one ends */
    uint64_t tiles;  /* of all heads */
    /* So many (of F16 teams of `walkers`) walk from tile to tile, the next being known before; 0: a block a tile. */
    uint32_t blocks;
    uint32_t chunk_planes; /* 8B with a mask: heads whose tiles are taken at a time */
    /* Of the prologue before it: the blocks of a cluster and their threads; 0: it has no clusters. */
    uint32_t cluster, cluster_threads;
} td_tiles;
td_tiles td_attention_tiles(const tandem_attention *op, const td_target *target, uint32_t precision);

/* Part of its group's largest magnitude that the INT4 codes of Q and K reach where both are smoothed: `clip` in
 * params.h. */
float td_int4_clip(uint32_t granularity, uint32_t head_dim, bool is_k);

/* Checks everything about `op` but its mems: sizes, strides, enums, products in 128 bits. On ARG or UNSUPPORTED,
 * `why` names the argument and its value. */
tandem_status td_attention_check(const tandem_attention *op, char *why, size_t why_bytes);

/* The test oracle: attention in float64 on host pointers, straight from the formula. `lse` may be NULL.
 * q, k, v, o point to element (0,0,0,0) of each view; the views' mem and offset are not used. */
void td_ref_attention(const tandem_attention *op, const void *q, const void *k, const void *v, double *o, double *lse);

#endif
