/* Graphs of models: where their weights lie, and what callers ask about them. See network.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/client/network.h"

#include <inttypes.h>
#include <string.h>

#include "kernels/model/graph_file.h"

static tandem_status no_memory(char *why)
{
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for a graph");
}

/* --- A load --- */

static void add_bytes(uint64_t *block, const td_program_tensor *tensor)
{
    *block = td_align_up(tensor->offset + tensor->bytes, TD_PROGRAM_ALIGN);
}

/* Blocks of weights and state, and names. */
static tandem_status measure(td_network *network, char *why)
{
    const td_graph *graph = network->graph;
    const uint32_t roles = 1u << TD_ROLE_WEIGHT | 1u << TD_ROLE_STATE | 1u << TD_ROLE_CACHE;
    const tandem_status status =
        td_program_tensors(graph, NULL, roles, network->tensors, why, TD_WHY_BYTES);

    for (uint32_t i = 0; i < graph->tensor_count && status == TANDEM_OK; i++) {
        const td_program_tensor *tensor = &network->tensors[i];
        const td_graph_tensor *of = &graph->tensors[i];

        if (of->role == TD_ROLE_WEIGHT)
            add_bytes(&network->weight_bytes, tensor);
        if (of->role == TD_ROLE_STATE || of->role == TD_ROLE_CACHE)
            add_bytes(&network->state_bytes, tensor);
        network->uniform_count += of->role == TD_ROLE_UNIFORM;
        if (of->role != TD_ROLE_INPUT && of->role != TD_ROLE_OUTPUT)
            continue;
        td_text(network->binding_names[network->binding_count], TD_BINDING_NAME_BYTES,
                "run.bindings[%" PRIu32 "] (%s)", network->binding_count, of->name);
        network->binding_count++;
    }
    return status == TANDEM_ERROR_ARG ? TANDEM_ERROR_PROTOCOL : status;
}

tandem_status td_network_make(tandem_session *s, td_graph **graph, td_network **out, char *why)
{
    td_network *made = *out = td_session_alloc(s, sizeof *made, 64);

    if (!made)
        return no_memory(why);
    made->graph = *graph;
    *graph = NULL;
    made->tensors = td_session_alloc(s, made->graph->tensor_count * sizeof *made->tensors, 64);
    return made->tensors ? measure(made, why) : no_memory(why);
}

/* What the graph says of a weight is what the file has, but for the bytes of one that the file has
 * no dtype for. */
static tandem_status check_weights(const td_network *network, const td_safetensors *file, char *why)
{
    for (uint32_t i = 0; i < network->graph->tensor_count; i++) {
        const td_program_tensor *tensor = &network->tensors[i];
        const td_graph_tensor *of = &network->graph->tensors[i];
        const td_safetensor *there =
            of->role == TD_ROLE_WEIGHT ? td_safetensors_find(file, of->name) : NULL;

        if (there && there->bytes != tensor->bytes)
            return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_PROTOCOL,
                           "tensors[\"" TD_NAME "\"]: has %" PRIu64
                           " bytes; in the file it has %" PRIu64,
                           TD_NAMED(of->name), tensor->bytes, there->bytes);
    }
    return TANDEM_OK;
}

tandem_status td_network_read(tandem_session *s, const td_safetensors *file, td_network **out,
                              char *why)
{
    td_graph *graph = NULL;
    tandem_status status;

    *out = NULL;
    if (!td_safetensors_find_text(file, TD_GRAPH_KEY))
        return TANDEM_OK;
    status = td_graph_file_read(file, &graph, why, TD_WHY_BYTES);
    if (status == TANDEM_OK)
        status = td_network_make(s, &graph, out, why);
    td_graph_destroy(&graph);
    return status == TANDEM_OK ? check_weights(*out, file, why) : status;
}

void td_network_free(tandem_session *s, td_network *network)
{
    if (!network)
        return;
    if (network->tensors)
        td_session_free(s, network->tensors,
                        network->graph->tensor_count * sizeof *network->tensors);
    td_graph_destroy(&network->graph);
    td_session_free(s, network, sizeof *network);
}

bool td_network_weight(const td_network *network, const char *name, uint64_t *offset)
{
    const uint32_t at = network ? td_graph_find_tensor(network->graph, name) : UINT32_MAX;

    if (at == UINT32_MAX || network->graph->tensors[at].role != TD_ROLE_WEIGHT)
        return false;
    *offset = network->tensors[at].offset;
    return true;
}

/* --- What callers ask --- */

tandem_status td_network_check_numbers(const td_network *network, const uint32_t *numbers,
                                       uint32_t count, const char *where, char *why)
{
    const td_graph *graph = network->graph;

    if (count != graph->number_count)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "%snumber_count is %" PRIu32 "; the network has %" PRIu32 " numbers", where,
                       count, graph->number_count);
    if (count && !numbers)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "%snumbers is NULL", where);
    for (uint32_t i = 0; i < count; i++)
        if (numbers[i] < 1 || numbers[i] > graph->numbers[i].most)
            return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                           "%snumbers[%" PRIu32 "] is %" PRIu32 "; %s must be 1 to %" PRIu32, where,
                           i, numbers[i], graph->numbers[i].name, graph->numbers[i].most);
    return TANDEM_OK;
}

td_model *td_network_find_locked(tandem_session *s, tandem_model model, tandem_status *status,
                                 char *why)
{
    td_model *found = (td_model *)td_table_find_locked(s, TD_KIND_MODEL, model, "model", why);

    *status = TANDEM_ERROR_ARG;
    if (found && found->no_network)
        *status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "model is 0x%" PRIx64 ": %s",
                          model, found->no_network);
    else if (found && found->network)
        *status = TANDEM_OK;
    else if (found)
        td_fail(why, TD_WHY_BYTES, *status,
                "model is 0x%" PRIx64 ", whose file has no graph (\"" TD_GRAPH_KEY
                "\" in its metadata)",
                model);
    return *status == TANDEM_OK ? found : NULL;
}

/* Of a caller's struct, which is to be filled. */
#define CHECK_STRUCT(out, why)                                                                     \
    ((out) ? TD_STRUCT_CHECK(#out, out, why, TD_WHY_BYTES)                                         \
           : td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, #out " is NULL"))

tandem_status tandem_model_info(tandem_session *session, tandem_model model,
                                tandem_network *network)
{
    char why[TD_WHY_BYTES] = "";
    tandem_network known = {0};
    tandem_status status;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    status = CHECK_STRUCT(network, why);
    if (status != TANDEM_OK)
        return td_session_fail(session, __func__, status, why);
    pthread_mutex_lock(&session->lock);
    const td_model *found =
        (td_model *)td_table_find_locked(session, TD_KIND_MODEL, model, "model", why);
    const td_network *of = found ? found->network : NULL;
    if (found && found->no_network)
        td_network_find_locked(session, model, &status, why);
    else
        status = found ? TANDEM_OK : TANDEM_ERROR_ARG;
    if (of)
        known = (tandem_network){.binding_count = of->binding_count,
                                 .uniform_count = of->uniform_count,
                                 .number_count = of->graph->number_count,
                                 .weight_bytes = of->weight_bytes,
                                 .state_bytes = of->state_bytes};
    pthread_mutex_unlock(&session->lock);
    TD_STRUCT_OUT(network, &known);
    return td_session_fail(session, __func__, status, why);
}

static tandem_status check_index(uint32_t index, uint32_t count, const char *what, char *why)
{
    if (index < count)
        return TANDEM_OK;
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                   "index is %" PRIu32 "; the network has %" PRIu32 " %s", index, count, what);
}

tandem_status tandem_model_number(tandem_session *session, tandem_model model, uint32_t index,
                                  tandem_network_number *number)
{
    char why[TD_WHY_BYTES] = "";
    tandem_network_number known = {0};
    const td_model *found;
    tandem_status status;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    status = CHECK_STRUCT(number, why);
    if (status != TANDEM_OK)
        return td_session_fail(session, __func__, status, why);
    pthread_mutex_lock(&session->lock);
    found = td_network_find_locked(session, model, &status, why);
    if (found)
        status = check_index(index, found->network->graph->number_count, "numbers", why);
    if (status == TANDEM_OK) {
        const td_number *of = &found->network->graph->numbers[index];

        known.most = of->most;
        td_text(known.name, sizeof known.name, "%s", of->name);
    }
    pthread_mutex_unlock(&session->lock);
    TD_STRUCT_OUT(number, &known);
    return td_session_fail(session, __func__, status, why);
}

/* A tensor of some roles, the index'th of the graph's that has one of them. */
typedef struct query {
    uint32_t roles, index;
    const uint32_t *numbers; /* or NULL: the most of each */
    uint32_t number_count;
} query;

static uint32_t find_tensor(const td_graph *graph, const query *q)
{
    uint32_t seen = 0, i = 0;

    for (; i < graph->tensor_count; i++)
        if (q->roles >> graph->tensors[i].role & 1 && seen++ == q->index)
            break;
    return i;
}

static uint32_t role_of(uint32_t role)
{
    return role == TD_ROLE_INPUT    ? TANDEM_NETWORK_INPUT
           : role == TD_ROLE_OUTPUT ? TANDEM_NETWORK_OUTPUT
                                    : TANDEM_NETWORK_UNIFORM;
}

static tandem_status describe_tensor(tandem_session *s, const td_graph *graph, const query *q,
                                     tandem_network_tensor *out, char *why)
{
    const uint64_t bytes = graph->tensor_count * sizeof(td_program_tensor);
    td_program_tensor *tensors = td_session_alloc(s, bytes, 64);
    uint32_t most[TD_GRAPH_NUMBERS];
    tandem_status status;

    if (!tensors)
        return no_memory(why);
    for (uint32_t i = 0; i < graph->number_count; i++)
        most[i] = graph->numbers[i].most;
    status = td_program_tensors(graph, q->numbers ? q->numbers : most, q->roles, tensors, why,
                                TD_WHY_BYTES);
    if (status == TANDEM_OK) {
        const td_program_tensor *tensor = &tensors[find_tensor(graph, q)];

        *out = (tandem_network_tensor){.role = role_of(tensor->role),
                                       .dtype = tensor->dtype,
                                       .dimensions = tensor->dimensions,
                                       .bytes = tensor->bytes,
                                       .offset_bytes = tensor->offset};
        memcpy(out->shape, tensor->shape, sizeof out->shape);
        td_text(out->name, sizeof out->name, "%s", tensor->name);
    }
    td_session_free(s, tensors, bytes);
    return status;
}

static tandem_status ask(tandem_session *session, const char *call, tandem_model model,
                         const query *q, tandem_network_tensor *tensor)
{
    const bool uniforms = q->roles >> TD_ROLE_UNIFORM & 1;
    char why[TD_WHY_BYTES] = "";
    tandem_network_tensor known = {0};
    const td_model *found;
    tandem_status status;

    if (!td_session_usable(session, call))
        return TANDEM_ERROR_ARG;
    status = CHECK_STRUCT(tensor, why);
    if (status != TANDEM_OK)
        return td_session_fail(session, call, status, why);
    pthread_mutex_lock(&session->lock);
    found = td_network_find_locked(session, model, &status, why);
    if (found) {
        const td_network *of = found->network;

        status = check_index(q->index, uniforms ? of->uniform_count : of->binding_count,
                             uniforms ? "uniforms" : "inputs and outputs", why);
        if (status == TANDEM_OK && (q->numbers || q->number_count))
            status = td_network_check_numbers(of, q->numbers, q->number_count, "", why);
        if (status == TANDEM_OK)
            status = describe_tensor(session, of->graph, q, &known, why);
    }
    pthread_mutex_unlock(&session->lock);
    TD_STRUCT_OUT(tensor, &known);
    return td_session_fail(session, call, status, why);
}

tandem_status tandem_model_binding(tandem_session *session, tandem_model model,
                                   const uint32_t *numbers, uint32_t number_count, uint32_t index,
                                   tandem_network_tensor *tensor)
{
    const query q = {1u << TD_ROLE_INPUT | 1u << TD_ROLE_OUTPUT, index, numbers, number_count};

    return ask(session, __func__, model, &q, tensor);
}

tandem_status tandem_model_uniform(tandem_session *session, tandem_model model,
                                   const uint32_t *numbers, uint32_t number_count, uint32_t index,
                                   tandem_network_tensor *tensor)
{
    const query q = {1u << TD_ROLE_UNIFORM, index, numbers, number_count};

    return ask(session, __func__, model, &q, tensor);
}
