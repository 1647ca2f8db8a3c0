/* The worker: sessions that run the jobs of clients, each session in the order in which the broker queues them.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   main       requests: memory comes and goes               submit   READY slots to their sessions, cancellations
 *   loader     models come and go, piece by piece
 *   collect    waits for a session's oldest job, writes its result
 *
 * To wake a thread takes longer than a brief job does: on a CPU the submitter computes that itself, if there is no other.
 *
 * On a GPU each client has a session of its own: a stream that nobody else waits for, on memory and timelines that its
 * Vulkan exported. On a CPU frames have one, and the background another, which stands still for the first.
 *
 * It believes the broker, which has checked what clients say. When its session breaks it says so and ends: the broker
 * starts another.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_plugin/daemon/confine.h"
#include "engine_plugin/daemon/follower.h"
#include "engine_plugin/daemon/loader.h"
#include "engine_plugin/daemon/log.h"
#include "engine_plugin/daemon/pass.h"
#include "engine_plugin/daemon/worker.h"
#include "engine_plugin/daemon/worker_instances.h"
#include "engine_plugin/daemon/worker_queue.h"
#include "interop/os/channel.h"
#include "interop/os/clock.h"
#include "interop/os/descriptor.h"
#include "interop/os/memory.h"
#include "interop/os/process.h"
#include "interop/os/thread.h"

typedef struct item {
    uint32_t worker_session;
    void *map;
    uint64_t map_bytes;
    tandem_mem mem; /* of a model: that of its tensors */
    tandem_model model;
    tandem_instance instance;
    tandem_timeline timeline;
} item;

typedef struct entry {
    td_slot *slot;
    tandem_ticket ticket;
    uint64_t value;
} entry;

/* A model of the first session's as another knows it. */
typedef struct alias {
    uint32_t number;
    tandem_model model;
    tandem_mem mem;
    struct alias *next;
} alias;

typedef struct worker_session {
    tandem_session *session;
    bool imports_only, ends_all;
    bool on_cpu; /* and the submitter may compute its brief jobs: nothing holds those up */
    tandem_timeline ends; /* the job is through with its memory too; none where the GPU signals */
    pthread_t collector;
    pthread_cond_t more;
    entry order[TD_WORKER_SLOTS];
    uint32_t count;
    uint64_t value;
    uint64_t held_ns; /* preempted, all jobs that were collected */
    alias *aliases;
} worker_session;

typedef struct worker {
    int broker;
    td_worker_queue *queue;
    td_loader *loader, *unloader; /* unloader: has models destroyed, beside that */
    bool tuned;     /* sessions go by the queue's table */
    pthread_mutex_t lock;
    item items[TD_MAX_NUMBERS];
    worker_session sessions[TD_MAX_SESSIONS]; /* the first has models, and jobs of all who have none of their own */
    uint64_t last_sequence[TD_MAX_SESSIONS]; /* that the submitter took */
} worker;

static worker the;

static void hear(void *user, int level, const char *text)
{
    (void)user;
    if (level == TANDEM_LOG_WARN) /* what fails is answered, and logged by the broker */
        td_say(TD_LOG_WARN, "worker: %s", text);
    else
        td_say(TD_LOG_DEBUG, "worker: %s", text);
}

/* fd: that goes with it, or -1. */
static void tell_with(worker *w, const td_worker_message *message, int fd)
{
    tandem_status status;
    uint32_t ready;

    do
        status = td_pass(w->broker, message, sizeof *message, &fd, fd >= 0);
    while (status == TANDEM_ERROR_BUSY &&
           td_channel_wait(w->broker, true, -1, TD_SECOND, &ready, NULL, 0) == TANDEM_OK);
    if (status != TANDEM_OK)
        _exit(0); /* the broker is gone */
}

static void reply(worker *w, const td_worker_message *message)
{
    tell_with(w, message, -1);
}

/* Jobs. */

static void end_slot(worker *w, td_slot *slot, const tandem_job_report *report)
{
    slot->end_state = report->state;
    slot->status = report->status;
    slot->precision = report->precision;
    slot->begin_ns = report->begin_ns;
    slot->end_ns = report->end_ns;
    if (report->state != TANDEM_JOB_FAILED)
        slot->text[0] = 0;
    atomic_store_explicit(&slot->state, TD_SLOT_ENDED, memory_order_release);
    td_eventcount_notify(&w->queue->to_broker);
}

/* NULL: there is no such model, or no host memory. */
static const alias *alias_of(worker *w, worker_session *s, uint32_t number)
{
    alias *made;

    for (alias *a = s->aliases; a; a = a->next)
        if (a->number == number)
            return a;
    made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    if (td_worker_session_alias_model(s->session, w->sessions[0].session, w->items[number].model, &made->model) != TANDEM_OK) {
        free(made);
        return NULL;
    }
    made->mem = td_worker_session_model_mem(s->session, made->model);
    made->number = number;
    made->next = s->aliases;
    s->aliases = made;
    return made;
}

static bool is_own(const worker *w, const worker_session *s, uint32_t number)
{
    return w->items[number].worker_session == (uint32_t)(s - w->sessions);
}

/* The session's id in place of a number; 0: it has none. */
static tandem_mem mem_of(worker *w, worker_session *s, uint64_t number)
{
    const alias *a;

    if (!number || number >= TD_MAX_NUMBERS)
        return 0;
    if (is_own(w, s, (uint32_t)number))
        return w->items[number].mem;
    a = w->items[number].worker_session ? NULL : alias_of(w, s, (uint32_t)number);
    return a ? a->mem : 0;
}

static void name_mems(worker *w, worker_session *s, uint32_t operation, tandem_operands *op)
{
    const td_operation *of = td_operation_find(operation);

    for (uint32_t i = 0; of && i < of->layout.view_count; i++)
        td_view_of(&of->layout, op, i)->mem = mem_of(w, s, td_view_of(&of->layout, op, i)->mem);
}

/* Numbers and uniforms stay where they are, bindings are named in `bindings`. */
static void name_run(worker *w, worker_session *s, const td_run *run, tandem_view bindings[TD_WIRE_BINDINGS], tandem_run *out)
{
    const bool is_there = run->instance < TD_MAX_NUMBERS && is_own(w, s, run->instance);

    for (uint32_t i = 0; i < run->binding_count; i++)
        bindings[i] = (tandem_view){.mem = mem_of(w, s, run->bindings[i].mem),
                                    .offset_bytes = run->bindings[i].offset_bytes,
                                    .dtype = run->bindings[i].dtype};
    *out = (tandem_run){.instance = is_there ? w->items[run->instance].instance : 0,
                        .bindings = bindings,
                        .numbers = run->numbers,
                        .uniforms = run->uniforms,
                        .uniform_bytes = run->uniform_bytes,
                        .binding_count = run->binding_count,
                        .number_count = run->number_count};
}

static void name_points(worker *w, worker_session *s, tandem_job *job)
{
    tandem_point *points[2] = {&job->wait, &job->signal};

    for (int i = 0; i < 2; i++) {
        const uint64_t number = points[i]->timeline;

        if (!s->imports_only || number >= TD_MAX_NUMBERS)
            *points[i] = (tandem_point){0};
        else if (number)
            points[i]->timeline = w->items[number].timeline;
    }
}

/* A job as its session knows it. Parts are of other shapes than what they are parts of, but all of its precision. */
static void name_objects(worker *w, worker_session *s, const td_slot *slot, tandem_view bindings[TD_WIRE_BINDINGS],
                         tandem_job *job)
{
    const td_operation *operation = td_operation_find(slot->job.operation), *whole_of = td_operation_find(slot->whole_of);
    tandem_operands whole = slot->whole;

    name_points(w, s, job);
    if (job->operation == TANDEM_OPERATION_RUN)
        name_run(w, s, &w->queue->runs[slot - w->queue->slots], bindings, &job->op.run);
    name_mems(w, s, job->operation, &job->op);
    if (slot->parts < 2 || !operation || !whole_of)
        return;
    name_mems(w, s, slot->whole_of, &whole);
    td_operation_set_precision(operation, &job->op, td_worker_session_precision(s->session, whole_of, &whole));
}

/* Scratch. */

static void tell_holdings(worker *w, uint32_t number)
{
    const uint32_t first = number ? number : TD_MAX_SESSIONS, room = number && !w->sessions[0].on_cpu ? 1 : TD_GPU_DEPTH;
    tandem_session *session = w->sessions[number].session;
    td_holding list[TD_MAX_JOBS_IN_FLIGHT];
    const uint32_t count = session ? td_worker_session_holdings(session, list) : 0;

    for (uint32_t i = 0; i < room; i++)
        atomic_store_explicit(&w->queue->held[first + i],
                              i < count ? list[i].owner << 32 | list[i].bytes / TD_WIRE_PAGE_BYTES : 0,
                              memory_order_relaxed);
}

/* What a client's jobs may hold of what all may. */
static uint64_t scratch_for(const worker *w, const td_slot *slot)
{
    uint64_t others = 0, left;

    for (int i = 0; i < TD_HOLDINGS; i++) {
        const uint64_t held = atomic_load_explicit(&w->queue->held[i], memory_order_relaxed);

        if (held >> 32 != slot->session)
            others += (held & UINT32_MAX) * TD_WIRE_PAGE_BYTES;
    }
    left = slot->all_bytes > others ? slot->all_bytes - others : 0;
    return left < slot->own_bytes ? left : slot->own_bytes;
}

/* What idle clients' jobs left behind goes, before a job of another's fails for it. */
static bool trim_others(worker *w)
{
    bool some = false;

    for (uint32_t i = 0; i < TD_MAX_SESSIONS; i++)
        if (w->sessions[i].session && td_worker_session_trim(w->sessions[i].session, TD_EVERYBODY)) {
            tell_holdings(w, i);
            some = true;
        }
    return some;
}

/* With a report the job is computed, too. */
static tandem_status submit_for(worker *w, worker_session *s, td_slot *slot, const tandem_job *job,
                                tandem_job_report *report, tandem_ticket *ticket)
{
    td_submission from = {.desc = job,
                          .owner = slot->session,
                          .whole_of = slot->parts > 1 ? td_operation_find(slot->whole_of) : NULL,
                          .whole = &slot->whole,
                          .position = slot->position};
    tandem_status status;

    do {
        from.most_bytes = scratch_for(w, slot);
        from.lacks_bytes = 0;
        status = report ? td_worker_session_compute(s->session, &from, report)
                        : td_worker_session_submit(s->session, &from, ticket);
        slot->lacks_bytes = from.lacks_bytes;
    } while (status == TANDEM_ERROR_NOMEM && (!slot->lacks_bytes || from.most_bytes < slot->own_bytes) && trim_others(w));
    tell_holdings(w, (uint32_t)(s - w->sessions));
    return status;
}

/* A session does not come back from this. */
static void end_worker(worker *w, worker_session *s, tandem_status status)
{
    td_worker_message last = {.kind = TD_WORKER_BROKEN, .status = status};

    td_worker_keep_text(s->session, last.text, sizeof last.text);
    reply(w, &last);
    td_log_end();
    _exit(1);
}

/* False: the session has no room now. */
static bool submit(worker *w, td_slot *slot)
{
    const uint64_t now = td_now_ns();
    tandem_job_report report = {.struct_bytes = sizeof report, .state = TANDEM_JOB_STALE};
    worker_session *s = &w->sessions[slot->worker_session % TD_MAX_SESSIONS];
    tandem_view bindings[TD_WIRE_BINDINGS];
    tandem_job job = slot->job;
    tandem_status status = TANDEM_ERROR_NOMEM;
    entry e = {slot, 0, 0};
    bool here = false;

    slot->submitted = 0;
    slot->held_ns = slot->late_ns = 0;
    if (slot->deadline_ns && slot->deadline_ns <= now) {
        end_slot(w, slot, &report);
        return true;
    }
    job.deadline_ns = slot->deadline_ns ? slot->deadline_ns - now : 0;
    pthread_mutex_lock(&w->lock);
    if (s->session) {
        e.value = s->value + 1;
        name_objects(w, s, slot, bindings, &job);
        here = s->on_cpu && slot->brief && !s->count;
        if (!s->imports_only && !here)
            job.signal = (tandem_point){s->ends, e.value};
        status = submit_for(w, s, slot, &job, here ? &report : NULL, &e.ticket);
    } else {
        snprintf(slot->text, sizeof slot->text, "its client has no session in the worker");
    }
    if (status != TANDEM_OK && s->session && td_worker_session_is_broken(s->session))
        end_worker(w, s, status);
    if (status == TANDEM_OK && !here) {
        slot->submitted = 1;
        s->value = e.value;
        s->order[s->count++] = e;
        pthread_cond_signal(&s->more);
    }
    pthread_mutex_unlock(&w->lock);
    if ((status == TANDEM_OK && !here) || status == TANDEM_ERROR_BUSY)
        return status == TANDEM_OK;
    if (status != TANDEM_OK) {
        report.state = TANDEM_JOB_FAILED;
        report.status = status;
    }
    if (s->session && report.state == TANDEM_JOB_FAILED)
        td_worker_keep_text(s->session, slot->text, sizeof slot->text);
    end_slot(w, slot, &report);
    return true;
}

static bool cancel_some(worker *w)
{
    struct {
        tandem_session *session;
        tandem_ticket ticket;
    } some[TD_WORKER_SLOTS];
    uint32_t count = 0;

    pthread_mutex_lock(&w->lock);
    for (const worker_session *s = w->sessions; s < w->sessions + TD_MAX_SESSIONS; s++)
        for (uint32_t i = 0; i < s->count; i++)
            if (atomic_exchange(&s->order[i].slot->cancel, 0)) {
                some[count].session = s->session;
                some[count++].ticket = s->order[i].ticket;
            }
    for (uint32_t i = 0; i < count; i++)
        tandem_cancel(some[i].session, some[i].ticket);
    pthread_mutex_unlock(&w->lock);
    return count > 0;
}

static void release_some(worker *w)
{
    const uint64_t sessions = atomic_exchange(&w->queue->released, 0);

    pthread_mutex_lock(&w->lock);
    for (uint32_t i = 0; i < TD_MAX_SESSIONS; i++)
        if (sessions >> i & 1 && w->sessions[i].session && w->sessions[i].imports_only)
            td_worker_session_release(w->sessions[i].session);
    pthread_mutex_unlock(&w->lock);
}

/* The first READY slot of each session, in the order in which they came; a session without room holds nobody else up. */
static bool submit_some(worker *w, bool *held)
{
    uint64_t full = 0;
    bool some = false;

    *held = false;
    for (;;) {
        td_slot *next = td_worker_queue_next(w->queue, w->last_sequence, full);
        uint64_t sequence;
        uint32_t at;

        if (!next)
            return some;
        sequence = next->sequence; /* once a job has ended its slot may be another's */
        at = next->worker_session % TD_MAX_SESSIONS;
        if (submit(w, next)) {
            w->last_sequence[at] = sequence;
            some = true;
        } else {
            full |= 1ull << at;
            *held = true;
        }
    }
}

static void *submit_main(void *user)
{
    worker *w = user;
    td_follower f = td_follower_begin();

    td_thread_set_slack(1000);
    for (;;) {
        const uint32_t seen = atomic_load(&w->queue->to_worker.count);
        bool held, some = submit_some(w, &held);

        if (atomic_load(&w->queue->released))
            release_some(w);
        if (!cancel_some(w) && !some) {
            f.notified_ns = atomic_load(&w->queue->notified_ns);
            td_eventcount_wait(&w->queue->to_worker, seen, held ? 100000 : TD_SECOND);
            if (w->sessions[0].on_cpu)
                td_follower_move(&f, (int)atomic_load(&w->queue->cpu), atomic_load(&w->queue->notified_ns));
        }
    }
    return NULL;
}

/* Until the job has ended, and where the host signals, is through with its memory. */
static tandem_status await(worker_session *s, const entry *e, tandem_job_report *report)
{
    tandem_status status = TANDEM_OK;

    if (!s->imports_only)
        do
            status = tandem_point_wait(s->session, (tandem_point){s->ends, e->value}, TD_SECOND);
        while (status == TANDEM_ERROR_BUSY);
    while (tandem_wait(s->session, e->ticket, TD_SECOND, report) == TANDEM_ERROR_BUSY && s->imports_only)
        ;
    return status;
}

/* On a CPU one job of a session's at a time: what the session was held since the one before was this one's. */
static void note_held(worker_session *s, td_slot *slot)
{
    uint64_t held_ns;

    td_worker_session_held(s->session, &held_ns, &slot->late_ns);
    slot->held_ns = held_ns - s->held_ns;
    s->held_ns = held_ns;
}

static void *collect_main(void *user)
{
    worker *w = &the;
    worker_session *s = user;

    td_thread_set_slack(1000);
    for (;;) {
        tandem_job_report report = {.struct_bytes = sizeof report};
        tandem_status status;
        entry e;

        pthread_mutex_lock(&w->lock);
        while (!s->count && !s->ends_all)
            pthread_cond_wait(&s->more, &w->lock);
        e = s->order[0];
        if (!s->count) {
            pthread_mutex_unlock(&w->lock);
            return NULL;
        }
        pthread_mutex_unlock(&w->lock);
        status = await(s, &e, &report);
        note_held(s, e.slot);
        if (report.state == TANDEM_JOB_FAILED)
            td_worker_keep_text(s->session, e.slot->text, sizeof e.slot->text);
        pthread_mutex_lock(&w->lock);
        memmove(s->order, s->order + 1, --s->count * sizeof *s->order);
        pthread_mutex_unlock(&w->lock);
        /* LOST: of a job on imported timelines that its client never came, else that the GPU is gone. */
        if (status == TANDEM_OK && report.status != TANDEM_ERROR_DEVICE &&
            (report.status != TANDEM_ERROR_LOST || (s->imports_only && !td_worker_session_is_broken(s->session)))) {
            end_slot(w, e.slot, &report);
        } else {
            end_worker(w, s, report.status ? report.status : status);
        }
    }
    return NULL;
}

/* The broker's requests. */

static worker_session *session_of(worker *w, td_worker_message *t)
{
    worker_session *s = &w->sessions[t->worker_session % TD_MAX_SESSIONS];

    if (s->session)
        return s;
    t->status = td_fail(t->text, sizeof t->text, TANDEM_ERROR_NOMEM, "its client has no session on the GPU");
    return NULL;
}

static void keep_item(worker *w, td_worker_message *t, item made)
{
    made.worker_session = t->worker_session;
    pthread_mutex_lock(&w->lock);
    w->items[t->number] = made;
    pthread_mutex_unlock(&w->lock);
}

/* What the session has made, or why it has not. */
static void keep_made(worker *w, tandem_session *session, td_worker_message *t, item made)
{
    if (t->status == TANDEM_OK)
        keep_item(w, t, made);
    else
        td_worker_keep_text(session, t->text, sizeof t->text);
}

static void take_opaque(worker *w, worker_session *s, td_worker_message *t, int fd)
{
    item made = {0};

    if (t->kind == TD_WORKER_MEM)
        t->status = td_worker_session_import_mem(s->session, fd, t->allocation_bytes, t->dedicated, t->offset_bytes, t->bytes,
                                                 &made.mem);
    else
        t->status = td_worker_session_import_timeline(s->session, fd, t->by_daemon, t->value, &made.timeline);
    keep_made(w, s->session, t, made);
}

static void take_temp_output(worker *w, worker_session *s, td_worker_message *t)
{
    item made = {0};

    t->status = td_worker_session_make_temp_output(s->session, t->bytes, &made.mem);
    keep_made(w, s->session, t, made);
}

static void take_mem(worker *w, td_worker_message *t, int fd)
{
    item made = {.map_bytes = td_align_up(t->bytes, TD_WIRE_PAGE_BYTES)};
    worker_session *s = session_of(w, t);

    if (!s)
        return;
    if (t->opaque) {
        take_opaque(w, s, t, fd);
        return;
    }
    if (t->temp_output) {
        take_temp_output(w, s, t);
        return;
    }
    t->status = td_memfd_map_part(fd, t->offset_bytes, made.map_bytes, &made.map, t->text, sizeof t->text);
    if (t->status != TANDEM_OK)
        return;
    t->status = tandem_mem_create(
        s->session,
        &(tandem_mem_desc){
            .struct_bytes = sizeof(tandem_mem_desc),
            .source = TANDEM_MEM_HOST,
            .bytes = made.map_bytes,
            .host = made.map,
        },
        &made.mem);
    keep_made(w, s->session, t, made);
    if (t->status != TANDEM_OK)
        td_unmap(made.map, made.map_bytes);
}

/* A job that will not end: only a new worker helps. */
static void give_up(worker *w, td_worker_message *t, tandem_session *session)
{
    t->kind = TD_WORKER_BROKEN;
    td_worker_keep_text(session, t->text, sizeof t->text);
    reply(w, t);
    td_log_end();
    _exit(1);
}

/* The loader is through with one. */
static void on_loaded(void *user, td_worker_message *t, tandem_model model)
{
    worker *w = user;
    tandem_session *session = w->sessions[0].session;

    if (t->kind == TD_WORKER_END && t->status != TANDEM_OK)
        give_up(w, t, session);
    if (model) {
        t->worker_session = 0;
        t->network.state_bytes = td_worker_session_state_bytes(session, model);
        keep_item(w, t, (item){.model = model, .mem = td_worker_session_model_mem(session, model)});
    }
    reply(w, t);
}

/* False: there is no host memory to have it done. */
static bool pass_to_loader(td_loader *loader, td_worker_message *t, int fd, tandem_model model)
{
    if (td_loader_add(loader, t, fd, model))
        return true;
    t->status = td_fail(t->text, sizeof t->text, TANDEM_ERROR_NOMEM, "no host memory for a load");
    return false;
}

static void drop_aliases(worker *w, td_worker_message *t)
{
    for (uint32_t i = 1; i < TD_MAX_SESSIONS; i++)
        for (alias **at = &w->sessions[i].aliases, *gone; (gone = *at);) {
            if (gone->number != t->number) {
                at = &gone->next;
                continue;
            }
            pthread_mutex_lock(&w->lock);
            *at = gone->next;
            pthread_mutex_unlock(&w->lock);
            t->status = tandem_model_destroy(w->sessions[i].session, gone->model);
            if (t->status != TANDEM_OK)
                give_up(w, t, w->sessions[i].session);
            free(gone);
        }
}

/* False: the loader answers. */
static bool drop(worker *w, td_worker_message *t)
{
    tandem_session *session;
    item gone;

    if (td_loader_end(w->loader, t))
        return false;
    pthread_mutex_lock(&w->lock);
    gone = w->items[t->number];
    w->items[t->number] = (item){0};
    session = w->sessions[gone.worker_session].session;
    pthread_mutex_unlock(&w->lock);
    if (!session) /* it went with its session */
        return true;
    if (gone.model) {
        drop_aliases(w, t);
        if (pass_to_loader(w->unloader, t, -1, gone.model))
            return false;
        t->status = tandem_model_destroy(session, gone.model);
    } else if (gone.instance) {
        t->status = tandem_instance_destroy(session, gone.instance);
    } else if (gone.mem) {
        t->status = tandem_mem_destroy(session, gone.mem);
    } else if (gone.timeline) {
        t->status = tandem_timeline_destroy(session, gone.timeline);
    }
    if (t->status != TANDEM_OK)
        give_up(w, t, session);
    if (gone.map)
        td_unmap(gone.map, gone.map_bytes);
    return true;
}

/* Networks. An instance is in the session of its client's jobs. */

static void make_instance(worker *w, td_worker_message *t)
{
    worker_session *s = session_of(w, t);
    const uint32_t number = t->network.model % TD_MAX_NUMBERS;
    const tandem_instance_desc desc = {
        .struct_bytes = sizeof desc, .precision = t->network.precision, .deadlines = t->network.deadlines};
    const alias *other = NULL;
    item made = {0};

    if (!s)
        return;
    if (!is_own(w, s, number)) {
        pthread_mutex_lock(&w->lock);
        other = alias_of(w, s, number);
        pthread_mutex_unlock(&w->lock);
    }
    t->status = td_worker_session_instance(s->session, other ? other->model : w->items[number].model, &desc,
                                           &t->network.layers, &made.instance);
    keep_made(w, s->session, t, made);
}

/* The mem is of the same client. */
static void copy_state(worker *w, td_worker_message *t, tandem_session *session, tandem_instance instance)
{
    const item *mem = &w->items[t->network.state_mem % TD_MAX_NUMBERS];

    if (mem->map)
        td_worker_state(session, instance, (char *)mem->map + t->network.state.offset_bytes, t);
    else
        t->status = td_fail(t->text, sizeof t->text, TANDEM_ERROR_ARG, "mem is one that the worker does not have");
}

/* Starts what collects a session's results. */
static tandem_status begin_session(worker_session *s, char *why, size_t why_bytes)
{
    tandem_status status = TANDEM_OK;

    if (!s->imports_only)
        status = tandem_timeline_create(s->session,
                                        &(tandem_timeline_desc){.struct_bytes = sizeof(tandem_timeline_desc),
                                                                .signaller = TANDEM_SIGNALLER_SESSION},
                                        &s->ends);
    if (status != TANDEM_OK)
        return status;
    if (pthread_cond_init(&s->more, NULL) || pthread_create(&s->collector, NULL, collect_main, s))
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no thread could be started");
    return TANDEM_OK;
}

static void make_session(worker *w, td_worker_message *t)
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc,
                                      .backend = TANDEM_BACKEND_CUDA,
                                      .log = hear,
                                      .frames_in_flight = TD_GPU_DEPTH,
                                      .wait_bound_ns = t->value,
                                      .timing = 1,
                                      .error_text = t->text,
                                      .error_text_bytes = sizeof t->text,
                                      .job_class = t->job_class};
    worker_session *s = &w->sessions[t->worker_session % TD_MAX_SESSIONS];
    worker_session made = {.imports_only = t->opaque};

    t->status = td_worker_session_create(&desc, t->opaque, &made.session);
    if (t->status == TANDEM_OK && w->tuned)
        t->status = td_worker_session_tune(made.session, &w->queue->tuning);
    if (t->status != TANDEM_OK) {
        tandem_session_destroy(&made.session);
        return;
    }
    pthread_mutex_lock(&w->lock);
    *s = made;
    pthread_mutex_unlock(&w->lock);
    t->status = begin_session(s, t->text, sizeof t->text);
    if (t->status != TANDEM_OK) {
        tandem_session_destroy(&made.session);
        s->session = NULL;
    }
}

/* No job of its is in the queue any more. */
static void end_session(worker *w, td_worker_message *t)
{
    worker_session *s = &w->sessions[t->worker_session % TD_MAX_SESSIONS];
    tandem_session *session = s->session;

    if (!session)
        return;
    pthread_mutex_lock(&w->lock);
    s->ends_all = true;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&w->lock);
    td_worker_session_release(session);
    pthread_join(s->collector, NULL);
    pthread_mutex_lock(&w->lock);
    s->session = NULL;
    tell_holdings(w, t->worker_session % TD_MAX_SESSIONS);
    while (s->aliases) {
        alias *next = s->aliases->next;

        free(s->aliases);
        s->aliases = next;
    }
    pthread_cond_destroy(&s->more);
    pthread_mutex_unlock(&w->lock);
    tandem_session_destroy(&session);
}

/* The descriptor is taken where it is set to -1. */
static void answer(worker *w, td_worker_message *t, int *fd)
{
    tandem_session *session = w->sessions[0].session;
    int graph = -1;
    item *it;
    worker_session *s;

    t->text[sizeof t->text - 1] = 0;
    t->status = TANDEM_OK;
    if (t->number >= TD_MAX_NUMBERS || t->worker_session >= TD_MAX_SESSIONS)
        _exit(2);
    it = &w->items[t->number];
    switch ((td_worker_message_kind)t->kind) {
    case TD_WORKER_MEM:
        take_mem(w, t, *fd);
        break;
    case TD_WORKER_TIMELINE:
        s = session_of(w, t);
        if (s)
            take_opaque(w, s, t, *fd);
        break;
    case TD_WORKER_MODEL:
        if (pass_to_loader(w->loader, t, *fd, 0)) {
            *fd = -1;
            return;
        }
        *fd = -1;
        break;
    case TD_WORKER_END:
        if (!drop(w, t))
            return;
        break;
    case TD_WORKER_BEGIN_SESSION:
        make_session(w, t);
        break;
    case TD_WORKER_END_SESSION:
        end_session(w, t);
        break;
    case TD_WORKER_FORGET:
        pthread_mutex_lock(&w->lock);
        td_worker_session_trim(w->sessions[t->worker_session].session, t->value);
        tell_holdings(w, t->worker_session);
        pthread_mutex_unlock(&w->lock);
#ifdef __GLIBC__
        malloc_trim(0);
#endif
        break;
    case TD_WORKER_TENSOR:
        t->status = tandem_model_tensor(session, it->model, t->text, &t->view, t->shape);
        if (t->status != TANDEM_OK) {
            td_worker_keep_text(session, t->text, sizeof t->text);
            break;
        }
        t->bytes = t->view.offset_bytes + t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3] /
                                              td_dtype_of(t->view.dtype).elements * td_dtype_of(t->view.dtype).bytes;
        break;
    case TD_WORKER_GRAPH:
        graph = td_worker_session_model_header(session, it->model, &t->bytes);
        if (graph < 0)
            t->status = td_fail(t->text, sizeof t->text, TANDEM_ERROR_ARG, "the model is not there");
        break;
    case TD_WORKER_INSTANCE:
        make_instance(w, t);
        break;
    case TD_WORKER_PREPARE:
        td_worker_prepare(w->sessions[it->worker_session].session, it->instance, t);
        break;
    case TD_WORKER_LAYER:
        td_worker_layer(w->sessions[it->worker_session].session, it->instance, t);
        break;
    case TD_WORKER_STATE:
        copy_state(w, t, w->sessions[it->worker_session].session, it->instance);
        break;
    case TD_WORKER_INFO:
        t->info.struct_bytes = sizeof t->info;
        tandem_session_info(session, &t->info);
        break;
    default:
        return;
    }
    tell_with(w, t, graph);
}

/* What Vulkan says of the same device and driver: NVIDIA's version lies in ten, eight, eight and six bits. */
static void identify(td_wire_identity *identity, const tandem_info *info)
{
    FILE *file = fopen("/sys/module/nvidia/version", "re");
    unsigned major = 0, minor = 0, patch = 0;

    if (file && info->backend == TANDEM_BACKEND_CUDA && fscanf(file, "%u.%u.%u", &major, &minor, &patch) >= 2) {
        memcpy(identity->device_uuid, info->device_uuid, sizeof identity->device_uuid);
        identity->driver_id = 4; /* VK_DRIVER_ID_NVIDIA_PROPRIETARY */
        identity->driver_version = major << 22 | minor << 14 | patch << 6;
    }
    if (file)
        fclose(file);
}

/* A CPU's background. */
static tandem_status begin_background(worker *w, const tandem_session_desc *desc, td_worker_message *t)
{
    worker_session *background = &w->sessions[TD_BACKGROUND_SESSION];
    tandem_status status = td_worker_session_create(desc, false, &background->session);

    if (status != TANDEM_OK)
        return status;
    td_worker_session_preempt(background->session, &w->queue->preempt);
    return begin_session(background, t->text, sizeof t->text);
}

/* What can be had of the machine, for the broker. */
static bool begin(worker *w, uint32_t backend, uint32_t threads)
{
    static td_worker_message t;
    const tandem_session_desc desc = {.struct_bytes = sizeof desc,
                                      .backend = backend,
                                      .log = hear,
                                      .cpu_threads = threads,
                                      .frames_in_flight = TD_GPU_DEPTH,
                                      .timing = 1,
                                      .error_text = t.text,
                                      .error_text_bytes = sizeof t.text};
    char why[TD_TEXT_BYTES] = "";
    worker_session *first = &w->sessions[0];
    pthread_t thread;

    t.kind = TD_WORKER_HELLO;
    t.status = td_worker_session_create(&desc, false, &first->session);
    if (t.status == TANDEM_OK && w->queue->tuning.count)
        t.status = td_worker_session_tune(first->session, &w->queue->tuning);
    if (t.status == TANDEM_OK) {
        t.info.struct_bytes = sizeof t.info;
        tandem_session_info(first->session, &t.info);
        w->tuned = t.info.tuning == TANDEM_TUNING_GIVEN;
        identify(&t.identity, &t.info);
        first->on_cpu = t.info.backend == TANDEM_BACKEND_CPU;
        t.status = begin_session(first, t.text, sizeof t.text);
    }
    if (t.status == TANDEM_OK && first->on_cpu)
        t.status = begin_background(w, &desc, &t);
    if (t.status == TANDEM_OK) {
        w->loader = td_loader_start(first->session, &w->queue->load, on_loaded, w);
        w->unloader = td_loader_start(first->session, NULL, on_loaded, w);
    }
    if (t.status == TANDEM_OK && (!w->loader || !w->unloader))
        t.status = td_fail(t.text, sizeof t.text, TANDEM_ERROR_NOMEM, "no thread could be started");
    if (t.status == TANDEM_OK && td_confine_worker(why, sizeof why) != TANDEM_OK)
        td_say(TD_LOG_DEBUG, "worker: %s", why);
    if (t.status == TANDEM_OK && pthread_create(&thread, NULL, submit_main, w))
        t.status = td_fail(t.text, sizeof t.text, TANDEM_ERROR_NOMEM, "no thread could be started");
    reply(w, &t);
    return t.status == TANDEM_OK;
}

int td_worker_main(int socket, int queue, uint32_t backend, uint32_t threads)
{
    static td_worker_message t;
    worker *w = &the;
    const int asked = td_asked_make(); /* and nobody answers: the broker ends the worker, a terminal asks all */
    void *map;

    td_thread_name("tandemd-worker");
    td_confine_process();
    w->broker = socket;
    if (asked < 0 || td_memfd_map(queue, TD_WORKER_QUEUE_BYTES, &map, NULL, 0) != TANDEM_OK ||
        pthread_mutex_init(&w->lock, NULL) || !td_log_begin())
        return 1;
    w->queue = map;
    td_fd_close(&queue);
    if (!begin(w, backend, threads))
        return 1;
    for (;;) {
        int fds[2];
        uint32_t ready;
        const tandem_status status = td_fetch(socket, &t, sizeof t, fds);

        if (status == TANDEM_ERROR_BUSY) {
            td_channel_wait(socket, false, -1, TD_SECOND, &ready, NULL, 0);
            continue;
        }
        if (status == TANDEM_OK) {
            atomic_store(&w->queue->request, t.serial);
            answer(w, &t, &fds[0]);
            atomic_store(&w->queue->request, 0);
        }
        td_fd_close(&fds[0]);
        td_fd_close(&fds[1]);
        if (status != TANDEM_OK)
            _exit(0); /* the broker is gone, or wants another worker; the kernel takes everything back at once */
    }
}
