/* What jobs cost, and how long ones are cut.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * What an operation takes is guessed by its own count of floating-point operations until it has run. Whether it can be cut
 * is the operation's to know; how long its parts may be is decided here.
 */
#include <string.h>

#include "engine_plugin/daemon/costs.h"

#define LEAST_GUESS_NS 10000u
#define RATE_NS 5000000u /* of work, from which a rate is learned */
#define CPU_NS_PER_MFLOP 20000.0 /* until something was learned */
#define GPU_NS_PER_MFLOP 3.0
#define BRIEF_NS 100000u
#define BRIEF_MFLOPS 0.5 /* of one core, about as long */
enum { MOST_PARTS = 16384 };

static uint64_t hash_of(uint64_t hash, const void *bytes, size_t count)
{
    uint64_t word;

    for (size_t i = 0; i < count; i += sizeof word) {
        word = 0;
        memcpy(&word, (const char *)bytes + i, count - i < sizeof word ? count - i : sizeof word);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15;
        hash ^= hash >> 29;
    }
    return hash;
}

uint64_t td_cost_key(uint64_t before, const void *bytes, size_t count)
{
    const uint64_t h = hash_of(before, bytes, count);

    return h ? h : 1;
}

/* All of it; and what multiplications there are in it. */
static double work_of(td_workload what)
{
    return what.operation ? what.operation->cost(what.op, what.position).work_mflop : what.mflop;
}

static double mflop_of(td_workload what)
{
    return what.operation ? what.operation->cost(what.op, what.position).mflop : what.mflop;
}

/* Of all that the time depends on: not of where its views lie. */
static uint64_t key_of(td_workload what)
{
    if (!what.operation)
        return what.key;
    const td_operation_layout *layout = &what.operation->layout;
    const uint32_t others[2] = {layout->number, what.position};
    tandem_operands op;
    uint64_t h;

    memcpy(&op, what.op, layout->bytes);
    for (uint32_t i = 0; i < layout->view_count; i++) {
        tandem_view *view = td_view_of(layout, &op, i);

        *view = (tandem_view){.dtype = view->dtype};
    }
    h = hash_of(hash_of(0xcbf29ce484222325, others, sizeof others), &op, layout->bytes);
    return h ? h : 1;
}

uint64_t td_cost_guess(const td_costs *costs, td_workload what)
{
    const uint64_t key = key_of(what);
    double ns = costs->ns_per_mflop > 0 ? costs->ns_per_mflop : costs->is_gpu ? GPU_NS_PER_MFLOP : CPU_NS_PER_MFLOP;

    if (costs->keys[key % TD_COSTS] == key)
        return costs->best_ns[key % TD_COSTS];
    ns = ns * work_of(what) + LEAST_GUESS_NS;
    return ns > 1e15 ? (uint64_t)1e15 : (uint64_t)ns;
}

bool td_cost_is_brief(const td_costs *costs, td_workload what)
{
    return mflop_of(what) < BRIEF_MFLOPS && td_cost_guess(costs, what) < BRIEF_NS;
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

uint64_t td_cost_part(const td_costs *costs, td_workload what, td_workload part)
{
    const double share = work_of(part) / work_of(what);

    return LEAST_GUESS_NS + (uint64_t)((double)td_cost_guess(costs, what) * share);
}

uint64_t td_cost_learn(td_costs *costs, td_workload what, uint64_t begin_ns, uint64_t end_ns, uint64_t held_ns, bool alone,
                       uint64_t guess)
{
    const uint64_t key = key_of(what), took = end_ns - begin_ns - held_ns;
    uint64_t *best = &costs->best_ns[key % TD_COSTS];

    learn_rate(costs, work_of(what), begin_ns, end_ns, took);
    if (alone && costs->keys[key % TD_COSTS] != key) {
        costs->keys[key % TD_COSTS] = key;
        *best = took;
    } else if (alone) {
        *best = took < *best ? took : *best + (took - *best) / 16; /* clocks fall, too */
    }
    return alone || took < guess ? took : guess;
}

uint32_t td_cost_cuts(const td_costs *costs, td_workload what, uint64_t most_ns, uint32_t *parts)
{
    const uint64_t guess = td_cost_guess(costs, what);
    const uint64_t count = guess / most_ns + (guess % most_ns != 0);
    const uint32_t cuts = count > MOST_PARTS ? MOST_PARTS : (uint32_t)count;

    *parts = cuts > 1 && what.operation && what.operation->split ? what.operation->split(what.op, cuts) : 1;
    return cuts > 1 ? cuts : 1;
}
