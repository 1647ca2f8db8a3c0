/* What the worker says: that it can begin, its answers to requests, its last words.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "engine_plugin/daemon/answers.h"
#include "engine_plugin/daemon/clients.h"
#include "engine_plugin/daemon/log.h"
#include "engine_plugin/daemon/manager.h"
#include "engine_plugin/daemon/networks.h"
#include "engine_plugin/daemon/pass.h"
#include "engine_plugin/daemon/queue_dispatch.h"
#include "engine_plugin/daemon/queue_jobs.h"
#include "engine_plugin/daemon/replies.h"
#include "engine_plugin/daemon/state.h"
#include "engine_plugin/daemon/worker_requests.h"
#include "interop/os/clock.h"
#include "interop/os/descriptor.h"

/* Of a mem, a timeline or an instance. */
static void on_shared_answer(td_broker *b, td_shared *s, const td_worker_message *t)
{
    td_client *c = s->client;
    const uint32_t serial = s->pending;

    s->pending = 0;
    s->imported = t->status == TANDEM_OK;
    s->status = t->status;
    if (s == c->temp_output)
        td_queue_wake(b);
    if (s->imported) {
        if (serial)
            td_client_done(b, c, serial, s->id);
        return;
    }
    b->numbers[s->number] = 0;
    s->number = 0;
    if (s == c->temp_output) {
        td_queue_without_temp_output(b, c);
    } else if (serial) {
        td_client_error(b, c, serial, 0, t->status, t->text);
        td_shared_end(b, s);
    } else {
        td_queue_fail_users(b, c, s, t->status, t->text);
    }
}

/* The worker had no memory for it: once more, without those that are idle. */
static bool load_again(td_broker *b, td_cached_model *cached)
{
    if (cached->retried || !td_model_cache_evict_idle(b, cached) || !td_cached_model_send(b, cached))
        return false;
    cached->retried = true;
    return true;
}

static void on_model_answer(td_broker *b, td_cached_model *cached, const td_worker_message *t)
{
    char why[TD_TEXT_BYTES];

    if (t->status == TANDEM_ERROR_NOMEM && load_again(b, cached))
        return;
    cached->loaded = t->status == TANDEM_OK;
    cached->state_bytes = t->network.state_bytes;
    cached->used_ns = td_now_ns();
    cached->retried = false;
    if (!cached->loaded) {
        b->numbers[cached->number] = 0;
        cached->number = 0;
        cached->status = t->status;
        cached->evicted = true;
        td_cached_model_count(b, cached, false);
    }
    cached->uses++; /* until all have heard */
    if (!cached->loaded) {
        td_fail(why, sizeof why, t->status, "model is one that the worker could not load: %s", t->text);
        td_cached_model_fail_readers(b, cached, t->status, why);
    }
    for (td_client *c = b->clients; c; c = c->next)
        for (td_shared *s = c->shared, *next; s; s = next) {
            const uint32_t serial = s->pending;

            next = s->next;
            if (s->cached != cached || s->kind != TD_WIRE_KIND_MODEL)
                continue;
            s->pending = 0;
            s->imported = cached->loaded;
            if (cached->loaded && serial)
                td_client_done(b, c, serial, s->id);
            if (cached->loaded)
                continue;
            if (serial) {
                td_client_error(b, c, serial, 0, t->status, t->text);
                td_shared_end(b, s);
            } else if (s->model_mem) {
                s->model_mem->status = t->status;
                td_queue_fail_users(b, c, s->model_mem, t->status, t->text);
            }
        }
    td_cached_model_drop(b, cached);
}

static void on_tensor_answer(td_broker *b, td_client *c, uint32_t serial, uint64_t mem, const td_worker_message *t)
{
    td_wire_message m = td_wire_new(TD_WIRE_TENSOR, serial);
    td_shared *of = td_ids_find(&c->mems, mem);

    if (!of || t->status != TANDEM_OK) {
        const tandem_status unloaded = of && of->cached ? of->cached->status : TANDEM_OK;

        td_client_error(b, c, serial, 0, !of ? TANDEM_ERROR_ARG : unloaded ? unloaded : t->status,
                        !of        ? "the model was destroyed"
                        : unloaded ? "model is one that the worker could not load"
                                   : t->text);
        return;
    }
    if (of->bytes < t->bytes) /* as much of the mem as a client can know of */
        of->bytes = t->bytes;
    m.tensor.view = t->view;
    m.tensor.view.mem = mem;
    memcpy(m.tensor.shape, t->shape, sizeof m.tensor.shape);
    td_client_answered(c, serial);
    td_client_send(b, c, &m, NULL);
}

static void on_info_answer(td_broker *b, td_client *c, uint32_t serial, const tandem_info *info)
{
    td_wire_message m = td_wire_new(TD_WIRE_INFO_REPLY, serial);
    td_wire_info *r = &m.info;

    r->backend = info->backend;
    r->rung = info->rung;
    r->sm = info->sm;
    r->cuda_driver_version = info->cuda_driver_version;
    r->cpu_threads = info->cpu_threads;
    r->epoch = b->epoch;
    r->host_bytes = info->host_bytes;
    r->device_bytes = info->device_bytes;
    r->jobs_submitted = c->submitted;
    r->jobs_done = c->done;
    r->jobs_stale = c->stale;
    r->jobs_cancelled = c->cancelled;
    r->jobs_failed = c->failed;
    r->cuda_copies = info->cuda_copies;
    r->cuda_allocations = info->cuda_allocations;
    r->cuda_host_waits = info->cuda_host_waits;
    r->cuda_launches = info->cuda_launches;
    memcpy(r->device_uuid, info->device_uuid, sizeof r->device_uuid);
    td_wire_sentence(r->rung_reason, sizeof r->rung_reason, info->rung_reason);
    td_wire_text(r->device, sizeof r->device, info->device);
    td_wire_text(r->isa, sizeof r->isa, info->isa);
    td_client_answered(c, serial);
    td_client_send(b, c, &m, NULL);
}

/* False: there will never be a worker. */
static bool on_worker_hello(td_broker *b, const td_worker_message *t)
{
    if (t->status != TANDEM_OK) {
        td_say(TD_LOG_ERROR, "the worker cannot begin: %s", t->text);
        return b->ready_told;
    }
    b->worker_said = true;
    b->worker_info = t->info;
    b->worker_info.device[sizeof t->info.device - 1] = b->worker_info.rung_reason[sizeof t->info.rung_reason - 1] = 0;
    b->worker_info.tuning_reason[sizeof t->info.tuning_reason - 1] = 0;
    b->costs.is_gpu = t->info.backend == TANDEM_BACKEND_CUDA;
    td_say(TD_LOG_INFO, "worker (process %d) computes on %s (%s)", b->worker_pid, b->worker_info.device,
           b->worker_info.rung_reason);
    if (b->config.tuning[0] && t->info.tuning == TANDEM_TUNING_GIVEN)
        td_say(TD_LOG_INFO, "AUTO goes by %s", b->config.tuning);
    else if (b->config.tuning[0])
        td_say(TD_LOG_WARN, "tuning is '%s': %s", b->config.tuning, b->worker_info.tuning_reason);
    memcpy(b->identity.device_uuid, t->identity.device_uuid, sizeof b->identity.device_uuid);
    b->identity.driver_id = t->identity.driver_id;
    b->identity.driver_version = t->identity.driver_version;
    if (!b->ready_told)
        td_manager_tell(b->notify, "READY=1");
    b->ready_told = true;
    td_clients_identified(b);
    return true;
}

void td_worker_request_answer(td_broker *b, td_worker_request *e, const td_worker_message *t, int fd)
{
    const td_worker_request was = *e;

    td_worker_request_remove(b, e);
    switch ((td_worker_message_kind)was.message.kind) {
    case TD_WORKER_MEM:
    case TD_WORKER_TIMELINE:
    case TD_WORKER_INSTANCE:
        if (was.shared)
            on_shared_answer(b, was.shared, t);
        break;
    case TD_WORKER_BEGIN_SESSION:
        if (t->status != TANDEM_OK) /* what its client shares fails, with the same text */
            td_say(TD_LOG_WARN, "worker (process %d): no session for a client: %s", b->worker_pid, t->text);
        break;
    case TD_WORKER_END_SESSION: b->worker_sessions &= ~(1ull << was.message.worker_session); break;
    case TD_WORKER_MODEL:
        if (was.cached)
            on_model_answer(b, was.cached, t);
        break;
    case TD_WORKER_END: b->numbers[was.message.number] = 0; break;
    case TD_WORKER_FORGET: td_queue_wake(b); break;
    case TD_WORKER_TENSOR:
        if (was.client)
            on_tensor_answer(b, was.client, was.serial, was.object, t);
        break;
    case TD_WORKER_INFO:
        if (was.client && t->status == TANDEM_OK)
            on_info_answer(b, was.client, was.serial, &t->info);
        else if (was.client)
            td_client_error(b, was.client, was.serial, 0, t->status, t->text);
        break;
    case TD_WORKER_GRAPH:
        if (was.client)
            td_networks_send_graph(b, &was, t, fd);
        break;
    case TD_WORKER_PREPARE:
        if (was.client)
            td_networks_send_prepared(b, &was, t);
        td_worker_requests_send(b); /* the next may be */
        break;
    case TD_WORKER_LAYER:
        if (was.client)
            td_networks_send_layer(b, &was, t);
        break;
    case TD_WORKER_STATE:
        if (was.client)
            td_networks_send_state(b, &was, t);
        td_worker_requests_send(b); /* the next may be */
        break;
    default: break;
    }
}

/* fd: what came with it, or -1. */
static bool on_message(td_broker *b, td_worker_message *t, int fd)
{
    td_worker_request *e = b->worker_requests;

    t->text[sizeof t->text - 1] = 0;
    if (t->status > TANDEM_OK || t->status < TANDEM_ERROR_BUSY)
        t->status = TANDEM_ERROR_DEVICE;
    if (t->kind == TD_WORKER_HELLO)
        return on_worker_hello(b, t);
    if (t->kind == TD_WORKER_BROKEN) {
        snprintf(b->worker_text, sizeof b->worker_text, "%s", t->text);
        b->worker_status = t->status == TANDEM_OK ? TANDEM_ERROR_DEVICE : t->status;
        return true;
    }
    while (e && (!e->sent || e->message.serial != t->serial))
        e = e->next;
    if (!e)
        return true;
    if (!e->aside)
        b->answered_ns = td_now_ns();
    td_worker_request_answer(b, e, t, fd);
    return true;
}

bool td_worker_read(td_broker *b)
{
    static td_worker_message t;

    for (;;) {
        int fds[2];
        const tandem_status status = td_fetch(b->worker, &t, sizeof t, fds);
        bool goes_on = true;

        if (status == TANDEM_OK)
            goes_on = on_message(b, &t, fds[0]);
        td_fd_close(&fds[0]);
        td_fd_close(&fds[1]);
        if (status == TANDEM_ERROR_BUSY)
            return true;
        if (status != TANDEM_OK) { /* td_worker_bury() goes on */
            td_fd_close(&b->worker);
            b->worker_said = b->has_worker = false;
            b->lost_ns = td_now_ns();
            return true;
        }
        if (!goes_on)
            return false;
    }
}
