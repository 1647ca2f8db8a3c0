/* All that the broker knows: clients, what they share, their jobs, the worker and what it was asked for.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * One mutex holds all of it; the second thread sleeps on futexes, the main one in td_poll(). What a sleeper may look at (shared
 * rings and timelines) is unmapped by the second thread alone.
 */
#ifndef TANDEM_DAEMON_STATE_H
#define TANDEM_DAEMON_STATE_H

#include <pthread.h>

#include "engine_plugin/daemon/config.h"
#include "engine_plugin/daemon/costs.h"
#include "engine_plugin/daemon/limits.h"
#include "engine_plugin/daemon/schedule.h"
#include "engine_plugin/daemon/worker_message.h"
#include "engine_plugin/daemon/worker_queue.h"
#include "engine_plugin/run/job_life.h"
#include "interop/wire/conn.h"
#include "interop/wire/ids.h"
#include "interop/wire/ring.h"

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
    uint64_t device, inode, mtime_ns, file_bytes;
    td_wire_language language; /* what was made of it */
    uint64_t bytes;
    uint64_t state_bytes; /* of an instance of its network */
    struct td_cached_model *next;
} td_cached_model;

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

/* What a client shares: a mem, a timeline, its part of a model, or an instance of one. */
typedef struct td_shared {
    td_client *client;
    uint64_t id;
    td_wire_kind kind;
    uint32_t number;  /* in the worker; 0: nothing there */
    uint32_t uses;    /* jobs */
    uint32_t precision; /* of an instance, as its client had it made, */
    uint64_t prepared_bytes; /* how much of its bytes is for what is prepared, */
    double mflop;     /* and what the run that was prepared last takes */
    uint32_t pending; /* the request that made it and was not answered yet; 0: it was */
    bool imported;    /* the worker has it */
    bool copying; /* what an instance keeps: its runs wait */
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
    td_cached_model *cached; /* of a model, of the mem that its tensors are in, and of an instance */
    struct td_shared *model_mem; /* of a model: that mem, once somebody asked */
    tandem_status status;    /* why the worker does not have it any more */
    struct td_shared *next;
} td_shared;

typedef struct td_work {
    uint64_t ticket; /* 0: free */
    td_client *client;
    tandem_job job;
    const td_operation *operation; /* the job's, or NULL: */
    td_run *run;                   /* it runs a network, of which this is its own, */
    td_workload workload;          /* and which is this to the costs */
    td_shared *mems[TD_WORK_MEMS]; /* a run's instance, then its bindings' */
    uint32_t mem_count;
    td_shared *wait, *signal;
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
/* Whether it needs an object: what it reads or writes, its instance, its points. */
static inline bool td_work_uses(const td_work *work, const td_shared *shared)
{
    bool uses = work->wait == shared || work->signal == shared;

    for (uint32_t i = 0; i < work->mem_count; i++)
        uses = uses || work->mems[i] == shared;
    return uses;
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
    td_ids mems, timelines, models, instances;
    td_ids_slot *slots;
    uint8_t *uniforms; /* of the run to come, those that are not in RUN; NULL: none had any */
    td_shared *shared;
    td_allocation *allocations;
    td_work *works; /* TD_MAX_WORKS, once it has said hello */
    td_work *order[TD_MAX_WORKS];
    uint32_t count;
    bool held;   /* what it has sent waits until there is room for the jobs that it put before */
    bool short_of_fds; /* and the log says so */
    bool swept;  /* gone: its jobs were given up */
    bool listed; /* in a text that names who holds what */
    int polled;  /* where in td_poll()'s list; -1: not there */
    uint64_t last_ticket; /* that was taken */
    uint32_t notified;    /* how often it has put something, or called, by its ring's event count */
    uint64_t called_ns;   /* 0: a job has come since */
    td_spin_budget calls;
    uint64_t mem_bytes, model_bytes; /* mem: and the temporary output's */
    td_shared *temp_output;  /* without an id; for one job at a time. NULL: none */
    uint64_t temp_output_ns; /* when it was used last */
    uint64_t temp_output_for; /* the ticket of the job that asked for it */
    uint64_t virtual_ns;   /* see td_turn */
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
    const td_cached_model *reads; /* TENSOR, GRAPH, INSTANCE: which must be there first */
    td_client *client; /* whose request this is, or NULL */
    uint32_t serial;
    uint64_t object; /* the client's id: TENSOR: of what the tensors are in; PREPARE, LAYER, STATE: of the instance */
    td_shared *shared;
    td_cached_model *cached;
    struct td_worker_request *next;
} td_worker_request;

/* A file that is being opened for a client. */
typedef struct td_opening {
    uint32_t serial, request;
    td_client *client;
    td_wire_language language;
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
    uint32_t uid;
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
    int ended_pid, ended_status; /* what the launcher said last: the signal that ended it, or 0 */
    uint32_t hung;        /* the serial of the request that it was killed for; 0: none */
    tandem_info worker_info;
    char worker_text[TD_TEXT_BYTES];
    tandem_status worker_status;
    td_worker_queue *worker_queue, *old_worker_queue; /* old: for the second thread to unmap */
    td_work *slot_works[TD_WORKER_SLOTS];
    uint64_t slot_ns[TD_WORKER_SLOTS]; /* guesses */
    uint32_t at_worker[2];             /* by class */
    td_schedule schedule;
    uint64_t sequence;
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

/* Has the second thread look at what has changed. */
static inline void td_queue_wake(td_broker *b) { td_eventcount_notify(&b->wake); }

/* Where its jobs and what they name are in the worker. */
static inline uint32_t td_worker_session_of(const td_broker *b, const td_client *c)
{
    return !b->costs.is_gpu && c->job_class == TANDEM_CLASS_BACKGROUND ? (uint32_t)TD_BACKGROUND_SESSION : c->worker_session;
}

#endif
