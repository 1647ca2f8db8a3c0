/* Attention: by blocks of which shape, and which of them have which tiles.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "kernels/attention/cpu.h"
#include "kernels/attention/plan.h"

enum { MAX_CLUSTER = 16 };

/* In how many turns the multiprocessors have `blocks` blocks, one each at a time. */
static double turns_of(const td_target *target, uint64_t blocks)
{
    return (double)blocks / td_multiprocessors(target);
}

static uint32_t round_up(uint32_t x, uint32_t to)
{
    return (x + to - 1) / to * to;
}

uint32_t td_prepare_cluster(uint32_t chunks, uint32_t d_pad, uint32_t *tiles)
{
    const uint32_t most = TD_PREPARE_MOST_THREADS / 64 / TD_PREPARE_HEAD_WARPS(d_pad);
    for (*tiles = 1; *tiles <= most; *tiles *= 2)
        if ((chunks + *tiles - 1) / *tiles <= MAX_CLUSTER)
            return (chunks + *tiles - 1) / *tiles;
    return 0;
}

bool td_direct_is_roomy(const td_target *target, uint32_t head_dim)
{
    return target->shared_bytes >= TD_F16_SHARED_BYTES(head_dim);
}

/* Whether each of those that walk from tile to tile gets pairs of tiles of rows, a long and a short one: where there are as
 * many as that, or, of two a multiprocessor, almost. */
static bool is_paired(const tandem_attention *op, uint64_t works, uint32_t multiprocessors, uint32_t walkers)
{
    return op->causal && 4 * works >= (uint64_t)multiprocessors * (walkers == 1 ? 8 : 7 * walkers);
}

/* Warpgroups of a block of attn_f16_wgmma_inline that pay off, as in best_of(). */
static uint32_t inline_groups(const tandem_attention *op, const td_target *target)
{
    double times[2];

    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t rows = 64 * (TD_F16_INLINE_GROUPS - i);
        const uint64_t works = (uint64_t)op->batch * op->heads * ((op->q_len + rows - 1) / rows);
        const double each = is_paired(op, works, td_multiprocessors(target), 1) ? 2 : 1;

        times[i] = each * ceil(turns_of(target, works) / each);
        if (op->causal)
            times[i] *= (double)op->kv_len + rows; /* twice what a query sees, and what the mask hides of a block's keys */
    }
    const bool pays = times[1] < TD_F16_INLINE_LONGER(op->head_dim) * times[0];
    const td_rows asked = td_options_of(target).rows;
    const bool is_short = asked == TD_BEST_ROWS ? pays : asked == TD_SHORT_ROWS;
    return TD_F16_INLINE_GROUPS - is_short;
}

/* --- What blocks cost --- */

/* A block that a kernel may have, and its times on an H200 in microseconds: what it begins and ends with, a step of 128 keys
 * of all its rows; and with a mask, by how much the last block ends later than if all work were shared out evenly. */
typedef struct block_cost {
    uint32_t groups, splits; /* warpgroups, and how many of them have the same rows */
    double begin, step, uneven;
    uint32_t walkers; /* tiles that a block has at once, 0: one; */
    double alone;     /* and a step where only one of them is there */
} block_cost;

/* Those of attn_8b_wgmma by padded head dim: most warpgroups, one fewer, those that share the keys of 64 rows, and at 64
 * those of which two share the keys of 64 rows of 128. td_rows has them in this order. */
enum { COSTS = 4, SPLIT = 2 };
#define BLOCK(groups, splits, begin, step, uneven) {groups, splits, begin, step, uneven, 0, 0}
#define MOST(groups, step, longer) BLOCK(groups, 1, 3.0 * (longer), (step) * (longer), 1.15)
#define SHORT(groups, step) BLOCK(groups, 1, 3.0, step, 1.7)
#define SPLITS(groups, step) BLOCK(groups, groups, 2.4, step, 1.4)
static const block_cost stream_costs[TD_D_PADS - 1][COSTS] = {
    {MOST(4, 1.27, 1.25), SHORT(3, 1.27), SPLITS(4, 0.44)},
    {MOST(4, 1.27, 1.25), SHORT(3, 1.27), SPLITS(4, 0.44), BLOCK(4, 2, 3.0, 0.86, 1.4)},
    {MOST(3, 1.16, 1.28), SHORT(2, 1.16), SPLITS(3, 0.53)},
    {MOST(3, 1.16, 1.28), SHORT(2, 1.16), SPLITS(3, 0.53)}};
/* The same of attn_8b_wgmma_inline. */
static const block_cost inline_costs[TD_D_PADS - 1][COSTS] = {
    {BLOCK(3, 1, 6.0, 1.2, 1), BLOCK(2, 1, 5.0, 0.95, 1), BLOCK(3, 3, 4.6, 0.45, 1)}, /* not measured */
    {BLOCK(4, 1, 6.5, 1.62, 1), BLOCK(2, 1, 5.4, 1.1, 1), BLOCK(3, 3, 5.0, 0.57, 1), BLOCK(4, 2, 6.2, 0.84, 1)},
    {BLOCK(3, 1, 5.9, 1.46, 1), BLOCK(2, 1, 5.9, 1.2, 1), BLOCK(3, 3, 5.0, 0.75, 1)},
    {BLOCK(3, 1, 7.2, 1.57, 1), BLOCK(2, 1, 6.7, 1.27, 1), BLOCK(2, 2, 6.3, 0.77, 1)}};
/* Of attn_f16_wgmma on a stream, up to 64 channels and above: tiles of 128 rows, blocks whose warpgroups share the keys of 64
 * rows, of 128. */
static const block_cost direct_costs[2][COSTS] = {
    {{2, 1, 2.6, 1.9, 1, 2, 1.4}, BLOCK(4, 4, 2.0, 0.67, 1), BLOCK(4, 2, 4.3, 0.96, 1)},
    {BLOCK(2, 1, 3.5, 1.58, 1), BLOCK(4, 4, 3.4, 1.02, 1)}};
_Static_assert(TD_HOPPER_GROUPS(64) == 4 && TD_HOPPER_GROUPS(128) == 3 && TD_HOPPER_SPLITS(64) == 4 &&
                   TD_HOPPER_SPLITS(128) == 3,
               "stream_costs has other warpgroups than the kernels");
_Static_assert(TD_HOPPER_INLINE_GROUPS(32) == 3 && TD_HOPPER_INLINE_GROUPS(64) == 4 && TD_HOPPER_INLINE_GROUPS(128) == 3 &&
                   TD_HOPPER_INLINE_FEW == 2 && TD_HOPPER_INLINE_SPLITS(96) == 3 && TD_HOPPER_INLINE_SPLITS(128) == 2,
               "inline_costs has other warpgroups than the kernels");

/* The keys of an operation, in steps: all, those that a tile sees on average, and whether tiles differ in that. */
typedef struct key_steps {
    double all, mean;
    bool uneven;
} key_steps;

/* When the last of them ends: turn after turn; where they are uneven as if blocks took what comes, but not before the
 * longest. */
static double time_of(const block_cost *cost, const tandem_attention *op, const td_target *target, const key_steps *n)
{
    const uint32_t rows = TD_HOPPER_ROWS(cost->groups / cost->splits);
    const double tiles = turns_of(target, (uint64_t)op->batch * op->heads * ((op->q_len + rows - 1) / rows));
    const double blocks = cost->walkers ? tiles / cost->walkers : tiles;
    const double step = cost->walkers && tiles <= 1 ? cost->alone : cost->step;
    const double longest = cost->begin + step * n->all;
    return n->uneven ? fmax(longest, cost->uneven * blocks * (cost->begin + step * n->mean)) : ceil(blocks) * longest;
}

/* Those blocks that end first, of those for which there are the shared bytes of attn_8b_wgmma: with one warpgroup more each
 * takes longer, but there are fewer; where they are few, that decides. Where even those are few, warpgroups share the keys. */
static uint32_t best_of(const block_cost costs[COSTS], const tandem_attention *op, const td_target *target, const key_steps *n,
                        uint32_t d_pad, uint32_t shared_bytes)
{
    double least = time_of(&costs[0], op, target, n);
    uint32_t best = 0;
    for (uint32_t i = 1; i < COSTS && costs[i].groups; i++) {
        const double time = time_of(&costs[i], op, target, n);
        if (time < least && td_hopper_shared_bytes(d_pad, costs[i].groups, costs[i].splits) <= shared_bytes) {
            least = time;
            best = i;
        }
    }
    return best;
}

/* Of how many tiles of 64 rows a block is whose warpgroups share the keys, where such blocks end first; else 0. */
static uint32_t split_members(const tandem_attention *op, const td_target *target)
{
    const block_cost *costs = direct_costs[op->head_dim > 64];
    const double part = op->causal ? 1 - fmin(1, op->q_len / (double)op->kv_len) / 2 : 1; /* of the keys that a row sees */
    const double all = op->kv_len / (double)TD_HOPPER_KEYS;
    const key_steps n = {.all = all, .mean = part * all, .uneven = part < 0.75};
    const td_rows asked = td_options_of(target).rows;
    if (asked == TD_BEST_ROWS)
        return best_of(costs, op, target, &n, 0, UINT32_MAX);
    return asked == TD_SPLIT_ROWS ? 1 : asked == TD_PAIR_ROWS && costs[2].groups ? 2 : 0;
}

td_direct_block td_direct_block_of(const tandem_attention *op, const td_target *target)
{
    const uint32_t d = op->head_dim;
    if (!td_direct_is_roomy(target, d)) {
        const uint32_t groups = inline_groups(op, target);
        return (td_direct_block){groups < TD_F16_INLINE_GROUPS ? DIRECT_SHORT : DIRECT_INLINE, 64 * groups, 1,
                              TD_F16_INLINE_KEYS(d), 1, 128 * (groups + 1), TD_F16_INLINE_SHARED_BYTES(d)};
    }
    const uint32_t members = split_members(target->whole ? &target->whole->attention : op, target);
    if (members == 1)
        return (td_direct_block){DIRECT_SPLIT, 64, TD_F16_SPLIT_TEAMS, TD_F16_SPLIT_KEYS, 1, TD_F16_SPLIT_THREADS,
                              TD_F16_SPLIT_SHARED_BYTES(d)};
    return (td_direct_block){members ? DIRECT_SPLIT2 : DIRECT, TD_F16_ROWS, members ? 2 : 1, TD_F16_KEYS(d),
                          members ? 1 : TD_F16_WALKERS(d), TD_F16_THREADS(d), TD_F16_SHARED_BYTES(d)};
}

/* How many blocks share the tiles of rows: a block begins a tile beside the end of the one before, which two blocks do
 * not. So where it `walks` a block gets up to 8 tiles (a multiple of `pair`), as long as the last multiprocessor is not
 * done later. Elsewhere (command buffers, where that was not timed; single tiles that a mask makes unequal) it gets 32
 * steps in all, if almost each multiprocessor has two blocks. */
static uint64_t blocks_for(uint64_t tiles, uint32_t pair, uint32_t steps, uint32_t multiprocessors, bool walks)
{
    enum { STEPS = 32, MOST = 8 };
    uint64_t best = (tiles + pair - 1) / pair, least = (best + multiprocessors - 1) / multiprocessors * pair;
    for (uint32_t each = 2 * pair; each <= MOST && (walks || each * steps <= STEPS); each += pair) {
        const uint64_t blocks = (tiles + each - 1) / each;
        const uint64_t last = (blocks + multiprocessors - 1) / multiprocessors * each;
        if (last <= least && (walks || blocks * 16 >= 31 * multiprocessors)) {
            least = last;
            best = blocks;
        }
    }
    return best;
}

/* Of so many walks each would get the same pair of every head. Where there are fewer keys than queries, pairs differ (many see no
 * key), and who gets the longest ones would end long after the others: then all that the GPU holds walk, out of step with heads. */
static bool repeats(const tandem_attention *op, const td_direct_block *block, uint64_t walks, uint32_t pair, uint32_t steps)
{
    enum { STEPS = 8 }; /* else the longest ones are not long */
    const uint32_t row_tiles = (op->q_len + block->rows - 1) / block->rows;
    return op->causal && op->q_len > op->kv_len && steps >= STEPS && walks * pair % row_tiles == 0;
}

td_direct_walk td_direct_walk_of(const tandem_attention *op, const td_target *target, const td_direct_block *block,
                                  uint32_t keys)
{
    const bool splits = block->teams > 1;
    const uint64_t works = (uint64_t)op->batch * op->heads * ((op->q_len + block->rows - 1) / block->rows);
    const uint32_t multiprocessors = td_multiprocessors(target), walkers = multiprocessors * block->walkers;
    const uint32_t pair = !splits && is_paired(op, works, multiprocessors, block->walkers) ? 2 : 1;
    const uint32_t steps = (keys + 127) / 128;
    uint64_t walks = splits ? works
                            : blocks_for(works, pair, op->causal ? (steps + 1) / 2 : steps, walkers,
                                         block->kind == DIRECT && (!op->causal || pair == 2));
    if (walks < walkers && walks < (works + pair - 1) / pair && repeats(op, block, walks, pair, steps))
        walks = walkers;
    /* so few walks that each may have a multiprocessor of its own do not share a block */
    const uint64_t all = (walks + block->walkers - 1) / block->walkers;
    const uint64_t grid = walks < multiprocessors ? walks : all < multiprocessors ? multiprocessors : all;
    return (td_direct_walk){works, grid, pair};
}

uint32_t td_hopper_shared_bytes(uint32_t d_pad, uint32_t groups, uint32_t splits)
{
    return d_pad > 128 ? TD_HOPPER_256_SHARED_BYTES : TD_HOPPER_SHARED_BYTES(d_pad, groups, splits);
}

static td_hopper_block best_block(const block_cost costs[COSTS], const tandem_attention *op, const td_target *target,
                                  uint32_t d_pad, uint32_t shared_bytes)
{
    const double all = op->kv_len / (double)TD_HOPPER_KEYS, masked = op->q_len / 2.0 / TD_HOPPER_KEYS - 0.5;
    const key_steps n = {.all = all, .mean = fmax(1, all - masked), .uneven = op->causal};
    const td_rows rows = td_options_of(target).rows;
    const uint32_t asked = rows - TD_MOST_ROWS;
    const uint32_t i = rows == TD_BEST_ROWS ? best_of(costs, op, target, &n, d_pad, shared_bytes)
                       : costs[asked].groups        ? asked
                                                    : SPLIT;
    return (td_hopper_block){costs[i].groups, costs[i].splits};
}

td_hopper_block td_hopper_block_of(const tandem_attention *op, const td_target *target, uint32_t d_pad)
{
    if (d_pad > 128)
        return (td_hopper_block){TD_HOPPER_GROUPS(256), 1};
    const block_cost *costs = stream_costs[td_index_of_dim(d_pad)];
    return td_options_of(target).dump ? (td_hopper_block){costs[1].groups, 1}
                                      : best_block(costs, op, target, d_pad, target->shared_bytes);
}

td_hopper_block td_hopper_inline_block_of(const tandem_attention *op, const td_target *target, uint32_t d_pad)
{
    return best_block(inline_costs[td_index_of_dim(d_pad)], op, target, d_pad, UINT32_MAX);
}

/* Whether blocks of most warpgroups walk, as they may where there are more tiles than multiprocessors. What a tile begins and
 * ends with is hidden then, and with a mask long and short tiles are shared out evenly; but tiles of many steps are as well
 * handed out to whichever multiprocessor is free. */
bool td_hopper_walks(const tandem_attention *op, const td_target *target, uint32_t d_pad, td_hopper_block block,
                         uint64_t tiles)
{
    const uint32_t most = d_pad <= 64 || op->causal ? 8192 : 2048; /* keys, at which it was measured to gain */

    return d_pad <= 128 && !td_options_of(target).dump && tiles > td_multiprocessors(target) &&
           block.groups == TD_HOPPER_GROUPS(d_pad) && block.splits == 1 &&
           target->shared_bytes >= TD_HOPPER_WALK_SHARED_BYTES(d_pad) &&
           (op->kv_len <= most || (op->causal && d_pad <= 64));
}

/* Heads whose tiles blocks that walk take at a time, those that share K and V together; no more than there are, so that
 * its tiles are no more than all of them, which 32 bits hold. */
uint32_t td_hopper_walk_chunk(const tandem_attention *op, uint32_t d_pad)
{
    const uint64_t plane_bytes = 2 * (uint64_t)round_up(op->kv_len, TD_TILE_ROWS) * d_pad, planes = (uint64_t)op->batch * op->heads;
    const uint64_t kept = TD_HOPPER_WALK_CHUNK_BYTES / plane_bytes, group = op->heads / op->kv_heads;
    const uint64_t chunk = group * (kept ? kept : 1);
    return (uint32_t)(chunk < planes ? chunk : planes);
}

td_tiles td_attention_tiles(const tandem_attention *op, const td_target *target, uint32_t precision)
{
    const uint32_t d_pad = td_pad_dim(op->head_dim);
    const bool roomy = target->shared_bytes >= td_hopper_shared_bytes(d_pad, TD_HOPPER_GROUPS(d_pad), 1);
    td_tiles t = {.rows = TD_TWIN_ROWS, .groups = 1, .shares = 1, .walkers = 1, .pair = 1};
    if (target->sm == 90 && precision == TANDEM_PRECISION_8B && (roomy || d_pad <= 128)) {
        const td_hopper_block block = roomy ? td_hopper_block_of(op, target, d_pad) : td_hopper_inline_block_of(op, target, d_pad);
        t.groups = block.groups;
        t.shares = block.splits;
    } else if (target->sm == 90 && precision == TANDEM_PRECISION_F16 && td_direct_has_dim(op->head_dim)) {
        const td_direct_block block = td_direct_block_of(op, target);
        t.groups = block.rows / 64 * block.teams;
        t.shares = block.teams;
        const td_direct_walk walk = td_direct_walk_of(op, target, &block, op->kv_len);
        t.walkers = block.walkers;
        t.pair = walk.pair;
        t.blocks = (uint32_t)(walk.grid * block.walkers);
    }
    t.rows = 64 * t.groups / t.shares;
    t.tiles = (uint64_t)op->batch * op->heads * ((op->q_len + t.rows - 1) / t.rows);
    if (target->sm == 90 && precision == TANDEM_PRECISION_8B && roomy) {
        t.walks = td_hopper_walks(op, target, d_pad, (td_hopper_block){t.groups, t.shares}, t.tiles);
        t.blocks = t.walks || (t.shares > 1 && t.tiles > td_multiprocessors(target)) ? td_multiprocessors(target) : 0;
        t.chunk_planes = td_hopper_walk_chunk(op, d_pad);
    }
    if (target->sm == 90 && target->shared_bytes && precision == TANDEM_PRECISION_8B && d_pad <= 128) {
        uint32_t tiles;
        t.cluster = td_prepare_cluster((op->kv_len + TD_TILE_ROWS - 1) / TD_TILE_ROWS, d_pad, &tiles);
        t.cluster_threads = t.cluster ? 64 * tiles * TD_PREPARE_HEAD_WARPS(d_pad) : 0;
    }
    return t;
}
