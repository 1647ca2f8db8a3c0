/* How jobs end: given up, through, or with a session whose device has failed.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A job's report ends (DONE, STALE, CANCELLED, FAILED) once and for all; the job itself is retired, and its slot free,
 * when its point is signalled and nothing uses its mems any more. The report of a job that is given up because it is
 * too late (STALE, FAILED) ends first. When what is to be done is decided by td_life_step(), for jobs of any session; it
 * is done here.
 */
#include <string.h>

#include "engine_plugin/client/local.h"

#define CLAIM_SPIN_NS 10000u   /* a device that has claimed decides within a few microseconds */
#define BROKEN_NS 20000000u    /* how long the GPU's own signals are waited for when the driver says that it failed */

bool td_job_state_ended(uint32_t state)
{
    return state != TANDEM_JOB_PENDING && state != TANDEM_JOB_RUNNING;
}

tandem_job_report *td_job_report_locked(tandem_session *s, const td_job *job)
{
    return &s->reports[job->number % TD_REPORTS];
}

static void end_report(tandem_session *s, const td_job *job, tandem_job_state state, tandem_status status)
{
    tandem_job_report *report = td_job_report_locked(s, job);

    report->state = state;
    report->status = status;
    if (state == TANDEM_JOB_DONE)
        td_forgotten_wrote_locked(job);
    td_run_ended_locked(s, job, report);
    s->done += state == TANDEM_JOB_DONE;
    s->stale += state == TANDEM_JOB_STALE;
    s->cancelled += state == TANDEM_JOB_CANCELLED;
    s->failed += state == TANDEM_JOB_FAILED;
    pthread_cond_broadcast(&s->changed);
}

static void drop_uses(tandem_session *s, td_job *job)
{
    for (uint32_t i = 0; i < job->view_count; i++)
        if (job->mems[i]) {
            td_object_release_locked(s, &job->mems[i]->object);
            job->mems[i] = NULL;
        }
    if (job->wait)
        td_object_release_locked(s, &job->wait->object);
    job->wait = NULL;
}

/* Drops all that a job uses, and frees its slot. */
static void retire(tandem_session *s, td_job *job)
{
    uint32_t at = 0;

    drop_uses(s, job);
    if (job->signal) {
        job->signal->ended = job->signal_value;
        td_object_release_locked(s, &job->signal->object);
    }
    job->signal = NULL;
    while (at < s->order_count && s->order[at] != job)
        at++;
    if (at < s->order_count)
        memmove(s->order + at, s->order + at + 1, (--s->order_count - at) * sizeof *s->order);
    job->number = 0;
    pthread_cond_broadcast(&s->changed);
}

static void set_broken(tandem_session *s, tandem_status status, bool logged)
{
    if (!s->broken)
        s->broken_unlogged = !logged;
    s->stuck = s->stuck || s->stream;
    s->broken = status == TANDEM_ERROR_LOST ? TANDEM_ERROR_LOST : TANDEM_ERROR_DEVICE;
    pthread_cond_signal(&s->watch);
    pthread_cond_broadcast(&s->work);
    pthread_cond_broadcast(&s->changed);
}

/* Giving up. */

typedef enum claim { CLAIM_WON, CLAIM_LOST, CLAIM_OPEN } claim;

/* The host's side of td_control's protocol, against an executor that has the job. */
static claim claim_for_host(tandem_session *s, const td_job *job)
{
    td_control *block = job->control_block;

    if (!block) /* it is just being handed over */
        return CLAIM_OPEN;
    if (job->atomic_commit) {
        const uint64_t begin = td_now_ns();
        uint32_t verdict;

        __atomic_store_n(&block->stale, 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&block->claimed, __ATOMIC_SEQ_CST)) {
            do
                verdict = __atomic_load_n(&block->verdict, __ATOMIC_ACQUIRE);
            while (verdict == TD_VERDICT_NONE && td_now_ns() - begin < CLAIM_SPIN_NS);
            if (verdict != TD_VERDICT_GIVEN_UP)
                return verdict == TD_VERDICT_NONE ? CLAIM_OPEN : CLAIM_LOST;
        }
    }
    if (s->stream)
        td_stream_cancel(s->stream, job->stream_sequence);
    else
        __atomic_store_n(&block->cancel, 1, __ATOMIC_RELAXED);
    return CLAIM_WON;
}

/* What its executor says, where it claims the output. */
static bool gave_up(const td_job *job)
{
    return job->control_block && __atomic_load_n(&job->control_block->verdict, __ATOMIC_ACQUIRE) == TD_VERDICT_GIVEN_UP;
}

/* Where the point cannot be signalled the job has failed, whatever was computed. */
static void perform(tandem_session *s, td_job *job, td_life_actions a)
{
    const tandem_status raised =
        a.signal && job->signal ? td_timeline_raise_locked(s, job->signal, job->signal_value) : TANDEM_OK;

    if (raised != TANDEM_OK) {
        set_broken(s, raised, false);
        a.state = TANDEM_JOB_FAILED;
        a.status = s->broken;
    }
    if (a.report)
        end_report(s, job, a.state, a.status);
    if (a.drop)
        drop_uses(s, job);
    if (a.retire)
        retire(s, job);
}

void td_job_step_locked(tandem_session *s, td_job *job, td_life_event event)
{
    const td_job_fate before = job->life.fate;
    td_life_actions actions = td_life_step(&job->life, &event);

    if (actions.claim) {
        const claim answer = claim_for_host(s, job);

        if (answer == CLAIM_OPEN)
            pthread_cond_signal(&s->watch);
        else
            actions = td_life_step(&job->life, &(td_life_event){.kind = answer == CLAIM_WON ? TD_LIFE_WON : TD_LIFE_LOST});
    }
    perform(s, job, actions);
    if (job->life.fate != before)
        s->ops->wake_locked(s);
}

void td_job_event_locked(tandem_session *s, td_job *job, td_life_event_kind kind)
{
    td_job_step_locked(s, job, (td_life_event){.kind = kind});
}

bool td_job_give_up_locked(tandem_session *s, td_job *job, tandem_job_state state, tandem_status status)
{
    td_job_step_locked(s, job, (td_life_event){.kind = TD_LIFE_ASKED, .state = state, .status = status});
    return td_job_is_given_up(job);
}

void td_job_cancel_locked(tandem_session *s, td_job *job)
{
    td_job_give_up_locked(s, job, TANDEM_JOB_CANCELLED, TANDEM_OK);
}

void td_jobs_retire_given_up_locked(tandem_session *s)
{
    for (uint32_t i = 0; i < s->order_count;) {
        td_job *job = s->order[i];
        bool first = true;

        for (uint32_t e = 0; e < i; e++)
            first = first && (!job->signal || s->order[e]->signal != job->signal);
        if (first)
            td_job_event_locked(s, job, TD_LIFE_TURN);
        i += job->life.stage != TD_STAGE_OVER; /* else it is no longer in the order */
    }
}

bool td_job_was_given_up(const td_job *job)
{
    return td_job_is_given_up(job) || (td_job_is_deciding(job) && gave_up(job));
}

void td_job_end_locked(tandem_session *s, td_job *job, tandem_status status)
{
    const bool by_verdict = gave_up(job), given_up = td_job_is_given_up(job) || (td_job_is_deciding(job) && by_verdict);

    if (status == TANDEM_OK && !given_up) {
        td_guess_learn_locked(s, job);
        s->computed_ns = td_now_ns();
    }
    td_job_step_locked(s, job,
                       (td_life_event){.kind = TD_LIFE_THROUGH,
                                       .state = status == TANDEM_OK ? TANDEM_JOB_DONE : TANDEM_JOB_FAILED,
                                       .status = status,
                                       .gave_up = by_verdict,
                                       .signalled = td_gpu_signals(s)});
}

void td_job_abandon_locked(tandem_session *s, td_job *job, tandem_status status, bool signalled)
{
    td_job_step_locked(s, job,
                       (td_life_event){.kind = TD_LIFE_GONE,
                                       .state = TANDEM_JOB_FAILED,
                                       .status = status,
                                       .signalled = signalled});
}

/* The engine does not serve a wait that is on the GPU, and never will: it is dead, or this session ends. */
bool td_job_release_wait_locked(tandem_session *s, td_job *job)
{
    uint64_t value = 0;

    if (!td_job_has_begun(job) || !td_gpu_signals(s) || !job->wait || job->wait->by_session)
        return false;
    if (s->imports_only ? td_stream_begun(s->stream, job->stream_sequence)
                        : td_timeline_value_locked(s, job->wait, &value) == TANDEM_OK && value >= job->wait_value)
        return false;
    td_job_give_up_locked(s, job, TANDEM_JOB_FAILED, TANDEM_ERROR_LOST);
    return td_timeline_raise_locked(s, job->wait, job->wait_value) == TANDEM_OK;
}

/* The points of jobs that a broken session's GPU has: what was on its way when it broke may still come, once. */
void td_session_retire_broken_locked(tandem_session *s)
{
    while (s->ahead && s->order_count && !s->order[0]->life.busy) {
        td_job *job = s->order[0];
        uint64_t value = 0;
        bool comes = td_job_has_begun(job) && s->runs_on;

        if (td_job_has_begun(job) && td_copies(s) && td_stream_completed(s->stream) < job->stream_sequence &&
            td_stream_status(s->stream, NULL, 0) == TANDEM_OK)
            break; /* it still writes */

        if (td_job_has_begun(job) && td_gpu_signals(s) && !s->runs_on && job->signal &&
            td_timeline_value_locked(s, job->signal, &value) == TANDEM_OK) {
            comes = value >= job->signal_value;
            if (!comes && td_now_ns() - s->broken_ns < BROKEN_NS)
                break;
        }
        td_job_abandon_locked(s, job, s->broken, comes);
    }
}

/* A driver error that will not go away: every job ends FAILED, and points are signalled as far as that is still
 * possible. Where the GPU signals, it goes on doing so if only a semaphore cannot be read. Jobs of the worker are left to
 * it. */
void td_session_break_locked(tandem_session *s, tandem_status status, bool logged)
{
    if (!s->broken) {
        s->broken_ns = td_now_ns();
        s->runs_on = s->ahead && td_gpu_signals(s) && td_stream_status(s->stream, NULL, 0) == TANDEM_OK;
    }
    set_broken(s, status, logged);
    for (uint32_t i = 0; i < s->order_count && s->ahead; i++) {
        if (s->broken == TANDEM_ERROR_LOST)
            td_job_release_wait_locked(s, s->order[i]);
        td_job_step_locked(s, s->order[i],
                           (td_life_event){.kind = TD_LIFE_REPORT, .state = TANDEM_JOB_FAILED, .status = s->broken});
    }
    td_session_retire_broken_locked(s);
    td_points_notify_locked(s);
}

bool td_gpu_is_well_locked(tandem_session *s)
{
    char why[TD_WHY_BYTES] = "";
    const tandem_status status = td_stream_status(s->stream, why, sizeof why);

    if (status == TANDEM_OK)
        return true;
    td_fail(s->unlogged, sizeof s->unlogged, status, "the GPU failed: %s", why[0] ? why : tandem_status_text(status));
    td_session_keep_error_locked(s, s->unlogged);
    td_session_break_locked(s, status, true);
    return false;
}
