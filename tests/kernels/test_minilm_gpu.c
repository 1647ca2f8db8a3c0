/* The encoder of all-MiniLM-L6-v2 as one program on a GPU: by kernel launches, by CUDA graphs, and in
 * Vulkan's command buffers.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * test_minilm_gpu [--bench] [MODEL.safetensors]; exits 77 where there is no CUDA device, unless
 * TANDEM_EXPECT_GPU is 1. MODEL is what tests/kernels/minilm/minilm.py writes (default: the build folder's,
 * if it is there): with it embeddings are compared with those of transformers; without it weights
 * are made up, and embeddings are compared with the CPU's. --bench prints how long 128 tokens take,
 * and each record of f16, which does not depend on weights.
 */
#include "tests/cases.h"
#include "tests/kernels/minilm_util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/interop/vk_util.h"

enum { GRAPHS = 3, BENCH_TOKENS = 128, BENCH_RUNS = 500, BENCH_FIRST = 50 };
enum { LAUNCHES, CUDA_GRAPHS, INLINE, KINDS };
static const char *const kinds[KINDS] = {"launches", "graphs", "inline"};
static const struct {
    const char *name;
    double least;
} graphs[GRAPHS] = {{"f16", MINILM_COSINE_F16},
                    {"f16-unpadded", MINILM_COSINE_F16},
                    {"8b", MINILM_COSINE_8B}};

static td_cu_device *device;
static vku vulkan;
static td_vk *vk; /* NULL: it has no inline kernels */
static int kind;  /* of `stream` */
static td_stream *stream;
static const char *file; /* of the weights, or NULL */
static minilm_sentences sentences;
static float *expected; /* their embeddings */

static td_target target_of_stream(void)
{
    return td_exec_target(td_cu_device_info(device), kind != INLINE);
}

/* --- The device's memory: CUDA's, or for kernels in command buffers Vulkan's --- */

typedef struct memory {
    uint64_t address;
    td_cu_mem cuda;
    td_vk_mem vulkan; /* mapped, if the host reads it again */
} memory;

static memory bring(const void *from, uint64_t bytes, bool mapped)
{
    const VkBufferUsageFlags usage =
        VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    memory it = {0};
    char why[256] = "";

    if (kind != INLINE) {
        minilm_must(td_cu_mem_alloc(device, bytes + 1, &it.cuda, why, sizeof why), why);
        minilm_must(td_cu_copy_to_device(device, it.cuda.address, from, bytes),
                    "copy to the device");
        it.address = it.cuda.address;
        return it;
    }
    minilm_must((mapped ? td_vk_mem_create_near : td_vk_mem_create_device)(
                    vk, bytes + 1, usage, &it.vulkan, why, sizeof why),
                why);
    if (mapped)
        memcpy(it.vulkan.host, from, bytes);
    else
        minilm_must(td_inline_upload(stream, &it.vulkan, 0, from, bytes, why, sizeof why), why);
    it.address = it.vulkan.address;
    return it;
}

static void fetch(void *to, const memory *from, uint64_t bytes)
{
    if (from->vulkan.host)
        memcpy(to, from->vulkan.host, bytes);
    else
        minilm_must(td_cu_copy_to_host(device, to, from->address, bytes), "copy from the device");
}

static void drop(memory *it)
{
    td_cu_mem_free(device, &it->cuda);
    td_vk_mem_free(vk, &it->vulkan);
}

/* --- Runs --- */

/* A batch's program and memory of the device. */
typedef struct loaded {
    const td_program *program;
    memory bindings[MINILM_BINDINGS], scratch;
    uint64_t views[TD_PROGRAM_BINDINGS + MINILM_BINDINGS];
} loaded;

static loaded load(const minilm_batch *batch, const memory *weights)
{
    const td_program *program = batch->program;
    const void *const from[] = {batch->ids, batch->lengths, batch->embeddings};
    void *poison = minilm_memory(program->plan->scratch_bytes);
    loaded it = {.program = program,
                 .scratch = bring(poison, program->plan->scratch_bytes, false)};

    free(poison);
    it.views[TD_PROGRAM_WEIGHTS] = weights->address;
    for (int i = 0; i < MINILM_BINDINGS; i++) {
        it.bindings[i] = bring(from[i], program->tensors[program->bindings[i]].bytes, true);
        it.views[TD_PROGRAM_BINDINGS + i] = it.bindings[i].address;
    }
    return it;
}

static void unload(loaded *it)
{
    for (int i = 0; i < MINILM_BINDINGS; i++)
        drop(&it->bindings[i]);
    drop(&it->scratch);
}

/* Microseconds on the device, of a plan with a program's views. */
static double submit(const loaded *it, const td_plan *plan)
{
    const td_stream_submit all = {
        .plan = plan, .views = it->views, .scratch = it->scratch.address, .label = "minilm"};
    uint64_t sequence, begin_ns, end_ns;
    char why[256] = "";
    bool signalled;

    minilm_must(td_stream_enqueue(stream, &all, &sequence, &signalled, why, sizeof why), why);
    minilm_must(td_stream_wait(stream, sequence), "wait");
    minilm_must(td_stream_status(stream, why, sizeof why), why);
    assert_true(td_stream_times(stream, sequence, &begin_ns, &end_ns));
    return 1e-3 * (double)(end_ns - begin_ns);
}

/* Twice: behind the first run scratch holds what that left. */
static void run_gpu(const minilm *model, const minilm_batch *batch, void *user)
{
    const uint64_t bytes = (uint64_t)batch->count * MINILM_DIM * sizeof(float);
    loaded it = load(batch, user);
    float *first = minilm_memory(bytes);

    assert_int_equal(batch->program->weight_bytes, model->weight_bytes);
    submit(&it, batch->program->plan);
    fetch(first, &it.bindings[MINILM_EMBEDDINGS], bytes);
    submit(&it, batch->program->plan);
    fetch(batch->embeddings, &it.bindings[MINILM_EMBEDDINGS], bytes);
    assert_memory_equal(first, batch->embeddings, bytes);
    free(first);
    unload(&it);
}

/* --- The tests --- */

/* Transformers' embeddings where the weights are the package's; else the CPU's. */
static void find_expected(void)
{
    const td_target cpu = td_target_for_sm(0);
    const uint64_t bytes = (uint64_t)sentences.count * MINILM_DIM * sizeof(float);

    expected = minilm_memory(bytes);
    if (file) {
        memcpy(expected, sentences.embeddings, bytes);
        return;
    }
    minilm model = minilm_open("f16", NULL);
    minilm_embed(&model, &sentences, 1, &cpu, minilm_run_cpu, NULL, expected);
    minilm_close(&model);
}

static void check(int which, uint32_t batch)
{
    const td_target target = target_of_stream();
    minilm model = minilm_open(graphs[which].name, file);
    memory weights = bring(model.weights, model.weight_bytes, false);
    float *embeddings = minilm_memory((uint64_t)sentences.count * MINILM_DIM * sizeof(float));

    minilm_embed(&model, &sentences, batch, &target, run_gpu, &weights, embeddings);
    const double cosine = minilm_least_cosine(embeddings, expected, sentences.count);
    print_message("%s, %u at a time: cosine at least %.7f\n", graphs[which].name, (unsigned)batch,
                  cosine);
    assert_true(cosine >= graphs[which].least);
    free(embeddings);
    drop(&weights);
    minilm_close(&model);
}

static void test_singles(void **state)
{
    (void)state;
    for (int i = 0; i < GRAPHS; i++)
        check(i, 1);
}

static void test_padded(void **state)
{
    (void)state;
    check(0, 8);
}

/* A session's runs have the bits of the stream's. */
static void run_both(const minilm *model, const minilm_batch *batch, void *user)
{
    void *const *both = user;
    minilm_batch again = *batch;
    const size_t bytes = (size_t)batch->count * MINILM_DIM * sizeof(float);

    again.embeddings = minilm_memory(bytes);
    run_gpu(model, batch, both[0]);
    minilm_run_session(model, &again, both[1]);
    assert_memory_equal(batch->embeddings, again.embeddings, bytes);
    free(again.embeddings);
}

static void test_session(void **state)
{
    static const char made_up[] = "minilm_made_up.safetensors";
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CUDA};
    const td_target target = target_of_stream();
    minilm model = minilm_open("f16", file);
    minilm_sentences some = sentences;

    (void)state;
    if (!file)
        minilm_write(&model, "f16", made_up);
    minilm_session session = minilm_session_open(&desc, file ? file : made_up);
    memory weights = bring(model.weights, model.weight_bytes, false);
    void *both[] = {&weights, &session};
    float *embeddings = minilm_memory((uint64_t)sentences.count * MINILM_DIM * sizeof(float));
    some.count = 40;
    for (uint32_t batch = 1; batch <= 8; batch += 7)
        minilm_embed(&model, &some, batch, &target, run_both, both, embeddings);
    free(embeddings);
    minilm_session_close(&session);
    drop(&weights);
    minilm_close(&model);
    unlink(made_up);
}

/* --- How long it takes --- */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Whether two records do the same, elsewhere. */
static bool are_alike(const td_record *a, const td_record *b)
{
    return a->kernel == b->kernel && !memcmp(a->grid, b->grid, sizeof a->grid) &&
           a->param_bytes == b->param_bytes && !memcmp(a->params, b->params, a->param_bytes);
}

/* Microseconds of a record, of many behind each other: the median. */
static double time_record(const loaded *it, const td_record *record)
{
    enum { COPIES = 100, RUNS = 30 };
    td_plan plan = {0};
    double us[RUNS];

    for (int i = 0; i < COPIES; i++)
        assert_non_null(td_plan_append(&plan, record));
    plan.scratch_bytes = it->program->plan->scratch_bytes;
    plan.view_count = it->program->plan->view_count;
    for (int i = 0; i < RUNS; i++)
        us[i] = submit(it, &plan);
    qsort(us, RUNS, sizeof *us, compare_doubles);
    td_plan_free(&plan);
    return us[RUNS / 2] / COPIES;
}

/* Each record of a program by itself, those that are alike once. */
static void bench_records(const loaded *it)
{
    const td_plan *plan = it->program->plan;
    double all = 0;

    printf("  first  kernel                      blocks  threads  us each  times       us\n");
    for (uint32_t i = 0; i < plan->record_count; i++) {
        const td_record *record = &plan->records[i];
        uint32_t before = 0, times = 0;

        for (uint32_t j = 0; j < plan->record_count; j++) {
            before += j < i && are_alike(record, &plan->records[j]);
            times += are_alike(record, &plan->records[j]);
        }
        if (before)
            continue;
        const double us = time_record(it, record);
        all += us * times;
        printf("  %5u  %-26s  %6u  %7u  %7.2f  %5u  %7.1f\n", i, record->kernel->name,
               record->grid[0], record->block[0], us, times, us * times);
    }
    printf("  %5s  %59u  %7.1f\n", "all", plan->record_count, all);
}

static void bench(int which)
{
    static double us[BENCH_RUNS];
    const td_target target = target_of_stream();
    minilm model = minilm_open(graphs[which].name, file);
    memory weights = bring(model.weights, model.weight_bytes, false);
    int32_t ids[BENCH_TOKENS], length = BENCH_TOKENS;
    float embeddings[MINILM_DIM] = {0};
    const td_program *program = minilm_program(&model, 1, BENCH_TOKENS, &target);
    const minilm_batch batch = {program, 1, BENCH_TOKENS, ids, &length, embeddings};

    for (int i = 0; i < BENCH_TOKENS; i++)
        ids[i] = i * 233 % MINILM_WORDS;
    loaded it = load(&batch, &weights);
    for (int i = -BENCH_FIRST; i < BENCH_RUNS; i++) {
        const double taken = submit(&it, program->plan);

        if (i >= 0)
            us[i] = taken;
    }
    qsort(us, BENCH_RUNS, sizeof *us, compare_doubles);
    printf("%-12s  %-8s  %7u  %8.0f  %7.1f  %7.1f  %7.1f\n", graphs[which].name, kinds[kind],
           (unsigned)program->plan->record_count, td_program_floor_us(program, true), us[0],
           us[BENCH_RUNS / 2], us[BENCH_RUNS * 9 / 10]);
    if (which == 0)
        bench_records(&it);
    fflush(stdout);
    unload(&it);
    td_program_drop(&program);
    drop(&weights);
    minilm_close(&model);
}

static void bench_all(void)
{
    printf("%-12s  %-8s  records  floor us       min    median       90%%\n", "graph", "stream");
    for (int i = 0; i < GRAPHS; i++)
        bench(i);
}

/* --- Devices and streams --- */

/* The CUDA device, and Vulkan's where that takes kernels; the reason where there is no CUDA. */
static bool open_devices(char *why, size_t why_bytes)
{
    if (td_cu_device_open(NULL, NULL, &device, why, why_bytes))
        return false;
    if (vku_open(&vulkan, &(vku_options){0}) == VKU_OK) {
        const td_vk_desc desc = vku_desc(&vulkan);

        minilm_must(td_vk_open(&desc, NULL, &vk, why, why_bytes), why);
        if (!td_vk_get_caps(vk)->inline_kernels)
            td_vk_close(&vk);
    }
    return true;
}

static void close_devices(void)
{
    td_vk_close(&vk);
    vku_close(&vulkan);
    td_cu_device_close(&device);
}

static void open_stream(void)
{
    const td_inline_desc desc = {
        .vk = vk, .sm = td_cu_device_info(device)->sm, .queue = vulkan.queue};
    char why[512] = "";

    minilm_must(kind == INLINE ? td_stream_create_inline(&desc, NULL, &stream, why, sizeof why)
                : kind == CUDA_GRAPHS
                    ? td_stream_create_graph(device, NULL, &stream, why, sizeof why)
                    : td_stream_create(device, NULL, &stream, why, sizeof why),
                why);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_singles),
                                       cmocka_unit_test(test_padded),
                                       cmocka_unit_test(test_session)};
    const struct CMUnitTest inline_tests[] = {cmocka_unit_test(test_singles),
                                              cmocka_unit_test(test_padded)};
    const bool timed = argc > 1 && !strcmp(argv[1], "--bench");
    const bool strict = expects_gpu();
    char why[512] = "";
    int failures = 0;

    if (!open_devices(why, sizeof why)) {
        fprintf(stderr, "no GPU: %s\n", why);
        return strict ? 1 : 77;
    }
    if (strict && !vk) {
        fprintf(stderr, "Vulkan takes no kernels, but is expected to\n");
        return 1;
    }
    if (argc > 1 + timed)
        file = argv[1 + timed];
    else if (!access(MINILM_FILE, R_OK))
        file = MINILM_FILE;
    printf("weights: %s\n", file ? file : "made up");
    if (timed)
        printf("%u tokens, batch 1, %d runs; microseconds on the device\n", (unsigned)BENCH_TOKENS,
               BENCH_RUNS);
    sentences = minilm_read_sentences();
    if (!timed)
        find_expected();
    for (kind = 0; kind < (vk ? KINDS : INLINE); kind++) {
        open_stream();
        if (timed)
            bench_all();
        else if (kind == INLINE)
            failures += cmocka_run_group_tests_name(kinds[kind], inline_tests, NULL, NULL);
        else
            failures += cmocka_run_group_tests_name(kinds[kind], tests, NULL, NULL);
        td_stream_destroy(&stream, 1000000000u);
    }
    free(expected);
    minilm_free_sentences(&sentences);
    close_devices();
    return failures != 0;
}
