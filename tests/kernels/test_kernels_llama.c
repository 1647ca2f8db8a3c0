/* The plans of language models for GPUs, on emulated ones, against the CPU's: a small one of
 * Llama's architecture with made-up weights, and those of tests/kernels/models that have what it has not.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/kernels/emu_modules.h"
#include "tests/kernels/llama_file.h"
#include "tests/kernels/llama_util.h"

enum { PROMPT = 21, TOKENS = PROMPT + 3, SLOTS = 2 };

static void run_emulated(lu_instance *it, const void *uniforms, float *logits)
{
    const td_plan *plan = it->program->plan;
    void *scratch = lu_memory(plan->scratch_bytes);
    const uint64_t views[] = {(uintptr_t)it->model->weights, (uintptr_t)it->state,
                              (uintptr_t)uniforms, (uintptr_t)logits};

    for (uint32_t i = 0; i < plan->record_count; i++)
        em_launch_record(it->user, &plan->records[i], views, (uintptr_t)scratch, i);
    free(scratch);
}

/* A prompt in two parts, then token after token, in the second slot with one sequence of padding
 * before it: logits [TOKENS][words]. */
static void compute(lu_instance *it, float *logits)
{
    static const uint32_t parts[] = {PROMPT - 4, 4, 1, 1, 1};
    const uint32_t words = it->model->llama.sizes.words;
    uint32_t done = 0;

    for (size_t part = 0; part < sizeof parts / sizeof *parts; done += parts[part++]) {
        const uint32_t n = parts[part];
        int32_t ids[SLOTS * PROMPT], positions[SLOTS * PROMPT], rows[PROMPT];

        for (uint32_t i = 0; i < n; i++) {
            ids[i] = 0;
            positions[i] = -1;
            ids[n + i] = (int32_t)((done + i) * 37 % words);
            positions[n + i] = (int32_t)(done + i);
            rows[i] = (int32_t)(n + i);
        }
        lu_compute(it, (const uint32_t[]){SLOTS, n, n}, ids, positions, rows,
                   logits + done * words);
    }
}

static void check_on(em_module *gpu, const lu_model *model, const float *expected)
{
    const uint32_t words = model->llama.sizes.words;
    float *logits = lu_memory((uint64_t)TOKENS * words * sizeof *logits);
    td_target target = td_target_for_sm(gpu->sm);
    double worst = 0;

    target.twin = true;
    lu_instance it = lu_begin(model, target, run_emulated, gpu);
    compute(&it, logits);
    for (uint32_t i = 0; i < TOKENS * words; i++)
        worst = fmax(worst, fabs((double)logits[i] - (double)expected[i]));
    print_message("sm_%u: off by %.4f at most\n", (unsigned)gpu->sm, worst);
    assert_true(worst <= 0.02); /* of logits of about 1, for operands that are rounded to fp16 */
    lu_end(&it);
    free(logits);
}

/* How far logits of the first tokens are off, as many at once as may be, then one by one. */
static double differ(em_module *gpu, const lu_model *model, const int32_t *ids, const float *expected)
{
    const uint32_t words = model->llama.sizes.words;
    float *logits = lu_memory((uint64_t)TOKENS * words * sizeof *logits);
    td_target target = td_target_for_sm(gpu->sm);
    double worst = 0;

    target.twin = true;
    lu_instance it = lu_begin(model, target, run_emulated, gpu);
    lu_compute_sequence(&it, ids, 0, PROMPT, PROMPT, logits);
    lu_compute_sequence(&it, ids + PROMPT, PROMPT, TOKENS - PROMPT, 1, logits + PROMPT * words);
    for (uint32_t i = 0; i < TOKENS * words; i++)
        worst = fmax(worst, fabs((double)logits[i] - (double)expected[i]));
    lu_end(&it);
    free(logits);
    return worst;
}

/* Windows, caps, biases, norms of heads and behind layers, Q5_K. */
static void test_others(void **state)
{
    static const char *const names[] = {"mistral", "qwen2", "qwen3", "gemma2", "gemma3", "types_k"};
    const char *build = getenv("TANDEM_BUILD");
    const bool quick = getenv("TANDEM_SANITIZED") != NULL;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[600];
        int32_t ids[TOKENS];

        snprintf(path, sizeof path, "%s/models/%s.gguf", build ? build : ".", names[i]);
        lu_model model = lu_open(path, NULL, 0, 1, 0);
        lu_instance cpu = lu_begin(&model, td_target_for_sm(0), lu_run_cpu, NULL);
        const uint32_t words = model.llama.sizes.words;
        float *expected = lu_memory((uint64_t)TOKENS * words * sizeof *expected);

        for (uint32_t j = 0; j < TOKENS; j++)
            ids[j] = (int32_t)(j * 37 % words);
        lu_compute_sequence(&cpu, ids, 0, TOKENS, TOKENS, expected);
        for (int m = 0; m < EM_MODULES; m++) {
            if (quick && em_modules[m].sm != 90)
                continue;
            const double worst = differ(&em_modules[m], &model, ids, expected);

            print_message("%s, sm_%u: off by %.4f at most\n", names[i], (unsigned)em_modules[m].sm, worst);
            assert_true(worst <= 0.05); /* of logits up to 8, for operands that are rounded to fp16 */
        }
        free(expected);
        lu_end(&cpu);
        lu_close(&model);
    }
}

/* With sanitizers, which are slow, one GPU stands for all. */
static void check(uint32_t dtype, uint32_t value_dtype, uint32_t cache)
{
    const lf_shape shape = {.layers = 2,
                            .dim = 256,
                            .hidden = 512,
                            .heads = 8,
                            .kv_heads = 2,
                            .head_dim = 64,
                            .rotated_channels = 64,
                            .words = 160,
                            .context = 80,
                            .dtype = dtype,
                            .value_dtype = value_dtype};
    const bool quick = getenv("TANDEM_SANITIZED") != NULL;
    uint64_t bytes;
    void *file = lf_make(&shape, NULL, &bytes);
    lu_model model = lu_open_cached(NULL, file, bytes, SLOTS, 0, cache);
    lu_instance cpu = lu_begin(&model, td_target_for_sm(0), lu_run_cpu, NULL);
    float *expected = lu_memory((uint64_t)TOKENS * shape.words * sizeof *expected);

    compute(&cpu, expected);
    for (int i = 0; i < EM_MODULES; i++)
        if (!quick || em_modules[i].sm == 90)
            check_on(&em_modules[i], &model, expected);
    free(expected);
    lu_end(&cpu);
    lu_close(&model);
    free(file);
}

static void test_alike(void **state)
{
    (void)state;
    check(TANDEM_DTYPE_Q4_1, 0, TANDEM_CACHE_F16);
}

static void test_values_apart(void **state)
{
    (void)state;
    check(TANDEM_DTYPE_Q4_K, TANDEM_DTYPE_Q6_K, TANDEM_CACHE_F16);
}

static void test_codes(void **state)
{
    (void)state;
    check(TANDEM_DTYPE_Q4_1, 0, TANDEM_CACHE_K4V8);
}

/* --- Records that are joined --- */

static uint32_t count_kernels(const td_program *program, const char *prefix)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < program->plan->record_count; i++)
        count += strncmp(program->plan->records[i].kernel->entry, prefix, strlen(prefix)) == 0;
    return count;
}

/* A sequence's rows, some of which have no place in the cache. */
static void read_rows(lu_instance *it, float logits[5 * LU_WORDS])
{
    lu_compute(it, (const uint32_t[]){1, 5, 5}, (const int32_t[]){7, 8, 9, 10, 11}, (const int32_t[]){3, 4, -1, 300, INT32_MAX},
               (const int32_t[]){0, 1, 2, 3, 4}, logits);
}

static void check_rows(lu_instance *joined, lu_instance *apart, size_t state_bytes)
{
    float logits[5 * LU_WORDS], other[5 * LU_WORDS];

    assert_int_equal(count_kernels(joined->program, "scatter_rows"), 0);
    assert_int_equal(count_kernels(apart->program, "scatter_rows"), 1);
    read_rows(joined, logits);
    read_rows(apart, other);
    assert_memory_equal(logits, other, sizeof logits);
    assert_memory_equal(joined->state, apart->state, state_bytes);
}

/* One kernel for a norm and the matrix behind it, for that and rows of it that are kept, and for a row that is appended and attention: the
 * same bits as apart. */
static void check_joined(uint32_t dim, uint32_t dtype, uint32_t cache)
{
    const bool quick = getenv("TANDEM_SANITIZED") != NULL;
    lu_model model = lu_open_joined(dim, 64, dtype, cache);
    float joined[LU_SPOKEN], apart[LU_SPOKEN];

    for (int i = 0; i < EM_MODULES; i++) {
        td_target target = td_target_for_sm(em_modules[i].sm);

        if ((quick || dtype != TANDEM_DTYPE_Q8_0) && em_modules[i].sm != 90)
            continue;
        target.twin = true;
        lu_instance it = lu_begin(&model, target, run_emulated, &em_modules[i]);
        target.apart = true;
        lu_instance other = lu_begin(&model, target, run_emulated, &em_modules[i]);
        memset(it.state, 0, model.state_bytes);
        memset(other.state, 0, model.state_bytes);
        lu_speak(&it, joined);
        lu_speak(&other, apart);
        assert_memory_equal(joined, apart, sizeof joined);
        assert_int_equal(count_kernels(it.program, "cache_step"), cache != LU_ROWS);
        assert_int_equal(count_kernels(it.program, "linear_f16_normed"), 3);
        assert_int_equal(it.program->plan->record_count, other.program->plan->record_count - 4);
        if (cache == LU_ROWS)
            check_rows(&it, &other, model.state_bytes);
        lu_end(&it);
        lu_end(&other);
    }
    lu_close(&model);
}

static void test_joined(void **state)
{
    static const uint32_t dtypes[] = {TANDEM_DTYPE_Q8_0, TANDEM_DTYPE_Q4_0, TANDEM_DTYPE_Q4_1,
                                      TANDEM_DTYPE_Q4_K, TANDEM_DTYPE_Q6_K, TANDEM_DTYPE_Q5_K};

    (void)state;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        check_joined(256, dtypes[i], (uint32_t)i % 3);
    check_joined(256, TANDEM_DTYPE_Q8_0, LU_ROWS);
    check_joined(1280, TANDEM_DTYPE_Q8_0, TANDEM_CACHE_K8V8); /* rows that all of a block share */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_alike),
                                       cmocka_unit_test(test_values_apart),
                                       cmocka_unit_test(test_codes),
                                       cmocka_unit_test(test_others),
                                       cmocka_unit_test(test_joined)};

    if (!em_open_all(TD_EMU_FOLDER))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
