/* Attention cases for tests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/attention_util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/cpu/cpu.h"

static void *allocate(size_t bytes)
{
    void *data = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!data) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return data;
}

uint64_t tu_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double tu_normal(uint64_t *state)
{
    const double u = ((double)(tu_random(state) >> 11) + 1) * 0x1p-53, v = (double)(tu_random(state) >> 11) * 0x1p-53;
    return (double)(sqrtf(-2 * logf((float)u)) * cosf((float)(6.283185307179586 * v))); /* tensors hold no more */
}

tu_tensor tu_tensor_new(uint32_t dtype, tu_layout layout, uint32_t batch, uint32_t heads, uint32_t rows, uint32_t dim)
{
    tu_tensor t = {.batch = batch, .heads = heads, .rows = rows, .dim = dim};
    const int64_t b = batch, h = heads, r = rows, d = dim;
    t.view.dtype = dtype;
    switch (layout) {
    case TU_BY_ROW:
        t.view.stride_head = d;
        t.view.stride_row = h * d;
        t.view.stride_batch = r * h * d;
        break;
    case TU_GAPS:
        t.view.stride_row = d + 3;
        t.view.stride_head = r * t.view.stride_row + 5;
        t.view.stride_batch = h * t.view.stride_head + 7;
        break;
    case TU_BATCH_LAST:
        t.view.stride_batch = d;
        t.view.stride_row = b * d;
        t.view.stride_head = r * b * d;
        break;
    default:
        t.view.stride_row = d;
        t.view.stride_head = r * d;
        t.view.stride_batch = h * r * d;
    }
    t.bytes = td_view_extent_bytes(&t.view, batch, heads, rows, dim);
    t.data = allocate(t.bytes + TU_GUARD_BYTES);
    tu_poison(&t);
    return t;
}

void tu_tensor_free(tu_tensor *tensor)
{
    free(tensor->data);
    tensor->data = NULL;
}

static size_t index_of(const tu_tensor *t, uint32_t b, uint32_t h, uint32_t r, uint32_t c)
{
    return (size_t)((int64_t)b * t->view.stride_batch + (int64_t)h * t->view.stride_head +
                    (int64_t)r * t->view.stride_row + c);
}

double tu_get(const tu_tensor *t, uint32_t b, uint32_t h, uint32_t r, uint32_t c)
{
    const size_t i = index_of(t, b, h, r, c);
    switch (t->view.dtype) {
    case TANDEM_DTYPE_F16: return (double)td_from_f16(((const uint16_t *)t->data)[i]);
    case TANDEM_DTYPE_BF16: return (double)td_from_bf16(((const uint16_t *)t->data)[i]);
    case TANDEM_DTYPE_I32: return (double)((const int32_t *)t->data)[i];
    default: return (double)((const float *)t->data)[i];
    }
}

void tu_set(tu_tensor *t, uint32_t b, uint32_t h, uint32_t r, uint32_t c, double value)
{
    const size_t i = index_of(t, b, h, r, c);
    switch (t->view.dtype) {
    case TANDEM_DTYPE_F16: ((uint16_t *)t->data)[i] = td_to_f16((float)value); break;
    case TANDEM_DTYPE_BF16: ((uint16_t *)t->data)[i] = td_to_bf16((float)value); break;
    case TANDEM_DTYPE_I32: ((int32_t *)t->data)[i] = (int32_t)value; break;
    default: ((float *)t->data)[i] = (float)value;
    }
}

void tu_fill_normal(tu_tensor *t, uint64_t seed, double mean)
{
    for (uint32_t b = 0; b < t->batch; b++)
        for (uint32_t h = 0; h < t->heads; h++)
            for (uint32_t r = 0; r < t->rows; r++)
                for (uint32_t c = 0; c < t->dim; c++)
                    tu_set(t, b, h, r, c, tu_normal(&seed) + mean);
}

void tu_poison(tu_tensor *t)
{
    memset(t->data, TU_POISON, t->bytes + TU_GUARD_BYTES);
}

size_t tu_spoilt(const tu_tensor *t)
{
    const size_t size = td_dtype_bytes(t->view.dtype), total = t->bytes + TU_GUARD_BYTES;
    unsigned char *owned = allocate(total);
    memset(owned, 0, total);
    for (uint32_t b = 0; b < t->batch; b++)
        for (uint32_t h = 0; h < t->heads; h++)
            for (uint32_t r = 0; r < t->rows; r++)
                memset(owned + index_of(t, b, h, r, 0) * size, 1, t->dim * size);
    size_t spoilt = 0;
    for (size_t i = 0; i < total; i++)
        spoilt += !owned[i] && ((const unsigned char *)t->data)[i] != TU_POISON;
    free(owned);
    return spoilt;
}

double *tu_values(const tu_tensor *t)
{
    double *values = allocate((size_t)t->batch * t->heads * t->rows * t->dim * sizeof *values), *to = values;
    for (uint32_t b = 0; b < t->batch; b++)
        for (uint32_t h = 0; h < t->heads; h++)
            for (uint32_t r = 0; r < t->rows; r++)
                for (uint32_t c = 0; c < t->dim; c++)
                    *to++ = tu_get(t, b, h, r, c);
    return values;
}

static uint32_t or_else(uint32_t value, uint32_t otherwise)
{
    return value ? value : otherwise;
}

void tu_case_init(tu_case *it, const tu_shape *s)
{
    memset(it, 0, sizeof *it);
    tandem_attention *op = &it->op;
    op->batch = or_else(s->batch, 1);
    op->heads = or_else(s->heads, 1);
    op->kv_heads = or_else(s->kv_heads, op->heads);
    op->q_len = or_else(s->q_len, 1);
    op->kv_len = or_else(s->kv_len, 1);
    op->head_dim = or_else(s->head_dim, 64);
    op->scale = s->scale;
    op->causal = s->causal;
    op->precision = s->precision;
    op->smooth = s->smooth;
    op->granularity = s->granularity;
    const uint32_t f32 = TANDEM_DTYPE_F32;
    it->q = tu_tensor_new(or_else(s->dtype_q, f32), s->layout, op->batch, op->heads, op->q_len, op->head_dim);
    it->k = tu_tensor_new(or_else(s->dtype_k, f32), s->layout, op->batch, op->kv_heads, op->kv_len, op->head_dim);
    it->v = tu_tensor_new(or_else(s->dtype_v, f32), s->layout, op->batch, op->kv_heads, op->kv_len, op->head_dim);
    it->o = tu_tensor_new(or_else(s->dtype_o, f32), s->layout, op->batch, op->heads, op->q_len, op->head_dim);
    tu_fill_normal(&it->q, s->seed * 3 + 1, 0);
    tu_fill_normal(&it->k, s->seed * 3 + 2, (double)s->k_bias);
    tu_fill_normal(&it->v, s->seed * 3 + 3, (double)s->v_bias);
    op->q = it->q.view;
    op->k = it->k.view;
    op->v = it->v.view;
    op->o = it->o.view;
    if (s->lse) {
        it->lse = tu_tensor_new(f32, s->layout, op->batch, op->heads, op->q_len, 1);
        op->lse = it->lse.view;
    }
}

void tu_case_free(tu_case *it)
{
    tu_tensor_free(&it->q);
    tu_tensor_free(&it->k);
    tu_tensor_free(&it->v);
    tu_tensor_free(&it->o);
    tu_tensor_free(&it->lse);
    td_plan_free(&it->plan);
    free(it->scratch);
    free(it->ref_o);
    free(it->ref_lse);
    memset(it, 0, sizeof *it);
}

void tu_case_ref(tu_case *it)
{
    const size_t rows = (size_t)it->op.batch * it->op.heads * it->op.q_len;
    free(it->ref_o);
    free(it->ref_lse);
    it->ref_o = allocate(rows * it->op.head_dim * sizeof(double));
    it->ref_lse = allocate(rows * sizeof(double));
    td_ref_attention(&it->op, it->q.data, it->k.data, it->v.data, it->ref_o, it->ref_lse);
}

tandem_status tu_case_run(tu_case *it, const td_target *target, uint32_t threads)
{
    char why[256] = "";
    tandem_status status = td_attention_check(&it->op, why, sizeof why);
    if (status == TANDEM_OK)
        status = td_plan_attention(&it->op, target, &it->plan, &it->layout, why, sizeof why);
    if (status != TANDEM_OK) {
        fprintf(stderr, "no plan: %s\n", why);
        return status;
    }
    const size_t bytes = it->plan.scratch_bytes;
    free(it->scratch);
    it->scratch = allocate(bytes + TU_GUARD_BYTES);
    memset(it->scratch, TU_POISON, bytes + TU_GUARD_BYTES);
    tu_poison(&it->o);
    if (it->lse.data)
        tu_poison(&it->lse);
    const uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)it->q.data, (uintptr_t)it->k.data, (uintptr_t)it->v.data,
                                           (uintptr_t)it->o.data, (uintptr_t)it->lse.data};
    status = td_exec_cpu_run(&it->plan, views, (uintptr_t)it->scratch, threads, NULL);
    size_t spoilt = tu_spoilt(&it->o) + (it->lse.data ? tu_spoilt(&it->lse) : 0);
    for (size_t i = 0; i < TU_GUARD_BYTES; i++)
        spoilt += ((const unsigned char *)it->scratch)[bytes + i] != TU_POISON;
    if (status == TANDEM_OK && spoilt) {
        fprintf(stderr, "%zu bytes were written where no output is\n", spoilt);
        return TANDEM_ERROR_DEVICE;
    }
    return status;
}

void tu_case_piece(const tu_case *it, uint32_t row, uint32_t rows, tandem_attention *op, td_target *target,
                   uint64_t views[TU_VIEWS])
{
    const tandem_view *moved[] = {&it->op.q, &it->op.o, &it->op.lse};
    const int indices[] = {TD_VIEW_Q, TD_VIEW_O, TD_VIEW_LSE};
    static tandem_operands whole;

    *op = it->op;
    whole.attention = it->op;
    op->q_len = rows;
    target->whole = &whole;
    target->position = op->causal ? op->kv_len - it->op.q_len + row + rows : 0;
    if (op->causal && row + rows + op->kv_len <= it->op.q_len) { /* as td_attention_part() has it */
        target->position = TD_NO_KEYS;
        op->kv_len = 1;
    }
    for (int i = 0; i < 3; i++)
        views[indices[i]] += row * (uint64_t)moved[i]->stride_row * td_dtype_bytes(moved[i]->dtype);
}

double tu_relative_l1(const double *a, const double *b, size_t n)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        difference += fabs(a[i] - b[i]);
        size += fabs(b[i]);
    }
    return difference == 0 ? 0 : difference / size;
}

double tu_max_abs(const double *a, const double *b, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs(a[i] - b[i]);
        if (!(d <= most))
            most = d;
    }
    return most;
}

double tu_case_l1(const tu_case *it)
{
    double *o = tu_values(&it->o);
    const double l1 =
        tu_relative_l1(o, it->ref_o, (size_t)it->op.batch * it->op.heads * it->op.q_len * it->op.head_dim);
    free(o);
    return l1;
}

double tu_case_lse_error(const tu_case *it)
{
    double *lse = tu_values(&it->lse), most = 0;
    for (size_t i = 0; i < (size_t)it->op.batch * it->op.heads * it->op.q_len; i++) {
        const double d = lse[i] == it->ref_lse[i] ? 0 : fabs(lse[i] - it->ref_lse[i]);
        if (!(d <= most))
            most = d;
    }
    free(lse);
    return most;
}

void tu_case_codes(const tu_case *it, const unsigned char *scratch, tandem_attention *op, void *bytes[3], uint64_t sizes[3])
{
    const td_attention_layout *at = &it->layout;
    const uint64_t codes[3] = {at->q_codes, at->k_codes, at->v_codes}, scales[3] = {at->q_scale, at->k_scale, at->v_scale};
    tandem_view *views[3] = {&op->q, &op->k, &op->v};

    *op = it->op;
    op->precision = TANDEM_PRECISION_8B;
    op->smooth = TANDEM_SMOOTH_DEFAULT;
    for (int i = 0; i < 3; i++) {
        const uint32_t heads = i ? op->kv_heads : op->heads, rows = i ? op->kv_len : op->q_len;
        const uint32_t rows_pad = i ? at->kv_pad : at->q_pad;
        const uint64_t plane = (uint64_t)rows_pad * at->d_pad, planes = (uint64_t)op->batch * heads;
        uint64_t scales_bytes;

        *views[i] = (tandem_view){.mem = 1,
                                  .dtype = i < 2 ? TANDEM_DTYPE_CODES_INT8 : TANDEM_DTYPE_CODES_E4M3,
                                  .stride_row = i < 2 ? at->d_pad : rows_pad,
                                  .stride_head = (int64_t)plane,
                                  .stride_batch = (int64_t)plane * heads};
        sizes[i] = tandem_codes_bytes(views[i]->dtype, op->batch, heads, rows, op->head_dim, &scales_bytes);
        bytes[i] = allocate(sizes[i]);
        memset(bytes[i], TU_POISON, sizes[i]);
        memcpy(bytes[i], scratch + codes[i], planes * plane);
        memcpy((unsigned char *)bytes[i] + scales_bytes, scratch + scales[i], sizes[i] - scales_bytes);
    }
}

bool tu_same_record(const td_record *a, const td_record *b)
{
    td_record x = *a, y = *b;

    x.params = y.params = NULL;
    x.relocs = y.relocs = NULL;
    x.reads = y.reads = x.writes = y.writes = NULL;
    return !memcmp(&x, &y, sizeof x) && !memcmp(a->params, b->params, a->param_bytes) &&
           !memcmp(a->relocs, b->relocs, a->reloc_count * sizeof *a->relocs) &&
           (!a->read_count || !memcmp(a->reads, b->reads, a->read_count * sizeof *a->reads)) &&
           (!a->write_count || !memcmp(a->writes, b->writes, a->write_count * sizeof *a->writes));
}
