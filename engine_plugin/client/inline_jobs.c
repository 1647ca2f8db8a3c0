/* Jobs recorded into the engine's own command buffers: the inline rung.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Such a job is under way from tandem_record() until its end stamp is seen, which may be never: the engine submits its
 * commands when it likes, more than once, or not at all. So it is in no order with the jobs of tandem_submit(), nobody
 * waits for it, and whoever destroys what it uses, or the session, gives it up: its cancel word is set, and should its
 * commands run after all, each block returns at once.
 */
#include "engine_plugin/client/network.h"

/* How long a recorded job may take to run before the driver is asked whether the device is well, and how often it is. */
#define ASK_NS 100000000u

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
