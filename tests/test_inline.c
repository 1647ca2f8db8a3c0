/* The inline rung: CUDA kernels within Vulkan command buffers, on a GPU that has VK_NVX_binary_import; elsewhere on the
 * fake of tests/fake_nvx.h, where the kernels are their CPU twins.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * TANDEM_EXPECT_GPU=1: it must be the GPU. --bench measures gaps and CPU time instead.
 */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/attention/params.h"
#include "kernels/builder.h"
#include "tandem/vulkan.h"
#include "tests/attention_util.h"
#include "tests/fake_nvx.h"
#include "tests/looker.h"

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

/* The kernels that were built, all images on demand but those that a stream cannot be without. */
static const td_cubin *cubins_on_demand(uint32_t *count)
{
    enum { MOST_CUBINS = 16, MOST_IMAGES = 16 };
    static td_image images[MOST_CUBINS][MOST_IMAGES];
    static td_cubin cubins[MOST_CUBINS];
    const td_cubin *real = __real_td_cubins(count);

    assert_true(*count <= MOST_CUBINS);
    for (uint32_t i = 0; i < *count && !cubins[i].sm; i++) {
        assert_true(real[i].image_count <= MOST_IMAGES);
        memcpy(images[i], real[i].images, real[i].image_count * sizeof *images[i]);
        for (uint32_t k = 0; k < real[i].image_count; k++)
            images[i][k].on_demand = images[i][k].on_demand || strcmp(images[i][k].name, "common");
        cubins[i] = real[i];
        cubins[i].images = images[i];
    }
    return cubins;
}

const td_cubin *__wrap_td_cubins(uint32_t *count)
{
    if (!F.real)
        return fake_nvx_cubins(count);
    return F.two_images ? cubins_on_demand(count) : __real_td_cubins(count);
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
    if (of->plan.scratch_bytes)
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
    must(td_cu_mem_alloc(device, of->plan.scratch_bytes + 1, &scratch, why, sizeof why));
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

static void check_direct(const tu_shape *shape, const char *kernel)
{
    const td_target target = td_target_for_sm(sm);
    tu_case it;

    tu_case_init(&it, shape);
    must(td_plan_attention(&it.op, &target, &it.plan, NULL, why, sizeof why));
    assert_int_equal(strncmp(it.plan.records[it.plan.record_count - 1].kernel->name, kernel, strlen(kernel)), 0);
    assert_int_equal(it.plan.record_count == 1, strstr(kernel, "wgmma") != NULL);
    tu_case_free(&it);
    check_case(shape, kernel);
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

/* attn_8b_wgmma_inline: the bits of the plan for a stream, with attn_8b_wgmma; where warpgroups share keys, as many do so
 * nowhere else: those of the same plan in a stream. */
static void check_wgmma(const tu_shape *shape)
{
    static const td_rows ways[] = {TD_SHORT_ROWS, TD_MOST_ROWS, TD_SPLIT_ROWS};
    const td_rows rows = ways[shape->seed % 3];
    td_target target = td_target_for_sm(sm), free_target = td_target_for_stream(sm);
    td_stream_submit submit;
    tu_case it;
    vk_case on;

    print_message("    h%u/%u q%u kv%u d%u causal %u\n", shape->heads, shape->kv_heads, shape->q_len, shape->kv_len,
                  shape->head_dim, shape->causal);
    target.rows = free_target.rows = rows;
    if (rows == TD_SPLIT_ROWS)
        free_target = target;
    tu_case_init(&it, shape);
    must(td_plan_attention(&it.op, &target, &it.plan, NULL, why, sizeof why));
    assert_string_equal(it.plan.records[it.plan.record_count - 1].kernel->name, "attn_8b_wgmma_inline");
    vk_case_make(&on, &it);
    submit = submit_of(&on, &it.plan);
    run(&submit);
    if (F.real) {
        must(td_plan_attention(&it.op, &free_target, &it.plan, NULL, why, sizeof why));
        expected(&it, &it.o, &it.lse);
    } else {
        free_target.twin = true;
        assert_int_equal(tu_case_run(&it, &free_target, 2), TANDEM_OK);
    }
    assert_string_equal(it.plan.records[it.plan.record_count - 1].kernel->name,
                        rows == TD_MOST_ROWS    ? "attn_8b_wgmma"
                        : rows == TD_SHORT_ROWS ? "attn_8b_wgmma_short"
                                                : "attn_8b_wgmma_inline");
    same("O", &on, TD_VIEW_O, &it.o);
    if (it.lse.data)
        same("lse", &on, TD_VIEW_LSE, &it.lse);
    vk_case_free(&on);
    tu_case_free(&it);
}

static void test_wgmma(void **state)
{
    static const uint32_t wgmma_dims[] = {32, 64, 80, 96, 128}, lengths[] = {1, 63, 64, 65, 128, 129, 192, 193, 400};
    uint64_t seed = 1;

    (void)state;
    if (sm != 90)
        skip();
    for (size_t q = 0; q < 9; q++)
        for (size_t k = 0; k < 9; k++, seed++) {
            if (!F.real && (q + 2 * k) % 7) /* the twin takes its time */
                continue;
            check_wgmma(&(tu_shape){.heads = 4,
                                    .kv_heads = 2,
                                    .q_len = lengths[q],
                                    .kv_len = lengths[k],
                                    .head_dim = wgmma_dims[seed % 5],
                                    .precision = TANDEM_PRECISION_8B,
                                    .smooth = seed % 3 ? 0 : TANDEM_SMOOTH_K | TANDEM_SMOOTH_V,
                                    .causal = seed % 2,
                                    .lse = seed % 4 < 2,
                                    .dtype_o = 1 + seed % 3,
                                    .v_bias = 1,
                                    .seed = seed});
        }
    for (size_t d = 0; d < 5 && F.real; d++) { /* more blocks than multiprocessors; long rings; bases that move */
        check_wgmma(&(tu_shape){.batch = 20, .heads = 20, .q_len = 300, .kv_len = 200, .head_dim = wgmma_dims[d],
                                .precision = TANDEM_PRECISION_8B, .causal = d % 2, .seed = 200 + d});
        check_wgmma(&(tu_shape){.heads = 3, .q_len = 500, .kv_len = 5000, .head_dim = wgmma_dims[d],
                                .precision = TANDEM_PRECISION_8B, .scale = 1.5f, .lse = 1, .seed = 210 + d});
    }
}

/* F16 of tensors of 16 bits: attn_f16_wgmma_inline, without a prologue; of others attn_f16. */
static void test_direct(void **state)
{
    static const uint32_t direct_dims[] = {64, 80, 96, 128}, lengths[] = {1, 63, 64, 65, 128, 129, 192, 193, 400};
    uint64_t seed = 300;

    (void)state;
    if (sm != 90)
        skip();
    for (size_t q = 0; q < 9; q++)
        for (size_t k = 0; k < 9; k++, seed++) {
            const uint32_t type = 1 + seed % 2;

            if (!F.real && (q + 2 * k) % 7) /* the twin takes its time */
                continue;
            check_direct(&(tu_shape){.heads = 4,
                                     .kv_heads = 2,
                                     .q_len = lengths[q],
                                     .kv_len = lengths[k],
                                     .head_dim = direct_dims[seed / 2 % 4],
                                     .precision = TANDEM_PRECISION_F16,
                                     .causal = seed % 3 == 0,
                                     .lse = seed % 4 < 2,
                                     .dtype_q = type,
                                     .dtype_k = type,
                                     .dtype_v = type,
                                     .dtype_o = 1 + seed % 3,
                                     .v_bias = 1,
                                     .seed = seed},
                         type == TANDEM_DTYPE_F16 ? "attn_f16_wgmma_inline" : "attn_bf16_wgmma_inline");
        }
    check_direct(&(tu_shape){.q_len = 70, .kv_len = 70, .head_dim = 64, .precision = TANDEM_PRECISION_F16, .dtype_q = 1,
                             .dtype_k = 2, .dtype_v = 1, .seed = seed}, "attn_f16");
    for (size_t d = 0; d < 4 && F.real; d++) { /* blocks with several tiles of rows; long rings; bases that move */
        check_direct(&(tu_shape){.batch = 20, .heads = 20, .q_len = 300, .kv_len = 200, .head_dim = direct_dims[d],
                                 .precision = TANDEM_PRECISION_F16, .causal = d % 2, .dtype_q = 1, .dtype_k = 1,
                                 .dtype_v = 1, .seed = 400 + d}, "attn_f16_wgmma_inline");
        check_direct(&(tu_shape){.heads = 3, .q_len = 500, .kv_len = 5000, .head_dim = direct_dims[d],
                                 .precision = TANDEM_PRECISION_F16, .scale = 1.5f, .lse = 1, .dtype_q = 1, .dtype_k = 1,
                                 .dtype_v = 1, .seed = 410 + d}, "attn_f16_wgmma_inline");
    }
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
    for (uint32_t i = 0; i < records; i++) {
        td_record *r = td_plan_add_record(plan, sizeof(td_params_mean_final));

        assert_non_null(r);
        r->kernel = &kernel;
        r->grid[0] = r->grid[1] = r->grid[2] = r->block[1] = r->block[2] = 1;
        r->block[0] = TD_BLOCK_THREADS;
        r->registers = 32;
    }
    return plan;
}

static void reads(td_plan *plan, uint32_t record, uint32_t base, uint32_t view, uint64_t begin, uint64_t end)
{
    assert_non_null(td_plan_add_read(plan, &plan->records[record], (td_range){base, view, begin, end}));
}

static void writes(td_plan *plan, uint32_t record, uint32_t base, uint32_t view, uint64_t begin, uint64_t end)
{
    assert_non_null(td_plan_add_write(plan, &plan->records[record], (td_range){base, view, begin, end}));
}

/* Records it, without ever submitting; returns the barriers between records, data_barriers those that carry data. */
static unsigned count_barriers(td_plan *plan, unsigned *data)
{
    const uint64_t views[TD_VIEW_COUNT] = {0};
    const td_stream_submit submit = {.plan = plan, .views = views, .scratch = 4096, .label = "never submitted"};
    VkCommandBuffer commands = vku_begin(&gpu);
    uint64_t number;
    unsigned count;

    td_plan_barriers(plan);
    assert_non_null(commands);
    F.barriers = F.data_barriers = F.wide_barriers = F.launches = 0;
    must(td_inline_record(stream, &submit, commands, &number, why, sizeof why));
    assert_int_equal(F.launches, plan->record_count + 2);
    assert_int_equal(F.wide_barriers, 0);
    count = F.barriers - 2;
    *data = F.data_barriers - 2;
    assert_int_equal(gpu.EndCommandBuffer(commands), VK_SUCCESS);
    gpu.FreeCommandBuffers(gpu.device, gpu.pool, 1, &commands);
    td_plan_free(plan);
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
    BARRIERS(hand_made(400), 0, 0); /* as many as a plan has */
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
    /* an order makes nobody see data: what was written before it is still to be waited for */
    plan = hand_made(4);
    writes(plan, 0, SCRATCH, 0, 256);
    reads(plan, 1, VIEW(TD_VIEW_Q), 0, 256);
    writes(plan, 2, VIEW(TD_VIEW_Q), 0, 256);
    reads(plan, 3, SCRATCH, 0, 256);
    BARRIERS(plan, 2, 1);
    /* and an order is one for all before it */
    plan = hand_made(4);
    reads(plan, 0, SCRATCH, 0, 512);
    reads(plan, 1, SCRATCH, 256, 512);
    writes(plan, 2, SCRATCH, 0, 256);
    writes(plan, 3, SCRATCH, 256, 512);
    BARRIERS(plan, 1, 0);
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
    td_plan_free(plan);
    free(plan);
}

#define REFUSED(change, limit)              \
    do {                                    \
        td_plan *plan_ = hand_made(2);      \
        td_record *r = &plan_->records[1];  \
        change;                             \
        refused(plan_, limit);              \
    } while (0)

/* That a kernel has declared. */
static uint32_t shared_of(const char *entry)
{
    const td_cubin *cubin = td_cubin_for_sm(sm, why, sizeof why);

    assert_non_null(cubin);
    assert_non_null(td_cubin_find(cubin, entry));
    return td_cubin_find(cubin, entry)->shared_bytes;
}

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
    REFUSED(assert_non_null(td_plan_add_reloc(plan_, r, (td_reloc){.kind = TD_RELOC_TENSOR_MAP})), "tensor maps");
    REFUSED(r->local_bytes = 13000, "13000 bytes of local memory");
    REFUSED(r->grid[0] = 0, "grid of 0 in x");
    REFUSED(r->grid[0] = 0x80000000u, "grid of 2147483648 in x");
    REFUSED(r->grid[1] = 65536, "grid of 65536 in y");
    REFUSED(r->grid[2] = 65536, "grid of 65536 in z");
    REFUSED(r->param_bytes = 0, "0 bytes of parameters");
    REFUSED(r->param_bytes = TD_PARAM_BYTES + 1, "4097 bytes of parameters");
    REFUSED(r->kernel = &unknown, "no_such_kernel");
    REFUSED(r->kernel = &host_only, "of_the_cpu_alone");
    REFUSED(r->shared_bytes = 47 * 1024 + 1, "in a command buffer there are 48128");
    REFUSED(r->local_bytes = 12 * 1024 + 1, "in a command buffer there are 12288");
    REFUSED(r->registers = 255; r->block[0] = 257, "an SM has 65536");
    REFUSED(r->registers = 65; r->block[0] = 1024, "an SM has 65536"); /* they are handed out by eights */
    REFUSED(r->registers = 224; r->block[0] = 288, "an SM has 65536"); /* 64512: but nine warps of 7168 are three a quarter */
    /* at the limit, and what it does without, is no reason to refuse it */
    for (int i = 0; i < 4; i++) {
        td_plan *plan = hand_made(1);
        td_record *r = &plan->records[0];

        if (i == 0)
            r->shared_bytes = 47 * 1024 - shared_of(r->kernel->entry);
        else if (i == 1)
            r->local_bytes = 12 * 1024;
        else if (i == 2)
            r->registers = 255, r->block[0] = 256;
        else
            r->flags = TD_RECORD_PDL;
        must(td_inline_check(stream, plan, why, sizeof why));
        td_plan_free(plan);
        free(plan);
    }
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

/* Frames in slots of their own cost no allocation, no copy, no wait, no recording, and one submit each. */
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
            F.allocations = F.copies = F.host_waits = F.begins = F.submits = F.batches = F.waits = F.signals = 0;
        while (sequence >= SLOTS && td_stream_completed(stream) + SLOTS <= sequence)
            assert_true(td_now_ns() - begin < LIMIT_NS);
        submit.slot = frame % SLOTS;
        must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why));
    }
    assert_int_equal(F.allocations, 0);
    assert_int_equal(F.copies, 0);
    assert_int_equal(F.host_waits, 0);
    /* A slot is used again when its last submit's stamp was seen, so one of its buffers can be pending still, where others share
     * the device for longer than the warm-up showed. Then a spare is recorded, and the two take turns: one a slot, at most. */
    assert_true(F.begins <= (F.real ? SLOTS : 0));
    assert_int_equal(F.submits, FRAMES);
    assert_int_equal(F.batches, FRAMES);
    assert_int_equal(F.waits, 0);
    assert_int_equal(F.signals, FRAMES);
    assert_int_equal(td_stream_wait(stream, sequence), TANDEM_OK);
    vk_case_free(&on);
    tu_case_free(&it);
}

/* What happens right before a submit goes to the queue. */
typedef struct meddler {
    td_stream *stream;
    uint64_t sequence; /* of the submit at hand */
    uint64_t end_ns;   /* of the one before */
    bool gives_up, cancels;
} meddler;

static void meddle(void *user)
{
    meddler *m = user;

    if (m->gives_up)
        __atomic_store_n(&td_stream_control(m->stream, m->sequence)->stale, 1, __ATOMIC_SEQ_CST);
    if (m->cancels)
        td_stream_cancel(m->stream, m->sequence);
}

static void unmeddled(void *user)
{
    (void)user;
}

/* Enqueues in slot 3 and waits; O is what is expected, or what it was. */
static void run_meddled(meddler *m, vk_case *on, const tu_case *it, const td_plan *plan, uint32_t verdict)
{
    td_stream_submit submit = submit_of(on, plan);
    uint64_t sequence = 0, begin, end;
    unsigned char *o = on->mems[TD_VIEW_O].host;
    bool signalled;

    submit.slot = 3;
    memset(o, TU_POISON, it->o.bytes);
    m->sequence++;
    must(td_stream_enqueue(m->stream, &submit, &sequence, &signalled, why, sizeof why));
    assert_int_equal(sequence, m->sequence);
    assert_int_equal(td_stream_wait(m->stream, sequence), TANDEM_OK);
    assert_int_equal(td_stream_completed(m->stream), sequence);
    assert_int_equal(td_stream_control(m->stream, sequence)->verdict, verdict);
    if (!m->gives_up && !m->cancels)
        same("by commands that were kept", on, TD_VIEW_O, &it->o);
    for (size_t i = 0; i < it->o.bytes && (m->gives_up || m->cancels); i++)
        assert_int_equal(o[i], TU_POISON);
    assert_true(td_stream_times(m->stream, sequence, &begin, &end) && m->end_ns <= begin && begin <= end);
    m->end_ns = end;
    for (uint64_t i = sequence; i && i + 5 > sequence; i--)
        assert_true(td_stream_begun(m->stream, i) && td_stream_times(m->stream, i, &begin, &end) && end <= m->end_ns);
    assert_false(td_stream_begun(m->stream, sequence + 1) || td_stream_times(m->stream, sequence + 1, &begin, &end));
}

/* Commands are recorded when a slot is given something for the first time, and then submitted again: what the host says
 * about one submit is not said about the next. */
static void test_kept_commands(void **state)
{
    enum { ROUNDS = 6 };
    const tu_shape shape = {.q_len = 100, .kv_len = 200, .head_dim = 64, .precision = TANDEM_PRECISION_8B};
    td_target target = td_target_for_sm(sm);
    td_inline_desc desc = desc_here();
    td_plan *commits = calloc(1, sizeof *commits);
    meddler m = {0};
    vk_case on[2];
    td_attention_layout layout;
    tu_case it[2];

    (void)state;
    assert_non_null(commits);
    desc.lock = meddle;
    desc.unlock = unmeddled;
    desc.user = &m;
    must(td_stream_create_inline(&desc, NULL, &m.stream, why, sizeof why));
    for (int i = 0; i < 2; i++) {
        tu_shape seeded = shape;

        seeded.seed = 3 + (uint64_t)i;
        tu_case_init(&it[i], &seeded);
        assert_int_equal(tu_case_run(&it[i], &target, 2), TANDEM_OK);
        expected(&it[i], &it[i].o, &it[i].lse);
    }
    target.commit = true;
    must(td_plan_attention(&it[0].op, &target, commits, &layout, why, sizeof why)); /* as the others, with room for its codes */
    for (int i = 0; i < 2; i++) { /* scratch for either plan */
        const td_plan plain = it[i].plan; /* which has its memory meanwhile */

        it[i].plan = *commits;
        vk_case_make(&on[i], &it[i]);
        it[i].plan = plain;
    }
    for (int round = 0; round < ROUNDS; round++) {
        if (round == 1)
            F.begins = F.allocations = 0;
        for (int i = 0; i < 2; i++) {
            run_meddled(&m, &on[i], &it[i], &it[i].plan, TD_VERDICT_NONE);
            run_meddled(&m, &on[i], &it[i], commits, TD_VERDICT_COMMITTED);
            if (round % 2 == 0)
                continue;
            m.gives_up = true;
            run_meddled(&m, &on[i], &it[i], commits, TD_VERDICT_GIVEN_UP);
            m.gives_up = false;
            run_meddled(&m, &on[i], &it[i], commits, TD_VERDICT_COMMITTED);
            m.cancels = true;
            run_meddled(&m, &on[i], &it[i], &it[i].plan, TD_VERDICT_NONE);
            m.cancels = false;
            run_meddled(&m, &on[i], &it[i], &it[i].plan, TD_VERDICT_NONE);
        }
    }
    assert_int_equal(F.begins, 0);
    /* what differs is recorded, in place of what was not used for longest */
    for (uint32_t blocks = 2; blocks < 5; blocks++) {
        td_plan *other = calloc(1, sizeof *other);

        assert_non_null(other);
        assert_true(td_plan_copy(other, commits));
        other->records[other->record_count - 1].grid[0] = blocks; /* nothing is committed by them */
        F.begins = 0;
        m.gives_up = true;
        run_meddled(&m, &on[0], &it[0], other, TD_VERDICT_GIVEN_UP);
        assert_int_equal(F.begins, 1);
        run_meddled(&m, &on[0], &it[0], other, TD_VERDICT_GIVEN_UP);
        m.gives_up = false;
        assert_int_equal(F.begins, 1);
        run_meddled(&m, &on[0], &it[0], commits, TD_VERDICT_COMMITTED);
        td_plan_free(other);
        free(other);
    }
    assert_int_equal(F.allocations, 0);
    td_stream_destroy(&m.stream, LIMIT_NS);
    for (int i = 0; i < 2; i++) {
        vk_case_free(&on[i]);
        tu_case_free(&it[i]);
    }
    td_plan_free(commits);
    free(commits);
}

static void test_lookers(void **state)
{
    enum { SLOTS = 3, SUBMITS = 2000, LOOKERS = 3 };
    static const td_plan nothing;
    looker lookers[LOOKERS] = {0};
    atomic_bool over = false;
    uint64_t sequence = 0;

    (void)state;
    for (int i = 0; i < LOOKERS; i++) {
        lookers[i].stream = stream;
        lookers[i].over = &over;
        assert_int_equal(pthread_create(&lookers[i].thread, NULL, look_on, &lookers[i]), 0);
    }
    for (uint32_t i = 0; i < SUBMITS; i++) {
        const td_stream_submit submit = {.plan = &nothing, .slot = i % SLOTS, .label = "test"};
        const uint64_t begin = td_now_ns();
        tandem_status status;
        bool signalled;

        while ((status = td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why)) ==
               TANDEM_ERROR_BUSY)
            if (td_now_ns() - begin > LIMIT_NS)
                break;
        if (status != TANDEM_OK)
            break;
    }
    td_stream_wait(stream, sequence);
    atomic_store(&over, true);
    for (int i = 0; i < LOOKERS; i++)
        assert_int_equal(pthread_join(lookers[i].thread, NULL), 0);
    assert_int_equal(td_stream_completed(stream), sequence);
    for (int i = 0; i < LOOKERS; i++) {
        assert_int_equal(lookers[i].wrong, 0);
        assert_true(lookers[i].seen > 0);
    }
}

/* A slot has one submit at a time, and what it says of the one before is not said of the next. */
static void test_slot_in_use(void **state)
{
    const td_vk_desc desc = vku_desc(&gpu);
    const int live = F.live;
    static const td_plan nothing;
    td_stream_submit submit = {.plan = &nothing, .label = "test"};
    td_inline_desc inline_desc = desc_here();
    uint64_t sequence = 0, begin, end;
    td_stream *made;
    bool signalled;

    (void)state;
    must(td_vk_open(&desc, NULL, &inline_desc.vk, why, sizeof why));
    must(td_stream_create_inline(&inline_desc, NULL, &made, why, sizeof why));
    for (submit.slot = 0; submit.slot < 2; submit.slot++) {
        must(td_stream_enqueue(made, &submit, &sequence, &signalled, why, sizeof why));
        assert_int_equal(td_stream_wait(made, sequence), TANDEM_OK);
    }
    F.swallow_submits = true;
    for (submit.slot = 0; submit.slot < 2; submit.slot++) {
        must(td_stream_enqueue(made, &submit, &sequence, &signalled, why, sizeof why));
        assert_int_equal(td_stream_enqueue(made, &submit, &sequence, &signalled, why, sizeof why), TANDEM_ERROR_BUSY);
        assert_int_equal(sequence, 3 + submit.slot);
        assert_non_null(strstr(why, "pending"));
        assert_false(signalled || td_stream_begun(made, 3) || td_stream_times(made, 3, &begin, &end));
        assert_int_equal(td_stream_completed(made), 2);
        assert_true(td_stream_begun(made, 2) && td_stream_times(made, 2, &begin, &end));
    }
    F.swallow_submits = false;
    fake_nvx_end_swallowed();
    td_stream_destroy(&made, LIMIT_NS);
    td_vk_close(&inline_desc.vk);
    assert_int_equal(F.live, live);
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

/* The first plan that needs an image loads it, those after it do not; what could not be loaded is tried again. */
static void test_images_on_demand(void **state)
{
    static const char *const calls[] = {"vkCreateCuModuleNVX", "vkCreateCuFunctionNVX"};
    /* On a GPU one whose kernel, Hopper's, is in an image that the self-test does not need. */
    const uint32_t dtype = F.real ? TANDEM_DTYPE_F16 : TANDEM_DTYPE_F32;
    const tu_shape shape = {.q_len = 100, .kv_len = 300, .head_dim = 64, .precision = TANDEM_PRECISION_F16,
                            .dtype_q = dtype, .dtype_k = dtype, .dtype_v = dtype};
    const td_target target = td_target_for_sm(sm);
    td_stream *const of_one = stream;
    const int live = F.live;
    uint64_t sequence;
    bool signalled;
    tu_case it;
    vk_case on;

    (void)state;
    if (F.real && sm / 10 != 9)
        skip();
    F.two_images = true;
    stream = new_stream();
    tu_case_init(&it, &shape);
    must(td_plan_attention(&it.op, &target, &it.plan, NULL, why, sizeof why));
    vk_case_make(&on, &it);
    for (int i = 0; i < 2; i++) {
        const td_stream_submit submit = submit_of(&on, &it.plan);
        const int held = F.live;

        F.fail_call = calls[i];
        F.fail_at = (unsigned)i + 1;
        F.failure = VK_ERROR_OUT_OF_DEVICE_MEMORY;
        assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why),
                         TANDEM_ERROR_NOMEM);
        F.fail_call = NULL;
        F.failure = VK_SUCCESS;
        assert_int_equal(F.live, held);
    }
    vk_case_free(&on);
    tu_case_free(&it);
    check_case(&shape, "an image on demand");
    const int loaded = F.live;
    check_case(&shape, "the same image");
    assert_int_equal(F.live, loaded);
    td_stream_destroy(&stream, LIMIT_NS);
    F.two_images = false;
    stream = of_one;
    assert_int_equal(F.live, live);
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
    if (!F.real) {
        F.damaged_image = true;
        fails_to_create(&desc, "the kernels text for sm_90 in this build are damaged");
        F.damaged_image = false;
    }
    /* a launch that is lost: the codes of V, the attention itself */
    F.skip_launch = 6;
    fails_to_create(&desc, "wrong data");
    F.skip_launch = 8;
    fails_to_create(&desc, "wrong data");
    F.skip_launch = 9; /* the end stamp */
    fails_to_create(&desc, "stamp");
    F.skip_launch = 0;
    assert_int_equal(F.live, live);
}

/* Nothing ends: what the device may still use is left behind, and freed once it has come to an end after all. */
static void test_hang(void **state)
{
    const td_vk_desc desc = vku_desc(&gpu);
    td_inline_desc inline_desc = desc_here();
    const int live = F.live;
    td_vk_mem mem = {0};
    td_stream *made;
    int left;

    (void)state;
    must(td_vk_open(&desc, NULL, &inline_desc.vk, why, sizeof why));
    F.swallow_submits = true;
    assert_int_equal(td_stream_create_inline(&inline_desc, NULL, &made, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(why, "did not end within"));
    assert_null(made);
    left = F.live;
    assert_true(left > live + 10);
    F.swallow_submits = false;
    /* the device comes back: others run, and so does a copy, which then hangs as well */
    must(td_stream_create_inline(&inline_desc, NULL, &made, why, sizeof why));
    must(td_vk_mem_create_device(inline_desc.vk, 4, STORAGE, &mem, why, sizeof why));
    must(td_inline_upload(made, &mem, 0, "abc", 4, why, sizeof why));
    F.swallow_submits = true;
    F.fail_call = "vkWaitSemaphores";
    F.fail_at = 1;
    F.failure = VK_TIMEOUT;
    assert_int_equal(td_inline_upload(made, &mem, 0, "def", 4, why, sizeof why), TANDEM_ERROR_DEVICE);
    assert_non_null(strstr(why, "a copy to the device did not end within"));
    F.fail_call = NULL;
    F.swallow_submits = false;
    td_vk_mem_free(inline_desc.vk, &mem);
    td_stream_destroy(&made, LIMIT_NS);
    assert_true(F.live > left);
    fake_nvx_end_swallowed();
    td_vk_close(&inline_desc.vk);
    assert_int_equal(F.live, live);
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
    static const char *const labels[] = {"a", "b", "c", "d", "e", "f"}; /* each is recorded anew */
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
    for (uint32_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        bool failed = false;

        for (size_t tries = 0; tries < sizeof labels / sizeof *labels; tries++) {
            uint64_t sequence = 0;
            bool signalled = true;
            tandem_status status;

            submit.slot = 20 + i;
            submit.label = labels[tries];
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
            failed = failed || F.failed;
            run(&submit);
        }
        assert_true(failed);
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

/* --- Sessions --- */

enum { FRAMES = 3, ROWS = 64, DIM = 32, ELEMENTS = ROWS * DIM };

typedef struct frame_data {
    float q[ELEMENTS], k[ELEMENTS], v[ELEMENTS], o[ELEMENTS];
} frame_data;

typedef struct lane {
    vku_buffer in, out; /* frame_data */
    VkCommandPool pool;
    VkCommandBuffer commands[3];
    VkFence fence;
    tandem_mem mem;
    tandem_ticket ticket;
    frame_data wanted;
} lane;

static struct {
    tandem_session *s;
    tandem_info info;
    char text[400], log[1024];
    int locked; /* by the session: never twice */
    unsigned locks;
    tandem_timeline engines, ours;
    VkSemaphore engines_semaphore, our_semaphore;
    lane lanes[FRAMES];
} w;

static void on_log(void *user, int level, const char *text)
{
    (void)user;
    if (level == TANDEM_LOG_ERROR)
        snprintf(w.log, sizeof w.log, "%s", text);
}

static void lock_queue(void *user)
{
    assert_ptr_equal(user, &w);
    assert_int_equal(__atomic_fetch_add(&w.locked, 1, __ATOMIC_SEQ_CST), 0);
    __atomic_fetch_add(&w.locks, 1, __ATOMIC_SEQ_CST);
}

static void unlock_queue(void *user)
{
    (void)user;
    assert_int_equal(__atomic_fetch_sub(&w.locked, 1, __ATOMIC_SEQ_CST), 1);
}

static tandem_status create_session(vku *on, uint32_t rung, bool queue)
{
    const tandem_vulkan vulkan = {.struct_bytes = sizeof vulkan,
                                  .api_version = on->api_version,
                                  .get_instance_proc_addr = on->gipa,
                                  .instance = on->instance,
                                  .physical_device = on->physical_device,
                                  .device = on->device,
                                  .queue_family = on->queue_family,
                                  .enabled_extension_count = on->extension_count,
                                  .enabled_extensions = on->extensions,
                                  .enabled_features = &on->features,
                                  .queue = queue ? on->queue : VK_NULL_HANDLE,
                                  .lock_queue = lock_queue,
                                  .unlock_queue = unlock_queue,
                                  .user = &w};
    const tandem_session_desc desc = {.struct_bytes = sizeof desc,
                                      .vulkan = &vulkan,
                                      .log = on_log,
                                      .cpu_threads = 2,
                                      .timing = 1,
                                      .rung = rung,
                                      .frames_in_flight = FRAMES,
                                      .error_text = w.text,
                                      .error_text_bytes = sizeof w.text};
    tandem_status status;

    w.text[0] = w.log[0] = 0;
    w.s = NULL;
    status = tandem_session_create(&desc, &w.s);
    w.info.struct_bytes = sizeof w.info;
    if (w.s)
        assert_int_equal(tandem_session_info(w.s, &w.info), TANDEM_OK);
    return status;
}

#define OK(call)                                                                             \
    do {                                                                                     \
        const tandem_status status_ = (call);                                                \
        if (status_ != TANDEM_OK)                                                            \
            fail_msg("%s: %s (%s)", #call, tandem_status_text(status_), w.log);              \
    } while (0)

static tandem_mem new_mem(uint64_t bytes)
{
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = bytes, .fd = -1};
    tandem_mem mem = 0;

    OK(tandem_mem_create(w.s, &desc, &mem));
    return mem;
}

static void enter(void)
{
    const tandem_timeline_desc engines = {.struct_bytes = sizeof engines, .signaller = TANDEM_SIGNALLER_ENGINE},
                               ours = {.struct_bytes = sizeof ours, .signaller = TANDEM_SIGNALLER_SESSION};
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                          .queueFamilyIndex = gpu.queue_family};
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};

    memset(&w, 0, sizeof w);
    if (create_session(&gpu, 0, true) != TANDEM_OK)
        fail_msg("%s", w.text);
    if (w.info.rung != TANDEM_RUNG_INLINE)
        fail_msg("rung %u: %s", w.info.rung, w.info.rung_reason);
    assert_string_equal(w.info.rung_reason, "");
    assert_int_equal(w.info.sm, sm);
    OK(tandem_timeline_create(w.s, &engines, &w.engines));
    OK(tandem_timeline_create(w.s, &ours, &w.ours));
    OK(tandem_timeline_get_vulkan(w.s, w.engines, &w.engines_semaphore));
    OK(tandem_timeline_get_vulkan(w.s, w.ours, &w.our_semaphore));
    for (int i = 0; i < FRAMES; i++) {
        lane *l = &w.lanes[i];
        VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                            .commandBufferCount = 3};

        l->mem = new_mem(sizeof(frame_data));
        assert_int_equal(vku_buffer_create(&gpu, sizeof(frame_data), VK_BUFFER_USAGE_TRANSFER_SRC_BIT, &l->in), 0);
        assert_int_equal(vku_buffer_create(&gpu, sizeof(frame_data), VK_BUFFER_USAGE_TRANSFER_DST_BIT, &l->out), 0);
        assert_int_equal(gpu.CreateCommandPool(gpu.device, &pool, NULL, &l->pool), 0);
        info.commandPool = l->pool;
        assert_int_equal(gpu.AllocateCommandBuffers(gpu.device, &info, l->commands), 0);
        assert_int_equal(gpu.CreateFence(gpu.device, &fence, NULL, &l->fence), 0);
    }
}

static void leave(void)
{
    gpu.DeviceWaitIdle(gpu.device);
    OK(tandem_session_destroy(&w.s));
    for (int i = 0; i < FRAMES; i++) {
        lane *l = &w.lanes[i];

        vku_buffer_destroy(&gpu, &l->in);
        vku_buffer_destroy(&gpu, &l->out);
        if (l->pool)
            gpu.DestroyCommandPool(gpu.device, l->pool, NULL);
        if (l->fence)
            gpu.DestroyFence(gpu.device, l->fence, NULL);
    }
    assert_int_equal(w.locked, 0);
    assert_true(w.locks > 0);
    must(td_vk_address_memory(vk, true, why, sizeof why));
}

static tandem_job job_on(tandem_mem mem)
{
    const tandem_view view = {.mem = mem, .dtype = TANDEM_DTYPE_F32, .stride_row = DIM};
    tandem_job job = {.struct_bytes = sizeof job,
                      .operation = TANDEM_OPERATION_ATTENTION,
                      .op.attention = {.q = view, .k = view, .v = view, .o = view, .batch = 1, .heads = 1, .kv_heads = 1,
                                       .q_len = ROWS, .kv_len = ROWS, .head_dim = DIM,
                                       .precision = TANDEM_PRECISION_F16}};

    job.op.attention.k.offset_bytes = offsetof(frame_data, k);
    job.op.attention.v.offset_bytes = offsetof(frame_data, v);
    job.op.attention.o.offset_bytes = offsetof(frame_data, o);
    return job;
}

/* New data each frame, and what must come of it. */
static void fill(lane *l, uint64_t seed)
{
    frame_data *data = l->in.host;
    tandem_job job = job_on(1);
    static double o[ELEMENTS];

    for (size_t i = 0; i < ELEMENTS; i++) {
        data->q[i] = (float)tu_normal(&seed);
        data->k[i] = (float)tu_normal(&seed);
        data->v[i] = (float)tu_normal(&seed);
        data->o[i] = NAN;
    }
    td_ref_attention(&job.op.attention, data->q, data->k, data->v, o, NULL);
    for (size_t i = 0; i < ELEMENTS; i++)
        l->wanted.o[i] = (float)o[i];
    memset(l->out.host, 0xff, sizeof(frame_data));
}

static void check_lane(lane *l, uint64_t frame)
{
    const frame_data *data = l->out.host;

    for (size_t i = 0; i < ELEMENTS; i++)
        if (!(fabsf(data->o[i] - l->wanted.o[i]) < 0.02f))
            fail_msg("frame %llu: element %zu is %f, not %f", (unsigned long long)frame, i, (double)data->o[i],
                     (double)l->wanted.o[i]);
}

static void begin_commands(VkCommandBuffer commands)
{
    const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};

    assert_int_equal(gpu.BeginCommandBuffer(commands, &info), VK_SUCCESS);
}

static void record_copies(lane *l, VkCommandBuffer first, VkCommandBuffer last, bool in)
{
    const VkBufferCopy whole = {.size = sizeof(frame_data)};
    tandem_mem_vulkan mem = {.struct_bytes = sizeof mem};

    (void)last;
    OK(tandem_mem_get_vulkan(w.s, l->mem, &mem));
    if (in) {
        OK(tandem_record_acquire(w.s, first, l->mem, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT));
        gpu.CmdCopyBuffer(first, l->in.buffer, mem.buffer, 1, &whole);
        OK(tandem_record_release(w.s, first, l->mem, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT));
    } else {
        OK(tandem_record_acquire(w.s, last, l->mem, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT));
        gpu.CmdCopyBuffer(last, mem.buffer, l->out.buffer, 1, &whole);
        OK(tandem_record_release(w.s, last, l->mem, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT));
        vku_full_barrier(&gpu, last);
    }
}

static void submit_lane(lane *l, uint32_t first, uint32_t count, vku_point wait, vku_point signal, VkFence fence)
{
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    const VkTimelineSemaphoreSubmitInfo points = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                  .waitSemaphoreValueCount = wait.semaphore ? 1 : 0,
                                                  .pWaitSemaphoreValues = &wait.value,
                                                  .signalSemaphoreValueCount = signal.semaphore ? 1 : 0,
                                                  .pSignalSemaphoreValues = &signal.value};
    const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                               .pNext = &points,
                               .waitSemaphoreCount = wait.semaphore ? 1 : 0,
                               .pWaitSemaphores = &wait.semaphore,
                               .pWaitDstStageMask = &stage,
                               .commandBufferCount = count,
                               .pCommandBuffers = l->commands + first,
                               .signalSemaphoreCount = signal.semaphore ? 1 : 0,
                               .pSignalSemaphores = &signal.semaphore};

    lock_queue(&w);
    assert_int_equal(gpu.QueueSubmit(gpu.queue, 1, &info, fence), VK_SUCCESS);
    unlock_queue(&w);
}

static void wait_lane(lane *l)
{
    const VkFence fence = l->fence;

    assert_int_equal(gpu.WaitForFences(gpu.device, 1, &fence, VK_TRUE, LIMIT_NS), VK_SUCCESS);
    gpu.DestroyFence(gpu.device, l->fence, NULL);
    assert_int_equal(gpu.CreateFence(gpu.device, &(VkFenceCreateInfo){.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO},
                                     NULL, &l->fence),
                     VK_SUCCESS);
}

static tandem_job_report report_of(tandem_ticket ticket)
{
    tandem_job_report report = {.struct_bytes = sizeof report};

    OK(tandem_poll(w.s, ticket, &report));
    return report;
}

static uint64_t frames_here(void)
{
    return F.real ? 300 : 45;
}

static void check_done(const lane *l)
{
    const tandem_job_report report = report_of(l->ticket);

    assert_int_equal(report.state, TANDEM_JOB_DONE);
    assert_true(report.submit_ns && report.begin_ns && report.begin_ns <= report.end_ns);
}

/* tandem_record() among the engine's own commands: of three buffers in one submit, or all in one buffer, which the fake
 * cannot run in their order. */
static void record_frames(bool one_buffer)
{
    enum { WARM = 12 };

    enter();
    for (uint64_t frame = 0; frame < frames_here() + FRAMES; frame++) {
        lane *l = &w.lanes[frame % FRAMES];
        const tandem_job job = job_on(l->mem);

        if (frame >= FRAMES) {
            wait_lane(l);
            check_lane(l, frame - FRAMES);
            check_done(l);
        }
        if (frame >= frames_here())
            continue;
        if (frame == WARM)
            F.allocations = F.copies = F.host_waits = F.submits = 0;
        fill(l, frame + 1);
        begin_commands(l->commands[0]);
        if (!one_buffer)
            for (int i = 1; i < 3; i++)
                begin_commands(l->commands[i]);
        record_copies(l, l->commands[0], NULL, true);
        OK(tandem_record(w.s, &job, l->commands[one_buffer ? 0 : 1], &l->ticket));
        record_copies(l, NULL, l->commands[one_buffer ? 0 : 2], false);
        for (int i = 0; i < (one_buffer ? 1 : 3); i++)
            assert_int_equal(gpu.EndCommandBuffer(l->commands[i]), VK_SUCCESS);
        assert_int_equal(report_of(l->ticket).state, TANDEM_JOB_PENDING);
        submit_lane(l, 0, one_buffer ? 1 : 3, (vku_point){0}, (vku_point){0}, l->fence);
    }
    /* of the session: its copies are the test's, two a frame */
    assert_int_equal(F.allocations, 0);
    assert_int_equal(F.host_waits, 0);
    assert_int_equal(F.copies, 2 * (frames_here() - WARM));
    assert_int_equal(F.submits, frames_here() - WARM);
    OK(tandem_session_info(w.s, &w.info));
    assert_int_equal(w.info.jobs_done, frames_here());
    leave();
}

/* On sm_90 a session's 8b is attn_8b_wgmma_inline's, of its self-test and of a job, where that has the shape. */
static void test_kernels_of_8b(void **state)
{
    static const struct {
        uint32_t smooth, granularity;
        const char *kernel;
    } cases[] = {{TANDEM_SMOOTH_DEFAULT, TANDEM_GRANULARITY_DEFAULT, "attn_8b_wgmma_inline"},
                 {TANDEM_SMOOTH_NONE, TANDEM_GRANULARITY_TENSOR, "attn_8b_wgmma_inline"},
                 {TANDEM_SMOOTH_Q, TANDEM_GRANULARITY_DEFAULT, "attn_8b_fp8"},
                 {TANDEM_SMOOTH_DEFAULT, TANDEM_GRANULARITY_THREAD_ADA, "attn_8b_fp8"}};

    (void)state;
    if (sm != 90)
        skip();
    F.attention = "";
    enter();
    assert_string_equal(F.attention, "attn_8b_wgmma_inline"); /* of the self-test */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tandem_job job = job_on(w.lanes[0].mem);
        tandem_ticket ticket;

        job.op.attention.precision = TANDEM_PRECISION_8B;
        job.op.attention.smooth = cases[i].smooth;
        job.op.attention.granularity = cases[i].granularity;
        F.attention = "";
        OK(tandem_submit(w.s, &job, &ticket));
        OK(tandem_wait(w.s, ticket, LIMIT_NS, NULL));
        assert_string_equal(F.attention, cases[i].kernel);
    }
    leave();
}

static void test_record_frames(void **state)
{
    (void)state;
    record_frames(false);
    if (F.real)
        record_frames(true);
}

/* tandem_submit() between two submits of the engine's: one more. */
static void submit_frames(uint64_t deadline_ns)
{
    enum { WARM = 12 };
    const uint64_t counted = frames_here() - WARM;

    enter();
    for (uint64_t frame = 0; frame < frames_here() + FRAMES; frame++) {
        lane *l = &w.lanes[frame % FRAMES];
        tandem_job job = job_on(l->mem);
        tandem_status status;

        if (frame >= FRAMES) {
            wait_lane(l);
            check_lane(l, frame - FRAMES);
            OK(tandem_wait(w.s, l->ticket, LIMIT_NS, NULL));
            check_done(l);
        }
        if (frame >= frames_here())
            continue;
        if (frame == WARM) {
            F.allocations = F.copies = F.begins = F.submits = F.batches = F.waits = F.signals = 0;
            w.locks = 0;
        }
        fill(l, frame + 1);
        begin_commands(l->commands[0]);
        record_copies(l, l->commands[0], NULL, true);
        assert_int_equal(gpu.EndCommandBuffer(l->commands[0]), VK_SUCCESS);
        submit_lane(l, 0, 1, (vku_point){0}, (vku_point){w.engines_semaphore, frame + 1}, VK_NULL_HANDLE);
        job.deadline_ns = deadline_ns;
        OK(tandem_timeline_submitted(w.s, w.engines, frame + 1));
        job.wait = (tandem_point){w.engines, frame + 1};
        job.signal = (tandem_point){w.ours, frame + 1};
        while ((status = tandem_submit(w.s, &job, &l->ticket)) == TANDEM_ERROR_BUSY)
            ;
        OK(status);
        begin_commands(l->commands[2]);
        record_copies(l, NULL, l->commands[2], false);
        assert_int_equal(gpu.EndCommandBuffer(l->commands[2]), VK_SUCCESS);
        submit_lane(l, 2, 1, (vku_point){w.our_semaphore, frame + 1}, (vku_point){0}, l->fence);
    }
    assert_int_equal(F.allocations, 0);
    assert_int_equal(F.copies, 2 * counted);
    assert_int_equal(F.begins, 2 * counted); /* the engine's */
    assert_int_equal(F.submits, 3 * counted);
    assert_int_equal(F.batches, 3 * counted);
    assert_int_equal(F.waits, 2 * counted);   /* of the job, and the engine's for it */
    assert_int_equal(F.signals, 3 * counted); /* the engine's; the job's point, and the stream's own count */
    assert_int_equal(w.locks, 3 * counted);
    OK(tandem_session_info(w.s, &w.info));
    assert_int_equal(w.info.jobs_done, frames_here());
    leave();
}

static void test_submit_frames(void **state)
{
    (void)state;
    submit_frames(0);
    submit_frames(LIMIT_NS);
}

/* A job whose value is not announced is held on the host, which looks for the value, but not all the time. */
static void test_held(void **state)
{
    enum { JOBS = 12, ANNOUNCES = 6, HELD_MS = 30 };
    const struct timespec held = {.tv_nsec = HELD_MS * 1000000};

    (void)state;
    enter();
    for (uint64_t value = 1; value <= JOBS; value++) {
        lane *l = &w.lanes[0];
        const uint64_t begin = td_now_ns();
        tandem_job job = job_on(l->mem);
        unsigned submits, reads;

        F.counter_reads = 0;
        job.wait = (tandem_point){w.engines, value};
        job.signal = (tandem_point){w.ours, value};
        submits = F.submits;
        OK(tandem_submit(w.s, &job, &l->ticket));
        nanosleep(&held, NULL);
        reads = __atomic_load_n(&F.counter_reads, __ATOMIC_RELAXED);
        assert_int_equal(F.submits, submits);
        assert_int_equal(report_of(l->ticket).state, TANDEM_JOB_PENDING);
        /* of 50 us each there are 40 around the time of the job before, some 30 at the begin */
        assert_in_range(reads, 1, (td_now_ns() - begin) / 400000 + 100);
        if (value > ANNOUNCES + 1) /* those before were announced */
            assert_in_range(reads, 1, (td_now_ns() - begin) / 400000 + 10);
        must(td_vk_timeline_signal(vk, w.engines_semaphore, value));
        if (value > ANNOUNCES) { /* nobody has to wake up for that */
            OK(tandem_timeline_submitted(w.s, w.engines, value));
            assert_int_equal(F.submits, submits + 1);
        }
        OK(tandem_wait(w.s, l->ticket, LIMIT_NS, NULL));
        assert_int_equal(report_of(l->ticket).state, TANDEM_JOB_DONE);
    }
    leave();
}

/* A job that the GPU has and that is given up: its blocks return at once, its output stays what it was, its point comes;
 * and the slot's next job is as any other. */
static void test_given_up(void **state)
{
    enum { TIMES = 2 * FRAMES };
    uint64_t value = 0;

    (void)state;
    if (F.real)
        return;
    enter();
    for (int late = 0; late < 2; late++)
        for (int i = 0; i < TIMES; i++) {
            lane *l = &w.lanes[i % FRAMES];
            const bool given_up = i < FRAMES;
            tandem_job job = job_on(l->mem);
            const uint64_t begin = td_now_ns();

            value++;
            fill(l, value);
            begin_commands(l->commands[0]);
            record_copies(l, l->commands[0], NULL, true);
            assert_int_equal(gpu.EndCommandBuffer(l->commands[0]), VK_SUCCESS);
            submit_lane(l, 0, 1, (vku_point){0}, (vku_point){w.engines_semaphore, value}, VK_NULL_HANDLE);
            OK(tandem_timeline_submitted(w.s, w.engines, value));
            job.wait = (tandem_point){w.engines, value};
            job.signal = (tandem_point){w.ours, value};
            job.deadline_ns = !late ? 0 : given_up ? 1000000 : LIMIT_NS;
            F.swallow_submits = true;
            OK(tandem_submit(w.s, &job, &l->ticket));
            F.swallow_submits = false;
            if (given_up && !late)
                OK(tandem_cancel(w.s, l->ticket));
            while (given_up && late && report_of(l->ticket).state == TANDEM_JOB_PENDING)
                assert_true(td_now_ns() - begin < LIMIT_NS);
            F.blocks = 0;
            fake_nvx_run_swallowed();
            OK(tandem_point_wait(w.s, (tandem_point){w.ours, value}, LIMIT_NS));
            OK(tandem_wait(w.s, l->ticket, LIMIT_NS, NULL));
            assert_int_equal(report_of(l->ticket).state, !given_up ? TANDEM_JOB_DONE
                                                         : late    ? TANDEM_JOB_STALE
                                                                   : TANDEM_JOB_CANCELLED);
            assert_true((F.blocks == 0) == given_up);
            begin_commands(l->commands[2]);
            record_copies(l, NULL, l->commands[2], false);
            assert_int_equal(gpu.EndCommandBuffer(l->commands[2]), VK_SUCCESS);
            submit_lane(l, 2, 1, (vku_point){w.our_semaphore, value}, (vku_point){0}, l->fence);
            wait_lane(l);
            if (!given_up)
                check_lane(l, value);
            for (size_t e = 0; e < ELEMENTS && given_up; e++)
                assert_true(isnan(((const frame_data *)l->out.host)->o[e]));
        }
    leave();
}

/* Image -> tokens -> attention -> tokens -> image. */
static void test_pack_and_unpack(void **state)
{
    enum { SIZE = 16, TILE = 8, TILES = 4, TOKENS = TILE * TILE };
    static float texels[SIZE][SIZE][4], tokens[TILES][TOKENS][DIM], got[SIZE][SIZE][4];
    static double o[TILES][TOKENS][DIM];
    const tandem_view view = {.dtype = TANDEM_DTYPE_F32, .stride_row = DIM, .stride_batch = TOKENS * DIM};
    tandem_attention op = {.q = view, .k = view, .v = view, .o = view, .batch = TILES, .heads = 1, .kv_heads = 1,
                           .q_len = TOKENS, .kv_len = TOKENS, .head_dim = DIM, .precision = TANDEM_PRECISION_F16};
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
    tandem_pack pack = {.struct_bytes = sizeof pack, .image_count = 1, .layout = VK_IMAGE_LAYOUT_GENERAL,
                        .format = VK_FORMAT_R32G32B32A32_SFLOAT, .width = SIZE, .height = SIZE, .tile_width = TILE,
                        .tile_height = TILE, .channels = 4, .view_channels = DIM},
                unpack;
    const VkPipelineStageFlags compute = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
    vku_image from, to;
    tandem_mem mem;
    uint64_t seed = 77;
    lane *l;

    (void)state;
    enter();
    l = &w.lanes[0];
    for (int y = 0; y < SIZE; y++)
        for (int x = 0; x < SIZE; x++)
            for (int c = 0; c < 4; c++) {
                texels[y][x][c] = (float)tu_normal(&seed);
                tokens[y / TILE * 2 + x / TILE][y % TILE * TILE + x % TILE][c] = texels[y][x][c];
            }
    td_ref_attention(&op, tokens, tokens, tokens, &o[0][0][0], NULL);
    assert_int_equal(vku_image_create(&gpu, pack.format, SIZE, SIZE, VK_IMAGE_USAGE_SAMPLED_BIT, &from), VK_SUCCESS);
    assert_int_equal(vku_image_create(&gpu, pack.format, SIZE, SIZE, VK_IMAGE_USAGE_STORAGE_BIT, &to), VK_SUCCESS);
    assert_int_equal(vku_image_upload(&gpu, &from, texels, VK_IMAGE_LAYOUT_GENERAL), VK_SUCCESS);
    assert_int_equal(vku_image_upload(&gpu, &to, texels, VK_IMAGE_LAYOUT_GENERAL), VK_SUCCESS);
    mem = new_mem(2 * sizeof tokens);
    op.q.mem = op.k.mem = op.v.mem = op.o.mem = mem;
    op.o.offset_bytes = sizeof tokens;
    job.op.attention = op;
    unpack = pack;
    pack.images[0] = from.view;
    pack.view = op.q;
    unpack.images[0] = to.view;
    unpack.view = op.o;
    for (int one_buffer = 0; one_buffer <= F.real; one_buffer++) {
        VkCommandBuffer commands[3];

        for (int i = 0; i < 3; i++) {
            commands[i] = l->commands[one_buffer ? 0 : i];
            if (!i || !one_buffer)
                begin_commands(commands[i]);
        }
        OK(tandem_record_acquire(w.s, commands[0], mem, compute, VK_ACCESS_SHADER_WRITE_BIT));
        OK(tandem_record_pack(w.s, commands[0], &pack));
        OK(tandem_record_release(w.s, commands[0], mem, compute, VK_ACCESS_SHADER_WRITE_BIT));
        OK(tandem_record(w.s, &job, commands[1], &l->ticket));
        OK(tandem_record_acquire(w.s, commands[2], mem, compute, VK_ACCESS_SHADER_READ_BIT));
        OK(tandem_record_unpack(w.s, commands[2], &unpack));
        for (int i = 0; i < (one_buffer ? 1 : 3); i++)
            assert_int_equal(gpu.EndCommandBuffer(commands[i]), VK_SUCCESS);
        submit_lane(l, 0, one_buffer ? 1 : 3, (vku_point){0}, (vku_point){0}, l->fence);
        wait_lane(l);
        check_done(l);
        memset(got, 0xff, sizeof got);
        assert_int_equal(vku_image_readback(&gpu, &to, got), VK_SUCCESS);
        for (int y = 0; y < SIZE; y++)
            for (int x = 0; x < SIZE; x++)
                for (int c = 0; c < 4; c++)
                    assert_true(fabs((double)got[y][x][c] -
                                     o[y / TILE * 2 + x / TILE][y % TILE * TILE + x % TILE][c]) < 0.02);
        assert_int_equal(vku_image_upload(&gpu, &to, texels, VK_IMAGE_LAYOUT_GENERAL), VK_SUCCESS);
    }
    vku_image_destroy(&gpu, &from);
    vku_image_destroy(&gpu, &to);
    leave();
}

static void refuses(tandem_job job, VkCommandBuffer commands, tandem_status wanted, const char *text)
{
    tandem_ticket ticket = 1;

    F.launches = F.barriers = 0;
    assert_int_equal(tandem_record(w.s, &job, commands, &ticket), wanted);
    assert_int_equal(ticket | F.launches | F.barriers, 0);
    if (!strstr(w.log, text))
        fail_msg("'%s' does not say '%s'", w.log, text);
}

static void test_record_refuses(void **state)
{
    tandem_job good, bad;
    tandem_ticket ticket = 1;
    VkCommandBuffer commands;

    (void)state;
    enter();
    commands = w.lanes[0].commands[0];
    good = job_on(w.lanes[0].mem);
    begin_commands(commands);
    bad = good;
    bad.wait = (tandem_point){w.engines, 1};
    refuses(bad, commands, TANDEM_ERROR_ARG, "job.wait");
    bad = good;
    bad.signal = (tandem_point){w.ours, 1};
    refuses(bad, commands, TANDEM_ERROR_ARG, "job.signal");
    bad = good;
    bad.deadline_ns = 1000000;
    refuses(bad, commands, TANDEM_ERROR_ARG, "job.deadline_ns is 1000000");
    refuses(good, NULL, TANDEM_ERROR_ARG, "commands is NULL");
    bad = good;
    bad.struct_bytes = 8;
    refuses(bad, commands, TANDEM_ERROR_ARG, "job.struct_bytes is 8");
    bad = good;
    bad.op.attention.q.mem = 12345;
    refuses(bad, commands, TANDEM_ERROR_ARG, "q.mem");
    /* right in itself, but too large for a command buffer */
    bad = job_on(new_mem(4 * ROWS * 256 * 4));
    bad.op.attention.head_dim = 256;
    bad.op.attention.q.stride_row = bad.op.attention.k.stride_row = bad.op.attention.v.stride_row =
        bad.op.attention.o.stride_row = 256;
    bad.op.attention.o.offset_bytes = 3 * ROWS * 256 * 4;
    refuses(bad, commands, TANDEM_ERROR_UNSUPPORTED, "attn_f16_d256");
    assert_int_equal(tandem_submit(w.s, &bad, &ticket), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(w.log, "attn_f16_d256"));
    assert_int_equal(tandem_record(NULL, &good, commands, &ticket), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_record(w.s, NULL, commands, &ticket), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_record(w.s, &good, commands, NULL), TANDEM_ERROR_ARG);
    /* and none of it took a slot */
    for (int i = 0; i < FRAMES; i++)
        OK(tandem_record(w.s, &good, commands, &ticket));
    assert_int_equal(gpu.EndCommandBuffer(commands), VK_SUCCESS);
    leave();
}

/* A job ends with the barrier for compute work; another would wait for its end stamp. */
static void test_acquire(void **state)
{
    const VkPipelineStageFlags compute = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
    const VkAccessFlags both = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT;
    const struct {
        VkPipelineStageFlags stage;
        VkAccessFlags access;
        unsigned barriers;
    } all[] = {{compute, VK_ACCESS_SHADER_READ_BIT, 0},
               {compute, both, 0},
               {compute, both | VK_ACCESS_UNIFORM_READ_BIT, 1},
               {compute | VK_PIPELINE_STAGE_FRAGMENT_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT, 1},
               {VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT, 1},
               {VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_ACCESS_MEMORY_READ_BIT, 1}};
    VkCommandBuffer commands;
    lane *l;

    (void)state;
    enter();
    l = &w.lanes[0];
    commands = l->commands[0];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const tandem_job job = job_on(l->mem);

        begin_commands(commands);
        OK(tandem_record(w.s, &job, commands, &l->ticket));
        F.barriers = 0;
        OK(tandem_record_acquire(w.s, commands, l->mem, all[i].stage, all[i].access));
        assert_int_equal(F.barriers, all[i].barriers);
        OK(tandem_record_release(w.s, commands, l->mem, compute, both));
        assert_int_equal(F.barriers, all[i].barriers + 1);
        assert_int_equal(gpu.EndCommandBuffer(commands), VK_SUCCESS);
        OK(tandem_cancel(w.s, l->ticket));
    }
    leave();
}

/* Commands that are submitted later, again, or never. */
static void test_recorded_jobs(void **state)
{
    tandem_ticket tickets[FRAMES], more;
    VkCommandBuffer commands;
    tandem_job job;
    lane *l;

    (void)state;
    enter();
    l = &w.lanes[0];
    job = job_on(l->mem);
    commands = l->commands[0];
    for (int round = 0; round < 2; round++) {
        begin_commands(commands);
        for (int i = 0; i < FRAMES; i++)
            OK(tandem_record(w.s, &job, commands, &tickets[i]));
        assert_int_equal(tandem_record(w.s, &job, commands, &more), TANDEM_ERROR_BUSY);
        assert_int_equal(tandem_wait(w.s, tickets[0], 1000000, NULL), TANDEM_ERROR_BUSY);
        assert_int_equal(gpu.EndCommandBuffer(commands), VK_SUCCESS);
        for (int i = 0; i < FRAMES; i++) {
            assert_int_equal(report_of(tickets[i]).state, TANDEM_JOB_PENDING);
            if (round == 0)
                OK(tandem_cancel(w.s, tickets[i]));
        }
        if (round == 1) /* with what they use */
            OK(tandem_mem_destroy(w.s, l->mem));
        for (int i = 0; i < FRAMES; i++)
            assert_int_equal(report_of(tickets[i]).state, TANDEM_JOB_CANCELLED);
    }
    /* given up, and submitted after all: nothing is written */
    l->mem = new_mem(sizeof(frame_data));
    job = job_on(l->mem);
    for (int cancelled = 1; cancelled >= 0; cancelled--) {
        fill(l, 99 + (uint64_t)cancelled);
        for (int i = 0; i < 3; i++)
            begin_commands(l->commands[i]);
        record_copies(l, l->commands[0], NULL, true);
        OK(tandem_record(w.s, &job, l->commands[1], &l->ticket));
        record_copies(l, NULL, l->commands[2], false);
        for (int i = 0; i < 3; i++)
            assert_int_equal(gpu.EndCommandBuffer(l->commands[i]), VK_SUCCESS);
        if (cancelled) {
            OK(tandem_cancel(w.s, l->ticket));
            assert_int_equal(tandem_cancel(w.s, l->ticket), TANDEM_ERROR_BUSY);
        }
        submit_lane(l, 0, 3, (vku_point){0}, (vku_point){0}, l->fence);
        wait_lane(l);
        assert_int_equal(report_of(l->ticket).state, cancelled ? TANDEM_JOB_CANCELLED : TANDEM_JOB_DONE);
        if (cancelled)
            for (size_t i = 0; i < ELEMENTS; i++)
                assert_true(isnan(((frame_data *)l->out.host)->o[i]));
        else
            check_lane(l, 1);
    }
    /* once more, with new data, after other jobs that needed more scratch */
    job.op.attention.smooth = TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K | TANDEM_SMOOTH_V;
    job.op.attention.precision = TANDEM_PRECISION_8B;
    for (int i = 1; i < 3; i++) {
        lane *other = &w.lanes[i];
        tandem_job larger = job_on(new_mem(4 * 4096 * DIM * 4));
        const uint32_t rows = 2048u * (uint32_t)i;

        larger.op.attention.q_len = larger.op.attention.kv_len = rows;
        larger.op.attention.k.offset_bytes = rows * DIM * 4;
        larger.op.attention.v.offset_bytes = 2 * rows * DIM * 4;
        larger.op.attention.o.offset_bytes = 3 * rows * DIM * 4;
        for (int j = 0; j < FRAMES; j++) {
            begin_commands(other->commands[0]);
            OK(tandem_record(w.s, &larger, other->commands[0], &more));
            assert_int_equal(gpu.EndCommandBuffer(other->commands[0]), VK_SUCCESS);
            OK(tandem_cancel(w.s, more));
        }
    }
    fill(l, 1234);
    submit_lane(l, 0, 3, (vku_point){0}, (vku_point){0}, l->fence);
    wait_lane(l);
    check_lane(l, 2);
    assert_int_equal(report_of(l->ticket).state, TANDEM_JOB_DONE);
    leave();
}

/* Commands that run again in every frame, and others that are recorded anew: however many of them, each knows its own end. */
static void test_recorded_for_good(void **state)
{
    enum { MANY = 2 * TD_INLINE_RECORDED + 10 };
    lane *always, *once;
    tandem_job job;

    (void)state;
    enter();
    always = &w.lanes[0];
    once = &w.lanes[1];
    job = job_on(always->mem);
    begin_commands(always->commands[0]);
    OK(tandem_record(w.s, &job, always->commands[0], &always->ticket));
    assert_int_equal(gpu.EndCommandBuffer(always->commands[0]), VK_SUCCESS);
    job = job_on(once->mem);
    for (uint32_t i = 0; i < MANY; i++) {
        begin_commands(once->commands[0]);
        OK(tandem_record(w.s, &job, once->commands[0], &once->ticket));
        assert_int_equal(gpu.EndCommandBuffer(once->commands[0]), VK_SUCCESS);
        if (i % 3 == 2) { /* what is cancelled is no other's */
            OK(tandem_cancel(w.s, once->ticket));
            assert_int_equal(report_of(once->ticket).state, TANDEM_JOB_CANCELLED);
        }
        submit_lane(once, 0, 1, (vku_point){0}, (vku_point){0}, VK_NULL_HANDLE);
        submit_lane(always, 0, 1, (vku_point){0}, (vku_point){0}, always->fence);
        wait_lane(always);
        if (i % 3 != 2)
            check_done(once);
        if (!i)
            check_done(always);
    }
    leave();
}

static VkCommandBuffer secondary(lane *l, const tandem_job *job, VkCommandBufferUsageFlags usage)
{
    const VkCommandBufferInheritanceInfo alone = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_INHERITANCE_INFO};
    const VkCommandBufferBeginInfo begin = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, .flags = usage, .pInheritanceInfo = &alone};
    const VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                              .commandPool = l->pool,
                                              .level = VK_COMMAND_BUFFER_LEVEL_SECONDARY,
                                              .commandBufferCount = 1};
    VkCommandBuffer commands;

    assert_int_equal(gpu.AllocateCommandBuffers(gpu.device, &info, &commands), VK_SUCCESS);
    assert_int_equal(gpu.BeginCommandBuffer(commands, &begin), VK_SUCCESS);
    OK(tandem_record(w.s, job, commands, &l->ticket));
    assert_int_equal(gpu.EndCommandBuffer(commands), VK_SUCCESS);
    return commands;
}

/* A job in a secondary command buffer: once; again and again with new data; pending twice at a time. */
static void test_secondary(void **state)
{
    const VkCommandBufferUsageFlags usages[] = {VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT, 0,
                                                VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT};
    PFN_vkCmdExecuteCommands execute;
    uint64_t frame = 0;
    lane *l;

    (void)state;
    enter();
    execute = (PFN_vkCmdExecuteCommands)gpu.GetDeviceProcAddr(gpu.device, "vkCmdExecuteCommands");
    l = &w.lanes[0];
    for (int u = 0; u < 3; u++) {
        const tandem_job job = job_on(l->mem);
        const VkCommandBuffer commands = secondary(l, &job, usages[u]);
        lane *second = &w.lanes[1]; /* its primary */

        begin_commands(l->commands[0]);
        record_copies(l, l->commands[0], NULL, true);
        begin_commands(l->commands[2]);
        record_copies(l, NULL, l->commands[2], false);
        begin_commands(l->commands[1]);
        execute(l->commands[1], 1, &commands);
        for (int i = 0; i < 3; i++)
            assert_int_equal(gpu.EndCommandBuffer(l->commands[i]), VK_SUCCESS);
        assert_int_equal(report_of(l->ticket).state, TANDEM_JOB_PENDING);
        for (int run = 0; run < (u ? 5 : 1); run++) {
            fill(l, 700 + ++frame);
            submit_lane(l, 0, 3, (vku_point){0}, (vku_point){0}, l->fence);
            wait_lane(l);
            check_lane(l, frame);
            check_done(l);
        }
        if (u < 2)
            continue;
        begin_commands(second->commands[1]);
        execute(second->commands[1], 1, &commands);
        assert_int_equal(gpu.EndCommandBuffer(second->commands[1]), VK_SUCCESS);
        fill(l, 700 + ++frame);
        submit_lane(l, 0, 2, (vku_point){0}, (vku_point){0}, VK_NULL_HANDLE);
        submit_lane(second, 1, 1, (vku_point){0}, (vku_point){0}, second->fence);
        submit_lane(l, 2, 1, (vku_point){0}, (vku_point){0}, l->fence);
        wait_lane(second);
        wait_lane(l);
        check_lane(l, frame);
    }
    leave();
}

/* Memory from elsewhere, and weights. */
static void test_memory(void **state)
{
    static const char header[] = "{\"k\":{\"dtype\":\"F32\",\"shape\":[1,1,64,32],\"data_offsets\":[0,8192]}}";
    const VkMemoryAllocateFlagsInfo address = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                               .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    const VkExportMemoryAllocateInfo export = {.sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO,
                                               .pNext = &address,
                                               .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                 .pNext = td_vk_get_caps(vk)->export_memory ? (const void *)&export : &address,
                                 .allocationSize = 1 << 20};
    tandem_mem_desc desc = {.struct_bytes = sizeof desc, .fd = -1};
    char path[] = "/tmp/tandem-inline-XXXXXX";
    const uint64_t header_bytes = sizeof header - 1;
    VkDeviceMemory memory = VK_NULL_HANDLE;
    tandem_model model = 0;
    tandem_mem engines, host, mems[2];
    uint64_t shape[4];
    tandem_view k;
    frame_data *data;
    void *pages = NULL;
    FILE *file;

    (void)state;
    enter();
    for (uint32_t i = 0; i < gpu.memory.memoryTypeCount && !memory; i++) {
        info.memoryTypeIndex = i;
        if (gpu.memory.memoryTypes[i].propertyFlags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)
            assert_int_equal(gpu.AllocateMemory(gpu.device, &info, NULL, &memory), VK_SUCCESS);
    }
    desc.source = TANDEM_MEM_VULKAN;
    desc.vulkan_memory = (uint64_t)(uintptr_t)memory;
    desc.allocation_bytes = info.allocationSize;
    desc.offset_bytes = 65536;
    desc.bytes = sizeof(frame_data);
    desc.dedicated = 1;
    assert_int_equal(tandem_mem_create(w.s, &desc, &engines), TANDEM_ERROR_UNSUPPORTED);
    desc.dedicated = 0;
    OK(tandem_mem_create(w.s, &desc, &engines));
    assert_int_equal(posix_memalign(&pages, 65536, 65536), 0);
    data = pages;
    OK(tandem_mem_create(w.s,
                         &(tandem_mem_desc){.struct_bytes = sizeof desc, .source = TANDEM_MEM_HOST, .host = pages,
                                            .bytes = 65536, .fd = -1},
                         &host));
    mems[0] = w.lanes[0].mem;
    mems[1] = engines;
    for (int i = 0; i < 2; i++) {
        lane *l = &w.lanes[0];
        const tandem_job job = job_on(mems[i]);

        l->mem = mems[i];
        fill(l, 5 + (uint64_t)i);
        for (int j = 0; j < 3; j++)
            begin_commands(l->commands[j]);
        record_copies(l, l->commands[0], NULL, true);
        OK(tandem_record(w.s, &job, l->commands[1], &l->ticket));
        record_copies(l, NULL, l->commands[2], false);
        for (int j = 0; j < 3; j++)
            assert_int_equal(gpu.EndCommandBuffer(l->commands[j]), VK_SUCCESS);
        submit_lane(l, 0, 3, (vku_point){0}, (vku_point){0}, l->fence);
        wait_lane(l);
        check_lane(l, (uint64_t)i);
    }
    /* K and V are a model's, Q and O in the host's memory */
    fill(&w.lanes[0], 42);
    memcpy(data, w.lanes[0].in.host, sizeof *data);
    memcpy(data->v, data->k, sizeof data->v);
    file = fdopen(mkstemp(path), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&header_bytes, 8, 1, file), 1);
    assert_int_equal(fwrite(header, header_bytes, 1, file), 1);
    assert_int_equal(fwrite(data->k, sizeof data->k, 1, file), 1);
    assert_int_equal(fclose(file), 0);
    OK(tandem_model_load(w.s, path, &model));
    remove(path);
    OK(tandem_model_tensor(w.s, model, "k", &k, shape));
    {
        tandem_job job = job_on(host);
        static double o[ELEMENTS];

        td_ref_attention(&job.op.attention, data->q, data->k, data->v, o, NULL);
        job.op.attention.k = job.op.attention.v = k;
        OK(tandem_submit(w.s, &job, &w.lanes[0].ticket));
        OK(tandem_wait(w.s, w.lanes[0].ticket, LIMIT_NS, NULL));
        check_done(&w.lanes[0]);
        for (size_t i = 0; i < ELEMENTS; i++)
            assert_true(fabs((double)data->o[i] - o[i]) < 0.02);
    }
    OK(tandem_model_destroy(w.s, model));
    OK(tandem_mem_destroy(w.s, engines));
    OK(tandem_mem_destroy(w.s, host));
    w.lanes[0].mem = mems[0];
    leave();
    free(pages);
    gpu.FreeMemory(gpu.device, memory, NULL);
}

/* What keeps a session from the rung, and what it says about it. */
static void demoted(vku *on, bool queue, const char *reason)
{
    memset(&w, 0, sizeof w);
    assert_int_equal(create_session(on, TANDEM_RUNG_INLINE, queue), TANDEM_ERROR_UNSUPPORTED);
    if (!strstr(w.text, reason))
        fail_msg("'%s' does not say '%s'", w.text, reason);
    if (!F.real)
        return; /* there is no rung below with CUDA */
    assert_int_equal(create_session(on, 0, queue), TANDEM_OK);
    assert_int_equal(w.info.rung, TANDEM_RUNG_TIMELINE);
    if (!strstr(w.info.rung_reason, reason) || !strstr(w.info.rung_reason, "inline"))
        fail_msg("'%s' does not say '%s'", w.info.rung_reason, reason);
    OK(tandem_session_destroy(&w.s));
}

static void test_demotion(void **state)
{
    const vku_options options = {.wrap = fake_nvx_wrap, .without = {"VK_NVX_binary_import"}},
                      no_address = {.wrap = fake_nvx_wrap, .without = {"bufferDeviceAddress"}};
    static vku other;
    tandem_ticket ticket;
    tandem_job job;

    (void)state;
    demoted(&gpu, false, "no queue");
    F.skip_launch = 7;
    memset(&w, 0, sizeof w);
    assert_int_equal(create_session(&gpu, TANDEM_RUNG_INLINE, true), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(w.text, "wrong data"));
    F.skip_launch = 0;
    /* on any other rung nothing can be recorded */
    assert_int_equal(create_session(&gpu, F.real ? TANDEM_RUNG_TIMELINE : TANDEM_RUNG_CPU, true), TANDEM_OK);
    job = job_on(1);
    assert_int_equal(tandem_record(w.s, &job, (VkCommandBuffer)(uintptr_t)&w, &ticket), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(w.log, "not on the inline rung"));
    OK(tandem_session_destroy(&w.s));
    assert_int_equal(vku_open(&other, &options), VKU_OK);
    demoted(&other, true, "VK_NVX_binary_import is not enabled");
    vku_close(&other);
    assert_int_equal(vku_open(&other, &no_address), VKU_OK);
    demoted(&other, true, "bufferDeviceAddress");
    vku_close(&other);
}

/* The engine waits for a point whose job was refused. (A job behind that wait would need a GPU: the fake one runs kernels
 * as they are submitted.) */
static void test_refused_point(void **state)
{
    tandem_ticket ticket;
    tandem_job job;
    uint64_t begin;

    (void)state;
    enter();
    job = job_on(w.lanes[0].mem);
    job.signal = (tandem_point){w.ours, 1};
    job.op.attention.head_dim = 33;
    assert_int_equal(tandem_submit(w.s, &job, &ticket), TANDEM_ERROR_ARG);
    assert_int_equal(vku_submit(&gpu, VK_NULL_HANDLE, (vku_point){w.our_semaphore, 1}, (vku_point){0}, w.lanes[0].fence),
                     VK_SUCCESS);
    begin = td_now_ns();
    alarm(60);
    OK(tandem_session_destroy(&w.s));
    alarm(0);
    assert_true(td_now_ns() - begin < 6000000000u);
    assert_int_equal(gpu.WaitForFences(gpu.device, 1, &w.lanes[0].fence, VK_TRUE, 6000000000u), VK_SUCCESS);
    OK(create_session(&gpu, 0, true)); /* for leave() to destroy */
    leave();
}

/* The device is gone: everything ends, and says so. */
static void test_lost(void **state)
{
    tandem_ticket recorded, ticket;
    tandem_job job;

    (void)state;
    enter();
    job = job_on(w.lanes[0].mem);
    begin_commands(w.lanes[0].commands[0]);
    OK(tandem_record(w.s, &job, w.lanes[0].commands[0], &recorded));
    assert_int_equal(gpu.EndCommandBuffer(w.lanes[0].commands[0]), VK_SUCCESS);
    F.fail_call = "vkQueueSubmit";
    F.fail_at = 1;
    F.failure = VK_ERROR_DEVICE_LOST;
    assert_int_equal(tandem_submit(w.s, &job, &ticket), TANDEM_ERROR_LOST);
    F.fail_call = NULL;
    assert_int_equal(tandem_submit(w.s, &job, &ticket), TANDEM_ERROR_LOST);
    assert_int_equal(tandem_record(w.s, &job, w.lanes[0].commands[0], &ticket), TANDEM_ERROR_LOST);
    assert_int_equal(report_of(recorded).state, TANDEM_JOB_FAILED);
    leave();
}

/* An engine that only records learns of it, too. */
static void test_lost_while_recorded(void **state)
{
    tandem_job_report report = {.struct_bytes = sizeof report};
    tandem_ticket recorded, ticket;
    tandem_job job;

    (void)state;
    enter();
    job = job_on(w.lanes[0].mem);
    begin_commands(w.lanes[0].commands[0]);
    OK(tandem_record(w.s, &job, w.lanes[0].commands[0], &recorded));
    assert_int_equal(gpu.EndCommandBuffer(w.lanes[0].commands[0]), VK_SUCCESS);
    assert_int_equal(tandem_wait(w.s, recorded, 250000000, &report), TANDEM_ERROR_BUSY); /* the device is well */
    F.fail_call = "vkGetSemaphoreCounterValue";
    F.fail_at = 1;
    F.failure = VK_ERROR_DEVICE_LOST;
    OK(tandem_wait(w.s, recorded, LIMIT_NS, &report));
    assert_int_equal(report.state, TANDEM_JOB_FAILED);
    assert_int_equal(report.status, TANDEM_ERROR_LOST);
    F.fail_call = NULL;
    assert_int_equal(tandem_record(w.s, &job, w.lanes[0].commands[0], &ticket), TANDEM_ERROR_LOST);
    leave();
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

static VkCommandPool bench_pool;

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
        assert_int_equal(gpu.CreateCommandPool(gpu.device, &pool, NULL, &bench_pool), VK_SUCCESS);
        info.commandPool = bench_pool;
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
    enum { MOST_RECORDS = 24 };
    double prefix[MOST_RECORDS + 1];
    double record_us[TIMES], enqueue_us[TIMES], job_us[TIMES], in_us[TIMES], out_us[TIMES], empty_us[TIMES], cuda_us[TIMES];
    td_vk_mem mems[4], scratch = {0};
    uint64_t views[TD_VIEW_COUNT] = {0};
    td_cu_device *device = NULL;
    td_stream *cuda = NULL;
    bool signalled;

    must(td_plan_attention(&op, &target, &plan, NULL, why, sizeof why));
    must(td_inline_check(stream, &plan, why, sizeof why));
    assert_true(plan.record_count <= MOST_RECORDS);
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
    gpu.DestroyCommandPool(gpu.device, bench_pool, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest measurements[] = {cmocka_unit_test(test_bench)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_wgmma),
        cmocka_unit_test(test_direct),
        cmocka_unit_test(test_many_plans_in_a_row),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_barriers),
        cmocka_unit_test(test_barriers_of_attention),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_points),
        cmocka_unit_test(test_frame_counts),
        cmocka_unit_test(test_kept_commands),
        cmocka_unit_test(test_lookers),
        cmocka_unit_test(test_slot_in_use),
        cmocka_unit_test(test_upload),
        cmocka_unit_test(test_create_and_destroy),
        cmocka_unit_test(test_images_on_demand),
        cmocka_unit_test(test_what_demotes),
        cmocka_unit_test(test_hang),
        cmocka_unit_test(test_failing_calls),
        cmocka_unit_test(test_failing_submits),
        cmocka_unit_test(test_kernels_of_8b),
        cmocka_unit_test(test_record_frames),
        cmocka_unit_test(test_submit_frames),
        cmocka_unit_test(test_held),
        cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_pack_and_unpack),
        cmocka_unit_test(test_record_refuses),
        cmocka_unit_test(test_acquire),
        cmocka_unit_test(test_recorded_jobs),
        cmocka_unit_test(test_recorded_for_good),
        cmocka_unit_test(test_secondary),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_demotion),
        cmocka_unit_test(test_refused_point),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_lost_while_recorded),
    };
    const char *expect = getenv("TANDEM_EXPECT_GPU");
    const bool bench = argc > 1 && !strcmp(argv[1], "--bench");
    const vku_options options = {.wrap = fake_nvx_wrap, .validation = !bench};
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
    if (bench)
        failed = cmocka_run_group_tests(measurements, open_all, close_all);
    else
        failed = cmocka_run_group_tests(tests, open_all, close_all);
    td_vk_close(&vk);
    vku_close(&gpu); /* where the layer reports what was not destroyed */
    if (gpu.errors)
        fprintf(stderr, "%u errors of the validation layer\n", gpu.errors);
    return failed || gpu.errors;
}
