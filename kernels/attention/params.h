/* Parameter blocks of attention: one POD a kernel, read by the CUDA kernels and by their CPU twins alike.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Plain C that C++ accepts. Pointers are 8 bytes on either side; a plan leaves them 0 and relocates them.
 * Names: bh is a (batch, head) pair, bhk a (batch, kv head) pair; rows are padded to 128, channels to 32
 * (q_pad, kv_pad, d_pad). All layouts are drawn in LAYOUTS.md.
 *
 * Numbers that both sides must compute alike, in float32, round to nearest, without contraction unless fma is said:
 *   finite(x)      x if it is finite, else 0; a row with anything else in it is "bad"
 *   mean[c]        of each chunk of 128 rows eight sums s0 .. s7 of the rows that are alike modulo 8, in order; the chunk's
 *                  is (((s0 + s1) + (s2 + s3)) + (s4 + s5)) + (s6 + s7); then over the chunks in order, then / (float)rows.
 *                  Of a block of Q (smooth Q): row after row, then / (float)rows
 *   y              x - mean (x where there is no smoothing)
 *   amax           of codes of Q and K: (largest |y| of the group) * clip; of V: the largest |y|
 *   clip           1, but for INT4 codes where both Q and K are smoothed: there few y are near the largest, so those
 *                  saturate and all others get a finer step. With n = rows of a group * head_dim: 1 for n <= 64 or
 *                  head_dim < 64, else 0.8125 for n <= 256 or head_dim < 96, else 0.75. ACCURACY.md compares it with
 *                  the paper's, which is 1
 *   scale          amax / qmax                               (0 if amax < 2^-100)
 *   code           clamp(rint(y * (qmax / amax)), -qmax, qmax)   (0 if amax < 2^-100); a NaN (sums overflowed)
 *                  here becomes -qmax
 *   row's scale    its group's scale, or NaN if the row is bad (for a key: bad in K or in V)
 *   V's scale      amax over the head's keys of a channel / V_TOP; code = e4m3(y * (V_TOP / amax)). V_TOP is so low
 *                  that sums in fp16 cannot overflow; it costs precision only below 1/112 of amax
 *   S              (float)dot * (q_scale * sl2) * k_scale [fma(delta, sl2, .)], sl2 = softmax scale * log2(e); -inf where masked
 *                  evaluated as  (float)dot * ((q_scale * sl2) * k_scale)
 *   m              running row maximum of S over tiles of 64 keys, NaN ignored; base = m, or 0 while m is -inf
 *   P              ex2(S - base + LOG2_448), so that 448 is the largest; its code is e4m3(P), saturating
 *                  evaluated as  ex2((S - base) + LOG2_448)
 *   alpha          ex2(m_old - base) ;  l = l * alpha + sum P ;  O = fma(O, alpha, R), R = P codes * V codes over the tile
 *   O              ((O / l) * v_scale) + v_mean, each rounded; 0 where l is 0
 *   lse            ((base + log2(l)) - LOG2_448) * ln 2 (+ lse_bias * softmax scale), -inf where l is 0
 * attn_8b_wgmma does some of that in another order; per row, after each 64 keys, P being 2^(S - top):
 *   here           the largest (float)dot * c of the 64 keys, c = (q_scale * sl2) * k_scale
 *   P              ex2(fma((float)dot, c, -top)); ex2((float)dot * c - top), each rounded, where top is far. Its code is 0 where
 *                  masked, NaN for a bad key
 *   far            |top| >= FAR_BASE, and finite. There floats are further apart than P's limit is above 1: fma would be exact but its
 *                  top not, and P 0 or infinite. With a product that is rounded as top is, the largest P is 1
 *   top            if here - top (+ |here| * HALF_STEP where top is not far) > LATE_LIMIT: next = here - (LATE_LIMIT - HEADROOM), or
 *                  here if that or here is far; what is added up (O, l, R) is multiplied by ex2(top - next), R by that rounded to
 *                  fp16, top = next; else it stays. It begins as -inf. So no P is above 2^LATE_LIMIT: where top is not far, here is
 *                  at most 2 off the largest score, and next 1 off here - 3
 *   R              P codes * V codes over 256 keys (at d_pad 256: 128) in fp16, and l's part with V codes of 1; then O += R, l += its part
 *   O, lse         (O * (1 / l)) * v_scale + v_mean; (top + log2(l)) * ln 2
 * The same P with the same offset is used by the fp16 kinds: their P code is f16(P), and their mma accumulates straight
 * into O after O = O * alpha. l sums P before it is rounded to a code, in any order.
 */
#ifndef TANDEM_KERNELS_ATTENTION_PARAMS_H
#define TANDEM_KERNELS_ATTENTION_PARAMS_H

#include <stdint.h>

#include "kernels/codes.h"
#include "kernels/params.h"

#define TD_TILE_KEYS 64u   /* keys per step of the attention kernel, and per flush of the two-level accumulation */
#define TD_LOG2_448 8.8073549220576037f

/* On the GPU every kernel of this file runs blocks of 128 threads if nothing else is said. The prologue's shared
 * memory is static, the attention kernels' dynamic: a stage is 64 keys of K (rows padded by 16 bytes), their scales and delta-S, and those
 * keys of V's d_pad channels (padded alike); two stages where they leave room for the inline executor's 47 KB, else one.
 * qk_row_bytes: of a row of K codes (TD_PACKED_ROW_BYTES where packed); pv_bytes: 1 for e4m3 codes, 2 for fp16. */
#define TD_ATTENTION_STAGE_BYTES(qk_row_bytes, pv_bytes, d_pad) \
    (64u * ((qk_row_bytes) + 16u) + 2u * 64u * 4u + (d_pad) * (64u * (pv_bytes) + 16u))
#define TD_ATTENTION_STAGES(qk_row_bytes, pv_bytes, d_pad) \
    (2u * TD_ATTENTION_STAGE_BYTES(qk_row_bytes, pv_bytes, d_pad) <= 47u * 1024u ? 2u : 1u)
#define TD_ATTENTION_SHARED_BYTES(qk_row_bytes, pv_bytes, d_pad) \
    (TD_ATTENTION_STAGES(qk_row_bytes, pv_bytes, d_pad) * TD_ATTENTION_STAGE_BYTES(qk_row_bytes, pv_bytes, d_pad))
/* attn_8b_wgmma: 128 keys a step, two to four warpgroups of 64 rows and one that fetches. A row of K or Q has 32, 64 or
 * 128 bytes in shared memory, which holds stages of K, V with eight channels of ones, and scales; then Q, V's scales and
 * means for each warpgroup, barriers, rows' scales and sums. R adds up TD_HOPPER_SUM_KEYS(d_pad) keys in fp16: none of
 * its sums may pass 65504. */
#define TD_HOPPER_KEYS 128u
#define TD_HOPPER_R_KEYS 256u /* at most */
#define TD_HOPPER_SUM_KEYS(d_pad) ((d_pad) <= 128u ? TD_HOPPER_R_KEYS : TD_HOPPER_KEYS)
#define TD_HOPPER_SUMS(kv_pad, d_pad) (((kv_pad) + TD_HOPPER_SUM_KEYS(d_pad) - 1u) / TD_HOPPER_SUM_KEYS(d_pad)) /* R's of a row */
/* Of attn_8b_wgmma and, up to d_pad 128, attn_8b_wgmma_walk; attn_8b_wgmma_short, up to d_pad 128, has one fewer. */
#define TD_HOPPER_GROUPS(d_pad) ((d_pad) <= 64u ? 4u : (d_pad) <= 128u ? 3u : 2u)
#define TD_HOPPER_SPLITS(d_pad) TD_HOPPER_GROUPS(d_pad) /* up to d_pad 128: warpgroups of attn_8b_wgmma_split */
#define TD_MAX_SPLITS 4
#define TD_HOPPER_LONGER(d_pad) ((d_pad) <= 64u ? 1.25 : 1.28) /* time of such a block, by the short one's */
#define TD_HOPPER_STAGES(d_pad, splits) ((splits) == 2u ? 10u : ((d_pad) <= 64u ? 6u : 3u) * ((splits) > 1u ? 2u : 1u))
#define TD_HOPPER_ROWS(groups) (64u * (groups))
#define TD_HOPPER_THREADS(groups) (128u * ((groups) + 1u))
#define TD_LATE_LIMIT_LOG2 7.0f /* P at most, */
#define TD_HEADROOM_LOG2 4.0f   /* and how far below that it is when its base is set */
#define TD_FAR_BASE 0x1p26f     /* the least base that is far, see above */
#define TD_HALF_STEP 0x1p-24f   /* times a score: at most what it was rounded by */
#define TD_HOPPER_ROW_BYTES(d_pad) ((d_pad) <= 32u ? 32u : (d_pad) <= 64u ? 64u : 128u)
#define TD_HOPPER_STAGE_BYTES(d_pad) (128u * TD_HOPPER_ROW_BYTES(d_pad) + ((d_pad) + 8u) * 128u + 1024u)
#define TD_HOPPER_SHARED_BYTES(d_pad, groups, splits)                                                                 \
    (TD_HOPPER_STAGES(d_pad, splits) * TD_HOPPER_STAGE_BYTES(d_pad) +                                                 \
     TD_HOPPER_ROWS((groups) / (splits)) * TD_HOPPER_ROW_BYTES(d_pad) +                                               \
     (((splits) > 1u ? 2u : (groups)) * 2u * 4u * (d_pad) + 1023u) / 1024u * 1024u +                                  \
     (16u * TD_HOPPER_STAGES(d_pad, splits) + 4u * TD_HOPPER_ROWS((groups) / (splits)) + 1028u * (groups) + 1039u) /  \
         1024u * 1024u)
/* attn_8b_wgmma_walk, whose blocks have TD_HOPPER_GROUPS(d_pad) warpgroups and walk from tile to tile: more stages where there
 * is room, Q, rows' scales, V's scales and means, barriers and the place of two tiles, and scales of rows as threads have them. */
#define TD_HOPPER_WALK_STAGES(d_pad) ((d_pad) <= 64u ? 6u : 4u)
#define TD_HOPPER_WALK_SHARED_BYTES(d_pad)                                                                             \
    (TD_HOPPER_WALK_STAGES(d_pad) * TD_HOPPER_STAGE_BYTES(d_pad) +                                                     \
     2u * TD_HOPPER_ROWS(TD_HOPPER_GROUPS(d_pad)) * TD_HOPPER_ROW_BYTES(d_pad) +                                       \
     (16u * (d_pad) + 1023u) / 1024u * 1024u +                                                                         \
     (16u * TD_HOPPER_WALK_STAGES(d_pad) + 1284u * TD_HOPPER_GROUPS(d_pad) + 1039u) / 1024u * 1024u +                  \
     (8u * TD_HOPPER_ROWS(TD_HOPPER_GROUPS(d_pad)) + 32u + 1023u) / 1024u * 1024u)
#define TD_HOPPER_WALK_CHUNK_BYTES (32u << 20) /* of K and V that blocks use at a time under a causal mask: L2 has 50 MB */
/* attn_8b_wgmma_d256: 4 slots for 64 keys of K, 3 for a step of V with the channels of ones, Q; then scales of 4 steps, of V
 * and of rows, V's means, two pairs of numbers a thread, barriers. */
#define TD_HOPPER_256_SHARED_BYTES (4u * 64u * 256u + 3u * 264u * 128u + 128u * 256u + 9u * 1024u)

/* attn_8b_wgmma_inline: a block like attn_8b_wgmma's in 47 KB of shared memory; attn_8b_wgmma_inline_short has
 * TD_HOPPER_INLINE_FEW warpgroups, attn_8b_wgmma_inline_split TD_HOPPER_INLINE_SPLITS that share the keys of 64 rows,
 * attn_8b_wgmma_inline_pair four of which two share those of 64.
 * Teams of its warps that fetch, a slot each, bring tiles of 64 keys into rings of slots (kernels/ring.h), one ring or one for
 * those that have the same keys; a slot holds K's rows, and a row of 64 bytes for each of V's channels and of eight channels of
 * ones. Behind them are TD_HOPPER_INLINE_Q_STEPS times 32 channels of Q (the others are in registers), V's scales and means
 * (not where the longest blocks of d_pad 128 are: there they come at last, where Q was), scales of keys, keys that all rows
 * see, rows' scales, and two barriers a slot. */
#define TD_HOPPER_INLINE_GROUPS(d_pad) ((d_pad) > 32u && (d_pad) <= 64u ? 4u : 3u)
#define TD_HOPPER_INLINE_FEW 2u
#define TD_HOPPER_INLINE_SPLITS(d_pad) ((d_pad) <= 96u ? 3u : 2u)
#define TD_HOPPER_INLINE_Q_STEPS(d_pad, groups) ((groups) == 4u ? 1u : (d_pad) > 96u && (groups) == 3u ? 2u : 0u)
#define TD_HOPPER_INLINE_SLOTS(d_pad, groups, splits) \
    ((splits) > 1u ? (groups) / (splits) : (d_pad) <= 64u ? 4u : (d_pad) <= 96u ? 3u : 2u)
#define TD_HOPPER_INLINE_SLOT_BYTES(d_pad) (64u * TD_HOPPER_ROW_BYTES(d_pad) + 64u * ((d_pad) + 8u))
#define TD_HOPPER_INLINE_Q_BYTES(d_pad, groups, splits) \
    (32u * TD_HOPPER_INLINE_Q_STEPS(d_pad, groups) * 64u * (groups) / (splits))
#define TD_HOPPER_INLINE_V_LAST(d_pad, groups) ((d_pad) > 96u && (groups) == 3u)
#define TD_HOPPER_INLINE_SHARED_BYTES(d_pad, groups, splits)                                                          \
    ((splits) * TD_HOPPER_INLINE_SLOTS(d_pad, groups, splits) * (TD_HOPPER_INLINE_SLOT_BYTES(d_pad) + 16u) +          \
     (TD_HOPPER_INLINE_Q_STEPS(d_pad, groups) ? TD_HOPPER_INLINE_Q_BYTES(d_pad, groups, splits) : 16u) +              \
     (TD_HOPPER_INLINE_V_LAST(d_pad, groups) ? 32u : 8u * (d_pad)) + 512u * ((splits) > 1u ? (groups) : 2u) + 32u +   \
     4u * TD_HOPPER_ROWS(groups))

/* Packed int4 codes: two a byte, the even channel in the low half, channels padded with 0 to 64 (one mma step). */
#define TD_PACKED_ROW_BYTES(d_pad) (((d_pad) + 63u) / 64u * 32u)

/* Rows of a batch: those before `end`, from `first` on. */
typedef struct td_span {
    int32_t first, end;
} td_span;

/* Kernel `attn_spans`: spans of batches, of [batch], whose rows lie one behind the other; starts come from memory that clients write.
 * With c(i) the largest of start[0 .. i], at least 0 and at most total, that of batch b is c(b) to c(b + 1) - 1, of which `most` at
 * most count. So spans rise, and are the same for all that comes behind. Grid x: 1. */
typedef struct td_params_attention_spans {
    const uint32_t *cancel;
    const int32_t *start[2]; /* of q, of keys; or NULL */
    td_span *spans[2];
    uint32_t total[2], most[2];
    uint32_t batch, reserved;
} td_params_attention_spans;

/* Kernel `attn_unspanned`: rows of o, and of lse, that are no span's become 0, and -inf. Grid x: batch * heads + head; each has those
 * behind its batch's span, the first batch those before its own, too. */
typedef struct td_params_attention_unspanned {
    const uint32_t *cancel;
    const td_span *spans;
    td_tensor o; /* rows: of all; stride_batch 0 */
    float *lse;  /* or NULL */
    td_strides lse_at;
    uint32_t batch, reserved;
} td_params_attention_unspanned;

/* Kernel `attn_masked_keys`: which of a batch's keys count where lengths or positions say so, from its first one on those that some
 * row may attend to. Of what comes below, where it has `spans`, of [batch], other rows do not exist: they are not read, and chunks
 * of 128 rows of a span that begin behind it are left as they are. Codes of a span begin where those of its batch do. Grid x: batch. */
typedef struct td_params_attention_keys {
    const uint32_t *cancel;
    const int32_t *length; /* or NULL */
    int64_t length_stride; /* of a batch */
    const int32_t *position; /* or NULL */
    td_strides position_at;
    const td_span *q_spans, *k_spans; /* or NULL: rows, keys */
    td_span *spans;
    uint32_t rows, keys; /* of positions; all */
} td_params_attention_keys;

/* Kernel `mean_partial`: column sums of finite(x) over each chunk of 128 rows.
 * Grid x: bh * chunks + chunk, chunks = ceil(rows / 128). partial: f32 [bh][chunks][d_pad], channels beyond dim 0. */
typedef struct td_params_mean_partial {
    const uint32_t *cancel;
    td_tensor x;
    float *partial;
    uint32_t chunks, d_pad;
    const td_span *spans; /* or NULL */
} td_params_mean_partial;

/* Kernel `mean_final`: mean[bh][d_pad] from the partial sums. Grid x: bh. */
typedef struct td_params_mean_final {
    const uint32_t *cancel;
    const float *partial;
    float *mean;
    uint32_t chunks, d_pad, rows;
    uint32_t heads; /* of x */
    const td_span *spans; /* or NULL; of no rows the mean is 0 */
} td_params_mean_final;

/* Kernel `amax_partial`: per chunk of 128 rows, amax[bh][chunks][d_pad] = max over rows of |finite(x) - mean|, and
 * flag[bh][rows_pad] = NaN for a bad row, 0 for a good one and for padding. Grid x: bh * chunks + chunk.
 * mean may be NULL; flag may be NULL (per tensor scales of Q and K use only amax). Channels beyond dim get amax 0. */
typedef struct td_params_amax_partial {
    const uint32_t *cancel;
    td_tensor x;
    const float *mean;
    float *amax, *flag;
    uint32_t chunks, d_pad, rows_pad;
    uint32_t own_mean; /* 1: subtract the chunk's own mean instead, computed as quant_qk's block_mean (smooth Q) */
    const td_span *spans; /* or NULL */
} td_params_amax_partial;

/* Kernel `quant_qk`: codes and scales of 128 rows of Q or K. Grid x: bh * chunks + chunk.
 *   mode 0: int8 codes, groups as in `granularity`; mode 1: fp16 codes, scale = a power of two a row, 1 unless
 *   amax > 32768: then 2^-e * y is stored with the least e that brings amax to 32768 or below, and scale = 2^e;
 *   mode 2: the codes of mode 0 with qmax 7, packed.
 * Padding rows get codes 0 and scale 0. Channels from dim to d_pad get code 0.
 *   mean        [bh][d_pad] subtracted from each row, or NULL
 *   block_mean  [bh][chunks][d_pad] (smooth Q): the kernel computes the mean of its own finite rows (sum row after row,
 *               / number of rows of this tile that exist), subtracts it and stores it here; NULL: no
 *   flag        [bh][rows_pad] of V's bad keys, added to the scale, or NULL
 *   amax        [bh][chunks][d_pad] from amax_partial, for one scale a head (granularity TENSOR: the largest over chunks and channels), or NULL
 *   lse_mean    [bhk][d_pad]: k_mean; with lse_bias[bh][rows_pad] = sum over channels in order of finite(x) * k_mean
 *               (fma chain from 0, f32), of the row before smoothing; 0 for padding rows; NULL: no */
typedef struct td_params_quant_qk {
    const uint32_t *cancel;
    td_tensor x;
    const float *mean, *flag, *amax, *lse_mean;
    float *block_mean, *lse_bias, *scale;
    void *codes; /* [bh][rows_pad][d_pad]; mode 2: [bh][rows_pad][TD_PACKED_ROW_BYTES] bytes */
    uint32_t chunks, d_pad, rows_pad;
    uint32_t mode;
    float qmax, clip;     /* 127 or 7; the head comment's */
    uint32_t granularity; /* tandem_granularity, not DEFAULT */
    uint32_t is_k;        /* K's grouping, not Q's */
    uint32_t lse_heads;   /* kv heads, for lse_mean */
    const td_span *spans; /* of K, or NULL */
} td_params_quant_qk;

/* Kernel `quant_v`: V codes, transposed. Grid x: bhk * chunks + chunk (chunks of 128 keys).
 *   mode 0: E4M3, codes uint8 [bhk][d_pad][kv_pad], keys permuted within each 16: position 4q + r + 0 holds key
 *           8*(r >> 1) + 2q + (r & 1), q and r in 0..3, so that the C fragment of S is the A fragment of P (KERNELS, trick 10)
 *   mode 1: fp16, codes [bhk][d_pad][kv_pad], keys in order, scale the power of two that brings amax to <= 32768, else 1
 * amax from amax_partial; each block reduces the chunks' maxima itself and chunk 0 writes scale[bhk][d_pad].
 * A bad element's code is 0 (its key's flag poisons the rows that attend to it). Padding: codes 0. */
typedef struct td_params_quant_v {
    const uint32_t *cancel;
    td_tensor x;
    const float *mean, *amax;
    float *scale;
    void *codes;
    uint32_t chunks, d_pad, kv_pad, mode;
    const td_span *spans; /* or NULL */
} td_params_quant_v;

/* Kernel `delta_s` (smooth Q): delta[bh][q_blocks][kv_pad] = q_mean(block) . (finite(k) - k_mean), fma chain over channels in
 * order from 0. Grid x: (bh * groups + group) * chunks + chunk, a group being `each` query blocks, at most TD_DELTA_BLOCKS;
 * groups = ceil(q_blocks / each). k_mean may be NULL. Padding keys get 0. */
#define TD_DELTA_BLOCKS 16u
typedef struct td_params_delta_s {
    const uint32_t *cancel;
    td_tensor k;
    const float *q_mean, *k_mean;
    float *delta;
    uint32_t heads, q_blocks, chunks, d_pad, kv_pad, each;
    const td_span *spans; /* or NULL */
} td_params_delta_s;

/* Kernels `stats` and `quantise`: the whole prologue in two launches, of fp16 or bf16 tensors with d_pad up to 128, for int8
 * or packed int4 codes of Q and K with scales of at most 128 rows, and e4m3 codes of V that is not smoothed. Every array is
 * as the kernels above make it. A set is TD_FUSED_TILES(d_pad) tiles of 128 rows, as many as a block's registers hold.
 *
 * A block works on `sets` of them, one after the other; with `ahead` it has the next under way meanwhile.
 *
 * `stats`: column sums of K (partial NULL: none), and maxima and flags of V, counted over all heads. Grid x:
 * ceil(planes * chunks / (tiles a set * sets)), twice that with `partial`: block 2i takes K's chunks, 2i + 1 V's. */
#define TD_FUSED_TILES(d_pad) ((d_pad) <= 32u ? 4u : (d_pad) <= 64u ? 2u : 1u)
#define TD_FUSED_THREADS 512u
#define TD_FUSED_STAGE_BYTES (16u * 1024u)
#define TD_FUSED_SHARED_BYTES (22u * 1024u) /* with the stage; TD_FUSED_AHEAD_BYTES more with `ahead` */
#define TD_FUSED_AHEAD_BYTES (64u * TD_FUSED_THREADS)
typedef struct td_params_stats {
    const uint32_t *cancel;
    td_tensor k, v;
    float *partial;     /* as mean_partial's */
    float *amax, *flag; /* as amax_partial's */
    uint32_t planes, chunks, sets;
    uint16_t d_pad, ahead;
} td_params_stats;

/* `quantise`: codes and scales of Q, K and V. Grid x, in this order:
 *   2 * kv_planes * kv_blocks   block 2i of K, 2i + 1 of V: sets of one head, the last head first, since its rows are
 *                               what `stats` has read last; kv_blocks = ceil(kv chunks / (tiles a set * sets))
 *   ceil(q_tiles / (tiles a set * sets))   sets of Q's tiles, counted over all heads
 * Each block of K and V (and of Q for lse_bias) adds up its head's partial sums, or takes the largest of its maxima,
 * itself; who has chunk 0 writes k_mean and v_scale. */
typedef struct td_params_quantise {
    const uint32_t *cancel;
    const void *q, *k, *v;
    int64_t q_strides[3], k_strides[3], v_strides[3]; /* batch, head, row; in elements */
    const float *partial, *amax, *flag;               /* of `stats`; partial NULL: K is not smoothed */
    float *q_scale, *k_scale, *v_scale;
    float *q_mean, *k_mean, *lse_bias; /* q_mean or NULL (smooth Q); lse_bias or NULL, as quant_qk's */
    void *q_codes, *k_codes, *v_codes;
    uint32_t heads, kv_heads, q_len, kv_len;
    uint16_t dim, d_pad;
    uint8_t q_dtype, k_dtype, v_dtype; /* tandem_dtype */
    uint8_t mode;                      /* of quant_qk: 0 or 2 */
    float qmax, q_clip, k_clip;
    uint8_t granularity, ahead;
    uint16_t sets;
    uint32_t kv_planes, kv_blocks, q_tiles; /* q_tiles: of all heads */
} td_params_quantise;

/* Kernels `prepare`, or `prepare_q` and then `prepare_kv` (sm_90a, entries with _d32 _d64 _d128 behind, the last for
 * d_pad 96 too): the whole prologue like `stats` and `quantise`, of int8 codes whose scales are those of
 * TANDEM_GRANULARITY_THREAD_HOPPER, without smooth Q and lse_bias. Every array is as the kernels above make it.
 *
 * `prepare`: clusters of blocks, as many as a head has `tiles` tiles of 128 keys for. Cluster i < kv_planes has K and V of
 * head i, the others Q's tiles: the blocks' warps take 16 rows each. A block has TD_PREPARE_HEAD_WARPS for each of its
 * tiles of K, and as many for V. `partial`, `amax` and `counters` are NULL. Q, K and V are 16-byte aligned with all their
 * strides, here and below.
 *
 * `prepare_q`: Q's tiles one after the other, a warp 16 rows, TD_PREPARE_THREADS a block; counters become 0.
 * `prepare_kv`: blocks of `tiles` tiles of a head, with warps as above; per head all of them twice. Grid x: in turn for each
 * of kv_planes + lag steps the blocks of head `step`, which make statistics, and those of head `step - lag`, which make codes.
 *   amax      [bhk][blocks of a head + 1][d_pad]: of each block, then of the head
 *   counters  [bhk][2]: blocks of the head whose statistics are there; 1 once its totals are
 *
 * `prepare_smooth_v`, `prepare_kv_smooth_v`: the same where V is smoothed, in TD_PREPARE_SMOOTH_V_BYTES of shared memory. As
 * rounding keeps an order, the largest |y| of a channel is that of its largest x or of its smallest, so that one look tells both
 * mean and scale. A block's amax is the largest x, not |x|, v_low [bhk][blocks of a head] the smallest; v_partial is as partial. */
#define TD_PREPARE_THREADS 512u       /* at most, of `prepare_kv` */
#define TD_PREPARE_MOST_THREADS 1024u /* of `prepare` */
#define TD_PREPARE_HEAD_WARPS(d_pad) ((d_pad) <= 64u ? 4u : 8u)
#define TD_PREPARE_SMOOTH_V_BYTES(d_pad) (((d_pad) <= 32u ? 36u : (d_pad) <= 64u ? 72u : 77u) * 1024u) /* dynamic */
typedef struct td_params_prepare {
    const uint32_t *cancel;
    const void *q, *k, *v;
    int64_t q_strides[3], k_strides[3], v_strides[3]; /* batch, head, row; in elements */
    float *partial, *amax;
    uint32_t *counters;
    float *q_scale, *k_scale, *v_scale, *k_mean;
    void *q_codes, *k_codes, *v_codes;
    uint32_t heads, kv_heads, q_len, kv_len, kv_pad;
    uint32_t kv_planes, q_tiles; /* of all heads */
    uint16_t dim, d_pad;
    uint8_t q_dtype, k_dtype, v_dtype, smooth; /* tandem_dtype; whether K is smoothed */
    uint32_t tiles, lag;
    uint32_t asks; /* of `prepare`: a block asks for what it reads to be in L2 before it waits for the kernel ahead */
    uint32_t reserved;
} td_params_prepare;
typedef struct td_params_prepare_smooth_v {
    td_params_prepare of;
    float *v_mean, *v_partial, *v_low; /* the last two of prepare_kv_smooth_v, else NULL */
} td_params_prepare_smooth_v;

/* Kernels `attn_8b_fp8`, `attn_8b_f16`, `attn_f16`, and `attn_4b_fp8`, `attn_4b_f16` on packed codes (GPU entries with _d32 _d64 _d96 _d128 _d256 behind) and the CPU's
 * `attn_fast`. Grid x: bh * q_tiles + q_tile; q_tiles = ceil(q_len / q_tile_rows), 64 rows on the GPU.
 * block 128 threads: 4 warps of 16 rows. Dynamic shared bytes: TD_ATTENTION_SHARED_BYTES.
 * `attn_8b_wgmma` and `attn_8b_wgmma_short` (sm_90a; no short _d256): rows, threads and shared bytes of a block are
 * TD_HOPPER_* of its warpgroups (TD_HOPPER_256_SHARED_BYTES); scale > 0, no delta, and all keys of a step that are alike in key % 8 / 2 share a scale unless they
 * are bad. Writes dumps only as `attn_8b_wgmma_dump`.
 * `attn_8b_wgmma_walk`, up to d 128: as attn_8b_wgmma without dumps, by any number of blocks up to its tiles; with a causal mask
 * they take tiles of `chunk_planes` heads at a time.
 * `attn_8b_wgmma_split`: the same without dumps, by TD_HOPPER_SPLITS(d) warpgroups that have the same 64 rows. Grid x: any
 * number of blocks up to the tiles of 64 rows; warpgroup i takes steps i, i + splits ... of a tile. `attn_8b_wgmma_pair`, d 64:
 * the same by tiles of 128 rows, two warpgroups for each 64 of them, which take every second step.
 * `attn_8b_wgmma_inline`, `attn_8b_wgmma_inline_short`: the same without dumps in TD_HOPPER_INLINE_SHARED_BYTES;
 * `attn_8b_wgmma_inline_split`: a block a tile of 64 rows, by TD_HOPPER_INLINE_SPLITS(d) warpgroups as above;
 * `attn_8b_wgmma_inline_pair`, d 64: of 128 rows, as attn_8b_wgmma_pair. */
typedef struct td_params_attention {
    const uint32_t *cancel;
    const void *q_codes, *k_codes, *v_codes;
    const float *q_scale, *k_scale, *v_scale;
    const float *v_mean;   /* [bhk][d_pad] or NULL */
    const float *delta;    /* [bh][q_blocks of 128][kv_pad] or NULL */
    const float *lse_bias; /* [bh][q_pad] or NULL */
    td_tensor o;           /* o.heads = heads, o.rows = q_len, o.dim = head_dim */
    float *lse;            /* or NULL */
    int64_t lse_stride_batch, lse_stride_head, lse_stride_row;
    int32_t *dump_s;  /* [bh][q_pad][kv_pad], dot products (attn_f16: bits of the f32 ones); tests only, else NULL */
    uint8_t *dump_p;  /* [bh][q_pad][kv_pad], codes of P in key order; NULL where P is fp16 */
    float *dump_r;    /* [bh][q_pad][kv_pad / 64 or TD_HOPPER_SUMS][d_pad], each R as it goes to O; NULL where P is fp16 */
    float scale;      /* softmax scale, > 0 or < 0, not multiplied by log2(e) */
    uint32_t heads, kv_heads, kv_len, q_pad, kv_pad, d_pad;
    uint32_t causal;
    /* td_accumulator, warpgroups that share keys (else 1) and rows of a tile, for the twin; the GPU has its own */
    uint8_t accumulator, splits;
    uint16_t tile_rows;
    uint32_t planes, walkers; /* heads of all the batch; for the twin: blocks where these walk from tile to tile, else 0 */
    uint32_t chunk_planes, reserved;
} td_params_attention;

/* Kernels `attn_masked_f16` and `attn_masked_bf16` (GPU entries with _d32 _d64 _d96 _d128 _d256 behind), of tensors of that type as
 * they lie in memory, and the CPU's `attn_masked`, of any: keys from a batch's length on do not count, a bias is added to
 * scores, which may be -inf, a row attends to no key behind its position, and a head's sink is in the sum that P is divided by. All come
 * from memory that clients write: lengths and positions are clamped. Grid x: (batch * heads + head) * tiles + tile, tiles of so many rows. */
#define TD_MASKED_ROWS 64u
#define TD_MASKED_KEYS(d_pad) ((d_pad) <= 64u ? 64u : (d_pad) <= 128u ? 32u : 16u) /* a step */
#define TD_MASKED_SHARED_BYTES(d_pad) (8u * TD_MASKED_KEYS(d_pad) * ((d_pad) + 9u))
/* The same with GPU entries `attn_masked_few_f16` and `attn_masked_few_bf16` (_d32 _d64 _d96 _d128 behind): so many rows a tile, and
 * Q, K and V are 16-byte aligned with their rows. */
#define TD_FEW_ROWS 16u
#define TD_FEW_SHARED_BYTES(d_pad) (256u * ((d_pad) + 6u))
typedef struct td_params_attention_masked {
    const uint32_t *cancel;
    td_tensor q, k, v, o;
    float *lse; /* or NULL */
    td_strides lse_at;
    const int32_t *length; /* or NULL: keys */
    int64_t length_stride; /* of a batch */
    const void *bias;      /* [batch][heads][rows][keys], or NULL */
    td_strides bias_at;
    const int32_t *position; /* or NULL */
    td_strides position_at;
    float scale;
    uint32_t bias_dtype; /* F16, BF16 or F32 */
    uint32_t keys;       /* that the last row may attend to */
    uint32_t causal;
    uint32_t window; /* keys that a row attends to at most, its own the last; 0: all */
    float softcap;   /* of scores in base 2; 0: none */
    const td_span *q_spans; /* of rows of q, o, lse and positions, whose stride_batch is 0 then; or NULL: all */
    const td_span *k_spans; /* of keys, likewise; of codes only how many they are counts */
    const void *sink;       /* a head's logit of no key, or NULL */
    int64_t sink_stride;    /* of a head */
    uint32_t sink_dtype;    /* F16, BF16 or F32 */
    uint32_t counts_by_span; /* with a causal mask, or a window, a batch's keys are those of its span; else `keys` */
} td_params_attention_masked;

/* The same on codes: kernels `attn_masked_8b_fp8`, `attn_masked_8b_f16`, `attn_masked_4b_fp8`, `attn_masked_4b_f16` (GPU entries with
 * _d32 _d64 _d96 _d128 _d256 behind), which are attn_8b_fp8 and so on with a mask, and the CPU's `attn_masked_codes`. `of` has no
 * mask of its own; of `mask` q, k and v say shapes alone. With a cap lse_bias, what smoothing K took off a row's scores, is there
 * whether there is an lse or not, and is put back before the cap; with a sink it is there, too, and is taken off that; of V's mean O has the keys' share. */
typedef struct td_params_attention_masked_codes {
    td_params_attention of;
    td_params_attention_masked mask;
} td_params_attention_masked_codes;

/* Kernel `attn_f16_wgmma` (sm_90a): attention on fp16 or bf16 tensors as they lie in memory, q, k and v of one of these
 * types and 16-byte aligned with all their strides; o of any type. scale > 0. There are `works` = bh * q_tiles tiles of
 * 64 * groups rows. Block x of `blocks` (grid x) takes tiles x, x + blocks, x + 2 * blocks ..., so that at any time blocks
 * share heads; with `pair` 2 it takes pairs of tiles so: with a causal mask a long and a short one, else each head's longest
 * come first. A row of Q, K or V is cut into parts of 128 bytes. */
#define TD_F16_TOP_LOG2 8.0f    /* P when its base is set, */
#define TD_F16_LIMIT_LOG2 15.0f /* and at most; where its base would be far, it is 1 when that is set, as above */
#define TD_F16_KEYS(d) ((d) <= 64u ? 64u : 128u) /* a step */
#define TD_F16_GROUPS 2u /* of a tile */
#define TD_F16_STAGES(d) ((d) <= 64u ? 4u : 2u)
#define TD_F16_ROWS (64u * TD_F16_GROUPS)
#define TD_F16_PARTS(d) (((d) + 63u) / 64u)
#define TD_F16_SHARED(d, keys, groups, stages) \
    (TD_F16_PARTS(d) * 128u * (128u * (groups) + 2u * (stages) * (keys)) + 1024u)
/* At head dim 64 a block has two teams, each of which walks by itself (`walkers` 2): team i of block x takes the tiles that
 * block x + i * grid would have. */
#define TD_F16_TEAMS_THREADS 640u
#define TD_F16_TEAMS_SHARED_BYTES (2u * TD_F16_SHARED(64u, TD_F16_KEYS(64u), TD_F16_GROUPS, TD_F16_STAGES(64u)) + 2048u)
#define TD_F16_WALKERS(d) ((d) <= 64u ? 2u : 1u)
#define TD_F16_THREADS(d) ((d) <= 64u ? TD_F16_TEAMS_THREADS : 128u * (TD_F16_GROUPS + 1u))
#define TD_F16_SHARED_BYTES(d) \
    ((d) <= 64u ? TD_F16_TEAMS_SHARED_BYTES : TD_F16_SHARED(d, TD_F16_KEYS(d), TD_F16_GROUPS, TD_F16_STAGES(d)))
/* `attn_f16_wgmma_split`: blocks of one tile of 64 rows, whose four warpgroups share the keys: team i of them takes steps
 * i, i + teams ... Each team has a ring of slots for a step's K or V; behind all are the teams' sums and bases of rows. */
#define TD_F16_SPLIT_THREADS 512u
#define TD_F16_SPLIT_KEYS 64u /* a step */
#define TD_F16_SPLIT_TEAMS 4u
#define TD_F16_SPLIT_SLOTS(d) ((d) <= 64u ? 4u : 3u)
#define TD_F16_SPLIT_SHARED_BYTES(d) (TD_F16_PARTS(d) * 128u * 64u * (1u + 4u * TD_F16_SPLIT_SLOTS(d)) + 3072u)
/* `attn_f16_wgmma_split2`, head dim 64: attn_f16_wgmma's blocks of two teams, which share the keys as above, a tile a block. */
/* `attn_f16_wgmma_inline` and `attn_f16_wgmma_inline_short`, whose blocks have a warpgroup less: the same in 47 KB of shared
 * memory, a ring of slots of a step's keys of K or V, with two barriers and a number each. */
#define TD_F16_INLINE_KEYS(d) ((d) <= 80u ? 64u : (d) <= 96u ? 48u : 32u) /* a step */
#define TD_F16_INLINE_GROUPS 3u
#define TD_F16_INLINE_LONGER(d) ((d) <= 64u ? 1.12 : 1.25) /* time of such a block, by the short one's */
#define TD_F16_INLINE_SLOTS(d) ((d) == 80u ? 4u : 5u)
#define TD_F16_INLINE_SHARED(d, keys, slots) (((slots) * (2u * (d) * (keys) + 20u) + 1023u) / 1024u * 1024u)
#define TD_F16_INLINE_SHARED_BYTES(d) TD_F16_INLINE_SHARED(d, TD_F16_INLINE_KEYS(d), TD_F16_INLINE_SLOTS(d))
typedef struct td_params_attention_f16 {
    const uint32_t *cancel;
    td_tensor q, k, v, o;
    float *lse; /* or NULL */
    int64_t lse_stride_batch, lse_stride_head, lse_stride_row;
    float scale;
    uint16_t causal, pair;
    uint32_t works, blocks;
    /* Rows of a tile, keys, those who share them (else 1), those of a block with tiles of their own, for the twin; the GPU has
     * its own. `blocks` is walkers times the grid. */
    uint16_t tile_rows, step_keys, teams, walkers;
} td_params_attention_f16;
/* Tests only: where the kernels above write S and P to on the emulator, and td_twin_attn_f16_wgmma_dump() everywhere. */
typedef struct td_dump_f16 {
    float *s;    /* [bh][q_pad][kv_pad], dot products of keys that a row attends to; or NULL */
    uint16_t *p; /* their P, in the tensors' type; or NULL */
    uint32_t q_pad, kv_pad;
} td_dump_f16;
typedef struct td_params_attention_f16_dump {
    td_params_attention_f16 of;
    td_dump_f16 dump;
} td_params_attention_f16_dump;

#endif
