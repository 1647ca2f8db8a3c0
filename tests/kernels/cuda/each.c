/* Each kernel once, as sanitizers need it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/cuda/rig.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/probe.h"
#include "tests/kernels/conv_cases.h"

te_cases kernel_cases;

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
    shape.seed = 2000 + kernel_cases.number;
    tu_case_init(&it, &shape);
    const tandem_status status = td_plan_attention(&it.op, &target, &it.plan, NULL, why, sizeof why);
    if (status && status != TANDEM_ERROR_UNSUPPORTED)
        fail_msg("status %d: %s", (int)status, why);
    const bool mine = !status && te_is_mine(&kernel_cases, &it.plan, shape.causal);
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
    td_cubin older = *kernel_cases.cubin; /* of a GPU without e4m3, as if this were one */

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
        shape = halves;
        shape.smooth = TANDEM_SMOOTH_K | TANDEM_SMOOTH_V;
        each_case(target, shape);
        each_case(stream_target, shape);
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
        if (td_plan_probe(unit, 8, &target, &plan, why, sizeof why) || !te_is_mine(&kernel_cases, &plan, false))
            continue;
        td_probe_fill_random(unit, 8, 17 + unit, arrays[0], arrays[1], arrays[2]);
        compare_probe(unit, 8, arrays, &plan, unit != TD_PROBE_MMA_F16 || target.sm == 90);
    }
    for (int i = 0; i < TD_PROBE_VIEWS; i++)
        free(arrays[i]);
}

/* Runs a plan on the GPU; what it writes goes where the case's tensors are. */
static void run_conv(ku_case *it, const td_plan *plan)
{
    const td_operation_layout *layout = &it->operation->layout;
    td_cu_mem mems[TD_MAX_VIEWS] = {{0}}, scratch = {0};
    uint64_t addresses[TD_MAX_VIEWS] = {0};
    td_stream_submit submit = {.plan = plan, .views = addresses, .label = "conv"};
    char why[256] = "";

    if (plan->scratch_bytes)
        must(td_cu_mem_alloc(device, plan->scratch_bytes, &scratch, why, sizeof why), why);
    submit.scratch = scratch.address;
    for (uint32_t i = 0; i < layout->view_count; i++) {
        tu_tensor *tensor = &it->tensors[i];
        if (!tensor->data)
            continue;
        if (layout->views[i].written)
            tu_poison(tensor);
        upload(&mems[i], tensor->data, tensor->bytes + TU_GUARD_BYTES);
        addresses[i] = mems[i].address;
    }
    run_to_the_end(&submit);
    for (uint32_t i = 0; i < layout->view_count; i++) {
        tu_tensor *tensor = &it->tensors[i];
        if (tensor->data && layout->views[i].written) {
            must(td_cu_copy_to_host(device, tensor->data, mems[i].address, tensor->bytes + TU_GUARD_BYTES), "copy");
            assert_int_equal(tu_spoilt(tensor), 0);
        }
        td_cu_mem_free(device, &mems[i]);
    }
    td_cu_mem_free(device, &scratch);
}

/* As a GPU of other sizes plans them: that of one that is here would never choose some of the kernels for images so small. */
static void each_conv(td_target target)
{
    for (uint32_t n = 0; n < CV_CASES; n++)
        for (size_t i = 0; i < sizeof cv_multiprocessors / sizeof *cv_multiprocessors; i++) {
            ku_case it = cv_case(n);
            TU_PLAN(plan);
            char why[256] = "";

            target.multiprocessors = cv_multiprocessors[i];
            must(it.operation->plan(&it.op, &target, &plan, why, sizeof why), why);
            if (te_is_mine(&kernel_cases, &plan, false)) {
                print_message("    %s\n", plan.records[plan.record_count - 1].kernel->entry);
                run_conv(&it, &plan);
                cv_check(&it);
            }
            ku_free(&it);
        }
}

void each_kernel(td_target stream_target)
{
    each_attention(stream_target);
    each_other(stream_target);
    each_probe(stream_target);
    each_conv(stream_target);
}

void test_each(void **state)
{
    (void)state;
    te_begin(&kernel_cases, td_cu_device_info(device)->sm);
    each_kernel(target_here());
    te_end(&kernel_cases, TE_CUDA);
}
