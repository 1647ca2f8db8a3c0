/* Clients: what they say, as the input has it, what they read, and the broker's turns in between.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "interop/os/descriptor.h"
#include "tests/daemon/fuzz_server/world.h"
#include "tests/interop/wire_util.h"

void forget(peer *p)
{
    td_fd_close(&p->fd);
    td_ring_close(&p->ring);
    *p = (peer){.fd = -1};
}

void connect_peer(peer *p)
{
    forget(p);
    p->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    need(p->fd >= 0, "no socket for a peer");
    p->rules = td_wire_rules_new(td_operation_of_clients);
    if (connect(p->fd, (const struct sockaddr *)&at, at_bytes))
        forget(p);
}

static void post(const peer *p, const void *bytes, size_t length, const int *with, uint32_t count)
{
    enum { MOST = 4 };
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MOST * sizeof(int))];
    } control = {0};
    struct iovec part = {(void *)(uintptr_t)bytes, length};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};

    if (count) {
        struct cmsghdr *c;

        m.msg_control = control.bytes;
        m.msg_controllen = CMSG_SPACE(count * sizeof(int));
        c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(c), with, count * sizeof(int));
    }
    (void)!sendmsg(p->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void say_message(peer *p, const td_wire_message *m, int fd)
{
    post(p, m, m->header.bytes, &fd, m->header.fds ? 1 : 0);
    if (m->header.type != TD_WIRE_HELLO || !p->greeted)
        td_wire_took(&p->rules, TD_WIRE_TO_DAEMON, m);
    p->greeted = p->greeted || m->header.type == TD_WIRE_HELLO;
}

td_wire_message hello(uint32_t share)
{
    td_wire_message m = td_wire_new(TD_WIRE_HELLO, 1);

    m.hello.features = TD_WIRE_FEATURES;
    m.hello.identity = identity_of(w.is_gpu && share == TD_WIRE_SHARE_OPAQUE);
    m.hello.share = share;
    m.hello.timing = 1;
    m.hello.frames_in_flight = 24;
    m.hello.wait_bound_ns = 100 * MS;
    td_wire_text(m.hello.name, sizeof m.hello.name, "fuzz");
    return m;
}

static void remember(peer *p, uint64_t id)
{
    const uint32_t kind = td_wire_id_kind(id);

    if (kind < 1 || kind >= TD_WIRE_KINDS)
        return;
    memmove(&p->ids[kind][1], &p->ids[kind][0], (IDS - 1) * sizeof p->ids[kind][0]);
    p->ids[kind][0] = id;
}

bool read_all(peer *p, td_wire_message *last)
{
    while (p->fd >= 0) {
        td_conn conn = {.fd = p->fd};
        td_wire_message m;
        char why[TD_TEXT_BYTES] = "";
        int came[TD_WIRE_MAX_FDS];
        const tandem_status status = td_conn_recv(&conn, &p->rules, TD_WIRE_TO_CLIENT, &m, came, why, sizeof why);

        if (status == TANDEM_ERROR_BUSY)
            return true;
        if (status == TANDEM_ERROR_PROTOCOL)
            broken(why);
        if (status != TANDEM_OK) {
            forget(p);
            return false;
        }
        if (m.header.type == TD_WIRE_WELCOME) {
            td_wire_rules_welcome(&p->rules, &m.welcome);
            need(td_ring_open(&p->ring, &m.welcome.sizes, came[0], why, sizeof why) == TANDEM_OK, why);
        }
        td_fd_close(&came[0]);
        if (m.header.type == TD_WIRE_DONE && m.object.id)
            remember(p, m.object.id);
        if (last)
            *last = m;
    }
    return false;
}

/* Beside frames' jobs a GPU has a piece of the background's each 2 ms at most. */
static void look_at_background(void)
{
    uint64_t background = 0, frame = UINT64_MAX;

    for (int i = 0; i < TD_WORKER_SLOTS; i++) {
        const td_work *work = w.b.worker_queue ? w.b.slot_works[i] : NULL;
        const uint64_t sequence = work ? w.b.worker_queue->slots[i].sequence : 0;

        if (work && work->client->job_class == TANDEM_CLASS_FRAME)
            frame = sequence < frame ? sequence : frame;
        else if (sequence > background)
            background = sequence;
    }
    if (frame == UINT64_MAX)
        w.frames_ns = 0;
    if (background > w.background_last) {
        need(!w.is_gpu || frame > background || (w.frames_ns && now_ns - w.frames_ns >= 2 * MS),
             "a piece of the background's that does not stand back");
        w.background_last = background;
        w.frames_ns = 0;
    }
    if (frame < UINT64_MAX && !w.frames_ns)
        w.frames_ns = now_ns;
}

/* Whatever its last pieces end in. */
static void look_at_spoiled(void)
{
    for (spoiled *job = w.spoiled; job < w.spoiled + TD_WORKER_SLOTS; job++) {
        td_wire_report r = {.state = TANDEM_JOB_PENDING};
        char ignored[TD_TEXT_BYTES];
        const td_client *of = w.b.clients;

        while (of && of->session != job->session)
            of = of->next;
        if (job->session && of && of->state == TD_CLIENT_READY && of->ring.shared && !w.scribbled &&
            td_ring_read_report(&of->ring, job->ticket, &r, ignored, sizeof ignored) == TANDEM_OK)
            need(r.state != TANDEM_JOB_DONE, "a job that is done although a piece of it is not");
        if (!of || r.state > TANDEM_JOB_RUNNING)
            job->session = 0;
    }
}

/* The world goes round. */

void go(void)
{
    uint64_t next_ns;
    int result;

    if (w.over)
        return;
    now_ns += 10000;
    result = td_broker_turn(&w.b, 0);
    if (result >= 0) {
        w.over = true;
        return;
    }
    for (int i = 0; i < 8 && td_queue_turn(&w.b, &next_ns); i++) {
    }
    need(next_ns > now_ns || w.over, "a turn that wants to be at once, and does nothing");
    look_at_queue();
    look_at_background();
    look_at_spoiled();
    read_all(&w.peers[0], NULL);
}

void go_honestly(void)
{
    for (int i = 0, idle = 0; i < 64 && idle < 3 && !w.over; i++) {
        bool some;

        go();
        some = act_launcher(0);
        some = answer_request(0) || some;
        some = end_job(TANDEM_JOB_DONE, TANDEM_OK, MS, false) || some;
        idle = some ? 0 : idle + 1;
    }
}

peer *take_peer(void)
{
    return &w.peers[1 + take() % (PEERS - 1)];
}

static uint64_t pick(const peer *p, td_wire_kind kind)
{
    const uint8_t which = take();
    const peer *of = which & 128 ? &w.peers[which % PEERS] : p;

    return of->ids[kind][which % IDS];
}

static int take_fd(const peer *p)
{
    const uint8_t kind = take() % (FD_KINDS + 1);

    return kind == FD_KINDS ? p->fd : fds[kind];
}

static tandem_view view_in(uint64_t mem, uint64_t offset)
{
    return (tandem_view){.mem = mem, .offset_bytes = offset, .dtype = TANDEM_DTYPE_F16, .stride_row = 64};
}

void make_job(const peer *p, td_wire_message *m)
{
    tandem_attention *op = &m->job.job.op.attention;
    const uint8_t how = take();

    *m = wire_sample(TD_WIRE_JOB);
    m->job.ticket = p->rules.next_ticket;
    m->job.submit_ns = now_ns;
    m->job.job.deadline_ns = !(how & 1) ? 0 : how & 32 ? 2000 * MS : 2 * MS;
    m->job.job.wait =
        how & 2 ? (tandem_point){pick(p, TD_WIRE_KIND_TIMELINE), w.counter_value + (how >> 6)} : (tandem_point){0};
    m->job.job.signal = how & 4 ? (tandem_point){pick(p, TD_WIRE_KIND_TIMELINE), ++w.counter_value} : (tandem_point){0};
    op->q = op->k = op->v = view_in(pick(p, TD_WIRE_KIND_MEM), 0);
    op->o = view_in(how & 8 ? pick(p, TD_WIRE_KIND_MEM) : op->q.mem, 0);
    op->lse = (tandem_view){0};
    op->batch = op->heads = op->kv_heads = 1;
    op->q_len = op->kv_len = 16;
    op->head_dim = 64;
    if (how & 16) { /* one that takes long: the same rows over and over, so as to be cut; o takes all of a mem */
        op->heads = op->kv_heads = 4;
        op->kv_len = 1 << 24;
        op->k.stride_row = op->v.stride_row = 0;
        op->o.stride_head = 16 * 64;
    }
}

/* Of one binding; its uniforms are as many as came before, or fit into it. */
static void make_run(const peer *p, td_wire_message *m)
{
    td_wire_run *run = &m->run;
    const uint8_t how = take();

    *m = wire_sample(TD_WIRE_RUN);
    run->ticket = p->rules.next_ticket;
    run->submit_ns = now_ns;
    run->deadline_ns = how & 1 ? 2 * MS : 0;
    run->wait = how & 2 ? (tandem_point){pick(p, TD_WIRE_KIND_TIMELINE), w.counter_value + (how >> 6)} : (tandem_point){0};
    run->signal = how & 4 ? (tandem_point){pick(p, TD_WIRE_KIND_TIMELINE), ++w.counter_value} : (tandem_point){0};
    run->instance = pick(p, TD_WIRE_KIND_INSTANCE);
    run->bindings[0].mem = run->bindings[1].mem = pick(p, TD_WIRE_KIND_MEM);
    if (p->rules.more_bytes)
        run->uniform_bytes = TD_WIRE_RUN_BYTES + p->rules.more_bytes;
}

static void make_uniforms(const peer *p, td_wire_message *m)
{
    m->uniforms.ticket = p->rules.next_ticket;
    m->uniforms.first = p->rules.more_bytes;
    m->uniforms.bytes = 1 + take_number(2) % TD_WIRE_MORE_BYTES;
    memset(m->uniforms.uniforms, 0, sizeof m->uniforms.uniforms);
}

void send_request(peer *p)
{
    const uint16_t type = wire_types[take() % WIRE_TYPES];
    td_wire_message m = type == TD_WIRE_HELLO ? hello(TD_WIRE_SHARE_HOST) : wire_sample(type);
    int fd = fds[FD_BUFFER];

    switch (type) {
    case TD_WIRE_MEM_CREATE: {
        const uint8_t how = take();

        m.mem_create.allocation_bytes = BUFFER_BYTES;
        m.mem_create.offset_bytes = how & 1 ? 4096 : 0;
        if (how & 2) {
            m.mem_create.kind = TD_WIRE_MEM_OPAQUE;
            m.mem_create.dedicated = how >> 2 & 1;
            fd = fds[FD_NULL]; /* a character device, as a driver's */
        }
        break;
    }
    case TD_WIRE_TIMELINE_CREATE: {
        const uint8_t how = take();

        m.timeline_create.signaller = how & 1;
        m.timeline_create.initial_value = 0;
        fd = fds[FD_COUNTER + take() % COUNTERS];
        if (how & 2) {
            m.timeline_create.kind = TD_WIRE_TIMELINE_OPAQUE;
            fd = fds[FD_EVENT];
        }
        break;
    }
    case TD_WIRE_MEM_DESTROY:
        m.object.id = pick(p, TD_WIRE_KIND_MEM);
        break;
    case TD_WIRE_TIMELINE_DESTROY:
        m.object.id = pick(p, TD_WIRE_KIND_TIMELINE);
        break;
    case TD_WIRE_MODEL_DESTROY:
    case TD_WIRE_MODEL_GRAPH:
        m.object.id = pick(p, TD_WIRE_KIND_MODEL);
        break;
    case TD_WIRE_MODEL_CREATE:
        m.model_create.language.sequences = take() & 3;
        break;
    case TD_WIRE_MODEL_TENSOR:
        m.model_tensor.model = pick(p, TD_WIRE_KIND_MODEL);
        break;
    case TD_WIRE_MODEL_INSTANCE:
        m.model_instance.model = pick(p, TD_WIRE_KIND_MODEL);
        break;
    case TD_WIRE_INSTANCE_CREATE:
        m.instance_create.model = pick(p, TD_WIRE_KIND_MODEL);
        break;
    case TD_WIRE_INSTANCE_LAYER:
        m.instance_layer.instance = pick(p, TD_WIRE_KIND_INSTANCE);
        break;
    case TD_WIRE_INSTANCE_STATE:
        m.instance_state.instance = pick(p, TD_WIRE_KIND_INSTANCE);
        m.instance_state.mem = pick(p, TD_WIRE_KIND_MEM);
        m.instance_state.offset_bytes = take_number(2);
        m.instance_state.ranges[0].offset_bytes = take_number(2);
        m.instance_state.ranges[0].bytes = 1 + take_number(2);
        break;
    case TD_WIRE_MODEL_PREPARE:
        m.model_prepare.instance = pick(p, TD_WIRE_KIND_INSTANCE);
        break;
    case TD_WIRE_INSTANCE_DESTROY:
        m.object.id = pick(p, TD_WIRE_KIND_INSTANCE);
        break;
    case TD_WIRE_STATS:
        m.stats.first = 0;
        break;
    case TD_WIRE_JOB:
        make_job(p, &m);
        break;
    default:
        break;
    }
    if (wire_road(type) == TD_WIRE_TO_DAEMON)
        m.header.serial = p->rules.next_serial;
    if (take() & 128)
        fd = take_fd(p);
    twist(&m, m.header.bytes);
    if (m.header.bytes > sizeof m)
        m.header.bytes = sizeof m;
    say_message(p, &m, fd);
}

void send_raw(const peer *p)
{
    static uint8_t bytes[4096];
    const size_t length = take_number(2) % sizeof bytes;
    const uint8_t how = take();
    int with[4];

    for (int i = 0; i < 4; i++)
        with[i] = how >> i & 1 ? take_fd(p) : fds[FD_NULL];
    take_bytes(bytes, length < w.left ? length : w.left);
    post(p, bytes, length, with, how >> 4 & 3);
}

void put(peer *p)
{
    static const uint16_t types[] = {TD_WIRE_JOB, TD_WIRE_JOB, TD_WIRE_CANCEL,   TD_WIRE_SUBMITTED,
                                     TD_WIRE_RUN, TD_WIRE_RUN, TD_WIRE_UNIFORMS, TD_WIRE_RUN};
    const uint16_t type = types[take() & 7];
    td_wire_message m = wire_sample(type);
    char ignored[TD_TEXT_BYTES];

    if (!p->ring.shared)
        return;
    if (type == TD_WIRE_JOB)
        make_job(p, &m);
    else if (type == TD_WIRE_RUN)
        make_run(p, &m);
    else if (type == TD_WIRE_UNIFORMS)
        make_uniforms(p, &m);
    else if (type == TD_WIRE_CANCEL)
        m.cancel.ticket = p->rules.next_ticket - take();
    else
        m.submitted = (td_wire_submitted){
            .header = m.header, .timeline = pick(p, TD_WIRE_KIND_TIMELINE), .value = w.counter_value + take() % 4};
    m.header.serial = 0;
    twist((char *)&m + 8, m.header.bytes - 8);
    if (td_ring_put(&p->ring, &m, ignored, sizeof ignored) == TANDEM_OK)
        td_wire_took(&p->rules, TD_WIRE_RING, &m);
}

void scribble(const peer *p)
{
    const uint32_t place = take_number(2) % (sizeof(td_shared_ring) / 4), value = take_number(4);

    w.scribbled = true;
    if (p->ring.shared)
        atomic_store_explicit((_Atomic uint32_t *)(void *)p->ring.shared + place, value, memory_order_relaxed);
}

void touch_page(void)
{
    const uint8_t how = take();
    td_shared_counter *counter = counters[how % COUNTERS];

    atomic_store(&counter->value, how & 64 ? w.counter_value : how & 128 ? UINT64_MAX - take() : take());
    atomic_fetch_add(&counter->raised.count, how & 32 ? take_number(4) : 1);
    if (how & 16)
        atomic_store(&counter->raised.waiters, take_number(4));
}

void ask_for_metrics(void)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    char page[256];
    const uint8_t how = take();

    if (!connect(fd, (const struct sockaddr *)&metrics_at, metrics_at_bytes)) {
        if (how & 1)
            (void)!send(fd, how & 4 ? "HEAD /metrics HTTP/1.1\r\n\r\n" : "GET /metrics HTTP/1.1\r\n\r\n", 25 + (how >> 2 & 1),
                        MSG_NOSIGNAL);
        if (how & 8) {
            char line[20];

            take_bytes(line, sizeof line);
            (void)!send(fd, line, sizeof line, MSG_NOSIGNAL);
        }
        if (how & 2)
            shutdown(fd, SHUT_RDWR);
        go();
        (void)!recv(fd, page, sizeof page, MSG_DONTWAIT);
    }
    close(fd);
}

void send_signal(void)
{
    const uint8_t how = take();
    const struct signalfd_siginfo info = {.ssi_signo = how == 77 ? SIGTERM : SIGHUP};

    (void)!send(w.signals, &info, sizeof info, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void go_short(void)
{
    struct rlimit was, none;
    const int next = dup(listener);

    if (next < 0 || getrlimit(RLIMIT_NOFILE, &was))
        return;
    close(next);
    none = was;
    none.rlim_cur = (rlim_t)next + (take() & 3);
    if (!setrlimit(RLIMIT_NOFILE, &none)) {
        now_ns += 10000;
        w.over = w.over || td_broker_turn(&w.b, 0) >= 0;
        setrlimit(RLIMIT_NOFILE, &was);
    }
}
