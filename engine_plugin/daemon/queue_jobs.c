/* A job's begin and end in the daemon: taken from its client's ring and checked; reported, and its point signalled.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   ends    a job's report is final, then its point is signalled. Signals of one timeline come in the order of its jobs
 *   calls   a client that notifies without having put anything will put a job at once: the thread does not sleep then
 *
 * What happens in between is queue_dispatch.c's.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/daemon/log.h"
#include "engine_plugin/daemon/networks.h"
#include "engine_plugin/daemon/queue_jobs.h"
#include "engine_plugin/daemon/replies.h"
#include "engine_plugin/daemon/state.h"
#include "engine_plugin/daemon/worker_requests.h"
#include "interop/os/clock.h"

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

void td_queue_report(td_broker *b, td_work *work, uint32_t state, tandem_status status, const td_slot *slot)
{
    td_client *c = work->client;
    td_wire_report r = {.state = state, .status = status};

    r.client_signals = state > TANDEM_JOB_RUNNING && work->signal && work->signal->opaque && !work->with_gpu;

    if (slot) {
        r.precision = slot->precision <= TANDEM_PRECISION_4B ? slot->precision : 0;
        r.begin_ns = c->timing ? slot->begin_ns : 0;
        r.end_ns = c->timing ? slot->end_ns : 0;
    }
    if (state > TANDEM_JOB_RUNNING)
        count_end(b, c, state);
    if (c->ring.shared && c->state == TD_CLIENT_READY)
        td_ring_report(&c->ring, work->ticket, &r);
}

static void drop_uses(td_work *work)
{
    for (uint32_t i = 0; i < work->mem_count; i++)
        if (work->mems[i])
            work->mems[i]->uses--;
    work->mem_count = 0;
    if (work->wait)
        work->wait->uses--;
    work->wait = NULL;
    if (work->temp_output) {
        work->temp_output->uses--;
        work->client->temp_output_ns = td_now_ns();
    }
    work->temp_output = NULL;
}

static void retire(td_work *work)
{
    td_client *c = work->client;
    uint32_t at = 0;

    drop_uses(work);
    if (work->signal)
        work->signal->uses--;
    while (at < c->count && c->order[at] != work)
        at++;
    memmove(c->order + at, c->order + at + 1, (--c->count - at) * sizeof(td_work *));
    free(work->run);
    work->run = NULL;
    work->ticket = 0;
}

/* The worker decides, and says how in what becomes of the job. */
static void cancel_at_worker(td_broker *b, const td_work *work)
{
    for (int i = 0; i < TD_WORKER_SLOTS; i++)
        if (b->slot_works[i] == work)
            atomic_store(&b->worker_queue->slots[i].cancel, 1);
    td_eventcount_notify(&b->worker_queue->to_worker);
}

/* Whoever is woken by a job's point finds its report. */
void td_queue_step(td_broker *b, td_work *work, td_life_event event, const td_slot *slot)
{
    const td_life_actions a = td_life_step(&work->life, &event);
    td_client *c = work->client;

    if (a.claim)
        cancel_at_worker(b, work);
    if (a.report)
        td_queue_report(b, work, a.state, a.status, slot);
    if (a.report && a.state == TANDEM_JOB_DONE)
        c->computed_ns = td_now_ns();
    if (a.signal && work->signal && !work->signal->opaque && c->state == TD_CLIENT_READY)
        td_shared_timeline_raise(&work->signal->timeline, work->signal_value);
    if (a.drop)
        drop_uses(work);
    if (a.retire)
        retire(work);
}

void td_queue_retire_given_up(td_broker *b, td_client *c)
{
    for (uint32_t i = 0; i < c->count;) {
        td_work *work = c->order[i];
        bool first = true;

        for (uint32_t e = 0; e < i; e++)
            first = first && (!work->signal || c->order[e]->signal != work->signal);
        if (first)
            td_queue_step(b, work, (td_life_event){.kind = TD_LIFE_TURN}, NULL);
        i += work->life.stage != TD_STAGE_OVER; /* else it is no longer in the order */
    }
}

void td_queue_give_up(td_broker *b, td_work *work, uint32_t state, tandem_status status)
{
    td_queue_step(b, work,
                  (td_life_event){.kind = TD_LIFE_ASKED, .state = (tandem_job_state)state, .status = status}, NULL);
}

/* The text of a job that fails goes to its client as an event. */
void td_queue_fail(td_broker *b, td_work *work, tandem_status status, const char *why)
{
    td_client *c = work->client;

    td_say(TD_LOG_DEBUG, "client %u: job %" PRIu64 ": %s", c->session, work->ticket, why);
    td_client_error(b, c, 0, work->ticket, status, why);
    td_queue_give_up(b, work, TANDEM_JOB_FAILED, status);
}

void td_queue_fail_users(td_broker *b, td_client *c, const td_shared *shared, tandem_status status, const char *why)
{
    for (uint32_t i = 0; i < c->count; i++) {
        td_work *work = c->order[i];

        if (!td_work_uses(work, shared) || work->at_worker || td_work_is_given_up(work))
            continue;
        td_client_error(b, c, 0, work->ticket, status, why);
        td_queue_give_up(b, work, TANDEM_JOB_FAILED, status);
    }
    td_queue_retire_given_up(b, c);
}

/* The beginning of a job. */

static tandem_status bind_mems(td_broker *b, td_client *c, td_work *work, char *why, size_t why_bytes)
{
    const td_operation_layout *layout = &work->operation->layout;
    const tandem_operands *op = &work->job.op;

    work->mem_count = layout->view_count;
    for (uint32_t i = 0; i < layout->view_count; i++) {
        const tandem_view *view = td_view_in(layout, op, i);
        const char *name = layout->views[i].name;
        char text[TD_TEXT_BYTES];
        tandem_status status;
        uint32_t shape[4];
        td_shared *mem;
        uint64_t end;

        if (!td_view_is_there(layout, op, i))
            continue;
        mem = td_ids_find(&c->mems, view->mem);
        status = td_mem_is_usable(b, c, mem, layout->views[i].written, text, sizeof text);
        if (status != TANDEM_OK)
            return td_fail(why, why_bytes, status, "%s.mem is 0x%" PRIx64 ", which %s", name, view->mem, text);
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
    const char *missing;

    if (signal->timeline) {
        td_shared *t = td_ids_find(&c->timelines, signal->timeline);

        missing = td_shared_is_missing(t);
        if (missing)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "job.signal.timeline is 0x%" PRIx64 ", which %s",
                           signal->timeline, missing);
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

        missing = td_shared_is_missing(t);
        if (missing)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "job.wait.timeline is 0x%" PRIx64 ", which %s",
                           wait->timeline, missing);
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

/* A job in a place of its own, the last of its client's. */
static td_work *add_work(td_broker *b, td_client *c, uint64_t ticket, uint64_t submit_ns, const tandem_job *job)
{
    const uint64_t now = td_now_ns();
    const uint64_t since = submit_ns <= now && now - submit_ns <= TD_SECOND ? submit_ns : now;
    td_work *work = c->works;

    while (work->ticket) /* there is one: the ring is not read else */
        work++;
    *work = (td_work){.ticket = ticket, .client = c, .job = *job, .taken_ns = now,
                      .operation = td_operation_find(job->operation), .slices = 1};
    if (job->deadline_ns)
        work->deadline_ns = job->deadline_ns < UINT64_MAX - since ? since + job->deadline_ns : UINT64_MAX;
    work->bound_ns = now + c->wait_bound_ns;
    if (!c->count)
        c->virtual_ns = td_schedule_join(&b->schedule, c->job_class, c->virtual_ns);
    c->order[c->count++] = work;
    c->last_ticket = ticket;
    if (c->called_ns)
        td_spin_end(&c->calls, now - c->called_ns < TD_SPIN_NS, now);
    c->called_ns = 0;
    c->submitted++;
    td_queue_report(b, work, TANDEM_JOB_PENDING, TANDEM_OK, NULL);
    return work;
}

/* run: what it runs; NULL: it is an operation. */
static void take_job(td_broker *b, td_client *c, uint64_t ticket, uint64_t submit_ns, const tandem_job *job,
                     const td_wire_run *run)
{
    td_work *work = add_work(b, c, ticket, submit_ns, job);
    char why[TD_TEXT_BYTES] = "";
    tandem_status status = bind_points(c, work, why, sizeof why);

    if (status == TANDEM_OK && work->operation)
        status = work->operation->check(&work->job.op, why, sizeof why);
    if (status == TANDEM_OK)
        status = run ? td_networks_bind(b, c, work, run, why, sizeof why) : bind_mems(b, c, work, why, sizeof why);
    if (status == TANDEM_OK && b->stopping)
        status = td_fail(why, sizeof why, TANDEM_ERROR_LOST, "the daemon stops");
    if (status != TANDEM_OK)
        td_queue_fail(b, work, status, why);
    td_queue_retire_given_up(b, c);
}

static void take_run(td_broker *b, td_client *c, const td_wire_run *m)
{
    const tandem_job job = {.struct_bytes = sizeof job,
                            .operation = TANDEM_OPERATION_RUN,
                            .wait = m->wait,
                            .signal = m->signal,
                            .deadline_ns = m->deadline_ns};

    take_job(b, c, m->ticket, m->submit_ns, &job, m);
}

static void take_cancel(td_broker *b, td_client *c, uint64_t ticket)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (c->order[i]->ticket == ticket) {
            td_queue_give_up(b, c->order[i], TANDEM_JOB_CANCELLED, TANDEM_OK);
            break;
        }
    td_queue_retire_given_up(b, c);
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
        c->notified++;
        if (status != TANDEM_OK)
            td_client_end(b, c, status, 0, why);
        else if (m.header.type == TD_WIRE_JOB)
            take_job(b, c, m.job.ticket, m.job.submit_ns, &m.job.job, NULL);
        else if (m.header.type == TD_WIRE_RUN)
            take_run(b, c, &m.run);
        else if (m.header.type == TD_WIRE_UNIFORMS && !td_networks_take_uniforms(c, &m.uniforms))
            td_client_end(b, c, TANDEM_ERROR_NOMEM, 0, "no host memory for the uniforms of a run");
        else if (m.header.type == TD_WIRE_UNIFORMS)
            continue;
        else if (m.header.type == TD_WIRE_CANCEL)
            take_cancel(b, c, m.cancel.ticket);
        else
            take_submitted(c, &m.submitted); /* shared timelines tell by themselves */
    }
    return some;
}

/* A client notifies without having put anything: it will at once. */
static void hear_call(td_broker *b, td_client *c, uint64_t now)
{
    if (c->called_ns) /* it did not */
        td_spin_end(&c->calls, false, now);
    c->called_ns = 0;
    if (!td_spin_pays(&c->calls, now))
        return;
    c->called_ns = now;
    b->awake_ns = now + TD_SPIN_NS;
}

bool td_queue_take_news(td_broker *b, td_client *c, uint64_t now)
{
    const uint32_t notified = atomic_load(&c->ring.shared->to_daemon.count);
    const bool some = take_some(b, c);

    if (c->state == TD_CLIENT_READY && (int32_t)(notified - c->notified) > 0) {
        c->notified = notified;
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
