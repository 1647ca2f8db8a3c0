/* Executor `vk_inline`: plans as CUDA kernels within Vulkan command buffers, by VK_NVX_binary_import.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A plan is: barrier, stamp, records with barriers between those that depend on each other, barrier, stamp. To Vulkan a
 * launch is a dispatch: its accesses are shader reads and writes in COMPUTE_SHADER, and it needs the same barriers.
 *
 * A submit is one vkQueueSubmit() of one command buffer, which its slot keeps: nothing in there changes while kernels,
 * parameters and addresses do not, so that it is recorded once. What would change with a submit's number belongs to the
 * slot instead: stamps, which are cleared before and looked for, control, and cancel word.
 *
 * Each stamp runs beside what comes behind its barrier. Another barrier right behind the last stamp would wait for it, 2.2
 * us on an H200, and compute work needs none: td_vk_record_acquire() knows that. (Less would be an event, 1.1 us, without
 * the time, or a timestamp query, 1.1 us, and 5 to reset it each time; vkCmdUpdateBuffer with its barrier is 3.3 us.)
 *
 * The driver checks nothing, and a kernel that asks for more than an SM of the graphics context has takes the device
 * with it: so every record passes td_inline_check_record() before anything is recorded, and the first plan of a device, at
 * creation, is one with known results.
 */
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/exec/vk_inline.h"
#include "interop/os/memory.h"
#include "kernels/self_test.h"

enum {
    CLOCK_TRIES = 12, /* more, for a while, where other programs keep the GPU from answering at once */
    CLOCK_NEAR_NS = 500000,
    CLOCK_MOST_NS = 50000000,
    LOOK_NS = 50000, /* between two looks at what wakes nobody */
};
static const uint64_t test_limit_ns = 2000000000u;

/* Submitting. */

static tandem_status make_commands(td_inline_stream *s, td_inline_commands *c, char *why, size_t why_bytes)
{
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .queueFamilyIndex = s->vk->queue_family};
    VkCommandBufferAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                            .commandBufferCount = 1};
    VkResult result;

    if (!c->pool) {
        result = s->fn->CreateCommandPool(s->vk->device, &pool, NULL, &c->pool);
        if (result != VK_SUCCESS) {
            c->pool = VK_NULL_HANDLE;
            return td_inline_fail(s, result, "vkCreateCommandPool", why, why_bytes);
        }
    }
    allocate.commandPool = c->pool;
    result = s->fn->AllocateCommandBuffers(s->vk->device, &allocate, &c->buffer);
    if (result == VK_SUCCESS)
        return TANDEM_OK;
    c->buffer = NULL;
    return td_inline_fail(s, result, "vkAllocateCommandBuffers", why, why_bytes);
}

/* The one that holds what is wanted, or else, in *oldest, the one that has been free for longest; NULL: none. */
static td_inline_commands *find_commands(td_inline_stream *s, td_inline_commands all[TD_INLINE_BUFFERS], td_inline_commands **oldest)
{
    td_inline_commands *fits = NULL;

    *oldest = NULL;
    for (uint32_t i = 0; i < TD_INLINE_BUFFERS; i++) {
        if (all[i].value > s->over)
            continue;
        if (all[i].whole && td_inline_is_same(&all[i].holds, &s->wanted))
            fits = &all[i];
        if (!*oldest || all[i].value < (*oldest)->value)
            *oldest = &all[i];
    }
    return fits;
}

/* A command buffer of the slot's that is no longer in use. */
static tandem_status take_commands(td_inline_stream *s, uint32_t slot, td_inline_commands **out, char *why,
                                   size_t why_bytes)
{
    td_inline_commands *all = s->commands[slot], *oldest = NULL;
    uint32_t made = 0;
    uint64_t value = 0;
    VkResult result;

    while (made < TD_INLINE_BUFFERS && all[made].buffer)
        made++;
    if (made < TD_INLINE_BUFFERS) {
        *out = &all[made];
        return make_commands(s, *out, why, why_bytes);
    }
    *out = find_commands(s, all, &oldest);
    if (!*out) {
        result = s->fn->GetSemaphoreCounterValue(s->vk->device, s->timeline, &value);
        if (result != VK_SUCCESS)
            return td_inline_fail(s, result, "vkGetSemaphoreCounterValue", why, why_bytes);
        s->over = value;
        *out = find_commands(s, all, &oldest);
    }
    *out = *out ? *out : oldest;
    if (*out)
        return TANDEM_OK;
    return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "the commands of slot %u are still in use", (unsigned)slot);
}

/* What is wanted, which is what *c holds then: s->wanted is not to be read any more. */
static tandem_status record_commands(td_inline_stream *s, uint32_t place, td_inline_commands *c, char *why, size_t why_bytes)
{
    const VkCommandBufferBeginInfo again = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    VkResult result;

    c->whole = false;
    if (c->begun) {
        result = s->fn->ResetCommandPool(s->vk->device, c->pool, 0);
        if (result != VK_SUCCESS)
            return td_inline_fail(s, result, "vkResetCommandPool", why, why_bytes);
    }
    c->begun = true;
    result = s->fn->BeginCommandBuffer(c->buffer, &again);
    if (result != VK_SUCCESS)
        return td_inline_fail(s, result, "vkBeginCommandBuffer", why, why_bytes);
    td_inline_record_wanted(s, c->buffer, td_stream_stamp(&s->base, place, false), td_stream_stamp(&s->base, place, true));
    result = s->fn->EndCommandBuffer(c->buffer);
    if (result != VK_SUCCESS)
        return td_inline_fail(s, result, "vkEndCommandBuffer", why, why_bytes);
    const td_inline_recording before = c->holds; /* its memory is for the next one that is wanted */

    c->holds = s->wanted;
    s->wanted = before;
    c->whole = true;
    return TANDEM_OK;
}

tandem_status td_inline_submit(td_inline_stream *s, const VkSubmitInfo *info, char *why, size_t why_bytes)
{
    VkResult result;

    if (s->desc.lock)
        s->desc.lock(s->desc.user);
    result = s->fn->QueueSubmit(s->desc.queue, 1, info, VK_NULL_HANDLE);
    if (s->desc.unlock)
        s->desc.unlock(s->desc.user);
    return result == VK_SUCCESS ? TANDEM_OK : td_inline_fail(s, result, "vkQueueSubmit", why, why_bytes);
}

/* One submit with one batch: wait, commands, signals. The job's point is the first of these, somebody waits for it. */
static tandem_status submit_commands(td_inline_stream *s, const td_stream_submit *submit, uint64_t sequence,
                                     td_inline_commands *c, char *why, size_t why_bytes)
{
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
    const uint64_t value = s->before + sequence;
    VkSemaphore signals[2];
    uint64_t values[2];
    uint32_t count = 0;
    const VkTimelineSemaphoreSubmitInfo points = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                  .waitSemaphoreValueCount = submit->wait != NULL,
                                                  .pWaitSemaphoreValues = submit->wait ? &submit->wait->value : NULL,
                                                  .signalSemaphoreValueCount = submit->signal ? 2 : 1,
                                                  .pSignalSemaphoreValues = values};
    const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                               .pNext = &points,
                               .waitSemaphoreCount = submit->wait != NULL,
                               .pWaitSemaphores = submit->wait ? &submit->wait->semaphore : NULL,
                               .pWaitDstStageMask = &stage,
                               .commandBufferCount = 1,
                               .pCommandBuffers = &c->buffer,
                               .signalSemaphoreCount = submit->signal ? 2 : 1,
                               .pSignalSemaphores = signals};
    tandem_status status;

    if (submit->signal) {
        signals[count] = submit->signal->semaphore;
        values[count++] = submit->signal->value;
    }
    signals[count] = s->timeline;
    values[count] = value;
    status = td_inline_submit(s, &info, why, why_bytes);
    if (status == TANDEM_OK)
        c->value = value;
    return status;
}

static tandem_status enqueue(td_stream *stream, const td_stream_submit *submit, uint64_t sequence, bool *signalled,
                             char *why, size_t why_bytes)
{
    td_inline_stream *s = (td_inline_stream *)stream;
    const uint32_t slot = submit->slot, place = td_stream_place(stream, sequence);
    tandem_status status = atomic_load(&s->broken);
    td_inline_commands *c = NULL;

    if (status != TANDEM_OK)
        return td_fail(why, why_bytes, status, "the device failed earlier");
    if (submit->copy_in_count || submit->copy_out_count)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "copies go through CUDA streams only");
    status = td_inline_want(s, submit, td_stream_control_address(stream, place), slot, why, why_bytes);
    if (status == TANDEM_OK)
        status = take_commands(s, slot, &c, why, why_bytes);
    if (status == TANDEM_OK && !(c->whole && td_inline_is_same(&c->holds, &s->wanted)))
        status = record_commands(s, place, c, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    if (atomic_exchange(&s->word_set[slot], false))
        td_inline_set_word(s, slot, 0);
    status = submit_commands(s, submit, sequence, c, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    *signalled = submit->signal != NULL;
    return TANDEM_OK;
}

static tandem_status wait_until(td_inline_stream *s, uint64_t sequence, uint64_t timeout_ns)
{
    const tandem_status broken = atomic_load(&s->broken);
    tandem_status status;

    if (broken != TANDEM_OK)
        return broken;
    status = td_vk_timeline_wait(s->vk, s->timeline, s->before + sequence, timeout_ns);
    if (status == TANDEM_ERROR_LOST)
        atomic_store(&s->broken, status);
    return status;
}

static tandem_status wait_for(td_stream *stream, uint64_t sequence)
{
    tandem_status status;

    do
        status = wait_until((td_inline_stream *)stream, sequence, 1000000000u);
    while (status == TANDEM_ERROR_BUSY);
    return status;
}

static tandem_status status_of(td_stream *stream, char *why, size_t why_bytes)
{
    td_inline_stream *s = (td_inline_stream *)stream;
    const tandem_status broken = atomic_load(&s->broken);
    uint64_t value;
    VkResult result;

    if (broken != TANDEM_OK)
        return td_fail(why, why_bytes, broken, "the device failed earlier");
    result = s->fn->GetSemaphoreCounterValue(s->vk->device, s->timeline, &value);
    return result == VK_SUCCESS ? TANDEM_OK : td_inline_fail(s, result, "vkGetSemaphoreCounterValue", why, why_bytes);
}

/* OK: all submits up to `sequence` are over; LOST: and so is everything else; BUSY: not within timeout_ns, whatever the
 * driver says about it. */
static tandem_status outlast(td_inline_stream *s, uint64_t sequence, uint64_t timeout_ns)
{
    const uint64_t begin_ns = td_now_ns();

    for (;;) {
        const uint64_t waited_ns = td_now_ns() - begin_ns, left_ns = waited_ns < timeout_ns ? timeout_ns - waited_ns : 0;
        const tandem_status status = wait_until(s, sequence, left_ns);

        if (status == TANDEM_OK || status == TANDEM_ERROR_LOST)
            return status;
        if (!left_ns)
            return TANDEM_ERROR_BUSY;
        td_sleep_ns(LOOK_NS);
    }
}

void td_inline_sync(td_stream *stream)
{
    td_inline_stream *s = (td_inline_stream *)stream;
    const uint64_t completed = td_stream_completed(stream);

    if (completed)
        outlast(s, completed, test_limit_ns);
}

static bool drain(td_stream *stream, uint64_t timeout_ns)
{
    td_inline_stream *s = (td_inline_stream *)stream;

    /* Nothing runs on a device that is lost. */
    return !s->timeline || outlast(s, stream->submitted, timeout_ns) != TANDEM_ERROR_BUSY;
}

static void free_test(td_inline_stream *s);

static void free_all(td_inline_stream *s)
{
    const VkDevice device = s->vk->device;

    for (uint32_t i = 0; i < TD_STREAM_PENDING; i++)
        for (uint32_t j = 0; j < TD_INLINE_BUFFERS; j++) {
            if (s->commands[i][j].pool)
                s->fn->DestroyCommandPool(device, s->commands[i][j].pool, NULL);
            td_plan_free(&s->commands[i][j].holds.bound);
        }
    td_plan_free(&s->wanted.bound);
    td_inline_free_kernels(s);
    free_test(s);
    td_vk_timeline_destroy(s->vk, &s->timeline);
    td_vk_mem_free(s->vk, &s->memory);
    td_vk_mem_free(s->vk, &s->cancel_words);
    free(s);
}

static bool end_left(td_vk_left *left)
{
    td_inline_stream *s = (td_inline_stream *)((char *)left - offsetof(td_inline_stream, left));

    if (!drain(&s->base, 0))
        return false;
    free_all(s);
    return true;
}

static void destroy(td_stream *stream, bool drained)
{
    td_inline_stream *s = (td_inline_stream *)stream;

    if (drained) {
        free_all(s);
    } else {
        s->left.end = end_left;
        td_vk_leave(s->vk, &s->left);
    }
}

static void cancel(td_stream *stream, uint64_t sequence)
{
    td_inline_stream *s = (td_inline_stream *)stream;
    const uint32_t slot = td_stream_place(stream, sequence) - TD_STREAM_NUMBERS;

    atomic_store(&s->word_set[slot], true);
    td_inline_set_word(s, slot, 1);
}

/* Each: its slot's commands hold the place. */
static bool by_slot(const td_stream *stream, const td_stream_submit *submit)
{
    (void)stream;
    (void)submit;
    return true;
}

static tandem_status prepare(td_stream *stream, const td_plan *plan, char *why, size_t why_bytes)
{
    td_inline_stream *s = (td_inline_stream *)stream;
    tandem_status status = TANDEM_OK;

    for (uint32_t i = 0; i < plan->record_count && status == TANDEM_OK; i++) {
        td_inline_function *found;

        status = td_inline_check_record(s, &plan->records[i], &found, why, why_bytes);
        if (status == TANDEM_OK && !found->handle)
            status = td_inline_load(s, found->image, why, why_bytes);
    }
    return status;
}

static const td_stream_ops inline_ops = {.prepare = prepare,
                                         .enqueue = enqueue,
                                         .by_slot = by_slot,
                                         .wait = wait_for,
                                         .cancel = cancel,
                                         .status = status_of,
                                         .drain = drain,
                                         .destroy = destroy};

/* Creation. */

/* One submit at creation; it is waited for. */
static tandem_status run(td_inline_stream *s, const td_stream_submit *submit, char *why, size_t why_bytes)
{
    uint64_t sequence = 0;
    bool signalled;
    tandem_status status = td_stream_enqueue(&s->base, submit, &sequence, &signalled, why, why_bytes);

    if (status != TANDEM_OK)
        return status;
    status = outlast(s, sequence, test_limit_ns);
    if (status == TANDEM_ERROR_BUSY)
        return td_fail(why, why_bytes, status, "kernels in a command buffer did not end within %u ms",
                       (unsigned)(test_limit_ns / 1000000));
    if (status != TANDEM_OK)
        return td_fail(why, why_bytes, status, "kernels in a command buffer: the device is lost");
    if (td_stream_completed(&s->base) != sequence)
        return td_fail(why, why_bytes, TANDEM_ERROR_DEVICE,
                       "kernels in a command buffer ended, but the stamp %llu says %llu", (unsigned long long)sequence,
                       (unsigned long long)td_stream_completed(&s->base));
    return TANDEM_OK;
}

struct td_inline_self_test {
    td_plan plan;
    unsigned char *data, *scratch; /* of the CPU's */
    td_vk_mem device_data, device_scratch;
};

/* A small job, several records with barriers between them, against the same records on the CPU. */
static tandem_status run_self_test(td_inline_stream *s, td_inline_self_test *t, char *why, size_t why_bytes)
{
    const VkBufferUsageFlags usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT;
    uint64_t views[TD_MAX_VIEWS];
    tandem_status status;

    status = td_self_test_plan(s->desc.sm, &t->plan, why, why_bytes);
    if (status == TANDEM_OK)
        status = td_vk_mem_create_mapped(s->vk, TD_SELF_TEST_BYTES, usage, &t->device_data, why, why_bytes);
    if (status == TANDEM_OK)
        status = td_vk_mem_create_device(s->vk, t->plan.scratch_bytes, usage, &t->device_scratch, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    t->data = td_aligned_alloc(256, TD_SELF_TEST_BYTES);
    t->scratch = td_aligned_alloc(256, (size_t)td_align_up(t->plan.scratch_bytes, 256));
    if (!t->data || !t->scratch)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no host memory for a test");
    td_self_test_fill(t->data, (uint32_t)td_now_ns()); /* other data than an earlier test may have left in the same memory */
    memcpy(t->device_data.host, t->data, TD_SELF_TEST_BYTES);
    td_self_test_views((uintptr_t)t->data, views);
    status = td_exec_cpu_run(&t->plan, views, (uintptr_t)t->scratch, 1, NULL);
    if (status != TANDEM_OK)
        return td_fail(why, why_bytes, status, "the CPU cannot compute what the self-test should give");
    td_self_test_views(t->device_data.address, views);
    status = run(s,
                 &(td_stream_submit){.plan = &t->plan,
                                     .views = views,
                                     .scratch = t->device_scratch.address,
                                     .label = "tandem self-test"},
                 why, why_bytes);
    return status == TANDEM_OK ? td_self_test_compare(t->data, t->device_data.host, why, why_bytes) : status;
}

static void free_test(td_inline_stream *s)
{
    if (!s->test)
        return;
    td_vk_mem_free(s->vk, &s->test->device_data);
    td_vk_mem_free(s->vk, &s->test->device_scratch);
    td_plan_free(&s->test->plan);
    td_aligned_free(s->test->data);
    td_aligned_free(s->test->scratch);
    free(s->test);
    s->test = NULL;
}

static tandem_status test_kernels(td_inline_stream *s, char *why, size_t why_bytes)
{
    tandem_status status;

    s->test = calloc(1, sizeof *s->test);
    if (!s->test)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no host memory for a test");
    status = run_self_test(s, s->test, why, why_bytes);
    if (status != TANDEM_ERROR_BUSY) /* else the device may still use it */
        free_test(s);
    return status;
}

/* The GPU's clock lies between the host's before the submit and after its stamp was seen: intervals, intersected. */
static tandem_status measure_clock(td_inline_stream *s, char *why, size_t why_bytes)
{
    static const td_plan nothing;
    const uint64_t begun = td_now_ns();
    int64_t low = INT64_MIN, high = INT64_MAX;

    for (int i = 0; i < CLOCK_TRIES || (high - low > CLOCK_NEAR_NS && td_now_ns() - begun < CLOCK_MOST_NS); i++) {
        const td_stream_submit submit = {.plan = &nothing, .label = "tandem clock"};
        const uint64_t begin = td_now_ns();
        const tandem_status status = run(s, &submit, why, why_bytes);
        const uint64_t end = td_now_ns();
        int64_t gpu;

        if (status != TANDEM_OK)
            return status;
        gpu = (int64_t)s->base.times[s->base.submitted % TD_STREAM_TIMES].end_ns;
        low = gpu - (int64_t)end > low ? gpu - (int64_t)end : low;
        high = gpu - (int64_t)begin < high ? gpu - (int64_t)begin : high;
    }
    atomic_store(&s->base.clock_offset_ns, low + (high - low) / 2);
    return TANDEM_OK;
}

tandem_status td_stream_create_inline(const td_inline_desc *desc, const td_log *log, td_stream **out, char *why,
                                      size_t why_bytes)
{
    td_inline_stream *s = calloc(1, sizeof *s);
    td_stream *stream = (td_stream *)s;
    tandem_status status;

    *out = NULL;
    if (!s)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no host memory for a stream");
    s->base.ops = &inline_ops;
    s->base.look_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    if (log)
        s->base.log = *log;
    s->desc = *desc;
    s->vk = desc->vk;
    s->fn = &desc->vk->fn;
    atomic_init(&s->broken, TANDEM_OK);
    status = td_vk_address_memory(s->vk, true, why, why_bytes);
    if (status == TANDEM_OK && !desc->queue)
        status = td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                         "no queue was given for the self-test and for submits");
    if (status == TANDEM_OK) {
        s->cubin = td_cubin_for_sm(desc->sm, why, why_bytes);
        if (!s->cubin)
            status = TANDEM_ERROR_UNSUPPORTED;
        else if (s->cubin->ptx)
            status = td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                             "for sm_%u there is only PTX, of which nobody knows what it will need",
                             (unsigned)desc->sm);
    }
    if (status == TANDEM_OK)
        status = td_vk_mem_create_mapped(s->vk, sizeof(td_inline_ring), VK_BUFFER_USAGE_STORAGE_BUFFER_BIT, &s->memory, why,
                                         why_bytes);
    if (status == TANDEM_OK) {
        s->ring = s->memory.host;
        memset(s->ring, 0, sizeof *s->ring);
        s->base.ring = &s->ring->submits;
        s->base.ring_address = s->memory.address + offsetof(td_inline_ring, submits);
        status = td_vk_mem_create_near(s->vk, TD_INLINE_WORDS * sizeof(uint32_t), VK_BUFFER_USAGE_STORAGE_BUFFER_BIT,
                                       &s->cancel_words, why, why_bytes);
        if (status == TANDEM_ERROR_UNSUPPORTED)
            status = TANDEM_OK;
    }
    if (status == TANDEM_OK) {
        for (uint32_t i = 0; i < TD_INLINE_WORDS; i++)
            td_inline_set_word(s, i, 0);
        status = td_vk_timeline_create(s->vk, 0, false, &s->timeline, why, why_bytes);
    }
    if (status == TANDEM_OK)
        status = td_inline_load_kernels(s, why, why_bytes);
    if (status == TANDEM_OK)
        status = test_kernels(s, why, why_bytes);
    if (status == TANDEM_OK)
        status = measure_clock(s, why, why_bytes);
    if (status != TANDEM_OK)
        goto fail;
    s->before = s->base.submitted;
    s->base.submitted = s->base.completed = 0;
    memset(s->base.last, 0, sizeof s->base.last);
    memset(s->base.times, 0, sizeof s->base.times);
    memset(s->ring, 0, sizeof *s->ring);
    *out = stream;
    return TANDEM_OK;

fail:
    td_vk_address_memory(s->vk, false, NULL, 0);
    td_stream_destroy(&stream, status == TANDEM_ERROR_BUSY ? 0 : test_limit_ns);
    return status == TANDEM_ERROR_BUSY || status == TANDEM_ERROR_DEVICE ? TANDEM_ERROR_UNSUPPORTED : status;
}
