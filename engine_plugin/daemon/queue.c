/* Jobs of all clients: taken from their rings, held until their points come, given to the worker in a fair order.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   order   a client's jobs run in the order in which it put them; of all clients' first ones the next is chosen so:
 *           of those whose client has had at most share_window more compute than the one that has had least, the
 *           earliest deadline; where there is none, who has had least
 *   share   is counted in time on the device; who comes back from a pause begins where the others are
 *   ends    a job's report is final, then its point is signalled. Signals of one timeline come in the order of its jobs
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine_plugin/daemon/daemon.h"

#define TURN_NS 100000000u      /* a turn comes at the latest so long after the last one */
#define BLIND_NS 300000u        /* and so where the kernel cannot wait for many futexes */
#define LATE_DEADLINE UINT64_MAX

/* The end of a job. */

static void count_end(td_broker *b, td_client *c, uint32_t state)
{
    c->done += state == TANDEM_JOB_DONE;
    c->stale += state == TANDEM_JOB_STALE;
    c->cancelled += state == TANDEM_JOB_CANCELLED;
    c->failed += state == TANDEM_JOB_FAILED;
    b->jobs_done += state == TANDEM_JOB_DONE;
    b->jobs_stale += state == TANDEM_JOB_STALE;
    b->jobs_cancelled += state == TANDEM_JOB_CANCELLED;
    b->jobs_failed += state == TANDEM_JOB_FAILED;
}

static void report(td_broker *b, td_work *work, uint32_t state, tandem_status status, const td_slot *slot)
{
    td_client *c = work->client;
    td_wire_report r = {.state = state, .status = status};

    if (work->told)
        return;
    work->told = state > TANDEM_JOB_RUNNING;
    if (slot) {
        r.precision = slot->precision <= TANDEM_PRECISION_4B ? slot->precision : 0;
        r.begin_ns = c->timing ? slot->begin_ns : 0;
        r.end_ns = c->timing ? slot->end_ns : 0;
    }
    if (work->told)
        count_end(b, c, state);
    if (c->ring.area && c->state == TD_CLIENT_READY)
        td_ring_report(&c->ring, work->ticket, &r);
}

static void drop_uses(td_work *work)
{
    for (int i = 0; i < TD_VIEWS; i++) {
        if (work->mems[i])
            work->mems[i]->uses--;
        work->mems[i] = NULL;
    }
    if (work->wait)
        work->wait->uses--;
    work->wait = NULL;
}

static void finish(td_broker *b, td_work *work, uint32_t state, tandem_status status, const td_slot *slot)
{
    td_client *c = work->client;
    uint32_t at = 0;

    report(b, work, state, status, slot);
    drop_uses(work);
    if (work->signal) {
        if (c->state == TD_CLIENT_READY)
            td_point_raise(&work->signal->point, work->signal_value);
        work->signal->uses--;
    }
    while (at < c->count && c->order[at] != work)
        at++;
    memmove(c->order + at, c->order + at + 1, (--c->count - at) * sizeof(td_work *));
    work->ticket = 0;
}

void td_queue_settle(td_broker *b, td_client *c)
{
    for (uint32_t i = 0; i < c->count;) {
        td_work *work = c->order[i];
        bool first = true;

        for (uint32_t e = 0; e < i; e++)
            first = first && (!work->signal || c->order[e]->signal != work->signal);
        if (work->given_up && work->slot < 0 && first)
            finish(b, work, work->end_state, work->end_status, NULL);
        else
            i++;
    }
}

void td_queue_give_up(td_broker *b, td_work *work, uint32_t state, tandem_status status)
{
    if (work->slot >= 0) { /* the worker decides */
        atomic_store(&b->desk->slots[work->slot].cancel, 1);
        td_bell_ring(&b->desk->to_worker);
        return;
    }
    if (work->given_up)
        return;
    work->given_up = true;
    work->end_state = state;
    work->end_status = status;
    if (state != TANDEM_JOB_CANCELLED)
        report(b, work, state, status, NULL);
    drop_uses(work);
}

/* The text of a job that fails goes to its client as an event. */
static void fail(td_broker *b, td_work *work, tandem_status status, const char *why)
{
    td_client *c = work->client;

    td_say(TD_LOG_DEBUG, "client %u: job %" PRIu64 ": %s", c->session, work->ticket, why);
    td_client_error(b, c, 0, work->ticket, status, why);
    td_queue_give_up(b, work, TANDEM_JOB_FAILED, status);
}

/* The beginning of a job. */

static tandem_status bind_mems(td_client *c, td_work *work, char *why, size_t why_bytes)
{
    static const char *const names[TD_VIEWS] = {"q", "k", "v", "o", "lse"};
    const tandem_attention *op = &work->job.op.attention;
    const tandem_view *views[TD_VIEWS] = {&op->q, &op->k, &op->v, &op->o, &op->lse};

    for (int i = 0; i < TD_VIEWS; i++) {
        const bool keys = i == 1 || i == 2;
        td_shared *mem;
        uint64_t end;

        if (!views[i]->mem)
            continue;
        mem = td_ids_find(&c->mems, views[i]->mem);
        if (!mem || mem->closing || mem->pending)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%s.mem is 0x%" PRIx64 ", which %s", names[i],
                           views[i]->mem, mem && mem->pending ? "is not made yet" : "was destroyed");
        if (mem->weights && i >= 3)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%s.mem is 0x%" PRIx64 ", which belongs to a model",
                           names[i], views[i]->mem);
        if (mem->status != TANDEM_OK)
            return td_fail(why, why_bytes, mem->status, "%s.mem is 0x%" PRIx64 ", which the new worker could not take",
                           names[i], views[i]->mem);
        if (!td_wire_view_end(views[i], op->batch, keys ? op->kv_heads : op->heads, keys ? op->kv_len : op->q_len,
                              i == 4 ? 1 : op->head_dim, &end) ||
            end > mem->bytes)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                           "%s.offset_bytes is %" PRIu64 ", and its view goes beyond the %" PRIu64
                           " bytes of mem 0x%" PRIx64,
                           names[i], views[i]->offset_bytes, mem->bytes, views[i]->mem);
        work->mems[i] = mem;
        mem->uses++;
    }
    return TANDEM_OK;
}

static tandem_status bind_points(td_client *c, td_work *work, char *why, size_t why_bytes)
{
    const tandem_point *wait = &work->job.wait, *signal = &work->job.signal;

    if (signal->timeline) {
        td_shared *t = td_ids_find(&c->timelines, signal->timeline);

        if (!t || t->closing)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                           "job.signal.timeline is 0x%" PRIx64 ", which was destroyed", signal->timeline);
        if (!t->by_daemon)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                           "job.signal.timeline is 0x%" PRIx64 ", which the client signals", signal->timeline);
        if (signal->value <= t->promised)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                           "job.signal.value is %" PRIu64 ", not above %" PRIu64 ", which an earlier job signals",
                           signal->value, t->promised);
        work->signal = t;
        work->signal_value = t->promised = signal->value;
        t->uses++;
    }
    if (wait->timeline) {
        td_shared *t = td_ids_find(&c->timelines, wait->timeline);

        if (!t || t->closing)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "job.wait.timeline is 0x%" PRIx64 ", which was destroyed",
                           wait->timeline);
        if (t->by_daemon && wait->value > t->promised)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                           "job.wait.value is %" PRIu64 ", but the daemon's timeline ends at %" PRIu64 " so far",
                           wait->value, t->promised);
        work->wait = t;
        t->uses++;
    }
    return TANDEM_OK;
}

static void take_job(td_broker *b, td_client *c, const td_wire_job *m)
{
    const uint64_t now = td_now_ns();
    const uint64_t since = m->submit_ns <= now && now - m->submit_ns <= TD_SECOND ? m->submit_ns : now;
    char why[TD_TEXT_BYTES] = "";
    td_work *work = c->works;
    tandem_status status;

    while (work->ticket) /* there is one: the ring is not read else */
        work++;
    *work = (td_work){.ticket = m->ticket, .client = c, .job = m->job, .taken_ns = now, .slot = -1};
    if (m->job.deadline_ns)
        work->deadline_ns = m->job.deadline_ns < UINT64_MAX - since ? since + m->job.deadline_ns : UINT64_MAX;
    work->bound_ns = now + c->wait_bound_ns;
    if (!c->count && c->virtual_ns < b->virtual_ns) /* it had nothing to do: nothing is saved up */
        c->virtual_ns = b->virtual_ns;
    c->order[c->count++] = work;
    c->last_ticket = m->ticket;
    c->submitted++;
    report(b, work, TANDEM_JOB_PENDING, TANDEM_OK, NULL);
    status = bind_points(c, work, why, sizeof why);
    if (status == TANDEM_OK)
        status = bind_mems(c, work, why, sizeof why);
    if (status == TANDEM_OK && b->stopping)
        status = td_fail(why, sizeof why, TANDEM_ERROR_LOST, "the daemon stops");
    if (status != TANDEM_OK)
        fail(b, work, status, why);
    td_queue_settle(b, c);
}

static void take_cancel(td_broker *b, td_client *c, uint64_t ticket)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (c->order[i]->ticket == ticket) {
            td_queue_give_up(b, c->order[i], TANDEM_JOB_CANCELLED, TANDEM_OK);
            break;
        }
    td_queue_settle(b, c);
}

static bool take_some(td_broker *b, td_client *c)
{
    bool some = false;

    while (c->state == TD_CLIENT_READY && c->count < TD_MAX_WORKS) {
        td_wire_message m;
        char why[TD_TEXT_BYTES] = "";
        const tandem_status status = td_ring_take(&c->ring, &c->rules, &m, why, sizeof why);

        if (status == TANDEM_ERROR_BUSY)
            break;
        some = true;
        if (status != TANDEM_OK)
            td_client_end(b, c, status, 0, why);
        else if (m.header.type == TD_WIRE_JOB)
            take_job(b, c, &m.job);
        else if (m.header.type == TD_WIRE_CANCEL)
            take_cancel(b, c, m.cancel.ticket);
        /* SUBMITTED: pages tell by themselves */
    }
    return some;
}

void td_queue_take(td_broker *b, td_client *c)
{
    take_some(b, c);
}

/* Whose turn it is. */

/* A client's first job that the worker does not have, if all before it are over or there. */
static td_work *head_of(const td_client *c)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (c->order[i]->slot < 0 && !c->order[i]->given_up)
            return c->order[i];
    return NULL;
}

/* Whether it can run now. False too if it cannot any more. */
static bool is_ready(td_broker *b, td_work *work, uint64_t now)
{
    char why[TD_TEXT_BYTES] = "";
    uint64_t value;

    if (work->ready_ns)
        return true;
    if (work->wait) {
        td_shared *wait = work->wait;
        tandem_status status = TANDEM_OK;

        if (wait->by_daemon)
            value = wait->point.highest;
        else
            status = td_point_read(&wait->point, &value, why, sizeof why);
        if (status != TANDEM_OK) {
            td_client_end(b, work->client, status, 0, why);
            return false;
        }
        if (value < work->job.wait.value)
            return false;
        wait->uses--;
        work->wait = NULL;
    }
    work->ready_ns = now;
    return true;
}

/* When a job that waits has waited long enough: no wait is without a bound. */
static uint64_t bound_of(const td_broker *b, const td_work *work)
{
    if (work->ready_ns)
        return b->has_worker ? UINT64_MAX : work->ready_ns + TD_WIRE_MAX_WAIT_NS;
    return work->wait && !work->wait->by_daemon ? work->bound_ns : UINT64_MAX; /* a job before it signals the others */
}

/* True if the job has ended: its deadline, or its bound. */
static bool end_if_late(td_broker *b, td_work *work, uint64_t now, uint64_t *next_ns)
{
    const uint64_t bound = bound_of(b, work);
    char why[TD_TEXT_BYTES];
    uint64_t value = 0;

    if (work->deadline_ns && now >= work->deadline_ns) {
        td_queue_give_up(b, work, TANDEM_JOB_STALE, TANDEM_OK);
        return true;
    }
    if (now >= bound && work->ready_ns) {
        fail(b, work, TANDEM_ERROR_LOST, "there was no worker for it within 60 s");
        return true;
    }
    if (now >= bound && td_point_read(&work->wait->point, &value, why, sizeof why) == TANDEM_OK &&
        value < work->job.wait.value) {
        td_fail(why, sizeof why, TANDEM_ERROR_LOST,
                "wait point {0x%" PRIx64 ", %" PRIu64 "} did not come within %" PRIu64 " ms; the counter is %" PRIu64,
                work->job.wait.timeline, work->job.wait.value, work->client->wait_bound_ns / 1000000, value);
        fail(b, work, TANDEM_ERROR_LOST, why);
        return true;
    }
    if (work->deadline_ns && work->deadline_ns < *next_ns)
        *next_ns = work->deadline_ns;
    if (bound > now && bound < *next_ns)
        *next_ns = bound;
    return false;
}

static bool end_late(td_broker *b, td_client *c, uint64_t now, uint64_t *next_ns)
{
    bool some = false;

    for (uint32_t i = 0; i < c->count && c->state == TD_CLIENT_READY; i++)
        if (c->order[i]->slot < 0 && !c->order[i]->given_up)
            some = end_if_late(b, c->order[i], now, next_ns) || some;
    if (some)
        td_queue_settle(b, c);
    return some;
}

static uint64_t deadline_of(const td_work *work)
{
    return work->deadline_ns ? work->deadline_ns : LATE_DEADLINE;
}

static td_work *choose(td_broker *b, uint64_t now)
{
    uint64_t least = UINT64_MAX;
    td_work *best = NULL;

    for (td_client *c = b->clients; c; c = c->next) {
        td_work *head = c->state == TD_CLIENT_READY ? head_of(c) : NULL;

        if (head && is_ready(b, head, now) && c->virtual_ns < least)
            least = c->virtual_ns;
    }
    for (td_client *c = b->clients; c; c = c->next) {
        td_work *head = c->state == TD_CLIENT_READY ? head_of(c) : NULL;

        if (!head || !head->ready_ns || c->virtual_ns - least > b->config.share_window_ns)
            continue;
        if (!best || deadline_of(head) < deadline_of(best) ||
            (deadline_of(head) == deadline_of(best) && c->virtual_ns < best->client->virtual_ns))
            best = head;
    }
    if (best && least > b->virtual_ns)
        b->virtual_ns = least;
    return best;
}

static bool put_on_desk(td_broker *b, uint64_t now)
{
    tandem_view *views[TD_VIEWS];
    td_slot *slot = NULL;
    uint32_t busy = 0;
    td_work *work;
    int at = 0;

    if (!b->has_worker)
        return false;
    for (int i = 0; i < TD_DESK_SLOTS; i++) {
        busy += b->desk_works[i] != NULL;
        if (!b->desk_works[i] && !slot) {
            slot = &b->desk->slots[i];
            at = i;
        }
    }
    if (busy >= TD_DESK_DEPTH || !slot)
        return false;
    work = choose(b, now);
    if (!work)
        return false;
    slot->sequence = ++b->sequence;
    slot->deadline_ns = work->deadline_ns;
    slot->job = work->job;
    slot->text[0] = 0;
    views[0] = &slot->job.op.attention.q;
    views[1] = &slot->job.op.attention.k;
    views[2] = &slot->job.op.attention.v;
    views[3] = &slot->job.op.attention.o;
    views[4] = &slot->job.op.attention.lse;
    for (int i = 0; i < TD_VIEWS; i++)
        if (work->mems[i])
            views[i]->mem = work->mems[i]->weights ? work->mems[i]->weights->number : work->mems[i]->number;
    work->slot = at;
    work->run_ns = now;
    b->desk_works[at] = work;
    report(b, work, TANDEM_JOB_RUNNING, TANDEM_OK, NULL);
    atomic_store(&slot->cancel, 0);
    atomic_store_explicit(&slot->state, TD_SLOT_READY, memory_order_release);
    td_bell_ring(&b->desk->to_worker);
    return true;
}

/* What the worker says is copied, then looked at. */
static bool take_results(td_broker *b)
{
    bool some = false;

    for (int i = 0; i < TD_DESK_SLOTS && b->desk; i++) {
        td_slot *at = &b->desk->slots[i];
        td_work *work = b->desk_works[i];
        td_client *c;
        uint64_t took;
        td_slot slot;

        if (!work || atomic_load_explicit(&at->state, memory_order_acquire) != TD_SLOT_ENDED)
            continue;
        slot.end_state = at->end_state;
        slot.status = at->status;
        slot.precision = at->precision;
        slot.begin_ns = at->begin_ns;
        slot.end_ns = at->end_ns;
        memcpy(slot.text, at->text, sizeof slot.text);
        slot.text[sizeof slot.text - 1] = 0;
        if (slot.end_state < TANDEM_JOB_DONE || slot.end_state > TANDEM_JOB_FAILED)
            slot.end_state = TANDEM_JOB_FAILED;
        if (slot.end_state != TANDEM_JOB_FAILED)
            slot.status = TANDEM_OK;
        else if (slot.status >= TANDEM_OK || slot.status < TANDEM_ERROR_BUSY)
            slot.status = TANDEM_ERROR_DEVICE;
        c = work->client;
        took = slot.end_ns > slot.begin_ns ? slot.end_ns - slot.begin_ns : 0;
        c->compute_ns += took;
        c->virtual_ns += took;
        b->compute_ns += took;
        if (slot.begin_ns > work->ready_ns)
            c->wait_ns += slot.begin_ns - work->ready_ns;
        if (slot.end_state == TANDEM_JOB_DONE)
            c->strikes = 0;
        if (slot.end_state == TANDEM_JOB_FAILED)
            td_client_error(b, c, 0, work->ticket, slot.status, slot.text);
        b->desk_works[i] = NULL;
        for (int o = 0; o < TD_DESK_SLOTS; o++)
            if (b->desk_works[o])
                b->desk_works[o]->run_ns = td_now_ns();
        atomic_store_explicit(&at->state, TD_SLOT_FREE, memory_order_release);
        work->slot = -1;
        finish(b, work, slot.end_state, slot.status, &slot);
        td_queue_settle(b, c);
        some = true;
    }
    return some;
}

void td_queue_lost(td_broker *b)
{
    uint64_t first = UINT64_MAX;
    int guilty = -1;

    take_results(b);
    for (int i = 0; i < TD_DESK_SLOTS; i++)
        if (b->desk_works[i] && b->desk->slots[i].sequence < first) {
            first = b->desk->slots[i].sequence;
            guilty = i;
        }
    if (guilty >= 0)
        b->desk_works[guilty]->client->strikes++;
    for (int i = 0; i < TD_DESK_SLOTS; i++) {
        td_work *work = b->desk_works[i];

        b->desk_works[i] = NULL;
        if (!work)
            continue;
        work->slot = -1;
        td_queue_give_up(b, work, TANDEM_JOB_FAILED, TANDEM_ERROR_LOST);
        td_queue_settle(b, work->client);
    }
}

/* The thread. */

typedef struct sleep_on {
    td_bell *bell;
    uint32_t seen;
} sleep_on;

static uint32_t list_bells(td_broker *b, sleep_on *on)
{
    uint32_t count = 0;

    on[count++].bell = &b->kick;
    if (b->desk)
        on[count++].bell = &b->desk->to_broker;
    for (td_client *c = b->clients; c; c = c->next) {
        const td_work *head = c->state == TD_CLIENT_READY ? head_of(c) : NULL;

        if (c->state != TD_CLIENT_READY)
            continue;
        on[count++].bell = &c->ring.area->to_daemon;
        if (head && head->wait && !head->wait->by_daemon)
            on[count++].bell = &head->wait->point.page->bell;
    }
    for (uint32_t i = 0; i < count; i++)
        on[i].seen = atomic_load(&on[i].bell->count);
    return count;
}

static void sleep_until(const sleep_on *on, uint32_t count, uint64_t until_ns)
{
#ifdef SYS_futex_waitv
    static bool cannot;
    struct futex_waitv waiters[2 + 2 * TD_MAX_CLIENTS];
    const struct timespec t = {(time_t)(until_ns / TD_SECOND), (long)(until_ns % TD_SECOND)};

    for (uint32_t i = 0; i < count; i++)
        waiters[i] = (struct futex_waitv){
            .val = on[i].seen, .uaddr = (uintptr_t)&on[i].bell->count, .flags = FUTEX_32};
    if (!cannot) {
        const long result = syscall(SYS_futex_waitv, waiters, count, 0, &t, CLOCK_MONOTONIC);

        cannot = result < 0 && (errno == ENOSYS || errno == EPERM);
        if (!cannot)
            return;
        td_say(TD_LOG_WARN, "this kernel cannot wait for many futexes (before 5.16, or filtered): looking every %u us",
               BLIND_NS / 1000);
    }
#endif
    const uint64_t now = td_now_ns();

    td_bell_wait(on[0].bell, on[0].seen, until_ns > now + BLIND_NS ? BLIND_NS : until_ns > now ? until_ns - now : 0);
    (void)count;
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

static bool has_on_desk(const td_broker *b, const td_client *c)
{
    for (int i = 0; i < TD_DESK_SLOTS; i++)
        if (b->desk_works[i] && b->desk_works[i]->client == c)
            return true;
    return false;
}

static void look_for_hangs(td_broker *b, uint64_t now)
{
    for (int i = 0; i < TD_DESK_SLOTS && b->config.job_ns && !b->killed_ns; i++) {
        char why[80];

        if (!b->desk_works[i] || now - b->desk_works[i]->run_ns <= b->config.job_ns)
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
        td_queue_settle(b, c);
        if (has_on_desk(b, c)) {
            if (now - c->gone_ns > TD_SECOND && !b->killed_ns)
                td_worker_kill(b, "a job of a client that is gone does not end");
            continue;
        }
        td_client_free(b, c);
        some = true;
    }
    return some;
}

static bool turn(td_broker *b, uint64_t *next_ns)
{
    const uint64_t now = td_now_ns();
    bool some = take_results(b);

    for (td_client *c = b->clients, *next; c; c = next) {
        next = c->next;
        if (c->state != TD_CLIENT_READY)
            continue;
        some = take_some(b, c) || some;
        some = end_late(b, c, now, next_ns) || some;
    }
    while (put_on_desk(b, td_now_ns()))
        some = true;
    b->turns++;
    return some;
}

void *td_queue_main(void *broker)
{
    td_broker *b = broker;
    sleep_on on[2 + 2 * TD_MAX_CLIENTS];

    prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
    prctl(PR_SET_NAME, "tandemd queue", 0ul, 0ul, 0ul);
    pthread_barrier_wait(&b->begun);
    pthread_mutex_lock(&b->lock);
    while (!b->end_thread) {
        const uint64_t now = td_now_ns();
        uint64_t next_ns = now + TURN_NS;
        uint32_t count;

        end_clients(b, now);
        look_for_hangs(b, now);
        if (b->old_desk)
            munmap(b->old_desk, TD_DESK_BYTES);
        b->old_desk = NULL;
        count = list_bells(b, on);
        if (turn(b, &next_ns))
            continue;
        for (uint32_t i = 0; i < count; i++)
            atomic_fetch_add(&on[i].bell->waiters, 1);
        pthread_mutex_unlock(&b->lock);
        sleep_until(on, count, next_ns);
        pthread_mutex_lock(&b->lock);
        for (uint32_t i = 0; i < count; i++)
            atomic_fetch_sub(&on[i].bell->waiters, 1);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}
