/* Models: the tensors of a file in one block of the session's memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/network.h"
#include "kernels/top/params.h"

enum { TENSOR_ALIGNMENT = 256, SLICE_BYTES = 1 << 20, SMALL_TENSOR_BYTES = 4096 };

void td_model_free(tandem_session *s, td_model *model)
{
    if (model->mem)
        td_mem_leave(s, model->mem);
    td_remote_model_free(s, model);
    if (!model->alias)
        td_network_free(s, model->network);
    if (model->header)
        td_fd_close(&model->header);
    td_session_free(s, model->tensors, model->block_bytes);
    td_session_free(s, model, sizeof *model);
}

/* Between two tensors, and where there is none: a job's view may reach there. */
static void clear_gap(const td_model_load *load, uint64_t begin, uint64_t end)
{
    const td_mem *mem = load->model->mem;

    if (mem->host)
        memset((char *)mem->host + begin, 0, end - begin);
}

tandem_status td_model_load_begin(tandem_session *s, const tandem_model_desc *desc, td_model_load *load, char *why)
{
    uint64_t bytes = 0;
    tandem_status status;

    *load = (td_model_load){.s = s, .file.fd = -1};
    load->model = td_session_alloc(s, sizeof *load->model, 64);
    if (!load->model)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for a model");
    status = td_model_file_open(load, desc, why);
    if (status == TANDEM_OK && s->of_worker)
        status = td_model_file_keep_header(load, why);
    if (status == TANDEM_OK)
        status = td_model_file_lay_out(load, &bytes, why);
    if (status != TANDEM_OK)
        return status;
    load->model->mem = td_mem_new(s, bytes, why);
    status = load->model->mem ? td_mem_make_private(s, load->model->mem, false, why) : TANDEM_ERROR_NOMEM;
    if (status == TANDEM_OK)
        clear_gap(load, 0, TENSOR_ALIGNMENT);
    return status;
}

/* What is read on its way to the device. */
static void *staging_of(td_model_load *load)
{
    if (!load->staging)
        load->staging = td_session_alloc(load->s, SLICE_BYTES, 64);
    return load->staging;
}

static tandem_status read_part(td_model_load *load, const td_model_piece *piece, uint64_t bytes, char *why)
{
    const uint64_t to = piece->offset + load->at;
    td_mem *mem = load->model->mem;
    void *at = mem->host ? (char *)mem->host + to : staging_of(load);
    tandem_session *s = load->s;
    tandem_status status;

    if (!at)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for %d bytes of a tensor", SLICE_BYTES);
    status = td_model_file_read(load, bytes, at, why);
    if (status != TANDEM_OK || mem->host)
        return status;
    if (s->cu)
        status = td_cu_copy_to_device(s->cu, mem->address + to, at, bytes);
    else
        status = td_inline_upload(s->stream, &mem->vk, to, at, bytes, NULL, 0);
    return status == TANDEM_OK ? status
                               : td_fail(why, TD_WHY_BYTES, status, "tensor '" TD_NAME "' cannot be copied to the device",
                                         TD_NAMED(piece->name));
}

tandem_status td_model_load_step(td_model_load *load, char *why)
{
    td_model_piece piece;

    for (uint64_t left = SLICE_BYTES; td_model_file_piece(load, load->piece, &piece); load->piece++, load->at = 0) {
        const uint64_t rest = piece.bytes - load->at, part = rest < left ? rest : left;
        const uint64_t end = piece.offset + piece.bytes;
        tandem_status status = TANDEM_OK;

        if (!left)
            return TANDEM_ERROR_BUSY;
        if (part)
            status = read_part(load, &piece, part, why);
        if (status != TANDEM_OK)
            return status;
        load->at += part;
        left -= part;
        if (load->at < piece.bytes)
            return TANDEM_ERROR_BUSY;
        left -= left < SMALL_TENSOR_BYTES ? left : SMALL_TENSOR_BYTES; /* each has its own price */
        left &= ~63ull; /* converted in whole elements */
        if (piece.bytes)
            clear_gap(load, end, td_align_up(end, TENSOR_ALIGNMENT));
    }
    return TANDEM_OK;
}

tandem_status td_model_load_enter(td_model_load *load, tandem_model *out, char *why)
{
    tandem_session *s = load->s;
    td_model *made = load->model;
    tandem_status status;

    pthread_mutex_lock(&s->lock);
    made->mem->of_model = true;
    status = td_remote_model_enter_locked(s, made, why);
    if (status == TANDEM_OK)
        status = td_table_add_locked(s, &s->mems, TD_KIND_MEM, &made->mem->object, why);
    if (status == TANDEM_OK) {
        status = td_table_add_locked(s, &s->models, TD_KIND_MODEL, &made->object, why);
        if (status != TANDEM_OK)
            td_table_remove_locked(&s->mems, &made->mem->object);
    }
    for (uint32_t i = 0; i < made->tensor_count; i++)
        made->tensors[i].view.mem = made->mem->object.id;
    if (status == TANDEM_OK) {
        *out = made->object.id;
        load->model = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

void td_model_load_end(td_model_load *load)
{
    td_session_free(load->s, load->staging, SLICE_BYTES);
    td_model_file_close(load);
    if (load->model)
        td_model_free(load->s, load->model);
    *load = (td_model_load){.file.fd = -1};
}

tandem_status td_local_model_load(td_model_load *load, const tandem_model_desc *desc, char *why)
{
    char text[TD_WHY_BYTES] = "";
    tandem_status status = td_model_load_begin(load->s, desc, load, text);

    if (status == TANDEM_OK)
        do
            status = td_model_load_step(load, text);
        while (status == TANDEM_ERROR_BUSY);
    return status == TANDEM_OK
               ? status
               : td_fail(why, TD_WHY_BYTES, status, "path is '" TD_NAME "': %s", TD_NAMED(desc->path), text);
}

static tandem_status load_model(tandem_session *session, const char *call, const tandem_model_desc *desc,
                                tandem_model *model)
{
    td_model_load load = {.s = session, .file.fd = -1};
    char why[TD_WHY_BYTES] = "";
    tandem_status status = session->ops->model_load(&load, desc, why);

    if (status == TANDEM_OK)
        status = td_model_load_enter(&load, model, why);
    td_model_load_end(&load);
    return td_session_fail(session, call, status, why);
}

tandem_status tandem_model_load(tandem_session *session, const char *path, tandem_model *model)
{
    const tandem_model_desc desc = {.struct_bytes = sizeof desc, .path = path};

    if (model)
        *model = 0;
    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!path || !model)
        return td_session_fail(session, __func__, TANDEM_ERROR_ARG, path ? "model is NULL" : "path is NULL");
    return load_model(session, __func__, &desc, model);
}

static tandem_status check_desc(const tandem_model_desc *desc, char *why)
{
    if (!desc->path)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.path is NULL");
    if (desc->hidden > 1)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.hidden is %u, not 0 or 1", desc->hidden);
    if (desc->tops > TD_TOP_MOST)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.tops is %u; it must be at most %u", desc->tops, TD_TOP_MOST);
    if (desc->reserved)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.reserved is %u; it must be 0", desc->reserved);
    return TANDEM_OK;
}

tandem_status tandem_model_create(tandem_session *session, const tandem_model_desc *desc, tandem_model *model)
{
    char why[TD_WHY_BYTES] = "";
    tandem_model_desc known;
    tandem_status status;

    if (model)
        *model = 0;
    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!desc || !model)
        return td_session_fail(session, __func__, TANDEM_ERROR_ARG, desc ? "model is NULL" : "desc is NULL");
    status = TD_STRUCT_IN("desc", desc, &known, why, sizeof why);
    if (status == TANDEM_OK)
        status = check_desc(&known, why);
    return status == TANDEM_OK ? load_model(session, __func__, &known, model) : td_session_fail(session, __func__, status, why);
}

tandem_status td_local_model_tensor_locked(tandem_session *s, td_model *model, const char *name, tandem_view *view,
                                           uint64_t shape[4], char *why)
{
    const td_tensor_entry *found = NULL;

    (void)s;
    for (uint32_t i = 0; i < model->tensor_count && !found; i++)
        if (!strcmp(model->tensors[i].name, name))
            found = &model->tensors[i];
    if (!found)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "name is '" TD_NAME "', which is not in the model",
                       TD_NAMED(name));
    if (found->refused)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "name is '" TD_NAME "', which no job can read: %s",
                       TD_NAMED(name), found->refused);
    *view = found->view;
    memcpy(shape, found->shape, sizeof found->shape);
    return TANDEM_OK;
}

tandem_status tandem_model_tensor(tandem_session *session, tandem_model model, const char *name, tandem_view *view,
                                  uint64_t shape[4])
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_ERROR_ARG;
    td_model *of;

    if (view)
        *view = (tandem_view){0};
    if (shape)
        memset(shape, 0, 4 * sizeof *shape);
    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!name || !view || !shape)
        return td_session_fail(session, __func__, status,
                               !name   ? "name is NULL"
                               : !view ? "view is NULL"
                                       : "shape is NULL");
    pthread_mutex_lock(&session->lock);
    of = (td_model *)td_table_find_locked(session, TD_KIND_MODEL, model, "model", why);
    if (of)
        status = session->ops->model_tensor_locked(session, of, name, view, shape, why);
    pthread_mutex_unlock(&session->lock);
    return td_session_fail(session, __func__, status, why);
}

void td_model_remove_locked(tandem_session *s, td_model *model)
{
    td_table_remove_locked(&s->mems, &model->mem->object);
    td_table_remove_locked(&s->models, &model->object);
}

void td_model_end(tandem_session *s, td_model *model)
{
    td_instance *instance;

    s->ops->object_end(s, &model->object);
    do {
        pthread_mutex_lock(&s->lock);
        instance = td_instance_take_locked(s, model);
        pthread_mutex_unlock(&s->lock);
        if (instance)
            td_instance_end(s, instance);
    } while (instance);
    td_model_free(s, model);
}

tandem_status tandem_model_destroy(tandem_session *session, tandem_model model)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_ERROR_ARG;
    td_model *found;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    pthread_mutex_lock(&session->lock);
    found = (td_model *)td_table_find_locked(session, TD_KIND_MODEL, model, "model", why);
    if (found) {
        found->object.closing = true;
        status = td_object_close_locked(session, &found->mem->object, "model", why);
        if (status == TANDEM_OK) {
            td_model_remove_locked(session, found);
        } else {
            found->object.closing = false;
            td_fail(why, sizeof why, status, "model is 0x%" PRIx64 ", which a job still uses after 2 s", model);
        }
    }
    pthread_mutex_unlock(&session->lock);
    if (status != TANDEM_OK)
        return td_session_fail(session, __func__, status, why);
    td_model_end(session, found);
    return TANDEM_OK;
}
