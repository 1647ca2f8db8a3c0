/* The life of a job, as a function: what happens to it, and what is to be done for that. No handles, no clock, no lock.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   stage   HELD --begun--> BEGUN --through--> OVER         HELD: until its executor has it, and again between pieces
 *             ^--returned----'                 ^            what is given up by then is over once its turn to signal comes
 *             '------ given up, its turn ------'
 *
 *   fate    WANTED --asked--> DECIDING --won---> GIVEN_UP   whether its executor writes its output, or is kept from it, is
 *                                 '------lost--> COMMITTED  for that to decide; without one it is given up at once
 *
 * Whatever happens, and in whatever order: its point is signalled once, its report ends once, what it uses is free once
 * neither an executor nor a thread is at it. What is COMMITTED is not reported as given up, nor the reverse.
 */
#ifndef TANDEM_RUN_JOB_LIFE_H
#define TANDEM_RUN_JOB_LIFE_H

#include <stdbool.h>
#include <stdint.h>

#include "tandem/tandem.h"

typedef enum td_job_stage { TD_STAGE_HELD, TD_STAGE_BEGUN, TD_STAGE_OVER } td_job_stage;
typedef enum td_job_fate { TD_FATE_WANTED, TD_FATE_DECIDING, TD_FATE_GIVEN_UP, TD_FATE_COMMITTED } td_job_fate;

/* All zero: it was submitted, without a deadline. */
typedef struct td_job_life {
    td_job_stage stage;
    td_job_fate fate;
    bool busy;     /* a thread is at it, without a lock: nobody else ends it */
    bool reported; /* its report has ended */
    bool has_deadline;
    uint64_t deadline_ns;
    tandem_job_state end_state; /* in what it ends if it is given up, unless WANTED: the first reason holds */
    tandem_status end_status;
} td_job_life;

typedef enum td_life_event_kind {
    TD_LIFE_TAKEN,    /* a thread begins to be at it, */
    TD_LIFE_LEFT,     /* and no longer is */
    TD_LIFE_BEGUN,    /* its executor has it */
    TD_LIFE_RETURNED, /* and has it no more, without having ended it: it did not take it, or was through with a piece */
    TD_LIFE_ASKED,    /* it is to be given up, and to end in `state`: cancelled, or what it waits for does not come */
    TD_LIFE_TIME,     /* it is `now_ns`: its deadline may have passed, and who was deciding may have decided */
    TD_LIFE_WON,      /* the answer to td_life_actions.claim: its executor will not write its output, */
    TD_LIFE_LOST,     /* or has begun to */
    TD_LIFE_GAVE_UP,  /* its executor gave it up by itself; `state` is why */
    TD_LIFE_REPORT,   /* its report ends now, in `state`: how its executor ends does not matter any more */
    TD_LIFE_THROUGH,  /* its executor is through with it: in `state`, unless it was given up */
    TD_LIFE_TURN,     /* all jobs before it that signal the same timeline are over */
    TD_LIFE_GONE,     /* who was to see to it does not any more, whoever still uses what it uses: it ends in `state` */
} td_life_event_kind;

typedef struct td_life_event {
    td_life_event_kind kind;
    tandem_job_state state;
    tandem_status status; /* with `state` */
    uint64_t now_ns;
    bool gave_up;   /* THROUGH: where it was deciding, it gave up */
    bool signalled; /* THROUGH, GONE: its point is signalled, or will be, by who had it */
} td_life_event;

/* What is to be done. */
typedef struct td_life_actions {
    bool claim;  /* its executor is to give it up; what it answers is the next event, none while it decides */
    bool signal; /* its point, from here */
    bool report; /* ends, in `state` */
    bool drop;   /* what it uses is free, but for the timeline that it signals */
    bool retire; /* it is over: all that it uses is free, and so is its slot */
    tandem_job_state state;
    tandem_status status;
} td_life_actions;

td_life_actions td_life_step(td_job_life *life, const td_life_event *event);

#endif
