/* What is said to tandemd and heard from it: requests, answers, what comes unasked, a connection's begin and end.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Whoever has a request sends it, and sleeps until the session's thread, which serves the connection, has taken the
 * answer. While there is no connection, who makes one takes the answers itself. This file calls none of the others that
 * remote.h names, and all of them call it.
 */
#include <inttypes.h>
#include <string.h>

#include "engine_plugin/client/remote.h"
#include "interop/os/event.h"

#define SECOND ((uint64_t)1000000000)
#define ANSWER_NS (5 * SECOND) /* what an answer may take, to PING if not to what was asked */
#define QUIET_NS SECOND        /* a daemon that owes something and says nothing is asked after so long */

void td_remote_poke(const td_remote *r)
{
    if (r->wake >= 0)
        td_event_set(r->wake);
}

void td_remote_wake_locked(tandem_session *s)
{
    if (s->remote->callers)
        s->remote->worker_needs_wake = true;
    else
        pthread_cond_signal(&s->work);
    if (s->remote->in_ring && s->remote->ring.shared)
        td_eventcount_notify(&s->remote->ring.shared->to_client);
}

/* What the daemon says. */

static void keep_failed(tandem_session *s, uint64_t ticket, bool all, const char *text)
{
    td_remote *r = s->remote;

    r->failed_ticket = ticket;
    r->failed_all = all;
    td_text(r->failed_text, sizeof r->failed_text, "%s", text);
    pthread_cond_broadcast(&s->changed);
}

/* What the GPU has not signalled yet of the jobs that are over there it never will. */
static void own_signals_locked(tandem_session *s)
{
    for (uint32_t i = 0; i < s->order_count; i++)
        s->order[i]->remote.client_signals = s->order[i]->remote.client_signals || s->order[i]->remote.answered;
    td_remote_wake_locked(s);
}

/* OK: go on; else why the connection is over. *fd may be taken. */
static tandem_status hear_locked(tandem_session *s, const td_wire_message *m, int *fd, char *why)
{
    td_remote *r = s->remote;

    r->heard_ns = td_now_ns();
    r->pinged_ns = 0;
    if (m->header.serial) {
        for (uint32_t i = 0; i < TD_REMOTE_ASKS; i++)
            if (r->asks[i].serial == m->header.serial && !r->asks[i].answered) {
                r->asks[i].answer = *m;
                r->asks[i].answered = true;
                r->asks[i].fd = *fd;
                *fd = -1;
                pthread_cond_broadcast(&s->changed);
            }
        return TANDEM_OK;
    }
    switch ((td_wire_type)m->header.type) {
    case TD_WIRE_ERROR:
        if (!m->error.ticket)
            return td_fail(why, TD_WHY_BYTES, (tandem_status)m->error.status, "it says: %s", m->error.text);
        keep_failed(s, m->error.ticket, false, m->error.text);
        return TANDEM_OK;
    case TD_WIRE_RESET: {
        char text[TD_WHY_BYTES];

        td_text(text, sizeof text, "its worker was replaced: %s", m->reset.text);
        r->worker++;
        keep_failed(s, m->reset.last_ticket, true, text);
        own_signals_locked(s);
        return TANDEM_OK;
    }
    case TD_WIRE_BYE:
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_LOST, "it %s",
                       m->bye.reason == TD_WIRE_BYE_FULL     ? "has no room for more clients"
                       : m->bye.reason == TD_WIRE_BYE_UNREAD ? "was not read in time"
                                                             : "stops");
    default: return TANDEM_OK;
    }
}

/* Takes all that has come. */
static tandem_status take_locked(tandem_session *s, char *why)
{
    td_remote *r = s->remote;

    for (;;) {
        int fds[TD_WIRE_MAX_FDS];
        td_wire_message m;
        tandem_status status = td_conn_recv(&r->conn, &r->rules, TD_WIRE_TO_CLIENT, &m, fds, why, TD_WHY_BYTES);

        if (status == TANDEM_ERROR_BUSY)
            return TANDEM_OK;
        if (status != TANDEM_OK)
            return status;
        status = hear_locked(s, &m, &fds[0], why);
        td_fd_close(&fds[0]);
        if (status != TANDEM_OK)
            return status;
    }
}

/* Sleeps until there is something to do, at most `ns`; called without the lock. */
void td_remote_sleep(td_remote *r, bool writes, uint64_t ns)
{
    uint32_t ready;

    if (td_channel_wait(r->conn.fd, writes, r->wake, ns, &ready, NULL, 0) == TANDEM_OK && ready & TD_CHANNEL_EVENT)
        td_event_clear(r->wake);
}

/* Requests. */

tandem_status td_remote_gone(const td_remote *r, char *why)
{
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_LOST, "tandemd at '%s' is gone: %s", r->path, r->gone);
}

static tandem_status send_locked(tandem_session *s, const td_wire_message *m, int fd, char *why)
{
    td_remote *r = s->remote;
    const tandem_status status = td_conn_send(&r->conn, m, fd >= 0 ? &fd : NULL, why, TD_WHY_BYTES);

    if (status == TANDEM_OK) {
        td_wire_took(&r->rules, TD_WIRE_TO_DAEMON, m);
        if (r->conn.queued_bytes)
            td_remote_poke(r);
    } else if (status == TANDEM_ERROR_LOST || status == TANDEM_ERROR_PROTOCOL) {
        td_channel_shut(r->conn.fd); /* the thread sees it and does the rest */
    }
    return status;
}

tandem_status td_remote_ask_locked(tandem_session *s, td_wire_message *m, int fd, td_wire_type wanted, int *got,
                                   char *why)
{
    td_remote *r = s->remote;
    const uint64_t begin_ns = td_now_ns();
    const uint64_t bound_ns = wanted == TD_WIRE_WELCOME ? ANSWER_NS : TD_WIRE_MAX_WAIT_NS;
    const bool own = !r->up; /* the connection is the caller's to look after */
    const uint32_t connection = r->connection;
    tandem_status status = TANDEM_OK;
    td_remote_ask *a = NULL;

    while (!a) {
        for (uint32_t i = 0; i < TD_REMOTE_ASKS && !a; i++)
            if (!r->asks[i].serial)
                a = &r->asks[i];
        if (r->connection != connection || (!r->up && !own))
            return td_remote_gone(r, why);
        if (td_now_ns() - begin_ns > bound_ns)
            return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_BUSY, "%d requests are without answer", TD_REMOTE_ASKS);
        if (!a)
            td_cond_wait_until(s, &s->changed, td_now_ns() + TD_REMOTE_SLICE_NS);
    }
    m->header.serial = r->rules.next_serial;
    status = send_locked(s, m, fd, why);
    if (status != TANDEM_OK)
        return status;
    *a = (td_remote_ask){.serial = m->header.serial, .fd = -1};
    r->heard_ns = begin_ns;
    while (!a->answered && status == TANDEM_OK) {
        if (td_now_ns() - begin_ns > bound_ns)
            status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_LOST, "it has not answered %s within %" PRIu64 " s",
                             td_wire_name(m->header.type), bound_ns / SECOND);
        else if (r->stopping || s->stopping || r->connection != connection)
            status = td_remote_gone(r, why);
        else if (!own)
            td_cond_wait_until(s, &s->changed, td_now_ns() + TD_REMOTE_SLICE_NS);
        else {
            const bool writes = r->conn.queued_bytes;

            pthread_mutex_unlock(&s->lock);
            td_remote_sleep(r, writes, TD_REMOTE_SLICE_NS);
            pthread_mutex_lock(&s->lock);
            if (writes)
                td_conn_flush(&r->conn, why, TD_WHY_BYTES);
            status = take_locked(s, why);
        }
    }
    if (a->answered) {
        *m = a->answer;
        status = a->status;
        if (status != TANDEM_OK)
            td_remote_gone(r, why);
        else if (m->header.type == TD_WIRE_ERROR)
            status = td_fail(why, TD_WHY_BYTES, (tandem_status)m->error.status, "%s", m->error.text);
        else if (m->header.type != wanted)
            status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_PROTOCOL, "it answers with %s, not %s",
                             td_wire_name(m->header.type), td_wire_name(wanted));
    }
    if (got && status == TANDEM_OK) {
        *got = a->fd;
        a->fd = -1;
    }
    td_fd_close(&a->fd);
    a->serial = 0;
    pthread_cond_broadcast(&s->changed);
    return status;
}

/* The connection. */

/* Nobody uses the connection any more when this returns. */
void td_remote_disconnect_locked(tandem_session *s, const char *why)
{
    td_remote *r = s->remote;

    r->up = false;
    r->connection++;
    r->worker++;
    td_text(r->gone, sizeof r->gone, "%s", why);
    for (uint32_t i = 0; i < TD_REMOTE_ASKS; i++)
        if (r->asks[i].serial && !r->asks[i].answered) {
            r->asks[i].status = TANDEM_ERROR_LOST;
            r->asks[i].answered = true;
        }
    pthread_cond_broadcast(&s->changed);
    own_signals_locked(s);
    while (r->in_ring) {
        td_eventcount_notify(&r->ring.shared->to_client);
        td_cond_wait_until(s, &s->changed, td_now_ns() + TD_REMOTE_SLICE_NS / 10);
    }
    td_ring_close(&r->ring);
    td_shared_timeline_close(&r->ends);
    td_conn_close(&r->conn);
}

static tandem_status check_peer(const td_remote *r, char *why)
{
    if (r->named || r->conn.uid == td_process_user() || !r->conn.uid)
        return TANDEM_OK;
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "user %u listens there, who is neither %u nor root",
                   r->conn.uid, td_process_user());
}

static tandem_status greet_locked(tandem_session *s, char *why)
{
    td_remote *r = s->remote;
    td_wire_message m = td_wire_new(TD_WIRE_HELLO, 0);
    td_wire_welcome welcome;
    tandem_status status;
    int ring = -1;

    m.hello.features = TD_WIRE_MODELS | TD_WIRE_NETWORKS | TD_WIRE_LANGUAGES | TD_WIRE_LAYERS | TD_WIRE_STATES;
    td_wire_operations_here(&r->rules, m.hello.operations);
    m.hello.identity = r->identity;
    m.hello.share = r->share;
    m.hello.backend = r->backend;
    m.hello.frames_in_flight = s->jobs_in_flight;
    m.hello.timing = 1;
    m.hello.job_class = s->job_class;
    m.hello.wait_bound_ns = s->wait_bound_ns;
    td_wire_text(m.hello.name, sizeof m.hello.name, td_process_name());
    status = td_remote_ask_locked(s, &m, -1, TD_WIRE_WELCOME, &ring, why);
    welcome = m.welcome;
    if (status == TANDEM_OK)
        status = td_wire_match(&r->identity, &welcome.identity, welcome.share, why, TD_WHY_BYTES);
    if (status == TANDEM_OK) {
        td_wire_rules_welcome(&r->rules, &welcome);
        status = td_ring_open(&r->ring, &welcome.sizes, ring, why, TD_WHY_BYTES);
    }
    td_fd_close(&ring);
    return status;
}

static tandem_status share_ends_locked(tandem_session *s, char *why)
{
    td_remote *r = s->remote;
    td_wire_message m = td_wire_new(TD_WIRE_TIMELINE_CREATE, 0);
    tandem_status status;
    int fd = -1;

    m.timeline_create.kind = TD_WIRE_TIMELINE_FUTEX;
    m.timeline_create.signaller = 1;
    status = td_shared_timeline_make(&r->ends, 0, &fd, why, TD_WHY_BYTES);
    if (status == TANDEM_OK)
        status = td_remote_ask_locked(s, &m, fd, TD_WIRE_DONE, NULL, why);
    r->ends_id = m.object.id;
    td_fd_close(&fd);
    return status;
}

/* Called and left with the lock held. On failure nothing is left. */
tandem_status td_remote_connect_locked(tandem_session *s, char *why)
{
    td_remote *r = s->remote;
    td_wire_message m;
    tandem_status status = td_conn_connect(&r->conn, r->path, why, TD_WHY_BYTES);

    if (status != TANDEM_OK)
        return status;
    r->rules = td_wire_rules_new(td_operation_of_clients);
    r->pinged_ns = 0;
    status = check_peer(r, why);
    if (status == TANDEM_OK)
        status = greet_locked(s, why);
    if (status == TANDEM_OK)
        status = share_ends_locked(s, why);
    if (status == TANDEM_OK) {
        m = td_wire_new(TD_WIRE_INFO, 0);
        status = td_remote_ask_locked(s, &m, -1, TD_WIRE_INFO_REPLY, NULL, why);
    }
    if (status == TANDEM_OK) {
        r->info = m.info;
        s->sm = m.info.sm;
        s->cuda_driver_version = m.info.cuda_driver_version;
        memcpy(s->device_uuid, m.info.device_uuid, sizeof s->device_uuid);
        if (r->backend && m.info.backend != r->backend)
            status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                             "it computes with backend %u (%s), and this session with %u", m.info.backend,
                             m.info.device, r->backend);
    }
    if (status != TANDEM_OK) {
        char text[TD_WHY_BYTES];

        td_text(text, sizeof text, "%s", why);
        td_remote_disconnect_locked(s, text);
    }
    return status;
}

/* Serving it. */

bool td_remote_owes_locked(const tandem_session *s)
{
    const td_remote *r = s->remote;
    bool owes = false;

    for (uint32_t i = 0; i < s->order_count; i++)
        owes = owes || (td_job_has_begun(s->order[i]) && !s->order[i]->remote.answered);
    for (uint32_t i = 0; i < TD_REMOTE_ASKS; i++)
        owes = owes || (r->asks[i].serial && !r->asks[i].answered);
    return owes;
}

/* A daemon that owes something and says nothing is asked whether it lives. */
static tandem_status look_after_locked(tandem_session *s, char *why)
{
    td_remote *r = s->remote;
    const uint64_t now = td_now_ns();
    td_wire_message m;

    if (!td_remote_owes_locked(s)) {
        r->heard_ns = now;
        return TANDEM_OK;
    }
    if (r->pinged_ns && now - r->pinged_ns > ANSWER_NS)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_LOST, "it has not answered for 5 s");
    if (r->pinged_ns || now - r->heard_ns < QUIET_NS)
        return TANDEM_OK;
    m = td_wire_new(TD_WIRE_PING, r->rules.next_serial);
    r->pinged_ns = now;
    return send_locked(s, &m, -1, why);
}

/* Until the connection is over; called and left with the lock held. */
tandem_status td_remote_serve_locked(tandem_session *s, char *why)
{
    td_remote *r = s->remote;
    tandem_status status = TANDEM_OK;

    while (!r->stopping && status == TANDEM_OK) {
        const bool writes = r->conn.queued_bytes;

        pthread_mutex_unlock(&s->lock);
        td_remote_sleep(r, writes, QUIET_NS);
        pthread_mutex_lock(&s->lock);
        if (r->conn.queued_bytes) {
            status = td_conn_flush(&r->conn, why, TD_WHY_BYTES);
            if (status == TANDEM_ERROR_BUSY)
                status = TANDEM_OK;
        }
        if (status == TANDEM_OK)
            status = take_locked(s, why);
        if (status == TANDEM_OK)
            status = look_after_locked(s, why);
    }
    return status;
}
