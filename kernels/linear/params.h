/* Parameter blocks of `linear`'s kernels: y = finish(x w^T), x [rows][ins], w [w_rows][ins], y [rows][outs].
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * w is as file formats have it: a row holds the weights of one output. Sums are float32. What a sum becomes, in this order,
 * each operation rounded to float32:
 *   scale      sum * scale[w's row], of int8 weights
 *   bias       + bias[w's row]
 *   activation of td_linear_activation
 *   gate       a * b: a is the activated sum of one row of w, b the plain sum of another. `halves`: rows j and outs + j;
 *              `pairs`: rows 2j and 2j + 1. SwiGLU is SiLU with a gate.
 *   rotation   of pairs of neighbouring columns of a head, by a row of a table (types.h has the equation)
 *   residual   + residual
 *   cast       to y's type, to nearest
 * Quantised weights are multiplied out in float32 and rounded to x's type, then multiplied like dense ones; int8 weights with
 * a scale per row are exact in x's type, so only their sums are scaled. `linear_blocks` does that with blocks, too: nothing is
 * rounded; `linear_tiles` likewise. On some CPUs it is otherwise: td_cpu_linear_in_integers().
 * Sums are taken in an order that differs between kernels, so results are compared by a bound (td_linear_reference).
 */
#ifndef TANDEM_KERNELS_LINEAR_PARAMS_H
#define TANDEM_KERNELS_LINEAR_PARAMS_H

#include <stdint.h>

#include "kernels/params.h"

/* How weights lie in memory. Blocks are GGUF's: of 32 weights (Q8_0, Q4_0, Q4_1) or 256 (Q4_K, Q5_K, Q6_K), one behind the other in a
 * row; ins is a multiple of a block. */
typedef enum td_linear_weights {
    TD_LINEAR_DENSE = 0, /* of x's type */
    TD_LINEAR_INT8 = 1,  /* with a float32 scale a row */
    TD_LINEAR_Q8_0 = 2,
    TD_LINEAR_Q4_0 = 3,
    TD_LINEAR_Q4_1 = 4,
    TD_LINEAR_Q4_K = 5,
    TD_LINEAR_Q6_K = 6,
    TD_LINEAR_Q5_K = 7,
    TD_LINEAR_TILES = 8, /* the same blocks in tiles (kernels/tiles.h), in the same order */
    TD_LINEAR_WEIGHTS = TD_LINEAR_TILES + 6
} td_linear_weights;

/* Some columns of y, of two bytes each, that also go to where positions say, as kernels/scatter/params.h has it: its x is y's columns
 * from `first` on, heads of `dim` side by side, its rows are y's rows, `rows` of them a batch. With in_quads alone. */
typedef struct td_linear_scatter {
    void *to; /* or NULL */
    const int32_t *position;
    td_strides at, position_at;
    uint32_t first, columns, dim, rows, entries;
    uint32_t reserved;
} td_linear_scatter;

typedef struct td_params_linear {
    const uint32_t *cancel;
    const void *x, *w;
    const float *scale;            /* of INT8, [w_rows] */
    const void *bias, *residual;   /* or NULL; bias [w_rows], residual [rows][outs] */
    void *y;
    int64_t x_stride, residual_stride, y_stride; /* of a row, in elements */
    int64_t w_stride;                            /* in bytes */
    uint32_t rows, ins, outs;                    /* with a gate w has 2 * outs rows, else outs */
    uint8_t dtype;                               /* tandem_dtype of x: F16 or BF16, on a CPU F32, too */
    uint8_t weights;                             /* td_linear_weights */
    uint8_t bias_dtype, residual_dtype, y_dtype; /* F16, BF16 or F32 */
    uint8_t activation, gate;
    uint8_t w_is_constant; /* nobody writes it while kernels ahead of this one run */
    const float *rotation; /* [positions][rotation_stride], or NULL; */
    const int32_t *position; /* then [rows] */
    int64_t rotation_stride;
    uint32_t positions;
    uint32_t head_dim, rotated_channels; /* multiples of 8, the second not 0 */
    uint32_t rotated_columns; /* of y, from the first on: whole heads */
    uint32_t tile_warps;  /* of `linear_blocks` and `linear_tiles` */
    uint32_t tile_blocks; /* of `linear_tiles`: that have all of w; as many more have the rows of x behind those of the entry. 0: none */
    uint32_t in_quads; /* of the same: four neighbours of y's columns are finished at once, as there is but what float4 can read: a bias, a
                        * residual and a table of rotations that are aligned for it, no scale, no gate by pairs, SiLU alone, and y is aligned */
    td_linear_scatter scatter;
} td_params_linear;

/* `linear_wgmma` (sm_90a): x and w dense, 16-byte aligned with their strides. Blocks of so many rows and columns (of w's rows) walk
 * over tiles in bands. */
typedef struct td_params_linear_tma {
    td_params_linear p;
    td_tensor_map x_map, w_map; /* boxes of 64 channels of a tile's rows, or of TD_LINEAR_BOXES-th of its columns */
} td_params_linear_tma;
#define TD_LINEAR_BOXES 2u /* of w a tile and step: with a gate by halves they lie apart */
#define TD_LINEAR_BAND 8u /* rows of tiles that are worked on side by side */

/* `linear_skinny`: up to 8, 16, 32 or 64 rows (entries _1, _2, _4, _8, of so many tiles of eight), dense weights. x and w are 16-byte
 * aligned with their rows and ins is a multiple of 8. Block x: 16 rows of w, of the longer entries 32. */
#define TD_LINEAR_SKINNY_WARPS(tiles) ((tiles) == 2 || (tiles) == 4 ? 16 : 8)
/* `linear_blocks`: the same of all other weights; INT8 is 8-byte aligned, blocks 2-byte. `tile_warps`, a power of two up to all warps of a
 * block, share a tile of 16 rows of w; it goes by w alone, as sums are added up in another order with another number. */
#define TD_LINEAR_BLOCKS_WARPS(weights) ((weights) >= TD_LINEAR_Q6_K ? 4 : 8)
#define TD_LINEAR_BLOCKS_RUN(weights) ((weights) <= TD_LINEAR_Q8_0 ? 128 : 256) /* channels that a warp copies at a time */
#define TD_LINEAR_BLOCKS_SHARED_BYTES(weights)      \
    ((weights) == TD_LINEAR_INT8   ? 40960          \
     : (weights) == TD_LINEAR_Q6_K ? 30720          \
     : (weights) == TD_LINEAR_Q5_K ? 26624          \
                                   : 45056) /* dynamic */
/* `linear_tiles`: of weights in tiles. Entries `pairs`, of Q8_0: a warp has two tiles, a block twice as many. */
#define TD_LINEAR_TILES_WARPS 8
/* `linear_ring`: the same of two tiles a warp, of Q8_0 and 17 to 32 rows, with weights of so many chunks in dynamic shared memory. */
#define TD_LINEAR_RING_STAGES 6
#define TD_LINEAR_RING_BYTES (TD_LINEAR_RING_STAGES * 2560u * TD_LINEAR_TILES_WARPS)
#define TD_LINEAR_SKINNY_MOST 64 /* rows; */
#define TD_LINEAR_SKINNY_BEST 16 /* with more linear_wgmma is faster */

/* `linear_tiles` of up to TD_LINEAR_NORMED_ROWS rows of x that are float32, and become fp16 by RMSNorm first (kernels/norm/params.h has
 * its numbers): entries linear_f16_normed_*. Rows of x and the weights are 16-byte aligned; neither those nor w are written by kernels
 * ahead of this one. */
#define TD_LINEAR_NORMED_ROWS 8
#define TD_LINEAR_NORMED_PITCH(ins) ((ins) + 32u) /* of its rows in dynamic shared memory, so that q and g meet all banks */
#define TD_LINEAR_NORMED_SHARED_BYTES(rows, ins) (4u * (ins) + 2u * (rows) * TD_LINEAR_NORMED_PITCH(ins))
typedef struct td_params_linear_normed {
    td_params_linear p;
    const float *norm_weight; /* [ins] */
    float epsilon;
    uint32_t lanes; /* threads of a row: as td_params_norm.lanes */
} td_params_linear_normed;

/* `linear_unpack`: weights in tiles made dense, as they are multiplied with more rows: to [w_rows][ins] of x's type. A block has a
 * chunk for every 64 threads. */
#define TD_LINEAR_UNPACK_THREADS 256
typedef struct td_params_linear_unpack {
    const uint32_t *cancel;
    const void *w;
    void *to;
    uint32_t w_rows, ins;
    uint32_t w_is_constant, reserved;
} td_params_linear_unpack;

/* `linear_few`: blocks of so many rows and columns (of w's rows) as the entry says, one tile each. x and w are dense, 16-byte aligned
 * with their rows, which are at most 4 GiB apart. */

/* Codes of Q, K and V, which are y's heads in this order: see types.h. Numbers are those that kernels/attention/params.h has for
 * quant_qk and quant_v, of given means and maxima. One block of parameters for three kernels, whose blocks have eight rows at a
 * time, TD_LINEAR_CODES_LANES(d_pad) threads each:
 *   linear_codes_partial     a chunk of 128 rows of K and V: sums and maxima. Grid x: (batch, kv head, chunk)
 *   linear_codes_statistics  those of all chunks: means and maxima. Grid x: (batch, kv head)
 *   linear_codes             codes and scales of a chunk, with padding. Grid x: (batch, head, chunk): Q's heads, then K's, whose
 *                            blocks have V as well, since a bad row in V makes K's scale NaN */
#define TD_LINEAR_CODES_LANES(d_pad) ((d_pad) <= 32u ? 4u : (d_pad) <= 64u ? 8u : (d_pad) <= 128u ? 16u : 32u)
typedef struct td_params_linear_codes {
    const uint32_t *cancel;
    td_tensor y;    /* [batch][heads + 2 * kv_heads][len][dim] */
    float *partial; /* [batch * kv_heads][chunks][2][dim]: sums of K, maxima of V */
    float *statistics; /* [batch][kv_heads][2][dim]; written by linear_codes_statistics, read by linear_codes */
    td_strides statistics_at;
    uint8_t *q, *k, *v; /* codes, and scales behind them */
    uint32_t batch, heads, kv_heads;
    uint32_t chunks, d_pad;
    uint32_t granularity; /* tandem_granularity, neither DEFAULT nor TENSOR */
} td_params_linear_codes;

/* `linear_mma`: blocks of so many rows and as many of w's, whatever the alignment; INT8 and blocks as above. */
#define TD_LINEAR_MMA_ROWS 128
#define TD_LINEAR_MMA_THREADS 256
#define TD_LINEAR_MMA_SHARED_BYTES 40960

#endif
