/* Executor `vk_inline`: what a plan is in a command buffer, of the stream's own or of the engine's. See vk_inline.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine_plugin/exec/vk_inline.h"

/* Barriers. */

static void barrier(const td_inline_stream *s, VkCommandBuffer commands, td_barrier what)
{
    const VkMemoryBarrier data = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                  .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT,
                                  .dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT};

    if (what != TD_BARRIER_NONE)
        s->fn->CmdPipelineBarrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                                  0, what == TD_BARRIER_DATA, &data, 0, NULL, 0, NULL);
}

/* Recording. */

void td_inline_set_word(const td_inline_stream *s, uint32_t word, uint32_t value)
{
    if (!s->cancel_words.host)
        return;
    /* Not one sequentially consistent store: that is a locked exchange, which takes 190 us on memory across the bus. */
    __atomic_store_n((uint32_t *)s->cancel_words.host + word, value, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* What a submit is to record, as s->wanted; every record is checked before that. */
tandem_status td_inline_want(td_inline_stream *s, const td_stream_submit *submit, uint64_t control, uint32_t word,
                                char *why, size_t why_bytes)
{
    const uint64_t cancel = s->cancel_words.host ? s->cancel_words.address + word * sizeof(uint32_t) : 0;
    const td_plan *plan = submit->plan;
    td_inline_recording *wanted = &s->wanted;

    wanted->label = submit->label;
    td_plan_reset(&wanted->bound);
    wanted->handles = td_arena_take(&wanted->bound.memory, plan->record_count * sizeof *wanted->handles, _Alignof(VkCuFunctionNVX));
    for (uint32_t i = 0; i < plan->record_count; i++) {
        const td_record *record = &plan->records[i];
        td_record *it = NULL;
        td_inline_function *found;
        tandem_status status = td_inline_check_record(s, record, &found, why, why_bytes);

        if (status == TANDEM_OK && !found->handle)
            status = td_inline_load(s, found->image, why, why_bytes);
        if (status != TANDEM_OK)
            return status;
        if (wanted->handles)
            it = td_plan_append_launch(&wanted->bound, record);
        if (!it)
            return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for commands of %u kernels", (unsigned)plan->record_count);
        wanted->handles[i] = found->handle;
        td_exec_bind(record, submit->views, submit->scratch, control, it->params);
        td_exec_bind_cancel(record, cancel, it->params);
    }
    return TANDEM_OK;
}

bool td_inline_is_same(const td_inline_recording *a, const td_inline_recording *b)
{
    if (a->label != b->label || a->bound.record_count != b->bound.record_count)
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

static void launch_kernel(const td_inline_stream *s, VkCommandBuffer to, VkCuFunctionNVX handle, const uint32_t grid[3],
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

static void launch_stamp(const td_inline_stream *s, VkCommandBuffer to, const td_params_stamp *params)
{
    static const uint32_t one[3] = {1, 1, 1};

    launch_kernel(s, to, s->stamp, one, one, 0, params);
}

/* s->wanted, between these stamps. */
void td_inline_record_wanted(const td_inline_stream *s, VkCommandBuffer to, td_params_stamp begin, td_params_stamp end)
{
    const td_inline_recording *it = &s->wanted;

    td_vk_label_begin(s->vk, to, it->label);
    /* After what wrote the views, and after the last plan that used the same scratch. */
    barrier(s, to, TD_BARRIER_DATA);
    launch_stamp(s, to, &begin);
    for (uint32_t i = 0; i < it->bound.record_count; i++) {
        const td_record *l = &it->bound.records[i];

        barrier(s, to, (td_barrier)l->barrier);
        launch_kernel(s, to, it->handles[i], l->grid, l->block, l->shared_bytes, l->params);
    }
    barrier(s, to, TD_BARRIER_DATA);
    launch_stamp(s, to, &end);
    td_vk_label_end(s->vk, to);
}

static td_params_stamp recorded_stamp(const td_inline_stream *s, uint64_t number, bool end)
{
    const uint64_t at = offsetof(td_inline_ring, stamps) + number % TD_INLINE_RECORDED * sizeof(td_stamp);

    return (td_params_stamp){
        .slot = (td_stamp *)(uintptr_t)(s->memory.address + at), .sequence = number, .end = end};
}

static uint64_t recorded_control(const td_inline_stream *s, uint64_t slot)
{
    return s->memory.address + offsetof(td_inline_ring, controls) + slot * sizeof(td_control);
}

/* Whether the plan that has a slot may still write its stamps: it has not run, or has run again since it was looked at
 * last, and so will once more. */
static bool is_alive(const td_inline_stream *s, uint64_t slot)
{
    const td_stamp *stamp = &s->ring->stamps[slot];
    const uint64_t number = s->numbers[slot];

    if (!number)
        return false;
    if (td_inline_word(&stamp->begun) != number)
        return s->cancelled[slot] != number;
    return td_inline_word(&stamp->sequence) != number || td_inline_word(&stamp->begin_ns) != s->seen_ns[slot];
}

/* The next number whose slot is free, 0: there is none. */
static uint64_t next_number(const td_inline_stream *s)
{
    for (uint64_t next = s->recorded + 1; next <= s->recorded + TD_INLINE_RECORDED; next++)
        if (!is_alive(s, next % TD_INLINE_RECORDED))
            return next;
    return 0;
}

/* Those that are left out have been looked at. */
static void take_number(td_inline_stream *s, uint64_t number)
{
    for (uint64_t out = s->recorded + 1; out < number; out++)
        s->seen_ns[out % TD_INLINE_RECORDED] = td_inline_word(&s->ring->stamps[out % TD_INLINE_RECORDED].begin_ns);
    s->numbers[number % TD_INLINE_RECORDED] = s->recorded = number;
    s->seen_ns[number % TD_INLINE_RECORDED] = 0;
}

tandem_status td_inline_record(td_stream *stream, const td_stream_submit *submit, VkCommandBuffer to,
                               uint64_t *number, char *why, size_t why_bytes)
{
    td_inline_stream *s = (td_inline_stream *)stream;
    const uint64_t next = next_number(s), slot = next % TD_INLINE_RECORDED;
    const uint32_t word = (uint32_t)(TD_STREAM_PENDING + slot);
    tandem_status status = atomic_load(&s->broken);

    if (status != TANDEM_OK)
        return td_fail(why, why_bytes, status, "the device failed earlier");
    status = td_inline_want(s, submit, recorded_control(s, slot), word, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    if (!next)
        return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "%d recorded jobs are yet to run, or run again and again",
                       TD_INLINE_RECORDED);
    take_number(s, next);
    td_inline_set_word(s, word, 0);
    memset(&s->ring->stamps[slot], 0, sizeof s->ring->stamps[slot]);
    memset(&s->ring->controls[slot], 0, sizeof s->ring->controls[slot]);
    td_inline_record_wanted(s, to, recorded_stamp(s, next, false), recorded_stamp(s, next, true));
    *number = next;
    return TANDEM_OK;
}

bool td_inline_begun(const td_stream *stream, uint64_t number)
{
    const td_inline_stream *s = (const td_inline_stream *)stream;

    return td_inline_word(&s->ring->stamps[number % TD_INLINE_RECORDED].begun) == number;
}

bool td_inline_ran(td_stream *stream, uint64_t number, uint64_t *begin_ns, uint64_t *end_ns)
{
    td_inline_stream *s = (td_inline_stream *)stream;
    const td_stamp *stamp = &s->ring->stamps[number % TD_INLINE_RECORDED];
    uint64_t begin, end, offset;

    if (td_inline_word(&stamp->sequence) != number)
        return false;
    begin = td_inline_word(&stamp->begin_ns);
    end = td_inline_word(&stamp->end_ns);
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
    td_inline_stream *s = (td_inline_stream *)stream;

    s->cancelled[number % TD_INLINE_RECORDED] = number;
    __atomic_store_n(&s->ring->controls[number % TD_INLINE_RECORDED].stale, 1, __ATOMIC_SEQ_CST);
    td_inline_set_word(s, (uint32_t)(TD_STREAM_PENDING + number % TD_INLINE_RECORDED), 1);
}

bool td_inline_cancelled(const td_stream *stream, uint64_t number)
{
    return ((const td_inline_stream *)stream)->cancelled[number % TD_INLINE_RECORDED] == number;
}
