/* Rows that are written to where positions say: the CPU's against the definition, and the CUDA
 * kernel on the emulator, whose bits are the CPU's.
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
#include "kernels/commit.h"
#include "kernels/scatter/scatter.h"
#include "tests/kernels/kernels_util.h"

enum { X, POSITION, Y };

/* Each row of x has a place of its own, from the last row of y on and with gaps, or none. */
static ku_case make(uint32_t rows, uint32_t channels, uint32_t n)
{
    static const double beyond[] = {-1, INT32_MIN, INT32_MAX};
    const uint32_t batch = 1 + n % 3, heads = 1 + n / 2 % 3, entries = 2 * rows + n % 5;
    ku_case it = {.operation = &td_operation_scatter,
                  .op.scatter = {.batch = batch,
                                 .heads = heads,
                                 .rows = rows,
                                 .channels = channels,
                                 .entries = entries}};
    tu_tensor x = tu_tensor_new(1 + n % 3, (tu_layout)(n % 4), batch, heads, rows, channels);
    tu_tensor position = tu_tensor_new(TANDEM_DTYPE_I32, (tu_layout)(n / 2 % 4), batch, 1, rows, 1);
    tu_fill_normal(&x, n, 0.2);
    for (uint32_t b = 0; b < batch; b++)
        for (uint32_t r = 0; r < rows; r++)
            tu_set(&position, b, 0, r, 0,
                   (r + n) % 7 == 5   ? beyond[r % 3]
                   : (r + n) % 7 == 6 ? (double)entries
                                      : entries - 1 - 2.0 * r - (b + n) % 2 * (r > 0));
    ku_put(&it, X, x);
    ku_put(&it, POSITION, position);
    ku_put(&it, Y,
           tu_tensor_new(1 + n / 2 % 3, (tu_layout)(n / 3 % 4), batch, heads, entries, channels));
    return it;
}

static bool is_poisoned(const tu_tensor *y, uint32_t b, uint32_t h, uint32_t r, uint32_t c)
{
    const uint32_t bytes = y->view.dtype == TANDEM_DTYPE_F32 ? 4 : 2, all = 0xffffffffu;
    const int64_t at = b * y->view.stride_batch + h * y->view.stride_head + r * y->view.stride_row;
    return !memcmp((const char *)y->data + (at + c) * bytes, &all, bytes);
}

/* Rows that no position names are as they were. */
static void check_values(const ku_case *it)
{
    const tandem_scatter *s = &it->op.scatter;
    const tu_tensor *x = &it->tensors[X], *y = &it->tensors[Y];
    int64_t *from = malloc(s->entries * sizeof *from);
    assert_non_null(from);
    for (uint32_t b = 0; b < s->batch; b++) {
        for (uint32_t r = 0; r < s->entries; r++)
            from[r] = -1;
        for (uint32_t r = 0; r < s->rows; r++) {
            const double position = tu_get(&it->tensors[POSITION], b, 0, r, 0);
            if (position >= 0 && position < s->entries)
                from[(uint32_t)position] = r;
        }
        for (uint32_t h = 0; h < s->heads; h++)
            for (uint32_t r = 0; r < s->entries; r++)
                for (uint32_t c = 0; c < s->channels; c++)
                    assert_true(from[r] < 0 ? is_poisoned(y, b, h, r, c)
                                            : tu_get(y, b, h, r, c) ==
                                                  ku_rounded(tu_get(x, b, h, (uint32_t)from[r], c),
                                                             s->y.dtype));
    }
    free(from);
}

static void test_everywhere(void **state)
{
    static const uint32_t rows[] = {1, 2, 8, 33, 100},
                          channels[] = {1, 7, 8, 64, 96, 128, 255, 256};
    (void)state;
    for (uint32_t n = 0; n < 40; n++) {
        ku_case it = make(rows[n % 5], channels[n % 8], n);
        ku_run(&it, n, check_values);
        ku_free(&it);
    }
}

/* A run that is given up before it claims writes nothing. */
static void test_given_up(void **state)
{
    td_control control = {.stale = 1};
    td_target target = td_target_for_sm(0);
    char why[300] = "";
    TU_PLAN(plan);
    (void)state;
    for (int given_up = 1; given_up >= 0; given_up--) {
        ku_case it = make(8, 64, 2);
        uint32_t verdict[64] = {0};
        target.commit = true;
        tu_poison(&it.tensors[Y]);
        control = (td_control){.stale = (uint32_t)given_up};
        assert_int_equal(it.operation->plan(&it.op, &target, &plan, why, sizeof why), TANDEM_OK);
        assert_in_range(plan.scratch_bytes, 1, sizeof verdict);
        assert_int_equal(td_exec_cpu_run(&plan, it.views, (uintptr_t)verdict, 1, &control),
                         TANDEM_OK);
        assert_int_equal(control.verdict, given_up ? TD_VERDICT_GIVEN_UP : TD_VERDICT_COMMITTED);
        for (size_t i = 0; given_up && i < it.tensors[Y].bytes; i++)
            assert_int_equal(((unsigned char *)it.tensors[Y].data)[i], TU_POISON);
        if (!given_up)
            check_values(&it);
        ku_free(&it);
    }
}

/* No draft of all of y can become y. */
static void test_has_no_draft(void **state)
{
    ku_case it = make(8, 64, 2);
    tandem_operands op = it.op, commit;
    (void)state;
    assert_int_equal(td_commit_make(&td_operation_scatter, 1, &op, &commit), 0);
    ku_free(&it);
}

static void test_refusals(void **state)
{
    ku_case it = make(4, 24, 6);
    (void)state;
#define REFUSES(text, ...)                                                                         \
    do {                                                                                           \
        tandem_operands op = it.op;                                                                \
        tandem_scatter *s = &op.scatter;                                                           \
        __VA_ARGS__;                                                                               \
        ku_refuses(&td_operation_scatter, &op, text);                                              \
    } while (0)
    REFUSES("scatter.rows is 0", s->rows = 0);
    REFUSES("scatter.entries is 0", s->entries = 0);
    REFUSES("scatter.reserved[2] is 7; it must be 0", s->reserved[2] = 7);
    REFUSES("scatter.x.dtype is 9", s->x.dtype = TANDEM_DTYPE_Q8_0);
    REFUSES("scatter.position.dtype is 3; it must be 6 (i32)",
            s->position.dtype = TANDEM_DTYPE_F32);
    REFUSES("scatter.y.dtype is 0", s->y.dtype = TANDEM_DTYPE_NONE);
    REFUSES("scatter.y.stride_row is 1; the output would overlap itself", s->y.stride_row = 1);
    ku_free(&it);
}

/* What a program copies before its nodes: whole pieces of 16 bytes, and nothing behind them. */
static void test_fetch(void **state)
{
    static const uint64_t sizes[] = {1, 16, 20, 16 * 128, 16 * 128 + 1, 16 * 300};
    static _Alignas(16) unsigned char from[16 * 301], scratch[16 * 302];
    (void)state;
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (unsigned char)(7 * i + i / 251);
    for (size_t n = 0; n < 6 * (EM_MODULES + 1); n++) {
        em_module *on = n % (EM_MODULES + 1) ? &em_modules[n % (EM_MODULES + 1) - 1] : NULL;
        td_target target = td_target_for_sm(on ? on->sm : 90);
        const uint64_t bytes = sizes[n / (EM_MODULES + 1)], whole = (bytes + 15) / 16 * 16, views[TD_MAX_VIEWS] = {(uintptr_t)from};
        TU_PLAN(plan);
        char why[200] = "";
        target.twin = true;
        td_builder at = td_build_begin(&plan, &target);
        at.is_gpu = true;
        td_build_fetch(&at, 0, bytes, td_build_take(&at, true, bytes));
        if (td_build_end(&at, why, sizeof why) != TANDEM_OK)
            fail_msg("%s", why);
        memset(scratch, TU_POISON, sizeof scratch);
        if (on)
            em_launch_record(on, &plan.records[0], views, (uintptr_t)scratch, n);
        else
            assert_int_equal(td_exec_cpu_run(&plan, views, (uintptr_t)scratch, 2, NULL), TANDEM_OK);
        assert_memory_equal(scratch, from, whole);
        for (uint64_t i = whole; i < sizeof scratch; i++)
            assert_int_equal(scratch[i], TU_POISON);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everywhere), cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_has_no_draft), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_fetch)};
    if (!em_open_all(TD_EMU_FOLDER))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
