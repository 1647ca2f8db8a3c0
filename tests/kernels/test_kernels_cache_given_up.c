/* Attention on a cache that is given up between any two of its blocks, on the emulator: the next one has its bits all the same.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/cache/cache.h"
#include "kernels/cpu/cpu.h"
#include "kernels/join.h"
#include "tests/kernels/kernels_util.h"

enum { Q, POSITION, CACHE, O, TABLE, K, V, VIEWS /* of both: those of attention, then what is appended */ };
#define WHOLE UINT32_MAX

typedef struct shape {
    uint32_t batch, kv_heads, group, dim, entries, format, last; /* last: the row's position */
} shape;
static const shape shapes[] = {
    {.batch = 1, .kv_heads = 3, .group = 3, .dim = 64, .entries = 700, .format = TANDEM_CACHE_K8V8, .last = 600},
    {.batch = 2, .kv_heads = 2, .group = 4, .dim = 128, .entries = 330, .format = TANDEM_CACHE_K4V8, .last = 300}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* One row of each sequence, attention alone or behind that row, which it appends then; both as one record. */
typedef struct step {
    td_plan plan;
    const td_record *record;
    void *views[VIEWS], *scratch;
    size_t planes_bytes, o_bytes, scratch_bytes;
} step;

static void *zeros(size_t bytes)
{
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);

    assert_non_null(memory);
    return memset(memory, 0, bytes);
}

static void randomise(uint16_t *to, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        to[i] = td_to_f16((float)tu_normal(&seed));
}

static tandem_operands append_of(const shape *s, uint32_t rows)
{
    const tandem_view row = tandem_view_dense(1, 0, TANDEM_DTYPE_F16, s->kv_heads, rows, s->dim);

    return (tandem_operands){
        .cache_append = {.k = row,
                         .v = row,
                         .position = tandem_view_dense(1, 0, TANDEM_DTYPE_I32, 1, rows, 1),
                         .cache = tandem_view_dense(1, 0, TANDEM_DTYPE_U8, s->kv_heads, 1,
                                                    (uint32_t)tandem_cache_bytes(s->format, s->entries, s->dim)),
                         .batch = s->batch,
                         .kv_heads = s->kv_heads,
                         .rows = rows,
                         .head_dim = s->dim,
                         .entries = s->entries,
                         .format = s->format}};
}

static tandem_operands attention_of(const shape *s)
{
    const uint32_t heads = s->kv_heads * s->group;

    return (tandem_operands){.cache_attention = {.q = tandem_view_dense(1, 0, TANDEM_DTYPE_F16, heads, 1, s->dim),
                                                 .position = tandem_view_dense(1, 0, TANDEM_DTYPE_I32, 1, 1, 1),
                                                 .cache = append_of(s, 1).cache_append.cache,
                                                 .o = tandem_view_dense(1, 0, TANDEM_DTYPE_F32, heads, 1, s->dim),
                                                 .batch = s->batch,
                                                 .heads = heads,
                                                 .kv_heads = s->kv_heads,
                                                 .rows = 1,
                                                 .head_dim = s->dim,
                                                 .entries = s->entries,
                                                 .format = s->format}};
}

static void plan_of(const td_operation *operation, const tandem_operands *op, const td_target *target, td_plan *plan)
{
    char why[300] = "";

    if (operation->check(op, why, sizeof why) || operation->plan(op, target, plan, why, sizeof why))
        fail_msg("%s", why);
}

/* Positions before `end`, by the CPU. */
static void fill(const shape *s, unsigned char *planes, uint32_t end)
{
    const td_target cpu = td_target_for_sm(0);

    for (uint32_t at = 0, n; at < end; at += n) {
        n = end - at < TD_CACHE_PAGE ? end - at : TD_CACHE_PAGE;
        const tandem_operands op = append_of(s, n);
        const size_t count = (size_t)s->batch * s->kv_heads * n * s->dim;
        uint16_t *k = zeros(count * sizeof *k), *v = zeros(count * sizeof *v);
        int32_t *position = zeros(s->batch * n * sizeof *position);
        td_plan plan = {0};

        randomise(k, count, at + 1);
        randomise(v, count, at + 2);
        for (uint32_t i = 0; i < s->batch * n; i++)
            position[i] = (int32_t)(at + i % n);
        plan_of(&td_operation_cache_append, &op, &cpu, &plan);
        const uint64_t views[TD_MAX_VIEWS] = {(uintptr_t)k, (uintptr_t)v, (uintptr_t)position, (uintptr_t)planes};
        void *scratch = zeros(plan.scratch_bytes + 1);
        assert_int_equal(td_exec_cpu_run(&plan, views, (uintptr_t)scratch, 1, NULL), TANDEM_OK);
        td_plan_free(&plan);
        free(scratch);
        free(k);
        free(v);
        free(position);
    }
}

/* A plan's only record, with other views. */
static void take_record(td_builder *at, const td_plan *from, const uint32_t *views)
{
    const td_record *was = &from->records[0];
    td_record *record = td_build_record(at, was->kernel, was->grid[0], was->params, was->param_bytes);

    assert_int_equal(from->record_count, 1);
    record->block[0] = was->block[0];
    record->shared_bytes = was->shared_bytes;
    record->flags = was->flags;
    for (uint32_t i = 0; i < was->reloc_count; i++) {
        const td_reloc *r = &was->relocs[i];

        if (r->base != TD_BASE_CONTROL)
            td_build_pointer(at, record, r->offset, r->base, r->base == TD_BASE_VIEW ? views[r->view] : r->view, r->addend);
    }
}

static void plan_step(step *it, uint32_t sm, const shape *s, bool appends)
{
    static const uint32_t of_row[] = {K, V, POSITION, CACHE, TABLE}, same[] = {Q, POSITION, CACHE, O, TABLE};
    const tandem_operands attention = attention_of(s), row = append_of(s, 1);
    td_target target = td_target_for_sm(sm);
    td_plan append = {0}, attend = {0};

    target.twin = true;
    target.multiprocessors = 132;
    plan_of(&td_operation_cache_append, &row, &target, &append);
    plan_of(&td_operation_cache_attention, &attention, &target, &attend);
    td_builder at = td_build_begin(&it->plan, &target);
    if (appends)
        take_record(&at, &append, of_row);
    take_record(&at, &attend, same);
    if (appends)
        assert_true(td_join_last(&at, &target, true));
    it->record = &it->plan.records[0];
    assert_int_equal(it->plan.record_count, 1);
    assert_true(it->record->grid[0] > s->batch * s->kv_heads); /* a tile's chunks are several blocks' */
    it->scratch_bytes = attend.scratch_bytes;
    td_plan_free(&append);
    td_plan_free(&attend);
}

static void open_step(step *it, uint32_t sm, const shape *s, bool appends)
{
    const size_t planes = (size_t)s->batch * s->kv_heads, row = planes * s->dim;
    int32_t *position;

    *it = (step){.planes_bytes = planes * tandem_cache_bytes(s->format, s->entries, s->dim),
                 .o_bytes = row * s->group * sizeof(float)};
    plan_step(it, sm, s, appends);
    it->scratch = zeros(it->scratch_bytes);
    it->views[CACHE] = zeros(it->planes_bytes);
    it->views[O] = zeros(it->o_bytes);
    it->views[Q] = zeros(row * s->group * sizeof(uint16_t));
    it->views[K] = zeros(row * sizeof(uint16_t));
    it->views[V] = zeros(row * sizeof(uint16_t));
    it->views[POSITION] = position = zeros(s->batch * sizeof *position);
    fill(s, it->views[CACHE], s->last + !appends);
    randomise(it->views[Q], row * s->group, 7);
    randomise(it->views[K], row, 8);
    randomise(it->views[V], row, 9);
    for (uint32_t i = 0; i < s->batch; i++)
        position[i] = (int32_t)s->last;
}

static void close_step(step *it)
{
    for (int i = 0; i < VIEWS; i++)
        free(it->views[i]);
    free(it->scratch);
    td_plan_free(&it->plan);
}

/* Up to block `from`, in scratch that others had before. */
static void run_step(em_module *on, const step *it, uint32_t from)
{
    uint64_t views[TD_MAX_VIEWS] = {0};

    for (int i = 0; i < VIEWS; i++)
        views[i] = (uintptr_t)it->views[i];
    memset(it->scratch, TU_POISON, it->scratch_bytes);
    memset(it->views[O], TU_POISON, it->o_bytes);
    em_launch_cancelled(on, it->record, views, (uintptr_t)it->scratch, from, from);
}

static void *copy_of(const void *from, size_t bytes)
{
    return memcpy(zeros(bytes), from, bytes);
}

/* A step that is given up before any of its blocks, and then whole: cache and output are what that makes by itself. */
static void give_up(em_module *on, const shape *s, bool appends)
{
    step it;

    open_step(&it, on->sm, s, appends);
    void *before = copy_of(it.views[CACHE], it.planes_bytes);
    run_step(on, &it, WHOLE);
    void *cache = copy_of(it.views[CACHE], it.planes_bytes), *o = copy_of(it.views[O], it.o_bytes);
    for (uint32_t from = 0; from < it.record->grid[0]; from++) {
        memcpy(it.views[CACHE], before, it.planes_bytes);
        run_step(on, &it, from);
        run_step(on, &it, WHOLE);
        assert_memory_equal(it.views[O], o, it.o_bytes);
        assert_memory_equal(it.views[CACHE], cache, it.planes_bytes);
    }
    close_step(&it);
    free(before);
    free(cache);
    free(o);
}

static void test_given_up(void **state)
{
    (void)state;
    for (size_t module = 0; module < (em_quick() ? 1 : EM_MODULES); module++)
        for (int i = 0; i < 2 * SHAPES; i++)
            give_up(&em_modules[module], &shapes[i / 2], i % 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_given_up)};

    if (!em_open_all(TD_EMU_FOLDER))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
