/* Samples of a program's layers: they are the rows that the layer has computed, and what these are exactly, on the CPU and on
 * emulated GPUs; and what the program computes is the same bit for bit as without them.
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

#include "engine_plugin/exec/exec.h"
#include "kernels/cpu/cpu.h"
#include "kernels/model/graph_file.h"
#include "tests/kernels/emu_modules.h"

enum { HEADS = 2, DIM = 32, WIDTH = HEADS * DIM };

/* Q, K and V are thirds of rows, heads of O lie side by side, and there is a state, which is written when a run ends. */
static const char format[] =
    "{\"version\": 1, \"numbers\": {\"batch\": 64, \"n\": 512}, \"tensors\": {"
    "\"qkv\": {\"role\": \"input\", \"dtype\": \"F16\", \"shape\": [\"batch * n\", 192]},"
    "\"where\": {\"role\": \"input\", \"dtype\": \"I32\", \"shape\": [\"batch\", \"n\"]},"
    "\"bias\": {\"role\": \"input\", \"dtype\": \"F16\", \"shape\": [\"n\", \"n\"]},"
    "\"kept\": {\"role\": \"state\", \"dtype\": \"F32\", \"shape\": [1, 32]},"
    "\"o\": {\"role\": \"temporary\", \"dtype\": \"F16\", \"shape\": [\"batch * n\", 64]},"
    "\"used\": {\"role\": \"output\", \"dtype\": \"F16\", \"shape\": [\"batch\", \"n\"]},"
    "\"y\": {\"role\": \"output\", \"dtype\": \"F16\", \"shape\": [\"batch * n\", 64]}}, \"nodes\": ["
    "{\"operation\": \"attention\", \"batch\": \"batch\", \"heads\": 2, \"kv_heads\": 2, \"q_len\": \"n\", \"kv_len\": \"n\","
    " \"head_dim\": 32, \"precision\": %u, %s \"views\": {"
    "\"q\": {\"tensor\": \"qkv\", \"offset\": 0, \"strides\": [\"n * 192\", 32, 192]},"
    "\"k\": {\"tensor\": \"qkv\", \"offset\": 64, \"strides\": [\"n * 192\", 32, 192]},"
    "\"v\": {\"tensor\": \"qkv\", \"offset\": 128, \"strides\": [\"n * 192\", 32, 192]}, %s"
    "\"o\": {\"tensor\": \"o\", \"strides\": [\"n * 64\", 32, 64]}}},"
    "{\"operation\": \"binary\", \"batch\": 1, \"heads\": 1, \"rows\": \"batch * n\", \"channels\": 64,"
    " \"views\": {\"a\": \"o\", \"b\": \"o\", \"y\": \"y\"}},"
    "{\"operation\": \"binary\", \"batch\": 1, \"heads\": 1, \"rows\": 1, \"channels\": 32, \"views\": {\"a\": \"kept\","
    " \"b\": \"kept\", \"y\": \"kept\"}},"
    "{\"operation\": \"pool\", \"batch\": \"batch\", \"heads\": 1, \"rows\": 1, \"channels\": \"n\","
    " \"views\": {\"x\": {\"tensor\": \"bias\", \"strides\": [0, 0, \"n\"]}, \"y\": \"used\"}}]}";

typedef struct shape {
    const char *fields, *views; /* of the node, besides */
    uint32_t precision, batch, n, asked, batches, rows, first, step; /* the last three: which rows */
} shape;
static const shape shapes[] = {
    {"", "", TANDEM_PRECISION_8B, 1, 200, 16, 1, 16, 0, 13},
    {"", "", TANDEM_PRECISION_F16, 3, 65, 9, 3, 3, 0, 22},
    {"", "", TANDEM_PRECISION_4B, 40, 16, 8, 8, 1, 0, 16},
    {"\"causal\": 1,", "", TANDEM_PRECISION_8B, 2, 150, 20, 2, 10, 140, 1},
    {"\"causal\": 1, \"window\": 9,", "", TANDEM_PRECISION_F16, 1, 100, 500, 1, 100, 0, 1},
    {"", "\"position\": \"where\", ", TANDEM_PRECISION_F16, 1, 128, 32, 1, 32, 0, 4},
    {"", "\"length\": {\"tensor\": \"where\", \"offset\": 3, \"strides\": [\"n\", 1, 1]}, ", TANDEM_PRECISION_8B, 12, 40, 6, 6, 1, 0, 40},
    {"\"softcap\": 20,", "\"bias\": {\"tensor\": \"bias\", \"strides\": [0, 0, \"n\"]}, ", TANDEM_PRECISION_8B, 2, 90, 20, 2, 10, 0, 9},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static td_graph *graph_of(const shape *s)
{
    static char text[4000];
    char why[400] = "";
    const bool has_where = strstr(s->views, "where");
    td_graph *graph;

    snprintf(text, sizeof text, format, (unsigned)s->precision, s->fields, s->views);
    if (!has_where) { /* what no node has is no tensor either */
        char *at = strstr(text, "\"where\""), *behind = strstr(text, "\"bias\": {\"role\"");
        memmove(at, behind, strlen(behind) + 1);
    }
    if (td_graph_read(text, strlen(text), &graph, why, sizeof why) != TANDEM_OK)
        fail_msg("%s", why);
    return graph;
}

static void *memory(uint64_t bytes)
{
    void *it = aligned_alloc(256, (size_t)td_align_up(bytes + 1, 256));

    assert_non_null(it);
    return memset(it, 0, (size_t)td_align_up(bytes + 1, 256));
}

static float random_float(uint32_t *seed)
{
    float sum = 0;

    for (int i = 0; i < 4; i++)
        sum += (float)((*seed = *seed * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1;
    return sum;
}

/* What a run is given, and leaves. */
typedef struct run {
    const td_program *program;
    uint64_t views[TD_PROGRAM_VIEWS];
    uint16_t *y;
    char *state, *samples;
} run;

static run new_run(const shape *s, const td_target *target)
{
    const uint32_t numbers[] = {s->batch, s->n};
    td_graph *graph = graph_of(s);
    char why[400] = "";
    uint32_t seed = 7;
    run r = {0};

    if (td_program_build(graph, numbers, target, &r.program, why, sizeof why) != TANDEM_OK)
        fail_msg("%s", why);
    td_graph_destroy(&graph);
    r.state = memory(r.program->state_bytes);
    r.samples = memset(memory(r.program->sample_bytes), 0xff, r.program->sample_bytes);
    r.views[TD_PROGRAM_STATE] = (uintptr_t)r.state;
    r.views[TD_PROGRAM_BINDINGS + r.program->binding_count] = (uintptr_t)r.samples;
    for (uint32_t i = 0; i < r.program->binding_count; i++) {
        const td_program_tensor *t = &r.program->tensors[r.program->bindings[i]];
        char *to = memory(t->bytes);

        r.views[TD_PROGRAM_BINDINGS + i] = (uintptr_t)to;
        for (uint64_t at = 0; t->dtype == TANDEM_DTYPE_F16 && at < t->bytes / 2; at++) /* channels of keys have means */
            ((uint16_t *)to)[at] = td_to_f16(random_float(&seed) + (at % 192 / 64 == 1 ? (float)(at % 7) / 2 : 0));
        for (uint64_t at = 0; t->dtype == TANDEM_DTYPE_I32 && at < t->bytes / 4; at++)
            ((int32_t *)to)[at] = (int32_t)(at * 7 % s->n);
        if (!strcmp(t->name, "y"))
            r.y = (uint16_t *)to;
    }
    return r;
}

static void compute(run *r, em_module *gpu)
{
    const td_plan *plan = r->program->plan;
    void *scratch = memory(plan->scratch_bytes);
    td_control *control = memory(sizeof *control);

    if (!gpu)
        assert_int_equal(td_exec_cpu_run(plan, r->views, (uintptr_t)scratch, 2, control), TANDEM_OK);
    for (uint32_t i = 0; gpu && i < plan->record_count; i++)
        em_launch_record(gpu, &plan->records[i], r->views, (uintptr_t)scratch, i);
    free(scratch);
    free(control);
}

static void end_run(run *r)
{
    for (uint32_t i = 0; i < r->program->binding_count; i++)
        free((void *)(uintptr_t)r->views[TD_PROGRAM_BINDINGS + i]);
    free(r->state);
    free(r->samples);
    td_program_drop(&r->program);
}

static const void *sample_at(const run *r, uint32_t which)
{
    const td_program_sample *s = r->program->samples;

    assert_true(s->offset[which] != UINT64_MAX && s->offset[which] < r->program->sample_bytes);
    return r->samples + s->offset[which];
}

/* Element e of a sample as it is in y, of which each is twice what attention wrote. */
static double in_y(const run *r, const shape *s, uint32_t e)
{
    const uint32_t channel = e % DIM, row = e / DIM % s->rows, head = e / DIM / s->rows % HEADS, batch = e / DIM / s->rows / HEADS;
    const uint32_t from = batch * (s->batch / s->batches) * s->n + s->first + row * s->step;

    return (double)td_from_f16(r->y[from * WIDTH + head * DIM + channel]);
}

static void check(const shape *s, td_target target, em_module *gpu)
{
    run plain = new_run(s, &target);
    target.sample_rows = s->asked;
    run sampled = new_run(s, &target);
    shape in_f16 = *s;
    double error = 0, cheaper_error = 0, size = 0;

    in_f16.precision = TANDEM_PRECISION_F16;
    target.sample_rows = 0;
    run exact = new_run(&in_f16, &target);
    assert_int_equal(plain.program->sample_count, 0);
    assert_int_equal(plain.program->sample_bytes, 0);
    assert_int_equal(sampled.program->sample_count, 1);
    const td_program_sample *it = sampled.program->samples;
    assert_true(it->node == 0 && it->precision == s->precision && it->batch == s->batches && it->rows == s->rows);
    assert_true(it->heads == HEADS && it->channels == DIM && it->can >> TANDEM_PRECISION_F16 & 1);
    compute(&plain, gpu);
    compute(&sampled, gpu);
    compute(&exact, gpu);
    assert_memory_equal(plain.y, sampled.y, (size_t)s->batch * s->n * WIDTH * 2);
    const float *own = sample_at(&sampled, TD_SAMPLE_OWN);
    const uint16_t *right = sample_at(&sampled, TD_SAMPLE_EXACT);
    const bool has_cheaper = s->precision < TANDEM_PRECISION_4B && it->can >> (s->precision + 1) & 1;
    const uint16_t *cheaper = has_cheaper ? sample_at(&sampled, s->precision + 1) : NULL;
    for (uint32_t e = 0; e < s->batches * HEADS * s->rows * DIM; e++) {
        const double y = in_y(&exact, s, e) / 2;

        if ((double)own[e] != in_y(&sampled, s, e))
            fail_msg("own %u is %g, not %g", (unsigned)e, (double)own[e], in_y(&sampled, s, e));
        error += fabs((double)td_from_f16(right[e]) - y);
        cheaper_error += cheaper ? fabs((double)td_from_f16(cheaper[e]) - y) : 0;
        size += fabs(y);
    }
    if (!(error <= 1e-3 * size) || !(cheaper_error <= 0.3 * size))
        fail_msg("relative L1 %g, cheaper %g", error / size, cheaper_error / size);
    end_run(&plain);
    end_run(&sampled);
    end_run(&exact);
}

static void test_cpu(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++)
        check(&shapes[i], td_target_for_sm(0), NULL);
}

static void test_gpus(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++)
        for (int gpu = 0; gpu < EM_MODULES; gpu++) {
            td_target target = gpu % 2 ? td_target_for_sm(em_modules[gpu].sm) : td_target_for_stream(em_modules[gpu].sm);

            if (em_quick() && gpu != i % EM_MODULES)
                continue;
            target.twin = true;
            check(&shapes[i], target, &em_modules[gpu]);
        }
}

/* All precisions that there are, where all are asked for. */
static void test_all(void **state)
{
    const shape s = {"", "", TANDEM_PRECISION_8B, 1, 128, 128, 1, 128, 0, 1};
    td_target target = td_target_for_sm(0);

    (void)state;
    target.sample_rows = 1000000;
    target.sample_all = true;
    run r = new_run(&s, &target);
    assert_int_equal(r.program->samples->rows, 128);
    compute(&r, NULL);
    const uint16_t *in_8b = sample_at(&r, TANDEM_PRECISION_8B);
    const float *own = sample_at(&r, TD_SAMPLE_OWN);
    for (uint32_t e = 0; e < HEADS * 128 * DIM; e++) /* the same rows, so the same bits */
        assert_true(td_from_f16(in_8b[e]) * 2 == own[e]);
    sample_at(&r, TANDEM_PRECISION_4B);
    end_run(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cpu), cmocka_unit_test(test_all), cmocka_unit_test(test_gpus)};

    if (!em_open_all(TD_EMU_FOLDER))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
