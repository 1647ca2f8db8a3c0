/* What the parts of the fake CUDA driver have of each other: objects, streams and their commands, modules and graphs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TEST_FAKE_CUDA_PARTS_H
#define TANDEM_TEST_FAKE_CUDA_PARTS_H

#include <pthread.h>
#include <string.h>

#include "kernels/params.h"
#include "tests/interop/fake_cuda.h"
#include "tests/interop/faults.h"

#define INVALID_VALUE 1
#define ILLEGAL_ADDRESS 700
#define LAUNCH_FAILED 719
#define NOT_SUPPORTED 801
#define SHARED_BYTES 232448
#define CALL(name, ...) td_cu_result fake_##name(__VA_ARGS__)
#define DECLARE(kind, name, symbol, parameters) td_cu_result fake_##name parameters;
TD_CU_FUNCTIONS(DECLARE, DECLARE)
#undef DECLARE

/* Streams: a thread that does one command after the other. */

typedef enum command_kind {
    COMMAND_STAMP,
    COMMAND_WAIT,
    COMMAND_SIGNAL,
    COMMAND_COPY,
    COMMAND_RECORD,     /* of an event: the one of number `value` */
    COMMAND_WAIT_EVENT, /* until that is reached */
    COMMAND_HOLD,
    COMMAND_HANG,
} command_kind;

typedef struct command {
    command_kind kind;
    td_cu_function function; /* of a graph's kernel */
    unsigned grid[3];
    unsigned char params[TD_PARAM_BYTES];
    td_params_stamp stamp;
    VkSemaphore semaphore;
    uint64_t value;
    td_cu_event event;
    void *to;
    const void *from;
    size_t bytes;
} command;

enum { COMMANDS = 1024, RECORDS = 512 };

/* Records are counted, each is reached for itself: they may be on several streams, which reach them in whatever order. */
struct td_cu_event_st {
    atomic_uint_fast64_t recorded, reached[RECORDS]; /* by number % RECORDS: the number */
};

struct td_cu_stream_st {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    command commands[COMMANDS];
    uint64_t head, tail;
    bool stopping, joined;
    td_cu_context context;
};

struct td_cu_external_semaphore_st {
    VkSemaphore semaphore;
};

struct td_cu_external_memory_st {
    unsigned char *bytes;
    uint64_t size;
    int mapped;
};

/* A graph and what is made of it: its commands, one after the other. Nodes are their places, from 1. */
enum { NODES = 512 };
struct td_cu_graph_st {
    command commands[NODES];
    size_t count;
    bool loose; /* the last one's edge is still to come */
};

/* A module has whatever kernel is asked for. */
enum { FUNCTIONS = 384 };
struct td_cu_function_st {
    char name[40];
    int dynamic_bytes; /* of shared memory, that it may be launched with; 0: nobody said */
    bool wide_clusters;
};
struct td_cu_module_st {
    struct td_cu_function_st functions[FUNCTIONS];
};

/* The semaphore that a descriptor stands for; false: none. And what becomes of one that was imported: by the system's rules. */
bool fake_handle_read(td_opaque_handle handle, VkSemaphore *semaphore);
void fake_handle_taken(td_opaque_handle handle);

/* What a context holds: it goes with the last that retains it. */

typedef enum object_kind {
    OBJECT_MEMORY,
    OBJECT_IMPORT,
    OBJECT_SEMAPHORE,
    OBJECT_EVENT,
    OBJECT_GRAPH,
    OBJECT_MODULE,
    OBJECT_STREAM,
    OBJECT_NAME
} object_kind;

typedef struct object {
    object_kind kind;
    void *pointer;
    struct object *next;
    size_t bytes; /* of MEMORY, */
    bool host;    /* and whether it is the host's */
    td_cu_context context;
} object;

extern pthread_mutex_t fake_objects_lock;
extern object *fake_objects;
extern atomic_bool fake_dead;  /* the context; the next one is not */
extern atomic_int fake_broken; /* what all calls return that put something on a stream; 0: they do so */
extern _Thread_local int fake_depth; /* of the thread's stack of contexts */
td_cu_context fake_current(void);    /* the one on top of it, or NULL */
void fake_add(object_kind kind, void *pointer);
bool fake_take_out(object_kind kind, const void *pointer);

td_cu_result fake_enqueue(td_cu_stream stream, const command *c);
/* Returns when nothing of it runs any more. */
void fake_stop_stream(td_cu_stream stream);
void fake_end_stream(td_cu_stream stream);

#endif
