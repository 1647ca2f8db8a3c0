/* Graphs in files. See graph_file.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/model/graph_file.h"

#include <inttypes.h>

#include "kernels/model/json.h"

#define WRONG(...) td_graph_fail(r->graph, TANDEM_ERROR_PROTOCOL, __VA_ARGS__)

typedef struct reader {
    td_json json;
    td_graph *graph;
} reader;

static const char *const dtype_names[] = {
    [TANDEM_DTYPE_F16] = "F16",
    [TANDEM_DTYPE_BF16] = "BF16",
    [TANDEM_DTYPE_F32] = "F32",
    [TANDEM_DTYPE_CODES_INT8] = "CODES_INT8",
    [TANDEM_DTYPE_CODES_E4M3] = "CODES_E4M3",
    [TANDEM_DTYPE_I32] = "I32",
    [TANDEM_DTYPE_U8] = "U8",
    [TANDEM_DTYPE_I8] = "I8",
    [TANDEM_DTYPE_Q8_0] = "Q8_0",
    [TANDEM_DTYPE_Q4_0] = "Q4_0",
    [TANDEM_DTYPE_Q4_1] = "Q4_1",
    [TANDEM_DTYPE_Q4_K] = "Q4_K",
    [TANDEM_DTYPE_Q6_K] = "Q6_K",
    [TANDEM_DTYPE_Q5_K] = "Q5_K",
};

/* Which of the names a string is; `count` if none. */
static uint32_t find_name(const char *const *names, uint32_t count, const char *name)
{
    uint32_t i = 0;
    while (i < count && (!names[i] || strcmp(names[i], name) != 0))
        i++;
    return i;
}

/* --- What every part of the text is read by --- */

/* As td_json_is_a() and td_json_members(), which say what is wrong. */
static bool is_a(reader *r, uint32_t at, td_json_type type, const char *where)
{
    char why[TD_GRAPH_WHY_BYTES];
    const bool is = td_json_is_a(&r->json, at, type, where, why, sizeof why);

    if (!is)
        WRONG("%s", why);
    return is;
}

static bool find_members(reader *r, uint32_t of, const char *where, const char *const *names,
                         uint32_t count, uint32_t needed, uint32_t *found)
{
    char why[TD_GRAPH_WHY_BYTES];

    if (!td_json_members(&r->json, of, where, names, count, needed, found, why, sizeof why))
        WRONG("%s", why);
    return r->graph->status == TANDEM_OK;
}

/* An expression: a string, or a number. NULL, with the reason, where it is neither. */
static const char *expression_of(reader *r, uint32_t at, const char *where)
{
    const td_json_value *value = &r->json.values[at];
    if (value->type == TD_JSON_NUMBER || value->type == TD_JSON_STRING)
        return value->text;
    WRONG("%s: is neither a number nor a string", where);
    return NULL;
}

/* Expressions in an array; at most `most` of them. */
static uint32_t expressions_of(reader *r, uint32_t of, const char *where, uint32_t most,
                               const char **texts)
{
    uint32_t count = 0;
    if (!is_a(r, of, TD_JSON_ARRAY, where))
        return 0;
    TD_JSON_EACH (&r->json, of, member) {
        char which[TD_GRAPH_NAME_BYTES + 60];
        td_text(which, sizeof which, "%s[%" PRIu32 "]", where, count);
        if (count == most)
            WRONG("%s: is one more than there may be", which);
        const char *text = count < most ? expression_of(r, member, which) : NULL;
        if (!text)
            return 0;
        texts[count++] = text;
    }
    return count;
}

/* --- Its parts --- */

static void read_number(reader *r, uint32_t at)
{
    const td_json_value *value = &r->json.values[at];
    char where[TD_GRAPH_NAME_BYTES + 40], why[TD_GRAPH_WHY_BYTES];
    int64_t most;

    td_text(where, sizeof where, "numbers." TD_NAME, TD_NAMED(value->name));
    if (!is_a(r, at, TD_JSON_NUMBER, where))
        return;
    if (td_expression_value(value->text, NULL, NULL, 0, &most, why, sizeof why) != TANDEM_OK)
        WRONG("%s: %s", where, why);
    else
        td_graph_add_number(r->graph, value->name, (uint64_t)most);
}

static void read_tensor(reader *r, uint32_t at)
{
    static const char *const names[] = {"role", "dtype", "shape"};
    enum { ROLE, DTYPE, SHAPE, MEMBERS };
    const td_json_value *value = &r->json.values[at], *values = r->json.values;
    const uint32_t dtypes = sizeof dtype_names / sizeof *dtype_names;
    char where[TD_GRAPH_NAME_BYTES + 40], which[TD_GRAPH_NAME_BYTES + 50];
    const char *shape[4] = {NULL};
    uint32_t found[MEMBERS];

    td_text(where, sizeof where, "tensors[\"" TD_NAME "\"]", TD_NAMED(value->name));
    if (!find_members(r, at, where, names, MEMBERS, MEMBERS, found))
        return;
    for (int i = ROLE; i <= DTYPE; i++) {
        td_text(which, sizeof which, "%s.%s", where, names[i]);
        if (!is_a(r, found[i], TD_JSON_STRING, which))
            return;
    }
    const uint32_t role = find_name(td_role_names, TD_ROLES, values[found[ROLE]].text);
    const uint32_t dtype = find_name(dtype_names, dtypes, values[found[DTYPE]].text);
    if (role == TD_ROLES)
        WRONG("%s.role: \"" TD_NAME "\" is none", where, TD_NAMED(values[found[ROLE]].text));
    if (dtype == dtypes)
        WRONG("%s.dtype: \"" TD_NAME "\" is none", where, TD_NAMED(values[found[DTYPE]].text));
    td_text(which, sizeof which, "%s.shape", where);
    const uint32_t dimensions = expressions_of(r, found[SHAPE], which, 4, shape);
    td_graph_add_tensor(r->graph, value->name, (td_role)role, dtype, shape, dimensions);
}

/* A tensor's name, or an object that has it beside offset and strides. */
static void read_view(reader *r, uint32_t node, uint32_t at)
{
    static const char *const names[] = {"tensor", "offset", "strides"};
    enum { TENSOR, OFFSET, STRIDES, MEMBERS };
    const td_json_value *value = &r->json.values[at];
    char where[TD_GRAPH_NAME_BYTES + 60], which[TD_GRAPH_NAME_BYTES + 80];
    const char *strides[3] = {NULL}, *offset = NULL;
    uint32_t found[MEMBERS];

    if (value->type == TD_JSON_STRING) {
        td_graph_set_view(r->graph, value->name, value->text, NULL, NULL);
        return;
    }
    td_text(where, sizeof where, "nodes[%" PRIu32 "].views." TD_NAME, node, TD_NAMED(value->name));
    if (!find_members(r, at, where, names, MEMBERS, 1, found))
        return;
    td_text(which, sizeof which, "%s.tensor", where);
    if (!is_a(r, found[TENSOR], TD_JSON_STRING, which))
        return;
    td_text(which, sizeof which, "%s.offset", where);
    if (found[OFFSET])
        offset = expression_of(r, found[OFFSET], which);
    td_text(which, sizeof which, "%s.strides", where);
    if (found[STRIDES] && expressions_of(r, found[STRIDES], which, 3, strides) != 3)
        WRONG("%s: has not three: of batch, head and row", which);
    td_graph_set_view(r->graph, value->name, r->json.values[found[TENSOR]].text, offset,
                      found[STRIDES] ? strides : NULL);
}

/* The views, an object. */
static void read_views(reader *r, uint32_t node, uint32_t at)
{
    char where[40];
    td_text(where, sizeof where, "nodes[%" PRIu32 "].views", node);
    if (!is_a(r, at, TD_JSON_OBJECT, where))
        return;
    TD_JSON_EACH (&r->json, at, member)
        read_view(r, node, member);
}

/* What all nodes have, then the numbers of this one's operation. */
static void read_node(reader *r, uint32_t node, uint32_t at)
{
    const td_json_value *values = r->json.values;
    uint32_t operation = 0, views = 0;
    char where[TD_GRAPH_NAME_BYTES + 60];

    td_text(where, sizeof where, "nodes[%" PRIu32 "]", node);
    if (!is_a(r, at, TD_JSON_OBJECT, where))
        return;
    TD_JSON_EACH (&r->json, at, member) {
        uint32_t *which = !strcmp(values[member].name, "operation") ? &operation
                          : !strcmp(values[member].name, "views")   ? &views
                                                                    : NULL;
        if (which && *which)
            WRONG("%s.%s: is there twice", where, values[member].name);
        else if (which)
            *which = member;
    }
    if (!operation || !views)
        WRONG("%s: lacks \"%s\"", where, !operation ? "operation" : "views");
    td_text(where, sizeof where, "nodes[%" PRIu32 "].operation", node);
    if (r->graph->status != TANDEM_OK || !is_a(r, operation, TD_JSON_STRING, where))
        return;
    const td_operation *of = td_operation_named(values[operation].text);
    if (!of)
        WRONG("%s: \"" TD_NAME "\" is none", where, TD_NAMED(values[operation].text));
    td_graph_add_node(r->graph, of ? of->layout.number : 0);
    TD_JSON_EACH (&r->json, at, member) {
        td_text(where, sizeof where, "nodes[%" PRIu32 "]." TD_NAME, node,
                TD_NAMED(values[member].name));
        const char *text =
            member == operation || member == views ? NULL : expression_of(r, member, where);
        if (text)
            td_graph_set(r->graph, values[member].name, text);
    }
    read_views(r, node, views);
}

static void read_graph(reader *r)
{
    static const char *const names[] = {"version", "tensors", "nodes", "numbers"};
    enum { VERSION, TENSORS, NODES, NUMBERS, MEMBERS };
    const td_json_value *values = r->json.values;
    uint32_t found[MEMBERS], node = 0;

    if (!find_members(r, 0, "the graph", names, MEMBERS, NUMBERS, found) ||
        !is_a(r, found[VERSION], TD_JSON_NUMBER, "version") ||
        !is_a(r, found[TENSORS], TD_JSON_OBJECT, "tensors") ||
        !is_a(r, found[NODES], TD_JSON_ARRAY, "nodes") ||
        (found[NUMBERS] && !is_a(r, found[NUMBERS], TD_JSON_OBJECT, "numbers")))
        return;
    if (strcmp(values[found[VERSION]].text, "1") != 0)
        WRONG("version: is " TD_NAME "; it must be %d", TD_NAMED(values[found[VERSION]].text),
              TD_GRAPH_VERSION);
    if (found[NUMBERS])
        TD_JSON_EACH (&r->json, found[NUMBERS], member)
            read_number(r, member);
    TD_JSON_EACH (&r->json, found[TENSORS], member)
        read_tensor(r, member);
    TD_JSON_EACH (&r->json, found[NODES], member)
        read_node(r, node++, member);
}

tandem_status td_graph_read(const char *text, size_t bytes, td_graph **graph, char *why,
                            size_t why_bytes)
{
    reader r = {.graph = td_graph_create()};
    tandem_status status;

    *graph = NULL;
    if (!r.graph)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a graph");
    status = td_json_read(text, bytes, &r.json, why, why_bytes);
    if (status == TANDEM_OK) {
        read_graph(&r);
        status = td_graph_end(r.graph, why, why_bytes);
    }
    td_json_free(&r.json);
    if (status != TANDEM_OK)
        td_graph_destroy(&r.graph);
    *graph = r.graph;
    return status == TANDEM_ERROR_ARG ? TANDEM_ERROR_PROTOCOL : status;
}

/* --- Files --- */

/* That the file has a weight as the graph does; its shape names no number. */
static tandem_status check_weight(const td_safetensors *file, const td_graph_tensor *tensor,
                                  char *why, size_t why_bytes)
{
    const td_safetensor *there = td_safetensors_find(file, tensor->name);
    const bool named = there && there->dtype == tensor->dtype;
    const td_dtype of = td_dtype_of(tensor->dtype);
    const bool plain =
        of.elements == 1 && !td_dtype_is_codes(tensor->dtype); /* has a name in safetensors */

    if (!there)
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL,
                       "tensors[\"%s\"]: the file has no such weight", tensor->name);
    if (!named && (plain || there->dtype != TANDEM_DTYPE_U8))
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL,
                       "tensors[\"%s\"].dtype: is %s; in the file it is %s", tensor->name,
                       dtype_names[tensor->dtype], there->dtype_name);
    if (!named) /* its bytes are compared when it is read, as a program knows how many they are */
        return TANDEM_OK;
    if (there->dimensions != tensor->dimensions)
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL,
                       "tensors[\"%s\"].shape: has %" PRIu32
                       " dimensions; in the file it has %" PRIu32,
                       tensor->name, tensor->dimensions, there->dimensions);
    for (uint32_t i = 0; i < tensor->dimensions; i++) {
        char what[TD_GRAPH_WHY_BYTES];
        int64_t size;
        if (td_expression_value(tensor->shape[i], NULL, NULL, 0, &size, what, sizeof what) !=
            TANDEM_OK)
            return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL,
                           "tensors[\"%s\"].shape[%" PRIu32 "]: %s", tensor->name, i, what);
        if (size < 0 || (uint64_t)size != there->shape[i])
            return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL,
                           "tensors[\"%s\"].shape[%" PRIu32 "]: is %" PRId64
                           "; in the file it is %" PRIu64,
                           tensor->name, i, size, there->shape[i]);
    }
    return TANDEM_OK;
}

tandem_status td_graph_file_read(const td_safetensors *file, td_graph **graph, char *why,
                                 size_t why_bytes)
{
    const char *text = td_safetensors_find_text(file, TD_GRAPH_KEY);
    tandem_status status;

    *graph = NULL;
    if (!text)
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "the file's metadata has no \"%s\"",
                       TD_GRAPH_KEY);
    status = td_graph_read(text, strlen(text), graph, why, why_bytes);
    for (uint32_t i = 0; status == TANDEM_OK && i < (*graph)->tensor_count; i++)
        if ((*graph)->tensors[i].role == TD_ROLE_WEIGHT)
            status = check_weight(file, &(*graph)->tensors[i], why, why_bytes);
    if (status != TANDEM_OK)
        td_graph_destroy(graph);
    return status;
}

tandem_status td_graph_file_weights(const td_safetensors *file, const td_program *program, void *to,
                                    char *why, size_t why_bytes)
{
    tandem_status status = TANDEM_OK;

    memset(to, 0, program->weight_bytes);
    for (uint32_t i = 0; i < program->tensor_count && status == TANDEM_OK; i++) {
        const td_program_tensor *tensor = &program->tensors[i];
        const td_safetensor *there =
            tensor->role == TD_ROLE_WEIGHT ? td_safetensors_find(file, tensor->name) : NULL;

        if (tensor->role != TD_ROLE_WEIGHT)
            continue;
        if (!there || there->bytes != tensor->bytes)
            return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL,
                           "tensors[\"%s\"]: has %" PRIu64 " bytes; in the file it has %" PRIu64,
                           tensor->name, tensor->bytes, there ? there->bytes : 0);
        status = td_safetensors_read(file, there, (char *)to + tensor->offset, why, why_bytes);
    }
    return status;
}
