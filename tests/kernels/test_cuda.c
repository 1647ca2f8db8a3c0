/* The CUDA kernels and their stream against the CPU twin, on a GPU.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of older architectures run, too, where the build has their PTX: the driver compiles it.
 * test_cuda [--quick | --bench | --each [LANE/LANES | NAME] | --cases]; exits 77 where there is no CUDA device, unless TANDEM_EXPECT_GPU is 1.
 * What needs Vulkan too is skipped, or then fails likewise, where there is none.
 * --quick runs few and small cases, --bench prints the time of each kernel instead.
 * TANDEM_TEST_FILTER: a pattern of the tests that run.
 * --each runs each kernel of this GPU once or twice (for compute-sanitizer), or every LANES-th of these cases, from number
 * LANE on, or those of the kernels whose names begin with NAME. --cases needs no GPU: that --each leaves no kernel out.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/attention/cpu.h"
#include "kernels/builder.h"
#include "kernels/probe.h"
#include "tests/interop/vk_util.h"
#include "tests/kernels/attention_compare.h"
#include "tests/kernels/each.h"

enum { THREADS = 16 };
static const uint64_t run_limit_ns = 20000000000u;

static td_cu_device *device;
static td_stream *stream;
static const td_cubin *image; /* what it runs; NULL: this GPU's own kernels */
static bool graphs;          /* `stream` is of td_stream_create_graph() */
static bool quick, expected; /* TANDEM_EXPECT_GPU=1: what is missing is a failure */

static uint64_t wait_for(uint64_t sequence)
{
    const uint64_t begin = td_now_ns();

    while (td_stream_completed(stream) < sequence)
        if (td_now_ns() - begin > run_limit_ns) {
            char why[160] = "";

            td_stream_status(stream, why, sizeof why);
            fail_msg("submit %llu does not finish: %s", (unsigned long long)sequence, why);
        }
    return td_now_ns() - begin;
}

static void must(tandem_status status, const char *why)
{
    if (status)
        fail_msg("status %d: %s", (int)status, why);
}

static td_target target_here(void)
{
    td_target target = td_exec_target(td_cu_device_info(device), true);

    target.image = image;
    return target;
}

/* --- A case on the GPU --- */

typedef struct gpu_case {
    td_cu_mem mems[TU_VIEWS], scratch;
    uint64_t views[TU_VIEWS];
    unsigned char *host_scratch;
} gpu_case;

static void upload(td_cu_mem *mem, const void *data, size_t bytes)
{
    char why[160];

    must(td_cu_mem_alloc(device, bytes, mem, why, sizeof why), why);
    must(td_cu_copy_to_device(device, mem->address, data, bytes), "copy");
}

static void gpu_case_free(gpu_case *it)
{
    for (int i = 0; i < TU_VIEWS; i++)
        td_cu_mem_free(device, &it->mems[i]);
    td_cu_mem_free(device, &it->scratch);
    free(it->host_scratch);
}

/* Runs the plan of `of` on poisoned outputs and scratch. o and lse receive what the GPU wrote, guard included. */
static void gpu_case_run(gpu_case *it, const tu_case *of, tu_tensor *o, tu_tensor *lse)
{
    const tu_tensor *tensors[TU_VIEWS] = {&of->q, &of->k, &of->v, o, lse};
    const size_t scratch_bytes = of->plan.scratch_bytes + TU_GUARD_BYTES;
    td_stream_submit submit = {.plan = &of->plan, .label = "test"};
    uint64_t sequence;
    bool signalled;
    char why[256] = "";

    memset(it, 0, sizeof *it);
    tu_poison(o);
    if (lse->data)
        tu_poison(lse);
    for (int i = 0; i < TU_VIEWS; i++)
        if (tensors[i]->data) {
            upload(&it->mems[i], tensors[i]->data, tensors[i]->bytes + TU_GUARD_BYTES);
            it->views[i] = it->mems[i].address;
        }
    it->host_scratch = malloc(scratch_bytes);
    assert_non_null(it->host_scratch);
    memset(it->host_scratch, TU_POISON, scratch_bytes);
    upload(&it->scratch, it->host_scratch, scratch_bytes);

    submit.views = it->views;
    submit.scratch = it->scratch.address;
    must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
    wait_for(sequence);
    must(td_stream_status(stream, why, sizeof why), why);
    must(td_cu_copy_to_host(device, it->host_scratch, it->scratch.address, scratch_bytes), "copy");
    must(td_cu_copy_to_host(device, o->data, it->mems[TD_VIEW_O].address, o->bytes + TU_GUARD_BYTES), "copy");
    if (lse->data)
        must(td_cu_copy_to_host(device, lse->data, it->mems[TD_VIEW_LSE].address, lse->bytes + TU_GUARD_BYTES), "copy");
    for (size_t i = 0; i < TU_GUARD_BYTES; i++)
        assert_int_equal(it->host_scratch[of->plan.scratch_bytes + i], TU_POISON);
}

/* A stride that broadcasts, a value somewhere: applied to the tensors before the case runs. */
typedef void (*spoil_fn)(tu_case *);

static void show(const char *name, const tu_shape *s)
{
    print_message(
        "    %s: b%u h%u/%u q%u kv%u d%u causal %u precision %u smooth %u granularity %u dtypes %u%u%u%u layout %u\n",
        name, s->batch, s->heads, s->kv_heads, s->q_len, s->kv_len, s->head_dim, s->causal, s->precision, s->smooth,
        s->granularity, s->dtype_q, s->dtype_k, s->dtype_v, s->dtype_o, (unsigned)s->layout);
}

static void check_case_on(td_target target, const tu_shape *shape, spoil_fn spoil)
{
    tu_tensor o, lse, again;
    gpu_case gpu;
    tu_case it;

    tu_case_init(&it, shape);
    if (spoil)
        spoil(&it);
    must(tu_case_run(&it, &target, THREADS), "the twin");
    o = tu_tensor_like(&it.o);
    again = tu_tensor_like(&it.o);
    lse = tu_tensor_like(&it.lse);
    gpu_case_run(&gpu, &it, &o, &lse);
    if (!target.commit) /* O is in its scratch */
        tu_compare_prologue(&it, gpu.host_scratch);
    tu_compare_dumps(&it, gpu.host_scratch, td_target_for_sm(td_cu_device_info(device)->sm).accumulator);
    tu_compare_outputs(&it, &o, &lse);
    gpu_case_free(&gpu);
    gpu_case_run(&gpu, &it, &again, &lse);
    assert_memory_equal(o.data, again.data, o.bytes);
    gpu_case_free(&gpu);
    tu_tensor_free(&o);
    tu_tensor_free(&again);
    tu_tensor_free(&lse);
    tu_case_free(&it);
}

static void check_case(const tu_shape *shape, spoil_fn spoil)
{
    td_target target = target_here();
    target.attention = &(td_attention_options){.dump = true};
    check_case_on(target, shape, spoil);
}

/* Plans that commit write the same bytes, whatever the type and the layout. */
static void test_commit(void **state)
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

/* Of float32, and of the types that have a prologue of two records. */
static void check(const tu_shape *shape)
{
    show("case", shape);
    check_case(shape, NULL);
    if (!shape->dtype_q && !shape->dtype_k && !shape->dtype_v) {
        tu_shape half = *shape;

        half.dtype_q = half.dtype_k = half.dtype_v = shape->seed % 3 ? TANDEM_DTYPE_F16 : TANDEM_DTYPE_BF16;
        half.lse = shape->lse && shape->seed % 2;
        show("case", &half);
        check_case(&half, NULL);
    }
}

/* --- Cases --- */

static const uint32_t precisions[] = {TANDEM_PRECISION_8B, TANDEM_PRECISION_4B, TANDEM_PRECISION_F16};

static void test_lengths(void **state)
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

static void test_head_dims(void **state)
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

static void test_direct(void **state)
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

static void test_split_wgmma(void **state)
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
static void test_walk_wgmma(void **state)
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

static void test_inline_wgmma(void **state)
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

/* So many heads that a block of the prologue works on several sets of tiles. */
static void test_many_heads(void **state)
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
static void test_prepare(void **state)
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
}

/* The same by either kind of stream: a cluster of 16 blocks, records that overlap, more shared memory than 48 KB. */
static void test_launch_features(void **state)
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
static void test_codes(void **state)
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
        uint64_t sizes[3], views[TU_VIEWS] = {0}, sequence;
        tandem_attention op;
        static td_plan plan;
        tu_tensor o, again;
        void *bytes[3];
        bool signalled;
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
        must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
        wait_for(sequence);
        must(td_stream_status(stream, why, sizeof why), why);
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
    uint64_t views[TU_VIEWS], sequence;
    tandem_attention op;
    td_cu_mem scratch;
    char why[256] = "";
    bool signalled;

    memcpy(views, gpu->views, sizeof views);
    tu_case_piece(of, row, rows, &op, &target, views);
    must(td_plan_attention(&op, &target, &plan, NULL, why, sizeof why), why);
    must(td_cu_mem_alloc(device, plan.scratch_bytes + TU_GUARD_BYTES, &scratch, why, sizeof why), why);
    const td_stream_submit submit = {
        .plan = &plan, .views = views, .scratch = scratch.address, .label = "a piece of rows"};
    must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
    wait_for(sequence);
    must(td_stream_status(stream, why, sizeof why), why);
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
static void test_pieces(void **state)
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
static void test_wide_blocks(void **state)
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

static void test_causal_and_groups(void **state)
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

static void test_types_and_layouts(void **state)
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

static void test_smoothing(void **state)
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

static void test_granularities(void **state)
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

static void test_odd_values(void **state)
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

/* --- Tensor cores --- */

static void compare_probe(uint32_t unit, uint32_t tiles, void *const *arrays, const td_plan *plan, bool proven)
{
    static const uint64_t tile_bytes[TD_PROBE_VIEWS] = {TD_PROBE_A_BYTES, TD_PROBE_B_BYTES, TD_PROBE_ELEMENTS * 4,
                                                        TD_PROBE_ELEMENTS * 4};
    uint64_t addresses[TD_PROBE_VIEWS], sequence, unequal = 0;
    const uint64_t count = (uint64_t)tiles * TD_PROBE_ELEMENTS;
    float *gpu_d = malloc(count * 4);
    td_cu_mem mems[TD_PROBE_VIEWS];
    bool signalled;
    char why[256];

    assert_non_null(gpu_d);
    memset(arrays[TD_PROBE_D], TU_POISON, count * 4);
    for (int i = 0; i < TD_PROBE_VIEWS; i++) {
        upload(&mems[i], arrays[i], tiles * tile_bytes[i]);
        addresses[i] = mems[i].address;
    }
    const td_stream_submit submit = {.plan = plan, .views = addresses, .label = "probe"};
    must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
    wait_for(sequence);
    must(td_stream_status(stream, why, sizeof why), why);
    must(td_cu_copy_to_host(device, gpu_d, mems[TD_PROBE_D].address, count * 4), "copy");
    for (int i = 0; i < TD_PROBE_VIEWS; i++) {
        td_cu_mem_free(device, &mems[i]);
        addresses[i] = (uintptr_t)arrays[i];
    }
    must(td_exec_cpu_run(plan, addresses, 0, THREADS, NULL), "the twin");
    for (uint64_t i = 0; i < count; i++) {
        const float twin_d = ((const float *)arrays[TD_PROBE_D])[i];

        if (td_bits(gpu_d[i]) != td_bits(twin_d) && unequal++ == 0)
            print_message("    %s: tile %u, element %u is %08x, the twin's %08x\n", td_probe_name(unit),
                          (unsigned)(i / TD_PROBE_ELEMENTS), (unsigned)(i % TD_PROBE_ELEMENTS), td_bits(gpu_d[i]),
                          td_bits(twin_d));
    }
    print_message("    %s: %llu of %llu elements as the twin's\n", td_probe_name(unit),
                  (unsigned long long)(count - unequal), (unsigned long long)count);
    if (proven)
        assert_int_equal(unequal, 0);
    free(gpu_d);
}

static void test_probe(void **state)
{
    const uint32_t sm = td_cu_device_info(device)->sm, tiles = quick ? 64 : 4096;
    const td_target target = target_here();
    void *arrays[TD_PROBE_VIEWS];
    static td_plan plan;
    char why[256] = "";
    const td_cubin *runs = image ? image : td_cubin_for_sm(sm, why, sizeof why);

    (void)state;
    for (int i = 0; i < TD_PROBE_VIEWS; i++) {
        arrays[i] = malloc((size_t)tiles * TD_PROBE_A_BYTES); /* the largest */
        assert_non_null(arrays[i]);
    }
    for (uint32_t unit = 0; unit < TD_PROBE_UNITS; unit++) {
        /* The twin's fp16 unit is that of sm_90. */
        const bool proven = unit != TD_PROBE_MMA_F16 || sm == 90;
        const bool wgmma = unit == TD_PROBE_WGMMA_E4M3 || unit == TD_PROBE_WGMMA_E4M3_F16;
        const bool has = wgmma ? runs->sm == 90 && !runs->ptx : unit == TD_PROBE_MMA_F16 || runs->sm >= 89;
        const tandem_status status = td_plan_probe(unit, tiles, &target, &plan, why, sizeof why);

        if (!has) {
            assert_int_equal(status, TANDEM_ERROR_UNSUPPORTED);
            assert_true(strlen(why) > 10);
            continue;
        }
        must(status, why);
        td_probe_fill_random(unit, tiles, 17 + unit, arrays[0], arrays[1], arrays[2]);
        compare_probe(unit, tiles, arrays, &plan, proven);
        must(td_plan_probe(unit, TD_PROBE_POWERS, &target, &plan, why, sizeof why), why);
        td_probe_fill_powers(unit, arrays[0], arrays[1], arrays[2]);
        compare_probe(unit, TD_PROBE_POWERS, arrays, &plan, proven);
        must(td_plan_probe(unit, 1, &target, &plan, why, sizeof why), why);
        td_probe_fill_bits(arrays[0], arrays[1], arrays[2]);
        compare_probe(unit, 1, arrays, &plan, proven);
    }
    for (int i = 0; i < TD_PROBE_VIEWS; i++)
        free(arrays[i]);
}

/* --- Each kernel once, as sanitizers need it --- */

static te_cases each;

/* In a step that the causal mask cuts, where those that fetch look for it. */
static void spoil_last_step(tu_case *it)
{
    tu_set(&it->v, 0, 0, it->op.kv_len - 40, 5, INFINITY);
}

static void each_case(td_target target, tu_shape shape)
{
    char why[200];
    tu_case it;

    if (!shape.precision)
        shape.precision = TANDEM_PRECISION_8B;
    shape.seed = 2000 + each.number;
    tu_case_init(&it, &shape);
    const tandem_status status = td_plan_attention(&it.op, &target, &it.plan, NULL, why, sizeof why);
    if (status && status != TANDEM_ERROR_UNSUPPORTED)
        fail_msg("status %d: %s", (int)status, why);
    const bool mine = !status && te_is_mine(&each, &it.plan, shape.causal);
    if (mine)
        print_message("    %s%s\n", it.plan.records[it.plan.record_count - (target.commit ? 3 : 1)].kernel->entry,
                      shape.causal ? ", causal" : "");
    tu_case_free(&it);
    if (mine)
        check_case_on(target, &shape, shape.causal ? spoil_last_step : NULL);
}

/* Rings go round, tiles of rows and of keys are cut, warpgroups see different numbers of keys, blocks walk. */
static void each_attention(td_target stream_target)
{
    static const uint32_t dims[] = {64, 128, 96, 80, 32, 256};
    td_cubin older = *each.cubin; /* of a GPU without e4m3, as if this were one */

    older.sm = 80;
    for (uint32_t i = 0; i < 12; i++) {
        const tu_shape floats = {.heads = 2,
                                 .kv_heads = 1,
                                 .q_len = 200,
                                 .kv_len = 830,
                                 .head_dim = dims[i / 2],
                                 .causal = i % 2,
                                 .lse = 1,
                                 .v_bias = 1,
                                 .scale = i % 4 == 3 ? 1 : 0}; /* bases move */
        td_attention_options options = {.rows = TD_BEST_ROWS};
        td_target target = stream_target;
        tu_shape halves = floats, shape;

        halves.dtype_q = halves.dtype_k = halves.dtype_v = halves.dtype_o = TANDEM_DTYPE_F16;
        halves.lse = 0;
        /* 8B: by each kind of block, on a stream and in a command buffer; mma.sync's; what dumps */
        target.attention = &options;
        for (options.rows = TD_MOST_ROWS; options.rows <= TD_PAIR_ROWS; options.rows++) {
            if (options.rows >= TD_SPLIT_ROWS && halves.head_dim == 256)
                continue;
            if (options.rows == TD_MOST_ROWS) /* a tile a block, then all by one */
                each_case(target, halves);
            target.multiprocessors = options.rows == TD_MOST_ROWS ? 1 : 3;
            each_case(target, halves);
            td_target inside = td_target_for_sm(target.sm);
            inside.attention = &options;
            each_case(inside, halves);
        }
        target = stream_target;
        target.attention = &(td_attention_options){.dump = true};
        each_case(target, floats);
        shape = floats;
        shape.smooth = TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K;
        each_case(stream_target, shape);
        target = stream_target;
        target.sm = 80;
        target.image = &older;
        each_case(target, halves);
        shape = floats;
        shape.precision = TANDEM_PRECISION_4B;
        each_case(stream_target, shape);
        /* F16: of floats by way of a prologue; as tensors lie, again by each kind of block */
        shape.precision = TANDEM_PRECISION_F16;
        each_case(stream_target, shape);
        for (uint32_t type = TANDEM_DTYPE_F16; type <= TANDEM_DTYPE_BF16; type++) {
            shape = halves;
            shape.precision = TANDEM_PRECISION_F16;
            shape.dtype_q = shape.dtype_k = shape.dtype_v = shape.dtype_o = type;
            for (uint32_t inside = 0; inside < 2; inside++) {
                const td_rows last = inside ? TD_SPLIT_ROWS : TD_PAIR_ROWS; /* pairs: on streams alone */
                target = inside ? td_target_for_sm(stream_target.sm) : stream_target;
                target.multiprocessors = 1;
                target.attention = &options;
                for (options.rows = TD_MOST_ROWS; options.rows <= last; options.rows++)
                    each_case(target, shape);
            }
        }
    }
}

/* Prologues that those cases do not have, and plans that commit. */
static void each_other(td_target stream_target)
{
    static const uint32_t dims[] = {32, 64, 128};
    td_target commits = stream_target, target;

    commits.commit = true;
    for (uint32_t i = 0; i < 3; i++) {
        const tu_shape halves = {.batch = 2,
                                 .heads = 2,
                                 .q_len = 70,
                                 .kv_len = 300,
                                 .head_dim = dims[i],
                                 .dtype_q = TANDEM_DTYPE_F16,
                                 .dtype_k = TANDEM_DTYPE_BF16,
                                 .dtype_v = TANDEM_DTYPE_F16,
                                 .dtype_o = 1 + i,
                                 .layout = TU_BATCH_LAST,
                                 .k_bias = 1};
        tu_shape shape = halves;

        each_case(stream_target, shape);
        each_case(commits, shape);
        shape.layout = TU_GAPS; /* rows are not aligned */
        each_case(stream_target, shape);
        shape.granularity = TANDEM_GRANULARITY_TENSOR;
        shape.smooth = TANDEM_SMOOTH_K | TANDEM_SMOOTH_V;
        each_case(stream_target, shape);
        target = stream_target;
        target.attention = &(td_attention_options){.no_clusters = true};
        each_case(target, halves);
    }
}

static void each_probe(td_target target)
{
    void *arrays[TD_PROBE_VIEWS];
    static td_plan plan;
    char why[256] = "";

    for (int i = 0; i < TD_PROBE_VIEWS; i++) {
        arrays[i] = malloc(8 * TD_PROBE_A_BYTES);
        assert_non_null(arrays[i]);
    }
    for (uint32_t unit = 0; unit < TD_PROBE_UNITS; unit++) {
        if (td_plan_probe(unit, 8, &target, &plan, why, sizeof why) || !te_is_mine(&each, &plan, false))
            continue;
        td_probe_fill_random(unit, 8, 17 + unit, arrays[0], arrays[1], arrays[2]);
        compare_probe(unit, 8, arrays, &plan, unit != TD_PROBE_MMA_F16 || target.sm == 90);
    }
    for (int i = 0; i < TD_PROBE_VIEWS; i++)
        free(arrays[i]);
}

static void each_kernel(td_target stream_target)
{
    each_attention(stream_target);
    each_other(stream_target);
    each_probe(stream_target);
}

static void test_each(void **state)
{
    (void)state;
    te_begin(&each, td_cu_device_info(device)->sm);
    each_kernel(target_here());
    te_end(&each, TE_CUDA);
}

static td_stream *own_stream; /* of this GPU's own kernels */

/* Packed int4 codes give the integers that int8 ones give, so the same bits wherever P V is computed alike. */
static void test_int4_equals_int8(void **state)
{
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256};
    const td_cubin *older = image;
    td_stream *of_older = stream;

    (void)state;
    if (!older || older->sm >= 90 || td_cu_device_info(device)->sm < 90)
        skip();
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        const tu_shape shape = {.heads = 2,
                                .kv_heads = 1,
                                .q_len = 150,
                                .kv_len = 280,
                                .head_dim = dims[i],
                                .precision = TANDEM_PRECISION_4B,
                                .granularity = TANDEM_GRANULARITY_THREAD_ADA,
                                .lse = 1,
                                .seed = 800 + i};
        tu_tensor o[2], lse[2];
        gpu_case gpu[2];
        tu_case it[2];

        for (int packed = 0; packed < 2; packed++) {
            td_target target;

            image = packed ? older : NULL;
            stream = packed ? of_older : own_stream;
            target = target_here();
            target.attention = &(td_attention_options){.dump = true};
            tu_case_init(&it[packed], &shape);
            must(tu_case_run(&it[packed], &target, THREADS), "the twin");
            assert_int_equal(it[packed].layout.qk_is_packed, packed);
            o[packed] = tu_tensor_like(&it[packed].o);
            lse[packed] = tu_tensor_like(&it[packed].lse);
            gpu_case_run(&gpu[packed], &it[packed], &o[packed], &lse[packed]);
        }
        for (uint32_t row = 0; row < 2 * it[0].layout.q_pad; row++)
            if (row % it[0].layout.q_pad < shape.q_len)
                assert_memory_equal(
                    gpu[0].host_scratch + it[0].layout.dump_s + (uint64_t)row * it[0].layout.kv_pad * 4,
                    gpu[1].host_scratch + it[1].layout.dump_s + (uint64_t)row * it[0].layout.kv_pad * 4,
                    (shape.kv_len + 63) / 64 * 64 * 4);
        assert_memory_equal(lse[0].data, lse[1].data, lse[0].bytes);
        if (it[0].layout.v_is_f16 == it[1].layout.v_is_f16)
            assert_memory_equal(o[0].data, o[1].data, o[0].bytes);
        for (int packed = 0; packed < 2; packed++) {
            gpu_case_free(&gpu[packed]);
            tu_tensor_free(&o[packed]);
            tu_tensor_free(&lse[packed]);
            tu_case_free(&it[packed]);
        }
    }
}

/* --- The stream and the device --- */

static void test_frame_counts(void **state)
{
    const tu_shape shape = {.heads = 2, .q_len = 64, .kv_len = 300, .head_dim = 64, .seed = 700};
    td_target target = td_target_for_sm(td_cu_device_info(device)->sm);
    uint64_t sequence = 0, begin_ns, end_ns, last_end = 0;
    td_cu_counts before, after;
    tu_tensor o, lse;
    gpu_case gpu;
    tu_case it;
    bool signalled;
    char why[160];

    (void)state;
    tu_case_init(&it, &shape);
    must(tu_case_run(&it, &target, THREADS), "the twin");
    o = tu_tensor_like(&it.o);
    lse = tu_tensor_like(&it.lse);
    gpu_case_run(&gpu, &it, &o, &lse); /* warms up */
    const td_stream_submit submit = {
        .plan = &it.plan, .views = gpu.views, .scratch = gpu.scratch.address, .label = "frame"};
    for (int i = 0; i < 300; i++) {
        const uint64_t previous = sequence, start = td_now_ns();

        before = td_cu_device_counts(device);
        must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
        wait_for(sequence);
        assert_true(td_stream_times(stream, sequence, &begin_ns, &end_ns));
        after = td_cu_device_counts(device);
        assert_int_equal(after.copies, before.copies);
        assert_int_equal(after.allocations, before.allocations);
        assert_int_equal(after.host_waits, before.host_waits);
        /* And push, pop, the event. */
        assert_int_equal(after.launches - before.launches, graphs ? 1 : it.plan.record_count + 2);
        assert_int_equal(after.all - before.all, graphs ? 4 : it.plan.record_count + 5);
        assert_false(signalled);                                            /* nobody asked for a signal */
        if (previous)
            assert_int_equal(sequence, previous + 1);
        assert_true(begin_ns < end_ns);
        assert_true(begin_ns > last_end);
        last_end = end_ns;
        /* the clocks agree within 500 us: seven other programs may keep the host and the GPU busy */
        assert_true(begin_ns + 500000 > start && end_ns < td_now_ns() + 500000);
    }
    assert_true(td_stream_times(stream, sequence - 255, &begin_ns, &end_ns));
    assert_false(td_stream_times(stream, sequence - 256, &begin_ns, &end_ns));
    assert_false(td_stream_times(stream, sequence + 1, &begin_ns, &end_ns));
    assert_false(td_stream_times(stream, 0, &begin_ns, &end_ns));

    const int64_t offset = td_stream_clock_offset_ns(stream);
    assert_true(td_stream_times(stream, sequence, &begin_ns, &end_ns));
    td_stream_set_clock_offset_ns(stream, offset + 1000);
    assert_true(td_stream_times(stream, sequence, &last_end, &end_ns));
    assert_int_equal(last_end, begin_ns - 1000);
    td_stream_set_clock_offset_ns(stream, offset);
    gpu_case_free(&gpu);
    tu_tensor_free(&o);
    tu_tensor_free(&lse);
    tu_case_free(&it);
}

static void test_refusals(void **state)
{
    static const td_kernel stranger = {.name = "stranger", .entry = "no_such_kernel"}, cpu_only = {.name = "cpu_only"},
                           known = {.name = "mean_final", .entry = "mean_final"};
    TU_PLAN(plan); /* a new one for each kind of stream */
    const uint64_t views[TU_VIEWS] = {0};
    const td_stream_submit submit = {.plan = &plan, .views = views, .label = "refused"};
    uint64_t sequence = 77, completed = td_stream_completed(stream);
    bool signalled = true;
    td_cu_counts before = td_cu_device_counts(device);
    char why[256] = "";

    (void)state;
    td_record *record = td_plan_add_record(&plan, 16);
    assert_non_null(record);
    record->kernel = &stranger;
    for (int i = 0; i < 3; i++)
        record->grid[i] = record->block[i] = 1;
    assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why),
                     TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(why, "no_such_kernel"));
    plan.records[0].kernel = &cpu_only;
    assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why),
                     TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(why, "cpu_only"));
    plan.records[0].kernel = &known;
    plan.records[0].shared_bytes = 1 << 20;
    assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why),
                     TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(why, "1048576"));
    plan.records[0].shared_bytes = 0;
    plan.records[0].flags = 8; /* none that there is */
    assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why),
                     TANDEM_ERROR_UNSUPPORTED);
    assert_false(signalled);
    assert_int_equal(sequence, 77);
    assert_int_equal(td_stream_completed(stream), completed);
    assert_int_equal(td_cu_device_counts(device).launches, before.launches);

    assert_null(td_cubin_for_sm(10, why, sizeof why));
    assert_non_null(strstr(why, "1.0"));
    assert_non_null(td_cubin_for_sm(td_cu_device_info(device)->sm, why, sizeof why));
}

static int count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* Imports of what no Vulkan device exported: refused, and nothing leaks. */
static void refuse_fds(td_cu_device *on)
{
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC), fds = count_fds();
    int dead = dup(null);
    td_cu_timeline timeline;
    char why[256] = "";
    td_cu_mem mem;

    assert_true(null >= 0 && dead >= 0);
    close(dead);
    assert_int_equal(td_cu_mem_import_fd(on, dead, 4096, false, 0, 4096, &mem, why, sizeof why), TANDEM_ERROR_ARG);
    assert_non_null(strstr(why, strerror(EBADF)));
    assert_int_equal(mem.kind, 0);
    assert_int_equal(td_cu_timeline_import_fd(on, dead, &timeline, why, sizeof why), TANDEM_ERROR_ARG);
    assert_null(timeline.external);
    assert_int_equal(td_cu_mem_import_fd(on, -1, 4096, false, 0, 4096, &mem, why, sizeof why), TANDEM_ERROR_ARG);
    assert_int_equal(td_cu_mem_import_fd(on, null, 4096, false, 1, 4096, &mem, why, sizeof why), TANDEM_ERROR_ARG);
    assert_int_equal(td_cu_mem_import_fd(on, null, 4096, false, UINT64_MAX, 4096, &mem, why, sizeof why),
                     TANDEM_ERROR_ARG);
    assert_int_not_equal(td_cu_mem_import_fd(on, null, 4096, false, 0, 4096, &mem, why, sizeof why), TANDEM_OK);
    assert_non_null(strstr(why, "CUDA_ERROR_"));
    assert_int_equal(mem.kind, 0);
    assert_int_not_equal(td_cu_timeline_import_fd(on, null, &timeline, why, sizeof why), TANDEM_OK);
    assert_non_null(strstr(why, "CUDA_ERROR_"));
    assert_int_equal(count_fds(), fds);
    assert_true(fcntl(null, F_GETFD) >= 0);
    close(null);
}

static void test_descriptors(void **state)
{
    (void)state;
    refuse_fds(device);
}

static void test_memory(void **state)
{
    const uint64_t held = td_cu_device_allocated_bytes(device);
    unsigned char bytes[300], *page, back[300];
    td_cu_mem mem;
    char why[160];

    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 7);
    must(td_cu_mem_alloc(device, sizeof bytes, &mem, why, sizeof why), why);
    assert_int_equal(td_cu_device_allocated_bytes(device), held + sizeof bytes);
    must(td_cu_copy_to_device(device, mem.address, bytes, sizeof bytes), "copy");
    must(td_cu_copy_to_host(device, back, mem.address, sizeof back), "copy");
    assert_memory_equal(bytes, back, sizeof bytes);
    td_cu_mem_free(device, &mem);
    td_cu_mem_free(device, &mem); /* zeroed: nothing more to do */
    assert_int_equal(td_cu_device_allocated_bytes(device), held);
    assert_int_equal(td_cu_mem_alloc(device, 0, &mem, why, sizeof why), TANDEM_ERROR_ARG);
    assert_int_equal(td_cu_mem_alloc(device, UINT64_C(1) << 60, &mem, why, sizeof why), TANDEM_ERROR_NOMEM);
    assert_int_equal(mem.kind, 0);

    page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(page != MAP_FAILED);
    memcpy(page, bytes, sizeof bytes);
    assert_int_equal(td_cu_mem_register(device, page + 1, 4096, &mem, why, sizeof why), TANDEM_ERROR_ARG);
    must(td_cu_mem_register(device, page, 8192, &mem, why, sizeof why), why);
    must(td_cu_copy_to_host(device, back, mem.address, sizeof back), "copy");
    assert_memory_equal(bytes, back, sizeof bytes);
    td_cu_mem_free(device, &mem);
    munmap(page, 8192);

    must(td_cu_mem_alloc_host(device, 4096, &mem, why, sizeof why), why);
    memcpy(mem.host, bytes, sizeof bytes);
    must(td_cu_copy_to_host(device, back, mem.address, sizeof back), "copy");
    assert_memory_equal(bytes, back, sizeof bytes);
    td_cu_mem_free(device, &mem);
}

static void test_open_and_close(void **state)
{
    uint8_t foreign[16];
    td_cu_device *other;
    td_stream *second;
    int fds = 0;
    char why[256] = "";

    (void)state;
    memset(foreign, 0xab, sizeof foreign);
    assert_int_equal(td_cu_device_open(foreign, NULL, &other, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
    assert_null(other);
    assert_non_null(strstr(why, "abababab-abab-abab-abab-abababababab; there is "));
    for (int i = 0; i < (quick ? 3 : 60); i++) {
        must(td_cu_device_open(td_cu_device_info(device)->uuid, NULL, &other, why, sizeof why), why);
        assert_memory_equal(td_cu_device_info(other)->uuid, td_cu_device_info(device)->uuid, 16);
        if (i % 10 == 0) {
            must(td_stream_create(other, NULL, &second, why, sizeof why), why);
            td_stream_destroy(&second, 1000000000u);
            assert_null(second);
        }
        refuse_fds(other);
        td_cu_device_close(&other);
        assert_null(other);
        if (i == 0)
            fds = count_fds();
        else
            assert_int_equal(count_fds(), fds);
    }
}

/* --- With Vulkan --- */

static vku gpu;
static td_vk *vk;

/* A timeline in both APIs. */
typedef struct meeting {
    VkSemaphore vulkan;
    td_cu_timeline cuda;
} meeting;

static meeting meeting_new(uint64_t initial)
{
    meeting it = {0};
    char why[256] = "";
    int fd = -1;

    must(td_vk_timeline_create(vk, initial, true, &it.vulkan, why, sizeof why), why);
    must(td_vk_timeline_export_fd(vk, it.vulkan, &fd, why, sizeof why), why);
    must(td_cu_timeline_import_fd(device, fd, &it.cuda, why, sizeof why), why);
    assert_true(fcntl(fd, F_GETFD) >= 0); /* the import took a duplicate */
    close(fd);
    return it;
}

static void meeting_free(meeting *it)
{
    td_cu_timeline_free(device, &it->cuda);
    td_vk_timeline_destroy(vk, &it->vulkan);
}

static td_cu_mem import_mem(const td_vk_mem *mem)
{
    td_cu_mem it;
    char why[256] = "";
    int fd = -1;

    must(td_vk_mem_export_fd(vk, mem, &fd, why, sizeof why), why);
    must(td_cu_mem_import_fd(device, fd, mem->allocation_bytes, mem->dedicated, mem->offset, mem->bytes, &it, why,
                             sizeof why),
         why);
    assert_true(fcntl(fd, F_GETFD) >= 0);
    close(fd);
    assert_int_equal(it.bytes, mem->bytes);
    return it;
}

/* The descriptors that stay open are the driver's own, and as many as before. */
static void test_vulkan_leaks_nothing(void **state)
{
    int fds = 0;
    char why[256] = "";

    (void)state;
    if (!vk)
        skip();
    for (int i = 0; i < 60; i++) {
        meeting timeline = meeting_new((uint64_t)i);
        td_vk_mem shared;
        td_cu_mem mem;
        unsigned char byte = (unsigned char)i, back = 0;

        must(td_vk_mem_create_export(vk, 1 << 20, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT, &shared, why, sizeof why), why);
        mem = import_mem(&shared);
        must(td_cu_copy_to_device(device, mem.address + 12345, &byte, 1), "copy");
        must(td_cu_copy_to_host(device, &back, mem.address + 12345, 1), "copy");
        assert_int_equal(byte, back);
        td_cu_mem_free(device, &mem);
        td_vk_mem_free(vk, &shared);
        meeting_free(&timeline);
        if (i == 5)
            fds = count_fds();
        if (i > 5)
            assert_int_equal(count_fds(), fds);
    }
}

/* Vulkan writes Q, K, V and signals; CUDA waits, attends, signals; Vulkan waits and reads O. All in one shared mem. */
static void test_vulkan_frames(void **state)
{
    enum { FRAMES = 20, PART = 1 << 18 };
    const tu_shape shape = {.heads = 2, .q_len = 64, .kv_len = 300, .head_dim = 64, .seed = 800};
    td_target target = td_target_for_sm(td_cu_device_info(device)->sm);
    uint64_t sequence = 0, value = 0;
    td_cu_counts before, after;
    meeting in, out, done;
    vku_buffer staging;
    td_vk_mem shared;
    td_cu_mem mem;
    tu_case it;
    bool signalled;
    char why[256] = "";

    (void)state;
    if (!vk)
        skip();
    tu_case_init(&it, &shape);
    must(tu_case_run(&it, &target, THREADS), "the twin");
    tu_tensor o = tu_tensor_like(&it.o);
    in = meeting_new(0);
    out = meeting_new(0);
    done = meeting_new(0);
    must(td_vk_mem_create_export(vk, 4 * PART + it.plan.scratch_bytes,
                                 VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                     VK_BUFFER_USAGE_TRANSFER_DST_BIT,
                                 &shared, why, sizeof why),
         why);
    mem = import_mem(&shared);
    assert_int_equal(vku_buffer_create(&gpu, 4 * PART,
                                       VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT, &staging),
                     VK_SUCCESS);
    const tu_tensor *inputs[3] = {&it.q, &it.k, &it.v};
    uint64_t views[TU_VIEWS] = {0};
    for (uint64_t i = 0; i < 4; i++)
        views[i] = mem.address + i * PART;
    for (uint64_t frame = 1; frame <= FRAMES; frame++) {
        const td_stream_point wait = {.cu = &in.cuda, .value = frame}, signal = {.cu = &out.cuda, .value = frame};
        const td_stream_submit submit = {.plan = &it.plan,
                                         .views = views,
                                         .scratch = mem.address + 4 * PART,
                                         .wait = &wait,
                                         .signal = &signal,
                                         .label = "frame"};
        const VkBufferCopy all = {.size = 4 * PART},
                           back = {.srcOffset = 3 * PART, .dstOffset = 3 * PART, .size = PART};

        memset(staging.host, TU_POISON, 4 * PART);
        for (uint64_t i = 0; i < 3; i++)
            memcpy((char *)staging.host + i * PART, inputs[i]->data, inputs[i]->bytes);
        before = td_cu_device_counts(device);
        must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
        assert_true(signalled);
        after = td_cu_device_counts(device);
        if (frame > 1) {
            assert_int_equal(after.copies - before.copies, 0);
            assert_int_equal(after.allocations - before.allocations, 0);
            assert_int_equal(after.host_waits - before.host_waits, 0);
            /* wait, signal, event, push, pop; and the launch of a graph, or stamps and records */
            assert_int_equal(after.all - before.all, graphs ? 6 : it.plan.record_count + 7);
        }
        usleep(2000);
        assert_true(td_stream_completed(stream) < sequence); /* it waits */
        must(td_vk_timeline_value(vk, out.vulkan, &value), "value");
        assert_int_equal(value, frame - 1);

        VkCommandBuffer commands = vku_begin(&gpu);
        if (frame > 1)
            td_vk_record_acquire(vk, commands, &shared, true, VK_PIPELINE_STAGE_TRANSFER_BIT,
                                 VK_ACCESS_TRANSFER_WRITE_BIT);
        gpu.CmdCopyBuffer(commands, staging.buffer, shared.buffer, 1, &all);
        td_vk_record_release(vk, commands, &shared, true, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT);
        assert_int_equal(vku_submit(&gpu, commands, (vku_point){0}, (vku_point){in.vulkan, frame}, VK_NULL_HANDLE),
                         VK_SUCCESS);
        commands = vku_begin(&gpu);
        td_vk_record_acquire(vk, commands, &shared, true, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT);
        gpu.CmdCopyBuffer(commands, shared.buffer, staging.buffer, 1, &back);
        vku_full_barrier(&gpu, commands);
        td_vk_record_release(vk, commands, &shared, true, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT);
        assert_int_equal(
            vku_submit(&gpu, commands, (vku_point){out.vulkan, frame}, (vku_point){done.vulkan, frame}, VK_NULL_HANDLE),
            VK_SUCCESS);
        must(td_vk_timeline_wait(vk, done.vulkan, frame, 5000000000u), "done");
        assert_int_equal(td_stream_completed(stream), sequence); /* the stamp comes before the signal */
        memcpy(o.data, (char *)staging.host + 3 * PART, o.bytes);
        assert_true(tu_distance(&o, &it.o) <= 1e-4);
    }
    vku_buffer_destroy(&gpu, &staging);
    td_cu_mem_free(device, &mem);
    td_vk_mem_free(vk, &shared);
    meeting_free(&in);
    meeting_free(&out);
    meeting_free(&done);
    tu_tensor_free(&o);
    tu_case_free(&it);
}

/* --- What is new in each frame --- */

enum { REPLAY_SHAPES = 3, REPLAY_SETS = 2 };

static void check_values(const tu_tensor *got, const tu_tensor *want, int frame)
{
    const double l1 = tu_distance(got, want);

    if (!(l1 <= 1e-4))
        fail_msg("frame %d: O is %g from the twin's", frame, l1);
}

/* Fresh data in the same buffers, shapes and addresses that change, with and without points: nothing may be left of an
 * earlier frame. */
static void test_replay(void **state)
{
    static const tu_shape shapes[REPLAY_SHAPES] = {
        {.heads = 2, .q_len = 64, .kv_len = 300, .head_dim = 64},
        {.heads = 2, .q_len = 130, .kv_len = 200, .head_dim = 32, .causal = 1, .precision = TANDEM_PRECISION_F16},
        {.heads = 3, .q_len = 64, .kv_len = 300, .head_dim = 64, .precision = TANDEM_PRECISION_4B},
    };
    const size_t view_bytes = 1 << 18, scratch_bytes = 1 << 23;
    const int frames = quick ? 12 : 50;
    td_cu_mem views_of[REPLAY_SETS][TU_VIEWS], scratch[REPLAY_SETS];
    uint64_t random = 99, value = 0;
    meeting in = {0}, out = {0};
    char why[256] = "";

    (void)state;
    for (int set = 0; set < REPLAY_SETS; set++) {
        for (int i = 0; i < TU_VIEWS; i++)
            must(td_cu_mem_alloc(device, view_bytes, &views_of[set][i], why, sizeof why), why);
        must(td_cu_mem_alloc(device, scratch_bytes, &scratch[set], why, sizeof why), why);
    }
    if (vk) {
        in = meeting_new(0);
        out = meeting_new(0);
    }
    for (int frame = 0; frame < frames; frame++) {
        tu_shape shape = shapes[frame < frames / 2 ? 0 : (int)(tu_random(&random) % REPLAY_SHAPES)];
        const int set = frame < frames / 4 ? 0 : (int)(tu_random(&random) % REPLAY_SETS);
        const bool meets = vk && tu_random(&random) % 2;
        const td_target target = target_here();
        const td_stream_point wait = {.cu = &in.cuda, .value = value + 1 + tu_random(&random) % 5},
                              signal = {.cu = &out.cuda, .value = wait.value};
        td_stream_submit submit = {.scratch = scratch[set].address, .slot = (uint32_t)frame % 2};
        uint64_t views[TU_VIEWS] = {0}, sequence;
        bool signalled;
        tu_tensor o;
        tu_case it;

        shape.seed = 5000 + (uint64_t)frame;
        shape.lse = 1;
        tu_case_init(&it, &shape);
        must(tu_case_run(&it, &target, THREADS), "the twin");
        assert_true(it.plan.scratch_bytes <= scratch_bytes);
        o = tu_tensor_like(&it.o);
        tu_poison(&o);
        const tu_tensor *tensors[TU_VIEWS] = {&it.q, &it.k, &it.v, &o, &it.lse};
        for (int i = 0; i < TU_VIEWS; i++) {
            assert_true(tensors[i]->bytes + TU_GUARD_BYTES <= view_bytes);
            views[i] = views_of[set][i].address;
            must(td_cu_copy_to_device(device, views[i], tensors[i]->data, tensors[i]->bytes + TU_GUARD_BYTES), "copy");
        }
        submit.plan = &it.plan;
        submit.views = views;
        if (meets) {
            submit.wait = &wait;
            submit.signal = &signal;
        }
        must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
        assert_int_equal(signalled, meets);
        if (meets) {
            usleep(1000);
            assert_false(td_stream_begun(stream, sequence));
            assert_int_equal(td_stream_progress(stream, sequence), 0);
            must(td_vk_timeline_signal(vk, in.vulkan, wait.value), "signal");
        }
        must(td_stream_wait(stream, sequence), "wait");
        assert_true(td_stream_begun(stream, sequence));
        assert_int_equal(td_stream_completed(stream), sequence);
        assert_int_equal(td_stream_progress(stream, sequence), it.plan.record_count);
        if (meets) {
            must(td_vk_timeline_value(vk, out.vulkan, &value), "value");
            assert_int_equal(value, signal.value);
        }
        must(td_cu_copy_to_host(device, o.data, views[TD_VIEW_O], o.bytes + TU_GUARD_BYTES), "copy");
        assert_int_equal(tu_spoilt(&o), 0);
        check_values(&o, &it.o, frame);
        tu_tensor_free(&o);
        tu_case_free(&it);
    }
    for (int set = 0; set < REPLAY_SETS; set++) {
        for (int i = 0; i < TU_VIEWS; i++)
            td_cu_mem_free(device, &views_of[set][i]);
        td_cu_mem_free(device, &scratch[set]);
    }
    if (vk) {
        meeting_free(&in);
        meeting_free(&out);
    }
}

/* A submit that is given up while it waits writes nothing; the next of its slot does. */
static void test_cancel(void **state)
{
    const tu_shape shape = {.heads = 2, .q_len = 64, .kv_len = 300, .head_dim = 64, .seed = 900};
    const td_target target = target_here();
    uint64_t sequence, value = 0, begin;
    bool signalled;
    char why[256] = "";
    tu_tensor o, lse;
    gpu_case on_gpu;
    tu_case it;

    (void)state;
    if (!vk)
        skip();
    tu_case_init(&it, &shape);
    must(tu_case_run(&it, &target, THREADS), "the twin");
    o = tu_tensor_like(&it.o);
    lse = tu_tensor_like(&it.lse);
    gpu_case_run(&on_gpu, &it, &o, &lse);
    meeting in = meeting_new(0), out = meeting_new(0);
    for (uint64_t frame = 1; frame <= 10; frame++) {
        const bool cancelled = frame % 3 != 0;
        const td_stream_point wait = {.cu = &in.cuda, .value = frame}, signal = {.cu = &out.cuda, .value = frame};
        const td_stream_submit submit = {.plan = &it.plan,
                                         .views = on_gpu.views,
                                         .scratch = on_gpu.scratch.address,
                                         .wait = &wait,
                                         .signal = &signal};

        tu_poison(&o);
        must(td_cu_copy_to_device(device, on_gpu.views[TD_VIEW_O], o.data, o.bytes), "copy");
        must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
        assert_int_equal(td_stream_control(stream, sequence)->cancel, 0);
        if (cancelled) {
            td_stream_cancel(stream, sequence);
            assert_int_equal(td_stream_control(stream, sequence)->cancel, 1);
            usleep(3000);
        }
        must(td_vk_timeline_signal(vk, in.vulkan, frame), "signal");
        must(td_stream_wait(stream, sequence), "wait");
        for (begin = td_now_ns(); value < frame;) { /* whatever became of it */
            assert_true(td_now_ns() - begin < run_limit_ns);
            must(td_vk_timeline_value(vk, out.vulkan, &value), "value");
        }
        must(td_cu_copy_to_host(device, o.data, on_gpu.views[TD_VIEW_O], o.bytes), "copy");
        if (!cancelled)
            check_values(&o, &it.o, (int)frame);
        for (size_t i = 0; cancelled && i < o.bytes; i++)
            assert_int_equal(((unsigned char *)o.data)[i], TU_POISON);
        td_stream_cancel(stream, sequence); /* too late: nothing happens */
    }
    meeting_free(&in);
    meeting_free(&out);
    gpu_case_free(&on_gpu);
    tu_tensor_free(&o);
    tu_tensor_free(&lse);
    tu_case_free(&it);
}

/* Inputs from the host and outputs to it, three in flight, in device memory of one each or of all. */
static void test_copies(void **state)
{
    enum { SLOTS = 3, CASES = 5, PART = 1 << 18 };
    const td_target target = target_here();
    const int frames = quick ? 12 : 60;
    td_cu_mem memory[SLOTS], host[SLOTS], scratch;
    uint64_t sequences[SLOTS] = {0};
    int case_of[SLOTS] = {0};
    tu_case cases[CASES];
    td_stream *own; /* once a stream has copied, it launches no graphs */
    char why[256] = "";

    (void)state;
    must((graphs ? td_stream_create_graph : td_stream_create)(device, NULL, &own, why, sizeof why), why);
    for (int i = 0; i < CASES; i++) {
        const tu_shape shape = {.heads = 2, .q_len = 64, .kv_len = 300, .head_dim = 64, .seed = 950 + (uint64_t)i};

        tu_case_init(&cases[i], &shape);
        must(tu_case_run(&cases[i], &target, THREADS), "the twin");
        assert_true(cases[i].k.bytes <= PART);
    }
    must(td_cu_mem_alloc(device, cases[0].plan.scratch_bytes, &scratch, why, sizeof why), why);
    for (int i = 0; i < SLOTS; i++) {
        must(td_cu_mem_alloc(device, 4 * PART, &memory[i], why, sizeof why), why);
        must(td_cu_mem_alloc_host(device, 4 * PART, &host[i], why, sizeof why), why);
    }
    for (int frame = 0; frame < 2 * frames + SLOTS; frame++) {
        const int slot = frame % SLOTS, number = frame % CASES;
        const uint64_t address = memory[frame < frames ? 0 : slot].address;
        const tu_case *it = &cases[number];
        const tu_tensor *inputs[3] = {&it->q, &it->k, &it->v};
        td_stream_copy in[3], out = {address + 3 * PART, (char *)host[slot].host + 3 * PART, it->o.bytes};
        uint64_t views[TU_VIEWS] = {address, address + PART, address + 2 * PART, address + 3 * PART};
        const td_stream_submit submit = {.plan = &it->plan,
                                         .views = views,
                                         .scratch = scratch.address,
                                         .copies_in = in,
                                         .copies_out = &out,
                                         .copy_in_count = 3,
                                         .copy_out_count = 1,
                                         .slot = (uint32_t)slot};
        bool signalled;

        if (sequences[slot]) {
            tu_tensor o = cases[case_of[slot]].o;

            must(td_stream_wait(own, sequences[slot]), "wait");
            o.data = (char *)host[slot].host + 3 * PART;
            check_values(&o, &cases[case_of[slot]].o, frame - SLOTS);
        }
        if (frame >= 2 * frames)
            continue;
        case_of[slot] = number;
        memset((char *)host[slot].host + 3 * PART, TU_POISON, PART);
        for (int i = 0; i < 3; i++) {
            memcpy((char *)host[slot].host + i * PART, inputs[i]->data, inputs[i]->bytes);
            in[i] = (td_stream_copy){address + (uint64_t)i * PART, (char *)host[slot].host + i * PART, inputs[i]->bytes};
        }
        must(td_stream_enqueue(own, &submit, &sequences[slot], &signalled, why, sizeof why), why);
    }
    td_stream_destroy(&own, 1000000000u);
    for (int i = 0; i < SLOTS; i++) {
        td_cu_mem_free(device, &memory[i]);
        td_cu_mem_free(device, &host[i]);
    }
    td_cu_mem_free(device, &scratch);
    for (int i = 0; i < CASES; i++)
        tu_case_free(&cases[i]);
}

/* --- A peer that dies --- */

static int pass_fd(int socket, int *fd, bool sends)
{
    char byte = 0, control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    if (sends) {
        memcpy(CMSG_DATA(header), fd, sizeof *fd);
        return sendmsg(socket, &message, 0) == 1 ? 0 : -1;
    }
    if (recvmsg(socket, &message, 0) != 1 || !CMSG_FIRSTHDR(&message))
        return -1;
    memcpy(fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof *fd);
    return 0;
}

/* The other process: owns a timeline, gives it away, and waits for its end. */
static int be_peer(int socket)
{
    VkSemaphore timeline;
    char why[256] = "";
    int fd;

    if (vku_open(&gpu, NULL) != VKU_OK)
        return 1;
    const td_vk_desc desc = vku_desc(&gpu);
    if (td_vk_open(&desc, NULL, &vk, why, sizeof why) || td_vk_timeline_create(vk, 0, true, &timeline, why, sizeof why) ||
        td_vk_timeline_export_fd(vk, timeline, &fd, why, sizeof why) || pass_fd(socket, &fd, true)) {
        fprintf(stderr, "the peer: %s\n", why);
        return 1;
    }
    sleep(60);
    return 1;
}

/* The stream goes on waiting, without an error, until somebody else who holds the timeline signals it. */
static void test_peer_dies(void **state)
{
    static const td_plan nothing;
    const uint64_t views[TU_VIEWS] = {0};
    const VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                            .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    const VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
    VkSemaphore mine = VK_NULL_HANDLE;
    PFN_vkImportSemaphoreFdKHR import;
    int sockets[2], fd = -1, ended;
    td_cu_timeline theirs;
    char why[256] = "", number[12];
    uint64_t sequence, value = 99, begin;
    td_stream *own;
    bool signalled;
    pid_t peer;

    (void)state;
    if (!vk)
        skip();
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    snprintf(number, sizeof number, "%d", sockets[1]);
    fflush(NULL);
    peer = fork();
    assert_true(peer >= 0);
    if (!peer) {
        execl("/proc/self/exe", "test_cuda", "--peer", number, (char *)NULL);
        _exit(127);
    }
    close(sockets[1]);
    assert_int_equal(pass_fd(sockets[0], &fd, false), 0);
    must(td_cu_timeline_import_fd(device, fd, &theirs, why, sizeof why), why);
    must((graphs ? td_stream_create_graph : td_stream_create)(device, NULL, &own, why, sizeof why), why);
    const td_stream_point wait = {.cu = &theirs, .value = 7};
    const td_stream_submit submit = {.plan = &nothing, .views = views, .wait = &wait};
    must(td_stream_enqueue(own, &submit, &sequence, &signalled, why, sizeof why), why);
    usleep(20000);
    assert_int_equal(td_stream_completed(own), 0);
    assert_int_equal(kill(peer, SIGKILL), 0);
    assert_int_equal(waitpid(peer, &ended, 0), peer);
    usleep(300000);
    must(td_stream_status(own, why, sizeof why), why);
    assert_false(td_stream_begun(own, sequence));
    assert_false(td_stream_drain(own, 0));

    import = (PFN_vkImportSemaphoreFdKHR)gpu.GetDeviceProcAddr(gpu.device, "vkImportSemaphoreFdKHR");
    assert_non_null(import);
    assert_int_equal(gpu.CreateSemaphore(gpu.device, &info, NULL, &mine), VK_SUCCESS);
    const VkImportSemaphoreFdInfoKHR from = {.sType = VK_STRUCTURE_TYPE_IMPORT_SEMAPHORE_FD_INFO_KHR,
                                             .semaphore = mine,
                                             .handleType = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT,
                                             .fd = fd};
    assert_int_equal(import(gpu.device, &from), VK_SUCCESS); /* the fd is its own now */
    must(td_vk_timeline_value(vk, mine, &value), "value");
    assert_int_equal(value, 0);
    begin = td_now_ns();
    must(td_vk_timeline_signal(vk, mine, 7), "signal");
    must(td_stream_wait(own, sequence), "wait");
    print_message("    %.0f us after the timeline of a peer that died was signalled for it, the stream was free\n",
                  (double)(td_now_ns() - begin) / 1e3);
    assert_int_equal(td_stream_completed(own), sequence);
    td_stream_destroy(&own, 1000000000u);
    td_cu_timeline_free(device, &theirs);
    gpu.DestroySemaphore(gpu.device, mine, NULL);
    close(sockets[0]);
}

static unsigned warnings;

static void count_warnings(void *user, int level, const char *text)
{
    (void)user;
    warnings += level <= TD_LOG_WARN && strstr(text, "left behind");
}

/* A peer that never signals: nobody blocks, the queue has an end, and a stream can be given up. */
static void test_stuck_stream(void **state)
{
    static td_plan plan; /* nothing but stamps */
    const uint64_t views[TU_VIEWS] = {0};
    const td_log log = {.fn = count_warnings};
    uint64_t sequence = 0, value, begin;
    td_stream *stuck;
    bool signalled;
    char why[256] = "";

    (void)state;
    if (!vk)
        skip();
    meeting never = meeting_new(0), out = meeting_new(0);
    const td_stream_point at7 = {.cu = &never.cuda, .value = 7}, at8 = {.cu = &never.cuda, .value = 8};
    const td_stream_submit waits = {.plan = &plan, .views = views, .wait = &at7};
    must((graphs ? td_stream_create_graph : td_stream_create)(device, &log, &stuck, why, sizeof why), why);
    begin = td_now_ns();
    for (uint64_t i = 1;; i++) {
        const td_stream_point signal = {.cu = &out.cuda, .value = i};
        td_stream_submit submit = waits;

        submit.signal = &signal;
        const tandem_status status = td_stream_enqueue(stuck, &submit, &sequence, &signalled, why, sizeof why);
        if (status == TANDEM_ERROR_BUSY) {
            assert_true(i > 8 && i < 100);
            assert_false(signalled);
            break;
        }
        must(status, why);
        assert_int_equal(sequence, i);
    }
    assert_true(td_now_ns() - begin < 1000000000u);
    assert_int_equal(td_stream_completed(stuck), 0);
    must(td_stream_status(stuck, why, sizeof why), why); /* waiting is no error */
    must(td_vk_timeline_signal(vk, never.vulkan, 7), "signal");
    for (begin = td_now_ns(); td_stream_completed(stuck) < sequence;)
        assert_true(td_now_ns() - begin < run_limit_ns);
    for (value = 0; value < sequence;) {
        assert_true(td_now_ns() - begin < run_limit_ns);
        must(td_vk_timeline_value(vk, out.vulkan, &value), "value");
    }
    assert_int_equal(value, sequence);

    const td_stream_submit again = {.plan = &plan, .views = views, .wait = &at8};
    must(td_stream_enqueue(stuck, &again, &sequence, &signalled, why, sizeof why), why);
    warnings = 0;
    begin = td_now_ns();
    td_stream_destroy(&stuck, 30000000);
    assert_null(stuck);
    assert_true(td_now_ns() - begin < 1000000000u);
    assert_int_equal(warnings, 1);
    must(td_vk_timeline_signal(vk, never.vulkan, 8), "signal"); /* lets it end after all */
    usleep(50000);
    meeting_free(&never);
    meeting_free(&out);
}

static bool open_vulkan(void)
{
    char why[256] = "";

    if (vku_open(&gpu, NULL) != VKU_OK) {
        fprintf(stderr, "no Vulkan device\n");
        return false;
    }
    const td_vk_desc desc = vku_desc(&gpu);
    if (td_vk_open(&desc, NULL, &vk, why, sizeof why)) {
        fprintf(stderr, "no Vulkan session: %s\n", why);
        return false;
    }
    if (memcmp(td_vk_get_caps(vk)->device_uuid, td_cu_device_info(device)->uuid, 16)) {
        fprintf(stderr, "%s is not the CUDA device\n", gpu.name);
        td_vk_close(&vk);
        return false;
    }
    return true;
}

/* --- Times --- */

/* None where a plan needs none, as f16's that reads the tensors as they are. */
static void alloc_scratch(const td_plan *plan, td_cu_mem *out)
{
    char why[256];

    *out = (td_cu_mem){0};
    if (plan->scratch_bytes)
        must(td_cu_mem_alloc(device, plan->scratch_bytes, out, why, sizeof why), why);
}

static void bench_case(const char *name, const tandem_attention *op)
{
    const tandem_view *views_of[TU_VIEWS] = {&op->q, &op->k, &op->v, &op->o, &op->lse};
    const td_target target = td_target_for_stream(td_cu_device_info(device)->sm);
    uint64_t views[TU_VIEWS] = {0}, sequence, begin_ns, end_ns, state = 1;
    td_cu_mem mems[TU_VIEWS] = {{0}}, scratch;
    static td_plan plan, one;
    double total_ms = 0;
    bool signalled;
    char why[256];

    must(td_attention_check(op, why, sizeof why), why);
    must(td_plan_attention(op, &target, &plan, NULL, why, sizeof why), why);
    const size_t piece = 1 << 20;
    uint16_t *noise = malloc(piece * 2);
    assert_non_null(noise);
    for (size_t i = 0; i < piece; i++)
        noise[i] = td_to_f16((float)tu_normal(&state));
    for (int i = 0; i < TU_VIEWS; i++) {
        const bool kv = i == TD_VIEW_K || i == TD_VIEW_V;
        const uint64_t bytes = td_view_extent_bytes(views_of[i], op->batch, kv ? op->kv_heads : op->heads,
                                                    kv ? op->kv_len : op->q_len, op->head_dim);

        if (!bytes)
            continue;
        must(td_cu_mem_alloc(device, bytes, &mems[i], why, sizeof why), why);
        views[i] = mems[i].address;
        for (uint64_t at = 0; at < bytes; at += piece * 2)
            must(td_cu_copy_to_device(device, mems[i].address + at, noise,
                                      bytes - at < piece * 2 ? bytes - at : piece * 2),
                 "copy");
    }
    alloc_scratch(&plan, &scratch);
    const double flop = 4.0 * op->batch * op->heads * op->q_len * op->kv_len * op->head_dim;
    print_message("%s: b%u h%u q%u kv%u d%u, scratch %.1f MB\n", name, op->batch, op->heads, op->q_len, op->kv_len,
                  op->head_dim, (double)plan.scratch_bytes / 1e6);
    for (uint32_t i = 0; i <= plan.record_count; i++) {
        const bool all = i == plan.record_count; /* the plan as it is */
        const uint32_t repeats = all ? 1 : 8;
        double best_ms = 1e9;

        td_plan_reset(&one);
        for (uint32_t r = 0; r < (all ? plan.record_count : repeats); r++)
            assert_non_null(td_plan_append(&one, &plan.records[all ? r : i]));
        td_plan_barriers(&one);
        const td_stream_submit submit = {.plan = &one, .views = views, .scratch = scratch.address, .label = name};
        for (int round = 0; round < 5; round++) {
            must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
            wait_for(sequence);
            assert_true(td_stream_times(stream, sequence, &begin_ns, &end_ns));
            const double ms = (double)(end_ns - begin_ns) / 1e6 / repeats;
            if (ms < best_ms)
                best_ms = ms;
        }
        if (all)
            print_message("  %-22s %8.4f ms  (kernels alone %.4f)\n", "the whole plan", best_ms, total_ms);
        else
            print_message("  %-22s %8.4f ms", plan.records[i].kernel->entry, best_ms);
        if (!all && i + 1 == plan.record_count)
            print_message("  %7.1f TFLOPS", flop / best_ms / 1e9);
        if (!all)
            print_message("\n");
        total_ms += best_ms;
    }
    must(td_stream_status(stream, why, sizeof why), why);
    for (int i = 0; i < TU_VIEWS; i++)
        td_cu_mem_free(device, &mems[i]);
    td_cu_mem_free(device, &scratch);
    free(noise);
}

static tandem_attention bench_op(uint32_t batch, uint32_t heads, uint32_t q_len, uint32_t kv_len, uint32_t dim,
                                 uint32_t precision)
{
    tandem_attention op = {.batch = batch,
                           .heads = heads,
                           .kv_heads = heads,
                           .q_len = q_len,
                           .kv_len = kv_len,
                           .head_dim = dim,
                           .precision = precision};
    const tandem_view rows_q = {.dtype = TANDEM_DTYPE_F16,
                                .stride_batch = (int64_t)heads * q_len * dim,
                                .stride_head = (int64_t)q_len * dim,
                                .stride_row = dim};
    const tandem_view rows_k = {.dtype = TANDEM_DTYPE_F16,
                                .stride_batch = (int64_t)heads * kv_len * dim,
                                .stride_head = (int64_t)kv_len * dim,
                                .stride_row = dim};

    op.q = op.o = rows_q;
    op.k = op.v = rows_k;
    return op;
}

static void test_bench(void **state)
{
    static const struct {
        const char *name;
        uint32_t batch, heads, q_len, kv_len, dim;
    } shapes[] = {{"b4 h32 4k d64", 4, 32, 4096, 4096, 64},
                  {"b4 h32 4k d128", 4, 32, 4096, 4096, 128},
                  {"windows of an effect", 2025, 1, 256, 1024, 32},
                  {"b4 h8 4k d256", 4, 8, 4096, 4096, 256}};

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (uint32_t f16 = 0; f16 < 2; f16++) {
            char name[64];
            const tandem_attention op = bench_op(shapes[i].batch, shapes[i].heads, shapes[i].q_len, shapes[i].kv_len,
                                                 shapes[i].dim, f16 ? TANDEM_PRECISION_F16 : TANDEM_PRECISION_8B);

            snprintf(name, sizeof name, "%s, %s", shapes[i].name, f16 ? "f16" : "8b");
            bench_case(name, &op);
        }
}

/* The same on shapes of no size, among the tests: a bench that breaks is else seen only where somebody measures. */
static void test_bench_small(void **state)
{
    static const uint32_t dims[] = {32, 64, 96, 128, 256}, both[] = {TANDEM_PRECISION_F16, TANDEM_PRECISION_8B};
    const uint64_t held = td_cu_device_allocated_bytes(device);

    (void)state;
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (size_t p = 0; p < sizeof both / sizeof *both; p++) {
            const tandem_attention op = bench_op(1, 2, 256, 256, dims[i], both[p]);

            bench_case(both[p] == TANDEM_PRECISION_F16 ? "small, f16" : "small, 8b", &op);
        }
    assert_int_equal(td_cu_device_allocated_bytes(device), held);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double part_of(double *values, int count, double part)
{
    qsort(values, (size_t)count, sizeof *values, by_size);
    return values[(int)((count - 1) * part)];
}

/* What a frame costs the thread that submits it: 20 records that compute nothing to speak of. */
static void test_bench_enqueue(void **state)
{
    enum { RECORDS = 20, FRAMES = 500 };
    const tu_shape shape = {.heads = 1, .q_len = 64, .kv_len = 64, .head_dim = 64, .seed = 1};
    const td_target target = td_target_for_sm(td_cu_device_info(device)->sm);
    static double plain_us[FRAMES], pending_us[FRAMES], gpu_us[FRAMES];
    uint64_t sequence = 0, value = 0, begin, begin_ns, end_ns, views[TU_VIEWS] = {0};
    td_cu_mem mems[TU_VIEWS] = {{0}}, scratch;
    static td_plan plan;
    td_stream *own;
    bool signalled;
    char why[256];
    tu_case it;

    (void)state;
    tu_case_init(&it, &shape);
    must(td_plan_attention(&it.op, &target, &plan, NULL, why, sizeof why), why);
    tu_case_free(&it);
    const uint32_t own_records = plan.record_count;
    while (plan.record_count < RECORDS)
        assert_non_null(td_plan_append(&plan, &plan.records[plan.record_count % own_records]));
    for (int i = 0; i < TU_VIEWS; i++) {
        must(td_cu_mem_alloc(device, 1 << 16, &mems[i], why, sizeof why), why);
        views[i] = mems[i].address;
    }
    alloc_scratch(&plan, &scratch);
    for (int kind = 0; kind < 2; kind++) {
        meeting in = {0}, out = {0};

        must((kind ? td_stream_create_graph : td_stream_create)(device, NULL, &own, why, sizeof why), why);
        if (vk) {
            in = meeting_new(0);
            out = meeting_new(0);
        }
        value = 0;
        for (int frame = -50; frame < FRAMES; frame++) {
            const td_stream_point wait = {.cu = &in.cuda, .value = ++value}, signal = {.cu = &out.cuda, .value = value};
            const td_stream_submit submit = {.plan = &plan,
                                             .views = views,
                                             .scratch = scratch.address,
                                             .wait = vk ? &wait : NULL,
                                             .signal = vk ? &signal : NULL,
                                             .slot = (uint32_t)value % 3};
            const bool pends = vk && frame % 2;

            if (vk && !pends)
                must(td_vk_timeline_signal(vk, in.vulkan, value), "signal");
            begin = td_now_ns();
            must(td_stream_enqueue(own, &submit, &sequence, &signalled, why, sizeof why), why);
            if (frame >= 0)
                (pends ? pending_us : plain_us)[frame / 2] = (double)(td_now_ns() - begin) / 1e3;
            if (pends)
                must(td_vk_timeline_signal(vk, in.vulkan, value), "signal");
            while (td_stream_completed(own) < sequence)
                assert_true(td_now_ns() - begin < run_limit_ns);
            assert_true(td_stream_times(own, sequence, &begin_ns, &end_ns));
            if (frame >= 0)
                gpu_us[frame] = (double)(end_ns - begin_ns) / 1e3;
        }
        print_message("%s, %d records%s: enqueue p50 %.1f p99 %.1f us (wait still open: %.1f, %.1f); %.1f us on the GPU\n",
                      kind ? "graph" : "launches", RECORDS, vk ? ", wait and signal" : "", part_of(plain_us, FRAMES / 2, .5),
                      part_of(plain_us, FRAMES / 2, .99), vk ? part_of(pending_us, FRAMES / 2, .5) : 0,
                      vk ? part_of(pending_us, FRAMES / 2, .99) : 0, part_of(gpu_us, FRAMES, .5));
        td_stream_destroy(&own, 1000000000u);
        if (vk) {
            meeting_free(&in);
            meeting_free(&out);
        }
    }
    for (int i = 0; i < TU_VIEWS; i++)
        td_cu_mem_free(device, &mems[i]);
    td_cu_mem_free(device, &scratch);
}

/* One thread spins and so knows when a submit was finished; the other one sleeps. */
typedef struct sleeper {
    td_stream *stream;
    uint64_t count;
    sem_t submitted;
    uint64_t *woken_ns;
    double cpu_ns;
} sleeper;

static void *sleep_on(void *user)
{
    struct timespec begin, end;
    sleeper *it = user;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    for (uint64_t i = 1; i <= it->count; i++) {
        sem_wait(&it->submitted);
        td_stream_wait(it->stream, i);
        it->woken_ns[i] = td_now_ns();
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    it->cpu_ns = (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
    return NULL;
}

static void test_bench_wait(void **state)
{
    enum { SUBMITS = 720, RATE = 240 };
    const tandem_attention op = bench_op(1, 8, 8192, 8192, 64, TANDEM_PRECISION_8B);
    const td_target target = td_target_for_sm(td_cu_device_info(device)->sm);
    static uint64_t woken_ns[SUBMITS + 1], done_ns[SUBMITS + 1];
    static double late_us[SUBMITS];
    td_cu_mem mem, scratch;
    static td_plan plan;
    td_stream *own;
    bool signalled;
    char why[256];
    uint64_t next;

    (void)state;
    must(td_plan_attention(&op, &target, &plan, NULL, why, sizeof why), why);
    must(td_cu_mem_alloc(device, 4 << 23, &mem, why, sizeof why), why);
    alloc_scratch(&plan, &scratch);
    const uint64_t views[TU_VIEWS] = {mem.address, mem.address + (1 << 23), mem.address + (2 << 23),
                                           mem.address + (3 << 23)};
    for (int kind = 0; kind < 2; kind++) {
        pthread_t thread;

        must((kind ? td_stream_create_graph : td_stream_create)(device, NULL, &own, why, sizeof why), why);
        sleeper it = {.stream = own, .count = SUBMITS, .woken_ns = woken_ns};
        assert_int_equal(sem_init(&it.submitted, 0, 0), 0);
        assert_int_equal(pthread_create(&thread, NULL, sleep_on, &it), 0);
        next = td_now_ns();
        for (uint64_t i = 1; i <= SUBMITS; i++) {
            const td_stream_submit submit = {.plan = &plan, .views = views, .scratch = scratch.address};
            uint64_t sequence;

            next += 1000000000u / RATE;
            while (td_now_ns() < next)
                usleep(100);
            must(td_stream_enqueue(own, &submit, &sequence, &signalled, why, sizeof why), why);
            sem_post(&it.submitted);
            while (td_stream_completed(own) < sequence)
                ;
            done_ns[i] = td_now_ns();
        }
        pthread_join(thread, NULL);
        sem_destroy(&it.submitted);
        for (int i = 0; i < SUBMITS; i++)
            late_us[i] = woken_ns[i + 1] > done_ns[i + 1] ? (double)(woken_ns[i + 1] - done_ns[i + 1]) / 1e3 : 0;
        print_message("%s: woken p50 %.1f p90 %.1f p99 %.1f us after the end of a submit, %d a second, %.2f %% of a core\n",
                      kind ? "graph" : "launches", part_of(late_us, SUBMITS, .5), part_of(late_us, SUBMITS, .9),
                      part_of(late_us, SUBMITS, .99), RATE, it.cpu_ns / ((double)SUBMITS / RATE * 1e9) * 100);
        td_stream_destroy(&own, 1000000000u);
    }
    td_cu_mem_free(device, &mem);
    td_cu_mem_free(device, &scratch);
}

/* 8 MiB each way and a kernel or two between, alone and three in flight. */
static void test_bench_copies(void **state)
{
    enum { SLOTS = 3, FRAMES = 60, MIB = 1 << 20 };
    const tandem_attention op = bench_op(1, 16, 4096, 4096, 64, TANDEM_PRECISION_8B);
    const td_target target = td_target_for_sm(td_cu_device_info(device)->sm);
    td_cu_mem memory[SLOTS], host[SLOTS], scratch;
    static td_plan plan;
    td_stream *own;
    bool signalled;
    char why[256];

    (void)state;
    must(td_plan_attention(&op, &target, &plan, NULL, why, sizeof why), why);
    must(td_stream_create(device, NULL, &own, why, sizeof why), why);
    alloc_scratch(&plan, &scratch);
    for (int i = 0; i < SLOTS; i++) {
        must(td_cu_mem_alloc(device, 32 * MIB, &memory[i], why, sizeof why), why);
        must(td_cu_mem_alloc_host(device, 32 * MIB, &host[i], why, sizeof why), why);
        memset(host[i].host, 0, 32 * MIB);
    }
    for (int variant = 0; variant < 3; variant++) {
        const int flight = variant ? SLOTS : 1;
        uint64_t sequences[SLOTS] = {0}, begin = 0;

        for (int frame = -6; frame < FRAMES; frame++) {
            const int slot = (frame + 6) % flight;
            const uint64_t address = memory[variant == 2 ? slot : 0].address;
            const uint64_t views[TU_VIEWS] = {address, address + 8 * MIB, address + 16 * MIB, address + 24 * MIB};
            const td_stream_copy in = {address, host[slot].host, 24 * MIB},
                                 out = {address + 24 * MIB, (char *)host[slot].host + 24 * MIB, 8 * MIB};
            const td_stream_submit submit = {.plan = &plan,
                                             .views = views,
                                             .scratch = scratch.address,
                                             .copies_in = &in,
                                             .copies_out = &out,
                                             .copy_in_count = 1,
                                             .copy_out_count = 1,
                                             .slot = (uint32_t)slot};

            if (sequences[slot])
                must(td_stream_wait(own, sequences[slot]), "wait");
            if (frame == 0)
                begin = td_now_ns();
            must(td_stream_enqueue(own, &submit, &sequences[slot], &signalled, why, sizeof why), why);
        }
        for (int slot = 0; slot < flight; slot++)
            must(td_stream_wait(own, sequences[slot]), "wait");
        print_message("24 MiB in, 8 MiB out, %s: %.0f us a frame\n",
                      variant == 0   ? "one by one"
                      : variant == 1 ? "three in flight in the same memory"
                                     : "three in flight in memory of their own",
                      (double)(td_now_ns() - begin) / FRAMES / 1e3);
    }
    td_stream_destroy(&own, 1000000000u);
    for (int i = 0; i < SLOTS; i++) {
        td_cu_mem_free(device, &memory[i]);
        td_cu_mem_free(device, &host[i]);
    }
    td_cu_mem_free(device, &scratch);
}

static void print_log(void *user, int level, const char *text)
{
    (void)user;
    fprintf(stderr, "log %d: %s\n", level, text);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest bench[] = {cmocka_unit_test(test_bench_enqueue), cmocka_unit_test(test_bench_wait),
                                       cmocka_unit_test(test_bench_copies), cmocka_unit_test(test_bench)};
    const struct CMUnitTest kernel_by_kernel[] = {cmocka_unit_test(test_each)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_head_dims),
        cmocka_unit_test(test_direct),
        cmocka_unit_test(test_inline_wgmma),
        cmocka_unit_test(test_split_wgmma),
        cmocka_unit_test(test_walk_wgmma),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_causal_and_groups),
        cmocka_unit_test(test_many_heads),
        cmocka_unit_test(test_prepare),
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_types_and_layouts),
        cmocka_unit_test(test_smoothing),
        cmocka_unit_test(test_granularities),
        cmocka_unit_test(test_commit),
        cmocka_unit_test(test_odd_values),
        cmocka_unit_test(test_wide_blocks),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_probe),
        cmocka_unit_test(test_descriptors),
        cmocka_unit_test(test_open_and_close),
        cmocka_unit_test(test_bench_small),
        cmocka_unit_test(test_vulkan_leaks_nothing),
    };
    /* Of each kind of stream. */
    const struct CMUnitTest streams[] = {
        cmocka_unit_test(test_frame_counts), cmocka_unit_test(test_refusals), cmocka_unit_test(test_vulkan_frames),
        cmocka_unit_test(test_replay),       cmocka_unit_test(test_cancel),   cmocka_unit_test(test_copies),
        cmocka_unit_test(test_launch_features),
    };
    /* Starts another process, which sanitizers do not follow. */
    const struct CMUnitTest peers[] = {cmocka_unit_test(test_peer_dies)};
    const struct CMUnitTest emulated[] = {
        cmocka_unit_test(test_head_dims),         cmocka_unit_test(test_causal_and_groups),
        cmocka_unit_test(test_smoothing),         cmocka_unit_test(test_granularities),
        cmocka_unit_test(test_odd_values),        cmocka_unit_test(test_probe),
        cmocka_unit_test(test_int4_equals_int8),
    };
    /* leaves a stream behind: not for leak checks */
    const struct CMUnitTest stuck[] = {cmocka_unit_test(test_stuck_stream)};
    const char *expect = getenv("TANDEM_EXPECT_GPU");
    const bool times = argc > 1 && !strcmp(argv[1], "--bench");
    const td_log log = {.fn = print_log};
    char why[512] = "";
    tandem_status status;
    int failures;

    if (argc > 2 && !strcmp(argv[1], "--peer"))
        return be_peer(atoi(argv[2]));
    if (getenv("TANDEM_TEST_FILTER"))
        cmocka_set_test_filter(getenv("TANDEM_TEST_FILTER"));
    quick = argc > 1 && !strcmp(argv[1], "--quick");
    const bool each_only = argc > 1 && !strcmp(argv[1], "--each"), cases_only = argc > 1 && !strcmp(argv[1], "--cases");
    if ((each_only || cases_only) && !te_arguments(&each, argc, argv))
        return 2;
    if (cases_only)
        return te_check_cases(&each, TE_CUDA, each_kernel);
    expected = expect && !strcmp(expect, "1");
    status = td_cu_device_open(NULL, &log, &device, why, sizeof why);
    if (status) {
        fprintf(stderr, "no GPU: %s\n", why);
        return expected ? 1 : 77;
    }
    status = td_stream_create(device, &log, &stream, why, sizeof why);
    if (status) {
        fprintf(stderr, "no stream: %s\n", why);
        td_cu_device_close(&device);
        return 1;
    }
    print_message("%s, compute capability %u, driver %u, clock offset %lld ns\n", td_cu_device_info(device)->name,
                  td_cu_device_info(device)->sm, td_cu_device_info(device)->driver_version,
                  (long long)td_stream_clock_offset_ns(stream));
    if (each_only) {
        failures = cmocka_run_group_tests(kernel_by_kernel, NULL, NULL);
        td_stream_destroy(&stream, 1000000000u);
        td_cu_device_close(&device);
        return failures != 0;
    }
    const bool vulkan = open_vulkan();
    failures = times ? cmocka_run_group_tests(bench, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
    own_stream = stream;
    for (int kind = 0; kind < 2 && !times; kind++) {
        graphs = kind;
        /* a new one, whose clock offset is: clocks drift by a microsecond a second */
        status = (graphs ? td_stream_create_graph : td_stream_create)(device, &log, &stream, why, sizeof why);
        if (status) {
            fprintf(stderr, "no stream %s: %s\n", graphs ? "of graphs" : "of launches", why);
            failures++;
            break;
        }
        failures += cmocka_run_group_tests_name(graphs ? "graphs" : "launches", streams, NULL, NULL);
        if (!quick)
            failures += cmocka_run_group_tests_name(graphs ? "graphs" : "launches", peers, NULL, NULL);
        td_stream_destroy(&stream, 1000000000u);
    }
    graphs = false;
    stream = own_stream;
    uint32_t images = 0;
    const td_cubin *table = td_cubins(&images), *own = td_cubin_for_sm(td_cu_device_info(device)->sm, why, sizeof why);
    for (uint32_t i = 0; i < images && !times && !quick; i++) {
        if (!table[i].ptx || table[i].sm > td_cu_device_info(device)->sm || (table + i == own && own->sm >= 90))
            continue;
        image = &table[i];
        print_message("kernels of compute_%u, compiled by the driver\n", image->sm);
        status = td_stream_create_image(device, image, &log, &stream, why, sizeof why);
        if (status) {
            fprintf(stderr, "compute_%u: %s\n", image->sm, why);
            failures++;
        } else {
            failures += cmocka_run_group_tests_name("older kernels", emulated, NULL, NULL);
            td_stream_destroy(&stream, 1000000000u);
        }
    }
    image = NULL;
    stream = own_stream;
    const uint64_t held = td_cu_device_allocated_bytes(device);
    uint64_t left = 0; /* the streams that are given up keep their cancel words */
    for (int kind = 0; kind < 2 && !times && !quick; kind++) {
        graphs = kind;
        failures += cmocka_run_group_tests(stuck, NULL, NULL);
        failures += kind && td_cu_device_allocated_bytes(device) - held != 2 * left;
        left = td_cu_device_allocated_bytes(device) - held;
    }
    if (!times && !vulkan && expected)
        failures++;
    td_vk_close(&vk);
    if (gpu.device)
        vku_close(&gpu);
    td_stream_destroy(&stream, 1000000000u);
    if (td_cu_device_allocated_bytes(device) != left || left > 4096) {
        fprintf(stderr, "%llu bytes of device memory are left, not %llu\n",
                (unsigned long long)td_cu_device_allocated_bytes(device), (unsigned long long)left);
        failures++;
    }
    td_cu_device_close(&device);
    return failures != 0;
}
