/* What every public call looks at first, and the text of a thread's last failure.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * After fork() the child has a copy of a session without its threads, with locks as they were, and with descriptors and a
 * device that are still the parent's. So a session is of use to the process alone that made it.
 */
#include "engine_plugin/client/client.h"
#include "interop/os/log.h"

static _Thread_local char last_text[TD_WHY_BYTES + 64];

void td_call_keep(const char *call, const char *why)
{
    td_text(last_text, sizeof last_text, "%s: %s", call, why);
}

tandem_status td_call_fail(const char *call, tandem_status status, const char *why)
{
    const td_log log = td_log_of_environment();

    td_call_keep(call, why);
    td_logf(&log, status == TANDEM_ERROR_BUSY ? TD_LOG_DEBUG : TD_LOG_ERROR, "%s", last_text);
    return status;
}

const char *td_call_text(void)
{
    return last_text;
}

bool td_session_is_here(const tandem_session *s, const char *call)
{
    char why[80];

    if (s && td_process_mark_is_here(&s->mark))
        return true;
    if (s)
        td_text(why, sizeof why, "session was made in another process (%d)", (int)s->mark.maker);
    td_call_fail(call, TANDEM_ERROR_ARG, s ? why : "session is NULL");
    return false;
}

bool td_session_usable(const tandem_session *s, const char *call)
{
    const bool is_here = td_session_is_here(s, call);

    if (is_here && td_session_is_over(s))
        td_call_fail(call, TANDEM_ERROR_ARG, "its session was destroyed");
    return is_here && !td_session_is_over(s);
}
