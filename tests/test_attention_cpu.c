/* Attention on the CPU: checks, plans, oracle, prologue, twin and the kernels that ship. --bench prints times instead.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/attention/cpu.h"
#include "kernels/attention/params.h"
#include "kernels/commit.h"
#include "tests/attention_util.h"

static const uint32_t dims[] = {32, 64, 80, 96, 128, 256};
static const char *const isas[] = {"c", "avx2", "avx512-vnni"};
enum { DIMS = sizeof dims / sizeof *dims, ISAS = sizeof isas / sizeof *isas };

#define assert_in(value, low, high)                                                                      \
    do {                                                                                                 \
        const double in_value = (value);                                                                 \
        if (!(in_value >= (low) && in_value <= (high))) {                                                \
            print_error("%s is %g, not in %g .. %g\n", #value, in_value, (double)(low), (double)(high)); \
            fail();                                                                                      \
        }                                                                                                \
    } while (0)

static const td_target cpu = {.sm = 0};

/* A GPU's twin, whatever cubins this build has. */
static td_target twin_of(uint32_t sm)
{
    td_target target = td_target_for_sm(sm);
    target.twin = true;
    return target;
}

/* Of the kernels that only a stream gets. */
static td_target wgmma_twin(void)
{
    td_target target = td_target_for_stream(90);
    target.twin = true;
    return target;
}

static size_t o_count(const tu_case *it)
{
    return (size_t)it->op.batch * it->op.heads * it->op.q_len * it->op.head_dim;
}

/* ---- formats ---- */

static void test_formats(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (uint32_t i = 0; i < 65536; i++) {
        const float x = td_from_f16((uint16_t)i), y = td_from_bf16((uint16_t)i);
        if (x == x)
            assert_int_equal(td_to_f16(x), i);
        if (y == y)
            assert_int_equal(td_to_bf16(y), i);
    }
    assert_true(isnan(td_from_f16(0x7e01)) && isnan(td_from_e4m3(0x7f)) && isnan(td_from_e4m3(0xff)));
    assert_int_equal(td_to_e4m3(NAN), 0x7f);
    assert_int_equal(td_to_e4m3(1e9f), 0x7e);
    assert_int_equal(td_to_e4m3(-INFINITY), 0xfe);
    assert_true(td_from_e4m3(0x7e) == 448 && td_from_e4m3(1) == 0x1p-9f && td_from_e4m3(8) == 0x1p-6f);
    for (uint32_t i = 0; i < 127; i++) {
        const float a = td_from_e4m3((uint8_t)i), b = i < 126 ? td_from_e4m3((uint8_t)(i + 1)) : 480,
                    middle = (a + b) / 2;
        assert_true(b > a);
        assert_int_equal(td_to_e4m3(a), i);
        assert_int_equal(td_to_e4m3(-a), i | 0x80);
        assert_int_equal(td_to_e4m3(nextafterf(middle, 0)), i);
        if (i < 126) {
            assert_int_equal(td_to_e4m3(nextafterf(middle, INFINITY)), i + 1);
            assert_int_equal(td_to_e4m3(middle), i % 2 ? i + 1 : i);
        }
    }
    for (int i = 0; i < 20000; i++) { /* between two neighbours the nearer is taken, of equally near ones the even */
        const float x = (float)(tu_normal(&seed) * exp2((double)(tu_random(&seed) % 30) - 20));
        const uint16_t h = td_to_f16(x), up = (uint16_t)(h + 1), down = (uint16_t)(h - 1);
        const double e = fabs((double)td_from_f16(h) - (double)x);
        assert_true(e <= fabs((double)td_from_f16(up) - (double)x));
        if (h & 0x7fff)
            assert_true(e <= fabs((double)td_from_f16(down) - (double)x));
    }
    assert_int_equal(td_to_f16(65519.9f), 0x7bff);
    assert_int_equal(td_to_f16(65520.0f), 0x7c00);
    assert_int_equal(td_to_f16(0x1p-25f), 0);
    assert_int_equal(td_to_f16(0x1.8p-24f), 2);
}

static void test_v_permutation(void **state)
{
    (void)state;
    uint32_t seen[4] = {0};
    for (uint32_t key = 0; key < 128; key++) {
        const uint32_t position = td_v_position(key);
        assert_int_equal(td_v_key(position), key);
        assert_int_equal(position / 16, key / 16);
        seen[position / 32] |= 1u << position % 32;
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(seen[i], 0xffffffff);
    /* position 4q + r holds key 8 * (r >> 1) + 2q + (r & 1) */
    for (uint32_t q = 0; q < 4; q++)
        for (uint32_t r = 0; r < 4; r++)
            assert_int_equal(td_v_key(4 * q + r), 8 * (r >> 1) + 2 * q + (r & 1));
}

/* ---- tensor cores ---- */

static void test_tensor_cores_of_an_h200(void **state)
{
    (void)state;
    static const struct {
        uint32_t a[8], b[8], a16[8], b16[8], c, mma_e4m3, mma_f16, wgmma;
    } cases[] = {
#include "tests/mma_h200.inc"
    };
    assert_int_equal(sizeof cases / sizeof *cases, 64);
    int differ = 0;
    for (int i = 0; i < 64; i++) {
        const uint8_t *a = (const uint8_t *)cases[i].a, *b = (const uint8_t *)cases[i].b;
        const uint16_t *a16 = (const uint16_t *)cases[i].a16, *b16 = (const uint16_t *)cases[i].b16;
        const float c = td_float(cases[i].c);
        assert_int_equal(td_bits(td_twin_mma_e4m3(TD_ACCUMULATOR_HOPPER_MMA, a, b, c)), cases[i].mma_e4m3);
        assert_int_equal(td_bits(td_twin_mma_f16(a16, b16, c)), cases[i].mma_f16);
        assert_int_equal(td_bits(td_twin_mma_e4m3(TD_ACCUMULATOR_WGMMA, a, b, c)), cases[i].wgmma);
        differ += cases[i].wgmma != cases[i].mma_e4m3;
    }
    assert_true(differ > 32); /* else the cases could not tell the units apart */
    static const struct {
        uint32_t a[8], b[8];
        uint16_t c, d;
    } halves[] = {
#include "tests/wgmma_f16_h200.inc"
    };
    differ = 0;
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
        const uint8_t *a = (const uint8_t *)halves[i].a, *b = (const uint8_t *)halves[i].b;
        const float c = td_from_f16(halves[i].c), other = td_twin_mma_e4m3(TD_ACCUMULATOR_WGMMA, a, b, c);
        assert_int_equal(td_bits(td_twin_mma_e4m3(TD_ACCUMULATOR_WGMMA_F16, a, b, c)), td_bits(td_from_f16(halves[i].d)));
        differ += td_bits(other) != td_bits(td_from_f16(halves[i].d));
    }
    assert_true(differ > 16);
}

/* 8.5 sigma of bias on V: one accumulator over all keys loses much, one for each 64 keys little. */
static void test_two_levels_beat_one(void **state)
{
    (void)state;
    static const uint32_t units[] = {TD_ACCUMULATOR_WGMMA, TD_ACCUMULATOR_ADA_MMA, TD_ACCUMULATOR_BLACKWELL_MMA,
                                     TD_ACCUMULATOR_HOPPER_MMA, TD_ACCUMULATOR_F32};
    enum { KEYS = 16384 };
    static uint8_t p[KEYS], v[KEYS];
    uint64_t seed = 5;
    double exact = 0;
    for (int i = 0; i < KEYS; i++) {
        p[i] = td_to_e4m3((float)(448 * exp(-fabs(tu_normal(&seed)))));
        v[i] = td_to_e4m3((float)(tu_normal(&seed) + 8.5) * 20);
        exact += (double)td_from_e4m3(p[i]) * (double)td_from_e4m3(v[i]);
    }
    for (int unit = 0; unit < 5; unit++) {
        float one = 0, two = 0;
        for (int i = 0; i < KEYS; i += 64) {
            float tile = 0;
            for (int k = i; k < i + 64; k += 32) {
                one = td_twin_mma_e4m3(units[unit], p + k, v + k, one);
                tile = td_twin_mma_e4m3(units[unit], p + k, v + k, tile);
            }
            two += tile;
        }
        const double error_one = fabs((double)one / exact - 1), error_two = fabs((double)two / exact - 1);
        if (unit < 2) {
            assert_in(error_two, 1e-5, 3e-3);
            assert_true(error_one > 20 * error_two);
        } else {
            assert_true(error_one < 1e-3 && error_two < 1e-4);
        }
    }
}

/* ---- arguments ---- */

static tandem_attention good_op(void)
{
    const tandem_view q = {
        .dtype = TANDEM_DTYPE_F16, .stride_batch = 6 * 100 * 64, .stride_head = 100 * 64, .stride_row = 64};
    const tandem_view k = {
        .dtype = TANDEM_DTYPE_F16, .stride_batch = 3 * 300 * 64, .stride_head = 300 * 64, .stride_row = 64};
    const tandem_view lse = {.dtype = TANDEM_DTYPE_F32, .stride_batch = 600, .stride_head = 100, .stride_row = 1};
    return (tandem_attention){.q = q,
                              .k = k,
                              .v = k,
                              .o = q,
                              .lse = lse,
                              .batch = 2,
                              .heads = 6,
                              .kv_heads = 3,
                              .q_len = 100,
                              .kv_len = 300,
                              .head_dim = 64};
}

static void test_check(void **state)
{
    (void)state;
    char why[256];
    tandem_attention op = good_op();
    assert_int_equal(td_attention_check(&op, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_attention_check(&op, NULL, 0), TANDEM_OK);
    op.lse = (tandem_view){0};
    op.k.stride_batch = op.k.stride_head = op.k.stride_row = op.q.stride_batch = 0; /* broadcast what is read */
    op.scale = -2;
    op.smooth = 14;
    assert_int_equal(td_attention_check(&op, why, sizeof why), TANDEM_OK);
    for (int i = 0; i < DIMS; i++) {
        op = good_op();
        op.head_dim = dims[i];
        op.q.stride_row = op.o.stride_row = 256;
        op.o.stride_head = 100 * 256;
        op.o.stride_batch = 600 * 256;
        assert_int_equal(td_attention_check(&op, why, sizeof why), TANDEM_OK);
    }

#define BAD(change, text)                                                             \
    do {                                                                              \
        op = good_op();                                                               \
        change;                                                                       \
        memset(why, 0, sizeof why);                                                   \
        assert_int_equal(td_attention_check(&op, NULL, 0), TANDEM_ERROR_ARG);         \
        assert_int_equal(td_attention_check(&op, why, sizeof why), TANDEM_ERROR_ARG); \
        if (!strstr(why, text)) {                                                     \
            print_error("%s: \"%s\" does not say \"%s\"\n", #change, why, text);      \
            fail();                                                                   \
        }                                                                             \
    } while (0)
    BAD(op.batch = 0, "attention.batch is 0; it must be at least 1");
    BAD(op.heads = 0, "attention.heads is 0");
    BAD(op.kv_heads = 0, "attention.kv_heads is 0");
    BAD(op.q_len = 0, "attention.q_len is 0");
    BAD(op.kv_len = 0, "attention.kv_len is 0; it must be at least 1");
    BAD(op.batch = UINT32_MAX, "attention.batch is 4294967295");
    BAD(op.heads = 0xfffffffc, "attention.heads is 4294967292");
    BAD(op.kv_heads = 0x80000000, "attention.kv_heads is 2147483648");
    BAD(op.q_len = UINT32_MAX, "attention.q_len is 4294967295");
    BAD(op.kv_len = UINT32_MAX, "attention.kv_len is 4294967295");
    BAD(op.kv_heads = 4, "attention.heads is 6; it must be a multiple of kv_heads, which is 4");
    BAD(op.kv_heads = 12, "attention.heads is 6");
    BAD(op.head_dim = 0, "attention.head_dim is 0");
    BAD(op.head_dim = 48, "attention.head_dim is 48");
    BAD(op.head_dim = 512, "attention.head_dim is 512");
    BAD(op.q.dtype = 0, "attention.q.dtype is 0");
    BAD(op.k.dtype = 6, "attention.k.dtype is 6");
    BAD(op.o.dtype = 4, "attention.o.dtype is 4; it must be 1 (f16)");
    BAD(op.k.dtype = TANDEM_DTYPE_CODES_INT8, "attention.q.dtype is 1; where q, k or v is codes it must be 4");
    BAD(op.q.dtype = op.k.dtype = TANDEM_DTYPE_CODES_INT8, "attention.q.stride_head is 6400; for codes of this shape it must be 8192");
#define CODED                                                                                            \
    op.q = (tandem_view){.dtype = 4, .stride_row = 64, .stride_head = 8192, .stride_batch = 6 * 8192};    \
    op.k = (tandem_view){.dtype = 4, .stride_row = 64, .stride_head = 24576, .stride_batch = 3 * 24576};  \
    op.v = op.k;                                                                                         \
    op.v.dtype = 5, op.v.stride_row = 384, op.lse.dtype = 0
    op = good_op();
    CODED;
    assert_int_equal(td_attention_check(&op, why, sizeof why), TANDEM_OK);
    BAD(CODED; op.v.dtype = 4, "attention.v.dtype is 4; where q, k or v is codes it must be 5");
    BAD(CODED; op.v.dtype = 1, "attention.v.dtype is 1; where q, k or v is codes it must be 5");
    BAD(CODED; op.q.stride_row = 0, "attention.q.stride_row is 0; for codes of this shape it must be 64");
    BAD(CODED; op.v.stride_row = 64, "attention.v.stride_row is 64; for codes of this shape it must be 384");
    BAD(CODED; op.k.stride_batch = 0, "attention.k.stride_batch is 0; for codes of this shape it must be 73728");
    BAD(CODED; op.k.offset_bytes = 128, "attention.k.offset_bytes is 128; for codes it must be a multiple of 256");
    BAD(CODED; op.lse.dtype = 3, "attention.lse.dtype is 3; of codes");
    BAD(CODED; op.smooth = TANDEM_SMOOTH_K, "attention.smooth is 4; codes are smoothed already");
    BAD(CODED; op.precision = TANDEM_PRECISION_4B, "attention.precision is 3; for codes it must be 0");
    BAD(CODED; op.precision = TANDEM_PRECISION_F16, "attention.precision is 1; for codes it must be 0");
    BAD(op.v.dtype = 99, "attention.v.dtype is 99");
    BAD(op.o.dtype = 0, "attention.o.dtype is 0");
    BAD(op.lse.dtype = TANDEM_DTYPE_F16, "attention.lse.dtype is 1");
    BAD(op.lse.dtype = 7, "attention.lse.dtype is 7");
    BAD(op.q.reserved = 3, "attention.q.reserved is 3");
    BAD(op.reserved = 1, "attention.reserved is 1");
    BAD(op.q.offset_bytes = 1, "attention.q.offset_bytes is 1");
    BAD(op.lse.offset_bytes = 2, "attention.lse.offset_bytes is 2");
    BAD(op.k.offset_bytes = UINT64_MAX - 1, "attention.k");
    BAD(op.q.stride_row = -64, "attention.q.stride_row is -64; it must not be negative");
    BAD(op.k.stride_head = -1, "attention.k.stride_head is -1");
    BAD(op.v.stride_batch = INT64_MIN, "attention.v.stride_batch is -9223372036854775808");
    BAD(op.q.stride_row = INT64_MAX, "attention.q.stride_batch, stride_head, stride_row");
    BAD(op.k.stride_batch = INT64_MAX / 2, "beyond 2^63");
    BAD(op.o.stride_row = 63, "attention.o.stride_row is 63; the output would overlap itself");
    BAD(op.o.stride_row = 0, "attention.o.stride_row is 0");
    BAD(op.o.stride_head = 0, "attention.o.stride_head is 0");
    BAD(op.o.stride_batch = 64, "attention.o.stride_");
    BAD(op.o.stride_batch = 0, "attention.o.stride_batch is 0");
    BAD(op.lse.stride_row = 0, "attention.lse.stride_row is 0");
    BAD(op.lse.stride_head = 99, "attention.lse.stride_head is 99");
    BAD(op.causal = 2, "attention.causal is 2");
    BAD(op.precision = 4, "attention.precision is 4");
    BAD(op.smooth = 16, "attention.smooth is 16");
    BAD(op.smooth = TANDEM_SMOOTH_NONE | TANDEM_SMOOTH_K, "attention.smooth is 5");
    BAD(op.granularity = 7, "attention.granularity is 7");
    BAD(op.scale = NAN, "attention.scale is");
    BAD(op.scale = -INFINITY, "attention.scale is -inf");
    BAD((op.batch = op.heads = op.kv_heads = 1 << 20, op.o.stride_batch = (int64_t)op.heads * op.o.stride_head,
         op.lse.dtype = TANDEM_DTYPE_NONE),
        "more than 2147483647 blocks");
    BAD((op.q_len = op.kv_len = 1 << 30, op.batch = op.heads = op.kv_heads = 1, op.precision = TANDEM_PRECISION_4B,
         op.lse.dtype = TANDEM_DTYPE_NONE),
        "more than 2147483647 blocks");
#undef BAD

    const tandem_view view = {.dtype = TANDEM_DTYPE_F32, .stride_batch = 1000, .stride_head = 100, .stride_row = 10};
    assert_int_equal(td_view_extent_bytes(&view, 2, 3, 4, 5), (1000 + 200 + 30 + 5) * 4);
    const tandem_view far = {.dtype = TANDEM_DTYPE_F32, .stride_batch = INT64_MAX};
    assert_true(td_view_extent_bytes(&far, 2, 1, 1, 1) == UINT64_MAX);
    assert_true(td_view_extent_bytes(&far, UINT32_MAX, 1, 1, 1) == UINT64_MAX);
    assert_int_equal(td_view_extent_bytes(&far, 1, 1, 1, 1), 4);
    assert_int_equal(td_dtype_bytes(TANDEM_DTYPE_BF16), 2);
    assert_int_equal(td_dtype_bytes(9), 0);
}

/* ---- plans ---- */

static void check_plan(const td_plan *plan, const tandem_attention *op)
{
    const uint64_t extents[TD_VIEW_COUNT] = {
        td_view_extent_bytes(&op->q, op->batch, op->heads, op->q_len, op->head_dim),
        td_view_extent_bytes(&op->k, op->batch, op->kv_heads, op->kv_len, op->head_dim),
        td_view_extent_bytes(&op->v, op->batch, op->kv_heads, op->kv_len, op->head_dim),
        td_view_extent_bytes(&op->o, op->batch, op->heads, op->q_len, op->head_dim),
        td_view_extent_bytes(&op->lse, op->batch, op->heads, op->q_len, 1)};
    assert_in(plan->record_count, strstr(plan->records[0].kernel->name, "f16_wgmma") ? 1 : 3, 24);
    assert_int_equal(plan->scratch_bytes % 256, 0);
    for (uint32_t i = 0; i < plan->record_count; i++) {
        const td_record *record = &plan->records[i];
        assert_in(record->param_bytes, 8, TD_PARAM_BYTES);
        assert_true(record->reloc_count >= 1 && record->read_count >= 1 && record->write_count >= 1);
        assert_true(record->grid[0] >= 1 && record->grid[0] <= 0x7fffffff);
        assert_non_null(record->kernel->cpu);
        /* the first pointer leads to the cancel word, every other to the begin of exactly one range that the record
         * reads or writes */
        assert_int_equal(record->relocs[0].base, TD_BASE_CONTROL);
        assert_int_equal(record->relocs[0].offset, 0);
        assert_int_equal(record->reloc_count, 1 + record->read_count + record->write_count);
        for (uint32_t r = 0; r < record->reloc_count; r++) {
            const td_reloc *reloc = &record->relocs[r];
            uint64_t place = 1;
            int ranges = 0;
            assert_int_equal(reloc->offset % 8, 0);
            assert_true(reloc->offset + 8u <= record->param_bytes);
            memcpy(&place, record->params + reloc->offset, sizeof place);
            assert_true(place == 0);
            for (uint32_t k = 0; k < record->read_count + record->write_count; k++) {
                const td_range *range =
                    k < record->read_count ? &record->reads[k] : &record->writes[k - record->read_count];
                ranges +=
                    range->base == reloc->base && range->view == reloc->view && range->begin_bytes == reloc->addend;
            }
            assert_int_equal(ranges, reloc->base == TD_BASE_CONTROL ? 0 : 1);
            for (uint32_t k = 0; k < r; k++)
                assert_int_not_equal(record->relocs[k].offset, reloc->offset);
        }
        for (uint32_t k = 0; k < record->read_count + record->write_count; k++) {
            const bool is_read = k < record->read_count;
            const td_range *range = is_read ? &record->reads[k] : &record->writes[k - record->read_count];
            assert_true(range->begin_bytes < range->end_bytes);
            if (range->base == TD_BASE_VIEW) {
                assert_true(range->view < TD_VIEW_COUNT && range->end_bytes == extents[range->view]);
                assert_int_equal(is_read, range->view <= TD_VIEW_V);
                continue;
            }
            assert_int_equal(range->begin_bytes % 256, 0);
            assert_true(range->end_bytes <= plan->scratch_bytes);
            /* what is read from scratch was written, exactly that range, by an earlier record; nothing is written twice
             */
            int writers = 0;
            for (uint32_t j = 0; j < i; j++)
                for (uint32_t w = 0; w < plan->records[j].write_count; w++) {
                    const td_range *other = &plan->records[j].writes[w];
                    if (other->base != TD_BASE_SCRATCH || other->begin_bytes >= range->end_bytes ||
                        range->begin_bytes >= other->end_bytes)
                        continue;
                    writers++;
                    assert_true(other->begin_bytes == range->begin_bytes && other->end_bytes == range->end_bytes);
                }
            assert_int_equal(writers, is_read ? 1 : 0);
        }
    }
}

static void test_plans(void **state)
{
    (void)state;
    static const uint32_t sms[] = {0, 80, 86, 89, 90, 120};
    uint32_t plans = 0, cubins = 0;
    td_cubins(&cubins);
    for (int s = 0; s < 6; s++)
        for (uint32_t smooth = 0; smooth < 16; smooth++)
            for (uint32_t precision = 0; precision < 4; precision++)
                for (uint32_t granularity = 0; granularity < 7; granularity++) {
                    tandem_attention op = good_op();
                    TU_PLAN(plan);
                    td_attention_layout layout;
                    char why[256] = "";
                    op.head_dim = granularity % 2 ? 64 : 32;
                    op.smooth = smooth % 2 ? TANDEM_SMOOTH_NONE : smooth;
                    op.precision = precision;
                    op.granularity = granularity;
                    if (smooth & 4)
                        op.lse = (tandem_view){0};
                    td_target target = td_target_for_sm(sms[s]);
                    target.dump = smooth == 2;
                    target.twin = granularity < 3;
                    assert_int_equal(td_attention_check(&op, why, sizeof why), TANDEM_OK);
                    const tandem_status status = td_plan_attention(&op, &target, &plan, &layout, why, sizeof why);
                    if (status == TANDEM_ERROR_UNSUPPORTED && cubins && !target.twin) {
                        assert_true(strlen(why) > 10);
                        continue;
                    }
                    assert_int_equal(status, TANDEM_OK);
                    check_plan(&plan, &op);
                    plans++;
                    const uint32_t used = precision ? precision : (uint32_t)TANDEM_PRECISION_8B; /* kv_len is 300 */
                    const td_record *last = &plan.records[plan.record_count - 1];
                    const td_cubin *cubin =
                        target.twin || !sms[s] ? NULL : td_cubin_for_sm(sms[s], why, sizeof why);
                    const uint32_t sm = cubin ? cubin->sm : sms[s];
                    const bool direct = sm == 90 && used == TANDEM_PRECISION_F16 && op.smooth <= TANDEM_SMOOTH_NONE &&
                                        !target.dump && op.head_dim == 64;
                    assert_int_equal(plan.precision, used);
                    assert_int_equal(layout.qk_is_f16, used == TANDEM_PRECISION_F16);
                    if (direct) {
                        td_params_attention_f16 params;
                        memcpy(&params, last->params, sizeof params);
                        assert_string_equal(last->kernel->name, "attn_f16_wgmma_inline_short");
                        assert_string_equal(last->kernel->entry, "attn_f16_wgmma_inline_short_d64");
                        assert_int_equal(plan.record_count, 1);
                        assert_int_equal(plan.scratch_bytes, 0);
                        assert_true(last->shared_bytes <= 47 * 1024);
                        assert_int_equal(last->block[0], 64 * 2 * 2 + 128);
                        assert_int_equal(last->grid[0], 12);
                        assert_int_equal(params.step_keys, layout.step_keys);
                        assert_true(fabs((double)params.scale * 8 - 1) < 1e-6);
                        continue;
                    }
                    td_params_attention params;
                    memcpy(&params, last->params, sizeof params);
                    assert_int_equal(params.d_pad, op.head_dim);
                    assert_int_equal(params.kv_pad, 384);
                    assert_true(fabs((double)params.scale * sqrt(op.head_dim) - 1) < 1e-6);
                    if (sms[s]) {
                        assert_int_equal(layout.v_is_f16, used == TANDEM_PRECISION_F16 || sm < 89);
                        const bool one_scale = granularity == TANDEM_GRANULARITY_DEFAULT ||
                                               granularity == TANDEM_GRANULARITY_THREAD_HOPPER ||
                                               granularity == TANDEM_GRANULARITY_TENSOR;
                        const bool smooth_q = op.smooth ? op.smooth & TANDEM_SMOOTH_Q : used == TANDEM_PRECISION_4B;
                        const bool wgmma = sm == 90 && used != TANDEM_PRECISION_F16 && one_scale && !smooth_q &&
                                           !target.dump;
                        assert_int_equal(strcmp(last->kernel->name, "attn_8b_wgmma_inline") == 0, wgmma);
                        assert_true(last->shared_bytes <= 47 * 1024);
                        /* as there are few, warpgroups share the keys */
                        assert_int_equal(last->block[0],
                                         wgmma ? TD_HOPPER_THREADS(TD_HOPPER_INLINE_SPLITS(op.head_dim)) : 128);
                        assert_int_equal(last->grid[0], 12 * 2);
                        assert_non_null(strstr(last->kernel->entry, op.head_dim == 32 ? "_d32" : "_d64"));
                        assert_int_equal(strncmp(last->kernel->entry, last->kernel->name, strlen(last->kernel->name)),
                                         0);
                        assert_true(last->shared_bytes > 64 * op.head_dim);
                        assert_int_equal(layout.dump_s != UINT64_MAX, target.dump);
                        assert_int_equal(layout.dump_r != UINT64_MAX, target.dump && !layout.v_is_f16);
                        if (cubin && !cubin->ptx)
                            assert_in(last->registers, 16, 255);
                    } else {
                        assert_null(last->kernel->entry);
                        assert_int_equal(last->grid[0], 12);
                        assert_int_equal(layout.v_is_f16, used == TANDEM_PRECISION_F16);
                    }
                }
    assert_true(plans >= 16 * 4 * 7);

    /* AUTO changes at 256 keys */
    tandem_attention op = good_op();
    TU_PLAN(plan);
    op.kv_len = 255;
    assert_int_equal(td_plan_attention(&op, &cpu, &plan, NULL, NULL, 0), TANDEM_OK);
    assert_int_equal(plan.precision, TANDEM_PRECISION_F16);
    op.kv_len = 256;
    assert_int_equal(td_plan_attention(&op, &cpu, &plan, NULL, NULL, 0), TANDEM_OK);
    assert_int_equal(plan.precision, TANDEM_PRECISION_8B);

    char why[128] = "";
    assert_null(td_cubin_for_sm(70, why, sizeof why));
    assert_true(strlen(why) > 10);
    if (cubins) {
        const td_cubin *cubin = td_cubin_for_sm(90, why, sizeof why);
        assert_non_null(cubin);
        assert_true(cubin->sm <= 90 && cubin->image_count > 0 && td_cubin_find(cubin, "stamp"));
    } else {
        assert_null(td_cubin_for_sm(90, why, sizeof why));
        assert_non_null(strstr(why, "nvcc"));
    }
}

/* ---- the oracle ---- */

static void test_ref_by_hand(void **state)
{
    (void)state;
    tu_case it;
    /* two heads read one kv head; q . k is 2 c and 0 for head 0, 0 and 0 for head 1 */
    tu_case_init(
        &it, &(tu_shape){.heads = 2, .kv_heads = 1, .q_len = 1, .kv_len = 2, .head_dim = 32, .scale = 0.5f, .lse = 1});
    for (uint32_t c = 0; c < 32; c++) {
        tu_set(&it.q, 0, 0, 0, c, c == 3 ? 2 : 0);
        tu_set(&it.q, 0, 1, 0, c, 0);
        tu_set(&it.k, 0, 0, 0, c, c == 3 ? 1.5 : 7);
        tu_set(&it.k, 0, 0, 1, c, c == 3 ? 0 : -7);
        tu_set(&it.v, 0, 0, 0, c, c);
        tu_set(&it.v, 0, 0, 1, c, -1);
    }
    tu_case_ref(&it);
    const double p = exp(1.5) / (exp(1.5) + 1);
    for (uint32_t c = 0; c < 32; c++) {
        assert_in(it.ref_o[c] - (p * c - (1 - p)), -1e-12, 1e-12);
        assert_in(it.ref_o[32 + c] - (0.5 * c - 0.5), -1e-12, 1e-12);
    }
    assert_in(it.ref_lse[0] - log(exp(1.5) + 1), -1e-12, 1e-12);
    assert_in(it.ref_lse[1] - log(2), -1e-12, 1e-12);
    tu_case_free(&it);

    /* three queries, two keys, causal: the first sees nothing, the second key 0, the third both */
    tu_case_init(&it, &(tu_shape){.q_len = 3, .kv_len = 2, .head_dim = 32, .causal = 1, .layout = TU_GAPS});
    for (uint32_t c = 0; c < 32; c++) {
        for (uint32_t r = 0; r < 3; r++)
            tu_set(&it.q, 0, 0, r, c, c == 0 ? 1 : 0);
        tu_set(&it.k, 0, 0, 0, c, 0);
        tu_set(&it.k, 0, 0, 1, c, c == 0 ? sqrt(32) * log(3) : 0);
    }
    tu_case_ref(&it);
    for (uint32_t c = 0; c < 32; c++) {
        const double v0 = tu_get(&it.v, 0, 0, 0, c), v1 = tu_get(&it.v, 0, 0, 1, c);
        assert_true(it.ref_o[c] == 0);
        assert_in(it.ref_o[32 + c] - v0, -1e-12, 1e-12);
        assert_in(it.ref_o[64 + c] - (0.25 * v0 + 0.75 * v1), -1e-6, 1e-6);
    }
    assert_true(it.ref_lse[0] == -INFINITY && fabs(it.ref_lse[1]) < 1e-12 && fabs(it.ref_lse[2] - log(4)) < 1e-6);
    tu_case_free(&it);
}

/* ---- codes and scales, recomputed from the definition ---- */

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
    for (uint32_t r = 0; r < rows_pad; r++) {
        float amax = 0;
        for (uint32_t s = 0; s < it->rows; s++)
            for (uint32_t c = 0; c < it->dim && same_group(r, s, granularity, is_k); c++)
                amax = fmaxf(amax, fabsf(it->y[s * it->dim + c]));
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
}

static uint8_t nearest_e4m3(float x)
{
    uint8_t best = 0;
    for (uint32_t i = 1; i < 127; i++) {
        const double e = fabs(fabs((double)x) - (double)td_from_e4m3((uint8_t)i));
        const double least = fabs(fabs((double)x) - (double)td_from_e4m3(best));
        if (e < least || (e == least && i % 2 == 0))
            best = (uint8_t)i;
    }
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

static void test_prologue_from_the_definition(void **state)
{
    (void)state;
    for (int isa = 0; isa < ISAS; isa++) {
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

/* ---- against the oracle ---- */

/* For any length; what is usual for long rows is tested further down. */
static double most_l1(uint32_t precision)
{
    return precision == TANDEM_PRECISION_F16 ? 2e-3 : precision == TANDEM_PRECISION_8B ? 0.06 : 0.35;
}

static void run_and_compare(tu_case *it, const td_target *target)
{
    assert_int_equal(tu_case_run(it, target, 2), TANDEM_OK);
    const double l1 = tu_case_l1(it);
    if (!(l1 <= most_l1(it->plan.precision))) {
        print_error("sm %u, precision %u, %ux%u, head_dim %u, causal %u: relative L1 %g\n", target->sm,
                    it->plan.precision, it->op.q_len, it->op.kv_len, it->op.head_dim, it->op.causal, l1);
        fail();
    }
}

static void test_lengths(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 63, 64, 65, 127, 128, 129, 200};
    const td_target fp8 = twin_of(90), ampere = twin_of(80), wgmma = wgmma_twin();
    for (uint32_t i = 0; i < 64; i++)
        for (uint32_t precision = 1; precision <= 3; precision++) {
            tu_case it;
            tu_case_init(&it, &(tu_shape){.q_len = lengths[i / 8],
                                          .kv_len = lengths[i % 8],
                                          .head_dim = 64,
                                          .seed = i,
                                          .precision = precision,
                                          .causal = i / 8 <= i % 8 && precision != 3 ? i % 2 : 0});
            tu_case_ref(&it);
            run_and_compare(&it, &cpu);
            if (precision == TANDEM_PRECISION_8B)
                run_and_compare(&it, &wgmma);
            if (i / 8 == (i + precision) % 8) {
                run_and_compare(&it, &ampere);
                run_and_compare(&it, &fp8);
            }
            tu_case_free(&it);
        }
}

/* Another order of the same steps: R in fp16 over 256 keys (128 at head dim 256), bases that follow late, P's sum of its codes. */
static void test_wgmma(void **state)
{
    static const uint32_t head_dims[] = {32, 80, 96, 128, 256};
    td_target wgmma = wgmma_twin();

    (void)state;
    for (uint32_t n = 0; n < 10; n++) {
        const uint32_t i = n % 5;
        tu_case it;

        wgmma.rows = n < 5 ? TD_SHORT_ROWS : TD_BEST_ROWS; /* so few rows share the keys if they may */
        tu_case_init(&it, &(tu_shape){.batch = 2,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .q_len = 140,
                                      .kv_len = 700,
                                      .head_dim = head_dims[i],
                                      .precision = TANDEM_PRECISION_8B,
                                      .causal = i % 2,
                                      .v_bias = i < 2 ? 8.5f : 0,
                                      .lse = 1,
                                      .seed = 900 + i});
        tu_case_ref(&it);
        run_and_compare(&it, &wgmma);
        assert_string_equal(it.plan.records[it.plan.record_count - 1].kernel->name,
                            head_dims[i] > 128 ? "attn_8b_wgmma"
                            : n < 5            ? "attn_8b_wgmma_short"
                                               : "attn_8b_wgmma_split");
        if (i < 2) /* the sum of P and P V round alike, so an offset of V stays what it is */
            assert_in(tu_case_l1(&it), 0, 3.3e-3); /* the authors' figure */
        assert_in(tu_case_lse_error(&it), 0, 2e-2);
        tu_case_free(&it);
    }
}

/* All P of a second R just below the limit, as the keys of the first one have an S that is 4 less, as log2: neither what
 * is added up with V nor the sum of P itself may pass fp16 then. */
static void test_wgmma_of_the_largest_sums(void **state)
{
    static const float steps[] = {3.94f, 3.97f, 3.999f};
    td_target targets[] = {wgmma_twin(), twin_of(90)};

    (void)state;
    targets[0].rows = TD_SHORT_ROWS;
    for (uint32_t i = 0; i < 6; i++) {
        tu_case it;
        tu_case_init(&it, &(tu_shape){.q_len = 20,
                                      .kv_len = 2 * TD_HOPPER_R_KEYS + 6,
                                      .head_dim = 64,
                                      .precision = TANDEM_PRECISION_8B,
                                      .smooth = TANDEM_SMOOTH_NONE,
                                      .scale = TD_LN_2 / 64,
                                      .lse = 1,
                                      .seed = 950 + i});
        for (uint32_t c = 0; c < 64; c++) {
            for (uint32_t r = 0; r < 20; r++)
                tu_set(&it.q, 0, 0, r, c, 1);
            for (uint32_t r = 0; r < it.op.kv_len; r++)
                tu_set(&it.k, 0, 0, r, c, r < TD_HOPPER_R_KEYS ? 0 : (double)steps[i % 3]);
        }
        tu_case_ref(&it);
        run_and_compare(&it, &targets[i / 3]);
        assert_non_null(strstr(it.plan.records[it.plan.record_count - 1].kernel->name, "attn_8b_wgmma"));
        assert_in(tu_case_l1(&it), 0, 0.1);
        assert_in(tu_case_lse_error(&it), 0, 0.05);
        tu_case_free(&it);
    }
}

static void test_shapes(void **state)
{
    (void)state;
    static const uint32_t types[] = {TANDEM_DTYPE_F16, TANDEM_DTYPE_BF16, TANDEM_DTYPE_F32};
    const td_target fp8 = twin_of(90), ampere = twin_of(80);
    uint32_t n = 0;
    for (uint32_t d = 0; d < DIMS; d++)
        for (uint32_t layout = 0; layout < 4; layout++)
            for (uint32_t precision = 1; precision <= 2; precision++, n++) {
                tu_case it;
                tu_case_init(&it, &(tu_shape){.batch = dims[d] > 96 ? 1 : 2,
                                              .heads = 4,
                                              .kv_heads = n % 3 == 0   ? 1
                                                          : n % 3 == 1 ? 2
                                                                       : 4,
                                              .q_len = 67,
                                              .kv_len = 140,
                                              .head_dim = dims[d],
                                              .precision = precision,
                                              .causal = n / 2 % 2,
                                              .layout = (tu_layout)layout,
                                              .dtype_q = types[n % 3],
                                              .dtype_k = types[n / 3 % 3],
                                              .dtype_v = types[n / 2 % 3],
                                              .dtype_o = types[(n + 1) / 2 % 3 == 1 ? 2 : (n + 1) / 2 % 3],
                                              .lse = n % 2,
                                              .seed = n});
                tu_case_ref(&it);
                run_and_compare(&it, &cpu);
                if (it.lse.data)
                    assert_in(tu_case_lse_error(&it), 0, precision == 1 ? 2e-3 : 0.05);
                if (layout == d % 4) {
                    run_and_compare(&it, &ampere);
                    run_and_compare(&it, &fp8);
                }
                tu_case_free(&it);
            }
}

/* Outputs in bf16 are as good as bf16 can be. */
static void test_bf16_output(void **state)
{
    (void)state;
    tu_case it;
    tu_case_init(&it, &(tu_shape){.q_len = 70,
                                  .kv_len = 300,
                                  .head_dim = 80,
                                  .precision = TANDEM_PRECISION_F16,
                                  .dtype_o = TANDEM_DTYPE_BF16,
                                  .layout = TU_GAPS});
    tu_case_ref(&it);
    assert_int_equal(tu_case_run(&it, &cpu, 1), TANDEM_OK);
    assert_in(tu_case_l1(&it), 2e-4, 3e-3);
    tu_case_free(&it);
}

static void test_causal(void **state)
{
    (void)state;
    static const uint32_t lengths[][2] = {{200, 70}, {70, 200}, {130, 129}, {129, 130}, {3, 300}, {300, 3}, {64, 64}};
    const td_target targets[] = {cpu, twin_of(80), twin_of(90)};
    const int count = 3;
    for (int i = 0; i < 7; i++)
        for (int t = 0; t < count; t++)
            for (uint32_t precision = 1; precision <= 3; precision++) {
                const uint32_t q_len = lengths[i][0], kv_len = lengths[i][1],
                               empty = q_len > kv_len ? q_len - kv_len : 0;
                tu_case it;
                tu_case_init(&it, &(tu_shape){.heads = 2,
                                              .q_len = q_len,
                                              .kv_len = kv_len,
                                              .head_dim = 32,
                                              .causal = 1,
                                              .lse = 1,
                                              .precision = precision,
                                              .seed = (uint64_t)i,
                                              .smooth = t ? 0 : TANDEM_SMOOTH_V | TANDEM_SMOOTH_K});
                tu_case_ref(&it);
                assert_int_equal(tu_case_run(&it, &targets[t], 2), TANDEM_OK);
                for (uint32_t h = 0; h < 2; h++)
                    for (uint32_t r = 0; r < empty; r++) {
                        assert_true(tu_get(&it.lse, 0, h, r, 0) == -INFINITY);
                        for (uint32_t c = 0; c < 32; c++)
                            assert_true(tu_get(&it.o, 0, h, r, c) == 0);
                    }
                assert_in(tu_case_l1(&it), 0, precision == 3 ? 0.5 : precision == 2 ? 0.08 : 2e-3);
                assert_in(tu_case_lse_error(&it), 0, precision == 3 ? 1.0 : precision == 2 ? 0.08 : 2e-3);
                tu_case_free(&it);
            }
}

/* Runs a case as pieces of `cut` of its heads' rows. */
static void run_pieces(tu_case *it, const td_target *target, uint32_t cut)
{
    static td_plan plan;
    char why[256] = "";

    tu_poison(&it->o);
    if (it->lse.data)
        tu_poison(&it->lse);
    for (uint32_t row = 0; row < it->op.q_len; row += cut) {
        const uint32_t rows = it->op.q_len - row < cut ? it->op.q_len - row : cut;
        uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)it->q.data, (uintptr_t)it->k.data, (uintptr_t)it->v.data,
                                         (uintptr_t)it->o.data, (uintptr_t)it->lse.data};
        td_target of_piece = *target;
        tandem_attention op;

        tu_case_piece(it, row, rows, &op, &of_piece, views);
        assert_int_equal(td_plan_attention(&op, &of_piece, &plan, NULL, why, sizeof why), TANDEM_OK);
        void *scratch = aligned_alloc(256, plan.scratch_bytes + 256);
        assert_non_null(scratch);
        memset(scratch, TU_POISON, plan.scratch_bytes);
        assert_int_equal(td_exec_cpu_run(&plan, views, (uintptr_t)scratch, 2, NULL), TANDEM_OK);
        free(scratch);
    }
}

/* Pieces of heads' rows, as tandemd cuts them: the whole's bits, of every family of kernels, rows without keys and keys
 * that are bad included. */
static void test_pieces_are_the_whole(void **state)
{
    static const uint32_t sizes[][3] = {{440, 410, 1}, {400, 500, 1}, {700, 200, 1}, {430, 130, 0}, {390, 390, 1}};
    td_target targets[] = {cpu, twin_of(80), twin_of(89), twin_of(90), twin_of(120), wgmma_twin(), twin_of(90)};
    const int count = sizeof targets / sizeof *targets;
    const bool quick = getenv("TANDEM_SANITIZED") != NULL;

    (void)state;
    targets[6].int4 = true;
    for (int t = 0; t < count; t++)
        for (uint32_t n = 0; n < 6; n++) {
            const uint32_t *size = sizes[(n + (uint32_t)t) % 5], precision = 1 + n % 3;
            const uint32_t type = t == 5 && precision == 1 ? 1 + n / 3 % 2 : 1 + (n + (uint32_t)t) % 3; /* 5: direct */
            tu_case it;

            if (quick && (n + (uint32_t)t) % 2)
                continue;
            tu_case_init(&it, &(tu_shape){.heads = 1 + n / 5,
                                          .kv_heads = 1,
                                          .q_len = size[0],
                                          .kv_len = size[1],
                                          .head_dim = n % 2 ? 64 : 32 * (1 + 3 * (t < 6)),
                                          .causal = size[2],
                                          .precision = precision,
                                          .smooth = t < 5 && n > 3 ? 2u << n % 3 | TANDEM_SMOOTH_V : 0,
                                          .dtype_q = type,
                                          .dtype_k = type,
                                          .dtype_v = type,
                                          .dtype_o = 1 + n % 3,
                                          .lse = n / 2 % 2,
                                          .k_bias = 1,
                                          .v_bias = 1,
                                          .seed = n + 1});
            if (n % 3) { /* the rest of the keys' step is masked in one piece, and not in the next */
                tu_set(&it.k, 0, 0, size[1] - 90, 7, INFINITY);
                tu_set(&it.v, 0, 0, size[1] - 70, 31, NAN);
            }
            assert_int_equal(tu_case_run(&it, &targets[t], 2), TANDEM_OK);
            unsigned char *o = malloc(it.o.bytes), *lse = malloc(it.lse.bytes + 1);
            assert_true(o && lse);
            memcpy(o, it.o.data, it.o.bytes);
            if (it.lse.data)
                memcpy(lse, it.lse.data, it.lse.bytes);
            run_pieces(&it, &targets[t], 384);
            assert_memory_equal(o, it.o.data, it.o.bytes);
            if (it.lse.data)
                assert_memory_equal(lse, it.lse.data, it.lse.bytes);
            free(o);
            free(lse);
            tu_case_free(&it);
        }
}

/* In which order a piece adds up is what its whole does. */
static void test_pieces_share_keys_as_the_whole(void **state)
{
    static const struct {
        uint32_t heads, dim;
        const char *whole, *alone;
    } cases[] = {{32, 64, "attn_8b_wgmma", "attn_8b_wgmma_split"},
                 {32, 128, "attn_8b_wgmma", "attn_8b_wgmma_split"},
                 {4, 64, "attn_8b_wgmma_split", "attn_8b_wgmma_split"}};

    (void)state;
    for (int i = 0; i < 3; i++) {
        const tu_shape shape = {.heads = 1, .q_len = 8, .kv_len = 2048, .head_dim = cases[i].dim,
                                .precision = TANDEM_PRECISION_8B, .dtype_q = 1, .dtype_k = 1, .dtype_v = 1};
        td_target target = wgmma_twin();
        tandem_operands operands;
        tandem_attention *const whole = &operands.attention;
        static td_plan plan;
        char why[256] = "";
        tu_case it;

        tu_case_init(&it, &shape);
        *whole = it.op;
        whole->batch = 4;
        whole->heads = whole->kv_heads = cases[i].heads;
        whole->q_len = 2048 / (cases[i].heads == 4 ? 4 : 1);
        for (int of = 0; of < 3; of++) { /* the whole, its piece, a job like the piece */
            target.whole = of == 1 ? &operands : NULL;
            assert_int_equal(td_plan_attention(of ? &it.op : whole, &target, &plan, NULL, why, sizeof why), TANDEM_OK);
            assert_string_equal(plan.records[plan.record_count - 1].kernel->name,
                                of < 2 ? cases[i].whole : cases[i].alone);
        }
        tu_case_free(&it);
    }
}

/* Which rows are NaN is as the contract says, and the others are as if nothing had happened. */
static void check_poisoned(uint32_t precision, uint32_t smooth, const td_target *target, int which, double value,
                           bool causal)
{
    enum { N = 150, AT = 70 };
    tu_case it;
    tu_case_init(&it, &(tu_shape){.heads = 2,
                                  .q_len = N,
                                  .kv_len = N,
                                  .head_dim = 64,
                                  .causal = causal,
                                  .precision = precision,
                                  .smooth = smooth,
                                  .lse = 1});
    tu_tensor *tensors[] = {&it.q, &it.k, &it.v};
    tu_set(tensors[which], 0, 1, AT, 9, value);
    tu_case_ref(&it);
    assert_int_equal(tu_case_run(&it, target, 2), TANDEM_OK);
    double difference = 0, size = 0;
    for (uint32_t h = 0; h < 2; h++)
        for (uint32_t r = 0; r < N; r++) {
            const bool poisoned = h == 1 && (which == 0 ? r == AT : !causal || r >= AT);
            const double *ref = it.ref_o + (size_t)(h * N + r) * 64;
            assert_int_equal(isnan(tu_get(&it.lse, 0, h, r, 0)) != 0, poisoned);
            for (uint32_t c = 0; c < 64; c++) {
                const double o = tu_get(&it.o, 0, h, r, c);
                assert_int_equal(isnan(o) != 0, poisoned);
                if (!poisoned) {
                    difference += fabs(o - ref[c]);
                    size += fabs(ref[c]);
                }
            }
        }
    assert_in(difference / size, 0, most_l1(precision));
    tu_case_free(&it);
}

static void test_nan_stays_where_it_belongs(void **state)
{
    (void)state;
    const td_target targets[] = {cpu, twin_of(80), twin_of(90)};
    const int count = 3;
    for (int which = 0; which < 3; which++)
        for (uint32_t precision = 1; precision <= 3; precision++)
            for (int t = 0; t < count; t++) {
                check_poisoned(precision, 0, &targets[t], which, t == 1 ? -INFINITY : (double)NAN, true);
                if (t == 0) {
                    check_poisoned(precision, TANDEM_SMOOTH_V | TANDEM_SMOOTH_Q, &cpu, which, INFINITY, false);
                    check_poisoned(precision, TANDEM_SMOOTH_NONE, &cpu, which, (double)NAN, true);
                }
            }
    for (int isa = 0; isa < ISAS; isa++)
        if (td_cpu_isa_force(isas[isa]))
            for (int which = 0; which < 3; which++) {
                check_poisoned(TANDEM_PRECISION_8B, 0, &cpu, which, (double)NAN, true);
                check_poisoned(TANDEM_PRECISION_F16, 0, &cpu, which, INFINITY, true);
            }
    td_cpu_isa_force(NULL);
}

/* ---- accuracy ---- */

static double l1_of(const tu_shape *shape, const td_target *target)
{
    tu_case it;
    tu_case_init(&it, shape);
    tu_case_ref(&it);
    assert_int_equal(tu_case_run(&it, target, 2), TANDEM_OK);
    const double l1 = tu_case_l1(&it);
    tu_case_free(&it);
    return l1;
}

static void test_accuracy(void **state)
{
    (void)state;
    const td_target fp8 = twin_of(90), ampere = twin_of(80);
    for (uint32_t d = 0; d < DIMS; d++) {
        tu_shape shape = {
            .q_len = 130, .kv_len = d % 2 ? 256 : 500, .head_dim = dims[d], .precision = TANDEM_PRECISION_8B};
        assert_in(l1_of(&shape, &cpu), .005, .05);
        if (d < 2) {
            assert_in(l1_of(&shape, &ampere), .003, .03);
            assert_in(l1_of(&shape, &fp8), .005, .05);
        }
        shape.precision = TANDEM_PRECISION_F16;
        assert_in(l1_of(&shape, &cpu), 1e-6, 2e-3);
        shape.precision = TANDEM_PRECISION_4B;
        assert_in(l1_of(&shape, &cpu), .06, .3);
    }
}

/* Softmax does not see a vector added to every key; with K smoothed, neither do the codes. */
static void test_smooth_k(void **state)
{
    (void)state;
    tu_shape shape = {.q_len = 64, .kv_len = 256, .head_dim = 64, .precision = TANDEM_PRECISION_8B};
    for (int smooth = 0; smooth < 2; smooth++) {
        tu_case plain, moved;
        shape.smooth = smooth ? TANDEM_SMOOTH_K : TANDEM_SMOOTH_NONE;
        tu_case_init(&plain, &shape);
        tu_case_init(&moved, &shape);
        for (uint32_t r = 0; r < 256; r++)
            for (uint32_t c = 0; c < 64; c++)
                tu_set(&moved.k, 0, 0, r, c, tu_get(&plain.k, 0, 0, r, c) + (c == 5 ? 40 : 4));
        assert_int_equal(tu_case_run(&plain, &cpu, 2), TANDEM_OK);
        assert_int_equal(tu_case_run(&moved, &cpu, 2), TANDEM_OK);
        double *a = tu_values(&moved.o), *b = tu_values(&plain.o);
        const double l1 = tu_relative_l1(a, b, o_count(&plain));
        if (smooth)
            assert_in(l1, 0, .004);
        else
            assert_true(l1 > .05);
        free(a);
        free(b);
        tu_case_free(&plain);
        tu_case_free(&moved);
    }

    /* an outlier channel, as models have them */
    for (uint32_t precision = TANDEM_PRECISION_8B; precision <= TANDEM_PRECISION_4B; precision++) {
        double l1[2];
        for (int smooth = 0; smooth < 2; smooth++) {
            tu_case it;
            tu_case_init(&it, &(tu_shape){.q_len = 128,
                                          .kv_len = 300,
                                          .head_dim = 64,
                                          .precision = precision,
                                          .smooth = smooth ? TANDEM_SMOOTH_K : TANDEM_SMOOTH_NONE});
            for (uint32_t r = 0; r < 300; r++)
                tu_set(&it.k, 0, 0, r, 11, tu_get(&it.k, 0, 0, r, 11) + 30);
            tu_case_ref(&it);
            assert_int_equal(tu_case_run(&it, &cpu, 2), TANDEM_OK);
            l1[smooth] = tu_case_l1(&it);
            tu_case_free(&it);
        }
        assert_in(l1[1], .005, precision == TANDEM_PRECISION_8B ? .05 : .3);
        assert_true(l1[0] > 2 * l1[1]);
    }
}

static void test_smooth_q(void **state)
{
    (void)state;
    double l1[2];
    for (int smooth = 0; smooth < 2; smooth++) {
        tu_case it;
        tu_case_init(&it, &(tu_shape){.q_len = 200,
                                      .kv_len = 300,
                                      .head_dim = 64,
                                      .precision = TANDEM_PRECISION_4B,
                                      .smooth = TANDEM_SMOOTH_K | (smooth ? TANDEM_SMOOTH_Q : 0)});
        for (uint32_t r = 0; r < 200; r++)
            tu_set(&it.q, 0, 0, r, 3, tu_get(&it.q, 0, 0, r, 3) + 12);
        tu_case_ref(&it);
        assert_int_equal(tu_case_run(&it, &cpu, 2), TANDEM_OK);
        l1[smooth] = tu_case_l1(&it);
        tu_case_free(&it);
    }
    assert_in(l1[1], .03, .3);
    assert_true(l1[0] > 1.7 * l1[1]);
}

static void test_smooth_v(void **state)
{
    (void)state;
    const td_target targets[] = {cpu, twin_of(90)};
    const int count = 2;
    tu_shape shape = {.q_len = 64, .kv_len = 300, .head_dim = 64, .precision = TANDEM_PRECISION_8B};
    for (int t = 0; t < count; t++) {
        double error[2];
        for (int smooth = 0; smooth < 2; smooth++) {
            tu_case plain, moved;
            shape.smooth = TANDEM_SMOOTH_K | (smooth ? TANDEM_SMOOTH_V : 0);
            tu_case_init(&plain, &shape);
            tu_case_init(&moved, &shape);
            for (uint32_t r = 0; r < 300; r++)
                for (uint32_t c = 0; c < 64; c++)
                    tu_set(&moved.v, 0, 0, r, c, tu_get(&plain.v, 0, 0, r, c) + 16);
            assert_int_equal(tu_case_run(&plain, &targets[t], 2), TANDEM_OK);
            assert_int_equal(tu_case_run(&moved, &targets[t], 2), TANDEM_OK);
            double *a = tu_values(&moved.o), *b = tu_values(&plain.o);
            for (size_t i = 0; i < o_count(&plain); i++)
                a[i] -= 16;
            error[smooth] = tu_relative_l1(a, b, o_count(&plain));
            free(a);
            free(b);
            tu_case_free(&plain);
            tu_case_free(&moved);
        }
        assert_in(error[1], 0, .003);
        assert_true(error[0] > 10 * error[1]);
    }
}

static void test_lse(void **state)
{
    (void)state;
    const td_target targets[] = {cpu, twin_of(80), twin_of(90)};
    const int count = 3;
    for (int t = 0; t < count; t++)
        for (uint32_t precision = 1; precision <= 3; precision++)
            for (uint32_t smooth = 2; smooth < 16; smooth += 2) {
                tu_case it;
                tu_case_init(&it, &(tu_shape){.batch = 2,
                                              .heads = 2,
                                              .kv_heads = 1,
                                              .q_len = 65,
                                              .kv_len = 130,
                                              .head_dim = 32,
                                              .lse = 1,
                                              .precision = precision,
                                              .smooth = smooth,
                                              .k_bias = 1.5f,
                                              .layout = TU_GAPS});
                tu_case_ref(&it);
                assert_int_equal(tu_case_run(&it, &targets[t], 2), TANDEM_OK);
                const double error = tu_case_lse_error(&it);
                assert_in(error, 0, precision == 1 ? 4e-3 : precision == 2 ? .06 : 1.5);
                tu_case_free(&it);
            }
}

/* ---- twin, instruction sets, threads ---- */

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
    td_target fp8 = twin_of(90);
    fp8.dump = true;
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

typedef struct gatekeeper {
    td_gate gate;
    atomic_bool ends;
} gatekeeper;

static void sleep_ns(uint64_t ns)
{
    const struct timespec t = {0, (long)ns};
    nanosleep(&t, NULL);
}

static void *open_and_close(void *user)
{
    gatekeeper *it = user;
    uint64_t seed = 3;
    while (!it->ends) {
        td_gate_close(&it->gate, td_now_ns());
        sleep_ns(tu_random(&seed) % 300000);
        td_gate_open(&it->gate);
        sleep_ns(tu_random(&seed) % 100000);
    }
    return NULL;
}

/* Work stands still at a gate and goes on with the same bits; even at one that is never opened. */
static void test_patience(void **state)
{
    (void)state;
    td_thread_pool *pools[] = {NULL, td_thread_pool_create(2), td_thread_pool_create(3)};
    for (uint32_t precision = 1; precision <= 3; precision++) {
        tu_case it;
        tu_case_init(&it, &(tu_shape){.heads = 2, .q_len = 200, .kv_len = 3000, .head_dim = 64, .precision = precision,
                                      .causal = 1, .lse = 1});
        assert_int_equal(tu_case_run(&it, &cpu, 2), TANDEM_OK);
        const uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)it.q.data, (uintptr_t)it.k.data, (uintptr_t)it.v.data,
                                               (uintptr_t)it.o.data, (uintptr_t)it.lse.data};
        const uint64_t scratch = (uintptr_t)it.scratch;
        unsigned char *o = malloc(it.o.bytes), *lse = malloc(it.lse.bytes);
        gatekeeper keeper = {.ends = false};
        td_patience patience = {.gate = &keeper.gate};
        pthread_t thread;
        assert_true(o && lse);
        memcpy(o, it.o.data, it.o.bytes);
        memcpy(lse, it.lse.data, it.lse.bytes);

        assert_int_equal(pthread_create(&thread, NULL, open_and_close, &keeper), 0);
        for (int run = 0; run < 30; run++) {
            tu_poison(&it.o);
            tu_poison(&it.lse);
            assert_int_equal(td_exec_cpu_run_patiently(&it.plan, views, scratch, pools[run % 3], NULL, &patience),
                             TANDEM_OK);
            assert_memory_equal(o, it.o.data, it.o.bytes);
            assert_memory_equal(lse, it.lse.data, it.lse.bytes);
        }
        keeper.ends = true;
        pthread_join(thread, NULL);

        td_control control = {.cancel = 1};
        td_gate_close(&keeper.gate, td_now_ns());
        assert_int_equal(td_exec_cpu_run_patiently(&it.plan, views, scratch, pools[1], &control, &patience),
                         TANDEM_ERROR_BUSY);
        assert_int_equal(patience.held_ns, 0); /* nobody waits for it */
        tu_poison(&it.o);
        assert_int_equal(td_exec_cpu_run_patiently(&it.plan, views, scratch, pools[1], NULL, &patience), TANDEM_OK);
        assert_true(patience.held_ns >= 10000000);
        assert_memory_equal(o, it.o.data, it.o.bytes);
        free(o);
        free(lse);
        tu_case_free(&it);
    }
    td_thread_pool_destroy(&pools[1]);
    td_thread_pool_destroy(&pools[2]);
}

/* ---- bench ---- */

static double milliseconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* The demo's frame, best of some runs: wall time with two threads, CPU time of all records, and of each. */
static int bench(void)
{
    static const char *const precisions[] = {"auto", "f16", "8b", "4b"}, *const types[] = {"", "f16", "bf16", "f32"};
    for (uint32_t dtype = TANDEM_DTYPE_F16; dtype <= TANDEM_DTYPE_F32; dtype += 2)
        for (uint32_t precision = 1; precision <= 3; precision++)
            for (int isa = ISAS - 1; isa >= 0; isa--) {
                if (!td_cpu_isa_force(isas[isa]))
                    continue;
                tu_case it;
                tu_case_init(&it, &(tu_shape){.batch = 225,
                                              .q_len = 256,
                                              .kv_len = 1024,
                                              .head_dim = 32,
                                              .precision = precision,
                                              .dtype_q = dtype,
                                              .dtype_k = dtype,
                                              .dtype_v = dtype,
                                              .dtype_o = dtype});
                if (tu_case_run(&it, &cpu, 2) != TANDEM_OK)
                    return 1;
                const uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)it.q.data, (uintptr_t)it.k.data, (uintptr_t)it.v.data,
                                                       (uintptr_t)it.o.data, 0};
                double wall = INFINITY, user = INFINITY;
                for (int run = 0; run < (isa ? 7 : 2); run++) {
                    const double wall_begin = milliseconds(CLOCK_MONOTONIC),
                                 begin = milliseconds(CLOCK_PROCESS_CPUTIME_ID);
                    td_exec_cpu_run(&it.plan, views, (uintptr_t)it.scratch, 2, NULL);
                    wall = fmin(wall, milliseconds(CLOCK_MONOTONIC) - wall_begin);
                    user = fmin(user, milliseconds(CLOCK_PROCESS_CPUTIME_ID) - begin);
                }
                printf("225 x 256 x 1024 x 32 %-4s %-3s %-12s wall %6.1f ms, cpu %6.1f ms:", types[dtype],
                       precisions[precision], isas[isa], wall, user);
                for (uint32_t i = 0; i < it.plan.record_count; i++) {
                    TU_PLAN(one);
                    double least = INFINITY;
                    assert_non_null(td_plan_append(&one, &it.plan.records[i]));
                    for (int run = 0; run < (isa ? 5 : 2); run++) {
                        const double begin = milliseconds(CLOCK_PROCESS_CPUTIME_ID);
                        td_exec_cpu_run(&one, views, (uintptr_t)it.scratch, 1, NULL);
                        least = fmin(least, milliseconds(CLOCK_PROCESS_CPUTIME_ID) - begin);
                    }
                    printf(" %s %.1f", one.records[0].kernel->name, least);
                }
                printf("\n");
                fflush(stdout);
                tu_case_free(&it);
            }
    return 0;
}

/* ---- plans that commit ---- */

/* Runs a case's plan on poisoned output, with the job's words. */
/* On scratch of as many bytes as the plan asks for, where places that are never in use at once have the same ones. */
static tandem_status run_committing(tu_case *it, const td_target *target, td_control *control)
{
    char why[256] = "";
    const uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)it->q.data, (uintptr_t)it->k.data, (uintptr_t)it->v.data,
                                           (uintptr_t)it->o.data, (uintptr_t)it->lse.data};
    assert_int_equal(td_plan_attention(&it->op, target, &it->plan, NULL, why, sizeof why), TANDEM_OK);
    tu_poison(&it->o);
    if (it->lse.data)
        tu_poison(&it->lse);
    free(it->scratch);
    it->scratch = aligned_alloc(256, it->plan.scratch_bytes);
    for (size_t i = 0; i < it->plan.scratch_bytes / 4; i++) /* as an earlier job may have left it */
        ((uint32_t *)it->scratch)[i] = TD_VERDICT_COMMITTED;
    return td_exec_cpu_run(&it->plan, views, (uintptr_t)it->scratch, 2, control);
}

static bool is_poison(const tu_tensor *x)
{
    for (size_t i = 0; i < x->bytes; i++)
        if (((const unsigned char *)x->data)[i] != TU_POISON)
            return false;
    return true;
}

static void test_commit(void **state)
{
    (void)state;
    const td_target targets[] = {cpu, twin_of(90), twin_of(80)};
    for (uint32_t i = 0; i < 48; i++) {
        const tu_shape shape = {.batch = 1 + i % 2,
                                .heads = 4,
                                .kv_heads = 2,
                                .q_len = i % 5 ? 1 + i * 7 : 256,
                                .kv_len = 33 + i,
                                .head_dim = dims[i % DIMS],
                                .dtype_o = 1 + i % 3,
                                .lse = i / 3 % 2,
                                .layout = (tu_layout)(i / 4 % 4),
                                .precision = i % 2 ? TANDEM_PRECISION_8B : TANDEM_PRECISION_F16,
                                .seed = i + 1};
        td_target target = targets[i % 3];
        td_control control = {0};
        tu_case it;
        tu_case_init(&it, &shape);
        assert_int_equal(tu_case_run(&it, &target, 2), TANDEM_OK);
        const uint32_t plain = it.plan.record_count;
        unsigned char *o = malloc(it.o.bytes), *lse = malloc(it.lse.bytes + 1);
        memcpy(o, it.o.data, it.o.bytes);
        if (it.lse.data)
            memcpy(lse, it.lse.data, it.lse.bytes);

        /* The same bytes where places in scratch share theirs. */
        assert_int_equal(run_committing(&it, &target, NULL), TANDEM_OK);
        assert_memory_equal(o, it.o.data, it.o.bytes);

        /* The same bytes, with and without the words; nothing else is written. */
        target.commit = true;
        assert_int_equal(tu_case_run(&it, &target, 2), TANDEM_OK);
        assert_memory_equal(o, it.o.data, it.o.bytes);
        assert_int_equal(run_committing(&it, &target, &control), TANDEM_OK);
        assert_memory_equal(o, it.o.data, it.o.bytes);
        if (it.lse.data)
            assert_memory_equal(lse, it.lse.data, it.lse.bytes);
        assert_int_equal(control.claimed, 1);
        assert_int_equal(control.verdict, TD_VERDICT_COMMITTED);

        /* Only the last record writes what the engine sees; the claim waits for all that is computed. */
        assert_int_equal(it.plan.record_count, plain + 2);
        for (uint32_t r = 0; r + 1 < it.plan.record_count; r++)
            for (uint32_t w = 0; w < it.plan.records[r].write_count; w++)
                assert_int_equal(it.plan.records[r].writes[w].base, TD_BASE_SCRATCH);
        const td_record *attention = &it.plan.records[plain - 1], *claims = &it.plan.records[plain];
        assert_int_equal(claims->block[0] * claims->grid[0], 1);
        assert_int_equal(claims->reads[0].begin_bytes, attention->writes[0].begin_bytes);
        assert_int_equal(claims[1].reads[0].begin_bytes, claims->writes[0].begin_bytes);

        /* Given up before, with and without the word that stops it: not a byte. */
        for (uint32_t cancel = 0; cancel < 2; cancel++) {
            control = (td_control){.stale = 1, .cancel = cancel};
            assert_int_equal(run_committing(&it, &target, &control), cancel ? TANDEM_ERROR_BUSY : TANDEM_OK);
            assert_true(is_poison(&it.o));
            assert_true(!it.lse.data || is_poison(&it.lse));
            assert_int_equal(control.verdict, cancel ? TD_VERDICT_NONE : TD_VERDICT_GIVEN_UP);
        }
        free(o);
        free(lse);
        tu_case_free(&it);
    }
}

typedef struct race {
    td_control control;
    uint32_t round, answered, delay;
    bool wins;
} race;

static void idle(uint32_t turns)
{
    for (volatile uint32_t i = 0; i < turns; i++)
        ;
}

/* The host's side: gives each round's job up after a while. */
static void *give_up(void *user)
{
    race *it = user;
    for (uint32_t round = 1; round; round++) {
        uint32_t now;
        while ((now = __atomic_load_n(&it->round, __ATOMIC_ACQUIRE)) != round)
            if (now == UINT32_MAX || sched_yield())
                return NULL;
        idle(it->delay);
        __atomic_store_n(&it->control.stale, 1, __ATOMIC_SEQ_CST);
        it->wins = !__atomic_load_n(&it->control.claimed, __ATOMIC_SEQ_CST);
        __atomic_store_n(&it->answered, round, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* Never do both win; a host that came too late reads what was decided. */
/* What pieces have written elsewhere, dense, becomes the output, whatever its layout; or not a byte of it. */
static void test_commit_of_a_draft(void **state)
{
    (void)state;
    const td_target targets[] = {cpu, twin_of(90), twin_of(80)};
    for (uint32_t i = 0; i < 36; i++) {
        const tu_shape shape = {.batch = 1 + i % 2,
                                .heads = 4,
                                .kv_heads = 2,
                                .q_len = i % 5 ? 1 + i * 7 : 256,
                                .kv_len = 33,
                                .head_dim = dims[i % DIMS],
                                .dtype_o = 1 + i % 3,
                                .lse = i / 3 % 2,
                                .layout = (tu_layout)(i / 4 % 4),
                                .precision = TANDEM_PRECISION_8B,
                                .seed = i + 1};
        const uint64_t row_bytes = shape.head_dim * (shape.dtype_o == TANDEM_DTYPE_F32 ? 4u : 2u);
        char why[256] = "";
        tu_case it;
        tu_case_init(&it, &shape);
        const uint64_t rows = (uint64_t)it.op.batch * it.op.heads * it.op.q_len;
        unsigned char *o = malloc(rows * row_bytes), *lse = malloc(rows * 4);
        assert_true(o && lse);
        for (uint64_t b = 0; b < rows * row_bytes; b++)
            o[b] = (unsigned char)(b * 31 >> 3 ^ i);
        for (uint64_t b = 0; b < rows * 4; b++)
            lse[b] = (unsigned char)(b * 17 >> 2 ^ i);
        tandem_operands op = {.attention = it.op}, commit;
        td_commit_make(&td_operation_attention, 7, &op, &commit);
        assert_true(op.attention.o.mem == 7 && (!shape.lse || op.attention.lse.mem == 7));
        assert_int_equal(td_operation_commit.check(&commit, why, sizeof why), TANDEM_OK);
        assert_int_equal(td_operation_commit.plan(&commit, &targets[i % 3], &it.plan, why, sizeof why), TANDEM_OK);
        assert_int_equal(it.plan.record_count, 2);
        assert_int_equal(it.plan.precision, TANDEM_PRECISION_8B);
        for (uint32_t stale = 0; stale < 2; stale++) {
            const uint64_t views[TD_MAX_VIEWS] = {(uintptr_t)o, (uintptr_t)lse, (uintptr_t)it.o.data, (uintptr_t)it.lse.data};
            td_control control = {.stale = 1 - stale};
            void *scratch = aligned_alloc(256, it.plan.scratch_bytes);
            assert_non_null(scratch);
            *(uint32_t *)scratch = TD_VERDICT_COMMITTED;
            tu_poison(&it.o);
            if (it.lse.data)
                tu_poison(&it.lse);
            assert_int_equal(td_exec_cpu_run(&it.plan, views, (uintptr_t)scratch, 2, &control), TANDEM_OK);
            assert_int_equal(control.verdict, control.stale ? TD_VERDICT_GIVEN_UP : TD_VERDICT_COMMITTED);
            if (control.stale) {
                assert_true(is_poison(&it.o));
                assert_true(!it.lse.data || is_poison(&it.lse));
            }
            free(scratch);
        }
        for (uint64_t r = 0; r < rows; r++) {
            const uint64_t batch = r / it.op.q_len / it.op.heads, head = r / it.op.q_len % it.op.heads;
            const uint64_t row = r % it.op.q_len;
            const tandem_view *to = &it.op.o, *lse_to = &it.op.lse;
            const uint64_t at = batch * (uint64_t)to->stride_batch + head * (uint64_t)to->stride_head +
                                row * (uint64_t)to->stride_row;
            const uint64_t lse_at = batch * (uint64_t)lse_to->stride_batch + head * (uint64_t)lse_to->stride_head +
                                    row * (uint64_t)lse_to->stride_row;
            assert_memory_equal((unsigned char *)it.o.data + at * (row_bytes / shape.head_dim), o + r * row_bytes, row_bytes);
            if (it.lse.data)
                assert_memory_equal((unsigned char *)it.lse.data + lse_at * 4, lse + r * 4, 4);
        }
        assert_int_equal(tu_spoilt(&it.o), 0);
        assert_true(!it.lse.data || !tu_spoilt(&it.lse));
        free(o);
        free(lse);
        tu_case_free(&it);
    }
}

static void test_commit_race(void **state)
{
    (void)state;
    enum { ROUNDS = 10000, ENOUGH = 600 };
    const tu_shape shape = {.q_len = 4, .kv_len = 4, .head_dim = 32, .precision = TANDEM_PRECISION_F16, .lse = 1};
    td_target target = cpu;
    uint64_t seed = 5;
    uint32_t committed = 0, given_up = 0;
    int32_t handicap = 20000; /* the host's longest delay, or less 0 the job's: whoever loses gets less of it */
    race it = {0};
    pthread_t thread;
    tu_case of;
    tu_case_init(&of, &shape);
    assert_int_equal(tu_case_run(&of, &target, 1), TANDEM_OK);
    unsigned char *o = malloc(of.o.bytes);
    memcpy(o, of.o.data, of.o.bytes);
    target.commit = true;
    assert_int_equal(pthread_create(&thread, NULL, give_up, &it), 0);
    for (uint32_t round = 1; round <= ROUNDS && (committed < ENOUGH || given_up < ENOUGH); round++) {
        it.control = (td_control){0};
        const uint32_t delay = (uint32_t)(tu_random(&seed) % (uint32_t)(abs(handicap) + 1));
        it.delay = handicap > 0 ? delay : 0;
        __atomic_store_n(&it.round, round, __ATOMIC_RELEASE);
        idle(handicap > 0 ? 0 : delay);
        assert_int_equal(run_committing(&of, &target, &it.control), TANDEM_OK);
        while (__atomic_load_n(&it.answered, __ATOMIC_ACQUIRE) != round)
            sched_yield();
        if (it.control.verdict == TD_VERDICT_COMMITTED) {
            assert_false(it.wins);
            assert_memory_equal(o, of.o.data, of.o.bytes);
            committed++;
            handicap -= handicap > -20000000 ? abs(handicap) / 16 + 20 : 0;
        } else {
            assert_int_equal(it.control.verdict, TD_VERDICT_GIVEN_UP);
            assert_true(is_poison(&of.o) && is_poison(&of.lse));
            given_up++;
            handicap += handicap < 20000000 ? abs(handicap) / 16 + 20 : 0;
        }
    }
    __atomic_store_n(&it.round, UINT32_MAX, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    assert_true(committed && given_up);
    free(o);
    tu_case_free(&of);
}

/* The prologue of a stream on sm_90, in one record or in two, makes what that of every other executor makes. */
static void test_prologues_agree(void **state)
{
    static const struct {
        uint32_t batch, heads, kv_heads, q_len, kv_len, head_dim, records;
    } cases[] = {{1, 2, 1, 1, 1, 32, 2},      {2, 4, 2, 130, 300, 64, 2},  {1, 2, 2, 300, 2100, 128, 2},
                 {1, 1, 1, 40, 4200, 96, 3},  {20, 14, 14, 2, 130, 80, 2}, {1, 3, 3, 129, 8200, 64, 3},
                 {300, 1, 1, 130, 129, 32, 2}};

    (void)state;
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const uint32_t c = (uint32_t)i / 2, type = 1 + (uint32_t)i % 2;
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
                                .k_bias = 1,
                                .layout = (tu_layout)(i % 4),
                                .seed = i + 1};
        tandem_attention ops[2];
        uint64_t sizes[2][3];
        void *bytes[2][3];

        for (int stream = 0; stream < 2; stream++) {
            td_target target = stream ? td_target_for_stream(90) : td_target_for_sm(90);
            tu_case it;

            target.twin = true;
            tu_case_init(&it, &shape);
            tu_set(&it.v, 0, 0, 0, 3, INFINITY);
            tu_set(&it.k, cases[c].batch - 1, cases[c].kv_heads - 1, cases[c].kv_len - 1, 5, NAN);
            tu_set(&it.q, 0, cases[c].heads - 1, cases[c].q_len / 2, 7, -INFINITY);
            assert_int_equal(td_attention_check(&it.op, NULL, 0), TANDEM_OK);
            assert_int_equal(td_plan_attention(&it.op, &target, &it.plan, &it.layout, NULL, 0), TANDEM_OK);
            const bool prepares = stream && shape.layout != TU_GAPS; /* it reads several words at a time */
            assert_int_equal(it.plan.record_count, prepares ? cases[c].records : 3);
            assert_int_equal(!strncmp(it.plan.records[0].kernel->name, "prepare", 7), prepares);
            it.plan.record_count--; /* without attention */
            it.scratch = aligned_alloc(256, (it.plan.scratch_bytes + 255) / 256 * 256);
            assert_non_null(it.scratch);
            memset(it.scratch, TU_POISON, it.plan.scratch_bytes);
            const uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)it.q.data, (uintptr_t)it.k.data, (uintptr_t)it.v.data};
            assert_int_equal(td_exec_cpu_run(&it.plan, views, (uintptr_t)it.scratch, 2, NULL), TANDEM_OK);
            tu_case_codes(&it, it.scratch, &ops[stream], bytes[stream], sizes[stream]);
            tu_case_free(&it);
        }
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

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--bench") == 0)
        return bench();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_v_permutation),
        cmocka_unit_test(test_tensor_cores_of_an_h200),
        cmocka_unit_test(test_two_levels_beat_one),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_ref_by_hand),
        cmocka_unit_test(test_prologue_from_the_definition),
        cmocka_unit_test(test_prologues_agree),
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_f16_scales),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_wgmma),
        cmocka_unit_test(test_wgmma_of_the_largest_sums),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_bf16_output),
        cmocka_unit_test(test_causal),
        cmocka_unit_test(test_pieces_are_the_whole),
        cmocka_unit_test(test_pieces_share_keys_as_the_whole),
        cmocka_unit_test(test_nan_stays_where_it_belongs),
        cmocka_unit_test(test_accuracy),
        cmocka_unit_test(test_smooth_k),
        cmocka_unit_test(test_smooth_q),
        cmocka_unit_test(test_smooth_v),
        cmocka_unit_test(test_lse),
        cmocka_unit_test(test_twin_and_fast_agree),
        cmocka_unit_test(test_dumps),
        cmocka_unit_test(test_isas_agree),
        cmocka_unit_test(test_threads_do_not_matter),
        cmocka_unit_test(test_executor),
        cmocka_unit_test(test_long_blocks_ask),
        cmocka_unit_test(test_patience),
        cmocka_unit_test(test_commit),
        cmocka_unit_test(test_commit_of_a_draft),
        cmocka_unit_test(test_commit_race),
    };
    return cmocka_run_group_tests_name("attention on the CPU", tests, NULL, NULL);
}
