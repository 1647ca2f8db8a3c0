/* Cutting an operation along batch, heads or rows: td_operation's `split` and `part` where any part has the bits of the whole.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_CUT_H
#define TANDEM_KERNELS_CUT_H

#include "kernels/operation.h"

enum { TD_CUT_AXES = 3 };

/* How many parts come of about `count`. Sizes are of batch, heads, rows; 1 for what is not to be cut. */
uint32_t td_cut(const uint32_t sizes[TD_CUT_AXES], uint32_t count);

/* Makes `part`, a copy of the whole, the next one of them. `sizes` lead to the part's own, or are NULL for 1; of `views`, a bit
 * each, those move that have more than one of what is cut. */
void td_cut_part(const td_operation_layout *layout, uint32_t views, uint32_t *const sizes[TD_CUT_AXES], uint32_t count,
                 td_part_at *at, tandem_operands *part);

#endif
