/* The arithmetic that tables are made of: variants against plans, tensor cores and float64; properties of attention;
 * random shapes and strides.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * `test_accuracy --cases 10000 [--seed N]` runs that many random shapes instead of the short run.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/attention/cpu.h"
#include "kernels/attention/cpu/variants.h"
#include "tests/kernels/attention_util.h"

static uint32_t cases = 60;
static uint64_t first_seed = 1;

/* One dense head of floats. */
typedef struct one_head {
    float *q, *k, *v, *o;
    double *exact;
    td_head head;
    size_t n;
} one_head;

static float *randoms(size_t n, uint64_t seed, double offset)
{
    float *x = malloc((n + 1) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(tu_normal(&seed) + offset);
    return x;
}

static one_head make_head(uint32_t q_len, uint32_t kv_len, uint32_t dim, double v_offset, uint64_t seed)
{
    one_head it = {.q = randoms((size_t)q_len * dim, seed * 3, 0),
                   .k = randoms((size_t)kv_len * dim, seed * 3 + 1, 0),
                   .v = randoms((size_t)kv_len * dim, seed * 3 + 2, v_offset),
                   .n = (size_t)q_len * dim};
    it.o = malloc(it.n * sizeof *it.o);
    it.exact = malloc(it.n * sizeof *it.exact);
    assert_true(it.o && it.exact);
    it.head = (td_head){.q = it.q,
                        .k = it.k,
                        .v = it.v,
                        .q_len = q_len,
                        .kv_len = kv_len,
                        .dim = dim,
                        .scale = (float)(1 / sqrt((double)dim))};
    return it;
}

static void free_head(one_head *it)
{
    free(it->q);
    free(it->k);
    free(it->v);
    free(it->o);
    free(it->exact);
}

static double error_of(const one_head *it)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < it->n; i++) {
        difference += fabs((double)it->o[i] - it->exact[i]);
        size += fabs(it->exact[i]);
    }
    return difference / size;
}

static double run(one_head *it, const td_arithmetic *how)
{
    assert_true(td_variant_attention(how, &it->head, it->o, 2));
    assert_true(td_exact_attention(&it->head, it->exact, 2));
    return error_of(it);
}

static td_arithmetic named(const char *name)
{
    td_arithmetic how;
    assert_true(td_arithmetic_named(name, &how));
    return how;
}

static void exact_is_the_oracle(void **state)
{
    (void)state;
    static const uint32_t shapes[][4] = {
        {5, 7, 32, 0}, {130, 300, 80, 0}, {64, 200, 128, 1}, {40, 20, 64, 1}, {9, 513, 256, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        one_head it = make_head(shapes[i][0], shapes[i][1], shapes[i][2], 0, i + 1);
        it.head.causal = shapes[i][3];
        const tandem_view dense = {.dtype = TANDEM_DTYPE_F32, .stride_row = shapes[i][2]};
        const tandem_attention op = {.q = dense,
                                     .k = dense,
                                     .v = dense,
                                     .o = dense,
                                     .batch = 1,
                                     .heads = 1,
                                     .kv_heads = 1,
                                     .q_len = shapes[i][0],
                                     .kv_len = shapes[i][1],
                                     .head_dim = shapes[i][2],
                                     .scale = it.head.scale,
                                     .causal = shapes[i][3]};
        double *oracle = malloc(it.n * sizeof *oracle);
        assert_non_null(oracle);
        td_ref_attention(&op, it.q, it.k, it.v, oracle, NULL);
        assert_true(td_exact_attention(&it.head, it.exact, 2));
        assert_true(tu_max_abs(it.exact, oracle, it.n) < 1e-13);
        /* and a variant without any rounding of operands comes within float's own */
        const td_arithmetic none = {.qk = TD_QK_F32, .pv = TD_PV_F32, .two_level = true, .flush_keys = 64};
        assert_true(td_variant_attention(&none, &it.head, it.o, 1));
        assert_true(error_of(&it) < 2e-6);
        free(oracle);
        free_head(&it);
    }
}

/* 8b and 4b as variants with a float accumulator are the product's own: same codes, so the same output but for the
 * order of sums and the last bit of ex2. */
static void variants_are_the_plans(void **state)
{
    (void)state;
    static const uint32_t precisions[] = {TANDEM_PRECISION_8B, TANDEM_PRECISION_4B};
    static const char *const names[] = {"8b", "4b"};
    const td_target target = td_target_for_sm(0);
    for (int p = 0; p < 2; p++)
        for (uint32_t granularity = TANDEM_GRANULARITY_THREAD_ADA; granularity <= TANDEM_GRANULARITY_TENSOR;
             granularity++) {
            tu_case it;
            tu_case_init(&it, &(tu_shape){.q_len = 200,
                                          .kv_len = 333,
                                          .head_dim = 64,
                                          .precision = precisions[p],
                                          .granularity = granularity,
                                          .k_bias = 2,
                                          .v_bias = 1,
                                          .seed = granularity,
                                          .causal = granularity % 2});
            assert_int_equal(tu_case_run(&it, &target, 2), TANDEM_OK);
            td_arithmetic how = named(names[p]);
            how.granularity = granularity;
            how.accumulator = TD_ACCUMULATOR_F32;
            const td_head head = {.q = it.q.data,
                                  .k = it.k.data,
                                  .v = it.v.data,
                                  .q_len = 200,
                                  .kv_len = 333,
                                  .dim = 64,
                                  .causal = it.op.causal,
                                  .scale = 0.125f};
            float o[200 * 64];
            assert_true(td_variant_attention(&how, &head, o, 2));
            double difference = 0, size = 0;
            for (size_t i = 0; i < 200 * 64; i++) {
                difference += fabs((double)o[i] - (double)((const float *)it.o.data)[i]);
                size += fabs((double)o[i]);
            }
            assert_true(difference / size < 3e-4); /* a few codes of P fall to the other side of a tie */
            tu_case_free(&it);
        }
}

/* Sums on the 13-bit accumulator are the twin's, to the bit: one key with P = 1, many values of V, and a sum before. */
static void accumulator_is_the_twins(void **state)
{
    (void)state;
    static const uint32_t units[] = {TD_ACCUMULATOR_ADA_MMA, TD_ACCUMULATOR_WGMMA};
    for (int u = 0; u < 2; u++)
        for (uint64_t seed = 1; seed < 9; seed++) {
            /* Q = 0: every P is 448, so O * 448 * 64 n / 448 is the unit's own sum of V's codes. */
            one_head it = make_head(1, 128, 16, seed % 2 ? 3 : 0, seed);
            memset(it.q, 0, 16 * sizeof *it.q);
            for (size_t i = 0; i < 128 * 16; i++) /* codes as they are: E4M3 values, the largest 448 */
                it.v[i] = td_from_e4m3(td_to_e4m3(it.v[i] * expf((float)(i % 7) * 0.9f)));
            for (size_t c = 0; c < 16; c++)
                it.v[c] = 448;
            td_arithmetic how = named("8b");
            how.two_level = false;
            how.accumulator = units[u];
            assert_true(td_variant_attention(&how, &it.head, it.o, 1));
            for (uint32_t c = 0; c < 16; c++) {
                float sum = 0;
                for (uint32_t first = 0; first < 128; first += 32) {
                    uint8_t p[32], v[32];
                    for (uint32_t j = 0; j < 32; j++) {
                        p[j] = td_to_e4m3(448);
                        v[j] = td_to_e4m3(it.v[(first + j) * 16 + c]);
                    }
                    sum = td_twin_mma_e4m3(units[u], p, v, sum);
                }
                const float l = exp2f(TD_LOG2_448) * 128; /* 448 after rounding, as the softmax has it */
                assert_true(fabsf(it.o[c] - sum / l) <= 4e-7f * fabsf(sum / l));
            }
            free_head(&it);
        }
}

static void instruction_sets_agree(void **state)
{
    (void)state;
    static const char *const modes[] = {"8b", "4b", "sage1", "smoothattn", "hadamard", "fa3fp8", "fa3fp8-tensor"};
    one_head it = make_head(70, 300, 80, 1, 5);
    float *first = malloc(it.n * sizeof *first);
    assert_non_null(first);
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
        const td_arithmetic how = named(modes[m]);
        assert_true(td_cpu_isa_force("c"));
        assert_true(td_variant_attention(&how, &it.head, first, 1));
        static const char *const isas[] = {"avx2", "avx512-vnni", NULL};
        for (int i = 0; i < 3; i++) {
            if (!td_cpu_isa_force(isas[i]))
                continue;
            for (uint32_t threads = 1; threads < 4; threads += 2) {
                assert_true(td_variant_attention(&how, &it.head, it.o, threads));
                assert_memory_equal(it.o, first, it.n * sizeof *first);
            }
        }
    }
    td_cpu_isa_force(NULL);
    free(first);
    free_head(&it);
}

static void impossible_is_refused(void **state)
{
    (void)state;
    td_arithmetic how = named("4b");
    one_head it = make_head(4, 4, 32, 0, 1);
    assert_false(td_arithmetic_named("5b", &how));
    how = named("4b");
    how.flush_keys = 96;
    assert_false(td_variant_attention(&how, &it.head, it.o, 1));
    how.flush_keys = 128;
    how.v_scale = TD_V_BLOCK;
    assert_false(td_variant_attention(&how, &it.head, it.o, 1));
    how = named("4b");
    it.head.dim = 24;
    assert_false(td_variant_attention(&how, &it.head, it.o, 1));
    free_head(&it);
}

/* Smoothing and transforms leave the exact product alone: without rounding all of them give the exact output. */
static void smoothing_is_an_identity(void **state)
{
    (void)state;
    one_head it = make_head(150, 260, 64, 5, 3);
    for (size_t i = 0; i < (size_t)150 * 64; i++)
        it.q[i] += (float)(i % 64 % 5) - 2;
    for (size_t i = 0; i < (size_t)260 * 64; i++)
        it.k[i] += (float)(i % 64 % 7) - 3;
    for (uint32_t smooth = 0; smooth < 16; smooth += 2)
        for (int transform = TD_TRANSFORM_NONE; transform <= TD_TRANSFORM_HADAMARD; transform++) {
            const td_arithmetic how = {.qk = TD_QK_F32,
                                       .pv = TD_PV_F32,
                                       .smooth = smooth,
                                       .two_level = true,
                                       .transform = (td_transform)transform,
                                       .flush_keys = 128,
                                       .seed = smooth};
            assert_true(run(&it, &how) < 2e-5);
        }
    free_head(&it);

    /* The same once more in float64: S - (S of the smoothed) is constant along each row. */
    uint64_t seed = 9;
    enum { N = 12, M = 30, D = 32 };
    double q[N][D], k[M][D], q_mean[D] = {0}, k_mean[D] = {0};
    for (int c = 0; c < D; c++) {
        for (int i = 0; i < N; i++)
            q_mean[c] += (q[i][c] = tu_normal(&seed) + c) / N;
        for (int j = 0; j < M; j++)
            k_mean[c] += (k[j][c] = tu_normal(&seed) - 2 * c) / M;
    }
    for (int i = 0; i < N; i++) {
        double constant = 0;
        for (int j = 0; j < M; j++) {
            double s = 0, smoothed = 0, delta = 0;
            for (int c = 0; c < D; c++) {
                s += q[i][c] * k[j][c];
                smoothed += (q[i][c] - q_mean[c]) * (k[j][c] - k_mean[c]);
                delta += q_mean[c] * (k[j][c] - k_mean[c]);
            }
            if (j == 0)
                constant = s - smoothed - delta;
            assert_true(fabs(s - smoothed - delta - constant) < 1e-9 * fabs(constant));
            assert_true(fabs(delta) > 1e-3 || j > 0); /* delta-S is no constant: it must be kept */
        }
    }
}

/* The product's modes. `limit` is what two outputs may differ by, relative L1. */
typedef struct mode {
    uint32_t precision;
    double error, limit;
} mode;
static const mode modes[] = {
    {TANDEM_PRECISION_8B, 0.06, 0.004}, {TANDEM_PRECISION_4B, 0.3, 0.02}, {TANDEM_PRECISION_F16, 0.002, 0.0015}};
enum { MODES = sizeof modes / sizeof *modes };

static tu_case case_of(const tu_shape *shape)
{
    tu_case it;
    tu_case_init(&it, shape);
    return it;
}

static double *output(tu_case *it)
{
    const td_target target = td_target_for_sm(0);
    assert_int_equal(tu_case_run(it, &target, 2), TANDEM_OK);
    return tu_values(&it->o);
}

static void shifts_change_nothing(void **state)
{
    (void)state;
    for (int m = 0; m < MODES; m++) {
        const tu_shape shape = {.heads = 2,
                                .q_len = 140,
                                .kv_len = 256,
                                .head_dim = 64,
                                .seed = 4,
                                .lse = 1,
                                .precision = modes[m].precision,
                                .smooth = TANDEM_SMOOTH_K | TANDEM_SMOOTH_V |
                                          (modes[m].precision == TANDEM_PRECISION_4B ? TANDEM_SMOOTH_Q : 0)};
        tu_case plain = case_of(&shape), moved = case_of(&shape);
        const size_t n = (size_t)2 * 140 * 64;
        for (uint32_t h = 0; h < 2; h++)
            for (uint32_t r = 0; r < 256; r++)
                for (uint32_t c = 0; c < 64; c++) { /* steps of 1/4: mean and difference stay exact enough */
                    tu_set(&moved.k, 0, h, r, c, tu_get(&moved.k, 0, h, r, c) + 0.25 * (c % 9));
                    tu_set(&moved.v, 0, h, r, c, tu_get(&moved.v, 0, h, r, c) + 0.5 * (c % 5));
                }
        double *a = output(&plain), *b = output(&moved);
        for (size_t i = 0; i < n; i++)
            b[i] -= 0.5 * (double)(i % 64 % 5);
        assert_true(tu_relative_l1(b, a, n) < modes[m].limit);
        tu_case_ref(&moved); /* lse has q . k_mean in it again */
        assert_true(tu_case_lse_error(&moved) < 0.2);
        free(a);
        free(b);
        tu_case_free(&plain);
        tu_case_free(&moved);
    }
}

static void keys_may_be_permuted(void **state)
{
    (void)state;
    for (int m = 0; m < MODES; m++) {
        /* one scale a token, so that a key's group moves with it; within tiles, so that P keeps its running maximum */
        const tu_shape shape = {.q_len = 65,
                                .kv_len = 192,
                                .head_dim = 32,
                                .seed = 6,
                                .precision = modes[m].precision,
                                .granularity = TANDEM_GRANULARITY_TOKEN};
        tu_case plain = case_of(&shape), mixed = case_of(&shape);
        for (uint32_t r = 0; r < 192; r++)
            for (uint32_t c = 0; c < 32; c++) {
                const uint32_t to = r / 64 * 64 + r * 29 % 64;
                tu_set(&mixed.k, 0, 0, to, c, tu_get(&plain.k, 0, 0, r, c));
                tu_set(&mixed.v, 0, 0, to, c, tu_get(&plain.v, 0, 0, r, c));
            }
        double *a = output(&plain), *b = output(&mixed);
        assert_true(tu_relative_l1(b, a, 65 * 32) < 1e-3); /* means are summed in another order */
        free(a);
        free(b);
        tu_case_free(&plain);
        tu_case_free(&mixed);
    }
}

static void powers_of_two_scale_exactly(void **state)
{
    (void)state;
    for (int m = 0; m < MODES; m++) {
        tu_shape shape = {.q_len = 130, .kv_len = 130, .head_dim = 64, .seed = 7, .precision = modes[m].precision};
        tu_case plain = case_of(&shape), scaled = case_of(&shape);
        for (uint32_t r = 0; r < 130; r++)
            for (uint32_t c = 0; c < 64; c++) {
                tu_set(&scaled.q, 0, 0, r, c, tu_get(&plain.q, 0, 0, r, c) * 4);
                tu_set(&scaled.k, 0, 0, r, c, tu_get(&plain.k, 0, 0, r, c) / 4);
                tu_set(&scaled.v, 0, 0, r, c, tu_get(&plain.v, 0, 0, r, c) * 8);
            }
        double *a = output(&plain), *b = output(&scaled);
        for (size_t i = 0; i < 130 * 64; i++)
            b[i] /= 8;
        assert_true(tu_relative_l1(b, a, 130 * 64) < (modes[m].precision == TANDEM_PRECISION_F16 ? 1e-4 : 1e-6));
        free(a);
        free(b);
        tu_case_free(&plain);
        tu_case_free(&scaled);
    }
}

static void shared_heads_are_repeated_heads(void **state)
{
    (void)state;
    for (int m = 0; m < MODES; m++) {
        tu_shape shape = {.batch = 2,
                          .heads = 6,
                          .kv_heads = 2,
                          .q_len = 70,
                          .kv_len = 90,
                          .head_dim = 32,
                          .seed = 8,
                          .precision = modes[m].precision};
        tu_case shared = case_of(&shape);
        shape.kv_heads = 6;
        tu_case repeated = case_of(&shape);
        for (uint32_t b = 0; b < 2; b++)
            for (uint32_t h = 0; h < 6; h++)
                for (uint32_t r = 0; r < 90; r++)
                    for (uint32_t c = 0; c < 32; c++) {
                        tu_set(&repeated.k, b, h, r, c, tu_get(&shared.k, b, h / 3, r, c));
                        tu_set(&repeated.v, b, h, r, c, tu_get(&shared.v, b, h / 3, r, c));
                    }
        double *x = output(&shared), *y = output(&repeated);
        assert_memory_equal(x, y, (size_t)2 * 6 * 70 * 32 * sizeof *x);
        free(x);
        free(y);
        tu_case_free(&shared);
        tu_case_free(&repeated);
    }
}

/* Row i of causal attention is attention of that row alone to the keys that it may see. */
static void causal_is_a_mask(void **state)
{
    (void)state;
    one_head it = make_head(40, 300, 64, 0, 11);
    it.head.causal = 1;
    assert_true(td_exact_attention(&it.head, it.exact, 2));
    for (uint32_t row = 0; row < 40; row += 13) {
        double alone[64];
        td_head cut = it.head;
        cut.q = it.q + (size_t)row * 64;
        cut.q_len = 1;
        cut.causal = 0;
        cut.kv_len = row + 300 - 40 + 1;
        assert_true(td_exact_attention(&cut, alone, 1));
        assert_true(tu_max_abs(alone, it.exact + (size_t)row * 64, 64) < 1e-14);
    }
    free_head(&it);
    for (int m = 0; m < MODES; m++) {
        tu_case masked = case_of(&(tu_shape){
            .q_len = 100, .kv_len = 300, .head_dim = 64, .seed = 12, .causal = 1, .precision = modes[m].precision});
        tu_case_ref(&masked);
        free(output(&masked));
        assert_true(tu_case_l1(&masked) < modes[m].error);
        tu_case_free(&masked);
    }
}

static void repeats_bit_for_bit(void **state)
{
    (void)state;
    for (int m = 0; m < MODES; m++) {
        tu_case it = case_of(&(tu_shape){
            .heads = 3, .q_len = 257, .kv_len = 300, .head_dim = 96, .seed = 13, .precision = modes[m].precision});
        double *first = output(&it);
        for (uint32_t threads = 1; threads < 4; threads++) {
            const td_target target = td_target_for_sm(0);
            assert_int_equal(tu_case_run(&it, &target, threads), TANDEM_OK);
            double *again = tu_values(&it.o);
            assert_memory_equal(first, again, (size_t)3 * 257 * 96 * sizeof *first);
            free(again);
        }
        free(first);
        tu_case_free(&it);
    }
}

/* Small and odd shapes, every layout, dtype, precision, smoothing and granularity, from a seed. */
static void random_shapes(void **state)
{
    (void)state;
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256};
    for (uint32_t i = 0; i < cases; i++) {
        uint64_t r = first_seed * 1000003 + i;
        const uint32_t kv_heads = 1 + (uint32_t)(tu_random(&r) % 2), most = i % 16 ? 70 : 400;
        tu_shape s = {.batch = 1 + (uint32_t)(tu_random(&r) % 2),
                      .kv_heads = kv_heads,
                      .heads = kv_heads * (1 + (uint32_t)(tu_random(&r) % 3)),
                      .q_len = 1 + (uint32_t)(tu_random(&r) % most),
                      .kv_len = 1 + (uint32_t)(tu_random(&r) % most),
                      .head_dim = dims[tu_random(&r) % 6],
                      .dtype_q = 1 + (uint32_t)(tu_random(&r) % 3),
                      .dtype_k = 1 + (uint32_t)(tu_random(&r) % 3),
                      .dtype_v = 1 + (uint32_t)(tu_random(&r) % 3),
                      .dtype_o = 1 + (uint32_t)(tu_random(&r) % 3),
                      .causal = (uint32_t)(tu_random(&r) % 2),
                      .precision = modes[i % MODES].precision,
                      .smooth = (uint32_t)(tu_random(&r) % 8) * 2,
                      .granularity = (uint32_t)(tu_random(&r) % (TANDEM_GRANULARITY_TENSOR + 1)),
                      .lse = (uint32_t)(tu_random(&r) % 2),
                      .layout = (tu_layout)(tu_random(&r) % 4),
                      .seed = r};
        static const uint32_t sms[] = {0, 80, 89, 90, 120};
        td_target target = td_target_for_sm(i % 4 ? 0 : sms[tu_random(&r) % 5]);
        target.twin = true;
        tu_case it = case_of(&s);
        tu_case_ref(&it);
        assert_int_equal(tu_case_run(&it, &target, 2), TANDEM_OK);
        const double l1 = tu_case_l1(&it), lse = s.lse ? tu_case_lse_error(&it) : 0;
        /* one scale for a head is coarser, bf16 rounds o, and few rows average little */
        const double limit = modes[i % MODES].error * 2 + (s.dtype_o == TANDEM_DTYPE_BF16 ? 0.01 : 0.002);
        if (!(l1 < limit) || !(lse < 1)) {
            fprintf(stderr, "case %u of seed %llu: relative L1 %g of at most %g, lse off by %g\n", i,
                    (unsigned long long)first_seed, l1, limit, lse);
            fail();
        }
        tu_case_free(&it);
    }
}

int main(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--cases") == 0)
            cases = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--seed") == 0)
            first_seed = strtoull(argv[i + 1], NULL, 10);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_is_the_oracle),
        cmocka_unit_test(variants_are_the_plans),
        cmocka_unit_test(accumulator_is_the_twins),
        cmocka_unit_test(instruction_sets_agree),
        cmocka_unit_test(impossible_is_refused),
        cmocka_unit_test(smoothing_is_an_identity),
        cmocka_unit_test(shifts_change_nothing),
        cmocka_unit_test(keys_may_be_permuted),
        cmocka_unit_test(powers_of_two_scale_exactly),
        cmocka_unit_test(shared_heads_are_repeated_heads),
        cmocka_unit_test(causal_is_a_mask),
        cmocka_unit_test(repeats_bit_for_bit),
        cmocka_unit_test(random_shapes),
    };
    return cmocka_run_group_tests_name("accuracy", tests, NULL, NULL);
}
