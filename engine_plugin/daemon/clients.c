/* Clients: what each asks for.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/ladder.h"
#include "engine_plugin/daemon/clients.h"
#include "engine_plugin/daemon/descriptors.h"
#include "engine_plugin/daemon/launcher.h"
#include "engine_plugin/daemon/log.h"
#include "engine_plugin/daemon/networks.h"
#include "engine_plugin/daemon/pass.h"
#include "engine_plugin/daemon/queue_jobs.h"
#include "engine_plugin/daemon/quotas.h"
#include "engine_plugin/daemon/replies.h"
#include "engine_plugin/daemon/state.h"
#include "engine_plugin/daemon/worker_requests.h"
#include "interop/os/clock.h"
#include "interop/os/descriptor.h"
#include "interop/os/memory.h"
#include "interop/os/poll.h"

#define CLOSE_NS 2000000000u /* what running jobs get when what they use is destroyed */
enum { MESSAGES_AT_ONCE = 64 };

void td_client_free(td_broker *b, td_client *c)
{
    td_client **at = &b->clients;

    while (c->shared)
        td_shared_end(b, c->shared);
    td_worker_session_tell(b, c, TD_WORKER_END_SESSION);
    for (td_worker_request *e = b->worker_requests, *next; e; e = next) {
        next = e->next;
        if (e->client != c)
            continue;
        e->client = NULL;
        if (!e->sent)
            td_worker_request_remove(b, e);
    }
    for (td_opening *o = b->openings; o; o = o->next)
        if (o->client == c)
            o->client = NULL;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    if (b->last_client == c)
        b->last_client = NULL;
    td_ring_close(&c->ring);
    td_conn_close(&c->conn);
    td_fd_close(&c->process);
    free(c->hello);
    free(c->uniforms);
    free(c->works);
    free(c->slots);
    free(c);
}

static void refuse_model(td_broker *b, td_client *c, uint32_t serial, uint64_t bytes)
{
    char text[TD_TEXT_BYTES];

    td_quota_all_text(b, c, "model", bytes, TD_HELD_MODELS, text, sizeof text);
    td_client_error(b, c, serial, 0, TANDEM_ERROR_NOMEM, text);
}

/* How a client's jobs are computed, as its session calls it. */
static td_way way_of(const td_broker *b, const td_client *c)
{
    return (td_way){b->worker_info.backend == TANDEM_BACKEND_CUDA ? TD_DEVICE_CUDA_ELSEWHERE : TD_DEVICE_CPU,
                    c->share == TD_WIRE_SHARE_OPAQUE ? TD_SHARING_TIMELINE : TD_SHARING_HOST};
}

static void on_hello(td_broker *b, td_client *c, const td_wire_hello *hello)
{
    td_wire_message m = td_wire_new(TD_WIRE_WELCOME, hello->header.serial);
    const td_config *k = &b->config;
    char why[TD_TEXT_BYTES] = "";
    tandem_status status;
    td_ids_slot *slots;
    int fd = -1;

    snprintf(c->name, sizeof c->name, "%s", hello->name);
    if (!td_wire_version(hello->version_min, hello->version_max)) {
        td_fail(why, sizeof why, TANDEM_ERROR_UNSUPPORTED, "versions %u to %u are spoken there, 1 to %d here",
                hello->version_min, hello->version_max, TD_WIRE_VERSION);
        td_client_end(b, c, TANDEM_ERROR_UNSUPPORTED, 0, why);
        return;
    }
    if (hello->share == TD_WIRE_SHARE_OPAQUE && !b->ready_told) { /* which device there is, no worker has said yet */
        c->hello = malloc(sizeof *c->hello);
        if (c->hello)
            *c->hello = *hello;
        else
            td_client_end(b, c, TANDEM_ERROR_NOMEM, 0, "no host memory for a client");
        return;
    }
    status = td_wire_match(&b->identity, &hello->identity, hello->share, why, sizeof why);
    if (status == TANDEM_OK && hello->backend != TD_WIRE_BACKEND_AUTO && b->worker_info.backend &&
        hello->backend != b->worker_info.backend)
        status = td_fail(why, sizeof why, TANDEM_ERROR_UNSUPPORTED,
                         "backend is %u, but this daemon computes with %u (%s)", hello->backend,
                         b->worker_info.backend, b->worker_info.device);
    if (status != TANDEM_OK) {
        td_client_end(b, c, status, 0, why);
        return;
    }
    if (b->client_count >= td_fds_shared(b).clients || b->stopping) {
        td_client_end(b, c, TANDEM_OK, b->stopping ? TD_WIRE_BYE_STOPPING : TD_WIRE_BYE_FULL, "no room");
        return;
    }
    c->slots = slots = calloc((size_t)k->mems + k->timelines + k->models + TD_MAX_INSTANCES, sizeof *slots);
    c->works = calloc(TD_MAX_WORKS, sizeof *c->works);
    m.welcome.sizes = td_wire_sizes_with(hello);
    status = slots && c->works ? td_ring_make(&c->ring, &m.welcome.sizes, &fd, why, sizeof why) : TANDEM_ERROR_NOMEM;
    if (status != TANDEM_OK) {
        td_client_end(b, c, status, 0, why[0] ? why : "no host memory for a client");
        return;
    }
    td_ids_begin(&c->mems, TD_WIRE_KIND_MEM, slots, k->mems);
    td_ids_begin(&c->timelines, TD_WIRE_KIND_TIMELINE, slots + k->mems, k->timelines);
    td_ids_begin(&c->models, TD_WIRE_KIND_MODEL, slots + k->mems + k->timelines, k->models);
    td_ids_begin(&c->instances, TD_WIRE_KIND_INSTANCE, slots + k->mems + k->timelines + k->models, TD_MAX_INSTANCES);
    c->session = ++b->session_count;
    c->share = hello->share;
    c->jobs_in_flight = hello->frames_in_flight ? hello->frames_in_flight : 3;
    c->timing = hello->timing;
    c->job_class = hello->job_class;
    c->wait_bound_ns = hello->wait_bound_ns ? hello->wait_bound_ns : 2 * TD_SECOND;
    c->features = td_wire_features_with(hello) & (k->model_dir_count ? TD_WIRE_FEATURES : TD_WIRE_STATISTICS);
    m.welcome.version = td_wire_version(hello->version_min, hello->version_max);
    m.welcome.features = c->features;
    if (m.welcome.version > 1)
        td_wire_operations_with(&c->rules, hello->operations, m.welcome.operations);
    m.welcome.identity = b->identity;
    m.welcome.share = c->share;
    m.welcome.session = c->session;
    m.welcome.epoch = b->epoch;
    m.welcome.frames_in_flight = c->jobs_in_flight;
    m.welcome.mems = k->mems;
    m.welcome.timelines = k->timelines;
    m.welcome.models = k->models;
    m.welcome.instances = c->features & TD_WIRE_NETWORKS ? TD_MAX_INSTANCES : 0;
    m.welcome.requests = TD_MAX_REQUESTS;
    m.welcome.mem_bytes = k->mem_bytes;
    m.welcome.quota_bytes = k->client_bytes;
    m.welcome.rung = td_rung_of(way_of(b, c), 0);
    snprintf(why, sizeof why, "tandemd %d.%d.%d", TANDEM_VERSION_MAJOR, TANDEM_VERSION_MINOR, TANDEM_VERSION_PATCH);
    td_wire_text(m.welcome.name, sizeof m.welcome.name, why);
    td_wire_rules_welcome(&c->rules, &m.welcome);
    c->state = TD_CLIENT_READY;
    b->new_count--;
    b->client_count++;
    c->virtual_ns = td_schedule_join(&b->schedule, c->job_class, 0);
    td_worker_session_open(b, c);
    td_client_send(b, c, &m, &fd);
    td_fd_close(&fd);
    td_say(TD_LOG_INFO, "client %u: process %d of user %u, '%s'", c->session, (int)c->conn.pid, c->conn.uid, c->name);
    td_queue_wake(b);
}

void td_clients_identified(td_broker *b)
{
    for (td_client *c = b->clients, *next; c; c = next) {
        td_wire_hello *hello = c->hello;

        next = c->next;
        c->hello = NULL;
        if (hello && c->state == TD_CLIENT_NEW)
            on_hello(b, c, hello);
        else if (c->state == TD_CLIENT_READY && !c->worker_session)
            td_worker_session_open(b, c);
        free(hello);
    }
}

static void on_mem_create(td_broker *b, td_client *c, const td_wire_mem_create *m, int *fd)
{
    const td_config *k = &b->config;
    const uint32_t serial = m->header.serial;
    char why[TD_TEXT_BYTES] = "";
    const bool opaque = m->kind == TD_WIRE_MEM_OPAQUE;
    tandem_status status = opaque ? td_opaque_check(*fd, why, sizeof why)
                                  : td_memfd_check(*fd, m->allocation_bytes, false, why, sizeof why);
    uint64_t adds;
    td_shared *mem;

    if (status != TANDEM_OK) {
        td_client_end(b, c, status, 0, why);
        return;
    }
    adds = td_mem_adds(c, *fd, m->bytes, m->allocation_bytes);
    if (!td_client_fits(b, c, adds))
        td_temp_outputs_end(b, 0);
    if (!td_client_fits(b, c, adds)) {
        if (adds > td_room_in(k->client_bytes, c->mem_bytes + td_scratch_held(b, c)))
            td_quota_own_text(b, c, adds > m->bytes ? "allocation_bytes" : "bytes", adds, why, sizeof why);
        else
            td_quota_all_text(b, c, adds > m->bytes ? "mem's allocation" : "mem", adds, TD_HELD_MEMS, why, sizeof why);
        td_client_error(b, c, serial, 0, TANDEM_ERROR_NOMEM, why);
        return;
    }
    if (!td_fd_fits(b, c, why, sizeof why)) {
        td_client_error(b, c, serial, 0, TANDEM_ERROR_NOMEM, why);
        return;
    }
    mem = td_shared_add(c, TD_WIRE_KIND_MEM);
    if (!mem) {
        td_fail(why, sizeof why, TANDEM_ERROR_NOMEM, "all %u mems are in use", c->mems.capacity);
        td_client_error(b, c, serial, 0, TANDEM_ERROR_NOMEM, why);
        return;
    }
    mem->pending = serial;
    mem->bytes = m->bytes;
    mem->allocation_bytes = m->allocation_bytes;
    mem->offset_bytes = m->offset_bytes;
    mem->opaque = opaque;
    mem->dedicated = m->dedicated;
    mem->fd = *fd;
    *fd = -1;
    if (!td_mem_bring(b, mem)) {
        td_client_error(b, c, serial, 0, TANDEM_ERROR_NOMEM, "no host memory for a mem");
        td_shared_end(b, mem);
    }
}

/* One that Vulkan exported is the worker's to import. */
static void import_timeline(td_broker *b, td_shared *timeline, uint32_t serial, int *fd)
{
    td_worker_request *request;

    timeline->opaque = true;
    timeline->pending = serial;
    timeline->fd = *fd;
    *fd = -1;
    timeline->number = td_number_take(b);
    request = timeline->number ? td_worker_request_add(b, TD_WORKER_TIMELINE, timeline->number, false) : NULL;
    if (request) {
        td_worker_request_describe(request, timeline);
        return;
    }
    b->numbers[timeline->number] = 0;
    timeline->number = 0;
    td_client_error(b, timeline->client, serial, 0, TANDEM_ERROR_NOMEM, "no host memory for a timeline");
    td_shared_end(b, timeline);
}

static void on_timeline_create(td_broker *b, td_client *c, const td_wire_timeline_create *m, int *fd)
{
    const bool opaque = m->kind == TD_WIRE_TIMELINE_OPAQUE;
    char why[TD_TEXT_BYTES] = "";
    td_shared_timeline counter = {.highest = m->initial_value};
    const tandem_status status =
        opaque ? td_opaque_check(*fd, why, sizeof why) : td_shared_timeline_open(&counter, *fd, why, sizeof why);
    td_shared *timeline;

    if (status == TANDEM_ERROR_PROTOCOL) {
        td_client_end(b, c, status, 0, why);
        return;
    }
    if (status != TANDEM_OK) {
        td_client_error(b, c, m->header.serial, 0, status, why);
        return;
    }
    if (opaque && !td_fd_fits(b, c, why, sizeof why)) {
        td_client_error(b, c, m->header.serial, 0, TANDEM_ERROR_NOMEM, why);
        return;
    }
    timeline = td_shared_add(c, TD_WIRE_KIND_TIMELINE);
    if (!timeline) {
        td_shared_timeline_close(&counter);
        td_fail(why, sizeof why, TANDEM_ERROR_NOMEM, "all %u timelines are in use", c->timelines.capacity);
        td_client_error(b, c, m->header.serial, 0, TANDEM_ERROR_NOMEM, why);
        return;
    }
    timeline->timeline = counter;
    timeline->by_daemon = m->signaller;
    timeline->promised = counter.highest > m->initial_value ? counter.highest : m->initial_value;
    if (timeline->by_daemon)
        timeline->timeline.highest = timeline->promised;
    else
        timeline->announced = m->initial_value;
    if (opaque) {
        import_timeline(b, timeline, m->header.serial, fd);
        return;
    }
    timeline->imported = true;
    td_client_done(b, c, m->header.serial, timeline->id);
}

/* Its jobs that have not begun are over; the second thread looks when the others are. */
static void on_destroy(td_broker *b, td_client *c, const td_wire_object *m, td_wire_kind kind)
{
    static const char *const names[TD_WIRE_KINDS] = {"", "mem", "timeline", "model", "instance"};
    td_shared *s = td_ids_find(td_shared_ids(c, kind), m->id), *used;
    char why[TD_TEXT_BYTES];

    if (!s || s->closing || s->pending || (kind == TD_WIRE_KIND_MEM && s->cached)) {
        td_fail(why, sizeof why, TANDEM_ERROR_ARG, "%s is 0x%" PRIx64 ", which %s", names[kind], m->id,
                !s                                          ? "was destroyed"
                : kind == TD_WIRE_KIND_MEM && s->cached ? "belongs to a model"
                             : "is being made or destroyed");
        td_client_error(b, c, m->header.serial, 0, TANDEM_ERROR_ARG, why);
        return;
    }
    s->closing = true;
    s->close_serial = m->header.serial;
    s->close_until_ns = td_now_ns() + CLOSE_NS;
    used = s->model_mem ? s->model_mem : s;
    if (s->model_mem)
        s->model_mem->closing = true;
    for (uint32_t i = 0; i < c->count; i++) {
        td_work *work = c->order[i];

        if (td_work_uses(work, used) && !work->at_worker)
            td_queue_give_up(b, work, TANDEM_JOB_CANCELLED, TANDEM_OK);
    }
    td_queue_retire_given_up(b, c);
}

/* Models. */

static void on_model(td_broker *b, td_client *c, uint32_t serial, const char path[TD_WIRE_PATH_BYTES],
                     const td_wire_language *language)
{
    static td_launcher_message ask;
    td_opening *opening = calloc(1, sizeof *opening);

    ask = (td_launcher_message){.kind = TD_LAUNCHER_OPEN, .serial = ++b->open_serial};
    memcpy(ask.text, path, sizeof ask.text);
    if (!opening || td_pass(b->launcher, &ask, sizeof ask, NULL, 0) != TANDEM_OK) {
        free(opening);
        td_client_error(b, c, serial, 0, TANDEM_ERROR_BUSY, "too many files are being opened");
        return;
    }
    *opening = (td_opening){ask.serial, serial, c, *language, b->openings};
    b->openings = opening;
}

static td_cached_model *find_cached(td_broker *b, const td_fd_identity *is, const td_wire_language *language)
{
    for (td_cached_model *cached = b->model_cache; cached; cached = cached->next)
        if (cached->status == TANDEM_OK && cached->device == is->device && cached->inode == is->number &&
            cached->mtime_ns == is->changed_ns && cached->file_bytes == is->bytes &&
            !memcmp(&cached->language, language, sizeof *language))
            return cached;
    return NULL;
}

/* What it counts as: in float32 a matrix takes twice as much as in the file, or less. */
static uint64_t bytes_of(const td_fd_identity *is, const td_wire_language *language)
{
    return language->cache == TANDEM_CACHE_F32 ? 2 * is->bytes : is->bytes;
}

static td_cached_model *cache_model(td_broker *b, const td_client *c, const td_fd_identity *is,
                                    const td_wire_language *language, int *fd)
{
    td_cached_model *made = calloc(1, sizeof *made);

    if (!made)
        return NULL;
    made->session = c->session;
    made->number = td_number_take(b);
    made->language = *language;
    if (!td_cached_model_send(b, made)) {
        b->numbers[made->number] = 0;
        free(made);
        return NULL;
    }
    made->device = is->device;
    made->inode = is->number;
    made->mtime_ns = is->changed_ns;
    made->file_bytes = is->bytes;
    made->bytes = bytes_of(is, language);
    made->fd = *fd;
    *fd = -1;
    made->next = b->model_cache;
    b->model_cache = made;
    b->model_bytes += made->bytes;
    return made;
}

void td_client_opened(td_broker *b, const td_launcher_message *m, int *fd)
{
    td_opening **at = &b->openings, *opening;
    td_wire_language language;
    td_cached_model *cached;
    td_client *c;
    char why[TD_TEXT_BYTES];
    td_shared *model;
    uint32_t serial;
    td_fd_identity is;

    while (*at && (*at)->serial != m->serial)
        at = &(*at)->next;
    opening = *at;
    if (!opening)
        return;
    *at = opening->next;
    c = opening->client;
    serial = opening->request;
    language = opening->language;
    free(opening);
    if (!c || c->state != TD_CLIENT_READY)
        return;
    if (m->status != TANDEM_OK || *fd < 0 || !td_fd_identify(*fd, &is)) {
        td_client_error(b, c, serial, 0, TANDEM_ERROR_IO,
                        m->status != TANDEM_OK ? m->text : "the file cannot be looked at");
        return;
    }
    if (!td_fd_fits(b, c, why, sizeof why)) {
        td_client_error(b, c, serial, 0, TANDEM_ERROR_NOMEM, why);
        return;
    }
    cached = find_cached(b, &is, &language);
    if (!cached ? !td_model_cache_make_room(b, bytes_of(&is, &language), NULL)
                : cached->evicted && td_cached_model_load(b, cached, c) != TANDEM_OK) {
        refuse_model(b, c, serial, bytes_of(&is, &language));
        return;
    }
    model = td_shared_add(c, TD_WIRE_KIND_MODEL);
    if (model && !cached)
        cached = cache_model(b, c, &is, &language, fd);
    if (!model || !cached) {
        if (model)
            td_shared_end(b, model);
        td_client_error(b, c, serial, 0, TANDEM_ERROR_NOMEM,
                        model ? "no host memory for a model" : "all models are in use");
        return;
    }
    cached->uses++;
    model->cached = cached;
    c->model_bytes += cached->bytes;
    model->imported = cached->loaded;
    if (cached->loaded)
        td_client_done(b, c, serial, model->id);
    else
        model->pending = serial;
}

static void on_model_tensor(td_broker *b, td_client *c, const td_wire_model_tensor *m)
{
    td_shared *model = td_ids_find(&c->models, m->model);
    td_worker_request *request;
    char why[TD_TEXT_BYTES];

    if (!model || model->closing || model->pending) {
        td_fail(why, sizeof why, TANDEM_ERROR_ARG, "model is 0x%" PRIx64 ", which %s", m->model,
                model && model->pending ? "is not loaded yet" : "was destroyed");
        td_client_error(b, c, m->header.serial, 0, TANDEM_ERROR_ARG, why);
        return;
    }
    if (model->cached->status != TANDEM_OK) {
        td_fail(why, sizeof why, model->cached->status, "model is 0x%" PRIx64 ", which the worker could not load",
                m->model);
        td_client_error(b, c, m->header.serial, 0, model->cached->status, why);
        return;
    }
    if (!model->model_mem) {
        model->model_mem = td_shared_add(c, TD_WIRE_KIND_MEM);
        if (model->model_mem) {
            model->model_mem->cached = model->cached;
            model->model_mem->imported = true;
        }
    }
    if (model->cached->evicted && td_cached_model_load(b, model->cached, c) != TANDEM_OK) {
        refuse_model(b, c, m->header.serial, model->cached->bytes);
        return;
    }
    request = model->model_mem ? td_worker_request_add(b, TD_WORKER_TENSOR, model->cached->number, false) : NULL;
    if (!request) {
        td_client_error(b, c, m->header.serial, 0, TANDEM_ERROR_NOMEM, "all mems are in use");
        return;
    }
    request->client = c;
    request->session = c->session;
    request->reads = model->cached;
    request->serial = m->header.serial;
    request->object = model->model_mem->id;
    snprintf(request->message.text, sizeof request->message.text, "%s", m->name);
}

static void on_stats(td_broker *b, td_client *c, const td_wire_stats *m)
{
    td_wire_message r = td_wire_new(TD_WIRE_STATS_REPLY, m->header.serial);
    const uint64_t now = td_now_ns();
    uint32_t at = 0;

    r.stats_reply.first = m->first;
    for (const td_client *o = b->clients; o; o = o->next) {
        td_wire_row *row;

        if (o->state != TD_CLIENT_READY)
            continue;
        if (at++ < m->first || r.stats_reply.count == TD_WIRE_ROWS)
            continue;
        row = &r.stats_reply.rows[r.stats_reply.count++];
        row->session = o->session;
        row->pid = (uint32_t)o->conn.pid;
        row->uid = o->conn.uid;
        row->job_class = o->job_class;
        for (uint32_t i = 0; i < o->count; i++) {
            row->running += o->order[i]->at_worker > 0;
            row->queued += !o->order[i]->at_worker;
        }
        td_wire_text(row->name, sizeof row->name, o->name);
        row->jobs_done = o->done;
        row->jobs_stale = o->stale;
        row->jobs_cancelled = o->cancelled;
        row->jobs_failed = o->failed;
        row->gpu_ns = o->compute_ns;
        row->wait_ns = o->wait_ns;
        row->mem_bytes = o->mem_bytes + td_scratch_held(b, o);
        row->model_bytes = o->model_bytes;
        row->connected_ns = now - o->since_ns;
    }
    r.stats_reply.total = at;
    if (r.stats_reply.first > at)
        r.stats_reply.first = at;
    td_client_answered(c, m->header.serial);
    td_client_send(b, c, &r, NULL);
}

static void on_info(td_broker *b, td_client *c, uint32_t serial)
{
    td_worker_request *request = td_worker_request_add(b, TD_WORKER_INFO, 0, false);

    if (!request) {
        td_client_error(b, c, serial, 0, TANDEM_ERROR_NOMEM, "no host memory for an answer");
        return;
    }
    request->client = c;
    request->session = c->session;
    request->serial = serial;
}

static void on_message(td_broker *b, td_client *c, const td_wire_message *m, int *fd)
{
    const uint32_t serial = m->header.serial;

    if (serial && c->pending >= TD_MAX_REQUESTS) {
        char why[80];

        td_fail(why, sizeof why, TANDEM_ERROR_BUSY, "%d requests are without answer", TD_MAX_REQUESTS);
        c->pending++;
        td_client_error(b, c, serial, 0, TANDEM_ERROR_BUSY, why);
        return;
    }
    c->pending += serial != 0;
    switch ((td_wire_type)m->header.type) {
    case TD_WIRE_HELLO:
        c->pending--; /* WELCOME answers it, or nothing does */
        if (c->hello)
            td_client_end(b, c, TANDEM_ERROR_PROTOCOL, 0, "HELLO came twice");
        else
            on_hello(b, c, &m->hello);
        break;
    case TD_WIRE_PING: td_client_done(b, c, serial, 0); break;
    case TD_WIRE_INFO: on_info(b, c, serial); break;
    case TD_WIRE_MEM_CREATE: on_mem_create(b, c, &m->mem_create, fd); break;
    case TD_WIRE_MEM_DESTROY: on_destroy(b, c, &m->object, TD_WIRE_KIND_MEM); break;
    case TD_WIRE_TIMELINE_CREATE: on_timeline_create(b, c, &m->timeline_create, fd); break;
    case TD_WIRE_TIMELINE_DESTROY: on_destroy(b, c, &m->object, TD_WIRE_KIND_TIMELINE); break;
    case TD_WIRE_MODEL_LOAD: on_model(b, c, serial, m->model_load.path, &(td_wire_language){0}); break;
    case TD_WIRE_MODEL_CREATE: on_model(b, c, serial, m->model_create.path, &m->model_create.language); break;
    case TD_WIRE_MODEL_TENSOR: on_model_tensor(b, c, &m->model_tensor); break;
    case TD_WIRE_MODEL_DESTROY: on_destroy(b, c, &m->object, TD_WIRE_KIND_MODEL); break;
    case TD_WIRE_MODEL_GRAPH: td_networks_on_graph(b, c, &m->object); break;
    case TD_WIRE_MODEL_INSTANCE: td_networks_on_instance(b, c, &m->model_instance); break;
    case TD_WIRE_INSTANCE_CREATE: td_networks_on_instance_create(b, c, &m->instance_create); break;
    case TD_WIRE_INSTANCE_LAYER: td_networks_on_layer(b, c, &m->instance_layer); break;
    case TD_WIRE_INSTANCE_STATE: td_networks_on_state(b, c, &m->instance_state); break;
    case TD_WIRE_MODEL_PREPARE: td_networks_on_prepare(b, c, &m->model_prepare); break;
    case TD_WIRE_INSTANCE_DESTROY: on_destroy(b, c, &m->object, TD_WIRE_KIND_INSTANCE); break;
    case TD_WIRE_STATS: on_stats(b, c, &m->stats); break;
    case TD_WIRE_BYE: td_client_end(b, c, TANDEM_ERROR_LOST, 0, "it says goodbye"); break;
    default: break; /* td_wire_check() lets nothing else pass */
    }
}

/* Whether a message of its may be carried out: what was put before it comes before it. Once a message is there, so is in
 * the ring what was put before that was sent. Who has gone waits for nothing. */
static bool may_read(td_broker *b, td_client *c)
{
    td_polled p = {c->conn.fd, TD_POLL_READS, 0};

    if (c->state != TD_CLIENT_READY)
        return true;
    if (!td_poll(&p, 1, 0) || !p.found)
        return false;
    c->held = !td_queue_take(b, c) && !(p.found & TD_POLL_GONE);
    return !c->held && c->state != TD_CLIENT_GONE;
}

void td_client_read(td_broker *b, td_client *c)
{
    c->held = false;
    for (int i = 0; i < MESSAGES_AT_ONCE && c->state != TD_CLIENT_GONE && may_read(b, c); i++) {
        int fds[TD_WIRE_MAX_FDS];
        char why[TD_TEXT_BYTES] = "";
        td_wire_message m;
        const tandem_status status =
            td_conn_recv(&c->conn, &c->rules, TD_WIRE_TO_DAEMON, &m, fds, why, sizeof why);

        if (status == TANDEM_ERROR_BUSY)
            break;
        if (status == TANDEM_ERROR_NOMEM && c->state == TD_CLIENT_READY) {
            td_client_error(b, c, m.header.serial, 0, status, why);
        } else if (status != TANDEM_OK) {
            td_client_end(b, c, status, 0, why);
        } else {
            on_message(b, c, &m, &fds[0]);
        }
        td_fd_close(&fds[0]);
    }
    if (c->state == TD_CLIENT_READY)
        td_queue_wake(b);
}
