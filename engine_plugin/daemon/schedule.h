/* The schedule: whose job goes to the worker next, in pieces of what length, and what a job waits for in vain.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   order   a client's jobs run in the order in which it put them; of all clients' first ones the next is chosen so:
 *           frames before what goes on in the background; of those whose client has had at most share_window more compute
 *           than the one that has had least, the earliest deadline; where there is none, who has had least
 *   share   is counted in time on the device, no more of it than the same job takes alone; who comes back from a pause
 *           begins where the others are
 *   slices  a job is given to the worker in pieces of at most SLICE_NS, where others may want to go in between; a frame's
 *           on a CPU, where they are shorter whole, only from LONG_NS on; the GPU goes from a background's stream to a
 *           frame's by itself, and on a CPU the background's piece, which may be longer than that, stands still while a
 *           frame's job is in the worker's queue (engine_plugin/exec/preempt.h)
 *
 * Functions of their arguments alone: no clock, no lock, and nothing is changed but what they return.
 */
#ifndef TANDEM_DAEMON_SCHEDULE_H
#define TANDEM_DAEMON_SCHEDULE_H

#include "engine_plugin/daemon/costs.h"
#include "engine_plugin/daemon/limits.h"
#include "tandem/tandem.h"

/* Whether what a job writes to is there, which costs something to find out. */
typedef enum td_prepared { TD_NOT_ASKED, TD_PREPARED, TD_UNPREPARED } td_prepared;

/* A client as the schedule sees it; "its job" is its first one that the worker does not have wholly. */
typedef struct td_turn {
    uint32_t job_class;    /* tandem_class */
    bool ready;            /* its job can run now */
    bool awaits_output;    /* but for what it writes to, which is being made */
    td_prepared prepared;
    uint64_t deadline_ns;  /* its job's; 0: none */
    uint64_t virtual_ns;   /* of compute that the client has had, or might have had while others did */
    uint32_t at_worker;    /* of the client's jobs, */
    uint64_t at_worker_ns; /* and what they will take */
    uint64_t ended_ns;     /* its last job, on the device */
    bool busy;             /* its last jobs came one behind the other */
} td_turn;

/* What is kept from one decision to the next. */
typedef struct td_schedule {
    uint64_t virtual_ns[2];    /* by class: who comes back from a pause has had so much */
    uint64_t standing_back_ns; /* since when the background does, for frames at a GPU; 0: it does not */
} td_schedule;

typedef struct td_turns {
    td_schedule before;
    bool is_gpu;
    bool has_frames; /* somebody draws frames, maybe on the same GPU */
    uint64_t share_window_ns;
    uint32_t at_worker[2]; /* jobs, by class */
    uint32_t count;
    td_turn turns[TD_MAX_CLIENTS];
} td_turns;

typedef enum td_decision_kind {
    TD_DECIDE_NOBODY,
    TD_DECIDE_PREPARE, /* whether that turn is prepared must be known first: find out, and ask again */
    TD_DECIDE_RUN,
} td_decision_kind;
typedef struct td_decision {
    td_decision_kind kind;
    uint32_t turn;
    bool again; /* somebody waits for the share of another, who may not want it */
    td_schedule after;
} td_decision;
td_decision td_schedule_decide(const td_turns *queue, uint64_t now);

/* What a client has had that has had so much and comes back from a pause: nothing is saved up. */
uint64_t td_schedule_join(const td_schedule *schedule, uint32_t job_class, uint64_t virtual_ns);
/* Whether a job came right behind the client's last one. */
bool td_schedule_is_busy(uint64_t ended_ns, uint64_t begin_ns);

/* How long a piece of a job may take, as others may want to go in between; 0: it is not cut. `sharing`: how many clients may
 * have jobs. */
uint64_t td_schedule_slice_ns(const td_costs *costs, td_workload what, uint32_t job_class, uint32_t sharing);

/* A job that the worker has not begun. */
typedef struct td_waiting {
    uint64_t deadline_ns; /* 0: none */
    uint64_t ready_ns;    /* since when it can run; 0: it waits for a point, */
    bool on_client;       /* which its client has yet to signal, with no job before it that this may follow from */
    uint64_t bound_ns;    /* until when it may, */
    uint64_t computed_ns; /* or so long after the client's last job was DONE: */
    uint64_t wait_bound_ns;
    bool has_worker;
} td_waiting;
typedef enum td_vain { TD_VAIN_NOT, TD_VAIN_DEADLINE, TD_VAIN_WORKER, TD_VAIN_POINT } td_vain;
/* What it has waited for too long. *next_ns: no later than when that may be so. */
td_vain td_schedule_in_vain(const td_waiting *job, uint64_t now, uint64_t *next_ns);

#endif
