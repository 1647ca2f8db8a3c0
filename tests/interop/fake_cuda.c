/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/interop/fake_cuda_parts.h"

#include <stdio.h>
#include <stdlib.h>

fake_cuda fake_cuda_driver = {.device_count = 1};

pthread_mutex_t fake_objects_lock = PTHREAD_MUTEX_INITIALIZER;
object *fake_objects;
static int retained;
atomic_bool fake_dead;
atomic_int fake_broken;

void fake_add(object_kind kind, void *pointer)
{
    object *o = __real_malloc(sizeof *o);

    if (!o)
        abort();
    pthread_mutex_lock(&fake_objects_lock);
    *o = (object){.kind = kind, .pointer = pointer, .next = fake_objects, .context = fake_current()};
    fake_objects = o;
    pthread_mutex_unlock(&fake_objects_lock);
    fake_cuda_driver.live++;
}

bool fake_take_out(object_kind kind, const void *pointer)
{
    object **at = &fake_objects, *found;

    pthread_mutex_lock(&fake_objects_lock);
    while (*at && ((*at)->kind != kind || (*at)->pointer != pointer))
        at = &(*at)->next;
    found = *at;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&fake_objects_lock);
    __real_free(found);
    fake_cuda_driver.live -= found != NULL;
    return found != NULL;
}

static void *first_of(object_kind kind)
{
    void *pointer = NULL;

    pthread_mutex_lock(&fake_objects_lock);
    for (const object *o = fake_objects; o && !pointer; o = o->next)
        pointer = o->kind == kind ? o->pointer : NULL;
    pthread_mutex_unlock(&fake_objects_lock);
    return pointer;
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

CALL(cuDeviceGetLuid, char *luid, unsigned *node_mask, td_cu_ordinal ordinal)
{
    (void)ordinal;
    if (!fake_cuda_driver.adapter.known)
        return NOT_SUPPORTED;
    memcpy(luid, fake_cuda_driver.adapter.luid, sizeof fake_cuda_driver.adapter.luid);
    *node_mask = fake_cuda_driver.adapter.node_mask;
    return TD_CU_SUCCESS;
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

static int primary, callers[FAKE_CUDA_DEVICES];

CALL(cuDevicePrimaryCtxRetain, td_cu_context *context, td_cu_ordinal ordinal)
{
    *context = (td_cu_context)(void *)&primary;
    fake_cuda_driver.retained_ordinal = ordinal;
    fake_cuda_driver.live++;
    pthread_mutex_lock(&fake_objects_lock);
    if (!retained++) {
        atomic_store(&fake_dead, false);
        atomic_store(&fake_broken, 0);
    }
    pthread_mutex_unlock(&fake_objects_lock);
    return TD_CU_SUCCESS;
}

static void end_object(object_kind kind, void *pointer)
{
    if (kind == OBJECT_STREAM)
        fake_end_stream(pointer);
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
    pthread_mutex_lock(&fake_objects_lock);
    last = --retained == 0;
    pthread_mutex_unlock(&fake_objects_lock);
    for (object_kind kind = OBJECT_STREAM + 1; last && kind-- > OBJECT_MEMORY;) /* streams first: they use memory */
        for (void *pointer; (pointer = first_of(kind));) {
            fake_take_out(kind, pointer); /* so that it does not die as well meanwhile */
            end_object(kind, pointer);
            fake_cuda_driver.abandoned++;
        }
    while (last && fake_objects) {
        fake_take_out(fake_objects->kind, fake_objects->pointer);
        fake_cuda_driver.abandoned++;
    }
    return TD_CU_SUCCESS;
}

enum { DEPTH = 8, INVALID_CONTEXT = 201 };
_Thread_local int fake_depth;
static _Thread_local td_cu_context stack[DEPTH];

td_cu_context fake_current(void)
{
    return fake_depth > 0 && fake_depth <= DEPTH ? stack[fake_depth - 1] : NULL;
}

static bool is_context(td_cu_context context)
{
    bool is = context == (td_cu_context)(void *)&primary;

    for (int i = 0; i < FAKE_CUDA_DEVICES; i++)
        is = is || context == (td_cu_context)(void *)&callers[i];
    return is;
}

/* Nobody who is refused pops. */
CALL(cuCtxPushCurrent, td_cu_context context)
{
    if (!is_context(context))
        return INVALID_CONTEXT;
    if (fake_depth >= 0 && fake_depth < DEPTH)
        stack[fake_depth] = context;
    fake_depth++;
    return TD_CU_SUCCESS;
}

CALL(cuCtxPopCurrent, td_cu_context *context)
{
    *context = fake_current();
    return fake_depth-- > 0 ? TD_CU_SUCCESS : INVALID_VALUE;
}

CALL(cuCtxGetDevice, td_cu_ordinal *ordinal)
{
    const td_cu_context current = fake_current();

    *ordinal = fake_cuda_driver.retained_ordinal;
    for (int i = 0; i < FAKE_CUDA_DEVICES; i++)
        if (current == (td_cu_context)(void *)&callers[i])
            *ordinal = i;
    return current ? TD_CU_SUCCESS : INVALID_CONTEXT;
}

td_cu_context fake_cuda_context(td_cu_ordinal ordinal)
{
    const td_cu_context context = (td_cu_context)(void *)&callers[ordinal];

    fake_cuCtxPushCurrent(context);
    return context;
}

int fake_cuda_live_in(td_cu_context context)
{
    int live = 0;

    pthread_mutex_lock(&fake_objects_lock);
    for (const object *o = fake_objects; o; o = o->next)
        live += o->context == context;
    pthread_mutex_unlock(&fake_objects_lock);
    return live;
}

int fake_cuda_depth(void)
{
    return fake_depth;
}

/* A copy of what is known of memory; no context: there is none. */
static object memory_at(td_cu_pointer pointer)
{
    object found = {0};

    pthread_mutex_lock(&fake_objects_lock);
    for (const object *o = fake_objects; o; o = o->next)
        if (o->kind == OBJECT_MEMORY && pointer - (uintptr_t)o->pointer < o->bytes)
            found = *o;
    pthread_mutex_unlock(&fake_objects_lock);
    return found;
}

CALL(cuPointerGetAttribute, void *value, int attribute, td_cu_pointer pointer)
{
    const object memory = memory_at(pointer);
    td_cu_ordinal ordinal = 0;

    for (int i = 0; i < FAKE_CUDA_DEVICES; i++)
        if (memory.context == (td_cu_context)(void *)&callers[i])
            ordinal = i;
    switch (memory.context ? attribute : 0) {
    case TD_CU_POINTER_CONTEXT: *(td_cu_context *)value = memory.context; break;
    case TD_CU_POINTER_MEMORY_TYPE: *(unsigned *)value = memory.host ? 1 : TD_CU_MEMORY_TYPE_DEVICE; break;
    case TD_CU_POINTER_ORDINAL: *(int *)value = ordinal; break;
    default: return INVALID_VALUE;
    }
    return TD_CU_SUCCESS;
}

CALL(cuMemGetAddressRange, td_cu_pointer *base, size_t *bytes, td_cu_pointer pointer)
{
    const object memory = memory_at(pointer);

    *base = (uintptr_t)memory.pointer;
    *bytes = memory.bytes;
    return memory.context ? TD_CU_SUCCESS : INVALID_VALUE;
}

static td_cu_result allocate(void **out, size_t bytes, bool host)
{
    if (fake_depth <= 0)
        return INVALID_CONTEXT;
    *out = __real_aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    if (!*out)
        return TD_CU_ERROR_OUT_OF_MEMORY;
    memset(*out, 0xa5, bytes);
    fake_add(OBJECT_MEMORY, *out);
    pthread_mutex_lock(&fake_objects_lock);
    for (object *o = fake_objects; o; o = o->next)
        if (o->pointer == *out) {
            o->bytes = bytes;
            o->host = host;
        }
    pthread_mutex_unlock(&fake_objects_lock);
    return TD_CU_SUCCESS;
}

CALL(cuMemAlloc, td_cu_pointer *pointer, size_t bytes)
{
    void *host = NULL;
    td_cu_result result = allocate(&host, bytes, false);

    *pointer = (uintptr_t)host;
    return result;
}

/* Mappings of imports are freed by the same call. */
CALL(cuMemFree, td_cu_pointer pointer)
{
    td_cu_external_memory mapped = NULL;

    pthread_mutex_lock(&fake_objects_lock);
    for (object *o = fake_objects; o && !mapped; o = o->next) {
        td_cu_external_memory m = o->pointer;

        if (o->kind == OBJECT_IMPORT && m->mapped && pointer >= (uintptr_t)m->bytes &&
            pointer < (uintptr_t)m->bytes + m->size)
            mapped = m;
    }
    if (mapped)
        mapped->mapped = 0;
    pthread_mutex_unlock(&fake_objects_lock);
    if (mapped)
        return TD_CU_SUCCESS;
    if (!fake_take_out(OBJECT_MEMORY, (void *)(uintptr_t)pointer))
        return INVALID_VALUE;
    __real_free((void *)(uintptr_t)pointer);
    return TD_CU_SUCCESS;
}

CALL(cuMemHostAlloc, void **host, size_t bytes, unsigned flags)
{
    return flags & TD_CU_HOST_MAPPED ? allocate(host, bytes, true) : INVALID_VALUE;
}

CALL(cuMemFreeHost, void *host)
{
    if (!fake_take_out(OBJECT_MEMORY, host))
        return INVALID_VALUE;
    __real_free(host);
    return TD_CU_SUCCESS;
}

CALL(cuMemHostRegister, void *host, size_t bytes, unsigned flags)
{
    (void)bytes;
    if (!host || !flags)
        return INVALID_VALUE;
    fake_add(OBJECT_NAME, host);
    return TD_CU_SUCCESS;
}

CALL(cuMemHostUnregister, void *host)
{
    return fake_take_out(OBJECT_NAME, host) ? TD_CU_SUCCESS : INVALID_VALUE;
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

static int copy_within(uint64_t to, uint64_t from, size_t bytes)
{
    memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return TD_CU_SUCCESS;
}

static int fill_words(uint64_t at, unsigned word, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ((unsigned *)(uintptr_t)at)[i] = word;
    return TD_CU_SUCCESS;
}

static int synchronize(void)
{
    return TD_CU_SUCCESS;
}

static int synchronize_stream(td_cu_stream stream)
{
    td_cu_event event = NULL;
    int result = fake_cuEventCreate(&event, TD_CU_EVENT_NO_TIMING);

    if (!result)
        result = fake_cuEventRecord(event, stream);
    if (!result)
        result = fake_cuEventSynchronize(event);
    if (event)
        fake_cuEventDestroy(event);
    return result;
}

void *fake_cuda_of_benches(const char *symbol)
{
    return !strcmp(symbol, "cuMemcpyDtoD_v2")       ? (void *)copy_within
           : !strcmp(symbol, "cuMemsetD32_v2")      ? (void *)fill_words
           : !strcmp(symbol, "cuCtxSynchronize")    ? (void *)synchronize
           : !strcmp(symbol, "cuStreamSynchronize") ? (void *)synchronize_stream
                                                    : NULL;
}

CALL(cuImportExternalMemory, td_cu_external_memory *out, const td_cu_memory_handle *handle)
{
    td_cu_external_memory m;

    if (handle->type != td_opaque.cuda_memory_type || !handle->size)
        return INVALID_VALUE;
    m = __real_calloc(1, sizeof *m);
    m->size = handle->size;
    m->bytes = __real_aligned_alloc(4096, (handle->size + 4095) & ~4095ull);
    fake_handle_taken(handle->handle.opaque);
    fake_add(OBJECT_IMPORT, m);
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
    if (m->mapped || !fake_take_out(OBJECT_IMPORT, m))
        return INVALID_VALUE; /* leaves it, as a driver may */
    end_object(OBJECT_IMPORT, m);
    return TD_CU_SUCCESS;
}

CALL(cuImportExternalSemaphore, td_cu_external_semaphore *out, const td_cu_semaphore_handle *handle)
{
    td_cu_external_semaphore s;

    if (handle->type != td_opaque.cuda_timeline_type)
        return INVALID_VALUE;
    s = __real_calloc(1, sizeof *s);
    if (!fake_handle_read(handle->handle.opaque, &s->semaphore)) {
        __real_free(s);
        return INVALID_VALUE;
    }
    fake_handle_taken(handle->handle.opaque);
    fake_add(OBJECT_SEMAPHORE, s);
    *out = s;
    return TD_CU_SUCCESS;
}

CALL(cuDestroyExternalSemaphore, td_cu_external_semaphore semaphore)
{
    if (!fake_take_out(OBJECT_SEMAPHORE, semaphore))
        return INVALID_VALUE;
    __real_free(semaphore);
    return TD_CU_SUCCESS;
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

const td_cu_table *fake_cuda_table(void)
{
#define ENTRY(kind, name, symbol, parameters) .name = fake_##name,
    static const td_cu_table table = {TD_CU_FUNCTIONS(ENTRY, ENTRY)};
#undef ENTRY

    return &table;
}
