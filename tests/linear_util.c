/* Linear layers for tests. See linear_util.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/linear_util.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/cpu.h"
#include "kernels/blocks.h"

enum { POISON = 0xa5, ROWS_BEHIND = 2 };
static const uint64_t patience_ns = 60000000000u;

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* About N(0, 1). */
static float normal(uint32_t *state)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(next(state) & 0xffff) / 65536.0f - 0.5f;
    return 1.7320508f * sum;
}

static void fill(void *data, uint32_t dtype, uint64_t bytes, float scale, uint32_t *state)
{
    for (uint64_t i = 0; i < bytes / td_dtype_bytes(dtype); i++) {
        const float x = scale * normal(state);
        td_from_floats(data, dtype, (int64_t)i, &x, 1);
    }
}

static void fill_blocks(void *data, uint32_t dtype, uint64_t bytes, float scale, uint32_t *state)
{
    const td_dtype of = td_dtype_of(dtype);
    float x[TD_MAX_BLOCK];
    for (uint64_t at = 0; at < bytes; at += of.bytes) {
        for (uint32_t i = 0; i < of.elements; i++)
            x[i] = scale * normal(state);
        td_block_encode(dtype, (uint8_t *)data + at, x);
    }
}

static tandem_view view_of(tl_case *it, uint32_t view, uint32_t dtype, uint32_t rows, uint32_t channels, uint32_t pad, uint32_t offset)
{
    const td_dtype of = td_dtype_of(dtype);
    const int64_t stride = (int64_t)channels + (int64_t)pad * of.elements;
    it->bytes[view] = ((uint64_t)stride * rows + offset) / of.elements * of.bytes;
    it->data[view] = aligned_alloc(64, (it->bytes[view] + 127) / 64 * 64);
    assert_non_null(it->data[view]);
    return (tandem_view){.offset_bytes = (uint64_t)offset * of.bytes, .dtype = dtype, .stride_batch = stride * rows,
                         .stride_head = stride * rows, .stride_row = stride};
}

tl_case tl_make(tl_shape s, uint32_t seed)
{
    tl_case it = {.shape = s};
    tandem_linear *l = &it.op.linear;
    const uint32_t w_rows = s.gate ? 2 * s.outs : s.outs, offset = s.offset;
    const float scale = 1 / sqrtf((float)s.ins);
    uint32_t state = seed * 2654435761u + 1;
    l->rows = s.rows, l->ins = s.ins, l->outs = s.outs, l->activation = s.activation, l->gate = s.gate;
    l->x = view_of(&it, TL_X, s.dtype, s.rows, s.ins, s.pad, offset);
    fill(it.data[TL_X], s.dtype, it.bytes[TL_X], 1, &state);
    l->w = view_of(&it, TL_W, td_linear_weight_dtype(s.weights, s.dtype), w_rows, s.ins, s.pad, offset);
    if (s.weights == TD_LINEAR_DENSE)
        fill(it.data[TL_W], s.dtype, it.bytes[TL_W], scale, &state);
    else if (s.weights != TD_LINEAR_INT8)
        fill_blocks(it.data[TL_W], l->w.dtype, it.bytes[TL_W], scale, &state);
    for (uint64_t i = 0; s.weights == TD_LINEAR_INT8 && i < it.bytes[TL_W]; i++)
        ((uint8_t *)it.data[TL_W])[i] = (uint8_t)next(&state);
    if (s.weights == TD_LINEAR_INT8) {
        l->scale = view_of(&it, TL_SCALE, TANDEM_DTYPE_F32, 1, w_rows, 0, 0);
        fill(it.data[TL_SCALE], TANDEM_DTYPE_F32, it.bytes[TL_SCALE], scale / 64, &state);
    }
    if (s.bias_dtype) {
        l->bias = view_of(&it, TL_BIAS, s.bias_dtype, 1, w_rows, 0, 0);
        fill(it.data[TL_BIAS], s.bias_dtype, it.bytes[TL_BIAS], 1, &state);
    }
    if (s.residual_dtype) {
        l->residual = view_of(&it, TL_RESIDUAL, s.residual_dtype, s.rows, s.outs, s.pad, 0);
        fill(it.data[TL_RESIDUAL], s.residual_dtype, it.bytes[TL_RESIDUAL], 1, &state);
    }
    if (s.head_dim) {
        l->head_dim = s.head_dim, l->rotated_channels = s.rotated_channels, l->rotated_heads = s.rotated_heads;
        l->positions = 1 + s.rows / 2;
        l->rotation = view_of(&it, TL_ROTATION, TANDEM_DTYPE_F32, l->positions, s.rotated_channels, s.pad, 0);
        l->position = view_of(&it, TL_POSITION, TANDEM_DTYPE_I32, 1, s.rows, 0, 0);
        fill(it.data[TL_ROTATION], TANDEM_DTYPE_F32, it.bytes[TL_ROTATION], 1, &state); /* cosines and sines of anything */
        for (uint32_t i = 0; i < s.rows; i++) /* in any order, some outside the table */
            ((int32_t *)it.data[TL_POSITION])[i] = i % 5 == 4 ? (i % 2 ? INT32_MIN : INT32_MAX)
                                                              : (int32_t)(next(&state) % (l->positions + 2)) - 1;
    }
    l->y = view_of(&it, TL_Y, s.y_dtype, s.rows + ROWS_BEHIND, s.outs, s.pad, offset);
    tl_poison(&it);
    return it;
}

void tl_poison(tl_case *it)
{
    memset(it->data[TL_Y], POISON, it->bytes[TL_Y]);
}

void tl_free(tl_case *it)
{
    for (uint32_t i = 0; i < TL_VIEWS; i++)
        free(it->data[i]);
}

static const void *begin_of(const tl_case *it, uint32_t view)
{
    return it->data[view] ? (const char *)it->data[view] + td_view_in(&td_operation_linear.layout, &it->op, view)->offset_bytes : NULL;
}

void tl_check(const tl_case *it, uint32_t step)
{
    const tandem_linear *l = &it->op.linear;
    td_params_linear p = td_linear_params(l);
    p.x = begin_of(it, TL_X);
    p.w = begin_of(it, TL_W);
    p.scale = begin_of(it, TL_SCALE);
    p.bias = begin_of(it, TL_BIAS);
    p.residual = begin_of(it, TL_RESIDUAL);
    p.rotation = begin_of(it, TL_ROTATION);
    p.position = begin_of(it, TL_POSITION);
    const uint32_t element = td_dtype_bytes(l->y.dtype);
    for (uint32_t row = 0; row < l->rows; row += step)
        for (uint32_t column = 0; column < l->outs; column++) {
            double want, bound;
            float got;
            td_linear_reference(&p, row, column, &want, &bound);
            td_to_floats(&got, begin_of(it, TL_Y), l->y.dtype, row * l->y.stride_row + column, 1);
            if (!(fabs((double)got - want) <= bound))
                fail_msg("%u x %u x %u, weights %d, gate %u, activation %u: y[%u][%u] is %g, not %g to %g", (unsigned)l->rows,
                         (unsigned)l->ins, (unsigned)l->outs, (int)it->shape.weights, (unsigned)l->gate, (unsigned)l->activation,
                         (unsigned)row, (unsigned)column, (double)got, want, bound);
        }
    const unsigned char *y = it->data[TL_Y];
    const uint64_t stride = (uint64_t)l->y.stride_row * element;
    for (uint64_t i = 0; i < it->bytes[TL_Y]; i++) {
        const bool before = i < l->y.offset_bytes;
        const uint64_t at = i - l->y.offset_bytes;
        if ((before || at / stride >= l->rows || at % stride >= (uint64_t)l->outs * element) && y[i] != POISON)
            fail_msg("byte %llu of y's memory was written, which is not y's", (unsigned long long)i);
    }
}

/* --- Through sessions --- */

void tl_must(tandem_status status, tandem_session *session, const char *call)
{
    char text[512] = "";
    if (!status)
        return;
    tandem_error_text(session, text, sizeof text);
    fail_msg("%s: status %d: %s", call, (int)status, text);
}

/* Memory of the host's, on every rung. */
typedef struct shared {
    void *pages;
    tandem_mem mem;
} shared;

static shared place(tandem_session *s, const tl_case *it, uint32_t view)
{
    const uint64_t bytes = (it->bytes[view] + 4095) / 4096 * 4096;
    shared to = {0};
    if (!it->data[view])
        return to;
    to.pages = aligned_alloc(4096, bytes);
    assert_non_null(to.pages);
    memcpy(to.pages, it->data[view], it->bytes[view]);
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .source = TANDEM_MEM_HOST, .host = to.pages, .bytes = bytes};
    TL_OK(tandem_mem_create(s, &desc, &to.mem), s);
    return to;
}

static void through(tandem_session *s, tl_shape shape, uint32_t seed, uint64_t deadline_ns)
{
    tl_case it = tl_make(shape, seed);
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_LINEAR, .op = it.op, .deadline_ns = deadline_ns};
    tandem_job_report report = {.struct_bytes = sizeof report};
    shared mems[TL_VIEWS];
    tandem_ticket ticket;
    for (uint32_t i = 0; i < TL_VIEWS; i++) {
        mems[i] = place(s, &it, i);
        td_view_of(&td_operation_linear.layout, &job.op, i)->mem = mems[i].mem;
    }
    TL_OK(tandem_submit(s, &job, &ticket), s);
    TL_OK(tandem_wait(s, ticket, patience_ns, &report), s);
    assert_int_equal(report.state, TANDEM_JOB_DONE);
    memcpy(it.data[TL_Y], mems[TL_Y].pages, it.bytes[TL_Y]);
    tl_check(&it, 7);
    for (uint32_t i = 0; i < TL_VIEWS; i++)
        if (mems[i].mem) {
            TL_OK(tandem_mem_destroy(s, mems[i].mem), s);
            free(mems[i].pages);
        }
    tl_free(&it);
}

void tl_try_session(tandem_session *s)
{
    static const uint32_t rows[] = {1, 20, 64, 65, 150, 512};
    for (uint32_t n = 0; n < 24; n++) {
        tl_shape shape = {.rows = rows[n % 6],
                                .ins = n % 4 ? 256 : 264,
                                .outs = 96 + 100 * n,
                                .dtype = 1 + n % 2,
                                .y_dtype = 1 + n % 3,
                                .weights = n % 3 ? TD_LINEAR_DENSE : n % 4 ? (td_linear_weights)(1 + n / 3 % 6) : TD_LINEAR_INT8,
                                .bias_dtype = n % 2,
                                .gate = n / 3 % 3,
                                .activation = n % 5 == 1 ? 0 : n % 4};
        if (n % 5 == 1) { /* n is 1, 6, 11, 16, 21 */
            shape.gate = 0;
            shape.head_dim = n % 2 ? 32 : 64;
            shape.rotated_channels = n % 2 ? 32 : 40;
            shape.rotated_heads = 1 + n % 3;
        }
        through(s, shape, n, n % 2 * patience_ns);
    }
}
