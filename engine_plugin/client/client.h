/* The session from the inside: objects behind ids, jobs under way, and who may touch what.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * From the top down; each calls none above it, but through td_backend, the table of what differs by who computes (backend.h).
 *   worker_session.c, worker_networks.c   a session of the daemon's worker, on what one client's Vulkan has exported
 *   session.c                    create, destroy, info, error text
 *   device.c                     which of the ways of ladder.h a session goes, and why; devices.c: without a session
 *   retire.c                     objects that go once no job needs them any more
 *   vulkan.c, record.c           what is recorded into the engine's commands; jobs in them
 *   jobs.c                       submit (all checks), poll, wait, cancel
 *   run.c, views.c               what a job names: a network and its bindings (see network.h); views
 *   points.c, mems.c             timelines, points and blocks of bytes, as callers have them
 *   release.c                    points that no job signals, when a timeline or its session goes
 *   remote.c, remote_jobs.c      jobs that tandemd computes: how that session begins and ends, a job's way there (see remote.h)
 *   local.c                      jobs that this process computes: the worker and the watchdog begin and end (see local.h)
 *   model.c                      weights
 *   remote_models.c, remote_networks.c, remote_objects.c, remote_connection.c   what tandemd has of all that; what is said
 *   model_file.c                 files of weights
 *   local_watch.c, local_cpu.c   deadlines and bounds; the worker that computes
 *   instance.c, network.c        instances of a model's graph, and the graph (see network.h)
 *   close.c                      an object goes that jobs still use
 *   local_stream.c               jobs on a stream; how any begins
 *   staging.c                    the rung `copy`: bytes of mems there and back
 *   scratch.c, memory.c          memory of a job's kernels; memory of any kind
 *   inline_jobs.c                jobs in the engine's commands (inline rung), once they are there
 *   local_end.c, wait.c          how jobs end, and how threads sleep until then
 *   timelines.c                  counters
 *   forgotten.c                  releases and acquires that are missing on the rung `copy`
 *   objects.c                    memory of our own; the texts of failures; ids
 *   entry.c                      what every public call looks at first; a thread's last failure
 *   ladder.c                     who may compute, how it meets the engine, and what that needs (see ladder.h)
 *
 * One mutex a session. It is never held over a wait, over a call that may block in a driver, or over the log callback.
 * Functions named *_locked expect it held. An object in use (a job under way, a call in progress) has `uses` > 0 and is
 * not freed.
 */
#ifndef TANDEM_CLIENT_H
#define TANDEM_CLIENT_H

#include <stdatomic.h>

#include "engine_plugin/client/backend.h"
#include "engine_plugin/client/ladder.h"
#include "engine_plugin/exec/exec.h"
#include "engine_plugin/run/job_life.h"
#include "interop/os/clock.h"
#include "interop/os/cpu.h"
#include "interop/os/descriptor.h"
#include "interop/os/process.h"
#include "interop/os/thread.h"
#include "interop/struct.h"
#include "interop/vk/vk.h"
#include "kernels/model/llama.h"
#include "kernels/model/safetensors.h"
#include "kernels/operation.h"
#include "kernels/program.h"
#include "tandem/vulkan.h"

enum {
    TD_WHY_BYTES = 400, /* of each `why`: daemon.h goes by it, too */
    TD_MAX_JOBS_IN_FLIGHT = TD_STREAM_PENDING,
    TD_JOB_VIEWS = TD_PROGRAM_VIEWS, /* at most: an operation has at most TD_MAX_VIEWS */
    TD_REPORTS = 256,
    TD_MAX_RETIRED_SCRATCH = 64,
    TD_POINT_FDS = 1024,
};
#define TD_CLOSE_BOUND_NS 2000000000ull /* how long a destruction waits for a running job */
#define TD_SLACK_NS 1000 /* of threads that sleep briefly: see td_thread_slack() */
#define TD_MAX_POINT_STEP 0x7fffffffull /* the least maxTimelineSemaphoreValueDifference that Vulkan grants */

/* An id is kind:4, salt of the session:12, generation:24, slot + 1:24; a ticket has a 48-bit number instead of the last
 * two. */
typedef enum td_kind {
    TD_KIND_MEM = 1,
    TD_KIND_TIMELINE = 2,
    TD_KIND_MODEL = 3,
    TD_KIND_TICKET = 4,
    TD_KIND_INSTANCE = 5
} td_kind;

typedef struct td_object {
    uint64_t id;
    uint32_t uses;
    bool closing;
    bool retired; /* no call finds it; once nobody uses it, it is freed: retire.c */
} td_object;

/* Whether it is being destroyed, or will be: nobody waits for who begins to use it now. */
static inline bool td_object_goes(const td_object *object)
{
    return object->closing || object->retired;
}

typedef struct td_table {
    td_object **slots;
    uint32_t *generations;
    uint32_t capacity;
} td_table;

/* What the daemon has of a mem: a memfd, and an id that holds for one connection. */
typedef struct td_shared_buffer {
    bool valid;  /* there is one */
    bool owned;  /* fd and map are its own, else those of td_mem.vk */
    bool bounce; /* td_mem.host is other memory: bytes are copied there and back with each job */
    bool opaque; /* what Vulkan exports: `fd` is the caller's own export, or -1: a new one each time */
    int fd;
    void *map;
    uint64_t bytes, id;
    uint32_t connection;
    tandem_status status; /* why the daemon would not take it */
} td_shared_buffer;

typedef struct td_mem {
    td_object object;
    uint32_t source; /* tandem_mem_source */
    bool of_model, has_vk;
    bool temp_output; /* td_worker_session_make_temp_output() */
    uint64_t bytes;
    uint64_t address; /* what the executor is given */
    void *host;       /* where the host has it, or NULL */
    void *block;      /* ours, of the session's allocator */
    uint64_t block_bytes;
    uint64_t host_share, device_share; /* what it adds to tandem_info */
    td_vk_mem vk;
    td_cu_mem cu;
    td_vk_mem staging; /* rung `copy`: what a release fills and an acquire empties */
    td_cu_mem pinned;  /* rung `copy` on CUDA: `host` as CUDA copies from it, or a bounce buffer */
    bool bounce; /* the latter: bytes are copied through it */
    td_shared_buffer shared;
    /* forgotten.c: what was ever recorded for it, whether its host address was asked for, what jobs did, what was told. */
    bool released, acquired, host_known, read_by_job, told_release, told_acquire;
    uint64_t written_begin, written_end; /* in the mem; the same: nothing */
    struct td_mem *next; /* among those that leave: release.c */
} td_mem;

/* A view in bytes: the rows that it has, and the dimensions of more than one element, least stride first. */
typedef struct td_extent {
    uint64_t bytes; /* from its first byte to behind its last */
    uint64_t row_bytes, stride[3], count[3];
    uint32_t dimensions;
} td_extent;

/* What the daemon has of a timeline. */
typedef struct td_remote_timeline {
    uint64_t id, announced; /* up to where it knows that signals were submitted */
    uint32_t connection;
    tandem_status status;
} td_remote_timeline;

typedef struct td_timeline {
    td_object object;
    bool by_session, owned, imported;
    VkSemaphore semaphore; /* VK_NULL_HANDLE: `counter` counts */
    td_cu_timeline cu;
    uint64_t counter;
    uint64_t promised;  /* by_session: the highest value that a job signals or has signalled, */
    uint64_t ended;     /* and of those jobs that are over */
    uint64_t refused;   /* the highest that a job was to signal which tandem_submit() did not take */
    uint64_t submitted; /* else: up to which value the engine has announced its submits, */
    uint64_t held_ns;   /* and for how long the last job was held on the host that had to be */
    uint64_t look; /* td_points_notify_locked()'s number when it read `looked` */
    uint64_t looked;
    tandem_status look_status;
    td_remote_timeline remote; /* where the GPU signals */
    struct td_timeline *next; /* among those that leave, since left_ns: release.c */
    uint64_t left_ns;
    VkFence mark; /* in the engine's queue, which was not past it */
} td_timeline;

typedef struct td_tensor_entry {
    const char *name;
    const char *refused; /* why no job can read it, or NULL */
    tandem_view view;
    uint64_t shape[4];
} td_tensor_entry;

typedef struct td_network td_network;
typedef struct td_model {
    td_object object;
    td_mem *mem;
    td_tensor_entry *tensors; /* the names lie behind the array */
    uint64_t block_bytes;
    uint32_t tensor_count;
    td_network *network;            /* its graph (network.h); NULL: its file has none, or */
    const char *no_network;         /* why the session has no use for it; a literal */
    bool alias;                     /* of another session's, whose network it has */
    int header;                     /* of a worker's: its file's beginning, for clients; 0: none, and the file's bytes */
    uint64_t header_bytes;
    struct td_remote_model *remote; /* what the daemon loads, in place of tensors */
} td_model;

/* Scratch of a slot; outgrown blocks wait until no job is under way, since to free memory is to wait for the device. */
typedef struct td_scratch {
    void *block; /* of the session's allocator, or */
    td_mem *mem; /* the device's */
    uint64_t address, bytes;
    uint64_t owner; /* of a worker session: whose job used it last */
    bool recorded; /* in commands that the engine may submit again: lives as long as the session */
} td_scratch;

/* A job in the daemon. */
typedef struct td_remote_job {
    tandem_operands op; /* what is sent */
    uint64_t ticket, expected_ns, sent_ns, answered_ns; /* expected: since what it waits for was announced */
    uint32_t connection;
    bool cancelled;      /* it was told */
    bool answered;       /* its report there is final */
    bool client_signals; /* the daemon will not signal its point */
    uint32_t state;
    tandem_status status;
    char why[TD_WHY_BYTES];
} td_remote_job;
/* What the rung `copy` brings to the device for a job, and takes back. */
typedef struct td_staging {
    uint64_t views[TD_JOB_VIEWS]; /* where the kernels find them */
    td_stream_copy in[TD_JOB_VIEWS], out[TD_JOB_VIEWS];
    bool later[TD_JOB_VIEWS]; /* taken back by td_staging_out() */
} td_staging;

typedef struct td_job {
    uint64_t number; /* of the ticket; 0: the slot is free */
    bool recorded;   /* it is in a command buffer of the engine's: not among those in `order` */
    bool atomic_commit;    /* its plan claims the output before it is written */
    bool late_logged;      /* that its wait is out of bounds */
    td_job_life life; /* which td_job_step_locked() alone changes */
    td_control control;        /* of the CPU executor */
    td_control *control_block; /* of the executor that has it; NULL before */
    td_timeline *wait, *signal;
    uint64_t wait_value, signal_value;
    uint64_t submit_ns, begun_ns, bound_ns; /* CLOCK_MONOTONIC, as life.deadline_ns */
    uint64_t stream_sequence;
    const td_operation *operation; /* NULL: the job runs a network, */
    td_instance *instance;   /* this one, */
    td_prepared *prepared;   /* for these numbers, */
    bool sampled;                  /* with samples of its layers */
    const char *label;             /* of it in profilers; a literal */
    uint32_t view_count;           /* of the arrays below, that many are the job's */
    td_remote_job remote;
    td_scratch scratch;  /* this and what follows stay with the slot */
    const td_plan *plan; /* the job's use of it; until the slot's next job */
    td_mem *mems[TD_JOB_VIEWS]; /* NULL: the view is not there, or not in use any more */
    uint64_t views[TD_JOB_VIEWS];
    td_extent extents[TD_JOB_VIEWS];
    const char *names[TD_JOB_VIEWS]; /* as texts call them */
    bool written[TD_JOB_VIEWS];      /* else read */
    td_staging staging;              /* rung `copy` on a stream */
} td_job;

/* A job as it is submitted, and what tandemd's worker says of it besides. */
struct td_submission {
    const tandem_job *desc;
    /* Whose it is, of the clients that share a session, and how much scratch this owner's jobs may hold in all. What needs
     * more is refused: with BUSY as long as jobs of its own hold some, else with NOMEM, and lacks_bytes is what it needs. */
    uint64_t owner, most_bytes, lacks_bytes;
    /* What it is a part of, and where it lies there, as td_target.position; NULL: it is whole. */
    const td_operation *whole_of;
    const tandem_operands *whole;
    uint32_t position;
};

/* A descriptor of tandem_point_fd(), a duplicate of the caller's: a timerfd that is set when the point is reached. */
typedef struct td_point_fd {
    td_timeline *timeline;
    uint64_t value, since_ns;
    int fd;
} td_point_fd;

/* local.h: what a thread that may sleep in the driver for good shares with the session's destruction. */
typedef struct td_sleeper td_sleeper;

typedef struct td_remote td_remote;

/* For guessing when a job ends: when the last one did, and how long jobs take from when they could begin. */
typedef struct td_guess {
    uint64_t end_ns, took_ns;
} td_guess;

/* tandem_vulkan.lock_queue2, and what it is told. */
typedef struct td_queue_locks {
    void (*lock)(void *user, uint32_t family, uint32_t index);
    void (*unlock)(void *user, uint32_t family, uint32_t index);
    void *user;
    uint32_t family, index;
} td_queue_locks;

struct tandem_session {
    td_log log;
    void *(*allocate)(void *user, size_t bytes, size_t alignment);
    void (*release)(void *user, void *pointer);
    void *user;
    atomic_ullong block_bytes; /* held of the allocator */
    td_process_mark mark; /* of the process that made it */
    atomic_uint holders;  /* whoever made it, until tandem_session_destroy(), and its languages: the last one frees these bytes */
    atomic_bool over;     /* tandem_session_destroy() has begun: all but what is above is gone, or goes */

    td_way way;    /* who computes, and how it meets the engine; */
    uint32_t rung; /* what that is called */
    uint32_t threads, jobs_in_flight, timing, salt;
    uint32_t job_class; /* tandem_class */
    uint64_t wait_bound_ns;
    bool in_order;    /* jobs are on a stream of the caller's: desc.cuda_stream */
    bool of_worker;   /* of tandemd's worker: memory is cleared before it is another client's */
    td_preempt_flag *preempt; /* td_worker_session_preempt(), or NULL; */
    uint64_t held_ns, late_ns; /* td_worker_session_held() */
    bool imports_only;     /* a worker session whose timelines are other processes': only the GPU can read them */
    bool ahead;            /* jobs go to a stream before those in front of them have ended; else the worker does one by one */
    char rung_reason[TD_WHY_BYTES]; /* in tandem_info as far as it fits */
    char device_name[128], isa[32];
    uint32_t sm, cuda_driver_version; /* these three as in tandem_info */
    uint8_t device_uuid[16];
    td_vk *vk;
    td_vk_queue queue;    /* tandem_vulkan's, or none; `user` may be the session itself, for */
    td_queue_locks locks; /* these */
    td_timeline *leaving; /* destroyed, but the engine's queue has not come past what may use them, or a GPU that failed may; */
    td_mem *leaving_mems; /* and while the queue may wait for a point that was refused */
    uint64_t released_ns; /* when a point that was refused was signalled last; 0: never */
    bool in_use;          /* the engine's queue is behind for good: what is Vulkan's is left to it */
    td_cu_device *cu;
    td_stream *stream;
    td_target target;
    struct td_plan_cache *plans; /* of that target */
    struct td_tuning_table *given; /* desc.tuning, or NULL */
    uint32_t tuning;               /* tandem_tuning */
    char tuning_reason[TD_WHY_BYTES]; /* the same */
    const td_backend *ops; /* who computes */
    td_remote *remote;     /* of td_backend_remote */
    bool same_clock; /* Vulkan's device clock is the GPU's globaltimer */
    uint64_t record_asked_ns; /* when the driver was asked about a device that does not run what was recorded */
    atomic_bool stuck; /* the stream failed or did not end in time: what it may still use is left behind */

    pthread_mutex_t lock;
    pthread_cond_t work, watch, changed, reap, judge; /* for the worker, the watchdog, callers that wait, and the last two */
    bool has_lock, has_worker, has_watchdog, stopping, has_reaper, reaper_ends, has_judge, judge_ends;
    uint32_t judged; /* which of the instances was looked at last */
    pthread_t worker, watchdog, reaper, judging;
    td_thread_pool *pool; /* with which the worker computes; NULL: it does not */
    td_sleeper *sleeper;
    uint64_t watch_until_ns; /* when the watchdog looks by itself */
    bool enqueuing;  /* the worker is handing something to the stream, without the lock */
    bool idle;       /* the worker of a stream sleeps until it is woken */
    bool abandoned;  /* the worker of a stream is to end, whatever is under way */
    uint32_t pollers, sleepers; /* callers in a nap of td_jobs_nap_locked(); those among them that rely on the worker */
    td_guess guess;
    uint64_t computed_ns; /* when the last job that is DONE was */
    uint64_t no_spin_until_ns;
    bool knows_cpus; /* where the worker of a stream may run: */
    td_cpus cpus;    /* there, unless */
    int caller_cpu, worker_cpu; /* -1, or where who asked for a descriptor ran, and where the worker is held therefore */
    uint64_t called_ns;         /* when it asked */
    uint64_t free_until_ns, free_ns; /* until then the worker is held nowhere: it came late; and for how long next time */

    char error[TD_WHY_BYTES + 64];
    char unlogged[TD_WHY_BYTES]; /* a line that the watchdog has yet to log */
    char hint[TD_WHY_BYTES];     /* and a warning */
    tandem_status broken; /* sticky: DEVICE or LOST */
    bool broken_unlogged; /* the watchdog has yet to log it */
    bool runs_on;         /* broken, but the GPU is not: its signals come */
    uint64_t broken_ns;

    td_table mems, timelines, models, instances;
    uint64_t mem_host_bytes, mem_device_bytes;

    td_job *jobs;                         /* `jobs_in_flight` slots */
    td_job *order[TD_MAX_JOBS_IN_FLIGHT]; /* under way, in the order of submission */
    uint32_t order_count;
    uint64_t last_number;
    tandem_job_report reports[TD_REPORTS];
    uint64_t submitted, done, stale, cancelled, failed;
    td_scratch retired_scratch[TD_MAX_RETIRED_SCRATCH];
    uint32_t retired_scratch_count;
    td_point_fd point_fds[TD_POINT_FDS];
    uint32_t point_fd_count;
    uint64_t point_looks;
};

/* What follows from a session's way, wherever code asks: see ladder.h. */
static inline bool td_is_inline(const tandem_session *s) { return s->way.sharing == TD_SHARING_INLINE; }
static inline bool td_copies(const tandem_session *s) { return !td_way_shares_memory(s->way); }
static inline bool td_gpu_signals(const tandem_session *s) { return td_way_gpu_signals(s->way); }
static inline bool td_is_on_device(const tandem_session *s) { return td_way_is_on_device(s->way); }

/* entry.c. here: in the process that made it; usable: and not destroyed; else (or for NULL) the call is to return ARG. fail: a call
 * without a session fails, with a line where TANDEM_LOG asks for one. keep: the text of this thread's last failure. */
bool td_session_is_here(const tandem_session *s, const char *call);
bool td_session_usable(const tandem_session *s, const char *call);
static inline bool td_session_is_over(const tandem_session *s) { return atomic_load(&s->over); }
tandem_status td_call_fail(const char *call, tandem_status status, const char *why);
void td_call_keep(const char *call, const char *why);
const char *td_call_text(void);

/* objects.c: our own memory, zeroed or as it comes; `bytes` again on release. NULL: none left. */
void *td_session_alloc_dirty(tandem_session *s, uint64_t bytes, size_t alignment);
void *td_session_alloc(tandem_session *s, uint64_t bytes, size_t alignment);
void td_session_free(tandem_session *s, void *pointer, uint64_t bytes);

/* Keeps the text of a failure and logs it: as an error, but BUSY as DEBUG: callers poll for it. Returns `status`. */
tandem_status td_session_fail(tandem_session *s, const char *call, tandem_status status, const char *why);
void td_session_keep_error_locked(tandem_session *s, const char *text);

/* Ids. Lookup: NULL and the reason, naming `what`, when the id is not that of a live object of this kind. */
tandem_status td_table_add_locked(tandem_session *s, td_table *table, td_kind kind, td_object *object, char *why);
void td_table_remove_locked(td_table *table, td_object *object);
td_object *td_table_find_locked(tandem_session *s, td_kind kind, uint64_t id, const char *what, char *why);
static inline td_mem *td_mem_find_locked(tandem_session *s, tandem_mem id, const char *what, char *why)
{
    return (td_mem *)td_table_find_locked(s, TD_KIND_MEM, id, what, why);
}
static inline td_timeline *td_timeline_find_locked(tandem_session *s, tandem_timeline id, const char *what, char *why)
{
    return (td_timeline *)td_table_find_locked(s, TD_KIND_TIMELINE, id, what, why);
}
void td_object_release_locked(tandem_session *s, td_object *object);
/* session.c: a holder less. */
void td_session_drop(tandem_session *s);
/* close.c: cancels the jobs that have not begun, waits for the others. OK: nobody uses it, nobody can; BUSY: it stays. */
tandem_status td_object_close_locked(tandem_session *s, td_object *object, const char *what, char *why);

/* Waits on a condition of the session's until `until_ns` at the latest. */
void td_cond_wait_until(tandem_session *s, pthread_cond_t *cond, uint64_t until_ns);
static inline uint64_t td_after(uint64_t ns, uint64_t more_ns)
{
    return ns > UINT64_MAX - more_ns ? UINT64_MAX : ns + more_ns;
}

/* device.c */
td_vk_desc td_device_vulkan(const tandem_vulkan *vulkan);
tandem_status td_device_open(tandem_session *s, const tandem_session_desc *desc, char *why);
void td_device_close(tandem_session *s);
/* Has AUTO go by what was given, if that fits the device; else by what there is. */
void td_device_tune(tandem_session *s);

/* memory.c, timelines.c, model.c: free what the object holds; not locked; accept half-made ones. */
void td_mem_free(tandem_session *s, td_mem *mem);
void td_timeline_free(tandem_session *s, td_timeline *timeline);
void td_model_free(tandem_session *s, td_model *model);
/* memory.c. device: memory of the inline rung's own, with an address. */
#define TD_MEM_USAGE (VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT)
td_mem *td_mem_new(tandem_session *s, uint64_t bytes, char *why);
tandem_status td_mem_make_device(tandem_session *s, td_mem *mem, VkBufferUsageFlags usage, char *why);
/* Memory that the session's kernels can read, for weights. Not `zeroed`: it is as it comes, but zeros on the worker's GPU. */
tandem_status td_mem_make_private(tandem_session *s, td_mem *mem, bool zeroed, char *why);
/* The same, all zeros wherever it is; and memory that the host fills as well, for small things that the kernels read. */
tandem_status td_mem_make_zeros(tandem_session *s, td_mem *mem, char *why);
tandem_status td_mem_make_filled(tandem_session *s, td_mem *mem, char *why);

/* model.c: a load, piece by piece: begin, step until it does not say BUSY any more, which is a MiB each time, enter, which
 * makes it the session's. End, in any case and whenever: what was not entered is freed. Texts do not name the file. */
typedef struct td_model_load {
    tandem_session *s;
    td_safetensors file; /* or, fd -1, */
    td_gguf gguf;        /* a GGUF file, */
    td_llama llama;      /* whose graph is the network's */
    td_model *model;
    void *staging;
    uint32_t piece; /* that is read: a tensor of the file, or a weight of the graph; */
    uint64_t at;    /* so much of it is there */
} td_model_load;
tandem_status td_model_load_begin(tandem_session *s, const tandem_model_desc *desc, td_model_load *load, char *why);
tandem_status td_model_load_step(td_model_load *load, char *why);
tandem_status td_model_load_enter(td_model_load *load, tandem_model *out, char *why);
void td_model_load_end(td_model_load *load);

/* model_file.c: the file of a load. open: with the network, if there is one, which the model then has. keep_header: as a worker's
 * clients get it. lay_out: the model's tensors, and what all that jobs can read takes together. piece: what is read one after the
 * other; false: it was the last. read: of load->piece, from load->at on; multiples of 4, until its end. */
typedef struct td_model_piece {
    const char *name;
    uint64_t offset, bytes; /* in the model's memory */
} td_model_piece;
tandem_status td_model_file_open(td_model_load *load, const tandem_model_desc *desc, char *why);
void td_model_file_close(td_model_load *load);
tandem_status td_model_file_lay_out(td_model_load *load, uint64_t *bytes, char *why);
bool td_model_file_piece(const td_model_load *load, uint32_t index, td_model_piece *piece);
tandem_status td_model_file_read(td_model_load *load, uint64_t bytes, void *to, char *why);
tandem_status td_model_file_keep_header(td_model_load *load, char *why);

tandem_status td_timeline_value_locked(tandem_session *s, td_timeline *timeline, uint64_t *value);
/* Signals from the host; values that do not rise are left out. */
tandem_status td_timeline_raise_locked(tandem_session *s, td_timeline *timeline, uint64_t value);
/* Sets off the descriptors of points that are reached, or of a session that is broken; and of all points of a timeline
 * that is at its end, or of all timelines (NULL). */
void td_points_notify_locked(tandem_session *s);
void td_points_end_locked(tandem_session *s, const td_timeline *timeline);
/* Sleeps until the timeline should be looked at again, in a wait since begin_ns that ends at until_ns. What the session
 * signals wakes `changed` and `work`, and so does what is signalled from the host. An engine's semaphores are looked at
 * ever less often and never slept on in the driver: vkWaitSemaphores takes 10 ms to see a value that CUDA
 * signals, cannot be interrupted, and together with a vkSignalSemaphore of another thread it stalls the validation
 * layers (1.3.239) for 10 s. */
void td_timeline_nap_locked(tandem_session *s, const td_timeline *timeline, pthread_cond_t *cond, uint64_t begin_ns,
                            uint64_t until_ns);
/* How long to sleep between two looks at something that wakes nobody: a wait becomes at most a sixteenth longer, or as
 * little as the kernel can sleep. */
static inline uint64_t td_nap_ns(uint64_t waited_ns)
{
    const uint64_t least = 5000, most = 500000, nap = waited_ns / 16;

    return nap < least ? least : nap > most ? most : nap;
}

/* jobs.c: how a job begins. submit: all of it, as tandem_submit(). prepare: everything about it is checked, views and points
 * are found, its plan is made, in a free slot that stays free; BUSY where there is none. Its scratch is yet to be reserved.
 * accept (local_stream.c): it is under way, its report PENDING, and what it names in use. */
tandem_status td_job_submit_locked(tandem_session *s, td_submission *from, tandem_ticket *ticket, char *why);
tandem_status td_job_prepare_locked(tandem_session *s, const td_submission *from, td_job **out, char *why);
tandem_ticket td_job_accept_locked(tandem_session *s, td_job *job);
/* views.c. An operation as plans have to know it: which kernels can read its views depends on their addresses, and mems may begin
 * anywhere in what they were made of. */
tandem_operands td_operands_at(const td_operation *operation, const tandem_operands *op, const uint64_t addresses[TD_MAX_VIEWS]);
/* Its executor has it. */
static inline bool td_job_has_begun(const td_job *job)
{
    return job->life.stage == TD_STAGE_BEGUN;
}
/* Whether it is to be given up: not yet; yes, but its executor has not decided yet; it is. Neither: too late. */
static inline bool td_job_is_wanted(const td_job *job)
{
    return job->life.fate == TD_FATE_WANTED;
}
static inline bool td_job_is_deciding(const td_job *job)
{
    return job->life.fate == TD_FATE_DECIDING;
}
static inline bool td_job_is_given_up(const td_job *job)
{
    return job->life.fate == TD_FATE_GIVEN_UP;
}
/* views.c: what a job names, view by view: its arrays get room for so many, none of which is there yet. bind: a view of that name
 * and shape is found and checked by itself; its address is a multiple of `alignment`. apart: what the job writes of those
 * from `first` on, views[i] each, overlaps nothing else of them. */
void td_job_set_view_count(td_job *job, uint32_t count);
tandem_status td_job_bind_view_locked(tandem_session *s, td_job *job, uint32_t index, const tandem_view *view,
                                      const uint32_t shape[4], uint32_t alignment, char *why);
tandem_status td_job_views_apart(const td_job *job, uint32_t first, const tandem_view *const *views, char *why);

/* staging.c: the rung `copy`. make: what a mem needs beside its memory of Vulkan's and its staging memory. in: brings what
 * the job's views read to where the device, or its submit, finds it; fills job->staging, and views and copies of `submit`.
 * out: takes back what the job wrote, once the device is done with it and the result is wanted. Out never under the lock,
 * nor in where the processor has a part in it. */
tandem_status td_staging_make(tandem_session *s, td_mem *mem, char *why);
bool td_staging_by_hand(const td_job *job);
tandem_status td_staging_in(tandem_session *s, td_job *job, td_stream_submit *submit, char *why);
bool td_staging_takes_back(const td_job *job);
tandem_status td_staging_out(tandem_session *s, const td_job *job, char *why);
/* Whether a job's bytes must not be brought in before an earlier job, which has begun, is over. The order of all else is
 * the stream's to keep. */
bool td_staging_must_wait(const td_job *job, const td_job *earlier);
/* td_stream_enqueue(), and waits until there is room. Not under the lock. */
tandem_status td_staging_enqueue(tandem_session *s, const td_stream_submit *submit, uint64_t *sequence, char *why);

/* forgotten.c. look: a job begins; what was never recorded for its mems becomes s->hint. wrote: it is DONE. tell: the mem
 * goes. */
void td_forgotten_look_locked(tandem_session *s, td_job *job);
void td_forgotten_wrote_locked(const td_job *job);
void td_forgotten_tell(tandem_session *s, const td_mem *mem);

/* wait.c. A caller's wait: nap, again and again, sleeps until it may be worth looking at jobs again, or something has
 * changed, or until `until_ns`; leave ends it. `slack`: 0 at first. */
void td_jobs_nap_locked(tandem_session *s, uint64_t until_ns, int *slack);
void td_jobs_leave_locked(tandem_session *s, int slack);
/* When to look at the oldest job again, and at deadlines. Not `alone`: that job has not begun or is long overdue, and its
 * end is to be told by others. */
uint64_t td_jobs_look_locked(const tandem_session *s, uint64_t now, bool *alone);
/* When to look next, so as to be awake at `at`. */
uint64_t td_toward(uint64_t now, uint64_t at);
/* The job is through. */
void td_guess_learn_locked(tandem_session *s, const td_job *job);
/* Whether the worker of a stream has to see the end of jobs. */
bool td_worker_needed_locked(const tandem_session *s);

/* release.c. refused: signals, of one timeline or of all (NULL), the next point that tandem_submit() refused and that the
 * engine may wait for; true: line says which, and to call it again. leave: a timeline or a mem that was destroyed is freed,
 * now, or once the engine's queue cannot use it any more, or with the session whose GPU has failed; not locked. leave_queue: when the session ends, at most 2 s; what
 * the queue may use even then is left to it (in_use). */
bool td_refused_release_locked(tandem_session *s, td_timeline *only, char *line);
void td_timeline_leave(tandem_session *s, td_timeline *timeline);
void td_mem_leave(tandem_session *s, td_mem *mem);
void td_session_leave_queue(tandem_session *s);
void td_leaving_free(tandem_session *s);

/* mems.c, timelines.c and points.c, model.c: how an object goes that nobody uses. remove: no call finds it any more. end: all that there
 * is of it; not locked, and may block. */
void td_mem_remove_locked(tandem_session *s, td_mem *mem);
void td_mem_end(tandem_session *s, td_mem *mem);
void td_timeline_remove_locked(tandem_session *s, td_timeline *timeline);
void td_timeline_end(tandem_session *s, td_timeline *timeline);
void td_model_remove_locked(tandem_session *s, td_model *model);
void td_model_end(tandem_session *s, td_model *model);

/* retire.c: ends the thread that frees what was retired; what it has not freed stays in the tables. */
void td_reaper_stop(tandem_session *s);
/* layers.c: a job was submitted, or has ended; judge.c: the thread that looks at samples. */
void td_layers_submitted_locked(const td_job *job);
void td_run_ended_locked(tandem_session *s, const td_job *job, const tandem_job_report *report);
void td_judge_stop(tandem_session *s);

/* inline_jobs.c: jobs in the engine's command buffers; no-ops on other rungs. Ends the reports of those that have run. */
void td_recorded_advance_locked(tandem_session *s);
/* Gives up a recorded job, unless it has begun: false. */
bool td_recorded_cancel_locked(tandem_session *s, td_job *job);
/* The same with all that use a mem, or with all (NULL). */
void td_recorded_cancel_all_locked(tandem_session *s, const td_object *object);

/* worker_session.c: sessions of tandemd's worker, each for one client on CUDA, or for all others. `imports_only`: its mems and
 * timelines come from descriptors that the client's Vulkan exported, and its jobs wait and signal on the GPU; else as
 * without Vulkan. Its jobs begin at once: who submits them knows that what they wait for is submitted. What is late for
 * `wait_bound_ns` is signalled in place of who owes it. */
tandem_status td_worker_session_create(const tandem_session_desc *desc, bool imports_only, tandem_session **out);
tandem_status td_worker_session_import_mem(tandem_session *s, int fd, uint64_t allocation_bytes, bool dedicated,
                                           uint64_t offset_bytes, uint64_t bytes, tandem_mem *out);
tandem_status td_worker_session_import_timeline(tandem_session *s, int fd, bool by_session, uint64_t value,
                                                tandem_timeline *out);
/* As desc.tuning, before its first job. */
tandem_status td_worker_session_tune(tandem_session *s, const struct td_tuning_table *table);
/* What the precision of an operation is there: what AUTO stands for. */
uint32_t td_worker_session_precision(tandem_session *s, const td_operation *operation, const tandem_operands *op);
/* Where a model's tensors are. */
tandem_mem td_worker_session_model_mem(tandem_session *s, tandem_model model);
/* A model of another session's on the same device, which must outlive it. Nobody asks an alias for tensors. */
tandem_status td_worker_session_alias_model(tandem_session *s, tandem_session *from, tandem_model of, tandem_model *out);
/* What tells a client of a model's graph: a memfd as PROTOCOL.md has it for GRAPH, which stays the model's; -1: there is none. */
int td_worker_session_model_header(tandem_session *s, tandem_model model, uint64_t *bytes);
/* What an instance of it has for its own. */
uint64_t td_worker_session_state_bytes(tandem_session *s, tandem_model model);
/* As tandem_model_instance(), with what a client asks of layers. */
tandem_status td_worker_session_instance(tandem_session *s, tandem_model model, const tandem_instance_desc *desc,
                                         const struct td_wire_layers *layers, tandem_instance *out);
/* As tandem_model_prepare() and tandem_model_prepared(). All that is prepared for the instance may take so much; mflop: of such
 * a run. */
typedef struct td_worker_prepared {
    uint64_t most_bytes, bytes;
    double mflop;
    tandem_prepared as;
} td_worker_prepared;
tandem_status td_worker_session_prepare(tandem_session *s, tandem_instance instance, const uint32_t *numbers,
                                        uint32_t number_count, td_worker_prepared *prepared);
/* What an instance keeps, while no run of it is under way, to or from `host`: its ranges, which the caller has checked. */
tandem_status td_worker_session_copy_state(tandem_session *s, tandem_instance instance, const struct td_wire_instance_state *m,
                                           void *host);
/* Memory of the session's own, zeroed, for the output of parts of a job with a deadline: those have one, too, but claim
 * nothing. When all have ended a job of TD_OPERATION_COMMIT claims it (kernels/commit.h), which these sessions alone take. */
tandem_status td_worker_session_make_temp_output(tandem_session *s, uint64_t bytes, tandem_mem *out);
/* As tandem_submit(). compute: a job without points, on a CPU and with none under way, from its submission to its end, in
 * this thread. */
tandem_status td_worker_session_submit(tandem_session *s, td_submission *from, tandem_ticket *ticket);
tandem_status td_worker_session_compute(tandem_session *s, td_submission *from, tandem_job_report *report);
/* Gives up all jobs, and signals what they wait for: the client is gone. */
void td_worker_session_release(tandem_session *s);
bool td_worker_session_is_broken(tandem_session *s);
/* On a CPU, before its first job: they stand still while the flag, which must outlive the session, is raised. held: for how
 * long they have so far, and the longest that one went on after it was closed. */
void td_worker_session_preempt(tandem_session *s, td_preempt_flag *flag);
void td_worker_session_held(tandem_session *s, uint64_t *held_ns, uint64_t *late_ns);
/* Who holds how much scratch: returns how many they are. */
typedef struct td_holding {
    uint64_t owner, bytes;
} td_holding;
uint32_t td_worker_session_holdings(tandem_session *s, td_holding list[TD_MAX_JOBS_IN_FLIGHT]);
/* Frees what no job uses, of one owner or of TD_EVERYBODY. False: there was none. */
#define TD_EVERYBODY UINT64_MAX
bool td_worker_session_trim(tandem_session *s, uint64_t owner);
/* session.c: keeps a copy of a table, or makes room for one (NULL). */
tandem_status td_session_take_table(tandem_session *s, const struct td_tuning_table *table, char *why);
/* session.c: as tandem_session_create(). */
tandem_status td_session_make(const tandem_session_desc *desc, bool of_worker, bool imports_only, tandem_session **out);
/* mems.c: enters what was made into the session's table; frees it if that fails. */
tandem_status td_mem_enter(tandem_session *s, td_mem *made, tandem_mem *out, char *why);
/* local_end.c: the wait of a job that the GPU has is signalled by us; false if it is over, or the session's own. */
bool td_job_release_wait_locked(tandem_session *s, td_job *job);

/* remote.c. Connects, and asks who computes there: *device, threads, names; `why`: why that is no GPU. It shares this device's
 * memory if a way is open to the daemon's GPU; g->no_elsewhere: why the daemon does not. */
tandem_status td_remote_open(tandem_session *s, const tandem_session_desc *desc, td_grounds *g, td_device_kind *device,
                             char *why);
/* remote_models.c: what only a model of the daemon's has, there, too; others have none. Not locked, and may block. */
void td_remote_model_free(tandem_session *s, td_model *model);
/* Has the daemon that there is now load one that is about to enter, if the one that did is gone; releases the lock meanwhile. */
tandem_status td_remote_model_enter_locked(tandem_session *s, td_model *model, char *why);

/* Those of td_backend_local that are elsewhere than in local.c. */
tandem_status td_local_mem_share(tandem_session *s, td_mem *mem, char *why);
tandem_status td_local_timeline_share(tandem_session *s, td_timeline *timeline, char *why);
tandem_status td_local_model_load(td_model_load *load, const tandem_model_desc *desc, char *why);
tandem_status td_local_model_tensor_locked(tandem_session *s, td_model *model, const char *name, tandem_view *view,
                                           uint64_t shape[4], char *why);
tandem_status td_local_submit_locked(tandem_session *s, td_job *job, td_submission *from, tandem_ticket *ticket, char *why);
bool td_local_caller_waits_locked(tandem_session *s, bool alone, uint64_t until_ns);
void td_local_caller_leaves_locked(tandem_session *s);

/* local.c, and what it calls: local_watch.c, local_cpu.c, local_stream.c, local_end.c, scratch.c. */
/* The watchdog, and a worker whose main is `work`. stop: ends every job, one way or another, and both. */
tandem_status td_threads_start(tandem_session *s, void *(*work)(void *), char *why);
void td_threads_stop(tandem_session *s);
tandem_job_report *td_job_report_locked(tandem_session *s, const td_job *job);
bool td_job_state_ended(uint32_t state);
/* Until when a job's wait may last. What the engine signals may follow from the job before: see computed_ns. */
uint64_t td_job_bound_locked(const tandem_session *s, const td_job *job);
/* Asks the driver whether the device has failed; if so every job ends. */
bool td_gpu_is_well_locked(tandem_session *s);
/* Brings states up to date without waiting: jobs that the GPU has finished, deadlines that have passed. */
void td_jobs_advance_locked(tandem_session *s);
/* Something happens to a job: what is to be done for it (td_life_step) is. A job may be over then, and its slot free. */
void td_job_step_locked(tandem_session *s, td_job *job, td_life_event event);
void td_job_event_locked(tandem_session *s, td_job *job, td_life_event_kind kind);
/* Gives a job up, wherever it is: true if it is, or was before; false if its output is already its own (COMMITTED), or
 * if the executor is just deciding: td_jobs_advance_locked() asks again. */
bool td_job_give_up_locked(tandem_session *s, td_job *job, tandem_job_state state, tandem_status status);
void td_job_cancel_locked(tandem_session *s, td_job *job);
/* Signals and ends the jobs that were given up before they began, and whose turn it is. */
void td_jobs_retire_given_up_locked(tandem_session *s);
/* Whether a prepared job is past its deadline already. enter: it is under way, the last in the order; if late, given up. */
bool td_job_is_late(const tandem_session *s, const td_job *job);
tandem_ticket td_job_enter_locked(tandem_session *s, td_job *job, bool late);
/* Takes a prepared job, and computes it in the worker's place. */
void td_job_compute_locked(tandem_session *s, td_job *job, tandem_job_report *report);
/* A slot has at least so much. Where a job of that slot is under way, what it uses is kept until its end. */
tandem_status td_scratch_reserve_locked(tandem_session *s, td_job *job, td_submission *from, uint64_t bytes, char *why);
/* Frees the scratch of slots without a job, of one owner or of TD_EVERYBODY; of a stream only while nothing is under way, since
 * that waits for the device. False: there was none. */
bool td_scratch_trim_locked(tandem_session *s, uint64_t owner);

#endif
