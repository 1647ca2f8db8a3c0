/* The daemon's second thread: it waits for the clients' rings, their points and the worker, and does what has come.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A turn takes results and new jobs, ends what is late, and gives the worker what it has room for; clients and objects
 * that are gone are freed before it, since nobody sleeps on their timelines then.
 *   awake   on a CPU, for a job that its client calls, and for the end of a brief one, the thread does not sleep at once
 */
#define _GNU_SOURCE
#include <inttypes.h>

#include "engine_plugin/daemon/clients.h"
#include "engine_plugin/daemon/log.h"
#include "engine_plugin/daemon/queue.h"
#include "engine_plugin/daemon/queue_dispatch.h"
#include "engine_plugin/daemon/queue_jobs.h"
#include "engine_plugin/daemon/replies.h"
#include "engine_plugin/daemon/state.h"
#include "engine_plugin/daemon/worker_process.h"
#include "engine_plugin/daemon/worker_requests.h"
#include "interop/os/clock.h"
#include "interop/os/futex.h"
#include "interop/os/memory.h"
#include "interop/os/thread.h"

#define TURN_NS 100000000u /* a turn comes at the latest so long after the last one */
#define BLIND_NS 300000u   /* and so where the kernel cannot wait for many futexes */
#define LOOK_AGAIN_NS 1000000u
#define TEMP_OUTPUT_IDLE_NS TD_SECOND /* to free a GPU's memory is to wait for all that it does */

typedef struct sleep_on {
    td_eventcount *event;
    uint32_t seen;
} sleep_on;

static uint32_t list_events(td_broker *b, sleep_on *on)
{
    uint32_t count = 0;

    on[count++].event = &b->wake;
    if (b->worker_queue)
        on[count++].event = &b->worker_queue->to_broker;
    for (td_client *c = b->clients; c; c = c->next) {
        const td_work *head = c->state == TD_CLIENT_READY ? td_queue_head(c) : NULL;

        if (c->state != TD_CLIENT_READY)
            continue;
        on[count++].event = &c->ring.shared->to_daemon;
        if (head && head->wait && !head->wait->by_daemon && !head->wait->opaque)
            on[count++].event = &head->wait->timeline.counter->raised;
    }
    for (uint32_t i = 0; i < count; i++)
        on[i].seen = atomic_load(&on[i].event->count);
    return count;
}

/* Looks for an event instead of sleeping. */
static bool look_out(const sleep_on *on, uint32_t count, uint64_t now, uint64_t until_ns, bool *crowded)
{
    bool notified = false;

    *crowded = false;
    while (!notified && !*crowded && now < until_ns) {
        for (uint32_t i = 0; i < count; i++)
            notified = notified || atomic_load(&on[i].event->count) != on[i].seen;
        *crowded = !notified && !td_spin_yield(&now);
    }
    return notified;
}

static void sleep_until(const sleep_on *on, uint32_t count, uint64_t until_ns)
{
    static bool cannot;
    td_futex_seen words[2 + 2 * TD_MAX_CLIENTS];
    uint64_t now;

    for (uint32_t i = 0; i < count; i++)
        words[i] = (td_futex_seen){&on[i].event->count, on[i].seen};
    if (!cannot && td_futex_wait_many(words, count, until_ns))
        return;
    if (!cannot)
        td_say(TD_LOG_WARN, "this kernel cannot wait for many futexes (before 5.16, or filtered): looking every %u us",
               BLIND_NS / 1000);
    cannot = true;
    now = td_now_ns();
    td_eventcount_wait(on[0].event, on[0].seen, until_ns > now + BLIND_NS ? BLIND_NS : until_ns > now ? until_ns - now : 0);
}

/* Destroyed objects that nothing uses any more, or that something uses for too long; clients that are gone. */
static bool end_objects(td_broker *b, td_client *c, uint64_t now)
{
    bool some = false;

    for (td_shared *s = c->shared, *next; s; s = next) {
        char why[TD_TEXT_BYTES];
        const td_shared *used = s->model_mem ? s->model_mem : s;

        next = s->next;
        if (!s->closing || !s->close_serial || (used->uses && now < s->close_until_ns))
            continue;
        some = true;
        if (used->uses) {
            s->closing = false;
            if (s->model_mem)
                s->model_mem->closing = false;
            td_fail(why, sizeof why, TANDEM_ERROR_BUSY, "id is 0x%" PRIx64 ", which a job still uses after 2 s", s->id);
            td_client_error(b, c, s->close_serial, 0, TANDEM_ERROR_BUSY, why);
            continue;
        }
        td_client_done(b, c, s->close_serial, 0);
        td_shared_end(b, s);
        next = c->shared; /* it may have taken others with it */
    }
    return some;
}

static bool is_at_worker(const td_broker *b, const td_client *c)
{
    for (int i = 0; i < TD_WORKER_SLOTS; i++)
        if (b->slot_works[i] && b->slot_works[i]->client == c)
            return true;
    return false;
}

/* Whether the worker has been at a job of a client's that is gone for so long. Others' that are before it have time of their own:
 * a CPU's worker gets to one after the other. */
static bool outlives_client(const td_broker *b, const td_client *c, uint64_t now)
{
    const td_work *first = NULL;
    uint64_t sequence = UINT64_MAX;

    for (int i = 0; i < TD_WORKER_SLOTS; i++) {
        const td_work *work = b->slot_works[i];

        if (!work || td_worker_session_of(b, work->client) != td_worker_session_of(b, c) ||
            b->worker_queue->slots[i].sequence > sequence)
            continue;
        sequence = b->worker_queue->slots[i].sequence;
        first = work;
    }
    /* it may have gone since `now` */
    return first && first->client == c && now > (first->run_ns > c->gone_ns ? first->run_ns : c->gone_ns) + TD_SECOND;
}

/* On a GPU a job may take its turn with one of each other client's: as long as jobs end there it gets the time of all of
 * those. */
static bool hangs(const td_broker *b, const td_work *work, uint64_t now)
{
    const uint64_t since = b->result_ns > work->run_ns ? b->result_ns : work->run_ns;
    const uint32_t clients = td_queue_sharing(b); /* 0: its own is gone, and nobody else there */

    return now - since > b->config.job_ns || now - work->run_ns > (clients ? clients : 1) * b->config.job_ns;
}

static void look_for_hangs(td_broker *b, uint64_t now)
{
    for (int i = 0; i < TD_WORKER_SLOTS && b->config.job_ns && !b->killed_ns; i++) {
        char why[80];

        if (!b->slot_works[i] || !hangs(b, b->slot_works[i], now))
            continue;
        td_fail(why, sizeof why, TANDEM_ERROR_LOST, "a job does not end within %" PRIu64 " ms",
                b->config.job_ns / 1000000);
        td_worker_kill(b, why);
    }
}

static bool end_clients(td_broker *b, uint64_t now)
{
    bool some = false;

    for (td_client *c = b->clients, *next; c; c = next) {
        next = c->next;
        if (c->state == TD_CLIENT_READY)
            some = end_objects(b, c, now) || some;
        if (c->state != TD_CLIENT_GONE)
            continue;
        for (uint32_t i = 0; i < c->count && !c->swept; i++)
            td_queue_give_up(b, c->order[i], TANDEM_JOB_CANCELLED, TANDEM_OK);
        c->swept = true;
        td_queue_retire_given_up(b, c);
        if (is_at_worker(b, c)) {
            if (!b->killed_ns && outlives_client(b, c, now))
                td_worker_kill(b, "a job of a client that is gone does not end");
            continue;
        }
        td_client_free(b, c);
        some = true;
    }
    return some;
}

/* Before the event counts are read that are slept on. */
static void begin_turn(td_broker *b)
{
    const uint64_t now = td_now_ns();

    end_clients(b, now);
    td_temp_outputs_end(b, TEMP_OUTPUT_IDLE_NS);
    look_for_hangs(b, now);
    if (b->old_worker_queue)
        td_unmap(b->old_worker_queue, TD_WORKER_QUEUE_BYTES);
    b->old_worker_queue = NULL;
}

static bool turn(td_broker *b, uint64_t *next_ns)
{
    const uint64_t now = td_now_ns();
    bool some = td_queue_take_results(b), again = false;

    for (td_client *c = b->clients, *next; c; c = next) {
        next = c->next;
        if (c->state != TD_CLIENT_READY)
            continue;
        some = td_queue_take_news(b, c, now) || some;
        some = td_queue_end_late(b, c, now, next_ns) || some;
    }
    while (td_queue_dispatch(b, td_now_ns(), &again))
        some = true;
    if (again && now + LOOK_AGAIN_NS < *next_ns)
        *next_ns = now + LOOK_AGAIN_NS;
    b->turns++;
    return some;
}

bool td_queue_turn(td_broker *b, uint64_t *next_ns)
{
    begin_turn(b);
    *next_ns = td_now_ns() + TURN_NS;
    return turn(b, next_ns);
}

void *td_queue_main(void *broker)
{
    td_broker *b = broker;
    sleep_on on[2 + 2 * TD_MAX_CLIENTS];

    td_thread_set_slack(1000);
    td_thread_name("tandemd queue");
    pthread_barrier_wait(&b->begun);
    pthread_mutex_lock(&b->lock);
    while (!b->end_thread) {
        uint64_t next_ns = td_now_ns() + TURN_NS, now;
        uint32_t count;

        begin_turn(b);
        count = list_events(b, on);
        if (turn(b, &next_ns))
            continue;
        now = td_now_ns();
        if (now < b->awake_ns && td_spin_pays(&b->spin, now)) {
            const uint64_t until = b->awake_ns;
            bool notified, crowded;

            pthread_mutex_unlock(&b->lock);
            notified = look_out(on, count, now, until, &crowded);
            pthread_mutex_lock(&b->lock);
            if (notified || crowded || b->at_worker[0] + b->at_worker[1]) /* a call in vain is its client's fault */
                td_spin_end(&b->spin, notified, td_now_ns());
            continue;
        }
        for (uint32_t i = 0; i < count; i++)
            atomic_fetch_add(&on[i].event->waiters, 1);
        pthread_mutex_unlock(&b->lock);
        sleep_until(on, count, next_ns);
        pthread_mutex_lock(&b->lock);
        for (uint32_t i = 0; i < count; i++)
            atomic_fetch_sub(&on[i].event->waiters, 1);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}
