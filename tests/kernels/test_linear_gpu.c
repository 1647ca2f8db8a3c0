/* Linear layers on a GPU against float64: each form of the kernels, and what sessions choose on CUDA and in command buffers.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * test_linear_gpu [--each [LANE/LANES | NAME] | --cases]; exits 77 where there is no CUDA device, unless TANDEM_EXPECT_GPU is 1.
 * --each runs each kernel once or twice, on small shapes, for compute-sanitizer; --cases needs no GPU: that it leaves none out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine_plugin/exec/exec.h"
#include "tandem/tandem.h"
#include "tandem/vulkan.h"
#include "tests/cases.h"
#include "tests/interop/vk_util.h"
#include "tests/kernels/each.h"
#include "tests/kernels/joined_cases.h"
#include "tests/kernels/linear_util.h"

static td_cu_device *device;
static td_stream *stream;
static bool expected; /* what is missing is a failure */

static void must(tandem_status status, const char *why)
{
    if (status)
        fail_msg("status %d: %s", (int)status, why);
}

/* To its end, with scratch of its own. */
static void run_plan(const td_plan *plan, const uint64_t *views)
{
    td_cu_mem scratch = {0};
    td_stream_submit submit = {.plan = plan, .views = views, .label = "test"};
    uint64_t sequence;
    char why[256] = "";
    bool signalled;
    must(td_cu_mem_alloc(device, plan->scratch_bytes + 256, &scratch, why, sizeof why), why);
    submit.scratch = scratch.address;
    must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
    must(td_stream_wait(stream, sequence), "wait");
    must(td_stream_status(stream, why, sizeof why), why);
    td_cu_mem_free(device, &scratch);
}

/* On the device's own memory, guarded by what lies behind what is written. */
static void run(tl_case *it, const td_plan *plan)
{
    td_cu_mem mems[TL_VIEWS] = {{0}};
    uint64_t views[TL_VIEWS] = {0};
    char why[256] = "";
    for (uint32_t i = 0; i < TL_VIEWS; i++)
        if (it->data[i]) {
            must(td_cu_mem_alloc(device, it->bytes[i], &mems[i], why, sizeof why), why);
            must(td_cu_copy_to_device(device, mems[i].address, it->data[i], it->bytes[i]), "copy");
            views[i] = mems[i].address + td_view_in(&td_operation_linear.layout, &it->op, i)->offset_bytes;
        }
    run_plan(plan, views);
    for (uint32_t i = TL_Y; i < TL_VIEWS; i++)
        if (it->data[i])
            must(td_cu_copy_to_host(device, it->data[i], mems[i].address, it->bytes[i]), "copy");
    for (uint32_t i = 0; i < TL_VIEWS; i++)
        td_cu_mem_free(device, &mems[i]);
}

/* How many forms can do it. */
static uint32_t try_forms(tl_shape shape, uint32_t seed, uint32_t step)
{
    const td_cu_info *gpu = td_cu_device_info(device);
    uint32_t tried = 0;
    for (uint32_t form = 0; td_linear_form(form); form++) {
        static td_plan plan;
        td_target target = td_exec_target(gpu, true);
        tl_case it = tl_make(shape, seed);
        char why[300] = "";
        target.commit = seed % 5 == 4;
        const tandem_status status = td_linear_plan_form(&it.op, &target, form, &plan, why, sizeof why);
        assert_true(status == TANDEM_OK || status == TANDEM_ERROR_UNSUPPORTED);
        if (!status) {
            run(&it, &plan);
            tl_check(&it, step);
            if (shape.heads)
                tl_check_codes(&it, shape.granularity);
            tried++;
        }
        tl_free(&it);
    }
    return tried;
}

static void test_forms(void **state)
{
    static const uint32_t sizes[][3] = {{1, 8, 8},      {1, 64, 64},    {3, 72, 40},    {16, 512, 128}, {33, 96, 264},
                                        {64, 64, 256},  {65, 72, 257},  {128, 256, 256}, {129, 200, 520}, {300, 136, 1000},
                                        {200, 1001, 130}, {257, 512, 776}};
    uint32_t tried = 0;
    (void)state;
    for (uint32_t n = 0; n < 72; n++) {
        const uint32_t *size = sizes[n % 12];
        const tl_shape shape = {.rows = size[0],
                                .ins = size[1],
                                .outs = size[2],
                                .dtype = n % 2 ? TANDEM_DTYPE_F16 : TANDEM_DTYPE_BF16,
                                .y_dtype = 1 + n / 2 % 3,
                                .bias_dtype = n % 5 ? 1 + n % 3 : 0,
                                .residual_dtype = n % 3 ? 0 : 1 + n / 3 % 3,
                                .activation = n / 12 ? n % 4 : 0,
                                .gate = n / 12 ? n / 2 % 3 : 0,
                                .pad = n % 4 == 3 ? 5 : n % 4 * 8,
                                .offset = n % 13 == 12};
        tried += try_forms(shape, n, 1 + size[0] / 40);
    }
    assert_true(tried >= 72);
}

/* Tiles one after the other, of every form. */
static void test_walks(void **state)
{
    (void)state;
    try_forms((tl_shape){.rows = 2100, .ins = 200, .outs = 2056, .dtype = TANDEM_DTYPE_F16, .y_dtype = TANDEM_DTYPE_F16}, 1, 181);
    try_forms((tl_shape){.rows = 2100, .ins = 64, .outs = 3000, .dtype = TANDEM_DTYPE_BF16, .y_dtype = TANDEM_DTYPE_BF16,
                         .bias_dtype = TANDEM_DTYPE_F32, .activation = TANDEM_ACTIVATION_SILU, .gate = TANDEM_GATE_HALVES}, 2, 181);
    try_forms((tl_shape){.rows = 40, .ins = 4104, .outs = 4100, .dtype = TANDEM_DTYPE_F16, .y_dtype = TANDEM_DTYPE_F32}, 3, 13);
}

static void test_weights(void **state)
{
    static const uint32_t rows[] = {1, 2, 7, 8, 9, 16, 17, 40, 64, 65, 200};
    (void)state;
    for (uint32_t n = 0; n < 6 * (TD_LINEAR_WEIGHTS - 1); n++) { /* of each kind every second number of rows */
        const td_linear_weights kind = (td_linear_weights)(1 + n / 6);
        tl_shape shape = {.rows = rows[(2 * n + kind) % 11], .ins = 512, .outs = 136, .dtype = TANDEM_DTYPE_F16, .y_dtype = TANDEM_DTYPE_F16,
                          .weights = kind};
        assert_true(try_forms(shape, n, 1 + shape.rows / 20) >= 1u + (shape.rows <= 64));
        shape.dtype = TANDEM_DTYPE_BF16;
        shape.gate = 1 + n % 2;
        shape.activation = TANDEM_ACTIVATION_SILU;
        shape.ins = kind < TD_LINEAR_Q4_K ? 96 : 1280;
        shape.pad = kind == TD_LINEAR_INT8 ? 8 : n % 3;
        shape.bias_dtype = TANDEM_DTYPE_F32;
        try_forms(shape, n, 1 + shape.rows / 20);
    }
}

/* Weights in blocks, by few rows: tiles that one to all warps of a block share, with rows that end within a run. Row i of y has the same
 * bits with rows behind it and without. */
static void test_rows_alone(void **state)
{
    static const uint32_t processors[] = {1, 3, 132}, rows[] = {40, 20, 12, 8, 1};
    td_target target = td_exec_target(td_cu_device_info(device), true);
    static td_plan plan;
    char why[300] = "";
    uint32_t skinny = 0;
    (void)state;
    while (strcmp(td_linear_form(skinny), "skinny"))
        skinny++;
    for (uint32_t n = 0; n < 2 * (TD_LINEAR_WEIGHTS - 1); n++) {
        const td_linear_weights kind = (td_linear_weights)(1 + n / 2);
        tl_case it = tl_make((tl_shape){.rows = 40, .ins = kind < TD_LINEAR_Q4_K ? 896 + 32 * n : 1280, .outs = 200 + 64 * (n % 15),
                                        .dtype = 1 + n % 2, .y_dtype = TANDEM_DTYPE_F32, .residual_dtype = TANDEM_DTYPE_F32, .weights = kind}, n);
        const tandem_linear *l = &it.op.linear;
        const uint64_t row_bytes = (uint64_t)l->y.stride_row * sizeof(float);
        char *all = NULL;
        target.multiprocessors = processors[n % 3];
        target.constant_views = n % 2 ? 1u << TL_W : 0;
        for (uint32_t i = 0; i < 5; i++) {
            it.op.linear.rows = it.shape.rows = rows[i];
            tl_poison(&it);
            must(td_linear_plan_form(&it.op, &target, skinny, &plan, why, sizeof why), why);
            run(&it, &plan);
            if (!all) {
                tl_check(&it, 1);
                all = malloc(rows[i] * row_bytes);
                assert_non_null(all);
                memcpy(all, (char *)it.data[TL_Y] + l->y.offset_bytes, rows[i] * row_bytes);
            }
            for (uint32_t row = 0; row < rows[i]; row++)
                assert_memory_equal(all + row * row_bytes, (char *)it.data[TL_Y] + l->y.offset_bytes + row * row_bytes, l->outs * sizeof(float));
        }
        free(all);
        tl_free(&it);
    }
}

/* Codes of all dtypes of y, head dims, granularities, with statistics and without. */
static tl_shape codes_shape(uint32_t n)
{
    static const uint32_t lens[] = {1, 65, 128, 300}, dims[] = {32, 64, 80, 96, 128, 256};
    const uint32_t batch = 1 + n % 2;
    return (tl_shape){.rows = batch * lens[n / 2 % 4], .ins = 64, .dtype = 1 + n % 2, .y_dtype = 1 + n % 3,
                      .bias_dtype = TANDEM_DTYPE_F32, .batch = batch, .heads = 2, .kv_heads = 1 + n / 3 % 2,
                      .head_dim = dims[n % 6], .granularity = 1 + n % 5, .has_statistics = n / 2 % 2, .wants_next = n / 3 % 2,
                      .pad = n % 7 == 6 ? 5 : 0};
}

static void test_codes(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 60; n++)
        try_forms(codes_shape(n), n, 3);
}

/* --- A norm and the layer behind it --- */

static void run_joined(void *user, const td_program *program, void *const *views, const uint64_t *bytes, uint32_t count)
{
    td_cu_mem mems[JC_MOST_VIEWS] = {{0}};
    uint64_t addresses[JC_MOST_VIEWS] = {0};
    char why[256] = "";
    (void)user;
    for (uint32_t i = 0; i < count; i++)
        if (views[i]) {
            must(td_cu_mem_alloc(device, bytes[i], &mems[i], why, sizeof why), why);
            must(td_cu_copy_to_device(device, mems[i].address, views[i], bytes[i]), "copy");
            addresses[i] = mems[i].address;
        }
    run_plan(program->plan, addresses);
    for (uint32_t i = 0; i < count; i++)
        if (views[i]) {
            must(td_cu_copy_to_host(device, views[i], mems[i].address, bytes[i]), "copy");
            td_cu_mem_free(device, &mems[i]);
        }
}

/* By one kernel: the same bits as by two. With kernels of command buffers alone: by some of a stream's own it would be tensor maps. */
static void test_joined(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < JC_CASES; n++) {
        jc_case it = jc_open(n, td_exec_target(td_cu_device_info(device), false));
        jc_check(&it, run_joined, NULL);
        jc_close(&it);
    }
}

/* --- Each kernel once or twice, as sanitizers need it --- */

static te_cases each;

/* By each form that can do it. Some kernels are to run once more, in another variant. */
static void each_form(td_target target, tl_shape shape, bool other_variant)
{
    for (uint32_t form = 0; td_linear_form(form); form++) {
        tl_case it = tl_make(shape, each.number);
        static td_plan plan;
        char why[300] = "";
        const tandem_status status = td_linear_plan_form(&it.op, &target, form, &plan, why, sizeof why);
        if (status && status != TANDEM_ERROR_UNSUPPORTED)
            fail_msg("status %d: %s", (int)status, why);
        if (!status && te_is_mine(&each, &plan, other_variant)) {
            print_message("    %s, %s\n", plan.records[0].kernel->entry, other_variant ? "finished" : "plain");
            run(&it, &plan);
            tl_check(&it, 7);
            if (shape.heads)
                tl_check_codes(&it, shape.granularity);
        }
        tl_free(&it);
    }
}

/* Dense ones plain, where a block has one tile after the other, and with all that may follow a sum; each kind of weights, for every
 * number of rows that has kernels of its own; codes without statistics and with. */
static void each_kernel(td_target target)
{
    static const uint32_t rows[] = {130, 60, 20, 12, 5};
    td_target walks = target, commands;
    walks.multiprocessors = 1;
    commands = walks;
    commands.shared_bytes = 0; /* as within command buffers */
    for (uint32_t n = 0; n < 2 * 5; n++) {
        const uint32_t dtype = 1 + n % 2;
        const tl_shape plain = {.rows = rows[n / 2], .ins = 256, .outs = 264, .dtype = dtype, .y_dtype = TANDEM_DTYPE_F16};
        each_form(walks, plain, false);
        each_form(target, (tl_shape){.rows = rows[n / 2], .ins = 72, .outs = 136, .dtype = dtype, .y_dtype = TANDEM_DTYPE_F32,
                                     .bias_dtype = TANDEM_DTYPE_F32, .residual_dtype = TANDEM_DTYPE_F16, .gate = TANDEM_GATE_PAIRS,
                                     .activation = TANDEM_ACTIVATION_SILU}, true);
        for (td_linear_weights kind = TD_LINEAR_INT8; kind < TD_LINEAR_WEIGHTS; kind++) {
            tl_shape shape = plain;
            shape.outs = 40;
            shape.weights = kind;
            each_form(target, shape, false);
            shape.outs = 256;
            if (kind >= TD_LINEAR_TILES)
                each_form(walks, shape, false); /* two tiles a warp */
            if (kind == TD_LINEAR_TILES)
                each_form(commands, shape, false); /* without a ring of them */
            shape.outs = 272;
            if (kind >= TD_LINEAR_TILES)
                each_form(walks, shape, false); /* one each, and all rows of x for every block */
        }
    }
    each_form(target, codes_shape(4), false);
    each_form(target, codes_shape(3), true);
    commands.tensor_maps = false;
    for (uint32_t n = 0; n < JC_CASES; n++) {
        jc_case it = jc_open(n, commands);
        if (te_is_mine(&each, it.joined->plan, false)) {
            print_message("    %s\n", it.joined->plan->records[0].kernel->entry);
            jc_check(&it, run_joined, NULL);
        }
        jc_close(&it);
    }
}

static void test_each(void **state)
{
    const td_cu_info *gpu = td_cu_device_info(device);
    (void)state;
    te_begin(&each, gpu->sm);
    each_kernel(td_exec_target(gpu, true));
    te_end(&each, TE_LINEAR);
}

/* --- Through sessions --- */

static void test_cuda_session(void **state)
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CUDA};
    tandem_session *s;
    (void)state;
    TL_OK(tandem_session_create(&desc, &s), NULL);
    tl_try_session(s);
    if (!tl_try_codes(s))
        print_message("    this GPU has no attention on codes\n");
    TL_OK(tandem_session_destroy(&s), NULL);
}

static void no_lock(void *user) /* one thread has the queue */
{
    (void)user;
}

static void test_inline_session(void **state)
{
    static vku gpu;
    const char *text = vku_open(&gpu, NULL) == VKU_OK ? NULL : "no Vulkan device";
    (void)state;
    if (text && !expected)
        skip();
    if (text)
        fail_msg("%s", text);
    tandem_vulkan vulkan = vku_engine(&gpu);
    vulkan.lock_queue = vulkan.unlock_queue = no_lock;
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .vulkan = &vulkan};
    tandem_info info = {.struct_bytes = sizeof info};
    tandem_session *s;
    TL_OK(tandem_session_create(&desc, &s), NULL);
    TL_OK(tandem_session_info(s, &info), s);
    if (info.rung != TANDEM_RUNG_INLINE && expected)
        fail_msg("rung %u: %s", (unsigned)info.rung, info.rung_reason);
    tl_try_session(s);
    if (!tl_try_codes(s))
        print_message("    this GPU has no attention on codes\n");
    TL_OK(tandem_session_destroy(&s), NULL);
    vku_close(&gpu);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest forms[] = {cmocka_unit_test(test_forms), cmocka_unit_test(test_walks), cmocka_unit_test(test_weights),
                                       cmocka_unit_test(test_rows_alone), cmocka_unit_test(test_codes),
                                       cmocka_unit_test(test_joined)};
    const struct CMUnitTest kernel_by_kernel[] = {cmocka_unit_test(test_each)};
    const struct CMUnitTest sessions[] = {cmocka_unit_test(test_cuda_session), cmocka_unit_test(test_inline_session)};
    char why[512] = "";
    int failures = 0;
    expected = expects_gpu();
    const bool each_only = argc > 1 && !strcmp(argv[1], "--each"), cases_only = argc > 1 && !strcmp(argv[1], "--cases");
    if ((each_only || cases_only) && !te_arguments(&each, argc, argv))
        return 2;
    if (cases_only)
        return te_check_cases(&each, TE_LINEAR, each_kernel);
    if (td_cu_device_open(NULL, NULL, &device, why, sizeof why)) {
        fprintf(stderr, "no GPU: %s\n", why);
        return expected ? 1 : 77;
    }
    for (int graphs = 0; graphs < (each_only ? 1 : 2); graphs++) {
        must((graphs ? td_stream_create_graph : td_stream_create)(device, NULL, &stream, why, sizeof why), why);
        failures += each_only ? cmocka_run_group_tests(kernel_by_kernel, NULL, NULL)
                              : cmocka_run_group_tests_name(graphs ? "graphs" : "launches", forms, NULL, NULL);
        td_stream_destroy(&stream, 1000000000u);
    }
    td_cu_device_close(&device);
    if (!each_only)
        failures += cmocka_run_group_tests(sessions, NULL, NULL);
    return failures != 0;
}
