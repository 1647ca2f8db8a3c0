/* Attention's kernels for compute capability 9.0: without a prologue, in command buffers, warpgroups that share keys.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/cuda/rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- F16 without a prologue, on Hopper --- */

static bool is_direct(td_target target, const tu_shape *shape, spoil_fn spoil)
{
    TU_PLAN(plan);
    tu_case it;
    char why[200];

    tu_case_init(&it, shape);
    if (spoil)
        spoil(&it);
    must(td_plan_attention(&it.op, &target, &plan, NULL, why, sizeof why), why);
    tu_case_free(&it);
    return strstr(plan.records[0].kernel->name, "f16_wgmma") != NULL;
}

/* By the kernels of streams, on sm_90 each of them, and there by that of command buffers. */
static void check_direct(tu_shape shape, spoil_fn spoil)
{
    const bool is_90 = target_here().sm == 90;
    const td_rows first = is_90 ? TD_MOST_ROWS : TD_BEST_ROWS, last = is_90 ? TD_PAIR_ROWS : TD_BEST_ROWS;
    td_attention_options options = {.rows = TD_BEST_ROWS};
    td_target target = target_here();
    shape.precision = TANDEM_PRECISION_F16;
    for (uint32_t type = TANDEM_DTYPE_F16; type <= TANDEM_DTYPE_BF16; type++) {
        shape.dtype_q = shape.dtype_k = shape.dtype_v = type;
        show("direct", &shape);
        if (is_90)
            assert_true(is_direct(target_here(), &shape, spoil));
        target.attention = &options;
        for (options.rows = first; options.rows <= last; options.rows++)
            check_case_on(target, &shape, spoil);
        if (is_90 && !image) {
            assert_true(is_direct(td_target_for_sm(90), &shape, spoil));
            check_case_on(td_target_for_sm(90), &shape, spoil);
        }
    }
}

static void spoil_direct(tu_case *it)
{
    const uint32_t last = it->op.kv_len - 1;

    tu_set(&it->q, 0, 0, 3, 5, NAN);
    tu_set(&it->q, 0, 1, 64, 0, -INFINITY);
    tu_set(&it->k, 0, 0, 100, 7, NAN);
    tu_set(&it->v, 0, 1, last - 70, 31, INFINITY); /* in a step that the causal mask cuts */
    tu_set(&it->v, 0, 1, last, 9, NAN);
    tu_set(&it->v, 1, 0, 2, 0, NAN); /* in one that it does not */
}

static void spoil_o_layout(tu_case *it)
{
    const tu_tensor o = it->o;

    it->o = tu_tensor_new(o.view.dtype, TU_GAPS, o.batch, o.heads, o.rows, o.dim);
    it->op.o = it->o.view;
    free(o.data);
}

static void spoil_offset(tu_case *it)
{
    it->op.k.stride_row += 4; /* eight bytes off */
}

void test_direct(void **state)
{
    static const uint32_t dims[] = {64, 80, 96, 128}, lengths[] = {1, 63, 64, 65, 127, 128, 191, 192, 193, 400};
    uint64_t seed = 900;

    (void)state;
    for (size_t q = 0; q < 10; q++)
        for (size_t k = 0; k < 10; k++) {
            if ((q + 3 * k) % (quick ? 17 : 3))
                continue;
            check_direct((tu_shape){.heads = 2,
                                    .q_len = lengths[q],
                                    .kv_len = lengths[k],
                                    .head_dim = dims[seed % 4],
                                    .causal = (q + k) % 2,
                                    .dtype_o = 1 + seed % 3,
                                    .lse = seed % 3 != 1,
                                    .v_bias = 1,
                                    .seed = seed},
                         seed % 5 ? NULL : spoil_o_layout);
            seed++;
        }
    for (size_t i = 0; i < 4; i++) {
        /* grouped heads; each kind of layout; tiles of which a block has several, in an odd number */
        for (uint32_t causal = 0; causal < 2 && !(quick && i); causal++) {
            check_direct((tu_shape){.batch = 2,
                                    .heads = 6,
                                    .kv_heads = 2,
                                    .q_len = 150,
                                    .kv_len = 333,
                                    .head_dim = dims[i],
                                    .layout = i % 2 ? TU_BY_ROW : TU_BATCH_LAST,
                                    .causal = causal,
                                    .lse = 1,
                                    .seed = 930 + i},
                         NULL);
            check_direct((tu_shape){.batch = 2,
                                    .heads = 2,
                                    .q_len = 260,
                                    .kv_len = 300,
                                    .head_dim = dims[i],
                                    .causal = causal,
                                    .lse = 1,
                                    .seed = 940 + i},
                         spoil_direct);
            if (dims[i] % 64 == 0)
                check_direct((tu_shape){.batch = 23,
                                        .heads = 13,
                                        .q_len = causal ? 400 : 260,
                                        .kv_len = 140,
                                        .head_dim = dims[i],
                                        .causal = causal,
                                        .lse = 1,
                                        .seed = 950 + i},
                             NULL);
        }
        /* scores of a wide range, so that bases move */
        check_direct((tu_shape){.heads = 2, .q_len = 70, .kv_len = 700, .head_dim = dims[i], .scale = 1.5f, .lse = 1, .seed = 960 + i},
                     NULL);
    }
    if (target_here().sm == 90) {
        tu_shape shape = {.q_len = 70, .kv_len = 70, .head_dim = 64, .precision = TANDEM_PRECISION_F16,
                          .dtype_q = 1, .dtype_k = 1, .dtype_v = 1};

        assert_true(is_direct(target_here(), &shape, NULL));
        assert_false(is_direct(target_here(), &shape, spoil_offset));
        shape.layout = TU_GAPS;
        assert_false(is_direct(target_here(), &shape, NULL));
        shape.layout = TU_DENSE;
        shape.dtype_k = 2;
        assert_false(is_direct(target_here(), &shape, NULL));
    }
}

/* --- attn_8b_wgmma_inline, in a stream --- */

/* The plan for a command buffer against the twin, if `twin`, and bit for bit against that for a stream. */
static void check_inline(const tu_shape *shape, spoil_fn spoil, bool twin)
{
    enum { WAYS = 4, INLINE = 2 }; /* in a command buffer, then on a stream: by large blocks, by small ones */
    static const char *const names[WAYS] = {"attn_8b_wgmma_inline", "attn_8b_wgmma_inline", "attn_8b_wgmma",
                                            "attn_8b_wgmma_short"};
    tu_tensor o[WAYS], lse[WAYS];
    tu_case it;

    show("inline", shape);
    tu_case_init(&it, shape);
    if (spoil)
        spoil(&it);
    for (int i = 0; i < WAYS; i++) {
        td_target target = i < INLINE ? td_target_for_sm(90) : target_here();
        gpu_case gpu;
        char why[200];

        target.attention = &(td_attention_options){.rows = i % 2 ? TD_SHORT_ROWS : TD_MOST_ROWS};
        o[i] = tu_tensor_like(&it.o);
        lse[i] = tu_tensor_like(&it.lse);
        if (twin && i == 0)
            must(tu_case_run(&it, &target, THREADS), "the twin");
        else
            must(td_plan_attention(&it.op, &target, &it.plan, NULL, why, sizeof why), why);
        assert_string_equal(it.plan.records[it.plan.record_count - 1].kernel->name, names[i]);
        gpu_case_run(&gpu, &it, &o[i], &lse[i]);
        gpu_case_free(&gpu);
    }
    for (int i = 1; i < WAYS; i++) {
        assert_memory_equal(o[0].data, o[i].data, it.o.bytes + TU_GUARD_BYTES);
        if (it.lse.data)
            assert_memory_equal(lse[0].data, lse[i].data, it.lse.bytes + TU_GUARD_BYTES);
    }
    if (twin)
        tu_compare_outputs(&it, &o[0], &lse[0]);
    for (int i = 0; i < WAYS; i++) {
        tu_tensor_free(&o[i]);
        tu_tensor_free(&lse[i]);
    }
    tu_case_free(&it);
}

/* --- Kernels whose warpgroups share keys: of 8B on streams and in command buffers, of F16 --- */

/* Against the twin, and twice the same bits. */
static void check_split(const char *kernel, const tu_shape *shape, spoil_fn spoil, uint32_t multiprocessors, td_rows rows,
                        bool in_47_kb)
{
    td_target target = in_47_kb ? td_target_for_sm(90) : target_here();
    tu_tensor o[2], lse[2];
    tu_case it;

    show("split", shape);
    target.attention = &(td_attention_options){.rows = rows};
    if (multiprocessors)
        target.multiprocessors = multiprocessors;
    tu_case_init(&it, shape);
    if (spoil)
        spoil(&it);
    must(tu_case_run(&it, &target, THREADS), "the twin");
    assert_string_equal(it.plan.records[it.plan.record_count - 1].kernel->name, kernel);
    for (int i = 0; i < 2; i++) {
        gpu_case gpu;

        o[i] = tu_tensor_like(&it.o);
        lse[i] = tu_tensor_like(&it.lse);
        gpu_case_run(&gpu, &it, &o[i], &lse[i]);
        tu_compare_outputs(&it, &o[i], &lse[i]);
        gpu_case_free(&gpu);
    }
    assert_memory_equal(o[0].data, o[1].data, it.o.bytes);
    if (it.lse.data)
        assert_memory_equal(lse[0].data, lse[1].data, it.lse.bytes);
    for (int i = 0; i < 2; i++) {
        tu_tensor_free(&o[i]);
        tu_tensor_free(&lse[i]);
    }
    tu_case_free(&it);
}

void test_split_wgmma(void **state)
{
    static const uint32_t dims[] = {32, 64, 80, 96, 128}, lengths[] = {1, 63, 64, 65, 128, 129, 320, 385, 700, 1100};
    static const uint32_t direct_dims[] = {64, 80, 96, 128, 64};
    static const char *const names[] = {"attn_8b_wgmma_split", "attn_8b_wgmma_pair", "attn_8b_wgmma_inline",
                                        "attn_8b_wgmma_inline"};
    uint64_t seed = 1500;

    (void)state;
    if (target_here().sm != 90 || image)
        skip();
    for (uint32_t kind = 0; kind < 4; kind++) /* as many warpgroups as there are, pairs; so in a command buffer */
        for (size_t q = 0; q < 10; q++)
            for (size_t k = 0; k < 10; k++, seed++)
                if ((q + 3 * k) % (quick ? 19 : 3) == 0)
                    check_split(names[kind],
                                &(tu_shape){.heads = 4,
                                            .kv_heads = 1 + seed % 2,
                                            .q_len = lengths[q],
                                            .kv_len = lengths[k],
                                            .head_dim = kind % 2 ? 64 : dims[seed % 5],
                                            .precision = TANDEM_PRECISION_8B,
                                            .causal = seed / 2 % 2,
                                            .smooth = seed % 4 ? 0 : TANDEM_SMOOTH_V,
                                            .dtype_q = seed % 3,
                                            .dtype_k = seed % 3,
                                            .dtype_v = seed % 3,
                                            .dtype_o = 1 + seed % 3,
                                            .lse = seed % 3 != 1,
                                            .v_bias = 1,
                                            .seed = seed},
                                NULL, (uint32_t)(seed % 3 * 5), /* blocks with a tile, with some, with many */
                                kind % 2 ? TD_PAIR_ROWS : TD_SPLIT_ROWS, kind > 1);
    for (size_t i = 0; i < 12; i++) /* each head dim and pairs; the same in a command buffer */
        for (uint32_t causal = 0; causal < 2 && !(quick && i); causal++)
            check_split(names[i / 6 * 2 + i % 6 / 5],
                        &(tu_shape){.batch = 2,
                                    .heads = 2,
                                    .q_len = 260,
                                    .kv_len = 300,
                                    .head_dim = i % 6 == 5 ? 64 : dims[i % 6],
                                    .precision = TANDEM_PRECISION_8B,
                                    .causal = causal,
                                    .lse = 1,
                                    .seed = 1700 + i},
                        spoil_direct, causal ? 3 : 0, i % 6 == 5 ? TD_PAIR_ROWS : TD_SPLIT_ROWS, i > 5);
    for (uint32_t i = 0; i < 5 && !(quick && i); i++)
        for (uint32_t q = 0; q < 10; q += 3)
            for (uint32_t k = q % 2; k < 10; k += 2, seed++) {
                const bool bf16 = seed % 2, wide = i == 4;
                const uint32_t type = bf16 ? TANDEM_DTYPE_BF16 : TANDEM_DTYPE_F16;
                char name[64];

                snprintf(name, sizeof name, "attn_%s_wgmma_split%s", bf16 ? "bf16" : "f16", wide ? "2" : "");
                check_split(name,
                            &(tu_shape){.heads = 4,
                                        .kv_heads = 1 + i % 2,
                                        .q_len = lengths[q],
                                        .kv_len = lengths[k],
                                        .head_dim = direct_dims[i],
                                        .precision = TANDEM_PRECISION_F16,
                                        .causal = (q + k / 2) % 2,
                                        .dtype_q = type,
                                        .dtype_k = type,
                                        .dtype_v = type,
                                        .dtype_o = 1 + seed % 3,
                                        .lse = 1,
                                        .v_bias = 1,
                                        .seed = seed},
                            NULL, 0, wide ? TD_PAIR_ROWS : TD_SPLIT_ROWS, false);
            }
}

/* 8B's blocks of most warpgroups that walk, by one to five of them; causal and not, heads by chunks of all of them. */
void test_walk_wgmma(void **state)
{
    static const uint32_t dims[] = {32, 64, 80, 96, 128}, lengths[] = {1, 64, 129, 300, 520, 1100};
    uint64_t seed = 1900;

    (void)state;
    if (target_here().sm != 90 || image)
        skip();
    for (uint32_t q = 0; q < 6; q++)
        for (uint32_t k = 0; k < 6; k++, seed++)
            if ((q + 3 * k) % (quick ? 11 : 2) == 0)
                for (uint32_t d = 0; d < 5; d++)
                    check_split("attn_8b_wgmma",
                                &(tu_shape){.batch = 2,
                                            .heads = 4,
                                            .kv_heads = 2 + seed % 2 * 2,
                                            .q_len = lengths[q],
                                            .kv_len = lengths[k],
                                            .head_dim = dims[d],
                                            .precision = TANDEM_PRECISION_8B,
                                            .causal = (seed + d) % 3 > 0,
                                            .smooth = seed % 4 ? 0 : TANDEM_SMOOTH_V,
                                            .dtype_q = seed % 3,
                                            .dtype_k = seed % 3,
                                            .dtype_v = seed % 3,
                                            .dtype_o = 1 + (seed + d) % 3,
                                            .lse = seed % 3 != 1,
                                            .v_bias = 1,
                                            .seed = seed},
                                d == 2 && lengths[q] > 64 && lengths[k] > 200 ? spoil_direct : NULL,
                                1 + (uint32_t)((seed + d) % 5), TD_MOST_ROWS, false);
}

void test_inline_wgmma(void **state)
{
    static const uint32_t dims[] = {32, 64, 80, 96, 128},
                          lengths[] = {1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 320, 385, 700};
    uint64_t seed = 1200;

    (void)state;
    if (target_here().sm != 90 || image)
        skip();
    for (size_t q = 0; q < 13; q++)
        for (size_t k = 0; k < 13; k++, seed++) {
            if ((q + 3 * k) % (quick ? 23 : 3))
                continue;
            check_inline(&(tu_shape){.heads = 4,
                                     .kv_heads = 1 + seed % 2,
                                     .q_len = lengths[q],
                                     .kv_len = lengths[k],
                                     .head_dim = dims[seed % 5],
                                     .precision = TANDEM_PRECISION_8B,
                                     .causal = seed / 2 % 2,
                                     .granularity = seed % 7 ? 0 : TANDEM_GRANULARITY_TENSOR,
                                     .smooth = seed % 4 ? 0 : TANDEM_SMOOTH_V,
                                     .dtype_q = seed % 3,
                                     .dtype_k = seed % 3,
                                     .dtype_v = seed % 3,
                                     .dtype_o = 1 + seed % 3,
                                     .lse = seed % 3 != 1,
                                     .v_bias = 1,
                                     .seed = seed},
                         NULL, true);
        }
    for (size_t i = 0; i < 5; i++) {
        for (uint32_t causal = 0; causal < 2 && !(quick && i); causal++) {
            check_inline(&(tu_shape){.batch = 2,
                                     .heads = 2,
                                     .q_len = 260,
                                     .kv_len = 300,
                                     .head_dim = dims[i],
                                     .precision = TANDEM_PRECISION_8B,
                                     .causal = causal,
                                     .lse = 1,
                                     .seed = 1400 + i},
                         spoil_direct, true);
            /* more blocks than multiprocessors, several times; rings that go round often */
            check_inline(&(tu_shape){.batch = quick ? 2 : 23,
                                     .heads = 26,
                                     .kv_heads = 13,
                                     .q_len = 400,
                                     .kv_len = 1000 + 7 * (uint32_t)i,
                                     .head_dim = dims[i],
                                     .precision = TANDEM_PRECISION_8B,
                                     .dtype_q = TANDEM_DTYPE_F16,
                                     .dtype_k = TANDEM_DTYPE_F16,
                                     .dtype_v = TANDEM_DTYPE_F16,
                                     .dtype_o = TANDEM_DTYPE_F16,
                                     .causal = causal,
                                     .seed = 1410 + i},
                         NULL, false);
        }
        /* scores of a wide range, so that bases move; so for long */
        check_inline(&(tu_shape){.heads = 2,
                                 .q_len = 70,
                                 .kv_len = quick ? 700 : 9000,
                                 .head_dim = dims[i],
                                 .precision = TANDEM_PRECISION_8B,
                                 .scale = 1.5f,
                                 .lse = 1,
                                 .seed = 1420 + i},
                     NULL, true);
    }
}
