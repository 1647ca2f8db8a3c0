/* What an instance keeps from run to run, to and from the host's memory. See network.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "engine_plugin/client/network.h"

/* A tensor that is kept; NULL: there is none of that name. */
static const td_program_tensor *find_kept(const td_network *network, const char *name)
{
    const uint32_t index = td_graph_find_tensor(network->graph, name);
    const uint32_t role = index == UINT32_MAX ? TD_ROLE_INPUT : network->graph->tensors[index].role;

    return role == TD_ROLE_STATE || role == TD_ROLE_CACHE ? &network->tensors[index] : NULL;
}

/* Where in the state all of it is. Names follow one another that are the same. */
static tandem_status find_bytes(const td_network *network, td_state_copy *copies, uint32_t count, char *why)
{
    const td_program_tensor *tensor = NULL;

    for (uint32_t i = 0; i < count; i++) {
        td_state_copy *copy = &copies[i];

        if (!i || copy->tensor != copies[i - 1].tensor)
            tensor = find_kept(network, copy->tensor);
        if (!tensor || copy->offset > tensor->bytes || copy->bytes > tensor->bytes - copy->offset)
            return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                           "%s has no bytes %" PRIu64 " to %" PRIu64 " that are kept", copy->tensor,
                           copy->offset, copy->offset + copy->bytes);
        copy->at = tensor->offset + copy->offset;
    }
    return TANDEM_OK;
}

static tandem_status copy_bytes(tandem_session *s, const td_mem *state, const td_state_copy *copy,
                                bool to_instance, char *why)
{
    if (state->host) {
        char *bytes = (char *)state->host + copy->at;

        memcpy(to_instance ? bytes : copy->host, to_instance ? copy->host : bytes, copy->bytes);
        return TANDEM_OK;
    }
    if (!s->cu)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "what an instance keeps cannot be seen from the host here");
    const tandem_status status =
        to_instance ? td_cu_copy_to_device(s->cu, state->address + copy->at, copy->host, copy->bytes)
                    : td_cu_copy_to_host(s->cu, copy->host, state->address + copy->at, copy->bytes);
    return status == TANDEM_OK
               ? status
               : td_fail(why, TD_WHY_BYTES, status, "the GPU's memory could not be copied");
}

tandem_status td_local_state_copy(tandem_session *s, const td_instance *instance, const td_state_copy *copies,
                                  uint32_t count, bool to_instance, char *why)
{
    tandem_status status = TANDEM_OK;

    for (uint32_t i = 0; i < count && status == TANDEM_OK; i++)
        status = copy_bytes(s, instance->state, &copies[i], to_instance, why);
    return status;
}

bool td_instance_pace(tandem_session *s, tandem_instance instance, uint64_t until_ns,
                      uint64_t *seen_ns)
{
    char why[TD_WHY_BYTES];

    pthread_mutex_lock(&s->lock);
    td_instance *found = td_instance_find_locked(s, instance, "instance", why);
    const bool can = found && found->state->host && !s->stream && !s->cu;
    if (can) {
        *seen_ns = atomic_load(&found->pace.seen_ns);
        td_pace_grant(&found->pace, until_ns);
    }
    pthread_mutex_unlock(&s->lock);
    return can;
}

const char *td_instance_no_copies(tandem_session *s)
{
    return s->ops->no_states ? s->ops->no_states(s) : NULL;
}

tandem_status td_instance_copy(tandem_session *s, tandem_instance instance, td_state_copy *copies,
                               uint32_t count, bool to_instance, char *why)
{
    pthread_mutex_lock(&s->lock);
    td_instance *found = td_instance_find_locked(s, instance, "instance", why);
    if (found)
        found->state->object.uses++;
    pthread_mutex_unlock(&s->lock);
    if (!found)
        return TANDEM_ERROR_ARG;
    tandem_status status = find_bytes(found->model->network, copies, count, why);
    if (status == TANDEM_OK)
        status = s->ops->state_copy(s, found, copies, count, to_instance, why);
    pthread_mutex_lock(&s->lock);
    td_object_release_locked(s, &found->state->object);
    pthread_mutex_unlock(&s->lock);
    return status;
}
