/* Jobs under way in this process: the worker and the watchdog, how they are started and how they end.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * On a stream the worker waits for the GPU (local_stream.c), else it computes (local_cpu.c), or tandemd does
 * (remote_jobs.c). In all of them the watchdog gives up what is late, and jobs keep their order. This file calls those
 * that local.h names, and none of them calls it.
 */
#include <inttypes.h>

#include "engine_plugin/client/local.h"
#include "engine_plugin/client/network.h"

#define DRAIN_NS 1000000000u   /* what jobs on the GPU get at the end before their waits are released by force */
#define DECIDING_NS 20000u     /* a device that has claimed decides within microseconds */

tandem_status td_threads_start(tandem_session *s, void *(*work)(void *), char *why)
{
    s->caller_cpu = s->worker_cpu = -1;
    s->sleeper = td_sleeper_make();
    if (!s->sleeper)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for a thread");
    s->has_watchdog = td_thread_start(&s->watchdog, td_local_watch, s);
    s->has_worker = s->has_watchdog && td_thread_start(&s->worker, work, s);
    if (!s->has_worker)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no thread could be started");
    return TANDEM_OK;
}

static tandem_status start(tandem_session *s, char *why)
{
    s->ahead = s->stream != NULL;
    if (!s->ahead)
        s->pool = td_thread_pool_create(s->threads);
    if (!s->ahead && !s->pool)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for %u threads", s->threads);
    return td_threads_start(s, s->ahead ? td_local_wait_for_gpu : td_local_work, why);
}

/* Jobs on the GPU get a while, then their waits are released, then they are left behind. */
static void drain(tandem_session *s, uint64_t until)
{
    const uint64_t begin_ns = td_now_ns();

    while (s->order_count) {
        uint64_t now = td_now_ns();

        td_jobs_advance_locked(s);
        for (uint32_t i = 0; i < s->order_count; i++) {
            const td_job *job = s->order[i];

            if ((now - begin_ns > DRAIN_NS || now > job->bound_ns) && td_job_release_wait_locked(s, s->order[i]))
                td_fail(s->unlogged, sizeof s->unlogged, TANDEM_ERROR_LOST,
                        "job %" PRIu64 ": its wait point {0x%" PRIx64 ", %" PRIu64
                        "} was announced and did not come: it is released by force",
                        job->number, job->wait->object.id, job->wait_value);
        }
        if (!s->order_count || now >= until)
            break;
        td_cond_wait_until(s, &s->changed, now + 1000000);
    }
}

/* The job that the worker computes is waited for, however long it takes; its deadline holds meanwhile. */
static void outlast_worker(tandem_session *s)
{
    while (s->order_count) {
        td_jobs_advance_locked(s);
        if (s->order_count)
            td_cond_wait_until(s, &s->changed, td_now_ns() + TD_UNWAITED_LOOK_NS);
    }
}

/* Takes the worker back; false: it is still in the driver and was left there. */
static bool join_worker(tandem_session *s, uint64_t until_ns)
{
    td_sleeper *sleeper = s->sleeper;
    bool left_behind;

    pthread_mutex_lock(&sleeper->lock);
    while (sleeper->sleeps && td_now_ns() < until_ns)
        td_cond_wait(&sleeper->awake, &sleeper->lock, until_ns);
    left_behind = sleeper->left_behind = sleeper->sleeps;
    pthread_mutex_unlock(&sleeper->lock);
    if (left_behind) {
        pthread_detach(s->worker);
        s->sleeper = NULL; /* the thread's own now */
    } else {
        pthread_join(s->worker, NULL);
    }
    return !left_behind;
}

void td_threads_stop(tandem_session *s)
{
    const uint64_t until = td_after(td_now_ns(), TD_CLOSE_BOUND_NS);
    char line[TD_WHY_BYTES] = "";
    bool joined = true;
    uint32_t left;

    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    td_recorded_cancel_all_locked(s, NULL);
    for (uint32_t i = 0; i < s->order_count; i++)
        if (!td_job_has_begun(s->order[i]))
            td_job_cancel_locked(s, s->order[i]);
    pthread_cond_broadcast(&s->work);
    pthread_cond_broadcast(&s->watch);
    pthread_mutex_unlock(&s->lock);
    if (s->has_watchdog)
        pthread_join(s->watchdog, NULL);
    pthread_mutex_lock(&s->lock);
    if (s->stream)
        drain(s, until);
    else if (s->pool)
        outlast_worker(s);
    left = s->order_count;
    s->abandoned = true;
    while (s->ahead && s->order_count && !s->enqueuing) /* those of the worker are its own until it is gone */
        td_job_abandon_locked(s, s->order[0], TANDEM_ERROR_LOST, false);
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    if (s->has_worker)
        joined = join_worker(s, until);
    if (joined)
        td_thread_pool_destroy(&s->pool);
    pthread_mutex_lock(&s->lock);
    left = s->ahead ? left : s->order_count;
    s->stuck = s->stuck || left || !joined;
    while (s->order_count)
        td_job_abandon_locked(s, s->order[0], TANDEM_ERROR_LOST, false);
    pthread_mutex_unlock(&s->lock);
    if (left)
        td_logf(&s->log, TD_LOG_ERROR, "%u job%s did not end on the GPU within 2 s; what they use is left behind", left,
                left == 1 ? "" : "s");
    /* What failed may run on; once the stream is idle, or dead, nothing uses anything any more. */
    if (s->stuck && s->stream && joined)
        s->stuck = !td_stream_drain(s->stream, until > td_now_ns() ? until - td_now_ns() : 0);
    pthread_mutex_lock(&s->lock);
    td_points_end_locked(s, NULL);
    td_session_tell_broken_locked(s, line);
    pthread_mutex_unlock(&s->lock);
    if (line[0])
        td_logf(&s->log, TD_LOG_ERROR, "%s", line);
    if (s->hint[0])
        td_logf(&s->log, TD_LOG_WARN, "%s", s->hint);
    for (uint32_t i = 0; i < s->jobs_in_flight; i++)
        td_scratch_free(s, &s->jobs[i].scratch);
    td_scratch_free_retired(s);
    td_sleeper_free(s->sleeper);
}

static void object_end(tandem_session *s, td_object *object)
{
    (void)s, (void)object; /* nobody else knows it */
}

static void announce(tandem_session *s, td_timeline *timeline, uint64_t value)
{
    (void)s, (void)timeline, (void)value; /* seen as soon as jobs are looked at */
}

static void wake(tandem_session *s)
{
    pthread_cond_broadcast(&s->work);
}

const td_backend td_backend_local = {
    .tuning = TANDEM_TUNING_RULE,
    .deciding_ns = DECIDING_NS,
    .no_fd = "the CPU cannot map OPAQUE_FD memory",
    .start = start,
    .stop = td_threads_stop,
    .mem_share = td_local_mem_share,
    .timeline_share = td_local_timeline_share,
    .model_load = td_local_model_load,
    .model_tensor_locked = td_local_model_tensor_locked,
    .instance_make = td_local_instance_make,
    .prepare = td_local_prepare,
    .state_copy = td_local_state_copy,
    .instance_is_lost_locked = td_local_instance_is_lost_locked,
    .object_end = object_end,
    .submit_locked = td_local_submit_locked,
    .announce_locked = announce,
    .wake_locked = wake,
    .caller_waits_locked = td_local_caller_waits_locked,
    .caller_leaves_locked = td_local_caller_leaves_locked,
};
