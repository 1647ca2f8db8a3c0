/* The broker's main thread: who connects, what they share, what the worker is asked.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine_plugin/daemon/daemon.h"

#define HELLO_NS TD_SECOND
#define DRAIN_NS 1500000000u      /* what running jobs get when the daemon is told to stop */
#define CLOSE_NS 2000000000u      /* what running jobs get when what they use is destroyed */
#define EARLY_NS TD_SECOND        /* a worker that ends sooner than this is started again ever later */
#define MOST_RESPAWN_NS TD_SECOND
#define START_NS (60 * TD_SECOND) /* what a worker may take to say hello */
#define MOST_WAIT_NS TD_SECOND
enum { STRIKES = 3, MOST_POLLED = 8 + 2 * (TD_MAX_CLIENTS + TD_MAX_NEW), MESSAGES_AT_ONCE = 64 };

/* To clients. */

tandem_status td_client_send(td_broker *b, td_client *c, const td_wire_message *m, const int *fd)
{
    char why[TD_TEXT_BYTES] = "";
    tandem_status status;

    if (c->state == TD_CLIENT_GONE)
        return TANDEM_ERROR_LOST;
    status = td_conn_send(&c->conn, m, fd, why, sizeof why);
    if (status != TANDEM_OK)
        td_client_end(b, c, TANDEM_ERROR_LOST, 0, why);
    return status;
}

static void answered(td_client *c, uint32_t serial)
{
    if (serial && c->pending)
        c->pending--;
}

void td_client_error(td_broker *b, td_client *c, uint32_t serial, uint64_t ticket, tandem_status status,
                     const char *text)
{
    td_wire_message m = td_wire_new(TD_WIRE_ERROR, serial);

    m.error.status = status;
    m.error.ticket = ticket;
    td_wire_text(m.error.text, sizeof m.error.text, text);
    answered(c, serial);
    td_client_send(b, c, &m, NULL);
}

void td_client_done(td_broker *b, td_client *c, uint32_t serial, uint64_t id)
{
    td_wire_message m = td_wire_new(TD_WIRE_DONE, serial);

    m.object.id = id;
    answered(c, serial);
    td_client_send(b, c, &m, NULL);
}

void td_client_end(td_broker *b, td_client *c, tandem_status status, td_wire_reason reason, const char *why)
{
    char ignored[TD_TEXT_BYTES];

    if (c->state == TD_CLIENT_GONE)
        return;
    if (status == TANDEM_OK) {
        td_wire_message m = td_wire_new(TD_WIRE_BYE, 0);

        m.bye.reason = reason;
        td_conn_send(&c->conn, &m, NULL, ignored, sizeof ignored);
    } else if (status != TANDEM_ERROR_LOST) {
        td_wire_message m = td_wire_new(TD_WIRE_ERROR, 0);

        m.error.status = status;
        td_wire_text(m.error.text, sizeof m.error.text, why);
        td_conn_send(&c->conn, &m, NULL, ignored, sizeof ignored);
    }
    /* Who never said hello could fill the log. */
    td_say(c->state == TD_CLIENT_NEW                                ? TD_LOG_DEBUG
           : status == TANDEM_OK || status == TANDEM_ERROR_LOST ? TD_LOG_INFO
                                                                    : TD_LOG_WARN,
           "client %u (process %d, '%s') ends: %s", c->session, (int)c->conn.pid, c->name, why);
    if (c->state == TD_CLIENT_NEW)
        b->new_count--;
    else
        b->client_count--;
    c->state = TD_CLIENT_GONE;
    c->gone_ns = td_now_ns();
    td_conn_close(&c->conn);
    td_fd_close(&c->process);
    td_queue_kick(b);
}

/* Numbers of the worker's objects. */

static uint32_t take_number(td_broker *b)
{
    for (uint32_t i = 1; i < TD_MAX_NUMBERS; i++) {
        const uint32_t at = 1 + (b->next_number + i) % (TD_MAX_NUMBERS - 1);

        if (b->numbers[at])
            continue;
        b->numbers[at] = 1;
        b->next_number = at;
        return at;
    }
    return 0;
}

/* Errands. */

static td_errand *add_errand(td_broker *b, td_task_kind kind, uint32_t number, bool first)
{
    td_errand *made = calloc(1, sizeof *made), **at = &b->errands;

    if (!made)
        return NULL;
    made->task.kind = kind;
    made->task.number = number;
    made->task.serial = ++b->errand_serial;
    while (*at && !first)
        at = &(*at)->next;
    made->next = *at;
    *at = made;
    return made;
}

static void remove_errand(td_broker *b, td_errand *errand)
{
    td_errand **at = &b->errands;

    while (*at != errand)
        at = &(*at)->next;
    *at = errand->next;
    free(errand);
}

static int errand_fd(const td_errand *e)
{
    return e->task.kind == TD_TASK_MEM && e->shared       ? e->shared->fd
           : e->task.kind == TD_TASK_MODEL && e->weights ? e->weights->fd
                                                         : -1;
}

static void run_errands(td_broker *b)
{
    uint32_t sent = 0;

    if (b->worker < 0 || !b->worker_said)
        return;
    for (td_errand *e = b->errands; e && sent < TD_MAX_ERRANDS; e = e->next) {
        const int fd = errand_fd(e);

        sent++;
        if (e->sent)
            continue;
        if (td_pass(b->worker, &e->task, sizeof e->task, &fd, fd >= 0) != TANDEM_OK)
            return; /* later, or it is gone, which poll() tells */
        e->sent = true;
    }
    if (!b->has_worker) {
        for (const td_errand *e = b->errands; e; e = e->next)
            if (e->task.kind == TD_TASK_MEM || e->task.kind == TD_TASK_MODEL)
                return;
        b->has_worker = true;
        td_queue_kick(b);
    }
}

/* What the worker has under this number it may forget. */
static void end_number(td_broker *b, uint32_t number)
{
    if (number && (b->worker < 0 || !b->worker_said || !add_errand(b, TD_TASK_END, number, false)))
        b->numbers[number] = 0;
}

/* What clients share. */

static void drop_weights(td_broker *b, td_weights *w)
{
    td_weights **at = &b->weights;

    if (--w->uses)
        return;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    for (td_errand *e = b->errands, *next; e; e = next) {
        next = e->next;
        if (e->weights == w && e->sent)
            e->weights = NULL;
        else if (e->weights == w)
            remove_errand(b, e);
    }
    b->model_bytes -= w->bytes;
    end_number(b, w->number);
    td_fd_close(&w->fd);
    free(w);
}

static td_ids *ids_of(td_client *c, td_wire_kind kind)
{
    return kind == TD_WIRE_KIND_MEM ? &c->mems : kind == TD_WIRE_KIND_TIMELINE ? &c->timelines : &c->models;
}

static td_shared *add_shared(td_client *c, td_wire_kind kind)
{
    td_shared *made = calloc(1, sizeof *made);

    if (!made)
        return NULL;
    made->id = td_ids_add(ids_of(c, kind), made);
    if (!made->id) {
        free(made);
        return NULL;
    }
    made->client = c;
    made->kind = kind;
    made->fd = -1;
    made->next = c->shared;
    c->shared = made;
    return made;
}

void td_shared_end(td_broker *b, td_shared *s)
{
    td_client *c = s->client;
    td_shared **at = &c->shared;
    const bool counted = s->kind == TD_WIRE_KIND_MEM && !s->weights;

    if (s->model_mem)
        td_shared_end(b, s->model_mem);
    if (s->kind == TD_WIRE_KIND_MEM && s->weights) { /* its model's, which counts them */
        s->weights = NULL;
        for (td_shared *model = c->shared; model; model = model->next)
            if (model->model_mem == s)
                model->model_mem = NULL;
    }
    td_ids_remove(ids_of(c, s->kind), s->id);
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    for (td_errand *e = b->errands, *next; e; e = next) {
        next = e->next;
        if (e->shared == s && e->sent)
            e->shared = NULL;
        else if (e->shared == s) {
            remove_errand(b, e);
            b->numbers[s->number] = 0;
            s->number = 0;
        }
    }
    end_number(b, s->number);
    if (counted) {
        c->mem_bytes -= s->bytes;
        b->mem_bytes -= s->bytes;
    }
    if (s->weights) {
        c->model_bytes -= s->weights->bytes;
        drop_weights(b, s->weights);
    }
    td_point_close(&s->point);
    td_fd_close(&s->fd);
    free(s);
    run_errands(b);
}

void td_client_free(td_broker *b, td_client *c)
{
    td_client **at = &b->clients;

    while (c->shared)
        td_shared_end(b, c->shared);
    for (td_errand *e = b->errands, *next; e; e = next) {
        next = e->next;
        if (e->client != c)
            continue;
        e->client = NULL;
        if (!e->sent)
            remove_errand(b, e);
    }
    for (td_opening *o = b->openings; o; o = o->next)
        if (o->client == c)
            o->client = NULL;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    td_ring_close(&c->ring);
    td_conn_close(&c->conn);
    td_fd_close(&c->process);
    free(c->works);
    free(c->slots);
    free(c);
}

/* Requests. */

static void refuse_bytes(td_broker *b, td_client *c, uint32_t serial, const char *what, uint64_t asked, uint64_t held,
                         uint64_t limit, bool models)
{
    char text[TD_TEXT_BYTES];
    int at = snprintf(text, sizeof text, "%s is %" PRIu64 " bytes, and %" PRIu64 " of %" PRIu64 " are held:", what, asked,
                      held, limit);

    for (int i = 0; i < 3; i++) { /* the three that hold most */
        const td_client *most = NULL;
        uint64_t most_bytes = 0;

        for (const td_client *o = b->clients; o; o = o->next) {
            const uint64_t bytes = models ? o->model_bytes : o->mem_bytes;

            if (bytes > most_bytes && !o->listed) {
                most = o;
                most_bytes = bytes;
            }
        }
        if (!most || at < 0 || at >= (int)sizeof text)
            break;
        ((td_client *)(uintptr_t)most)->listed = true;
        at += snprintf(text + at, sizeof text - (size_t)at, " %" PRIu64 " by '%.40s' (process %d)%s", most_bytes,
                       most->name, (int)most->conn.pid, most == c ? ", yourself" : "");
    }
    for (td_client *o = b->clients; o; o = o->next)
        o->listed = false;
    td_client_error(b, c, serial, 0, TANDEM_ERROR_NOMEM, text);
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
        td_fail(why, sizeof why, TANDEM_ERROR_UNSUPPORTED, "versions %u to %u are spoken there, %d here",
                hello->version_min, hello->version_max, TD_WIRE_VERSION);
        td_client_end(b, c, TANDEM_ERROR_UNSUPPORTED, 0, why);
        return;
    }
    status = hello->share == TD_WIRE_SHARE_OPAQUE
                 ? td_fail(why, sizeof why, TANDEM_ERROR_UNSUPPORTED,
                           "share is OPAQUE (2), but this daemon shares host memory only: HOST (1)")
                 : td_wire_match(&b->identity, &hello->identity, &hello->sizes, hello->share, why, sizeof why);
    if (status == TANDEM_OK && hello->backend != TD_WIRE_BACKEND_AUTO && b->worker_info.backend &&
        hello->backend != b->worker_info.backend)
        status = td_fail(why, sizeof why, TANDEM_ERROR_UNSUPPORTED, "backend is %u, but this daemon computes with %u (%s)",
                         hello->backend, b->worker_info.backend, b->worker_info.device);
    if (status != TANDEM_OK) {
        td_client_end(b, c, status, 0, why);
        return;
    }
    if (b->client_count >= k->clients || b->stopping) {
        td_client_end(b, c, TANDEM_OK, b->stopping ? TD_WIRE_BYE_STOPPING : TD_WIRE_BYE_FULL, "no room");
        return;
    }
    c->slots = slots = calloc((size_t)k->mems + k->timelines + k->models, sizeof *slots);
    c->works = calloc(TD_MAX_WORKS, sizeof *c->works);
    status = slots && c->works ? td_ring_make(&c->ring, &fd, why, sizeof why) : TANDEM_ERROR_NOMEM;
    if (status != TANDEM_OK) {
        td_client_end(b, c, status, 0, why[0] ? why : "no host memory for a client");
        return;
    }
    td_ids_begin(&c->mems, TD_WIRE_KIND_MEM, slots, k->mems);
    td_ids_begin(&c->timelines, TD_WIRE_KIND_TIMELINE, slots + k->mems, k->timelines);
    td_ids_begin(&c->models, TD_WIRE_KIND_MODEL, slots + k->mems + k->timelines, k->models);
    c->session = ++b->session_count;
    c->share = hello->share;
    c->frames = hello->frames_in_flight ? hello->frames_in_flight : 3;
    c->timing = hello->timing;
    c->wait_bound_ns = hello->wait_bound_ns ? hello->wait_bound_ns : 2 * TD_SECOND;
    c->features = hello->features & (k->model_dir_count ? TD_WIRE_FEATURES : TD_WIRE_STATISTICS);
    m.welcome.version = td_wire_version(hello->version_min, hello->version_max);
    m.welcome.features = c->features;
    m.welcome.sizes = td_wire_sizes_here();
    m.welcome.identity = b->identity;
    m.welcome.share = c->share;
    m.welcome.session = c->session;
    m.welcome.epoch = b->epoch;
    m.welcome.frames_in_flight = c->frames;
    m.welcome.mems = k->mems;
    m.welcome.timelines = k->timelines;
    m.welcome.models = k->models;
    m.welcome.requests = TD_MAX_REQUESTS;
    m.welcome.mem_bytes = k->mem_bytes;
    m.welcome.quota_bytes = k->client_bytes;
    m.welcome.rung = b->worker_info.rung ? b->worker_info.rung : TANDEM_RUNG_CPU;
    snprintf(why, sizeof why, "tandemd %d.%d.%d", TANDEM_VERSION_MAJOR, TANDEM_VERSION_MINOR, TANDEM_VERSION_PATCH);
    td_wire_text(m.welcome.name, sizeof m.welcome.name, why);
    td_wire_rules_welcome(&c->rules, &m.welcome);
    c->state = TD_CLIENT_READY;
    b->new_count--;
    b->client_count++;
    c->virtual_ns = b->virtual_ns;
    td_client_send(b, c, &m, &fd);
    td_fd_close(&fd);
    td_say(TD_LOG_INFO, "client %u: process %d of user %u, '%s'", c->session, (int)c->conn.pid, c->conn.uid, c->name);
    td_queue_kick(b);
}

static void on_mem_create(td_broker *b, td_client *c, const td_wire_mem_create *m, int *fd)
{
    const td_config *k = &b->config;
    const uint32_t serial = m->header.serial;
    char why[TD_TEXT_BYTES] = "";
    tandem_status status = td_slab_check(*fd, m->allocation_bytes, false, why, sizeof why);
    td_errand *errand;
    td_shared *mem;

    if (status != TANDEM_OK) {
        td_client_end(b, c, status, 0, why);
        return;
    }
    if (m->bytes > k->client_bytes - (c->mem_bytes < k->client_bytes ? c->mem_bytes : k->client_bytes)) {
        td_fail(why, sizeof why, status, "bytes is %" PRIu64 ", and %" PRIu64 " of your %" PRIu64 " are held", m->bytes,
                c->mem_bytes, k->client_bytes);
        td_client_error(b, c, serial, 0, TANDEM_ERROR_NOMEM, why);
        return;
    }
    if (m->bytes > k->total_bytes - (b->mem_bytes < k->total_bytes ? b->mem_bytes : k->total_bytes)) {
        refuse_bytes(b, c, serial, "mem", m->bytes, b->mem_bytes, k->total_bytes, false);
        return;
    }
    mem = add_shared(c, TD_WIRE_KIND_MEM);
    if (!mem) {
        td_fail(why, sizeof why, TANDEM_ERROR_NOMEM, "all %u mems are in use", c->mems.capacity);
        td_client_error(b, c, serial, 0, TANDEM_ERROR_NOMEM, why);
        return;
    }
    mem->pending = serial;
    mem->bytes = m->bytes;
    mem->allocation_bytes = m->allocation_bytes;
    mem->offset_bytes = m->offset_bytes;
    mem->fd = *fd;
    *fd = -1;
    c->mem_bytes += mem->bytes;
    b->mem_bytes += mem->bytes;
    mem->number = take_number(b);
    errand = mem->number ? add_errand(b, TD_TASK_MEM, mem->number, false) : NULL;
    if (!errand) {
        b->numbers[mem->number] = 0;
        mem->number = 0;
        td_client_error(b, c, serial, 0, TANDEM_ERROR_NOMEM, "no host memory for a mem");
        td_shared_end(b, mem);
        return;
    }
    errand->shared = mem;
    errand->task.bytes = mem->bytes;
    errand->task.offset_bytes = mem->offset_bytes;
}

static void on_timeline_create(td_broker *b, td_client *c, const td_wire_timeline_create *m, int fd)
{
    char why[TD_TEXT_BYTES] = "";
    td_point point = {0};
    const tandem_status status = td_point_open(&point, fd, why, sizeof why);
    td_shared *timeline;

    if (status == TANDEM_ERROR_PROTOCOL) {
        td_client_end(b, c, status, 0, why);
        return;
    }
    if (status != TANDEM_OK) {
        td_client_error(b, c, m->header.serial, 0, status, why);
        return;
    }
    timeline = add_shared(c, TD_WIRE_KIND_TIMELINE);
    if (!timeline) {
        td_point_close(&point);
        td_fail(why, sizeof why, TANDEM_ERROR_NOMEM, "all %u timelines are in use", c->timelines.capacity);
        td_client_error(b, c, m->header.serial, 0, TANDEM_ERROR_NOMEM, why);
        return;
    }
    timeline->point = point;
    timeline->by_daemon = m->signaller;
    timeline->promised = point.highest > m->initial_value ? point.highest : m->initial_value;
    if (timeline->by_daemon)
        timeline->point.highest = timeline->promised;
    timeline->there = true;
    td_client_done(b, c, m->header.serial, timeline->id);
}

/* Its jobs that have not begun are over; the second thread looks when the others are. */
static void on_destroy(td_broker *b, td_client *c, const td_wire_object *m, td_wire_kind kind)
{
    static const char *const names[] = {"", "mem", "timeline", "model"};
    td_shared *s = td_ids_find(ids_of(c, kind), m->id), *used;
    char why[TD_TEXT_BYTES];

    if (!s || s->closing || s->pending || (kind == TD_WIRE_KIND_MEM && s->weights)) {
        td_fail(why, sizeof why, TANDEM_ERROR_ARG, "%s is 0x%" PRIx64 ", which %s", names[kind], m->id,
                !s           ? "was destroyed"
                : s->weights ? "belongs to a model"
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
        bool uses = work->wait == used || work->signal == used;

        for (int v = 0; v < TD_VIEWS; v++)
            uses = uses || work->mems[v] == used;
        if (uses && work->slot < 0)
            td_queue_give_up(b, work, TANDEM_JOB_CANCELLED, TANDEM_OK);
    }
    td_queue_settle(b, c);
}

/* Models. */

static void on_model_load(td_broker *b, td_client *c, const td_wire_model_load *m)
{
    static td_nurse ask;
    td_opening *opening = calloc(1, sizeof *opening);

    ask = (td_nurse){.kind = TD_NURSE_OPEN, .serial = ++b->open_serial};
    memcpy(ask.text, m->path, sizeof ask.text);
    if (!opening || td_pass(b->nursery, &ask, sizeof ask, NULL, 0) != TANDEM_OK) {
        free(opening);
        td_client_error(b, c, m->header.serial, 0, TANDEM_ERROR_BUSY, "too many files are being opened");
        return;
    }
    *opening = (td_opening){ask.serial, m->header.serial, c, b->openings};
    b->openings = opening;
}

static td_weights *find_weights(td_broker *b, const struct stat *st)
{
    const uint64_t mtime = (uint64_t)st->st_mtim.tv_sec * TD_SECOND + (uint64_t)st->st_mtim.tv_nsec;

    for (td_weights *w = b->weights; w; w = w->next)
        if (w->device == st->st_dev && w->inode == st->st_ino && w->mtime_ns == mtime &&
            w->bytes == (uint64_t)st->st_size)
            return w;
    return NULL;
}

static td_weights *add_weights(td_broker *b, const struct stat *st, int *fd)
{
    td_weights *made = calloc(1, sizeof *made);
    td_errand *errand;

    if (!made)
        return NULL;
    made->number = take_number(b);
    errand = made->number ? add_errand(b, TD_TASK_MODEL, made->number, false) : NULL;
    if (!errand) {
        b->numbers[made->number] = 0;
        free(made);
        return NULL;
    }
    errand->weights = made;
    made->device = st->st_dev;
    made->inode = st->st_ino;
    made->mtime_ns = (uint64_t)st->st_mtim.tv_sec * TD_SECOND + (uint64_t)st->st_mtim.tv_nsec;
    made->bytes = (uint64_t)st->st_size;
    made->fd = *fd;
    *fd = -1;
    made->next = b->weights;
    b->weights = made;
    b->model_bytes += made->bytes;
    return made;
}

static void on_opened(td_broker *b, const td_nurse *m, int *fd)
{
    td_opening **at = &b->openings, *opening;
    td_weights *weights;
    td_client *c;
    td_shared *model;
    uint32_t serial;
    struct stat st;

    while (*at && (*at)->serial != m->serial)
        at = &(*at)->next;
    opening = *at;
    if (!opening)
        return;
    *at = opening->next;
    c = opening->client;
    serial = opening->request;
    free(opening);
    if (!c || c->state != TD_CLIENT_READY)
        return;
    if (m->status != TANDEM_OK || *fd < 0 || fstat(*fd, &st)) {
        td_client_error(b, c, serial, 0, TANDEM_ERROR_IO, m->status != TANDEM_OK ? m->text : "the file cannot be looked at");
        return;
    }
    weights = find_weights(b, &st);
    if (!weights && (uint64_t)st.st_size > b->config.model_bytes - (b->model_bytes < b->config.model_bytes ? b->model_bytes
                                                                                                         : b->config.model_bytes)) {
        refuse_bytes(b, c, serial, "model", (uint64_t)st.st_size, b->model_bytes, b->config.model_bytes, true);
        return;
    }
    model = add_shared(c, TD_WIRE_KIND_MODEL);
    if (model && !weights)
        weights = add_weights(b, &st, fd);
    if (!model || !weights) {
        if (model)
            td_shared_end(b, model);
        td_client_error(b, c, serial, 0, TANDEM_ERROR_NOMEM,
                        model ? "no host memory for a model" : "all models are in use");
        return;
    }
    weights->uses++;
    model->weights = weights;
    c->model_bytes += weights->bytes;
    model->there = weights->there;
    if (weights->there)
        td_client_done(b, c, serial, model->id);
    else
        model->pending = serial;
}

static void on_model_tensor(td_broker *b, td_client *c, const td_wire_model_tensor *m)
{
    td_shared *model = td_ids_find(&c->models, m->model);
    td_errand *errand;
    char why[TD_TEXT_BYTES];

    if (!model || model->closing || model->pending) {
        td_fail(why, sizeof why, TANDEM_ERROR_ARG, "model is 0x%" PRIx64 ", which %s", m->model,
                model && model->pending ? "is not loaded yet" : "was destroyed");
        td_client_error(b, c, m->header.serial, 0, TANDEM_ERROR_ARG, why);
        return;
    }
    if (!model->model_mem) {
        model->model_mem = add_shared(c, TD_WIRE_KIND_MEM);
        if (model->model_mem) {
            model->model_mem->weights = model->weights;
            model->model_mem->there = true;
        }
    }
    errand = model->model_mem ? add_errand(b, TD_TASK_TENSOR, model->weights->number, false) : NULL;
    if (!errand) {
        td_client_error(b, c, m->header.serial, 0, TANDEM_ERROR_NOMEM, "all mems are in use");
        return;
    }
    errand->client = c;
    errand->serial = m->header.serial;
    errand->mem = model->model_mem->id;
    snprintf(errand->task.text, sizeof errand->task.text, "%s", m->name);
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
        for (uint32_t i = 0; i < o->count; i++) {
            row->running += o->order[i]->slot >= 0;
            row->queued += o->order[i]->slot < 0;
        }
        td_wire_text(row->name, sizeof row->name, o->name);
        row->jobs_done = o->done;
        row->jobs_stale = o->stale;
        row->jobs_cancelled = o->cancelled;
        row->jobs_failed = o->failed;
        row->gpu_ns = o->compute_ns;
        row->wait_ns = o->wait_ns;
        row->mem_bytes = o->mem_bytes;
        row->model_bytes = o->model_bytes;
        row->connected_ns = now - o->since_ns;
    }
    r.stats_reply.total = at;
    if (r.stats_reply.first > at)
        r.stats_reply.first = at;
    answered(c, m->header.serial);
    td_client_send(b, c, &r, NULL);
}

static void on_info(td_broker *b, td_client *c, uint32_t serial)
{
    td_errand *errand = add_errand(b, TD_TASK_INFO, 0, false);

    if (!errand) {
        td_client_error(b, c, serial, 0, TANDEM_ERROR_NOMEM, "no host memory for an answer");
        return;
    }
    errand->client = c;
    errand->serial = serial;
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
        on_hello(b, c, &m->hello);
        break;
    case TD_WIRE_PING: td_client_done(b, c, serial, 0); break;
    case TD_WIRE_INFO: on_info(b, c, serial); break;
    case TD_WIRE_MEM_CREATE: on_mem_create(b, c, &m->mem_create, fd); break;
    case TD_WIRE_MEM_DESTROY: on_destroy(b, c, &m->object, TD_WIRE_KIND_MEM); break;
    case TD_WIRE_TIMELINE_CREATE: on_timeline_create(b, c, &m->timeline_create, *fd); break;
    case TD_WIRE_TIMELINE_DESTROY: on_destroy(b, c, &m->object, TD_WIRE_KIND_TIMELINE); break;
    case TD_WIRE_MODEL_LOAD: on_model_load(b, c, &m->model_load); break;
    case TD_WIRE_MODEL_TENSOR: on_model_tensor(b, c, &m->model_tensor); break;
    case TD_WIRE_MODEL_DESTROY: on_destroy(b, c, &m->object, TD_WIRE_KIND_MODEL); break;
    case TD_WIRE_STATS: on_stats(b, c, &m->stats); break;
    case TD_WIRE_BYE: td_client_end(b, c, TANDEM_ERROR_LOST, 0, "it says goodbye"); break;
    default: break; /* td_wire_check() lets nothing else pass */
    }
}

static void read_client(td_broker *b, td_client *c)
{
    for (int i = 0; i < MESSAGES_AT_ONCE && c->state != TD_CLIENT_GONE; i++) {
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
            if (c->state == TD_CLIENT_READY) /* what was put before it comes before it */
                td_queue_take(b, c);
            if (c->state != TD_CLIENT_GONE)
                on_message(b, c, &m, &fds[0]);
        }
        td_fd_close(&fds[0]);
    }
    if (c->state == TD_CLIENT_READY)
        td_queue_kick(b);
}

static bool may_connect(const td_broker *b, uid_t uid)
{
    bool may = uid == b->uid;

    for (uint32_t i = 0; i < b->config.allow_count; i++)
        may = may || uid == b->config.allow[i];
    return may;
}

static void accept_clients(td_broker *b)
{
    for (int i = 0; i < MESSAGES_AT_ONCE; i++) {
        td_client *c = calloc(1, sizeof *c);
        char why[TD_TEXT_BYTES] = "";
        tandem_status status;

        if (!c)
            return;
        status = td_listener_accept(&b->listener, &c->conn, why, sizeof why);
        if (status != TANDEM_OK) {
            free(c);
            if (status != TANDEM_ERROR_BUSY)
                td_say(TD_LOG_WARN, "%s", why);
            if (status == TANDEM_ERROR_NOMEM)
                continue;
            return;
        }
        c->process = -1;
        c->rules = td_wire_rules_new();
        c->since_ns = td_now_ns();
        c->next = b->clients;
        b->clients = c;
        b->new_count++;
        if (!may_connect(b, c->conn.uid)) {
            td_fail(why, sizeof why, TANDEM_ERROR_UNSUPPORTED, "user %u may not connect: neither user %u nor allowed",
                    c->conn.uid, b->uid);
            b->refused++;
            td_client_end(b, c, TANDEM_ERROR_UNSUPPORTED, 0, why);
        } else if (b->new_count > TD_MAX_NEW) {
            b->refused++;
            td_client_end(b, c, TANDEM_OK, TD_WIRE_BYE_FULL, "too many connect");
        } else {
            c->process = td_conn_process(&c->conn);
        }
    }
}

/* The worker. */

static bool make_pair(int ends[2])
{
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
        return false;
    return !fcntl(ends[0], F_SETFL, fcntl(ends[0], F_GETFL) | O_NONBLOCK); /* ours */
}

static void spawn_worker(td_broker *b)
{
    static td_nurse ask;
    int ends[2] = {-1, -1}, fds[2], desk = -1;

    b->respawn_ns = 0;
    desk = memfd_create("tandem-desk", MFD_CLOEXEC);
    if (desk < 0 || posix_fallocate(desk, 0, (off_t)TD_DESK_BYTES) || !make_pair(ends))
        goto later;
    b->desk = mmap(NULL, TD_DESK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, desk, 0);
    if (b->desk == MAP_FAILED) {
        b->desk = NULL;
        goto later;
    }
    ask = (td_nurse){.kind = TD_NURSE_SPAWN};
    fds[0] = ends[1];
    fds[1] = desk;
    if (td_pass(b->nursery, &ask, sizeof ask, fds, 2) != TANDEM_OK) {
        b->old_desk = b->desk;
        b->desk = NULL;
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
    td_fd_close(&desk);
    td_queue_kick(b);
    return;
later:
    td_fd_close(&ends[0]);
    td_fd_close(&ends[1]);
    td_fd_close(&desk);
    b->respawn_ns = td_now_ns() + TD_SECOND;
}

void td_worker_kill(td_broker *b, const char *why)
{
    static td_nurse ask;

    if (b->worker < 0)
        return;
    td_say(TD_LOG_WARN, "worker (process %d) is ended: %s", b->worker_pid, why);
    snprintf(b->worker_text, sizeof b->worker_text, "%s", why);
    b->killed_ns = td_now_ns();
    ask = (td_nurse){.kind = TD_NURSE_KILL, .pid = b->worker_pid};
    if (b->worker_pid > 0)
        td_pass(b->nursery, &ask, sizeof ask, NULL, 0);
}

/* Errands as they were before the worker had any. */
static void take_errands_back(td_broker *b)
{
    for (td_errand *e = b->errands, *next; e; e = next) {
        next = e->next;
        e->sent = false;
        switch ((td_task_kind)e->task.kind) {
        case TD_TASK_END:
            b->numbers[e->task.number] = 0;
            remove_errand(b, e);
            break;
        case TD_TASK_MEM:
            if (!e->shared) /* an END of it was behind */
                remove_errand(b, e);
            break;
        case TD_TASK_MODEL:
            if (!e->weights)
                remove_errand(b, e);
            break;
        default:
            if (!e->client)
                remove_errand(b, e);
            break;
        }
    }
}

/* What clients still hold is for the next worker. */
static void share_again(td_broker *b)
{
    for (td_weights *w = b->weights; w; w = w->next) {
        td_errand *e = w->there ? add_errand(b, TD_TASK_MODEL, w->number, true) : NULL;

        if (w->there && e) {
            w->there = false;
            e->weights = w;
        }
    }
    for (td_client *c = b->clients; c; c = c->next)
        for (td_shared *s = c->shared; s; s = s->next) {
            td_errand *e;

            if (c->state != TD_CLIENT_READY || s->kind != TD_WIRE_KIND_MEM || s->weights || !s->there)
                continue;
            e = add_errand(b, TD_TASK_MEM, s->number, true);
            if (!e) {
                s->status = TANDEM_ERROR_NOMEM;
                continue;
            }
            s->there = false;
            e->shared = s;
            e->task.bytes = s->bytes;
            e->task.offset_bytes = s->offset_bytes;
        }
}

static void tell_reset(td_broker *b, td_client *c)
{
    td_wire_message m = td_wire_new(TD_WIRE_RESET, 0);

    m.reset.epoch = b->epoch;
    m.reset.status = b->worker_status;
    m.reset.last_ticket = c->count ? c->order[0]->ticket - 1 : c->last_ticket;
    td_wire_text(m.reset.text, sizeof m.reset.text, b->worker_text[0] ? b->worker_text : "the worker died");
    td_client_send(b, c, &m, NULL);
}

static void lose_worker(td_broker *b)
{
    const uint64_t now = td_now_ns();

    td_say(TD_LOG_ERROR, "worker (process %d) is gone: %s", b->worker_pid,
           b->worker_text[0] ? b->worker_text : "it died");
    td_fd_close(&b->worker);
    td_queue_lost(b);
    b->old_desk = b->desk;
    b->desk = NULL;
    b->worker_said = b->has_worker = false;
    b->epoch++;
    b->early_ends = now - b->spawned_ns < EARLY_NS ? b->early_ends + 1 : 0;
    b->respawn_ns = now + (b->early_ends > 6 ? MOST_RESPAWN_NS : (10000000ull << b->early_ends));
    take_errands_back(b);
    share_again(b);
    for (td_client *c = b->clients; c; c = c->next) {
        if (c->state != TD_CLIENT_READY)
            continue;
        tell_reset(b, c);
        if (c->strikes >= STRIKES)
            td_client_end(b, c, TANDEM_ERROR_DEVICE, 0, "its jobs ended three workers, one after the other");
    }
    td_queue_kick(b);
}

/* Answers. */

static void fail_jobs_on(td_broker *b, td_client *c, const td_shared *mem, tandem_status status, const char *why)
{
    for (uint32_t i = 0; i < c->count; i++) {
        td_work *work = c->order[i];
        bool uses = false;

        for (int v = 0; v < TD_VIEWS; v++)
            uses = uses || work->mems[v] == mem;
        if (!uses || work->slot >= 0 || work->given_up)
            continue;
        td_client_error(b, c, 0, work->ticket, status, why);
        td_queue_give_up(b, work, TANDEM_JOB_FAILED, status);
    }
    td_queue_settle(b, c);
}

static void on_mem_answer(td_broker *b, td_shared *s, const td_task *t)
{
    td_client *c = s->client;
    const uint32_t serial = s->pending;

    s->pending = 0;
    s->there = t->status == TANDEM_OK;
    s->status = t->status;
    if (s->there) {
        if (serial)
            td_client_done(b, c, serial, s->id);
        return;
    }
    b->numbers[s->number] = 0;
    s->number = 0;
    if (serial) {
        td_client_error(b, c, serial, 0, t->status, t->text);
        td_shared_end(b, s);
    } else {
        fail_jobs_on(b, c, s, t->status, t->text);
    }
}

static void on_model_answer(td_broker *b, td_weights *w, const td_task *t)
{
    w->there = t->status == TANDEM_OK;
    if (!w->there) {
        b->numbers[w->number] = 0;
        w->number = 0;
    }
    w->uses++; /* until all have heard */
    for (td_client *c = b->clients; c; c = c->next)
        for (td_shared *s = c->shared, *next; s; s = next) {
            const uint32_t serial = s->pending;

            next = s->next;
            if (s->weights != w || s->kind != TD_WIRE_KIND_MODEL)
                continue;
            s->pending = 0;
            s->there = w->there;
            if (w->there && serial)
                td_client_done(b, c, serial, s->id);
            if (w->there)
                continue;
            if (serial) {
                td_client_error(b, c, serial, 0, t->status, t->text);
                td_shared_end(b, s);
            } else if (s->model_mem) {
                s->model_mem->status = t->status;
                fail_jobs_on(b, c, s->model_mem, t->status, t->text);
            }
        }
    drop_weights(b, w);
}

static void on_tensor_answer(td_broker *b, td_client *c, uint32_t serial, uint64_t mem, const td_task *t)
{
    td_wire_message m = td_wire_new(TD_WIRE_TENSOR, serial);
    td_shared *of = td_ids_find(&c->mems, mem);

    if (t->status != TANDEM_OK || !of) {
        td_client_error(b, c, serial, 0, of ? t->status : TANDEM_ERROR_ARG, of ? t->text : "the model was destroyed");
        return;
    }
    if (of->bytes < t->bytes) /* as much of the mem as a client can know of */
        of->bytes = t->bytes;
    m.tensor.view = t->view;
    m.tensor.view.mem = mem;
    memcpy(m.tensor.shape, t->shape, sizeof m.tensor.shape);
    answered(c, serial);
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
    td_wire_text(r->rung_reason, sizeof r->rung_reason, info->rung_reason);
    td_wire_text(r->device, sizeof r->device, info->device);
    td_wire_text(r->isa, sizeof r->isa, info->isa);
    answered(c, serial);
    td_client_send(b, c, &m, NULL);
}

static void tell_manager(td_broker *b, const char *text)
{
    if (b->notify >= 0)
        (void)!send(b->notify, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* False: there will never be a worker. */
static bool on_worker_hello(td_broker *b, const td_task *t)
{
    if (t->status != TANDEM_OK) {
        td_say(TD_LOG_ERROR, "the worker cannot begin: %s", t->text);
        return b->ready_told;
    }
    b->worker_said = true;
    b->worker_info = t->info;
    b->worker_info.device[sizeof t->info.device - 1] = b->worker_info.rung_reason[sizeof t->info.rung_reason - 1] = 0;
    td_say(TD_LOG_INFO, "worker (process %d) computes on %s (%s)", b->worker_pid, b->worker_info.device,
           b->worker_info.rung_reason);
    if (!b->ready_told)
        tell_manager(b, "READY=1");
    b->ready_told = true;
    return true;
}

static bool on_task(td_broker *b, td_task *t)
{
    td_errand *e = b->errands;
    td_errand was;

    t->text[sizeof t->text - 1] = 0;
    if (t->status > TANDEM_OK || t->status < TANDEM_ERROR_BUSY)
        t->status = TANDEM_ERROR_DEVICE;
    if (t->kind == TD_TASK_HELLO)
        return on_worker_hello(b, t);
    if (t->kind == TD_TASK_BROKEN) {
        snprintf(b->worker_text, sizeof b->worker_text, "%s", t->text);
        b->worker_status = t->status == TANDEM_OK ? TANDEM_ERROR_DEVICE : t->status;
        return true;
    }
    while (e && (!e->sent || e->task.serial != t->serial))
        e = e->next;
    if (!e)
        return true;
    was = *e;
    remove_errand(b, e);
    switch ((td_task_kind)was.task.kind) {
    case TD_TASK_MEM:
        if (was.shared)
            on_mem_answer(b, was.shared, t);
        break;
    case TD_TASK_MODEL:
        if (was.weights)
            on_model_answer(b, was.weights, t);
        break;
    case TD_TASK_END: b->numbers[was.task.number] = 0; break;
    case TD_TASK_TENSOR:
        if (was.client)
            on_tensor_answer(b, was.client, was.serial, was.mem, t);
        break;
    case TD_TASK_INFO:
        if (was.client)
            on_info_answer(b, was.client, was.serial, &t->info);
        break;
    default: break;
    }
    return true;
}

static bool read_worker(td_broker *b)
{
    static td_task t;

    for (;;) {
        int fds[2];
        const tandem_status status = td_fetch(b->worker, &t, sizeof t, fds);

        td_fd_close(&fds[0]);
        td_fd_close(&fds[1]);
        if (status == TANDEM_ERROR_BUSY)
            return true;
        if (status != TANDEM_OK) {
            if (!b->ready_told)
                return false;
            lose_worker(b);
            return true;
        }
        if (!on_task(b, &t))
            return false;
    }
}

/* The nursery. */

static void take_config(td_broker *b, const td_nurse *m)
{
    td_config made = m->config;

    if (m->status != TANDEM_OK) {
        td_say(TD_LOG_ERROR, "the configuration stays as it is: %s", m->text);
        return;
    }
    made.backend = b->config.backend;
    made.threads = b->config.threads;
    made.metrics_port = b->config.metrics_port;
    b->config = made;
    td_say_level = made.log_level;
    td_say(TD_LOG_INFO, "the configuration was read again");
}

static bool read_nursery(td_broker *b)
{
    static td_nurse m;

    for (;;) {
        int fds[2];
        const tandem_status status = td_fetch(b->nursery, &m, sizeof m, fds);

        m.text[sizeof m.text - 1] = 0;
        if (status == TANDEM_OK && m.kind == TD_NURSE_SPAWNED) {
            b->worker_pid = m.pid;
            if (m.status != TANDEM_OK)
                td_say(TD_LOG_ERROR, "no worker: %s", m.text); /* its socket closes */
        } else if (status == TANDEM_OK && m.kind == TD_NURSE_ENDED && WIFSIGNALED(m.status)) {
            td_say(TD_LOG_WARN, "process %d was ended by signal %d", m.pid, WTERMSIG(m.status));
        } else if (status == TANDEM_OK && m.kind == TD_NURSE_OPENED) {
            on_opened(b, &m, &fds[0]);
        } else if (status == TANDEM_OK && m.kind == TD_NURSE_CONFIG) {
            take_config(b, &m);
        }
        td_fd_close(&fds[0]);
        td_fd_close(&fds[1]);
        if (status != TANDEM_OK)
            return status != TANDEM_ERROR_LOST;
    }
}

/* The end. */

static void begin_stop(td_broker *b)
{
    if (b->stopping)
        return;
    td_say(TD_LOG_INFO, "stopping");
    tell_manager(b, "STOPPING=1");
    for (td_client *c = b->clients; c; c = c->next) {
        if (c->state != TD_CLIENT_READY)
            continue;
        td_queue_take(b, c);
        for (uint32_t i = 0; i < c->count; i++)
            if (c->order[i]->slot < 0)
                td_queue_give_up(b, c->order[i], TANDEM_JOB_CANCELLED, TANDEM_OK);
        td_queue_settle(b, c);
    }
    td_listener_close(&b->listener);
    b->stopping = true;
    b->stop_ns = td_now_ns();
}

static bool has_stopped(td_broker *b)
{
    bool busy = false;

    for (int i = 0; i < TD_DESK_SLOTS; i++)
        busy = busy || b->desk_works[i];
    if (!b->stopping || (busy && td_now_ns() - b->stop_ns < DRAIN_NS))
        return false;
    td_queue_lost(b);
    for (td_client *c = b->clients; c; c = c->next)
        td_client_end(b, c, TANDEM_OK, TD_WIRE_BYE_STOPPING, "the daemon stops");
    return true;
}

static void read_signals(td_broker *b)
{
    struct signalfd_siginfo info;
    static td_nurse ask;

    while (read(b->signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo != SIGHUP) {
            begin_stop(b);
            continue;
        }
        ask = (td_nurse){.kind = TD_NURSE_CONFIG};
        if (td_pass(b->nursery, &ask, sizeof ask, NULL, 0) != TANDEM_OK)
            td_say(TD_LOG_WARN, "the configuration cannot be read now");
    }
}

/* The loop. */

static void look_at_clients(td_broker *b, const struct pollfd *p)
{
    const uint64_t now = td_now_ns();
    char why[TD_TEXT_BYTES];

    for (td_client *c = b->clients, *next; c; c = next) {
        const struct pollfd *at = p + c->polled;

        next = c->next;
        if (c->state == TD_CLIENT_GONE || c->polled < 0)
            continue;
        if (at[0].revents & POLLOUT) {
            const tandem_status status = td_conn_flush(&c->conn, why, sizeof why);

            if (status != TANDEM_OK && status != TANDEM_ERROR_BUSY)
                td_client_end(b, c, TANDEM_ERROR_LOST, 0, why);
        }
        if (at[0].revents & ~POLLOUT)
            read_client(b, c);
        if (c->state != TD_CLIENT_GONE && at[1].revents)
            td_client_end(b, c, TANDEM_ERROR_LOST, 0, "its process has ended");
        if (c->state == TD_CLIENT_NEW && now - c->since_ns > HELLO_NS)
            td_client_end(b, c, TANDEM_ERROR_PROTOCOL, 0, "no HELLO within 1 s");
    }
}

static void look_at_time(td_broker *b)
{
    const uint64_t now = td_now_ns();

    if (b->worker < 0 && b->respawn_ns && now >= b->respawn_ns && !b->old_desk && !b->stopping)
        spawn_worker(b);
    if (b->worker >= 0 && !b->worker_said && !b->killed_ns && td_now_ns() - b->spawned_ns > START_NS)
        td_worker_kill(b, "it has said nothing for 60 s");
    if (b->watchdog_ns && now - b->watched_ns >= b->watchdog_ns / 2 && b->turns != b->watched_turns) {
        tell_manager(b, "WATCHDOG=1");
        b->watched_ns = now;
        b->watched_turns = b->turns;
    }
}

static int sleep_ms(const td_broker *b)
{
    uint64_t ns = MOST_WAIT_NS;

    if (b->new_count || b->stopping)
        ns = 50000000;
    if (b->worker < 0)
        ns = 5000000;
    if (b->watchdog_ns && b->watchdog_ns / 8 < ns)
        ns = b->watchdog_ns / 8;
    return (int)(ns / 1000000) + 1;
}

static int loop(td_broker *b)
{
    static struct pollfd p[MOST_POLLED];

    for (;;) {
        int count = 5, ms;

        p[0] = (struct pollfd){b->nursery, POLLIN, 0};
        p[1] = (struct pollfd){b->signals, POLLIN, 0};
        p[2] = (struct pollfd){b->worker, POLLIN, 0};
        p[3] = (struct pollfd){b->listener.fd, POLLIN, 0};
        p[4] = (struct pollfd){b->metrics, POLLIN, 0};
        for (td_client *c = b->clients; c; c = c->next) {
            c->polled = -1;
            if (c->state == TD_CLIENT_GONE || count + 2 > MOST_POLLED)
                continue;
            c->polled = count;
            p[count++] = (struct pollfd){c->conn.fd, (short)(POLLIN | (c->conn.queued_bytes ? POLLOUT : 0)), 0};
            p[count++] = (struct pollfd){c->process, POLLIN, 0};
        }
        ms = sleep_ms(b);
        pthread_mutex_unlock(&b->lock);
        if (poll(p, (nfds_t)count, ms) < 0)
            for (int i = 0; i < count; i++)
                p[i].revents = 0;
        pthread_mutex_lock(&b->lock);
        if (p[0].revents && !read_nursery(b)) {
            td_say(TD_LOG_ERROR, "the nursery is gone");
            return 1;
        }
        if (p[1].revents)
            read_signals(b);
        if (p[2].revents && b->worker >= 0 && !read_worker(b))
            return 1;
        look_at_clients(b, p);
        if (p[3].revents && b->listener.fd >= 0)
            accept_clients(b);
        if (p[4].revents)
            td_metrics_answer(b);
        run_errands(b);
        look_at_time(b);
        if (has_stopped(b))
            return 0;
    }
}

static void take_down(td_broker *b)
{
    b->end_thread = true;
    pthread_mutex_unlock(&b->lock);
    if (b->has_thread) {
        td_queue_kick(b);
        pthread_join(b->thread, NULL);
    }
    td_queue_lost(b);
    while (b->clients)
        td_client_free(b, b->clients);
    while (b->openings) {
        td_opening *next = b->openings->next;

        free(b->openings);
        b->openings = next;
    }
    while (b->errands)
        remove_errand(b, b->errands);
    if (b->desk)
        munmap(b->desk, TD_DESK_BYTES);
    if (b->old_desk)
        munmap(b->old_desk, TD_DESK_BYTES);
    free(b->numbers);
    td_fd_close(&b->worker);
    td_listener_close(&b->listener);
    pthread_mutex_destroy(&b->lock);
}

int td_broker_run(td_broker *b)
{
    char why[TD_TEXT_BYTES] = "";
    int result = 1;

    b->worker = -1;
    b->numbers = calloc(TD_MAX_NUMBERS, 1);
    b->uid = geteuid();
    td_wire_identify(&b->identity);
    if (!b->numbers || pthread_mutex_init(&b->lock, NULL) || pthread_barrier_init(&b->begun, NULL, 2)) {
        td_say(TD_LOG_ERROR, "no host memory");
        free(b->numbers);
        return 1;
    }
    pthread_mutex_lock(&b->lock);
    spawn_worker(b);
    b->has_thread = !pthread_create(&b->thread, NULL, td_queue_main, b);
    if (!b->has_thread) {
        td_say(TD_LOG_ERROR, "no thread could be started");
    } else {
        pthread_barrier_wait(&b->begun);
        if (td_confine_broker(why, sizeof why) != TANDEM_OK)
            td_say(TD_LOG_WARN, "system calls are not filtered: %s", why);
        result = loop(b);
    }
    take_down(b);
    return result;
}
