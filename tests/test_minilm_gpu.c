/* The encoder of all-MiniLM-L6-v2 as one program on a GPU, by kernel launches and by CUDA graphs.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * test_minilm_gpu [--bench] [MODEL.safetensors]; exits 77 where there is no CUDA device, unless
 * TANDEM_EXPECT_GPU is 1. MODEL is what tests/minilm/minilm.py writes (default: the build folder's,
 * if it is there): with it embeddings are compared with those of transformers; without it weights
 * are made up, and embeddings are compared with the CPU's. --bench prints how long 128 tokens take,
 * which does not depend on weights.
 */
#include "tests/minilm_util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KINDS = 2, GRAPHS = 3, BENCH_TOKENS = 128, BENCH_RUNS = 500, BENCH_FIRST = 50 };
static const char *const kinds[KINDS] = {"launches", "graphs"};
static const struct {
    const char *name;
    double least;
} graphs[GRAPHS] = {{"f16", MINILM_COSINE_F16},
                    {"f16-unpadded", MINILM_COSINE_F16},
                    {"8b", MINILM_COSINE_8B}};

static td_cu_device *device;
static td_stream *stream;
static const char *file; /* of the weights, or NULL */
static minilm_sentences sentences;
static float *expected; /* their embeddings */

static td_cu_mem bring(const void *from, uint64_t bytes)
{
    td_cu_mem mem = {0};
    char why[256] = "";

    minilm_must(td_cu_mem_alloc(device, bytes + 1, &mem, why, sizeof why), why);
    minilm_must(td_cu_copy_to_device(device, mem.address, from, bytes), "copy to the device");
    return mem;
}

/* --- Runs --- */

/* A batch's program and memory of the device. */
typedef struct loaded {
    const td_program *program;
    td_cu_mem mems[MINILM_BINDINGS], scratch;
    uint64_t views[TD_PROGRAM_BINDINGS + MINILM_BINDINGS];
} loaded;

static loaded load(const minilm_batch *batch, const td_cu_mem *weights)
{
    const td_program *program = batch->program;
    const void *const from[] = {batch->ids, batch->lengths, batch->embeddings};
    void *poison = minilm_memory(program->plan->scratch_bytes);
    loaded it = {.program = program, .scratch = bring(poison, program->plan->scratch_bytes)};

    free(poison);
    it.views[TD_PROGRAM_WEIGHTS] = weights->address;
    for (int i = 0; i < MINILM_BINDINGS; i++) {
        it.mems[i] = bring(from[i], program->tensors[program->bindings[i]].bytes);
        it.views[TD_PROGRAM_BINDINGS + i] = it.mems[i].address;
    }
    return it;
}

static void unload(loaded *it)
{
    for (int i = 0; i < MINILM_BINDINGS; i++)
        td_cu_mem_free(device, &it->mems[i]);
    td_cu_mem_free(device, &it->scratch);
}

/* Microseconds on the device. */
static double submit(const loaded *it)
{
    const td_stream_submit all = {.plan = it->program->plan,
                                  .views = it->views,
                                  .scratch = it->scratch.address,
                                  .label = "minilm"};
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
    submit(&it);
    minilm_must(td_cu_copy_to_host(device, first, it.mems[MINILM_EMBEDDINGS].address, bytes),
                "copy from the device");
    submit(&it);
    minilm_must(
        td_cu_copy_to_host(device, batch->embeddings, it.mems[MINILM_EMBEDDINGS].address, bytes),
        "copy from the device");
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
    const td_target target = td_exec_target(td_cu_device_info(device), true);
    minilm model = minilm_open(graphs[which].name, file);
    td_cu_mem weights = bring(model.weights, model.weight_bytes);
    float *embeddings = minilm_memory((uint64_t)sentences.count * MINILM_DIM * sizeof(float));

    minilm_embed(&model, &sentences, batch, &target, run_gpu, &weights, embeddings);
    const double cosine = minilm_least_cosine(embeddings, expected, sentences.count);
    print_message("%s, %u at a time: cosine at least %.7f\n", graphs[which].name, (unsigned)batch,
                  cosine);
    assert_true(cosine >= graphs[which].least);
    free(embeddings);
    td_cu_mem_free(device, &weights);
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
    const td_target target = td_exec_target(td_cu_device_info(device), true);
    minilm model = minilm_open("f16", file);
    minilm_sentences some = sentences;

    (void)state;
    if (!file)
        minilm_write(&model, "f16", made_up);
    minilm_session session = minilm_session_open(&desc, file ? file : made_up);
    td_cu_mem weights = bring(model.weights, model.weight_bytes);
    void *both[] = {&weights, &session};
    float *embeddings = minilm_memory((uint64_t)sentences.count * MINILM_DIM * sizeof(float));
    some.count = 40;
    for (uint32_t batch = 1; batch <= 8; batch += 7)
        minilm_embed(&model, &some, batch, &target, run_both, both, embeddings);
    free(embeddings);
    minilm_session_close(&session);
    td_cu_mem_free(device, &weights);
    minilm_close(&model);
    unlink(made_up);
}

/* --- How long it takes --- */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void bench(int which, const char *kind)
{
    static double us[BENCH_RUNS];
    const td_target target = td_exec_target(td_cu_device_info(device), true);
    minilm model = minilm_open(graphs[which].name, file);
    td_cu_mem weights = bring(model.weights, model.weight_bytes);
    int32_t ids[BENCH_TOKENS], length = BENCH_TOKENS;
    float embeddings[MINILM_DIM] = {0};
    const td_program *program = minilm_program(&model, 1, BENCH_TOKENS, &target);
    const minilm_batch batch = {program, 1, BENCH_TOKENS, ids, &length, embeddings};

    for (int i = 0; i < BENCH_TOKENS; i++)
        ids[i] = i * 233 % MINILM_WORDS;
    loaded it = load(&batch, &weights);
    for (int i = -BENCH_FIRST; i < BENCH_RUNS; i++) {
        const double taken = submit(&it);

        if (i >= 0)
            us[i] = taken;
    }
    qsort(us, BENCH_RUNS, sizeof *us, compare_doubles);
    printf("%-12s  %-8s  %7u  %8.0f  %7.1f  %7.1f  %7.1f\n", graphs[which].name, kind,
           (unsigned)program->plan->record_count, td_program_floor_us(program, true), us[0],
           us[BENCH_RUNS / 2], us[BENCH_RUNS * 9 / 10]);
    fflush(stdout);
    unload(&it);
    td_program_drop(&program);
    td_cu_mem_free(device, &weights);
    minilm_close(&model);
}

static void bench_all(const char *kind)
{
    for (int i = 0; i < GRAPHS; i++)
        bench(i, kind);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_singles),
                                       cmocka_unit_test(test_padded),
                                       cmocka_unit_test(test_session)};
    const char *expect = getenv("TANDEM_EXPECT_GPU");
    const bool timed = argc > 1 && !strcmp(argv[1], "--bench");
    char why[512] = "";
    int failures = 0;

    if (td_cu_device_open(NULL, NULL, &device, why, sizeof why)) {
        fprintf(stderr, "no GPU: %s\n", why);
        return expect && !strcmp(expect, "1") ? 1 : 77;
    }
    if (argc > 1 + timed)
        file = argv[1 + timed];
    else if (!access(MINILM_FILE, R_OK))
        file = MINILM_FILE;
    printf("weights: %s\n", file ? file : "made up");
    if (timed)
        printf("%u tokens, batch 1, %d runs; microseconds on the device\n"
               "graph         stream    records  floor us      min   median      90%%\n",
               (unsigned)BENCH_TOKENS, BENCH_RUNS);
    sentences = minilm_read_sentences();
    if (!timed)
        find_expected();
    for (int kind = 0; kind < KINDS; kind++) {
        minilm_must((kind ? td_stream_create_graph : td_stream_create)(device, NULL, &stream, why,
                                                                       sizeof why),
                    why);
        if (timed)
            bench_all(kinds[kind]);
        else
            failures += cmocka_run_group_tests_name(kinds[kind], tests, NULL, NULL);
        td_stream_destroy(&stream, 1000000000u);
    }
    free(expected);
    minilm_free_sentences(&sentences);
    td_cu_device_close(&device);
    return failures != 0;
}
