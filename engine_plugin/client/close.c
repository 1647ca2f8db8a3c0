/* How an object is closed while jobs use it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "engine_plugin/client/client.h"

tandem_status td_object_close_locked(tandem_session *s, td_object *object, const char *what, char *why)
{
    const uint64_t until = td_after(td_now_ns(), TD_CLOSE_BOUND_NS);

    object->closing = true;
    for (uint32_t i = 0; i < s->order_count; i++) {
        td_job *job = s->order[i];
        bool uses = (job->wait && &job->wait->object == object) || (job->signal && &job->signal->object == object);

        for (uint32_t v = 0; v < job->view_count; v++)
            uses = uses || (job->mems[v] && &job->mems[v]->object == object);
        if (uses && !td_job_has_begun(job))
            td_job_cancel_locked(s, job);
    }
    td_recorded_cancel_all_locked(s, object);
    td_jobs_retire_given_up_locked(s);
    for (;;) {
        uint64_t now = td_now_ns();

        td_jobs_advance_locked(s);
        if (!object->uses || now >= until)
            break;
        td_cond_wait_until(s, &s->changed, td_after(now, td_gpu_signals(s) ? 200000 : 10000000));
    }
    if (!object->uses)
        return TANDEM_OK;
    object->closing = false;
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_BUSY, "%s is 0x%" PRIx64 ", which a job still uses after 2 s", what,
                   object->id);
}
