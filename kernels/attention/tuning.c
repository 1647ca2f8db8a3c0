/* What AUTO takes. See tuning.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/attention/tuning.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "interop/base.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/params.h"
#include "kernels/target.h"

enum { FIRST_LENGTH = 256 };
static const uint32_t precisions[] = {TANDEM_PRECISION_F16, TANDEM_PRECISION_8B, TANDEM_PRECISION_4B};
static const double unlike = 0.1; /* what a neighbour counts whose blocks are of another kind */

uint32_t td_tuning_planes(uint32_t index)
{
    return 1u << index;
}

uint32_t td_tuning_length(uint32_t index)
{
    return (uint32_t)FIRST_LENGTH << index;
}

bool td_tuning_fits(const td_tuning_table *table, uint32_t sm, const char *device, char *why, size_t why_bytes)
{
    const bool fits = table->sm == sm && strncmp(table->device, device, TD_TUNING_DEVICE - 1) == 0;
    if (!fits && why && why_bytes)
        td_text(why, why_bytes,
                "it was measured on '%s' (compute capability %" PRIu32 ".%" PRIu32 "), this is '%s' (%" PRIu32
                ".%" PRIu32 ")",
                table->device, table->sm / 10, table->sm % 10, device, sm / 10, sm % 10);
    return fits;
}

/* --- Shapes --- */

/* Microseconds of an H200's kernels. */
typedef struct rates {
    double rest, row; /* of a tile, and of each 64 rows of it, whatever its keys */
    double step[4];   /* of 64 rows and 128 keys, by head dim (64, 80, 96, 128), where blocks have most warpgroups */
    double part;      /* of 64 rows, where some of a step's keys are masked */
    double light;     /* so much of a step's time where few multiprocessors are busy: their clock is higher */
    double shared[4]; /* so much longer is a step where warpgroups share the keys; */
    double shared_rest; /* what such a tile of 64 rows takes besides, half as much again one of 128 */
    double key_bytes; /* of a value of K or V */
} rates;

/* On a stream and in the shared memory that every executor has, of F16 and of 8B. */
static const rates all_rates[2][2] = {
    {{3.25, 0.66, {0.485, 0.673, 0.634, 0.755}, 0, 0.85, {1.35, 1.56, 1.42, 1.5}, 3.1, 2},
     {2.6, 0.28, {0.363, 0.463, 0.467, 0.49}, 0.7, 0.96, {1.2, 1.2, 1.2, 1.2}, 2.05, 1}},
    {{2.6, 0.6, {0.62, 0.73, 0.82, 1.09}, 0, 0.86, {1.3, 1.3, 1.3, 1.3}, 3.2, 2},
     {3, 1, {0.39, 0.445, 0.455, 0.62}, 0.6, 1, {1.08, 1.08, 1.08, 1.08}, 4.3, 1}}};

/* Of F16's blocks of two teams: what both tiles take whatever their keys, half of it beside the other's. */
static const double teams_rest = 4.2;

/* What is left of a team's time where the other one has no tile. */
static const double team_alone = 0.87;

/* What is left of a tile's begin and end where blocks begin the next meanwhile. */
static const double walk_rest = 0.81;

/* What a launch takes; bytes of K and V that all blocks together get in a microsecond, and what that takes longer at
 * first. */
static const double launch_us = 2.3, key_rate = 4e6, first_keys_us = 4.7;

/* Of a tile that sees no keys, besides what its Q and O take at that rate. */
static const double empty_us = 1;

static uint32_t groups_of_most(uint32_t head_dim, int cost, bool roomy)
{
    if (cost == TD_TUNING_F16)
        return roomy ? TD_F16_GROUPS : TD_F16_INLINE_GROUPS;
    return roomy ? TD_HOPPER_GROUPS(head_dim) : TD_HOPPER_INLINE_GROUPS(head_dim);
}

/* How long tiles take that blocks begin head after head, each head's longest first, as soon as one ends: the last head's
 * begins when all of the others have begun, and half of what was begun last is left. Almost equal ones as without a
 * mask. `tiles` in those that are done at once. */
static double unequal_us(double tiles, double average, double longest, double shortest, double heads)
{
    const double all = tiles * average, before = tiles * (1 - 1 / heads);
    const double left = (longest * (longest + shortest) + shortest * shortest) / (3 * (longest + shortest));
    const double middle = longest - (longest - shortest) / tiles; /* two of them where two turns do for all, in order */
    const double last = before > 1 ? before * average + longest - left : heads <= 1 && tiles <= 2 ? 2 * middle : 0;
    const double us = fmax(fmax(longest, all), last);
    const double equal = fmin(1, fmax(0, 3 * shortest / longest - 2));
    return (1 - equal) * us + equal * ceil(tiles) * average;
}

/* A kernel's tiles, and what each takes. */
typedef struct schedule {
    const tandem_attention *op;
    td_tiles t;
    uint32_t row_tiles; /* of a head */
    uint64_t planes;
    double rest, step; /* of a tile that sees keys, and of each 128 of them */
    double empty;      /* of one that sees none: Q comes, O goes */
    double slots;      /* tiles, or walks, that are under way at once */
    double keys;       /* that all warpgroups which share them take at a time */
} schedule;

static double tile_us(const schedule *s, uint64_t tile)
{
    const double end = fmin(((double)tile + 1) * s->t.rows, s->op->q_len);
    const double keys = s->op->causal ? end + s->op->kv_len - s->op->q_len : s->op->kv_len;
    return keys > 0 ? s->rest + s->step * ceil(keys / s->keys) * (s->keys / 128) : s->empty;
}

/* The rows that tile `number` has, in the order in which 8B's blocks that walk take them with a mask: those whose
 * warpgroups share keys the longest of all heads first, others so for some heads at a time, or last. */
static uint64_t walked_tile(const schedule *s, uint64_t number)
{
    if (s->t.shares > 1)
        return s->row_tiles - 1 - number / s->planes;
    const uint64_t each = s->t.chunk_planes, chunk = number / (each * s->row_tiles), first = chunk * each;
    const uint64_t chunks = (s->planes + each - 1) / each, here = first + each < s->planes ? each : s->planes - first;
    const uint64_t whole = (number - first * s->row_tiles) / here;
    return (chunks - chunk) % 2 ? s->row_tiles - 1 - whole : whole;
}

/* What walk `x` has to do: tiles, or F16's pairs of them. */
enum { ROUNDS = 16 };
static double walk_us(const schedule *s, uint64_t x, bool pairs)
{
    const uint64_t blocks = s->t.blocks, count = pairs ? (s->t.tiles + 1) / 2 : s->t.tiles;
    double sum = 0;

    for (uint64_t n = 0;; n++) {
        const bool back = !pairs && n % 2; /* forwards and backwards in turn */
        const uint64_t number = n * blocks + (back ? blocks - 1 - x : x);
        if (number >= count)
            return sum;
        if (!pairs)
            sum += tile_us(s, walked_tile(s, number));
        for (uint64_t work = 2 * number; pairs && work < 2 * number + 2 && work < s->t.tiles; work++) {
            const uint64_t i = work % s->row_tiles;
            sum += tile_us(s, i % 2 ? i / 2 : s->row_tiles - 1 - i / 2);
        }
    }
}

/* What a block has to do whose teams each have a walk: where one is longer its team is alone at last. */
static double block_us(const schedule *s, uint64_t x, bool pairs)
{
    const double one = walk_us(s, x, pairs);
    if (s->t.walkers == 1)
        return one;
    const double other = walk_us(s, x + s->t.blocks / s->t.walkers, pairs);
    return fmin(one, other) + fabs(one - other) * team_alone;
}

/* The longest of some blocks that walk: from one end to the other, around where the last round ends, and those that have
 * the pairs of two heads' tiles, a middle one and a longest one, and where pairs differ of a head those that see keys. 0: all are so long that each takes about as much. */
static double longest_walk_us(const schedule *s, bool pairs)
{
    enum { EVEN = 8, ODD = 8, SEEING = 8 };
    const uint64_t all = pairs ? (s->t.tiles + 1) / 2 : s->t.tiles, over = all % s->t.blocks;
    const uint64_t blocks = s->t.blocks / s->t.walkers;
    uint64_t of[EVEN + ODD + SEEING + 4] = {over ? over - 1 : 0, over, over ? s->t.blocks - over : 0, blocks - 1};
    uint32_t count = 4;
    double longest = 0;

    if (all > ROUNDS * (uint64_t)s->t.blocks)
        return 0;
    for (uint64_t i = 0; i < EVEN; i++)
        of[count++] = i * blocks / EVEN;
    for (uint64_t i = 0; i < ODD && pairs && s->row_tiles % 2; i++)
        of[count++] = s->row_tiles / 2 + i * s->row_tiles;
    const uint32_t seeing = (s->op->kv_len + s->t.rows - 1) / s->t.rows; /* of a head's tiles */
    for (uint64_t i = 0; i < SEEING && pairs && seeing < s->row_tiles; i++)
        of[count++] = i * seeing / SEEING;
    for (uint32_t i = 0; i < count; i++)
        longest = fmax(longest, block_us(s, of[i] % blocks, pairs));
    return longest;
}

/* The average of a head's tiles; of long heads by those that see keys. */
static double average_us(const schedule *s)
{
    enum { MOST = 16 };
    const double q = s->op->q_len, kv = s->op->kv_len, rows = s->t.rows;
    double sum = 0;

    if (s->row_tiles <= MOST) {
        for (uint32_t i = 0; i < s->row_tiles; i++)
            sum += tile_us(s, i);
        return sum / s->row_tiles;
    }
    const double seeing = fmin(1, ceil(fmin(q, kv) / rows) / s->row_tiles);
    const double keys = q > kv ? kv / 2 : kv - (q - 1) / 2, edge = rows / 2 * fmin(1, kv / q) + (s->keys - 128) / 2 + (rows < 128 ? 64 - rows / 2 : 0);
    return seeing * (s->rest + s->step * fmin(ceil(kv / s->keys) * s->keys, keys + edge) / 128) + (1 - seeing) * s->empty;
}

/* How long all tiles take, by whose they are. */
static double schedule_us(const schedule *s, int cost)
{
    const td_tiles *t = &s->t;
    const double whole = tile_us(s, s->row_tiles - 1), tiles = (double)t->tiles / s->slots;
    if (!s->op->causal)
        return ceil(tiles) * whole;
    const double average = average_us(s);
    const bool pairs = cost == TD_TUNING_F16, walks = t->blocks && (!pairs || t->pair > 1);
    const double longest = walks ? longest_walk_us(s, pairs) : 0, turns = pairs ? ceil(t->blocks / s->slots) : 1;
    const double each = average * (double)t->tiles / fmax(1, t->blocks);
    if (longest > 0) /* of two turns the second is not an average one: who has done least goes on, and takes what comes */
        return longest + (turns <= 2 ? (turns - 1) * (longest + each) / 2 : (turns - 1) * each);
    if (walks)
        return fmax(whole, tiles * average);
    const double heads = t->shares > 1 ? 1 : (double)s->planes; /* 1: of all heads */
    return tiles > 1 ? unequal_us(tiles, average, whole, tile_us(s, 0), heads) : whole;
}

/* How long a precision's kernel is estimated to take. */
static double estimated_us(const tandem_attention *op, int cost, const td_target *target)
{
    static const uint32_t head_dims[] = {64, 80, 96, 128};
    const bool roomy = target->shared_bytes > 0;
    const rates *r = &all_rates[!roomy][cost != TD_TUNING_F16];
    schedule s = {.op = op, .t = td_attention_tiles(op, target, precisions[cost]), .planes = (uint64_t)op->batch * op->heads};
    const td_tiles t = s.t;
    int i = 0;
    while (head_dims[i] < op->head_dim && i < 3)
        i++;
    const double most = groups_of_most(op->head_dim, cost, roomy);
    const double longer = cost == TD_TUNING_F16 ? TD_F16_INLINE_LONGER(op->head_dim) : TD_HOPPER_LONGER(op->head_dim);
    const bool fetched = cost == TD_TUNING_F16 && t.shares == 2; /* by warps that do nothing else, as where none share */
    const double slower = t.shares > 1 ? fetched ? 1 : r->shared[i] : t.groups < most ? most / (most - 1) / longer : 1;
    const double rows = t.rows * t.walkers / 64.0, busy = fmin(1, (double)t.tiles / t.walkers / target->multiprocessors);
    const bool has_part = op->causal || op->kv_len % 128;
    const double part = has_part ? rows * r->part : 0, alone = r->rest + rows * r->row + part;
    const double rest = t.walkers > 1 ? teams_rest : t.shares > 1 ? r->shared_rest * (1 + rows) / 2 + part
                        : t.walks     ? walk_rest * alone
                                      : alone;
    s.row_tiles = (op->q_len + t.rows - 1) / t.rows;
    s.keys = t.shares == 1 ? 128 : t.shares * (cost == TD_TUNING_F16 ? TD_F16_SPLIT_KEYS : TD_HOPPER_KEYS);
    s.slots = (double)target->multiprocessors * t.walkers;
    const bool lonely = t.walkers > 1 && t.tiles <= target->multiprocessors;
    s.rest = rest * (lonely ? team_alone : 1);
    s.step = rows * slower * r->step[i] * (r->light + (1 - r->light) * busy) * (lonely ? team_alone : 1);
    s.empty = empty_us + t.rows * t.walkers * op->head_dim * (r->key_bytes + 2) / (key_rate / target->multiprocessors);
    const double bytes = 2 * r->key_bytes * op->head_dim * op->kv_len * (double)op->batch * op->kv_heads;
    return launch_us + fmax(schedule_us(&s, cost), bytes / key_rate + fmin(first_keys_us, bytes / key_rate));
}

static double rows_read(const tandem_attention *op)
{
    return (double)op->batch * ((double)op->heads * op->q_len + 2.0 * op->kv_heads * op->kv_len);
}

/* How long 8B's prologue is estimated to take. Clusters leave places for blocks empty where they do not fill the
 * multiprocessors that can share one. */
static double estimated_prologue_us(const tandem_attention *op, const td_target *target)
{
    enum { SHARED_BY = 16, THREADS = 1024 }; /* multiprocessors, and what blocks of one have by their registers */
    const td_tiles t = td_attention_tiles(op, target, TANDEM_PRECISION_8B);
    const bool narrow = op->head_dim <= 64; /* else as many lanes as for 128 channels */
    const double row = 3.0 * (narrow ? 64 : 128), q_rows = (double)op->batch * op->heads * op->q_len;
    if (!target->shared_bytes)
        return 16 + rows_read(op) * 3 * op->head_dim / 1.95e6;
    if (!t.cluster) /* Q by itself */
        return 11.4 + row * (rows_read(op) - 0.4 * q_rows) / 3.3e6;
    const uint32_t places = SHARED_BY * THREADS / t.cluster_threads, used = places / t.cluster * t.cluster;
    return (narrow ? 2.4 : 3.3) + row * rows_read(op) / 3.45e6 * (0.3 + 0.7 * places / used);
}

/* What AUTO goes by: a table, or the estimates alone. */
typedef struct chooser {
    const td_tuning_table *table;
    td_target target;
} chooser;
static void times_of(const chooser *by, const tandem_attention *op, double us[TD_TUNING_COSTS]);

/* An operation of the same family, of so many keys. */
static tandem_attention with_keys(const tandem_attention *op, double keys)
{
    tandem_attention other = *op;
    other.kv_len = (uint32_t)fmax(1, keys);
    other.q_len = op->q_len == op->kv_len ? other.kv_len : (uint32_t)fmax(1, rint(keys * op->q_len / op->kv_len));
    return other;
}

/* From how many keys on a family takes `later` instead of `first`: where that once loses least, of all lengths from 128 to
 * 32768 by so many an octave. */
enum { COARSE = 2, FINE = 16, OCTAVES = 8, MOST_LENGTHS = FINE * OCTAVES + 1 };
static double border_of(const chooser *by, const tandem_attention *op, int first, int later, uint32_t per_octave)
{
    static const double shortest = 128;
    const uint32_t count = per_octave * OCTAVES + 1;
    const double apart = exp2(1.0 / per_octave);
    double gains[MOST_LENGTHS], sum = 0, least = 0, keys = shortest;
    uint32_t best = 0;

    for (uint32_t i = 0; i < count; i++, keys *= apart) {
        const tandem_attention other = with_keys(op, keys);
        double us[TD_TUNING_COSTS];
        times_of(by, &other, us);
        gains[i] = us[first] > 0 && us[later] > 0 ? log(us[first] / us[later]) : 0; /* of `later` */
    }
    for (uint32_t i = 0; i < count; i++) { /* what a border behind length i loses more than one before all */
        sum += gains[i];
        if (sum < least) {
            least = sum;
            best = i + 1;
        }
    }
    if (best == 0 || best == count)
        return best ? INFINITY : 0;
    const double before = fmin(0, gains[best - 1]), behind = fmax(0, gains[best]);
    return shortest * pow(apart, best - (behind > before ? behind / (behind - before) : 0.5));
}

/* The fastest; but of two that are about as fast the one that the family takes on that side of its border, so that what
 * waves of blocks do to a length does not make it come and go. */
static uint32_t choose(const chooser *by, const tandem_attention *op)
{
    double us[TD_TUNING_COSTS];
    int best = -1, other = -1;

    times_of(by, op, us);
    for (int i = 0; i < TD_TUNING_COSTS; i++)
        if (us[i] > 0 && (best < 0 || us[i] < us[best]))
            best = i;
    for (int i = 0; i < TD_TUNING_COSTS; i++)
        if (best >= 0 && us[i] > us[best] && us[i] <= us[best] * TD_TUNING_GAIN && (other < 0 || us[i] < us[other]))
            other = i;
    if (best >= 0 && other >= 0) {
        const int first = best < other ? best : other, later = best < other ? other : best;
        best = op->kv_len >= border_of(by, op, first, later, COARSE) ? later : first;
    }
    return best < 0 ? (uint32_t)TANDEM_PRECISION_AUTO : precisions[best];
}

static chooser rule_for(bool inline_one, uint32_t multiprocessors)
{
    chooser by = {.target = inline_one ? td_target_for_sm(90) : td_target_for_stream(90)};
    by.target.multiprocessors = multiprocessors ? multiprocessors : by.target.multiprocessors;
    return by;
}

/* A family's border by the rule, which many estimates are made for: a thread remembers those that it looked for last. */
typedef struct family {
    uint32_t batch, heads, kv_heads, head_dim, causal, multiprocessors, is_inline;
} family;
static double rule_border(const chooser *by, const tandem_attention *op, bool inline_one)
{
    enum { REMEMBERED = 32 };
    static _Thread_local struct {
        family of;
        double border;
    } remembered[REMEMBERED];
    const family of = {op->batch, op->heads, op->kv_heads, op->head_dim, op->causal, by->target.multiprocessors, inline_one};
    const uint32_t hash = of.batch + 3 * of.heads + 5 * of.kv_heads + 7 * of.head_dim + 11 * of.causal + 13 * of.is_inline;
    const uint32_t i = hash % REMEMBERED;

    if (memcmp(&remembered[i].of, &of, sizeof of) != 0) {
        remembered[i].border = border_of(by, op, TD_TUNING_F16, TD_TUNING_8B, FINE);
        remembered[i].of = of;
    }
    return remembered[i].border;
}

/* Estimates are no measurements: what they gain here and lose there, as waves of blocks come and go, moves no choice to
 * and fro. With as many queries as keys a family changes once. */
static uint32_t choose_by_rule(const tandem_attention *op, bool inline_one, uint32_t multiprocessors)
{
    const chooser by = rule_for(inline_one, multiprocessors);
    if (op->q_len != op->kv_len)
        return choose(&by, op);
    return op->kv_len >= rule_border(&by, op, inline_one) ? TANDEM_PRECISION_8B : TANDEM_PRECISION_F16;
}

uint32_t td_tuning_rule_direct(const tandem_attention *op, uint32_t multiprocessors)
{
    return choose_by_rule(op, false, multiprocessors);
}

uint32_t td_tuning_rule_inline(const tandem_attention *op, uint32_t multiprocessors)
{
    return choose_by_rule(op, true, multiprocessors);
}

/* --- Times --- */

/* What is measured, and what a measured time is divided by, so that what is left changes smoothly. */
typedef struct grid {
    enum { SQUARE, FEW, PROLOGUE } section;
    int cost;
    tandem_attention op; /* but for its heads and lengths */
    const td_target *target;
    td_tiles tiles; /* of what is asked for */
} grid;

/* What was measured there is estimated to be; and whether its blocks are of the kind that is asked for. */
static double estimate_at(const grid *g, uint32_t planes, uint32_t length, bool *alike)
{
    tandem_attention op = g->op;
    op.batch = 1;
    op.heads = op.kv_heads = planes;
    op.kv_len = length;
    op.q_len = g->section == FEW ? TD_TUNING_FEW : length;
    const td_tiles t = td_attention_tiles(&op, g->target, precisions[g->cost]);
    if (g->section == PROLOGUE) {
        *alike = (t.cluster > 0) == (g->tiles.cluster > 0);
        return estimated_prologue_us(&op, g->target);
    }
    *alike = t.groups == g->tiles.groups && t.shares == g->tiles.shares && t.walks == g->tiles.walks;
    return estimated_us(&op, g->cost, g->target);
}

/* How many planes were measured of a length. */
static uint32_t planes_of(const td_tuning_times times, uint32_t j)
{
    uint32_t last = TD_TUNING_PLANES;
    while (last && !(times[last - 1][j] > 0))
        last--;
    return last;
}

/* Between four neighbours, on logarithmic axes, of which those count less whose blocks are of another kind; beyond what was
 * measured it stays what it is. 0: not known. */
static double unit_of(const grid *g, const td_tuning_times times, double planes, double length, double *trust)
{
    uint32_t last = TD_TUNING_LENGTHS;
    while (last && !planes_of(times, last - 1))
        last--;
    if (!last)
        return 0;
    const double y = fmin(length > FIRST_LENGTH ? log2(length / FIRST_LENGTH) : 0, last - 1);
    double sum = 0, weights = 0;
    for (uint32_t j = (uint32_t)y; j < last && j <= (uint32_t)y + 1; j++) {
        const uint32_t count = planes_of(times, j);
        const double x = fmin(planes > 1 ? log2(planes) : 0, count ? count - 1 : 0);
        for (uint32_t i = (uint32_t)x; i < count && i <= (uint32_t)x + 1; i++) {
            bool alike;
            const double estimate = estimate_at(g, td_tuning_planes(i), td_tuning_length(j), &alike);
            const double weight = (1 - fabs(x - i)) * (1 - fabs(y - j)) * (alike ? 1 : unlike);
            if (!(times[i][j] > 0) && weight > 0)
                return 0;
            if (weight > 0) {
                sum += weight * log((double)times[i][j] / estimate);
                weights += weight;
            }
        }
    }
    *trust = weights;
    return weights > 0 ? exp(sum / weights) : 0;
}

static double between(double low, double high, double x)
{
    return low > 0 && high > 0 ? low * pow(high / low, x) : 0;
}

/* What it was measured on. */
static td_target target_of(const td_tuning_table *table)
{
    td_target target = td_target_for_stream(table->sm);

    target.multiprocessors = table->multiprocessors;
    return target;
}

/* Of a precision's kernel, by what was measured with or without a mask. 0: not known. */
static double kernel_us(const td_tuning_table *table, const td_tuning_part *part, int i, const tandem_attention *op)
{
    const td_target target = target_of(table);
    const td_tiles t = td_attention_tiles(op, &target, precisions[i]);
    grid square = {SQUARE, i, *op, &target, t}, few = square;
    square.op.causal = part->causal;
    few.section = FEW;
    few.op.causal = false;
    const double row_tiles = (op->q_len + t.rows - 1) / t.rows, key_tiles = (op->kv_len + t.rows - 1) / t.rows;
    double trust_square = 0, trust_few = 0;
    const double by_square = unit_of(&square, part->costs[i].kernel, (double)t.tiles / key_tiles, op->kv_len, &trust_square);
    const double by_few = unit_of(&few, part->costs[i].few, (double)t.tiles, op->kv_len, &trust_few);
    double share = row_tiles >= key_tiles ? 1 : log(row_tiles) / log(key_tiles);
    if (op->q_len > TD_TUNING_FEW) /* more of a block's warps have rows */
        share = fmax(share, fmin(1, log((double)op->q_len / TD_TUNING_FEW) / log((double)t.rows / TD_TUNING_FEW)));
    if (by_few > 0 && by_square > 0 && share > 0) /* blocks of another kind tell less of these */
        share = share * trust_square / (share * trust_square + (1 - share) * trust_few);
    const double unit = by_few > 0 && by_square > 0 ? between(by_few, by_square, share) : by_square;
    return unit * estimated_us(op, i, &target);
}

static double prologue_us(const td_tuning_table *table, const td_tuning_cost *cost, const tandem_attention *op)
{
    const td_target target = target_of(table);
    const grid g = {PROLOGUE, TD_TUNING_8B, *op, &target, td_attention_tiles(op, &target, TANDEM_PRECISION_8B)};
    const double planes = fmax(rows_read(op) / 3 / op->kv_len, 1);
    double trust;
    return unit_of(&g, cost->prologue, planes, op->kv_len, &trust) * estimated_prologue_us(op, &target);
}

const td_tuning_part *td_tuning_part_of(const td_tuning_table *table, uint32_t head_dim, bool causal)
{
    for (uint32_t i = 0; i < table->count; i++)
        if (table->parts[i].head_dim == head_dim && table->parts[i].causal == causal)
            return &table->parts[i];
    return NULL;
}

/* From tensors of 16 bits to the output. With a mask few queries see almost all keys, and are as without one. */
static double whole_us(const td_tuning_table *table, const tandem_attention *op, int i)
{
    const td_tuning_part *part = td_tuning_part_of(table, op->head_dim, op->causal),
                         *bare = td_tuning_part_of(table, op->head_dim, false);
    if (!part)
        return 0;
    double us = kernel_us(table, part, i, op);
    if (op->causal && bare && op->q_len < op->kv_len) {
        const double without = kernel_us(table, bare, i, op), masked = (double)op->q_len / op->kv_len;
        us = without > 0 && us > 0 ? masked * us + (1 - masked) * without : us;
    }
    return us > 0 ? us + prologue_us(table, &part->costs[i], op) : 0;
}

static void times_of(const chooser *by, const tandem_attention *op, double us[TD_TUNING_COSTS])
{
    if (by->table) {
        for (int i = 0; i < TD_TUNING_COSTS; i++)
            us[i] = whole_us(by->table, op, i);
        return;
    }
    us[TD_TUNING_F16] = estimated_us(op, TD_TUNING_F16, &by->target);
    us[TD_TUNING_8B] = estimated_us(op, TD_TUNING_8B, &by->target) + estimated_prologue_us(op, &by->target);
    us[TD_TUNING_4B] = 0;
}

void td_tuning_us(const td_tuning_table *table, const tandem_attention *op, double us[TD_TUNING_COSTS])
{
    const chooser by = {.table = table};
    times_of(&by, op, us);
}

uint32_t td_tuning_precision(const td_tuning_table *table, const tandem_attention *op)
{
    const chooser by = {.table = table};
    return choose(&by, op);
}
