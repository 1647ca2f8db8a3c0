/* What an instance keeps from run to run, to and from the host's memory. See network.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "engine_plugin/client/network.h"

/* Where in the state a tensor's bytes are; UINT64_MAX: it has not as many. */
static uint64_t find_bytes(const td_network *network, const td_state_copy *copy)
{
    const uint32_t index = td_graph_find_tensor(network->graph, copy->tensor);
    const uint32_t role = index == UINT32_MAX ? TD_ROLE_INPUT : network->graph->tensors[index].role;

    if (role != TD_ROLE_STATE && role != TD_ROLE_CACHE)
        return UINT64_MAX;
    const td_program_tensor *tensor = &network->tensors[index];
    if (copy->offset > tensor->bytes || copy->bytes > tensor->bytes - copy->offset)
        return UINT64_MAX;
    return tensor->offset + copy->offset;
}

static tandem_status copy_bytes(tandem_session *s, const td_mem *state, uint64_t at,
                                const td_state_copy *copy, bool to_instance, char *why)
{
    if (state->host) {
        char *bytes = (char *)state->host + at;

        memcpy(to_instance ? bytes : copy->host, to_instance ? copy->host : bytes, copy->bytes);
        return TANDEM_OK;
    }
    if (!s->cu)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "what an instance keeps cannot be seen from the host here");
    const tandem_status status =
        to_instance ? td_cu_copy_to_device(s->cu, state->address + at, copy->host, copy->bytes)
                    : td_cu_copy_to_host(s->cu, copy->host, state->address + at, copy->bytes);
    return status == TANDEM_OK
               ? status
               : td_fail(why, TD_WHY_BYTES, status, "the GPU's memory could not be copied");
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

tandem_status td_instance_copy(tandem_session *s, tandem_instance instance,
                               const td_state_copy *copies, uint32_t count, bool to_instance,
                               char *why)
{
    tandem_status status = TANDEM_OK;

    pthread_mutex_lock(&s->lock);
    td_instance *found = td_instance_find_locked(s, instance, "instance", why);
    if (found)
        found->state->object.uses++;
    pthread_mutex_unlock(&s->lock);
    if (!found)
        return TANDEM_ERROR_ARG;
    for (uint32_t i = 0; i < count && status == TANDEM_OK; i++) {
        const uint64_t at = find_bytes(found->model->network, &copies[i]);

        status = at == UINT64_MAX
                     ? td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                               "%s has no bytes %" PRIu64 " to %" PRIu64 " that are kept",
                               copies[i].tensor, copies[i].offset,
                               copies[i].offset + copies[i].bytes)
                     : copy_bytes(s, found->state, at, &copies[i], to_instance, why);
    }
    pthread_mutex_lock(&s->lock);
    td_object_release_locked(s, &found->state->object);
    pthread_mutex_unlock(&s->lock);
    return status;
}
