/* Grammars and schemas: what they take and refuse, which tokens may be next against a plain account,
 * and that what they lead to is what was asked for.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/plugin/token_util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/npc/grammar.h"
#include "engine_plugin/npc/matcher.h"
#include "engine_plugin/npc/sampling.h"
#include "engine_plugin/npc/schema.h"

enum { END = 700 /* the token that ends a reply */ };

static td_tokenizer *tokenizer;
static td_token_tree *tree;

static int begin(void **state)
{
    td_json json = token_read_json("bpe.json");
    gguf_writer w = {0};

    (void)state;
    gguf_put_header(&w, 0, 5);
    gguf_put_key(&w, "tokenizer.ggml.model", TD_GGUF_STRING), gguf_put_string(&w, "gpt2");
    gguf_put_key(&w, "tokenizer.ggml.pre", TD_GGUF_STRING), gguf_put_string(&w, "gpt-2");
    gguf_put_key(&w, "tokenizer.ggml.eos_token_id", TD_GGUF_U32), gguf_put_u32(&w, END);
    token_put_strings(&w, "tokenizer.ggml.tokens", &json, token_member(&json, 0, "tokens"));
    token_put_strings(&w, "tokenizer.ggml.merges", &json, token_member(&json, 0, "merges"));
    tokenizer = token_create(&w);
    td_json_free(&json);
    return td_token_tree_create(tokenizer, &tree) != TANDEM_OK;
}

static int end(void **state)
{
    (void)state;
    td_token_tree_destroy(&tree);
    td_tokenizer_destroy(&tokenizer);
    return 0;
}

static td_grammar *grammar_of(const char *text)
{
    char why[300] = "";
    td_grammar *g;

    if (td_grammar_create(text, strlen(text), &g, why, sizeof why) != TANDEM_OK)
        fail_msg("%s\n%s", why, text);
    return g;
}

static td_matcher *matcher_of(const td_grammar *g)
{
    char why[300] = "";
    td_matcher *m;

    if (td_matcher_create(g, tree, &m, why, sizeof why) != TANDEM_OK)
        fail_msg("%s", why);
    return m;
}

static bool takes(td_matcher *m, const char *text, size_t bytes)
{
    td_matcher_restart(m);
    return td_matcher_add(m, text, bytes) && td_matcher_may_end(m);
}

/* --- Grammars --- */

/* Texts that one takes, and that it does not, with | between. */
static void check_texts(const char *grammar, const char *right, const char *wrong)
{
    td_grammar *g = grammar_of(grammar);
    td_matcher *m = matcher_of(g);

    for (int i = 0; i < 2; i++)
        for (const char *at = i ? wrong : right; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
            const size_t bytes = strcspn(at, "|");

            if (takes(m, at, bytes) == (i == 1))
                fail_msg("%s\n%s \"%.*s\"", grammar, i ? "takes" : "does not take", (int)bytes, at);
        }
    td_matcher_destroy(&m);
    td_grammar_destroy(&g);
}

static void test_texts(void **state)
{
    static const struct {
        const char *grammar, *right, *wrong;
    } cases[] = {
        {"root ::= \"yes\" | \"no\" (\", because \" reason)?\nreason ::= [a-z ]{1,5} # short\n",
         "yes|no|no, because i am|no, because a", "|ye|yesno|no, because |no, because abcdef|No"},
        {"root ::= \"a\"* \"b\"+ \"c\"? \"d\"{2} \"e\"{1,} \"f\"{0,2}",
         "bdde|aabbcddeeff|bddeeeeef", "adde|bde|bdd|bddefff|bdddef|abccdde"},
        {"root ::= [^a-c\\n] [-x] [x-] [\\]\\x41-C] .",
         "d-x]z|d-xAz|éx-B€|\x7f--C😀", "a-x]z|d-xDz|d-x]|d-x]zz|dyx]z"},
        {"root ::=\n  \"a\" # one\n  | (\"b\"\n | \"c\" )\n\n\n | \"\"\n", "a|b|c|", "ab|d"},
        {"root ::= x\nx ::= \"(\" x \")\" x | \"\"", "()|(())()|((()))|", "(|)|(()|())"},
        {"root ::= \"\\\"\\\\\\u20ac\\U0001f600\\t\"", "\"\\€😀\t", "\"\\€😀|€"},
        {"root ::= ((\"a\"?)*)* \"b\"", "b|aab", "a|ba"},
        {"root ::= (\"a\"{0})+ (\"\"*){3} \"b\"{0,0} \"x\"", "x", "ax|bx|"},
        {"root ::= expr\nexpr ::= term ((\"+\" | \"-\") term)*\nterm ::= [0-9]+ | \"(\" expr \")\"",
         "1|1+2-(3-(44))|(7)", "1+|()|(1|1)"},
        {"root ::= [] | \"a\"", "a", "|b"},
        {"root ::= [\\ud7ff-\\ue000]", "\xed\x9f\xbf\x7c\xee\x80\x80", "\xed\xa0\x80\x7c\xee\x80\x81"},
        {"root ::= a-1\r\na-1 ::= b_2\t\"x\"\r\nb_2::=\"y\"", "yx", "xy"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_texts(cases[i].grammar, cases[i].right, cases[i].wrong);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *grammar, *says;
    } cases[] = {
        {"", "there is no rule 'root'"},
        {"a ::= \"b\"", "there is no rule 'root'"},
        {"root ::= a\n\nb ::= \"b\"", "line 1: 'a' is defined nowhere"},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2: 'root' is defined twice"},
        {"root ::= \"a\"\n\n  \"b\"", "line 3: a rule must begin with its name"},
        {"root = \"a\"", "line 1: ::= is missing behind 'root'"},
        {"root ::= \"a", "line 1: a text has no end"},
        {"root ::= \"a\nb\"", "line 1: a text has no end"},
        {"root ::=\n [ab", "line 2: a [ has no ]"},
        {"root ::= [b-a]", "line 1: a range ends before it begins"},
        {"root ::= (\"a\"\n\n", "line 1: a ( has no )"},
        {"root ::= \"a\" )", "line 1: ')' has no meaning here"},
        {"root ::= * \"a\"", "line 1: '*' has no meaning here"},
        {"root ::= \"a\"{}", "line 1: a number is missing within { }"},
        {"root ::= \"a\"{2,1}", "at most 1 repetitions are fewer than 2"},
        {"root ::= \"a\"{2", "line 1: a { has no }"},
        {"root ::= \"a\"{10001}", "more than 10000 repetitions"},
        {"root ::= \"\\q\"", "line 1: \\q is no escape"},
        {"root ::= \"\\x4\"", "an escape must have 2 hexadecimal digits"},
        {"root ::= \"\\ud800\"", "U+D800 is no character"},
        {"root ::= \"\\U00110000\"", "U+110000 is no character"},
        {"root ::= \"\xff\"", "line 1: broken UTF-8"},
        {"root ::= \"\xc0\x80\"", "line 1: broken UTF-8"},
        {"root ::= root \"a\"", "'root' comes back to itself before a character is read"},
        {"root ::= a\na ::= b? c\nb ::= \"x\"\nc ::= b* a | \"y\"", "comes back to itself"},
        {"root ::= e a\ne ::= \"\"\na ::= e root", "comes back to itself"},
        {"root ::= (((\"a\"{10000}){10000}){10000}){10000}", "it has more than 1048576 elements"},
        {"root ::= (((\"\"{10000}){10000}){10000}){10000}", "it has more than 1048576 elements"},
    };
    char why[300], deep[300] = "root ::= ";
    td_grammar *g;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        *why = 0;
        assert_int_equal(td_grammar_create(cases[i].grammar, strlen(cases[i].grammar), &g, why,
                                           sizeof why),
                         TANDEM_ERROR_ARG);
        assert_null(g);
        if (!strstr(why, cases[i].says))
            fail_msg("\"%s\" does not say \"%s\"", why, cases[i].says);
    }
    for (int i = 0; i <= TD_GRAMMAR_DEPTH; i++)
        strcat(deep, "(");
    assert_int_equal(td_grammar_create(deep, strlen(deep), &g, why, sizeof why), TANDEM_ERROR_ARG);
    assert_non_null(strstr(why, "more than 64 parentheses"));
}

/* Each character of Unicode against sets of them. */
static void test_sets(void **state)
{
    static const struct {
        const char *grammar;
        uint32_t ranges[8];
        bool others;
    } sets[] = {
        {"root ::= [a-z\\u00e9\\u0800-\\U00010fff]", {'a', 'z', 0xe9, 0xe9, 0x800, 0x10fff}, false},
        {"root ::= [^\"\\\\\\x00-\\x1f]", {'"', '"', '\\', '\\', 0, 0x1f}, true},
        {"root ::= [\\u0345-\\U0010fffe]", {0x345, 0x10fffe}, false},
        {"root ::= [^\\u07f0-\\u0812\\U0000ffff]", {0x7f0, 0x812, 0xffff, 0xffff}, true},
        {"root ::= .", {0, 0x10ffff}, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        td_grammar *g = grammar_of(sets[i].grammar);
        td_matcher *m = matcher_of(g);

        for (uint32_t c = 0; c <= 0x10ffff; c++) {
            const uint32_t *r = sets[i].ranges;
            const bool within = (c >= r[0] && c <= r[1]) || (r[3] && c >= r[2] && c <= r[3]) ||
                                (r[5] && c >= r[4] && c <= r[5]);
            char bytes[4];
            size_t count = 0;

            if (c < 0x80)
                bytes[count++] = (char)c;
            else {
                const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;

                bytes[count++] = (char)((0xff00 >> (more + 1) & 0xff) | c >> 6 * more);
                for (int k = more - 1; k >= 0; k--)
                    bytes[count++] = (char)(0x80 | (c >> 6 * k & 0x3f));
            }
            if (takes(m, bytes, count) !=
                ((within != sets[i].others) && !(c >= 0xd800 && c <= 0xdfff)))
                fail_msg("%s: U+%04X", sets[i].grammar, c);
        }
        td_matcher_destroy(&m);
        td_grammar_destroy(&g);
    }
}

/* --- Tokens --- */

static const char json_grammar[] =
    "root ::= value\n"
    "value ::= \"{\" (pair (\",\" pair)*)? \"}\" | \"[\" (value (\",\" value)*)? \"]\" | text | [0-9]+\n"
    "pair ::= text \":\" value\n"
    "text ::= \"\\\"\" [^\"\\\\\\x00-\\x1f]* \"\\\"\"\n";

static bool is_set(const uint64_t *bits, uint32_t token)
{
    return bits[token / 64] >> token % 64 & 1;
}

static const uint64_t *tokens_of(td_matcher *m)
{
    const uint64_t *bits;
    char why[300] = "";

    if (td_matcher_tokens(m, &bits, why, sizeof why) != TANDEM_OK)
        fail_msg("%s", why);
    return bits;
}

/* One of those that are set, by a number from 0 to 1; TD_NO_TOKEN: there is none. */
static uint32_t pick(const uint64_t *bits, double by)
{
    uint32_t count = 0, words = td_tokenizer_count(tokenizer);

    for (uint32_t t = 0; t < words; t++)
        count += is_set(bits, t);
    for (uint32_t t = 0, left = (uint32_t)(by * count); t < words; t++)
        if (is_set(bits, t) && !left--)
            return t;
    return TD_NO_TOKEN;
}

/* Tokens at random: at each step those are set that another matcher takes behind the same text. */
static void check_tokens(const char *grammar, uint64_t seed)
{
    enum { STEPS = 40 };
    td_grammar *g = grammar_of(grammar);
    td_matcher *m = matcher_of(g), *plain = matcher_of(g);
    uint32_t said[STEPS];

    for (uint32_t n = 0; n < STEPS; n++) {
        const uint64_t *bits = tokens_of(m);

        for (uint32_t t = 0; t < td_tokenizer_count(tokenizer); t++) {
            td_matcher_restart(plain);
            for (uint32_t i = 0; i < n; i++)
                assert_true(td_matcher_add_token(plain, said[i]));
            if (td_matcher_add_token(plain, t) != is_set(bits, t))
                fail_msg("%s: step %u, token %u", grammar, n, t);
        }
        said[n] = pick(bits, td_sampling_draw(seed, n));
        if (said[n] == END || said[n] == TD_NO_TOKEN)
            break;
        assert_true(td_matcher_add_token(m, said[n]));
    }
    td_matcher_destroy(&plain);
    td_matcher_destroy(&m);
    td_grammar_destroy(&g);
}

static void test_tokens(void **state)
{
    static const char *const grammars[] = {
        json_grammar,
        "root ::= \"Q\" root \"b\" | \"Q\" root \"c\" | \"d\"",
        "root ::= (\"abab\" | \"ab\" [\\u0600-\\u06ff]*)* | \"\xe0\xa4\x85\"+",
        "root ::= [^a]{3,6} \"\\n\"{2,}",
        "root ::= \"12\" | \"1\" | \"\"",
    };

    (void)state;
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++)
        for (uint64_t seed = 0; seed < 3; seed++)
            check_tokens(grammars[i], seed);
}

static void test_ends(void **state)
{
    td_grammar *g = grammar_of("root ::= \"ab\" \"c\"?");
    td_matcher *m = matcher_of(g);

    (void)state;
    assert_false(is_set(tokens_of(m), END));
    assert_false(td_matcher_may_end(m) || td_matcher_add_token(m, END));
    assert_false(td_matcher_add(m, "ax", 2));
    assert_true(td_matcher_add(m, "ab", 2)); /* what did not fit has changed nothing */
    assert_true(is_set(tokens_of(m), END));
    assert_true(td_matcher_may_end(m) && !td_matcher_must_end(m) && td_matcher_add_token(m, END));
    assert_true(td_matcher_add(m, "c", 1));
    assert_true(td_matcher_must_end(m));
    assert_int_equal(pick(tokens_of(m), 0), END);
    assert_false(td_matcher_add(m, "c", 1));
    td_matcher_destroy(&m);
    td_grammar_destroy(&g);
}

/* Stacks without end, and states without end: what is kept is bounded, and what fits stays so. */
static void test_long(void **state)
{
    enum { DEPTH = 50000, LENGTH = 20000 };
    td_grammar *g = grammar_of(json_grammar);
    td_matcher *m = matcher_of(g);

    (void)state;
    for (int i = 0; i < DEPTH; i++) {
        assert_true(td_matcher_add(m, i % 2 ? "[" : "[[],", i % 2 ? 1 : 4));
        if (i % 100 == 0)
            assert_false(is_set(tokens_of(m), END));
    }
    for (int i = 0; i < DEPTH; i++)
        assert_true(td_matcher_add(m, i ? "]" : "7]", i ? 1 : 2));
    assert_true(td_matcher_must_end(m));
    td_matcher_destroy(&m);
    td_grammar_destroy(&g);

    g = grammar_of("root ::= ([a-z]{1,100} \" \"){200}");
    m = matcher_of(g);
    for (int i = 0; i < LENGTH; i++) {
        assert_true(td_matcher_add(m, i % 100 == 99 ? " " : "x", 1));
        if (i % 10 == 0)
            assert_true(is_set(tokens_of(m), 87) /* "x" */ == (i % 100 < 99));
    }
    assert_true(td_matcher_must_end(m));
    td_matcher_destroy(&m);
    td_grammar_destroy(&g);
}

/* Twice as many ways with each character. */
static void test_ambiguous(void **state)
{
    td_grammar *g = grammar_of("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"d\"");
    td_matcher *m = matcher_of(g);
    const uint64_t *bits;
    char why[300] = "";

    (void)state;
    for (int i = 0; i < 30 && td_matcher_add(m, "a", 1); i++)
        continue;
    assert_int_equal(td_matcher_tokens(m, &bits, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(why, "more than 1024 ways at once"));
    assert_true(takes(m, "aadbc", 5));
    td_matcher_destroy(&m);
    td_grammar_destroy(&g);
}

/* --- Schemas --- */

static char *schema_grammar(const char *schema)
{
    char why[300] = "", *text;

    if (td_schema_to_grammar(schema, strlen(schema), "root", &text, why, sizeof why) != TANDEM_OK)
        fail_msg("%s\n%s", why, schema);
    return text;
}

static void test_schemas(void **state)
{
    static const struct {
        const char *schema, *right, *wrong;
    } cases[] = {
        {"{\"type\": \"integer\"}", "0|-12|9876", "01|1.5|-|1e3|true"},
        {"{\"type\": \"number\"}", "0|-1.25|1e9|2.5E-3", ".5|1.|1e|+1"},
        {"{\"type\": [\"boolean\", \"null\"]}", "true|false|null", "True|nul|0"},
        {"{\"type\": \"string\"}", "\"\"|\"a€\\n\\\"\\u20ac\"", "\"|\"\\q\"|\"a\"b|\"\x01\""},
        {"{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}", "\"ab\"|\"é€😀\"|\"\\n\\n\"",
         "\"a\"|\"abcd\""},
        {"{\"enum\": [\"a b\", \"\\\"\\n\\\\\", 1.50, null, {\"x\": [true]}]}",
         "\"a b\"|\"\\\"\\u000a\\\\\"|1.50|null|{\"x\":[true]}", "\"a\"|1.5|a b"},
        {"{\"const\": [1, 2]}", "[1,2]", "[1]|[1, 2]"},
        {"{\"anyOf\": [{\"type\": \"integer\"}, {\"const\": \"x\"}]}", "7|\"x\"", "x|\"7\""},
        {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 1, \"maxItems\": 3}",
         "[1]|[1, 2,3]|[ 1 ]|[\n  1,\n  2\n]", "[]|[1,2,3,4]|[1,]|[a]"},
        {"{\"type\": \"array\", \"maxItems\": 0}", "[]|[ ]", "[1]"},
        {"{\"type\": \"array\", \"items\": {\"type\": \"null\"}, \"maxItems\": 2}",
         "[]|[null]|[null,null]", "[null,null,null]"},
        {"{\"items\": {\"type\": \"boolean\"}}", "[]|[true,false]", "[1]"},
        {"{\"type\": \"object\"}", "{}|{\"a\":{\"b\":[1,null]}, \"c\":\"d\"}", "{a:1}|[]"},
        {"{\"type\": \"object\", \"additionalProperties\": false}", "{}", "{\"a\":1}"},
        {"{\"type\": \"object\", \"additionalProperties\": {\"type\": \"integer\"}}",
         "{}|{\"a\":1}|{\"a\":1,\"b\": 2}", "{\"a\":\"b\"}"},
        {"{\"type\": \"object\", \"title\": \"T\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": "
         "{\"type\": \"null\", \"default\": null}, \"c\": {\"enum\": [1]}}, \"required\": [\"b\"]}",
         "{\"b\":null}|{\"a\":1,\"b\":null}|{\"a\":1, \"b\":null, \"c\":1}|{ \"b\": null,\"c\":1 }",
         "{}|{\"a\":1}|{\"b\":null,\"a\":1}|{\"b\":null,}|{,\"b\":null}|{\"b\":null,\"d\":1}"},
        {"{\"properties\": {\"a\": true, \"b\": true}}", "{}|{\"a\":1}|{\"b\":[]}|{\"a\":1,\"b\":2}",
         "{\"a\":1,}|{\"b\":1,\"a\":2}|{,\"b\":1}"},
        {"{\"properties\": {\"a\\\"b\\\\\": {\"const\": 1}}}", "{\"a\\\"b\\\\\":1}", "{\"ab\":1}"},
        {"{\"$ref\": \"#/$defs/tree\", \"$defs\": {\"tree\": {\"type\": \"object\", \"properties\": "
         "{\"kids\": {\"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/tree\"}}}}}}",
         "{}|{\"kids\":[{},{\"kids\":[]}]}", "{\"kids\":[1]}"},
        {"true", "1|\"a\"|{}|[null]", "a"},
        {"{}", "1|\"a\"|{}|[null]", "a"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *grammar = schema_grammar(cases[i].schema);

        check_texts(grammar, cases[i].right, cases[i].wrong);
        free(grammar);
    }
}

static void test_schema_refusals(void **state)
{
    static const struct {
        const char *schema;
        tandem_status status;
        const char *says;
    } cases[] = {
        {"{", TANDEM_ERROR_PROTOCOL, "line 1"},
        {"7", TANDEM_ERROR_ARG, "schema at #: it must be a schema"},
        {"false", TANDEM_ERROR_ARG, "schema at #: it must be a schema"},
        {"{\"type\": \"text\"}", TANDEM_ERROR_ARG, "schema at #/type: \"text\" is no type"},
        {"{\"type\": 5}", TANDEM_ERROR_ARG, "schema at #/type: it is no type"},
        {"{\"type\": []}", TANDEM_ERROR_ARG, "schema at #/type: it must have 1 to 7 types"},
        {"{\"properties\": {\"a\": {\"type\": \"string\", \"pattern\": \"x\"}}}", TANDEM_ERROR_UNSUPPORTED,
         "schema at #/properties/a/pattern: 'pattern' is not supported here"},
        {"{\"type\": \"integer\", \"minLength\": 1}", TANDEM_ERROR_UNSUPPORTED,
         "schema at #/minLength: 'minLength' is not supported here"},
        {"{\"anyOf\": [{\"type\": \"null\"}, {\"items\": {\"type\": \"x\"}}]}", TANDEM_ERROR_ARG,
         "schema at #/anyOf/1/items/type: \"x\" is no type"},
        {"{\"enum\": []}", TANDEM_ERROR_ARG, "schema at #/enum: it must be a list of at least one"},
        {"{\"anyOf\": 5}", TANDEM_ERROR_ARG, "schema at #/anyOf: it must be a list"},
        {"{\"allOf\": [{}, {}]}", TANDEM_ERROR_UNSUPPORTED, "schema at #/allOf: allOf of more than one"},
        {"{\"type\": \"array\", \"minItems\": 3, \"maxItems\": 2}", TANDEM_ERROR_ARG,
         "at most 2 are fewer than at least 3"},
        {"{\"type\": \"array\", \"minItems\": -1}", TANDEM_ERROR_ARG, "schema at #/minItems: it must be a whole"},
        {"{\"type\": \"array\", \"minItems\": 1.5}", TANDEM_ERROR_ARG, "schema at #/minItems: it must be a whole"},
        {"{\"type\": \"string\", \"maxLength\": 10001}", TANDEM_ERROR_ARG, "from 0 to 10000"},
        {"{\"properties\": []}", TANDEM_ERROR_ARG, "schema at #/properties: it must be an object"},
        {"{\"properties\": {\"a\": {}, \"a\": {}}}", TANDEM_ERROR_ARG, "it is there twice"},
        {"{\"properties\": {\"a\": {}}, \"required\": [\"b\"]}", TANDEM_ERROR_ARG,
         "schema at #/required/0: it is none of the properties"},
        {"{\"type\": \"object\", \"required\": [\"b\"]}", TANDEM_ERROR_ARG, "none of the properties"},
        {"{\"required\": {}}", TANDEM_ERROR_ARG, "schema at #/required: it must be a list"},
        {"{\"properties\": {\"a\": {}}, \"additionalProperties\": {}}", TANDEM_ERROR_UNSUPPORTED,
         "schema at #/additionalProperties: a schema for further properties"},
        {"{\"$ref\": \"#/no/such\"}", TANDEM_ERROR_ARG, "schema at #/$ref: it leads to nothing"},
        {"{\"$ref\": \"http://x\"}", TANDEM_ERROR_ARG, "leads to nothing within this text"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char why[300] = "", *text;

        assert_int_equal(td_schema_to_grammar(cases[i].schema, strlen(cases[i].schema), "root", &text, why,
                                              sizeof why),
                         cases[i].status);
        assert_null(text);
        if (!strstr(why, cases[i].says))
            fail_msg("\"%s\" does not say \"%s\"", why, cases[i].says);
    }
}

/* What comes of a schema by tokens at random is JSON, and has what the schema asks for. */
static void test_random_replies(void **state)
{
    enum { REPLIES = 100, MOST = 2000 };
    char *text = schema_grammar(
        "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 20},"
        "\"mood\": {\"enum\": [\"glad\", \"cross\"]}, \"price\": {\"type\": \"number\"}, \"items\":"
        "{\"type\": \"array\", \"maxItems\": 3, \"items\": {\"$ref\": \"#/$defs/item\"}}}, \"required\":"
        "[\"name\", \"items\"], \"$defs\": {\"item\": {\"type\": \"object\", \"properties\": {\"id\":"
        "{\"type\": \"integer\"}}, \"required\": [\"id\"]}}}");
    td_grammar *g = grammar_of(text);
    td_matcher *m = matcher_of(g);

    (void)state;
    for (uint64_t n = 0; n < REPLIES; n++) {
        char said[1 << 15], why[300] = "";
        size_t bytes = 0;
        td_json json;

        td_matcher_restart(m);
        for (uint32_t i = 0; i < MOST; i++) {
            const uint32_t token = pick(tokens_of(m), td_sampling_draw(n, i));
            const td_gguf_string piece = td_tokenizer_piece(tokenizer, token);

            assert_true(td_matcher_add_token(m, token));
            if (token == END)
                break;
            memcpy(said + bytes, piece.bytes, piece.length);
            bytes += piece.length;
        }
        assert_true(td_matcher_must_end(m));
        if (td_json_read(said, bytes, &json, why, sizeof why) != TANDEM_OK)
            fail_msg("%s: %.*s", why, (int)bytes, said);
        assert_int_equal(json.values[0].type, TD_JSON_OBJECT);
        assert_true(token_member(&json, 0, "name") && token_member(&json, 0, "items"));
        assert_true(json.values[token_member(&json, 0, "items")].count <= 3);
        TD_JSON_EACH (&json, token_member(&json, 0, "items"), item)
            assert_int_equal(json.values[token_member(&json, item, "id")].type, TD_JSON_NUMBER);
        td_json_free(&json);
    }
    td_matcher_destroy(&m);
    td_grammar_destroy(&g);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_sets),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_ambiguous),
        cmocka_unit_test(test_schemas),
        cmocka_unit_test(test_schema_refusals),
        cmocka_unit_test(test_random_replies),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
