/* Whatever a grammar's or a schema's text is: it is refused with a reason, or made, and then exactly
 * those tokens fit that it says may be next.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * One entry for libFuzzer (TANDEM_LIBFUZZER) and for the mutator of fuzz_util.c, which any compiler
 * can build: fuzz_grammar CORPUS [runs] starts from the corpus, the same each time;
 * fuzz_grammar --make CORPUS writes the corpus.
 *
 * Input: how (1 byte; bit 0: a schema), how many choices there are (1 byte), the choices among the
 * tokens that may be next, the text.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/npc/grammar.h"
#include "engine_plugin/npc/matcher.h"
#include "engine_plugin/npc/schema.h"
#include "tests/fuzz_util.h"
#include "tests/kernels/gguf_util.h"

enum { HOW_SCHEMA = 1, HEAD_BYTES = 2 };

static void must(bool promise, const char *what)
{
    if (!promise) {
        fprintf(stderr, "fuzz_grammar: broken promise: %s\n", what);
        abort();
    }
}

/* --- A vocabulary: the printable characters, and some that are longer --- */

static const char *const longer[] = {"\u010a",  "\u0120",  "\u00c3", "\u00a9", "\u00e2", "\u0124",
                                     "\":",     "\u0120\"", "true",   "null",   "{\"",    "},",
                                     "abc",     "aaaa",    "0123",   "<end>"};
enum { PRINTABLE = 127 - '!', LONGER = sizeof longer / sizeof *longer, WORDS = PRINTABLE + LONGER };

static td_token_tree *make_tree(void)
{
    static td_tokenizer *t;
    char why[400] = "", word[2] = "";
    gguf_writer w = {0};
    td_token_tree *tree;
    td_gguf file;

    gguf_put_header(&w, 0, 5);
    gguf_put_key(&w, "tokenizer.ggml.model", TD_GGUF_STRING), gguf_put_string(&w, "gpt2");
    gguf_put_key(&w, "tokenizer.ggml.pre", TD_GGUF_STRING), gguf_put_string(&w, "gpt-2");
    gguf_put_key(&w, "tokenizer.ggml.eos_token_id", TD_GGUF_U32), gguf_put_u32(&w, WORDS - 1);
    gguf_put_array(&w, "tokenizer.ggml.tokens", TD_GGUF_STRING, WORDS);
    for (*word = '!'; *word < 127; ++*word)
        gguf_put_string(&w, word);
    for (int i = 0; i < LONGER; i++)
        gguf_put_string(&w, longer[i]);
    gguf_put_array(&w, "tokenizer.ggml.merges", TD_GGUF_STRING, 1);
    gguf_put_string(&w, "} ,");
    must(td_gguf_read(w.bytes, w.size, &file, why, sizeof why) == TANDEM_OK &&
             td_tokenizer_create(&file, &t, why, sizeof why) == TANDEM_OK &&
             td_token_tree_create(t, &tree) == TANDEM_OK,
         why);
    td_gguf_close(&file);
    gguf_free(&w);
    return tree;
}

/* --- What a grammar promises --- */

static bool is_set(const uint64_t *bits, uint32_t token)
{
    return bits[token / 64] >> token % 64 & 1;
}

/* One of those that are set; TD_NO_TOKEN: there is none. */
static uint32_t pick(const uint64_t *bits, uint32_t choice)
{
    uint32_t count = 0;

    for (uint32_t t = 0; t < WORDS; t++)
        count += is_set(bits, t);
    for (uint32_t t = 0, left = count ? choice % count : 0; t < WORDS; t++)
        if (is_set(bits, t) && !left--)
            return t;
    return TD_NO_TOKEN;
}

static void follow(td_matcher *m, const uint8_t *choices, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t *bits;
        char why[400] = "";
        const tandem_status status = td_matcher_tokens(m, &bits, why, sizeof why);

        must(status == TANDEM_OK || *why, "a refusal without its reason");
        if (status != TANDEM_OK)
            return;
        const uint32_t token = pick(bits, choices[i]), other = choices[i] % WORDS;
        must(token != TD_NO_TOKEN || !td_matcher_may_end(m), "an end that has no token");
        must(is_set(bits, WORDS - 1) == td_matcher_may_end(m), "an end that is none");
        if (!is_set(bits, other))
            must(!td_matcher_add_token(m, other), "a token that fits, but is not among them");
        if (token == TD_NO_TOKEN || token == WORDS - 1)
            return;
        must(td_matcher_add_token(m, token), "a token that does not fit");
    }
}

static void check_grammar(const char *text, size_t bytes, const uint8_t *choices, size_t count)
{
    static td_token_tree *tree;
    char why[400] = "";
    td_grammar *g;
    td_matcher *m;

    tree = tree ? tree : make_tree();
    const tandem_status status = td_grammar_create(text, bytes, &g, why, sizeof why);
    must(status == TANDEM_OK ? g != NULL : !g && *why, "a refusal without its reason");
    if (!g)
        return;
    if (td_matcher_create(g, tree, &m, why, sizeof why) == TANDEM_OK)
        follow(m, choices, count);
    td_matcher_destroy(&m);
    td_grammar_destroy(&g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < HEAD_BYTES || size - HEAD_BYTES < data[1])
        return 0;
    const uint8_t *choices = data + HEAD_BYTES;
    const size_t bytes = size - HEAD_BYTES - data[1];
    char *exact = malloc(bytes + 1), *grammar = NULL, why[400] = "";

    must(exact != NULL, "no memory");
    memcpy(exact, choices + data[1], bytes);
    if (!(data[0] & HOW_SCHEMA)) {
        check_grammar(exact, bytes, choices, data[1]);
    } else if (td_schema_to_grammar(exact, bytes, "root", &grammar, why, sizeof why) == TANDEM_OK) {
        check_grammar(grammar, strlen(grammar), choices, data[1]);
    } else {
        must(!grammar && *why, "a refusal without its reason");
    }
    free(grammar);
    free(exact);
    return 0;
}

#ifndef TANDEM_LIBFUZZER
/* --- The corpus --- */

static bool make_one(const char *folder, const char *name, uint8_t how, const char *text)
{
    static const char choices[] = "0c}T9+iWq[z3%aXy";
    char bytes[2000];
    const int size = snprintf(bytes, sizeof bytes, "%c%c%s%s", how, (int)sizeof choices - 1, choices, text);

    return size < (int)sizeof bytes && fuzz_write(folder, name, bytes, (size_t)size);
}

static bool make_corpus(const char *folder)
{
    return make_one(folder, "words", 2, "root ::= \"yes\" | \"no\" (\", \" [a-z ]{1,5})? # short\n") &&
           make_one(folder, "sets", 2, "root ::= [^\"\\\\\\x00-\\x1f]+ | ([\\u00e9-\\u20ac] \"\\\"\")*\n") &&
           make_one(folder, "rules", 2,
                    "root ::= value\nvalue ::= \"{\" (pair (\",\" pair)*)? \"}\" |\n \"[\" (value)* \"]\" | [0-9]{2,}\n"
                    "pair ::= \"\\\"\" [a-z]+ \"\\\":\" value\n") &&
           make_one(folder, "object", HOW_SCHEMA,
                    "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\", \"maxLength\": 3}, \"b\": "
                    "{\"type\": [\"integer\", \"null\"]}}, \"required\": [\"b\"], \"additionalProperties\": false}") &&
           make_one(folder, "array", HOW_SCHEMA,
                    "{\"type\": \"array\", \"minItems\": 1, \"maxItems\": 3, \"items\": {\"anyOf\": [{\"enum\": [1, \"a\\\"\", "
                    "null]}, {\"const\": {\"x\": true}}]}}") &&
           make_one(folder, "reference", HOW_SCHEMA,
                    "{\"$ref\": \"#/$defs/t\", \"$defs\": {\"t\": {\"properties\": {\"k\": {\"items\": {\"$ref\": "
                    "\"#/$defs/t\"}}}}}}");
}

int main(int argc, char **argv)
{
    return fuzz_main(argc, argv, "fuzz_grammar", 100000, make_corpus);
}
#endif
