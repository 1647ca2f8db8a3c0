/* Executor `cu_stream`: plans on one non-blocking CUDA stream.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A submit is: wait, stamp, records, stamp, signal, event - all on this stream and none of them waited for. The stamps
 * are kernels of one thread that write the GPU's clock to pinned memory, so progress is read without the driver.
 *
 * Where the owner of a timeline that the stream waits for is killed, the stream goes on waiting and reports no error
 * (cuStreamQuery: NOT_READY); whoever imports the same fd into a Vulkan device of its own can vkSignalSemaphore it, and
 * it goes on within 40 us.
 *
 * A submit that copies begins on the stream `in`, if it brings bytes, and ends on `out`, if it takes some back:
 *     in       copy n      copy n+1    copy n+2
 *     stream               records n   records n+1  records n+2
 *     out                              copy n       copy n+1
 * Copies to the device wait for earlier records and copies that touch the same bytes, and for no others; so with device
 * memory of its own for each slot all three overlap. Ends are in the order of submits.
 *
 * Blocks look for their cancel word in the device's memory: the same word in host memory made a plan of 0.10 ms take
 * 1.00 ms on an H200, since the reads of all blocks cross the bus one by one. It is set by a copy on a fourth stream.
 *
 * Every event is made at creation, and so are kernels loaded (cu_kernels.c): what the driver does at first use may wait for what is
 * pending.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/exec/cu_stream.h"

enum {
    CLOCK_TRIES = 20, /* more, for a while, where other programs keep the GPU from answering at once */
    CLOCK_NEAR_NS = 500000,
    CLOCK_MOST_NS = 50000000,
    LOOK_NS = 50000, /* between two looks at what wakes nobody */
};
#define ENDS_ON_OUT (1ull << 63)

/* With what is copied to cancel words: in pinned memory, and never changed. */
typedef struct cancel_ring {
    td_stream_ring ring;
    uint32_t values[2];
} cancel_ring;

/* Bound of each spin at creation; other programs may hold the GPU for a while. */
static const uint64_t stamp_limit_ns = 2000000000u;

static tandem_status launch(td_cuda_stream *stream, td_cu_stream on, td_cu_function function, const td_record *record,
                            const void *params, char *why, size_t why_bytes)
{
    size_t param_bytes = record->param_bytes;
    void *extra[] = {TD_CU_LAUNCH_BUFFER, (void *)(uintptr_t)params, TD_CU_LAUNCH_BYTES, &param_bytes,
                     TD_CU_LAUNCH_END};
    void *only = (void *)(uintptr_t)params, **each = record->flags & TD_RECORD_TENSOR_MAPS ? &only : NULL;
    const uint32_t *grid = record->grid, *block = record->block;
    td_cu_launch_attribute attributes[2];
    unsigned count = 0;
    td_cu_result result;

    if (record->flags & TD_RECORD_CLUSTER)
        attributes[count++] =
            (td_cu_launch_attribute){.id = TD_CU_LAUNCH_CLUSTER, .value.cluster = {record->cluster, 1, 1}};
    if (record->flags & TD_RECORD_PDL && stream->device->table.cuLaunchKernelEx)
        attributes[count++] = (td_cu_launch_attribute){.id = TD_CU_LAUNCH_OVERLAPS, .value.allowed = 1};
    if (count) {
        const td_cu_launch config = {.grid = {grid[0], grid[1], grid[2]},
                                     .block = {block[0], block[1], block[2]},
                                     .shared_bytes = record->shared_bytes,
                                     .stream = on,
                                     .attributes = attributes,
                                     .attribute_count = count};

        result = TD_CU(stream->device, cuLaunchKernelEx, &config, function, each, each ? NULL : extra);
    } else {
        result = TD_CU(stream->device, cuLaunchKernel, function, grid[0], grid[1], grid[2], block[0], block[1],
                       block[2], record->shared_bytes, on, each, each ? NULL : extra);
    }
    return td_cu_check(stream->device, result, why, why_bytes, "launch of %s (grid %u)", record->kernel->entry,
                       (unsigned)grid[0]);
}

static tandem_status launch_stamp(td_cuda_stream *stream, td_cu_stream on, uint32_t place, bool end, char *why,
                                  size_t why_bytes)
{
    static const td_kernel kernel = {.name = "stamp", .entry = "stamp"};
    static const td_record one = {
        .kernel = &kernel, .grid = {1, 1, 1}, .block = {1, 1, 1}, .param_bytes = sizeof(td_params_stamp)};
    const td_params_stamp params = td_stream_stamp(&stream->base, place, end);

    return launch(stream, on, stream->stamp, &one, &params, why, why_bytes);
}

/* The GPU's clock lies between the host's before the launch and after its stamp was seen: intervals, intersected. */
static tandem_status measure_clock(td_cuda_stream *stream, char *why, size_t why_bytes)
{
    td_stream_timestamps *at = stream->base.ring->timestamps;
    const uint64_t begun = td_now_ns();
    int64_t low = INT64_MIN, high = INT64_MAX;
    tandem_status status;

    for (int i = 0; i < CLOCK_TRIES || (high - low > CLOCK_NEAR_NS && td_now_ns() - begun < CLOCK_MOST_NS); i++) {
        const uint64_t begin = td_now_ns();
        uint64_t end = begin;
        int64_t gpu;

        __atomic_store_n(&at->over, 0, __ATOMIC_RELEASE);
        status = launch_stamp(stream, stream->stream, 0, true, why, why_bytes);
        if (status)
            return status;
        while (!__atomic_load_n(&at->over, __ATOMIC_ACQUIRE)) {
            end = td_now_ns();
            if (end - begin > stamp_limit_ns)
                return td_fail(why, why_bytes, TANDEM_ERROR_DEVICE,
                               "%s did not run a kernel of one thread within %u ms", stream->device->info.name,
                               (unsigned)(stamp_limit_ns / 1000000));
        }
        end = td_now_ns();
        gpu = (int64_t)at->stamp.end_ns;
        if (i == 0)
            continue; /* includes what the first launch of a context costs */
        if (gpu - (int64_t)end > low)
            low = gpu - (int64_t)end;
        if (gpu - (int64_t)begin < high)
            high = gpu - (int64_t)begin;
    }
    atomic_store(&stream->base.clock_offset_ns, low + (high - low) / 2);
    memset(stream->ring.host, 0, stream->ring.bytes);
    return TANDEM_OK;
}

static tandem_status make_event(td_cuda_stream *stream, unsigned flags, td_cu_event *out, char *why, size_t why_bytes)
{
    return td_cu_check(stream->device, TD_CU(stream->device, cuEventCreate, out, flags | TD_CU_EVENT_NO_TIMING), why,
                       why_bytes, "cuEventCreate");
}

static tandem_status make_stream(td_cuda_stream *stream, td_cu_urgency urgency, td_cu_stream *out, char *why,
                                 size_t why_bytes)
{
    td_cu_device *device = stream->device;
    int least = 0, most = 0, priority;
    tandem_status status;

    if (urgency == TD_CU_ANY || !device->table.cuCtxGetStreamPriorityRange || !device->table.cuStreamCreateWithPriority)
        return td_cu_check(device, TD_CU(device, cuStreamCreate, out, TD_CU_STREAM_NON_BLOCKING), why, why_bytes,
                           "cuStreamCreate");
    status = td_cu_check(device, TD_CU(device, cuCtxGetStreamPriorityRange, &least, &most), why, why_bytes,
                         "cuCtxGetStreamPriorityRange");
    if (status)
        return status;
    /* The least is 0, the most is below. */
    priority = urgency == TD_CU_LATER ? least : urgency == TD_CU_SOON && most + 1 < least ? most + 1 : most;
    return td_cu_check(device, TD_CU(device, cuStreamCreateWithPriority, out, TD_CU_STREAM_NON_BLOCKING, priority), why,
                       why_bytes, "cuStreamCreateWithPriority");
}

tandem_status td_cuda_init(td_cuda_stream *stream, const td_stream_ops *ops, td_cu_device *device,
                           const td_cubin *image, const td_log *log, char *why, size_t why_bytes)
{
    const td_cu_urgency urgent = device->urgency ? TD_CU_NOW : TD_CU_ANY;
    tandem_status status;

    stream->base.ops = ops;
    stream->base.look_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    if (log)
        stream->base.log = *log;
    stream->device = device;
    stream->cancel_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    status = td_cu_mem_alloc_host(device, sizeof(cancel_ring), &stream->ring, why, why_bytes);
    if (status)
        return status;
    stream->base.ring = stream->ring.host;
    stream->base.ring_address = stream->ring.address;
    memset(stream->ring.host, 0, stream->ring.bytes);
    status = td_cu_mem_alloc(device, TD_STREAM_PLACES * sizeof(uint32_t), &stream->cancel_words, why, why_bytes);
    if (!status)
        status = td_cu_enter(device, why, why_bytes);
    if (status)
        return status;
    /* Those that are seldom used share no queue of the device's with one that may wait for long. */
    status = make_stream(stream, device->urgency, &stream->stream, why, why_bytes);
    if (!status)
        status = make_stream(stream, urgent, &stream->in, why, why_bytes);
    if (!status)
        status = make_stream(stream, urgent, &stream->out, why, why_bytes);
    if (!status)
        status = make_stream(stream, urgent, &stream->urgent, why, why_bytes);
    if (!status) /* the ring is all zeros */
        status = td_cu_check(device,
                             TD_CU(device, cuMemcpyHtoDAsync, stream->cancel_words.address, stream->ring.host,
                                   stream->cancel_words.bytes, stream->stream),
                             why, why_bytes, "cancel words: cuMemcpyHtoDAsync");
    for (int i = 0; !status && i < TD_STREAM_PENDING; i++)
        status = make_event(stream, 0, &stream->done[i], why, why_bytes);
    for (int i = 0; !status && i < TD_CUDA_TRACES; i++)
        status = make_event(stream, 0, &stream->ran[i], why, why_bytes);
    if (!status)
        status = make_event(stream, 0, &stream->brought, why, why_bytes);
    if (!status)
        status = make_event(stream, TD_CU_EVENT_SLEEPS, &stream->tail, why, why_bytes);
    stream->callers = device->callers;
    if (!status && stream->callers)
        status = make_event(stream, 0, &stream->before, why, why_bytes);
    if (!status)
        status = td_cuda_load_kernels(stream, image, why, why_bytes);
    if (!status)
        status = measure_clock(stream, why, why_bytes);
    ((cancel_ring *)stream->ring.host)->values[1] = 1;
    td_cu_leave(device);
    return status;
}

tandem_status td_stream_create(td_cu_device *device, const td_log *log, td_stream **out, char *why, size_t why_bytes)
{
    return td_stream_create_image(device, NULL, log, out, why, why_bytes);
}

tandem_status td_stream_create_image(td_cu_device *device, const td_cubin *image, const td_log *log, td_stream **out,
                                     char *why, size_t why_bytes)
{
    static const td_stream_ops ops = {.prepare = td_cuda_prepare,
                                      .enqueue = td_cuda_enqueue,
                                      .fenced = true,
                                      .wait = td_cuda_wait,
                                      .cancel = td_cuda_cancel,
                                      .release = td_cuda_release,
                                      .status = td_cuda_status,
                                      .drain = td_cuda_drain,
                                      .destroy = td_cuda_destroy};
    td_cuda_stream *stream = calloc(1, sizeof *stream);
    tandem_status status;

    *out = NULL;
    if (!stream)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a stream");
    *out = &stream->base;
    status = td_cuda_init(stream, &ops, device, image, log, why, why_bytes);
    if (status)
        td_stream_destroy(out, stamp_limit_ns);
    return status;
}

/* The host's memory of it alone. */
static void free_stream(td_cuda_stream *stream)
{
    td_cu_modules_abandon(&stream->modules);
    free(stream->functions);
    free(stream->at_hand);
    free(stream);
}

void td_cuda_destroy(td_stream *base, bool drained)
{
    td_cuda_stream *stream = (td_cuda_stream *)base;
    td_cu_stream streams[] = {stream->stream, stream->in, stream->out, stream->urgent};
    td_cu_device *device = stream->device;
    char why[160];

    if (!drained) {
        td_cu_modules_abandon(&stream->modules);
        if (!atomic_load(&stream->waiters))
            free_stream(stream);
        return;
    }
    while (atomic_load(&stream->waiters)) /* what they wait for has come */
        td_sleep_ns(LOOK_NS);
    if (td_cu_enter(device, why, sizeof why)) {
        td_logf(&base->log, TD_LOG_WARN, "a stream is left behind: %s", why);
        free_stream(stream);
        return;
    }
    for (int i = 0; i < TD_STREAM_PENDING; i++)
        if (stream->done[i])
            TD_CU(device, cuEventDestroy, stream->done[i]);
    for (int i = 0; i < TD_CUDA_TRACES; i++)
        if (stream->ran[i])
            TD_CU(device, cuEventDestroy, stream->ran[i]);
    if (stream->brought)
        TD_CU(device, cuEventDestroy, stream->brought);
    if (stream->tail)
        TD_CU(device, cuEventDestroy, stream->tail);
    if (stream->before)
        TD_CU(device, cuEventDestroy, stream->before);
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
        if (streams[i])
            TD_CU(device, cuStreamDestroy, streams[i]);
    td_cuda_free_kernels(stream);
    td_cu_leave(device);
    td_cu_mem_free(device, &stream->cancel_words);
    td_cu_mem_free(device, &stream->ring);
    free(stream->at_hand);
    free(stream);
}

/* --- One submit --- */

static tandem_status wait_for_event(td_cuda_stream *stream, td_cu_stream on, td_cu_event event, char *why,
                                    size_t why_bytes)
{
    return td_cu_check(stream->device, TD_CU(stream->device, cuStreamWaitEvent, on, event, 0), why, why_bytes,
                       "cuStreamWaitEvent");
}

static tandem_status record_event(td_cuda_stream *stream, td_cu_event event, td_cu_stream on, char *why,
                                  size_t why_bytes)
{
    return td_cu_check(stream->device, TD_CU(stream->device, cuEventRecord, event, on), why, why_bytes,
                       "cuEventRecord");
}

tandem_status td_cuda_after_callers(td_cuda_stream *stream, td_cu_stream on, char *why, size_t why_bytes)
{
    tandem_status status;

    if (!stream->callers)
        return TANDEM_OK;
    status = record_event(stream, stream->before, stream->callers, why, why_bytes);
    return status ? status : wait_for_event(stream, on, stream->before, why, why_bytes);
}

tandem_status td_cuda_mark_done(td_cuda_stream *stream, td_cu_stream on, uint64_t sequence, char *why, size_t why_bytes)
{
    const uint64_t at = sequence % TD_STREAM_PENDING;
    tandem_status status = record_event(stream, stream->done[at], on, why, why_bytes);

    if (!status && stream->callers)
        status = wait_for_event(stream, stream->callers, stream->done[at], why, why_bytes);

    if (status)
        return status;
    atomic_store_explicit(&stream->done_sequence[at], sequence, memory_order_release);
    atomic_store(&stream->last_done, on == stream->out ? sequence | ENDS_ON_OUT : sequence);
    return TANDEM_OK;
}

/* --- Cancel words --- */

static tandem_status write_word(td_cuda_stream *stream, td_cu_stream on, uint32_t word, uint32_t value, char *why,
                                size_t why_bytes)
{
    const cancel_ring *ring = stream->ring.host;

    return td_cu_check(stream->device,
                       TD_CU(stream->device, cuMemcpyHtoDAsync, stream->cancel_words.address + word * sizeof(uint32_t),
                             &ring->values[value], sizeof(uint32_t), on),
                       why, why_bytes, "a cancel word: cuMemcpyHtoDAsync");
}

tandem_status td_cuda_take_word(td_cuda_stream *stream, uint32_t place, uint64_t sequence, uint64_t *address, char *why,
                                size_t why_bytes)
{
    tandem_status status = TANDEM_OK;

    *address = stream->cancel_words.address + place * sizeof(uint32_t);
    pthread_mutex_lock(&stream->cancel_lock);
    if (stream->word_set[place]) { /* on the same stream as what set it, and what may set it again */
        status = write_word(stream, stream->urgent, place, 0, why, why_bytes);
        if (!status)
            status = record_event(stream, stream->brought, stream->urgent, why, why_bytes);
        if (!status)
            status = wait_for_event(stream, stream->stream, stream->brought, why, why_bytes);
        stream->word_set[place] = status != TANDEM_OK;
    }
    stream->word_of[place] = status ? 0 : sequence;
    pthread_mutex_unlock(&stream->cancel_lock);
    return status;
}

void td_cuda_cancel(td_stream *base, uint64_t sequence)
{
    td_cuda_stream *stream = (td_cuda_stream *)base;
    const uint32_t place = td_stream_place(base, sequence);

    if (td_cu_enter(stream->device, NULL, 0))
        return;
    pthread_mutex_lock(&stream->cancel_lock);
    if (stream->word_of[place] == sequence && !stream->word_set[place]) {
        stream->word_set[place] = true;
        write_word(stream, stream->urgent, place, 1, NULL, 0); /* without it, the submit runs to its end */
    }
    pthread_mutex_unlock(&stream->cancel_lock);
    td_cu_leave(stream->device);
}

/* --- The points of a submit --- */

static tandem_status enqueue_wait(td_cuda_stream *stream, td_cu_stream on, const td_stream_submit *submit, char *why,
                                  size_t why_bytes)
{
    const td_cu_semaphore_value value = {.value = submit->wait ? submit->wait->value : 0};
    td_cu_external_semaphore semaphore;

    if (!submit->wait)
        return TANDEM_OK;
    semaphore = submit->wait->cu->external;
    return td_cu_check(stream->device,
                       TD_CU(stream->device, cuWaitExternalSemaphoresAsync, &semaphore, &value, 1, on), why, why_bytes,
                       "wait for value %llu: cuWaitExternalSemaphoresAsync", (unsigned long long)submit->wait->value);
}

static tandem_status enqueue_signal(td_cuda_stream *stream, td_cu_stream on, const td_stream_submit *submit,
                                    bool *signalled, char *why, size_t why_bytes)
{
    const td_cu_semaphore_value value = {.value = submit->signal ? submit->signal->value : 0};
    td_cu_external_semaphore semaphore;
    tandem_status status;

    if (!submit->signal)
        return TANDEM_OK;
    semaphore = submit->signal->cu->external;
    status = td_cu_check(
        stream->device, TD_CU(stream->device, cuSignalExternalSemaphoresAsync, &semaphore, &value, 1, on), why,
        why_bytes, "signal of value %llu: cuSignalExternalSemaphoresAsync", (unsigned long long)submit->signal->value);
    *signalled = !status;
    return status;
}

tandem_status td_cuda_release(td_stream *base, const td_cu_timeline *timeline, uint64_t value, char *why,
                              size_t why_bytes)
{
    td_cuda_stream *stream = (td_cuda_stream *)base;
    const td_cu_semaphore_value params = {.value = value};
    td_cu_external_semaphore semaphore = timeline->external;
    tandem_status status = td_cu_enter(stream->device, why, why_bytes);

    if (status)
        return status;
    status = td_cu_check(stream->device,
                         TD_CU(stream->device, cuSignalExternalSemaphoresAsync, &semaphore, &params, 1, stream->urgent),
                         why, why_bytes, "signal of value %llu in place of who owes it: cuSignalExternalSemaphoresAsync",
                         (unsigned long long)value);
    td_cu_leave(stream->device);
    return status;
}

/* --- The order of copies --- */

static bool overlap(td_cuda_span a, td_cuda_span b)
{
    return a.begin < b.end && b.begin < a.end;
}

static bool overlap_any(td_cuda_span a, const td_cuda_span *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (overlap(a, list[i]))
            return true;
    return false;
}

static void trace_range(td_cuda_trace *trace, const td_range *range, const uint64_t *views)
{
    td_cuda_span *span;
    uint64_t begin, end;

    if (range->base != TD_BASE_VIEW || range->begin_bytes >= range->end_bytes)
        return;
    if (range->view >= TD_MAX_VIEWS) {
        trace->everything = true;
        return;
    }
    span = &trace->views[range->view];
    begin = views[range->view] + range->begin_bytes;
    end = views[range->view] + range->end_bytes;
    if (span->begin == span->end)
        *span = (td_cuda_span){begin, end};
    if (begin < span->begin)
        span->begin = begin;
    if (end > span->end)
        span->end = end;
}

static void trace_submit(td_cuda_trace *trace, const td_stream_submit *submit, uint64_t sequence)
{
    memset(trace, 0, sizeof *trace);
    trace->sequence = sequence;
    for (uint32_t i = 0; i < submit->plan->record_count; i++) {
        const td_record *record = &submit->plan->records[i];

        for (uint32_t r = 0; r < record->read_count; r++)
            trace_range(trace, &record->reads[r], submit->views);
        for (uint32_t r = 0; r < record->write_count; r++)
            trace_range(trace, &record->writes[r], submit->views);
    }
    trace->out_count = submit->copy_out_count;
    for (uint32_t i = 0; i < submit->copy_out_count; i++) {
        const td_stream_copy *copy = &submit->copies_out[i];

        trace->out[i] = (td_cuda_span){copy->device, copy->device + copy->bytes};
        trace->out_host[i] = (td_cuda_span){(uintptr_t)copy->host, (uintptr_t)copy->host + copy->bytes};
    }
}

/* Earlier submits that this one's copies or records must not overtake; 0: none. */
typedef struct conflicts {
    uint64_t copies_after_records, copies_after_copies, records_after_copies;
} conflicts;

/* Of what is no longer traced the oldest that is stands for all. */
static conflicts find_conflicts(td_cuda_stream *stream, const td_stream_submit *submit, const td_cuda_trace *mine)
{
    const uint64_t completed = td_stream_completed(&stream->base), oldest = mine->sequence - TD_CUDA_TRACES + 1;
    conflicts found = {0};

    for (uint64_t m = mine->sequence - 1; m > completed && m + TD_CUDA_TRACES > mine->sequence; m--) {
        const td_cuda_trace *trace = &stream->traces[m % TD_CUDA_TRACES];
        const bool all = trace->sequence != m || trace->everything || (m == oldest && m - 1 > completed);
        bool reads = all || mine->everything;

        for (uint32_t i = 0; i < submit->copy_in_count; i++) {
            const td_stream_copy *copy = &submit->copies_in[i];
            const td_cuda_span device = {copy->device, copy->device + copy->bytes};
            const td_cuda_span host = {(uintptr_t)copy->host, (uintptr_t)copy->host + copy->bytes};

            if (!found.copies_after_records && (all || overlap_any(device, trace->views, TD_MAX_VIEWS)))
                found.copies_after_records = m;
            if (!found.copies_after_copies &&
                (all || overlap_any(device, trace->out, trace->out_count) || overlap_any(host, trace->out_host, trace->out_count)))
                found.copies_after_copies = m;
        }
        for (int i = 0; !reads && i < TD_MAX_VIEWS; i++)
            reads = overlap_any(mine->views[i], trace->out, trace->out_count);
        if (!found.records_after_copies && reads)
            found.records_after_copies = m;
    }
    return found;
}

static td_cu_event done_of(td_cuda_stream *stream, uint64_t sequence)
{
    return stream->done[sequence % TD_STREAM_PENDING];
}

/* Behind a submit's records; where that was not recorded, behind all of it. */
static td_cu_event ran_of(td_cuda_stream *stream, uint64_t sequence)
{
    const uint64_t at = sequence % TD_CUDA_TRACES;

    return stream->traces[at].sequence == sequence ? stream->ran[at] : done_of(stream, sequence);
}

static tandem_status copy_in(td_cuda_stream *stream, const td_stream_submit *submit, char *why, size_t why_bytes)
{
    tandem_status status = TANDEM_OK;

    for (uint32_t i = 0; !status && i < submit->copy_in_count; i++) {
        const td_stream_copy *copy = &submit->copies_in[i];

        if (copy->bytes)
            status = td_cu_check(
                stream->device,
                TD_CU(stream->device, cuMemcpyHtoDAsync, copy->device, copy->host, copy->bytes, stream->in), why,
                why_bytes, "%llu bytes to the device: cuMemcpyHtoDAsync", (unsigned long long)copy->bytes);
    }
    if (!status)
        status = record_event(stream, stream->brought, stream->in, why, why_bytes);
    if (!status)
        status = wait_for_event(stream, stream->stream, stream->brought, why, why_bytes);
    return status;
}

static tandem_status copy_out(td_cuda_stream *stream, const td_stream_submit *submit, char *why, size_t why_bytes)
{
    tandem_status status = TANDEM_OK;

    for (uint32_t i = 0; !status && i < submit->copy_out_count; i++) {
        const td_stream_copy *copy = &submit->copies_out[i];

        if (copy->bytes)
            status = td_cu_check(
                stream->device,
                TD_CU(stream->device, cuMemcpyDtoHAsync, copy->host, copy->device, copy->bytes, stream->out), why,
                why_bytes, "%llu bytes from the device: cuMemcpyDtoHAsync", (unsigned long long)copy->bytes);
    }
    return status;
}

/* What comes after it on any stream comes after all that was before it on every one. */
static void join_streams(td_cuda_stream *stream)
{
    td_cu_stream order[] = {stream->in, stream->stream, stream->out, stream->in, stream->stream};

    for (size_t i = 0; i + 1 < sizeof order / sizeof *order; i++)
        if (!record_event(stream, stream->brought, order[i], NULL, 0))
            wait_for_event(stream, order[i + 1], stream->brought, NULL, 0);
}

/* Puts the driver's encoding of a tensor map in place of what the plan says about it. */
static tandem_status encode_map(td_cuda_stream *stream, const td_record *record, uint64_t address, unsigned char *at, char *why,
                                size_t why_bytes)
{
    static const unsigned every_element[2] = {1, 1};
    td_tensor_map map, encoded;
    tandem_status status;

    memcpy(&map, at, sizeof map);
    const uint64_t sizes[2] = {map.channels, map.rows}, strides[1] = {map.stride_bytes};
    const unsigned box[2] = {map.box_channels, map.box_rows};

    status = td_cu_check(stream->device,
                         TD_CU(stream->device, cuTensorMapEncodeTiled, &encoded,
                               map.dtype == TANDEM_DTYPE_BF16 ? TD_CU_MAP_BF16 : TD_CU_MAP_F16, 2, (void *)(uintptr_t)address,
                               sizes, strides, box, every_element, 0, TD_CU_MAP_SWIZZLE_128, TD_CU_MAP_PROMOTE_256, 0),
                         why, why_bytes, "a tensor map of %llu x %llu for %s: cuTensorMapEncodeTiled", (unsigned long long)map.rows,
                         (unsigned long long)map.channels, record->kernel->entry);
    if (!status)
        memcpy(at, &encoded, sizeof encoded);
    return status;
}

tandem_status td_cuda_bind(td_cuda_stream *stream, const td_record *record, const td_stream_submit *submit, uint64_t control,
                           uint64_t cancel, void *params, char *why, size_t why_bytes)
{
    tandem_status status = TANDEM_OK;

    td_exec_bind(record, submit->views, submit->scratch, control, params);
    td_exec_bind_cancel(record, cancel, params);
    for (uint32_t i = 0; !status && i < record->reloc_count; i++) {
        const td_reloc *reloc = &record->relocs[i];

        if (reloc->kind == TD_RELOC_TENSOR_MAP)
            status = encode_map(stream, record, td_exec_address(reloc, submit->views, submit->scratch, 0),
                                (unsigned char *)params + reloc->offset, why, why_bytes);
    }
    return status;
}

/* From the begin stamp to the last record, on the streams that they belong to. */
static tandem_status enqueue_work(td_cuda_stream *stream, const td_stream_submit *submit, uint64_t sequence,
                                  td_cuda_function *const *functions, const td_cuda_trace *trace,
                                  const conflicts *found, uint64_t cancel, char *why, size_t why_bytes)
{
    const uint32_t place = td_stream_place(&stream->base, sequence);
    const uint64_t control = td_stream_control_address(&stream->base, place);
    const td_plan *plan = submit->plan;
    tandem_status status;

    status = launch_stamp(stream, submit->copy_in_count ? stream->in : stream->stream, place, false, why, why_bytes);
    if (!status && submit->copy_in_count)
        status = copy_in(stream, submit, why, why_bytes);
    if (!status && found->records_after_copies)
        status = wait_for_event(stream, stream->stream, done_of(stream, found->records_after_copies), why, why_bytes);
    for (uint32_t i = 0; !status && i < plan->record_count; i++) {
        const td_record *record = &plan->records[i];
        _Alignas(TD_PARAM_ALIGN) unsigned char params[TD_PARAM_BYTES];

        status = td_cuda_bind(stream, record, submit, control, cancel, params, why, why_bytes);
        if (!status)
            status = launch(stream, stream->stream, functions[i]->kernel.handle, record, params, why, why_bytes);
    }
    if (!status && stream->copies) {
        status = record_event(stream, stream->ran[sequence % TD_CUDA_TRACES], stream->stream, why, why_bytes);
        if (!status)
            stream->traces[sequence % TD_CUDA_TRACES] = *trace;
    }
    return status;
}

/* The device's context is current. */
static tandem_status enqueue(td_cuda_stream *stream, const td_stream_submit *submit, uint64_t sequence, bool *signalled,
                             char *why, size_t why_bytes)
{
    const bool brings = submit->copy_in_count > 0, takes = submit->copy_out_count > 0;
    const uint32_t place = td_stream_place(&stream->base, sequence);
    tandem_status status =
        td_cuda_functions_of(stream, submit->plan, &stream->at_hand, &stream->at_hand_room, why, why_bytes);
    td_cu_stream last;
    conflicts found = {0};
    td_cuda_trace trace;
    uint64_t cancel;

    if (!status)
        status = td_cuda_take_word(stream, place, sequence, &cancel, why, why_bytes);
    if (status)
        return status;
    stream->copies = stream->copies || brings || takes;
    last = takes || stream->last_out > td_stream_completed(&stream->base) ? stream->out : stream->stream;
    if (stream->copies) {
        trace_submit(&trace, submit, sequence);
        found = find_conflicts(stream, submit, &trace);
    }
    if (found.copies_after_records)
        status = wait_for_event(stream, stream->in, ran_of(stream, found.copies_after_records), why, why_bytes);
    if (!status && found.copies_after_copies)
        status = wait_for_event(stream, stream->in, done_of(stream, found.copies_after_copies), why, why_bytes);
    if (!status)
        status = td_cuda_after_callers(stream, brings ? stream->in : stream->stream, why, why_bytes);
    if (!status)
        status = enqueue_wait(stream, brings ? stream->in : stream->stream, submit, why, why_bytes);
    if (status)
        return status;

    status = enqueue_work(stream, submit, sequence, stream->at_hand, &trace, &found, cancel, why, why_bytes);
    if (!status && last == stream->out)
        status = wait_for_event(stream, last, stream->ran[sequence % TD_CUDA_TRACES], why, why_bytes);
    else if (!status && stream->last_out)
        status = wait_for_event(stream, last, done_of(stream, stream->last_out), why, why_bytes);
    if (!status && takes)
        status = copy_out(stream, submit, why, why_bytes);
    if (!status)
        status = launch_stamp(stream, last, place, true, why, why_bytes);
    if (status) { /* what is enqueued already is followed by the signal; the first error is the one to tell */
        if (stream->copies)
            join_streams(stream);
        enqueue_signal(stream, stream->stream, submit, signalled, NULL, 0);
    } else {
        status = enqueue_signal(stream, last, submit, signalled, why, why_bytes);
        if (!status)
            status = td_cuda_mark_done(stream, last, sequence, why, why_bytes);
        stream->last_out = last == stream->out ? sequence : 0;
        stream->base.submitted = sequence; /* its end stamp is on its way, whatever became of the signal */
    }
    return status && status != TANDEM_ERROR_LOST ? TANDEM_ERROR_DEVICE : status;
}

tandem_status td_cuda_prepare(td_stream *base, const td_plan *plan, char *why, size_t why_bytes)
{
    td_cuda_stream *stream = (td_cuda_stream *)base;
    tandem_status status = td_cu_enter(stream->device, why, why_bytes);

    if (status)
        return status;
    status = td_cuda_functions_of(stream, plan, &stream->at_hand, &stream->at_hand_room, why, why_bytes);
    td_cu_leave(stream->device);
    return status;
}

tandem_status td_cuda_enqueue(td_stream *base, const td_stream_submit *submit, uint64_t sequence, bool *signalled,
                              char *why, size_t why_bytes)
{
    td_cuda_stream *stream = (td_cuda_stream *)base;
    tandem_status status = td_cu_enter(stream->device, why, why_bytes);

    if (status)
        return status;
    status = enqueue(stream, submit, sequence, signalled, why, why_bytes);
    td_cu_leave(stream->device);
    return status;
}

/* --- What became of it --- */

static tandem_status as_device(tandem_status status)
{
    return status && status != TANDEM_ERROR_LOST ? TANDEM_ERROR_DEVICE : status;
}

tandem_status td_cuda_status(td_stream *base, char *why, size_t why_bytes)
{
    td_cuda_stream *stream = (td_cuda_stream *)base;
    tandem_status status = td_cu_enter(stream->device, why, why_bytes);
    td_cu_result result;

    if (status)
        return status;
    result = TD_CU(stream->device, cuStreamQuery, stream->stream);
    if (result != TD_CU_ERROR_NOT_READY)
        status = td_cu_check(stream->device, result, why, why_bytes, "the stream");
    td_cu_leave(stream->device);
    return as_device(status);
}

/* For a submit whose event could not be recorded. */
static tandem_status poll(td_cuda_stream *stream, uint64_t sequence)
{
    tandem_status status = TANDEM_OK;

    while (!status && td_stream_completed(&stream->base) < sequence) {
        td_sleep_ns(2 * LOOK_NS);
        status = td_cuda_status(&stream->base, NULL, 0);
    }
    return status;
}

/* Sleeps until the GPU interrupts, if nothing comes behind the submit: an event that was recorded with each of them would
 * interrupt for each, and cost 25 us of a processor. One thread at a time. */
static td_cu_result sleep_to_the_end(td_cuda_stream *stream, uint64_t sequence)
{
    const uint64_t last = atomic_load(&stream->last_done);
    td_cu_result result = TD_CU_ERROR_NOT_READY;

    if ((last & ~ENDS_ON_OUT) != sequence || atomic_exchange(&stream->tail_taken, true))
        return result;
    if (!TD_CU(stream->device, cuEventRecord, stream->tail, last & ENDS_ON_OUT ? stream->out : stream->stream) &&
        atomic_load(&stream->last_done) == last)
        result = TD_CU(stream->device, cuEventSynchronize, stream->tail);
    atomic_store(&stream->tail_taken, false);
    return result;
}

static tandem_status wait_for_done(td_cuda_stream *stream, uint64_t sequence)
{
    td_cu_device *device = stream->device;
    tandem_status status = td_cu_enter(device, NULL, 0);
    td_cu_result result = TD_CU_ERROR_NOT_READY;
    const uint64_t begin = td_now_ns();

    if (status)
        return status;
    while (result == TD_CU_ERROR_NOT_READY) {
        const uint64_t waited = td_now_ns() - begin;
        const uint64_t nap_ns = waited < 160000 ? 10000 : waited < 8000000 ? waited / 16 : 500000;

        result = TD_CU(device, cuEventQuery, done_of(stream, sequence));
        if (result == TD_CU_ERROR_NOT_READY && td_stream_completed(&stream->base) < sequence)
            result = sleep_to_the_end(stream, sequence);
        if (result == TD_CU_ERROR_NOT_READY)
            td_sleep_ns(nap_ns);
    }
    status = td_cu_check(device, result, NULL, 0, "waiting for a submit");
    td_cu_leave(device);
    return status;
}

tandem_status td_cuda_wait(td_stream *base, uint64_t sequence)
{
    td_cuda_stream *stream = (td_cuda_stream *)base;
    const uint64_t recorded =
        atomic_load_explicit(&stream->done_sequence[sequence % TD_STREAM_PENDING], memory_order_acquire);
    tandem_status status;

    if (recorded > sequence) /* so it is finished: they are used in turn */
        return TANDEM_OK;
    atomic_fetch_add(&stream->waiters, 1);
    status = recorded < sequence ? poll(stream, sequence) : wait_for_done(stream, sequence);
    atomic_fetch_sub(&stream->waiters, 1);
    return as_device(status);
}
