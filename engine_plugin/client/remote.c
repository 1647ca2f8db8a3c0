/* Sessions whose jobs tandemd computes: how one begins and ends, and the thread that looks after its connection.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Only the computing is elsewhere. Ids, checks, points and reports are those of any session.
 *
 * A thread of the session's looks after the connection: it takes what the daemon says, sees at once that it is gone,
 * wakes whoever waits for it, connects again and shares anew what is alive. The connection belongs to whoever has the
 * lock; while there is none (`up` is false), to that thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interop/os/event.h"

#include "engine_plugin/client/remote.h"

#define RECONNECT_MIN_NS 10000000u /* until the next try; twice as long each time, up to */
#define RECONNECT_MAX_NS ((uint64_t)1000000000)

/* A model that this connection was told nothing of, also one whose destruction waits, and may give up; NULL: there is none. */
static td_model *find_untold_model_locked(const tandem_session *s)
{
    for (uint32_t i = 0; i < s->models.capacity; i++) {
        td_model *model = (td_model *)s->models.slots[i];

        if (model && model->remote->connection != s->remote->connection)
            return model;
    }
    return NULL;
}

/* With a new connection: what is alive. What the daemon does not take, fails the jobs that name it. Models come last, until
 * there is none left, since some may enter while the lock is released; a job shares what else does so. */
static tandem_status share_again_locked(tandem_session *s, char *why)
{
    td_remote *r = s->remote;
    tandem_status status = TANDEM_OK;
    td_model *model;

    for (uint32_t i = 0; i < s->mems.capacity && status != TANDEM_ERROR_LOST; i++) {
        td_mem *mem = (td_mem *)s->mems.slots[i];

        if (!mem || mem->object.closing || !mem->shared.valid || mem->shared.connection == r->connection)
            continue;
        mem->object.uses++;
        status = td_remote_share_mem_locked(s, mem, why);
        td_object_release_locked(s, &mem->object);
    }
    for (uint32_t i = 0; i < s->timelines.capacity && status != TANDEM_ERROR_LOST && td_gpu_signals(s); i++) {
        td_timeline *timeline = (td_timeline *)s->timelines.slots[i];

        if (!timeline || timeline->object.closing || timeline->remote.connection == r->connection)
            continue;
        timeline->object.uses++;
        status = td_remote_share_timeline_locked(s, timeline, why);
        td_object_release_locked(s, &timeline->object);
    }
    while (status != TANDEM_ERROR_LOST && (model = find_untold_model_locked(s))) {
        model->mem->object.uses++; /* a destruction waits */
        status = td_remote_load_again_locked(s, model, why);
        model->mem->shared.status = status;
        td_object_release_locked(s, &model->mem->object);
    }
    return status == TANDEM_ERROR_LOST || status == TANDEM_ERROR_PROTOCOL ? status : TANDEM_OK;
}

static void *look_after(void *user)
{
    tandem_session *s = user;
    td_remote *r = s->remote;
    uint64_t reconnect_ns = RECONNECT_MIN_NS, gone_ns = 0;

    td_thread_name("tandem remote");
    pthread_mutex_lock(&s->lock);
    while (!r->stopping) {
        char why[TD_WHY_BYTES] = "";
        tandem_status status;

        if (r->up) {
            status = td_remote_serve_locked(s, why);
            if (r->stopping)
                break;
            gone_ns = td_now_ns();
            r->over = status == TANDEM_ERROR_PROTOCOL || status == TANDEM_ERROR_UNSUPPORTED ||
                      status == TANDEM_ERROR_DEVICE;
            td_remote_disconnect_locked(s, why);
            reconnect_ns = RECONNECT_MIN_NS;
            pthread_mutex_unlock(&s->lock);
            td_logf(&s->log, TD_LOG_WARN, "tandemd at '%s' is gone: %s; %s", r->path, why,
                    r->over ? "the session ends" : "trying to reach it again");
            pthread_mutex_lock(&s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        td_remote_sleep(r, false, r->over ? TD_WIRE_MAX_WAIT_NS : reconnect_ns);
        pthread_mutex_lock(&s->lock);
        if (r->stopping || r->over)
            continue;
        status = td_remote_connect_locked(s, why);
        if (status == TANDEM_OK) {
            status = share_again_locked(s, why);
            if (status != TANDEM_OK && !r->stopping)
                td_remote_disconnect_locked(s, why);
        }
        r->up = status == TANDEM_OK;
        r->over = status == TANDEM_ERROR_PROTOCOL;
        if (reconnect_ns < RECONNECT_MAX_NS)
            reconnect_ns = reconnect_ns * 2 < RECONNECT_MAX_NS ? reconnect_ns * 2 : RECONNECT_MAX_NS;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        if (status == TANDEM_OK)
            td_logf(&s->log, TD_LOG_WARN, "tandemd at '%s' is back after %" PRIu64 " ms", r->path,
                    (td_now_ns() - gone_ns) / 1000000);
        else
            td_logf(&s->log, TD_LOG_DEBUG, "tandemd at '%s': %s", r->path, why);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* The session's. */

static tandem_status find_path(td_remote *r, const char *socket, char *why)
{
    char reason[TD_WHY_BYTES];
    tandem_status status;

    r->named = socket[0];
    if (r->named && (size_t)snprintf(r->path, sizeof r->path, "%s", socket) >= sizeof r->path)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.socket is '" TD_NAME "', longer than %zu bytes",
                       TD_NAMED(socket), sizeof r->path - 1);
    status = r->named ? TANDEM_OK : td_channel_default(r->path, reason, sizeof reason);
    return status == TANDEM_OK ? status : td_fail(why, TD_WHY_BYTES, status, "desc.socket is '', but %s", reason);
}

/* On the GPU, if the daemon's can share with this device's Vulkan. */
static void choose_share(tandem_session *s, const tandem_session_desc *desc, const td_grounds *g)
{
    const td_way way = {TD_DEVICE_CUDA_ELSEWHERE, TD_SHARING_TIMELINE};
    td_remote *r = s->remote;
    char why[TD_WHY_BYTES];

    r->share = TD_WIRE_SHARE_HOST;
    if (r->backend == TANDEM_BACKEND_CPU || (desc->rung && desc->rung != TANDEM_RUNG_TIMELINE) ||
        !td_way_is_open(way, g, why))
        return;
    r->share = TD_WIRE_SHARE_OPAQUE;
    memcpy(r->identity.device_uuid, g->vulkan->device_uuid, sizeof r->identity.device_uuid);
    memcpy(r->identity.driver_uuid, g->vulkan->driver_uuid, sizeof r->identity.driver_uuid);
    r->identity.driver_id = g->vulkan->driver_id;
    r->identity.driver_version = g->vulkan->driver_version;
}

tandem_status td_remote_open(tandem_session *s, const tandem_session_desc *desc, td_grounds *g, td_device_kind *device,
                             char *why)
{
    char text[TD_WHY_BYTES] = "";
    td_remote *r = s->remote = td_session_alloc(s, sizeof *r, 64);
    tandem_status status;

    if (!r)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for a connection");
    if (s->wait_bound_ns > TD_WIRE_MAX_WAIT_NS) {
        td_logf(&s->log, TD_LOG_WARN, "desc.wait_bound_ns is %" PRIu64 ": tandemd waits 60 s at most, and so does this session",
                s->wait_bound_ns);
        s->wait_bound_ns = TD_WIRE_MAX_WAIT_NS;
    }
    r->conn.fd = -1;
    r->connection = 1;
    r->backend = desc->rung == TANDEM_RUNG_CPU ? (uint32_t)TANDEM_BACKEND_CPU : desc->backend;
    status = td_event_make(false, &r->wake, why, TD_WHY_BYTES);
    if (status == TANDEM_OK)
        status = find_path(r, desc->socket, why);
    if (status != TANDEM_OK)
        return status;
    td_wire_identify(&r->identity);
    choose_share(s, desc, g);
    pthread_mutex_lock(&s->lock);
    status = td_remote_connect_locked(s, text);
    if (status == TANDEM_ERROR_UNSUPPORTED && r->share == TD_WIRE_SHARE_OPAQUE && !desc->rung) {
        td_text(g->no_elsewhere, sizeof g->no_elsewhere, "%s", text);
        r->share = TD_WIRE_SHARE_HOST;
        status = td_remote_connect_locked(s, text);
    }
    r->up = status == TANDEM_OK;
    pthread_mutex_unlock(&s->lock);
    if (status != TANDEM_OK)
        return td_fail(why, TD_WHY_BYTES, status, "desc.socket is '%s': %s", r->path, text);
    r->backend = r->info.backend;
    s->threads = r->info.cpu_threads;
    td_text(s->device_name, sizeof s->device_name, "%s", r->info.device);
    snprintf(s->isa, sizeof s->isa, "%s", r->info.isa);
    if (r->backend == TANDEM_BACKEND_CPU) {
        *device = TD_DEVICE_CPU;
        s->target = td_target_for_sm(0);
        td_text(why, TD_WHY_BYTES, "tandemd: %s", r->info.rung_reason);
    } else {
        *device = TD_DEVICE_CUDA_ELSEWHERE;
        s->target = td_target_for_stream(r->info.sm);
    }
    return TANDEM_OK;
}

static tandem_status start(tandem_session *s, char *why)
{
    const tandem_status status = td_threads_start(s, td_remote_work, why);

    if (status != TANDEM_OK)
        return status;
    s->remote->has_thread = td_thread_start(&s->remote->thread, look_after, s);
    if (s->remote->has_thread)
        return TANDEM_OK;
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no thread could be started");
}

/* Nobody uses the connection when this returns. */
static void leave_daemon(tandem_session *s)
{
    td_remote *r = s->remote;
    td_wire_message m = td_wire_new(TD_WIRE_BYE, 0);
    char why[TD_WHY_BYTES];

    pthread_mutex_lock(&s->lock);
    r->stopping = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    td_remote_poke(r);
    if (r->has_thread)
        pthread_join(r->thread, NULL);
    r->has_thread = false;
    pthread_mutex_lock(&s->lock);
    if (r->up) {
        m.bye.reason = TD_WIRE_BYE_DONE;
        td_conn_send(&r->conn, &m, NULL, why, sizeof why);
    }
    if (r->conn.fd >= 0)
        td_remote_disconnect_locked(s, "the session ends");
    pthread_mutex_unlock(&s->lock);
}

static void stop(tandem_session *s)
{
    td_threads_stop(s);
    if (!s->remote)
        return;
    leave_daemon(s);
    td_fd_close(&s->remote->wake);
    td_session_free(s, s->remote, sizeof *s->remote);
    s->remote = NULL;
}

const td_backend td_backend_remote = {
    .tuning = TANDEM_TUNING_DAEMON,
    .loss_is_told = true,
    .deciding_ns = UINT64_MAX,
    .is_elsewhere = true,
    .uniform_bytes = TD_WIRE_UNIFORM_BYTES,
    .no_fd = "tandemd shares the host's memory only",
    .start = start,
    .stop = stop,
    .mem_share = td_remote_mem_share,
    .timeline_share = td_remote_timeline_share,
    .model_load = td_remote_model_load,
    .model_tensor_locked = td_remote_model_tensor_locked,
    .no_languages = td_remote_no_languages,
    .no_layers = td_remote_no_layers,
    .layer_locked = td_remote_layer_locked,
    .no_states = td_remote_no_states,
    .state_copy = td_remote_state_copy,
    .instance_make = td_remote_instance_make,
    .prepare = td_remote_prepare,
    .instance_is_lost_locked = td_remote_instance_is_lost_locked,
    .object_end = td_remote_object_end,
    .takes_locked = td_remote_takes_locked,
    .submit_locked = td_remote_submit_locked,
    .announce_locked = td_remote_announce_locked,
    .wake_locked = td_remote_wake_locked,
    .caller_waits_locked = td_remote_caller_waits_locked,
    .caller_leaves_locked = td_remote_caller_leaves_locked,
};
