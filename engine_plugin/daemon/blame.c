/* Which request a worker died of, so that no worker gets the same one again, and nobody else's is refused for it. What the
 * worker is at it says in its queue, and how it ended the launcher knows.
 *
 *   ended by us         what it was at and did not answer; of what it was ended for else a job is the cause
 *   has said why        a job
 *   signal 9            too little memory, most likely: of models that it was loading the largest, else what it was making
 *   anything else       what it was at: its own mistakes
 *   nothing of these    a job
 *
 * What takes no memory to speak of, as it looks something up or makes room for a client, is blamed when a second worker has
 * died of it: who killed the first one, with signal 9, may have been anybody.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>

#include "engine_plugin/daemon/answers.h"
#include "engine_plugin/daemon/blame.h"
#include "engine_plugin/daemon/log.h"
#include "engine_plugin/daemon/replies.h"
#include "engine_plugin/daemon/state.h"

enum { MOST_DEATHS = 2, KILLED = 9 };

static td_worker_request *find_sent(const td_broker *b, uint32_t serial)
{
    td_worker_request *e = b->worker_requests;

    while (e && (!e->sent || e->message.serial != serial))
        e = e->next;
    return e;
}

static td_worker_request *largest_load(const td_broker *b)
{
    td_worker_request *largest = NULL;

    for (td_worker_request *e = b->worker_requests; e; e = e->next)
        if (e->sent && e->message.kind == TD_WORKER_MODEL && e->cached &&
            (!largest || e->cached->bytes > largest->cached->bytes))
            largest = e;
    return largest;
}

static bool takes_memory(const td_worker_request *e)
{
    return e->message.kind == TD_WORKER_MEM || e->message.kind == TD_WORKER_MODEL ||
           e->message.kind == TD_WORKER_INSTANCE || e->message.kind == TD_WORKER_PREPARE;
}

static bool is_out_of_memory(const td_broker *b)
{
    return !b->killed_ns && b->ended_pid == b->worker_pid && b->ended_status == KILLED;
}

static bool is_blamed(td_worker_request *e)
{
    return e && (takes_memory(e) || ++e->deaths == MOST_DEATHS);
}

/* Of the worker's two threads that do what is asked for. */
static td_worker_request *at_thread(const td_broker *b, bool aside)
{
    return b->worker_queue ? find_sent(b, atomic_load(aside ? &b->worker_queue->load : &b->worker_queue->request)) : NULL;
}

uint32_t td_blame_find(td_broker *b, uint32_t serials[TD_MAX_BLAMED])
{
    td_worker_request *request = at_thread(b, false), *load = at_thread(b, true);
    uint32_t count = 0;

    if (b->killed_ns) {
        td_worker_request *hung = find_sent(b, b->hung), *at = !hung ? NULL : hung->aside ? load : request;

        request = at ? at : hung && ++hung->deaths == MOST_DEATHS ? hung : NULL;
        load = NULL;
    } else if (b->worker_text[0]) {
        request = load = NULL;
    } else if (is_out_of_memory(b)) {
        load = largest_load(b);
        request = load ? NULL : request;
    }
    if (load && is_blamed(load))
        serials[count++] = load->message.serial;
    if (request && (b->killed_ns || is_blamed(request)))
        serials[count++] = request->message.serial;
    return count;
}

static void name_request(const td_worker_request *e, char *text, size_t bytes)
{
    switch ((td_worker_message_kind)e->message.kind) {
    case TD_WORKER_MODEL:
        snprintf(text, bytes, "loading a model of %" PRIu64 " bytes", e->cached ? e->cached->bytes : 0);
        break;
    case TD_WORKER_MEM: snprintf(text, bytes, "taking a mem of %" PRIu64 " bytes", e->message.bytes); break;
    case TD_WORKER_TIMELINE: snprintf(text, bytes, "taking a timeline"); break;
    case TD_WORKER_BEGIN_SESSION: snprintf(text, bytes, "making room for a client on the GPU"); break;
    case TD_WORKER_TENSOR: snprintf(text, bytes, "looking for tensor '%.80s'", e->message.text); break;
    case TD_WORKER_GRAPH: snprintf(text, bytes, "telling of a network"); break;
    case TD_WORKER_INSTANCE: snprintf(text, bytes, "making an instance of a network"); break;
    case TD_WORKER_PREPARE: snprintf(text, bytes, "preparing a network"); break;
    case TD_WORKER_LAYER: snprintf(text, bytes, "telling of a network's layer"); break;
    case TD_WORKER_STATE: snprintf(text, bytes, "copying what an instance keeps"); break;
    default: snprintf(text, bytes, "a request of kind %u", e->message.kind); break;
    }
}

static td_client *find_client(const td_broker *b, uint32_t session)
{
    td_client *c = b->clients;

    while (c && (c->state != TD_CLIENT_READY || c->session != session))
        c = c->next;
    return c;
}

void td_blame(td_broker *b, uint32_t serial)
{
    td_worker_request *e = find_sent(b, serial);
    td_client *c;
    char what[160];
    td_worker_message t;

    if (!e) /* what it was for is gone */
        return;
    c = find_client(b, e->session);
    t = e->message;
    name_request(e, what, sizeof what);
    if (is_out_of_memory(b))
        t.status = td_fail(t.text, sizeof t.text, TANDEM_ERROR_NOMEM,
                           "the worker was killed while it was %s, as is done where memory runs out", what);
    else if (b->killed_ns)
        t.status = td_fail(t.text, sizeof t.text, TANDEM_ERROR_DEVICE, "the worker did not come back from %s", what);
    else
        t.status = td_fail(t.text, sizeof t.text, TANDEM_ERROR_DEVICE, "the worker crashed while it was %s", what);
    if (c) {
        c->crash_count++;
        td_say(TD_LOG_WARN, "client %u (process %d, '%s') has ended the worker (process %d): %s", c->session,
               (int)c->conn.pid, c->name, b->worker_pid, t.text);
    } else {
        td_say(TD_LOG_WARN, "a client that is gone has ended the worker (process %d): %s", b->worker_pid, t.text);
    }
    if (e->cached)
        e->cached->retried = true; /* nor with others evicted */
    if (!b->worker_text[0])
        snprintf(b->worker_text, sizeof b->worker_text, "%s", t.text);
    td_worker_request_answer(b, e, &t, -1);
    if (t.kind == TD_WORKER_BEGIN_SESSION && c)
        td_client_end(b, c, t.status, 0, t.text);
}
