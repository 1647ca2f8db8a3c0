/* The plans of a whole network for GPUs, on emulated ones, against the CPU's: the encoder of
 * all-MiniLM-L6-v2 with made-up weights.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/minilm_util.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/kernels/emu_modules.h"

enum { SENTENCES = 2 };

static minilm_sentences sentences;
static float *expected;

static void run_emulated(const minilm *model, const minilm_batch *batch, void *user)
{
    const td_plan *plan = batch->program->plan;
    void *scratch = minilm_memory(plan->scratch_bytes);
    const uint64_t views[] = {(uintptr_t)model->weights, 0, 0, (uintptr_t)batch->ids,
                              (uintptr_t)batch->lengths, (uintptr_t)batch->embeddings};

    for (uint32_t i = 0; i < plan->record_count; i++)
        em_launch_record(user, &plan->records[i], views, (uintptr_t)scratch, i);
    free(scratch);
}

static void check_on(em_module *gpu, bool on_stream, const char *graph, uint32_t count,
                     double least)
{
    td_target target = on_stream ? td_target_for_stream(gpu->sm) : td_target_for_sm(gpu->sm);
    float embeddings[SENTENCES * MINILM_DIM];
    minilm_sentences some = sentences;
    minilm model = minilm_open(graph, NULL);

    target.twin = true;
    some.count = count;
    minilm_embed(&model, &some, count, &target, run_emulated, gpu, embeddings);
    const double cosine = minilm_least_cosine(embeddings, expected, count);
    print_message("sm_%u%s, %s: cosine at least %.7f\n", (unsigned)gpu->sm,
                  on_stream ? ", stream" : "", graph, cosine);
    assert_true(cosine >= least);
    minilm_close(&model);
}

/* Hopper has kernels of its own for streams. With sanitizers, which are slow, it stands for all. */
static void check(const char *graph, uint32_t count, double least)
{
    const bool quick = getenv("TANDEM_SANITIZED") != NULL;

    for (int i = 0; i < EM_MODULES; i++) {
        if (quick && em_modules[i].sm != 90)
            continue;
        check_on(&em_modules[i], false, graph, count, least);
        if (em_modules[i].sm == 90)
            check_on(&em_modules[i], true, graph, count, least);
    }
}

static void test_alone(void **state)
{
    (void)state;
    check("f16-unpadded", 1, MINILM_COSINE_F16);
    check("8b", 1, MINILM_COSINE_8B);
}

static void test_padded(void **state)
{
    (void)state;
    check("f16", SENTENCES, MINILM_COSINE_F16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_alone), cmocka_unit_test(test_padded)};
    const td_target cpu = td_target_for_sm(0);

    if (!em_open_all(TD_EMU_FOLDER))
        return 1;
    sentences = minilm_read_sentences();
    sentences.count = SENTENCES;
    expected = minilm_memory(SENTENCES * MINILM_DIM * sizeof(float));
    minilm model = minilm_open("f16", NULL);
    minilm_embed(&model, &sentences, 1, &cpu, minilm_run_cpu, NULL, expected);
    minilm_close(&model);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(expected);
    minilm_free_sentences(&sentences);
    return failed;
}
