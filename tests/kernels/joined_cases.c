/* See joined_cases.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/joined_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/cpu.h"
#include "kernels/model/graph_file.h"

typedef struct shape {
    uint32_t rows, ins, outs;
    uint32_t kind; /* of the norm */
    const char *norm_views, *linear_views; /* optional ones */
    uint32_t activation, gate;
    const char *kernel;
} shape;

#define RESIDUAL ", \"residual\": \"before\""
#define BIAS ", \"bias\": \"shift\""
#define SUM ", \"sum\": \"sum\""
static const shape shapes[JC_CASES] = {
    {128, 384, 384, 1, RESIDUAL BIAS, ", \"bias\": \"more\"", 0, 0, "linear_f16_few_normed_16x32"},
    {128, 384, 640, 1, RESIDUAL BIAS, ", \"bias\": \"more\"", 1, 0, "linear_f16_few_normed_32x32"},
    {100, 384, 1152, 1, RESIDUAL BIAS SUM, "", 0, 0, "linear_f16_few_normed_32x64"},
    {65, 32, 72, 0, "", ", \"residual\": \"other\"", 0, 0, "linear_f16_few_normed_16x32"}, /* rows and columns beyond whole tiles */
    {97, 288, 256, 0, SUM RESIDUAL, ", \"bias\": \"more\"", 3, 0, "linear_f16_few_normed_16x32"},
    {97, 288, 256, 0, SUM RESIDUAL, ", \"bias\": \"more\"", 3, 1, NULL}, /* a gate */
    {128, 360, 384, 1, RESIDUAL, "", 0, 0, NULL},                     /* a step that is not whole */
    {128, 384, 384, 1, "", ", \"residual\": \"normed\"", 0, 0, NULL}, /* of another block, which may be behind */
    {128, 392, 384, 1, RESIDUAL, "", 0, 0, NULL},                     /* more than fits */
    {640, 384, 1536, 1, RESIDUAL, "", 0, 0, NULL},                    /* more blocks than are at work at once */
};

/* Roles are inputs for what is read, so that all of it is a binding, and outputs for what is written. */
static td_graph *graph_of(const shape *s)
{
    const bool has_sum = strstr(s->norm_views, "sum"), has_before = strstr(s->norm_views, "before"), has_shift = strstr(s->norm_views, "shift"),
               has_more = strstr(s->linear_views, "more"), has_other = strstr(s->linear_views, "other");
    char text[4000], why[300] = "";
    td_graph *graph;
    const uint32_t w_rows = s->gate ? 2 * s->outs : s->outs;
    size_t at = (size_t)snprintf(text, sizeof text, "{\"version\": 1, \"numbers\": {\"rows\": 1024}, \"tensors\": {");
#define TENSOR(there, name, role, dtype, rows, columns)                                                                                     \
    if (there)                                                                                                                              \
    at += (size_t)snprintf(text + at, sizeof text - at, "%s\"%s\": {\"role\": \"%s\", \"dtype\": \"%s\", \"shape\": [%s, %u]}",             \
                           text[at - 1] == '{' ? "" : ", ", name, role, dtype, rows, (unsigned)(columns))
    char rows_of_w[16];
    snprintf(rows_of_w, sizeof rows_of_w, "%u", (unsigned)w_rows);
    TENSOR(true, "gain", "weight", "F32", "1", s->ins);
    TENSOR(has_shift, "shift", "weight", "F32", "1", s->ins);
    TENSOR(true, "w", "weight", "F16", rows_of_w, s->ins);
    TENSOR(has_more, "more", "weight", "F32", "1", w_rows);
    TENSOR(true, "x", "input", "F16", "\"rows\"", s->ins);
    TENSOR(has_before, "before", "input", "F16", "\"rows\"", s->ins);
    TENSOR(has_other, "other", "input", "F16", "\"rows\"", s->outs);
    TENSOR(true, "normed", "output", "F16", "\"rows\"", s->ins);
    TENSOR(has_sum, "sum", "output", "F16", "\"rows\"", s->ins);
    TENSOR(true, "y", "output", "F16", "\"rows\"", s->outs);
    at += (size_t)snprintf(text + at, sizeof text - at,
                           "}, \"nodes\": [{\"operation\": \"norm\", \"kind\": %u, \"batch\": 1, \"heads\": 1, \"rows\": \"rows\", \"channels\": %u, "
                           "\"epsilon\": 1e-5, \"views\": {\"x\": \"x\", \"weight\": \"gain\", \"y\": \"normed\"%s}}, "
                           "{\"operation\": \"linear\", \"rows\": \"rows\", \"ins\": %u, \"outs\": %u, \"activation\": %u, \"gate\": %u, "
                           "\"views\": {\"x\": \"normed\", \"w\": \"w\", \"y\": \"y\"%s}}]}",
                           (unsigned)s->kind, (unsigned)s->ins, s->norm_views, (unsigned)s->ins, (unsigned)s->outs, (unsigned)s->activation,
                           (unsigned)s->gate, s->linear_views);
    assert_true(at < sizeof text);
    if (td_graph_read(text, at, &graph, why, sizeof why))
        fail_msg("%s", why);
    return graph;
}

static const td_program *build(const td_graph *graph, uint32_t rows, td_target target, bool apart)
{
    const td_program *program;
    char why[300] = "";

    target.apart = apart;
    target.multiprocessors = 132;
    if (td_program_build(graph, &rows, &target, &program, why, sizeof why))
        fail_msg("%s", why);
    return program;
}

/* Halves of -2 to 2, and floats of that size: such that no sum of squares is near 0. */
static void make_up(const td_program_tensor *tensor, char *to, uint32_t seed)
{
    for (uint64_t i = 0; i < tensor->bytes / td_dtype_of(tensor->dtype).bytes; i++) {
        seed = seed * 1664525u + 1013904223u;
        const float value = (float)(seed >> 8) * 0x1p-22f - 2;
        if (tensor->dtype == TANDEM_DTYPE_F16)
            ((uint16_t *)(void *)to)[i] = td_to_f16(value);
        else
            ((float *)(void *)to)[i] = value;
    }
}

jc_case jc_open(uint32_t n, td_target target)
{
    const shape *s = &shapes[n];
    td_graph *graph = graph_of(s);
    jc_case it = {.kernel = s->kernel,
                  .joined = build(graph, s->rows, target, false),
                  .apart = build(graph, s->rows, target, true)};
    const td_program *p = it.joined;

    td_graph_destroy(&graph);
    it.view_count = TD_PROGRAM_BINDINGS + p->binding_count;
    assert_true(it.view_count <= JC_MOST_VIEWS);
    it.view_bytes[TD_PROGRAM_WEIGHTS] = p->weight_bytes;
    for (uint32_t i = 0; i < p->binding_count; i++)
        it.view_bytes[TD_PROGRAM_BINDINGS + i] = p->tensors[p->bindings[i]].bytes;
    for (uint32_t i = 0; i < it.view_count; i++)
        if (it.view_bytes[i]) {
            it.views[i] = aligned_alloc(256, td_align_up(it.view_bytes[i], 256));
            assert_non_null(it.views[i]);
            memset(it.views[i], 0xff, it.view_bytes[i]);
        }
    for (uint32_t i = 0; i < p->tensor_count; i++)
        if (p->tensors[i].role == TD_ROLE_WEIGHT)
            make_up(&p->tensors[i], (char *)it.views[TD_PROGRAM_WEIGHTS] + p->tensors[i].offset, 7 * n + i);
    for (uint32_t i = 0; i < p->binding_count; i++)
        if (p->tensors[p->bindings[i]].role == TD_ROLE_INPUT)
            make_up(&p->tensors[p->bindings[i]], it.views[TD_PROGRAM_BINDINGS + i], 100 * n + i);
    return it;
}

void jc_close(jc_case *it)
{
    for (uint32_t i = 0; i < it->view_count; i++)
        free(it->views[i]);
    td_program_drop(&it->joined);
    td_program_drop(&it->apart);
}

void jc_check(jc_case *it, jc_run *run, void *user)
{
    void *apart[JC_MOST_VIEWS] = {0};

    assert_int_equal(it->apart->plan->record_count, 2);
    assert_int_equal(it->joined->plan->record_count, it->kernel ? 1 : 2);
    if (!it->kernel)
        return; /* then both are alike */
    assert_string_equal(it->joined->plan->records[0].kernel->entry, it->kernel);
    for (uint32_t i = 0; i < it->view_count; i++)
        if (it->views[i]) {
            apart[i] = malloc(it->view_bytes[i]);
            assert_non_null(apart[i]);
            memcpy(apart[i], it->views[i], it->view_bytes[i]);
        }
    run(user, it->apart, apart, it->view_bytes, it->view_count);
    run(user, it->joined, it->views, it->view_bytes, it->view_count);
    for (uint32_t i = 0; i < it->view_count; i++) {
        if (!it->views[i])
            continue;
        assert_memory_equal(it->views[i], apart[i], it->view_bytes[i]);
        if (i >= TD_PROGRAM_BINDINGS)
            for (uint64_t at = 0; at < it->view_bytes[i]; at += 2) /* what nobody wrote is a NaN still, as no result is */
                if (((uint16_t *)it->views[i])[at / 2] == 0xffff)
                    fail_msg("%s: element %llu was not written", it->joined->tensors[it->joined->bindings[i - TD_PROGRAM_BINDINGS]].name,
                             (unsigned long long)(at / 2));
        free(apart[i]);
    }
}
