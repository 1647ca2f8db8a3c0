/* How many of what there are in tandemd, at most.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_LIMITS_H
#define TANDEM_DAEMON_LIMITS_H

#include "interop/wire/wire.h"

enum {
    TD_WORKER_SLOTS = 64,
    TD_CPU_DEPTH = 2,     /* jobs that a CPU has at a time: one runs, the next need not be fetched */
    TD_GPU_DEPTH = 4,     /* jobs of a client's that a GPU has at a time */
    TD_MAX_SESSIONS = 64, /* one bit each; on a GPU each client has one; session 0 is all others' */
    TD_BACKGROUND_SESSION = 1, /* on a CPU: the background's, which stands still for frames */
    TD_HOLDINGS = TD_MAX_SESSIONS + TD_GPU_DEPTH,
    TD_MAX_CLIENTS = 48, /* so that all event counts fit into one futex_waitv() */
    TD_MAX_NEW = 32,     /* connections that have not said hello, beside those */
    TD_MAX_WORKS = TD_WIRE_SLOTS,
    TD_MAX_NUMBERS = 65536, /* objects that the worker can have */
    TD_MAX_INSTANCES = 64,  /* of networks: of a client's */
    TD_WORK_MEMS = 1 + TD_WIRE_BINDINGS, /* that a job names: of a run, an instance, too */
    TD_MAX_REQUESTS = 32,        /* of a client, without answer */
    TD_MAX_WORKER_REQUESTS = 32, /* that the worker has not answered */
    TD_TEXT_BYTES = TD_WIRE_TEXT_BYTES,
};
#define TD_SECOND 1000000000ull

#endif
