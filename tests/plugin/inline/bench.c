/* test_inline --bench: what kernels cost within command buffers, and what a frame does.
 * test_inline --bench-minilm [MODEL.safetensors]: a network, in the rows of test_minilm_gpu --bench.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/kernels/minilm_util.h"
#include "tests/plugin/inline/rig.h"

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

void test_bench(void **state)
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

/* --- A network --- */

static void bench_network(const minilm *model, const td_target *target)
{
    enum { TOKENS = 128, FIRST = 50, RUNS = 500 };
    static double us[RUNS];
    const td_program *program = minilm_program(model, 1, TOKENS, target);
    const int32_t length = TOKENS;
    int32_t ids[TOKENS];
    const void *const inputs[] = {[MINILM_IDS] = ids, [MINILM_LENGTHS] = &length};
    uint64_t views[TD_PROGRAM_BINDINGS + MINILM_BINDINGS] = {0};
    td_vk_mem weights, scratch, mems[MINILM_BINDINGS];

    must(td_inline_check(stream, program->plan, why, sizeof why));
    for (int i = 0; i < TOKENS; i++)
        ids[i] = i * 233 % MINILM_WORDS;
    must(td_vk_mem_create_device(vk, model->weight_bytes, STORAGE, &weights, why, sizeof why));
    must(td_inline_upload(stream, &weights, 0, model->weights, model->weight_bytes, why, sizeof why));
    must(td_vk_mem_create_device(vk, program->plan->scratch_bytes, STORAGE, &scratch, why, sizeof why));
    views[TD_PROGRAM_WEIGHTS] = weights.address;
    for (int i = 0; i < MINILM_BINDINGS; i++) {
        const uint64_t bytes = program->tensors[program->bindings[i]].bytes;

        must(td_vk_mem_create_device(vk, bytes, STORAGE, &mems[i], why, sizeof why));
        views[TD_PROGRAM_BINDINGS + i] = mems[i].address;
        if (i != MINILM_EMBEDDINGS)
            must(td_inline_upload(stream, &mems[i], 0, inputs[i], bytes, why, sizeof why));
    }
    for (int i = -FIRST; i < RUNS; i++) {
        const td_stream_submit all = {
            .plan = program->plan, .views = views, .scratch = scratch.address, .label = "minilm"};
        uint64_t sequence, begin, end;
        bool signalled;

        must(td_stream_enqueue(stream, &all, &sequence, &signalled, why, sizeof why));
        assert_int_equal(td_stream_wait(stream, sequence), TANDEM_OK);
        assert_true(td_stream_times(stream, sequence, &begin, &end));
        if (i >= 0)
            us[i] = (double)(end - begin) / 1e3;
    }
    qsort(us, RUNS, sizeof *us, by_size);
    printf("%-12s  %-8s  %7u  %8.0f  %7.1f  %7.1f  %7.1f\n", "f16", "inline",
           (unsigned)program->plan->record_count, td_program_floor_us(program, false), us[0], us[RUNS / 2],
           us[RUNS * 9 / 10]);
    for (int i = 0; i < MINILM_BINDINGS; i++)
        td_vk_mem_free(vk, &mems[i]);
    td_vk_mem_free(vk, &scratch);
    td_vk_mem_free(vk, &weights);
    td_program_drop(&program);
}

void test_bench_minilm(void **state)
{
    td_cu_info info;

    must(td_cu_device_query(td_vk_get_caps(vk)->device_uuid, &info, why, sizeof why));
    const td_target target = td_exec_target(&info, false);
    minilm model = minilm_open("f16", *state);

    bench_network(&model, &target);
    minilm_close(&model);
}
