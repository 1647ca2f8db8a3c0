/* See conv_cases.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/conv_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/conv/conv.h"

const uint32_t cv_multiprocessors[] = {1, 2, 4, 64};

enum { X, COARSE, W, BIAS, Y };

ku_case cv_make(uint32_t n, uint32_t height, uint32_t width, uint32_t channels, uint32_t coarse_channels, uint32_t outs)
{
    ku_case it = {.operation = &td_operation_conv,
                  .op.conv = {.batch = 1 + n % 2, .height = height, .width = width, .channels = channels, .coarse_channels = coarse_channels,
                              .outs = outs, .size = n % 3 ? 3 : 1, .stride = n / 2 % 3, .shuffle = outs % 32 ? 0 : n / 3 % 3, .relu = n / 4 % 2}};

    ku_random(&it, X, TANDEM_DTYPE_F16, n, 5 * n);
    if (coarse_channels) {
        it.op.conv.coarse.dtype = TANDEM_DTYPE_F16;
        ku_random(&it, COARSE, TANDEM_DTYPE_F16, n / 2, 5 * n + 1);
    }
    ku_random(&it, W, TANDEM_DTYPE_F16, 0, 5 * n + 2);
    if (n % 4) {
        it.op.conv.bias.dtype = TANDEM_DTYPE_F32;
        ku_random(&it, BIAS, TANDEM_DTYPE_F32, 0, 5 * n + 3);
    }
    ku_random(&it, Y, n % 5 == 4 ? TANDEM_DTYPE_F32 : TANDEM_DTYPE_F16, n / 3, 5 * n + 4);
    return it;
}

ku_case cv_case(uint32_t n)
{
    static const struct {
        uint32_t height, width, channels, coarse_channels, outs;
    } cases[CV_CASES] = {{1, 1, 16, 0, 8},      {7, 9, 16, 0, 16},     {8, 16, 48, 0, 48},    {9, 17, 32, 16, 40},
                         {19, 35, 16, 48, 72},  {5, 40, 64, 0, 128},   {17, 18, 80, 96, 64},  {24, 33, 32, 32, 32},
                         {33, 2, 48, 64, 96},   {2, 31, 16, 16, 128},  {16, 16, 96, 16, 24},  {3, 3, 16, 0, 64},
                         {16, 16, 16, 16, 80},  {32, 32, 16, 16, 64},  {16, 16, 16, 16, 32},  {16, 16, 16, 0, 24},
                         {20, 33, 16, 0, 48},   {9, 40, 32, 0, 32},    {8, 16, 16, 0, 80},    {16, 16, 32, 16, 48},
                         {8, 16, 16, 16, 64}};

    return cv_make(n, cases[n].height, cases[n].width, cases[n].channels, cases[n].coarse_channels, cases[n].outs);
}

/* A sum and that of magnitudes. */
typedef struct sums {
    double sum, all;
} sums;

static void add_products(sums *to, const double *x, const double *w, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++) {
        const double product = x[k] * w[k];
        to->sum += product;
        to->all += fabs(product);
    }
}

/* Of output `out` at a pixel: `y`, `x` of its centre tap. All are as tu_values() has them. */
static sums sums_at(const tandem_conv *c, const double *fine, const double *coarse, const double *w, uint32_t b, int64_t y, int64_t x)
{
    sums of = {0};

    for (uint32_t tap = 0; tap < c->size * c->size; tap++, w += c->channels + c->coarse_channels) {
        const int64_t row = y + tap / c->size - c->size / 2, column = x + tap % c->size - c->size / 2;

        if (row < 0 || column < 0 || row >= c->height || column >= c->width)
            continue;
        add_products(&of, fine + ((b * (int64_t)c->height + row) * c->width + column) * c->channels, w, c->channels);
        if (coarse)
            add_products(&of, coarse + ((b * (int64_t)((c->height + 1) / 2) + row / 2) * ((c->width + 1) / 2) + column / 2) * c->coarse_channels,
                         w + c->channels, c->coarse_channels);
    }
    return of;
}

void cv_check(const ku_case *it)
{
    const tandem_conv *c = &it->op.conv;
    const tu_tensor *y = &it->tensors[Y];
    const uint32_t shuffle = c->shuffle == 2 ? 2 : 1, stride = c->stride == 2 ? 2 : 1;
    const uint32_t ins = c->size * c->size * (c->channels + c->coarse_channels); /* of an output */
    double *fine = tu_values(&it->tensors[X]), *coarse = c->coarse_channels ? tu_values(&it->tensors[COARSE]) : NULL;
    double *w = tu_values(&it->tensors[W]);

    for (uint32_t b = 0; b < c->batch; b++)
        for (uint32_t i = 0; i < y->heads; i++)
            for (uint32_t j = 0; j < y->rows; j++)
                for (uint32_t o = 0; o < y->dim; o++) {
                    const uint32_t out = (i % shuffle * shuffle + j % shuffle) * y->dim + o;
                    const double bias = it->tensors[BIAS].data ? tu_get(&it->tensors[BIAS], 0, 0, 0, out) : 0;
                    const sums of = sums_at(c, fine, coarse, w + (size_t)out * ins, b, (int64_t)(i / shuffle) * stride,
                                            (int64_t)(j / shuffle) * stride);
                    const double sum = c->relu && of.sum + bias < 0 ? 0 : of.sum + bias;

                    assert_true(fabs(tu_get(y, b, i, j, o) - sum) <= 0x1.1p-11 * fabs(sum) + 2e-6 * (of.all + fabs(bias)));
                }
    free(fine);
    free(coarse);
    free(w);
}
