/* What jobs take on the device, learned from those that have ended.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_COSTS_H
#define TANDEM_DAEMON_COSTS_H

#include "kernels/operation.h"

enum { TD_COSTS = 256 };
typedef struct td_costs {
    uint64_t keys[TD_COSTS], best_ns[TD_COSTS]; /* of a shape: what it takes alone */
    double ns_per_mflop;                        /* of shapes that were never alone; 0: nothing was learned */
    uint64_t busy_ns, covered_ns;               /* for that: since it was learned last, and up to when */
    double mflops;
    bool is_gpu;
} td_costs;
/* Of an operation, or a part of one: `position` is td_target's; or of a network, which is not cut. */
typedef struct td_workload {
    const td_operation *operation; /* NULL: a network, as `key` and `mflop` say */
    const tandem_operands *op;
    uint32_t position;
    uint64_t key;
    double mflop;
} td_workload;
/* Of more bytes that the time depends on, with those before; never 0. */
uint64_t td_cost_key(uint64_t before, const void *bytes, size_t count);
uint64_t td_cost_guess(const td_costs *costs, td_workload what);
/* Whether to wake another thread for it, or several, takes longer than it does. */
bool td_cost_is_brief(const td_costs *costs, td_workload what);
/* And of one part of it. */
uint64_t td_cost_part(const td_costs *costs, td_workload what, td_workload part);
/* A job ran from then to then, but for `held_ns`, alone or beside others, and was guessed at before: what it is charged,
 * which is no more for having run beside them. */
uint64_t td_cost_learn(td_costs *costs, td_workload what, uint64_t begin_ns, uint64_t end_ns, uint64_t held_ns, bool alone,
                       uint64_t guess);
/* The count to ask an operation's split and part for, so that parts take at most `most_ns`, as far as it can be cut; and into
 * how many parts that cuts it. 1 part: it cannot be cut, or need not. */
uint32_t td_cost_cuts(const td_costs *costs, td_workload what, uint64_t most_ns, uint32_t *parts);

#endif
