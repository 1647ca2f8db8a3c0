/* Networks in sessions of tandemd's worker. A model is one session's, and its instances are their
 * clients' sessions', which have aliases of it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/client/network.h"
#include "interop/wire/wire.h"

int td_worker_session_model_header(tandem_session *s, tandem_model model, uint64_t *bytes)
{
    char why[TD_WHY_BYTES];
    const td_model *found;
    int fd = -1;

    pthread_mutex_lock(&s->lock);
    found = (const td_model *)td_table_find_locked(s, TD_KIND_MODEL, model, "model", why);
    *bytes = 0;
    if (found && found->header) {
        fd = found->header;
        *bytes = found->header_bytes;
    }
    pthread_mutex_unlock(&s->lock);
    return fd;
}

uint64_t td_worker_session_state_bytes(tandem_session *s, tandem_model model)
{
    char why[TD_WHY_BYTES];
    const td_model *found;
    uint64_t bytes;

    pthread_mutex_lock(&s->lock);
    found = (const td_model *)td_table_find_locked(s, TD_KIND_MODEL, model, "model", why);
    bytes = found && found->network ? found->network->state_bytes : 0;
    pthread_mutex_unlock(&s->lock);
    return bytes;
}

static const td_model *find_source(tandem_session *from, tandem_model of, uint64_t *address,
                                   uint64_t *bytes, char *why)
{
    const td_model *found;

    pthread_mutex_lock(&from->lock);
    found = (const td_model *)td_table_find_locked(from, TD_KIND_MODEL, of, "model", why);
    if (found) {
        *address = found->mem->address;
        *bytes = found->mem->bytes;
    }
    pthread_mutex_unlock(&from->lock);
    return found;
}

tandem_status td_worker_session_alias_model(tandem_session *s, tandem_session *from,
                                            tandem_model of, tandem_model *out)
{
    char why[TD_WHY_BYTES] = "";
    uint64_t address = 0, bytes = 0;
    const td_model *source = find_source(from, of, &address, &bytes, why);
    td_model_load entry = {.s = s, .file.fd = -1};
    tandem_status status = source ? TANDEM_OK : TANDEM_ERROR_ARG;

    *out = 0;
    if (source)
        entry.model = td_session_alloc(s, sizeof *entry.model, 64);
    if (source && !entry.model)
        status = td_fail(why, sizeof why, TANDEM_ERROR_NOMEM, "no host memory for a model");
    if (status == TANDEM_OK) {
        entry.model->alias = true;
        entry.model->network = source->network;
        entry.model->mem = td_mem_new(s, bytes, why);
        status = entry.model->mem ? TANDEM_OK : TANDEM_ERROR_NOMEM;
    }
    if (status == TANDEM_OK) {
        entry.model->mem->address = address;
        status = td_model_load_enter(&entry, out, why);
    }
    td_model_load_end(&entry);
    return td_session_fail(s, __func__, status, why);
}

tandem_status td_worker_session_instance(tandem_session *s, tandem_model model, const tandem_instance_desc *desc,
                                         const td_wire_layers *layers, tandem_instance *out)
{
    tandem_instance_desc own = *desc;
    char why[TD_WHY_BYTES] = "";

    *out = 0;
    own.min_similarity = layers->min_similarity;
    own.max_us = layers->max_us;
    own.sample_every = layers->sample_every;
    own.sample_rows = layers->sample_rows;
    own.sample_all = layers->sample_all;
    const tandem_status status = td_instance_make(s, model, &own, layers->node_count ? layers : NULL, out, why);
    return td_session_fail(s, __func__, status, why);
}

/* What an instance holds for all numbers that are prepared, and what it has for these. */
static void describe_locked(td_instance *instance, const uint32_t *numbers, td_worker_prepared *out)
{
    const td_prepared *prepared = td_instance_find_prepared(instance, numbers);

    out->bytes = 0;
    for (int i = 0; i < TD_PREPARED; i++)
        out->bytes += td_prepared_bytes(&instance->prepared[i]);
    out->as = prepared->as;
    out->mflop = 0;
    for (uint32_t i = 0; i < prepared->program->node_count; i++)
        out->mflop += prepared->program->nodes[i].mflop;
}

tandem_status td_worker_session_copy_state(tandem_session *s, tandem_instance instance, const td_wire_instance_state *m,
                                           void *host)
{
    td_state_copy copies[TD_WIRE_RANGES] = {0};
    char why[TD_WHY_BYTES] = "", *at = host;

    for (uint32_t i = 0; i < m->range_count; at += m->ranges[i++].bytes)
        copies[i] = (td_state_copy){.at = m->ranges[i].offset_bytes, .bytes = m->ranges[i].bytes, .host = at};
    pthread_mutex_lock(&s->lock);
    const td_instance *found = td_instance_find_locked(s, instance, "instance", why);
    pthread_mutex_unlock(&s->lock); /* the caller's thread alone ends instances */
    const tandem_status status =
        found ? td_local_state_copy(s, found, copies, m->range_count, m->writes, why) : TANDEM_ERROR_ARG;
    return td_session_fail(s, __func__, status, why);
}

tandem_status td_worker_session_prepare(tandem_session *s, tandem_instance instance,
                                        const uint32_t *numbers, uint32_t number_count,
                                        td_worker_prepared *prepared)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status =
        td_instance_prepare(s, instance, numbers, number_count, prepared->most_bytes, why);

    if (status == TANDEM_OK) {
        pthread_mutex_lock(&s->lock);
        describe_locked(td_instance_find_locked(s, instance, "instance", why), numbers, prepared);
        pthread_mutex_unlock(&s->lock);
    }
    return td_session_fail(s, __func__, status, why);
}
