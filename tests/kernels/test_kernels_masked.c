/* Attention with lengths of keys, a bias, a cap, positions of rows, windows, sequences one behind the other and sinks, against float64:
 * on the CPU in each instruction set, and the CUDA kernels on the
 * emulator; in parts with the bits of the whole.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/attention/attention.h"
#include "kernels/codes.h"
#include "kernels/cpu/cpu.h"
#include "tests/kernels/kernels_util.h"

/* A bias of -inf for every seventh key, and all keys of row 1. */
static void fill_bias(tu_tensor *bias, uint64_t seed)
{
    tu_fill_normal(bias, seed, 0);
    for (uint32_t b = 0; b < bias->batch; b++)
        for (uint32_t h = 0; h < bias->heads; h++)
            for (uint32_t r = 0; r < bias->rows; r++)
                for (uint32_t c = 0; c < bias->dim; c++)
                    if (c % 7 == 3 || r == 1)
                        tu_set(bias, b, h, r, c, -INFINITY);
}

typedef struct shape {
    uint32_t batch, heads, kv_heads, q_len, kv_len, head_dim, dtype;
    uint32_t q_total, kv_total; /* of sequences one behind the other, or 0 */
    bool sink;
} shape;

/* What a start counts as: the largest up to it, within 0 and `total`. */
static uint32_t start_of(const tu_tensor *start, uint32_t b, uint32_t total)
{
    double most = 0;
    for (uint32_t i = 0; i <= b; i++)
        most = fmax(most, tu_get(start, 0, 0, 0, i));
    return (uint32_t)fmin(most, total);
}

/* Rows of q, or keys, of batch b, and where they are: in batch *in from row *first on. */
static uint32_t rows_of(const ku_case *it, bool of_keys, uint32_t b, uint32_t *in, uint32_t *first)
{
    const tandem_attention *op = &it->op.attention;
    const tu_tensor *start = &it->tensors[of_keys ? TD_VIEW_K_START : TD_VIEW_Q_START];
    const uint32_t most = of_keys ? op->kv_len : op->q_len, total = of_keys ? op->kv_total : op->q_total;
    *in = start->data ? 0 : b;
    *first = start->data ? start_of(start, b, total) : 0;
    return start->data ? (uint32_t)fmin(start_of(start, b + 1, total) - *first, most) : most;
}

/* Some rise, some are the same, fall, or are too large; the first rows are none's, some sequences are longer than `most`. */
static tu_tensor make_starts(uint32_t batch, uint32_t total, uint32_t most, uint32_t n)
{
    tu_tensor start = tu_tensor_new(TANDEM_DTYPE_I32, TU_DENSE, 1, 1, 1, batch + 1);
    double at = n % 3;
    for (uint32_t b = 0; b <= batch; b++) {
        tu_set(&start, 0, 0, 0, b, n % 7 == 3 && b == 2 ? INT32_MIN : n % 5 == 4 && b == batch ? INT32_MAX : at);
        at = fmin(at + (double)((b + n) % 3 ? most - (b + n) % 2 * (most / 3) + (n % 4 == 1) : b % 2), total);
    }
    return start;
}

/* Keys of a batch from row `from` on: every third one with numbers that would spoil the scales of others. */
static void spoil(tu_tensor *k, tu_tensor *v, uint32_t b, uint32_t from)
{
    for (uint32_t r = from; r < k->rows; r++)
        for (uint32_t h = 0; h < k->heads; h++) {
            tu_set(k, b, h, r, r % k->dim, r % 3 ? NAN : 50000);
            tu_set(v, b, h, r, r % k->dim, r % 3 ? r % 2 ? NAN : INFINITY : -50000);
        }
}

/* Keys of no sequence. */
static void spoil_between(const ku_case *it, tu_tensor *k, tu_tensor *v)
{
    bool *used = calloc(k->rows, 1);
    assert_non_null(used);
    for (uint32_t b = 0; b < it->op.attention.batch; b++) {
        uint32_t in, first;
        const uint32_t count = rows_of(it, true, b, &in, &first);
        memset(used + first, 1, count);
    }
    for (uint32_t row = 0; row < k->rows; row++)
        for (uint32_t h = 0; h < k->heads && !used[row]; h++) {
            tu_set(k, 0, h, row, row % k->dim, row % 3 ? NAN : 50000);
            tu_set(v, 0, h, row, row % k->dim, row % 3 ? INFINITY : -50000);
        }
    free(used);
}

/* In any order, with some below 0; some are beyond all keys, or no row attends to the latter half of them. */
static tu_tensor make_positions(const shape *s, tu_tensor *k, tu_tensor *v, uint32_t n)
{
    const bool half = n % 2 && s->kv_len > 1;
    const uint32_t seen = half ? s->kv_len / 2 : s->kv_len;
    const uint32_t batch = s->q_total ? 1 : s->batch, rows = s->q_total ? s->q_total : s->q_len;
    tu_tensor position = tu_tensor_new(TANDEM_DTYPE_I32, (tu_layout)(n / 2 % 4), batch, 1, rows, 1);
    for (uint32_t b = 0; b < batch; b++)
        for (uint32_t r = 0; r < rows; r++)
            tu_set(&position, b, 0, r, 0,
                   r % 11 == 5             ? INT32_MIN
                   : r % 11 == 7 && !half  ? INT32_MAX
                                           : (double)((s->kv_len / 3 + b + 7 * r) % (seen + !half)) - (r % 3 == 1));
    for (uint32_t b = 0; b < s->batch && !s->kv_total; b++)
        spoil(k, v, b, seen);
    return position;
}

/* Keys that do not count are NaN. n % 3: a length, a bias, both; n / 3 % 3: a causal mask, or positions; some with a window, some with a
 * cap. */
static ku_case make(shape s, uint32_t n)
{
    const double lengths[] = {s.kv_len, (s.kv_len + 1) / 2, 0, -3, 1, INT32_MAX};
    ku_case it = {.operation = &td_operation_attention,
                  .op.attention = {.batch = s.batch, .heads = s.heads, .kv_heads = s.kv_heads, .q_len = s.q_len, .kv_len = s.kv_len,
                                   .head_dim = s.head_dim, .q_total = s.q_total, .kv_total = s.kv_total, .causal = n / 3 % 3 == 1, .scale = n % 5 ? 0 : 0.5f}};
    const tu_layout layout = (tu_layout)(n % 4);
    const uint32_t q_batch = s.q_total ? 1 : s.batch, q_rows = s.q_total ? s.q_total : s.q_len;
    const uint32_t k_batch = s.kv_total ? 1 : s.batch, k_rows = s.kv_total ? s.kv_total : s.kv_len;
    tu_tensor q = tu_tensor_new(s.dtype, layout, q_batch, s.heads, q_rows, s.head_dim);
    tu_tensor k = tu_tensor_new(s.dtype, layout, k_batch, s.kv_heads, k_rows, s.head_dim);
    tu_tensor v = tu_tensor_new(s.dtype, layout, k_batch, s.kv_heads, k_rows, s.head_dim);
    tu_fill_normal(&q, 3 * n, 0);
    tu_fill_normal(&k, 3 * n + 1, 0.5);
    tu_fill_normal(&v, 3 * n + 2, 0.1);
    if (s.q_total)
        ku_put(&it, TD_VIEW_Q_START, make_starts(s.batch, s.q_total, s.q_len, n));
    if (s.kv_total) {
        ku_put(&it, TD_VIEW_K_START, make_starts(s.batch, s.kv_total, s.kv_len, n + 1));
        spoil_between(&it, &k, &v);
    }
    if (s.sink) {
        tu_tensor sink = tu_tensor_new(1 + n % 3, TU_GAPS, 1, s.heads, 1, 1);
        for (uint32_t h = 0; h < s.heads; h++)
            tu_set(&sink, 0, h, 0, 0, (h + n) % 4 == 3 ? -INFINITY : (h + n) % 4 == 2 ? 9 : 0.5 * n - 4 * (n > 9));
        ku_put(&it, TD_VIEW_SINK, sink);
    }
    if (n % 3 != 1 && !s.kv_total) {
        tu_tensor length = tu_tensor_new(TANDEM_DTYPE_I32, TU_GAPS, s.batch, 1, 1, 1);
        for (uint32_t b = 0; b < s.batch; b++) {
            const double count = lengths[(n / 3 + b) % 6];
            tu_set(&length, b, 0, 0, 0, count);
            spoil(&k, &v, b, (uint32_t)fmin(fmax(count, 0), s.kv_len));
        }
        ku_put(&it, TD_VIEW_LENGTH, length);
    }
    if (n % 3) {
        const bool one_head = n % 2, one_row = n % 4 == 2;
        tu_tensor bias = tu_tensor_new(1 + n / 2 % 3, TU_GAPS, s.batch, one_head ? 1 : s.heads, one_row ? 1 : s.q_len, s.kv_len);
        fill_bias(&bias, n);
        ku_put(&it, TD_VIEW_BIAS, bias);
        it.op.attention.bias.stride_head *= !one_head;
        it.op.attention.bias.stride_row *= !one_row;
    }
    it.op.attention.softcap = n % 4 == 1 ? 1.5f : 0;
    if (n / 3 % 3 && n % 5 < 2)
        it.op.attention.window = n % 10 == 5 ? UINT32_MAX : 1 + 29 * n % 70;
    if (n / 3 % 3 == 2)
        ku_put(&it, TD_VIEW_POSITION, make_positions(&s, &k, &v, n));
    ku_put(&it, TD_VIEW_Q, q);
    ku_put(&it, TD_VIEW_K, k);
    ku_put(&it, TD_VIEW_V, v);
    ku_put(&it, TD_VIEW_O, tu_tensor_new(1 + n % 3, layout, q_batch, s.heads, q_rows, s.head_dim));
    if (n % 4)
        ku_put(&it, TD_VIEW_LSE, tu_tensor_new(TANDEM_DTYPE_F32, TU_GAPS, q_batch, s.heads, q_rows, 1));
    return it;
}

/* Q, K and V as tu_values() has them. */
typedef struct operands {
    const ku_case *of;
    double *q, *k, *v;
} operands;

static operands operands_of(const ku_case *it)
{
    return (operands){it, tu_values(&it->tensors[TD_VIEW_Q]), tu_values(&it->tensors[TD_VIEW_K]), tu_values(&it->tensors[TD_VIEW_V])};
}

static void free_operands(operands *x)
{
    free(x->q);
    free(x->k);
    free(x->v);
}

static const double *row_in(const double *values, const tu_tensor *of, uint32_t b, uint32_t h, uint32_t r)
{
    return values + (((size_t)b * of->heads + h) * of->rows + r) * of->dim;
}

/* Row r of head h: whether it attends to key j, and with which score. */
static bool score_of(const operands *x, uint32_t b, uint32_t h, uint32_t r, uint32_t j, double *score)
{
    const ku_case *it = x->of;
    const tandem_attention *op = &it->op.attention;
    const tu_tensor *length = &it->tensors[TD_VIEW_LENGTH], *bias = &it->tensors[TD_VIEW_BIAS];
    const tu_tensor *position = &it->tensors[TD_VIEW_POSITION];
    uint32_t q_in, q_first, k_in, k_first;
    const int64_t rows = rows_of(it, false, b, &q_in, &q_first), keys = rows_of(it, true, b, &k_in, &k_first);
    double sum = 0, more = 0;
    if ((int64_t)j >= keys)
        return false;
    if (length->data && j >= tu_get(length, b, 0, 0, 0))
        return false;
    if (op->causal && (int64_t)j > (int64_t)r + keys - rows)
        return false;
    if (position->data && j > tu_get(position, q_in, 0, q_first + r, 0))
        return false;
    const int64_t own = position->data ? (int64_t)tu_get(position, q_in, 0, q_first + r, 0) : (int64_t)r + keys - rows;
    if (op->window && (int64_t)j <= own - op->window)
        return false;
    if (bias->data)
        more = tu_get(bias, b, h % bias->heads, r % bias->rows, j);
    const double *q = row_in(x->q, &it->tensors[TD_VIEW_Q], q_in, h, q_first + r);
    const double *k = row_in(x->k, &it->tensors[TD_VIEW_K], k_in, h / (op->heads / op->kv_heads), k_first + j);
    for (uint32_t c = 0; c < op->head_dim; c++)
        sum += q[c] * k[c];
    sum *= op->scale != 0 ? (double)op->scale : 1 / sqrt(op->head_dim);
    *score = (op->softcap > 0 ? (double)op->softcap * tanh(sum / (double)op->softcap) : sum) + more;
    return more != -INFINITY;
}

/* Rows of no sequence are 0, and no others were left out. */
static void check_between(const ku_case *it)
{
    const tandem_attention *op = &it->op.attention;
    bool *used = calloc(op->q_total, 1);
    assert_non_null(used);
    for (uint32_t b = 0; b < op->batch; b++) {
        uint32_t in, first;
        const uint32_t count = rows_of(it, false, b, &in, &first);
        memset(used + first, 1, count);
    }
    for (uint32_t row = 0; row < op->q_total; row++)
        for (uint32_t h = 0; h < op->heads && !used[row]; h++) {
            for (uint32_t c = 0; c < op->head_dim; c++)
                assert_true(tu_get(&it->tensors[TD_VIEW_O], 0, h, row, c) == 0);
            assert_true(!it->tensors[TD_VIEW_LSE].data || tu_get(&it->tensors[TD_VIEW_LSE], 0, h, row, 0) == -INFINITY);
        }
    free(used);
}

/* What float64 gives: for each row of each head one sum of exp(scores), and per channel those of exp(score) v and of exp(score) |v|. */
static size_t sums_of_row(const tandem_attention *op) { return 1 + 2 * (size_t)op->head_dim; }

static double *exact_of(const ku_case *it)
{
    const tandem_attention *op = &it->op.attention;
    const uint32_t dim = op->head_dim, rows = op->batch * op->heads * op->q_len;
    double *want = calloc(rows * sums_of_row(op), sizeof *want);
    operands x = operands_of(it);
    assert_non_null(want);
    for (uint32_t row = 0; row < rows; row++) {
        const uint32_t r = row % op->q_len, h = row / op->q_len % op->heads, b = row / op->q_len / op->heads;
        double *l = want + row * sums_of_row(op), *o = l + 1, *size = o + dim, score;
        uint32_t q_in, q_first, k_in, k_first;
        rows_of(it, true, b, &k_in, &k_first);
        if (r >= rows_of(it, false, b, &q_in, &q_first))
            continue;
        *l = it->tensors[TD_VIEW_SINK].data ? exp(tu_get(&it->tensors[TD_VIEW_SINK], 0, h, 0, 0)) : 0;
        for (uint32_t j = 0; j < op->kv_len; j++) {
            if (!score_of(&x, b, h, r, j, &score))
                continue;
            const double *v = row_in(x.v, &it->tensors[TD_VIEW_V], k_in, h / (op->heads / op->kv_heads), k_first + j), p = exp(score);
            *l += p;
            for (uint32_t c = 0; c < dim; c++) {
                o[c] += p * v[c];
                size[c] += p * fabs(v[c]);
            }
        }
    }
    free_operands(&x);
    return want;
}

/* P and O are rounded to the tensors' type, sums to float32. In 8 and 4 bits a sum is as wrong as scores, P and V are, of which some
 * err in one direction and some in the other: on the whole less than that. */
static void check_values(const ku_case *it, const double *want)
{
    static const double wrong[] = {[TANDEM_PRECISION_8B] = 0.2, [TANDEM_PRECISION_4B] = 1};
    static const double wrong_on_the_whole[] = {[TANDEM_PRECISION_8B] = 0.03, [TANDEM_PRECISION_4B] = 0.12};
    const tandem_attention *op = &it->op.attention;
    const bool codes = op->precision > TANDEM_PRECISION_F16;
    const double last = op->o.dtype == TANDEM_DTYPE_F32 ? 0 : op->o.dtype == TANDEM_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
    const double off = (op->q.dtype == TANDEM_DTYPE_BF16 ? 0x1p-8 : 0x1p-11) + last + op->kv_len * 0x1p-23 + 0x1p-15 +
                       (codes ? wrong[op->precision] : 0);
    /* Codes of small values are as far apart as those of values an 80th of the largest; of smoothed ones, as those of the mean. */
    const double least = !codes ? 0x1p-24 : op->smooth & TANDEM_SMOOTH_V ? 0.05 : 0.01;
    double all = 0, all_off = 0;
    for (uint32_t row = 0; row < op->batch * op->heads * op->q_len; row++) {
        const uint32_t r = row % op->q_len, h = row / op->q_len % op->heads, b = row / op->q_len / op->heads;
        const double *sums = want + row * sums_of_row(op), l = sums[0], *o = sums + 1, *size = o + op->head_dim;
        uint32_t q_in, q_first;
        if (r >= rows_of(it, false, b, &q_in, &q_first))
            continue;
        for (uint32_t c = 0; c < op->head_dim; c++) {
            const double got = tu_get(&it->tensors[TD_VIEW_O], q_in, h, q_first + r, c);
            assert_true(l == 0 ? got == 0 : l != l ? got != got : fabs(got - o[c] / l) <= off * size[c] / l + least);
            all += l > 0 ? size[c] / l : 0;
            all_off += l > 0 ? fabs(got - o[c] / l) : 0;
        }
        if (it->tensors[TD_VIEW_LSE].data) {
            const double got = tu_get(&it->tensors[TD_VIEW_LSE], q_in, h, q_first + r, 0);
            assert_true(l == 0 ? got == -INFINITY : l != l ? got != got : fabs(got - log(l)) <= (codes ? wrong[op->precision] : 1e-4));
        }
    }
    assert_true(!codes || all != all || all_off <= wrong_on_the_whole[op->precision] * all);
    if (op->q_total)
        check_between(it);
    assert_int_equal(tu_spoilt(&it->tensors[TD_VIEW_O]), 0);
    assert_true(!it->tensors[TD_VIEW_LSE].data || !tu_spoilt(&it->tensors[TD_VIEW_LSE]));
}

/* Runs it in each way a device has, whose bits are the same there. */
static void try_on(ku_case *it, const double *want, em_module *on, td_target target, uint32_t n)
{
    const tu_tensor *o = &it->tensors[TD_VIEW_O];
    unsigned char *whole = malloc(o->bytes);
    assert_non_null(whole);
    ku_run_on(it, on, target, 1);
    check_values(it, want);
    memcpy(whole, o->data, o->bytes);
    ku_run_on(it, on, target, 2 + n % 7);
    assert_memory_equal(o->data, whole, o->bytes);
    ku_run_elsewhere(it, on, target, n); /* where other kernels may have it, which add in another order */
    check_values(it, want);
    target.commit = true;
    ku_run_on(it, on, target, 1);
    assert_memory_equal(o->data, whole, o->bytes);
    free(whole);
}

static void try_everywhere(ku_case *it, uint32_t n)
{
    static const char *const sets[] = {"c", "avx2", "avx512"};
    double *want = exact_of(it);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (td_cpu_isa_force(sets[i]))
            try_on(it, want, NULL, td_target_for_sm(0), n);
    td_cpu_isa_force(NULL);
    for (size_t m = 0; m < EM_MODULES && it->op.attention.q.dtype != TANDEM_DTYPE_F32; m++) {
        if (em_quick() && (m + n / 12) % 2) /* 12: each head_dim in each type */
            continue;
        td_target target = td_target_for_sm(em_modules[m].sm);
        target.multiprocessors = n % 2 ? 132 : 1; /* blocks of 64 rows, or of 16 where those leave multiprocessors idle */
        try_on(it, want, &em_modules[m], target, n);
        target.multiprocessors = n % 2 ? 1 : 132;
        ku_run_on(it, &em_modules[m], target, 1);
        check_values(it, want);
    }
    free(want);
}

static void test_shapes(void **state)
{
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256}, lengths[] = {1, 63, 64, 65, 100, 17, 130};
    (void)state;
    for (uint32_t n = 0; n < 42; n++) {
        const uint32_t kv_heads = 1 + n % 2, dtype = n / 6 % 5 == 4 ? TANDEM_DTYPE_F32 : 1 + (n + n / 6) % 2;
        const uint32_t heads = kv_heads * (1 + n / 2 % 2), q_len = lengths[n % 7], kv_len = lengths[(3 * n + 2) % 7];
        ku_case it = make((shape){1 + n % 3, heads, kv_heads, q_len, kv_len, dims[n % 6], dtype, 0, 0, false}, n);
        try_everywhere(&it, n);
        ku_free(&it);
    }
}

/* Sequences one behind the other, of rows, of keys, of both, with sinks and without, each with a mask; a causal one counts by sequence. */
static void test_sequences(void **state)
{
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256}, lengths[] = {1, 63, 64, 65, 100, 17, 130};
    (void)state;
    for (uint32_t n = 0; n < 30; n++) {
        const uint32_t kv_heads = 1 + n % 2, q_len = lengths[n % 7], kv_len = n % 4 ? lengths[(3 * n + 2) % 7] : q_len;
        const bool of_q = n % 5 != 2, of_k = n % 5 < 4, codes = n % 5 == 1 || n % 5 == 3;
        ku_case it = make((shape){.batch = 1 + n % 4, .heads = kv_heads * (1 + n / 2 % 2), .kv_heads = kv_heads, .q_len = q_len,
                                  .kv_len = kv_len, .head_dim = dims[n % 6], .dtype = 1 + n / 6 % 2,
                                  .q_total = of_q ? 3 * q_len + n % 3 : 0, .kv_total = of_k ? 3 * kv_len + n % 2 : 0,
                                  .sink = n % 3 == 1}, n + 3);
        if (codes) {
            it.op.attention.precision = n / 5 % 2 ? TANDEM_PRECISION_4B : TANDEM_PRECISION_8B;
            it.op.attention.smooth = n / 10 ? 2 * (n % 7 ? n % 7 : 7) : 0;
            it.op.attention.scale = 0;
        }
        double *want = exact_of(&it);
        try_on(&it, want, NULL, td_target_for_sm(0), n);
        for (size_t m = 0; m < EM_MODULES; m++) {
            if ((m + n) % (codes ? 4 : 2))
                continue;
            td_target target = td_target_for_sm(em_modules[m].sm);
            target.multiprocessors = n % 2 ? 132 : 1;
            try_on(&it, want, &em_modules[m], target, n);
        }
        free(want);
        ku_free(&it);
    }
}

/* Of as many batches as no warp has lanes: with starts that fall, all at once, and far from what there is. */
static void test_many_sequences(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 2; n++) {
        ku_case it = make((shape){.batch = 70, .heads = 1, .kv_heads = 1, .q_len = 3, .kv_len = 5, .head_dim = 32, .dtype = TANDEM_DTYPE_F16,
                                  .q_total = 150, .kv_total = 250}, 5 + n);
        for (uint32_t b = 0; b <= 70; b += 1 + n)
            tu_set(&it.tensors[TD_VIEW_Q_START], 0, 0, 0, b, b % 9 == 4 ? -1e9 : 2 * b + b % 3);
        double *want = exact_of(&it);
        try_on(&it, want, NULL, td_target_for_sm(0), n);
        try_on(&it, want, &em_modules[n], td_target_for_sm(em_modules[n].sm), n);
        free(want);
        ku_free(&it);
    }
}

/* In each precision: as if there were none, as if there were nothing else, and one that says nothing. */
static void test_odd_sinks(void **state)
{
    static const double sinks[] = {NAN, INFINITY, -INFINITY, 3e4, -3e4};
    (void)state;
    for (uint32_t n = 0; n < 20; n++) {
        const double sink = sinks[n % 5];
        const bool wide = n / 5 % 2;
        ku_case it = make((shape){.batch = 1, .heads = 2, .kv_heads = 2, .q_len = 20, .kv_len = 70, .head_dim = 64, .dtype = TANDEM_DTYPE_F16,
                                  .sink = true}, 0); /* a length */
        it.op.attention.precision = n < 10 ? TANDEM_PRECISION_F16 : TANDEM_PRECISION_8B;
        ku_put(&it, TD_VIEW_LSE, tu_tensor_new(TANDEM_DTYPE_F32, TU_DENSE, 1, 2, 20, 1));
        tu_set(&it.tensors[TD_VIEW_SINK], 0, 0, 0, 0, sink);
        for (size_t m = 0; m <= EM_MODULES; m += 2) {
            td_target target = td_target_for_sm(m ? em_modules[m - 1].sm : 0);
            target.multiprocessors = wide ? 132 : 1;
            ku_run_on(&it, m ? &em_modules[m - 1] : NULL, target, 1);
            for (uint32_t r = 0; r < 20; r++) {
                const double o = tu_get(&it.tensors[TD_VIEW_O], 0, 0, r, 5), lse = tu_get(&it.tensors[TD_VIEW_LSE], 0, 0, r, 0);
                if (sink != sink)
                    assert_true(o != o && lse != lse);
                else if (sink > 0)
                    assert_true(o == 0 && (lse == sink || fabs(lse - sink) < 1e-2 * 3));
                else
                    assert_true(o != 0 && fabs(lse) < 20);
            }
        }
        ku_free(&it);
    }
}

/* As codes of 8 and 4 bits: smoothed as a default, not, and in each other way. Emulated GPUs have every second case. */
static void test_codes(void **state)
{
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256}, lengths[] = {1, 63, 64, 65, 100, 17, 130, 129};
    static const char *const sets[] = {"c", "avx2", "avx512"};
    (void)state;
    for (uint32_t n = 0; n < 48; n++) {
        const uint32_t kv_heads = 1 + n % 2, heads = kv_heads * (1 + n / 2 % 2), q_len = lengths[n % 8], kv_len = lengths[(3 * n + 2) % 8];
        const bool emulated = n / 6 % 2;
        ku_case it = make((shape){emulated ? 1 : 1 + n % 3, heads, kv_heads, q_len, kv_len, dims[n % 6], 1 + (n + n / 6) % 3, 0, 0, false}, n);
        it.op.attention.precision = n / 12 % 2 ? TANDEM_PRECISION_4B : TANDEM_PRECISION_8B;
        it.op.attention.smooth = n / 3 % 2 ? 0 : n % 7 == 1 ? TANDEM_SMOOTH_NONE : 2 * (n % 7);
        it.op.attention.scale = 0;
        it.op.attention.granularity = n % 5 ? 0 : n / 5 % (TANDEM_GRANULARITY_TENSOR + 1);
        double *want = exact_of(&it);
        for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
            if (td_cpu_isa_force(sets[i]))
                try_on(&it, want, NULL, td_target_for_sm(0), n);
        td_cpu_isa_force(NULL);
        for (size_t m = 0; m < EM_MODULES && emulated; m++) {
            if (n >= 24 && (m + n) % 4)
                continue;
            ku_run_on(&it, &em_modules[m], td_target_for_sm(em_modules[m].sm), 1);
            check_values(&it, want);
        }
        free(want);
        ku_free(&it);
    }
}

/* Codes as tandem_codes_bytes() has them, with one scale, of head h of batch b of `of`, whose
 * elements become what these say. */
static void encode(tu_tensor *of, uint32_t b, uint32_t h, bool is_v, unsigned char *bytes)
{
    const uint32_t dtype = is_v ? TANDEM_DTYPE_CODES_E4M3 : TANDEM_DTYPE_CODES_INT8;
    const uint32_t rows_pad = (of->rows + 127) / 128 * 128, d_pad = of->dim > 128 ? 256 : (of->dim + 31) / 32 * 32;
    const size_t plane = (size_t)b * of->heads + h, count = is_v ? of->dim : of->rows;
    unsigned char *codes = bytes + plane * rows_pad * d_pad;
    uint64_t scales_bytes;
    double most = 0;
    tandem_codes_bytes(dtype, of->batch, of->heads, of->rows, of->dim, &scales_bytes);
    float *scales = (float *)(void *)(bytes + scales_bytes) + plane * (is_v ? d_pad : rows_pad);
    for (uint32_t r = 0; r < of->rows; r++)
        for (uint32_t c = 0; c < of->dim; c++)
            most = fmax(most, fabs(tu_get(of, b, h, r, c)));
    const float scale = (float)(most / (is_v ? 1.75 : 127));
    for (size_t i = 0; i < count; i++)
        scales[i] = scale;
    for (uint32_t r = 0; r < of->rows; r++)
        for (uint32_t c = 0; c < of->dim; c++) {
            const float x = (float)tu_get(of, b, h, r, c) / scale;
            const uint32_t i = r % 8 / 2, j = r / 8 % 2 * 2 + r % 2; /* key 8 (j / 2) + 2 i + j % 2 */
            const uint8_t code = is_v ? td_to_e4m3(x) : (uint8_t)(int8_t)lrintf(x);
            codes[is_v ? (size_t)c * rows_pad + r / 16 * 16 + 4 * i + j : (size_t)r * d_pad + c] = code;
            tu_set(of, b, h, r, c, (double)(scale * (is_v ? td_from_e4m3(code) : (float)(int8_t)code)));
        }
}

/* In the place of a view's tensor its codes. */
static void put_codes(ku_case *coded, ku_case *plain, uint32_t view)
{
    tu_tensor *of = &plain->tensors[view];
    const bool is_v = view == TD_VIEW_V;
    const uint32_t rows_pad = (of->rows + 127) / 128 * 128, d_pad = of->dim > 128 ? 256 : (of->dim + 31) / 32 * 32;
    const uint32_t dtype = is_v ? TANDEM_DTYPE_CODES_E4M3 : TANDEM_DTYPE_CODES_INT8;
    const uint64_t bytes = tandem_codes_bytes(dtype, of->batch, of->heads, of->rows, of->dim, NULL);
    tu_tensor codes = tu_tensor_new(TANDEM_DTYPE_U8, TU_DENSE, 1, 1, 1, (uint32_t)bytes);
    memset(codes.data, 0, codes.bytes);
    for (uint32_t plane = 0; plane < of->batch * of->heads; plane++)
        encode(of, plane / of->heads, plane % of->heads, is_v, codes.data);
    codes.view = (tandem_view){.dtype = dtype, .stride_row = is_v ? rows_pad : d_pad, .stride_head = (int64_t)rows_pad * d_pad,
                               .stride_batch = (int64_t)rows_pad * d_pad * of->heads};
    ku_put(coded, view, codes);
}

/* Every byte of them at random, and what no scale should be: whatever O is then, nothing else was written. */
static void spoil_codes(ku_case *coded, uint64_t seed)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, -1, 0, 3e38f, 1e-45f};
    for (uint32_t view = TD_VIEW_Q; view <= TD_VIEW_V; view++) {
        const tu_tensor *t = &coded->tensors[view];
        for (size_t i = 0; i + 4 <= t->bytes && td_dtype_is_codes(t->view.dtype); i += 4) {
            const uint32_t word = (uint32_t)tu_random(&seed);
            memcpy((char *)t->data + i, word % 3 ? (const void *)&odd[word / 3 % 7] : (const void *)&word, 4);
        }
    }
}

/* Codes that were there, of all three or of K and V: attention is that of what they say, with each mask. */
static void test_codes_as_they_are(void **state)
{
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256}, lengths[] = {1, 63, 64, 65, 100, 17, 130, 129};
    (void)state;
    for (uint32_t n = 0; n < 24; n++) {
        const uint32_t kv_heads = 1 + n % 2, q_len = lengths[n % 8], kv_len = lengths[(3 * n + 2) % 8];
        ku_case plain = make((shape){1 + n % 2, kv_heads * (1 + n / 2 % 2), kv_heads, q_len, kv_len, dims[n % 6], TANDEM_DTYPE_F32, 0, 0, false},
                             4 * n); /* without lse and cap */
        for (uint32_t view = TD_VIEW_K; view <= TD_VIEW_V; view++)
            for (size_t i = 0; i < plain.tensors[view].bytes / 4; i++) {
                float *x = (float *)plain.tensors[view].data + i;
                *x = fabsf(*x) < 1000 ? *x : 0; /* codes of a NaN are the caller's affair */
            }
        if (n % 6 == 5) /* without a mask: of sm_90 other kernels */
            for (uint32_t view = TD_VIEW_LENGTH; view <= TD_VIEW_POSITION; view++) {
                tu_tensor_free(&plain.tensors[view]);
                td_view_of(&td_operation_attention.layout, &plain.op, view)->dtype = TANDEM_DTYPE_NONE;
            }
        plain.op.attention.window = n % 6 == 5 ? 0 : plain.op.attention.window;
        plain.op.attention.scale = 0;
        ku_case coded = plain;
        for (uint32_t view = n % 3 ? TD_VIEW_Q : TD_VIEW_K; view <= TD_VIEW_V; view++)
            put_codes(&coded, &plain, view);
        coded.op.attention.precision = n % 2 ? TANDEM_PRECISION_8B : TANDEM_PRECISION_AUTO;
        coded.op.attention.granularity = n % 4 ? 0 : n / 4;
        plain.op.attention.precision = TANDEM_PRECISION_8B; /* for its bounds */
        double *want = exact_of(&plain);
        for (size_t m = 0; m <= EM_MODULES; m++) {
            em_module *on = m ? &em_modules[m - 1] : NULL;
            if (on && (on->sm < 89 || (m + n) % 2))
                continue;
            ku_run_on(&coded, on, td_target_for_sm(on ? on->sm : 0), 1);
            check_values(&plain, want);
            if (n % 6 == 5 && on) {
                ku_run_on(&coded, on, td_target_for_stream(on->sm), 1);
                check_values(&plain, want);
            }
        }
        spoil_codes(&coded, n);
        for (size_t m = 0; m <= EM_MODULES; m++) {
            em_module *on = m ? &em_modules[m - 1] : NULL;
            if (on && (on->sm < 89 || (m + n) % 4))
                continue;
            ku_run_on(&coded, on, td_target_for_sm(on ? on->sm : 0), 1);
            assert_int_equal(tu_spoilt(&coded.tensors[TD_VIEW_O]), 0);
        }
        for (uint32_t view = TD_VIEW_Q; view <= TD_VIEW_V; view++)
            if (coded.tensors[view].data != plain.tensors[view].data)
                tu_tensor_free(&coded.tensors[view]);
        free(want);
        ku_free(&plain);
    }
}

/* Lengths around those of tiles and steps, in blocks of 16 rows, and of 64 as where those are many. */
static void test_tiles(void **state)
{
    static const uint32_t lengths[] = {1, 15, 16, 17, 33, 63, 64, 65, 127, 128, 129, 300};
    (void)state;
    for (uint32_t n = 0; n < 24; n++) {
        const uint32_t q_len = lengths[n % 12], kv_len = lengths[(5 * n + 9) % 12];
        ku_case it = make((shape){1 + n % 2, 2, 1 + n / 2 % 2, q_len, kv_len, 32 + n / 2 % 4 * 32, 1 + n / 8 % 2, 0, 0, false}, 4 * n + n % 2);
        double *want = exact_of(&it);
        for (size_t m = 0; m < EM_MODULES; m++) {
            td_target target = td_target_for_sm(em_modules[m].sm);
            ku_run_on(&it, &em_modules[m], target, 1);
            check_values(&it, want);
            target.multiprocessors = 1;
            ku_run_on(&it, &em_modules[m], target, 1);
            check_values(&it, want);
        }
        free(want);
        ku_free(&it);
    }
}

/* Channels that are not there, behind head dims for which there is no kernel. */
static void test_padded_dims(void **state)
{
    static const uint32_t dims[] = {40, 48, 72, 112, 160, 192};
    (void)state;
    for (uint32_t n = 0; n < 6; n++) {
        ku_case it = make((shape){1, 2, 1 + n % 2, n % 3 ? 65 : 17, 100, dims[n], 1 + n % 2, 0, 0, false}, n);
        try_everywhere(&it, n);
        ku_free(&it);
    }
}

/* Rows in parts, too. */
static void test_long(void **state)
{
    (void)state;
    for (uint32_t n = 3; n < 15; n++) { /* with a causal mask, with positions */
        ku_case it = make((shape){1, 1, 1, 1600, 500 + 700 * (n % 2), 32, TANDEM_DTYPE_F16, 0, 0, false}, n < 9 ? n : n - 6);
        it.op.attention.precision = n < 9 ? 0 : TANDEM_PRECISION_8B;
        double *want = exact_of(&it);
        try_on(&it, want, NULL, td_target_for_sm(0), 5);
        if (n % 3 == 0 && n < 9)
            try_on(&it, want, &em_modules[2], td_target_for_sm(em_modules[2].sm), 5);
        free(want);
        ku_free(&it);
    }
}

/* Of a case with one element, of row 20 of batch 0 and the first head of Q, K or V, that is not finite: those rows are NaN that
 * attend to it, and no others. */
static void check_not_finite(const ku_case *it, uint32_t view)
{
    const tandem_attention *op = &it->op.attention;
    operands x = operands_of(it);
    for (uint32_t row = 0; row < op->batch * op->heads * op->q_len; row++) {
        const uint32_t r = row % op->q_len, h = row / op->q_len % op->heads, b = row / op->q_len / op->heads;
        bool bad = false;
        double score;
        for (uint32_t j = 0; j < op->kv_len && view == TD_VIEW_Q; j++)
            bad = bad || (b == 0 && h == 0 && r == 20 && score_of(&x, b, h, r, j, &score));
        if (view != TD_VIEW_Q)
            bad = b == 0 && score_of(&x, b, h, r, 20, &score);
        for (uint32_t c = 0; c < op->head_dim; c++)
            assert_true((bool)isnan(tu_get(&it->tensors[TD_VIEW_O], b, h, r, c)) == bad);
        if (it->tensors[TD_VIEW_LSE].data)
            assert_true((bool)isnan(tu_get(&it->tensors[TD_VIEW_LSE], b, h, r, 0)) == bad);
    }
    free_operands(&x);
}

static void test_not_finite(void **state)
{
    static const double what[] = {NAN, INFINITY, -INFINITY};
    (void)state;
    for (uint32_t n = 0; n < 54; n++) {
        const uint32_t view = (n / 3 + n / 9) % 3;
        ku_case it = make((shape){2, 2, 1, 70, 90, 64, 1 + n % 2, 0, 0, false}, n % 27);
        it.op.attention.precision = n < 27 ? 0 : TANDEM_PRECISION_8B;
        tu_set(&it.tensors[view], 0, 0, 20, 5, what[n % 3]);
        for (size_t m = 0; m < EM_MODULES; m++) {
            td_target target = td_target_for_sm(em_modules[m].sm);
            if (n >= 27 && (m + n) % 12) /* a kernel for all rows, behind a long prologue */
                continue;
            target.multiprocessors = n % 4 < 2 ? 1 : 132;
            ku_run_on(&it, &em_modules[m], target, 1);
            check_not_finite(&it, view);
        }
        ku_run_on(&it, NULL, td_target_for_sm(0), 1);
        check_not_finite(&it, view);
        ku_free(&it);
    }
}

static void test_refusals(void **state)
{
    ku_case it = make((shape){2, 2, 1, 70, 90, 64, TANDEM_DTYPE_F16, 0, 0, false}, 5);
    char why[300];
    td_plan plan = {0};
    (void)state;
#define REFUSES(status, text, ...)                                                            \
    do {                                                                                      \
        tandem_operands op = it.op;                                                           \
        tandem_attention *a = &op.attention;                                                  \
        __VA_ARGS__;                                                                          \
        assert_int_equal(td_operation_attention.check(&op, why, sizeof why), status);         \
        assert_non_null(strstr(why, text));                                                   \
    } while (0)
    REFUSES(TANDEM_ERROR_ARG, "attention.length.dtype is 3; it must be 6 (i32)", a->length.dtype = TANDEM_DTYPE_F32);
    REFUSES(TANDEM_ERROR_ARG, "attention.bias.dtype is 6", a->bias.dtype = TANDEM_DTYPE_I32);
    REFUSES(TANDEM_ERROR_ARG, "attention.position.dtype is 3; it must be 6 (i32)", a->position.dtype = TANDEM_DTYPE_F32);
    REFUSES(TANDEM_ERROR_ARG, "attention.causal is 1; with position it must be 0", a->position.dtype = TANDEM_DTYPE_I32,
            a->position.stride_batch = 70, a->position.stride_row = 1);
    REFUSES(TANDEM_ERROR_UNSUPPORTED, "attention.smooth is 4; with length, bias, position, window, softcap, start or sink it must be 0 or 1, or precision, which is 1,",
            a->smooth = TANDEM_SMOOTH_K, a->precision = TANDEM_PRECISION_F16);
    REFUSES(TANDEM_ERROR_ARG, "attention.q_total is 9; without q_start it must be 0", a->q_total = 9);
    REFUSES(TANDEM_ERROR_ARG, "attention.kv_total is 9; without k_start it must be 0", a->kv_total = 9);
    REFUSES(TANDEM_ERROR_ARG, "attention.q_total is 0", a->q_start.dtype = TANDEM_DTYPE_I32);
    REFUSES(TANDEM_ERROR_ARG, "attention.kv_total is 4294967295", a->k_start.dtype = TANDEM_DTYPE_I32, a->kv_total = UINT32_MAX);
    REFUSES(TANDEM_ERROR_ARG, "attention.q_start.dtype is 1; it must be 6 (i32)", a->q_start.dtype = 1, a->q_total = 9);
    REFUSES(TANDEM_ERROR_ARG, "attention.sink.dtype is 6; it must be 1 (f16)", a->sink.dtype = TANDEM_DTYPE_I32);
    REFUSES(TANDEM_ERROR_ARG, "attention.length.dtype is 6; with k_start it must be 0", a->k_start.dtype = TANDEM_DTYPE_I32, a->kv_total = 9);
    REFUSES(TANDEM_ERROR_ARG, "attention.softcap is -1.0", a->softcap = -1);
    REFUSES(TANDEM_ERROR_ARG, "attention.softcap is inf", a->softcap = INFINITY);
    REFUSES(TANDEM_ERROR_ARG, "attention.window is 7; without causal and position it must be 0", a->window = 7, a->causal = 0);
    it.op.attention.k.dtype = TANDEM_DTYPE_BF16;
    assert_int_equal(td_operation_attention.check(&it.op, why, sizeof why), TANDEM_OK);
    td_target target = td_target_for_sm(90);
    target.twin = true;
    assert_int_equal(td_operation_attention.plan(&it.op, &target, &plan, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(why, "attention.k.dtype is 2; with length, bias, position, window, softcap, start or sink, on a GPU, q, k and v must all be 1 (f16) or all 2"));
    td_plan_free(&plan);
    ku_free(&it);
}

/* Each kernel was among them. */
static void test_every_entry_was_run(void **state)
{
    (void)state;
    em_family_was_run("attn_masked");
    em_family_was_run("attn_spans");
    em_family_was_run("attn_unspanned");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes),     cmocka_unit_test(test_codes),
                                       cmocka_unit_test(test_codes_as_they_are),
                                       cmocka_unit_test(test_sequences),  cmocka_unit_test(test_many_sequences),
                                       cmocka_unit_test(test_odd_sinks),
                                       cmocka_unit_test(test_tiles),      cmocka_unit_test(test_padded_dims),
                                       cmocka_unit_test(test_long),       cmocka_unit_test(test_not_finite),
                                       cmocka_unit_test(test_refusals),   cmocka_unit_test(test_every_entry_was_run)};
    if (!em_open_all(TD_EMU_FOLDER))
        return 1;
    if (getenv("TANDEM_TEST_FILTER"))
        cmocka_set_test_filter(getenv("TANDEM_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
