/* Jobs of all clients: held until their points come, given to the worker as schedule.h says, and what comes back from it.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   output  what has a deadline is written wholly or not at all: its pieces write a temporary output, and once all have
 *           ended, and none of them is in the worker's queue, one more slice claims it and copies it to the output
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <string.h>

#include "engine_plugin/daemon/networks.h"
#include "engine_plugin/daemon/queue_dispatch.h"
#include "engine_plugin/daemon/queue_jobs.h"
#include "engine_plugin/daemon/quotas.h"
#include "engine_plugin/daemon/replies.h"
#include "engine_plugin/daemon/state.h"
#include "engine_plugin/daemon/worker_requests.h"
#include "interop/os/clock.h"
#include "interop/os/cpu.h"
#include "kernels/commit.h"

enum { MOST_MISSED_WAITS = 3 };

/* A client's first job that the worker does not have wholly, if all before it are over or there. */
td_work *td_queue_head(const td_client *c)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (c->order[i]->slice < c->order[i]->slices && td_work_is_wanted(c->order[i]))
            return c->order[i];
    return NULL;
}

/* Whether it can run now. False too if it cannot any more. */
static bool is_ready(td_broker *b, td_work *work, uint64_t now)
{
    char why[TD_TEXT_BYTES] = "";
    uint64_t value;

    for (uint32_t i = 0; i < work->mem_count; i++) {
        if (work->mems[i] && work->mems[i]->copying)
            return false;
        if (work->mems[i] && work->mems[i]->cached) {
            if (!work->mems[i]->cached->loaded && work->mems[i]->status == TANDEM_OK)
                return false; /* it is being loaded again */
            work->mems[i]->cached->used_ns = now;
        }
    }
    for (const td_worker_request *e = b->worker_requests; e && work->after_request; e = e->next)
        if ((e->message.kind == TD_WORKER_END || e->message.kind == TD_WORKER_FORGET) &&
            e->message.serial <= work->after_request)
            return false; /* room is being made for it */
    if (work->ready_ns)
        return true;
    if (work->wait) {
        td_shared *wait = work->wait;
        tandem_status status = TANDEM_OK;

        if (wait->opaque) /* of the daemon's: a job before it signals, in the same session */
            value = wait->by_daemon ? wait->promised : wait->announced;
        else if (wait->by_daemon)
            value = wait->timeline.highest;
        else
            status = td_shared_timeline_read(&wait->timeline, &value, why, sizeof why);
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

/* Whether its point has not come by now; else why it is given up. */
static bool lacks_point(const td_work *work, char *why, size_t why_bytes)
{
    td_shared *wait = work->wait;
    const uint64_t ms = work->client->wait_bound_ns / 1000000;
    uint64_t value = 0;
    char ignored[TD_TEXT_BYTES];

    if (wait->opaque) {
        td_fail(why, why_bytes, TANDEM_ERROR_LOST,
                "wait point {0x%" PRIx64 ", %" PRIu64 "} was not submitted within %" PRIu64 " ms; announced is %" PRIu64,
                work->job.wait.timeline, work->job.wait.value, ms, wait->announced);
        return true;
    }
    if (td_shared_timeline_read(&wait->timeline, &value, ignored, sizeof ignored) != TANDEM_OK ||
        value >= work->job.wait.value)
        return false;
    td_fail(why, why_bytes, TANDEM_ERROR_LOST,
            "wait point {0x%" PRIx64 ", %" PRIu64 "} did not come within %" PRIu64 " ms; the counter is %" PRIu64,
            work->job.wait.timeline, work->job.wait.value, ms, value);
    return true;
}

/* True if the job has ended: its deadline, or its bound. What the client signals may follow from a job before it, so its time
 * begins with the last one's end, and not `behind` one that does not wait for the client. */
static bool end_if_late(td_broker *b, td_work *work, bool behind, uint64_t now, uint64_t *next_ns)
{
    const td_waiting waiting = {
        .deadline_ns = work->deadline_ns,
        .ready_ns = work->ready_ns,
        .on_client = work->wait && !work->wait->by_daemon && !behind, /* a job before it signals the others */
        .bound_ns = work->bound_ns,
        .computed_ns = work->client->computed_ns,
        .wait_bound_ns = work->client->wait_bound_ns,
        .has_worker = b->has_worker,
    };
    char why[TD_TEXT_BYTES];

    switch (td_schedule_in_vain(&waiting, now, next_ns)) {
    case TD_VAIN_DEADLINE: td_queue_give_up(b, work, TANDEM_JOB_STALE, TANDEM_OK); return true;
    case TD_VAIN_WORKER: td_queue_fail(b, work, TANDEM_ERROR_LOST, "there was no worker for it within 60 s"); return true;
    case TD_VAIN_POINT:
        if (!lacks_point(work, why, sizeof why))
            return false;
        td_queue_fail(b, work, TANDEM_ERROR_LOST, why);
        return true;
    case TD_VAIN_NOT: break;
    }
    return false;
}

bool td_queue_end_late(td_broker *b, td_client *c, uint64_t now, uint64_t *next_ns)
{
    bool some = false, behind = false;

    for (uint32_t i = 0; i < c->count && c->state == TD_CLIENT_READY; i++) {
        td_work *work = c->order[i];

        if (!work->at_worker && !td_work_is_given_up(work))
            some = end_if_late(b, work, behind, now, next_ns) || some;
        behind = behind || (!td_work_is_given_up(work) && (work->at_worker || work->ready_ns || !work->wait));
    }
    if (some)
        td_queue_retire_given_up(b, c);
    return some;
}

/* Somebody who draws frames, maybe on the same GPU. */
static bool has_frames(const td_broker *b)
{
    bool has = false;

    for (const td_client *c = b->clients; c; c = c->next)
        has = has || (c->state == TD_CLIENT_READY && c->share != TD_WIRE_SHARE_NONE &&
                      c->job_class == TANDEM_CLASS_FRAME);
    return has;
}

static bool awaits_temp_output(const td_work *work)
{
    const td_client *c = work->client;

    return work->deadline_ns && !work->temp_output && c->temp_output && !c->temp_output->imported;
}

/* Who may have jobs. */
uint32_t td_queue_sharing(const td_broker *b)
{
    uint32_t count = 0;

    for (const td_client *c = b->clients; c; c = c->next)
        count += c->state == TD_CLIENT_READY && c->share != TD_WIRE_SHARE_NONE;
    return count;
}

static td_workload workload_of(const td_work *work)
{
    return work->run ? work->workload : (td_workload){.operation = work->operation, .op = &work->job.op};
}

/* Of what the worker has of it, in one go. */
static td_workload part_of(const td_work *work, const td_slot *slot)
{
    return work->run ? work->workload
                     : (td_workload){.operation = work->operation, .op = &slot->job.op, .position = slot->position};
}

static uint64_t slice_of(const td_broker *b, const td_work *work)
{
    return td_schedule_slice_ns(&b->costs, workload_of(work), work->client->job_class, td_queue_sharing(b));
}

/* There is no room for its temporary output. Where nobody else is there it is not cut then; else others would wait for all of it,
 * and it is refused. */
static bool does_without(td_broker *b, td_work *work, uint64_t bytes, bool *again)
{
    char why[TD_TEXT_BYTES] = "";

    work->slices = 1;
    work->whole = td_queue_sharing(b) < 2;
    if (work->whole)
        return true;
    td_client_lacks(b, work->client, "temporary output of the job", bytes, why, sizeof why);
    td_queue_fail(b, work, TANDEM_ERROR_NOMEM, why);
    td_queue_retire_given_up(b, work->client);
    *again = true;
    return false;
}

/* What is idle makes room. False: there is none. */
static bool ask_temp_output(td_broker *b, td_work *work, uint64_t bytes)
{
    td_client *c = work->client;

    if (work->lacks_memory)
        return false;
    if (!td_client_fits(b, c, bytes))
        td_temp_outputs_end(b, 0);
    c->temp_output_for = work->ticket;
    if (td_temp_output_make(b, c, bytes))
        return true;
    if (c->at_worker) /* its jobs have scratch, for as long */
        return true;
    if (work->after_request || !td_worker_scratch_forget(b, c))
        return false;
    work->after_request = b->request_serial;
    td_worker_requests_send(b);
    return true;
}

/* Whether the next slice of a job can go, as far as a temporary output has to do with it; asks the worker for one. */
static bool has_temp_output(td_broker *b, td_work *work, bool *again)
{
    tandem_operands op = work->job.op, commit;
    td_client *c = work->client;
    uint64_t bytes, most_ns;

    if (work->temp_output)
        return work->slice + 1 < work->slices || !work->at_worker;
    most_ns = work->deadline_ns && !work->whole ? slice_of(b, work) : 0;
    if (!most_ns)
        return true;
    work->cuts = td_cost_cuts(&b->costs, workload_of(work), most_ns, &work->slices);
    if (work->slices == 1)
        return true;
    bytes = td_align_up(td_commit_make(work->operation, 0, &op, &commit), TD_WIRE_PAGE_BYTES);
    if (!bytes) {
        work->whole = true;
        work->slices = 1;
        return true;
    }
    if (c->temp_output && c->temp_output->imported && !c->temp_output->uses && c->temp_output->bytes < bytes)
        td_temp_output_end(b, c);
    if (!c->temp_output && !ask_temp_output(b, work, bytes))
        return does_without(b, work, bytes, again);
    if (!c->temp_output || !c->temp_output->imported || c->temp_output->uses) {
        work->slices = 1;
        return false;
    }
    work->temp_output = c->temp_output;
    work->temp_output->uses++;
    work->slices++;
    return true;
}

/* The clients that have a turn, and the first job of each, or NULL. */
static void list_turns(td_broker *b, uint64_t now, td_turns *to, td_work *heads[TD_MAX_CLIENTS])
{
    to->before = b->schedule;
    to->is_gpu = b->costs.is_gpu;
    to->has_frames = has_frames(b);
    to->share_window_ns = b->config.share_window_ns;
    memcpy(to->at_worker, b->at_worker, sizeof to->at_worker);
    to->count = 0;
    for (td_client *c = b->clients; c && to->count < TD_MAX_CLIENTS; c = c->next) {
        td_work *head = c->state == TD_CLIENT_READY ? td_queue_head(c) : NULL;
        const bool ready = head && is_ready(b, head, now);

        if (c->state != TD_CLIENT_READY)
            continue;
        heads[to->count] = head;
        to->turns[to->count++] = (td_turn){.job_class = c->job_class,
                                           .ready = ready,
                                           .awaits_output = ready && awaits_temp_output(head),
                                           .prepared = ready && head->deadline_ns ? TD_NOT_ASKED : TD_PREPARED,
                                           .deadline_ns = ready ? head->deadline_ns : 0,
                                           .virtual_ns = c->virtual_ns,
                                           .at_worker = c->at_worker,
                                           .at_worker_ns = c->at_worker_ns,
                                           .ended_ns = c->ended_ns,
                                           .busy = c->busy};
    }
}

/* The job of which a piece goes to the worker now, or NULL. */
static td_work *choose(td_broker *b, uint64_t now, bool *again)
{
    td_work *heads[TD_MAX_CLIENTS];
    td_decision decision;
    td_turns turns;

    list_turns(b, now, &turns, heads);
    while ((decision = td_schedule_decide(&turns, now)).kind == TD_DECIDE_PREPARE)
        turns.turns[decision.turn].prepared =
            has_temp_output(b, heads[decision.turn], again) ? TD_PREPARED : TD_UNPREPARED;
    b->schedule = decision.after;
    *again = *again || decision.again;
    return decision.kind == TD_DECIDE_RUN ? heads[decision.turn] : NULL;
}

static void fill_operation(td_slot *slot, td_work *work)
{
    const td_operation *operation = work->operation;
    const bool first = !work->slice, last = work->slice + 1 == work->slices;
    tandem_operands op = work->job.op, commit;

    for (uint32_t i = 0; i < operation->layout.view_count; i++)
        if (work->mems[i])
            td_view_of(&operation->layout, &op, i)->mem =
                work->mems[i]->cached ? work->mems[i]->cached->number : work->mems[i]->number;
    slot->whole_of = operation->layout.number;
    slot->whole = op;
    if (work->temp_output)
        td_commit_make(operation, work->temp_output->number, &op, &commit);
    if (first)
        work->slice_at = (td_part_at){0};
    slot->job.op = op;
    if (work->temp_output && last) {
        slot->job.operation = TD_OPERATION_COMMIT;
        slot->job.op = commit;
    } else if (work->slices > 1) {
        slot->position = operation->part(&op, work->cuts, &work->slice_at, &slot->job.op);
    }
}

/* The worker's numbers for what a job, or a part of it, names. */
static void fill(td_slot *slot, td_run *run, td_work *work)
{
    const bool first = !work->slice, last = work->slice + 1 == work->slices;

    slot->job = work->job;
    slot->parts = work->slices;
    slot->position = 0;
    if (work->run)
        td_networks_fill(work, run);
    else
        fill_operation(slot, work);
    slot->job.wait = first && work->wait ? (tandem_point){work->wait->number, work->job.wait.value} : (tandem_point){0};
    slot->job.signal = last && work->signal && work->signal->opaque
                           ? (tandem_point){work->signal->number, work->signal_value}
                           : (tandem_point){0};
}

static bool is_commit(const td_slot *slot)
{
    return slot->job.operation == TD_OPERATION_COMMIT;
}

bool td_queue_dispatch(td_broker *b, uint64_t now, bool *again)
{
    td_workload part;
    uint64_t most_ns;
    td_slot *slot;
    td_work *work;
    td_client *c;
    int at = 0;

    if (!b->has_worker || !(work = choose(b, now, again)))
        return false;
    while (b->slot_works[at])
        at++;
    slot = &b->worker_queue->slots[at];
    c = work->client;
    most_ns = work->slice || work->deadline_ns ? 0 : slice_of(b, work); /* has_temp_output() has cut what has a deadline */
    if (most_ns)
        work->cuts = td_cost_cuts(&b->costs, workload_of(work), most_ns, &work->slices);
    fill(slot, &b->worker_queue->runs[at], work);
    part = part_of(work, slot);
    slot->worker_session = td_worker_session_of(b, c);
    slot->session = c->session;
    slot->sequence = ++b->sequence;
    slot->deadline_ns = work->deadline_ns;
    slot->own_bytes = td_room_in(b->config.client_bytes, c->mem_bytes);
    slot->all_bytes = td_room_in(b->config.total_bytes, b->mem_bytes);
    slot->text[0] = 0;
    slot->submitted = 0;
    slot->lacks_bytes = 0;
    work->slice++;
    work->at_worker++;
    td_queue_step(b, work, (td_life_event){.kind = TD_LIFE_BEGUN}, NULL);
    work->run_ns = now;
    b->slot_works[at] = work;
    b->slot_ns[at] = is_commit(slot)    ? 0
                     : work->slices > 1 ? td_cost_part(&b->costs, workload_of(work), part)
                                        : td_cost_guess(&b->costs, part);
    slot->brief = !is_commit(slot) && td_cost_is_brief(&b->costs, part);
    if (!b->at_worker[c->job_class]++ && c->job_class == TANDEM_CLASS_FRAME)
        td_preempt_raise(&b->worker_queue->preempt, now);
    c->at_worker++;
    c->at_worker_ns += b->slot_ns[at];
    b->awake_ns = slot->brief && !b->costs.is_gpu && b->at_worker[0] + b->at_worker[1] == 1 ? now + TD_SPIN_NS : 0;
    if (work->slice == 1)
        td_queue_report(b, work, TANDEM_JOB_RUNNING, TANDEM_OK, NULL);
    atomic_store(&slot->cancel, 0);
    atomic_store(&b->worker_queue->cpu, (uint32_t)td_thread_cpu());
    atomic_store(&b->worker_queue->notified_ns, now);
    atomic_store_explicit(&slot->state, TD_SLOT_READY, memory_order_release);
    td_eventcount_notify(&b->worker_queue->to_worker);
    return true;
}

static void leave_worker(td_broker *b, int at)
{
    td_work *work = b->slot_works[at];
    td_client *c = work->client;

    b->slot_works[at] = NULL;
    if (!--b->at_worker[c->job_class] && c->job_class == TANDEM_CLASS_FRAME)
        td_preempt_clear(&b->worker_queue->preempt);
    c->at_worker--;
    c->at_worker_ns -= b->slot_ns[at];
    work->at_worker--;
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
    if (took && slot->end_state == TANDEM_JOB_DONE && !is_commit(at))
        cost = td_cost_learn(&b->costs, part_of(work, at), slot->begin_ns, slot->end_ns, held_ns,
                             !b->costs.is_gpu || (b->at_worker[0] + b->at_worker[1] == c->at_worker &&
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
        c->busy = td_schedule_is_busy(c->ended_ns, slot->begin_ns);
        c->ended_ns = slot->end_ns;
    }
    if (slot->end_state == TANDEM_JOB_DONE)
        c->crash_count = c->missed_waits = 0;
}

/* The worker has no memory left for a job, or none that it may have: once more, without the temporary outputs and models
 * that are idle. */
static bool try_again(td_broker *b, td_work *work, const td_slot *slot)
{
    if (slot->submitted || work->at_worker || work->with_gpu || !td_work_is_wanted(work) || work->after_request)
        return false;
    if (!td_temp_outputs_end(b, 0) && (slot->lacks_bytes || !td_model_cache_evict_idle(b, NULL)))
        return false;
    work->after_request = b->request_serial;
    work->slice = 0;
    return true;
}

/* The worker is through with a job, or with a piece of it. */
static void end_piece(td_broker *b, td_work *work, td_slot *slot)
{
    td_life_event ended = {TD_LIFE_GAVE_UP, .state = (tandem_job_state)slot->end_state, .status = slot->status};
    td_client *c = work->client;

    if (work->slice == work->slices && slot->submitted && work->signal && work->signal->opaque)
        work->with_gpu = true; /* of several pieces the last one ends last */
    if (!work->began_ns)
        work->began_ns = slot->begin_ns;
    slot->begin_ns = work->began_ns;
    if (slot->end_state == TANDEM_JOB_FAILED && slot->status == TANDEM_ERROR_NOMEM) {
        if (try_again(b, work, slot)) {
            td_queue_step(b, work, (td_life_event){.kind = TD_LIFE_RETURNED}, NULL);
            return;
        }
        td_client_lacks(b, c, "scratch of the job", slot->lacks_bytes, slot->text, sizeof slot->text);
    }
    if (slot->end_state == TANDEM_JOB_FAILED)
        td_client_error(b, c, 0, work->ticket, slot->status, slot->text);
    /* While its stream waits, the driver may hold up what others share. It may come back. */
    if (slot->end_state == TANDEM_JOB_FAILED && slot->status == TANDEM_ERROR_LOST && work->wait &&
        ++c->missed_waits == MOST_MISSED_WAITS)
        td_client_end(b, c, TANDEM_ERROR_LOST, 0, "it announced points, one after the other, that did not come");
    if (work->slices > 1 && slot->end_state != TANDEM_JOB_DONE) /* no further ones, however others end */
        td_queue_step(b, work, ended, NULL);
    if (work->at_worker)
        return;
    ended.kind = work->slice == work->slices && !td_work_is_given_up(work) ? TD_LIFE_THROUGH : TD_LIFE_RETURNED;
    td_queue_step(b, work, ended, slot);
    td_queue_retire_given_up(b, c);
}

/* What the worker says is copied, then looked at. */
bool td_queue_take_results(td_broker *b)
{
    bool some = false;

    for (int i = 0; i < TD_WORKER_SLOTS && b->worker_queue; i++) {
        td_slot *at = &b->worker_queue->slots[i];
        td_work *work = b->slot_works[i];
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
        account(b, work, at, &slot, b->slot_ns[i]);
        leave_worker(b, i);
        b->result_ns = td_now_ns();
        for (int o = 0; o < TD_WORKER_SLOTS; o++)
            if (b->slot_works[o] && b->slot_works[o]->client->worker_session == work->client->worker_session)
                b->slot_works[o]->run_ns = b->result_ns;
        atomic_store_explicit(&at->state, TD_SLOT_FREE, memory_order_release);
        end_piece(b, work, &slot);
        some = true;
    }
    return some;
}

void td_queue_without_temp_output(td_broker *b, td_client *c)
{
    for (uint32_t i = 0; i < c->count; i++)
        c->order[i]->lacks_memory = c->order[i]->lacks_memory || c->order[i]->ticket == c->temp_output_for;
    td_temp_output_end(b, c);
}

/* What was in it is lost, too: nobody was told of it yet. */
static void lose_temp_output(td_broker *b, td_client *c)
{
    for (uint32_t i = 0; i < c->count; i++) {
        td_work *work = c->order[i];

        if (!work->temp_output)
            continue;
        work->temp_output = NULL;
        work->slice = 0;
        work->slices = 1;
    }
    td_temp_output_end(b, c);
}

void td_queue_lost(td_broker *b, bool by_job)
{
    const td_life_event lost = {.kind = TD_LIFE_REPORT, .state = TANDEM_JOB_FAILED, .status = TANDEM_ERROR_LOST};
    uint64_t first = UINT64_MAX;
    td_work *guilty = NULL; /* who has waited longest for it */

    td_queue_take_results(b);
    for (int i = 0; i < TD_WORKER_SLOTS; i++)
        if (by_job && b->slot_works[i] && b->worker_queue->slots[i].sequence < first) {
            first = b->worker_queue->slots[i].sequence;
            guilty = b->slot_works[i];
        }
    if (guilty) {
        guilty->client->crash_count++;
        guilty->client->virtual_ns += td_now_ns() - guilty->run_ns;
    }
    for (int i = 0; i < TD_WORKER_SLOTS; i++) {
        td_work *work = b->slot_works[i];
        bool again;

        if (!work)
            continue;
        leave_worker(b, i);
        if (work->at_worker)
            continue;
        again = work != guilty && td_work_is_wanted(work) && !(work->signal && work->signal->opaque) && !b->stopping &&
                !work->run; /* whose instance is lost */
        if (!again)
            td_queue_step(b, work, lost, NULL); /* whatever it was asked to end in */
        td_queue_step(b, work, (td_life_event){.kind = TD_LIFE_RETURNED}, NULL);
        if (again) {
            work->slice = 0; /* the next worker computes it: nobody was told yet */
            continue;
        }
        td_queue_give_up(b, work, TANDEM_JOB_FAILED, TANDEM_ERROR_LOST);
        td_queue_retire_given_up(b, work->client);
    }
    for (td_client *c = b->clients; c; c = c->next)
        if (c->temp_output)
            lose_temp_output(b, c);
}
