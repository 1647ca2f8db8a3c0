/* Models' files as networks: what is wrong with one is said where, and one without a graph is none.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/plugin/network/rig.h"

/* The graph with its first `from` as `to`. */
static char *changed(const char *from, const char *to)
{
    const char *at = strstr(network_text, from);
    const size_t before = (size_t)(at - network_text);
    char *text = malloc(strlen(network_text) + strlen(to) + 1);

    assert_non_null(at);
    assert_non_null(text);
    memcpy(text, network_text, before);
    strcpy(text + before, to);
    strcat(text, at + strlen(from));
    return text;
}

/* One of each kind: of the text, its members, names, shapes, order, and the file beside it. */
static void test_bad_files(void **state)
{
    static const struct {
        const char *from, *to, *says;
    } kinds[] = {
        {"{\"version\"", "[\"version\"", "1"},
        {"\"version\": 1", "\"version\": 2", "version: is 2; it must be 1"},
        {"\"version\": 1, ", "", "the graph: lacks \"version\""},
        {"\"numbers\"", "\"digits\"", "has a member \"digits\""},
        {"{\"rows\": 64}", "{\"rows\": 0}", "numbers.rows: the most is 0"},
        {"{\"rows\": 64}", "{\"rows\": \"x\"}", "numbers.rows: is a string"},
        {"\"role\": \"input\"", "\"role\": \"inputs\"", "tensors[\"x\"].role: \"inputs\" is none"},
        {"\"dtype\": \"F32\"", "\"dtype\": \"F31\"", "tensors[\"x\"].dtype: \"F31\" is none"},
        {"\"rows\", 8]", "\"lines\", 8]", "tensors[\"x\"].shape[0]"},
        {"\"rows\", 8]", "1, 1, 1, \"rows\", 8]", "tensors[\"x\"].shape[4]"},
        {"\"role\": \"weight\", \"dtype\": \"F32\", \"shape\": [1, 8]",
         "\"role\": \"weight\", \"dtype\": \"F32\", \"shape\": [1, 9]",
         "tensors[\"w\"].shape[1]: is 9; in the file it is 8"},
        {"\"role\": \"weight\", \"dtype\": \"F32\"", "\"role\": \"weight\", \"dtype\": \"F16\"",
         "tensors[\"w\"].dtype: is F16; in the file it is F32"},
        {"\"role\": \"weight\", \"dtype\": \"F32\", \"shape\": [1, 8]",
         "\"role\": \"weight\", \"dtype\": \"F32\", \"shape\": [1, \"rows\"]", "tensors[\"w\"]"},
        {"\"w\": {", "\"v\": {", "nodes[0].views.b: no tensor \"w\""},
        {"\"operation\": \"binary\"", "\"operation\": \"unary\"",
         "nodes[0].operation: \"unary\" is none"},
        {"\"kind\": 1", "\"sort\": 1", "nodes[0]"},
        {"\"a\": \"x\"", "\"c\": \"x\"", "nodes[0].views: binary has no view \"c\""},
        {"\"a\": \"x\"", "\"a\": \"mean\"", "nodes[0].views.a"},
        {"\"y\": \"mean\"}", "\"y\": \"x\"}", "nodes[1].views.y"},
        {"\"y\": \"sum\"}", "\"y\": \"y\"}", "nodes[3].views.y"},
    };
    tandem_model model = 1;
    rig r;

    (void)state;
    open_session(&r);
    const int live = atomic_load(&r.live);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char *text = changed(kinds[i].from, kinds[i].to);
        const char *path = network_file(text);

        REFUSED(&r, PROTOCOL, kinds[i].says, tandem_model_load(r.s, path, &model));
        assert_non_null(strstr(r.last, path));
        assert_int_equal(model, 0);
        assert_int_equal(atomic_load(&r.live), live);
        free(text);
    }
    close_rig(&r);
}

/* What only some numbers, or a device, cannot have is told when they are prepared. */
static void test_bad_numbers(void **state)
{
    static const struct {
        const char *from, *to, *says;
        uint32_t rows;
    } kinds[] = {
        {"\"rows\", 8]", "\"rows - 4\", 8]", "tensors[\"x\"].shape[0]: \"rows - 4\" is -1", 3},
        {"\"tensor\": \"w\"", "\"tensor\": \"w\", \"offset\": \"rows * 8\"",
         "nodes[0].views.b", 2},
    };

    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char *text = changed(kinds[i].from, kinds[i].to);
        rig r;

        open_session(&r);
        must(&r, tandem_model_load(r.s, network_file(text), &r.model));
        r.instance = new_instance(&r, NULL);
        const int live = atomic_load(&r.live);
        REFUSED(&r, ARG, kinds[i].says, tandem_model_prepare(r.s, r.instance, &kinds[i].rows, 1));
        assert_int_equal(atomic_load(&r.live), live);
        close_rig(&r);
        free(text);
    }
}

static void test_without_graph(void **state)
{
    const tandem_instance_desc desc = {.struct_bytes = sizeof desc};
    tandem_network network = {.struct_bytes = sizeof network, .binding_count = 5};
    tandem_network_number number = {.struct_bytes = sizeof number};
    tandem_instance instance;
    tandem_view view;
    uint64_t shape[4];
    rig r;

    (void)state;
    open_session(&r);
    must(&r, tandem_model_load(r.s, network_file(NULL), &r.model));
    must(&r, tandem_model_info(r.s, r.model, &network));
    assert_int_equal(network.binding_count + network.number_count + network.uniform_count, 0);
    REFUSED(&r, ARG, "whose file has no graph",
            tandem_model_instance(r.s, r.model, &desc, &instance));
    REFUSED(&r, ARG, "whose file has no graph", tandem_model_number(r.s, r.model, 0, &number));
    must(&r, tandem_model_tensor(r.s, r.model, "w", &view, shape));
    close_rig(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_bad_files),
    cmocka_unit_test(test_bad_numbers),
    cmocka_unit_test(test_without_graph),
};
const test_cases network_files_cases = TEST_CASES(tests);
