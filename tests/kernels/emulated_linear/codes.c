/* Codes of Q, K and V that linear layers write: from their definition, and beside attention's own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/attention/attention.h"
#include "kernels/cpu/cpu.h"
#include "tests/kernels/emulated_linear/rig.h"

static const uint32_t lens[] = {1, 63, 64, 65, 127, 128, 129, 300}, dims[] = {32, 64, 80, 96, 128, 256};

/* Lengths, head dims, dtypes, shares of heads and granularities in all sorts of company. */
static tl_shape shape_of(uint32_t n)
{
    tl_shape s = {.batch = 1 + n % 3, .heads = n % 4 ? 2 : 3, .kv_heads = n % 4 ? 1 + n % 2 : 3, .head_dim = dims[n % 6]};
    s.rows = s.batch * lens[n / 2 % 8];
    s.ins = 64;
    s.dtype = 1 + n % 2;
    s.y_dtype = 1 + n % 3;
    s.granularity = n / 3 % 6;
    s.bias_dtype = n % 5 ? TANDEM_DTYPE_F32 : 0; /* K has a mean */
    s.has_statistics = n / 5 % 2;
    s.wants_next = n / 7 % 2;
    s.pad = n % 6 == 5 ? 3 : 0; /* rows that are not aligned */
    if (n % 3 == 1)
        s.rotated_channels = 16, s.rotated_heads = s.heads + s.kv_heads;
    return s;
}

/* As it is made; some batches share their statistics. */
static tl_case make(uint32_t n)
{
    tl_case it = tl_make(shape_of(n), n);
    if (n % 4 == 2)
        it.op.linear.statistics.stride_batch = 0;
    return it;
}

static uint32_t granularity_of(const tl_case *it, uint32_t sm)
{
    return it->shape.granularity ? it->shape.granularity
           : sm == 90            ? TANDEM_GRANULARITY_THREAD_HOPPER
                                 : TANDEM_GRANULARITY_THREAD_ADA;
}

/* What is not finite in some rows of y: of Q, of K, of V. */
static void spoil(tl_case *it)
{
    const tandem_linear *l = &it->op.linear;
    float *bias = it->data[TL_BIAS];
    uint16_t *x = it->data[TL_X];
    if (it->shape.rows < 60 || !bias)
        return;
    for (uint32_t i = 0; i < l->ins; i++)
        x[57 * l->x.stride_row + i] = 0x7f80; /* NaN or infinite: a whole row of y */
    bias[1] = 3e38f; /* of Q: infinite in fp16, huge else */
    bias[(l->heads + l->kv_heads) * l->head_dim + 3] = -3e38f; /* of V */
}

static void test_codes_on_the_cpu(void **state)
{
    static const char *const isas[] = {"c", "avx2"};
    (void)state;
    for (uint32_t n = 0; n < 120; n++) {
        tl_case it = make(n);
        if (n % 4 == 3)
            spoil(&it);
        if (!td_cpu_isa_force(isas[n / 8 % 2]))
            td_cpu_isa_force("c");
        it.on_cpu = true;
        kl_run(&it, &it.op, NULL, td_target_for_sm(0));
        if (n % 4 != 3)
            tl_check(&it, 1);
        tl_check_codes(&it, granularity_of(&it, 0));
        td_cpu_isa_force(NULL);
        tl_free(&it);
    }
}

static void test_codes_on_the_emulator(void **state)
{
    (void)state;
    for (size_t m = 0; m < EM_MODULES; m++)
        for (uint32_t n = (uint32_t)m; n < 120 && em_modules[m].sm >= 89; n += em_quick() ? 11 : 3) {
            tl_case it = make(n);
            if (n % 4 == 3)
                spoil(&it);
            kl_run(&it, &it.op, &em_modules[m], td_target_for_sm(em_modules[m].sm));
            if (n % 4 != 3)
                tl_check(&it, 1);
            tl_check_codes(&it, granularity_of(&it, em_modules[m].sm));
            tl_free(&it);
        }
}

/* Statistics that make no sense do so alike everywhere, and nothing else is written. */
static void test_hostile_statistics(void **state)
{
    static const float hostile[] = {NAN, INFINITY, -INFINITY, -1, 0, 1e-38f, 3e38f, 1e-30f};
    (void)state;
    for (size_t m = 0; m < EM_MODULES; m++)
        for (uint32_t n = 0; n < 8 && em_modules[m].sm >= 89; n++) {
            tl_shape s = shape_of(n);
            s.has_statistics = s.wants_next = true;
            s.granularity = TANDEM_GRANULARITY_THREAD_ADA;
            tl_case it = tl_make(s, n);
            float *given = it.data[TL_STATISTICS];
            void *first[TL_VIEWS] = {NULL};
            for (uint64_t i = n % 3; i < it.bytes[TL_STATISTICS] / sizeof *given; i += 5)
                given[i] = hostile[(i + n) % 8];
            kl_run(&it, &it.op, &em_modules[m], td_target_for_sm(em_modules[m].sm));
            for (uint32_t v = TL_Y; v < TL_VIEWS; v++) {
                first[v] = malloc(it.bytes[v]);
                assert_non_null(first[v]);
                memcpy(first[v], it.data[v], it.bytes[v]);
            }
            for (uint32_t v = TL_Q; v < TL_VIEWS; v++)
                memset(it.data[v], 0xa5, it.bytes[v]);
            /* y is given: sums may differ between kernels, what is made of them may not */
            td_target target = td_target_for_sm(0);
            static td_plan plan;
            char why[300] = "";
            uint64_t views[TL_VIEWS];
            assert_int_equal(td_operation_linear.plan(&it.op, &target, &plan, why, sizeof why), TANDEM_OK);
            for (uint32_t v = 0; v < TL_VIEWS; v++)
                views[v] = (uintptr_t)it.data[v];
            void *scratch = aligned_alloc(256, plan.scratch_bytes + 256);
            assert_non_null(scratch);
            for (uint32_t i = 1; i < plan.record_count; i++) {
                td_plan one = plan;
                one.records += i;
                one.record_count = 1;
                assert_int_equal(td_exec_cpu_run(&one, views, (uintptr_t)scratch, 1, NULL), TANDEM_OK);
            }
            for (uint32_t v = TL_Y; v < TL_VIEWS; v++) {
                for (uint64_t i = 0; i < it.bytes[v] / 4; i++) { /* any NaN is one */
                    const float a = ((float *)first[v])[i], b = ((float *)it.data[v])[i];
                    assert_true(td_bits(a) == td_bits(b) || (isnan(a) && isnan(b)));
                }
                free(first[v]);
            }
            free(scratch);
            tl_free(&it);
        }
}

/* What attention's prologue has left in scratch, beside what the layer wrote. */
static void same_codes(const tl_case *it, const td_attention_layout *at, const unsigned char *scratch)
{
    const tandem_linear *l = &it->op.linear;
    const uint64_t codes[3] = {at->q_codes, at->k_codes, at->v_codes}, scales[3] = {at->q_scale, at->k_scale, at->v_scale};
    for (uint32_t i = 0; i < 3; i++) {
        const uint32_t heads = i ? l->kv_heads : l->heads, dtype = i < 2 ? TANDEM_DTYPE_CODES_INT8 : TANDEM_DTYPE_CODES_E4M3;
        const unsigned char *mine = it->data[TL_Q + i];
        uint64_t at_scales;
        const uint64_t bytes = tandem_codes_bytes(dtype, l->batch, heads, l->rows / l->batch, l->head_dim, &at_scales);
        assert_memory_equal(mine, scratch + codes[i], at_scales);
        assert_memory_equal(mine + at_scales, scratch + scales[i], bytes - at_scales);
    }
}

/* Attention has the same bits on y, which it quantises itself, and on codes; and the same codes, whatever its prologue is. */
static void test_codes_are_attentions(void **state)
{
    static const uint32_t sms[] = {0, 89, 90, 120};
    (void)state;
    for (uint32_t n = 0; n < 4 * 30; n++) {
        td_target target = td_target_for_stream(sms[n % 4]);
        tl_shape s = shape_of(n / 4);
        static td_plan plans[2];
        td_attention_layout at;
        char why[300] = "";
        const uint32_t granularity = n % 8 < 4 ? TANDEM_GRANULARITY_DEFAULT : s.granularity;
        s.granularity = granularity ? granularity : sms[n % 4] == 90 ? TANDEM_GRANULARITY_THREAD_HOPPER : TANDEM_GRANULARITY_THREAD_ADA;
        s.has_statistics = false;
        tl_case it = tl_make(s, n);
        const tandem_linear *l = &it.op.linear;
        const uint32_t len = l->rows / l->batch, element = td_dtype_bytes(l->y.dtype);
        if (n % 8 == 7)
            spoil(&it);
        kl_run(&it, &it.op, NULL, td_target_for_sm(0));
        target.twin = target.sm != 0;
        tandem_operands on[2] = {0};
        tandem_attention *a = &on[0].attention;
        a->q = l->y;
        a->q.stride_head = l->head_dim, a->q.stride_batch = len * l->y.stride_row;
        a->k = a->v = a->q;
        a->k.offset_bytes += (uint64_t)l->heads * l->head_dim * element;
        a->v.offset_bytes += (uint64_t)(l->heads + l->kv_heads) * l->head_dim * element;
        a->o = tandem_view_dense(0, 0, TANDEM_DTYPE_F32, l->heads, len, l->head_dim);
        a->batch = l->batch, a->heads = l->heads, a->kv_heads = l->kv_heads, a->head_dim = l->head_dim;
        a->q_len = a->kv_len = len;
        a->precision = TANDEM_PRECISION_8B;
        a->granularity = granularity;
        on[1] = on[0];
        on[1].attention.q = l->q, on[1].attention.k = l->k, on[1].attention.v = l->v;
        const uint64_t o_bytes = (uint64_t)l->rows * l->heads * l->head_dim * sizeof(float);
        float *o[2] = {malloc(o_bytes), malloc(o_bytes)};
        void *scratch[2];
        assert_true(o[0] && o[1]);
        for (int i = 0; i < 2; i++) {
            if (td_operation_attention.check(&on[i], why, sizeof why) ||
                td_plan_attention(&on[i].attention, &target, &plans[i], &at, why, sizeof why))
                fail_msg("%s", why);
            scratch[i] = aligned_alloc(256, plans[i].scratch_bytes + 256);
            assert_non_null(scratch[i]);
            const uint64_t y = (uintptr_t)it.data[TL_Y];
            const uint64_t views[2][TD_VIEW_COUNT] = {
                {[TD_VIEW_Q] = y + a->q.offset_bytes, [TD_VIEW_K] = y + a->k.offset_bytes,
                 [TD_VIEW_V] = y + a->v.offset_bytes, [TD_VIEW_O] = (uintptr_t)o[0]},
                {[TD_VIEW_Q] = (uintptr_t)it.data[TL_Q], [TD_VIEW_K] = (uintptr_t)it.data[TL_K],
                 [TD_VIEW_V] = (uintptr_t)it.data[TL_V], [TD_VIEW_O] = (uintptr_t)o[1]}};
            assert_int_equal(td_exec_cpu_run(&plans[i], views[i], (uintptr_t)scratch[i], 2, NULL), TANDEM_OK);
            if (i == 0)
                same_codes(&it, &at, scratch[0]);
            free(scratch[i]);
        }
        assert_int_equal(plans[1].record_count, 1);
        assert_memory_equal(o[0], o[1], o_bytes);
        free(o[0]);
        free(o[1]);
        tl_free(&it);
    }
}

/* y that nobody wants is made all the same; what commits has the same bits, and nothing is cut. */
static void test_codes_alone(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 24; n++) {
        tl_shape s = shape_of(n);
        s.y_dtype = s.dtype;
        s.pad = 0;
        tl_case it = tl_make(s, n);
        td_target target = td_target_for_sm(0);
        void *whole[TL_VIEWS] = {NULL};
        kl_run(&it, &it.op, NULL, target);
        for (uint32_t v = TL_Q; v < TL_VIEWS; v++)
            if (it.data[v]) {
                whole[v] = malloc(it.bytes[v]);
                assert_non_null(whole[v]);
                memcpy(whole[v], it.data[v], it.bytes[v]);
            }
        tl_poison(&it);
        target.commit = n % 2;
        tandem_operands part = it.op;
        td_part_at at = {0};
        part.linear.y = (tandem_view){0};
        assert_int_equal(td_operation_linear.split(&part, 7), 1);
        assert_int_equal(td_operation_linear.part(&it.op, 7, &at, &part), 0);
        part.linear.y = (tandem_view){0};
        void *y = it.data[TL_Y];
        it.data[TL_Y] = NULL;
        kl_run(&it, &part, NULL, target);
        for (uint32_t v = TL_Q; v < TL_VIEWS; v++)
            if (it.data[v]) {
                assert_memory_equal(whole[v], it.data[v], it.bytes[v]);
                free(whole[v]);
            }
        it.data[TL_Y] = y;
        tl_free(&it);
    }
}

/* Errors name the member and its value. */
static void test_codes_refused(void **state)
{
    static const tl_shape shape = {.rows = 8, .ins = 64, .dtype = TANDEM_DTYPE_F16, .y_dtype = TANDEM_DTYPE_F32, .batch = 2,
                                   .heads = 4, .kv_heads = 2, .head_dim = 64, .has_statistics = true, .wants_next = true};
    char why[300];
    (void)state;
#define REFUSED(change, text)                                                                    \
    do {                                                                                         \
        tl_case it = tl_make(shape, 1);                                                          \
        tandem_linear *l = &it.op.linear;                                                        \
        change;                                                                                  \
        assert_int_equal(td_operation_linear.check(&it.op, why, sizeof why), TANDEM_ERROR_ARG);  \
        if (!strstr(why, text))                                                                  \
            fail_msg("%s", why);                                                                 \
        tl_free(&it);                                                                            \
    } while (0)
    REFUSED(l->k.dtype = TANDEM_DTYPE_NONE, "linear.k.dtype is 0; with codes it must not be 0");
    REFUSED(l->q.dtype = TANDEM_DTYPE_F16, "linear.q.dtype is 1; it must be 4 (int8 codes)");
    REFUSED(l->v.dtype = TANDEM_DTYPE_CODES_INT8, "linear.v.dtype is 4; it must be 5 (e4m3 codes)");
    REFUSED(l->batch = 0, "linear.batch is 0; with codes it must not be 0");
    REFUSED(l->batch = 3, "linear.batch is 3; rows is 8, which must be a multiple");
    REFUSED(l->heads = 0, "linear.heads is 0; with codes");
    REFUSED(l->kv_heads = 3, "linear.heads is 4; it must be a multiple of kv_heads, which is 3");
    REFUSED(l->kv_heads = 4, "linear.outs is 512; with codes it must be (heads + 2 * kv_heads) * head_dim, which is 768");
    REFUSED(l->heads = 0x80000000, "linear.outs is 512");
    REFUSED(l->head_dim = 72, "linear.head_dim is 72; with codes it must be 32");
    REFUSED(l->head_dim = 0, "linear.head_dim is 0; with codes it must be 32");
    REFUSED(l->granularity = TANDEM_GRANULARITY_TENSOR, "linear.granularity is 6; it must be 0");
    REFUSED(l->statistics.dtype = TANDEM_DTYPE_F16, "linear.statistics.dtype is 1");
    REFUSED(l->next_statistics.stride_row = 63, "linear.next_statistics.stride_row is 63");
    REFUSED(l->q.offset_bytes = 128, "linear.q.offset_bytes is 128; for codes it must be a multiple of 256");
    REFUSED(l->k.stride_row = 128, "linear.k.stride_row is 128; for codes of this shape it must be 64");
    REFUSED(l->v.stride_row = 64, "linear.v.stride_row is 64; for codes of this shape it must be 128");
    REFUSED(l->v.stride_batch *= 2, "linear.v.stride_batch is 32768; for codes of this shape it must be 16384");
    REFUSED(l->gate = TANDEM_GATE_NONE + 3, "linear.gate is 3");
#undef REFUSED
    tl_case it = tl_make(shape, 1);
    td_target target = td_target_for_sm(80);
    static td_plan plan;
    target.twin = true;
    assert_int_equal(td_operation_linear.plan(&it.op, &target, &plan, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(why, "linear.v.dtype is 5 (e4m3 codes), which no attention takes on compute capability 8.0"));
    tl_free(&it);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_codes_on_the_cpu),     cmocka_unit_test(test_codes_on_the_emulator),
    cmocka_unit_test(test_hostile_statistics),   cmocka_unit_test(test_codes_are_attentions),
    cmocka_unit_test(test_codes_alone),          cmocka_unit_test(test_codes_refused),
};
const test_cases kernels_linear_codes_cases = TEST_CASES(cases);
