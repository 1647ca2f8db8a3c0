/* Jobs from the caller's side: submit with every check, poll, wait, cancel.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "engine_plugin/client/network.h"
#include "kernels/plan_cache.h"

/* How long an executor may take to decide whether it or a cancellation was first, and how often it is asked. */
#define MOST_DECIDING_NS 5000000u
#define DECIDING_NS 20000u

/* Whether a job's parts write a temporary output, which another job takes to where it belongs. */
static bool writes_temp_output(const td_job *job)
{
    bool writes = false;

    for (uint32_t i = 0; i < job->view_count; i++)
        writes = writes || (job->mems[i] && job->mems[i]->temp_output && job->written[i]);
    return writes;
}

static tandem_status bind_views_locked(tandem_session *s, td_job *job, const tandem_operands *op, char *why)
{
    const td_operation_layout *layout = &job->operation->layout;
    const tandem_view *views[TD_MAX_VIEWS];
    tandem_status status = TANDEM_OK;

    td_job_set_view_count(job, layout->view_count);
    for (uint32_t i = 0; i < layout->view_count && status == TANDEM_OK; i++) {
        uint32_t shape[4];

        views[i] = td_view_in(layout, op, i);
        job->names[i] = layout->views[i].name;
        job->written[i] = layout->views[i].written;
        if (!td_view_is_there(layout, op, i))
            continue;
        layout->shape(op, i, shape);
        status = td_job_bind_view_locked(s, job, i, views[i], shape, td_dtype_of(views[i]->dtype).base_alignment, why);
    }
    return status == TANDEM_OK ? td_job_views_apart(job, 0, views, why) : status;
}

/* Checks an operation, finds what it names and plans it. */
static tandem_status bind_operation_locked(tandem_session *s, td_job *job, const td_submission *from, char *why)
{
    const td_operation *operation = job->operation;
    const tandem_operands *op = &from->desc->op;
    td_target target = s->target;
    tandem_status status = operation->check(op, why, TD_WHY_BYTES);

    if (status == TANDEM_OK)
        status = bind_views_locked(s, job, op, why);
    if (status != TANDEM_OK)
        return status;
    target.commit = job->atomic_commit = operation->claims || (job->life.has_deadline && !writes_temp_output(job));
    if (from->whole_of == operation) {
        target.whole = from->whole;
        target.position = from->position;
    }
    const tandem_operands placed = td_operands_at(operation, op, job->views);
    status = td_plan_cached(s->plans, operation, &placed, &target, &job->plan, why, TD_WHY_BYTES);
    if (status == TANDEM_OK)
        job->label = operation->labels[job->plan->precision <= TANDEM_PRECISION_4B ? job->plan->precision : TANDEM_PRECISION_AUTO];
    return status;
}

static tandem_status bind_points_locked(tandem_session *s, td_job *job, const tandem_job *desc, char *why)
{
    const tandem_point *wait = &desc->wait, *signal = &desc->signal;
    tandem_status status;
    uint64_t now = 0;

    if (wait->timeline || wait->value) {
        job->wait = td_timeline_find_locked(s, wait->timeline, "job.wait.timeline", why);
        if (!job->wait)
            return TANDEM_ERROR_ARG;
        job->wait_value = wait->value;
        status = td_timeline_value_locked(s, job->wait, &now);
        if (status != TANDEM_OK)
            return td_fail(why, TD_WHY_BYTES, status,
                           "job.wait.timeline is 0x%" PRIx64 ", whose counter cannot be read: %s", wait->timeline,
                           tandem_status_text(status));
        if (s->imports_only)
            ; /* its counter is not ours to read, and the daemon has checked */
        else if (job->wait->by_session && wait->value > job->wait->promised)
            return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                           "job.wait.value is %" PRIu64 ", but the session's timeline ends at %" PRIu64 " so far",
                           wait->value, job->wait->promised);
        if (wait->value > now && wait->value - now > TD_MAX_POINT_STEP)
            return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                           "job.wait.value is %" PRIu64 ", more than 2^31 - 1 above the counter's %" PRIu64,
                           wait->value, now);
    }
    if (signal->timeline || signal->value) {
        job->signal = td_timeline_find_locked(s, signal->timeline, "job.signal.timeline", why);
        if (!job->signal)
            return TANDEM_ERROR_ARG;
        job->signal_value = signal->value;
        if (!job->signal->by_session)
            return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                           "job.signal.timeline is 0x%" PRIx64 ", which the engine signals", signal->timeline);
        if (signal->value <= job->signal->promised)
            return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                           "job.signal.value is %" PRIu64 ", not above %" PRIu64 ", where the timeline is or will be",
                           signal->value, job->signal->promised);
        if (signal->value - job->signal->promised > TD_MAX_POINT_STEP)
            return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                           "job.signal.value is %" PRIu64 ", more than 2^31 - 1 above %" PRIu64
                           ", where the timeline is or will be",
                           signal->value, job->signal->promised);
    }
    return TANDEM_OK;
}

/* A free slot; they are taken in turn, so that all are warm after as many jobs as there are slots. */
static tandem_status find_slot_locked(tandem_session *s, td_job **out, char *why)
{
    uint32_t busy = 0;

    *out = NULL;
    for (uint32_t i = 0; i < s->jobs_in_flight; i++) {
        td_job *job = &s->jobs[(s->last_number + i) % s->jobs_in_flight];

        if (job->number && job->number + TD_REPORTS == s->last_number + 1)
            return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_BUSY, "the job %d before is still under way", TD_REPORTS);
        busy += job->number != 0;
        if (!job->number && !*out)
            *out = job;
    }
    return *out ? TANDEM_OK : td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_BUSY, "%u jobs are under way", busy);
}

/* The operation's struct may be longer in a version to come. */
static tandem_status check_rest(const tandem_job *desc, size_t known, char *why)
{
    const size_t at = td_first_not_zero(&desc->op, known, sizeof desc->op);

    if (at == sizeof desc->op)
        return TANDEM_OK;
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                   "job.op is of operation %u, of which this library knows %zu bytes, but the byte at offset %zu is %u, not 0",
                   desc->operation, known, at, ((const uint8_t *)&desc->op)[at]);
}

static tandem_status check_job(const tandem_session *s, const tandem_job *desc, char *why)
{
    const td_operation *operation = td_operation_find(desc->operation);
    char names[TD_WHY_BYTES];
    tandem_status status;

    if (desc->operation != TANDEM_OPERATION_RUN && (!operation || (operation->internal && !s->of_worker))) {
        td_operation_names(names, sizeof names);
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "job.operation is %u; it must be %s, %u (run)", desc->operation,
                       names, TANDEM_OPERATION_RUN);
    }
    status = check_rest(desc, operation ? operation->layout.bytes : sizeof desc->op.run, why);
    if (status != TANDEM_OK)
        return status;
    if (s->in_order && desc->wait.timeline)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "job.wait.timeline is 0x%" PRIx64 ", but jobs of this session are in order on desc.cuda_stream",
                       desc->wait.timeline);
    return s->broken ? td_fail(why, TD_WHY_BYTES, s->broken, "the device failed earlier: %s", tandem_status_text(s->broken))
                     : TANDEM_OK;
}

/* All of a job that passed check_job() but its memory: points and views are found, and its plan. */
static tandem_status bind_job_locked(tandem_session *s, td_job *job, uint32_t slot, const td_submission *from, char *why)
{
    const tandem_job *desc = from->desc;
    const uint64_t now = td_now_ns();
    tandem_status status;

    job->operation = td_operation_find(desc->operation);
    job->submit_ns = now;
    job->life.has_deadline = desc->deadline_ns != 0;
    job->life.deadline_ns = td_after(now, desc->deadline_ns);
    job->bound_ns = td_after(now, s->wait_bound_ns);
    status = bind_points_locked(s, job, desc, why);
    if (status == TANDEM_OK && job->operation && s->ops->takes_locked)
        status = s->ops->takes_locked(s, &job->operation->layout, &desc->op, why);
    if (status == TANDEM_OK && job->operation)
        status = bind_operation_locked(s, job, from, why);
    else if (status == TANDEM_OK)
        status = td_run_bind_locked(s, job, slot, &desc->op.run, why);
    return status;
}

tandem_status td_job_prepare_locked(tandem_session *s, const td_submission *from, td_job **out, char *why)
{
    tandem_status status;
    td_job *job;

    *out = NULL;
    td_jobs_advance_locked(s);
    status = check_job(s, from->desc, why);
    if (status == TANDEM_OK)
        status = find_slot_locked(s, &job, why);
    if (status != TANDEM_OK)
        return status;
    memset(job, 0, offsetof(td_job, scratch));
    td_plan_drop(&job->plan);
    status = bind_job_locked(s, job, (uint32_t)(job - s->jobs), from, why);
    if (status == TANDEM_OK && !job->operation)
        td_run_take_uniforms_locked(job, &from->desc->op.run);
    if (status == TANDEM_OK)
        *out = job;
    return status;
}

/* An engine may wait for its point all the same: release.c. */
static void note_refused_locked(tandem_session *s, const tandem_job *desc)
{
    char ignored[TD_WHY_BYTES];
    td_timeline *signal = NULL;

    if (desc->signal.timeline)
        signal = td_timeline_find_locked(s, desc->signal.timeline, "", ignored);
    if (signal && signal->by_session && desc->signal.value > signal->refused)
        signal->refused = desc->signal.value;
}

tandem_status td_job_submit_locked(tandem_session *s, td_submission *from, tandem_ticket *ticket, char *why)
{
    td_job *job;
    tandem_status status = td_job_prepare_locked(s, from, &job, why);

    if (status == TANDEM_OK)
        status = s->ops->submit_locked(s, job, from, ticket, why);
    if (status != TANDEM_OK)
        note_refused_locked(s, from->desc);
    return status;
}

tandem_status tandem_submit(tandem_session *session, const tandem_job *job, tandem_ticket *ticket)
{
    tandem_job known;
    td_submission from = {.desc = &known, .most_bytes = UINT64_MAX};
    char why[TD_WHY_BYTES] = "";
    tandem_status status;

    if (ticket)
        *ticket = 0;
    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!job || !ticket)
        return td_session_fail(session, __func__, TANDEM_ERROR_ARG, job ? "ticket is NULL" : "job is NULL");
    status = TD_STRUCT_IN("job", job, &known, why, sizeof why);
    pthread_mutex_lock(&session->lock);
    if (status == TANDEM_OK)
        status = td_job_submit_locked(session, &from, ticket, why);
    else
        note_refused_locked(session, &known);
    pthread_mutex_unlock(&session->lock);
    return td_session_fail(session, __func__, status, why);
}

/* `job`: zeros, none of the session's slots. */
static tandem_status ask_locked(tandem_session *s, const tandem_job *desc, td_job *job, uint64_t *scratch_bytes, char *why)
{
    const td_submission from = {.desc = desc};
    tandem_status status;

    td_jobs_advance_locked(s);
    status = check_job(s, desc, why);
    if (status == TANDEM_OK)
        status = bind_job_locked(s, job, 0, &from, why);
    if (status == TANDEM_OK && td_is_inline(s) && s->stream)
        status = td_inline_check(s->stream, job->plan, why, TD_WHY_BYTES);
    if (status == TANDEM_OK && scratch_bytes)
        *scratch_bytes = job->plan->scratch_bytes;
    td_plan_drop(&job->plan);
    return status;
}

tandem_status tandem_supported(tandem_session *session, const tandem_job *job, uint64_t *scratch_bytes, char *why,
                               size_t why_bytes)
{
    char text[TD_WHY_BYTES] = "";
    tandem_status status;
    tandem_job known;
    td_job *asked;

    if (scratch_bytes)
        *scratch_bytes = 0;
    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!job)
        return td_session_fail(session, __func__, TANDEM_ERROR_ARG, "job is NULL");
    asked = td_session_alloc(session, sizeof *asked, 64);
    if (!asked)
        return td_session_fail(session, __func__, TANDEM_ERROR_NOMEM, "no host memory for a job");
    status = TD_STRUCT_IN("job", job, &known, text, sizeof text);
    pthread_mutex_lock(&session->lock);
    if (status == TANDEM_OK)
        status = ask_locked(session, &known, asked, scratch_bytes, text);
    pthread_mutex_unlock(&session->lock);
    td_session_free(session, asked, sizeof *asked);
    if (why)
        td_text(why, why_bytes, "%s", text);
    return status;
}

/* The number behind a ticket whose report is still kept; 0 and the reason otherwise. */
static uint64_t ticket_number_locked(tandem_session *s, tandem_ticket ticket, char *why)
{
    const uint64_t number = ticket & 0xffffffffffff;

    if (ticket >> 60 != TD_KIND_TICKET || (ticket >> 48 & 0xfff) != s->salt || !number || number > s->last_number)
        td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "ticket is 0x%" PRIx64 ", which is not one of this session",
                ticket);
    else if (number + TD_REPORTS <= s->last_number)
        td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "ticket is 0x%" PRIx64 ", older than the last %d", ticket,
                TD_REPORTS);
    else
        return number;
    return 0;
}

tandem_status tandem_poll(tandem_session *session, tandem_ticket ticket, tandem_job_report *report)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status;
    uint64_t number;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!report)
        return td_session_fail(session, __func__, TANDEM_ERROR_ARG, "report is NULL");
    status = TD_STRUCT_CHECK("report", report, why, sizeof why);
    if (status == TANDEM_OK) {
        pthread_mutex_lock(&session->lock);
        number = ticket_number_locked(session, ticket, why);
        if (number) {
            td_jobs_advance_locked(session);
            TD_STRUCT_OUT(report, &session->reports[number % TD_REPORTS]);
        } else {
            status = TANDEM_ERROR_ARG;
        }
        pthread_mutex_unlock(&session->lock);
    }
    return td_session_fail(session, __func__, status, why);
}

/* Nothing wakes the host when the engine's commands have run. */
static bool is_recorded_locked(const tandem_session *s, uint64_t number)
{
    for (uint32_t i = 0; i < s->jobs_in_flight; i++)
        if (s->jobs[i].number == number)
            return s->jobs[i].recorded;
    return false;
}

tandem_status tandem_wait(tandem_session *session, tandem_ticket ticket, uint64_t timeout_ns, tandem_job_report *report)
{
    const uint64_t begin = td_now_ns();
    const uint64_t until = td_after(begin, timeout_ns);
    char why[TD_WHY_BYTES] = "";
    tandem_status status;
    uint64_t number;
    int slack = 0;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    status = report ? TD_STRUCT_CHECK("report", report, why, sizeof why) : TANDEM_OK;
    if (status != TANDEM_OK)
        return td_session_fail(session, __func__, status, why);
    pthread_mutex_lock(&session->lock);
    for (;;) {
        const tandem_job_report *kept;
        const uint64_t now = td_now_ns();

        number = ticket_number_locked(session, ticket, why);
        if (!number) {
            status = TANDEM_ERROR_ARG;
            break;
        }
        td_jobs_advance_locked(session);
        kept = &session->reports[number % TD_REPORTS];
        if (td_job_state_ended(kept->state)) {
            if (report)
                TD_STRUCT_OUT(report, kept);
            break;
        }
        if (now >= until) {
            status = td_fail(why, sizeof why, TANDEM_ERROR_BUSY,
                             "ticket is 0x%" PRIx64 ": the job has not ended in time", ticket);
            break;
        }
        if (is_recorded_locked(session, number)) {
            const uint64_t look = now + td_nap_ns(now - begin);

            td_cond_wait_until(session, &session->changed, look < until ? look : until);
        } else {
            td_jobs_nap_locked(session, until, &slack);
        }
    }
    td_jobs_leave_locked(session, slack);
    pthread_mutex_unlock(&session->lock);
    return td_session_fail(session, __func__, status, why);
}

/* OK if it ends CANCELLED; BUSY and `open` while the executor decides. */
static tandem_status cancel_locked(tandem_session *s, uint64_t number, bool *open)
{
    *open = false;
    for (uint32_t i = 0; i < s->jobs_in_flight; i++) {
        td_job *job = &s->jobs[i];

        if (job->number != number || td_job_state_ended(td_job_report_locked(s, job)->state))
            continue;
        if (job->recorded)
            return td_recorded_cancel_locked(s, job) ? TANDEM_OK : TANDEM_ERROR_BUSY;
        if (td_job_give_up_locked(s, job, TANDEM_JOB_CANCELLED, TANDEM_OK)) {
            const bool ends_so = job->life.end_state == TANDEM_JOB_CANCELLED;

            td_jobs_advance_locked(s);
            return ends_so ? TANDEM_OK : TANDEM_ERROR_BUSY;
        }
        *open = td_job_is_deciding(job);
        break;
    }
    return TANDEM_ERROR_BUSY;
}

tandem_status tandem_cancel(tandem_session *session, tandem_ticket ticket)
{
    const uint64_t begin = td_now_ns();
    char why[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_ERROR_ARG;
    bool open = true;
    uint64_t number;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    pthread_mutex_lock(&session->lock);
    number = ticket_number_locked(session, ticket, why);
    if (number)
        td_jobs_advance_locked(session);
    while (number && open) {
        status = cancel_locked(session, number, &open);
        if (!open || td_now_ns() - begin > MOST_DECIDING_NS)
            break;
        pthread_mutex_unlock(&session->lock);
        td_sleep_ns(DECIDING_NS);
        pthread_mutex_lock(&session->lock);
    }
    if (status == TANDEM_ERROR_BUSY)
        td_fail(why, sizeof why, status, "ticket is 0x%" PRIx64 ": the job is writing its output or has ended", ticket);
    pthread_mutex_unlock(&session->lock);
    return td_session_fail(session, __func__, status, why);
}
