/* Executors: they alone know plans and handles. Each binds addresses to a plan and runs it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_EXEC_H
#define TANDEM_EXEC_H

#include <stdatomic.h>

#include "interop/cu/cu.h"
#include "kernels/ops.h"

/* Copies a record's parameter block to `out` (TD_PARAM_BYTES, 16-byte aligned) with every pointer relocation
 * resolved: `views[i]` is the address of view i's first element, 0 if the job has none; `control` that of the job's
 * td_control, 0 if it has none. */
void td_exec_bind(const td_record *record, const uint64_t *views, uint64_t scratch, uint64_t control, void *out);

/* Runs a plan's records one after the other on the calling thread and up to threads - 1 others, block by block.
 * Blocks until done. If *cancel becomes nonzero (cancel may be NULL) it stops within one block a thread: BUSY.
 * Returns NOMEM if the threads' scratch cannot be had; UNSUPPORTED if a record has no CPU kernel. */
tandem_status td_exec_cpu_run(const td_plan *plan, const uint64_t *views, uint64_t scratch, uint32_t threads,
                              const atomic_uint *cancel);

/* Executor `cu_stream`: a plan on one non-blocking stream of a CUDA device.
 * Threads: one caller at a time a stream; poll from any thread. */
typedef struct td_stream td_stream;

/* Loads the cubin for the device, once. UNSUPPORTED with the reason if none fits. */
tandem_status td_stream_create(td_cu_device *device, const td_log *log, td_stream **out, char *why, size_t why_bytes);

/* The same with kernels of the caller's choice (NULL: as above), such as PTX of an older architecture. */
tandem_status td_stream_create_image(td_cu_device *device, const td_cubin *image, const td_log *log, td_stream **out,
                                     char *why, size_t why_bytes);

/* Whether the stream is idle, or broken for good, within timeout_ns. */
bool td_stream_drain(td_stream *stream, uint64_t timeout_ns);

/* Waits at most timeout_ns for what was submitted; what is stuck then is left behind on purpose, with one log line. */
void td_stream_destroy(td_stream **stream, uint64_t timeout_ns);

typedef struct td_stream_submit {
    const td_plan *plan;
    const uint64_t *views; /* device addresses, TD_VIEW_* order */
    uint64_t scratch;      /* device address, 256-byte aligned */
    const td_cu_timeline *wait, *signal; /* or NULL */
    uint64_t wait_value, signal_value;
    const char *label; /* of the NVTX range; a literal */
} td_stream_submit;

/* Submits that may be pending at once. A launch blocks the caller once about 1024 commands are; a submit has at most
 * 20. */
enum { TD_STREAM_PENDING = 48 };

/* Enqueues wait, records, signal; never blocks on the device. *sequence rises by one with each submit that succeeds.
 * BUSY with TD_STREAM_PENDING pending. On failure nothing was enqueued; only DEVICE and LOST may leave a part of it on
 * the stream, followed by the signal where `*signalled` says so, so that the point comes. */
tandem_status td_stream_enqueue(td_stream *stream, const td_stream_submit *submit, uint64_t *sequence, bool *signalled,
                                char *why, size_t why_bytes);

/* Everything up to the returned sequence number is finished on the device. Reads one word; no driver call. */
uint64_t td_stream_completed(const td_stream *stream);

/* Begin and end of a finished submit in CLOCK_MONOTONIC nanoseconds; false if it is not finished or not among the last
 * 256. */
bool td_stream_times(const td_stream *stream, uint64_t sequence, uint64_t *begin_ns, uint64_t *end_ns);

/* The GPU's globaltimer minus CLOCK_MONOTONIC, in ns: measured at creation; set by who can calibrate better. */
int64_t td_stream_clock_offset_ns(const td_stream *stream);
void td_stream_set_clock_offset_ns(td_stream *stream, int64_t offset_ns);

/* A sticky driver error of the stream's context: OK, DEVICE or LOST. One driver call. */
tandem_status td_stream_status(td_stream *stream, char *why, size_t why_bytes);

#endif
