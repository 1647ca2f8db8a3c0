/* A program: a graph planned for some sizes and a device. It is run again and again with other
 * bindings, and nothing in it changes but the pointers to them.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A program is one plan, which executors run as any other. Its views are the blocks that a model
 * and a run bring, in the order of td_program_view, then the bindings. All temporaries of the graph
 * and the operations' own scratch are one scratch, shared by lifetime over the whole program, and
 * barriers are derived over the whole of it.
 *
 * What is written is written when a run ends, and not if it is given up: state always, outputs
 * where the target says `commit`. Such a program ends in `claim` and copies (kernels/commit.h).
 * Whoever ends a run before its time has td_control.stale set before `cancel`: else its claim would
 * take what was not computed.
 */
#ifndef TANDEM_KERNELS_PROGRAM_H
#define TANDEM_KERNELS_PROGRAM_H

#include "kernels/graph.h"
#include "kernels/target.h"

/* Views of a program's plan. Each begins at a multiple of TD_PROGRAM_ALIGN, a binding of
 * TD_BINDING_ALIGN: plans are made for what begins so. Of those that are empty the address does not
 * matter. */
typedef enum td_program_view {
    TD_PROGRAM_WEIGHTS = 0, /* a model's, read only */
    TD_PROGRAM_STATE = 1,   /* an instance's, with its caches: zeros at first, no two runs at once */
    TD_PROGRAM_UNIFORM = 2, /* a run's small numbers: a copy for each frame in flight */
    TD_PROGRAM_BINDINGS = 3 /* binding 0, the next is 1 */
} td_program_view;
enum {
    TD_PROGRAM_ALIGN = 256,
    TD_BINDING_ALIGN = 16,
    TD_PROGRAM_VIEWS = TD_PROGRAM_BINDINGS + TD_GRAPH_BINDINGS, /* at most */
    TD_PROGRAM_RECORDS = 16384                                  /* at most */
};

/* A tensor for the sizes at hand. */
typedef struct td_program_tensor {
    const char *name;
    uint32_t role, dtype; /* td_role, tandem_dtype */
    uint32_t dimensions;
    uint32_t shape[4]; /* batch, head, row, channel: the last `dimensions` are the graph's */
    uint32_t view;     /* of the plan's; UINT32_MAX: it is a temporary, in scratch */
    uint64_t offset;   /* in its view */
    uint64_t bytes;
} td_program_tensor;

/* A node's records, and what it takes: floating-point operations of matrix products, bytes of its
 * views. */
typedef struct td_program_node {
    const char *operation;
    uint32_t first_record, record_count;
    uint32_t precision; /* that its plan has; AUTO: it has none */
    uint32_t reserved;  /* 0 */
    double mflop;
    uint64_t bytes;
} td_program_node;

/* What a run leaves of a layer, a node of attention, where the target says `sample_rows`: some rows of
 * each head as it has computed them, and as they are in other precisions, from the same operands.
 * Rows are spread over all there are; the last ones where it is causal. [batch, heads, rows, channels],
 * as the layer writes them, own ones as float32, in a view of their own behind the last binding, of
 * sample_bytes, the same ones whatever precisions layers have. A graph with all the bindings that there
 * may be has none. */
enum { TD_SAMPLE_OWN = 0 /* times two */, TD_SAMPLE_EXACT = TANDEM_PRECISION_F16, TD_SAMPLES = 4 };
typedef struct td_program_sample {
    uint32_t node, precision;   /* that it has */
    uint32_t can;               /* a bit each, 1 << tandem_precision: which it may have */
    uint32_t dtype;             /* of all but the own ones */
    uint32_t batch, heads, rows, channels, reserved;
    uint64_t offset[TD_SAMPLES]; /* own, or by tandem_precision; UINT64_MAX: it is not there */
} td_program_sample;

/* A place in a record's parameters that changes with a view's address: which relocation of which
 * record. */
typedef struct td_patch {
    uint32_t record, reloc;
} td_patch;

typedef struct td_program {
    const td_plan *plan;
    const td_program_tensor *tensors; /* in the graph's order */
    const td_program_node *nodes;
    const uint32_t *bindings; /* which tensor each is */
    const td_patch *patches;  /* view i has those from first_patch[i] to first_patch[i + 1] */
    const uint32_t *first_patch;
    const td_program_sample *samples;
    uint32_t tensor_count, node_count, binding_count, patch_count, sample_count;
    uint64_t weight_bytes, state_bytes, uniform_bytes; /* of the views; scratch is the plan's */
    uint64_t sample_bytes; /* 0: no layer is sampled, and there is no view for it */
    uint32_t chain; /* how many steps wait for each other: one more than barriers */
    bool claims;    /* it ends in `claim` and copies */
    td_arena memory;
    uint32_t users;
} td_program;

/* numbers: the graph's, in its order; each is 1 to its most. *program has one user. ARG, naming the
 * node or tensor and what is wrong with it for these numbers; UNSUPPORTED where the device has no
 * kernel for a node; NOMEM. */
tandem_status td_program_build(const td_graph *graph, const uint32_t *numbers,
                               const td_target *target, const td_program **program, char *why,
                               size_t why_bytes);

/* The tensors of some roles (bits, 1 << td_role) for these numbers, without a plan: shapes, bytes,
 * and where they lie in the block of their role. *tensors has as many as the graph; those of other
 * roles are zeros, and names are the graph's. numbers: NULL where shapes of these roles name none,
 * as those of weights and state. ARG, naming the tensor or number. */
tandem_status td_program_tensors(const td_graph *graph, const uint32_t *numbers, uint32_t roles,
                                 td_program_tensor *tensors, char *why, size_t why_bytes);

/* How a tensor lies by itself, which is how bindings do: channels, rows, heads, batches one after the
 * other; codes as tandem_codes_bytes() has them. */
tandem_view td_program_dense(uint32_t dtype, const uint32_t shape[4]);

/* As those of plans. Threads: any. */
const td_program *td_program_use(const td_program *program);
void td_program_drop(const td_program **program);

/* How long it takes at least, however fast kernels are: microseconds of records that wait for each
 * other, as measured on an H200 with tiny ones. */
double td_program_floor_us(const td_program *program, bool by_graph);

#endif
