/* Small language models of each architecture and option against what transformers computes of them
 * in float32: tests/kernels/models/make_models.py made both.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/model/folder.h"
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

/* The same models as transformers saves them. */
static void test_folders(void **state)
{
    static const char *const folders[] = {"llama",      "llama_llama3", "mistral", "qwen2",
                                          "qwen3_yarn", "gemma2",       "gemma3"};

    (void)state;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        for (int j = 0; j < MODELS; j++) {
            char path[PATH_BYTES];

            if (strcmp(models[j].name, folders[i]) != 0)
                continue;
            snprintf(path, sizeof path, "%s", path_of(folders[i], ""));
            try_path(&models[j], path);
        }
}

/* --- Folders that are refused --- */

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[2 * PATH_BYTES];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = text ? fopen(path, "wb") : NULL;
    assert_true(!text == !file);
    if (!text)
        remove(path);
    else {
        assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
        assert_int_equal(fclose(file), 0);
    }
}

#define CONFIG(more)                                                                               \
    "{\"model_type\": \"llama\", \"hidden_size\": 32, \"num_attention_heads\": 2, "                \
    "\"num_hidden_layers\": 1, \"intermediate_size\": 32, \"max_position_embeddings\": 32, "       \
    "\"rms_norm_eps\": 1e-05" more "}"

static void test_refused_folders(void **state)
{
    static const struct {
        const char *config, *index, *weights;
        tandem_status status;
        const char *says;
    } cases[] = {
        {"{", NULL, NULL, TANDEM_ERROR_PROTOCOL, "config.json: line 1"},
        {"[]", NULL, NULL, TANDEM_ERROR_PROTOCOL, "config.json: it is no object"},
        {"{\"model_type\": \"mamba\"}", NULL, NULL, TANDEM_ERROR_UNSUPPORTED,
         "config.json: model_type is \"mamba\", none of llama, mistral, qwen2, qwen3, gemma"},
        {"{}", NULL, NULL, TANDEM_ERROR_UNSUPPORTED, "config.json: model_type is \"\""},
        {CONFIG(", \"hidden_act\": \"relu\""), NULL, NULL, TANDEM_ERROR_UNSUPPORTED,
         "config.json: hidden_act is \"relu\"; it must be silu"},
        {CONFIG(", \"quantization_config\": {}"), NULL, NULL, TANDEM_ERROR_UNSUPPORTED,
         "config.json: it has a quantization_config"},
        {CONFIG(", \"num_key_value_heads\": 1.5"), NULL, NULL, TANDEM_ERROR_PROTOCOL,
         "config.json: \"num_key_value_heads\" is no whole number"},
        {CONFIG(", \"head_dim\": 99999999999"), NULL, NULL, TANDEM_ERROR_PROTOCOL,
         "config.json: \"head_dim\" is no whole number of 32 bits"},
        {CONFIG(", \"rope_theta\": \"x\""), NULL, NULL, TANDEM_ERROR_PROTOCOL,
         "config.json: \"rope_theta\" is no number"},
        {CONFIG(", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}"), NULL, NULL,
         TANDEM_ERROR_PROTOCOL, "config.json: rotations are scaled as llama3's with factor 8"},
        {CONFIG(", \"rope_scaling\": {\"type\": \"yarn\", \"mscale\": 1}"), NULL, NULL,
         TANDEM_ERROR_UNSUPPORTED, "config.json: yarn with \"mscale\""},
        {CONFIG(", \"partial_rotary_factor\": 2"), NULL, NULL, TANDEM_ERROR_PROTOCOL,
         "config.json: partial_rotary_factor is 2"},
        {CONFIG(", \"layer_types\": [\"linear_attention\"]"), NULL, NULL, TANDEM_ERROR_UNSUPPORTED,
         "config.json: layer_types[0]"},
        {CONFIG(""), NULL, NULL, TANDEM_ERROR_IO, "model.safetensors"},
        {CONFIG(""), "{}", NULL, TANDEM_ERROR_PROTOCOL,
         "model.safetensors.index.json: it has no \"weight_map\""},
        {CONFIG(""), "{\"weight_map\": {\"a\": \"../b\"}}", NULL, TANDEM_ERROR_PROTOCOL,
         "model.safetensors.index.json: \"a\" is in no file of the folder"},
        {CONFIG(""), "{\"weight_map\": {\"a\": \"b\"}}", NULL, TANDEM_ERROR_IO, "b: "},
        {CONFIG(""), NULL, "12345678", TANDEM_ERROR_PROTOCOL, "model.safetensors: "},
    };
    char folder[] = "/tmp/tandem-folder-XXXXXX", why[400];

    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_false(td_folder_is(folder));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_gguf file;

        write_file(folder, "config.json", cases[i].config);
        write_file(folder, "model.safetensors.index.json", cases[i].index);
        write_file(folder, "model.safetensors", cases[i].weights);
        assert_true(td_folder_is(folder));
        *why = 0;
        const tandem_status status = td_folder_open(folder, &file, why, sizeof why);
        if (status != cases[i].status || !strstr(why, cases[i].says))
            fail_msg("status %d, \"%s\" instead of \"%s\"", (int)status, why, cases[i].says);
        assert_null(file.tensors);
    }
    write_file(folder, "config.json", NULL);
    write_file(folder, "model.safetensors", NULL);
    assert_int_equal(rmdir(folder), 0);
}

/* Tokenizers, beside a model that is right. */
static void test_refused_tokenizers(void **state)
{
    static const struct {
        const char *json;
        tandem_status status;
        const char *says;
    } cases[] = {
        {"{", TANDEM_ERROR_PROTOCOL, "tokenizer.json: line 1"},
        {"{}", TANDEM_ERROR_PROTOCOL, "tokenizer.json: it has no \"model\""},
        {"{\"model\": {\"type\": \"Unigram\"}}", TANDEM_ERROR_UNSUPPORTED,
         "tokenizer.json: its model is \"Unigram\"; it must be BPE"},
        {"{\"model\": {\"type\": \"BPE\"}}", TANDEM_ERROR_UNSUPPORTED,
         "tokenizer.json: it is neither byte-level nor falls back to bytes"},
        {"{\"model\": {\"byte_fallback\": true}}", TANDEM_ERROR_PROTOCOL,
         "tokenizer.json: model has no \"vocab\""},
        {"{\"model\": {\"byte_fallback\": true, \"vocab\": {\"a\": -1}}}", TANDEM_ERROR_PROTOCOL,
         "tokenizer.json: the number of token \"a\""},
        {"{\"model\": {\"byte_fallback\": true, \"vocab\": {\"a\": 4194304}}}",
         TANDEM_ERROR_PROTOCOL, "tokenizer.json: the number of token \"a\""},
        {"{\"model\": {\"byte_fallback\": true, \"vocab\": {\"a\": 1}}, \"added_tokens\": [{}]}",
         TANDEM_ERROR_PROTOCOL, "tokenizer.json: one of added_tokens has no \"id\""},
        {"{\"model\": {\"byte_fallback\": true, \"vocab\": {\"a\": 1}}}", TANDEM_ERROR_PROTOCOL,
         "tokenizer.json: model has no \"merges\""},
        {"{\"model\": {\"byte_fallback\": true, \"vocab\": {\"a\": 1}, \"merges\": [1]}}",
         TANDEM_ERROR_PROTOCOL, "tokenizer.json: merge 0 is not of two strings"},
        {"{\"model\": {\"vocab\": {}}, \"pre_tokenizer\": {\"type\": \"Sequence\", "
         "\"pretokenizers\": "
         "[{\"type\": \"Whitespace\"}, {\"type\": \"ByteLevel\"}]}}",
         TANDEM_ERROR_UNSUPPORTED, "tokenizer.json: a pre_tokenizer is \"Whitespace\""},
        {"{\"model\": {\"vocab\": {}}, \"pre_tokenizer\": {\"type\": \"ByteLevel\"}}",
         TANDEM_ERROR_UNSUPPORTED, "tokenizer.json: ByteLevel puts a space before texts"},
    };
    char folder[PATH_BYTES], why[400];

    (void)state;
    snprintf(folder, sizeof folder, "%s", path_of("qwen2", "")); /* which has none */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_gguf file;

        write_file(folder, "tokenizer.json", cases[i].json);
        *why = 0;
        const tandem_status status = td_folder_open(folder, &file, why, sizeof why);
        write_file(folder, "tokenizer.json", NULL);
        if (status != cases[i].status || !strstr(why, cases[i].says))
            fail_msg("status %d, \"%s\" instead of \"%s\"", (int)status, why, cases[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_files), cmocka_unit_test(test_folders),
                                       cmocka_unit_test(test_refused_folders),
                                       cmocka_unit_test(test_refused_tokenizers)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
