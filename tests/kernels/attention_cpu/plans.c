/* Arguments that are refused, the plans of those that are not, and the oracle by hand.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "kernels/attention/params.h"
#include "tests/kernels/attention_cpu/rig.h"

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
    BAD(op.head_dim = 88, "attention.head_dim is 88");
    BAD(op.head_dim = 512, "attention.head_dim is 512");
    BAD(op.q.dtype = 0, "attention.q.dtype is 0");
    BAD(op.k.dtype = 6, "attention.k.dtype is 6");
    BAD(op.o.dtype = 4, "attention.o.dtype is 4; it must be 1 (f16)");
    BAD(op.k.dtype = TANDEM_DTYPE_CODES_INT8, "attention.v.dtype is 1; where q, k or v is codes it must be 5");
    BAD(op.q.dtype = TANDEM_DTYPE_CODES_INT8, "attention.k.dtype is 1; where q, k or v is codes it must be 4");
    BAD(op.q.dtype = op.k.dtype = TANDEM_DTYPE_CODES_INT8; op.v.dtype = 5, "attention.q.stride_head is 6400; for codes of this shape it must be 8192");
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
    BAD(CODED; op.q.dtype = 5, "attention.q.dtype is 5; where q, k or v is codes it must be 4, or none of codes");
    BAD(CODED; op.softcap = 1, "attention.softcap is 1.000000; of codes, whose mean nobody knows, it must be 0");
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
                    const td_attention_options options = {.dump = smooth == 2};
                    target.attention = &options;
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
                                        !options.dump && op.head_dim == 64;
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
                                           !options.dump;
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
                        assert_int_equal(layout.dump_s != UINT64_MAX, options.dump);
                        assert_int_equal(layout.dump_r != UINT64_MAX, options.dump && !layout.v_is_f16);
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

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_check),
    cmocka_unit_test(test_plans),
    cmocka_unit_test(test_ref_by_hand),
};
const test_cases attention_cpu_plans_cases = TEST_CASES(cases);
