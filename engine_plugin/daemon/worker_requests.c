/* What the worker has of what clients share: memory, timelines, models, temporary outputs, and the requests that tell it
 * of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A request is kept until the worker has answered it, so that the next worker can be told of what this one did not get
 * to.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "engine_plugin/daemon/log.h"
#include "engine_plugin/daemon/pass.h"
#include "engine_plugin/daemon/quotas.h"
#include "engine_plugin/daemon/replies.h"
#include "engine_plugin/daemon/state.h"
#include "engine_plugin/daemon/worker_requests.h"
#include "interop/os/clock.h"
#include "interop/os/descriptor.h"

#define LEAST_REQUEST_NS (4 * TD_SECOND) /* what a worker may take for the next request: as for a job, within these, */
#define MOST_REQUEST_NS (20 * TD_SECOND)
#define LOAD_NS (900 * TD_SECOND) /* or to load a model */
#define MOST_WAIT_NS (2 * TD_SECOND) /* on the GPU: what was submitted comes sooner */

/* Numbers of the worker's objects. */

uint32_t td_number_take(td_broker *b)
{
    for (uint32_t i = 1; i < TD_MAX_NUMBERS; i++) {
        const uint32_t at = 1 + (b->next_number + i) % (TD_MAX_NUMBERS - 1);

        if (b->numbers[at])
            continue;
        b->numbers[at] = 1;
        b->next_number = at;
        return at;
    }
    return 0;
}

/* Requests. */

td_worker_request *td_worker_request_add(td_broker *b, td_worker_message_kind kind, uint32_t number, bool first)
{
    td_worker_request *made = calloc(1, sizeof *made), **at = &b->worker_requests;

    if (!made)
        return NULL;
    made->message.kind = kind;
    made->message.number = number;
    made->message.serial = ++b->request_serial;
    while (*at && !first)
        at = &(*at)->next;
    made->next = *at;
    *at = made;
    return made;
}

void td_worker_request_remove(td_broker *b, td_worker_request *request)
{
    td_worker_request **at = &b->worker_requests;

    while (*at != request)
        at = &(*at)->next;
    *at = request->next;
    free(request);
}

void td_worker_request_describe(td_worker_request *request, td_shared *s)
{
    td_worker_message *t = &request->message;

    request->shared = s;
    request->session = s->client->session;
    t->opaque = s->opaque;
    t->dedicated = s->dedicated;
    t->by_daemon = s->by_daemon;
    t->temp_output = s == s->client->temp_output;
    t->bytes = s->bytes;
    t->offset_bytes = s->offset_bytes;
    t->allocation_bytes = s->allocation_bytes;
    t->value = s->by_daemon ? s->promised : s->announced;
}

/* What a worker that is not there yet, or is busy, would be told of a session whose client is gone. */
static void forget_session(td_broker *b, uint32_t worker_session)
{
    for (td_worker_request *e = b->worker_requests, *next; e; e = next) {
        next = e->next;
        if (!e->sent && e->message.kind == TD_WORKER_BEGIN_SESSION && e->message.worker_session == worker_session)
            td_worker_request_remove(b, e);
    }
}

bool td_worker_scratch_forget(td_broker *b, const td_client *c)
{
    td_worker_request *request = td_scratch_held(b, c) ? td_worker_request_add(b, TD_WORKER_FORGET, 0, false) : NULL;

    if (!request)
        return false;
    request->message.worker_session = td_worker_session_of(b, c);
    request->message.value = c->session;
    return true;
}

void td_worker_session_tell(td_broker *b, td_client *c, td_worker_message_kind kind)
{
    const bool told = b->worker >= 0 || kind == TD_WORKER_BEGIN_SESSION;
    td_worker_request *request;

    if (kind == TD_WORKER_END_SESSION)
        forget_session(b, c->worker_session);
    if (!c->worker_session && kind == TD_WORKER_END_SESSION) {
        td_worker_scratch_forget(b, c);
        return;
    }
    request = c->worker_session && told ? td_worker_request_add(b, kind, 0, kind == TD_WORKER_BEGIN_SESSION) : NULL;
    if (!request) {
        if (kind == TD_WORKER_END_SESSION)
            b->worker_sessions &= ~(c->worker_session ? 1ull << c->worker_session : 0);
        return;
    }
    request->session = c->session;
    request->message.worker_session = c->worker_session;
    request->message.opaque = c->share == TD_WIRE_SHARE_OPAQUE;
    request->message.job_class = c->job_class;
    request->message.value = c->wait_bound_ns < MOST_WAIT_NS ? c->wait_bound_ns : MOST_WAIT_NS;
}

void td_worker_session_open(td_broker *b, td_client *c)
{
    if (b->worker_info.backend != TANDEM_BACKEND_CUDA || c->share == TD_WIRE_SHARE_NONE)
        return;
    for (uint32_t i = 1; i < TD_MAX_SESSIONS && !c->worker_session; i++)
        if (!(b->worker_sessions >> i & 1))
            c->worker_session = i;
    if (!c->worker_session)
        return;
    b->worker_sessions |= 1ull << c->worker_session;
    td_worker_session_tell(b, c, TD_WORKER_BEGIN_SESSION);
}

static int request_fd(const td_worker_request *e)
{
    return (e->message.kind == TD_WORKER_MEM || e->message.kind == TD_WORKER_TIMELINE) && e->shared ? e->shared->fd
           : e->message.kind == TD_WORKER_MODEL && e->cached ? e->cached->fd
                                                         : -1;
}

static bool is_sent(const td_broker *b, td_worker_message_kind kind)
{
    const td_worker_request *e = b->worker_requests;

    while (e && !(e->sent && e->message.kind == kind))
        e = e->next;
    return e != NULL;
}

/* Whether it may be asked for now. Networks are prepared one after the other, since what each takes is known only then; and of what
 * instances keep one request's bytes are copied at a time, since others wait for that. */
static bool may_ask(const td_broker *b, td_worker_request *e)
{
    const td_client *c = e->client;
    const td_worker_message_kind kind = (td_worker_message_kind)e->message.kind;
    const td_shared *instance;
    uint64_t own, all;

    if (kind != TD_WORKER_PREPARE && kind != TD_WORKER_STATE)
        return true;
    if (is_sent(b, kind))
        return false;
    if (kind == TD_WORKER_STATE)
        return true;
    instance = td_ids_find(&c->instances, e->object);
    own = td_room_in(b->config.client_bytes, c->mem_bytes + td_scratch_held(b, c));
    all = td_room_in(b->config.total_bytes, b->mem_bytes + td_scratch_held(b, NULL));
    e->message.network.most_bytes = (own < all ? own : all) + (instance ? instance->prepared_bytes : 0);
    return true;
}

void td_worker_requests_send(td_broker *b)
{
    uint32_t sent = 0;

    if (b->worker < 0 || !b->worker_said)
        return;
    for (td_worker_request *e = b->worker_requests; e && sent < TD_MAX_WORKER_REQUESTS; e = e->next) {
        const int fd = request_fd(e);

        if (!e->sent && ((e->reads && !e->reads->loaded) || !may_ask(b, e)))
            continue;
        sent += !e->aside; /* what takes long holds up nobody else's */
        if (e->sent)
            continue;
        if (e->shared)
            e->message.worker_session = td_worker_session_of(b, e->shared->client);
        if (e->message.kind == TD_WORKER_INSTANCE)
            e->message.network.model = e->reads->number;
        if (td_pass(b->worker, &e->message, sizeof e->message, &fd, fd >= 0) != TANDEM_OK)
            return; /* later, or it is gone, which poll() tells */
        e->sent = true;
        e->sent_ns = td_now_ns();
    }
    if (!b->has_worker) {
        for (const td_worker_request *e = b->worker_requests; e; e = e->next)
            if (e->again)
                return;
        b->has_worker = true;
        td_queue_wake(b);
    }
}

/* What the worker was at so long, of what it does one after the other; or of what its loader does. */
const td_worker_request *td_worker_request_hangs(const td_broker *b, uint64_t now)
{
    const uint64_t job_ns = b->config.job_ns && b->config.job_ns < MOST_REQUEST_NS ? b->config.job_ns : MOST_REQUEST_NS;
    const uint64_t bound = job_ns < LEAST_REQUEST_NS ? LEAST_REQUEST_NS : job_ns;
    bool first = true;

    for (const td_worker_request *e = b->worker_requests; e; e = e->next) {
        const uint64_t since = !e->aside && b->answered_ns > e->sent_ns ? b->answered_ns : e->sent_ns;

        if (e->sent && (e->aside || first) && now - since > (e->aside ? LOAD_NS : bound))
            return e;
        first = first && (!e->sent || e->aside);
    }
    return NULL;
}

/* What the worker has under this number it may forget. */
static void end_number(td_broker *b, uint32_t number, bool aside)
{
    td_worker_request *request = NULL;

    if (number && b->worker >= 0 && b->worker_said)
        request = td_worker_request_add(b, TD_WORKER_END, number, false);
    if (request)
        request->aside = aside;
    else if (number)
        b->numbers[number] = 0;
}

/* An instance of a network that waits for its model. */
static td_shared *find_unmade(const td_broker *b, const td_cached_model *cached)
{
    const td_worker_request *e = b->worker_requests;

    while (e && (e->sent || e->reads != cached || !e->shared))
        e = e->next;
    return e ? e->shared : NULL;
}

/* Nobody has the model any more: requests that wait for it are over. */
void td_cached_model_fail_readers(td_broker *b, const td_cached_model *cached, tandem_status status, const char *why)
{
    td_shared *made;

    for (td_worker_request *e = b->worker_requests, *next; e; e = next) {
        td_client *c = e->client;
        const uint32_t serial = e->serial;

        next = e->next;
        if (e->reads != cached || e->shared)
            continue;
        e->reads = NULL;
        if (e->sent)
            continue;
        td_worker_request_remove(b, e);
        if (c)
            td_client_error(b, c, serial, 0, status, why);
    }
    while ((made = find_unmade(b, cached))) {
        td_client_error(b, made->client, made->pending, 0, status, why);
        td_shared_end(b, made);
    }
}

/* What clients share. */

void td_cached_model_drop(td_broker *b, td_cached_model *cached)
{
    td_cached_model **at = &b->model_cache;

    if (--cached->uses)
        return;
    while (*at != cached)
        at = &(*at)->next;
    *at = cached->next;
    for (td_worker_request *e = b->worker_requests, *next; e; e = next) {
        next = e->next;
        if (e->cached == cached && e->sent)
            e->cached = NULL;
        else if (e->cached == cached)
            td_worker_request_remove(b, e);
    }
    td_cached_model_fail_readers(b, cached, TANDEM_ERROR_ARG, "the model was destroyed");
    if (!cached->evicted)
        b->model_bytes -= cached->bytes;
    end_number(b, cached->number, true);
    td_fd_close(&cached->fd);
    free(cached);
}

/* What its users are said to have. */
void td_cached_model_count(td_broker *b, const td_cached_model *cached, bool loaded)
{
    for (td_client *c = b->clients; c; c = c->next)
        for (td_shared *s = c->shared; s; s = s->next)
            if (s->cached == cached && s->kind == TD_WIRE_KIND_MODEL)
                c->model_bytes += loaded ? cached->bytes : -cached->bytes;
    b->model_bytes += loaded ? cached->bytes : -cached->bytes;
}

static bool is_idle(const td_broker *b, const td_cached_model *cached)
{
    for (const td_client *c = b->clients; c; c = c->next)
        for (const td_shared *s = c->shared; s; s = s->next)
            if (s->cached == cached && (s->uses || s->kind == TD_WIRE_KIND_INSTANCE))
                return false;
    for (const td_worker_request *e = b->worker_requests; e; e = e->next)
        if (e->cached == cached || (e->shared && e->shared->cached == cached) || e->message.number == cached->number)
            return false;
    return cached->loaded;
}

static void evict(td_broker *b, td_cached_model *cached)
{
    td_say(TD_LOG_INFO, "a model of %" PRIu64 " bytes that no job reads makes room for another", cached->bytes);
    end_number(b, cached->number, true);
    cached->number = 0;
    cached->loaded = false;
    cached->evicted = true;
    td_cached_model_count(b, cached, false);
}

bool td_model_cache_make_room(td_broker *b, uint64_t bytes, const td_cached_model *but)
{
    while (bytes <= b->config.model_bytes) {
        td_cached_model *oldest = NULL;

        if (b->model_bytes <= b->config.model_bytes && bytes <= b->config.model_bytes - b->model_bytes)
            return true;
        for (td_cached_model *cached = b->model_cache; cached; cached = cached->next)
            if (cached != but && !cached->evicted && (!oldest || cached->used_ns < oldest->used_ns) && is_idle(b, cached))
                oldest = cached;
        if (!oldest)
            break;
        evict(b, oldest);
    }
    return false;
}

bool td_cached_model_send(td_broker *b, td_cached_model *cached)
{
    td_worker_request *request = cached->number ? td_worker_request_add(b, TD_WORKER_MODEL, cached->number, false) : NULL;

    if (!request)
        return false;
    request->aside = true;
    request->session = cached->session;
    request->cached = cached;
    request->message.network.language = cached->language;
    return true;
}

tandem_status td_cached_model_load(td_broker *b, td_cached_model *cached, const td_client *asks)
{
    if (!td_model_cache_make_room(b, cached->bytes, cached))
        return TANDEM_ERROR_NOMEM;
    cached->session = asks->session;
    cached->number = td_number_take(b);
    if (!td_cached_model_send(b, cached)) {
        b->numbers[cached->number] = 0;
        cached->number = 0;
        return TANDEM_ERROR_NOMEM;
    }
    cached->evicted = false;
    td_cached_model_count(b, cached, true);
    td_worker_requests_send(b);
    return TANDEM_OK;
}

const char *td_shared_is_missing(const td_shared *shared)
{
    if (!shared || shared->closing)
        return "was destroyed";
    return shared->pending ? "is not made yet" : NULL;
}

tandem_status td_mem_is_usable(td_broker *b, const td_client *c, const td_shared *mem, bool written, char *why,
                               size_t why_bytes)
{
    const char *missing = td_shared_is_missing(mem);

    if (missing)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%s", missing);
    if (mem->cached && written)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "belongs to a model");
    if (mem->status != TANDEM_OK)
        return td_fail(why, why_bytes, mem->status, "the new worker could not take");
    if (mem->cached && mem->cached->evicted && td_cached_model_load(b, mem->cached, c) != TANDEM_OK)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM,
                       "is a model's of %" PRIu64 " bytes that made room for others, which now have %" PRIu64 " of %" PRIu64,
                       mem->cached->bytes, b->model_bytes, b->config.model_bytes);
    return TANDEM_OK;
}

bool td_model_cache_evict_idle(td_broker *b, const td_cached_model *but)
{
    bool some = false;

    for (td_cached_model *cached = b->model_cache; cached; cached = cached->next)
        if (cached != but && !cached->evicted && is_idle(b, cached)) {
            evict(b, cached);
            some = true;
        }
    return some;
}

td_ids *td_shared_ids(td_client *c, td_wire_kind kind)
{
    return kind == TD_WIRE_KIND_MEM        ? &c->mems
           : kind == TD_WIRE_KIND_TIMELINE ? &c->timelines
           : kind == TD_WIRE_KIND_MODEL    ? &c->models
                                           : &c->instances;
}

static td_shared *add_nameless(td_client *c, td_wire_kind kind)
{
    td_shared *made = calloc(1, sizeof *made);

    if (!made)
        return NULL;
    made->client = c;
    made->kind = kind;
    made->fd = -1;
    made->next = c->shared;
    c->shared = made;
    return made;
}

td_shared *td_shared_add(td_client *c, td_wire_kind kind)
{
    td_shared *made = add_nameless(c, kind);

    if (!made)
        return NULL;
    made->id = td_ids_add(td_shared_ids(c, kind), made);
    if (made->id)
        return made;
    c->shared = made->next;
    free(made);
    return NULL;
}

static td_allocation *find_allocation(const td_client *c, int fd, uint64_t bytes)
{
    td_allocation *a = c->allocations;
    td_fd_identity is;

    if (fd < 0 || !td_fd_identify(fd, &is))
        return NULL;
    while (a && (a->device != is.device || a->inode != is.number || a->bytes != bytes))
        a = a->next;
    return a;
}

uint64_t td_mem_adds(const td_client *c, int fd, uint64_t bytes, uint64_t allocation_bytes)
{
    const td_allocation *a = find_allocation(c, fd, allocation_bytes);
    const uint64_t room = a ? td_room_in(a->bytes, a->mem_bytes) : 0;

    if (!a)
        return bytes > allocation_bytes ? bytes : allocation_bytes;
    return bytes > room ? bytes - room : 0;
}

/* What a new mem lies in. False: no host memory. */
static bool join_allocation(td_shared *mem)
{
    td_client *c = mem->client;
    td_fd_identity is;

    if (mem->fd < 0 || !td_fd_identify(mem->fd, &is))
        return mem->fd < 0;
    mem->allocation = find_allocation(c, mem->fd, mem->allocation_bytes);
    if (!mem->allocation) {
        mem->allocation = calloc(1, sizeof *mem->allocation);
        if (!mem->allocation)
            return false;
        *mem->allocation = (td_allocation){
            .device = is.device, .inode = is.number, .bytes = mem->allocation_bytes, .next = c->allocations};
        c->allocations = mem->allocation;
    }
    mem->allocation->mems++;
    return true;
}

static void leave_allocation(td_shared *mem)
{
    td_allocation **at = &mem->client->allocations, *a = mem->allocation;

    mem->allocation = NULL;
    if (!a || --a->mems)
        return;
    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    free(a);
}

/* Of a mem that comes (1) or goes (-1). */
static void count_mem(td_broker *b, td_shared *mem, int sign)
{
    td_allocation *a = mem->allocation;
    const uint64_t before = a && (sign < 0 || a->mems > 1) ? td_allocation_counts(a) : 0;
    uint64_t after = 0;

    if (a) {
        a->mem_bytes += sign > 0 ? mem->bytes : -mem->bytes;
        after = sign < 0 && a->mems == 1 ? 0 : td_allocation_counts(a);
    } else {
        after = sign > 0 ? mem->bytes : -mem->bytes;
    }
    mem->client->mem_bytes += after - before;
    b->mem_bytes += after - before;
    if (sign < 0)
        leave_allocation(mem);
}

void td_shared_count(td_broker *b, td_shared *shared, uint64_t bytes)
{
    shared->client->mem_bytes += bytes - shared->bytes;
    b->mem_bytes += bytes - shared->bytes;
    shared->bytes = bytes;
}

/* What an instance was still to be prepared for. */
static void end_prepares(td_broker *b, const td_shared *instance)
{
    for (td_worker_request *e = b->worker_requests, *next; e; e = next) {
        const uint32_t serial = e->serial;

        next = e->next;
        if (e->sent || e->message.kind != TD_WORKER_PREPARE || e->client != instance->client || e->object != instance->id)
            continue;
        td_worker_request_remove(b, e);
        td_client_error(b, instance->client, serial, 0, TANDEM_ERROR_ARG, "the instance was destroyed");
    }
}

void td_shared_end(td_broker *b, td_shared *s)
{
    td_client *c = s->client;
    td_shared **at = &c->shared;
    const bool counted = s->kind == TD_WIRE_KIND_MEM && !s->cached;

    if (s->model_mem)
        td_shared_end(b, s->model_mem);
    if (s->kind == TD_WIRE_KIND_MEM && s->cached) { /* its model's, which counts them */
        s->cached = NULL;
        for (td_shared *model = c->shared; model; model = model->next)
            if (model->model_mem == s)
                model->model_mem = NULL;
    }
    if (s->kind == TD_WIRE_KIND_INSTANCE) {
        end_prepares(b, s);
        td_shared_count(b, s, 0);
    }
    td_ids_remove(td_shared_ids(c, s->kind), s->id);
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    for (td_worker_request *e = b->worker_requests, *next; e; e = next) {
        next = e->next;
        if (e->shared == s && e->sent)
            e->shared = NULL;
        else if (e->shared == s) {
            td_worker_request_remove(b, e);
            b->numbers[s->number] = 0;
            s->number = 0;
        }
    }
    end_number(b, s->number, false);
    if (counted)
        count_mem(b, s, -1);
    if (s->cached) {
        if (!s->cached->evicted && s->kind == TD_WIRE_KIND_MODEL)
            c->model_bytes -= s->cached->bytes;
        td_cached_model_drop(b, s->cached);
    }
    td_shared_timeline_close(&s->timeline);
    td_fd_close(&s->fd);
    free(s);
    td_worker_requests_send(b);
}

bool td_mem_bring(td_broker *b, td_shared *mem)
{
    const bool joined = join_allocation(mem);
    td_worker_request *request;

    count_mem(b, mem, 1);
    if (!joined)
        return false;
    mem->number = td_number_take(b);
    request = mem->number ? td_worker_request_add(b, TD_WORKER_MEM, mem->number, false) : NULL;
    if (!request) {
        b->numbers[mem->number] = 0;
        mem->number = 0;
        return false;
    }
    td_worker_request_describe(request, mem);
    return true;
}

/* Temporary outputs. */

bool td_temp_output_make(td_broker *b, td_client *c, uint64_t bytes)
{
    if (!td_client_fits(b, c, bytes))
        return false;
    c->temp_output = add_nameless(c, TD_WIRE_KIND_MEM);
    if (!c->temp_output)
        return false;
    c->temp_output_ns = td_now_ns();
    c->temp_output->bytes = bytes;
    if (!td_mem_bring(b, c->temp_output)) {
        td_temp_output_end(b, c);
        return false;
    }
    td_worker_requests_send(b);
    return true;
}

void td_temp_output_end(td_broker *b, td_client *c)
{
    td_shared *temp_output = c->temp_output;

    c->temp_output = NULL;
    td_shared_end(b, temp_output);
}

bool td_temp_outputs_end(td_broker *b, uint64_t idle_ns)
{
    const uint64_t now = td_now_ns();
    bool some = false;

    for (td_client *c = b->clients; c; c = c->next)
        if (c->temp_output && c->temp_output->imported && !c->temp_output->uses && now - c->temp_output_ns >= idle_ns) {
            td_temp_output_end(b, c);
            some = true;
        }
    return some;
}
