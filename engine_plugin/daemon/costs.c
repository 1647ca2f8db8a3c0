/* What jobs cost, and how long ones are cut.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * An attention job is many: each batch and head by itself, and of a head each block of BLOCK_ROWS rows of Q. All that
 * is made of K and V depends on them alone, and all that is made of Q on its block; so a piece with views of its own,
 * which knows where its rows lie under a causal mask, computes the same bits. The price is that K and V are quantised
 * again for each piece of a head's rows.
 */
#include <math.h>
#include <string.h>

#include "engine_plugin/daemon/daemon.h"

#define LEAST_GUESS_NS 10000u
#define RATE_NS 5000000u /* of work, from which a rate is learned */
#define CPU_NS_PER_MFLOP 20000.0 /* until something was learned */
#define GPU_NS_PER_MFLOP 3.0
#define BRIEF_NS 100000u
#define BRIEF_MFLOPS 0.5 /* of one core, about as long */
/* A block is a whole number of any kernel's tiles of rows, which have 64, 128 or 192. */
enum { BLOCK_ROWS = 384, LEAST_ROWS = 3 * BLOCK_ROWS, MOST_SLICES = 16384 };
/* What a row takes by itself, to be read and written, in keys that it might attend to: a row without any takes 45 of
 * them on a CPU, one with a single key, whose tile is computed all the same, up to 145. */
enum { ROW_KEYS = 128 };

/* Of a head: how often one of its rows attends to a key. */
static double pairs_of(const tandem_attention *op, uint32_t last_keys)
{
    const double keys = last_keys == TD_NO_KEYS ? 0 : last_keys ? last_keys : op->kv_len;
    const double rows = op->q_len < keys ? op->q_len : keys;

    return op->causal ? rows * keys - rows * (rows - 1) / 2 : (double)op->q_len * op->kv_len;
}

/* And what its rows take beside that, in the same unit. */
static double work_of(const tandem_attention *op, uint32_t last_keys)
{
    return pairs_of(op, last_keys) + (double)ROW_KEYS * op->q_len;
}

static double mflops_of(const tandem_attention *op, double pairs)
{
    return 4e-6 * op->batch * op->heads * op->head_dim * pairs;
}

static double mflops(const tandem_attention *op, uint32_t last_keys)
{
    return mflops_of(op, work_of(op, last_keys));
}

static uint64_t key_of(const tandem_attention *op, uint32_t last_keys)
{
    const uint32_t words[] = {op->batch,  op->heads,     op->kv_heads, op->q_len,   op->kv_len,      op->head_dim,
                              op->causal, op->precision, op->smooth,   op->q.dtype, op->granularity, last_keys};
    uint64_t h = 0xcbf29ce484222325;

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        h = (h ^ words[i]) * 0x100000001b3;
    return h ? h : 1;
}

uint64_t td_cost_guess(const td_costs *costs, const tandem_attention *op, uint32_t last_keys)
{
    const uint64_t key = key_of(op, last_keys);
    double ns = costs->ns_per_mflop > 0 ? costs->ns_per_mflop : costs->is_gpu ? GPU_NS_PER_MFLOP : CPU_NS_PER_MFLOP;

    if (costs->keys[key % TD_COSTS] == key)
        return costs->best_ns[key % TD_COSTS];
    ns = ns * mflops(op, last_keys) + LEAST_GUESS_NS;
    return ns > 1e15 ? (uint64_t)1e15 : (uint64_t)ns;
}

bool td_cost_is_brief(const td_costs *costs, const tandem_attention *op, uint32_t last_keys)
{
    return mflops_of(op, pairs_of(op, last_keys)) < BRIEF_MFLOPS && td_cost_guess(costs, op, last_keys) < BRIEF_NS;
}

/* What the device gets done altogether, however many jobs are at it at a time: on a GPU. A CPU's that are under way
 * together stand still for one another. */
static void learn_rate(td_costs *costs, double work, uint64_t begin_ns, uint64_t end_ns, uint64_t took)
{
    const uint64_t from = begin_ns > costs->covered_ns ? begin_ns : costs->covered_ns;
    double rate;

    if (!costs->is_gpu)
        costs->busy_ns += took;
    else if (end_ns > from)
        costs->busy_ns += end_ns - from;
    if (end_ns > costs->covered_ns)
        costs->covered_ns = end_ns;
    costs->mflops += work;
    if (costs->busy_ns < RATE_NS || costs->mflops < 1)
        return;
    rate = (double)costs->busy_ns / costs->mflops;
    costs->ns_per_mflop = costs->ns_per_mflop > 0 ? costs->ns_per_mflop * 0.75 + rate * 0.25 : rate;
    costs->busy_ns = 0;
    costs->mflops = 0;
}

uint64_t td_cost_part(const td_costs *costs, const tandem_attention *op, const tandem_attention *part,
                      uint32_t last_keys)
{
    const double share = mflops(part, last_keys) / mflops(op, 0);

    return LEAST_GUESS_NS + (uint64_t)((double)td_cost_guess(costs, op, 0) * share);
}

uint64_t td_cost_learn(td_costs *costs, const tandem_attention *op, uint32_t last_keys, uint64_t begin_ns,
                       uint64_t end_ns, uint64_t held_ns, bool alone, uint64_t guess)
{
    const uint64_t key = key_of(op, last_keys), took = end_ns - begin_ns - held_ns;
    uint64_t *best = &costs->best_ns[key % TD_COSTS];

    learn_rate(costs, mflops(op, last_keys), begin_ns, end_ns, took);
    if (alone && costs->keys[key % TD_COSTS] != key) {
        costs->keys[key % TD_COSTS] = key;
        *best = took;
    } else if (alone) {
        *best = took < *best ? took : *best + (took - *best) / 16; /* clocks fall, too */
    }
    return alone || took < guess ? took : guess;
}

/* How a job is cut: pieces of several batches, of one batch's heads (whole groups, or part of one), of one head's rows.
 * Each is cut only where pieces of what is before it are still too long. */
typedef struct cut {
    uint32_t batches, pieces_of_batches;
    uint32_t heads, pieces_of_heads;
    bool whole_groups; /* else `heads` of one group, whose last piece may have fewer */
    double work;       /* of a piece of a head's rows, at most where that is LEAST_ROWS or more; INFINITY: all rows */
} cut;

static uint32_t divided_up(uint32_t n, uint32_t by) { return n / by + (n % by != 0); }

/* Where a piece of a head's rows ends that begins at `row`. Of a causal head's rows those behind attend to more keys,
 * and the first ones, where there are more rows than keys, to none. */
static uint32_t end_of(const tandem_attention *op, double work, uint32_t row)
{
    const int64_t keys = (int64_t)op->kv_len - op->q_len + row + 1; /* of that row */
    const double idle = op->causal && keys < 1 ? (double)(1 - keys) : 0;
    const double before = (keys > 1 ? (double)keys : 1) - 0.5 + ROW_KEYS, left = work - ROW_KEYS * idle;
    double rows = work / (op->causal ? ROW_KEYS : op->kv_len + (double)ROW_KEYS), end;

    if (op->causal && left > 0)
        rows = idle + sqrt(before * before + 2 * left) - before;
    if (rows < LEAST_ROWS)
        rows = LEAST_ROWS;
    end = floor((row + rows) / BLOCK_ROWS) * BLOCK_ROWS;
    return end < op->q_len ? (uint32_t)end : op->q_len;
}

static cut cut_for(const tandem_attention *op, uint32_t count)
{
    const uint32_t group = op->heads / op->kv_heads;
    const uint64_t planes = (uint64_t)op->batch * op->heads;
    cut c = {.batches = 1, .heads = op->heads, .pieces_of_heads = 1, .whole_groups = true, .work = INFINITY};
    uint32_t per_batch;

    if (count <= op->batch)
        c.batches = op->batch / count;
    c.pieces_of_batches = divided_up(op->batch, c.batches);
    per_batch = divided_up(count, op->batch);
    if (per_batch <= 1)
        return c;
    if (per_batch <= op->kv_heads) {
        const uint32_t groups = op->kv_heads / per_batch;

        c.heads = groups * group;
        c.pieces_of_heads = divided_up(op->kv_heads, groups);
        return c;
    }
    c.whole_groups = false;
    c.heads = group / divided_up(per_batch, op->kv_heads);
    if (!c.heads)
        c.heads = 1;
    c.pieces_of_heads = op->kv_heads * divided_up(group, c.heads);
    if (count > planes && op->granularity != TANDEM_GRANULARITY_TENSOR)
        c.work = work_of(op, 0) * (double)planes / count;
    return c;
}

uint32_t td_slices(const td_costs *costs, const tandem_attention *op, uint64_t most_ns, uint32_t *pieces)
{
    const uint64_t guess = td_cost_guess(costs, op, 0);
    uint64_t count = guess / most_ns + (guess % most_ns != 0);
    uint32_t row_pieces = 1;
    cut c;

    *pieces = 1;
    if (count <= 1)
        return 1;
    if (op->q.dtype == TANDEM_DTYPE_CODES_INT8) /* all scales lie behind all codes: a part is no tensor of codes */
        return 1;
    if (count > MOST_SLICES)
        count = MOST_SLICES;
    c = cut_for(op, (uint32_t)count);
    for (uint32_t end = end_of(op, c.work, 0); end < op->q_len; end = end_of(op, c.work, end))
        row_pieces++;
    *pieces = row_pieces * c.pieces_of_heads * c.pieces_of_batches;
    return (uint32_t)count;
}

static void move(tandem_view *view, uint64_t batch, uint64_t head, uint64_t row)
{
    const uint64_t elements = batch * (uint64_t)view->stride_batch + head * (uint64_t)view->stride_head +
                              row * (uint64_t)view->stride_row;

    view->offset_bytes += elements * (view->dtype == TANDEM_DTYPE_F32 ? 4 : 2);
}

uint32_t td_slice(const tandem_attention *op, uint32_t cuts, td_slice_at *at, tandem_attention *out)
{
    const cut c = cut_for(op, cuts);
    const uint32_t group = op->heads / op->kv_heads, per_group = divided_up(group, c.heads);
    const uint32_t piece = at->plane % c.pieces_of_heads, batch = at->plane / c.pieces_of_heads * c.batches;
    const uint32_t head = c.whole_groups ? piece * c.heads : piece / per_group * group + piece % per_group * c.heads;
    const uint32_t heads = c.whole_groups ? op->heads - head : group - piece % per_group * c.heads;
    const uint32_t row = at->row, end = end_of(op, c.work, row);
    const int64_t last_keys = (int64_t)op->kv_len - op->q_len + end;
    const bool rows_are_cut = row || end < op->q_len;

    *out = *op;
    out->batch = op->batch - batch < c.batches ? op->batch - batch : c.batches;
    out->heads = heads < c.heads ? heads : c.heads;
    out->kv_heads = c.whole_groups ? out->heads / group : 1;
    out->q_len = end - row;
    move(&out->q, batch, head, row);
    move(&out->o, batch, head, row);
    if (out->lse.mem)
        move(&out->lse, batch, head, row);
    move(&out->k, batch, head / group, 0);
    move(&out->v, batch, head / group, 0);
    at->row = end < op->q_len ? end : 0;
    at->plane += !at->row;
    if (!op->causal || !rows_are_cut)
        return 0;
    if (last_keys > 0)
        return (uint32_t)last_keys;
    out->kv_len = 1; /* there has to be one, but none is looked at: no more are quantised for nothing */
    return TD_NO_KEYS;
}
