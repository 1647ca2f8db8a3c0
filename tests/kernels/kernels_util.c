/* Operations everywhere. See kernels_util.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/kernels_util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/cpu/cpu.h"

double ku_rounded(double x, uint32_t dtype)
{
    return dtype == TANDEM_DTYPE_F32   ? (double)(float)x
           : dtype == TANDEM_DTYPE_F16 ? (double)td_from_f16(td_to_f16((float)x))
                                       : (double)td_from_bf16(td_to_bf16((float)x));
}

void ku_put(ku_case *it, uint32_t view, tu_tensor tensor)
{
    it->tensors[view] = tensor;
    it->views[view] = (uintptr_t)tensor.data;
    *td_view_of(&it->operation->layout, &it->op, view) = tensor.view;
}

void ku_random(ku_case *it, uint32_t view, uint32_t dtype, uint32_t n, uint32_t seed)
{
    uint32_t of[4];

    it->operation->layout.shape(&it->op, view, of);
    tu_tensor tensor = tu_tensor_new(dtype, n % 2 ? TU_BY_ROW : TU_DENSE, of[0], of[1], of[2], of[3]);
    tu_fill_normal(&tensor, seed, 0);
    ku_put(it, view, tensor);
}

void ku_free(ku_case *it)
{
    for (uint32_t i = 0; i < TD_MAX_VIEWS; i++)
        if (it->tensors[i].data)
            tu_tensor_free(&it->tensors[i]);
}

static bool is_written(const ku_case *it, uint32_t view)
{
    return it->operation->layout.views[view].written && it->tensors[view].data;
}

/* Where `on` is NULL, on the CPU. */
static void run(const ku_case *it, em_module *on, td_target target)
{
    TU_PLAN(plan);
    char why[300] = "";
    target.twin = true;
    if (it->operation->check(&it->op, why, sizeof why) || it->operation->plan(&it->op, &target, &plan, why, sizeof why))
        fail_msg("%s", why);
    void *scratch = aligned_alloc(256, plan.scratch_bytes + 256);
    assert_non_null(scratch);
    memset(scratch, TU_POISON, plan.scratch_bytes);
    for (uint32_t i = 0; on && i < plan.record_count; i++)
        em_launch_record(on, &plan.records[i], it->views, (uintptr_t)scratch, i);
    if (!on)
        assert_int_equal(td_exec_cpu_run(&plan, it->views, (uintptr_t)scratch, 2, NULL), TANDEM_OK);
    free(scratch);
}

static void poison(ku_case *it)
{
    for (uint32_t i = 0; i < it->operation->layout.view_count; i++)
        if (is_written(it, i))
            tu_poison(&it->tensors[i]);
}

/* `bits` are those of another run; those of the first are kept there, and looked at. */
static void look(const ku_case *it, unsigned char *bits[TD_MAX_VIEWS], void (*check)(const ku_case *it))
{
    bool is_first = true;
    for (uint32_t i = 0; i < it->operation->layout.view_count; i++) {
        const tu_tensor *t = &it->tensors[i];
        if (!is_written(it, i))
            continue;
        assert_int_equal(tu_spoilt(t), 0);
        if (bits[i]) {
            assert_memory_equal(bits[i], t->data, t->bytes);
            is_first = false;
            continue;
        }
        bits[i] = malloc(t->bytes);
        assert_non_null(bits[i]);
        memcpy(bits[i], t->data, t->bytes);
    }
    if (is_first)
        check(it);
}

static void run_parts(ku_case *it, em_module *on, td_target target, uint32_t count)
{
    const td_operation *operation = it->operation;
    const tandem_operands whole = it->op;
    const uint32_t parts = operation->split(&whole, count);
    td_part_at at = {0};
    for (uint32_t p = 0; p < parts; p++) {
        ku_case part = *it;
        target.whole = &whole;
        target.position = operation->part(&whole, count, &at, &part.op);
        for (uint32_t i = 0; i < operation->layout.view_count; i++)
            part.views[i] += td_view_in(&operation->layout, &part.op, i)->offset_bytes;
        run(&part, on, target);
    }
}

void ku_run_on(ku_case *it, em_module *on, td_target target, uint32_t parts)
{
    poison(it);
    if (parts > 1)
        run_parts(it, on, target, parts);
    else
        run(it, on, target);
}

/* Copies of what the tensors hold, each at an address that is so many elements behind a multiple of 16 bytes; or back. */
static void move(const ku_case *it, unsigned char *copies[TD_MAX_VIEWS], const size_t shifts[TD_MAX_VIEWS], bool back)
{
    for (uint32_t i = 0; i < TD_MAX_VIEWS; i++) {
        const tu_tensor *t = &it->tensors[i];
        const size_t bytes = t->bytes + TU_GUARD_BYTES;
        if (!t->data)
            continue;
        if (!back) {
            copies[i] = aligned_alloc(256, (bytes + 16 + 255) / 256 * 256);
            assert_non_null(copies[i]);
        }
        memcpy(back ? t->data : copies[i] + shifts[i], back ? copies[i] + shifts[i] : t->data, bytes);
        if (back)
            free(copies[i]);
    }
}

void ku_run_elsewhere(ku_case *it, em_module *on, td_target target, uint32_t n)
{
    unsigned char *copies[TD_MAX_VIEWS];
    size_t shifts[TD_MAX_VIEWS] = {0};
    ku_case moved = *it;
    poison(it);
    for (uint32_t i = 0; i < it->operation->layout.view_count; i++) {
        tandem_view *view = td_view_of(&it->operation->layout, &moved.op, i);
        shifts[i] = it->tensors[i].data ? td_dtype_of(view->dtype).alignment * ((n + 3 * i) % 8) % 16 : 0;
        view->offset_bytes += shifts[i]; /* as far as alignment matters, it is an address */
    }
    move(it, copies, shifts, false);
    for (uint32_t i = 0; i < it->operation->layout.view_count; i++)
        if (it->tensors[i].data)
            moved.views[i] = (uintptr_t)copies[i] + shifts[i];
    run(&moved, on, target);
    move(it, copies, shifts, true);
}

void ku_run(ku_case *it, uint32_t n, void (*check)(const ku_case *it))
{
    unsigned char *bits[TD_MAX_VIEWS] = {NULL};
    ku_run_on(it, NULL, td_target_for_sm(0), 1);
    look(it, bits, check);
    for (size_t m = 0; m < EM_MODULES; m++) {
        td_target target = td_target_for_sm(em_modules[m].sm);
        target.commit = m == n % EM_MODULES;
        ku_run_on(it, &em_modules[m], target, 1);
        look(it, bits, check);
    }
    em_module *const one = &em_modules[n % EM_MODULES];
    ku_run_elsewhere(it, one, td_target_for_sm(one->sm), n);
    look(it, bits, check);
    ku_run_elsewhere(it, NULL, td_target_for_sm(0), n);
    look(it, bits, check);
    ku_run_on(it, NULL, td_target_for_sm(0), 2 + n % 6);
    look(it, bits, check);
    for (uint32_t i = 0; i < TD_MAX_VIEWS; i++)
        free(bits[i]);
}

void ku_refuses(const td_operation *operation, const tandem_operands *op, const char *text)
{
    char why[300] = "";
    assert_int_equal(operation->check(op, why, sizeof why), TANDEM_ERROR_ARG);
    if (!strstr(why, text))
        fail_msg("\"%s\" is not in \"%s\"", text, why);
}
