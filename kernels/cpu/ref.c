/* Attention in float64, straight from the formula: the oracle of every test.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>

#include "kernels/cpu/cpu.h"
#include "kernels/ops.h"

static double load(const void *data, const tandem_view *view, int64_t b, int64_t h, int64_t r, int64_t c)
{
    int64_t i = b * view->stride_batch + h * view->stride_head + r * view->stride_row + c;
    switch (view->dtype) {
    case TANDEM_DTYPE_F16: return (double)td_from_f16(((const uint16_t *)data)[i]);
    case TANDEM_DTYPE_BF16: return (double)td_from_bf16(((const uint16_t *)data)[i]);
    default: return (double)((const float *)data)[i];
    }
}

/* Written densely: o[batch][heads][q_len][head_dim], lse[batch][heads][q_len]. */
void td_ref_attention(const tandem_attention *op, const void *q, const void *k, const void *v, double *o, double *lse)
{
    const double scale = op->scale != 0 ? (double)op->scale : 1 / sqrt((double)op->head_dim);
    const int64_t dim = op->head_dim;
    double *s = malloc(sizeof *s * op->kv_len);
    for (int64_t b = 0; s && b < op->batch; b++)
        for (int64_t h = 0; h < op->heads; h++)
            for (int64_t i = 0; i < op->q_len; i++) {
                const int64_t hk = h / (op->heads / op->kv_heads);
                const int64_t row = (b * op->heads + h) * op->q_len + i;
                int64_t keys = op->kv_len;
                if (op->causal && i + (int64_t)op->kv_len - (int64_t)op->q_len + 1 < keys)
                    keys = i + (int64_t)op->kv_len - (int64_t)op->q_len + 1;
                double m = -INFINITY, l = 0;
                for (int64_t j = 0; j < keys; j++) {
                    s[j] = 0;
                    for (int64_t c = 0; c < dim; c++)
                        s[j] += load(q, &op->q, b, h, i, c) * load(k, &op->k, b, hk, j, c);
                    s[j] *= scale;
                    m = fmax(m, s[j]);
                }
                for (int64_t c = 0; c < dim; c++)
                    o[row * dim + c] = 0;
                for (int64_t j = 0; j < keys; j++) {
                    const double p = exp(s[j] - m);
                    l += p;
                    for (int64_t c = 0; c < dim; c++)
                        o[row * dim + c] += p * load(v, &op->v, b, hk, j, c);
                }
                for (int64_t c = 0; c < dim && keys > 0; c++)
                    o[row * dim + c] /= l;
                if (lse)
                    lse[row] = keys > 0 ? m + log(l) : -INFINITY;
            }
    free(s);
}
