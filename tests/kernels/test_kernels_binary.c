/* Sums and products of two tensors: the CPU's against the definition, and the CUDA kernel on the emulator, whose bits are the CPU's.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/binary/binary.h"
#include "tests/kernels/kernels_util.h"

enum { A, B, Y };

/* Of b's axes those are repeated whose bits are set in n / 2; its channels, too. */
static ku_case make(uint32_t channels, uint32_t n)
{
    const uint32_t batch = 1 + n % 3, heads = 1 + n / 2 % 3, rows = 1 + n * 5 % 13, repeated = n / 2 % 16;
    ku_case it = {.operation = &td_operation_binary,
                  .op.binary = {.batch = batch, .heads = heads, .rows = rows, .channels = channels, .kind = n % 2,
                                .scale = n % 5 ? 0 : -0.3f, .b_channels = repeated & 8 ? 1 : n % 3 ? 0 : channels}};
    tu_tensor a = tu_tensor_new(1 + n % 3, (tu_layout)(n % 4), batch, heads, rows, channels);
    tu_tensor b = tu_tensor_new(1 + n / 3 % 3, (tu_layout)(n / 4 % 4), repeated & 1 ? 1 : batch, repeated & 2 ? 1 : heads,
                                repeated & 4 ? 1 : rows, repeated & 8 ? 1 : channels);
    tu_fill_normal(&a, 2 * n, 0);
    tu_fill_normal(&b, 2 * n + 1, 0);
    ku_put(&it, A, a);
    ku_put(&it, B, b);
    ku_put(&it, Y, tu_tensor_new(1 + n / 5 % 3, (tu_layout)(n / 2 % 4), batch, heads, rows, channels));
    it.op.binary.b.stride_batch *= !(repeated & 1);
    it.op.binary.b.stride_head *= !(repeated & 2);
    it.op.binary.b.stride_row *= !(repeated & 4);
    return it;
}

static void check_values(const ku_case *it)
{
    const tandem_binary *n = &it->op.binary;
    const tu_tensor *b = &it->tensors[B], *y = &it->tensors[Y];
    const double scale = n->scale != 0 ? (double)n->scale : 1;
    for (uint32_t i = 0; i < n->batch; i++)
        for (uint32_t h = 0; h < n->heads; h++)
            for (uint32_t r = 0; r < n->rows; r++)
                for (uint32_t c = 0; c < n->channels; c++) {
                    const double more = (double)(float)(scale * tu_get(b, i % b->batch, h % b->heads, r % b->rows, c % b->dim));
                    const double one = tu_get(&it->tensors[A], i, h, r, c);
                    assert_true(tu_get(y, i, h, r, c) == ku_rounded(n->kind ? one * more : one + more, n->y.dtype));
                }
}

static void test_everywhere(void **state)
{
    static const uint32_t channels[] = {1, 7, 8, 63, 64, 384, 1001, 2600, 9};
    (void)state;
    for (uint32_t n = 0; n < 64; n++) {
        ku_case it = make(channels[n % (sizeof channels / sizeof *channels)], n);
        ku_run(&it, n, check_values);
        ku_free(&it);
    }
}

static void test_refusals(void **state)
{
    ku_case it = make(24, 5);
    (void)state;
#define REFUSES(text, ...)                           \
    do {                                             \
        tandem_operands op = it.op;                  \
        tandem_binary *b = &op.binary;               \
        __VA_ARGS__;                                 \
        ku_refuses(&td_operation_binary, &op, text); \
    } while (0)
    REFUSES("binary.heads is 0", b->heads = 0);
    REFUSES("binary.b_channels is 2; it must be 0, 1, or channels, which is 24", b->b_channels = 2);
    REFUSES("binary.kind is 2; it must be 0 (add) or 1 (multiply)", b->kind = 2);
    REFUSES("binary.scale is -inf", b->scale = -1.0f / 0.0f);
    REFUSES("binary.reserved is 1", b->reserved = 1);
    REFUSES("binary.a.dtype is 0; it must be 1 (f16), 2 (bf16) or 3 (f32)", b->a.dtype = TANDEM_DTYPE_NONE);
    REFUSES("binary.b.dtype is 6", b->b.dtype = TANDEM_DTYPE_I32);
    REFUSES("binary.y.stride_row is 0; the output would overlap itself", b->y.stride_row = 0);
    ku_free(&it);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_everywhere), cmocka_unit_test(test_refusals)};
    if (!em_open_all(TD_EMU_FOLDER))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
