/* Linear layers against float64: the CPU's kernels, whole and in parts, and CUDA's on the emulator, as plans choose them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/cpu/cpu.h"
#include "kernels/linear/linear.h"
#include "tests/kernels/emu_modules.h"
#include "tests/kernels/emulated_linear/rig.h"
#include "tests/kernels/joined_cases.h"

void kl_run(const tl_case *it, const tandem_operands *op, em_module *on, td_target target)
{
    static td_plan plan;
    uint64_t views[TL_VIEWS];
    char why[300] = "";
    target.twin = target.sm != 0; /* no cubin is asked for */
    if (td_operation_linear.check(op, why, sizeof why) != TANDEM_OK ||
        td_operation_linear.plan(op, &target, &plan, why, sizeof why) != TANDEM_OK)
        fail_msg("%s", why);
    for (uint32_t i = 0; i < TL_VIEWS; i++)
        views[i] = it->data[i] ? (uintptr_t)it->data[i] + td_view_in(&td_operation_linear.layout, op, i)->offset_bytes : 0;
    void *scratch = aligned_alloc(256, plan.scratch_bytes + 256);
    assert_non_null(scratch);
    for (uint32_t i = 0; on && i < plan.record_count; i++)
        em_launch_record(on, &plan.records[i], views, (uintptr_t)scratch, i);
    if (!on)
        assert_int_equal(td_exec_cpu_run(&plan, views, (uintptr_t)scratch, 2, NULL), TANDEM_OK);
    free(scratch);
}

/* Under sanitizers memory is what matters: some rows are enough. */
static void check(const tl_case *it)
{
    tl_check(it, em_quick() ? 5 : 1);
}

/* Every form of every shape: rows for each kernel, tails of all sizes, each epilogue somewhere. */
static tl_shape shape_of(uint32_t n)
{
    static const uint32_t rows[] = {1, 7, 9, 33, 64, 65, 130, 16}, ins[] = {8, 64, 72, 256, 520, 1, 33, 100};
    static const uint32_t outs[] = {8, 40, 63, 65, 130, 1, 96, 257};
    tl_shape s = {.rows = rows[n % 8], .ins = ins[n / 2 % 8], .outs = outs[n / 3 % 8]};
    s.dtype = n % 3 == 2 ? TANDEM_DTYPE_BF16 : TANDEM_DTYPE_F16;
    s.y_dtype = 1 + n % 3;
    s.weights = n % 5 ? TD_LINEAR_DENSE : (td_linear_weights)(n / 5 % TD_LINEAR_WEIGHTS);
    s.bias_dtype = n % 4 ? 1 + n % 3 : 0;
    s.residual_dtype = n % 3 == 1 ? 1 + n / 3 % 3 : 0;
    s.activation = n / 4 % 5;
    s.gate = n / 7 % 3;
    s.pad = n % 6 == 5 ? 8 : n % 6 == 2 ? 3 : 0;
    s.offset = n % 11 == 10; /* elements: not aligned */
    if (s.outs >= 40 && n % 3 != 1) { /* all of y's heads, or some of them */
        s.gate = s.activation = 0;
        s.head_dim = s.outs >= 96 && n % 2 ? 96 : 40;
        s.rotated_channels = n % 7 ? 24 : s.head_dim;
        s.rotated_heads = n % 5 ? s.outs / s.head_dim : 1;
    }
    if (s.weights == TD_LINEAR_INT8)
        s.ins = (s.ins + 7) / 8 * 8, s.offset = 0, s.pad = s.pad / 8 * 8;
    else if (s.weights)
        s.ins = td_linear_blocks_of(s.weights) >= TD_LINEAR_Q4_K ? 256 + n % 2 * 256 : 32 + n % 3 * 64, s.offset = 0;
    return s;
}

/* The same for a CPU, which takes no tiles. */
static tl_shape cpu_shape_of(uint32_t n)
{
    tl_shape s = shape_of(n);
    s.weights = td_linear_blocks_of(s.weights);
    return s;
}

static void test_cpu(void **state)
{
    static const char *const isas[] = {"c", "avx2", "avx512-vnni"};
    (void)state;
    for (uint32_t n = 0; n < 240; n++) {
        tl_shape s = cpu_shape_of(n);
        if (n % 8 == 3)
            s.dtype = TANDEM_DTYPE_F32;
        tl_case it = tl_make(s, n);
        if (!td_cpu_isa_force(isas[n / 8 % 3]))
            td_cpu_isa_force("c");
        it.on_cpu = true;
        kl_run(&it, &it.op, NULL, td_target_for_sm(0));
        tl_check(&it, 1);
        td_cpu_isa_force(NULL);
        tl_free(&it);
    }
}

/* A row by itself, which has a way of its own, has the bits that it has among others. */
static void test_one_row(void **state)
{
    static const char *const isas[] = {"c", "avx2", "avx512-vnni"};
    (void)state;
    for (uint32_t n = 0; n < 96; n++) {
        tl_shape s = cpu_shape_of(n);
        s.rows = 2 + n % 9;
        if (n % 3 == 0 && s.weights)
            s.ins = 1280; /* several steps */
        tl_case it = tl_make(s, n);
        const uint64_t element = s.y_dtype == TANDEM_DTYPE_F32 ? 4 : 2, bytes = s.outs * element;
        const char *y = (const char *)it.data[TL_Y] + s.offset * element;
        char *among = malloc(bytes);
        assert_non_null(among);
        if (!td_cpu_isa_force(isas[n / 8 % 3]))
            td_cpu_isa_force("c");
        kl_run(&it, &it.op, NULL, td_target_for_sm(0));
        memcpy(among, y, bytes);
        tl_poison(&it);
        it.op.linear.rows = 1;
        kl_run(&it, &it.op, NULL, td_target_for_sm(0));
        assert_memory_equal(among, y, bytes);
        td_cpu_isa_force(NULL);
        free(among);
        tl_free(&it);
    }
}

/* Whole numbers have the same bits with either instruction set. */
static void test_integers(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 72; n++) {
        tl_shape s = cpu_shape_of(n);
        s.weights = (td_linear_weights)(TD_LINEAR_Q8_0 + n % 3);
        s.ins = 32 * (1 + n % 70);
        s.offset = 0;
        s.rows = n % 8 ? 1 + n % 5 : 66;
        tl_case it = tl_make(s, n);
        void *y = malloc(it.bytes[TL_Y]);
        assert_non_null(y);
        it.on_cpu = true;
        if (td_cpu_isa_force("avx512-vnni") || td_cpu_isa_force("avx2")) {
            kl_run(&it, &it.op, NULL, td_target_for_sm(0));
            tl_check(&it, 13);
            memcpy(y, it.data[TL_Y], it.bytes[TL_Y]);
            tl_poison(&it);
            assert_true(td_cpu_isa_force("avx2"));
            kl_run(&it, &it.op, NULL, td_target_for_sm(0));
            assert_memory_equal(y, it.data[TL_Y], it.bytes[TL_Y]);
        }
        td_cpu_isa_force(NULL);
        free(y);
        tl_free(&it);
    }
}

/* What a daemon cuts has the bits of the whole; what commits, too. */
static void test_parts(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 24; n++) {
        tl_shape s = cpu_shape_of(n);
        s.rows = 129 + 50 * n;
        tl_case it = tl_make(s, n);
        const tandem_operands op = it.op;
        td_target target = td_target_for_sm(0);
        target.commit = n % 2;
        it.on_cpu = true;
        kl_run(&it, &op, NULL, target);
        tl_check(&it, 17);
        void *whole = malloc(it.bytes[TL_Y]);
        assert_non_null(whole);
        memcpy(whole, it.data[TL_Y], it.bytes[TL_Y]);
        tl_poison(&it);
        const uint32_t count = td_operation_linear.split(&op, 1 + n % 7);
        td_part_at at = {0};
        assert_in_range(count, 1, 1 + n % 7);
        target.commit = false;
        target.whole = &op;
        for (uint32_t p = 0; p < count; p++) {
            tandem_operands part;
            assert_int_equal(td_operation_linear.part(&op, 1 + n % 7, &at, &part), 0);
            kl_run(&it, &part, NULL, target);
        }
        assert_int_equal(at.row >= s.rows, 1);
        assert_memory_equal(whole, it.data[TL_Y], it.bytes[TL_Y]);
        free(whole);
        tl_free(&it);
    }
}

static void test_emulator(void **state)
{
    (void)state; /* 13: prime to all that shapes are chosen by */
    for (size_t m = 0; m < EM_MODULES; m++)
        for (uint32_t n = (uint32_t)m; n < 280; n += em_quick() ? 13 : em_modules[m].sm == 90 ? 2 : 4) {
            tl_shape s = shape_of(n);
            td_target target = td_target_for_sm(em_modules[m].sm);
            if (s.rows > 64 && s.weights >= TD_LINEAR_Q4_K)
                s.rows = 65;
            tl_case it = tl_make(s, n);
            target.commit = n % 8 == 7;
            target.multiprocessors = 1 + n % 5; /* blocks walk over several tiles */
            kl_run(&it, &it.op, &em_modules[m], target);
            check(&it);
            tl_free(&it);
        }
}

/* So many channels that each warp copies several runs of a row, the last of them short; rows begin at any address. */
static void test_long_rows(void **state)
{
    static const uint32_t rows[] = {3, 12, 30, 60};
    (void)state;
    for (size_t m = 0; m < EM_MODULES; m++)
        for (uint32_t n = (uint32_t)m % 4; n < 4 * TD_LINEAR_WEIGHTS; n += em_quick() ? 3 : 1) {
            tl_shape s = {.rows = rows[n % 4], .ins = 17 * 256, .outs = 21, .dtype = 1 + n % 2, .y_dtype = TANDEM_DTYPE_F32};
            s.weights = (td_linear_weights)(n / 4);
            if (s.weights == TD_LINEAR_INT8)
                s.ins -= 120;
            else if (s.weights < TD_LINEAR_Q4_K)
                s.ins -= 224;
            tl_case it = tl_make(s, n);
            kl_run(&it, &it.op, &em_modules[m], td_target_for_sm(em_modules[m].sm));
            check(&it);
            tl_free(&it);
        }
}

/* Two tiles a warp, of which the last may not be there, with all that sums are finished with; as in command buffers, and where blocks
 * have more shared memory. */
static void test_pairs(void **state)
{
    static const uint32_t rows[] = {17, 32, 33, 64}, outs[] = {144, 256, 240, 400}, ins[] = {640, 64, 192, 960};

    (void)state;
    for (size_t m = 0; m < EM_MODULES; m++)
        for (uint32_t i = 0; i < (em_modules[m].sm == 90 ? 36 : 12); i++) {
            const uint32_t n = i % 12;
            const tl_shape s = {.rows = rows[n % 4], .ins = ins[n / 3 % 4], .outs = outs[n / 2 % 4], .dtype = 1 + (n / 4 + i / 24) % 2,
                                .y_dtype = 1 + n % 3, .weights = TD_LINEAR_TILES, .gate = n % 3,
                                .activation = n % 3 ? TANDEM_ACTIVATION_SILU : 0, .bias_dtype = n % 2 ? TANDEM_DTYPE_F32 : 0,
                                .residual_dtype = n % 5 ? 0 : TANDEM_DTYPE_F32};
            tl_case it = tl_make(s, n);
            td_target target = td_target_for_sm(em_modules[m].sm);

            target.multiprocessors = 1; /* which few blocks are many for */
            if (i >= 12)
                target.shared_bytes = td_target_for_stream(target.sm).shared_bytes;
            kl_run(&it, &it.op, &em_modules[m], target);
            check(&it);
            tl_free(&it);
        }
}

/* Each form of Hopper's without tensor maps, whatever the plan would choose, with one tile and with several. */
static void test_inline_forms(void **state)
{
    static const tl_shape shapes[] = {{.rows = 65, .ins = 72, .outs = 65, .dtype = TANDEM_DTYPE_F16, .y_dtype = TANDEM_DTYPE_F16},
                                      {.rows = 200, .ins = 136, .outs = 300, .dtype = TANDEM_DTYPE_BF16,
                                       .y_dtype = TANDEM_DTYPE_F32, .bias_dtype = TANDEM_DTYPE_F32,
                                       .activation = TANDEM_ACTIVATION_SILU, .gate = TANDEM_GATE_HALVES},
                                      {.rows = 300, .ins = 64, .outs = 520, .dtype = TANDEM_DTYPE_F16, .y_dtype = TANDEM_DTYPE_F16}};
    em_module *on = em_module_of(90);
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (uint32_t form = 0; td_linear_form(form); form++) {
            tl_case it = tl_make(shapes[i], (uint32_t)i);
            td_target target = td_target_for_sm(90);
            td_plan *plan = calloc(1, sizeof *plan);
            uint64_t views[TL_VIEWS];
            char why[300] = "";
            assert_non_null(plan);
            target.multiprocessors = 2;
            target.twin = true;
            if (td_linear_plan_form(&it.op, &target, form, plan, why, sizeof why) == TANDEM_OK) {
                for (uint32_t v = 0; v < TL_VIEWS; v++)
                    views[v] = it.data[v] ? (uintptr_t)it.data[v] + td_view_in(&td_operation_linear.layout, &it.op, v)->offset_bytes : 0;
                em_launch_record(on, &plan->records[0], views, 0, form);
                check(&it);
            } else {
                assert_non_null(strstr(why, strncmp(td_linear_form(form), "wgmma", 5) ? "skinny is for" : "tensor maps"));
            }
            td_plan_free(plan);
            free(plan);
            tl_free(&it);
        }
}

/* Runs a form, whatever the plan would choose; false where it cannot be. */
static bool run_form(const tl_case *it, em_module *on, uint32_t form, uint32_t multiprocessors, bool on_stream, uint32_t seed)
{
    static td_plan plan;
    td_target target = td_target_for_sm(on->sm);
    if (on_stream)
        target.shared_bytes = td_target_for_stream(on->sm).shared_bytes;
    uint64_t views[TL_VIEWS];
    char why[300] = "";
    target.twin = true;
    target.multiprocessors = multiprocessors;
    if (td_linear_plan_form(&it->op, &target, form, &plan, why, sizeof why) != TANDEM_OK)
        return false;
    for (uint32_t v = 0; v < TL_VIEWS; v++)
        views[v] = it->data[v] ? (uintptr_t)it->data[v] + td_view_in(&td_operation_linear.layout, &it->op, v)->offset_bytes : 0;
    void *scratch = aligned_alloc(256, plan.scratch_bytes + 256);
    assert_non_null(scratch);
    for (uint32_t i = 0; i < plan.record_count; i++)
        em_launch_record(on, &plan.records[i], views, (uintptr_t)scratch, seed);
    free(scratch);
    return true;
}

/* Small tiles: rows around theirs, channels that are no whole step or fewer than the warps' steps, each epilogue somewhere. */
static void test_few_forms(void **state)
{
    static const uint32_t rows[] = {1, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129};
    static const uint32_t ins[] = {8, 24, 32, 72, 256, 264, 384, 520, 840, 1536, 2088};
    (void)state;
    for (uint32_t n = 0; n < 88; n += em_quick() ? 3 : 1) {
        em_module *on = &em_modules[n % EM_MODULES];
        tl_shape s = shape_of(n);
        uint32_t ran = 0;
        s.rows = rows[n / 2 % 12];
        s.ins = ins[n % 11];
        s.weights = TD_LINEAR_DENSE;
        s.pad = n % 5 ? 0 : 8;
        s.offset = 0;
        tl_case it = tl_make(s, n);
        for (uint32_t form = 0; td_linear_form(form); form++) {
            if (strncmp(td_linear_form(form), "few", 3))
                continue;
            tl_poison(&it);
            assert_true(run_form(&it, on, form, 0, false, n));
            check(&it);
            ran++;
        }
        tl_free(&it);
        assert_true(ran > 1);
    }
}

/* Each kernel that the emulator has, whatever plans would choose: of each kind of weights, both types, and all sizes. */
static void test_every_entry_was_run(void **state)
{
    static const uint32_t rows[] = {5, 12, 20, 60, 70};
    uint32_t missing = 0;
    (void)state;
    for (size_t m = 0; m < EM_MODULES; m++) {
        for (uint32_t n = 0; n < 10 * TD_LINEAR_WEIGHTS; n++) { /* tiles are unpacked by forms for any rows */
            const td_linear_weights kind = (td_linear_weights)(n / 10);
            /* of tiles so many blocks that one multiprocessor has no room for more, whose number is odd where pairs are to stand back */
            const uint32_t outs = kind < TD_LINEAR_TILES ? 24 : kind > TD_LINEAR_TILES ? 136 : 272;
            const uint32_t ins = td_linear_blocks_of(kind) >= TD_LINEAR_Q4_K ? 256 : 96;
            const tl_shape shape = {.rows = rows[n % 5], .ins = ins, .outs = outs, .dtype = 1 + n / 5 % 2, .y_dtype = TANDEM_DTYPE_F16,
                                    .weights = kind};
            tl_case it = tl_make(shape, n);
            for (uint32_t form = 0; td_linear_form(form); form++) {
                tl_poison(&it);
                if (run_form(&it, &em_modules[m], form, outs > 24, false, n))
                    tl_check(&it, em_quick() ? 11 : 3);
                if (kind == TD_LINEAR_TILES && run_form(&it, &em_modules[m], form, outs > 24, true, n))
                    tl_check(&it, em_quick() ? 11 : 3);
            }
            tl_free(&it);
        }
        for (size_t i = 0; i < em_modules[m].entry_count; i++)
            if (!strncmp(em_modules[m].entries[i], "linear", 6) && !em_modules[m].was_run[i] &&
                !strstr(em_modules[m].entries[i], "normed")) { /* those programs have: test_joined, test_kernels_llama */
                print_message("    %s of sm_%u was not run\n", em_modules[m].entries[i], em_modules[m].sm);
                missing++;
            }
    }
    assert_int_equal(missing, 0);
}

static void run_joined(void *user, const td_program *program, void *const *views, const uint64_t *bytes, uint32_t count)
{
    uint64_t addresses[JC_MOST_VIEWS];
    (void)bytes;
    for (uint32_t i = 0; i < count; i++)
        addresses[i] = (uintptr_t)views[i];
    for (uint32_t i = 0; i < program->plan->record_count; i++)
        em_launch_record(user, &program->plan->records[i], addresses, 0, i);
}

/* A norm and the layer behind it by one kernel: the same bits as by two. */
static void test_joined(void **state)
{
    (void)state;
    for (int m = 0; m < EM_MODULES; m++) {
        td_target target = td_target_for_sm(em_modules[m].sm);
        target.twin = true;
        for (uint32_t n = 0; n < JC_CASES && !(em_quick() && em_modules[m].sm != 90); n++) {
            jc_case it = jc_open(n, target);
            jc_check(&it, run_joined, &em_modules[m]);
            jc_close(&it);
        }
    }
}

/* Errors name the member and its value. */
static void test_refusals(void **state)
{
    static const tl_shape shape = {.rows = 4, .ins = 64, .outs = 8, .dtype = TANDEM_DTYPE_F16, .y_dtype = TANDEM_DTYPE_F32};
    char why[300];
    (void)state;
#define REFUSED(change, text)                                                                    \
    do {                                                                                         \
        tl_case it = tl_make(shape, 1);                                                          \
        tandem_linear *l = &it.op.linear;                                                        \
        (void)l;                                                                                 \
        change;                                                                                  \
        assert_int_equal(td_operation_linear.check(&it.op, why, sizeof why), TANDEM_ERROR_ARG);  \
        if (!strstr(why, text))                                                                  \
            fail_msg("%s", why);                                                                 \
        tl_free(&it);                                                                            \
    } while (0)
    REFUSED(l->rows = 0, "linear.rows is 0");
    REFUSED(l->outs = (1u << 30) + 1, "linear.outs is 1073741825");
    REFUSED(l->activation = 5, "linear.activation is 5");
    REFUSED(l->gate = 3, "linear.gate is 3");
    REFUSED(l->reserved[2] = 9, "linear.reserved[2] is 9");
    REFUSED(l->y.dtype = TANDEM_DTYPE_NONE, "linear.y.dtype is 0; without codes it must be 1");
    REFUSED(l->granularity = 3, "linear.granularity is 3; without codes it must be 0");
    REFUSED(l->statistics.dtype = TANDEM_DTYPE_F32, "linear.statistics.dtype is 3; without codes");
    REFUSED(l->heads = 2, "linear.heads is 2; without codes");
    REFUSED(l->head_dim = 32, "linear.head_dim is 32; without a rotation it must be 0");
    REFUSED(l->x.dtype = TANDEM_DTYPE_I8, "linear.x.dtype is 8");
    REFUSED(l->w.dtype = TANDEM_DTYPE_BF16, "linear.w.dtype is 2");
    REFUSED(l->w.dtype = TANDEM_DTYPE_Q4_K, "stride_row is 64; it must be a multiple of 256");
    REFUSED((l->w.dtype = TANDEM_DTYPE_Q8_0, l->ins = 48), "channels");
    REFUSED(l->w.dtype = TANDEM_DTYPE_Q8_0_TILES, "linear.w has 8 rows; weights in tiles have a multiple of 16");
    REFUSED((l->w.dtype = TANDEM_DTYPE_Q8_0_TILES, l->outs = l->y.stride_row = 16, l->w.stride_row = 128), "linear.w.stride_row is 128; of weights in tiles");
    REFUSED((l->w.dtype = TANDEM_DTYPE_Q8_0_TILES, l->w.offset_bytes = 8), "linear.w.offset_bytes is 8; it must be a multiple of 16");
    REFUSED((l->w.dtype = TANDEM_DTYPE_I8, l->ins = 12), "linear.ins is 12; with weights of i8 it must be a multiple of 8");
    REFUSED((l->w.dtype = TANDEM_DTYPE_I8, l->w.offset_bytes = 4), "linear.w.offset_bytes is 4");
    REFUSED(l->scale = (tandem_view){.dtype = TANDEM_DTYPE_F32}, "linear.scale.dtype is 3; only weights of i8");
#define ROTATES (l->rotation.dtype = TANDEM_DTYPE_F32, l->position.dtype = TANDEM_DTYPE_I32, \
                 l->positions = 3, l->head_dim = l->rotated_channels = 8, l->rotated_heads = 1, l->rotation.stride_row = 8)
    REFUSED(l->rotated_channels = 8, "linear.rotated_channels is 8; without a rotation it must be 0");
    REFUSED(l->position.dtype = TANDEM_DTYPE_I32, "linear.position.dtype is 6; without a rotation");
    REFUSED((ROTATES, l->position.dtype = 0), "linear.position.dtype is 0; with a rotation it must not be 0");
    REFUSED((ROTATES, l->gate = TANDEM_GATE_PAIRS), "linear.gate is 2; with a rotation");
    REFUSED((ROTATES, l->activation = TANDEM_ACTIVATION_SILU), "linear.activation is 3; with a rotation");
    REFUSED((ROTATES, l->head_dim = 12), "linear.head_dim is 12");
    REFUSED((ROTATES, l->rotated_channels = 16), "linear.rotated_channels is 16");
    REFUSED((ROTATES, l->rotated_channels = 4), "linear.rotated_channels is 4");
    REFUSED((ROTATES, l->rotated_heads = 2), "linear.rotated_heads is 2; outs is 8, which is 1 heads of 8");
    REFUSED((ROTATES, l->positions = (1u << 30) + 1), "linear.positions is 1073741825");
    REFUSED((ROTATES, l->rotation.dtype = TANDEM_DTYPE_F16), "linear.rotation.dtype is 1");
    REFUSED((ROTATES, l->position.dtype = TANDEM_DTYPE_F32), "linear.position.dtype is 3");
#undef ROTATES
    REFUSED(l->bias.dtype = TANDEM_DTYPE_I8, "linear.bias.dtype is 8");
    REFUSED(l->y.stride_row = 7, "linear.y.stride_row is 7");
#undef REFUSED
}

/* Which dtypes a GPU multiplies is the plan's to say. */
static void test_float32_on_gpus(void **state)
{
    static const tl_shape shape = {.rows = 4, .ins = 64, .outs = 8, .dtype = TANDEM_DTYPE_F32, .y_dtype = TANDEM_DTYPE_F32};
    tl_case it = tl_make(shape, 1);
    td_target target = td_target_for_sm(80);
    static td_plan plan;
    char why[300] = "";
    (void)state;
    target.twin = true; /* no cubin is asked for */
    assert_int_equal(td_operation_linear.check(&it.op, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_operation_linear.plan(&it.op, &target, &plan, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(why, "linear.x.dtype is 3 (f32)"));
    tl_free(&it);
}

/* Sizes that no grid holds are refused, not cut. */
static void test_too_many_blocks(void **state)
{
    tandem_operands op = {.linear = {.rows = 1u << 30, .ins = 1, .outs = 1u << 30}};
    tandem_view *const views[] = {&op.linear.x, &op.linear.w, &op.linear.y};
    static td_plan plan;
    (void)state;
    for (int i = 0; i < 3; i++)
        *views[i] = (tandem_view){.dtype = TANDEM_DTYPE_F16, .stride_row = i < 2 ? 8 : 1 << 30};
    for (uint32_t sm = 0; sm <= 90; sm += 90) {
        td_target target = td_target_for_stream(sm);
        char why[300] = "";
        if (sm && !td_cubin_for_sm(sm, why, sizeof why))
            continue;
        assert_int_equal(td_operation_linear.check(&op, why, sizeof why), TANDEM_OK);
        assert_int_equal(td_operation_linear.plan(&op, &target, &plan, why, sizeof why), TANDEM_ERROR_ARG);
        assert_non_null(strstr(why, "1073741824"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cpu),      cmocka_unit_test(test_one_row), cmocka_unit_test(test_integers),      cmocka_unit_test(test_parts),
                                       cmocka_unit_test(test_emulator), cmocka_unit_test(test_long_rows),    cmocka_unit_test(test_pairs), cmocka_unit_test(test_inline_forms),
                                       cmocka_unit_test(test_few_forms),
                                       cmocka_unit_test(test_joined), cmocka_unit_test(test_refusals),    cmocka_unit_test(test_float32_on_gpus), cmocka_unit_test(test_too_many_blocks)};
    const struct CMUnitTest last[] = {cmocka_unit_test(test_every_entry_was_run)};
    const test_cases forms = TEST_CASES(tests), whole = TEST_CASES(last), *const parts[] = {&forms, &kernels_linear_codes_cases, &whole};
    if (!em_open_all(TD_EMU_FOLDER))
        return 1;
    return run_cases("linear layers", parts, sizeof parts / sizeof *parts, NULL, NULL);
}
