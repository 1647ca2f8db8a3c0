/* tandemd from the inside: a broker that knows the clients, a worker that computes, a launcher that starts workers.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   main.c             options, signals' set-up, the start
 *   config.c           what the file may say
 *   launcher.c         starts and ends workers, opens files: what the broker may not do any more once it is confined
 *   broker.c           the main thread: what it listens to
 *   queue.c            the second one: what it sleeps on, its turns
 *   queue_jobs.c       a job's begin and end
 *   queue_schedule.c   who is next, and what comes back
 *   accept.c           who connects
 *   clients.c          what each asks for
 *   worker_requests.c  what the worker has and is told of
 *   answers.c          what it says, a new one for a dead one
 *   blame.c            which request a worker died of
 *   worker.c           a session, the clients' memory
 *   worker_queue.c     which job is its next
 *   loader.c           the worker's loads of models
 *   confine.c          system calls that are given up
 *   descriptors.c      how many each client may hold
 *   metrics.c          the numbers in Prometheus' text format
 *   http.c             who asks for them
 *   log.c              lines on stderr, which nobody waits for
 *
 *   clients ==== sockets, shared rings and timelines ====> broker ---- requests (socket), jobs (queue) ----> worker
 *                                              |  <--- memory, answers, results ----------     ^
 *                                              +----> launcher ---------------- starts --------+
 *
 * One mutex holds all of the broker; the second thread sleeps on futexes, the main one in poll(). What a sleeper may
 * look at (shared rings and timelines) is unmapped by the second thread alone.
 */
#ifndef TANDEM_DAEMON_H
#define TANDEM_DAEMON_H

#include <poll.h>
#include <pthread.h>
#include <sys/types.h>

#include "engine_plugin/exec/preempt.h"
#include "engine_plugin/run/job_life.h"
#include "interop/wire/conn.h"
#include "interop/wire/ids.h"
#include "interop/wire/ring.h"
#include "kernels/attention/tuning.h"
#include "kernels/operation.h"
#include "tandem/tandem.h"

enum {
    TD_WORKER_SLOTS = 64,
    TD_CPU_DEPTH = 2,     /* jobs that a CPU has at a time: one runs, the next need not be fetched */
    TD_GPU_DEPTH = 4,     /* jobs of a client's that a GPU has at a time */
    TD_MAX_SESSIONS = 64, /* one bit each; on a GPU each client has one; session 0 is all others' */
    TD_BACKGROUND_SESSION = 1, /* on a CPU: the background's, which stands still for frames */
    TD_HOLDINGS = TD_MAX_SESSIONS + TD_GPU_DEPTH,
    TD_MAX_CLIENTS = 48, /* so that all event counts fit into one futex_waitv() */
    TD_MAX_NEW = 32,     /* connections that have not said hello, beside those */
    TD_MAX_WORKS = TD_WIRE_SLOTS,
    TD_MAX_NUMBERS = 65536, /* objects that the worker can have */
    TD_MAX_ALLOWED = 16,
    TD_MAX_MODEL_DIRS = 8,
    TD_MAX_REQUESTS = 32,        /* of a client, without answer */
    TD_MAX_WORKER_REQUESTS = 32, /* that the worker has not answered */
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
    char tuning[256]; /* "": none */
} td_config;
extern const char td_config_help[];
td_config td_config_default(void);
/* Reads a file over *config, which is unchanged on failure: IO, or ARG naming line, key and value. */
tandem_status td_config_read(const char *path, td_config *config, char *why, size_t why_bytes);

/* log.c: a line for stderr, with its priority for journald if that reads it. Never blocks: a thread writes what is kept, and
 * of more than that the oldest is dropped, which is said once there is room again. */
void td_say(td_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
extern uint32_t td_say_level;
/* Starts that thread, once; until then lines are kept. False: it cannot be started. */
bool td_log_begin(void);
/* In a process that was forked before that: what is kept is the other's. */
void td_log_forget(void);
/* At a process's end: lets the last lines be written, for 200 ms at most. */
void td_log_end(void);

/* Messages between our own processes: whole, with at most two descriptors, over SOCK_SEQPACKET. BUSY: not now; LOST. */
tandem_status td_pass(int to, const void *message, size_t bytes, const int *fds, uint32_t fd_count);
/* fds[2]: -1 where none came, and both where not all that were sent could be taken, as this process has no room for them;
 * they are the caller's. PROTOCOL: not of this size. */
tandem_status td_fetch(int from, void *message, size_t bytes, int fds[2]);

/* launcher.c */
typedef enum td_launcher_message_kind {
    TD_LAUNCHER_SPAWN = 1, /* with the worker's end of its socket, and its queue */
    TD_LAUNCHER_SPAWNED = 2,
    TD_LAUNCHER_KILL = 3,
    TD_LAUNCHER_ENDED = 4,
    TD_LAUNCHER_OPEN = 5, /* a file beneath the model directories */
    TD_LAUNCHER_OPENED = 6,
    TD_LAUNCHER_CONFIG = 7, /* read it again */
} td_launcher_message_kind;
typedef struct td_launcher_message {
    uint32_t kind, serial;
    int32_t pid, status; /* ENDED: as of wait(); else tandem_status */
    uint64_t device, inode; /* CONFIG: of our socket, whose mode goes by the configuration */
    char text[TD_WIRE_PATH_BYTES];
    td_config config;
} td_launcher_message;
/* Forks; returns the socket to it, or -1. config_given: that it is not there is an error. socket_path: NULL if its mode is
 * none of our business. */
int td_launcher_start(const td_config *config, const char *config_path, bool config_given, const char *socket_path);
/* Others may connect if any are allowed to: who they are the kernel says. 0, or -1 and errno: EEXIST if something else lies
 * there than that socket, which stays as it is. */
int td_socket_mode(const char *path, uint64_t device, uint64_t inode, const td_config *config);

/* The worker's queue: jobs on their way to the worker and back, in memory that both map. */
typedef enum td_slot_state { TD_SLOT_FREE = 0, TD_SLOT_READY = 1, TD_SLOT_ENDED = 2 } td_slot_state;
typedef struct td_slot {
    _Atomic uint32_t state; /* FREE -> READY by the broker, -> ENDED by the worker, -> FREE by the broker */
    _Atomic uint32_t cancel;
    uint32_t worker_session; /* which of the worker's runs it */
    uint32_t session;        /* the client's number */
    uint64_t sequence;    /* the order in which those of a worker's session run */
    uint64_t deadline_ns; /* CLOCK_MONOTONIC; 0: none */
    uint64_t own_bytes, all_bytes; /* the scratch that its client, and all clients, may hold */
    tandem_job job;        /* with numbers of the worker's objects; points only those that the GPU knows */
    uint32_t parts;        /* of an operation that is cut; 1: the job is all of it */
    uint32_t whole_of;     /* else its number (the job's own, but where that is TD_OPERATION_COMMIT), */
    tandem_operands whole; /* what it is, by which AUTO goes, */
    uint32_t position;     /* and where in it the part lies: td_target.position */
    uint32_t end_state, precision;
    int32_t status;
    uint32_t submitted; /* the GPU has it, or had it, and signals its point */
    uint64_t lacks_bytes; /* NOMEM: of scratch, beyond what may be held; 0: there is no more in the machine */
    uint32_t brief;     /* over before another thread would be awake for it */
    uint64_t begin_ns, end_ns;
    uint64_t held_ns, late_ns; /* preempted; the longest so far until the session's jobs stood still for that */
    char text[TD_TEXT_BYTES];
} td_slot;
typedef struct td_worker_queue {
    td_eventcount to_worker, to_broker;
    _Atomic uint32_t cpu;         /* where the broker ran when it notified the worker last, */
    _Atomic uint64_t notified_ns; /* and when that was */
    _Atomic uint32_t request, load; /* the serials of what the worker is at; 0: nothing */
    _Atomic uint64_t released; /* sessions whose clients are gone: nothing of theirs waits for anything any more */
    td_tuning_table tuning; /* the broker's, before there is a worker; no parts: none was given */
    td_preempt_flag preempt; /* raised while frames' jobs are in here: a CPU's background looks */
    /* Scratch: client's session << 32 | pages; of each of the worker's sessions, the last ones of the first one; on a CPU,
     * which has no others, from 1 on those of TD_BACKGROUND_SESSION. */
    _Atomic uint64_t held[TD_HOLDINGS];
    td_slot slots[TD_WORKER_SLOTS];
} td_worker_queue;
#define TD_WORKER_QUEUE_BYTES td_align_up(sizeof(td_worker_queue), 4096)
/* The worker's next job: the first READY one behind last_sequence[] of its session, of all sessions whose bit in `full` is
 * 0; NULL: none. Those of a session come in their order, whenever the broker puts them there. */
td_slot *td_worker_queue_next(td_worker_queue *queue, const uint64_t last_sequence[TD_MAX_SESSIONS], uint64_t full);

/* What goes over the worker's socket: the broker's requests, and the same struct with the answer. */
typedef enum td_worker_message_kind {
    TD_WORKER_HELLO = 1, /* from the worker, unasked: it has a session */
    TD_WORKER_MEM = 2,   /* with the memfd, or what Vulkan exported */
    TD_WORKER_MODEL = 3, /* with the file */
    TD_WORKER_END = 4,   /* of mem, model, timeline */
    TD_WORKER_TENSOR = 5,
    TD_WORKER_INFO = 6,
    TD_WORKER_BROKEN = 7, /* from the worker, unasked: its last words */
    TD_WORKER_TIMELINE = 8, /* with what Vulkan exported */
    TD_WORKER_BEGIN_SESSION = 9,
    TD_WORKER_END_SESSION = 10,
    TD_WORKER_FORGET = 11, /* the scratch of a client that is gone, or that needs the room */
} td_worker_message_kind;
typedef struct td_worker_message {
    uint32_t kind, serial, number;
    int32_t status;
    uint32_t worker_session, job_class;
    bool opaque, dedicated, by_daemon;
    bool temp_output; /* a MEM of the worker's own: nothing comes with it */
    uint64_t bytes, offset_bytes, allocation_bytes;
    uint64_t value; /* TIMELINE: its counter; BEGIN_SESSION: how long a wait may take, in ns; FORGET: the session */
    td_wire_identity identity; /* HELLO: device and driver */
    char text[TD_TEXT_BYTES]; /* a name, or why not */
    tandem_view view;
    uint64_t shape[4];
    tandem_info info;
} td_worker_message;

/* worker.c: the worker's main(), with its socket and the queue's memfd. */
int td_worker_main(int socket, int queue, uint32_t backend, uint32_t threads);

/* confine.c. Both: no new privileges, no core files, not to be traced. */
void td_confine_process(void);
/* From here on this thread, and those that it starts, can do nothing with files by their names but remove one from the
 * folder of that socket ("": nothing); where the kernel can see to that. */
void td_confine_files(const char *socket_path);
/* From here on this process has few system calls left, in all its threads: what it needs (broker), or all but what no
 * driver needs: once it is up (worker), or ever (launcher, whose workers inherit it). */
tandem_status td_confine_broker(char *why, size_t why_bytes);
tandem_status td_confine_launcher(char *why, size_t why_bytes);
tandem_status td_confine_worker(char *why, size_t why_bytes);

/* An entry of the model cache: the weights of a file in the worker, for however many clients. */
typedef struct td_cached_model {
    uint32_t number, uses;
    bool loaded;
    bool evicted; /* for others' sake: the next job that reads it has it loaded again; or */
    tandem_status status; /* why no worker could load it */
    bool retried; /* to load it, once others were evicted */
    uint32_t session; /* of the client that had it loaded last */
    uint64_t used_ns; /* by the last job */
    int fd;
    uint64_t device, inode, mtime_ns, bytes;
    struct td_cached_model *next;
} td_cached_model;

/* costs.c: what jobs take on the device, learned from those that have ended. */
enum { TD_COSTS = 256 };
typedef struct td_costs {
    uint64_t keys[TD_COSTS], best_ns[TD_COSTS]; /* of a shape: what it takes alone */
    double ns_per_mflop;                        /* of shapes that were never alone; 0: nothing was learned */
    uint64_t busy_ns, covered_ns;               /* for that: since it was learned last, and up to when */
    double mflops;
    bool is_gpu;
} td_costs;
/* Of an operation, or a part of one: `position` is td_target's. */
typedef struct td_workload {
    const td_operation *operation;
    const tandem_operands *op;
    uint32_t position;
} td_workload;
uint64_t td_cost_guess(const td_costs *costs, td_workload what);
/* Whether to wake another thread for it, or several, takes longer than it does. */
bool td_cost_is_brief(const td_costs *costs, td_workload what);
/* And of one part of it. */
uint64_t td_cost_part(const td_costs *costs, td_workload what, td_workload part);
/* A job ran from then to then, but for `held_ns`, alone or beside others, and was guessed at before: what it is charged,
 * which is no more for having run beside them. */
uint64_t td_cost_learn(td_costs *costs, td_workload what, uint64_t begin_ns, uint64_t end_ns, uint64_t held_ns, bool alone,
                       uint64_t guess);
/* The count to ask an operation's split and part for, so that parts take at most `most_ns`, as far as it can be cut; and into
 * how many parts that cuts it. 1 part: it cannot be cut, or need not. */
uint32_t td_cost_cuts(const td_costs *costs, td_workload what, uint64_t most_ns, uint32_t *parts);

typedef struct td_client td_client;

/* What mems of a client's lie in, as far as that can be told. It is held as a whole, however little of it they are: it
 * counts once, or as much as the mems in it together if that is more. */
typedef struct td_allocation {
    uint64_t device, inode, bytes; /* as opened; several exports of a driver's may look alike, then they count as one */
    uint64_t mem_bytes;            /* of all mems in it */
    uint32_t mems;
    struct td_allocation *next;
} td_allocation;
static inline uint64_t td_allocation_counts(const td_allocation *a)
{
    return a->mem_bytes > a->bytes ? a->mem_bytes : a->bytes;
}

/* What a client shares: a mem, a timeline, or its part of a model. */
typedef struct td_shared {
    td_client *client;
    uint64_t id;
    td_wire_kind kind;
    uint32_t number;  /* in the worker; 0: nothing there */
    uint32_t uses;    /* jobs */
    uint32_t pending; /* the request that made it and was not answered yet; 0: it was */
    bool imported;    /* the worker has it */
    bool closing;
    uint32_t close_serial;
    uint64_t close_until_ns;
    uint64_t bytes, offset_bytes, allocation_bytes;
    td_allocation *allocation; /* of a mem that is a client's; NULL: it counts for itself */
    int fd;
    bool opaque, dedicated;      /* exported by the client's Vulkan: the worker's GPU alone can use it */
    td_shared_timeline timeline; /* unless it is opaque */
    uint64_t announced;          /* of an opaque one: up to where its signals are submitted */
    bool by_daemon;
    uint64_t promised;
    td_cached_model *cached; /* of a model, and of the mem that its tensors are in */
    struct td_shared *model_mem; /* of a model: that mem, once somebody asked */
    tandem_status status;    /* why the worker does not have it any more */
    struct td_shared *next;
} td_shared;

typedef struct td_work {
    uint64_t ticket; /* 0: free */
    td_client *client;
    tandem_job job;
    const td_operation *operation; /* the job's */
    td_shared *mems[TD_MAX_VIEWS], *wait, *signal;
    uint32_t cuts, slice, slices; /* of a job that is computed piece by piece: the next one, of how many */
    td_part_at slice_at;          /* where that begins */
    td_shared *temp_output; /* its client's, which they write if it has a deadline: one more slice takes that to the output */
    bool whole;             /* it has one, and no temporary output: it is not cut */
    bool lacks_memory;      /* the worker has none for its temporary output */
    uint32_t at_worker;           /* how many of them the worker has: as long as there are some it has begun */
    uint64_t began_ns;            /* the first one */
    uint64_t taken_ns, ready_ns, run_ns, deadline_ns; /* run: since it is its session's next */
    uint64_t bound_ns; /* its wait's, if no job was DONE since */
    uint64_t signal_value;
    td_job_life life; /* its executor is the worker, which does not answer but by how the job ends */
    bool with_gpu; /* which signals its point */
    uint32_t after_request; /* the last of those that end idle models, to make room for it; 0: none */
} td_work;
static inline bool td_work_is_wanted(const td_work *work)
{
    return work->life.fate == TD_FATE_WANTED;
}
static inline bool td_work_is_given_up(const td_work *work)
{
    return work->life.fate == TD_FATE_GIVEN_UP;
}

typedef enum td_client_state { TD_CLIENT_NEW, TD_CLIENT_READY, TD_CLIENT_GONE } td_client_state;
struct td_client {
    td_client_state state;
    td_conn conn;
    td_wire_rules rules;
    int process; /* pidfd, or -1 */
    uint32_t session, share, jobs_in_flight, timing, pending, crash_count;
    uint32_t missed_waits; /* jobs, one behind the other, whose announced wait did not come */
    uint32_t job_class;      /* tandem_class */
    uint32_t worker_session; /* 0: the one for all */
    td_wire_hello *hello; /* that waits for a worker to say what it is */
    uint64_t features, wait_bound_ns, since_ns, gone_ns;
    char name[TD_WIRE_NAME_BYTES];
    td_ring ring;
    td_ids mems, timelines, models;
    td_ids_slot *slots;
    td_shared *shared;
    td_allocation *allocations;
    td_work *works; /* TD_MAX_WORKS, once it has said hello */
    td_work *order[TD_MAX_WORKS];
    uint32_t count;
    bool held;   /* what it has sent waits until there is room for the jobs that it put before */
    bool short_of_fds; /* and the log says so */
    bool swept;  /* gone: its jobs were given up */
    bool listed; /* in a text that names who holds what */
    int polled;  /* where in poll()'s array; -1: not there */
    uint64_t last_ticket; /* that was taken */
    uint32_t notified;    /* how often it has put something, or called, by its ring's event count */
    uint64_t called_ns;   /* 0: a job has come since */
    td_spin_budget calls;
    uint64_t mem_bytes, model_bytes; /* mem: and the temporary output's */
    td_shared *temp_output;  /* without an id; for one job at a time. NULL: none */
    uint64_t temp_output_ns; /* when it was used last */
    uint64_t temp_output_for; /* the ticket of the job that asked for it */
    uint64_t virtual_ns;   /* of compute that it has had, or might have had while others did */
    uint32_t at_worker;    /* of its jobs */
    uint64_t at_worker_ns; /* what they will take */
    uint64_t ended_ns;     /* its last job, on the device */
    uint64_t computed_ns; /* when the last job that is DONE was */
    bool busy;           /* its last jobs came one behind the other */
    uint64_t submitted, done, stale, cancelled, failed, compute_ns, wait_ns;
    td_client *next;
};

/* A request to the worker, until it is answered. */
typedef struct td_worker_request {
    td_worker_message message;
    bool sent;
    uint64_t sent_ns;
    bool again; /* what the worker before had: jobs wait for it */
    bool aside; /* the worker's loader does it, beside all others */
    uint32_t deaths; /* of workers that were at it */
    uint32_t session; /* of the client that it is for; 0: none */
    const td_cached_model *reads; /* TENSOR: which must be there first */
    td_client *client; /* whose request this is, or NULL */
    uint32_t serial;
    uint64_t mem; /* TENSOR: the client's id of what the tensors are in */
    td_shared *shared;
    td_cached_model *cached;
    struct td_worker_request *next;
} td_worker_request;

/* A file that is being opened for a client. */
typedef struct td_opening {
    uint32_t serial, request;
    td_client *client;
    struct td_opening *next;
} td_opening;

/* Somebody who asks for the metrics. */
enum { TD_WEB_PEERS = 8 };
typedef struct td_web_peer {
    uint32_t state; /* of http.c's; 0: nobody */
    int fd;
    uint64_t since_ns, until_ns; /* until: of this state */
    char request[4096], *reply;
    size_t got, bytes, sent;
} td_web_peer;

typedef struct td_broker {
    pthread_mutex_t lock;
    td_config config;
    td_tuning_table tuning; /* of config.tuning */
    td_listener listener;
    td_wire_identity identity; /* device and driver once a worker has said hello */
    uid_t uid;
    uint32_t fd_limit; /* RLIMIT_NOFILE */
    int launcher, signals, metrics, notify;
    td_web_peer web[TD_WEB_PEERS];
    bool stopping, ready_told;
    uint64_t stop_ns, watchdog_ns, watched_ns;
    uint64_t accept_ns; /* until then nobody is let in: all who are new have just come */

    td_client *clients;
    uint32_t client_count, new_count, session_count; /* sessions: so far */
    uint64_t mem_bytes, model_bytes;
    uint64_t jobs_done, jobs_stale, jobs_cancelled, jobs_failed, compute_ns, refused;
    uint64_t longest_slice_ns; /* of the background */

    td_cached_model *model_cache;
    td_opening *openings;
    td_worker_request *worker_requests;
    uint32_t request_serial, open_serial;
    unsigned char *numbers; /* which are taken */
    uint32_t next_number;
    uint64_t worker_sessions; /* which are taken */

    int worker;    /* the socket to it, or -1 */
    int worker_pid;
    bool has_worker; /* it has said hello, and has all that there is */
    bool worker_said;
    uint32_t epoch, early_ends;
    uint64_t spawned_ns, respawn_ns, killed_ns, answered_ns; /* answered: the last request */
    uint64_t lost_ns;     /* its socket has closed, and how it ended is not known yet */
    int ended_pid, ended_status; /* what the launcher said last: as of wait() */
    uint32_t hung;        /* the serial of the request that it was killed for; 0: none */
    tandem_info worker_info;
    char worker_text[TD_TEXT_BYTES];
    tandem_status worker_status;
    td_worker_queue *worker_queue, *old_worker_queue; /* old: for the second thread to unmap */
    td_work *slot_works[TD_WORKER_SLOTS];
    uint64_t slot_ns[TD_WORKER_SLOTS]; /* guesses */
    uint32_t at_worker[2];             /* by class */
    uint64_t standing_back_ns;         /* since when the background does, for frames at a GPU; 0: it does not */
    uint64_t sequence, virtual_ns[2];
    const td_client *last_client; /* whose job ended last, on the device */
    uint64_t last_other_ns;       /* and when one of another's did */
    uint64_t last_ns;
    uint64_t result_ns; /* when the worker was through with a job last */
    td_costs costs;

    pthread_t thread;
    pthread_barrier_t begun; /* a thread's start takes system calls that the broker gives up */
    bool has_thread, end_thread;
    td_eventcount wake; /* of the second thread */
    uint64_t awake_ns;   /* until then it does not sleep, */
    td_spin_budget spin; /* if that pays */
    uint64_t turns, watched_turns;
} td_broker;

/* manager.c: the service manager (sd_notify), if one has started us. */
/* The socket that it listens at, or -1. */
int td_manager_socket(void);
/* How often it wants to hear of us; 0: it does not. */
uint64_t td_manager_watchdog_ns(void);
void td_manager_tell(int socket, const char *text);

/* broker.c */
int td_broker_run(td_broker *b);
/* What that is made of: begin leaves with the lock held, and starts a worker; a turn looks at everything once, sleeps at
 * most `ms`, and returns the exit status, or -1: go on. */
bool td_broker_begin(td_broker *b);
int td_broker_turn(td_broker *b, int ms);
void td_broker_end(td_broker *b);

/* accept.c: lets in who has connected, as long as there is room; b->accept_ns: not before then. */
void td_clients_accept(td_broker *b);

/* descriptors.c: what there is of them, for whom. */
typedef struct td_fd_share {
    uint32_t clients, newcomers; /* who may be connected */
    uint32_t objects, of_client; /* that hold one: all clients', and each one's */
} td_fd_share;
td_fd_share td_fds_shared(const td_broker *b);
/* Whether a client may have another object that holds one; else says why, and logs it once. */
bool td_fd_fits(td_broker *b, td_client *c, char *why, size_t why_bytes);
/* False: too few for even one client, which is said. */
bool td_fds_begin(td_broker *b);

/* clients.c */
void td_client_read(td_broker *b, td_client *c);
/* The launcher has opened a file, or has not; *fd may be taken. */
void td_client_opened(td_broker *b, const td_launcher_message *m, int *fd);
/* The worker has said what it is: for those who waited for it. */
void td_clients_identified(td_broker *b);
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
/* A limit may have become lower than what is held. */
static inline uint64_t td_room_in(uint64_t limit, uint64_t held)
{
    return held < limit ? limit - held : 0;
}
/* The scratch that the worker holds for a client's jobs, or (NULL) for those of all. */
uint64_t td_scratch_held(const td_broker *b, const td_client *c);
/* Whether a client's quota and that of all have room for more. */
bool td_client_fits(const td_broker *b, const td_client *c, uint64_t bytes);
/* Kinds of memory that may be short. */
enum { TD_HELD_MEMS = 1, TD_HELD_MODELS = 2 };
/* Says that what is asked for is more than a client may have, */
void td_quota_own_text(const td_broker *b, const td_client *c, const char *what, uint64_t asked, char *text, size_t text_bytes);
/* or than all of them may have of these kinds, and who holds it. */
void td_quota_all_text(td_broker *b, const td_client *c, const char *what, uint64_t asked, uint32_t kinds, char *text,
                       size_t text_bytes);
/* Why there is no memory for what a job needs, and who holds it. */
void td_client_lacks(td_broker *b, const td_client *c, const char *what, uint64_t lacks_bytes, char *text, size_t text_bytes);

/* worker_requests.c */
uint32_t td_number_take(td_broker *b); /* 0: none left */
td_worker_request *td_worker_request_add(td_broker *b, td_worker_message_kind kind, uint32_t number, bool first);
void td_worker_request_remove(td_broker *b, td_worker_request *request);
/* Tells the worker what it needs to know of a shared object. */
void td_worker_request_describe(td_worker_request *request, td_shared *s);
void td_worker_requests_send(td_broker *b);
td_ids *td_shared_ids(td_client *c, td_wire_kind kind);
td_shared *td_shared_add(td_client *c, td_wire_kind kind);
/* Ends a shared object that nothing uses any more. */
void td_shared_end(td_broker *b, td_shared *shared);
/* By how much more a client has with a mem of so many bytes in the allocation that a descriptor is of. */
uint64_t td_mem_adds(const td_client *c, int fd, uint64_t bytes, uint64_t allocation_bytes);
/* Counts a new mem and tells the worker of it. False: there is no host memory for that; it is to be ended. */
bool td_mem_bring(td_broker *b, td_shared *mem);
/* Asks the worker for a client's temporary output, for which there may be no room: false. */
bool td_temp_output_make(td_broker *b, td_client *c, uint64_t bytes);
void td_temp_output_end(td_broker *b, td_client *c);
/* Ends those that no job has used for so long. False: there is none. */
bool td_temp_outputs_end(td_broker *b, uint64_t idle_ns);
/* A session of the worker's for a client, if there are any left and it shares anything. */
void td_worker_session_open(td_broker *b, td_client *c);
/* Where its jobs and what they name are in the worker. */
static inline uint32_t td_worker_session_of(const td_broker *b, const td_client *c)
{
    return !b->costs.is_gpu && c->job_class == TANDEM_CLASS_BACKGROUND ? (uint32_t)TD_BACKGROUND_SESSION : c->worker_session;
}
void td_worker_session_tell(td_broker *b, td_client *c, td_worker_message_kind kind);
/* Asks the worker to free the scratch of a client none of whose jobs it has. False: there is none. */
bool td_worker_scratch_forget(td_broker *b, const td_client *c);
void td_cached_model_drop(td_broker *b, td_cached_model *cached);
/* Has the worker load it. False: there is no host memory for that. */
bool td_cached_model_send(td_broker *b, td_cached_model *cached);
/* Makes room for a model: takes what no job reads from the worker, what was not read for longest first. False: there is
 * not so much. */
bool td_model_cache_make_room(td_broker *b, uint64_t bytes, const td_cached_model *but);
/* Takes all that no job reads: nobody knows how much the worker's memory lacks. False: there is none. */
bool td_model_cache_evict_idle(td_broker *b, const td_cached_model *but);
/* What its users are said to have. */
void td_cached_model_count(td_broker *b, const td_cached_model *cached, bool loaded);
/* Nobody has the model any more: requests that wait for it are over. */
void td_cached_model_fail_readers(td_broker *b, const td_cached_model *cached, tandem_status status, const char *why);
/* Has the worker load it again, for a client. NOMEM: no room. */
tandem_status td_cached_model_load(td_broker *b, td_cached_model *cached, const td_client *asks);
/* The first request that a worker does not answer in time, or NULL. */
const td_worker_request *td_worker_request_hangs(const td_broker *b, uint64_t now);

/* answers.c */
void td_worker_spawn(td_broker *b);
/* why: NULL if it was told before. The launcher may have no time for it now, or not have said yet who the worker is. */
void td_worker_kill(td_broker *b, const char *why);
/* False: there will never be a worker. */
bool td_worker_read(td_broker *b);
/* Begins anew once it is known how a worker has ended, or nobody says so for too long. False: likewise. */
bool td_worker_bury(td_broker *b);
/* What an answer does; *t may be anything but its number. */
void td_worker_request_answer(td_broker *b, td_worker_request *request, const td_worker_message *t);

/* blame.c: which requests the worker that is gone was at, of those that may have ended it: their serials. Returns how many. */
enum { TD_MAX_BLAMED = 2 };
uint32_t td_blame_find(td_broker *b, uint32_t serials[TD_MAX_BLAMED]);
/* Answers such a request with what became of it; its client is named, its crash count rises, and no worker gets it again. */
void td_blame(td_broker *b, uint32_t serial);

/* queue.c, queue_jobs.c, queue_schedule.c. All with the lock held but the thread's main. */
void *td_queue_main(void *broker);
/* One turn of it, without the sleep: true if it did something; *next_ns: when there is something to do at the latest. */
bool td_queue_turn(td_broker *b, uint64_t *next_ns);
/* Takes what the client's ring holds now. False: it has as many jobs as can be, so some of that is left. */
bool td_queue_take(td_broker *b, td_client *c);
/* Has a work end so, now or in its turn. */
void td_queue_give_up(td_broker *b, td_work *work, uint32_t state, tandem_status status);
/* Signals and ends those of a client's that were given up and whose turn it is. */
void td_queue_retire_given_up(td_broker *b, td_client *c);
/* The worker has no memory for a client's temporary output. */
void td_queue_without_temp_output(td_broker *b, td_client *c);
/* The worker is gone; of a job's fault, as far as is known: that has failed. */
void td_queue_lost(td_broker *b, bool by_job);
static inline void td_queue_wake(td_broker *b) { td_eventcount_notify(&b->wake); }

/* metrics.c */
int td_metrics_listen(uint32_t port, char *why, size_t why_bytes);
/* Until the next call. */
const char *td_metrics_page(td_broker *b, size_t *bytes);

/* http.c: what poll() is to look for, and what is to be done then. */
int td_web_listen_to(const td_broker *b, struct pollfd p[TD_WEB_PEERS]);
void td_web_turn(td_broker *b, const struct pollfd p[TD_WEB_PEERS]);
void td_web_accept(td_broker *b);
bool td_web_has_peers(const td_broker *b);
void td_web_end(td_broker *b);

#endif
