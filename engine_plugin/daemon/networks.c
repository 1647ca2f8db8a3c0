/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/wire_layer.h"
#include "engine_plugin/daemon/networks.h"
#include "engine_plugin/daemon/quotas.h"
#include "engine_plugin/daemon/replies.h"
#include "engine_plugin/daemon/worker_requests.h"

#define LOST_TEXT "whose state went with the worker"
enum { LEAST_STATE_BYTES = 256 /* what an instance without any holds */ };

/* --- Requests --- */

static void refuse(td_broker *b, td_client *c, uint32_t serial, tandem_status status, const char *what, uint64_t id,
                   const char *is)
{
    char why[TD_TEXT_BYTES];

    td_fail(why, sizeof why, status, "%s is 0x%" PRIx64 ", which %s", what, id, is);
    td_client_error(b, c, serial, 0, status, why);
}

/* NULL: it was answered. */
static td_shared *find_model(td_broker *b, td_client *c, uint32_t serial, uint64_t id)
{
    td_shared *model = td_ids_find(&c->models, id);

    if (!model || model->closing || model->pending)
        refuse(b, c, serial, TANDEM_ERROR_ARG, "model", id, model && model->pending ? "is not loaded yet" : "was destroyed");
    else if (model->cached->status != TANDEM_OK)
        refuse(b, c, serial, model->cached->status, "model", id, "the worker could not load");
    else if (model->cached->evicted && td_cached_model_load(b, model->cached, c) != TANDEM_OK)
        refuse(b, c, serial, TANDEM_ERROR_NOMEM, "model", id, "made room for others");
    else
        return model;
    return NULL;
}

void td_networks_on_graph(td_broker *b, td_client *c, const td_wire_object *m)
{
    td_shared *model = find_model(b, c, m->header.serial, m->id);
    td_worker_request *request;

    if (!model)
        return;
    request = td_worker_request_add(b, TD_WORKER_GRAPH, model->cached->number, false);
    if (!request) {
        td_client_error(b, c, m->header.serial, 0, TANDEM_ERROR_NOMEM, "no host memory for an answer");
        return;
    }
    request->client = c;
    request->session = c->session;
    request->reads = model->cached;
    request->serial = m->header.serial;
}

void td_networks_send_graph(td_broker *b, const td_worker_request *was, const td_worker_message *t, int fd)
{
    td_wire_message m = td_wire_new(TD_WIRE_GRAPH, was->serial);

    if (t->status != TANDEM_OK || fd < 0) {
        td_client_error(b, was->client, was->serial, 0, t->status ? t->status : TANDEM_ERROR_DEVICE, t->text);
        return;
    }
    m.graph.bytes = t->bytes;
    td_client_answered(was->client, was->serial);
    td_client_send(b, was->client, &m, &fd);
}

/* Its state counts as memory of the client's. */
static td_shared *add_instance(td_broker *b, td_client *c, td_cached_model *cached)
{
    td_shared *made = td_shared_add(c, TD_WIRE_KIND_INSTANCE);

    if (!made)
        return NULL;
    made->cached = cached;
    cached->uses++;
    td_shared_count(b, made, cached->state_bytes ? cached->state_bytes : (uint64_t)LEAST_STATE_BYTES);
    return made;
}

/* layers: or NULL, nothing is asked of them. */
static void on_instance(td_broker *b, td_client *c, const td_wire_model_instance *m, const td_wire_layers *layers)
{
    const uint32_t serial = m->header.serial;
    td_shared *model = find_model(b, c, serial, m->model), *made;
    td_worker_request *request;
    char why[TD_TEXT_BYTES];

    if (!model)
        return;
    if (!td_client_fits(b, c, model->cached->state_bytes)) {
        td_client_lacks(b, c, "state of an instance", model->cached->state_bytes, why, sizeof why);
        td_client_error(b, c, serial, 0, TANDEM_ERROR_NOMEM, why);
        return;
    }
    made = add_instance(b, c, model->cached);
    if (!made) {
        td_fail(why, sizeof why, TANDEM_ERROR_NOMEM, "all %u instances are in use", c->instances.capacity);
        td_client_error(b, c, serial, 0, TANDEM_ERROR_NOMEM, why);
        return;
    }
    made->number = td_number_take(b);
    request = made->number ? td_worker_request_add(b, TD_WORKER_INSTANCE, made->number, false) : NULL;
    if (!request) {
        b->numbers[made->number] = 0;
        made->number = 0;
        td_client_error(b, c, serial, 0, TANDEM_ERROR_NOMEM, "no host memory for an instance");
        td_shared_end(b, made);
        return;
    }
    made->pending = serial;
    made->precision = m->precision;
    request->shared = made;
    request->session = c->session;
    request->reads = model->cached;
    request->message.network.precision = m->precision;
    request->message.network.deadlines = m->deadlines;
    if (layers)
        request->message.network.layers = *layers;
}

void td_networks_on_instance(td_broker *b, td_client *c, const td_wire_model_instance *m)
{
    on_instance(b, c, m, NULL);
}

void td_networks_on_instance_create(td_broker *b, td_client *c, const td_wire_instance_create *m)
{
    const td_wire_model_instance plain = {
        .header = m->header, .model = m->model, .precision = m->precision, .deadlines = m->deadlines};

    on_instance(b, c, &plain, &m->layers);
}

/* What the worker is asked of an instance for some numbers; NULL: it was answered. */
static td_worker_request *ask_of_instance(td_broker *b, td_client *c, td_worker_message_kind kind, uint32_t serial, uint64_t id,
                                          uint32_t number_count, const uint32_t numbers[TD_WIRE_NUMBERS])
{
    const td_shared *instance = td_ids_find(&c->instances, id);
    const char *missing = td_shared_is_missing(instance);
    td_worker_request *request = NULL;

    if (missing)
        refuse(b, c, serial, TANDEM_ERROR_ARG, "instance", id, missing);
    else if (instance->status != TANDEM_OK)
        refuse(b, c, serial, instance->status, "instance", id, "is lost: its state went with the worker");
    else if (!(request = td_worker_request_add(b, kind, instance->number, false)))
        td_client_error(b, c, serial, 0, TANDEM_ERROR_NOMEM, "no host memory for an answer");
    if (!request)
        return NULL;
    request->client = c;
    request->session = c->session;
    request->serial = serial;
    request->object = id;
    request->message.network.number_count = number_count;
    memcpy(request->message.network.numbers, numbers, TD_WIRE_NUMBERS * sizeof *numbers);
    return request;
}

void td_networks_on_prepare(td_broker *b, td_client *c, const td_wire_model_prepare *m)
{
    ask_of_instance(b, c, TD_WORKER_PREPARE, m->header.serial, m->instance, m->number_count, m->numbers);
}

void td_networks_on_layer(td_broker *b, td_client *c, const td_wire_instance_layer *m)
{
    td_worker_request *request =
        ask_of_instance(b, c, TD_WORKER_LAYER, m->header.serial, m->instance, m->number_count, m->numbers);

    if (!request)
        return;
    request->message.network.index = m->index;
    request->message.network.layer.struct_bytes = sizeof(tandem_layer);
}

void td_networks_send_layer(td_broker *b, const td_worker_request *was, const td_worker_message *t)
{
    td_wire_message m = td_wire_new(TD_WIRE_LAYER, was->serial);

    if (t->status != TANDEM_OK) {
        td_client_error(b, was->client, was->serial, 0, t->status, t->text);
        return;
    }
    td_wire_layer_put(&m.layer, &t->network.layer);
    td_client_answered(was->client, was->serial);
    td_client_send(b, was->client, &m, NULL);
}

/* All of it within what the instance keeps, and within the mem. */
static tandem_status check_state(td_broker *b, td_client *c, const td_wire_instance_state *m, const td_shared *instance,
                                 const td_shared *mem, char *why, size_t why_bytes)
{
    const uint64_t state_bytes = instance->cached->state_bytes, bytes = td_wire_state_bytes(m);
    char text[TD_TEXT_BYTES];
    const tandem_status status = td_mem_is_usable(b, c, mem, true, text, sizeof text);

    if (status != TANDEM_OK)
        return td_fail(why, why_bytes, status, "mem is 0x%" PRIx64 ", which %s", m->mem, text);
    if (mem->opaque)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "mem is 0x%" PRIx64 ", which is no shared buffer", m->mem);
    if (m->offset_bytes > mem->bytes || bytes > mem->bytes - m->offset_bytes)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "offset_bytes is %" PRIu64 ": the ranges' %" PRIu64 " bytes end beyond the %" PRIu64 " of mem 0x%" PRIx64,
                       m->offset_bytes, bytes, mem->bytes, m->mem);
    for (uint32_t i = 0; i < m->range_count; i++)
        if (m->ranges[i].offset_bytes > state_bytes || m->ranges[i].bytes > state_bytes - m->ranges[i].offset_bytes)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                           "ranges[%" PRIu32 "] is bytes %" PRIu64 " to %" PRIu64 ", beyond the %" PRIu64
                           " that instance 0x%" PRIx64 " keeps",
                           i, m->ranges[i].offset_bytes, m->ranges[i].offset_bytes + m->ranges[i].bytes, state_bytes,
                           m->instance);
    if (instance->uses)
        return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "instance is 0x%" PRIx64 ", of which a run has not ended", m->instance);
    return TANDEM_OK;
}

/* Until it is answered the instance has no runs, and neither it nor the mem ends. */
void td_networks_on_state(td_broker *b, td_client *c, const td_wire_instance_state *m)
{
    static const uint32_t no_numbers[TD_WIRE_NUMBERS];
    td_shared *instance = td_ids_find(&c->instances, m->instance), *mem = td_ids_find(&c->mems, m->mem);
    char why[TD_TEXT_BYTES];
    tandem_status status = TANDEM_OK;

    if (instance && !td_shared_is_missing(instance) && instance->status == TANDEM_OK)
        status = check_state(b, c, m, instance, mem, why, sizeof why);
    if (status != TANDEM_OK) {
        td_client_error(b, c, m->header.serial, 0, status, why);
        return;
    }
    td_worker_request *request = ask_of_instance(b, c, TD_WORKER_STATE, m->header.serial, m->instance, 0, no_numbers);
    if (!request)
        return;
    request->message.network.state = *m;
    request->message.network.state_mem = mem->number;
    instance->copying = true;
    instance->uses++;
    mem->uses++;
}

/* What it was asked of may be used again. */
static void end_state(td_broker *b, const td_worker_request *was)
{
    td_shared *instance = td_ids_find(&was->client->instances, was->object),
              *mem = td_ids_find(&was->client->mems, was->message.network.state.mem);

    if (instance) {
        instance->copying = false;
        instance->uses--;
    }
    if (mem)
        mem->uses--;
    td_queue_wake(b);
}

void td_networks_send_state(td_broker *b, const td_worker_request *was, const td_worker_message *t)
{
    end_state(b, was);
    if (t->status != TANDEM_OK)
        td_client_error(b, was->client, was->serial, 0, t->status, t->text);
    else
        td_client_done(b, was->client, was->serial, 0);
}

/* What is prepared counts as well, for as long as the instance has it. */
static void count_prepared(td_broker *b, td_shared *instance, const td_worker_network *n)
{
    td_shared_count(b, instance, instance->bytes - instance->prepared_bytes + n->bytes);
    instance->prepared_bytes = n->bytes;
    instance->mflop = n->mflop > 0 ? n->mflop : 0;
}

void td_networks_send_prepared(td_broker *b, const td_worker_request *was, const td_worker_message *t)
{
    td_wire_message m = td_wire_new(TD_WIRE_PREPARED, was->serial);
    td_shared *instance = td_ids_find(&was->client->instances, was->object);
    const td_worker_network *n = &t->network;

    if (!instance || t->status != TANDEM_OK) {
        td_client_error(b, was->client, was->serial, 0, instance ? t->status : TANDEM_ERROR_ARG,
                        instance ? t->text : "the instance was destroyed");
        return;
    }
    count_prepared(b, instance, n);
    if (n->uniform_bytes > TD_WIRE_UNIFORM_BYTES) {
        td_client_error(b, was->client, was->serial, 0, TANDEM_ERROR_UNSUPPORTED,
                        "its uniforms take more bytes than a run can bring");
        return;
    }
    m.prepared.record_count = n->record_count;
    m.prepared.chain = n->chain;
    m.prepared.layer_count = was->client->features & TD_WIRE_LAYERS ? n->layer_count : 0;
    m.prepared.scratch_bytes = n->scratch_bytes;
    m.prepared.uniform_bytes = n->uniform_bytes;
    td_client_answered(was->client, was->serial);
    td_client_send(b, was->client, &m, NULL);
}

/* --- Runs --- */

bool td_networks_take_uniforms(td_client *c, const td_wire_uniforms *m)
{
    if (!c->uniforms)
        c->uniforms = malloc(TD_WIRE_UNIFORM_BYTES);
    if (c->uniforms)
        memcpy(c->uniforms + TD_WIRE_RUN_BYTES + m->first, m->uniforms, m->bytes);
    return c->uniforms;
}

/* By which model, made how, for what numbers. */
static td_workload workload_of(const td_shared *instance, const td_run *run)
{
    const td_cached_model *cached = instance->cached;
    const uint64_t model[4] = {cached->device, cached->inode, cached->mtime_ns, instance->precision};
    const uint64_t made = td_cost_key(td_cost_key(1, model, sizeof model), &cached->language, sizeof cached->language);

    return (td_workload){.key = td_cost_key(made, run->numbers, sizeof run->numbers), .mflop = instance->mflop};
}

static tandem_status bind_instance(td_client *c, td_work *work, const td_wire_run *m, char *why, size_t why_bytes)
{
    td_shared *instance = td_ids_find(&c->instances, m->instance);
    const char *missing = td_shared_is_missing(instance);

    if (missing)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "run.instance is 0x%" PRIx64 ", which %s", m->instance, missing);
    if (instance->status != TANDEM_OK)
        return td_fail(why, why_bytes, instance->status, "run.instance is 0x%" PRIx64 ", " LOST_TEXT, m->instance);
    work->mems[work->mem_count++] = instance;
    instance->uses++;
    work->run->instance = instance->number;
    work->workload = workload_of(instance, work->run);
    return TANDEM_OK;
}

/* Whether all of the tensor is within is for the worker to say, which knows how large it is. */
static tandem_status bind_binding(td_broker *b, td_client *c, td_work *work, uint32_t index, const td_wire_binding *at,
                                  char *why, size_t why_bytes)
{
    td_shared *mem = td_ids_find(&c->mems, at->mem);
    char text[TD_TEXT_BYTES];
    const tandem_status status = td_mem_is_usable(b, c, mem, false, text, sizeof text);

    if (status != TANDEM_OK)
        return td_fail(why, why_bytes, status, "run.bindings[%u].mem is 0x%" PRIx64 ", which %s", index, at->mem, text);
    if (at->offset_bytes > mem->bytes)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "run.bindings[%u].offset_bytes is %" PRIu64 ", beyond the %" PRIu64 " bytes of mem 0x%" PRIx64, index,
                       at->offset_bytes, mem->bytes, at->mem);
    work->mems[work->mem_count++] = mem;
    mem->uses++;
    return TANDEM_OK;
}

tandem_status td_networks_bind(td_broker *b, td_client *c, td_work *work, const td_wire_run *m, char *why, size_t why_bytes)
{
    const uint32_t here = m->uniform_bytes < TD_WIRE_RUN_BYTES ? m->uniform_bytes : (uint32_t)TD_WIRE_RUN_BYTES;
    tandem_status status;
    td_run *run;

    run = work->run = malloc(sizeof *run);
    if (!run)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no host memory for a run");
    run->binding_count = m->binding_count;
    run->number_count = m->number_count;
    run->uniform_bytes = m->uniform_bytes;
    memcpy(run->numbers, m->numbers, sizeof run->numbers);
    memcpy(run->bindings, m->bindings, sizeof run->bindings);
    memcpy(run->uniforms, m->uniforms, here);
    if (m->uniform_bytes > here)
        memcpy(run->uniforms + here, c->uniforms + here, m->uniform_bytes - here);
    status = bind_instance(c, work, m, why, why_bytes);
    for (uint32_t i = 0; i < m->binding_count && status == TANDEM_OK; i++)
        status = bind_binding(b, c, work, i, &m->bindings[i], why, why_bytes);
    return status;
}

void td_networks_fill(const td_work *work, td_run *to)
{
    const td_run *run = work->run;

    memcpy(to, run, offsetof(td_run, uniforms) + run->uniform_bytes);
    for (uint32_t i = 0; i < run->binding_count; i++) {
        const td_shared *mem = work->mems[1 + i]; /* the first is the instance */

        to->bindings[i].mem = mem->cached ? mem->cached->number : mem->number;
    }
}

/* --- The worker's end --- */

static void lose_requests(td_broker *b)
{
    for (td_worker_request *e = b->worker_requests, *next; e; e = next) {
        td_client *c = e->client;
        const uint32_t serial = e->serial;

        next = e->next;
        if (e->message.kind != TD_WORKER_PREPARE && e->message.kind != TD_WORKER_LAYER && e->message.kind != TD_WORKER_STATE)
            continue;
        if (e->message.kind == TD_WORKER_STATE)
            end_state(b, e);
        td_worker_request_remove(b, e);
        td_client_error(b, c, serial, 0, TANDEM_ERROR_LOST, "instance is one " LOST_TEXT);
    }
}

void td_networks_lose(td_broker *b)
{
    lose_requests(b);
    for (td_client *c = b->clients; c; c = c->next)
        for (td_shared *s = c->shared; s; s = s->next) {
            if (s->kind != TD_WIRE_KIND_INSTANCE || !s->imported)
                continue;
            s->imported = false;
            s->status = TANDEM_ERROR_LOST;
            b->numbers[s->number] = 0;
            s->number = 0;
            td_shared_count(b, s, 0);
            s->prepared_bytes = 0;
        }
}
