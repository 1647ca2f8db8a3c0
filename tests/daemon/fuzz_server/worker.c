/* The worker and the launcher, whom the input plays: what they are told is looked at, and answered.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interop/os/descriptor.h"
#include "interop/os/memory.h"
#include "tests/daemon/fuzz_server/world.h"

enum { STATE_BYTES = 4096 };

/* What the launcher says of it then: as a rule the truth. */
static void say_end(uint8_t how)
{
    static td_launcher_message m;

    m = (td_launcher_message){.kind = TD_LAUNCHER_ENDED, .pid = how & 1 ? 3 : 2, .status = how & 2 ? SIGSEGV : SIGKILL};
    if (w.launcher >= 0)
        td_pass(w.launcher, &m, sizeof m, NULL, 0);
}

/* Not what the neighbour cannot be without: it is ended with that. */
static uint32_t pick_request(void)
{
    const uint32_t serial = take() % 64;

    for (const td_worker_request *e = w.b.worker_requests; e; e = e->next)
        if (e->message.serial == serial && e->message.kind == TD_WORKER_BEGIN_SESSION)
            return 0;
    return serial;
}

void lose_worker(void)
{
    if (w.worker >= 0 && w.queue) { /* it was at something, or says so */
        w.queue->request = pick_request();
        w.queue->load = pick_request();
        say_end(take());
    }
    td_fd_close(&w.worker);
    if (w.queue)
        munmap(w.queue, TD_WORKER_QUEUE_BYTES);
    w.queue = NULL;
    memset(w.items, 0, TD_MAX_NUMBERS * sizeof *w.items);
    w.worker_sessions = 0;
}

static void tell_with(const td_worker_message *message, int fd)
{
    if (w.worker >= 0)
        td_pass(w.worker, message, sizeof *message, &fd, fd >= 0);
}

void tell(const td_worker_message *message)
{
    tell_with(message, -1);
}

td_wire_identity identity_of(bool is_gpu)
{
    td_wire_identity made = identity;

    if (is_gpu) {
        memset(made.device_uuid, 7, sizeof made.device_uuid);
        made.driver_id = 4;
        made.driver_version = 580u << 22;
    }
    return made;
}

static tandem_info info(void)
{
    return (tandem_info){.struct_bytes = sizeof(tandem_info),
                         .backend = w.is_gpu ? TANDEM_BACKEND_CUDA : TANDEM_BACKEND_CPU,
                         .rung = w.is_gpu ? TANDEM_RUNG_TIMELINE : TANDEM_RUNG_CPU,
                         .cpu_threads = 1,
                         .device = "none",
                         .rung_reason = "this is a test",
                         .isa = "c"};
}

static void say_hello(tandem_status status)
{
    static td_worker_message t;

    t = (td_worker_message){.kind = TD_WORKER_HELLO, .status = status, .info = info(), .identity = identity_of(w.is_gpu)};
    tell(&t);
}

static bool run_uses(const td_run *run, uint64_t number)
{
    bool uses = run->instance == number;

    for (uint32_t i = 0; i < run->binding_count; i++)
        uses = uses || run->bindings[i].mem == number;
    return uses;
}

static bool uses(const td_slot *slot, uint64_t number)
{
    const tandem_job *job = &slot->job;
    const tandem_attention *op = &job->op.attention;

    if (job->operation == TANDEM_OPERATION_RUN)
        return run_uses(&w.queue->runs[slot - w.queue->slots], number) || job->wait.timeline == number || job->signal.timeline == number;
    return op->q.mem == number || op->k.mem == number || op->v.mem == number || op->o.mem == number ||
           op->lse.mem == number || job->wait.timeline == number || job->signal.timeline == number;
}

static void look_at_shared(td_worker_message *t, known *it, int fd)
{
    char why[TD_TEXT_BYTES] = "";
    const off_t length = t->opaque ? (off_t)t->allocation_bytes : lseek(fd, 0, SEEK_END);

    need(!it->imported, "a mem or a timeline under a number that is taken");
    need(!t->temp_output || (t->kind == TD_WORKER_MEM && t->bytes && fd < 0), "a temporary output that is something else");
    need(t->temp_output  ? !t->opaque
         : t->opaque ? w.is_gpu && td_opaque_check(fd, why, sizeof why) == TANDEM_OK
                   : t->kind == TD_WORKER_MEM && td_memfd_check(fd, (uint64_t)length, false, why, sizeof why) == TANDEM_OK,
         "a descriptor of another kind than was said");
    need(t->kind == TD_WORKER_TIMELINE || t->temp_output ||
             (t->bytes && t->bytes <= (uint64_t)length && t->offset_bytes <= (uint64_t)length - t->bytes &&
              (t->opaque || t->offset_bytes % TD_WIRE_PAGE_BYTES == 0)),
         "a mem beyond its allocation");
    if (w.is_gpu && !(w.worker_sessions >> t->worker_session & 1))
        t->status = TANDEM_ERROR_NOMEM;
    *it = (known){.imported = t->status == TANDEM_OK,
                  .is_timeline = t->kind == TD_WORKER_TIMELINE,
                  .is_temp_output = t->temp_output,
                  .worker_session = t->worker_session,
                  .bytes = t->bytes};
}

static bool is_mem(uint64_t number, uint32_t session)
{
    const known *it = &w.items[number % TD_MAX_NUMBERS];

    return number && number < TD_MAX_NUMBERS && it->imported && !it->is_timeline && !it->is_instance &&
           !it->is_temp_output && (it->is_model || it->worker_session == session);
}

/* Ranges within what instances keep and the mem, of one client, and no run of that instance meanwhile. */
static void look_at_state(const td_worker_message *t, const known *instance)
{
    const td_wire_instance_state *m = &t->network.state;
    const known *mem = &w.items[t->network.state_mem % TD_MAX_NUMBERS];

    need(instance->imported && instance->is_instance, "the state of what is no instance");
    need(is_mem(t->network.state_mem, instance->worker_session) && !mem->is_model, "state to or from what is not its client's");
    need(m->writes <= 1 && m->range_count && m->range_count <= TD_WIRE_RANGES, "ranges that there cannot be");
    need(td_wire_state_bytes(m) <= TD_WIRE_STATE_BYTES && m->offset_bytes <= mem->bytes &&
             td_wire_state_bytes(m) <= mem->bytes - m->offset_bytes,
         "state that reaches beyond its mem");
    for (uint32_t i = 0; i < m->range_count; i++)
        need(m->ranges[i].offset_bytes <= STATE_BYTES && m->ranges[i].bytes <= STATE_BYTES - m->ranges[i].offset_bytes,
             "a range beyond what is kept");
    for (int i = 0; i < TD_WORKER_SLOTS; i++)
        need(atomic_load(&w.queue->slots[i].state) != TD_SLOT_READY ||
                 w.queue->slots[i].job.operation != TANDEM_OPERATION_RUN || w.queue->runs[i].instance != t->number,
             "state that is copied while a run is there");
}

bool answer_request(uint8_t how)
{
    static td_worker_message t;
    int came[2], with = -1;
    known *it;

    if (w.worker < 0 || td_fetch(w.worker, &t, sizeof t, came) != TANDEM_OK)
        return false;
    need(t.number < TD_MAX_NUMBERS, "a request about a number that cannot be");
    it = &w.items[t.number];
    t.status = how & 1 ? TANDEM_ERROR_NOMEM : TANDEM_OK;
    switch ((td_worker_message_kind)t.kind) {
    case TD_WORKER_MEM:
    case TD_WORKER_TIMELINE:
        look_at_shared(&t, it, came[0]);
        break;
    case TD_WORKER_MODEL:
        need(!it->imported, "a model under a number that is taken");
        need(came[0] >= 0, "a model without its file");
        need(t.network.language.cache <= TANDEM_CACHE_F32 && t.network.language.hidden <= 1 &&
                 t.network.language.tops <= TD_WIRE_TOPS,
             "a model made as none may be");
        *it = (known){.imported = t.status == TANDEM_OK, .is_model = true};
        t.network.state_bytes = STATE_BYTES;
        break;
    case TD_WORKER_GRAPH:
        need(it->imported && it->is_model, "the graph of what is not there");
        t.bytes = BUFFER_BYTES;
        with = t.status == TANDEM_OK && !(how & 8) ? fds[FD_BUFFER] : -1;
        break;
    case TD_WORKER_INSTANCE:
        need(!it->imported, "an instance under a number that is taken");
        need(t.network.model < TD_MAX_NUMBERS && w.items[t.network.model].imported && w.items[t.network.model].is_model,
             "an instance of what is no model");
        if (w.is_gpu && !(w.worker_sessions >> t.worker_session & 1))
            t.status = TANDEM_ERROR_NOMEM;
        *it = (known){.imported = t.status == TANDEM_OK, .is_instance = true, .worker_session = t.worker_session};
        break;
    case TD_WORKER_LAYER:
        need(it->imported && it->is_instance, "a layer of what is no instance");
        need(t.network.number_count <= TD_WIRE_NUMBERS && t.network.index < TD_WIRE_NODES, "a layer that there is not");
        memset(&t.network.layer, how, sizeof t.network.layer);
        break;
    case TD_WORKER_STATE:
        look_at_state(&t, it);
        break;
    case TD_WORKER_PREPARE:
        need(it->imported && it->is_instance, "what is no instance, to be prepared");
        need(t.network.number_count <= TD_WIRE_NUMBERS, "more numbers than there may be");
        t.network.bytes = t.network.most_bytes < STATE_BYTES ? t.network.most_bytes : STATE_BYTES;
        t.network.uniform_bytes = how & 8 ? UINT64_MAX : 12;
        t.network.mflop = 1;
        break;
    case TD_WORKER_END:
        for (int i = 0; i < TD_WORKER_SLOTS; i++)
            need(atomic_load(&w.queue->slots[i].state) != TD_SLOT_READY || !uses(&w.queue->slots[i], t.number),
                 "the end of what a job uses");
        it->imported = false;
        t.status = TANDEM_OK; /* or it dies */
        break;
    case TD_WORKER_BEGIN_SESSION:
        need(w.is_gpu && t.worker_session && t.worker_session < TD_MAX_SESSIONS &&
                 !(w.worker_sessions >> t.worker_session & 1),
             "a session that there is, or cannot be");
        w.worker_sessions |= (uint64_t)(t.status == TANDEM_OK) << t.worker_session;
        break;
    case TD_WORKER_END_SESSION:
        need(t.worker_session && t.worker_session < TD_MAX_SESSIONS, "the end of a session that cannot be");
        for (int i = 0; i < TD_WORKER_SLOTS; i++)
            need(atomic_load(&w.queue->slots[i].state) != TD_SLOT_READY ||
                     w.queue->slots[i].worker_session != t.worker_session,
                 "the end of a session that has jobs");
        for (uint32_t i = 0; i < TD_MAX_NUMBERS; i++)
            w.items[i].imported = w.items[i].imported && w.items[i].worker_session != t.worker_session;
        w.worker_sessions &= ~(1ull << t.worker_session);
        t.status = TANDEM_OK;
        break;
    case TD_WORKER_TENSOR:
        need(it->imported, "a tensor of what is not there");
        need(memchr(t.text, 0, sizeof t.text), "a tensor's name without end");
        if (t.status == TANDEM_OK)
            it->bytes = t.bytes = BUFFER_BYTES;
        t.view = (tandem_view){.dtype = TANDEM_DTYPE_F16, .stride_row = 64};
        for (int i = 0; i < 4; i++)
            t.shape[i] = i < 3 ? 1 : 64;
        break;
    case TD_WORKER_INFO:
        t.info = info();
        break;
    default:
        broken("a request of no kind");
    }
    td_fd_close(&came[0]);
    td_fd_close(&came[1]);
    if (how & 2)
        memset(t.text, 'x', sizeof t.text);
    if (how & 4)
        t.status = (int32_t)take_number(4);
    if (how & 4 && (t.kind == TD_WORKER_MEM || t.kind == TD_WORKER_TIMELINE || t.kind == TD_WORKER_MODEL ||
                    t.kind == TD_WORKER_INSTANCE))
        it->imported = t.status == TANDEM_OK; /* the broker does with its status what it does with ours */
    if (how & 16)
        t.serial++;
    if (how & 16) { /* an answer to nothing: the request stays open for good, which only another worker mends */
        tell(&t);
        lose_worker();
        return true;
    }
    tell_with(&t, with);
    return true;
}

/* Whether a view lies in a mem of its client's, or is not there and need not be. */
static bool is_within(const td_operation_layout *layout, const tandem_operands *op, uint32_t view, uint32_t session)
{
    const tandem_view *v = td_view_in(layout, op, view);
    uint32_t shape[4];
    uint64_t end;

    if (!v->mem)
        return layout->views[view].optional;
    layout->shape(op, view, shape);
    return v->mem < TD_MAX_NUMBERS && w.items[v->mem].imported && !w.items[v->mem].is_timeline &&
           (w.items[v->mem].is_model || w.items[v->mem].worker_session == session) && td_view_end_bytes(v, shape, &end) &&
           end <= w.items[v->mem].bytes;
}

static void look_at_run(const td_slot *slot)
{
    const td_run *run = &w.queue->runs[slot - w.queue->slots];
    const known *instance = &w.items[run->instance % TD_MAX_NUMBERS];

    need(run->instance < TD_MAX_NUMBERS && instance->imported && instance->is_instance &&
             instance->worker_session == slot->worker_session,
         "a run of what is not its client's");
    need(run->binding_count <= TD_WIRE_BINDINGS && run->number_count <= TD_WIRE_NUMBERS &&
             run->uniform_bytes <= TD_WIRE_UNIFORM_BYTES,
         "a run with more than there may be");
    for (uint32_t i = 0; i < run->binding_count; i++)
        need(is_mem(run->bindings[i].mem, slot->worker_session), "a run on what is not its client's");
}

static bool is_point(tandem_point point, uint32_t session)
{
    const known *it = &w.items[point.timeline % TD_MAX_NUMBERS];

    return !point.timeline || (point.timeline < TD_MAX_NUMBERS && it->imported && it->is_timeline &&
                               it->worker_session == session);
}

void look_at_queue(void)
{
    for (int i = 0; w.queue && i < TD_WORKER_SLOTS; i++) {
        const td_slot *slot = &w.queue->slots[i];
        const td_operation *operation = td_operation_find(slot->job.operation);
        const tandem_operands *op = &slot->job.op;

        if (atomic_load(&slot->state) != TD_SLOT_READY)
            continue;
        need(operation != NULL || slot->job.operation == TANDEM_OPERATION_RUN, "a job of no operation");
        if (!operation)
            look_at_run(slot);
        for (uint32_t v = 0; operation && v < operation->layout.view_count; v++) {
            const uint64_t mem = td_view_in(&operation->layout, op, v)->mem;
            const bool written = operation->layout.views[v].written;

            /* What is in a temporary output is no input, and goes to no other. */
            need(!mem || w.items[mem % TD_MAX_NUMBERS].is_temp_output ==
                             (operation->claims ? !written : written && slot->deadline_ns && slot->parts > 1),
                 "a temporary output in the wrong place");
            need(is_within(&operation->layout, op, v, slot->worker_session), "a job that reaches beyond what it names");
            for (int o = 0; operation->claims && !written && mem && o < TD_WORKER_SLOTS; o++) {
                const td_slot *other = &w.queue->slots[o];
                const td_operation *of = td_operation_find(other->job.operation);

                if (o == i || atomic_load(&other->state) != TD_SLOT_READY)
                    continue;
                for (uint32_t u = 0; of && u < of->layout.view_count; u++)
                    need(!of->layout.views[u].written || td_view_in(&of->layout, &other->job.op, u)->mem != mem,
                         "a temporary output that is written still");
            }
        }
        need(is_point(slot->job.wait, slot->worker_session) && is_point(slot->job.signal, slot->worker_session),
             "a job with points that are not its client's");
    }
}

/* What ends for want of memory is tried again. */
static void note_piece(const td_work *work, uint32_t state, int32_t status)
{
    uint32_t free = 0;

    if (!work || work->slices < 2 || state == TANDEM_JOB_DONE || status == TANDEM_ERROR_NOMEM)
        return;
    while (free < TD_WORKER_SLOTS && w.spoiled[free].session)
        free++;
    if (free < TD_WORKER_SLOTS)
        w.spoiled[free] = (spoiled){work->client->session, work->ticket};
}

bool end_job(uint32_t state, int32_t status, uint64_t ns, bool with_text)
{
    td_slot *oldest = NULL;

    for (int i = 0; w.queue && i < TD_WORKER_SLOTS; i++)
        if (atomic_load(&w.queue->slots[i].state) == TD_SLOT_READY &&
            (!oldest || w.queue->slots[i].sequence < oldest->sequence))
            oldest = &w.queue->slots[i];
    if (!oldest)
        return false;
    note_piece(w.b.slot_works[oldest - w.queue->slots], state, status);
    oldest->end_state = state;
    oldest->status = status;
    oldest->precision = state;
    oldest->begin_ns = now_ns;
    oldest->end_ns = now_ns + ns;
    oldest->submitted = with_text;
    memset(oldest->text, with_text ? 'y' : 0, sizeof oldest->text);
    atomic_store(&oldest->state, TD_SLOT_ENDED);
    return true;
}

bool act_launcher(uint8_t how)
{
    static td_launcher_message m;
    int came[2], fd = -1;

    if (td_fetch(w.launcher, &m, sizeof m, came) != TANDEM_OK)
        return false;
    switch ((td_launcher_message_kind)m.kind) {
    case TD_LAUNCHER_SPAWN:
        need(came[0] >= 0 && came[1] >= 0, "a worker without socket or queue");
        lose_worker();
        m.kind = TD_LAUNCHER_SPAWNED;
        m.status = how & 1 ? TANDEM_ERROR_NOMEM : TANDEM_OK;
        m.pid = how & 1 ? -1 : 2;
        td_pass(w.launcher, &m, sizeof m, NULL, 0);
        if (how & 1)
            break;
        w.worker = came[0];
        came[0] = -1;
        fcntl(w.worker, F_SETFL, fcntl(w.worker, F_GETFL) | O_NONBLOCK);
        w.queue = mmap(NULL, TD_WORKER_QUEUE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, came[1], 0);
        need(w.queue != MAP_FAILED, "a queue that cannot be mapped");
        say_hello(how & 2 ? TANDEM_ERROR_DEVICE : TANDEM_OK);
        if (how & 2) /* it ends then */
            lose_worker();
        break;
    case TD_LAUNCHER_KILL:
        lose_worker();
        break;
    case TD_LAUNCHER_OPEN:
        need(memchr(m.text, 0, sizeof m.text), "a path without end");
        m.kind = TD_LAUNCHER_OPENED;
        m.status = how & 1 ? TANDEM_ERROR_IO : TANDEM_OK;
        fd = how & 2 ? fds[FD_HOLES] : fds[FD_BUFFER];
        td_pass(w.launcher, &m, sizeof m, &fd, !(how & 5));
        break;
    case TD_LAUNCHER_CONFIG:
        m.status = how & 1 ? TANDEM_ERROR_ARG : TANDEM_OK;
        m.config = td_config_default();
        m.config.clients = how & 2 ? 1 : 32;
        m.config.client_bytes = m.config.total_bytes = how & 4 ? 4096 : 60 << 10;
        m.config.model_bytes = how & 8 ? 0 : 1 << 20;
        m.config.model_dir_count = how & 16 ? 0 : 1;
        m.config.mems = how & 64 ? 2 : 4; /* clients that are there keep slots for as many as there were */
        m.config.timelines = how & 32 ? 1 : 4;
        m.config.models = 2;
        td_pass(w.launcher, &m, sizeof m, NULL, 0);
        break;
    default:
        broken("the launcher is asked for nothing");
    }
    td_fd_close(&came[0]);
    td_fd_close(&came[1]);
    return true;
}
