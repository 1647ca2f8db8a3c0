/* Executors: they alone know plans and handles. Each binds addresses to a plan and runs it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_EXEC_H
#define TANDEM_EXEC_H

#include <stdatomic.h>

#include "engine_plugin/exec/pace.h"
#include "engine_plugin/exec/preempt.h"
#include "interop/cu/cu.h"
#include "interop/os/clock.h"
#include "interop/os/thread_pool.h"
#include "interop/vk/vk.h"
#include "kernels/params.h"
#include "kernels/target.h"

/* What plans for a GPU are made for: its stream's kernels, or those that every executor has. */
td_target td_exec_target(const td_cu_info *gpu, bool on_stream);

/* Where a relocation leads; 0 if its base is. */
uint64_t td_exec_address(const td_reloc *reloc, const uint64_t *views, uint64_t scratch, uint64_t control);

/* Copies a record's parameter block to `out` (its param_bytes, aligned to TD_PARAM_ALIGN) with every pointer relocation
 * resolved, but for tensor maps: `views[i]` is the address of view i's first element, 0 if the job has none; `control` that of the job's
 * td_control, 0 if it has none. */
void td_exec_bind(const td_record *record, const uint64_t *views, uint64_t scratch, uint64_t control, void *out);

/* Has the blocks of a bound record look for `cancel` at `word` instead, 0: nowhere. On a GPU that must be its own memory:
 * of host memory every block's read crosses the bus, one after the other. */
void td_exec_bind_cancel(const td_record *record, uint64_t word, void *params);

/* Runs a plan's records one after the other on the calling thread and up to threads - 1 others, which are started for it,
 * block by block. Blocks until done. If control->cancel becomes nonzero (control may be NULL) it stops within one tile a
 * thread: BUSY. Returns NOMEM if the threads' scratch cannot be had; UNSUPPORTED if a record has no CPU kernel
 * or the plan is none. */
tandem_status td_exec_cpu_run(const td_plan *plan, const uint64_t *views, uint64_t scratch, uint32_t threads,
                              td_control *control);

/* The same on a pool (NULL: the calling thread alone), for work that can wait: while the flag is raised its threads sleep,
 * from the next tile on, and go on where they were, so the bits are the same. But for 400 us after each 10 ms: nothing
 * stands still for good. Likewise while the pace's time is over; who is given none in a second goes on at any time. */
typedef struct td_preemptible {
    td_preempt_flag *flag;
    td_pace *pace;
    uint64_t held_ns; /* out: for how long the run stood still; */
    uint64_t late_ns; /* and the longest that it went on after the flag was raised */
} td_preemptible;
tandem_status td_exec_cpu_run_preemptibly(const td_plan *plan, const uint64_t *views, uint64_t scratch,
                                          td_thread_pool *pool, td_control *control, td_preemptible *yields);

/* A stream: submits to a GPU, run in their order, whichever way they get there:
 *   td_stream_create()         kernel launches on a CUDA stream          (executor `cu_stream`)
 *   td_stream_create_graph()   CUDA graphs, one a plan and slot          (executor `cu_graph`)
 *   td_stream_create_inline()  kernels in a Vulkan command buffer        (executor `vk_inline`, below)
 * Threads: one caller at a time a stream; what only reads host memory (completed, times, control) from any thread. */
typedef struct td_stream td_stream;

/* Loads the images for the device, but for those that wait for a plan that needs them. UNSUPPORTED with the reason if there
 * are none. */
tandem_status td_stream_create(td_cu_device *device, const td_log *log, td_stream **out, char *why, size_t why_bytes);

/* The same with kernels of the caller's choice (NULL: as above), such as PTX of an older architecture. */
tandem_status td_stream_create_image(td_cu_device *device, const td_cubin *image, const td_log *log, td_stream **out,
                                     char *why, size_t why_bytes);

/* The same as td_stream_create(), but each submit is one launch of a graph that is kept by slot, which keeps a few: while a
 * plan keeps its shape, only parameters, semaphore values and addresses that changed are updated. As td_stream_create() where
 * the driver has no such graphs. */
tandem_status td_stream_create_graph(td_cu_device *device, const td_log *log, td_stream **out, char *why,
                                     size_t why_bytes);

/* Whether the stream is idle, or broken for good, within timeout_ns. */
bool td_stream_drain(td_stream *stream, uint64_t timeout_ns);

/* Waits at most timeout_ns for what was submitted; what is stuck then is left behind on purpose, with one log line. */
void td_stream_destroy(td_stream **stream, uint64_t timeout_ns);

/* A point as the device sees it: of the two, what the stream's kind needs. */
typedef struct td_stream_point {
    const td_cu_timeline *cu;
    VkSemaphore semaphore;
    uint64_t value;
} td_stream_point;

/* Bytes to bring to the device before the records, or back after them (CUDA only; the `copy` rung). `host` is memory
 * that CUDA knows: pinned or registered. Copies of one submit overlap with the records of others. */
enum { TD_STREAM_COPIES = 64 }; /* each way */
typedef struct td_stream_copy {
    uint64_t device;
    void *host;
    uint64_t bytes;
} td_stream_copy;

typedef struct td_stream_submit {
    const td_plan *plan;
    const uint64_t *views; /* device addresses, as many as the plan has */
    uint64_t scratch;      /* device address, 256-byte aligned */
    const td_stream_point *wait, *signal; /* or NULL */
    const td_stream_copy *copies_in, *copies_out;
    uint32_t copy_in_count, copy_out_count; /* at most TD_STREAM_COPIES each */
    uint32_t slot;     /* which frame in flight, below TD_STREAM_PENDING: what is kept from frame to frame hangs there */
    const char *label; /* of the NVTX range or debug label; a literal */
} td_stream_submit;

/* Submits that may be pending at once, and what they may have together beyond the last: records, and four commands of each
 * submit's. A launch blocks the caller once about 1024 commands are pending. */
enum { TD_STREAM_PENDING = 32, TD_STREAM_COMMANDS = 896, TD_SUBMIT_COMMANDS = 4 };

/* Loads the kernels of a plan's records, so that an enqueue has none to load. UNSUPPORTED if one cannot run here; BUSY as
 * there. */
tandem_status td_stream_prepare(td_stream *stream, const td_plan *plan, char *why, size_t why_bytes);

/* Enqueues wait, records, signal; never blocks on the device, but where a plan is the first to need an image that was not
 * loaded with the stream: then CUDA waits up to a second for the stream to be idle, else BUSY. *sequence rises by one with
 * each submit that succeeds. BUSY with TD_STREAM_PENDING pending, or more than TD_STREAM_COMMANDS. Graphs: only a slot whose last submit is finished is used, and only without copies;
 * else the kernels are launched one by one. Inline: BUSY while the slot's last submit is pending; commands are recorded
 * anew only where the slot has none with these kernels, parameters and addresses. On failure nothing was enqueued; only
 * DEVICE and LOST may leave a part of it on the stream, followed by the signal where `*signalled` says so, so that the
 * point comes. */
tandem_status td_stream_enqueue(td_stream *stream, const td_stream_submit *submit, uint64_t *sequence, bool *signalled,
                                char *why, size_t why_bytes);

/* Everything up to the returned sequence number is finished on the device. Reads a few words; no driver call. */
uint64_t td_stream_completed(const td_stream *stream);

/* Sleeps, with next to no use of the processor, until the device has finished `sequence`, its signal included, or the
 * stream is broken: OK, DEVICE or LOST. Not bounded: for a helper thread of its own. Any thread; beside enqueue too. */
tandem_status td_stream_wait(td_stream *stream, uint64_t sequence);

/* What host and device say to each other about a submit, among the last TD_STREAM_PENDING ones, until its slot is used
 * again; cleared when it is enqueued. Its `cancel` is set by td_stream_cancel() alone. */
td_control *td_stream_control(td_stream *stream, uint64_t sequence);

/* Has the records of a submit return at once, those that the device has not begun and the blocks that it has not: it then
 * ends as any other, signal included. Does nothing to a submit that is finished. Any thread, but not beside an enqueue
 * in its slot. */
void td_stream_cancel(td_stream *stream, uint64_t sequence);

/* Signals a timeline from beside the stream, in place of who will not any more: what waits for it there goes on. On an H200
 * within 15-40 us. UNSUPPORTED but on CUDA. */
tandem_status td_stream_release(td_stream *stream, const td_cu_timeline *timeline, uint64_t value, char *why,
                                size_t why_bytes);

/* Whether the device has begun submit `sequence`: its wait is over. And how many of its records are finished, as far as
 * the device tells: none until all are. For reports of what hangs. */
bool td_stream_begun(const td_stream *stream, uint64_t sequence);
uint32_t td_stream_progress(const td_stream *stream, uint64_t sequence);

/* Begin and end of a finished submit in CLOCK_MONOTONIC nanoseconds; false if it is not finished or not among the last
 * 256. */
bool td_stream_times(const td_stream *stream, uint64_t sequence, uint64_t *begin_ns, uint64_t *end_ns);

/* The GPU's globaltimer minus CLOCK_MONOTONIC, in ns: measured at creation; set by who can calibrate better. */
int64_t td_stream_clock_offset_ns(const td_stream *stream);
void td_stream_set_clock_offset_ns(td_stream *stream, int64_t offset_ns);

/* A sticky driver error of the stream's context: OK, DEVICE or LOST. One driver call. */
tandem_status td_stream_status(td_stream *stream, char *why, size_t why_bytes);

/* Executor `vk_inline`: the same cubins in Vulkan command buffers (VK_NVX_binary_import).
 * Device addresses are those of td_vk_mem.address, and points Vulkan's semaphores. Creation calls td_vk_address_memory(),
 * loads the kernels for `sm` that fit, as a CUDA stream's does, then runs a small plan on `queue` with a data check, and waits for
 * it; UNSUPPORTED, with the reason, if anything is odd, and memory is without addresses again.
 * queue: where td_stream_enqueue() submits, within lock and unlock if they are set. Not VK_NULL_HANDLE: what was never
 * tried on a device is not recorded for it. */
typedef struct td_inline_desc {
    td_vk *vk;
    uint32_t sm;
    VkQueue queue;
    void (*lock)(void *user);
    void (*unlock)(void *user);
    void *user;
} td_inline_desc;
tandem_status td_stream_create_inline(const td_inline_desc *desc, const td_log *log, td_stream **out, char *why,
                                      size_t why_bytes);

/* Whether every record of a plan can run in a command buffer, before anything is recorded: the driver checks nothing, and
 * a kernel that does not fit loses the device. UNSUPPORTED, naming kernel, limit and value. */
tandem_status td_inline_check(td_stream *stream, const td_plan *plan, char *why, size_t why_bytes);

/* Records a plan into a command buffer of the engine's, with barriers between its records and stamps around them; what
 * comes before and after is the engine's to order. Its number is none of the stream's sequence: recorded plans run in
 * whatever order the engine submits them, more than once, or never. TD_INLINE_RECORDED are remembered: those that have yet
 * to run, those that ran again while so many others were recorded, and the last ones. BUSY where that is too many. */
enum { TD_INLINE_RECORDED = 256 };
tandem_status td_inline_record(td_stream *stream, const td_stream_submit *submit, VkCommandBuffer commands,
                               uint64_t *number, char *why, size_t why_bytes);

/* Whether the device has begun a recorded plan, and whether it has run, with its last times in CLOCK_MONOTONIC ns. Cancel:
 * all blocks that it has not begun return at once, now and whenever the commands run again. No driver calls. */
bool td_inline_begun(const td_stream *stream, uint64_t number);
bool td_inline_ran(td_stream *stream, uint64_t number, uint64_t *begin_ns, uint64_t *end_ns);
void td_inline_cancel(td_stream *stream, uint64_t number);
bool td_inline_cancelled(const td_stream *stream, uint64_t number);

/* Waits, at most for microseconds, until Vulkan too knows that what has completed is over, so that what it used may be
 * destroyed: stamps are written shortly before that. Any thread. */
void td_inline_sync(td_stream *stream);

/* Copies to device memory and waits: for set-up, never in a frame. Any thread. */
tandem_status td_inline_upload(td_stream *stream, const td_vk_mem *to, uint64_t offset, const void *from,
                               uint64_t bytes, char *why, size_t why_bytes);

#endif
