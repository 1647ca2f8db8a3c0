/* Models: the tensors of a file in one block of the session's memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/client.h"
#include "kernels/model/safetensors.h"

enum { TENSOR_ALIGNMENT = 256 };

void td_model_free(tandem_session *s, td_model *model)
{
    if (model->mem)
        td_mem_free(s, model->mem);
    if (s->remote)
        td_remote_model_free(s, model);
    td_session_free(s, model->tensors, model->block_bytes);
    td_session_free(s, model, sizeof *model);
}

static void describe(td_tensor_entry *entry, const td_safetensor *tensor, uint64_t offset)
{
    const uint32_t pad = tensor->dimensions <= 4 ? 4 - tensor->dimensions : 0;

    for (uint32_t i = 0; i < 4; i++)
        entry->shape[i] = i < pad ? 1 : tensor->shape[i - pad];
    if (tensor->dimensions > 4)
        entry->refused = "more than 4 dimensions";
    else if (tensor->dtype == TANDEM_DTYPE_NONE)
        entry->refused = tensor->dtype_name;
    entry->view = (tandem_view){
        .offset_bytes = offset,
        .dtype = tensor->dtype,
        .stride_batch = (int64_t)(entry->shape[1] * entry->shape[2] * entry->shape[3]),
        .stride_head = (int64_t)(entry->shape[2] * entry->shape[3]),
        .stride_row = (int64_t)entry->shape[3],
    };
}

/* Names, shapes and places; *bytes is what the tensors that jobs can read take together. */
static tandem_status lay_out(tandem_session *s, td_model *model, const td_safetensors *file, uint64_t *bytes, char *why)
{
    uint64_t name_bytes = 0, offset = 0;
    char *names;

    for (uint32_t i = 0; i < file->count; i++)
        name_bytes += strlen(file->tensors[i].name) + 1;
    model->block_bytes = file->count * sizeof *model->tensors + name_bytes + 1; /* a file may have no tensor */
    model->tensors = td_session_alloc(s, model->block_bytes, 64);
    if (!model->tensors)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for the names of %u tensors",
                       file->count);
    model->tensor_count = file->count;
    names = (char *)(model->tensors + file->count);
    for (uint32_t i = 0; i < file->count; i++) {
        td_tensor_entry *entry = &model->tensors[i];

        describe(entry, &file->tensors[i], offset);
        entry->name = names;
        names += strlen(strcpy(names, file->tensors[i].name)) + 1;
        if (!entry->refused)
            offset = td_align_up(offset + file->tensors[i].bytes, TENSOR_ALIGNMENT);
    }
    *bytes = offset ? offset : TENSOR_ALIGNMENT;
    return TANDEM_OK;
}

static tandem_status read_tensors(tandem_session *s, td_model *model, const td_safetensors *file, char *why)
{
    tandem_status status = TANDEM_OK;
    uint64_t most = 0;
    void *staging = NULL;

    for (uint32_t i = 0; i < file->count && !model->mem->host; i++)
        if (!model->tensors[i].refused && file->tensors[i].bytes > most)
            most = file->tensors[i].bytes;
    if (most && !(staging = td_session_alloc(s, most, 64)))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for a tensor of %" PRIu64 " bytes", most);
    for (uint32_t i = 0; i < file->count && status == TANDEM_OK; i++) {
        const uint64_t offset = model->tensors[i].view.offset_bytes, bytes = file->tensors[i].bytes;
        void *to = model->mem->host ? (char *)model->mem->host + offset : staging;

        if (model->tensors[i].refused || !bytes)
            continue;
        status = td_safetensors_read(file, &file->tensors[i], to, why, TD_WHY_BYTES);
        if (status == TANDEM_OK && !model->mem->host) {
            if (s->cu)
                status = td_cu_copy_to_device(s->cu, model->mem->address + offset, to, bytes);
            else
                status = td_inline_upload(s->stream, &model->mem->vk, offset, to, bytes, NULL, 0);
            if (status != TANDEM_OK)
                td_fail(why, TD_WHY_BYTES, status, "tensor '" TD_NAME "' cannot be copied to the device",
                        TD_NAMED(model->tensors[i].name));
        }
    }
    td_session_free(s, staging, most);
    return status;
}

static tandem_status load(tandem_session *s, const char *path, td_model **out, char *why)
{
    char text[TD_WHY_BYTES] = "";
    td_safetensors file;
    td_model *model;
    uint64_t bytes = 0;
    tandem_status status = td_safetensors_open(path, &file, text, sizeof text);

    if (status != TANDEM_OK)
        return td_fail(why, TD_WHY_BYTES, status, "path is '" TD_NAME "': %s", TD_NAMED(path), text);
    model = *out = td_session_alloc(s, sizeof *model, 64);
    if (model)
        status = lay_out(s, model, &file, &bytes, text);
    if (model && status == TANDEM_OK) {
        model->mem = td_mem_new(s, bytes, text);
        status = model->mem ? td_mem_make_private(s, model->mem, text) : TANDEM_ERROR_NOMEM;
    }
    if (!model)
        status = td_fail(text, sizeof text, TANDEM_ERROR_NOMEM, "no host memory for a model");
    else if (status == TANDEM_OK)
        status = read_tensors(s, model, &file, text);
    td_safetensors_close(&file);
    return status == TANDEM_OK ? status : td_fail(why, TD_WHY_BYTES, status, "path is '" TD_NAME "': %s", TD_NAMED(path), text);
}

tandem_status tandem_model_load(tandem_session *session, const char *path, tandem_model *model)
{
    char why[TD_WHY_BYTES] = "";
    td_model *made = NULL;
    tandem_status status;

    if (model)
        *model = 0;
    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!path || !model)
        return td_session_fail(session, __func__, TANDEM_ERROR_ARG, path ? "model is NULL" : "path is NULL");
    status = (session->remote ? td_remote_model_load : load)(session, path, &made, why);
    if (status == TANDEM_OK) {
        pthread_mutex_lock(&session->lock);
        made->mem->of_model = true;
        status = td_table_add_locked(session, &session->mems, TD_KIND_MEM, &made->mem->object, why);
        if (status == TANDEM_OK) {
            status = td_table_add_locked(session, &session->models, TD_KIND_MODEL, &made->object, why);
            if (status != TANDEM_OK)
                td_table_remove_locked(&session->mems, &made->mem->object);
        }
        for (uint32_t i = 0; i < made->tensor_count; i++)
            made->tensors[i].view.mem = made->mem->object.id;
        if (status == TANDEM_OK)
            *model = made->object.id;
        pthread_mutex_unlock(&session->lock);
    }
    if (status != TANDEM_OK && made)
        td_model_free(session, made);
    return td_session_fail(session, __func__, status, why);
}

tandem_status tandem_model_tensor(tandem_session *session, tandem_model model, const char *name, tandem_view *view,
                                  uint64_t shape[4])
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_ERROR_ARG;
    const td_tensor_entry *found = NULL;
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
    if (of && session->remote) {
        status = td_remote_model_tensor_locked(session, of, name, view, shape, why);
        of = NULL;
    }
    for (uint32_t i = 0; of && i < of->tensor_count && !found; i++)
        if (!strcmp(of->tensors[i].name, name))
            found = &of->tensors[i];
    if (of && !found) {
        td_fail(why, sizeof why, status, "name is '" TD_NAME "', which is not in the model", TD_NAMED(name));
    } else if (of && found->refused) {
        status = td_fail(why, sizeof why, TANDEM_ERROR_UNSUPPORTED, "name is '" TD_NAME "', which no job can read: %s",
                         TD_NAMED(name),
                         found->refused);
    } else if (of) {
        *view = found->view;
        memcpy(shape, found->shape, sizeof found->shape);
        status = TANDEM_OK;
    }
    pthread_mutex_unlock(&session->lock);
    return td_session_fail(session, __func__, status, why);
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
            td_table_remove_locked(&session->mems, &found->mem->object);
            td_table_remove_locked(&session->models, &found->object);
        } else {
            found->object.closing = false;
            td_fail(why, sizeof why, status, "model is 0x%" PRIx64 ", which a job still uses after 2 s", model);
        }
    }
    pthread_mutex_unlock(&session->lock);
    if (status != TANDEM_OK)
        return td_session_fail(session, __func__, status, why);
    if (session->remote)
        td_remote_model_end(session, found);
    td_model_free(session, found);
    return TANDEM_OK;
}
