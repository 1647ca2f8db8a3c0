/* What the kinds of td_stream share: the ring in host memory that the device writes, and the numbers of submits.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Private to engine_plugin/exec. A kind embeds td_stream as its first member, fills `ring`, `ring_address` and `ops`, and
 * leaves everything that only reads the ring to stream.c.
 *
 * A pending submit has a place: its slot's, so that nothing changes from frame to frame in what the device is given, or one
 * by its number. There it leaves its timestamps; who asks for what is completed takes it to td_stream.times.
 */
#ifndef TANDEM_EXEC_STREAM_H
#define TANDEM_EXEC_STREAM_H

#include "engine_plugin/exec/exec.h"
#include "interop/os/thread.h"

enum {
    TD_STREAM_TIMES = 256,
    TD_STREAM_NUMBERS = TD_STREAM_PENDING * 2,
    TD_STREAM_PLACES = TD_STREAM_NUMBERS + TD_STREAM_PENDING, /* by sequence % TD_STREAM_NUMBERS; then by slot */
    TD_STREAM_RAN = 1, /* the number in all timestamps: they are cleared for each submit */
};

typedef struct td_stream_timestamps {
    _Alignas(64) td_stamp stamp;
    uint64_t over; /* written behind a fence, if td_stream_ops.fenced */
} td_stream_timestamps;

/* Host memory that the device sees at ring_address, by place. */
typedef struct td_stream_ring {
    td_stream_timestamps timestamps[TD_STREAM_PLACES];
    td_control controls[TD_STREAM_PLACES];
} td_stream_ring;

typedef struct td_stream_ops {
    tandem_status (*prepare)(td_stream *stream, const td_plan *plan, char *why, size_t why_bytes);
    /* Everything of td_stream_enqueue() but the bounds; `sequence` is the number that it gets. A failure behind the end
     * stamp sets stream->submitted itself: the number is used. */
    tandem_status (*enqueue)(td_stream *stream, const td_stream_submit *submit, uint64_t sequence, bool *signalled,
                             char *why, size_t why_bytes);
    /* Whether a submit takes its slot's place: BUSY while the last one that did is pending. NULL: none does. */
    bool (*by_slot)(const td_stream *stream, const td_stream_submit *submit);
    bool fenced; /* what a submit wrote to the host's memory is there when its end is seen */
    tandem_status (*wait)(td_stream *stream, uint64_t sequence);
    void (*cancel)(td_stream *stream, uint64_t sequence); /* or NULL: blocks look at td_control's word */
    tandem_status (*release)(td_stream *stream, const td_cu_timeline *timeline, uint64_t value, char *why,
                             size_t why_bytes); /* or NULL */
    tandem_status (*status)(td_stream *stream, char *why, size_t why_bytes);
    bool (*drain)(td_stream *stream, uint64_t timeout_ns);
    /* Not drained: frees at most what nothing on the device uses. The stream is gone for its owner either way. */
    void (*destroy)(td_stream *stream, bool drained);
} td_stream_ops;

struct td_stream {
    const td_stream_ops *ops;
    td_log log;
    td_stream_ring *ring;
    uint64_t ring_address;
    atomic_uint_least64_t submitted, completed; /* the last submit that the device has, that was seen to be over */
    uint64_t last[TD_STREAM_PENDING];           /* the last submit in each slot's place */
    pthread_mutex_t look_lock;                  /* of who takes timestamps from the ring to `times` and `completed` */
    td_stamp times[TD_STREAM_TIMES];            /* by sequence % TD_STREAM_TIMES, with that as their number */
    atomic_uint_least32_t places[TD_STREAM_NUMBERS], record_counts[TD_STREAM_NUMBERS]; /* by sequence */
    atomic_uint_least64_t enqueued_ns[TD_STREAM_TIMES]; /* likewise, on CLOCK_MONOTONIC */
    atomic_int_fast64_t clock_offset_ns;                /* of the device's clock, from that */
};

/* Something on the device lay wholly between two moments of the host's: moves the clock's offset as far as that asks for. Clocks
 * drift, and where others keep the device busy the offset cannot be measured well. */
void td_stream_mend_clock(td_stream *stream, uint64_t since_ns, uint64_t begin_ns, uint64_t end_ns, uint64_t until_ns);

/* The place of a submit among the last TD_STREAM_NUMBERS ones, the one at hand included. Any thread. */
uint32_t td_stream_place(const td_stream *stream, uint64_t sequence);

/* The parameters of the begin or end stamp at a place. */
td_params_stamp td_stream_stamp(const td_stream *stream, uint32_t place, bool end);
uint64_t td_stream_control_address(const td_stream *stream, uint32_t place);

#endif
