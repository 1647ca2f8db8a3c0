/* Timelines and points as a caller has them: made, signalled, waited for, destroyed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine_plugin/client/client.h"
#include "interop/os/event.h"

static tandem_status make_timeline(tandem_session *s, const tandem_timeline_desc *desc, td_timeline **out, char *why)
{
    const bool shared = s->way.sharing == TD_SHARING_TIMELINE;
    td_timeline *timeline;
    tandem_status status = TANDEM_OK;

    if (desc->signaller > TANDEM_SIGNALLER_SESSION)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "desc.signaller is %u; it must be 0 (the engine) or 1 (the session)", desc->signaller);
    if (desc->vulkan_semaphore && !s->vk)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "desc.vulkan_semaphore is 0x%" PRIx64 ", but the session has no Vulkan device",
                       desc->vulkan_semaphore);
    if (desc->vulkan_semaphore && !td_vk_get_caps(s->vk)->timeline)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "desc.vulkan_semaphore is 0x%" PRIx64 ", but timelineSemaphore is not enabled",
                       desc->vulkan_semaphore);
    timeline = *out = td_session_alloc(s, sizeof *timeline, 64);
    if (!timeline)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for a timeline of %zu bytes",
                       sizeof *timeline);
    timeline->by_session = desc->signaller == TANDEM_SIGNALLER_SESSION;
    timeline->counter = timeline->promised = timeline->ended = desc->initial_value;
    if (!s->vk || !td_vk_get_caps(s->vk)->timeline)
        return TANDEM_OK;
    if (desc->vulkan_semaphore) {
        timeline->semaphore = (VkSemaphore)(uintptr_t)desc->vulkan_semaphore;
        status = td_vk_timeline_value(s->vk, timeline->semaphore, &timeline->promised);
        if (status != TANDEM_OK)
            td_fail(why, TD_WHY_BYTES, status, "desc.vulkan_semaphore is 0x%" PRIx64 ", which cannot be read",
                    desc->vulkan_semaphore);
        timeline->ended = timeline->promised;
    } else {
        timeline->owned = true;
        status =
            td_vk_timeline_create(s->vk, desc->initial_value, shared, &timeline->semaphore, why, TD_WHY_BYTES);
    }
    return status == TANDEM_OK && shared ? s->ops->timeline_share(s, timeline, why) : status;
}

static void name_timeline(tandem_session *s, const td_timeline *timeline)
{
    char name[40];

    snprintf(name, sizeof name, "tandem %s timeline %" PRIx64, timeline->by_session ? "session's" : "engine's",
             timeline->object.id & 0xffffff);
    if (timeline->owned)
        td_vk_name(s->vk, VK_OBJECT_TYPE_SEMAPHORE, (uint64_t)(uintptr_t)timeline->semaphore, name);
}

tandem_status tandem_timeline_create(tandem_session *session, const tandem_timeline_desc *desc,
                                     tandem_timeline *timeline)
{
    char why[TD_WHY_BYTES] = "";
    tandem_timeline_desc known;
    td_timeline *made = NULL;
    tandem_status status;

    if (timeline)
        *timeline = 0;
    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!desc || !timeline)
        return td_session_fail(session, __func__, TANDEM_ERROR_ARG, desc ? "timeline is NULL" : "desc is NULL");
    status = TD_STRUCT_IN("desc", desc, &known, why, sizeof why);
    if (status == TANDEM_OK)
        status = make_timeline(session, &known, &made, why);
    if (status == TANDEM_OK) {
        pthread_mutex_lock(&session->lock);
        status = td_table_add_locked(session, &session->timelines, TD_KIND_TIMELINE, &made->object, why);
        if (status == TANDEM_OK) {
            *timeline = made->object.id;
            name_timeline(session, made); /* once unlocked, any thread may destroy it */
        }
        pthread_mutex_unlock(&session->lock);
    }
    if (status != TANDEM_OK && made)
        td_timeline_free(session, made);
    return td_session_fail(session, __func__, status, why);
}

void td_timeline_end(tandem_session *s, td_timeline *timeline)
{
    s->ops->object_end(s, &timeline->object);
    td_timeline_leave(s, timeline);
}

tandem_status tandem_timeline_destroy(tandem_session *session, tandem_timeline timeline)
{
    char why[TD_WHY_BYTES] = "", line[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_ERROR_ARG;
    td_timeline *found;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    pthread_mutex_lock(&session->lock);
    found = td_timeline_find_locked(session, timeline, "timeline", why);
    if (found) {
        td_refused_release_locked(session, found, line);
        pthread_cond_broadcast(&session->changed);
        status = td_object_close_locked(session, &found->object, "timeline", why);
    }
    if (status == TANDEM_OK)
        td_timeline_remove_locked(session, found);
    pthread_mutex_unlock(&session->lock);
    if (line[0])
        td_logf(&session->log, TD_LOG_WARN, "%s", line);
    if (status != TANDEM_OK)
        return td_session_fail(session, __func__, status, why);
    td_timeline_end(session, found);
    return TANDEM_OK;
}

tandem_status tandem_timeline_value(tandem_session *session, tandem_timeline timeline, uint64_t *value)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_ERROR_ARG;
    td_timeline *found;

    if (value)
        *value = 0;
    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!value)
        return td_session_fail(session, __func__, status, "value is NULL");
    pthread_mutex_lock(&session->lock);
    found = td_timeline_find_locked(session, timeline, "timeline", why);
    if (found) {
        status = td_timeline_value_locked(session, found, value);
        if (status != TANDEM_OK)
            td_fail(why, sizeof why, status, "timeline is 0x%" PRIx64 ", whose counter cannot be read: %s", timeline,
                    tandem_status_text(status));
    }
    pthread_mutex_unlock(&session->lock);
    return td_session_fail(session, __func__, status, why);
}

tandem_status tandem_timeline_signal(tandem_session *session, tandem_timeline timeline, uint64_t value)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_ERROR_ARG;
    td_timeline *found;
    uint64_t now = 0;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    pthread_mutex_lock(&session->lock);
    found = td_timeline_find_locked(session, timeline, "timeline", why);
    if (found && found->by_session) {
        td_fail(why, sizeof why, status, "timeline is 0x%" PRIx64 ", which only the session signals", timeline);
    } else if (found) {
        status = td_timeline_value_locked(session, found, &now);
        if (status == TANDEM_OK && value <= now)
            status = td_fail(why, sizeof why, TANDEM_ERROR_ARG,
                             "value is %" PRIu64 ", not above the counter's %" PRIu64, value, now);
        else if (status == TANDEM_OK && value - now > TD_MAX_POINT_STEP)
            status = td_fail(why, sizeof why, TANDEM_ERROR_ARG,
                             "value is %" PRIu64 ", more than 2^31 - 1 above the counter's %" PRIu64, value, now);
        else if (status == TANDEM_OK)
            status = td_timeline_raise_locked(session, found, value);
        if (status == TANDEM_OK && value > found->submitted)
            session->ops->announce_locked(session, found, value);
        if (status != TANDEM_OK && !why[0])
            td_fail(why, sizeof why, status, "timeline is 0x%" PRIx64 ", which cannot be signalled: %s", timeline,
                    tandem_status_text(status));
        td_jobs_advance_locked(session);
    }
    pthread_mutex_unlock(&session->lock);
    return td_session_fail(session, __func__, status, why);
}

tandem_status tandem_timeline_submitted(tandem_session *session, tandem_timeline timeline, uint64_t value)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_ERROR_ARG;
    td_timeline *found;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    pthread_mutex_lock(&session->lock);
    found = td_timeline_find_locked(session, timeline, "timeline", why);
    if (found && found->by_session) {
        td_fail(why, sizeof why, status, "timeline is 0x%" PRIx64 ", which only the session signals", timeline);
    } else if (found) {
        if (value > found->submitted)
            found->submitted = value;
        session->ops->announce_locked(session, found, found->submitted);
        td_jobs_advance_locked(session);
        status = session->broken;
        if (status != TANDEM_OK)
            td_fail(why, sizeof why, status, "timeline is 0x%" PRIx64 ": the device failed earlier", timeline);
    }
    pthread_mutex_unlock(&session->lock);
    return td_session_fail(session, __func__, status, why);
}

/* The caller's descriptor, and the session's duplicate of it unless the point is reached: a timer, so that the processor
 * that is to wake the caller may be the caller's. */
static tandem_status make_point_fd_locked(tandem_session *s, td_timeline *timeline, uint64_t value, int *fd, char *why)
{
    tandem_status status = TANDEM_OK;
    bool reached = !timeline;
    char text[80] = "";
    uint64_t now = 0;
    int ours = -1;

    if (timeline) {
        status = s->broken ? s->broken : td_timeline_value_locked(s, timeline, &now);
        if (status != TANDEM_OK)
            return td_fail(why, TD_WHY_BYTES, status,
                           "point.timeline is 0x%" PRIx64 ", whose counter cannot be read: %s", timeline->object.id,
                           tandem_status_text(status));
        reached = now >= value;
    }
    if (!reached && s->point_fd_count == TD_POINT_FDS)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "%d descriptors wait for points already", TD_POINT_FDS);
    status = reached ? td_event_make(true, fd, text, sizeof text) : td_alarm_make(fd, text, sizeof text);
    if (status == TANDEM_OK && !reached) {
        ours = td_fd_dup(*fd);
        if (ours < 0)
            status = td_fail(text, sizeof text, TANDEM_ERROR_NOMEM, "no second fd of it: %s", strerror(errno));
    }
    if (status != TANDEM_OK) {
        td_fd_close(fd);
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_IO, "no descriptor for point.value %" PRIu64 ": %s", value, text);
    }
    if (reached)
        return TANDEM_OK;
    s->point_fds[s->point_fd_count++] = (td_point_fd){timeline, value, td_now_ns(), ours};
    if (timeline->semaphore && !timeline->by_session)
        pthread_cond_signal(&s->watch);
    if (timeline->by_session && s->ahead) {
        s->caller_cpu = td_thread_cpu();
        s->called_ns = td_now_ns();
        if (s->idle)
            pthread_cond_signal(&s->work);
    }
    return TANDEM_OK;
}

tandem_status tandem_point_fd(tandem_session *session, tandem_point point, int *fd)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_ERROR_ARG;
    const bool none = !point.timeline && !point.value;
    td_timeline *found = NULL;

    if (fd)
        *fd = -1;
    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!fd)
        return td_session_fail(session, __func__, status, "fd is NULL");
    pthread_mutex_lock(&session->lock);
    if (!none)
        found = td_timeline_find_locked(session, point.timeline, "point.timeline", why);
    if (found || none)
        status = make_point_fd_locked(session, found, point.value, fd, why);
    pthread_mutex_unlock(&session->lock);
    return td_session_fail(session, __func__, status, why);
}

tandem_status tandem_point_wait(tandem_session *session, tandem_point point, uint64_t timeout_ns)
{
    const uint64_t begin = td_now_ns();
    const uint64_t until = td_after(begin, timeout_ns);
    char why[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_ERROR_ARG;
    uint64_t value = 0;
    td_timeline *found;
    int slack = 0;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!point.timeline && !point.value)
        return TANDEM_OK;
    pthread_mutex_lock(&session->lock);
    found = td_timeline_find_locked(session, point.timeline, "point.timeline", why);
    if (found) {
        found->object.uses++;
        for (;;) {
            bool comes; /* a job under way signals it: that needs no driver */

            td_jobs_advance_locked(session);
            comes = point.value > found->ended && point.value <= found->promised;
            status = comes ? TANDEM_OK : td_timeline_value_locked(session, found, &value);
            if (!comes && (status != TANDEM_OK || value >= point.value))
                break;
            if (!comes && session->broken && found->by_session) { /* nobody will signal it any more */
                status = session->broken;
                break;
            }
            if (found->object.closing || (found->object.retired && !comes)) {
                status = td_fail(why, sizeof why, TANDEM_ERROR_ARG, "point.timeline is 0x%" PRIx64 ", which was %s", point.timeline,
                                 found->object.closing ? "destroyed" : "retired, and no job signals the point");
                break;
            }
            if (td_now_ns() >= until) {
                status = TANDEM_ERROR_BUSY;
                break;
            }
            if (comes)
                td_jobs_nap_locked(session, until, &slack);
            else
                td_timeline_nap_locked(session, found, &session->changed, begin, until);
        }
        td_jobs_leave_locked(session, slack);
        td_object_release_locked(session, &found->object);
        if (status != TANDEM_OK && !why[0])
            td_fail(why, sizeof why, status, "point.value is %" PRIu64 ": %s", point.value,
                    status == TANDEM_ERROR_BUSY ? "not reached in time" : tandem_status_text(status));
    }
    pthread_mutex_unlock(&session->lock);
    return td_session_fail(session, __func__, status, why);
}

tandem_status tandem_timeline_get_vulkan(tandem_session *session, tandem_timeline timeline, VkSemaphore *out)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_ERROR_ARG;
    td_timeline *found;

    if (out)
        *out = VK_NULL_HANDLE;
    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!out)
        return td_session_fail(session, __func__, status, "out is NULL");
    pthread_mutex_lock(&session->lock);
    found = td_timeline_find_locked(session, timeline, "timeline", why);
    if (found && !session->vk) {
        status = td_fail(why, sizeof why, TANDEM_ERROR_UNSUPPORTED,
                         "timeline is 0x%" PRIx64 ", of a session without Vulkan", timeline);
    } else if (found && !found->semaphore) {
        status = td_fail(why, sizeof why, TANDEM_ERROR_UNSUPPORTED,
                         "timeline is 0x%" PRIx64 ", a counter on the host: timelineSemaphore is not enabled", timeline);
    } else if (found) {
        *out = found->semaphore;
        status = TANDEM_OK;
    }
    pthread_mutex_unlock(&session->lock);
    return td_session_fail(session, __func__, status, why);
}
