/* Jobs of all clients: taken from their rings, held until their points come, given to the worker in a fair order.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   order   a client's jobs run in the order in which it put them; of all clients' first ones the next is chosen so:
 *           frames before what goes on in the background; of those whose client has had at most share_window more compute
 *           than the one that has had least, the earliest deadline; where there is none, who has had least
 *   share   is counted in time on the device, no more of it than the same job takes alone; who comes back from a pause
 *           begins where the others are
 *   slices  a job is given to the worker in pieces of at most SLICE_NS, where others may want to go in between; a frame's
 *           on a CPU, where they are shorter whole, only from LONG_NS on; the GPU goes from a background's stream to a
 *           frame's by itself, and on a CPU the background's piece, which may be longer than that, stands still while a
 *           frame's job is on the desk (engine_plugin/exec/gate.h)
 *   drafts  what has a deadline is written wholly or not at all: its pieces write a draft, and once all have ended, and
 *           none of them is on the desk, one more slice claims it and copies it to the output
 *   ends    a job's report is final, then its point is signalled. Signals of one timeline come in the order of its jobs
 *   awake   on a CPU, for a job that its client calls, and for the end of a brief one, the thread does not sleep at once
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine_plugin/daemon/daemon.h"
#include "kernels/commit.h"

#define TURN_NS 100000000u      /* a turn comes at the latest so long after the last one */
#define BLIND_NS 300000u        /* and so where the kernel cannot wait for many futexes */
#define LATE_DEADLINE UINT64_MAX
#define SLICE_NS 400000u      /* of 500 us: what is guessed is not always met */
#define LONG_NS 100000000u    /* on a CPU a frame's job of more than that is cut, too, */
#define LONG_SLICE_NS 20000000u
#define AHEAD_NS 2000000u     /* of a client's on a GPU: beyond two jobs no more than this */
#define BUSY_GAP_NS 300000u   /* who begins so soon after its last end has a queue */
#define BUSY_FOR_NS 5000000u  /* and is believed to have one for so long */
#define LOOK_AGAIN_NS 1000000u
#define DRAFT_IDLE_NS TD_SECOND /* to free a GPU's memory is to wait for all that it does */
enum { MOST_UNMET = 3 };

/* The end of a job. */

static void count_end(td_broker *b, td_client *c, uint32_t state)
{
    c->done += state == TANDEM_JOB_DONE;
    c->stale += state == TANDEM_JOB_STALE;
    c->cancelled += state == TANDEM_JOB_CANCELLED;
    c->failed += state == TANDEM_JOB_FAILED;
    b->jobs_done += state == TANDEM_JOB_DONE;
    b->jobs_stale += state == TANDEM_JOB_STALE;
    b->jobs_cancelled += state == TANDEM_JOB_CANCELLED;
    b->jobs_failed += state == TANDEM_JOB_FAILED;
}

static void report(td_broker *b, td_work *work, uint32_t state, tandem_status status, const td_slot *slot)
{
    td_client *c = work->client;
    td_wire_report r = {.state = state, .status = status};

    r.yours = state > TANDEM_JOB_RUNNING && work->signal && work->signal->opaque && !work->with_gpu;

    if (work->told)
        return;
    work->told = state > TANDEM_JOB_RUNNING;
    if (slot) {
        r.precision = slot->precision <= TANDEM_PRECISION_4B ? slot->precision : 0;
        r.begin_ns = c->timing ? slot->begin_ns : 0;
        r.end_ns = c->timing ? slot->end_ns : 0;
    }
    if (work->told)
        count_end(b, c, state);
    if (c->ring.area && c->state == TD_CLIENT_READY)
        td_ring_report(&c->ring, work->ticket, &r);
}

static void drop_uses(td_work *work)
{
    for (int i = 0; i < TD_MAX_VIEWS; i++) {
        if (work->mems[i])
            work->mems[i]->uses--;
        work->mems[i] = NULL;
    }
    if (work->wait)
        work->wait->uses--;
    work->wait = NULL;
    if (work->draft) {
        work->draft->uses--;
        work->client->draft_ns = td_now_ns();
    }
    work->draft = NULL;
}

static void finish(td_broker *b, td_work *work, uint32_t state, tandem_status status, const td_slot *slot)
{
    td_client *c = work->client;
    uint32_t at = 0;

    report(b, work, state, status, slot);
    if (state == TANDEM_JOB_DONE)
        c->computed_ns = td_now_ns();
    drop_uses(work);
    if (work->signal) {
        if (c->state == TD_CLIENT_READY && !work->signal->opaque)
            td_point_raise(&work->signal->point, work->signal_value);
        work->signal->uses--;
    }
    while (at < c->count && c->order[at] != work)
        at++;
    memmove(c->order + at, c->order + at + 1, (--c->count - at) * sizeof(td_work *));
    work->ticket = 0;
}

void td_queue_settle(td_broker *b, td_client *c)
{
    for (uint32_t i = 0; i < c->count;) {
        td_work *work = c->order[i];
        bool first = true;

        for (uint32_t e = 0; e < i; e++)
            first = first && (!work->signal || c->order[e]->signal != work->signal);
        if (work->given_up && work->slot < 0 && first)
            finish(b, work, work->end_state, work->end_status, NULL);
        else
            i++;
    }
}

void td_queue_give_up(td_broker *b, td_work *work, uint32_t state, tandem_status status)
{
    if (work->given_up)
        return;
    if (!work->asked) {
        work->asked = true;
        work->end_state = state;
        work->end_status = status;
    }
    if (work->slot >= 0) { /* the worker decides */
        for (int i = 0; i < TD_DESK_SLOTS; i++)
            if (b->desk_works[i] == work)
                atomic_store(&b->desk->slots[i].cancel, 1);
        td_bell_ring(&b->desk->to_worker);
        return;
    }
    work->given_up = true;
    state = work->end_state;
    status = work->end_status;
    if (state != TANDEM_JOB_CANCELLED)
        report(b, work, state, status, NULL);
    drop_uses(work);
}

/* The text of a job that fails goes to its client as an event. */
static void fail(td_broker *b, td_work *work, tandem_status status, const char *why)
{
    td_client *c = work->client;

    td_say(TD_LOG_DEBUG, "client %u: job %" PRIu64 ": %s", c->session, work->ticket, why);
    td_client_error(b, c, 0, work->ticket, status, why);
    td_queue_give_up(b, work, TANDEM_JOB_FAILED, status);
}

/* The beginning of a job. */

static tandem_status bind_mems(td_broker *b, td_client *c, td_work *work, char *why, size_t why_bytes)
{
    const td_operation_layout *layout = &work->operation->layout;
    const tandem_operands *op = &work->job.op;

    for (uint32_t i = 0; i < layout->view_count; i++) {
        const tandem_view *view = td_view_in(layout, op, i);
        const char *name = layout->views[i].name;
        uint32_t shape[4];
        td_shared *mem;
        uint64_t end;

        if (!td_view_is_there(layout, op, i))
            continue;
        mem = td_ids_find(&c->mems, view->mem);
        if (!mem || mem->closing || mem->pending)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%s.mem is 0x%" PRIx64 ", which %s", name, view->mem,
                           mem && mem->pending ? "is not made yet" : "was destroyed");
        if (mem->weights && layout->views[i].written)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%s.mem is 0x%" PRIx64 ", which belongs to a model", name,
                           view->mem);
        if (mem->status != TANDEM_OK)
            return td_fail(why, why_bytes, mem->status, "%s.mem is 0x%" PRIx64 ", which the new worker could not take", name,
                           view->mem);
        if (mem->weights && mem->weights->evicted && td_weights_load(b, mem->weights, c) != TANDEM_OK)
            return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM,
                           "%s.mem is 0x%" PRIx64 ", of a model of %" PRIu64 " bytes that made room for others, which now "
                           "have %" PRIu64 " of %" PRIu64,
                           name, view->mem, mem->weights->bytes, b->model_bytes, b->config.model_bytes);
        layout->shape(op, i, shape);
        if (!td_view_end_bytes(view, shape, &end) || end > mem->bytes)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                           "%s.offset_bytes is %" PRIu64 ", and its view goes beyond the %" PRIu64 " bytes of mem 0x%" PRIx64,
                           name, view->offset_bytes, mem->bytes, view->mem);
        work->mems[i] = mem;
        mem->uses++;
    }
    return TANDEM_OK;
}

static tandem_status bind_points(td_client *c, td_work *work, char *why, size_t why_bytes)
{
    const tandem_point *wait = &work->job.wait, *signal = &work->job.signal;
    uint64_t before = 0; /* where its signal's timeline will be without it */

    if (signal->timeline) {
        td_shared *t = td_ids_find(&c->timelines, signal->timeline);

        if (!t || t->closing || t->pending)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                           "job.signal.timeline is 0x%" PRIx64 ", which %s",
                           signal->timeline, t && t->pending ? "is not made yet" : "was destroyed");
        if (!t->by_daemon)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                           "job.signal.timeline is 0x%" PRIx64 ", which the client signals", signal->timeline);
        if (signal->value <= t->promised)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                           "job.signal.value is %" PRIu64 ", not above %" PRIu64 ", where the timeline is or will be",
                           signal->value, t->promised);
        work->signal = t;
        before = t->promised;
        work->signal_value = t->promised = signal->value;
        t->uses++;
    }
    if (work->signal && work->signal->status != TANDEM_OK)
        return td_fail(why, why_bytes, work->signal->status,
                       "job.signal.timeline is 0x%" PRIx64 ", which the new worker could not take", signal->timeline);
    if (wait->timeline) {
        td_shared *t = td_ids_find(&c->timelines, wait->timeline);

        if (!t || t->closing || t->pending)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "job.wait.timeline is 0x%" PRIx64 ", which %s",
                           wait->timeline, t && t->pending ? "is not made yet" : "was destroyed");
        if (t == work->signal && wait->value > before)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                           "job.wait.value is %" PRIu64 " of the timeline that the job itself signals; those before it signal "
                           "up to %" PRIu64,
                           wait->value, before);
        if (t->by_daemon && wait->value > t->promised)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                           "job.wait.value is %" PRIu64 ", but the daemon's timeline ends at %" PRIu64 " so far",
                           wait->value, t->promised);
        if (t->status != TANDEM_OK)
            return td_fail(why, why_bytes, t->status,
                           "job.wait.timeline is 0x%" PRIx64 ", which the new worker could not take", wait->timeline);
        work->wait = t;
        t->uses++;
    }
    return TANDEM_OK;
}

static void take_job(td_broker *b, td_client *c, const td_wire_job *m)
{
    const uint64_t now = td_now_ns();
    const uint64_t since = m->submit_ns <= now && now - m->submit_ns <= TD_SECOND ? m->submit_ns : now;
    char why[TD_TEXT_BYTES] = "";
    td_work *work = c->works;
    tandem_status status;

    while (work->ticket) /* there is one: the ring is not read else */
        work++;
    *work = (td_work){.ticket = m->ticket, .client = c, .job = m->job, .taken_ns = now,
                      .operation = td_operation_find(m->job.operation), .slot = -1, .slices = 1};
    if (m->job.deadline_ns)
        work->deadline_ns = m->job.deadline_ns < UINT64_MAX - since ? since + m->job.deadline_ns : UINT64_MAX;
    work->bound_ns = now + c->wait_bound_ns;
    if (!c->count && c->virtual_ns < b->virtual_ns[c->job_class]) /* it had nothing to do: nothing is saved up */
        c->virtual_ns = b->virtual_ns[c->job_class];
    c->order[c->count++] = work;
    c->last_ticket = m->ticket;
    if (c->called_ns)
        td_vigil_end(&c->calls, now - c->called_ns < TD_VIGIL_NS, now);
    c->called_ns = 0;
    c->submitted++;
    report(b, work, TANDEM_JOB_PENDING, TANDEM_OK, NULL);
    status = bind_points(c, work, why, sizeof why);
    if (status == TANDEM_OK)
        status = work->operation->check(&work->job.op, why, sizeof why);
    if (status == TANDEM_OK)
        status = bind_mems(b, c, work, why, sizeof why);
    if (status == TANDEM_OK && b->stopping)
        status = td_fail(why, sizeof why, TANDEM_ERROR_LOST, "the daemon stops");
    if (status != TANDEM_OK)
        fail(b, work, status, why);
    td_queue_settle(b, c);
}

static void take_cancel(td_broker *b, td_client *c, uint64_t ticket)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (c->order[i]->ticket == ticket) {
            td_queue_give_up(b, c->order[i], TANDEM_JOB_CANCELLED, TANDEM_OK);
            break;
        }
    td_queue_settle(b, c);
}

static void take_submitted(td_client *c, const td_wire_submitted *m)
{
    td_shared *t = td_ids_find(&c->timelines, m->timeline);

    if (t && t->opaque && !t->by_daemon && m->value > t->announced)
        t->announced = m->value;
}

static bool take_some(td_broker *b, td_client *c)
{
    bool some = false;

    while (c->state == TD_CLIENT_READY && c->count < TD_MAX_WORKS) {
        td_wire_message m;
        char why[TD_TEXT_BYTES] = "";
        const tandem_status status = td_ring_take(&c->ring, &c->rules, &m, why, sizeof why);

        if (status == TANDEM_ERROR_BUSY)
            break;
        some = true;
        c->rung++;
        if (status != TANDEM_OK)
            td_client_end(b, c, status, 0, why);
        else if (m.header.type == TD_WIRE_JOB)
            take_job(b, c, &m.job);
        else if (m.header.type == TD_WIRE_CANCEL)
            take_cancel(b, c, m.cancel.ticket);
        else
            take_submitted(c, &m.submitted); /* pages tell by themselves */
    }
    return some;
}

/* A client rings without having put anything: it will at once. */
static void hear_call(td_broker *b, td_client *c, uint64_t now)
{
    if (c->called_ns) /* it did not */
        td_vigil_end(&c->calls, false, now);
    c->called_ns = 0;
    if (!td_vigil_pays(&c->calls, now))
        return;
    c->called_ns = now;
    b->awake_ns = now + TD_VIGIL_NS;
}

static bool take_news(td_broker *b, td_client *c, uint64_t now)
{
    const uint32_t rung = atomic_load(&c->ring.area->to_daemon.count);
    const bool some = take_some(b, c);

    if (c->state == TD_CLIENT_READY && (int32_t)(rung - c->rung) > 0) {
        c->rung = rung;
        if (!some && b->has_worker && !b->costs.is_gpu)
            hear_call(b, c, now);
    }
    return some;
}

bool td_queue_take(td_broker *b, td_client *c)
{
    char why[TD_TEXT_BYTES];
    uint32_t left = 0;

    take_some(b, c);
    return c->state != TD_CLIENT_READY || (td_ring_count(&c->ring, &left, why, sizeof why) == TANDEM_OK && !left);
}

/* Whose turn it is. */

/* A client's first job that the worker does not have wholly, if all before it are over or there. */
static td_work *head_of(const td_client *c)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (c->order[i]->slice < c->order[i]->slices && !c->order[i]->given_up && !c->order[i]->asked)
            return c->order[i];
    return NULL;
}

/* Whether it can run now. False too if it cannot any more. */
static bool is_ready(td_broker *b, td_work *work, uint64_t now)
{
    char why[TD_TEXT_BYTES] = "";
    uint64_t value;

    for (int i = 0; i < TD_MAX_VIEWS; i++)
        if (work->mems[i] && work->mems[i]->weights) {
            if (!work->mems[i]->weights->there && work->mems[i]->status == TANDEM_OK)
                return false; /* it is being loaded again */
            work->mems[i]->weights->used_ns = now;
        }
    for (const td_errand *e = b->errands; e && work->after_errand; e = e->next)
        if (e->task.kind == TD_TASK_END && e->task.serial <= work->after_errand)
            return false; /* room is being made for it */
    if (work->ready_ns)
        return true;
    if (work->wait) {
        td_shared *wait = work->wait;
        tandem_status status = TANDEM_OK;

        if (wait->opaque) /* of the daemon's: a job before it signals, in the same lane */
            value = wait->by_daemon ? wait->promised : wait->announced;
        else if (wait->by_daemon)
            value = wait->point.highest;
        else
            status = td_point_read(&wait->point, &value, why, sizeof why);
        if (status != TANDEM_OK) {
            td_client_end(b, work->client, status, 0, why);
            return false;
        }
        if (value < work->job.wait.value)
            return false;
        if (!wait->opaque) {
            wait->uses--;
            work->wait = NULL;
        }
    }
    work->ready_ns = now;
    return true;
}

/* When a job that waits has waited long enough: no wait is without a bound. What the client signals may follow from a job
 * before it, so its time begins with the last one's end, and not `behind` one that does not wait for the client. */
static uint64_t bound_of(const td_broker *b, const td_work *work, bool behind)
{
    const uint64_t since_computed = work->client->computed_ns + work->client->wait_bound_ns;

    if (work->ready_ns)
        return b->has_worker ? UINT64_MAX : work->ready_ns + TD_WIRE_MAX_WAIT_NS;
    if (!work->wait || work->wait->by_daemon || behind) /* a job before it signals the others */
        return UINT64_MAX;
    return since_computed > work->bound_ns ? since_computed : work->bound_ns;
}

/* True if the job has ended: its deadline, or its bound. */
static bool end_if_late(td_broker *b, td_work *work, bool behind, uint64_t now, uint64_t *next_ns)
{
    const uint64_t bound = bound_of(b, work, behind);
    char why[TD_TEXT_BYTES];
    uint64_t value = 0;

    if (work->deadline_ns && now >= work->deadline_ns) {
        td_queue_give_up(b, work, TANDEM_JOB_STALE, TANDEM_OK);
        return true;
    }
    if (now >= bound && work->ready_ns) {
        fail(b, work, TANDEM_ERROR_LOST, "there was no worker for it within 60 s");
        return true;
    }
    if (now >= bound && work->wait->opaque) {
        td_fail(why, sizeof why, TANDEM_ERROR_LOST,
                "wait point {0x%" PRIx64 ", %" PRIu64 "} was not submitted within %" PRIu64 " ms; announced is %" PRIu64,
                work->job.wait.timeline, work->job.wait.value, work->client->wait_bound_ns / 1000000,
                work->wait->announced);
        fail(b, work, TANDEM_ERROR_LOST, why);
        return true;
    }
    if (now >= bound && td_point_read(&work->wait->point, &value, why, sizeof why) == TANDEM_OK &&
        value < work->job.wait.value) {
        td_fail(why, sizeof why, TANDEM_ERROR_LOST,
                "wait point {0x%" PRIx64 ", %" PRIu64 "} did not come within %" PRIu64 " ms; the counter is %" PRIu64,
                work->job.wait.timeline, work->job.wait.value, work->client->wait_bound_ns / 1000000, value);
        fail(b, work, TANDEM_ERROR_LOST, why);
        return true;
    }
    if (work->deadline_ns && work->deadline_ns < *next_ns)
        *next_ns = work->deadline_ns;
    if (bound > now && bound < *next_ns)
        *next_ns = bound;
    return false;
}

static bool end_late(td_broker *b, td_client *c, uint64_t now, uint64_t *next_ns)
{
    bool some = false, behind = false;

    for (uint32_t i = 0; i < c->count && c->state == TD_CLIENT_READY; i++) {
        td_work *work = c->order[i];

        if (work->slot < 0 && !work->given_up)
            some = end_if_late(b, work, behind, now, next_ns) || some;
        behind = behind || (!work->given_up && (work->slot >= 0 || work->ready_ns || !work->wait));
    }
    if (some)
        td_queue_settle(b, c);
    return some;
}

static uint64_t deadline_of(const td_work *work)
{
    return work->deadline_ns ? work->deadline_ns : LATE_DEADLINE;
}

/* Somebody who draws frames, maybe on the same GPU: between two slices it is left idle for a moment, and changes over to
 * the engine's own work then, which it does not as long as there is more of ours. */
static bool has_frames(const td_broker *b)
{
    bool has = false;

    for (const td_client *c = b->clients; c; c = c->next)
        has = has || (c->state == TD_CLIENT_READY && c->share != TD_WIRE_SHARE_NONE &&
                      c->job_class == TANDEM_CLASS_FRAME);
    return has;
}

/* Whether the worker takes another of a client's jobs now. */
static bool has_room(const td_broker *b, const td_client *c)
{
    const bool background = c->job_class == TANDEM_CLASS_BACKGROUND;
    const uint32_t all = b->at_desk[0] + b->at_desk[1];

    if (all >= TD_DESK_SLOTS)
        return false;
    if (background && b->at_desk[1] >= (b->costs.is_gpu && !has_frames(b) ? 2u : 1u))
        return false;
    if (!b->costs.is_gpu)
        return b->at_desk[c->job_class] < TD_DESK_DEPTH;
    return c->at_desk < TD_LANE_DEPTH && (c->at_desk < 2 || c->at_desk_ns < AHEAD_NS);
}

static bool awaits_draft(const td_work *work)
{
    const td_client *c = work->client;

    return work->deadline_ns && !work->draft && c->draft && !c->draft->there;
}

/* Who may have jobs. */
static uint32_t count_sharing(const td_broker *b)
{
    uint32_t count = 0;

    for (const td_client *c = b->clients; c; c = c->next)
        count += c->state == TD_CLIENT_READY && c->share != TD_WIRE_SHARE_NONE;
    return count;
}

static td_task_of task_of(const td_work *work)
{
    return (td_task_of){work->operation, &work->job.op, 0};
}

/* How long a piece of a job may take, where somebody may want to go in between; 0: it is not cut. */
static uint64_t slice_of(const td_broker *b, const td_work *work)
{
    if (work->client->job_class == TANDEM_CLASS_BACKGROUND)
        return SLICE_NS;
    if (count_sharing(b) < 2)
        return 0;
    if (b->costs.is_gpu)
        return SLICE_NS;
    return td_cost_guess(&b->costs, task_of(work)) > LONG_NS ? LONG_SLICE_NS : 0;
}

/* Whether the next slice of a job can go, as far as a draft has to do with it; asks the worker for one. */
static bool has_draft(td_broker *b, td_work *work)
{
    tandem_operands op = work->job.op, commit;
    td_client *c = work->client;
    uint64_t bytes, most_ns;

    if (work->draft)
        return work->slice + 1 < work->slices || !work->at_desk;
    most_ns = work->deadline_ns && !work->whole ? slice_of(b, work) : 0;
    if (!most_ns)
        return true;
    work->cuts = td_cost_cuts(&b->costs, task_of(work), most_ns, &work->slices);
    if (work->slices == 1)
        return true;
    bytes = td_align_up(td_commit_make(work->operation, 0, &op, &commit), TD_WIRE_PAGE_BYTES);
    if (!bytes) {
        work->whole = true;
        work->slices = 1;
        return true;
    }
    if (c->draft && c->draft->there && !c->draft->uses && c->draft->bytes < bytes)
        td_draft_end(b, c);
    work->whole = !c->draft && !td_draft_make(b, c, bytes);
    if (work->whole || !c->draft->there || c->draft->uses) {
        work->slices = 1;
        return work->whole;
    }
    work->draft = c->draft;
    work->draft->uses++;
    work->slices++;
    return true;
}

/* Of a class. *again: somebody waits for the share of another, who may not want it. */
static td_work *choose_of(td_broker *b, uint32_t job_class, uint64_t now, bool *again)
{
    uint64_t least = UINT64_MAX;
    td_work *best = NULL;
    bool waits = false;

    for (td_client *c = b->clients; c; c = c->next) {
        td_work *head = c->state == TD_CLIENT_READY && c->job_class == job_class ? head_of(c) : NULL;
        const bool ready = head && is_ready(b, head, now) && !awaits_draft(head);

        if (c->state != TD_CLIENT_READY || c->job_class != job_class)
            continue;
        if ((ready || (c->at_desk && c->busy && now - c->ended_ns < BUSY_FOR_NS)) && c->virtual_ns < least)
            least = c->virtual_ns;
    }
    for (td_client *c = b->clients; c; c = c->next) {
        td_work *head = c->state == TD_CLIENT_READY && c->job_class == job_class ? head_of(c) : NULL;

        if (!head || !is_ready(b, head, now) || !has_room(b, c) || !has_draft(b, head))
            continue;
        if (c->virtual_ns - least > b->config.share_window_ns) {
            waits = true;
            continue;
        }
        if (!best || deadline_of(head) < deadline_of(best) ||
            (deadline_of(head) == deadline_of(best) && c->virtual_ns < best->client->virtual_ns))
            best = head;
    }
    if (best && least > b->virtual_ns[job_class])
        b->virtual_ns[job_class] = least;
    *again = *again || (waits && !best);
    return best;
}

static td_work *choose(td_broker *b, uint64_t now, bool *again)
{
    td_work *best = choose_of(b, TANDEM_CLASS_FRAME, now, again);

    return best ? best : choose_of(b, TANDEM_CLASS_BACKGROUND, now, again);
}

/* The worker's numbers for what a job, or a part of it, names. */
static void fill(td_slot *slot, td_work *work)
{
    const td_operation *operation = work->operation;
    const bool first = !work->slice, last = work->slice + 1 == work->slices;
    tandem_operands op = work->job.op, commit;

    for (uint32_t i = 0; i < operation->layout.view_count; i++)
        if (work->mems[i])
            td_view_of(&operation->layout, &op, i)->mem =
                work->mems[i]->weights ? work->mems[i]->weights->number : work->mems[i]->number;
    slot->job = work->job;
    slot->parts = work->slices;
    slot->whole_of = operation->layout.number;
    slot->whole = op;
    slot->position = 0;
    if (work->draft)
        td_commit_make(operation, work->draft->number, &op, &commit);
    if (first)
        work->slice_at = (td_part_at){0};
    slot->job.op = op;
    if (work->draft && last) {
        slot->job.operation = TD_OPERATION_COMMIT;
        slot->job.op = commit;
    } else if (work->slices > 1) {
        slot->position = operation->part(&op, work->cuts, &work->slice_at, &slot->job.op);
    }
    slot->job.wait = first && work->wait ? (tandem_point){work->wait->number, work->job.wait.value} : (tandem_point){0};
    slot->job.signal = last && work->signal && work->signal->opaque
                           ? (tandem_point){work->signal->number, work->signal_value}
                           : (tandem_point){0};
}

static bool commits(const td_slot *slot)
{
    return slot->job.operation == TD_OPERATION_COMMIT;
}

static bool put_on_desk(td_broker *b, uint64_t now, bool *again)
{
    td_task_of part;
    uint64_t most_ns;
    td_slot *slot;
    td_work *work;
    td_client *c;
    int at = 0;

    if (!b->has_worker || !(work = choose(b, now, again)))
        return false;
    while (b->desk_works[at])
        at++;
    slot = &b->desk->slots[at];
    c = work->client;
    most_ns = work->slice || work->deadline_ns ? 0 : slice_of(b, work); /* has_draft() has cut what has a deadline */
    if (most_ns)
        work->cuts = td_cost_cuts(&b->costs, task_of(work), most_ns, &work->slices);
    fill(slot, work);
    part = (td_task_of){work->operation, &slot->job.op, slot->position};
    slot->lane = td_lane_of(b, c);
    slot->session = c->session;
    slot->sequence = ++b->sequence;
    slot->deadline_ns = work->deadline_ns;
    slot->own_bytes = td_room_in(b->config.client_bytes, c->mem_bytes);
    slot->all_bytes = td_room_in(b->config.total_bytes, b->mem_bytes);
    slot->text[0] = 0;
    slot->submitted = 0;
    slot->lacks_bytes = 0;
    work->slice++;
    work->at_desk++;
    work->slot = at;
    work->run_ns = now;
    b->desk_works[at] = work;
    b->desk_ns[at] = commits(slot)      ? 0
                     : work->slices > 1 ? td_cost_part(&b->costs, task_of(work), part)
                                        : td_cost_guess(&b->costs, part);
    slot->brief = !commits(slot) && td_cost_is_brief(&b->costs, part);
    if (!b->at_desk[c->job_class]++ && c->job_class == TANDEM_CLASS_FRAME)
        td_gate_close(&b->desk->gate, now);
    c->at_desk++;
    c->at_desk_ns += b->desk_ns[at];
    b->awake_ns = slot->brief && !b->costs.is_gpu && b->at_desk[0] + b->at_desk[1] == 1 ? now + TD_VIGIL_NS : 0;
    if (work->slice == 1)
        report(b, work, TANDEM_JOB_RUNNING, TANDEM_OK, NULL);
    atomic_store(&slot->cancel, 0);
    atomic_store(&b->desk->cpu, (uint32_t)sched_getcpu());
    atomic_store(&b->desk->rung_ns, now);
    atomic_store_explicit(&slot->state, TD_SLOT_READY, memory_order_release);
    td_bell_ring(&b->desk->to_worker);
    return true;
}

static void leave_desk(td_broker *b, int at)
{
    td_work *work = b->desk_works[at];
    td_client *c = work->client;

    b->desk_works[at] = NULL;
    if (!--b->at_desk[c->job_class] && c->job_class == TANDEM_CLASS_FRAME)
        td_gate_open(&b->desk->gate);
    c->at_desk--;
    c->at_desk_ns -= b->desk_ns[at];
    if (!--work->at_desk)
        work->slot = -1;
}

/* What a result adds to its client's numbers. */
static void account(td_broker *b, const td_work *work, const td_slot *at, const td_slot *slot, uint64_t guess)
{
    td_client *c = work->client;
    const uint64_t there_ns = slot->end_ns > slot->begin_ns ? slot->end_ns - slot->begin_ns : 0;
    const uint64_t held_ns = slot->held_ns < there_ns ? slot->held_ns : there_ns, took = there_ns - held_ns;
    const uint64_t slice_ns = b->costs.is_gpu ? took : slot->late_ns; /* what a frame may wait for */
    uint64_t cost = took;

    if (c->job_class == TANDEM_CLASS_BACKGROUND && slice_ns > b->longest_slice_ns)
        b->longest_slice_ns = slice_ns;
    if (took && b->last_client != c)
        b->last_other_ns = b->last_ns;
    if (took && slot->end_state == TANDEM_JOB_DONE && !commits(at))
        cost = td_cost_learn(&b->costs, (td_task_of){work->operation, &at->job.op, at->position}, slot->begin_ns, slot->end_ns, held_ns,
                             !b->costs.is_gpu || (b->at_desk[0] + b->at_desk[1] == c->at_desk &&
                                                  b->last_other_ns <= slot->begin_ns),
                             guess);
    if (took) {
        b->last_client = c;
        b->last_ns = slot->end_ns;
    }
    c->compute_ns += cost;
    c->virtual_ns += cost;
    b->compute_ns += cost;
    if (slot->begin_ns > work->ready_ns && work->slice == 1)
        c->wait_ns += slot->begin_ns - work->ready_ns;
    if (took) {
        c->busy = slot->begin_ns < c->ended_ns + BUSY_GAP_NS;
        c->ended_ns = slot->end_ns;
    }
    if (slot->end_state == TANDEM_JOB_DONE)
        c->strikes = c->unmet = 0;
}

/* The worker has no memory left for a job, or none that it may have: once more, without the drafts and models that are
 * idle. */
static bool try_again(td_broker *b, td_work *work, const td_slot *slot)
{
    if (slot->submitted || work->at_desk || work->with_gpu || work->asked || work->after_errand)
        return false;
    if (!td_drafts_end(b, 0) && (slot->lacks_bytes || !td_weights_evict_idle(b, NULL)))
        return false;
    work->after_errand = b->errand_serial;
    work->slice = 0;
    return true;
}

/* The worker is through with a job, or with a piece of it. */
static void end_piece(td_broker *b, td_work *work, td_slot *slot)
{
    td_client *c = work->client;

    if (work->slice == work->slices && slot->submitted && work->signal && work->signal->opaque)
        work->with_gpu = true; /* of several pieces the last one ends last */
    if (!work->began_ns)
        work->began_ns = slot->begin_ns;
    slot->begin_ns = work->began_ns;
    if (slot->end_state == TANDEM_JOB_FAILED && slot->status == TANDEM_ERROR_NOMEM) {
        if (try_again(b, work, slot))
            return;
        td_client_lacks(b, c, slot->lacks_bytes, slot->text, sizeof slot->text);
    }
    if (slot->end_state == TANDEM_JOB_FAILED)
        td_client_error(b, c, 0, work->ticket, slot->status, slot->text);
    /* While its stream waits, the driver may hold up what others share. It may come back. */
    if (slot->end_state == TANDEM_JOB_FAILED && slot->status == TANDEM_ERROR_LOST && work->wait &&
        ++c->unmet == MOST_UNMET)
        td_client_end(b, c, TANDEM_ERROR_LOST, 0, "it announced points, one after the other, that did not come");
    if (slot->end_state != TANDEM_JOB_DONE && work->slices > 1 && !work->asked) { /* no further ones */
        work->asked = true;
        work->end_state = slot->end_state;
        work->end_status = slot->status;
    }
    if (work->at_desk)
        return;
    if (work->slices > 1 && work->asked && (work->slice < work->slices || slot->end_state != TANDEM_JOB_DONE)) {
        td_queue_give_up(b, work, work->end_state, work->end_status);
        td_queue_settle(b, c);
    } else if (work->slice == work->slices) {
        finish(b, work, slot->end_state, slot->status, slot);
        td_queue_settle(b, c);
    }
}

/* What the worker says is copied, then looked at. */
static bool take_results(td_broker *b)
{
    bool some = false;

    for (int i = 0; i < TD_DESK_SLOTS && b->desk; i++) {
        td_slot *at = &b->desk->slots[i];
        td_work *work = b->desk_works[i];
        td_slot slot;

        if (!work || atomic_load_explicit(&at->state, memory_order_acquire) != TD_SLOT_ENDED)
            continue;
        slot.end_state = at->end_state;
        slot.status = at->status;
        slot.precision = at->precision;
        slot.begin_ns = at->begin_ns;
        slot.end_ns = at->end_ns;
        slot.held_ns = at->held_ns;
        slot.late_ns = at->late_ns;
        memcpy(slot.text, at->text, sizeof slot.text);
        slot.text[sizeof slot.text - 1] = 0;
        if (slot.end_state < TANDEM_JOB_DONE || slot.end_state > TANDEM_JOB_FAILED)
            slot.end_state = TANDEM_JOB_FAILED;
        if (slot.end_state != TANDEM_JOB_FAILED)
            slot.status = TANDEM_OK;
        else if (slot.status >= TANDEM_OK || slot.status < TANDEM_ERROR_BUSY)
            slot.status = TANDEM_ERROR_DEVICE;
        slot.submitted = at->submitted;
        slot.lacks_bytes = at->lacks_bytes;
        b->awake_ns = 0;
        account(b, work, at, &slot, b->desk_ns[i]);
        leave_desk(b, i);
        b->result_ns = td_now_ns();
        for (int o = 0; o < TD_DESK_SLOTS; o++)
            if (b->desk_works[o] && b->desk_works[o]->client->lane == work->client->lane)
                b->desk_works[o]->run_ns = b->result_ns;
        atomic_store_explicit(&at->state, TD_SLOT_FREE, memory_order_release);
        end_piece(b, work, &slot);
        some = true;
    }
    return some;
}

void td_queue_without_draft(td_broker *b, td_client *c)
{
    for (uint32_t i = 0; i < c->count; i++)
        c->order[i]->whole = true;
    td_draft_end(b, c);
}

/* What was in it is lost, too: nobody was told of it yet. */
static void lose_draft(td_broker *b, td_client *c)
{
    for (uint32_t i = 0; i < c->count; i++) {
        td_work *work = c->order[i];

        if (!work->draft)
            continue;
        work->draft = NULL;
        work->slice = 0;
        work->slices = 1;
    }
    td_draft_end(b, c);
}

void td_queue_lost(td_broker *b, bool by_job)
{
    uint64_t first = UINT64_MAX;
    td_work *guilty = NULL; /* who has waited longest for it */

    take_results(b);
    for (int i = 0; i < TD_DESK_SLOTS; i++)
        if (by_job && b->desk_works[i] && b->desk->slots[i].sequence < first) {
            first = b->desk->slots[i].sequence;
            guilty = b->desk_works[i];
        }
    if (guilty) {
        guilty->client->strikes++;
        guilty->client->virtual_ns += td_now_ns() - guilty->run_ns;
    }
    for (int i = 0; i < TD_DESK_SLOTS; i++) {
        td_work *work = b->desk_works[i];

        if (!work)
            continue;
        leave_desk(b, i);
        if (work->at_desk)
            continue;
        if (work != guilty && !work->asked && !(work->signal && work->signal->opaque) && !b->stopping) {
            work->slice = 0; /* the next worker computes it: nobody was told yet */
            continue;
        }
        work->asked = false;
        td_queue_give_up(b, work, TANDEM_JOB_FAILED, TANDEM_ERROR_LOST);
        td_queue_settle(b, work->client);
    }
    for (td_client *c = b->clients; c; c = c->next)
        if (c->draft)
            lose_draft(b, c);
}

/* The thread. */

typedef struct sleep_on {
    td_bell *bell;
    uint32_t seen;
} sleep_on;

static uint32_t list_bells(td_broker *b, sleep_on *on)
{
    uint32_t count = 0;

    on[count++].bell = &b->kick;
    if (b->desk)
        on[count++].bell = &b->desk->to_broker;
    for (td_client *c = b->clients; c; c = c->next) {
        const td_work *head = c->state == TD_CLIENT_READY ? head_of(c) : NULL;

        if (c->state != TD_CLIENT_READY)
            continue;
        on[count++].bell = &c->ring.area->to_daemon;
        if (head && head->wait && !head->wait->by_daemon && !head->wait->opaque)
            on[count++].bell = &head->wait->point.page->bell;
    }
    for (uint32_t i = 0; i < count; i++)
        on[i].seen = atomic_load(&on[i].bell->count);
    return count;
}

/* Looks for a ring instead of sleeping. */
static bool look_out(const sleep_on *on, uint32_t count, uint64_t now, uint64_t until_ns, bool *crowded)
{
    bool rung = false;

    *crowded = false;
    while (!rung && !*crowded && now < until_ns) {
        for (uint32_t i = 0; i < count; i++)
            rung = rung || atomic_load(&on[i].bell->count) != on[i].seen;
        *crowded = !rung && !td_vigil_pass(&now);
    }
    return rung;
}

static void sleep_until(const sleep_on *on, uint32_t count, uint64_t until_ns)
{
#ifdef SYS_futex_waitv
    static bool cannot;
    struct futex_waitv waiters[2 + 2 * TD_MAX_CLIENTS];
    const struct timespec t = {(time_t)(until_ns / TD_SECOND), (long)(until_ns % TD_SECOND)};

    for (uint32_t i = 0; i < count; i++)
        waiters[i] = (struct futex_waitv){
            .val = on[i].seen, .uaddr = (uintptr_t)&on[i].bell->count, .flags = FUTEX_32};
    if (!cannot) {
        const long result = syscall(SYS_futex_waitv, waiters, count, 0, &t, CLOCK_MONOTONIC);

        cannot = result < 0 && (errno == ENOSYS || errno == EPERM);
        if (!cannot)
            return;
        td_say(TD_LOG_WARN, "this kernel cannot wait for many futexes (before 5.16, or filtered): looking every %u us",
               BLIND_NS / 1000);
    }
#endif
    const uint64_t now = td_now_ns();

    td_bell_wait(on[0].bell, on[0].seen, until_ns > now + BLIND_NS ? BLIND_NS : until_ns > now ? until_ns - now : 0);
    (void)count;
}

/* Destroyed objects that nothing uses any more, or that something uses for too long; clients that are gone. */
static bool end_objects(td_broker *b, td_client *c, uint64_t now)
{
    bool some = false;

    for (td_shared *s = c->shared, *next; s; s = next) {
        char why[TD_TEXT_BYTES];
        const td_shared *used = s->model_mem ? s->model_mem : s;

        next = s->next;
        if (!s->closing || !s->close_serial || (used->uses && now < s->close_until_ns))
            continue;
        some = true;
        if (used->uses) {
            s->closing = false;
            if (s->model_mem)
                s->model_mem->closing = false;
            td_fail(why, sizeof why, TANDEM_ERROR_BUSY, "id is 0x%" PRIx64 ", which a job still uses after 2 s", s->id);
            td_client_error(b, c, s->close_serial, 0, TANDEM_ERROR_BUSY, why);
            continue;
        }
        td_client_done(b, c, s->close_serial, 0);
        td_shared_end(b, s);
        next = c->shared; /* it may have taken others with it */
    }
    return some;
}

static bool has_on_desk(const td_broker *b, const td_client *c)
{
    for (int i = 0; i < TD_DESK_SLOTS; i++)
        if (b->desk_works[i] && b->desk_works[i]->client == c)
            return true;
    return false;
}

/* On a GPU a job may take its turn with one of each other client's: as long as jobs end there it gets the time of all of
 * those. */
static bool hangs(const td_broker *b, const td_work *work, uint64_t now)
{
    const uint64_t since = b->result_ns > work->run_ns ? b->result_ns : work->run_ns;
    const uint32_t clients = count_sharing(b); /* 0: its own is gone, and nobody else there */

    return now - since > b->config.job_ns || now - work->run_ns > (clients ? clients : 1) * b->config.job_ns;
}

static void look_for_hangs(td_broker *b, uint64_t now)
{
    for (int i = 0; i < TD_DESK_SLOTS && b->config.job_ns && !b->killed_ns; i++) {
        char why[80];

        if (!b->desk_works[i] || !hangs(b, b->desk_works[i], now))
            continue;
        td_fail(why, sizeof why, TANDEM_ERROR_LOST, "a job does not end within %" PRIu64 " ms",
                b->config.job_ns / 1000000);
        td_worker_kill(b, why);
    }
}

static bool end_clients(td_broker *b, uint64_t now)
{
    bool some = false;

    for (td_client *c = b->clients, *next; c; c = next) {
        next = c->next;
        if (c->state == TD_CLIENT_READY)
            some = end_objects(b, c, now) || some;
        if (c->state != TD_CLIENT_GONE)
            continue;
        for (uint32_t i = 0; i < c->count && !c->swept; i++)
            td_queue_give_up(b, c->order[i], TANDEM_JOB_CANCELLED, TANDEM_OK);
        c->swept = true;
        td_queue_settle(b, c);
        if (has_on_desk(b, c)) {
            if (now - c->gone_ns > TD_SECOND && !b->killed_ns)
                td_worker_kill(b, "a job of a client that is gone does not end");
            continue;
        }
        td_client_free(b, c);
        some = true;
    }
    return some;
}

/* Before the bells are read that are slept on. */
static void begin_turn(td_broker *b)
{
    const uint64_t now = td_now_ns();

    end_clients(b, now);
    td_drafts_end(b, DRAFT_IDLE_NS);
    look_for_hangs(b, now);
    if (b->old_desk)
        munmap(b->old_desk, TD_DESK_BYTES);
    b->old_desk = NULL;
}

static bool turn(td_broker *b, uint64_t *next_ns)
{
    const uint64_t now = td_now_ns();
    bool some = take_results(b), again = false;

    for (td_client *c = b->clients, *next; c; c = next) {
        next = c->next;
        if (c->state != TD_CLIENT_READY)
            continue;
        some = take_news(b, c, now) || some;
        some = end_late(b, c, now, next_ns) || some;
    }
    while (put_on_desk(b, td_now_ns(), &again))
        some = true;
    if (again && now + LOOK_AGAIN_NS < *next_ns)
        *next_ns = now + LOOK_AGAIN_NS;
    b->turns++;
    return some;
}

bool td_queue_turn(td_broker *b, uint64_t *next_ns)
{
    begin_turn(b);
    *next_ns = td_now_ns() + TURN_NS;
    return turn(b, next_ns);
}

void *td_queue_main(void *broker)
{
    td_broker *b = broker;
    sleep_on on[2 + 2 * TD_MAX_CLIENTS];

    prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
    prctl(PR_SET_NAME, "tandemd queue", 0ul, 0ul, 0ul);
    pthread_barrier_wait(&b->begun);
    pthread_mutex_lock(&b->lock);
    while (!b->end_thread) {
        uint64_t next_ns = td_now_ns() + TURN_NS, now;
        uint32_t count;

        begin_turn(b);
        count = list_bells(b, on);
        if (turn(b, &next_ns))
            continue;
        now = td_now_ns();
        if (now < b->awake_ns && td_vigil_pays(&b->vigil, now)) {
            const uint64_t until = b->awake_ns;
            bool rung, crowded;

            pthread_mutex_unlock(&b->lock);
            rung = look_out(on, count, now, until, &crowded);
            pthread_mutex_lock(&b->lock);
            if (rung || crowded || b->at_desk[0] + b->at_desk[1]) /* a call in vain is its client's fault */
                td_vigil_end(&b->vigil, rung, td_now_ns());
            continue;
        }
        for (uint32_t i = 0; i < count; i++)
            atomic_fetch_add(&on[i].bell->waiters, 1);
        pthread_mutex_unlock(&b->lock);
        sleep_until(on, count, next_ns);
        pthread_mutex_lock(&b->lock);
        for (uint32_t i = 0; i < count; i++)
            atomic_fetch_sub(&on[i].bell->waiters, 1);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}
