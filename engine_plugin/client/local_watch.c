/* The watchdog: gives up what is late, asks after the GPU, sets off descriptors, and logs what nobody else may.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Lines that others come by while they hold the lock, or while somebody waits for them, are left to this thread to log.
 * This file calls local_end.c, local_stream.c and local_cpu.c; local.c calls it.
 */
#include <inttypes.h>
#include <stdio.h>

#include "engine_plugin/client/local.h"

#define POINT_LOOK_NS 50000u   /* how often an engine's value is looked at for a descriptor, */
#define POINT_EAGER_NS 100000000u /* for so long; then with td_nap_ns() */
/* And how often one that a held job waits for and that was not announced: at first, and around the time when it came for
 * the last job; else so that it is seen an eighth late, and by half a millisecond at most; and the same where the engine
 * announces, since then the announcement is what is waited for. */
#define HELD_LOOK_NS 50000u
#define HELD_AROUND_NS 1000000u /* at most so long before and behind that time */
#define HELD_REST_NS 500000u
#define CALIBRATE_NS 1000000000u

/* Of a stream whose points only the GPU can read: whether a job is at work, or behind one that is. */
static bool has_begun(tandem_session *s, const td_job *job)
{
    return td_stream_begun(s->stream, job->stream_sequence) ||
           td_stream_completed(s->stream) + 1 < job->stream_sequence;
}

/* The GPU is at it, and not at its wait. */
static bool is_running(tandem_session *s, const td_job *job)
{
    return td_job_has_begun(job) && !td_job_is_given_up(job) && (job->life.busy || td_stream_begun(s->stream, job->stream_sequence));
}

/* On a stream: the first job whose wait is out of bounds, once; held or on the GPU. */
static void look_at_bounds(tandem_session *s, uint64_t now, char *line)
{
    uint64_t value = 0;

    for (uint32_t i = 0; i < s->order_count; i++) {
        td_job *job = s->order[i];
        char where[120];

        if (is_running(s, job)) /* the engine may wait for it before it signals more */
            return;
        if (!job->wait || job->wait->by_session || job->late_logged || now < td_job_bound_locked(s, job))
            continue;
        if (s->imports_only ? has_begun(s, job)
                            : td_timeline_value_locked(s, job->wait, &value) != TANDEM_OK || value >= job->wait_value)
            continue;
        job->late_logged = true;
        if (td_job_has_begun(job) && !job->life.busy)
            snprintf(where, sizeof where, "on the GPU as submit %" PRIu64 ", %u of its %u records finished",
                     job->stream_sequence, td_stream_progress(s->stream, job->stream_sequence), job->plan->record_count);
        else
            snprintf(where, sizeof where, "held on the host");
        td_fail(line, TD_WHY_BYTES, TANDEM_ERROR_LOST,
                "job %" PRIu64 ": wait point {0x%" PRIx64 ", %" PRIu64 "} did not come within %" PRIu64
                " ms; the counter is %" PRIu64 ", the engine signals it and has announced %" PRIu64 "; the job is %s",
                job->number, job->wait->object.id, job->wait_value, s->wait_bound_ns / 1000000, value,
                job->wait->submitted, where);
        td_session_keep_error_locked(s, line);
        td_job_give_up_locked(s, job, TANDEM_JOB_FAILED, TANDEM_ERROR_LOST);
        if (s->imports_only)
            td_job_release_wait_locked(s, job);
        return;
    }
}

static void calibrate(tandem_session *s)
{
    uint64_t device_ns, now_ns;

    pthread_mutex_unlock(&s->lock);
    if (td_vk_calibrate(s->vk, &device_ns, &now_ns) == TANDEM_OK)
        td_stream_set_clock_offset_ns(s->stream, (int64_t)(device_ns - now_ns));
    pthread_mutex_lock(&s->lock);
}

void td_session_tell_broken_locked(tandem_session *s, char *line)
{
    if (s->broken_unlogged) {
        s->broken_unlogged = false;
        td_fail(line, TD_WHY_BYTES, s->broken, "a semaphore can be neither read nor signalled any more: %s",
                tandem_status_text(s->broken));
        td_session_keep_error_locked(s, line);
    } else if (s->unlogged[0]) {
        snprintf(line, TD_WHY_BYTES, "%s", s->unlogged);
        s->unlogged[0] = 0;
    }
}

static bool take_hint(tandem_session *s, char *line, td_log_level *level)
{
    if (!s->hint[0])
        return false;
    td_text(line, TD_WHY_BYTES, "%s", s->hint);
    s->hint[0] = 0;
    *level = TD_LOG_WARN;
    return true;
}

/* When to look again at a value that wakes nobody, waited for since `since_ns`. */
static uint64_t next_point_look(uint64_t now, uint64_t since_ns)
{
    const uint64_t nap = td_nap_ns(now - since_ns);

    return now + (now - since_ns < POINT_EAGER_NS ? td_sooner(nap, POINT_LOOK_NS) : nap);
}

static uint64_t next_held_look(uint64_t now, const td_job *job)
{
    const uint64_t waited = now - job->submit_ns, guess = job->wait->held_ns, around = td_sooner(guess / 16, HELD_AROUND_NS);
    uint64_t nap = td_sooner(waited / 8, HELD_REST_NS);

    if (job->wait->submitted)
        return now + HELD_REST_NS;
    if (waited < guess - around)
        nap = td_sooner(nap, guess - around - waited);
    else if (waited < guess + around)
        nap = 0;
    return now + (nap < HELD_LOOK_NS ? HELD_LOOK_NS : nap);
}

static uint64_t next_look(tandem_session *s, uint64_t now, uint64_t asked_ns)
{
    /* For a while after the last job as well: then the next one need not wake it. */
    uint64_t next = !s->stream || asked_ns == UINT64_MAX ? UINT64_MAX
                    : s->broken && s->order_count        ? now + TD_UNWAITED_LOOK_NS
                                                         : asked_ns + TD_STATUS_NS;
    bool held = false;

    for (uint32_t i = 0; i < s->order_count; i++) {
        const td_job *job = s->order[i];

        if (td_job_is_deciding(job))
            next = td_sooner(next, td_after(now, s->ops->deciding_ns));
        else if (job->life.has_deadline && td_job_is_wanted(job))
            next = td_sooner(next, td_toward(now, job->life.deadline_ns));
        if (s->ahead && job->wait && !job->wait->by_session && !job->late_logged && now < td_job_bound_locked(s, job))
            next = td_sooner(next, td_job_bound_locked(s, job));
        if (s->ahead && !held && !td_job_has_begun(job) && job->wait && job->wait->semaphore && !td_job_is_given_up(job))
            next = td_sooner(next, next_held_look(now, job));
        held = held || !td_job_has_begun(job);
    }
    for (uint32_t i = 0; i < s->point_fd_count; i++)
        if (s->point_fds[i].timeline->semaphore && !s->point_fds[i].timeline->by_session)
            next = td_sooner(next, next_point_look(now, s->point_fds[i].since_ns));
    return next;
}

void *td_local_watch(void *user)
{
    tandem_session *s = user;
    uint64_t asked_ns = UINT64_MAX, calibrated_ns = 0; /* the driver is asked once jobs have been there for a while */
    uint64_t asked_at = 0; /* how many there had been by then */

    td_thread_prepare("tandem watch");
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        char line[TD_WHY_BYTES] = "";
        td_log_level level = TD_LOG_ERROR;
        uint64_t now;

        td_jobs_advance_locked(s);
        td_points_notify_locked(s);
        now = td_now_ns();
        if (asked_ns == UINT64_MAX || now - asked_ns >= TD_STATUS_NS) {
            if (s->stream && asked_ns != UINT64_MAX && s->order_count && !s->broken)
                td_gpu_is_well_locked(s);
            asked_ns = s->order_count || asked_at != s->last_number ? now : UINT64_MAX;
            asked_at = s->last_number;
        }
        if (!line[0] && s->ahead)
            look_at_bounds(s, now, line);
        if (!line[0])
            td_session_tell_broken_locked(s, line);
        if (line[0] || take_hint(s, line, &level)) {
            pthread_mutex_unlock(&s->lock);
            td_logf(&s->log, level, "%s", line);
            pthread_mutex_lock(&s->lock);
            continue;
        }
        if (s->same_clock && s->order_count && now - calibrated_ns > CALIBRATE_NS) {
            calibrated_ns = now;
            calibrate(s);
        }
        s->watch_until_ns = next_look(s, now, asked_ns);
        if (!s->stopping)
            td_cond_wait_until(s, &s->watch, s->watch_until_ns);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}
