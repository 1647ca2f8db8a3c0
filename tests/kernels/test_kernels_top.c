/* The largest numbers of rows: the CPU's by the definition, and the CUDA kernel on the emulator, whose bits are the CPU's.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/top/params.h"
#include "kernels/top/top.h"
#include "tests/kernels/kernels_util.h"

enum { X, Y };

/* Numbers in no order, in order, all the same, few different ones, and few or none at all among NaN. */
static double number(uint32_t kind, uint32_t row, uint32_t channel, uint32_t channels, double normal)
{
    switch (kind) {
    case 0: return normal;
    case 1: return (double)channel / 16;
    case 2: return -(double)channel / 16;
    case 3: return 0.5;
    case 4: return (int)(normal * 2) == 0 ? -0.0 : (int)(normal * 2);
    case 5: return channel % 97 == row % 97 ? normal : (double)NAN;
    case 6: return (double)NAN;
    case 7: return channel == channels / 2 ? (double)INFINITY : -(double)INFINITY;
    default: return channel / 256 % 8 == 3 ? 100 + normal : normal; /* one warp of each chunk has the largest */
    }
}

static ku_case make(uint32_t rows, uint32_t channels, uint32_t count, uint32_t n)
{
    const uint32_t batch = 1 + n % 2, heads = 1 + n / 2 % 2;
    ku_case it = {.operation = &td_operation_top,
                  .op.top = {.batch = batch, .heads = heads, .rows = rows, .channels = channels, .count = count}};
    tu_tensor x = tu_tensor_new(1 + n % 3, (tu_layout)(n % 4), batch, heads, rows, channels);

    tu_fill_normal(&x, n, 0);
    for (uint32_t b = 0; b < batch; b++)
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t r = 0; r < rows; r++)
                for (uint32_t c = 0; c < channels; c++)
                    tu_set(&x, b, h, r, c, number((n + r) % 9, r, c, channels, tu_get(&x, b, h, r, c)));
    ku_put(&it, X, x);
    ku_put(&it, Y, tu_tensor_new(TANDEM_DTYPE_F32, (tu_layout)(n / 3 % 4), batch, heads, rows, 2 * count));
    return it;
}

/* One after the other: the largest of those behind the last one in the order. */
static void check_row(const ku_case *it, uint32_t b, uint32_t h, uint32_t r)
{
    const tandem_top *t = &it->op.top;
    const tu_tensor *x = &it->tensors[X], *y = &it->tensors[Y];
    double last = (double)INFINITY;
    int64_t last_at = -1;

    for (uint32_t i = 0; i < t->count; i++) {
        double best = -(double)INFINITY;
        int64_t at = -1;

        for (uint32_t c = 0; c < t->channels; c++) {
            const double value = tu_get(x, b, h, r, c);
            const bool behind = value < last || (value == last && c > last_at);

            if (behind && (value > best || (value == best && at < 0))) {
                best = value;
                at = c;
            }
        }
        const double said = tu_get(y, b, h, r, i);
        assert_true(tu_get(y, b, h, r, t->count + i) == (double)at);
        assert_true(at < 0 ? isnan(said) : said == best && !(said == 0 && signbit(said)));
        if (at < 0)
            last = -(double)INFINITY, last_at = t->channels;
        else
            last = best, last_at = at;
    }
}

static void check_values(const ku_case *it)
{
    const tandem_top *t = &it->op.top;

    for (uint32_t b = 0; b < t->batch; b++)
        for (uint32_t h = 0; h < t->heads; h++)
            for (uint32_t r = 0; r < t->rows; r++)
                check_row(it, b, h, r);
}

static void test_everywhere(void **state)
{
    static const uint32_t channels[] = {1, 63, 64, 65, 255, 4095, 4096, 4097, 9000, 20000}, counts[] = {1, 2, 40, 63, 64};

    (void)state;
    for (uint32_t n = 0; n < 45; n++) {
        ku_case it = make(1 + n % 3, channels[n % 10], counts[n / 2 % 5], n);

        ku_run(&it, n, check_values);
        ku_free(&it);
    }
}

/* More chunks than a row has blocks, so a block has several of them. */
static void test_long(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 9; n += 4) {
        ku_case it = make(1, TD_TOP_BLOCKS * TD_TOP_CHUNK + 4097, 5, n);

        it.op.top.batch = it.op.top.heads = 1;
        ku_run(&it, n, check_values);
        ku_free(&it);
    }
}

static void test_refusals(void **state)
{
    ku_case it = make(4, 24, 6, 6);

    (void)state;
#define REFUSES(text, ...)                        \
    do {                                          \
        tandem_operands op = it.op;               \
        tandem_top *t = &op.top;                  \
        __VA_ARGS__;                              \
        ku_refuses(&td_operation_top, &op, text); \
    } while (0)
    REFUSES("top.rows is 0", t->rows = 0);
    REFUSES("top.channels is 16777217; it must be 1 to 16777216", t->channels = (1 << 24) + 1);
    REFUSES("top.count is 0; it must be 1 to 64", t->count = 0);
    REFUSES("top.count is 65; it must be 1 to 64", t->count = 65);
    REFUSES("top.reserved[2] is 7", t->reserved[2] = 7);
    REFUSES("top.x.dtype is 9", t->x.dtype = TANDEM_DTYPE_Q8_0);
    REFUSES("top.y.dtype is 1", t->y.dtype = TANDEM_DTYPE_F16);
    ku_free(&it);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_everywhere), cmocka_unit_test(test_long), cmocka_unit_test(test_refusals)};
    if (!em_open_all(TD_EMU_FOLDER))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
