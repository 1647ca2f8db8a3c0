/* What the kinds of td_stream share: the ring in host memory that the device writes, and the numbers of submits.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Private to engine_plugin/exec. A kind embeds td_stream as its first member, fills `ring`, `ring_address` and `ops`, and
 * leaves everything that only reads the ring to stream.c.
 */
#ifndef TANDEM_EXEC_STREAM_H
#define TANDEM_EXEC_STREAM_H

#include "engine_plugin/exec/exec.h"

enum { TD_STREAM_SLOTS = 256, TD_STREAM_CONTROLS = TD_STREAM_PENDING * 2 };

/* Host memory that the device sees at ring_address. */
typedef struct td_stream_ring {
    td_stamp stamps[TD_STREAM_SLOTS];         /* by sequence % TD_STREAM_SLOTS */
    td_control controls[TD_STREAM_CONTROLS];  /* by sequence % TD_STREAM_CONTROLS, or by slot */
    uint64_t completed;                       /* the last finished submit */
} td_stream_ring;

typedef struct td_stream_ops {
    /* Everything of td_stream_enqueue() but the bounds; `sequence` is the number that it gets. A failure behind the end
     * stamp sets stream->submitted itself: the number is used. */
    tandem_status (*enqueue)(td_stream *stream, const td_stream_submit *submit, uint64_t sequence, bool *signalled,
                             char *why, size_t why_bytes);
    /* Brings stamps and `completed` up to date, where the device does not write them itself; or NULL. Any thread. */
    void (*look)(td_stream *stream);
    bool by_slot; /* a slot has one submit at a time, and the control belongs to it: else BUSY */
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
    uint64_t submitted, last[TD_STREAM_PENDING]; /* the last submit; of each slot */
    atomic_uint_least32_t slots[TD_STREAM_CONTROLS];         /* of the submits, by sequence % TD_STREAM_CONTROLS */
    atomic_uint_least32_t record_counts[TD_STREAM_CONTROLS]; /* of the submits, by sequence % TD_STREAM_CONTROLS */
    atomic_int_fast64_t clock_offset_ns;
};

/* The number of the next submit, with its control cleared; BUSY with TD_STREAM_PENDING pending. The caller sets
 * stream->submitted to it once its end stamp is on its way. td_stream_enqueue() does both for its kinds. */
tandem_status td_stream_next(td_stream *stream, const td_plan *plan, uint64_t *sequence, char *why, size_t why_bytes);

/* The parameters of a begin or end stamp of a submit. */
td_params_stamp td_stream_stamp(const td_stream *stream, uint64_t sequence, bool end);
uint64_t td_stream_control_address(const td_stream *stream, uint64_t sequence);

#endif
