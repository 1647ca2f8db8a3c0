/* What the weights of a linear layer may be.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/linear/linear.h"

/* By td_linear_weights; dense ones are of x's. */
static const uint32_t weight_dtypes[TD_LINEAR_WEIGHTS] = {TANDEM_DTYPE_NONE, TANDEM_DTYPE_I8,   TANDEM_DTYPE_Q8_0, TANDEM_DTYPE_Q4_0,
                                                          TANDEM_DTYPE_Q4_1, TANDEM_DTYPE_Q4_K, TANDEM_DTYPE_Q6_K,
                                                          TANDEM_DTYPE_Q5_K,
                                                          TANDEM_DTYPE_Q8_0_TILES, TANDEM_DTYPE_Q4_0_TILES, TANDEM_DTYPE_Q4_1_TILES,
                                                          TANDEM_DTYPE_Q4_K_TILES, TANDEM_DTYPE_Q6_K_TILES, TANDEM_DTYPE_Q5_K_TILES};

uint32_t td_linear_weight_dtype(td_linear_weights weights, uint32_t x_dtype)
{
    return weights == TD_LINEAR_DENSE ? x_dtype : weight_dtypes[weights];
}

td_linear_weights td_linear_weights_of(uint32_t dtype)
{
    td_linear_weights weights = TD_LINEAR_WEIGHTS - 1;
    while (weights != TD_LINEAR_DENSE && weight_dtypes[weights] != dtype)
        weights--;
    return weights;
}
