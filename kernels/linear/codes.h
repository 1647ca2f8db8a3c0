/* Codes of Q, K and V as what a linear layer writes: codes.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_LINEAR_CODES_H
#define TANDEM_KERNELS_LINEAR_CODES_H

#include "kernels/commit.h"
#include "kernels/linear/linear.h"

static inline bool td_linear_has_codes(const tandem_linear *l)
{
    return l->q.dtype != TANDEM_DTYPE_NONE || l->k.dtype != TANDEM_DTYPE_NONE || l->v.dtype != TANDEM_DTYPE_NONE;
}
/* What codes take, all of it or nothing; and how they lie, once td_check_view() has passed their views. */
tandem_status td_linear_check_codes(const tandem_linear *l, char *why, size_t why_bytes);
tandem_status td_linear_check_places(const tandem_operands *op, char *why, size_t why_bytes);
/* Adds records that make codes of y, of the dtype that op's y has. Into `outputs` goes what they write, codes first; returns
 * how many. */
enum { TD_LINEAR_CODES_OUTPUTS = 4 };
uint32_t td_linear_build_codes(td_builder *at, const td_target *target, uint32_t sm, const tandem_operands *op, const td_output *y,
                               td_output outputs[TD_LINEAR_CODES_OUTPUTS]);

#endif
