/* A plan on the first CUDA device, with its views and scratch in one allocation.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine_plugin/exec/exec.h"
#include "engine_plugin/tool/tool.h"
#include "interop/os/memory.h"

enum { LIMIT_MS = 600000 }; /* the longest that one attention may take */

struct tool_cuda {
    td_cu_device *device;
    td_stream *stream;
    td_cu_mem mem;
};

static double now_ms(void)
{
    return (double)td_now_ns() * 1e-6;
}

tool_cuda *tool_cuda_open(char *why, size_t why_bytes)
{
    const td_log quiet = {0};
    tool_cuda *c = calloc(1, sizeof *c);
    if (!c) {
        td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "out of memory");
        return NULL;
    }
    if (td_cu_device_open(NULL, &quiet, &c->device, why, why_bytes) == TANDEM_OK &&
        td_stream_create(c->device, &quiet, &c->stream, why, why_bytes) == TANDEM_OK)
        return c;
    tool_cuda_close(c);
    return NULL;
}

void tool_cuda_close(tool_cuda *c)
{
    if (!c)
        return;
    if (c->stream)
        td_stream_destroy(&c->stream, 2000000000);
    if (c->mem.kind)
        td_cu_mem_free(c->device, &c->mem);
    td_cu_device_close(&c->device);
    free(c);
}

const char *tool_cuda_name(const tool_cuda *c)
{
    return td_cu_device_info(c->device)->name;
}

uint32_t tool_cuda_sm(const tool_cuda *c)
{
    return td_cu_device_info(c->device)->sm;
}

static bool wait_for(tool_cuda *c, uint64_t sequence, char *why, size_t why_bytes)
{
    const double begin = now_ms();
    for (uint64_t polls = 0; td_stream_completed(c->stream) < sequence; polls++) {
        if (now_ms() - begin > LIMIT_MS) {
            td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "the GPU has not finished after %d s", LIMIT_MS / 1000);
            return false;
        }
        if (polls % 512 == 511 && td_stream_status(c->stream, why, why_bytes) != TANDEM_OK)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return td_stream_status(c->stream, why, why_bytes) == TANDEM_OK;
}

bool tool_cuda_run(tool_cuda *c, const tandem_attention *op, const void *const inputs[3], void *o, float *lse,
                   unsigned char **scratch, tool_ran *ran, char *why, size_t why_bytes)
{
    const td_target target = td_exec_target(td_cu_device_info(c->device), true);
    if (td_plan_attention(op, &target, &ran->plan, &ran->layout, why, why_bytes) != TANDEM_OK ||
        (scratch && !tool_has_codes(&ran->plan, &ran->layout, why, why_bytes)))
        return false;
    const uint64_t kv_rows = (uint64_t)op->batch * op->kv_heads * op->kv_len,
                   q_rows = (uint64_t)op->batch * op->heads * op->q_len;
    const uint64_t sizes[TD_VIEW_COUNT] = {q_rows * op->head_dim * td_dtype_bytes(op->q.dtype),
                                           kv_rows * op->head_dim * td_dtype_bytes(op->k.dtype),
                                           kv_rows * op->head_dim * td_dtype_bytes(op->v.dtype),
                                           q_rows * op->head_dim * td_dtype_bytes(op->o.dtype), q_rows * sizeof(float)};
    uint64_t offsets[TD_VIEW_COUNT], views[TD_VIEW_COUNT], total = td_align_up(ran->plan.scratch_bytes + 1, 256);
    for (int i = 0; i < TD_VIEW_COUNT; i++) {
        offsets[i] = total;
        total += td_align_up(sizes[i], 256);
    }
    if (c->mem.kind)
        td_cu_mem_free(c->device, &c->mem);
    memset(&c->mem, 0, sizeof c->mem);
    if (td_cu_mem_alloc(c->device, total, &c->mem, why, why_bytes) != TANDEM_OK)
        return false;
    bool copied = true;
    for (int i = 0; i < TD_VIEW_COUNT; i++) {
        views[i] = c->mem.address + offsets[i];
        if (i < 3)
            copied = copied && td_cu_copy_to_device(c->device, views[i], inputs[i], sizes[i]) == TANDEM_OK;
    }
    uint64_t sequence = 0;
    bool signalled = false;
    const td_stream_submit submit = {
        .plan = &ran->plan, .views = views, .scratch = c->mem.address, .label = "tandem attend"};
    const double begin = now_ms();
    if (copied && td_stream_enqueue(c->stream, &submit, &sequence, &signalled, why, why_bytes) != TANDEM_OK)
        return false;
    if (copied && !wait_for(c, sequence, why, why_bytes))
        return false;
    ran->ms = now_ms() - begin;
    uint64_t begin_ns = 0, end_ns = 0;
    if (copied && td_stream_times(c->stream, sequence, &begin_ns, &end_ns))
        ran->ms = (double)(end_ns - begin_ns) * 1e-6;
    copied = copied && td_cu_copy_to_host(c->device, o, views[TD_VIEW_O], sizes[TD_VIEW_O]) == TANDEM_OK &&
             (!lse || td_cu_copy_to_host(c->device, lse, views[TD_VIEW_LSE], sizes[TD_VIEW_LSE]) == TANDEM_OK);
    if (copied && scratch) {
        *scratch = td_aligned_alloc(256, td_align_up(ran->plan.scratch_bytes + 1, 256));
        if (!*scratch) {
            td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "out of memory");
            return false;
        }
        copied = td_cu_copy_to_host(c->device, *scratch, c->mem.address, ran->plan.scratch_bytes) == TANDEM_OK;
    }
    if (!copied)
        td_fail(why, why_bytes, TANDEM_ERROR_DEVICE, "a copy to or from the CUDA device failed");
    return copied;
}
