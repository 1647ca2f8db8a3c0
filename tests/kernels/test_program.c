/* Programs: a transformer's encoder from a file, computed on the CPU, against float64 and against
 * its nodes one by one; state, caches, uniforms, commits; and for GPUs that records, barriers, shared
 * scratch and patches are right.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/program/encoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/model/graph_file.h"
#include "tests/kernels/attention_util.h"

/* --- Runs --- */

/* A program's blocks, all poisoned but weights, and the addresses of its views. */
typedef struct run {
    const td_program *program;
    void *blocks[TD_PROGRAM_BINDINGS], *scratch, *bindings[TD_GRAPH_BINDINGS];
    uint64_t views[TD_PROGRAM_VIEWS];
} run;

static run new_run(const td_graph *graph, const td_safetensors *file, const uint32_t *numbers,
                   bool commit)
{
    td_target cpu = td_target_for_sm(0);
    char why[400] = "";
    run r = {0};

    cpu.commit = commit;
    program_must(td_program_build(graph, numbers, &cpu, &r.program, why, sizeof why), why);
    const uint64_t bytes[] = {r.program->weight_bytes, r.program->state_bytes,
                              r.program->uniform_bytes};
    for (int i = 0; i < TD_PROGRAM_BINDINGS; i++)
        r.views[i] = (uintptr_t)(r.blocks[i] = program_memory(bytes[i]));
    for (uint32_t i = 0; i < r.program->binding_count; i++)
        r.views[TD_PROGRAM_BINDINGS + i] =
            (uintptr_t)(r.bindings[i] =
                            program_memory(r.program->tensors[r.program->bindings[i]].bytes));
    r.scratch = program_memory(r.program->plan->scratch_bytes);
    if (file)
        program_must(
            td_graph_file_weights(file, r.program, r.blocks[TD_PROGRAM_WEIGHTS], why, sizeof why),
            why);
    memset(r.blocks[TD_PROGRAM_STATE], 0, r.program->state_bytes);
    return r;
}

/* Where a tensor is that is no temporary. */
static void *address_of(const run *r, const char *name)
{
    for (uint32_t i = 0; i < r->program->tensor_count; i++) {
        const td_program_tensor *t = &r->program->tensors[i];

        if (!strcmp(t->name, name))
            return (void *)(uintptr_t)(r->views[t->view] + t->offset);
    }
    fail_msg("there is no tensor %s", name);
    return NULL;
}

static void compute(run *r, td_control *control)
{
    memset(r->scratch, 0xff, r->program->plan->scratch_bytes);
    assert_int_equal(td_exec_cpu_run(r->program->plan, r->views, (uintptr_t)r->scratch, 2, control),
                     TANDEM_OK);
}

static void end_run(run *r)
{
    for (int i = 0; i < TD_PROGRAM_BINDINGS; i++)
        free(r->blocks[i]);
    for (uint32_t i = 0; i < r->program->binding_count; i++)
        free(r->bindings[i]);
    free(r->scratch);
    td_program_drop(&r->program);
}

/* Random tokens and lengths for a run of the encoder, and where they are. */
static sizes fill(const run *r, uint32_t batch, uint32_t tokens, uint32_t *seed)
{
    const sizes s = {.batch = batch,
                     .tokens = tokens,
                     .rows = batch * tokens,
                     .ids = address_of(r, "ids"),
                     .lengths = address_of(r, "lengths"),
                     .places = address_of(r, "places")};

    for (uint32_t i = 0; i < s.rows; i++)
        s.ids[i] = (int32_t)((program_random(seed) + 1) / 2 * TOKENS);
    for (uint32_t i = 0; i < batch; i++)
        s.lengths[i] = 1 + (int32_t)((program_random(seed) + 1) / 2 * (float)tokens);
    for (uint32_t i = 0; i < tokens; i++)
        s.places[i] = (int32_t)i;
    return s;
}

/* How far a sequence of a run is from float64: its rows, and their mean. */
static double distance(const sizes *s, uint32_t sequence, const float *out, const float *mean)
{
    static double exact[MOST * DIM];
    const int32_t length = s->lengths[sequence];
    double worst = 0, exact_mean[DIM] = {0};

    encoder_exactly(s->tokens, s->ids + sequence * s->tokens, exact);
    out += sequence * s->tokens * DIM;
    for (uint32_t i = 0; i < s->tokens * DIM; i++) {
        worst = fmax(worst, fabs(exact[i] - (double)out[i]));
        exact_mean[i % DIM] += (int32_t)(i / DIM) < length ? exact[i] / length : 0;
    }
    for (int i = 0; i < DIM; i++)
        worst = fmax(worst, fabs(exact_mean[i] - (double)mean[sequence * DIM + i]));
    return worst;
}

static void test_encoder(void **state)
{
    static const uint32_t counts[] = {1, 63, 64, 65};
    td_safetensors file;
    td_graph *graph = encoder_graph(&file);
    double worst = 0;
    uint32_t seed = 5;

    (void)state;
    for (int n = 0; n < 16; n++) {
        const uint32_t numbers[2] = {counts[n / 4], counts[n % 4]};
        run r = new_run(graph, &file, numbers, n % 3 == 0);
        const sizes s = fill(&r, numbers[0], numbers[1], &seed);
        const size_t out_bytes = s.rows * DIM * 4, mean_bytes = s.batch * DIM * 4;
        float *expected = program_memory(out_bytes), *expected_mean = program_memory(mean_bytes);
        float *out = address_of(&r, "out"), *mean = address_of(&r, "mean");

        encoder_nodes(s, expected, expected_mean);
        compute(&r, NULL);
        assert_memory_equal(out, expected, out_bytes);
        assert_memory_equal(mean, expected_mean, mean_bytes);
        worst = fmax(worst, distance(&s, 0, out, mean));
        worst = fmax(worst, distance(&s, s.batch - 1, out, mean));
        free(expected);
        free(expected_mean);
        end_run(&r);
    }
    print_message("at most %.5f from float64\n", worst);
    assert_true(worst < 0.01);
    td_graph_destroy(&graph);
    td_safetensors_close(&file);
}

/* Written wholly, or not at all where the run is given up. */
static void test_commit(void **state)
{
    td_safetensors file;
    td_graph *graph = encoder_graph(&file);
    run r = new_run(graph, &file, (const uint32_t[]){3, 7}, true);
    float *out = address_of(&r, "out"), poison[3 * 7 * DIM];
    td_control control = {.stale = 1};
    uint32_t seed = 1;

    (void)state;
    memset(poison, 0xff, sizeof poison);
    fill(&r, 3, 7, &seed);
    assert_true(r.program->claims);
    compute(&r, &control);
    assert_int_equal(control.verdict, TD_VERDICT_GIVEN_UP);
    assert_memory_equal(out, poison, sizeof poison);
    assert_memory_equal(address_of(&r, "mean"), poison, 3 * DIM * 4);
    memset(&control, 0, sizeof control);
    compute(&r, &control);
    assert_int_equal(control.verdict, TD_VERDICT_COMMITTED);
    for (size_t i = 0; i < 3 * 7 * DIM; i++)
        assert_true(isfinite(out[i]));
    end_run(&r);
    td_graph_destroy(&graph);
    td_safetensors_close(&file);
}

/* --- State and uniforms --- */

static td_graph *graph_of(const char *text)
{
    char why[400] = "";
    td_graph *graph;

    program_must(td_graph_read(text, strlen(text), &graph, why, sizeof why), why);
    return graph;
}

/* `sum` adds up what came; one node reads what it was, one what it is. The rows of x are turned by
 * their positions. */
static const char sums_text[] =
    "{\"version\": 1, \"numbers\": {\"rows\": 65}, \"tensors\": {"
    "\"x\": {\"role\": \"input\", \"dtype\": \"F16\", \"shape\": [\"rows\", 32]},"
    "\"w\": {\"role\": \"weight\", \"dtype\": \"F16\", \"shape\": [32, 32]},"
    "\"turns\": {\"role\": \"weight\", \"dtype\": \"F32\", \"shape\": [100, 32]},"
    "\"before\": {\"role\": \"uniform\", \"dtype\": \"I32\", \"shape\": [3]},"
    "\"at\": {\"role\": \"uniform\", \"dtype\": \"I32\", \"shape\": [\"rows\"]},"
    "\"sum\": {\"role\": \"state\", \"dtype\": \"F16\", \"shape\": [65, 32]},"
    "\"count\": {\"role\": \"state\", \"dtype\": \"F16\", \"shape\": [1, 32]},"
    "\"turned\": {\"role\": \"output\", \"dtype\": \"F16\", \"shape\": [\"rows\", 32]},"
    "\"other\": {\"role\": \"temporary\", \"dtype\": \"F16\", \"shape\": [3, 32]},"
    "\"now\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [65, 32]},"
    "\"was\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [65, 32]},"
    "\"is\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [65, 32]}}, \"nodes\": ["
    "{\"operation\": \"linear\", \"rows\": 3, \"ins\": 32, \"outs\": 32, \"positions\": 100, "
    "\"head_dim\": 32, \"rotated_channels\": 32, \"rotated_heads\": 1,"
    " \"views\": {\"x\": {\"tensor\": \"w\", \"offset\": 32}, \"w\": \"w\", \"rotation\": "
    "\"turns\", \"position\": \"before\", \"y\": \"other\"}},"
    "{\"operation\": \"linear\", \"rows\": \"rows\", \"ins\": 32, \"outs\": 32, \"positions\": "
    "100, \"head_dim\": 32, \"rotated_channels\": 32, \"rotated_heads\": 1,"
    " \"views\": {\"x\": \"x\", \"w\": \"w\", \"rotation\": \"turns\", \"position\": \"at\", "
    "\"y\": \"turned\"}},"
    "{\"operation\": \"norm\", \"batch\": 1, \"heads\": 1, \"rows\": 65, \"channels\": 32, "
    "\"views\": {\"x\": \"sum\", \"y\": \"was\"}},"
    "{\"operation\": \"norm\", \"batch\": 1, \"heads\": 1, \"rows\": 65, \"channels\": 32,"
    " \"views\": {\"x\": {\"tensor\": \"w\", \"strides\": [0, 0, 0]}, \"residual\": \"sum\", "
    "\"y\": \"now\", \"sum\": \"sum\"}},"
    "{\"operation\": \"norm\", \"batch\": 1, \"heads\": 1, \"rows\": 65, \"channels\": 32, "
    "\"views\": {\"x\": \"sum\", \"y\": \"is\"}},"
    "{\"operation\": \"norm\", \"batch\": 1, \"heads\": 1, \"rows\": 1, \"channels\": 32, "
    "\"views\": {\"x\": \"count\", \"y\": \"count\"}}]}";

static void test_state(void **state)
{
    enum { ROWS = 5, SUM = 65 * 32 };
    td_graph *graph = graph_of(sums_text);
    run r = new_run(graph, NULL, (const uint32_t[]){ROWS}, false);
    uint16_t *x = address_of(&r, "x"), *turned = address_of(&r, "turned"), *w = address_of(&r, "w");
    uint16_t *sum = address_of(&r, "sum"), first_row[32];
    const float *now = address_of(&r, "now"), *was = address_of(&r, "was"),
                *is = address_of(&r, "is");
    float *turns = address_of(&r, "turns"), last[SUM];
    int32_t *at = address_of(&r, "at"), *before = address_of(&r, "before");
    uint32_t seed = 3;

    (void)state;
    assert_true(r.program->claims && r.program->binding_count == 5);
    for (uint32_t i = 0; i < r.program->tensor_count; i++)
        assert_true(r.program->tensors[i].offset % TD_PROGRAM_ALIGN == 0);
    memset(before, 0, 3 * sizeof *before);
    for (int i = 0; i < 32 * 32; i++)
        w[i] = td_to_f16(i % 33 == 0); /* y is x, turned */
    for (int i = 0; i < 32; i++)       /* w's first row is added in each run */
        first_row[i] = w[i] = td_to_f16(i == 0 ? 1 : 0);
    for (int i = 0; i < 100 * 32; i++)
        turns[i] = i % 2 ? 0 : (float)(i / 32); /* a row is multiplied by its position */
    for (int i = 0; i < ROWS * 32; i++)
        x[i] = td_to_f16(program_random(&seed));
    for (int turn = 1; turn <= 4; turn++) {
        const bool given_up = turn == 3;
        td_control control = {.stale = given_up};

        for (int i = 0; i < ROWS; i++)
            at[i] = turn * i;
        memcpy(last, is, sizeof last);
        compute(&r, turn == 1 ? NULL : &control);
        for (int i = 0; i < ROWS * 32; i++)
            assert_true(td_from_f16(turned[i]) ==
                        td_from_f16(td_to_f16(td_from_f16(x[i]) * (float)(turn * (i / 32)))));
        const int runs = turn - (turn >= 3); /* that were not given up */
        for (int i = 0; i < SUM; i++)
            assert_true(td_from_f16(sum[i]) == (float)runs * td_from_f16(first_row[i % 32]));
        assert_memory_equal(now, is, sizeof last);
        if (turn == 2 || turn == 3) /* what the last run left */
            assert_memory_equal(was, last, sizeof last);
    }
    end_run(&r);
    td_graph_destroy(&graph);
}

/* --- Caches --- */

/* Rows are queries, and keys and values of a cache, too. */
static const char cache_text[] =
    "{\"version\": 1, \"numbers\": {\"tokens\": 8}, \"tensors\": {"
    "\"x\": {\"role\": \"input\", \"dtype\": \"F16\", \"shape\": [\"tokens\", 64]},"
    "\"at\": {\"role\": \"uniform\", \"dtype\": \"I32\", \"shape\": [\"tokens\"]},"
    "\"kv\": {\"role\": \"cache\", \"dtype\": \"F16\", \"shape\": [2, 16, 32]},"
    "\"o\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [\"tokens\", 32]}}, \"nodes\": ["
    "{\"operation\": \"scatter\", \"batch\": 1, \"heads\": 2, \"rows\": \"tokens\", "
    "\"channels\": 32, \"entries\": 16, \"views\": {"
    "\"x\": {\"tensor\": \"x\", \"strides\": [0, 32, 64]}, \"position\": \"at\", \"y\": \"kv\"}},"
    "{\"operation\": \"attention\", \"batch\": 1, \"heads\": 1, \"kv_heads\": 1, "
    "\"q_len\": \"tokens\", \"kv_len\": 16, \"head_dim\": 32, \"precision\": 1, \"views\": {"
    "\"q\": {\"tensor\": \"x\", \"strides\": [0, 32, 64]},"
    "\"k\": {\"tensor\": \"kv\", \"strides\": [0, 512, 32]},"
    "\"v\": {\"tensor\": \"kv\", \"offset\": 512, \"strides\": [0, 512, 32]},"
    "\"position\": \"at\", \"o\": \"o\"}}]}";

/* Rows from `first` on, as many as the program has. */
static void compute_rows(run *r, const uint16_t *x, uint32_t first, uint32_t tokens)
{
    int32_t *at = address_of(r, "at");

    for (uint32_t i = 0; i < tokens; i++)
        at[i] = (int32_t)(first + i);
    memcpy(address_of(r, "x"), x + first * 64, tokens * 64 * sizeof *x);
    compute(r, NULL);
}

/* One row after the other has what all at once have, also where a run is done twice, the first time
 * with other rows, and where there are rows in the cache that nobody counts. */
static void test_cache(void **state)
{
    enum { ROWS = 8 };
    td_graph *graph = graph_of(cache_text);
    run all = new_run(graph, NULL, (const uint32_t[]){ROWS}, true);
    run one = new_run(graph, NULL, (const uint32_t[]){1}, false);
    uint16_t x[ROWS * 64], other[ROWS * 64];
    uint32_t seed = 5;

    (void)state;
    assert_true(all.program->claims && !one.program->claims); /* an output is drafted, no cache */
    assert_int_equal(all.program->state_bytes, 2 * 16 * 32 * sizeof *x);
    for (int i = 0; i < ROWS * 64; i++) {
        x[i] = td_to_f16(program_random(&seed));
        other[i] = td_to_f16(program_random(&seed));
    }
    memset(one.blocks[TD_PROGRAM_STATE], 0x7e, one.program->state_bytes); /* NaNs */
    compute_rows(&all, x, 0, ROWS);
    for (uint32_t row = 0; row < ROWS; row++) {
        if (row % 3 == 1)
            compute_rows(&one, other, row, 1);
        compute_rows(&one, x, row, 1);
        assert_memory_equal(address_of(&one, "o"), (float *)address_of(&all, "o") + row * 32,
                            32 * sizeof(float));
    }
    end_run(&all);
    end_run(&one);
    td_graph_destroy(&graph);
}

static void check_same(const td_program *a, const td_program *b)
{
    assert_true(a->plan->record_count == b->plan->record_count &&
                a->plan->scratch_bytes == b->plan->scratch_bytes);
    assert_true(a->plan->view_count == b->plan->view_count && a->weight_bytes == b->weight_bytes);
    assert_true(a->state_bytes == b->state_bytes && a->uniform_bytes == b->uniform_bytes &&
                a->chain == b->chain);
    for (uint32_t i = 0; i < a->plan->record_count; i++)
        assert_true(tu_same_record(&a->plan->records[i], &b->plan->records[i]));
    assert_int_equal(a->patch_count, b->patch_count);
    assert_memory_equal(a->patches, b->patches, a->patch_count * sizeof *a->patches);
    assert_memory_equal(a->nodes, b->nodes, a->node_count * sizeof *a->nodes);
}

/* Tensors by themselves are as a program has them: weights and state for any numbers, others for
 * the same ones. */
static void test_tensors(void **state)
{
    td_graph *graph = graph_of(sums_text);
    const td_target cpu = td_target_for_sm(0);
    const uint32_t numbers[] = {7}, too_many[] = {66};
    td_program_tensor *tensors = program_memory(graph->tensor_count * sizeof *tensors);
    const td_program *program;
    char why[400] = "";

    (void)state;
    program_must(td_program_build(graph, numbers, &cpu, &program, why, sizeof why), why);
    for (uint32_t role = 0; role < TD_ROLES; role++) {
        const bool alone = role == TD_ROLE_WEIGHT || role == TD_ROLE_STATE;

        program_must(td_program_tensors(graph, alone ? NULL : numbers, 1u << role, tensors, why,
                                        sizeof why),
                     why);
        for (uint32_t i = 0; i < graph->tensor_count; i++) {
            const td_program_tensor *is = &tensors[i], *was = &program->tensors[i];

            if (was->role != role) {
                assert_null(is->name);
                continue;
            }
            assert_string_equal(is->name, was->name);
            assert_memory_equal(is->shape, was->shape, sizeof is->shape);
            assert_true(is->dtype == was->dtype && is->bytes == was->bytes &&
                        is->offset == was->offset);
        }
    }
    assert_int_equal(td_program_tensors(graph, too_many, 1u << TD_ROLE_INPUT, tensors, why,
                                        sizeof why),
                     TANDEM_ERROR_ARG);
    assert_non_null(strstr(why, "numbers.rows is 66"));
    td_program_drop(&program);
    td_graph_destroy(&graph);
    free(tensors);
}

static bool has_kernel(const td_program *program, const char *name)
{
    bool has = false;

    for (uint32_t i = 0; i < program->plan->record_count; i++)
        has = has || strstr(program->plan->records[i].kernel->name, name);
    return has;
}

/* One precision for all nodes that have one, in place of the graph's. */
static void test_precision(void **state)
{
    const uint32_t numbers[] = {1, 64};
    td_target target = td_target_for_stream(90);
    td_safetensors file;
    td_graph *graph = encoder_graph(&file);
    const td_program *as_graph, *as_asked;
    char why[400] = "";

    (void)state;
    target.twin = true;
    program_must(td_program_build(graph, numbers, &target, &as_graph, why, sizeof why), why);
    target.precision = TANDEM_PRECISION_F16;
    program_must(td_program_build(graph, numbers, &target, &as_asked, why, sizeof why), why);
    check_same(as_graph, as_asked); /* the graph says f16 */
    td_program_drop(&as_asked);
    target.precision = TANDEM_PRECISION_8B;
    program_must(td_program_build(graph, numbers, &target, &as_asked, why, sizeof why), why);
    assert_false(has_kernel(as_graph, "8b"));
    assert_true(has_kernel(as_asked, "8b"));
    td_program_drop(&as_asked);
    td_program_drop(&as_graph);
    td_graph_destroy(&graph);
    td_safetensors_close(&file);
}


/* --- Programs for GPUs --- */

static uint64_t bytes_of(const td_program *p, uint32_t base, uint32_t view)
{
    const uint64_t blocks[] = {p->weight_bytes, p->state_bytes, p->uniform_bytes};

    if (base == TD_BASE_SCRATCH)
        return p->plan->scratch_bytes;
    assert_int_equal(base, TD_BASE_VIEW);
    assert_in_range(view, 0, TD_PROGRAM_BINDINGS + p->binding_count - 1);
    return view < TD_PROGRAM_BINDINGS ? blocks[view]
                                      : p->tensors[p->bindings[view - TD_PROGRAM_BINDINGS]].bytes;
}

static void check_bounds(const td_program *p)
{
    char why[300] = "";

    program_must(td_plan_check(p->plan, why, sizeof why), why);
    for (uint32_t i = 0; i < p->plan->record_count; i++) {
        const td_record *r = &p->plan->records[i];

        for (uint32_t j = 0; j < r->reloc_count; j++)
            if (r->relocs[j].base != TD_BASE_CONTROL)
                assert_true(r->relocs[j].addend <
                            bytes_of(p, r->relocs[j].base, r->relocs[j].view));
        for (uint32_t j = 0; j < r->read_count + r->write_count; j++) {
            const td_range *range =
                j < r->read_count ? &r->reads[j] : &r->writes[j - r->read_count];

            assert_true(range->begin_bytes < range->end_bytes &&
                        range->end_bytes <= bytes_of(p, range->base, range->view));
        }
    }
}

static bool touch(const td_range *a, uint32_t a_count, const td_range *b, uint32_t b_count)
{
    for (uint32_t i = 0; i < a_count * b_count; i++) {
        const td_range *x = &a[i / b_count], *y = &b[i % b_count];

        if (x->base == y->base && x->view == y->view && x->begin_bytes < y->end_bytes &&
            y->begin_bytes < x->end_bytes)
            return true;
    }
    return false;
}

/* Between any two records that meet there is a barrier that is strong enough. */
static void check_order(const td_plan *p)
{
    for (uint32_t j = 0; j < p->record_count; j++) {
        uint32_t strongest = TD_BARRIER_NONE;

        for (uint32_t i = j; i-- > 0;) {
            const td_record *a = &p->records[i], *b = &p->records[j];

            if (p->records[i + 1].barrier < strongest)
                strongest = p->records[i + 1].barrier;
            assert_false(strongest > TD_BARRIER_DATA &&
                         (touch(a->writes, a->write_count, b->reads, b->read_count) ||
                          touch(a->writes, a->write_count, b->writes, b->write_count)));
            assert_false(strongest > TD_BARRIER_ORDER &&
                         touch(a->reads, a->read_count, b->writes, b->write_count));
        }
    }
}

static uint32_t node_of(const td_program *p, uint32_t record)
{
    uint32_t node = 0;

    while (node < p->node_count &&
           record >= p->nodes[node].first_record + p->nodes[node].record_count)
        node++;
    return record < p->nodes[0].first_record ? UINT32_MAX : node; /* node_count: the end of the program, that: its begin */
}

/* Whether what a node does is in another's record: its own, or that of the one behind it that it was joined with. */
static bool is_in(const td_program *p, uint32_t node, uint32_t with_record)
{
    while (node < with_record && p->nodes[node].record_count == 0)
        node++;
    return node == with_record;
}

/* Whether a node may read in scratch what another has written: itself, or one whose tensor it has, or one that was joined with it.
 * The end reads all; the begin has copied uniforms. */
static bool may_read(const td_graph *graph, const td_program *p, uint32_t reader, uint32_t writer)
{
    if (reader == writer || reader == graph->node_count)
        return true;
    for (uint32_t node = reader + 1; node-- > 0 && is_in(p, node, reader);)
        for (uint32_t i = 0; i < graph->nodes[node].view_count; i++) {
            const td_graph_tensor *tensor = &graph->tensors[graph->nodes[node].views[i].tensor];

            if (writer == UINT32_MAX ? tensor->role == TD_ROLE_UNIFORM
                                     : tensor->writer < graph->node_count && is_in(p, tensor->writer, writer))
                return true;
        }
    return false;
}

/* What a record reads in scratch was last written by its own node or one that it reads of: nobody
 * else was given the bytes. */
static void check_scratch(const td_graph *graph, const td_program *p)
{
    for (uint32_t i = 0; i < p->plan->record_count; i++)
        for (uint32_t j = 0; j < p->plan->records[i].read_count; j++) {
            td_range left = p->plan->records[i].reads[j];

            if (left.base != TD_BASE_SCRATCH)
                continue;
            for (uint32_t k = i; k-- > 0 && left.begin_bytes < left.end_bytes;)
                for (uint32_t w = 0; w < p->plan->records[k].write_count; w++) {
                    const td_range *write = &p->plan->records[k].writes[w];

                    if (!touch(write, 1, &left, 1))
                        continue;
                    assert_true(may_read(graph, p, node_of(p, i), node_of(p, k)));
                    if (write->begin_bytes <= left.begin_bytes)
                        left.begin_bytes = write->end_bytes;
                    else
                        left.end_bytes = write->begin_bytes;
                }
            assert_true(left.begin_bytes >= left.end_bytes || p->plan->scratch_bytes == 0);
        }
}

/* Bound to two addresses of a view, records differ in its patches and nowhere else. */
static void check_patches(const td_program *p)
{
    static _Alignas(TD_PARAM_ALIGN) unsigned char before[TD_PARAM_BYTES], behind[TD_PARAM_BYTES];
    const uint32_t view_count = TD_PROGRAM_BINDINGS + p->binding_count;
    uint64_t views[TD_PROGRAM_VIEWS], moved[TD_PROGRAM_VIEWS];
    uint32_t patches = 0;

    assert_true(p->plan->view_count == view_count && p->first_patch[0] == 0 &&
                p->first_patch[view_count] == p->patch_count);
    for (uint32_t v = 0; v < view_count; v++) {
        for (uint32_t i = 0; i < view_count; i++)
            moved[i] = views[i] = 0x100000000000u * (i + 1);
        moved[v] = 0xfedcba9876543200u - views[v]; /* every byte differs, but the lowest */
        for (uint32_t i = 0, at = p->first_patch[v]; i < p->plan->record_count; i++) {
            const td_record *r = &p->plan->records[i];

            td_exec_bind(r, views, 0x700000000000u, 0x7000u, before);
            td_exec_bind(r, moved, 0x700000000000u, 0x7000u, behind);
            for (; at < p->first_patch[v + 1] && p->patches[at].record == i; at++, patches++) {
                const td_reloc *reloc = &r->relocs[p->patches[at].reloc];
                const uint64_t address = td_exec_address(reloc, moved, 0, 0);

                assert_true(reloc->base == TD_BASE_VIEW && reloc->view == v);
                if (reloc->kind == TD_RELOC_TENSOR_MAP)
                    continue; /* the executor's to encode */
                assert_memory_not_equal(before + reloc->offset, behind + reloc->offset,
                                        sizeof address);
                memcpy(before + reloc->offset, &address, sizeof address);
            }
            assert_memory_equal(before, behind, r->param_bytes);
        }
    }
    assert_int_equal(patches, p->patch_count);
    for (uint32_t i = 0; i < p->plan->record_count; i++)
        for (uint32_t j = 0; j < p->plan->records[i].reloc_count; j++)
            patches -= p->plan->records[i].relocs[j].base == TD_BASE_VIEW;
    assert_int_equal(patches, 0);
}

static void test_devices(void **state)
{
    static const uint32_t sms[] = {0, 80, 86, 89, 90, 120}, counts[] = {1, 63, 64, 65};
    td_safetensors file;
    td_graph *graphs[] = {encoder_graph(&file), graph_of(sums_text)};

    (void)state;
    for (int n = 0; n < 6 * 2 * 2 * 4 * 2; n++) {
        const td_graph *graph = graphs[n / 96];
        td_target target =
            n % 2 ? td_target_for_stream(sms[n / 2 % 6]) : td_target_for_sm(sms[n / 2 % 6]);
        const uint32_t numbers[2] = {counts[n / 24 % 4], counts[(n + 1) % 4]};
        const td_program *program, *again;
        char why[400] = "";

        target.twin = true;
        target.commit = n / 12 % 2;
        program_must(td_program_build(graph, numbers, &target, &program, why, sizeof why), why);
        program_must(td_program_build(graph, numbers, &target, &again, why, sizeof why), why);
        check_same(program, again);
        td_program_drop(&again);
        assert_null(again);
        check_bounds(program);
        check_order(program->plan);
        check_scratch(graph, program);
        check_patches(program);
        uint32_t chain = 1;
        for (uint32_t i = 1; i < program->plan->record_count; i++)
            chain += program->plan->records[i].barrier != TD_BARRIER_NONE;
        assert_true(program->chain == chain && chain <= program->plan->record_count);
        assert_true(fabs(td_program_floor_us(program, true) - 1.2 * chain) < 1e-9);
        const td_program *shared = td_program_use(program);
        td_program_drop(&program);
        assert_true(shared->node_count == graph->node_count && shared->nodes[0].record_count > 0 &&
                    shared->nodes[0].mflop > 0);
        td_program_drop(&shared);
    }
    td_graph_destroy(&graphs[0]);
    td_graph_destroy(&graphs[1]);
    td_safetensors_close(&file);
}

/* --- As many nodes as there may be --- */

static void add_norm(td_graph *graph, const char *from, const char *to)
{
    static const char *const sizes_of[] = {"batch", "heads", "rows"};

    td_graph_add_node(graph, TANDEM_OPERATION_NORM);
    for (int i = 0; i < 3; i++)
        td_graph_set(graph, sizes_of[i], "1");
    td_graph_set(graph, "channels", "n");
    td_graph_set_view(graph, "x", from, NULL, NULL);
    td_graph_set_view(graph, "y", to, NULL, NULL);
}

/* A chain needs two places, however long it is; nodes that do not wait for each other need all, and
 * no barriers. */
static void test_many_nodes(void **state)
{
    static const char *const shape[] = {"n"};
    const td_target target = td_target_for_sm(0);
    char why[400] = "", name[2][20];

    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        td_graph *graph = td_graph_create();
        const td_program *program;

        td_graph_add_number(graph, "n", 1000);
        td_graph_add_tensor(graph, "x", TD_ROLE_INPUT, TANDEM_DTYPE_F16, shape, 1);
        td_graph_add_tensor(graph, "y", TD_ROLE_OUTPUT, TANDEM_DTYPE_F16, shape, 1);
        for (int i = 0; i < TD_GRAPH_NODES - 1; i++) {
            snprintf(name[0], sizeof name[0], "%d", i);
            snprintf(name[1], sizeof name[1], wide || !i ? "x" : "%d", i - 1);
            td_graph_add_tensor(graph, name[0], TD_ROLE_TEMPORARY, TANDEM_DTYPE_F16, shape, 1);
            add_norm(graph, name[1], name[0]);
        }
        add_norm(graph, name[0], "y");
        program_must(td_graph_end(graph, why, sizeof why), why);
        program_must(
            td_program_build(graph, (const uint32_t[]){1000}, &target, &program, why, sizeof why),
            why);
        assert_int_equal(program->plan->record_count, TD_GRAPH_NODES);
        assert_int_equal(program->chain, wide ? 2 : TD_GRAPH_NODES);
        assert_int_equal(program->plan->scratch_bytes,
                         wide ? (TD_GRAPH_NODES - 1) * 2048 : 2 * 2048);
        td_program_drop(&program);
        td_graph_destroy(&graph);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encoder),    cmocka_unit_test(test_commit),
        cmocka_unit_test(test_state),      cmocka_unit_test(test_cache),
        cmocka_unit_test(test_tensors),    cmocka_unit_test(test_precision),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_many_nodes),
    };

    encoder_make_weights();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    encoder_free_weights();
    return failed;
}
