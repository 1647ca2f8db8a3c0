/* Codes and scales, recomputed from their definition; prologues that agree, and codes that come from elsewhere.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/attention/cpu.h"
#include "kernels/attention/params.h"
#include "tests/kernels/attention_cpu/rig.h"

/* Rows of a head that share a scale with row r, as tandem/types.h says it. */
static bool same_group(uint32_t r, uint32_t s, uint32_t granularity, bool is_k)
{
    switch (granularity) {
    case TANDEM_GRANULARITY_THREAD_ADA:
        return is_k ? r / 64 == s / 64 && r % 8 / 2 == s % 8 / 2 : r / 32 == s / 32 && r % 8 == s % 8;
    case TANDEM_GRANULARITY_THREAD_HOPPER:
        return is_k ? r / 128 == s / 128 && r % 8 / 2 == s % 8 / 2 : r / 16 == s / 16 && r % 8 == s % 8;
    case TANDEM_GRANULARITY_TOKEN: return r == s;
    case TANDEM_GRANULARITY_WARP: return is_k ? r / 64 == s / 64 : r / 32 == s / 32;
    case TANDEM_GRANULARITY_BLOCK: return is_k ? r / 64 == s / 64 : r / 128 == s / 128;
    default: return true;
    }
}

typedef struct plane {
    uint32_t rows, dim, d_pad;
    float *y; /* [rows][dim] after smoothing; non-finite ones are 0 before */
    bool *bad;
} plane;

static plane load_plane(const tu_tensor *t, uint32_t b, uint32_t h, uint32_t d_pad)
{
    plane it = {t->rows, t->dim, d_pad, calloc((size_t)t->rows * t->dim, 4), calloc(t->rows, 1)};
    assert_true(it.y && it.bad);
    for (uint32_t r = 0; r < t->rows; r++)
        for (uint32_t c = 0; c < t->dim; c++) {
            const float x = (float)tu_get(t, b, h, r, c);
            it.bad[r] |= !isfinite(x);
            it.y[r * t->dim + c] = isfinite(x) ? x : 0;
        }
    return it;
}

static void free_plane(plane *it)
{
    free(it->y);
    free(it->bad);
}

/* The mean over rows [from, to), in chunks of 128 whose rows go to 8 sums in turn, or to one; subtracted if wanted. */
static void mean_of(plane *it, uint32_t from, uint32_t to, uint32_t turns, float *mean, bool subtract)
{
    for (uint32_t c = 0; c < it->dim; c++) {
        volatile float total = 0;
        for (uint32_t chunk = from; chunk < to; chunk += 128) {
            volatile float sum[8] = {0};
            for (uint32_t r = chunk; r < to && r < chunk + 128; r++)
                sum[r % turns] = sum[r % turns] + it->y[r * it->dim + c];
            for (uint32_t i = 0; i < 8; i += 2) {
                sum[i] = sum[i] + sum[i + 1];
                sum[0] = i ? sum[0] + sum[i] : sum[0];
            }
            total = total + sum[0];
        }
        mean[c] = total / (float)(to - from);
    }
    for (uint32_t r = from; subtract && r < to; r++)
        for (uint32_t c = 0; c < it->dim; c++)
            it->y[r * it->dim + c] -= mean[c];
}

static void check_codes(const plane *it, uint32_t granularity, bool is_k, float qmax, float clip, const bool *more_bad,
                        const int8_t *codes, const float *scales, uint32_t rows_pad)
{
    float *largest = calloc(it->rows, sizeof *largest); /* of each row */

    assert_non_null(largest);
    for (uint32_t s = 0; s < it->rows; s++)
        for (uint32_t c = 0; c < it->dim; c++)
            largest[s] = fmaxf(largest[s], fabsf(it->y[s * it->dim + c]));
    for (uint32_t r = 0; r < rows_pad; r++) {
        float amax = 0;
        for (uint32_t s = 0; s < it->rows; s++)
            if (same_group(r, s, granularity, is_k))
                amax = fmaxf(amax, largest[s]);
        amax *= clip;
        const bool tiny = amax < 0x1p-100f, exists = r < it->rows;
        if (exists && (it->bad[r] || (more_bad && more_bad[r])))
            assert_true(isnan(scales[r]));
        else
            assert_int_equal(td_bits(scales[r]), td_bits(exists && !tiny ? amax / qmax : 0));
        const float inverse = qmax / amax;
        for (uint32_t c = 0; c < it->d_pad; c++) {
            float code = 0;
            if (exists && !tiny && c < it->dim)
                code = fminf(fmaxf(rintf(it->y[r * it->dim + c] * inverse), -qmax), qmax);
            assert_int_equal(codes[r * it->d_pad + c], (int)code);
        }
    }
    free(largest);
}

static uint8_t nearest_e4m3(float x)
{
    const double size = fabs((double)x);
    uint8_t low = 0, high = 126; /* codes between which it is; the larger of them, the larger their value */
    while (high - low > 1) {
        const uint8_t middle = (uint8_t)((low + high) / 2);
        if ((double)td_from_e4m3(middle) <= size)
            low = middle;
        else
            high = middle;
    }
    const double above = (double)td_from_e4m3(high) - size, below = size - (double)td_from_e4m3(low);
    const uint8_t best = below < above || (below == above && low % 2 == 0) ? low : high;
    return (uint8_t)(best | (signbit(x) ? 0x80 : 0));
}

static void check_prologue(const tu_shape *shape, const td_target *target)
{
    tu_case it;
    tu_case_init(&it, shape);
    tu_set(&it.k, 0, 0, 3, 7, NAN);
    tu_set(&it.q, 0, 1, 5, 0, INFINITY);
    tu_set(&it.v, 0, 0, 9, 2, -INFINITY);
    for (uint32_t c = 0; c < it.op.head_dim; c++)
        tu_set(&it.q, 0, 0, 11, c, 0);
    assert_int_equal(tu_case_run(&it, target, 2), TANDEM_OK);
    const td_attention_layout *at = &it.layout;
    const unsigned char *scratch = it.scratch;
    const uint32_t d_pad = at->d_pad, dim = it.op.head_dim, heads = it.op.heads, kv_heads = it.op.kv_heads;
    const float qmax = it.plan.precision == TANDEM_PRECISION_4B ? 7 : 127;
    const bool smooth_q = shape->smooth & TANDEM_SMOOTH_Q, smooth_k = shape->smooth & TANDEM_SMOOTH_K,
               smooth_v = shape->smooth & TANDEM_SMOOTH_V;
    const bool clips = qmax == 7 && smooth_q && smooth_k;
    assert_int_equal(at->q_mean != UINT64_MAX, smooth_q);
    assert_int_equal(at->delta_s != UINT64_MAX, smooth_q);
    assert_int_equal(at->k_mean != UINT64_MAX, smooth_k);
    assert_int_equal(at->v_mean != UINT64_MAX, smooth_v);
    float mean[256], k_mean[256] = {0};
    for (uint32_t bhk = 0; bhk < it.op.batch * kv_heads; bhk++) {
        const uint32_t b = bhk / kv_heads, hk = bhk % kv_heads;
        plane k = load_plane(&it.k, b, hk, d_pad), v = load_plane(&it.v, b, hk, d_pad);
        if (smooth_k) {
            mean_of(&k, 0, k.rows, 8, k_mean, true);
            assert_memory_equal(k_mean, (const float *)(scratch + at->k_mean) + bhk * d_pad, dim * 4);
        }
        check_codes(&k, shape->granularity, true, qmax, clips ? td_int4_clip(shape->granularity, dim, true) : 1, v.bad,
                    (const int8_t *)(scratch + at->k_codes) + (size_t)bhk * at->kv_pad * d_pad,
                    (const float *)(scratch + at->k_scale) + bhk * at->kv_pad, at->kv_pad);
        if (smooth_v) {
            mean_of(&v, 0, v.rows, 8, mean, true);
            assert_memory_equal(mean, (const float *)(scratch + at->v_mean) + bhk * d_pad, dim * 4);
        }
        for (uint32_t c = 0; c < d_pad; c++) {
            float amax = 0;
            for (uint32_t r = 0; r < v.rows && c < dim; r++)
                amax = fmaxf(amax, fabsf(v.y[r * dim + c]));
            if (!at->v_is_f16)
                assert_int_equal(td_bits(((const float *)(scratch + at->v_scale))[bhk * d_pad + c]),
                                 td_bits(amax / TD_V_TOP));
            const uint8_t *codes = scratch + at->v_codes + ((size_t)bhk * d_pad + c) * at->kv_pad;
            const uint16_t *halves = (const uint16_t *)(scratch + at->v_codes) + ((size_t)bhk * d_pad + c) * at->kv_pad;
            for (uint32_t r = 0; r < at->kv_pad; r++) {
                const bool zero = r >= v.rows || c >= dim || !isfinite((float)tu_get(&it.v, b, hk, r, c));
                const float y = zero ? 0 : v.y[r * dim + c];
                if (at->v_is_f16)
                    assert_int_equal(halves[r], td_to_f16(y));
                else
                    assert_int_equal(codes[td_v_position(r)], zero ? 0 : nearest_e4m3(y * (TD_V_TOP / amax)));
            }
        }
        for (uint32_t h = hk * (heads / kv_heads); h < (hk + 1) * (heads / kv_heads); h++) {
            const uint32_t bh = b * heads + h;
            plane q = load_plane(&it.q, b, h, d_pad);
            for (uint32_t block = 0; smooth_q && block * 128 < q.rows; block++) {
                const size_t row = bh * (at->q_pad / 128) + block;
                mean_of(&q, block * 128, q.rows < (block + 1) * 128 ? q.rows : (block + 1) * 128, 1, mean, true);
                assert_memory_equal(mean, (const float *)(scratch + at->q_mean) + row * d_pad, dim * 4);
                const float *delta = (const float *)(scratch + at->delta_s) + row * at->kv_pad;
                for (uint32_t j = 0; j < at->kv_pad; j++) {
                    float sum = 0;
                    for (uint32_t c = 0; c < dim && j < k.rows; c++)
                        sum = fmaf(mean[c], k.y[j * dim + c], sum);
                    assert_int_equal(td_bits(delta[j]), td_bits(sum));
                }
            }
            check_codes(&q, shape->granularity, false, qmax,
                        clips ? td_int4_clip(shape->granularity, dim, false) : 1, NULL,
                        (const int8_t *)(scratch + at->q_codes) + (size_t)bh * at->q_pad * d_pad,
                        (const float *)(scratch + at->q_scale) + bh * at->q_pad, at->q_pad);
            free_plane(&q);
        }
        free_plane(&k);
        free_plane(&v);
    }
    tu_case_free(&it);
}

/* By the two forms that the prologue has: where a third instruction set is there it uses the second one's, and
 * test_isas_agree compares the scratch of all three. */
static void test_prologue_from_the_definition(void **state)
{
    (void)state;
    for (int isa = 0; isa < 2; isa++) {
        if (!td_cpu_isa_force(isas[isa]))
            continue;
        for (uint32_t granularity = 1; granularity <= 6; granularity++)
            check_prologue(
                &(tu_shape){.heads = 2,
                            .kv_heads = 1,
                            .q_len = 150,
                            .kv_len = 200,
                            .head_dim = granularity % 2 ? 32 : 80,
                            .precision = granularity % 3 ? TANDEM_PRECISION_8B : TANDEM_PRECISION_4B,
                            .granularity = granularity,
                            .dtype_q = TANDEM_DTYPE_F16,
                            .dtype_k = TANDEM_DTYPE_BF16,
                            .smooth = granularity == 4 ? TANDEM_SMOOTH_NONE : TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K,
                            .seed = granularity,
                            .layout = (tu_layout)(granularity % 4)},
                &cpu);
        const td_target ampere = twin_of(80), hopper = twin_of(90);
        for (uint32_t granularity = 1; granularity <= 5; granularity++) { /* in two records */
            static const uint32_t dim_of[] = {128, 32, 64, 80, 96};
            const tu_shape shape = {.batch = 2,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .q_len = 200,
                                    .kv_len = granularity == 2 ? 1100 : 300,
                                    .head_dim = dim_of[granularity - 1],
                                    .precision = granularity % 2 ? TANDEM_PRECISION_8B : TANDEM_PRECISION_4B,
                                    .granularity = granularity,
                                    .dtype_q = TANDEM_DTYPE_BF16,
                                    .dtype_k = TANDEM_DTYPE_F16,
                                    .dtype_v = granularity % 2 ? TANDEM_DTYPE_F16 : TANDEM_DTYPE_BF16,
                                    .smooth = granularity == 3   ? TANDEM_SMOOTH_NONE
                                              : granularity == 5 ? TANDEM_SMOOTH_K
                                                                 : TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K,
                                    .k_bias = 3,
                                    .seed = 40 + granularity,
                                    .layout = (tu_layout)(granularity % 4)};
            check_prologue(&shape, &hopper);
        }
        for (uint32_t dim = 64; dim <= 128; dim += 64) {
            td_target stream = td_target_for_stream(90);
            stream.twin = true;
            check_prologue(&(tu_shape){.heads = 4,
                                       .kv_heads = 2,
                                       .q_len = 30,
                                       .kv_len = dim == 64 ? 300 : 2100,
                                       .head_dim = dim,
                                       .precision = TANDEM_PRECISION_8B,
                                       .granularity = TANDEM_GRANULARITY_THREAD_HOPPER,
                                       .smooth = TANDEM_SMOOTH_V | TANDEM_SMOOTH_K,
                                       .dtype_q = TANDEM_DTYPE_F16,
                                       .dtype_k = TANDEM_DTYPE_F16,
                                       .dtype_v = dim == 64 ? TANDEM_DTYPE_F16 : TANDEM_DTYPE_BF16,
                                       .v_bias = 3,
                                       .seed = dim},
                           &stream);
        }
        check_prologue(&(tu_shape){.batch = 2,
                                   .q_len = 129,
                                   .kv_len = 65,
                                   .head_dim = 64,
                                   .heads = 2,
                                   .precision = TANDEM_PRECISION_8B,
                                   .granularity = TANDEM_GRANULARITY_THREAD_ADA,
                                   .smooth = TANDEM_SMOOTH_V | TANDEM_SMOOTH_K,
                                   .v_bias = 3,
                                   .dtype_v = TANDEM_DTYPE_F16},
                       isa ? &cpu : &ampere);
    }
    td_cpu_isa_force(NULL);
}

/* F16 codes: values beyond fp16's range are scaled by a power of two. */
static void test_f16_scales(void **state)
{
    (void)state;
    tu_case it;
    tu_case_init(
        &it, &(tu_shape){.q_len = 70, .kv_len = 90, .head_dim = 32, .precision = TANDEM_PRECISION_F16, .scale = 1e-9f});
    for (uint32_t c = 0; c < 32; c++) {
        tu_set(&it.q, 0, 0, 1, c, 1e6 * (c + 1));
        tu_set(&it.k, 0, 0, 2, c, -40000);
        for (uint32_t r = 0; r < 90; r++)
            tu_set(&it.v, 0, 0, r, c, c == 4 ? 1e8 * r : c == 5 ? 32768 : c == 6 ? 32769 : r);
    }
    tu_case_ref(&it);
    assert_int_equal(tu_case_run(&it, &cpu, 1), TANDEM_OK);
    const unsigned char *scratch = it.scratch;
    const float *q = (const float *)(scratch + it.layout.q_scale), *k = (const float *)(scratch + it.layout.k_scale),
                *v = (const float *)(scratch + it.layout.v_scale);
    assert_true(q[0] == 1 && q[1] == 1024 && k[2] == 2 && k[3] == 1 && q[70] == 0);
    assert_true(v[4] == 524288 && v[5] == 1 && v[6] == 2 && v[7] == 1);
    assert_int_equal(((const uint16_t *)(scratch + it.layout.q_codes))[32], td_to_f16(1e6f / 1024));
    assert_in(tu_case_l1(&it), 0, 2e-3);
    tu_case_free(&it);
}

/* The prologue of a stream on sm_90, in one record or in two, makes what that of every other executor makes; so where V is
 * smoothed, too. */
static void test_prologues_agree(void **state)
{
    static const struct {
        uint32_t batch, heads, kv_heads, q_len, kv_len, head_dim, records;
    } cases[] = {{1, 2, 1, 1, 1, 32, 2},      {2, 4, 2, 130, 300, 64, 2},  {1, 2, 2, 300, 2100, 128, 2},
                 {1, 1, 1, 40, 4200, 96, 3},  {20, 14, 14, 2, 130, 80, 2}, {1, 3, 3, 129, 8200, 32, 3},
                 {300, 1, 1, 130, 129, 32, 2}};

    (void)state;
    for (size_t i = 0; i < 4 * sizeof cases / sizeof *cases; i++) {
        const uint32_t c = (uint32_t)i / 4, type = 1 + (uint32_t)i % 2, smooth_v = (uint32_t)i / 2 % 2;
        const tu_shape shape = {.batch = cases[c].batch,
                                .heads = cases[c].heads,
                                .kv_heads = cases[c].kv_heads,
                                .q_len = cases[c].q_len,
                                .kv_len = cases[c].kv_len,
                                .head_dim = cases[c].head_dim,
                                .dtype_q = type,
                                .dtype_k = 3 - type,
                                .dtype_v = type,
                                .precision = TANDEM_PRECISION_8B,
                                .smooth = smooth_v ? TANDEM_SMOOTH_V | (c % 2 ? TANDEM_SMOOTH_K : 0) : 0,
                                .k_bias = 1,
                                .v_bias = smooth_v ? 2 : 0,
                                .layout = (tu_layout)(c % 2 ? i % 4 : (i + 2) % 4),
                                .seed = i + 1};
        const uint32_t means = cases[c].batch * cases[c].kv_heads * td_pad_dim(cases[c].head_dim) * smooth_v;
        float *mean[2] = {NULL, NULL};
        tandem_attention ops[2];
        uint64_t sizes[2][3];
        void *bytes[2][3];
        tu_case it;

        tu_case_init(&it, &shape);
        tu_set(&it.v, 0, 0, 0, 3, INFINITY);
        tu_set(&it.k, cases[c].batch - 1, cases[c].kv_heads - 1, cases[c].kv_len - 1, 5, NAN);
        tu_set(&it.q, 0, cases[c].heads - 1, cases[c].q_len / 2, 7, -INFINITY);
        assert_int_equal(td_attention_check(&it.op, NULL, 0), TANDEM_OK);
        for (int stream = 0; stream < 2; stream++) {
            td_target target = stream ? td_target_for_stream(90) : td_target_for_sm(90);

            target.twin = true;
            assert_int_equal(td_plan_attention(&it.op, &target, &it.plan, &it.layout, NULL, 0), TANDEM_OK);
            const bool prepares = stream && shape.layout != TU_GAPS; /* it reads several words at a time */
            assert_int_equal(it.plan.record_count, prepares ? cases[c].records : !smooth_v ? 3 : c % 2 ? 9 : 7);
            assert_int_equal(!strncmp(it.plan.records[0].kernel->name, "prepare", 7), prepares);
            it.plan.record_count--; /* without attention */
            free(it.scratch);
            it.scratch = aligned_alloc(256, (it.plan.scratch_bytes + 255) / 256 * 256);
            assert_non_null(it.scratch);
            memset(it.scratch, TU_POISON, it.plan.scratch_bytes);
            const uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)it.q.data, (uintptr_t)it.k.data, (uintptr_t)it.v.data};
            assert_int_equal(td_exec_cpu_run(&it.plan, views, (uintptr_t)it.scratch, 2, NULL), TANDEM_OK);
            tu_case_codes(&it, it.scratch, &ops[stream], bytes[stream], sizes[stream]);
            mean[stream] = malloc(means * sizeof(float) + 1);
            assert_non_null(mean[stream]);
            if (smooth_v)
                memcpy(mean[stream], (unsigned char *)it.scratch + it.layout.v_mean, means * sizeof(float));
        }
        assert_memory_equal(mean[0], mean[1], means * sizeof(float));
        free(mean[0]);
        free(mean[1]);
        tu_case_free(&it);
        for (int v = 0; v < 3; v++) {
            assert_int_equal(sizes[0][v], sizes[1][v]);
            assert_memory_equal(bytes[0][v], bytes[1][v], sizes[0][v]);
            free(bytes[0][v]);
            free(bytes[1][v]);
        }
    }
}

/* Codes that a plan has made, given to another one instead of what they were made of: the same bits. */
static void test_codes(void **state)
{
    static const tu_shape shapes[] = {
        {.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 130, .kv_len = 270, .head_dim = 64, .causal = 1, .seed = 1},
        {.heads = 2, .q_len = 1, .kv_len = 1, .head_dim = 32, .seed = 2},
        {.heads = 3, .q_len = 300, .kv_len = 128, .head_dim = 80, .seed = 3},
        {.batch = 3, .heads = 1, .q_len = 64, .kv_len = 520, .head_dim = 128, .seed = 4},
        {.heads = 1, .q_len = 70, .kv_len = 130, .head_dim = 256, .seed = 5}};
    static const uint32_t sms[] = {0, 89, 90, 120};

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t t = 0; t < sizeof sms / sizeof *sms; t++) {
            td_target target = td_target_for_stream(sms[t]);
            tu_shape shape = shapes[i];
            tandem_attention op;
            uint64_t sizes[3];
            void *bytes[3];
            static td_plan plan;
            tu_case it;
            char why[256] = "";

            target.twin = true;
            shape.precision = TANDEM_PRECISION_8B;
            shape.dtype_q = shape.dtype_k = shape.dtype_v = TANDEM_DTYPE_F16;
            shape.k_bias = 2;
            tu_case_init(&it, &shape);
            assert_int_equal(tu_case_run(&it, &target, 2), TANDEM_OK);
            tu_case_codes(&it, it.scratch, &op, bytes, sizes);
            assert_int_equal(td_attention_check(&op, why, sizeof why), TANDEM_OK);
            if (td_plan_attention(&op, &target, &plan, NULL, why, sizeof why))
                fail_msg("sm %u: %s", sms[t], why);
            assert_int_equal(plan.record_count, 1);
            assert_int_equal(plan.scratch_bytes, 0);
            assert_int_equal(plan.precision, TANDEM_PRECISION_8B);
            for (int v = 0; v < 3; v++)
                assert_int_equal(plan.records[0].reads[v].end_bytes, sizes[v]);
            tu_tensor o = it.o;
            o.data = malloc(it.o.bytes + TU_GUARD_BYTES);
            assert_non_null(o.data);
            tu_poison(&o);
            const uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)bytes[0], (uintptr_t)bytes[1], (uintptr_t)bytes[2],
                                                   (uintptr_t)o.data};
            assert_int_equal(td_exec_cpu_run(&plan, views, 0, 2, NULL), TANDEM_OK);
            assert_memory_equal(o.data, it.o.data, it.o.bytes + TU_GUARD_BYTES);
            tu_tensor_free(&o);
            for (int v = 0; v < 3; v++)
                free(bytes[v]);
            tu_case_free(&it);
        }

    /* fp16 V is what these GPUs multiply */
    td_target target = td_target_for_sm(80);
    tandem_attention op = good_op();
    static td_plan plan;
    char why[256] = "";
    CODED;
    target.twin = true;
    assert_int_equal(td_plan_attention(&op, &target, &plan, NULL, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(why, "attention.v.dtype is 5"));
    /* overflow */
    assert_true(tandem_codes_bytes(TANDEM_DTYPE_CODES_INT8, 1u << 30, 1u << 30, 1u << 30, 128, NULL) == UINT64_MAX);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_prologue_from_the_definition),
    cmocka_unit_test(test_prologues_agree),
    cmocka_unit_test(test_codes),
    cmocka_unit_test(test_f16_scales),
};
const test_cases attention_cpu_codes_cases = TEST_CASES(cases);
