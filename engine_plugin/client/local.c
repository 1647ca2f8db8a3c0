/* Jobs under way.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   rung `timeline`   submit enqueues wait, kernels and signal on the stream; the watchdog only looks
 *   other rungs       submit queues; the worker waits for the point, runs the plan, signals the point
 *
 * A job's report ends (DONE, STALE, CANCELLED, FAILED) once and for all; the job itself is retired, and its slot free,
 * when its point is signalled and nothing uses its mems any more. A STALE job is the one case where the report ends
 * first.
 */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "engine_plugin/client/client.h"

#define WATCH_NS 5000000u           /* how often the watchdog looks at the GPU */
#define WATCH_DEADLINE_NS 500000u   /* the same while a job has a deadline */
#define STATUS_NS 100000000u        /* how long the GPU may be silent before the driver is asked for errors */
#define CALIBRATE_NS 1000000000u
#define DRAIN_NS 500000000u         /* what jobs on the GPU get at the end before their waits are released by force */
#define SCRATCH_LEAST_BYTES 65536u
#define SCRATCH_ALIGNMENT 256u

bool td_job_state_ended(uint32_t state)
{
    return state != TANDEM_JOB_PENDING && state != TANDEM_JOB_RUNNING;
}

tandem_job_report *td_job_report_locked(tandem_session *s, const td_job *job)
{
    return &s->reports[job->number % TD_REPORTS];
}

/* The report's end; later ends of the same job are ignored. */
static void end_report(tandem_session *s, td_job *job, tandem_job_state state, tandem_status status)
{
    tandem_job_report *report = td_job_report_locked(s, job);

    if (td_job_state_ended(report->state))
        return;
    report->state = state;
    report->status = status;
    s->done += state == TANDEM_JOB_DONE;
    s->stale += state == TANDEM_JOB_STALE;
    s->cancelled += state == TANDEM_JOB_CANCELLED;
    s->failed += state == TANDEM_JOB_FAILED;
    pthread_cond_broadcast(&s->changed);
}

static void drop_mems(tandem_session *s, td_job *job)
{
    for (uint32_t i = 0; i < TD_VIEW_COUNT; i++)
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
    if (job->signal)
        td_object_release_locked(s, &job->signal->object);
    job->signal = NULL;
    while (at < s->order_count && s->order[at] != job)
        at++;
    if (at < s->order_count)
        memmove(s->order + at, s->order + at + 1, (--s->order_count - at) * sizeof *s->order);
    job->number = 0;
    pthread_cond_broadcast(&s->changed);
}

static void set_broken(tandem_session *s, tandem_status status, bool told)
{
    if (!s->broken)
        s->broken_untold = !told;
    s->stuck = s->stuck || s->cu;
    s->broken = status == TANDEM_ERROR_LOST ? TANDEM_ERROR_LOST : TANDEM_ERROR_DEVICE;
    pthread_cond_signal(&s->watch);
    pthread_cond_broadcast(&s->work);
}

void td_job_retire_locked(tandem_session *s, td_job *job, tandem_job_state state, tandem_status status)
{
    end_report(s, job, state, status);
    drop_job(s, job);
}

/* The same after a signal for a job that the GPU does not signal for. Where the point cannot come the job has failed,
 * whatever was computed. */
static void finish(tandem_session *s, td_job *job, tandem_job_state state, tandem_status status)
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

void td_job_cancel_locked(tandem_session *s, td_job *job)
{
    job->cancelled = true;
    __atomic_store_n(&job->control.cancel, 1, __ATOMIC_RELAXED);
    if (!job->begun) {
        drop_mems(s, job);
        drop_wait(s, job);
    }
    pthread_cond_broadcast(&s->work);
}

void td_jobs_settle_locked(tandem_session *s)
{
    for (uint32_t i = 0; i < s->order_count;) {
        td_job *job = s->order[i];
        bool first = true;

        for (uint32_t e = 0; e < i; e++)
            first = first && (!job->signal || s->order[e]->signal != job->signal);
        if (job->cancelled && !job->begun && !job->held && first)
            finish(s, job, TANDEM_JOB_CANCELLED, TANDEM_OK);
        else
            i++;
    }
}

/* A driver error that will not go away: every job ends FAILED, and points are signalled as far as that is still
 * possible; a stream that still runs does so itself. `told`: the caller logs the cause; else the watchdog logs that it
 * happened. */
static void break_session(tandem_session *s, tandem_status status, bool told)
{
    bool runs;

    set_broken(s, status, told);
    if (!s->gpu_signals)
        return;
    runs = td_stream_status(s->stream, NULL, 0) == TANDEM_OK;
    while (s->order_count)
        (runs ? td_job_retire_locked : finish)(s, s->order[0], TANDEM_JOB_FAILED, s->broken);
}

/* The `timeline` rung: true if the job is over on the GPU and its point is signalled. */
static bool gpu_is_done(tandem_session *s, const td_job *job, tandem_status *status)
{
    uint64_t value = 0;

    if (td_stream_completed(s->stream) < job->stream_sequence)
        return false;
    if (!job->signal)
        return true;
    *status = td_timeline_value_locked(s, job->signal, &value);
    return *status == TANDEM_OK && value >= job->signal_value;
}

static void end_by_times(tandem_session *s, td_job *job)
{
    tandem_job_report *report = td_job_report_locked(s, job);
    uint64_t begin = 0, end = 0;
    bool known = td_stream_times(s->stream, job->stream_sequence, &begin, &end);

    if (known && s->timing) {
        report->begin_ns = begin;
        report->end_ns = end;
    }
    if (job->has_deadline && (known ? end : td_now_ns()) > job->deadline_ns)
        end_report(s, job, TANDEM_JOB_STALE, TANDEM_OK);
    else
        end_report(s, job, TANDEM_JOB_DONE, TANDEM_OK);
}

void td_jobs_advance_locked(tandem_session *s)
{
    tandem_status status = TANDEM_OK;
    uint64_t now, value;

    while (s->gpu_signals && s->order_count && gpu_is_done(s, s->order[0], &status)) {
        end_by_times(s, s->order[0]);
        drop_job(s, s->order[0]);
    }
    if (s->gpu_signals && s->order_count && status == TANDEM_OK) {
        tandem_job_report *head = td_job_report_locked(s, s->order[0]);

        if (head->state == TANDEM_JOB_PENDING) {
            value = s->order[0]->wait_value;
            if (s->order[0]->wait)
                status = td_timeline_value_locked(s, s->order[0]->wait, &value);
            if (status == TANDEM_OK && value >= s->order[0]->wait_value)
                head->state = TANDEM_JOB_RUNNING;
        }
    }
    if (status != TANDEM_OK)
        break_session(s, status, false);
    if (!s->order_count)
        return;
    now = td_now_ns();
    for (uint32_t i = 0; i < s->order_count; i++) {
        td_job *job = s->order[i];

        if (!job->has_deadline || now < job->deadline_ns || job->cancelled)
            continue;
        __atomic_store_n(&job->control.cancel, 1, __ATOMIC_RELAXED);
        end_report(s, job, TANDEM_JOB_STALE, TANDEM_OK);
    }
}

/* Scratch. */

static void free_scratch(tandem_session *s, td_scratch *scratch)
{
    if (scratch->mem) {
        s->mem_device_bytes -= scratch->mem->device_share;
        td_mem_free(s, scratch->mem);
    }
    td_session_free(s, scratch->block, scratch->bytes);
    *scratch = (td_scratch){0};
}

static void free_garbage(tandem_session *s)
{
    while (s->garbage_count)
        free_scratch(s, &s->garbage[--s->garbage_count]);
}

tandem_status td_scratch_reserve_locked(tandem_session *s, td_job *job, uint64_t bytes, char *why)
{
    tandem_status status = TANDEM_OK;
    td_scratch more = {0};

    if (!s->order_count)
        free_garbage(s);
    if (bytes <= job->scratch.bytes)
        return TANDEM_OK;
    if (job->scratch.bytes && s->order_count && s->garbage_count == TD_MAX_GARBAGE)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_BUSY, "%d blocks of scratch are still in use", TD_MAX_GARBAGE);
    if (bytes > (uint64_t)INT64_MAX)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "the job needs %" PRIu64 " bytes of scratch", bytes);
    more.bytes = bytes > SCRATCH_LEAST_BYTES ? td_align_up(bytes, 4096) : SCRATCH_LEAST_BYTES;
    if (s->order_count && more.bytes < job->scratch.bytes + job->scratch.bytes / 2)
        more.bytes = td_align_up(job->scratch.bytes + job->scratch.bytes / 2, 4096); /* few outgrown blocks at a time */
    if (s->stream) {
        more.mem = td_mem_new(s, more.bytes, why);
        status = more.mem ? td_mem_make_private(s, more.mem, why) : TANDEM_ERROR_NOMEM;
        if (more.mem) {
            more.address = more.mem->address;
            s->mem_device_bytes += more.mem->device_share;
        }
    } else {
        more.block = td_session_alloc_dirty(s, more.bytes, SCRATCH_ALIGNMENT);
        more.address = (uintptr_t)more.block;
        if (!more.block)
            status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for %" PRIu64 " bytes of scratch",
                             more.bytes);
    }
    if (status != TANDEM_OK) {
        free_scratch(s, &more);
        return status;
    }
    if (s->order_count && job->scratch.bytes)
        s->garbage[s->garbage_count++] = job->scratch;
    else
        free_scratch(s, &job->scratch);
    job->scratch = more;
    return TANDEM_OK;
}

/* Start. */

static const char *label_of(const td_plan *plan)
{
    switch (plan->precision) {
    case TANDEM_PRECISION_F16: return "tandem attention f16";
    case TANDEM_PRECISION_8B: return "tandem attention 8b";
    default: return "tandem attention";
    }
}

static tandem_status enqueue(tandem_session *s, td_job *job, td_stage *stage, char *why)
{
    const td_stream_point wait = {job->wait ? &job->wait->cu : NULL, VK_NULL_HANDLE, job->wait_value},
                          signal = {job->signal ? &job->signal->cu : NULL, VK_NULL_HANDLE, job->signal_value};
    td_stream_submit submit = {
        .plan = &job->plan,
        .views = job->views,
        .scratch = job->scratch.address,
        .slot = (uint32_t)(job - s->jobs),
        .wait = s->gpu_signals && job->wait ? &wait : NULL,
        .signal = s->gpu_signals && job->signal ? &signal : NULL,
        .label = label_of(&job->plan),
    };
    tandem_status status = stage ? td_stage_in(s, job, stage, &submit, why) : TANDEM_OK;
    bool signalled;

    if (status != TANDEM_OK)
        return status;
    return td_stream_enqueue(s->stream, &submit, &job->stream_sequence, &signalled, why, TD_WHY_BYTES);
}

tandem_status td_job_start_locked(tandem_session *s, td_job *job, tandem_ticket *ticket, char *why)
{
    tandem_status status;

    if (s->gpu_signals) {
        status = enqueue(s, job, NULL, why);
        if (status != TANDEM_OK) {
            if (status == TANDEM_ERROR_DEVICE || status == TANDEM_ERROR_LOST)
                break_session(s, status, true);
            return status;
        }
        job->begun = true;
    }
    *ticket = td_job_accept_locked(s, job);
    s->order[s->order_count++] = job;
    pthread_cond_signal(&s->work);
    pthread_cond_signal(&s->watch);
    return TANDEM_OK;
}

/* The worker. */

typedef struct verdict {
    bool run;
    tandem_job_state state;
    tandem_status status;
} verdict;

static verdict wait_for_point(tandem_session *s, td_job *job, char *line)
{
    const uint64_t begin_ns = td_now_ns();

    for (;;) {
        uint64_t now = td_now_ns(), value = job->wait_value, until;
        tandem_status status = TANDEM_OK;
        td_timeline *wait = job->wait;

        if (job->cancelled || s->stopping)
            return (verdict){.state = TANDEM_JOB_CANCELLED};
        if (s->broken)
            return (verdict){.state = TANDEM_JOB_FAILED, .status = s->broken};
        if (job->has_deadline && now >= job->deadline_ns)
            return (verdict){.state = TANDEM_JOB_STALE};
        if (wait)
            status = td_timeline_value_locked(s, wait, &value);
        if (status == TANDEM_OK && value >= job->wait_value)
            return (verdict){.run = true};
        if (status == TANDEM_OK && now >= job->bound_ns) {
            td_fail(line, TD_WHY_BYTES, TANDEM_ERROR_LOST,
                    "job %" PRIu64 ": wait point {0x%" PRIx64 ", %" PRIu64 "} did not come within %" PRIu64
                    " ms; the counter is %" PRIu64,
                    job->number, wait->object.id, job->wait_value, s->wait_bound_ns / 1000000, value);
            td_session_keep_error_locked(s, line);
            return (verdict){.state = TANDEM_JOB_FAILED, .status = TANDEM_ERROR_LOST};
        }
        until = job->bound_ns;
        if (job->has_deadline && job->deadline_ns < until)
            until = job->deadline_ns;
        if (status == TANDEM_OK)
            td_timeline_nap_locked(s, wait, &s->work, begin_ns, until);
        if (status != TANDEM_OK) {
            break_session(s, status, true);
            td_fail(line, TD_WHY_BYTES, s->broken, "job %" PRIu64 ": waiting for its point failed: %s", job->number,
                    tandem_status_text(s->broken));
            td_session_keep_error_locked(s, line);
            return (verdict){.state = TANDEM_JOB_FAILED, .status = s->broken};
        }
    }
}

/* Without the lock. */
static tandem_status run_on_cpu(tandem_session *s, td_job *job, uint64_t *begin_ns, uint64_t *end_ns)
{
    tandem_status status;

    *begin_ns = td_now_ns();
    status = td_exec_cpu_run(&job->plan, job->views, job->scratch.address, s->threads, &job->control);
    *end_ns = td_now_ns();
    return status;
}

/* Without the lock; polls, since nothing wakes the host. */
static tandem_status run_on_stream(tandem_session *s, td_job *job, uint64_t *begin_ns, uint64_t *end_ns, char *why)
{
    uint64_t asked_ns = td_now_ns();
    td_stage stage;
    tandem_status status = enqueue(s, job, s->rung == TANDEM_RUNG_COPY ? &stage : NULL, why);

    *begin_ns = asked_ns;
    while (status == TANDEM_OK && td_stream_completed(s->stream) < job->stream_sequence) {
        uint64_t now = td_now_ns();
        bool late;

        td_sleep_ns(td_nap_ns(now - *begin_ns));
        if (now - asked_ns < STATUS_NS)
            continue;
        asked_ns = now;
        status = td_stream_status(s->stream, why, TD_WHY_BYTES);
        pthread_mutex_lock(&s->lock);
        late = s->stopping && now > s->stop_by_ns;
        if (late)
            s->stuck = true;
        pthread_mutex_unlock(&s->lock);
        if (late)
            status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_LOST, "the GPU did not end the job in time");
    }
    *end_ns = td_now_ns();
    if (status == TANDEM_OK)
        td_stream_times(s->stream, job->stream_sequence, begin_ns, end_ns);
    if (status == TANDEM_OK && s->rung == TANDEM_RUNG_COPY && !job->cancelled &&
        (!job->has_deadline || *end_ns <= job->deadline_ns))
        status = td_stage_out(s, job, &stage, why);
    return status;
}

static void work_on(tandem_session *s, td_job *job, char *line)
{
    tandem_job_report *report = td_job_report_locked(s, job);
    char why[TD_WHY_BYTES] = "";
    uint64_t begin_ns, end_ns;
    tandem_status status;
    verdict v;

    job->held = true;
    v = wait_for_point(s, job, line);
    if (!v.run) {
        finish(s, job, v.state, v.status);
        return;
    }
    job->begun = true;
    if (report->state == TANDEM_JOB_PENDING)
        report->state = TANDEM_JOB_RUNNING;
    pthread_mutex_unlock(&s->lock);
    if (s->cu)
        status = run_on_stream(s, job, &begin_ns, &end_ns, why);
    else
        status = run_on_cpu(s, job, &begin_ns, &end_ns);
    pthread_mutex_lock(&s->lock);
    if (s->timing) {
        report->begin_ns = begin_ns;
        report->end_ns = end_ns;
    }
    if (job->cancelled) {
        finish(s, job, TANDEM_JOB_CANCELLED, TANDEM_OK);
    } else if (status == TANDEM_ERROR_BUSY || (status == TANDEM_OK && job->has_deadline && end_ns > job->deadline_ns)) {
        finish(s, job, TANDEM_JOB_STALE, TANDEM_OK);
    } else if (status == TANDEM_OK) {
        finish(s, job, TANDEM_JOB_DONE, TANDEM_OK);
    } else {
        td_fail(line, TD_WHY_BYTES, status, "job %" PRIu64 ": %s", job->number,
                why[0] ? why : tandem_status_text(status));
        td_session_keep_error_locked(s, line);
        if (status == TANDEM_ERROR_DEVICE || status == TANDEM_ERROR_LOST)
            break_session(s, status, true);
        finish(s, job, TANDEM_JOB_FAILED, status);
    }
}

static void *work(void *user)
{
    tandem_session *s = user;

    pthread_mutex_lock(&s->lock);
    for (;;) {
        char line[TD_WHY_BYTES] = "";

        td_jobs_settle_locked(s);
        if (!s->order_count) {
            if (s->stopping)
                break;
            pthread_cond_wait(&s->work, &s->lock);
            continue;
        }
        work_on(s, s->order[0], line);
        if (line[0]) {
            pthread_mutex_unlock(&s->lock);
            td_logf(&s->log, TD_LOG_ERROR, "%s", line);
            pthread_mutex_lock(&s->lock);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* The watchdog. */

/* Lets go of a wait on the GPU that the engine does not serve. */
static void release_wait(tandem_session *s, td_job *job)
{
    td_timeline_raise_locked(s, job->wait, job->wait_value);
    end_report(s, job, TANDEM_JOB_FAILED, TANDEM_ERROR_LOST);
}

/* The `timeline` rung: the first job whose point is out of bounds, or a driver error after a long silence. */
static void look_at_gpu(tandem_session *s, uint64_t now, uint64_t *asked_ns, char *line)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status;
    uint64_t value = 0;

    for (uint32_t i = 0; i < s->order_count; i++) {
        td_job *job = s->order[i];

        if (!job->wait || job->wait->by_session || now < job->bound_ns)
            continue;
        if (td_timeline_value_locked(s, job->wait, &value) != TANDEM_OK || value >= job->wait_value)
            continue;
        td_fail(line, TD_WHY_BYTES, TANDEM_ERROR_LOST,
                "job %" PRIu64 ": wait point {0x%" PRIx64 ", %" PRIu64 "} did not come within %" PRIu64
                " ms; the counter was %" PRIu64 ", the wait is released by force",
                job->number, job->wait->object.id, job->wait_value, s->wait_bound_ns / 1000000, value);
        td_session_keep_error_locked(s, line);
        release_wait(s, job);
        return;
    }
    if (now - *asked_ns < STATUS_NS)
        return;
    *asked_ns = now;
    status = td_stream_status(s->stream, why, sizeof why);
    if (status != TANDEM_OK) {
        td_fail(line, TD_WHY_BYTES, status, "the GPU failed: %.300s", why[0] ? why : tandem_status_text(status));
        td_session_keep_error_locked(s, line);
        break_session(s, status, true);
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

static void tell_broken(tandem_session *s, char *line)
{
    if (!s->broken_untold)
        return;
    s->broken_untold = false;
    td_fail(line, TD_WHY_BYTES, s->broken, "a semaphore can be neither read nor signalled any more: %s",
            tandem_status_text(s->broken));
    td_session_keep_error_locked(s, line);
}

static void *watch(void *user)
{
    tandem_session *s = user;
    uint64_t asked_ns = 0, calibrated_ns = 0;

    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        uint64_t now, next = UINT64_MAX;
        char line[TD_WHY_BYTES] = "";
        bool deadline = false;

        td_jobs_advance_locked(s);
        now = td_now_ns();
        if (!s->order_count)
            asked_ns = now;
        else if (s->gpu_signals)
            look_at_gpu(s, now, &asked_ns, line);
        tell_broken(s, line);
        if (line[0]) {
            pthread_mutex_unlock(&s->lock);
            td_logf(&s->log, TD_LOG_ERROR, "%s", line);
            pthread_mutex_lock(&s->lock);
            continue;
        }
        if (s->same_clock && s->order_count && now - calibrated_ns > CALIBRATE_NS) {
            calibrated_ns = now;
            calibrate(s);
        }
        for (uint32_t i = 0; i < s->order_count; i++) {
            const td_job *job = s->order[i];

            if (!job->has_deadline || td_job_state_ended(td_job_report_locked(s, job)->state))
                continue;
            deadline = true;
            next = job->deadline_ns < next ? job->deadline_ns : next;
        }
        if (s->gpu_signals && s->order_count)
            next = now + (deadline ? WATCH_DEADLINE_NS : WATCH_NS);
        if (!s->stopping)
            td_cond_wait_until(s, &s->watch, next);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Both. */

static bool start_thread(pthread_t *thread, void *(*main)(void *), tandem_session *s)
{
    sigset_t all, before;
    bool started;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    started = !pthread_create(thread, NULL, main, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

tandem_status td_local_start(tandem_session *s, char *why)
{
    s->has_watchdog = start_thread(&s->watchdog, watch, s);
    if (s->has_watchdog && !s->gpu_signals)
        s->has_worker = start_thread(&s->worker, work, s);
    if (!s->has_watchdog || (!s->gpu_signals && !s->has_worker))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no thread could be started");
    return TANDEM_OK;
}

/* Jobs on the GPU get a while, then their waits are released, then they are left behind. */
static void drain_gpu(tandem_session *s)
{
    const uint64_t begin = td_now_ns();
    bool released = false;
    uint32_t left;

    pthread_mutex_lock(&s->lock);
    for (;;) {
        uint64_t now = td_now_ns();

        td_jobs_advance_locked(s);
        if (!s->order_count || now - begin > TD_CLOSE_BOUND_NS)
            break;
        if (!released && now - begin > DRAIN_NS) {
            released = true;
            for (uint32_t i = 0; i < s->order_count; i++)
                if (s->order[i]->wait && !s->order[i]->wait->by_session)
                    release_wait(s, s->order[i]);
        }
        pthread_mutex_unlock(&s->lock);
        td_sleep_ns(50000);
        pthread_mutex_lock(&s->lock);
    }
    left = s->order_count;
    s->stuck = s->stuck || left;
    while (s->order_count)
        finish(s, s->order[0], TANDEM_JOB_FAILED, TANDEM_ERROR_LOST);
    pthread_mutex_unlock(&s->lock);
    if (left)
        td_logf(&s->log, TD_LOG_ERROR, "%u job%s did not end on the GPU within 2 s; what they use is left behind", left,
                left == 1 ? "" : "s");
}

void td_local_stop(tandem_session *s)
{
    const uint64_t until = td_after(td_now_ns(), TD_CLOSE_BOUND_NS);
    char line[TD_WHY_BYTES] = "";

    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    s->stop_by_ns = until;
    for (uint32_t i = 0; i < s->order_count; i++)
        if (!s->order[i]->begun)
            td_job_cancel_locked(s, s->order[i]);
    pthread_cond_broadcast(&s->work);
    pthread_cond_broadcast(&s->watch);
    pthread_mutex_unlock(&s->lock);
    if (s->has_watchdog)
        pthread_join(s->watchdog, NULL);
    if (s->has_worker)
        pthread_join(s->worker, NULL);
    if (s->gpu_signals)
        drain_gpu(s);
    /* What failed may run on; once the stream is idle, or dead, nothing uses anything any more. */
    if (s->stuck && s->stream)
        s->stuck = !td_stream_drain(s->stream, until > td_now_ns() ? until - td_now_ns() : 0);
    pthread_mutex_lock(&s->lock);
    tell_broken(s, line);
    pthread_mutex_unlock(&s->lock);
    if (line[0])
        td_logf(&s->log, TD_LOG_ERROR, "%s", line);
    for (uint32_t i = 0; i < s->frames; i++)
        free_scratch(s, &s->jobs[i].scratch);
    free_garbage(s);
}
