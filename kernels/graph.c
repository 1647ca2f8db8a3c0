/* Graphs in the making. See graph.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/graph.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { FIRST_NAME_SLOTS = 64 };

const char *const td_role_names[TD_ROLES] = {"input",   "output",    "weight", "state",
                                             "uniform", "temporary", "cache"};

td_graph *td_graph_create(void)
{
    return calloc(1, sizeof(td_graph));
}

void td_graph_destroy(td_graph **graph)
{
    if (*graph)
        td_arena_free(&(*graph)->memory);
    free(*graph);
    *graph = NULL;
}

/* --- What is wrong --- */

void td_graph_fail(td_graph *graph, tandem_status status, const char *format, ...)
{
    va_list args;

    if (graph->status != TANDEM_OK)
        return;
    graph->status = status;
    va_start(args, format);
    td_text_list(graph->why, sizeof graph->why, format, args);
    va_end(args);
}

static void no_memory(td_graph *graph)
{
    td_graph_fail(graph, TANDEM_ERROR_NOMEM,
                  "no memory for a graph of %" PRIu32 " nodes and %" PRIu32 " tensors",
                  graph->node_count, graph->tensor_count);
}

#define WRONG(...) td_graph_fail(graph, TANDEM_ERROR_ARG, __VA_ARGS__)

/* --- Memory --- */

/* A copy of a text; NULL where there is no memory, which is noted. */
static const char *keep(td_graph *graph, const char *text)
{
    const char *copy = td_arena_text(&graph->memory, text, strlen(text));
    if (!copy)
        no_memory(graph);
    return copy;
}

/* The same of an expression that is right; NULL with the reason. */
static const char *keep_expression(td_graph *graph, const char *text, bool *constant, char *why,
                                   size_t why_bytes)
{
    if (td_expression_check(text, graph->numbers, graph->number_count, constant, why, why_bytes) !=
        TANDEM_OK)
        return NULL;
    why[0] = 0;
    return keep(graph, text);
}

#define GROW(array, count)                                                                         \
    td_arena_grow(&graph->memory, array, count, sizeof *(array), _Alignof(uint64_t))

/* --- Numbers --- */

void td_graph_add_number(td_graph *graph, const char *name, uint64_t most)
{
    if (graph->status != TANDEM_OK)
        return;
    if (graph->number_count == TD_GRAPH_NUMBERS)
        WRONG("numbers: more than %d", TD_GRAPH_NUMBERS);
    else if (strlen(name) >= TD_GRAPH_NAME_BYTES || !td_number_name(name))
        WRONG("numbers: \"" TD_NAME "\" is no name for one: letters, digits and _", TD_NAMED(name));
    else if (most < 1 || most > TD_MOST_DIMENSION)
        WRONG("numbers.%s: the most is %" PRIu64 "; it must be 1 to %d", name, most,
              TD_MOST_DIMENSION);
    for (uint32_t i = 0; i < graph->number_count; i++)
        if (!strcmp(graph->numbers[i].name, name))
            WRONG("numbers.%s: is there twice", name);
    if (graph->status != TANDEM_OK)
        return;
    td_number *numbers = GROW(graph->numbers, graph->number_count);
    if (!numbers) {
        no_memory(graph);
        return;
    }
    graph->numbers = numbers;
    numbers[graph->number_count] = (td_number){keep(graph, name), (uint32_t)most};
    graph->number_count++;
}

/* --- Tensors --- */

static uint32_t hash_of(const char *name)
{
    uint32_t hash = 2166136261u;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash;
}

/* Where a name's index is, or would be. */
static uint32_t *slot_of(const td_graph *graph, const char *name)
{
    uint32_t at = hash_of(name) % graph->name_slots;
    while (graph->names[at] && strcmp(graph->tensors[graph->names[at] - 1].name, name) != 0)
        at = (at + 1) % graph->name_slots;
    return &graph->names[at];
}

static bool is_read_from(const td_graph *graph, uint32_t tensor, uint32_t first)
{
    for (uint32_t i = first; i < graph->node_count; i++)
        for (uint32_t v = 0; v < graph->nodes[i].view_count; v++)
            if (graph->nodes[i].views[v].tensor == tensor)
                return true;
    return false;
}

bool td_graph_feeds_next(const td_graph *graph, uint32_t node)
{
    const td_graph_node *of = &graph->nodes[node];

    for (uint32_t v = 0; v < of->view_count; v++) {
        const td_graph_tensor *tensor = &graph->tensors[of->views[v].tensor];

        if (!of->operation->layout.views[of->views[v].view].written || tensor->role == TD_ROLE_CACHE)
            continue;
        if (tensor->role != TD_ROLE_TEMPORARY || is_read_from(graph, of->views[v].tensor, node + 2))
            return false;
    }
    return true;
}

uint32_t td_graph_find_tensor(const td_graph *graph, const char *name)
{
    return graph->names ? *slot_of(graph, name) - 1 : UINT32_MAX;
}

/* Room for one name more, in a table that is never more than half full. */
static bool make_names(td_graph *graph)
{
    if (graph->name_slots && graph->tensor_count < graph->name_slots / 2)
        return true;
    const uint32_t slots = graph->name_slots ? 2 * graph->name_slots : FIRST_NAME_SLOTS;
    uint32_t *names = td_arena_take(&graph->memory, slots * sizeof *names, _Alignof(uint32_t));
    if (!names) {
        no_memory(graph);
        return false;
    }
    memset(names, 0, slots * sizeof *names);
    graph->names = names;
    graph->name_slots = slots;
    for (uint32_t i = 0; i < graph->tensor_count; i++)
        *slot_of(graph, graph->tensors[i].name) = i + 1;
    return true;
}

static bool is_binding(uint32_t role)
{
    return role == TD_ROLE_INPUT || role == TD_ROLE_OUTPUT;
}

/* From run to run, of whatever sizes. */
static bool is_kept(uint32_t role)
{
    return role == TD_ROLE_WEIGHT || role == TD_ROLE_STATE || role == TD_ROLE_CACHE;
}

static void check_tensor(td_graph *graph, const char *name, td_role role, uint32_t dtype,
                         uint32_t dimensions)
{
    if (graph->tensor_count == TD_GRAPH_TENSORS)
        WRONG("tensors: more than %d", TD_GRAPH_TENSORS);
    else if (!name[0] || strlen(name) >= TD_GRAPH_NAME_BYTES)
        WRONG("tensors: \"" TD_NAME "\" is no name for one: 1 to %d bytes", TD_NAMED(name),
              TD_GRAPH_NAME_BYTES - 1);
    else if (td_graph_find_tensor(graph, name) != UINT32_MAX)
        WRONG("tensors[\"%s\"]: is there twice", name);
    else if ((uint32_t)role >= TD_ROLES)
        WRONG("tensors[\"%s\"].role: %d is none", name, (int)role);
    else if (!td_dtype_of(dtype).bytes)
        WRONG("tensors[\"%s\"].dtype: %" PRIu32 " is none", name, dtype);
    else if (dimensions < 1 || dimensions > 4)
        WRONG("tensors[\"%s\"].shape: has %" PRIu32 " dimensions; it must have 1 to 4", name,
              dimensions);
    else if (is_binding(role) && graph->binding_count == TD_GRAPH_BINDINGS)
        WRONG("tensors[\"%s\"]: is one more than %d inputs and outputs", name, TD_GRAPH_BINDINGS);
}

void td_graph_add_tensor(td_graph *graph, const char *name, td_role role, uint32_t dtype,
                         const char *const *shape, uint32_t dimensions)
{
    td_graph_tensor tensor = {
        .role = role, .dtype = dtype, .dimensions = dimensions, .writer = UINT32_MAX};
    if (graph->status != TANDEM_OK || !make_names(graph))
        return;
    check_tensor(graph, name, role, dtype, dimensions);
    for (uint32_t i = 0; i < dimensions && graph->status == TANDEM_OK; i++) {
        char why[TD_GRAPH_WHY_BYTES];
        bool constant;
        tensor.shape[i] = keep_expression(graph, shape[i], &constant, why, sizeof why);
        if (!tensor.shape[i])
            WRONG("tensors[\"%s\"].shape[%" PRIu32 "]: %s", name, i, why);
        else if (!constant && is_kept(role))
            WRONG("tensors[\"%s\"].shape[%" PRIu32
                  "]: \"%s\" changes with a number; that of a %s must not",
                  name, i, shape[i], td_role_names[role]);
    }
    if (graph->status != TANDEM_OK)
        return;
    td_graph_tensor *tensors = GROW(graph->tensors, graph->tensor_count);
    tensor.name = tensors ? keep(graph, name) : NULL;
    if (!tensor.name) {
        no_memory(graph);
        return;
    }
    uint32_t *slot = slot_of(graph, name);
    graph->tensors = tensors;
    tensors[graph->tensor_count] = tensor;
    *slot = ++graph->tensor_count;
    graph->binding_count += is_binding(role);
}

/* --- Nodes --- */

void td_graph_add_node(td_graph *graph, uint32_t operation)
{
    if (graph->status != TANDEM_OK)
        return;
    const td_operation *of = td_operation_find(operation);
    if (graph->node_count == TD_GRAPH_NODES)
        WRONG("nodes: more than %d", TD_GRAPH_NODES);
    else if (!of || of->internal)
        WRONG("nodes[%" PRIu32 "].operation: %" PRIu32 " is none", graph->node_count, operation);
    if (graph->status != TANDEM_OK)
        return;
    td_graph_node *nodes = GROW(graph->nodes, graph->node_count);
    if (!nodes) {
        no_memory(graph);
        return;
    }
    graph->nodes = nodes;
    nodes[graph->node_count++] = (td_graph_node){.operation = of};
}

/* The last one, which what belongs to a node is added to; NULL where something is wrong, or there
 * is none. */
static td_graph_node *last_node(td_graph *graph)
{
    if (graph->status == TANDEM_OK && !graph->node_count)
        WRONG("nodes: there is none yet");
    return graph->status == TANDEM_OK ? &graph->nodes[graph->node_count - 1] : NULL;
}

static const td_field *find_field(const td_operation *operation, const char *name)
{
    for (int i = 0; i < TD_MAX_FIELDS && operation->fields[i].name; i++)
        if (!strcmp(operation->fields[i].name, name))
            return &operation->fields[i];
    return NULL;
}

void td_graph_set(td_graph *graph, const char *name, const char *text)
{
    td_graph_node *node = last_node(graph);
    const td_field *field = node ? find_field(node->operation, name) : NULL;
    const uint32_t at = graph->node_count - 1;
    char why[TD_GRAPH_WHY_BYTES] = "is no decimal number";
    const char *kept = NULL;
    bool constant;
    float value;

    if (!node)
        return;
    if (!field)
        WRONG("nodes[%" PRIu32 "]: %s has no number \"" TD_NAME "\"", at,
              node->operation->layout.name, TD_NAMED(name));
    for (uint32_t i = 0; i < node->value_count; i++)
        if (node->values[i].field == field)
            WRONG("nodes[%" PRIu32 "].%s: is there twice", at, name);
    if (graph->status != TANDEM_OK)
        return;
    if (!field->is_float)
        kept = keep_expression(graph, text, &constant, why, sizeof why);
    else if (td_graph_decimal(text, &value))
        kept = keep(graph, text);
    if (!kept)
        WRONG("nodes[%" PRIu32 "].%s: %s", at, name, why);
    td_graph_value *values = GROW(node->values, node->value_count);
    if (!values)
        no_memory(graph);
    if (graph->status != TANDEM_OK)
        return;
    node->values = values;
    values[node->value_count++] = (td_graph_value){field, kept};
}

static uint32_t find_view(const td_operation_layout *layout, const char *name)
{
    for (uint32_t i = 0; i < layout->view_count; i++)
        if (!strcmp(layout->views[i].name, name))
            return i;
    return UINT32_MAX;
}

/* What the view does to its tensor: a role that it must not, or a second writer. */
static void note_use(td_graph *graph, const td_graph_view *view)
{
    const uint32_t node = graph->node_count - 1;
    const td_view_layout *as = &graph->nodes[node].operation->layout.views[view->view];
    td_graph_tensor *tensor = &graph->tensors[view->tensor];
    const char *const where = as->name;

    tensor->used = true;
    if (!as->written)
        return;
    if (tensor->role == TD_ROLE_INPUT || tensor->role == TD_ROLE_WEIGHT ||
        tensor->role == TD_ROLE_UNIFORM)
        WRONG("nodes[%" PRIu32 "].views.%s: writes \"%s\", whose role is %s", node, where,
              tensor->name, td_role_names[tensor->role]);
    else if ((as->written == TD_WRITES_SOME) != (tensor->role == TD_ROLE_CACHE))
        WRONG("nodes[%" PRIu32 "].views.%s: writes %s of \"%s\", whose role is %s", node, where,
              as->written == TD_WRITES_SOME ? "some rows" : "all", tensor->name,
              td_role_names[tensor->role]);
    else if (tensor->writer != UINT32_MAX && tensor->role != TD_ROLE_CACHE)
        WRONG("nodes[%" PRIu32 "].views.%s: writes \"%s\", which nodes[%" PRIu32 "] writes", node,
              where, tensor->name, tensor->writer);
    tensor->writer = node;
}

void td_graph_set_view(td_graph *graph, const char *name, const char *tensor, const char *offset,
                       const char *const strides[3])
{
    static const char *const axes[3] = {"batch", "head", "row"};
    td_graph_node *node = last_node(graph);
    const uint32_t at = graph->node_count - 1;
    td_graph_view view = {.tensor = td_graph_find_tensor(graph, tensor)};
    char why[TD_GRAPH_WHY_BYTES];
    bool constant;

    if (!node)
        return;
    view.view = find_view(&node->operation->layout, name);
    if (view.view == UINT32_MAX)
        WRONG("nodes[%" PRIu32 "].views: %s has no view \"" TD_NAME "\"", at,
              node->operation->layout.name, TD_NAMED(name));
    else if (view.tensor == UINT32_MAX)
        WRONG("nodes[%" PRIu32 "].views.%s: no tensor \"" TD_NAME "\"", at, name, TD_NAMED(tensor));
    for (uint32_t i = 0; i < node->view_count; i++)
        if (node->views[i].view == view.view)
            WRONG("nodes[%" PRIu32 "].views.%s: is there twice", at, name);
    if (offset && graph->status == TANDEM_OK &&
        !(view.offset = keep_expression(graph, offset, &constant, why, sizeof why)))
        WRONG("nodes[%" PRIu32 "].views.%s.offset: %s", at, name, why);
    for (int i = 0; i < 3 && strides && graph->status == TANDEM_OK; i++) {
        view.strides[i] = keep_expression(graph, strides[i], &constant, why, sizeof why);
        if (!view.strides[i])
            WRONG("nodes[%" PRIu32 "].views.%s.strides.%s: %s", at, name, axes[i], why);
    }
    if (graph->status != TANDEM_OK)
        return;
    td_graph_view *views = GROW(node->views, node->view_count);
    if (!views) {
        no_memory(graph);
        return;
    }
    node->views = views;
    views[node->view_count++] = view;
    note_use(graph, &view);
}

/* --- The end --- */

/* That a view's tensor is there by the time that it is read. State, caches and what a run brings
 * always are. */
static void check_read(td_graph *graph, uint32_t node, const td_graph_view *view)
{
    const td_view_layout *as = &graph->nodes[node].operation->layout.views[view->view];
    const td_graph_tensor *tensor = &graph->tensors[view->tensor];

    if (as->written || (tensor->role != TD_ROLE_OUTPUT && tensor->role != TD_ROLE_TEMPORARY))
        return;
    if (tensor->writer == UINT32_MAX)
        WRONG("nodes[%" PRIu32 "].views.%s: reads \"%s\", which no node writes", node, as->name,
              tensor->name);
    else if (tensor->writer >= node)
        WRONG("nodes[%" PRIu32 "].views.%s: reads \"%s\", which nodes[%" PRIu32
              "] writes: nodes are computed in their order",
              node, as->name, tensor->name, tensor->writer);
}

static void check_node(td_graph *graph, uint32_t at)
{
    const td_graph_node *node = &graph->nodes[at];
    const td_operation_layout *layout = &node->operation->layout;
    bool there[TD_MAX_VIEWS] = {false};

    for (uint32_t i = 0; i < node->view_count; i++) {
        there[node->views[i].view] = true;
        check_read(graph, at, &node->views[i]);
    }
    for (uint32_t i = 0; i < layout->view_count; i++)
        if (!there[i] && !layout->views[i].optional)
            WRONG("nodes[%" PRIu32 "].views: %s needs \"%s\"", at, layout->name,
                  layout->views[i].name);
}

tandem_status td_graph_end(td_graph *graph, char *why, size_t why_bytes)
{
    if (!graph->node_count)
        WRONG("nodes: there is none");
    for (uint32_t i = 0; i < graph->node_count && graph->status == TANDEM_OK; i++)
        check_node(graph, i);
    for (uint32_t i = 0; i < graph->tensor_count && graph->status == TANDEM_OK; i++) {
        const td_graph_tensor *tensor = &graph->tensors[i];

        if (!tensor->used)
            WRONG("tensors[\"%s\"]: no node has it", tensor->name);
        else if (tensor->role == TD_ROLE_OUTPUT && tensor->writer == UINT32_MAX)
            WRONG("tensors[\"%s\"]: is an output, and no node writes it", tensor->name);
    }
    if (graph->status != TANDEM_OK)
        td_text(why, why_bytes, "%s", graph->why);
    return graph->status;
}

/* --- Decimal numbers --- */

/* Digits as a number and how often it is multiplied by ten: beyond 18 of them the rest do not
 * matter for a float. */
static const char *read_digits(const char *at, uint64_t *digits, int *exponent, bool fraction)
{
    for (; *at >= '0' && *at <= '9'; at++) {
        const bool counts = *digits < UINT64_C(100000000000000000);
        if (counts)
            *digits = *digits * 10 + (uint64_t)(*at - '0');
        *exponent += fraction ? -counts : !counts;
    }
    return at;
}

bool td_graph_decimal(const char *text, float *value)
{
    const bool negative = *text == '-';
    const char *begin = text + negative, *at;
    uint64_t digits = 0;
    int exponent = 0, by = 0;

    if (strlen(text) >= TD_EXPRESSION_BYTES)
        return false;
    at = read_digits(begin, &digits, &exponent, false);
    if (at == begin)
        return false;
    if (*at == '.') {
        begin = at + 1;
        at = read_digits(begin, &digits, &exponent, true);
        if (at == begin)
            return false;
    }
    if (*at == 'e' || *at == 'E') {
        const bool down = at[1] == '-';
        begin = at + 1 + (down || at[1] == '+');
        for (at = begin; *at >= '0' && *at <= '9'; at++)
            by = by < 1000 ? by * 10 + *at - '0' : by;
        if (at == begin)
            return false;
        exponent += down ? -by : by;
    }
    *value = (float)((long double)digits * powl(10, exponent));
    *value = negative ? -*value : *value;
    return !*at && isfinite(*value);
}
