/* What the executors on CUDA streams share: `cu_stream` launches kernels one by one, `cu_graph` as graphs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_EXEC_CU_STREAM_H
#define TANDEM_EXEC_CU_STREAM_H

#include "engine_plugin/exec/cu_modules.h"
#include "engine_plugin/exec/stream.h"
#include "interop/cu/driver.h"
#include "interop/os/thread.h"

enum { TD_CUDA_TRACES = 8 };

typedef struct td_cuda_function {
    const char *entry; /* in the cubin's table */
    const char *asked; /* the same name, where plans have it */
    uint32_t image;
    td_cu_kernel kernel; /* as it was when this stream last asked */
    bool wide_clusters; /* of more than 8 blocks */
} td_cuda_function;

typedef struct td_cuda_span {
    uint64_t begin, end;
} td_cuda_span;

/* What a submit touches, for the order of copies against records. */
typedef struct td_cuda_trace {
    uint64_t sequence;
    bool everything;                       /* more than is listed */
    uint32_t out_count;
    td_cuda_span views[TD_MAX_VIEWS];     /* by its records */
    td_cuda_span out[TD_STREAM_COPIES];   /* on the device, by its copies */
    td_cuda_span out_host[TD_STREAM_COPIES];
} td_cuda_trace;

typedef struct td_cuda_stream {
    td_stream base;
    td_cu_device *device;
    td_cu_stream stream, in, out, urgent; /* records; copies to the device and from it; cancel words */
    td_cu_stream callers; /* what is on it comes before a submit, and what is put on it then after; NULL: there is none */
    td_cu_event before;   /* where that stream is when a submit comes */
    const td_cubin *cubin;
    td_cu_modules *modules;      /* its images, shared with other streams */
    td_cuda_function *functions; /* of all its images, one image behind the other, as the modules have them */
    uint32_t function_count;
    td_cu_function stamp;
    td_cuda_function **at_hand; /* of the records of a submit that is launched one by one */
    uint32_t at_hand_room;
    td_cu_mem ring;

    td_cu_mem cancel_words; /* cancel words in the device's memory, by place */
    pthread_mutex_t cancel_lock;
    uint64_t word_of[TD_STREAM_PLACES]; /* whose each word is */
    bool word_set[TD_STREAM_PLACES];

    /* Behind the signal of a submit, by sequence % TD_STREAM_PENDING; of which submit it tells. */
    td_cu_event done[TD_STREAM_PENDING];
    atomic_uint_fast64_t done_sequence[TD_STREAM_PENDING];
    atomic_uint_fast64_t last_done; /* the last of them; the highest bit: it is recorded on `out` */
    td_cu_event tail;               /* that td_cuda_wait() sleeps by */
    atomic_bool tail_taken;
    atomic_uint waiters;

    /* Of submits with copies, and of all after the first of them. */
    bool copies;
    uint64_t last_out; /* the last submit whose end is on `out`, unless `stream` waited for it since */
    td_cu_event brought, ran[TD_CUDA_TRACES]; /* behind copies to the device; behind records, as traces */
    td_cuda_trace traces[TD_CUDA_TRACES];     /* by sequence % TD_CUDA_TRACES */
} td_cuda_stream;

/* Fills a zeroed object of a kind that embeds td_cuda_stream; its destroy must be called whatever comes back. */
tandem_status td_cuda_init(td_cuda_stream *stream, const td_stream_ops *ops, td_cu_device *device,
                           const td_cubin *image, const td_log *log, char *why, size_t why_bytes);
/* td_stream_ops, for kinds that add nothing to them. */
tandem_status td_cuda_prepare(td_stream *stream, const td_plan *plan, char *why, size_t why_bytes);
tandem_status td_cuda_enqueue(td_stream *stream, const td_stream_submit *submit, uint64_t sequence, bool *signalled,
                              char *why, size_t why_bytes);
tandem_status td_cuda_wait(td_stream *stream, uint64_t sequence);
void td_cuda_cancel(td_stream *stream, uint64_t sequence);
tandem_status td_cuda_status(td_stream *stream, char *why, size_t why_bytes);
tandem_status td_cuda_release(td_stream *stream, const td_cu_timeline *timeline, uint64_t value, char *why,
                              size_t why_bytes);
void td_cuda_destroy(td_stream *stream, bool drained);

/* cu_drain.c */
bool td_cuda_drain(td_stream *stream, uint64_t timeout_ns);

/* cu_kernels.c: takes the images of a table, NULL: of the device's architecture, or else PTX of an older one; gives them back. */
tandem_status td_cuda_load_kernels(td_cuda_stream *stream, const td_cubin *cubin, char *why, size_t why_bytes);
void td_cuda_free_kernels(td_cuda_stream *stream);

/* The functions of a plan's records, ready for their shared memory; UNSUPPORTED, with the reason, if one cannot run here. *list
 * is looked at first: what it was last time. It has *room, both 0 at first, is made larger where that is too few, and the
 * caller frees it. */
tandem_status td_cuda_functions_of(td_cuda_stream *stream, const td_plan *plan, td_cuda_function ***list, uint32_t *room,
                                   char *why, size_t why_bytes);
/* td_exec_bind(), td_exec_bind_cancel(), and tensor maps. */
tandem_status td_cuda_bind(td_cuda_stream *stream, const td_record *record, const td_stream_submit *submit, uint64_t control,
                           uint64_t cancel, void *params, char *why, size_t why_bytes);
/* Takes the cancel word of a submit's place, cleared: its address. */
tandem_status td_cuda_take_word(td_cuda_stream *stream, uint32_t place, uint64_t sequence, uint64_t *address, char *why,
                                size_t why_bytes);
/* Has what follows wait for all that is on the caller's stream. */
tandem_status td_cuda_after_callers(td_cuda_stream *stream, td_cu_stream on, char *why, size_t why_bytes);
/* Records the event by which td_cuda_wait() learns of a submit, and for which the caller's stream waits from here on. */
tandem_status td_cuda_mark_done(td_cuda_stream *stream, td_cu_stream on, uint64_t sequence, char *why,
                                size_t why_bytes);

#endif
