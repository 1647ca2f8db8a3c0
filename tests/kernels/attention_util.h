/* Attention cases for tests: tensors of any layout, poisoned outputs and scratch, the oracle, errors.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_ATTENTION_UTIL_H
#define TD_TESTS_ATTENTION_UTIL_H

#include "kernels/attention/attention.h"
#include "kernels/target.h"

/* A tensor in host memory that the tensor owns; view.mem and view.offset_bytes stay 0. */
typedef struct tu_tensor {
    void *data;
    size_t bytes; /* with gaps; a guard of TU_GUARD_BYTES follows */
    tandem_view view;
    uint32_t batch, heads, rows, dim;
} tu_tensor;
enum { TU_GUARD_BYTES = 256, TU_POISON = 0xff };

enum { TU_VIEWS = TD_VIEW_LSE + 1 }; /* of a tu_case: it has no lengths, and no bias */

/* A plan that is freed where its block ends. */
#define TU_PLAN(name) td_plan name __attribute__((cleanup(td_plan_free))) = {0}

/* Whether two records are the same, byte for byte, wherever their parameters, relocations and ranges lie. */
bool tu_same_record(const td_record *a, const td_record *b);

typedef enum tu_layout {
    TU_DENSE,     /* [batch][head][row][channel] */
    TU_BY_ROW,    /* [batch][row][head][channel], as a projection leaves it */
    TU_GAPS,      /* dense with gaps behind rows, heads and batches */
    TU_BATCH_LAST /* [head][row][batch][channel] */
} tu_layout;

/* A job with its tensors and what came of it. */
typedef struct tu_case {
    tandem_attention op;
    tu_tensor q, k, v, o, lse;
    td_plan plan;
    td_attention_layout layout;
    void *scratch; /* as the last run left it; 256-byte aligned */
    double *ref_o, *ref_lse;
} tu_case;

/* What distinguishes a case; zeros mean 1 (counts), f32, dense, N(0,1). */
typedef struct tu_shape {
    uint32_t batch, heads, kv_heads, q_len, kv_len, head_dim;
    uint32_t dtype_q, dtype_k, dtype_v, dtype_o;
    uint32_t causal, precision, smooth, granularity, lse;
    tu_layout layout;
    float scale, k_bias, v_bias;
    uint64_t seed;
} tu_shape;

uint64_t tu_random(uint64_t *state);
double tu_normal(uint64_t *state);

tu_tensor tu_tensor_new(uint32_t dtype, tu_layout layout, uint32_t batch, uint32_t heads, uint32_t rows, uint32_t dim);
void tu_tensor_free(tu_tensor *tensor);
double tu_get(const tu_tensor *tensor, uint32_t b, uint32_t h, uint32_t r, uint32_t c);
void tu_set(tu_tensor *tensor, uint32_t b, uint32_t h, uint32_t r, uint32_t c, double value);
void tu_fill_normal(tu_tensor *tensor, uint64_t seed, double mean);
void tu_poison(tu_tensor *tensor);
/* Bytes that belong to no element, guard included, and are no longer poison. */
size_t tu_spoilt(const tu_tensor *tensor);
/* The elements as doubles, densely; the caller frees them. */
double *tu_values(const tu_tensor *tensor);

void tu_case_init(tu_case *it, const tu_shape *shape);
void tu_case_free(tu_case *it);
/* ref_o, ref_lse from the oracle. */
void tu_case_ref(tu_case *it);
/* Poisons output and scratch, makes the plan for `target`, runs it on the CPU, and checks that nothing outside the
 * outputs and the scratch was written: TANDEM_ERROR_DEVICE then. */
tandem_status tu_case_run(tu_case *it, const td_target *target, uint32_t threads);

/* `rows` rows of each head from `row` on as a job of their own, whose bits are the whole's: the operation, what its plan
 * is made for, and where its views are; those are the whole's before. */
void tu_case_piece(const tu_case *it, uint32_t row, uint32_t rows, tandem_attention *op, td_target *target,
                   uint64_t views[TU_VIEWS]);

/* Q, K and V of a case as its plan has quantised them, in the layout that tandem_attention takes: bytes for each, to be
 * freed, and the operation on them. */
void tu_case_codes(const tu_case *it, const unsigned char *scratch, tandem_attention *op, void *bytes[3], uint64_t sizes[3]);

/* sum |a - b| / sum |b|; NaN anywhere gives NaN. */
double tu_relative_l1(const double *a, const double *b, size_t n);
double tu_max_abs(const double *a, const double *b, size_t n);
/* Of the case's O against ref_o. */
double tu_case_l1(const tu_case *it);
/* The largest |lse - ref_lse|; equal infinities count 0. */
double tu_case_lse_error(const tu_case *it);

#endif
