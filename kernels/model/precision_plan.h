/* Precision plans: which precision each layer of a graph has, as JSON. The format: kernels/PROGRAM.md.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_PRECISION_PLAN_H
#define TANDEM_PRECISION_PLAN_H

#include "kernels/graph.h"

#define TD_PRECISION_PLAN_KIND "precision plan"
enum { TD_PRECISION_PLAN_VERSION = 1, TD_PRECISION_PLAN_BYTES = 4 << 20 /* at most */ };

/* precisions: a tandem_precision for each of the graph's nodes, AUTO where the plan names none.
 * PROTOCOL where the text is no plan, or of another graph, saying what is wrong and where, as
 * `layers[2].output: is "mixed"; nodes[7] writes "o"`; NOMEM. */
tandem_status td_precision_plan_read(const char *text, size_t bytes, const td_graph *graph,
                                     uint8_t *precisions, char *why, size_t why_bytes);

/* The tensor that a node with a precision writes: what such a layer is called. NULL: it is none. */
const char *td_graph_layer_name(const td_graph *graph, uint32_t node);

#endif
