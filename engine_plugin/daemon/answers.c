/* What the worker says: its answers to requests, its end, and a new worker for a dead one.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The new one gets what clients still hold, and again what the old one had not answered. This file calls worker_requests.c,
 * which keeps both.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "engine_plugin/daemon/daemon.h"

#define EARLY_NS TD_SECOND /* a worker that ends sooner than this is started again ever later */
#define MOST_RESPAWN_NS TD_SECOND
#define SAY_END_NS 500000000u /* what the launcher may take to say how a worker has ended */
enum {
    MOST_CRASHES = 3,
    FIRST_TRIES = 5, /* workers that may die before one was ready */
};

/* The worker. */

static bool make_pair(int ends[2])
{
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
        return false;
    return !fcntl(ends[0], F_SETFL, fcntl(ends[0], F_GETFL) | O_NONBLOCK); /* ours */
}

void td_worker_spawn(td_broker *b)
{
    static td_launcher_message ask;
    int ends[2] = {-1, -1}, fds[2], queue = -1;

    b->respawn_ns = 0;
    queue = memfd_create("tandem-queue", MFD_CLOEXEC);
    if (queue < 0 || (errno = posix_fallocate(queue, 0, (off_t)TD_WORKER_QUEUE_BYTES)) || !make_pair(ends))
        goto later;
    b->worker_queue = mmap(NULL, TD_WORKER_QUEUE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, queue, 0);
    if (b->worker_queue == MAP_FAILED) {
        b->worker_queue = NULL;
        goto later;
    }
    b->worker_queue->tuning = b->tuning;
    ask = (td_launcher_message){.kind = TD_LAUNCHER_SPAWN};
    fds[0] = ends[1];
    fds[1] = queue;
    if (td_pass(b->launcher, &ask, sizeof ask, fds, 2) != TANDEM_OK) {
        b->old_worker_queue = b->worker_queue;
        b->worker_queue = NULL;
        goto later;
    }
    b->worker = ends[0];
    b->worker_pid = 0;
    b->worker_said = b->has_worker = false;
    b->worker_text[0] = 0;
    b->worker_status = TANDEM_ERROR_LOST;
    b->killed_ns = 0;
    b->spawned_ns = td_now_ns();
    td_fd_close(&ends[1]);
    td_fd_close(&queue);
    td_queue_wake(b);
    return;
later:
    td_say(TD_LOG_WARN, "no worker can be started, once more in 1 s: %s", strerror(errno));
    td_fd_close(&ends[0]);
    td_fd_close(&ends[1]);
    td_fd_close(&queue);
    b->respawn_ns = td_now_ns() + TD_SECOND;
}

void td_worker_kill(td_broker *b, const char *why)
{
    static td_launcher_message ask;

    if (b->worker < 0)
        return;
    if (why) {
        td_say(TD_LOG_WARN, "worker (process %d) is ended: %s", b->worker_pid, why);
        snprintf(b->worker_text, sizeof b->worker_text, "%s", why);
    }
    b->killed_ns = td_now_ns();
    ask = (td_launcher_message){.kind = TD_LAUNCHER_KILL, .pid = b->worker_pid};
    if (b->worker_pid > 0)
        td_pass(b->launcher, &ask, sizeof ask, NULL, 0);
}

/* Requests as they were before the worker had any. */
static void take_requests_back(td_broker *b)
{
    for (td_worker_request *e = b->worker_requests, *next; e; e = next) {
        next = e->next;
        e->sent = false;
        switch ((td_worker_message_kind)e->message.kind) {
        case TD_WORKER_END:
            b->numbers[e->message.number] = 0;
            td_worker_request_remove(b, e);
            break;
        case TD_WORKER_END_SESSION:
            b->worker_sessions &= ~(1ull << e->message.worker_session);
            td_worker_request_remove(b, e);
            break;
        case TD_WORKER_BEGIN_SESSION: /* the next worker gets others */
        case TD_WORKER_FORGET:
            td_worker_request_remove(b, e);
            break;
        case TD_WORKER_MEM:
        case TD_WORKER_TIMELINE:
            if (!e->shared) /* an END of it was behind */
                td_worker_request_remove(b, e);
            break;
        case TD_WORKER_MODEL:
            if (!e->cached)
                td_worker_request_remove(b, e);
            break;
        default:
            if (!e->client)
                td_worker_request_remove(b, e);
            break;
        }
    }
}

/* What clients still hold is for the next worker. */
static void share_again(td_broker *b)
{
    for (td_cached_model *cached = b->model_cache; cached; cached = cached->next)
        if (cached->loaded && td_cached_model_send(b, cached)) /* jobs that read it wait for it, others do not */
            cached->loaded = false;
    for (td_client *c = b->clients; c; c = c->next) {
        for (td_shared *s = c->shared; s; s = s->next) {
            const bool is_mem = s->kind == TD_WIRE_KIND_MEM && !s->cached;
            td_worker_request *e;

            if (c->state != TD_CLIENT_READY || !s->imported || !(is_mem || s->opaque))
                continue;
            e = td_worker_request_add(b, is_mem ? TD_WORKER_MEM : TD_WORKER_TIMELINE, s->number, true);
            if (!e) {
                s->status = TANDEM_ERROR_NOMEM;
                continue;
            }
            s->imported = false;
            e->again = true;
            td_worker_request_describe(e, s);
        }
        if (c->state == TD_CLIENT_READY)
            td_worker_session_tell(b, c, TD_WORKER_BEGIN_SESSION); /* goes before all of its */
    }
}

static void tell_reset(td_broker *b, td_client *c)
{
    td_wire_message m = td_wire_new(TD_WIRE_RESET, 0);

    m.reset.epoch = b->epoch;
    m.reset.status = b->worker_status;
    m.reset.last_ticket = c->count ? c->order[0]->ticket - 1 : c->last_ticket;
    td_wire_sentence(m.reset.text, sizeof m.reset.text, b->worker_text[0] ? b->worker_text : "the worker died");
    td_client_send(b, c, &m, NULL);
}

static bool knows_end(const td_broker *b)
{
    return b->worker_pid <= 0 || b->ended_pid == b->worker_pid;
}

static void begin_anew(td_broker *b, uint64_t now)
{
    b->old_worker_queue = b->worker_queue;
    b->worker_queue = NULL;
    b->epoch++;
    b->early_ends = b->lost_ns - b->spawned_ns < EARLY_NS ? b->early_ends + 1 : 0;
    b->respawn_ns = now + (b->early_ends > 6 ? MOST_RESPAWN_NS : (10000000ull << b->early_ends));
    b->lost_ns = 0;
    b->hung = 0;
}

static void lose_worker(td_broker *b, uint64_t now)
{
    uint32_t blamed[TD_MAX_BLAMED];
    const uint32_t count = td_blame_find(b, blamed);

    td_say(TD_LOG_ERROR, "worker (process %d) is gone: %s", b->worker_pid,
           b->worker_text[0] ? b->worker_text : "it died");
    td_queue_lost(b, !count);
    for (uint32_t i = 0; i < count; i++)
        td_blame(b, blamed[i]);
    begin_anew(b, now);
    take_requests_back(b);
    share_again(b);
    for (td_client *c = b->clients; c; c = c->next) {
        if (c->state != TD_CLIENT_READY)
            continue;
        tell_reset(b, c);
        if (c->crash_count >= MOST_CRASHES)
            td_client_end(b, c, TANDEM_ERROR_DEVICE, 0, "its jobs and requests ended three workers, one after the other");
    }
    td_queue_wake(b);
}

bool td_worker_bury(td_broker *b)
{
    const uint64_t now = td_now_ns();

    if (!b->lost_ns || (!knows_end(b) && now - b->lost_ns < SAY_END_NS))
        return true;
    lose_worker(b, now);
    if (b->ready_told || b->epoch < FIRST_TRIES)
        return true;
    td_say(TD_LOG_ERROR, "%d workers have died before they could begin", FIRST_TRIES);
    return false;
}

/* Answers. */

static void fail_jobs_on(td_broker *b, td_client *c, const td_shared *mem, tandem_status status, const char *why)
{
    for (uint32_t i = 0; i < c->count; i++) {
        td_work *work = c->order[i];
        bool uses = false;

        for (int v = 0; v < TD_MAX_VIEWS; v++)
            uses = uses || work->mems[v] == mem;
        uses = uses || work->wait == mem || work->signal == mem;
        if (!uses || work->at_worker || td_work_is_given_up(work))
            continue;
        td_client_error(b, c, 0, work->ticket, status, why);
        td_queue_give_up(b, work, TANDEM_JOB_FAILED, status);
    }
    td_queue_retire_given_up(b, c);
}

/* Of a mem or a timeline. */
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
        fail_jobs_on(b, c, s, t->status, t->text);
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
    cached->used_ns = td_now_ns();
    cached->retried = false;
    if (!cached->loaded) {
        b->numbers[cached->number] = 0;
        cached->number = 0;
        cached->status = t->status;
        cached->evicted = true;
        td_cached_model_count(b, cached, false);
    }
    if (!cached->loaded) {
        td_fail(why, sizeof why, t->status, "model is one that the worker could not load: %s", t->text);
        td_cached_model_fail_readers(b, cached, t->status, why);
    }
    cached->uses++; /* until all have heard */
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
                fail_jobs_on(b, c, s->model_mem, t->status, t->text);
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
        td_tell_manager(b, "READY=1");
    b->ready_told = true;
    td_clients_identified(b);
    return true;
}

void td_worker_request_answer(td_broker *b, td_worker_request *e, const td_worker_message *t)
{
    const td_worker_request was = *e;

    td_worker_request_remove(b, e);
    switch ((td_worker_message_kind)was.message.kind) {
    case TD_WORKER_MEM:
    case TD_WORKER_TIMELINE:
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
            on_tensor_answer(b, was.client, was.serial, was.mem, t);
        break;
    case TD_WORKER_INFO:
        if (was.client && t->status == TANDEM_OK)
            on_info_answer(b, was.client, was.serial, &t->info);
        else if (was.client)
            td_client_error(b, was.client, was.serial, 0, t->status, t->text);
        break;
    default: break;
    }
}

static bool on_message(td_broker *b, td_worker_message *t)
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
    td_worker_request_answer(b, e, t);
    return true;
}

bool td_worker_read(td_broker *b)
{
    static td_worker_message t;

    for (;;) {
        int fds[2];
        const tandem_status status = td_fetch(b->worker, &t, sizeof t, fds);

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
        if (!on_message(b, &t))
            return false;
    }
}
