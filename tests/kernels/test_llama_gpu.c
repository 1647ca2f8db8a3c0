/* A language model as programs on a GPU, by kernel launches and by CUDA graphs.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * test_llama_gpu [--bench] [MODEL.gguf], or [--each [LANE/LANES | NAME] | --cases]; exits 77 where there is no CUDA device, unless
 * TANDEM_EXPECT_GPU is 1. --each runs kernels of records that are joined, for compute-sanitizer; --cases needs no GPU: that it leaves none
 * out. MODEL is what `tandem fetch smollm2` prints: with it logits are compared
 * with those of transformers, and answers are its own, word for word; without it weights of its
 * shape are made up, and logits are compared with the CPU's. --bench prints how long a token and a
 * prompt take, which does not depend on weights.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cases.h"
#include "tests/kernels/each.h"
#include "tests/kernels/llama_file.h"
#include "tests/kernels/smollm2_logits.h"

enum { KINDS = 2, BENCH_RUNS = 200, BENCH_FIRST = 20, MADE_UP_TOKENS = 40 };
static const char *const kinds[KINDS] = {"launches", "graphs"};
static const lf_shape smollm2 = {.layers = 30,
                                 .dim = 576,
                                 .hidden = 1536,
                                 .heads = 9,
                                 .kv_heads = 3,
                                 .head_dim = 64,
                                 .rotated_channels = 64,
                                 .words = 49152,
                                 .context = SMOLLM2_CONTEXT,
                                 .dtype = TANDEM_DTYPE_Q4_1};

static td_cu_device *device;
static td_stream *stream;
static const char *path; /* of the model, or NULL */
static lu_model model, tiles; /* as a CPU has it, and as a GPU has */
static uint32_t words;
static smollm2_fixtures fixtures;

/* --- Runs --- */

/* Memory of the device: of an instance, and of its program of now. */
typedef struct loaded {
    const td_program *program;
    td_cu_mem weights, state, uniforms, logits, scratch;
} loaded;

static td_cu_mem bring(const void *from, uint64_t bytes)
{
    td_cu_mem mem = {0};
    char why[256] = "";

    lu_must(td_cu_mem_alloc(device, bytes + 1, &mem, why, sizeof why), why);
    lu_must(td_cu_copy_to_device(device, mem.address, from, bytes), "copy to the device");
    return mem;
}

/* NaNs of every float. */
static td_cu_mem bring_poison(uint64_t bytes)
{
    void *poison = lu_memory(bytes);
    const td_cu_mem mem = bring(poison, bytes);

    free(poison);
    return mem;
}

static loaded load_instance(void)
{
    return (loaded){.weights = bring(tiles.weights, tiles.weight_bytes),
                    .state = bring_poison(tiles.state_bytes)};
}

static void unload_program(loaded *it)
{
    td_cu_mem_free(device, &it->uniforms);
    td_cu_mem_free(device, &it->logits);
    td_cu_mem_free(device, &it->scratch);
    td_program_drop(&it->program);
}

static void unload_instance(loaded *it)
{
    unload_program(it);
    td_cu_mem_free(device, &it->weights);
    td_cu_mem_free(device, &it->state);
}

static uint64_t logit_bytes(const td_program *program)
{
    return program->tensors[program->bindings[0]].bytes;
}

static void load_program(loaded *it, const td_program *program)
{
    if (it->program == program)
        return;
    unload_program(it);
    it->program = td_program_use(program); /* so that no other one gets its address */
    it->uniforms = bring_poison(program->uniform_bytes);
    it->logits = bring_poison(logit_bytes(program));
    it->scratch = bring_poison(program->plan->scratch_bytes);
}

/* Microseconds on the device. */
static double submit(const loaded *it)
{
    const uint64_t views[] = {it->weights.address, it->state.address, it->uniforms.address,
                              it->logits.address};
    const td_stream_submit all = {.plan = it->program->plan,
                                  .views = views,
                                  .scratch = it->scratch.address,
                                  .label = "llama"};
    uint64_t sequence, begin_ns, end_ns;
    char why[256] = "";
    bool signalled;

    lu_must(td_stream_enqueue(stream, &all, &sequence, &signalled, why, sizeof why), why);
    lu_must(td_stream_wait(stream, sequence), "wait");
    lu_must(td_stream_status(stream, why, sizeof why), why);
    assert_true(td_stream_times(stream, sequence, &begin_ns, &end_ns));
    return 1e-3 * (double)(end_ns - begin_ns);
}

/* Twice: the second time with what the first left in scratch and in the caches. */
static void run_gpu(lu_instance *instance, const void *uniforms, float *logits)
{
    loaded *it = instance->user;
    load_program(it, instance->program);
    const uint64_t bytes = logit_bytes(it->program);
    float *first = lu_memory(bytes);

    lu_must(
        td_cu_copy_to_device(device, it->uniforms.address, uniforms, it->program->uniform_bytes),
        "copy to the device");
    submit(it);
    lu_must(td_cu_copy_to_host(device, first, it->logits.address, bytes), "copy from the device");
    submit(it);
    lu_must(td_cu_copy_to_host(device, logits, it->logits.address, bytes), "copy from the device");
    assert_memory_equal(first, logits, bytes);
    free(first);
}

static lu_instance begin(loaded *it)
{
    *it = load_instance();
    return lu_begin(&tiles, td_exec_target(td_cu_device_info(device), true), run_gpu, it);
}

static void end(lu_instance *instance)
{
    unload_instance(instance->user);
    lu_end(instance);
}

/* --- The tests --- */

static void check_against_transformers(lu_instance *it)
{
    smollm2_score score = {0};

    for (uint32_t i = 0; i < fixtures.count; i++) {
        const smollm2_sequence *s = &fixtures.sequences[i];
        float *logits = lu_memory((uint64_t)s->length * words * sizeof *logits);

        lu_compute_sequence(it, s->ids, 0, s->length, s->length, logits);
        for (uint32_t at = 0; at < s->length; at++)
            smollm2_add(&score, s, at, logits + (size_t)at * words, words);
        free(logits);
    }
    smollm2_check(&score, SMOLLM2_DIVERGENCE, SMOLLM2_SAME);
}

/* Logits of `count` tokens, `most` at a time, against those of others. */
static void check_cosine(lu_instance *it, const int32_t *ids, uint32_t count, uint32_t most,
                         const float *expected)
{
    float *logits = lu_memory((uint64_t)count * words * sizeof *logits);
    double least = 1;

    lu_compute_sequence(it, ids, 0, count, most, logits);
    for (uint32_t i = 0; i < count; i++)
        least =
            fmin(least, lu_cosine(logits + (size_t)i * words, expected + (size_t)i * words, words));
    print_message("%u at a time: cosine at least %.7f\n", (unsigned)most, least);
    assert_true(least >= SMOLLM2_COSINE);
    free(logits);
}

static void test_logits(void **state)
{
    int32_t made_up[MADE_UP_TOKENS];
    const smollm2_sequence *s = &fixtures.sequences[0];
    const int32_t *ids = path ? s->ids : made_up;
    const uint32_t count = path ? s->length : MADE_UP_TOKENS;
    float *expected = lu_memory((uint64_t)count * words * sizeof *expected);
    lu_instance cpu = lu_begin(&model, td_target_for_sm(0), lu_run_cpu, NULL);
    loaded memory;
    lu_instance it = begin(&memory);

    (void)state;
    for (int i = 0; i < MADE_UP_TOKENS; i++)
        made_up[i] = i * 997 % (int32_t)words;
    if (path)
        check_against_transformers(&it);
    lu_compute_sequence(&cpu, ids, 0, count, count, expected);
    check_cosine(&it, ids, count, count, expected);
    check_cosine(&it, ids, count, 7, expected);
    check_cosine(&it, ids, count, 1, expected);
    free(expected);
    lu_end(&cpu);
    end(&it);
}

static void test_answers(void **state)
{
    loaded memory;
    lu_instance it = begin(&memory);

    (void)state;
    for (uint32_t i = 0; i < fixtures.count; i++) {
        const smollm2_sequence *s = &fixtures.sequences[i];

        assert_int_equal(smollm2_answer(&it, s), s->length - s->prompt);
    }
    end(&it);
}

/* --- Records that are joined --- */

static te_cases each;

static void speak_on_gpu(const lu_model *of, const td_target *target, float spoken[LU_SPOKEN])
{
    loaded memory = {.weights = bring(of->weights, of->weight_bytes)};
    lu_instance it = lu_begin(of, *target, run_gpu, &memory);

    memset(it.state, 0, of->state_bytes);
    memory.state = bring(it.state, of->state_bytes);
    lu_speak(&it, spoken);
    end(&it);
}

/* The same bits as apart. */
static void each_joined(td_target target, uint32_t head_dim, uint32_t dtype, uint32_t cache)
{
    lu_model small = lu_open_joined(256, head_dim, dtype, cache);
    const uint32_t numbers[TD_LLAMA_NUMBERS] = {LU_SEQUENCES, 1, LU_SEQUENCES};
    const td_program *program;
    char why[400] = "";

    lu_must(td_program_build(small.llama.graph, numbers, &target, &program, why, sizeof why), why);
    if (te_is_mine(&each, program->plan, false)) {
        static float joined[LU_SPOKEN], apart[LU_SPOKEN];

        speak_on_gpu(&small, &target, joined);
        target.apart = true;
        speak_on_gpu(&small, &target, apart);
        assert_memory_equal(joined, apart, sizeof joined);
    }
    td_program_drop(&program);
    lu_close(&small);
}

static void each_kernel(td_target target)
{
    static const uint32_t dtypes[] = {TANDEM_DTYPE_Q8_0, TANDEM_DTYPE_Q4_0, TANDEM_DTYPE_Q4_1,
                                      TANDEM_DTYPE_Q4_K, TANDEM_DTYPE_Q6_K, TANDEM_DTYPE_Q5_K};

    for (uint32_t i = 0; i < 6; i++)
        each_joined(target, i < 3 ? 64 : 128, dtypes[i], i % 3);
    each_joined(target, 64, TANDEM_DTYPE_Q8_0, LU_ROWS);
}

static void test_each(void **state)
{
    const td_cu_info *gpu = td_cu_device_info(device);

    (void)state;
    te_begin(&each, gpu->sm);
    each_kernel(td_exec_target(gpu, true));
    te_end(&each, TE_LLAMA);
}

static int run_each(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each)};
    char why[512] = "";

    lu_must(td_stream_create(device, NULL, &stream, why, sizeof why), why);
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    td_stream_destroy(&stream, 1000000000u);
    td_cu_device_close(&device);
    return failures != 0;
}

/* --- How long it takes --- */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* `tokens` tokens behind `before` others. */
static void bench(const char *kind, uint32_t tokens, uint32_t before)
{
    static double us[BENCH_RUNS];
    static int32_t ids[SMOLLM2_CONTEXT], positions[SMOLLM2_CONTEXT];
    loaded memory;
    lu_instance it = begin(&memory);
    float *logits = lu_memory(words * sizeof *logits);

    for (uint32_t i = 0; i < tokens; i++) {
        ids[i] = (int32_t)(i * 997 % words);
        positions[i] = (int32_t)(before + i);
    }
    lu_compute(&it, (const uint32_t[]){1, tokens, 1}, ids, positions,
               &(int32_t){(int32_t)tokens - 1}, logits);
    for (int i = -BENCH_FIRST; i < BENCH_RUNS; i++) {
        const double taken = submit(&memory);

        if (i >= 0)
            us[i] = taken;
    }
    qsort(us, BENCH_RUNS, sizeof *us, compare_doubles);
    printf("%6u  %6u  %-8s  %7u  %8.0f  %7.1f  %7.1f  %7.1f  %9.0f\n", (unsigned)tokens,
           (unsigned)before, kind, (unsigned)it.program->plan->record_count,
           td_program_floor_us(it.program, true), us[0], us[BENCH_RUNS / 2],
           us[BENCH_RUNS * 9 / 10], 1e6 * tokens / us[BENCH_RUNS / 2]);
    fflush(stdout);
    free(logits);
    end(&it);
}

static void bench_all(const char *kind)
{
    static const uint32_t sizes[][2] = {{1, 16}, {1, 480}, {8, 0}, {64, 0}, {512, 0}};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        bench(kind, sizes[i][0], sizes[i][1]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_logits)};
    const struct CMUnitTest tests_of_file[] = {cmocka_unit_test(test_logits),
                                               cmocka_unit_test(test_answers)};
    const bool timed = argc > 1 && !strcmp(argv[1], "--bench");
    const bool each_only = argc > 1 && !strcmp(argv[1], "--each"), cases_only = argc > 1 && !strcmp(argv[1], "--cases");
    char why[512] = "";
    void *file = NULL;
    uint64_t bytes = 0;
    int failures = 0;

    if ((each_only || cases_only) && !te_arguments(&each, argc, argv))
        return 2;
    if (cases_only)
        return te_check_cases(&each, TE_LLAMA, each_kernel);
    if (td_cu_device_open(NULL, NULL, &device, why, sizeof why)) {
        fprintf(stderr, "no GPU: %s\n", why);
        return expects_gpu() ? 1 : 77;
    }
    if (each_only)
        return run_each();
    if (argc > 1 + timed)
        path = argv[1 + timed];
    else
        file = lf_make(&smollm2, NULL, &bytes);
    printf("weights: %s\n", path ? path : "made up");
    if (timed)
        printf(
            "%d runs; microseconds on the device\n"
            "tokens  before  stream    records  floor us      min   median      90%%   tokens/s\n",
            BENCH_RUNS);
    model = lu_open(path, file, bytes, SMOLLM2_SLOTS, SMOLLM2_CONTEXT);
    tiles = lu_open_as(path, file, bytes,
                       &(td_llama_desc){.slots = SMOLLM2_SLOTS, .context = SMOLLM2_CONTEXT, .tiles = true});
    words = model.llama.sizes.words;
    fixtures = smollm2_read();
    for (int kind = 0; kind < KINDS; kind++) {
        lu_must((kind ? td_stream_create_graph : td_stream_create)(device, NULL, &stream, why,
                                                                   sizeof why),
                why);
        if (timed)
            bench_all(kinds[kind]);
        else
            failures += path ? cmocka_run_group_tests_name(kinds[kind], tests_of_file, NULL, NULL)
                             : cmocka_run_group_tests_name(kinds[kind], tests, NULL, NULL);
        td_stream_destroy(&stream, 1000000000u);
    }
    smollm2_free(&fixtures);
    lu_close(&model);
    lu_close(&tiles);
    free(file);
    td_cu_device_close(&device);
    return failures != 0;
}
