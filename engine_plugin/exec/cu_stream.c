/* Executor `cu_stream`: plans on one non-blocking CUDA stream.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A submit is: wait, stamp, records, stamp, signal - all on this stream and none of them waited for. The stamps are
 * kernels of one thread that write the GPU's clock and the submit's number to pinned memory, so progress is read
 * without the driver.
 *
 * Every function of the module is loaded at creation. Left to itself the driver loads a function at its first launch,
 * and may synchronise the context for it: with a stream that waits for a timeline, that is a deadlock.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine_plugin/exec/exec.h"
#include "interop/cu/driver.h"
#include "kernels/params.h"

enum {
    SLOTS = 256,
    FUNCTIONS = 64,
    PLAIN_SHARED_BYTES = 48 * 1024,
    CLOCK_TRIES = 20,
};
/* Bound of each spin at creation; other programs may hold the GPU for a while. */
static const uint64_t stamp_limit_ns = 2000000000u;

typedef struct function {
    const char *entry; /* in the cubin's table */
    td_cu_function handle;
    uint32_t shared_bytes; /* dynamic, that it may be launched with */
} function;

struct td_stream {
    td_cu_device *device;
    td_log log;
    td_cu_module module;
    td_cu_stream stream;
    td_cu_function stamp;
    function functions[FUNCTIONS];
    uint32_t function_count;
    td_cu_mem ring; /* td_stamp[SLOTS], then the number of the last finished submit */
    uint64_t submitted;
    atomic_int_fast64_t clock_offset_ns;
};

/* NVTX is headers alone, of the toolkit that built the kernels; without a profiler a range costs a few nanoseconds. */
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

static void range_push(const char *label)
{
    if (label)
        nvtxRangePushA(label);
}

static void range_pop(const char *label)
{
    if (label)
        nvtxRangePop();
}
#else
static void range_push(const char *label)
{
    (void)label;
}

static void range_pop(const char *label)
{
    (void)label;
}
#endif

static uint64_t load_word(const volatile uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static td_stamp *slots_of(const td_stream *stream)
{
    return stream->ring.host;
}

static uint64_t *completed_of(const td_stream *stream)
{
    return (uint64_t *)(slots_of(stream) + SLOTS);
}

static tandem_status launch(td_stream *stream, td_cu_function function_handle, const uint32_t grid[3],
                            const uint32_t block[3], uint32_t shared_bytes, const void *params, size_t param_bytes,
                            const char *name, char *why, size_t why_bytes)
{
    void *extra[] = {TD_CU_LAUNCH_BUFFER, (void *)(uintptr_t)params, TD_CU_LAUNCH_BYTES, &param_bytes,
                     TD_CU_LAUNCH_END};

    return td_cu_check(stream->device,
                       TD_CU(stream->device, cuLaunchKernel, function_handle, grid[0], grid[1], grid[2], block[0],
                             block[1], block[2], shared_bytes, stream->stream, NULL, extra),
                       why, why_bytes, "launch of %s (grid %u)", name, (unsigned)grid[0]);
}

static tandem_status launch_stamp(td_stream *stream, uint64_t sequence, bool end, char *why, size_t why_bytes)
{
    static const uint32_t one[3] = {1, 1, 1};
    const td_params_stamp params = {
        .slot = (td_stamp *)(uintptr_t)(stream->ring.address + sequence % SLOTS * sizeof(td_stamp)),
        .completed = end ? (uint64_t *)(uintptr_t)(stream->ring.address + SLOTS * sizeof(td_stamp)) : NULL,
        .sequence = sequence};

    return launch(stream, stream->stamp, one, one, 0, &params, sizeof params, "stamp", why, why_bytes);
}

/* Loads an image; with `ptx` the driver compiles it. */
static tandem_status load_image(td_stream *stream, const td_cubin *image, char *why, size_t why_bytes)
{
    char errors[512] = "";
    int options[] = {TD_CU_JIT_ERROR_LOG, TD_CU_JIT_ERROR_LOG_BYTES};
    void *values[] = {errors, (void *)(uintptr_t)sizeof errors};
    td_cu_result result;

    result =
        TD_CU(stream->device, cuModuleLoadDataEx, &stream->module, image->data, image->ptx ? 2 : 0, options, values);
    return td_cu_check(stream->device, result, why, why_bytes,
                       "the kernels for %s_%u do not load%s%s: cuModuleLoadDataEx", image->ptx ? "compute" : "sm",
                       (unsigned)image->sm, errors[0] ? ": " : "", errors);
}

static tandem_status load_function(td_stream *stream, const char *entry, td_cu_function *out, char *why,
                                   size_t why_bytes)
{
    td_cu_device *device = stream->device;
    tandem_status status;
    int registers;

    status = td_cu_check(device, TD_CU(device, cuModuleGetFunction, out, stream->module, entry), why, why_bytes,
                         "the kernel %s: cuModuleGetFunction", entry);
    if (!status && device->table.cuFuncLoad)
        status =
            td_cu_check(device, TD_CU(device, cuFuncLoad, *out), why, why_bytes, "the kernel %s: cuFuncLoad", entry);
    if (!status) /* makes older drivers load it */
        status = td_cu_check(device, TD_CU(device, cuFuncGetAttribute, &registers, TD_CU_FUNCTION_REGISTERS, *out), why,
                             why_bytes, "the kernel %s: cuFuncGetAttribute", entry);
    return status;
}

static tandem_status load_kernels(td_stream *stream, const td_cubin *image, char *why, size_t why_bytes)
{
    const uint32_t sm = stream->device->info.sm;
    tandem_status status;

    if (!image)
        image = td_cubin_for_sm(sm, why, why_bytes);
    if (!image)
        return TANDEM_ERROR_UNSUPPORTED;
    status = load_image(stream, image, why, why_bytes);
    if (status == TANDEM_ERROR_UNSUPPORTED && !image->ptx) {
        const td_cubin *ptx = NULL, *table;
        uint32_t count;

        table = td_cubins(&count);
        for (uint32_t i = 0; i < count; i++)
            if (table[i].ptx && table[i].sm <= sm)
                ptx = &table[i];
        if (ptx) {
            td_logf(&stream->log, TD_LOG_WARN, "%s; the driver compiles PTX instead", why);
            image = ptx;
            status = load_image(stream, image, why, why_bytes);
        }
    }
    if (!status)
        status = load_function(stream, "stamp", &stream->stamp, why, why_bytes);
    for (uint32_t i = 0; !status && i < image->entry_count; i++) {
        function *f = &stream->functions[stream->function_count];

        if (!strcmp(image->entries[i].entry, "stamp"))
            continue;
        if (stream->function_count == FUNCTIONS)
            return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "more than %d kernels in one image", FUNCTIONS);
        f->entry = image->entries[i].entry;
        f->shared_bytes = PLAIN_SHARED_BYTES;
        status = load_function(stream, f->entry, &f->handle, why, why_bytes);
        stream->function_count++;
    }
    return status;
}

/* The function of a record, ready for its shared memory. */
static tandem_status find_function(td_stream *stream, const td_record *record, function **out, char *why,
                                   size_t why_bytes)
{
    const char *entry = record->kernel->entry;
    td_cu_device *device = stream->device;
    tandem_status status;

    if (!entry)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "the kernel %s has no GPU version",
                       record->kernel->name);
    if (record->flags)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "the kernel %s needs launch features (flags %u)",
                       entry, (unsigned)record->flags);
    for (uint32_t i = 0; i < stream->function_count; i++) {
        function *f = &stream->functions[i];

        if (f->entry != entry && strcmp(f->entry, entry))
            continue;
        *out = f;
        if (record->shared_bytes <= f->shared_bytes)
            return TANDEM_OK;
        if (record->shared_bytes > device->shared_limit)
            return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                           "the kernel %s needs %u bytes of shared memory; %s has %u", entry,
                           (unsigned)record->shared_bytes, device->info.name, (unsigned)device->shared_limit);
        status = td_cu_check(
            device,
            TD_CU(device, cuFuncSetAttribute, f->handle, TD_CU_FUNCTION_DYNAMIC_SHARED, (int)record->shared_bytes), why,
            why_bytes, "%u bytes of shared memory for %s: cuFuncSetAttribute", (unsigned)record->shared_bytes, entry);
        if (!status)
            f->shared_bytes = record->shared_bytes;
        return status;
    }
    return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "the kernel %s is not in the image that was loaded",
                   entry);
}

/* The GPU's clock lies between the host's before the launch and after its stamp was seen: intervals, intersected. */
static tandem_status measure_clock(td_stream *stream, char *why, size_t why_bytes)
{
    int64_t low = INT64_MIN, high = INT64_MAX;
    tandem_status status;

    for (uint64_t i = 1; i <= CLOCK_TRIES; i++) {
        const uint64_t begin = td_now_ns();
        uint64_t end = begin;
        int64_t gpu;

        status = launch_stamp(stream, i, true, why, why_bytes);
        if (status)
            return status;
        while (load_word(completed_of(stream)) != i) {
            end = td_now_ns();
            if (end - begin > stamp_limit_ns)
                return td_fail(why, why_bytes, TANDEM_ERROR_DEVICE,
                               "%s did not run a kernel of one thread within %u ms", stream->device->info.name,
                               (unsigned)(stamp_limit_ns / 1000000));
        }
        end = td_now_ns();
        gpu = (int64_t)slots_of(stream)[i].end_ns;
        if (i == 1)
            continue; /* includes what the first launch of a context costs */
        if (gpu - (int64_t)end > low)
            low = gpu - (int64_t)end;
        if (gpu - (int64_t)begin < high)
            high = gpu - (int64_t)begin;
    }
    atomic_store(&stream->clock_offset_ns, low + (high - low) / 2);
    memset(stream->ring.host, 0, stream->ring.bytes);
    return TANDEM_OK;
}

tandem_status td_stream_create(td_cu_device *device, const td_log *log, td_stream **out, char *why, size_t why_bytes)
{
    return td_stream_create_image(device, NULL, log, out, why, why_bytes);
}

tandem_status td_stream_create_image(td_cu_device *device, const td_cubin *image, const td_log *log, td_stream **out,
                                     char *why, size_t why_bytes)
{
    td_stream *stream = calloc(1, sizeof *stream);
    bool entered = false;
    tandem_status status;

    *out = NULL;
    if (!stream)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a stream");
    stream->device = device;
    if (log)
        stream->log = *log;
    status = td_cu_mem_alloc_host(device, SLOTS * sizeof(td_stamp) + 64, &stream->ring, why, why_bytes);
    if (status)
        goto fail;
    memset(stream->ring.host, 0, stream->ring.bytes);
    status = td_cu_enter(device, why, why_bytes);
    if (status)
        goto fail;
    entered = true;
    status = td_cu_check(device, TD_CU(device, cuStreamCreate, &stream->stream, TD_CU_STREAM_NON_BLOCKING), why,
                         why_bytes, "cuStreamCreate");
    if (!status)
        status = load_kernels(stream, image, why, why_bytes);
    if (!status)
        status = measure_clock(stream, why, why_bytes);
    if (status)
        goto fail;
    td_cu_leave(device);

    *out = stream;
    return TANDEM_OK;
fail:
    if (entered)
        td_cu_leave(device);
    td_stream_destroy(&stream, stamp_limit_ns);
    return status;
}

/* Whether the stream is idle, or broken for good, within timeout_ns. */
static bool drain(td_stream *stream, uint64_t timeout_ns)
{
    const struct timespec nap = {.tv_nsec = 50000};
    const uint64_t begin = td_now_ns();

    while (stream->stream && TD_CU(stream->device, cuStreamQuery, stream->stream) == TD_CU_ERROR_NOT_READY) {
        if (td_now_ns() - begin >= timeout_ns)
            return false;
        nanosleep(&nap, NULL);
    }
    return true;
}

bool td_stream_drain(td_stream *stream, uint64_t timeout_ns)
{
    bool drained;

    if (td_cu_enter(stream->device, NULL, 0))
        return true; /* nothing runs in a context that is gone */
    drained = drain(stream, timeout_ns);
    td_cu_leave(stream->device);
    return drained;
}

void td_stream_destroy(td_stream **pointer, uint64_t timeout_ns)
{
    td_stream *stream = *pointer;
    char why[160];

    *pointer = NULL;
    if (!stream)
        return;
    if (td_cu_enter(stream->device, why, sizeof why)) {
        td_logf(&stream->log, TD_LOG_WARN, "a stream is left behind: %s", why);
    } else if (!drain(stream, timeout_ns)) {
        td_logf(&stream->log, TD_LOG_WARN, "a stream is left behind: submit %llu of %llu is not finished after %llu ms",
                (unsigned long long)td_stream_completed(stream) + 1, (unsigned long long)stream->submitted,
                (unsigned long long)(timeout_ns / 1000000));
        td_cu_leave(stream->device);
    } else {
        if (stream->stream)
            TD_CU(stream->device, cuStreamDestroy, stream->stream);
        if (stream->module)
            TD_CU(stream->device, cuModuleUnload, stream->module);
        td_cu_leave(stream->device);
        td_cu_mem_free(stream->device, &stream->ring);
    }
    free(stream);
}

static tandem_status enqueue_signal(td_stream *stream, const td_stream_submit *submit, bool *signalled, char *why,
                                    size_t why_bytes)
{
    const td_cu_semaphore_value value = {.value = submit->signal ? submit->signal->value : 0};
    td_cu_external_semaphore semaphore;
    tandem_status status;

    if (!submit->signal)
        return TANDEM_OK;
    semaphore = submit->signal->cu->external;
    status = td_cu_check(stream->device,
                         TD_CU(stream->device, cuSignalExternalSemaphoresAsync, &semaphore, &value, 1, stream->stream),
                         why, why_bytes, "signal of value %llu: cuSignalExternalSemaphoresAsync",
                         (unsigned long long)submit->signal->value);
    *signalled = !status;
    return status;
}

/* The device's context is current. */
static tandem_status enqueue(td_stream *stream, const td_stream_submit *submit, bool *signalled, char *why,
                             size_t why_bytes)
{
    const td_plan *plan = submit->plan;
    function *functions[TD_PLAN_RECORDS];
    td_cu_device *device = stream->device;
    tandem_status status = TANDEM_OK;
    const uint64_t sequence = stream->submitted + 1;

    for (uint32_t i = 0; i < plan->record_count; i++) {
        status = find_function(stream, &plan->records[i], &functions[i], why, why_bytes);
        if (status)
            return status;
    }
    if (submit->wait) {
        const td_cu_semaphore_value value = {.value = submit->wait->value};
        td_cu_external_semaphore semaphore = submit->wait->cu->external;

        status = td_cu_check(
            device, TD_CU(device, cuWaitExternalSemaphoresAsync, &semaphore, &value, 1, stream->stream), why, why_bytes,
            "wait for value %llu: cuWaitExternalSemaphoresAsync", (unsigned long long)submit->wait->value);
        if (status)
            return status;
    }
    status = launch_stamp(stream, sequence, false, why, why_bytes);
    for (uint32_t i = 0; !status && i < plan->record_count; i++) {
        const td_record *record = &plan->records[i];
        _Alignas(16) unsigned char params[TD_PARAM_BYTES];

        td_exec_bind(record, submit->views, submit->scratch, 0, params);
        status = launch(stream, functions[i]->handle, record->grid, record->block, record->shared_bytes, params,
                        record->param_bytes, functions[i]->entry, why, why_bytes);
    }
    if (!status)
        status = launch_stamp(stream, sequence, true, why, why_bytes);
    if (status) { /* what is enqueued already is followed by the signal; the first error is the one to tell */
        enqueue_signal(stream, submit, signalled, NULL, 0);
    } else {
        status = enqueue_signal(stream, submit, signalled, why, why_bytes);
        stream->submitted = sequence; /* its end stamp is on the stream, whatever became of the signal */
    }
    return status && status != TANDEM_ERROR_LOST ? TANDEM_ERROR_DEVICE : status;
}

tandem_status td_stream_enqueue(td_stream *stream, const td_stream_submit *submit, uint64_t *sequence, bool *signalled,
                                char *why, size_t why_bytes)
{
    tandem_status status;

    *signalled = false;
    if (stream->submitted - td_stream_completed(stream) >= TD_STREAM_PENDING)
        return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "%d submits are pending on the stream", TD_STREAM_PENDING);
    status = td_cu_enter(stream->device, why, why_bytes);
    if (status)
        return status;
    range_push(submit->label);
    status = enqueue(stream, submit, signalled, why, why_bytes);
    range_pop(submit->label);
    td_cu_leave(stream->device);
    if (!status)
        *sequence = stream->submitted;
    return status;
}

uint64_t td_stream_completed(const td_stream *stream)
{
    return load_word(completed_of(stream));
}

bool td_stream_times(const td_stream *stream, uint64_t sequence, uint64_t *begin_ns, uint64_t *end_ns)
{
    const td_stamp *slot = &slots_of(stream)[sequence % SLOTS];
    const uint64_t offset = (uint64_t)td_stream_clock_offset_ns(stream);
    uint64_t begin, end;

    if (!sequence || sequence > td_stream_completed(stream) || load_word(&slot->sequence) != sequence)
        return false;
    begin = load_word(&slot->begin_ns);
    end = load_word(&slot->end_ns);
    if (load_word(&slot->sequence) != sequence) /* the slot was taken again meanwhile */
        return false;
    *begin_ns = begin - offset;
    *end_ns = end - offset;
    return true;
}

int64_t td_stream_clock_offset_ns(const td_stream *stream)
{
    return atomic_load_explicit(&stream->clock_offset_ns, memory_order_relaxed);
}

void td_stream_set_clock_offset_ns(td_stream *stream, int64_t offset_ns)
{
    atomic_store_explicit(&stream->clock_offset_ns, offset_ns, memory_order_relaxed);
}

tandem_status td_stream_status(td_stream *stream, char *why, size_t why_bytes)
{
    td_cu_result result;
    tandem_status status = td_cu_enter(stream->device, why, why_bytes);

    if (status)
        return status;
    result = TD_CU(stream->device, cuStreamQuery, stream->stream);
    if (result != TD_CU_ERROR_NOT_READY)
        status = td_cu_check(stream->device, result, why, why_bytes, "the stream");
    td_cu_leave(stream->device);
    return status && status != TANDEM_ERROR_LOST ? TANDEM_ERROR_DEVICE : status;
}
