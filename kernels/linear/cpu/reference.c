/* Linear layers in float64, for comparison. See linear.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "kernels/blocks.h"
#include "kernels/cpu/cpu.h"
#include "kernels/linear/linear.h"

static const double unit = 0x1p-24; /* half a last place of a float32 */

static double element(const void *data, uint32_t dtype, int64_t at)
{
    float x;
    td_to_floats(&x, data, dtype, at, 1);
    return (double)x;
}

/* n weights of a row from channel k, a multiple of TD_MAX_BLOCK. */
static void load_weights(const td_params_linear *p, td_linear_sums sums, const unsigned char *w, uint32_t k, uint32_t n, float *to)
{
    const uint32_t dtype = td_linear_weight_dtype(p->weights, p->dtype);
    const td_dtype of = td_dtype_of(dtype);
    uint16_t rounded[TD_MAX_BLOCK];
    if (p->weights == TD_LINEAR_DENSE) {
        td_to_floats(to, w, p->dtype, k, n);
        return;
    }
    if (p->weights == TD_LINEAR_INT8) {
        for (uint32_t i = 0; i < n; i++)
            to[i] = (float)(int8_t)w[k + i];
        return;
    }
    for (uint32_t i = 0; i < n; i += of.elements)
        td_block_decode(dtype, to + i, w + (k + i) / of.elements * of.bytes);
    if (sums == TD_LINEAR_ROUNDED && p->dtype != TANDEM_DTYPE_F32) {
        td_from_floats(rounded, p->dtype, 0, to, n);
        td_to_floats(to, rounded, p->dtype, 0, n);
    }
}

/* Half a last place of the codes of a block of 32 channels. */
static double half_a_code(const float *x)
{
    double most = 0;
    for (uint32_t k = 0; k < 32; k++)
        most = fmax(most, fabs((double)x[k]));
    return most / 65534;
}

static double magnitude(const float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t k = 0; k < n; k++)
        sum += fabs((double)x[k]);
    return sum;
}

/* The sum for a row of w, with scale and bias, and what may be wrong with it. */
static double sum_of(const td_params_linear *p, td_linear_sums sums, uint32_t row, uint32_t w_row, double *off)
{
    const unsigned char *w = (const unsigned char *)p->w + (int64_t)w_row * p->w_stride;
    double sums_of[4] = {0}, all[4] = {0}; /* four at a time, which do not wait for each other */
    double codes = 0;
    float x[TD_MAX_BLOCK], weights[TD_MAX_BLOCK];
    for (uint32_t k = 0; k < p->ins; k += TD_MAX_BLOCK) {
        const uint32_t n = p->ins - k < TD_MAX_BLOCK ? p->ins - k : TD_MAX_BLOCK;
        td_to_floats(x, p->x, p->dtype, row * p->x_stride + k, n);
        load_weights(p, sums, w, k, n, weights);
        for (uint32_t i = 0; i < n; i++) {
            const double product = (double)x[i] * (double)weights[i];
            sums_of[i % 4] += product;
            all[i % 4] += fabs(product);
        }
        for (uint32_t i = 0; i < n && sums == TD_LINEAR_IN_INTEGERS; i += 32)
            codes += half_a_code(x + i) * magnitude(weights + i, n - i < 32 ? n - i : 32);
    }
    double sum = sums_of[0] + sums_of[1] + sums_of[2] + sums_of[3];
    *off = (all[0] + all[1] + all[2] + all[3]) * (p->ins + 2) * unit + codes;
    if (p->scale) {
        sum *= (double)p->scale[w_row];
        *off = *off * fabs((double)p->scale[w_row]) + fabs(sum) * unit;
    }
    if (p->bias) {
        sum += element(p->bias, p->bias_dtype, w_row);
        *off += fabs(sum) * unit;
    }
    return sum;
}

/* Slopes are at most 1.13; exp, erf, tanh and division are within some units of the last place, as kernels on a GPU
 * have them: 4e-6 of the argument covers them all. */
static double activate(uint32_t activation, double x, double *off)
{
    if (activation == TANDEM_ACTIVATION_NONE)
        return x;
    *off = *off * 1.2 + 4e-6 * fabs(x) + 1e-7;
    if (activation == TANDEM_ACTIVATION_SILU)
        return x / (1 + exp(-x));
    if (activation == TANDEM_ACTIVATION_GELU)
        return 0.5 * x * (1 + erf(x * 0.70710678118654752));
    if (activation == TANDEM_ACTIVATION_TANH)
        return tanh(x);
    return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
}

/* The column's own sum, turned with its neighbour's; three roundings. */
static double rotate(const td_params_linear *p, td_linear_sums sums, uint32_t row, uint32_t column, double own, double *off)
{
    const int64_t asked = p->position[row], last = (int64_t)p->positions - 1;
    const uint32_t channel = column % p->head_dim;
    double off_other;
    if (column >= p->rotated_columns || channel >= p->rotated_channels)
        return own;
    const float *turn = p->rotation + (asked < 0 ? 0 : asked > last ? last : asked) * p->rotation_stride + channel / 2 * 2;
    const double c = (double)turn[0], s = column % 2 ? (double)turn[1] : -(double)turn[1];
    const double other = sum_of(p, sums, row, column ^ 1, &off_other), y = own * c + other * s;
    *off = *off * fabs(c) + off_other * fabs(s) + (fabs(own * c) + fabs(other * s) + fabs(y)) * unit;
    return y;
}

void td_linear_reference(const td_params_linear *p, td_linear_sums sums, uint32_t row, uint32_t column, double *y, double *bound)
{
    const bool pairs = p->gate == TANDEM_GATE_PAIRS;
    double off, off_b, a = activate(p->activation, sum_of(p, sums, row, pairs ? 2 * column : column, &off), &off);
    if (p->gate) {
        const double b = sum_of(p, sums, row, pairs ? 2 * column + 1 : p->outs + column, &off_b);
        off = off * (fabs(b) + off_b) + off_b * fabs(a) + fabs(a * b) * unit;
        a *= b;
    }
    if (p->rotation)
        a = rotate(p, sums, row, column, a, &off);
    if (p->residual) {
        a += element(p->residual, p->residual_dtype, row * p->residual_stride + column);
        off += fabs(a) * unit;
    }
    *y = a;
    *bound = off + fabs(a) * (p->y_dtype == TANDEM_DTYPE_F32 ? 2 * unit : p->y_dtype == TANDEM_DTYPE_F16 ? 0x1p-11 : 0x1p-8) +
             (p->y_dtype == TANDEM_DTYPE_F16 ? unit : 1e-30);
}
