/* What jobs cost, and how long ones are cut.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * An attention job is many: each batch and head by itself, and of a head that is not causal each block of 128 rows of Q.
 * All that is made of K and V depends on them alone, and all that is made of Q on its block; so a piece with views of its
 * own computes the same bits. The price is that K and V are quantised again for each piece of a head's rows.
 */
#include <string.h>

#include "engine_plugin/daemon/daemon.h"

#define LEAST_GUESS_NS 10000u
#define RATE_NS 5000000u /* of work, from which a rate is learned */
#define CPU_NS_PER_MFLOP 20000.0 /* until something was learned */
#define GPU_NS_PER_MFLOP 3.0
#define BRIEF_NS 100000u
#define BRIEF_MFLOPS 0.5 /* of one core, about as long */
enum { BLOCK_ROWS = 128, LEAST_ROWS = 1024, MOST_SLICES = 1024 };

static double mflops(const tandem_attention *op)
{
    const double pairs = (double)op->q_len * op->kv_len * (op->causal ? 0.5 : 1.0);

    return 4e-6 * op->batch * op->heads * op->head_dim * pairs;
}

static uint64_t key_of(const tandem_attention *op)
{
    const uint32_t words[] = {op->batch,  op->heads,     op->kv_heads, op->q_len,   op->kv_len, op->head_dim,
                              op->causal, op->precision, op->smooth,   op->q.dtype, op->granularity};
    uint64_t h = 0xcbf29ce484222325;

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        h = (h ^ words[i]) * 0x100000001b3;
    return h ? h : 1;
}

uint64_t td_cost_guess(const td_costs *costs, const tandem_attention *op)
{
    const uint64_t key = key_of(op);
    double ns = costs->ns_per_mflop > 0 ? costs->ns_per_mflop : costs->is_gpu ? GPU_NS_PER_MFLOP : CPU_NS_PER_MFLOP;

    if (costs->keys[key % TD_COSTS] == key)
        return costs->best_ns[key % TD_COSTS];
    ns = ns * mflops(op) + LEAST_GUESS_NS;
    return ns > 1e15 ? (uint64_t)1e15 : (uint64_t)ns;
}

bool td_cost_is_brief(const td_costs *costs, const tandem_attention *op)
{
    return mflops(op) < BRIEF_MFLOPS && td_cost_guess(costs, op) < BRIEF_NS;
}

/* What the device gets done altogether, however many jobs are at it at a time: on a GPU. A CPU's that are under way
 * together stand still for one another. */
static void learn_rate(td_costs *costs, const tandem_attention *op, uint64_t begin_ns, uint64_t end_ns, uint64_t took)
{
    const uint64_t from = begin_ns > costs->covered_ns ? begin_ns : costs->covered_ns;
    double rate;

    if (!costs->is_gpu)
        costs->busy_ns += took;
    else if (end_ns > from)
        costs->busy_ns += end_ns - from;
    if (end_ns > costs->covered_ns)
        costs->covered_ns = end_ns;
    costs->mflops += mflops(op);
    if (costs->busy_ns < RATE_NS || costs->mflops < 1)
        return;
    rate = (double)costs->busy_ns / costs->mflops;
    costs->ns_per_mflop = costs->ns_per_mflop > 0 ? costs->ns_per_mflop * 0.75 + rate * 0.25 : rate;
    costs->busy_ns = 0;
    costs->mflops = 0;
}

uint64_t td_cost_part(const td_costs *costs, const tandem_attention *op, const tandem_attention *part)
{
    return LEAST_GUESS_NS + (uint64_t)((double)td_cost_guess(costs, op) * mflops(part) / mflops(op));
}

uint64_t td_cost_learn(td_costs *costs, const tandem_attention *op, uint64_t begin_ns, uint64_t end_ns, uint64_t held_ns,
                       bool alone, uint64_t guess)
{
    const uint64_t key = key_of(op), took = end_ns - begin_ns - held_ns;
    uint64_t *best = &costs->best_ns[key % TD_COSTS];

    learn_rate(costs, op, begin_ns, end_ns, took);
    if (alone && costs->keys[key % TD_COSTS] != key) {
        costs->keys[key % TD_COSTS] = key;
        *best = took;
    } else if (alone) {
        *best = took < *best ? took : *best + (took - *best) / 16; /* clocks fall, too */
    }
    return alone || took < guess ? took : guess;
}

/* How a job is cut: pieces of a head's rows, of the heads of a group, of the groups, of the batches. Only one of the first
 * two is more than one. */
typedef struct cut {
    uint32_t row_pieces, rows;        /* rows: of a piece */
    uint32_t heads, pieces_of_heads;  /* heads: of a piece; of all heads if group is whole */
    bool whole_groups;
} cut;

static cut cut_for(const tandem_attention *op, uint32_t count)
{
    const uint32_t group = op->heads / op->kv_heads, planes = op->batch * op->heads;
    cut c = {.row_pieces = 1, .rows = op->q_len, .heads = op->heads, .pieces_of_heads = 1, .whole_groups = true};
    uint32_t per_batch = (count + op->batch - 1) / op->batch;

    if (per_batch <= 1)
        return c;
    if (per_batch <= op->kv_heads) {
        const uint32_t groups = op->kv_heads / per_batch;

        c.heads = groups * group;
        c.pieces_of_heads = (op->kv_heads + groups - 1) / groups;
        return c;
    }
    c.whole_groups = false;
    c.heads = per_batch >= op->heads ? 1 : group / ((per_batch + op->kv_heads - 1) / op->kv_heads);
    if (!c.heads)
        c.heads = 1;
    while (group % c.heads)
        c.heads--;
    c.pieces_of_heads = op->heads / c.heads;
    if (count > planes && !op->causal && op->granularity != TANDEM_GRANULARITY_TENSOR) {
        const uint32_t wanted = (count + planes - 1) / planes;
        uint32_t rows = td_align_up((op->q_len + wanted - 1) / wanted, BLOCK_ROWS);

        if (rows < LEAST_ROWS)
            rows = LEAST_ROWS;
        if (rows < op->q_len) {
            c.rows = rows;
            c.row_pieces = (op->q_len + rows - 1) / rows;
        }
    }
    return c;
}

static uint32_t count_of(const tandem_attention *op, const cut *c)
{
    return c->row_pieces * c->pieces_of_heads * op->batch;
}

uint32_t td_slices(const td_costs *costs, const tandem_attention *op, uint64_t most_ns, uint32_t *pieces)
{
    const uint64_t guess = td_cost_guess(costs, op);
    uint64_t count = (guess + most_ns - 1) / most_ns;
    cut c;

    *pieces = 1;
    if (count <= 1 || (uint64_t)op->batch * op->heads > MOST_SLICES)
        return 1;
    if (op->q.dtype == TANDEM_DTYPE_CODES_INT8) /* all scales lie behind all codes: a part is no tensor of codes */
        return 1;
    if (count > MOST_SLICES)
        count = MOST_SLICES;
    c = cut_for(op, (uint32_t)count);
    *pieces = count_of(op, &c);
    return (uint32_t)count;
}

static void move(tandem_view *view, uint64_t batch, uint64_t head, uint64_t row)
{
    const uint64_t elements = batch * (uint64_t)view->stride_batch + head * (uint64_t)view->stride_head +
                              row * (uint64_t)view->stride_row;

    view->offset_bytes += elements * (view->dtype == TANDEM_DTYPE_F32 ? 4 : 2);
}

void td_slice(const tandem_attention *op, uint32_t cuts, uint32_t index, tandem_attention *out)
{
    const cut c = cut_for(op, cuts);
    const uint32_t group = op->heads / op->kv_heads;
    const uint32_t piece = index / c.row_pieces % c.pieces_of_heads;
    const uint32_t batch = index / c.row_pieces / c.pieces_of_heads, head = piece * c.heads;
    const uint32_t row = index % c.row_pieces * c.rows;

    *out = *op;
    out->batch = 1;
    out->heads = op->heads - head < c.heads ? op->heads - head : c.heads;
    out->kv_heads = c.whole_groups ? out->heads / group : 1;
    out->q_len = op->q_len - row < c.rows ? op->q_len - row : c.rows;
    move(&out->q, batch, head, row);
    move(&out->o, batch, head, row);
    if (out->lse.mem)
        move(&out->lse, batch, head, row);
    move(&out->k, batch, head / group, 0);
    move(&out->v, batch, head / group, 0);
}
