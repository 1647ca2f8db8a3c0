/* Precision plans. See precision_plan.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/model/precision_plan.h"

#include <inttypes.h>

#include "kernels/model/json.h"

enum { PLAN_VALUES = 1 << 17 };

typedef struct reader {
    td_json json;
    const td_graph *graph;
    uint8_t *precisions;
    char *why;
    size_t why_bytes;
} reader;

#define WRONG(...) (td_text(r->why, r->why_bytes, __VA_ARGS__), false)

const char *td_graph_layer_name(const td_graph *graph, uint32_t node)
{
    const td_graph_node *of = node < graph->node_count ? &graph->nodes[node] : NULL;

    for (uint32_t i = 0; of && of->operation->precision_at != TD_NO_PRECISION && i < of->view_count; i++)
        if (of->operation->layout.views[of->views[i].view].written)
            return graph->tensors[of->views[i].tensor].name;
    return NULL;
}

static bool is_a(reader *r, uint32_t at, td_json_type type, const char *where, const char *name)
{
    char which[80];

    td_text(which, sizeof which, "%s%s%s", where, where[0] ? "." : "", name);
    return td_json_is_a(&r->json, at, type, which, r->why, r->why_bytes);
}

/* Which node a layer is: one of the graph's, which has a precision, and writes what the plan says. */
static bool find_node(reader *r, const char *where, const char *number, const char *output, uint32_t *node)
{
    uint64_t value = 0;

    for (const char *c = number; *c; c++) {
        if (*c < '0' || *c > '9')
            return WRONG("%s.node: is " TD_NAME "; it must be a whole number", where, TD_NAMED(number));
        value = value * 10 + (uint64_t)(*c - '0');
        if (value >= r->graph->node_count)
            return WRONG("%s.node: is " TD_NAME "; the graph has %" PRIu32 " nodes", where, TD_NAMED(number),
                         r->graph->node_count);
    }
    *node = (uint32_t)value;
    const char *name = td_graph_layer_name(r->graph, *node);
    if (!name)
        return WRONG("%s.node: is %" PRIu32 ", which is of %s and has no precision", where, *node,
                     r->graph->nodes[*node].operation->layout.name);
    if (strcmp(name, output) != 0)
        return WRONG("%s.output: is \"" TD_NAME "\"; nodes[%" PRIu32 "] writes \"%s\"", where, TD_NAMED(output), *node, name);
    if (r->precisions[*node] != TANDEM_PRECISION_AUTO)
        return WRONG("%s.node: %" PRIu32 " is there twice", where, *node);
    return true;
}

/* What was measured is for people: numbers. */
static bool read_layer(reader *r, uint32_t at, uint32_t index)
{
    static const char *const names[] = {"node",   "output",     "precision",       "similarity",
                                        "cosine", "relative_l1", "worst_head", "worst_similarity"};
    static const char *const precisions[] = {"auto", "f16", "8b", "4b"};
    enum { NODE, OUTPUT, PRECISION, MEASURED, MEMBERS = sizeof names / sizeof *names };
    uint32_t found[MEMBERS], node, which = TANDEM_PRECISION_F16;
    char where[40];

    td_text(where, sizeof where, "layers[%" PRIu32 "]", index);
    if (!td_json_members(&r->json, at, where, names, MEMBERS, MEASURED, found, r->why, r->why_bytes))
        return false;
    for (uint32_t i = 0; i < MEMBERS; i++)
        if (found[i] && !is_a(r, found[i], i == OUTPUT || i == PRECISION ? TD_JSON_STRING : TD_JSON_NUMBER, where, names[i]))
            return false;
    const char *precision = r->json.values[found[PRECISION]].text;
    while (which <= TANDEM_PRECISION_4B && strcmp(precisions[which], precision) != 0)
        which++;
    if (which > TANDEM_PRECISION_4B)
        return WRONG("%s.precision: is \"" TD_NAME "\"; it must be f16, 8b or 4b", where, TD_NAMED(precision));
    if (!find_node(r, where, r->json.values[found[NODE]].text, r->json.values[found[OUTPUT]].text, &node))
        return false;
    r->precisions[node] = (uint8_t)which;
    return true;
}

static bool read_plan(reader *r)
{
    static const char *const names[] = {"tandem", "version", "layers", "min_similarity", "at_most_ms", "ms"};
    enum { TANDEM, VERSION, LAYERS, MEASURED, MEMBERS = sizeof names / sizeof *names };
    static const td_json_type types[] = {TD_JSON_STRING, TD_JSON_NUMBER, TD_JSON_ARRAY,
                                         TD_JSON_NUMBER, TD_JSON_NUMBER, TD_JSON_NUMBER};
    const td_json_value *values = r->json.values;
    uint32_t found[MEMBERS], index = 0;

    if (!td_json_members(&r->json, 0, "the plan", names, MEMBERS, MEASURED, found, r->why, r->why_bytes))
        return false;
    for (uint32_t i = 0; i < MEMBERS; i++)
        if (found[i] && !is_a(r, found[i], types[i], "", names[i]))
            return false;
    if (strcmp(values[found[TANDEM]].text, TD_PRECISION_PLAN_KIND) != 0)
        return WRONG("tandem: is \"" TD_NAME "\"; it must be \"%s\"", TD_NAMED(values[found[TANDEM]].text),
                     TD_PRECISION_PLAN_KIND);
    if (strcmp(values[found[VERSION]].text, "1") != 0)
        return WRONG("version: is " TD_NAME "; it must be %d", TD_NAMED(values[found[VERSION]].text), TD_PRECISION_PLAN_VERSION);
    TD_JSON_EACH (&r->json, found[LAYERS], layer)
        if (!read_layer(r, layer, index++))
            return false;
    return true;
}

tandem_status td_precision_plan_read(const char *text, size_t bytes, const td_graph *graph,
                                     uint8_t *precisions, char *why, size_t why_bytes)
{
    reader r = {.graph = graph, .precisions = precisions, .why = why, .why_bytes = why_bytes};
    tandem_status status =
        td_json_read_within(text, bytes, TD_PRECISION_PLAN_BYTES, PLAN_VALUES, &r.json, why, why_bytes);

    memset(precisions, TANDEM_PRECISION_AUTO, graph->node_count);
    if (status == TANDEM_OK && !read_plan(&r))
        status = TANDEM_ERROR_PROTOCOL;
    td_json_free(&r.json);
    return status;
}
