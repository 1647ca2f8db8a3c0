/* The session's side of the connection to tandemd, as the files of it share it.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   remote.c             opens and ends it, and the thread that looks after it
 *   remote_jobs.c        a job's way there and back, and the worker
 *   remote_models.c      models there
 *   remote_networks.c    their networks
 *   remote_states.c      what their instances keep
 *   remote_objects.c     mems and timelines there, and what jobs are told them by
 *   remote_connection.c  what is said and heard: requests, answers, the greeting
 *
 * Each calls those below it in this list and none above it. What the rest of the client sees of them is in client.h.
 */
#ifndef TANDEM_CLIENT_REMOTE_H
#define TANDEM_CLIENT_REMOTE_H

#include "engine_plugin/client/client.h"
#include "interop/wire/conn.h"
#include "interop/wire/ring.h"

#define TD_REMOTE_SLICE_NS 100000000u /* how long anything is slept on without looking whether to go on */
enum { TD_REMOTE_ASKS = 8 };

/* A request that waits for its answer. */
typedef struct td_remote_ask {
    uint32_t serial; /* 0: free */
    bool answered;
    tandem_status status; /* LOST: there will be no answer */
    td_wire_message answer;
    int fd; /* that came with it, or -1 */
} td_remote_ask;

struct td_remote {
    char path[TD_CONN_PATH_BYTES];
    bool named; /* by the caller, who then trusts whoever listens there */
    uint32_t backend;
    int wake; /* event: the thread has to look */
    pthread_t thread;
    bool has_thread, stopping;
    bool up;
    uint32_t share; /* td_wire_share */
    bool over; /* it was refused for good */
    uint32_t in_ring; /* threads that look at the ring without the lock */
    uint32_t callers; /* that watch all jobs in the worker's place */
    atomic_uint hurry; /* changes when the worker is to leave that to a caller */
    bool worker_needs_wake;    /* a caller did its work; the last one to leave wakes it */
    bool led;                  /* a caller has ended the last job */
    td_spin_budget values, results; /* for values that were announced, for ends of jobs */
    uint32_t connection; /* how many there were, */
    uint32_t worker;     /* and how many workers, of all those daemons */
    td_conn conn;
    td_wire_rules rules;
    td_ring ring;
    td_wire_identity identity;
    td_shared_timeline ends; /* signalled by the daemon and looked at by nobody: */
    uint64_t ends_id; /* jobs that have points here signal it, which makes them frame jobs there */
    td_remote_ask asks[TD_REMOTE_ASKS];
    uint64_t heard_ns, pinged_ns; /* pinged: 0: no PING is without answer */
    td_wire_info info;
    uint64_t failed_ticket; /* whose text this is; RESET: up to which */
    bool failed_all;
    char failed_text[TD_WHY_BYTES];
    char gone[TD_WHY_BYTES]; /* why it is not up */
};

/* A model that the daemon has loaded: its path, the first of its tensors that was asked for, and what it is there. */
struct td_remote_model {
    char path[TD_WIRE_PATH_BYTES], first[TD_WIRE_TENSOR_BYTES];
    td_wire_language language; /* all 0: as any file */
    uint64_t id;
    uint32_t connection; /* that was last told of it, */
    tandem_status status; /* and what it made of it */
};

/* remote_connection.c. poke: the thread has to look, also if it sleeps. gone: LOST, and why. */
void td_remote_poke(const td_remote *r);
tandem_status td_remote_gone(const td_remote *r, char *why);
/* Sleeps until there is something to do, at most `ns`; called without the lock. */
void td_remote_sleep(td_remote *r, bool writes, uint64_t ns);
/* Sends a request and waits for its answer, which is not ERROR. The lock is held but while it sleeps. *got, unless that is
 * NULL, is the descriptor that came with it. */
tandem_status td_remote_ask_locked(tandem_session *s, td_wire_message *m, int fd, td_wire_type wanted, int *got,
                                   char *why);
/* Connects, and shares nothing yet; called and left with the lock held. On failure nothing is left. */
tandem_status td_remote_connect_locked(tandem_session *s, char *why);
/* Nobody uses the connection any more when this returns. */
void td_remote_disconnect_locked(tandem_session *s, const char *why);
/* Takes what the daemon says until the connection is over; called and left with the lock held. */
tandem_status td_remote_serve_locked(tandem_session *s, char *why);
/* Whether the daemon owes an answer, or a job's report. */
bool td_remote_owes_locked(const tandem_session *s);

/* remote_jobs.c. The main of the worker: sends jobs, ends those that the daemon is through with. wake: something was
 * submitted, signalled or given up. waits: where the host signals, a caller that waits does the worker's work, and does not
 * sleep for what comes at once: a value that was announced, or the end of a brief job. leaves: it is the worker's again. */
void *td_remote_work(void *session);
void td_remote_wake_locked(tandem_session *s);
tandem_status td_remote_takes_locked(tandem_session *s, const td_operation_layout *layout, const tandem_operands *op, char *why);
tandem_status td_remote_submit_locked(tandem_session *s, td_job *job, td_submission *from, tandem_ticket *ticket, char *why);
void td_remote_announce_locked(tandem_session *s, td_timeline *timeline, uint64_t value);
bool td_remote_caller_waits_locked(tandem_session *s, bool alone, uint64_t until_ns);
void td_remote_caller_leaves_locked(tandem_session *s);

/* remote_networks.c. load: the network of a model that the daemon has loaded. describe: a job that runs one, as a RUN. put: that,
 * behind the uniforms that do not fit into it; BUSY: nothing of it. */
tandem_status td_remote_network_load(td_model_load *load, const tandem_model_desc *desc, char *why);
tandem_status td_remote_describe_run_locked(tandem_session *s, td_job *job, td_wire_run *out, char *why);
tandem_status td_remote_put_run_locked(tandem_session *s, const td_job *job, const td_wire_run *run, char *why);
tandem_status td_remote_instance_make(tandem_session *s, td_instance *instance, char *why);
const char *td_remote_no_layers(tandem_session *s);
tandem_status td_remote_layer_locked(tandem_session *s, const td_instance *instance, const td_prepared *prepared, uint32_t index,
                                     tandem_layer *out, char *why);
tandem_status td_remote_prepare(tandem_session *s, td_instance *instance, td_prepared *prepared, char *why);
bool td_remote_instance_is_lost_locked(const tandem_session *s, const td_instance *instance);

/* remote_states.c. Those of td_backend_remote. */
struct td_state_copy;
const char *td_remote_no_states(tandem_session *s);
tandem_status td_remote_state_copy(tandem_session *s, const td_instance *instance, const struct td_state_copy *copies, uint32_t count,
                                   bool to_instance, char *why);

/* remote_models.c. Those of td_backend_remote. again: with a new connection. */
const char *td_remote_no_languages(tandem_session *s);
tandem_status td_remote_model_load(td_model_load *load, const tandem_model_desc *desc, char *why);
tandem_status td_remote_model_tensor_locked(tandem_session *s, td_model *model, const char *name, tandem_view *view,
                                            uint64_t shape[4], char *why);
tandem_status td_remote_load_again_locked(tandem_session *s, td_model *model, char *why);

/* remote_objects.c. Those of td_backend_remote. While there is no daemon, a mem or a timeline is shared with the next. */
tandem_status td_remote_mem_share(tandem_session *s, td_mem *mem, char *why);
tandem_status td_remote_timeline_share(tandem_session *s, td_timeline *timeline, char *why);
void td_remote_object_end(tandem_session *s, td_object *object);
/* Has the daemon end what has this id there, by the message that does so; 0: it has none. */
void td_remote_end(tandem_session *s, td_wire_type type, uint64_t id, uint32_t connection);
/* LOST unless the daemon has it. One that is in the session's table was told to each connection before that was up. */
tandem_status td_remote_has_model_locked(const tandem_session *s, const td_model *model, char *why);
/* A mem's buffer that both sides map: its own where `bounce`, or where the mem has no memory yet. opaque: what Vulkan exports is that. */
tandem_status td_remote_make_shared_buffer(td_mem *mem, bool opaque, char *why);
/* share: tells the daemon of one. LOST: the connection it was told through is gone. */
tandem_status td_remote_share_mem_locked(tandem_session *s, td_mem *mem, char *why);
tandem_status td_remote_share_timeline_locked(tandem_session *s, td_timeline *timeline, char *why);
/* What a job's view is in, and a point, in the daemon's ids; the job's submit time, deadline and points, likewise. */
typedef struct td_remote_heading {
    uint64_t ticket, submit_ns, deadline_ns;
    tandem_point wait, signal;
} td_remote_heading;
tandem_status td_remote_name_mem_locked(tandem_session *s, const td_job *job, uint32_t view, uint64_t *id, char *why);
tandem_status td_remote_head_locked(tandem_session *s, td_job *job, td_remote_heading *out, char *why);

#endif
