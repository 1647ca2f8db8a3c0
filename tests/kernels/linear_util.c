/* Linear layers for tests. See linear_util.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/linear_util.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/blocks.h"
#include "kernels/cpu/cpu.h"
#include "kernels/tiles.h"

enum { POISON = 0xa5, ROWS_BEHIND = 2, GUARD = 256 };
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

static tandem_view codes_of(tl_case *it, uint32_t view, uint32_t dtype)
{
    const tl_shape *s = &it->shape;
    const uint32_t heads = view == TL_Q ? s->heads : s->kv_heads, len = s->rows / s->batch;
    const int64_t rows_pad = (len + 127) / 128 * 128, d_pad = s->head_dim > 128 ? 256 : (s->head_dim + 31) / 32 * 32;
    it->bytes[view] = tandem_codes_bytes(dtype, s->batch, heads, len, s->head_dim, NULL) + GUARD;
    it->data[view] = aligned_alloc(64, (it->bytes[view] + 63) / 64 * 64);
    assert_non_null(it->data[view]);
    return (tandem_view){.dtype = dtype, .stride_batch = rows_pad * d_pad * heads, .stride_head = rows_pad * d_pad,
                         .stride_row = view == TL_V ? rows_pad : d_pad};
}

/* Statistics as another call may have left them: some larger than this one's, some smaller. */
static void make_codes(tl_case *it, uint32_t *state)
{
    const tl_shape *s = &it->shape;
    tandem_linear *l = &it->op.linear;
    const int64_t pair = 2 * (int64_t)s->head_dim;
    l->batch = s->batch, l->heads = s->heads, l->kv_heads = s->kv_heads, l->head_dim = s->head_dim, l->granularity = s->granularity;
    l->q = codes_of(it, TL_Q, TANDEM_DTYPE_CODES_INT8);
    l->k = codes_of(it, TL_K, TANDEM_DTYPE_CODES_INT8);
    l->v = codes_of(it, TL_V, TANDEM_DTYPE_CODES_E4M3);
    if (s->has_statistics) {
        l->statistics = view_of(it, TL_STATISTICS, TANDEM_DTYPE_F32, 2 * s->kv_heads * s->batch, s->head_dim, 0, 0);
        l->statistics.stride_batch = pair * s->kv_heads, l->statistics.stride_head = pair;
        fill(it->data[TL_STATISTICS], TANDEM_DTYPE_F32, it->bytes[TL_STATISTICS], 1, state);
        for (uint64_t i = 0; i < it->bytes[TL_STATISTICS] / sizeof(float); i++)
            if (i / s->head_dim % 2)
                ((float *)it->data[TL_STATISTICS])[i] = 3 * fabsf(((float *)it->data[TL_STATISTICS])[i]);
    }
    if (s->wants_next) {
        l->next_statistics = view_of(it, TL_NEXT_STATISTICS, TANDEM_DTYPE_F32, 2 * s->kv_heads * s->batch + ROWS_BEHIND, s->head_dim, 3, 0);
        l->next_statistics.stride_head = 2 * l->next_statistics.stride_row;
        l->next_statistics.stride_batch = s->kv_heads * l->next_statistics.stride_head;
    }
}

/* W's blocks, which stay beside it, in tiles. */
static void put_in_tiles(tl_case *it, uint32_t tiles, uint32_t rows)
{
    uint8_t *to = aligned_alloc(64, (it->bytes[TL_W] + 127) / 64 * 64);
    assert_non_null(to);
    td_tiles_pack_matrix(tiles, it->data[TL_W], rows, it->shape.ins, to);
    it->blocks = it->data[TL_W], it->data[TL_W] = to;
    it->op.linear.w.dtype = tiles;
}

static uint32_t round_up(uint32_t x, uint32_t to)
{
    return (x + to - 1) / to * to;
}

tl_case tl_make(tl_shape s, uint32_t seed)
{
    const bool in_tiles = s.weights >= TD_LINEAR_TILES;
    const uint32_t tiles = td_linear_weight_dtype(s.weights, s.dtype);
    if (s.heads)
        s.outs = (s.heads + 2 * s.kv_heads) * s.head_dim;
    if (in_tiles) {
        s.ins = round_up(s.ins, td_dtype_of(tiles).elements);
        s.outs = round_up(s.outs, s.gate ? TD_WEIGHT_ROWS / 2 : TD_WEIGHT_ROWS);
        s.weights = td_linear_blocks_of(s.weights);
    }
    tl_case it = {.shape = s};
    tandem_linear *l = &it.op.linear;
    const uint32_t w_rows = s.gate ? 2 * s.outs : s.outs, offset = s.offset;
    const float scale = 1 / sqrtf((float)s.ins);
    uint32_t state = seed * 2654435761u + 1;
    l->rows = s.rows, l->ins = s.ins, l->outs = s.outs, l->activation = s.activation, l->gate = s.gate;
    l->x = view_of(&it, TL_X, s.dtype, s.rows, s.ins, s.pad, offset);
    fill(it.data[TL_X], s.dtype, it.bytes[TL_X], 1, &state);
    l->w = view_of(&it, TL_W, td_linear_weight_dtype(s.weights, s.dtype), w_rows, s.ins, in_tiles ? 0 : s.pad, in_tiles ? 0 : offset);
    if (s.weights == TD_LINEAR_DENSE)
        fill(it.data[TL_W], s.dtype, it.bytes[TL_W], scale, &state);
    else if (s.weights != TD_LINEAR_INT8)
        fill_blocks(it.data[TL_W], l->w.dtype, it.bytes[TL_W], scale, &state);
    if (in_tiles)
        put_in_tiles(&it, tiles, w_rows);
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
    if (s.rotated_channels) {
        l->head_dim = s.head_dim, l->rotated_channels = s.rotated_channels, l->rotated_heads = s.rotated_heads;
        l->positions = 1 + s.rows / 2;
        l->rotation = view_of(&it, TL_ROTATION, TANDEM_DTYPE_F32, l->positions, s.rotated_channels, s.pad, 0);
        l->position = view_of(&it, TL_POSITION, TANDEM_DTYPE_I32, 1, s.rows, 0, 0);
        fill(it.data[TL_ROTATION], TANDEM_DTYPE_F32, it.bytes[TL_ROTATION], 1, &state); /* cosines and sines of anything */
        for (uint32_t i = 0; i < s.rows; i++) /* in any order, some outside the table */
            ((int32_t *)it.data[TL_POSITION])[i] = i % 5 == 4 ? (i % 2 ? INT32_MIN : INT32_MAX)
                                                              : (int32_t)(next(&state) % (l->positions + 2)) - 1;
    }
    if (s.y_dtype)
        l->y = view_of(&it, TL_Y, s.y_dtype, s.rows + ROWS_BEHIND, s.outs, s.pad, offset);
    if (s.heads)
        make_codes(&it, &state);
    tl_poison(&it);
    return it;
}

void tl_poison(tl_case *it)
{
    for (uint32_t i = TL_Y; i < TL_VIEWS; i++)
        if (it->data[i])
            memset(it->data[i], POISON, it->bytes[i]);
}

void tl_free(tl_case *it)
{
    for (uint32_t i = 0; i < TL_VIEWS; i++)
        free(it->data[i]);
    free(it->blocks);
}

static const void *begin_of(const tl_case *it, uint32_t view)
{
    return it->data[view] ? (const char *)it->data[view] + td_view_in(&td_operation_linear.layout, &it->op, view)->offset_bytes : NULL;
}

/* Whether an element is what one of the kernels may make of it. */
static bool is_right(const tl_case *it, const td_params_linear *p, uint32_t row, uint32_t column, double got, double *want, double *bound)
{
    const bool in_integers = it->on_cpu && td_cpu_linear_in_integers(p);
    td_linear_reference(p, in_integers ? TD_LINEAR_IN_INTEGERS : TD_LINEAR_ROUNDED, row, column, want, bound);
    if (fabs(got - *want) <= *bound)
        return true;
    if (it->on_cpu || p->weights < TD_LINEAR_Q8_0 || p->rows > TD_LINEAR_SKINNY_MOST)
        return false;
    td_linear_reference(p, TD_LINEAR_SCALED, row, column, want, bound);
    return fabs(got - *want) <= *bound;
}

void tl_check(const tl_case *it, uint32_t step)
{
    const tandem_linear *l = &it->op.linear;
    td_params_linear p = td_linear_params(l);
    p.x = begin_of(it, TL_X);
    p.w = it->blocks ? it->blocks : begin_of(it, TL_W);
    if (it->blocks)
        p.weights = (uint8_t)it->shape.weights;
    p.scale = begin_of(it, TL_SCALE);
    p.bias = begin_of(it, TL_BIAS);
    p.residual = begin_of(it, TL_RESIDUAL);
    p.rotation = begin_of(it, TL_ROTATION);
    p.position = begin_of(it, TL_POSITION);
    const uint32_t element = td_dtype_bytes(l->y.dtype);
    if (getenv("TANDEM_SANITIZED")) /* numbers are the plain build's to judge; sanitizers are for what is read and written */
        step *= 8;
    for (uint32_t row = 0; row < l->rows; row += step)
        for (uint32_t column = 0; column < l->outs; column++) {
            double want, bound;
            float got;
            td_to_floats(&got, begin_of(it, TL_Y), l->y.dtype, row * l->y.stride_row + column, 1);
            if (!is_right(it, &p, row, column, (double)got, &want, &bound))
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

/* --- Codes --- */

/* Rows of a head that share a scale with row r, as tandem/types.h says it. */
static bool same_group(uint32_t r, uint32_t s, uint32_t granularity, bool is_k)
{
    switch (granularity) {
    case TANDEM_GRANULARITY_THREAD_ADA:
        return is_k ? r / 64 == s / 64 && r % 8 / 2 == s % 8 / 2 : r / 32 == s / 32 && r % 8 == s % 8;
    case TANDEM_GRANULARITY_THREAD_HOPPER:
        return is_k ? r / 128 == s / 128 && r % 8 / 2 == s % 8 / 2 : r / 16 == s / 16 && r % 8 == s % 8;
    case TANDEM_GRANULARITY_WARP: return is_k ? r / 64 == s / 64 : r / 32 == s / 32;
    case TANDEM_GRANULARITY_BLOCK: return is_k ? r / 64 == s / 64 : r / 128 == s / 128;
    default: return r == s;
    }
}

/* A head of y as floats; what is not finite is 0, and its row bad. */
typedef struct plane {
    uint32_t len, dim;
    float *y;
    bool *bad;
} plane;

static plane load_head(const tl_case *it, uint32_t batch, uint32_t number)
{
    const tandem_linear *l = &it->op.linear;
    plane h = {.len = l->rows / l->batch, .dim = l->head_dim};
    h.y = calloc((size_t)h.len * h.dim, sizeof *h.y);
    h.bad = calloc(h.len, sizeof *h.bad);
    assert_true(h.y && h.bad);
    for (uint32_t r = 0; r < h.len; r++) {
        float *row = h.y + (size_t)r * h.dim;
        td_to_floats(row, begin_of(it, TL_Y), l->y.dtype, (batch * h.len + r) * l->y.stride_row + number * h.dim, h.dim);
        for (uint32_t c = 0; c < h.dim; c++)
            if (!isfinite(row[c]))
                row[c] = 0, h.bad[r] = true;
    }
    return h;
}

static void free_head(plane *h)
{
    free(h->y);
    free(h->bad);
}

/* Of chunks of 128 rows, which have eight sums. */
static float mean_of(const plane *h, uint32_t c)
{
    volatile float total = 0;
    for (uint32_t first = 0; first < h->len; first += 128) {
        volatile float sum[8] = {0};
        for (uint32_t r = first; r < h->len && r < first + 128; r++)
            sum[r % 8] = sum[r % 8] + h->y[r * h->dim + c];
        for (uint32_t i = 0; i < 8; i += 2) {
            sum[i] = sum[i] + sum[i + 1];
            sum[0] = i ? sum[0] + sum[i] : sum[0];
        }
        total = total + sum[0];
    }
    return total / (float)h->len;
}

static float largest_of(const plane *h, uint32_t c)
{
    float most = 0;
    for (uint32_t r = 0; r < h->len; r++)
        most = fmaxf(most, fabsf(h->y[r * h->dim + c]));
    return most;
}

static void same_bits(float is, float must, const char *what, uint32_t head, uint32_t row)
{
    if (isnan(must) ? !isnan(is) : td_bits(is) != td_bits(must))
        fail_msg("%s of head %u, row %u is %g, not %g", what, (unsigned)head, (unsigned)row, (double)is, (double)must);
}

static void check_rows(const plane *h, const bool *more_bad, const float *mean, uint32_t granularity, bool is_k, uint32_t number,
                       const int8_t *codes, const float *scales)
{
    const uint32_t rows_pad = (h->len + 127) / 128 * 128, d_pad = h->dim > 128 ? 256 : (h->dim + 31) / 32 * 32;
    for (uint32_t r = 0; r < rows_pad; r++) {
        float most = 0;
        for (uint32_t s = r / 128 * 128; s < h->len && s < r / 128 * 128 + 128; s++)
            if (same_group(r, s, granularity, is_k))
                for (uint32_t c = 0; c < h->dim; c++)
                    most = fmaxf(most, fabsf(h->y[s * h->dim + c] - mean[c]));
        const bool exists = r < h->len, tiny = most < 0x1p-100f, bad = exists && (h->bad[r] || (more_bad && more_bad[r]));
        same_bits(scales[r], !exists ? 0 : bad ? NAN : tiny ? 0 : most / 127, is_k ? "K's scale" : "Q's scale", number, r);
        for (uint32_t c = 0; c < d_pad; c++) {
            float code = 0;
            if (exists && !tiny && c < h->dim)
                code = fminf(fmaxf(rintf((h->y[r * h->dim + c] - mean[c]) * (127 / most)), -127), 127);
            if (codes[r * d_pad + c] != (int)code)
                fail_msg("%s's code of head %u, row %u, channel %u is %d, not %d", is_k ? "K" : "Q", (unsigned)number, (unsigned)r,
                         (unsigned)c, codes[r * d_pad + c], (int)code);
        }
    }
}

static void check_v(const plane *h, const float *most, uint32_t number, const uint8_t *codes, const float *scales)
{
    const uint32_t rows_pad = (h->len + 127) / 128 * 128, d_pad = h->dim > 128 ? 256 : (h->dim + 31) / 32 * 32;
    for (uint32_t c = 0; c < d_pad; c++) {
        const bool none = c >= h->dim || most[c] < 0x1p-100f;
        same_bits(scales[c], none ? 0 : most[c] / 1.75f, "V's scale", number, c);
        for (uint32_t r = 0; r < rows_pad; r++) {
            const float y = r < h->len && c < h->dim ? h->y[r * h->dim + c] * (none ? 0 : 1.75f / most[c]) : 0;
            const uint32_t at = r / 16 * 16 + r % 8 / 2 * 4 + r % 16 / 8 * 2 + r % 2;
            const uint8_t code = td_to_e4m3(fminf(fmaxf(y, -1.75f), 1.75f));
            if (codes[c * rows_pad + at] != code)
                fail_msg("V's code of head %u, row %u, channel %u is 0x%x, not 0x%x", (unsigned)number, (unsigned)r, (unsigned)c,
                         codes[c * rows_pad + at], code);
        }
    }
}

static void check_guard(const tl_case *it, uint32_t view)
{
    for (uint64_t i = it->bytes[view] - GUARD; i < it->bytes[view]; i++)
        assert_int_equal(((const uint8_t *)it->data[view])[i], POISON);
}

void tl_check_codes(const tl_case *it, uint32_t granularity)
{
    const tandem_linear *l = &it->op.linear;
    const uint32_t len = l->rows / l->batch, dim = l->head_dim, rows_pad = (len + 127) / 128 * 128;
    const uint32_t d_pad = dim > 128 ? 256 : (dim + 31) / 32 * 32;
    const size_t each = (size_t)rows_pad * d_pad;
    const uint8_t *q = it->data[TL_Q], *k = it->data[TL_K], *v = it->data[TL_V];
    const float *q_scales = (const float *)(q + each * l->batch * l->heads);
    const float *k_scales = (const float *)(k + each * l->batch * l->kv_heads);
    const float *v_scales = (const float *)(v + each * l->batch * l->kv_heads), *given = begin_of(it, TL_STATISTICS);
    static const float zeros[256];
    for (uint32_t batch = 0; batch < l->batch; batch++) {
        for (uint32_t n = 0; n < l->heads; n++) {
            const size_t at = batch * l->heads + n;
            plane h = load_head(it, batch, n);
            check_rows(&h, NULL, zeros, granularity, false, n, (const int8_t *)q + at * each, q_scales + at * rows_pad);
            free_head(&h);
        }
        for (uint32_t n = 0; n < l->kv_heads; n++) {
            const size_t at = batch * l->kv_heads + n;
            plane keys = load_head(it, batch, l->heads + n), values = load_head(it, batch, l->heads + l->kv_heads + n);
            float own[2][256];
            for (uint32_t c = 0; c < dim; c++)
                own[0][c] = mean_of(&keys, c), own[1][c] = largest_of(&values, c);
            for (uint32_t i = 0; i < 2 && l->next_statistics.dtype; i++) {
                const tandem_view *to = &l->next_statistics;
                const float *next = (const float *)it->data[TL_NEXT_STATISTICS] + batch * to->stride_batch + n * to->stride_head;
                for (uint32_t c = 0; c < dim; c++)
                    same_bits(next[i * to->stride_row + c], own[i][c], "statistics", n, i);
            }
            const float *mean = given ? given + batch * l->statistics.stride_batch + n * l->statistics.stride_head : own[0];
            check_rows(&keys, values.bad, mean, granularity, true, n, (const int8_t *)k + at * each, k_scales + at * rows_pad);
            check_v(&values, given ? mean + l->statistics.stride_row : own[1], n, v + at * each, v_scales + at * d_pad);
            free_head(&keys);
            free_head(&values);
        }
    }
    for (uint32_t view = TL_Q; view <= TL_V; view++)
        check_guard(it, view);
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

static bool on_cpu(tandem_session *s)
{
    tandem_info info = {.struct_bytes = sizeof info};
    TL_OK(tandem_session_info(s, &info), s);
    return info.backend == TANDEM_BACKEND_CPU;
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
    it.on_cpu = on_cpu(s);
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

/* A job that must end well. */
static void compute(tandem_session *s, const tandem_job *job)
{
    tandem_job_report report = {.struct_bytes = sizeof report};
    tandem_ticket ticket;
    TL_OK(tandem_submit(s, job, &ticket), s);
    TL_OK(tandem_wait(s, ticket, patience_ns, &report), s);
    assert_int_equal(report.state, TANDEM_JOB_DONE);
}

/* Attention on codes, or on y's heads. */
static tandem_job attention_of(const tandem_linear *l, bool on_codes, tandem_mem o, uint64_t deadline_ns)
{
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION, .deadline_ns = deadline_ns};
    const uint32_t len = l->rows / l->batch, head_bytes = l->head_dim * td_dtype_bytes(l->y.dtype);
    tandem_view q = l->y;
    q.stride_head = l->head_dim;
    q.stride_batch = len * l->y.stride_row;
    tandem_view k = q, v = q;
    k.offset_bytes += (uint64_t)l->heads * head_bytes;
    v.offset_bytes += (uint64_t)(l->heads + l->kv_heads) * head_bytes;
    job.op.attention = (tandem_attention){.q = on_codes ? l->q : q, .k = on_codes ? l->k : k, .v = on_codes ? l->v : v,
                                          .o = tandem_view_dense(o, 0, TANDEM_DTYPE_F32, l->heads, len, l->head_dim),
                                          .batch = l->batch, .heads = l->heads, .kv_heads = l->kv_heads, .q_len = len, .kv_len = len,
                                          .head_dim = l->head_dim, .causal = len % 2, .precision = TANDEM_PRECISION_8B};
    return job;
}

/* Once with own statistics, then with those that this left: the same codes, and the same attention on them as on y. */
static bool try_codes(tandem_session *s, tl_shape shape, uint32_t seed, uint64_t deadline_ns)
{
    tl_case it = tl_make(shape, seed);
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_LINEAR, .op = it.op, .deadline_ns = deadline_ns};
    tandem_linear *l = &job.op.linear;
    shared mems[TL_VIEWS];
    tandem_ticket ticket;
    void *o[2];
    for (uint32_t i = 0; i < TL_VIEWS; i++) {
        mems[i] = place(s, &it, i);
        td_view_of(&td_operation_linear.layout, &job.op, i)->mem = mems[i].mem;
    }
    const tandem_status status = tandem_submit(s, &job, &ticket);
    if (status != TANDEM_ERROR_UNSUPPORTED) {
        const uint64_t o_bytes = (uint64_t)l->rows * l->heads * l->head_dim * sizeof(float), whole = td_align_up(o_bytes, 4096);
        TL_OK(status, s);
        TL_OK(tandem_wait(s, ticket, patience_ns, NULL), s);
        for (uint32_t i = TL_Y; i < TL_VIEWS; i++)
            memcpy(it.data[i], mems[i].pages, it.bytes[i]);
        it.on_cpu = on_cpu(s);
        tl_check(&it, 11);
        for (int i = 0; i < 2; i++) {
            tandem_mem mem;
            o[i] = aligned_alloc(4096, whole); /* the host's on each rung */
            assert_non_null(o[i]);
            memset(o[i], POISON, whole);
            const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .source = TANDEM_MEM_HOST, .host = o[i], .bytes = whole};
            TL_OK(tandem_mem_create(s, &desc, &mem), s);
            const tandem_job attention = attention_of(l, i, mem, deadline_ns);
            compute(s, &attention);
            TL_OK(tandem_mem_destroy(s, mem), s);
        }
        assert_memory_equal(o[0], o[1], o_bytes);
        free(o[0]);
        free(o[1]);
        l->statistics = l->next_statistics;
        l->next_statistics = l->y = (tandem_view){0};
        for (uint32_t i = TL_Q; i <= TL_V; i++)
            memset(mems[i].pages, POISON, it.bytes[i]);
        compute(s, &job);
        for (uint32_t i = TL_Q; i <= TL_V; i++)
            assert_memory_equal(mems[i].pages, it.data[i], it.bytes[i]);
    }
    for (uint32_t i = 0; i < TL_VIEWS; i++)
        if (mems[i].mem) {
            TL_OK(tandem_mem_destroy(s, mems[i].mem), s);
            free(mems[i].pages);
        }
    tl_free(&it);
    return status == TANDEM_OK;
}

bool tl_try_codes(tandem_session *s)
{
    static const uint32_t lens[] = {1, 63, 64, 65, 127, 129, 300}, dims[] = {32, 64, 80, 96, 128};
    bool done = true;
    for (uint32_t n = 0; n < 14; n++) {
        const uint32_t dtype = 1 + n % 2, batch = 1 + n % 3;
        done &= try_codes(s, (tl_shape){.rows = batch * lens[n % 7], .ins = 128, .dtype = dtype, .y_dtype = dtype, .batch = batch,
                                        .heads = n % 2 ? 4 : 2, .kv_heads = 2, .head_dim = dims[n % 5], .wants_next = true,
                                        .rotated_channels = n % 3 ? 16 : 0, .rotated_heads = n % 3 ? 3 : 0},
                          n, n % 4 / 2 * patience_ns);
    }
    return done;
}
