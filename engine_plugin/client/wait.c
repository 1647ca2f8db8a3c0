/* How threads sleep until a job's end.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * To be woken by another thread takes long where processors are idle, and so does a long sleep's end: on an H200's
 * virtual machine 27 us and p99 270 us, 23 us and p99 340 us. A sleep of less than 200 us ends within 4 us, p99 15 us.
 * So who waits for a job looks itself: it sleeps for half of the time until the job should be through, and half of the
 * rest, and so on, then for 20 us at a time: first short sleeps behind long ones end late, too, later ones do not. A job
 * of less than 100 us leaves no time for that: a caller looks at it all the time. What is 2 ms overdue is left to the
 * worker, which sleeps in the driver.
 *
 * While a caller looks, the worker does not; and where the GPU signals and nobody has asked for a descriptor, nobody
 * needs to. A worker that is to set off a descriptor runs on the processor of the thread that asked for it: its naps keep
 * that one awake, and the descriptor is a timer, which ends there when the worker sleeps again, so that the thread that
 * polls runs at once and where it did before. A thread that is woken by another is put on some other, sleeping processor.
 * So by a descriptor it was p99 90 us, and 245 us when the worker wrote to it.
 *
 * Where tandemd computes and the host signals, who waits does the worker's part of the hand-over, see remote_jobs.c.
 */
#include "engine_plugin/client/client.h"

#define NAP_NS 20000u
#define SPIN_NS 100000u /* a job that takes no longer is looked at without a sleep, */
#define SPIN_SHARE 40   /* as long as that makes no more than such a part of a processor's time */
#define LATE_NAP_NS 100000u  /* the longest nap while a job is late */
#define OVERDUE_NS 2000000u  /* when it is no longer looked for */
#define SIGNALLING_NS 5000u  /* from a job's end to its signal */
#define SLEEPER_LOOK_NS 50000000u /* who is woken looks all the same, against a driver that does not signal */

uint64_t td_toward(uint64_t now, uint64_t at)
{
    const uint64_t left = at > now ? at - now : 0;

    return left > 2 * NAP_NS ? now + left / 2 : at;
}

/* When the oldest job could begin. */
static uint64_t start_of(const tandem_session *s, const td_job *job)
{
    return s->guess.end_ns > job->begun_ns ? s->guess.end_ns : job->begun_ns;
}

void td_guess_learn_locked(tandem_session *s, const td_job *job)
{
    const uint64_t now = td_now_ns(), took = now - start_of(s, job);

    s->guess.end_ns = now;
    /* What is early moves the guess at once, what is late only a little: a late waker is worse than some more naps. */
    if (took < s->guess.took_ns)
        s->guess.took_ns = took;
    else
        s->guess.took_ns += (took - s->guess.took_ns) / 8;
}

static uint64_t look_for_end(const tandem_session *s, const td_job *job, uint64_t now)
{
    const uint64_t due = start_of(s, job) + s->guess.took_ns;
    uint64_t nap;

    if (s->ahead && job->control_block && td_stream_completed(s->stream) >= job->stream_sequence)
        return now + SIGNALLING_NS;
    if (now < due)
        return td_toward(now, due > now + NAP_NS ? due : now + NAP_NS);
    if (now - due > OVERDUE_NS)
        return UINT64_MAX;
    nap = (now - due) / 8;
    return now + (nap < NAP_NS ? NAP_NS : nap > LATE_NAP_NS ? LATE_NAP_NS : nap);
}

uint64_t td_jobs_look_locked(const tandem_session *s, uint64_t now, bool *alone)
{
    const td_job *first = s->order_count ? s->order[0] : NULL;
    uint64_t look = UINT64_MAX;

    if (first && td_job_has_begun(first) && (!s->ahead || !first->life.busy))
        look = look_for_end(s, first, now);
    *alone = look != UINT64_MAX;
    for (uint32_t i = 0; i < s->order_count; i++) {
        const td_job *job = s->order[i];
        uint64_t at = UINT64_MAX;

        if (td_job_is_deciding(job))
            at = td_after(now, s->ops->deciding_ns);
        else if (job->life.has_deadline && td_job_is_wanted(job))
            at = td_toward(now, job->life.deadline_ns);
        look = at < look ? at : look;
    }
    return look;
}

bool td_worker_needed_locked(const tandem_session *s)
{
    return !td_gpu_signals(s) || s->point_fd_count || s->sleepers;
}

/* Has the worker of a stream look after what is under way. */
static void call_worker(tandem_session *s)
{
    if (s->ahead && s->idle && s->order_count)
        pthread_cond_signal(&s->work);
}

/* Whether the oldest job is through, by looking at nothing else; without the lock meanwhile. */
static bool spin(tandem_session *s)
{
    const td_job *first = s->order[0];
    const uint64_t now = td_now_ns(), until = start_of(s, first) + SPIN_NS, sequence = first->stream_sequence;
    bool through = false;

    if (!s->ahead || s->guess.took_ns > SPIN_NS || now >= until || now < s->no_spin_until_ns)
        return false;
    pthread_mutex_unlock(&s->lock);
    while (!through && td_now_ns() < until)
        through = td_stream_completed(s->stream) >= sequence;
    pthread_mutex_lock(&s->lock);
    s->no_spin_until_ns = now + SPIN_SHARE * (td_now_ns() - now);
    return through;
}

bool td_local_caller_waits_locked(tandem_session *s, bool alone, uint64_t until_ns)
{
    bool through;

    (void)until_ns; /* it spins for less than anybody would notice */
    if (!alone) {
        call_worker(s);
        return false;
    }
    s->pollers++;
    through = spin(s);
    s->pollers--;
    return through;
}

void td_local_caller_leaves_locked(tandem_session *s)
{
    if (!s->pollers && td_worker_needed_locked(s))
        call_worker(s);
}

void td_jobs_nap_locked(tandem_session *s, uint64_t until_ns, int *slack)
{
    const uint64_t now = td_now_ns(), look_at_ns = now + SLEEPER_LOOK_NS;
    bool alone;
    const uint64_t look_ns = td_jobs_look_locked(s, now, &alone);
    uint32_t *count = alone ? &s->pollers : &s->sleepers;

    if (s->ops->caller_waits_locked(s, alone, until_ns))
        return;
    if (!*slack) { /* that of the thread's: by default each nap is 50 us longer */
        *slack = td_thread_slack();
        td_thread_set_slack(TD_SLACK_NS);
    }
    ++*count;
    if (look_ns < until_ns)
        until_ns = look_ns;
    td_cond_wait_until(s, &s->changed, look_at_ns < until_ns ? look_at_ns : until_ns);
    --*count;
}

void td_jobs_leave_locked(tandem_session *s, int slack)
{
    if (slack > 0)
        td_thread_set_slack(slack);
    s->ops->caller_leaves_locked(s);
}
