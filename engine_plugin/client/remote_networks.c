/* Networks that tandemd runs. The graph is read here, too, from the beginning of the model's file, which
 * the daemon sends: so names, shapes and bytes are known, and runs are checked, as in any session.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * State, and what is prepared, is the daemon's. Of a program that was planned here nothing is ever
 * computed. This file calls remote_connection.c and remote_jobs.c, which calls it for jobs that run
 * networks.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine_plugin/client/network.h"
#include "engine_plugin/client/remote.h"
#include "engine_plugin/client/wire_layer.h"
#include "interop/os/file.h"
#include "interop/os/memory.h"
#include "kernels/model/precision_plan.h"

_Static_assert((int)TD_WIRE_BINDINGS == (int)TD_GRAPH_BINDINGS, "a RUN has all of a graph's bindings");
_Static_assert((int)TD_WIRE_NUMBERS == (int)TD_GRAPH_NUMBERS, "and numbers");
_Static_assert((int)TD_WIRE_NODES == (int)TD_GRAPH_NODES, "a plan has all of its nodes");

/* --- Models --- */

/* *fd: the header of a file of so many bytes; -1 where the daemon knows of none. */
static tandem_status ask_for_graph(tandem_session *s, td_model *model, int *fd, uint64_t *file_bytes, char *why)
{
    td_wire_message m = td_wire_new(TD_WIRE_MODEL_GRAPH, 0);
    tandem_status status = TANDEM_OK;

    *fd = -1;
    pthread_mutex_lock(&s->lock);
    m.object.id = model->remote->id;
    if (!(s->remote->rules.features & TD_WIRE_NETWORKS))
        model->no_network = "the tandemd that computes for this session is too old to run networks";
    else if (s->remote->up && s->remote->connection == model->remote->connection)
        status = td_remote_ask_locked(s, &m, -1, TD_WIRE_GRAPH, fd, why);
    else
        status = td_remote_gone(s->remote, why);
    pthread_mutex_unlock(&s->lock);
    *file_bytes = m.graph.bytes;
    return status;
}

/* What stands for the file: its header, and a hole where it has weights, which is this process's own. *fd becomes that. */
static tandem_status lengthen(int *fd, uint64_t file_bytes, char *why)
{
    char path[TD_FILE_PATH_BYTES], text[TD_WHY_BYTES / 2];
    uint64_t header_bytes = 0;
    void *header = NULL;
    int made = -1;
    tandem_status status = td_memfd_check_whole(*fd, file_bytes, text, sizeof text);

    if (status != TANDEM_OK)
        td_fail(why, TD_WHY_BYTES, status, "tandemd sends a graph whose %s", text);
    else
        status = td_file_path(*fd, path, why, TD_WHY_BYTES);
    if (status == TANDEM_OK)
        status = td_file_map(path, &header, &header_bytes, why, TD_WHY_BYTES);
    if (status == TANDEM_OK)
        status = td_memfd_make_sparse("tandem-graph", header, header_bytes, file_bytes, &made, why, TD_WHY_BYTES);
    if (header)
        td_unmap(header, header_bytes);
    td_fd_close(fd);
    *fd = made;
    return status;
}

tandem_status td_remote_network_load(td_model_load *load, const tandem_model_desc *desc, char *why)
{
    tandem_session *s = load->s;
    td_model *model = load->model;
    char path[TD_FILE_PATH_BYTES];
    tandem_model_desc header = *desc;
    tandem_status status;
    uint64_t file_bytes;
    int fd;

    status = ask_for_graph(s, model, &fd, &file_bytes, why);
    if (status != TANDEM_OK || fd < 0)
        return status;
    status = lengthen(&fd, file_bytes, why);
    if (status == TANDEM_OK)
        status = td_file_path(fd, path, why, TD_WHY_BYTES);
    header.path = path;
    if (status == TANDEM_OK)
        status = td_model_file_open(load, &header, why);
    td_fd_close(&fd);
    return status;
}

/* --- Instances --- */

bool td_remote_instance_is_lost_locked(const tandem_session *s, const td_instance *instance)
{
    return instance->worker != s->remote->worker;
}

const char *td_remote_no_layers(tandem_session *s)
{
    pthread_mutex_lock(&s->lock);
    const bool has = s->remote->rules.features & TD_WIRE_LAYERS;
    pthread_mutex_unlock(&s->lock);
    return has ? NULL : "the tandemd that computes for this session is too old to plan layers, or to sample them, one by one";
}

/* With what is asked of layers by another message. */
static td_wire_message describe_instance(const td_instance *instance)
{
    const tandem_instance_desc *desc = &instance->desc;
    const bool has_layers = instance->precisions || td_instance_samples(desc);
    td_wire_message m = td_wire_new(has_layers ? TD_WIRE_INSTANCE_CREATE : TD_WIRE_MODEL_INSTANCE, 0);
    td_wire_layers *layers = &m.instance_create.layers;

    if (!has_layers) {
        m.model_instance.model = instance->model->remote->id;
        m.model_instance.precision = desc->precision;
        m.model_instance.deadlines = desc->deadlines;
        return m;
    }
    m.instance_create.model = instance->model->remote->id;
    m.instance_create.precision = desc->precision;
    m.instance_create.deadlines = desc->deadlines;
    layers->min_similarity = desc->min_similarity;
    layers->max_us = desc->max_us;
    layers->sample_every = desc->sample_every;
    layers->sample_rows = desc->sample_rows;
    layers->sample_all = desc->sample_all;
    layers->node_count = instance->precisions ? instance->model->network->graph->node_count : 0;
    for (uint32_t node = 0; node < layers->node_count; node++)
        td_wire_plan_put(layers, node, instance->precisions[node]);
    return m;
}

tandem_status td_remote_instance_make(tandem_session *s, td_instance *instance, char *why)
{
    const td_remote *r = s->remote;
    tandem_status status;

    pthread_mutex_lock(&s->lock);
    td_wire_message m = describe_instance(instance);
    instance->connection = r->connection;
    instance->worker = r->worker;
    status = td_remote_has_model_locked(s, instance->model, why);
    if (status == TANDEM_OK)
        status = td_remote_ask_locked(s, &m, -1, TD_WIRE_DONE, NULL, why);
    if (status == TANDEM_OK)
        instance->remote_id = m.object.id;
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* What the daemon has for these numbers is for the graph that is known here, if that is the file's still. */
static tandem_status take_prepared(const td_wire_prepared *m, td_prepared *prepared, char *why)
{
    if (m->uniform_bytes != prepared->uniform_bytes)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_PROTOCOL,
                       "tandemd has a network of %" PRIu64 " bytes of uniforms, not %" PRIu64
                       ": the model's file has changed",
                       m->uniform_bytes, prepared->uniform_bytes);
    if (m->layer_count > prepared->program->node_count)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_PROTOCOL, "tandemd samples %" PRIu32 " layers of a network of %" PRIu32 " nodes",
                       m->layer_count, prepared->program->node_count);
    prepared->as = (tandem_prepared){.struct_bytes = sizeof prepared->as,
                                     .layer_count = m->layer_count,
                                     .record_count = m->record_count,
                                     .chain = m->chain,
                                     .scratch_bytes = m->scratch_bytes,
                                     .uniform_bytes = m->uniform_bytes};
    return TANDEM_OK;
}

tandem_status td_remote_prepare(tandem_session *s, td_instance *instance, td_prepared *prepared, char *why)
{
    const uint32_t count = instance->model->network->graph->number_count;
    td_wire_message m = td_wire_new(TD_WIRE_MODEL_PREPARE, 0);
    tandem_status status = td_prepared_make_uniforms(s, prepared, why);

    if (status != TANDEM_OK)
        return status;
    if (prepared->uniform_bytes > TD_WIRE_UNIFORM_BYTES)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "uniforms take %" PRIu64 " bytes; tandemd takes %d at most", prepared->uniform_bytes,
                       TD_WIRE_UNIFORM_BYTES);
    m.model_prepare.number_count = count;
    memcpy(m.model_prepare.numbers, prepared->numbers, count * sizeof *prepared->numbers);
    pthread_mutex_lock(&s->lock);
    m.model_prepare.instance = instance->remote_id;
    status = td_instance_check_locked(s, instance, "instance", why);
    if (status == TANDEM_OK)
        status = td_remote_ask_locked(s, &m, -1, TD_WIRE_PREPARED, NULL, why);
    if (status == TANDEM_OK)
        status = take_prepared(&m.prepared, prepared, why);
    pthread_mutex_unlock(&s->lock);
    return status;
}

tandem_status td_remote_layer_locked(tandem_session *s, const td_instance *instance, const td_prepared *prepared, uint32_t index,
                                     tandem_layer *out, char *why)
{
    const td_graph *graph = instance->model->network->graph;
    td_wire_message m = td_wire_new(TD_WIRE_INSTANCE_LAYER, 0);
    tandem_status status = td_instance_check_locked(s, instance, "instance", why);

    m.instance_layer.instance = instance->remote_id;
    m.instance_layer.index = index;
    m.instance_layer.number_count = graph->number_count;
    memcpy(m.instance_layer.numbers, prepared->numbers, graph->number_count * sizeof *prepared->numbers);
    if (status == TANDEM_OK)
        status = td_remote_ask_locked(s, &m, -1, TD_WIRE_LAYER, NULL, why);
    if (status != TANDEM_OK)
        return status;
    const td_wire_layer *layer = &m.layer;
    const char *name = layer->node < graph->node_count ? td_graph_layer_name(graph, layer->node) : NULL;
    if (!name)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_PROTOCOL, "tandemd tells of node %" PRIu32 ", which is no layer", layer->node);
    td_wire_layer_get(out, layer);
    td_text(out->name, sizeof out->name, "%s", name);
    return TANDEM_OK;
}

/* --- Runs --- */

static const uint8_t *uniforms_of(const td_job *job)
{
    const td_mem *mem = job->mems[TD_PROGRAM_UNIFORM];

    return (const uint8_t *)mem->host + (job->views[TD_PROGRAM_UNIFORM] - mem->address);
}

static uint32_t bytes_in_run(const td_wire_run *run)
{
    return run->uniform_bytes < TD_WIRE_RUN_BYTES ? run->uniform_bytes : (uint32_t)TD_WIRE_RUN_BYTES;
}

static tandem_status name_bindings(tandem_session *s, const td_job *job, td_wire_run *out, char *why)
{
    const td_program *program = job->prepared->program;
    tandem_status status = TANDEM_OK;

    out->binding_count = program->binding_count;
    for (uint32_t i = 0; i < out->binding_count && status == TANDEM_OK; i++) {
        const uint32_t view = TD_PROGRAM_BINDINGS + i;

        status = td_remote_name_mem_locked(s, job, view, &out->bindings[i].mem, why);
        out->bindings[i].offset_bytes = job->views[view] - job->mems[view]->address;
        out->bindings[i].dtype = program->tensors[program->bindings[i]].dtype;
    }
    return status;
}

tandem_status td_remote_describe_run_locked(tandem_session *s, td_job *job, td_wire_run *out, char *why)
{
    const td_prepared *prepared = job->prepared;
    td_wire_rules rules;
    td_remote_heading heading;
    tandem_status status;

    *out = td_wire_new(TD_WIRE_RUN, 0).run;
    out->number_count = job->instance->model->network->graph->number_count;
    memcpy(out->numbers, prepared->numbers, out->number_count * sizeof *out->numbers);
    out->uniform_bytes = (uint32_t)prepared->uniform_bytes;
    memcpy(out->uniforms, uniforms_of(job), bytes_in_run(out));
    status = name_bindings(s, job, out, why);
    if (status == TANDEM_OK)
        status = td_remote_head_locked(s, job, &heading, why);
    if (status == TANDEM_OK)
        status = td_instance_check_locked(s, job->instance, "run.instance", why);
    if (status != TANDEM_OK)
        return status;
    out->instance = job->instance->remote_id;
    out->ticket = heading.ticket;
    out->submit_ns = heading.submit_ns;
    out->deadline_ns = heading.deadline_ns;
    out->wait = heading.wait;
    out->signal = heading.signal;
    rules = s->remote->rules;
    rules.more_bytes = out->uniform_bytes - bytes_in_run(out);
    return td_wire_check(&rules, TD_WIRE_RING, out, sizeof *out, 0, why, TD_WHY_BYTES) == TANDEM_OK
               ? TANDEM_OK
               : TANDEM_ERROR_ARG;
}

tandem_status td_remote_put_run_locked(tandem_session *s, const td_job *job, const td_wire_run *run, char *why)
{
    const uint32_t more = run->uniform_bytes - bytes_in_run(run);
    const uint8_t *from = uniforms_of(job) + TD_WIRE_RUN_BYTES;
    const uint32_t slots = 1 + (more + TD_WIRE_MORE_BYTES - 1) / TD_WIRE_MORE_BYTES;
    td_remote *r = s->remote;
    tandem_status status = td_ring_room(&r->ring, slots, why, TD_WHY_BYTES);

    for (uint32_t first = 0; first < more && status == TANDEM_OK; first += TD_WIRE_MORE_BYTES) {
        td_wire_message m = td_wire_new(TD_WIRE_UNIFORMS, 0);

        m.uniforms.ticket = run->ticket;
        m.uniforms.first = first;
        m.uniforms.bytes = more - first < TD_WIRE_MORE_BYTES ? more - first : (uint32_t)TD_WIRE_MORE_BYTES;
        memcpy(m.uniforms.uniforms, from + first, m.uniforms.bytes);
        status = td_ring_put(&r->ring, &m, why, TD_WHY_BYTES);
    }
    return status == TANDEM_OK ? td_ring_put(&r->ring, run, why, TD_WHY_BYTES) : status;
}
