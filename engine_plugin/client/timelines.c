/* Timelines: a Vulkan semaphore where there is a Vulkan device, else a counter; and who waits for what they come to.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/client/client.h"
#include "interop/os/event.h"

/* How often a point is looked at although its signal wakes who waits: against a driver that does not. */
#define SIGNAL_LOOK_NS 50000000u
#define FOREIGN_DRAIN_NS 100000000u
/* In how long the worker is asleep again, and leaves its processor to who waits for a descriptor: see wait.c. */
#define ASLEEP_NS 10000u

tandem_status td_timeline_value_locked(tandem_session *s, td_timeline *timeline, uint64_t *value)
{
    if (timeline->semaphore)
        return td_vk_timeline_value(s->vk, timeline->semaphore, value);
    *value = timeline->counter;
    return TANDEM_OK;
}

tandem_status td_timeline_raise_locked(tandem_session *s, td_timeline *timeline, uint64_t value)
{
    uint64_t now;
    tandem_status status = td_timeline_value_locked(s, timeline, &now);

    if (s->imports_only)
        return td_stream_release(s->stream, &timeline->cu, value, NULL, 0);
    if (status != TANDEM_OK || value <= now)
        return status;
    if (timeline->semaphore)
        status = td_vk_timeline_signal(s->vk, timeline->semaphore, value);
    else
        timeline->counter = value;
    pthread_cond_broadcast(&s->changed);
    s->ops->wake_locked(s);
    td_points_notify_locked(s);
    return status;
}

void td_timeline_nap_locked(tandem_session *s, const td_timeline *timeline, pthread_cond_t *cond, uint64_t begin_ns,
                            uint64_t until_ns)
{
    const uint64_t now = td_now_ns();
    const uint64_t look_ns = now + (timeline->by_session ? SIGNAL_LOOK_NS : td_nap_ns(now - begin_ns));

    td_cond_wait_until(s, cond, timeline->semaphore && look_ns < until_ns ? look_ns : until_ns);
}

static void feed_fd(tandem_session *s, uint32_t index)
{
    td_point_fd *at = &s->point_fds[index];
    const bool here = s->worker_cpu >= 0 && pthread_equal(pthread_self(), s->worker);

    td_alarm_set(at->fd, here ? ASLEEP_NS : 1);
    if (!here)
        td_event_await(at->fd, 1); /* so that it is when a call returns; that is at once */
    td_fd_close(&at->fd);
    *at = s->point_fds[--s->point_fd_count];
}

void td_points_notify_locked(tandem_session *s)
{
    const uint64_t look = ++s->point_looks;

    for (uint32_t i = 0; i < s->point_fd_count;) {
        td_timeline *timeline = s->point_fds[i].timeline;

        if (timeline->look != look) { /* a driver's call: once, however many wait */
            timeline->look = look;
            timeline->look_status = td_timeline_value_locked(s, timeline, &timeline->looked);
        }
        if (s->broken || timeline->look_status != TANDEM_OK || timeline->looked >= s->point_fds[i].value)
            feed_fd(s, i);
        else
            i++;
    }
}

void td_points_end_locked(tandem_session *s, const td_timeline *timeline)
{
    for (uint32_t i = 0; i < s->point_fd_count;)
        if (!timeline || s->point_fds[i].timeline == timeline)
            feed_fd(s, i);
        else
            i++;
}

void td_timeline_free(tandem_session *s, td_timeline *timeline)
{
    if (timeline->mark && !s->in_use && !s->stuck)
        td_vk_queue_unmark(s->vk, &timeline->mark);
    if (s->imports_only && timeline->imported && !s->stuck)
        td_stream_drain(s->stream, FOREIGN_DRAIN_NS); /* a signal comes a little behind the end of its job */
    if (timeline->imported && !s->stuck)
        td_cu_timeline_free(s->cu, &timeline->cu);
    if (td_is_inline(s) && s->stream && !s->stuck)
        td_inline_sync(s->stream);
    if (timeline->owned && timeline->semaphore && !s->stuck && !s->in_use)
        td_vk_timeline_destroy(s->vk, &timeline->semaphore);
    td_session_free(s, timeline, sizeof *timeline);
}

tandem_status td_local_timeline_share(tandem_session *s, td_timeline *timeline, char *why)
{
    int fd = -1;
    tandem_status status = td_vk_timeline_export_fd(s->vk, timeline->semaphore, &fd, why, TD_WHY_BYTES);

    if (status == TANDEM_OK) {
        status = td_cu_timeline_import_fd(s->cu, fd, &timeline->cu, why, TD_WHY_BYTES);
        timeline->imported = status == TANDEM_OK;
    }
    td_fd_close(&fd);
    return status;
}

void td_timeline_remove_locked(tandem_session *s, td_timeline *timeline)
{
    td_points_end_locked(s, timeline);
    td_table_remove_locked(&s->timelines, &timeline->object);
}
