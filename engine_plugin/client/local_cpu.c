/* The worker that computes: it waits for a job's point, runs its plan, and signals its point, one job after the other.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A worker session's caller may do the same in its place. This file calls local_end.c and local_stream.c.
 */
#include <inttypes.h>

#include "engine_plugin/client/local.h"
#include "engine_plugin/client/network.h"

static bool cannot_wait(tandem_session *s, td_job *job, tandem_status status, char *line)
{
    td_session_break_locked(s, status, true);
    td_fail(line, TD_WHY_BYTES, s->broken, "job %" PRIu64 ": waiting for its point failed: %s", job->number,
            tandem_status_text(s->broken));
    td_session_keep_error_locked(s, line);
    return td_job_give_up_locked(s, job, TANDEM_JOB_FAILED, s->broken);
}

uint64_t td_job_bound_locked(const tandem_session *s, const td_job *job)
{
    const uint64_t since_computed = td_after(s->computed_ns, s->wait_bound_ns);

    return since_computed > job->bound_ns ? since_computed : job->bound_ns;
}

/* False: it was given up. */
static bool wait_for_point(tandem_session *s, td_job *job, char *line)
{
    const uint64_t begin_ns = td_now_ns();

    for (;;) {
        uint64_t now = td_now_ns(), value = job->wait_value, until;
        tandem_status status = TANDEM_OK;
        td_timeline *wait = job->wait;

        if (s->stopping)
            td_job_give_up_locked(s, job, TANDEM_JOB_CANCELLED, TANDEM_OK);
        if (s->broken)
            td_job_give_up_locked(s, job, TANDEM_JOB_FAILED, s->broken);
        td_job_step_locked(s, job, (td_life_event){.kind = TD_LIFE_TIME, .now_ns = now});
        if (td_job_is_given_up(job))
            return false;
        if (wait)
            status = td_timeline_value_locked(s, wait, &value);
        if (status == TANDEM_OK && value >= job->wait_value)
            return true;
        if (status == TANDEM_OK && now >= td_job_bound_locked(s, job)) {
            td_fail(line, TD_WHY_BYTES, TANDEM_ERROR_LOST,
                    "job %" PRIu64 ": wait point {0x%" PRIx64 ", %" PRIu64 "} did not come within %" PRIu64
                    " ms; the counter is %" PRIu64 ", the engine signals it, and the job has not begun",
                    job->number, wait->object.id, job->wait_value, s->wait_bound_ns / 1000000, value);
            td_session_keep_error_locked(s, line);
            td_job_give_up_locked(s, job, TANDEM_JOB_FAILED, TANDEM_ERROR_LOST);
            return false;
        }
        if (status != TANDEM_OK)
            return !cannot_wait(s, job, status, line);
        until = td_job_bound_locked(s, job);
        if (job->life.has_deadline && job->life.deadline_ns < until)
            until = job->life.deadline_ns;
        td_timeline_nap_locked(s, wait, &s->work, begin_ns, until);
    }
}

/* Called and left with the lock held. */
static tandem_status run_on_cpu(tandem_session *s, td_job *job, td_thread_pool *pool, uint64_t *begin_ns,
                                uint64_t *end_ns)
{
    const uint64_t scratch = job->scratch.address; /* the slot's may become another meanwhile, and this one is kept */
    td_preemptible yields = {.flag = s->preempt, .pace = job->instance ? &job->instance->pace : NULL};
    tandem_status status;

    job->control_block = &job->control;
    pthread_mutex_unlock(&s->lock);
    *begin_ns = td_now_ns();
    status = td_exec_cpu_run_preemptibly(job->plan, job->views, scratch, pool, &job->control, &yields);
    *end_ns = td_now_ns();
    pthread_mutex_lock(&s->lock);
    s->held_ns += yields.held_ns;
    s->late_ns = yields.late_ns > s->late_ns ? yields.late_ns : s->late_ns;
    return status == TANDEM_ERROR_BUSY && td_job_is_given_up(job) ? TANDEM_OK : status; /* it was told to stop */
}

static void work_on(tandem_session *s, td_job *job, td_thread_pool *pool, char *line)
{
    tandem_job_report *report = td_job_report_locked(s, job);
    uint64_t begin_ns, end_ns;
    tandem_status status;

    td_job_event_locked(s, job, TD_LIFE_TAKEN);
    if (!wait_for_point(s, job, line)) {
        td_job_event_locked(s, job, TD_LIFE_LEFT);
        td_job_event_locked(s, job, TD_LIFE_TURN);
        return;
    }
    td_job_event_locked(s, job, TD_LIFE_BEGUN);
    job->begun_ns = td_now_ns();
    td_forgotten_look_locked(s, job);
    pthread_cond_broadcast(&s->changed);
    if (report->state == TANDEM_JOB_PENDING)
        report->state = TANDEM_JOB_RUNNING;
    status = run_on_cpu(s, job, pool, &begin_ns, &end_ns);
    if (s->timing) {
        report->begin_ns = begin_ns;
        report->end_ns = end_ns;
    }
    if (status != TANDEM_OK) {
        td_fail(line, TD_WHY_BYTES, status, "job %" PRIu64 ": %s", job->number, tandem_status_text(status));
        td_session_keep_error_locked(s, line);
    }
    td_job_end_locked(s, job, status);
}

void td_job_compute_locked(tandem_session *s, td_job *job, tandem_job_report *report)
{
    const tandem_job_report *kept;

    td_job_accept_locked(s, job);
    kept = td_job_report_locked(s, job);
    s->order[s->order_count++] = job;
    if (td_job_first_look_ns(s, job) < s->watch_until_ns)
        pthread_cond_signal(&s->watch);
    work_on(s, job, NULL, s->unlogged); /* a line that the watchdog logs */
    *report = *kept;
    if (s->unlogged[0])
        pthread_cond_signal(&s->watch);
    if (s->order_count || s->stopping)
        pthread_cond_signal(&s->work);
}

void *td_local_work(void *user)
{
    tandem_session *s = user;

    td_thread_prepare("tandem worker");
    pthread_mutex_lock(&s->lock);
    for (;;) {
        char line[TD_WHY_BYTES] = "";

        td_jobs_retire_given_up_locked(s);
        if (!s->order_count || s->order[0]->life.busy) {
            if (s->stopping && !s->order_count)
                break;
            pthread_cond_wait(&s->work, &s->lock);
            continue;
        }
        work_on(s, s->order[0], s->pool, line);
        if (line[0]) {
            pthread_mutex_unlock(&s->lock);
            td_logf(&s->log, TD_LOG_ERROR, "%s", line);
            pthread_mutex_lock(&s->lock);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}
