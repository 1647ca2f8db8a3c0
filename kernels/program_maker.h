/* Programs in the making, for the files that make them. See program.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   program.c          numbers, tensors, nodes, and all of it in turn
 *   program_records.c  records of a node's plan as the program's
 *   program_samples.c  nodes beside those of the graph, which tell how good layers are
 *   program_end.c      what is written when a run ends, and patches
 */
#ifndef TANDEM_KERNELS_PROGRAM_MAKER_H
#define TANDEM_KERNELS_PROGRAM_MAKER_H

#include "kernels/builder.h"
#include "kernels/program.h"

/* Where a tensor's bytes are for nodes: before the node that writes it, and from then on. They
 * differ where what is written is a draft, which becomes the tensor at the end. */
typedef struct location {
    uint32_t base, view; /* td_base */
    uint64_t offset;
} location;

typedef struct maker {
    const td_graph *graph;
    const uint32_t *numbers;
    td_target target; /* of each node: nothing commits but the program */
    bool commit;      /* outputs, too */
    td_program *program;
    td_program_tensor *tensors;
    location *before, *behind;
    td_program_node *nodes;
    uint32_t *bindings;
    td_program_sample *samples;
    td_plan *plan, part; /* the program's, a node's */
    td_builder at;
    char *why;
    size_t why_bytes;
} maker;

/* Where a node finds what its operation's plan names. */
typedef struct node_places {
    location views[TD_MAX_VIEWS], scratch;
} node_places;

tandem_status td_program_no_memory(const maker *m);

/* The records of m->part, with what they name where it is found, behind those that are there. */
tandem_status td_program_append(maker *m, uint32_t node, const node_places *places);

/* A layer's samples, behind the node that computes it, whose operands and places these are. */
tandem_status td_program_add_sample(maker *m, uint32_t node, const tandem_operands *op,
                                    const node_places *places);

tandem_status td_program_make_end(maker *m);
tandem_status td_program_make_patches(maker *m);

#endif
