/* Attention of any shape, type and layout against the CPU twin.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/cuda/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention/cpu.h"
#include "kernels/builder.h"

/* Plans that commit write the same bytes, whatever the type and the layout. */
void test_commit(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 12; i++) {
        const tu_shape shape = {.batch = 1 + i % 2,
                                .heads = 4,
                                .kv_heads = 2,
                                .q_len = i % 5 ? 1 + i * 29 : 256,
                                .kv_len = 64 + i,
                                .head_dim = i % 3 ? 64 : 80,
                                .dtype_o = 1 + i % 3,
                                .lse = i % 2,
                                .layout = (tu_layout)(i % 4),
                                .precision = i % 2 ? TANDEM_PRECISION_8B : TANDEM_PRECISION_F16,
                                .seed = i + 1};
        td_target target = target_here();
        tu_tensor o[2], lse[2];
        gpu_case gpu;
        char why[200];
        tu_case it;

        tu_case_init(&it, &shape);
        for (int commits = 0; commits < 2; commits++) {
            o[commits] = tu_tensor_like(&it.o);
            lse[commits] = tu_tensor_like(&it.lse);
            target.commit = commits;
            must(td_plan_attention(&it.op, &target, &it.plan, NULL, why, sizeof why), why);
            gpu_case_run(&gpu, &it, &o[commits], &lse[commits]);
            gpu_case_free(&gpu);
        }
        assert_memory_equal(o[0].data, o[1].data, o[0].bytes + TU_GUARD_BYTES);
        if (lse[0].data)
            assert_memory_equal(lse[0].data, lse[1].data, lse[0].bytes + TU_GUARD_BYTES);
        for (int commits = 0; commits < 2; commits++) {
            tu_tensor_free(&o[commits]);
            tu_tensor_free(&lse[commits]);
        }
        tu_case_free(&it);
    }
}

/* --- Cases --- */

static const uint32_t precisions[] = {TANDEM_PRECISION_8B, TANDEM_PRECISION_4B, TANDEM_PRECISION_F16};

void test_lengths(void **state)
{
    static const uint32_t lengths[] = {1, 63, 64, 65, 128, 200, 1000};
    uint64_t seed = 1;

    (void)state;
    for (size_t q = 0; q < 7; q++)
        for (size_t k = 0; k < 7; k++) {
            if (quick && (q + k) % 5)
                continue;
            if (lengths[q] == 1000 && lengths[k] == 1000 && quick)
                continue;
            check(&(tu_shape){.heads = 2,
                              .q_len = lengths[q],
                              .kv_len = lengths[k],
                              .head_dim = 32,
                              .precision = precisions[seed % 3],
                              .causal = (q * 7 + k) / 3 % 2,
                              .lse = 1,
                              .seed = seed});
            seed++;
        }
}

void test_head_dims(void **state)
{
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256};

    (void)state;
    for (size_t p = 0; p < 3; p++)
        for (size_t i = 0; i < 6; i++) {
            if (quick && (p + i) % 3)
                continue;
            check(&(tu_shape){.heads = 2,
                              .q_len = 100,
                              .kv_len = 300,
                              .head_dim = dims[i],
                              .precision = precisions[p],
                              .lse = 1,
                              .v_bias = 2,
                              .k_bias = 1,
                              .seed = 100 + i});
        }
}

/* So many heads that a block of the prologue works on several sets of tiles. */
void test_many_heads(void **state)
{
    static const uint32_t dims[] = {32, 64, 128}, lengths[] = {520, 300, 140};

    (void)state;
    for (uint32_t i = 0; i < 3 && !(quick && i); i++)
        check_case(&(tu_shape){.batch = 33,
                               .heads = 16,
                               .q_len = 2,
                               .kv_len = lengths[i],
                               .head_dim = dims[i],
                               .dtype_q = TANDEM_DTYPE_F16,
                               .dtype_k = TANDEM_DTYPE_F16,
                               .dtype_v = TANDEM_DTYPE_F16,
                               .precision = i == 1 ? TANDEM_PRECISION_4B : TANDEM_PRECISION_8B,
                               .layout = i == 2 ? TU_GAPS : TU_BY_ROW,
                               .v_bias = 1,
                               .k_bias = 2,
                               .seed = 150 + i},
                   NULL);
}

/* The prologue that sm_90 has on a stream: of heads that clusters hold, with one tile a block or several, and of such that
 * go through two records, their statistics ahead of their codes: too long, or as if they were. Rows that are not aligned. */
void test_prepare(void **state)
{
    static const struct {
        uint32_t batch, heads, kv_heads, q_len, kv_len;
    } sizes[] = {{1, 2, 1, 1, 1},     {1, 2, 2, 130, 127},   {2, 4, 2, 257, 129},  {1, 1, 1, 100, 1000},
                 {1, 2, 2, 70, 2049}, {1, 1, 1, 40, 4096},   {17, 16, 16, 3, 260}, {35, 8, 8, 129, 1},
                 {1, 3, 1, 50, 4100},   {1, 2, 1, 33, 8300}};
    static const uint32_t dims[] = {32, 64, 80, 96, 128};
    uint64_t seed = 900;

    (void)state;
    if (td_cu_device_info(device)->sm != 90)
        skip();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t d = 0; d < 5; d++) {
            const tu_shape shape = {.batch = sizes[i].batch,
                                    .heads = sizes[i].heads,
                                    .kv_heads = sizes[i].kv_heads,
                                    .q_len = sizes[i].q_len,
                                    .kv_len = sizes[i].kv_len,
                                    .head_dim = dims[d],
                                    .dtype_q = 1 + seed % 2,
                                    .dtype_k = 1 + seed / 2 % 2,
                                    .dtype_v = 1 + seed / 4 % 2,
                                    .layout = (tu_layout)(seed % 4),
                                    .precision = TANDEM_PRECISION_8B,
                                    .smooth = seed % 5 ? 0 : (uint32_t)TANDEM_SMOOTH_NONE,
                                    .k_bias = 2,
                                    .v_bias = 1,
                                    .seed = seed};

            seed++;
            if ((quick && (i + d) % 5) || (i > 2 && (i + d) % 2))
                continue;
            show("case", &shape);
            td_target target = target_here();
            target.attention = &(td_attention_options){.no_clusters = (i + d) % 3 == 0};
            check_case_on(target, &shape, NULL);
        }
    for (size_t i = 0; i < 2 * 5; i++) { /* where V is smoothed */
        const tu_shape shape = {.heads = 4,
                                .kv_heads = 2,
                                .q_len = 70,
                                .kv_len = i % 3 ? 1000 + 65 * (uint32_t)i : 65,
                                .head_dim = dims[i / 2],
                                .dtype_q = 1,
                                .dtype_k = 1,
                                .dtype_v = 1 + i % 2,
                                .precision = TANDEM_PRECISION_8B,
                                .smooth = TANDEM_SMOOTH_V | (i % 4 ? TANDEM_SMOOTH_K : 0),
                                .k_bias = 2,
                                .v_bias = 4,
                                .seed = 950 + i};

        show("case", &shape);
        td_target target = target_here();
        target.attention = &(td_attention_options){.no_clusters = i % 2};
        check_case_on(target, &shape, NULL);
    }
}

/* The same by either kind of stream: a cluster of 16 blocks, records that overlap, more shared memory than 48 KB. */
void test_launch_features(void **state)
{
    static const struct {
        uint32_t batch, heads, kv_len, head_dim, lse;
    } cases[] = {{1, 2, 2040, 128, 0}, {40, 8, 140, 64, 0}, {1, 2, 300, 128, 1}, {33, 16, 140, 128, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&(tu_shape){.batch = cases[i].batch,
                               .heads = cases[i].heads,
                               .q_len = 3,
                               .kv_len = cases[i].kv_len,
                               .head_dim = cases[i].head_dim,
                               .lse = cases[i].lse,
                               .dtype_q = TANDEM_DTYPE_F16,
                               .dtype_k = TANDEM_DTYPE_F16,
                               .dtype_v = TANDEM_DTYPE_F16,
                               .precision = TANDEM_PRECISION_8B,
                               .seed = 170 + i},
                   NULL);
}

/* Codes that one submit has made, given to another instead of what they were made of: the same bits of O. */
void test_codes(void **state)
{
    static const tu_shape shapes[] = {
        {.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 130, .kv_len = 270, .head_dim = 64, .causal = 1, .seed = 1},
        {.heads = 2, .q_len = 1, .kv_len = 1, .head_dim = 32, .seed = 2},
        {.heads = 3, .q_len = 300, .kv_len = 1000, .head_dim = 80, .seed = 3},
        {.batch = 3, .heads = 2, .q_len = 520, .kv_len = 520, .head_dim = 128, .seed = 4},
        {.heads = 2, .q_len = 70, .kv_len = 130, .head_dim = 256, .seed = 5}};

    (void)state;
    if (td_cu_device_info(device)->sm < 89)
        skip();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const td_target target = target_here();
        tu_shape shape = shapes[i];
        td_cu_mem mems[TU_VIEWS] = {{0}};
        uint64_t sizes[3], views[TU_VIEWS] = {0};
        tandem_attention op;
        static td_plan plan;
        tu_tensor o, again;
        void *bytes[3];
        gpu_case gpu;
        tu_case it;
        char why[256] = "";

        shape.precision = TANDEM_PRECISION_8B;
        shape.dtype_q = shape.dtype_k = shape.dtype_v = 1 + (uint32_t)i % 2;
        shape.k_bias = 2;
        tu_case_init(&it, &shape);
        must(td_plan_attention(&it.op, &target, &it.plan, &it.layout, why, sizeof why), why);
        o = tu_tensor_like(&it.o);
        again = tu_tensor_like(&it.o);
        gpu_case_run(&gpu, &it, &o, &it.lse);
        tu_case_codes(&it, gpu.host_scratch, &op, bytes, sizes);
        gpu_case_free(&gpu);
        must(td_attention_check(&op, why, sizeof why), why);
        must(td_plan_attention(&op, &target, &plan, NULL, why, sizeof why), why);
        assert_int_equal(plan.record_count, 1);
        tu_poison(&again);
        for (int v = 0; v < 3; v++)
            upload(&mems[v], bytes[v], sizes[v]);
        upload(&mems[TD_VIEW_O], again.data, again.bytes + TU_GUARD_BYTES);
        for (int v = 0; v < TU_VIEWS; v++)
            views[v] = mems[v].address;
        const td_stream_submit submit = {.plan = &plan, .views = views, .label = "codes"};
        run_to_the_end(&submit);
        must(td_cu_copy_to_host(device, again.data, mems[TD_VIEW_O].address, again.bytes + TU_GUARD_BYTES), "copy");
        assert_memory_equal(o.data, again.data, o.bytes + TU_GUARD_BYTES);
        for (int v = 0; v < TU_VIEWS; v++)
            td_cu_mem_free(device, &mems[v]);
        for (int v = 0; v < 3; v++)
            free(bytes[v]);
        tu_tensor_free(&o);
        tu_tensor_free(&again);
        tu_case_free(&it);
    }
}

/* Rows of a case that has run, as a job of their own on its memory. */
static void run_piece(const gpu_case *gpu, const tu_case *of, td_target target, uint32_t row, uint32_t rows)
{
    static td_plan plan;
    uint64_t views[TU_VIEWS];
    tandem_attention op;
    td_cu_mem scratch;
    char why[256] = "";

    memcpy(views, gpu->views, sizeof views);
    tu_case_piece(of, row, rows, &op, &target, views);
    must(td_plan_attention(&op, &target, &plan, NULL, why, sizeof why), why);
    must(td_cu_mem_alloc(device, plan.scratch_bytes + TU_GUARD_BYTES, &scratch, why, sizeof why), why);
    const td_stream_submit submit = {
        .plan = &plan, .views = views, .scratch = scratch.address, .label = "a piece of rows"};
    run_to_the_end(&submit);
    td_cu_mem_free(device, &scratch);
}

/* V is large where the first piece's last step is masked: of products with nothing the sum must not depend. */
static void spoil_behind_the_mask(tu_case *it)
{
    for (uint32_t key = 424; key < 460 && key < it->op.kv_len; key++)
        for (uint32_t c = 0; c < it->op.head_dim; c++)
            tu_set(&it->v, 0, 0, key, c, 30000);
}

/* Pieces of heads' rows, as tandemd cuts them: the whole's bits, by the kernels of streams and of command buffers. */
void test_pieces(void **state)
{
    static const uint32_t dims[] = {64, 128, 80, 32, 256};

    (void)state;
    for (uint32_t i = 0; i < 30 && !(quick && i > 6); i++) {
        const uint32_t q_len = 900 + 61 * (i % 4), type = i % 3 == 2 && i / 3 % 2 ? 3 : 1 + i / 6 % 2;
        const tu_shape shape = {.heads = 4,
                                .kv_heads = 2,
                                .q_len = q_len,
                                .kv_len = i % 5 == 4 ? q_len - 300 : q_len + 37,
                                .head_dim = dims[i % 5],
                                .causal = i % 7 != 6,
                                .precision = precisions[i % 3],
                                .dtype_q = type,
                                .dtype_k = type,
                                .dtype_v = type,
                                .dtype_o = 1 + i % 3,
                                .lse = 1,
                                .v_bias = 1,
                                .seed = 1500 + i};
        td_target target = i / 3 % 2 && !image ? td_target_for_sm(td_cu_device_info(device)->sm) : target_here();
        tu_tensor o[2], lse[2];
        gpu_case gpu;
        char why[256] = "";
        tu_case it;

        show("pieces", &shape);
        tu_case_init(&it, &shape);
        spoil_behind_the_mask(&it);
        for (int cut = 0; cut < 2; cut++) {
            o[cut] = tu_tensor_like(&it.o);
            lse[cut] = tu_tensor_like(&it.lse);
        }
        must(td_plan_attention(&it.op, &target, &it.plan, NULL, why, sizeof why), why);
        gpu_case_run(&gpu, &it, &o[0], &lse[0]);
        tu_poison(&o[1]);
        tu_poison(&lse[1]);
        must(td_cu_copy_to_device(device, gpu.views[TD_VIEW_O], o[1].data, o[1].bytes), "copy");
        must(td_cu_copy_to_device(device, gpu.views[TD_VIEW_LSE], lse[1].data, lse[1].bytes), "copy");
        for (uint32_t row = 0; row < q_len; row += 384)
            run_piece(&gpu, &it, target, row, q_len - row < 384 ? q_len - row : 384);
        must(td_cu_copy_to_host(device, o[1].data, gpu.views[TD_VIEW_O], o[1].bytes), "copy");
        must(td_cu_copy_to_host(device, lse[1].data, gpu.views[TD_VIEW_LSE], lse[1].bytes), "copy");
        assert_memory_equal(o[0].data, o[1].data, o[0].bytes);
        assert_memory_equal(lse[0].data, lse[1].data, lse[0].bytes);
        gpu_case_free(&gpu);
        for (int cut = 0; cut < 2; cut++) {
            tu_tensor_free(&o[cut]);
            tu_tensor_free(&lse[cut]);
        }
        tu_case_free(&it);
    }
}

/* So many heads that blocks have all the rows that they may: their warpgroups share tiles, and end at different keys. The
 * kernels that dump, which check_case() compares with the twin, and those that do not give the same bits. */
void test_wide_blocks(void **state)
{
    static const uint32_t dims[] = {128, 32, 64, 96}, rows[] = {128, 250, 190, 100};

    (void)state;
    for (uint32_t i = 0; i < 8 && !(quick && i); i++) {
        const tu_shape shape = {.batch = 4,
                                .heads = 17,
                                .kv_heads = i % 3 ? 17 : 1,
                                .q_len = rows[i % 4],
                                .kv_len = i < 4 ? rows[i % 4] + 70 : 65,
                                .head_dim = dims[i % 4],
                                .causal = i < 4 || i % 2,
                                .lse = 1,
                                .dtype_q = TANDEM_DTYPE_F16,
                                .dtype_k = TANDEM_DTYPE_F16,
                                .dtype_v = TANDEM_DTYPE_F16,
                                .precision = TANDEM_PRECISION_8B,
                                .seed = 250 + i};
        tu_tensor o[2], lse[2];
        gpu_case gpu;
        char why[200] = "";
        tu_case it;

        show("case", &shape);
        check_case(&shape, NULL);
        tu_case_init(&it, &shape);
        for (int dumps = 0; dumps < 2; dumps++) {
            td_target target = target_here();
            /* those whose warpgroups share keys add up in another order */
            target.attention = &(td_attention_options){.rows = TD_MOST_ROWS, .dump = dumps};
            must(td_plan_attention(&it.op, &target, &it.plan, &it.layout, why, sizeof why), why);
            o[dumps] = tu_tensor_like(&it.o);
            lse[dumps] = tu_tensor_like(&it.lse);
            gpu_case_run(&gpu, &it, &o[dumps], &lse[dumps]);
            gpu_case_free(&gpu);
        }
        assert_memory_equal(o[0].data, o[1].data, o[0].bytes);
        assert_memory_equal(lse[0].data, lse[1].data, lse[0].bytes);
        for (int dumps = 0; dumps < 2; dumps++) {
            tu_tensor_free(&o[dumps]);
            tu_tensor_free(&lse[dumps]);
        }
        tu_case_free(&it);
    }
}

void test_causal_and_groups(void **state)
{
    (void)state;
    for (size_t p = 0; p < 3; p++) {
        check(&(tu_shape){.batch = 2,
                          .heads = 6,
                          .kv_heads = 2,
                          .q_len = 150,
                          .kv_len = 150,
                          .head_dim = 64,
                          .causal = 1,
                          .precision = precisions[p],
                          .lse = 1,
                          .seed = 200 + p});
        if (quick)
            return;
        check(&(tu_shape){.batch = 2,
                          .heads = 4,
                          .kv_heads = 1,
                          .q_len = 70,
                          .kv_len = 333,
                          .head_dim = 64,
                          .causal = 1,
                          .precision = precisions[p],
                          .lse = 1,
                          .seed = 210 + p});
        /* more queries than keys: the first rows see no key */
        check(&(tu_shape){.heads = 4,
                          .kv_heads = 4,
                          .q_len = 333,
                          .kv_len = 70,
                          .head_dim = 64,
                          .causal = 1,
                          .precision = precisions[p],
                          .lse = 1,
                          .seed = 220 + p});
    }
}

void test_types_and_layouts(void **state)
{
    uint64_t seed = 300;

    (void)state;
    for (uint32_t type = 1; type <= 3; type++)
        for (uint32_t layout = TU_DENSE; layout <= TU_BATCH_LAST; layout++) {
            if (quick && (type + layout) % 3)
                continue;
            check(&(tu_shape){.batch = 2,
                              .heads = 3,
                              .q_len = 130,
                              .kv_len = 270,
                              .head_dim = layout % 2 ? 80 : 64,
                              .dtype_q = type,
                              .dtype_k = type % 3 + 1,
                              .dtype_v = (type + 1) % 3 + 1,
                              .dtype_o = type,
                              .layout = (tu_layout)layout,
                              .precision = precisions[seed % 3],
                              .lse = 1,
                              .seed = seed});
            seed++;
        }
}

void test_smoothing(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 8; bits++) {
        if (quick && bits != 7)
            continue;
        for (size_t p = 0; p < 3; p++)
            check(&(tu_shape){.heads = 2,
                              .kv_heads = 1,
                              .q_len = 200,
                              .kv_len = 260,
                              .head_dim = 64,
                              .lse = 1,
                              .smooth = bits ? bits * 2 : (uint32_t)TANDEM_SMOOTH_NONE,
                              .precision = precisions[p],
                              .k_bias = 3,
                              .v_bias = 5,
                              .causal = bits % 2,
                              .scale = bits % 3 ? 0 : -0.2f,
                              .seed = 400 + bits});
    }
}

void test_granularities(void **state)
{
    (void)state;
    for (uint32_t g = TANDEM_GRANULARITY_DEFAULT; g <= TANDEM_GRANULARITY_TENSOR; g++) {
        if (quick && g != TANDEM_GRANULARITY_TENSOR)
            continue;
        for (size_t p = 0; p < 2; p++)
            check(&(tu_shape){.heads = 2,
                              .q_len = 300,
                              .kv_len = 400,
                              .head_dim = 96,
                              .granularity = g,
                              .precision = precisions[p],
                              .smooth = TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K,
                              .seed = 500 + g});
    }
}

static void spoil_values(tu_case *it)
{
    tu_set(&it->q, 0, 0, 3, 5, NAN);
    tu_set(&it->q, 0, 1, 64, 0, -INFINITY);
    tu_set(&it->k, 0, 0, 100, 7, INFINITY);
    tu_set(&it->v, 0, 1, 129, 31, NAN);
}

static void spoil_sizes(tu_case *it)
{
    for (uint32_t c = 0; c < it->op.head_dim; c++) {
        tu_set(&it->q, 0, 0, 2, c, 1e5 * (c + 1)); /* an fp16 code needs a scale */
        tu_set(&it->k, 0, 0, 65, c, 1e-6);
        tu_set(&it->q, 0, 1, 7, c, 0);
        tu_set(&it->v, 0, 1, 9, c, c % 2 ? 1e6 : 1e-7);
    }
    for (uint32_t r = 0; r < it->op.kv_len; r++)
        tu_set(&it->v, 0, 0, r, 4, 0); /* a channel of zeros */
}

static void spoil_strides(tu_case *it)
{
    it->op.k.stride_head = 0; /* one K for all heads */
    it->op.v.stride_row = 0;  /* one V for all keys */
}

void test_odd_values(void **state)
{
    static const spoil_fn spoils[] = {spoil_values, spoil_sizes, spoil_strides};

    (void)state;
    for (size_t i = 0; i < 3; i++)
        for (size_t p = 0; p < 9; p++) {
            const tu_shape shape = {.heads = 2,
                                    .dtype_q = (uint32_t)p / 3,
                                    .dtype_k = (uint32_t)p / 3,
                                    .dtype_v = (uint32_t)p / 3,
                                    .q_len = 140,
                                    .kv_len = 200,
                                    .head_dim = 32,
                                    .causal = p == 1,
                                    .precision = precisions[p % 3],
                                    .smooth = i == 1 && p == 0 ? TANDEM_SMOOTH_V : 0,
                                    .lse = p < 3,
                                    .seed = 600 + i};

            if (quick && p % 3 != i)
                continue;
            show("spoilt", &shape);
            check_case(&shape, spoils[i]);
        }
}
