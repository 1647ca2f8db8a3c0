/* Precision plans: what they do to a program, and what is wrong with one, which is said of the place where it is.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/model/graph_file.h"
#include "kernels/model/precision_plan.h"

/* Two layers, with a sum between them. */
#define ATTENTION(q, o, precision)                                                                 \
    "{\"operation\": \"attention\", \"batch\": 1, \"heads\": 2, \"kv_heads\": 2, \"q_len\": \"n\"," \
    " \"kv_len\": \"n\", \"head_dim\": 32, \"precision\": " precision ", \"views\": {\"q\": \"" q   \
    "\", \"k\": \"" q "\", \"v\": \"" q "\", \"o\": \"" o "\"}}"
#define TENSOR(name, role)                                                                         \
    "\"" name "\": {\"role\": \"" role "\", \"dtype\": \"F16\", \"shape\": [1, 2, \"n\", 32]}"
static const char graph_text[] =
    "{\"version\": 1, \"numbers\": {\"n\": 256}, \"tensors\": {" TENSOR("x", "input") "," TENSOR(
        "a", "temporary") "," TENSOR("b", "temporary") "," TENSOR("y", "output") "}, \"nodes\": [" ATTENTION("x", "a", "1")
    ", {\"operation\": \"binary\", \"batch\": 1, \"heads\": 2, \"rows\": \"n\", \"channels\": 32, \"views\": "
    "{\"a\": \"x\", \"b\": \"a\", \"y\": \"b\"}}, " ATTENTION("b", "y", "2") "]}";

static td_graph *make_graph(void)
{
    char why[400] = "";
    td_graph *graph;

    if (td_graph_read(graph_text, strlen(graph_text), &graph, why, sizeof why) != TANDEM_OK)
        fail_msg("%s", why);
    return graph;
}

static const char plan_text[] =
    "{\"tandem\": \"precision plan\", \"version\": 1, \"min_similarity\": 0.999, \"at_most_ms\": 1.5, \"ms\": 1,\n"
    " \"layers\": [{\"node\": 2, \"output\": \"y\", \"precision\": \"4b\", \"similarity\": 0.9991, \"cosine\": 1,\n"
    "  \"relative_l1\": 1e-3, \"worst_head\": 1, \"worst_similarity\": 0.9}]}";

static void test_right(void **state)
{
    td_graph *graph = make_graph();
    uint8_t precisions[3] = {7, 7, 7};
    char why[400] = "";

    (void)state;
    assert_int_equal(td_precision_plan_read(plan_text, strlen(plan_text), graph, precisions, why, sizeof why), TANDEM_OK);
    assert_int_equal(precisions[0], TANDEM_PRECISION_AUTO);
    assert_int_equal(precisions[1], TANDEM_PRECISION_AUTO);
    assert_int_equal(precisions[2], TANDEM_PRECISION_4B);
    assert_string_equal(td_graph_layer_name(graph, 0), "a");
    assert_null(td_graph_layer_name(graph, 1));
    assert_null(td_graph_layer_name(graph, 3));
    td_graph_destroy(&graph);
}

/* The plan with one thing in it replaced. */
static void test_wrong(void **state)
{
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"precision plan", "plan", "tandem: is \"plan\"; it must be \"precision plan\""},
        {"\"version\": 1", "\"version\": 2", "version: is 2; it must be 1"},
        {"\"version\": 1", "\"version\": \"1\"", "version: is a string; it must be a number"},
        {"\"version\": 1, ", "", "the plan: lacks \"version\""},
        {"\"min_similarity\": 0.999", "\"min_similarity\": null", "min_similarity: is null; it must be a number"},
        {"\"ms\": 1", "\"seconds\": 1", "the plan: has a member \"seconds\", which no such object has"},
        {"\"ms\": 1", "\"version\": 1", "the plan.version: is there twice"},
        {"\"layers\": [", "\"layers\": {\"a\":", "line 3: a comma is missing"},
        {"[{\"node\"", "[[], {\"node\"", "layers[0]: is an array; it must be an object"},
        {"\"node\": 2", "\"node\": 3", "layers[0].node: is 3; the graph has 3 nodes"},
        {"\"node\": 2", "\"node\": 99999999999999999999999", "layers[0].node: is 99999999999999999999999; the graph has 3 nodes"},
        {"\"node\": 2", "\"node\": -1", "layers[0].node: is -1; it must be a whole number"},
        {"\"node\": 2", "\"node\": 2.0", "layers[0].node: is 2.0; it must be a whole number"},
        {"\"node\": 2", "\"node\": \"2\"", "layers[0].node: is a string; it must be a number"},
        {"\"node\": 2", "\"node\": 1", "layers[0].node: is 1, which is of binary and has no precision"},
        {"\"node\": 2", "\"node\": 0", "layers[0].output: is \"y\"; nodes[0] writes \"a\""},
        {"\"output\": \"y\", ", "", "layers[0]: lacks \"output\""},
        {"\"4b\"", "\"auto\"", "layers[0].precision: is \"auto\"; it must be f16, 8b or 4b"},
        {"\"4b\"", "3", "layers[0].precision: is a number; it must be a string"},
        {"\"cosine\": 1", "\"cosine\": \"1\"", "layers[0].cosine: is a string; it must be a number"},
        {"0.9}]}", "0.9}, {\"node\": 2, \"output\": \"y\", \"precision\": \"8b\"}]}", "layers[1].node: 2 is there twice"},
        {"0.9}]}", "0.9}]", "line 3: a bracket is missing"},
        {"0.9}]}", "0.9}]} x", "line 3: something behind its end"},
    };
    td_graph *graph = make_graph();
    uint8_t precisions[3];
    char why[400], text[1000];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *at = strstr(plan_text, cases[i].from);

        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - plan_text), plan_text, cases[i].to, at + strlen(cases[i].from));
        why[0] = 0;
        assert_int_equal(td_precision_plan_read(text, strlen(text), graph, precisions, why, sizeof why), TANDEM_ERROR_PROTOCOL);
        if (strcmp(why, cases[i].says) != 0)
            fail_msg("\"%s\" is not \"%s\"", why, cases[i].says);
    }
    td_graph_destroy(&graph);
}

/* Whatever a byte of it becomes, and wherever it ends: it is a plan or it is refused, with a reason. */
static void test_any_byte(void **state)
{
    static const char bytes[] = "\"{}[],:0-9e.\\\x01\xff";
    td_graph *graph = make_graph();
    const size_t length = strlen(plan_text);
    char why[400], text[sizeof plan_text];
    uint8_t precisions[3];

    (void)state;
    for (size_t at = 0; at < length; at++)
        for (size_t i = 0; i < sizeof bytes; i++) { /* the last: it ends there */
            const bool ends = i == sizeof bytes - 1;

            memcpy(text, plan_text, sizeof text);
            text[at] = bytes[i];
            why[0] = 0;
            if (td_precision_plan_read(text, ends ? at : length, graph, precisions, why, sizeof why) == TANDEM_OK)
                for (int node = 0; node < 3; node++)
                    assert_in_range(precisions[node], 0, TANDEM_PRECISION_4B);
            else
                assert_true(why[0]);
        }
    td_graph_destroy(&graph);
}

static const td_program *build(const td_graph *graph, const uint8_t *precisions, uint32_t precision)
{
    td_target target = td_target_for_sm(0);
    const td_program *program;
    const uint32_t n = 200;
    char why[400] = "";

    target.node_precisions = precisions;
    target.precision = precision;
    if (td_program_build(graph, &n, &target, &program, why, sizeof why) != TANDEM_OK)
        fail_msg("%s", why);
    return program;
}

/* A layer that the plan names has its precision; others have the instance's, or the graph's own. */
static void test_program(void **state)
{
    static const struct {
        uint8_t planned[3];
        uint32_t precision, is[2];
    } cases[] = {{{0, 0, 0}, 0, {1, 2}}, {{3, 0, 2}, 0, {3, 2}}, {{0, 0, 1}, 3, {3, 1}}, {{2, 3, 3}, 1, {2, 3}}};
    td_graph *graph = make_graph();

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const td_program *program = build(graph, cases[i].planned, cases[i].precision);

        assert_int_equal(program->nodes[0].precision, cases[i].is[0]);
        assert_int_equal(program->nodes[1].precision, TANDEM_PRECISION_AUTO);
        assert_int_equal(program->nodes[2].precision, cases[i].is[1]);
        td_program_drop(&program);
    }
    td_graph_destroy(&graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_right), cmocka_unit_test(test_wrong), cmocka_unit_test(test_any_byte),
                                       cmocka_unit_test(test_program)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
