/* What the engine's queue may still wait for when a timeline or its session goes.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * An engine that submits its work although tandem_submit() refused the job, or was never called, waits for a point that
 * no job signals. Drivers do not destroy a semaphore that is waited for: lavapipe sleeps until nobody does. So before a
 * timeline goes the points that were refused are signalled, and the engine's queue, where it was given, is asked whether it
 * comes past what it has been given so far. If it does not, all that it can wait for is signalled; and what it may use
 * even then is left behind. A point that the engine itself is to signal is never signalled here: its own signal may come.
 *
 * Of a session whose GPU has failed all goes with it: a kernel may still use it, and only its end finds the GPU idle, or dead.
 */
#include <inttypes.h>

#include "engine_plugin/client/client.h"

#define QUIET_NS 50000000u  /* a queue that is behind for longer is taken to wait for a point */
/* What submits that were released get where the queue cannot be asked: if there is a point that was refused, else. */
#define LEAVE_NS 100000000u
#define LEAVE_SOON_NS 20000000u

static td_timeline *timeline_at(tandem_session *s, td_timeline *only, uint32_t i)
{
    return only ? only : (td_timeline *)s->timelines.slots[i];
}

static uint32_t timeline_count(const tandem_session *s, const td_timeline *only)
{
    return only ? 1 : s->timelines.capacity;
}

/* Signals in place of jobs, as far toward `value` as the device steps. */
static void release_locked(tandem_session *s, td_timeline *timeline, uint64_t value)
{
    if (timeline->semaphore)
        td_vk_timeline_release(s->vk, timeline->semaphore, value);
    else if (value > timeline->counter)
        timeline->counter = value;
    pthread_cond_broadcast(&s->changed);
    td_points_notify_locked(s);
}

/* Of one timeline, below what jobs under way are to signal; false: there is no such point. */
static bool release_refused_locked(tandem_session *s, td_timeline *timeline, char *line)
{
    const uint64_t refused = timeline->refused;
    uint64_t value = refused, now = 0;

    timeline->refused = 0;
    for (uint32_t i = 0; i < s->order_count; i++)
        if (s->order[i]->signal == timeline && value >= s->order[i]->signal_value)
            value = s->order[i]->signal_value - 1;
    if (!refused || td_timeline_value_locked(s, timeline, &now) != TANDEM_OK || value <= now)
        return false;
    release_locked(s, timeline, value);
    td_text(line, TD_WHY_BYTES,
            "the engine may wait for {0x%" PRIx64 ", %" PRIu64 "}, a point that no job signals: tandem_submit() refused the "
            "one that was to; it is signalled now",
            timeline->object.id, refused);
    return true;
}

bool td_refused_release_locked(tandem_session *s, td_timeline *only, char *line)
{
    for (uint32_t i = 0; i < timeline_count(s, only); i++) {
        td_timeline *timeline = timeline_at(s, only, i);

        if (timeline && timeline->by_session && release_refused_locked(s, timeline, line)) {
            s->released_ns = td_now_ns();
            return true;
        }
    }
    return false;
}

/* Whether the engine may wait for a point that was refused. */
static bool is_refused_locked(tandem_session *s)
{
    bool is = false;

    for (uint32_t i = 0; i < s->timelines.capacity; i++) {
        td_timeline *timeline = (td_timeline *)s->timelines.slots[i];
        uint64_t now = 0;

        is = is || (timeline && timeline->refused &&
                    td_timeline_value_locked(s, timeline, &now) == TANDEM_OK && now < timeline->refused);
    }
    return is;
}

/* Everything that a submit can wait for on the session's own semaphores. `text`: which, and what they had come to. */
static void release_all(tandem_session *s, td_timeline *only, char *text)
{
    size_t used = 0;

    text[0] = 0;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < timeline_count(s, only); i++) {
        td_timeline *timeline = timeline_at(s, only, i);
        uint64_t now = 0;

        if (!timeline || !timeline->by_session || !timeline->owned ||
            td_timeline_value_locked(s, timeline, &now) != TANDEM_OK)
            continue;
        release_locked(s, timeline, td_after(now > timeline->promised ? now : timeline->promised, TD_MAX_POINT_STEP));
        td_text(text + used, TD_WHY_BYTES / 2 - used, "%s{0x%" PRIx64 ", %" PRIu64 "}", used ? ", " : "",
                timeline->object.id, now);
        used = strlen(text);
    }
    pthread_mutex_unlock(&s->lock);
}

static bool may_be_waited_for(const tandem_session *s, const td_timeline *only)
{
    bool may = s->vk && (only ? only->semaphore && only->owned : s->leaving != NULL);

    for (uint32_t i = 0; i < s->timelines.capacity && s->vk && !only; i++)
        may = may || (s->timelines.slots[i] && ((const td_timeline *)s->timelines.slots[i])->semaphore);
    return may;
}

/* Where a queue was given. False: it is behind, and the mark is still in it. */
static bool queue_passes(tandem_session *s, td_timeline *only, VkFence *mark)
{
    const uint64_t until = td_after(td_now_ns(), only ? 2 * QUIET_NS : TD_CLOSE_BOUND_NS);
    char why[TD_WHY_BYTES], points[TD_WHY_BYTES];
    tandem_status status = td_vk_queue_wait(s->vk, *mark, QUIET_NS, why, sizeof why);
    uint64_t now;

    if (status == TANDEM_ERROR_BUSY) {
        release_all(s, only, points);
        status = td_vk_queue_wait(s->vk, *mark, QUIET_NS, why, sizeof why);
        if (points[0])
            td_logf(&s->log, status == TANDEM_OK ? TD_LOG_WARN : TD_LOG_INFO,
                    "the engine's queue %s for a point that no job signals, beyond %s: it is signalled now",
                    status == TANDEM_OK ? "waited" : "may wait", points);
    }
    now = td_now_ns();
    if (status == TANDEM_ERROR_BUSY && now < until)
        status = td_vk_queue_wait(s->vk, *mark, until - now, why, sizeof why);
    if (status != TANDEM_ERROR_BUSY) /* a device that is lost runs nothing any more */
        td_vk_queue_unmark(s->vk, mark);
    return status != TANDEM_ERROR_BUSY;
}

/* The queue is asked by a submit to it, which other threads must not make at that moment: the engine has said how to keep
 * them off, or it keeps them off itself as long as it destroys the session. Else only where there is reason to. */
static bool may_ask(const tandem_session *s, const td_timeline *only)
{
    return s->queue.queue && (s->queue.lock || (s->released_ns && !only));
}

/* How the engine's queue stands to all that it was given; to be asked without the lock. UNKNOWN: what it may wait for is
 * signalled where that is the host's to do, and gets a while. NOT_ASKED: there is nothing that it could use. */
typedef enum passage { NOT_ASKED, PASSED, BEHIND, UNKNOWN } passage;

static passage ask_queue(tandem_session *s, td_timeline *only, VkFence *mark)
{
    char why[TD_WHY_BYTES];

    *mark = VK_NULL_HANDLE;
    if (s->stuck || !may_be_waited_for(s, only))
        return NOT_ASKED;
    if (may_ask(s, only) && td_vk_queue_mark(s->vk, &s->queue, mark, why, sizeof why) == TANDEM_OK)
        return queue_passes(s, only, mark) ? PASSED : BEHIND;
    release_all(s, only, why);
    return UNKNOWN;
}

/* Takes those out that nobody uses any more: all, or those that left long ago. */
static td_timeline *take_leaving_locked(tandem_session *s, bool all)
{
    td_timeline *gone = NULL, **at = &s->leaving;
    const uint64_t now = td_now_ns();
    const bool waits =
        s->leaving && (s->stuck || s->queue.lock || now - s->released_ns < LEAVE_NS || is_refused_locked(s));

    while (*at) {
        td_timeline *timeline = *at;

        if (!all && (waits || now - timeline->left_ns < LEAVE_NS)) {
            at = &timeline->next;
            continue;
        }
        *at = timeline->next;
        timeline->next = gone;
        gone = timeline;
    }
    return gone;
}

static void free_timelines(tandem_session *s, td_timeline *first)
{
    while (first) {
        td_timeline *next = first->next;

        td_timeline_free(s, first);
        first = next;
    }
}

void td_timeline_leave(tandem_session *s, td_timeline *timeline)
{
    const passage how = ask_queue(s, timeline, &timeline->mark);
    const bool goes = !s->stuck && (how == PASSED || how == NOT_ASKED);
    td_timeline *gone;

    if (s->vk && timeline->semaphore)
        td_vk_timeline_forget(s->vk, timeline->semaphore); /* the engine may destroy what is its own */
    if (how == BEHIND)
        td_logf(&s->log, TD_LOG_INFO, "the engine's queue is behind: the semaphore of timeline 0x%" PRIx64 " goes later",
                timeline->object.id);
    pthread_mutex_lock(&s->lock);
    gone = take_leaving_locked(s, how == PASSED); /* the queue has come past all that left before, too */
    timeline->left_ns = td_now_ns();
    timeline->next = goes ? gone : s->leaving;
    if (goes)
        gone = timeline;
    else
        s->leaving = timeline;
    pthread_mutex_unlock(&s->lock);
    free_timelines(s, gone);
}

static void free_mems(tandem_session *s, td_mem *first)
{
    while (first) {
        td_mem *next = first->next;

        td_mem_free(s, first);
        first = next;
    }
}

void td_mem_leave(tandem_session *s, td_mem *mem)
{
    td_timeline *timelines;
    td_mem *gone = mem;

    if (mem->has_vk)
        td_vk_mem_forget(s->vk, &mem->vk); /* the engine may free what is its own */
    pthread_mutex_lock(&s->lock);
    timelines = take_leaving_locked(s, false);
    mem->next = s->leaving_mems;
    s->leaving_mems = s->stuck || (mem->has_vk && (s->leaving || is_refused_locked(s))) ? mem : NULL;
    if (s->leaving_mems)
        gone = NULL;
    pthread_mutex_unlock(&s->lock);
    free_timelines(s, timelines);
    free_mems(s, gone);
}

void td_session_leave_queue(tandem_session *s)
{
    VkFence mark; /* left to a queue that is behind */
    const passage how = ask_queue(s, NULL, &mark);

    if (how == UNKNOWN)
        td_sleep_ns(s->released_ns ? LEAVE_NS : LEAVE_SOON_NS);
    s->in_use = how == BEHIND;
    if (!s->in_use)
        return;
    td_vk_keep(s->vk);
    td_logf(&s->log, TD_LOG_ERROR,
            "the engine's queue has not come past its submits within 2 s: what they may use is left behind");
}

void td_leaving_free(tandem_session *s)
{
    free_timelines(s, s->leaving);
    free_mems(s, s->leaving_mems);
    s->leaving = NULL;
    s->leaving_mems = NULL;
}
