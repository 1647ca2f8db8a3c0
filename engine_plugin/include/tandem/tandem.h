/* Tandem - CUDA networks on a Vulkan engine's own buffers, inside its own frame.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * One sentence: a session takes jobs; a job names mems (and perhaps a model), waits on a point and signals a point.
 *
 *     tandem_session_create()    on the engine's VkDevice (tandem/vulkan.h), or on host memory
 *     tandem_mem_create()        share memory once, then name it by id
 *     tandem_timeline_create()   one for each direction
 *     tandem_submit()            a job per frame: wait {T, n}, signal {T', n}; the CPU never waits in between
 *
 * Every function is safe against wrong handles: an id that was destroyed, or never was, is TANDEM_ERROR_ARG. Every
 * failure leaves one log line (BUSY, which a caller may poll for, at TANDEM_LOG_DEBUG, all others at TANDEM_LOG_ERROR)
 * and tandem_error_text(), which name the argument and its value. That text is kept twice: for the session, and for the
 * thread whose call it was, tandem_error_text(NULL, ...), where no other thread's failure takes its place; and there alone
 * where there is no session to hold it (NULL, or tandem_session_create() failed).
 *
 * Structs grow at their ends, where 0 means what was before, so a program and a library of different versions go together:
 * struct_bytes, which a caller sets to its sizeof, says what it has. Of a struct that comes in, what it does not have is 0; a
 * longer one is taken if what the library does not know of it is 0, else it is UNSUPPORTED, with the offset. Of one that is
 * filled all the caller's bytes are written, zeros where the library has none, and none beyond. Arrays step by it. One that is
 * 0, beyond 65536 or no struct's was forgotten: ARG.
 *
 * Lines go to tandem_session_desc.log. Without it they go nowhere, unless the environment says TANDEM_LOG=error, warning,
 * info or debug: then lines of that level, and of graver ones, go to stderr.
 *
 * A session is for the process that made it. In a child after fork() each call with it is TANDEM_ERROR_ARG ("made in
 * another process"), at once, without its log callback (which may want a lock that nobody there gives back), and without
 * effect on the parent's, tandem_session_destroy() too: what the child has of it is a copy, which ends with the child. A
 * child may make sessions of its own. (Not one of vfork(), which shares the parent's memory.)
 */
#ifndef TANDEM_TANDEM_H
#define TANDEM_TANDEM_H

#include "tandem/types.h"

#ifndef TANDEM_API
#if defined(__GNUC__) && !defined(_WIN32)
#define TANDEM_API __attribute__((visibility("default")))
#else
#define TANDEM_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tandem_session tandem_session;
typedef struct tandem_vulkan tandem_vulkan; /* tandem/vulkan.h */

typedef enum tandem_log_level {
    TANDEM_LOG_ERROR = 0,
    TANDEM_LOG_WARN = 1,
    TANDEM_LOG_INFO = 2,
    TANDEM_LOG_DEBUG = 3
} tandem_log_level;

typedef enum tandem_backend { TANDEM_BACKEND_AUTO = 0, TANDEM_BACKEND_CUDA = 1, TANDEM_BACKEND_CPU = 2 } tandem_backend;

/* How compute meets the renderer, best first. Who computes is the backend: CUDA on the first four, the CPU on `cpu`, on
 * `copy` where it shares no memory with the device, and on `host` where that is asked for, which then is `cpu` by another
 * name. */
typedef enum tandem_rung {
    TANDEM_RUNG_INLINE = 1,   /* CUDA kernels within the engine's own command buffer */
    TANDEM_RUNG_TIMELINE = 2, /* shared memory, exported timeline semaphores: no host in the way */
    TANDEM_RUNG_HOST = 3,     /* shared memory, points signalled by the host */
    TANDEM_RUNG_COPY = 4,     /* no shared memory: bytes are copied both ways, points signalled by the host */
    TANDEM_RUNG_CPU = 5       /* no CUDA device for this engine: the CPU computes in shared memory */
} tandem_rung;

/* What a session's jobs are, where others compute too: in tandemd those of frames go before all of the background's, and
 * what goes on in the background is computed in slices of at most 0.5 ms, so that a frame waits for one of them; on a CPU it
 * stands still while there are jobs of frames, but for 0.4 ms after each 10 ms. Without the daemon it says nothing. An
 * engine with both has a session for each. */
typedef enum tandem_class { TANDEM_CLASS_FRAME = 0, TANDEM_CLASS_BACKGROUND = 1 } tandem_class;

/* What TANDEM_PRECISION_AUTO goes by. */
typedef enum tandem_tuning {
    TANDEM_TUNING_RULE = 0,    /* a rule: kernels/attention/tuning.h */
    TANDEM_TUNING_SHIPPED = 1, /* times that came with this library, measured on such a GPU */
    TANDEM_TUNING_GIVEN = 2,   /* those of tandem_session_desc.tuning */
    TANDEM_TUNING_DAEMON = 3   /* whatever tandemd goes by */
} tandem_tuning;

/* A device that could compute, as it is known without a session. */
typedef struct tandem_device {
    uint32_t struct_bytes; /* the caller sets that of list[0] */
    uint32_t backend;      /* tandem_backend: CUDA, or CPU */
    char name[128];
    char isa[32];          /* as in tandem_info */
    uint8_t uuid[16];      /* as Vulkan's deviceUUID; zeros: the CPU */
    uint32_t sm;           /* these as in tandem_info, too */
    uint32_t cuda_driver_version;
    uint32_t multiprocessors;
    uint32_t rungs;        /* 1 << tandem_rung, or'ed, of those that tandem_session_desc.rung could ask for. What a session
                              finds out has the last word */
    uint64_t memory_bytes; /* of the GPU; 0: the CPU */
    char why[256];         /* why not the best rung, or no rung; of the CPU: why there is no CUDA device; "": no reason */
} tandem_device;

/* What a session is made from. Zero is a good default for every field but struct_bytes. */
typedef struct tandem_session_desc {
    uint32_t struct_bytes;       /* sizeof(tandem_session_desc) */
    uint32_t backend;            /* tandem_backend; AUTO: CUDA where the engine's GPU has it, else the CPU */
    const tandem_vulkan *vulkan; /* the engine's device; NULL: host memory only */
    void (*log)(void *user, int level, const char *text); /* tandem_log_level; from any thread; one line; NULL: TANDEM_LOG
                                                             of the environment says which go to stderr, else none do */
    void *(*allocate)(void *user, size_t bytes, size_t alignment); /* memory of the session's objects; NULL: malloc */
    void (*release)(void *user, void *pointer);                    /* set both or neither */
    void *user;                /* for the three callbacks; none of them may call back */
    uint32_t cpu_threads;      /* most threads that CPU kernels use; 0, or more than there are: all cores */
    uint32_t frames_in_flight; /* jobs that may be under way before tandem_submit() says BUSY; 0: 3; at most 32 */
    /* A wait point that comes later than this after tandem_submit(), and after the last job before it that is DONE, is
     * taken for lost: the job fails. 0: 2 s. With a socket at most 60 s, with a warning where more was asked for */
    uint64_t wait_bound_ns;
    uint32_t timing;           /* 1: job reports carry begin_ns and end_ns */
    uint32_t rung;             /* tandem_rung: this one or UNSUPPORTED, to compare or to work around; 0: the best; CPU
                                  computes on the CPU whatever there is */
    char *error_text;          /* where tandem_session_create() writes why it failed, or NULL */
    size_t error_text_bytes;
    /* Where `tandemd` listens, which then computes instead of this process, or "" for $XDG_RUNTIME_DIR/tandem-0 (Windows: a
     * pipe of this user's); NULL: this process does. The same calls either way, and the same bits. When the daemon ends, every point that is
     * outstanding is signalled at once, its job FAILED with LOST, and tandem_submit() says LOST (at TANDEM_LOG_DEBUG)
     * until there is a daemon again: the session connects by itself, shares anew what is alive, and goes on. */
    const char *socket;
    uint32_t job_class; /* tandem_class */
    uint32_t reserved;  /* 0 */
    /* What AUTO is to go by: the text that `tandem tune` wrote, and its length; NULL: what came with this library for that
     * GPU, else a rule. A text that is wrong is refused; one of another GPU, or where its kernels do not run (the rungs
     * inline and cpu; with a socket, as tandemd has its own), is not used: a warning and tandem_info say so. */
    const char *tuning;
    uint64_t tuning_bytes;
    /* For a program of CUDA's, without Vulkan (vulkan NULL): the CUcontext in which the session then works, on that context's
     * device; NULL: the primary context of the first one. It stays the caller's, is never destroyed here, and must outlive
     * the session. There is no falling back to the CPU then. */
    void *cuda_context;
    /* And a CUstream of that context (CU_STREAM_LEGACY and CU_STREAM_PER_THREAD too), or NULL: a job then comes after all that
     * was put on it before tandem_submit(), and before all that is put on it after. So jobs have no wait point;
     * signal points are for the host, which signals them. */
    void *cuda_stream;
} tandem_session_desc;

/* What a session is, and what it holds now. */
typedef struct tandem_info {
    uint32_t struct_bytes; /* set by the caller */
    uint32_t backend;      /* tandem_backend; never AUTO */
    uint32_t rung;         /* tandem_rung */
    uint32_t sm;           /* compute capability as 90 for 9.0; 0 on the CPU */
    char rung_reason[256]; /* why not one rung higher */
    char device[128];      /* name of the device that computes */
    char isa[32];          /* CPU: instruction set in use; CUDA: the cubin in use */
    uint8_t device_uuid[16];
    uint32_t cuda_driver_version; /* as 13000; 0 on the CPU */
    uint32_t cpu_threads;
    uint64_t host_bytes;   /* held now, mems excluded that the engine brought */
    uint64_t device_bytes;
    uint64_t jobs_submitted, jobs_done, jobs_stale, jobs_cancelled, jobs_failed;
    /* Calls of the CUDA driver since creation: after warm-up a frame adds to none of the first three. */
    uint64_t cuda_copies, cuda_allocations, cuda_host_waits, cuda_launches;
    uint32_t tuning;           /* tandem_tuning */
    uint32_t reserved;         /* 0 */
    char tuning_reason[256];   /* why not what was given, or else why not times of this GPU; "": they are */
} tandem_info;

/* The version of this library, as TANDEM_VERSION.
 * Returns: major << 22 | minor << 12 | patch.
 * Owner: nothing.
 * Threads: any.
 * Blocks: never. */
TANDEM_API uint32_t tandem_version(void);

/* A status in words, for messages.
 * Returns: a literal; "unknown status" for any other number.
 * Owner: the library; never freed.
 * Threads: any.
 * Blocks: never. */
TANDEM_API const char *tandem_status_text(tandem_status status);

/* The CUDA devices in the driver's order, then the CPU, which is always there. Their rungs are those that CUDA and this
 * library have: what a Vulkan device adds or lacks says tandem_vulkan_device(). Fills at most *count entries and sets *count
 * to how many there are; list may be NULL.
 * Returns: OK; ARG; BUSY if *count was too small. What is wrong says tandem_error_text() without a session.
 * Owner: the caller's array.
 * Threads: any.
 * Blocks: the first time while the CUDA driver starts, some 0.1 s; makes no CUDA context. */
TANDEM_API tandem_status tandem_devices(uint32_t *count, tandem_device *list);

/* Makes a session on the engine's Vulkan device, or on host memory when desc->vulkan is NULL.
 * Returns: OK; ARG; UNSUPPORTED if the backend or the rung that was asked for is not there; NOMEM; DEVICE. *out is NULL
 *          on failure.
 * Owner: the caller; what desc points to need only live during the call, but the Vulkan objects as long as the session.
 * Threads: any; many sessions may live in one process.
 * Blocks: for the set-up of the device, about 0.3 s with CUDA. */
TANDEM_API tandem_status tandem_session_create(const tandem_session_desc *desc, tandem_session **out);

/* Cancels what has not begun, waits for what has, signals every point, frees everything that is left, sets *session
 * NULL.
 * Returns: OK; ARG if session or *session is NULL (as after a first destroy), or in a child of the process that made it:
 *          there *session stays, and so does its memory.
 * Owner: takes the session back; mems, models and timelines of it are gone with it; engine objects stay the engine's. Languages
 *        of it (tandem/npc.h), and what is theirs, can but be destroyed from then on: all other calls with them are ARG. Where
 *        there are any, it is with the last of them that the session's own block goes to desc.release.
 *        What a GPU that failed or hangs may still use is left behind, with a log line. Points that no job signals, as
 *        tandem_submit() refused theirs, are signalled too, and named in the log: a submit of the engine's may wait for one.
 * Threads: no other call on this session may run or follow.
 * Blocks: for the running job, at most 2 s beyond it, also after VK_ERROR_DEVICE_LOST; and at most 2 s until the queue of
 *         tandem_vulkan is past what it was given, or for 0.1 s where that cannot be asked. */
TANDEM_API tandem_status tandem_session_destroy(tandem_session **session);

/* What the session is: backend, rung of the ladder and why not a higher one, device, bytes and jobs.
 * Returns: OK; ARG if info is NULL or its struct_bytes was forgotten.
 * Owner: the caller's struct is filled.
 * Threads: any.
 * Blocks: never. */
TANDEM_API tandem_status tandem_session_info(tandem_session *session, tandem_info *info);

/* The text of the last failure on this session, of whichever thread or job it was; without a session (NULL) that of the
 * last call of this thread that failed, whatever session it had, or none. Jobs that fail later are no call's: theirs are the
 * session's alone. Copied; cut to `bytes` behind a word.
 * Returns: OK; ARG for text NULL or bytes 0, and in a child of the process that made the session (with the text that says
 *          so). Empty text when nothing failed yet.
 * Owner: the caller's buffer.
 * Threads: any.
 * Blocks: never. */
TANDEM_API tandem_status tandem_error_text(tandem_session *session, char *text, size_t bytes);

/* Where a mem's bytes come from. */
typedef enum tandem_mem_source {
    TANDEM_MEM_CREATE = 0, /* the session makes memory that both sides can use: with Vulkan also a VkBuffer on it */
    TANDEM_MEM_HOST = 1,   /* `host`: mapped memory, `bytes` long; both whole pages where there is Vulkan or CUDA; on the
                              copy rung it has no VkBuffer: the host fills and reads it itself */
    TANDEM_MEM_FD = 2,     /* `fd`, or `win32_handle`, of `handle_type`; stays the caller's */
    /* `vulkan_memory`: the engine's VkDeviceMemory, allocated for export as OPAQUE_FD where VK_KHR_external_memory_fd is
     * enabled (Windows: as OPAQUE_WIN32, VK_KHR_external_memory_win32, and not exported by anybody else), and on the inline rung with VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT; both may be set on every rung. Where the
     * CPU computes, or a daemon that shares no memory of the device, its bytes are copied as on the copy rung: by each release
     * and acquire. There, and on the inline rung, a dedicated allocation needs `vulkan_buffer` */
    TANDEM_MEM_VULKAN = 3,
    TANDEM_MEM_CUDA = 4 /* `cuda_pointer`: device memory of the caller's on the session's GPU, within one allocation, and in the
                           session's context if it was made in one; not on the inline and copy rungs, nor with a daemon */
} tandem_mem_source;

/* What the handle of a mem of TANDEM_MEM_FD is. */
typedef enum tandem_handle {
    TANDEM_HANDLE_OPAQUE_FD = 0, /* memory exported by the same device and driver; not on the inline, copy and cpu rungs */
    /* A dma-buf of any device's, on a session with Vulkan and VK_EXT_external_memory_dma_buf: on the inline, copy and cpu rungs,
     * as CUDA imports none. As memory of VULKAN, it has a VkBuffer, and is copied where that is. Nothing but the engine's points
     * says when who else uses it is through. Without Vulkan: map it, and give it as HOST. */
    TANDEM_HANDLE_DMA_BUF = 1,
    TANDEM_HANDLE_WIN32 = 2 /* as OPAQUE_FD, on Windows alone, which has no other: `win32_handle` is an OPAQUE_WIN32 of Vulkan's */
} tandem_handle;

typedef struct tandem_mem_desc {
    uint32_t struct_bytes;
    uint32_t source;           /* tandem_mem_source */
    uint64_t bytes;            /* of the mem */
    void *host;                /* HOST */
    int fd;                    /* FD */
    uint32_t dedicated;        /* FD, VULKAN: 1 if the memory is a dedicated allocation */
    uint64_t vulkan_memory;    /* VULKAN: the VkDeviceMemory, cast */
    uint64_t allocation_bytes; /* FD, VULKAN: VkMemoryAllocateInfo.allocationSize */
    uint64_t offset_bytes;     /* FD, VULKAN: where the mem begins in the allocation; views are as aligned as that, and below
                                  16 bytes slower kernels read them */
    uint32_t vulkan_usage;     /* CREATE: VkBufferUsageFlags beyond storage and transfer, of those in Vulkan 1.0 */
    uint32_t reserved;         /* 0 */
    /* VULKAN: the engine's VkBuffer that is bound to the memory at 0, cast: the one that a dedicated allocation is for. It
     * is used in place of a buffer of the session's: with TRANSFER_SRC and TRANSFER_DST where bytes are copied, with
     * SHADER_DEVICE_ADDRESS on the inline rung, with STORAGE_BUFFER to be packed to and unpacked from. 0: the session makes
     * one, which it cannot over a dedicated allocation */
    uint64_t vulkan_buffer;
    uint64_t cuda_pointer;     /* CUDA: the CUdeviceptr at which the mem begins */
    uint32_t handle_type;      /* FD: tandem_handle */
    uint32_t reserved2;        /* 0 */
    void *win32_handle;        /* FD, with WIN32 */
} tandem_mem_desc;

/* Shares a block of bytes between engine and session, once; jobs then name it by id.
 * Returns: OK; ARG; UNSUPPORTED if this rung cannot share such memory; NOMEM; DEVICE.
 * Owner: the session owns the id; memory of HOST, FD, VULKAN and CUDA stays the caller's and must outlive the mem.
 * Threads: any.
 * Blocks: for the driver, about 0.3 ms; not for a frame. */
TANDEM_API tandem_status tandem_mem_create(tandem_session *session, const tandem_mem_desc *desc, tandem_mem *mem);

/* Ends the sharing: jobs on it that have not begun are CANCELLED and signalled, a running one is waited for.
 * Returns: OK; ARG for an unknown or destroyed mem; BUSY if a job still runs on it after 2 s (the mem then stays).
 * Owner: takes the id back; frees what CREATE made.
 * Threads: any.
 * Blocks: for the running job. The engine's own use of the memory must be over. */
TANDEM_API tandem_status tandem_mem_destroy(tandem_session *session, tandem_mem mem);

/* The host's address of a mem, where it has one: always on host sessions, on the CPU rung and on the copy rung (there, and
 * for memory of VULKAN, it is what jobs see: the bytes of the last release, and what jobs wrote since; an acquire brings them
 * to the VkBuffer).
 * Returns: OK; ARG; UNSUPPORTED for memory that only the GPU sees.
 * Owner: the mem; valid until it is destroyed.
 * Threads: any.
 * Blocks: never. */
TANDEM_API tandem_status tandem_mem_host(tandem_session *session, tandem_mem mem, void **host);

/* Who makes a timeline's counter rise; nobody else ever does. */
typedef enum tandem_signaller { TANDEM_SIGNALLER_ENGINE = 0, TANDEM_SIGNALLER_SESSION = 1 } tandem_signaller;

typedef struct tandem_timeline_desc {
    uint32_t struct_bytes;
    uint32_t signaller;         /* tandem_signaller */
    uint64_t initial_value;    /* of one that the session makes; the engine's has its own */
    uint64_t vulkan_semaphore; /* an exportable timeline VkSemaphore of the engine's, cast, which on Windows nobody else has
                                  exported; 0: the session makes one */
} tandem_timeline_desc;

/* Makes or shares a timeline. Use one for each direction: waits of jobs on the engine's, their signals on the
 * session's.
 * Returns: OK; ARG; UNSUPPORTED; NOMEM; DEVICE.
 * Owner: the session owns the id and a semaphore that it made; one of the engine's stays the engine's.
 * Threads: any.
 * Blocks: never. */
TANDEM_API tandem_status tandem_timeline_create(tandem_session *session, const tandem_timeline_desc *desc,
                                                tandem_timeline *timeline);

/* Ends a timeline. Jobs that would wait on it or signal it are CANCELLED if they have not begun, waited for if they
 * have. A point of the session's that no job signals any more is signalled first, as by tandem_session_destroy(); where the
 * engine's queue is behind all the same, the semaphore goes later.
 * Returns: OK; ARG for an unknown or destroyed one; BUSY if a job still needs it after 2 s (it then stays).
 * Owner: takes the id back.
 * Threads: any.
 * Blocks: for the running job, and 0.1 s at most for the engine's queue. Its submits on the semaphore should be over. */
TANDEM_API tandem_status tandem_timeline_destroy(tandem_session *session, tandem_timeline timeline);

/* Reads the counter.
 * Returns: OK; ARG; DEVICE or LOST.
 * Owner: nothing.
 * Threads: any.
 * Blocks: never. */
TANDEM_API tandem_status tandem_timeline_value(tandem_session *session, tandem_timeline timeline, uint64_t *value);

/* Signals a timeline of the engine's from the host.
 * Returns: OK; ARG if it is the session's to signal, or value does not rise.
 * Owner: nothing.
 * Threads: any; the caller keeps the values rising.
 * Blocks: never. */
TANDEM_API tandem_status tandem_timeline_signal(tandem_session *session, tandem_timeline timeline, uint64_t value);

/* Says that the work which signals the engine's timeline up to `value` has been submitted to the device: jobs that wait
 * for these values go to the device at once, and meet them there. A job that waits for a value beyond, and beyond the
 * counter, is held on the host until this call, or until the value is reached: so that nothing on the device ever waits
 * for work that may never come. Call it behind vkQueueSubmit, before or after tandem_submit().
 * Returns: OK; ARG for an unknown timeline, or one that the session signals; DEVICE or LOST.
 * Owner: nothing.
 * Threads: any, but not within the engine's lock of tandem_vulkan.queue; a value below an earlier one changes nothing.
 * Blocks: never. */
TANDEM_API tandem_status tandem_timeline_submitted(tandem_session *session, tandem_timeline timeline, uint64_t value);

/* A descriptor that becomes readable when a point is reached, for poll, epoll or an event loop: an eventfd or a timerfd,
 * which are read alike. It also becomes readable when the point can no longer come, or its timeline is destroyed: ask
 * tandem_timeline_value() then.
 * Returns: OK; ARG; NOMEM with 1024 of them waiting, closed or not; IO; DEVICE or LOST.
 * Owner: the caller closes *fd, at any time.
 * Threads: any.
 * Blocks: never. */
TANDEM_API tandem_status tandem_point_fd(tandem_session *session, tandem_point point, int *fd);

/* Waits on the host until a point is reached, without ever sleeping in the driver on a value that CUDA signals.
 * Returns: OK; ARG; BUSY when timeout_ns has passed; DEVICE or LOST.
 * Owner: nothing.
 * Threads: any.
 * Blocks: at most timeout_ns, however long that is; UINT64_MAX: until the point is reached, or can no longer be. */
TANDEM_API tandem_status tandem_point_wait(tandem_session *session, tandem_point point, uint64_t timeout_ns);

/* Checks a job wholly, then queues it: nothing is computed unless everything about it is right.
 * Returns: OK; ARG; UNSUPPORTED; NOMEM; BUSY with frames_in_flight jobs under way; DEVICE or LOST. On failure the
 *          signal point is NOT taken: the engine must not wait for it.
 * Owner: the job is copied; its mems must live until it has ended (tandem_mem_destroy() sees to it). What is written
 *        must not overlap what is read, nor through two mems over the same memory; that is checked, but for FD.
 * Threads: any; jobs run in the order of their submission.
 * Blocks: never on the GPU or on a point. */
TANDEM_API tandem_status tandem_submit(tandem_session *session, const tandem_job *job, tandem_ticket *ticket);

/* Where a job is. Reports of the last 256 jobs are kept.
 * Returns: OK; ARG for a ticket that never was or is too old.
 * Owner: the caller's struct is filled.
 * Threads: any.
 * Blocks: never. */
TANDEM_API tandem_status tandem_poll(tandem_session *session, tandem_ticket ticket, tandem_job_report *report);

/* Waits on the host until a job has ended, whichever way; report may be NULL.
 * Returns: OK once it has ended (the report says how); ARG; BUSY when timeout_ns has passed.
 * Owner: the caller's struct is filled.
 * Threads: any.
 * Blocks: at most timeout_ns, however long that is; UINT64_MAX: until the job has ended, which each does that
 *         tandem_submit() took, and one of tandem_record() once its commands have run. */
TANDEM_API tandem_status tandem_wait(tandem_session *session, tandem_ticket ticket, uint64_t timeout_ns,
                                     tandem_job_report *report);

/* Gives a job up. If it has not begun it ends CANCELLED and its point is signalled in its turn; if it runs, blocks that
 * have not begun are left out, and it ends CANCELLED when its point comes. Of a job with a deadline nothing is written
 * then; the output of one without may be written in part.
 * Returns: OK if it ends CANCELLED; BUSY if it is writing its output or has ended already; ARG.
 * Owner: nothing.
 * Threads: any.
 * Blocks: for microseconds, while the device decides. */
TANDEM_API tandem_status tandem_cancel(tandem_session *session, tandem_ticket ticket);

/* What a model is made from. Zero is a good default for every field but struct_bytes and path. */
typedef struct tandem_model_desc {
    uint32_t struct_bytes; /* sizeof(tandem_model_desc) */
    uint32_t cache;        /* tandem_cache_format of a language model's caches; of any other file 0 */
    const char *path;
    /* Of a language model: how many sequences of tokens an instance has caches for, 0: 1; and how many tokens of each, 0:
     * as many as the model was trained for. Of any other file both are 0. */
    uint32_t sequences, context;
    /* Of a language model: its sequences have so many pages of 64 tokens in common, and runs say which (uniform `table`); 0: each
     * has a cache of its own. Of any other file 0. */
    uint32_t pages;
    uint32_t hidden; /* of a language model: 1: it has a further output, `hidden`; of any other file 0 */
    uint32_t tops;   /* of a language model: it has a further output, `top`, of so many words, at most 64; 0: it has not */
    uint32_t reserved; /* 0 */
} tandem_model_desc;

/* Loads a file onto the session's device:
 * - safetensors: tensors of each dtype that jobs read. One that carries a graph is a network, too: its graph is checked
 *   wholly, for any sizes, and the text of an error says where it is wrong;
 * - GGUF: a language model of the architecture llama (Llama 2 and 3, Mistral, SmolLM2), qwen2, qwen3, gemma, gemma2 or gemma3,
 *   which is a network. Weights stay in the file's blocks (Q8_0, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K); F32 and BF16 matrices become
 *   F16. A run computes tokens of some sequences: its numbers are batch (sequences), tokens (of each) and wanted (rows of
 *   logits); its uniforms ids and positions, I32 [batch * tokens], and rows, I32 [wanted], counted through all sequences; its
 *   output logits, F32 [wanted, words]. An instance keeps keys and values of each token at its position of its sequence, so
 *   that each run goes on where others ended; a position below 0 is none. Caches as codes take about a half of the memory, or
 *   two fifths; a run has at most 64 tokens of a sequence then, which follow one another, heads must have 64 or 128 channels,
 *   and see all tokens before them, uncapped. With `pages` that is so of F16, too, and a run's sequences are any of the
 *   instance's: one more uniform, table, I32 [batch, 1 + ceil(context / 64)], says which slot, below `sequences`, each has, and
 *   which of the pages is its first one, its second and so on; a number below 0 is none. With TANDEM_CACHE_F32, which no pool
 *   takes, a CPU computes all in float32. With `hidden` there is a further output of that name, F32 [wanted, channels]: the rows
 *   that logits are computed of, behind the last norm. With `tops` there is a last one, top, F32 [wanted, 2 * tops]: the largest
 *   logits, largest first, then their words, as numbers; so a host that samples few words need not have all logits. The file is mapped while it is read, so it must not shrink meanwhile. A folder as
 *   transformers saves such models (config.json, safetensors files, and for texts tokenizer.json) is the same, but for tandemd.
 * Returns: OK; ARG; IO if it cannot be read; PROTOCOL if it does not keep to its format; UNSUPPORTED for a language model
 *          that nothing here computes, and for all but path where a tandemd computes that is too old; NOMEM; DEVICE.
 * Owner: the session owns the model until tandem_model_destroy(); what desc points to need only live during the call.
 * Threads: any.
 * Blocks: while it reads the file. */
TANDEM_API tandem_status tandem_model_create(tandem_session *session, const tandem_model_desc *desc, tandem_model *model);

/* The same with nothing but a path. */
TANDEM_API tandem_status tandem_model_load(tandem_session *session, const char *path, tandem_model *model);

/* Finds a tensor of a model by name, as a view that jobs can read. Shapes are padded with leading ones to four.
 * Returns: OK; ARG for an unknown model, or a name that is not in it.
 * Owner: the model; the view is valid until the model is destroyed.
 * Threads: any.
 * Blocks: never. */
TANDEM_API tandem_status tandem_model_tensor(tandem_session *session, tandem_model model, const char *name,
                                             tandem_view *view, uint64_t shape[4]);

/* Frees a model, and its instances; as tandem_mem_destroy() for the mem behind its tensors.
 * Returns: OK; ARG for an unknown or destroyed model; BUSY.
 * Owner: takes the id back.
 * Threads: any.
 * Blocks: for a running job that reads it. */
TANDEM_API tandem_status tandem_model_destroy(tandem_session *session, tandem_model model);

/* Gives up a mem, a timeline, a model or an instance without waiting: no further call finds it, jobs that were submitted
 * before go on as if nothing had been, and once the last of them has ended it goes by itself, as by its _destroy(). A job of
 * tandem_record() counts until it has run for the first time, or is cancelled.
 * Returns: OK; ARG for an unknown or destroyed one; NOMEM if no thread could be started, and it stays.
 * Owner: takes the id back. Memory of HOST, FD, VULKAN or CUDA, and an engine's semaphore, must live until those jobs have ended.
 * Threads: any. The first call starts a thread of the session's, which sleeps until it has something to free.
 * Blocks: never. */
TANDEM_API tandem_status tandem_retire(tandem_session *session, uint64_t id);

/* --- Networks: models whose file has a graph --- */

/* What such a model is made of; all counts are 0 where its file has none. */
typedef struct tandem_network {
    uint32_t struct_bytes;  /* set by the caller */
    uint32_t binding_count; /* inputs and outputs, which each run brings; at most 64 */
    uint32_t uniform_count; /* small tensors that a run brings by value */
    uint32_t number_count;  /* named sizes; at most 32 */
    uint64_t weight_bytes;  /* of the device's memory, once a model */
    uint64_t state_bytes;   /* and for each instance */
} tandem_network;

/* A size that a run is prepared for: 1 to `most`. */
typedef struct tandem_network_number {
    uint32_t struct_bytes; /* set by the caller */
    uint32_t most;
    char name[256];
} tandem_network_number;

typedef enum tandem_network_role {
    TANDEM_NETWORK_INPUT = 0,
    TANDEM_NETWORK_OUTPUT = 1,
    TANDEM_NETWORK_UNIFORM = 2
} tandem_network_role;

/* A tensor that a run brings, for some numbers. */
typedef struct tandem_network_tensor {
    uint32_t struct_bytes; /* set by the caller */
    uint32_t role;         /* tandem_network_role */
    uint32_t dtype;        /* tandem_dtype */
    uint32_t dimensions;   /* 1 to 4 */
    uint32_t shape[4];     /* [batch, heads, rows, channels], of which the last `dimensions` are the graph's: others are 1 */
    uint64_t bytes;        /* of it, dense */
    uint64_t offset_bytes; /* of a uniform: in tandem_run.uniforms */
    char name[256];
} tandem_network_tensor;

/* What is the same for all runs of an instance. Zero is a good default for every field but struct_bytes. */
typedef struct tandem_instance_desc {
    uint32_t struct_bytes; /* sizeof(tandem_instance_desc) */
    uint32_t precision;    /* tandem_precision of its attention, whatever the graph says; AUTO: as the graph says */
    uint32_t deadlines;    /* 1: runs may have a deadline: outputs are written wholly or not at all, which costs a copy of each */
    uint32_t reserved;     /* 0 */
    /* A precision plan, as `tandem calibrate` writes it for this model: JSON, with a 0 behind it. Layers that it names have its
     * precision, others the one above. NULL: none. */
    const char *plan;
    /* Live quality control of layers, the nodes of attention: one run in sample_every also recomputes sample_rows rows of each
     * head exactly (in f16; fewer where there are fewer; about so many), and by that each layer's precision is stepped up or down,
     * between runs. A layer's similarity is cosine * (1 - relative L1).
     * min_similarity: each layer has the cheapest precision that is at least so similar; 0: none is asked for.
     * max_us: a run takes at most so long, by precisions that lose least, and as precise as that lets it; 0: however long. The
     *   session must have `timing`. Where both are given and cannot be had, it is similarity that is kept.
     * sample_every, sample_rows: 0: 16 and 64. With neither target, and one of these or sample_all, layers are watched only.
     * sample_all: 1: each sample is of all precisions, not of the one that a layer has and the next cheaper one. */
    float min_similarity, max_us;
    uint32_t sample_every, sample_rows, sample_all;
    uint32_t reserved2; /* 0 */
} tandem_instance_desc;

/* What tandem_model_prepare() has made for some numbers. */
typedef struct tandem_prepared {
    uint32_t struct_bytes;  /* set by the caller */
    uint32_t record_count;  /* launches of a run */
    uint32_t chain;         /* how many of them wait for one another: each costs some 2 us, whatever it computes */
    uint32_t layer_count;   /* that are sampled: tandem_model_layer() */
    uint64_t scratch_bytes; /* for each of tandem_session_desc.frames_in_flight, shared by all that the session computes */
    uint64_t uniform_bytes; /* for each of them, too */
} tandem_prepared;

/* How good a layer is that is sampled: since it was prepared, or since its precision changed last. */
typedef struct tandem_layer {
    uint32_t struct_bytes; /* set by the caller */
    uint32_t node;         /* of the graph's nodes */
    uint32_t precision;    /* tandem_precision that the next run has */
    uint32_t samples;      /* how many that is; 0: what follows says nothing yet */
    uint32_t changes;      /* of its precision */
    uint32_t pending;      /* 1: a run with samples is under way, or was not looked at yet */
    uint32_t heads, worst_head;
    float worst_similarity; /* the least of that head's */
    float cosine, relative_l1; /* mean over samples, of what runs computed */
    float similarity[4];   /* by tandem_precision, likewise: of those that were measured; below 0: it was not */
    char name[256];        /* of the tensor that it writes */
} tandem_layer;

/* Counts and bytes of a model's network.
 * Returns: OK; ARG for an unknown model; UNSUPPORTED where a tandemd computes that is too old to run networks.
 * Owner: the caller's struct is filled.
 * Threads: any.
 * Blocks: never. */
TANDEM_API tandem_status tandem_model_info(tandem_session *session, tandem_model model, tandem_network *network);

/* Number `index` of a model's network.
 * Returns: OK; ARG for an unknown model, or an index that is not below number_count; UNSUPPORTED as above.
 * Owner: the caller's struct is filled.
 * Threads: any.
 * Blocks: never. */
TANDEM_API tandem_status tandem_model_number(tandem_session *session, tandem_model model, uint32_t index,
                                             tandem_network_number *number);

/* Input or output `index`, as it is for these numbers, all of the network's in their order; NULL and 0: the most of each.
 * Returns: OK; ARG for an unknown model, an index that is not below binding_count, or numbers that a tensor cannot have;
 *          UNSUPPORTED as above; NOMEM.
 * Owner: the caller's struct is filled.
 * Threads: any.
 * Blocks: never. */
TANDEM_API tandem_status tandem_model_binding(tandem_session *session, tandem_model model, const uint32_t *numbers,
                                              uint32_t number_count, uint32_t index, tandem_network_tensor *tensor);

/* The same of uniform `index`, which is below uniform_count. */
TANDEM_API tandem_status tandem_model_uniform(tandem_session *session, tandem_model model, const uint32_t *numbers,
                                              uint32_t number_count, uint32_t index, tandem_network_tensor *tensor);

/* Makes an instance of a model's network: weights are the model's, state is its own, zeros at first. Where tandemd computes, state
 * is lost with its worker, or with the daemon: runs of the instance are LOST then, and another is made instead of it.
 * Returns: OK; ARG, also for a model without a graph; UNSUPPORTED as above, and for a plan or targets where a tandemd computes that is
 *          too old, or targets on the rung inline; PROTOCOL for a plan that is none, or of another graph, saying where; NOMEM; DEVICE; LOST
 *          where tandemd is gone.
 * Owner: the session owns the instance until tandem_instance_destroy(), or tandem_model_destroy() of its model.
 * Threads: any.
 * Blocks: for the driver. */
TANDEM_API tandem_status tandem_model_instance(tandem_session *session, tandem_model model,
                                               const tandem_instance_desc *desc, tandem_instance *instance);

/* Ends an instance, as tandem_mem_destroy() does a mem: runs that have not begun are CANCELLED, a running one is waited for.
 * Returns: OK; ARG for an unknown or destroyed one; BUSY if a run has not ended after 2 s (it then stays).
 * Owner: takes the id back, frees state and all that was prepared.
 * Threads: any.
 * Blocks: for the running job. */
TANDEM_API tandem_status tandem_instance_destroy(tandem_session *session, tandem_instance instance);

/* Makes an instance ready for runs of these numbers, all of the network's in their order: plans them, loads kernels, takes
 * memory. A submit with these numbers then does nothing of the kind, but that on a GPU the first in each slot of
 * frames_in_flight makes the slot's graph or command buffer. What is prepared already stays as it is. Eight sets of
 * numbers are kept; a ninth takes the place of the one that was used longest ago, that no job uses and tandem_record() never had.
 * Returns: OK; ARG, naming the number, node or tensor; UNSUPPORTED where the device has no kernel for a node, or tandemd takes no
 *          such uniforms; NOMEM; DEVICE; LOST if its state is;
 *          BUSY if jobs use all that is kept.
 * Owner: the instance.
 * Threads: any; jobs of other threads go on meanwhile.
 * Blocks: while it plans, some us a node, and for the driver. */
TANDEM_API tandem_status tandem_model_prepare(tandem_session *session, tandem_instance instance, const uint32_t *numbers,
                                              uint32_t number_count);

/* What was prepared for these numbers.
 * Returns: OK; ARG; UNSUPPORTED if they are not prepared (any more).
 * Owner: the caller's struct is filled.
 * Threads: any.
 * Blocks: never. */
TANDEM_API tandem_status tandem_model_prepared(tandem_session *session, tandem_instance instance, const uint32_t *numbers,
                                               uint32_t number_count, tandem_prepared *prepared);

/* How good layer `index` of those that are sampled is, for these numbers. A run is counted soon after it has ended, by a thread of
 * the session's at low priority, which takes a quarter of a processor at most.
 * Returns: OK; ARG for an index that is not below tandem_prepared.layer_count; UNSUPPORTED as above; LOST where its state is.
 * Owner: the caller's struct is filled.
 * Threads: any.
 * Blocks: never; where tandemd computes, for its answer. */
TANDEM_API tandem_status tandem_model_layer(tandem_session *session, tandem_instance instance, const uint32_t *numbers,
                                            uint32_t number_count, uint32_t index, tandem_layer *layer);

/* Whether tandem_submit() would take a job just now, with a free slot; and how much scratch it would use, which may be NULL.
 * Nothing is queued, and an answer of no is no failure: it leaves neither a log line nor tandem_error_text(), but `why`, which
 * may be NULL, has its text.
 * Returns: what tandem_submit() would; ARG, as a failure, if job is NULL.
 * Owner: the caller's buffers.
 * Threads: any.
 * Blocks: never. */
TANDEM_API tandem_status tandem_supported(tandem_session *session, const tandem_job *job, uint64_t *scratch_bytes, char *why,
                                          size_t why_bytes);

#ifdef __cplusplus
}
#endif
#endif
