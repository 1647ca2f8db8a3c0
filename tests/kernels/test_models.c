/* Small language models of each architecture and option against what transformers computes of them
 * in float32: tests/kernels/models/make_models.py made both.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/model/safetensors.h"
#include "tests/kernels/llama_util.h"

enum { PATH_BYTES = 600, MOST_TOKENS = 64 };

/* Whole files, by what is special about them. f16: how far logits, of which the largest are 2 to 8,
 * may be off where rows and dense matrices are fp16. */
static const struct model {
    const char *name;
    double f16;
} models[] = {
    {"llama", 0.02}, /* matrices of float32 */
    {"llama_tied_biases", 0.03},
    {"llama_linear", 0.02},
    {"llama_llama3", 0.03},
    {"llama_yarn", 0.02},
    {"mistral", 0.02}, /* a window of 7 tokens */
    {"qwen2", 0.05},   /* biases of queries, keys and values */
    {"qwen3", 0.02},   /* norms of heads */
    {"qwen3_yarn", 0.02},
    {"gemma", 0.02},
    {"gemma2", 0.02},  /* caps, windows in every second layer */
    {"gemma3", 0.02},  /* windows in five of six layers, which turn otherwise */
    {"types", 0.02},   /* F16, BF16, Q8_0, Q4_0, Q4_1 */
    {"types_k", 0.02}, /* Q4_K, Q5_K, Q6_K */
};
enum { MODELS = sizeof models / sizeof *models };

/* What transformers has. */
typedef struct wanted {
    int32_t ids[MOST_TOKENS];
    uint32_t tokens, words;
    float *logits;
} wanted;

static const char *path_of(const char *name, const char *suffix)
{
    static char path[PATH_BYTES];
    const char *build = getenv("TANDEM_BUILD");

    snprintf(path, sizeof path, "%s/models/%s%s", build ? build : "build", name, suffix);
    return path;
}

static wanted read_wanted(const char *name)
{
    td_safetensors file;
    char why[400] = "";
    wanted w = {0};

    lu_must(td_safetensors_open(path_of(name, ".safetensors"), &file, why, sizeof why), why);
    const td_safetensor *ids = td_safetensors_find(&file, "ids"),
                        *logits = td_safetensors_find(&file, "logits");
    assert_non_null(ids);
    assert_non_null(logits);
    assert_true(ids->shape[0] <= MOST_TOKENS && logits->shape[0] == ids->shape[0]);
    w.tokens = (uint32_t)ids->shape[0], w.words = (uint32_t)logits->shape[1];
    w.logits = lu_memory(logits->bytes);
    lu_must(td_safetensors_read(&file, ids, w.ids, why, sizeof why), why);
    lu_must(td_safetensors_read(&file, logits, w.logits, why, sizeof why), why);
    td_safetensors_close(&file);
    return w;
}

/* How far logits are off at most, `most` tokens at a time. */
static double try_model(const char *path, const wanted *want, uint32_t cache, uint32_t most)
{
    lu_model model = lu_open_cached(path, NULL, 0, 2, 0, cache);
    lu_instance it = lu_begin(&model, td_target_for_sm(0), lu_run_cpu, NULL);
    float *logits = lu_memory((uint64_t)want->tokens * want->words * sizeof *logits);
    double worst = 0;

    assert_int_equal(model.llama.sizes.words, want->words);
    lu_compute_sequence(&it, want->ids, 0, want->tokens, most, logits);
    for (uint32_t i = 0; i < want->tokens * want->words; i++)
        worst = fmax(worst, fabs((double)logits[i] - (double)want->logits[i]));
    assert_true(worst == worst);
    free(logits);
    lu_end(&it);
    lu_close(&model);
    return worst;
}

/* In float32 it is what transformers has; in fp16 nearly so; and it does not matter in how many
 * runs. */
static void try_path(const struct model *of, const char *path)
{
    wanted want = read_wanted(of->name);
    const double f32 = try_model(path, &want, TANDEM_CACHE_F32, want.tokens),
                 parts = try_model(path, &want, TANDEM_CACHE_F32, 5),
                 f16 = try_model(path, &want, TANDEM_CACHE_F16, want.tokens);

    print_message("%-18s off by %.1e at most in float32, in parts %.1e, in fp16 %.4f\n", of->name,
                  f32, parts, f16);
    assert_true(f32 <= 1e-4);
    assert_true(parts <= 1e-4);
    assert_true(f16 <= of->f16);
    free(want.logits);
}

static void test_files(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        char path[PATH_BYTES];

        snprintf(path, sizeof path, "%s", path_of(models[i].name, ".gguf"));
        try_path(&models[i], path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_files)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
