/* What goes over the worker's socket: the broker's requests, and the same struct with the answer.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_WORKER_MESSAGE_H
#define TANDEM_DAEMON_WORKER_MESSAGE_H

#include "engine_plugin/daemon/limits.h"
#include "interop/wire/wire.h"
#include "tandem/tandem.h"

typedef enum td_worker_message_kind {
    TD_WORKER_HELLO = 1, /* from the worker, unasked: it has a session */
    TD_WORKER_MEM = 2,   /* with the memfd, or what Vulkan exported */
    TD_WORKER_MODEL = 3, /* with the file */
    TD_WORKER_END = 4,   /* of mem, model, timeline, instance */
    TD_WORKER_TENSOR = 5,
    TD_WORKER_INFO = 6,
    TD_WORKER_BROKEN = 7, /* from the worker, unasked: its last words */
    TD_WORKER_TIMELINE = 8, /* with what Vulkan exported */
    TD_WORKER_BEGIN_SESSION = 9,
    TD_WORKER_END_SESSION = 10,
    TD_WORKER_FORGET = 11, /* the scratch of a client that is gone, or that needs the room */
    TD_WORKER_GRAPH = 12,  /* of a model; the answer comes with what tells of it */
    TD_WORKER_INSTANCE = 13,
    TD_WORKER_PREPARE = 14, /* of an instance */
    TD_WORKER_LAYER = 15,   /* likewise */
    TD_WORKER_STATE = 16,   /* likewise; the broker has checked ranges */
} td_worker_message_kind;

/* What is said of networks. */
typedef struct td_worker_network {
    uint64_t state_bytes;          /* MODEL: what an instance of it has for its own; and */
    td_wire_language language;     /* as MODEL_CREATE has it */
    uint32_t model;                /* INSTANCE: the number of its model, and as MODEL_INSTANCE has them: */
    uint32_t precision, deadlines;
    td_wire_layers layers;         /* INSTANCE_CREATE, rather; else all 0 */
    uint32_t number_count, numbers[TD_WIRE_NUMBERS]; /* PREPARE, LAYER */
    uint32_t index;                /* LAYER; the answer is: */
    tandem_layer layer;
    uint64_t most_bytes, bytes;    /* what is prepared for that instance may take, and takes */
    double mflop;                  /* of a run */
    td_wire_instance_state state;  /* STATE: as INSTANCE_STATE has it, */
    uint32_t state_mem;            /* and the number of its mem */
    uint32_t record_count, chain;  /* these five as PREPARED has them */
    uint32_t layer_count;
    uint64_t scratch_bytes, uniform_bytes;
} td_worker_network;

typedef struct td_worker_message {
    uint32_t kind, serial, number;
    int32_t status;
    uint32_t worker_session, job_class;
    bool opaque, dedicated, by_daemon;
    bool temp_output; /* a MEM of the worker's own: nothing comes with it */
    uint64_t bytes, offset_bytes, allocation_bytes;
    uint64_t value; /* TIMELINE: its counter; BEGIN_SESSION: how long a wait may take, in ns; FORGET: the session */
    td_wire_identity identity; /* HELLO: device and driver */
    char text[TD_TEXT_BYTES]; /* a name, or why not */
    tandem_view view;
    uint64_t shape[4];
    tandem_info info;
    td_worker_network network;
} td_worker_message;

#endif
