/* A job's way to tandemd and back, and the worker that sees to it.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   timeline   the daemon's GPU shares what this device's Vulkan has exported: jobs go into the daemon's ring as they
 *              are submitted, wait and signal on the GPU, and no thread of ours is on their way. A point that the GPU
 *              owes is signalled from here once the daemon, or its worker, is gone
 *   else       the session's worker waits for a job's point, puts the job into the ring without it, and signals from
 *              here once its report is there. So a daemon that dies owes nobody a signal
 * In both, jobs are sent ahead of those that run, and the worker ends them as their reports come. But where the host
 * signals a caller that waits does all of this itself: two threads less have to be woken.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine_plugin/client/remote.h"

#define TEXT_NS 200000000u         /* how much later than a report its text may come */
#define SIGNAL_NS 100000000u       /* and the GPU's signal of a job that is done; else there is none */
#define RELEASE_NS ((uint64_t)1000000000) /* after so long a session that ends releases what its jobs wait for */
#define HELD_LOOK_NS 50000u        /* how often a value is looked at that was not announced, */
#define HELD_REST_NS 500000u       /* and where others were */
#define REACHED_LOOK_NS 20000u     /* how often a signal is looked at that is about to come */

/* Of mems whose memory is not what is shared: what is read goes there whole, of what is written only the rows come back. */
static void copy_view(const td_job *job, uint32_t view, bool in)
{
    const td_mem *mem = job->mems[view];
    const td_extent *e = &job->extents[view];
    const uint64_t offset = job->views[view] - mem->address;
    char *host = (char *)mem->host + offset, *shared = (char *)mem->shared.map + offset;
    const uint64_t n[3] = {e->dimensions > 0 ? e->count[0] : 1, e->dimensions > 1 ? e->count[1] : 1,
                           e->dimensions > 2 ? e->count[2] : 1};

    if (in) {
        memcpy(shared, host, e->bytes);
        return;
    }
    for (uint64_t i = 0; i < n[2]; i++)
        for (uint64_t j = 0; j < n[1]; j++)
            for (uint64_t k = 0; k < n[0]; k++) {
                const uint64_t at = i * e->stride[2] + j * e->stride[1] + k * e->stride[0];

                memcpy(host + at, shared + at, e->row_bytes);
            }
}

/* Called and left with the lock held. */
static void copy_bounced(tandem_session *s, const td_job *job, bool in)
{
    pthread_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < job->view_count; i++)
        if (job->mems[i] && job->mems[i]->shared.bounce && job->written[i] != in)
            copy_view(job, i, in);
    pthread_mutex_lock(&s->lock);
}

static bool has_bounced(const td_job *job, bool in)
{
    bool has = false;

    for (uint32_t i = 0; i < job->view_count; i++)
        has = has || (job->mems[i] && job->mems[i]->shared.bounce && job->written[i] != in);
    return has;
}

/* An operation in the daemon's ids; where the host signals, its points are this side's. */
static tandem_status describe_operation(tandem_session *s, td_job *job, td_wire_message *m, char *why)
{
    td_remote *r = s->remote;
    const td_operation_layout *layout = &job->operation->layout;
    tandem_operands *op = &m->job.job.op;
    tandem_status status = TANDEM_OK;
    td_remote_heading heading;

    *m = td_wire_new(TD_WIRE_JOB, 0);
    m->job.job.struct_bytes = sizeof m->job.job;
    m->job.job.operation = layout->number;
    memcpy(op, &job->remote.op, layout->bytes);
    for (uint32_t i = 0; i < layout->view_count && status == TANDEM_OK; i++)
        if (job->mems[i])
            status = td_remote_name_mem_locked(s, job, i, &td_view_of(layout, op, i)->mem, why);
        else
            *td_view_of(layout, op, i) = (tandem_view){0};
    if (status == TANDEM_OK)
        status = td_remote_head_locked(s, job, &heading, why);
    if (status != TANDEM_OK)
        return status;
    m->job.ticket = heading.ticket;
    m->job.submit_ns = heading.submit_ns;
    m->job.job.deadline_ns = heading.deadline_ns;
    m->job.job.wait = heading.wait;
    m->job.job.signal = heading.signal;
    status = td_wire_takes(&r->rules, layout, op, why, TD_WHY_BYTES); /* tandemd may be another since it was submitted */
    if (status == TANDEM_OK)
        status = td_wire_cut(m, r->rules.sizes.job_bytes, why, TD_WHY_BYTES);
    if (status != TANDEM_OK)
        return status;
    return td_wire_check(&r->rules, TD_WIRE_RING, m, m->header.bytes, 0, why, TD_WHY_BYTES) == TANDEM_OK
               ? TANDEM_OK
               : TANDEM_ERROR_ARG;
}

static tandem_status describe(tandem_session *s, td_job *job, td_wire_message *m, char *why)
{
    return job->operation ? describe_operation(s, job, m, why) : td_remote_describe_run_locked(s, job, &m->run, why);
}

static tandem_status put_job(tandem_session *s, const td_job *job, const td_wire_message *m, char *why)
{
    return job->operation ? td_ring_put(&s->remote->ring, m, why, TD_WHY_BYTES)
                          : td_remote_put_run_locked(s, job, &m->run, why);
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
        if (!td_job_has_begun(s->order[i]) && !td_job_is_given_up(s->order[i]))
            return s->order[i];
    return NULL;
}

/* Whether a job goes as soon as a value is there that was announced. */
static bool is_expected(const td_job *job)
{
    return job && !job->life.busy && job->wait && job->wait->semaphore && job->wait->submitted >= job->wait_value &&
           !has_bounced(job, true);
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
    pays = td_spin_pays(&r->values, job->remote.expected_ns);
    if (pays)
        td_eventcount_notify(&r->ring.shared->to_daemon);
    if (!pays || !r->led) /* else who waits will be here as soon */
        td_remote_wake_locked(s);
}

static uint64_t watch_until(const td_spin_budget *budget, uint64_t since_ns, uint64_t now)
{
    return td_spin_pays(budget, now) && now < since_ns + TD_SPIN_NS ? since_ns + TD_SPIN_NS : 0;
}

static void announce_submitted_locked(tandem_session *s, td_timeline *timeline)
{
    td_remote *r = s->remote;
    td_remote_timeline *remote = &timeline->remote;
    td_wire_message m = td_wire_new(TD_WIRE_SUBMITTED, 0);
    char why[TD_WHY_BYTES];

    if (!td_gpu_signals(s))
        call_locked(s);
    if (!r->up || !remote->id || remote->connection != r->connection || timeline->submitted <= remote->announced)
        return;
    m.submitted.timeline = remote->id;
    m.submitted.value = timeline->submitted;
    if (td_ring_put(&r->ring, &m, why, sizeof why) == TANDEM_OK)
        remote->announced = timeline->submitted; /* else the worker tries again */
}

void td_remote_announce_locked(tandem_session *s, td_timeline *timeline, uint64_t value)
{
    timeline->submitted = value > timeline->submitted ? value : timeline->submitted;
    announce_submitted_locked(s, timeline);
}

/* --- A job's end --- */

static void answer(td_job *job, uint32_t state, tandem_status status, bool client_signals, const char *why)
{
    td_remote_job *remote = &job->remote;

    remote->answered = true;
    remote->answered_ns = td_now_ns();
    remote->state = state;
    remote->status = status;
    remote->client_signals = client_signals;
    td_text(remote->why, sizeof remote->why, "%s", why);
}

/* There will be no report. */
static void answer_lost(tandem_session *s, td_job *job)
{
    char why[TD_WHY_BYTES];

    td_remote_gone(s->remote, why);
    answer(job, TANDEM_JOB_FAILED, TANDEM_ERROR_LOST, true, why);
}

static void read_report(tandem_session *s, td_job *job)
{
    tandem_job_report *report = td_job_report_locked(s, job);
    td_remote *r = s->remote;
    td_wire_report got;
    char why[TD_WHY_BYTES];
    tandem_status status;

    if (!r->up || job->remote.connection != r->connection) {
        answer_lost(s, job);
        return;
    }
    status = td_ring_read_report(&r->ring, job->remote.ticket, &got, why, sizeof why);
    if (status == TANDEM_ERROR_BUSY)
        return;
    if (status != TANDEM_OK) {
        td_channel_shut(r->conn.fd);
        return;
    }
    if (got.state == TANDEM_JOB_RUNNING && report->state == TANDEM_JOB_PENDING)
        report->state = TANDEM_JOB_RUNNING;
    if (!td_job_state_ended(got.state))
        return;
    if (got.precision)
        report->precision = got.precision;
    if (s->timing && got.begin_ns) {
        report->begin_ns = got.begin_ns;
        report->end_ns = got.end_ns;
    }
    answer(job, got.state, (tandem_status)got.status, got.client_signals,
           tandem_status_text((tandem_status)got.status));
    if (got.state == TANDEM_JOB_DONE) {
        __atomic_store_n(&job->control.verdict, TD_VERDICT_COMMITTED, __ATOMIC_RELEASE);
    } else if (got.state != TANDEM_JOB_FAILED) { /* STALE, CANCELLED */
        __atomic_store_n(&job->control.verdict, TD_VERDICT_GIVEN_UP, __ATOMIC_RELEASE);
        td_job_step_locked(s, job, (td_life_event){.kind = TD_LIFE_GAVE_UP, .state = (tandem_job_state)got.state});
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
    td_remote_job *remote = &job->remote;
    tandem_job_state state = (tandem_job_state)remote->state;
    tandem_status status = remote->state == TANDEM_JOB_FAILED ? remote->status : TANDEM_OK;
    uint64_t value = 0;

    /* The text of a job that failed may come a moment behind its report. */
    if (state == TANDEM_JOB_FAILED && !td_job_is_given_up(job) && s->remote->up && remote->connection == s->remote->connection &&
        !has_text(s->remote, job) && now - remote->answered_ns < TEXT_NS)
        return false;
    if (td_job_is_given_up(job)) {
        state = job->life.end_state;
        status = job->life.end_status;
    }
    if (state != TANDEM_JOB_DONE && state != TANDEM_JOB_CANCELLED)
        td_job_step_locked(s, job, (td_life_event){.kind = TD_LIFE_REPORT, .state = state, .status = status});
    if (td_gpu_signals(s) && job->signal && !remote->client_signals) {
        if (td_timeline_value_locked(s, job->signal, &value) == TANDEM_OK && value < job->signal_value &&
            (state != TANDEM_JOB_DONE || now - remote->answered_ns < SIGNAL_NS))
            return false;
        remote->client_signals = value < job->signal_value;
    }
    if (!is_first(s, job))
        return false;
    if (state == TANDEM_JOB_DONE && has_bounced(job, false))
        copy_bounced(s, job, false);
    if (state == TANDEM_JOB_DONE)
        s->computed_ns = td_now_ns();
    if (state == TANDEM_JOB_FAILED) {
        const bool daemons = has_text(s->remote, job);

        td_fail(line, TD_WHY_BYTES, status, "job %" PRIu64 ": %s%s", job->number, daemons ? "tandemd: " : "",
                daemons ? s->remote->failed_text : remote->why);
        td_session_keep_error_locked(s, line);
    }
    td_job_step_locked(s, job,
                       (td_life_event){.kind = TD_LIFE_THROUGH,
                                       .state = state,
                                       .status = status,
                                       .signalled = td_gpu_signals(s) && !remote->client_signals});
    return true;
}

/* --- A job's way there --- */

/* Until when the host waits for what a job waits for: without a bound behind one that the daemon has, as the engine may wait
 * for that first. */
static uint64_t bound_of(const tandem_session *s, const td_job *job)
{
    for (uint32_t i = 0; s->order[i] != job; i++)
        if (td_job_has_begun(s->order[i]))
            return UINT64_MAX;
    return td_job_bound_locked(s, job);
}

/* Whether what it waits for is there, where the host waits for it. False too if it cannot be waited for any more. */
static bool may_go(tandem_session *s, td_job *job, uint64_t now, char *line)
{
    uint64_t value = job->wait_value;
    tandem_status status = TANDEM_OK;

    if (td_gpu_signals(s) || !job->wait)
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

/* Sends a job, unless it was given up meanwhile. BUSY: the ring is full. Any other failure is its end. */
static tandem_status send_job(tandem_session *s, td_job *job)
{
    td_remote *r = s->remote;
    char why[TD_WHY_BYTES] = "";
    td_wire_message m;
    tandem_status status = r->up ? describe(s, job, &m, why) : td_remote_gone(r, why);

    if (td_job_is_given_up(job)) /* while the lock was not held */
        return TANDEM_OK;
    if (status == TANDEM_OK && !r->up)
        status = td_remote_gone(r, why);
    if (status == TANDEM_OK && job->wait && td_gpu_signals(s))
        announce_submitted_locked(s, job->wait);
    if (status == TANDEM_OK)
        status = put_job(s, job, &m, why);
    if (status == TANDEM_ERROR_BUSY)
        return status;
    /* To whoever gives the job up: the daemon decides, and its verdict is in the report. */
    job->control.claimed = job->atomic_commit;
    job->control_block = &job->control;
    td_job_event_locked(s, job, TD_LIFE_BEGUN);
    td_forgotten_look_locked(s, job);
    if (status != TANDEM_OK) {
        if (status == TANDEM_ERROR_PROTOCOL)
            td_channel_shut(r->conn.fd);
        answer(job, TANDEM_JOB_FAILED, status, true, why);
        return TANDEM_OK;
    }
    job->remote.ticket = r->rules.next_ticket;
    td_wire_took(&r->rules, TD_WIRE_RING, &m);
    if (!td_remote_owes_locked(s))
        r->heard_ns = td_now_ns();
    job->remote.connection = r->connection;
    job->remote.sent_ns = td_now_ns();
    return TANDEM_OK;
}

/* Sends, in their order, what can be sent; with `copies`, also what has to be copied first, without the lock. */
static void feed_locked(tandem_session *s, bool copies, char *line)
{
    bool goes_on = true;

    while (goes_on) {
        td_job *job = first_to_send(s);

        goes_on = job && !job->life.busy && may_go(s, job, td_now_ns(), line) && (copies || !has_bounced(job, true));
        if (!goes_on)
            break;
        td_job_event_locked(s, job, TD_LIFE_TAKEN); /* it is ours, also while the lock is not held */
        if (has_bounced(job, true))
            copy_bounced(s, job, true);
        goes_on = send_job(s, job) == TANDEM_OK;
        td_job_event_locked(s, job, TD_LIFE_LEFT);
        if (td_job_is_given_up(job))
            td_jobs_retire_given_up_locked(s);
    }
}

tandem_status td_remote_takes_locked(tandem_session *s, const td_operation_layout *layout, const tandem_operands *op, char *why)
{
    const td_remote *r = s->remote;

    return r->up ? td_wire_takes(&r->rules, layout, op, why, TD_WHY_BYTES) : TANDEM_OK;
}

tandem_status td_remote_submit_locked(tandem_session *s, td_job *job, td_submission *from, tandem_ticket *ticket, char *why)
{
    char line[TD_WHY_BYTES] = "";

    if (!s->remote->up)
        return td_remote_gone(s->remote, why);
    job->remote.op = from->desc->op;
    *ticket = td_job_enter_locked(s, job, td_job_is_late(s, job));
    feed_locked(s, false, line);
    if (!td_gpu_signals(s))
        call_locked(s);
    td_remote_wake_locked(s);
    return TANDEM_OK;
}

/* --- A caller in the worker's place, where the host signals --- */

/* Sends what can go, ends what is through; what takes long or went wrong is the worker's. True if something was done. */
static bool help_locked(tandem_session *s)
{
    char line[TD_WHY_BYTES] = "";
    td_remote *r = s->remote;
    td_job *first = first_to_send(s);
    bool some = false;

    if (first && !first->life.busy) {
        feed_locked(s, false, line);
        some = first != first_to_send(s);
    }
    for (uint32_t i = 0; i < s->order_count;) {
        td_job *job = s->order[i];

        if (td_job_has_begun(job) && !job->life.busy && !job->remote.answered)
            read_report(s, job);
        if (td_job_has_begun(job) && !job->life.busy && job->remote.answered && job->remote.state == TANDEM_JOB_DONE &&
            !has_bounced(job, false) && end_answered(s, job, line))
            some = r->led = true;
        else
            i++;
    }
    if (line[0]) { /* the watchdog logs it */
        snprintf(s->unlogged, sizeof s->unlogged, "%s", line);
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
        if (!td_spin_yield(&now))
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
    if (td_job_has_begun(oldest) && !oldest->remote.answered)
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
    r->in_ring++;
    pthread_mutex_unlock(&s->lock);
    came = watch(s, semaphore, wanted, value_until < until_ns ? value_until : until_ns,
                 end_until < until_ns ? end_until : until_ns, seen, caller ? NULL : &hurry, &value_came);
    pthread_mutex_lock(&s->lock);
    r->in_ring--;
    r->callers -= caller;
    if (wait)
        td_object_release_locked(s, &wait->object);
    if (value_until && (value_came || (!came && value_until < until_ns)))
        td_spin_end(&r->values, value_came, td_now_ns());
    if (end_until && !value_came && (came || end_until < until_ns))
        td_spin_end(&r->results, came, td_now_ns());
    if (!r->up)
        pthread_cond_broadcast(&s->changed);
    return came;
}

/* False: there is nothing that comes at once, or it did not come by `until_ns` at the latest. */
static bool help_and_watch_locked(tandem_session *s, uint64_t until_ns)
{
    const td_remote *r = s->remote;
    uint32_t seen;

    if (td_gpu_signals(s) || !r->up)
        return false;
    seen = td_ring_seen(&r->ring);
    return help_locked(s) || (r->up && s->order_count && watch_locked(s, true, seen, until_ns));
}

void td_remote_caller_leaves_locked(tandem_session *s)
{
    if (s->remote->worker_needs_wake && s->order_count)
        pthread_cond_signal(&s->work);
    s->remote->worker_needs_wake = s->remote->worker_needs_wake && !s->order_count;
}

bool td_remote_caller_waits_locked(tandem_session *s, bool alone, uint64_t until_ns)
{
    const bool changed = help_and_watch_locked(s, until_ns);

    (void)alone; /* the worker sees to all jobs */
    if (!changed)
        td_remote_caller_leaves_locked(s);
    return changed;
}

/* --- The worker --- */

/* Values that were signalled without being announced, and announcements that the ring had no room for. */
static bool announce_locked(tandem_session *s)
{
    bool waits = false;

    for (uint32_t i = 0; i < s->order_count && td_gpu_signals(s); i++) {
        td_job *job = s->order[i];
        uint64_t value = 0;

        if (!td_job_has_begun(job) || job->remote.answered || !job->wait || job->wait->by_session)
            continue;
        if (job->wait->submitted < job->wait_value &&
            td_timeline_value_locked(s, job->wait, &value) == TANDEM_OK && value >= job->wait_value)
            job->wait->submitted = value;
        announce_submitted_locked(s, job->wait);
        waits = waits || job->wait->submitted < job->wait_value || job->wait->remote.announced < job->wait->submitted;
    }
    return waits;
}

/* Tells the daemon of jobs that were given up, and of all that have not begun when the session ends. */
static void cancel_some(tandem_session *s)
{
    for (uint32_t i = 0; i < s->order_count; i++) {
        td_job *job = s->order[i];
        const bool begun = td_job_report_locked(s, job)->state != TANDEM_JOB_PENDING;

        if (!td_job_has_begun(job) || job->remote.answered || job->remote.cancelled || !s->remote->up ||
            job->remote.connection != s->remote->connection || (td_job_is_wanted(job) && !(s->stopping && !begun)))
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

        if (td_gpu_signals(s) && job->wait && !job->wait->by_session)
            td_timeline_raise_locked(s, job->wait, job->wait_value);
        if (now - since_ns > TD_CLOSE_BOUND_NS && td_job_has_begun(job) && !job->remote.answered)
            answer_lost(s, job);
        job->remote.client_signals = job->remote.client_signals || now - since_ns > TD_CLOSE_BOUND_NS;
    }
}

/* A job that was asked to end and does not: the daemon is as good as gone. */
static bool is_overdue(const tandem_session *s, const td_job *job, uint64_t now)
{
    const uint64_t by_deadline = job->life.has_deadline ? td_after(job->life.deadline_ns, TD_CLOSE_BOUND_NS) : UINT64_MAX;
    const uint64_t since = s->computed_ns > job->submit_ns ? s->computed_ns : job->submit_ns;
    const uint64_t at_all = td_after(td_after(since, TD_WIRE_MAX_WAIT_NS), TD_CLOSE_BOUND_NS);

    return td_job_has_begun(job) && !job->remote.answered && now > (by_deadline < at_all ? by_deadline : at_all);
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
    uint64_t now = td_now_ns(), next = now + TD_REMOTE_SLICE_NS;
    bool all;

    td_jobs_advance_locked(s); /* what is late is given up here: who would wait for the lock to do so might wait for long */
    feed_locked(s, true, line);
    do {
        all = true;
        for (uint32_t i = 0; i < s->order_count && all; i++) {
            td_job *job = s->order[i];

            if (td_job_has_begun(job) && !job->remote.answered)
                read_report(s, job);
            if (td_job_has_begun(job) && job->remote.answered)
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
        else if (!td_job_has_begun(job) && job->wait && job->wait->semaphore)
            at = now + next_nap_ns(job, now);
        else if (!td_job_has_begun(job))
            at = job->life.has_deadline && job->life.deadline_ns < bound ? job->life.deadline_ns : bound;
        if (at < next)
            next = at;
        if (r->up && job->remote.connection == r->connection && is_overdue(s, job, now)) {
            td_fail(r->gone, sizeof r->gone, TANDEM_ERROR_LOST, "it has not ended a job in time");
            td_channel_shut(r->conn.fd);
        }
    }
    return next;
}

/* Until something was submitted, signalled, given up or answered; called and left with the lock held. `seen`: of the event count,
 * from before the look. */
static void rest_locked(tandem_session *s, uint32_t connection, uint32_t seen, uint64_t until)
{
    td_remote *r = s->remote;
    const uint64_t now = td_now_ns();

    if (r->callers) {
        r->worker_needs_wake = true;
        pthread_cond_wait(&s->work, &s->lock);
        return;
    }
    if (until <= now)
        return;
    if (!r->up || r->connection != connection || !s->order_count || !td_job_has_begun(s->order[0])) {
        if (s->order_count || !s->stopping)
            td_cond_wait_until(s, &s->work, s->order_count ? until : UINT64_MAX);
        return;
    }
    r->in_ring++;
    pthread_mutex_unlock(&s->lock);
    td_ring_sleep(&r->ring, seen, until - now);
    pthread_mutex_lock(&s->lock);
    r->in_ring--;
    if (!r->up)
        pthread_cond_broadcast(&s->changed);
}

void *td_remote_work(void *session)
{
    tandem_session *s = session;
    td_remote *r = s->remote;
    uint64_t stopping_ns = 0;

    td_thread_set_slack(TD_SLACK_NS);
    td_thread_name("tandem worker");
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
        } else if (td_gpu_signals(s) || !r->up || r->connection != connection || !s->order_count || r->callers ||
                   !watch_locked(s, false, seen, UINT64_MAX)) {
            rest_locked(s, connection, seen, until);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}
