/* Whatever clients do, in whatever order: a whole broker in this process, with a nursery and a worker that the input
 * plays too, keeps its promises. Nothing of a client's is left when it is gone, the worker is told nothing wrong, and a
 * neighbour who behaves notices nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * One entry for libFuzzer (TANDEM_LIBFUZZER) and for the mutator of fuzz_util.h, which any compiler can build:
 *     fuzz_server CORPUS [runs]        starts from the corpus, the same each time
 *     fuzz_server --make CORPUS        writes where the corpus began
 *
 * Input: whether the worker has a GPU (a byte, the lowest bit), then steps, each a byte that says which (step_kind), a
 * byte that says who or how, and what that step takes of what follows. No threads, and a clock that only steps move, so
 * an input does the same each time.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine_plugin/daemon/daemon.h"
#include "fuzz_util.h"
#include "wire_util.h"

enum {
    PEERS = 4,
    IDS = 4,   /* of a kind that a peer remembers */
    PAGES = 4, /* memory that timelines are made of */
    MOST_STEPS = 200,
    SLAB_BYTES = 16384,
    ROUNDS = 4000, /* of an honest world, until all must have come to an end */
};
#define MS 1000000ull

typedef enum step_kind {
    STEP_CONNECT,
    STEP_HELLO,
    STEP_REQUEST, /* of any type, right but for what the input changes */
    STEP_RAW,
    STEP_RING,     /* likewise, and published */
    STEP_SCRIBBLE, /* in the area */
    STEP_PAGE,
    STEP_READ,
    STEP_CLOSE,
    STEP_TURN,
    STEP_ANSWER, /* the worker's, to an errand */
    STEP_END_JOB,
    STEP_WORKER_DIES,
    STEP_NURSE,
    STEP_TIME,
    STEP_SIGNAL,
    STEP_METRICS,
    STEP_SHORTAGE, /* a turn without descriptors left */
    STEPS
} step_kind;

typedef enum fd_kind {
    FD_SLAB,
    FD_PAGE,
    FD_LAST_PAGE = FD_PAGE + PAGES - 1,
    FD_UNSEALED,
    FD_SHORT,
    FD_HOLES,
    FD_NO_WRITE, /* sealed against it */
    FD_READ_ONLY,
    FD_PATH,
    FD_PIPE,
    FD_SOCKET,
    FD_FOLDER,
    FD_NULL,
    FD_EVENT,
    FD_EPOLL,
    FD_LISTENER,
    FD_KINDS
} fd_kind;

typedef struct peer {
    int fd; /* -1: not there */
    bool greeted;
    td_wire_rules rules;
    td_ring ring;
    uint64_t ids[4][IDS]; /* by td_wire_kind, the newest first */
} peer;

/* What the worker has been told of an object. */
typedef struct known {
    bool there, is_timeline, is_model, is_draft;
    uint32_t lane;
    uint64_t bytes;
} known;

static struct world {
    td_broker b;
    peer peers[PEERS]; /* the first is the neighbour */
    int nurse, worker, signals;
    td_desk *desk;
    known *items;   /* by number; of this worker */
    uint64_t lanes; /* likewise, one bit each */
    bool is_gpu, is_behind; /* behind: the neighbour's jobs are the background's, so that there may be no frames */
    uint64_t page_value;
    bool over; /* the broker has ended */
    const uint8_t *data;
    size_t left;
} w;

/* Made once, for all inputs. */
static int listener, metrics, fds[FD_KINDS];
static struct sockaddr_un at, metrics_at;
static socklen_t at_bytes, metrics_at_bytes;
static td_page *pages[PAGES];
static td_wire_identity identity;

static uint64_t now_ns;
uint64_t __wrap_td_now_ns(void);
uint64_t __wrap_td_now_ns(void)
{
    return now_ns;
}

uint32_t td_say_level = TD_LOG_DEBUG;
void td_say(td_log_level level, const char *format, ...)
{
    static int loud = -1;
    char line[TD_TEXT_BYTES + 200];
    va_list list;

    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (loud < 0)
        loud = getenv("TANDEM_FUZZ_LOG") != NULL;
    if (loud)
        fprintf(stderr, "%d %s\n", (int)level, line);
}

static void broken(const char *what)
{
    fprintf(stderr, "fuzz_server: broken promise: %s\n", what);
    abort();
}

static void need(bool is, const char *what)
{
    if (!is)
        broken(what);
}

bool td_log_begin(void) { return true; }
void td_log_forget(void) {}

/* The input. */

static uint8_t take(void)
{
    if (!w.left)
        return 0;
    w.left--;
    return *w.data++;
}

static void take_bytes(void *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] = take();
}

static uint32_t take_number(size_t bytes)
{
    uint32_t number = 0;

    take_bytes(&number, bytes);
    return number;
}

/* Changes a few numbers in what was right. */
static void twist(void *bytes, size_t length)
{
    static const uint64_t edges[] = {0,    1,          2,          63,         64,         65,         255,       256,
                                     4096, 0x7fffffff, 0x80000000, 0xffffffff, 1ull << 32, 1ull << 63, UINT64_MAX};
    enum { EDGES = sizeof edges / sizeof *edges };

    for (uint8_t n = take() & 3; n; n--) {
        const uint8_t how = take();
        const size_t width = (size_t)1 << (how & 3), place = take_number(2) % length / width * width;
        uint64_t value;

        if (how >> 2 < EDGES)
            value = edges[how >> 2];
        else
            take_bytes(&value, sizeof value);
        if (place + width <= length)
            memcpy((char *)bytes + place, &value, width);
    }
}

/* What is made once. */

static int make_memfd(off_t bytes, int seals, bool allocated)
{
    const int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    need(fd >= 0 && !ftruncate(fd, bytes) && (!allocated || !posix_fallocate(fd, 0, bytes)) &&
             !fcntl(fd, F_ADD_SEALS, seals),
         "no memfd for the fuzzer itself");
    return fd;
}

static int listen_somewhere(int type, struct sockaddr_un *where, socklen_t *bytes)
{
    const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    *where = (struct sockaddr_un){.sun_family = AF_UNIX};
    *bytes = sizeof *where;
    need(fd >= 0 && !bind(fd, (const struct sockaddr *)where, sizeof where->sun_family) && !listen(fd, 64) &&
             !getsockname(fd, (struct sockaddr *)where, bytes),
         "no socket for the fuzzer itself");
    return fd;
}

static void make_once(void)
{
    static bool made;
    char path[40];
    int ends[2];

    if (made)
        return;
    made = true;
    signal(SIGPIPE, SIG_IGN);
    listener = listen_somewhere(SOCK_SEQPACKET, &at, &at_bytes);
    metrics = listen_somewhere(SOCK_STREAM, &metrics_at, &metrics_at_bytes);
    td_wire_identify(&identity);
    fds[FD_SLAB] = make_memfd(SLAB_BYTES, F_SEAL_SHRINK, true);
    for (int i = 0; i < PAGES; i++) {
        fds[FD_PAGE + i] = make_memfd(TD_WIRE_PAGE_BYTES, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, true);
        pages[i] = mmap(NULL, TD_WIRE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fds[FD_PAGE + i], 0);
        need(pages[i] != MAP_FAILED, "no page for the fuzzer itself");
    }
    fds[FD_UNSEALED] = make_memfd(SLAB_BYTES, 0, true);
    fds[FD_SHORT] = make_memfd(TD_WIRE_PAGE_BYTES - 1, F_SEAL_SHRINK, true);
    fds[FD_HOLES] = make_memfd(SLAB_BYTES, F_SEAL_SHRINK, false);
    fds[FD_NO_WRITE] = make_memfd(SLAB_BYTES, F_SEAL_SHRINK | F_SEAL_WRITE, true);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fds[FD_SLAB]);
    fds[FD_READ_ONLY] = open(path, O_RDONLY | O_CLOEXEC);
    fds[FD_PATH] = open("/tmp", O_PATH | O_CLOEXEC);
    need(!pipe2(ends, O_CLOEXEC), "no pipe for the fuzzer itself");
    fds[FD_PIPE] = ends[0];
    need(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), "no sockets for the fuzzer itself");
    fds[FD_SOCKET] = ends[0];
    fds[FD_FOLDER] = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fds[FD_NULL] = open("/dev/null", O_RDWR | O_CLOEXEC);
    fds[FD_EVENT] = eventfd(0, EFD_CLOEXEC);
    fds[FD_EPOLL] = epoll_create1(EPOLL_CLOEXEC);
    fds[FD_LISTENER] = listener;
}

static int count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    while (dir && readdir(dir))
        count++;
    if (dir)
        closedir(dir);
    return count;
}

/* The worker. */

/* What the launcher says of it then: as a rule the truth. */
static void say_end(uint8_t how)
{
    static td_nurse m;

    m = (td_nurse){.kind = TD_NURSE_ENDED, .pid = how & 1 ? 3 : 2, .status = how & 2 ? SIGSEGV : SIGKILL};
    if (w.nurse >= 0)
        td_pass(w.nurse, &m, sizeof m, NULL, 0);
}

/* Not what the neighbour cannot be without: it is ended with that. */
static uint32_t pick_request(void)
{
    const uint32_t serial = take() % 64;

    for (const td_errand *e = w.b.errands; e; e = e->next)
        if (e->task.serial == serial && e->task.kind == TD_TASK_LANE)
            return 0;
    return serial;
}

static void lose_worker(void)
{
    if (w.worker >= 0 && w.desk) { /* it was at something, or says so */
        w.desk->request = pick_request();
        w.desk->load = pick_request();
        say_end(take());
    }
    td_fd_close(&w.worker);
    if (w.desk)
        munmap(w.desk, TD_DESK_BYTES);
    w.desk = NULL;
    memset(w.items, 0, TD_MAX_NUMBERS * sizeof *w.items);
    w.lanes = 0;
}

static void tell(const td_task *task)
{
    if (w.worker >= 0)
        td_pass(w.worker, task, sizeof *task, NULL, 0);
}

/* Of this machine, with the device that the worker has. */
static td_wire_identity identity_of(bool is_gpu)
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
    static td_task t;

    t = (td_task){.kind = TD_TASK_HELLO, .status = status, .info = info(), .identity = identity_of(w.is_gpu)};
    tell(&t);
}

static bool uses(const tandem_job *job, uint64_t number)
{
    const tandem_attention *op = &job->op.attention;

    return op->q.mem == number || op->k.mem == number || op->v.mem == number || op->o.mem == number ||
           op->lse.mem == number || job->wait.timeline == number || job->signal.timeline == number;
}

static void look_at_shared(td_task *t, known *it, int fd)
{
    char why[TD_TEXT_BYTES] = "";
    const off_t length = t->opaque ? (off_t)t->allocation_bytes : lseek(fd, 0, SEEK_END);

    need(!it->there, "a mem or a timeline under a number that is taken");
    need(!t->draft || (t->kind == TD_TASK_MEM && t->bytes && fd < 0), "a draft that is something else");
    need(t->draft  ? !t->opaque
         : t->opaque ? w.is_gpu && td_opaque_check(fd, why, sizeof why) == TANDEM_OK
                   : t->kind == TD_TASK_MEM && td_slab_check(fd, (uint64_t)length, false, why, sizeof why) == TANDEM_OK,
         "a descriptor of another kind than was said");
    need(t->kind == TD_TASK_TIMELINE || t->draft ||
             (t->bytes && t->bytes <= (uint64_t)length && t->offset_bytes <= (uint64_t)length - t->bytes &&
              (t->opaque || t->offset_bytes % TD_WIRE_PAGE_BYTES == 0)),
         "a mem beyond its allocation");
    if (w.is_gpu && !(w.lanes >> t->lane & 1))
        t->status = TANDEM_ERROR_NOMEM;
    *it = (known){.there = t->status == TANDEM_OK,
                  .is_timeline = t->kind == TD_TASK_TIMELINE,
                  .is_draft = t->draft,
                  .lane = t->lane,
                  .bytes = t->bytes};
}

/* Takes one errand and answers as `how` says: 0 as a worker does. False: there was none. */
static bool answer_errand(uint8_t how)
{
    static td_task t;
    int came[2];
    known *it;

    if (w.worker < 0 || td_fetch(w.worker, &t, sizeof t, came) != TANDEM_OK)
        return false;
    need(t.number < TD_MAX_NUMBERS, "an errand about a number that cannot be");
    it = &w.items[t.number];
    t.status = how & 1 ? TANDEM_ERROR_NOMEM : TANDEM_OK;
    switch ((td_task_kind)t.kind) {
    case TD_TASK_MEM:
    case TD_TASK_TIMELINE:
        look_at_shared(&t, it, came[0]);
        break;
    case TD_TASK_MODEL:
        need(!it->there, "a model under a number that is taken");
        need(came[0] >= 0, "a model without its file");
        *it = (known){.there = t.status == TANDEM_OK, .is_model = true};
        break;
    case TD_TASK_END:
        for (int i = 0; i < TD_DESK_SLOTS; i++)
            need(atomic_load(&w.desk->slots[i].state) != TD_SLOT_READY || !uses(&w.desk->slots[i].job, t.number),
                 "the end of what a job uses");
        it->there = false;
        t.status = TANDEM_OK; /* or it dies */
        break;
    case TD_TASK_LANE:
        need(w.is_gpu && t.lane && t.lane < TD_LANES && !(w.lanes >> t.lane & 1), "a lane that there is, or cannot be");
        w.lanes |= (uint64_t)(t.status == TANDEM_OK) << t.lane;
        break;
    case TD_TASK_LANE_END:
        need(t.lane && t.lane < TD_LANES, "the end of a lane that cannot be");
        for (int i = 0; i < TD_DESK_SLOTS; i++)
            need(atomic_load(&w.desk->slots[i].state) != TD_SLOT_READY || w.desk->slots[i].lane != t.lane,
                 "the end of a lane that has jobs");
        for (uint32_t i = 0; i < TD_MAX_NUMBERS; i++)
            w.items[i].there = w.items[i].there && w.items[i].lane != t.lane;
        w.lanes &= ~(1ull << t.lane);
        t.status = TANDEM_OK;
        break;
    case TD_TASK_TENSOR:
        need(it->there, "a tensor of what is not there");
        need(memchr(t.text, 0, sizeof t.text), "a tensor's name without end");
        if (t.status == TANDEM_OK)
            it->bytes = t.bytes = SLAB_BYTES;
        t.view = (tandem_view){.dtype = TANDEM_DTYPE_F16, .stride_row = 64};
        for (int i = 0; i < 4; i++)
            t.shape[i] = i < 3 ? 1 : 64;
        break;
    case TD_TASK_INFO:
        t.info = info();
        break;
    default:
        broken("an errand of no kind");
    }
    td_fd_close(&came[0]);
    td_fd_close(&came[1]);
    if (how & 2)
        memset(t.text, 'x', sizeof t.text);
    if (how & 4)
        t.status = (int32_t)take_number(4);
    if (how & 4 && (t.kind == TD_TASK_MEM || t.kind == TD_TASK_TIMELINE || t.kind == TD_TASK_MODEL))
        it->there = t.status == TANDEM_OK; /* the broker does with its status what it does with ours */
    if (how & 16)
        t.serial++;
    if (how & 16) { /* an answer to nothing: the errand stays open for good, which only another worker mends */
        tell(&t);
        lose_worker();
        return true;
    }
    tell(&t);
    return true;
}

/* Whether a view lies in a mem of its client's, or is not there and need not be. */
static bool is_within(const td_operation_layout *layout, const tandem_operands *op, uint32_t view, uint32_t lane)
{
    const tandem_view *v = td_view_in(layout, op, view);
    uint32_t shape[4];
    uint64_t end;

    if (!v->mem)
        return layout->views[view].optional;
    layout->shape(op, view, shape);
    return v->mem < TD_MAX_NUMBERS && w.items[v->mem].there && !w.items[v->mem].is_timeline &&
           (w.items[v->mem].is_model || w.items[v->mem].lane == lane) && td_view_end_bytes(v, shape, &end) &&
           end <= w.items[v->mem].bytes;
}

static bool is_point(tandem_point point, uint32_t lane)
{
    const known *it = &w.items[point.timeline % TD_MAX_NUMBERS];

    return !point.timeline || (point.timeline < TD_MAX_NUMBERS && it->there && it->is_timeline && it->lane == lane);
}

static void look_at_desk(void)
{
    for (int i = 0; w.desk && i < TD_DESK_SLOTS; i++) {
        const td_slot *slot = &w.desk->slots[i];
        const td_operation *operation = td_operation_find(slot->job.operation);
        const tandem_operands *op = &slot->job.op;

        if (atomic_load(&slot->state) != TD_SLOT_READY)
            continue;
        need(operation != NULL, "a job of no operation");
        for (uint32_t v = 0; v < operation->layout.view_count; v++) {
            const uint64_t mem = td_view_in(&operation->layout, op, v)->mem;
            const bool written = operation->layout.views[v].written;

            /* What is in a draft is no input, and goes to no other. */
            need(!mem || w.items[mem % TD_MAX_NUMBERS].is_draft ==
                             (operation->claims ? !written : written && slot->deadline_ns && slot->parts > 1),
                 "a draft in the wrong place");
            need(is_within(&operation->layout, op, v, slot->lane), "a job that reaches beyond what it names");
            for (int o = 0; operation->claims && !written && mem && o < TD_DESK_SLOTS; o++) {
                const td_slot *other = &w.desk->slots[o];
                const td_operation *of = td_operation_find(other->job.operation);

                if (o == i || atomic_load(&other->state) != TD_SLOT_READY)
                    continue;
                for (uint32_t u = 0; of && u < of->layout.view_count; u++)
                    need(!of->layout.views[u].written || td_view_in(&of->layout, &other->job.op, u)->mem != mem,
                         "a draft that is written still");
            }
        }
        need(is_point(slot->job.wait, slot->lane) && is_point(slot->job.signal, slot->lane),
             "a job with points that are not its client's");
    }
}

/* Ends the oldest job that the worker has; `state` and `status` may be anything. */
static bool end_job(uint32_t state, int32_t status, uint64_t ns, bool with_text)
{
    td_slot *oldest = NULL;

    for (int i = 0; w.desk && i < TD_DESK_SLOTS; i++)
        if (atomic_load(&w.desk->slots[i].state) == TD_SLOT_READY &&
            (!oldest || w.desk->slots[i].sequence < oldest->sequence))
            oldest = &w.desk->slots[i];
    if (!oldest)
        return false;
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

/* The nursery. `how` 0: as it does. False: nothing was asked of it. */
static bool nurse(uint8_t how)
{
    static td_nurse m;
    int came[2], fd = -1;

    if (td_fetch(w.nurse, &m, sizeof m, came) != TANDEM_OK)
        return false;
    switch ((td_nurse_kind)m.kind) {
    case TD_NURSE_SPAWN:
        need(came[0] >= 0 && came[1] >= 0, "a worker without socket or desk");
        lose_worker();
        m.kind = TD_NURSE_SPAWNED;
        m.status = how & 1 ? TANDEM_ERROR_NOMEM : TANDEM_OK;
        m.pid = how & 1 ? -1 : 2;
        td_pass(w.nurse, &m, sizeof m, NULL, 0);
        if (how & 1)
            break;
        w.worker = came[0];
        came[0] = -1;
        fcntl(w.worker, F_SETFL, fcntl(w.worker, F_GETFL) | O_NONBLOCK);
        w.desk = mmap(NULL, TD_DESK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, came[1], 0);
        need(w.desk != MAP_FAILED, "a desk that cannot be mapped");
        say_hello(how & 2 ? TANDEM_ERROR_DEVICE : TANDEM_OK);
        if (how & 2) /* it ends then */
            lose_worker();
        break;
    case TD_NURSE_KILL:
        lose_worker();
        break;
    case TD_NURSE_OPEN:
        need(memchr(m.text, 0, sizeof m.text), "a path without end");
        m.kind = TD_NURSE_OPENED;
        m.status = how & 1 ? TANDEM_ERROR_IO : TANDEM_OK;
        fd = how & 2 ? fds[FD_HOLES] : fds[FD_SLAB];
        td_pass(w.nurse, &m, sizeof m, &fd, !(how & 5));
        break;
    case TD_NURSE_CONFIG:
        m.status = how & 1 ? TANDEM_ERROR_ARG : TANDEM_OK;
        m.config = td_config_default();
        m.config.clients = how & 2 ? 1 : 32;
        m.config.client_bytes = m.config.total_bytes = how & 4 ? 4096 : 60 << 10;
        m.config.model_bytes = how & 8 ? 0 : 1 << 20;
        m.config.model_dir_count = how & 16 ? 0 : 1;
        m.config.mems = how & 64 ? 2 : 4; /* clients that are there keep slots for as many as there were */
        m.config.timelines = how & 32 ? 1 : 4;
        m.config.models = 2;
        td_pass(w.nurse, &m, sizeof m, NULL, 0);
        break;
    default:
        broken("the nursery is asked for nothing");
    }
    td_fd_close(&came[0]);
    td_fd_close(&came[1]);
    return true;
}

/* Clients. */

static void forget(peer *p)
{
    td_fd_close(&p->fd);
    td_ring_close(&p->ring);
    *p = (peer){.fd = -1};
}

static void connect_peer(peer *p)
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

static void say_message(peer *p, const td_wire_message *m, int fd)
{
    post(p, m, m->header.bytes, &fd, m->header.fds ? 1 : 0);
    if (m->header.type != TD_WIRE_HELLO || !p->greeted)
        td_wire_took(&p->rules, TD_WIRE_TO_DAEMON, m);
    p->greeted = p->greeted || m->header.type == TD_WIRE_HELLO;
}

static td_wire_message hello(uint32_t share)
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

    if (kind < 1 || kind > 3)
        return;
    memmove(&p->ids[kind][1], &p->ids[kind][0], (IDS - 1) * sizeof p->ids[kind][0]);
    p->ids[kind][0] = id;
}

/* Reads all that was said to a peer. False: its connection is over. `last`: the last answer. */
static bool read_all(peer *p, td_wire_message *last)
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
            need(td_ring_open(&p->ring, came[0], why, sizeof why) == TANDEM_OK, why);
        }
        td_fd_close(&came[0]);
        if (m.header.type == TD_WIRE_DONE && m.object.id)
            remember(p, m.object.id);
        if (last)
            *last = m;
    }
    return false;
}

/* The world goes round. */

static void go(void)
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
    look_at_desk();
    read_all(&w.peers[0], NULL);
}

/* An honest nursery and worker, until nothing has been asked of them for some turns. */
static void go_honestly(void)
{
    for (int i = 0, idle = 0; i < 64 && idle < 3 && !w.over; i++) {
        bool some;

        go();
        some = nurse(0);
        some = answer_errand(0) || some;
        some = end_job(TANDEM_JOB_DONE, TANDEM_OK, MS, false) || some;
        idle = some ? 0 : idle + 1;
    }
}

static peer *take_peer(void)
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

static void make_job(const peer *p, td_wire_message *m)
{
    tandem_attention *op = &m->job.job.op.attention;
    const uint8_t how = take();

    *m = wire_sample(TD_WIRE_JOB);
    m->job.ticket = p->rules.next_ticket;
    m->job.submit_ns = now_ns;
    m->job.job.deadline_ns = !(how & 1) ? 0 : how & 32 ? 2000 * MS : 2 * MS;
    m->job.job.wait =
        how & 2 ? (tandem_point){pick(p, TD_WIRE_KIND_TIMELINE), w.page_value + (how >> 6)} : (tandem_point){0};
    m->job.job.signal = how & 4 ? (tandem_point){pick(p, TD_WIRE_KIND_TIMELINE), ++w.page_value} : (tandem_point){0};
    op->q = op->k = op->v = view_in(pick(p, TD_WIRE_KIND_MEM), 0);
    op->o = view_in(how & 8 ? pick(p, TD_WIRE_KIND_MEM) : op->q.mem, 0);
    op->lse = (tandem_view){0};
    op->batch = op->heads = op->kv_heads = 1;
    op->q_len = op->kv_len = 16;
    op->head_dim = 64;
    if (how & 16) { /* one that takes long: the same rows over and over, so as to be cut */
        op->heads = op->kv_heads = 8;
        op->kv_len = 1 << 24;
        op->k.stride_row = op->v.stride_row = 0;
    }
}

static void send_request(peer *p)
{
    const uint16_t type = wire_types[take() % WIRE_TYPES];
    td_wire_message m = type == TD_WIRE_HELLO ? hello(TD_WIRE_SHARE_HOST) : wire_sample(type);
    int fd = fds[FD_SLAB];

    switch (type) {
    case TD_WIRE_MEM_CREATE: {
        const uint8_t how = take();

        m.mem_create.allocation_bytes = SLAB_BYTES;
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
        fd = fds[FD_PAGE + take() % PAGES];
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
        m.object.id = pick(p, TD_WIRE_KIND_MODEL);
        break;
    case TD_WIRE_MODEL_TENSOR:
        m.model_tensor.model = pick(p, TD_WIRE_KIND_MODEL);
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

static void send_raw(const peer *p)
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

static void put(peer *p)
{
    static const uint16_t types[] = {TD_WIRE_JOB, TD_WIRE_JOB, TD_WIRE_CANCEL, TD_WIRE_SUBMITTED};
    const uint16_t type = types[take() & 3];
    td_wire_message m = wire_sample(type);
    char ignored[TD_TEXT_BYTES];

    if (!p->ring.area)
        return;
    if (type == TD_WIRE_JOB)
        make_job(p, &m);
    else if (type == TD_WIRE_CANCEL)
        m.cancel.ticket = p->rules.next_ticket - take();
    else
        m.submitted = (td_wire_submitted){
            .header = m.header, .timeline = pick(p, TD_WIRE_KIND_TIMELINE), .value = w.page_value + take() % 4};
    m.header.serial = 0;
    twist((char *)&m + 8, m.header.bytes - 8);
    if (td_ring_put(&p->ring, &m, ignored, sizeof ignored) == TANDEM_OK && type == TD_WIRE_JOB)
        p->rules.next_ticket++;
}

static void scribble(const peer *p)
{
    const uint32_t place = take_number(2) % (sizeof(td_area) / 4), value = take_number(4);

    if (p->ring.area)
        atomic_store_explicit((_Atomic uint32_t *)(void *)p->ring.area + place, value, memory_order_relaxed);
}

static void touch_page(void)
{
    const uint8_t how = take();
    td_page *page = pages[how % PAGES];

    atomic_store(&page->value, how & 64 ? w.page_value : how & 128 ? UINT64_MAX - take() : take());
    atomic_fetch_add(&page->bell.count, how & 32 ? take_number(4) : 1);
    if (how & 16)
        atomic_store(&page->bell.waiters, take_number(4));
}

static void ask_for_metrics(void)
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

static void send_signal(void)
{
    const uint8_t how = take();
    const struct signalfd_siginfo info = {.ssi_signo = how == 77 ? SIGTERM : SIGHUP};

    (void)!send(w.signals, &info, sizeof info, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* As many descriptors are left as the input says. */
static void go_short(void)
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

static void step(void)
{
    static td_task last;
    uint8_t how;
    peer *p;

    switch ((step_kind)(take() % STEPS)) {
    case STEP_CONNECT:
        p = take_peer();
        how = take();
        w.b.uid = geteuid() + (how == 99); /* a stranger */
        connect_peer(p);
        go();
        w.b.uid = geteuid();
        break;
    case STEP_HELLO: {
        td_wire_message m;

        p = take_peer();
        how = take();
        m = hello(how % 4 == 3 ? TD_WIRE_SHARE_OPAQUE : how % 4 ? TD_WIRE_SHARE_HOST : TD_WIRE_SHARE_NONE);
        m.hello.job_class = how >> 7;
        m.header.serial = p->rules.next_serial;
        twist(&m, sizeof m.hello);
        m.header.bytes = sizeof m.hello;
        if (p->fd < 0)
            break;
        say_message(p, &m, -1);
        go();
        read_all(p, NULL);
        break;
    }
    case STEP_REQUEST:
        p = take_peer();
        if (p->fd >= 0)
            send_request(p);
        break;
    case STEP_RAW:
        p = take_peer();
        if (p->fd >= 0)
            send_raw(p);
        break;
    case STEP_RING:
        put(take_peer());
        break;
    case STEP_SCRIBBLE:
        scribble(take_peer());
        break;
    case STEP_PAGE:
        touch_page();
        break;
    case STEP_READ:
        read_all(take_peer(), NULL);
        break;
    case STEP_CLOSE:
        p = take_peer();
        how = take();
        if (how & 1 && p->fd >= 0)
            shutdown(p->fd, how & 2 ? SHUT_RD : SHUT_WR);
        else
            forget(p);
        break;
    case STEP_TURN:
        if (take() & 1)
            go_honestly();
        else
            go();
        break;
    case STEP_ANSWER:
        answer_errand(take());
        break;
    case STEP_END_JOB:
        how = take();
        end_job(how & 1 ? take() : TANDEM_JOB_DONE, how & 2 ? (int32_t)take_number(4) : 0,
                how & 4 ? UINT64_MAX - now_ns : MS, how & 8);
        break;
    case STEP_WORKER_DIES:
        how = take();
        last = (td_task){.kind = how & 1 ? TD_TASK_BROKEN : take(), .serial = take(), .status = TANDEM_ERROR_DEVICE};
        memset(last.text, 'z', sizeof last.text);
        if (how & 2 && last.kind != TD_TASK_HELLO) /* what it says is believed; but not nonsense */
            tell(&last);
        lose_worker();
        break;
    case STEP_NURSE:
        nurse(take());
        break;
    case STEP_TIME:
        now_ns += 1000ull << take() % 25;
        break; /* up to 17 s */
    case STEP_SIGNAL:
        send_signal();
        break;
    case STEP_METRICS:
        ask_for_metrics();
        break;
    case STEP_SHORTAGE:
        go_short();
        break;
    case STEPS:
        break;
    }
}

/* The neighbour: who behaves, and has a job under way all the time. */

static void neighbour_begins(void)
{
    td_wire_message m = hello(TD_WIRE_SHARE_HOST), last;
    peer *p = &w.peers[0];
    char why[TD_TEXT_BYTES] = "";
    const uint8_t nothing[] = {0, 0, 0, 0};

    connect_peer(p);
    m.hello.job_class = w.is_behind;
    say_message(p, &m, -1);
    go_honestly();
    need(read_all(p, &last) && p->ring.area, "no WELCOME for a neighbour");
    m = wire_sample(TD_WIRE_MEM_CREATE);
    m.header.serial = p->rules.next_serial;
    m.mem_create.allocation_bytes = SLAB_BYTES;
    m.mem_create.offset_bytes = 0;
    say_message(p, &m, fds[FD_SLAB]);
    go_honestly();
    need(p->ids[TD_WIRE_KIND_MEM][0], "no mem for a neighbour");
    w.data = nothing;
    w.left = sizeof nothing;
    make_job(p, &m);
    m.header.serial = 0;
    need(td_ring_put(&p->ring, &m, why, sizeof why) == TANDEM_OK, "no room for a neighbour's job");
    p->rules.next_ticket++;
    go();
}

static void neighbour_ends(void)
{
    td_wire_message m = td_wire_new(TD_WIRE_PING, 0), last = {.header = {0}};
    peer *p = &w.peers[0];
    td_wire_report r = {.state = TANDEM_JOB_PENDING};
    char why[TD_TEXT_BYTES] = "";

    for (int i = 0; i < ROUNDS && r.state <= TANDEM_JOB_RUNNING && !w.over; i++) {
        go_honestly();
        now_ns += 5 * MS;
        need(p->ring.area != NULL, "a neighbour whose connection is over");
        need(td_ring_read_report(&p->ring, 1, &r, why, sizeof why) != TANDEM_ERROR_PROTOCOL, why);
    }
    if (w.over)
        return;
    need(r.state > TANDEM_JOB_RUNNING, "a neighbour's job that does not end");
    m.header.serial = p->rules.next_serial;
    say_message(p, &m, -1);
    w.over = td_broker_turn(&w.b, 0) >= 0;
    need(w.over || (read_all(p, &last) && last.header.type == TD_WIRE_DONE), "a neighbour who gets no answer");
}

static void begin(const uint8_t *data, size_t size)
{
    static known items[TD_MAX_NUMBERS];
    int ends[2], signals[2];

    memset(&w, 0, sizeof w);
    memset(items, 0, sizeof items);
    for (int i = 0; i < PAGES; i++)
        memset((void *)pages[i], 0, sizeof *pages[i]);
    w.is_gpu = size && data[0] & 1;
    w.is_behind = size && data[0] & 2;
    now_ns = 1000 * TD_SECOND;
    w.items = items;
    w.worker = -1;
    for (int i = 0; i < PEERS; i++)
        w.peers[i].fd = -1;
    need(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) &&
             !socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, signals),
         "no sockets for the fuzzer itself");
    w.b.config = td_config_default();
    w.b.config.mems = w.b.config.timelines = 4;
    w.b.config.models = 2;
    w.b.config.client_bytes = 28 << 10; /* three mems as they come */
    w.b.config.total_bytes = 60 << 10;
    w.b.config.model_bytes = 1 << 20;
    w.b.config.model_dir_count = 1;
    w.b.config.job_ns = 5 * TD_SECOND;
    w.b.listener = (td_listener){.fd = dup(listener), .lock = -1, .spare = dup(listener)};
    w.b.metrics = dup(metrics);
    w.b.notify = -1;
    w.b.nursery = ends[0];
    w.nurse = ends[1];
    w.b.signals = signals[0];
    w.signals = signals[1];
    need(td_broker_begin(&w.b), "no broker");
    go_honestly();
    neighbour_begins();
    w.data = size ? data + 1 : data;
    w.left = size ? size - 1 : 0;
}

static void end(void)
{
    for (int i = 0; i < PEERS; i++)
        forget(&w.peers[i]);
    for (int i = 0; i < ROUNDS && !w.over && (w.b.clients || w.b.errands || w.b.openings || w.b.listener.fd < 0); i++) {
        go_honestly();
        now_ns += 5 * MS;
    }
    if (!w.over) {
        need(!w.b.clients && !w.b.client_count && !w.b.new_count, "a client that does not go");
        need(!w.b.mem_bytes && !w.b.model_bytes && !w.b.weights, "bytes that nobody holds");
        need(!w.b.errands && !w.b.openings, "an errand that nobody runs");
        need(!memchr(w.b.numbers, 1, TD_MAX_NUMBERS), "a number that nobody has");
        need(!w.b.lanes, "a lane that nobody has");
        for (uint32_t i = 0; i < TD_MAX_NUMBERS && w.worker >= 0; i++)
            need(!w.items[i].there, "memory that the worker keeps");
    }
    td_broker_end(&w.b);
    lose_worker();
    td_fd_close(&w.b.nursery);
    td_fd_close(&w.b.signals);
    td_fd_close(&w.b.metrics);
    td_fd_close(&w.nurse);
    td_fd_close(&w.signals);
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0;) /* who came too late */
        close(fd);
    for (int fd; (fd = accept4(metrics, NULL, NULL, SOCK_CLOEXEC)) >= 0;)
        close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int held;

    make_once();
    held = count_fds();
    begin(data, size);
    for (int i = 0; i < MOST_STEPS && w.left && !w.over; i++)
        step();
    neighbour_ends();
    end();
    need(count_fds() == held, "a descriptor that is left over");
    return 0;
}

#ifndef TANDEM_LIBFUZZER
/* clang-format off */
/* Where the corpus begins: what clients do, and each fault once. The first peer of a step is 0. */
#define CLIENT(p) STEP_CONNECT, p, 0, STEP_HELLO, p, 1, 0
#define MEM(p) STEP_REQUEST, p, 3, 0, 0, 0, STEP_TURN, 1, STEP_READ, p
#define END_MEM(p) STEP_REQUEST, p, 4, 0, 0, 0
#define TIMELINE(p, by_daemon, page) STEP_REQUEST, p, 5, by_daemon, page, 0, 0, STEP_TURN, 1, STEP_READ, p
#define MODEL(p) STEP_REQUEST, p, 7, 0, 0, STEP_TURN, 1, STEP_READ, p
#define TENSOR(p) STEP_REQUEST, p, 8, 0, 0, 0, STEP_TURN, 1, STEP_READ, p
#define JOB(p) STEP_RING, p, 0, 0, 0, 0
#define LATE_JOB(p) STEP_RING, p, 0, 1, 0, 0
#define CUT_JOB(p) STEP_RING, p, 0, 49, 0, 0 /* in the background; with a deadline, so with a draft */
#define BACKGROUND(p) STEP_CONNECT, p, 0, STEP_HELLO, p, 129, 0
#define WAITING_JOB(p) STEP_RING, p, 0, 66, 0, 0, 0
#define SIGNALLING_JOB(p) STEP_RING, p, 0, 4, 0, 0, 0
#define CANCEL(p, ago) STEP_RING, p, 2, ago, 0
#define GO STEP_TURN, 0
#define GO_ON STEP_TURN, 1
#define LATER(log_us) STEP_TIME, log_us, STEP_TURN, 0
#define ON_GPU 255
#define NO_FRAMES 254 /* on a GPU, too */
#define GPU_CLIENT(p) STEP_CONNECT, p, 0, STEP_HELLO, p, 3, 0
#define GPU_MEM(p) STEP_REQUEST, p, 3, 2, 0, 0, STEP_TURN, 1, STEP_READ, p
#define GPU_TIMELINE(p, by_daemon) STEP_REQUEST, p, 5, 2 | by_daemon, 0, 0, 0, STEP_TURN, 1, STEP_READ, p
static const struct {
    const char *name;
    uint8_t bytes[128];
} beginnings[] = {
    {"hello", {CLIENT(0), GO_ON, STEP_READ, 0, STEP_CLOSE, 0, 0, GO_ON}},
    {"share", {CLIENT(0), MEM(0), TIMELINE(0, 1, 0), SIGNALLING_JOB(0), GO, STEP_END_JOB, 0, GO_ON, END_MEM(0), GO_ON}},
    {"two", {CLIENT(0), CLIENT(1), MEM(0), MEM(1), JOB(0), JOB(1), JOB(0), JOB(1), GO, STEP_END_JOB, 0, GO, STEP_END_JOB, 0,
             GO, STEP_CLOSE, 0, 0, GO, STEP_END_JOB, 0, GO_ON}},
    {"model", {CLIENT(0), MODEL(0), TENSOR(0), JOB(0), GO_ON, STEP_REQUEST, 0, 9, 0, 0, 0, GO_ON}},
    {"models", {CLIENT(0), CLIENT(1), MODEL(0), MODEL(1), TENSOR(1), STEP_CLOSE, 0, 0, GO_ON, TENSOR(1)}},
    {"worker_dies", {CLIENT(0), MEM(0), JOB(0), GO, STEP_WORKER_DIES, 1, 0, GO, LATER(14), GO_ON, STEP_READ, 0}},
    {"worker_stays_away", {CLIENT(0), MEM(0), STEP_WORKER_DIES, 0, 0, 0, JOB(0), LATER(24), LATER(24), LATER(24), LATER(24),
                           LATER(24), GO_ON}},
    {"worker_three_times", {CLIENT(0), MEM(0), JOB(0), GO, STEP_WORKER_DIES, 0, 0, 0, LATER(20), STEP_NURSE, 0, GO, GO,
                            STEP_ANSWER, 0, STEP_ANSWER, 0, GO, JOB(0), GO, STEP_WORKER_DIES, 0, 0, 0, LATER(20),
                            STEP_NURSE, 0, GO, STEP_ANSWER, 0, STEP_ANSWER, 0, JOB(0), GO, STEP_WORKER_DIES, 0, 0, 0, GO_ON}},
    {"wait", {CLIENT(0), MEM(0), TIMELINE(0, 0, 0), WAITING_JOB(0), GO, STEP_PAGE, 128, 3, GO_ON}},
    {"wait_for_good", {CLIENT(0), MEM(0), TIMELINE(0, 0, 0), WAITING_JOB(0), GO, LATER(17), GO_ON}},
    {"page_falls", {CLIENT(0), MEM(0), TIMELINE(0, 0, 0), STEP_PAGE, 128, 0, WAITING_JOB(0), GO_ON, STEP_PAGE, 0, 0,
                    WAITING_JOB(0), GO_ON}},
    {"cancel", {CLIENT(0), MEM(0), JOB(0), JOB(0), JOB(0), JOB(0), GO, CANCEL(0, 1), GO, CANCEL(0, 4), GO, STEP_END_JOB, 1, 4,
                GO_ON}},
    {"late", {CLIENT(0), MEM(0), LATE_JOB(0), LATE_JOB(0), LATE_JOB(0), LATE_JOB(0), GO, LATER(12), STEP_END_JOB, 0, GO_ON}},
    {"hang", {CLIENT(0), MEM(0), JOB(0), GO, LATER(23), STEP_NURSE, 0, GO_ON}},
    {"destroy_in_use", {CLIENT(0), MEM(0), JOB(0), JOB(0), GO, END_MEM(0), GO, LATER(21), LATER(21), GO_ON}},
    {"gone_in_use", {CLIENT(0), MEM(0), JOB(0), GO, STEP_CLOSE, 0, 0, GO, LATER(21), STEP_NURSE, 0, GO_ON}},
    {"quota", {CLIENT(0), MEM(0), MEM(0), MEM(0), MEM(0), CLIENT(1), MEM(1), MEM(1), MEM(1), CLIENT(2), MEM(2)}},
    {"reload", {CLIENT(0), MEM(0), STEP_SIGNAL, 0, GO, STEP_NURSE, 100, GO, MEM(0), CLIENT(1), MEM(1), MODEL(1)}},
    {"numbers", {CLIENT(0), STEP_REQUEST, 0, 10, 0, 0, STEP_REQUEST, 0, 2, 0, 0, GO_ON, STEP_READ, 0, STEP_METRICS, 1, GO_ON}},
    {"beyond", {CLIENT(0), MEM(0), STEP_RING, 0, 0, 0, 0, 1, 10 << 2 | 3, 80, 0, GO_ON, STEP_READ, 0}}, /* q.offset_bytes */
    {"garbage", {CLIENT(0), STEP_RAW, 0, 20, 0, 0x33, 5, 6, 7, 8, 1, 2, 3, 4, GO_ON, STEP_CONNECT, 1, 0, LATER(21)}},
    {"shortage", {STEP_CONNECT, 0, 0, STEP_SHORTAGE, 0, GO_ON, STEP_HELLO, 0, 1, 0, STEP_REQUEST, 0, 3, 0, 0, 0,
                  STEP_SHORTAGE, 0, GO_ON, STEP_READ, 0}},
    {"stranger", {STEP_CONNECT, 0, 99, GO_ON}},
    {"gpu_share", {ON_GPU, GPU_CLIENT(0), GPU_MEM(0), GPU_TIMELINE(0, 0), GPU_TIMELINE(0, 1), SIGNALLING_JOB(0), GO, STEP_END_JOB,
                   8, GO_ON, END_MEM(0), GO_ON}},
    {"gpu_wait", {ON_GPU, GPU_CLIENT(0), GPU_MEM(0), GPU_TIMELINE(0, 0), WAITING_JOB(0), GO, STEP_RING, 0, 3, 0, 1, 0, GO_ON}},
    {"gpu_gone", {ON_GPU, GPU_CLIENT(0), GPU_MEM(0), GPU_TIMELINE(0, 1), SIGNALLING_JOB(0), SIGNALLING_JOB(0), GO, STEP_CLOSE, 0, 0,
                  GO, STEP_ANSWER, 0, STEP_END_JOB, 8, GO_ON, GPU_CLIENT(1), GO_ON}},
    {"gpu_dies", {ON_GPU, GPU_CLIENT(0), GPU_MEM(0), GPU_TIMELINE(0, 1), SIGNALLING_JOB(0), JOB(0), GO, STEP_WORKER_DIES, 1, 0, GO,
                  LATER(14), GO_ON, STEP_READ, 0}},
    {"gpu_background", {ON_GPU, STEP_CONNECT, 0, 0, STEP_HELLO, 0, 129, 0, CLIENT(1), MEM(0), MEM(1), JOB(0), JOB(1), JOB(0), GO,
                        STEP_END_JOB, 0, GO_ON}},
    {"draft", {BACKGROUND(0), MEM(0), CUT_JOB(0), CUT_JOB(0), GO_ON, GO_ON, LATER(20), GO_ON}},
    {"draft_late", {BACKGROUND(0), MEM(0), CUT_JOB(0), GO, STEP_ANSWER, 0, GO, STEP_END_JOB, 0, LATER(21), STEP_END_JOB, 1, 4,
                    GO_ON, CUT_JOB(0), GO_ON}},
    {"draft_refused", {BACKGROUND(0), MEM(0), CUT_JOB(0), GO, STEP_ANSWER, 1, GO, STEP_END_JOB, 0, GO_ON}},
    {"draft_no_room", {BACKGROUND(0), MEM(0), MEM(0), CUT_JOB(0), GO, STEP_END_JOB, 0, GO_ON}},
    {"draft_cancelled", {BACKGROUND(0), MEM(0), CUT_JOB(0), CUT_JOB(0), GO, STEP_ANSWER, 0, GO, STEP_END_JOB, 0, GO,
                         CANCEL(0, 2), GO, STEP_END_JOB, 1, 4, GO_ON}},
    {"draft_gone", {BACKGROUND(0), MEM(0), CUT_JOB(0), GO, STEP_ANSWER, 0, GO, STEP_END_JOB, 0, STEP_CLOSE, 0, 0, GO_ON}},
    {"draft_gone_unmade", {BACKGROUND(0), MEM(0), CUT_JOB(0), GO, STEP_CLOSE, 0, 0, GO_ON}},
    {"draft_dies", {BACKGROUND(0), BACKGROUND(1), MEM(0), MEM(1), CUT_JOB(0), GO, STEP_ANSWER, 0, GO, STEP_END_JOB, 0, JOB(1), GO,
                    STEP_END_JOB, 0, GO, STEP_WORKER_DIES, 1, 0, GO, LATER(14), GO_ON}},
    {"draft_dies_unmade", {BACKGROUND(0), MEM(0), CUT_JOB(0), GO, STEP_WORKER_DIES, 1, 0, GO, LATER(14), GO_ON}},
    {"gpu_draft", {NO_FRAMES, BACKGROUND(0), MEM(0), CUT_JOB(0), CUT_JOB(0), GO_ON, GO_ON, LATER(20), GO_ON}},
    {"stops", {CLIENT(0), MEM(0), JOB(0), GO, STEP_SIGNAL, 77, GO, JOB(0), GO, STEP_END_JOB, 0, GO_ON}},
};
/* clang-format on */

static bool make_corpus(const char *folder)
{
    bool ok = true;

    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++) {
        const uint8_t *bytes = beginnings[i].bytes;
        uint8_t input[sizeof beginnings[i].bytes + 1] = {bytes[0] == ON_GPU ? 1 : bytes[0] == NO_FRAMES ? 3 : 0};
        size_t size = sizeof beginnings[i].bytes - 1;
        const size_t from = input[0] != 0;

        while (size > 1 && !bytes[size - 1])
            size--;
        memcpy(input + 1, bytes + from, size + 1 - from);
        ok = ok && fuzz_write(folder, beginnings[i].name, input, size + 2 - from);
    }
    return ok;
}

int main(int argc, char **argv)
{
    enum { DEFAULT_RUNS = 3000 };

    return fuzz_main(argc, argv, "fuzz_server", DEFAULT_RUNS, make_corpus);
}
#endif
