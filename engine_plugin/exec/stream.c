/* Streams of every kind: the bounds of what is pending, and what the device writes to host memory about it.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A stamp at the begin and one at the end of each submit are all that is written: between two records another would cost
 * more than a microsecond each. So of a submit that hangs one can tell whether it was begun, not how far it came.
 */
#include <string.h>

#include "engine_plugin/exec/stream.h"

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

td_target td_exec_target(const td_cu_info *gpu, bool on_stream)
{
    td_target target = on_stream ? td_target_for_stream(gpu->sm) : td_target_for_sm(gpu->sm);

    target.multiprocessors = gpu->multiprocessors;
    target.tensor_maps = on_stream && gpu->tensor_maps;
    return target;
}

static uint64_t load_word(const volatile uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void store_word(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

uint32_t td_stream_place(const td_stream *stream, uint64_t sequence)
{
    return atomic_load_explicit(&stream->places[sequence % TD_STREAM_NUMBERS], memory_order_relaxed);
}

td_params_stamp td_stream_stamp(const td_stream *stream, uint32_t place, bool end)
{
    const uint64_t address =
        stream->ring_address + offsetof(td_stream_ring, timestamps) + place * sizeof(td_stream_timestamps);
    const uint64_t over = end && stream->ops->fenced ? address + offsetof(td_stream_timestamps, over) : 0;

    return (td_params_stamp){.slot = (td_stamp *)(uintptr_t)address,
                             .completed = (uint64_t *)(uintptr_t)over,
                             .sequence = TD_STREAM_RAN,
                             .end = end};
}

uint64_t td_stream_control_address(const td_stream *stream, uint32_t place)
{
    return stream->ring_address + offsetof(td_stream_ring, controls) + place * sizeof(td_control);
}

/* One thread at a time: one that was held up in here would write times of long ago over those of a later submit. A place is
 * not taken again before its submit was seen to be over, so what is read before that is that submit's. The next submit may
 * have begun before one is over, where copies overlap. */
static void take_timestamps(td_stream *stream, uint64_t submitted)
{
    uint64_t completed = atomic_load_explicit(&stream->completed, memory_order_relaxed);

    for (uint64_t next = completed + 1; next <= submitted; next++) {
        const td_stream_timestamps *at = &stream->ring->timestamps[td_stream_place(stream, next)];
        td_stamp *times = &stream->times[next % TD_STREAM_TIMES];
        const bool over = load_word(stream->ops->fenced ? &at->over : &at->stamp.sequence);
        const bool begun = load_word(&at->stamp.begun);
        const uint64_t begin_ns = load_word(&at->stamp.begin_ns), end_ns = load_word(&at->stamp.end_ns);

        if (!begun)
            return;
        store_word(&times->begin_ns, begin_ns);
        store_word(&times->begun, next);
        if (!over || completed != next - 1)
            continue;
        td_stream_mend_clock(stream, atomic_load_explicit(&stream->enqueued_ns[next % TD_STREAM_TIMES], memory_order_relaxed),
                             begin_ns, end_ns, td_now_ns());
        store_word(&times->end_ns, end_ns);
        store_word(&times->sequence, next);
        completed = next;
        atomic_store_explicit(&stream->completed, completed, memory_order_release);
    }
}

/* Any thread, several at once. */
static void look(td_stream *stream)
{
    const uint64_t submitted = atomic_load_explicit(&stream->submitted, memory_order_acquire);

    if (atomic_load_explicit(&stream->completed, memory_order_acquire) >= submitted)
        return;
    pthread_mutex_lock(&stream->look_lock);
    take_timestamps(stream, submitted);
    pthread_mutex_unlock(&stream->look_lock);
}

static void clear_place(td_stream *stream, uint32_t place)
{
    td_stream_timestamps *at = &stream->ring->timestamps[place];
    uint32_t *words = (uint32_t *)&stream->ring->controls[place];

    store_word(&at->stamp.sequence, 0);
    store_word(&at->stamp.begun, 0);
    store_word(&at->stamp.begin_ns, 0);
    store_word(&at->stamp.end_ns, 0);
    store_word(&at->over, 0);
    for (size_t i = 0; i < sizeof(td_control) / sizeof *words; i++)
        __atomic_store_n(&words[i], 0, __ATOMIC_RELAXED);
}

static uint32_t commands_of(uint32_t records)
{
    return records + TD_SUBMIT_COMMANDS;
}

/* Of submits behind the last that is known to be over; those that went as one graph are counted as if they had not. */
static uint32_t commands_since(const td_stream *stream, uint64_t completed)
{
    uint32_t commands = 0;

    for (uint64_t i = completed + 1; i <= stream->submitted; i++)
        commands += commands_of(atomic_load_explicit(&stream->record_counts[i % TD_STREAM_NUMBERS], memory_order_relaxed));
    return commands;
}

tandem_status td_stream_prepare(td_stream *stream, const td_plan *plan, char *why, size_t why_bytes)
{
    const tandem_status status = td_plan_check(plan, why, why_bytes);

    return status == TANDEM_OK ? stream->ops->prepare(stream, plan, why, why_bytes) : status;
}

tandem_status td_stream_enqueue(td_stream *stream, const td_stream_submit *submit, uint64_t *sequence, bool *signalled,
                                char *why, size_t why_bytes)
{
    const uint64_t next = stream->submitted + 1;
    const uint32_t slot = submit->slot;
    tandem_status status;
    uint64_t completed;
    uint32_t place;
    bool by_slot;

    *signalled = false;
    if (submit->copy_in_count > TD_STREAM_COPIES || submit->copy_out_count > TD_STREAM_COPIES)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%u copies in, %u out: at most %d each",
                       (unsigned)submit->copy_in_count, (unsigned)submit->copy_out_count, TD_STREAM_COPIES);
    if (slot >= TD_STREAM_PENDING)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "slot %u: there are %d", (unsigned)slot, TD_STREAM_PENDING);
    status = td_plan_check(submit->plan, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    by_slot = stream->ops->by_slot && stream->ops->by_slot(stream, submit);
    completed = td_stream_completed(stream); /* behind that: what it saw to be over is so here, too */
    if (by_slot && stream->last[slot] > completed)
        return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "the last submit of slot %u is pending", (unsigned)slot);
    if (next - completed > TD_STREAM_PENDING)
        return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "%d submits are pending on the stream", TD_STREAM_PENDING);
    const uint32_t pending = by_slot ? 0 : commands_since(stream, completed);
    if (pending && pending + commands_of(submit->plan->record_count) > TD_STREAM_COMMANDS)
        return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "%u records are too many while %u commands are pending",
                       (unsigned)submit->plan->record_count, (unsigned)pending);
    place = by_slot ? TD_STREAM_NUMBERS + slot : next % TD_STREAM_NUMBERS;
    atomic_store_explicit(&stream->places[next % TD_STREAM_NUMBERS], place, memory_order_relaxed);
    atomic_store_explicit(&stream->record_counts[next % TD_STREAM_NUMBERS], submit->plan->record_count,
                          memory_order_relaxed);
    clear_place(stream, place);
    atomic_store_explicit(&stream->enqueued_ns[next % TD_STREAM_TIMES], td_now_ns(), memory_order_relaxed);
    range_push(submit->label);
    status = stream->ops->enqueue(stream, submit, next, signalled, why, why_bytes);
    range_pop(submit->label);
    if (!status)
        *sequence = stream->submitted = next;
    if (by_slot && stream->submitted == next)
        stream->last[slot] = next;
    return status;
}

uint64_t td_stream_completed(const td_stream *stream)
{
    look((td_stream *)(uintptr_t)stream);
    return atomic_load_explicit(&stream->completed, memory_order_acquire);
}

tandem_status td_stream_wait(td_stream *stream, uint64_t sequence)
{
    return stream->ops->wait(stream, sequence);
}

td_control *td_stream_control(td_stream *stream, uint64_t sequence)
{
    return &stream->ring->controls[td_stream_place(stream, sequence)];
}

void td_stream_cancel(td_stream *stream, uint64_t sequence)
{
    if (sequence <= td_stream_completed(stream))
        return;
    __atomic_store_n(&td_stream_control(stream, sequence)->cancel, 1, __ATOMIC_SEQ_CST);
    if (stream->ops->cancel)
        stream->ops->cancel(stream, sequence);
}

tandem_status td_stream_release(td_stream *stream, const td_cu_timeline *timeline, uint64_t value, char *why,
                                size_t why_bytes)
{
    if (!stream->ops->release)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "this stream cannot signal in another's place");
    return stream->ops->release(stream, timeline, value, why, why_bytes);
}

bool td_stream_begun(const td_stream *stream, uint64_t sequence)
{
    return sequence <= td_stream_completed(stream) ||
           load_word(&stream->times[sequence % TD_STREAM_TIMES].begun) >= sequence;
}

uint32_t td_stream_progress(const td_stream *stream, uint64_t sequence)
{
    if (sequence > td_stream_completed(stream))
        return 0;
    return atomic_load_explicit(&stream->record_counts[sequence % TD_STREAM_NUMBERS], memory_order_relaxed);
}

bool td_stream_times(const td_stream *stream, uint64_t sequence, uint64_t *begin_ns, uint64_t *end_ns)
{
    const td_stamp *slot = &stream->times[sequence % TD_STREAM_TIMES];
    uint64_t begin, end, offset;

    if (!sequence || sequence > td_stream_completed(stream) || load_word(&slot->sequence) != sequence ||
        load_word(&slot->begun) != sequence)
        return false;
    begin = load_word(&slot->begin_ns);
    end = load_word(&slot->end_ns);
    if (load_word(&slot->sequence) != sequence || load_word(&slot->begun) != sequence) /* it was taken again meanwhile */
        return false;
    offset = (uint64_t)td_stream_clock_offset_ns(stream); /* as it is since that submit was seen to be over */
    *begin_ns = begin - offset;
    *end_ns = end - offset;
    return true;
}

void td_stream_mend_clock(td_stream *stream, uint64_t since_ns, uint64_t begin_ns, uint64_t end_ns, uint64_t until_ns)
{
    const int64_t least = (int64_t)(end_ns - until_ns), most = (int64_t)(begin_ns - since_ns);
    const int64_t offset = td_stream_clock_offset_ns(stream);

    if (begin_ns > end_ns || least > most) /* not of one run */
        return;
    if (offset < least)
        td_stream_set_clock_offset_ns(stream, least);
    else if (offset > most)
        td_stream_set_clock_offset_ns(stream, most);
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
    const tandem_status status = stream->ops->status(stream, why, why_bytes);

    return status && status != TANDEM_ERROR_LOST ? TANDEM_ERROR_DEVICE : status;
}

bool td_stream_drain(td_stream *stream, uint64_t timeout_ns)
{
    return stream->ops->drain(stream, timeout_ns);
}

void td_stream_destroy(td_stream **pointer, uint64_t timeout_ns)
{
    td_stream *stream = *pointer;
    bool drained;

    *pointer = NULL;
    if (!stream)
        return;
    drained = td_stream_drain(stream, timeout_ns);
    if (!drained)
        td_logf(&stream->log, TD_LOG_WARN, "a stream is left behind: submit %llu of %llu is not finished after %llu ms",
                (unsigned long long)td_stream_completed(stream) + 1, (unsigned long long)stream->submitted,
                (unsigned long long)(timeout_ns / 1000000));
    stream->ops->destroy(stream, drained);
}
