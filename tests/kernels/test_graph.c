/* Graphs: expressions, JSON, and what is wrong with a text, which is said of the place where it is.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/model/graph_file.h"
#include "kernels/model/json.h"

enum { TEXT_BYTES = 1 << 16 };

static void must_say(const char *what, const char *why, const char *says)
{
    if (!strstr(why, says))
        fail_msg("%s: \"%s\" does not say \"%s\"", what, why, says);
}

/* --- Expressions --- */

static const td_number numbers[] = {{"tokens", 512}, {"width", 64}, {"_a1", 7}};
static const uint32_t values[] = {500, 63, 7};

static void test_expressions(void **state)
{
    static const struct {
        const char *text;
        int64_t value;
    } right[] = {
        {"0", 0},
        {"9223372036854775807", INT64_MAX},
        {" tokens ", 500},
        {"tokens*width", 31500},
        {"1 + 2 * 3 - 4 / 3", 6},
        {"(1 + 2) * 3", 9},
        {"10 - 2 - 3", 5},
        {"100 / 7 / 2", 7},
        {"2 * (tokens - (width + 1)) / 4", 218},
        {"ceil_div(tokens, width)", 8},
        {"ceil_div(_a1*9, 63) + ceil_div(0, 1)", 1},
        {"ceil_div ( ceil_div(tokens, 2), 1+1 )", 125},
        {"1 - 2", -1},
        {"0 - 9223372036854775807 - 1", INT64_MIN},
        {"((((((((((((((1))))))))))))))", 1},
    };
    static const struct {
        const char *text, *says;
        bool late; /* only once it is evaluated */
    } wrong[] = {
        {"", "lacks a number, a name or \"(\"", false},
        {"   ", "lacks a number", false},
        {"-1", "lacks a number", false},
        {"1.5", "something behind its end", false},
        {"1e3", "letters right behind a number", false},
        {"2tokens", "letters right behind a number", false},
        {"tokenz + 1", "names \"tokenz\", which is no number", false},
        {"token", "names \"token\"", false},
        {"tokens width", "something behind its end", false},
        {"(tokens", "lacks \")\"", false},
        {"tokens)", "something behind its end", false},
        {"1 +", "lacks a number", false},
        {"* 2", "lacks a number", false},
        {"ceil_div", "ceil_div without \"(\"", false},
        {"ceil_div(1)", "ceil_div without \",\"", false},
        {"ceil_div(1, 2", "lacks \")\"", false},
        {"9223372036854775808", "more than 63 bits", false},
        {"((((((((((((((((((1))))))))))))))))))", "too many parentheses", false},
        {"1 \t", "something behind its end", false},
        {"9223372036854775807 + 1", "beyond 64 bits", true},
        {"0 - 9223372036854775807 - 2", "beyond 64 bits", true},
        {"4611686018427387904 * 2", "beyond 64 bits", true},
        {"tokens / (width - 63)", "divides", true},
        {"ceil_div(1, 0)", "divides", true},
        {"(1 - 2) / 3", "divides", true},
        {"3 / (1 - 2)", "divides", true},
    };
    char why[400], longest[2 * TD_EXPRESSION_BYTES];
    int64_t value;
    bool constant;

    (void)state;
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        assert_int_equal(
            td_expression_value(right[i].text, numbers, values, 3, &value, why, sizeof why),
            TANDEM_OK);
        if (value != right[i].value)
            fail_msg("%s is %lld", right[i].text, (long long)value);
        assert_int_equal(td_expression_check(right[i].text, numbers, 3, &constant, why, sizeof why),
                         TANDEM_OK);
        assert_int_equal(constant, !strpbrk(right[i].text, "tw_") ||
                                       !strcmp(right[i].text, "ceil_div(1, 0)"));
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(
            td_expression_value(wrong[i].text, numbers, values, 3, &value, why, sizeof why),
            TANDEM_ERROR_ARG);
        must_say(wrong[i].text, why, wrong[i].says);
        assert_int_equal(td_expression_check(wrong[i].text, numbers, 3, &constant, why, sizeof why),
                         wrong[i].late ? TANDEM_OK : TANDEM_ERROR_ARG);
    }
    for (size_t bytes = TD_EXPRESSION_BYTES - 1; bytes <= TD_EXPRESSION_BYTES; bytes++) {
        memset(longest, ' ', bytes);
        longest[0] = '7';
        longest[bytes] = 0;
        assert_int_equal(td_expression_value(longest, NULL, NULL, 0, &value, why, sizeof why),
                         bytes < TD_EXPRESSION_BYTES ? TANDEM_OK : TANDEM_ERROR_ARG);
    }
    assert_true(td_number_name("kv_len") && td_number_name("_") && td_number_name("a1"));
    assert_false(td_number_name("") || td_number_name("1a") || td_number_name("a b") ||
                 td_number_name("ceil_div") || td_number_name("\xc3\xa9"));
}

static void test_decimals(void **state)
{
    static const char *const right[] = {"0",
                                        "1",
                                        "-1",
                                        "1e-5",
                                        "0.08838834764831845",
                                        "1E+3",
                                        "3.4028235e38",
                                        "1e-45",
                                        "0.000001",
                                        "123456789012345678901234567890",
                                        "-0.5e-3",
                                        "16777217",
                                        "1e-12"};
    static const char *const wrong[] = {"",    "-",   ".5",   "5.", "1e",  "1e+", "0x1",
                                        "nan", "inf", "1e39", "1 ", "1,5", "--1", "1e9999"};
    float value;

    (void)state;
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        assert_true(td_graph_decimal(right[i], &value));
        if (value != strtof(right[i], NULL))
            fail_msg("%s is %.9g", right[i], (double)value);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(td_graph_decimal(wrong[i], &value));
}

/* --- JSON --- */

static void test_json(void **state)
{
    static const char text[] = " {\"a\": [1, -2.5e+3, \"x\\\"\\u00e9\\ud83d\\ude00\\n\", {}], "
                               "\"b\\/\" : {\"c\":null,\"d\":true},\n\"\":[[]]}\n";
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"", "line 1: it ends before a value"},
        {"{", "a member without a name"},
        {"[1,\n2", "line 2: a bracket is missing"},
        {"[1 2]", "a comma is missing"},
        {"[1,]", "a value that is none"},
        {"{\"a\":1,}", "a member without a name"},
        {"{a:1}", "a member without a name"},
        {"{\"a\" 1}", "a colon is missing"},
        {"[1}", "a comma is missing"},
        {"[] []", "something behind its end"},
        {"nul", "a value that is none"},
        {"[01]", "a number that is none"},
        {"-", "a number that is none"},
        {"1.", "a number that is none"},
        {"1e", "a number that is none"},
        {"+1", "a value that is none"},
        {"\"a", "a string without an end"},
        {"\"\n\"", "a control character"},
        {"\"\\x\"", "a backslash"},
        {"\"\\", "a backslash"},
        {"\"\\u12g4\"", "\\u without four digits"},
        {"\"\\u0000\"", "a string with a 0"},
        {"\"\\ud800\"", "half a character"},
        {"\"\\ud800\\u0041\"", "half a character"},
        {"\"\\udc00\"", "half a character"},
        {"\"\x80\"", "no UTF-8"},
        {"\"\xc0\xaf\"", "no UTF-8"},
        {"\"\xe0\x80\xaf\"", "no UTF-8"},
        {"\"\xed\xa0\x80\"", "no UTF-8"},
        {"\"\xf4\x90\x80\x80\"", "no UTF-8"},
        {"\"\xe2\x82", "no UTF-8"},
        {"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
         "too many brackets"},
    };
    char why[300], *large;
    td_json json;

    (void)state;
    assert_int_equal(td_json_read(text, sizeof text - 1, &json, why, sizeof why), TANDEM_OK);
    assert_int_equal(json.count, 11);
    assert_true(json.values[0].type == TD_JSON_OBJECT && json.values[0].count == 3 &&
                json.values[0].next == 11);
    assert_string_equal(json.values[1].name, "a");
    assert_true(json.values[1].type == TD_JSON_ARRAY && json.values[1].count == 4 &&
                json.values[1].next == 6);
    assert_string_equal(json.values[3].text, "-2.5e+3");
    assert_string_equal(json.values[4].text, "x\"\xc3\xa9\xf0\x9f\x98\x80\n");
    assert_true(json.values[5].type == TD_JSON_OBJECT && json.values[5].count == 0);
    assert_string_equal(json.values[6].name, "b/");
    assert_true(json.values[7].type == TD_JSON_NULL && json.values[8].type == TD_JSON_BOOL);
    assert_string_equal(json.values[8].text, "true");
    td_json_free(&json);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const size_t bytes = strlen(wrong[i].text);
        char *exact = malloc(bytes + 1); /* a byte read behind it is seen by sanitizers */

        memcpy(exact, wrong[i].text, bytes);
        exact = realloc(exact, bytes ? bytes : 1);
        assert_int_equal(td_json_read(exact, bytes, &json, why, sizeof why), TANDEM_ERROR_PROTOCOL);
        must_say(wrong[i].text, why, wrong[i].says);
        assert_true(!json.values && !json.texts);
        free(exact);
    }
    assert_int_equal(td_json_read("1\0", 2, &json, why, sizeof why), TANDEM_ERROR_PROTOCOL);
    must_say("a 0", why, "a 0 behind its end");
    large = malloc(TD_JSON_BYTES + 1);
    for (uint32_t i = 0; i < TD_JSON_BYTES; i++)
        large[i] = i ? i % 2 ? '1' : ',' : '[';
    assert_int_equal(td_json_read(large, TD_JSON_BYTES, &json, why, sizeof why),
                     TANDEM_ERROR_PROTOCOL);
    must_say("many values", why, "more values than there is room for");
    assert_int_equal(td_json_read(large, TD_JSON_BYTES + 1, &json, why, sizeof why),
                     TANDEM_ERROR_PROTOCOL);
    free(large);
}

/* --- Graphs --- */

/* q and k as halves of one tensor, a state, a uniform; all kinds of members. */
static const char right_graph[] =
    "{\"version\": 1, \"numbers\": {\"tokens\": 512, \"batch\": 4},\n"
    " \"tensors\": {\n"
    "  \"x\": {\"role\": \"input\", \"dtype\": \"F16\", \"shape\": [\"batch\", \"tokens\", 64]},\n"
    "  \"wqk\": {\"role\": \"weight\", \"dtype\": \"F16\", \"shape\": [128, 64]},\n"
    "  \"turns\": {\"role\": \"weight\", \"dtype\": \"F32\", \"shape\": [512, 32]},\n"
    "  \"at\": {\"role\": \"uniform\", \"dtype\": \"I32\", \"shape\": [\"batch * tokens\"]},\n"
    "  \"qk\": {\"role\": \"temporary\", \"dtype\": \"F16\", \"shape\": [\"batch * tokens\", "
    "128]},\n"
    "  \"o\": {\"role\": \"temporary\", \"dtype\": \"F16\", \"shape\": [\"batch * tokens\", 64]},\n"
    "  \"sum\": {\"role\": \"state\", \"dtype\": \"F16\", \"shape\": [1, 64]},\n"
    "  \"y\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [\"batch\", \"tokens\", 64]},\n"
    "  \"z\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [1, 64]}},\n"
    " \"nodes\": [\n"
    "  {\"operation\": \"linear\", \"rows\": \"batch * tokens\", \"ins\": 64, \"outs\": 128, "
    "\"positions\": 512, \"head_dim\": 32,\n"
    "   \"rotated_channels\": 32, \"rotated_heads\": 4,\n"
    "   \"views\": {\"x\": \"x\", \"w\": \"wqk\", \"rotation\": \"turns\", \"position\": \"at\", "
    "\"y\": \"qk\"}},\n"
    "  {\"operation\": \"attention\", \"batch\": \"batch\", \"heads\": 2, \"kv_heads\": 2, "
    "\"q_len\": \"tokens\", \"kv_len\": \"tokens\",\n"
    "   \"head_dim\": 32, \"precision\": 1, \"scale\": 0.125,\n"
    "   \"views\": {\"q\": {\"tensor\": \"qk\", \"strides\": [\"tokens * 128\", 32, 128]},\n"
    "             \"k\": {\"tensor\": \"qk\", \"offset\": 64, \"strides\": [\"tokens * 128\", 32, "
    "128]},\n"
    "             \"v\": {\"tensor\": \"x\", \"strides\": [\"tokens * 64\", 32, 64]},\n"
    "             \"o\": {\"tensor\": \"o\", \"strides\": [\"tokens * 64\", 32, 64]}}},\n"
    "  {\"operation\": \"norm\", \"batch\": \"batch\", \"heads\": 1, \"rows\": \"tokens\", "
    "\"channels\": 64, \"kind\": 1, \"epsilon\": 1e-12,\n"
    "   \"views\": {\"x\": \"o\", \"y\": \"y\"}},\n"
    "  {\"operation\": \"norm\", \"batch\": 1, \"heads\": 1, \"rows\": 1, \"channels\": 64,\n"
    "   \"views\": {\"x\": {\"tensor\": \"o\", \"offset\": \"(batch * tokens - 1) * 64\"}, "
    "\"residual\": \"sum\", \"y\": \"z\", \"sum\": \"sum\"}}\n"
    " ]}\n";

/* Puts `to` in place of the first `from`. */
static void change(char text[TEXT_BYTES], const char *from, const char *to)
{
    static char rest[TEXT_BYTES];
    char *at = strstr(text, from);

    if (!at)
        fail_msg("there is no %s to change", from);
    strcpy(rest, at + strlen(from));
    strcpy(at, to);
    strcat(text, rest);
}

static tandem_status build(const char *text, const uint32_t sizes[2], char *why, size_t why_bytes)
{
    const td_target cpu = td_target_for_sm(0);
    const td_program *program;
    td_graph *graph;
    tandem_status status = td_graph_read(text, strlen(text), &graph, why, why_bytes);

    if (status != TANDEM_OK) {
        assert_null(graph);
        return status;
    }
    status = td_program_build(graph, sizes, &cpu, &program, why, why_bytes);
    td_graph_destroy(&graph);
    if (status != TANDEM_OK)
        assert_null(program);
    td_program_drop(&program);
    return status;
}

/* The example of kernels/PROGRAM.md, for all sizes that matter. */
static void test_example(void **state)
{
    static const uint32_t sizes[][2] = {{1, 1}, {8, 512}, {3, 65}};
    static char page[TEXT_BYTES], why[400];
    char path[4096];

    (void)state;
    snprintf(path, sizeof path, "%s/kernels/PROGRAM.md",
             getenv("TANDEM_SOURCE") ? getenv("TANDEM_SOURCE") : ".");
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    page[fread(page, 1, sizeof page - 1, file)] = 0;
    fclose(file);
    char *begin = strstr(page, "```json\n"), *end = begin ? strstr(begin + 8, "```") : NULL;
    assert_non_null(end);
    *end = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (build(begin + 8, sizes[i], why, sizeof why) != TANDEM_OK)
            fail_msg("%s", why);
}

/* With the largest sizes that are legal. */
static void test_wrong_graphs(void **state)
{
    static const struct {
        const char *from, *to, *says;
        tandem_status status; /* PROTOCOL of the text, ARG of it for some sizes */
    } cases[] = {
        /* Texts */
        {"\"nodes\": [", "\"nodes\": {", "line 13: a member without a name", TANDEM_ERROR_PROTOCOL},
        {"\"version\": 1", "\"version\": 2", "version: is 2; it must be 1", TANDEM_ERROR_PROTOCOL},
        {"\"version\": 1,", "", "the graph: lacks \"version\"", TANDEM_ERROR_PROTOCOL},
        {"\"version\": 1", "\"version\": \"1\"", "version: is a string; it must be a number",
         TANDEM_ERROR_PROTOCOL},
        {"\"version\": 1", "\"version\": 1, \"version\": 1", "the graph.version: is there twice",
         TANDEM_ERROR_PROTOCOL},
        {"\"version\": 1", "\"version\": 1, \"extra\": 1", "the graph: has a member \"extra\"",
         TANDEM_ERROR_PROTOCOL},
        /* Numbers */
        {"\"tokens\": 512", "\"tokens\": \"512\"",
         "numbers.tokens: is a string; it must be a number", TANDEM_ERROR_PROTOCOL},
        {"\"tokens\": 512", "\"tokens\": 1.5",
         "numbers.tokens: \"1.5\" has something behind its end", TANDEM_ERROR_PROTOCOL},
        {"\"tokens\": 512", "\"tokens\": 0",
         "numbers.tokens: the most is 0; it must be 1 to 1073741824", TANDEM_ERROR_PROTOCOL},
        {"\"tokens\": 512", "\"tokens\": 1073741825", "numbers.tokens: the most is",
         TANDEM_ERROR_PROTOCOL},
        {"\"tokens\": 512", "\"tokens\": 512, \"tokens\": 3", "numbers.tokens: is there twice",
         TANDEM_ERROR_PROTOCOL},
        {"\"tokens\": 512", "\"to kens\": 512", "numbers: \"to kens\" is no name for one",
         TANDEM_ERROR_PROTOCOL},
        /* Tensors */
        {"\"shape\": [128, 64]}", "\"shape\": [128, 64], \"x\": 1}",
         "tensors[\"wqk\"]: has a member \"x\"", TANDEM_ERROR_PROTOCOL},
        {"\"role\": \"weight\", ", "", "tensors[\"wqk\"]: lacks \"role\"", TANDEM_ERROR_PROTOCOL},
        {"\"role\": \"weight\"", "\"role\": \"wait\"", "tensors[\"wqk\"].role: \"wait\" is none",
         TANDEM_ERROR_PROTOCOL},
        {"\"role\": \"weight\"", "\"role\": 2",
         "tensors[\"wqk\"].role: is a number; it must be a string", TANDEM_ERROR_PROTOCOL},
        {"\"dtype\": \"F16\"", "\"dtype\": \"F17\"", "tensors[\"x\"].dtype: \"F17\" is none",
         TANDEM_ERROR_PROTOCOL},
        {"[128, 64]", "[]", "tensors[\"wqk\"].shape: has 0 dimensions", TANDEM_ERROR_PROTOCOL},
        {"[128, 64]", "[1, 1, 1, 128, 64]",
         "tensors[\"wqk\"].shape[4]: is one more than there may be", TANDEM_ERROR_PROTOCOL},
        {"[128, 64]", "128", "tensors[\"wqk\"].shape: is a number; it must be an array",
         TANDEM_ERROR_PROTOCOL},
        {"[128, 64]", "[128, null]", "tensors[\"wqk\"].shape[1]: is neither a number nor a string",
         TANDEM_ERROR_PROTOCOL},
        {"[128, 64]", "[\"tokens\", 64]",
         "tensors[\"wqk\"].shape[0]: \"tokens\" changes with a number; that of a weight must not",
         TANDEM_ERROR_PROTOCOL},
        {"[\"batch * tokens\", 128]", "[\"batch * tokenz\", 128]",
         "tensors[\"qk\"].shape[0]: \"batch * tokenz\" names \"tokenz\"", TANDEM_ERROR_PROTOCOL},
        {"\"turns\": {", "\"wqk\": {", "tensors[\"wqk\"]: is there twice", TANDEM_ERROR_PROTOCOL},
        {"\"turns\": {", "\"\": {", "tensors: \"\" is no name for one", TANDEM_ERROR_PROTOCOL},
        {"\"wqk\": {",
         "\"more\": {\"role\": \"weight\", \"dtype\": \"F16\", \"shape\": [1]}, \"wqk\": {",
         "tensors[\"more\"]: no node has it", TANDEM_ERROR_PROTOCOL},
        {"\"residual\": \"sum\", \"y\": \"z\", \"sum\": \"sum\"",
         "\"residual\": \"sum\", \"y\": \"sum\", \"sum\": \"z\"", "dtype", TANDEM_ERROR_ARG},
        {"[\"batch * tokens\", 128]", "[\"batch * tokens * 4194304\", 128]",
         "tensors[\"qk\"].shape[0]: \"batch * tokens * 4194304\" is 8589934592; it must be 1 to "
         "1073741824",
         TANDEM_ERROR_ARG},
        {"[\"batch * tokens\", 128]", "[\"tokens - 512\", 128]",
         "tensors[\"qk\"].shape[0]: \"tokens - 512\" is 0", TANDEM_ERROR_ARG},
        {"[\"batch * tokens\", 128]", "[\"tokens / (tokens - 512)\", 128]",
         "tensors[\"qk\"].shape[0]: \"tokens / (tokens - 512)\" divides", TANDEM_ERROR_ARG},
        {"[\"batch * tokens\", 128]", "[1073741824, 1073741824, 1073741824, 128]",
         "tensors[\"qk\"]: has more than 2^63 bytes", TANDEM_ERROR_ARG},
        {"[128, 64]", "[1073741824, 1073741824, 4]", "tensors[\"wqk\"]: has more than 2^63 bytes",
         TANDEM_ERROR_ARG},
        {"[128, 64]},\n  \"turns\": {\"role\": \"weight\", \"dtype\": \"F32\", \"shape\": [512, "
         "32]}",
         "[1073741824, 1073741824, 2]}, \"turns\": {\"role\": \"weight\", \"dtype\": \"F16\", "
         "\"shape\": [1073741824, 1073741824, 2]}",
         "tensors[\"turns\"]: ends beyond 2^63 bytes of the block of its role, weight",
         TANDEM_ERROR_ARG},
        {"\"dtype\": \"F16\", \"shape\": [128, 64]", "\"dtype\": \"Q4_0\", \"shape\": [128, 63]",
         "tensors[\"wqk\"]: has 63 channels; blocks of its dtype have 32 elements",
         TANDEM_ERROR_ARG},
        /* Nodes */
        {"{\"operation\": \"linear\", ", "7, {\"operation\": \"linear\", ",
         "nodes[0]: is a number; it must be an object", TANDEM_ERROR_PROTOCOL},
        {"\"operation\": \"linear\", ", "", "nodes[0]: lacks \"operation\"", TANDEM_ERROR_PROTOCOL},
        {"\"operation\": \"linear\"", "\"operation\": \"convert\"",
         "nodes[0].operation: \"convert\" is none", TANDEM_ERROR_PROTOCOL},
        {"\"operation\": \"linear\"", "\"operation\": \"commit\"",
         "nodes[0].operation: \"commit\" is none", TANDEM_ERROR_PROTOCOL},
        {"\"operation\": \"linear\"", "\"operation\": 3",
         "nodes[0].operation: is a number; it must be a string", TANDEM_ERROR_PROTOCOL},
        {"\"operation\": \"linear\"", "\"operation\": \"linear\", \"operation\": \"norm\"",
         "nodes[0].operation: is there twice", TANDEM_ERROR_PROTOCOL},
        {"\"ins\": 64", "\"in\": 64", "nodes[0]: linear has no number \"in\"",
         TANDEM_ERROR_PROTOCOL},
        {"\"ins\": 64", "\"ins\": 64, \"ins\": 64", "nodes[0].ins: is there twice",
         TANDEM_ERROR_PROTOCOL},
        {"\"ins\": 64", "\"ins\": true", "nodes[0].ins: is neither a number nor a string",
         TANDEM_ERROR_PROTOCOL},
        {"\"ins\": 64", "\"ins\": \"chans\"", "nodes[0].ins: \"chans\" names \"chans\"",
         TANDEM_ERROR_PROTOCOL},
        {"1e-12", "\"tokens\"", "nodes[2].epsilon: is no decimal number", TANDEM_ERROR_PROTOCOL},
        {"\"ins\": 64", "\"ins\": \"tokens - 513\"",
         "nodes[0].ins: \"tokens - 513\" is -1; it must be 0 to 4294967295", TANDEM_ERROR_ARG},
        {"\"rows\": \"batch * tokens\", ", "",
         "nodes[0].views.x: is 1 x 1 x 0 x 64, \"x\" is 1 x 4 x 512 x 64", TANDEM_ERROR_ARG},
        {"\"scale\": 0.125", "\"smooth\": 16", "nodes[1]: attention.smooth is 16",
         TANDEM_ERROR_ARG},
        {"\"kind\": 1", "\"kind\": 7", "nodes[2]: norm.kind is 7", TANDEM_ERROR_ARG},
        /* Views */
        {"\"w\": \"wqk\"", "\"w\": \"wq\"", "nodes[0].views.w: no tensor \"wq\"",
         TANDEM_ERROR_PROTOCOL},
        {"\"w\": \"wqk\"", "\"weight\": \"wqk\"", "nodes[0].views: linear has no view \"weight\"",
         TANDEM_ERROR_PROTOCOL},
        {"\"w\": \"wqk\"", "\"w\": \"wqk\", \"w\": \"wqk\"", "nodes[0].views.w: is there twice",
         TANDEM_ERROR_PROTOCOL},
        {"\"w\": \"wqk\"", "\"w\": 3", "nodes[0].views.w: is a number; it must be an object",
         TANDEM_ERROR_PROTOCOL},
        {"\"w\": \"wqk\"", "\"w\": {\"offset\": 3}", "nodes[0].views.w: lacks \"tensor\"",
         TANDEM_ERROR_PROTOCOL},
        {"\"w\": \"wqk\"", "\"w\": {\"tensor\": \"wqk\", \"at\": 3}",
         "nodes[0].views.w: has a member \"at\"", TANDEM_ERROR_PROTOCOL},
        {"\"w\": \"wqk\"", "\"w\": {\"tensor\": \"wqk\", \"strides\": [0, 0]}",
         "nodes[0].views.w.strides: has not three", TANDEM_ERROR_PROTOCOL},
        {"\"w\": \"wqk\"", "\"w\": {\"tensor\": \"wqk\", \"strides\": [0, 0, \"wide\"]}",
         "nodes[0].views.w.strides.row: \"wide\" names", TANDEM_ERROR_PROTOCOL},
        {"\"w\": \"wqk\"", "\"w\": {\"tensor\": \"wqk\", \"offset\": \"+\"}",
         "nodes[0].views.w.offset: \"+\" lacks", TANDEM_ERROR_PROTOCOL},
        {", \"w\": \"wqk\"", "", "nodes[0].views: linear needs \"w\"", TANDEM_ERROR_PROTOCOL},
        {"\"views\": {\"x\": \"x\"", "\"view\": {\"x\": \"x\"", "nodes[0]: lacks \"views\"",
         TANDEM_ERROR_PROTOCOL},
        {"\"views\": {\"x\": \"x\"", "\"views\": [], \"v\": {\"x\": \"x\"", "nodes[0]",
         TANDEM_ERROR_PROTOCOL},
        {"\"y\": \"qk\"", "\"y\": \"x\"", "nodes[0].views.y: writes \"x\", whose role is input",
         TANDEM_ERROR_PROTOCOL},
        {"\"y\": \"qk\"", "\"y\": \"wqk\"",
         "nodes[0].views.y: writes \"wqk\", whose role is weight", TANDEM_ERROR_PROTOCOL},
        {"\"y\": \"qk\"", "\"y\": \"at\"", "nodes[0].views.y: writes \"at\", whose role is uniform",
         TANDEM_ERROR_PROTOCOL},
        {"\"y\": \"qk\"", "\"y\": \"o\"", "nodes[1].views.o: writes \"o\", which nodes[0] writes",
         TANDEM_ERROR_PROTOCOL},
        {"\"x\": \"o\", \"y\": \"y\"", "\"x\": \"z\", \"y\": \"y\"",
         "nodes[2].views.x: reads \"z\", which nodes[3] writes", TANDEM_ERROR_PROTOCOL},
        {"\"x\": \"o\", \"y\": \"y\"", "\"x\": \"y\", \"y\": \"y\"",
         "nodes[2].views.x: reads \"y\", which nodes[2] writes", TANDEM_ERROR_PROTOCOL},
        {"\"tensor\": \"x\", \"strides\"", "\"tensor\": \"o\", \"strides\"",
         "nodes[1].views.v: reads \"o\", which nodes[1] writes", TANDEM_ERROR_PROTOCOL},
        {"\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [\"batch\"",
         "\"role\": \"temporary\", \"dtype\": \"F32\", \"shape\": [\"batch\"", NULL, TANDEM_OK},
        {"\"role\": \"temporary\", \"dtype\": \"F16\", \"shape\": [\"batch * tokens\", 128]",
         "\"role\": \"input\", \"dtype\": \"F16\", \"shape\": [\"batch * tokens\", 128]",
         "nodes[0].views.y: writes \"qk\", whose role is input", TANDEM_ERROR_PROTOCOL},
        {"\"role\": \"state\"", "\"role\": \"cache\"",
         "nodes[3].views.sum: writes all of \"sum\", whose role is cache", TANDEM_ERROR_PROTOCOL},
        {"\n ]}\n",
         ", {\"operation\": \"scatter\", \"batch\": 1, \"heads\": 1, \"rows\": 1, \"channels\": 64, "
         "\"entries\": 1, \"views\": {\"x\": \"z\", \"position\": \"at\", \"y\": \"sum\"}}]}",
         "nodes[4].views.y: writes some rows of \"sum\", whose role is state",
         TANDEM_ERROR_PROTOCOL},
        {"[1, 64]}", "[1, \"tokens\"]}",
         "tensors[\"sum\"].shape[1]: \"tokens\" changes with a number; that of a state must not",
         TANDEM_ERROR_PROTOCOL},
        {"\"y\": \"y\"}", "\"y\": \"z\"}", "nodes[3].views.y: writes \"z\", which nodes[2] writes",
         TANDEM_ERROR_PROTOCOL},
        /* For sizes */
        {"[\"batch\", \"tokens\", 64]", "[\"batch\", \"tokens\", 65]",
         "nodes[0].views.x: is 1 x 1 x 2048 x 64, \"x\" is 1 x 4 x 512 x 65: without strides both "
         "have as many channels",
         TANDEM_ERROR_ARG},
        {"[\"batch\", \"tokens\", 64]", "[\"batch\", \"tokens + 1\", 64]",
         "as many channels, and as many rows", TANDEM_ERROR_ARG},
        {"\"offset\": 64", "\"offset\": 128",
         "nodes[1].views.k: 4 x 2 x 512 x 32 leaves \"qk\", which has 524288 bytes",
         TANDEM_ERROR_ARG},
        {"\"offset\": 64", "\"offset\": \"0 - 1\"", "nodes[1].views.k.offset: \"0 - 1\" is -1",
         TANDEM_ERROR_ARG},
        {"\"offset\": 64, \"strides\": [\"tokens * 128\", 32, 128]",
         "\"offset\": 64, \"strides\": [9223372036854775807, 32, 128]", "leaves \"qk\"",
         TANDEM_ERROR_ARG},
        {"{\"tensor\": \"o\", \"strides\": [\"tokens * 64\", 32, 64]}}",
         "{\"tensor\": \"o\", \"strides\": [\"tokens * 64\", 0, 64]}}",
         "nodes[1]: attention.o.stride_head is 0", TANDEM_ERROR_ARG},
        {"\"o\": {\"role\": \"temporary\", \"dtype\": \"F16\", \"shape\": [\"batch * tokens\", "
         "64]}",
         "\"o\": {\"role\": \"temporary\", \"dtype\": \"F16\", \"shape\": [\"batch * tokens + 1\", "
         "64]}",
         "nodes[1].views.o: writes 4 x 2 x 512 x 32 of \"o\", which is 1 x 1 x 2049 x 64; it must "
         "write all of it",
         TANDEM_ERROR_ARG},
        {"\"dtype\": \"I32\"", "\"dtype\": \"F32\"", "nodes[0]: linear.position.dtype",
         TANDEM_ERROR_ARG},
        {"\"dtype\": \"F16\", \"shape\": [1, 64]", "\"dtype\": \"F32\", \"shape\": [1, 64]",
         "nodes[3]: norm.", TANDEM_ERROR_ARG},
    };
    static char text[TEXT_BYTES], many[1 << 20];
    static const uint32_t largest[2] = {512, 4};
    char why[400];

    (void)state;
    assert_int_equal(build(right_graph, largest, why, sizeof why), TANDEM_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        strcpy(text, right_graph);
        change(text, cases[i].from, cases[i].to);
        why[0] = 0;
        const tandem_status status = build(text, largest, why, sizeof why);
        if (status != cases[i].status)
            fail_msg("%s instead of %s: status %d, \"%s\"", cases[i].to, cases[i].from, status,
                     why);
        if (cases[i].says)
            must_say(cases[i].to, why, cases[i].says);
    }
    for (uint32_t i = 0; i < 2; i++) { /* sizes that the graph does not have */
        uint32_t sizes[2] = {512, 4};

        sizes[i]++;
        assert_int_equal(build(right_graph, sizes, why, sizeof why), TANDEM_ERROR_ARG);
        must_say("sizes", why,
                 i ? "numbers.batch is 5; it must be 1 to 4"
                   : "numbers.tokens is 513; it must be 1 to 512");
        sizes[i] = 0;
        assert_int_equal(build(right_graph, sizes, why, sizeof why), TANDEM_ERROR_ARG);
    }
    /* One more than there may be of each. */
    for (int what = 0; what < 3; what++) {
        static const char *const opening[3] = {
            "{\"version\": 1, \"tensors\": {}, \"nodes\": [], \"numbers\": {",
            "{\"version\": 1, \"nodes\": [], \"tensors\": {",
            "{\"version\": 1, \"tensors\": {}, \"nodes\": ["};
        static const char *const closing[3] = {"}}", "}}", "]}"},
                                 *const says[3] = {"numbers: more than 32",
                                                   "is one more than 64 inputs and outputs",
                                                   "nodes: more than 4096"};
        static const int most[3] = {TD_GRAPH_NUMBERS, TD_GRAPH_BINDINGS, TD_GRAPH_NODES};

        for (int more = 0; more < 2; more++) {
            char *at = many + sprintf(many, "%s", opening[what]);
            for (int i = 0; i < most[what] + more; i++)
                at += what == 0 ? sprintf(at, "%s\"n%d\": 1", i ? "," : "", i)
                      : what == 1
                          ? sprintf(at,
                                    "%s\"t%d\": {\"role\": \"input\", \"dtype\": \"F16\", "
                                    "\"shape\": [1]}",
                                    i ? "," : "", i)
                          : sprintf(at, "%s{\"operation\": \"norm\", \"views\": {}}", i ? "," : "");
            strcpy(at, closing[what]);
            assert_int_equal(build(many, NULL, why, sizeof why), TANDEM_ERROR_PROTOCOL);
            assert_int_equal(strstr(why, says[what]) != NULL, more);
        }
    }
}

/* Cut off anywhere, or with any byte changed, a text is refused with a reason, or a graph. */
static void test_broken_texts(void **state)
{
    static const uint32_t largest[2] = {512, 4};
    const size_t bytes = sizeof right_graph - 1;
    char why[400], *text = malloc(bytes + 1);
    uint32_t seed = 1, fine = 0;

    (void)state;
    for (size_t length = 0; length < bytes - 1; length++) {
        memcpy(text, right_graph, length);
        text[length] = 0;
        why[0] = 0;
        assert_int_equal(build(text, largest, why, sizeof why), TANDEM_ERROR_PROTOCOL);
        assert_true(why[0]);
    }
    for (int round = 0; round < 20000; round++) {
        memcpy(text, right_graph, bytes + 1);
        for (int i = 0; i < 1 + round % 3; i++) {
            seed = seed * 1664525u + 1013904223u;
            const char byte = (char)(seed >> 24);
            text[(seed >> 8) % bytes] =
                seed % 7 ? " 0123456789{}[]\":,*/+-abtx"[(seed >> 24) % 26] : byte;
        }
        why[0] = 0;
        const tandem_status status = build(text, largest, why, sizeof why);
        fine += status == TANDEM_OK;
        assert_true(status == TANDEM_OK ||
                    ((status == TANDEM_ERROR_PROTOCOL || status == TANDEM_ERROR_ARG) && why[0]));
    }
    assert_in_range(fine, 100, 10000);
    free(text);
}

/* Every number of an operation's struct has a name, and is no part of a view. */
static void test_fields(void **state)
{
    (void)state;
    for (uint32_t number = 1; number < 64; number++) {
        const td_operation *operation = td_operation_find(number);
        bool taken[sizeof(tandem_operands)] = {false};

        if (!operation)
            continue;
        assert_ptr_equal(td_operation_named(operation->layout.name), operation);
        for (uint32_t i = 0; i < operation->layout.view_count; i++)
            memset(taken + operation->layout.views[i].offset, true, sizeof(tandem_view));
        for (int i = 0; i < TD_MAX_FIELDS && operation->fields[i].name; i++) {
            const uint32_t at = operation->fields[i].offset;

            assert_true(at % 4 == 0 && at + 4 <= operation->layout.bytes && !taken[at]);
            memset(taken + at, true, 4);
        }
        uint32_t reserved = 0;
        for (uint32_t i = 0; i < operation->layout.bytes; i++)
            reserved += !taken[i];
        assert_in_range(reserved, 0, 16);
    }
    assert_null(td_operation_named("commit"));
}

/* As many tensors as a graph may have, each found by its name at any time, and none by another. */
static void test_names(void **state)
{
    td_graph *graph = td_graph_create();
    const char *const shape[] = {"8"};
    char name[32];

    (void)state;
    assert_non_null(graph);
    assert_int_equal(td_graph_find_tensor(graph, "w0"), UINT32_MAX);
    for (uint32_t i = 0; i < TD_GRAPH_TENSORS; i++) {
        snprintf(name, sizeof name, "w%u", i);
        assert_int_equal(td_graph_find_tensor(graph, name), UINT32_MAX);
        td_graph_add_tensor(graph, name, TD_ROLE_WEIGHT, TANDEM_DTYPE_F32, shape, 1);
        assert_int_equal(td_graph_find_tensor(graph, name), i);
        for (uint32_t of = 0; (i & (i + 1)) == 0 && of <= i; of++) { /* whenever the table is about to grow, or has */
            snprintf(name, sizeof name, "w%u", of);
            assert_int_equal(td_graph_find_tensor(graph, name), of);
        }
    }
    assert_int_equal(graph->status, TANDEM_OK);
    assert_int_equal(td_graph_find_tensor(graph, "w16383"), TD_GRAPH_TENSORS - 1);
    td_graph_add_tensor(graph, "w16384", TD_ROLE_WEIGHT, TANDEM_DTYPE_F32, shape, 1);
    assert_int_equal(graph->status, TANDEM_ERROR_ARG);
    assert_string_equal(graph->why, "tensors: more than 16384");
    td_graph_destroy(&graph);

    graph = td_graph_create(); /* small ones are no larger than they must be */
    assert_non_null(graph);
    td_graph_add_tensor(graph, "w", TD_ROLE_WEIGHT, TANDEM_DTYPE_F32, shape, 1);
    assert_in_range(td_arena_bytes(&graph->memory), 1, 8192);
    td_graph_destroy(&graph);
}

/* --- Files --- */

static void test_files(void **state)
{
    static uint16_t wqk[128 * 64];
    static float turns[512 * 32];
    static const struct {
        td_safetensors_item items[2];
        const char *says; /* NULL: it is right */
    } cases[] = {
        {{{"wqk", "F16", 2, {128, 64}, wqk}, {"turns", "F32", 2, {512, 32}, turns}}, NULL},
        {{{"wqk", "F16", 2, {128, 64}, wqk}, {"turn", "F32", 2, {512, 32}, turns}},
         "tensors[\"turns\"]: the file has no such weight"},
        {{{"wqk", "BF16", 2, {128, 64}, wqk}, {"turns", "F32", 2, {512, 32}, turns}},
         "tensors[\"wqk\"].dtype: is F16; in the file it is BF16"},
        {{{"wqk", "U8", 1, {16384}, wqk}, {"turns", "F32", 2, {512, 32}, turns}},
         "tensors[\"wqk\"].dtype: is F16; in the file it is U8"},
        {{{"wqk", "F16", 2, {64, 128}, wqk}, {"turns", "F32", 2, {512, 32}, turns}},
         "tensors[\"wqk\"].shape[0]: is 128; in the file it is 64"},
        {{{"wqk", "F16", 1, {8192}, wqk}, {"turns", "F32", 2, {512, 32}, turns}},
         "tensors[\"wqk\"].shape: has 2 dimensions; in the file it has 1"},
    };
    char path[] = "/tmp/tandem-graph-XXXXXX", why[400];
    const int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    for (size_t i = 0; i < 128 * 64; i++)
        wqk[i] = (uint16_t)i;
    for (size_t i = 0; i < 512 * 32; i++)
        turns[i] = (float)i;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const td_safetensors_text text = {TD_GRAPH_KEY, right_graph};
        td_safetensors file;
        td_graph *graph;

        assert_int_equal(
            td_safetensors_write_texts(path, &text, 1, cases[i].items, 2, why, sizeof why),
            TANDEM_OK);
        assert_int_equal(td_safetensors_open(path, &file, why, sizeof why), TANDEM_OK);
        const tandem_status status = td_graph_file_read(&file, &graph, why, sizeof why);
        if (cases[i].says) {
            assert_int_equal(status, TANDEM_ERROR_PROTOCOL);
            must_say("a file", why, cases[i].says);
            assert_null(graph);
        } else {
            const td_target cpu = td_target_for_sm(0);
            const td_program *program;
            unsigned char *weights;

            assert_int_equal(status, TANDEM_OK);
            assert_int_equal(
                td_program_build(graph, (const uint32_t[]){9, 2}, &cpu, &program, why, sizeof why),
                TANDEM_OK);
            assert_int_equal(program->weight_bytes, sizeof wqk + sizeof turns);
            weights = malloc(program->weight_bytes);
            assert_int_equal(td_graph_file_weights(&file, program, weights, why, sizeof why),
                             TANDEM_OK);
            assert_memory_equal(weights, wqk, sizeof wqk);
            assert_memory_equal(weights + sizeof wqk, turns, sizeof turns);
            free(weights);
            td_program_drop(&program);
            td_graph_destroy(&graph);
        }
        td_safetensors_close(&file);
    }
    assert_int_equal(td_safetensors_write(path, cases[0].items, 2, why, sizeof why), TANDEM_OK);
    td_safetensors file;
    td_graph *graph;
    assert_int_equal(td_safetensors_open(path, &file, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_graph_file_read(&file, &graph, why, sizeof why), TANDEM_ERROR_PROTOCOL);
    must_say("a file", why, "the file's metadata has no \"tandem.graph\"");
    td_safetensors_close(&file);
    close(fd);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expressions),  cmocka_unit_test(test_decimals),
        cmocka_unit_test(test_json),         cmocka_unit_test(test_example),
        cmocka_unit_test(test_wrong_graphs), cmocka_unit_test(test_broken_texts),
        cmocka_unit_test(test_fields),       cmocka_unit_test(test_names),
        cmocka_unit_test(test_files),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
