/* SPDX-License-Identifier: Apache-2.0 */
#include "engine_plugin/daemon/worker_instances.h"

#include <stdio.h>
#include <string.h>

void td_worker_keep_text(tandem_session *session, char *text, size_t bytes)
{
    char whole[TD_TEXT_BYTES] = "";
    const char *from;

    tandem_error_text(session, whole, sizeof whole);
    from = strstr(whole, ": ");
    snprintf(text, bytes, "%s", from ? from + 2 : whole);
}

void td_worker_prepare(tandem_session *session, tandem_instance instance, td_worker_message *t)
{
    td_worker_network *n = &t->network;
    td_worker_prepared prepared = {.most_bytes = n->most_bytes};

    t->status = td_worker_session_prepare(session, instance, n->numbers, n->number_count, &prepared);
    if (t->status != TANDEM_OK) {
        td_worker_keep_text(session, t->text, sizeof t->text);
        return;
    }
    n->bytes = prepared.bytes;
    n->mflop = prepared.mflop;
    n->record_count = prepared.as.record_count;
    n->chain = prepared.as.chain;
    n->scratch_bytes = prepared.as.scratch_bytes;
    n->uniform_bytes = prepared.as.uniform_bytes;
    n->layer_count = prepared.as.layer_count;
}

void td_worker_layer(tandem_session *session, tandem_instance instance, td_worker_message *t)
{
    td_worker_network *n = &t->network;

    t->status = tandem_model_layer(session, instance, n->numbers, n->number_count, n->index, &n->layer);
    if (t->status != TANDEM_OK)
        td_worker_keep_text(session, t->text, sizeof t->text);
}

void td_worker_state(tandem_session *session, tandem_instance instance, void *host, td_worker_message *t)
{
    t->status = td_worker_session_copy_state(session, instance, &t->network.state, host);
    if (t->status != TANDEM_OK)
        td_worker_keep_text(session, t->text, sizeof t->text);
}
