/* How jobs end: given up, through, or with a session whose device has failed.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A job's report ends (DONE, STALE, CANCELLED, FAILED) once and for all; the job itself is retired, and its slot free,
 * when its point is signalled and nothing uses its mems any more. The report of a job that is given up because it is
 * too late (STALE, FAILED) ends first.
 *
 * The other files of local.h call this one, which calls none of them.
 */
#include <pthread.h>
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

/* The report's end; later ends of the same job are ignored. */
void td_job_end_report_locked(tandem_session *s, td_job *job, tandem_job_state state, tandem_status status)
{
    tandem_job_report *report = td_job_report_locked(s, job);

    if (td_job_state_ended(report->state))
        return;
    report->state = state;
    report->status = status;
    if (state == TANDEM_JOB_DONE)
        td_forgotten_wrote_locked(job);
    s->done += state == TANDEM_JOB_DONE;
    s->stale += state == TANDEM_JOB_STALE;
    s->cancelled += state == TANDEM_JOB_CANCELLED;
    s->failed += state == TANDEM_JOB_FAILED;
    pthread_cond_broadcast(&s->changed);
}

static void drop_mems(tandem_session *s, td_job *job)
{
    for (uint32_t i = 0; i < TD_MAX_VIEWS; i++)
        if (job->mems[i]) {
            td_object_release_locked(s, &job->mems[i]->object);
            job->mems[i] = NULL;
        }
}

static void drop_wait(tandem_session *s, td_job *job)
{
    if (job->wait)
        td_object_release_locked(s, &job->wait->object);
    job->wait = NULL;
}

/* Drops what a job uses and frees its slot. */
static void drop_job(tandem_session *s, td_job *job)
{
    uint32_t at = 0;

    drop_mems(s, job);
    drop_wait(s, job);
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

void td_job_retire_locked(tandem_session *s, td_job *job, tandem_job_state state, tandem_status status)
{
    td_job_end_report_locked(s, job, state, status);
    drop_job(s, job);
}

/* The same after a signal for a job that the GPU does not signal for. Where the point cannot come the job has failed,
 * whatever was computed. */
void td_job_finish_locked(tandem_session *s, td_job *job, tandem_job_state state, tandem_status status)
{
    const tandem_status raised =
        job->signal ? td_timeline_raise_locked(s, job->signal, job->signal_value) : TANDEM_OK;

    if (raised != TANDEM_OK) {
        set_broken(s, raised, false);
        state = TANDEM_JOB_FAILED;
        status = s->broken;
    }
    td_job_retire_locked(s, job, state, status);
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

bool td_job_is_open(const td_job *job)
{
    return job->asked && !job->given_up && !job->committed;
}

bool td_job_give_up_locked(tandem_session *s, td_job *job, tandem_job_state state, tandem_status status)
{
    const bool first = !job->asked;

    if (job->given_up || job->committed)
        return job->given_up;
    if (first) { /* the first reason holds */
        job->asked = true;
        job->end_state = state;
        job->end_status = status;
    }
    if (job->begun) {
        const claim answer = claim_for_host(s, job);

        job->committed = answer == CLAIM_LOST;
        if (answer == CLAIM_OPEN)
            pthread_cond_signal(&s->watch);
        if (first)
            s->ops->wake_locked(s);
        if (answer != CLAIM_WON)
            return false;
    }
    job->given_up = true;
    if (job->end_state != TANDEM_JOB_CANCELLED)
        td_job_end_report_locked(s, job, job->end_state, job->end_status);
    if (!job->begun && !job->at_work) {
        drop_mems(s, job);
        drop_wait(s, job);
    }
    s->ops->wake_locked(s);
    return true;
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
        if (job->given_up && !job->begun && !job->at_work && first)
            td_job_finish_locked(s, job, job->end_state, job->end_status);
        else
            i++;
    }
}

/* The executor is through with a job. */
bool td_job_was_given_up(const td_job *job)
{
    return job->given_up || (td_job_is_open(job) && job->control_block &&
                             __atomic_load_n(&job->control_block->verdict, __ATOMIC_ACQUIRE) == TD_VERDICT_GIVEN_UP);
}

void td_job_end_locked(tandem_session *s, td_job *job, tandem_status status)
{
    tandem_job_state state = status == TANDEM_OK ? TANDEM_JOB_DONE : TANDEM_JOB_FAILED;

    if (td_job_was_given_up(job)) {
        state = job->end_state;
        status = job->end_status;
    }
    if (state == TANDEM_JOB_DONE) {
        td_guess_learn_locked(s, job);
        s->computed_ns = td_now_ns();
    }
    (s->gpu_signals ? td_job_retire_locked : td_job_finish_locked)(s, job, state, status);
}

/* The engine does not serve a wait that is on the GPU, and never will: it is dead, or this session ends. */
bool td_job_release_wait_locked(tandem_session *s, td_job *job)
{
    uint64_t value = 0;

    if (!job->begun || !s->gpu_signals || !job->wait || job->wait->by_session)
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
    while (s->ahead && s->order_count && !s->order[0]->at_work) {
        td_job *job = s->order[0];
        uint64_t value = 0;
        bool comes = job->begun && s->runs_on;

        if (job->begun && s->rung == TANDEM_RUNG_COPY && td_stream_completed(s->stream) < job->stream_sequence &&
            td_stream_status(s->stream, NULL, 0) == TANDEM_OK)
            break; /* it still writes */

        if (job->begun && s->gpu_signals && !s->runs_on && job->signal &&
            td_timeline_value_locked(s, job->signal, &value) == TANDEM_OK) {
            comes = value >= job->signal_value;
            if (!comes && td_now_ns() - s->broken_ns < BROKEN_NS)
                break;
        }
        (comes ? td_job_retire_locked : td_job_finish_locked)(s, job, TANDEM_JOB_FAILED, s->broken);
    }
}

/* A driver error that will not go away: every job ends FAILED, and points are signalled as far as that is still
 * possible. Where the GPU signals, it goes on doing so if only a semaphore cannot be read. Jobs of the worker are left to
 * it. */
void td_session_break_locked(tandem_session *s, tandem_status status, bool logged)
{
    if (!s->broken) {
        s->broken_ns = td_now_ns();
        s->runs_on = s->ahead && s->gpu_signals && td_stream_status(s->stream, NULL, 0) == TANDEM_OK;
    }
    set_broken(s, status, logged);
    for (uint32_t i = 0; i < s->order_count && s->ahead; i++) {
        if (s->broken == TANDEM_ERROR_LOST)
            td_job_release_wait_locked(s, s->order[i]);
        td_job_end_report_locked(s, s->order[i], TANDEM_JOB_FAILED, s->broken);
    }
    td_session_retire_broken_locked(s);
    td_points_notify_locked(s);
}
