/* What an input of fuzz_server acts in: a broker, the launcher and the worker that the input plays, and clients.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_FUZZ_SERVER_WORLD_H
#define TANDEM_TESTS_FUZZ_SERVER_WORLD_H

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "engine_plugin/daemon/broker.h"
#include "engine_plugin/daemon/launcher.h"
#include "engine_plugin/daemon/log.h"
#include "engine_plugin/daemon/pass.h"
#include "engine_plugin/daemon/queue.h"

enum {
    PEERS = 4,
    IDS = 4,      /* of a kind that a peer remembers */
    COUNTERS = 4, /* memory that timelines are made of */
    MOST_STEPS = 200,
    BUFFER_BYTES = 16384,
    ROUNDS = 4000, /* of an honest world, until all must have come to an end */
};
#define MS 1000000ull

typedef enum step_kind {
    STEP_CONNECT,
    STEP_HELLO,
    STEP_REQUEST, /* of any type, right but for what the input changes */
    STEP_RAW,
    STEP_RING,     /* likewise, and published */
    STEP_SCRIBBLE, /* in the shared ring */
    STEP_PAGE,
    STEP_READ,
    STEP_CLOSE,
    STEP_TURN,
    STEP_ANSWER, /* the worker's, to a request */
    STEP_END_JOB,
    STEP_WORKER_DIES,
    STEP_LAUNCHER,
    STEP_TIME,
    STEP_SIGNAL,
    STEP_METRICS,
    STEP_SHORTAGE, /* a turn without descriptors left */
    STEPS
} step_kind;

typedef enum fd_kind {
    FD_BUFFER,
    FD_COUNTER,
    FD_LAST_COUNTER = FD_COUNTER + COUNTERS - 1,
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
    uint64_t ids[TD_WIRE_KINDS][IDS]; /* by td_wire_kind, the newest first */
} peer;

/* A job of which a piece was not DONE. */
typedef struct spoiled {
    uint32_t session; /* its client's; 0: none */
    uint64_t ticket;
} spoiled;

/* What the worker has been told of an object. */
typedef struct known {
    bool imported, is_timeline, is_model, is_instance, is_temp_output;
    uint32_t worker_session;
    uint64_t bytes;
} known;

typedef struct world {
    td_broker b;
    peer peers[PEERS]; /* the first is the neighbour */
    int launcher, worker, signals;
    td_worker_queue *queue;
    known *items;             /* by number; of this worker */
    uint64_t worker_sessions; /* likewise, one bit each */
    bool is_gpu, is_behind; /* behind: the neighbour's jobs are the background's, so that there may be no frames */
    uint64_t frames_ns;       /* since when the worker has frames' jobs, 0: it has none; and the last piece of the */
    uint64_t background_last; /* background's that it was given, by sequence */
    spoiled spoiled[TD_WORKER_SLOTS];
    bool scribbled; /* in a ring: its reports say nothing any more */
    uint64_t counter_value;
    bool over; /* the broker has ended */
    const uint8_t *data;
    size_t left;
} world;

extern world w;
/* Made once, for all inputs. */
extern int listener, metrics, fds[FD_KINDS];
extern struct sockaddr_un at, metrics_at;
extern socklen_t at_bytes, metrics_at_bytes;
extern td_shared_counter *counters[COUNTERS];
extern td_wire_identity identity;
extern uint64_t now_ns;
void broken(const char *what);
void need(bool is, const char *what);
uint8_t take(void);
void take_bytes(void *to, size_t bytes);
uint32_t take_number(size_t bytes);
/* Changes a few numbers in what was right. */
void twist(void *bytes, size_t length);
void make_once(void);
int count_fds(void);

/* worker.c's. */

void lose_worker(void);
void tell(const td_worker_message *message);
/* Of this machine, with the device that the worker has. */
td_wire_identity identity_of(bool is_gpu);
/* Takes one request and answers as `how` says: 0 as a worker does. False: there was none. */
bool answer_request(uint8_t how);
void look_at_queue(void);
/* Ends the oldest job that the worker has; `state` and `status` may be anything. */
bool end_job(uint32_t state, int32_t status, uint64_t ns, bool with_text);
/* The launcher. `how` 0: as it does. False: nothing was asked of it. */
bool act_launcher(uint8_t how);

/* clients.c's. */

void forget(peer *p);
void connect_peer(peer *p);
void say_message(peer *p, const td_wire_message *m, int fd);
td_wire_message hello(uint32_t share);
/* Reads all that was said to a peer. False: its connection is over. `last`: the last answer. */
bool read_all(peer *p, td_wire_message *last);
void go(void);
/* An honest launcher and worker, until nothing has been asked of them for some turns. */
void go_honestly(void);
peer *take_peer(void);
void make_job(const peer *p, td_wire_message *m);
void send_request(peer *p);
void send_raw(const peer *p);
void put(peer *p);
void scribble(const peer *p);
void touch_page(void);
void ask_for_metrics(void);
void send_signal(void);
/* As many descriptors are left as the input says. */
void go_short(void);

#endif
