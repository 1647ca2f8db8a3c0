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
 * with it: so every record passes check_record() before anything is recorded, and the first plan of a device, at
 * creation, is one with known results.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine_plugin/exec/stream.h"
#include "interop/vk/table.h"
#include "kernels/self_test.h"

enum {
    /* Measured on sm_90, driver 580: 48 KB for all blocks of an SM, of which each takes 1 KB for the driver. */
    SHARED_BYTES = 47 * 1024,
    LOCAL_BYTES = 12 * 1024, /* the most that was tried */
    SM_REGISTERS = 65536,
    WARP = 32,
    WARP_REGISTERS = 256, /* a warp's are handed out in these steps */
    SM_QUARTERS = 4,      /* each has a quarter of the registers, and of a block every fourth warp */
    BLOCK_THREADS = 1024,
    GRID_YZ = 65535,
    CLOCK_TRIES = 12, /* more, for a while, where other programs keep the GPU from answering at once */
    CLOCK_NEAR_NS = 500000,
    CLOCK_MOST_NS = 50000000,
    /* Of a slot, made one a submit: for as many combinations of what its plans are given, and as the last ones may be pending
     * for a moment after their stamps were seen, longer where processes share the device. */
    BUFFERS = 4,
    STAGING_BYTES = 8 << 20,
};
#define GRID_X 0x7fffffffu
static const uint64_t test_limit_ns = 2000000000u, upload_limit_ns = 10000000000u;

typedef struct function {
    const td_cubin_entry *entry;
    uint32_t image;
    VkCuFunctionNVX handle; /* none: its image is not loaded */
} function;


/* What a command buffer holds between its stamps. */
typedef struct recording {
    const char *label;
    VkQueryPool queries;
    uint32_t query;
    td_plan bound; /* its records have the parameters that their kernels get */
    VkCuFunctionNVX *handles; /* of each record, in that plan's memory */
} recording;

/* A command buffer of a slot's. It is submitted again as it is while the slot's plans ask for what it holds. */
typedef struct slot_commands {
    VkCommandPool pool;
    VkCommandBuffer buffer;
    recording holds;
    bool begun, whole; /* since its pool was reset; and ended, so that it may be submitted */
    uint64_t value;    /* of the timeline, once the buffer is free again */
} slot_commands;

/* Host memory that the device writes; with the stamps of recorded plans, by number % TD_INLINE_RECORDED. */
typedef struct ring {
    td_stream_ring submits;
    td_stamp stamps[TD_INLINE_RECORDED];
} ring;

/* Cancel words, that each block reads: in the device's memory, since reads of the host's cross the bus one by one. Of
 * slots, then of recorded plans. */
enum { WORDS = TD_STREAM_PENDING + TD_INLINE_RECORDED };

typedef struct self_test self_test;

typedef struct inline_stream {
    td_stream base;
    td_vk_left left; /* where the device hangs */
    td_inline_desc desc;
    td_vk *vk;
    const td_vk_table *fn;
    const td_cubin *cubin;
    VkCuModuleNVX *modules; /* of its images; none: not loaded */
    function *functions;    /* of all its images, one image behind the other, that fit into a command buffer */
    uint32_t function_count;
    VkCuFunctionNVX stamp;
    td_vk_mem memory; /* of the ring */
    ring *ring;
    td_vk_mem words; /* none where the host cannot map the device's memory: nothing is cancelled then */
    VkSemaphore timeline; /* its value is `before` + the number of the last finished submit */
    uint64_t before;
    atomic_int broken; /* tandem_status, sticky */
    uint64_t recorded; /* the last number */
    /* Of recorded plans, by number % TD_INLINE_RECORDED: the number, and when its run began that was last seen. */
    uint64_t numbers[TD_INLINE_RECORDED], cancelled[TD_INLINE_RECORDED], seen_ns[TD_INLINE_RECORDED];
    slot_commands commands[TD_STREAM_PENDING][BUFFERS];
    atomic_bool word_set[TD_STREAM_PENDING];
    uint64_t over;    /* what the timeline's value has been seen to be */
    recording wanted; /* by the call at hand */
    self_test *test; /* while it runs */
} inline_stream;

static uint64_t load_word(const volatile uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static tandem_status vk_fail(inline_stream *s, VkResult result, const char *call, char *why, size_t why_bytes)
{
    const tandem_status status = td_vk_result(result, call, why, why_bytes);

    if (status == TANDEM_ERROR_LOST)
        atomic_store(&s->broken, status);
    return status;
}

/* Limits. */

static function *find_function(const inline_stream *s, const char *entry)
{
    for (uint32_t i = 0; i < s->function_count; i++)
        if (s->functions[i].entry->entry == entry || !strcmp(s->functions[i].entry->entry, entry))
            return &s->functions[i];
    return NULL;
}

static tandem_status check_record(const inline_stream *s, const td_record *record, function **out, char *why,
                                  size_t why_bytes)
{
    const char *entry = record->kernel->entry;
    function *f = *out = entry ? find_function(s, entry) : NULL;
    uint64_t threads, warps, registers, shared;

#define REFUSE(...) return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, __VA_ARGS__)
    if (!entry)
        REFUSE("the kernel %s has no GPU version", record->kernel->name);
    if (!f)
        REFUSE("the kernel %s is not among those of sm_%u that fit into a command buffer", entry,
               (unsigned)s->cubin->sm);
    if (record->flags & TD_RECORD_CLUSTER)
        REFUSE("the kernel %s needs thread-block clusters, which a command buffer does not have", entry);
    if (record->flags & TD_RECORD_TENSOR_MAPS)
        REFUSE("the kernel %s needs tensor maps, which only CUDA makes", entry);
    for (uint32_t i = 0; i < record->reloc_count; i++)
        if (record->relocs[i].kind != TD_RELOC_POINTER)
            REFUSE("the kernel %s needs tensor maps, which only CUDA makes", entry);
    shared = (uint64_t)f->entry->shared_bytes + record->shared_bytes;
    if (shared > SHARED_BYTES)
        REFUSE("the kernel %s needs %llu bytes of shared memory; in a command buffer there are %d", entry,
               (unsigned long long)shared, SHARED_BYTES);
    threads = (uint64_t)record->block[0] * record->block[1] * record->block[2];
    if (!threads || threads > BLOCK_THREADS)
        REFUSE("the kernel %s has blocks of %llu threads; they have 1 to %d", entry, (unsigned long long)threads,
               BLOCK_THREADS);
    warps = td_align_up((threads + WARP - 1) / WARP, SM_QUARTERS);
    registers = f->entry->registers > record->registers ? f->entry->registers : record->registers;
    registers = td_align_up(registers * WARP, WARP_REGISTERS) * warps;
    if (!registers || registers > SM_REGISTERS)
        REFUSE("the kernel %s needs %llu registers for %llu threads; an SM has %d", entry,
               (unsigned long long)registers, (unsigned long long)threads, SM_REGISTERS);
    if (f->entry->local_bytes > LOCAL_BYTES || record->local_bytes > LOCAL_BYTES)
        REFUSE("the kernel %s needs %u bytes of local memory a thread; in a command buffer there are %d", entry,
               (unsigned)(f->entry->local_bytes > record->local_bytes ? f->entry->local_bytes : record->local_bytes),
               LOCAL_BYTES);
    if (!record->grid[0] || record->grid[0] > GRID_X)
        REFUSE("the kernel %s has a grid of %u in x; it may be 1 to %u", entry, (unsigned)record->grid[0], GRID_X);
    for (int i = 1; i < 3; i++)
        if (!record->grid[i] || record->grid[i] > GRID_YZ)
            REFUSE("the kernel %s has a grid of %u in %c; it may be 1 to %d", entry, (unsigned)record->grid[i],
                   "xyz"[i], GRID_YZ);
    if (!record->param_bytes || record->param_bytes > TD_PARAM_BYTES)
        REFUSE("the kernel %s has %u bytes of parameters; it may have 1 to %d", entry, (unsigned)record->param_bytes,
               TD_PARAM_BYTES);
#undef REFUSE
    return TANDEM_OK;
}

tandem_status td_inline_check(td_stream *stream, const td_plan *plan, char *why, size_t why_bytes)
{
    const inline_stream *s = (const inline_stream *)stream;
    tandem_status status = TANDEM_OK;
    function *found;

    for (uint32_t i = 0; i < plan->record_count && status == TANDEM_OK; i++)
        status = check_record(s, &plan->records[i], &found, why, why_bytes);
    return status;
}

/* Barriers. */

static void barrier(const inline_stream *s, VkCommandBuffer commands, td_barrier what)
{
    const VkMemoryBarrier data = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                  .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT,
                                  .dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT};

    if (what != TD_BARRIER_NONE)
        s->fn->CmdPipelineBarrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                                  0, what == TD_BARRIER_DATA, &data, 0, NULL, 0, NULL);
}

/* Recording. */

static void set_word(const inline_stream *s, uint32_t word, uint32_t value)
{
    if (!s->words.host)
        return;
    /* Not one sequentially consistent store: that is a locked exchange, which takes 190 us on memory across the bus. */
    __atomic_store_n((uint32_t *)s->words.host + word, value, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static tandem_status load_image(inline_stream *s, uint32_t image, char *why, size_t why_bytes);

/* What a submit is to record, as s->wanted; every record is checked before that. */
static tandem_status set_wanted(inline_stream *s, const td_stream_submit *submit, uint64_t control, uint32_t word,
                                char *why, size_t why_bytes)
{
    const uint64_t cancel = s->words.host ? s->words.address + word * sizeof(uint32_t) : 0;
    const td_plan *plan = submit->plan;
    recording *wanted = &s->wanted;

    wanted->label = submit->label;
    wanted->queries = submit->queries;
    wanted->query = submit->query;
    td_plan_reset(&wanted->bound);
    wanted->handles = td_plan_memory(&wanted->bound, plan->record_count * sizeof *wanted->handles, _Alignof(VkCuFunctionNVX));
    for (uint32_t i = 0; i < plan->record_count; i++) {
        const td_record *record = &plan->records[i];
        td_record *it = NULL;
        function *found;
        tandem_status status = check_record(s, record, &found, why, why_bytes);

        if (status == TANDEM_OK && !found->handle)
            status = load_image(s, found->image, why, why_bytes);
        if (status != TANDEM_OK)
            return status;
        if (wanted->handles)
            it = td_plan_append(&wanted->bound, record);
        if (!it)
            return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for commands of %u kernels", (unsigned)plan->record_count);
        wanted->handles[i] = found->handle;
        td_exec_bind(record, submit->views, submit->scratch, control, it->params);
        td_exec_bind_cancel(record, cancel, it->params);
    }
    return TANDEM_OK;
}

static bool is_same(const recording *a, const recording *b)
{
    if (a->label != b->label || a->queries != b->queries || a->query != b->query ||
        a->bound.record_count != b->bound.record_count)
        return false;
    for (uint32_t i = 0; i < a->bound.record_count; i++) {
        const td_record *x = &a->bound.records[i], *y = &b->bound.records[i];

        if (a->handles[i] != b->handles[i] || x->barrier != y->barrier || x->param_bytes != y->param_bytes || memcmp(x->grid, y->grid, sizeof x->grid) ||
            memcmp(x->block, y->block, sizeof x->block) || x->shared_bytes != y->shared_bytes ||
            memcmp(x->params, y->params, x->param_bytes))
            return false;
    }
    return true;
}

static void launch_kernel(const inline_stream *s, VkCommandBuffer to, VkCuFunctionNVX handle, const uint32_t grid[3],
                          const uint32_t block[3], uint32_t shared_bytes, const void *params)
{
    const VkCuLaunchInfoNVX info = {.sType = VK_STRUCTURE_TYPE_CU_LAUNCH_INFO_NVX,
                                    .function = handle,
                                    .gridDimX = grid[0],
                                    .gridDimY = grid[1],
                                    .gridDimZ = grid[2],
                                    .blockDimX = block[0],
                                    .blockDimY = block[1],
                                    .blockDimZ = block[2],
                                    .sharedMemBytes = shared_bytes,
                                    .paramCount = 1,
                                    .pParams = &params};

    s->fn->CmdCuLaunchKernelNVX(to, &info);
}

static void launch_stamp(const inline_stream *s, VkCommandBuffer to, const td_params_stamp *params)
{
    static const uint32_t one[3] = {1, 1, 1};

    launch_kernel(s, to, s->stamp, one, one, 0, params);
}

/* s->wanted, between these stamps. */
static void record_wanted(const inline_stream *s, VkCommandBuffer to, td_params_stamp begin, td_params_stamp end)
{
    const recording *it = &s->wanted;

    td_vk_label_begin(s->vk, to, it->label);
    /* After what wrote the views, and after the last plan that used the same scratch. */
    barrier(s, to, TD_BARRIER_DATA);
    launch_stamp(s, to, &begin);
    if (it->queries)
        s->fn->CmdWriteTimestamp(to, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, it->queries, it->query);
    for (uint32_t i = 0; i < it->bound.record_count; i++) {
        const td_record *l = &it->bound.records[i];

        barrier(s, to, (td_barrier)l->barrier);
        launch_kernel(s, to, it->handles[i], l->grid, l->block, l->shared_bytes, l->params);
    }
    if (it->queries)
        s->fn->CmdWriteTimestamp(to, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, it->queries, it->query + 1);
    barrier(s, to, TD_BARRIER_DATA);
    launch_stamp(s, to, &end);
    td_vk_label_end(s->vk, to);
}

static td_params_stamp recorded_stamp(const inline_stream *s, uint64_t number, bool end)
{
    const uint64_t at = offsetof(ring, stamps) + number % TD_INLINE_RECORDED * sizeof(td_stamp);

    return (td_params_stamp){
        .slot = (td_stamp *)(uintptr_t)(s->memory.address + at), .sequence = number, .end = end};
}

/* Whether the plan that has a slot may still write its stamps: it has not run, or has run again since it was looked at
 * last, and so will once more. */
static bool is_alive(const inline_stream *s, uint64_t slot)
{
    const td_stamp *stamp = &s->ring->stamps[slot];
    const uint64_t number = s->numbers[slot];

    if (!number)
        return false;
    if (load_word(&stamp->begun) != number)
        return s->cancelled[slot] != number;
    return load_word(&stamp->sequence) != number || load_word(&stamp->begin_ns) != s->seen_ns[slot];
}

/* The next number whose slot is free, 0: there is none. */
static uint64_t next_number(const inline_stream *s)
{
    for (uint64_t next = s->recorded + 1; next <= s->recorded + TD_INLINE_RECORDED; next++)
        if (!is_alive(s, next % TD_INLINE_RECORDED))
            return next;
    return 0;
}

/* Those that are left out have been looked at. */
static void take_number(inline_stream *s, uint64_t number)
{
    for (uint64_t out = s->recorded + 1; out < number; out++)
        s->seen_ns[out % TD_INLINE_RECORDED] = load_word(&s->ring->stamps[out % TD_INLINE_RECORDED].begin_ns);
    s->numbers[number % TD_INLINE_RECORDED] = s->recorded = number;
    s->seen_ns[number % TD_INLINE_RECORDED] = 0;
}

tandem_status td_inline_record(td_stream *stream, const td_stream_submit *submit, VkCommandBuffer to,
                               uint64_t *number, char *why, size_t why_bytes)
{
    inline_stream *s = (inline_stream *)stream;
    const uint64_t next = next_number(s), slot = next % TD_INLINE_RECORDED;
    const uint32_t word = (uint32_t)(TD_STREAM_PENDING + slot);
    tandem_status status = atomic_load(&s->broken);

    if (status != TANDEM_OK)
        return td_fail(why, why_bytes, status, "the device failed earlier");
    status = set_wanted(s, submit, 0, word, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    if (!next)
        return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "%d recorded jobs are yet to run, or run again and again",
                       TD_INLINE_RECORDED);
    take_number(s, next);
    set_word(s, word, 0);
    memset(&s->ring->stamps[slot], 0, sizeof s->ring->stamps[slot]);
    record_wanted(s, to, recorded_stamp(s, next, false), recorded_stamp(s, next, true));
    *number = next;
    return TANDEM_OK;
}

bool td_inline_begun(const td_stream *stream, uint64_t number)
{
    const inline_stream *s = (const inline_stream *)stream;

    return load_word(&s->ring->stamps[number % TD_INLINE_RECORDED].begun) == number;
}

bool td_inline_ran(td_stream *stream, uint64_t number, uint64_t *begin_ns, uint64_t *end_ns)
{
    inline_stream *s = (inline_stream *)stream;
    const td_stamp *stamp = &s->ring->stamps[number % TD_INLINE_RECORDED];
    uint64_t begin, end, offset;

    if (load_word(&stamp->sequence) != number)
        return false;
    begin = load_word(&stamp->begin_ns);
    end = load_word(&stamp->end_ns);
    td_stream_mend_clock(stream, 0, begin, end, td_now_ns()); /* the engine's submit is not ours to know */
    offset = (uint64_t)td_stream_clock_offset_ns(stream);
    *begin_ns = begin - offset;
    *end_ns = end - offset;
    if (begin > end) /* it runs again */
        return false;
    s->seen_ns[number % TD_INLINE_RECORDED] = begin;
    return true;
}

void td_inline_cancel(td_stream *stream, uint64_t number)
{
    inline_stream *s = (inline_stream *)stream;

    s->cancelled[number % TD_INLINE_RECORDED] = number;
    set_word(s, (uint32_t)(TD_STREAM_PENDING + number % TD_INLINE_RECORDED), 1);
}

bool td_inline_cancelled(const td_stream *stream, uint64_t number)
{
    return ((const inline_stream *)stream)->cancelled[number % TD_INLINE_RECORDED] == number;
}

/* Submitting. */

static tandem_status make_commands(inline_stream *s, slot_commands *c, char *why, size_t why_bytes)
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
            return vk_fail(s, result, "vkCreateCommandPool", why, why_bytes);
        }
    }
    allocate.commandPool = c->pool;
    result = s->fn->AllocateCommandBuffers(s->vk->device, &allocate, &c->buffer);
    if (result == VK_SUCCESS)
        return TANDEM_OK;
    c->buffer = NULL;
    return vk_fail(s, result, "vkAllocateCommandBuffers", why, why_bytes);
}

/* The one that holds what is wanted, or else, in *oldest, the one that has been free for longest; NULL: none. */
static slot_commands *find_commands(inline_stream *s, slot_commands all[BUFFERS], slot_commands **oldest)
{
    slot_commands *fits = NULL;

    *oldest = NULL;
    for (uint32_t i = 0; i < BUFFERS; i++) {
        if (all[i].value > s->over)
            continue;
        if (all[i].whole && is_same(&all[i].holds, &s->wanted))
            fits = &all[i];
        if (!*oldest || all[i].value < (*oldest)->value)
            *oldest = &all[i];
    }
    return fits;
}

/* A command buffer of the slot's that is no longer in use. */
static tandem_status take_commands(inline_stream *s, uint32_t slot, slot_commands **out, char *why,
                                   size_t why_bytes)
{
    slot_commands *all = s->commands[slot], *oldest = NULL;
    uint32_t made = 0;
    uint64_t value = 0;
    VkResult result;

    while (made < BUFFERS && all[made].buffer)
        made++;
    if (made < BUFFERS) {
        *out = &all[made];
        return make_commands(s, *out, why, why_bytes);
    }
    *out = find_commands(s, all, &oldest);
    if (!*out) {
        result = s->fn->GetSemaphoreCounterValue(s->vk->device, s->timeline, &value);
        if (result != VK_SUCCESS)
            return vk_fail(s, result, "vkGetSemaphoreCounterValue", why, why_bytes);
        s->over = value;
        *out = find_commands(s, all, &oldest);
    }
    *out = *out ? *out : oldest;
    if (*out)
        return TANDEM_OK;
    return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "the commands of slot %u are still in use", (unsigned)slot);
}

/* What is wanted, which is what *c holds then: s->wanted is not to be read any more. */
static tandem_status record_commands(inline_stream *s, uint32_t place, slot_commands *c, char *why, size_t why_bytes)
{
    const VkCommandBufferBeginInfo again = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    VkResult result;

    c->whole = false;
    if (c->begun) {
        result = s->fn->ResetCommandPool(s->vk->device, c->pool, 0);
        if (result != VK_SUCCESS)
            return vk_fail(s, result, "vkResetCommandPool", why, why_bytes);
    }
    c->begun = true;
    result = s->fn->BeginCommandBuffer(c->buffer, &again);
    if (result != VK_SUCCESS)
        return vk_fail(s, result, "vkBeginCommandBuffer", why, why_bytes);
    record_wanted(s, c->buffer, td_stream_stamp(&s->base, place, false), td_stream_stamp(&s->base, place, true));
    result = s->fn->EndCommandBuffer(c->buffer);
    if (result != VK_SUCCESS)
        return vk_fail(s, result, "vkEndCommandBuffer", why, why_bytes);
    const recording before = c->holds; /* its memory is for the next one that is wanted */

    c->holds = s->wanted;
    s->wanted = before;
    c->whole = true;
    return TANDEM_OK;
}

static tandem_status submit_locked(inline_stream *s, const VkSubmitInfo *info, char *why, size_t why_bytes)
{
    VkResult result;

    if (s->desc.lock)
        s->desc.lock(s->desc.user);
    result = s->fn->QueueSubmit(s->desc.queue, 1, info, VK_NULL_HANDLE);
    if (s->desc.unlock)
        s->desc.unlock(s->desc.user);
    return result == VK_SUCCESS ? TANDEM_OK : vk_fail(s, result, "vkQueueSubmit", why, why_bytes);
}

/* One submit with one batch: wait, commands, signals. The job's point is the first of these, somebody waits for it. */
static tandem_status submit_commands(inline_stream *s, const td_stream_submit *submit, uint64_t sequence,
                                     slot_commands *c, char *why, size_t why_bytes)
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
    status = submit_locked(s, &info, why, why_bytes);
    if (status == TANDEM_OK)
        c->value = value;
    return status;
}

static tandem_status enqueue(td_stream *stream, const td_stream_submit *submit, uint64_t sequence, bool *signalled,
                             char *why, size_t why_bytes)
{
    inline_stream *s = (inline_stream *)stream;
    const uint32_t slot = submit->slot, place = td_stream_place(stream, sequence);
    tandem_status status = atomic_load(&s->broken);
    slot_commands *c = NULL;

    if (status != TANDEM_OK)
        return td_fail(why, why_bytes, status, "the device failed earlier");
    if (submit->copy_in_count || submit->copy_out_count)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "copies go through CUDA streams only");
    status = set_wanted(s, submit, td_stream_control_address(stream, place), slot, why, why_bytes);
    if (status == TANDEM_OK)
        status = take_commands(s, slot, &c, why, why_bytes);
    if (status == TANDEM_OK && !(c->whole && is_same(&c->holds, &s->wanted)))
        status = record_commands(s, place, c, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    if (atomic_exchange(&s->word_set[slot], false))
        set_word(s, slot, 0);
    status = submit_commands(s, submit, sequence, c, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    *signalled = submit->signal != NULL;
    return TANDEM_OK;
}

static tandem_status wait_until(inline_stream *s, uint64_t sequence, uint64_t timeout_ns)
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
        status = wait_until((inline_stream *)stream, sequence, 1000000000u);
    while (status == TANDEM_ERROR_BUSY);
    return status;
}

static tandem_status status_of(td_stream *stream, char *why, size_t why_bytes)
{
    inline_stream *s = (inline_stream *)stream;
    const tandem_status broken = atomic_load(&s->broken);
    uint64_t value;
    VkResult result;

    if (broken != TANDEM_OK)
        return td_fail(why, why_bytes, broken, "the device failed earlier");
    result = s->fn->GetSemaphoreCounterValue(s->vk->device, s->timeline, &value);
    return result == VK_SUCCESS ? TANDEM_OK : vk_fail(s, result, "vkGetSemaphoreCounterValue", why, why_bytes);
}

/* OK: all submits up to `sequence` are over; LOST: and so is everything else; BUSY: not within timeout_ns, whatever the
 * driver says about it. */
static tandem_status outlast(inline_stream *s, uint64_t sequence, uint64_t timeout_ns)
{
    const struct timespec nap = {.tv_nsec = 50000};
    const uint64_t begin_ns = td_now_ns();

    for (;;) {
        const uint64_t waited_ns = td_now_ns() - begin_ns, left_ns = waited_ns < timeout_ns ? timeout_ns - waited_ns : 0;
        const tandem_status status = wait_until(s, sequence, left_ns);

        if (status == TANDEM_OK || status == TANDEM_ERROR_LOST)
            return status;
        if (!left_ns)
            return TANDEM_ERROR_BUSY;
        nanosleep(&nap, NULL);
    }
}

void td_inline_settle(td_stream *stream)
{
    inline_stream *s = (inline_stream *)stream;
    const uint64_t completed = td_stream_completed(stream);

    if (completed)
        outlast(s, completed, test_limit_ns);
}

static bool drain(td_stream *stream, uint64_t timeout_ns)
{
    inline_stream *s = (inline_stream *)stream;

    /* Nothing runs on a device that is lost. */
    return !s->timeline || outlast(s, stream->submitted, timeout_ns) != TANDEM_ERROR_BUSY;
}

static void free_kernels(inline_stream *s);
static void free_test(inline_stream *s);

static void free_all(inline_stream *s)
{
    const VkDevice device = s->vk->device;

    for (uint32_t i = 0; i < TD_STREAM_PENDING; i++)
        for (uint32_t j = 0; j < BUFFERS; j++) {
            if (s->commands[i][j].pool)
                s->fn->DestroyCommandPool(device, s->commands[i][j].pool, NULL);
            td_plan_free(&s->commands[i][j].holds.bound);
        }
    td_plan_free(&s->wanted.bound);
    free_kernels(s);
    free_test(s);
    td_vk_timeline_destroy(s->vk, &s->timeline);
    td_vk_mem_free(s->vk, &s->memory);
    td_vk_mem_free(s->vk, &s->words);
    free(s);
}

static bool end_left(td_vk_left *left)
{
    inline_stream *s = (inline_stream *)((char *)left - offsetof(inline_stream, left));

    if (!drain(&s->base, 0))
        return false;
    free_all(s);
    return true;
}

static void destroy(td_stream *stream, bool drained)
{
    inline_stream *s = (inline_stream *)stream;

    if (drained) {
        free_all(s);
    } else {
        s->left.end = end_left;
        td_vk_leave(s->vk, &s->left);
    }
}

static void cancel(td_stream *stream, uint64_t sequence)
{
    inline_stream *s = (inline_stream *)stream;
    const uint32_t slot = td_stream_place(stream, sequence) - TD_STREAM_NUMBERS;

    atomic_store(&s->word_set[slot], true);
    set_word(s, slot, 1);
}

/* Each: its slot's commands hold the place. */
static bool by_slot(const td_stream *stream, const td_stream_submit *submit)
{
    (void)stream;
    (void)submit;
    return true;
}

static const td_stream_ops inline_ops = {.enqueue = enqueue,
                                         .by_slot = by_slot,
                                         .wait = wait_for,
                                         .cancel = cancel,
                                         .status = status_of,
                                         .drain = drain,
                                         .destroy = destroy};

/* Uploads. */

typedef struct upload {
    td_vk *vk;
    td_vk_left left; /* where the device hangs */
    td_vk_mem staging;
    VkCommandPool pool;
    VkCommandBuffer commands;
    VkSemaphore done;
    uint64_t value; /* of `done`, behind the last copy */
} upload;

static void free_upload(upload *u)
{
    if (u->pool)
        u->vk->fn.DestroyCommandPool(u->vk->device, u->pool, NULL);
    td_vk_timeline_destroy(u->vk, &u->done);
    td_vk_mem_free(u->vk, &u->staging);
    free(u);
}

static bool end_left_upload(td_vk_left *left)
{
    upload *u = (upload *)((char *)left - offsetof(upload, left));
    const tandem_status status = td_vk_timeline_wait(u->vk, u->done, u->value, 0);

    if (status != TANDEM_OK && status != TANDEM_ERROR_LOST)
        return false;
    free_upload(u);
    return true;
}

/* One command buffer with the copies of what is in staging; waited for. */
static tandem_status run_upload(inline_stream *s, upload *u, const td_vk_mem *to, const VkBufferCopy *copy, char *why,
                                size_t why_bytes)
{
    const uint64_t value = ++u->value;
    const VkMemoryBarrier written = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                     .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                                     .dstAccessMask = VK_ACCESS_SHADER_READ_BIT};
    const VkCommandBufferBeginInfo once = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                           .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    const VkTimelineSemaphoreSubmitInfo points = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                  .signalSemaphoreValueCount = 1,
                                                  .pSignalSemaphoreValues = &value};
    const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                               .pNext = &points,
                               .commandBufferCount = 1,
                               .pCommandBuffers = &u->commands,
                               .signalSemaphoreCount = 1,
                               .pSignalSemaphores = &u->done};
    tandem_status status;
    VkResult result;

    result = s->fn->ResetCommandPool(s->vk->device, u->pool, 0);
    if (result == VK_SUCCESS)
        result = s->fn->BeginCommandBuffer(u->commands, &once);
    if (result == VK_SUCCESS) {
        s->fn->CmdCopyBuffer(u->commands, u->staging.buffer, to->buffer, 1, copy);
        s->fn->CmdPipelineBarrier(u->commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0,
                                  1, &written, 0, NULL, 0, NULL);
        result = s->fn->EndCommandBuffer(u->commands);
    }
    if (result != VK_SUCCESS)
        return vk_fail(s, result, "recording a copy", why, why_bytes);
    status = submit_locked(s, &info, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    status = td_vk_timeline_wait(s->vk, u->done, value, upload_limit_ns);
    if (status == TANDEM_OK || status == TANDEM_ERROR_LOST)
        return status;
    return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "a copy to the device did not end within %u ms",
                   (unsigned)(upload_limit_ns / 1000000));
}

tandem_status td_inline_upload(td_stream *stream, const td_vk_mem *to, uint64_t offset, const void *from,
                               uint64_t bytes, char *why, size_t why_bytes)
{
    inline_stream *s = (inline_stream *)stream;
    const uint64_t chunk = bytes < STAGING_BYTES ? bytes : STAGING_BYTES;
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .queueFamilyIndex = s->vk->queue_family};
    VkCommandBufferAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                            .commandBufferCount = 1};
    VkResult result;
    tandem_status status;
    upload *u;

    if (!bytes)
        return TANDEM_OK;
    u = calloc(1, sizeof *u);
    if (!u)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no host memory for a copy");
    u->vk = s->vk;
    status = td_vk_mem_create_mapped(s->vk, chunk, VK_BUFFER_USAGE_TRANSFER_SRC_BIT, &u->staging, why, why_bytes);
    if (status == TANDEM_OK)
        status = td_vk_timeline_create(s->vk, 0, false, &u->done, why, why_bytes);
    if (status == TANDEM_OK) {
        result = s->fn->CreateCommandPool(s->vk->device, &pool, NULL, &u->pool);
        if (result != VK_SUCCESS)
            u->pool = VK_NULL_HANDLE;
        allocate.commandPool = u->pool;
        if (result == VK_SUCCESS)
            result = s->fn->AllocateCommandBuffers(s->vk->device, &allocate, &u->commands);
        if (result != VK_SUCCESS)
            status = vk_fail(s, result, "making commands for a copy", why, why_bytes);
    }
    for (uint64_t at = 0; at < bytes && status == TANDEM_OK; at += chunk) {
        const VkBufferCopy copy = {.dstOffset = offset + at, .size = bytes - at < chunk ? bytes - at : chunk};

        memcpy(u->staging.host, (const char *)from + at, (size_t)copy.size);
        status = run_upload(s, u, to, &copy, why, why_bytes);
    }
    if (status == TANDEM_ERROR_BUSY) { /* the device may still use all of it */
        u->left.end = end_left_upload;
        td_vk_leave(s->vk, &u->left);
        return TANDEM_ERROR_DEVICE;
    }
    free_upload(u);
    return status;
}

/* Kernels. */

static void unload_image(inline_stream *s, uint32_t image)
{
    for (uint32_t i = 0; i < s->function_count; i++) {
        function *f = &s->functions[i];

        if (f->image != image || !f->handle)
            continue;
        s->fn->DestroyCuFunctionNVX(s->vk->device, f->handle, NULL);
        f->handle = VK_NULL_HANDLE;
    }
    if (s->modules[image])
        s->fn->DestroyCuModuleNVX(s->vk->device, s->modules[image], NULL);
    s->modules[image] = VK_NULL_HANDLE;
}

static tandem_status load_module(inline_stream *s, uint32_t image, char *why, size_t why_bytes)
{
    const td_image *from = &s->cubin->images[image];
    VkCuModuleCreateInfoNVX info = {.sType = VK_STRUCTURE_TYPE_CU_MODULE_CREATE_INFO_NVX,
                                    .dataSize = from->image_bytes};
    void *bytes;
    const tandem_status status = td_cubin_image(s->cubin, from, &bytes, why, why_bytes);
    VkResult result;

    if (status != TANDEM_OK)
        return status;
    info.pData = bytes;
    result = s->fn->CreateCuModuleNVX(s->vk->device, &info, NULL, &s->modules[image]);
    free(bytes);
    if (result == VK_SUCCESS)
        return TANDEM_OK;
    s->modules[image] = VK_NULL_HANDLE;
    return vk_fail(s, result, "vkCreateCuModuleNVX", why, why_bytes);
}

static tandem_status load_function(inline_stream *s, function *f, char *why, size_t why_bytes)
{
    const VkCuFunctionCreateInfoNVX info = {.sType = VK_STRUCTURE_TYPE_CU_FUNCTION_CREATE_INFO_NVX,
                                            .module = s->modules[f->image],
                                            .pName = f->entry->entry};
    VkResult result = s->fn->CreateCuFunctionNVX(s->vk->device, &info, NULL, &f->handle);
    char call[96];

    if (result == VK_SUCCESS)
        return TANDEM_OK;
    f->handle = VK_NULL_HANDLE;
    snprintf(call, sizeof call, "vkCreateCuFunctionNVX of %s", f->entry->entry);
    return vk_fail(s, result, call, why, why_bytes);
}

/* With all of its functions, or not at all. */
static tandem_status load_image(inline_stream *s, uint32_t image, char *why, size_t why_bytes)
{
    tandem_status status = load_module(s, image, why, why_bytes);

    for (uint32_t i = 0; i < s->function_count && status == TANDEM_OK; i++)
        if (s->functions[i].image == image)
            status = load_function(s, &s->functions[i], why, why_bytes);
    if (status != TANDEM_OK)
        unload_image(s, image);
    return status;
}

static void free_kernels(inline_stream *s)
{
    for (uint32_t i = 0; s->modules && i < s->cubin->image_count; i++)
        unload_image(s, i);
    free(s->modules);
    free(s->functions);
}

static bool fits(const td_cubin_entry *entry)
{
    return entry->shared_bytes <= SHARED_BYTES && entry->local_bytes <= LOCAL_BYTES;
}

static tandem_status load_kernels(inline_stream *s, char *why, size_t why_bytes)
{
    const td_cubin *cubin = s->cubin;
    tandem_status status = TANDEM_OK;
    const function *stamp;

    s->modules = calloc(cubin->image_count, sizeof *s->modules);
    s->functions = calloc(td_cubin_entry_count(cubin), sizeof *s->functions);
    if (!s->modules || !s->functions)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no host memory for a list of %u kernels",
                       (unsigned)td_cubin_entry_count(cubin));
    for (uint32_t i = 0; i < cubin->image_count; i++)
        for (uint32_t at = 0; at < cubin->images[i].entry_count; at++)
            if (fits(&cubin->images[i].entries[at]))
                s->functions[s->function_count++] =
                    (function){.entry = &cubin->images[i].entries[at], .image = i};
    for (uint32_t i = 0; i < cubin->image_count && status == TANDEM_OK; i++)
        if (!cubin->images[i].on_demand)
            status = load_image(s, i, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    stamp = find_function(s, "stamp");
    if (!stamp || !stamp->handle)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "the kernel stamp is in no image that was loaded");
    s->stamp = stamp->handle;
    return TANDEM_OK;
}

/* Creation. */

/* One submit at creation; it is waited for. */
static tandem_status run(inline_stream *s, const td_stream_submit *submit, char *why, size_t why_bytes)
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

struct self_test {
    td_plan plan;
    unsigned char *data, *scratch; /* of the CPU's */
    td_vk_mem device_data, device_scratch;
};

/* A small job, several records with barriers between them, against the same records on the CPU. */
static tandem_status run_self_test(inline_stream *s, self_test *t, char *why, size_t why_bytes)
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
    t->data = aligned_alloc(256, TD_SELF_TEST_BYTES);
    t->scratch = aligned_alloc(256, (size_t)td_align_up(t->plan.scratch_bytes, 256));
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

static void free_test(inline_stream *s)
{
    if (!s->test)
        return;
    td_vk_mem_free(s->vk, &s->test->device_data);
    td_vk_mem_free(s->vk, &s->test->device_scratch);
    td_plan_free(&s->test->plan);
    free(s->test->data);
    free(s->test->scratch);
    free(s->test);
    s->test = NULL;
}

static tandem_status test_kernels(inline_stream *s, char *why, size_t why_bytes)
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
static tandem_status measure_clock(inline_stream *s, char *why, size_t why_bytes)
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
    inline_stream *s = calloc(1, sizeof *s);
    td_stream *stream = (td_stream *)s;
    tandem_status status;

    *out = NULL;
    if (!s)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no host memory for a stream");
    s->base.ops = &inline_ops;
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
        status = td_vk_mem_create_mapped(s->vk, sizeof(ring), VK_BUFFER_USAGE_STORAGE_BUFFER_BIT, &s->memory, why,
                                         why_bytes);
    if (status == TANDEM_OK) {
        s->ring = s->memory.host;
        memset(s->ring, 0, sizeof *s->ring);
        s->base.ring = &s->ring->submits;
        s->base.ring_address = s->memory.address + offsetof(ring, submits);
        status = td_vk_mem_create_near(s->vk, WORDS * sizeof(uint32_t), VK_BUFFER_USAGE_STORAGE_BUFFER_BIT, &s->words,
                                       why, why_bytes);
        if (status == TANDEM_ERROR_UNSUPPORTED)
            status = TANDEM_OK;
    }
    if (status == TANDEM_OK) {
        for (uint32_t i = 0; i < WORDS; i++)
            set_word(s, i, 0);
        status = td_vk_timeline_create(s->vk, 0, false, &s->timeline, why, why_bytes);
    }
    if (status == TANDEM_OK)
        status = load_kernels(s, why, why_bytes);
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
