/* Linear layers: y = finish(x w^T), as tandem_linear in types.h says it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_LINEAR_H
#define TANDEM_KERNELS_LINEAR_H

#include "kernels/linear/params.h"
#include "kernels/operation.h"

extern const td_operation td_operation_linear;

/* Its views, in their order. */
enum {
    TD_LINEAR_X,
    TD_LINEAR_W,
    TD_LINEAR_SCALE,
    TD_LINEAR_BIAS,
    TD_LINEAR_RESIDUAL,
    TD_LINEAR_ROTATION,
    TD_LINEAR_POSITION,
    TD_LINEAR_STATISTICS,
    TD_LINEAR_Y,
    TD_LINEAR_Q,
    TD_LINEAR_K,
    TD_LINEAR_V,
    TD_LINEAR_NEXT_STATISTICS,
    TD_LINEAR_VIEWS
};

/* Blocks of TD_LINEAR_CPU_ROWS rows of x by TD_LINEAR_CPU_COLUMNS of w's rows. */
#define TD_LINEAR_CPU_ROWS 64u
#define TD_LINEAR_CPU_COLUMNS 32u
#define TD_LINEAR_CPU_LOCAL_BYTES 335872u
void td_cpu_linear(const void *params, const td_block *at);
/* Whether it multiplies whole numbers, with the instruction set in use: then weights are not rounded to x's type, and 32 channels
 * of x at a time are rounded to 2^-16 of their largest. */
bool td_cpu_linear_in_integers(const td_params_linear *p);

/* Codes of Q, K and V. */
#define TD_LINEAR_CODES_CPU_LOCAL_BYTES (TD_TILE_ROWS * 256u * 5u)
void td_cpu_linear_codes_partial(const void *params, const td_block *at);
void td_cpu_linear_codes_statistics(const void *params, const td_block *at);
void td_cpu_linear_codes(const void *params, const td_block *at);

/* weights.c: the dtype of w for such weights, and what they are by it. */
uint32_t td_linear_weight_dtype(td_linear_weights weights, uint32_t x_dtype);
td_linear_weights td_linear_weights_of(uint32_t dtype);
/* The same weights in blocks, where they are in tiles. */
static inline td_linear_weights td_linear_blocks_of(td_linear_weights weights)
{
    return weights < TD_LINEAR_TILES ? weights : (td_linear_weights)(weights - TD_LINEAR_TILES + TD_LINEAR_Q8_0);
}

/* The kernel that does what a record does behind RMSNorm (td_params_linear_normed); NULL: there is none. */
const td_kernel *td_linear_normed_kernel(const td_record *record);
/* The same of more rows, behind a norm of any kind (kernels/join_params.h). */
const td_kernel *td_linear_few_normed_kernel(const td_record *record);

/* Whether a record can scatter columns of y (td_params_linear.scatter), and does not yet. */
bool td_linear_can_scatter(const td_record *record);

/* All parameters of a layer but pointers. */
td_params_linear td_linear_params(const tandem_linear *l);

/* What weights in blocks become (params.h). */
typedef enum td_linear_sums {
    TD_LINEAR_ROUNDED,    /* elements of x's type, */
    TD_LINEAR_SCALED,     /* or whole numbers, whose sums are scaled: up to 64 rows on a GPU; */
    TD_LINEAR_IN_INTEGERS /* these with x in whole numbers, too: td_cpu_linear(), where it is so */
} td_linear_sums;

/* One element of y in float64, and how far a kernel's may be from it: each product is exact in float32, and each of at most ins
 * additions, and each step after them, rounds once. Params with addresses of the host. */
void td_linear_reference(const td_params_linear *p, td_linear_sums sums, uint32_t row, uint32_t column, double *y, double *bound);

/* For tests and benches: the name of a kernel's form, NULL behind the last; and a plan by that form, UNSUPPORTED where it cannot
 * be. The operation's own plan takes the fastest. */
const char *td_linear_form(uint32_t form);
tandem_status td_linear_plan_form(const tandem_operands *op, const td_target *target, uint32_t form, td_plan *plan, char *why,
                                  size_t why_bytes);

#endif
