/* A graph: a network as operations on named tensors, for any sizes. kernels/program.h makes it a
 * program for some of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Nodes are computed in their order. Each is an operation, the numbers of its struct, and its views
 * as places in tensors. All that has a size may be an expression (expression.h) of the graph's
 * named numbers: tokens, width, kv_len.
 *
 * A graph is built by the calls below. The first that is given something wrong notes what and
 * where, as `nodes[3].views.w: no tensor "wq"`; those after it do nothing, and td_graph_end() says
 * it.
 */
#ifndef TANDEM_KERNELS_GRAPH_H
#define TANDEM_KERNELS_GRAPH_H

#include "kernels/arena.h"
#include "kernels/expression.h"
#include "kernels/operation.h"

enum {
    TD_GRAPH_NUMBERS = 32,
    TD_GRAPH_TENSORS = 16384,
    TD_GRAPH_NODES = 4096,
    TD_GRAPH_BINDINGS = 64,    /* inputs and outputs together */
    TD_GRAPH_NAME_BYTES = 256, /* with its end */
    TD_GRAPH_WHY_BYTES = 400
};

/* Where a tensor's bytes are. What is written is written by one node, all of it; but caches by any
 * number of nodes, each of them some rows. */
typedef enum td_role {
    TD_ROLE_INPUT = 0,    /* a run brings it: a binding */
    TD_ROLE_OUTPUT = 1,   /* a binding that a node writes */
    TD_ROLE_WEIGHT = 2,   /* the model's */
    TD_ROLE_STATE = 3,    /* an instance's, from run to run: a node that reads it before one has
                             written it has the last run's */
    TD_ROLE_UNIFORM = 4,  /* small things that change from run to run: positions, lengths, seeds */
    TD_ROLE_TEMPORARY = 5, /* of one run */
    TD_ROLE_CACHE = 6      /* an instance's, written in place: what a run has written is there,
                              whether or not that run is given up */
} td_role;
enum { TD_ROLES = 7 };
extern const char *const td_role_names[TD_ROLES]; /* "input" and so on */

typedef struct td_graph_tensor {
    const char *name;
    uint32_t role, dtype; /* td_role, tandem_dtype */
    uint32_t dimensions;  /* 1 to 4: of batch, head, row, channel the last ones; the others are 1 */
    const char *shape[4];
    uint32_t writer;      /* the node that writes it; UINT32_MAX: none */
    bool used;            /* some node has it */
} td_graph_tensor;

/* A number of a node's struct. */
typedef struct td_graph_value {
    const td_field *field;
    const char *text; /* an expression, or a decimal number where the field is a float */
} td_graph_value;

/* A view of a node's. */
typedef struct td_graph_view {
    uint32_t view, tensor;  /* which of the operation's, of the graph's */
    const char *offset;     /* in elements of the tensor; NULL: 0 */
    const char *strides[3]; /* of batch, head, row, likewise; NULL: it lies dense */
} td_graph_view;

typedef struct td_graph_node {
    const td_operation *operation;
    td_graph_value *values;
    td_graph_view *views;
    uint32_t value_count, view_count;
} td_graph_node;

typedef struct td_graph {
    td_number *numbers;
    td_graph_tensor *tensors;
    td_graph_node *nodes;
    uint32_t number_count, tensor_count, node_count, binding_count;
    td_arena memory; /* of all that */
    uint32_t *names; /* which tensor has which name: a hash table of indices + 1, */
    uint32_t name_slots; /* of so many */
    tandem_status status;
    char why[TD_GRAPH_WHY_BYTES];
} td_graph;

/* NULL: no memory. */
td_graph *td_graph_create(void);
void td_graph_destroy(td_graph **graph);

/* A number that a run is prepared with: 1 to `most`, at most TD_MOST_DIMENSION. */
void td_graph_add_number(td_graph *graph, const char *name, uint64_t most);

/* shape: `dimensions` expressions, of no number where the tensor is a weight, state or a cache.
 * Bindings are numbered in their order. */
void td_graph_add_tensor(td_graph *graph, const char *name, td_role role, uint32_t dtype,
                         const char *const *shape, uint32_t dimensions);

/* A node of an operation that clients may name; then what belongs to the last one. Numbers that are
 * not set are 0. */
void td_graph_add_node(td_graph *graph, uint32_t operation);
void td_graph_set(td_graph *graph, const char *field, const char *text);
/* offset: or NULL; strides: of batch, head and row, or NULL. */
void td_graph_set_view(td_graph *graph, const char *view, const char *tensor, const char *offset,
                       const char *const strides[3]);

/* Something wrong that the caller has found: `format` begins with where. */
void td_graph_fail(td_graph *graph, tandem_status status, const char *format, ...)
    __attribute__((format(TD_PRINTF, 3, 4)));

/* The whole of it: that all views that must be there are, that nothing is read before it is
 * written, and that all outputs are written. ARG or NOMEM. A graph that passed is not changed any
 * more. */
tandem_status td_graph_end(td_graph *graph, char *why, size_t why_bytes);

/* Whether what a node writes is for the one behind it alone, but for caches, which stay as they are written. */
bool td_graph_feeds_next(const td_graph *graph, uint32_t node);

/* UINT32_MAX if there is none. */
uint32_t td_graph_find_tensor(const td_graph *graph, const char *name);

/* "1e-5" as a number; false if it is none. Whatever the locale. */
bool td_graph_decimal(const char *text, float *value);

#endif
