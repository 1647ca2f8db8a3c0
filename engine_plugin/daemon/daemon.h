/* tandemd from the inside: a broker that knows the clients, a worker that computes, a nursery that starts workers.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   main.c     options, signals' set-up, the start          config.c   what the file may say
 *   nursery.c  starts and ends workers, opens files: what the broker may not do any more once it is confined
 *   broker.c   the main thread: what it listens to          queue.c    the second one: rings, points, who is next
 *   clients.c  who connects, what each asks for             errands.c  what the worker has, a new one for a dead one
 *   worker.c   a session, the clients' memory, the desk     confine.c  system calls that are given up
 *   metrics.c  the numbers in Prometheus' text format
 *
 *   clients ==== sockets, areas, pages ====> broker ---- errands (socket), jobs (desk) ----> worker
 *                                              |  <--- memory, answers, results ----------     ^
 *                                              +----> nursery ----------------- starts --------+
 *
 * One mutex holds all of the broker; the second thread sleeps on futexes, the main one in poll(). What a sleeper may
 * look at (areas, pages) is unmapped by the second thread alone.
 */
#ifndef TANDEM_DAEMON_H
#define TANDEM_DAEMON_H

#include <pthread.h>
#include <sys/types.h>

#include "interop/wire/conn.h"
#include "interop/wire/ids.h"
#include "interop/wire/ring.h"
#include "tandem/tandem.h"

enum {
    TD_DESK_SLOTS = 4,
    TD_DESK_DEPTH = 2, /* jobs that the worker has at a time: one runs, the next need not be fetched */
    TD_MAX_CLIENTS = 48, /* so that all bells fit into one futex_waitv() */
    TD_MAX_NEW = 32,     /* connections that have not said hello, beside those */
    TD_MAX_WORKS = TD_WIRE_SLOTS,
    TD_MAX_NUMBERS = 65536, /* objects that the worker can have */
    TD_MAX_ALLOWED = 16,
    TD_MAX_MODEL_DIRS = 8,
    TD_MAX_REQUESTS = 32, /* of a client, without answer */
    TD_MAX_ERRANDS = 32,  /* that the worker has not answered */
    TD_VIEWS = 5,
    TD_TEXT_BYTES = TD_WIRE_TEXT_BYTES,
};
#define TD_SECOND 1000000000ull

/* config.c */
typedef struct td_config {
    uint32_t backend; /* tandem_backend */
    uint32_t threads, clients, mems, timelines, models, metrics_port, log_level, allow_count, model_dir_count;
    uint64_t mem_bytes, client_bytes, total_bytes, model_bytes, share_window_ns, job_ns;
    uint32_t allow[TD_MAX_ALLOWED];
    char model_dirs[TD_MAX_MODEL_DIRS][256];
} td_config;
extern const char td_config_help[];
td_config td_config_default(void);
/* Reads a file over *config, which is unchanged on failure: IO, or ARG naming line, key and value. */
tandem_status td_config_read(const char *path, td_config *config, char *why, size_t why_bytes);

/* main.c: a line on stderr, with its priority for journald if that reads it. */
void td_say(td_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
extern uint32_t td_say_level;

/* Messages between our own processes: whole, with at most two descriptors, over SOCK_SEQPACKET. BUSY: not now; LOST. */
tandem_status td_pass(int to, const void *message, size_t bytes, const int *fds, uint32_t fd_count);
/* fds[2]: -1 where none came; they are the caller's. PROTOCOL: not of this size. */
tandem_status td_fetch(int from, void *message, size_t bytes, int fds[2]);

/* nursery.c */
typedef enum td_nurse_kind {
    TD_NURSE_SPAWN = 1, /* with the worker's end of its socket, and the desk */
    TD_NURSE_SPAWNED = 2,
    TD_NURSE_KILL = 3,
    TD_NURSE_ENDED = 4,
    TD_NURSE_OPEN = 5, /* a file beneath the model directories */
    TD_NURSE_OPENED = 6,
    TD_NURSE_CONFIG = 7, /* read it again */
} td_nurse_kind;
typedef struct td_nurse {
    uint32_t kind, serial;
    int32_t pid, status; /* ENDED: as of wait(); else tandem_status */
    char text[TD_WIRE_PATH_BYTES];
    td_config config;
} td_nurse;
/* Forks; returns the socket to it, or -1. */
int td_nursery_start(const td_config *config, const char *config_path);

/* The desk: jobs on their way to the worker and back, in memory that both map. */
typedef enum td_slot_state { TD_SLOT_FREE = 0, TD_SLOT_READY = 1, TD_SLOT_ENDED = 2 } td_slot_state;
typedef struct td_slot {
    _Atomic uint32_t state; /* FREE -> READY by the broker, -> ENDED by the worker, -> FREE by the broker */
    _Atomic uint32_t cancel;
    uint64_t sequence;    /* the order in which they run */
    uint64_t deadline_ns; /* CLOCK_MONOTONIC; 0: none */
    tandem_job job;       /* mems are numbers of the worker's objects, points none */
    uint32_t end_state, precision;
    int32_t status;
    uint64_t begin_ns, end_ns;
    char text[TD_TEXT_BYTES];
} td_slot;
typedef struct td_desk {
    td_bell to_worker, to_broker;
    td_slot slots[TD_DESK_SLOTS];
} td_desk;
#define TD_DESK_BYTES td_align_up(sizeof(td_desk), 4096)

/* What the broker asks of the worker, and the same struct with the answer. */
typedef enum td_task_kind {
    TD_TASK_HELLO = 1, /* from the worker, unasked: it has a session */
    TD_TASK_MEM = 2,   /* with the slab */
    TD_TASK_MODEL = 3, /* with the file */
    TD_TASK_END = 4,   /* of either */
    TD_TASK_TENSOR = 5,
    TD_TASK_INFO = 6,
    TD_TASK_BROKEN = 7, /* from the worker, unasked: its last words */
} td_task_kind;
typedef struct td_task {
    uint32_t kind, serial, number;
    int32_t status;
    uint64_t bytes, offset_bytes;
    char text[TD_TEXT_BYTES]; /* a name, or why not */
    tandem_view view;
    uint64_t shape[4];
    tandem_info info;
} td_task;

/* worker.c: the worker's main(), with its socket and the desk's memfd. */
int td_worker_main(int socket, int desk, uint32_t backend, uint32_t threads);

/* confine.c. Both: no new privileges, no core files, not to be traced. */
void td_confine_process(void);
/* From here on this process has few system calls left, in all its threads: what it needs (broker), or all but what no
 * driver needs once it is up (worker). */
tandem_status td_confine_broker(char *why, size_t why_bytes);
tandem_status td_confine_worker(char *why, size_t why_bytes);

/* Weights that the worker has, for however many clients. */
typedef struct td_weights {
    uint32_t number, uses;
    bool there;
    int fd;
    uint64_t device, inode, mtime_ns, bytes;
    struct td_weights *next;
} td_weights;

typedef struct td_client td_client;

/* What a client shares: a mem, a timeline, or its part of a model. */
typedef struct td_shared {
    td_client *client;
    uint64_t id;
    td_wire_kind kind;
    uint32_t number;  /* in the worker; 0: nothing there */
    uint32_t uses;    /* jobs */
    uint32_t pending; /* the request that made it and was not answered yet; 0: it was */
    bool there;       /* the worker has it */
    bool closing;
    uint32_t close_serial;
    uint64_t close_until_ns;
    uint64_t bytes, offset_bytes, allocation_bytes;
    int fd;
    td_point point; /* of a timeline */
    bool by_daemon;
    uint64_t promised;
    td_weights *weights;     /* of a model, and of the mem that its tensors are in */
    struct td_shared *model_mem; /* of a model: that mem, once somebody asked */
    tandem_status status;    /* why the worker does not have it any more */
    struct td_shared *next;
} td_shared;

typedef struct td_work {
    uint64_t ticket; /* 0: free */
    td_client *client;
    tandem_job job;
    td_shared *mems[TD_VIEWS], *wait, *signal;
    uint64_t taken_ns, ready_ns, run_ns, deadline_ns, bound_ns; /* run: since it is the worker's next */
    uint64_t signal_value;
    int slot; /* of the desk; -1: it waits */
    bool given_up, told;
    uint32_t end_state;
    tandem_status end_status;
} td_work;

typedef enum td_client_state { TD_CLIENT_NEW, TD_CLIENT_READY, TD_CLIENT_GONE } td_client_state;
struct td_client {
    td_client_state state;
    td_conn conn;
    td_wire_rules rules;
    int process; /* pidfd, or -1 */
    uint32_t session, share, frames, timing, pending, strikes;
    uint64_t features, wait_bound_ns, since_ns, gone_ns;
    char name[TD_WIRE_NAME_BYTES];
    td_ring ring;
    td_ids mems, timelines, models;
    td_ids_slot *slots;
    td_shared *shared;
    td_work *works; /* TD_MAX_WORKS, once it has said hello */
    td_work *order[TD_MAX_WORKS];
    uint32_t count;
    bool swept;  /* gone: its jobs were given up */
    bool listed; /* in a text that names who holds what */
    int polled;  /* where in poll()'s array; -1: not there */
    uint64_t last_ticket; /* that was taken */
    uint64_t mem_bytes, model_bytes;
    uint64_t virtual_ns; /* of compute that it has had, or might have had while others did */
    uint64_t submitted, done, stale, cancelled, failed, compute_ns, wait_ns;
    td_client *next;
};

/* A task on its way to the worker. */
typedef struct td_errand {
    td_task task;
    bool sent;
    bool again; /* what the worker before had: jobs wait for it */
    td_client *client; /* whose request this is, or NULL */
    uint32_t serial;
    uint64_t mem; /* TENSOR: the client's id of what the tensors are in */
    td_shared *shared;
    td_weights *weights;
    struct td_errand *next;
} td_errand;

/* A file that is being opened for a client. */
typedef struct td_opening {
    uint32_t serial, request;
    td_client *client;
    struct td_opening *next;
} td_opening;

typedef struct td_broker {
    pthread_mutex_t lock;
    td_config config;
    td_listener listener;
    td_wire_identity identity;
    uid_t uid;
    int nursery, signals, metrics, notify;
    bool stopping, ready_told;
    uint64_t stop_ns, watchdog_ns, watched_ns;

    td_client *clients;
    uint32_t client_count, new_count, session_count; /* sessions: so far */
    uint64_t mem_bytes, model_bytes;
    uint64_t jobs_done, jobs_stale, jobs_cancelled, jobs_failed, compute_ns, refused;

    td_weights *weights;
    td_opening *openings;
    td_errand *errands;
    uint32_t errand_serial, open_serial;
    unsigned char *numbers; /* which are taken */
    uint32_t next_number;

    int worker;    /* the socket to it, or -1 */
    int worker_pid;
    bool has_worker; /* it has said hello, and has all that there is */
    bool worker_said;
    uint32_t epoch, early_ends;
    uint64_t spawned_ns, respawn_ns, killed_ns;
    tandem_info worker_info;
    char worker_text[TD_TEXT_BYTES];
    tandem_status worker_status;
    td_desk *desk, *old_desk; /* old: for the second thread to unmap */
    td_work *desk_works[TD_DESK_SLOTS];
    uint64_t sequence, virtual_ns;

    pthread_t thread;
    pthread_barrier_t begun; /* a thread's start takes system calls that the broker gives up */
    bool has_thread, end_thread;
    td_bell kick; /* of the second thread */
    uint64_t turns, watched_turns;
} td_broker;

/* broker.c */
int td_broker_run(td_broker *b);
void td_tell_manager(td_broker *b, const char *text);

/* clients.c */
void td_clients_accept(td_broker *b);
void td_client_read(td_broker *b, td_client *c);
/* The nursery has opened a file, or has not; *fd may be taken. */
void td_client_opened(td_broker *b, const td_nurse *m, int *fd);
/* Ends a connection: `status` PROTOCOL and others are told as ERROR, OK as BYE with `reason`, LOST not at all. The
 * second thread does the rest, so the client stays where it is in the list. */
void td_client_end(td_broker *b, td_client *c, tandem_status status, td_wire_reason reason, const char *why);
void td_client_free(td_broker *b, td_client *c);
tandem_status td_client_send(td_broker *b, td_client *c, const td_wire_message *m, const int *fd);
/* A request has its answer; the two behind it see to that themselves. */
void td_client_answered(td_client *c, uint32_t serial);
void td_client_error(td_broker *b, td_client *c, uint32_t serial, uint64_t ticket, tandem_status status,
                     const char *text);
void td_client_done(td_broker *b, td_client *c, uint32_t serial, uint64_t id);

/* errands.c */
uint32_t td_number_take(td_broker *b); /* 0: none left */
td_errand *td_errand_add(td_broker *b, td_task_kind kind, uint32_t number, bool first);
void td_errand_remove(td_broker *b, td_errand *errand);
void td_errands_run(td_broker *b);
td_ids *td_shared_ids(td_client *c, td_wire_kind kind);
td_shared *td_shared_add(td_client *c, td_wire_kind kind);
/* Ends a shared object that nothing uses any more. */
void td_shared_end(td_broker *b, td_shared *shared);
void td_weights_drop(td_broker *b, td_weights *weights);
void td_worker_spawn(td_broker *b);
/* False: there will never be a worker. */
bool td_worker_read(td_broker *b);
void td_worker_kill(td_broker *b, const char *why);

/* queue.c. All with the lock held but the thread's main. */
void *td_queue_main(void *broker);
/* Takes what the client's ring holds now. */
void td_queue_take(td_broker *b, td_client *c);
/* Has a work end so, now or in its turn. */
void td_queue_give_up(td_broker *b, td_work *work, uint32_t state, tandem_status status);
/* Signals and ends those of a client's that were given up and whose turn it is. */
void td_queue_settle(td_broker *b, td_client *c);
/* The worker is gone: what it had has failed. */
void td_queue_lost(td_broker *b);
static inline void td_queue_kick(td_broker *b) { td_bell_ring(&b->kick); }

/* metrics.c: answers one who asks over HTTP, and closes. */
int td_metrics_listen(uint32_t port, char *why, size_t why_bytes);
void td_metrics_answer(td_broker *b);

#endif
