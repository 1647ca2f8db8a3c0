/* What is in Q, K and V: NaN and infinities, scores beyond what floats resolve. Every attention kernel, on the emulator and by
 * its twin, and the CPU's, against float64: a fault that the twin has too shows here.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * test_kernels_values [--seed N] [--quick]
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "interop/base.h"
#include "kernels/attention/cpu.h"
#include "tests/kernels/attention_compare.h"
#include "tests/kernels/emu_modules.h"

enum { THREADS = 2, F16 = TANDEM_PRECISION_F16, B8 = TANDEM_PRECISION_8B, B4 = TANDEM_PRECISION_4B };
enum { HALF = TANDEM_DTYPE_F16, BFLOAT = TANDEM_DTYPE_BF16, FLOAT = TANDEM_DTYPE_F32 };

static uint64_t seed = 1;
static bool quick;
#ifdef __SANITIZE_ADDRESS__
enum { SANITIZED = 1 }; /* values are the plain build's to judge: here they are for what is read and written */
#else
enum { SANITIZED = 0 };
#endif

/* A kernel; sm 0: the CPU's. few: so few multiprocessors that blocks have several tiles. */
typedef struct way {
    uint32_t sm, stream, precision, dtype, head_dim;
    td_rows rows;
    uint32_t few;
} way;

static const way ways[] = {
    {0, 0, B8, HALF, 64, 0, 0}, {0, 0, B4, FLOAT, 32, 0, 0}, {0, 0, F16, HALF, 80, 0, 0},
    {0, 0, F16, BFLOAT, 64, 0, 0}, {80, 0, B8, HALF, 64, 0, 0}, {80, 0, B4, FLOAT, 32, 0, 0},
    {80, 0, F16, HALF, 64, 0, 0}, {89, 0, B8, HALF, 64, 0, 0}, {89, 0, B4, BFLOAT, 64, 0, 0},
    {89, 0, F16, HALF, 32, 0, 0}, {90, 0, B8, FLOAT, 256, 0, 0}, {90, 0, B4, HALF, 32, 0, 0},
    {90, 0, F16, HALF, 32, 0, 0}, {90, 0, F16, FLOAT, 64, 0, 0}, {120, 0, B8, HALF, 64, 0, 0},
    {120, 0, F16, BFLOAT, 32, 0, 0},
    /* wgmma, 8B: on streams, then in command buffers */
    {90, 1, B8, HALF, 32, TD_SHORT_ROWS, 0}, {90, 1, B8, BFLOAT, 64, TD_MOST_ROWS, 0},
    {90, 1, B8, HALF, 64, TD_MOST_ROWS, 1}, {90, 1, B8, BFLOAT, 96, TD_MOST_ROWS, 1},
    {90, 1, B8, HALF, 128, TD_MOST_ROWS, 0}, {90, 1, B8, HALF, 64, TD_SPLIT_ROWS, 0},
    {90, 1, B8, BFLOAT, 128, TD_SPLIT_ROWS, 1}, {90, 1, B8, HALF, 64, TD_PAIR_ROWS, 0},
    {90, 1, B8, HALF, 256, 0, 0}, {90, 0, B8, HALF, 32, TD_SHORT_ROWS, 0},
    {90, 0, B8, HALF, 64, TD_MOST_ROWS, 0}, {90, 0, B8, BFLOAT, 128, TD_MOST_ROWS, 0},
    {90, 0, B8, HALF, 96, TD_SPLIT_ROWS, 0}, {90, 0, B8, HALF, 64, TD_PAIR_ROWS, 0},
    /* wgmma, F16 */
    {90, 1, F16, HALF, 64, TD_MOST_ROWS, 0}, {90, 1, F16, BFLOAT, 64, TD_MOST_ROWS, 1},
    {90, 1, F16, HALF, 64, TD_PAIR_ROWS, 0}, {90, 1, F16, HALF, 64, TD_SPLIT_ROWS, 0},
    {90, 1, F16, BFLOAT, 128, TD_SPLIT_ROWS, 0}, {90, 1, F16, HALF, 80, TD_MOST_ROWS, 0},
    {90, 1, F16, BFLOAT, 96, TD_MOST_ROWS, 0}, {90, 1, F16, HALF, 128, TD_MOST_ROWS, 1},
    {90, 0, F16, HALF, 64, TD_SHORT_ROWS, 0}, {90, 0, F16, BFLOAT, 80, TD_MOST_ROWS, 0},
    {90, 0, F16, HALF, 96, TD_MOST_ROWS, 1}, {90, 0, F16, HALF, 128, TD_SHORT_ROWS, 0},
};
enum { WAYS = sizeof ways / sizeof *ways };

/* Rows of O and lse against float64's: NaN where those are and nowhere else, zeros of rows without keys. */
static void check_rows(const char *who, const tu_case *it, const tu_tensor *o, const tu_tensor *lse, double most_l1)
{
    const tandem_attention *op = &it->op;
    /* By how much scores may be off: those of codes by their step, of 4B by that of both operands, and clipped. */
    const double step = op->precision == F16 ? 1.0 / 2048 : op->precision == B8 ? 1.0 / 127 : 1.0 / 4;
    double *got = tu_values(o), *sums = tu_values(lse), difference = 0, size = 0;

    for (size_t row = 0; row < (size_t)op->batch * op->heads * op->q_len; row++) {
        const double want_lse = it->ref_lse[row], got_lse = sums[row];
        uint32_t bad = 0;

        for (uint32_t c = 0; c < op->head_dim; c++) {
            const double x = got[row * op->head_dim + c], want = it->ref_o[row * op->head_dim + c];

            bad += !isfinite(x);
            if (isfinite(want) && isfinite(x)) {
                difference += fabs(x - want);
                size += fabs(want);
            }
            if (isnan(want) && !isnan(x))
                fail_msg("%s: element %u of row %zu is %g instead of NaN", who, c, row, x);
        }
        if (!isnan(want_lse) && bad)
            fail_msg("%s: %u elements of row %zu are not finite", who, bad, row);
        if (isnan(got_lse) != isnan(want_lse) || (want_lse == -INFINITY) != (got_lse == -INFINITY))
            fail_msg("%s: lse of row %zu is %g instead of %g", who, row, got_lse, want_lse);
        if (isfinite(want_lse) && most_l1 > 0 && !(fabs(got_lse - want_lse) <= 0.3 + step * fabs(want_lse)))
            fail_msg("%s: lse of row %zu is %.9g instead of %.9g", who, row, got_lse, want_lse);
    }
    if (most_l1 > 0 && !(difference <= most_l1 * size))
        fail_msg("%s: O is %g from float64's, %g is the most", who, difference / size, most_l1);
    free(got);
    free(sums);
}

/* On the CPU by each instruction set, or by the twin; then by the kernel itself. most_l1 0: the values are not compared. */
static void check(const way *on, tu_case *it, uint64_t number, double most_l1)
{
    static const char *const isas[] = {"c", "avx2", "avx512-vnni"};
    const td_attention_options options = {.rows = on->rows};
    td_target target = on->stream ? td_target_for_stream(on->sm) : td_target_for_sm(on->sm);
    char who[200];

    target.twin = true;
    target.attention = &options;
    if (on->few)
        target.multiprocessors = 1 + number % 3;
    tu_case_ref(it);
    for (int isa = 0; isa < (on->sm ? 1 : 3); isa++) {
        if (!on->sm && !td_cpu_isa_force(isas[isa]))
            continue;
        assert_int_equal(tu_case_run(it, &target, THREADS), TANDEM_OK);
        snprintf(who, sizeof who, "case %llu, %s of sm_%u, q%u kv%u d%u causal %u, %s", (unsigned long long)number,
                 it->plan.records[it->plan.record_count - 1].kernel->name, on->sm, it->op.q_len, it->op.kv_len,
                 it->op.head_dim, it->op.causal, on->sm ? "twin" : isas[isa]);
        check_rows(who, it, &it->o, &it->lse, most_l1);
    }
    td_cpu_isa_force(NULL);
    if (!on->sm)
        return;
    tu_tensor o = tu_tensor_like(&it->o), lse = tu_tensor_like(&it->lse);
    const uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)it->q.data, (uintptr_t)it->k.data, (uintptr_t)it->v.data,
                                           (uintptr_t)o.data, (uintptr_t)lse.data};
    void *scratch = aligned_alloc(256, td_align_up(it->plan.scratch_bytes + 256, 256));
    assert_non_null(scratch);
    memset(scratch, TU_POISON, it->plan.scratch_bytes);
    tu_poison(&o);
    tu_poison(&lse);
    for (uint32_t i = 0; i < it->plan.record_count; i++)
        em_launch_record(em_module_of(on->sm), &it->plan.records[i], views, (uintptr_t)scratch, seed * 1000 + number);
    memcpy(strrchr(who, ',') + 2, "GPU", 4);
    check_rows(who, it, &o, &lse, most_l1);
    free(scratch);
    tu_tensor_free(&o);
    tu_tensor_free(&lse);
}

static void make(tu_case *it, const way *on, uint32_t q_len, uint32_t kv_len, uint32_t causal, uint32_t smooth, float scale,
                 uint64_t number)
{
    tu_case_init(it, &(tu_shape){.heads = 2,
                                 .kv_heads = 1 + number % 2,
                                 .q_len = q_len,
                                 .kv_len = kv_len,
                                 .head_dim = on->head_dim,
                                 .causal = causal,
                                 .precision = on->precision,
                                 .smooth = smooth,
                                 .scale = scale,
                                 .dtype_q = on->dtype,
                                 .dtype_k = on->dtype,
                                 .dtype_v = on->dtype,
                                 .lse = 1,
                                 .v_bias = 1,
                                 .seed = seed * 1000 + number});
}

/* Sets each element of a tensor to what `of` makes of it. */
static void change(tu_tensor *x, double (*of)(double, double), double by)
{
    for (uint32_t h = 0; h < x->heads; h++)
        for (uint32_t r = 0; r < x->rows; r++)
            for (uint32_t c = 0; c < x->dim; c++)
                tu_set(x, 0, h, r, c, of(tu_get(x, 0, h, r, c), by));
}

static double times(double x, double by)
{
    return x * by;
}

static double magnitude(double x, double by)
{
    return fabs(x) * by;
}

/* --- NaN and infinities --- */

/* Some values anywhere; then the contract of types.h, in its own words, against float64's. */
static void spoil(tu_case *it, uint64_t *state)
{
    static const double values[] = {NAN, INFINITY, -INFINITY};
    tu_tensor *tensors[] = {&it->q, &it->k, &it->v};
    const uint32_t count = 1 + (uint32_t)(tu_random(state) % 3);

    if (tu_random(state) % 2) { /* scores of one sign: so an infinity may be of one in all rows */
        change(&it->q, magnitude, 1);
        change(&it->k, magnitude, tu_random(state) % 2 ? -1 : 1);
    }
    for (uint32_t i = 0; i < count; i++) {
        tu_tensor *x = tensors[tu_random(state) % 3];
        const uint32_t h = (uint32_t)(tu_random(state) % x->heads), r = (uint32_t)(tu_random(state) % x->rows);

        tu_set(x, 0, h, r, (uint32_t)(tu_random(state) % x->dim), values[tu_random(state) % 3]);
    }
}

static bool row_is_finite(const tu_tensor *x, uint32_t h, uint32_t r)
{
    for (uint32_t c = 0; c < x->dim; c++)
        if (!isfinite(tu_get(x, 0, h, r, c)))
            return false;
    return true;
}

static void check_contract(const tu_case *it)
{
    const tandem_attention *op = &it->op;
    bool *spoilt = malloc(op->kv_heads * op->kv_len * sizeof *spoilt); /* keys, by head */

    assert_non_null(spoilt);
    for (uint32_t h = 0; h < op->kv_heads; h++)
        for (uint32_t j = 0; j < op->kv_len; j++)
            spoilt[h * op->kv_len + j] = !row_is_finite(&it->k, h, j) || !row_is_finite(&it->v, h, j);
    for (uint32_t h = 0; h < op->heads; h++)
        for (uint32_t i = 0; i < op->q_len; i++) {
            bool poisoned = false, some = false;

            for (uint32_t j = 0; j < op->kv_len; j++)
                if (!op->causal || (int64_t)j <= (int64_t)i + op->kv_len - op->q_len) {
                    some = true;
                    poisoned |= spoilt[h / (op->heads / op->kv_heads) * op->kv_len + j];
                }
            poisoned |= some && !row_is_finite(&it->q, h, i);
            for (uint32_t c = 0; c < op->head_dim; c++)
                assert_int_equal(isnan(it->ref_o[(h * op->q_len + i) * op->head_dim + c]) != 0, poisoned);
        }
    free(spoilt);
}

static void test_what_is_not_finite(void **state)
{
    static const uint32_t lengths[] = {1, 63, 64, 65, 130, 200, 300};
    const uint32_t cases = quick ? 3 : 9;

    (void)state;
    for (uint32_t i = 0; i < WAYS; i++)
        for (uint32_t n = 0; n < cases; n++) {
            const uint64_t number = i * 100 + n;
            uint64_t random = seed * 1000003 + number;
            tu_case it;

            make(&it, &ways[i], lengths[tu_random(&random) % 6], lengths[tu_random(&random) % 7], (i + n) % 2, 0, 0, number);
            spoil(&it, &random);
            check(&ways[i], &it, number, 0);
            check_contract(&it);
            tu_case_free(&it);
        }
}

/* -inf in K is a score of -inf in every row of one sign, or -inf in one row of Q in all of its scores: P of it is 0, and so
 * nothing shows but that score. By each lane of a warp, in each part of a step. */
static void test_scores_of_minus_infinity(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < WAYS; i++)
        for (uint32_t n = 0; n < (quick ? 2 : 6); n++) {
            const uint64_t number = 10000 + i * 100 + n;
            const uint32_t kv_len = n % 3 ? 257 : 64, row = (uint32_t)(17 * n + 5 * i) % 64;
            tu_case it;

            make(&it, &ways[i], 65, kv_len, n / 3, 0, 0, number);
            change(&it.q, magnitude, 1);
            change(&it.k, magnitude, 1);
            if (n % 2)
                tu_set(&it.k, 0, 0, (uint32_t)(31 * n + 7 * i) % kv_len, 0, -INFINITY);
            else
                tu_set(&it.q, 0, 0, row, i % it.op.head_dim, -INFINITY);
            check(&ways[i], &it, number, 0);
            check_contract(&it);
            tu_case_free(&it);
        }
}

/* --- Scores that floats do not resolve --- */

/* Row r's key is 7 r modulo the keys, and all others are far from it. */
static void set_far_apart(tu_case *it, double size)
{
    for (uint32_t key = 0; key < it->op.kv_len; key++)
        for (uint32_t c = 0; c < it->op.head_dim; c++) {
            uint64_t state = key * 1000 + c;
            const double x = tu_random(&state) % 2 ? size : -size;

            for (uint32_t h = 0; h < it->op.kv_heads; h++)
                tu_set(&it->k, 0, h, key, c, x);
            for (uint32_t row = 0; row < it->op.q_len; row++)
                for (uint32_t h = 0; h < it->op.heads; h++)
                    if (7 * row % it->op.kv_len == key)
                        tu_set(&it->q, 0, h, row, c, x);
        }
}

/* All keys alike, from `from` on; those before are nothing. */
static void set_alike(tu_case *it, double size, uint32_t from)
{
    change(&it->q, magnitude, 1);
    for (uint32_t h = 0; h < it->op.kv_heads; h++)
        for (uint32_t r = 0; r < it->op.kv_len; r++)
            for (uint32_t c = 0; c < it->op.head_dim; c++)
                tu_set(&it->k, 0, h, r, c, r < from ? 0 : size * (1 + c % 3));
}

static void test_far_scores(void **state)
{
    static const struct {
        enum { NORMAL, APART, ALIKE, ALIKE_BELOW, LATE } kind;
        float size, scale;
    } kinds[] = {{NORMAL, 6000, 0},    {NORMAL, 1, 1e7f},    {NORMAL, 1, 1e10f},    {NORMAL, 6000, 1e10f},
                 {APART, 6000, 0},     {APART, 30000, 0},    {APART, 3000, 1e10f},  {APART, 1, 1e20f},
                 {ALIKE, 6000, 1e3f},  {ALIKE, 6000, 1e10f}, {ALIKE_BELOW, 6000, 1e3f}, {ALIKE_BELOW, 100, 1e10f},
                 {LATE, 6000, 1e3f},   {LATE, 6000, 1e10f}};

    (void)state;
    for (uint32_t i = 0; i < WAYS; i++)
        for (uint32_t n = 0; n < sizeof kinds / sizeof *kinds; n++) {
            const uint64_t number = 20000 + i * 100 + n;
            const bool exact = ways[i].precision == F16 || kinds[n].kind != NORMAL;
            tu_case it;

            if ((i + n) % (!quick ? 2 : SANITIZED ? 12 : 4))
                continue;
            make(&it, &ways[i], 70, 600, n % 3 == 1, exact ? TANDEM_SMOOTH_NONE : 0, kinds[n].scale, number);
            switch (kinds[n].kind) {
            case NORMAL:
                change(&it.q, times, (double)kinds[n].size);
                change(&it.k, times, (double)kinds[n].size);
                break;
            case APART: set_far_apart(&it, (double)kinds[n].size); break;
            case LATE: set_alike(&it, (double)kinds[n].size, 300); break;
            default: set_alike(&it, (double)(kinds[n].kind == ALIKE ? kinds[n].size : -kinds[n].size), 0);
            }
            /* Codes of int8 and int4 say no more which of some normal keys is the nearest, and sums in float32 may take the second
             * of two in a few rows of a hundred. */
            check(&ways[i], &it, number, !exact ? 0 : ways[i].precision != F16 ? 0.06 : kinds[n].kind == NORMAL ? 0.03 : 0.003);
            tu_case_free(&it);
        }
}

/* Through the range in which floats of the size of scores become further apart than P may be: most keys of a row have one score. */
static void test_scores_that_grow(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < WAYS; i++)
        for (int power = quick ? 22 : 18; power <= 34; power += !quick ? 1 : SANITIZED ? 10 : 5) {
            const uint64_t number = 40000 + i * 100 + (uint64_t)power;
            tu_case it;

            if (!quick && (i + (uint32_t)power) % 3)
                continue;
            make(&it, &ways[i], 40, 400, 0, TANDEM_SMOOTH_NONE, (float)ldexp(1.37, power) / (float)ways[i].head_dim, number);
            set_alike(&it, 1, power % 2 ? 0 : 200);
            check(&ways[i], &it, number, ways[i].precision == F16 ? 0.003 : 0.06);
            tu_case_free(&it);
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_not_finite),
        cmocka_unit_test(test_scores_of_minus_infinity),
        cmocka_unit_test(test_far_scores),
        cmocka_unit_test(test_scores_that_grow),
    };

    if (getenv("TANDEM_TEST_FILTER"))
        cmocka_set_test_filter(getenv("TANDEM_TEST_FILTER"));
    quick = getenv("TANDEM_SANITIZED") != NULL;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--quick") == 0) {
            quick = true;
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            seed = strtoull(argv[++i], NULL, 0);
        } else {
            fprintf(stderr, "usage: test_kernels_values [--seed N] [--quick]\n");
            return 2;
        }
    if (!em_open_all(TD_EMU_FOLDER))
        return 1;
    printf("seed %llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
