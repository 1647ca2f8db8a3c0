/* Ways to have a payload transformed between two pieces of Vulkan work.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A frame's stamps are nanoseconds of the device's clock: Vulkan's timestamps. Where producer, transform and consumer
 * are in one command buffer, every other frame has two more, right before and right behind the transform's launches;
 * they take up to 1.5 us themselves, so that the other half of the frames tells how long a frame is. Elsewhere a job's
 * begin and end come from its report, which has them on CLOCK_MONOTONIC: they go back to the GPU's clock by the offset
 * that the session's stream used, where that clock is also the one of Vulkan's timestamps; else by a pair of readings.
 */
#include "engine_plugin/tool/routes.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine_plugin/client/client.h"
#include "engine_plugin/tool/record_stamps.h"

#define WAIT_NS 20000000000ull
#define LOOK_NS 2000000000ull

static const VkPipelineStageFlags COMPUTE = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                                  TRANSFER = VK_PIPELINE_STAGE_TRANSFER_BIT, HOST = VK_PIPELINE_STAGE_HOST_BIT;

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t bench_thread_cpu_ns(void)
{
    return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

uint64_t bench_process_cpu_ns(void)
{
    return clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

tandem_view payload_view(uint64_t offset, uint32_t rows, uint32_t heads)
{
    return (tandem_view){.offset_bytes = offset,
                         .dtype = TANDEM_DTYPE_F16,
                         .stride_batch = (int64_t)rows * heads * 32,
                         .stride_head = (int64_t)rows * 32,
                         .stride_row = 32};
}

void payload_make(payload *p, char text[160], const char *name, payload_kind kind, uint64_t bytes, uint32_t batch,
                         uint32_t heads, uint32_t kv_heads, uint32_t kv_len, uint32_t precision, float scale)
{
    const uint64_t rows = bytes / BENCH_ROW_BYTES, kv_bytes = (uint64_t)batch * kv_heads * kv_len * BENCH_ROW_BYTES;
    const uint32_t q_len = (uint32_t)(rows / batch / heads);
    *p = (payload){.name = name,
                   .job = text,
                   .kind = kind,
                   .bytes = bytes,
                   .in_bytes = td_align_up(bytes + 2 * kv_bytes, 256),
                   .out_bytes = td_align_up(bytes, 256)};
    p->op = (tandem_attention){.q = payload_view(0, q_len, heads),
                               .k = payload_view(bytes, kv_len, kv_heads),
                               .v = payload_view(bytes + kv_bytes, kv_len, kv_heads),
                               .o = payload_view(0, q_len, heads),
                               .batch = batch,
                               .heads = heads,
                               .kv_heads = kv_heads,
                               .q_len = q_len,
                               .kv_len = kv_len,
                               .head_dim = 32,
                               .scale = scale,
                               .precision = precision};
    p->push = (struct td_bench_push){.in_vectors = (uint32_t)((bytes + 2 * kv_bytes) / 16),
                                     .out_vectors = (uint32_t)(bytes / 16),
                                     .k_at = (uint32_t)(bytes / 16),
                                     .v_at = (uint32_t)((bytes + kv_bytes) / 16),
                                     .batch = batch,
                                     .q_len = q_len,
                                     .kv_len = kv_len,
                                     .scale = scale,
                                     .tolerance = 0.08f};
    p->in_groups = (p->push.in_vectors + TD_BENCH_GROUP - 1) / TD_BENCH_GROUP;
    p->out_groups = (p->push.out_vectors + TD_BENCH_GROUP - 1) / TD_BENCH_GROUP;
    p->checked_rows = 64;
    snprintf(text, 160, "%s attention, batch %u, heads %u on %u, %u queries on %u keys, d 32",
             precision == TANDEM_PRECISION_F16 ? "f16" : "8b", (unsigned)batch, (unsigned)heads, (unsigned)kv_heads,
             (unsigned)q_len, (unsigned)kv_len);
}

static bool broken(route *l, tandem_status status, const char *what)
{
    char text[240] = "";
    if (l->session)
        tandem_error_text(l->session, text, sizeof text);
    td_fail(l->why, sizeof l->why, status, "%s: %s%s%s", what, tandem_status_text(status), text[0] ? ": " : "", text);
    return false;
}

static bool ok(route *l, tandem_status status, const char *what)
{
    return status == TANDEM_OK || broken(l, status, what);
}

static void open_session(route *l, bench_vk *v)
{
    tandem_vulkan engine = tool_engine_vulkan(&v->engine);
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc,
                                                 .vulkan = &engine,
                                                 .frames_in_flight = 2 * ROUTE_SLOTS,
                                                 .wait_bound_ns = WAIT_NS,
                                                 .timing = 1,
                                                 .rung = l->socket ? 0 : l->rung,
                                                 .socket = l->socket,
                                                 .job_class = l->job_class,
                                                 .error_text = l->why,
                                                 .error_text_bytes = sizeof l->why);
    const tandem_timeline_desc from_engine = TANDEM_INIT(tandem_timeline_desc,
                                                         .signaller = TANDEM_SIGNALLER_ENGINE);
    const tandem_timeline_desc from_session = TANDEM_INIT(tandem_timeline_desc,
                                                          .signaller = TANDEM_SIGNALLER_SESSION);
    if (l->kind == ROUTE_RECORDED)
        engine.get_instance_proc_addr = record_stamps_wrap(engine.get_instance_proc_addr);
    const tandem_status status = tandem_session_create(&desc, &l->session);
    if (status != TANDEM_OK) {
        if (!l->why[0])
            broken(l, status, "a session");
        return;
    }
    l->info = TANDEM_INIT(tandem_info);
    l->why[0] = 0;
    if (!ok(l, tandem_session_info(l->session, &l->info), "session info"))
        return;
    if (l->socket && !l->rung)
        l->rung = l->info.rung;
    if (l->info.rung != l->rung) {
        td_fail(l->why, sizeof l->why, TANDEM_ERROR_UNSUPPORTED, "the session is on the rung %s",
                td_rung_name(l->info.rung));
        return;
    }
    if (l->kind == ROUTE_SUBMITTED &&
        ok(l, tandem_timeline_create(l->session, &from_engine, &l->engine_timeline), "a timeline") &&
        ok(l, tandem_timeline_create(l->session, &from_session, &l->session_timeline), "a timeline") &&
        ok(l, tandem_timeline_get_vulkan(l->session, l->engine_timeline, &l->engine), "a semaphore"))
        ok(l, tandem_timeline_get_vulkan(l->session, l->session_timeline, &l->done), "a semaphore");
}

static bool share_timeline(route *l, bench_vk *v, VkSemaphore *semaphore, td_cu_timeline *cu)
{
    int fd = -1;
    const bool good = td_vk_timeline_create(v->vk, 0, true, semaphore, l->why, sizeof l->why) == TANDEM_OK &&
                      td_vk_timeline_export_fd(v->vk, *semaphore, &fd, l->why, sizeof l->why) == TANDEM_OK &&
                      td_cu_timeline_import_fd(l->device, fd, cu, l->why, sizeof l->why) == TANDEM_OK;
    td_fd_close(&fd);
    return good;
}

static void open_probe(route *l, bench_vk *v)
{
    const td_log quiet = {0};
    const td_vk_caps *caps = td_vk_get_caps(v->vk);
    if (!caps->export_memory || !caps->export_timeline)
        td_fail(l->why, sizeof l->why, TANDEM_ERROR_UNSUPPORTED, "%s exports no %s", caps->name,
                caps->export_memory ? "timelines" : "memory");
    else if (td_cu_device_open(caps->device_uuid, &quiet, &l->device, l->why, sizeof l->why) == TANDEM_OK &&
             td_stream_create(l->device, &quiet, &l->stream, l->why, sizeof l->why) == TANDEM_OK &&
             share_timeline(l, v, &l->engine, &l->cu_engine))
        share_timeline(l, v, &l->done, &l->cu_done);
}

void route_open(route *l, bench_vk *v)
{
    l->why[0] = 0;
    if (l->kind >= ROUTE_RECORDED)
        open_session(l, v);
    else if (l->kind == ROUTE_PROBE)
        open_probe(l, v);
    else if (l->kind == ROUTE_CHAIN &&
             td_vk_timeline_create(v->vk, 0, false, &l->engine, l->why, sizeof l->why) == TANDEM_OK)
        td_vk_timeline_create(v->vk, 0, false, &l->done, l->why, sizeof l->why);
    else if (l->kind == ROUTE_CUDA)
        snprintf(l->why, sizeof l->why, "%s", l->probe->why);
}

void route_close(route *l, bench_vk *v)
{
    route_unprepare(l, v);
    if (l->session)
        tandem_session_destroy(&l->session);
    if (l->kind == ROUTE_PROBE && l->device) {
        if (l->stream)
            td_stream_destroy(&l->stream, LOOK_NS);
        td_cu_timeline_free(l->device, &l->cu_engine);
        td_cu_timeline_free(l->device, &l->cu_done);
        td_vk_timeline_destroy(v->vk, &l->engine);
        td_vk_timeline_destroy(v->vk, &l->done);
        td_cu_device_close(&l->device);
    }
    if (l->kind == ROUTE_CHAIN) {
        td_vk_timeline_destroy(v->vk, &l->engine);
        td_vk_timeline_destroy(v->vk, &l->done);
    }
    bench_series *const all[] = {&l->gap_in, &l->gap_out,     &l->round_trip, &l->in_flight,
                                 &l->cpu,    &l->process_cpu, &l->job,        &l->between};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        bench_free(all[i]);
}

static bool make_mem(route *l, uint64_t bytes, tandem_mem *mem, VkBuffer *buffer)
{
    const tandem_mem_desc desc = TANDEM_INIT(tandem_mem_desc,
                                             .source = TANDEM_MEM_CREATE, .bytes = bytes, .fd = -1);
    tandem_mem_vulkan vulkan = TANDEM_INIT(tandem_mem_vulkan);
    if (!ok(l, tandem_mem_create(l->session, &desc, mem), "a mem") ||
        !ok(l, tandem_mem_get_vulkan(l->session, *mem, &vulkan), "a mem's buffer"))
        return false;
    *buffer = vulkan.buffer;
    return true;
}

static bool share_mem(route *l, bench_vk *v, uint64_t bytes, td_vk_mem *vk, td_cu_mem *cu)
{
    const VkBufferUsageFlags usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                     VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    int fd = -1;
    const bool good = td_vk_mem_create_export(v->vk, bytes, usage, vk, l->why, sizeof l->why) == TANDEM_OK &&
                      td_vk_mem_export_fd(v->vk, vk, &fd, l->why, sizeof l->why) == TANDEM_OK &&
                      td_cu_mem_import_fd(l->device, fd, vk->allocation_bytes, vk->dedicated, vk->offset, vk->bytes, cu,
                                          l->why, sizeof l->why) == TANDEM_OK;
    td_fd_close(&fd);
    return good;
}

static bool is_vulkan(const route *l)
{
    return l->kind == ROUTE_VULKAN || l->kind == ROUTE_CHAIN;
}

static bool prepare_slot(route *l, bench_vk *v, route_slot *s)
{
    const payload *p = l->payload;
    VkBuffer in, out;
    if (is_vulkan(l)) {
        if (!bench_buffer_make(v, p->in_bytes, false, &s->in, l->why, sizeof l->why) ||
            !bench_buffer_make(v, p->out_bytes, false, &s->out, l->why, sizeof l->why))
            return false;
        in = s->in.buffer;
        out = s->out.buffer;
    } else if (l->kind == ROUTE_PROBE) {
        if (!share_mem(l, v, p->in_bytes, &s->vk_in, &s->cu_in) ||
            !share_mem(l, v, p->out_bytes, &s->vk_out, &s->cu_out) ||
            td_cu_mem_alloc(l->device, l->plan->scratch_bytes + 256, &s->scratch, l->why, sizeof l->why) != TANDEM_OK)
            return false;
        in = s->vk_in.buffer;
        out = s->vk_out.buffer;
    } else if (!make_mem(l, p->in_bytes, &s->mem_in, &in) || !make_mem(l, p->out_bytes, &s->mem_out, &out)) {
        return false;
    }
    return bench_slot_make(v, in, out, &s->gpu, l->why, sizeof l->why);
}

void route_free_series(route *l)
{
    bench_series *const all[] = {&l->gap_in, &l->gap_out,     &l->round_trip, &l->in_flight,
                                 &l->cpu,    &l->process_cpu, &l->job};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        bench_free(all[i]);
}

void route_prepare(route *l, bench_vk *v, const payload *p)
{
    l->payload = p;
    l->frames = l->wrong = 0;
    route_free_series(l);
    if (l->kind == ROUTE_CUDA && !l->why[0])
        snprintf(l->why, sizeof l->why, "%s", l->probe->why);
    if (l->why[0] || l->kind == ROUTE_CUDA)
        return;
    if (l->kind == ROUTE_PROBE) {
        const td_target target = td_exec_target(td_cu_device_info(l->device), true);
        td_plan *plan = td_plan_create();
        l->plan = plan;
        if (!plan || td_plan_attention(&p->op, &target, plan, NULL, l->why, sizeof l->why) != TANDEM_OK)
            return;
    }
    l->has_slots = true;
    for (uint32_t i = 0; i < ROUTE_SLOTS; i++)
        if (!prepare_slot(l, v, &l->slots[i]))
            return;
}

void route_unprepare(route *l, bench_vk *v)
{
    if (!l->has_slots)
        return;
    v->DeviceWaitIdle(v->engine.device);
    for (uint32_t i = 0; i < ROUTE_SLOTS; i++) {
        route_slot *s = &l->slots[i];
        bench_slot_free(v, &s->gpu);
        if (s->mem_in)
            tandem_mem_destroy(l->session, s->mem_in);
        if (s->mem_out)
            tandem_mem_destroy(l->session, s->mem_out);
        if (is_vulkan(l)) {
            bench_buffer_free(v, &s->in);
            bench_buffer_free(v, &s->out);
        }
        td_cu_mem *const mems[] = {&s->cu_in, &s->cu_out, &s->scratch};
        for (int m = 0; m < 3; m++)
            if (mems[m]->kind)
                td_cu_mem_free(l->device, mems[m]);
        if (l->kind == ROUTE_PROBE) {
            td_vk_mem_free(v->vk, &s->vk_in);
            td_vk_mem_free(v->vk, &s->vk_out);
        }
        *s = (route_slot){0};
    }
    td_plan_drop(&l->plan);
    l->has_slots = false;
}

/* fp16 of whole numbers, so that frames differ. */
static void empty_values(uint32_t frame, uint16_t values[32])
{
    for (uint32_t i = 0; i < 32; i++)
        values[i] = (uint16_t)(0x3c00u | ((frame * 32 + i) & 0x3ffu));
}

static void record_producer(route *l, bench_vk *v, route_slot *s)
{
    const payload *p = l->payload;
    struct td_bench_push push = p->push;
    push.frame = s->frame;
    /* Stamps would cost more than what is between them; and values differ from frame to frame. */
    if (p->kind == PAYLOAD_EMPTY) {
        uint16_t values[3 * 32] = {0};
        empty_values(s->frame, values + 2 * 32);
        v->CmdUpdateBuffer(s->gpu.commands[0], s->gpu.in, 0, sizeof values, values);
    } else {
        bench_stamp(v, &s->gpu, 0, false);
        bench_dispatch(v, &s->gpu, 0, p->kind == PAYLOAD_GATHER ? TD_BENCH_WRITE_GATHER : TD_BENCH_WRITE_RANDOM, &push,
                       p->in_groups);
        bench_stamp(v, &s->gpu, 0, false);
    }
}

typedef enum turn { TURN_OVER, TURN_BACK_OUT, TURN_BACK_IN } turn;

/* Gives both mems away, or takes one back. */
static bool record_turn(route *l, bench_vk *v, route_slot *s, uint32_t which, turn what)
{
    const bool back = what != TURN_OVER;
    const int first = what == TURN_BACK_OUT ? 1 : 0, end = what == TURN_BACK_IN ? 1 : 2;
    const bool empty = l->payload->kind == PAYLOAD_EMPTY;
    const VkPipelineStageFlags stage = empty ? TRANSFER : COMPUTE;
    const VkAccessFlags write = empty ? VK_ACCESS_TRANSFER_WRITE_BIT : VK_ACCESS_SHADER_WRITE_BIT;
    const VkAccessFlags use = empty ? VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT
                                    : VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT;
    VkCommandBuffer commands = s->gpu.commands[which];
    if (l->session) {
        const tandem_mem mems[2] = {s->mem_in, s->mem_out};
        for (int i = first; i < end; i++)
            if (!ok(l,
                    back ? tandem_record_acquire(l->session, commands, mems[i], stage, use)
                         : tandem_record_release(l->session, commands, mems[i], stage, write),
                    back ? "tandem_record_acquire" : "tandem_record_release"))
                return false;
        return true;
    }
    const td_vk_mem *const mems[2] = {&s->vk_in, &s->vk_out};
    for (int i = first; i < end; i++)
        if (back)
            td_vk_record_acquire(v->vk, commands, mems[i], TD_VK_PEER_EXTERNAL, stage, use);
        else
            td_vk_record_release(v->vk, commands, mems[i], TD_VK_PEER_EXTERNAL, stage, write);
    return true;
}

/* Takes the output back, checks it; the inputs come back behind that. */
static bool record_consumer(route *l, bench_vk *v, route_slot *s, uint32_t which)
{
    const payload *p = l->payload;
    struct td_bench_push push = p->push;
    push.frame = s->frame;
    if (!is_vulkan(l) && !record_turn(l, v, s, which, TURN_BACK_OUT))
        return false;
    if (p->kind != PAYLOAD_EMPTY)
        bench_stamp(v, &s->gpu, which, true);
    if (p->kind == PAYLOAD_EMPTY) {
        const VkBufferCopy copy = {0, offsetof(bench_result, bytes), 64};
        v->CmdCopyBuffer(s->gpu.commands[which], s->gpu.out, s->gpu.result.buffer, 1, &copy);
    } else if (p->kind == PAYLOAD_GATHER) {
        bench_dispatch(v, &s->gpu, which, TD_BENCH_CHECK_GATHER, &push, p->out_groups);
    } else if (is_vulkan(l)) {
        bench_dispatch(v, &s->gpu, which, TD_BENCH_CHECK_COPY, &push, p->out_groups);
    } else {
        bench_dispatch(v, &s->gpu, which, TD_BENCH_CHECK_FINITE, &push, p->out_groups);
    }
    if (!is_vulkan(l) && !record_turn(l, v, s, which, TURN_BACK_IN))
        return false;
    if (p->kind == PAYLOAD_ATTENTION) {
        /* Vulkan's middle is no attention: its rows cost what the others' do, and are right anyway. */
        if (is_vulkan(l))
            push.tolerance = 1e30f;
        bench_dispatch(v, &s->gpu, which, TD_BENCH_CHECK_ROWS, &push, p->checked_rows);
    }
    if (p->kind != PAYLOAD_EMPTY)
        bench_stamp(v, &s->gpu, which, false);
    bench_barrier(v, &s->gpu, which, p->kind == PAYLOAD_EMPTY ? TRANSFER : COMPUTE,
                  p->kind == PAYLOAD_EMPTY ? VK_ACCESS_TRANSFER_WRITE_BIT : VK_ACCESS_SHADER_WRITE_BIT, HOST,
                  VK_ACCESS_HOST_READ_BIT);
    return true;
}

static tandem_job job_of(route *l, route_slot *s)
{
    tandem_job job = TANDEM_INIT(tandem_job,
                                 .operation = TANDEM_OPERATION_ATTENTION, .op.attention = l->payload->op);
    tandem_view *const in[3] = {&job.op.attention.q, &job.op.attention.k, &job.op.attention.v};
    for (int i = 0; i < 3; i++)
        in[i]->mem = s->mem_in;
    job.op.attention.o.mem = s->mem_out;
    return job;
}

static bool enqueue_plan(route *l, route *owner, route_slot *s, const td_stream_point *wait, const td_stream_point *signal)
{
    const tandem_attention *op = &owner->payload->op;
    const uint64_t views[TD_VIEW_COUNT] = {s->cu_in.address + op->q.offset_bytes, s->cu_in.address + op->k.offset_bytes,
                                           s->cu_in.address + op->v.offset_bytes, s->cu_out.address};
    const td_stream_submit submit = {.plan = owner->plan,
                                     .views = views,
                                     .scratch = td_align_up(s->scratch.address, 256),
                                     .wait = wait,
                                     .signal = signal,
                                     .slot = (uint32_t)(s - owner->slots),
                                     .label = "bench"};
    bool signalled;
    return td_stream_enqueue(owner->stream, &submit, &s->sequence, &signalled, l->why, sizeof l->why) == TANDEM_OK;
}

static bool spin(route *l, route *owner, uint64_t sequence)
{
    const uint64_t begin = td_now_ns();
    while (td_stream_completed(owner->stream) < sequence)
        if (td_now_ns() - begin > LOOK_NS) {
            td_fail(l->why, sizeof l->why, TANDEM_ERROR_BUSY, "the stream did not finish");
            return false;
        }
    return true;
}

/* The GPU signals a job's point before the host hears of its end, from a daemon through one more thread: on a busy machine
 * frames come round faster than that. So where the session is full, the slot's last job, whose frame has ended, is waited
 * for; a job that does not end is then named instead. */
static bool submit_job(route *l, route_slot *s, uint64_t wait_value)
{
    const tandem_ticket last = s->ticket;
    tandem_job job = job_of(l, s);
    job.wait = (tandem_point){l->engine_timeline, wait_value};
    job.signal = (tandem_point){l->session_timeline, s->signal_value = ++l->done_value};
    tandem_status status = tandem_submit(l->session, &job, &s->ticket);
    if (status == TANDEM_ERROR_BUSY && last) {
        if (tandem_wait(l->session, last, LOOK_NS, NULL) == TANDEM_ERROR_BUSY)
            return broken(l, TANDEM_ERROR_BUSY, "the slot's last job");
        status = tandem_submit(l->session, &job, &s->ticket);
    }
    return ok(l, status, "tandem_submit");
}

/* Vulkan's own transform; `inner`: with stamps around it. */
static void record_transform(route *l, bench_vk *v, route_slot *s, uint32_t which, bool inner)
{
    const payload *p = l->payload;
    struct td_bench_push push = p->push;
    push.frame = s->frame;
    if (inner)
        bench_stamp(v, &s->gpu, which, true);
    if (p->kind == PAYLOAD_EMPTY) {
        const VkBufferCopy copy = {128, 0, 64};
        v->CmdCopyBuffer(s->gpu.commands[which], s->gpu.in, s->gpu.out, 1, &copy);
    } else {
        bench_dispatch(v, &s->gpu, which, p->kind == PAYLOAD_GATHER ? TD_BENCH_GATHER : TD_BENCH_COPY, &push,
                       p->out_groups);
    }
    if (inner)
        bench_stamp(v, &s->gpu, which, false);
}

/* inner: with stamps around the transform. */
static bool begin_frame(route *l, bench_vk *v, route_slot *s, bool inner)
{
    const uint64_t cpu = bench_thread_cpu_ns();
    bool good = true;
    memset(s->gpu.result.host, 0, sizeof(bench_result));
    ((bench_result *)s->gpu.result.host)->first = UINT32_MAX;
    s->begin_ns = td_now_ns();
    s->consumed = false;
    s->frame = ++l->frame;
    if (!bench_begin(v, &s->gpu, 0)) {
        td_fail(l->why, sizeof l->why, TANDEM_ERROR_DEVICE, "vkBeginCommandBuffer failed");
        return false;
    }
    record_producer(l, v, s);
    if (l->kind == ROUTE_VULKAN) {
        const bool empty = l->payload->kind == PAYLOAD_EMPTY;
        bench_barrier(v, &s->gpu, 0, empty ? TRANSFER : COMPUTE,
                      empty ? VK_ACCESS_TRANSFER_WRITE_BIT : VK_ACCESS_SHADER_WRITE_BIT, empty ? TRANSFER : COMPUTE,
                      empty ? VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT
                            : VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
        record_transform(l, v, s, 0, inner);
        bench_barrier(v, &s->gpu, 0, empty ? TRANSFER : COMPUTE,
                      empty ? VK_ACCESS_TRANSFER_WRITE_BIT : VK_ACCESS_SHADER_WRITE_BIT, empty ? TRANSFER : COMPUTE,
                      empty ? VK_ACCESS_TRANSFER_READ_BIT : VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
    } else if (l->kind != ROUTE_CHAIN && !record_turn(l, v, s, 0, TURN_OVER)) {
        return false;
    }
    if (l->kind == ROUTE_RECORDED) {
        const tandem_job job = job_of(l, s);
        if (inner)
            record_stamps_begin(s->gpu.queries, s->gpu.stamp_count);
        if (!ok(l, tandem_record(l->session, &job, s->gpu.commands[0], &s->ticket), "tandem_record"))
            return false;
        if (inner && !record_stamps_end()) {
            td_fail(l->why, sizeof l->why, TANDEM_ERROR_DEVICE, "a recorded job has no stamps");
            return false;
        }
        s->gpu.stamp_count += inner ? 2 : 0;
    }
    if (l->kind == ROUTE_SUBMITTED && l->job_first && !submit_job(l, s, l->engine_value + 1))
        return false;
    if (l->kind == ROUTE_VULKAN || l->kind == ROUTE_RECORDED) {
        if (!record_consumer(l, v, s, 0))
            return false;
        good = bench_submit(v, &s->gpu, 0, (bench_signal){0}, (bench_signal){0}, true);
    } else {
        good = bench_submit(v, &s->gpu, 0, (bench_signal){0}, (bench_signal){l->engine, ++l->engine_value}, false);
    }
    if (l->kind == ROUTE_CHAIN && good) {
        good = bench_begin(v, &s->gpu, 2);
        if (good)
            record_transform(l, v, s, 2, inner);
        good = good && bench_submit(v, &s->gpu, 2, (bench_signal){l->engine, l->engine_value},
                            (bench_signal){l->done, s->signal_value = ++l->done_value}, false);
    }
    if (!good) {
        td_fail(l->why, sizeof l->why, TANDEM_ERROR_DEVICE, "vkQueueSubmit failed");
        return false;
    }
    if (l->kind == ROUTE_SUBMITTED) {
        good = ok(l, tandem_timeline_submitted(l->session, l->engine_timeline, l->engine_value),
                  "tandem_timeline_submitted") &&
               (l->job_first || submit_job(l, s, l->engine_value));
    } else if (l->kind == ROUTE_PROBE) {
        const td_stream_point wait = {&l->cu_engine, l->engine, l->engine_value};
        const td_stream_point signal = {&l->cu_done, l->done, s->signal_value = ++l->done_value};
        good = enqueue_plan(l, l, s, &wait, &signal);
    }
    s->cpu_ns = bench_thread_cpu_ns() - cpu;
    return good;
}

/* The second submit, where there is one. Below the timeline rung the host learns first that the job has ended: a queue
 * with a submit that waits would hold up all that follows. */
static bool consume(route *l, bench_vk *v, route_slot *s)
{
    const bool host_first = l->kind == ROUTE_SUBMITTED && l->rung > TANDEM_RUNG_TIMELINE;
    s->consumed = true;
    if (l->kind == ROUTE_VULKAN || l->kind == ROUTE_RECORDED)
        return true;
    if (host_first && !ok(l,
                          tandem_point_wait(l->session, (tandem_point){l->session_timeline, s->signal_value}, WAIT_NS),
                          "tandem_point_wait"))
        return false;
    const uint64_t cpu = bench_thread_cpu_ns();
    if (!bench_begin(v, &s->gpu, 1) || !record_consumer(l, v, s, 1))
        return false;
    if (!bench_submit(v, &s->gpu, 1, (bench_signal){l->done, s->signal_value}, (bench_signal){0}, true)) {
        td_fail(l->why, sizeof l->why, TANDEM_ERROR_DEVICE, "vkQueueSubmit failed");
        return false;
    }
    s->cpu_ns += bench_thread_cpu_ns() - cpu;
    return true;
}

static bool check_result(route *l, route_slot *s)
{
    const payload *p = l->payload;
    const bench_result *r = s->gpu.result.host;
    const uint32_t groups = p->out_groups + (p->kind == PAYLOAD_ATTENTION ? p->checked_rows : 0);
    bool good = !r->errors && r->checked == groups;
    if (p->kind == PAYLOAD_EMPTY) {
        uint16_t values[32];
        empty_values(s->frame, values);
        good = !memcmp(values, r->bytes, sizeof values);
    }
    l->frames++;
    if (!good) {
        tandem_job_report report = TANDEM_INIT(tandem_job_report);
        if (l->session && s->ticket)
            tandem_wait(l->session, s->ticket, LOOK_NS, &report);
        l->wrong++;
        td_fail(l->why, sizeof l->why, TANDEM_ERROR_DEVICE,
                "frame %u is wrong: %u errors, the first at %u; %u of %u groups checked; job state %u, status %d",
                (unsigned)s->frame, (unsigned)r->errors, (unsigned)r->first, (unsigned)r->checked, (unsigned)groups,
                (unsigned)report.state, (int)report.status);
    }
    return good;
}

/* Begin and end of a job on the clock of the stamps; false where they are not known. */
static bool job_times(route *l, bench_vk *v, route_slot *s, uint64_t *begin, uint64_t *end)
{
    td_stream *stream = l->session ? l->session->stream : l->stream;
    const bool same = l->session ? l->session->same_clock : true;
    if (l->session) {
        tandem_job_report report = TANDEM_INIT(tandem_job_report);
        if (tandem_wait(l->session, s->ticket, LOOK_NS, &report) != TANDEM_OK || report.state != TANDEM_JOB_DONE ||
            !report.begin_ns)
            return false;
        *begin = report.begin_ns;
        *end = report.end_ns;
    } else if (!td_stream_times(stream, s->sequence, begin, end)) {
        return false;
    }
    if (stream && same) {
        *begin += (uint64_t)td_stream_clock_offset_ns(stream);
        *end += (uint64_t)td_stream_clock_offset_ns(stream);
        return true;
    }
    uint64_t device_ns, monotonic_ns;
    if (td_vk_calibrate(v->vk, &device_ns, &monotonic_ns) != TANDEM_OK)
        return false;
    *begin += device_ns - monotonic_ns;
    *end += device_ns - monotonic_ns;
    return true;
}

static double us_between(uint64_t from, uint64_t to)
{
    return 1e-3 * (double)(int64_t)(to - from);
}

static bool complete(route *l, bench_vk *v, route_slot *s, bool counted)
{
    uint64_t stamps[BENCH_STAMPS], begin, end;
    if (!bench_finish(v, &s->gpu, stamps)) {
        td_fail(l->why, sizeof l->why, TANDEM_ERROR_DEVICE, "a frame did not end");
        return false;
    }
    const uint64_t now = td_now_ns();
    l->last = s->ticket;
    if (!check_result(l, s))
        return false;
    if (!counted)
        return true;
    const uint64_t clock = ((bench_result *)s->gpu.result.host)->clock;
    /* Stamps: begin and end of the producer; of the transform; of the consumer. */
    if (s->gpu.stamp_count == 6) {
        bench_add(&l->gap_in, us_between(stamps[1], stamps[2]));
        bench_add(&l->job, us_between(stamps[2], stamps[3]));
        bench_add(&l->gap_out, us_between(stamps[3], clock ? clock : stamps[4]));
        return true;
    }
    bench_add(&l->round_trip, us_between(s->begin_ns, now));
    bench_add(&l->cpu, 1e-3 * (double)s->cpu_ns);
    if (s->gpu.stamp_count)
        bench_add(&l->between, us_between(stamps[1], clock ? clock : stamps[2]));
    if (is_vulkan(l) || l->kind == ROUTE_RECORDED || !job_times(l, v, s, &begin, &end))
        return true;
    bench_add(&l->job, us_between(begin, end));
    if (s->gpu.stamp_count) {
        bench_add(&l->gap_in, us_between(stamps[1], begin));
        bench_add(&l->gap_out, us_between(end, clock ? clock : stamps[2]));
    }
    return true;
}

/* CUDA alone: the inputs are written and the output is checked outside of what is timed. */
static bool cuda_alone(route *l, bench_vk *v, bool counted)
{
    route *p = l->probe;
    route_slot *s = &p->slots[0];
    uint64_t begin_ns, end_ns;
    uint64_t stamps[BENCH_STAMPS];
    memset(s->gpu.result.host, 0, sizeof(bench_result));
    s->frame = ++p->frame;
    if (!bench_begin(v, &s->gpu, 0))
        return false;
    record_producer(p, v, s);
    record_turn(p, v, s, 0, TURN_OVER);
    if (!bench_submit(v, &s->gpu, 0, (bench_signal){0}, (bench_signal){0}, true) ||
        v->WaitForFences(v->engine.device, 1, &s->gpu.fence, VK_TRUE, WAIT_NS) != VK_SUCCESS)
        return false;
    const uint64_t cpu = bench_thread_cpu_ns(), from = td_now_ns();
    if (!enqueue_plan(l, p, s, NULL, NULL))
        return false;
    const uint64_t cpu_ns = bench_thread_cpu_ns() - cpu;
    if (!spin(l, p, s->sequence))
        return false;
    const uint64_t to = td_now_ns();
    if (!bench_begin(v, &s->gpu, 1) || !record_consumer(p, v, s, 1))
        return false;
    if (!bench_submit(v, &s->gpu, 1, (bench_signal){0}, (bench_signal){0}, true) || !bench_finish(v, &s->gpu, stamps))
        return false;
    const bool good = check_result(p, s);
    l->frames++;
    if (!good)
        snprintf(l->why, sizeof l->why, "%s", p->why);
    if (counted && good && td_stream_times(p->stream, s->sequence, &begin_ns, &end_ns)) {
        bench_add(&l->round_trip, us_between(from, to));
        bench_add(&l->cpu, 1e-3 * (double)cpu_ns);
        bench_add(&l->job, us_between(begin_ns, end_ns));
    }
    return good;
}

bool route_single(route *l, bench_vk *v, bool counted)
{
    if (l->kind == ROUTE_CUDA) {
        const bool good = cuda_alone(l, v, counted);
        if (!good && !l->why[0])
            snprintf(l->why, sizeof l->why, "a frame failed");
        return good;
    }
    route_slot *s = &l->slots[l->frame % ROUTE_SLOTS];
    const bool stamped = is_vulkan(l) || l->kind == ROUTE_RECORDED;
    const bool inner = stamped && l->payload->kind != PAYLOAD_EMPTY && counted && l->frame % 2;
    return begin_frame(l, v, s, inner) && consume(l, v, s) && complete(l, v, s, counted);
}

bool route_jobs(route *l, uint32_t in_flight, bool (*more)(void *user), void *user)
{
    bool ends = false;
    for (uint64_t begun = 0, ended = 0; !ends || ended < begun;) {
        ends = ends || !more(user);
        if (!ends) {
            route_slot *s = &l->slots[begun++ % in_flight];
            tandem_job job = job_of(l, s);
            job.signal = (tandem_point){l->session_timeline, s->signal_value = ++l->done_value};
            if (!ok(l, tandem_submit(l->session, &job, &s->ticket), "tandem_submit"))
                return false;
        }
        if (begun - ended == in_flight || (ends && ended < begun)) {
            const route_slot *s = &l->slots[ended++ % in_flight];
            tandem_job_report report = TANDEM_INIT(tandem_job_report);
            if (!ok(l, tandem_point_wait(l->session, (tandem_point){l->session_timeline, s->signal_value}, WAIT_NS),
                    "tandem_point_wait") ||
                !ok(l, tandem_wait(l->session, s->ticket, LOOK_NS, &report), "tandem_wait") ||
                !ok(l, report.state == TANDEM_JOB_DONE ? TANDEM_OK : report.status ? report.status : TANDEM_ERROR_LOST,
                    "a job"))
                return false;
            l->last = s->ticket;
            l->frames++;
        }
    }
    return true;
}

bool route_pipelined(route *l, bench_vk *v, uint32_t frames)
{
    const uint64_t cpu = bench_process_cpu_ns(), from = td_now_ns();
    const uint32_t first = l->frame;
    if (l->kind == ROUTE_CUDA) {
        route *p = l->probe;
        for (uint32_t i = 0; i < frames; i++) {
            route_slot *s = &p->slots[i % ROUTE_SLOTS];
            if ((i >= ROUTE_SLOTS && !spin(l, p, s->sequence)) || !enqueue_plan(l, p, s, NULL, NULL))
                return false;
        }
        if (!spin(l, p, p->slots[(frames - 1) % ROUTE_SLOTS].sequence))
            return false;
    } else {
        for (uint32_t i = 0; i < frames + ROUTE_SLOTS; i++) {
            route_slot *const slots = l->slots;
            if (i >= ROUTE_SLOTS && !complete(l, v, &slots[(first + i) % ROUTE_SLOTS], false))
                return false;
            if (i < frames && !begin_frame(l, v, &slots[(first + i) % ROUTE_SLOTS], false))
                return false;
            if (i >= ROUTE_SLOTS - 1 && i - (ROUTE_SLOTS - 1) < frames &&
                !consume(l, v, &slots[(first + i - (ROUTE_SLOTS - 1)) % ROUTE_SLOTS]))
                return false;
        }
    }
    bench_add(&l->in_flight, us_between(from, td_now_ns()) / frames);
    bench_add(&l->process_cpu, 1e-3 * (double)(bench_process_cpu_ns() - cpu) / frames);
    return true;
}

bool route_waiting(route *l, bench_vk *v, bool by_fd, double seconds, bench_series *us, double *core)
{
    enum { A_SECOND = 240 };
    const uint64_t period = 1000000000ull / A_SECOND, count = (uint64_t)(seconds * A_SECOND);
    route_slot *s = &l->slots[0];
    /* The inputs are written once, by a whole frame. */
    if (!route_single(l, v, false))
        return false;
    const uint64_t cpu = bench_process_cpu_ns(), begin = td_now_ns();
    uint64_t submits = 0;
    for (uint64_t i = 0; i < count; i++) {
        tandem_job job = job_of(l, s);
        tandem_job_report report = TANDEM_INIT(tandem_job_report);
        const tandem_point point = {l->session_timeline, ++l->done_value};
        uint64_t seen;
        const uint64_t due = begin + (i + 1) * period, now = td_now_ns();
        if (due > now)
            bench_sleep_ns(due - now);
        job.signal = point;
        const uint64_t before = bench_thread_cpu_ns();
        if (!ok(l, tandem_submit(l->session, &job, &s->ticket), "tandem_submit"))
            return false;
        submits += bench_thread_cpu_ns() - before;
        if (by_fd) {
            int fd = -1;
            if (!ok(l, tandem_point_fd(l->session, point, &fd), "tandem_point_fd"))
                return false;
            struct pollfd waiting = {.fd = fd, .events = POLLIN};
            const int ready = poll(&waiting, 1, 5000);
            seen = td_now_ns();
            close(fd);
            if (ready != 1)
                return broken(l, TANDEM_ERROR_BUSY, "poll() on a point's descriptor");
        } else {
            if (!ok(l, tandem_point_wait(l->session, point, WAIT_NS), "tandem_point_wait"))
                return false;
            seen = td_now_ns();
        }
        if (!ok(l, tandem_wait(l->session, s->ticket, LOOK_NS, &report), "tandem_wait") || !report.end_ns)
            return false;
        bench_add(us, us_between(report.end_ns, seen));
    }
    *core = (double)(bench_process_cpu_ns() - cpu - submits) / (double)(td_now_ns() - begin);
    return true;
}

void routes_measure(route *routes, uint32_t count, bench_vk *v, const payload *p, uint32_t rounds, double round_ms)
{
    enum { MOST_ROUTES = 16, MOST_SINGLES = 50, MOST_FLYING = 200, LEAST_WARM = 3, MOST_WARM = 2 * ROUTE_SLOTS + 1 };
    uint32_t singles[MOST_ROUTES], flying[MOST_ROUTES];
    for (uint32_t i = 0; i < count; i++) {
        route *l = &routes[i];
        route_prepare(l, v, p);
        /* Drivers compile and load when something first runs, and each slot of a session takes its memory then. */
        const uint64_t begin = td_now_ns();
        uint64_t last = begin;
        for (int warm = 0; warm < MOST_WARM && (warm < LEAST_WARM || last < begin + LOOK_NS) && !l->why[0]; warm++) {
            last = td_now_ns();
            route_single(l, v, false);
        }
        const double ms = 1e-6 * (double)(td_now_ns() - last) + 1e-3;
        singles[i] = 2 * (uint32_t)fmin(MOST_SINGLES / 2, fmax(1, round_ms / ms / 2)); /* half with inner stamps */
        flying[i] = (uint32_t)fmin(MOST_FLYING, fmax(4, round_ms / ms));
    }
    for (uint32_t round = 0; round < rounds; round++)
        for (uint32_t i = 0; i < count; i++) {
            route *l = &routes[i];
            /* The first frame after another route's pays for its context, or its clocks. */
            for (uint32_t n = 0; n <= singles[i] && !l->why[0]; n++)
                route_single(l, v, n > 0);
            if (!l->why[0])
                route_pipelined(l, v, flying[i]);
        }
    for (uint32_t i = 0; i < count; i++)
        route_unprepare(&routes[i], v);
}

double route_waited_us(const route *l)
{
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    if (tandem_wait(l->session, l->last, LOOK_NS, &report) != TANDEM_OK || report.state != TANDEM_JOB_DONE ||
        !report.begin_ns)
        return NAN;
    return us_between(report.submit_ns, report.begin_ns);
}
