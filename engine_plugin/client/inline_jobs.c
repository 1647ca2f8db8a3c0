/* Jobs recorded into the engine's own command buffers: the inline rung.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Such a job is under way from tandem_record() until its end stamp is seen, which may be never: the engine submits its
 * commands when it likes, more than once, or not at all. So it is in no order with the jobs of tandem_submit(), nobody
 * waits for it, and whoever destroys what it uses, or the session, gives it up: its cancel word is set, and should its
 * commands run after all, each block returns at once.
 */
#include <inttypes.h>
#include <string.h>

#include "engine_plugin/client/network.h"

/* How long a recorded job may take to run before the driver is asked whether the device is well, and how often it is. */
#define ASK_NS 100000000u

static tandem_status check_record(tandem_session *s, const tandem_job *desc, VkCommandBuffer commands, char *why)
{
    if (!td_is_inline(s))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "the session is not on the inline rung: %s", s->rung_reason);
    if (!commands)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "commands is NULL");
    if (desc->wait.timeline || desc->wait.value)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "job.wait is {0x%" PRIx64 ", %" PRIu64 "}: what the engine's submit waits for holds for a "
                       "recorded job too",
                       desc->wait.timeline, desc->wait.value);
    if (desc->signal.timeline || desc->signal.value)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "job.signal is {0x%" PRIx64 ", %" PRIu64 "}: the engine's submit signals for a recorded job",
                       desc->signal.timeline, desc->signal.value);
    if (desc->deadline_ns)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "job.deadline_ns is %" PRIu64 ": only the engine knows when a recorded job begins",
                       desc->deadline_ns);
    return TANDEM_OK;
}

static tandem_status record_locked(tandem_session *s, const tandem_job *desc, VkCommandBuffer commands,
                                   tandem_ticket *ticket, char *why)
{
    td_submission from = {.desc = desc, .most_bytes = UINT64_MAX};
    uint64_t number = 0;
    td_job *job;
    tandem_status status = td_job_prepare_locked(s, &from, &job, why);

    if (status == TANDEM_OK)
        status = td_scratch_reserve_locked(s, job, &from, job->plan->scratch_bytes, why);
    if (status != TANDEM_OK)
        return status;
    job->scratch.recorded = true;
    status = td_inline_record(s->stream,
                              &(td_stream_submit){.plan = job->plan,
                                                  .views = job->views,
                                                  .scratch = job->scratch.address,
                                                  .label = job->label},
                              commands, &number, why, TD_WHY_BYTES);
    if (status != TANDEM_OK)
        return status;
    job->recorded = true;
    if (!job->operation)
        td_run_note_recorded_locked(s, &desc->op.run);
    job->stream_sequence = number;
    td_job_event_locked(s, job, TD_LIFE_BEGUN);
    *ticket = td_job_accept_locked(s, job);
    return TANDEM_OK;
}

tandem_status tandem_record(tandem_session *session, const tandem_job *job, VkCommandBuffer commands,
                            tandem_ticket *ticket)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status;
    tandem_job known;

    if (ticket)
        *ticket = 0;
    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!job || !ticket)
        return td_session_fail(session, __func__, TANDEM_ERROR_ARG, job ? "ticket is NULL" : "job is NULL");
    status = TD_STRUCT_IN("job", job, &known, why, sizeof why);
    if (status == TANDEM_OK)
        status = check_record(session, &known, commands, why);
    if (status == TANDEM_OK) {
        pthread_mutex_lock(&session->lock);
        status = record_locked(session, &known, commands, ticket, why);
        pthread_mutex_unlock(&session->lock);
    }
    return td_session_fail(session, __func__, status, why);
}

/* The engine's submit signals for it. */
static void end(tandem_session *s, td_job *job, tandem_job_state state, tandem_status status)
{
    td_job_step_locked(s, job,
                       (td_life_event){.kind = TD_LIFE_THROUGH, .state = state, .status = status, .signalled = true});
}

/* False: it has not run yet. */
static bool advance_recorded(tandem_session *s, td_job *job)
{
    tandem_job_report *report = td_job_report_locked(s, job);
    uint64_t begin_ns, end_ns;

    if (td_inline_ran(s->stream, job->stream_sequence, &begin_ns, &end_ns)) {
        const bool given_up = td_inline_cancelled(s->stream, job->stream_sequence);

        if (s->timing) {
            report->begin_ns = begin_ns;
            report->end_ns = end_ns;
        }
        end(s, job, given_up ? TANDEM_JOB_CANCELLED : TANDEM_JOB_DONE, TANDEM_OK);
        return true;
    }
    if (s->broken) {
        end(s, job, TANDEM_JOB_FAILED, s->broken);
        return true;
    }
    if (td_inline_begun(s->stream, job->stream_sequence))
        report->state = TANDEM_JOB_RUNNING;
    return false;
}

void td_recorded_advance_locked(tandem_session *s)
{
    uint64_t since_ns = UINT64_MAX, now;

    if (!td_is_inline(s))
        return;
    for (uint32_t i = 0; i < s->jobs_in_flight; i++) {
        td_job *job = &s->jobs[i];

        if (job->number && job->recorded && !advance_recorded(s, job) && job->submit_ns < since_ns)
            since_ns = job->submit_ns;
    }
    if (since_ns == UINT64_MAX)
        return;
    now = td_now_ns();
    if (now - since_ns < ASK_NS || now - s->record_asked_ns < ASK_NS)
        return;
    s->record_asked_ns = now;
    if (!td_gpu_is_well_locked(s))
        td_recorded_advance_locked(s); /* they fail */
}

bool td_recorded_cancel_locked(tandem_session *s, td_job *job)
{
    if (td_inline_begun(s->stream, job->stream_sequence))
        return false;
    td_inline_cancel(s->stream, job->stream_sequence);
    /* It may have begun meanwhile, and then ends by itself, with blocks left out: td_recorded_advance_locked(). */
    if (!td_inline_begun(s->stream, job->stream_sequence))
        end(s, job, TANDEM_JOB_CANCELLED, TANDEM_OK);
    return true;
}

void td_recorded_cancel_all_locked(tandem_session *s, const td_object *object)
{
    if (!td_is_inline(s))
        return;
    for (uint32_t i = 0; i < s->jobs_in_flight; i++) {
        td_job *job = &s->jobs[i];
        bool uses = !object;

        if (!job->number || !job->recorded)
            continue;
        for (uint32_t v = 0; v < job->view_count; v++)
            uses = uses || (job->mems[v] && &job->mems[v]->object == object);
        if (uses)
            td_recorded_cancel_locked(s, job);
    }
}
