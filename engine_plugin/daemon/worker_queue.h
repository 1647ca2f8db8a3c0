/* The worker's queue: jobs on their way to the worker and back, in memory that broker and worker map.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_WORKER_QUEUE_H
#define TANDEM_DAEMON_WORKER_QUEUE_H

#include "engine_plugin/daemon/limits.h"
#include "engine_plugin/exec/preempt.h"
#include "interop/wire/ring.h"
#include "kernels/attention/tuning.h"
#include "kernels/operation.h"
#include "tandem/tandem.h"

/* A job that runs a network. */
typedef struct td_run {
    uint32_t instance; /* the worker's number of it */
    uint32_t binding_count, number_count, uniform_bytes;
    uint32_t numbers[TD_WIRE_NUMBERS];
    td_wire_binding bindings[TD_WIRE_BINDINGS]; /* with numbers of the worker's mems */
    uint8_t uniforms[TD_WIRE_UNIFORM_BYTES];
} td_run;

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
    td_run runs[TD_WORKER_SLOTS]; /* of slots whose jobs are of TANDEM_OPERATION_RUN, in place of job.op */
} td_worker_queue;
#define TD_WORKER_QUEUE_BYTES td_align_up(sizeof(td_worker_queue), 4096)
/* The worker's next job: the first READY one behind last_sequence[] of its session, of all sessions whose bit in `full` is
 * 0; NULL: none. Those of a session come in their order, whenever the broker puts them there. */
td_slot *td_worker_queue_next(td_worker_queue *queue, const uint64_t last_sequence[TD_MAX_SESSIONS], uint64_t full);

#endif
