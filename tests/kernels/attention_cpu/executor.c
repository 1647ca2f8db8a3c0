/* Twins, instruction sets and threads that agree; blocks that ask, and work that stands still for others.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/attention/cpu.h"
#include "kernels/attention/params.h"
#include "tests/kernels/attention_cpu/rig.h"

static void test_twin_and_fast_agree(void **state)
{
    (void)state;
    td_target fp8 = twin_of(90);
    uint32_t n = 0;
    for (uint32_t precision = 1; precision <= 3; precision++)
        for (uint32_t unit = TD_ACCUMULATOR_F32; unit <= TD_ACCUMULATOR_BLACKWELL_MMA; unit++, n++) {
            tu_case it;
            tu_case_init(&it, &(tu_shape){.heads = 2,
                                          .kv_heads = 1,
                                          .q_len = 100,
                                          .kv_len = 300,
                                          .head_dim = dims[n % DIMS],
                                          .causal = n % 2,
                                          .precision = precision,
                                          .granularity = TANDEM_GRANULARITY_THREAD_ADA,
                                          .v_bias = 0.5f,
                                          .seed = n,
                                          .lse = 1});
            fp8.accumulator = unit;
            assert_int_equal(tu_case_run(&it, &fp8, 2), TANDEM_OK);
            double *twin = tu_values(&it.o), *twin_lse = tu_values(&it.lse);
            assert_int_equal(tu_case_run(&it, &cpu, 2), TANDEM_OK);
            double *fast = tu_values(&it.o), *fast_lse = tu_values(&it.lse);
            assert_in(tu_relative_l1(twin, fast, o_count(&it)), 0, 2e-3);
            assert_in(tu_max_abs(twin_lse, fast_lse, 200), 0, 1e-4);
            free(twin);
            free(fast);
            free(twin_lse);
            free(fast_lse);
            tu_case_free(&it);
        }
}

/* What the twin dumps fits together: S is the dot product of the codes, R the product of the codes of P and V. */
static void test_dumps(void **state)
{
    (void)state;
    const td_attention_options options = {.dump = true};
    td_target fp8 = twin_of(90);
    fp8.attention = &options;
    fp8.accumulator = TD_ACCUMULATOR_F32;
    tu_case it;
    tu_case_init(
        &it,
        &(tu_shape){
            .heads = 2, .kv_heads = 1, .q_len = 66, .kv_len = 100, .head_dim = 32, .precision = TANDEM_PRECISION_8B});
    assert_int_equal(tu_case_run(&it, &fp8, 2), TANDEM_OK);
    const td_attention_layout *at = &it.layout;
    const unsigned char *scratch = it.scratch;
    const int8_t *q = (const int8_t *)(scratch + at->q_codes), *k = (const int8_t *)(scratch + at->k_codes);
    const int32_t *s = (const int32_t *)(scratch + at->dump_s);
    const uint8_t *p = scratch + at->dump_p, *v = scratch + at->v_codes;
    const float *r = (const float *)(scratch + at->dump_r);
    for (size_t bh = 0; bh < 2; bh++)
        for (size_t i = 0; i < 66; i++) {
            const size_t row = bh * at->q_pad + i;
            uint8_t largest[2] = {0};
            for (size_t j = 0; j < 128; j++) {
                int32_t sum = 0;
                for (size_t c = 0; c < 32; c++)
                    sum += q[row * 32 + c] * k[j * 32 + c];
                assert_int_equal(s[row * at->kv_pad + j], sum);
                if (j >= 100)
                    assert_int_equal(p[row * at->kv_pad + j], 0);
                if (p[row * at->kv_pad + j] > largest[j / 64])
                    largest[j / 64] = p[row * at->kv_pad + j];
            }
            assert_int_equal(largest[0], 0x7e); /* the first tile's largest is 448 by definition */
            assert_true(largest[1] <= 0x7e);
            for (size_t tile = 0; tile < 2; tile++)
                for (size_t c = 0; c < 32; c++) {
                    double sum = 0;
                    for (uint32_t j = 0; j < 64; j++)
                        sum += (double)td_from_e4m3(p[row * at->kv_pad + tile * 64 + j]) *
                               (double)td_from_e4m3(v[c * at->kv_pad + tile * 64 + td_v_position(j)]);
                    const double got = (double)r[(row * (at->kv_pad / 64) + tile) * 32 + c];
                    assert_in(got - sum, -1.0, 1.0);
                }
        }
    tu_case_free(&it);
}

static void test_isas_agree(void **state)
{
    (void)state;
    assert_false(td_cpu_isa_force("abacus"));
    uint32_t n = 0;
    for (uint32_t precision = 1; precision <= 3; precision++)
        for (uint32_t d = 0; d < DIMS; d++, n++) {
            tu_case it;
            tu_case_init(&it, &(tu_shape){.heads = 2,
                                          .kv_heads = 1,
                                          .q_len = 131,
                                          .kv_len = 200,
                                          .head_dim = dims[d],
                                          .precision = precision,
                                          .causal = n % 2,
                                          .dtype_q = 1 + n % 3,
                                          .dtype_k = 1 + n / 2 % 3,
                                          .dtype_v = 1 + n / 3 % 3,
                                          .lse = 1,
                                          .seed = n});
            double *o[ISAS] = {NULL}, *lse[ISAS] = {NULL};
            void *scratch[ISAS] = {NULL};
            for (int i = 0; i < ISAS; i++) {
                if (!td_cpu_isa_force(isas[i]))
                    continue;
                assert_string_equal(td_cpu_isa(), isas[i]);
                assert_int_equal(tu_case_run(&it, &cpu, 2), TANDEM_OK);
                o[i] = tu_values(&it.o);
                lse[i] = tu_values(&it.lse);
                scratch[i] = it.scratch;
                it.scratch = NULL;
                assert_memory_equal(scratch[0], scratch[i], it.plan.scratch_bytes); /* the prologue: bit for bit */
                assert_in(tu_relative_l1(o[i], o[0], o_count(&it)), 0, 5e-4);
                assert_in(tu_max_abs(lse[i], lse[0], 262), 0, 2e-5);
            }
            for (int i = 0; i < ISAS; i++) {
                free(o[i]);
                free(lse[i]);
                free(scratch[i]);
            }
            td_cpu_isa_force(NULL);
            tu_case_free(&it);
        }
}

/* O in 16 bits is O in fp32, rounded as the formats have it, by each instruction set: NaN, infinities and subnormals too. */
static void test_output_types(void **state)
{
    (void)state;
    for (int i = 0; i < ISAS; i++) {
        tu_shape shape = {.q_len = 70, .kv_len = 90, .head_dim = 80, .precision = TANDEM_PRECISION_8B, .seed = 3};
        float o[70 * 80];

        if (!td_cpu_isa_force(isas[i]))
            continue;
        for (shape.dtype_o = TANDEM_DTYPE_F32; shape.dtype_o >= TANDEM_DTYPE_F16; shape.dtype_o--) {
            tu_case it;

            tu_case_init(&it, &shape);
            tu_set(&it.q, 0, 0, 5, 1, NAN);
            for (uint32_t r = 0; r < 90; r++)
                for (uint32_t c = 0; c < 3; c++)
                    tu_set(&it.v, 0, 0, r, c, tu_get(&it.v, 0, 0, r, c) * (c == 0 ? 1e6 : c == 1 ? 1e-4 : 1e-7));
            assert_int_equal(tu_case_run(&it, &cpu, 2), TANDEM_OK);
            if (shape.dtype_o == TANDEM_DTYPE_F32)
                memcpy(o, it.o.data, sizeof o);
            for (uint32_t c = 0; c < 70 * 80 && shape.dtype_o != TANDEM_DTYPE_F32; c++)
                assert_int_equal(((const uint16_t *)it.o.data)[c],
                                 shape.dtype_o == TANDEM_DTYPE_F16 ? td_to_f16(o[c]) : td_to_bf16(o[c]));
            tu_case_free(&it);
        }
    }
    td_cpu_isa_force(NULL);
}

static void test_threads_do_not_matter(void **state)
{
    (void)state;
    static const uint32_t threads[] = {1, 2, 3, 8};
    for (uint32_t precision = 1; precision <= 3; precision++) {
        tu_case it;
        tu_case_init(&it, &(tu_shape){.batch = 2,
                                      .heads = 3,
                                      .kv_heads = 1,
                                      .q_len = 140,
                                      .kv_len = 270,
                                      .head_dim = 64,
                                      .precision = precision,
                                      .lse = 1,
                                      .layout = TU_BY_ROW});
        void *o = NULL, *scratch = NULL;
        for (int i = 0; i < 4; i++) {
            assert_int_equal(tu_case_run(&it, &cpu, threads[i]), TANDEM_OK);
            if (!o) {
                o = malloc(it.o.bytes);
                assert_non_null(o);
                memcpy(o, it.o.data, it.o.bytes);
                scratch = it.scratch;
                it.scratch = NULL;
            } else {
                assert_memory_equal(o, it.o.data, it.o.bytes);
                assert_memory_equal(scratch, it.scratch, it.plan.scratch_bytes);
            }
        }
        free(o);
        free(scratch);
        tu_case_free(&it);
    }
}

/* ---- the executor ---- */

static void test_executor(void **state)
{
    (void)state;
    tu_case it;
    tu_case_init(&it, &(tu_shape){.q_len = 10, .kv_len = 20, .head_dim = 32});
    assert_int_equal(tu_case_run(&it, &cpu, 0), TANDEM_OK); /* no threads is one thread */
    const uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)it.q.data, (uintptr_t)it.k.data, (uintptr_t)it.v.data,
                                           (uintptr_t)it.o.data, 0};
    const uint64_t scratch = (uintptr_t)it.scratch;
    td_control control = {.cancel = 1};
    tu_poison(&it.o);
    assert_int_equal(td_exec_cpu_run(&it.plan, views, scratch, 2, &control), TANDEM_ERROR_BUSY);
    for (size_t i = 0; i < it.o.bytes; i++)
        assert_int_equal(((const unsigned char *)it.o.data)[i], TU_POISON);
    control.cancel = 0;
    assert_int_equal(td_exec_cpu_run(&it.plan, views, scratch, 2, &control), TANDEM_OK);
    assert_false(isnan(tu_get(&it.o, 0, 0, 9, 31)));

    const td_record *last = &it.plan.records[it.plan.record_count - 1];
    _Alignas(16) unsigned char bytes[TD_PARAM_BYTES];
    td_params_attention params;
    td_exec_bind(last, views, scratch, 0, bytes);
    memcpy(&params, bytes, sizeof params);
    assert_ptr_equal(params.o.data, it.o.data);
    assert_ptr_equal(params.q_codes, (unsigned char *)it.scratch + it.layout.q_codes);
    assert_ptr_equal(params.v_scale, (unsigned char *)it.scratch + it.layout.v_scale);
    assert_null(params.lse);
    assert_null(params.dump_s);

    static const td_kernel gpu_only = {.name = "gpu_only", .entry = "gpu_only"};
    it.plan.records[0].kernel = &gpu_only;
    assert_int_equal(td_exec_cpu_run(&it.plan, views, scratch, 2, NULL), TANDEM_ERROR_UNSUPPORTED);
    tu_case_free(&it);
}

/* What a kernel is asked of by the executor, at most `most` times. */
typedef struct asked {
    uint32_t times, most;
} asked;

static bool ask(void *user)
{
    asked *it = user;
    return ++it->times <= it->most;
}

/* A block asks between its tiles of keys, and leaves at once when it is told to. */
static void test_long_blocks_ask(void **state)
{
    (void)state;
    static unsigned char local[sizeof(td_local_fast)] __attribute__((aligned(64)));
    for (int i = 0; i < ISAS; i++)
        for (uint32_t precision = 1; precision <= 3; precision++) {
            if (!td_cpu_isa_force(isas[i]))
                continue;
            const uint32_t tiles = 20;
            tu_case it;
            tu_case_init(&it, &(tu_shape){.q_len = 30, .kv_len = tiles * 64, .head_dim = 64, .precision = precision});
            assert_int_equal(tu_case_run(&it, &cpu, 1), TANDEM_OK);
            const uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)it.q.data, (uintptr_t)it.k.data, (uintptr_t)it.v.data,
                                                   (uintptr_t)it.o.data, 0};
            const td_record *last = &it.plan.records[it.plan.record_count - 1];
            _Alignas(16) unsigned char params[TD_PARAM_BYTES];
            td_exec_bind(last, views, (uintptr_t)it.scratch, 0, params);
            unsigned char *o = malloc(it.o.bytes);
            assert_non_null(o);
            memcpy(o, it.o.data, it.o.bytes);
            asked all = {.most = UINT32_MAX}, some = {.most = tiles / 2};
            tu_poison(&it.o);
            last->kernel->cpu(params, &(td_block){.local = local, .goes_on = ask, .user = &some});
            assert_int_equal(some.times, tiles / 2 + 1);
            for (size_t at = 0; at < it.o.bytes; at++)
                assert_int_equal(((const unsigned char *)it.o.data)[at], TU_POISON);
            last->kernel->cpu(params, &(td_block){.local = local, .goes_on = ask, .user = &all});
            assert_true(all.times >= tiles);
            assert_memory_equal(o, it.o.data, it.o.bytes);
            free(o);
            tu_case_free(&it);
        }
    td_cpu_isa_force(NULL);
}

typedef struct preemptor {
    td_preempt_flag flag;
    atomic_bool ends;
} preemptor;

static void sleep_ns(uint64_t ns)
{
    const struct timespec t = {0, (long)ns};
    nanosleep(&t, NULL);
}

static void *raise_and_clear(void *user)
{
    preemptor *it = user;
    uint64_t seed = 3;
    while (!it->ends) {
        td_preempt_raise(&it->flag, td_now_ns());
        sleep_ns(tu_random(&seed) % 300000);
        td_preempt_clear(&it->flag);
        sleep_ns(tu_random(&seed) % 100000);
    }
    return NULL;
}

/* Work stands still while the flag is raised and goes on with the same bits; even if it is never cleared. */
static void test_preemption(void **state)
{
    (void)state;
    td_thread_pool *pools[] = {NULL, td_thread_pool_create(2), td_thread_pool_create(3)};
    for (uint32_t precision = 1; precision <= 3; precision++) {
        tu_case it;
        tu_case_init(&it, &(tu_shape){.heads = 2, .q_len = 200, .kv_len = 1500, .head_dim = 64, .precision = precision,
                                      .causal = 1, .lse = 1});
        assert_int_equal(tu_case_run(&it, &cpu, 2), TANDEM_OK);
        const uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)it.q.data, (uintptr_t)it.k.data, (uintptr_t)it.v.data,
                                               (uintptr_t)it.o.data, (uintptr_t)it.lse.data};
        const uint64_t scratch = (uintptr_t)it.scratch;
        unsigned char *o = malloc(it.o.bytes), *lse = malloc(it.lse.bytes);
        preemptor other = {.ends = false};
        td_preemptible yields = {.flag = &other.flag};
        pthread_t thread;
        assert_true(o && lse);
        memcpy(o, it.o.data, it.o.bytes);
        memcpy(lse, it.lse.data, it.lse.bytes);

        assert_int_equal(pthread_create(&thread, NULL, raise_and_clear, &other), 0);
        for (int run = 0; run < 12; run++) { /* each meets the flag some ten times */
            tu_poison(&it.o);
            tu_poison(&it.lse);
            assert_int_equal(td_exec_cpu_run_preemptibly(&it.plan, views, scratch, pools[run % 3], NULL, &yields),
                             TANDEM_OK);
            assert_memory_equal(o, it.o.data, it.o.bytes);
            assert_memory_equal(lse, it.lse.data, it.lse.bytes);
        }
        other.ends = true;
        pthread_join(thread, NULL);

        td_control control = {.cancel = 1};
        td_preempt_raise(&other.flag, td_now_ns());
        assert_int_equal(td_exec_cpu_run_preemptibly(&it.plan, views, scratch, pools[1], &control, &yields),
                         TANDEM_ERROR_BUSY);
        assert_int_equal(yields.held_ns, 0); /* nobody waits for it */
        tu_poison(&it.o);
        assert_int_equal(td_exec_cpu_run_preemptibly(&it.plan, views, scratch, pools[1], NULL, &yields), TANDEM_OK);
        assert_true(yields.held_ns >= 10000000);
        assert_memory_equal(o, it.o.data, it.o.bytes);
        free(o);
        free(lse);
        tu_case_free(&it);
    }
    td_thread_pool_destroy(&pools[1]);
    td_thread_pool_destroy(&pools[2]);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_twin_and_fast_agree),
    cmocka_unit_test(test_dumps),
    cmocka_unit_test(test_isas_agree),
    cmocka_unit_test(test_output_types),
    cmocka_unit_test(test_threads_do_not_matter),
    cmocka_unit_test(test_executor),
    cmocka_unit_test(test_long_blocks_ask),
    cmocka_unit_test(test_preemption),
};
const test_cases attention_cpu_executor_cases = TEST_CASES(cases);
