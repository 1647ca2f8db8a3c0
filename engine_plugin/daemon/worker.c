/* The worker: one session that runs the jobs of all clients, in the order that the broker puts them on the desk.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   main       errands: memory and models come and go        submit   READY slots to the session, cancellations
 *   collect    waits for the oldest job, writes its result
 *
 * It believes the broker, which has checked what clients say. When its session breaks it says so and ends: the broker
 * starts another.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "engine_plugin/daemon/daemon.h"

typedef struct item {
    void *map;
    uint64_t map_bytes;
    tandem_mem mem; /* of a model: that of its tensors, once it was asked for one */
    tandem_model model;
} item;

typedef struct entry {
    td_slot *slot;
    tandem_ticket ticket;
    uint64_t value;
} entry;

typedef struct worker {
    int broker;
    td_desk *desk;
    tandem_session *session;
    tandem_timeline ends; /* the job is through with its memory too */
    pthread_mutex_t lock;
    pthread_cond_t more;
    item items[TD_MAX_NUMBERS];
    entry order[TD_DESK_SLOTS];
    uint32_t count;
    uint64_t value, last_sequence;
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

static void tell(worker *w, const td_task *task)
{
    if (td_pass(w->broker, task, sizeof *task, NULL, 0) != TANDEM_OK)
        _exit(0); /* the broker is gone */
}

/* The text of what failed, without the name of the call. */
static void keep_text(const worker *w, char *text, size_t bytes)
{
    char whole[TD_TEXT_BYTES] = "";
    const char *from;

    tandem_error_text(w->session, whole, sizeof whole);
    from = strstr(whole, ": ");
    snprintf(text, bytes, "%s", from ? from + 2 : whole);
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
    td_bell_ring(&w->desk->to_broker);
}

/* Session ids in place of numbers. */
static void name_mems(worker *w, tandem_attention *op)
{
    tandem_view *views[TD_VIEWS] = {&op->q, &op->k, &op->v, &op->o, &op->lse};

    for (int i = 0; i < TD_VIEWS; i++)
        if (views[i]->mem)
            views[i]->mem = views[i]->mem < TD_MAX_NUMBERS ? w->items[views[i]->mem].mem : 0;
}

/* False: the session has no room now. */
static bool submit(worker *w, td_slot *slot)
{
    const uint64_t now = td_now_ns();
    tandem_job_report report = {.struct_bytes = sizeof report, .state = TANDEM_JOB_STALE};
    tandem_job job = slot->job;
    tandem_status status;
    entry e = {slot, 0, w->value + 1};

    if (slot->deadline_ns && slot->deadline_ns <= now) {
        end_slot(w, slot, &report);
        return true;
    }
    job.deadline_ns = slot->deadline_ns ? slot->deadline_ns - now : 0;
    job.wait = (tandem_point){0};
    job.signal = (tandem_point){w->ends, e.value};
    pthread_mutex_lock(&w->lock);
    name_mems(w, &job.op.attention);
    status = tandem_submit(w->session, &job, &e.ticket);
    if (status == TANDEM_OK) {
        w->value = e.value;
        w->order[w->count++] = e;
        pthread_cond_signal(&w->more);
    }
    pthread_mutex_unlock(&w->lock);
    if (status == TANDEM_OK || status == TANDEM_ERROR_BUSY)
        return status == TANDEM_OK;
    report.state = TANDEM_JOB_FAILED;
    report.status = status;
    keep_text(w, slot->text, sizeof slot->text);
    end_slot(w, slot, &report);
    return true;
}

static bool cancel_some(worker *w)
{
    tandem_ticket tickets[TD_DESK_SLOTS];
    uint32_t count = 0;

    pthread_mutex_lock(&w->lock);
    for (uint32_t i = 0; i < w->count; i++)
        if (atomic_exchange(&w->order[i].slot->cancel, 0))
            tickets[count++] = w->order[i].ticket;
    pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 0; i < count; i++)
        tandem_cancel(w->session, tickets[i]);
    return count > 0;
}

static void *submit_main(void *user)
{
    worker *w = user;

    prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
    for (;;) {
        const uint32_t seen = atomic_load(&w->desk->to_worker.count);
        td_slot *next = NULL;
        uint64_t sequence = 0; /* once a job has ended its slot may be another's */

        for (uint32_t i = 0; i < TD_DESK_SLOTS; i++) {
            td_slot *slot = &w->desk->slots[i];

            if (atomic_load_explicit(&slot->state, memory_order_acquire) == TD_SLOT_READY &&
                slot->sequence > w->last_sequence && (!next || slot->sequence < sequence)) {
                next = slot;
                sequence = slot->sequence;
            }
        }
        if (next && submit(w, next))
            w->last_sequence = sequence;
        else if (!cancel_some(w))
            td_bell_wait(&w->desk->to_worker, seen, next ? 100000 : TD_SECOND);
    }
    return NULL;
}

static void *collect_main(void *user)
{
    worker *w = user;

    prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
    for (;;) {
        tandem_job_report report = {.struct_bytes = sizeof report};
        tandem_status status;
        entry e;

        pthread_mutex_lock(&w->lock);
        while (!w->count)
            pthread_cond_wait(&w->more, &w->lock);
        e = w->order[0];
        pthread_mutex_unlock(&w->lock);
        do
            status = tandem_point_wait(w->session, (tandem_point){w->ends, e.value}, TD_SECOND);
        while (status == TANDEM_ERROR_BUSY);
        tandem_wait(w->session, e.ticket, TD_SECOND, &report);
        if (report.state == TANDEM_JOB_FAILED)
            keep_text(w, e.slot->text, sizeof e.slot->text);
        pthread_mutex_lock(&w->lock);
        memmove(w->order, w->order + 1, --w->count * sizeof *w->order);
        pthread_mutex_unlock(&w->lock);
        if (status == TANDEM_OK && report.status != TANDEM_ERROR_DEVICE && report.status != TANDEM_ERROR_LOST) {
            end_slot(w, e.slot, &report);
        } else { /* a session does not come back from this */
            td_task last = {.kind = TD_TASK_BROKEN, .status = report.status ? report.status : status};

            keep_text(w, last.text, sizeof last.text);
            tell(w, &last);
            _exit(1);
        }
    }
    return NULL;
}

/* Errands. */

static void take_mem(worker *w, td_task *t, int fd)
{
    item made = {.map_bytes = td_align_up(t->bytes, TD_WIRE_PAGE_BYTES)};

    made.map = mmap(NULL, made.map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)t->offset_bytes);
    if (made.map == MAP_FAILED) {
        t->status = td_fail(t->text, sizeof t->text, TANDEM_ERROR_NOMEM, "%" PRIu64 " bytes cannot be mapped: %s",
                            made.map_bytes, strerror(errno));
        return;
    }
    madvise(made.map, made.map_bytes, MADV_DONTDUMP);
    t->status = tandem_mem_create(
        w->session,
        &(tandem_mem_desc){
            .struct_bytes = sizeof(tandem_mem_desc),
            .source = TANDEM_MEM_HOST,
            .bytes = made.map_bytes,
            .host = made.map,
        },
        &made.mem);
    if (t->status != TANDEM_OK) {
        keep_text(w, t->text, sizeof t->text);
        munmap(made.map, made.map_bytes);
        return;
    }
    pthread_mutex_lock(&w->lock);
    w->items[t->number] = made;
    pthread_mutex_unlock(&w->lock);
}

static void take_model(worker *w, td_task *t, int fd)
{
    char path[40], text[TD_TEXT_BYTES];
    tandem_info before = {.struct_bytes = sizeof before}, after = before;
    item made = {0};
    const char *from;

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    tandem_session_info(w->session, &before);
    t->status = tandem_model_load(w->session, path, &made.model);
    if (t->status != TANDEM_OK) {
        keep_text(w, text, sizeof text); /* path is '/proc/...': what is wrong */
        from = strstr(text, "': ");
        snprintf(t->text, sizeof t->text, "%s", from ? from + 3 : text);
        return;
    }
    tandem_session_info(w->session, &after);
    t->bytes = after.host_bytes + after.device_bytes - before.host_bytes - before.device_bytes;
    pthread_mutex_lock(&w->lock);
    w->items[t->number] = made;
    pthread_mutex_unlock(&w->lock);
}

static void drop(worker *w, td_task *t)
{
    item gone;

    pthread_mutex_lock(&w->lock);
    gone = w->items[t->number];
    w->items[t->number] = (item){0};
    pthread_mutex_unlock(&w->lock);
    if (gone.model)
        t->status = tandem_model_destroy(w->session, gone.model);
    else if (gone.mem)
        t->status = tandem_mem_destroy(w->session, gone.mem);
    if (t->status != TANDEM_OK) { /* a job that will not end: only a new worker helps */
        t->kind = TD_TASK_BROKEN;
        keep_text(w, t->text, sizeof t->text);
        tell(w, t);
        _exit(1);
    }
    if (gone.map)
        munmap(gone.map, gone.map_bytes);
}

static void answer(worker *w, td_task *t, int fd)
{
    item *it;

    t->text[sizeof t->text - 1] = 0;
    t->status = TANDEM_OK;
    if (t->number >= TD_MAX_NUMBERS)
        _exit(2);
    it = &w->items[t->number];
    switch ((td_task_kind)t->kind) {
    case TD_TASK_MEM:
        take_mem(w, t, fd);
        break;
    case TD_TASK_MODEL:
        take_model(w, t, fd);
        break;
    case TD_TASK_END:
        drop(w, t);
        break;
    case TD_TASK_TENSOR:
        t->status = tandem_model_tensor(w->session, it->model, t->text, &t->view, t->shape);
        if (t->status != TANDEM_OK) {
            keep_text(w, t->text, sizeof t->text);
            break;
        }
        t->bytes = t->view.offset_bytes + t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3] *
                                              (t->view.dtype == TANDEM_DTYPE_F32 ? 4 : 2);
        pthread_mutex_lock(&w->lock);
        it->mem = t->view.mem;
        pthread_mutex_unlock(&w->lock);
        break;
    case TD_TASK_INFO:
        t->info.struct_bytes = sizeof t->info;
        tandem_session_info(w->session, &t->info);
        break;
    default:
        return;
    }
    tell(w, t);
}

/* What can be had of the machine, for the broker. */
static bool begin(worker *w, uint32_t backend, uint32_t threads)
{
    static td_task t;
    const tandem_session_desc desc = {.struct_bytes = sizeof desc,
                                      .backend = backend,
                                      .log = hear,
                                      .cpu_threads = threads,
                                      .frames_in_flight = TD_DESK_SLOTS,
                                      .timing = 1,
                                      .error_text = t.text,
                                      .error_text_bytes = sizeof t.text};
    char why[TD_TEXT_BYTES] = "";
    pthread_t thread;

    t.kind = TD_TASK_HELLO;
    t.status = tandem_session_create(&desc, &w->session);
    if (t.status == TANDEM_OK)
        t.status = tandem_timeline_create(w->session,
                                          &(tandem_timeline_desc){.struct_bytes = sizeof(tandem_timeline_desc),
                                                                  .signaller = TANDEM_SIGNALLER_SESSION},
                                          &w->ends);
    if (t.status == TANDEM_OK && td_confine_worker(why, sizeof why) != TANDEM_OK)
        td_say(TD_LOG_DEBUG, "worker: %s", why);
    if (t.status == TANDEM_OK) {
        t.info.struct_bytes = sizeof t.info;
        tandem_session_info(w->session, &t.info);
        if (pthread_create(&thread, NULL, submit_main, w) || pthread_create(&thread, NULL, collect_main, w))
            t.status = td_fail(t.text, sizeof t.text, TANDEM_ERROR_NOMEM, "no thread could be started");
    }
    tell(w, &t);
    return t.status == TANDEM_OK;
}

int td_worker_main(int socket, int desk, uint32_t backend, uint32_t threads)
{
    static td_task t;
    worker *w = &the;
    sigset_t ends;

    /* The broker ends the worker, nobody else: a terminal sends its signals to all. */
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGHUP);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    prctl(PR_SET_NAME, "tandemd-worker", 0ul, 0ul, 0ul);
    td_confine_process();
    w->broker = socket;
    w->desk = mmap(NULL, TD_DESK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, desk, 0);
    close(desk);
    if (w->desk == MAP_FAILED || pthread_mutex_init(&w->lock, NULL) || pthread_cond_init(&w->more, NULL))
        return 1;
    if (!begin(w, backend, threads))
        return 1;
    for (;;) {
        int fds[2];
        const tandem_status status = td_fetch(socket, &t, sizeof t, fds);

        if (status == TANDEM_OK)
            answer(w, &t, fds[0]);
        td_fd_close(&fds[0]);
        td_fd_close(&fds[1]);
        if (status != TANDEM_OK)
            _exit(0); /* the broker is gone, or wants another worker; the kernel takes everything back at once */
    }
}
