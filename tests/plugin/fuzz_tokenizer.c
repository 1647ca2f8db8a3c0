/* Whatever is in a file's metadata and in a text: it is refused with a reason, or makes a tokenizer
 * whose tokens are its own, and whose texts are whole UTF-8.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * One entry for libFuzzer (TANDEM_LIBFUZZER) and for the mutator of fuzz_util.c, which any compiler
 * can build: fuzz_tokenizer CORPUS [runs] starts from the corpus, the same each time;
 * fuzz_tokenizer --make CORPUS writes the corpus.
 *
 * Input: how (1 byte; bit 0: special tokens are read, bit 1: as a dialogue), how long the text is
 * (1 byte), the text, the file.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/npc/chat.h"
#include "engine_plugin/npc/utf8.h"
#include "engine_plugin/npc/vocabulary.h"
#include "tests/fuzz_util.h"
#include "tests/kernels/gguf_util.h"

enum { HOW_SPECIAL = 1, HOW_CHAT = 2, HEAD_BYTES = 2 };

static void must(bool promise, const char *what)
{
    if (!promise) {
        fprintf(stderr, "fuzz_tokenizer: broken promise: %s\n", what);
        abort();
    }
}

/* --- What a tokenizer promises --- */

static void check_text(const td_tokenizer *t, const td_tokens *tokens)
{
    td_decoder d = td_decoder_begin(t, true);
    const size_t room = td_decoder_room(t);
    char *to = malloc(room); /* exactly as large as it has to be */
    size_t length;

    must(to != NULL, "no memory");
    for (size_t i = 0; i <= tokens->count; i++) {
        const size_t bytes = i < tokens->count ? td_decoder_add(&d, tokens->ids[i], to)
                                               : td_decoder_end(&d, to);
        must(bytes <= room, "more text than there is room for");
        for (size_t at = 0; at < bytes; at += length)
            must(td_utf8_next(to + at, bytes - at, &length) == TD_UTF8_WHOLE, "broken UTF-8");
    }
    free(to);
}

static void check_tokenizer(const td_tokenizer *t, uint8_t how, const char *text, size_t bytes)
{
    const td_text_part parts[] = {{text, bytes / 2, how & HOW_SPECIAL},
                                  {text + bytes / 2, bytes - bytes / 2, false}};
    const td_chat_turn turns[] = {{TD_CHAT_SYSTEM, text, bytes / 2},
                                  {TD_CHAT_USER, text + bytes / 2, bytes - bytes / 2}};
    td_tokens tokens = {0};
    char why[400] = "";
    const tandem_status status =
        how & HOW_CHAT
            ? td_chat_encode(t, td_chat_at(how >> 2 & 7), turns, 2, true, &tokens, why, sizeof why)
            : td_tokenizer_encode(t, parts, 2, &tokens, why, sizeof why);

    must(status == TANDEM_OK, "a text that is refused");
    for (size_t i = 0; i < tokens.count; i++) {
        must(tokens.ids[i] < td_tokenizer_count(t), "a token that is none");
        must(how & (HOW_SPECIAL | HOW_CHAT) || tokens.ids[i] == t->unknown ||
                 !td_tokenizer_is_special(t, tokens.ids[i]),
             "a special token that a text has made");
    }
    check_text(t, &tokens);
    td_tokens_free(&tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char why[400] = "";
    td_gguf file;
    td_tokenizer *t;

    if (size < HEAD_BYTES || size - HEAD_BYTES < data[1])
        return 0;
    const size_t text_bytes = data[1], file_bytes = size - HEAD_BYTES - text_bytes;
    char *text = malloc(text_bytes + 1);
    uint8_t *exact = malloc(file_bytes + 1);
    must(text && exact, "no memory");
    memcpy(text, data + HEAD_BYTES, text_bytes);
    memcpy(exact, data + HEAD_BYTES + text_bytes, file_bytes);
    if (td_gguf_read(exact, file_bytes, &file, why, sizeof why) == TANDEM_OK) {
        const tandem_status status = td_tokenizer_create(&file, &t, why, sizeof why);

        td_gguf_close(&file);
        memset(exact, 0, file_bytes); /* it needs the file no more */
        must(status == TANDEM_OK ? t != NULL : !t && *why, "a refusal without its reason");
        if (t)
            check_tokenizer(t, data[0], text, text_bytes);
        td_tokenizer_destroy(&t);
    }
    free(text);
    free(exact);
    return 0;
}

#ifndef TANDEM_LIBFUZZER
/* --- The corpus --- */

static const char *const words[] = {"a", "b", "c", "\u0120", "ab", "\u0120a", "<s>", "<|im_end|>",
                                    "<x>", "\u00c3", "<0x0A>", "<0xC3>", "\u2581", "\u2581b", "bc"};
enum { WORDS = sizeof words / sizeof *words };
static const uint8_t kinds[WORDS] = {1, 1, 1, 1, 1, 1, 3, 3, 4, 1, 6, 6, 1, 1, 1};

static bool make_one(const char *folder, const char *name, const char *model, const char *pre,
                     const char *text, uint8_t how)
{
    gguf_writer w = {0};

    gguf_put(&w, &how, 1), gguf_put(&w, &(uint8_t){(uint8_t)strlen(text)}, 1);
    gguf_put(&w, text, strlen(text));
    gguf_put_header(&w, 0, 8);
    gguf_put_key(&w, "tokenizer.ggml.model", TD_GGUF_STRING), gguf_put_string(&w, model);
    gguf_put_key(&w, "tokenizer.ggml.pre", TD_GGUF_STRING), gguf_put_string(&w, pre);
    gguf_put_array(&w, "tokenizer.ggml.tokens", TD_GGUF_STRING, WORDS);
    for (int i = 0; i < WORDS; i++)
        gguf_put_string(&w, words[i]);
    gguf_put_array(&w, "tokenizer.ggml.token_type", TD_GGUF_I32, WORDS);
    for (int i = 0; i < WORDS; i++)
        gguf_put_u32(&w, kinds[i]);
    gguf_put_array(&w, "tokenizer.ggml.scores", TD_GGUF_F32, WORDS);
    for (int i = 0; i < WORDS; i++)
        gguf_put(&w, &(float){(float)(i * 5 % 7)}, sizeof(float));
    gguf_put_array(&w, "tokenizer.ggml.merges", TD_GGUF_STRING, 3);
    gguf_put_string(&w, "a b"), gguf_put_string(&w, "\u0120 a"), gguf_put_string(&w, "b c");
    gguf_put_key(&w, "tokenizer.ggml.bos_token_id", TD_GGUF_U32), gguf_put_u32(&w, 6);
    gguf_put_key(&w, "tokenizer.ggml.unknown_token_id", TD_GGUF_U32), gguf_put_u32(&w, 0);
    const bool ok = fuzz_write(folder, name, w.bytes, w.size);
    gguf_free(&w);
    return ok;
}

static bool make_corpus(const char *folder)
{
    static const char text[] = "ab abc<|im_end|>bc \n\u00e9\u2581b<x>12'll\r\n  \u4e00c";

    return make_one(folder, "gpt2", "gpt2", "gpt-2", text, 0) &&
           make_one(folder, "smollm", "gpt2", "smollm", text, HOW_SPECIAL) &&
           make_one(folder, "llama3", "gpt2", "llama-bpe", text, HOW_CHAT | 1 << 2) &&
           make_one(folder, "gpt4o", "gpt2", "gpt-4o", text, 0) &&
           make_one(folder, "sentencepiece", "llama", "", text, 0) &&
           make_one(folder, "mistral", "llama", "", text, HOW_CHAT | 5 << 2);
}

int main(int argc, char **argv)
{
    return fuzz_main(argc, argv, "fuzz_tokenizer", 100000, make_corpus);
}
#endif
