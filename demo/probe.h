/* How exact the attention was: rows of O recomputed in float64 from the very Q, K and V that it had.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DEMO_PROBE_H
#define TANDEM_DEMO_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sums over the elements seen so far, and what follows from them. */
typedef struct demo_accuracy {
    double dot, mine_squared, exact_squared, error_absolute, exact_absolute, error_squared;
    uint64_t elements;
} demo_accuracy;

double demo_accuracy_cos(const demo_accuracy *a);
double demo_accuracy_rel_l1(const demo_accuracy *a);
double demo_accuracy_rmse(const demo_accuracy *a);
void demo_accuracy_merge(demo_accuracy *into, const demo_accuracy *from);

/* One batch entry: rows first, first + step, ... of Q and O (fp16, `dim` channels a row), all of K and V.
 * `push` moves each element of O away from the exact value by so much of the mean magnitude of the exact values:
 * the relative L1 error rises by exactly that. `o` is changed where push is not 0. */
void demo_probe_rows(const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *o, uint32_t q_len,
                     uint32_t kv_len,
                     uint32_t dim, float scale, uint32_t first, uint32_t step, double push, demo_accuracy *out);

/* Rows first, first + step, ... of all batch entries, on `threads` threads (0: all). */
void demo_probe_some(const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *o, uint32_t batch,
                     uint32_t q_len, uint32_t kv_len, uint32_t dim, float scale, uint32_t first, uint32_t step,
                     double push, uint32_t threads, demo_accuracy *out);

/* All rows. */
void demo_probe_all(const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *o, uint32_t batch,
                    uint32_t q_len,
                    uint32_t kv_len, uint32_t dim, float scale, double push, uint32_t threads, demo_accuracy *out);

#ifdef __cplusplus
}
#endif
#endif
