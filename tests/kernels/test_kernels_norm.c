/* RMSNorm and LayerNorm: the CPU's against float64, and the CUDA kernel on the emulator, whose bits are the CPU's.
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

#include "kernels/norm/norm.h"
#include "tests/kernels/kernels_util.h"

enum { X, RESIDUAL, WEIGHT, BIAS, Y, SUM, VIEWS };

/* usual: of one 16-bit type, with weights of float32. */
static ku_case make(uint32_t channels, uint32_t n, bool usual)
{
    const uint32_t batch = 1 + n % 2, heads = 1 + n / 2 % 3, rows = 1 + n * 5 % 13, type = 1 + n / 2 % 2;
    const uint32_t mixed[4] = {1 + n % 3, 1 + n / 3 % 3, 3 - n % 3, 1 + n / 3 % 3}, one[4] = {type, type, type, TANDEM_DTYPE_F32};
    const uint32_t *dtypes = usual ? one : mixed;
    ku_case it = {.operation = &td_operation_norm,
                  .op.norm = {.batch = batch, .heads = heads, .rows = rows, .channels = channels, .epsilon = n % 5 ? 0 : 0.25f,
                              .kind = n / 7 % 2 ? TANDEM_NORM_LAYER : TANDEM_NORM_RMS}};
    for (uint32_t i = 0; i < VIEWS; i++) {
        tu_tensor t;
        if ((i == RESIDUAL && n % 4 == 1) || (i == WEIGHT && n % 7 == 3) || (i == BIAS && n % 4 == 2) || (i == SUM && n % 3 == 2))
            continue;
        t = i == WEIGHT || i == BIAS ? tu_tensor_new(dtypes[3], TU_DENSE, 1, 1, 1, channels)
                        : tu_tensor_new(dtypes[i == RESIDUAL ? 1 : i == Y ? 2 : 0], (tu_layout)(n % 4), batch, heads, rows, channels);
        if (i < Y)
            tu_fill_normal(&t, n * 10 + i, i == WEIGHT ? 1 : n % 6 == 5 ? 100 : 0.1);
        ku_put(&it, i, t);
    }
    return it;
}

/* Sums are rounded less than once for each of 8 * 256 channels and each of 11 levels of pairs, y three times and to its dtype. */
static void check_values(const ku_case *it)
{
    const tandem_norm *n = &it->op.norm;
    const tu_tensor *t = it->tensors;
    const double relative = (n->channels / 256 + 32) * 0x1p-24 +
                            (n->y.dtype == TANDEM_DTYPE_F32 ? 0 : n->y.dtype == TANDEM_DTYPE_F16 ? 0x1p-11 : 0x1p-8);
    double *h = malloc(n->channels * sizeof *h);
    assert_non_null(h);
    for (uint32_t row = 0; row < n->batch * n->heads * n->rows; row++) {
        const uint32_t b = row / n->rows / n->heads, head = row / n->rows % n->heads, r = row % n->rows;
        double mean = 0, squares = 0, most = 0;
        for (uint32_t c = 0; c < n->channels; c++) {
            h[c] = tu_get(&t[X], b, head, r, c);
            if (t[RESIDUAL].data)
                h[c] = ku_rounded((double)((float)h[c] + (float)tu_get(&t[RESIDUAL], b, head, r, c)), n->x.dtype);
            mean += h[c] / n->channels;
            most = fabs(h[c]) > most ? fabs(h[c]) : most;
            if (t[SUM].data)
                assert_true(tu_get(&t[SUM], b, head, r, c) == h[c]);
        }
        mean = n->kind == TANDEM_NORM_LAYER ? mean : 0;
        for (uint32_t c = 0; c < n->channels; c++)
            squares += (h[c] - mean) * (h[c] - mean);
        const double scale = 1 / sqrt(squares / n->channels + (n->epsilon > 0 ? (double)n->epsilon : 1e-5));
        for (uint32_t c = 0; c < n->channels; c++) {
            const double weight = t[WEIGHT].data ? tu_get(&t[WEIGHT], 0, 0, 0, c) : 1;
            const double product = (h[c] - mean) * scale * weight, bias = t[BIAS].data ? tu_get(&t[BIAS], 0, 0, 0, c) : 0;
            /* of the mean, too, which is off by as much as its sum, and so is each h without it */
            const double off = mean != 0 ? (n->channels / 256 + 32) * 0x1p-24 * most * scale * fabs(weight) : 0;
            assert_true(fabs(tu_get(&t[Y], b, head, r, c) - (product + bias)) <=
                        relative * (fabs(product) + fabs(bias)) + 2 * off + 0x1p-25);
        }
    }
    free(h);
}

static void test_everywhere(void **state)
{
    static const uint32_t channels[] = {1, 7, 8, 63, 64, 65, 255, 576, 1000, 1024, 1025, 2048, 4100, 9000};
    (void)state;
    for (uint32_t n = 0; n < 3 * sizeof channels / sizeof *channels; n++) {
        ku_case it = make(channels[n % (sizeof channels / sizeof *channels)], n, false);
        ku_run(&it, n, check_values);
        ku_free(&it);
    }
}

/* Rows as networks have them, which a warp has in registers. */
static void test_usual(void **state)
{
    static const uint32_t channels[] = {8, 64, 248, 256, 264, 384, 512, 768, 1000, 1016, 1024, 1032};
    (void)state;
    for (uint32_t n = 0; n < 3 * sizeof channels / sizeof *channels; n++) {
        ku_case it = make(channels[n % (sizeof channels / sizeof *channels)], n, true);
        ku_run(&it, n, check_values);
        ku_free(&it);
    }
}

/* Each kernel was among them. */
static void test_every_entry_was_run(void **state)
{
    (void)state;
    for (size_t m = 0; m < EM_MODULES; m++)
        for (size_t i = 0; i < em_modules[m].entry_count; i++)
            if (!strncmp(em_modules[m].entries[i], "norm", strlen("norm")) && !em_modules[m].was_run[i])
                fail_msg("sm_%u: %s was not run", em_modules[m].sm, em_modules[m].entries[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_everywhere), cmocka_unit_test(test_usual),
                                       cmocka_unit_test(test_every_entry_was_run)};
    if (!em_open_all(TD_EMU_FOLDER))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
