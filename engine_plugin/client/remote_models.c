/* Models that tandemd has loaded.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/network.h"
#include "engine_plugin/client/remote.h"
#include "interop/os/file.h"
#include "kernels/top/params.h"

_Static_assert((int)TD_WIRE_TOPS == (int)TD_TOP_MOST, "the wire has room for all that a model may give");

static bool is_language(const td_wire_language *of)
{
    return td_first_not_zero(of, 0, sizeof *of) < sizeof *of;
}

static const char *lacks_languages(const td_remote *r)
{
    return r->rules.features & TD_WIRE_LANGUAGES
               ? NULL
               : "the tandemd that computes for this session is too old, or has no model_dir: all must be 0";
}

const char *td_remote_no_languages(tandem_session *s)
{
    pthread_mutex_lock(&s->lock);
    const char *why = lacks_languages(s->remote);
    pthread_mutex_unlock(&s->lock);
    return why;
}

/* A language model's file with more than its path is said of by another message. */
static void describe_load(td_wire_message *m, const struct td_remote_model *remote)
{
    *m = td_wire_new(is_language(&remote->language) ? TD_WIRE_MODEL_CREATE : TD_WIRE_MODEL_LOAD, 0);
    if (m->header.type == TD_WIRE_MODEL_CREATE) {
        m->model_create.language = remote->language;
        td_wire_text(m->model_create.path, sizeof m->model_create.path, remote->path);
    } else {
        td_wire_text(m->model_load.path, sizeof m->model_load.path, remote->path);
    }
}

static tandem_status ask_to_load_locked(tandem_session *s, const struct td_remote_model *remote, td_wire_message *m, char *why)
{
    const td_remote *r = s->remote;

    if (!(r->rules.features & TD_WIRE_MODELS))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "tandemd at '%s' loads no models: no model_dir is configured", r->path);
    if (is_language(&remote->language) && lacks_languages(r))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "desc.sequences is %u, desc.context %u, desc.cache %u, desc.pages %u, desc.hidden %u and desc.tops %u; %s",
                       remote->language.sequences, remote->language.context, remote->language.cache, remote->language.pages,
                       remote->language.hidden, remote->language.tops, lacks_languages(r));
    describe_load(m, remote);
    m->header.serial = r->rules.next_serial;
    if (td_wire_check(&r->rules, TD_WIRE_TO_DAEMON, m, m->header.bytes, 0, why, TD_WHY_BYTES) != TANDEM_OK)
        return TANDEM_ERROR_ARG;
    return td_remote_ask_locked(s, m, -1, TD_WIRE_DONE, NULL, why);
}

static tandem_status load_locked(tandem_session *s, td_model *model, char *why)
{
    const td_remote *r = s->remote;
    const uint32_t connection = r->connection;
    td_wire_message m;
    const tandem_status status = ask_to_load_locked(s, model->remote, &m, why);

    if (status == TANDEM_ERROR_LOST)
        return status;
    if (r->connection != connection)
        return td_remote_gone(r, why);
    model->remote->connection = connection;
    model->remote->status = status;
    model->remote->id = status == TANDEM_OK ? m.object.id : 0;
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

tandem_status td_remote_load_again_locked(tandem_session *s, td_model *model, char *why)
{
    tandem_status status = load_locked(s, model, why);
    td_wire_tensor tensor;

    if (status == TANDEM_OK && model->remote->first[0])
        status = find_tensor_locked(s, model, model->remote->first, &tensor, why);
    return status;
}

/* While there is no daemon, it is loaded by the next. */
tandem_status td_remote_model_enter_locked(tandem_session *s, td_model *model, char *why)
{
    if (!model->remote || !s->remote->up || model->remote->connection == s->remote->connection)
        return TANDEM_OK;
    return load_locked(s, model, why);
}

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
    } else if (strlen(from) >= sizeof model->remote->path) {
        status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "path has %zu bytes, more than %zu", strlen(from),
                         sizeof model->remote->path - 1);
    } else {
        strcpy(model->remote->path, from);
        model->remote->language = (td_wire_language){desc->sequences, desc->context, desc->cache, desc->pages, desc->hidden, desc->tops};
        pthread_mutex_lock(&s->lock);
        status = s->remote->up ? load_locked(s, model, text) : td_remote_gone(s->remote, text);
        pthread_mutex_unlock(&s->lock);
        if (status == TANDEM_OK)
            status = td_remote_network_load(load, desc, text);
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
    status = td_remote_has_model_locked(s, model, why);
    if (status != TANDEM_OK)
        return status;
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
    if (s->remote && model->remote)
        td_remote_end(s, TD_WIRE_MODEL_DESTROY, model->remote->id, model->remote->connection);
    td_session_free(s, model->remote, sizeof *model->remote);
}
