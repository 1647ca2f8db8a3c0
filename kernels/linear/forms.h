/* What plans of linear layers ask, whichever kernels they are for.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_LINEAR_FORMS_H
#define TANDEM_KERNELS_LINEAR_FORMS_H

#include "kernels/builder.h"
#include "kernels/linear/params.h"

#define TD_LINEAR_KERNEL(entry_) {.name = entry_, .entry = entry_}
/* Of F16 and BF16. */
#define TD_LINEAR_KERNELS(name) {TD_LINEAR_KERNEL("linear_f16_" name), TD_LINEAR_KERNEL("linear_bf16_" name)}

static inline uint32_t td_linear_w_rows(const tandem_linear *l)
{
    return l->gate ? 2 * l->outs : l->outs;
}

/* Where a view begins, as far as that is known: modulo 16. */
static inline bool td_linear_is_aligned(const tandem_view *view, uint32_t to)
{
    return view->offset_bytes % to == 0;
}

static inline bool td_linear_x_is_wide(const tandem_linear *l)
{
    return td_linear_is_aligned(&l->x, 16) && l->x.stride_row % 8 == 0 && l->ins % 8 == 0;
}

/* few_rows.c: whether its kernels can have it, but for how many rows there are; and the record, which has *p, of up to TD_LINEAR_SKINNY_MOST
 * rows. `whole` is all that `l` is a part of. */
bool td_linear_suits_few_rows(const tandem_linear *l);
td_record *td_linear_build_few_rows(td_builder *at, const td_target *target, const tandem_linear *l, const tandem_linear *whole,
                                    td_params_linear *p);

#endif
