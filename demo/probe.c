/* How exact the attention was: rows of O recomputed in float64 from the very Q, K and V that it had.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "demo/probe.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "demo/engine.h"
#include "interop/os/cpu.h"
#include "interop/os/thread_pool.h"

double demo_accuracy_cos(const demo_accuracy *a)
{
    const double norms = sqrt(a->mine_squared) * sqrt(a->exact_squared);
    return norms > 0 ? a->dot / norms : 1.0;
}

double demo_accuracy_rel_l1(const demo_accuracy *a)
{
    return a->exact_absolute > 0 ? a->error_absolute / a->exact_absolute : 0.0;
}

double demo_accuracy_rmse(const demo_accuracy *a)
{
    return a->elements ? sqrt(a->error_squared / (double)a->elements) : 0.0;
}

void demo_accuracy_merge(demo_accuracy *into, const demo_accuracy *from)
{
    into->dot += from->dot;
    into->mine_squared += from->mine_squared;
    into->exact_squared += from->exact_squared;
    into->error_absolute += from->error_absolute;
    into->exact_absolute += from->exact_absolute;
    into->error_squared += from->error_squared;
    into->elements += from->elements;
}

static uint16_t float_to_half(double value)
{
    const uint16_t sign = signbit(value) ? 0x8000u : 0;
    const double magnitude = fabs(value);
    int exponent;
    if (isnan(value))
        return 0x7e00u;
    if (magnitude >= 65520.0)
        return sign | 0x7c00u;
    if (magnitude < 0x1p-14)
        return sign | (uint16_t)lrint(magnitude * 0x1p24);
    const double fraction = frexp(magnitude, &exponent); /* in [0.5, 1) */
    return sign | (uint16_t)(((exponent + 13) << 10) + lrint(fraction * 2048.0));
}

/* Channels up to the last that is not zero in any row: the padding adds exactly nothing and is not computed. */
static uint32_t used_channels(const uint16_t *x, uint32_t rows, uint32_t dim)
{
    uint32_t used = 0;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = dim; c > used; c--)
            if (x[(size_t)r * dim + c - 1] & 0x7fffu) {
                used = c;
                break;
            }
    return used;
}

void demo_probe_rows(const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *o, uint32_t q_len,
                     uint32_t kv_len,
                     uint32_t dim, float scale, uint32_t first, uint32_t step, double push, demo_accuracy *out)
{
    const uint32_t dk = used_channels(k, kv_len, dim), dv = used_channels(v, kv_len, dim);
    double *keys = malloc(((size_t)kv_len * (dk + dv + 1) + 2 * dim) * sizeof *keys);
    if (!keys)
        return;
    /* Channel-major, so that the loops over keys run on vectors. */
    double *values = keys + (size_t)dk * kv_len, *weight = values + (size_t)dv * kv_len, *exact = weight + kv_len;
    double *mine = exact + dim;
    for (uint32_t c = 0; c < dk; c++)
        for (uint32_t j = 0; j < kv_len; j++)
            keys[(size_t)c * kv_len + j] = (double)demo_half_to_float(k[(size_t)j * dim + c]);
    for (uint32_t c = 0; c < dv; c++)
        for (uint32_t j = 0; j < kv_len; j++)
            values[(size_t)c * kv_len + j] = (double)demo_half_to_float(v[(size_t)j * dim + c]);

    for (uint32_t i = first; i < q_len; i += step) {
        double largest = -INFINITY, sum = 0, magnitude = 0;
        for (uint32_t j = 0; j < kv_len; j++)
            weight[j] = 0;
        for (uint32_t c = 0; c < dk; c++) {
            const double x = (double)demo_half_to_float(q[(size_t)i * dim + c]) * (double)scale;
            for (uint32_t j = 0; j < kv_len; j++)
                weight[j] += x * keys[(size_t)c * kv_len + j];
        }
        for (uint32_t j = 0; j < kv_len; j++)
            largest = weight[j] > largest ? weight[j] : largest;
        for (uint32_t j = 0; j < kv_len; j++) {
            weight[j] = exp(weight[j] - largest);
            sum += weight[j];
        }
        for (uint32_t c = 0; c < dim; c++) {
            exact[c] = 0;
            if (c < dv)
                for (uint32_t j = 0; j < kv_len; j++)
                    exact[c] += weight[j] * values[(size_t)c * kv_len + j];
            exact[c] /= sum;
            magnitude += fabs(exact[c]) / dim;
            mine[c] = (double)demo_half_to_float(o[(size_t)i * dim + c]);
        }
        for (uint32_t c = 0; c < dim; c++) {
            if (push != 0) {
                const double away = mine[c] < exact[c] ? -1.0 : 1.0;
                o[(size_t)i * dim + c] = float_to_half(mine[c] + away * push * magnitude);
                mine[c] = (double)demo_half_to_float(o[(size_t)i * dim + c]);
            }
            const double error = mine[c] - exact[c];
            out->dot += mine[c] * exact[c];
            out->mine_squared += mine[c] * mine[c];
            out->exact_squared += exact[c] * exact[c];
            out->error_absolute += fabs(error);
            out->exact_absolute += fabs(exact[c]);
            out->error_squared += error * error;
        }
        out->elements += dim;
    }
    free(keys);
}

void demo_probe_all(const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *o, uint32_t batch,
                    uint32_t q_len,
                    uint32_t kv_len, uint32_t dim, float scale, double push, uint32_t threads, demo_accuracy *out)
{
    demo_probe_some(q, k, v, o, batch, q_len, kv_len, dim, scale, 0, 1, push, threads, out);
}

/* The batch entries of demo_probe_some(). */
typedef struct probe {
    const uint16_t *q, *k, *v;
    uint16_t *o;
    uint32_t q_len, kv_len, dim, first, step;
    float scale;
    double push;
    pthread_mutex_t lock;
    demo_accuracy *out;
} probe;

static void probe_entry(void *context, uint64_t b, uint32_t worker)
{
    probe *p = context;
    const size_t at_q = b * p->q_len * p->dim, at_k = b * p->kv_len * p->dim;
    demo_accuracy part = {0};
    (void)worker;
    demo_probe_rows(p->q + at_q, p->k + at_k, p->v + at_k, p->o + at_q, p->q_len, p->kv_len, p->dim, p->scale, p->first,
                    p->step, p->push, &part);
    pthread_mutex_lock(&p->lock);
    demo_accuracy_merge(p->out, &part);
    pthread_mutex_unlock(&p->lock);
}

void demo_probe_some(const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *o, uint32_t batch,
                     uint32_t q_len, uint32_t kv_len, uint32_t dim, float scale, uint32_t first, uint32_t step,
                     double push, uint32_t threads, demo_accuracy *out)
{
    probe p = {q, k, v, o, q_len, kv_len, dim, first, step, scale, push, PTHREAD_MUTEX_INITIALIZER, out};
    td_parallel_for(threads ? threads : td_core_count(), batch, probe_entry, &p);
}
