/* Tokenizers of small vocabularies against what other libraries make of the same texts, what else
 * they promise, and what is refused. SmolLM2's is test_smollm2's.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/plugin/token_util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/npc/chat.h"
#include "engine_plugin/npc/utf8.h"
#include "interop/os/file.h"
#include "interop/os/memory.h"
#include "kernels/model/folder.h"

/* --- UTF-8 --- */

static void test_utf8(void **state)
{
    /* What Unicode's own table of ill-formed sequences shows, and texts that are whole. */
    static const struct {
        const char *bytes, *repaired;
    } cases[] = {
        {"", ""},
        {"aé€😀", "aé€😀"},
        {"\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf", "\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"},
        {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", "????????A"},
        {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", "????????A"},
        {"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", "?????A??B"},
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", "????A"},
        {"\xf5\x80\x80\x80", "????"},
        {"a\xe2\x82", "a?"},
        {"\xf0\x9f\x98", "?"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char to[64], expected[64] = "";
        const size_t bytes = td_utf8_repair(cases[i].bytes, strlen(cases[i].bytes), to);

        for (const char *c = cases[i].repaired; *c; c++)
            snprintf(expected + strlen(expected), sizeof expected - strlen(expected), "%.*s",
                     *c == '?' ? 3 : 1, *c == '?' ? TD_UTF8_REPLACEMENT : c);
        to[bytes] = 0;
        assert_string_equal(to, expected);
    }
}

/* --- Byte-level BPE --- */

static td_tokenizer *bpe(const td_json *json, const char *pre)
{
    gguf_writer w = {0};

    gguf_put_header(&w, 0, 4);
    gguf_put_key(&w, "tokenizer.ggml.model", TD_GGUF_STRING), gguf_put_string(&w, "gpt2");
    gguf_put_key(&w, "tokenizer.ggml.pre", TD_GGUF_STRING), gguf_put_string(&w, pre);
    token_put_strings(&w, "tokenizer.ggml.tokens", json, token_member(json, 0, "tokens"));
    token_put_strings(&w, "tokenizer.ggml.merges", json, token_member(json, 0, "merges"));
    return token_create(&w);
}

static void check_pattern(const td_json *json, const char *pre, uint32_t ids)
{
    td_tokenizer *t = bpe(json, pre);
    uint32_t count = 0, expected = ids + 1;

    TD_JSON_EACH (json, token_member(json, 0, "texts"), text) {
        const char *bytes = json->values[text].text;
        td_tokens tokens = token_encode(t, bytes, strlen(bytes), true);
        char *decoded = token_decode(t, &tokens);

        token_must_be(bytes, &tokens, json, expected);
        assert_string_equal(decoded, bytes);
        expected = json->values[expected].next;
        count++;
        free(decoded);
        td_tokens_free(&tokens);
    }
    print_message("%s: %u texts\n", pre, count);
    assert_int_equal(count, json->values[ids].count);
    td_tokenizer_destroy(&t);
}

static void test_patterns(void **state)
{
    td_json json = token_read_json("bpe.json");
    const uint32_t ids = token_member(&json, 0, "ids");

    (void)state;
    TD_JSON_EACH (&json, ids, pattern)
        check_pattern(&json, json.values[pattern].name, pattern);
    td_json_free(&json);
}

/* A word of 128 KiB, and a text of as many spaces: neither takes long, nor much of the stack. */
static void test_long(void **state)
{
    enum { BYTES = 1 << 17 };
    td_json json = token_read_json("bpe.json");
    char *text = malloc(BYTES);

    (void)state;
    TD_JSON_EACH (&json, token_member(&json, 0, "ids"), pattern) {
        td_tokenizer *t = bpe(&json, json.values[pattern].name);

        for (const char *c = "a 1\n!\x01"; *c; c++) {
            memset(text, *c, BYTES);
            td_tokens tokens = token_encode(t, text, BYTES, true);
            size_t bytes = 0;

            for (size_t i = 0; i < tokens.count; i++)
                bytes += td_tokenizer_piece(t, tokens.ids[i]).length;
            assert_int_equal(bytes, BYTES);
            td_tokens_free(&tokens);
        }
        td_tokenizer_destroy(&t);
    }
    free(text);
    td_json_free(&json);
}

/* --- SentencePiece --- */

static td_tokenizer *sentencepiece(const td_json *json)
{
    gguf_writer w = {0};

    gguf_put_header(&w, 0, 7);
    gguf_put_key(&w, "tokenizer.ggml.model", TD_GGUF_STRING), gguf_put_string(&w, "llama");
    token_put_strings(&w, "tokenizer.ggml.tokens", json, token_member(json, 0, "tokens"));
    token_put_floats(&w, "tokenizer.ggml.scores", json, token_member(json, 0, "scores"));
    token_put_integers(&w, "tokenizer.ggml.token_type", json, token_member(json, 0, "types"));
    gguf_put_key(&w, "tokenizer.ggml.bos_token_id", TD_GGUF_U32), gguf_put_u32(&w, 1);
    gguf_put_key(&w, "tokenizer.ggml.eos_token_id", TD_GGUF_U32), gguf_put_u32(&w, 2);
    gguf_put_key(&w, "tokenizer.ggml.unknown_token_id", TD_GGUF_U32), gguf_put_u32(&w, 0);
    return token_create(&w);
}

static void test_sentencepiece(void **state)
{
    td_json json = token_read_json("sentencepiece.json");
    td_tokenizer *t = sentencepiece(&json);
    uint32_t count = 0;

    (void)state;
    TD_JSON_EACH (&json, token_member(&json, 0, "texts"), entry) {
        const char *text = json.values[token_member(&json, entry, "text")].text;
        td_tokens tokens = token_encode(t, text, strlen(text), false);
        char *decoded = token_decode(t, &tokens);

        token_must_be(text, &tokens, &json, token_member(&json, entry, "ids"));
        if (!strstr(text, "\xe2\x96\x81")) /* it comes back as a space */
            assert_string_equal(decoded, text);
        free(decoded);
        td_tokens_free(&tokens);
        count++;
    }
    print_message("%u texts\n", count);
    assert_true(count > 200);
    assert_true(td_tokenizer_begins(t));
    assert_int_equal(td_tokenizer_begin(t), 1);
    assert_true(td_tokenizer_is_end(t, 2));
    assert_false(td_tokenizer_is_end(t, 1));
    td_tokenizer_destroy(&t);
    td_json_free(&json);
}

/* --- A vocabulary by hand --- */

enum { A, B, C, BYTE_C3, BYTE_A9, SPACE, AB, SPACE_A, BEGIN, END, NPC, NPCS, NUL, LINE, LETTERS };
static const struct {
    const char *text;
    uint32_t type;
} letters[LETTERS] = {
    [A] = {"a", 1},
    [B] = {"b", 1},
    [C] = {"c", 1},
    [BYTE_C3] = {"\u00c3", 1},
    [BYTE_A9] = {"\u00a9", 1},
    [SPACE] = {"\u0120", 1},
    [AB] = {"ab", 1},
    [SPACE_A] = {"\u0120a", 1},
    [BEGIN] = {"<s>", 3},
    [END] = {"<|im_end|>", 3},
    [NPC] = {"<npc>", 4},
    [NPCS] = {"<npc>s", 4},
    [NUL] = {"\u0100", 1},
    [LINE] = {"\u010a", 1},
};

/* A file of those, with `more` keys to follow. */
static gguf_writer by_hand(uint64_t more)
{
    static const char *const merges[] = {"a b", "\u0120 a"};
    gguf_writer w = {0};

    gguf_put_header(&w, 0, 4 + more);
    gguf_put_key(&w, "tokenizer.ggml.model", TD_GGUF_STRING), gguf_put_string(&w, "gpt2");
    gguf_put_array(&w, "tokenizer.ggml.tokens", TD_GGUF_STRING, LETTERS);
    for (int i = 0; i < LETTERS; i++)
        gguf_put_string(&w, letters[i].text);
    gguf_put_array(&w, "tokenizer.ggml.token_type", TD_GGUF_I32, LETTERS);
    for (int i = 0; i < LETTERS; i++)
        gguf_put_u32(&w, letters[i].type);
    gguf_put_array(&w, "tokenizer.ggml.merges", TD_GGUF_STRING, 2);
    for (int i = 0; i < 2; i++)
        gguf_put_string(&w, merges[i]);
    return w;
}

static void must_encode(const td_tokenizer *t, const td_text_part *parts, size_t count,
                        const uint32_t *ids, size_t id_count)
{
    td_tokens tokens = {0};

    assert_int_equal(td_tokenizer_encode(t, parts, count, &tokens, NULL, 0), TANDEM_OK);
    assert_int_equal(tokens.count, id_count);
    for (size_t i = 0; i < id_count; i++)
        assert_int_equal(tokens.ids[i], ids[i]);
    td_tokens_free(&tokens);
}
#define MUST_ENCODE(t, parts, ...)                                                                 \
    must_encode(t, parts, sizeof(parts) / sizeof *(parts), (const uint32_t[]){__VA_ARGS__},        \
                sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

static void test_parts(void **state)
{
    gguf_writer w = by_hand(0);
    td_tokenizer *t = token_create(&w);
    const td_text_part trusted[] = {{"a b<|im_end|>", 13, true}};
    const td_text_part typed[] = {{"b<|im_end|>", 11, false}};
    const td_text_part split[] = {
        {"a", 1, true}, {"b", 1, false}, {"", 0, true}, {" a", 2, false}};
    const td_text_part torn[] = {{"<|im_", 5, true}, {"end|>", 5, true}};
    const td_text_part half[] = {{"<|im_", 5, true}, {"end|>", 5, false}};
    const td_text_part mixed[] = {{"a<|im_end|>", 11, false}, {"<|im_end|>", 10, true}};
    const td_text_part user[] = {{"a<npc>b<npc>s", 13, false}};
    const td_text_part user_torn[] = {{"<np", 3, false}, {"c>", 2, false}};
    const td_text_part bytes[] = {{"a\0c", 3, false}};
    const td_text_part broken[] = {{"a\xc3\xa9\xc3", 4, false}};
    const td_text_part whole[] = {{"\xc3\xa9\n", 3, false}};

    (void)state;
    MUST_ENCODE(t, trusted, A, SPACE, B, END);
    MUST_ENCODE(t, typed, B); /* of what is left no byte is a token */
    MUST_ENCODE(t, split, AB, SPACE_A);
    must_encode(t, torn, 2, NULL, 0);
    must_encode(t, half, 2, NULL, 0);
    MUST_ENCODE(t, mixed, A, END);
    MUST_ENCODE(t, user, A, NPC, B, NPCS);
    MUST_ENCODE(t, user_torn, NPC);
    MUST_ENCODE(t, bytes, A, NUL, C);
    MUST_ENCODE(t, broken, A, BYTE_C3, BYTE_A9); /* U+FFFD has bytes that are no tokens */
    MUST_ENCODE(t, whole, BYTE_C3, BYTE_A9, LINE);
    must_encode(t, NULL, 0, NULL, 0);

    assert_int_equal(td_tokenizer_count(t), LETTERS);
    assert_int_equal(td_tokenizer_find(t, "<|im_end|>", 10), END);
    assert_int_equal(td_tokenizer_find(t, " a", 2), SPACE_A);
    assert_int_equal(td_tokenizer_find(t, "ba", 2), TD_NO_TOKEN);
    assert_int_equal(td_tokenizer_find(t, "", 0), TD_NO_TOKEN);
    assert_int_equal(td_tokenizer_begin(t), TD_NO_TOKEN);
    assert_true(td_tokenizer_is_end(t, END)); /* known by its text */
    assert_true(td_tokenizer_is_special(t, BEGIN));
    assert_false(td_tokenizer_is_special(t, NPC));
    td_tokenizer_destroy(&t);
    td_tokenizer_destroy(&t);
}

/* Whatever is there before stays, and a text that is too long adds nothing. */
static void test_added(void **state)
{
    gguf_writer w = by_hand(0);
    td_tokenizer *t = token_create(&w);
    td_tokens tokens = {0};
    char why[200] = "";
    const td_text_part part = {"ab", 2, false},
                       parts[2] = {{"ab", 2, false}, {"", (size_t)TD_TEXT_BYTES, false}};

    (void)state;
    assert_int_equal(td_tokenizer_encode(t, &part, 1, &tokens, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_tokenizer_encode(t, parts, 2, &tokens, why, sizeof why), TANDEM_ERROR_ARG);
    assert_non_null(strstr(why, "more than 268435456 bytes"));
    assert_int_equal(td_tokenizer_encode(t, &part, 1, &tokens, why, sizeof why), TANDEM_OK);
    assert_true(tokens.count == 2 && tokens.ids[0] == AB && tokens.ids[1] == AB);
    td_tokens_free(&tokens);
    td_tokenizer_destroy(&t);
}

static void test_streaming(void **state)
{
    gguf_writer w = by_hand(0);
    td_tokenizer *t = token_create(&w);
    td_decoder d = td_decoder_begin(t, false);
    char to[64];

    (void)state;
    assert_true(td_decoder_room(t) <= sizeof to);
    assert_int_equal(td_decoder_add(&d, A, to), 1);
    assert_int_equal(td_decoder_add(&d, BYTE_C3, to), 0);
    assert_int_equal(td_decoder_add(&d, BYTE_A9, to), 2);
    assert_memory_equal(to, "\xc3\xa9", 2);
    assert_int_equal(td_decoder_add(&d, BYTE_A9, to), 3);
    assert_memory_equal(to, TD_UTF8_REPLACEMENT, 3);
    assert_int_equal(td_decoder_add(&d, BYTE_C3, to), 0);
    assert_int_equal(td_decoder_add(&d, END, to), 0); /* hidden, and ends no character */
    assert_int_equal(td_decoder_add(&d, A, to), 4);
    assert_memory_equal(to, TD_UTF8_REPLACEMENT "a", 4);
    assert_int_equal(td_decoder_end(&d, to), 0);
    assert_int_equal(td_decoder_add(&d, BYTE_C3, to), 0);
    assert_int_equal(td_decoder_end(&d, to), 3);
    assert_int_equal(td_decoder_end(&d, to), 0);
    d = td_decoder_begin(t, true);
    assert_int_equal(td_decoder_add(&d, END, to), 10);
    assert_memory_equal(to, "<|im_end|>", 10);
    td_tokenizer_destroy(&t);
}

/* --- What is refused --- */

static void put_model(gguf_writer *w, uint64_t values, const char *model)
{
    *w = (gguf_writer){0};
    gguf_put_header(w, 0, values);
    gguf_put_key(w, "tokenizer.ggml.model", TD_GGUF_STRING), gguf_put_string(w, model);
}

static void put_texts(gguf_writer *w, const char *key, const char *a, const char *b)
{
    gguf_put_array(w, key, TD_GGUF_STRING, b ? 2 : 1);
    gguf_put_string(w, a);
    if (b)
        gguf_put_string(w, b);
}

static void test_refused(void **state)
{
    static const char tokens[] = "tokenizer.ggml.tokens", merges[] = "tokenizer.ggml.merges",
                      scores[] = "tokenizer.ggml.scores", types[] = "tokenizer.ggml.token_type";
    gguf_writer w = {0};

    (void)state;
    gguf_put_header(&w, 0, 0);
    token_must_refuse(&w, TANDEM_ERROR_PROTOCOL, "key \"tokenizer.ggml.model\" is not there");
    put_model(&w, 1, "bert");
    token_must_refuse(&w, TANDEM_ERROR_UNSUPPORTED, "is \"bert\", neither \"gpt2\" nor \"llama\"");
    put_model(&w, 2, "gpt2");
    gguf_put_key(&w, "tokenizer.ggml.pre", TD_GGUF_STRING), gguf_put_string(&w, "gpt-99");
    token_must_refuse(&w, TANDEM_ERROR_UNSUPPORTED, "tokenizer.ggml.pre is \"gpt-99\"");
    put_model(&w, 2, "gpt2");
    gguf_put_key(&w, "tokenizer.ggml.pre", TD_GGUF_STRING), gguf_put_string(&w, "gpt-2 default");
    token_must_refuse(&w, TANDEM_ERROR_UNSUPPORTED, "tokenizer.ggml.pre is \"gpt-2 default\"");
    put_model(&w, 1, "gpt2");
    token_must_refuse(&w, TANDEM_ERROR_PROTOCOL, "key \"tokenizer.ggml.tokens\" is not there");
    put_model(&w, 2, "gpt2");
    gguf_put_array(&w, tokens, TD_GGUF_STRING, 0);
    token_must_refuse(&w, TANDEM_ERROR_PROTOCOL, "tokenizer.ggml.tokens has 0 elements, not 1 to");
    put_model(&w, 2, "gpt2");
    put_texts(&w, tokens, "a", "b");
    token_must_refuse(&w, TANDEM_ERROR_PROTOCOL, "key \"tokenizer.ggml.merges\" is not there");
    for (int i = 0; i < 4; i++) {
        static const char *const wrong[] = {"ab", "a c", " ", "a b"};

        put_model(&w, 3, "gpt2");
        put_texts(&w, tokens, "a", "b"), put_texts(&w, merges, wrong[i], NULL);
        token_must_refuse(&w, TANDEM_ERROR_PROTOCOL, "merge 0 is not of two tokens");
    }
    put_model(&w, 2, "llama");
    put_texts(&w, tokens, "a", "b");
    token_must_refuse(&w, TANDEM_ERROR_PROTOCOL, "key \"tokenizer.ggml.scores\" is not there");
    put_model(&w, 3, "llama");
    put_texts(&w, tokens, "a", "b");
    gguf_put_array(&w, scores, TD_GGUF_F32, 1), gguf_put_u32(&w, 0);
    token_must_refuse(&w, TANDEM_ERROR_PROTOCOL, "scores has 1 elements for 2 tokens");
    put_model(&w, 3, "llama");
    put_texts(&w, tokens, "a", "b");
    gguf_put_array(&w, scores, TD_GGUF_F32, 2), gguf_put_u64(&w, 0x7fc0000000000000);
    token_must_refuse(&w, TANDEM_ERROR_PROTOCOL, "token 1 has score nan");
    put_model(&w, 3, "gpt2");
    put_texts(&w, tokens, "a", NULL);
    gguf_put_array(&w, types, TD_GGUF_I32, 1), gguf_put_u32(&w, 7);
    token_must_refuse(&w, TANDEM_ERROR_PROTOCOL, "token 0 has type 7");
    put_model(&w, 3, "gpt2");
    put_texts(&w, tokens, "a", NULL);
    gguf_put_array(&w, types, TD_GGUF_U32, 1), gguf_put_u32(&w, 1);
    token_must_refuse(&w, TANDEM_ERROR_PROTOCOL, "is an array of U32, not an array of I32");
    put_model(&w, 3, "gpt2");
    put_texts(&w, tokens, "<0xfg>", NULL);
    gguf_put_array(&w, types, TD_GGUF_I32, 1), gguf_put_u32(&w, 6);
    token_must_refuse(&w, TANDEM_ERROR_PROTOCOL, "token 0 is no byte as \"<0x0A>\"");
    w = by_hand(1);
    gguf_put_key(&w, "tokenizer.ggml.eos_token_id", TD_GGUF_U32), gguf_put_u32(&w, LETTERS);
    token_must_refuse(&w, TANDEM_ERROR_PROTOCOL,
                      "key \"tokenizer.ggml.eos_token_id\": is 14, and there are 14 tokens");
    w = by_hand(1);
    gguf_put_key(&w, "tokenizer.ggml.add_bos_token", TD_GGUF_U32), gguf_put_u32(&w, 1);
    token_must_refuse(&w, TANDEM_ERROR_PROTOCOL, "is U32, not a bool");
}

/* --- Dialogues --- */

/* A vocabulary in which each byte is a token, so that a dialogue's tokens are its text. */
static td_tokenizer *bytes_as_tokens(bool begins)
{
    gguf_writer w = {0};

    gguf_put_header(&w, 0, 5);
    gguf_put_key(&w, "tokenizer.ggml.model", TD_GGUF_STRING), gguf_put_string(&w, "gpt2");
    gguf_put_array(&w, "tokenizer.ggml.tokens", TD_GGUF_STRING, 97);
    for (char c = '!'; c <= '~'; c++)
        gguf_put_string(&w, (char[]){c, 0});
    gguf_put_string(&w, "\xc4\xa0"), gguf_put_string(&w, "\xc4\x8a"), gguf_put_string(&w, "*");
    gguf_put_array(&w, "tokenizer.ggml.merges", TD_GGUF_STRING, 0);
    gguf_put_key(&w, "tokenizer.ggml.add_bos_token", TD_GGUF_BOOL), gguf_put(&w, &begins, 1);
    gguf_put_key(&w, "tokenizer.ggml.bos_token_id", TD_GGUF_U32), gguf_put_u32(&w, 96);
    return token_create(&w);
}

static void test_chat(void **state)
{
    static const td_chat_turn turns[] = {{TD_CHAT_SYSTEM, "Be brief. ", 10},
                                         {TD_CHAT_USER, "Hi", 2},
                                         {TD_CHAT_REPLY, "Yes?", 4},
                                         {TD_CHAT_USER, "\nBye", 4}};
    static const struct {
        const char *name, *program, *text;
    } cases[] = {
        {"chatml", "{{'<|im_start|>' + role}}",
         "<|im_start|>system\nBe brief. <|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
         "<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\n\nBye<|im_end|>\n"
         "<|im_start|>assistant\n"},
        {"llama3", "'<|start_header_id|>'",
         "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
         "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\nYes?<|eot_id|>"
         "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\n"},
        {"mistral", "{{ '[INST] ' + content + ' [/INST]' }}",
         "[INST] Be brief. \n\nHi [/INST] Yes?</s>[INST] \nBye [/INST]"},
        {"mistral-v3", "{{ '[INST] ' + content + '[/INST]' }}",
         "[INST] Be brief. \n\nHi[/INST] Yes?</s>[INST] \nBye[/INST]"},
        {"llama2", "[INST] <<SYS>>",
         "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Yes? </s>[INST] Bye [/INST]"},
        {"gemma", "'<start_of_turn>' + role",
         "<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n"
         "<start_of_turn>model\nYes?<end_of_turn>\n"
         "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"},
        {"phi", "'<|user|>' '<|end|>' '<|assistant|>'",
         "<|system|>\nBe brief. <|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nYes?<|end|>\n"
         "<|user|>\n\nBye<|end|>\n<|assistant|>\n"},
        {"phi4", "'<|im_start|>user<|im_sep|>'",
         "<|im_start|>system<|im_sep|>Be brief. <|im_end|><|im_start|>user<|im_sep|>Hi<|im_end|>"
         "<|im_start|>assistant<|im_sep|>Yes?<|im_end|><|im_start|>user<|im_sep|>\nBye<|im_end|>"
         "<|im_start|>assistant<|im_sep|>"},
        {"zephyr", "'<|user|>\n' '<|assistant|>' eos_token",
         "<|system|>\nBe brief. </s>\n<|user|>\nHi</s>\n<|assistant|>\nYes?</s>\n"
         "<|user|>\n\nBye</s>\n<|assistant|>\n"},
    };
    enum { CASES = sizeof cases / sizeof *cases };
    td_tokenizer *t = bytes_as_tokens(false);

    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        const td_gguf_string program = {cases[i].program, strlen(cases[i].program)};
        const td_chat_form *form = td_chat_recognise(program);
        td_tokens tokens = {0};

        assert_non_null(form);
        assert_string_equal(form->name, cases[i].name);
        assert_ptr_equal(form, td_chat_find(cases[i].name));
        assert_int_equal(td_chat_encode(t, form, turns, 4, true, &tokens, NULL, 0), TANDEM_OK);
        char *text = token_decode(t, &tokens);
        assert_string_equal(text, cases[i].text);
        free(text);
        td_tokens_free(&tokens);
        assert_non_null(td_chat_at(i));
    }
    assert_null(td_chat_at(CASES));
    assert_null(td_chat_find("chat"));
    assert_null(td_chat_recognise((td_gguf_string){"<|im_start", 10}));
    assert_null(td_chat_recognise((td_gguf_string){"", 0}));
    td_tokenizer_destroy(&t);
}

/* A form by hand, the token that texts begin with, and a player who types the name of one that ends
 * his turn. */
static void test_chat_is_safe(void **state)
{
    static const td_chat_form form = {.name = "mine",
                                      .system = {"", ""},
                                      .user = {"", "<|im_end|>"},
                                      .reply = {"", ""},
                                      .opening = "ab"};
    const td_chat_turn turn = {TD_CHAT_USER, "a<|im_end|>b", 12};
    gguf_writer w = by_hand(2);
    td_tokens tokens = {0};

    (void)state;
    gguf_put_key(&w, "tokenizer.ggml.add_bos_token", TD_GGUF_BOOL), gguf_put(&w, "\1", 1);
    gguf_put_key(&w, "tokenizer.ggml.bos_token_id", TD_GGUF_U32), gguf_put_u32(&w, BEGIN);
    td_tokenizer *t = token_create(&w);
    assert_int_equal(td_chat_encode(t, &form, &turn, 1, true, &tokens, NULL, 0), TANDEM_OK);
    const uint32_t expected[] = {BEGIN, A, B, END, AB};
    assert_int_equal(tokens.count, 5);
    assert_memory_equal(tokens.ids, expected, sizeof expected);
    td_tokens_free(&tokens);
    td_tokenizer_destroy(&t);
}

/* Forms as JSON: what is left out, and what is refused. */
static void test_chat_by_hand(void **state)
{
    static const char whole[] = "{\"system\": [\"S:\", \";\"], \"user\": [\"<u>\", \"</u>\\n\"],"
                                " \"reply\": [\"<r>\", \"</r>\"], \"opening\": \"<o>\","
                                " \"system_in_user\": true, \"trims\": true}";
    static const struct {
        const char *json, *says;
    } refused[] = {
        {"{", "line 1"},
        {"{\"user\": [\"a\", \"b\"]}", "\"reply\" is missing"},
        {"{\"reply\": [\"a\", \"b\"]}", "\"user\" is missing"},
        {"{\"user\": \"a\"}", "\"user\" must be two strings"},
        {"{\"user\": [\"a\"]}", "\"user\" must be two strings"},
        {"{\"user\": [\"a\", 1]}", "\"user\" must be two strings"},
        {"{\"opening\": 1}", "\"opening\" must be a string"},
        {"{\"trims\": 1}", "\"trims\" must be true or false"},
        {"{\"assistant\": []}", "\"assistant\" is none of system, user, reply"},
    };
    static const td_chat_turn turns[] = {{TD_CHAT_SYSTEM, "x ", 2}, {TD_CHAT_USER, "y", 1}};
    td_tokenizer *t = bytes_as_tokens(false);
    const td_chat_form *form = NULL;
    td_chat_own *own = NULL;
    td_tokens tokens = {0};
    char why[300] = "";

    (void)state;
    assert_int_equal(td_chat_choose(whole, (td_gguf_string){0}, &own, &form, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_chat_encode(t, form, turns, 2, true, &tokens, NULL, 0), TANDEM_OK);
    char *text = token_decode(t, &tokens);
    assert_string_equal(text, "<u>S:x;y</u>\n<o>");
    free(text);
    td_tokens_free(&tokens);
    td_chat_own_destroy(&own);
    assert_null(own);
    assert_int_equal(td_chat_own_create("{\"user\": [\"\", \"\"], \"reply\": [\"r\", \"\"]}", &own, why, sizeof why),
                     TANDEM_OK);
    assert_string_equal(td_chat_own_form(own)->opening, "r");
    td_chat_own_destroy(&own);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_int_equal(td_chat_own_create(refused[i].json, &own, why, sizeof why), TANDEM_ERROR_ARG);
        if (!strstr(why, refused[i].says))
            fail_msg("\"%s\" instead of \"%s\"", why, refused[i].says);
        assert_null(own);
    }
    assert_int_equal(td_chat_choose("klingon", (td_gguf_string){0}, &own, &form, why, sizeof why),
                     TANDEM_ERROR_UNSUPPORTED);
    assert_int_equal(td_chat_choose(NULL, (td_gguf_string){"<|im_start|>", 12}, &own, &form, why, sizeof why),
                     TANDEM_OK);
    assert_string_equal(form->name, "chatml");
    td_tokenizer_destroy(&t);
}

/* Vocabularies of folders, as tokenizer.json has them: byte-level, with a pattern of its own, and of characters
 * that are spelled in bytes, with and without a space before texts. */
static void test_folders(void **state)
{
    static const struct {
        const char *name;
        bool begins;
    } folders[] = {{"llama", true}, {"mistral", true}, {"gemma3", true}};
    const char *build = getenv("TANDEM_BUILD");

    (void)state;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char path[600], why[400] = "";
        uint64_t bytes;
        void *map;
        td_gguf file;
        td_json json;
        td_tokenizer *t;

        snprintf(path, sizeof path, "%s/models/%s", build ? build : ".", folders[i].name);
        if (td_folder_open(path, &file, why, sizeof why) != TANDEM_OK ||
            td_tokenizer_create(&file, &t, why, sizeof why) != TANDEM_OK)
            fail_msg("%s: %s", path, why);
        td_gguf_close(&file);
        assert_true(td_tokenizer_begins(t) == folders[i].begins);
        assert_true(td_tokenizer_is_end(t, td_tokenizer_find(t, i ? "</s>" : "<|im_end|>", i ? 4 : 10)));
        snprintf(path + strlen(path), sizeof path - strlen(path), "/tokens.json");
        assert_int_equal(td_file_map(path, &map, &bytes, why, sizeof why), TANDEM_OK);
        assert_int_equal(td_json_read(map, bytes, &json, why, sizeof why), TANDEM_OK);
        uint32_t expected = token_member(&json, 0, "ids") + 1, count = 0;
        TD_JSON_EACH (&json, token_member(&json, 0, "texts"), text) {
            const char *from = json.values[text].text;
            td_tokens tokens = token_encode(t, from, strlen(from), true);
            char *decoded = token_decode(t, &tokens);

            token_must_be(from, &tokens, &json, expected);
            assert_string_equal(decoded, from);
            expected = json.values[expected].next;
            count++;
            free(decoded);
            td_tokens_free(&tokens);
        }
        print_message("%s: %u texts\n", folders[i].name, (unsigned)count);
        assert_true(count > 250);
        td_json_free(&json);
        td_unmap(map, bytes);
        td_tokenizer_destroy(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8),          cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_long),          cmocka_unit_test(test_sentencepiece),
        cmocka_unit_test(test_parts),         cmocka_unit_test(test_added),
        cmocka_unit_test(test_streaming),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_chat),          cmocka_unit_test(test_chat_is_safe),
        cmocka_unit_test(test_chat_by_hand),  cmocka_unit_test(test_folders),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
