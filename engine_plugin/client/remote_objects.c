/* What tandemd is told of a session's mems and timelines, and what they are there.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * An id there holds for one connection: what is alive is shared anew with the next one, by remote.c's thread. A mem is
 * a shared buffer, a memfd that both sides map, or what Vulkan exports.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "engine_plugin/client/network.h"
#include "engine_plugin/client/remote.h"
#include "interop/os/memory.h"

/* Sharing. */

/* The descriptor of what Vulkan exports is the caller's. */
static tandem_status export_mem(tandem_session *s, td_mem *mem, int *fd, char *why)
{
    if (mem->shared.fd > 0) {
        *fd = td_fd_dup(mem->shared.fd);
        return *fd >= 0 ? TANDEM_OK : td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "dup: %s", strerror(errno));
    }
    return td_vk_mem_export_fd(s->vk, &mem->vk, fd, why, TD_WHY_BYTES);
}

tandem_status td_remote_share_mem_locked(tandem_session *s, td_mem *mem, char *why)
{
    td_remote *r = s->remote;
    td_shared_buffer *shared = &mem->shared;
    const uint32_t connection = r->connection;
    td_wire_message m = td_wire_new(TD_WIRE_MEM_CREATE, 0);
    tandem_status status = TANDEM_OK;
    int fd = -1;

    m.mem_create.kind = shared->opaque ? TD_WIRE_MEM_OPAQUE : TD_WIRE_MEM_MEMFD;
    m.mem_create.bytes = mem->bytes;
    m.mem_create.allocation_bytes = shared->opaque ? mem->vk.allocation_bytes : shared->bytes;
    m.mem_create.offset_bytes = shared->opaque ? mem->vk.offset : 0;
    m.mem_create.dedicated = shared->opaque && mem->vk.dedicated;
    if (m.mem_create.allocation_bytes > r->rules.mem_bytes)
        status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM,
                         "bytes is %" PRIu64 ", and tandemd takes %" PRIu64 " at most", mem->bytes, r->rules.mem_bytes);
    if (status == TANDEM_OK && shared->opaque)
        status = export_mem(s, mem, &fd, why);
    if (status == TANDEM_OK)
        status = td_remote_ask_locked(s, &m, shared->opaque ? fd : shared->fd, TD_WIRE_DONE, NULL, why);
    td_fd_close(&fd);
    if (status == TANDEM_ERROR_LOST)
        return status;
    if (r->connection != connection)
        return td_remote_gone(r, why);
    shared->connection = connection;
    shared->status = status;
    shared->id = status == TANDEM_OK ? m.object.id : 0;
    return status;
}

/* Its counter there begins with what it is here, and with what was announced. */
tandem_status td_remote_share_timeline_locked(tandem_session *s, td_timeline *timeline, char *why)
{
    td_remote *r = s->remote;
    td_remote_timeline *remote = &timeline->remote;
    const uint32_t connection = r->connection;
    td_wire_message m = td_wire_new(TD_WIRE_TIMELINE_CREATE, 0);
    uint64_t value = 0;
    tandem_status status = td_vk_timeline_value(s->vk, timeline->semaphore, &value);
    int fd = -1;

    if (status != TANDEM_OK)
        return td_fail(why, TD_WHY_BYTES, status, "its counter cannot be read");
    m.timeline_create.kind = TD_WIRE_TIMELINE_OPAQUE;
    m.timeline_create.signaller = timeline->by_session;
    m.timeline_create.initial_value = timeline->by_session      ? timeline->promised
                                      : timeline->submitted > value ? timeline->submitted
                                                                    : value;
    status = td_vk_timeline_export_fd(s->vk, timeline->semaphore, &fd, why, TD_WHY_BYTES);
    remote->announced = m.timeline_create.initial_value;
    if (status == TANDEM_OK)
        status = td_remote_ask_locked(s, &m, fd, TD_WIRE_DONE, NULL, why);
    td_fd_close(&fd);
    if (status == TANDEM_ERROR_LOST || r->connection != connection)
        return TANDEM_ERROR_LOST;
    remote->connection = connection;
    remote->status = status;
    remote->id = status == TANDEM_OK ? m.object.id : 0;
    return status;
}

/* Mems. */

tandem_status td_remote_make_shared_buffer(td_mem *mem, bool opaque, char *why)
{
    td_shared_buffer *shared = &mem->shared;
    tandem_status status;

    if (opaque) {
        shared->valid = shared->opaque = true;
        mem->address = mem->vk.offset; /* from where the daemon maps it, which no more than its alignment tells */
        return TANDEM_OK;
    }
    if (mem->vk.memfd > 0) {
        shared->valid = true;
        shared->fd = mem->vk.memfd;
        shared->map = mem->vk.host;
        shared->bytes = mem->vk.allocation_bytes;
        return TANDEM_OK;
    }
    shared->bytes = td_align_up(mem->bytes, TD_WIRE_PAGE_BYTES);
    status = td_memfd_make("tandem-mem", shared->bytes, false, &shared->fd, why, TD_WHY_BYTES);
    if (status != TANDEM_OK)
        return status;
    shared->valid = shared->owned = true;
    status = td_memfd_map(shared->fd, shared->bytes, &shared->map, why, TD_WHY_BYTES);
    if (status != TANDEM_OK)
        return status;
    mem->host_share += shared->bytes;
    shared->bounce = mem->host != NULL;
    if (shared->bounce)
        return TANDEM_OK;
    mem->host = shared->map;
    mem->address = (uintptr_t)shared->map;
    return TANDEM_OK;
}

tandem_status td_remote_mem_share(tandem_session *s, td_mem *mem, char *why)
{
    char text[TD_WHY_BYTES] = "";
    tandem_status status = td_remote_make_shared_buffer(mem, td_gpu_signals(s), why);

    if (status != TANDEM_OK)
        return status;
    pthread_mutex_lock(&s->lock);
    if (s->remote->up) /* else it is shared with the next daemon */
        status = td_remote_share_mem_locked(s, mem, text);
    pthread_mutex_unlock(&s->lock);
    if (status == TANDEM_OK || status == TANDEM_ERROR_LOST)
        return TANDEM_OK;
    return td_fail(why, TD_WHY_BYTES, status, "tandemd: %s", text);
}

tandem_status td_remote_timeline_share(tandem_session *s, td_timeline *timeline, char *why)
{
    char text[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_OK;

    pthread_mutex_lock(&s->lock);
    if (s->remote->up)
        status = td_remote_share_timeline_locked(s, timeline, text);
    pthread_mutex_unlock(&s->lock);
    if (status == TANDEM_OK || status == TANDEM_ERROR_LOST)
        return TANDEM_OK;
    return td_fail(why, TD_WHY_BYTES, status, "tandemd: %s", text);
}

void td_remote_end(tandem_session *s, td_wire_type type, uint64_t id, uint32_t connection)
{
    td_wire_message m = td_wire_new(type, 0);
    char why[TD_WHY_BYTES];

    pthread_mutex_lock(&s->lock);
    if (s->remote->up && connection == s->remote->connection && id) {
        m.object.id = id;
        td_remote_ask_locked(s, &m, -1, TD_WIRE_DONE, NULL, why); /* should it fail, the connection's end takes it */
    }
    pthread_mutex_unlock(&s->lock);
}

void td_remote_object_end(tandem_session *s, td_object *object)
{
    const td_mem *mem = (const td_mem *)object;
    const td_timeline *timeline = (const td_timeline *)object;
    const td_instance *instance = (const td_instance *)object;

    switch ((td_kind)(object->id >> 60)) {
    case TD_KIND_MEM: td_remote_end(s, TD_WIRE_MEM_DESTROY, mem->shared.id, mem->shared.connection); break;
    case TD_KIND_TIMELINE: td_remote_end(s, TD_WIRE_TIMELINE_DESTROY, timeline->remote.id, timeline->remote.connection); break;
    case TD_KIND_MODEL: break; /* with what else it has there: td_remote_model_free() */
    case TD_KIND_INSTANCE: td_remote_end(s, TD_WIRE_INSTANCE_DESTROY, instance->remote_id, instance->connection); break;
    case TD_KIND_TICKET: break;
    }
}

tandem_status td_remote_has_model_locked(const tandem_session *s, const td_model *model, char *why)
{
    const td_remote *r = s->remote;

    if (!r->up)
        return td_remote_gone(r, why);
    if (model->remote->connection == r->connection && model->remote->status == TANDEM_OK)
        return TANDEM_OK;
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_LOST, "tandemd at '%s' could not load '" TD_NAME "' again", r->path,
                   TD_NAMED(model->remote->path));
}

/* Of a job. */

tandem_status td_remote_name_mem_locked(tandem_session *s, const td_job *job, uint32_t view, uint64_t *id, char *why)
{
    td_remote *r = s->remote;
    td_mem *mem = job->mems[view];
    tandem_status status = TANDEM_OK;

    if (mem->shared.valid && mem->shared.connection != r->connection) {
        status = td_remote_share_mem_locked(s, mem, why);
        if (!r->up)
            return td_remote_gone(r, why);
    } else if (mem->shared.connection != r->connection || mem->shared.status != TANDEM_OK) {
        status = mem->shared.status != TANDEM_OK ? mem->shared.status : TANDEM_ERROR_LOST;
    }
    if (status != TANDEM_OK)
        return td_fail(why, TD_WHY_BYTES, status, "%s.mem is 0x%" PRIx64 ", which tandemd does not have: %s",
                       job->names[view], mem->object.id, tandem_status_text(status));
    *id = mem->shared.id;
    return TANDEM_OK;
}

static tandem_status name_point(tandem_session *s, td_timeline *timeline, uint64_t value, tandem_point *out, char *why)
{
    td_remote *r = s->remote;
    td_remote_timeline *remote = &timeline->remote;
    tandem_status status = remote->status;

    if (remote->connection != r->connection)
        status = td_remote_share_timeline_locked(s, timeline, why);
    if (!r->up)
        return td_remote_gone(r, why);
    if (status != TANDEM_OK)
        return td_fail(why, TD_WHY_BYTES, status, "timeline 0x%" PRIx64 ", which tandemd does not have: %s",
                       timeline->object.id, tandem_status_text(status));
    *out = (tandem_point){remote->id, value};
    return TANDEM_OK;
}

tandem_status td_remote_head_locked(tandem_session *s, td_job *job, td_remote_heading *out, char *why)
{
    td_remote *r = s->remote;
    const uint64_t now = td_now_ns();
    tandem_status status = TANDEM_OK;

    *out = (td_remote_heading){.submit_ns = now};
    if (job->life.has_deadline)
        out->deadline_ns = job->life.deadline_ns > now ? job->life.deadline_ns - now : 1;
    if (td_gpu_signals(s) && job->wait)
        status = name_point(s, job->wait, job->wait_value, &out->wait, why);
    if (status == TANDEM_OK && td_gpu_signals(s) && job->signal)
        status = name_point(s, job->signal, job->signal_value, &out->signal, why);
    out->ticket = r->rules.next_ticket; /* behind all that sleeps */
    if (!td_gpu_signals(s) && (job->wait || job->signal))
        out->signal = (tandem_point){r->ends_id, out->ticket};
    return status;
}
