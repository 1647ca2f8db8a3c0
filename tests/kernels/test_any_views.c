/* Every operation of any size, with views that lie anywhere: what is refused says why, what is not has a cost, parts and plans,
 * whose kernels read no more bytes at a time than the views allow. The sanitizers of the asan preset see whatever overflows.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/attention/attention.h"
#include "kernels/builder.h"
#include "kernels/codes.h"
#include "kernels/linear/linear.h"
#include "kernels/operation.h"
#include "kernels/params.h"

typedef unsigned __int128 wide;
enum { WHY_BYTES = 400, MOST_PARTS_TRIED = 40 };

static uint64_t state;
static td_plan plan;

static uint64_t random_bits(void)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint32_t below(uint32_t n)
{
    return (uint32_t)(random_bits() % n);
}

static bool one_in(uint32_t n)
{
    return below(n) == 0;
}

/* --- Random operations, of which many are legal --- */

/* From 1 to 2^30, often near a power of two; `left`: log2 of what all sizes are together. */
static uint32_t random_size(double *left)
{
    const double log2_of = one_in(4) ? 0 : fmin(30, *left) * (double)below(1001) / 1000;
    uint32_t size = (uint32_t)exp2(log2_of);
    if (one_in(3))
        size = 1u << (uint32_t)log2_of;
    if (one_in(6))
        size += size < 1u << 30;
    *left = fmax(0, *left - log2(size));
    return size;
}

static uint32_t round_up(uint32_t size, uint32_t to)
{
    return size > (1u << 30) - to ? size / to * to : (size + to - 1) / to * to;
}

static uint32_t random_float_dtype(void)
{
    return TANDEM_DTYPE_F16 + below(3);
}

static int64_t stride_of(wide elements, uint32_t block)
{
    const wide most = INT64_MAX / block * block;
    return (int64_t)(elements < most ? elements : most);
}

/* Dense, with gaps, or with strides that only an axis of one element can have; a tidy one as the widest loads need it. */
static tandem_view random_view(uint32_t dtype, const uint32_t shape[4], bool is_tidy)
{
    static const uint32_t gaps[] = {0, 0, 8, 64, 1, 2, 3, 4};
    static const int64_t odd[] = {0, 0, 1, 8, INT64_C(1) << 38, INT64_C(1) << 62, INT64_MAX};
    const td_dtype of = td_dtype_of(dtype);
    const uint32_t gap = of.elements * gaps[below(is_tidy ? 4 : 8)];
    const bool is_codes = td_dtype_is_codes(dtype);
    const wide rows = is_codes ? (shape[2] + (wide)127) / 128 * 128 : shape[2];
    const wide channels = is_codes ? (wide)td_pad_dim(shape[3]) : (wide)shape[3] + gap;
    const wide head = rows * channels + (is_codes ? 0 : gap), batch = head * shape[1] + (is_codes ? 0 : gap);
    tandem_view view = {.dtype = dtype, .stride_row = stride_of(dtype == TANDEM_DTYPE_CODES_E4M3 ? rows : channels, of.elements),
                        .stride_head = stride_of(head, of.elements), .stride_batch = stride_of(batch, of.elements)};
    int64_t *const strides[3] = {&view.stride_batch, &view.stride_head, &view.stride_row};
    for (int i = 0; i < 3; i++)
        if (!is_codes && !is_tidy && (shape[i] == 1 ? one_in(3) : one_in(16)))
            *strides[i] = odd[below(7)] / of.elements * of.elements;
    view.offset_bytes = one_in(2) ? 0 : (uint64_t)of.alignment * below(40);
    if (is_codes || is_tidy)
        view.offset_bytes *= 16;
    if (one_in(50))
        view.offset_bytes = (UINT64_C(1) << (40 + below(24))) - of.alignment * (uint64_t)below(3);
    return view;
}

/* The views that there are, of the dtypes that `op` has, once its sizes are known; of many all but one are tidy. */
static void place_views(const td_operation *operation, tandem_operands *op)
{
    const bool are_tidy = one_in(2);
    const uint32_t untidy = below(2 * operation->layout.view_count);
    for (uint32_t i = 0; i < operation->layout.view_count; i++) {
        tandem_view *view = td_view_of(&operation->layout, op, i);
        uint32_t shape[4];
        operation->layout.shape(op, i, shape);
        if (view->dtype != TANDEM_DTYPE_NONE)
            *view = random_view(view->dtype, shape, are_tidy && i != untidy);
    }
}

static void random_attention(tandem_operands *operands, double left)
{
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256, 40, 48, 72, 112, 160, 192};
    tandem_attention *op = &operands->attention;
    *op = (tandem_attention){.batch = random_size(&left), .kv_heads = random_size(&left), .q_len = random_size(&left),
                             .kv_len = random_size(&left), .head_dim = dims[below(12)], .causal = below(2), .precision = below(4)};
    op->heads = op->kv_heads * (one_in(2) ? 1 : random_size(&left));
    if (one_in(3)) {
        op->granularity = below(7);
        op->smooth = below(16);
    }
    op->q.dtype = op->k.dtype = op->v.dtype = random_float_dtype();
    op->o.dtype = random_float_dtype();
    op->lse.dtype = one_in(4) ? TANDEM_DTYPE_F32 : TANDEM_DTYPE_NONE;
    if (one_in(4)) {
        op->length.dtype = one_in(2) ? TANDEM_DTYPE_I32 : TANDEM_DTYPE_NONE;
        op->bias.dtype = one_in(2) ? random_float_dtype() : TANDEM_DTYPE_NONE;
        op->window = op->causal && one_in(2) ? 1 + below(1u << 20) : 0;
        op->softcap = one_in(2) ? 30 : 0;
        op->precision = op->smooth = 0;
        op->sink.dtype = one_in(2) ? random_float_dtype() : TANDEM_DTYPE_NONE;
        op->q_start.dtype = one_in(3) ? TANDEM_DTYPE_I32 : TANDEM_DTYPE_NONE;
        op->q_total = op->q_start.dtype ? op->q_len + below(100) : 0;
        op->k_start.dtype = !op->length.dtype && one_in(2) ? TANDEM_DTYPE_I32 : TANDEM_DTYPE_NONE;
        op->kv_total = op->k_start.dtype ? op->kv_len + below(100) : 0;
    } else if (one_in(8)) {
        op->k.dtype = TANDEM_DTYPE_CODES_INT8;
        op->q.dtype = one_in(2) ? op->k.dtype : random_float_dtype();
        op->v.dtype = TANDEM_DTYPE_CODES_E4M3;
        op->precision = op->lse.dtype = op->smooth = 0;
    }
}

static void random_norm(tandem_operands *operands, double left)
{
    tandem_norm *op = &operands->norm;
    *op = (tandem_norm){.batch = random_size(&left), .heads = random_size(&left), .rows = random_size(&left),
                        .channels = random_size(&left), .kind = below(2)};
    op->x.dtype = random_float_dtype();
    op->residual.dtype = below(4);
    op->weight.dtype = below(4);
    op->bias.dtype = below(4);
    op->y.dtype = random_float_dtype();
    op->sum.dtype = one_in(2) ? op->x.dtype : TANDEM_DTYPE_NONE;
    if (op->channels >= 8 && one_in(3)) {
        op->rotation.dtype = TANDEM_DTYPE_F32;
        op->position.dtype = TANDEM_DTYPE_I32;
        op->positions = 1 + below(1u << 30);
        op->rotated_channels = 8 * (1 + below(op->channels / 8));
    }
}

static void random_rotation(tandem_linear *op)
{
    op->gate = op->activation = 0;
    op->rotation.dtype = TANDEM_DTYPE_F32;
    op->position.dtype = TANDEM_DTYPE_I32;
    op->positions = 1 + below(1u << 30);
    op->head_dim = op->head_dim ? op->head_dim : 8 * (1 + below(32));
    op->outs = round_up(op->outs, op->head_dim);
    op->rotated_channels = 8 * (1 + below(op->head_dim / 8));
    op->rotated_heads = 1 + below(op->outs / op->head_dim);
}

static void random_codes(tandem_linear *op, double left)
{
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256, 40, 48, 72, 112, 160, 192};
    op->head_dim = dims[below(12)];
    op->kv_heads = random_size(&left) % (1u << 20) + 1;
    op->heads = op->kv_heads * (1 + below(8));
    op->outs = (op->heads + 2 * op->kv_heads) * op->head_dim;
    op->gate = 0;
    op->batch = one_in(2) ? 1 : 1 + below(8);
    op->rows = round_up(op->rows, op->batch);
    op->q.dtype = op->k.dtype = TANDEM_DTYPE_CODES_INT8;
    op->v.dtype = TANDEM_DTYPE_CODES_E4M3;
    op->statistics.dtype = one_in(2) ? TANDEM_DTYPE_F32 : TANDEM_DTYPE_NONE;
    op->next_statistics.dtype = one_in(2) ? TANDEM_DTYPE_F32 : TANDEM_DTYPE_NONE;
    op->granularity = below(6);
}

static void random_linear(tandem_operands *operands, double left)
{
    tandem_linear *op = &operands->linear;
    *op = (tandem_linear){.rows = random_size(&left), .ins = random_size(&left), .outs = random_size(&left),
                          .activation = below(4), .gate = one_in(3) ? below(3) : 0};
    op->x.dtype = TANDEM_DTYPE_F16 + below(2);
    op->w.dtype = td_linear_weight_dtype(one_in(2) ? TD_LINEAR_DENSE : (td_linear_weights)below(TD_LINEAR_TILES), op->x.dtype); /* tiles lie in one way */
    op->scale.dtype = op->w.dtype == TANDEM_DTYPE_I8 && one_in(2) ? TANDEM_DTYPE_F32 : TANDEM_DTYPE_NONE;
    op->bias.dtype = one_in(2) ? random_float_dtype() : TANDEM_DTYPE_NONE;
    op->residual.dtype = one_in(2) ? random_float_dtype() : TANDEM_DTYPE_NONE;
    op->y.dtype = random_float_dtype();
    if (!one_in(4))
        op->ins = round_up(op->ins, 8);
    if (op->w.dtype != op->x.dtype)
        op->ins = round_up(op->ins, op->w.dtype == TANDEM_DTYPE_I8 ? 8 : td_dtype_of(op->w.dtype).elements);
    if (one_in(5))
        random_codes(op, left);
    if (one_in(4))
        random_rotation(op);
}

static void random_embed(tandem_operands *operands, double left)
{
    tandem_embed *op = &operands->embed;
    tandem_view *const tables[] = {&op->table, &op->position_table, &op->type_table};
    tandem_view *const ids[] = {&op->id, &op->position, &op->type};
    uint32_t *const counts[] = {&op->entries, &op->positions, &op->types};
    *op = (tandem_embed){.batch = random_size(&left), .rows = random_size(&left), .channels = random_size(&left)};
    op->y.dtype = random_float_dtype();
    for (uint32_t i = 0, tables_here = 1 + below(3); i < tables_here; i++) {
        double rest = 30;
        *counts[i] = random_size(&rest);
        tables[i]->dtype = one_in(3) ? TANDEM_DTYPE_Q8_0 + below(5) : random_float_dtype();
        ids[i]->dtype = TANDEM_DTYPE_I32;
        op->channels = round_up(op->channels, td_dtype_of(tables[i]->dtype).elements);
    }
    if (op->channels > 1 && td_dtype_of(op->table.dtype).elements > 1)
        op->channels = round_up(op->channels, 256);
}

static void random_binary(tandem_operands *operands, double left)
{
    tandem_binary *op = &operands->binary;
    *op = (tandem_binary){.batch = random_size(&left), .heads = random_size(&left), .rows = random_size(&left),
                          .channels = random_size(&left), .kind = below(2), .scale = (float)below(3)};
    op->b_channels = one_in(3) ? 1 : one_in(2) ? op->channels : 0;
    op->a.dtype = random_float_dtype();
    op->b.dtype = random_float_dtype();
    op->y.dtype = random_float_dtype();
}

static void random_pool(tandem_operands *operands, double left)
{
    tandem_pool *op = &operands->pool;
    *op = (tandem_pool){.batch = random_size(&left), .heads = random_size(&left), .rows = random_size(&left),
                        .channels = random_size(&left), .normalise = below(2)};
    op->x.dtype = random_float_dtype();
    op->length.dtype = one_in(2) ? TANDEM_DTYPE_I32 : TANDEM_DTYPE_NONE;
    op->y.dtype = random_float_dtype();
}

static void random_top(tandem_operands *operands, double left)
{
    tandem_top *op = &operands->top;
    *op = (tandem_top){.batch = random_size(&left), .heads = random_size(&left), .rows = random_size(&left),
                       .channels = random_size(&left), .count = 1 + below(64)};
    op->channels = op->channels < 1 << 24 ? op->channels : 1 << 24;
    op->x.dtype = random_float_dtype();
    op->y.dtype = TANDEM_DTYPE_F32;
}

static void random_image(uint32_t *batch, uint32_t *height, uint32_t *width, double *left)
{
    *batch = random_size(left);
    *height = one_in(50) ? random_size(left) : 1 + below(2000);
    *width = one_in(50) ? random_size(left) : 1 + below(2000);
}

static void random_conv(tandem_operands *operands, double left)
{
    tandem_conv *op = &operands->conv;
    *op = (tandem_conv){.channels = 16 * (1 + below(6)), .outs = 32 * (1 + below(5)), .size = 1 + 2 * below(2), .stride = below(3),
                        .shuffle = below(3), .relu = below(2)};
    random_image(&op->batch, &op->height, &op->width, &left);
    op->x.dtype = op->w.dtype = TANDEM_DTYPE_F16;
    op->y.dtype = one_in(2) ? TANDEM_DTYPE_F16 : TANDEM_DTYPE_F32;
    op->bias.dtype = one_in(2) ? TANDEM_DTYPE_F32 : TANDEM_DTYPE_NONE;
    if (one_in(2)) {
        op->coarse.dtype = TANDEM_DTYPE_F16;
        op->coarse_channels = 16 * (1 + below(6));
    }
}

static void random_gather(tandem_operands *operands, double left)
{
    tandem_gather *op = &operands->gather;
    *op = (tandem_gather){.dim = 8 + 8 * below(2), .radius = 1 + below(4), .coarse_radius = below(2), .step = below(3), .channels = 3 + below(2)};
    random_image(&op->batch, &op->height, &op->width, &left);
    op->q.dtype = op->k.dtype = TANDEM_DTYPE_F16;
    op->v.dtype = op->o.dtype = TANDEM_DTYPE_F32;
    op->factor.dtype = one_in(2) ? TANDEM_DTYPE_F32 : TANDEM_DTYPE_NONE;
    op->bias.dtype = one_in(2) ? TANDEM_DTYPE_F32 : TANDEM_DTYPE_NONE;
    if (op->step < 2 && one_in(2)) {
        op->k_coarse.dtype = TANDEM_DTYPE_F16;
        op->v_coarse.dtype = TANDEM_DTYPE_F32;
    }
    if (op->step < 2 && one_in(2)) {
        op->k_before.dtype = TANDEM_DTYPE_F16;
        op->v_before.dtype = TANDEM_DTYPE_F32;
    }
}

static void random_reproject(tandem_operands *operands, double left)
{
    tandem_reproject *op = &operands->reproject;
    random_image(&op->batch, &op->height, &op->width, &left);
    op->history.dtype = op->o.dtype = TANDEM_DTYPE_F32;
    op->motion.dtype = one_in(2) ? TANDEM_DTYPE_F16 : TANDEM_DTYPE_F32;
    op->valid.dtype = one_in(2) ? TANDEM_DTYPE_F32 : TANDEM_DTYPE_NONE;
    op->normal.dtype = op->normal_before.dtype = one_in(2) ? TANDEM_DTYPE_F16 : TANDEM_DTYPE_NONE;
    op->depth.dtype = op->depth_before.dtype = one_in(2) ? TANDEM_DTYPE_F32 : TANDEM_DTYPE_NONE;
}

static void random_demodulate(tandem_operands *operands, double left)
{
    tandem_demodulate *op = &operands->demodulate;
    random_image(&op->batch, &op->height, &op->width, &left);
    op->color.dtype = one_in(2) ? TANDEM_DTYPE_F16 : TANDEM_DTYPE_F32;
    op->albedo.dtype = one_in(2) ? TANDEM_DTYPE_F16 : TANDEM_DTYPE_NONE;
    op->depth.dtype = one_in(2) ? TANDEM_DTYPE_F32 : TANDEM_DTYPE_NONE;
    op->light.dtype = op->modulation.dtype = TANDEM_DTYPE_F32;
    op->tokens.dtype = TANDEM_DTYPE_F16;
    op->history.dtype = one_in(2) ? TANDEM_DTYPE_F32 : TANDEM_DTYPE_NONE;
}

static const struct {
    uint32_t number;
    void (*make)(tandem_operands *op, double left);
} kinds[] = {{TANDEM_OPERATION_ATTENTION, random_attention}, {TANDEM_OPERATION_NORM, random_norm},
             {TANDEM_OPERATION_LINEAR, random_linear},       {TANDEM_OPERATION_EMBED, random_embed},
             {TANDEM_OPERATION_BINARY, random_binary},       {TANDEM_OPERATION_POOL, random_pool},
             {TANDEM_OPERATION_CONV, random_conv},           {TANDEM_OPERATION_GATHER, random_gather},
             {TANDEM_OPERATION_DEMODULATE, random_demodulate}, {TANDEM_OPERATION_REPROJECT, random_reproject},
             {TANDEM_OPERATION_TOP, random_top}};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* --- What must be true of all that is legal --- */

static void must_have_a_cost(const td_operation *operation, const tandem_operands *op, uint32_t position)
{
    const td_cost cost = operation->cost(op, position);
    assert_true(isfinite(cost.mflop) && isfinite(cost.work_mflop));
    assert_true(cost.mflop >= 0 && cost.work_mflop > 0 && cost.work_mflop >= cost.mflop);
}

/* Of all views that are written, codes but as one. */
static wide elements_written(const td_operation *operation, const tandem_operands *op)
{
    wide sum = 0;
    for (uint32_t i = 0; i < operation->layout.view_count; i++) {
        uint32_t shape[4];
        operation->layout.shape(op, i, shape);
        if (operation->layout.views[i].written && td_view_is_there(&operation->layout, op, i))
            sum += (wide)shape[0] * shape[1] * shape[2] * shape[3];
    }
    return sum;
}

static void must_lie_within(const td_operation *operation, const tandem_operands *op, const tandem_operands *whole)
{
    for (uint32_t i = 0; i < operation->layout.view_count; i++) {
        uint32_t shape[4];
        uint64_t end, whole_end;
        if (!td_view_is_there(&operation->layout, whole, i))
            continue;
        operation->layout.shape(op, i, shape);
        assert_true(td_view_end_bytes(td_view_in(&operation->layout, op, i), shape, &end));
        operation->layout.shape(whole, i, shape);
        assert_true(td_view_end_bytes(td_view_in(&operation->layout, whole, i), shape, &whole_end));
        assert_true(end <= whole_end);
        assert_true(td_view_in(&operation->layout, op, i)->offset_bytes >= td_view_in(&operation->layout, whole, i)->offset_bytes);
    }
}

/* How many bytes a kernel reads at once of Q, K and V, or X and W; whatever the others read they read by elements, or look first. */
typedef struct load {
    const char *part; /* of the entry's name */
    uint32_t views, bytes; /* a bit each */
} load;
enum {
    QKV = 1u << TD_VIEW_Q | 1u << TD_VIEW_K | 1u << TD_VIEW_V,
    X = 1u << TD_LINEAR_X,
    W = 1u << TD_LINEAR_W,
};
static const load attention_loads[] = {{"prepare", QKV, 16}, {"16_wgmma", QKV, 16}, {"attn_", 0, 1},
                                       {"mean_", 0, 1},      {"amax_", 0, 1},       {"quant", 0, 1},
                                       {"delta_s", 0, 1},    {"stats", 0, 1}};
static const load linear_loads[] = {{"_wgmma_", X | W, 16},    {"_direct_", X | W, 16},    {"_inline_", X | W, 16},
                                    {"_few_", X | W, 16},
                                    {"skinny_dense", X | W, 16}, {"blocks_int8", X, 16},   {"blocks_int8", W, 8},
                                    {"blocks_q", X, 16},       {"mma_int8", W, 8},         {"mma_", 0, 1},
                                    {"linear_codes", 0, 1}};

static void must_be_aligned(const td_operation *operation, const tandem_operands *op, uint32_t view, const char *entry, uint32_t to)
{
    const tandem_view *it = td_view_in(&operation->layout, op, view);
    const td_dtype of = td_dtype_of(it->dtype);
    uint32_t shape[4];
    operation->layout.shape(op, view, shape);
    const int64_t strides[3] = {it->stride_batch, it->stride_head, it->stride_row};
    bool all = it->offset_bytes % to == 0;
    for (int i = 0; i < 3; i++) /* of one element nobody strides */
        all = all && (shape[i] == 1 || (uint64_t)strides[i] / of.elements * of.bytes % to == 0);
    if (!all)
        fail_msg("%s reads %u bytes at a time of %s, which is at %llu with strides of %lld, %lld, %lld elements", entry, to,
                 operation->layout.views[view].name, (unsigned long long)it->offset_bytes, (long long)strides[0],
                 (long long)strides[1], (long long)strides[2]);
}

static void must_suit(const td_operation *operation, const tandem_operands *op, const char *entry, uint32_t *wide_loads)
{
    const bool is_attention = operation->layout.number == TANDEM_OPERATION_ATTENTION;
    const bool is_linear = operation->layout.number == TANDEM_OPERATION_LINEAR;
    const load *loads = is_attention ? attention_loads : linear_loads;
    const size_t count = is_attention ? sizeof attention_loads / sizeof *loads : sizeof linear_loads / sizeof *loads;
    bool known = !is_attention && !is_linear; /* those look at every address, as the emulator's tests show */
    known = known || !strcmp(entry, "claim") || !strcmp(entry, "commit");
    for (size_t i = 0; i < count && (is_attention || is_linear); i++) {
        if (!strstr(entry, loads[i].part))
            continue;
        known = true;
        *wide_loads += loads[i].bytes > 1;
        for (uint32_t view = 0; view < operation->layout.view_count; view++)
            if (loads[i].views & 1u << view)
                must_be_aligned(operation, op, view, entry, loads[i].bytes);
    }
    if (!known)
        fail_msg("%s is a kernel of which this test does not know how it reads", entry);
}

static td_target random_target(void)
{
    static const uint32_t sms[] = {0, 80, 86, 89, 90, 90, 90, 120}, sizes[] = {0, 1, 58, 114, 132, 65535};
    const uint32_t sm = sms[below(8)];
    td_target target = one_in(2) ? td_target_for_stream(sm) : td_target_for_sm(sm);
    target.twin = true;
    target.multiprocessors = sizes[below(6)];
    target.commit = one_in(4);
    return target;
}

/* It has a plan, or there is a reason why not: true if it has. */
static bool try_plan(const td_operation *operation, const tandem_operands *op, const td_target *target, uint32_t *wide_loads)
{
    char why[WHY_BYTES] = "", name[32];
    const tandem_status status = operation->plan(op, target, &plan, why, sizeof why);
    snprintf(name, sizeof name, "%s.", operation->layout.name);
    if (status != TANDEM_OK) {
        assert_true(status == TANDEM_ERROR_ARG || status == TANDEM_ERROR_UNSUPPORTED);
        if (!strstr(why, name))
            fail_msg("\"%s\" does not name an argument of %s", why, operation->layout.name);
        return false;
    }
    assert_int_equal(td_plan_check(&plan, why, sizeof why), TANDEM_OK);
    assert_true(plan.scratch_bytes <= (uint64_t)INT64_MAX && plan.record_count > 0);
    for (uint32_t i = 0; i < plan.record_count; i++) {
        const td_record *r = &plan.records[i];
        assert_in_range(r->grid[0], 1, TD_MOST_BLOCKS);
        assert_in_range(r->block[0], 1, 1024);
        for (uint32_t j = 0; j < r->read_count + r->write_count; j++) {
            const td_range *range = j < r->read_count ? &r->reads[j] : &r->writes[j - r->read_count];
            assert_true(range->begin_bytes < range->end_bytes && range->end_bytes <= (uint64_t)INT64_MAX);
        }
        if (target->sm)
            must_suit(operation, op, r->kernel->entry, wide_loads);
    }
    return true;
}

/* Parts are operations themselves, within the whole, of which all that is written is written once. */
static void try_parts(const td_operation *operation, const tandem_operands *whole, uint32_t *wide_loads)
{
    static const uint32_t counts[] = {2, 3, 7, 16, 64, 4096, 16384};
    const uint32_t count = counts[below(7)], parts = operation->split ? operation->split(whole, count) : 1;
    td_target target = random_target();
    wide written = 0;
    td_part_at at = {0};
    assert_true(parts >= 1);
    for (uint32_t i = 0; i < parts && i < MOST_PARTS_TRIED && parts > 1; i++) {
        tandem_operands part;
        char why[WHY_BYTES] = "";
        target.whole = whole;
        target.position = operation->part(whole, count, &at, &part);
        if (operation->check(&part, why, sizeof why) != TANDEM_OK)
            fail_msg("part %u of %u: %s", i, parts, why);
        must_lie_within(operation, &part, whole);
        must_have_a_cost(operation, &part, target.position);
        written += elements_written(operation, &part);
        try_plan(operation, &part, &target, wide_loads);
    }
    if (parts > 1 && parts <= MOST_PARTS_TRIED)
        assert_true(written == elements_written(operation, whole));
}

static void test_any_size(void **unused)
{
    enum { LEGAL = 4000 };
    (void)unused;
    for (uint32_t k = 0; k < KINDS; k++) {
        const td_operation *operation = td_operation_find(kinds[k].number);
        uint32_t legal = 0, planned = 0, refused = 0, wide_loads = 0;
        char name[32];
        snprintf(name, sizeof name, "%s.", operation->layout.name);
        state = k;
        while (legal < LEGAL) {
            tandem_operands op = {0};
            char why[WHY_BYTES] = "";
            kinds[k].make(&op, one_in(2) ? 14 : 50);
            place_views(operation, &op);
            const tandem_status status = operation->check(&op, why, sizeof why);
            if (status != TANDEM_OK) {
                assert_true(status == TANDEM_ERROR_ARG || status == TANDEM_ERROR_UNSUPPORTED);
                assert_non_null(strstr(why, name));
                refused++;
                continue;
            }
            legal++;
            must_have_a_cost(operation, &op, 0);
            for (int i = 0; i < 3; i++) {
                const td_target target = random_target();
                planned += try_plan(operation, &op, &target, &wide_loads);
            }
            try_parts(operation, &op, &wide_loads);
        }
        print_message("%s: %u legal, %u refused, %u plans, %u kernels of wide loads\n", operation->layout.name, legal, refused,
                      planned, wide_loads);
        assert_true(planned > LEGAL);
        assert_true((wide_loads > LEGAL / 10) == (kinds[k].number == TANDEM_OPERATION_ATTENTION || kinds[k].number == TANDEM_OPERATION_LINEAR));
    }
}

/* Structs of any bits are refused by name, and nothing is divided by what they say. */
static void test_any_bits(void **unused)
{
    static const uint64_t odd[] = {0, 0, 0, 1, 2, 3, 6, 8, 64, 1 << 30, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX, UINT64_C(1) << 63};
    (void)unused;
    state = 17;
    for (uint32_t n = 0; n < 200000; n++) {
        const td_operation *operation = td_operation_find(kinds[n % KINDS].number);
        tandem_operands op = {0};
        char why[WHY_BYTES] = "", name[32];
        snprintf(name, sizeof name, "%s.", operation->layout.name);
        if (n % 3)
            kinds[n % KINDS].make(&op, 40);
        place_views(operation, &op);
        for (uint32_t changes = n % 3 ? 1 + below(4) : 400; changes; changes--) {
            const uint64_t bits = one_in(4) ? random_bits() : odd[below(sizeof odd / sizeof *odd)];
            const uint32_t bytes = one_in(2) ? 4 : 8;
            memcpy((char *)&op + below(operation->layout.bytes / bytes) * bytes, &bits, bytes);
        }
        const tandem_status status = operation->check(&op, why, sizeof why);
        if (status != TANDEM_OK) {
            assert_true(status == TANDEM_ERROR_ARG || status == TANDEM_ERROR_UNSUPPORTED);
            if (!strstr(why, name))
                fail_msg("\"%s\" does not name an argument of %s", why, operation->layout.name);
            continue;
        }
        uint32_t wide_loads = 0;
        const td_target target = random_target();
        must_have_a_cost(operation, &op, 0);
        try_plan(operation, &op, &target, &wide_loads);
        try_parts(operation, &op, &wide_loads);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_size), cmocka_unit_test(test_any_bits)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    td_plan_free(&plan);
    return failed;
}
