/* Jobs that this process computes, as the files that see to them share it.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   local.c         starts the two threads and ends them, whatever they are at
 *   local_watch.c   the watchdog: deadlines, bounds, the state of the GPU
 *   local_cpu.c     the worker that computes itself
 *   local_stream.c  jobs on a stream, and the worker that waits for those; how any job begins and is brought up to date
 *   scratch.c       memory of a job's kernels
 *   local_end.c     how any job ends, and a session that is broken
 *
 * Each calls those below it in this list and none above it. What the rest of the client sees of them is in client.h.
 */
#ifndef TANDEM_CLIENT_LOCAL_H
#define TANDEM_CLIENT_LOCAL_H

#include "engine_plugin/client/client.h"

#define TD_STATUS_NS 100000000u      /* how often the driver is asked for errors while jobs are under way */
#define TD_UNWAITED_LOOK_NS 1000000u /* how often jobs are looked at where nobody else does */

/* What a thread that sleeps in the driver shares with the session's destruction. */
struct td_sleeper {
    pthread_mutex_t lock;
    pthread_cond_t awake;
    bool sleeps, left_behind;
};

static inline uint64_t td_sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* local_end.c. end: the executor is through with a job. was_given_up: whether it was then. abandon: nobody is, or sees to it
 * any more; it has failed with `status`, and `signalled` says whether its point comes all the same. */
bool td_job_was_given_up(const td_job *job);
void td_job_end_locked(tandem_session *s, td_job *job, tandem_status status);
void td_job_abandon_locked(tandem_session *s, td_job *job, tandem_status status, bool signalled);
/* A driver error that will not go away: every job ends FAILED. `logged`: somebody logs it. retire: the points of jobs
 * that the GPU of such a session has, as they come or once it is certain that they do not. */
void td_session_break_locked(tandem_session *s, tandem_status status, bool logged);
void td_session_retire_broken_locked(tandem_session *s);

/* local_stream.c. The main of a stream's worker. */
void *td_local_wait_for_gpu(void *session);
/* When the watchdog has to look at a job that was just accepted. */
uint64_t td_job_first_look_ns(const tandem_session *s, const td_job *job);
/* A thread of ours that sleeps briefly, and its name. */
void td_thread_prepare(const char *name);
td_sleeper *td_sleeper_make(void);
void td_sleeper_free(td_sleeper *sleeper);

/* local_cpu.c. The main of the worker that computes. */
void *td_local_work(void *session);

/* scratch.c, which calls none of these. free: nothing uses it any more. retired: all that was outgrown, likewise. */
void td_scratch_free(tandem_session *s, td_scratch *scratch);
void td_scratch_free_retired(tandem_session *s);

/* local_watch.c. The main of the watchdog. tell: the line that it has yet to log, if there is one. */
void *td_local_watch(void *session);
void td_session_tell_broken_locked(tandem_session *s, char *line);

#endif
