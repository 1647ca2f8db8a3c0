/* Operations of images, conv, gather, demodulate and reproject, against float64: on the CPU with each instruction set, by plans for a GPU there, and
 * on the emulated GPUs; refusals.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/conv/conv.h"
#include "kernels/cpu/cpu.h"
#include "kernels/demodulate/demodulate.h"
#include "kernels/gather/gather.h"
#include "kernels/reproject/reproject.h"
#include "tests/kernels/conv_cases.h"
#include "tests/kernels/kernels_util.h"

/* Runs it everywhere, where `check` looks at what it wrote, and that nothing else is written. Every `n`th by a plan that commits. */
static void run_everywhere(ku_case *it, uint32_t n, void (*check)(const ku_case *it))
{
    static const char *const isas[] = {"c", "avx2", NULL};
    const em_module *const one = &em_modules[n % EM_MODULES];
    td_target target;

    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
        if (td_cpu_isa_force(isas[i])) {
            ku_run_on(it, NULL, td_target_for_sm(0), 1);
            check(it);
        }
    target = td_target_for_sm(one->sm);
    target.commit = n % 2;
    ku_run_on(it, NULL, target, 1);
    check(it);
    for (size_t m = 0; m < EM_MODULES; m++) {
        target = td_target_for_sm(em_modules[m].sm);
        target.commit = m == n % EM_MODULES;
        ku_run_on(it, &em_modules[m], target, 1);
        check(it);
    }
    for (uint32_t i = 0; i < it->operation->layout.view_count; i++)
        if (it->operation->layout.views[i].written && it->tensors[i].data)
            assert_int_equal(tu_spoilt(&it->tensors[i]), 0);
}

/* --- conv --- */

/* By wgmma, each block with one part after the other, or all at once: which kernel depends on how many can run at a time. */
static void run_in_turns(ku_case *it)
{
    for (size_t m = 0; m < EM_MODULES; m++)
        for (size_t i = 0; i < sizeof cv_multiprocessors / sizeof *cv_multiprocessors && em_modules[m].sm == 90; i++) {
            td_target target = td_target_for_sm(90);
            target.multiprocessors = cv_multiprocessors[i];
            ku_run_on(it, &em_modules[m], target, 1);
            cv_check(it);
        }
}

static void test_conv(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < CV_CASES; n++) {
        ku_case it = cv_case(n);
        run_everywhere(&it, n, cv_check);
        run_in_turns(&it);
        ku_free(&it);
    }
}

static void test_every_conv_was_run(void **state)
{
    (void)state;
    em_family_was_run("conv");
}

static void test_conv_refusals(void **state)
{
    ku_case it = cv_make(4, 6, 7, 16, 16, 32);

    (void)state;
#define REFUSES(text, ...)                       \
    do {                                         \
        tandem_operands op = it.op;              \
        __VA_ARGS__;                             \
        ku_refuses(it.operation, &op, text);     \
    } while (0)
    REFUSES("conv.height is 0", op.conv.height = 0);
    REFUSES("conv.width is 65537; it must be at most 65536", op.conv.width = 65537);
    REFUSES("conv.channels is 24; it must be a multiple of 16", op.conv.channels = 24);
    REFUSES("conv.coarse_channels is 0, and conv.coarse is there", op.conv.coarse_channels = 0);
    REFUSES("conv.coarse_channels is 16, and conv.coarse is not there", op.conv.coarse.dtype = 0);
    REFUSES("conv.outs is 24; it must be a multiple of 32", op.conv.outs = 24, op.conv.shuffle = 2);
    REFUSES("conv.size is 5; it must be 1 or 3", op.conv.size = 5);
    REFUSES("conv.stride is 3", op.conv.stride = 3);
    REFUSES("conv.shuffle is 3", op.conv.shuffle = 3);
    REFUSES("conv.relu is 2", op.conv.relu = 2);
    REFUSES("conv.reserved is not 0", op.conv.reserved[1] = 1);
    REFUSES("conv.x.dtype is 3", op.conv.x.dtype = TANDEM_DTYPE_F32);
    REFUSES("conv.x: an image reaches over more than 2^34 elements", op.conv.x.stride_head = INT64_C(1) << 33);
    REFUSES("conv.coarse: an image reaches over more than 2^34 elements", op.conv.coarse.stride_row = INT64_C(1) << 34);
    REFUSES("conv.w: offset_bytes must be a multiple of 16", op.conv.w.offset_bytes = 8);
    REFUSES("conv.y: offset_bytes must be a multiple of 16, strides of 8", op.conv.y.stride_row += 4);
    ku_free(&it);
}

/* --- gather --- */

enum { Q, K, V, FACTOR, K_COARSE, V_COARSE, GATHER_BIAS, O, K_BEFORE, V_BEFORE };

/* What is optional in it. */
typedef struct gather_views {
    bool coarse, factor, before;
} gather_views;

static ku_case make_gather_of(uint32_t n, tandem_gather numbers, gather_views has)
{
    ku_case it = {.operation = &td_operation_gather, .op.gather = numbers};

    ku_random(&it, Q, TANDEM_DTYPE_F16, n, 8 * n);
    ku_random(&it, K, TANDEM_DTYPE_F16, n / 2, 8 * n + 1);
    ku_random(&it, V, TANDEM_DTYPE_F32, n / 3, 8 * n + 2);
    if (has.factor) {
        it.op.gather.factor.dtype = TANDEM_DTYPE_F32;
        ku_random(&it, FACTOR, TANDEM_DTYPE_F32, n, 8 * n + 3);
    }
    if (has.coarse) {
        it.op.gather.k_coarse.dtype = TANDEM_DTYPE_F16;
        it.op.gather.v_coarse.dtype = TANDEM_DTYPE_F32;
        ku_random(&it, K_COARSE, TANDEM_DTYPE_F16, n / 3, 8 * n + 4);
        ku_random(&it, V_COARSE, TANDEM_DTYPE_F32, n, 8 * n + 5);
    }
    if (has.before) {
        it.op.gather.k_before.dtype = TANDEM_DTYPE_F16;
        it.op.gather.v_before.dtype = TANDEM_DTYPE_F32;
        ku_random(&it, K_BEFORE, TANDEM_DTYPE_F16, n / 2, 8 * n + 300);
        ku_random(&it, V_BEFORE, TANDEM_DTYPE_F32, n, 8 * n + 301);
    }
    if (n % 5) {
        it.op.gather.bias.dtype = TANDEM_DTYPE_F32;
        ku_random(&it, GATHER_BIAS, TANDEM_DTYPE_F32, 0, 8 * n + 6);
    }
    ku_random(&it, O, TANDEM_DTYPE_F32, n / 2, 8 * n + 7);
    for (int view = V; view <= V_COARSE; view += V_COARSE - V) { /* weights: 0 for every third pixel, and below 0 as it comes */
        tu_tensor *v = &it.tensors[view];
        for (uint32_t i = 0; v->data && i < v->batch * v->heads * v->rows; i++) {
            const uint32_t b = i / v->rows / v->heads, y = i / v->rows % v->heads, x = i % v->rows;
            tu_set(v, b, y, x, 3, i % 3 || v->rows == 1 ? tu_get(v, b, y, x, 3) : 0);
        }
    }
    return it;
}

static ku_case make_gather(uint32_t n, uint32_t height, uint32_t width)
{
    const bool is_coarse = n % 3 == 1;
    tandem_gather numbers = {.batch = 1 + n % 2, .height = height, .width = width, .dim = n % 4 < 2 ? 8 : 16, .radius = n % 5,
                             .coarse_radius = n / 2 % 2, .step = is_coarse ? n % 2 : n % 3, .channels = 3 + n / 2 % 2};

    if (numbers.step == 2 && !numbers.radius)
        numbers.radius = 2;
    const gather_views has = {.coarse = is_coarse, .factor = n % 4 == 3, .before = numbers.step != 2 && n / 3 % 2};
    return make_gather_of(n, numbers, has);
}

/* A key of a query: of k, k_coarse, or k_before. */
static void add_key(const ku_case *it, int of, uint32_t b, const uint32_t query[2], int64_t y, int64_t x, uint32_t tap, double most, double sums[5])
{
    const tandem_gather *g = &it->op.gather;
    const tu_tensor *k = &it->tensors[of], *v = &it->tensors[of == K ? V : of == K_COARSE ? V_COARSE : V_BEFORE], *factor = &it->tensors[FACTOR];
    double score = it->tensors[GATHER_BIAS].data ? tu_get(&it->tensors[GATHER_BIAS], 0, 0, 0, tap) : 0;

    if (y < 0 || x < 0 || y >= k->heads || x >= k->rows)
        return;
    for (uint32_t d = 0; d < g->dim; d++)
        score += tu_get(&it->tensors[Q], b, query[0], query[1], d) * tu_get(k, b, (uint32_t)y, (uint32_t)x, d);
    const double weight = exp(score - most) * fmax(tu_get(v, b, (uint32_t)y, (uint32_t)x, 3), 0);
    for (uint32_t c = 0; c < 3; c++)
        sums[c] += weight * tu_get(v, b, (uint32_t)y, (uint32_t)x, c) * (factor->data && of == K ? tu_get(factor, b, (uint32_t)y, (uint32_t)x, c) : 1);
    sums[3] += weight;
    sums[4] = score > sums[4] ? score : sums[4];
}

static void add_keys(const ku_case *it, uint32_t b, const uint32_t query[2], double most, double sums[5])
{
    const tandem_gather *g = &it->op.gather;
    const int64_t step = g->step == 2 ? 2 : 1, before = step == 2 ? (int64_t)g->radius - 1 : g->radius;
    const uint32_t taps = step == 2 ? 2 * g->radius : 2 * g->radius + 1, coarse_taps = g->k_coarse.dtype ? 2 * g->coarse_radius + 1 : 0;

    for (uint32_t i = 0; i < taps * taps; i++)
        add_key(it, K, b, query, query[0] * step - before + i / taps, query[1] * step - before + i % taps, i, most, sums);
    for (uint32_t i = 0; i < coarse_taps * coarse_taps; i++)
        add_key(it, K_COARSE, b, query, (int64_t)(query[0] / 2) - g->coarse_radius + i / coarse_taps, (int64_t)(query[1] / 2) - g->coarse_radius + i % coarse_taps,
                taps * taps + i, most, sums);
    if (it->tensors[K_BEFORE].data)
        add_key(it, K_BEFORE, b, query, query[0], query[1], taps * taps + coarse_taps * coarse_taps, most, sums);
}

static void check_gather(const ku_case *it)
{
    const tu_tensor *o = &it->tensors[O];

    for (uint32_t b = 0; b < o->batch; b++)
        for (uint32_t i = 0; i < o->heads; i++)
            for (uint32_t j = 0; j < o->rows; j++) {
                const uint32_t query[2] = {i, j};
                double sums[5] = {0, 0, 0, 0, -DBL_MAX}, again[5] = {0};
                add_keys(it, b, query, 0, sums);
                add_keys(it, b, query, sums[4], again);
                for (uint32_t c = 0; c < 3; c++) {
                    const double wanted = again[3] > 0 ? again[c] / again[3] : 0;
                    assert_true(fabs(tu_get(o, b, i, j, c) - wanted) <= 2e-5 * (1 + fabs(wanted)));
                }
                const double before = it->tensors[V_BEFORE].data ? fmax(tu_get(&it->tensors[V_BEFORE], b, i, j, 3), 0) : 0;
                if (o->dim == 4)
                    assert_true(fabs(tu_get(o, b, i, j, 3) - (again[3] > 0) - before) <= 1e-6 * (1 + before));
            }
}

static const struct {
    uint32_t height, width;
} gather_sizes[] = {{1, 1}, {8, 16}, {9, 17}, {23, 5}, {5, 37}};

static void test_gather(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 30; n++) {
        ku_case it = make_gather(n, gather_sizes[n % 5].height, gather_sizes[n % 5].width);
        run_everywhere(&it, n, check_gather);
        ku_free(&it);
    }
}

static void assert_entry(const ku_case *it, const char *entry)
{
    const td_target target = td_target_for_sm(em_modules[0].sm);
    td_plan plan = {0};
    char why[300] = "";

    if (it->operation->plan(&it->op, &target, &plan, why, sizeof why))
        fail_msg("%s", why);
    assert_string_equal(plan.records[0].kernel->entry, entry);
    td_plan_free(&plan);
}

/* Kernels for some windows alone, and the one for all where these are others by one view. */
static void test_gather_windows(void **state)
{
#define WINDOWS(entry, taps, coarse, step, queries, may_have_before, has_factor) {#entry, taps, coarse, step, may_have_before, has_factor},
    static const struct {
        const char *entry;
        uint32_t taps, coarse_taps, step;
        bool may_have_before, has_factor;
    } windows[] = {TD_GATHER_KERNELS(WINDOWS)};

    (void)state;
    for (uint32_t n = 0; n < 5 * sizeof windows / sizeof *windows; n++) {
        const uint32_t w = n / 5, height = gather_sizes[n % 5].height, width = gather_sizes[n % 5].width;
        const tandem_gather numbers = {.batch = 1 + n % 2,
                                       .height = height,
                                       .width = width,
                                       .dim = 8,
                                       .radius = windows[w].taps / 2,
                                       .coarse_radius = windows[w].coarse_taps / 2,
                                       .step = windows[w].step,
                                       .channels = 3 + n / 2 % 2};
        gather_views has = {.coarse = windows[w].coarse_taps, .factor = windows[w].has_factor,
                            .before = windows[w].may_have_before && n % 2};
        ku_case it = make_gather_of(n, numbers, has);
        assert_entry(&it, windows[w].entry);
        run_everywhere(&it, n, check_gather);
        ku_free(&it);
        has.factor = !has.factor;
        it = make_gather_of(n, numbers, has);
        assert_entry(&it, "gather");
        ku_free(&it);
    }
}

static void test_gather_refusals(void **state)
{
    ku_case it = make_gather(1, 6, 7);

    (void)state;
    REFUSES("gather.width is 0", op.gather.width = 0);
    REFUSES("gather.dim is 12; it must be 8 or 16", op.gather.dim = 12);
    REFUSES("gather.radius is 5; it must be 0 to 4", op.gather.radius = 5);
    REFUSES("gather.radius is 0; it must be 1 to 4", op.gather.step = 2, op.gather.radius = 0);
    REFUSES("gather.step is 3", op.gather.step = 3);
    REFUSES("gather.step is 2, and k_coarse is there", op.gather.step = 2);
    REFUSES("gather.coarse_radius is 2", op.gather.coarse_radius = 2);
    REFUSES("gather.channels is 5", op.gather.channels = 5);
    REFUSES("gather.k_coarse and v_coarse must both be there, or neither", op.gather.v_coarse.dtype = 0);
    REFUSES("gather.k_before and v_before must both be there, or neither", op.gather.k_before.dtype = TANDEM_DTYPE_F16);
    REFUSES("gather.step is 2, and k_before is there", op.gather.step = 2, op.gather.k_coarse.dtype = op.gather.v_coarse.dtype = 0,
            op.gather.k_before.dtype = TANDEM_DTYPE_F16, op.gather.v_before.dtype = TANDEM_DTYPE_F32);
    REFUSES("gather.v.dtype is 1", op.gather.v.dtype = TANDEM_DTYPE_F16);
    REFUSES("gather.k: offset_bytes must be a multiple of 16, strides of 8", op.gather.k.offset_bytes = 2);
    REFUSES("gather.reserved is not 0", op.gather.reserved[0] = 1);
    ku_free(&it);
}

/* --- demodulate --- */

enum { COLOR, ALBEDO, NORMAL, DEPTH, LIGHT, MODULATION, TOKENS, HISTORY };

static ku_case make_demodulate(uint32_t n, uint32_t height, uint32_t width)
{
    const uint32_t dtype = n % 3 ? TANDEM_DTYPE_F32 : TANDEM_DTYPE_F16;
    ku_case it = {.operation = &td_operation_demodulate, .op.demodulate = {.batch = 1 + n % 2, .height = height, .width = width}};

    ku_random(&it, COLOR, dtype, n, 9 * n);
    for (uint32_t view = ALBEDO; view <= DEPTH; view++)
        if (n % 4 != view)
            ku_random(&it, view, dtype, n / 2, 9 * n + view);
    if (n / 2 % 2) {
        it.op.demodulate.history.dtype = TANDEM_DTYPE_F32;
        ku_random(&it, HISTORY, TANDEM_DTYPE_F32, n, 9 * n + 8);
    }
    ku_random(&it, LIGHT, TANDEM_DTYPE_F32, n / 2, 0);
    ku_random(&it, MODULATION, TANDEM_DTYPE_F32, n / 3, 0);
    ku_random(&it, TOKENS, TANDEM_DTYPE_F16, n, 0);
    for (uint32_t view = COLOR; view <= DEPTH; view++) { /* what is not finite; dark albedos */
        tu_tensor *t = &it.tensors[view];
        for (uint32_t i = 0; t->data && n && i < t->batch * t->heads * t->rows; i++)
            for (uint32_t c = 0; c < t->dim; c++) {
                const uint32_t b = i / t->rows / t->heads, y = i / t->rows % t->heads, x = i % t->rows;
                if (i % 5 == 3 && view == ALBEDO)
                    tu_set(t, b, y, x, c, 0.01 * (c + i % 2));
                if ((i + c) % 11 == view)
                    tu_set(t, b, y, x, c, i % 2 ? (double)NAN : (double)INFINITY);
            }
    }
    return it;
}

static double read(const ku_case *it, uint32_t view, uint32_t b, uint32_t y, uint32_t x, uint32_t c, double absent)
{
    const double value = it->tensors[view].data ? tu_get(&it->tensors[view], b, y, x, c) : absent;
    return isfinite(value) ? value : 0;
}

static bool read_color(const ku_case *it, uint32_t b, uint32_t y, uint32_t x, double color[3])
{
    bool there = true;

    for (uint32_t c = 0; c < 3; c++)
        there = there && isfinite(tu_get(&it->tensors[COLOR], b, y, x, c));
    for (uint32_t c = 0; c < 3; c++)
        color[c] = there ? fmax(tu_get(&it->tensors[COLOR], b, y, x, c), 0) : 0;
    return there;
}

static void measure(const ku_case *it, uint32_t b, double *exposure, double *far)
{
    const tandem_demodulate *d = &it->op.demodulate;
    double logs = 0, depths = 0;
    uint32_t tiles = 0, count = 0;

    for (uint32_t top = 0; top < d->height; top += 16)
        for (uint32_t left = 0; left < d->width; left += 16) {
            double sum = 0;
            uint32_t pixels = 0;
            for (uint32_t y = top; y < d->height && y < top + 16; y++)
                for (uint32_t x = left; x < d->width && x < left + 16; x++) {
                    double color[3];
                    const double depth = read(it, DEPTH, b, y, x, 0, 0);
                    pixels += read_color(it, b, y, x, color);
                    sum += 0.2126 * color[0] + 0.7152 * color[1] + 0.0722 * color[2];
                    depths += depth > 1e-8 ? log(depth) : 0;
                    count += depth > 1e-8;
                }
            if (pixels && sum / pixels > 1e-8) {
                logs += log(sum / pixels);
                tiles++;
            }
        }
    *exposure = tiles ? exp(-logs / tiles) : 1;
    *far = count ? exp(depths / count) : 1;
}

static void near(double is, double wanted, double relative)
{
    if (!(fabs(is - wanted) <= relative * fabs(wanted) + 1e-7))
        fail_msg("%g is not %g", is, wanted);
}

static void check_demodulate(const ku_case *it)
{
    const tandem_demodulate *d = &it->op.demodulate;
    const tu_tensor *tokens = &it->tensors[TOKENS];

    for (uint32_t b = 0; b < d->batch; b++) {
        double exposure, far;
        measure(it, b, &exposure, &far);
        for (uint32_t y = 0; y < 2 * tokens->heads; y++)
            for (uint32_t x = 0; x < 2 * tokens->rows; x++) {
                const uint32_t count = it->tensors[HISTORY].data ? 16 : 12, first = count * (y % 2 * 2 + x % 2);
                double channels[16] = {0}, color[3], albedo[3];
                if (y < d->height && x < d->width) {
                    const bool there = read_color(it, b, y, x, color);
                    const double depth = read(it, DEPTH, b, y, x, 0, 0);
                    for (uint32_t c = 0; c < 3; c++)
                        albedo[c] = read(it, ALBEDO, b, y, x, c, 1);
                    const double dark = (double)0.1f;
                    const bool emits = albedo[0] <= 0 && albedo[1] <= 0 && albedo[2] <= 0;
                    for (uint32_t c = 0; c < 3; c++) {
                        const double modulation = emits ? 1 : fmin(fmax(albedo[c], dark), 1), light = color[c] / modulation;
                        near(tu_get(&it->tensors[MODULATION], b, y, x, c), modulation, 1e-6);
                        near(tu_get(&it->tensors[LIGHT], b, y, x, c), light, 1e-6);
                        channels[c] = log1p(exposure * light);
                        channels[3 + c] = fmin(fmax(albedo[c], 0), 1);
                        channels[6 + c] = fmin(fmax(read(it, NORMAL, b, y, x, c, 0), -1), 1);
                    }
                    channels[9] = depth > 0 ? depth / (depth + far) : 0;
                    channels[10] = there;
                    channels[11] = emits;
                    for (uint32_t c = 0; c < 4 && count == 16; c++) {
                        const double value = fmax(read(it, HISTORY, b, y, x, c, 0), 0);
                        channels[12 + c] = c < 3 ? log1p(exposure * value) : value / (1 + value);
                    }
                    assert_true(tu_get(&it->tensors[LIGHT], b, y, x, 3) == there);
                }
                for (uint32_t c = 0; c < count; c++)
                    near(tu_get(tokens, b, y / 2, x / 2, first + c), channels[c], 0x1.1p-11);
            }
    }
}

static void test_demodulate(void **state)
{
    static const struct {
        uint32_t height, width;
    } sizes[] = {{1, 1}, {16, 16}, {17, 35}, {2, 60}, {33, 31}};

    (void)state;
    for (uint32_t n = 0; n < 20; n++) {
        ku_case it = make_demodulate(n, sizes[n % 5].height, sizes[n % 5].width);
        run_everywhere(&it, n, check_demodulate);
        ku_free(&it);
    }
}

/* Most pixels were never traced: every fourth is there, or a tile has none, or nobody has. */
static void test_demodulate_missing(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 6; n++) {
        ku_case it = make_demodulate(n + 1, 20, 35);
        tu_tensor *color = &it.tensors[COLOR];
        for (uint32_t i = 0; i < color->batch * 20 * 35; i++) {
            const uint32_t b = i / 35 / 20, y = i / 35 % 20, x = i % 35;
            if (n % 3 == 0 ? !(y % 2 && x % 2) : n % 3 == 1 ? x < 32 && y > 2 && (x < 16 || y < 16) : true)
                tu_set(color, b, y, x, i % 3, (double)NAN);
        }
        run_everywhere(&it, n, check_demodulate);
        ku_free(&it);
    }
}

/* Light of 1 is in a token log(1 + 1), as in a frame that is whole: what is missing is not dark. */
static void check_exposure(const ku_case *it)
{
    check_demodulate(it);
    for (uint32_t y = 1; y < it->op.demodulate.height; y += 2)
        for (uint32_t x = 1; x < it->op.demodulate.width; x += 2)
            near(tu_get(&it->tensors[TOKENS], 0, y / 2, x / 2, 3 * 12), log(2), 0x1p-10);
}

static void test_demodulate_exposure(void **state)
{
    ku_case it = {.operation = &td_operation_demodulate, .op.demodulate = {.batch = 1, .height = 20, .width = 35}};

    (void)state;
    ku_random(&it, COLOR, TANDEM_DTYPE_F32, 0, 0);
    for (uint32_t i = 0; i < 20 * 35 * 3; i++)
        tu_set(&it.tensors[COLOR], 0, i / 3 / 35, i / 3 % 35, i % 3, i / 3 / 35 % 2 && i / 3 % 35 % 2 ? 1 : (double)NAN);
    ku_random(&it, LIGHT, TANDEM_DTYPE_F32, 0, 0);
    ku_random(&it, MODULATION, TANDEM_DTYPE_F32, 0, 0);
    ku_random(&it, TOKENS, TANDEM_DTYPE_F16, 0, 0);
    run_everywhere(&it, 0, check_exposure);
    ku_free(&it);
}

static void test_demodulate_refusals(void **state)
{
    ku_case it = make_demodulate(7, 6, 7);

    (void)state;
    REFUSES("demodulate.batch is 0", op.demodulate.batch = 0);
    REFUSES("demodulate.color.dtype is 2", op.demodulate.color.dtype = TANDEM_DTYPE_BF16);
    REFUSES("demodulate.tokens.dtype is 3", op.demodulate.tokens.dtype = TANDEM_DTYPE_F32);
    REFUSES("demodulate.reserved is 1", op.demodulate.reserved = 1);
    REFUSES("demodulate.history.dtype is 1", op.demodulate.history.dtype = TANDEM_DTYPE_F16);
    ku_free(&it);
}

/* --- reproject --- */

enum { BEFORE, MOTION, VALID, NOW_NORMAL, NOW_DEPTH, THEN_NORMAL, THEN_DEPTH, SEEN };

/* Surfaces of either frame are one of four, so that none is nearly the same as another; some are none, or not finite. */
static ku_case make_reproject(uint32_t n, uint32_t height, uint32_t width)
{
    const uint32_t dtype = n % 2 ? TANDEM_DTYPE_F32 : TANDEM_DTYPE_F16;
    ku_case it = {.operation = &td_operation_reproject, .op.reproject = {.batch = 1 + n % 2, .height = height, .width = width}};

    ku_random(&it, BEFORE, TANDEM_DTYPE_F32, n, 7 * n);
    ku_random(&it, MOTION, dtype, n / 2, 7 * n + 1);
    for (uint32_t view = VALID; view <= THEN_DEPTH; view++) {
        const bool is_normal = view == NOW_NORMAL || view == THEN_NORMAL;
        if (n & (view == VALID ? 4 : is_normal ? 8 : 2)) {
            *td_view_of(&it.operation->layout, &it.op, view) = (tandem_view){.dtype = dtype};
            ku_random(&it, view, dtype, n / 3, 7 * n + view);
        }
    }
    ku_random(&it, SEEN, TANDEM_DTYPE_F32, n / 2, 0);
    for (uint32_t view = BEFORE; view < SEEN; view++) {
        tu_tensor *t = &it.tensors[view];
        for (uint32_t i = 0; t->data && i < t->batch * t->heads * t->rows; i++) {
            const uint32_t b = i / t->rows / t->heads, y = i / t->rows % t->heads, x = i % t->rows;
            const uint32_t surface = (i * 2654435761u >> 20) % 4;
            for (uint32_t c = 0; c < t->dim; c++) {
                if (view == NOW_NORMAL || view == THEN_NORMAL)
                    tu_set(t, b, y, x, c, surface == c ? 0.7 : 0);
                if (view == NOW_DEPTH || view == THEN_DEPTH)
                    tu_set(t, b, y, x, c, surface == 3 ? (view == NOW_DEPTH ? -1 : 0) : 1 << surface);
                if (view == BEFORE && c == 3)
                    tu_set(t, b, y, x, c, i % 5 ? 20.0 * (i % 7) : -3);
                if (view == VALID)
                    tu_set(t, b, y, x, c, i % 6 ? 1 : 0);
                if (view == MOTION)
                    tu_set(t, b, y, x, c, 2 * tu_get(t, b, y, x, c));
                if ((i + c) % 37 == view + 1)
                    tu_set(t, b, y, x, c, i % 2 ? (double)NAN : (double)INFINITY);
            }
        }
    }
    return it;
}

static bool is_same(const ku_case *it, uint32_t b, const uint32_t now[2], const uint32_t then[2])
{
    double both = 0, lengths[2] = {0}, depths[2] = {0};

    for (uint32_t c = 0; c < 3; c++) {
        const double p = read(it, NOW_NORMAL, b, now[0], now[1], c, 0), q = read(it, THEN_NORMAL, b, then[0], then[1], c, 0);
        both += p * q, lengths[0] += p * p, lengths[1] += q * q;
    }
    depths[0] = fmax(read(it, NOW_DEPTH, b, now[0], now[1], 0, 0), 0);
    depths[1] = fmax(read(it, THEN_DEPTH, b, then[0], then[1], 0, 0), 0);
    return both >= 0.5 * sqrt(lengths[0] * lengths[1]) && fabs(depths[0] - depths[1]) <= 0.1 * depths[0];
}

static void reproject_one(const ku_case *it, uint32_t b, uint32_t y, uint32_t x, double out[4])
{
    const tu_tensor *before = &it->tensors[BEFORE];
    const double across = tu_get(&it->tensors[MOTION], b, y, x, 0), along = tu_get(&it->tensors[MOTION], b, y, x, 1);
    const double valid = it->tensors[VALID].data ? tu_get(&it->tensors[VALID], b, y, x, 0) : 1;
    double sums[4] = {0};

    memset(out, 0, 4 * sizeof *out);
    if (!(valid > 0) || !isfinite(across) || !isfinite(along))
        return;
    for (int tap = 0; tap < 4; tap++) {
        const double top = floor((double)y + along), left = floor((double)x + across);
        const double row = top + tap / 2, column = left + tap % 2;
        const double share = (1 - fabs((double)y + along - row)) * (1 - fabs((double)x + across - column));
        if (row < 0 || column < 0 || row >= before->heads || column >= before->rows)
            continue;
        const uint32_t now[2] = {y, x}, then[2] = {(uint32_t)row, (uint32_t)column};
        const double weight = tu_get(before, b, then[0], then[1], 3);
        double light[3];
        for (uint32_t c = 0; c < 3; c++)
            light[c] = tu_get(before, b, then[0], then[1], c);
        if (!(weight > 0) || !isfinite(light[0] + light[1] + light[2] + weight) || !is_same(it, b, now, then))
            continue;
        for (uint32_t c = 0; c < 3; c++)
            sums[c] += light[c] * share * weight;
        sums[3] += share * weight;
    }
    for (uint32_t c = 0; c < 3 && sums[3] > 0; c++)
        out[c] = sums[c] / sums[3];
    out[3] = fmin(sums[3], 32);
}

static void check_reproject(const ku_case *it)
{
    const tu_tensor *o = &it->tensors[SEEN];
    uint32_t seen = 0;

    for (uint32_t b = 0; b < o->batch; b++)
        for (uint32_t y = 0; y < o->heads; y++)
            for (uint32_t x = 0; x < o->rows; x++) {
                double wanted[4];
                reproject_one(it, b, y, x, wanted);
                seen += wanted[3] > 0;
                if (wanted[3] > 0 && wanted[3] < 1e-3) /* shares of next to nothing: differences of numbers near to each other */
                    continue;
                for (uint32_t c = 0; c < 4; c++)
                    assert_true(fabs(tu_get(o, b, y, x, c) - wanted[c]) <= 1e-2 * (wanted[3] < 0.1) + 1e-4 * (1 + fabs(wanted[c])));
            }
    assert_true(seen > 0 || o->heads * o->rows < 60);
}

static void test_reproject(void **state)
{
    static const struct {
        uint32_t height, width;
    } sizes[] = {{1, 1}, {8, 32}, {9, 33}, {2, 70}, {31, 15}};

    (void)state;
    for (uint32_t n = 0; n < 16; n++) {
        ku_case it = make_reproject(n, sizes[n % 5].height, sizes[n % 5].width);
        run_everywhere(&it, n, check_reproject);
        ku_free(&it);
    }
}

static void test_reproject_refusals(void **state)
{
    ku_case it = make_reproject(14, 6, 7);

    (void)state;
    REFUSES("reproject.width is 0", op.reproject.width = 0);
    REFUSES("reproject.history.dtype is 1", op.reproject.history.dtype = TANDEM_DTYPE_F16);
    REFUSES("reproject.motion.dtype is 2", op.reproject.motion.dtype = TANDEM_DTYPE_BF16);
    REFUSES("reproject.normal and normal_before must both be there, or neither", op.reproject.normal.dtype = 0);
    REFUSES("reproject.depth and depth_before must both be there, or neither", op.reproject.depth_before.dtype = 0);
    REFUSES("reproject.reserved is 1", op.reproject.reserved = 1);
    ku_free(&it);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv), cmocka_unit_test(test_every_conv_was_run), cmocka_unit_test(test_conv_refusals),
        cmocka_unit_test(test_gather), cmocka_unit_test(test_gather_windows), cmocka_unit_test(test_gather_refusals),
        cmocka_unit_test(test_demodulate), cmocka_unit_test(test_demodulate_missing), cmocka_unit_test(test_demodulate_exposure),
        cmocka_unit_test(test_demodulate_refusals),
        cmocka_unit_test(test_reproject), cmocka_unit_test(test_reproject_refusals)};

    if (!em_open_all(TD_EMU_FOLDER))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
