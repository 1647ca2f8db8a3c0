/* What tandemd is told of a session's mems, timelines and models, and what they are there.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * An id there holds for one connection: what is alive is shared anew with the next one, by remote.c's thread. A mem is
 * a shared buffer, a memfd that both sides map, or what Vulkan exports. This file calls remote_connection.c; remote.c,
 * remote_jobs.c and the files of the objects themselves call this one.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/network.h"
#include "engine_plugin/client/remote.h"
#include "interop/os/file.h"
#include "interop/os/memory.h"

/* Sharing. */

/* The descriptor of what Vulkan exports is the caller's. */
static tandem_status export_mem(tandem_session *s, const td_mem *mem, int *fd, char *why)
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
    if (status == TANDEM_ERROR_LOST || r->connection != connection)
        return TANDEM_ERROR_LOST;
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

static tandem_status load_locked(tandem_session *s, td_model *model, char *why)
{
    td_remote *r = s->remote;
    struct td_remote_model *remote = model->remote;
    const uint32_t connection = r->connection;
    td_wire_message m = td_wire_new(TD_WIRE_MODEL_LOAD, 0);
    tandem_status status;

    if (!(r->rules.features & TD_WIRE_MODELS))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "tandemd at '%s' loads no models: no model_dir is configured", r->path);
    td_wire_text(m.model_load.path, sizeof m.model_load.path, remote->path);
    m.header.serial = r->rules.next_serial;
    if (td_wire_check(&r->rules, TD_WIRE_TO_DAEMON, &m, m.header.bytes, 0, why, TD_WHY_BYTES) != TANDEM_OK)
        return TANDEM_ERROR_ARG;
    status = td_remote_ask_locked(s, &m, -1, TD_WIRE_DONE, NULL, why);
    if (status == TANDEM_OK && r->connection == connection) {
        remote->id = m.object.id;
        remote->connection = connection;
    }
    return status;
}

static tandem_status find_tensor_locked(tandem_session *s, td_model *model, const char *name, td_wire_tensor *out,
                                        char *why)
{
    td_remote *r = s->remote;
    td_shared_buffer *shared = &model->mem->shared;
    const uint32_t connection = r->connection;
    td_wire_message m = td_wire_new(TD_WIRE_MODEL_TENSOR, 0);
    tandem_status status;

    if (model->remote->connection != connection)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_LOST, "tandemd at '%s' could not load '" TD_NAME "' again",
                       r->path, TD_NAMED(model->remote->path));
    m.model_tensor.model = model->remote->id;
    td_wire_text(m.model_tensor.name, sizeof m.model_tensor.name, name);
    status = td_remote_ask_locked(s, &m, -1, TD_WIRE_TENSOR, NULL, why);
    if (status != TANDEM_OK)
        return status;
    if (r->connection != connection)
        return td_remote_gone(r, why);
    shared->id = m.tensor.view.mem;
    shared->connection = connection;
    *out = m.tensor;
    return TANDEM_OK;
}

/* With a new connection: what is alive. What the daemon does not take, fails the jobs that name it. */
tandem_status td_remote_share_again_locked(tandem_session *s, char *why)
{
    td_remote *r = s->remote;
    tandem_status status = TANDEM_OK;

    for (uint32_t i = 0; i < s->models.capacity && status != TANDEM_ERROR_LOST; i++) {
        td_model *model = (td_model *)s->models.slots[i];
        td_wire_tensor tensor;

        if (!model || model->object.closing || model->remote->connection == r->connection)
            continue;
        model->mem->object.uses++; /* a destruction waits */
        status = load_locked(s, model, why);
        if (status == TANDEM_OK && model->remote->first[0])
            status = find_tensor_locked(s, model, model->remote->first, &tensor, why);
        model->mem->shared.status = status;
        td_object_release_locked(s, &model->mem->object);
    }
    for (uint32_t i = 0; i < s->mems.capacity && status != TANDEM_ERROR_LOST; i++) {
        td_mem *mem = (td_mem *)s->mems.slots[i];

        if (!mem || mem->object.closing || !mem->shared.valid || mem->shared.connection == r->connection)
            continue;
        mem->object.uses++;
        status = td_remote_share_mem_locked(s, mem, why);
        td_object_release_locked(s, &mem->object);
    }
    for (uint32_t i = 0; i < s->timelines.capacity && status != TANDEM_ERROR_LOST && td_gpu_signals(s); i++) {
        td_timeline *timeline = (td_timeline *)s->timelines.slots[i];

        if (!timeline || timeline->object.closing || timeline->remote.connection == r->connection)
            continue;
        timeline->object.uses++;
        status = td_remote_share_timeline_locked(s, timeline, why);
        td_object_release_locked(s, &timeline->object);
    }
    return status == TANDEM_ERROR_LOST || status == TANDEM_ERROR_PROTOCOL ? status : TANDEM_OK;
}

/* Mems. */

/* A mem's shared buffer: its own where `bounce`, or where the mem has no memory yet. */
static tandem_status make_shared_buffer(td_mem *mem, bool opaque, char *why)
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
    tandem_status status = make_shared_buffer(mem, td_gpu_signals(s), why);

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

static void end_remote(tandem_session *s, td_wire_type type, uint64_t id, uint32_t connection)
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
    const td_model *model = (const td_model *)object;
    const td_instance *instance = (const td_instance *)object;

    switch ((td_kind)(object->id >> 60)) {
    case TD_KIND_MEM: end_remote(s, TD_WIRE_MEM_DESTROY, mem->shared.id, mem->shared.connection); break;
    case TD_KIND_TIMELINE: end_remote(s, TD_WIRE_TIMELINE_DESTROY, timeline->remote.id, timeline->remote.connection); break;
    case TD_KIND_MODEL: end_remote(s, TD_WIRE_MODEL_DESTROY, model->remote->id, model->remote->connection); break;
    case TD_KIND_INSTANCE: end_remote(s, TD_WIRE_INSTANCE_DESTROY, instance->remote_id, instance->connection); break;
    case TD_KIND_TICKET: break;
    }
}

void td_remote_mem_free(td_mem *mem)
{
    if (!mem->shared.owned)
        return;
    if (mem->shared.map)
        td_unmap(mem->shared.map, mem->shared.bytes);
    td_fd_close(&mem->shared.fd);
}

/* Models. */

tandem_status td_remote_model_load(td_model_load *load, const tandem_model_desc *desc, char *why)
{
    char text[TD_WHY_BYTES] = "", *whole = td_file_whole_path(desc->path); /* a relative one may be meant for the daemon */
    const char *from = whole ? whole : desc->path;
    tandem_session *s = load->s;
    td_model *model = load->model = td_session_alloc(s, sizeof *model, 64);
    tandem_status status = TANDEM_ERROR_NOMEM;

    if (model)
        model->remote = td_session_alloc(s, sizeof *model->remote, 64);
    if (!model || !model->remote || !(model->mem = td_mem_new(s, INT64_MAX, text))) {
        td_fail(why, TD_WHY_BYTES, status, "no host memory for a model");
    } else if (desc->sequences || desc->context) {
        status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                         "desc.sequences is %u and desc.context %u; for tandemd they must be 0: one, and the file's own",
                         desc->sequences, desc->context);
    } else if (strlen(from) >= sizeof model->remote->path) {
        status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "path has %zu bytes, more than %zu", strlen(from),
                         sizeof model->remote->path - 1);
    } else {
        strcpy(model->remote->path, from);
        pthread_mutex_lock(&s->lock);
        status = s->remote->up ? load_locked(s, model, text) : td_remote_gone(s->remote, text);
        pthread_mutex_unlock(&s->lock);
        if (status == TANDEM_OK)
            status = td_remote_network_load(load, text);
        if (status != TANDEM_OK)
            td_fail(why, TD_WHY_BYTES, status, "path is '" TD_NAME "': %s", TD_NAMED(desc->path), text);
    }
    free(whole);
    return status;
}

tandem_status td_remote_model_tensor_locked(tandem_session *s, td_model *model, const char *name, tandem_view *view,
                                            uint64_t shape[4], char *why)
{
    char text[TD_WHY_BYTES] = "";
    td_wire_tensor tensor;
    tandem_status status;

    if (strlen(name) >= TD_WIRE_TENSOR_BYTES)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "name is '" TD_NAME "', which is not in the model", TD_NAMED(name));
    if (!s->remote->up)
        return td_remote_gone(s->remote, why);
    model->mem->object.uses++;
    status = find_tensor_locked(s, model, name, &tensor, text);
    if (status == TANDEM_OK) {
        if (!model->remote->first[0])
            strcpy(model->remote->first, name);
        *view = tensor.view;
        view->mem = model->mem->object.id;
        memcpy(shape, tensor.shape, sizeof tensor.shape);
    } else {
        td_fail(why, TD_WHY_BYTES, status, "%s", text);
    }
    td_object_release_locked(s, &model->mem->object);
    return status;
}

void td_remote_model_free(tandem_session *s, td_model *model)
{
    td_session_free(s, model->remote, sizeof *model->remote);
}
