/* What instances keep in tandemd, to and from this process: through a shared buffer, some of it with each request.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "engine_plugin/client/network.h"
#include "engine_plugin/client/remote.h"

/* How far the copies have come. */
typedef struct place {
    uint32_t copy;
    uint64_t done; /* of that one's bytes */
} place;

const char *td_remote_no_states(tandem_session *s)
{
    pthread_mutex_lock(&s->lock);
    const bool has = s->remote->rules.features & TD_WIRE_STATES;
    pthread_mutex_unlock(&s->lock);
    return has ? NULL : "the tandemd that computes for this session is too old to copy what instances keep";
}

/* A mem that both sides map while something is copied. Accepts NULL. */
static void free_buffer(tandem_session *s, td_mem *buffer)
{
    if (!buffer)
        return;
    td_remote_end(s, TD_WIRE_MEM_DESTROY, buffer->shared.id, buffer->shared.connection);
    td_mem_free(s, buffer);
}

/* *out is to be freed, also where this fails. */
static tandem_status make_buffer(tandem_session *s, const td_instance *instance, const td_state_copy *copies, uint32_t count,
                                 td_mem **out, char *why)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < count && bytes < TD_WIRE_STATE_BYTES; i++)
        bytes += copies[i].bytes;
    bytes = bytes < TD_WIRE_STATE_BYTES ? td_align_up(bytes ? bytes : 1, TD_WIRE_PAGE_BYTES) : TD_WIRE_STATE_BYTES;
    *out = td_mem_new(s, bytes, why);
    if (!*out)
        return TANDEM_ERROR_NOMEM;
    tandem_status status = td_remote_make_shared_buffer(*out, false, why);
    if (status != TANDEM_OK)
        return status;
    pthread_mutex_lock(&s->lock);
    status = td_instance_check_locked(s, instance, "instance", why);
    if (status == TANDEM_OK)
        status = td_remote_share_mem_locked(s, *out, why);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* As much as a request has and the buffer has room for; `hosts`: where each range is here. */
static td_wire_instance_state take_ranges(const td_instance *instance, const td_mem *buffer, const td_state_copy *copies,
                                          uint32_t count, place *at, char *hosts[TD_WIRE_RANGES])
{
    td_wire_instance_state m = td_wire_new(TD_WIRE_INSTANCE_STATE, 0).instance_state;
    uint64_t room = buffer->bytes;

    m.instance = instance->remote_id;
    m.mem = buffer->shared.id;
    while (at->copy < count && room && m.range_count < TD_WIRE_RANGES) {
        const td_state_copy *copy = &copies[at->copy];
        const uint64_t left = copy->bytes - at->done, bytes = left < room ? left : room;

        if (bytes) {
            hosts[m.range_count] = (char *)copy->host + at->done;
            m.ranges[m.range_count++] = (td_wire_range){copy->at + at->done, (uint32_t)bytes, 0};
        }
        room -= bytes;
        *at = bytes == left ? (place){at->copy + 1, 0} : (place){at->copy, at->done + bytes};
    }
    return m;
}

static void move(const td_wire_instance_state *m, char *const hosts[TD_WIRE_RANGES], char *shared, bool to_shared)
{
    for (uint32_t i = 0; i < m->range_count; shared += m->ranges[i++].bytes)
        memcpy(to_shared ? shared : hosts[i], to_shared ? hosts[i] : shared, m->ranges[i].bytes);
}

static tandem_status ask(tandem_session *s, const td_instance *instance, const td_wire_instance_state *ranges, char *why)
{
    td_wire_message m = {.instance_state = *ranges};

    pthread_mutex_lock(&s->lock);
    tandem_status status = td_instance_check_locked(s, instance, "instance", why);
    if (status == TANDEM_OK)
        status = td_remote_ask_locked(s, &m, -1, TD_WIRE_DONE, NULL, why);
    pthread_mutex_unlock(&s->lock);
    return status;
}

tandem_status td_remote_state_copy(tandem_session *s, const td_instance *instance, const td_state_copy *copies, uint32_t count,
                                   bool to_instance, char *why)
{
    const char *no_states = td_remote_no_states(s);
    td_mem *buffer = NULL;
    place at = {0};

    if (no_states)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "%s", no_states);
    tandem_status status = make_buffer(s, instance, copies, count, &buffer, why);
    while (status == TANDEM_OK && at.copy < count) {
        char *hosts[TD_WIRE_RANGES];
        td_wire_instance_state m = take_ranges(instance, buffer, copies, count, &at, hosts);

        m.writes = to_instance;
        if (to_instance)
            move(&m, hosts, buffer->host, true);
        if (m.range_count)
            status = ask(s, instance, &m, why);
        if (status == TANDEM_OK && !to_instance)
            move(&m, hosts, buffer->host, false);
    }
    free_buffer(s, buffer);
    return status;
}
