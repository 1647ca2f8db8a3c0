/* The worker as a process: its start, its end, and a new one for a dead one.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The new one gets what clients still hold, and again what the old one had not answered.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "engine_plugin/daemon/blame.h"
#include "engine_plugin/daemon/launcher.h"
#include "engine_plugin/daemon/log.h"
#include "engine_plugin/daemon/networks.h"
#include "engine_plugin/daemon/pass.h"
#include "engine_plugin/daemon/queue_dispatch.h"
#include "engine_plugin/daemon/queue_jobs.h"
#include "engine_plugin/daemon/replies.h"
#include "engine_plugin/daemon/state.h"
#include "engine_plugin/daemon/worker_process.h"
#include "engine_plugin/daemon/worker_requests.h"
#include "interop/os/clock.h"
#include "interop/os/descriptor.h"
#include "interop/os/memory.h"

#define EARLY_NS TD_SECOND /* a worker that ends sooner than this is started again ever later */
#define MOST_RESPAWN_NS TD_SECOND
#define SAY_END_NS 500000000u /* what the launcher may take to say how a worker has ended */
enum {
    MOST_CRASHES = 3,
    FIRST_TRIES = 5, /* workers that may die before one was ready */
};

void td_worker_spawn(td_broker *b)
{
    static td_launcher_message ask;
    int ends[2] = {-1, -1}, fds[2], queue = -1;
    char why[TD_TEXT_BYTES] = "the launcher has no time for it";
    void *map;

    b->respawn_ns = 0;
    if (td_memfd_make("tandem-queue", TD_WORKER_QUEUE_BYTES, true, &queue, why, sizeof why) != TANDEM_OK ||
        td_channel_pair(ends, why, sizeof why) != TANDEM_OK ||
        td_memfd_map(queue, TD_WORKER_QUEUE_BYTES, &map, why, sizeof why) != TANDEM_OK)
        goto later;
    b->worker_queue = map;
    b->worker_queue->tuning = b->tuning;
    ask = (td_launcher_message){.kind = TD_LAUNCHER_SPAWN};
    fds[0] = ends[1];
    fds[1] = queue;
    if (td_pass(b->launcher, &ask, sizeof ask, fds, 2) != TANDEM_OK) {
        b->old_worker_queue = b->worker_queue;
        b->worker_queue = NULL;
        goto later;
    }
    b->worker = ends[0];
    b->worker_pid = 0;
    b->worker_said = b->has_worker = false;
    b->worker_text[0] = 0;
    b->worker_status = TANDEM_ERROR_LOST;
    b->killed_ns = 0;
    b->spawned_ns = td_now_ns();
    td_fd_close(&ends[1]);
    td_fd_close(&queue);
    td_queue_wake(b);
    return;
later:
    td_say(TD_LOG_WARN, "no worker can be started, once more in 1 s: %s", why);
    td_fd_close(&ends[0]);
    td_fd_close(&ends[1]);
    td_fd_close(&queue);
    b->respawn_ns = td_now_ns() + TD_SECOND;
}

void td_worker_kill(td_broker *b, const char *why)
{
    static td_launcher_message ask;

    if (b->worker < 0)
        return;
    if (why) {
        td_say(TD_LOG_WARN, "worker (process %d) is ended: %s", b->worker_pid, why);
        snprintf(b->worker_text, sizeof b->worker_text, "%s", why);
    }
    b->killed_ns = td_now_ns();
    ask = (td_launcher_message){.kind = TD_LAUNCHER_KILL, .pid = b->worker_pid};
    if (b->worker_pid > 0)
        td_pass(b->launcher, &ask, sizeof ask, NULL, 0);
}

/* Requests as they were before the worker had any. */
static void take_requests_back(td_broker *b)
{
    for (td_worker_request *e = b->worker_requests, *next; e; e = next) {
        next = e->next;
        e->sent = false;
        switch ((td_worker_message_kind)e->message.kind) {
        case TD_WORKER_END:
            b->numbers[e->message.number] = 0;
            td_worker_request_remove(b, e);
            break;
        case TD_WORKER_END_SESSION:
            b->worker_sessions &= ~(1ull << e->message.worker_session);
            td_worker_request_remove(b, e);
            break;
        case TD_WORKER_BEGIN_SESSION: /* the next worker gets others */
        case TD_WORKER_FORGET:
            td_worker_request_remove(b, e);
            break;
        case TD_WORKER_MEM:
        case TD_WORKER_TIMELINE:
        case TD_WORKER_INSTANCE:
            if (!e->shared) /* an END of it was behind */
                td_worker_request_remove(b, e);
            break;
        case TD_WORKER_MODEL:
            if (!e->cached)
                td_worker_request_remove(b, e);
            break;
        default:
            if (!e->client)
                td_worker_request_remove(b, e);
            break;
        }
    }
}

/* What clients still hold is for the next worker. */
static void share_again(td_broker *b)
{
    for (td_cached_model *cached = b->model_cache; cached; cached = cached->next)
        if (cached->loaded && td_cached_model_send(b, cached)) /* jobs that read it wait for it, others do not */
            cached->loaded = false;
    for (td_client *c = b->clients; c; c = c->next) {
        for (td_shared *s = c->shared; s; s = s->next) {
            const bool is_mem = s->kind == TD_WIRE_KIND_MEM && !s->cached;
            td_worker_request *e;

            if (c->state != TD_CLIENT_READY || !s->imported || !(is_mem || s->opaque))
                continue;
            e = td_worker_request_add(b, is_mem ? TD_WORKER_MEM : TD_WORKER_TIMELINE, s->number, true);
            if (!e) {
                s->status = TANDEM_ERROR_NOMEM;
                continue;
            }
            s->imported = false;
            e->again = true;
            td_worker_request_describe(e, s);
        }
        if (c->state == TD_CLIENT_READY)
            td_worker_session_tell(b, c, TD_WORKER_BEGIN_SESSION); /* goes before all of its */
    }
}

/* Runs that the worker did not have. */
static void fail_runs_of_lost(td_broker *b)
{
    for (td_client *c = b->clients; c; c = c->next)
        for (td_shared *s = c->shared; s; s = s->next)
            if (s->kind == TD_WIRE_KIND_INSTANCE && s->status != TANDEM_OK)
                td_queue_fail_users(b, c, s, s->status, "run.instance is one whose state went with the worker");
}

static void tell_reset(td_broker *b, td_client *c)
{
    td_wire_message m = td_wire_new(TD_WIRE_RESET, 0);

    m.reset.epoch = b->epoch;
    m.reset.status = b->worker_status;
    m.reset.last_ticket = c->count ? c->order[0]->ticket - 1 : c->last_ticket;
    td_wire_sentence(m.reset.text, sizeof m.reset.text, b->worker_text[0] ? b->worker_text : "the worker died");
    td_client_send(b, c, &m, NULL);
}

static bool knows_end(const td_broker *b)
{
    return b->worker_pid <= 0 || b->ended_pid == b->worker_pid;
}

static void begin_anew(td_broker *b, uint64_t now)
{
    b->old_worker_queue = b->worker_queue;
    b->worker_queue = NULL;
    b->epoch++;
    b->early_ends = b->lost_ns - b->spawned_ns < EARLY_NS ? b->early_ends + 1 : 0;
    b->respawn_ns = now + (b->early_ends > 6 ? MOST_RESPAWN_NS : (10000000ull << b->early_ends));
    b->lost_ns = 0;
    b->hung = 0;
}

static void lose_worker(td_broker *b, uint64_t now)
{
    uint32_t blamed[TD_MAX_BLAMED];
    const uint32_t count = td_blame_find(b, blamed);

    td_say(TD_LOG_ERROR, "worker (process %d) is gone: %s", b->worker_pid,
           b->worker_text[0] ? b->worker_text : "it died");
    td_queue_lost(b, !count);
    for (uint32_t i = 0; i < count; i++)
        td_blame(b, blamed[i]);
    begin_anew(b, now);
    take_requests_back(b);
    td_networks_lose(b);
    fail_runs_of_lost(b);
    share_again(b);
    for (td_client *c = b->clients; c; c = c->next) {
        if (c->state != TD_CLIENT_READY)
            continue;
        tell_reset(b, c);
        if (c->crash_count >= MOST_CRASHES)
            td_client_end(b, c, TANDEM_ERROR_DEVICE, 0, "its jobs and requests ended three workers, one after the other");
    }
    td_queue_wake(b);
}

bool td_worker_bury(td_broker *b)
{
    const uint64_t now = td_now_ns();

    if (!b->lost_ns || (!knows_end(b) && now - b->lost_ns < SAY_END_NS))
        return true;
    lose_worker(b, now);
    if (b->ready_told || b->epoch < FIRST_TRIES)
        return true;
    td_say(TD_LOG_ERROR, "%d workers have died before they could begin", FIRST_TRIES);
    return false;
}
