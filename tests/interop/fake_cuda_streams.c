/* Streams of the fake CUDA driver, what is put on them, and events.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <time.h>

#include "interop/os/clock.h"
#include "tests/interop/fake_cuda_parts.h"

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
    case COMMAND_STAMP: break; /* by stream_main() */
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
        if (c.kind == COMMAND_STAMP) /* who sees it finds the stream come past it */
            stamp(&c.stamp);
        stream->head++;
        pthread_mutex_unlock(&stream->lock);
    }
}

/* Stamps on a stream that has nothing before them are made at once: a GPU is no slower, and a session begins with many, each of
 * which would be two changes of threads here. */
td_cu_result fake_enqueue(td_cu_stream stream, const command *c)
{
    td_cu_result result = atomic_load(&fake_broken);

    if (result)
        return result;
    pthread_mutex_lock(&stream->lock);
    if (c->kind == COMMAND_STAMP && stream->tail == stream->head && !stream->stopping)
        stamp(&c->stamp);
    else if (stream->tail - stream->head == COMMANDS)
        result = TD_CU_ERROR_OUT_OF_MEMORY; /* the driver would block: nobody may get here */
    else
        stream->commands[stream->tail++ % COMMANDS] = *c;
    pthread_cond_signal(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    return result;
}

void fake_stop_stream(td_cu_stream stream)
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
    pthread_mutex_lock(&fake_objects_lock);
    atomic_store(&fake_dead, true);
    for (object *o = fake_objects; o; o = o->next)
        if (o->kind == OBJECT_STREAM)
            fake_stop_stream(o->pointer);
    pthread_mutex_unlock(&fake_objects_lock);
}

void fake_cuda_fault(void)
{
    atomic_store(&fake_broken, ILLEGAL_ADDRESS);
    fake_cuda_die();
}

void fake_cuda_hang(td_cu_stream stream)
{
    const command c = {.kind = COMMAND_HANG};

    fake_enqueue(stream, &c);
}

void fake_cuda_hold(td_cu_stream stream)
{
    const command c = {.kind = COMMAND_HOLD};

    fake_enqueue(stream, &c);
}

CALL(cuStreamGetCtx, td_cu_stream stream, td_cu_context *context)
{
    *context = stream->context;
    return TD_CU_SUCCESS;
}

void fake_end_stream(td_cu_stream stream)
{
    fake_stop_stream(stream);
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->lock);
    __real_free(stream);
}

CALL(cuWaitExternalSemaphoresAsync, const td_cu_external_semaphore *semaphores, const td_cu_semaphore_value *values,
     unsigned count, td_cu_stream stream)
{
    const command c = {.kind = COMMAND_WAIT, .semaphore = semaphores[0]->semaphore, .value = values[0].value};

    return count == 1 ? fake_enqueue(stream, &c) : INVALID_VALUE;
}

CALL(cuSignalExternalSemaphoresAsync, const td_cu_external_semaphore *semaphores, const td_cu_semaphore_value *values,
     unsigned count, td_cu_stream stream)
{
    const command c = {.kind = COMMAND_SIGNAL, .semaphore = semaphores[0]->semaphore, .value = values[0].value};

    return count == 1 ? fake_enqueue(stream, &c) : INVALID_VALUE;
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
    stream->context = fake_current();
    fake_add(OBJECT_STREAM, stream);
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
    if (!fake_take_out(OBJECT_STREAM, stream))
        return INVALID_VALUE;
    fake_end_stream(stream);
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
    if (atomic_load(&fake_broken))
        return atomic_load(&fake_broken);
    return idle ? TD_CU_SUCCESS : atomic_load(&fake_dead) ? LAUNCH_FAILED : TD_CU_ERROR_NOT_READY;
}

CALL(cuEventCreate, td_cu_event *out, unsigned flags)
{
    if (fake_depth <= 0 || !(flags & TD_CU_EVENT_NO_TIMING))
        return INVALID_VALUE;
    *out = __real_calloc(1, sizeof **out);
    fake_add(OBJECT_EVENT, *out);
    return TD_CU_SUCCESS;
}

CALL(cuEventDestroy, td_cu_event event)
{
    if (!fake_take_out(OBJECT_EVENT, event))
        return INVALID_VALUE;
    __real_free(event);
    return TD_CU_SUCCESS;
}

CALL(cuEventRecord, td_cu_event event, td_cu_stream stream)
{
    const command c = {.kind = COMMAND_RECORD, .event = event, .value = event->recorded + 1};
    const td_cu_result result = fake_enqueue(stream, &c);

    if (!result)
        event->recorded++;
    return result;
}

CALL(cuStreamWaitEvent, td_cu_stream stream, td_cu_event event, unsigned flags)
{
    const command c = {.kind = COMMAND_WAIT_EVENT, .event = event, .value = event->recorded};

    return flags ? INVALID_VALUE : fake_enqueue(stream, &c);
}

CALL(cuEventQuery, td_cu_event event)
{
    if (atomic_load(&fake_broken))
        return atomic_load(&fake_broken);
    return is_reached(event, event->recorded) ? TD_CU_SUCCESS : TD_CU_ERROR_NOT_READY;
}

CALL(cuEventSynchronize, td_cu_event event)
{
    const uint64_t value = event->recorded;

    while (!is_reached(event, value) && !atomic_load(&fake_dead))
        nap();
    return is_reached(event, value) ? TD_CU_SUCCESS : atomic_load(&fake_broken) ? atomic_load(&fake_broken) : LAUNCH_FAILED;
}

CALL(cuMemcpyHtoDAsync, td_cu_pointer to, const void *from, size_t bytes, td_cu_stream stream)
{
    const command c = {.kind = COMMAND_COPY, .to = (void *)(uintptr_t)to, .from = from, .bytes = bytes};

    return fake_enqueue(stream, &c);
}

CALL(cuMemsetD8Async, td_cu_pointer to, unsigned char value, size_t bytes, td_cu_stream stream)
{
    memset((void *)(uintptr_t)to, value, bytes);
    return stream ? INVALID_VALUE : TD_CU_SUCCESS;
}

CALL(cuMemcpyDtoHAsync, void *to, td_cu_pointer from, size_t bytes, td_cu_stream stream)
{
    const command c = {.kind = COMMAND_COPY, .to = to, .from = (const void *)(uintptr_t)from, .bytes = bytes};

    return fake_enqueue(stream, &c);
}
