/* Attention in float64, straight from the formula: the oracle of every test.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * What is not finite makes rows NaN as types.h has it, which is more than the formula does: exp(-inf) is a number.
 */
#include <stdlib.h>

#include "kernels/attention/attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/target.h"

/* Elements of row (b, h, r) as doubles. */
static void load_row(double *to, const void *data, const tandem_view *view, int64_t b, int64_t h, int64_t r,
                     int64_t dim)
{
    const int64_t first = b * view->stride_batch + h * view->stride_head + r * view->stride_row;
    for (int64_t c = 0; c < dim; c++)
        switch (view->dtype) {
        case TANDEM_DTYPE_F16: to[c] = (double)td_from_f16(((const uint16_t *)data)[first + c]); break;
        case TANDEM_DTYPE_BF16: to[c] = (double)td_from_bf16(((const uint16_t *)data)[first + c]); break;
        default: to[c] = (double)((const float *)data)[first + c];
        }
}

static bool all_finite(const double *row, int64_t dim)
{
    bool finite = true;
    for (int64_t c = 0; c < dim; c++)
        finite &= isfinite(row[c]) != 0;
    return finite;
}

/* Written densely: o[batch][heads][q_len][head_dim], lse[batch][heads][q_len]. */
void td_ref_attention(const tandem_attention *op, const void *q, const void *k, const void *v, double *o, double *lse)
{
    const double scale = op->scale != 0 ? (double)op->scale : 1 / sqrt((double)op->head_dim);
    const int64_t dim = op->head_dim, q_len = op->q_len, kv_len = op->kv_len;
    double *s = malloc(sizeof *s * (size_t)(kv_len + 2 * kv_len * dim + dim));
    double *ks = s + kv_len, *vs = ks + kv_len * dim, *qs = vs + kv_len * dim;
    int64_t good; /* keys before the first that is not finite, in K or V */
    for (int64_t bh = 0; s && bh < (int64_t)op->batch * op->heads; bh++) {
        const int64_t b = bh / op->heads, h = bh % op->heads, hk = h / (op->heads / op->kv_heads);
        for (int64_t j = 0; j < kv_len; j++) {
            load_row(ks + j * dim, k, &op->k, b, hk, j, dim);
            load_row(vs + j * dim, v, &op->v, b, hk, j, dim);
        }
        for (good = 0; good < kv_len && all_finite(ks + good * dim, dim) && all_finite(vs + good * dim, dim); good++)
            ;
        for (int64_t i = 0; i < q_len; i++) {
            double *out = o + (bh * q_len + i) * dim, m = -INFINITY, l = 0;
            int64_t keys = kv_len;
            if (op->causal && i + kv_len - q_len + 1 < keys)
                keys = i + kv_len - q_len + 1;
            load_row(qs, q, &op->q, b, h, i, dim);
            if (keys > 0 && (keys > good || !all_finite(qs, dim))) {
                for (int64_t c = 0; c < dim; c++)
                    out[c] = NAN;
                if (lse)
                    lse[bh * q_len + i] = NAN;
                continue;
            }
            for (int64_t j = 0; j < keys; j++) {
                double sum = 0;
                for (int64_t c = 0; c < dim; c++)
                    sum += qs[c] * ks[j * dim + c];
                s[j] = sum * scale;
                m = fmax(m, s[j]);
            }
            for (int64_t c = 0; c < dim; c++)
                out[c] = 0;
            for (int64_t j = 0; j < keys; j++) {
                const double p = exp(s[j] - m);
                l += p;
                for (int64_t c = 0; c < dim; c++)
                    out[c] += p * vs[j * dim + c];
            }
            for (int64_t c = 0; c < dim && keys > 0; c++)
                out[c] /= l;
            if (lse)
                lse[bh * q_len + i] = keys > 0 ? m + log(l) : -INFINITY;
        }
    }
    for (int64_t i = 0; !s && i < (int64_t)op->batch * op->heads * q_len * dim; i++)
        o[i] = NAN; /* no memory: no test may pass */
    free(s);
}
