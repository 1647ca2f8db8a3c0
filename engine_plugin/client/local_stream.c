/* Jobs on a stream, and the worker that waits for them.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A job goes to the GPU as soon as its wait can be met there, and is held on the host until then. Who waits for one, or
 * else the worker, sees that the GPU is through with it. The GPU signals, or else who sees it does. The worker also
 * does what takes a processor's time (rung `copy`). Jobs keep their order: nothing overtakes a job that is held.
 *
 * How a job begins and how jobs are brought up to date is here also where there is no stream, as most of it is for one.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "engine_plugin/client/local.h"

/* Pins the worker to the CPU of who asked for a point's descriptor last, for 100 ms after that. Where a wake-up there comes
 * more than 1 ms late others are busy on it: the worker runs anywhere for 1 s, and twice as long each time up to 60 s. */
#define HELD_THERE_NS 100000000u
#define HELD_LATE_NS 1000000u
#define HELD_NOT_NS 1000000000u
#define HELD_NOT_MOST_NS 60000000000u

static tandem_status enqueue(tandem_session *s, td_job *job, char *why)
{
    const td_stream_point wait = {job->wait ? &job->wait->cu : NULL, job->wait ? job->wait->semaphore : VK_NULL_HANDLE,
                                  job->wait_value},
                          signal = {job->signal ? &job->signal->cu : NULL,
                                    job->signal ? job->signal->semaphore : VK_NULL_HANDLE, job->signal_value};
    td_stream_submit submit = {
        .plan = job->plan,
        .views = job->views,
        .scratch = job->scratch.address,
        .slot = (uint32_t)(job - s->jobs),
        .wait = td_gpu_signals(s) && job->wait ? &wait : NULL,
        .signal = td_gpu_signals(s) && job->signal ? &signal : NULL,
        .label = job->label,
    };
    tandem_status status = td_copies(s) ? td_staging_in(s, job, &submit, why) : TANDEM_OK;
    bool signalled;

    if (status != TANDEM_OK)
        return status;
    if (s->enqueuing)
        return td_staging_enqueue(s, &submit, &job->stream_sequence, why);
    return td_stream_enqueue(s->stream, &submit, &job->stream_sequence, &signalled, why, TD_WHY_BYTES);
}

static void mark_begun(tandem_session *s, td_job *job)
{
    td_job_event_locked(s, job, TD_LIFE_BEGUN);
    job->begun_ns = td_now_ns();
    job->control_block = td_stream_control(s->stream, job->stream_sequence);
    td_forgotten_look_locked(s, job);
    if (s->idle && td_worker_needed_locked(s) && !s->pollers)
        pthread_cond_signal(&s->work);
    if (td_job_is_deciding(job))
        pthread_cond_signal(&s->watch);
}

/* Hands a job to the GPU. */
static tandem_status begin(tandem_session *s, td_job *job, char *why)
{
    const tandem_status status = enqueue(s, job, why);

    if (status == TANDEM_OK)
        mark_begun(s, job);
    return status;
}

/* Whether a job's wait can be met on the GPU, or is over: the engine says that what signals it is submitted, or it is
 * reached. What a job of the session's signals is signalled by a job before it. */
static bool may_begin(tandem_session *s, const td_job *job, tandem_status *status)
{
    uint64_t value = 0;

    if (s->enqueuing)
        return false;
    for (uint32_t i = 0; i < s->order_count && td_copies(s) && s->order[i] != job; i++)
        if (td_staging_must_wait(job, s->order[i]))
            return false;
    if (!job->wait || job->wait->by_session || s->imports_only || (td_gpu_signals(s) && job->wait->submitted >= job->wait_value))
        return true;
    *status = td_timeline_value_locked(s, job->wait, &value);
    return *status == TANDEM_OK && value >= job->wait_value;
}

/* What the worker has to do without the lock. */
static bool is_by_hand(const tandem_session *s, const td_job *job)
{
    return td_copies(s) && td_staging_by_hand(job);
}

/* A job that was not begun, and that nobody can begin. */
static void fail_job(tandem_session *s, td_job *job, tandem_status status, const char *why)
{
    td_fail(s->unlogged, sizeof s->unlogged, status, "job %" PRIu64 ": %s", job->number, why);
    td_session_keep_error_locked(s, s->unlogged);
    td_job_give_up_locked(s, job, TANDEM_JOB_FAILED, status);
    td_jobs_retire_given_up_locked(s);
    pthread_cond_signal(&s->watch);
}

/* Hands over what is held, as far as it may go. */
static void dispatch(tandem_session *s)
{
    tandem_status status = TANDEM_OK;

    td_jobs_retire_given_up_locked(s);
    for (uint32_t i = 0; i < s->order_count && status == TANDEM_OK;) {
        td_job *job = s->order[i];
        char why[TD_WHY_BYTES] = "";

        if (!td_job_has_begun(job)) {
            if (td_job_is_given_up(job) || !may_begin(s, job, &status))
                break;
            if (is_by_hand(s, job)) {
                pthread_cond_signal(&s->work);
                break;
            }
            status = begin(s, job, why);
            if (status == TANDEM_OK) {
                if (job->wait)
                    job->wait->held_ns = job->begun_ns - job->submit_ns;
                pthread_cond_broadcast(&s->changed); /* who waits for it may look itself now */
            }
        }
        if (status == TANDEM_OK) {
            i++;
        } else if (status == TANDEM_ERROR_UNSUPPORTED || status == TANDEM_ERROR_NOMEM || status == TANDEM_ERROR_ARG) {
            fail_job(s, job, status, why);
            status = TANDEM_OK;
        }
    }
    if (status == TANDEM_ERROR_DEVICE || status == TANDEM_ERROR_LOST)
        td_session_break_locked(s, status, false);
}

/* True if the job is over on the GPU and, where the GPU signals, its point is signalled. */
static bool gpu_is_done(tandem_session *s, const td_job *job, tandem_status *status)
{
    uint64_t value = 0;

    if (td_stream_completed(s->stream) < job->stream_sequence)
        return false;
    if (!job->signal || !td_gpu_signals(s) || s->imports_only)
        return true;
    *status = td_timeline_value_locked(s, job->signal, &value);
    return *status == TANDEM_OK && value >= job->signal_value;
}

static void note_times(tandem_session *s, const td_job *job)
{
    tandem_job_report *report = td_job_report_locked(s, job);

    if (s->timing)
        td_stream_times(s->stream, job->stream_sequence, &report->begin_ns, &report->end_ns);
}

static void advance_stream(tandem_session *s)
{
    tandem_status status = TANDEM_OK;

    while (s->order_count && td_job_has_begun(s->order[0]) && !s->order[0]->life.busy && gpu_is_done(s, s->order[0], &status)) {
        td_job *job = s->order[0];

        if (td_copies(s) && td_staging_takes_back(job) && !td_job_was_given_up(job)) {
            pthread_cond_signal(&s->work);
            break;
        }
        note_times(s, job);
        td_job_end_locked(s, job, TANDEM_OK);
        if (td_gpu_signals(s))
            td_points_notify_locked(s);
    }
    if (s->order_count && td_job_has_begun(s->order[0]) && !s->order[0]->life.busy &&
        td_stream_begun(s->stream, s->order[0]->stream_sequence)) {
        tandem_job_report *head = td_job_report_locked(s, s->order[0]);

        if (head->state == TANDEM_JOB_PENDING)
            head->state = TANDEM_JOB_RUNNING;
    }
    if (status != TANDEM_OK)
        td_session_break_locked(s, status, false);
}

void td_jobs_advance_locked(tandem_session *s)
{
    td_recorded_advance_locked(s);
    if (s->broken)
        td_session_retire_broken_locked(s);
    else if (s->ahead)
        advance_stream(s);
    for (uint32_t i = 0; i < s->order_count; i++) {
        td_job *job = s->order[i];

        if (td_job_is_deciding(job) || (job->life.has_deadline && td_job_is_wanted(job)))
            td_job_step_locked(s, job, (td_life_event){.kind = TD_LIFE_TIME, .now_ns = td_now_ns()});
    }
    if (s->ahead && !s->broken)
        dispatch(s);
    else
        td_jobs_retire_given_up_locked(s);
}

/* When the watchdog has to look at a job that was just accepted. */
uint64_t td_job_first_look_ns(const tandem_session *s, const td_job *job)
{
    uint64_t at = s->stream ? job->submit_ns + TD_STATUS_NS : UINT64_MAX;

    if (s->ahead && !td_job_has_begun(job))
        at = 0;
    return job->life.has_deadline && job->life.deadline_ns < at ? job->life.deadline_ns : at;
}

tandem_ticket td_job_accept_locked(tandem_session *s, td_job *job)
{
    job->number = ++s->last_number;
    s->submitted++;
    *td_job_report_locked(s, job) = (tandem_job_report){.struct_bytes = sizeof(tandem_job_report),
                                                        .state = TANDEM_JOB_PENDING,
                                                        .precision = job->plan->precision,
                                                        .submit_ns = job->submit_ns};
    for (uint32_t i = 0; i < job->view_count; i++)
        if (job->mems[i])
            job->mems[i]->object.uses++;
    if (job->wait)
        job->wait->object.uses++;
    if (job->signal) {
        job->signal->object.uses++;
        job->signal->promised = job->signal_value;
    }
    td_layers_submitted_locked(job);
    return (uint64_t)TD_KIND_TICKET << 60 | (uint64_t)s->salt << 48 | (job->number & 0xffffffffffff);
}

tandem_ticket td_job_enter_locked(tandem_session *s, td_job *job, bool late)
{
    const tandem_ticket ticket = td_job_accept_locked(s, job);

    s->order[s->order_count++] = job;
    if (late)
        td_jobs_advance_locked(s);
    if (td_job_first_look_ns(s, job) < s->watch_until_ns)
        pthread_cond_signal(&s->watch);
    return ticket;
}

bool td_job_is_late(const tandem_session *s, const td_job *job)
{
    return job->life.has_deadline && !s->imports_only && td_now_ns() >= job->life.deadline_ns;
}

static tandem_status start_job(tandem_session *s, td_job *job, tandem_ticket *ticket, char *why)
{
    const bool last_begun = !s->order_count || td_job_has_begun(s->order[s->order_count - 1]);
    const bool late = td_job_is_late(s, job);
    tandem_status status = TANDEM_OK;

    if (s->ahead && last_begun && !late && may_begin(s, job, &status) && !is_by_hand(s, job))
        status = begin(s, job, why);
    else if (status != TANDEM_OK)
        td_fail(why, TD_WHY_BYTES, status, "job.wait.timeline is 0x%" PRIx64 ", whose counter cannot be read: %s",
                job->wait->object.id, tandem_status_text(status));
    if (status == TANDEM_ERROR_DEVICE || status == TANDEM_ERROR_LOST)
        td_session_break_locked(s, status, true);
    if (status != TANDEM_OK && !(status == TANDEM_ERROR_BUSY && td_copies(s))) /* held, then */
        return status;
    *ticket = td_job_enter_locked(s, job, late);
    if (!s->ahead || (!td_job_has_begun(job) && is_by_hand(s, job)))
        pthread_cond_signal(&s->work);
    return TANDEM_OK;
}

tandem_status td_local_submit_locked(tandem_session *s, td_job *job, td_submission *from, tandem_ticket *ticket, char *why)
{
    const tandem_status status = td_scratch_reserve_locked(s, job, from, job->plan->scratch_bytes, why);

    return status == TANDEM_OK ? start_job(s, job, ticket, why) : status;
}

td_sleeper *td_sleeper_make(void)
{
    td_sleeper *sleeper = calloc(1, sizeof *sleeper);
    bool made = sleeper && td_cond_make(&sleeper->awake);

    if (made && pthread_mutex_init(&sleeper->lock, NULL)) {
        pthread_cond_destroy(&sleeper->awake);
        made = false;
    }
    if (made)
        return sleeper;
    free(sleeper);
    return NULL;
}

void td_sleeper_free(td_sleeper *sleeper)
{
    if (!sleeper)
        return;
    pthread_mutex_destroy(&sleeper->lock);
    pthread_cond_destroy(&sleeper->awake);
    free(sleeper);
}

/* Sleeps until the GPU is through with `sequence`: called and, if true, left with the lock held. False: the session has
 * gone meanwhile, and so must the thread. */
static bool sleep_in_driver(tandem_session *s, uint64_t sequence, tandem_status *status)
{
    td_sleeper *sleeper = s->sleeper;
    td_stream *stream = s->stream;
    bool left_behind;

    pthread_mutex_lock(&sleeper->lock);
    sleeper->sleeps = true;
    pthread_mutex_unlock(&sleeper->lock);
    pthread_mutex_unlock(&s->lock);
    *status = td_stream_wait(stream, sequence);
    pthread_mutex_lock(&sleeper->lock);
    sleeper->sleeps = false;
    left_behind = sleeper->left_behind;
    pthread_cond_signal(&sleeper->awake);
    pthread_mutex_unlock(&sleeper->lock);
    if (left_behind)
        td_sleeper_free(sleeper);
    else
        pthread_mutex_lock(&s->lock);
    return !left_behind;
}

void td_thread_prepare(const char *name)
{
    td_thread_set_slack(TD_SLACK_NS);
    td_thread_name(name);
}

/* Without the lock: what a job reads is brought in. */
static void begin_by_hand(tandem_session *s, td_job *job)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status;

    s->enqueuing = true;
    td_job_event_locked(s, job, TD_LIFE_TAKEN);
    td_job_event_locked(s, job, TD_LIFE_BEGUN); /* so that it is given up only once that is done */
    pthread_mutex_unlock(&s->lock);
    status = enqueue(s, job, why);
    pthread_mutex_lock(&s->lock);
    s->enqueuing = false;
    td_job_event_locked(s, job, TD_LIFE_LEFT);
    if (status == TANDEM_OK)
        mark_begun(s, job);
    else
        td_job_event_locked(s, job, TD_LIFE_RETURNED);
    if (status == TANDEM_ERROR_DEVICE || status == TANDEM_ERROR_LOST)
        td_session_break_locked(s, status, false);
    else if (status != TANDEM_OK)
        fail_job(s, job, status, why);
    pthread_cond_broadcast(&s->changed);
}

/* And here its result is taken back. */
static void end_by_hand(tandem_session *s, td_job *job)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status;

    note_times(s, job);
    s->enqueuing = true;
    td_job_event_locked(s, job, TD_LIFE_TAKEN);
    pthread_mutex_unlock(&s->lock);
    status = td_staging_out(s, job, why);
    pthread_mutex_lock(&s->lock);
    s->enqueuing = false;
    td_job_event_locked(s, job, TD_LIFE_LEFT);
    if (status != TANDEM_OK) {
        td_fail(s->unlogged, sizeof s->unlogged, status, "job %" PRIu64 ": %s", job->number, why);
        td_session_keep_error_locked(s, s->unlogged);
        pthread_cond_signal(&s->watch);
    }
    if (status == TANDEM_ERROR_DEVICE || status == TANDEM_ERROR_LOST)
        td_session_break_locked(s, status, true);
    else
        td_job_end_locked(s, job, status);
}

static bool work_by_hand(tandem_session *s)
{
    tandem_status status = TANDEM_OK;
    td_job *next = NULL;

    if (!td_copies(s) || s->broken || !s->order_count)
        return false;
    if (td_job_has_begun(s->order[0]) && td_stream_completed(s->stream) >= s->order[0]->stream_sequence &&
        td_staging_takes_back(s->order[0]) && !td_job_was_given_up(s->order[0])) {
        end_by_hand(s, s->order[0]);
        return true;
    }
    for (uint32_t i = 0; i < s->order_count && !next; i++)
        next = td_job_has_begun(s->order[i]) ? NULL : s->order[i];
    if (!next || td_job_is_given_up(next) || !is_by_hand(s, next) || !may_begin(s, next, &status))
        return false;
    begin_by_hand(s, next);
    return true;
}

/* The worker runs where those who ask for descriptors do, unless that makes it late: they are busy there. */
static void move_worker(tandem_session *s, uint64_t now)
{
    const bool asked = s->point_fd_count || now - s->called_ns < HELD_THERE_NS;
    const int cpu = asked && now >= s->free_until_ns ? s->caller_cpu : -1;

    if (cpu == s->worker_cpu || !s->knows_cpus)
        return;
    if (cpu >= 0)
        td_thread_run_on_one((uint32_t)cpu);
    else
        td_thread_run_on(&s->cpus);
    s->worker_cpu = cpu;
}

/* The worker, which should have run at `due_ns`, does. */
static void note_lateness(tandem_session *s, uint64_t due_ns)
{
    const uint64_t now = td_now_ns();

    if (s->worker_cpu < 0 || now < due_ns || now - due_ns < HELD_LATE_NS)
        return;
    s->free_ns = s->free_ns ? td_sooner(2 * s->free_ns, HELD_NOT_MOST_NS) : HELD_NOT_NS;
    s->free_until_ns = now + s->free_ns;
}

/* Sleeps until the oldest job may be through. False as sleep_in_driver(). */
static bool sleep_for_job(tandem_session *s, uint64_t *asked)
{
    const td_job *job = s->order_count && td_job_has_begun(s->order[0]) ? s->order[0] : NULL;
    const uint64_t now = td_now_ns();
    tandem_status status = TANDEM_OK;
    bool alone = false;
    uint64_t look;

    if (!job || s->pollers || !td_worker_needed_locked(s)) {
        s->idle = true;
        pthread_cond_wait(&s->work, &s->lock);
        s->idle = false;
        if (s->called_ns > now)
            note_lateness(s, s->called_ns);
        return true;
    }
    look = td_jobs_look_locked(s, now, &alone);
    if (!alone && td_copies(s)) {
        look = now + td_nap_ns(now - job->begun_ns); /* what comes next is the worker's to hand over */
    } else if (!alone && *asked != job->number) {
        *asked = job->number;
        if (!sleep_in_driver(s, job->stream_sequence, &status))
            return false;
        if (status != TANDEM_OK && !s->broken) /* it failed, or cannot be waited for */
            td_gpu_is_well_locked(s);
        return true;
    } else if (!alone) {
        look = now + TD_UNWAITED_LOOK_NS;
    }
    td_cond_wait_until(s, &s->work, look);
    note_lateness(s, look);
    return true;
}

/* The worker of a stream. */
void *td_local_wait_for_gpu(void *user)
{
    tandem_session *s = user;
    uint64_t asked = 0; /* the last job that the driver was asked to wait for */

    td_thread_prepare("tandem waiter");
    pthread_mutex_lock(&s->lock);
    s->knows_cpus = td_thread_cpus(&s->cpus);
    while (!s->abandoned && (!s->stopping || s->order_count)) {
        td_jobs_advance_locked(s);
        td_points_notify_locked(s);
        if (work_by_hand(s))
            continue;
        move_worker(s, td_now_ns());
        if (!sleep_for_job(s, &asked))
            return NULL;
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}
