/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/fake_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kernels/params.h"
#include "tests/fake_image.h"
#include "tests/faults.h"

fake_cuda fake_cuda_driver = {.device_count = 1};

#define INVALID_VALUE 1
#define ILLEGAL_ADDRESS 700
#define LAUNCH_FAILED 719
#define SHARED_BYTES 232448
#define CALL(name, ...) static td_cu_result fake_##name(__VA_ARGS__)

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
} object;

static pthread_mutex_t objects_lock = PTHREAD_MUTEX_INITIALIZER;
static object *objects;
static int retained;
static atomic_bool dead; /* the context; the next one is not */
static atomic_int broken; /* what all calls return that put something on a stream; 0: they do so */

static void add(object_kind kind, void *pointer)
{
    object *o = __real_malloc(sizeof *o);

    if (!o)
        abort();
    pthread_mutex_lock(&objects_lock);
    *o = (object){kind, pointer, objects};
    objects = o;
    pthread_mutex_unlock(&objects_lock);
    fake_cuda_driver.live++;
}

static bool take_out(object_kind kind, const void *pointer)
{
    object **at = &objects, *found;

    pthread_mutex_lock(&objects_lock);
    while (*at && ((*at)->kind != kind || (*at)->pointer != pointer))
        at = &(*at)->next;
    found = *at;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&objects_lock);
    __real_free(found);
    fake_cuda_driver.live -= found != NULL;
    return found != NULL;
}

static void *first_of(object_kind kind)
{
    void *pointer = NULL;

    pthread_mutex_lock(&objects_lock);
    for (const object *o = objects; o && !pointer; o = o->next)
        pointer = o->kind == kind ? o->pointer : NULL;
    pthread_mutex_unlock(&objects_lock);
    return pointer;
}

static void nap(void)
{
    const struct timespec t = {.tv_nsec = 50000};

    nanosleep(&t, NULL);
}

static bool is_stopping(td_cu_stream stream)
{
    bool stopping;

    pthread_mutex_lock(&stream->lock);
    stopping = stream->stopping;
    pthread_mutex_unlock(&stream->lock);
    return stopping;
}

/* As kernels/cuda/common.cu. */
static void stamp(const td_params_stamp *p)
{
    if (!p->end) {
        __atomic_store_n(&p->slot->begin_ns, td_now_ns(), __ATOMIC_SEQ_CST);
        __atomic_store_n(&p->slot->begun, p->sequence, __ATOMIC_SEQ_CST);
        return;
    }
    __atomic_store_n(&p->slot->end_ns, td_now_ns(), __ATOMIC_SEQ_CST);
    __atomic_store_n(&p->slot->sequence, p->sequence, __ATOMIC_SEQ_CST);
    if (p->completed)
        __atomic_store_n(p->completed, p->sequence, __ATOMIC_SEQ_CST);
}

static void wait_for(td_cu_stream stream, const command *c)
{
    const td_vk_table *vk = fake_cuda_driver.vulkan;
    uint64_t value = 0;

    while (!is_stopping(stream)) {
        VkResult result;

        pthread_mutex_lock(&fault_semaphores);
        result = vk->GetSemaphoreCounterValue(fake_cuda_driver.device, c->semaphore, &value);
        pthread_mutex_unlock(&fault_semaphores);
        if (result != VK_SUCCESS || value >= c->value)
            return;
        nap();
    }
}

/* Not where the host has done it: it thought that the device was dead. */
static void signal_now(const command *c)
{
    const VkSemaphoreSignalInfo info = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = c->semaphore, .value = c->value};
    const td_vk_table *vk = fake_cuda_driver.vulkan;
    uint64_t value = 0;

    pthread_mutex_lock(&fault_semaphores);
    if (vk->GetSemaphoreCounterValue(fake_cuda_driver.device, c->semaphore, &value) != VK_SUCCESS || value < c->value)
        vk->SignalSemaphore(fake_cuda_driver.device, &info);
    pthread_mutex_unlock(&fault_semaphores);
}

static atomic_uint_fast64_t *reached_at(td_cu_event event, uint64_t record)
{
    return &event->reached[record % RECORDS];
}

static bool is_reached(td_cu_event event, uint64_t record)
{
    return atomic_load(reached_at(event, record)) >= record;
}

static void wait_until_reached(td_cu_stream stream, const command *c)
{
    while (!is_stopping(stream) && !is_reached(c->event, c->value))
        nap();
}

static void hold(td_cu_stream stream)
{
    while (!is_stopping(stream) && atomic_load(&fake_cuda_driver.holds))
        nap();
}

/* It takes a while, so that what is freed too early is found. */
static void copy(const command *c)
{
    const size_t half = c->bytes / 2;

    memcpy(c->to, c->from, half);
    nap();
    memcpy((char *)c->to + half, (const char *)c->from + half, c->bytes - half);
}

static void carry_out(td_cu_stream stream, const command *c)
{
    switch (c->kind) {
    case COMMAND_STAMP: stamp(&c->stamp); break;
    case COMMAND_WAIT: wait_for(stream, c); break;
    case COMMAND_SIGNAL: signal_now(c); break;
    case COMMAND_COPY: copy(c); break;
    case COMMAND_RECORD: atomic_store(reached_at(c->event, c->value), c->value); break;
    case COMMAND_WAIT_EVENT: wait_until_reached(stream, c); break;
    case COMMAND_HOLD: hold(stream); break;
    case COMMAND_HANG:
        while (!is_stopping(stream))
            nap();
        break;
    }
}

static void *stream_main(void *user)
{
    td_cu_stream stream = user;

    for (;;) {
        command c;

        pthread_mutex_lock(&stream->lock);
        while (stream->head == stream->tail && !stream->stopping)
            pthread_cond_wait(&stream->changed, &stream->lock);
        c = stream->commands[stream->head % COMMANDS];
        if (stream->stopping) {
            pthread_mutex_unlock(&stream->lock);
            return NULL;
        }
        pthread_mutex_unlock(&stream->lock);
        fault_shake(20000);
        carry_out(stream, &c);
        pthread_mutex_lock(&stream->lock);
        stream->head++;
        pthread_mutex_unlock(&stream->lock);
    }
}

static td_cu_result enqueue(td_cu_stream stream, const command *c)
{
    td_cu_result result = atomic_load(&broken);

    if (result)
        return result;
    pthread_mutex_lock(&stream->lock);
    if (stream->tail - stream->head == COMMANDS)
        result = TD_CU_ERROR_OUT_OF_MEMORY; /* the driver would block: nobody may get here */
    else
        stream->commands[stream->tail++ % COMMANDS] = *c;
    pthread_cond_signal(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    return result;
}

/* The driver. */

CALL(cuInit, unsigned flags)
{
    return flags ? INVALID_VALUE : TD_CU_SUCCESS;
}

CALL(cuGetErrorName, td_cu_result result, const char **name)
{
    *name = result == TD_CU_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : result == ILLEGAL_ADDRESS         ? "CUDA_ERROR_ILLEGAL_ADDRESS"
            : result == LAUNCH_FAILED           ? "CUDA_ERROR_LAUNCH_FAILED"
                                                : "CUDA_ERROR_FAKE";
    return TD_CU_SUCCESS;
}

CALL(cuDriverGetVersion, int *version)
{
    *version = 12000;
    return TD_CU_SUCCESS;
}

CALL(cuDeviceGetCount, int *count)
{
    *count = fake_cuda_driver.device_count;
    return TD_CU_SUCCESS;
}

CALL(cuDeviceGet, td_cu_ordinal *ordinal, int i)
{
    *ordinal = i;
    return TD_CU_SUCCESS;
}

CALL(cuDeviceGetName, char *name, int bytes, td_cu_ordinal ordinal)
{
    snprintf(name, (size_t)bytes, "fake CUDA device %d", ordinal);
    return TD_CU_SUCCESS;
}

CALL(cuDeviceGetUuid, td_cu_uuid *uuid, td_cu_ordinal ordinal)
{
    memcpy(uuid->bytes, fake_cuda_driver.uuids[ordinal], sizeof uuid->bytes);
    return TD_CU_SUCCESS;
}

CALL(cuDeviceGetUuid_v2, td_cu_uuid *uuid, td_cu_ordinal ordinal)
{
    return fake_cuDeviceGetUuid(uuid, ordinal);
}

CALL(cuDeviceGetAttribute, int *value, int attribute, td_cu_ordinal ordinal)
{
    (void)ordinal;
    switch (attribute) {
    case TD_CU_ATTRIBUTE_MULTIPROCESSORS: *value = fake_cuda_driver.multiprocessors ? fake_cuda_driver.multiprocessors : 4; break;
    case TD_CU_ATTRIBUTE_MAJOR: *value = 9; break;
    case TD_CU_ATTRIBUTE_MINOR: *value = 0; break;
    case TD_CU_ATTRIBUTE_SHARED_OPTIN: *value = SHARED_BYTES; break;
    case TD_CU_ATTRIBUTE_TIMELINES: *value = fake_cuda_driver.vulkan != NULL; break;
    default: return INVALID_VALUE;
    }
    return TD_CU_SUCCESS;
}

CALL(cuDeviceTotalMem, size_t *bytes, td_cu_ordinal ordinal)
{
    (void)ordinal;
    *bytes = (size_t)1 << 30;
    return TD_CU_SUCCESS;
}

CALL(cuDevicePrimaryCtxRetain, td_cu_context *context, td_cu_ordinal ordinal)
{
    static int one;

    *context = (td_cu_context)(void *)&one;
    fake_cuda_driver.retained_ordinal = ordinal;
    fake_cuda_driver.live++;
    pthread_mutex_lock(&objects_lock);
    if (!retained++) {
        atomic_store(&dead, false);
        atomic_store(&broken, 0);
    }
    pthread_mutex_unlock(&objects_lock);
    return TD_CU_SUCCESS;
}

/* Returns when nothing of it runs any more. */
static void stop_stream(td_cu_stream stream)
{
    pthread_mutex_lock(&stream->lock);
    stream->stopping = true;
    pthread_cond_signal(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    if (!stream->joined)
        __real_pthread_join(stream->thread, NULL);
    stream->joined = true;
}

void fake_cuda_die(void)
{
    pthread_mutex_lock(&objects_lock);
    atomic_store(&dead, true);
    for (object *o = objects; o; o = o->next)
        if (o->kind == OBJECT_STREAM)
            stop_stream(o->pointer);
    pthread_mutex_unlock(&objects_lock);
}

void fake_cuda_fault(void)
{
    atomic_store(&broken, ILLEGAL_ADDRESS);
    fake_cuda_die();
}

void fake_cuda_hang(td_cu_stream stream)
{
    const command c = {.kind = COMMAND_HANG};

    enqueue(stream, &c);
}

static void end_stream(td_cu_stream stream)
{
    stop_stream(stream);
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->lock);
    __real_free(stream);
}

static void end_object(object_kind kind, void *pointer)
{
    if (kind == OBJECT_STREAM)
        end_stream(pointer);
    if (kind == OBJECT_IMPORT)
        __real_free(((td_cu_external_memory)pointer)->bytes);
    if (kind != OBJECT_STREAM && kind != OBJECT_NAME)
        __real_free(pointer);
}

CALL(cuDevicePrimaryCtxRelease, td_cu_ordinal ordinal)
{
    bool last;

    (void)ordinal;
    fake_cuda_driver.live--;
    pthread_mutex_lock(&objects_lock);
    last = --retained == 0;
    pthread_mutex_unlock(&objects_lock);
    for (object_kind kind = OBJECT_STREAM + 1; last && kind-- > OBJECT_MEMORY;) /* streams first: they use memory */
        for (void *pointer; (pointer = first_of(kind));) {
            take_out(kind, pointer); /* so that it does not die as well meanwhile */
            end_object(kind, pointer);
            fake_cuda_driver.abandoned++;
        }
    while (last && objects) {
        take_out(objects->kind, objects->pointer);
        fake_cuda_driver.abandoned++;
    }
    return TD_CU_SUCCESS;
}

static _Thread_local int depth;

CALL(cuCtxPushCurrent, td_cu_context context)
{
    depth++;
    return context ? TD_CU_SUCCESS : INVALID_VALUE;
}

CALL(cuCtxPopCurrent, td_cu_context *context)
{
    *context = NULL;
    return depth-- > 0 ? TD_CU_SUCCESS : INVALID_VALUE;
}

static td_cu_result allocate(void **out, size_t bytes)
{
    if (depth <= 0)
        return 201; /* INVALID_CONTEXT */
    *out = __real_aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    if (!*out)
        return TD_CU_ERROR_OUT_OF_MEMORY;
    memset(*out, 0xa5, bytes);
    add(OBJECT_MEMORY, *out);
    return TD_CU_SUCCESS;
}

CALL(cuMemAlloc, td_cu_pointer *pointer, size_t bytes)
{
    void *host = NULL;
    td_cu_result result = allocate(&host, bytes);

    *pointer = (uintptr_t)host;
    return result;
}

/* Mappings of imports are freed by the same call. */
CALL(cuMemFree, td_cu_pointer pointer)
{
    td_cu_external_memory mapped = NULL;

    pthread_mutex_lock(&objects_lock);
    for (object *o = objects; o && !mapped; o = o->next) {
        td_cu_external_memory m = o->pointer;

        if (o->kind == OBJECT_IMPORT && m->mapped && pointer >= (uintptr_t)m->bytes &&
            pointer < (uintptr_t)m->bytes + m->size)
            mapped = m;
    }
    if (mapped)
        mapped->mapped = 0;
    pthread_mutex_unlock(&objects_lock);
    if (mapped)
        return TD_CU_SUCCESS;
    if (!take_out(OBJECT_MEMORY, (void *)(uintptr_t)pointer))
        return INVALID_VALUE;
    __real_free((void *)(uintptr_t)pointer);
    return TD_CU_SUCCESS;
}

CALL(cuMemHostAlloc, void **host, size_t bytes, unsigned flags)
{
    return flags & TD_CU_HOST_MAPPED ? allocate(host, bytes) : INVALID_VALUE;
}

CALL(cuMemFreeHost, void *host)
{
    if (!take_out(OBJECT_MEMORY, host))
        return INVALID_VALUE;
    __real_free(host);
    return TD_CU_SUCCESS;
}

CALL(cuMemHostRegister, void *host, size_t bytes, unsigned flags)
{
    (void)bytes;
    if (!host || !flags)
        return INVALID_VALUE;
    add(OBJECT_NAME, host);
    return TD_CU_SUCCESS;
}

CALL(cuMemHostUnregister, void *host)
{
    return take_out(OBJECT_NAME, host) ? TD_CU_SUCCESS : INVALID_VALUE;
}

CALL(cuMemHostGetDevicePointer, td_cu_pointer *pointer, void *host, unsigned flags)
{
    *pointer = (uintptr_t)host;
    return flags ? INVALID_VALUE : TD_CU_SUCCESS;
}

CALL(cuMemcpyHtoD, td_cu_pointer to, const void *from, size_t bytes)
{
    memcpy((void *)(uintptr_t)to, from, bytes);
    return TD_CU_SUCCESS;
}

CALL(cuMemcpyDtoH, void *to, td_cu_pointer from, size_t bytes)
{
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return TD_CU_SUCCESS;
}

CALL(cuImportExternalMemory, td_cu_external_memory *out, const td_cu_memory_handle *handle)
{
    td_cu_external_memory m;

    if (handle->type != TD_CU_MEMORY_OPAQUE_FD || !handle->size)
        return INVALID_VALUE;
    m = __real_calloc(1, sizeof *m);
    m->size = handle->size;
    m->bytes = __real_aligned_alloc(4096, (handle->size + 4095) & ~4095ull);
    __real_close(handle->handle.fd); /* the driver's now */
    add(OBJECT_IMPORT, m);
    *out = m;
    return TD_CU_SUCCESS;
}

CALL(cuExternalMemoryGetMappedBuffer, td_cu_pointer *pointer, td_cu_external_memory m, const td_cu_memory_buffer *range)
{
    if (range->offset + range->size > m->size)
        return INVALID_VALUE;
    *pointer = (uintptr_t)m->bytes + range->offset;
    m->mapped = 1;
    return TD_CU_SUCCESS;
}

CALL(cuDestroyExternalMemory, td_cu_external_memory m)
{
    if (m->mapped || !take_out(OBJECT_IMPORT, m))
        return INVALID_VALUE; /* leaves it, as a driver may */
    end_object(OBJECT_IMPORT, m);
    return TD_CU_SUCCESS;
}

int fake_cuda_semaphore_fd(VkSemaphore semaphore)
{
    int fd = __real_memfd_create("fake semaphore", MFD_CLOEXEC);

    if (fd >= 0 && write(fd, &semaphore, sizeof semaphore) != (ssize_t)sizeof semaphore) {
        __real_close(fd);
        fd = -1;
    }
    return fd;
}

CALL(cuImportExternalSemaphore, td_cu_external_semaphore *out, const td_cu_semaphore_handle *handle)
{
    td_cu_external_semaphore s;

    if (handle->type != TD_CU_SEMAPHORE_TIMELINE_FD)
        return INVALID_VALUE;
    s = __real_calloc(1, sizeof *s);
    if (pread(handle->handle.fd, &s->semaphore, sizeof s->semaphore, 0) != (ssize_t)sizeof s->semaphore) {
        __real_free(s);
        return INVALID_VALUE;
    }
    __real_close(handle->handle.fd);
    add(OBJECT_SEMAPHORE, s);
    *out = s;
    return TD_CU_SUCCESS;
}

CALL(cuDestroyExternalSemaphore, td_cu_external_semaphore semaphore)
{
    if (!take_out(OBJECT_SEMAPHORE, semaphore))
        return INVALID_VALUE;
    __real_free(semaphore);
    return TD_CU_SUCCESS;
}

CALL(cuWaitExternalSemaphoresAsync, const td_cu_external_semaphore *semaphores, const td_cu_semaphore_value *values,
     unsigned count, td_cu_stream stream)
{
    const command c = {.kind = COMMAND_WAIT, .semaphore = semaphores[0]->semaphore, .value = values[0].value};

    return count == 1 ? enqueue(stream, &c) : INVALID_VALUE;
}

CALL(cuSignalExternalSemaphoresAsync, const td_cu_external_semaphore *semaphores, const td_cu_semaphore_value *values,
     unsigned count, td_cu_stream stream)
{
    const command c = {.kind = COMMAND_SIGNAL, .semaphore = semaphores[0]->semaphore, .value = values[0].value};

    return count == 1 ? enqueue(stream, &c) : INVALID_VALUE;
}

CALL(cuStreamCreate, td_cu_stream *out, unsigned flags)
{
    td_cu_stream stream;

    if (flags != TD_CU_STREAM_NON_BLOCKING)
        return INVALID_VALUE;
    stream = __real_calloc(1, sizeof *stream);
    __real_pthread_mutex_init(&stream->lock, NULL);
    __real_pthread_cond_init(&stream->changed, NULL);
    if (__real_pthread_create(&stream->thread, NULL, stream_main, stream)) {
        __real_free(stream);
        return TD_CU_ERROR_OUT_OF_MEMORY;
    }
    add(OBJECT_STREAM, stream);
    *out = stream;
    return TD_CU_SUCCESS;
}

CALL(cuCtxGetStreamPriorityRange, int *least, int *most)
{
    *least = 0;
    *most = -5;
    return TD_CU_SUCCESS;
}

CALL(cuStreamCreateWithPriority, td_cu_stream *out, unsigned flags, int priority)
{
    return priority > 0 || priority < -5 ? INVALID_VALUE : fake_cuStreamCreate(out, flags);
}

CALL(cuStreamDestroy, td_cu_stream stream)
{
    if (!take_out(OBJECT_STREAM, stream))
        return INVALID_VALUE;
    end_stream(stream);
    return TD_CU_SUCCESS;
}

CALL(cuStreamQuery, td_cu_stream stream)
{
    bool idle;

    if (!stream) /* the default one: copies are done at once */
        return TD_CU_SUCCESS;
    pthread_mutex_lock(&stream->lock);
    idle = stream->head == stream->tail;
    pthread_mutex_unlock(&stream->lock);
    if (atomic_load(&broken))
        return atomic_load(&broken);
    return idle ? TD_CU_SUCCESS : atomic_load(&dead) ? LAUNCH_FAILED : TD_CU_ERROR_NOT_READY;
}

CALL(cuEventCreate, td_cu_event *out, unsigned flags)
{
    if (depth <= 0 || !(flags & TD_CU_EVENT_NO_TIMING))
        return INVALID_VALUE;
    *out = __real_calloc(1, sizeof **out);
    add(OBJECT_EVENT, *out);
    return TD_CU_SUCCESS;
}

CALL(cuEventDestroy, td_cu_event event)
{
    if (!take_out(OBJECT_EVENT, event))
        return INVALID_VALUE;
    __real_free(event);
    return TD_CU_SUCCESS;
}

CALL(cuEventRecord, td_cu_event event, td_cu_stream stream)
{
    const command c = {.kind = COMMAND_RECORD, .event = event, .value = event->recorded + 1};
    const td_cu_result result = enqueue(stream, &c);

    if (!result)
        event->recorded++;
    return result;
}

CALL(cuStreamWaitEvent, td_cu_stream stream, td_cu_event event, unsigned flags)
{
    const command c = {.kind = COMMAND_WAIT_EVENT, .event = event, .value = event->recorded};

    return flags ? INVALID_VALUE : enqueue(stream, &c);
}

CALL(cuEventQuery, td_cu_event event)
{
    if (atomic_load(&broken))
        return atomic_load(&broken);
    return is_reached(event, event->recorded) ? TD_CU_SUCCESS : TD_CU_ERROR_NOT_READY;
}

CALL(cuEventSynchronize, td_cu_event event)
{
    const uint64_t value = event->recorded;

    while (!is_reached(event, value) && !atomic_load(&dead))
        nap();
    return is_reached(event, value) ? TD_CU_SUCCESS : atomic_load(&broken) ? atomic_load(&broken) : LAUNCH_FAILED;
}

CALL(cuMemcpyHtoDAsync, td_cu_pointer to, const void *from, size_t bytes, td_cu_stream stream)
{
    const command c = {.kind = COMMAND_COPY, .to = (void *)(uintptr_t)to, .from = from, .bytes = bytes};

    return enqueue(stream, &c);
}

CALL(cuMemsetD8Async, td_cu_pointer to, unsigned char value, size_t bytes, td_cu_stream stream)
{
    memset((void *)(uintptr_t)to, value, bytes);
    return stream ? INVALID_VALUE : TD_CU_SUCCESS;
}

CALL(cuMemcpyDtoHAsync, void *to, td_cu_pointer from, size_t bytes, td_cu_stream stream)
{
    const command c = {.kind = COMMAND_COPY, .to = to, .from = (const void *)(uintptr_t)from, .bytes = bytes};

    return enqueue(stream, &c);
}

CALL(cuModuleLoadDataEx, td_cu_module *module, const void *data, unsigned count, int *options, void **values)
{
    (void)count;
    (void)options;
    (void)values;
    if (!data || memcmp(data, fake_image_text, sizeof fake_image_text))
        return INVALID_VALUE;
    *module = __real_calloc(1, sizeof **module);
    add(OBJECT_MODULE, *module);
    return TD_CU_SUCCESS;
}

CALL(cuModuleUnload, td_cu_module module)
{
    if (!take_out(OBJECT_MODULE, module))
        return INVALID_VALUE;
    __real_free(module);
    return TD_CU_SUCCESS;
}

CALL(cuModuleGetFunction, td_cu_function *function, td_cu_module module, const char *name)
{
    struct td_cu_function_st *f = module->functions;

    while (f < module->functions + FUNCTIONS && f->name[0] && strcmp(f->name, name))
        f++;
    if (f == module->functions + FUNCTIONS || strlen(name) >= sizeof f->name)
        return INVALID_VALUE;
    strcpy(f->name, name);
    *function = f;
    return TD_CU_SUCCESS;
}

CALL(cuFuncGetAttribute, int *value, int attribute, td_cu_function function)
{
    (void)function;
    *value = attribute == TD_CU_FUNCTION_REGISTERS       ? 32
             : attribute == TD_CU_FUNCTION_STATIC_SHARED ? fake_cuda_driver.static_shared_bytes
                                                         : 0;
    return TD_CU_SUCCESS;
}

CALL(cuFuncSetAttribute, td_cu_function function, int attribute, int value)
{
    if (attribute == TD_CU_FUNCTION_WIDE_CLUSTERS) {
        function->wide_clusters = value;
        return TD_CU_SUCCESS;
    }
    if (attribute != TD_CU_FUNCTION_DYNAMIC_SHARED || value <= 0 ||
        value > SHARED_BYTES - fake_cuda_driver.static_shared_bytes)
        return INVALID_VALUE;
    function->dynamic_bytes = value;
    return TD_CU_SUCCESS;
}

/* More than 48 KB with what is static must have been allowed. */
static bool is_allowed(td_cu_function function, unsigned shared_bytes)
{
    const int plain = 48 * 1024 - fake_cuda_driver.static_shared_bytes;

    return shared_bytes <= (unsigned)(function->dynamic_bytes > plain ? function->dynamic_bytes : plain);
}

/* Grids are whole clusters; those of more than 8 blocks must have been allowed. */
static bool is_cluster(td_cu_function function, const unsigned *grid, const td_cu_launch_value *value)
{
    const unsigned blocks = value->cluster[0];

    return blocks && value->cluster[1] == 1 && value->cluster[2] == 1 && grid[0] % blocks == 0 &&
           blocks <= (function->wide_clusters ? 16 : 8);
}

static bool is_stamp(td_cu_function function)
{
    return !strcmp(function->name, "stamp");
}

atomic_uint fake_cuda_launched;
fake_cuda_launch fake_cuda_launches[FAKE_CUDA_LAUNCHES];

static void note_launch(td_cu_function function, const unsigned grid[3], const unsigned char *params)
{
    fake_cuda_launch *to = &fake_cuda_launches[atomic_fetch_add(&fake_cuda_launched, 1u) % FAKE_CUDA_LAUNCHES];

    snprintf(to->entry, sizeof to->entry, "%s", function->name);
    memcpy(to->grid, grid, sizeof to->grid);
    memcpy(to->params, params, sizeof to->params);
}

/* One way or the other. */
static bool has_params(void *const *params, void *const *extra)
{
    return params ? !extra : extra && extra[0] == TD_CU_LAUNCH_BUFFER;
}

/* Of a launch's {buffer, its size}: the parameters, and zeros. A pointer to a kernel's only parameter has no size: it has
 * FAKE_CUDA_ONLY_BYTES. */
static void copy_params(unsigned char to[TD_PARAM_BYTES], void *const *params, void *const *extra)
{
    const size_t bytes = params ? FAKE_CUDA_ONLY_BYTES : *(const size_t *)extra[3];

    memset(to, 0, TD_PARAM_BYTES);
    memcpy(to, params ? params[0] : extra[1], bytes < TD_PARAM_BYTES ? bytes : TD_PARAM_BYTES);
}

CALL(cuFuncLoad, td_cu_function function)
{
    return function ? TD_CU_SUCCESS : INVALID_VALUE;
}

CALL(cuLaunchKernel, td_cu_function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
     unsigned bz, unsigned shared, td_cu_stream stream, void **params, void **extra)
{
    command c = {.kind = COMMAND_STAMP};

    if (!gx || !gy || !gz || !bx || !by || !bz || !has_params(params, extra) ||
        !is_allowed(function, shared))
        return INVALID_VALUE;
    if (!is_stamp(function)) {
        copy_params(c.params, params, extra);
        note_launch(function, (const unsigned[3]){gx, gy, gz}, c.params);
        c.kind = COMMAND_HOLD;
        return atomic_load(&fake_cuda_driver.holds) ? enqueue(stream, &c) : TD_CU_SUCCESS;
    }
    memcpy(&c.stamp, extra[1], sizeof c.stamp);
    return enqueue(stream, &c);
}

CALL(cuLaunchKernelEx, const td_cu_launch *launch, td_cu_function function, void **params, void **extra)
{
    for (unsigned i = 0; i < launch->attribute_count; i++)
        if (launch->attributes[i].id != TD_CU_LAUNCH_OVERLAPS &&
            (launch->attributes[i].id != TD_CU_LAUNCH_CLUSTER ||
             !is_cluster(function, launch->grid, &launch->attributes[i].value)))
            return INVALID_VALUE;
    return fake_cuLaunchKernel(function, launch->grid[0], launch->grid[1], launch->grid[2], launch->block[0],
                               launch->block[1], launch->block[2], launch->shared_bytes, launch->stream, params, extra);
}

static _Thread_local td_cu_graph building;

CALL(cuGraphCreate, td_cu_graph *out, unsigned flags)
{
    if (flags || depth <= 0)
        return INVALID_VALUE;
    *out = building = __real_calloc(1, sizeof **out);
    add(OBJECT_GRAPH, *out);
    return TD_CU_SUCCESS;
}

CALL(cuGraphDestroy, td_cu_graph graph)
{
    if (!take_out(OBJECT_GRAPH, graph))
        return INVALID_VALUE;
    __real_free(graph);
    return TD_CU_SUCCESS;
}

static td_cu_graph_node node_of(size_t place)
{
    return (td_cu_graph_node)(uintptr_t)place;
}

/* Only chains: a node depends on the one before it. */
static td_cu_result add_node(td_cu_graph_node *node, td_cu_graph graph, const td_cu_graph_node *after, size_t count,
                             const command *c)
{
    if (graph->count == NODES || graph->loose || count > (graph->count > 0) ||
        (count && after[0] != node_of(graph->count)))
        return INVALID_VALUE;
    graph->loose = graph->count && !count;
    graph->commands[graph->count++] = *c;
    *node = node_of(graph->count);
    return TD_CU_SUCCESS;
}

static td_cu_result set_node(td_cu_graph graph, td_cu_graph_node node, const command *c)
{
    const size_t place = (uintptr_t)node;

    if (!place || place > graph->count || graph->commands[place - 1].kind != c->kind)
        return INVALID_VALUE;
    graph->commands[place - 1] = *c;
    return TD_CU_SUCCESS;
}

/* A kernel that computes nothing is a copy of nothing. */
static td_cu_result kernel_command(const td_cu_kernel_node *params, command *c)
{
    *c = (command){.kind = COMMAND_COPY};
    if (!params->grid[0] || !params->block[0] || !has_params(params->params, params->extra) ||
        !is_allowed(params->function, params->shared_bytes))
        return INVALID_VALUE;
    c->function = params->function;
    memcpy(c->grid, params->grid, sizeof c->grid);
    copy_params(c->params, params->params, params->extra);
    if (is_stamp(params->function)) {
        c->kind = COMMAND_STAMP;
        memcpy(&c->stamp, params->extra[1], sizeof c->stamp);
    }
    return TD_CU_SUCCESS;
}

static command semaphore_command(command_kind kind, const td_cu_semaphore_node *params)
{
    return (command){.kind = kind, .semaphore = params->semaphores[0]->semaphore, .value = params->values[0].value};
}

CALL(cuGraphAddKernelNode, td_cu_graph_node *node, td_cu_graph graph, const td_cu_graph_node *after, size_t count,
     const td_cu_kernel_node *params)
{
    command c;
    const td_cu_result result = kernel_command(params, &c);

    return result ? result : add_node(node, graph, after, count, &c);
}

/* What starts early is behind a kernel, and is one. */
CALL(cuGraphAddDependencies_v2, td_cu_graph graph, const td_cu_graph_node *from, const td_cu_graph_node *to,
     const td_cu_graph_edge *edge, size_t count)
{
    const size_t last = graph->count;

    if (count != 1 || !graph->loose || last < 2 || *to != node_of(last) || *from != node_of(last - 1) ||
        edge->from_port != 1 || edge->to_port || edge->type != 1 || !graph->commands[last - 1].function ||
        !graph->commands[last - 2].function)
        return INVALID_VALUE;
    graph->loose = false;
    return TD_CU_SUCCESS;
}

/* Nodes are places of whichever graph was made last: that is the one that is being built. */
CALL(cuGraphKernelNodeSetAttribute, td_cu_graph_node node, int attribute, const td_cu_launch_value *value)
{
    const size_t place = (uintptr_t)node;
    const command *c;

    if (attribute != TD_CU_LAUNCH_CLUSTER || !building || !place || place > building->count)
        return INVALID_VALUE;
    c = &building->commands[place - 1];
    return c->function && is_cluster(c->function, c->grid, value) ? TD_CU_SUCCESS : INVALID_VALUE;
}

CALL(cuGraphAddExternalSemaphoresWaitNode, td_cu_graph_node *node, td_cu_graph graph, const td_cu_graph_node *after,
     size_t count, const td_cu_semaphore_node *params)
{
    const command c = semaphore_command(COMMAND_WAIT, params);

    return add_node(node, graph, after, count, &c);
}

CALL(cuGraphAddExternalSemaphoresSignalNode, td_cu_graph_node *node, td_cu_graph graph, const td_cu_graph_node *after,
     size_t count, const td_cu_semaphore_node *params)
{
    const command c = semaphore_command(COMMAND_SIGNAL, params);

    return add_node(node, graph, after, count, &c);
}

/* An executable graph is a copy of the graph. */
CALL(cuGraphInstantiateWithFlags, td_cu_graph_exec *out, td_cu_graph graph, unsigned long long flags)
{
    td_cu_graph copy;

    if (flags || graph->loose)
        return INVALID_VALUE;
    copy = __real_calloc(1, sizeof *copy);
    *copy = *graph;
    add(OBJECT_GRAPH, copy);
    *out = (td_cu_graph_exec)(void *)copy;
    return TD_CU_SUCCESS;
}

CALL(cuGraphExecDestroy, td_cu_graph_exec exec)
{
    return fake_cuGraphDestroy((td_cu_graph)(void *)exec);
}

CALL(cuGraphExecKernelNodeSetParams, td_cu_graph_exec exec, td_cu_graph_node node, const td_cu_kernel_node *params)
{
    command c;
    const td_cu_result result = kernel_command(params, &c);

    return result ? result : set_node((td_cu_graph)(void *)exec, node, &c);
}

CALL(cuGraphExecExternalSemaphoresWaitNodeSetParams, td_cu_graph_exec exec, td_cu_graph_node node,
     const td_cu_semaphore_node *params)
{
    const command c = semaphore_command(COMMAND_WAIT, params);

    return set_node((td_cu_graph)(void *)exec, node, &c);
}

CALL(cuGraphExecExternalSemaphoresSignalNodeSetParams, td_cu_graph_exec exec, td_cu_graph_node node,
     const td_cu_semaphore_node *params)
{
    const command c = semaphore_command(COMMAND_SIGNAL, params);

    return set_node((td_cu_graph)(void *)exec, node, &c);
}

/* 128 bytes that begin with the address, and the sizes behind it. */
CALL(cuTensorMapEncodeTiled, void *map, int type, unsigned rank, void *address, const uint64_t *sizes, const uint64_t *strides,
     const unsigned *box, const unsigned *steps, int interleave, int swizzle, int promotion, int fill)
{
    uint64_t encoded[16] = {(uintptr_t)address, sizes[0], sizes[1], strides[0], (uint64_t)box[1] << 32 | box[0], (uint64_t)type};

    if ((uintptr_t)map % 64 || (type != TD_CU_MAP_F16 && type != TD_CU_MAP_BF16) || rank != 2 || !address ||
        (uintptr_t)address % 16 || !sizes[0] || !sizes[1] || strides[0] % 16 || box[0] != 64 || !box[1] || box[1] > 256 ||
        steps[0] != 1 || steps[1] != 1 || interleave || swizzle != TD_CU_MAP_SWIZZLE_128 || promotion > 3 || fill)
        return INVALID_VALUE;
    memcpy(map, encoded, sizeof encoded);
    return TD_CU_SUCCESS;
}

CALL(cuGraphLaunch, td_cu_graph_exec exec, td_cu_stream stream)
{
    const struct td_cu_graph_st *graph = (const void *)exec;
    td_cu_result result = TD_CU_SUCCESS;

    for (size_t i = 0; !result && i < graph->count; i++) {
        const command *c = &graph->commands[i];

        if (c->kind != COMMAND_COPY)
            result = enqueue(stream, c);
        else if (c->function)
            note_launch(c->function, c->grid, c->params);
    }
    return result;
}

const td_cu_table *fake_cuda_table(void)
{
#define ENTRY(kind, name, symbol, parameters) .name = fake_##name,
    static const td_cu_table table = {TD_CU_FUNCTIONS(ENTRY, ENTRY)};
#undef ENTRY

    return &table;
}
