/* Which kernels there are for few rows of x, and how blocks share what they do: `linear_skinny`, `linear_blocks` and `linear_tiles`.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/linear/forms.h"
#include "kernels/linear/linear.h"

/* For up to 8, 16, 32 and 64 rows. */
#define SKINNY(name) {TD_LINEAR_KERNELS(name "_1"), TD_LINEAR_KERNELS(name "_2"), TD_LINEAR_KERNELS(name "_4"), TD_LINEAR_KERNELS(name "_8")}
static const td_kernel skinny_kernels[TD_LINEAR_WEIGHTS][4][2] = {SKINNY("skinny_dense"), SKINNY("blocks_int8"), SKINNY("blocks_q8_0"),
                                                                  SKINNY("blocks_q4_0"),  SKINNY("blocks_q4_1"), SKINNY("blocks_q4_k"),
                                                                  SKINNY("blocks_q6_k"),  SKINNY("blocks_q5_k"), SKINNY("tiles_q8_0"),
                                                                  SKINNY("tiles_q4_0"),   SKINNY("tiles_q4_1"),  SKINNY("tiles_q4_k"),
                                                                  SKINNY("tiles_q6_k"),   SKINNY("tiles_q5_k")};
/* Of weights in tiles, from TD_LINEAR_TILES on, of up to 8 rows. */
#define NORMED(of) {.name = "linear_normed_" of, .entry = "linear_f16_normed_" of}
static const td_kernel normed_kernels[TD_LINEAR_WEIGHTS - TD_LINEAR_TILES] = {NORMED("q8_0"), NORMED("q4_0"), NORMED("q4_1"),
                                                                              NORMED("q4_k"), NORMED("q6_k"), NORMED("q5_k")};
/* For up to 32 and 64 rows, of the format that leaves registers for it: Q8_0 in tiles. */
static const td_kernel pairs_kernels[2][2] = {TD_LINEAR_KERNELS("pairs_q8_0_4"), TD_LINEAR_KERNELS("pairs_q8_0_8")};
/* For up to 32, of the same, where a block may have so much shared memory. */
static const td_kernel ring_kernels[2] = TD_LINEAR_KERNELS("ring_q8_0");

bool td_linear_suits_few_rows(const tandem_linear *l)
{
    const uint32_t to = l->w.dtype == l->x.dtype ? 16 : l->w.dtype == TANDEM_DTYPE_I8 ? 8 : 2;
    if (l->x.stride_row < 0 || l->x.stride_row > INT32_MAX / 2 / TD_LINEAR_SKINNY_MOST) /* places in x have 32 bits */
        return false;
    return td_linear_x_is_wide(l) && td_linear_is_aligned(&l->w, to) && (to != 16 || l->w.stride_row % 8 == 0);
}

const td_kernel *td_linear_normed_kernel(const td_record *record)
{
    for (uint32_t i = TD_LINEAR_TILES; i < TD_LINEAR_WEIGHTS; i++)
        if (record->kernel == &skinny_kernels[i][0][0])
            return &normed_kernels[i - TD_LINEAR_TILES];
    return NULL;
}

static bool is_among(const td_kernel *kernel, const td_kernel *first, size_t bytes)
{
    return (uintptr_t)kernel - (uintptr_t)first < bytes;
}

bool td_linear_can_scatter(const td_record *record)
{
    const td_params_linear *p = (const td_params_linear *)(const void *)record->params;
    const bool is_few = is_among(record->kernel, &skinny_kernels[0][0][0], sizeof skinny_kernels) ||
                        is_among(record->kernel, &pairs_kernels[0][0], sizeof pairs_kernels) ||
                        is_among(record->kernel, ring_kernels, sizeof ring_kernels) ||
                        is_among(record->kernel, normed_kernels, sizeof normed_kernels);
    return is_few && p->in_quads && !p->scatter.columns;
}

/* Which of the kernels for up to 8, 16, 32 and 64 rows. */
static uint32_t skinny_size(const tandem_linear *whole)
{
    return whole->rows <= 8 ? 0 : whole->rows <= 16 ? 1 : whole->rows <= 32 ? 2 : 3;
}

/* How warps share tiles of 16 rows of w: so many a block and, by registers, a multiprocessor; in runs of so many channels. */
typedef struct sharing {
    uint32_t warps, at_once, run;
} sharing;

static sharing sharing_of(uint32_t weights)
{
    if (weights >= TD_LINEAR_TILES)
        return (sharing){TD_LINEAR_TILES_WARPS, 16, 128};
    return (sharing){TD_LINEAR_BLOCKS_WARPS(weights), 24, TD_LINEAR_BLOCKS_RUN(weights)};
}

/* Warps of a block that share a tile: of one to all those that take least time, which goes by rounds of blocks, and by a warp's runs and
 * as much as two of them for the rest. */
static uint32_t tile_warps(const tandem_linear *l, const td_target *target, sharing by)
{
    const uint64_t tiles = ((uint64_t)td_linear_w_rows(l) + 15) / 16, runs = (l->ins + by.run - 1) / by.run;
    const uint64_t at_once = by.at_once / by.warps * td_multiprocessors(target);
    uint64_t least = UINT64_MAX;
    uint32_t best = 1;
    for (uint32_t share = 1; share <= by.warps; share *= 2) {
        const uint64_t blocks = (tiles * share + by.warps - 1) / by.warps, rounds = (blocks + at_once - 1) / at_once;
        const uint64_t time = rounds * ((runs + share - 1) / share + 2);
        if (time < least) {
            least = time;
            best = share;
        }
    }
    return best;
}

/* Whether warps have two tiles each: with many rows of x, where multiprocessors, which have a block at a time then, take no longer for
 * half of the blocks. */
static bool takes_pairs(uint32_t weights, uint32_t size, uint64_t blocks, const td_target *target)
{
    const uint64_t at_once = td_multiprocessors(target), rounds = (blocks + at_once - 1) / at_once;
    return size >= 2 && weights == TD_LINEAR_TILES && 2 * (((blocks + 1) / 2 + at_once - 1) / at_once) <= rounds;
}

/* Weights in tiles, where blocks are few: multiprocessors that were idle take some of the rows of x. The kernel for so few rows, if all
 * blocks are at work at once then; by registers, of the lighter formats' shortest a multiprocessor has two. */
static uint32_t shorter(const tandem_linear *l, const td_target *target, uint32_t weights, uint32_t size, uint64_t blocks)
{
    const bool is_light = weights <= TD_LINEAR_TILES + TD_LINEAR_Q4_0 - TD_LINEAR_Q8_0 || target->sm == 90;
    for (uint32_t i = 0; i < size; i++)
        if (blocks * ((l->rows + (8u << i) - 1) / (8u << i)) <= (i == 0 && is_light ? 2 : 1) * td_multiprocessors(target))
            return i;
    return size;
}

/* Whether it can be read, or written, four elements at a time. */
static bool is_quads(const tandem_view *view)
{
    return td_linear_is_aligned(view, 4 * td_dtype_of(view->dtype).bytes) && view->stride_row % 4 == 0;
}

static bool is_f32_quads(const tandem_view *view)
{
    return view->dtype == TANDEM_DTYPE_NONE || (view->dtype == TANDEM_DTYPE_F32 && is_quads(view));
}

/* See td_params_linear.in_quads. */
static bool finishes_in_quads(const tandem_linear *l, const td_params_linear *p)
{
    const bool is_usual = l->activation == TANDEM_ACTIVATION_NONE || l->activation == TANDEM_ACTIVATION_SILU;
    return is_usual && l->scale.dtype == TANDEM_DTYPE_NONE && l->gate != TANDEM_GATE_PAIRS && l->outs % 4 == 0 &&
           (l->residual.dtype == TANDEM_DTYPE_NONE || l->rotation.dtype == TANDEM_DTYPE_NONE) && p->y_stride % 4 == 0 &&
           is_quads(&l->y) && is_f32_quads(&l->bias) && is_f32_quads(&l->residual) && is_f32_quads(&l->rotation);
}

td_record *td_linear_build_few_rows(td_builder *at, const td_target *target, const tandem_linear *l, const tandem_linear *whole,
                                    td_params_linear *p)
{
    const uint32_t size = skinny_size(whole), tiles = size ? 2 : 1;
    const td_kernel *kernel = &skinny_kernels[p->weights][size][p->dtype == TANDEM_DTYPE_BF16];
    td_record *record;
    if (p->weights == TD_LINEAR_DENSE) {
        record = td_build_record(at, kernel, ((uint64_t)td_linear_w_rows(l) + 16 * tiles - 1) / (16 * tiles), p, sizeof *p);
        record->block[0] = 32 * TD_LINEAR_SKINNY_WARPS(1u << size);
        return record;
    }
    const sharing by = sharing_of(p->weights);
    p->tile_warps = tile_warps(l, target, by);
    p->in_quads = finishes_in_quads(l, p);
    uint32_t rows = 16 * by.warps / p->tile_warps, groups = 1,
             shared_bytes = p->weights < TD_LINEAR_TILES ? TD_LINEAR_BLOCKS_SHARED_BYTES(p->weights) : 0;
    uint64_t blocks = ((uint64_t)td_linear_w_rows(l) + rows - 1) / rows;
    const uint32_t other = p->weights >= TD_LINEAR_TILES ? shorter(l, target, p->weights, size, blocks) : size;
    if (other < size) {
        kernel = &skinny_kernels[p->weights][other][p->dtype == TANDEM_DTYPE_BF16];
        groups = (l->rows + (8u << other) - 1) / (8u << other);
        p->tile_blocks = groups > 1 ? (uint32_t)blocks : 0;
    } else if (takes_pairs(p->weights, size, blocks, target)) {
        const bool has_ring = size == 2 && target->shared_bytes >= TD_LINEAR_RING_BYTES;
        kernel = has_ring ? &ring_kernels[p->dtype == TANDEM_DTYPE_BF16] : &pairs_kernels[size - 2][p->dtype == TANDEM_DTYPE_BF16];
        blocks = (blocks + 1) / 2;
        shared_bytes = has_ring ? TD_LINEAR_RING_BYTES : 0;
    }
    record = td_build_record(at, kernel, blocks * groups, p, sizeof *p);
    record->block[0] = 32 * by.warps;
    record->shared_bytes = shared_bytes;
    return record;
}
