/* Logits of SmolLM2-135M-Instruct. See smollm2_logits.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/smollm2_logits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/cpu.h"
#include "kernels/model/safetensors.h"

static void *read_tensor(const td_safetensors *file, const char *name, uint64_t *bytes)
{
    const td_safetensor *tensor = td_safetensors_find(file, name);
    char why[400] = "";

    assert_non_null(tensor);
    void *to = lu_memory(tensor->bytes);
    lu_must(td_safetensors_read(file, tensor, to, why, sizeof why), why);
    *bytes = tensor->bytes;
    return to;
}

smollm2_fixtures smollm2_read(void)
{
    static const char *const names[] = {"lengths", "prompts", "ids", "tops", "top_logits", "sums"};
    const char *source = getenv("TANDEM_SOURCE");
    smollm2_fixtures f;
    td_safetensors file;
    char path[500], why[400] = "";
    uint64_t bytes[6], whole_bytes, at = 0;

    snprintf(path, sizeof path, "%s/tests/kernels/smollm2/fixtures.safetensors", source ? source : "..");
    lu_must(td_safetensors_open(path, &file, why, sizeof why), why);
    for (int i = 0; i < 6; i++)
        f.data[i] = read_tensor(&file, names[i], &bytes[i]);
    uint16_t *whole = read_tensor(&file, "whole", &whole_bytes);
    f.whole = lu_memory(2 * whole_bytes);
    td_to_floats(f.whole, whole, TANDEM_DTYPE_F16, 0, (uint32_t)(whole_bytes / sizeof *whole));
    free(whole);
    td_safetensors_close(&file);
    f.count = (uint32_t)(bytes[0] / sizeof(int32_t));
    f.sequences = calloc(f.count, sizeof *f.sequences);
    assert_non_null(f.sequences);
    for (uint32_t i = 0; i < f.count; i++) {
        const uint32_t length = (uint32_t)((int32_t *)f.data[0])[i];

        f.sequences[i] = (smollm2_sequence){.length = length,
                                            .prompt = (uint32_t)((int32_t *)f.data[1])[i],
                                            .ids = (int32_t *)f.data[2] + at,
                                            .tops = (int32_t *)f.data[3] + at * SMOLLM2_TOP,
                                            .top_logits = (float *)f.data[4] + at * SMOLLM2_TOP,
                                            .sums = (float *)f.data[5] + at};
        at += length;
    }
    for (int i = 2; i < 6; i++)
        assert_int_equal(bytes[i], at * sizeof(int32_t) * (i == 3 || i == 4 ? SMOLLM2_TOP : 1));
    return f;
}

void smollm2_free(smollm2_fixtures *fixtures)
{
    for (int i = 0; i < 6; i++)
        free(fixtures->data[i]);
    free(fixtures->whole);
    free(fixtures->sequences);
}

static double log_sum(const float *logits, uint32_t words)
{
    const double most = (double)logits[lu_best(logits, words)];
    double sum = 0;

    for (uint32_t i = 0; i < words; i++)
        sum += exp((double)logits[i] - most);
    return most + log(sum);
}

void smollm2_add(smollm2_score *score, const smollm2_sequence *sequence, uint32_t at,
                 const float *logits, uint32_t words)
{
    const int32_t *tops = sequence->tops + at * SMOLLM2_TOP;
    const double sum = log_sum(logits, words);
    double divergence = 0, rest = 1, our_rest = 1;

    for (int i = 0; i < SMOLLM2_TOP; i++) {
        const double p =
            (double)sequence->top_logits[at * SMOLLM2_TOP + i] - (double)sequence->sums[at];
        const double q = (double)logits[tops[i]] - sum;

        divergence += exp(p) * (p - q);
        rest -= exp(p);
        our_rest -= exp(q);
    }
    if (rest > 1e-6 && our_rest > 1e-6)
        divergence += rest * log(rest / our_rest);
    score->same += lu_best(logits, words) == (uint32_t)tops[0];
    score->divergence = (score->divergence * score->tokens + divergence) / (score->tokens + 1);
    score->most = divergence > score->most ? divergence : score->most;
    score->tokens++;
}

void smollm2_check(const smollm2_score *score, double divergence, double same)
{
    print_message("%u tokens: %.2f %% have the same most likely next one; divergence %.2g, at most "
                  "%.2g\n",
                  (unsigned)score->tokens, 100.0 * score->same / score->tokens, score->divergence,
                  score->most);
    assert_true(score->same >= same * score->tokens);
    assert_true(score->divergence <= divergence);
}

uint32_t smollm2_answer(lu_instance *it, const smollm2_sequence *sequence)
{
    const uint32_t words = it->model->llama.sizes.words;
    float *logits = lu_memory((uint64_t)sequence->length * words * sizeof *logits);
    uint32_t at = sequence->prompt;
    int32_t next;

    lu_compute_sequence(it, sequence->ids, 0, at, at, logits);
    next = (int32_t)lu_best(logits + (size_t)(at - 1) * words, words);
    while (at < sequence->length && next == sequence->ids[at]) {
        lu_compute_sequence(it, &next, at++, 1, 1, logits);
        next = (int32_t)lu_best(logits, words);
    }
    free(logits);
    return at - sequence->prompt;
}
