/* How a cache of keys and values lies in memory, and the parameter blocks of its kernels, on every
 * device.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * What is kept of one sequence for one head is a *plane*: td_cache_head, the newest page as fp16,
 * sealed pages. A page has 64 keys, whose codes are of the sort that its kind says:
 *
 *   k        [dim / 2][64][2]: pairs of neighbouring channels of each key; of INT4 instead
 *            [dim / 2][16] words: bits 4 j of word i are channel 2 p of key 16 j + i, bits 16 + 4 j
 *            its channel 2 p + 1
 *   v        [32][dim][2]: pairs of neighbouring keys of each channel
 *   k_min    fp16 [dim]      sealed pages only: a key is k_min + k_scale * code, codes from 0 on,
 *   k_scale  E5M3 [dim]      a value v_scale * code, codes E4M3
 *   v_scale  E5M3 [dim]
 *
 * So products, on CPUs as on tensor cores, find next to each other what they add up, and load what
 * lies behind one another. E5M3 is fp16 of no sign and three bits behind the point, in one byte.
 * Codes are made with minima and scales as they are kept, so rounding these loses next to nothing.
 *
 * The last page of a plane is never sealed: nobody is behind it to read it so.
 *
 * In a *pool* many sequences have one plane for each head: `slots` times td_cache_head and a newest
 * page, then `pages` sealed ones. A row of a table says which slot a sequence has, and behind that
 * which of the pages is its first one, and so on. A pool of fp16 has heads alone in its slots, and
 * pages that lie as newest ones do.
 */
#ifndef TANDEM_KERNELS_CACHE_PARAMS_H
#define TANDEM_KERNELS_CACHE_PARAMS_H

#include "kernels/params.h"

#define TD_CACHE_PAGE 64u    /* keys of a page */
#define TD_CACHE_ROWS 64u    /* rows of a call, at most */
#define TD_CACHE_GROUP 16u   /* heads of queries that share keys, at most */
#define TD_CACHE_TILE 16u    /* rows of a block, each a head's of a token */
#define TD_CACHE_TICKETS (TD_CACHE_ROWS * TD_CACHE_GROUP / TD_CACHE_TILE)
#define TD_CACHE_MOST_DIM 128u
#define TD_CACHE_CHUNK 4u    /* pages that are added up first; then their sums are, in order */

#define TD_CACHE_F16 0u      /* td_params_*.format: TANDEM_CACHE_F16, of pools alone, */
#define TD_CACHE_K4 2u       /* TANDEM_CACHE_K4V8 */
#define TD_CACHE_K_BYTES(format, dim) ((format) == TD_CACHE_K4 ? 32u * (dim) : 64u * (dim))
#define TD_CACHE_PAGE_BYTES(format, dim) \
    ((format) == TD_CACHE_F16 ? 256u * (dim) : TD_CACHE_K_BYTES(format, dim) + 68u * (dim))
#define TD_CACHE_K_MOST(format) ((format) == TD_CACHE_K4 ? 15.0f : 255.0f) /* the largest code, */
#define TD_CACHE_V_MOST 448.0f                                             /* and of values */
#define TD_CACHE_NAN 0xffu /* a scale, where something is not finite */

/* What a plane begins with. */
typedef struct td_cache_head {
    int32_t holds; /* which page is there as fp16, plus 1; else: none */
    uint32_t reserved[127 - TD_CACHE_TICKETS];
    uint32_t tickets[TD_CACHE_TICKETS]; /* chunks of a tile that are done */
} td_cache_head;
#define TD_CACHE_HEAD_BYTES 512u
#define TD_CACHE_NEWEST_BYTES(dim) (256u * (dim))
#define TD_CACHE_SEALED(page, format, dim)                \
    (TD_CACHE_HEAD_BYTES + TD_CACHE_NEWEST_BYTES(dim) + \
     (uint64_t)(page) * TD_CACHE_PAGE_BYTES(format, dim))

/* A slot of a pool, whose pages begin behind all of them. */
#define TD_CACHE_SLOT_BYTES(format, dim) \
    (TD_CACHE_HEAD_BYTES + ((format) == TD_CACHE_F16 ? 0u : TD_CACHE_NEWEST_BYTES(dim)))
#define TD_CACHE_POOLED(slots, page, format, dim)               \
    ((uint64_t)(slots) * TD_CACHE_SLOT_BYTES(format, dim) + \
     (uint64_t)(page) * TD_CACHE_PAGE_BYTES(format, dim))

/* Of a block's threads, for their sums: see cache_attention.cu. */
#define TD_CACHE_SHARED_BYTES(dim) (320u * (dim) + 1792u)

/* Kernel `cache_append`. Grid x: batch * kv_heads + head. Positions come from memory that clients
 * write: see tandem_cache_append. */
#define TD_CACHE_APPEND_THREADS 128u
typedef struct td_params_cache_append {
    const uint32_t *cancel;
    const uint32_t *verdict; /* of `claim`: as for `commit`, which this is then; or NULL */
    const void *k, *v;
    const int32_t *position;
    unsigned char *cache;
    td_strides k_at, v_at, position_at, cache_at; /* cache_at: in bytes */
    uint32_t heads, rows, dim, entries;           /* heads: of keys */
    uint16_t k_dtype, v_dtype;
    uint32_t format;
    const int32_t *table; /* NULL: each sequence has planes of its own */
    int64_t table_stride; /* of a sequence */
    uint32_t slots, pages;
} td_params_cache_append;

/* Kernels `cache_attend_k8_d64`, `_k8_d128`, `_k4_d64`, `_k4_d128`, `_f16_d64`, `_f16_d128`. A tile has TD_CACHE_TILE rows:
 * row i is head i % group of token i / group. Grid x: ((batch * kv_heads + head) * tiles + tile) *
 * spans + span. With one span a block has all chunks of a tile, one after the other. Else there are
 * as many as chunks of the whole cache: each block has its own, leaves its sums in `parts`, and who
 * is the last of a tile to do so adds all up, from the first to the last, as the one block does.
 * Chunks behind a tile's last position are nobody's. */
#define TD_CACHE_PART(dim) ((dim) + 4u) /* floats: sums of P V, largest score, sum of P, nothing */
typedef struct td_params_cache_attend {
    const uint32_t *cancel;
    const void *q;
    const int32_t *position;
    unsigned char *cache;
    void *o;
    float *parts; /* [plane][tile][span][TD_CACHE_TILE][TD_CACHE_PART]; NULL: one span */
    td_strides q_at, position_at, cache_at, o_at; /* cache_at: in bytes */
    uint32_t kv_heads, group, rows, dim, entries; /* group: heads of queries for each of keys */
    uint32_t spans;
    uint32_t o_dtype, format;
    float scale; /* of scores in base 2 */
    uint32_t reserved;
    const int32_t *table; /* as above */
    int64_t table_stride;
    uint32_t slots, pages;
} td_params_cache_attend;

/* Kernels `cache_step_*` of the same names: both, of one row a sequence, on the same planes, which no others append to. */
typedef struct td_params_cache_step {
    td_params_cache_attend attend;
    td_params_cache_append append; /* without a verdict */
} td_params_cache_step;

#endif
