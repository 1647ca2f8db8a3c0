/* Sessions whose jobs tandemd computes: the connection, what is shared through it, and a job's way there and back.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Only the computing is elsewhere. Ids, checks, points and reports are those of any session.
 *   timeline   the daemon's GPU shares what this device's Vulkan has exported: jobs go into the daemon's ring as they are
 *              submitted, wait and signal on the GPU, and no thread of ours is on their way. A point that the GPU owes is
 *              signalled from here once the daemon, or its worker, is gone
 *   else       the session's worker waits for a job's point, puts the job into the ring without it, and signals from here
 *              once its report is there. So a daemon that dies owes nobody a signal
 * In both, jobs are sent ahead of those that run, and the worker ends them as their reports come. But where the host signals
 * a caller that waits does all of this itself: two threads less have to be woken.
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
#define SIGNAL_NS 100000000u       /* and the GPU's signal of a job that is done; else there is none */
#define RELEASE_NS SECOND          /* after so long a session that ends releases what its jobs wait for */
#define HELD_LOOK_NS 50000u        /* how often a value is looked at that was not announced, */
#define HELD_REST_NS 500000u       /* and where others were */
#define REACHED_LOOK_NS 20000u     /* how often a signal is looked at that is about to come */
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
    uint32_t share; /* td_wire_share */
    char why_not[TD_WHY_BYTES]; /* not OPAQUE */
    bool over; /* it was refused for good */
    uint32_t in_area; /* threads that look at the ring without the lock */
    uint32_t callers; /* that watch all jobs in the worker's place */
    atomic_uint hurry; /* changes when the worker is to leave that to a caller */
    bool left_out;    /* meanwhile the worker sleeps, or was not woken */
    bool led;         /* a caller has ended the last job */
    td_vigil values, results; /* for values that were announced, for ends of jobs */
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
    td_text(r->failed_text, sizeof r->failed_text, "%s", text);
    pthread_cond_broadcast(&s->changed);
}

/* What the GPU has not signalled yet of the jobs that are over there it never will. */
static void own_signals_locked(tandem_session *s)
{
    for (uint32_t i = 0; i < s->order_count; i++)
        s->order[i]->remote.yours = s->order[i]->remote.yours || s->order[i]->remote.answered;
    td_remote_kick_locked(s);
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
            return td_fail(why, TD_WHY_BYTES, (tandem_status)m->error.status, "it says: %s", m->error.text);
        keep_failed(s, m->error.ticket, false, m->error.text);
        return TANDEM_OK;
    case TD_WIRE_RESET: {
        char text[TD_WHY_BYTES];

        td_text(text, sizeof text, "its worker was replaced: %s", m->reset.text);
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
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_LOST, "tandemd at '%s' is gone: %s", r->path, r->gone);
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
    td_text(r->gone, sizeof r->gone, "%s", why);
    for (uint32_t i = 0; i < ASKS; i++)
        if (r->asks[i].serial && !r->asks[i].answered) {
            r->asks[i].status = TANDEM_ERROR_LOST;
            r->asks[i].answered = true;
        }
    pthread_cond_broadcast(&s->changed);
    own_signals_locked(s);
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
    m.hello.share = r->share;
    m.hello.backend = r->backend;
    m.hello.frames_in_flight = s->frames;
    m.hello.timing = 1;
    m.hello.job_class = s->job_class;
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
    r->rules = td_wire_rules_new(td_operation_of_clients);
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
                             "it computes with backend %u (%s), and this session with %u", m.info.backend,
                             m.info.device, r->backend);
    }
    if (status != TANDEM_OK) {
        char text[TD_WHY_BYTES];

        td_text(text, sizeof text, "%s", why);
        disconnect_locked(s, text);
    }
    return status;
}

/* The descriptor of what Vulkan exports is the caller's. */
static tandem_status export_mem(tandem_session *s, const td_mem *mem, int *fd, char *why)
{
    if (mem->slab.fd > 0) {
        *fd = td_fd_dup(mem->slab.fd);
        return *fd >= 0 ? TANDEM_OK : td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "dup: %s", strerror(errno));
    }
    return td_vk_mem_export_fd(s->vk, &mem->vk, fd, why, TD_WHY_BYTES);
}

static tandem_status share_locked(tandem_session *s, td_mem *mem, char *why)
{
    td_remote *r = s->remote;
    td_slab *slab = &mem->slab;
    const uint32_t connection = r->connection;
    td_wire_message m = td_wire_new(TD_WIRE_MEM_CREATE, 0);
    tandem_status status = TANDEM_OK;
    int fd = -1;

    m.mem_create.kind = slab->opaque ? TD_WIRE_MEM_OPAQUE : TD_WIRE_MEM_SLAB;
    m.mem_create.bytes = mem->bytes;
    m.mem_create.allocation_bytes = slab->opaque ? mem->vk.allocation_bytes : slab->bytes;
    m.mem_create.offset_bytes = slab->opaque ? mem->vk.offset : 0;
    m.mem_create.dedicated = slab->opaque && mem->vk.dedicated;
    if (m.mem_create.allocation_bytes > r->rules.mem_bytes)
        status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM,
                         "bytes is %" PRIu64 ", and tandemd takes %" PRIu64 " at most", mem->bytes, r->rules.mem_bytes);
    if (status == TANDEM_OK && slab->opaque)
        status = export_mem(s, mem, &fd, why);
    if (status == TANDEM_OK)
        status = ask_locked(s, &m, slab->opaque ? fd : slab->fd, TD_WIRE_DONE, NULL, why);
    td_fd_close(&fd);
    if (status == TANDEM_ERROR_LOST || r->connection != connection)
        return TANDEM_ERROR_LOST;
    slab->connection = connection;
    slab->status = status;
    slab->id = status == TANDEM_OK ? m.object.id : 0;
    return status;
}

/* Its counter there begins with what it is here, and with what was announced. */
static tandem_status share_timeline_locked(tandem_session *s, td_timeline *timeline, char *why)
{
    td_remote *r = s->remote;
    td_there *there = &timeline->there;
    const uint32_t connection = r->connection;
    td_wire_message m = td_wire_new(TD_WIRE_TIMELINE_CREATE, 0);
    uint64_t value = 0;
    tandem_status status = td_vk_timeline_value(s->vk, timeline->semaphore, &value);
    int fd = -1;

    if (status != TANDEM_OK)
        return td_fail(why, TD_WHY_BYTES, status, "its counter cannot be read");
    m.timeline_create.kind = TD_WIRE_TIMELINE_OPAQUE;
    m.timeline_create.signaller = timeline->by_session;
    m.timeline_create.initial_value = timeline->by_session      ? timeline->promised
                                      : timeline->submitted > value ? timeline->submitted
                                                                    : value;
    status = td_vk_timeline_export_fd(s->vk, timeline->semaphore, &fd, why, TD_WHY_BYTES);
    there->announced = m.timeline_create.initial_value;
    if (status == TANDEM_OK)
        status = ask_locked(s, &m, fd, TD_WIRE_DONE, NULL, why);
    td_fd_close(&fd);
    if (status == TANDEM_ERROR_LOST || r->connection != connection)
        return TANDEM_ERROR_LOST;
    there->connection = connection;
    there->status = status;
    there->id = status == TANDEM_OK ? m.object.id : 0;
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
                       "tandemd at '%s' loads no models: no model_dir is configured", r->path);
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
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_LOST, "tandemd at '%s' could not load '" TD_NAME "' again",
                       r->path, TD_NAMED(model->there->path));
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
    for (uint32_t i = 0; i < s->timelines.capacity && status != TANDEM_ERROR_LOST && s->gpu_signals; i++) {
        td_timeline *timeline = (td_timeline *)s->timelines.slots[i];

        if (!timeline || timeline->object.closing || timeline->there.connection == r->connection)
            continue;
        timeline->object.uses++;
        status = share_timeline_locked(s, timeline, why);
        td_object_release_locked(s, &timeline->object);
    }
    return status == TANDEM_ERROR_LOST || status == TANDEM_ERROR_PROTOCOL ? status : TANDEM_OK;
}

/* The thread. */

static bool owes_locked(const tandem_session *s)
{
    const td_remote *r = s->remote;
    bool owes = false;

    for (uint32_t i = 0; i < s->order_count; i++)
        owes = owes || (s->order[i]->begun && !s->order[i]->remote.answered);
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

    if (!owes_locked(s)) {
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
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.socket is '" TD_NAME "', longer than %zu bytes",
                       TD_NAMED(socket), sizeof r->path - 1);
    return TANDEM_OK;
}

/* On a GPU that this device's Vulkan can share with. */
static void choose_share(tandem_session *s, const tandem_session_desc *desc)
{
    const td_vk_caps *caps = td_vk_get_caps(s->vk);
    td_remote *r = s->remote;

    r->share = TD_WIRE_SHARE_HOST;
    if (!caps)
        td_text(r->why_not, sizeof r->why_not, "the session has no Vulkan device to share semaphores with");
    else if (!caps->export_memory || !caps->export_timeline)
        td_text(r->why_not, sizeof r->why_not, "%s missing",
                 caps->missing[0] ? caps->missing : "export of OPAQUE_FD memory and timeline semaphores is");
    else if (r->backend == TANDEM_BACKEND_CPU)
        td_text(r->why_not, sizeof r->why_not, "the CPU was asked for");
    else if (desc->rung && desc->rung != TANDEM_RUNG_TIMELINE)
        td_text(r->why_not, sizeof r->why_not, "another rung was asked for");
    else
        r->share = TD_WIRE_SHARE_OPAQUE;
    if (r->share != TD_WIRE_SHARE_OPAQUE)
        return;
    memcpy(r->identity.device_uuid, caps->device_uuid, sizeof r->identity.device_uuid);
    memcpy(r->identity.driver_uuid, caps->driver_uuid, sizeof r->identity.driver_uuid);
    r->identity.driver_id = caps->driver_id;
    r->identity.driver_version = caps->driver_version;
}

tandem_status td_remote_shares_gpu(tandem_session *s, char *why)
{
    if (s->remote->share == TD_WIRE_SHARE_OPAQUE)
        return TANDEM_OK;
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "%s", s->remote->why_not);
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
    choose_share(s, desc);
    pthread_mutex_lock(&s->lock);
    status = connect_locked(s, text);
    if (status == TANDEM_ERROR_UNSUPPORTED && r->share == TD_WIRE_SHARE_OPAQUE && !desc->rung) {
        td_text(r->why_not, sizeof r->why_not, "%s", text);
        r->share = TD_WIRE_SHARE_HOST;
        status = connect_locked(s, text);
    }
    r->up = status == TANDEM_OK;
    pthread_mutex_unlock(&s->lock);
    if (status != TANDEM_OK)
        return td_fail(why, TD_WHY_BYTES, status, "desc.socket is '%s': %s", r->path, text);
    r->backend = s->backend = r->info.backend;
    s->threads = r->info.cpu_threads;
    s->target = s->backend == TANDEM_BACKEND_CPU ? td_target_for_sm(0) : td_target_for_stream(r->info.sm);
    td_text(s->device_name, sizeof s->device_name, "%s", r->info.device);
    snprintf(s->isa, sizeof s->isa, "%s", r->info.isa);
    if (s->backend == TANDEM_BACKEND_CPU)
        td_text(s->rung_reason, sizeof s->rung_reason, "tandemd: %s", r->info.rung_reason);
    else
        td_text(s->rung_reason, sizeof s->rung_reason, "inline: tandemd computes in a process of its own");
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

tandem_status td_remote_mem_make(td_mem *mem, bool opaque, char *why)
{
    td_slab *slab = &mem->slab;
    tandem_status status;

    if (opaque) {
        slab->there = slab->opaque = true;
        mem->address = mem->vk.offset; /* from where the daemon maps it, which no more than its alignment tells */
        return TANDEM_OK;
    }
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

tandem_status td_remote_timeline_share(tandem_session *s, td_timeline *timeline, char *why)
{
    char text[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_OK;

    pthread_mutex_lock(&s->lock);
    if (s->remote->up)
        status = share_timeline_locked(s, timeline, text);
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

void td_remote_timeline_end(tandem_session *s, td_timeline *timeline)
{
    end_there(s, TD_WIRE_TIMELINE_DESTROY, timeline->there.id, timeline->there.connection);
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
            td_fail(why, TD_WHY_BYTES, status, "path is '" TD_NAME "': %s", TD_NAMED(path), text);
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
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "name is '" TD_NAME "', which is not in the model", TD_NAMED(name));
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
        td_fail(why, TD_WHY_BYTES, status, "%s", text);
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
    for (uint32_t i = 0; i < TD_MAX_VIEWS; i++)
        if (job->mems[i] && job->mems[i]->slab.beside && td_job_writes(job, i) != in)
            copy_view(job, i, in);
    pthread_mutex_lock(&s->lock);
}

static bool has_beside(const td_job *job, bool in)
{
    bool has = false;

    for (uint32_t i = 0; i < TD_MAX_VIEWS; i++)
        has = has || (job->mems[i] && job->mems[i]->slab.beside && td_job_writes(job, i) != in);
    return has;
}

static tandem_status name_mem(tandem_session *s, const td_job *job, uint32_t view, tandem_view *out, char *why)
{
    td_remote *r = s->remote;
    td_mem *mem = job->mems[view];
    tandem_status status = TANDEM_OK;

    if (mem->slab.there && mem->slab.connection != r->connection) {
        status = share_locked(s, mem, why);
        if (!r->up)
            return gone_text(r, why);
    } else if (mem->slab.connection != r->connection || mem->slab.status != TANDEM_OK) {
        status = mem->slab.status != TANDEM_OK ? mem->slab.status : TANDEM_ERROR_LOST;
    }
    if (status != TANDEM_OK)
        return td_fail(why, TD_WHY_BYTES, status, "%s.mem is 0x%" PRIx64 ", which tandemd does not have: %s",
                       job->operation->layout.views[view].name, mem->object.id, tandem_status_text(status));
    out->mem = mem->slab.id;
    return TANDEM_OK;
}

static tandem_status name_point(tandem_session *s, td_timeline *timeline, uint64_t value, tandem_point *out, char *why)
{
    td_remote *r = s->remote;
    td_there *there = &timeline->there;
    tandem_status status = there->status;

    if (there->connection != r->connection)
        status = share_timeline_locked(s, timeline, why);
    if (!r->up)
        return gone_text(r, why);
    if (status != TANDEM_OK)
        return td_fail(why, TD_WHY_BYTES, status, "timeline 0x%" PRIx64 ", which tandemd does not have: %s",
                       timeline->object.id, tandem_status_text(status));
    *out = (tandem_point){there->id, value};
    return TANDEM_OK;
}

/* The job in the daemon's ids; where the host signals, its points are this side's. */
static tandem_status describe(tandem_session *s, td_job *job, td_wire_message *m, char *why)
{
    td_remote *r = s->remote;
    const uint64_t now = td_now_ns();
    const td_operation_layout *layout = &job->operation->layout;
    tandem_operands *op = &m->job.job.op;
    tandem_status status = TANDEM_OK;

    *m = td_wire_new(TD_WIRE_JOB, 0);
    m->job.submit_ns = now;
    m->job.job.struct_bytes = sizeof m->job.job;
    m->job.job.operation = layout->number;
    if (job->has_deadline)
        m->job.job.deadline_ns = job->deadline_ns > now ? job->deadline_ns - now : 1;
    memcpy(op, &job->remote.op, layout->bytes);
    for (uint32_t i = 0; i < layout->view_count && status == TANDEM_OK; i++)
        if (job->mems[i])
            status = name_mem(s, job, i, td_view_of(layout, op, i), why);
        else
            *td_view_of(layout, op, i) = (tandem_view){0};
    if (status == TANDEM_OK && s->gpu_signals && job->wait)
        status = name_point(s, job->wait, job->wait_value, &m->job.job.wait, why);
    if (status == TANDEM_OK && s->gpu_signals && job->signal)
        status = name_point(s, job->signal, job->signal_value, &m->job.job.signal, why);
    if (status != TANDEM_OK)
        return status;
    m->job.ticket = r->rules.next_ticket; /* behind all that sleeps */
    if (!s->gpu_signals && (job->wait || job->signal))
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

/* --- What comes at once --- */

static td_job *first_to_send(const tandem_session *s)
{
    for (uint32_t i = 0; i < s->order_count; i++)
        if (!s->order[i]->begun && !s->order[i]->given_up)
            return s->order[i];
    return NULL;
}

/* Whether a job goes as soon as a value is there that was announced. */
static bool is_expected(const td_job *job)
{
    return job && !job->at_work && job->wait && job->wait->semaphore && job->wait->submitted >= job->wait_value &&
           !has_beside(job, true);
}

/* The daemon is to be awake when the job comes. */
static void call_locked(tandem_session *s)
{
    td_remote *r = s->remote;
    td_job *job = first_to_send(s);
    bool pays;

    if (!r->up || !is_expected(job) || job->remote.expected_ns)
        return;
    job->remote.expected_ns = td_now_ns();
    pays = td_vigil_pays(&r->values, job->remote.expected_ns);
    if (pays)
        td_bell_ring(&r->ring.area->to_daemon);
    if (!pays || !r->led) /* else who waits will be here as soon */
        td_remote_kick_locked(s);
}

static uint64_t watch_until(const td_vigil *vigil, uint64_t since_ns, uint64_t now)
{
    return td_vigil_pays(vigil, now) && now < since_ns + TD_VIGIL_NS ? since_ns + TD_VIGIL_NS : 0;
}

void td_remote_submitted_locked(tandem_session *s, td_timeline *timeline)
{
    td_remote *r = s->remote;
    td_there *there = &timeline->there;
    td_wire_message m = td_wire_new(TD_WIRE_SUBMITTED, 0);
    char why[TD_WHY_BYTES];

    if (!s->gpu_signals)
        call_locked(s);
    if (!r->up || !there->id || there->connection != r->connection || timeline->submitted <= there->announced)
        return;
    m.submitted.timeline = there->id;
    m.submitted.value = timeline->submitted;
    if (td_ring_put(&r->ring, &m, why, sizeof why) == TANDEM_OK)
        there->announced = timeline->submitted; /* else the worker tries again */
}

/* --- A job's end --- */

static void answer(td_job *job, uint32_t state, tandem_status status, bool yours, const char *why)
{
    td_remote_job *there = &job->remote;

    there->answered = true;
    there->answered_ns = td_now_ns();
    there->state = state;
    there->status = status;
    there->yours = yours;
    td_text(there->why, sizeof there->why, "%s", why);
}

/* There will be no report. */
static void answer_lost(tandem_session *s, td_job *job)
{
    char why[TD_WHY_BYTES];

    gone_text(s->remote, why);
    answer(job, TANDEM_JOB_FAILED, TANDEM_ERROR_LOST, true, why);
}

static void read_report(tandem_session *s, td_job *job)
{
    tandem_job_report *report = td_job_report_locked(s, job);
    td_remote *r = s->remote;
    td_wire_report there;
    char why[TD_WHY_BYTES];
    tandem_status status;

    if (!r->up || job->remote.connection != r->connection) {
        answer_lost(s, job);
        return;
    }
    status = td_ring_read_report(&r->ring, job->remote.ticket, &there, why, sizeof why);
    if (status == TANDEM_ERROR_BUSY)
        return;
    if (status != TANDEM_OK) {
        shutdown(r->conn.fd, SHUT_RDWR);
        return;
    }
    if (there.state == TANDEM_JOB_RUNNING && report->state == TANDEM_JOB_PENDING)
        report->state = TANDEM_JOB_RUNNING;
    if (!td_job_state_ended(there.state))
        return;
    if (there.precision)
        report->precision = there.precision;
    if (s->timing && there.begin_ns) {
        report->begin_ns = there.begin_ns;
        report->end_ns = there.end_ns;
    }
    answer(job, there.state, (tandem_status)there.status, there.yours, tandem_status_text((tandem_status)there.status));
    if (there.state == TANDEM_JOB_DONE) {
        __atomic_store_n(&job->control.verdict, TD_VERDICT_COMMITTED, __ATOMIC_RELEASE);
    } else if (there.state != TANDEM_JOB_FAILED) { /* STALE, CANCELLED */
        __atomic_store_n(&job->control.verdict, TD_VERDICT_GIVEN_UP, __ATOMIC_RELEASE);
        if (!job->asked) {
            job->asked = true;
            job->end_state = (tandem_job_state)there.state;
            job->end_status = TANDEM_OK;
        }
        job->given_up = true;
    }
}

static bool has_text(const td_remote *r, const td_job *job)
{
    return job->remote.ticket && job->remote.connection == r->connection &&
           (r->failed_ticket == job->remote.ticket || (r->failed_all && r->failed_ticket >= job->remote.ticket));
}

/* Whether all jobs before it that signal the same timeline are over. */
static bool is_first(const tandem_session *s, const td_job *job)
{
    bool first = true;

    for (uint32_t i = 0; s->order[i] != job; i++)
        first = first && (!job->signal || s->order[i]->signal != job->signal);
    return first;
}

/* A job that the daemon has answered, once its turn to signal comes or its signal has; *line: what to log. */
static bool end_answered(tandem_session *s, td_job *job, char *line)
{
    const uint64_t now = td_now_ns(); /* after it was answered */
    td_remote_job *there = &job->remote;
    tandem_job_state state = (tandem_job_state)there->state;
    tandem_status status = there->state == TANDEM_JOB_FAILED ? there->status : TANDEM_OK;
    uint64_t value = 0;

    /* The text of a job that failed may come a moment behind its report. */
    if (state == TANDEM_JOB_FAILED && !job->given_up && s->remote->up && there->connection == s->remote->connection &&
        !has_text(s->remote, job) && now - there->answered_ns < TEXT_NS)
        return false;
    if (job->given_up) {
        state = job->end_state;
        status = job->end_status;
    }
    if (state != TANDEM_JOB_DONE && state != TANDEM_JOB_CANCELLED)
        td_job_end_report_locked(s, job, state, status);
    if (s->gpu_signals && job->signal && !there->yours) {
        if (td_timeline_value_locked(s, job->signal, &value) == TANDEM_OK && value < job->signal_value &&
            (state != TANDEM_JOB_DONE || now - there->answered_ns < SIGNAL_NS))
            return false;
        there->yours = value < job->signal_value;
    }
    if (!is_first(s, job))
        return false;
    if (state == TANDEM_JOB_DONE && has_beside(job, false))
        copy_beside(s, job, false);
    if (state == TANDEM_JOB_DONE)
        s->computed_ns = td_now_ns();
    if (state == TANDEM_JOB_FAILED) {
        const bool told = has_text(s->remote, job);

        td_fail(line, TD_WHY_BYTES, status, "job %" PRIu64 ": %s%s", job->number, told ? "tandemd: " : "",
                told ? s->remote->failed_text : there->why);
        td_session_keep_error_locked(s, line);
    }
    (s->gpu_signals && !there->yours ? td_job_retire_locked : td_job_finish_locked)(s, job, state, status);
    return true;
}

/* --- A job's way there --- */

/* Until when the host waits for what a job waits for: without a bound behind one that the daemon has, as the engine may wait
 * for that first. */
static uint64_t bound_of(const tandem_session *s, const td_job *job)
{
    for (uint32_t i = 0; s->order[i] != job; i++)
        if (s->order[i]->begun)
            return UINT64_MAX;
    return td_job_bound_locked(s, job);
}

/* Whether what it waits for is there, where the host waits for it. False too if it cannot be waited for any more. */
static bool may_go(tandem_session *s, td_job *job, uint64_t now, char *line)
{
    uint64_t value = job->wait_value;
    tandem_status status = TANDEM_OK;

    if (s->gpu_signals || !job->wait)
        return true;
    status = td_timeline_value_locked(s, job->wait, &value);
    if (status == TANDEM_OK && value >= job->wait_value)
        return true;
    if (status == TANDEM_OK && now < bound_of(s, job))
        return false;
    if (status != TANDEM_OK)
        td_fail(line, TD_WHY_BYTES, status, "job %" PRIu64 ": waiting for its point failed: %s", job->number,
                tandem_status_text(status));
    else
        td_fail(line, TD_WHY_BYTES, status = TANDEM_ERROR_LOST,
                "job %" PRIu64 ": wait point {0x%" PRIx64 ", %" PRIu64 "} did not come within %" PRIu64
                " ms; the counter is %" PRIu64 ", and the engine signals it",
                job->number, job->wait->object.id, job->wait_value, s->wait_bound_ns / 1000000, value);
    td_session_keep_error_locked(s, line);
    td_job_give_up_locked(s, job, TANDEM_JOB_FAILED, status);
    return false;
}

/* Sends a job. BUSY: the ring is full. Any other failure is its end. */
static tandem_status send_job(tandem_session *s, td_job *job)
{
    td_remote *r = s->remote;
    char why[TD_WHY_BYTES] = "";
    td_wire_message m;
    tandem_status status = r->up ? describe(s, job, &m, why) : gone_text(r, why);

    if (status == TANDEM_OK && !r->up)
        status = gone_text(r, why);
    if (status == TANDEM_OK && job->wait && s->gpu_signals)
        td_remote_submitted_locked(s, job->wait);
    if (status == TANDEM_OK)
        status = td_ring_put(&r->ring, &m, why, TD_WHY_BYTES);
    if (status == TANDEM_ERROR_BUSY)
        return status;
    /* To whoever gives the job up: the daemon decides, and its verdict is in the report. */
    job->control.claimed = job->commits;
    job->words = &job->control;
    job->begun = true;
    td_forgotten_look_locked(s, job);
    if (status != TANDEM_OK) {
        if (status == TANDEM_ERROR_PROTOCOL)
            shutdown(r->conn.fd, SHUT_RDWR);
        answer(job, TANDEM_JOB_FAILED, status, true, why);
        return TANDEM_OK;
    }
    td_wire_took(&r->rules, TD_WIRE_RING, &m);
    if (!owes_locked(s))
        r->heard_ns = td_now_ns();
    job->remote.ticket = m.job.ticket;
    job->remote.connection = r->connection;
    job->remote.sent_ns = td_now_ns();
    return TANDEM_OK;
}

/* Sends, in their order, what can be sent; with `copies`, also what has to be copied first, without the lock. */
static void feed_locked(tandem_session *s, bool copies, char *line)
{
    bool goes_on = true;

    while (goes_on) {
        td_job *job = NULL;

        for (uint32_t i = 0; i < s->order_count && !job; i++)
            if (!s->order[i]->begun && !s->order[i]->given_up)
                job = s->order[i];
        goes_on = job && !job->at_work && may_go(s, job, td_now_ns(), line) && (copies || !has_beside(job, true));
        if (!goes_on)
            break;
        job->at_work = true; /* it is ours, also while the lock is not held */
        if (has_beside(job, true))
            copy_beside(s, job, true);
        goes_on = send_job(s, job) == TANDEM_OK;
        job->at_work = false;
    }
}

void td_remote_feed_locked(tandem_session *s)
{
    char line[TD_WHY_BYTES] = "";

    feed_locked(s, false, line);
    if (!s->gpu_signals)
        call_locked(s);
    td_remote_kick_locked(s);
}

/* --- A caller in the worker's place, where the host signals --- */

/* Sends what can go, ends what is through; what takes long or went wrong is the worker's. True if something was done. */
static bool help_locked(tandem_session *s)
{
    char line[TD_WHY_BYTES] = "";
    td_remote *r = s->remote;
    td_job *first = first_to_send(s);
    bool some = false;

    if (first && !first->at_work) {
        feed_locked(s, false, line);
        some = first != first_to_send(s);
    }
    for (uint32_t i = 0; i < s->order_count;) {
        td_job *job = s->order[i];

        if (job->begun && !job->at_work && !job->remote.answered)
            read_report(s, job);
        if (job->begun && !job->at_work && job->remote.answered && job->remote.state == TANDEM_JOB_DONE &&
            !has_beside(job, false) && end_answered(s, job, line))
            some = r->led = true;
        else
            i++;
    }
    if (line[0]) { /* the watchdog logs it */
        snprintf(s->untold, sizeof s->untold, "%s", line);
        pthread_cond_signal(&s->watch);
    }
    return some || line[0];
}

/* Looks for the value that the next job waits for, and for the end of the oldest; without the lock. */
static bool watch(const tandem_session *s, VkSemaphore semaphore, uint64_t wanted, uint64_t value_until,
                  uint64_t end_until, uint32_t seen, const uint32_t *hurry, bool *value_came)
{
    const td_remote *r = s->remote;
    const uint64_t until = value_until > end_until ? value_until : end_until;

    for (uint64_t now = td_now_ns(), value; now < until;) {
        if (now < value_until && (td_vk_timeline_value(s->vk, semaphore, &value) != TANDEM_OK || value >= wanted))
            return *value_came = true;
        if (td_ring_seen(&r->ring) != seen)
            return true;
        if (hurry && atomic_load(&s->remote->hurry) != *hurry)
            return true;
        if (!td_vigil_pass(&now))
            break;
    }
    return false;
}

static bool watch_locked(tandem_session *s, bool caller, uint32_t seen, uint64_t until_ns)
{
    td_remote *r = s->remote;
    const uint64_t now = td_now_ns();
    const uint32_t hurry = atomic_load(&r->hurry);
    td_job *next = first_to_send(s);
    const td_job *oldest = s->order[0];
    uint64_t value_until = 0, end_until = 0, wanted = 0;
    VkSemaphore semaphore = VK_NULL_HANDLE;
    bool came, value_came = false;
    td_timeline *wait = NULL;

    if (is_expected(next)) {
        if (!next->remote.expected_ns)
            next->remote.expected_ns = now;
        value_until = watch_until(&r->values, next->remote.expected_ns, now);
    }
    if (oldest->begun && !oldest->remote.answered)
        end_until = watch_until(&r->results, oldest->remote.sent_ns, now);
    if (!value_until && !end_until)
        return false;
    if (value_until) {
        wait = next->wait;
        wait->object.uses++;
        semaphore = wait->semaphore;
        wanted = next->wait_value;
    }
    if (caller && !r->callers++)
        atomic_fetch_add(&r->hurry, 1);
    r->in_area++;
    pthread_mutex_unlock(&s->lock);
    came = watch(s, semaphore, wanted, value_until < until_ns ? value_until : until_ns,
                 end_until < until_ns ? end_until : until_ns, seen, caller ? NULL : &hurry, &value_came);
    pthread_mutex_lock(&s->lock);
    r->in_area--;
    r->callers -= caller;
    if (wait)
        td_object_release_locked(s, &wait->object);
    if (value_until && (value_came || (!came && value_until < until_ns)))
        td_vigil_end(&r->values, value_came, td_now_ns());
    if (end_until && !value_came && (came || end_until < until_ns))
        td_vigil_end(&r->results, came, td_now_ns());
    if (!r->up)
        pthread_cond_broadcast(&s->changed);
    return came;
}

bool td_remote_watch_locked(tandem_session *s, uint64_t until_ns)
{
    const td_remote *r = s->remote;
    uint32_t seen;

    if (s->gpu_signals || !r->up)
        return false;
    seen = td_ring_seen(&r->ring);
    return help_locked(s) || (r->up && s->order_count && watch_locked(s, true, seen, until_ns));
}

/* --- The worker --- */

/* Values that were signalled without being announced, and announcements that the ring had no room for. */
static bool announce_locked(tandem_session *s)
{
    bool waits = false;

    for (uint32_t i = 0; i < s->order_count && s->gpu_signals; i++) {
        td_job *job = s->order[i];
        uint64_t value = 0;

        if (!job->begun || job->remote.answered || !job->wait || job->wait->by_session)
            continue;
        if (job->wait->submitted < job->wait_value &&
            td_timeline_value_locked(s, job->wait, &value) == TANDEM_OK && value >= job->wait_value)
            job->wait->submitted = value;
        td_remote_submitted_locked(s, job->wait);
        waits = waits || job->wait->submitted < job->wait_value || job->wait->there.announced < job->wait->submitted;
    }
    return waits;
}

/* Tells the daemon of jobs that were given up, and of all that have not begun when the session ends. */
static void cancel_some(tandem_session *s)
{
    for (uint32_t i = 0; i < s->order_count; i++) {
        td_job *job = s->order[i];
        const bool begun = td_job_report_locked(s, job)->state != TANDEM_JOB_PENDING;

        if (!job->begun || job->remote.answered || job->remote.cancelled || !s->remote->up ||
            job->remote.connection != s->remote->connection || !(job->asked || (s->stopping && !begun)))
            continue;
        job->remote.cancelled = true;
        cancel_there(s->remote, job->remote.ticket);
    }
}

/* The session ends, and some of its jobs do not. */
static void end_by_force(tandem_session *s, uint64_t since_ns, uint64_t now)
{
    if (now - since_ns < RELEASE_NS)
        return;
    for (uint32_t i = 0; i < s->order_count; i++) {
        td_job *job = s->order[i];

        if (s->gpu_signals && job->wait && !job->wait->by_session)
            td_timeline_raise_locked(s, job->wait, job->wait_value);
        if (now - since_ns > TD_CLOSE_BOUND_NS && job->begun && !job->remote.answered)
            answer_lost(s, job);
        job->remote.yours = job->remote.yours || now - since_ns > TD_CLOSE_BOUND_NS;
    }
}

/* A job that was asked to end and does not: the daemon is as good as gone. */
static bool is_overdue(const tandem_session *s, const td_job *job, uint64_t now)
{
    const uint64_t by_deadline = job->has_deadline ? td_after(job->deadline_ns, TD_CLOSE_BOUND_NS) : UINT64_MAX;
    const uint64_t since = s->computed_ns > job->submit_ns ? s->computed_ns : job->submit_ns;
    const uint64_t at_all = td_after(td_after(since, TD_WIRE_MAX_WAIT_NS), TD_CLOSE_BOUND_NS);

    return job->begun && !job->remote.answered && now > (by_deadline < at_all ? by_deadline : at_all);
}

/* Until the next look at a value that an engine's semaphore is to have. */
static uint64_t next_nap_ns(const td_job *job, uint64_t now)
{
    const uint64_t nap = td_nap_ns(now - job->submit_ns);

    if (is_expected(job))
        return nap;
    return job->wait->submitted ? HELD_REST_NS : nap > HELD_LOOK_NS ? nap : HELD_LOOK_NS;
}

/* One look at everything. When to look again at the latest. */
static uint64_t look_locked(tandem_session *s, uint64_t stopping_ns, char *line)
{
    td_remote *r = s->remote;
    uint64_t now = td_now_ns(), next = now + SLICE_NS;
    bool all;

    td_jobs_settle_locked(s);
    feed_locked(s, true, line);
    do {
        all = true;
        for (uint32_t i = 0; i < s->order_count && all; i++) {
            td_job *job = s->order[i];

            if (job->begun && !job->remote.answered)
                read_report(s, job);
            if (job->begun && job->remote.answered)
                all = !end_answered(s, job, line); /* it is no longer in the order */
            r->led = r->led && all;
        }
    } while (!all && !line[0]);
    if (!all)
        return now;
    cancel_some(s);
    now = td_now_ns();
    if (stopping_ns)
        end_by_force(s, stopping_ns, now);
    if (announce_locked(s))
        next = now + td_nap_ns(now - s->order[0]->submit_ns);
    for (uint32_t i = 0; i < s->order_count; i++) {
        const td_job *job = s->order[i];
        const uint64_t bound = bound_of(s, job);
        uint64_t at = next;

        if (job->remote.answered)
            at = now + (job->remote.state == TANDEM_JOB_DONE ? REACHED_LOOK_NS : td_nap_ns(now - job->remote.answered_ns));
        else if (!job->begun && job->wait && job->wait->semaphore)
            at = now + next_nap_ns(job, now);
        else if (!job->begun)
            at = job->has_deadline && job->deadline_ns < bound ? job->deadline_ns : bound;
        if (at < next)
            next = at;
        if (r->up && job->remote.connection == r->connection && is_overdue(s, job, now)) {
            td_fail(r->gone, sizeof r->gone, TANDEM_ERROR_LOST, "it has not ended a job in time");
            shutdown(r->conn.fd, SHUT_RDWR);
        }
    }
    return next;
}

/* Until something was submitted, signalled, given up or answered; called and left with the lock held. `seen`: of the bell,
 * from before the look. */
static void rest_locked(tandem_session *s, uint32_t connection, uint32_t seen, uint64_t until)
{
    td_remote *r = s->remote;
    const uint64_t now = td_now_ns();

    if (r->callers) {
        r->left_out = true;
        pthread_cond_wait(&s->work, &s->lock);
        return;
    }
    if (until <= now)
        return;
    if (!r->up || r->connection != connection || !s->order_count || !s->order[0]->begun) {
        if (s->order_count || !s->stopping)
            td_cond_wait_until(s, &s->work, s->order_count ? until : UINT64_MAX);
        return;
    }
    r->in_area++;
    pthread_mutex_unlock(&s->lock);
    td_ring_sleep(&r->ring, seen, until - now);
    pthread_mutex_lock(&s->lock);
    r->in_area--;
    if (!r->up)
        pthread_cond_broadcast(&s->changed);
}

void *td_remote_work(void *session)
{
    tandem_session *s = session;
    td_remote *r = s->remote;
    uint64_t stopping_ns = 0;

    prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
    prctl(PR_SET_NAME, "tandem worker", 0ul, 0ul, 0ul);
    pthread_mutex_lock(&s->lock);
    while (!s->stopping || s->order_count) {
        const uint32_t connection = r->connection, seen = r->up ? td_ring_seen(&r->ring) : 0;
        char line[TD_WHY_BYTES] = "";
        uint64_t until;

        if (s->stopping && !stopping_ns)
            stopping_ns = td_now_ns();
        until = look_locked(s, stopping_ns, line);
        if (line[0]) {
            pthread_mutex_unlock(&s->lock);
            td_logf(&s->log, TD_LOG_ERROR, "%s", line);
            pthread_mutex_lock(&s->lock);
        } else if (s->gpu_signals || !r->up || r->connection != connection || !s->order_count || r->callers ||
                   !watch_locked(s, false, seen, UINT64_MAX)) {
            rest_locked(s, connection, seen, until);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void td_remote_leave_locked(tandem_session *s)
{
    if (s->remote->left_out && s->order_count)
        pthread_cond_signal(&s->work);
    s->remote->left_out = s->remote->left_out && !s->order_count;
}

void td_remote_kick_locked(tandem_session *s)
{
    if (s->remote->callers)
        s->remote->left_out = true;
    else
        pthread_cond_signal(&s->work);
    if (s->remote->in_area && s->remote->ring.area)
        td_bell_ring(&s->remote->ring.area->to_client);
}
