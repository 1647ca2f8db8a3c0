/* Instances of networks, and what they have for some numbers. See network.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * To prepare is to plan, which takes long, so that is done without the lock: meanwhile the model
 * and the instance are in use, and their destruction waits. Scratch is the slots' own (scratch.c), as
 * that of all jobs: each slot gets as much as a run needs.
 */
#include <inttypes.h>
#include <string.h>

#include "engine_plugin/client/network.h"
#include "interop/wire/wire.h"
#include "kernels/model/precision_plan.h"

/* --- Memory --- */

/* As a mem that its owner has made: it counts. */
static void count_mem_locked(tandem_session *s, const td_mem *mem)
{
    s->mem_host_bytes += mem->host_share;
    s->mem_device_bytes += mem->device_share;
}

/* Accepts NULL. */
static void free_counted(tandem_session *s, td_mem *mem)
{
    if (!mem)
        return;
    pthread_mutex_lock(&s->lock);
    s->mem_host_bytes -= mem->host_share;
    s->mem_device_bytes -= mem->device_share;
    pthread_mutex_unlock(&s->lock);
    td_mem_leave(s, mem);
}

/* What was prepared, once no job uses it. */
static void free_prepared(tandem_session *s, td_prepared *prepared)
{
    free_counted(s, prepared->uniforms);
    if (prepared->layers) {
        free_counted(s, prepared->layers->mem);
        prepared->layers->mem = NULL;
    }
    td_layers_free(s, prepared->layers);
    td_program_drop(&prepared->sampled);
    td_program_drop(&prepared->program);
    *prepared = (td_prepared){0};
}

void td_instance_free(tandem_session *s, td_instance *instance)
{
    for (int i = 0; i < TD_PREPARED; i++)
        free_prepared(s, &instance->prepared[i]);
    free_counted(s, instance->state);
    td_session_free(s, instance->precisions, instance->node_count);
    td_session_free(s, instance, sizeof *instance);
}

void td_instance_end(tandem_session *s, td_instance *instance)
{
    s->ops->object_end(s, &instance->object);
    td_instance_free(s, instance);
}

/* --- Instances --- */

td_instance *td_instance_find_locked(tandem_session *s, tandem_instance instance, const char *what,
                                     char *why)
{
    td_instance *found =
        (td_instance *)td_table_find_locked(s, TD_KIND_INSTANCE, instance, what, why);

    if (!found || !td_object_goes(&found->model->object))
        return found;
    td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
            "%s is 0x%" PRIx64 ", whose model is being destroyed", what, instance);
    return NULL;
}

td_instance *td_instance_take_locked(tandem_session *s, const td_model *model)
{
    for (uint32_t i = 0; i < s->instances.capacity; i++) {
        td_instance *instance = (td_instance *)s->instances.slots[i];

        if (!instance || instance->model != model)
            continue;
        td_table_remove_locked(&s->instances, &instance->object);
        return instance;
    }
    return NULL;
}

bool td_local_instance_is_lost_locked(const tandem_session *s, const td_instance *instance)
{
    (void)s, (void)instance; /* a session that is lost takes no jobs at all */
    return false;
}

tandem_status td_instance_check_locked(const tandem_session *s, const td_instance *instance,
                                       const char *what, char *why)
{
    if (!s->ops->instance_is_lost_locked(s, instance))
        return TANDEM_OK;
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_LOST,
                   "%s is 0x%" PRIx64
                   ", whose state went with tandemd's worker: destroy it, and make another",
                   what, instance->object.id);
}

/* The model of an instance and the instance itself, while a call of this session is at work for
 * them without the lock. */
static void hold_locked(td_model *model, td_mem *state)
{
    model->mem->object.uses++;
    if (state)
        state->object.uses++;
}

static void let_go_locked(tandem_session *s, td_model *model, td_mem *state)
{
    td_object_release_locked(s, &model->mem->object);
    if (state)
        td_object_release_locked(s, &state->object);
}

static tandem_status check_desc(tandem_session *s, const tandem_instance_desc *desc, char *why)
{
    if (desc->precision > TANDEM_PRECISION_4B)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "desc.precision is %u; it must be 0 (auto), 1 (f16), 2 (8b) or 3 (4b)",
                       desc->precision);
    if (desc->deadlines > 1)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.deadlines is %u, not 0 or 1",
                       desc->deadlines);
    if (desc->reserved)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.reserved is %u, not 0",
                       desc->reserved);
    if (desc->reserved2)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.reserved2 is %u, not 0",
                       desc->reserved2);
    const char *no_layers = desc->plan && s->ops->no_layers ? s->ops->no_layers(s) : NULL;
    if (no_layers)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "desc.plan is not NULL: %s", no_layers);
    return td_layers_check_desc(s, desc, why);
}

/* Those of nodes that are none must be AUTO. */
static tandem_status take_plan(td_instance *instance, const td_wire_layers *plan, char *why)
{
    const td_graph *graph = instance->model->network->graph;

    if (plan->node_count != graph->node_count)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_PROTOCOL, "the plan is of %" PRIu32 " nodes, the graph has %" PRIu32,
                       plan->node_count, graph->node_count);
    for (uint32_t node = 0; node < graph->node_count; node++) {
        instance->precisions[node] = (uint8_t)td_wire_plan_at(plan, node);
        if (instance->precisions[node] && !td_graph_layer_name(graph, node))
            return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_PROTOCOL,
                           "the plan has precision %u for node %" PRIu32 ", which has none", instance->precisions[node], node);
    }
    return TANDEM_OK;
}

/* The precisions of desc.plan, or of `ready`. */
static tandem_status read_plan(tandem_session *s, td_instance *instance, const char *plan, const td_wire_layers *ready, char *why)
{
    const td_graph *graph = instance->model->network->graph;
    char text[TD_WHY_BYTES / 2] = "";

    instance->precisions = td_session_alloc(s, instance->node_count, 64);
    if (!instance->precisions)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for a plan");
    if (ready)
        return take_plan(instance, ready, why);
    const tandem_status status =
        td_precision_plan_read(plan, strlen(plan), graph, instance->precisions, text, sizeof text);
    return status == TANDEM_OK ? status : td_fail(why, TD_WHY_BYTES, status, "desc.plan: %s", text);
}

/* Its memory; without the lock. */
static tandem_status make_instance(tandem_session *s, td_model *model,
                                   const tandem_instance_desc *desc, const td_wire_layers *plan, td_instance **out,
                                   char *why)
{
    const uint64_t bytes = model->network->state_bytes;
    td_instance *made = *out = td_session_alloc(s, sizeof *made, 64);

    if (!made)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for an instance");
    made->model = model;
    made->node_count = model->network->graph->node_count;
    made->desc = *desc;
    made->desc.plan = NULL; /* the caller's */
    if (desc->plan || plan) {
        const tandem_status status = read_plan(s, made, desc->plan, plan, why);

        if (status != TANDEM_OK)
            return status;
    }
    made->state = td_mem_new(s, bytes ? bytes : TD_PROGRAM_ALIGN, why);
    return made->state ? s->ops->instance_make(s, made, why) : TANDEM_ERROR_NOMEM;
}

tandem_status td_local_instance_make(tandem_session *s, td_instance *instance, char *why)
{
    const tandem_status status = td_instance_samples(&instance->desc) ? td_judge_start(s, why) : TANDEM_OK;

    return status == TANDEM_OK ? td_mem_make_zeros(s, instance->state, why) : status;
}

static tandem_status make_and_enter(tandem_session *s, tandem_model model,
                                    const tandem_instance_desc *desc, const td_wire_layers *plan,
                                    tandem_instance *out, char *why)
{
    td_instance *made = NULL;
    tandem_status status;

    pthread_mutex_lock(&s->lock);
    td_model *of = td_network_find_locked(s, model, &status, why);
    if (of)
        hold_locked(of, NULL);
    pthread_mutex_unlock(&s->lock);
    if (!of)
        return status;
    status = make_instance(s, of, desc, plan, &made, why);
    pthread_mutex_lock(&s->lock);
    if (status == TANDEM_OK)
        status = td_table_add_locked(s, &s->instances, TD_KIND_INSTANCE, &made->object, why);
    if (made && made->state)
        count_mem_locked(s, made->state);
    if (status == TANDEM_OK)
        *out = made->object.id;
    let_go_locked(s, of, NULL);
    pthread_mutex_unlock(&s->lock);
    if (status != TANDEM_OK && made)
        td_instance_free(s, made);
    return status;
}

tandem_status td_instance_make(tandem_session *s, tandem_model model, const tandem_instance_desc *desc,
                               const td_wire_layers *plan, tandem_instance *out, char *why)
{
    const tandem_status status = check_desc(s, desc, why);

    return status == TANDEM_OK ? make_and_enter(s, model, desc, plan, out, why) : status;
}

tandem_status tandem_model_instance(tandem_session *session, tandem_model model,
                                    const tandem_instance_desc *desc, tandem_instance *instance)
{
    char why[TD_WHY_BYTES] = "";
    tandem_instance_desc known;
    tandem_status status;

    if (instance)
        *instance = 0;
    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!desc || !instance)
        return td_session_fail(session, __func__, TANDEM_ERROR_ARG,
                               desc ? "instance is NULL" : "desc is NULL");
    status = TD_STRUCT_IN("desc", desc, &known, why, sizeof why);
    if (status == TANDEM_OK)
        status = td_instance_make(session, model, &known, NULL, instance, why);
    return td_session_fail(session, __func__, status, why);
}

tandem_status tandem_instance_destroy(tandem_session *session, tandem_instance instance)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_ERROR_ARG;
    td_instance *found;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    pthread_mutex_lock(&session->lock);
    found = td_instance_find_locked(session, instance, "instance", why);
    if (found) {
        found->object.closing = true;
        hold_locked(found->model, NULL); /* whose destruction would free it meanwhile */
        status = td_object_close_locked(session, &found->state->object, "instance", why);
        if (status == TANDEM_OK)
            td_table_remove_locked(&session->instances, &found->object);
        else
            td_fail(why, sizeof why, status,
                    "instance is 0x%" PRIx64 ", which a job still uses after 2 s", instance);
        found->object.closing = false;
        let_go_locked(session, found->model, NULL);
    }
    pthread_mutex_unlock(&session->lock);
    if (status == TANDEM_OK)
        td_instance_end(session, found);
    return td_session_fail(session, __func__, status, why);
}

/* --- What is prepared --- */

td_prepared *td_instance_find_prepared(td_instance *instance, const uint32_t *numbers)
{
    const size_t bytes = instance->model->network->graph->number_count * sizeof *numbers;

    for (int i = 0; i < TD_PREPARED; i++)
        if (instance->prepared[i].program && !instance->prepared[i].forgotten &&
            (!bytes || !memcmp(instance->prepared[i].numbers, numbers, bytes)))
            return &instance->prepared[i];
    return NULL;
}

tandem_status td_instance_not_prepared(const td_instance *instance, const uint32_t *numbers,
                                       const char *where, char *why)
{
    const td_graph *graph = instance->model->network->graph;
    char list[TD_WHY_BYTES / 2] = "none";

    for (uint32_t i = 0, used = 0; i < graph->number_count; i++) {
        td_text(list + used, sizeof list - used, "%s%s %" PRIu32, i ? ", " : "",
                graph->numbers[i].name, numbers[i]);
        used = (uint32_t)strlen(list);
    }
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                   "%snumbers are %s, which are not prepared: call tandem_model_prepare() first",
                   where, list);
}

/* Nothing, or what no job uses and was used longest ago; NULL: there is no such thing. */
static td_prepared *find_place(td_instance *instance)
{
    td_prepared *place = NULL;

    for (int i = 0; i < TD_PREPARED; i++) {
        td_prepared *at = &instance->prepared[i];

        if (!at->program || (at->forgotten && !at->uniforms->object.uses))
            return at;
        if (!at->recorded && !at->uniforms->object.uses && (!place || at->used < place->used))
            place = at;
    }
    return place;
}

/* Keeps what was made; *made is what has to be freed instead of it, if anything. */
static tandem_status keep_prepared_locked(td_instance *instance, td_prepared *made, uint64_t most_bytes, char *why)
{
    uint64_t bytes = td_prepared_bytes(made);
    td_prepared *place, old;

    if (td_instance_find_prepared(instance, made->numbers)) /* another thread was faster */
        return TANDEM_OK;
    place = find_place(instance);
    if (!place)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_BUSY,
                       "jobs use all %d sets of numbers that are prepared", TD_PREPARED);
    for (int i = 0; i < TD_PREPARED; i++)
        bytes += &instance->prepared[i] == place ? 0 : td_prepared_bytes(&instance->prepared[i]);
    if (bytes > most_bytes)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM,
                       "what is prepared takes %" PRIu64 " bytes, and may take %" PRIu64, bytes,
                       most_bytes);
    made->used = ++instance->uses;
    old = *place;
    *place = *made;
    *made = old;
    return TANDEM_OK;
}

tandem_status td_instance_prepare(tandem_session *s, tandem_instance instance,
                                  const uint32_t *numbers, uint32_t number_count,
                                  uint64_t most_bytes, char *why)
{
    tandem_status status = TANDEM_ERROR_ARG;
    td_prepared made = {0};
    td_instance *found;
    bool makes = false;

    pthread_mutex_lock(&s->lock);
    found = td_instance_find_locked(s, instance, "instance", why);
    if (found)
        status = td_network_check_numbers(found->model->network, numbers, number_count, "", why);
    if (status == TANDEM_OK)
        status = td_instance_check_locked(s, found, "instance", why);
    if (status == TANDEM_OK && s->broken)
        status = td_fail(why, TD_WHY_BYTES, s->broken, "the device failed earlier: %s",
                         tandem_status_text(s->broken));
    makes = status == TANDEM_OK && !td_instance_find_prepared(found, numbers);
    if (makes)
        hold_locked(found->model, found->state);
    pthread_mutex_unlock(&s->lock);
    if (!makes)
        return status;
    status = td_instance_make_prepared(s, found, numbers, &made, why);
    pthread_mutex_lock(&s->lock);
    if (made.uniforms)
        count_mem_locked(s, made.uniforms);
    if (made.layers && made.layers->mem)
        count_mem_locked(s, made.layers->mem);
    if (status == TANDEM_OK)
        status = keep_prepared_locked(found, &made, most_bytes, why);
    let_go_locked(s, found->model, found->state);
    pthread_mutex_unlock(&s->lock);
    free_prepared(s, &made);
    return status;
}

tandem_status tandem_model_prepare(tandem_session *session, tandem_instance instance,
                                   const uint32_t *numbers, uint32_t number_count)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    status = td_instance_prepare(session, instance, numbers, number_count, UINT64_MAX, why);
    return td_session_fail(session, __func__, status, why);
}

tandem_status tandem_model_prepared(tandem_session *session, tandem_instance instance,
                                    const uint32_t *numbers, uint32_t number_count,
                                    tandem_prepared *prepared)
{
    char why[TD_WHY_BYTES] = "";
    tandem_prepared known = {0};
    tandem_status status;
    td_instance *found;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!prepared)
        return td_session_fail(session, __func__, TANDEM_ERROR_ARG, "prepared is NULL");
    status = TD_STRUCT_CHECK("prepared", prepared, why, sizeof why);
    if (status != TANDEM_OK)
        return td_session_fail(session, __func__, status, why);
    pthread_mutex_lock(&session->lock);
    found = td_instance_find_locked(session, instance, "instance", why);
    status = found ? td_network_check_numbers(found->model->network, numbers, number_count, "", why)
                   : TANDEM_ERROR_ARG;
    if (status == TANDEM_OK) {
        const td_prepared *of = td_instance_find_prepared(found, numbers);

        if (of)
            known = of->as;
        else
            status = td_instance_not_prepared(found, numbers, "", why);
    }
    pthread_mutex_unlock(&session->lock);
    TD_STRUCT_OUT(prepared, &known);
    return td_session_fail(session, __func__, status, why);
}

static void describe(const td_instance *instance, const td_prepared *prepared, uint32_t index, tandem_layer *out)
{
    const td_program_sample *sample = &prepared->sampled->samples[index];
    const td_layer *layer = &prepared->layers->layers[index];
    const double count = layer->count ? layer->count : 1;

    *out = (tandem_layer){.node = sample->node,
                          .precision = sample->precision,
                          .samples = layer->count,
                          .changes = layer->changes,
                          .pending = prepared->layers->stage != TD_LAYERS_IDLE,
                          .heads = sample->heads,
                          .worst_head = layer->worst_head,
                          .worst_similarity = (float)layer->worst,
                          .cosine = (float)(layer->cosine / count),
                          .relative_l1 = (float)(layer->relative_l1 / count)};
    for (uint32_t p = 0; p < TD_SAMPLES; p++)
        out->similarity[p] = layer->measured >> p & 1 ? (float)(layer->similarity[p] / count) : -1;
    td_text(out->name, sizeof out->name, "%s", td_graph_layer_name(instance->model->network->graph, sample->node));
}

tandem_status tandem_model_layer(tandem_session *session, tandem_instance instance, const uint32_t *numbers,
                                 uint32_t number_count, uint32_t index, tandem_layer *layer)
{
    char why[TD_WHY_BYTES] = "";
    tandem_layer known = {0};
    tandem_status status;
    td_instance *found;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!layer)
        return td_session_fail(session, __func__, TANDEM_ERROR_ARG, "layer is NULL");
    status = TD_STRUCT_CHECK("layer", layer, why, sizeof why);
    if (status != TANDEM_OK)
        return td_session_fail(session, __func__, status, why);
    pthread_mutex_lock(&session->lock);
    td_jobs_advance_locked(session);
    found = td_instance_find_locked(session, instance, "instance", why);
    status = found ? td_network_check_numbers(found->model->network, numbers, number_count, "", why) : TANDEM_ERROR_ARG;
    const td_prepared *of = status == TANDEM_OK ? td_instance_find_prepared(found, numbers) : NULL;
    const uint32_t count = of ? of->as.layer_count : 0;
    if (status == TANDEM_OK && !of)
        status = td_instance_not_prepared(found, numbers, "", why);
    else if (status == TANDEM_OK && index >= count)
        status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "index is %" PRIu32 "; %" PRIu32 " layers are sampled", index, count);
    if (status == TANDEM_OK && session->ops->layer_locked) {
        hold_locked(found->model, found->state);
        status = session->ops->layer_locked(session, found, of, index, &known, why);
        let_go_locked(session, found->model, found->state);
    } else if (status == TANDEM_OK) {
        describe(found, of, index, &known);
    }
    pthread_mutex_unlock(&session->lock);
    TD_STRUCT_OUT(layer, &known);
    return td_session_fail(session, __func__, status, why);
}
