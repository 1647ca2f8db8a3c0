/* The inline rung: CUDA kernels within Vulkan command buffers, on a GPU that has VK_NVX_binary_import; elsewhere on the
 * fake of tests/fake_nvx.h, where the kernels are their CPU twins.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * TANDEM_EXPECT_GPU=1: it must be the GPU. --bench measures gaps and CPU time instead.
 */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/params.h"
#include "tandem/vulkan.h"
#include "tests/attention_util.h"
#include "tests/fake_nvx.h"

#define LIMIT_NS 20000000000ull
#define STORAGE                                                                                                        \
    (VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT)
#define F fake_nvx_state

static vku gpu;
static td_vk *vk;
static td_stream *stream;
static uint32_t sm = 90;
static char why[400];

const td_cubin *__real_td_cubins(uint32_t *count);
const td_cubin *__wrap_td_cubins(uint32_t *count);
tandem_status __real_td_cu_device_query(const uint8_t *uuid, td_cu_info *info, char *text, size_t bytes);
tandem_status __wrap_td_cu_device_query(const uint8_t *uuid, td_cu_info *info, char *text, size_t bytes);

const td_cubin *__wrap_td_cubins(uint32_t *count)
{
    return F.real ? __real_td_cubins(count) : fake_nvx_cubins(count);
}

tandem_status __wrap_td_cu_device_query(const uint8_t *uuid, td_cu_info *info, char *text, size_t bytes)
{
    if (F.real)
        return __real_td_cu_device_query(uuid, info, text, bytes);
    *info = (td_cu_info){.name = "a GPU that is none", .sm = 90};
    memcpy(info->uuid, uuid, sizeof info->uuid);
    return TANDEM_OK;
}

static void must(tandem_status status)
{
    if (status != TANDEM_OK)
        fail_msg("status %d: %s", (int)status, why);
}

static td_inline_desc desc_here(void)
{
    return (td_inline_desc){.vk = vk, .sm = sm, .queue = gpu.queue};
}

static td_stream *new_stream(void)
{
    const td_inline_desc desc = desc_here();
    td_stream *made = NULL;

    must(td_stream_create_inline(&desc, NULL, &made, why, sizeof why));
    return made;
}

/* --- A case in Vulkan memory --- */

typedef struct vk_case {
    td_vk_mem mems[TD_VIEW_COUNT], scratch;
    uint64_t views[TD_VIEW_COUNT];
} vk_case;

static void vk_case_make(vk_case *it, const tu_case *of)
{
    const tu_tensor *tensors[TD_VIEW_COUNT] = {&of->q, &of->k, &of->v, &of->o, &of->lse};

    memset(it, 0, sizeof *it);
    for (int i = 0; i < TD_VIEW_COUNT; i++)
        if (tensors[i]->data) {
            must(td_vk_mem_create_mapped(vk, tensors[i]->bytes + TU_GUARD_BYTES, STORAGE, &it->mems[i], why,
                                         sizeof why));
            it->views[i] = it->mems[i].address;
            memcpy(it->mems[i].host, tensors[i]->data, tensors[i]->bytes + TU_GUARD_BYTES);
            if (i >= TD_VIEW_O)
                memset(it->mems[i].host, TU_POISON, tensors[i]->bytes + TU_GUARD_BYTES);
        }
    must(td_vk_mem_create_device(vk, of->plan.scratch_bytes, STORAGE, &it->scratch, why, sizeof why));
}

static void vk_case_free(vk_case *it)
{
    for (int i = 0; i < TD_VIEW_COUNT; i++)
        td_vk_mem_free(vk, &it->mems[i]);
    td_vk_mem_free(vk, &it->scratch);
}

static td_stream_submit submit_of(const vk_case *it, const td_plan *plan)
{
    return (td_stream_submit){.plan = plan, .views = it->views, .scratch = it->scratch.address, .label = "test"};
}

static void run(const td_stream_submit *submit)
{
    uint64_t sequence = 0;
    bool signalled;

    must(td_stream_enqueue(stream, submit, &sequence, &signalled, why, sizeof why));
    assert_int_equal(td_stream_wait(stream, sequence), TANDEM_OK);
    assert_true(td_stream_completed(stream) >= sequence);
    must(td_stream_status(stream, why, sizeof why));
}

/* What the plan of `of` must give, guard included: of the same cubin on a CUDA stream, or of the CPU twin. */
static void expected(const tu_case *of, tu_tensor *o, tu_tensor *lse)
{
    const tu_tensor *tensors[TD_VIEW_COUNT] = {&of->q, &of->k, &of->v, o, lse};
    td_stream_submit submit = {.plan = &of->plan, .label = "test"};
    td_cu_mem mems[TD_VIEW_COUNT] = {0}, scratch = {0};
    uint64_t views[TD_VIEW_COUNT] = {0}, sequence, begin;
    td_stream *cuda = NULL;
    td_cu_device *device = NULL;
    bool signalled;

    if (!F.real)
        return; /* tu_case_run() has left it there */
    must(td_cu_device_open(td_vk_get_caps(vk)->device_uuid, NULL, &device, why, sizeof why));
    must(td_stream_create(device, NULL, &cuda, why, sizeof why));
    tu_poison(o);
    if (lse->data)
        tu_poison(lse);
    for (int i = 0; i < TD_VIEW_COUNT; i++)
        if (tensors[i]->data) {
            must(td_cu_mem_alloc(device, tensors[i]->bytes + TU_GUARD_BYTES, &mems[i], why, sizeof why));
            must(td_cu_copy_to_device(device, mems[i].address, tensors[i]->data, tensors[i]->bytes + TU_GUARD_BYTES));
            views[i] = mems[i].address;
        }
    must(td_cu_mem_alloc(device, of->plan.scratch_bytes, &scratch, why, sizeof why));
    submit.views = views;
    submit.scratch = scratch.address;
    must(td_stream_enqueue(cuda, &submit, &sequence, &signalled, why, sizeof why));
    begin = td_now_ns();
    while (td_stream_completed(cuda) < sequence)
        assert_true(td_now_ns() - begin < LIMIT_NS);
    must(td_cu_copy_to_host(device, o->data, mems[TD_VIEW_O].address, o->bytes + TU_GUARD_BYTES));
    if (lse->data)
        must(td_cu_copy_to_host(device, lse->data, mems[TD_VIEW_LSE].address, lse->bytes + TU_GUARD_BYTES));
    td_stream_destroy(&cuda, LIMIT_NS);
    for (int i = 0; i < TD_VIEW_COUNT; i++)
        td_cu_mem_free(device, &mems[i]);
    td_cu_mem_free(device, &scratch);
    td_cu_device_close(&device);
}

static void same(const char *what, const vk_case *got, int view, const tu_tensor *wanted)
{
    const unsigned char *a = got->mems[view].host, *b = wanted->data;

    for (size_t i = 0; i < wanted->bytes + TU_GUARD_BYTES; i++)
        if (a[i] != b[i])
            fail_msg("%s: byte %zu of %zu is %02x, not %02x", what, i, wanted->bytes, a[i], b[i]);
}

static void check_case(const tu_shape *shape, const char *name)
{
    const td_target target = td_target_for_sm(sm);
    td_stream_submit submit;
    tu_case it;
    vk_case on;

    tu_case_init(&it, shape);
    assert_int_equal(tu_case_run(&it, &target, 2), TANDEM_OK);
    vk_case_make(&on, &it);
    submit = submit_of(&on, &it.plan);
    run(&submit);
    expected(&it, &it.o, &it.lse);
    same(name, &on, TD_VIEW_O, &it.o);
    if (it.lse.data)
        same(name, &on, TD_VIEW_LSE, &it.lse);
    vk_case_free(&on);
    tu_case_free(&it);
}

/* --- Plans --- */

static const uint32_t dims[] = {32, 64, 80, 96, 128, 256};
static const char *const precisions[] = {"auto", "f16", "8b", "4b"};

static void test_attention(void **state)
{
    (void)state;
    for (uint32_t precision = TANDEM_PRECISION_F16; precision <= TANDEM_PRECISION_4B; precision++)
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
            const tu_shape shape = {.heads = 4,
                                    .kv_heads = 2,
                                    .q_len = 150,
                                    .kv_len = 200,
                                    .head_dim = dims[d],
                                    .precision = precision,
                                    .causal = d % 2,
                                    .lse = d % 3 == 0,
                                    .dtype_q = TANDEM_DTYPE_F16,
                                    .dtype_k = TANDEM_DTYPE_F16,
                                    .dtype_v = TANDEM_DTYPE_F16,
                                    .dtype_o = d % 2 ? TANDEM_DTYPE_F16 : TANDEM_DTYPE_F32,
                                    .layout = TU_BY_ROW,
                                    .seed = precision * 10 + d};
            char name[32];

            snprintf(name, sizeof name, "%s d%u", precisions[precision], dims[d]);
            if (precision == TANDEM_PRECISION_F16 && dims[d] == 256) {
                const td_target target = td_target_for_sm(sm);
                tu_case it;

                tu_case_init(&it, &shape);
                must(td_plan_attention(&it.op, &target, &it.plan, NULL, why, sizeof why));
                F.launches = 0;
                assert_int_equal(td_inline_check(stream, &it.plan, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
                assert_non_null(strstr(why, "attn_f16_d256"));
                assert_non_null(strstr(why, "48128"));
                assert_int_equal(F.launches, 0);
                tu_case_free(&it);
                continue;
            }
            check_case(&shape, name);
        }
}

static void test_many_plans_in_a_row(void **state)
{
    const tu_shape big = {.batch = 3, .heads = 2, .q_len = 300, .kv_len = 500, .head_dim = 64, .seed = 5,
                          .smooth = TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K | TANDEM_SMOOTH_V, .precision = TANDEM_PRECISION_8B};

    (void)state;
    for (int i = 0; i < 5; i++)
        check_case(&big, "8b, all smoothed");
}

/* Within a command buffer nothing but barriers says what comes before what. */
static void test_order(void **state)
{
    (void)state;
    if (F.real)
        return;
    F.backwards = true;
    for (uint32_t precision = TANDEM_PRECISION_F16; precision <= TANDEM_PRECISION_4B; precision++) {
        const tu_shape shape = {.q_len = 130, .kv_len = 130, .head_dim = 64, .precision = precision, .lse = 1,
                                .granularity = precision == TANDEM_PRECISION_8B ? TANDEM_GRANULARITY_TENSOR : 0,
                                .smooth = precision == TANDEM_PRECISION_F16
                                              ? 0
                                              : TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K | TANDEM_SMOOTH_V};
        check_case(&shape, "backwards");
    }
    F.backwards = false;
}

/* --- Barriers --- */

static td_plan *hand_made(uint32_t records)
{
    static const td_kernel kernel = {.name = "mean_final", .entry = "mean_final"};
    td_plan *plan = calloc(1, sizeof *plan);

    assert_non_null(plan);
    plan->record_count = records;
    for (uint32_t i = 0; i < records; i++)
        plan->records[i] = (td_record){.kernel = &kernel,
                                       .grid = {1, 1, 1},
                                       .block = {TD_BLOCK_THREADS, 1, 1},
                                       .registers = 32,
                                       .param_bytes = sizeof(td_params_mean_final)};
    return plan;
}

static void reads(td_plan *plan, uint32_t record, uint32_t base, uint32_t view, uint64_t begin, uint64_t end)
{
    td_record *r = &plan->records[record];

    r->reads[r->read_count++] = (td_range){base, view, begin, end};
}

static void writes(td_plan *plan, uint32_t record, uint32_t base, uint32_t view, uint64_t begin, uint64_t end)
{
    td_record *r = &plan->records[record];

    r->writes[r->write_count++] = (td_range){base, view, begin, end};
}

/* Records it, without ever submitting; returns the barriers between records, data_barriers those that carry data. */
static unsigned count_barriers(td_plan *plan, unsigned *data)
{
    const uint64_t views[TD_VIEW_COUNT] = {0};
    const td_stream_submit submit = {.plan = plan, .views = views, .scratch = 4096, .label = "never submitted"};
    VkCommandBuffer commands = vku_begin(&gpu);
    uint64_t number;
    unsigned count;

    assert_non_null(commands);
    F.barriers = F.data_barriers = F.wide_barriers = F.launches = 0;
    must(td_inline_record(stream, &submit, commands, &number, why, sizeof why));
    assert_int_equal(F.launches, plan->record_count + 2);
    assert_int_equal(F.wide_barriers, 0);
    count = F.barriers - 2;
    *data = F.data_barriers - 2;
    assert_int_equal(gpu.EndCommandBuffer(commands), VK_SUCCESS);
    gpu.FreeCommandBuffers(gpu.device, gpu.pool, 1, &commands);
    free(plan);
    return count;
}

#define SCRATCH TD_BASE_SCRATCH, 0
#define VIEW(i) TD_BASE_VIEW, i
#define BARRIERS(plan, all, with_data)                             \
    do {                                                           \
        assert_int_equal(count_barriers(plan, &data), all);        \
        assert_int_equal(data, with_data);                         \
    } while (0)

static void test_barriers(void **state)
{
    td_plan *plan;
    unsigned data;

    (void)state;
    BARRIERS(hand_made(0), 0, 0);
    /* independent: they read the same, write side by side, into different views and bases */
    plan = hand_made(4);
    for (uint32_t i = 0; i < 4; i++)
        reads(plan, i, VIEW(TD_VIEW_Q), 0, 4096);
    writes(plan, 0, SCRATCH, 0, 256);
    writes(plan, 1, SCRATCH, 256, 512);
    writes(plan, 2, VIEW(TD_VIEW_O), 0, 256);
    writes(plan, 3, VIEW(TD_VIEW_LSE), 0, 256);
    BARRIERS(plan, 0, 0);
    /* read after write, by one byte */
    plan = hand_made(2);
    writes(plan, 0, SCRATCH, 0, 257);
    reads(plan, 1, SCRATCH, 256, 512);
    BARRIERS(plan, 1, 1);
    /* write after write */
    plan = hand_made(2);
    writes(plan, 0, VIEW(TD_VIEW_O), 0, 256);
    writes(plan, 1, VIEW(TD_VIEW_O), 128, 129);
    BARRIERS(plan, 1, 1);
    /* write after read: an order, no data */
    plan = hand_made(2);
    reads(plan, 0, SCRATCH, 0, 256);
    writes(plan, 1, SCRATCH, 0, 256);
    BARRIERS(plan, 1, 0);
    /* one barrier serves all before it; what comes behind it is independent again */
    plan = hand_made(5);
    writes(plan, 0, SCRATCH, 0, 256);
    writes(plan, 1, SCRATCH, 256, 512);
    reads(plan, 2, SCRATCH, 0, 512);
    writes(plan, 2, SCRATCH, 512, 768);
    reads(plan, 3, SCRATCH, 0, 256);
    reads(plan, 4, SCRATCH, 512, 513);
    BARRIERS(plan, 2, 2);
    /* the words of the job */
    plan = hand_made(2);
    writes(plan, 0, TD_BASE_CONTROL, 0, 0, 64);
    reads(plan, 1, TD_BASE_CONTROL, 0, 0, 4);
    BARRIERS(plan, 1, 1);
}

static void test_barriers_of_attention(void **state)
{
    const tu_shape shape = {.q_len = 256, .kv_len = 512, .head_dim = 64, .precision = TANDEM_PRECISION_8B};
    td_target target = td_target_for_sm(sm);
    td_plan *plan = calloc(1, sizeof *plan);
    unsigned data;
    tu_case it;

    (void)state;
    assert_non_null(plan);
    tu_case_init(&it, &shape);
    /* (partial means of K, amax of V) | mean of K | codes of K, V and Q | attention; the order of the records makes the
     * second of V's wait with the codes */
    must(td_plan_attention(&it.op, &target, plan, NULL, why, sizeof why));
    BARRIERS(plan, 3, 3);
    /* and one to claim the output, one to write it */
    target.commit = true;
    plan = calloc(1, sizeof *plan);
    assert_non_null(plan);
    must(td_plan_attention(&it.op, &target, plan, NULL, why, sizeof why));
    BARRIERS(plan, 5, 5);
    tu_case_free(&it);
}

/* --- Limits --- */

static void refused(td_plan *plan, const char *limit)
{
    const uint64_t views[TD_VIEW_COUNT] = {0};
    const td_stream_submit submit = {.plan = plan, .views = views, .scratch = 4096, .label = "never submitted"};
    VkCommandBuffer commands = vku_begin(&gpu);
    uint64_t number = 0, sequence = 0;
    bool signalled = false;

    assert_non_null(commands);
    F.launches = F.barriers = F.submits = 0;
    assert_int_equal(td_inline_check(stream, plan, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
    if (!strstr(why, limit))
        fail_msg("'%s' does not name %s", why, limit);
    assert_int_equal(td_inline_record(stream, &submit, commands, &number, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
    assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why),
                     TANDEM_ERROR_UNSUPPORTED);
    assert_int_equal(number | sequence | F.launches | F.barriers | F.submits, 0);
    assert_false(signalled);
    assert_int_equal(gpu.EndCommandBuffer(commands), VK_SUCCESS);
    gpu.FreeCommandBuffers(gpu.device, gpu.pool, 1, &commands);
    free(plan);
}

#define REFUSED(change, limit)              \
    do {                                    \
        td_plan *plan_ = hand_made(2);      \
        td_record *r = &plan_->records[1];  \
        change;                             \
        refused(plan_, limit);              \
    } while (0)

static void test_refusals(void **state)
{
    static const td_kernel unknown = {.name = "no_such_kernel", .entry = "no_such_kernel"},
                           host_only = {.name = "of_the_cpu_alone"};
    const tu_shape shape = {.q_len = 100, .kv_len = 100, .head_dim = 64};

    (void)state;
    REFUSED(r->shared_bytes = 48 * 1024, "48128");
    REFUSED(r->shared_bytes = UINT32_MAX, "shared memory");
    REFUSED(r->registers = 255; r->block[0] = 512, "registers");
    REFUSED(r->block[0] = 2048, "2048 threads");
    REFUSED(r->block[1] = 0, "0 threads");
    REFUSED(r->flags = TD_RECORD_CLUSTER, "clusters");
    REFUSED(r->flags = TD_RECORD_TENSOR_MAPS, "tensor maps");
    REFUSED(r->reloc_count = 1; r->relocs[0].kind = TD_RELOC_TENSOR_MAP, "tensor maps");
    REFUSED(r->local_bytes = 13000, "13000 bytes of local memory");
    REFUSED(r->grid[0] = 0, "grid of 0 in x");
    REFUSED(r->grid[0] = 0x80000000u, "grid of 2147483648 in x");
    REFUSED(r->grid[1] = 65536, "grid of 65536 in y");
    REFUSED(r->grid[2] = 65536, "grid of 65536 in z");
    REFUSED(r->param_bytes = 0, "0 bytes of parameters");
    REFUSED(r->param_bytes = TD_PARAM_BYTES + 1, "257 bytes of parameters");
    REFUSED(r->kernel = &unknown, "no_such_kernel");
    REFUSED(r->kernel = &host_only, "of_the_cpu_alone");
    /* what it does without is no reason to refuse it */
    td_plan *plan = hand_made(1);
    plan->records[0].flags = TD_RECORD_PDL;
    must(td_inline_check(stream, plan, why, sizeof why));
    free(plan);
    /* and the device lives */
    check_case(&shape, "after refusals");
}

/* --- Recorded plans --- */

static void submit_commands(VkCommandBuffer commands)
{
    const VkSubmitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &commands};

    assert_int_equal(gpu.QueueSubmit(gpu.queue, 1, &info, VK_NULL_HANDLE), VK_SUCCESS);
    assert_int_equal(gpu.DeviceWaitIdle(gpu.device), VK_SUCCESS);
}

static void test_recorded(void **state)
{
    const tu_shape shape = {.q_len = 100, .kv_len = 300, .head_dim = 128, .precision = TANDEM_PRECISION_8B};
    const td_target target = td_target_for_sm(sm);
    uint64_t first, second, third, begin, end, before, now;
    VkCommandBuffer commands[3];
    td_stream_submit submit;
    tu_case it;
    vk_case on;

    (void)state;
    tu_case_init(&it, &shape);
    assert_int_equal(tu_case_run(&it, &target, 2), TANDEM_OK);
    vk_case_make(&on, &it);
    submit = submit_of(&on, &it.plan);
    expected(&it, &it.o, &it.lse);
    for (int i = 0; i < 3; i++)
        commands[i] = vku_begin(&gpu);
    must(td_inline_record(stream, &submit, commands[0], &first, why, sizeof why));
    must(td_inline_record(stream, &submit, commands[1], &second, why, sizeof why));
    must(td_inline_record(stream, &submit, commands[2], &third, why, sizeof why));
    assert_true(first < second && second < third);
    for (int i = 0; i < 3; i++)
        assert_int_equal(gpu.EndCommandBuffer(commands[i]), VK_SUCCESS);
    assert_false(td_inline_begun(stream, first) || td_inline_ran(stream, first, &begin, &end));

    /* in whatever order */
    before = td_now_ns();
    submit_commands(commands[1]);
    now = td_now_ns();
    assert_true(td_inline_begun(stream, second) && td_inline_ran(stream, second, &begin, &end));
    assert_true(begin <= end && begin + 1000000 > before && end < now + 1000000);
    assert_false(td_inline_ran(stream, first, &begin, &end));
    same("recorded", &on, TD_VIEW_O, &it.o);
    submit_commands(commands[0]);
    assert_true(td_inline_ran(stream, first, &begin, &end));
    /* again, on what it was given up for and not */
    memset(on.mems[TD_VIEW_O].host, TU_POISON, it.o.bytes);
    assert_false(td_inline_cancelled(stream, first));
    td_inline_cancel(stream, first);
    td_inline_cancel(stream, third);
    assert_true(td_inline_cancelled(stream, first) && !td_inline_cancelled(stream, second));
    submit_commands(commands[0]);
    submit_commands(commands[2]);
    assert_true(td_inline_ran(stream, third, &begin, &end));
    for (size_t i = 0; i < it.o.bytes; i++)
        assert_int_equal(((unsigned char *)on.mems[TD_VIEW_O].host)[i], TU_POISON);
    submit_commands(commands[1]);
    same("recorded, submitted twice", &on, TD_VIEW_O, &it.o);
    gpu.FreeCommandBuffers(gpu.device, gpu.pool, 3, commands);
    vk_case_free(&on);
    tu_case_free(&it);
}

/* --- The stream --- */

static void test_points(void **state)
{
    const tu_shape shape = {.q_len = 64, .kv_len = 64, .head_dim = 32};
    const td_target target = td_target_for_sm(sm);
    VkSemaphore in = VK_NULL_HANDLE, out = VK_NULL_HANDLE;
    uint64_t sequence, value = 0, begin, end;
    td_stream_point wait, signal;
    td_stream_submit submit;
    bool signalled = false;
    tu_case it;
    vk_case on;

    (void)state;
    tu_case_init(&it, &shape);
    assert_int_equal(tu_case_run(&it, &target, 2), TANDEM_OK);
    vk_case_make(&on, &it);
    must(td_vk_timeline_create(vk, 0, false, &in, why, sizeof why));
    must(td_vk_timeline_create(vk, 0, false, &out, why, sizeof why));
    submit = submit_of(&on, &it.plan);
    wait = (td_stream_point){NULL, in, 3};
    signal = (td_stream_point){NULL, out, 7};
    submit.wait = &wait;
    submit.signal = &signal;
    submit.slot = 5;
    if (!F.real) /* the fake waits on the host, within the submit */
        must(td_vk_timeline_signal(vk, in, 3));
    must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why));
    assert_true(signalled);
    if (F.real) {
        assert_true(td_stream_completed(stream) < sequence);
        assert_false(td_stream_drain(stream, 1000000));
        must(td_vk_timeline_signal(vk, in, 3));
    }
    assert_int_equal(td_vk_timeline_wait(vk, out, 7, LIMIT_NS), TANDEM_OK);
    assert_int_equal(td_stream_wait(stream, sequence), TANDEM_OK);
    assert_true(td_stream_drain(stream, LIMIT_NS));
    must(td_vk_timeline_value(vk, out, &value));
    assert_int_equal(value, 7);
    assert_true(td_stream_times(stream, sequence, &begin, &end) && begin <= end);
    assert_true(td_stream_begun(stream, sequence));
    expected(&it, &it.o, &it.lse);
    same("after a wait", &on, TD_VIEW_O, &it.o);
    td_vk_timeline_destroy(vk, &in);
    td_vk_timeline_destroy(vk, &out);
    vk_case_free(&on);
    tu_case_free(&it);
}

/* Frames in slots of their own cost no allocation, no copy and no wait. */
static void test_frame_counts(void **state)
{
    enum { SLOTS = 3, WARM = 4 * SLOTS, FRAMES = 100 };
    const tu_shape shape = {.q_len = 64, .kv_len = 64, .head_dim = 32};
    const td_target target = td_target_for_sm(sm);
    td_stream_submit submit;
    uint64_t sequence = 0;
    tu_case it;
    vk_case on;

    (void)state;
    tu_case_init(&it, &shape);
    assert_int_equal(tu_case_run(&it, &target, 2), TANDEM_OK);
    vk_case_make(&on, &it);
    submit = submit_of(&on, &it.plan);
    for (uint32_t frame = 0; frame < WARM + FRAMES; frame++) {
        const uint64_t begin = td_now_ns();
        bool signalled;

        if (frame == WARM)
            F.allocations = F.copies = F.host_waits = 0;
        while (sequence >= SLOTS && td_stream_completed(stream) + SLOTS <= sequence)
            assert_true(td_now_ns() - begin < LIMIT_NS);
        submit.slot = frame % SLOTS;
        must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why));
    }
    assert_int_equal(F.allocations, 0);
    assert_int_equal(F.copies, 0);
    assert_int_equal(F.host_waits, 0);
    assert_int_equal(td_stream_wait(stream, sequence), TANDEM_OK);
    vk_case_free(&on);
    tu_case_free(&it);
}

static void test_upload(void **state)
{
    enum { BYTES = (20 << 20) + 5, AT = 3 };
    unsigned char *data = malloc(BYTES);
    td_vk_mem device = {0};
    vku_buffer back;
    VkCommandBuffer commands;
    VkBufferCopy copy = {.srcOffset = AT, .size = BYTES};

    (void)state;
    assert_non_null(data);
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (unsigned char)(i * 7 + i / 251);
    must(td_vk_mem_create_device(vk, BYTES + AT, STORAGE, &device, why, sizeof why));
    must(td_inline_upload(stream, &device, AT, data, BYTES, why, sizeof why));
    assert_int_equal(vku_buffer_create(&gpu, BYTES, VK_BUFFER_USAGE_TRANSFER_DST_BIT, &back), VK_SUCCESS);
    commands = vku_begin(&gpu);
    gpu.CmdCopyBuffer(commands, device.buffer, back.buffer, 1, &copy);
    assert_int_equal(vku_run(&gpu, commands), VK_SUCCESS);
    assert_memory_equal(back.host, data, BYTES);
    vku_buffer_destroy(&gpu, &back);
    td_vk_mem_free(vk, &device);
    free(data);
}

/* --- Creation --- */

static void test_create_and_destroy(void **state)
{
    const int live = F.live;

    (void)state;
    for (int i = 0; i < 2; i++) {
        td_stream *other = new_stream();

        assert_true(F.live > live + 10);
        td_stream_destroy(&other, LIMIT_NS);
        assert_int_equal(F.live, live);
    }
    must(td_vk_address_memory(vk, true, why, sizeof why));
}

static void fails_to_create(const td_inline_desc *desc, const char *text)
{
    td_stream *made = stream;
    tandem_status status = td_stream_create_inline(desc, NULL, &made, why, sizeof why);

    assert_int_equal(status, TANDEM_ERROR_UNSUPPORTED);
    assert_null(made);
    if (!strstr(why, text))
        fail_msg("'%s' does not say '%s'", why, text);
    must(td_vk_address_memory(vk, true, why, sizeof why)); /* for the other stream */
}

static void test_what_demotes(void **state)
{
    td_inline_desc desc = desc_here();
    int live = F.live;

    (void)state;
    desc.queue = VK_NULL_HANDLE;
    fails_to_create(&desc, "no queue");
    desc.queue = gpu.queue;
    desc.sm = 61;
    fails_to_create(&desc, "6.1");
    desc.sm = sm;
    /* a launch that is lost: the codes of V, the attention itself */
    F.skip_launch = 6;
    fails_to_create(&desc, "wrong data");
    F.skip_launch = 8;
    fails_to_create(&desc, "wrong data");
    F.skip_launch = 9; /* the end stamp */
    fails_to_create(&desc, "stamp");
    F.skip_launch = 0;
    assert_int_equal(F.live, live);
    /* nothing ever ends: what the device may still use is left behind */
    F.swallow_submits = true;
    fails_to_create(&desc, "did not end within");
    F.swallow_submits = false;
    assert_true(F.live > live);
    F.live = live;
}

static void test_failing_calls(void **state)
{
    const td_inline_desc desc = desc_here();
    const int live = F.live;

    (void)state;
    for (unsigned n = 1;; n += F.real ? 7 : 1) {
        td_stream *made = NULL;
        tandem_status status;
        bool waits;

        F.failed = false;
        F.fail_at = n;
        F.failure = n % 3 ? VK_ERROR_OUT_OF_DEVICE_MEMORY : VK_ERROR_INITIALIZATION_FAILED;
        F.host_waits = 0;
        why[0] = 0;
        status = td_stream_create_inline(&desc, NULL, &made, why, sizeof why);
        F.fail_at = 0;
        waits = F.host_waits > 0;
        if (!F.failed) {
            must(status);
            td_stream_destroy(&made, LIMIT_NS);
            assert_true(n > 40);
            break;
        }
        assert_true((status == TANDEM_OK) == (made != NULL));
        assert_true(status != TANDEM_OK ? why[0] != 0 : waits); /* a wait is tried again */
        td_stream_destroy(&made, LIMIT_NS);
        if (F.live != live)
            fail_msg("with call %u failing %d objects are left: %s", n, F.live - live, why);
    }
    must(td_vk_address_memory(vk, true, why, sizeof why));
}

static void test_failing_submits(void **state)
{
    static const char *const calls[] = {"vkCreateCommandPool", "vkAllocateCommandBuffers", "vkBeginCommandBuffer",
                                        "vkEndCommandBuffer", "vkQueueSubmit", "vkResetCommandPool",
                                        "vkGetSemaphoreCounterValue"};
    const tu_shape shape = {.q_len = 64, .kv_len = 64, .head_dim = 32};
    const td_target target = td_target_for_sm(sm);
    td_stream_submit submit;
    tu_case it;
    vk_case on;

    (void)state;
    tu_case_init(&it, &shape);
    assert_int_equal(tu_case_run(&it, &target, 2), TANDEM_OK);
    vk_case_make(&on, &it);
    submit = submit_of(&on, &it.plan);
    for (uint32_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int tries = 0; tries < 5; tries++) {
            uint64_t sequence = 0;
            bool signalled = true;
            tandem_status status;

            submit.slot = 20 + i;
            F.failed = false;
            F.fail_call = calls[i];
            F.fail_at = 1;
            F.failure = VK_ERROR_OUT_OF_HOST_MEMORY;
            status = td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why);
            F.fail_at = 0;
            F.fail_call = NULL;
            assert_int_equal(status, F.failed ? TANDEM_ERROR_NOMEM : TANDEM_OK);
            assert_false(signalled);
            if (!F.failed)
                assert_int_equal(td_stream_wait(stream, sequence), TANDEM_OK);
            run(&submit);
        }
    expected(&it, &it.o, &it.lse);
    same("after failures", &on, TD_VIEW_O, &it.o);
    vk_case_free(&on);
    tu_case_free(&it);
}

static int open_all(void **state)
{
    (void)state;
    stream = new_stream();
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    td_stream_destroy(&stream, LIMIT_NS);
    return 0;
}

/* --- Measurements --- */

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static void print(const char *what, double *values, size_t count)
{
    qsort(values, count, sizeof *values, by_size);
    printf("%-44s p50 %8.2f  p99 %8.2f  least %8.2f us\n", what, values[count / 2], values[count * 99 / 100], values[0]);
}

static td_vk_mem device_mem(uint64_t bytes)
{
    enum { CHUNK = 1 << 20 };
    td_vk_mem mem = {0};
    uint16_t *values = malloc(CHUNK);
    uint64_t seed = bytes;

    assert_non_null(values);
    for (size_t i = 0; i < CHUNK / 2; i++) /* fp16 of 0.25 to 2, either sign */
        values[i] = (uint16_t)((tu_random(&seed) & 0x83ff) | (0x3400 + (tu_random(&seed) % 3) * 0x400));
    must(td_vk_mem_create_device(vk, bytes, STORAGE, &mem, why, sizeof why));
    for (uint64_t at = 0; at < bytes; at += CHUNK)
        must(td_inline_upload(stream, &mem, at, values, bytes - at < CHUNK ? bytes - at : CHUNK, why, sizeof why));
    free(values);
    return mem;
}

/* A command buffer that is recorded again and again, as an engine's are. */
static VkCommandBuffer bench_begin(void)
{
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                          .queueFamilyIndex = gpu.queue_family};
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                        .commandBufferCount = 1};
    static VkCommandBuffer commands;

    if (!commands) {
        assert_int_equal(gpu.CreateCommandPool(gpu.device, &pool, NULL, &info.commandPool), VK_SUCCESS);
        assert_int_equal(gpu.AllocateCommandBuffers(gpu.device, &info, &commands), VK_SUCCESS);
    }
    assert_int_equal(gpu.BeginCommandBuffer(commands, &begin), VK_SUCCESS);
    return commands;
}

/* From the begin of a plan's first `count` records to their end, the least of a few. */
static double prefix_us(td_stream *on, const td_stream_submit *submit, uint32_t count)
{
    static td_plan part;
    td_stream_submit cut = *submit;
    double least = 1e30;

    part = *submit->plan;
    part.record_count = count;
    cut.plan = &part;
    for (int i = 0; i < 6; i++) {
        uint64_t sequence, begin, end;
        bool signalled;

        must(td_stream_enqueue(on, &cut, &sequence, &signalled, why, sizeof why));
        assert_int_equal(td_stream_wait(on, sequence), TANDEM_OK);
        assert_true(td_stream_times(on, sequence, &begin, &end));
        least = (double)(end - begin) / 1e3 < least ? (double)(end - begin) / 1e3 : least;
    }
    return least;
}

static void bench_shape(const char *name, uint32_t batch, uint32_t heads, uint32_t q_len, uint32_t kv_len, uint32_t dim,
                        uint32_t precision, uint32_t smooth)
{
    enum { TIMES = 40 };
    const td_target target = td_target_for_sm(sm);
    const int64_t d = dim, q_rows = q_len, kv_rows = kv_len;
    const tandem_view q = {.dtype = TANDEM_DTYPE_F16, .stride_row = d, .stride_head = d * q_rows,
                           .stride_batch = d * q_rows * heads},
                      k = {.dtype = TANDEM_DTYPE_F16, .stride_row = d, .stride_head = d * kv_rows,
                           .stride_batch = d * kv_rows * heads};
    const tandem_attention op = {.batch = batch, .heads = heads, .kv_heads = heads, .q_len = q_len, .kv_len = kv_len,
                                 .head_dim = dim, .precision = precision, .smooth = smooth, .q = q, .k = k, .v = k, .o = q};
    const uint64_t q_bytes = (uint64_t)batch * heads * q_len * dim * 2, k_bytes = (uint64_t)batch * heads * kv_len * dim * 2;
    static td_plan plan;
    static const td_plan nothing;
    double prefix[TD_PLAN_RECORDS + 1];
    double record_us[TIMES], enqueue_us[TIMES], job_us[TIMES], in_us[TIMES], out_us[TIMES], empty_us[TIMES], cuda_us[TIMES];
    td_vk_mem mems[4], scratch = {0};
    uint64_t views[TD_VIEW_COUNT] = {0};
    td_cu_device *device = NULL;
    td_stream *cuda = NULL;
    bool signalled;

    must(td_plan_attention(&op, &target, &plan, NULL, why, sizeof why));
    must(td_inline_check(stream, &plan, why, sizeof why));
    for (int i = 0; i < 4; i++) {
        mems[i] = device_mem(i % 3 ? k_bytes : q_bytes);
        views[i] = mems[i].address;
    }
    must(td_vk_mem_create_device(vk, plan.scratch_bytes, STORAGE, &scratch, why, sizeof why));
    for (int i = 0; i < TIMES; i++) {
        const td_stream_submit submit = {.plan = &plan, .views = views, .scratch = scratch.address, .label = "job"},
                               empty = {.plan = &nothing, .views = views, .label = "empty"};
        uint64_t numbers[3], begin[3], end[3], sequence, t;
        VkCommandBuffer commands = bench_begin();

        must(td_inline_record(stream, &empty, commands, &numbers[0], why, sizeof why));
        t = td_now_ns();
        must(td_inline_record(stream, &submit, commands, &numbers[1], why, sizeof why));
        record_us[i] = (double)(td_now_ns() - t) / 1e3;
        must(td_inline_record(stream, &empty, commands, &numbers[2], why, sizeof why));
        assert_int_equal(gpu.EndCommandBuffer(commands), VK_SUCCESS);
        submit_commands(commands);
        for (int j = 0; j < 3; j++)
            assert_true(td_inline_ran(stream, numbers[j], &begin[j], &end[j]));
        empty_us[i] = (double)(end[0] - begin[0]) / 1e3;
        in_us[i] = (double)(begin[1] - end[0]) / 1e3;
        out_us[i] = (double)(begin[2] - end[1]) / 1e3;
        job_us[i] = (double)(end[1] - begin[1]) / 1e3;
        t = td_now_ns();
        must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why));
        enqueue_us[i] = (double)(td_now_ns() - t) / 1e3;
        assert_int_equal(td_stream_wait(stream, sequence), TANDEM_OK);
    }
    for (uint32_t i = 0; i <= plan.record_count; i++)
        prefix[i] = prefix_us(stream,
                              &(td_stream_submit){.plan = &plan, .views = views, .scratch = scratch.address}, i);
    printf("%s: %u records\n", name, plan.record_count);
    print("  recorded: CPU", record_us, TIMES);
    print("  enqueued: CPU", enqueue_us, TIMES);
    print("  begin to end of nothing", empty_us, TIMES);
    print("  end of nothing to begin of the job", in_us, TIMES);
    print("  end of the job to begin of nothing", out_us, TIMES);
    print("  begin to end of the job", job_us, TIMES);
    if (F.real) {
        td_cu_mem on_cuda[5] = {0};

        must(td_cu_device_open(td_vk_get_caps(vk)->device_uuid, NULL, &device, why, sizeof why));
        must(td_stream_create(device, NULL, &cuda, why, sizeof why));
        for (int i = 0; i < 5; i++)
            must(td_cu_mem_alloc(device, i == 4 ? plan.scratch_bytes : i % 3 ? k_bytes : q_bytes, &on_cuda[i], why,
                                 sizeof why));
        for (int i = 0; i < 4; i++) {
            const uint64_t bytes = i % 3 ? k_bytes : q_bytes;
            uint16_t *values = malloc(bytes);
            uint64_t seed = bytes;

            for (uint64_t at = 0; at < bytes / 2; at++)
                values[at] = (uint16_t)((tu_random(&seed) & 0x83ff) | (0x3400 + (tu_random(&seed) % 3) * 0x400));
            must(td_cu_copy_to_device(device, on_cuda[i].address, values, bytes));
            free(values);
            views[i] = on_cuda[i].address;
        }
        for (int i = 0; i < TIMES; i++) {
            const td_stream_submit submit = {.plan = &plan, .views = views, .scratch = on_cuda[4].address, .label = "job"};
            uint64_t sequence, begin, end;

            must(td_stream_enqueue(cuda, &submit, &sequence, &signalled, why, sizeof why));
            assert_int_equal(td_stream_wait(cuda, sequence), TANDEM_OK);
            assert_true(td_stream_times(cuda, sequence, &begin, &end));
            cuda_us[i] = (double)(end - begin) / 1e3;
        }
        print("  begin to end on a CUDA stream", cuda_us, TIMES);
        for (uint32_t i = 0; i <= plan.record_count; i++) {
            const double us = prefix_us(
                cuda, &(td_stream_submit){.plan = &plan, .views = views, .scratch = on_cuda[4].address}, i);
            static double before, before_cuda;

            printf("    %-16s inline %8.2f, CUDA %8.2f us more\n", i ? plan.records[i - 1].kernel->entry : "nothing",
                   prefix[i] - (i ? before : 0), us - (i ? before_cuda : 0));
            before = prefix[i];
            before_cuda = us;
        }
        for (int i = 0; i < 5; i++)
            td_cu_mem_free(device, &on_cuda[i]);
        td_stream_destroy(&cuda, LIMIT_NS);
        td_cu_device_close(&device);
    }
    for (int i = 0; i < 4; i++)
        td_vk_mem_free(vk, &mems[i]);
    td_vk_mem_free(vk, &scratch);
}

static void test_bench(void **state)
{
    const uint32_t all = TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K | TANDEM_SMOOTH_V;

    (void)state;
    bench_shape("small, 8b, all smoothed", 1, 1, 128, 256, 64, TANDEM_PRECISION_8B, all);
    bench_shape("large heads, 8b, d128", 1, F.real ? 32 : 1, F.real ? 4096 : 128, F.real ? 4096 : 128, 128,
                TANDEM_PRECISION_8B, 0);
    bench_shape("the demo's: 2025 x 256 x 1024, d32, 8b", F.real ? 2025 : 2, 1, 256, 1024, 32, TANDEM_PRECISION_8B, 0);
    bench_shape("the demo's, f16", F.real ? 2025 : 2, 1, 256, 1024, 32, TANDEM_PRECISION_F16, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest measurements[] = {cmocka_unit_test(test_bench)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_many_plans_in_a_row),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_barriers),
        cmocka_unit_test(test_barriers_of_attention),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_points),
        cmocka_unit_test(test_frame_counts),
        cmocka_unit_test(test_upload),
        cmocka_unit_test(test_create_and_destroy),
        cmocka_unit_test(test_what_demotes),
        cmocka_unit_test(test_failing_calls),
        cmocka_unit_test(test_failing_submits),
    };
    const char *expect = getenv("TANDEM_EXPECT_GPU");
    const vku_options options = {.wrap = fake_nvx_wrap};
    td_cu_info info = {0};
    td_vk_desc desc;
    int failed;

    fake_nvx_learn();
    switch (vku_open(&gpu, &options)) {
    case VKU_OK: break;
    case VKU_NO_VULKAN: return expect && !strcmp(expect, "1") ? 1 : 77;
    default: return 1;
    }
    if (expect && !strcmp(expect, "1") && !F.real) {
        fprintf(stderr, "%s has no VK_NVX_binary_import, but a GPU is expected\n", gpu.name);
        return 1;
    }
    desc = vku_desc(&gpu);
    if (td_vk_open(&desc, NULL, &vk, why, sizeof why) != TANDEM_OK ||
        td_cu_device_query(td_vk_get_caps(vk)->device_uuid, &info, why, sizeof why) != TANDEM_OK) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    sm = info.sm;
    if (argc > 1 && !strcmp(argv[1], "--bench"))
        failed = cmocka_run_group_tests(measurements, open_all, close_all);
    else
        failed = cmocka_run_group_tests(tests, open_all, close_all);
    td_vk_close(&vk);
    vku_close(&gpu);
    return failed != 0;
}
