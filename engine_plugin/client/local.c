/* Jobs under way.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   on a stream   a job goes to the GPU as soon as its wait can be met there, and is held on the host until then. Who
 *                 waits for one, or else the worker, sees that the GPU is through with it. The GPU signals, or else
 *                 who sees it does. The worker also does what takes a processor's time (rung `copy`)
 *   else          the worker waits for a job's point, runs its plan, and signals its point
 *
 * In both the watchdog gives up what is late, and in both jobs keep their order: nothing overtakes a job that is held.
 *
 * A job's report ends (DONE, STALE, CANCELLED, FAILED) once and for all; the job itself is retired, and its slot free,
 * when its point is signalled and nothing uses its mems any more. The report of a job that is given up because it is
 * too late (STALE, FAILED) ends first.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "engine_plugin/client/client.h"

#define STATUS_NS 100000000u   /* how often the driver is asked for errors while jobs are under way */
#define CLAIM_SPIN_NS 10000u   /* a device that has claimed decides within a few microseconds */
#define CLAIM_LOOK_NS 20000u   /* else it is looked at again so much later */
#define UNWAITED_LOOK_NS 1000000u /* how often jobs are looked at where nobody else does */
#define POINT_LOOK_NS 50000u   /* how often an engine's value is looked at for a descriptor, */
#define POINT_EAGER_NS 100000000u /* for so long; then with td_nap_ns() */
/* And how often one that a held job waits for and that was not announced: at first, and around the time when it came for
 * the last job; else so that it is seen an eighth late, and by half a millisecond at most; and the same where the engine
 * announces, since then the announcement is what is waited for. */
#define HELD_LOOK_NS 50000u
#define HELD_AROUND_NS 1000000u /* at most so long before and behind that time */
#define HELD_REST_NS 500000u
#define CALIBRATE_NS 1000000000u
#define BROKEN_NS 20000000u    /* how long the GPU's own signals are waited for when the driver says that it failed */
/* A worker is held where descriptors are asked for, for so long after the last one; if it is so late there, not for so
 * long at first, and then twice as long each time. */
#define HELD_THERE_NS 100000000u
#define HELD_LATE_NS 1000000u
#define HELD_NOT_NS 1000000000u
#define HELD_NOT_MOST_NS 60000000000u
#define DRAIN_NS 1000000000u   /* what jobs on the GPU get at the end before their waits are released by force */
#define SCRATCH_LEAST_BYTES 65536u
#define SCRATCH_ALIGNMENT 256u

/* What a thread that sleeps in the driver shares with the session's destruction. */
struct td_sleeper {
    pthread_mutex_t lock;
    pthread_cond_t awake;
    bool sleeps, left_behind;
};

static td_sleeper *make_sleeper(void)
{
    td_sleeper *sleeper = calloc(1, sizeof *sleeper);
    pthread_condattr_t monotonic;
    bool made = false;

    if (sleeper && !pthread_condattr_init(&monotonic)) {
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        made = !pthread_cond_init(&sleeper->awake, &monotonic);
        pthread_condattr_destroy(&monotonic);
    }
    if (made && pthread_mutex_init(&sleeper->lock, NULL)) {
        pthread_cond_destroy(&sleeper->awake);
        made = false;
    }
    if (made)
        return sleeper;
    free(sleeper);
    return NULL;
}

static void free_sleeper(td_sleeper *sleeper)
{
    if (!sleeper)
        return;
    pthread_mutex_destroy(&sleeper->lock);
    pthread_cond_destroy(&sleeper->awake);
    free(sleeper);
}

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

static void set_broken(tandem_session *s, tandem_status status, bool told)
{
    if (!s->broken)
        s->broken_untold = !told;
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
    td_control *words = job->words;

    if (!words) /* it is just being handed over */
        return CLAIM_OPEN;
    if (job->commits) {
        const uint64_t begin = td_now_ns();
        uint32_t verdict;

        __atomic_store_n(&words->stale, 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&words->claimed, __ATOMIC_SEQ_CST)) {
            do
                verdict = __atomic_load_n(&words->verdict, __ATOMIC_ACQUIRE);
            while (verdict == TD_VERDICT_NONE && td_now_ns() - begin < CLAIM_SPIN_NS);
            if (verdict != TD_VERDICT_GIVEN_UP)
                return verdict == TD_VERDICT_NONE ? CLAIM_OPEN : CLAIM_LOST;
        }
    }
    if (s->stream)
        td_stream_cancel(s->stream, job->stream_sequence);
    else
        __atomic_store_n(&words->cancel, 1, __ATOMIC_RELAXED);
    return CLAIM_WON;
}

static bool is_open(const td_job *job)
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
        if (first && s->remote)
            td_remote_kick_locked(s);
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
    pthread_cond_broadcast(&s->work);
    if (s->remote)
        td_remote_kick_locked(s);
    return true;
}

void td_job_cancel_locked(tandem_session *s, td_job *job)
{
    td_job_give_up_locked(s, job, TANDEM_JOB_CANCELLED, TANDEM_OK);
}

void td_jobs_settle_locked(tandem_session *s)
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
static bool was_given_up(const td_job *job)
{
    return job->given_up || (is_open(job) && job->words &&
                             __atomic_load_n(&job->words->verdict, __ATOMIC_ACQUIRE) == TD_VERDICT_GIVEN_UP);
}

static void end_job(tandem_session *s, td_job *job, tandem_status status)
{
    tandem_job_state state = status == TANDEM_OK ? TANDEM_JOB_DONE : TANDEM_JOB_FAILED;

    if (was_given_up(job)) {
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
    if (s->foreign ? td_stream_begun(s->stream, job->stream_sequence)
                   : td_timeline_value_locked(s, job->wait, &value) == TANDEM_OK && value >= job->wait_value)
        return false;
    td_job_give_up_locked(s, job, TANDEM_JOB_FAILED, TANDEM_ERROR_LOST);
    return td_timeline_raise_locked(s, job->wait, job->wait_value) == TANDEM_OK;
}

/* The points of jobs that a broken session's GPU has: what was on its way when it broke may still come, once. */
static void settle_broken(tandem_session *s)
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
static void break_session(tandem_session *s, tandem_status status, bool told)
{
    if (!s->broken) {
        s->broken_ns = td_now_ns();
        s->runs_on = s->ahead && s->gpu_signals && td_stream_status(s->stream, NULL, 0) == TANDEM_OK;
    }
    set_broken(s, status, told);
    for (uint32_t i = 0; i < s->order_count && s->ahead; i++) {
        if (s->broken == TANDEM_ERROR_LOST)
            td_job_release_wait_locked(s, s->order[i]);
        td_job_end_report_locked(s, s->order[i], TANDEM_JOB_FAILED, s->broken);
    }
    settle_broken(s);
    td_points_notify_locked(s);
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
    uint32_t kept = 0;

    for (uint32_t i = 0; i < s->garbage_count; i++)
        if (s->garbage[i].recorded && !s->stopping)
            s->garbage[kept++] = s->garbage[i];
        else
            free_scratch(s, &s->garbage[i]);
    s->garbage_count = kept;
}

bool td_scratch_trim_locked(tandem_session *s, uint64_t owner)
{
    const uint32_t outgrown = s->garbage_count;
    bool some;

    if (s->stream && s->order_count)
        return false;
    free_garbage(s);
    some = s->garbage_count < outgrown;
    for (uint32_t i = 0; i < s->frames; i++) {
        td_job *job = &s->jobs[i];

        if (job->number || !job->scratch.bytes || job->scratch.recorded ||
            (owner != TD_EVERYBODY && job->scratch.owner != owner))
            continue;
        free_scratch(s, &job->scratch);
        some = true;
    }
    return some;
}

/* Outgrown blocks of a stream wait until it is idle. */
static bool is_kept(const tandem_session *s, const td_scratch *scratch)
{
    return scratch->bytes && ((s->stream && s->order_count) || scratch->recorded);
}

static tandem_status put_away(tandem_session *s, td_scratch *scratch, char *why)
{
    const bool keep = is_kept(s, scratch);

    if (keep && s->garbage_count == TD_MAX_GARBAGE)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_BUSY, "%d blocks of scratch are still in use", TD_MAX_GARBAGE);
    if (keep)
        s->garbage[s->garbage_count++] = *scratch;
    else
        free_scratch(s, scratch);
    *scratch = (td_scratch){.owner = s->owner};
    return TANDEM_OK;
}

/* What the owner of the jobs that come now holds beside what this job would give back. */
static uint64_t held_beside(const tandem_session *s, const td_job *job, bool *in_use)
{
    uint64_t bytes = 0;

    *in_use = false;
    for (uint32_t i = 0; i < s->frames; i++) {
        const td_job *other = &s->jobs[i];

        if (other->scratch.owner != s->owner || (other == job && !is_kept(s, &job->scratch)))
            continue;
        bytes += other->scratch.bytes;
        *in_use = *in_use || (other->number && other->scratch.bytes);
    }
    for (uint32_t i = 0; i < s->garbage_count; i++)
        bytes += s->garbage[i].owner == s->owner ? s->garbage[i].bytes : 0;
    return bytes;
}

/* Whether a job's owner may hold so much in place of its scratch. What it does not use is freed first. */
static tandem_status may_hold(tandem_session *s, const td_job *job, uint64_t bytes, char *why)
{
    const uint64_t most = s->owner_most_bytes;
    bool in_use;
    uint64_t held;

    s->owner_lacks_bytes = 0;
    if (!s->lane)
        return TANDEM_OK;
    do {
        held = held_beside(s, job, &in_use);
        if (bytes <= most && held <= most - bytes)
            return TANDEM_OK;
    } while (td_scratch_trim_locked(s, s->owner));
    if (in_use && bytes <= most)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_BUSY, "earlier jobs hold the scratch that this one may have");
    s->owner_lacks_bytes = bytes;
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM,
                   "the job needs %" PRIu64 " bytes of scratch, and may have %" PRIu64, bytes, most);
}

static tandem_status make_scratch(tandem_session *s, uint64_t bytes, td_scratch *out, char *why)
{
    tandem_status status = TANDEM_OK;

    out->bytes = bytes;
    out->owner = s->owner;
    if (s->stream) {
        out->mem = td_mem_new(s, bytes, why);
        status = out->mem ? td_mem_make_private(s, out->mem, true, why) : TANDEM_ERROR_NOMEM;
        if (out->mem) {
            out->address = out->mem->address;
            s->mem_device_bytes += out->mem->device_share;
        }
    } else {
        out->block = (s->lane ? td_session_alloc : td_session_alloc_dirty)(s, bytes, SCRATCH_ALIGNMENT);
        out->address = (uintptr_t)out->block;
        if (!out->block)
            status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for %" PRIu64 " bytes of scratch",
                             bytes);
    }
    if (status != TANDEM_OK)
        free_scratch(s, out);
    return status;
}

tandem_status td_scratch_reserve_locked(tandem_session *s, td_job *job, uint64_t bytes, char *why)
{
    const uint64_t grown = td_align_up(job->scratch.bytes + job->scratch.bytes / 2, 4096);
    tandem_status status = TANDEM_OK;
    uint64_t wanted;
    bool more;

    if (!s->order_count)
        free_garbage(s);
    if (job->scratch.owner != s->owner) /* another client's, who may have left something in it */
        status = put_away(s, &job->scratch, why);
    if (status != TANDEM_OK || bytes <= job->scratch.bytes)
        return status;
    if (bytes > (uint64_t)INT64_MAX)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "the job needs %" PRIu64 " bytes of scratch", bytes);
    wanted = bytes > SCRATCH_LEAST_BYTES ? td_align_up(bytes, 4096) : SCRATCH_LEAST_BYTES;
    more = is_kept(s, &job->scratch) && wanted < grown; /* few outgrown blocks at a time */
    if (more && may_hold(s, job, grown, why) == TANDEM_OK)
        wanted = grown;
    else
        status = may_hold(s, job, wanted, why);
    if (status == TANDEM_OK)
        status = put_away(s, &job->scratch, why);
    return status == TANDEM_OK ? make_scratch(s, wanted, &job->scratch, why) : status;
}

/* On a stream. */

static const char *label_of(const td_job *job)
{
    const uint32_t precision = job->plan->precision;

    return job->operation->labels[precision <= TANDEM_PRECISION_4B ? precision : TANDEM_PRECISION_AUTO];
}

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
        .wait = s->gpu_signals && job->wait ? &wait : NULL,
        .signal = s->gpu_signals && job->signal ? &signal : NULL,
        .label = label_of(job),
    };
    tandem_status status = s->rung == TANDEM_RUNG_COPY ? td_stage_in(s, job, &submit, why) : TANDEM_OK;
    bool signalled;

    if (status != TANDEM_OK)
        return status;
    if (s->enqueuing)
        return td_stage_enqueue(s, &submit, &job->stream_sequence, why);
    return td_stream_enqueue(s->stream, &submit, &job->stream_sequence, &signalled, why, TD_WHY_BYTES);
}

static void mark_begun(tandem_session *s, td_job *job)
{
    job->begun = true;
    job->begun_ns = td_now_ns();
    job->words = td_stream_control(s->stream, job->stream_sequence);
    td_forgotten_look_locked(s, job);
    if (s->idle && td_worker_needed_locked(s) && !s->lookers)
        pthread_cond_signal(&s->work);
    if (is_open(job))
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
    for (uint32_t i = 0; i < s->order_count && s->rung == TANDEM_RUNG_COPY && s->order[i] != job; i++)
        if (td_stage_must_wait(job, s->order[i]))
            return false;
    if (!job->wait || job->wait->by_session || s->foreign || (s->gpu_signals && job->wait->submitted >= job->wait_value))
        return true;
    *status = td_timeline_value_locked(s, job->wait, &value);
    return *status == TANDEM_OK && value >= job->wait_value;
}

/* What the worker has to do without the lock. */
static bool is_by_hand(const tandem_session *s, const td_job *job)
{
    return s->rung == TANDEM_RUNG_COPY && td_stage_by_hand(job);
}

/* A job that was not begun, and that nobody can begin. */
static void fail_job(tandem_session *s, td_job *job, tandem_status status, const char *why)
{
    td_fail(s->untold, sizeof s->untold, status, "job %" PRIu64 ": %s", job->number, why);
    td_session_keep_error_locked(s, s->untold);
    td_job_give_up_locked(s, job, TANDEM_JOB_FAILED, status);
    td_jobs_settle_locked(s);
    pthread_cond_signal(&s->watch);
}

/* Hands over what is held, as far as it may go. */
static void feed(tandem_session *s)
{
    tandem_status status = TANDEM_OK;

    td_jobs_settle_locked(s);
    for (uint32_t i = 0; i < s->order_count && status == TANDEM_OK;) {
        td_job *job = s->order[i];
        char why[TD_WHY_BYTES] = "";

        if (!job->begun) {
            if (job->given_up || !may_begin(s, job, &status))
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
        break_session(s, status, false);
}

/* True if the job is over on the GPU and, where the GPU signals, its point is signalled. */
static bool gpu_is_done(tandem_session *s, const td_job *job, tandem_status *status)
{
    uint64_t value = 0;

    if (td_stream_completed(s->stream) < job->stream_sequence)
        return false;
    if (!job->signal || !s->gpu_signals || s->foreign)
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

    while (s->order_count && s->order[0]->begun && !s->order[0]->at_work && gpu_is_done(s, s->order[0], &status)) {
        td_job *job = s->order[0];

        if (s->rung == TANDEM_RUNG_COPY && td_stage_takes_back(job) && !was_given_up(job)) {
            pthread_cond_signal(&s->work);
            break;
        }
        note_times(s, job);
        end_job(s, job, TANDEM_OK);
        if (s->gpu_signals)
            td_points_notify_locked(s);
    }
    if (s->order_count && s->order[0]->begun && !s->order[0]->at_work &&
        td_stream_begun(s->stream, s->order[0]->stream_sequence)) {
        tandem_job_report *head = td_job_report_locked(s, s->order[0]);

        if (head->state == TANDEM_JOB_PENDING)
            head->state = TANDEM_JOB_RUNNING;
    }
    if (status != TANDEM_OK)
        break_session(s, status, false);
}

void td_jobs_advance_locked(tandem_session *s)
{
    td_recorded_advance_locked(s);
    if (s->broken)
        settle_broken(s);
    else if (s->ahead)
        advance_stream(s);
    for (uint32_t i = 0; i < s->order_count; i++) {
        td_job *job = s->order[i];

        if (is_open(job) || (job->has_deadline && !job->given_up && !job->committed && td_now_ns() >= job->deadline_ns))
            td_job_give_up_locked(s, job, TANDEM_JOB_STALE, TANDEM_OK);
    }
    if (s->ahead && !s->broken)
        feed(s);
    else
        td_jobs_settle_locked(s);
}

/* When the watchdog has to look at a job that was just accepted. */
static uint64_t first_look_ns(const tandem_session *s, const td_job *job)
{
    uint64_t at = s->stream ? job->submit_ns + STATUS_NS : UINT64_MAX;

    if (s->ahead && !job->begun)
        at = 0;
    return job->has_deadline && job->deadline_ns < at ? job->deadline_ns : at;
}

tandem_status td_job_start_locked(tandem_session *s, td_job *job, tandem_ticket *ticket, char *why)
{
    const bool last_begun = !s->order_count || s->order[s->order_count - 1]->begun;
    const bool late = job->has_deadline && !s->foreign && td_now_ns() >= job->deadline_ns;
    tandem_status status = TANDEM_OK;

    if (s->ahead && last_begun && !late && may_begin(s, job, &status) && !is_by_hand(s, job))
        status = begin(s, job, why);
    else if (status != TANDEM_OK)
        td_fail(why, TD_WHY_BYTES, status, "job.wait.timeline is 0x%" PRIx64 ", whose counter cannot be read: %s",
                job->wait->object.id, tandem_status_text(status));
    if (status == TANDEM_ERROR_DEVICE || status == TANDEM_ERROR_LOST)
        break_session(s, status, true);
    if (status != TANDEM_OK && !(status == TANDEM_ERROR_BUSY && s->rung == TANDEM_RUNG_COPY)) /* held, then */
        return status;
    *ticket = td_job_accept_locked(s, job);
    s->order[s->order_count++] = job;
    if (late)
        td_jobs_advance_locked(s);
    if (s->remote)
        td_remote_feed_locked(s);
    else if (!s->ahead || (!job->begun && is_by_hand(s, job)))
        pthread_cond_signal(&s->work);
    if (first_look_ns(s, job) < s->watch_until_ns)
        pthread_cond_signal(&s->watch);
    return TANDEM_OK;
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
        free_sleeper(sleeper);
    else
        pthread_mutex_lock(&s->lock);
    return !left_behind;
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void prepare_thread(const char *name)
{
    prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul); /* 50 us else */
    prctl(PR_SET_NAME, name, 0ul, 0ul, 0ul);
}

bool td_gpu_is_well_locked(tandem_session *s)
{
    char why[TD_WHY_BYTES] = "";
    const tandem_status status = td_stream_status(s->stream, why, sizeof why);

    if (status == TANDEM_OK)
        return true;
    td_fail(s->untold, sizeof s->untold, status, "the GPU failed: %s", why[0] ? why : tandem_status_text(status));
    td_session_keep_error_locked(s, s->untold);
    break_session(s, status, true);
    return false;
}

/* Without the lock: what a job reads is brought in. */
static void begin_by_hand(tandem_session *s, td_job *job)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status;

    s->enqueuing = job->at_work = job->begun = true;
    pthread_mutex_unlock(&s->lock);
    status = enqueue(s, job, why);
    pthread_mutex_lock(&s->lock);
    s->enqueuing = job->at_work = job->begun = false;
    if (status == TANDEM_OK)
        mark_begun(s, job);
    else if (status == TANDEM_ERROR_DEVICE || status == TANDEM_ERROR_LOST)
        break_session(s, status, false);
    else
        fail_job(s, job, status, why);
    pthread_cond_broadcast(&s->changed);
}

/* And here its result is taken back. */
static void end_by_hand(tandem_session *s, td_job *job)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status;

    note_times(s, job);
    s->enqueuing = job->at_work = true;
    pthread_mutex_unlock(&s->lock);
    status = td_stage_out(s, job, why);
    pthread_mutex_lock(&s->lock);
    s->enqueuing = job->at_work = false;
    if (status != TANDEM_OK) {
        td_fail(s->untold, sizeof s->untold, status, "job %" PRIu64 ": %s", job->number, why);
        td_session_keep_error_locked(s, s->untold);
        pthread_cond_signal(&s->watch);
    }
    if (status == TANDEM_ERROR_DEVICE || status == TANDEM_ERROR_LOST)
        break_session(s, status, true);
    else
        end_job(s, job, status);
}

static bool work_by_hand(tandem_session *s)
{
    tandem_status status = TANDEM_OK;
    td_job *next = NULL;

    if (s->rung != TANDEM_RUNG_COPY || s->broken || !s->order_count)
        return false;
    if (s->order[0]->begun && td_stream_completed(s->stream) >= s->order[0]->stream_sequence &&
        td_stage_takes_back(s->order[0]) && !was_given_up(s->order[0])) {
        end_by_hand(s, s->order[0]);
        return true;
    }
    for (uint32_t i = 0; i < s->order_count && !next; i++)
        next = s->order[i]->begun ? NULL : s->order[i];
    if (!next || next->given_up || !is_by_hand(s, next) || !may_begin(s, next, &status))
        return false;
    begin_by_hand(s, next);
    return true;
}

/* The worker runs where those who ask for descriptors do, unless that makes it late: they are busy there. */
static void move_worker(tandem_session *s, uint64_t now)
{
    const bool asked = s->point_fd_count || now - s->called_ns < HELD_THERE_NS;
    const int cpu = asked && now >= s->free_until_ns ? s->caller_cpu : -1;
    cpu_set_t one;

    if (cpu == s->worker_cpu || !CPU_COUNT(&s->cpus))
        return;
    CPU_ZERO(&one);
    if (cpu >= 0)
        CPU_SET(cpu, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, cpu >= 0 ? &one : &s->cpus);
    s->worker_cpu = cpu;
}

/* The worker, which should have run at `due_ns`, does. */
static void note_lateness(tandem_session *s, uint64_t due_ns)
{
    const uint64_t now = td_now_ns();

    if (s->worker_cpu < 0 || now < due_ns || now - due_ns < HELD_LATE_NS)
        return;
    s->free_ns = s->free_ns ? sooner(2 * s->free_ns, HELD_NOT_MOST_NS) : HELD_NOT_NS;
    s->free_until_ns = now + s->free_ns;
}

/* Sleeps until the oldest job may be through. False as sleep_in_driver(). */
static bool sleep_for_job(tandem_session *s, uint64_t *asked)
{
    const td_job *job = s->order_count && s->order[0]->begun ? s->order[0] : NULL;
    const uint64_t now = td_now_ns();
    tandem_status status = TANDEM_OK;
    bool alone = false;
    uint64_t look;

    if (!job || s->lookers || !td_worker_needed_locked(s)) {
        s->idle = true;
        pthread_cond_wait(&s->work, &s->lock);
        s->idle = false;
        if (s->called_ns > now)
            note_lateness(s, s->called_ns);
        return true;
    }
    look = td_jobs_look_locked(s, now, &alone);
    if (!alone && s->rung == TANDEM_RUNG_COPY) {
        look = now + td_nap_ns(now - job->begun_ns); /* what comes next is the worker's to hand over */
    } else if (!alone && *asked != job->number) {
        *asked = job->number;
        if (!sleep_in_driver(s, job->stream_sequence, &status))
            return false;
        if (status != TANDEM_OK && !s->broken) /* it failed, or cannot be waited for */
            td_gpu_is_well_locked(s);
        return true;
    } else if (!alone) {
        look = now + UNWAITED_LOOK_NS;
    }
    td_cond_wait_until(s, &s->work, look);
    note_lateness(s, look);
    return true;
}

/* The worker of a stream. */
static void *wait_for_gpu(void *user)
{
    tandem_session *s = user;
    uint64_t asked = 0; /* the last job that the driver was asked to wait for */

    prepare_thread("tandem waiter");
    pthread_mutex_lock(&s->lock);
    if (pthread_getaffinity_np(pthread_self(), sizeof s->cpus, &s->cpus))
        CPU_ZERO(&s->cpus);
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

/* The worker. */

static bool cannot_wait(tandem_session *s, td_job *job, tandem_status status, char *line)
{
    break_session(s, status, true);
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

        if (!job->given_up && s->stopping)
            td_job_give_up_locked(s, job, TANDEM_JOB_CANCELLED, TANDEM_OK);
        if (!job->given_up && s->broken)
            td_job_give_up_locked(s, job, TANDEM_JOB_FAILED, s->broken);
        if (!job->given_up && job->has_deadline && now >= job->deadline_ns)
            td_job_give_up_locked(s, job, TANDEM_JOB_STALE, TANDEM_OK);
        if (job->given_up)
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
        if (job->has_deadline && job->deadline_ns < until)
            until = job->deadline_ns;
        td_timeline_nap_locked(s, wait, &s->work, begin_ns, until);
    }
}

/* Called and left with the lock held. */
static tandem_status run_on_cpu(tandem_session *s, td_job *job, td_thread_pool *pool, uint64_t *begin_ns,
                                uint64_t *end_ns)
{
    td_patience patience = {.gate = s->gate};
    tandem_status status;

    job->words = &job->control;
    pthread_mutex_unlock(&s->lock);
    *begin_ns = td_now_ns();
    status = td_exec_cpu_run_patiently(job->plan, job->views, job->scratch.address, pool, &job->control, &patience);
    *end_ns = td_now_ns();
    pthread_mutex_lock(&s->lock);
    s->held_ns += patience.held_ns;
    s->late_ns = patience.late_ns > s->late_ns ? patience.late_ns : s->late_ns;
    return status == TANDEM_ERROR_BUSY && job->given_up ? TANDEM_OK : status; /* it was told to stop */
}

static void work_on(tandem_session *s, td_job *job, td_thread_pool *pool, char *line)
{
    tandem_job_report *report = td_job_report_locked(s, job);
    uint64_t begin_ns, end_ns;
    tandem_status status;

    job->at_work = true;
    if (!wait_for_point(s, job, line)) {
        td_job_finish_locked(s, job, job->end_state, job->end_status);
        return;
    }
    job->begun = true;
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
    end_job(s, job, status);
}

void td_job_compute_locked(tandem_session *s, td_job *job, tandem_job_report *report)
{
    const tandem_job_report *kept;

    td_job_accept_locked(s, job);
    kept = td_job_report_locked(s, job);
    s->order[s->order_count++] = job;
    if (first_look_ns(s, job) < s->watch_until_ns)
        pthread_cond_signal(&s->watch);
    work_on(s, job, NULL, s->untold); /* a line that the watchdog logs */
    *report = *kept;
    if (s->untold[0])
        pthread_cond_signal(&s->watch);
    if (s->order_count || s->stopping)
        pthread_cond_signal(&s->work);
}

static void *work(void *user)
{
    tandem_session *s = user;

    prepare_thread("tandem worker");
    pthread_mutex_lock(&s->lock);
    for (;;) {
        char line[TD_WHY_BYTES] = "";

        td_jobs_settle_locked(s);
        if (!s->order_count || s->order[0]->at_work) {
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

/* The watchdog. */

/* Of a stream whose points only the GPU can read: whether a job is at work, or behind one that is. */
static bool has_begun(tandem_session *s, const td_job *job)
{
    return td_stream_begun(s->stream, job->stream_sequence) ||
           td_stream_completed(s->stream) + 1 < job->stream_sequence;
}

/* The GPU is at it, and not at its wait. */
static bool is_running(tandem_session *s, const td_job *job)
{
    return job->begun && !job->given_up && (job->at_work || td_stream_begun(s->stream, job->stream_sequence));
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
        if (!job->wait || job->wait->by_session || job->told || now < td_job_bound_locked(s, job))
            continue;
        if (s->foreign ? has_begun(s, job)
                       : td_timeline_value_locked(s, job->wait, &value) != TANDEM_OK || value >= job->wait_value)
            continue;
        job->told = true;
        if (job->begun && !job->at_work)
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
        if (s->foreign)
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

static void tell_broken(tandem_session *s, char *line)
{
    if (s->broken_untold) {
        s->broken_untold = false;
        td_fail(line, TD_WHY_BYTES, s->broken, "a semaphore can be neither read nor signalled any more: %s",
                tandem_status_text(s->broken));
        td_session_keep_error_locked(s, line);
    } else if (s->untold[0]) {
        snprintf(line, TD_WHY_BYTES, "%s", s->untold);
        s->untold[0] = 0;
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

    return now + (now - since_ns < POINT_EAGER_NS ? sooner(nap, POINT_LOOK_NS) : nap);
}

static uint64_t next_held_look(uint64_t now, const td_job *job)
{
    const uint64_t waited = now - job->submit_ns, guess = job->wait->held_ns, around = sooner(guess / 16, HELD_AROUND_NS);
    uint64_t nap = sooner(waited / 8, HELD_REST_NS);

    if (job->wait->submitted)
        return now + HELD_REST_NS;
    if (waited < guess - around)
        nap = sooner(nap, guess - around - waited);
    else if (waited < guess + around)
        nap = 0;
    return now + (nap < HELD_LOOK_NS ? HELD_LOOK_NS : nap);
}

static uint64_t next_look(tandem_session *s, uint64_t now, uint64_t asked_ns)
{
    /* For a while after the last job as well: then the next one need not wake it. */
    uint64_t next = !s->stream || asked_ns == UINT64_MAX ? UINT64_MAX
                    : s->broken && s->order_count        ? now + UNWAITED_LOOK_NS
                                                         : asked_ns + STATUS_NS;
    bool held = false;

    for (uint32_t i = 0; i < s->order_count; i++) {
        const td_job *job = s->order[i];

        if (is_open(job) && s->remote) /* the worker ends it */
            continue;
        if (is_open(job))
            next = sooner(next, now + CLAIM_LOOK_NS);
        else if (job->has_deadline && !job->given_up && !job->committed)
            next = sooner(next, td_toward(now, job->deadline_ns));
        if (s->ahead && job->wait && !job->wait->by_session && !job->told && now < td_job_bound_locked(s, job))
            next = sooner(next, td_job_bound_locked(s, job));
        if (s->ahead && !held && !job->begun && job->wait && job->wait->semaphore && !job->given_up)
            next = sooner(next, next_held_look(now, job));
        held = held || !job->begun;
    }
    for (uint32_t i = 0; i < s->point_fd_count; i++)
        if (s->point_fds[i].timeline->semaphore && !s->point_fds[i].timeline->by_session)
            next = sooner(next, next_point_look(now, s->point_fds[i].since_ns));
    return next;
}

static void *watch(void *user)
{
    tandem_session *s = user;
    uint64_t asked_ns = UINT64_MAX, calibrated_ns = 0; /* the driver is asked once jobs have been there for a while */
    uint64_t asked_at = 0; /* how many there had been by then */

    prepare_thread("tandem watch");
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        char line[TD_WHY_BYTES] = "";
        td_log_level level = TD_LOG_ERROR;
        uint64_t now;

        td_jobs_advance_locked(s);
        td_points_notify_locked(s);
        now = td_now_ns();
        if (asked_ns == UINT64_MAX || now - asked_ns >= STATUS_NS) {
            if (s->stream && asked_ns != UINT64_MAX && s->order_count && !s->broken)
                td_gpu_is_well_locked(s);
            asked_ns = s->order_count || asked_at != s->last_number ? now : UINT64_MAX;
            asked_at = s->last_number;
        }
        if (!line[0] && s->ahead)
            look_at_bounds(s, now, line);
        if (!line[0])
            tell_broken(s, line);
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

/* Both. */

bool td_thread_start(pthread_t *thread, void *(*main)(void *), tandem_session *s)
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
    s->ahead = s->stream != NULL;
    s->caller_cpu = s->worker_cpu = -1;
    s->sleeper = make_sleeper();
    if (!s->sleeper)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for a thread");
    if (!s->remote && !s->ahead)
        s->pool = td_thread_pool_create(s->threads);
    if (!s->remote && !s->ahead && !s->pool)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for %u threads", s->threads);
    s->has_watchdog = td_thread_start(&s->watchdog, watch, s);
    s->has_worker =
        s->has_watchdog &&
        td_thread_start(&s->worker, s->remote ? td_remote_work : s->ahead ? wait_for_gpu : work, s);
    if (!s->has_worker)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no thread could be started");
    return TANDEM_OK;
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
                td_fail(s->untold, sizeof s->untold, TANDEM_ERROR_LOST,
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
            td_cond_wait_until(s, &s->changed, td_now_ns() + UNWAITED_LOOK_NS);
    }
}

/* Takes the worker back; false: it is still in the driver and was left there. */
static bool join_worker(tandem_session *s, uint64_t until_ns)
{
    const struct timespec t = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
    td_sleeper *sleeper = s->sleeper;
    bool left_behind;

    pthread_mutex_lock(&sleeper->lock);
    while (sleeper->sleeps && td_now_ns() < until_ns)
        pthread_cond_timedwait(&sleeper->awake, &sleeper->lock, &t);
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

void td_local_stop(tandem_session *s)
{
    const uint64_t until = td_after(td_now_ns(), TD_CLOSE_BOUND_NS);
    char line[TD_WHY_BYTES] = "";
    bool joined = true;
    uint32_t left;

    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    td_recorded_cancel_all_locked(s, NULL);
    for (uint32_t i = 0; i < s->order_count; i++)
        if (!s->order[i]->begun)
            td_job_cancel_locked(s, s->order[i]);
    pthread_cond_broadcast(&s->work);
    pthread_cond_broadcast(&s->watch);
    pthread_mutex_unlock(&s->lock);
    if (s->has_watchdog)
        pthread_join(s->watchdog, NULL);
    pthread_mutex_lock(&s->lock);
    if (s->stream)
        drain(s, until);
    else if (!s->remote)
        outlast_worker(s);
    left = s->order_count;
    s->abandoned = true;
    while (s->ahead && s->order_count && !s->enqueuing) /* those of the worker are its own until it is gone */
        td_job_finish_locked(s, s->order[0], TANDEM_JOB_FAILED, TANDEM_ERROR_LOST);
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
        td_job_finish_locked(s, s->order[0], TANDEM_JOB_FAILED, TANDEM_ERROR_LOST);
    pthread_mutex_unlock(&s->lock);
    if (left)
        td_logf(&s->log, TD_LOG_ERROR, "%u job%s did not end on the GPU within 2 s; what they use is left behind", left,
                left == 1 ? "" : "s");
    /* What failed may run on; once the stream is idle, or dead, nothing uses anything any more. */
    if (s->stuck && s->stream && joined)
        s->stuck = !td_stream_drain(s->stream, until > td_now_ns() ? until - td_now_ns() : 0);
    pthread_mutex_lock(&s->lock);
    td_points_end_locked(s, NULL);
    tell_broken(s, line);
    pthread_mutex_unlock(&s->lock);
    if (line[0])
        td_logf(&s->log, TD_LOG_ERROR, "%s", line);
    if (s->hint[0])
        td_logf(&s->log, TD_LOG_WARN, "%s", s->hint);
    for (uint32_t i = 0; i < s->frames; i++)
        free_scratch(s, &s->jobs[i].scratch);
    free_garbage(s);
    free_sleeper(s->sleeper);
}
