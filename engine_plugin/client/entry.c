/* What every public call looks at first, and the text of a failure that no session can hold.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * After fork() the child has a copy of a session without its threads, with locks as they were, and with descriptors and a
 * device that are still the parent's. So a session is of use to the process alone that made it. That is looked up in a page
 * that the kernel wipes in a child (MADV_WIPEONFORK): one load, where getpid() is a system call of 60 ns or more, and no
 * handler as of pthread_atfork(), which would have to outlive a dlclose() and which clone() passes by.
 */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

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

bool td_session_mark(tandem_session *s)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint32_t *mark = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (mark == MAP_FAILED)
        return false;
    *mark = 1;
    s->mark = mark;
    s->maker = getpid();
    s->wiped = !madvise(mark, page, MADV_WIPEONFORK); /* from Linux 4.14 on */
    return true;
}

void td_session_unmark(tandem_session *s)
{
    if (s->mark)
        munmap((void *)(uintptr_t)s->mark, (size_t)sysconf(_SC_PAGESIZE));
    s->mark = NULL;
}

bool td_session_usable(const tandem_session *s, const char *call)
{
    char why[80];

    if (s && *s->mark && (s->wiped || s->maker == getpid()))
        return true;
    if (s)
        td_text(why, sizeof why, "session was made in another process (%d)", (int)s->maker);
    td_call_fail(call, TANDEM_ERROR_ARG, s ? why : "session is NULL");
    return false;
}
