/* What comes before attention: statistics, means and codes of Q, K and V.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "prologue.cuh"
#include "fused.cuh"
#include "prepare_head.cuh"
#include "prepare.cuh"
