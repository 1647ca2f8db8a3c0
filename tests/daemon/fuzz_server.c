/* Whatever clients do, in whatever order: a whole broker in this process, with a launcher and a worker that the input
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
#include <string.h>
#include <unistd.h>

#include "interop/os/descriptor.h"
#include "tests/daemon/fuzz_server/world.h"
#include "tests/fuzz_util.h"
#include "tests/interop/wire_util.h"

static void step(void)
{
    static td_worker_message last;
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
        answer_request(take());
        break;
    case STEP_END_JOB:
        how = take();
        end_job(how & 1 ? take() : TANDEM_JOB_DONE, how & 2 ? (int32_t)take_number(4) : 0,
                how & 4 ? UINT64_MAX - now_ns : MS, how & 8);
        break;
    case STEP_WORKER_DIES:
        how = take();
        last = (td_worker_message){.kind = how & 1 ? TD_WORKER_BROKEN : take(),
                                   .serial = take(),
                                   .status = TANDEM_ERROR_DEVICE};
        memset(last.text, 'z', sizeof last.text);
        if (how & 2 && last.kind != TD_WORKER_HELLO) /* what it says is believed; but not nonsense */
            tell(&last);
        lose_worker();
        break;
    case STEP_LAUNCHER:
        act_launcher(take());
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
    need(read_all(p, &last) && p->ring.shared, "no WELCOME for a neighbour");
    m = wire_sample(TD_WIRE_MEM_CREATE);
    m.header.serial = p->rules.next_serial;
    m.mem_create.allocation_bytes = BUFFER_BYTES;
    m.mem_create.offset_bytes = 0;
    say_message(p, &m, fds[FD_BUFFER]);
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
        need(p->ring.shared != NULL, "a neighbour whose connection is over");
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
    for (int i = 0; i < COUNTERS; i++)
        memset((void *)counters[i], 0, sizeof *counters[i]);
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
    w.b.launcher = ends[0];
    w.launcher = ends[1];
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
    for (int i = 0; i < ROUNDS && !w.over && (w.b.clients || w.b.worker_requests || w.b.openings || w.b.listener.fd < 0); i++) {
        go_honestly();
        now_ns += 5 * MS;
    }
    if (!w.over) {
        need(!w.b.clients && !w.b.client_count && !w.b.new_count, "a client that does not go");
        need(!w.b.mem_bytes && !w.b.model_bytes && !w.b.model_cache, "bytes that nobody holds");
        need(!w.b.worker_requests && !w.b.openings, "a request that nobody runs");
        need(!memchr(w.b.numbers, 1, TD_MAX_NUMBERS), "a number that nobody has");
        need(!w.b.worker_sessions, "a session that nobody has");
        for (uint32_t i = 0; i < TD_MAX_NUMBERS && w.worker >= 0; i++)
            need(!w.items[i].imported, "memory that the worker keeps");
    }
    td_broker_end(&w.b);
    lose_worker();
    td_fd_close(&w.b.launcher);
    td_fd_close(&w.b.signals);
    td_fd_close(&w.b.metrics);
    td_fd_close(&w.launcher);
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
#define TIMELINE(p, by_daemon, counter) STEP_REQUEST, p, 5, by_daemon, counter, 0, 0, STEP_TURN, 1, STEP_READ, p
#define MODEL(p) STEP_REQUEST, p, 7, 0, 0, STEP_TURN, 1, STEP_READ, p
#define TENSOR(p) STEP_REQUEST, p, 8, 0, 0, 0, STEP_TURN, 1, STEP_READ, p
#define GRAPH(p) STEP_REQUEST, p, 22, 0, 0, 0, STEP_TURN, 1, STEP_READ, p
#define INSTANCE(p) STEP_REQUEST, p, 23, 0, 0, 0, STEP_TURN, 1, STEP_READ, p
#define PREPARE(p) STEP_REQUEST, p, 24, 0, 0, 0, STEP_TURN, 1, STEP_READ, p
#define ASK_STATE(p) STEP_REQUEST, p, 34, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
#define STATE(p) ASK_STATE(p), STEP_TURN, 1, STEP_READ, p
#define END_INSTANCE(p) STEP_REQUEST, p, 25, 0, 0, 0
#define RUN(p) STEP_RING, p, 4, 0, 0, 0, 0
#define UNIFORMS(p) STEP_RING, p, 6, 200, 0, 0
#define JOB(p) STEP_RING, p, 0, 0, 0, 0
#define LATE_JOB(p) STEP_RING, p, 0, 1, 0, 0
#define CUT_JOB(p) STEP_RING, p, 0, 49, 0, 0 /* in the background; with a deadline, so with a temporary output */
#define LONG_JOB(p) STEP_RING, p, 0, 16, 0, 0 /* cut, too; without a deadline */
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
    {"worker_three_times", {CLIENT(0), MEM(0), JOB(0), GO, STEP_WORKER_DIES, 0, 0, 0, LATER(20), STEP_LAUNCHER, 0, GO, GO,
                            STEP_ANSWER, 0, STEP_ANSWER, 0, GO, JOB(0), GO, STEP_WORKER_DIES, 0, 0, 0, LATER(20),
                            STEP_LAUNCHER, 0, GO, STEP_ANSWER, 0, STEP_ANSWER, 0, JOB(0), GO, STEP_WORKER_DIES, 0, 0, 0,
                            GO_ON}},
    {"wait", {CLIENT(0), MEM(0), TIMELINE(0, 0, 0), WAITING_JOB(0), GO, STEP_PAGE, 128, 3, GO_ON}},
    {"wait_for_good", {CLIENT(0), MEM(0), TIMELINE(0, 0, 0), WAITING_JOB(0), GO, LATER(17), GO_ON}},
    {"page_falls", {CLIENT(0), MEM(0), TIMELINE(0, 0, 0), STEP_PAGE, 128, 0, WAITING_JOB(0), GO_ON, STEP_PAGE, 0, 0,
                    WAITING_JOB(0), GO_ON}},
    {"cancel", {CLIENT(0), MEM(0), JOB(0), JOB(0), JOB(0), JOB(0), GO, CANCEL(0, 1), GO, CANCEL(0, 4), GO, STEP_END_JOB, 1, 4,
                GO_ON}},
    {"late", {CLIENT(0), MEM(0), LATE_JOB(0), LATE_JOB(0), LATE_JOB(0), LATE_JOB(0), GO, LATER(12), STEP_END_JOB, 0, GO_ON}},
    {"hang", {CLIENT(0), MEM(0), JOB(0), GO, LATER(23), STEP_LAUNCHER, 0, GO_ON}},
    {"destroy_in_use", {CLIENT(0), MEM(0), JOB(0), JOB(0), GO, END_MEM(0), GO, LATER(21), LATER(21), GO_ON}},
    {"gone_in_use", {CLIENT(0), MEM(0), JOB(0), GO, STEP_CLOSE, 0, 0, GO, LATER(21), STEP_LAUNCHER, 0, GO_ON}},
    {"quota", {CLIENT(0), MEM(0), MEM(0), MEM(0), MEM(0), CLIENT(1), MEM(1), MEM(1), MEM(1), CLIENT(2), MEM(2)}},
    {"reload", {CLIENT(0), MEM(0), STEP_SIGNAL, 0, GO, STEP_LAUNCHER, 100, GO, MEM(0), CLIENT(1), MEM(1), MODEL(1)}},
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
    {"temp_output", {BACKGROUND(0), MEM(0), CUT_JOB(0), CUT_JOB(0), GO_ON, GO_ON, LATER(20), GO_ON}},
    {"temp_output_late", {BACKGROUND(0), MEM(0), CUT_JOB(0), GO, STEP_ANSWER, 0, GO, STEP_END_JOB, 0, LATER(21), STEP_END_JOB,
                          1, 4, GO_ON, CUT_JOB(0), GO_ON}},
    {"temp_output_refused", {BACKGROUND(0), MEM(0), CUT_JOB(0), GO, STEP_ANSWER, 1, GO, STEP_END_JOB, 0, GO_ON}},
    {"temp_output_no_room", {BACKGROUND(0), MEM(0), MEM(0), CUT_JOB(0), GO, STEP_END_JOB, 0, GO_ON}},
    {"temp_output_cancelled", {BACKGROUND(0), MEM(0), CUT_JOB(0), CUT_JOB(0), GO, STEP_ANSWER, 0, GO, STEP_END_JOB, 0, GO,
                               CANCEL(0, 2), GO, STEP_END_JOB, 1, 4, GO_ON}},
    {"temp_output_gone", {BACKGROUND(0), MEM(0), CUT_JOB(0), GO, STEP_ANSWER, 0, GO, STEP_END_JOB, 0, STEP_CLOSE, 0, 0,
                          GO_ON}},
    {"temp_output_gone_unmade", {BACKGROUND(0), MEM(0), CUT_JOB(0), GO, STEP_CLOSE, 0, 0, GO_ON}},
    {"temp_output_dies", {BACKGROUND(0), BACKGROUND(1), MEM(0), MEM(1), CUT_JOB(0), GO, STEP_ANSWER, 0, GO, STEP_END_JOB, 0,
                          JOB(1), GO, STEP_END_JOB, 0, GO, STEP_WORKER_DIES, 1, 0, GO, LATER(14), GO_ON}},
    {"temp_output_dies_unmade", {BACKGROUND(0), MEM(0), CUT_JOB(0), GO, STEP_WORKER_DIES, 1, 0, GO, LATER(14), GO_ON}},
    {"gpu_temp_output", {NO_FRAMES, BACKGROUND(0), MEM(0), CUT_JOB(0), CUT_JOB(0), GO_ON, GO_ON, LATER(20), GO_ON}},
    {"gpu_piece_fails", {NO_FRAMES, BACKGROUND(0), MEM(0), LONG_JOB(0), GO, STEP_END_JOB, 0, GO, STEP_END_JOB, 0, GO, STEP_END_JOB,
                         1, TANDEM_JOB_FAILED, GO, GO_ON}}, /* the last but one, and the last one does not */
    {"network", {CLIENT(0), MEM(0), MODEL(0), GRAPH(0), INSTANCE(0), PREPARE(0), RUN(0), GO, STEP_END_JOB, 0, UNIFORMS(0),
                 UNIFORMS(0), RUN(0), GO_ON, END_INSTANCE(0), GO_ON}},
    {"network_dies", {CLIENT(0), MEM(0), MODEL(0), INSTANCE(0), PREPARE(0), RUN(0), RUN(0), GO, STEP_WORKER_DIES, 1, 0, GO,
                      LATER(14), GO_ON, STEP_READ, 0, RUN(0), PREPARE(0), END_INSTANCE(0), GO_ON}},
    {"network_gone", {CLIENT(0), MEM(0), MODEL(0), INSTANCE(0), RUN(0), GO, STEP_CLOSE, 0, 0, GO, STEP_END_JOB, 0, GO_ON}},
    {"network_of_another", {CLIENT(0), CLIENT(1), MEM(1), MODEL(0), INSTANCE(0), INSTANCE(0), STEP_RING, 1, 4, 0, 129, 0, 0, GO_ON,
                            STEP_READ, 1}},
    {"network_unprepared", {CLIENT(0), MODEL(0), INSTANCE(0), STEP_REQUEST, 0, 24, 0, 0, 0, STEP_REQUEST, 0, 24, 0, 0, 0,
                            END_INSTANCE(0), GO_ON, STEP_READ, 0}},
    {"network_without_model", {CLIENT(0), MEM(0), MODEL(0), INSTANCE(0), STEP_REQUEST, 0, 9, 0, 0, 0, GO_ON, RUN(0), GO_ON}},
    {"state", {CLIENT(0), MEM(0), MODEL(0), INSTANCE(0), STATE(0), RUN(0), ASK_STATE(0), GO, STEP_END_JOB, 0, STATE(0),
               END_INSTANCE(0), GO_ON}},
    {"state_before_run", {CLIENT(0), MEM(0), MODEL(0), INSTANCE(0), ASK_STATE(0), ASK_STATE(0), GO, RUN(0), GO, STEP_ANSWER, 0, GO,
                          STEP_END_JOB, 0, GO_ON, STEP_READ, 0}},
    {"state_dies", {CLIENT(0), MEM(0), MODEL(0), INSTANCE(0), ASK_STATE(0), GO, RUN(0), GO, STEP_WORKER_DIES, 1, 0, GO, LATER(14),
                    GO_ON, STEP_READ, 0, STATE(0), END_INSTANCE(0), END_MEM(0), GO_ON}},
    {"state_gone", {CLIENT(0), MEM(0), MODEL(0), INSTANCE(0), ASK_STATE(0), GO, STEP_CLOSE, 0, 0, GO, STEP_ANSWER, 0, GO_ON}},
    {"state_ends", {CLIENT(0), MEM(0), MODEL(0), INSTANCE(0), ASK_STATE(0), END_MEM(0), END_INSTANCE(0), GO, LATER(21), LATER(21),
                    STEP_ANSWER, 0, GO_ON}},
    {"network_unmade", {CLIENT(0), MODEL(0), STEP_REQUEST, 0, 23, 0, 0, 0, GO, STEP_WORKER_DIES, 1, 0, GO, STEP_CLOSE, 0, 0,
                        LATER(14), GO_ON}},
    {"gpu_network", {ON_GPU, GPU_CLIENT(0), GPU_MEM(0), GPU_TIMELINE(0, 1), MODEL(0), INSTANCE(0), PREPARE(0), STEP_RING, 0, 4,
                     4, 0, 0, 0, 0, GO, STEP_END_JOB, 8, GO_ON}},
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
