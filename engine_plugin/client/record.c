/* tandem_record(): a job into the engine's own command buffer, from where on inline_jobs.c sees to it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "engine_plugin/client/network.h"

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
