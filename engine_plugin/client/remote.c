/* Sessions whose jobs tandemd computes: the connection, what is shared through it, and a job's way there and back.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Only the computing is elsewhere. Ids, checks, points and reports are those of any session: the session's worker waits
 * for a job's point, puts the job into the daemon's ring without it, sleeps until its report is there, and signals from
 * here. So a daemon that dies owes nobody a signal.
 *
 * A thread of the session's looks after the connection: it takes what the daemon says, sees at once that it is gone,
 * wakes whoever waits for it, connects again and shares anew what is alive. The connection belongs to whoever has the
 * lock; while there is none (`up` is false), to that thread.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine_plugin/client/client.h"
#include "interop/wire/conn.h"
#include "interop/wire/ring.h"

#define SECOND ((uint64_t)1000000000)
#define ANSWER_NS (5 * SECOND)     /* what an answer may take, to PING if not to what was asked */
#define QUIET_NS SECOND            /* a daemon that owes something and says nothing is asked after so long */
#define SLICE_NS 100000000u        /* how long anything is slept on without looking whether to go on */
#define LEAST_AGAIN_NS 10000000u   /* until the next try to connect; twice as long each time */
#define MOST_AGAIN_NS SECOND
#define TEXT_NS 20000000u          /* how much later than a report its text may come */
enum { ASKS = 8 };

typedef struct ask {
    uint32_t serial; /* 0: free */
    bool answered;
    tandem_status status; /* LOST: there will be no answer */
    td_wire_message answer;
} ask;

struct td_remote {
    char path[TD_CONN_PATH_BYTES];
    bool named; /* by the caller, who then trusts whoever listens there */
    uint32_t backend;
    int wake; /* eventfd: the thread has to look */
    pthread_t thread;
    bool has_thread, stopping;
    bool up;
    bool over; /* it was refused for good */
    bool in_area; /* the worker looks at the ring */
    uint32_t connection; /* how many there were */
    td_conn conn;
    td_wire_rules rules;
    td_ring ring;
    td_wire_identity identity;
    td_point ends; /* signalled by the daemon and looked at by nobody: */
    uint64_t ends_id; /* jobs that have points here signal it, which makes them frame jobs there */
    ask asks[ASKS];
    uint64_t heard_ns, pinged_ns; /* pinged: 0: no PING is without answer */
    td_wire_info info;
    uint64_t failed_ticket; /* whose text this is; RESET: up to which */
    bool failed_all;
    char failed_text[TD_WHY_BYTES];
    char gone[TD_WHY_BYTES]; /* why it is not up */
};

struct td_remote_model {
    char path[TD_WIRE_PATH_BYTES], first[TD_WIRE_TENSOR_BYTES];
    uint64_t id;
    uint32_t connection;
};

static void poke(const td_remote *r)
{
    if (r->wake >= 0)
        eventfd_write(r->wake, 1);
}

/* What the daemon says. */

static void keep_failed(tandem_session *s, uint64_t ticket, bool all, const char *text)
{
    td_remote *r = s->remote;

    r->failed_ticket = ticket;
    r->failed_all = all;
    snprintf(r->failed_text, sizeof r->failed_text, "%s", text);
    pthread_cond_broadcast(&s->changed);
}

/* OK: go on; else why the connection is over. */
static tandem_status hear_locked(tandem_session *s, const td_wire_message *m, char *why)
{
    td_remote *r = s->remote;

    r->heard_ns = td_now_ns();
    r->pinged_ns = 0;
    if (m->header.serial) {
        for (uint32_t i = 0; i < ASKS; i++)
            if (r->asks[i].serial == m->header.serial && !r->asks[i].answered) {
                r->asks[i].answer = *m;
                r->asks[i].answered = true;
                pthread_cond_broadcast(&s->changed);
            }
        return TANDEM_OK;
    }
    switch ((td_wire_type)m->header.type) {
    case TD_WIRE_ERROR:
        if (!m->error.ticket)
            return td_fail(why, TD_WHY_BYTES, (tandem_status)m->error.status, "it says: %.300s", m->error.text);
        keep_failed(s, m->error.ticket, false, m->error.text);
        return TANDEM_OK;
    case TD_WIRE_RESET: {
        char text[TD_WHY_BYTES];

        snprintf(text, sizeof text, "its worker was replaced: %.220s", m->reset.text);
        keep_failed(s, m->reset.last_ticket, true, text);
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

/* Takes all that has come. `area` gets the descriptor of a WELCOME. */
static tandem_status take_locked(tandem_session *s, int *area, char *why)
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
        if (m.header.type == TD_WIRE_WELCOME && area && *area < 0) {
            *area = fds[0];
            fds[0] = -1;
        }
        td_fd_close(&fds[0]);
        status = hear_locked(s, &m, why);
        if (status != TANDEM_OK)
            return status;
    }
}

/* Sleeps until there is something to do, at most `ns`; called without the lock. */
static void sleep_on_socket(td_remote *r, bool writes, uint64_t ns)
{
    struct pollfd p[2] = {{r->conn.fd, (short)(POLLIN | (writes ? POLLOUT : 0)), 0}, {r->wake, POLLIN, 0}};
    const struct timespec t = {(time_t)(ns / SECOND), (long)(ns % SECOND)};
    eventfd_t count;

    if (ppoll(p, 2, &t, NULL) > 0 && p[1].revents)
        eventfd_read(r->wake, &count);
}

/* Requests. */

static tandem_status gone_text(const td_remote *r, char *why)
{
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_LOST, "tandemd at '%.100s' is gone: %.200s", r->path, r->gone);
}

static tandem_status send_locked(tandem_session *s, const td_wire_message *m, int fd, char *why)
{
    td_remote *r = s->remote;
    const tandem_status status = td_conn_send(&r->conn, m, fd >= 0 ? &fd : NULL, why, TD_WHY_BYTES);

    if (status == TANDEM_OK) {
        td_wire_took(&r->rules, TD_WIRE_TO_DAEMON, m);
        if (r->conn.queued_bytes)
            poke(r);
    } else if (status == TANDEM_ERROR_LOST || status == TANDEM_ERROR_PROTOCOL) {
        shutdown(r->conn.fd, SHUT_RDWR); /* the thread sees it and does the rest */
    }
    return status;
}

/* Sends a request and waits for its answer, which is not ERROR. The lock is held but while it sleeps. `area` as in
 * take_locked(), for whoever makes the connection. */
static tandem_status ask_locked(tandem_session *s, td_wire_message *m, int fd, td_wire_type wanted, int *area,
                                char *why)
{
    td_remote *r = s->remote;
    const uint64_t begin_ns = td_now_ns();
    const uint64_t bound_ns = wanted == TD_WIRE_WELCOME ? ANSWER_NS : TD_WIRE_MAX_WAIT_NS;
    const bool own = !r->up; /* the connection is the caller's to look after */
    const uint32_t connection = r->connection;
    tandem_status status = TANDEM_OK;
    ask *a = NULL;

    while (!a) {
        for (uint32_t i = 0; i < ASKS && !a; i++)
            if (!r->asks[i].serial)
                a = &r->asks[i];
        if (r->connection != connection || (!r->up && !own))
            return gone_text(r, why);
        if (td_now_ns() - begin_ns > bound_ns)
            return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_BUSY, "%d requests are without answer", ASKS);
        if (!a)
            td_cond_wait_until(s, &s->changed, td_now_ns() + SLICE_NS);
    }
    m->header.serial = r->rules.next_serial;
    status = send_locked(s, m, fd, why);
    if (status != TANDEM_OK)
        return status;
    *a = (ask){.serial = m->header.serial};
    r->heard_ns = begin_ns;
    while (!a->answered && status == TANDEM_OK) {
        if (td_now_ns() - begin_ns > bound_ns)
            status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_LOST, "it has not answered %s within %" PRIu64 " s",
                             td_wire_name(m->header.type), bound_ns / SECOND);
        else if (r->stopping || s->stopping || r->connection != connection)
            status = gone_text(r, why);
        else if (!own)
            td_cond_wait_until(s, &s->changed, td_now_ns() + SLICE_NS);
        else {
            const bool writes = r->conn.queued_bytes;

            pthread_mutex_unlock(&s->lock);
            sleep_on_socket(r, writes, SLICE_NS);
            pthread_mutex_lock(&s->lock);
            if (writes)
                td_conn_flush(&r->conn, why, TD_WHY_BYTES);
            status = take_locked(s, area, why);
        }
    }
    if (a->answered) {
        *m = a->answer;
        status = a->status;
        if (status != TANDEM_OK)
            gone_text(r, why);
        else if (m->header.type == TD_WIRE_ERROR)
            status = td_fail(why, TD_WHY_BYTES, (tandem_status)m->error.status, "%s", m->error.text);
        else if (m->header.type != wanted)
            status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_PROTOCOL, "it answers with %s, not %s",
                             td_wire_name(m->header.type), td_wire_name(wanted));
    }
    a->serial = 0;
    pthread_cond_broadcast(&s->changed);
    return status;
}

/* The connection. */

/* Nobody uses the connection any more when this returns. */
static void disconnect_locked(tandem_session *s, const char *why)
{
    td_remote *r = s->remote;

    r->up = false;
    r->connection++;
    snprintf(r->gone, sizeof r->gone, "%s", why);
    for (uint32_t i = 0; i < ASKS; i++)
        if (r->asks[i].serial && !r->asks[i].answered) {
            r->asks[i].status = TANDEM_ERROR_LOST;
            r->asks[i].answered = true;
        }
    pthread_cond_broadcast(&s->changed);
    while (r->in_area) {
        td_bell_ring(&r->ring.area->to_client);
        td_cond_wait_until(s, &s->changed, td_now_ns() + SLICE_NS / 10);
    }
    td_ring_close(&r->ring);
    td_point_close(&r->ends);
    td_conn_close(&r->conn);
}

static tandem_status check_peer(const td_remote *r, char *why)
{
    if (r->named || r->conn.uid == geteuid() || !r->conn.uid)
        return TANDEM_OK;
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "user %u listens there, who is neither %u nor root",
                   r->conn.uid, geteuid());
}

static tandem_status greet_locked(tandem_session *s, char *why)
{
    td_remote *r = s->remote;
    td_wire_message m = td_wire_new(TD_WIRE_HELLO, 0);
    td_wire_welcome welcome;
    tandem_status status;
    int area = -1;

    m.hello.features = TD_WIRE_MODELS;
    m.hello.identity = r->identity;
    m.hello.share = TD_WIRE_SHARE_HOST;
    m.hello.backend = r->backend;
    m.hello.frames_in_flight = s->frames;
    m.hello.timing = 1;
    m.hello.wait_bound_ns = s->wait_bound_ns < TD_WIRE_MAX_WAIT_NS ? s->wait_bound_ns : TD_WIRE_MAX_WAIT_NS;
    td_wire_text(m.hello.name, sizeof m.hello.name, program_invocation_short_name);
    status = ask_locked(s, &m, -1, TD_WIRE_WELCOME, &area, why);
    welcome = m.welcome;
    if (status == TANDEM_OK)
        status = td_wire_match(&r->identity, &welcome.identity, &welcome.sizes, welcome.share, why, TD_WHY_BYTES);
    if (status == TANDEM_OK) {
        td_wire_rules_welcome(&r->rules, &welcome);
        status = td_ring_open(&r->ring, area, why, TD_WHY_BYTES);
    }
    td_fd_close(&area);
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
    status = td_point_make(&r->ends, 0, &fd, why, TD_WHY_BYTES);
    if (status == TANDEM_OK)
        status = ask_locked(s, &m, fd, TD_WIRE_DONE, NULL, why);
    r->ends_id = m.object.id;
    td_fd_close(&fd);
    return status;
}

/* Called and left with the lock held. On failure nothing is left. */
static tandem_status connect_locked(tandem_session *s, char *why)
{
    td_remote *r = s->remote;
    td_wire_message m;
    tandem_status status = td_conn_connect(&r->conn, r->path, why, TD_WHY_BYTES);

    if (status != TANDEM_OK)
        return status;
    r->rules = td_wire_rules_new();
    r->pinged_ns = 0;
    status = check_peer(r, why);
    if (status == TANDEM_OK)
        status = greet_locked(s, why);
    if (status == TANDEM_OK)
        status = share_ends_locked(s, why);
    if (status == TANDEM_OK) {
        m = td_wire_new(TD_WIRE_INFO, 0);
        status = ask_locked(s, &m, -1, TD_WIRE_INFO_REPLY, NULL, why);
    }
    if (status == TANDEM_OK) {
        r->info = m.info;
        if (r->backend && m.info.backend != r->backend)
            status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                             "it computes with backend %u (%.100s), and this session with %u", m.info.backend,
                             m.info.device, r->backend);
    }
    if (status != TANDEM_OK) {
        char text[TD_WHY_BYTES];

        snprintf(text, sizeof text, "%s", why);
        disconnect_locked(s, text);
    }
    return status;
}

static tandem_status share_locked(tandem_session *s, td_mem *mem, char *why)
{
    td_remote *r = s->remote;
    td_slab *slab = &mem->slab;
    const uint32_t connection = r->connection;
    td_wire_message m = td_wire_new(TD_WIRE_MEM_CREATE, 0);
    tandem_status status;

    m.mem_create.kind = TD_WIRE_MEM_SLAB;
    m.mem_create.bytes = mem->bytes;
    m.mem_create.allocation_bytes = slab->bytes;
    if (slab->bytes > r->rules.mem_bytes)
        status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM,
                         "bytes is %" PRIu64 ", and tandemd takes %" PRIu64 " at most", mem->bytes, r->rules.mem_bytes);
    else
        status = ask_locked(s, &m, slab->fd, TD_WIRE_DONE, NULL, why);
    if (status == TANDEM_ERROR_LOST || r->connection != connection)
        return TANDEM_ERROR_LOST;
    slab->connection = connection;
    slab->status = status;
    slab->id = status == TANDEM_OK ? m.object.id : 0;
    return status;
}

static tandem_status load_locked(tandem_session *s, td_model *model, char *why)
{
    td_remote *r = s->remote;
    struct td_remote_model *there = model->there;
    const uint32_t connection = r->connection;
    td_wire_message m = td_wire_new(TD_WIRE_MODEL_LOAD, 0);
    tandem_status status;

    if (!(r->rules.features & TD_WIRE_MODELS))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "tandemd at '%.100s' loads no models: no model_dir is configured", r->path);
    td_wire_text(m.model_load.path, sizeof m.model_load.path, there->path);
    m.header.serial = r->rules.next_serial;
    if (td_wire_check(&r->rules, TD_WIRE_TO_DAEMON, &m, m.header.bytes, 0, why, TD_WHY_BYTES) != TANDEM_OK)
        return TANDEM_ERROR_ARG;
    status = ask_locked(s, &m, -1, TD_WIRE_DONE, NULL, why);
    if (status == TANDEM_OK && r->connection == connection) {
        there->id = m.object.id;
        there->connection = connection;
    }
    return status;
}

static tandem_status find_tensor_locked(tandem_session *s, td_model *model, const char *name, td_wire_tensor *out,
                                        char *why)
{
    td_remote *r = s->remote;
    td_slab *slab = &model->mem->slab;
    const uint32_t connection = r->connection;
    td_wire_message m = td_wire_new(TD_WIRE_MODEL_TENSOR, 0);
    tandem_status status;

    if (model->there->connection != connection)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_LOST, "tandemd at '%.100s' could not load '%.100s' again",
                       r->path, model->there->path);
    m.model_tensor.model = model->there->id;
    td_wire_text(m.model_tensor.name, sizeof m.model_tensor.name, name);
    status = ask_locked(s, &m, -1, TD_WIRE_TENSOR, NULL, why);
    if (status != TANDEM_OK)
        return status;
    if (r->connection != connection)
        return gone_text(r, why);
    slab->id = m.tensor.view.mem;
    slab->connection = connection;
    *out = m.tensor;
    return TANDEM_OK;
}

/* With a new connection: what is alive. What the daemon does not take, fails the jobs that name it. */
static tandem_status share_again_locked(tandem_session *s, char *why)
{
    td_remote *r = s->remote;
    tandem_status status = TANDEM_OK;

    for (uint32_t i = 0; i < s->models.capacity && status != TANDEM_ERROR_LOST; i++) {
        td_model *model = (td_model *)s->models.slots[i];
        td_wire_tensor tensor;

        if (!model || model->object.closing || model->there->connection == r->connection)
            continue;
        model->mem->object.uses++; /* a destruction waits */
        status = load_locked(s, model, why);
        if (status == TANDEM_OK && model->there->first[0])
            status = find_tensor_locked(s, model, model->there->first, &tensor, why);
        model->mem->slab.status = status;
        td_object_release_locked(s, &model->mem->object);
    }
    for (uint32_t i = 0; i < s->mems.capacity && status != TANDEM_ERROR_LOST; i++) {
        td_mem *mem = (td_mem *)s->mems.slots[i];

        if (!mem || mem->object.closing || !mem->slab.there || mem->slab.connection == r->connection)
            continue;
        mem->object.uses++;
        status = share_locked(s, mem, why);
        td_object_release_locked(s, &mem->object);
    }
    return status == TANDEM_ERROR_LOST || status == TANDEM_ERROR_PROTOCOL ? status : TANDEM_OK;
}

/* The thread. */

static bool owes_locked(const td_remote *r)
{
    bool owes = r->in_area;

    for (uint32_t i = 0; i < ASKS; i++)
        owes = owes || (r->asks[i].serial && !r->asks[i].answered);
    return owes;
}

/* A daemon that owes something and says nothing is asked whether it lives. */
static tandem_status look_after_locked(tandem_session *s, char *why)
{
    td_remote *r = s->remote;
    const uint64_t now = td_now_ns();
    td_wire_message m;

    if (!owes_locked(r)) {
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
static tandem_status serve_locked(tandem_session *s, char *why)
{
    td_remote *r = s->remote;
    tandem_status status = TANDEM_OK;

    while (!r->stopping && status == TANDEM_OK) {
        const bool writes = r->conn.queued_bytes;

        pthread_mutex_unlock(&s->lock);
        sleep_on_socket(r, writes, QUIET_NS);
        pthread_mutex_lock(&s->lock);
        if (r->conn.queued_bytes) {
            status = td_conn_flush(&r->conn, why, TD_WHY_BYTES);
            if (status == TANDEM_ERROR_BUSY)
                status = TANDEM_OK;
        }
        if (status == TANDEM_OK)
            status = take_locked(s, NULL, why);
        if (status == TANDEM_OK)
            status = look_after_locked(s, why);
    }
    return status;
}

static void *look_after(void *user)
{
    tandem_session *s = user;
    td_remote *r = s->remote;
    uint64_t again_ns = LEAST_AGAIN_NS, gone_ns = 0;

    prctl(PR_SET_NAME, "tandem remote", 0ul, 0ul, 0ul);
    pthread_mutex_lock(&s->lock);
    while (!r->stopping) {
        char why[TD_WHY_BYTES] = "";
        tandem_status status;

        if (r->up) {
            status = serve_locked(s, why);
            if (r->stopping)
                break;
            gone_ns = td_now_ns();
            r->over = status == TANDEM_ERROR_PROTOCOL || status == TANDEM_ERROR_UNSUPPORTED ||
                      status == TANDEM_ERROR_DEVICE;
            disconnect_locked(s, why);
            again_ns = LEAST_AGAIN_NS;
            pthread_mutex_unlock(&s->lock);
            td_logf(&s->log, TD_LOG_WARN, "tandemd at '%s' is gone: %s; %s", r->path, why,
                    r->over ? "the session ends" : "trying to reach it again");
            pthread_mutex_lock(&s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        sleep_on_socket(r, false, r->over ? TD_WIRE_MAX_WAIT_NS : again_ns);
        pthread_mutex_lock(&s->lock);
        if (r->stopping || r->over)
            continue;
        status = connect_locked(s, why);
        if (status == TANDEM_OK) {
            status = share_again_locked(s, why);
            if (status != TANDEM_OK && !r->stopping)
                disconnect_locked(s, why);
        }
        r->up = status == TANDEM_OK;
        r->over = status == TANDEM_ERROR_PROTOCOL;
        if (again_ns < MOST_AGAIN_NS)
            again_ns = again_ns * 2 < MOST_AGAIN_NS ? again_ns * 2 : MOST_AGAIN_NS;
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
    const char *folder = getenv("XDG_RUNTIME_DIR");
    int length;

    r->named = socket[0];
    if (!r->named && (!folder || folder[0] != '/'))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "desc.socket is '', but XDG_RUNTIME_DIR is %s",
                       folder ? "no absolute path" : "not set");
    if (r->named)
        length = snprintf(r->path, sizeof r->path, "%s", socket);
    else
        length = snprintf(r->path, sizeof r->path, "%s/tandem-0", folder);
    if (length < 0 || (size_t)length >= sizeof r->path)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.socket is '%.120s...', longer than %zu bytes", socket,
                       sizeof r->path - 1);
    return TANDEM_OK;
}

tandem_status td_remote_open(tandem_session *s, const tandem_session_desc *desc, char *why)
{
    char text[TD_WHY_BYTES] = "";
    td_remote *r = s->remote = td_session_alloc(s, sizeof *r, 64);
    tandem_status status;

    if (!r)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for a connection");
    r->conn.fd = -1;
    r->connection = 1;
    r->backend = desc->rung == TANDEM_RUNG_CPU ? (uint32_t)TANDEM_BACKEND_CPU : desc->backend;
    r->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->wake < 0)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no eventfd: %s", strerror(errno));
    status = find_path(r, desc->socket, why);
    if (status != TANDEM_OK)
        return status;
    td_wire_identify(&r->identity);
    pthread_mutex_lock(&s->lock);
    status = connect_locked(s, text);
    r->up = status == TANDEM_OK;
    pthread_mutex_unlock(&s->lock);
    if (status != TANDEM_OK)
        return td_fail(why, TD_WHY_BYTES, status, "desc.socket is '%.100s': %.250s", r->path, text);
    r->backend = s->backend = r->info.backend;
    s->threads = r->info.cpu_threads;
    s->target = s->backend == TANDEM_BACKEND_CPU ? td_target_for_sm(0) : td_target_for_stream(r->info.sm);
    snprintf(s->device_name, sizeof s->device_name, "%s", r->info.device);
    snprintf(s->isa, sizeof s->isa, "%s", r->info.isa);
    if (s->backend == TANDEM_BACKEND_CPU)
        snprintf(s->rung_reason, sizeof s->rung_reason, "tandemd: %.240s", r->info.rung_reason);
    else
        snprintf(s->rung_reason, sizeof s->rung_reason, "tandemd shares the host's memory only");
    return TANDEM_OK;
}

tandem_status td_remote_start(tandem_session *s, char *why)
{
    s->remote->has_thread = td_thread_start(&s->remote->thread, look_after, s);
    if (s->remote->has_thread)
        return TANDEM_OK;
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no thread could be started");
}

void td_remote_stop(tandem_session *s)
{
    td_remote *r = s->remote;
    td_wire_message m = td_wire_new(TD_WIRE_BYE, 0);
    char why[TD_WHY_BYTES];

    pthread_mutex_lock(&s->lock);
    r->stopping = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    poke(r);
    if (r->has_thread)
        pthread_join(r->thread, NULL);
    r->has_thread = false;
    pthread_mutex_lock(&s->lock);
    if (r->up) {
        m.bye.reason = TD_WIRE_BYE_DONE;
        td_conn_send(&r->conn, &m, NULL, why, sizeof why);
    }
    if (r->conn.fd >= 0)
        disconnect_locked(s, "the session ends");
    pthread_mutex_unlock(&s->lock);
}

void td_remote_close(tandem_session *s)
{
    td_remote *r = s->remote;

    if (!r)
        return;
    td_fd_close(&r->wake);
    td_session_free(s, r, sizeof *r);
    s->remote = NULL;
}

void td_remote_info(tandem_session *s, tandem_info *info)
{
    const td_wire_info *from = &s->remote->info;

    info->sm = from->sm;
    info->cuda_driver_version = from->cuda_driver_version;
    memcpy(info->device_uuid, from->device_uuid, sizeof info->device_uuid);
}

tandem_status td_remote_ready_locked(tandem_session *s, char *why)
{
    return s->remote->up ? TANDEM_OK : gone_text(s->remote, why);
}

/* Mems. */

tandem_status td_remote_mem_make(td_mem *mem, char *why)
{
    td_slab *slab = &mem->slab;
    tandem_status status;

    if (mem->vk.memfd > 0) {
        slab->there = true;
        slab->fd = mem->vk.memfd;
        slab->map = mem->vk.host;
        slab->bytes = mem->vk.allocation_bytes;
        return TANDEM_OK;
    }
    slab->bytes = td_align_up(mem->bytes, TD_WIRE_PAGE_BYTES);
    status = td_slab_make("tandem-mem", slab->bytes, false, &slab->fd, why, TD_WHY_BYTES);
    if (status != TANDEM_OK)
        return status;
    slab->there = slab->owned = true;
    slab->map = mmap(NULL, slab->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, slab->fd, 0);
    if (slab->map == MAP_FAILED) {
        slab->map = NULL;
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "%" PRIu64 " bytes cannot be mapped: %s", slab->bytes,
                       strerror(errno));
    }
    mem->host_share += slab->bytes;
    slab->beside = mem->host != NULL;
    if (slab->beside)
        return TANDEM_OK;
    mem->host = slab->map;
    mem->address = (uintptr_t)slab->map;
    return TANDEM_OK;
}

tandem_status td_remote_mem_share(tandem_session *s, td_mem *mem, char *why)
{
    char text[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_OK;

    pthread_mutex_lock(&s->lock);
    if (s->remote->up) /* else it is shared with the next daemon */
        status = share_locked(s, mem, text);
    pthread_mutex_unlock(&s->lock);
    if (status == TANDEM_OK || status == TANDEM_ERROR_LOST)
        return TANDEM_OK;
    return td_fail(why, TD_WHY_BYTES, status, "tandemd: %s", text);
}

static void end_there(tandem_session *s, td_wire_type type, uint64_t id, uint32_t connection)
{
    td_wire_message m = td_wire_new(type, 0);
    char why[TD_WHY_BYTES];

    pthread_mutex_lock(&s->lock);
    if (s->remote->up && connection == s->remote->connection && id) {
        m.object.id = id;
        ask_locked(s, &m, -1, TD_WIRE_DONE, NULL, why); /* should it fail, the connection's end takes it */
    }
    pthread_mutex_unlock(&s->lock);
}

void td_remote_mem_end(tandem_session *s, td_mem *mem)
{
    end_there(s, TD_WIRE_MEM_DESTROY, mem->slab.id, mem->slab.connection);
}

void td_remote_mem_free(td_mem *mem)
{
    if (!mem->slab.owned)
        return;
    if (mem->slab.map)
        munmap(mem->slab.map, mem->slab.bytes);
    td_fd_close(&mem->slab.fd);
}

/* Models. */

tandem_status td_remote_model_load(tandem_session *s, const char *path, td_model **out, char *why)
{
    char text[TD_WHY_BYTES] = "", *whole = realpath(path, NULL); /* a relative one may be meant for the daemon */
    const char *from = whole ? whole : path;
    td_model *model = *out = td_session_alloc(s, sizeof *model, 64);
    tandem_status status = TANDEM_ERROR_NOMEM;

    if (model)
        model->there = td_session_alloc(s, sizeof *model->there, 64);
    if (!model || !model->there || !(model->mem = td_mem_new(s, INT64_MAX, text))) {
        td_fail(why, TD_WHY_BYTES, status, "no host memory for a model");
    } else if (strlen(from) >= sizeof model->there->path) {
        status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "path has %zu bytes, more than %zu", strlen(from),
                         sizeof model->there->path - 1);
    } else {
        strcpy(model->there->path, from);
        pthread_mutex_lock(&s->lock);
        status = s->remote->up ? load_locked(s, model, text) : gone_text(s->remote, text);
        pthread_mutex_unlock(&s->lock);
        if (status != TANDEM_OK)
            td_fail(why, TD_WHY_BYTES, status, "path is '%.120s': %.260s", path, text);
    }
    free(whole);
    return status;
}

tandem_status td_remote_model_tensor_locked(tandem_session *s, td_model *model, const char *name, tandem_view *view,
                                            uint64_t shape[4], char *why)
{
    char text[TD_WHY_BYTES] = "";
    td_wire_tensor tensor;
    tandem_status status;

    if (strlen(name) >= TD_WIRE_TENSOR_BYTES)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "name is '%.120s...', which is not in the model", name);
    if (!s->remote->up)
        return gone_text(s->remote, why);
    model->mem->object.uses++;
    status = find_tensor_locked(s, model, name, &tensor, text);
    if (status == TANDEM_OK) {
        if (!model->there->first[0])
            strcpy(model->there->first, name);
        *view = tensor.view;
        view->mem = model->mem->object.id;
        memcpy(shape, tensor.shape, sizeof tensor.shape);
    } else {
        td_fail(why, TD_WHY_BYTES, status, "%.380s", text);
    }
    td_object_release_locked(s, &model->mem->object);
    return status;
}

void td_remote_model_end(tandem_session *s, td_model *model)
{
    end_there(s, TD_WIRE_MODEL_DESTROY, model->there->id, model->there->connection);
}

void td_remote_model_free(tandem_session *s, td_model *model)
{
    td_session_free(s, model->there, sizeof *model->there);
}

/* Jobs. */

static bool is_output(uint32_t view) { return view == TD_VIEW_O || view == TD_VIEW_LSE; }

/* Of mems whose memory is not the slab's: what is read goes there whole, of what is written only the rows come back. */
static void copy_view(const td_job *job, uint32_t view, bool in)
{
    const td_mem *mem = job->mems[view];
    const td_extent *e = &job->extents[view];
    const uint64_t offset = job->views[view] - mem->address;
    char *host = (char *)mem->host + offset, *slab = (char *)mem->slab.map + offset;
    const uint64_t n[3] = {e->dimensions > 0 ? e->count[0] : 1, e->dimensions > 1 ? e->count[1] : 1,
                           e->dimensions > 2 ? e->count[2] : 1};

    if (in) {
        memcpy(slab, host, e->bytes);
        return;
    }
    for (uint64_t i = 0; i < n[2]; i++)
        for (uint64_t j = 0; j < n[1]; j++)
            for (uint64_t k = 0; k < n[0]; k++) {
                const uint64_t at = i * e->stride[2] + j * e->stride[1] + k * e->stride[0];

                memcpy(host + at, slab + at, e->row_bytes);
            }
}

/* Called and left with the lock held. */
static void copy_beside(tandem_session *s, const td_job *job, bool in)
{
    pthread_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < TD_VIEW_COUNT; i++)
        if (job->mems[i] && job->mems[i]->slab.beside && is_output(i) != in)
            copy_view(job, i, in);
    pthread_mutex_lock(&s->lock);
}

/* The job in the daemon's ids; its points are this side's. */
static tandem_status describe(tandem_session *s, td_job *job, td_wire_message *m, char *why)
{
    static const char *const names[TD_VIEW_COUNT] = {"q", "k", "v", "o", "lse"};
    td_remote *r = s->remote;
    const uint64_t now = td_now_ns();
    tandem_attention *op = &m->job.job.op.attention;
    tandem_view *views[TD_VIEW_COUNT] = {&op->q, &op->k, &op->v, &op->o, &op->lse};

    *m = td_wire_new(TD_WIRE_JOB, 0);
    m->job.submit_ns = now;
    m->job.job.struct_bytes = sizeof m->job.job;
    m->job.job.operation = TANDEM_OPERATION_ATTENTION;
    if (job->has_deadline)
        m->job.job.deadline_ns = job->deadline_ns > now ? job->deadline_ns - now : 1;
    *op = job->op;
    for (uint32_t i = 0; i < TD_VIEW_COUNT; i++) {
        td_mem *mem = job->mems[i];
        tandem_status status = TANDEM_OK;

        if (!mem) {
            *views[i] = (tandem_view){0};
            continue;
        }
        if (mem->slab.there && mem->slab.connection != r->connection) {
            status = share_locked(s, mem, why);
            if (!r->up)
                return gone_text(r, why);
        } else if (mem->slab.connection != r->connection || mem->slab.status != TANDEM_OK) {
            status = mem->slab.status != TANDEM_OK ? mem->slab.status : TANDEM_ERROR_LOST;
        }
        if (status != TANDEM_OK)
            return td_fail(why, TD_WHY_BYTES, status, "%s.mem is 0x%" PRIx64 ", which tandemd does not have: %s",
                           names[i], mem->object.id, tandem_status_text(status));
        views[i]->mem = mem->slab.id;
    }
    m->job.ticket = r->rules.next_ticket; /* behind all that sleeps */
    if (job->wait || job->signal)
        m->job.job.signal = (tandem_point){r->ends_id, m->job.ticket};
    return td_wire_check(&r->rules, TD_WIRE_RING, m, m->header.bytes, 0, why, TD_WHY_BYTES) == TANDEM_OK
               ? TANDEM_OK
               : TANDEM_ERROR_ARG;
}

static void cancel_there(td_remote *r, uint64_t ticket)
{
    td_wire_message m = td_wire_new(TD_WIRE_CANCEL, 0);
    char why[TD_WHY_BYTES];

    m.cancel.ticket = ticket;
    td_ring_put(&r->ring, &m, why, sizeof why);
}

/* Sleeps until the daemon is through with the job. LOST: it never will. */
static tandem_status await_locked(tandem_session *s, td_job *job, uint64_t ticket, td_wire_report *out, char *why)
{
    td_remote *r = s->remote;
    const uint32_t connection = r->connection;
    uint64_t bound_ns = td_after(td_now_ns(), TD_WIRE_MAX_WAIT_NS);
    bool told = false, ends = false;

    if (job->has_deadline && td_after(job->deadline_ns, TD_CLOSE_BOUND_NS) < bound_ns)
        bound_ns = td_after(job->deadline_ns, TD_CLOSE_BOUND_NS);
    for (;;) {
        const uint32_t seen = td_ring_seen(&r->ring);
        const tandem_status status = td_ring_read_report(&r->ring, ticket, out, why, TD_WHY_BYTES);
        const uint64_t now = td_now_ns();

        if (status == TANDEM_OK && td_job_state_ended(out->state))
            return status;
        if (!r->up || r->connection != connection)
            return gone_text(r, why);
        if ((status != TANDEM_OK && status != TANDEM_ERROR_BUSY) || now >= bound_ns) {
            if (now >= bound_ns)
                td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_LOST, "tandemd at '%.100s' has not ended the job in time",
                        r->path);
            shutdown(r->conn.fd, SHUT_RDWR);
            return TANDEM_ERROR_LOST;
        }
        if (!ends && (s->stopping || job->asked)) {
            ends = true;
            bound_ns = td_after(now, TD_CLOSE_BOUND_NS);
        }
        if (!told && (job->asked || (s->stopping && out->state == TANDEM_JOB_PENDING))) {
            told = true;
            cancel_there(r, ticket);
        }
        pthread_mutex_unlock(&s->lock);
        td_ring_sleep(&r->ring, seen, SLICE_NS);
        pthread_mutex_lock(&s->lock);
    }
}

/* The text of a job that failed may come a moment behind its report. */
static void await_text_locked(tandem_session *s, uint64_t ticket, char *why)
{
    td_remote *r = s->remote;
    const uint64_t until = td_now_ns() + TEXT_NS;

    while (r->up && r->failed_ticket != ticket && !(r->failed_all && r->failed_ticket >= ticket) && td_now_ns() < until)
        td_cond_wait_until(s, &s->changed, until);
    if (r->failed_ticket == ticket || (r->failed_all && r->failed_ticket >= ticket))
        td_fail(why, TD_WHY_BYTES, TANDEM_OK, "tandemd: %.300s", r->failed_text);
}

tandem_status td_remote_run_locked(tandem_session *s, td_job *job, uint64_t *begin_ns, uint64_t *end_ns, char *why)
{
    td_remote *r = s->remote;
    tandem_job_report *report = td_job_report_locked(s, job);
    td_wire_report there = {0};
    td_wire_message m;
    tandem_status status;

    *begin_ns = *end_ns = 0;
    if (!r->up)
        return gone_text(r, why);
    /* To whoever gives the job up: the daemon decides, and its verdict is below. */
    job->control.claimed = job->commits;
    job->words = &job->control;
    r->in_area = true;
    copy_beside(s, job, true);
    status = r->up ? describe(s, job, &m, why) : gone_text(r, why);
    if (status == TANDEM_OK && !r->up)
        status = gone_text(r, why);
    if (status == TANDEM_OK) {
        r->heard_ns = td_now_ns();
        status = td_ring_put(&r->ring, &m, why, TD_WHY_BYTES);
        if (status == TANDEM_ERROR_PROTOCOL || status == TANDEM_ERROR_BUSY) { /* the ring holds one job at a time */
            shutdown(r->conn.fd, SHUT_RDWR);
            status = TANDEM_ERROR_LOST;
        }
    }
    if (status == TANDEM_OK) {
        td_wire_took(&r->rules, TD_WIRE_RING, &m);
        status = await_locked(s, job, m.job.ticket, &there, why);
    }
    r->in_area = false;
    pthread_cond_broadcast(&s->changed);
    if (status != TANDEM_OK)
        return status;
    *begin_ns = there.begin_ns;
    *end_ns = there.end_ns;
    if (there.precision)
        report->precision = there.precision;
    switch (there.state) {
    case TANDEM_JOB_DONE:
        __atomic_store_n(&job->control.verdict, TD_VERDICT_COMMITTED, __ATOMIC_RELEASE);
        if (!job->given_up)
            copy_beside(s, job, false);
        return TANDEM_OK;
    case TANDEM_JOB_FAILED:
        td_fail(why, TD_WHY_BYTES, there.status, "tandemd: %s", tandem_status_text((tandem_status)there.status));
        await_text_locked(s, m.job.ticket, why);
        return (tandem_status)there.status;
    default: /* STALE, CANCELLED */
        __atomic_store_n(&job->control.verdict, TD_VERDICT_GIVEN_UP, __ATOMIC_RELEASE);
        if (!job->asked) {
            job->asked = true;
            job->end_state = (tandem_job_state)there.state;
            job->end_status = TANDEM_OK;
        }
        job->given_up = true;
        return TANDEM_OK;
    }
}

void td_remote_kick_locked(tandem_session *s)
{
    if (s->remote->in_area && s->remote->ring.area)
        td_bell_ring(&s->remote->ring.area->to_client);
}
