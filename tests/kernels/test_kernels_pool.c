/* Means of rows: the CPU's against float64, and the CUDA kernel on the emulator, whose bits are the CPU's.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/pool/params.h"
#include "kernels/pool/pool.h"
#include "tests/kernels/kernels_util.h"

enum { X, LENGTH, Y };

/* Rows that do not count are NaN. */
static ku_case make(uint32_t rows, uint32_t channels, uint32_t n)
{
    const uint32_t batch = 1 + n % 7, heads = 1 + n / 2 % 2;
    const double lengths[] = {rows, 1, 0, -5, INT32_MIN, INT32_MAX, (rows + 1) / 2};
    ku_case it = {.operation = &td_operation_pool,
                  .op.pool = {.batch = batch, .heads = heads, .rows = rows, .channels = channels, .normalise = n / 3 % 2,
                              .epsilon = n % 4 ? 0 : 0.5f}};
    tu_tensor x = tu_tensor_new(1 + n % 3, (tu_layout)(n % 4), batch, heads, rows, channels);
    tu_fill_normal(&x, n, 0.2);
    if (n % 5) {
        tu_tensor length = tu_tensor_new(TANDEM_DTYPE_I32, TU_GAPS, batch, 1, 1, 1);
        for (uint32_t b = 0; b < batch; b++) {
            tu_set(&length, b, 0, 0, 0, lengths[(n + b) % 7]);
            for (uint32_t r = (uint32_t)fmin(fmax(lengths[(n + b) % 7], 0), rows); r < rows; r++)
                for (uint32_t h = 0; h < heads; h++)
                    tu_set(&x, b, h, r, r % channels, NAN);
        }
        ku_put(&it, LENGTH, length);
    }
    ku_put(&it, X, x);
    ku_put(&it, Y, tu_tensor_new(1 + n / 2 % 3, (tu_layout)(n / 3 % 4), batch, heads, 1, channels));
    return it;
}

/* A sum's terms are rounded once each and at most 10 times in pairs; then there are a division and, where it is normalised, squares,
 * of which each is off by twice as much, a root and another division. */
static void check_values(const ku_case *it)
{
    const tandem_pool *p = &it->op.pool;
    const tu_tensor *x = &it->tensors[X], *y = &it->tensors[Y];
    const double off = (fmin(p->rows, fmax(512, p->rows / 64.0)) / TD_POOL_SUMS + 20) * 0x1p-24;
    const double last = p->y.dtype == TANDEM_DTYPE_F32 ? 0x1p-24 : p->y.dtype == TANDEM_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
    double *mean = calloc(2 * p->channels, sizeof *mean), *size = mean + p->channels;
    assert_non_null(mean);
    for (uint32_t b = 0; b < p->batch; b++)
        for (uint32_t h = 0; h < p->heads; h++) {
            const double asked = it->tensors[LENGTH].data ? tu_get(&it->tensors[LENGTH], b, 0, 0, 0) : p->rows;
            const uint32_t rows = (uint32_t)fmin(fmax(asked, 0), p->rows);
            double squares = 0, sizes = 0;
            for (uint32_t c = 0; c < p->channels; c++) {
                mean[c] = size[c] = 0;
                for (uint32_t r = 0; r < rows; r++) {
                    mean[c] += tu_get(x, b, h, r, c) / rows;
                    size[c] += fabs(tu_get(x, b, h, r, c)) / rows;
                }
                squares += mean[c] * mean[c];
                sizes += size[c] * size[c];
            }
            const double least = p->epsilon > 0 ? (double)p->epsilon : 1e-12;
            const double divisor = p->normalise ? fmax(sqrt(squares), least) : 1;
            const double wrong = p->normalise ? off * sqrt(sizes) / divisor + (p->channels / 256 + 20) * 0x1p-24 : 0;
            for (uint32_t c = 0; c < p->channels; c++) {
                const double want = mean[c] / divisor;
                assert_true(fabs(tu_get(y, b, h, 0, c) - want) <= off * size[c] / divisor + (wrong + last) * fabs(want) + 0x1p-25);
                assert_true(rows || tu_get(y, b, h, 0, c) == 0);
            }
        }
    free(mean);
}

static void test_everywhere(void **state)
{
    static const uint32_t rows[] = {1, 2, 15, 16, 17, 128, 511, 512, 513, 1500}, channels[] = {1, 7, 8, 384, 255, 257, 64, 1000, 4360};
    (void)state;
    for (uint32_t n = 0; n < 40; n++) {
        const uint32_t many = rows[n % 10];
        ku_case it = make(many, many > 500 ? channels[n % 9] % 300 : channels[n % 9], n);
        ku_run(&it, n, check_values);
        ku_free(&it);
    }
}

/* More chunks than there may be, so they are longer. */
static void test_long(void **state)
{
    ku_case it = make(TD_POOL_CHUNKS * TD_POOL_ROWS + 1, 3, 6);
    (void)state;
    ku_run(&it, 6, check_values);
    ku_free(&it);
}

static void test_refusals(void **state)
{
    ku_case it = make(4, 24, 6);
    (void)state;
#define REFUSES(text, ...)                         \
    do {                                           \
        tandem_operands op = it.op;                \
        tandem_pool *p = &op.pool;                 \
        __VA_ARGS__;                               \
        ku_refuses(&td_operation_pool, &op, text); \
    } while (0)
    REFUSES("pool.rows is 0", p->rows = 0);
    REFUSES("pool.normalise is 2; it must be 0 or 1", p->normalise = 2);
    REFUSES("pool.epsilon is -1.0", p->epsilon = -1);
    REFUSES("pool.reserved is 0, 7", p->reserved[1] = 7);
    REFUSES("pool.x.dtype is 9", p->x.dtype = TANDEM_DTYPE_Q8_0);
    REFUSES("pool.length.dtype is 3; it must be 6 (i32), or 0 where it is not wanted", p->length.dtype = TANDEM_DTYPE_F32);
    REFUSES("pool.y.stride_batch is 1; the output would overlap itself", p->y.stride_batch = 1);
    ku_free(&it);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_everywhere), cmocka_unit_test(test_long), cmocka_unit_test(test_refusals)};
    if (!em_open_all(TD_EMU_FOLDER))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
